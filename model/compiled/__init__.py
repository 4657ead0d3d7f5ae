"""The concrete reading made fast: each event of a chapter becomes one Python function.

The function checks what the event requires, changes the state in place and re-evaluates the invariants on what it
touched (`touch`); variables that this leaves open are found through the other conditions: members of a set, positions
below a bound, inverse indexes (`text`). `Compiled.sweep` evaluates everything.

Values are as in `kvspec.model.concrete`, except that a variant is a plain tuple ``(case, *fields)``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace as replace_in
from typing import Any

from kvspec.model.compiled.events import Broken, Events, InvariantError, StepError, replace, replace_map
from kvspec.model.compiled.text import Carrier, default
from kvspec.model.compiled.touch import violations
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.errors import SpecError
from kvspec.spec.language.terms import AnySort, MapSort, Path, SetSort, Term
from kvspec.spec.language.traced import TracedEvent

__all__ = ["Broken", "Carrier", "Compiled", "InvariantError", "StepError"]


class Compiled:
    """A chapter, its state, and a function for each event.

    Args:
        chapter: what to run.
        statics: static constants (values), sets and functions (callables), by path.
        carriers: for each sort that must be enumerated, its elements.
        watch: re-evaluate invariants after each event.
        ghosts: keep ghosts, such as what there was before a call; without them the invariants that speak of them are
            left out. In a large state they take longer than everything else.
    """

    def __init__(
        self,
        chapter: Chapter,
        statics: Mapping[Path, Any],
        carriers: Mapping[str, Carrier],
        watch: bool = True,
        ghosts: bool = True,
    ) -> None:
        self.chapter = chapter
        hidden = frozenset() if ghosts else frozenset(p for p, v in chapter.variables.items() if v.ghost)
        self.state: dict[Path, Any] = {p: _blank(v.sort) for p, v in chapter.variables.items()}
        said = [*chapter.lower_invariants, *chapter.invariants]
        self.statements = [s for s in said if not _mentions(s.term, hidden)]
        self._writer = Events(chapter, self.state, statics, carriers)
        traced = [_without(chapter.event(n), hidden) for n in chapter.event_names]
        queries = [q for s in self.statements for q in violations(s)]
        for event in traced:
            self._writer.prepare(event, queries if watch else [])
        self._sweeps = self._writer.sweeps(queries)
        self.events: dict[str, Callable[..., None]] = {e.name: self._writer.function(e) for e in traced}
        self._starts = {p: self._writer.start(t) for p, t in chapter.initial.items() if t.op != "state"}
        self.restart({})

    def restart(self, statics: Mapping[Path, Any]) -> None:
        """The chapter's start state, with another meaning for some static functions and sets.

        Compiling takes longer than many runs, so one machine serves pools of all sizes.
        """
        self._writer.rebind(statics)
        start = {p: _blank(v.sort) for p, v in self.chapter.variables.items()}
        for path, initial in self._starts.items():
            value = initial()
            start[path] = value if isinstance(value, (dict, set, frozenset)) else [value]
        self.load(start)

    def load(self, state: Mapping[Path, Any]) -> None:
        """Take over another state, given as in `state`; sets and maps are copied."""
        for path, mine in self.state.items():
            new = state[path]
            if isinstance(mine, dict):
                replace_map(mine, {k: set(v) if isinstance(v, (set, frozenset)) else v for k, v in new.items()})
            elif isinstance(mine, set):
                replace(mine, new)
            else:
                mine[0] = new[0]
        self._writer.rebuild_indexes()

    def sweep(self) -> list[Broken]:
        """Every invariant, on the whole state; at most one violation each."""
        return [broken for check in self._sweeps if (broken := check()) is not None]

    def value(self, term: Term, **values: Any) -> Any:
        """The value of a term in the current state; variables by name."""
        return self._writer.evaluate(term, values)


def _mentions(term: Term, hidden: Collection[Path]) -> bool:
    return any(t.op == "state" and t.data in hidden for t in T.subterms(term))


def _without(event: TracedEvent, hidden: Collection[Path]) -> TracedEvent:
    """The event, which leaves some variables alone; nothing else that it does may depend on them."""
    if not hidden:
        return event
    effects = [effect for effect in event.effects if effect.path not in hidden]
    read = (term for effect in effects for term in (*effect.keys, *effect.args, effect.condition))
    terms = (*(r.term for r in event.requires), *read)
    if any(_mentions(term, hidden) for term in terms):
        raise SpecError(f"{event.name} depends on a ghost", "an event that means the same without ghosts")
    return replace_in(event, effects=effects, after={p: t for p, t in event.after.items() if p not in hidden})


def _blank(sort: AnySort) -> Any:
    if isinstance(sort, SetSort):
        return set()
    return {} if isinstance(sort, MapSort) else [default(sort)]
