"""Errors that a specification author meets, with the line of the text that caused them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import NamedTuple

_NO_TEXT = (str(Path(__file__).parent), contextlib.__file__)
"""The vocabulary, and what calls `when` for a ``with`` statement."""


class SourceLine(NamedTuple):
    """A line of specification text."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def source_line() -> SourceLine:
    """The innermost line outside the vocabulary itself: the text that is being read."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NO_TEXT):
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)


class SpecError(Exception):
    """The text of a specification means nothing: where, what, and what was expected."""

    def __init__(self, what: str, expected: str, where: SourceLine | None = None) -> None:
        self.where = where or source_line()
        self.what = what
        self.expected = expected
        super().__init__(f"{self.where}: {what}; expected {expected}")
