"""Formulas as people read them: a name means one thing wherever it stands."""

from __future__ import annotations

from kvspec.spec.language import terms as T
from kvspec.spec.language.prose import render, told_apart
from kvspec.spec.language.terms import BOOL, NAT, Term


def less(left: Term, right: Term) -> Term:
    return T.make("lt", (left, right), BOOL)


def test_bound_variables_of_one_name_are_told_apart() -> None:
    outer, inner, third = (T.variable("n", NAT) for _ in range(3))
    nested = T.quantify("exists", (inner,), less(inner, outer))
    assert render(nested) == "∃ n ∈ Nat. n < n"
    assert render(told_apart(nested)) == "∃ n′ ∈ Nat. n′ < n"
    whole = T.quantify("forall", (outer,), T.implies(less(T.num(0), outer), nested))
    assert render(told_apart(whole)) == "∀ n ∈ Nat. 0 < n → (∃ n′ ∈ Nat. n′ < n)"
    one_after_the_other = T.quantify("forall", (outer, inner, third), T.conj([less(outer, inner), less(inner, third)]))
    assert render(told_apart(one_after_the_other)) == "∀ n ∈ Nat, n′ ∈ Nat, n′′ ∈ Nat. n < n′ ∧ n′ < n′′"


def test_names_that_are_not_mistaken_stay() -> None:
    n, m = T.variable("n", NAT), T.variable("n", NAT)
    beside = T.conj([T.quantify("exists", (v,), less(v, T.num(3))) for v in (n, m)])
    assert told_apart(beside) is beside
