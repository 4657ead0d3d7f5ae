"""What the README and the guide to mutants and manifests show is what the commands print, but for times."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transcripts import same, steady, transcripts

from kvspec.cli.main import COMMANDS, run
from kvspec.model.conformance import missing_parts
from kvspec.spec import CHAPTERS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "proof-of-proofs.md").read_text(encoding="utf-8")
TRANSCRIPTS = [*transcripts(README), *transcripts(GUIDE)]


def test_there_are_transcripts() -> None:
    assert len(transcripts(README)) >= 4 and len(transcripts(GUIDE)) >= 3


@pytest.mark.parametrize(("command", "shown"), TRANSCRIPTS, ids=[c for c, _ in TRANSCRIPTS])
def test_a_transcript_is_what_the_command_prints(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(command.split()) == 0
    printed = capsys.readouterr().out
    assert same(printed, shown), printed


def test_the_counterexample_is_what_the_missing_line_gives(tmp_path: Path) -> None:
    line = re.findall(r"Without the line `([^`]*)` in `publish`", README)[0]
    package = tmp_path / "kvspec"
    shutil.copytree(ROOT / "spec", package / "spec")
    for folder in ("model", "proofs", "cli"):
        (package / folder).symlink_to(ROOT / folder)
    chapter = package / "spec" / "prefix_cache.py"
    text = chapter.read_text(encoding="utf-8")
    assert text.count(f"        {line}\n") == 1
    chapter.write_text(text.replace(f"        {line}\n", ""), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "kvspec.cli", "prove", "--chapter", "prefix_cache"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONIOENCODING": "utf-8"},
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    printed = steady(done.stdout)
    said, last = (
        steady(block) for block in re.findall(r"```\n(publish / .*?|\d+ refuted: .*?)\n```", README, re.DOTALL)
    )
    assert printed[-1:] == last
    # The rest is the solver's choice of one situation out of many; its versions differ.
    fixed = [part for part in said if part.startswith(("step ", "reached ", "run it "))]
    assert len(fixed) == 3 and set(fixed) <= set(printed)
    broken = next(part for part in said if part.startswith("broken ")).partition(" (")[0]
    assert any(part.startswith(broken) for part in printed)


def test_every_section_that_is_cited_is_in_the_contract() -> None:
    contract = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^(?:## |- \*\*)(\d+(?:\.\d+)?)\b", contract, flags=re.MULTILINE)) | {"10.1"}
    assert {str(n) for n in range(1, 11)} <= described
    cited = set()
    for path in (ROOT / "spec").glob("*.py"):
        for places in re.findall(r"\(seed ([\d., and]+)", path.read_text(encoding="utf-8")):
            cited |= set(re.findall(r"\d+(?:\.\d+)?", places))
    assert cited and cited <= described


def test_the_contract_names_every_chapter() -> None:
    table = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8").partition("## 1 ")[0]
    assert [name for name in CHAPTERS if f"`{name}`" not in table] == []


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_commands_that_set_up_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    asked = set(re.findall(r"^make ([a-z]+)", README, flags=re.MULTILINE))
    assert asked == {"check", "test"}
    assert asked <= targets


def test_every_command_is_shown_or_named() -> None:
    assert [c.name for c in COMMANDS if not re.search(rf"kvspec {c.name}\b", README)] == []


LONG = 250
"""Lines of a page from which on it begins with its contents."""


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_long_page_begins_with_links_to_all_its_sections(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", whole := page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    head, *rest = re.split(r"^## ", text, flags=re.MULTILINE)
    sections = [section.partition("\n")[0] for section in rest]
    linked = re.findall(r"\[([^\]]+)\]\((#[^)]+)\)", head)
    if whole.count("\n") <= LONG:
        assert not linked, "it has a line of contents, and needs none"
    else:
        assert linked == [(section, anchor(section)) for section in sections]


def anchor(section: str) -> str:
    """Where a heading is linked to: in lower case, a hyphen for each blank, and nothing that is no part of a word."""
    return "#" + re.sub(r"[^\w\- ]", "", section.lower()).replace(" ", "-")


def test_the_methods_that_every_target_has_are_counted() -> None:
    counted = sum(part.endswith("()") for part in missing_parts(object()))
    assert re.findall(r"(\d+) methods that every target has", README) == [str(counted)]
