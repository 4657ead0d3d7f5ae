"""Small machines that look where other texts do not: each explorer gives the same verdict in every mode."""

from __future__ import annotations

import pytest

from kvspec.model.batched import Explorer
from kvspec.model.concrete import Structure, fire
from kvspec.model.exploring.instances import start_state
from kvspec.model.exploring.outcome import Outcome, States
from kvspec.model.exploring.plain import Judge, explore
from kvspec.spec.language import (
    Bool,
    Chapter,
    Machine,
    Map,
    Set,
    event,
    false,
    forall,
    implies,
    init,
    invariant,
    true,
    use,
    when,
)
from kvspec.spec.sorts import Block, Index, Seq

SMALL = Structure({"Block": [0, 1], "Seq": ["a", "b"], "Index": [0, 1]})


def explored(machine: type[Machine], states: States) -> list[Outcome]:
    """By the plain explorer, and by the batched one."""
    chapter = Chapter(machine)
    return [explore(chapter, SMALL, states), Explorer(chapter, SMALL, states=states).explore()]


def is_run_to(chapter: Chapter, found: Outcome) -> bool:
    """The run can be made, and what is said to be violated is violated at its end."""
    assert found.violation is not None
    state = start_state(chapter, SMALL)
    for step in found.violation.run:
        state = fire(chapter.event(step.event), SMALL, state, step.args)
    wrong = Judge(chapter, SMALL).state(state)
    return wrong is not None and wrong.name == found.violation.name


class MarksNothing(Machine):
    """Nothing is stored, under what is not there."""

    head: Block
    mark: Map[Block, Bool]
    on: Bool
    done: Bool

    @init
    def start(self) -> None:
        self.mark.assign_all(lambda b: false())
        self.on = false()
        self.done = false()

    @event
    def go(self) -> None:
        """Marks the head, if that is on."""
        with when(self.on):
            self.mark[self.head] = true()
        self.done = true()

    @invariant("never done")
    def never(self) -> Bool:
        return ~self.done


class MarksAHead(Machine):
    """The head is marked where it is on, and only there."""

    head: Block
    mark: Map[Block, Bool]
    on: Bool

    @init
    def start(self) -> None:
        self.mark.assign_all(lambda b: false())
        self.on = false()

    @event
    def enter(self, block: Block) -> None:
        """Somebody is at the head."""
        self.head = block

    @event
    def turn(self) -> None:
        """On or off."""
        self.on = ~self.on

    @event
    def go(self) -> None:
        """Marks the head, if that is on."""
        with when(self.on):
            self.mark[self.head] = true()

    @invariant("nothing is marked while it is off")
    def never(self) -> Bool:
        return self.on | ~self.mark[self.head]


class MarksBeyond(Machine):
    """Nothing is stored, beyond the last position."""

    at: Index
    mark: Map[Index, Bool]
    on: Bool
    done: Bool

    @init
    def start(self) -> None:
        self.at = Index.zero().next()
        self.mark.assign_all(lambda i: false())
        self.on = false()
        self.done = false()

    @event
    def go(self) -> None:
        """Marks what follows, if that is on."""
        with when(self.on):
            self.mark[self.at.next()] = true()
        self.done = true()

    @invariant("never done")
    def never(self) -> Bool:
        return ~self.done


class StaysInside(Machine):
    """What would be stored beyond the last position is stored only where it is not."""

    at: Map[Seq, Index]
    seats: Map[Index, Set[Seq]]

    @init
    def start(self) -> None:
        self.at.assign_all(lambda s: Index.zero())
        self.seats.assign_all(lambda i: self.seats[i].without(self.seats[i]))

    @event
    def sit(self, seq: Seq, really: Seq) -> None:
        """Takes the next seat, or none."""
        with when(seq == really):
            self.seats[self.at[seq].next()].add(seq)
            self.at[seq] = self.at[seq].next()

    @invariant("the two never sit together")
    def apart(self) -> Bool:
        return forall(Index, Seq, Seq, lambda i, s, t: implies(self.seats[i].has(s) & self.seats[i].has(t), s == t))


class Marks(Machine):
    """Somebody else's marks."""

    mark: Map[Block, Bool]

    @init
    def start(self) -> None:
        self.mark.assign_all(lambda b: false())

    @event
    def put(self, block: Block) -> None:
        """Marks a block."""
        self.mark[block] = true()


class CallsNobody(Machine):
    """Nothing is stored by somebody who is not called."""

    head: Map[Seq, Block]
    on: Set[Seq]
    done: Set[Seq]
    marks = use(Marks)

    @init
    def start(self) -> None:
        self.on.clear()
        self.done.clear()

    @event
    def go(self, seq: Seq) -> None:
        """Has the head marked, if that is on."""
        with when(self.on.has(seq)):
            self.marks.put(self.head[seq])
        self.done.add(seq)

    @invariant("one is not done")
    def never(self) -> Bool:
        return ~forall(Seq, lambda s: self.done.has(s))


