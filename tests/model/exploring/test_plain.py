"""The plain explorer finds the states that an independent count finds, and the same faults in every mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pools.anchor import AnchorPool, anchor

from kvspec.model.concrete import Structure, fire
from kvspec.model.exploring.coverage import goals
from kvspec.model.exploring.instances import Instance, start_state
from kvspec.model.exploring.outcome import Outcome, States, Step
from kvspec.model.exploring.plain import Judge, Taken, explore
from kvspec.spec.language import Chapter, Id, Machine, Map, Set, event, forall, implies, init, invariant, require
from kvspec.spec.language.traced import Site

POOL = Chapter(AnchorPool)
CLEARED = [States.LIVE, States.RENAMED, States.CANONICAL]

# Blocks, length, tokens: states, steps and depth, counted by the same machine written by hand in plain Python.
COUNTS: list[tuple[int, int, Sequence[Sequence[int]], States, tuple[int, int, int]]] = [
    (2, 2, [(1, 2), (1, 3)], States.FULL, (31, 65, 7)),
    (3, 1, [(1,), (1,)], States.FULL, (183, 636, 9)),
    (3, 1, [(1,), (2,)], States.FULL, (1167, 3932, 18)),
    (3, 2, [(1, 2)], States.FULL, (581, 1506, 24)),
    (2, 2, [(1, 2), (1, 3)], States.LIVE, (9, 19, 4)),
    (3, 1, [(1,), (1,)], States.LIVE, (41, 134, 6)),
    (3, 1, [(1,), (2,)], States.LIVE, (57, 184, 8)),
    (4, 1, [(1,), (2,)], States.LIVE, (241, 984, 10)),
    (3, 1, [(1,), (1,), (2,)], States.LIVE, (117, 442, 8)),
    (3, 2, [(1, 2), (1, 3)], States.LIVE, (117, 378, 9)),
    (3, 1, [(1,), (1,)], States.RENAMED, (21, 69, 6)),
    (4, 1, [(1,), (2,)], States.RENAMED, (45, 186, 10)),
    (4, 1, [(1,), (1,), (2,)], States.RENAMED, (127, 646, 10)),
    (3, 2, [(1, 2), (1, 3)], States.RENAMED, (59, 191, 9)),
    (4, 2, [(1, 2), (1, 2)], States.RENAMED, (136, 581, 10)),
    (4, 2, [(1, 2), (1, 3)], States.RENAMED, (183, 782, 15)),
]


@pytest.mark.parametrize(("blocks", "length", "tokens", "states", "count"), COUNTS)
def test_the_states_are_as_many_as_counted_elsewhere(
    blocks: int, length: int, tokens: Sequence[Sequence[int]], states: States, count: tuple[int, int, int]
) -> None:
    found = explore(POOL, anchor(blocks, length, *tokens), states)
    assert (found.distinct, found.generated, found.depth) == count
    assert found.complete and found.violation is None
    assert sum(found.levels) == found.distinct
    assert len(found.levels) == found.depth + 1


def test_equal_sequences_are_exchanged_in_canonical_states() -> None:
    structure = anchor(4, 2, (1, 2), (1, 2))
    renamed, canonical = (explore(POOL, structure, s) for s in (States.RENAMED, States.CANONICAL))
    assert canonical.distinct == 76 < renamed.distinct  # two states for most of them
    assert (canonical.renamed, renamed.renamed) == (("Block", "Seq"), ("Block",))
    assert canonical.depth == renamed.depth


def test_what_is_cleared_is_found_in_the_text() -> None:
    found = explore(POOL, anchor(3, 1, (1,), (2,)), States.LIVE)
    assert {"table", "entry", "content"} <= set(found.cleared)
    assert not {"free", "size", "computed", "cached"} & set(found.cleared)
    assert found.kept == ()


@pytest.mark.parametrize("states", States)
def test_every_event_changes_something_and_every_goal_is_met(states: States) -> None:
    found = explore(POOL, anchor(3, 1, (1,), (1,)), states)
    assert set(found.fired) == set(POOL.event_names)
    assert set(found.reached) == {g.name for g in goals(POOL)}
    assert (found.fired["take"], found.fired["publish"], found.fired["evict"]) == (1, 3, 5)
    assert (found.reached["free_iff_unheld"], found.reached["a_shared_block"]) == (0, 4)


def test_a_budget_ends_the_search_and_says_so() -> None:
    found = explore(POOL, anchor(3, 2, (1, 2), (1, 3)), max_states=50)
    assert not found.complete
    assert found.violation is None and found.covers is None


def test_progress_is_told_level_by_level() -> None:
    told: list[tuple[int, int, int]] = []
    found = explore(POOL, anchor(3, 1, (1,), (1,)), progress=lambda *numbers: told.append(numbers))
    assert [depth for _, _, depth in told] == list(range(found.depth + 1))
    assert told[-1][0] == found.distinct


# -- faults ------------------------------------------------------------------------------------------------------------


def sites(name: str) -> list[Site]:
    return [s for s in POOL.event(name).sites if s.kind in ("require", "change")]


FAULTS = [(name, site.number) for name in POOL.event_names for site in sites(name)]


def without(name: str, number: int) -> Chapter:
    """The pool with one statement of one event left out."""
    return POOL.with_event(name, lambda site: None if site.number == number else site.terms)


def goes_wrong(chapter: Chapter, structure: Structure, found: Outcome) -> bool:
    """The run of the violation, taken step by step in the concrete reading, breaks what it says."""
    assert found.violation is not None
    judge, state, before = Judge(chapter, structure), start_state(chapter, structure), None
    for step in found.violation.run:
        event = chapter.event(step.event)
        before, state = state, fire(event, structure, state, step.args)
        taken = Taken(Instance(event, step.args), before, state)
    wrong = (judge.step(taken) if before is not None else None) or judge.state(state)
    return wrong is not None and (wrong.kind, wrong.name) == (found.violation.kind, found.violation.name)


@pytest.mark.parametrize(("name", "number"), FAULTS)
def test_a_fault_is_found_after_as_many_steps_in_every_mode(name: str, number: int) -> None:
    chapter, structure = without(name, number), anchor(3, 1, (1,), (1,))
    full = explore(chapter, structure, States.FULL)
    for states in CLEARED:
        found = explore(chapter, structure, states)
        assert (found.violation is None) == (full.violation is None), states
        if full.violation is not None and found.violation is not None:
            assert len(found.violation.run) == len(full.violation.run), states
            assert goes_wrong(chapter, structure, found), found.violation


def test_most_faults_are_found() -> None:
    structure = anchor(3, 1, (1,), (1,))
    survivors = [f for f in FAULTS if explore(without(*f), structure, States.CANONICAL).violation is None]
    events = {name for name, _ in survivors}
    assert len(survivors) < len(FAULTS) / 3
    assert "take" not in events and "publish" not in events


def test_the_shortest_run_to_a_known_fault() -> None:
    """Without its second requirement evict forgets a key whose block a sequence has."""
    number = sites("evict")[1].number
    found = explore(without("evict", number), anchor(3, 2, (1, 2), (1, 3)), States.CANONICAL).violation
    assert found is not None
    assert [s.event for s in found.run] == ["take", "compute", "publish", "evict"]
    assert found.kind == "invariant"
    assert str(found.run[2]) == f"publish {found.run[0].args[0]!r} 0"


def test_a_call_that_is_not_allowed_is_a_violation() -> None:
    from kvspec.model.exploring.scopes import Scope
    from kvspec.spec import load

    chapter = load("handles")
    live = next(s for s in chapter.event("release").sites if s.kind == "require")
    broken = chapter.with_event("release", lambda site: None if site.number == live.number else site.terms)
    found = explore(broken, Scope.parse("blocks=2,handles=2", "handles").structure).violation
    assert found is not None
    assert found.kind == "call" and found.name.startswith("release->blocks.drop_")
    assert found.run[-1].event == "release"


# -- cells that come to life -------------------------------------------------------------------------------------------


class Thing(Id):
    """Something that is shown at times."""


class Colour(Id):
    """What it looks like."""


class Curtain(Machine):
    """A cell that nobody can read comes to life again without being written."""

    shown: Set[Thing]
    painted: Set[Thing]
    colour: Map[Thing, Colour]

    @init
    def start(self) -> None:
        self.shown.clear()
        self.painted.clear()

    @event
    def paint(self, thing: Thing, colour: Colour) -> None:
        require(~self.painted.has(thing))
        self.colour[thing] = colour
        self.painted.add(thing)

    @event
    def show(self, thing: Thing) -> None:
        require(self.painted.has(thing))
        self.shown.add(thing)

    @event
    def hide(self, thing: Thing) -> None:
        self.shown.discard(thing)

    @invariant("what is shown is not of the last colour")
    def seen(self) -> Any:
        return forall(Thing, Colour, lambda t, c: implies(self.shown.has(t) & (self.colour[t] == c), c == c))

    @invariant("things that are shown have different colours")
    def different(self) -> Any:
        return forall(
            Thing,
            Thing,
            lambda s, t: implies(self.shown.has(s) & self.shown.has(t) & (self.colour[s] == self.colour[t]), s == t),
        )


def test_a_variable_with_a_cell_that_comes_to_life_unwritten_is_kept_whole() -> None:
    chapter = Chapter(Curtain)
    structure = Structure({"Thing": ["a", "b"], "Colour": ["red", "blue"]})
    full, live = (explore(chapter, structure, s) for s in (States.FULL, States.LIVE))
    assert live.kept == ("colour",)
    assert "colour" not in live.cleared
    assert full.violation is not None and live.violation is not None
    assert live.violation.run == full.violation.run
    assert live.violation.run[-1] == Step("show", ("b",))
