"""The batched explorer answers what the plain one answers, in every mode, also about specifications with a fault."""

from __future__ import annotations

import functools

import pytest
import torch
from pools.anchor import AnchorPool, anchor

from kvspec.model.batched import Explorer, OutOfRange, ReadingsDisagree, walk
from kvspec.model.concrete import Structure, fire
from kvspec.model.exploring.instances import Instance, start_state
from kvspec.model.exploring.outcome import Outcome, States, Violation
from kvspec.model.exploring.plain import Judge, Taken, explore
from kvspec.model.exploring.scopes import Scope
from kvspec.proofs.mutation.mutants import INVARIANT, mutants
from kvspec.spec import load
from kvspec.spec.language import (
    Bool,
    Chapter,
    Id,
    Machine,
    Map,
    Nat,
    Set,
    Static,
    event,
    false,
    init,
    invariant,
    nat,
    old,
    require,
    theorem,
    true,
)

POOL = Chapter(AnchorPool)
TWO, THREE = ((1, 2), (1, 3)), ((1, 2), (1, 3), (1, 2))


# -- counts that are known from elsewhere ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "tokens", "states", "distinct", "generated"),
    [
        (3, TWO, States.FULL, 26_319, 95_980),
        (3, TWO, States.LIVE, 117, None),
        (3, TWO, States.RENAMED, 59, None),
        (4, TWO, States.FULL, 1_339_603, 6_863_973),
        (4, TWO, States.LIVE, 1_063, None),
        (4, TWO, States.RENAMED, 183, None),
        (6, TWO, States.LIVE, 46_811, None),
        (6, TWO, States.RENAMED, 503, None),
        (8, TWO, States.RENAMED, 569, None),
        (5, THREE, States.LIVE, 35_093, None),
        (5, THREE, States.RENAMED, 1_534, None),
    ],
)
def test_as_many_states_as_the_oracle_counts(
    blocks: int, tokens: tuple[tuple[int, ...], ...], states: States, distinct: int, generated: int | None
) -> None:
    found = Explorer(POOL, anchor(blocks, 2, *tokens), states=states).explore()
    assert found.complete and found.violation is None
    assert found.distinct == distinct == sum(found.levels)
    assert generated is None or found.generated == generated
    assert found.kept == ()


def test_equal_sequences_are_exchanged() -> None:
    found = Explorer(POOL, anchor(5, 2, *THREE), states=States.CANONICAL).explore()
    assert found.renamed == ("Block", "Seq")
    assert found.distinct == 866  # of 1534 that differ in blocks only


# -- the same answers as the plain explorer ----------------------------------------------------------------------------

SCOPES = [
    ("blocks", "blocks=3"),
    ("handles", "blocks=3,handles=2"),
    ("free_list", "blocks=3,handles=2"),
    ("usage", ""),
    ("keys", "tokens=1"),
    ("lru", "blocks=2,tokens=1"),
    ("prefix_cache", "blocks=2,tokens=1"),
    ("sequences", "blocks=2,seqs=1,tokens=1"),
    ("recency", ""),
    ("single_block", "units=3"),
    ("linear_state", "slots=3,seqs=1,tokens=1"),
    ("trim", "len=2,stride=1"),
    ("admission", "blocks=2,holders=1"),
    ("pool", "ranks=1,slots=1"),
]


@pytest.mark.parametrize("states", States)
@pytest.mark.parametrize(("name", "text"), SCOPES)
def test_every_chapter_is_explored_as_the_plain_explorer_does(name: str, text: str, states: States) -> None:
    scope = Scope.parse(text, name)
    found = Explorer(load(name), scope.structure, given=scope.given, states=states, scope=scope.text).explore()
    assert found == explore(load(name), scope.structure, states, given=scope.given, scope=scope.text)


@pytest.mark.parametrize("states", [States.RENAMED, States.CANONICAL])
def test_a_run_is_shown_where_names_do_not_tell_elements_apart(states: States) -> None:
    """Who is older than whom is stored under pairs of items, so that a class can have several representatives."""
    stays = next(s for s in load("recency").event("leave").sites if s.kind == "change")
    faulty = load("recency").with_event("leave", lambda site: None if site.number == stays.number else site.terms)
    broken = faulty.saying_only("total")
    structure = Scope.parse("items=3", "recency").structure
    for found in (Explorer(broken, structure, states=states).explore(), explore(broken, structure, states)):
        assert found.violation is not None and found.violation.name == "total"
        state = start_state(broken, structure)
        for step in found.violation.run:
            assert Judge(broken, structure).state(state) is None
            state = fire(broken.event(step.event), structure, state, step.args)
        assert Judge(broken, structure).state(state) is not None


