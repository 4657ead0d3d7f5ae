"""What becomes of a mistake: killed by the statement that it breaks, without any difference, or alive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from editions import forget, register
from mistaken import Careless, Desk, Endless, Marks, Rules

from kvspec.proofs.mutation.kill import (
    ALIVE,
    ANY,
    EQUIVALENT,
    IMPLIED,
    KILLED,
    SAME,
    Fate,
    fate,
    fate_of_weakened,
    fate_without_axiom,
    known,
)
from kvspec.proofs.mutation.mutants import AXIOM, INVARIANT
from kvspec.spec import load
from kvspec.spec.language import Machine

PASSES = "everything is proved of it, too"
UNPROVED = "some of it is no longer proved, but not refuted"
UNTOUCHED = "nothing rests on it, and no mistake needs it to be found"


FATES = {
    # nothing is said of a start with other books, or with more visits
    "init: without there := ∅": (ALIVE, "", PASSES),
    "init: without opened := ∅": (KILLED, "made.init/opened_there", ""),
    "init: without visits := 0": (ALIVE, "", PASSES),
    "init: visits := 0 becomes visits := 1": (ALIVE, "", PASSES),
    # to put what is there already changes nothing
    "put: without require book ∉ there": (EQUIVALENT, "", SAME[True]),
    "put: without there.add(book)": (KILLED, "made.put/put_is_there", ""),
    "read: without require book ∈ there": (KILLED, "made.read/opened_there", ""),
    "read: without opened.add(book)": (ALIVE, "", PASSES),
    # nobody ever asks what was seen
    "read: without seen.add(book)": (ALIVE, "", PASSES),
    "shut: without require book ∈ opened": (EQUIVALENT, "", SAME[True]),
    # an open book is there, so that is always so
    "shut: when book ∈ there becomes always": (EQUIVALENT, "", SAME[False]),
    "shut: when book ∈ there is negated": (KILLED, "made.shut/shut_is_shut", ""),
    "shut: without opened.discard(book)": (KILLED, "made.shut/shut_is_shut", ""),
    "rest: without require visits < 1": (ALIVE, "", PASSES),
    "rest: require visits < 1 becomes require visits ≤ 1": (ALIVE, "", PASSES),
    "rest: require visits < 1 becomes require visits < 2": (ALIVE, "", PASSES),
    # no number is below zero, so the event can never happen
    "rest: require visits < 1 becomes require visits < 0": (KILLED, "made.rest/can_fire", ""),
    "rest: without there := opened": (ALIVE, "", PASSES),
    "rest: there := opened becomes there := ∅": (KILLED, "made.rest/opened_there", ""),
}


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """All fates of a machine that is known as ``made``, by the mutants' names."""

    def judge(machine: type[Machine]) -> dict[str, Fate]:
        chapter = register(monkeypatch, made=machine)["made"]
        found: dict[str, Fate] = {}
        for id, mutant in known("made").items():
            if mutant.row == INVARIANT:
                found[id] = fate_of_weakened(mutant, list(found.values()))
            elif mutant.row == AXIOM:
                found[id] = fate_without_axiom(mutant)
            else:
                found[id] = fate(mutant, chapter)
        return {id.removeprefix("made."): f for id, f in found.items()}

    yield judge
    forget()


def test_what_becomes_of_mistakes_in_events(judged: Any) -> None:
    fates = {id: f for id, f in judged(Desk).items() if not id.startswith("invariant:")}
    assert {id: (f.verdict, f.killer, f.note) for id, f in fates.items()} == FATES
    for f in fates.values():
        assert (f.by == "proof") == (f.verdict == KILLED)
        assert (f.killer in f.failing) == (f.verdict == KILLED)


def test_all_that_is_no_longer_proved_is_told(judged: Any) -> None:
    assert judged(Desk)["shut: when book ∈ there is negated"].failing == ("made.shut/shut_is_shut",)
    assert judged(Marks)["mark: without noted.add(day)"].failing == ("made.mark/marked_noted",)


def test_an_answer_that_nobody_has_kills_nothing(judged: Any) -> None:
    dropped = judged(Endless)["look: without require busy = ∅"]
    assert (dropped.verdict, dropped.by, dropped.killer) == (ALIVE, "", "")
    assert (dropped.failing, dropped.note) == (("made.look/idle",), UNPROVED)


def test_an_invariant_that_becomes_true_is_killed_by_what_it_was_good_for(judged: Any) -> None:
    fates = {id: f for id, f in judged(Marks).items() if id.endswith(" becomes true")}
    assert {f.id: (f.verdict, f.killer, f.note) for f in fates.values()} == {
        "made.invariant: marked_noted becomes true": (KILLED, "made.init: without marked := ∅", ""),
        "made.invariant: none_struck becomes true": (KILLED, "made.look/nothing_struck", ""),
        # whatever breaks it breaks first_whole, too
        "made.invariant: none_torn becomes true": (ALIVE, "", UNTOUCHED),
        "made.invariant: first_whole becomes true": (EQUIVALENT, "", IMPLIED),
    }
    assert not [id for f in fates.values() for id in f.failing if "can_fail" in id]


def test_a_weakened_invariant_is_killed_by_what_rested_on_it(judged: Any) -> None:
    weakened = judged(Marks)["invariant: none_struck only for d ≠ 0"]
    assert (weakened.verdict, weakened.killer) == (KILLED, "made.look/nothing_struck")


def test_a_weakened_invariant_is_killed_by_a_mistake_that_it_alone_has_found(judged: Any) -> None:
    fates = judged(Marks)
    weakened = fates["invariant: marked_noted only for d ≠ 0"]
    assert (weakened.verdict, weakened.killer) == (KILLED, "made.begin: without noted.add(0)")
    assert fates["begin: without noted.add(0)"].failing == ("made.begin/marked_noted",)


def test_a_weakened_invariant_that_no_mistake_needs_is_alive(judged: Any) -> None:
    weakened = judged(Careless)["invariant: marked_noted only for d ≠ 0"]
    assert (weakened.verdict, weakened.killer, weakened.note) == (ALIVE, "", UNTOUCHED)


def test_what_a_weakened_invariant_has_lost_may_be_said_by_the_others(judged: Any) -> None:
    weakened = judged(Marks)["invariant: none_torn only for d ≠ 0"]
    assert (weakened.verdict, weakened.note) == (EQUIVALENT, IMPLIED)


def test_to_spare_any_one_book_is_to_spare_none(judged: Any) -> None:
    weakened = judged(Careless)["invariant: liked_known only for b ≠ some_Book"]
    assert (weakened.verdict, weakened.note) == (EQUIVALENT, ANY)


def test_an_axiom_that_nothing_rests_on_is_alive(judged: Any) -> None:
    fates = judged(Rules)
    needed, idle = (fates[f"axiom: {name} is not assumed"] for name in ("bible_holy", "not_all"))
    assert (needed.verdict, needed.killer) == (KILLED, "made.burn/bible_kept")
    assert (idle.verdict, idle.note) == (ALIVE, "nothing rests on it")


def test_a_function_that_computes_something_else_is_killed_by_a_theorem() -> None:
    chapter, mutants = load("slots"), known("slots")
    off = mutants["slots.block_index: position div block_size becomes position div block_size + 1"]
    dead = fate(off, chapter)
    assert dead.verdict == KILLED and dead.killer.startswith("slots.theorem/")
    assert {id.partition("/")[0] for id in dead.failing} == {"slots.theorem"}
