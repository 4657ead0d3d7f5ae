"""From the vocabulary to first-order logic: sets and maps disappear, only atoms over the state before a step remain.

A state variable becomes a function or a relation, a set of variants one relation for each case. Updates are
substituted, so a statement about the state after an event is a formula about the state before it (its weakest
precondition); no array theory and no frame axioms are needed. Three kinds of words need company:

- *non-emptiness* of a set is a relation of its own with a witness function; a changed set gets a fresh witness;
- *size* of a set is a number; the facts of adding and removing a member are built into its translation, and "zero if
  and only if empty" is stated for the sets that occur;
- *next* and *prev* of a position are functions whose defining facts are stated for the positions that occur.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import BOOL, NAT, MapSort, SetSort, Sort, Term

Cases = list[tuple[Term, str, tuple[Term, ...]]]
"""A variant value: for each possible case its condition and its fields."""

SEEN = "seen."
"""Beginning of the names of relations that say nothing and are there to be mentioned."""
Members = tuple[tuple[Term, ...], list[tuple[tuple[Term, ...], Term]]]


def atom(name: str, args: Sequence[Term], sort: Sort) -> Term:
    """Application of a function symbol of the logic; names are stable and readable."""
    return T.make("atom", tuple(args), sort, name)


@dataclass(frozen=True)
class Fact:
    """A hypothesis that the machinery adds, true in every state by definition."""

    name: str
    term: Term


class Lowering:
    """Translates the terms of one chapter; keeps the facts that its translations need."""

    def __init__(self, chapter: Chapter, constants: frozenset[Term] = frozenset()) -> None:
        self.chapter = chapter
        self.facts: dict[Term, Fact] = {}
        self._memo: dict[Term, Term] = {}
        self._fresh = itertools.count()
        self._witnessed: set[Term] = set()
        self._names: dict[Term, str] = {}
        self._sizes: dict[Term, str] = {}
        self._sized: set[Term] = set()
        self._rests: list[tuple[frozenset[Term], Term]] = []
        self._members: dict[str, Members] = {}
        self.counted: dict[str, tuple[tuple[Term, ...], Term]] = {}
        """For each size symbol its arguments and the set that it counts; the finite reading counts it out."""
        self.constants = constants
        """Parameters of the event and other names that an obligation fixes."""

    def fork(self, constants: Iterable[Term] = ()) -> Lowering:
        """A copy that goes on from here with more constants; they must be new, or else what was translated under a
        quantifier of the same variable would lose it. Fresh names stay different between all copies."""
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, (dict, set, list)):
                setattr(other, name, copy.copy(value))
        other.constants = self.constants | frozenset(constants)
        return other

    # -- entry ---------------------------------------------------------------------------------------------------

    def formula(self, term: Term) -> Term:
        """The first-order formula of a statement."""
        done = self._memo.get(term)
        if done is None:
            done = self._memo[term] = self._formula(term)
        return done

    def _formula(self, term: Term) -> Term:
        match term.op:
            case "forall" | "exists":
                return self._quantified(term)
            case "has":
                return self.member(term.args[0], term.args[1:])
            case "empty":
                return T.neg(self.nonempty(term.args[0]))
            case "only":
                return self._only(term.args[0], term.args[1:])
            case "eq":
                return self.equal(*term.args)
            case "ite" if not isinstance(term.sort, Sort):
                raise AssertionError(f"a set or map outside its reading: {term}")
            case "get" | "state" | "var" | "static" | "call":
                return self.scalar(term)
            case "size":
                return self.size(term.args[0])
            case "is_case":
                return T.disj(c for c, case, _ in self.cases(term.args[0]) if case == term.data)
            case "field":
                return self._field(term)
            case "next" | "prev":
                return self._neighbour(term)
            case "lowered":
                return term.args[0]
            case "zero":
                return atom(f"#zero.{cast(Sort, term.sort).name}", (), cast(Sort, term.sort))
        return T.rebuild(term, tuple(self.formula(a) for a in term.args))

    def _quantified(self, term: Term) -> Term:
        """Variables of variant sorts become one copy of the body for each case."""
        plain: list[Term] = []
        choices: list[list[tuple[Term, Term]]] = []
        for v in term.data:
            if isinstance(v.sort, Sort) and v.sort.kind == "variant":
                options = []
                for name, fields in v.sort.cases:
                    xs = tuple(T.variable(f"{v.data[0]}{i}", f) for i, f in enumerate(fields))
                    options.append((v, T.make("case", xs, v.sort, name)))
                choices.append(options)
            else:
                plain.append(v)
        bodies = []
        for pick in itertools.product(*choices):
            variables = tuple(plain) + tuple(x for _, c in pick for x in c.args)
            naturals = T.conj(T.neg(T.make("lt", (x, T.num(0)), BOOL)) for x in variables if x.sort == NAT)
            body = self.formula(T.substitute(term.args[0], dict(pick)))
            body = T.implies(naturals, body) if term.op == "forall" else T.conj((naturals, body))
            bodies.append(T.quantify(term.op, variables, body))
        return T.conj(bodies) if term.op == "forall" else T.disj(bodies)

    # -- sets ----------------------------------------------------------------------------------------------------

    def member(self, s: Term, element: Sequence[Term]) -> Term:
        match s.op:
            case "set_empty":
                return T.FALSE
            case "set_add":
                return T.disj((self._same(element, s.args[1:]), self.member(s.args[0], element)))
            case "set_remove":
                return T.conj((T.neg(self._same(element, s.args[1:])), self.member(s.args[0], element)))
            case "set_lambda":
                return self.formula(T.substitute(s.args[0], dict(zip(s.data, element, strict=True))))
            case "ite":
                return T.ite(self.formula(s.args[0]), self.member(s.args[1], element), self.member(s.args[2], element))
            case "get":
                return self._member_of_map(s.args[0], s.args[1:], element)
            case "call":
                return self._relation(self._name(s.args[0]), s.args[1:], element)
        return self._relation(self._name(s), (), element)

    def _member_of_map(self, m: Term, keys: Sequence[Term], element: Sequence[Term]) -> Term:
        match m.op:
            case "store":
                *at, value = m.args[1:]
                return T.ite(
                    self._same(keys, at), self.member(value, element), self._member_of_map(m.args[0], keys, element)
                )
            case "map_lambda":
                return self.member(T.substitute(m.args[0], dict(zip(m.data, keys, strict=True))), element)
            case "ite":
                return T.ite(
                    self.formula(m.args[0]),
                    self._member_of_map(m.args[1], keys, element),
                    self._member_of_map(m.args[2], keys, element),
                )
        return self._relation(self._name(m), keys, element)

    def _relation(self, name: str, keys: Sequence[Term], element: Sequence[Term]) -> Term:
        """A relation atom; a variant element selects the relation of its case."""
        lowered = [self.formula(k) for k in keys]
        variants = [e for e in element if cast(Sort, e.sort).kind == "variant"]
        if not variants:
            return atom(name, [*lowered, *map(self.formula, element)], BOOL)
        assert len(element) == 1, "a variant stands alone in its set"
        return T.disj(
            T.conj((condition, atom(f"{name}@{case}", [*lowered, *fields], BOOL)))
            for condition, case, fields in self.cases(element[0])
        )

    def _only(self, s: Term, element: Sequence[Term]) -> Term:
        rest = T.make("set_remove", (s, *element), s.sort)
        self._count_rest(frozenset(t for t in T.subterms(s) if t.op in ("state", "static")), rest)
        return T.conj((self.member(s, element), T.neg(self.nonempty(rest))))

    def nonempty(self, s: Term) -> Term:
        """That the set has a member; a fresh name where the structure does not say."""
        match s.op:
            case "set_empty":
                return T.FALSE
            case "set_add":
                return T.TRUE
            case "ite":
                return T.ite(self.formula(s.args[0]), self.nonempty(s.args[1]), self.nonempty(s.args[2]))
            case "get" if s.args[0].op == "store":
                m, keys = s.args[0], s.args[1:]
                *at, value = m.args[1:]
                older = T.make("get", (m.args[0], *keys), s.sort)
                return T.ite(self._same(keys, at), self.nonempty(value), self.nonempty(older))
            case "get" if s.args[0].op == "map_lambda":
                rule, keys = s.args[0], s.args[1:]
                return self.nonempty(T.substitute(rule.args[0], dict(zip(rule.data, keys, strict=True))))
            case "get" if s.args[0].op == "ite":
                condition, yes, no = s.args[0].args
                return T.ite(
                    self.formula(condition),
                    self.nonempty(T.make("get", (yes, *s.args[1:]), s.sort)),
                    self.nonempty(T.make("get", (no, *s.args[1:]), s.sort)),
                )
            case "get":
                return self._witnessed_state(s.args[0], s.args[1:])
            case "state" | "static" | "var":
                return self._witnessed_state(s, ())
        return self._witnessed_fresh(s)

    def _witnessed_state(self, whole: Term, keys: Sequence[Term]) -> Term:
        name = f"#nonempty.{self._name(whole)}"
        if whole not in self._witnessed:
            self._witnessed.add(whole)
            key_sorts = whole.sort.keys if isinstance(whole.sort, MapSort) else ()
            xs = tuple(T.variable("k", k) for k in key_sorts)
            inner = T.make("get", (whole, *xs), cast(MapSort, whole.sort).value) if xs else whole
            self._state_witness(name, inner, xs)
        return atom(name, [self.formula(k) for k in keys], BOOL)

    def _witnessed_fresh(self, s: Term) -> Term:
        """A set that an event made: its non-emptiness gets a name, with the variables that occur free in it."""
        free = tuple(sorted(s.free - self.constants, key=lambda v: v.data[1]))
        if s not in self._names:
            self._names[s] = f"#nonempty.{next(self._fresh)}"
            self._state_witness(self._names[s], s, free)
        return atom(self._names[s], free, BOOL)

    def _state_witness(self, name: str, s: Term, xs: tuple[Term, ...]) -> None:
        """The defining facts of a non-emptiness relation and its witness."""
        sort = cast(SetSort, s.sort)
        flag = atom(name, xs, BOOL)
        ys = tuple(T.variable("e", e) for e in sort.elements)
        has = T.make("has", (s, *ys), BOOL)
        says = self.formula(T.quantify("forall", ys, T.implies(has, lowered(flag))))
        self._fact(name, T.quantify("forall", xs, says))
        options = []
        for case, fields in self._element_shapes(sort):
            found = tuple(atom(f"{name}.witness.{case}.{i}", xs, f) for i, f in enumerate(fields))
            options.append(self._relation_of(s, case, found))
        self._fact(f"{name}.witness", T.quantify("forall", xs, T.implies(flag, T.disj(options))))

    def _element_shapes(self, sort: SetSort) -> list[tuple[str, tuple[Sort, ...]]]:
        (first, *more) = sort.elements
        if first.kind == "variant" and not more:
            return list(first.cases)
        return [("", sort.elements)]

    def _relation_of(self, s: Term, case: str, fields: tuple[Term, ...]) -> Term:
        """Membership of an element whose fields are already lowered."""
        wrapped = tuple(lowered(f) for f in fields)
        element = (T.make("case", wrapped, cast(SetSort, s.sort).elements[0], case),) if case else wrapped
        return self.member(s, element)

    def _fact(self, name: str, term: Term) -> None:
        self.facts[term] = Fact(name, term)

    # -- sizes ---------------------------------------------------------------------------------------------------

    def size(self, s: Term) -> Term:
        value = self._size(s)
        if not (s.free - self.constants):
            zero = T.eq(value, T.num(0))
            self._fact("size", T.neg(T.make("lt", (value, T.num(0)), BOOL)))
            self._fact("size", T.iff(zero, T.neg(self.nonempty(s))))
        return value

    def _size(self, s: Term) -> Term:
        match s.op:
            case "set_empty":
                return T.num(0)
            case "set_add" | "set_remove":
                inside = self.member(s.args[0], s.args[1:])
                base = self.size(s.args[0])
                step, yes, no = ("add", 0, 1) if s.op == "set_add" else ("sub", 1, 0)
                return T.make(step, (base, T.ite(inside, T.num(yes), T.num(no))), NAT)
            case "ite":
                return T.ite(self.formula(s.args[0]), self.size(s.args[1]), self.size(s.args[2]))
            case "get" if s.args[0].op == "store":
                m, keys = s.args[0], s.args[1:]
                *at, value = m.args[1:]
                older = T.make("get", (m.args[0], *keys), s.sort)
                return T.ite(self._same(keys, at), self.size(value), self.size(older))
            case "get" if s.args[0].op == "map_lambda":
                return self.size(T.substitute(s.args[0].args[0], dict(zip(s.args[0].data, s.args[1:], strict=True))))
            case "get":
                whole, keys = s.args[0], s.args[1:]
                self._count(whole)
                xs = tuple(T.variable("k", cast(Sort, k.sort)) for k in keys)
                name = f"#size.{self._name(whole)}"
                self.counted.setdefault(name, (xs, T.make("get", (whole, *xs), s.sort)))
                return atom(name, [self.formula(k) for k in keys], NAT)
            case "state" | "static" | "var":
                self._count(s)
                self.counted.setdefault(f"#size.{self._name(s)}", ((), s))
                return atom(f"#size.{self._name(s)}", (), NAT)
        free = tuple(sorted(s.free - self.constants, key=lambda v: v.data[1]))
        if s not in self._sizes:
            self._sizes[s] = f"#size.{next(self._fresh)}"
            self.counted[self._sizes[s]] = (free, s)
        return atom(self._sizes[s], free, NAT)

    def members(self, name: str) -> Members:
        """For a size symbol its arguments and, for each shape of an element, its variables and "is a member"."""
        if name not in self._members:
            xs, s = self.counted[name]
            shapes = []
            for case, fields in self._element_shapes(cast(SetSort, s.sort)):
                ys = tuple(T.variable("e", f) for f in fields)
                shapes.append((ys, self._relation_of(s, case, ys)))
            self._members[name] = xs, shapes
        return self._members[name]

    def _count(self, whole: Term) -> None:
        """Members of this state variable are counted: each of its counts is zero exactly where the set is empty."""
        if whole in self._sized:
            return
        self._sized.add(whole)
        if isinstance(whole.sort, MapSort):
            xs = tuple(T.variable("k", k) for k in whole.sort.keys)
            value = atom(f"#size.{self._name(whole)}", xs, NAT)
            empty = T.neg(self.nonempty(T.make("get", (whole, *xs), whole.sort.value)))
            self._fact("size", T.quantify("forall", xs, T.neg(T.make("lt", (value, T.num(0)), BOOL))))
            self._fact("size", T.quantify("forall", xs, T.iff(T.eq(value, T.num(0)), empty)))
        for variables, rest in self._rests:
            if whole in variables:
                self.size(rest)

    def _count_rest(self, variables: frozenset[Term], rest: Term) -> None:
        """A set is asked whether something is its only member; where sets are counted, that says how many it has."""
        if not (rest.free - self.constants):
            self._rests.append((variables, rest))
            if variables & self._sized:
                self.size(rest)

    # -- scalars -------------------------------------------------------------------------------------------------

    def scalar(self, term: Term) -> Term:
        sort = cast(Sort, term.sort)
        assert sort.kind != "variant", "variants are read case by case"
        match term.op:
            case "var":
                return term
            case "state" | "static":
                return atom(self._name(term), (), sort)
            case "call":
                return atom(self._name(term.args[0]), [self.formula(a) for a in term.args[1:]], sort)
        return self._get(term.args[0], term.args[1:], sort)

    def _get(self, m: Term, keys: Sequence[Term], sort: Sort) -> Term:
        match m.op:
            case "store":
                *at, value = m.args[1:]
                return T.ite(self._same(keys, at), self.formula(value), self._get(m.args[0], keys, sort))
            case "map_lambda":
                return self.formula(T.substitute(m.args[0], dict(zip(m.data, keys, strict=True))))
            case "ite":
                yes, no = self._get(m.args[1], keys, sort), self._get(m.args[2], keys, sort)
                return T.ite(self.formula(m.args[0]), yes, no)
        return atom(self._name(m), [self.formula(k) for k in keys], sort)

    def equal(self, left: Term, right: Term) -> Term:
        if cast(Sort, left.sort).kind != "variant":
            return T.eq(self.formula(left), self.formula(right))
        return T.disj(
            T.conj((c, d, *(T.eq(x, y) for x, y in zip(f, g, strict=True))))
            for c, case, f in self.cases(left)
            for d, other, g in self.cases(right)
            if case == other
        )

    def _same(self, left: Sequence[Term], right: Sequence[Term]) -> Term:
        return T.conj(self.equal(a, b) for a, b in zip(left, right, strict=True))

    # -- variants ------------------------------------------------------------------------------------------------

    def cases(self, term: Term) -> Cases:
        """A variant value as its possible cases."""
        match term.op:
            case "case":
                return [(T.TRUE, term.data, tuple(self.formula(a) for a in term.args))]
            case "ite":
                condition = self.formula(term.args[0])
                yes = [(T.conj((condition, c)), n, f) for c, n, f in self.cases(term.args[1])]
                return yes + [(T.conj((T.neg(condition), c)), n, f) for c, n, f in self.cases(term.args[2])]
            case "get" if term.args[0].op == "store":
                m, keys = term.args[0], term.args[1:]
                *at, value = m.args[1:]
                older = T.make("get", (m.args[0], *keys), term.sort)
                return self.cases(T.ite(lowered(self._same(keys, at)), value, older))
            case "get" if term.args[0].op == "map_lambda":
                m = term.args[0]
                return self.cases(T.substitute(m.args[0], dict(zip(m.data, term.args[1:], strict=True))))
            case "get" if term.args[0].op == "ite":
                first, *maps = term.args[0].args
                both = (T.make("get", (m, *term.args[1:]), term.sort) for m in maps)
                return self.cases(T.make("ite", (first, *both), term.sort))
        name, args = self._symbol(term)
        return self._opaque_cases(name, args, cast(Sort, term.sort))

    def _symbol(self, term: Term) -> tuple[str, list[Term]]:
        match term.op:
            case "var":
                return f"{term.data[0]}!{term.data[1]}", []
            case "get":
                return self._name(term.args[0]), [self.formula(k) for k in term.args[1:]]
            case "call":
                return self._name(term.args[0]), [self.formula(a) for a in term.args[1:]]
        return self._name(term), []

    def _opaque_cases(self, name: str, args: list[Term], sort: Sort) -> Cases:
        found = []
        for case, fields in sort.cases:
            values = tuple(atom(f"{name}.{case}.{i}", args, f) for i, f in enumerate(fields))
            found.append((atom(f"{name}.#is.{case}", args, BOOL), case, values))
        xs = tuple(T.variable("k", cast(Sort, a.sort)) for a in args)
        flags = [atom(f"{name}.#is.{case}", xs, BOOL) for case, _ in sort.cases]
        one = [T.disj(flags)] + [T.neg(T.conj((a, b))) for a, b in itertools.combinations(flags, 2)]
        self._fact(f"{name}.cases", T.quantify("forall", xs, T.conj(one)))
        return found

    def _field(self, term: Term) -> Term:
        case, number = term.data
        options = [(c, f[number]) for c, n, f in self.cases(term.args[0]) if n == case]
        sort = cast(Sort, term.sort)
        value = options.pop()[1] if options else atom(f"no_field.{sort.name}", (), sort)
        for condition, other in reversed(options):
            value = T.ite(condition, other, value)
        return value

    # -- positions -----------------------------------------------------------------------------------------------

    def _neighbour(self, term: Term) -> Term:
        sort = cast(Sort, term.sort)
        at = self.formula(term.args[0])
        value = atom(f"#{term.op}.{sort.name}", [at], sort)
        ground = not (at.free - self.constants)
        if term.op == "next":
            assert ground, "next of a bound position"
            self._adjacent(at, value, sort)
            self._fact("next", T.eq(atom(f"#prev.{sort.name}", [value], sort), at))
        elif ground:
            zero = atom(f"#zero.{sort.name}", (), sort)
            self._adjacent(value, at, sort, T.neg(T.eq(at, zero)))
            # Statements about the position before are used where one is mentioned (`translate.triggers`); this
            # mention is there in every branch of the search.
            self._fact("seen", atom(f"{SEEN}{sort.name}", [value], BOOL))
        return value

    def _adjacent(self, low: Term, high: Term, sort: Sort, premise: Term = T.TRUE) -> None:
        m = T.variable("m", sort)
        between = T.conj((_lt(low, m), _lt(m, high)))
        nothing = T.quantify("forall", (m,), T.neg(between))
        self._fact("adjacent", T.implies(premise, T.conj((_lt(low, high), nothing))))

    # -- names ---------------------------------------------------------------------------------------------------

    def _name(self, term: Term) -> str:
        if term.op in ("state", "static"):
            return ".".join(term.data)
        if term.op == "var":
            return f"{term.data[0]}!{term.data[1]}"
        raise AssertionError(f"no symbol for {term}")


def _lt(left: Term, right: Term) -> Term:
    return T.make("lt", (left, right), BOOL)


def lowered(term: Term) -> Term:
    """An already lowered term inside one that is still to be lowered."""
    return T.make("lowered", (term,), term.sort)


def order_axioms(sort: Sort) -> Iterable[Fact]:
    """A total order with a least element."""
    a, b, c = (T.variable(n, sort) for n in "abc")
    zero = atom(f"#zero.{sort.name}", (), sort)
    yield Fact("order", T.quantify("forall", (a,), T.neg(_lt(a, a))))
    yield Fact("order", T.quantify("forall", (a, b, c), T.implies(T.conj((_lt(a, b), _lt(b, c))), _lt(a, c))))
    yield Fact("order", T.quantify("forall", (a, b), T.disj((_lt(a, b), T.eq(a, b), _lt(b, a)))))
    yield Fact("order", T.quantify("forall", (a,), T.neg(_lt(a, zero))))


def prev_axioms(sort: Sort) -> Iterable[Fact]:
    """The position before another, for statements that speak of it; stated where it is mentioned, see `triggers`."""
    x, m = T.variable("x", sort), T.variable("m", sort)
    zero = atom(f"#zero.{sort.name}", (), sort)
    before = atom(f"#prev.{sort.name}", [x], sort)
    positive = T.neg(T.eq(x, zero))
    yield Fact("prev", T.quantify("forall", (x,), T.implies(positive, _lt(before, x))))
    nothing_between = T.implies(T.conj((positive, _lt(m, x))), T.neg(_lt(before, m)))
    yield Fact("prev", T.quantify("forall", (x, m), nothing_between))
