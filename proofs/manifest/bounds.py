"""For each invariant the smallest scope in which it finds a mistake by exploration.

An exploration that stops before that scope could not have seen the invariant broken, so its verdict would be worth
nothing for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvspec.model.exploring.scopes import Scope
from kvspec.proofs.manifest.record import Bound
from kvspec.proofs.manifest.scopes import SCOPES
from kvspec.proofs.mutation.campaign import is_invariant
from kvspec.proofs.mutation.explored import Explore
from kvspec.proofs.mutation.kill import Fate, known, red_at
from kvspec.spec.language.chapter import START

TRIED = 16
"""How many mistakes are tried for an invariant in each scope."""


def bound(name: str, invariant: str, ids: Sequence[str], explore: Explore) -> Bound | None:
    """The first of a chapter's scopes in which one of these mistakes violates an invariant, if any does."""
    scopes = (Scope.parse(text, name) for text in SCOPES.get(name, ()))
    tried = (_bound(name, invariant, id, scope, explore) for scope in scopes for id in ids[:TRIED])
    return next((found for found in tried if found is not None), None)


def mistakes(invariant: str, fates: Sequence[Fate]) -> list[str]:
    """Mutants of events that break an invariant: first a change whose test is left out, then a check, last the start;
    of each kind first those that it was the first to kill."""
    return sorted(red_at(invariant, (f for f in fates if not is_invariant(f.id))), key=_plainness)


def _plainness(id: str) -> int:
    """How far a mistake is from those that people make: they forget a test."""
    row, _, change = id.partition(": ")
    if row.endswith(f".{START}"):
        return 3
    return 0 if change.endswith(" becomes always") else 1 if change.startswith("without require ") else 2


def _bound(name: str, invariant: str, id: str, scope: Scope, explore: Explore) -> Bound | None:
    outcome = explore(known(name)[id].text.saying_only(invariant), scope)
    if outcome is None or outcome.violation is None:
        return None
    run = outcome.violation.run
    return Bound(id, scope.text, len(run), tuple(map(str, run)))
