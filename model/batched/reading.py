"""The batched reading: what a term says, as statements about the cells of a state.

A statement is a literal of a `Logic`; a natural a `Number`; any other scalar a `Choice`, which says of each value
when the term has it; a set says of each element when it is a member, a map what it holds under each key. Statics and
whatever depends on bound variables only fold to constants, so quantifiers can be written out. The meaning of each
operator is that of `kvspec.model.concrete`; where evaluation there would fail (the position after one that is absent),
the value here is arbitrary. A static function to statements has to be true or false of whatever it is asked, what is
absent included.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from kvspec.model.batched.logic import FALSE, TRUE, Logic
from kvspec.model.batched.numbers import Arithmetic, Number, constant
from kvspec.model.concrete import ABSENT, Structure, Variant, bare, default
from kvspec.spec.language.terms import AnySort, MapSort, Path, SetSort, Sort, Term

Choice = dict[Any, int]
"""For each value that a scalar may have, the statement that it has it; exactly one of them holds."""
Members = dict[Any, int]
"""For each element that may be in a set, the statement that it is; no other element is."""
Table = dict[Any, Any]
"""What a map holds, by bare keys; under any other key it holds the default of its sort."""
Environment = Mapping[Term, Any]
"""What bound variables and parameters stand for, as Python values."""


class Reading:
    """Reads terms over one state.

    Args:
        structure: the elements of each sort, and the static words.
        logic: where statements are built.
        state: what each state variable is.
    """

    def __init__(self, structure: Structure, logic: Logic, state: Mapping[Path, Any]) -> None:
        self.structure, self.logic, self.state = structure, logic, state
        self.numbers = Arithmetic(logic)
        self._known: dict[tuple[Any, ...], Any] = {}
        self._free: dict[Term, tuple[Term, ...]] = {}
        self._tuples: dict[tuple[Sort, ...], list[tuple[Any, ...]]] = {}
        self._known_tuples: dict[tuple[Sort, ...], frozenset[tuple[Any, ...]]] = {}

    def read(self, term: Term, env: Environment) -> Any:
        """The term's meaning where bound variables and parameters stand for these values."""
        free = self._free.get(term)
        if free is None:
            free = self._free[term] = tuple(sorted(term.free, key=lambda v: cast(int, v.data[1])))
        key = (term, *[env[v] for v in free])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _MEANING[term.op](self, term, env)
        return found

    def statement(self, term: Term, env: Environment) -> int:
        """The literal of a statement."""
        return cast(int, self.read(term, env))

    # -- values of one sort ----------------------------------------------------------------------------------------

    def lift(self, value: Any, sort: AnySort) -> Any:
        """A Python value as the meaning of a term of this sort."""
        match sort:
            case SetSort():
                return {} if value is ABSENT else dict.fromkeys(value, TRUE)
            case MapSort():
                return {key: self.lift(inner, sort.value) for key, inner in value.items()}
            case Sort(kind="bool"):
                return TRUE if value else FALSE
            case Sort(kind="nat"):
                return Number((FALSE,), TRUE) if value is ABSENT else constant(value)
        return {value: TRUE}

    def choice(self, meaning: Any, sort: Sort) -> Choice:
        """Any scalar as a choice among its values."""
        if sort.kind == "bool":
            return {value: literal for value, literal in ((True, meaning), (False, meaning ^ 1)) if literal != FALSE}
        if sort.kind == "nat":
            found = dict(self.numbers.values(Number(meaning.bits)))
            if meaning.absent == FALSE:
                return found
            there = {value: self.logic.both(meaning.absent ^ 1, literal) for value, literal in found.items()}
            return {ABSENT: meaning.absent, **there}
        return cast(Choice, meaning)

    def chosen(self, choice: Choice, sort: Sort) -> Any:
        """A choice as the meaning of a scalar of this sort."""
        if sort.kind == "bool":
            return self.logic.any_of(literal for value, literal in choice.items() if value)
        if sort.kind == "nat":
            return self.mixed([(literal, self.lift(value, sort)) for value, literal in choice.items()], sort)
        return choice

    def mixed(self, branches: list[tuple[int, Any]], sort: AnySort) -> Any:
        """The branch whose condition holds; exactly one does."""
        if len(branches) == 1:
            return branches[0][1]
        match sort:
            case MapSort():
                return self._mixed_tables(branches, sort)
            case Sort(kind="bool"):
                return self.logic.any_of(self.logic.both(condition, literal) for condition, literal in branches)
            case Sort(kind="nat"):
                *others, (_, result) = branches
                for condition, number in others:
                    result = self.numbers.choose(condition, number, result)
                return result
        return self._gathered(branches)

    def _mixed_tables(self, branches: list[tuple[int, Table]], sort: MapSort) -> Table:
        found: Table = {}
        for key in dict.fromkeys(key for _, table in branches for key in table):
            found[key] = self.mixed([(c, self.held(table, key, sort)) for c, table in branches], sort.value)
        return found

    def _gathered(self, branches: list[tuple[int, dict[Any, int]]]) -> dict[Any, int]:
        both, either = self.logic.both, self.logic.either
        found: dict[Any, int] = {}
        for condition, parts in branches:
            for value, literal in parts.items():
                here = both(condition, literal)
                if here != FALSE:
                    found[value] = either(found[value], here) if value in found else here
        return found

    def held(self, table: Table, key: Any, sort: MapSort) -> Any:
        """What a map holds under a bare key."""
        return table[key] if key in table else self.lift(default(sort.value), sort.value)

    def stored(self, meaning: Any, sort: Sort | SetSort) -> Any:
        """What a map holds after this was stored in it: the default of its sort where that is absent."""
        if isinstance(sort, SetSort) or sort.kind not in ("nat", "position"):
            return meaning
        if sort.kind == "nat":
            return self.numbers.choose(meaning.absent, constant(default(sort)), Number(meaning.bits))
        values = [(literal, {default(sort) if v is ABSENT else v: TRUE}) for v, literal in meaning.items()]
        return self._gathered(values) if ABSENT in meaning else meaning

    def equal(self, left: Any, right: Any, sort: AnySort) -> int:
        """That two meanings of one sort are the same value."""
        logic = self.logic
        match sort:
            case SetSort():
                elements = {**left, **right}
                return logic.all_of(logic.differ(left.get(e, FALSE), right.get(e, FALSE)) ^ 1 for e in elements)
            case MapSort():
                keys = {**left, **right}
                pairs = ((self.held(left, k, sort), self.held(right, k, sort)) for k in keys)
                return logic.all_of(self.equal(a, b, sort.value) for a, b in pairs)
            case Sort(kind="bool"):
                return logic.differ(left, right) ^ 1
            case Sort(kind="nat"):
                return self.numbers.equal(left, right)
        return logic.any_of(logic.both(literal, right[value]) for value, literal in left.items() if value in right)

    # -- several at once -------------------------------------------------------------------------------------------

    def tuples(self, sorts: tuple[Sort, ...]) -> list[tuple[Any, ...]]:
        found = self._tuples.get(sorts)
        if found is None:
            found = self._tuples[sorts] = list(self.structure.tuples(sorts))
        return found

    def known(self, sorts: tuple[Sort, ...]) -> frozenset[tuple[Any, ...]]:
        """All that can be a key or an element of these sorts."""
        found = self._known_tuples.get(sorts)
        if found is None:
            found = self._known_tuples[sorts] = frozenset(self.tuples(sorts))
        return found

    def each(self, term: Term, env: Environment) -> Iterator[tuple[Any, Any]]:
        """The body for all values of the bound variables, with those as a bare key."""
        body = term.args[0]
        for xs in self.tuples(tuple(v.sort for v in term.data)):
            yield bare(xs), self.read(body, {**env, **dict(zip(term.data, xs, strict=True))})

    def combined(self, terms: tuple[Term, ...], env: Environment) -> list[tuple[tuple[Any, ...], int]]:
        """All values that several scalars may have together, each with the statement that they do."""
        choices = [self.choice(self.read(t, env), cast(Sort, t.sort)) for t in terms]
        if all(len(choice) == 1 for choice in choices):
            return [(tuple(value for choice in choices for value in choice), TRUE)]
        found = []
        for combination in itertools.product(*(choice.items() for choice in choices)):
            literal = self.logic.all_of(part for _, part in combination)
            if literal != FALSE:
                found.append((tuple(value for value, _ in combination), literal))
        return found


