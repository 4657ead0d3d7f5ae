"""What could stand in the place of a term by mistake: another value of the same sort, one off, a part left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import BOOL, NAT, MapSort, SetSort, Sort, Term

Neighbour = tuple[str, Term]
"""How it differs (replace, off-by-one, weaken, negate), and the other term."""

MOST = 2
"""How many other values are tried in one place."""


def values(term: Term, pool: Sequence[Term]) -> Iterator[Neighbour]:
    """What could be written, or be written to, in the place of this term."""
    sort = term.sort
    if term.op in ("map_lambda", "set_lambda"):
        yield from _inside(term, _rules)
    elif isinstance(sort, SetSort) and term.op != "set_empty":
        yield "replace", T.make("set_empty", (), sort)
    elif sort == BOOL:
        yield "negate", T.neg(term)
    elif sort == NAT:
        yield "off-by-one", _more(term)
    elif isinstance(sort, Sort) and sort.kind == "position":
        yield "off-by-one", term.args[0] if term.op in ("next", "prev") else T.make("next", (term,), sort)
        yield from _others(term, pool)
    elif term.op == "case":
        yield from _fields(term, pool)
    elif not isinstance(sort, MapSort):
        yield from _others(term, pool)


def conditions(term: Term) -> Iterator[Neighbour]:
    """What a condition could be by mistake if it asked for a little more or less."""
    yield from _everywhere(term, _one_off)
    yield from _weaker(term)


def _weaker(term: Term) -> Iterator[Neighbour]:
    """A part of what is asked for is forgotten."""
    if term.op == "and":
        for i in range(len(term.args)):
            yield "weaken", T.conj(a for j, a in enumerate(term.args) if j != i)
    if term.op in ("and", "or"):
        for i, part in enumerate(term.args):
            for how, other in _weaker(part):
                yield how, T.rebuild(term, (*term.args[:i], other, *term.args[i + 1 :]))


def results(term: Term) -> Iterator[Neighbour]:
    """What a function could compute by mistake."""
    whole = ("off-by-one", _more(term)) if term.sort == NAT else ("negate", T.neg(term))
    yield from dict.fromkeys([whole, *_everywhere(term, _one_off), *_everywhere(term, _other_operator)])


_OTHER = {"add": "sub", "sub": "add", "mul": "add", "div": "mod", "mod": "div"}


def _other_operator(term: Term) -> Iterator[Neighbour]:
    if term.op in _OTHER:
        yield "replace", T.make(_OTHER[term.op], term.args, term.sort)


def _others(term: Term, pool: Sequence[Term]) -> Iterator[Neighbour]:
    same = [t for t in dict.fromkeys(pool) if t.sort == term.sort and t is not term]
    yield from (("replace", other) for other in same[:MOST])


def _fields(term: Term, pool: Sequence[Term]) -> Iterator[Neighbour]:
    for i, part in enumerate(term.args):
        for how, other in values(part, pool):
            yield how, T.make("case", (*term.args[:i], other, *term.args[i + 1 :]), term.sort, term.data)


def _more(term: Term) -> Term:
    return T.num(term.data + 1) if term.op == "num" else T.make("add", (term, T.num(1)), NAT)


def _rules(body: Term) -> Iterator[Neighbour]:
    """A bulk change whose rule has a part too few."""
    match body.op:
        case "ite":
            yield "weaken", body.args[2]
            yield "weaken", body.args[1]
        case "and":
            for i in range(len(body.args)):
                yield "weaken", T.conj(a for j, a in enumerate(body.args) if j != i)
        case "or":
            for i in range(len(body.args)):
                yield "weaken", T.disj(a for j, a in enumerate(body.args) if j != i)
        case "set_lambda":
            yield from _inside(body, _rules)
        case _ if body.sort == BOOL:
            yield "negate", T.neg(body)
            yield "weaken", T.TRUE
        case _ if body.sort == NAT:
            yield "off-by-one", _more(body)
    if body.op in ("and", "or"):
        for how, part, other in ((h, p, o) for p in body.args for h, o in _nested(p)):
            yield how, T.rebuild(body, tuple(other if a is part else a for a in body.args))


def _nested(part: Term) -> Iterator[Neighbour]:
    if part.op in ("and", "or"):
        yield from _rules(part)


def _inside(term: Term, change: Callable[[Term], Iterable[Neighbour]]) -> Iterator[Neighbour]:
    for how, body in change(term.args[0]):
        yield how, T.make(term.op, (body,), term.sort, term.data)


def _one_off(term: Term) -> Iterator[Neighbour]:
    match term.op:
        case "lt":
            yield "off-by-one", T.neg(T.make("lt", term.args[::-1], BOOL))
        case "next" | "prev":
            yield "off-by-one", term.args[0]
        case "num":
            yield "off-by-one", T.num(term.data + 1)
            if term.data:
                yield "off-by-one", T.num(term.data - 1)


def _everywhere(term: Term, change: Callable[[Term], Iterable[Neighbour]]) -> Iterator[Neighbour]:
    """The term with one change in one place."""
    if term.op == "not" and term.args[0].op == "lt":  # that is how ≤ is written
        yield "off-by-one", T.make("lt", term.args[0].args[::-1], BOOL)
        inside: Sequence[Term] = term.args[0].args
        for i, part in enumerate(inside):
            for how, other in _everywhere(part, change):
                yield how, T.neg(T.make("lt", cast("tuple[Term, ...]", (*inside[:i], other, *inside[i + 1 :])), BOOL))
        return
    yield from change(term)
    for i, part in enumerate(term.args):
        for how, other in _everywhere(part, change):
            yield how, T.rebuild(term, (*term.args[:i], other, *term.args[i + 1 :]))
