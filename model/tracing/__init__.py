"""Reads what a running engine has logged, and finds the first event that no correct manager could have produced.

Two kinds of logs: events of a chapter of the spec (`log`, `trace`), written by a manager that was made to
(`kvspec.model.eventlog`), and the streams that vLLM and SGLang publish (`stream`, `feed`).
"""
