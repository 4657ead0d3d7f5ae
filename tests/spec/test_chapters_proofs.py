"""The smaller chapters: two solvers prove every obligation, and every requirement and invariant is needed for that."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from kvspec.proofs.campaign import groups, prove_chapter
from kvspec.proofs.prove import Options, Prover
from kvspec.proofs.verdicts import Verdict
from kvspec.spec import load
from kvspec.spec.language import Chapter
from kvspec.spec.language.traced import Owed, Statement, TracedEvent

CHAPTERS = ("keys", "slots", "handles", "free_list", "usage", "lru")
WITH_EVENTS = tuple(name for name in CHAPTERS if load(name).event_names)

# Invariants that no other statement rests on: readers want them. So it is with the type facts of counters
# (`..._natural`), which follow where the counter is the size of a set.
FOR_READERS = {"free_list": {"count_within"}}
# These stand for counting arguments: without one of them there is no proof, and in no finite scope a counterexample.
COUNTING = {("free_list", "place_below"), ("usage", "one_is_alone"), ("usage", "sizes_add_up")}


@pytest.mark.parametrize("name", CHAPTERS)
def test_two_solvers_prove_every_obligation(name: str) -> None:
    results = prove_chapter(name, load(name), Options(solvers=("z3", "cvc5")))
    assert len(results) > 20
    assert {r.id: r.note for r in results if r.verdict is not Verdict.PROVED or r.note} == {}


class Without(Chapter):
    """A chapter with one requirement (an event and a number) or one invariant taken out."""

    def __init__(self, chapter: Chapter, requirement: tuple[str, int] = ("", 0), invariant: str = "") -> None:
        super().__init__(chapter.cls)
        self._requirement, self._invariant = requirement, invariant
        self._changed: dict[str, TracedEvent] = {}

    def event(self, name: str) -> TracedEvent:
        event, number = super().event(name), self._requirement[1]
        if name != self._requirement[0]:
            return event
        if name not in self._changed:
            out = event.requires[number]
            inherited = out.where.file != inspect.getsourcefile(self.cls)
            requires = event.requires[:number] + event.requires[number + 1 :]
            owed = [Owed("inherited", out.term, out.where)] if inherited else event.owed
            self._changed[name] = replace(event, requires=requires, owed=owed)
        return self._changed[name]

    @property
    def invariants(self) -> list[Statement]:
        return [s for s in super().invariants if s.name != self._invariant]

    def verdicts(self, name: str, row: str = "", until: Verdict = Verdict.REFUTED) -> set[Verdict]:
        """What is said of the obligations, or of those in one row, up to the first verdict of a kind."""
        found: set[Verdict] = set()
        for group in groups(name, self):
            prover = Prover(group, Options())
            for obligation in group.obligations:
                if obligation.kind != "possible" and row in ("", obligation.row):
                    found.add(prover.result(obligation).verdict)
                if until in found:
                    return found
        return found


@pytest.mark.parametrize("name", WITH_EVENTS)
def test_every_requirement_is_needed(name: str) -> None:
    """Without it an obligation of the event has a counterexample. One that is inherited would be owed, so it is needed
    unless it follows from the rest."""
    chapter, needless = load(name), []
    for event in map(chapter.event, chapter.event_names):
        for number, requirement in enumerate(event.requires):
            verdicts = Without(chapter, requirement=(event.name, number)).verdicts(name, event.name)
            if Verdict.REFUTED not in verdicts:
                needless.append(f"{event.name}, {requirement.where}")
    assert not needless


@pytest.mark.parametrize("name", WITH_EVENTS)
def test_every_invariant_is_needed_or_for_readers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it another statement has a counterexample."""
    monkeypatch.setattr(
        "kvspec.proofs.z3_solver.LONG", 1_000_000, raising=False
    )  # no long search for what is not there
    chapter, needless = load(name), set()
    for invariant in (s.name for s in chapter.invariants if not s.name.endswith("_natural")):
        until = Verdict.UNKNOWN if (name, invariant) in COUNTING else Verdict.REFUTED
        verdicts = Without(chapter, invariant=invariant).verdicts(name, until=until)
        if until is Verdict.UNKNOWN:
            assert verdicts == {Verdict.PROVED, Verdict.UNKNOWN}, invariant
        elif Verdict.REFUTED not in verdicts:
            assert verdicts == {Verdict.PROVED}, invariant
            needless.add(invariant)
    assert needless == FOR_READERS.get(name, set())


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_chapter_has_a_witness_and_sentences(name: str) -> None:
    chapter = load(name)
    assert chapter.witnesses
    statements = [*chapter.axioms, *chapter.invariants, *chapter.theorems, *chapter.witnesses]
    assert all(s.sentence and s.sentence[0].islower() for s in statements)
    assert all(chapter.event(e).sentence.endswith(".") for e in chapter.event_names)
