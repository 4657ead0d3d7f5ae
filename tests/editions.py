"""The small chapters of `library` with other statements, and how they get known by name."""

from __future__ import annotations

import pytest
from library import Library

from kvspec import spec
from kvspec.proofs.mutation import campaign, equal, key, kill
from kvspec.spec.language import Chapter, Machine


def edition(**changes: object) -> type[Machine]:
    """The library with other declarations in the place of its own, or with some more."""
    own = {name: value for name, value in vars(Library).items() if name not in ("__dict__", "__weakref__")}
    made: type[Machine] = type(Machine)("Library", (Machine,), {**own, **changes})  # type: ignore[misc]
    return made


def register(patch: pytest.MonkeyPatch, **machines: type[Machine]) -> dict[str, Chapter]:
    """Have mutants of these judged under these names, as those of the specification's chapters are."""
    chapters = {name: Chapter(machine) for name, machine in machines.items()}
    for module in (campaign, equal, key, kill):
        patch.setattr(module, "load", lambda name: chapters[name] if name in chapters else spec.load(name))
    forget()
    return chapters


def forget() -> None:
    """What is known of chapters by name."""
    for cached in (key.row_keys, kill.known, kill.shared):
        cached.cache_clear()
