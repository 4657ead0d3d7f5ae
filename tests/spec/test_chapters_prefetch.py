"""Cases of the field (B...), told as runs of chapter `prefetch`."""

from __future__ import annotations

from typing import Any

import pytest
from chapter_runs import Run, Step, without

from kvspec.model.concrete import Structure
from kvspec.spec import load
from kvspec.spec.language.chapter import Chapter

PADDING, ONE, TWO, THREE = range(4)
NOTHING, FIRST, SECOND = "", "first", "second"
CHAPTER = load("prefetch")


def tier() -> Structure:
    """Three usable blocks, batches of two, one other reader."""
    statics: dict[tuple[str, ...], Any] = {
        ("tier", "blocks", "padding"): PADDING,
        ("tier", "blocks", "usable"): frozenset({ONE, TWO, THREE}),
        ("tier", "nothing"): NOTHING,
        ("tier", "covers"): lambda c, d: d in (NOTHING, c),
        ("tier", "full"): lambda c: c != NOTHING,
    }
    carriers: dict[str, list[Any]] = {
        "Block": [PADDING, ONE, TWO, THREE],
        "Seq": ["a", "b"],
        "Index": [0, 1, 2],
        "Pin": ["p"],
        "Chain": [NOTHING, FIRST, SECOND],
    }
    return Structure(carriers, statics)


def run(*steps: Step, chapter: Chapter = CHAPTER) -> Run:
    return Run(chapter, tier()).do(*steps)


def stored(key: str) -> list[Step]:
    """The store has a key, the tier no more."""
    return [("put", ONE, "p", key), ("store", key), ("unhold", ONE, "p"), ("evict", key)]


IN_STORE = [*stored(FIRST), *stored(SECOND)]
PLANNED = [*IN_STORE, ("begin", "a"), ("plan", "a", ONE, FIRST), ("plan", "a", TWO, SECOND)]
FETCHING = [*PLANNED, ("plan_ready", "a")]
GIVEN_BACK = [("let_go", "a"), ("let_go", "a"), ("end", "a")]


def test_a_batch_arrives_block_by_block() -> None:
    there = run(*FETCHING, ("arrive", "a"))
    assert there["tier.cached"] == {FIRST} and not there.can("complete", "a")
    there.do(("arrive", "a"), ("complete", "a"), *GIVEN_BACK)
    assert there["tier.cached"] == {FIRST, SECOND} and there["tier.blocks.free"] == {THREE}
    assert there.do(("evict", SECOND), ("evict", FIRST)).broken == set()
    assert there["tier.blocks.free"] == {ONE, TWO, THREE}


# -- B53: nothing is planned yet, and that counts as finished ----------------------------------------------------------


def test_a_prefetch_without_a_plan_is_not_complete() -> None:
    there = run(*IN_STORE, ("begin", "a"))
    assert not there.can("plan_ready", "a") and not there.can("complete", "a") and not there.can("arrive", "a")
    assert there.do(("stop", "a"), ("end", "a")).broken == set()


@pytest.mark.parametrize(
    ("event", "line", "steps", "broken"),
    [
        ("plan_ready", "require(~self.planned[seq].is_zero())", [("plan_ready", "a")], "fetching_planned"),
        ("complete", "require(self.is_in(seq, Stage.fetching()))", [("complete", "a")], "complete_is_all"),
    ],
)
def test_a_prefetch_that_is_complete_with_nothing_is_noticed(
    event: str, line: str, steps: list[Step], broken: str
) -> None:
    there = run(*IN_STORE, ("begin", "a"), *steps, chapter=without(CHAPTER, event, line))
    assert broken in there.broken


# -- a store that gives less than was planned --------------------------------------------------------------------------


def test_of_a_partial_result_only_what_has_arrived_is_there() -> None:
    there = run(*FETCHING, ("arrive", "a"), ("lose", SECOND), ("stop", "a"))
    assert there["tier.cached"] == {FIRST} and not there.can("complete", "a")
    there.do(*GIVEN_BACK)
    assert there["tier.cached"] == {FIRST} and there["tier.blocks.free"] == {TWO, THREE} and there.broken == set()


def test_a_key_that_came_otherwise_keeps_its_block() -> None:
    there = run(*FETCHING, ("put", THREE, "p", FIRST), ("arrive", "a"))
    assert there["tier.entry"][FIRST] == THREE
    there.do(("stop", "a"), *GIVEN_BACK, ("unhold", THREE, "p"))
    assert there["tier.blocks.free"] == {ONE, TWO} and there.broken == set()


# -- B25: what a reset forgot comes back from below --------------------------------------------------------------------


def test_after_a_reset_neither_the_store_nor_a_prefetch_brings_a_key_back() -> None:
    there = run(*FETCHING, ("arrive", "a"), ("reset",), ("arrive", "a"))
    assert there["tier.cached"] == there["stored"] == set()
    there.do(("complete", "a"), *GIVEN_BACK, ("begin", "a"))
    assert not there.can("plan", "a", ONE, FIRST) and there.broken == set()


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("self.stored.clear()", "reset_forgets"),
        ("self.tier.reset()", "keys_recent"),
        ("self.stale.assign_where(lambda seq: ~self.is_in(seq, Stage.out()))", "planned_recent"),
    ],
)
def test_a_reset_that_leaves_something_out_is_noticed(line: str, broken: str) -> None:
    there = run(*FETCHING, ("arrive", "a"), ("reset",), chapter=without(CHAPTER, "reset", line))
    assert broken in there.broken


# -- B27: what a prefetch holds is evicted -----------------------------------------------------------------------------


def test_what_a_prefetch_holds_is_not_evicted() -> None:
    there = run(*FETCHING, ("arrive", "a"))
    assert not there.can("evict", FIRST)
    there.do(("stop", "a"), ("let_go", "a"))
    assert not there.can("evict", FIRST)
    there.do(("let_go", "a"), ("hold", FIRST, "p"))
    assert not there.can("evict", FIRST)
    assert there.do(("unhold", ONE, "p")).can("evict", FIRST)


def test_a_batch_that_is_given_back_while_it_arrives_is_noticed() -> None:
    faulty = without(CHAPTER, "let_go", "require(self.over(seq))")
    there = run(*FETCHING, ("arrive", "a"), ("arrive", "a"), ("let_go", "a"), chapter=faulty)
    assert {"fetching_planned", "let_go_of_last"} <= there.broken
