"""Runs of chapter `single_block`: each id has one owner, and the padding id none."""

from __future__ import annotations

from typing import Any

import pytest

from kvspec.model.concrete import NotEnabled, State, Structure, evaluate, fire, initial
from kvspec.spec import load

CHAPTER = load("single_block")
IDS = Structure({"Unit": [0, 1, 2], "Owner": ["a", "b"]}, {("ids", "padding"): 0, ("ids", "usable"): frozenset({1, 2})})


def after(*steps: tuple[Any, ...]) -> State:
    """The state after the steps; what is true in every state is true after each of them."""
    state = initial(CHAPTER, IDS)
    for name, *args in steps:
        state = fire(CHAPTER.event(name), IDS, state, tuple(args))
        always = [*CHAPTER.invariants, *(t for t in CHAPTER.theorems if t.after is None)]
        assert [s.name for s in always if not evaluate(s.term, IDS, state)] == []
    return state


def free(state: State) -> set[int]:
    return set(state[("ids", "free")])


def test_what_is_given_back_can_be_had_by_another() -> None:
    taken = [("allocate", 1, "a"), ("allocate", 2, "a"), ("deallocate", 1, "a")]
    assert free(after(*taken)) == {1}
    assert free(after(*taken, ("allocate", 1, "b"))) == set()


def test_an_id_that_is_handed_over_is_never_free_and_belongs_to_the_heir() -> None:
    left = [("allocate", 1, "a"), ("hand_over", 1, "a", "b")]
    assert free(after(*left)) == {2}
    assert free(after(*left, ("deallocate", 1, "b"))) == {1, 2}


@pytest.mark.parametrize(
    "step",
    [
        ("allocate", 0, "b"),
        ("allocate", 1, "b"),
        ("allocate", 1, "a"),
        ("deallocate", 1, "b"),
        ("deallocate", 2, "a"),
        ("hand_over", 1, "b", "a"),
        ("hand_over", 1, "a", "a"),
    ],
)
def test_nobody_gets_padding_or_what_another_has_or_gives_back_what_is_not_his(step: tuple[Any, ...]) -> None:
    with pytest.raises(NotEnabled):
        after(("allocate", 1, "a"), step)
