"""What the README shows is what the commands print, but for times."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvspec.cli.main import run

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TRANSCRIPTS = re.findall(r"```console\n\$ kvspec ([^\n]*)\n(.*?)\n```", README, flags=re.DOTALL)


def timeless(text: str) -> list[str]:
    """Lines without times, and without the spaces that depend on them."""
    return [re.sub(r"\s+", " ", re.sub(r"\d+\.\d+ s\b", "TIME", line)).strip() for line in text.strip().splitlines()]


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 4


@pytest.mark.parametrize(("command", "shown"), TRANSCRIPTS, ids=[c for c, _ in TRANSCRIPTS])
def test_a_transcript_is_what_the_command_prints(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(command.split()) == 0
    assert timeless(capsys.readouterr().out) == timeless(shown)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_commands_that_set_up_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    asked = set(re.findall(r"^make ([a-z]+)", README, flags=re.MULTILINE))
    assert asked == {"check", "test"}
    assert asked <= targets
