"""The concrete reading: terms evaluated on Python sets and dicts.

This is the definition of what a term means on a finite state, one line for each operator. It is exact and slow;
`kvspec.model.compiled` makes the same fast, and a test holds the two together.

Values: statements are ``bool``, naturals and positions ``int``, opaque ids any hashable object, variants `Variant`;
a set is a ``set`` or ``frozenset`` of bare elements (tuples where an element has several components), a map a ``dict``
from bare keys (or tuples). A map has no value where nothing was stored: there `ABSENT` is read, which equals only
itself and is neither below nor above anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import MapSort, Path, SetSort, Sort, Term, subterms
from kvspec.spec.language.traced import Requirement, TracedEvent


class Variant(NamedTuple):
    """A value of a variant sort."""

    case: str
    fields: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.case}({', '.join(map(repr, self.fields))})"


class Absent:
    """What a map holds where nothing was stored."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()

State = dict[Path, Any]
Values = Mapping[Term, Any]


class NotEnabled(Exception):
    """An event was fired although something that it requires does not hold."""

    def __init__(self, event: TracedEvent, requirement: Requirement) -> None:
        self.event, self.requirement = event, requirement
        super().__init__(f"{event.name} is not allowed here: its requirement at {requirement.where} does not hold")


@dataclass
class Structure:
    """What the opaque words of a chapter mean: the elements of each sort, and the static constants and functions.

    A static function is a dict from its bare argument (a tuple of several) to its value, or a callable.
    """

    carriers: Mapping[str, list[Any]]
    statics: Mapping[Path, Any] = field(default_factory=dict)

    def elements(self, sort: Sort) -> Iterator[Any]:
        """All values of a scalar sort."""
        if sort.kind == "bool":
            yield from (False, True)
        elif sort.kind == "variant":
            for name, fields in sort.cases:
                for values in itertools.product(*(list(self.elements(f)) for f in fields)):
                    yield Variant(name, values)
        else:
            yield from self.carriers[sort.name]

    def tuples(self, sorts: tuple[Sort, ...]) -> Iterator[tuple[Any, ...]]:
        return itertools.product(*(list(self.elements(s)) for s in sorts))

    def apply(self, path: Path, args: tuple[Any, ...]) -> Any:
        function = self.statics[path]
        return function(*args) if callable(function) else function.get(bare(args), ABSENT)


def bare(items: tuple[Any, ...]) -> Any:
    """One component as itself, several as a tuple."""
    return items[0] if len(items) == 1 else items


def default(sort: Sort | SetSort) -> Any:
    """What a map to this sort holds where nothing was stored."""
    if isinstance(sort, SetSort):
        return frozenset()
    return {"nat": 0, "position": 0, "bool": False}.get(sort.kind, ABSENT)


def evaluate(term: Term, structure: Structure, state: Mapping[Path, Any], values: Values | None = None) -> Any:
    """The value of a term in a state; ``values`` gives the free variables."""
    return _Evaluation(structure, state).value(term, values or {})


class _Evaluation:
    def __init__(self, structure: Structure, state: Mapping[Path, Any]) -> None:
        self.structure, self.state = structure, state

    def value(self, term: Term, env: Values) -> Any:
        return _MEANING[term.op](self, term, env)

    def args(self, term: Term, env: Values, start: int = 0) -> tuple[Any, ...]:
        return tuple(self.value(a, env) for a in term.args[start:])

    def each(self, term: Term, env: Values) -> Iterator[Any]:
        """The body's value for all values of the bound variables."""
        for xs in self.structure.tuples(tuple(v.sort for v in term.data)):
            yield self.value(term.args[0], {**env, **dict(zip(term.data, xs, strict=True))})

    def state_value(self, term: Term) -> Any:
        sort = term.sort
        empty: Any = {} if isinstance(sort, MapSort) else default(sort)
        return self.state.get(term.data, empty)

    def comprehension(self, term: Term, env: Values) -> dict[Any, Any]:
        keys = list(self.structure.tuples(tuple(v.sort for v in term.data)))
        return dict(zip(map(bare, keys), self.each(term, env), strict=True))


def _get(e: _Evaluation, t: Term, env: Values) -> Any:
    found = e.value(t.args[0], env).get(bare(e.args(t, env, 1)), ABSENT)
    sort = t.args[0].sort
    assert isinstance(sort, MapSort)
    return default(sort.value) if found is ABSENT else found


def _case_is(e: _Evaluation, t: Term, env: Values) -> bool:
    value = e.value(t.args[0], env)
    return isinstance(value, Variant) and value.case == t.data


def _field(e: _Evaluation, t: Term, env: Values) -> Any:
    case, number = t.data
    value = e.value(t.args[0], env)
    return value.fields[number] if isinstance(value, Variant) and value.case == case else ABSENT