# -- one function for each operator ------------------------------------------------------------------------------------


def _all(r: Reading, t: Term, env: Environment) -> int:
    return r.logic.all_of(r.read(a, env) for a in t.args)


def _any(r: Reading, t: Term, env: Environment) -> int:
    return r.logic.any_of(r.read(a, env) for a in t.args)


def _implies(r: Reading, t: Term, env: Environment) -> int:
    premise = r.read(t.args[0], env)
    return TRUE if premise == FALSE else r.logic.either(premise ^ 1, r.read(t.args[1], env))


def _ite(r: Reading, t: Term, env: Environment) -> Any:
    condition = r.read(t.args[0], env)
    if condition <= TRUE:
        return r.read(t.args[1 if condition else 2], env)
    return r.mixed([(condition, r.read(t.args[1], env)), (condition ^ 1, r.read(t.args[2], env))], t.sort)


def _equal(r: Reading, t: Term, env: Environment) -> int:
    return r.equal(r.read(t.args[0], env), r.read(t.args[1], env), t.args[0].sort)


def _less(r: Reading, t: Term, env: Environment) -> int:
    left, right = r.read(t.args[0], env), r.read(t.args[1], env)
    if isinstance(left, Number):
        return r.numbers.less(left, right)
    return r.logic.any_of(
        r.logic.both(p, q)
        for (a, p), (b, q) in itertools.product(left.items(), right.items())
        if a is not ABSENT and b is not ABSENT and a < b
    )


