"""Runs from the start, by breadth-first search in the concrete reading.

A counterexample to induction need not be reachable. Within its sorts and statics this looks for a run that ends in the
same violation: of the same statement, by the same event.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvspec.model.concrete import ABSENT, NotEnabled, State, Structure, fire, initial
from kvspec.proofs.confirm import violated
from kvspec.proofs.decode import Decoded
from kvspec.proofs.obligations import Obligation
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import AnySort, MapSort, SetSort, Term
from kvspec.spec.language.traced import TracedEvent

Step = tuple[TracedEvent, tuple[Any, ...]]


@dataclass(frozen=True)
class Run:
    """Steps from the start, and the situation in which the last of them goes wrong."""

    steps: tuple[Step, ...]
    situation: Decoded


@dataclass(frozen=True)
class Search:
    """What a search came to: a run, or how many steps deep it looked everywhere."""

    run: Run | None
    depth: int
    complete: bool
    """Every state that can be reached in these sorts was seen."""


def freeze(value: Any) -> Any:
    """A value as something that can be compared and hashed."""
    if isinstance(value, dict):
        return frozenset((k, freeze(v)) for k, v in value.items())
    return frozenset(value) if isinstance(value, set) else value


def arguments(event: TracedEvent, structure: Structure) -> Iterator[tuple[Any, ...]]:
    """All arguments of an event; sets of up to two members only."""
    choices = []
    for parameter in event.parameters:
        sort = parameter.sort
        if isinstance(sort, SetSort):
            members = list(structure.tuples(sort.elements))
            bare = [m[0] if len(m) == 1 else m for m in members]
            choices.append([frozenset(c) for n in (0, 1, 2) for c in itertools.combinations(bare, n)])
        else:
            choices.append(list(structure.elements(sort)))  # type: ignore[arg-type]
    yield from itertools.product(*choices)


def search(chapter: Chapter, obligation: Obligation, situation: Decoded, budget: int) -> Search:
    """Look for a run that ends in this violation, trying at most so many steps."""
    if obligation.row == "init":
        return Search(Run((), situation), 0, True)
    return _Searcher(chapter, obligation, situation, budget).search()


class _Searcher:
    def __init__(self, chapter: Chapter, obligation: Obligation, situation: Decoded, budget: int) -> None:
        self.chapter, self.obligation = chapter, obligation
        fixed = {p: v for p, v in situation.values.items() if p in obligation.constants}
        self.situation = replace(situation, values=fixed)  # a run may go wrong for other values of the variables
        self.structure, self.budget = situation.structure, budget
        own = obligation.event
        names = chapter.event_names
        self.events = [own if own is not None and own.name == n else chapter.event(n) for n in names]

    def search(self) -> Search:
        # What no init sets is arbitrary, so it may as well be what the counterexample has.
        start = {**self.situation.state, **initial(self.chapter, self.structure)}
        queue: deque[tuple[State, tuple[Step, ...]]] = deque([(start, ())])
        seen = {freeze(start)}
        while queue:
            state, steps = queue.popleft()
            for event, args, after in self._steps(state):
                bad = self._bad(state, event, args, after)
                if bad is not None:
                    return Search(Run((*steps, (event, args)), bad), len(steps) + 1, False)
                key = freeze(after)
                if key not in seen:
                    seen.add(key)
                    queue.append((after, (*steps, (event, args))))
            if self.budget <= 0:
                return Search(None, len(steps), False)
        return Search(None, len(steps), True)

    def _steps(self, state: State) -> Iterator[tuple[TracedEvent, tuple[Any, ...], State]]:
        for event in self.events:
            for args in arguments(event, self.structure):
                self.budget -= 1
                try:
                    after = fire(event, self.structure, state, args)
                except (NotEnabled, TypeError, KeyError):
                    continue
                if self._inside(event, after):
                    yield event, args, after

    def _inside(self, event: TracedEvent, after: State) -> bool:
        """No position has left the carrier."""
        return all(self._known(after[p], self.chapter.variables[p].sort) for p in {e.path for e in event.effects})

    def _known(self, value: Any, sort: AnySort) -> bool:
        if value is ABSENT:
            return True
        if isinstance(sort, MapSort):
            return all(self._known(v, sort.value) for v in value.values())
        if isinstance(sort, SetSort):
            first = sort.elements[0]
            return len(sort.elements) > 1 or first.kind != "variant" or all(self._known(v, first) for v in value)
        if sort.kind == "variant":
            return all(map(self._known, value.fields, sort.fields(value.case)))
        return sort.kind != "position" or value < len(self.structure.carriers[sort.name])

    def _bad(self, state: State, event: TracedEvent, args: tuple[Any, ...], after: State) -> Decoded | None:
        """The situation, if the step is of the kind that is looked for."""
        o = self.obligation
        if o.event is None:
            here = replace(self.situation, state=after)
            return here if self._violated(here, after) else None
        if event is not o.event:
            return None
        values: dict[Term, Any] = {**self.situation.values, **dict(zip(event.parameters, args, strict=True))}
        here = replace(self.situation, state=state, values=values)
        return here if self._violated(here, after) else None

    def _violated(self, here: Decoded, after: State) -> bool:
        try:
            return violated(self.obligation, here, after)
        except (TypeError, KeyError):
            return False