class StepsBack(Machine):
    """A position under a key that would be before the first one is the first one."""

    size: Map[Seq, Index]
    moved: Set[Seq]

    @init
    def start(self) -> None:
        self.size.assign_all(lambda s: Index.zero())
        self.moved.clear()

    @event
    def back(self, seq: Seq) -> None:
        """One back."""
        self.size[seq] = self.size[seq].prev()
        self.moved.add(seq)

    @invariant("who moved is not at the first")
    def not_zero(self) -> Bool:
        return forall(Seq, lambda s: implies(self.moved.has(s), ~self.size[s].is_zero()))


class AllStepBack(Machine):
    """The same, all at once."""

    size: Map[Seq, Index]
    moved: Set[Seq]

    @init
    def start(self) -> None:
        self.size.assign_all(lambda s: Index.zero())
        self.moved.clear()

    @event
    def back(self, seq: Seq) -> None:
        """All one back."""
        self.size.assign_all(lambda s: self.size[s].prev())
        self.moved.add(seq)

    @invariant("who moved is not at the first")
    def not_zero(self) -> Bool:
        return forall(Seq, lambda s: implies(self.moved.has(s), ~self.size[s].is_zero()))


class HeadStepsBack(Machine):
    """A position that is nobody's may be absent."""

    at: Index
    moved: Bool

    @init
    def start(self) -> None:
        self.at = Index.zero()
        self.moved = false()

    @event
    def back(self) -> None:
        """One back, once."""
        with when(~self.moved):
            self.at = self.at.prev()
        self.moved = true()

    @invariant("it is somewhere")
    def somewhere(self) -> Bool:
        return implies(self.moved, self.at.is_zero() | (Index.zero() < self.at))


class Fills(Machine):
    """What is marked is marked again, which nobody looks at while it is on."""

    mark: Map[Block, Bool]
    on: Bool

    @init
    def start(self) -> None:
        self.mark.assign_all(lambda b: true())
        self.on = true()

    @event
    def again(self, block: Block) -> None:
        """Marks what is marked: changes nothing, ever."""
        self.mark[block] = true()

    @event
    def off(self) -> None:
        """Now somebody looks; everything is marked again for that."""
        self.mark.assign_all(lambda b: true())
        self.on = false()

    @invariant("all is marked while it is off")
    def marked(self) -> Bool:
        return self.on | forall(Block, lambda b: self.mark[b])


class Unread(Machine):
    """What nobody looks at changes."""

    mark: Map[Block, Bool]
    on: Bool

    @init
    def start(self) -> None:
        self.mark.assign_all(lambda b: false())
        self.on = false()

    @event
    def put(self, block: Block) -> None:
        """Nobody looks at it."""
        self.mark[block] = true()

    @event
    def turn(self) -> None:
        """On or off."""
        self.on = ~self.on


REACHED: list[tuple[type[Machine], int]] = [
    (MarksNothing, 1),
    (MarksAHead, 4),
    (MarksBeyond, 1),
    (StaysInside, 2),
    (CallsNobody, 2),
]


@pytest.mark.parametrize("states", States)
@pytest.mark.parametrize(("machine", "steps"), REACHED)
def test_a_change_that_does_not_happen_decides_nothing(machine: type[Machine], steps: int, states: States) -> None:
    for found in explored(machine, states):
        assert found.violation is not None
        assert len(found.violation.run) == steps
        assert is_run_to(Chapter(machine), found)


@pytest.mark.parametrize("states", States)
@pytest.mark.parametrize("machine", [StepsBack, AllStepBack, HeadStepsBack])
def test_a_position_before_the_first_is_what_the_reading_says(machine: type[Machine], states: States) -> None:
    for found in explored(machine, states):
        assert found.violation is not None
        assert len(found.violation.run) == 1
        assert is_run_to(Chapter(machine), found)


@pytest.mark.parametrize("states", States)
@pytest.mark.parametrize("machine", [Fills, Unread, MarksAHead, CallsNobody, StaysInside])
def test_no_event_is_said_to_change_something_that_does_not_do_so_in_full_states(
    machine: type[Machine], states: States
) -> None:
    full = explore(Chapter(machine), SMALL, States.FULL).fired
    plain, batched = explored(machine, states)
    assert plain.fired == batched.fired
    assert all(full[name] <= depth for name, depth in plain.fired.items())


@pytest.mark.parametrize("states", States)
@pytest.mark.parametrize(("machine", "changing"), [(Fills, {"off"}), (MarksAHead, {"enter", "turn", "go"})])
def test_an_event_that_leads_to_another_class_changes_something(
    machine: type[Machine], changing: set[str], states: States
) -> None:
    assert all(set(found.fired) == changing for found in explored(machine, states))


def test_of_what_nobody_reads_only_full_states_tell_that_it_changes() -> None:
    fired = {states: set(explore(Chapter(Unread), SMALL, states).fired) for states in States}
    assert fired.pop(States.FULL) == {"put", "turn"}
    assert all(events == {"turn"} for events in fired.values())
