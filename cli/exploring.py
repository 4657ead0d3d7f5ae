"""Explorations that other commands need: a chapter in the scopes that its manifest is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvspec.model.exploring.outcome import Outcome
    from kvspec.model.exploring.scopes import Scope
    from kvspec.spec.language import Chapter

MAX_STATES = 5_000_000


def explored(chapter: Chapter, scope: Scope) -> Outcome:
    """Everything in a scope, in canonical states, on the processor."""
    from kvspec.model.batched import Explorer
    from kvspec.model.exploring.outcome import States

    return Explorer(
        chapter, scope.structure, states=States.CANONICAL, given=scope.given, scope=scope.text, max_states=MAX_STATES
    ).explore()


def explored_if_inside(chapter: Chapter, scope: Scope) -> Outcome | None:
    """The same of a text with a mistake in it, which may lead out of the scope."""
    from kvspec.model.batched import OutOfRange

    try:
        return explored(chapter, scope)
    except OutOfRange:
        return None


def explore_scopes(
    name: str, tables: Sequence[Mapping[str, tuple[str, ...]]], each: Callable[[Outcome], None]
) -> list[Outcome]:
    """A chapter in the scopes of some tables; ``each`` is told of every one."""
    from kvspec.model.exploring.scopes import Scope
    from kvspec.spec import load

    found = []
    for text in (text for table in tables for text in table.get(name, ())):
        outcome = explored(load(name), Scope.parse(text, name))
        each(outcome)
        found.append(outcome)
    return found
