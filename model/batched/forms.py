"""Representatives of whole batches: the renaming of `kvspec.model.exploring.symmetry`, as statements about bits.

Renaming by first use sorts the elements of a class by a key: where the element is first used, or else what is stored
under it. A network of exchanges of neighbours sorts them; each exchange is made in those states where the keys stand
the wrong way round, so that no state is looked at alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from kvspec.model.batched.expansion import Expansion
from kvspec.model.batched.logic import FALSE
from kvspec.model.batched.program import Program
from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.quotient import Quotient
from kvspec.model.exploring.symmetry import Exchange, Representative, Symmetry, exchanged
from kvspec.spec.language.terms import Sort

Meanings = list[Any]
"""What each cell is, as `Reading` has it."""
Key = list[int]
"""A number that elements are compared by: bits as literals, the highest first."""


class Forms:
    """Replaces the states of a batch by those that stand for them.

    Args:
        expansion: the states as bits; each cell has all values of its sort.
        quotient: what is exchanged.
    """

    def __init__(self, expansion: Expansion, quotient: Quotient) -> None:
        assert quotient.forms is not None and quotient.symmetry is not None
        self.expansion, self.compiled = expansion, expansion.compiled
        self.logic, self.layout = self.compiled.logic, self.compiled.layout
        self.forms: Representative = quotient.forms
        self.symmetry: Symmetry = quotient.symmetry
        exchanges = self.symmetry.exchanges if quotient.states is States.CANONICAL else ()
        here = self.layout.meanings(self.logic, self.compiled.bits)
        self._rename = self._encoded(self._renamed(here))
        self._exchanges = [self._encoded(self._exchanged(here, e)) for e in exchanges[1:]]
        self._lesser = self._least(here) if self._exchanges else None

    def apply(self, planes: Tensor) -> None:
        """Put the representatives in the place of the states, planes [bits, width]."""
        for part in self.expansion.parts(planes):
            self._apply(part)

    def _apply(self, planes: Tensor) -> None:
        best = self._run(self._rename, planes)
        for exchange in self._exchanges:
            other = self._run(self._rename, self._run(exchange, planes))
            assert self._lesser is not None
            best = self._run(self._lesser, torch.cat((best, other)))
        planes[: len(best)] = best

    def _run(self, program: Program, planes: Tensor) -> Tensor:
        return torch.stack(self.expansion.planes.run(program, planes.unbind(0)))

    def _encoded(self, meanings: Meanings) -> Program:
        return self.expansion.program(self._bits(meanings))

    def _bits(self, meanings: Meanings) -> list[int]:
        found = [FALSE] * self.layout.bits
        for number, meaning in enumerate(meanings):
            first = self.layout.places[number].first
            for i, literal in enumerate(self.layout.coded(self.logic, number, meaning)):
                found[first + i] = literal
        return found

    # -- exchanges -------------------------------------------------------------------------------------------------

    def _exchanged(self, meanings: Meanings, swap: Exchange) -> Meanings:
        """The cells of the state with elements exchanged, in keys, members and values."""
        found = list(meanings)
        for number, (cell, meaning) in enumerate(zip(self.layout.cells.cells, meanings, strict=True)):
            sorts = self.forms.places[number]
            place = tuple(exchanged(x, s, swap) for x, s in zip(cell.place, sorts, strict=True))
            found[self.layout.cells.number[cell.path, place]] = _value_exchanged(meaning, cell.sort, swap)
        return found

    def _renamed(self, meanings: Meanings) -> Meanings:
        """The elements of the pointer sort sorted by their keys, in each class."""
        if self.symmetry.pointer is None:
            return meanings
        for members in self.symmetry.classes[self.symmetry.pointer]:
            keys = self._aligned([self._key(meanings, x) for x in members])
            for end in range(len(members) - 1, 0, -1):
                for i in range(end):
                    meanings = self._sorted(meanings, keys, members, i)
        return meanings

    def _sorted(self, meanings: Meanings, keys: list[Key], members: Sequence[Any], i: int) -> Meanings:
        """Two neighbours exchanged where the second has the lesser key."""
        logic, reading = self.logic, self.compiled.reading
        wrong = self._less(keys[i + 1], keys[i])
        one, other = members[i], members[i + 1]
        swap = {cast(str, self.symmetry.pointer): {one: other, other: one}}
        found = []
        for cell, old, new in zip(self.layout.cells.cells, meanings, self._exchanged(meanings, swap), strict=True):
            found.append(old if old == new else reading.mixed([(wrong, new), (wrong ^ 1, old)], cell.sort))
        pairs = list(zip(keys[i], keys[i + 1], strict=True))
        keys[i] = [logic.choose(wrong, b, a) for a, b in pairs]
        keys[i + 1] = [logic.choose(wrong, a, b) for a, b in pairs]
        return found

    # -- keys ------------------------------------------------------------------------------------------------------

    def _key(self, meanings: Meanings, element: Any) -> list[Key]:
        """Where the element is first used, and what is stored under it."""
        logic = self.logic
        unused, place = 1, []
        for number in self.forms.first:
            for here in self._uses(number, meanings[number], element):
                place.append(logic.both(unused, here))
                unused = logic.both(unused, here ^ 1)
        first = _number([*place, unused], logic.any_of)
        return [first, *(self._rank(n, meanings[n]) for n in self.forms.under[element])]

    def _uses(self, number: int, meaning: Any, element: Any) -> list[int]:
        """That a cell holds the element: as the first thing in it, as the second, ..."""
        held = [(self.forms.held(number, value), literal) for value, literal in meaning.items()]
        most = max((len(parts) for parts, _ in held), default=0)
        found = []
        for i in range(most):
            found.append(self.logic.any_of(lit for parts, lit in held if parts[i : i + 1] == (element,)))
        return found

    def _rank(self, number: int, meaning: Any) -> Key:
        """The rank of what a cell holds, as a number that is not negative."""
        cell, rank = self.layout.cells.cells[number], self.forms.rank[number]
        if cell.sort.kind == "bool":
            return [meaning]
        if cell.sort.kind == "nat":
            sign, *rest = reversed([meaning.bit(i) for i in range(self.layout.places[number].width)])
            return [sign ^ 1, *rest]
        ordered = sorted(meaning, key=rank)
        found = [FALSE] * (rank(ordered[-1]) + 2)
        for value in ordered:
            found[rank(value) + 1] = meaning[value]
        return _number(found, self.logic.any_of)

    def _aligned(self, keys: list[list[Key]]) -> list[Key]:
        """Each key as one number, with the same widths of its parts."""
        widths = [max(map(len, parts)) for parts in zip(*keys, strict=True)]
        return [
            [b for part, w in zip(key, widths, strict=True) for b in [FALSE] * (w - len(part)) + part] for key in keys
        ]

    def _less(self, left: Key, right: Key) -> int:
        """That the left number is less: by the first bit from the end, and each before it counts more."""
        result = FALSE
        for a, b in reversed(list(zip(left, right, strict=True))):
            result = self.logic.choose(self.logic.differ(a, b), b, result)
        return result

    def _least(self, here: Meanings) -> Program:
        """The lesser of two states, the planes of the second behind those of the first."""
        logic = self.logic
        bits = self.layout.variables(logic)
        there = self.layout.meanings(logic, bits)
        orders = [
            [bit for number, meaning in enumerate(state) for bit in self._rank(number, meaning)]
            for state in (here, there)
        ]
        second = self._less(orders[1], orders[0])
        inputs = {bit >> 1: plane for plane, bit in enumerate([*self.compiled.bits, *bits])}
        pairs = zip(self.compiled.bits, bits, strict=True)
        return Program(logic, inputs, [logic.choose(second, b, a) for a, b in pairs])


def _value_exchanged(meaning: Any, sort: Sort, swap: Mapping[str, Mapping[Any, Any]]) -> Any:
    if sort.kind not in ("id", "variant"):
        return meaning
    return {exchanged(value, sort, swap): literal for value, literal in meaning.items()}


def _number(statements: Sequence[int], any_of: Any) -> Key:
    """The number of the one statement that holds."""
    width = (len(statements) - 1).bit_length()
    return [any_of(s for n, s in enumerate(statements) if n >> bit & 1) for bit in reversed(range(width))]
