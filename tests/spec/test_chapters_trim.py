"""The loops of chapter `trim` run as programs: on the seed's example, and beside the implementation's policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.impl import trim as impl
from kvspec.model.concrete import State, Structure, evaluate, fire
from kvspec.spec import load

TRIM = load("trim")
LOOPS = {before.name: before for before, _ in TRIM.loops}
SCANS = {"contiguous": "scan_to_gap", "deepest": "scan_to_end"}


def matched(hits: int, saved: set[int], stride: int = 1) -> tuple[Structure, State]:
    """The state in which a hit of so many blocks and the boundaries with a checkpoint are known."""
    boundaries = range(hits + 1)
    spaced = frozenset(b for b in boundaries if b and b % stride == 0)
    structure = Structure({"Index": list(boundaries)}, {("spaced",): spaced})
    return structure, fire(TRIM.event("match"), structure, {}, (hits, frozenset(saved)))


def run(name: str, structure: Structure, state: State) -> State:
    """Where a loop of the chapter ends; its invariant and result are watched."""
    loop = LOOPS[name]
    assert evaluate(loop.start, structure, state)
    while evaluate(loop.again, structure, state):
        assert evaluate(loop.keep, structure, state)
        before = evaluate(loop.measure, structure, state)
        state = fire(TRIM.event(loop.step), structure, state, ())
        assert evaluate(loop.measure, structure, state) < before
    assert evaluate(loop.result, structure, state)
    return state


def kept(policy: str, hits: int, saved: set[int], stride: int = 1) -> int:
    """The boundary up to which a hit is kept; its table then has the blocks before it."""
    structure, state = matched(hits, saved, stride)
    state = run("trim_behind", structure, run(SCANS[policy], structure, state))
    boundary: int = state["kept",]
    assert state["table",] == frozenset(range(boundary))
    return boundary


@pytest.mark.parametrize(("policy", "boundary"), [("contiguous", 2), ("deepest", 4)])
def test_the_example_of_the_seed(policy: str, boundary: int) -> None:
    """Blocks 0 to 3 are hits, hashes 0, 1 and 3 have a checkpoint: hash i is that of boundary i + 1."""
    hashes = {0, 1, 3}
    assert kept(policy, 4, {i + 1 for i in hashes}) == boundary


@pytest.mark.parametrize("policy", SCANS)
@pytest.mark.parametrize(("saved", "boundary"), [(set(), 0), ({2}, 2), ({2, 4, 6}, 6)])
def test_boundaries_that_cannot_have_a_checkpoint_are_passed_over(policy: str, saved: set[int], boundary: int) -> None:
    assert kept(policy, 7, saved, stride=2) == boundary


@pytest.mark.parametrize("policy", SCANS)
@given(st.lists(st.booleans(), max_size=6), st.integers(1, 3), st.integers(0, 2))
def test_the_implementation_keeps_what_the_loop_keeps(
    policy: str, checkpoints: Sequence[bool], stride: int, more: int
) -> None:
    """It counts the boundaries that can have a checkpoint; the chapter counts all, also those behind the last."""
    hits = len(checkpoints) * stride + min(more, stride - 1)
    saved = {n * stride for n, has_checkpoint in enumerate(checkpoints, 1) if has_checkpoint}
    chosen: Callable[[Sequence[bool]], int] = impl.POLICIES[policy]
    assert kept(policy, hits, saved, stride) == chosen(checkpoints) * stride


def test_a_scan_may_go_on_from_where_the_other_policy_stops() -> None:
    structure, state = matched(5, {1, 2, 4})
    at_gap = run("scan_to_gap", structure, state)
    assert (at_gap["kept",], at_gap["seen",]) == (2, 2)
    assert run("scan_to_end", structure, at_gap)["kept",] == 4
