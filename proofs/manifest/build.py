"""The manifest of a chapter from what was proved, mutated and explored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kvspec.model.concrete import Structure, evaluate
from kvspec.model.exploring.coverage import goals
from kvspec.model.exploring.outcome import Outcome, States
from kvspec.proofs.manifest.record import (
    SCHEMA,
    Bound,
    EventEntry,
    ExplorationEntry,
    ObligationEntry,
    Reached,
    Record,
    StatementEntry,
    WitnessEntry,
)
from kvspec.proofs.mutation.key import row_keys, statement_content
from kvspec.proofs.mutation.kill import Fate, red_at
from kvspec.proofs.mutation.mutants import INVARIANT
from kvspec.proofs.obligations import ChapterObligations
from kvspec.proofs.shape import shape, strongest
from kvspec.proofs.verdicts import Result
from kvspec.spec import load
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import subterms
from kvspec.spec.language.traced import Statement

LIGHT, MEDIUM = 20_000, 200_000
KILLERS = 3
NUMBERS = "numbers"
"""The scope of a chapter without state: some numbers."""


@dataclass(frozen=True)
class Evidence:
    """Everything that was seen of one chapter."""

    results: Sequence[Result]
    fates: Sequence[Fate] = ()
    outcomes: Sequence[Outcome] = ()
    bounds: Mapping[str, Bound] | None = None


def build(name: str, evidence: Evidence) -> Record:
    """What is to be written down of a chapter."""
    chapter = load(name)
    if not chapter.variables:
        seen = Outcome(NUMBERS, States.FULL, 0, 0, 0, (), True, reached=among_numbers(chapter))
        evidence = replace(evidence, outcomes=[seen])
    statements = _Statements(name, chapter, evidence)
    events = [EventEntry(e, row_keys(name)[e], _first(evidence.outcomes, e)) for e in chapter.event_names]
    return Record(
        schema=SCHEMA,
        chapter=name,
        hypotheses=hypotheses_shape(name, chapter),
        obligations=tuple(map(obligation_entry, evidence.results)),
        invariants=tuple(map(statements.entry, chapter.invariants)),
        theorems=tuple(map(statements.entry, chapter.theorems)),
        events=tuple(events),
        witnesses=tuple(
            WitnessEntry(w.name, statement_content(chapter, w), reached(evidence.outcomes, [w.name]))
            for w in chapter.witnesses
        ),
        explorations=tuple(exploration_entry(o) for o in evidence.outcomes if o.distinct),
        mutants=tuple(evidence.fates),
    )


def obligation_entry(result: Result) -> ObligationEntry:
    solvers = tuple(s for s, said in result.solvers.items() if said == "proved")
    return ObligationEntry(
        result.id, result.verdict.value, result.scope, solvers, _effort(result), result.shape
    )


def _effort(result: Result) -> str:
    if result.kind == "possible":
        return "model"
    if "z3" not in result.solvers:
        return ""
    return "light" if result.steps < LIGHT else "medium" if result.steps < MEDIUM else "heavy"


def hypotheses_shape(name: str, chapter: Chapter) -> str:
    """The strongest shape of what a chapter's proofs may assume."""
    return strongest(shape(term) for _, term in ChapterObligations(name, chapter).assumed)


def exploration_entry(outcome: Outcome) -> ExplorationEntry:
    return ExplorationEntry(
        outcome.scope, outcome.states.value, outcome.distinct, outcome.generated, outcome.depth, outcome.covers or ""
    )


def reached(outcomes: Iterable[Outcome], names: Iterable[str]) -> Reached | None:
    """The first exploration that met any of these goals, and after how many steps."""
    wanted = list(names)
    for outcome in outcomes:
        met = [outcome.reached[n] for n in wanted if n in outcome.reached]
        if met:
            return Reached(outcome.scope, min(met))
    return None


def _first(outcomes: Iterable[Outcome], event: str) -> Reached | None:
    return next((Reached(o.scope, o.fired[event]) for o in outcomes if event in o.fired), None)


def among_numbers(chapter: Chapter) -> dict[str, int]:
    """The goals of a chapter without state that are met by some of the numbers that its text speaks of."""
    terms = [t for s in chapter.theorems for t in subterms(s.term) if t.op == "num"]
    numbers = sorted({0, 1, 2, 3, *(t.data + n for t in terms for n in (-1, 0, 1) if t.data + n >= 0)})
    structure = Structure({"Nat": numbers})
    return {g.name: 0 for g in goals(chapter) if evaluate(g.term, structure, {})}


class _Statements:
    """Invariants and theorems with what is known of them."""

    def __init__(self, name: str, chapter: Chapter, evidence: Evidence) -> None:
        self.chapter_name, self.chapter, self.evidence = name, chapter, evidence
        self.goals: dict[str, list[str]] = {}
        for goal in goals(chapter):
            if goal.kind == "premise":
                self.goals.setdefault(goal.name.partition("/")[0], []).append(goal.name)

    def entry(self, s: Statement) -> StatementEntry:
        return StatementEntry(
            name=s.name,
            content=statement_content(self.chapter, s),
            obligations=sum(r.column == s.name for r in self.evidence.results),
            witness=reached(self.evidence.outcomes, self.goals.get(s.name, ())),
            killers=tuple(self.killers(s.name)[:KILLERS]),
            bound=(self.evidence.bounds or {}).get(s.name),
        )

    def killers(self, name: str) -> list[str]:
        """Mutants that a statement turns red at, other than itself."""
        own = f"{self.chapter_name}.{INVARIANT}: {name} "
        return [id for id in red_at(name, self.evidence.fates) if not id.startswith(own)]
