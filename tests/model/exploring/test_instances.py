"""Instances, coverage goals and cells: what explorers share."""

from __future__ import annotations

from typing import Any

import pytest
from pools.anchor import AnchorPool, anchor

from kvspec.model.concrete import ABSENT, Structure, Variant, fire
from kvspec.model.exploring.cells import Cells
from kvspec.model.exploring.coverage import goals, premises_of
from kvspec.model.exploring.instances import Inside, TooManyInstances, instances, start_state, values_of
from kvspec.model.exploring.outcome import Step
from kvspec.model.exploring.scopes import Scope
from kvspec.spec import load
from kvspec.spec.language import Chapter, Machine, Nat, event
from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import MapSort, SetSort, Sort

POOL = Chapter(AnchorPool)


def test_every_event_is_tried_with_all_arguments() -> None:
    found = instances(POOL, anchor(3, 2, (1, 2), (1, 3)))
    count = {name: sum(i.event.name == name for i in found) for name in POOL.event_names}
    assert count == {"take": 6, "share": 2, "compute": 2, "publish": 6, "drop": 2, "evict": 3}


def test_a_set_parameter_takes_every_subset() -> None:
    holders = SetSort((Sort("Holder", "id"),))
    found = list(values_of(holders, Structure({"Holder": ["a", "b", "c"]})))
    assert len(found) == len(set(found)) == 8
    assert found[0] == frozenset() and found[-1] == frozenset("abc")


def test_too_many_instances_are_an_error_that_says_so() -> None:
    with pytest.raises(TooManyInstances, match="event drop_all has 8192 instances in this scope; at most 4096"):
        instances(load("blocks"), Scope.parse("holders=13", "blocks").structure)


class Counter(Machine):
    """It counts by any number."""

    total: Nat

    @event
    def add(self, number: Nat) -> None:
        """So many more."""
        self.total = self.total + number


def test_an_event_that_takes_a_number_cannot_be_tried() -> None:
    with pytest.raises(TooManyInstances, match="event add has over 1000000000000 instances in this scope"):
        instances(Chapter(Counter), Structure({}))


def test_a_position_beyond_the_last_is_not_inside() -> None:
    structure = anchor(3, 1, (1,))
    inside, take = Inside(POOL, structure), POOL.event("take")
    start = start_state(POOL, structure)
    once = fire(take, structure, start, (0, 1))
    twice = fire(take, structure, once, (0, 2))
    assert inside.step(take, (0, 1), start, once)
    assert not inside.step(take, (0, 2), once, twice)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("entry", {(1,): ABSENT}, True),
        ("size", {0: 1}, True),
        ("size", {0: 2}, False),
        ("cached", {ABSENT}, False),
        ("holders", {1: {Variant("place", (0, 1))}}, True),
        ("holders", {1: {Variant("place", (0, 2))}}, False),
        ("holders", {1: {Variant("key", (ABSENT,))}}, False),
    ],
)
def test_what_may_be_stored(path: str, value: Any, expected: bool) -> None:
    inside = Inside(POOL, anchor(3, 1, (1,)))
    assert inside.holds(value, POOL.variables[path,].sort) == expected


@pytest.mark.parametrize(("key", "expected"), [((0, 1), True), ((0, 2), False), ((0, ABSENT), False)])
def test_what_something_may_be_stored_under(key: tuple[Any, ...], expected: bool) -> None:
    sort = POOL.variables["table",].sort
    assert isinstance(sort, MapSort)
    assert Inside(POOL, anchor(3, 1, (1,))).key(key, sort.keys) == expected


def test_a_state_is_the_tuple_of_its_cells() -> None:
    structure = anchor(3, 1, (1,))
    cells = Cells(POOL, structure)
    state = fire(POOL.event("take"), structure, start_state(POOL, structure), (0, 1))
    packed = cells.pack(state)
    assert cells.pack(cells.unpack(packed)) == packed
    assert packed[cells.number[("free",), (1,)]] is False
    assert packed[cells.number[("table",), (0, 0)]] == 1
    assert packed[cells.number[("holders",), (1, Variant("place", (0, 0)))]] is True


def test_the_premises_of_a_statement() -> None:
    p, q, r = (T.make("has", (T.variable(n, SetSort((Sort("X", "id"),))), T.variable("x", Sort("X", "id"))), T.BOOL)
               for n in "pqr")  # fmt: skip
    x = p.args[1]
    assert premises_of(T.implies(p, q)) == (p,)
    assert premises_of(T.conj([T.implies(p, q), T.implies(q, r)])) == (p, q)
    assert premises_of(q) == (T.TRUE,)
    (bound,) = premises_of(T.quantify("forall", (x,), T.implies(p, q)))
    assert (bound.op, bound.args) == ("exists", (p,))


def test_every_statement_has_a_goal() -> None:
    chapter = load("usage")
    found = goals(chapter)
    names = {g.name.split("/")[0] for g in found}
    assert names == {s.name for s in (*chapter.invariants, *chapter.theorems, *chapter.witnesses)}
    assert {"used_falls/1", "used_falls/2"} <= {g.name for g in found}
    assert len({g.name for g in found}) == len(found)


def test_a_step_is_written_on_a_line() -> None:
    assert str(Step("drop_all", (frozenset({"b", "a"}),))) == "drop_all {a, b}"
    assert str(Step("share", (1, Variant("seq_at", ("seq0", 0))))) == "share 1 seq_at(seq0, 0)"
    assert str(Step("reset", ())) == "reset"
