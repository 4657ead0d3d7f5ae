"""Managers inside a running engine: driven step by step, judged by what each public call of theirs left behind."""
