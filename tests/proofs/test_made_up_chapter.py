"""A chapter that no reading has heard of, with every construct of the vocabulary, is read, proved and refuted."""

from __future__ import annotations

import pytest

from kvspec.proofs.campaign import prove_chapter
from kvspec.proofs.obligations import ChapterObligations
from kvspec.proofs.prove import Options
from kvspec.proofs.verdicts import Result, Verdict
from kvspec.spec.blocks import Blocks
from kvspec.spec.language import (
    Bool,
    Chapter,
    Ghost,
    Id,
    Loop,
    Machine,
    Map,
    Nat,
    Position,
    Set,
    case,
    choose,
    empty_set,
    event,
    exists,
    false,
    forall,
    implies,
    inherit,
    init,
    invariant,
    loop,
    nat,
    old,
    refines,
    require,
    set_where,
    theorem,
    true,
    use,
    use_each,
    when,
    witness,
)
from kvspec.spec.language.values import Variants
from kvspec.spec.sorts import Block


class Bay(Id):
    """A place with a pool of its own."""


class Crate(Id):
    """Something that is waited for."""


class Day(Position):
    """When something happened."""


class Owner(Variants):
    """Who holds a block."""

    firm = case(Crate, Day)
    bay = case(Bay)
    nobody_known = case()


class Depot(Machine):
    """Two pools side by side, one more for each bay, and a journal."""

    left = use(Blocks, Holder=Owner)
    right = use(Blocks, Holder=Owner)
    bays = use_each(Bay, Blocks, Holder=Owner)

    moved: Set[Block]
    is_open: Map[Bay, Bool]
    opened_on: Map[Bay, Day]
    mover: Map[Block, Owner]
    today: Day
    journal: Ghost[Set[tuple[Block, Day]]]

    @init
    def start(self) -> None:
        self.moved.clear()
        self.is_open.assign_all(lambda bay: false())
        self.today = Day.zero()
        self.journal.clear()

    @event
    def move(self, block: Block, owner: Owner) -> None:
        """A block goes from the left to the right with its only owner."""
        require(self.right.free.has(block))
        inherit(self.left.drop_last)(block, owner)
        self.right.take(block, owner)
        self.moved.add(block)
        self.mover[block] = owner
        self.journal.add((block, self.today))

    @event
    def fill(self, bay: Bay, block: Block) -> None:
        """A bay gets a block; it is opened for that."""
        require(self.bays[bay].free.has(block))
        with when(~self.is_open[bay]):
            self.is_open[bay] = true()
            self.opened_on[bay] = self.today
        self.bays[bay].take(block, Owner.bay(bay))

    @event
    def close(self, bay: Bay) -> None:
        """A bay gives everything back and is closed."""
        self.bays[bay].drop_all(set_where(Owner, lambda owner: true()))
        self.is_open[bay] = false()

    @event
    def sweep(self) -> None:
        """All firms give back what they have on the right."""
        self.right.drop_all(set_where(Owner, lambda owner: owner.is_case(Owner.firm)))
        self.moved.assign_where(lambda block: self.moved.has(block) & ~self.right.holders[block].is_empty())

    @event
    def next_day(self) -> None:
        """A day passes."""
        self.today = self.today.next()

    @invariant("what was moved is held on the right by its mover")
    def moved_held(self) -> Bool:
        return forall(Block, lambda b: implies(self.moved.has(b), self.right.holders[b].is_only(self.mover[b])))

    @invariant("on the right only movers hold")
    def movers_hold(self) -> Bool:
        return forall(Block, Owner, lambda b, o: implies(self.right.holders[b].has(o), self.moved.has(b)))

    @invariant("a bay that holds anything is open")
    def holding_open(self) -> Bool:
        return forall(Bay, Block, Owner, lambda y, b, o: implies(self.bays[y].holders[b].has(o), self.is_open[y]))

    @invariant("a bay holds only for itself")
    def own_bay(self) -> Bool:
        return forall(
            Bay,
            Block,
            Owner,
            lambda y, b, o: implies(
                self.bays[y].holders[b].has(o), o.is_case(Owner.bay) & (o.field(Owner.bay, 0) == y)
            ),
        )

    @invariant("no bay was opened on a day to come")
    def opened_in_time(self) -> Bool:
        return forall(Bay, lambda y: implies(self.is_open[y], self.opened_on[y] <= self.today))

    @invariant("the journal knows no day to come")
    def journal_in_time(self) -> Bool:
        return forall(Block, Day, lambda b, d: implies(self.journal.has((b, d)), d <= self.today))

    @theorem("a block that is moved changes sides and keeps its owner", after=move)
    def sides_change(self, block: Block, owner: Owner) -> Bool:
        return (
            old(self).left.holders[block].has(owner)
            & self.left.free.has(block)
            & self.right.holders[block].is_only(owner)
            & ~self.right.free.has(block)
        )

    @theorem("filling one bay leaves the others alone", after=fill)
    def bays_apart(self, bay: Bay, block: Block) -> Bool:
        return forall(
            Bay, Block, lambda y, b: implies(y != bay, self.bays[y].free.has(b) == old(self).bays[y].free.has(b))
        )

    @theorem("a closed bay has all its usable blocks free")
    def closed_is_empty(self) -> Bool:
        return forall(
            Bay,
            Block,
            lambda y, b: implies(~self.is_open[y] & self.bays[y].usable.has(b), self.bays[y].free.has(b)),
        )

    @witness("a block was moved by a firm")
    def moved_by_firm(self) -> Bool:
        return exists(Block, lambda b: self.moved.has(b) & self.mover[b].is_case(Owner.firm))


