"""A copy of the repository's manifests, which commands take for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kvspec.proofs.manifest import record
from kvspec.proofs.manifest.check import findings, read_all
from kvspec.proofs.manifest.compare import accepted
from kvspec.proofs.manifest.record import load_record, path_of, write_record

MANIFESTS = record.FOLDER


def copied(to: Path, patch: pytest.MonkeyPatch) -> Path:
    """The folder of the copy; from now on commands read and write there."""
    copy = to / "manifest"
    shutil.copytree(MANIFESTS, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    patch.setattr(record, "FOLDER", copy)
    for function in (load_record, write_record, path_of, accepted, read_all, findings):
        assert function.__defaults__ == (MANIFESTS,)
        patch.setattr(function, "__defaults__", (copy,))
    return copy
