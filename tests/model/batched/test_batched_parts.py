"""The parts of the batched reading: statements, numbers, programs, rows and planes, states that are kept apart."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvspec.model.batched import bits
from kvspec.model.batched.logic import FALSE, TRUE, Logic
from kvspec.model.batched.numbers import Arithmetic, Number, constant
from kvspec.model.batched.program import Program
from kvspec.model.batched.seen import Seen, mixed
from kvspec.model.batched.storage import Storage

CPU = torch.device("cpu")


def ran(logic: Logic, inputs: list[int], outputs: list[int], cases: list[tuple[bool, ...]]) -> list[list[bool]]:
    """For each output its truth in each case, by a program."""
    program = Program(logic, {literal >> 1: number for number, literal in enumerate(inputs)}, outputs)
    width = -(-len(cases) // 64)
    words = [
        [bits.signed(sum(case[i] << k for k, case in enumerate(cases[g::width]))) for g in range(width)]
        for i in range(len(inputs))
    ]
    planes = torch.tensor(words, dtype=torch.int64)
    found = program.run(planes.unbind(0), torch.empty((program.registers, width), dtype=torch.int64))
    return [[bool(plane[n % width] >> n // width & 1) for n in range(len(cases))] for plane in found]


# -- statements and programs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_program_computes_what_the_statements_say(seed: int) -> None:
    rng = random.Random(seed)
    logic = Logic()
    inputs = [logic.variable() for _ in range(5)]
    cases = list(itertools.product((False, True), repeat=5))
    truth = {FALSE: [False] * 32, TRUE: [True] * 32}
    truth |= {v: [case[i] for case in cases] for i, v in enumerate(inputs)}
    made = list(truth)
    for _ in range(60):
        a, b, c = (rng.choice(made) ^ rng.randrange(2) for _ in range(3))
        x, y, z = ([t ^ bool(s & 1) for t in truth[s & ~1 if s > 1 else 0]] for s in (a, b, c))
        for literal, values in (
            (logic.both(a, b), [p and q for p, q in zip(x, y, strict=True)]),
            (logic.either(a, b), [p or q for p, q in zip(x, y, strict=True)]),
            (logic.differ(a, b), [p != q for p, q in zip(x, y, strict=True)]),
            (logic.choose(a, b, c), [q if p else r for p, q, r in zip(x, y, z, strict=True)]),
        ):
            sign = literal & 1
            values = [v ^ bool(sign) for v in values]
            assert truth.setdefault(literal & ~1, values) == values
            made.append(literal & ~1)
    outputs = [rng.choice(made) ^ rng.randrange(2) for _ in range(20)]
    expected = [[t ^ bool(s & 1) for t in truth[s & ~1]] for s in outputs]
    assert ran(logic, inputs, outputs, cases) == expected


def test_what_cannot_hold_together_is_false_without_a_program() -> None:
    logic = Logic()
    a, b, c = (logic.variable() for _ in range(3))
    both = logic.both(a, b)
    assert logic.both(both, a ^ 1) == FALSE
    assert logic.both(both, logic.both(a ^ 1, c)) == FALSE
    assert logic.both(both, a) == both
    assert logic.both(both ^ 1, a ^ 1) == a ^ 1
    assert logic.choose(a, TRUE, FALSE) == a
    assert logic.differ(a, a ^ 1) == TRUE


def test_parts_behind_a_false_one_are_not_asked_for() -> None:
    def parts() -> list[int]:
        raise AssertionError

    assert Logic().all_of(part if part == FALSE else parts()[0] for part in (FALSE, TRUE)) == FALSE


# -- numbers -----------------------------------------------------------------------------------------------------------

RESULTS: dict[str, tuple[Callable[[Arithmetic, Number, Number], Number], Callable[[int, int], int]]] = {
    "add": (Arithmetic.add, lambda a, b: a + b),
    "subtract": (Arithmetic.subtract, lambda a, b: a - b),
    "multiply": (Arithmetic.multiply, lambda a, b: a * b),
    "quotient": (lambda n, a, b: n.divide(a, b)[0], lambda a, b: a // b),
    "remainder": (lambda n, a, b: n.divide(a, b)[1], lambda a, b: a % b),
}


@pytest.mark.parametrize("name", RESULTS)
def test_numbers_of_any_sign_are_computed_exactly(name: str) -> None:
    symbolic, exact = RESULTS[name]
    logic = Logic()
    inputs = [logic.variable() for _ in range(8)]
    a, b = Number(tuple(inputs[:4])), Number(tuple(inputs[4:]))
    found = symbolic(Arithmetic(logic), a, b)
    pairs = [(x, y) for x in range(-8, 8) for y in range(-8, 8) if y or name not in ("quotient", "remainder")]
    cases = [tuple(bool(n >> i & 1) for n in pair for i in range(4)) for pair in pairs]
    planes = ran(logic, inputs, list(found.bits), cases)
    values = [sum(p[n] << i for i, p in enumerate(planes)) for n in range(len(pairs))]
    signed = [v - (1 << len(planes)) if planes[-1][n] else v for n, v in enumerate(values)]
    assert signed == [exact(x, y) for x, y in pairs]


def test_numbers_are_compared_and_what_is_absent_is_neither_below_nor_above() -> None:
    numbers = Arithmetic(Logic())
    absent = Number((FALSE,), TRUE)
    for x, y in itertools.product(range(-4, 5), repeat=2):
        assert numbers.less(constant(x), constant(y)) == (x < y)
        assert numbers.equal(constant(x), constant(y)) == (x == y)
    assert numbers.less(absent, constant(1)) == numbers.less(constant(-1), absent) == FALSE
    assert numbers.equal(absent, constant(0)) == FALSE
    assert numbers.equal(absent, absent) == TRUE


def test_statements_are_counted() -> None:
    logic = Logic()
    inputs = [logic.variable() for _ in range(6)]
    cases = list(itertools.product((False, True), repeat=6))
    planes = ran(logic, inputs, list(Arithmetic(logic).count(inputs).bits), cases)
    assert [sum(p[n] << i for i, p in enumerate(planes)) for n in range(64)] == [sum(c) for c in cases]


# -- rows and planes ---------------------------------------------------------------------------------------------------


def random_words(seed: int, *shape: int) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int64)


def test_rows_become_planes_and_rows_again() -> None:
    words = random_words(1, 64, 3)
    planes = bits.transpose(words.clone())
    for j, g, k in [(0, 0, 0), (63, 2, 63), (5, 1, 40), (32, 0, 31), (63, 2, 0)]:
        assert planes[j, g] >> k & 1 == words[k, g] >> j & 1
    assert bits.transpose(planes).equal(words)


def test_rows_of_a_plane_and_how_many() -> None:
    plane = random_words(2, 3)
    rows = [row for row in range(192) if plane[row % 3] >> row // 3 & 1]
    assert bits.rows_of(plane).tolist() == rows
    assert bits.population(plane.unsqueeze(0)).tolist() == [len(rows)]
    assert bits.population(torch.tensor([[-1, 0, 1], [-(2**63), 5, 7]])).tolist() == [65, 6]


@pytest.mark.parametrize("count", [0, 1, 3, 100, 190, 192])
def test_the_plane_of_the_first_rows(count: int) -> None:
    assert bits.rows_of(bits.full_plane(count, 3, CPU)).tolist() == list(range(count))


# -- states kept apart -------------------------------------------------------------------------------------------------

HASHES: dict[str, Callable[[Tensor], Tensor]] = {
    "the one in use": mixed,
    "always the same": lambda rows: torch.zeros(len(rows), dtype=torch.int64),
    "one of three": lambda rows: rows[:, 0].remainder(3),
    "the end of the table": lambda rows: torch.full((len(rows),), -1, dtype=torch.int64) & 0x7FFFFFFF,
}


@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["in memory", "in a file"])
@pytest.mark.parametrize("words", [1, 3])
@pytest.mark.parametrize("name", HASHES)
def test_every_row_gets_one_number_whatever_the_hash_does(name: str, words: int, memory: int) -> None:
    seen, known = Seen(Storage(words, CPU, memory), CPU, HASHES[name]), dict[tuple[int, ...], int]()
    rng = random.Random(words)
    for _ in range(6):
        batch = [tuple(rng.randrange(4) << 60 if i else rng.randrange(40) for i in range(words)) for _ in range(50)]
        new = seen.add(torch.tensor([[bits.signed(w) for w in row] for row in batch]))
        expected = [i for i, row in enumerate(batch) if row not in known and row not in batch[:i]]
        assert sorted(new.tolist()) == expected
        for i in new.tolist():
            known[batch[i]] = len(known)
        assert len(seen) == len(known)
        stored = [tuple(w & (1 << 64) - 1 for w in row) for row in seen.rows.slice(0, len(seen)).tolist()]
        assert stored == list(known)


def test_the_table_grows_with_the_states() -> None:
    seen = Seen(Storage(1, CPU, 1 << 30), CPU)
    numbers = torch.arange(100_000).unsqueeze(1)
    assert len(seen.add(numbers)) == 100_000
    assert len(seen.add(numbers.flip(0))) == 0
    assert len(seen) == 100_000


def test_a_table_over_its_budget_moves_out_with_what_is_in_it() -> None:
    table = Storage(2, CPU, memory=40_000)
    rows = random_words(3, 5000, 2)
    for part in rows.split(700):
        table.append(part)
    assert table.outside
    assert len(table) == 5000
    assert table.slice(0, 5000).equal(rows)
    assert table.take(torch.tensor([4999, 0, 17])).equal(rows[[4999, 0, 17]])
