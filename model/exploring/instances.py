"""All steps that a chapter may try in a structure, where it starts, and which results stay inside."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvspec.model.concrete import ABSENT, State, Structure, Variant, bare, default, evaluate, initial
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import NAT, AnySort, MapSort, Path, SetSort, Sort, Term
from kvspec.spec.language.traced import Effect, TracedEvent

MOST_INSTANCES: Final = 4096
"""Of one event; a set parameter over twelve possible members has as many values."""


ENDLESS: Final = 10**12
"""As many as that cannot be counted, such as numbers."""


class TooManyInstances(ValueError):
    """An event has more instances in a scope than an exploration can try in every state."""

    def __init__(self, event: str, count: int) -> None:
        many = count if count < ENDLESS else f"over {ENDLESS}"
        super().__init__(f"event {event} has {many} instances in this scope; at most {MOST_INSTANCES} can be tried")


@dataclass(frozen=True)
class Instance:
    """An event with its arguments."""

    event: TracedEvent
    args: tuple[Any, ...]


def instances(chapter: Chapter, structure: Structure) -> list[Instance]:
    """Every event of the chapter with all arguments, in the order of the text.

    A set parameter takes every subset of its possible members.

    Raises:
        TooManyInstances: an event has more than `MOST_INSTANCES`.
    """
    count_instances(chapter, structure)
    return [i for name in chapter.event_names for i in instances_of(chapter.event(name), structure)]


def count_instances(chapter: Chapter, structure: Structure) -> int:
    """How many `instances` there are, without making them.

    Raises:
        TooManyInstances: an event has more than `MOST_INSTANCES`.
    """
    total = 0
    for name in chapter.event_names:
        count = math.prod(_how_many(p.sort, structure) for p in chapter.event(name).parameters)
        if count > MOST_INSTANCES:
            raise TooManyInstances(name, count)
        total += count
    return total


def instances_of(event: TracedEvent, structure: Structure, largest: int | None = None) -> Iterator[Instance]:
    """An event with all arguments; sets of at most so many members."""
    choices = [list(values_of(p.sort, structure, largest)) for p in event.parameters]
    return (Instance(event, args) for args in itertools.product(*choices))


def _how_many(sort: AnySort, structure: Structure) -> int:
    if isinstance(sort, SetSort):
        return int(2 ** len(list(structure.tuples(sort.elements))))
    assert isinstance(sort, Sort)
    if sort == NAT and sort.name not in structure.carriers:
        return ENDLESS
    return len(list(structure.elements(sort)))


def values_of(sort: AnySort, structure: Structure, largest: int | None = None) -> Iterator[Any]:
    """All values of a scalar or set sort; the sets from the smallest on, with at most so many members."""
    if isinstance(sort, SetSort):
        members = [bare(m) for m in structure.tuples(sort.elements)]
        for size in range(min(len(members), len(members) if largest is None else largest) + 1):
            yield from map(frozenset, itertools.combinations(members, size))
    else:
        assert isinstance(sort, Sort)
        yield from structure.elements(sort)


def start_state(chapter: Chapter, structure: Structure, given: Mapping[Path, Any] | None = None) -> State:
    """The state at the start: what the inits set, else what is given, else nothing stored."""
    blank = {path: _blank(v.sort) for path, v in chapter.variables.items()}
    return {**blank, **(given or {}), **initial(chapter, structure)}


def _blank(sort: AnySort) -> Any:
    return {} if isinstance(sort, MapSort) else default(sort)


class Inside:
    """Whether what a step stores is inside the scope.

    A step is *not taken* if it stores a position beyond the last of the carrier (the scope ends there), or if a key of
    a map, a member of a set or a part of a variant would be absent (nothing can be stored there). A map or a variable
    may hold `ABSENT` itself. A change whose condition does not hold stores nothing, so its key is not looked at.
    """

    def __init__(self, chapter: Chapter, structure: Structure) -> None:
        self.chapter, self.structure = chapter, structure

    def step(self, event: TracedEvent, args: tuple[Any, ...], before: State, after: State) -> bool:
        """All that the event changes between the two states is inside."""
        values = dict(zip(event.parameters, args, strict=True))
        paths = {e.path for e in event.effects}
        return all(self._stored(e, before, values) for e in event.effects) and all(
            self.holds(after[p], self.chapter.variables[p].sort) for p in paths
        )

    def _stored(self, effect: Effect, before: State, values: Mapping[Term, Any]) -> bool:
        """What the change is stored under is inside, if it happens."""
        sort = self.chapter.variables[effect.path].sort
        if not isinstance(sort, MapSort) or not effect.keys:
            return True
        if not evaluate(effect.condition, self.structure, before, values):
            return True
        return self.key(tuple(evaluate(k, self.structure, before, values) for k in effect.keys), sort.keys)

    def key(self, items: tuple[Any, ...], sorts: tuple[Sort, ...]) -> bool:
        """Something can be stored under this key, or be this member."""
        return all(map(self._element, items, sorts))

    def holds(self, value: Any, sort: AnySort) -> bool:
        """A value of a state variable is inside; of a map, what it holds under keys that are."""
        if isinstance(sort, MapSort):
            return all(self.holds(v, sort.value) for k, v in value.items() if self.key(_parts(k, sort.keys), sort.keys))
        if isinstance(sort, SetSort):
            return all(self.key(_parts(member, sort.elements), sort.elements) for member in value)
        return value is ABSENT or self._element(value, sort)

    def _element(self, value: Any, sort: Sort) -> bool:
        if value is ABSENT:
            return False
        if isinstance(value, Variant):
            return all(map(self._element, value.fields, sort.fields(value.case)))
        return sort.kind != "position" or value < len(self.structure.carriers[sort.name])


def _parts(item: Any, sorts: tuple[Sort, ...]) -> tuple[Any, ...]:
    """The opposite of `bare`."""
    return item if len(sorts) > 1 else (item,)
