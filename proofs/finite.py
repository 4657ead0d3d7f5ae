"""The finite reading: the same formulas over sorts of a few elements, with every quantifier written out.

Elements are numbers, positions are ordered by them, so order, next and previous are tables that fold away. A value of
a function is a choice among elements, one statement for each, so no theory is needed; what is left are statements about
*cells* (`Cell`: a symbol at given elements) and, where sizes or counters occur, sums. A size is the sum over its
members, exactly.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import z3

from kvspec.proofs.lowering import SEEN, Lowering
from kvspec.proofs.z3_solver import checked
from kvspec.proofs.z3_terms import BUILD
from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import BOOL, NAT, Sort, Term

Env = Mapping[Term, int]
LIMIT = 5_000_000


class Cell(NamedTuple):
    """A symbol at some elements; ``value`` says which value it has, None where the symbol is a relation or a number."""

    symbol: str
    args: tuple[int, ...]
    value: int | None


@dataclass(frozen=True)
class Scope:
    """How many elements each sort has; of the naturals, how many a quantifier goes through."""

    sizes: tuple[tuple[str, int], ...]

    def of(self, sort: str) -> int:
        return dict(self.sizes)[sort]

    def __str__(self) -> str:
        return ", ".join(counted(n, name.lower()) for name, n in self.sizes if name != "Nat") or "no elements"

    def with_size(self, sort: str, size: int) -> Scope:
        return Scope(tuple((name, size if name == sort else n) for name, n in self.sizes))


def counted(number: int, noun: str) -> str:
    """``1 block``, ``2 blocks``, ``2 indexes``."""
    if number == 1 or noun.endswith("s"):
        return f"{number} {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('x', 'ch')) else 's'}"


def cell(symbol: str, args: tuple[int, ...], value: int | None = None, sort: Sort = BOOL) -> Term:
    return T.make("cell", (), sort, Cell(symbol, args, value))


class Expansion:
    """Formulas as statements about cells, for one scope."""

    def __init__(self, scope: Scope) -> None:
        self.scope = dict(scope.sizes)
        self.rules: list[Term] = []
        """That each choice has exactly one value, and that counters are not negative."""
        self._choices: set[tuple[str, tuple[int, ...]]] = set()
        self._memo: dict[tuple[Any, ...], Any] = {}
        self._free: dict[Term, tuple[Term, ...]] = {}
        self.lowering: Lowering | None = None

    # -- entry ---------------------------------------------------------------------------------------------------

    def truth(self, term: Term, env: Env) -> Term:
        """A statement."""
        return cast(Term, self._remembered("truth", term, env))

    def choice(self, term: Term, env: Env) -> tuple[Term, ...]:
        """A value of an opaque or ordered sort: for each element, that it is this one."""
        return cast("tuple[Term, ...]", self._remembered("choice", term, env))

    def number(self, term: Term, env: Env) -> Term:
        """A number."""
        return cast(Term, self._remembered("number", term, env))

    def _remembered(self, kind: str, term: Term, env: Env) -> Any:
        free = self._free.get(term)
        if free is None:
            free = self._free[term] = tuple(sorted(term.free, key=lambda v: cast(int, v.data[1])))
        key = (kind, term, *(env.get(v) for v in free))
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = getattr(self, f"_{kind}")(term, env)
        return found

    # -- statements ----------------------------------------------------------------------------------------------

    def _truth(self, term: Term, env: Env) -> Term:
        match term.op:
            case "true" | "false" | "cell":
                return term
            case "not":
                return T.neg(self.truth(term.args[0], env))
            case "and":
                return self._all(self.truth(a, env) for a in term.args)
            case "or":
                return T.neg(self._all(T.neg(self.truth(a, env)) for a in term.args))
            case "implies":
                return _implies(self.truth(term.args[0], env), lambda: self.truth(term.args[1], env))
            case "iff":
                return T.iff(*(self.truth(a, env) for a in term.args))
            case "ite":
                return T.ite(*(self.truth(a, env) for a in term.args))
            case "eq":
                return self._equal(term.args[0], term.args[1], env)
            case "lt":
                return self._less(term.args[0], term.args[1], env)
            case "forall":
                return self._all(self.truth(term.args[0], e) for e in self._each(term.data, env))
            case "exists":
                return T.neg(self._all(T.neg(self.truth(term.args[0], e)) for e in self._each(term.data, env)))
            case "atom":
                return self._relation(term, env)
            case "var":
                return T.TRUE if self._value(term, env) else T.FALSE
        raise AssertionError(f"operator {term.op} has no finite reading")

    @staticmethod
    def _all(parts: Iterable[Term]) -> Term:
        kept: dict[Term, None] = {}
        for part in parts:
            if part is T.FALSE:
                return T.FALSE
            kept[part] = None
        return T.conj(kept)

    def _each(self, variables: Sequence[Term], env: Env) -> Iterator[Env]:
        ranges = [self._range(cast(Sort, v.sort)) for v in variables]
        for values in itertools.product(*ranges):
            yield {**env, **dict(zip(variables, values, strict=True))}

    def _range(self, sort: Sort) -> range:
        return range(2) if sort == BOOL else range(self.scope[sort.name])

    def _value(self, v: Term, env: Env) -> Term | None:
        """A Boolean variable."""
        if v in env:
            return T.TRUE if env[v] else None
        return cell(_symbol(v), ())

    def _relation(self, term: Term, env: Env) -> Term:
        if term.data.startswith(SEEN):
            return T.TRUE
        options = [(args, condition) for args, condition in self._places(term.args, env)]
        return T.disj(T.conj((condition, cell(term.data, args))) for args, condition in options)

    def _places(self, args: Sequence[Term], env: Env) -> Iterator[tuple[tuple[int, ...], Term]]:
        """The elements that arguments can be, each with the condition for it."""
        choices = [[(i, c) for i, c in enumerate(self._options(a, env)) if c is not T.FALSE] for a in args]
        for pick in itertools.product(*choices):
            condition = T.conj(c for _, c in pick)
            if condition is not T.FALSE:
                yield tuple(i for i, _ in pick), condition

    def _options(self, term: Term, env: Env) -> tuple[Term, ...]:
        sort = cast(Sort, term.sort)
        if sort == BOOL:
            yes = self.truth(term, env)
            return (T.neg(yes), yes)
        if sort == NAT:
            value = self.number(term, env)
            return tuple(T.eq(value, T.num(i)) for i in self._range(sort))
        return self.choice(term, env)

    def _equal(self, left: Term, right: Term, env: Env) -> Term:
        if left.sort == NAT:
            return T.eq(self.number(left, env), self.number(right, env))
        pairs = zip(self.choice(left, env), self.choice(right, env), strict=True)
        return T.disj(T.conj(pair) for pair in pairs)

    def _less(self, left: Term, right: Term, env: Env) -> Term:
        if left.sort == NAT:
            return _lt(self.number(left, env), self.number(right, env))
        low, high = self.choice(left, env), self.choice(right, env)
        return T.disj(T.conj((low[i], high[j])) for i, j in itertools.combinations(range(len(low)), 2))

    # -- choices -------------------------------------------------------------------------------------------------

    def _choice(self, term: Term, env: Env) -> tuple[Term, ...]:
        count = len(self._range(cast(Sort, term.sort)))
        match term.op:
            case "var" if term in env:
                return tuple(T.TRUE if i == env[term] else T.FALSE for i in range(count))
            case "var":
                return self._cells(_symbol(term), (), count)
            case "ite":
                condition = self.truth(term.args[0], env)
                both = zip(self.choice(term.args[1], env), self.choice(term.args[2], env), strict=True)
                return tuple(T.ite(condition, yes, no) for yes, no in both)
            case "atom":
                return self._function(term, env, count)
        raise AssertionError(f"operator {term.op} has no finite reading")

    def _function(self, term: Term, env: Env, count: int) -> tuple[Term, ...]:
        word, _, of = term.data.partition(".")
        if of == cast(Sort, term.sort).name and word in ("#zero", "#next", "#prev"):
            if word == "#zero":
                return (T.TRUE, *[T.FALSE] * (count - 1))
            at = self.choice(term.args[0], env)
            return (T.FALSE, *at[:-1]) if word == "#next" else (*at[1:], T.FALSE)
        places = [(c, self._cells(term.data, args, count)) for args, c in self._places(term.args, env)]
        return tuple(T.disj(T.conj((c, cells[i])) for c, cells in places) for i in range(count))

    def _cells(self, symbol: str, args: tuple[int, ...], count: int) -> tuple[Term, ...]:
        cells = tuple(cell(symbol, args, i) for i in range(count))
        if (symbol, args) not in self._choices:
            self._choices.add((symbol, args))
            self.rules.append(T.disj(cells))
            self.rules += [T.neg(T.conj(pair)) for pair in itertools.combinations(cells, 2)]
        return cells

    # -- numbers -------------------------------------------------------------------------------------------------

    def _number(self, term: Term, env: Env) -> Term:
        match term.op:
            case "num":
                return term
            case "var" if term in env:
                return T.num(env[term])
            case "var":
                return self._counter(_symbol(term), ())
            case "ite":
                condition = self.truth(term.args[0], env)
                return T.ite(condition, self.number(term.args[1], env), self.number(term.args[2], env))
            case "add" | "sub" | "mul" | "div" | "mod":
                return _calculated(term.op, self.number(term.args[0], env), self.number(term.args[1], env))
            case "atom" if self.lowering is not None and term.data in self.lowering.counted:
                return self._chosen(term, env, self._size)
            case "atom":
                return self._chosen(term, env, self._counter)
        raise AssertionError(f"operator {term.op} has no finite reading")

    def _chosen(self, term: Term, env: Env, value: Any) -> Term:
        result = T.num(0)
        for args, condition in self._places(term.args, env):
            result = T.ite(condition, value(term.data, args), result)
        return result

    def _counter(self, symbol: str, args: tuple[int, ...]) -> Term:
        made = cell(symbol, args, None, NAT)
        if (symbol, args) not in self._choices:
            self._choices.add((symbol, args))
            self.rules.append(T.neg(T.make("lt", (made, T.num(0)), BOOL)))
        return made

    def _size(self, symbol: str, args: tuple[int, ...]) -> Term:
        """How many members a set has, member by member."""
        assert self.lowering is not None
        total = T.num(0)
        xs, shapes = self.lowering.members(symbol)
        env = dict(zip(xs, args, strict=True))
        for ys, member in shapes:
            for each in self._each(ys, env):
                one = T.ite(self.truth(member, each), T.num(1), T.num(0))
                total = _calculated("add", total, one)
        return total


def _symbol(v: Term) -> str:
    return f"{v.data[0]}!{v.data[1]}"


def _implies(premise: Term, conclusion: Any) -> Term:
    return T.TRUE if premise is T.FALSE else T.implies(premise, conclusion())


def _lt(left: Term, right: Term) -> Term:
    if left.op == right.op == "num":
        return T.TRUE if left.data < right.data else T.FALSE
    return T.make("lt", (left, right), BOOL)


_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.floordiv,
    "mod": operator.mod,
}


def _calculated(op: str, left: Term, right: Term) -> Term:
    if left.op == right.op == "num" and not (op in ("div", "mod") and right.data == 0):
        return T.num(_ARITHMETIC[op](left.data, right.data))
    if op in ("add", "sub") and right is T.num(0):
        return left
    return right if op == "add" and left is T.num(0) else T.make(op, (left, right), NAT)


# -- models ------------------------------------------------------------------------------------------------------------

Model = dict[Cell, int]
"""The cells that hold, and the numbers."""


class FiniteSolver:
    """Whether statements about cells can hold together, on top of some that always hold."""

    def __init__(self, scope: Scope, lowering: Lowering, base: Iterable[Term]) -> None:
        self.expansion = Expansion(scope)
        self.expansion.lowering = lowering
        self.context = z3.Context()
        self._solver = z3.Solver(ctx=self.context)
        self._solver.set(rlimit=LIMIT, random_seed=0, ctrl_c=False)  # or Z3 may swallow an interruption
        self._memo: dict[Term, Any] = {}
        self._cells: dict[str, Cell] = {}
        self._numbers: set[str] = set()
        self._stated = 0
        self.contradiction = False
        for term in base:
            self.add(term)

    def add(self, term: Term) -> None:
        """State it for good."""
        ground = self.expansion.truth(term, {})
        self._rules()
        if ground is T.FALSE:
            self.contradiction = True
        self._solver.add(self.expression(ground))

    def model(self, terms: Sequence[Term]) -> Model | None:
        """Cells for which all of it holds."""
        grounds = [self.expansion.truth(t, {}) for t in terms]
        self._rules()
        if self.contradiction or T.FALSE in grounds:
            return None
        return self.ground_model(grounds)

    def ground_model(self, grounds: Iterable[Term]) -> Model | None:
        """The same for statements about cells."""
        self._solver.push()
        try:
            self._solver.add(*map(self.expression, grounds))
            return self._read(self._solver.model()) if checked(self._solver) else None
        finally:
            self._solver.pop()

    def relations(self) -> list[Cell]:
        """The cells that hold or do not, known so far."""
        return [c for name, c in self._cells.items() if c.value is None and name not in self._numbers]

    def _rules(self) -> None:
        rules = self.expansion.rules
        self._solver.add(*map(self.expression, rules[self._stated :]))
        self._stated = len(rules)

    def _read(self, model: Any) -> Model:
        found: Model = {}
        for d in model.decls():
            at = self._cells.get(d.name())
            if at is not None:
                value = model[d]
                number = int(z3.is_true(value)) if z3.is_bool(value) else value.as_long()
                if number or not z3.is_bool(value):
                    found[at] = number
        return found

    def expression(self, term: Term) -> Any:
        done = self._memo.get(term)
        if done is None:
            done = self._memo[term] = self._express(term)
        return done

    def _express(self, term: Term) -> Any:
        if term.op == "cell":
            name = str(len(self._cells))
            self._cells[name] = term.data
            if term.sort == BOOL:
                return z3.Bool(name, self.context)
            self._numbers.add(name)
            return z3.Int(name, self.context)
        if term.op in ("true", "false"):
            return z3.BoolVal(term.op == "true", self.context)
        if term.op == "num":
            return z3.IntVal(term.data, self.context)
        return BUILD[term.op](self.context, [self.expression(a) for a in term.args])
