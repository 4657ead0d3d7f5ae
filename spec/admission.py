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
    caller: Request
    got: Set[Block]
    others: Set[Block]
    free_before: Set[Block]
    idle_before: Set[Block]

    @init
    def start(self) -> None:
        self.calling = false()

    @event
    def begin(self, request: Request) -> None:
        """A call begins; what is free or idle is what it can reach, `others` are the blocks that others use."""
        require(~self.calling)
        self.calling = true()
        self.caller = request
        self.got.clear()
        self.others.assign(self.usage.used)
        self.free_before.assign(self.usage.blocks.free)
        self.idle_before.assign(self.usage.idle)

    @event
    def hit(self, block: Block, holder: Holder) -> None:
        """A block that the cache holds is shared: one block less to get (allocate_shared)."""
        require(self.lacks())
        require(~self.got.has(block))
        inherit(self.usage.share)(block, holder)
        self.others.discard(block)
        self.got.add(block)

    @event
    def take(self, block: Block, holder: Holder) -> None:
        """A free block is taken (allocate)."""
        require(self.lacks())
        inherit(self.usage.allocate)(block, holder)
        self.got.add(block)

    @event
    def evict(self, block: Block) -> None:
        """An idle block is made free (evict)."""
        inherit(self.usage.evict)(block)

    @event
    def grant(self) -> None:
        """The call has all that it needs."""
        require(self.calling & ~self.lacks())
        self.calling = false()

    @event
    def refuse(self) -> None:
        """The call lacks blocks, none is free, and none is idle."""
        require(self.lacks())
        require(self.usage.blocks.free.is_empty() & self.usage.idle.is_empty())
        self.calling = false()

    @event
    def release(self, block: Block, holder: Holder) -> None:
        """A request gives a block back, between calls (deallocate)."""
        require(~self.calling)
        inherit(self.usage.deallocate)(block, holder)

    @event
    def keep(self, block: Block, holder: Holder) -> None:
        """The cache gets a handle of a block in use (cache)."""
        inherit(self.usage.keep)(block, holder)

    # -- words ---------------------------------------------------------------------------------------------------

    def need(self) -> Nat:
        """Blocks that the call needs."""
        return self.needs(self.caller)

    def lacks(self) -> Bool:
        """A call runs that has not got all that it needs."""
        return self.calling & (self.got.size() < self.need())

    def within_reach(self) -> Nat:
        """Blocks that were free or idle when the call began."""
        return self.free_before.size() + self.idle_before.size()

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant("a call has lost nothing that it could reach, beside what it has got")
    def nothing_lost(self) -> Bool:
        return implies(
            self.calling,
            self.usage.blocks.free.size() + self.usage.idle.size() + self.got.size() >= self.within_reach(),
        )

    @invariant("what a call has got, and what only others use, is what is used")
    def got_is_used(self) -> Bool:
        return implies(self.calling, self.got.size() + self.others.size() == self.usage.used.size())

    @invariant("each used block is the call's or only others', and these are used")
    def used_by_one(self) -> Bool:
        return implies(
            self.calling,
            forall(
                Block,
                lambda b: (
                    (self.usage.used.has(b) == (self.got.has(b) | self.others.has(b)))
                    & ~(self.got.has(b) & self.others.has(b))
                ),
            ),
        )

    @invariant("a call never gets more than it needs")
    def never_more(self) -> Bool:
        return implies(self.calling, self.got.size() <= self.need())

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("a call is refused only if free and idle blocks together were below its need, with all hits", after=refuse)
    def refused_for_want(self) -> Bool:
        return (old(self).within_reach() < old(self).need()) & ~self.calling

    @theorem("a call whose need is within reach is not refused")
    def within_reach_not_refused(self) -> Bool:
        return implies(self.within_reach() >= self.need(), ~possible(self.refuse)())

    @theorem("a call that needs more than the pool has is never granted")
    def never_fits(self) -> Bool:
        return implies(self.calling & (self.need() > self.usage.blocks.usable.size()), ~possible(self.grant)())

    @theorem("what fits is granted at the latest when nobody else uses a block: all is within reach then", after=begin)
    def fits_alone(self) -> Bool:
        return implies(
            forall(Block, Holder, lambda b, h: ~(self.usage.blocks.holders[b].has(h) & self.usage.is_sequence(h))),
            self.within_reach() == self.usage.blocks.usable.size(),
        )

    @theorem("a call always has a way on: it takes a free block, evicts an idle one, is granted, or is refused")
    def goes_on(self) -> Bool:
        return forall(
            Block,
            Holder,
            lambda b, h: implies(
                self.calling,
                implies(self.got.size() == self.need(), possible(self.grant)())
                & implies(
                    self.got.size() < self.need(),
                    implies(self.usage.blocks.free.has(b) & self.usage.is_sequence(h), possible(self.take)(b, h))
                    & implies(self.usage.idle.has(b), possible(self.evict)(b))
                    & implies(
                        self.usage.blocks.free.is_empty() & self.usage.idle.is_empty(), possible(self.refuse)()
                    ),
                ),
            ),
        )

    @theorem("one call at a time: while one runs no other begins, and no request gives blocks back")
    def one_at_a_time(self) -> Bool:
        return forall(
            Request,
            Block,
            Holder,
            lambda r, b, h: implies(self.calling, ~possible(self.begin)(r) & ~possible(self.release)(b, h)),
        )

    @theorem("at the start no call runs", after=start)
    def starts_idle(self) -> Bool:
        return ~self.calling

    @theorem("a call begins with nothing, and can reach all that is free or idle", after=begin)
    def begun(self, request: Request) -> Bool:
        return (
            self.calling
            & (self.need() == self.needs(request))
            & self.got.is_empty()
            & (self.within_reach() == self.usage.blocks.free.size() + self.usage.idle.size())
        )

    @theorem("a hit is one block that need not be got", after=hit)
    def hit_counts(self, block: Block) -> Bool:
        return self.got.has(block) & (self.got.size() == old(self).got.size() + 1) & self.calling

    @theorem("a block that is taken is one of those that are needed", after=take)
    def taken_counts(self, block: Block) -> Bool:
        return self.got.has(block) & (self.got.size() <= self.need()) & self.calling

    @theorem("an eviction changes what is free, not what can be had", after=evict)
    def evict_keeps_reach(self, block: Block) -> Bool:
        before, now = old(self).usage, self.usage
        return now.blocks.free.has(block) & (
            now.blocks.free.size() + now.idle.size() == before.blocks.free.size() + before.idle.size()
        )

    @theorem("a granted call has exactly what it needs", after=grant)
    def granted_is_met(self) -> Bool:
        return ~self.calling & old(self).calling & (self.got.size() == self.need())

    @theorem("a request that gives a block back holds it no more", after=release)
    def released_lets_go(self, block: Block, holder: Holder) -> Bool:
        return ~self.usage.blocks.holders[block].has(holder)

    @theorem("what the cache keeps it holds", after=keep)
    def kept_holds(self, block: Block, holder: Holder) -> Bool:
        return self.usage.blocks.holders[block].has(holder) & self.usage.kept.has(block)

    @witness("a call is met by a hit and a free block")
    def hit_and_taken(self) -> Bool:
        return exists(
            Block,
            Block,
            lambda a, b: self.got.has(a) & self.usage.kept.has(a) & self.got.has(b) & ~self.usage.kept.has(b),
        )
