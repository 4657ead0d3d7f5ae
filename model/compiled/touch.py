"""Which instances of an invariant an event may have made false.

An instance can only have become false if a cell that it reads was written. So the cells that an event writes are
matched against the reads of each invariant; what the event has just stored there is put in, and often decides the
instance already when the text is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import BOOL, MapSort, Path, SetSort, Term
from kvspec.spec.language.traced import Effect, Statement, TracedEvent


@dataclass(frozen=True)
class Query:
    """Some values of the variables that satisfy all literals: a way to violate the statement."""

    statement: Statement
    variables: tuple[Term, ...]
    literals: tuple[Term, ...]


@dataclass(frozen=True)
class Check:
    """A query with some variables already known, to be asked after an event."""

    query: Query
    known: Mapping[Term, Term]
    literals: tuple[Term, ...]


_Touch = tuple[Sequence[Term], Sequence[Term], Sequence[Term]]
"""What a statement reads, what was written there, and conditions to add."""


def violations(statement: Statement) -> list[Query]:
    """The ways in which a statement can fail, each a conjunction over some variables."""
    found: list[Query] = []

    def split(term: Term, variables: tuple[Term, ...]) -> None:
        if term.op == "forall":
            split(term.args[0], variables + term.data)
        elif term.op == "and":
            for part in term.args:
                split(part, variables)
        elif term.op == "iff" and all(part.op == "has" for part in term.args):
            split(T.implies(*term.args), variables)  # one membership is enough to find where they could differ
            split(T.implies(*reversed(term.args)), variables)
        elif term.op == "implies" and term.args[0].op == "or" and all(part.op == "has" for part in term.args[0].args):
            for part in term.args[0].args:
                split(T.implies(part, term.args[1]), variables)
        elif term.op == "implies" and term.args[1].op == "forall":
            premise, conclusion = term.args
            split(T.implies(premise, conclusion.args[0]), variables + conclusion.data)
        else:
            found.append(Query(statement, variables, tuple(T.literals(T.neg(term)))))

    split(statement.term, ())
    return found


def py(text: str, sort: Any) -> Term:
    """A Python expression inside a term."""
    return T.make("py", (), sort, text)


class Names:
    """One Python name for each scalar that an event's effects mention, so that equal scalars are seen to be equal."""

    def __init__(self, event: TracedEvent) -> None:
        self.of: dict[Term, str] = {p: f"{p.data[0]}_" for p in event.parameters}

    def name(self, term: Term) -> str:
        return self.of.setdefault(term, f"a{len(self.of)}")

    def term(self, value: Term) -> Term:
        """The scalar behind a name."""
        return next((t for t, name in self.of.items() if value.op == "py" and name == value.data), value)

    def value(self, term: Term) -> Term:
        """The scalar as later terms may use it: a constant as itself, anything else by its name."""
        if term.op in ("static", "num", "zero", "true", "false"):
            return term
        if term.op == "case":
            return T.make("case", tuple(map(self.value, term.args)), term.sort, term.data)
        return py(self.name(term), term.sort)


