"""Runs of chapter `xtensor`: pages are used when all regions are mapped, and what fails leaves nothing half done."""

from __future__ import annotations

from typing import Any

import pytest

from kvspec.model.concrete import NotEnabled, State, Structure, Variant, evaluate, fire, initial
from kvspec.spec import load

CHAPTER = load("xtensor")
ON_PAGES = {(0, 0), (1, 0), (1, 1), (2, 1)}
"""Block and page; block 0 is padding, block 1 lies across the border."""
Step = tuple[Any, ...]


def memory_of(frames: int) -> Structure:
    """Two managers a and b, three blocks on two pages each, two regions k and v (x is none), and physical pages."""
    numbers = frozenset(range(1, frames + 1))
    carriers: dict[str, list[Any]] = {
        "Manager": ["a", "b"], "Block": [0, 1, 2], "Page": [0, 1], "Region": ["k", "v", "x"], "Holder": ["q", "r"],
        "PhysicalPage": [0, *numbers],
    }  # fmt: skip
    statics: dict[tuple[str, ...], Any] = {
        ("managers", "padding"): 0,
        ("managers", "usable"): frozenset({1, 2}),
        ("memory", "ids", "padding"): 0,
        ("memory", "ids", "usable"): numbers,
        ("regions",): frozenset({"k", "v"}),
        ("lies_on",): lambda manager, block, page: (block, page) in ON_PAGES,
    }
    return Structure(carriers, statics)


SIX = memory_of(6)


def after(*steps: Step, memory: Structure = SIX) -> State:
    """The state after the steps; the invariants are true after each of them."""
    state = initial(CHAPTER, memory)
    for name, *args in steps:
        state = fire(CHAPTER.event(name), memory, state, tuple(args))
        assert [s.name for s in CHAPTER.invariants if not evaluate(s.term, memory, state)] == []
    return state


def free(state: State) -> set[int]:
    return set(state["memory", "ids", "free"])


def stage(state: State, manager: str, page: int) -> str:
    found: Variant = state["stage",][manager, page]
    return found.case


def mapping(manager: str, page: int, k: int, v: int) -> list[Step]:
    return [("map_begin", manager, page), ("map_region", manager, page, "k", k), ("map_region", manager, page, "v", v)]


def mapped(manager: str, page: int, k: int, v: int) -> list[Step]:
    return [*mapping(manager, page, k, v), ("map_commit", manager, page)]


OPEN = [*mapped("a", 0, 1, 2), ("open", "a")]
TAKEN = [*OPEN, ("call", "a"), *mapped("a", 1, 3, 4), ("take", "a", 1, "q")]


def is_possible(*steps: Step, memory: Structure = SIX) -> bool:
    before = after(*steps[:-1], memory=memory)
    name, *args = steps[-1]
    try:
        fire(CHAPTER.event(name), memory, before, tuple(args))
    except NotEnabled:
        return False
    return True


def test_a_block_is_had_when_all_of_its_pages_are_mapped_in_all_regions() -> None:
    called = [*OPEN, ("call", "a")]
    assert not is_possible(*called, ("take", "a", 1, "q"))
    assert not is_possible(*called, *mapping("a", 1, 3, 4), ("take", "a", 1, "q"))
    assert not is_possible(*called, *mapping("a", 1, 3, 4)[:2], ("map_commit", "a", 1))
    assert is_possible(*TAKEN)


def test_no_physical_page_is_mapped_twice_also_by_another_manager() -> None:
    assert not is_possible(*OPEN, ("map_begin", "b", 0), ("map_region", "b", 0, "k", 2))
    assert free(after(*OPEN, *mapped("b", 0, 3, 5))) == {4, 6}


def test_a_page_with_a_block_in_use_or_with_padding_stays_and_an_idle_one_goes() -> None:
    given_back = [*TAKEN, ("drop", "a", 1, "q")]
    assert not is_possible(*TAKEN, ("unmap_begin", "a", 1))
    assert not is_possible(*given_back, ("unmap_begin", "a", 0))
    away = [("unmap_begin", "a", 1), ("unmap_region", "a", 1, "v"), ("unmap_region", "a", 1, "k")]
    left = after(*given_back, *away, ("unmap_commit", "a", 1))
    assert (free(left), stage(left, "a", 1)) == ({3, 4, 5, 6}, "unmapped")


def test_what_was_mapped_before_a_failure_is_unmapped() -> None:
    failed = [*OPEN, *mapping("a", 1, 3, 4)[:2], ("map_failed", "a", 1)]
    assert not is_possible(*failed, ("unmap_commit", "a", 1))
    undone = after(*failed, ("unmap_region", "a", 1, "k"), ("unmap_commit", "a", 1))
    assert (free(undone), stage(undone, "a", 1)) == ({3, 4, 5, 6}, "unmapped")


def test_what_cannot_be_unmapped_keeps_its_memory_until_it_can() -> None:
    stuck = [*OPEN, *mapped("a", 1, 3, 4), ("unmap_begin", "a", 1), ("unmap_region", "a", 1, "k"),
             ("unmap_failed", "a", 1)]  # fmt: skip
    set_aside = after(*stuck)
    assert (free(set_aside), stage(set_aside, "a", 1)) == ({3, 5, 6}, "quarantined")
    assert not is_possible(*stuck, ("map_begin", "a", 1))
    assert not is_possible(*stuck, ("unmap_region", "a", 1, "v"))
    tried = [("unmap_retry", "a", 1), ("unmap_region", "a", 1, "v"), ("unmap_commit", "a", 1)]
    assert free(after(*stuck, *tried)) == {3, 4, 5, 6}


def test_a_closed_manager_gives_the_page_of_its_padding_back() -> None:
    assert not is_possible(*TAKEN, ("close", "a"))
    assert is_possible(*OPEN, ("close", "a"), ("unmap_begin", "a", 0))
    assert not is_possible(("map_begin", "a", 0), ("open", "a"))


@pytest.mark.parametrize(("frames", "refused"), [(2, True), (3, True), (4, False), (6, False)])
def test_a_call_is_refused_only_if_the_next_page_cannot_have_memory_in_every_region(frames: int, refused: bool) -> None:
    memory = memory_of(frames)
    assert is_possible(*OPEN, ("call", "a"), ("refuse", "a"), memory=memory) == refused


def test_a_call_is_not_refused_while_a_free_block_lies_on_mapped_pages() -> None:
    four = memory_of(4)
    assert not is_possible(*TAKEN, ("call", "a"), ("refuse", "a"), memory=four)
    assert is_possible(*TAKEN, ("call", "a"), ("take", "a", 2, "r"), ("call", "a"), ("refuse", "a"), memory=four)
