"""The readings say the same, operator by operator, on random finite states.

A statement is evaluated in the concrete reading; then the finite and the unbounded reading are told the same state, as
ordinary terms (`diagram`), and must prove the statement or its negation accordingly. `CASES` has an entry for every
operator of the vocabulary: one without an entry fails the test.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kvspec.model.concrete import State, Structure, Variant, evaluate
from kvspec.proofs.finite import FiniteSolver, Scope
from kvspec.proofs.lowering import Lowering, order_axioms, prev_axioms
from kvspec.proofs.z3_solver import Z3Session
from kvspec.spec.language import Bool, Chapter, Id, Machine, Map, Nat, Position, Set, Static, Variants, case
from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import BOOL, NAT, MapSort, SetSort, Sort, Term

ROUNDS = 40 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 5


class Thing(Id):
    """An opaque sort."""


class Spot(Position):
    """An ordered sort."""


class Kind(Variants):
    """A sort of three cases."""

    at = case(Thing, Spot)
    alone = case(Thing)
    none = case()


class Zoo(Machine):
    """A variable of each shape."""

    first: Static[Thing]
    low: Static[Spot]
    where: Static[Callable[[Thing], Spot]]
    likes: Static[Callable[[Thing, Spot], Bool]]
    flag: Bool
    number: Nat
    thing: Thing
    spot: Spot
    kind: Kind
    things: Set[Thing]
    pairs: Set[tuple[Thing, Spot]]
    kinds: Set[Kind]
    spot_of: Map[Thing, Spot]
    count_of: Map[Spot, Nat]
    kind_of: Map[Thing, Kind]
    kinds_of: Map[tuple[Thing, Spot], Set[Kind]]


ZOO = Chapter(Zoo)
THING, SPOT, KIND = Thing.sort, Spot.sort, Kind.sort
ELEMENTS = {s: tuple(T.variable(f"{s.name.lower()}{i}", s) for i in range(n)) for s, n in ((THING, 2), (SPOT, 3))}
STRUCTURE_SORTS = {"Thing": [0, 1], "Spot": [0, 1, 2], "Nat": [0, 1, 2, 3]}
CONSTANTS = frozenset(itertools.chain(*ELEMENTS.values()))


# -- random states -----------------------------------------------------------------------------------------------------


def random_value(rng: random.Random, sort: T.AnySort, structure: Structure) -> Any:
    match sort:
        case Sort(kind="nat"):
            return rng.randrange(3)
        case Sort():
            return rng.choice(list(structure.elements(sort)))
        case SetSort():
            members = list(structure.tuples(sort.elements))
            return frozenset(m[0] if len(m) == 1 else m for m in members if rng.random() < 0.4)
        case MapSort():
            keys = structure.tuples(sort.keys)
            return {k[0] if len(k) == 1 else k: random_value(rng, sort.value, structure) for k in keys}


def random_situation(rng: random.Random) -> tuple[Structure, State]:
    structure = Structure(STRUCTURE_SORTS)
    statics: dict[Any, Any] = {("low",): rng.randrange(2)}
    for static in ZOO.statics.values():
        sort = MapSort(static.arguments, static.result) if static.arguments else static.result
        statics.setdefault(static.path, random_value(rng, sort, structure))
    state = {v.path: random_value(rng, v.sort, structure) for v in ZOO.variables.values()}
    return Structure(STRUCTURE_SORTS, statics), state


# -- a state as terms --------------------------------------------------------------------------------------------------


def literal(value: Any, sort: Sort) -> Term:
    """The term of a value; elements are variables that `diagram` keeps apart."""
    if sort == BOOL:
        return T.TRUE if value else T.FALSE
    if sort == NAT:
        return T.num(value)
    if isinstance(value, Variant):
        parts = zip(value.fields, sort.fields(value.case), strict=True)
        return T.make("case", tuple(literal(v, s) for v, s in parts), sort, value.case)
    return ELEMENTS[sort][value]


def diagram(structure: Structure, state: State) -> list[Term]:
    """The state and the structure, completely."""
    facts = list(closure())
    for static in ZOO.statics.values():
        term = T.make("static", (), static.result, static.path)
        if not static.arguments:
            facts.append(T.eq(term, literal(structure.statics[static.path], static.result)))
        for key in structure.tuples(static.arguments) if static.arguments else ():
            args = tuple(literal(k, s) for k, s in zip(key, static.arguments, strict=True))
            value = structure.statics[static.path][key[0] if len(key) == 1 else key]
            facts.append(T.eq(T.make("call", (term, *args), static.result), literal(value, static.result)))
    for variable in ZOO.variables.values():
        facts += told(T.make("state", (), variable.sort, variable.path), state[variable.path], structure)
    return facts


def closure() -> list[Term]:
    """There are the elements and no others; positions stand in their order."""
    facts = []
    for sort, elements in ELEMENTS.items():
        x = T.variable("x", sort)
        facts.append(T.quantify("forall", (x,), T.disj(T.eq(x, e) for e in elements)))
        facts += [T.neg(T.eq(a, b)) for a, b in itertools.combinations(elements, 2)]
    facts.append(T.eq(ELEMENTS[SPOT][0], T.make("zero", (), SPOT)))
    facts += [T.make("lt", pair, BOOL) for pair in itertools.combinations(ELEMENTS[SPOT], 2)]
    return facts


def told(term: Term, value: Any, structure: Structure) -> list[Term]:
    match term.sort:
        case MapSort(keys, inner):
            facts = []
            for key, entry in value.items():
                parts = key if len(keys) > 1 else (key,)
                args = tuple(literal(k, s) for k, s in zip(parts, keys, strict=True))
                facts += told(T.make("get", (term, *args), inner), entry, structure)
            return facts
        case SetSort(elements):
            facts = [T.eq(T.make("size", (term,), NAT), T.num(len(value)))]
            for member in structure.tuples(elements):
                args = tuple(literal(m, s) for m, s in zip(member, elements, strict=True))
                has = T.make("has", (term, *args), BOOL)
                inside = (member[0] if len(member) == 1 else member) in value
                facts.append(has if inside else T.neg(has))
            return facts
        case Sort() as sort:
            return [T.eq(term, literal(value, sort)) if sort.kind != "variant" else same(term, literal(value, sort))]


def same(left: Term, right: Term) -> Term:
    return T.make("eq", (left, right), BOOL)


# -- random terms ------------------------------------------------------------------------------------------------------


class Maker:
    """Random terms; no term here is without a value in the concrete reading."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.bound: list[Term] = []

    def of(self, sort: T.AnySort, depth: int) -> Term:
        """A term of the sort."""
        options = [op for op, (result, _) in CASES.items() if result is sort or result == kind_of(sort)]
        leaves = [op for op in options if op in LEAVES]
        pick = self.rng.choice(leaves if depth <= 0 and leaves else options)
        return self.with_op(pick, sort, depth)

    def with_op(self, op: str, sort: T.AnySort, depth: int) -> Term:
        made = CASES[op][1](self, sort, depth - 1)
        return made if made is not None else self.leaf(sort)

    def leaf(self, sort: T.AnySort) -> Term:
        variables = [v for v in ZOO.variables.values() if v.sort == sort]
        if variables:
            return self.state(sort)
        assert isinstance(sort, SetSort)
        return T.make("set_empty", (), sort)

    def state(self, sort: T.AnySort) -> Term:
        paths = [v.path for v in ZOO.variables.values() if v.sort == sort]
        return T.make("state", (), sort, self.rng.choice(paths)) if paths else self.leaf(sort)

    def bind(self, sorts: tuple[Sort, ...], body: Callable[[], Term]) -> tuple[tuple[Term, ...], Term]:
        xs = tuple(T.variable("x", s) for s in sorts)
        self.bound += xs
        inner = body()
        del self.bound[-len(xs) :]
        return xs, inner

    def scalar_sort(self) -> Sort:
        return self.rng.choice((THING, SPOT))

    def set_sort(self) -> SetSort:
        return self.rng.choice((SetSort((THING,)), SetSort((THING, SPOT)), SetSort((KIND,))))

    def map_term(self, value: T.AnySort, depth: int) -> Term | None:
        sorts = [v.sort for v in ZOO.variables.values() if isinstance(v.sort, MapSort) and v.sort.value == value]
        return self.of(self.rng.choice(sorts), depth) if sorts else None

    def elements(self, sort: SetSort, depth: int) -> tuple[Term, ...]:
        return tuple(self.of(s, depth) for s in sort.elements)


