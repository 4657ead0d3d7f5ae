"""The term tree: what a traced piece of specification is, before anybody reads it.

Terms are hash-consed (equal terms are one object), so readings can keep their results per term. Every operator is
listed in `OPERATORS`; a reading that does not know one of them is incomplete, and a test says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sort:
    """A scalar sort: ``bool``, ``nat``, ``id`` (opaque), ``position`` (totally ordered, with a least element) or
    ``variant`` (finitely many cases with fields)."""

    name: str
    kind: str
    cases: tuple[tuple[str, tuple[Sort, ...]], ...] = ()

    def fields(self, case: str) -> tuple[Sort, ...]:
        return dict(self.cases)[case]


@dataclass(frozen=True)
class SetSort:
    """Sets of elements; an element is a tuple of scalars, usually of one."""

    elements: tuple[Sort, ...]


@dataclass(frozen=True)
class MapSort:
    """Total maps from a tuple of scalars to a scalar or to a set."""

    keys: tuple[Sort, ...]
    value: Sort | SetSort


AnySort = Sort | SetSort | MapSort
Path = tuple[str, ...]

BOOL = Sort("Bool", "bool")
NAT = Sort("Nat", "nat")

OPERATORS: Mapping[str, str] = {
    "true": "the true statement",
    "false": "the false statement",
    "not": "negation",
    "and": "conjunction of any number of statements",
    "or": "disjunction of any number of statements",
    "implies": "implication",
    "iff": "equivalence",
    "ite": "choice by a condition, of scalars, sets or maps",
    "eq": "equality of scalars",
    "lt": "strict order of naturals or positions",
    "num": "a numeral",
    "add": "sum of naturals",
    "sub": "difference of naturals (may be negative inside a formula)",
    "mul": "product of naturals",
    "div": "quotient, rounded down",
    "mod": "remainder",
    "zero": "the least position",
    "next": "the position after a position",
    "prev": "the position before a position that is not the least",
    "forall": "for all values of the bound variables",
    "exists": "for some values of the bound variables",
    "var": "a bound variable or an event parameter",
    "state": "a state variable before the step",
    "static": "a constant or function that no event changes",
    "call": "application of a static function",
    "get": "the value of a map",
    "has": "membership",
    "empty": "the set has no member",
    "only": "the set has exactly this member",
    "size": "the number of members",
    "set_empty": "the empty set",
    "set_add": "the set with one more member",
    "set_remove": "the set without a member",
    "set_lambda": "the set of all elements with a property",
    "store": "the map with another value for one key",
    "map_lambda": "the map given by a rule",
    "case": "a variant value of a given case",
    "is_case": "the variant value has this case",
    "field": "a field of a variant value that has the given case",
}


class Term:
    """One node; compare with ``is``. Build with `make`."""

    __slots__ = ("_free", "args", "data", "op", "sort")

    op: str
    args: tuple[Term, ...]
    sort: AnySort
    data: Any
    _free: frozenset[Term] | None

    def __repr__(self) -> str:
        inner = ", ".join(map(repr, self.args))
        label = self.op if self.data is None else f"{self.op}[{self.data}]"
        return f"{label}({inner})" if inner else label

    @property
    def free(self) -> frozenset[Term]:
        """Variables that occur free."""
        if self._free is None:
            inner: frozenset[Term] = frozenset().union(*(a.free for a in self.args))
            if self.op == "var":
                inner |= {self}
            elif self.op in BINDERS:
                inner -= frozenset(self.data)
            self._free = inner
        return self._free


BINDERS = frozenset({"forall", "exists", "set_lambda", "map_lambda"})
_terms: dict[tuple[Any, ...], Term] = {}
_fresh = itertools.count()


def make(op: str, args: tuple[Term, ...], sort: AnySort, data: Any = None) -> Term:
    """The one term with this content."""
    key = (op, tuple(id(a) for a in args), sort, data)
    found = _terms.get(key)
    if found is None:
        found = Term.__new__(Term)
        found.op, found.args, found.sort, found.data, found._free = op, args, sort, data, None
        _terms[key] = found
    return found


TRUE = make("true", (), BOOL)
FALSE = make("false", (), BOOL)


def variable(name: str, sort: AnySort) -> Term:
    """A variable that differs from all others, whatever their names."""
    return make("var", (), sort, (name, next(_fresh)))


def conj(parts: Iterable[Term]) -> Term:
    flat: dict[Term, None] = {}
    for part in parts:
        if part is FALSE:
            return FALSE
        flat.update(dict.fromkeys(part.args if part.op == "and" else () if part is TRUE else (part,)))
    return TRUE if not flat else next(iter(flat)) if len(flat) == 1 else make("and", tuple(flat), BOOL)


def disj(parts: Iterable[Term]) -> Term:
    flat: dict[Term, None] = {}
    for part in parts:
        if part is TRUE:
            return TRUE
        flat.update(dict.fromkeys(part.args if part.op == "or" else () if part is FALSE else (part,)))
    return FALSE if not flat else next(iter(flat)) if len(flat) == 1 else make("or", tuple(flat), BOOL)


def neg(part: Term) -> Term:
    if part is TRUE:
        return FALSE
    if part is FALSE:
        return TRUE
    return part.args[0] if part.op == "not" else make("not", (part,), BOOL)


def implies(premise: Term, conclusion: Term) -> Term:
    if premise is TRUE or conclusion is TRUE:
        return conclusion
    if premise is FALSE:
        return TRUE
    return make("implies", (premise, conclusion), BOOL)


def iff(left: Term, right: Term) -> Term:
    for one, other in ((left, right), (right, left)):
        if one is TRUE:
            return other
        if one is FALSE:
            return neg(other)
    return TRUE if left is right else make("iff", (left, right), BOOL)


def ite(condition: Term, yes: Term, no: Term) -> Term:
    if condition is TRUE or yes is no:
        return yes
    if condition is FALSE:
        return no
    if yes.sort == BOOL and (yes in (TRUE, FALSE) or no in (TRUE, FALSE)):
        return conj((implies(condition, yes), disj((condition, no))))
    return make("ite", (condition, yes, no), yes.sort)


def eq(left: Term, right: Term) -> Term:
    if left is right:
        return TRUE
    if left.sort == BOOL:
        return iff(left, right)
    if left.op == right.op == "num":
        return FALSE
    return make("eq", (left, right), BOOL)


def num(value: int) -> Term:
    return make("num", (), NAT, value)


def quantify(op: str, variables: tuple[Term, ...], body: Term) -> Term:
    used = tuple(v for v in variables if v in body.free)
    if not used:
        return body
    if body.op == op:
        used, body = used + body.data, body.args[0]
    return make(op, (body,), BOOL, used)


def substitute(term: Term, values: Mapping[Term, Term], memo: dict[Term, Term] | None = None) -> Term:
    """The term with variables replaced; bound variables are unique, so nothing is captured."""
    memo = {} if memo is None else memo

    def walk(t: Term) -> Term:
        if t in values:
            return values[t]
        if t.free.isdisjoint(values):
            return t
        done = memo.get(t)
        if done is None:
            done = memo[t] = rebuild(t, tuple(walk(a) for a in t.args))
        return done

    return walk(term)


def rebuild(term: Term, args: tuple[Term, ...]) -> Term:
    """The same operator on other arguments, simplified where a constant decides it."""
    match term.op:
        case "not":
            return neg(args[0])
        case "and":
            return conj(args)
        case "or":
            return disj(args)
        case "implies":
            return implies(*args)
        case "iff":
            return iff(*args)
        case "ite":
            return ite(*args)
        case "eq":
            return eq(*args)
        case "forall" | "exists":
            return quantify(term.op, term.data, args[0])
    return make(term.op, args, term.sort, term.data)


def literals(term: Term) -> Iterable[Term]:
    """A conjunction in pieces, negations pushed inward."""
    if term.op == "and":
        for a in term.args:
            yield from literals(a)
    elif term.op == "not" and term.args[0].op == "implies":
        premise, conclusion = term.args[0].args
        yield from literals(premise)
        yield from literals(neg(conclusion))
    elif term.op == "not" and term.args[0].op == "or":
        for a in term.args[0].args:
            yield from literals(neg(a))
    else:
        yield term


def subterms(term: Term) -> Iterable[Term]:
    """Every distinct subterm once, the term itself first."""
    seen: set[Term] = set()
    stack = [term]
    while stack:
        t = stack.pop()
        if t not in seen:
            seen.add(t)
            yield t
            stack.extend(t.args)