def test_a_variable_with_a_cell_that_comes_to_life_unwritten_is_kept_whole() -> None:
    scope = Scope.parse("blocks=4,handles=3", "free_list")
    found = Explorer(load("free_list"), scope.structure, given=scope.given, states=States.LIVE).explore()
    assert found.kept == ("place",)
    assert found == explore(load("free_list"), scope.structure, States.LIVE, given=scope.given)


@functools.cache
def reference(states: States) -> Outcome:
    return Explorer(POOL, anchor(3, 2, *TWO), states=states).explore()


@pytest.mark.parametrize("states", [States.FULL, States.CANONICAL])
def test_the_outcome_depends_on_no_setting(states: States) -> None:
    structure = anchor(3, 2, *TWO)
    assert Explorer(POOL, structure, states=states, batch=1000).explore() == reference(states)
    assert Explorer(POOL, structure, states=states, memory=10_000).explore() == reference(states)
    one_hash = Explorer(POOL, anchor(3, 1, (1,), (1,)), states=states, hash_of=lambda rows: rows[:, 0] & 1).explore()
    assert one_hash == explore(POOL, anchor(3, 1, (1,), (1,)), states)


@pytest.mark.gpu
@pytest.mark.parametrize("memory", [1 << 30, 10_000])
@pytest.mark.parametrize("states", States)
def test_a_gpu_finds_the_same(states: States, memory: int) -> None:
    found = Explorer(POOL, anchor(3, 2, *TWO), states=states, device="cuda", memory=memory).explore()
    assert found == reference(states)


def test_the_number_of_threads_is_left_as_it_was() -> None:
    before = torch.get_num_threads()
    Explorer(POOL, anchor(2, 1, (1,))).explore()
    assert torch.get_num_threads() == before


def test_a_budget_of_states_ends_the_exploration_and_says_so() -> None:
    found = Explorer(POOL, anchor(3, 2, *TWO), max_states=500, batch=100).explore()
    assert not found.complete
    assert found.violation is None and found.covers is None
    assert 500 < found.distinct < 2000


def test_progress_is_told() -> None:
    told: list[tuple[int, int, int]] = []
    found = Explorer(POOL, anchor(3, 2, *TWO), progress=lambda *numbers: told.append(numbers), batch=1000).explore()
    assert told == sorted(told)
    assert told[-1] == (found.distinct, found.generated, found.depth)
    assert len(told) > found.depth + 1


# -- faults ------------------------------------------------------------------------------------------------------------


def sites(name: str) -> list[int]:
    return [s.number for s in POOL.event(name).sites if s.kind in ("require", "change")]


FAULTS = [(name, number) for name in POOL.event_names for number in sites(name)]


def without(name: str, number: int) -> Chapter:
    """The pool with one statement of one event left out."""
    return POOL.with_event(name, lambda site: None if site.number == number else site.terms)


def is_run_to(chapter: Chapter, structure: Structure, violation: Violation) -> bool:
    """The run, taken step by step in the concrete reading, ends in what the violation says."""
    judge, state, wrong = Judge(chapter, structure), start_state(chapter, structure), None
    for step in violation.run:
        instance = Instance(chapter.event(step.event), step.args)
        taken = Taken(instance, state, fire(instance.event, structure, state, step.args))
        state, wrong = taken.after, judge.step(taken)
    found = [(w.kind, w.name) for w in (wrong, judge.state(state)) if w is not None]
    return (violation.kind, violation.name) in found


@pytest.mark.parametrize(("name", "number"), FAULTS)
def test_a_fault_is_found_after_as_many_steps_in_every_mode(name: str, number: int) -> None:
    chapter, structure = without(name, number), anchor(3, 1, (1,), (1,))
    plain = explore(chapter, structure).violation
    for states in States:
        found = Explorer(chapter, structure, states=states).explore()
        assert found.complete == (plain is None) == (found.violation is None), states
        if plain is not None and found.violation is not None:
            assert len(found.violation.run) == len(plain.run), states
            assert is_run_to(chapter, structure, found.violation), found.violation


