"""What will be looked at behind an operation, by what was looked at behind the one before.

A judge looks at much the same after each operation. To ask for all of it at once saves most round trips. What is asked
ahead has to make sense: nothing of a sequence that may be gone, and no range of one whose length may have changed.
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


class Ahead:
    """Follows the operations and looks of one target."""

    def __init__(self) -> None:
        self._before: dict[Look, None] = {}
        self._now: dict[Look, None] = {}
        self._operation = ("", True)
        self._names: set[str] = set()
        self._keeps: dict[tuple[str, bool], bool] = {}
        """Whether what an operation named was looked at behind it, the last time."""

    def operated(self, name: str, arguments: Sequence[Any]) -> None:
        """An operation begins."""
        if self._names:
            self._keeps[self._operation] = any(look.names & self._names for look in self._now)
        if self._now:
            self._before, self._now = self._now, {}
        self._operation, self._names = (name, True), _names(arguments)

    def failed(self) -> None:
        """The operation was answered with an error."""
        self._operation = (self._operation[0], False)

    def looked(self, look: Look) -> None:
        """This was looked at behind the operation."""
        self._now[look] = None

    def likely(self) -> list[Look]:
        """What can be asked ahead behind the operation."""
        keeps = self._keeps.get(self._operation, False)
        return [look for look in self._before if not look.names & self._names or (keeps and _is_of_all(look))]


def _is_of_all(look: Look) -> bool:
    """Whether it has no range that may have become too long: a name, and a rank or group at most."""
    return len(look.arguments) <= 2


def _names(arguments: Sequence[Any]) -> set[str]:
    """Names that an operation is about, as arguments or in a batch."""
    found = {a for a in arguments if isinstance(a, str)}
    for items in arguments:
        if isinstance(items, list | tuple) and items and isinstance(items[0], tuple):
            found |= {item[0] for item in items}
    return found
