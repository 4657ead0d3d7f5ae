"""A fingerprint of what a term says: the same for the same text, whatever its bound variables are called inside."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from kvspec.spec.language.terms import BINDERS, Term

_closed: dict[Term, bytes] = {}


def digest(terms: Iterable[Term], parameters: Iterable[Term] = ()) -> str:
    """A fingerprint of some terms in this order; ``parameters`` are the variables that may occur free in them."""
    numbers = {v: n for n, v in enumerate(parameters)}
    memo: dict[tuple[Term, tuple[int, ...]], bytes] = {}
    whole = hashlib.sha256()
    for term in terms:
        whole.update(_digest(term, numbers, memo))
    return whole.hexdigest()[:16]


def joined(parts: Iterable[str]) -> str:
    """One fingerprint of several, or of any texts, in this order."""
    each = b"".join(hashlib.sha256(part.encode()).digest() for part in parts)
    return hashlib.sha256(each).hexdigest()[:16]


def _digest(term: Term, numbers: dict[Term, int], memo: dict[tuple[Term, tuple[int, ...]], bytes]) -> bytes:
    """Bound variables count by the place of their binder, so renaming them changes nothing."""
    if not term.free:
        return _closed.get(term) or _closed.setdefault(term, _node(term, numbers, memo))
    key = (term, tuple(numbers[v] for v in sorted(term.free, key=lambda v: v.data[1])))
    if key not in memo:
        memo[key] = _node(term, numbers, memo)
    return memo[key]


def _node(term: Term, numbers: dict[Term, int], memo: dict[tuple[Term, tuple[int, ...]], bytes]) -> bytes:
    if term.op == "var":
        return hashlib.sha256(f"var {numbers[term]} {term.sort}".encode()).digest()
    data: object = term.data
    if term.op in BINDERS:
        first = 1 + max((numbers[v] for v in term.free), default=-1)
        numbers = {v: numbers[v] for v in term.free} | {v: first + n for n, v in enumerate(term.data)}
        data = tuple(v.sort for v in term.data)
        if term.free and not term.args[0].free.issuperset(term.data):
            data = (*data, first)  # a rule that does not look at its variable must not pass for one that does
    parts = [f"{term.op} {term.sort} {data}".encode(), *(_digest(a, numbers, memo) for a in term.args)]
    return hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts)).digest()
