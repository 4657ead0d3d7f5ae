"""Whether a mistake makes any difference: the same steps are possible, and they lead to the same states."""

from __future__ import annotations

from kvspec.proofs.mutation.mutants import Mutant
from kvspec.proofs.obligations import ChapterObligations, Obligation
from kvspec.spec import load
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import START, Chapter
from kvspec.spec.language.terms import BOOL, MapSort, SetSort, Term
from kvspec.spec.language.traced import TracedEvent


def same_row(name: str, chapter: Chapter, mutant: Mutant, stutter: bool) -> Obligation:
    """That under the invariants the mutant's row does what the chapter's own does.

    ``stutter``: steps that change nothing do not count, whether they are possible or not.
    """
    if mutant.row == START:
        assumed = tuple((s.name, s.term) for s in (*chapter.axioms, *chapter.naturals))
        goals = [_same(term, mutant.text.initial[path]) for path, term in chapter.initial.items()]
        constants: frozenset[Term] = frozenset()
    elif mutant.alike is not None:
        assumed, goals, constants = (), [T.quantify("forall", tuple(mutant.alike.free), mutant.alike)], frozenset()
    else:
        ours, theirs = chapter.event(mutant.row), mutant.text.event(mutant.row)
        assumed = tuple(ChapterObligations(name, chapter).assumed)
        alike = T.conj(_same(term, theirs.after[path]) for path, term in ours.after.items())
        if stutter:
            both = T.conj((ours.guard, theirs.guard, alike))
            goals = [T.implies(e.guard, T.disj((both, _idle(chapter, e)))) for e in (ours, theirs)]
        else:
            goals = [T.iff(ours.guard, theirs.guard), T.implies(ours.guard, alike)]
        constants = frozenset(ours.parameters)
    return Obligation(
        f"{mutant.id} (the same)", name, mutant.row, "the same", "the mistake makes no difference", mutant.where,
        assumed, T.conj(goals), constants,
    )  # fmt: skip


def _idle(chapter: Chapter, event: TracedEvent) -> Term:
    return T.conj(_same(term, chapter.env[path]) for path, term in event.after.items())


def implied(weaker: ChapterObligations, mutant: Mutant) -> Obligation:
    """That the other invariants say what the weakened one has lost."""
    full = next(s.term for s in load(mutant.chapter).invariants if s.name == mutant.invariant)
    return Obligation(
        f"{mutant.id} (the same)", mutant.chapter, mutant.row, "the same", "the others imply it", mutant.where,
        tuple(weaker.assumed), full, frozenset(),
    )  # fmt: skip


def _same(left: Term, right: Term) -> Term:
    """Two values of one variable agree everywhere."""
    if left is right:
        return T.TRUE
    sort = left.sort
    if isinstance(sort, MapSort):
        keys = tuple(T.variable("k", s) for s in sort.keys)
        at = [T.make("get", (whole, *keys), sort.value) for whole in (left, right)]
        return T.quantify("forall", keys, _same(at[0], at[1]))
    if isinstance(sort, SetSort):
        xs = tuple(T.variable("x", s) for s in sort.elements)
        members = [T.make("has", (whole, *xs), BOOL) for whole in (left, right)]
        return T.quantify("forall", xs, T.iff(members[0], members[1]))
    return T.eq(left, right)
