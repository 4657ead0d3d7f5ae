"""Runs of chapter `composite`: calls that succeed or fail in all groups at once, and steps that take drafts back."""

from __future__ import annotations

from typing import Any

import pytest

from kvspec.model.concrete import NotEnabled, State, evaluate, fire
from kvspec.model.exploring.instances import start_state
from kvspec.model.exploring.scopes import Scope
from kvspec.spec import load

CHAPTER = load("composite")
ALWAYS = [*CHAPTER.invariants, *(t for t in CHAPTER.theorems if t.after is None)]
FULL, WINDOWED = "group0", "group1"


class Run:
    """Blocks of one token and a window of one token; group 0 is of full attention, group 1 has the window."""

    def __init__(self, seqs: int = 1) -> None:
        self.scope = Scope.parse(f"groups=2,blocks=3,seqs={seqs},len=3,block_size=1,window=1", "composite")
        self.state: State = start_state(CHAPTER, self.scope.structure, self.scope.given)

    def __getitem__(self, name: str) -> Any:
        return self.state[tuple(name.split("."))]

    def do(self, *steps: tuple[Any, ...]) -> Run:
        """The steps; what is true in every state is looked at behind the last."""
        for name, *args in steps:
            self.state = fire(CHAPTER.event(name), self.scope.structure, self.state, tuple(args))
        assert [s.name for s in ALWAYS if not evaluate(s.term, self.scope.structure, self.state)] == []
        return self

    def can(self, name: str, *args: Any) -> bool:
        try:
            fire(CHAPTER.event(name), self.scope.structure, self.state, args)
        except NotEnabled:
            return False
        return True


def room(seq: str, *blocks: int) -> list[tuple[Any, ...]]:
    """A call for a token more, which gets this block in both groups."""
    *_, block = blocks
    return [("begin", seq, len(blocks)), ("stage", FULL, block), ("stage", WINDOWED, block), ("commit",)]


def computed(seq: str, upto: int) -> list[tuple[Any, ...]]:
    return [("compute", seq, FULL, upto), ("compute", seq, WINDOWED, upto), ("accept", seq, upto)]


def test_a_call_that_succeeds_has_room_in_all_groups() -> None:
    run = Run().do(*room("seq0", 1))
    assert run["covered"]["seq0"] == 1
    assert run["groups.size"][FULL, "seq0"] == run["groups.size"][WINDOWED, "seq0"] == 1


def test_a_call_cannot_succeed_before_every_group_has_given_enough() -> None:
    run = Run().do(("begin", "seq0", 1), ("stage", FULL, 1))
    assert not run.can("commit")
    assert not run.can("stage", FULL, 2)


def test_a_call_that_one_group_refuses_leaves_nothing_in_the_other() -> None:
    run = Run(seqs=2).do(*room("seq0", 1), *computed("seq0", 1), ("slide", "seq0", WINDOWED), *room("seq0", 1, 2))
    before = run.state
    run.do(("begin", "seq1", 1), ("stage", WINDOWED, 1), ("refuse", FULL))
    assert not run.can("refused")
    run.do(("unstage", WINDOWED), ("refused",))
    for name in ("groups.blocks.free", "groups.blocks.holders", "groups.size", "groups.released", "covered", "running"):
        assert run[name] == before[tuple(name.split("."))]


def test_what_has_left_the_window_goes_back_before_a_call_is_refused_for_want_of_it() -> None:
    run = Run().do(*room("seq0", 1), *room("seq0", 1, 2), *computed("seq0", 2), ("begin", "seq0", 3))
    assert run.can("refuse", FULL)
    assert not run.can("refuse", WINDOWED)
    run.do(("slide", "seq0", WINDOWED))
    assert not run.can("refuse", WINDOWED)
    run.do(("stage", WINDOWED, 1), ("refuse", FULL), ("unstage", WINDOWED), ("refused",))
    assert run["groups.released"][WINDOWED, "seq0"] == 1


def test_drafts_are_taken_back_in_one_group_after_the_other_and_nothing_has_slid_by_them() -> None:
    run = Run().do(*room("seq0", 1), *room("seq0", 1, 2), *computed("seq0", 1))
    run.do(("compute", "seq0", FULL, 2), ("compute", "seq0", WINDOWED, 2), ("slide", "seq0", WINDOWED))
    assert not run.can("slide", "seq0", WINDOWED)
    run.do(("take_back", "seq0", FULL, 1), ("compute", "seq0", FULL, 2), ("take_back", "seq0", WINDOWED, 1))
    assert not run.can("accept", "seq0", 2)
    assert not run.can("take_back", "seq0", FULL, 0)


def test_rejected_drafts_leave_no_room_behind_and_what_is_accepted_stays() -> None:
    run = Run().do(*room("seq0", 1), *room("seq0", 1, 2), *computed("seq0", 1), ("compute", "seq0", FULL, 2))
    assert not run.can("shorten", "seq0", 1)
    assert not run.can("give_back", "seq0", FULL)
    run.do(("take_back", "seq0", FULL, 1), ("shorten", "seq0", 1), ("give_back", "seq0", FULL))
    assert not run.can("shorten", "seq0", 0)
    assert not run.can("give_back", "seq0", FULL)
    assert run.can("give_back", "seq0", WINDOWED)


def test_nothing_goes_from_the_end_of_a_table_during_a_call() -> None:
    run = Run(seqs=2).do(*room("seq0", 1), ("shorten", "seq0", 0), ("begin", "seq1", 1))
    assert not run.can("give_back", "seq0", FULL)


def test_who_leaves_gives_back_all_in_every_group() -> None:
    run = Run(seqs=2).do(*room("seq0", 1), *room("seq1", 2), *computed("seq0", 1), ("leave", "seq0"))
    run.do(("leave_group", "seq0", FULL))
    assert not run.can("left", "seq0")
    run.do(("leave_group", "seq0", WINDOWED), ("left", "seq0"))
    assert set(run["groups.blocks.free"][FULL]) == set(run["groups.blocks.free"][WINDOWED]) == {1}
    run.do(("leave", "seq1"), ("leave_group", "seq1", FULL), ("leave_group", "seq1", WINDOWED), ("left", "seq1"))
    assert set(run["groups.blocks.free"][FULL]) == set(run["groups.blocks.free"][WINDOWED]) == {1, 2}


@pytest.mark.parametrize("step", [("begin", "seq0", 3), ("leave", "seq0"), ("refused",), ("unstage", FULL)])
def test_calls_do_not_overlap_and_are_not_undone_without_refusal(step: tuple[Any, ...]) -> None:
    run = Run(seqs=2).do(*room("seq0", 1), ("begin", "seq1", 1), ("stage", FULL, 2))
    assert not run.can(*step)
