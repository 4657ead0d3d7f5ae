"""The facts about sizes of sets that `kvspec.proofs.lowering` uses, proved in cvc5's theory of finite sets.

The lowering knows a set only by its members and its size by a number; what it states of the number is listed here, one
fact after the other, in SMT-LIB over sets and ``set.card``. So none of it has to be believed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import cvc5

from kvspec.proofs.verdicts import UNBOUNDED, Result, Verdict

CHAPTER = "language"
SENTENCE = "What the proofs take for granted of the sizes of finite sets, in cvc5's theory of sets."
LIMIT = 1_000_000
_HEAD = """
(set-logic ALL)
(declare-sort E 0)
(declare-const s (Set E))
(declare-const t (Set E))
(declare-const x E)
(define-fun one ((b Bool)) Int (ite b 1 0))
"""


@dataclass(frozen=True)
class SizeFact:
    """A fact about the size of a set, and where the lowering states it."""

    name: str
    sentence: str
    formula: str
    stated: str


FACTS = (
    SizeFact("size_of_empty", "the empty set has size 0", "(= (set.card (as set.empty (Set E))) 0)", "Lowering._size"),
    SizeFact(
        "size_after_add",
        "one more member raises the size by one, unless it was a member",
        "(= (set.card (set.insert x s)) (+ (set.card s) (- 1 (one (set.member x s)))))",
        "Lowering._size",
    ),
    SizeFact(
        "size_after_remove",
        "taking a member out lowers the size by one, if it was a member",
        "(= (set.card (set.minus s (set.singleton x))) (- (set.card s) (one (set.member x s))))",
        "Lowering._size",
    ),
    SizeFact(
        "size_not_negative", "no set has a negative size", "(>= (set.card s) 0)", "Lowering.size, Lowering._count"
    ),
    SizeFact(
        "size_zero_iff_empty",
        "a set has size 0 exactly if it has no member",
        "(= (= (set.card s) 0) (= s (as set.empty (Set E))))",
        "Lowering.size, Lowering._count",
    ),
    SizeFact(
        "size_of_choice",
        "the size of one set or the other, by a condition, is one size or the other, by the condition",
        "(= (set.card (ite (set.member x t) s t)) (ite (set.member x t) (set.card s) (set.card t)))",
        "Lowering._size",
    ),
)


def holds(formula: str) -> bool | None:
    """Whether a formula about ``s``, ``t`` and ``x`` is true of all finite sets; None where cvc5 does not know."""
    solver = cvc5.Solver()
    solver.setOption("rlimit-per", str(LIMIT))
    solver.setOption("seed", "0")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, f"{_HEAD}(assert (not {formula}))", "sizes")
    symbols = parser.getSymbolManager()
    while not (command := parser.nextCommand()).isNull():
        command.invoke(solver, symbols)
    answer = solver.checkSat()
    return None if answer.isUnknown() else bool(answer.isUnsat())


def result(fact: SizeFact) -> Result:
    """The fact as an obligation of the chapter ``language``."""
    started = time.perf_counter()
    answer = holds(fact.formula)
    verdict = {True: Verdict.PROVED, False: Verdict.REFUTED, None: Verdict.UNKNOWN}[answer]
    said = {"cvc5": "proved" if answer else "unknown"}
    return Result(
        f"{CHAPTER}.theorem/{fact.name}", CHAPTER, "theorem", fact.name, "theorem", fact.sentence, fact.stated, verdict,
        UNBOUNDED, said, time.perf_counter() - started,
    )  # fmt: skip
