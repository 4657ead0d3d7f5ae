"""The second and the third answer to a mistake: a run, and a judge who follows it."""

from __future__ import annotations

from typing import Any

import pytest
from mistaken import Desk

from kvspec.cli import exploring
from kvspec.model.exploring.outcome import Outcome, States, Violation
from kvspec.model.exploring.scopes import Scope
from kvspec.proofs.mutation import explored
from kvspec.proofs.mutation.explored import fate_by_exploration
from kvspec.proofs.mutation.judging import fate_by_test
from kvspec.proofs.mutation.kill import ALIVE, EXPLORATION, KILLED, TEST, Fate
from kvspec.proofs.mutation.mutants import of_row
from kvspec.spec import load
from kvspec.spec.language import Chapter
from kvspec.spec.language.traced import Site

CHAPTER = Chapter(Desk)
MUTANT = next(m for m in of_row("made", CHAPTER, "read") if m.change == "without seen.add(book)")
LIVES = Fate(MUTANT.id, "key", ALIVE, note="everything is proved of it, too")
SMALL, LARGE = (Scope.parse(text, "blocks") for text in ("blocks=2,holders=1", "blocks=3,holders=2"))
BROKEN = Violation("invariant", "opened_there", "an open book is on the desk", ())


def outcome(met: str = "", violation: Violation | None = None, complete: bool = True) -> Outcome:
    fired = dict.fromkeys(met.split(), 1)
    return Outcome("", States.CANONICAL, 1, 1, 1, (1,), complete, violation, fired)


def asked(right: list[Outcome | None], wrong: list[Outcome | None]) -> Fate:
    """The fate where the text and the mistake come to these outcomes, one for each scope."""

    def explore(chapter: Chapter, scope: Scope) -> Outcome | None:
        return (wrong if chapter is MUTANT.text else right)[[SMALL, LARGE].index(scope)]

    return fate_by_exploration(LIVES, MUTANT, CHAPTER, [SMALL, LARGE], explore)


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chapter is none of the specification's, so it has no rows to rest on."""
    monkeypatch.setattr(explored, "key", lambda mutant, by: f"what {by} rests on")


def test_a_run_that_breaks_a_statement_kills() -> None:
    found = asked([outcome("put"), outcome("put")], [outcome("put"), outcome("put", BROKEN)])
    assert (found.verdict, found.by, found.killer) == (KILLED, EXPLORATION, "opened_there")
    assert found.note == f"in {LARGE.text}" and (found.id, found.key) == (LIVES.id, "what exploration rests on")


def test_what_no_run_reaches_any_more_kills() -> None:
    found = asked([outcome("put"), outcome("put read shut")], [outcome("put"), outcome("put")])
    assert (found.verdict, found.by, found.killer) == (KILLED, EXPLORATION, "read")


def test_an_event_that_no_longer_changes_anything_is_not_explored() -> None:
    """Only a check is left of it; what it did is met in the second scope."""
    mutant = next(m for m in of_row("made", CHAPTER, "shut") if m.change == "without opened.discard(book)")
    asked: list[tuple[Chapter, Scope]] = []

    def explore(chapter: Chapter, scope: Scope) -> Outcome | None:
        asked.append((chapter, scope))
        return outcome("put shut" if scope is LARGE else "put")

    found = fate_by_exploration(LIVES, mutant, CHAPTER, [SMALL, LARGE], explore)
    assert (found.verdict, found.by, found.killer) == (KILLED, EXPLORATION, "shut")
    assert asked == [(CHAPTER, SMALL), (CHAPTER, LARGE)]
    assert fate_by_exploration(LIVES, mutant, CHAPTER, [SMALL], explore) is LIVES


def test_the_text_itself_is_explored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[Chapter] = []

    def explore(chapter: Chapter, scope: Scope) -> Outcome | None:
        texts.append(chapter)
        return outcome(scope.text)

    monkeypatch.setattr(exploring, "explored_if_inside", explore)
    exploring._own.cache_clear()
    chapter = load("blocks")
    mistaken = chapter.with_event("take", lambda site: site.terms)
    for text in (chapter, mistaken, chapter, mistaken):
        assert exploring.explored_once(text, SMALL) == outcome(SMALL.text)
    assert texts == [chapter, mistaken, mistaken]
    exploring._own.cache_clear()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ([outcome("put read")] * 2, [outcome("put read")] * 2),
        # met in another scope
        ([outcome("read"), outcome("put read")], [outcome("read"), outcome("put")]),
        # broken without the mistake, too
        ([outcome("", BROKEN)] * 2, [outcome("", BROKEN)] * 2),
        # not everything was seen
        ([outcome("put read")] * 2, [outcome("put", complete=False)] * 2),
        ([outcome("put read", complete=False)] * 2, [outcome("put")] * 2),
        # one of the texts leaves the scope
        ([outcome("put read")] * 2, [None, None]),
        ([None, None], [outcome("put", BROKEN)] * 2),
    ],
)
def test_a_mistake_that_no_run_shows_is_alive(right: list[Outcome | None], wrong: list[Outcome | None]) -> None:
    assert asked(right, wrong) is LIVES


def test_a_judge_who_follows_the_mistake_kills_it_if_a_correct_manager_fails() -> None:
    mutant = next(of_row("sequences", load("sequences"), "take"))
    texts: list[Any] = []

    def judge(text: Chapter) -> str | None:
        texts.append(text)
        return "partition"

    found = fate_by_test(LIVES, mutant, judge)
    assert (found.verdict, found.by, found.killer) == (KILLED, TEST, "partition") and texts == [mutant.text]
    assert fate_by_test(LIVES, mutant, lambda text: None) is LIVES
    assert fate_by_test(LIVES, MUTANT, judge) is LIVES and len(texts) == 1


def test_the_torch_manager_passes_the_right_judge_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exploring, "OPERATIONS", 500)
    chapter = load("sequences")

    def edit(site: Site) -> Any:
        return None if site.kind == "call" else site.terms

    assert exploring.judged_by(chapter) is None
    assert exploring.judged_by(chapter.with_event("take", edit)) is not None
