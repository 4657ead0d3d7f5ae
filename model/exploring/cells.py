"""A state as a tuple: one value for each cell.

A cell is a scalar variable, one key of a map, or the membership of one possible member in a set (also in a set that a
map leads to). Two states read the same exactly if their tuples are equal, as long as everything stored is `Inside` the
scope: where a map holds what is absent, the default of its sort is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvspec.model.concrete import ABSENT, State, Structure, bare, default
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import AnySort, MapSort, Path, SetSort, Sort

Packed = tuple[Any, ...]
"""A state: the values of all cells, in the order of `Cells.cells`."""


@dataclass(frozen=True)
class Cell:
    """One cell: the variable, the key of a map, the member of a set; each a tuple of scalars, empty where there is
    none. ``sort`` is that of its values; a cell of a set holds a bool."""

    path: Path
    key: tuple[Any, ...]
    member: tuple[Any, ...]
    sort: Sort

    @property
    def place(self) -> tuple[Any, ...]:
        """Key and member together."""
        return self.key + self.member


def key_sorts(sort: AnySort) -> tuple[Sort, ...]:
    """The sorts of what tells the cells of a variable apart: keys of maps, then members of sets."""
    if isinstance(sort, MapSort):
        return sort.keys + key_sorts(sort.value)
    return sort.elements if isinstance(sort, SetSort) else ()


class Cells:
    """All cells of a chapter in a structure, in the order of its variables and of the carriers."""

    def __init__(self, chapter: Chapter, structure: Structure) -> None:
        self.sorts = {path: v.sort for path, v in chapter.variables.items()}
        self.cells = tuple(cell for path, sort in self.sorts.items() for cell in _cells(path, sort, structure))
        self.number = {(cell.path, cell.place): i for i, cell in enumerate(self.cells)}

    def pack(self, state: Mapping[Path, Any]) -> Packed:
        """The tuple of a state that is inside the scope."""
        return tuple(_value(state[cell.path], cell, self.sorts[cell.path]) for cell in self.cells)

    def unpack(self, packed: Packed) -> State:
        """The state with these values."""
        found: dict[Path, Any] = {
            path: {} if isinstance(sort, MapSort) else set() if isinstance(sort, SetSort) else None
            for path, sort in self.sorts.items()
        }
        for cell, value in zip(self.cells, packed, strict=True):
            found[cell.path] = _put(found[cell.path], cell, value)
        return found


def _cells(path: Path, sort: AnySort, structure: Structure) -> list[Cell]:
    keys: list[tuple[Any, ...]] = [()]
    if isinstance(sort, MapSort):
        keys, sort = list(structure.tuples(sort.keys)), sort.value
    if isinstance(sort, SetSort):
        members, sort = list(structure.tuples(sort.elements)), Sort("Bool", "bool")
    else:
        members = [()]
    return [Cell(path, key, member, sort) for key in keys for member in members]


def _value(whole: Any, cell: Cell, sort: AnySort) -> Any:
    if isinstance(sort, MapSort):
        inner, held = sort.value, whole.get(bare(cell.key), ABSENT)
        return _value(default(inner) if held is ABSENT else held, cell, inner)
    return bare(cell.member) in whole if isinstance(sort, SetSort) else whole


def _put(whole: Any, cell: Cell, value: Any) -> Any:
    """The value of the variable with the cell filled in; maps and sets are changed in place."""
    if not cell.member:
        if not cell.key:
            return value
        whole[bare(cell.key)] = value
        return whole
    members = whole.setdefault(bare(cell.key), set()) if cell.key else whole
    if value:
        members.add(bare(cell.member))
    return whole
