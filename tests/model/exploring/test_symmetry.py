"""A representative is one of the states that it stands for, and the same for all of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from pools.anchor import AnchorPool, anchor

from kvspec.model.concrete import Structure
from kvspec.model.exploring.cells import Packed
from kvspec.model.exploring.instances import start_state
from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.plain import Stepper
from kvspec.model.exploring.quotient import Quotient
from kvspec.model.exploring.scopes import Scope
from kvspec.model.exploring.symmetry import Exchange, Symmetry
from kvspec.spec import load
from kvspec.spec.language import Chapter

POOL = Chapter(AnchorPool)


@pytest.mark.parametrize(
    ("tokens", "seqs"), [([(1, 2), (1, 3)], None), ([(1, 2), (1, 2)], ((0, 1),)), ([(1, 2), (1, 3), (1, 2)], ((0, 2),))]
)
def test_equal_sequences_can_be_exchanged_and_usable_blocks(
    tokens: Sequence[Sequence[int]], seqs: tuple[tuple[int, ...], ...] | None
) -> None:
    found = Symmetry(POOL, anchor(4, 2, *tokens))
    assert found.classes.get("Seq") == seqs
    assert found.classes["Block"] == ((1, 2, 3),)
    assert "Chain" not in found.classes  # the prefixes of different sequences, or of different length
    assert found.pointer == "Block"


def test_too_many_exchanges_are_left_alone() -> None:
    found = Symmetry(POOL, anchor(3, 1, *[(1,)] * 7))
    assert found.unchanged == ("Seq",)
    assert found.exchanges == ({},)


def test_what_statics_tell_apart_is_not_exchanged() -> None:
    found = Symmetry(load("usage"), Scope.parse("blocks=3,holders=2,keys=2", "usage").structure)
    assert found.classes["Holder"] == (("holder0", "holder1"), ("key0", "key1"))
    ordered = Symmetry(load("free_list"), Scope.parse("", "free_list").structure)
    assert "Block" not in ordered.classes  # each has its own place in the stack at the start


def states_of(structure: Structure, quotient: Quotient) -> list[Packed]:
    """The states of a random run, cleared."""
    choose, stepper, state = random.Random(0), Stepper(POOL, structure), start_state(POOL, structure)
    found = []
    for _ in range(60):
        state = choose.choice(list(stepper.steps(state))).after
        assert quotient.alive is not None
        found.append(quotient.alive.clear(quotient.cells.pack(state)))
    return found


def orbit(packed: Packed, quotient: Quotient) -> set[Packed]:
    """All states that differ from this one by exchanges of blocks and of sequences."""
    assert quotient.forms is not None and quotient.symmetry is not None
    classes = quotient.symmetry.classes
    blocks = classes["Block"][0]
    seqs = classes["Seq"][0] if quotient.states is States.CANONICAL else ()
    found = set()
    for b, s in itertools.product(itertools.permutations(blocks), itertools.permutations(seqs)):
        swap: Exchange = {"Block": dict(zip(blocks, b, strict=True)), "Seq": dict(zip(seqs, s, strict=True))}
        found.add(quotient.forms.exchange(packed, swap))
    return found


@pytest.mark.parametrize("states", [States.RENAMED, States.CANONICAL])
def test_the_representative_is_in_the_orbit_and_the_same_for_all_of_it(states: States) -> None:
    structure = anchor(4, 2, (1, 2), (1, 2))
    quotient = Quotient(POOL, structure, states)
    for packed in states_of(structure, quotient):
        around = orbit(packed, quotient)
        chosen = {quotient.representative(p) for p in around}
        assert len(chosen) == 1
        assert chosen <= around


def test_an_exchange_reaches_keys_members_and_values() -> None:
    structure = anchor(3, 1, (1,), (1,))
    quotient = Quotient(POOL, structure, States.CANONICAL)
    stepper, start = Stepper(POOL, structure), start_state(POOL, structure)
    taken = {t.instance.args: t.after for t in stepper.steps(start) if t.event.name == "take"}
    assert quotient.forms is not None
    one = quotient.cells.pack(taken[0, 1])
    swap: dict[str, dict[Any, Any]] = {"Block": {1: 2, 2: 1}, "Seq": {0: 1, 1: 0}}
    assert quotient.forms.exchange(one, swap) == quotient.cells.pack(taken[1, 2])
