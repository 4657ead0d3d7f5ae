"""Obligations made ready for a solver: hypotheses that several share are lowered once.

A `Group` holds the obligations of one row that have the same hypotheses. The variables under the outermost universal
quantifiers of a goal become constants, with fresh names: a hypothesis may bind the same variable.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from kvspec.proofs.finite import FiniteSolver
from kvspec.proofs.lowering import Lowering, order_axioms, prev_axioms
from kvspec.proofs.obligations import ChapterObligations, Obligation
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Term


@dataclass(frozen=True)
class Problem:
    """One obligation in first-order logic: `Group.base`, ``facts`` and the negated goal have no model."""

    obligation: Obligation
    goal: Term
    facts: tuple[Term, ...]
    lowering: Lowering
    witnesses: dict[Term, Term]
    """The goal's outer variables and the constants that stand for them."""

    @property
    def whole(self) -> Term:
        """The goal with its outer variables quantified, for those who ask for its shape."""
        return T.quantify("forall", tuple(self.witnesses.values()), self.goal)

    @property
    def refutation(self) -> tuple[Term, ...]:
        """What a counterexample satisfies beside the base."""
        return (*self.facts, T.neg(self.goal))


class Shared:
    """What the groups of a chapter have in common: its axioms and invariants are lowered once."""

    def __init__(self, obligations: ChapterObligations) -> None:
        self.chapter = obligations.chapter
        self.lowering = Lowering(self.chapter)
        self.assumed = frozenset(self.lowering.formula(term) for _, term in obligations.assumed)
        sorts = [s for s in self.chapter.sorts.values() if s.kind == "position"]
        self.order = tuple(f.term for s in sorts for f in (*order_axioms(s), *prev_axioms(s)))
        """That positions are ordered."""
        self.finite: dict[tuple[object, ...], FiniteSolver] = {}
        """Solvers of the finite reading, by scope and what they assume."""

    def reading(self, chapter: Chapter) -> Shared:
        """The same for another text of the chapter, with the same axioms and invariants."""
        other = copy.copy(self)
        other.chapter = chapter
        return other


class Group:
    """Obligations with the same hypotheses."""

    def __init__(self, shared: Shared, obligations: list[Obligation]) -> None:
        self.shared, self.obligations = shared, obligations
        self.chapter = shared.chapter
        self.first = obligations[0]

    @cached_property
    def lowering(self) -> Lowering:
        return self.shared.lowering.fork(self.first.constants)

    @cached_property
    def hypotheses(self) -> tuple[Term, ...]:
        return tuple(self.lowering.formula(h) for _, h in self.first.hypotheses)

    @cached_property
    def facts(self) -> tuple[Term, ...]:
        """What the translation of the hypotheses needs, without what is said of positions in general."""
        assert self.hypotheses is not None
        return tuple(f.term for f in self.lowering.facts.values())

    @property
    def base(self) -> tuple[Term, ...]:
        return (*self.hypotheses, *self.facts, *self.shared.order)

    def problem(self, obligation: Obligation) -> Problem:
        known = set(self.facts)
        goal, witnesses = opened(obligation.goal)
        lowering = self.lowering.fork(witnesses.values())
        lowered = lowering.formula(goal)
        more = tuple(f.term for f in lowering.facts.values() if f.term not in known)
        more += tuple(T.neg(T.make("lt", (w, T.num(0)), T.BOOL)) for w in witnesses.values() if w.sort == T.NAT)
        return Problem(obligation, lowered, more, lowering, witnesses)


def opened(goal: Term) -> tuple[Term, dict[Term, Term]]:
    """The goal without its outermost universal quantifiers, and what stands for their variables."""
    witnesses: dict[Term, Term] = {}
    while goal.op == "forall":
        fresh = {v: T.variable(v.data[0], v.sort) for v in goal.data}
        witnesses |= fresh
        goal = T.substitute(goal.args[0], fresh)
    return goal, witnesses


def grouped(obligations: ChapterObligations) -> Iterator[Group]:
    """All obligations of a chapter by row and hypotheses, in the order of their first members."""
    return grouped_by(Shared(obligations), obligations)


def grouped_by(shared: Shared, obligations: Iterable[Obligation]) -> Iterator[Group]:
    """The same of some obligations of that chapter, or of others about its state."""
    groups: dict[tuple[str, tuple[Term, ...]], list[Obligation]] = {}
    for o in obligations:
        groups.setdefault((o.row, tuple(h for _, h in o.hypotheses)), []).append(o)
    for members in groups.values():
        yield Group(shared, members)
