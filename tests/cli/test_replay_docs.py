"""What the page on replays shows is what the command prints, and it leaves nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from transcripts import same, transcripts

from kvspec.cli.main import run
from kvspec.cli.replay_command import BESIDE, MANAGER_ONLY, VARIANTS, _option
from kvspec.model.workload import Request

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")
[(COMMAND, SHOWN)] = transcripts(PAGE)


def first_cells(title: str) -> list[str]:
    """The first column of a section's table."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^(?:\| |- )`([^`]+)`(?: \||:)", section, re.MULTILINE)


def test_the_transcript_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMAND.split()) == 0
    printed = capsys.readouterr().out
    assert same(printed, SHOWN), printed


def test_every_line_is_explained() -> None:
    labels = [line[:13].strip() for line in SHOWN.splitlines()]
    assert first_cells("What is printed") == [*labels[:-1], "violation"]


def test_every_field_of_a_trace_is_explained() -> None:
    assert first_cells("The trace") == [field.name for field in msgspec.structs.fields(Request)]


def test_every_option_of_a_variant_is_explained() -> None:
    options = {name[2:].removesuffix(" N").replace("-", "_") for name in first_cells("What it runs on")}
    assert options == {*VARIANTS, *BESIDE, "threads"}
    assert {_option(name) for name in MANAGER_ONLY} <= set(re.findall(r"`(--[\w-]+)", PAGE))
