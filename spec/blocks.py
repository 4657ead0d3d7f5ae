"""Who holds each physical block (seed 3 and 4.1; classes `Block`, `BlockManager`).

A block's reference count is not a number here but the set of its holders; chapter `handles` shows that the number
``ref_count_`` is the size of that set. Which free block is taken is a parameter: any choice is allowed.
"""

from __future__ import annotations

from kvspec.spec.language import (
    Bool,
    Id,
    Machine,
    Map,
    Set,
    Static,
    axiom,
    empty_set,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    old,
    require,
    theorem,
    when,
    witness,
)
from kvspec.spec.sorts import Block


class Holder(Id):
    """Somebody who needs a block; a chapter that uses this one says who."""


class Blocks(Machine):
    """Each usable block is free or held by somebody; block 0 (padding) is neither."""

    padding: Static[Block]
    usable: Static[Set[Block]]
    free: Set[Block]
    holders: Map[Block, Set[Holder]]

    @axiom("the padding block is not usable")
    def padding_unusable(self) -> Bool:
        return ~self.usable.has(self.padding)

    @init
    def start(self) -> None:
        self.free.assign(self.usable)
        self.holders.assign_all(lambda block: empty_set(Holder))

    @event
    def take(self, block: Block, holder: Holder) -> None:
        """A free block gets its first holder (allocate)."""
        require(self.free.has(block))
        self.free.discard(block)
        self.holders[block].add(holder)

    @event
    def share(self, block: Block, holder: Holder) -> None:
        """A block in use gets one more holder (a handle is copied)."""
        require(~self.holders[block].is_empty())
        require(~self.holders[block].has(holder))
        self.holders[block].add(holder)

    @event
    def drop_shared(self, block: Block, holder: Holder) -> None:
        """One of several holders gives its handle back; the block stays in use."""
        require(self.holders[block].has(holder))
        require(~self.holders[block].is_only(holder))
        self.holders[block].discard(holder)

    @event
    def drop_last(self, block: Block, holder: Holder) -> None:
        """The only holder gives its handle back; the id is free again (free)."""
        require(self.holders[block].is_only(holder))
        self.holders[block].discard(holder)
        self.free.add(block)

    @event
    def drop(self, block: Block, holder: Holder) -> None:
        """A holder gives its handle back, whoever else there is."""
        require(self.holders[block].has(holder))
        last = self.holders[block].is_only(holder)
        with when(last):
            self.drop_last(block, holder)
        with when(~last):
            self.drop_shared(block, holder)

    @event
    def drop_all(self, leaving: Set[Holder]) -> None:
        """Several holders give back all their handles at once; blocks that nobody else holds are free again."""
        self.holders.assign_all(lambda block: self.holders[block].without(leaving))
        self.free.assign_where(lambda block: self.usable.has(block) & self.holders[block].is_empty())

    @invariant("every usable id is free or held, never both")
    def free_iff_unheld(self) -> Bool:
        return forall(Block, lambda b: implies(self.usable.has(b), self.free.has(b) == self.holders[b].is_empty()))

    @invariant("only usable ids are free")
    def free_usable(self) -> Bool:
        return forall(Block, lambda b: implies(self.free.has(b), self.usable.has(b)))

    @invariant("only usable ids are held")
    def held_usable(self) -> Bool:
        return forall(Block, Holder, lambda b, h: implies(self.holders[b].has(h), self.usable.has(b)))

    @theorem("no leaked id: an id that nobody holds and that is not free is no usable id")
    def no_leaked_id(self) -> Bool:
        return forall(
            Block, lambda b: implies(~self.free.has(b) & self.holders[b].is_empty(), ~self.usable.has(b))
        )

    @theorem("the padding block is never free and never held")
    def padding_reserved(self) -> Bool:
        return ~self.free.has(self.padding) & self.holders[self.padding].is_empty()

    @theorem("only a block that nobody held is handed out, and only a usable one", after=take)
    def handed_out_unheld(self, block: Block) -> Bool:
        return old(self).holders[block].is_empty() & self.usable.has(block)

    @theorem("a copied handle is a new one", after=share)
    def shared_is_new(self, block: Block, holder: Holder) -> Bool:
        return ~old(self).holders[block].has(holder) & self.holders[block].has(holder)

    @theorem("no double free: a handle that is given back was held until then", after=drop_shared)
    def released_was_held(self, block: Block, holder: Holder) -> Bool:
        return old(self).holders[block].has(holder) & ~self.holders[block].has(holder)

    @theorem("no double free: an id that becomes free was in use until then", after=drop_last)
    def freed_was_held(self, block: Block) -> Bool:
        return ~old(self).free.has(block) & self.free.has(block)

    @theorem("a handle that is given back does not disturb other blocks", after=drop)
    def drop_is_local(self, block: Block) -> Bool:
        return forall(Block, lambda b: implies(b != block, self.free.has(b) == old(self).free.has(b)))

    @theorem("a handle that is given back holds no more, and every other one holds on", after=drop)
    def drop_takes_one(self, block: Block, holder: Holder) -> Bool:
        return forall(
            Block,
            Holder,
            lambda b, h: (
                self.holders[b].has(h) == (old(self).holders[b].has(h) & ~((b == block) & (h == holder)))
            ),
        )

    @theorem("dropping many at once frees exactly what nobody else holds", after=drop_all)
    def drop_all_frees(self, leaving: Set[Holder]) -> Bool:
        return forall(
            Block,
            Holder,
            lambda b, h: self.holders[b].has(h) == (old(self).holders[b].has(h) & ~leaving.has(h)),
        )

    @witness("a block has two holders")
    def a_shared_block(self) -> Bool:
        return exists(
            Block, Holder, Holder, lambda b, g, h: (g != h) & self.holders[b].has(g) & self.holders[b].has(h)
        )

    @witness("no block is free")
    def exhausted(self) -> Bool:
        return self.free.is_empty()
