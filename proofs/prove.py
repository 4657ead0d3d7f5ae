"""The route of an obligation: an unbounded proof first, then a finite counterexample, then whoever is left.

Z3 by matching alone decides nearly every true cell in milliseconds and gives up on a false one as fast. What it does
not prove is read in finite scopes, which grow; a counterexample counts only if the concrete reading confirms it. What
neither proves nor refutes gets more effort by both solvers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from kvspec.proofs.confirm import cut_short, disagreement
from kvspec.proofs.describe import describe
from kvspec.proofs.obligations import CAN_FAIL, Obligation
from kvspec.proofs.problems import Group, Problem
from kvspec.proofs.refuting import Found, Refuter
from kvspec.proofs.runs import search
from kvspec.proofs.shape import shape
from kvspec.proofs.verdicts import UNBOUNDED, Result, Verdict
from kvspec.proofs.z3_solver import Z3Session
from kvspec.spec.language.terms import Term

SOLVERS = ("z3", "cvc5")
CONTRADICTION = "the hypotheses contradict each other"


class Session(Protocol):
    """A solver that knows the hypotheses of a group."""

    def refutes(self, refutation: Iterable[Term]) -> bool: ...
    def refutes_with_effort(self, refutation: Iterable[Term]) -> bool: ...


@dataclass(frozen=True)
class Options:
    """How obligations are decided."""

    solvers: tuple[str, ...] = ("z3",)
    """Who proves; the first one that fails is enough to look for a counterexample."""
    largest: int = 4
    """Up to how many elements of a sort a counterexample is looked for."""
    runs: int = 4000
    """How many steps a search for a run from the start may take."""


@dataclass
class _Cell:
    """One obligation on its way."""

    obligation: Obligation
    started: float
    said: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    shape: str = ""

    def result(self, verdict: Verdict, scope: str, note: str = "") -> Result:
        o = self.obligation
        return Result(
            o.id, o.chapter, o.row, o.column, o.kind, o.sentence, str(o.where), verdict, scope, dict(self.said),
            time.perf_counter() - self.started, note, self.steps, self.shape,
        )  # fmt: skip


class Prover:
    """Decides the obligations of one group."""

    def __init__(self, group: Group, options: Options) -> None:
        self.group, self.options = group, options
        self.refuter = Refuter(group, options.largest)
        self._sessions: dict[str, Session] = {name: _session(name, group) for name in options.solvers}

    def result(self, obligation: Obligation) -> Result:
        cell = _Cell(obligation, time.perf_counter())
        return self._possible(cell) if obligation.kind == "possible" else self._follows(cell)

    def holds_at_once(self, obligation: Obligation) -> bool:
        """Whether it is proved without effort; if not, nothing is said yet."""
        if obligation.kind == "possible":
            return self.refuter.smallest() is not None
        problem = self.group.problem(obligation)
        return all(session.refutes(problem.refutation) for session in self._sessions.values())

    def _possible(self, cell: _Cell) -> Result:
        found = self.refuter.smallest()
        if found is not None:
            return cell.result(Verdict.PROVED, f"shown with {found}")
        if any(session.refutes(()) for session in self._sessions.values()):
            empty = cell.obligation.row == CAN_FAIL
            said = "it holds in every state, whatever happens: it says nothing" if empty else CONTRADICTION
            return cell.result(Verdict.VACUOUS, UNBOUNDED, said)
        note = f"nothing up to {self.options.largest} elements of each sort satisfies the hypotheses"
        return cell.result(Verdict.VACUOUS, f"up to {self.options.largest} elements", note)

    def _follows(self, cell: _Cell) -> Result:
        """Everybody proves it at once, or else: counterexamples first, then more effort by those who did not."""
        problem = self.group.problem(cell.obligation)
        cell.shape = shape(problem.whole)
        for name, session in self._sessions.items():
            cell.said[name] = "proved" if session.refutes(problem.refutation) else "unknown"
            if cell.said[name] == "unknown":
                break
            if isinstance(session, Z3Session):
                cell.steps = session.steps
        if "unknown" not in cell.said.values():
            return cell.result(Verdict.PROVED, UNBOUNDED)
        if "proved" not in cell.said.values() and not cut_short(cell.obligation):
            found = self.refuter.counterexample(problem)
            if found is not None:
                return self._refuted(cell, problem, found)
        return self._harder(cell, problem)

    def _harder(self, cell: _Cell, problem: Problem) -> Result:
        for name, session in self._sessions.items():
            if cell.said.get(name) != "proved":
                tries = (session.refutes, session.refutes_with_effort)
                cell.said[name] = "proved" if any(t(problem.refutation) for t in tries) else "unknown"
        failed = [name for name, answer in cell.said.items() if answer != "proved"]
        if len(failed) < len(cell.said):
            return cell.result(Verdict.PROVED, UNBOUNDED, f"not by {', '.join(failed)}" if failed else "")
        scope = f"up to {self.options.largest} elements of each sort"
        if cut_short(cell.obligation):
            return cell.result(Verdict.UNKNOWN, UNBOUNDED, "it speaks of all numbers, so no finite scope decides it")
        return cell.result(Verdict.UNKNOWN, scope, f"no counterexample {scope}: an invariant may be missing")

    def _refuted(self, cell: _Cell, problem: Problem, found: Found) -> Result:
        obligation, chapter = cell.obligation, self.group.chapter
        situation = self.refuter.decoded(found, problem)
        doubt = disagreement(chapter, obligation, situation)
        if doubt is not None:
            note = f"a fault of this tool: the counterexample is not confirmed by the concrete reading ({doubt})"
            return cell.result(Verdict.UNKNOWN, str(found.scope), note)
        run = search(chapter, obligation, situation, self.options.runs)
        report = describe(chapter, obligation, situation, run)
        return replace(cell.result(Verdict.REFUTED, report.size), counterexample=report)


def _session(name: str, group: Group) -> Session:
    if name == "z3":
        return Z3Session(group.base)
    from kvspec.proofs.cvc5_solver import Cvc5Session  # imported where it is asked for: it costs a tenth of a second

    return Cvc5Session(group.base)
