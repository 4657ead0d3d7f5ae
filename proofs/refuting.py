"""Counterexamples: found in finite scopes, made small, and believed only if the concrete reading agrees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvspec.proofs.decode import Decoded, Decoder
from kvspec.proofs.finite import Cell, FiniteSolver, Model, Scope, cell
from kvspec.proofs.problems import Group, Problem
from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import Term


@dataclass(frozen=True)
class Found:
    """A model of the hypotheses in which the goal is false (if there is a goal)."""

    scope: Scope
    model: Model
    solver: FiniteSolver


class Refuter:
    """Looks for situations in which the hypotheses of a group hold, and a goal does not."""

    def __init__(self, group: Group, largest: int) -> None:
        self.group, self.largest = group, largest
        self._first: Scope | None = None
        chapter = group.chapter
        self._facts = {v.name for v in chapter.variables.values()} | {s.name for s in chapter.statics.values()}
        self._assumed = [t for t in group.hypotheses if t in group.shared.assumed]

    def scopes(self) -> Iterator[Scope]:
        """Scopes in which all sorts have the same number of elements."""
        for size in range(1, self.largest + 1):
            yield self._uniform(size)

    def _uniform(self, size: int) -> Scope:
        sorts = sorted(s.name for s in self.group.chapter.sorts.values() if s.kind in ("id", "position"))
        return Scope((*((name, size) for name in sorts), ("Nat", size + 2)))

    def smallest(self) -> Scope | None:
        """The first scope in which the hypotheses can hold."""
        if self._first is None:
            self._first = next((s for s in self.scopes() if self._found(s, ()) is not None), None)
        return self._first

    def counterexample(self, problem: Problem) -> Found | None:
        """The hypotheses hold and the goal does not, in a scope as small as can be."""
        first = self.smallest()
        if first is None:
            return None
        for scope in self.scopes():
            if all(size >= first.of(sort) for sort, size in scope.sizes):
                found = self._found(scope, problem.refutation, problem)
                if found is not None:
                    return self._fewest_facts(self._fewest_elements(found, problem), problem)
        return None

    def _found(self, scope: Scope, more: Sequence[Term], problem: Problem | None = None) -> Found | None:
        solver = self._solver(scope)
        solver.expansion.lowering = self.group.lowering if problem is None else problem.lowering
        model = solver.model((*self.group.hypotheses, *self.group.facts, *more))
        return None if model is None else Found(scope, model, solver)

    def _solver(self, scope: Scope) -> FiniteSolver:
        key = (scope, *self._assumed)
        known = self.group.shared.finite
        if key not in known:
            known[key] = FiniteSolver(scope, self.group.lowering, self._assumed)
        return known[key]

    # -- small ---------------------------------------------------------------------------------------------------

    def _fewest_elements(self, found: Found, problem: Problem) -> Found:
        """One element after the other is taken out of some sort, as long as a counterexample is left."""
        for sort, _ in found.scope.sizes:
            while sort != "Nat" and found.scope.of(sort) > 1:
                smaller = self._found(
                    found.scope.with_size(sort, found.scope.of(sort) - 1), problem.refutation, problem
                )
                if smaller is None:
                    break
                found = smaller
        return found

    def _fewest_facts(self, found: Found, problem: Problem) -> Found:
        """No fact of the state can be left out: what holds is made less until nothing can be."""
        terms = (*self.group.hypotheses, *self.group.facts, *problem.refutation)
        grounds = [found.solver.expansion.truth(t, {}) for t in terms]
        model = found.model
        while True:
            relations = [c for c in found.solver.relations() if c.symbol.partition("@")[0] in self._facts]
            facts = [c for c in relations if c in model]
            others = [c for c in relations if c not in model]
            less = [T.neg(T.conj(map(_holds, facts))), *(T.neg(_holds(c)) for c in others)]
            smaller = found.solver.ground_model([*grounds, *less])
            if smaller is None:
                return Found(found.scope, model, found.solver)
            model = smaller

    def decoded(self, found: Found, problem: Problem) -> Decoded:
        """The situation, with values for the goal's outermost variables too."""
        constants = [*problem.obligation.constants, *problem.witnesses.values()]
        decoded = Decoder(self.group.chapter, found.scope, found.model).decoded(constants)
        outer = {v: decoded.values[w] for v, w in problem.witnesses.items()}
        return replace(decoded, values={**decoded.values, **outer})


def _holds(c: Cell) -> Term:
    return cell(c.symbol, c.args)
