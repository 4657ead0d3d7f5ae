"""Texts in new files: nothing that is there is written over."""

from __future__ import annotations

import re
from pathlib import Path


def save_text(folder: Path, name: str, suffix: str, text: str) -> Path:
    """Write a text into a new file of the folder; a file that holds just this text is as good as new."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^\w.-]+", "_", name)
    number = 1
    while True:
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem}.{number}{suffix}")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
                return path
            number += 1
        else:
            return path