class Touches:
    """The checks that follow an event."""

    def __init__(self, event: TracedEvent, names: Names, fold: Callable[[Term], Term | None]) -> None:
        self.event, self.names, self._fold_call = event, names, fold
        self.stored = self._stored()

    def checks(self, queries: Iterable[Query]) -> list[Check]:
        found: dict[tuple[Any, ...], Check] = {}
        for number, effect in enumerate(self.event.effects):
            for query in queries:
                for known, parts in self._touched(query, effect, number):
                    kept = [k for k in (self.simplify(p) for p in parts) if k is not T.TRUE]
                    if T.FALSE not in kept:
                        found.setdefault((query.statement.name, frozenset(kept)), Check(query, known, tuple(kept)))
        return list(found.values())

    # -- what is known after the event ---------------------------------------------------------------------------

    def _stored(self) -> dict[tuple[Any, ...], Term]:
        """Values of cells after the event: of variables that it writes once, whatever happens."""
        by_path: dict[Path, list[Effect]] = defaultdict(list)
        for e in self.event.effects:
            by_path[e.path].append(e)
        known: dict[tuple[Any, ...], Term] = {}
        for path, (e, *others) in by_path.items():
            if others or e.condition is not T.TRUE:
                continue
            keys = tuple(self.names.value(k) for k in e.keys)
            if e.kind == "assign" and isinstance(e.args[0].sort, T.Sort):
                known[path, keys] = self.names.value(e.args[0])
            elif e.kind in ("set_add", "set_remove"):
                element = tuple(map(self.names.value, e.args))
                known[path, keys, element] = T.TRUE if e.kind == "set_add" else T.FALSE
        return known

    def simplify(self, term: Term) -> Term:
        """The term with what is known put in and constants folded."""
        if term.op in T.BINDERS or (not term.args and term.op != "state"):
            return term
        args = tuple(map(self.simplify, term.args))
        built = T.rebuild(term, args)
        found: Term | None = None
        if built.op == "get" and built.args[0].op == "state":
            found = self.stored.get((built.args[0].data, built.args[1:]))
        elif built.op == "state" and isinstance(built.sort, T.Sort):
            found = self.stored.get((built.data, ()))
        elif built.op == "has":
            inner = built.args[0]
            path, keys = (inner.args[0], inner.args[1:]) if inner.op == "get" else (inner, ())
            if path.op == "state":
                found = self.stored.get((path.data, keys, built.args[1:]))
        elif built.op == "call":
            found = self._fold_call(built)
        elif built.op == "lt":
            found = self._compare(*built.args)
        return built if found is None else found

    def _compare(self, left: Term, right: Term) -> Term | None:
        """Order of two positions of which one is the neighbour of the other."""
        if left is right:
            return T.FALSE
        low, high = self.names.term(left), self.names.term(right)
        if (high.op == "next" and high.args[0] is low) or (low.op == "prev" and low.args[0] is high):
            return T.TRUE
        return None

    # -- what was touched ----------------------------------------------------------------------------------------

    def _touched(self, query: Query, effect: Effect, number: int) -> Iterable[tuple[dict[Term, Term], list[Term]]]:
        """The query restricted to instances that read a cell that the effect wrote."""
        bulk = not effect.keys and effect.kind == "assign"
        for literal in query.literals:
            if effect.path not in _read_by(literal):
                continue
            parents = _parents(literal)
            for t in T.subterms(literal):
                for touch in self._reads(t, parents[t], effect, number, _polarity(t, literal), query):
                    if bulk:
                        yield {}, list(query.literals)
                        continue
                    patterns, values, extra = touch
                    found = _bind(query, patterns, values)
                    if found is not None:
                        known, more = found
                        parts = [T.substitute(x, known) for x in (*query.literals, *more, *extra)]
                        yield _solved(query, known, parts)

    def _reads(
        self, t: Term, parents: list[Term], effect: Effect, number: int, polarity: int, query: Query
    ) -> Iterable[_Touch]:
        """Reads of a written cell that stand at this place of a statement."""
        if isinstance(t.sort, (SetSort, MapSort)) and all(p.op in ("has", "get") and p.args[0] is t for p in parents):
            return  # a membership or a value is looked at where it stands
        touch = self._occurrence(t, effect, polarity)
        if touch is None:
            return
        bounds = [p for p in parents if p.op == "lt" and p.args[1] is t and p.args[0] in query.variables]
        if t.op != "get" or not effect.keys or len(bounds) < len(parents):
            yield touch
            return
        for p in bounds:  # what is below a bound changes only between the old bound and the new one
            yield touch[0], touch[1], (self._between(p.args[0], effect, number),)

    def _between(self, x: Term, effect: Effect, number: int) -> Term:
        """That x lies between what a cell held and what it holds now."""
        value, cell = effect.args[0], effect.keys
        new = self.names.value(value)
        if value.op in ("next", "prev") and value.args[0].op == "get" and value.args[0].args[1:] == cell:
            return T.eq(x, new if value.op == "prev" else self.names.value(value.args[0]))
        ends = (T.make("least", (py(f"old{number}", new.sort), new), new.sort, f) for f in ("min", "max"))
        return T.make("range", (x, *ends), BOOL)

    def _occurrence(self, t: Term, effect: Effect, polarity: int) -> _Touch | None:
        """If the term reads what the effect wrote: what it reads, and what was written."""
        inner = t.args[0] if t.op == "has" else t
        whole = inner.args[0] if inner.op == "get" else inner
        if whole.op != "state" or whole.data != effect.path:
            return None
        keys = inner.args[1:] if inner.op == "get" else ()
        written = tuple(map(self.names.value, effect.keys))
        if t.op != "has":
            return keys, written, ()
        if effect.kind == "assign":
            return None if polarity > 0 and effect.args[0].op == "set_empty" else (keys, written, ())
        if polarity * (1 if effect.kind == "set_add" else -1) < 0:
            return None
        return (*keys, *t.args[1:]), (*written, *map(self.names.value, effect.args)), ()


def _solved(query: Query, known: dict[Term, Term], parts: list[Term]) -> tuple[dict[Term, Term], list[Term]]:
    """Variables that stand alone on one side of an equation are put in."""
    for part in parts:
        if part.op == "eq" and part.args[0] in query.variables and not part.args[1].free:
            one = {part.args[0]: part.args[1]}
            return _solved(query, known | one, [T.substitute(p, one) for p in parts])
    return known, parts


def _bind(
    query: Query, patterns: Sequence[Term], values: Sequence[Term]
) -> tuple[dict[Term, Term], list[Term]] | None:
    """Variables that the match gives, and conditions that it leaves; None if it cannot match."""
    known: dict[Term, Term] = {}
    more: list[Term] = []
    todo = list(zip(patterns, values, strict=True))
    while todo:
        pattern, value = todo.pop(0)
        if pattern in query.variables and pattern not in known:
            known[pattern] = value
        elif pattern.op == "case" and value.op == "case":
            if pattern.data != value.data:
                return None
            todo += list(zip(pattern.args, value.args, strict=True))
        elif pattern.op == "case":
            more.append(T.make("is_case", (value,), BOOL, pattern.data))
            todo += [(f, T.make("field", (value,), f.sort, (pattern.data, i))) for i, f in enumerate(pattern.args)]
        elif pattern.free <= set(query.variables):  # a variable of a statement inside may have any value
            more.append(T.eq(pattern, value))
    return known, more


@cache
def _read_by(literal: Term) -> frozenset[Path]:
    """State variables that a statement reads."""
    return frozenset(t.data for t in T.subterms(literal) if t.op == "state")


def _parents(literal: Term) -> dict[Term, list[Term]]:
    found: dict[Term, list[Term]] = defaultdict(list)
    for t in T.subterms(literal):
        for a in t.args:
            found[a].append(t)
    return found


def _polarity(t: Term, literal: Term) -> int:
    """1 if the literal is this membership, -1 if it is its negation, 0 otherwise."""
    if t.op != "has":
        return 0
    return 1 if literal is t else -1 if literal.op == "not" and literal.args[0] is t else 0
