"""The small chapters of `library` with other statements, and how they get known by name."""

from __future__ import annotations

from library import Library

from kvspec.spec.language import Machine


def edition(**changes: object) -> type[Machine]:
    """The library with other declarations in the place of its own, or with some more."""
    own = {name: value for name, value in vars(Library).items() if name not in ("__dict__", "__weakref__")}
    made: type[Machine] = type(Machine)("Library", (Machine,), {**own, **changes})  # type: ignore[misc]
    return made
