"""``kvspec manifest`` from the outside: what has changed is shown, and written only if that is wanted."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from manifests import MANIFESTS, copied
from msgspec.structs import replace

from kvspec.cli import manifest_command
from kvspec.cli.main import INTERRUPTED, run
from kvspec.cli.mutate_command import MutationRun
from kvspec.cli.output import Exit
from kvspec.proofs.manifest.record import Record, load_record, write_record


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return copied(tmp_path, monkeypatch)


def manifest(folder: Path, *args: str) -> int:
    notebook = str(folder.parent / "notes.jsonl")
    return run(["manifest", "--chapter", "blocks", "--jobs", "1", "--notebook", notebook, *args])


def blocks() -> Record:
    record = load_record("blocks")
    assert record is not None
    return record


def text(folder: Path) -> str:
    return (folder / "blocks.json").read_text(encoding="utf-8")


def test_what_has_changed_is_shown_and_written_if_wanted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, original = blocks(), text(MANIFESTS)
    first, *obligations = right.obligations
    exploration, *explorations = right.explorations
    write_record(
        replace(
            right,
            obligations=(replace(first, scope="shown with 9 blocks"), *obligations[1:]),
            explorations=(replace(exploration, distinct=99), *explorations),
        )
    )
    edited, file = text(folder), folder.parent / "r.json"
    changes = [
        f"~ obligation {first.id}: scope shown with 9 blocks -> {first.scope}",
        f"+ obligation {obligations[0].id}",
        f"~ exploration blocks {exploration.scope} canonical: distinct 99 -> {exploration.distinct}",
    ]

    assert manifest(folder, "--json", str(file)) == Exit.UNKNOWN
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == changes
    assert re.fullmatch(r"manifest: 3 changes \(kvspec manifest --update writes them\), 0 findings; \d+ s", last)
    assert text(folder) == edited
    result = json.loads(file.read_text())
    assert (result["format"], result["exit"], result["complete"]) == ("kvspec/manifest", Exit.UNKNOWN, True)
    assert (result["changes"], result["findings"]) == ({"blocks": changes}, [])

    assert manifest(folder, "--update") == Exit.HOLDS
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines == changes and last.startswith("manifest: 3 changes (written), 0 findings; ")
    assert text(folder) == original

    assert manifest(folder) == Exit.HOLDS
    assert capsys.readouterr().out.startswith("manifest: 0 changes, 0 findings; ")


# -- with evidence that is made up -------------------------------------------------------------------------------------


@pytest.fixture
def evidence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Record]:
    """What a run has seen of each chapter: what is written down, unless a test says otherwise."""
    found = {"blocks": blocks()}

    def pretend(self: manifest_command.ManifestRun) -> None:
        monkeypatch.setattr(self.proofs, "exit", lambda complete: Exit.HOLDS)
        self.records |= found

    monkeypatch.setattr(manifest_command.ManifestRun, "gather", pretend)
    return found


def test_what_nothing_speaks_for_is_found_even_if_it_is_written(
    folder: Path, evidence: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    first, *rest = blocks().invariants
    evidence["blocks"] = replace(blocks(), invariants=(replace(first, killers=()), *rest))
    for _ in range(2):
        assert manifest(folder, "--update") == Exit.UNKNOWN
        assert f"bare: blocks.{first.name}: no killer" in capsys.readouterr().out.splitlines()
    assert blocks() == evidence["blocks"]


def test_a_mutant_that_survives_is_a_violation(
    folder: Path, evidence: dict[str, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MutationRun, "exit", lambda self, complete: Exit.VIOLATED)
    assert manifest(folder) == Exit.VIOLATED


def test_many_changes_are_counted(
    folder: Path, evidence: dict[str, Record], capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "blocks.json").unlink()
    assert manifest(folder) == Exit.UNKNOWN
    lines = capsys.readouterr().out.splitlines()
    total = int(lines[-1].split()[1])
    assert lines[:40] == [line for line in lines if line.startswith("+ ")]
    assert lines[40] == f"  and {total - 40} more in blocks"
    assert not (folder / "blocks.json").exists()
    assert manifest(folder, "--update") == Exit.HOLDS
    assert text(folder) == text(MANIFESTS)


def test_an_interruption_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(self: manifest_command.ManifestRun) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(manifest_command.ManifestRun, "gather", stop)
    (folder / "blocks.json").unlink()
    file = folder.parent / "r.json"
    assert manifest(folder, "--update", "--json", str(file)) == INTERRUPTED
    assert "interrupted; nothing was written" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert (result["complete"], result["exit"]) == (False, INTERRUPTED)
    assert not (folder / "blocks.json").exists()


def test_a_manifest_that_is_installed_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert manifest(folder, "--update") == Exit.BAD_INPUT
    assert "--update: the installed manifest is not writable, expected a checkout of kvspec" in capsys.readouterr().err


def test_an_unknown_chapter_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["manifest", "--chapter", "block"]) == Exit.BAD_INPUT
    assert capsys.readouterr().err.startswith("kvspec: error: --chapter: unknown chapter 'block', expected one of keys")