class Queue(Machine):
    """What waits is served, one after the other."""

    waiting: Set[Crate]
    served: Set[Crate]
    weight: Map[Crate, Nat]

    @init
    def start(self) -> None:
        self.served.clear()
        self.weight.assign_all(lambda crate: nat(1))

    @event
    def serve(self, crate: Crate) -> None:
        """One that waits is served."""
        require(self.waiting.has(crate))
        self.waiting.discard(crate)
        self.served.add(crate)
        self.weight[crate] = choose(self.weight[crate] == 0, nat(1), self.weight[crate] + 1)

    @invariant("nobody who was served waits")
    def served_once(self) -> Bool:
        return forall(Crate, lambda c: ~(self.waiting.has(c) & self.served.has(c)))

    @invariant("everything weighs something")
    def heavy(self) -> Bool:
        return forall(Crate, lambda c: self.weight[c] >= 1)

    @loop
    def serve_all(self, total: Nat) -> Loop:
        """Serve until nobody waits."""
        return Loop(
            step=Queue.serve,
            start=self.waiting.size() + self.served.size() == total,
            keep=self.waiting.size() + self.served.size() == total,
            again=~self.waiting.is_empty(),
            measure=self.waiting.size(),
            result=self.served.size() == total,
        )


class Counter(Machine):
    """Who waits is marked and counted."""

    queue = refines(Queue)

    marked: Set[Crate]
    left: Nat

    @init
    def start(self) -> None:
        self.marked.assign(self.queue.waiting)
        self.left = self.queue.waiting.size()

    @event
    def serve(self, crate: Crate) -> None:
        """One that is marked is served."""
        require(self.marked.has(crate))
        self.queue.serve(crate)
        self.marked.discard(crate)
        self.left = self.left - 1

    @invariant("those who wait are marked")
    def marks(self) -> Bool:
        return self.marked.equals(self.queue.waiting)

    @invariant("the number is that of those who wait")
    def left_is_size(self) -> Bool:
        return self.left == self.queue.waiting.size()


MACHINES = (Depot, Queue, Counter)


def failures(machine: type[Machine], solvers: tuple[str, ...] = ("z3",)) -> list[Result]:
    name = machine.__name__.lower()
    results = prove_chapter(name, Chapter(machine), Options(solvers=solvers))
    return [r for r in results if r.verdict is not Verdict.PROVED]


@pytest.mark.parametrize("machine", MACHINES)
def test_it_is_proved_by_both_solvers(machine: type[Machine]) -> None:
    assert failures(machine, ("z3", "cvc5")) == []


def test_obligations_have_the_names_that_are_promised() -> None:
    depot = [o.id for o in ChapterObligations("depot", Chapter(Depot))]
    assert len(set(depot)) == len(depot)
    assert {
        "depot.init/moved_held", "depot.move/can_fire", "depot.move->right.take/pre.1", "depot.move/own_bay",
        "depot.move/sides_change", "depot.theorem/closed_is_empty", "depot.fill->bays.take/pre.1",
    } <= set(depot)  # fmt: skip
    queue = [o.id for o in ChapterObligations("queue", Chapter(Queue))]
    assert {f"queue.serve_all/{part}" for part in ("begins", "keeps", "falls", "goes_on", "ends")} <= set(queue)
    counter = [o.id for o in ChapterObligations("counter", Chapter(Counter))]
    assert {"counter.init/left_is_size", "counter.serve/left_natural"} <= set(counter)


