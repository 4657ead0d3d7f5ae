"""Targets in another process: the target protocol as JSON, one message a line (``docs/protocol.md``)."""
