"""Drives a target by random operations under the acceptor, and reports family by family what was seen.

A run consists of episodes, each with a pool of its own, small enough to be always full. An episode ends with everything
given back (nothing may be missing then), and with calls after `close`. The first violation ends the run; its operations
are run again and shrunk. One that is known already ends its episode only.
"""

from __future__ import annotations

from kvspec.model.conform.options import DEFAULT_OPERATIONS, MAX_CELLS, ConformOptions
from kvspec.model.conform.replayer import Replayed, Replayer
from kvspec.model.conform.report import ConformReport, FamilyVerdict, FoundViolation
from kvspec.model.conform.run import Conformance, conform

__all__ = [
    "DEFAULT_OPERATIONS",
    "MAX_CELLS",
    "ConformOptions",
    "ConformReport",
    "Conformance",
    "FamilyVerdict",
    "FoundViolation",
    "Replayed",
    "Replayer",
    "conform",
]
