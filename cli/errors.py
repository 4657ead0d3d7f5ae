"""Bad input: one clear line, exit code 2.

A command calls `fail_input` wherever something that the user gave makes no sense. `kvspec.cli.main` prints the line
``kvspec: error: WHERE: WHAT, expected EXPECTED`` on stderr and ends with `Exit.BAD_INPUT`.
"""

from __future__ import annotations

import os
from typing import NoReturn

from kvspec.model.plain import one_line


class InputError(Exception):
    """Something the user gave cannot be used. Its text is always a single printable line."""

    def __init__(self, what: str, *, where: str | None = None, expected: str | None = None) -> None:
        parts = what if where is None else f"{where}: {what}"
        super().__init__(one_line(parts if expected is None else f"{parts}, expected {expected}"))


def fail_input(what: str, *, where: str | None = None, expected: str | None = None) -> NoReturn:
    """End the command with one line about bad input and exit code 2.

    Args:
        what: what is wrong, without a full stop, such as ``"unknown chapter 'block'"``.
        where: the option, argument or place in a file (see `place`) that it is about.
        expected: what would have been right, such as ``"one of blocks, keys"``.

    Raises:
        InputError: always.
    """
    raise InputError(what, where=where, expected=expected)


def place(path: str | os.PathLike[str], line: int | None = None, column: int | None = None) -> str:
    """``file``, ``file:line`` or ``file:line:column``: the `where` of a fault in a file."""
    numbers = [str(number) for number in (line, column) if number is not None]
    return ":".join([os.fspath(path), *numbers])
