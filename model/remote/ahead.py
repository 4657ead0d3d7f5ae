"""What will be looked at behind an operation, by what was looked at behind the one before.

A judge looks at much the same after each operation. To ask for all of it together with the operation saves most round
trips. What is asked so has to make sense: nothing of a sequence that the operation may end, and no range of one whose
length it may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Look(NamedTuple):
    """A method that only looks, and its arguments."""

    name: str
    arguments: tuple[Any, ...]

    @property
    def names(self) -> set[str]:
        """What it is about."""
        return {a for a in self.arguments if isinstance(a, str)}


class Habit(NamedTuple):
    """What is looked at behind operations of a kind that are done: anything, and of it what the operation names."""

    looks: bool = False
    looks_at_names: bool = False


class Ahead:
    """Follows the operations and looks of one target.

    Args:
        habits: what is known from other targets, by the names of operations; it is added to.
    """

    def __init__(self, habits: dict[str, Habit]) -> None:
        self._habits = habits
        self._before: dict[Look, None] = {}
        self._now: dict[Look, None] = {}
        self._operation = ""
        self._names: set[str] = set()

    def operated(self, name: str, arguments: Sequence[Any]) -> list[Look]:
        """An operation begins; what to ask together with it."""
        if self._operation:
            of_names = any(look.names & self._names for look in self._now)
            self._habits[self._operation] = Habit(bool(self._now), of_names)
        self._before, self._now = self._now, {}
        self._operation, self._names = name, _names(arguments)
        habit = self._habits.get(name, Habit())
        return [look for look in self._before if habit.looks and self._makes_sense(look, habit.looks_at_names)]

    def failed(self) -> None:
        """The operation was answered with an error: what is looked at behind it is no habit."""
        self._operation = ""

    def looked(self, look: Look) -> None:
        """This was looked at behind the operation."""
        self._now[look] = None

    def _makes_sense(self, look: Look, looks_at_names: bool) -> bool:
        """A look at what the operation names is one at all of it: with a rank or a group at most, and with no range."""
        return not look.names & self._names or (looks_at_names and len(look.arguments) <= 2)


def _names(arguments: Sequence[Any]) -> set[str]:
    """Names that an operation is about, as arguments or in a batch."""
    found = {a for a in arguments if isinstance(a, str)}
    for items in arguments:
        if isinstance(items, list | tuple) and items and isinstance(items[0], tuple):
            found |= {item[0] for item in items}
    return found
