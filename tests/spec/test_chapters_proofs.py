"""The smaller chapters: all obligations hold without bound, and every requirement and invariant is needed for that."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace

import cvc5
import pytest
import z3

from kvspec.proofs.lowering import Lowering, order_axioms, prev_axioms
from kvspec.proofs.obligations import ChapterObligations, Obligation
from kvspec.proofs.translate import Translator
from kvspec.spec import load
from kvspec.spec.language import Chapter
from kvspec.spec.language import terms as T
from kvspec.spec.language.machine import Requirement, TracedEvent

CHAPTERS = ("keys", "slots", "handles", "free_list", "usage", "lru")

# Invariants that no other statement rests on: readers want them. (That counters are no negative numbers is the type
# fact of a counter, and follows where the counter is the size of a set.)
FOR_READERS = {
    "handles": {"ref_count_natural"},
    "free_list": {"count_within"},
    "usage": {"num_used_natural", "refs_natural"},
}
# Stands for a counting argument: without it there is no proof, and in no finite scope a counterexample.
COUNTING = {("free_list", "place_below")}


def obligations(name: str) -> list[Obligation]:
    """What has to follow; whether hypotheses can hold at all is another question."""
    return [o for o in ChapterObligations(name, load(name)) if o.goal is not T.FALSE]


def problem(chapter: Chapter, obligation: Obligation, limit: int = 3_000_000) -> z3.Solver:
    """The hypotheses and the negated goal; unsatisfiable if the obligation holds."""
    goal, constants = obligation.goal, set(obligation.constants)
    while goal.op == "forall":
        constants |= set(goal.data)
        goal = goal.args[0]
    lowering = Lowering(chapter)
    lowering.constants = frozenset(constants)
    numbers = [T.neg(T.make("lt", (c, T.num(0)), T.BOOL)) for c in constants if c.sort == T.NAT]
    formulas = [*numbers, *(lowering.formula(h) for _, h in obligation.hypotheses), T.neg(lowering.formula(goal))]
    formulas += [f.term for f in lowering.facts.values()]
    for sort in chapter.sorts.values():
        if sort.kind == "position":
            formulas += [f.term for f in (*order_axioms(sort), *prev_axioms(sort))]
    translator = Translator()
    solver = z3.Solver(ctx=translator.context)
    solver.set(rlimit=limit, random_seed=0)
    solver.add(*map(translator.expression, formulas))
    return solver


def by_cvc5(solver: z3.Solver, **options: str) -> str:
    second = cvc5.Solver(cvc5.TermManager())
    for option, value in {"tlimit-per": "20000", **options}.items():
        second.setOption(option, value)
    parser = cvc5.InputParser(second)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, "(set-logic ALL)\n" + solver.to_smt2(), "obligation")
    symbols, said = parser.getSymbolManager(), ""
    while not (command := parser.nextCommand()).isNull():
        said += command.invoke(second, symbols)
    return said.split()[0].strip("()")


def refuted(chapter: Chapter, cells: list[Obligation]) -> bool:
    """Some obligation has a counterexample: found by Z3, or as a finite model by cvc5."""
    left = []
    for cell in cells:
        solver = problem(chapter, cell, limit=200_000)
        answer = str(solver.check())
        if answer == "sat":
            return True
        if answer == "unknown":
            left.append(solver)
    return any(by_cvc5(solver, **{"finite-model-find": "true"}) == "sat" for solver in left)


@pytest.mark.parametrize("name", CHAPTERS)
def test_all_obligations_are_proved(name: str) -> None:
    cells = obligations(name)
    assert cells
    failed = {c.id: str(answer) for c in cells if (answer := problem(load(name), c).check()) != z3.unsat}
    assert not failed


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_second_solver_agrees(name: str) -> None:
    cells = obligations(name)
    answers = {c.id: by_cvc5(problem(load(name), c), **{"full-saturate-quant": "true"}) for c in cells}
    assert {id: answer for id, answer in answers.items() if answer != "unsat"} == {}


def requirements(chapter: Chapter) -> Iterator[tuple[TracedEvent, Requirement]]:
    for event in map(chapter.event, chapter.event_names):
        for requirement in event.requires:
            yield event, requirement


@pytest.mark.parametrize("name", [c for c in CHAPTERS if c != "slots"])
def test_every_requirement_is_needed(name: str) -> None:
    """Without it an obligation of the event has a counterexample. An inherited one is owed if it is not required, so it
    is needed unless it follows from the others."""
    chapter, cells, needless = load(name), obligations(name), []
    own = inspect.getsourcefile(chapter.cls)
    for event, requirement in requirements(chapter):
        mine = [
            replace(c, hypotheses=tuple(h for h in c.hypotheses if h[1] is not requirement.term))
            for c in cells
            if c.event is event
        ]
        if requirement.where.file != own:
            mine = [replace(mine[0], goal=requirement.term)]
        if not refuted(chapter, mine):
            needless.append(f"{event.name}, {requirement.where}")
    assert not needless


@pytest.mark.parametrize("name", [c for c in CHAPTERS if c != "slots"])
def test_every_invariant_is_needed_or_for_readers(name: str) -> None:
    """Without it another statement is not proved."""
    chapter, cells, needless = load(name), obligations(name), set()
    for invariant in chapter.invariants:
        others = [
            replace(c, hypotheses=tuple(h for h in c.hypotheses if h[0] != invariant.name))
            for c in cells
            if c.column != invariant.name and invariant.name in dict(c.hypotheses)
        ]
        if (name, invariant.name) in COUNTING:
            assert any(problem(chapter, c).check() != z3.unsat for c in others)
        elif not refuted(chapter, others):
            needless.add(invariant.name)
    assert needless == FOR_READERS.get(name, set())


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_chapter_has_a_witness_and_sentences(name: str) -> None:
    chapter = load(name)
    assert chapter.witnesses
    statements = [*chapter.axioms, *chapter.invariants, *chapter.theorems, *chapter.witnesses]
    assert all(s.sentence and s.sentence[0].islower() for s in statements if not s.sentence.startswith("the counter"))
    assert all(chapter.event(e).sentence.endswith(".") for e in chapter.event_names)
