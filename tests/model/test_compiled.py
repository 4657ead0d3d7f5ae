"""The compiled reading against the concrete one: same steps, same refusals, same verdict on every invariant."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest

from kvspec.model.compiled import Compiled, InvariantError, StepError
from kvspec.model.concrete import ABSENT, NotEnabled, State, Structure, Variant, evaluate, fire
from kvspec.model.conformance import Context, ManagerType, PoolConfig
from kvspec.model.world import NOTHING, Chain, Chains, group_statics
from kvspec.spec.composite import Composite
from kvspec.spec.language import (
    Bool,
    Chapter,
    Id,
    Machine,
    Map,
    Nat,
    Set,
    SpecError,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    nat,
    require,
    set_where,
)
from kvspec.spec.language.terms import MapSort, Path, SetSort
from kvspec.spec.sequences import Sequences
from kvspec.spec.sorts import Index

FORGETFUL = ("begin", "stage", "commit", "slide", "accept", "take_back", "shorten", "left")
"""Events of chapter `composite` whose requirements may be forgotten: nothing they do has no meaning then."""

BLOCKS, SEQS, PLACES, PINS = 4, ["a", "b"], 2, ["p"]


def small_world() -> tuple[Chains, list[Chain], dict[str, list[Any]], dict[Path, Any]]:
    """Blocks of two tokens, and all chains of at most two blocks over two tokens."""
    chains = Chains(2)

    def block(tokens: tuple[int, ...]) -> bytes:
        return b"".join(t.to_bytes(8, "little") for t in tokens)

    def within(parent: Chain) -> list[Chain]:
        sizes = ((0,), (1,), (0, 0), (0, 1))
        return [chains.intern(parent, Context(), block(tokens)) for tokens in sizes]

    found = [NOTHING]
    for chain in within(NOTHING):
        found += [chain, *(within(chain) if chain.full else [])]
    carriers = {"Block": list(range(BLOCKS)), "Seq": SEQS, "Index": list(range(PLACES)), "Chain": found, "Pin": PINS}
    return chains, found, carriers, chains.statics(BLOCKS)


def plain(value: Any) -> Any:
    """A value of the concrete reading as the compiled one has it."""
    if isinstance(value, Variant):
        return (value.case, *value.fields)
    if isinstance(value, (set, frozenset)):
        return {plain(v) for v in value}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value


def variants(value: Any) -> Any:
    """The way back, for the holders of blocks."""
    return frozenset(Variant(h[0], tuple(h[1:])) for h in value)


def concrete_state(machine: Compiled) -> State:
    """The state of a compiled machine in the values of the concrete reading."""
    found: State = {}
    for path, variable in machine.chapter.variables.items():
        value = machine.state[path]
        if isinstance(variable.sort, SetSort):
            found[path] = frozenset(value)
        elif isinstance(variable.sort, MapSort):
            is_set = isinstance(variable.sort.value, SetSort)
            found[path] = {k: variants(v) if is_set else v for k, v in value.items()}
        else:
            found[path] = value[0]
    return found


def same(left: Mapping[Path, Any], right: Mapping[Path, Any], chapter: Chapter) -> list[Path]:
    """Variables on which two states differ; a cell that was never stored is as good as its default."""
    wrong = []
    for path, variable in chapter.variables.items():
        a, b = plain(left.get(path)), plain(right.get(path))
        if isinstance(variable.sort, MapSort):
            blank = (None, ABSENT, 0, set(), frozenset())
            a, b = ({k: v for k, v in (x or {}).items() if v not in blank} for x in (a, b))
        if a != b:
            wrong.append(path)
    return wrong


def arguments(chapter: Chapter, name: str, carriers: Mapping[str, list[Any]], rng: random.Random) -> tuple[Any, ...]:
    return tuple(rng.choice(carriers[p.sort.name]) for p in chapter.event(name).parameters)  # type: ignore[union-attr]


def walk(unguarded: bool, seed: int, steps: int) -> dict[str, int]:
    """A random walk in both readings at once.

    With ``unguarded`` every event may run although its requirements do not hold, so that invariants break.
    """
    rng = random.Random(seed)
    _, _, carriers, statics = small_world()
    chapter = Chapter(Sequences)
    guards = {name: list(chapter.event(name).requires) for name in chapter.event_names}
    if unguarded:
        for name in chapter.event_names:  # but the place before the first has no meaning that readings share
            chapter.event(name).requires = guards[name][: int(name == "drop")]
    machine = Compiled(chapter, statics, {k: (lambda v=v: v) for k, v in carriers.items()})
    structure = Structure(carriers, statics)
    invariants = [*chapter.lower_invariants, *chapter.invariants]
    seen = {"steps": 0, "refused": 0, "broken": 0}
    for _ in range(steps):
        before = concrete_state(machine)
        keep = {p: v.copy() for p, v in machine.state.items()}
        for path, value in keep.items():
            if isinstance(value, dict):
                keep[path] = {k: set(x) if isinstance(x, set) else x for k, x in value.items()}
        name, args = _choose(chapter, guards, structure, before, carriers, rng, 60 if unguarded else 100)
        try:
            after = fire(chapter.event(name), structure, before, args)
        except NotEnabled:
            seen["refused"] += 1
            with pytest.raises(StepError):
                machine.events[name](*args)
            assert not same(before, concrete_state(machine), chapter)
            continue
        if max(after[("size",)].values(), default=0) > PLACES or ABSENT in after[("cache", "blocks", "holders")]:
            continue  # the concrete reading would not look at what lies beyond its scope
        false = {s.name for s in invariants if not evaluate(s.term, structure, after)}
        seen["steps"] += 1
        try:
            machine.events[name](*args)
            found = None
        except InvariantError as error:
            found = error.broken.statement.name
        assert not same(after, concrete_state(machine), chapter), (name, args)
        assert {b.statement.name for b in machine.sweep()} == false, (name, args)
        assert (found in false) if false else found is None, (name, args, found, false)
        if false:
            seen["broken"] += 1
            machine.load(keep)
    return seen


def _choose(
    chapter: Chapter, guards: dict[str, list[Any]], structure: Structure, state: State,
    carriers: Mapping[str, list[Any]], rng: random.Random, enabled_share: int,
) -> tuple[str, tuple[Any, ...]]:  # fmt: skip
    """An event and arguments; mostly ones that the spec allows, so that the walk gets anywhere."""
    for _ in itertools.count():
        name = rng.choice(chapter.event_names)
        args = arguments(chapter, name, carriers, rng)
        values = dict(zip(chapter.event(name).parameters, args, strict=True))
        allowed = all(evaluate(r.term, structure, state, values) for r in guards[name])
        if allowed or rng.randrange(100) >= enabled_share:
            return name, args
        if rng.random() < 0.02:
            return name, args
    raise AssertionError


@pytest.mark.parametrize("seed", range(3))
def test_the_compiled_reading_takes_the_steps_of_the_concrete_one(seed: int) -> None:
    seen = walk(unguarded=False, seed=seed, steps=150)
    assert seen["steps"] > 80
    assert seen["refused"] > 5
    assert seen["broken"] == 0


@pytest.mark.parametrize("seed", range(3))
def test_invariants_on_what_was_touched_agree_with_all_of_them(seed: int) -> None:
    seen = walk(unguarded=True, seed=seed, steps=200)
    assert seen["steps"] > 150
    assert seen["broken"] > 20


@pytest.mark.parametrize("seed", range(3))
def test_the_same_in_a_chapter_with_statements_inside_statements(seed: int) -> None:
    """Composites, with whatever requirement forgotten: what a call has taken is said of the tables of all groups."""
    rng = random.Random(seed)
    kinds = (ManagerType(4, 1, window=2), ManagerType(4, 2))
    chapter = Chapter(Composite)
    for name in chapter.event_names:
        guards = chapter.event(name).requires
        chapter.event(name).requires = guards[: rng.randrange(len(guards) + 1)] if name in FORGETFUL else guards
    carriers = {"Group": [0, 1], "Block": [0, 1, 2, 3], "Seq": SEQS, "Index": [0, 1, 2, 3], "Token": [0, 1, 2, 3, 4]}
    config = PoolConfig(num_blocks=2, block_size=1, enable_prefix_cache=False, manager_types=kinds)
    machine = Compiled(chapter, group_statics(config), {k: (lambda v=v: v) for k, v in carriers.items()})
    machine.load(machine.state | {("groups", "manager_type"): dict(enumerate(kinds))})
    broken = taken = 0
    for _ in range(6000):
        keep = {p: v.copy() for p, v in machine.state.items()}
        for path, value in keep.items():
            if isinstance(value, dict):
                keep[path] = {k: set(x) if isinstance(x, set) else x for k, x in value.items()}
        name = rng.choice(chapter.event_names)
        found = set()
        try:
            machine.events[name](*arguments(chapter, name, carriers, rng))
        except StepError:
            continue
        except InvariantError as error:
            found = {error.broken.statement.name}
        false = {b.statement.name for b in machine.sweep()}
        assert found <= false and bool(found) == bool(false), (name, found, false)
        taken += not false
        broken += bool(false)
        if false:
            machine.load(keep)
    assert taken > 300 and broken > 50


# -- rules for all keys at once ----------------------------------------------------------------------------------------


class Thing(Id):
    """A key."""


class Bulk(Machine):
    """Maps that are given by rules."""

    counts: Map[Thing, Nat]
    marks: Map[Thing, Set[Thing]]

    @event
    def all_five(self) -> None:
        """Every key has five, stored or not."""
        self.counts.assign_all(lambda k: nat(5))

    @event
    def all_marked(self, mark: Thing) -> None:
        """Every key has the mark."""
        self.marks.assign_all(lambda k: set_where(Thing, lambda x: x == mark))

    @event
    def only(self, mark: Thing) -> None:
        """The key that is the mark itself has it, and nothing else."""
        self.marks[mark].become(mark)

    @event
    def unmark(self, mark: Thing) -> None:
        """No key has the mark any more."""
        self.marks.assign_all(lambda k: self.marks[k].without(set_where(Thing, lambda x: x == mark)))

    @invariant("no key has more than three")
    def few(self) -> Bool:
        return forall(Thing, lambda k: self.counts[k] <= 3)


@pytest.mark.parametrize("steps", [["all_marked"], ["all_marked", "only"], ["only"], ["only", "unmark"], ["unmark"]])
def test_a_rule_reaches_keys_that_were_never_stored(steps: list[str]) -> None:
    things = ["x", "y"]
    chapter, structure = Chapter(Bulk), Structure({"Thing": things})
    machine = Compiled(chapter, {}, {"Thing": lambda: things})
    state: State = {("counts",): {}, ("marks",): {}}
    for name in steps:
        args = ("x",)
        state = fire(chapter.event(name), structure, state, args)
        machine.events[name](*args)
    assert machine.state[("marks",)] == {k: set(v) for k, v in state[("marks",)].items() if v}


def test_a_rule_that_breaks_an_invariant_at_a_key_that_was_never_stored_is_found() -> None:
    machine = Compiled(Chapter(Bulk), {}, {"Thing": lambda: ["x"]})
    with pytest.raises(InvariantError, match="few"):
        machine.events["all_five"]()


def test_a_rule_over_keys_without_end_is_refused() -> None:
    with pytest.raises(SpecError, match="all keys at once"):
        Compiled(Chapter(Bulk), {}, {})


class Line(Machine):
    """Places up to a last one, both included; positions have no end."""

    last: Index
    marked: Set[Index]

    @init
    def start(self) -> None:
        self.last = Index.zero()
        self.marked.clear()

    @event
    def mark(self, place: Index) -> None:
        """A place is marked."""
        self.marked.add(place)

    @event
    def move(self, place: Index) -> None:
        """The last place is another one, up to which all are marked."""
        require(forall(Index, lambda i: implies(i <= place, self.marked.has(i))))
        self.last = place


def test_what_is_said_of_all_places_up_to_one_asks_for_these_and_that_one() -> None:
    machine = Compiled(Chapter(Line), {}, {})
    for place in (0, 1, 3):
        machine.events["mark"](place)
    machine.events["move"](1)
    for place in (2, 3):
        with pytest.raises(StepError):
            machine.events["move"](place)
    assert machine.state[("last",)] == [1]


class Row(Machine):
    """Things in a row; it is known which are in it."""

    known: Set[Thing]
    end: Index
    row: Map[Index, Thing]

    @init
    def start(self) -> None:
        self.known.clear()
        self.end = Index.zero()

    @event
    def know(self, thing: Thing) -> None:
        """A thing is known to be there."""
        self.known.add(thing)

    @event
    def put(self, place: Index, thing: Thing) -> None:
        """A thing stands at a place."""
        self.row[place] = thing

    @event
    def grow(self) -> None:
        """The row has one place more."""
        self.end = self.end.next()

    @invariant("what is known is what stands somewhere in the row")
    def known_there(self) -> Bool:
        return forall(
            Thing,
            lambda x: self.known.has(x) == exists(Index, lambda i: (i < self.end) & (self.row[i] == x)),
        )


@pytest.mark.parametrize(
    "steps",
    [
        [("know", "x")], [("put", 0, "x"), ("grow",)], [("put", 0, "x")], [("put", 0, "y"), ("put", 0, "x"), ("grow",)],
        [("put", 1, "x"), ("put", 0, "x"), ("grow",)],
    ],
)  # fmt: skip
def test_a_statement_inside_a_statement_is_asked_for_what_an_event_wrote(steps: list[tuple[Any, ...]]) -> None:
    machine = Compiled(Chapter(Row), {}, {"Thing": lambda: ["x", "y"]})
    for name, *args in steps:
        found = False
        try:
            machine.events[name](*args)
        except InvariantError:
            found = True
        assert found == bool(machine.sweep())


def test_what_stands_in_a_row_can_be_overwritten_unless_it_is_known() -> None:
    machine = Compiled(Chapter(Row), {}, {"Thing": lambda: ["x", "y"]})
    for name, *args in (("put", 0, "x"), ("put", 1, "y")):
        machine.events[name](*args)
    machine.load({("known",): {"x"}, ("end",): [1], ("row",): {0: "x", 1: "y"}})
    assert not machine.sweep()
    machine.events["put"](1, "x")
    with pytest.raises(InvariantError, match="known_there"):
        machine.events["put"](0, "y")
