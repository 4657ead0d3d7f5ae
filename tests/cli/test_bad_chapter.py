"""A slip in the text of a chapter is told in one line, with file and line; it is no fault of kvspec and no verdict."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARD = "require(self.free.has(block))"


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (GUARD, "require(not self.free.has(block))", "a symbolic value is used as a Python truth value; expected when"),
        ("take(self, block: Block,", "take(self, block,", "parameter block of take; expected an annotation"),
        ("self.free.discard(block)", "self.free.discart(block)", "AttributeError: 'Set' object has no attribute"),
        ("free: Set[Block]", "free: int", "Blocks.free: <class 'int'>; expected a sort, "),
        (GUARD, "require(fre.has(block))", "NameError: name 'fre' is not defined; expected the text of a chapter"),
        (GUARD, "require(self.free.has(block)", "SyntaxError: '(' was never closed; expected the text of a chapter"),
    ],
)
def test_a_slip_is_one_line(right: str, wrong: str, said: str, tmp_path: Path) -> None:
    package = tmp_path / "kvspec"
    shutil.copytree(ROOT / "spec", package / "spec", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("model", "proofs", "cli"):
        (package / folder).symlink_to(ROOT / folder)
    chapter = package / "spec" / "blocks.py"
    text = chapter.read_text(encoding="utf-8")
    assert right in text
    chapter.write_text(text.replace(right, wrong, 1), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "kvspec.cli", "prove", "--chapter", "blocks"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("kvspec: error: blocks.py:") and said in line
