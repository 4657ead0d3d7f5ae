"""Whether a call may be refused, in numbers (seed 4.2 and 5.2; class `BlockManagerPool`: what a call needs against what
is free or can be made free).

What a request can get is what is free and what is idle: blocks that only the cache holds. A hit costs at most the block
that it saves, an eviction changes nothing, and what is trimmed can be had again. So a call that is refused would have
been refused without its hits; one that needs no more than the pool has is granted as soon as nobody else uses anything;
and one that needs more is never granted.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.blocks import Holder
from kvspec.spec.language import (
    Bool,
    Id,
    Machine,
    Nat,
    Set,
    Static,
    event,
    exists,
    false,
    forall,
    implies,
    inherit,
    init,
    invariant,
    nat,
    old,
    possible,
    require,
    theorem,
    true,
    use,
    witness,
)
from kvspec.spec.sorts import Block
from kvspec.spec.usage import Usage


class Request(Id):
    """Somebody who calls, with a need of his own."""


class Admission(Machine):
    """A call gets what it needs, or is refused because there is too little even with all that could be evicted."""

    usage = use(Usage)

    needs: Static[Callable[[Request], Nat]]

    calling: Bool
    need: Nat
    have: Nat
    reach: Nat
    others: Set[Block]

    @init
    def start(self) -> None:
        self.calling = false()
        self.need = nat(0)
        self.have = nat(0)
        self.reach = nat(0)
        self.others.clear()

    @event
    def begin(self, request: Request) -> None:
        """A call begins; `reach` is what it could get at most, `others` are the blocks that others use."""
        require(~self.calling)
        self.calling = true()
        self.need = self.needs(request)
        self.have = nat(0)
        self.reach = self.usage.blocks.free.size() + self.usage.idle.size()
        self.others.assign(self.usage.used)

    @event
    def hit(self, block: Block, holder: Holder) -> None:
        """A block that the cache holds is shared: one block less to get (allocate_shared)."""
        require(self.calling & (self.have < self.need))
        require(self.usage.idle.has(block) | self.others.has(block))
        inherit(self.usage.share)(block, holder)
        self.others.discard(block)
        self.have = self.have + 1

    @event
    def take(self, block: Block, holder: Holder) -> None:
        """A free block is taken (allocate)."""
        require(self.calling & (self.have < self.need))
        inherit(self.usage.allocate)(block, holder)
        self.have = self.have + 1

    @event
    def evict(self, block: Block) -> None:
        """An idle block is made free (evict)."""
        inherit(self.usage.evict)(block)

    @event
    def grant(self) -> None:
        """The call has all that it needs."""
        require(self.calling & (self.have >= self.need))
        self.calling = false()

    @event
    def refuse(self) -> None:
        """The call lacks blocks, none is free, and none is idle."""
        require(self.calling & (self.have < self.need))
        require(self.usage.blocks.free.is_empty() & self.usage.idle.is_empty())
        self.calling = false()

    @event
    def release(self, block: Block, holder: Holder) -> None:
        """A request gives a block back, between calls (deallocate)."""
        require(~self.calling)
        inherit(self.usage.deallocate)(block, holder)

    @event
    def keep(self, block: Block, holder: Holder) -> None:
        """The cache gets a handle of a block in use, between calls (cache)."""
        require(~self.calling)
        inherit(self.usage.keep)(block, holder)

    @invariant("a call has lost nothing that it could reach, beside what it has got")
    def nothing_lost(self) -> Bool:
        return implies(
            self.calling,
            self.usage.blocks.free.size() + self.usage.idle.size() + self.have >= self.reach,
        )

    @invariant("what a call has got, and what only others use, is what is used")
    def got_is_used(self) -> Bool:
        return implies(self.calling, self.have + self.others.size() == self.usage.used.size())

    @invariant("what others use is used")
    def others_use(self) -> Bool:
        return implies(self.calling, forall(Block, lambda b: implies(self.others.has(b), self.usage.used.has(b))))

    @invariant("a call never gets more than it needs")
    def never_more(self) -> Bool:
        return implies(self.calling, self.have <= self.need)

    @invariant("what a call could reach is no more than the pool has")
    def reach_within(self) -> Bool:
        return self.reach <= self.usage.blocks.usable.size()

    @theorem("a call is refused only if free and idle blocks together were below its need, with all hits", after=refuse)
    def refused_for_want(self) -> Bool:
        return old(self).reach < old(self).need

    @theorem("a call whose need is within reach is not refused")
    def within_reach_not_refused(self) -> Bool:
        return implies(self.reach >= self.need, ~possible(self.refuse)())

    @theorem("a call that needs more than the pool has is never granted")
    def never_fits(self) -> Bool:
        return implies(self.calling & (self.need > self.usage.blocks.usable.size()), ~possible(self.grant)())

    @theorem("what fits is admitted at the latest when nobody else uses a block: then everything is within reach")
    def all_within_reach(self) -> Bool:
        return implies(
            forall(Block, Holder, lambda b, h: ~(self.usage.blocks.holders[b].has(h) & self.usage.is_sequence(h))),
            self.usage.blocks.free.size() + self.usage.idle.size() == self.usage.blocks.usable.size(),
        )

    @theorem("a call always has a way on: it takes a free block, evicts an idle one, is granted, or is refused")
    def goes_on(self) -> Bool:
        return forall(
            Block,
            Holder,
            lambda b, h: implies(
                self.calling,
                implies(self.have >= self.need, possible(self.grant)())
                & implies(
                    self.have < self.need,
                    implies(
                        self.usage.blocks.free.has(b) & self.usage.is_sequence(h), possible(self.take)(b, h)
                    )
                    & implies(self.usage.idle.has(b), possible(self.evict)(b))
                    & implies(
                        self.usage.blocks.free.is_empty() & self.usage.idle.is_empty(), possible(self.refuse)()
                    ),
                ),
            ),
        )

    @theorem("at the start no call runs", after=start)
    def starts_idle(self) -> Bool:
        return ~self.calling & (self.have == 0)

    @theorem("a call begins with nothing, and could reach all that is free or idle", after=begin)
    def begun(self, request: Request) -> Bool:
        return (
            self.calling
            & (self.need == self.needs(request))
            & (self.have == 0)
            & (self.reach == self.usage.blocks.free.size() + self.usage.idle.size())
        )

    @theorem("a hit is one block that need not be got", after=hit)
    def hit_counts(self) -> Bool:
        return self.have == old(self).have + 1

    @theorem("a block that is taken is one of those that are needed", after=take)
    def taken_counts(self) -> Bool:
        return (self.have == old(self).have + 1) & (self.have <= self.need)

    @theorem("an eviction changes what is free, not what can be had", after=evict)
    def evict_keeps_reach(self) -> Bool:
        return self.usage.blocks.free.size() + self.usage.idle.size() == old(self).usage.blocks.free.size() + old(
            self
        ).usage.idle.size()

    @theorem("a granted call has exactly what it needs", after=grant)
    def granted_is_met(self) -> Bool:
        return ~self.calling & (self.have == self.need)

    @witness("a call is met by a hit and a free block")
    def hit_and_taken(self) -> Bool:
        return exists(Block, Block, lambda a, b: (a != b) & self.calling & (self.have == 2) & self.usage.kept.has(a))
