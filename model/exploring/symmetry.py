"""Which elements of a structure can be exchanged, and one state for all that differ by such exchanges.

Two elements of an opaque sort are exchangeable if exchanging them leaves every static constant and function as it is.
A chapter tells opaque elements apart by equality only, so an exchange carries runs to runs and violations to
violations. `docs/exploration.md` has the argument.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kvspec.model.concrete import ABSENT, Structure, Variant
from kvspec.model.exploring.cells import Cell, Cells, Packed, key_sorts
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import AnySort, MapSort, SetSort, Sort
from kvspec.spec.language.traced import StaticSymbol

MOST_EXCHANGES: Final = 720
"""All permutations of the sorts that are not renamed by first use are tried on each state, up to so many."""

Exchange = Mapping[str, Mapping[Any, Any]]
"""For some sorts: which element stands for which. An element that is not named stands for itself."""


class Symmetry:
    """The exchangeable elements of a structure.

    Attributes:
        classes: for each opaque sort, its exchangeable elements, in classes of two or more.
        pointer: the sort whose elements are renamed by first use: the first in the text that has such a class and
            that a map or variable holds (a *pointer*), maybe inside a variant; if there is none, the first that has
            such a class.
        exchanges: all permutations of the classes of the other sorts, the identity first; only that one if they are
            more than `MOST_EXCHANGES`.
        unchanged: the sorts that are left alone for that reason.
    """

    def __init__(self, chapter: Chapter, structure: Structure) -> None:
        self.chapter, self.structure = chapter, structure
        opaque = [s for s in chapter.sorts.values() if s.kind == "id"]
        found = {s.name: self._classes(s) for s in opaque}
        self.classes = {name: classes for name, classes in found.items() if classes}
        held = {name for v in chapter.variables.values() for name in _held(v.sort)}
        pointers = [name for name in self.classes if name in held] or list(self.classes)
        self.pointer = pointers[0] if pointers else None
        self.others = tuple(name for name in self.classes if name != self.pointer)
        count = math.prod(math.factorial(len(c)) for name in self.others for c in self.classes[name])
        few = count <= MOST_EXCHANGES
        self.exchanges = tuple(self._permutations()) if few else ({},)
        self.unchanged = () if few else self.others

    def _permutations(self) -> Iterator[Exchange]:
        sorts = [(name, c) for name in self.others for c in self.classes[name]]
        for orders in itertools.product(*(itertools.permutations(c) for _, c in sorts)):
            found: dict[str, dict[Any, Any]] = {name: {} for name in self.others}
            for (name, members), order in zip(sorts, orders, strict=True):
                found[name].update(zip(members, order, strict=True))
            yield found

    def _classes(self, sort: Sort) -> tuple[tuple[Any, ...], ...]:
        classes: list[list[Any]] = []
        for element in self.structure.carriers[sort.name]:
            for members in classes:
                if self.exchangeable(sort, members[0], element):
                    members.append(element)
                    break
            else:
                classes.append([element])
        return tuple(tuple(c) for c in classes if len(c) > 1)

    def exchangeable(self, sort: Sort, one: Any, other: Any) -> bool:
        """Exchanging the two elements leaves all statics as they are."""
        swap = {sort.name: {one: other, other: one}}
        return all(self._kept(symbol, swap) for symbol in self.chapter.statics.values())

    def _kept(self, symbol: StaticSymbol, swap: Exchange) -> bool:
        if not symbol.arguments:
            value = self.structure.statics[symbol.path]
            return bool(exchanged(value, symbol.result, swap) == value)
        for args in self.structure.tuples(symbol.arguments):
            swapped = tuple(exchanged(a, s, swap) for a, s in zip(args, symbol.arguments, strict=True))
            result = exchanged(self.structure.apply(symbol.path, args), symbol.result, swap)
            if self.structure.apply(symbol.path, swapped) != result:
                return False
        return True


def inverse(exchange: Exchange) -> Exchange:
    """The exchange that undoes this one."""
    return {sort: {y: x for x, y in swap.items()} for sort, swap in exchange.items()}


def composed(first: Exchange, second: Exchange) -> Exchange:
    """One exchange, and then the other."""
    found: dict[str, dict[Any, Any]] = {}
    for sort in {**first, **second}:
        one, two = first.get(sort, {}), second.get(sort, {})
        found[sort] = {x: two.get(one.get(x, x), one.get(x, x)) for x in {**one, **two}}
    return found


def _held(sort: AnySort) -> Iterator[str]:
    """The opaque sorts of what a variable points to."""
    value = sort.value if isinstance(sort, MapSort) else sort
    if isinstance(value, Sort):
        if value.kind == "id":
            yield value.name
        for _, fields in value.cases:
            for part in fields:
                yield from _held(part)


def exchanged(value: Any, sort: AnySort, swap: Exchange) -> Any:
    """A value of a scalar or set sort with the elements exchanged."""
    if value is ABSENT:
        return value
    if isinstance(sort, SetSort):
        return frozenset(_each(member, sort.elements, swap) for member in value)
    assert isinstance(sort, Sort)
    if sort.kind == "variant" and isinstance(value, Variant):
        fields = sort.fields(value.case)
        return Variant(value.case, tuple(exchanged(v, f, swap) for v, f in zip(value.fields, fields, strict=True)))
    return swap.get(sort.name, {}).get(value, value)


def _each(item: Any, sorts: tuple[Sort, ...], swap: Exchange) -> Any:
    if len(sorts) == 1:
        return exchanged(item, sorts[0], swap)
    return tuple(exchanged(i, s, swap) for i, s in zip(item, sorts, strict=True))


class Representative:
    """One state of each orbit.

    Elements of the pointer sort are numbered by first use: first those that cells hold which the sort does not key, in
    the order of the cells (in a variant: of its fields); then the others, by all that is stored under them. Where the
    latter does not tell two elements apart they keep their order: the result then still is in the orbit, but need not
    be the only one.
    """

    def __init__(self, chapter: Chapter, structure: Structure, symmetry: Symmetry, cells: Cells) -> None:
        self.symmetry, self.cells = symmetry, cells
        self.places = [key_sorts(chapter.variables[c.path].sort) for c in cells.cells]
        self.rank = [_ranks(c, structure) for c in cells.cells]
        name = symmetry.pointer
        self.free = {} if name is None else {x: number for number, c in enumerate(symmetry.classes[name]) for x in c}
        keyed = [{x for x, s in zip(c.place, p, strict=True) for x in held_in(x, s, name)} for c, p in self._pairs()]
        self.first = [n for n, c in enumerate(cells.cells) if name in {*_held(c.sort)} and not keyed[n]]
        self.under = {x: [n for n, inside in enumerate(keyed) if x in inside] for x in self.free}

    def _pairs(self) -> Iterator[tuple[Cell, tuple[Sort, ...]]]:
        return zip(self.cells.cells, self.places, strict=True)

    def renamed(self, packed: Packed) -> Packed:
        """The pointer sort numbered by first use."""
        return self.exchange(packed, self.names(packed)) if self.free else packed

    def names(self, packed: Packed) -> Exchange:
        """The exchange that leads from a state to the renamed one."""
        if not self.free:
            return {}
        used = dict.fromkeys(x for n in self.first for x in self.held(n, packed[n]) if x in self.free)
        rest = sorted((x for x in self.free if x not in used), key=lambda x: self.signature(packed, x))
        names = {number: iter(members) for number, members in enumerate(self.symmetry.classes[self._name])}
        return {self._name: {x: next(names[self.free[x]]) for x in (*used, *rest)}}

    def held(self, number: int, value: Any) -> tuple[Any, ...]:
        """The elements of the pointer sort in a value of the cell of this number, in order."""
        return tuple(held_in(value, self.cells.cells[number].sort, self.symmetry.pointer))

    @property
    def _name(self) -> str:
        assert self.symmetry.pointer is not None
        return self.symmetry.pointer

    def signature(self, packed: Packed, element: Any) -> tuple[int, ...]:
        """What is stored in the cells that the element keys."""
        return tuple(self.rank[n](packed[n]) for n in self.under[element])

    def canonical(self, packed: Packed) -> Packed:
        """The least of the renamed states over all exchanges of the other sorts."""
        return min((self.renamed(self.exchange(packed, e)) for e in self.symmetry.exchanges), key=self._order)

    def canonical_names(self, packed: Packed) -> Exchange:
        """The exchange that leads from a state to the canonical one."""
        tried = ({**e, **self.names(self.exchange(packed, e))} for e in self.symmetry.exchanges)
        return min(tried, key=lambda names: self._order(self.exchange(packed, names)))

    def _order(self, packed: Packed) -> tuple[int, ...]:
        return tuple(rank(value) for rank, value in zip(self.rank, packed, strict=True))

    def exchange(self, packed: Packed, swap: Exchange) -> Packed:
        """The state with the elements exchanged, in keys, members and values."""
        found: list[Any] = list(packed)
        for (cell, sorts), value in zip(self._pairs(), packed, strict=True):
            place = tuple(exchanged(x, s, swap) for x, s in zip(cell.place, sorts, strict=True))
            found[self.cells.number[cell.path, place]] = exchanged(value, cell.sort, swap)
        return tuple(found)


def held_in(value: Any, sort: Sort, name: str | None) -> Iterator[Any]:
    """The elements of a sort that a scalar value is or has in it."""
    if sort.name == name:
        yield value
    elif isinstance(value, Variant):
        for part, part_sort in zip(value.fields, sort.fields(value.case), strict=True):
            yield from held_in(part, part_sort, name)


def _ranks(cell: Cell, structure: Structure) -> Callable[[Any], int]:
    """An order of the values that a cell can hold."""
    if cell.sort.kind in ("nat", "position"):
        return lambda value: -1 if value is ABSENT else int(value)
    numbers = {value: number for number, value in enumerate(structure.elements(cell.sort))}
    return lambda value: numbers.get(value, -1)
