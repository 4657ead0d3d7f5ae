"""What counts as used, and when an allocation may be refused (seed 3.1, 4, 4.2 and 4.3; class `BlockManagerImpl`:
``num_used_blocks_``, ``deallocate`` against ``free``, ``has_enough_blocks``).

A block is *used* while at least one sequence holds it, whether or not the prefix cache holds it too. It is *idle* while
only the cache holds it: nobody uses it, and evicting its key frees it. Every usable block is free, idle or used, so the
three numbers add up, and what an allocation can get at most is free + idle.

The program counts the sequences that hold a block (``refs``) and knows which blocks the cache has a handle of
(``kept``). Whether a holder is a sequence or the cache is a property of the holder; somebody outside who needs a block
for a while counts as a sequence.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.blocks import Blocks, Holder
from kvspec.spec.language import (
    Bool,
    Ghost,
    Loop,
    Machine,
    Map,
    Nat,
    Set,
    Static,
    empty_set,
    event,
    exists,
    forall,
    implies,
    inherit,
    init,
    invariant,
    loop,
    nat,
    old,
    require,
    theorem,
    use,
    when,
    witness,
)
from kvspec.spec.sorts import Block


class Usage(Machine):
    """The number of used blocks is the number of blocks that a sequence holds, whatever the cache does."""

    blocks = use(Blocks)

    is_sequence: Static[Callable[[Holder], Bool]]

    num_used: Nat
    refs: Map[Block, Nat]
    kept: Set[Block]
    key_handle: Map[Block, Holder]
    sequences: Ghost[Map[Block, Set[Holder]]]
    used: Ghost[Set[Block]]
    idle: Ghost[Set[Block]]

    @init
    def start(self) -> None:
        self.num_used = nat(0)
        self.refs.assign_all(lambda block: nat(0))
        self.kept.clear()
        self.sequences.assign_all(lambda block: empty_set(Holder))
        self.used.clear()
        self.idle.clear()

    @event
    def allocate(self, block: Block, holder: Holder) -> None:
        """A free block is handed out to a sequence (allocate)."""
        require(self.is_sequence(holder))
        inherit(self.blocks.take)(block, holder)
        self.count_in(block, holder)

    @event
    def share(self, block: Block, holder: Holder) -> None:
        """A sequence gets a handle of a block that somebody holds: a hit in the cache, or a fork (allocate_shared)."""
        require(self.is_sequence(holder))
        inherit(self.blocks.share)(block, holder)
        self.idle.discard(block)
        self.count_in(block, holder)

    @event
    def deallocate(self, block: Block, holder: Holder) -> None:
        """A sequence no longer uses a block; the id becomes free only if nobody else holds it (deallocate)."""
        require(self.is_sequence(holder))
        require(self.blocks.holders[block].has(holder))
        last, kept = self.refs[block] == 1, self.kept.has(block)
        with when(last & ~kept):
            self.blocks.drop_last(block, holder)
        with when(~(last & ~kept)):
            self.blocks.drop_shared(block, holder)
        self.refs[block] = self.refs[block] - 1
        self.sequences[block].discard(holder)
        with when(last):
            self.num_used = self.num_used - 1
            self.used.discard(block)
        with when(last & kept):
            self.idle.add(block)

    @event
    def keep(self, block: Block, holder: Holder) -> None:
        """The cache gets a handle of a block that a sequence uses (cache)."""
        require(~self.is_sequence(holder))
        require(~self.kept.has(block))
        require(self.refs[block] != 0)
        self.blocks.share(block, holder)
        self.kept.add(block)
        self.key_handle[block] = holder

    @event
    def forget(self, block: Block) -> None:
        """The cache gives back its handle of a block in use (reset, withdraw)."""
        require(self.kept.has(block))
        require(self.refs[block] != 0)
        self.blocks.drop_shared(block, self.key_handle[block])
        self.kept.discard(block)

    @event
    def evict(self, block: Block) -> None:
        """The cache gives back its handle of an idle block, whose id becomes free through it (evict, free)."""
        require(self.kept.has(block))
        require(self.refs[block] == 0)
        self.blocks.drop_last(block, self.key_handle[block])
        self.kept.discard(block)
        self.idle.discard(block)

    @loop
    def make_room(self, need: Nat, reachable: Nat) -> Loop:
        """While too little is free, idle blocks are evicted: all of the need is met, or too little could be reached."""
        return Loop(
            step=Usage.evict,
            start=self.blocks.free.size() + self.idle.size() == reachable,
            keep=self.blocks.free.size() + self.idle.size() == reachable,
            again=(self.blocks.free.size() < need) & ~self.idle.is_empty(),
            measure=self.idle.size(),
            result=(self.blocks.free.size() >= need) | (reachable < need),
        )

    def count_in(self, block: Block, holder: Holder) -> None:
        with when(self.refs[block] == 0):
            self.num_used = self.num_used + 1
            self.used.add(block)
        self.refs[block] = self.refs[block] + 1
        self.sequences[block].add(holder)

    # -- counters ------------------------------------------------------------------------------------------------

    @invariant("the number of used blocks is the size of the set of used blocks: it never drifts")
    def num_used_is_size(self) -> Bool:
        return self.num_used == self.used.size()

    @invariant("a block's count is the number of sequences that hold it")
    def refs_is_size(self) -> Bool:
        return forall(Block, lambda b: self.refs[b] == self.sequences[b].size())

    @invariant("the sequences of a block are those of its holders that are sequences")
    def sequences_hold(self) -> Bool:
        return forall(
            Block,
            Holder,
            lambda b, h: self.sequences[b].has(h) == (self.blocks.holders[b].has(h) & self.is_sequence(h)),
        )

    @invariant("a block is used exactly while its count is not zero")
    def used_counted(self) -> Bool:
        return forall(Block, lambda b: self.used.has(b) == (self.refs[b] != 0))

    @invariant("a count of one tells a sequence that no other holds the block")
    def one_is_alone(self) -> Bool:
        return forall(
            Block,
            Holder,
            lambda b, h: implies(self.sequences[b].has(h), self.sequences[b].is_only(h) == (self.refs[b] == 1)),
        )

    # -- the cache -----------------------------------------------------------------------------------------------

    @invariant("the cache's handle of a kept block holds it, and is no sequence")
    def kept_held(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(
                self.kept.has(b),
                self.blocks.holders[b].has(self.key_handle[b]) & ~self.is_sequence(self.key_handle[b]),
            ),
        )

    @invariant("a holder that is no sequence is the cache's one handle of a kept block")
    def others_kept(self) -> Bool:
        return forall(
            Block,
            Holder,
            lambda b, h: implies(
                self.blocks.holders[b].has(h) & ~self.is_sequence(h), self.kept.has(b) & (self.key_handle[b] == h)
            ),
        )

    @invariant("a block is idle exactly while the cache keeps it and no sequence holds it")
    def idle_kept(self) -> Bool:
        return forall(Block, lambda b: self.idle.has(b) == (self.kept.has(b) & (self.refs[b] == 0)))

    @invariant("free, idle and used blocks add up to the usable ones")
    def sizes_add_up(self) -> Bool:
        return self.blocks.free.size() + self.idle.size() + self.used.size() == self.blocks.usable.size()

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("a block that a sequence holds is used, whoever else holds it")
    def held_is_used(self) -> Bool:
        return forall(
            Block,
            Holder,
            lambda b, h: implies(self.blocks.holders[b].has(h) & self.is_sequence(h), self.used.has(b)),
        )

    @theorem("never more blocks are used than are usable")
    def used_within(self) -> Bool:
        return self.num_used <= self.blocks.usable.size()

    @theorem("no block is used when no sequence holds one")
    def unused_when_done(self) -> Bool:
        return implies(
            forall(Block, Holder, lambda b, h: ~(self.blocks.holders[b].has(h) & self.is_sequence(h))),
            self.num_used == 0,
        )

    @theorem("a usable block is free, idle or used, and only one of them")
    def one_of_three(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(
                self.blocks.usable.has(b),
                (self.blocks.free.has(b) | self.idle.has(b) | self.used.has(b))
                & ~(self.blocks.free.has(b) & (self.idle.has(b) | self.used.has(b)))
                & ~(self.idle.has(b) & self.used.has(b)),
            ),
        )

    @theorem("an idle block is held by the cache alone, so it can be evicted")
    def idle_is_evictable(self) -> Bool:
        return forall(Block, lambda b: implies(self.idle.has(b), self.blocks.holders[b].is_only(self.key_handle[b])))

    @theorem("deallocating frees no block that the cache holds; without the cache the last one does", after=deallocate)
    def deallocate_is_not_free(self, block: Block) -> Bool:
        return implies(self.kept.has(block), ~self.blocks.free.has(block)) & implies(
            ~self.kept.has(block), self.blocks.free.has(block) == (self.refs[block] == 0)
        )

    @theorem("the used number falls when the last sequence leaves, with or without the cache", after=deallocate)
    def used_falls(self, block: Block) -> Bool:
        return implies(self.refs[block] == 0, self.num_used + 1 == old(self).num_used) & implies(
            self.refs[block] != 0, self.num_used == old(self).num_used
        )

    @theorem("an eviction frees one block and changes neither free + idle nor the used number", after=evict)
    def evict_frees_one(self) -> Bool:
        return (
            (self.blocks.free.size() == old(self).blocks.free.size() + 1)
            & (self.idle.size() + 1 == old(self).idle.size())
            & (self.num_used == old(self).num_used)
        )

    @theorem("a hit lowers free + idle by at most one: the one block that it saves", after=share)
    def hit_costs_one(self) -> Bool:
        return self.blocks.free.size() + self.idle.size() + 1 >= old(self).blocks.free.size() + old(self).idle.size()

    @theorem("the cache's handle of a block in use changes no number", after=keep)
    def keep_counts_nothing(self) -> Bool:
        return (
            (self.num_used == old(self).num_used)
            & (self.blocks.free.size() == old(self).blocks.free.size())
            & (self.idle.size() == old(self).idle.size())
        )

    @witness("a block that the cache holds is used, another is idle")
    def used_and_idle(self) -> Bool:
        return exists(
            Block, Block, lambda a, b: self.kept.has(a) & self.kept.has(b) & self.used.has(a) & self.idle.has(b)
        )