def kind_of(sort: T.AnySort) -> object:
    """What an entry of `CASES` calls its result: a sort, any set, any map, anything."""
    return "set" if isinstance(sort, SetSort) else "map" if isinstance(sort, MapSort) else sort


LEAVES = {"true", "false", "num", "zero", "state", "static", "var", "set_empty", "case"}
Made = Callable[[Maker, Any, int], Term | None]


def logic(op: str, count: int) -> Made:
    return lambda m, s, d: T.make(op, tuple(m.of(BOOL, d) for _ in range(count)), BOOL)


def arithmetic(op: str) -> Made:
    return lambda m, s, d: T.make(op, (m.of(NAT, d), m.of(NAT, d)), NAT)


def divided(op: str) -> Made:
    return lambda m, s, d: T.make(op, (m.of(NAT, d), T.num(m.rng.randrange(1, 4))), NAT)


def compared(m: Maker, s: Any, d: int) -> Term:
    sort = m.rng.choice((BOOL, NAT, THING, SPOT, KIND))
    return same(m.of(sort, d), m.of(sort, d)) if sort != BOOL else T.iff(m.of(BOOL, d), m.of(BOOL, d))


def less(m: Maker, s: Any, d: int) -> Term:
    sort = m.rng.choice((NAT, SPOT))
    return T.make("lt", (m.of(sort, d), m.of(sort, d)), BOOL)


