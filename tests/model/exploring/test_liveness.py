"""What counts as dead is dead: whatever stands there, nothing that decides something comes out differently."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from pools.anchor import AnchorPool, anchor

from kvspec.model.concrete import ABSENT, Structure, evaluate
from kvspec.model.exploring.cells import Cells, Packed
from kvspec.model.exploring.instances import start_state
from kvspec.model.exploring.liveness import Alive, Liveness, Read
from kvspec.model.exploring.plain import Judge, Stepper
from kvspec.model.exploring.scopes import DEFAULTS, Scope
from kvspec.spec import load
from kvspec.spec.language import Chapter, Id, Machine, Map, Set, event, forall, implies, invariant, require
from kvspec.spec.language.terms import Term

POOL = Chapter(AnchorPool)


def reached(chapter: Chapter, structure: Structure, given: Any, steps: int, seed: int) -> list[Packed]:
    """The states of a random run."""
    choose, stepper, cells = random.Random(seed), Stepper(chapter, structure), Cells(chapter, structure)
    state = start_state(chapter, structure, given)
    found = [cells.pack(state)]
    for _ in range(steps):
        taken = list(stepper.steps(state))
        if not taken:
            break
        by_event = {t.event.name: [u for u in taken if u.event is t.event] for t in taken}
        state = choose.choice(by_event[choose.choice(sorted(by_event))]).after
        found.append(cells.pack(state))
    return found


class Observed:
    """All that decides something in a state: what can be done, and with it which results, and what is true."""

    def __init__(self, chapter: Chapter, structure: Structure, alive: Alive) -> None:
        self.alive, self.stepper, self.judge = alive, Stepper(chapter, structure), Judge(chapter, structure)

    def __call__(self, packed: Packed) -> Any:
        cells = self.alive.cells
        state = cells.unpack(packed)
        steps = []
        for taken in self.stepper.enabled(state):
            args = taken.event.name, taken.instance.args
            if not self.stepper.stays(taken):
                steps.append((args, None))
                continue
            written = self.alive.written(taken.event, taken.instance.args, state)
            after = cells.pack(taken.after)
            values = [(n, after[n]) for n in sorted(written & self.alive.live(after))]
            steps.append((args, (self.judge.call(taken), self.judge.step(taken), values)))
        return self.judge.state(state), steps, self.alive.live(packed)


def disturbed(packed: Packed, alive: Alive, structure: Structure, seed: int) -> Packed:
    """The state with other values in the dead cells."""
    choose, live = random.Random(seed), alive.live(packed)

    def value(number: int) -> Any:
        sort = alive.cells.cells[number].sort
        more = [ABSENT] if sort.kind in ("id", "variant") else []
        return choose.choice([*structure.elements(sort), *more])

    return tuple(v if n in live else value(n) for n, v in enumerate(packed))


def check(chapter: Chapter, structure: Structure, given: Any, steps: int) -> tuple[int, int]:
    """How many cells were dead, and how many of them were disturbed without anybody noticing."""
    alive = Alive(chapter, structure, Cells(chapter, structure))
    observed, dead, count = Observed(chapter, structure, alive), 0, 0
    for seed in (0, 1):
        for number, packed in enumerate(reached(chapter, structure, given, steps, seed)):
            other = disturbed(packed, alive, structure, number)
            dead += len(packed) - len(alive.live(packed))
            count += sum(a is not b and a != b for a, b in zip(packed, other, strict=True))
            assert observed(other) == observed(packed)
    return dead, count


def test_nobody_notices_what_stands_in_dead_cells_of_the_small_pool() -> None:
    _, count = check(POOL, anchor(3, 2, (1, 2), (1, 3)), None, 40)
    assert count > 100


@pytest.mark.parametrize("name", DEFAULTS)
def test_nobody_notices_what_stands_in_dead_cells(name: str) -> None:
    scope = Scope.parse("", name)
    dead, count = check(load(name), scope.structure, scope.given, 10)
    assert (count > 0) == (dead > 0)  # in some chapters every cell can be read in any state


def test_clearing_twice_is_clearing_once() -> None:
    structure = anchor(3, 2, (1, 2), (1, 3))
    alive = Alive(POOL, structure, Cells(POOL, structure))
    for packed in reached(POOL, structure, None, 40, 2):
        cleared = alive.clear(packed)
        assert alive.live(cleared) == alive.live(packed)
        assert alive.clear(cleared) == cleared


# -- what the text says ------------------------------------------------------------------------------------------------


class Door(Id):
    """Something with a lock."""


class Doors(Machine):
    """Readings in different surroundings."""

    open: Set[Door]
    next: Map[Door, Door]
    last: Map[Door, Door]
    pair: Map[tuple[Door, Door], Door]
    hidden: Map[Door, Door]

    @event
    def enter(self, door: Door) -> None:
        require(self.open.has(door))
        self.last[self.next[door]] = door

    @event
    def swap(self, door: Door) -> None:
        require(self.open.has(door))
        self.pair.assign_all(lambda a, b: self.pair[b, a])

    @event
    def close(self, doors: Set[Door]) -> None:
        self.open.assign(self.open.without(doors))

    @invariant("a closed door leads nowhere")
    def closed(self) -> Any:
        return forall(Door, lambda d: implies(~self.open.has(d), self.last[d] == d))


def text(read: Read) -> tuple[str, ...]:
    return tuple(map(repr, read.conditions))


def test_a_reading_has_the_conditions_before_it() -> None:
    reads = Liveness(Chapter(Doors)).reads
    (entered,) = reads["next",]
    assert [c.op for c in entered.conditions] == ["has"]
    assert entered.place == entered.conditions[0].args[1:] == entered.variables
    (closed,) = reads["last",]
    assert [c.op for c in closed.conditions] == ["not"]


def test_what_nothing_reads_is_dead_everywhere() -> None:
    reads = Liveness(Chapter(Doors)).reads
    assert reads["hidden",] == ()


def test_what_a_bulk_change_copies_is_read() -> None:
    (swapped,) = Liveness(Chapter(Doors)).reads["pair",]
    assert len(set(swapped.place)) == 2 and set(swapped.place) < set(swapped.variables)


def test_a_set_that_is_changed_as_a_whole_is_read_as_a_whole() -> None:
    assert ("open",) not in Liveness(Chapter(Doors)).reads


@pytest.mark.parametrize("kept", [[], [("next",)]])
def test_a_variable_can_be_kept_whole(kept: list[tuple[str, ...]]) -> None:
    assert (("next",) in Liveness(Chapter(Doors), kept).reads) == (not kept)


def test_no_condition_is_read_without_what_stands_before_it() -> None:
    """Wherever a condition of a reading reads a cell itself, that cell is live if the conditions before it hold."""
    structure = anchor(3, 2, (1, 2), (1, 3))
    alive = Alive(POOL, structure, Cells(POOL, structure))
    for packed in reached(POOL, structure, None, 25, 3):
        state, live = alive.cells.unpack(packed), alive.live(packed)
        for reads in alive.liveness.reads.values():
            for read in reads:
                for values in bindings(read, structure):
                    for number in cells_read(read, values, structure, state, alive):
                        assert number in live


def bindings(read: Read, structure: Structure) -> list[dict[Term, Any]]:
    sorts: Any = tuple(v.sort for v in read.variables)
    return [dict(zip(read.variables, xs, strict=True)) for xs in structure.tuples(sorts)]


def cells_read(read: Read, values: dict[Term, Any], structure: Structure, state: Any, alive: Alive) -> set[int]:
    """The cells that evaluating the conditions and the place looks at, in the order of the conditions."""
    found = set[int]()
    look: Callable[[Term], Any] = lambda t: evaluate(t, structure, state, values)  # noqa: E731
    for term in (*read.conditions, *read.place):
        for t in subterms_evaluated(term):
            if t.op in ("get", "has") and t.args[0].op == "state":
                place = tuple(map(look, t.args[1:]))
                found.add(alive.cells.number.get((t.args[0].data, place), -1))
        if term in read.conditions and not look(term):
            break
    return found - {-1}


def subterms_evaluated(term: Term) -> list[Term]:
    """All parts of a term without choices or quantifiers in it; none of another."""
    parts = [term, *(p for a in term.args for p in subterms_evaluated(a))]
    branching = {"and", "or", "implies", "ite", "forall", "exists"}
    return [] if any(p.op in branching for p in parts) else parts
