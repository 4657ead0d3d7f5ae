"""Texts in new files: nothing that is there is written over."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from kvspec.model.plain import one_line

_LONGEST: Final = 200
"""Bytes of a name; file systems take 255, with what comes behind it."""


def saved_or_why(folder: Path, name: str, suffix: str, text: str) -> tuple[Path | None, str]:
    """Where a text is saved (`save_text`), or why it is not: what it is about is told all the same."""
    try:
        return save_text(folder, name, suffix, text), ""
    except OSError as error:
        return None, one_line(f"{error.filename or folder}: {error.strerror or error}")


def save_text(folder: Path, name: str, suffix: str, text: str) -> Path:
    """Write a text into a new file of the folder; a file that holds just this text is as good as new.

    Raises:
        OSError: it cannot be written there; then nothing is left of it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "_", name).encode()[-_LONGEST:].decode(errors="ignore").lstrip(".")
    number = 1
    while True:
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}.{number}{suffix}")
        try:
            file = path.open("x", encoding="utf-8")
        except FileExistsError:
            if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
                return path
            number += 1
            continue
        try:
            with file:
                file.write(text)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path