def _arithmetic(operation: Callable[[Arithmetic, Number, Number], Number]) -> Callable[..., Number]:
    return lambda r, t, env: operation(r.numbers, r.read(t.args[0], env), r.read(t.args[1], env))


def _moved(by: int) -> Callable[[Reading, Term, Environment], Choice]:
    """The position after or before; there is none before the least."""

    def meaning(r: Reading, t: Term, env: Environment) -> Choice:
        moved = (
            (ABSENT if p is ABSENT or p + by < 0 else p + by, literal) for p, literal in r.read(t.args[0], env).items()
        )
        return r._gathered([(literal, {p: TRUE}) for p, literal in moved])

    return meaning


def _forall(r: Reading, t: Term, env: Environment) -> int:
    return r.logic.all_of(literal for _, literal in r.each(t, env))


def _exists(r: Reading, t: Term, env: Environment) -> int:
    return r.logic.any_of(literal for _, literal in r.each(t, env))


def _applied(r: Reading, t: Term, env: Environment) -> Any:
    path = t.args[0].data
    found = [(literal, r.lift(_value(r, path, args), t.sort)) for args, literal in r.combined(t.args[1:], env)]
    return r.mixed(found, t.sort)


def _value(r: Reading, path: Path, args: tuple[Any, ...]) -> Any:
    try:
        return r.structure.apply(path, args)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        if ABSENT not in args:
            raise
        return ABSENT  # evaluating it fails, so nobody does


def _get(r: Reading, t: Term, env: Environment) -> Any:
    table, sort = r.read(t.args[0], env), cast(MapSort, t.args[0].sort)
    keys = r.combined(t.args[1:], env)
    return r.mixed([(literal, r.held(table, bare(key), sort)) for key, literal in keys], sort.value)


def _has(r: Reading, t: Term, env: Environment) -> int:
    members = r.read(t.args[0], env)
    return r.logic.any_of(
        r.logic.both(literal, members.get(bare(element), FALSE)) for element, literal in r.combined(t.args[1:], env)
    )


def _empty(r: Reading, t: Term, env: Environment) -> int:
    return r.logic.any_of(r.read(t.args[0], env).values()) ^ 1


