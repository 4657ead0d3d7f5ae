"""One state for all that count as one."""

from __future__ import annotations

from collections.abc import Iterable

from kvspec.model.concrete import Structure
from kvspec.model.exploring.cells import Cells, Packed
from kvspec.model.exploring.liveness import Alive
from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.symmetry import Exchange, Representative, Symmetry
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Path


class Quotient:
    """The representative of a state under one of `States`.

    Attributes:
        alive: what can be read; None for full states.
        symmetry: what can be exchanged; None unless states are renamed.
    """

    def __init__(self, chapter: Chapter, structure: Structure, states: States, kept: Iterable[Path] = ()) -> None:
        """``kept``: variables that count as read as a whole."""
        self.states = states
        self.cells = Cells(chapter, structure)
        self.alive = None if states is States.FULL else Alive(chapter, structure, self.cells, kept)
        renames = states in (States.RENAMED, States.CANONICAL)
        self.symmetry = Symmetry(chapter, structure) if renames else None
        self.forms = Representative(chapter, structure, self.symmetry, self.cells) if self.symmetry else None

    def representative(self, packed: Packed) -> Packed:
        """The state that stands for this one."""
        cleared = packed if self.alive is None else self.alive.clear(packed)
        if self.forms is None:
            return cleared
        return self.forms.renamed(cleared) if self.states is States.RENAMED else self.forms.canonical(cleared)

    def names(self, packed: Packed) -> Exchange:
        """What each element of a state is called in its representative."""
        if self.forms is None or self.alive is None:
            return {}
        cleared = self.alive.clear(packed)
        return self.forms.names(cleared) if self.states is States.RENAMED else self.forms.canonical_names(cleared)

    @property
    def cleared(self) -> tuple[str, ...]:
        """Names of the variables with cells that are cleared."""
        return () if self.alive is None else tuple(".".join(path) for path in self.alive.liveness.reads)

    @property
    def renamed(self) -> tuple[str, ...]:
        """Names of the sorts whose elements are renamed or exchanged."""
        if self.symmetry is None:
            return ()
        pointer = () if self.symmetry.pointer is None else (self.symmetry.pointer,)
        others = self.symmetry.others if self.states is States.CANONICAL else ()
        return (*pointer, *(name for name in others if name not in self.unchanged))

    @property
    def unchanged(self) -> tuple[str, ...]:
        """Names of the sorts that are left alone because they can be exchanged in too many ways."""
        return self.symmetry.unchanged if self.symmetry and self.states is States.CANONICAL else ()
