"""The second answer: what a mistake does in the scopes that are explored of a chapter.

A mutant that the proofs let through is killed by a run that breaks a statement, or by what no run reaches any more: an
event that never happens, a premise that is never true, a witness that is lost. Only what is met without the mistake
counts, and only where both explorations were complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kvspec.model.exploring.outcome import Outcome
from kvspec.model.exploring.scopes import Scope
from kvspec.proofs.mutation.key import key
from kvspec.proofs.mutation.kill import EXPLORATION, KILLED, Fate
from kvspec.proofs.mutation.mutants import Mutant
from kvspec.spec.language.chapter import Chapter

Explore = Callable[[Chapter, Scope], Outcome | None]
"""Explores a text in a scope until something is violated; None where the text leaves the scope."""


def fate_by_exploration(
    alive: Fate, mutant: Mutant, chapter: Chapter, scopes: Sequence[Scope], explore: Explore
) -> Fate:
    """The fate of a mutant of an event that the proofs have left alive, once the scopes are explored."""
    met: set[str] = set()
    still: set[str] = set()
    idle = _changes_nothing(mutant)
    for scope in scopes:
        right = explore(chapter, scope)
        if idle and right is not None and mutant.row in right.fired:
            return _killed(alive, mutant, mutant.row, "it no longer changes anything")
        wrong = None if idle else explore(mutant.text, scope)
        if right is None or wrong is None:
            continue
        if wrong.violation is not None and right.violation is None:
            return _killed(alive, mutant, wrong.violation.name, f"in {scope.text}")
        if right.complete and wrong.complete:
            met |= _met(right)
            still |= _met(wrong)
    lost = sorted(met - still)
    return _killed(alive, mutant, lost[0], "no longer met in any scope") if lost else alive


def _changes_nothing(mutant: Mutant) -> bool:
    """Whether what was left of the event is a check; no exploration is needed to see that."""
    if mutant.row not in mutant.text.event_names:
        return False
    after = mutant.text.event(mutant.row).after
    return all(term is mutant.text.env[path] for path, term in after.items())


def _met(outcome: Outcome) -> set[str]:
    return {*outcome.fired, *outcome.reached}


def _killed(alive: Fate, mutant: Mutant, killer: str, note: str) -> Fate:
    return msgspec.structs.replace(
        alive, key=key(mutant, EXPLORATION), verdict=KILLED, by=EXPLORATION, killer=killer, note=note
    )
