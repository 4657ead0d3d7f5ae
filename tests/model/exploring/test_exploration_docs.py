"""The page about exploration says what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvspec.cli.main import run
from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.scopes import WORDS

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "exploration.md").read_text(encoding="utf-8")


def test_the_page_names_every_word_of_a_scope() -> None:
    table = PAGE.partition("| word |")[2].partition("\n\n")[0]
    named = {w for row in table.splitlines()[2:] for w in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == set(WORDS)


def test_the_page_names_every_kind_of_states() -> None:
    assert "`--states " + "`, `".join(s.value for s in States) + "`" in PAGE


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(code, "exploration.md", "exec"), {})
    assert capsys.readouterr().out.startswith("7 every larger pool")


def test_the_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = re.findall(r"```\nkvspec (explore [^\n]*)\n```", PAGE)
    assert run(command.split()) == 0
    assert "covers every larger pool" in capsys.readouterr().out