def _only(r: Reading, t: Term, env: Environment) -> int:
    members, elements = r.read(t.args[0], env), r.combined(t.args[1:], env)
    return r.logic.any_of(
        r.logic.both(literal, r.equal(members, {bare(element): TRUE}, t.args[0].sort)) for element, literal in elements
    )


def _changed(member: int) -> Callable[[Reading, Term, Environment], Members]:
    """The set with or without an element."""

    def meaning(r: Reading, t: Term, env: Environment) -> Members:
        members = dict(r.read(t.args[0], env))
        for element, literal in r.combined(t.args[1:], env):
            old = members.get(bare(element), FALSE)
            members[bare(element)] = r.logic.choose(literal, member, old)
        return members

    return meaning


def _store(r: Reading, t: Term, env: Environment) -> Table:
    sort = cast(MapSort, t.sort)
    table, value = dict(r.read(t.args[0], env)), r.stored(r.read(t.args[-1], env), sort.value)
    for keys, literal in r.combined(t.args[1:-1], env):
        key = bare(keys)
        old = r.held(table, key, sort)
        table[key] = value if literal == TRUE else r.mixed([(literal, value), (literal ^ 1, old)], sort.value)
    return table


def _table(r: Reading, t: Term, env: Environment) -> Table:
    value = cast(MapSort, t.sort).value
    return {key: r.stored(meaning, value) for key, meaning in r.each(t, env)}


def _case(r: Reading, t: Term, env: Environment) -> Choice:
    return {Variant(t.data, values): literal for values, literal in r.combined(t.args, env)}


def _is_case(r: Reading, t: Term, env: Environment) -> int:
    values = r.read(t.args[0], env).items()
    return r.logic.any_of(literal for v, literal in values if isinstance(v, Variant) and v.case == t.data)


def _field(r: Reading, t: Term, env: Environment) -> Any:
    case, number = t.data
    found = (
        (v.fields[number] if isinstance(v, Variant) and v.case == case else ABSENT, literal)
        for v, literal in r.read(t.args[0], env).items()
    )
    return r.chosen(r._gathered([(literal, {value: TRUE}) for value, literal in found]), cast(Sort, t.sort))


_MEANING: Mapping[str, Callable[[Reading, Term, Environment], Any]] = {
    "true": lambda r, t, env: TRUE,
    "false": lambda r, t, env: FALSE,
    "not": lambda r, t, env: r.read(t.args[0], env) ^ 1,
    "and": _all,
    "or": _any,
    "implies": _implies,
    "iff": lambda r, t, env: r.logic.differ(r.read(t.args[0], env), r.read(t.args[1], env)) ^ 1,
    "ite": _ite,
    "eq": _equal,
    "lt": _less,
    "num": lambda r, t, env: constant(t.data),
    "add": _arithmetic(Arithmetic.add),
    "sub": _arithmetic(Arithmetic.subtract),
    "mul": _arithmetic(Arithmetic.multiply),
    "div": _arithmetic(lambda a, x, y: a.divide(x, y)[0]),
    "mod": _arithmetic(lambda a, x, y: a.divide(x, y)[1]),
    "zero": lambda r, t, env: {0: TRUE},
    "next": _moved(1),
    "prev": _moved(-1),
    "forall": _forall,
    "exists": _exists,
    "var": lambda r, t, env: r.lift(env[t], t.sort),
    "state": lambda r, t, env: r.state[t.data],
    "static": lambda r, t, env: r.lift(r.structure.statics[t.data], t.sort),
    "call": _applied,
    "get": _get,
    "has": _has,
    "empty": _empty,
    "only": _only,
    "size": lambda r, t, env: r.numbers.count(r.read(t.args[0], env).values()),
    "set_empty": lambda r, t, env: {},
    "set_add": _changed(TRUE),
    "set_remove": _changed(FALSE),
    "set_lambda": lambda r, t, env: {key: literal for key, literal in r.each(t, env) if literal != FALSE},
    "store": _store,
    "map_lambda": _table,
    "case": _case,
    "is_case": _is_case,
    "field": _field,
}
