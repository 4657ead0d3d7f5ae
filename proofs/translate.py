"""First-order formulas as Z3 expressions over opaque sorts of any size."""

from __future__ import annotations

from typing import Any, cast

import z3

from kvspec.proofs.z3_terms import BUILD, apply
from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import Sort, Term

z3.Context.owner = False  # its __del__ asks for this even where Ctrl-C ended its __init__


class Translator:
    """Keeps one Z3 sort for each sort and one function for each symbol; equal terms are translated once."""

    def __init__(self) -> None:
        self.context = z3.Context()
        self.sorts: dict[str, z3.SortRef] = {}
        self.functions: dict[tuple[Any, ...], z3.FuncDeclRef] = {}
        self._memo: dict[Term, Any] = {}

    def sort(self, sort: Sort) -> z3.SortRef:
        if sort.kind in ("bool", "nat"):
            return z3.BoolSort(self.context) if sort.kind == "bool" else z3.IntSort(self.context)
        if sort.name not in self.sorts:
            self.sorts[sort.name] = z3.DeclareSort(sort.name, self.context)
        return self.sorts[sort.name]

    def function(self, name: str, args: tuple[Sort, ...], result: Sort) -> z3.FuncDeclRef:
        key = (name, args, result)
        if key not in self.functions:
            self.functions[key] = z3.Function(name, *map(self.sort, args), self.sort(result))
        return self.functions[key]

    def expression(self, term: Term) -> Any:
        done = self._memo.get(term)
        if done is None:
            done = self._memo[term] = self._translate(term)
        return done

    def _translate(self, term: Term) -> Any:
        if term.op in ("forall", "exists"):
            return self._quantifier(term)
        if term.op == "lt" and cast(Sort, term.args[0].sort).kind == "position":
            sort = cast(Sort, term.args[0].sort)
            below = self.function(f"#lt.{sort.name}", (sort, sort), T.BOOL)
            return apply(below, [self.expression(a) for a in term.args], self.context)
        args = [self.expression(a) for a in term.args]
        match term.op:
            case "true" | "false":
                return z3.BoolVal(term.op == "true", self.context)
            case "num":
                return z3.IntVal(term.data, self.context)
            case "var":
                return z3.Const(f"{term.data[0]}!{term.data[1]}", self.sort(cast(Sort, term.sort)))
            case "atom":
                sorts = tuple(cast(Sort, a.sort) for a in term.args)
                return apply(self.function(term.data, sorts, cast(Sort, term.sort)), args, self.context)
            case op if op in BUILD:
                return BUILD[op](self.context, args)
        raise AssertionError(f"operator {term.op} has no translation")

    def _quantifier(self, term: Term) -> Any:
        xs = [self.expression(v) for v in term.data]
        body = self.expression(term.args[0])
        if term.op == "exists":
            return z3.Exists(xs, body)
        patterns = [z3.MultiPattern(*map(self.expression, p)) for p in triggers(term)]
        return z3.ForAll(xs, body, patterns=patterns)


def triggers(term: Term) -> list[tuple[Term, ...]]:
    """Where a statement speaks of the position before a bound one, it is used only where that position is mentioned:
    without this, each use would mention the next position before, without end."""
    bound = frozenset(term.data)
    atoms = [t for t in T.subterms(term.args[0]) if t.op in ("atom", "lt") and t.free & bound]
    prevs = [t for t in atoms if t.op == "atom" and t.data.startswith("#prev.") and t.args[0] in bound]
    if not prevs:
        return []
    chosen, covered = [prevs[0]], prevs[0].free & bound
    functions = sorted((t for t in atoms if t.sort != T.BOOL), key=lambda t: len(list(T.subterms(t))))
    for t in (*functions, *(t for t in atoms if t.sort == T.BOOL)):
        if (t.free & bound) - covered:
            chosen.append(t)
            covered |= t.free & bound
    return [tuple(chosen)] if covered >= bound else []
