"""What an exploration is asked for and what it found; the same words for every explorer."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvspec.model.concrete import Variant


class States(enum.Enum):
    """Which states count as one. Each is coarser than the one before (`docs/exploration.md` says why that is sound)."""

    FULL = "full"
    """Two states are one if every cell is equal."""
    LIVE = "live"
    """Cells that nothing can read any more are cleared."""
    RENAMED = "renamed"
    """Live cells, and what pointers lead to (blocks) is numbered by first use."""
    CANONICAL = "canonical"
    """Renamed, and exchangeable elements of the other sorts (equal sequences) are exchanged."""


@dataclass(frozen=True)
class Step:
    """One event with its arguments, as the structure has them."""

    event: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return " ".join((self.event, *map(shown, self.args)))


def shown(value: Any) -> str:
    """A value as text; the members of a set in an order of their own."""
    match value:
        case str():
            return value
        case Variant(case, fields):
            return f"{case}({', '.join(map(shown, fields))})"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(shown, value))) + "}"
        case _:
            return repr(value)


@dataclass(frozen=True)
class Violation:
    """What went wrong first, and a shortest run to it.

    ``kind`` is invariant (false after the last step of the run, or at the start if the run is empty), theorem (the
    same, or false of the last step if the theorem speaks of a step) or call (the last step calls an event that is not
    allowed there; ``name`` is then ``event->callee/pre.N``).
    """

    kind: str
    name: str
    sentence: str
    run: tuple[Step, ...]


@dataclass(frozen=True)
class Outcome:
    """What an exploration came to.

    Attributes:
        scope: the scope, as text.
        states: which states count as one.
        distinct: states found, each once.
        generated: steps taken, one for each enabled instance of an event in each distinct state.
        depth: the length of the longest of the shortest runs.
        levels: how many states are first reached after 0, 1, 2, ... steps.
        complete: every state was seen; false if a budget ended the exploration, or a violation did.
        violation: the first at the least depth, if any.
        fired: for each event that changed a cell which can be read before the step, after how many steps the first such
            step ended; every step into another state that counts as one does.
        reached: for each goal of `coverage.goals` that was met, after how many steps.
        cleared: state variables of which unread cells were cleared.
        kept: state variables that had to count as read as a whole, because a cell came to life without being written.
        renamed: sorts whose elements were renamed or exchanged.
        unchanged: sorts with exchangeable elements that were left alone, because there are too many exchanges.
        covers: what else this exploration settles, if anything (every larger pool).
    """

    scope: str
    states: States
    distinct: int
    generated: int
    depth: int
    levels: tuple[int, ...]
    complete: bool
    violation: Violation | None = None
    fired: Mapping[str, int] = field(default_factory=dict)
    reached: Mapping[str, int] = field(default_factory=dict)
    cleared: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    covers: str | None = None
