"""docs/trusted-base.md and docs/proof-of-proofs.md: generated parts are up to date and names are those of the
spec; tests/test_readme.py compares the transcripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvspec.model.promises import Family
from kvspec.proofs import trusted_base
from kvspec.proofs.trusted_base import PAGE, PARTS, PageError, main, rewritten
from kvspec.spec import CHAPTERS, load

ROOT = Path(__file__).resolve().parent.parent
TEXT = PAGE.read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "proof-of-proofs.md").read_text(encoding="utf-8")
FAMILIES = {
    "partition", "holders", "reserved", "map truth", "publish after write", "no reuse while used", "exclusive writer",
    "atomic failure", "drain", "window", "state position", "tiers", "key", "units", "events", "progress", "rank",
    "serial", "pages",
}  # fmt: skip


# -- generated parts ---------------------------------------------------------------------------------------------------


def test_the_page_is_what_is_generated() -> None:
    assert rewritten(TEXT) == TEXT, "python -m kvspec.proofs.trusted_base writes it anew"


def test_the_page_has_every_part_once() -> None:
    assert sorted(re.findall(r"<!-- generated: (\w+) -->", TEXT)) == sorted(PARTS)


def test_a_part_that_was_changed_is_put_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(TEXT.replace("| blocks |", "| blocks | 1", 1), encoding="utf-8")
    assert main(page) == 0
    assert page.read_text(encoding="utf-8") == TEXT
    assert main(page) == 0
    assert capsys.readouterr().out.splitlines() == ["page.md: written", "page.md: as it was"]


@pytest.mark.parametrize(
    "text", ["<!-- generated: moods -->\n<!-- end -->", "<!-- generated: axioms -->\nno end", "<!-- generated: -->"]
)
def test_a_part_that_nothing_generates_is_an_error(text: str) -> None:
    with pytest.raises(PageError, match="expected"):
        rewritten(text)


def test_where_there_is_no_page_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path / "page.md") == 2
    assert "expected a checkout" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_every_axiom_of_the_spec_is_listed() -> None:
    listed = "\n".join(trusted_base.axioms())
    own = [s for name in CHAPTERS for s in load(name).axioms if "." not in s.name]
    assert own
    assert [s.name for s in own if f"`{s.name}`: {s.sentence}" not in listed] == []


# -- what is written by hand -------------------------------------------------------------------------------------------


def names() -> set[str]:
    """Everything of the specification that has a full name."""
    found: set[str] = set()
    for name in CHAPTERS:
        chapter = load(name)
        statements = (*chapter.axioms, *chapter.invariants, *chapter.theorems, *chapter.witnesses)
        loops = [before.name for before, _ in chapter.loops]
        found |= {f"{name}.{n}" for n in (*(s.name for s in statements), *chapter.event_names, *loops)}
    return found


@pytest.mark.parametrize("text", [TEXT, GUIDE], ids=["trusted-base", "proof-of-proofs"])
def test_statements_that_are_named_exist(text: str) -> None:
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    named = set(re.findall(rf"`((?:{'|'.join(CHAPTERS)})\.\w+)`", plain)) - {f"{name}.json" for name in CHAPTERS}
    assert named
    assert named - names() == set()


def test_every_property_family_has_its_place() -> None:
    listed = re.split(r"^- ", TEXT.partition("## Property families")[2], flags=re.MULTILINE)[1:]
    row = re.compile(r"\*\*([a-z ]+)\*\*: (.*) \*Weaker\*: (.*)")
    found = [match.groups() for text in listed if (match := row.fullmatch(re.sub(r"\s+", " ", text.strip())))]
    assert len(found) == len(listed) and {family for family, _, _ in found} == FAMILIES
    assert all(carried and weaker for _, carried, weaker in found)
    of_managers = {"usage", "content", "misuse", "invariant"}
    assert {family.replace(" ", "_") for family in FAMILIES} | of_managers >= set(Family)


@pytest.mark.parametrize("text", [TEXT, GUIDE], ids=["trusted-base", "proof-of-proofs"])
def test_files_that_are_named_exist(text: str) -> None:
    files = re.findall(r"`((?:spec|model|impl|proofs|cli|tests|docs)/[\w/.-]+)`", text)
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert files
    assert links
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
