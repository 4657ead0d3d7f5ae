"""Random walks: the same for the same seed, deep, and with a short run to what they find wrong."""

from __future__ import annotations

import pytest
from pools.anchor import AnchorPool, anchor

from kvspec.model.batched import walk
from kvspec.model.concrete import NotEnabled, fire
from kvspec.model.exploring.coverage import goals
from kvspec.model.exploring.instances import Instance, start_state
from kvspec.model.exploring.outcome import Violation
from kvspec.model.exploring.plain import Judge, Taken
from kvspec.model.exploring.scopes import Scope
from kvspec.spec import load
from kvspec.spec.language import Chapter

POOL = Chapter(AnchorPool)
STRUCTURE = anchor(5, 2, (1, 2), (1, 3))


def without(name: str, number: int) -> Chapter:
    """The pool with one requirement of one event left out."""
    site = [s.number for s in POOL.event(name).sites if s.kind == "require"][number]
    return POOL.with_event(name, lambda s: None if s.number == site else s.terms)


def test_walks_go_deep_and_nothing_is_wrong() -> None:
    found = walk(POOL, STRUCTURE, walkers=256, steps=60, seed=1)
    assert found.violation is None
    assert found.walkers == 256
    assert found.taken == 256 * 60  # the pool is never stuck
    assert set(found.fired) == set(POOL.event_names)
    assert set(found.reached) == {g.name for g in goals(POOL)}


def test_the_same_seed_gives_the_same_walks() -> None:
    chapter = without("evict", 1)
    one, again, other = (walk(chapter, STRUCTURE, 64, 300, seed) for seed in (5, 5, 6))
    assert one == again
    assert one != other


def test_walkers_come_in_words() -> None:
    assert walk(POOL, STRUCTURE, walkers=65, steps=1, seed=0).walkers == 128


def violates(chapter: Chapter, violation: Violation, skipped: int | None = None) -> bool:
    """The run, or all of it but one step, ends in the violation."""
    judge, state, wrong = Judge(chapter, STRUCTURE), start_state(chapter, STRUCTURE), None
    for number, step in enumerate(violation.run):
        if number != skipped:
            event = chapter.event(step.event)
            try:
                taken = Taken(Instance(event, step.args), state, fire(event, STRUCTURE, state, step.args))
            except NotEnabled:
                return False
            state, wrong = taken.after, judge.step(taken)
    found = [(w.kind, w.name) for w in (wrong, judge.state(state)) if w is not None]
    return (violation.kind, violation.name) in found


@pytest.mark.parametrize(("name", "number", "seed"), [("evict", 1, 3), ("publish", 0, 4), ("share", 1, 5)])
def test_what_goes_wrong_has_a_run_that_needs_each_of_its_steps(name: str, number: int, seed: int) -> None:
    chapter = without(name, number)
    found = walk(chapter, STRUCTURE, 128, 400, seed).violation
    assert found is not None
    assert violates(chapter, found)
    assert not any(violates(chapter, found, n) for n in range(len(found.run)))


def test_a_call_that_is_not_allowed_ends_a_walk() -> None:
    chapter, scope = load("handles"), Scope.parse("blocks=2,handles=2", "handles")
    live = next(s.number for s in chapter.event("release").sites if s.kind == "require")
    broken = chapter.with_event("release", lambda site: None if site.number == live else site.terms)
    found = walk(broken, scope.structure, 64, 50, 2).violation
    assert found is not None and found.kind == "call"
    assert found.run[-1].event == "release"


@pytest.mark.gpu
def test_walks_on_a_gpu() -> None:
    assert walk(POOL, STRUCTURE, 256, 100, 1, device="cuda").violation is None
    assert walk(without("evict", 1), STRUCTURE, 256, 400, 1, device="cuda").violation is not None
