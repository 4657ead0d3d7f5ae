"""The batched reading says what the concrete one says, operator by operator, on random finite states.

Statements and states are those with which the readings of the proofs are compared; here one statement is decided for
many states at once. States with holes, where maps and variables hold nothing, come on top.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kvspec.model.batched.bits import WORD, transpose
from kvspec.model.batched.layout import Layout, OutOfRange
from kvspec.model.batched.logic import Logic
from kvspec.model.batched.program import Program
from kvspec.model.batched.reading import _MEANING, Reading
from kvspec.model.concrete import State, Structure, evaluate
from kvspec.model.exploring.cells import Cells
from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import MapSort, Term

ROUNDS = 60 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 8
STATES = 40


def loaded(path: Path) -> ModuleType:
    """A test file as a module: its statements and states are used here, too."""
    spec = importlib.util.spec_from_file_location(f"statements_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[f"statements_{path.stem}"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


READINGS = loaded(Path(__file__).parents[2] / "proofs" / "test_readings_agree.py")
ZOO = READINGS.ZOO
VALUES = {e: i for elements in READINGS.ELEMENTS.values() for i, e in enumerate(elements)}


def random_states(rng: random.Random) -> tuple[Structure, list[State]]:
    structure, _ = READINGS.random_situation(rng)
    # A statement is true or false: of what is absent, nothing is liked.
    table = structure.statics[("likes",)]
    structure = replace(structure, statics={**structure.statics, ("likes",): lambda *key: table.get(key, False)})
    return structure, [
        {v.path: READINGS.random_value(rng, v.sort, structure) for v in ZOO.variables.values()} for _ in range(STATES)
    ]


def with_holes(rng: random.Random, state: State) -> State:
    """The state without some of what is stored in it."""
    found: State = {}
    for path, value in state.items():
        if isinstance(ZOO.variables[path].sort, MapSort):
            found[path] = {k: v for k, v in value.items() if rng.random() < 0.6}
        elif rng.random() < 0.6:
            found[path] = value
    return found


def complete(state: State) -> State:
    """The state with an empty map where a map is missing; the concrete reading does the same when it reads."""
    blank: dict[Any, Any] = {p: {} for p, v in ZOO.variables.items() if isinstance(v.sort, MapSort)}
    default = {p: evaluate(T.make("state", (), v.sort, p), Structure({}), {}) for p, v in ZOO.variables.items()}
    return {**default, **blank, **state}


def decided(term: Term, structure: Structure, states: list[State]) -> list[bool]:
    """The truth of a statement in each state."""
    layout, logic = Layout(Cells(ZOO, structure), structure), Logic()
    variables = layout.variables(logic)
    reading = Reading(structure, logic, layout.state(logic, variables))
    inputs = {v >> 1: plane for plane, v in enumerate(variables)}
    program = Program(logic, inputs, [reading.statement(term, VALUES)])
    rows = layout.encode(map(complete, states))
    padded = torch.cat((rows, rows[-1:].expand(-len(rows) % WORD, -1)))
    planes = [p for block in padded.t().reshape(layout.words, WORD, -1) for p in transpose(block.clone())]
    (plane,) = program.run(planes, torch.empty((program.registers, len(padded) // WORD), dtype=torch.int64))
    width = len(padded) // WORD
    return [bool(plane[n % width] >> n // width & 1) for n in range(len(states))]


def test_every_operator_has_a_meaning() -> None:
    assert _MEANING.keys() == T.OPERATORS.keys()


@pytest.mark.parametrize("op", T.OPERATORS)
def test_the_batched_reading_agrees(op: str) -> None:
    met = 0
    for number in range(ROUNDS):
        rng = random.Random(f"{op} {number}")
        structure, states = random_states(rng)
        question = READINGS.statement(op, rng)
        met += any(t.op == op for t in T.subterms(question))
        assert decided(question, structure, states) == [evaluate(question, structure, s, VALUES) for s in states], (
            question
        )
    assert met, "the operator was simplified away in every case"


@pytest.mark.parametrize("op", T.OPERATORS)
def test_it_agrees_where_nothing_is_stored(op: str) -> None:
    compared = 0
    for number in range(ROUNDS):
        rng = random.Random(f"{op} {number} holes")
        structure, full = random_states(rng)
        states = [with_holes(rng, s) for s in full]
        question = READINGS.statement(op, rng)
        for state, found in zip(states, decided(question, structure, states), strict=True):
            try:
                expected = evaluate(question, structure, state, VALUES)
            except TypeError:  # what follows on a position that is absent, say, is nothing
                continue
            assert found == expected, question
            compared += 1
    assert compared > ROUNDS * STATES // 4


@pytest.mark.parametrize("seed", range(5))
def test_states_become_rows_and_states_again(seed: int) -> None:
    structure, states = random_states(random.Random(seed))
    cells = Cells(ZOO, structure)
    layout = Layout(cells, structure)
    found = layout.decode(layout.encode(states))
    assert [cells.pack(s) for s in found] == [cells.pack(s) for s in states]


def test_a_cell_of_one_value_takes_no_bits_and_takes_no_other_value() -> None:
    structure, (state, *_) = random_states(random.Random(1))
    cells = Cells(ZOO, structure)
    packed = cells.pack(state)
    layout = Layout(
        cells, structure, [None if c.sort.kind == "nat" else [v] for c, v in zip(cells.cells, packed, strict=True)]
    )
    assert layout.bits == 8 * sum(c.sort.kind == "nat" for c in cells.cells)
    assert list(layout.packed(layout.rows([packed]))) == [packed]
    number = next(n for n, c in enumerate(cells.cells) if c.sort.kind == "bool")
    other = (*packed[:number], not packed[number], *packed[number + 1 :])
    with pytest.raises(OutOfRange):
        layout.row(other)


@pytest.mark.parametrize("value", [-129, 128, 1000])
def test_a_number_that_does_not_fit_is_an_error(value: int) -> None:
    structure, (state, *_) = random_states(random.Random(2))
    with pytest.raises(OutOfRange, match=str(value)):
        Layout(Cells(ZOO, structure), structure).encode([{**state, ("number",): value}])
