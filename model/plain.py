"""Words from elsewhere, such as an error message, as they may be shown: they cannot move a terminal's cursor."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 2000
"""Characters of a line."""


def printable(text: str) -> str:
    """The text with control characters and the like escaped, ends of lines among them."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: str) -> str:
    """The text with runs of blanks and ends of lines as one space, and other control characters escaped."""
    return printable(" ".join(text.split()))


def shortened(line: str) -> str:
    """Not more of a line than somebody will read."""
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def sentence(text: str) -> str:
    """One line, and not too long."""
    return shortened(one_line(text))