def _less(e: _Evaluation, t: Term, env: Values) -> bool:
    left, right = e.value(t.args[0], env), e.value(t.args[1], env)
    return left is not ABSENT and right is not ABSENT and left < right


def _next(e: _Evaluation, t: Term, env: Values) -> int:
    return int(e.value(t.args[0], env)) + 1


def _prev(e: _Evaluation, t: Term, env: Values) -> Any:
    position = e.value(t.args[0], env)
    return position - 1 if position > 0 else ABSENT


_MEANING: Mapping[str, Callable[[_Evaluation, Term, Values], Any]] = {
    "true": lambda e, t, env: True,
    "false": lambda e, t, env: False,
    "not": lambda e, t, env: not e.value(t.args[0], env),
    "and": lambda e, t, env: all(e.value(a, env) for a in t.args),
    "or": lambda e, t, env: any(e.value(a, env) for a in t.args),
    "implies": lambda e, t, env: not e.value(t.args[0], env) or e.value(t.args[1], env),
    "iff": lambda e, t, env: e.value(t.args[0], env) == e.value(t.args[1], env),
    "ite": lambda e, t, env: e.value(t.args[1 if e.value(t.args[0], env) else 2], env),
    "eq": lambda e, t, env: e.value(t.args[0], env) == e.value(t.args[1], env),
    "lt": _less,
    "num": lambda e, t, env: t.data,
    "add": lambda e, t, env: e.value(t.args[0], env) + e.value(t.args[1], env),
    "sub": lambda e, t, env: e.value(t.args[0], env) - e.value(t.args[1], env),
    "mul": lambda e, t, env: e.value(t.args[0], env) * e.value(t.args[1], env),
    "div": lambda e, t, env: e.value(t.args[0], env) // e.value(t.args[1], env),
    "mod": lambda e, t, env: e.value(t.args[0], env) % e.value(t.args[1], env),
    "zero": lambda e, t, env: 0,
    "next": _next,
    "prev": _prev,
    "forall": lambda e, t, env: all(e.each(t, env)),
    "exists": lambda e, t, env: any(e.each(t, env)),
    "var": lambda e, t, env: env[t],
    "state": lambda e, t, env: e.state_value(t),
    "static": lambda e, t, env: e.structure.statics[t.data],
    "call": lambda e, t, env: e.structure.apply(t.args[0].data, e.args(t, env, 1)),
    "get": _get,
    "has": lambda e, t, env: bare(e.args(t, env, 1)) in e.value(t.args[0], env),
    "empty": lambda e, t, env: not e.value(t.args[0], env),
    "only": lambda e, t, env: e.value(t.args[0], env) == {bare(e.args(t, env, 1))},
    "size": lambda e, t, env: len(e.value(t.args[0], env)),
    "set_empty": lambda e, t, env: frozenset(),
    "set_add": lambda e, t, env: frozenset(e.value(t.args[0], env)) | {bare(e.args(t, env, 1))},
    "set_remove": lambda e, t, env: frozenset(e.value(t.args[0], env)) - {bare(e.args(t, env, 1))},
    "set_lambda": lambda e, t, env: frozenset(k for k, yes in e.comprehension(t, env).items() if yes),
    "store": lambda e, t, env: {
        **e.value(t.args[0], env),
        bare(tuple(e.value(a, env) for a in t.args[1:-1])): e.value(t.args[-1], env),
    },
    "map_lambda": lambda e, t, env: e.comprehension(t, env),
    "case": lambda e, t, env: Variant(t.data, e.args(t, env)),
    "is_case": _case_is,
    "field": _field,
}


def fire(event: TracedEvent, structure: Structure, state: Mapping[Path, Any], arguments: tuple[Any, ...]) -> State:
    """The state after the event; the state before is left as it is.

    Raises:
        NotEnabled: something that the event requires does not hold.
    """
    values = dict(zip(event.parameters, arguments, strict=True))
    for requirement in event.requires:
        if not evaluate(requirement.term, structure, state, values):
            raise NotEnabled(event, requirement)
    after = dict(state)
    for path in {e.path for e in event.effects}:
        after[path] = evaluate(event.after[path], structure, state, values)
    return after


def initial(chapter: Chapter, structure: Structure) -> State:
    """A start state; what no init sets is absent."""
    blank: State = {}
    start = {}
    for path, term in chapter.initial.items():
        if not (term.op == "state" and term.data == path):
            start[path] = evaluate(term, structure, blank)
    return start


def reads(term: Term) -> set[Path]:
    """The state variables that a term mentions."""
    return {t.data for t in subterms(term) if t.op == "state"}
