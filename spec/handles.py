"""Counted handles of blocks (seed 3, 3.1 and 4.3; class `Block`).

A handle is an object of the program that names a block; ``ref_count_`` counts the handles of a block. Copying a handle
counts up, losing one counts down, and the one that counts down to zero gives the id back (`BlockManager.free`). So the
program decides by the number, and never by who else holds the block: this chapter proves that the number tells.

It implements chapter `blocks`: the holders of a block there are the handles here.
"""

from __future__ import annotations

from kvspec.spec.blocks import Blocks
from kvspec.spec.language import (
    Bool,
    Id,
    Machine,
    Map,
    Nat,
    Set,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    nat,
    old,
    refines,
    require,
    theorem,
    when,
    witness,
)
from kvspec.spec.sorts import Block


class Handle(Id):
    """A handle object; it counts from its creation to its destruction."""


class Handles(Machine):
    """The reference count of a block is the number of its handles; the last one frees it, and only the last."""

    blocks = refines(Blocks, Holder=Handle)

    ref_count: Map[Block, Nat]
    live: Set[Handle]
    block_of: Map[Handle, Block]

    @init
    def start(self) -> None:
        self.ref_count.assign_all(lambda block: nat(0))
        self.live.clear()

    @event
    def create(self, handle: Handle, block: Block) -> None:
        """The first handle of a block that nobody holds (allocate)."""
        require(self.blocks.usable.has(block))
        require(self.ref_count[block] == 0)
        require(~self.live.has(handle))
        self.ref_count[block] = self.ref_count[block] + 1
        self.live.add(handle)
        self.block_of[handle] = block
        self.blocks.take(block, handle)

    @event
    def copy(self, source: Handle, target: Handle) -> None:
        """A handle is copied (allocate_shared, cache, fork)."""
        block = self.block_of[source]
        require(self.live.has(source))
        require(~self.live.has(target))
        self.ref_count[block] = self.ref_count[block] + 1
        self.live.add(target)
        self.block_of[target] = block
        self.blocks.share(block, target)

    @event
    def release(self, handle: Handle) -> None:
        """A handle is destroyed; if it was the last one, the id becomes free (~Block, free)."""
        block = self.block_of[handle]
        require(self.live.has(handle))
        last = self.ref_count[block] == 1
        self.ref_count[block] = self.ref_count[block] - 1
        self.live.discard(handle)
        with when(last):
            self.blocks.drop_last(block, handle)
        with when(~last):
            self.blocks.drop_shared(block, handle)

    @invariant("the reference count of a block is the number of its handles")
    def count_is_size(self) -> Bool:
        return forall(Block, lambda b: self.ref_count[b] == self.blocks.holders[b].size())

    @invariant("a live handle holds the block that it names")
    def live_holds(self) -> Bool:
        return forall(Handle, lambda h: implies(self.live.has(h), self.blocks.holders[self.block_of[h]].has(h)))

    @invariant("only live handles hold, each the one block that it names")
    def holds_live(self) -> Bool:
        return forall(
            Block,
            Handle,
            lambda b, h: implies(self.blocks.holders[b].has(h), self.live.has(h) & (self.block_of[h] == b)),
        )

    @theorem("a usable id is free exactly when its count is zero")
    def free_iff_zero(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(self.blocks.usable.has(b), self.blocks.free.has(b) == (self.ref_count[b] == 0)),
        )

    @theorem("no use after free: the block of a live handle is not free")
    def live_not_free(self) -> Bool:
        return forall(Handle, lambda h: implies(self.live.has(h), ~self.blocks.free.has(self.block_of[h])))

    @theorem("a count of one means that there is no other handle")
    def one_is_alone(self) -> Bool:
        return forall(
            Handle,
            lambda h: implies(
                self.live.has(h) & (self.ref_count[self.block_of[h]] == 1),
                self.blocks.holders[self.block_of[h]].is_only(h),
            ),
        )

    @theorem("no double free: an id becomes free once, when its last handle goes", after=release)
    def freed_by_the_last(self, handle: Handle) -> Bool:
        block = self.block_of[handle]
        return (
            ~old(self).blocks.free.has(block)
            & ~self.live.has(handle)
            & (self.blocks.free.has(block) == (self.ref_count[block] == 0))
        )

    @theorem("releasing a handle leaves the counts of other blocks alone", after=release)
    def release_is_local(self, handle: Handle) -> Bool:
        return forall(Block, lambda b: implies(b != self.block_of[handle], self.ref_count[b] == old(self).ref_count[b]))

    @theorem("a copy counts one more on the same block", after=copy)
    def copy_counts(self, source: Handle, target: Handle) -> Bool:
        block = self.block_of[target]
        return (block == old(self).block_of[source]) & (self.ref_count[block] == old(self).ref_count[block] + 1)

    @witness("a block has two handles")
    def a_copied_handle(self) -> Bool:
        return exists(Block, lambda b: self.ref_count[b] == 2)