# -- the same with faults ----------------------------------------------------------------------------------------------


class UnguardedMove(Depot):
    """A block may be moved onto one that is held."""

    right = use(Blocks, Holder=Owner)
    left = use(Blocks, Holder=Owner)
    moved: Set[Block]
    mover: Map[Block, Owner]

    @event
    def move(self, block: Block, owner: Owner) -> None:
        """A block goes from the left to the right."""
        inherit(self.left.drop_last)(block, owner)
        self.right.take(block, owner)
        self.moved.add(block)
        self.mover[block] = owner


class ForgetfulQueue(Machine):
    """Who is served goes on waiting."""

    waiting: Set[Crate]
    served: Set[Crate]

    @init
    def start(self) -> None:
        self.waiting.assign_where(lambda crate: true())
        self.served.clear()

    @event
    def serve(self, crate: Crate) -> None:
        """One that waits is served."""
        require(self.waiting.has(crate))
        self.served.add(crate)

    @invariant("nobody who was served waits")
    def served_once(self) -> Bool:
        return forall(Crate, lambda c: ~(self.waiting.has(c) & self.served.has(c)))

    @loop
    def serve_all(self) -> Loop:
        """Serve until nobody waits."""
        return Loop(
            step=ForgetfulQueue.serve,
            start=true(),
            keep=true(),
            again=~self.waiting.is_empty(),
            measure=self.waiting.size(),
            result=self.waiting.is_empty(),
        )


class Contradiction(Machine):
    """An event that asks for what an invariant excludes."""

    held: Set[Block]
    idle: Set[Block]

    @init
    def start(self) -> None:
        self.held.assign(empty_set(Block))
        self.idle.clear()

    @event
    def swap(self, block: Block) -> None:
        """Never possible."""
        require(self.held.has(block) & self.idle.has(block))
        self.held.discard(block)

    @invariant("nothing is both")
    def apart(self) -> Bool:
        return forall(Block, lambda b: ~(self.held.has(b) & self.idle.has(b)))


class Chain(Machine):
    """A statement that holds of finite sets only: an endless row of witnesses would break it."""

    after: Map[Day, Day]
    busy: Set[Day]

    @init
    def start(self) -> None:
        self.busy.clear()

    @event
    def look(self) -> None:
        """Nothing happens."""
        require(forall(Day, lambda d: implies(self.busy.has(d), self.busy.has(self.after[d]) & (self.after[d] > d))))

    @theorem("nobody is busy", after=look)
    def idle(self) -> Bool:
        return self.busy.is_empty()


def test_a_guard_that_is_missing_is_a_call_that_is_not_allowed() -> None:
    found = {r.id: r for r in failures(UnguardedMove)}
    owed = found["unguardedmove.move->right.take/pre.1"]
    assert owed.verdict is Verdict.REFUTED and owed.counterexample is not None
    lines = dict(owed.counterexample.lines)
    assert lines["step"].startswith("move ") and "may call right.take" in lines["broken"]


def test_an_effect_that_is_missing_is_found_by_a_run_from_the_start() -> None:
    found = {r.id: r for r in failures(ForgetfulQueue)}
    kept = found["forgetfulqueue.serve/served_once"]
    assert kept.verdict is Verdict.REFUTED and kept.counterexample is not None
    assert kept.counterexample.reached == 1
    assert dict(kept.counterexample.lines)["reached"] == "from the start in 1 step: serve [crate 1]"
    assert found["forgetfulqueue.serve_all/falls"].verdict is Verdict.REFUTED


def test_an_event_that_can_never_happen_is_vacuous_and_not_green() -> None:
    (result,) = failures(Contradiction)
    assert (result.id, result.verdict) == ("contradiction.swap/can_fire", Verdict.VACUOUS)


def test_what_only_endless_states_break_is_the_third_answer() -> None:
    (result,) = failures(Chain)
    assert result.verdict is Verdict.UNKNOWN
    assert result.note == "no counterexample up to 4 elements of each sort: an invariant may be missing"
