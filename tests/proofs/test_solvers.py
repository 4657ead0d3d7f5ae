"""What the solvers and the route of a cell promise beside verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import z3

from kvspec.proofs import prove as route
from kvspec.proofs import z3_solver
from kvspec.proofs.campaign import groups, prove_chapter
from kvspec.proofs.problems import opened
from kvspec.proofs.prove import Options, Prover
from kvspec.proofs.verdicts import Result, Verdict
from kvspec.spec import load
from kvspec.spec.blocks import Blocks
from kvspec.spec.language import Bool, Chapter, Id, Machine, Map, Nat, Set, exists, forall, implies, theorem


class _Interrupted:
    def check(self) -> z3.CheckSatResult:
        return z3.unknown

    def reason_unknown(self) -> str:
        return "interrupted from keyboard"


def test_an_interruption_that_z3_caught_is_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        z3_solver.checked(_Interrupted())


def test_verdicts_do_not_depend_on_the_run() -> None:
    def strip(results: list[Result]) -> list[Result]:
        return [replace(r, seconds=0.0) for r in results]

    first, second = (strip(prove_chapter("blocks", Chapter(Blocks))) for _ in range(2))
    assert first == second


def test_a_counterexample_that_is_not_confirmed_is_a_fault_of_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    chapter = Chapter(Blocks)
    chapter.event("drop_last").requires.clear()
    monkeypatch.setattr(route, "disagreement", lambda *rest: "free_iff_unheld holds")
    (group,) = [g for g in groups("blocks", chapter) if g.first.row == "drop_last"]
    prover = Prover(group, Options())
    results = [prover.result(o) for o in group.obligations]
    doubted = [r for r in results if r.verdict is Verdict.UNKNOWN]
    assert doubted and all(r.note.startswith("a fault of this tool") for r in doubted)
    assert not any(r.verdict is Verdict.REFUTED for r in results)


def test_constants_of_a_goal_are_not_the_variables_of_a_hypothesis() -> None:
    """The invariant that is assumed and the one that is to be shown bind the same variables."""
    invariant = load("blocks").invariants[0].term
    goal, witnesses = opened(invariant)
    assert invariant.op == "forall" and goal.op != "forall"
    assert set(witnesses) == set(invariant.data) and not set(witnesses.values()) & set(invariant.data)
    assert goal.free == frozenset(witnesses.values())


class Coin(Id):
    """Something to count."""


class Numbers(Machine):
    """Statements about all numbers and about sizes."""

    purse: Set[Coin]
    worth: Map[Coin, Nat]

    @theorem("false for one number that no finite scope has")
    def small(self) -> Bool:
        return forall(Nat, lambda n: n < 1000)

    @theorem("true, but not of the few numbers of a finite scope")
    def large(self) -> Bool:
        return exists(Nat, lambda n: n > 1000)

    @theorem("two coins are two")
    def two(self) -> Bool:
        return forall(
            Coin, Coin, lambda a, b: implies((a != b) & self.purse.has(a) & self.purse.has(b), self.purse.size() >= 2)
        )

    @theorem("a single coin is the only one")
    def single(self) -> Bool:
        return forall(Coin, lambda a: implies(self.purse.has(a) & (self.purse.size() == 1), self.purse.is_only(a)))

    @theorem("false: any coin is worth something")
    def worthy(self) -> Bool:
        return forall(Coin, lambda a: implies(self.purse.has(a), self.worth[a] != 0))


def test_numbers_and_sizes() -> None:
    results = {r.column: r for r in prove_chapter("numbers", Chapter(Numbers))}
    assert results["large"].verdict is Verdict.PROVED
    assert results["small"].verdict is Verdict.REFUTED and results["small"].counterexample is not None
    assert results["worthy"].verdict is Verdict.REFUTED
    assert results["single"].verdict is Verdict.PROVED
    assert results["two"].verdict is Verdict.UNKNOWN, "true, but not by the facts about single members"
    assert results["worth_natural"].verdict is Verdict.PROVED