def test_a_call_that_is_not_allowed_is_a_violation() -> None:
    chapter, scope = load("handles"), Scope.parse("blocks=2,handles=2", "handles")
    live = next(s.number for s in chapter.event("release").sites if s.kind == "require")
    broken = chapter.with_event("release", lambda site: None if site.number == live else site.terms)
    found = Explorer(broken, scope.structure).explore().violation
    assert found == explore(broken, scope.structure).violation
    assert found is not None and found.kind == "call"


def test_every_mutant_of_a_chapter_is_judged_as_the_plain_explorer_does() -> None:
    scope = Scope.parse("blocks=3", "blocks")
    judged = 0
    for mutant in (m for m in mutants("blocks", load("blocks")) if m.row != INVARIANT):
        plain = explore(mutant.text, scope.structure)
        full, canonical = (
            Explorer(mutant.text, scope.structure, states=s).explore() for s in (States.FULL, States.CANONICAL)
        )
        lengths = [None if o.violation is None else len(o.violation.run) for o in (plain, full, canonical)]
        assert len(set(lengths)) == 1, mutant.id
        assert plain.violation is not None or full == plain, mutant.id
        judged += plain.violation is not None
    assert judged > 20


# -- machines of our own -----------------------------------------------------------------------------------------------


class Thing(Id):
    """One of two."""


class Race(Machine):
    """A state that is wrong after one step, and a step that is wrong as the second."""

    bad: Static[Thing]
    got: Set[Thing]

    @init
    def start(self) -> None:
        self.got.clear()

    @event
    def get(self, thing: Thing) -> None:
        """A thing is got."""
        self.got.add(thing)

    @invariant("one of them is never got")
    def never_b(self) -> Bool:
        return ~self.got.has(self.bad)

    @theorem("only one is got", after=get)
    def first(self) -> Bool:
        return old(self).got.is_empty()


def test_a_state_of_a_level_is_blamed_before_a_step_from_it() -> None:
    """In batches of one state, a step that goes wrong is met before a wrong state that is reached sooner."""
    structure = Structure({"Thing": ["a", "b"]}, {("bad",): "b"})
    found = Explorer(Chapter(Race), structure, batch=1).explore().violation
    assert found is not None
    assert (found.kind, found.name, len(found.run)) == ("invariant", "never_b", 1)


class Late(Machine):
    """A start that is not what it is said to be."""

    flag: Bool

    @init
    def start(self) -> None:
        self.flag = false()

    @event
    def rise(self) -> None:
        """The flag is up."""
        self.flag = true()

    @theorem("the flag is up at the start", after=start)
    def up(self) -> Bool:
        return self.flag


def test_a_start_that_is_wrong_has_an_empty_run() -> None:
    found = Explorer(Chapter(Late), Structure({})).explore()
    assert found.violation == Violation("theorem", "up", "the flag is up at the start", ())
    assert found.violation == explore(Chapter(Late), Structure({})).violation
    assert walk(Chapter(Late), Structure({}), 64, 3, 0).violation == found.violation


class Counters(Machine):
    """A number for each thing."""

    count: Map[Thing, Nat]

    @init
    def start(self) -> None:
        self.count.assign_all(lambda thing: nat(0))

    @event
    def up(self, thing: Thing) -> None:
        """One more."""
        self.count[thing] = self.count[thing] + 1

    @event
    def down(self, thing: Thing) -> None:
        """One less."""
        require(self.count[thing] > 0)
        self.count[thing] = self.count[thing] - 1


COUNTERS = Chapter(Counters)


def test_a_number_that_grows_too_large_is_an_error() -> None:
    with pytest.raises(OutOfRange, match="128"):
        Explorer(COUNTERS, Structure({"Thing": ["a"]})).explore()


def test_a_number_below_zero_is_a_state_and_a_violation() -> None:
    broken = COUNTERS.with_event("down", lambda site: None if site.kind == "require" else site.terms)
    found = Explorer(broken, Structure({"Thing": ["a"]})).explore().violation
    assert found is not None
    assert (found.name, [s.event for s in found.run]) == ("count_natural", ["down"])


def test_a_disagreement_of_the_readings_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "state", lambda judge, state: None)
    broken = COUNTERS.with_event("down", lambda site: None if site.kind == "require" else site.terms)
    with pytest.raises(ReadingsDisagree):
        Explorer(broken, Structure({"Thing": ["a"]})).explore()