def next_spot(m: Maker, s: Any, d: int) -> Term:
    """Only of a spot that is not the last: that each spot has a next one is assumed wherever `next` is written."""
    at = m.rng.choice((T.make("zero", (), SPOT), T.make("static", (), SPOT, ("low",))))
    return T.make("next", (at,), SPOT)


def prev_spot(m: Maker, s: Any, d: int) -> Term:
    at = m.of(SPOT, d)
    zero = T.make("zero", (), SPOT)
    return T.make("ite", (same(at, zero), zero, T.make("prev", (at,), SPOT)), SPOT)


def about(m: Maker, d: int) -> Term:
    """Something about the variable that was bound last."""
    x = m.bound[-1]
    return same(x, m.of(x.sort, d))


def quantified(op: str) -> Made:
    def make(m: Maker, s: Any, d: int) -> Term:
        sorts = tuple(m.rng.choice((THING, SPOT, KIND)) for _ in range(m.rng.randrange(1, 3)))
        xs, body = m.bind(sorts, lambda: T.make(m.rng.choice(("and", "or")), (about(m, d), m.of(BOOL, d)), BOOL))
        return T.quantify(op, xs, body)

    return make


def a_variable(m: Maker, s: Sort, d: int) -> Term | None:
    inner = [v for v in m.bound if v.sort == s]
    return m.rng.choice(inner) if inner else m.rng.choice(ELEMENTS[s]) if s in ELEMENTS else None


def a_static(m: Maker, s: Sort, d: int) -> Term | None:
    paths = [p.path for p in ZOO.statics.values() if p.result == s and not p.arguments]
    return T.make("static", (), s, paths[0]) if paths else None


def a_call(m: Maker, s: Sort, d: int) -> Term | None:
    found = [p for p in ZOO.statics.values() if p.result == s and p.arguments]
    if not found:
        return None
    symbol = T.make("static", (), s, found[0].path)
    return T.make("call", (symbol, *(m.of(a, d) for a in found[0].arguments)), s)


def got(m: Maker, s: Any, d: int) -> Term | None:
    whole = m.map_term(s, d)
    return None if whole is None else T.make("get", (whole, *(m.of(k, d) for k in whole.sort.keys)), s)  # type: ignore[union-attr]


