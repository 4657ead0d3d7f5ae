"""The part of a state that a line of a log speaks of, in the words of scenarios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from kvspec.model.concrete import ABSENT, Structure
from kvspec.model.scenario.events import NUMBERED, Names, state_facts
from kvspec.spec.language import Chapter
from kvspec.spec.language.terms import AnySort, MapSort, Path, SetSort, Sort

MAX_LINES: Final = 24


class Step(NamedTuple):
    """An event of a log, with its arguments."""

    name: str
    arguments: tuple[Any, ...]


Element = tuple[str, Any]
"""A value that has an identity, such as a block or a sequence, with the name of its sort."""


def elements(value: Any, sort: AnySort) -> Iterator[Element]:
    """The things that a value speaks of; places in a table and counts are none."""
    if isinstance(sort, SetSort):
        for row in value:
            yield from row_elements(row, sort.elements)
    elif isinstance(sort, Sort) and sort.kind == "variant" and isinstance(value, tuple):
        for inner, field in zip(value[1:], sort.fields(value[0]), strict=True):
            yield from elements(inner, field)
    elif isinstance(sort, Sort) and sort.kind == "id" and value is not ABSENT:
        yield sort.name, value


def row_elements(row: Any, sorts: tuple[Sort, ...]) -> Iterator[Element]:
    """The same of a member of a set, or of a key of a map."""
    parts = (row,) if len(sorts) == 1 else row
    for value, sort in zip(parts, sorts, strict=True):
        yield from elements(value, sort)


class Focus:
    """What an event speaks of.

    Args:
        chapter: whose event it is.
        step: the event; None for all that there is.
    """

    def __init__(self, chapter: Chapter, step: Step | None) -> None:
        self.chapter = chapter
        self.elements: set[Element] | None = None if step is None else set(self.of(step))

    def of(self, step: Step) -> Iterator[Element]:
        """The things that an event speaks of."""
        sorts = [p.sort for p in self.chapter.event(step.name).parameters]
        for value, sort in zip(step.arguments, sorts, strict=True):
            yield from elements(value, sort)

    def restrict(self, state: Mapping[Path, Any]) -> dict[Path, Any]:
        """The part of a state that speaks of these things, and of the blocks and the like to which they lead."""
        if self.elements is None:
            return dict(state)
        around = set(self.elements)
        for path, value in state.items():
            sort = self.chapter.variables[path].sort
            if isinstance(sort, MapSort) and not isinstance(sort.value, SetSort):
                for key, inner in value.items():
                    own = set(row_elements(key, sort.keys))
                    if own and own <= self.elements:
                        around |= {e for e in elements(inner, sort.value) if e[0] in NUMBERED}
        return {p: self._part(v, self.chapter.variables[p].sort, around) for p, v in state.items() if v is not None}

    def _part(self, value: Any, sort: AnySort, around: set[Element]) -> Any:
        if isinstance(sort, SetSort):
            few = len(sort.elements) == 1 and sort.elements[0].kind == "id" and len(value) > len(around)
            if few:
                return {x for name, x in around if name == sort.elements[0].name and x in value}
            return {row for row in value if around & set(row_elements(row, sort.elements))}
        if isinstance(sort, MapSort):
            return {k: v for k, v in value.items() if self._touches(k, v, sort, around)}
        return value

    def _touches(self, key: Any, value: Any, sort: MapSort, around: set[Element]) -> bool:
        own = set(row_elements(key, sort.keys))
        if own & around:
            return True
        return value is not ABSENT and not around.isdisjoint(elements(value, sort.value))


def state_lines(chapter: Chapter, structure: Structure, state: Mapping[Path, Any], focus: Focus) -> list[str]:
    """Facts of the state, as in a scenario's ``given``."""
    found = state_facts(chapter, Names(chapter, structure), focus.restrict(state))
    left = len(found) - MAX_LINES
    return found if left <= 1 else [*found[:MAX_LINES], f"and {left} facts more"]
