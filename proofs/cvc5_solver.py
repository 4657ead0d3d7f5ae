"""cvc5 on the same problems, for a second opinion: its own terms, its own quantifier instantiation.

Terms are built through cvc5's interface from our own formulas, not from what Z3 made of them, so a fault of one
translation does not hide in the other. Work is limited by cvc5's count of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import cvc5
from cvc5 import Kind

from kvspec.proofs.translate import triggers
from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import Sort, Term

QUICK, LONG = 40_000, 100_000
_KINDS: Mapping[str, Kind] = {
    "not": Kind.NOT,
    "and": Kind.AND,
    "or": Kind.OR,
    "implies": Kind.IMPLIES,
    "iff": Kind.EQUAL,
    "eq": Kind.EQUAL,
    "ite": Kind.ITE,
    "lt": Kind.LT,
    "add": Kind.ADD,
    "sub": Kind.SUB,
    "mul": Kind.MULT,
    "div": Kind.INTS_DIVISION,
    "mod": Kind.INTS_MODULUS,
}


class Terms:
    """Formulas as cvc5's terms; equal ones are translated once."""

    def __init__(self) -> None:
        self.manager = cvc5.TermManager()
        self._sorts: dict[str, Any] = {}
        self._symbols: dict[tuple[Any, ...], Any] = {}
        self._bound: dict[Term, Any] = {}
        self._memo: dict[Term, Any] = {}

    def sort(self, sort: Sort) -> Any:
        if sort.kind in ("bool", "nat"):
            return self.manager.getBooleanSort() if sort.kind == "bool" else self.manager.getIntegerSort()
        if sort.name not in self._sorts:
            self._sorts[sort.name] = self.manager.mkUninterpretedSort(sort.name)
        return self._sorts[sort.name]

    def term(self, term: Term) -> Any:
        done = self._memo.get(term)
        if done is None:
            done = self._memo[term] = self._translate(term)
        return done

    def _symbol(self, name: str, args: tuple[Sort, ...], result: Sort) -> Any:
        key = (name, args, result)
        if key not in self._symbols:
            kind = self.sort(result)
            if args:
                kind = self.manager.mkFunctionSort(list(map(self.sort, args)), kind)
            self._symbols[key] = self.manager.mkConst(kind, name)
        return self._symbols[key]

    def _apply(self, name: str, args: tuple[Term, ...], result: Sort) -> Any:
        symbol = self._symbol(name, tuple(cast(Sort, a.sort) for a in args), result)
        return self.manager.mkTerm(Kind.APPLY_UF, symbol, *map(self.term, args)) if args else symbol

    def _translate(self, term: Term) -> Any:
        make = self.manager
        sort = cast(Sort, term.sort)
        match term.op:
            case "true" | "false":
                return make.mkBoolean(term.op == "true")
            case "num":
                return make.mkInteger(str(term.data))
            case "var" if term in self._bound:
                return self._bound[term]
            case "var":
                return self._symbol(f"{term.data[0]}!{term.data[1]}", (), sort)
            case "atom":
                return self._apply(term.data, term.args, sort)
            case "lt" if cast(Sort, term.args[0].sort).kind == "position":
                return self._apply(f"#lt.{cast(Sort, term.args[0].sort).name}", term.args, T.BOOL)
            case "forall" | "exists":
                return self._quantifier(term)
        return make.mkTerm(_KINDS[term.op], *map(self.term, term.args))

    def _quantifier(self, term: Term) -> Any:
        """A variable is a bound one wherever it occurs: constants have other names (`problems.opened`)."""
        make = self.manager
        for v in term.data:
            self._bound.setdefault(v, make.mkVar(self.sort(cast(Sort, v.sort)), f"{v.data[0]}!{v.data[1]}"))
        xs = make.mkTerm(Kind.VARIABLE_LIST, *(self._bound[v] for v in term.data))
        body = self.term(term.args[0])
        patterns = [make.mkTerm(Kind.INST_PATTERN, *map(self.term, p)) for p in triggers(term)]
        kind = Kind.FORALL if term.op == "forall" else Kind.EXISTS
        if patterns and kind == Kind.FORALL:
            return make.mkTerm(kind, xs, body, make.mkTerm(Kind.INST_PATTERN_LIST, *patterns))
        return make.mkTerm(kind, xs, body)


class Cvc5Session:
    """All problems of a group, asked one after the other of one solver; more effort is made by solvers of their own."""

    name = "cvc5"

    def __init__(self, base: Iterable[Term]) -> None:
        self._terms = Terms()
        self._base = list(base)
        self._solver = self._new(QUICK, {"full-saturate-quant": "true", "incremental": "true"})

    def _new(self, limit: int, options: Mapping[str, str]) -> Any:
        solver = cvc5.Solver(self._terms.manager)
        solver.setLogic("ALL")
        for name, value in {"rlimit-per": str(limit), "seed": "0", **options}.items():
            solver.setOption(name, value)
        self._assert(solver, self._base)
        return solver

    def _assert(self, solver: Any, terms: Iterable[Term]) -> None:
        for term in terms:
            solver.assertFormula(self._terms.term(term))

    def refutes(self, refutation: Iterable[Term]) -> bool:
        """Whether the base and these cannot hold together."""
        self._solver.push()
        try:
            self._assert(self._solver, refutation)
            return bool(self._solver.checkSat().isUnsat())
        finally:
            self._solver.pop()

    def refutes_with_effort(self, refutation: Iterable[Term]) -> bool:
        """The same from the start, with other ways to instantiate and a higher limit."""
        goal = list(refutation)
        for options in _EFFORTS:
            solver = self._new(LONG, options)
            self._assert(solver, goal)
            if solver.checkSat().isUnsat():
                return True
        return False


_EFFORTS: tuple[Mapping[str, str], ...] = (
    {"full-saturate-quant": "true"},
    {"enum-inst": "true"},
    {"full-saturate-quant": "true", "trigger-sel": "max"},
    {"full-saturate-quant": "true", "enum-inst-interleave": "true"},
    {"mbqi": "true"},
)
