"""For each invariant the smallest scope in which it finds a mistake by exploration.

An exploration that stops before that scope could not have seen the invariant broken, so its verdict would be worth
nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvspec.model.exploring.scopes import Scope
from kvspec.proofs.manifest.record import Bound
from kvspec.proofs.manifest.scopes import SCOPES
from kvspec.proofs.mutation.campaign import is_invariant
from kvspec.proofs.mutation.explored import Explore
from kvspec.proofs.mutation.kill import Fate, known, red_at
from kvspec.spec import load

TRIED = 40
"""How many mistakes are tried for an invariant in each scope."""


def bounds(name: str, fates: Sequence[Fate], explore: Explore) -> Iterator[tuple[str, Bound]]:
    """The bound of each invariant that is violated in one of the chapter's scopes by one of its first mistakes."""
    scopes = [Scope.parse(text, name) for text in SCOPES.get(name, ())]
    for invariant in load(name).invariants:
        ids = mistakes(invariant.name, fates)[:TRIED]
        tried = (_bound(name, invariant.name, id, scope, explore) for scope in scopes for id in ids)
        for bound in tried:
            if bound is not None:
                yield invariant.name, bound
                break


def mistakes(invariant: str, fates: Sequence[Fate]) -> list[str]:
    """Mutants of events that break an invariant: first those that it was the first to kill."""
    return red_at(invariant, (f for f in fates if not is_invariant(f.id)))


def _bound(name: str, invariant: str, id: str, scope: Scope, explore: Explore) -> Bound | None:
    outcome = explore(known(name)[id].text.saying_only(invariant), scope)
    if outcome is None or outcome.violation is None:
        return None
    return Bound(id, scope.text, len(outcome.violation.run))