def chosen(m: Maker, s: Any, d: int) -> Term:
    return T.make("ite", (m.of(BOOL, d), m.of(s, d), m.of(s, d)), s)


def in_set(op: str) -> Made:
    def make(m: Maker, s: Any, d: int) -> Term:
        sort = m.set_sort()
        return T.make(op, (m.of(sort, d), *m.elements(sort, d)), BOOL)

    return make


def size_of(m: Maker, s: Any, d: int) -> Term:
    """Of sets that the lowering can count: state, and one member more or less."""
    sort = m.set_sort()
    term = m.state(sort)
    for _ in range(m.rng.randrange(3)):
        term = T.make(m.rng.choice(("set_add", "set_remove")), (term, *m.elements(sort, 0)), sort)
    return T.make("size", (term,), NAT)


def changed_set(op: str) -> Made:
    return lambda m, s, d: T.make(op, (m.of(s, d), *m.elements(s, d)), s)


def set_rule(m: Maker, s: SetSort, d: int) -> Term:
    xs, body = m.bind(s.elements, lambda: m.of(BOOL, d))
    return T.make("set_lambda", (body,), s, xs)


def map_rule(m: Maker, s: MapSort, d: int) -> Term:
    xs, body = m.bind(s.keys, lambda: m.of(s.value, d))
    return T.make("map_lambda", (body,), s, xs)


def stored(m: Maker, s: MapSort, d: int) -> Term:
    return T.make("store", (m.of(s, d), *(m.of(k, d) for k in s.keys), m.of(s.value, d)), s)


def a_case(m: Maker, s: Sort, d: int) -> Term:
    name, fields = m.rng.choice(s.cases)
    return T.make("case", tuple(m.of(f, d) for f in fields), s, name)


def a_field(m: Maker, s: Sort, d: int) -> Term | None:
    """Only where the value has the case."""
    places = [(c, i) for c, fields in KIND.cases for i, f in enumerate(fields) if f == s]
    if not places:
        return None
    at = m.rng.choice(places)
    value = m.of(KIND, d)
    is_case = T.make("is_case", (value,), BOOL, at[0])
    return T.make("ite", (is_case, T.make("field", (value,), s, at), m.leaf(s)), s)


ANY, SCALAR = object(), object()
_MAKERS: Mapping[str, tuple[tuple[object, ...], Made]] = {
    "true": ((BOOL,), lambda m, s, d: T.TRUE),
    "false": ((BOOL,), lambda m, s, d: T.FALSE),
    "not": ((BOOL,), logic("not", 1)),
    "and": ((BOOL,), logic("and", 3)),
    "or": ((BOOL,), logic("or", 3)),
    "implies": ((BOOL,), logic("implies", 2)),
    "iff": ((BOOL,), logic("iff", 2)),
    "ite": ((BOOL, NAT, THING, SPOT, KIND, "set", "map"), chosen),
    "eq": ((BOOL,), compared),
    "lt": ((BOOL,), less),
    "num": ((NAT,), lambda m, s, d: T.num(m.rng.randrange(4))),
    "add": ((NAT,), arithmetic("add")),
    "sub": ((NAT,), arithmetic("sub")),
    "mul": ((NAT,), arithmetic("mul")),
    "div": ((NAT,), divided("div")),
    "mod": ((NAT,), divided("mod")),
    "zero": ((SPOT,), lambda m, s, d: T.make("zero", (), SPOT)),
    "next": ((SPOT,), next_spot),
    "prev": ((SPOT,), prev_spot),
    "forall": ((BOOL,), quantified("forall")),
    "exists": ((BOOL,), quantified("exists")),
    "var": ((THING, SPOT, KIND), a_variable),
    "state": ((BOOL, NAT, THING, SPOT, KIND, "set", "map"), lambda m, s, d: m.state(s)),
    "static": ((THING, SPOT), a_static),
    "call": ((BOOL, SPOT), a_call),
    "get": ((NAT, SPOT, KIND, "set"), got),
    "has": ((BOOL,), in_set("has")),
    "empty": ((BOOL,), lambda m, s, d: T.make("empty", (m.of(m.set_sort(), d),), BOOL)),
    "only": ((BOOL,), in_set("only")),
    "size": ((NAT,), size_of),
    "set_empty": (("set",), lambda m, s, d: T.make("set_empty", (), s)),
    "set_add": (("set",), changed_set("set_add")),
    "set_remove": (("set",), changed_set("set_remove")),
    "set_lambda": (("set",), set_rule),
    "store": (("map",), stored),
    "map_lambda": (("map",), map_rule),
    "case": ((KIND,), a_case),
    "is_case": ((BOOL,), lambda m, s, d: T.make("is_case", (m.of(KIND, d),), BOOL, m.rng.choice(KIND.cases)[0])),
    "field": ((THING, SPOT), a_field),
}


