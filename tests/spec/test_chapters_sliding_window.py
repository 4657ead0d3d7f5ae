"""Runs of chapter `sliding_window`: what goes, what comes back, and that its places are those of chapter `window`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.model.concrete import NotEnabled, State, evaluate, fire
from kvspec.model.exploring.instances import start_state
from kvspec.model.exploring.scopes import Scope
from kvspec.spec import load, slots, window

CHAPTER = load("sliding_window")
ALWAYS = [*CHAPTER.invariants, *(t for t in CHAPTER.theorems if t.after is None)]


class Run:
    """A sequence ``seq0`` in a pool of so many blocks; what is true in every state is looked at on the way."""

    def __init__(self, scope: str) -> None:
        self.scope = Scope.parse(scope, "sliding_window")
        self.state: State = start_state(CHAPTER, self.scope.structure, self.scope.given)

    def fire(self, name: str, *args: Any) -> None:
        self.state = fire(CHAPTER.event(name), self.scope.structure, self.state, ("seq0", *args))

    def step(self, name: str, *args: Any) -> None:
        self.fire(name, *args)
        self.look()

    def look(self) -> None:
        assert [s.name for s in ALWAYS if not evaluate(s.term, self.scope.structure, self.state)] == []

    def grow(self, blocks: int) -> None:
        for _ in range(blocks):
            self.fire("grow", min(self.free))

    def slide_all(self) -> None:
        while True:
            try:
                self.fire("slide")
            except NotEnabled:
                return self.look()

    @property
    def free(self) -> set[int]:
        return set(self.state[("blocks", "free")])

    @property
    def released(self) -> int:
        return int(self.state[("released",)]["seq0"])


@given(st.integers(1, 3), st.integers(1, 4), st.data())
def test_as_many_blocks_slide_out_as_the_arithmetic_says(block_size: int, tokens_seen: int, data: Any) -> None:
    """The axioms hold of the functions, too: a scope evaluates them."""
    run = Run(f"seqs=1,blocks=4,len=3,block_size={block_size},window={tokens_seen}")
    num_tokens = data.draw(st.integers(1, 3 * block_size))
    run.grow(slots.blocks_needed(num_tokens, block_size))
    run.fire("compute", num_tokens)
    run.fire("confirm", num_tokens)
    run.slide_all()
    assert run.released == window.released_blocks(num_tokens, tokens_seen, block_size)


def test_a_block_that_a_rejected_draft_has_left_behind_stays() -> None:
    run = Run("seqs=1,blocks=4,len=3,block_size=1,window=1")
    run.grow(3)
    run.step("compute", 3)
    run.step("confirm", 1)
    run.slide_all()
    assert run.released == 1
    run.step("take_back", 1)
    run.step("compute", 2)
    assert run.released == 1


def test_what_slides_out_can_be_had_again_at_the_end_of_the_same_table() -> None:
    run = Run("seqs=1,blocks=2,len=2,block_size=1,window=1")
    run.grow(1)
    run.step("compute", 1)
    run.step("confirm", 1)
    run.slide_all()
    assert run.free == {1}
    run.grow(1)
    run.step("compute", 2)
    assert run.state[("table",)]["seq0", 0] == run.state[("table",)]["seq0", 1] == 1


@pytest.mark.parametrize(
    "step", [("slide",), ("drop",), ("take_back", 0), ("confirm", 3), ("compute", 2), ("compute", 3), ("grow", 1)]
)
def test_nothing_goes_that_is_seen_or_computed_and_nothing_is_confirmed_or_computed_without_ground(step: Any) -> None:
    run = Run("seqs=1,blocks=3,len=2,block_size=2,window=2")
    run.grow(1)
    run.step("compute", 2)
    run.step("confirm", 1)
    with pytest.raises(NotEnabled):
        run.step(*step)


def test_who_has_finished_has_given_all_back_and_can_begin_anew() -> None:
    run = Run("seqs=1,blocks=3,len=2,block_size=1,window=1")
    run.grow(2)
    run.step("compute", 2)
    run.step("confirm", 1)
    run.slide_all()
    run.step("finish")
    assert run.free == {1, 2}
    run.grow(2)
