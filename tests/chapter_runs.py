"""Runs of a chapter in a small structure, step by step, also with lines of an event forgotten."""

from __future__ import annotations

import functools
import linecache
from typing import Any

from kvspec.model.concrete import NotEnabled, State, Structure, evaluate, fire, initial
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Term
from kvspec.spec.language.traced import Site, Statement

Step = tuple[Any, ...]
"""The name of an event, and its arguments."""


class Run:
    """A run; after each step it is noted which statements are false."""

    def __init__(self, chapter: Chapter, structure: Structure) -> None:
        self.chapter, self.structure = chapter, structure
        self.state: State = initial(chapter, structure)
        self.broken: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        return self.state.get(tuple(name.split(".")), frozenset())

    def can(self, name: str, *args: Any) -> bool:
        try:
            fire(self.chapter.event(name), self.structure, self.state, args)
        except NotEnabled:
            return False
        return True

    def do(self, *steps: Step) -> Run:
        always, of_steps = _statements(self.chapter)
        for name, *args in steps:
            event = self.chapter.event(name)
            before, values = self.state, dict(zip(event.parameters, args, strict=True))
            self.state = fire(event, self.structure, before, tuple(args))
            self._look(always, self.state, {})
            self._look([t for t in of_steps if t.after == name], before, values)
        return self

    def _look(self, statements: list[Statement], state: State, values: dict[Term, Any]) -> None:
        self.broken |= {s.name for s in statements if not evaluate(s.term, self.structure, state, values)}


@functools.cache
def _statements(chapter: Chapter) -> tuple[list[Statement], list[Statement]]:
    """What is claimed of states, and of steps."""
    theorems = chapter.theorems
    always = [*chapter.invariants, *(t for t in theorems if t.after is None)]
    return always, [t for t in theorems if t.after is not None]


def without(chapter: Chapter, event: str, *lines: str) -> Chapter:
    """The chapter whose event forgets these lines, also where they stand in a helper."""
    left_out = {s.number for s in chapter.event(event).sites if _line_of(s) in lines}
    assert {_line_of(s) for s in chapter.event(event).sites} >= set(lines)
    return chapter.with_event(event, lambda site: None if site.number in left_out else site.terms)


def _line_of(site: Site) -> str:
    return linecache.getline(site.where.file, site.where.line).strip()
