"""Whoever says that a pool covers every larger one is right: the next two have as many classes and the same verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvspec.model.batched import Explorer
from kvspec.model.concrete import Structure
from kvspec.model.exploring.outcome import Outcome, States
from kvspec.model.exploring.plain import explore
from kvspec.model.exploring.scopes import Scope
from kvspec.spec import load
from kvspec.spec.language import (
    Bool,
    Chapter,
    Machine,
    Map,
    Nat,
    Set,
    Static,
    Variants,
    case,
    event,
    exists,
    false,
    forall,
    init,
    invariant,
    nat,
    require,
    true,
)
from kvspec.spec.sorts import Block, Index, Seq


class Where(Variants):
    """Where somebody is."""

    nowhere = case()
    at = case(Block)
    between = case(Block, Block)


class Spot(Variants):
    """The same, at one block only."""

    nowhere = case()
    at = case(Block)


class OneEach(Machine):
    """Each sequence holds at most one block, inside a variant."""

    spot: Map[Seq, Spot]

    @init
    def start(self) -> None:
        self.spot.assign_all(lambda s: Spot.nowhere())

    @event
    def put(self, seq: Seq, block: Block) -> None:
        """A block that nobody has."""
        require(self.spot[seq].is_case(Spot.nowhere))
        require(forall(Seq, lambda s: ~(self.spot[s] == Spot.at(block))))
        self.spot[seq] = Spot.at(block)

    @invariant("somebody has nothing")
    def not_all(self) -> Bool:
        return ~forall(Seq, lambda s: self.spot[s].is_case(Spot.at))


class OneEachForEver(Machine):
    """The same without a violation, and with a free list."""

    usable: Static[Set[Block]]
    padding: Static[Block]
    free: Set[Block]
    spot: Map[Seq, Spot]

    @init
    def start(self) -> None:
        self.free.assign(self.usable)
        self.spot.assign_all(lambda s: Spot.at(self.padding))

    @event
    def put(self, seq: Seq, block: Block) -> None:
        """A block that nobody has."""
        require(self.free.has(block))
        require(self.spot[seq] == Spot.at(self.padding))
        self.free.discard(block)
        self.spot[seq] = Spot.at(block)

    @event
    def leave(self, seq: Seq, block: Block) -> None:
        """Back to nothing."""
        require(self.spot[seq] == Spot.at(block))
        require(self.usable.has(block))
        self.free.add(block)
        self.spot[seq] = Spot.at(self.padding)


class TwoEach(Machine):
    """A sequence stands between two blocks."""

    where: Map[Seq, Where]

    @init
    def start(self) -> None:
        self.where.assign_all(lambda s: Where.nowhere())

    @event
    def put(self, seq: Seq, one: Block, other: Block) -> None:
        """Two blocks, maybe equal."""
        self.where[seq] = Where.between(one, other)


class Linked(Machine):
    """Blocks that stand behind blocks."""

    behind: Map[Block, Block]
    last: Block
    padding: Static[Block]

    @init
    def start(self) -> None:
        self.behind.assign_all(lambda b: self.padding)
        self.last = self.padding

    @event
    def push(self, block: Block) -> None:
        """A block behind the last one."""
        require(self.behind[block] == self.padding)
        self.behind[block] = self.last
        self.last = block


class StartAsks(Machine):
    """The start asks for five blocks."""

    many: Bool
    used: Set[Block]
    bad: Bool

    @init
    def start(self) -> None:
        self.many = exists(
            Block, Block, Block, Block, Block,
            lambda a, b, c, d, e: (
                ~(a == b) & ~(a == c) & ~(a == d) & ~(a == e) & ~(b == c)
                & ~(b == d) & ~(b == e) & ~(c == d) & ~(c == e) & ~(d == e)
            ),
        )  # fmt: skip
        self.used.clear()
        self.bad = false()

    @event
    def go(self) -> None:
        """Only where there are many."""
        require(self.many)
        self.bad = true()

    @event
    def use(self, block: Block) -> None:
        """One block at most."""
        require(forall(Block, lambda b: ~self.used.has(b)))
        self.used.add(block)

    @invariant("not bad")
    def fine(self) -> Bool:
        return ~self.bad


class StartCounts(Machine):
    """The start counts the blocks."""

    usable: Static[Set[Block]]
    room: Nat
    first: Block

    @init
    def start(self) -> None:
        self.room = self.usable.size()

    @event
    def go(self) -> None:
        """One less."""
        require(self.room > nat(0))
        self.room = self.room - nat(1)

    @invariant("never five")
    def fine(self) -> Bool:
        return self.room < nat(5)


class Capacity(Machine):
    """A number that is the number of blocks."""

    capacity: Static[Nat]
    first: Block
    count: Nat

    @init
    def start(self) -> None:
        self.count = nat(0)

    @event
    def more(self) -> None:
        """One more."""
        require(self.count < self.capacity)
        self.count = self.count + nat(1)

    @invariant("few")
    def few(self) -> Bool:
        return self.count < nat(4)


class LastPlace(Machine):
    """A position that is the number of blocks."""

    last: Static[Index]
    at: Index
    first: Block

    @init
    def start(self) -> None:
        self.at = Index.zero()

    @event
    def move(self) -> None:
        """One on."""
        require(self.at < self.last)
        self.at = self.at.next()


class Home(Machine):
    """A function that knows the blocks."""

    home: Static[Callable[[Seq], Block]]
    kind: Static[Callable[[Block], Bool]]
    spot: Map[Seq, Spot]

    @init
    def start(self) -> None:
        self.spot.assign_all(lambda s: Spot.at(self.home(s)))

    @event
    def leave(self, seq: Seq) -> None:
        """Away."""
        require(~self.kind(self.home(seq)))
        self.spot[seq] = Spot.nowhere()


def structure(blocks: int) -> Structure:
    statics: dict[Any, Any] = {
        ("padding",): 0,
        ("usable",): frozenset(range(1, blocks)),
        ("capacity",): blocks,
        ("last",): min(blocks, 6) - 1,
        ("home",): lambda seq: 0,
        ("kind",): lambda block: block == 5,
    }
    return Structure({"Block": list(range(blocks)), "Seq": ["a", "b", "c"], "Index": list(range(6))}, statics)


POOLS = range(2, 8)
MACHINES: list[tuple[type[Machine], int | None]] = [
    (OneEach, None),  # violated from three blocks on
    (OneEachForEver, 5),
    (StartAsks, None),
    (StartCounts, None),
    (Capacity, None),
    (LastPlace, None),
    (Home, None),
    (TwoEach, None),
    (Linked, None),
]


def settled(found: Outcome) -> tuple[Any, ...]:
    """What is the same in every pool that is covered."""
    violation = found.violation
    return found.distinct, found.depth, dict(found.reached), violation and (violation.name, len(violation.run))


@pytest.mark.parametrize("states", [States.RENAMED, States.CANONICAL])
@pytest.mark.parametrize(("machine", "first"), MACHINES)
def test_a_pool_that_covers_larger_ones_has_their_classes(
    machine: type[Machine], first: int | None, states: States
) -> None:
    chapter = Chapter(machine)
    pools = {n: Explorer(chapter, structure(n), states=states).explore() for n in POOLS}
    check(pools, first)
    plain = {n: explore(chapter, structure(n), states) for n in list(POOLS)[:3]}
    assert {n: p.covers for n, p in plain.items()} == {n: pools[n].covers for n in plain}


def check(pools: dict[int, Outcome], first: int | None) -> None:
    """The claims are those from some pool on, and true of the next two."""
    complete = [n for n, found in pools.items() if found.complete]
    assert [n for n in complete if pools[n].covers] == [n for n in complete if first is not None and n >= first]
    for n in complete:
        if pools[n].covers:
            for larger in (n + 1, n + 2):
                if larger in pools:
                    assert settled(pools[larger]) == settled(pools[n])


@pytest.mark.parametrize(("name", "text", "first"), [("handles", "handles=2", 4), ("free_list", "handles=1", None)])
def test_what_a_chapter_claims_of_larger_pools_is_so(name: str, text: str, first: int | None) -> None:
    scopes = {n: Scope.parse(f"blocks={n},{text}", name) for n in (2, 3, 4, 5, 6)}
    found = {
        n: Explorer(load(name), s.structure, given=s.given, states=States.CANONICAL).explore()
        for n, s in scopes.items()
    }
    check(found, first)
