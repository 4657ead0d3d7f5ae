"""That a text reads only what there is: no position before the first, no field of another case.

A solver gives such a term some value, the concrete reading none, so a proof could rest on it. Conditions are read in
their order, as a program would: what stands behind ``x ≠ 0 ∧`` or ``x = 0 ∨`` may read the position before x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import BOOL, Term
from kvspec.spec.language.traced import TracedEvent


def statement_demands(term: Term) -> Term:
    """What has to hold for a statement to mean something."""
    return T.conj(_needs(term))


def demands(event: TracedEvent) -> Term:
    """What has to hold, where the event is possible, for all its terms to mean something."""
    found: list[Term] = []
    known: list[Term] = []
    for requirement in event.requires:
        found += [T.implies(T.conj(known), d) for d in _needs(requirement.term)]
        known.append(requirement.term)
    for effect in event.effects:
        found += [T.implies(T.conj(known), d) for d in _needs(effect.condition)]
        here = T.conj((*known, effect.condition))
        found += [T.implies(here, d) for t in (*effect.keys, *effect.args) for d in _needs(t)]
    return T.conj(found)


def _needs(term: Term) -> Iterator[Term]:
    match term.op:
        case "and":
            yield from _in_order(term.args, lambda earlier: earlier)
        case "or":
            yield from _in_order(term.args, T.neg)
        case "implies":
            yield from _needs(term.args[0])
            yield from (T.implies(term.args[0], d) for d in _needs(term.args[1]))
        case "ite":
            condition, yes, no = term.args
            yield from _needs(condition)
            yield from (T.implies(condition, d) for d in _needs(yes))
            yield from (T.implies(T.neg(condition), d) for d in _needs(no))
        case _ if term.op in T.BINDERS:
            yield from (T.quantify("forall", term.data, d) for d in _needs(term.args[0]))
        case _:
            for part in term.args:
                yield from _needs(part)
    if term.op == "prev":
        yield T.neg(T.eq(term.args[0], T.make("zero", (), term.sort)))
    if term.op == "field":
        yield T.make("is_case", term.args, BOOL, term.data[0])


def _in_order(parts: tuple[Term, ...], passed: Callable[[Term], Term]) -> Iterator[Term]:
    known: list[Term] = []
    for part in parts:
        yield from (T.implies(T.conj(known), d) for d in _needs(part))
        known.append(passed(part))
