"""Fingerprints of terms: equal for texts that say the same, and only for them."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvspec.proofs.mutation.mutants import row_content
from kvspec.spec import load
from kvspec.spec.language import Chapter
from kvspec.spec.language import terms as T
from kvspec.spec.language.digest import digest, joined
from kvspec.spec.language.terms import BOOL, AnySort, MapSort, SetSort, Sort, Term

A, B = Sort("A", "id"), Sort("B", "id")
PARAMETERS = tuple(T.variable(n, A) for n in "ab")
STATES = tuple(T.make("state", (), SetSort((A,)), (n,)) for n in "st")

Skeleton = Any
"""A term without names: ``(operator, ...)``; variables are numbers, counted from the outermost, modulo how many
there are."""


def leaves() -> st.SearchStrategy[Skeleton]:
    number = st.integers(0, 3)
    return st.one_of(
        st.tuples(st.just("eq"), number, number),
        st.tuples(st.just("has"), st.integers(0, 1), number),
        st.tuples(st.just("num"), st.integers(0, 1)),
    )


def larger(inner: st.SearchStrategy[Skeleton]) -> st.SearchStrategy[Skeleton]:
    binders = st.sampled_from(["forall", "exists", "set_lambda", "map_lambda"])
    sorts = st.lists(st.sampled_from([A, B]), min_size=1, max_size=2).map(tuple)
    return st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["and", "or", "implies"]), inner, inner),
        st.tuples(binders, sorts, inner),
    )


SKELETONS = st.recursive(leaves(), larger, max_leaves=4)


def term(skeleton: Skeleton, variables: tuple[Term, ...] = PARAMETERS) -> Term:
    """The term, with bound variables of its own."""
    match skeleton:
        case ("eq", int(i), int(j)):
            return T.make("eq", (variables[i % len(variables)], variables[j % len(variables)]), BOOL)
        case ("has", int(s), int(i)):
            return T.make("has", (STATES[s], variables[i % len(variables)]), BOOL)
        case ("num", int(n)):
            return T.num(n)
        case (("forall" | "exists" | "set_lambda" | "map_lambda") as binder, tuple(sorts), body):
            own = tuple(T.variable("x", s) for s in sorts)
            made: dict[str, AnySort] = {"set_lambda": SetSort(sorts), "map_lambda": MapSort(sorts, BOOL)}
            sort = made.get(binder, BOOL)
            return T.make(binder, (term(body, (*variables, *own)),), sort, own)
    operator, *parts = skeleton
    return T.make(operator, tuple(term(p, variables) for p in parts), BOOL)


def alike(left: Term, right: Term) -> bool:
    """Equal but for the names of bound variables."""
    numbers = itertools.count()

    def same(t: Term, u: Term, here: dict[Term, int], there: dict[Term, int]) -> bool:
        if t.op == u.op == "var":
            return t.sort == u.sort and here.get(t, t) == there.get(u, u)
        if (t.op, t.sort, len(t.args)) != (u.op, u.sort, len(u.args)):
            return False
        if t.op in T.BINDERS:
            if [v.sort for v in t.data] != [v.sort for v in u.data]:
                return False
            for v, w in zip(t.data, u.data, strict=True):
                number = next(numbers)
                here, there = {**here, v: number}, {**there, w: number}
        elif t.data != u.data:
            return False
        return all(same(a, b, here, there) for a, b in zip(t.args, u.args, strict=True))

    return same(left, right, {}, {})


@given(SKELETONS)
def test_names_of_bound_variables_do_not_matter(skeleton: Skeleton) -> None:
    one, other = term(skeleton), term(skeleton)
    assert alike(one, other)
    assert digest([one], PARAMETERS) == digest([other], PARAMETERS)


@settings(max_examples=300)
@given(SKELETONS, SKELETONS)
def test_fingerprints_are_equal_where_terms_are_alike_and_only_there(left: Skeleton, right: Skeleton) -> None:
    one, other = term(left), term(right)
    assert (digest([one], PARAMETERS) == digest([other], PARAMETERS)) == alike(one, other)


def is_skeleton(part: Any) -> bool:
    return isinstance(part, tuple) and isinstance(part[0], str)


def places(skeleton: Skeleton) -> int:
    return 1 + sum(map(places, filter(is_skeleton, skeleton[1:])))


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Skeleton, Skeleton]:
    """A term, and the same with one leaf or one operator replaced."""
    whole = draw(SKELETONS)
    count = itertools.count()
    chosen = draw(st.integers(0, places(whole) - 1))

    def replaced(skeleton: Skeleton) -> Skeleton:
        if next(count) == chosen:
            match skeleton:
                case ("eq" | "has", _, _):
                    return (skeleton[0], *draw(st.tuples(st.integers(0, 1), st.integers(0, 3))))
                case ("num", _):
                    return draw(leaves())
                case ("not", _):
                    return skeleton[1]
                case ("and" | "or" | "implies", left, right):
                    return draw(st.sampled_from([(skeleton[0], right, left), ("and", left, right), left]))
                case (binder, sorts, body):
                    return draw(st.sampled_from([(binder, sorts[::-1], body), (binder, (A,), body), body]))
        return (skeleton[0], *(replaced(p) if is_skeleton(p) else p for p in skeleton[1:]))

    return whole, replaced(whole)


@settings(max_examples=300)
@given(neighbours())
def test_a_small_difference_shows(pair: tuple[Skeleton, Skeleton]) -> None:
    one, other = map(term, pair)
    assert (digest([one], PARAMETERS) == digest([other], PARAMETERS)) == alike(one, other)


def rule(body: Skeleton) -> Term:
    return term(("map_lambda", (A,), body))


def test_a_rule_that_does_not_look_at_its_variable_is_told_from_one_that_does() -> None:
    looks, does_not = rule(("eq", 0, 2)), rule(("eq", 0, 1))
    assert not alike(looks, does_not)
    a, b = PARAMETERS
    assert len({digest([t], PARAMETERS) for t in (looks, does_not)}) == 2
    assert len({digest([t], (b, a)) for t in (looks, does_not)}) == 2


def test_parameters_count_by_their_place() -> None:
    a, b = PARAMETERS
    less, more = T.make("lt", (a, b), BOOL), T.make("lt", (b, a), BOOL)
    assert digest([less], (a, b)) == digest([more], (b, a))
    assert len({digest([less], (a, b)), digest([more], (a, b)), digest([less, less], (a, b))}) == 3


def test_constants_sorts_and_the_order_of_terms_count() -> None:
    x, y = (T.make("state", (), sort, ("x",)) for sort in (A, B))
    texts = [[T.num(1)], [T.num(2)], [T.num(1), T.num(2)], [T.num(2), T.num(1)], [], [x], [y]]
    texts += [[T.make("static", (), A, ("x",))], [T.make("state", (), A, ("x", "x"))]]
    assert len({digest(text) for text in texts}) == len(texts)


def test_several_fingerprints_in_one_keep_their_order() -> None:
    assert len({joined(parts) for parts in (("a", "b"), ("b", "a"), ("ab",), ("a",), ())}) == 5
    assert joined(iter(["a", "b"])) == joined(("a", "b"))


def test_a_text_that_is_read_twice_says_the_same() -> None:
    once = load("prefix_cache")
    again = Chapter(once.cls)
    assert again.event("match").parameters != once.event("match").parameters
    for row in ("init", "invariant", *once.event_names):
        assert row_content(again, row) == row_content(once, row)
