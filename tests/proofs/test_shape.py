"""The quantifier shape of formulas."""

from __future__ import annotations

import pytest

from kvspec.proofs.shape import shape, strongest
from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import BOOL, SetSort, Sort, Term

A = Sort("A", "id")
x, y = T.variable("x", A), T.variable("y", A)
READ = T.make("state", (), SetSort((A,)), ("read",))


def has(v: Term) -> Term:
    return T.make("has", (READ, v), BOOL)


def every(v: Term, body: Term) -> Term:
    return T.make("forall", (body,), BOOL, (v,))


def some(v: Term, body: Term) -> Term:
    return T.make("exists", (body,), BOOL, (v,))


BOTH = T.make("eq", (x, y), BOOL)
P = T.make("static", (), BOOL, ("p",))


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (P, ""),
        (T.neg(P), ""),
        (every(x, has(x)), "∀"),
        (some(x, has(x)), "∃"),
        (every(x, every(y, BOTH)), "∀"),
        (every(x, some(y, BOTH)), "∀∃"),
        (some(x, every(y, BOTH)), "∃∀"),
        (T.neg(every(x, has(x))), "∃"),
        (T.neg(every(x, some(y, BOTH))), "∃∀"),
        (T.implies(every(x, has(x)), P), "∃"),
        (T.implies(P, every(x, has(x))), "∀"),
        (every(x, T.implies(every(y, BOTH), has(x))), "∀∃"),
        (every(x, T.implies(some(y, BOTH), has(x))), "∀"),
        (T.make("iff", (every(x, has(x)), P), BOOL), "∃"),
        (every(x, T.make("iff", (has(x), every(y, BOTH)), BOOL)), "∀∃"),
        (T.make("ite", (every(x, has(x)), P, T.neg(P)), BOOL), "∃"),
        (T.make("ite", (P, every(x, some(y, BOTH)), has(x)), BOOL), "∀∃"),
        (T.conj((every(x, has(x)), every(x, some(y, BOTH)))), "∀∃"),
        (T.disj((some(x, has(x)), P)), "∃"),
    ],
)
def test_the_longest_alternation(term: Term, expected: str) -> None:
    assert shape(term) == expected


def test_a_formula_and_its_negation_have_opposite_shapes() -> None:
    opposite = str.maketrans("∀∃", "∃∀")
    for term in (every(x, some(y, BOTH)), every(x, T.implies(has(x), some(y, BOTH))), some(x, has(x))):
        assert shape(T.make("not", (term,), BOOL)) == shape(term, positive=False) == shape(term).translate(opposite)


def test_the_strongest_of_several() -> None:
    assert strongest(["∀", "", "∀∃", "∃"]) == "∀∃" and strongest([]) == ""
    assert strongest(["∃", "∀"]) == strongest(["∀", "∃"])
