"""A finite model as the concrete reading knows it: carriers, statics, a state and the arguments of the event."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvspec.model.concrete import State, Structure, Variant, bare
from kvspec.proofs.finite import Cell, Model, Scope
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import BOOL, NAT, AnySort, MapSort, Path, SetSort, Sort, Term


@dataclass(frozen=True)
class Decoded:
    """A situation: what the opaque words mean, a state, and values of the variables that an obligation fixes."""

    structure: Structure
    state: State
    values: Mapping[Term, Any]


class Decoder:
    """Reads one model."""

    def __init__(self, chapter: Chapter, scope: Scope, model: Model) -> None:
        self.chapter, self.model = chapter, model
        self.sizes = dict(scope.sizes)
        self.names = self._names()

    def decoded(self, variables: Iterator[Term] | list[Term]) -> Decoded:
        carriers = {name: [self.element(name, i) for i in range(size)] for name, size in self.sizes.items()}
        statics = {s.path: self._static(s.path, s.arguments, s.result) for s in self.chapter.statics.values()}
        state = {v.path: self._whole(v.name, v.sort) for v in self.chapter.variables.values()}
        values = {v: self._whole(f"{v.data[0]}!{v.data[1]}", v.sort) for v in variables}
        return Decoded(Structure(carriers, statics), state, values)

    def element(self, sort: str, number: int) -> Any:
        return self.names.get((sort, number), number)

    def _names(self) -> dict[tuple[str, int], str]:
        """Opaque elements are called by their sort and a number, or by a constant that stands for them."""
        names: dict[tuple[str, int], str] = {}
        for static in self.chapter.statics.values():
            sort = static.result
            if not static.arguments and isinstance(sort, Sort) and sort.kind == "id":
                name = static.name if static.path[-1] in names.values() else static.path[-1]
                names.setdefault((sort.name, self._number(static.name, (), sort)), name)
        for sort in self.chapter.sorts.values():
            if sort.kind == "id":
                others = [i for i in range(self.sizes[sort.name]) if (sort.name, i) not in names]
                names |= {(sort.name, i): f"{sort.name.lower()} {n}" for n, i in enumerate(others, 1)}
        return names

    # -- values --------------------------------------------------------------------------------------------------

    def _static(self, path: Path, arguments: tuple[Sort, ...], result: AnySort) -> Any:
        name = ".".join(path)
        if not arguments:
            return self._whole(name, result)
        return {bare(self._values(arguments, at)): self._at(name, at, result) for at in self._places(arguments)}

    def _whole(self, name: str, sort: AnySort) -> Any:
        if isinstance(sort, MapSort):
            return {bare(self._values(sort.keys, at)): self._at(name, at, sort.value) for at in self._places(sort.keys)}
        return self._at(name, (), sort)

    def _at(self, name: str, at: tuple[int, ...], sort: AnySort) -> Any:
        if isinstance(sort, SetSort):
            return frozenset(self._members(name, at, sort))
        assert isinstance(sort, Sort)
        if sort.kind == "variant":
            return self._variant(name, at, sort)
        return self._value(sort, self._number(name, at, sort))

    def _members(self, name: str, at: tuple[int, ...], sort: SetSort) -> Iterator[Any]:
        first = sort.elements[0]
        if first.kind != "variant":
            for element in self._places(sort.elements):
                if Cell(name, (*at, *element), None) in self.model:
                    yield bare(self._values(sort.elements, element))
            return
        for case, fields in first.cases:
            for element in self._places(fields):
                if Cell(f"{name}@{case}", (*at, *element), None) in self.model:
                    yield Variant(case, self._values(fields, element))

    def _variant(self, name: str, at: tuple[int, ...], sort: Sort) -> Variant:
        cases = [c for c, _ in sort.cases if Cell(f"{name}.#is.{c}", at, None) in self.model]
        case = cases[0] if cases else sort.cases[0][0]
        fields = sort.fields(case)
        parts = tuple(self._at(f"{name}.{case}.{i}", at, f) for i, f in enumerate(fields))
        return Variant(case, parts)

    def _number(self, name: str, at: tuple[int, ...], sort: Sort) -> int:
        if sort in (BOOL, NAT):
            return self.model.get(Cell(name, at, None), 0)
        return next((i for i in range(self.sizes[sort.name]) if Cell(name, at, i) in self.model), 0)

    def _value(self, sort: Sort, number: int) -> Any:
        return bool(number) if sort == BOOL else self.element(sort.name, number)

    def _values(self, sorts: tuple[Sort, ...], at: tuple[int, ...]) -> tuple[Any, ...]:
        return tuple(self._value(s, i) for s, i in zip(sorts, at, strict=True))

    def _places(self, sorts: tuple[Sort, ...]) -> Iterator[tuple[int, ...]]:
        ranges = [range(2) if s == BOOL else range(self.sizes[s.name]) for s in sorts]
        yield from itertools.product(*ranges)