class _Results(tuple[object, ...]):
    """Result sorts of an operator; equal to each of them, so that a table of candidates can be asked by sort."""

    def __eq__(self, other: object) -> bool:
        return other in tuple(self)

    __hash__ = None  # type: ignore[assignment]


CASES: Mapping[str, tuple[_Results, Made]] = {op: (_Results(results), made) for op, (results, made) in _MAKERS.items()}


def statement(op: str, rng: random.Random) -> Term:
    """A statement with this operator in it."""
    maker = Maker(rng)
    result = rng.choice(tuple(CASES[op][0]))
    if result == "set":
        sort: T.AnySort = maker.set_sort()
    elif result == "map":
        sort = rng.choice([v.sort for v in ZOO.variables.values() if isinstance(v.sort, MapSort)])
    else:
        assert isinstance(result, Sort)
        sort = result
    return asked(maker, maker.with_op(op, sort, 2))


def asked(maker: Maker, term: Term) -> Term:
    """A question about the value of a term."""
    match term.sort:
        case Sort() as sort if sort == BOOL:
            return term
        case Sort() as sort:
            return same(term, maker.of(sort, 0))
        case SetSort() as sort:
            return T.make("has", (term, *maker.elements(sort, 0)), BOOL)
        case MapSort() as sort:
            keys = tuple(maker.of(k, 0) for k in sort.keys)
            return asked(maker, T.make("get", (term, *keys), sort.value))


# -- the test ----------------------------------------------------------------------------------------------------------


def lowered(terms: list[Term]) -> tuple[Lowering, list[Term]]:
    lowering = Lowering(ZOO, CONSTANTS)
    formulas = [lowering.formula(t) for t in terms]
    return lowering, [*formulas, *(f.term for f in lowering.facts.values())]


def finite_allows(terms: list[Term]) -> bool:
    lowering, formulas = lowered(terms)
    scope = Scope((("Spot", 3), ("Thing", 2), ("Nat", 4)))
    return FiniteSolver(scope, lowering, []).model(formulas) is not None


def symbolic_refutes(terms: list[Term]) -> bool:
    _, formulas = lowered(terms)
    order = [f.term for f in (*order_axioms(SPOT), *prev_axioms(SPOT))]
    session = Z3Session([*formulas, *order])
    return session.refutes(()) or session.refutes_with_effort(())


def test_every_operator_has_a_case() -> None:
    assert CASES.keys() == T.OPERATORS.keys()


@pytest.mark.parametrize("op", T.OPERATORS)
def test_readings_agree(op: str) -> None:
    met = 0
    for number in range(ROUNDS):
        rng = random.Random(f"{op} {number}")
        structure, state = random_situation(rng)
        question = statement(op, rng)
        met += any(t.op == op for t in T.subterms(question))
        values = {e: i for elements in ELEMENTS.values() for i, e in enumerate(elements)}
        holds = evaluate(question, structure, state, values)
        facts = diagram(structure, state)
        wrong = [*facts, T.neg(question) if holds else question]
        right = [*facts, question if holds else T.neg(question)]
        assert finite_allows(right), question
        assert not finite_allows(wrong), question
        assert symbolic_refutes(wrong), question
        assert not Z3Session(lowered(right)[1]).refutes(()), question
    assert met, "the operator was simplified away in every case"
