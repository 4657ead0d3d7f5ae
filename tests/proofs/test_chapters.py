"""Every obligation of the specification is proved by both solvers; what carries weight cannot be left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvspec.impl.target import TorchTarget
from kvspec.model.scenario import parse_scenario, run_scenario
from kvspec.proofs.campaign import prove_units, units
from kvspec.proofs.obligations import ChapterObligations
from kvspec.proofs.problems import Group, grouped
from kvspec.proofs.prove import Options, Prover
from kvspec.proofs.verdicts import UNBOUNDED, Result, Verdict
from kvspec.spec import CHAPTERS, load
from kvspec.spec.language import Chapter
from kvspec.spec.language.prose import render
from kvspec.spec.language.traced import Requirement

LARGE = ("blocks", "prefix_cache", "sequences")

# Requirements that no obligation needs, and why they are in the text all the same.
FOR_READERS: dict[str, str] = {}
# Invariants that nothing else rests on: they are what readers want to know.
OWN_SAKE = {
    ("prefix_cache", "one_key"),
    ("sequences", "text_linked"),
    ("sequences", "text_in_place"),
    ("sequences", "key_in_place"),
    ("sequences", "content_in_place"),
    ("sequences", "promise_held"),
}


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_both_solvers_prove_every_obligation(chapter: str) -> None:
    options = Options(solvers=("z3", "cvc5"))
    results = [r for _, found in prove_units(units([chapter]), options) for r in found]
    assert [r.id for r in results if r.verdict is not Verdict.PROVED or r.note] == []
    proofs = [r for r in results if r.kind != "possible"]
    assert all(r.scope == UNBOUNDED and r.solvers == {"z3": "proved", "cvc5": "proved"} for r in proofs)
    assert len({r.id for r in results}) == len(results)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_event_can_happen(chapter: str) -> None:
    rows = {o.row for o in ChapterObligations(chapter, load(chapter)) if o.kind == "possible"}
    assert rows >= set(load(chapter).event_names)


# -- leaving out -------------------------------------------------------------------------------------------------------


def requirements(name: str) -> Iterator[tuple[str, str, Requirement]]:
    """Event, label and requirement; those that an event inherits are the business of the chapter they stand in."""
    chapter = load(name)
    for event in map(chapter.event, chapter.event_names):
        for r in event.requires:
            if r.where.file == event.where.file:
                yield event.name, f"{name}.{event.name}: {render(r.term)}", r


REQUIREMENTS = [(name, *found) for name in LARGE for found in requirements(name)]


def first_failure(groups: list[Group]) -> Result | None:
    """The first obligation that is not proved."""
    for group in groups:
        prover = Prover(group, Options())
        for obligation in group.obligations:
            result = prover.result(obligation)
            if result.verdict is not Verdict.PROVED:
                return result
    return None


@pytest.mark.parametrize(
    ("name", "event", "label", "requirement"), REQUIREMENTS, ids=[label for _, _, label, _ in REQUIREMENTS]
)
def test_a_requirement_left_out_is_missed(name: str, event: str, label: str, requirement: Requirement) -> None:
    chapter = Chapter(load(name).cls)
    traced = chapter.event(event)
    left = [r for r in traced.requires if r.where != requirement.where]
    assert len(left) == len(traced.requires) - 1
    traced.requires[:] = left
    groups = [g for g in grouped(ChapterObligations(name, chapter)) if g.first.row == event]
    result = first_failure(groups)
    if label in FOR_READERS:
        assert result is None
        return
    assert result is not None and result.verdict is Verdict.REFUTED, result
    assert result.counterexample is not None and len(result.counterexample.lines) >= 3
    if result.kind in ("invariant", "call", "theorem"):
        text = result.counterexample.scenario
        assert text is not None
        said = run_scenario(parse_scenario(text, "counterexample"), TorchTarget)
        assert said.lines[-1].outcome.startswith("forbidden"), "the whole spec does not allow the step"


def test_the_reasons_speak_of_requirements_that_exist() -> None:
    assert FOR_READERS.keys() <= {label for _, _, label, _ in REQUIREMENTS}


INVARIANTS = [(name, s.name) for name in LARGE for s in load(name).invariants]


@pytest.mark.parametrize(("name", "invariant"), INVARIANTS)
def test_an_invariant_left_out_is_missed(name: str, invariant: str) -> None:
    obligations = ChapterObligations(name, load(name))
    obligations.own = [s for s in obligations.own if s.name != invariant]
    obligations.assumed = [(n, t) for n, t in obligations.assumed if n != invariant]
    result = first_failure(list(grouped(obligations)))
    if (name, invariant) in OWN_SAKE:
        assert result is None
    else:
        assert result is not None and result.verdict is Verdict.REFUTED, result
