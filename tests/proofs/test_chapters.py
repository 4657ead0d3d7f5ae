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


# One of each event: which mistakes are noticed is what `kvspec mutate` says of all, here it is what they lead to.
REQUIREMENTS = [
    next((name, *found) for found in requirements(name) if found[0] == event)
    for name in LARGE
    for event in dict.fromkeys(event for event, _, _ in requirements(name))
]


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
    ("name", "event", "requirement"), [(n, e, r) for n, e, _, r in REQUIREMENTS], ids=[r[2] for r in REQUIREMENTS]
)
def test_a_requirement_left_out_gives_a_run_that_the_whole_text_forbids(
    name: str, event: str, requirement: Requirement
) -> None:
    chapter = Chapter(load(name).cls)
    traced = chapter.event(event)
    left = [r for r in traced.requires if r.where != requirement.where]
    assert len(left) == len(traced.requires) - 1
    traced.requires[:] = left
    groups = [g for g in grouped(ChapterObligations(name, chapter)) if g.first.row == event]
    result = first_failure(groups)
    assert result is not None and result.verdict is Verdict.REFUTED, result
    assert result.counterexample is not None and len(result.counterexample.lines) >= 3
    if result.kind in ("invariant", "call", "theorem"):
        text = result.counterexample.scenario
        assert text is not None
        said = run_scenario(parse_scenario(text, "counterexample"), TorchTarget)
        assert said.lines[-1].outcome.startswith("forbidden"), "the whole spec does not allow the step"
