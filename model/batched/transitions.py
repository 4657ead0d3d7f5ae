"""What each instance of an event does to a row: when it is enabled, and which bits it changes to what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvspec.model.batched.layout import Layout
from kvspec.model.batched.logic import FALSE, Logic
from kvspec.model.batched.numbers import Number
from kvspec.model.batched.reading import Reading
from kvspec.model.concrete import Structure, bare, default
from kvspec.model.exploring.cells import Cells
from kvspec.model.exploring.coverage import step_theorems
from kvspec.model.exploring.instances import Inside, Instance, instances
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import MapSort, Path, SetSort, Sort, Term


@dataclass(frozen=True)
class Transition:
    """One instance, as statements about the state before.

    Attributes:
        instance: the event and its arguments.
        enabled: that all requirements hold and the result is inside the scope.
        changes: bits of the row that may change, with what they become.
        wrong: that a step from here breaks a theorem about it, or stores what a cell cannot hold.
    """

    instance: Instance
    enabled: int
    changes: tuple[tuple[int, int], ...]
    wrong: int


@dataclass(frozen=True)
class Compiled:
    """A chapter in a structure as statements about the bits of a row."""

    layout: Layout
    logic: Logic
    bits: list[int]
    reading: Reading
    transitions: list[Transition]
    forbidden: int
    """That an event which is enabled would call another one that is not allowed there."""


class Compiler:
    """Writes transitions, over the values that cells can have.

    Args:
        chapter: the chapter; its events may have been replaced.
        structure: the scope.
        start: where exploration starts; values that no step can lead to from there get no bits.
        blank: cells may be cleared, so each may have the default of its sort.
        whole: every cell may have every value of its sort.
    """

    def __init__(
        self, chapter: Chapter, structure: Structure, start: Mapping[Path, Any], *, blank: bool, whole: bool
    ) -> None:
        self.chapter, self.structure = chapter, structure
        self.cells = Cells(chapter, structure)
        self.instances = instances(chapter, structure)
        self.theorems = step_theorems(chapter)
        self.inside = Inside(chapter, structure)
        self.numbers: dict[Path, list[int]] = {path: [] for path in chapter.variables}
        for number, cell in enumerate(self.cells.cells):
            self.numbers[cell.path].append(number)
        full = Layout(self.cells, structure)
        self.values = [None if p.values is None else frozenset(p.values) for p in full.places]
        self.possible: list[dict[Any, None] | None] = [None if p.values is None else {} for p in full.places]
        for found, place, value, cell in zip(
            self.possible, full.places, self.cells.pack(start), self.cells.cells, strict=True
        ):
            if found is not None and place.values is not None:
                found.update(dict.fromkeys(place.values if whole else [value] + [default(cell.sort)] * blank))

    def compile(self) -> Compiled:
        """All transitions; the values of cells grow until no step leads to another."""
        while True:
            layout = Layout(self.cells, self.structure, self.possible)
            logic = Logic()
            bits = layout.variables(logic)
            reading = Reading(self.structure, logic, layout.state(logic, bits))
            before = sum(len(p) for p in self.possible if p is not None)
            found = [self._transition(i, layout, reading, bits) for i in self.instances]
            forbidden = logic.any_of(self._forbidden(i, reading) for i in self.instances)
            if before == sum(len(p) for p in self.possible if p is not None):
                return Compiled(layout, logic, bits, reading, [t for t in found if t is not None], forbidden)

    def _transition(self, instance: Instance, layout: Layout, reading: Reading, bits: list[int]) -> Transition | None:
        event, logic = instance.event, reading.logic
        env = values(instance)
        guard = _guard(instance, reading)
        if guard == FALSE:
            return None
        guard = logic.both(guard, self._stray(instance, reading) ^ 1)
        written = []
        for path in dict.fromkeys(e.path for e in event.effects):
            after = reading.read(event.after[path], env)
            guard = logic.both(guard, self._outside(path, after, reading) ^ 1)
            written += [(n, meaning) for n, meaning in self._cells(path, after, reading)]
        wrong = [logic.both(guard, self._lost(n, meaning, guard, layout, logic)) for n, meaning in written]
        if guard == FALSE:
            return None
        wrong += [logic.both(guard, reading.statement(t.term, env) ^ 1) for t in self.theorems[event.name]]
        changes = []
        for number, meaning in written:
            first = layout.places[number].first
            coded = layout.coded(logic, number, meaning)
            changes += [(first + i, new) for i, new in enumerate(coded) if new != bits[first + i]]
        return Transition(instance, guard, tuple(changes), logic.any_of(wrong))

    def _forbidden(self, instance: Instance, reading: Reading) -> int:
        guard, env = _guard(instance, reading), values(instance)
        allowed = (reading.statement(o.term, env) for o in instance.event.owed)
        return FALSE if guard == FALSE else reading.logic.both(guard, reading.logic.all_of(allowed) ^ 1)

    def _cells(self, path: Path, after: Any, reading: Reading) -> Iterator[tuple[int, Any]]:
        """The cells of a variable that are not simply what they were, with their new meanings."""
        before, sort = reading.state[path], self.cells.sorts[path]
        for number in self.numbers[path]:
            cell = self.cells.cells[number]
            old, new = before, after
            if isinstance(sort, MapSort):
                old, new = (reading.held(table, bare(cell.key), sort) for table in (before, after))
            if new is old:
                continue
            if cell.member:
                old, new = (members.get(bare(cell.member), FALSE) for members in (old, new))
            if new != old:
                yield number, new

    def _stray(self, instance: Instance, reading: Reading) -> int:
        """That something is stored under a key that the sorts do not have, by a change that happens; see `Inside`."""
        logic, env = reading.logic, values(instance)
        found = []
        for effect in instance.event.effects:
            sort = self.cells.sorts[effect.path]
            happens = reading.statement(effect.condition, env)
            if effect.keys and happens != FALSE and isinstance(sort, MapSort):
                known = reading.known(sort.keys)
                strays = (lit for key, lit in reading.combined(effect.keys, env) if key not in known)
                found.append(logic.both(happens, logic.any_of(strays)))
        return logic.any_of(found)

    def _outside(self, path: Path, after: Any, reading: Reading) -> int:
        """That a value which is stored is outside the scope; see `Inside`."""
        sort = self.cells.sorts[path]
        if not isinstance(sort, MapSort):
            return self._value_outside(after, sort, reading)
        before = reading.state[path]
        keys = map(bare, reading.tuples(sort.keys))
        stored = (after[key] for key in keys if key in after and after[key] is not before.get(key))
        return reading.logic.any_of(self._value_outside(value, sort.value, reading) for value in stored)

    def _value_outside(self, meaning: Any, sort: Sort | SetSort, reading: Reading) -> int:
        if isinstance(sort, SetSort):
            known = reading.known(sort.elements)
            single = len(sort.elements) == 1
            strays = (lit for element, lit in meaning.items() if ((element,) if single else element) not in known)
            return reading.logic.any_of(strays)
        if sort.kind in ("bool", "nat", "id"):
            return FALSE
        return reading.logic.any_of(lit for value, lit in meaning.items() if not self.inside.holds(value, sort))

    def _lost(self, number: int, meaning: Any, guard: int, layout: Layout, logic: Logic) -> int:
        """That the cell cannot hold its new value, however many values it is given."""
        possible, values = self.possible[number], self.values[number]
        if possible is None or values is None:
            return _too_large(meaning, layout.places[number].width, logic)
        sort = self.cells.cells[number].sort
        choice = {True: meaning, False: meaning ^ 1} if sort.kind == "bool" else meaning
        lost = []
        for value, literal in choice.items():
            if value in possible or logic.both(guard, literal) == FALSE:
                continue
            if value in values:
                possible[value] = None
            else:
                lost.append(literal)
        return logic.any_of(lost)


def values(instance: Instance) -> dict[Term, Any]:
    """What the event's parameters stand for."""
    return dict(zip(instance.event.parameters, instance.args, strict=True))


def _guard(instance: Instance, reading: Reading) -> int:
    env = values(instance)
    return reading.logic.all_of(reading.statement(r.term, env) for r in instance.event.requires)


def _too_large(number: Number, width: int, logic: Logic) -> int:
    sign = number.bit(width - 1)
    beyond = [logic.differ(bit, sign) for bit in number.bits[width:]]
    return logic.either(number.absent, logic.any_of(beyond))


def bad_state(chapter: Chapter, reading: Reading) -> int:
    """That some invariant or some theorem about states does not hold."""
    statements = [*chapter.invariants, *chapter.lower_invariants]
    statements += [t for t in chapter.theorems if t.after is None]
    return reading.logic.all_of(reading.statement(s.term, {}) for s in statements) ^ 1
