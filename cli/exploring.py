"""Explorations that other commands need: a chapter in the scopes that its manifest is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvspec.model.exploring.outcome import Outcome
    from kvspec.model.exploring.scopes import Scope
    from kvspec.proofs.mutation.kill import Fate
    from kvspec.spec.language import Chapter

MAX_STATES = 5_000_000
OPERATIONS = 3_000


def explored(chapter: Chapter, scope: Scope) -> Outcome:
    """Everything in a scope, in canonical states, on the processor."""
    from kvspec.model.batched import Explorer
    from kvspec.model.exploring.outcome import States

    return Explorer(
        chapter, scope.structure, states=States.CANONICAL, given=scope.given, scope=scope.text, max_states=MAX_STATES
    ).explore()


def explored_if_inside(chapter: Chapter, scope: Scope) -> Outcome | None:
    """The same of a text with a mistake in it, which may lead out of the scope."""
    from kvspec.model.batched import OutOfRange

    try:
        return explored(chapter, scope)
    except OutOfRange:
        return None


@cache
def _own(chapter: str, scope: str) -> Outcome | None:
    from kvspec.model.exploring.scopes import Scope
    from kvspec.spec import load

    return explored_if_inside(load(chapter), Scope.parse(scope, chapter))


def explored_once(chapter: Chapter, scope: Scope) -> Outcome | None:
    """The same; what the specification itself says is explored only once."""
    from kvspec.spec import load

    if chapter is load(scope.chapter):
        return _own(scope.chapter, scope.text)
    return explored_if_inside(chapter, scope)


def asked_otherwise(alive: Fate) -> Fate:
    """The fate of a mutant that the proofs have left alive, once runs and a judge who follows it are asked."""
    from kvspec.model.exploring.scopes import Scope
    from kvspec.proofs.manifest.scopes import SCOPES
    from kvspec.proofs.mutation.explored import fate_by_exploration
    from kvspec.proofs.mutation.judging import fate_by_test
    from kvspec.proofs.mutation.kill import known
    from kvspec.spec import load

    name = alive.id.partition(".")[0]
    scopes = [Scope.parse(text, name) for text in SCOPES.get(name, ())]
    mutant = known(name)[alive.id]
    found = fate_by_exploration(alive, mutant, load(name), scopes, explored_once)
    return fate_by_test(alive, mutant, judged_by) if found is alive else found


def judged_by(text: Chapter) -> str | None:
    """What the torch manager is said to break by a judge who follows a text of chapter `sequences`."""
    from kvspec.cli.targets import load_target
    from kvspec.model.conform import ConformOptions, conform
    from kvspec.model.executable import following

    with following(text):
        report = conform(load_target("torch"), ConformOptions(operations=OPERATIONS, shrink_seconds=0))
    return next((f.family for f in report.families if f.verdict == "violated"), None)


def explore_scopes(
    name: str, tables: Sequence[Mapping[str, tuple[str, ...]]], each: Callable[[Outcome], None]
) -> list[Outcome]:
    """A chapter in the scopes of some tables; ``each`` is told of every one."""
    from kvspec.model.exploring.scopes import Scope
    from kvspec.spec import load

    found = []
    for text in (text for table in tables for text in table.get(name, ())):
        outcome = explored(load(name), Scope.parse(text, name))
        each(outcome)
        found.append(outcome)
    return found


def told(name: str, outcomes: Sequence[Outcome]) -> tuple[str, str, list[str]]:
    """The verdict on a chapter's explorations, a line that says it, and what was met in none of them."""
    from kvspec.cli.explore_command import coverage
    from kvspec.cli.output import counted, padded
    from kvspec.spec import load

    fired = {event: depth for o in outcomes for event, depth in o.fired.items()}
    met = {goal: depth for o in outcomes for goal, depth in o.reached.items()}
    missing = coverage(load(name), fired, met).missing
    states = sum(o.distinct for o in outcomes)
    head = f"{padded(name)}{counted(len(outcomes), 'scope')}, {states:,} classes of states"
    for o in outcomes:
        if o.violation is not None:
            run = ", ".join(map(str, o.violation.run)) or "the start"
            return "violated", f"✗ {head}: {o.violation.name} is violated in {o.scope}: {run}", missing
    if not all(o.complete for o in outcomes):
        return "unknown", f"? {head}: not all of them, the budget is spent", missing
    if missing:
        return "vacuous", f"∅ {head}: never met: {', '.join(missing)}", missing
    return "holds", f"✓ {head}, nothing violated; every event, premise and witness is met", missing
