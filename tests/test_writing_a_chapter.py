"""docs/writing-a-chapter.md: the chapter on it is proved and explored, and it names the whole vocabulary."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from pathlib import Path

import pytest

from kvspec.model.concrete import Structure
from kvspec.model.exploring import scopes
from kvspec.model.exploring.coverage import goals
from kvspec.model.exploring.plain import explore
from kvspec.model.exploring.scopes import DEFAULTS, Scope, ScopeError
from kvspec.proofs.campaign import prove_chapter
from kvspec.proofs.verdicts import Verdict
from kvspec.spec import language
from kvspec.spec.language import Chapter

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "writing-a-chapter.md").read_text(encoding="utf-8")
CHAPTER, SCRIPT = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
POOL = Structure({"Slot": [0, 1, 2], "Seq": ["a", "b"]}, {("slots",): frozenset({1, 2})})


@pytest.fixture
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chapter:
    """The chapter of the page, saved and imported as it says."""
    (tmp_path / "leases.py").write_text(CHAPTER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "leases", raising=False)
    return Chapter(importlib.import_module("leases").Leases)


def test_the_chapter_is_proved(leases: Chapter) -> None:
    results = prove_chapter("leases", leases)
    assert "leases.hand_over->lend/pre.1" in {r.id for r in results}
    assert [r.id for r in results if r.verdict is not Verdict.PROVED] == []


def test_everything_in_the_chapter_is_met(leases: Chapter) -> None:
    found = explore(leases, POOL)
    assert found.complete and found.violation is None
    assert set(found.fired) == set(leases.event_names)
    assert set(found.reached) == {g.name for g in goals(leases)}


def test_the_script_prints_what_is_shown(
    leases: Chapter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "try_leases.py"
    script.write_text(SCRIPT, encoding="utf-8")
    runpy.run_path(str(script))
    (shown,) = re.findall(r"that it prints:\n\n```\n(.*?)```", PAGE, flags=re.DOTALL)
    assert capsys.readouterr().out.endswith(shown)


def test_the_page_names_the_whole_vocabulary() -> None:
    named = set(re.findall(r"\w+", PAGE.partition("## Vocabulary")[2].partition("## Making")[0]))
    about_errors_and_readings = {"Chapter", "Machine", "SourceLine", "SpecError"}
    assert set(language.__all__) - about_errors_and_readings - named == set()


def test_links_and_files_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    files = re.findall(r"`((?:spec|model|proofs)/[\w/]+\.py)`", PAGE)
    assert links and files
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
    assert [file for file in files if file != "spec/NAME.py" and not (ROOT / file).exists()] == []


@pytest.mark.parametrize("table", ["WORDS", "DEFAULTS", "_carriers", "_MEANINGS"])
def test_the_places_to_register_exist(table: str) -> None:
    assert f"`{table}`" in PAGE or f"`_World.{table}`" in PAGE
    assert hasattr(scopes, table) or hasattr(scopes._World, table)  # type: ignore[attr-defined]


# -- what a chapter that is not there yet is told ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "slots", "message"),
    [
        ({}, {}, "leases: no words are known for scopes of the chapter, expected them in DEFAULTS"),
        ({"leases": "seqs=2"}, {}, "Slot: a sort without elements in scopes, expected them in _carriers"),
        ({"leases": "seqs=2"}, {"Slot": [0, 1]}, "slots: a static word without a meaning in scopes, expected one in"),
    ],
)
def test_what_a_scope_lacks_is_said_with_the_place(
    leases: Chapter,
    monkeypatch: pytest.MonkeyPatch,
    words: dict[str, str],
    slots: dict[str, list[int]],
    message: str,
) -> None:
    carriers = scopes._World._carriers  # type: ignore[attr-defined]
    monkeypatch.setattr(scopes, "load", lambda name: leases)
    monkeypatch.setattr(scopes, "DEFAULTS", {**DEFAULTS, **words})
    monkeypatch.setattr(scopes._World, "_carriers", lambda w, c: {**carriers(w, c), **slots})  # type: ignore[attr-defined]
    with pytest.raises(ScopeError, match=rf"^{message}.* \(see docs/writing-a-chapter\.md\)$"):
        Scope.parse("", "leases")
