"""Where each cell of a state stands in a row of bits.

A row is a few int64 words. A cell takes the bits that its possible values need; a value that is nothing but the default
of its sort is all zeros, so that a cell is cleared by clearing its bits. A cell with one possible value takes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kvspec.model.batched.bits import WORD, signed
from kvspec.model.batched.logic import FALSE, TRUE, Logic
from kvspec.model.batched.numbers import Number
from kvspec.model.concrete import ABSENT, State, Structure, bare, default
from kvspec.model.exploring.cells import Cell, Cells, Packed
from kvspec.spec.language.terms import MapSort, Path, SetSort, Sort

NUMBER_BITS: Final = 8
"""Of a natural, the sign included: a counter may be wrong and fall below zero."""


@dataclass(frozen=True)
class Place:
    """The bits of a cell, the first of them in the row, and its values in the order of their codes (None: a number)."""

    first: int
    width: int
    values: tuple[Any, ...] | None

    def code(self, value: Any) -> int:
        """The bits of a value.

        Raises:
            OutOfRange: the cell cannot hold it.
        """
        if self.values is not None:
            if value not in self.values:
                raise OutOfRange(value)
            return self.values.index(value)
        if value is ABSENT or not -(1 << self.width - 1) <= value < 1 << self.width - 1:
            raise OutOfRange(value)
        return int(value) & (1 << self.width) - 1

    def value(self, code: int) -> Any:
        """The value that has these bits."""
        if self.values is not None:
            return self.values[code]
        return code - (1 << self.width) if code >> self.width - 1 else code


class OutOfRange(ValueError):
    """A cell would have to hold a value that it has no bits for."""

    def __init__(self, value: object) -> None:
        super().__init__(f"the value {value!r} is none that the scope has (numbers are of {NUMBER_BITS} bits)")


class Layout:
    """The places of all cells of a chapter in a structure.

    Args:
        cells: the cells.
        structure: the elements of each sort.
        possible: for each cell the values that it may ever have, if that is known; None for any number.
    """

    def __init__(
        self, cells: Cells, structure: Structure, possible: Sequence[Iterable[Any] | None] | None = None
    ) -> None:
        self.cells, self.structure = cells, structure
        self.places: list[Place] = []
        first = 0
        for number, cell in enumerate(cells.cells):
            values = _ordered(cell, structure, None if possible is None else possible[number])
            width = NUMBER_BITS if values is None else (len(values) - 1).bit_length()
            if first // WORD != (first + width - 1) // WORD and width:
                first = -(-first // WORD) * WORD
            self.places.append(Place(first, width, values))
            first += width
        self.codes = [{v: code for code, v in enumerate(p.values or ())} for p in self.places]
        self.bits = first
        self.words = max(1, -(-first // WORD))

    # -- states ----------------------------------------------------------------------------------------------------

    def row(self, packed: Packed) -> tuple[int, ...]:
        """The words of a state, as unsigned numbers.

        Raises:
            OutOfRange: a cell has a value that it cannot hold.
        """
        words = [0] * self.words
        for place, value in zip(self.places, packed, strict=True):
            words[place.first // WORD] |= place.code(value) << place.first % WORD
        return tuple(words)

    def rows(self, packed: Iterable[Packed]) -> Tensor:
        """Rows, [n, words], of states as tuples."""
        rows = [[signed(word) for word in self.row(p)] for p in packed]
        return torch.tensor(rows, dtype=torch.int64).view(len(rows), self.words)

    def encode(self, states: Iterable[Mapping[Path, Any]]) -> Tensor:
        """Rows, [n, words], of states."""
        return self.rows(map(self.cells.pack, states))

    def packed(self, rows: Tensor) -> Iterator[Packed]:
        """The values of all cells, row by row."""
        for row in rows.tolist():
            words = [word & (1 << WORD) - 1 for word in row]
            yield tuple(p.value(words[p.first // WORD] >> p.first % WORD & (1 << p.width) - 1) for p in self.places)

    def decode(self, rows: Tensor) -> list[State]:
        """The states of rows."""
        return [self.cells.unpack(packed) for packed in self.packed(rows)]

    # -- statements ------------------------------------------------------------------------------------------------

    def variables(self, logic: Logic) -> list[int]:
        """A statement for each bit of a row: that it is set."""
        return [logic.variable() for _ in range(self.bits)]

    def state(self, logic: Logic, bits: Sequence[int]) -> dict[Path, Any]:
        """What each state variable is, by the statements about the bits; as `Reading` takes it."""
        found: dict[Path, Any] = {p: {} for p, s in self.cells.sorts.items() if not isinstance(s, Sort)}
        for cell, meaning in zip(self.cells.cells, self.meanings(logic, bits), strict=True):
            sort = self.cells.sorts[cell.path]
            if not cell.place:
                found[cell.path] = meaning
                continue
            members = isinstance(sort, SetSort) or (isinstance(sort, MapSort) and isinstance(sort.value, SetSort))
            table = found[cell.path]
            if members and cell.key:
                table = table.setdefault(bare(cell.key), {})
            if not members:
                table[bare(cell.key)] = meaning
            elif meaning != FALSE:
                table[bare(cell.member)] = meaning
        return found

    def meanings(self, logic: Logic, bits: Sequence[int]) -> list[Any]:
        """What each cell is, by the statements about the bits."""
        pairs = zip(self.cells.cells, self.places, strict=True)
        return [self._meaning(logic, p, c.sort, bits[p.first : p.first + p.width]) for c, p in pairs]

    def _meaning(self, logic: Logic, place: Place, sort: Sort, bits: Sequence[int]) -> Any:
        if place.values is None:
            return Number(tuple(bits))
        if sort.kind == "bool":
            return bits[0] if bits else TRUE if place.values[0] else FALSE
        return {v: self._has_code(logic, place, code, bits) for code, v in enumerate(place.values)}

    def _has_code(self, logic: Logic, place: Place, code: int, bits: Sequence[int]) -> int:
        """That the bits are this code; bits that no other code needs are not looked at."""
        assert place.values is not None
        needed = list(range(place.width))
        for bit in range(place.width):
            rest = [b for b in needed if b != bit]
            others = (c for c in range(len(place.values)) if c != code)
            if all(any((c ^ code) >> b & 1 for b in rest) for c in others):
                needed = rest
        return logic.all_of(bits[b] if code >> b & 1 else bits[b] ^ 1 for b in needed)

    def coded(self, logic: Logic, number: int, meaning: Any) -> list[int]:
        """The bits of a cell that gets a new value; of a value that it cannot hold, any."""
        place, sort = self.places[number], self.cells.cells[number].sort
        if place.values is None:
            return [meaning.bit(i) for i in range(place.width)]
        if sort.kind == "bool":
            return [meaning] * place.width
        known = self.codes[number]
        codes = [(known[value], literal) for value, literal in meaning.items() if value in known]
        return [logic.any_of(literal for code, literal in codes if code >> bit & 1) for bit in range(place.width)]


def _ordered(cell: Cell, structure: Structure, possible: Iterable[Any] | None) -> tuple[Any, ...] | None:
    """The values of a cell, the default first; None for a number."""
    blank = default(cell.sort)
    if cell.sort.kind == "nat":
        return None
    if possible is None:
        absent = cell.sort.kind == "position" and not cell.key  # under a key, the default is read instead
        possible = [blank, *structure.elements(cell.sort)] + [ABSENT] * absent
    values = dict.fromkeys(possible)
    return tuple([v for v in values if v == blank] + [v for v in values if v != blank])
