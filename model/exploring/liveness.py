"""Which cells of a state somebody can still read: found in the text, never declared.

Every formula that decides something is walked in the order in which it would be evaluated, short of what an earlier
part already decides: what stands behind `and` counts only if all before it are true, the conclusion of `implies` only
if the premise is. So every place that reads a cell comes with the condition under which the reading matters, and the
cells that the condition itself reads are read under what stands before them. A cell is *live* in a state if some
reading with a true condition reaches it. Two states that agree on the cells that are live in one of them cannot be
told apart, as long as no cell comes to life without being written; explorers check that on every step.
`docs/exploration.md` has the argument.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvspec.model.concrete import State, Structure, default, evaluate
from kvspec.model.exploring.cells import Cells, Packed, key_sorts
from kvspec.model.exploring.coverage import START
from kvspec.model.exploring.instances import values_of
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import MapSort, Path, SetSort, Sort, Term
from kvspec.spec.language.traced import Effect, TracedEvent

Conditions = tuple[Term, ...]
"""Statements that all hold, each evaluated only where those before it do."""
Place = tuple[Term, ...]
"""Key and member of a cell, as terms."""


@dataclass(frozen=True)
class Read:
    """A cell is read, for all values of the variables for which all conditions hold, in this order.

    A condition that depends on a set parameter is left out: the reading counts more often than it must.
    """

    path: Path
    place: Place
    conditions: Conditions
    variables: tuple[Term, ...]

    @property
    def everywhere(self) -> bool:
        """All cells of the variable are read, in every state."""
        places = set(self.place)
        return not self.conditions and len(places) == len(self.place) and places <= set(self.variables)


@dataclass(frozen=True)
class Write:
    """A cell is written by an event, for all values of the variables for which all conditions hold in the state before.
    Parameters of the event occur free."""

    path: Path
    place: Place
    conditions: Conditions
    variables: tuple[Term, ...]


class Liveness:
    """The readings of all formulas of a chapter that decide something, and what each event writes.

    Attributes:
        reads: the readings of each variable that has cells to clear; a variable that is not in it is always read.
        writes: what each event writes.
    """

    def __init__(self, chapter: Chapter, kept: Iterable[Path] = ()) -> None:
        """``kept``: variables that count as read as a whole."""
        events = [chapter.event(name) for name in chapter.event_names]
        found = _Walk(chapter)
        for event in events:
            found.event(event)
        for theorem in chapter.theorems:
            if theorem.after != START:  # the start is looked at before anything is cleared
                found.statement(theorem.term, None if theorem.after is None else chapter.event(theorem.after))
        for statement in (*chapter.invariants, *chapter.lower_invariants, *chapter.witnesses):
            found.statement(statement.term)
        self.reads = {p: reads for p, reads in found.reads().items() if p not in set(kept)}
        self.writes = {event.name: tuple(_writes(event, chapter)) for event in events}


class _Walk:
    """Collects readings."""

    def __init__(self, chapter: Chapter) -> None:
        self.chapter = chapter
        self.found: dict[Path, dict[Read, None]] = {path: {} for path in chapter.variables}

    def reads(self) -> dict[Path, tuple[Read, ...]]:
        """The readings of each variable of which some cell may be unread in some state."""
        return {p: _needed(list(rs)) for p, rs in self.found.items() if not any(r.everywhere for r in rs)}

    # -- formulas ------------------------------------------------------------------------------------------------

    def statement(self, term: Term, event: TracedEvent | None = None) -> None:
        """A statement about a state, or about a step of the event: then it counts only where that can happen."""
        bound = () if event is None else event.parameters
        self.value(term, () if event is None else tuple(r.term for r in event.requires), bound)

    def event(self, event: TracedEvent) -> None:
        before: Conditions = ()
        for requirement in event.requires:
            self.value(requirement.term, before, event.parameters)
            before = (*before, requirement.term)
        for owed in event.owed:
            self.value(owed.term, before, event.parameters)
        for effect in event.effects:
            self.effect(effect, before, event.parameters)

    def effect(self, effect: Effect, before: Conditions, bound: tuple[Term, ...]) -> None:
        """Whether the effect happens, where it writes, and what."""
        self.value(effect.condition, before, bound)
        before = (*before, effect.condition)
        for key in effect.keys:
            self.value(key, before, bound)
        if effect.kind == "assign" and isinstance(effect.args[0].sort, MapSort):
            keys = _fresh(effect.args[0].sort.keys)
            self.new_value(effect.path, _lookup(effect.args[0], keys), keys, before, bound + keys)
        else:
            for arg in effect.args:
                self.any(arg, before, bound)

    def new_value(self, path: Path, value: Term, keys: Place, before: Conditions, bound: tuple[Term, ...]) -> None:
        """What a bulk change stores under the keys; a cell that it leaves alone is not read by that."""
        for conditions, leaf in _leaves(value):
            for number, condition in enumerate(conditions):
                self.value(condition, before + conditions[:number], bound)
            if not _unchanged(path, leaf, keys):
                self.any(leaf, before + conditions, bound)

    def any(self, term: Term, before: Conditions, bound: tuple[Term, ...]) -> None:
        """A scalar, or all members of a set, or all cells of a map."""
        match term.sort:
            case SetSort(elements):
                xs = _fresh(elements)
                self.member(term, xs, before, bound + xs)
            case MapSort(keys):
                ks = _fresh(keys)
                self.any(_lookup(term, ks), before, bound + ks)
            case _:
                self.value(term, before, bound)

    def value(self, term: Term, before: Conditions, bound: tuple[Term, ...]) -> None:
        """A scalar or statement, evaluated where all that stands before holds."""
        match term.op:
            case "and" | "or":
                for arg in term.args:
                    self.value(arg, before, bound)
                    before = (*before, arg if term.op == "and" else T.neg(arg))
            case "implies":
                self.value(term.args[0], before, bound)
                self.value(term.args[1], (*before, term.args[0]), bound)
            case "ite":
                self.choice(term, before, bound)
            case "forall" | "exists":
                self.value(term.args[0], before, bound + term.data)
            case "state":
                self.read(term.data, (), before, bound)
            case "get":
                self.looked_up(term.args[0], term.args[1:], None, before, bound)
            case "has":
                self.all(term.args[1:], before, bound)
                self.member(term.args[0], term.args[1:], before, bound)
            case "empty" | "only" | "size":
                self.all(term.args[1:], before, bound)
                self.any(term.args[0], before, bound)
            case _:
                self.all(term.args, before, bound)

    def all(self, terms: tuple[Term, ...], before: Conditions, bound: tuple[Term, ...]) -> None:
        for term in terms:
            self.value(term, before, bound)

    def choice(self, term: Term, before: Conditions, bound: tuple[Term, ...], member: Place | None = None) -> None:
        condition, yes, no = term.args
        self.value(condition, before, bound)
        for branch, holds in ((yes, condition), (no, T.neg(condition))):
            if member is None:
                self.value(branch, (*before, holds), bound)
            else:
                self.member(branch, member, (*before, holds), bound)

    # -- sets and maps -------------------------------------------------------------------------------------------

    def member(self, whole: Term, element: Place, before: Conditions, bound: tuple[Term, ...]) -> None:
        """Whether the element is in the set; the element itself has been looked at."""
        match whole.op:
            case "state":
                self.read(whole.data, element, before, bound)
            case "get":
                self.looked_up(whole.args[0], whole.args[1:], element, before, bound)
            case "ite":
                self.choice(whole, before, bound, element)
            case "set_add" | "set_remove":
                self.all(whole.args[1:], before, bound)
                other = T.neg(_same(whole.args[1:], element))
                self.member(whole.args[0], element, (*before, other), bound)
            case "set_lambda":
                self.value(T.substitute(whole.args[0], dict(zip(whole.data, element, strict=True))), before, bound)
            case _:  # a static set, a parameter, or the empty set
                self.all(whole.args, before, bound)

    def looked_up(
        self, whole: Term, keys: Place, element: Place | None, before: Conditions, bound: tuple[Term, ...]
    ) -> None:
        """What the map holds under the keys or, with an element, whether that is in what it holds."""
        self.all(keys, before, bound)
        match whole.op:
            case "state":
                self.read(whole.data, keys + (element or ()), before, bound)
            case "store":
                own = whole.args[1:-1]
                self.all(own, before, bound)
                same = _same(own, keys)
                self.found_there(whole.args[-1], element, (*before, same), bound)
                self.looked_up(whole.args[0], keys, element, (*before, T.neg(same)), bound)
            case "map_lambda":
                self.found_there(_lookup(whole, keys), element, before, bound)
            case "ite":
                condition, yes, no = whole.args
                self.value(condition, before, bound)
                self.looked_up(yes, keys, element, (*before, condition), bound)
                self.looked_up(no, keys, element, (*before, T.neg(condition)), bound)
            case _:
                raise NotImplementedError(f"the map {whole}")

    def found_there(self, value: Term, element: Place | None, before: Conditions, bound: tuple[Term, ...]) -> None:
        if element is None:
            self.any(value, before, bound)
        else:
            self.member(value, element, before, bound)

    def read(self, path: Path, place: Place, before: Conditions, bound: tuple[Term, ...]) -> None:
        sorts = key_sorts(self.chapter.variables[path].sort)
        if any(map(_of_a_set, place)):  # where it reads depends on a set parameter: it may be anywhere
            place = ()
        rest = _fresh(sorts[len(place) :])
        whole = T.conj(before)
        if whole is not T.FALSE:
            conditions = tuple(c for c in _parts(whole) if not _of_a_set(c))
            self.found[path][_normal(Read(path, place + rest, conditions, bound + rest))] = None


def _writes(event: TracedEvent, chapter: Chapter) -> Iterator[Write]:
    """What each effect writes. A cell that a bulk change leaves as it is does not count."""
    for effect in event.effects:
        sort = chapter.variables[effect.path].sort
        always = _parts(effect.condition)
        if effect.kind != "assign":
            yield Write(effect.path, effect.keys + effect.args, always, ())
        elif isinstance(effect.args[0].sort, MapSort):
            keys = _fresh(effect.args[0].sort.keys)
            members = _fresh(key_sorts(sort)[len(keys) :])
            for conditions, leaf in _leaves(_lookup(effect.args[0], keys)):
                if not _unchanged(effect.path, leaf, keys):
                    yield Write(effect.path, keys + members, always + conditions, keys + members)
        else:
            members = _fresh(key_sorts(sort)[len(effect.keys) :])
            yield Write(effect.path, effect.keys + members, always, members)


def _normal(read: Read) -> Read:
    """The same reading with variables that depend on their order only, so that equal readings are found to be equal."""
    used = [v for v in _in_order((*read.place, *read.conditions)) if v in read.variables]
    names = {v: _variable(number, v.sort) for number, v in enumerate(used) if isinstance(v.sort, Sort)}
    place, conditions = (tuple(T.substitute(t, names) for t in terms) for terms in (read.place, read.conditions))
    return Read(read.path, place, conditions, tuple(names.values()))


def _needed(reads: list[Read]) -> tuple[Read, ...]:
    """Without the readings that another one includes: of the same place, under fewer conditions."""
    reads.sort(key=lambda r: len(r.conditions))
    kept: list[Read] = []
    for read in reads:
        if not any(k.place == read.place and set(k.conditions) <= set(read.conditions) for k in kept):
            kept.append(read)
    return tuple(kept)


# -- terms -------------------------------------------------------------------------------------------------------------


def _fresh(sorts: tuple[Sort, ...]) -> Place:
    """A new variable for each sort."""
    return tuple(T.variable("any", sort) for sort in sorts)


@functools.cache
def _variable(number: int, sort: Sort) -> Term:
    """The variable of that number in a `Read`."""
    return T.variable(f"x{number}", sort)


def _parts(condition: Term) -> Conditions:
    """The parts of a conjunction, in order."""
    return condition.args if condition.op == "and" else () if condition is T.TRUE else (condition,)


def _in_order(terms: Iterable[Term]) -> dict[Term, None]:
    """The free variables, in the order in which they stand in the terms."""
    found: dict[Term, None] = {}
    for term in terms:
        if term.op == "var":
            found[term] = None
        elif term.free:
            inner = _in_order(term.args)
            found.update((v, None) for v in inner if v in term.free)
    return found


def _of_a_set(term: Term) -> bool:
    return any(isinstance(v.sort, SetSort) for v in term.free)


def _same(left: Place, right: Place) -> Term:
    return T.conj(T.eq(one, other) for one, other in zip(left, right, strict=True))


def _lookup(whole: Term, keys: Place) -> Term:
    """What a map holds under the keys."""
    if whole.op == "map_lambda":
        return T.substitute(whole.args[0], dict(zip(whole.data, keys, strict=True)))
    assert isinstance(whole.sort, MapSort)
    return T.make("get", (whole, *keys), whole.sort.value)


def _leaves(value: Term, before: Conditions = ()) -> Iterator[tuple[Conditions, Term]]:
    """The values that a choice can come to, each with its conditions."""
    if value.op != "ite":
        yield before, value
    else:
        condition, yes, no = value.args
        yield from _leaves(yes, (*before, condition))
        yield from _leaves(no, (*before, T.neg(condition)))


def _unchanged(path: Path, leaf: Term, keys: Place) -> bool:
    """The value is what the cell held before, or what an earlier effect of the same event has stored there."""
    if leaf.op != "get" or leaf.args[1:] != keys:
        return False
    whole = leaf.args[0]
    while whole.op == "store":
        whole = whole.args[0]
    return whole.op == "state" and whole.data == path


# -- in a state --------------------------------------------------------------------------------------------------------


class Alive:
    """Liveness in a structure: of which cells of a state somebody can still read the value."""

    def __init__(self, chapter: Chapter, structure: Structure, cells: Cells, kept: Iterable[Path] = ()) -> None:
        self.structure, self.cells = structure, cells
        self.liveness = Liveness(chapter, kept)
        self.always = frozenset(n for n, c in enumerate(self.cells.cells) if c.path not in self.liveness.reads)
        self._known: dict[Packed, frozenset[int]] = {}

    def live(self, packed: Packed) -> frozenset[int]:
        """The numbers of the live cells."""
        found = self._known.get(packed)
        if found is None:
            state = self.cells.unpack(packed)
            reads = [r for reads in self.liveness.reads.values() for r in reads]
            found = self._known[packed] = self.always.union(*(self._reached(r, state, {}) for r in reads))
        return found

    def written(self, event: TracedEvent, args: tuple[Any, ...], before: State) -> frozenset[int]:
        """The numbers of the cells that a step from this state writes, of those that are not always live."""
        values = dict(zip(event.parameters, args, strict=True))
        writes = [w for w in self.liveness.writes[event.name] if w.path in self.liveness.reads]
        return frozenset[int]().union(*(self._reached(w, before, values) for w in writes))

    def clear(self, packed: Packed) -> Packed:
        """The state with nothing stored in the cells that are not live."""
        live = self.live(packed)
        cells = self.cells.cells
        return tuple(v if n in live else default(cells[n].sort) for n, v in enumerate(packed))

    def _reached(self, access: Read | Write, state: State, values: Mapping[Term, Any]) -> Iterator[int]:
        domains = [list(values_of(v.sort, self.structure)) for v in access.variables]
        for choice in itertools.product(*domains):
            env = {**values, **dict(zip(access.variables, choice, strict=True))}
            if all(evaluate(c, self.structure, state, env) for c in access.conditions):
                place = tuple(evaluate(t, self.structure, state, env) for t in access.place)
                number = self.cells.number.get((access.path, place))
                if number is not None:  # what is read outside the scope was never stored
                    yield number
