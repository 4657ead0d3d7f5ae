"""Cases of the field (B...), told as runs of chapter `hierarchy`: what is allowed, what is forbidden, and what is
broken where a line of the text is forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from chapter_runs import Run, Step, without

from kvspec.model.concrete import Structure
from kvspec.spec import load
from kvspec.spec.language.chapter import Chapter

PADDING, ONE, TWO = range(3)
NOTHING, TEXT, OTHER = "", "text", "other"
CHAPTER = load("hierarchy")


def tiers() -> Structure:
    """Two usable blocks in each tier, two sequences of one block, two copies, two keys."""
    statics: dict[tuple[str, ...], Any] = {}
    for tier in ("device", "host"):
        statics |= {
            (tier, "blocks", "padding"): PADDING,
            (tier, "blocks", "usable"): frozenset({ONE, TWO}),
            (tier, "nothing"): NOTHING,
            (tier, "covers"): lambda c, d: d in (NOTHING, c),
            (tier, "full"): lambda c: c != NOTHING,
        }
    carriers: dict[str, list[Any]] = {
        "Block": [PADDING, ONE, TWO],
        "Seq": ["a", "b"],
        "Index": [0],
        "Pin": ["p", "q"],
        "Chain": [NOTHING, TEXT, OTHER],
    }
    return Structure(carriers, statics)


def run(*steps: Step, chapter: Chapter = CHAPTER) -> Run:
    return Run(chapter, tiers()).do(*steps)


def written(seq: str, block: int, key: str = TEXT) -> list[Step]:
    return [("take", seq, 0, block, key), ("write_started", seq, 0), ("write_done", seq, 0)]


def offloaded(pin: str, target: int, key: str = TEXT) -> list[Step]:
    return [("offload_started", pin, key, target), ("offload_done", pin)]


def fetched(pin: str, target: int, key: str = TEXT) -> list[Step]:
    return [("fetch_started", pin, key, target), ("fetch_done", pin)]


def released(pin: str) -> list[Step]:
    return [("release_device", pin), ("release_host", pin)]


PUBLISHED = [*written("a", ONE), ("publish", "a", 0)]
ON_HOST = [*PUBLISHED, *offloaded("p", ONE), *released("p"), ("give_back", "a", 0), ("evict_device", TEXT)]
"""The host has the text in block 1; all blocks of the device are free."""

LOADING = [*ON_HOST, ("take", "b", 0, ONE, TEXT), ("load_started", "p", "b", 0)]


def test_a_block_goes_to_the_host_and_comes_back() -> None:
    there = run(*ON_HOST)
    assert there["device.cached"] == set() and there["host.cached"] == {TEXT}
    assert there["device.blocks.free"] == {ONE, TWO}
    there.do(("take", "b", 0, TWO, TEXT), ("load_started", "p", "b", 0), ("load_done", "p"))
    assert there["device.content"][TWO] == TEXT and ("b", 0) in there["computed"]
    there.do(("publish", "b", 0), *released("p"), ("give_back", "b", 0), ("evict_device", TEXT), ("evict_host", TEXT))
    assert there["device.blocks.free"] == there["host.blocks.free"] == {ONE, TWO}
    assert there.broken == set()


def test_a_hit_needs_no_copy() -> None:
    there = run(*PUBLISHED, ("hit", "b", 0, TEXT))
    assert {("a", 0), ("b", 0)} <= there["computed"] and there.broken == set()


# -- B24: sleep and wake keep the map, not what is in the blocks -------------------------------------------------------


def test_after_the_device_has_slept_only_the_host_has_keys() -> None:
    there = run(*PUBLISHED, *offloaded("p", ONE), *released("p"), ("give_back", "a", 0), ("sleep",))
    assert there["device.cached"] == set() and there["host.cached"] == {TEXT}
    assert not there.can("take", "b", 0, ONE, TEXT)
    there.do(("wake",))
    assert not there.can("hit", "b", 0, TEXT)
    there.do(("take", "b", 0, ONE, TEXT), ("load_started", "q", "b", 0), ("load_done", "q"))
    assert there.broken == set()


def test_the_device_sleeps_only_when_nobody_uses_it() -> None:
    assert not run(*PUBLISHED).can("sleep")
    assert not run(*ON_HOST, ("take", "a", 0, ONE, TEXT), ("load_started", "p", "a", 0), ("give_back", "a", 0)).can(
        "sleep"
    )


def test_a_sleep_that_keeps_the_keys_is_noticed() -> None:
    faulty = without(CHAPTER, "sleep", "self.device.reset()")
    there = run(*PUBLISHED, ("give_back", "a", 0), ("sleep",), ("wake",), chapter=faulty)
    assert {"device_keys_new", "sleep_loses_device", "awake_and_empty"} <= there.broken


# -- B25: a reset leaves a tier out, or a copy brings back what it forgot ----------------------------------------------


def test_a_reset_forgets_both_tiers_and_what_is_on_its_way() -> None:
    there = run(*PUBLISHED, *offloaded("p", ONE), ("offload_started", "q", TEXT, TWO), ("reset",))
    assert there["device.cached"] == there["host.cached"] == set()
    there.do(("offload_done", "q"))
    assert there["host.cached"] == set()
    assert not there.can("publish", "a", 0)
    assert there.do(*released("q"), *released("p"), ("give_back", "a", 0)).broken == set()
    assert there["device.blocks.free"] == there["host.blocks.free"] == {ONE, TWO}


def test_what_is_loaded_across_a_reset_is_read_but_not_published() -> None:
    there = run(*LOADING, ("reset",), ("load_done", "p"))
    assert ("b", 0) in there["computed"] and not there.can("publish", "b", 0)
    assert there.broken == set()


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("self.host.reset()", {"host_keys_new", "reset_forgets"}),
        ("self.device.reset()", {"device_keys_new", "reset_forgets"}),
        ("self.stale.assign_where(lambda pin: self.to_host(pin))", {"brought_is_new", "reset_forgets"}),
        ("self.fresh.clear()", {"fresh_is_new", "reset_forgets"}),
    ],
)
def test_a_reset_that_leaves_something_out_is_noticed(line: str, broken: set[str]) -> None:
    faulty = without(CHAPTER, "reset", line)
    there = run(*PUBLISHED, *offloaded("p", ONE), *released("p"), chapter=faulty)
    there.do(("offload_started", "q", TEXT, TWO), ("reset",))
    assert broken <= there.broken


def test_a_fetch_that_a_reset_leaves_running_is_noticed() -> None:
    faulty = without(CHAPTER, "reset", "self.stale.assign_where(lambda pin: self.to_host(pin))")
    there = run(("fetch_started", "p", TEXT, ONE), ("reset",), ("fetch_done", "p"), chapter=faulty)
    assert {"brought_is_new", "reset_forgets", "host_keys_new"} <= there.broken


# -- B48: a copy to the host begins before the block is computed -------------------------------------------------------


def test_what_is_being_written_is_not_copied() -> None:
    there = run(*written("a", ONE)[:2])
    assert not there.can("publish", "a", 0) and not there.can("offload_started", "p", TEXT, ONE)
    there.do(("write_failed", "a", 0))
    assert not there.can("publish", "a", 0)


def test_a_copy_of_what_is_not_computed_is_noticed() -> None:
    faulty = without(CHAPTER, "publish", "require(self.computed.has((seq, index)))")
    there = run(*written("a", ONE)[:2], ("publish", "a", 0), chapter=faulty)
    assert {"uncomputed_unkeyed", "visible_is_complete", "published_is_visible"} <= there.broken


# -- B50: copies are put in order in one direction only ----------------------------------------------------------------


def test_no_copy_gets_what_another_one_writes() -> None:
    there = run(*PUBLISHED, ("offload_started", "p", TEXT, ONE))
    assert not there.can("offload_started", "q", TEXT, ONE)
    there.do(("offload_failed", "p"))
    assert not there.can("offload_started", "q", TEXT, ONE)
    there.do(("release_host", "p"))
    assert there.can("offload_started", "q", TEXT, ONE)


def test_a_block_that_is_loaded_is_neither_read_nor_written_by_others() -> None:
    there = run(*LOADING)
    assert not there.can("write_started", "b", 0) and not there.can("publish", "b", 0)
    assert not there.can("load_started", "q", "b", 0) and not there.can("hit", "a", 0, TEXT)
    there.do(("give_back", "b", 0))
    assert not there.can("take", "b", 0, ONE, OTHER)
    there.do(("load_done", "p"), ("release_device", "p"), ("take", "b", 0, ONE, OTHER))
    assert there.broken == set()


def test_a_late_copy_fills_no_place_that_has_come_since() -> None:
    there = run(*LOADING, ("give_back", "b", 0), ("take", "b", 0, TWO, TEXT), ("load_started", "q", "b", 0))
    there.do(("load_done", "p"))
    assert ("b", 0) not in there["computed"] and ("b", 0) in there["waiting"]
    assert there.do(("load_done", "q")).broken == set()
    assert ("b", 0) in there["computed"]


def test_a_place_that_is_dropped_and_still_waited_for_is_noticed() -> None:
    faulty = without(CHAPTER, "give_back", "self.waiting.discard((seq, index))")
    there = run(*LOADING, ("give_back", "b", 0), chapter=faulty)
    assert {"busy_placed", "given_back_is_empty"} <= there.broken


# -- B51: what is stored is not entered in the map ---------------------------------------------------------------------


def test_an_offload_that_is_not_found_is_noticed() -> None:
    faulty = without(CHAPTER, "offload_done", "self.host.publish(self.copied[pin], self.host_end[pin])")
    assert "offloaded_is_found" in run(*PUBLISHED, *offloaded("p", ONE), chapter=faulty).broken


def test_of_two_copies_of_a_key_the_first_is_found() -> None:
    there = run(*PUBLISHED, ("offload_started", "p", TEXT, ONE), ("offload_started", "q", TEXT, TWO))
    there.do(("offload_done", "q"), ("offload_done", "p"))
    assert there["host.entry"][TEXT] == TWO
    there.do(*released("p"), *released("q"))
    assert there["host.blocks.free"] == {ONE} and there.broken == set()


# -- B54: a copy that failed counts as done ----------------------------------------------------------------------------


def test_after_a_failed_load_the_tokens_are_computed_or_loaded_again() -> None:
    there = run(*LOADING, ("load_failed", "p"))
    assert there["computed"] == there["waiting"] == set() and there["host.cached"] == {TEXT}
    assert not there.can("write_started", "b", 0)
    there.do(*released("p"))
    assert there.can("load_started", "q", "b", 0)
    assert there.do(("write_started", "b", 0), ("write_done", "b", 0)).broken == set()


def test_a_failed_offload_shows_nothing_and_loses_nothing() -> None:
    there = run(*PUBLISHED, ("offload_started", "p", TEXT, ONE), ("offload_failed", "p"))
    assert there["host.cached"] == set() and there["device.cached"] == {TEXT}
    assert there.do(*released("p")).broken == set()


def test_a_load_that_counts_without_its_copy_is_noticed() -> None:
    faulty = without(
        CHAPTER, "load_done", "self.device.write(self.device_end[pin], self.host.content[self.host_end[pin]])"
    )
    assert {"computed_truth", "loaded_is_computed"} <= run(*LOADING, ("load_done", "p"), chapter=faulty).broken


# -- B27, B59: what a copy holds is not evicted, and it is not held for ever -------------------------------------------


def test_the_source_of_a_copy_is_not_evicted() -> None:
    there = run(*PUBLISHED, ("give_back", "a", 0), ("offload_started", "p", TEXT, ONE))
    assert not there.can("evict_device", TEXT)
    assert there.do(("offload_done", "p"), ("release_device", "p")).can("evict_device", TEXT)
    assert not run(*LOADING).can("evict_host", TEXT)


def test_a_full_host_gets_room_when_copies_end() -> None:
    there = run(*PUBLISHED, ("offload_started", "p", TEXT, ONE), ("offload_started", "q", TEXT, TWO))
    assert there["host.blocks.free"] == set()
    there.do(("offload_done", "p"), ("offload_failed", "q"), *released("q"), ("release_host", "p"))
    assert there["host.blocks.free"] == {TWO}
    assert there.do(("evict_host", TEXT))["host.blocks.free"] == {ONE, TWO} and there.broken == set()


def test_an_end_that_is_given_back_while_the_copy_runs_is_noticed() -> None:
    faulty = without(CHAPTER, "release_host", "require(~self.running(pin))")
    there = run(*LOADING, ("release_host", "p"), chapter=faulty)
    assert {"running_holds", "host_end_released"} <= there.broken


# -- what a store brings: B25, B27, B48, B51, B54 for copies that have one end -----------------------------------------

FETCHING: list[Step] = [("fetch_started", "p", TEXT, ONE)]


def test_what_no_tier_has_comes_from_a_store_to_the_host_and_from_there_to_the_device() -> None:
    there = run(*FETCHING)
    assert there["host.cached"] == set() and there["device.blocks.free"] == {ONE, TWO}
    there.do(("fetch_done", "p"))
    assert there["host.content"][ONE] == TEXT and there["host.entry"][TEXT] == ONE
    there.do(("release_host", "p"), ("take", "a", 0, TWO, TEXT), ("load_started", "p", "a", 0), ("load_done", "p"))
    assert there["device.content"][TWO] == TEXT and ("a", 0) in there["computed"] and there.broken == set()


def test_what_is_being_fetched_is_neither_loaded_nor_evicted_nor_handed_out_again() -> None:
    there = run(*FETCHING, ("take", "a", 0, ONE, TEXT))
    assert not there.can("load_started", "q", "a", 0) and not there.can("evict_host", TEXT)
    assert not there.can("fetch_started", "q", TEXT, ONE) and not there.can("release_host", "p")
    there.do(("fetch_done", "p"))
    assert not there.can("evict_host", TEXT)
    assert there.do(("release_host", "p")).can("evict_host", TEXT)


def test_a_copy_from_a_store_has_no_end_on_the_device() -> None:
    there = run(*FETCHING)
    assert not there.can("release_device", "p")
    assert not run(*FETCHING, ("fetch_done", "p")).can("release_device", "p")
    there.do(("sleep",), ("fetch_done", "p"), ("release_host", "p"))
    assert there["host.cached"] == {TEXT} and there.broken == set()


def test_a_copy_that_still_holds_an_end_fetches_nothing() -> None:
    there = run(*LOADING, ("load_done", "p"), ("release_host", "p"))
    assert not there.can("fetch_started", "p", OTHER, TWO)
    there.do(("release_device", "p"), ("give_back", "b", 0), *fetched("p", TWO, OTHER))
    assert not there.can("release_device", "p")
    assert there["host.cached"] == {TEXT, OTHER} and there.broken == set()


def test_only_what_fills_a_block_is_fetched() -> None:
    assert not run().can("fetch_started", "p", NOTHING, ONE)


def test_what_is_fetched_across_a_reset_is_not_found() -> None:
    there = run(*FETCHING, ("reset",), ("fetch_done", "p"))
    assert there["host.cached"] == set()
    assert there.do(("release_host", "p"))["host.blocks.free"] == {ONE, TWO}
    assert there.do(*fetched("p", ONE))["host.cached"] == {TEXT} and there.broken == set()


def test_a_key_that_came_meanwhile_keeps_its_block() -> None:
    there = run(*PUBLISHED, ("fetch_started", "q", TEXT, TWO), *offloaded("p", ONE), ("fetch_done", "q"))
    assert there["host.entry"][TEXT] == ONE
    assert there.do(("release_host", "q"))["host.blocks.free"] == {TWO}
    other = run(*PUBLISHED, ("offload_started", "p", TEXT, ONE), *fetched("q", TWO), ("offload_done", "p"))
    assert other["host.entry"][TEXT] == TWO and there.broken == other.broken == set()


def test_a_failed_fetch_shows_nothing() -> None:
    there = run(*FETCHING, ("fetch_failed", "p"))
    assert there["host.cached"] == set() and not there.can("fetch_done", "p")
    assert there.do(("release_host", "p"))["host.blocks.free"] == {ONE, TWO} and there.broken == set()


DONE: list[Step] = [*FETCHING, ("fetch_done", "p")]
FAILED: list[Step] = [*FETCHING, ("fetch_failed", "p")]
AGAIN: list[Step] = [*FETCHING, ("reset",), ("fetch_done", "p"), ("release_host", "p"), *FETCHING]


@pytest.mark.parametrize(
    ("line", "steps", "broken"),
    [
        ("require(self.idle(pin))", [*FETCHING, ("fetch_started", "p", TEXT, TWO)], {"host_end_only", "fetch_begun"}),
        ("require(self.host.full(key))", [("fetch_started", "p", NOTHING, ONE)], {"target_filled"}),
        ("self.host_new.add(target)", FETCHING, {"brought_is_new"}),
        ("self.stale.discard(pin)", AGAIN, {"fetch_begun"}),
        ("self.host.write(self.host_end[pin], self.copied[pin])", DONE, {"fetched_is_found"}),
        ("self.host.publish(self.copied[pin], self.host_end[pin])", DONE, {"fetched_is_found"}),
        ("self.fetching.discard(pin)", FAILED, {"failed_fetch_is_nothing"}),
    ],
)
def test_a_fetch_that_leaves_something_out_is_noticed(line: str, steps: list[Step], broken: set[str]) -> None:
    faulty = without(CHAPTER, steps[-1][0], line)
    assert broken <= run(*steps, chapter=faulty).broken
