"""A small pool whose states are counted elsewhere: the same machine, written by hand in plain Python, is the oracle.

Blocks, prefix cache and sequences in one chapter with words of its own; every sequence has fixed tokens, so `prefix`
says what it computes at an index. Every cell is filled at the start, so that the counts of full states are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvspec.model.concrete import Structure
from kvspec.spec.language import (
    Bool,
    Machine,
    Map,
    Set,
    Static,
    Variants,
    case,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    require,
    set_where,
    theorem,
    when,
    witness,
)
from kvspec.spec.sorts import Block, Chain, Index, Seq


class Owner(Variants):
    """Who can hold a block."""

    reserved = case()
    place = case(Seq, Index)
    key = case(Chain)


class AnchorPool(Machine):
    """Blocks, a prefix cache and sequences of fixed tokens."""

    padding: Static[Block]
    usable: Static[Set[Block]]
    first: Static[Chain]
    prefix: Static[Callable[[Seq, Index], Chain]]

    free: Set[Block]
    holders: Map[Block, Set[Owner]]
    table: Map[tuple[Seq, Index], Block]
    size: Map[Seq, Index]
    computed: Map[Seq, Index]
    cached: Set[Chain]
    entry: Map[Chain, Block]
    content: Map[Block, Chain]

    @init
    def start(self) -> None:
        self.free.assign(self.usable)
        self.holders.assign_all(
            lambda block: set_where(Owner, lambda owner: owner.is_case(Owner.reserved) & (block == self.padding))
        )
        self.table.assign_all(lambda seq, index: self.padding)
        self.size.assign_all(lambda seq: Index.zero())
        self.computed.assign_all(lambda seq: Index.zero())
        self.cached.clear()
        self.entry.assign_all(lambda key: self.padding)
        self.content.assign_all(lambda block: self.first)

    @event
    def take(self, seq: Seq, block: Block) -> None:
        """The table grows by a free block."""
        require(self.free.has(block))
        self.free.discard(block)
        self.holders[block].become(Owner.place(seq, self.size[seq]))
        self.append(seq, block)

    @event
    def share(self, seq: Seq) -> None:
        """The table grows by the block of a matching key, and nothing is left to compute in it."""
        index = self.size[seq]
        key = self.prefix(seq, index)
        require(self.cached.has(key))
        require(self.computed[seq] == index)
        self.holders[self.entry[key]].add(Owner.place(seq, index))
        self.append(seq, self.entry[key])
        self.computed[seq] = index.next()

    @event
    def compute(self, seq: Seq) -> None:
        """The next block is written."""
        index = self.computed[seq]
        require(index < self.size[seq])
        self.content[self.table[seq, index]] = self.prefix(seq, index)
        self.computed[seq] = index.next()

    @event
    def publish(self, seq: Seq, index: Index) -> None:
        """A written block becomes matchable, if its key is not."""
        key = self.prefix(seq, index)
        require(index < self.computed[seq])
        require(~self.cached.has(key))
        self.holders[self.table[seq, index]].add(Owner.key(key))
        self.cached.add(key)
        self.entry[key] = self.table[seq, index]

    @event
    def drop(self, seq: Seq) -> None:
        """The last block of the table is given back."""
        require(~self.size[seq].is_zero())
        index = self.size[seq].prev()
        block = self.table[seq, index]
        with when(self.holders[block].is_only(Owner.place(seq, index))):
            self.free.add(block)
        self.holders[block].discard(Owner.place(seq, index))
        self.size[seq] = index
        with when(index < self.computed[seq]):
            self.computed[seq] = index

    @event
    def evict(self, key: Chain) -> None:
        """A key whose block nobody else holds is forgotten, and the block is free."""
        require(self.cached.has(key))
        require(self.holders[self.entry[key]].is_only(Owner.key(key)))
        self.free.add(self.entry[key])
        self.holders[self.entry[key]].discard(Owner.key(key))
        self.cached.discard(key)

    def append(self, seq: Seq, block: Block) -> None:
        self.table[seq, self.size[seq]] = block
        self.size[seq] = self.size[seq].next()

    def seated(self, block: Block, seq: Seq, index: Index) -> Bool:
        return self.holders[block].has(Owner.place(seq, index))

    def keyed(self, block: Block, key: Chain) -> Bool:
        return self.holders[block].has(Owner.key(key))

    @invariant("a usable block is free or held, never both")
    def free_iff_unheld(self) -> Bool:
        return forall(Block, lambda b: implies(self.usable.has(b), self.free.has(b) == self.holders[b].is_empty()))

    @invariant("only usable blocks are free")
    def free_usable(self) -> Bool:
        return forall(Block, lambda b: implies(self.free.has(b), self.usable.has(b)))

    @invariant("the padding block is held by nobody but the pool")
    def padding_reserved(self) -> Bool:
        return self.holders[self.padding].is_only(Owner.reserved())

    @invariant("every block of a table is held for that place")
    def table_held(self) -> Bool:
        return forall(Seq, Index, lambda s, i: implies(i < self.size[s], self.seated(self.table[s, i], s, i)))

    @invariant("a block is held for a place only if it stands there")
    def held_table(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(self.seated(b, s, i), (i < self.size[s]) & (self.table[s, i] == b)),
        )

    @invariant("the block of a matchable key is held by the cache")
    def entry_held(self) -> Bool:
        return forall(Chain, lambda k: implies(self.cached.has(k), self.keyed(self.entry[k], k)))

    @invariant("the cache holds a block only for a key that leads to it")
    def held_cached(self) -> Bool:
        return forall(
            Block, Chain, lambda b, k: implies(self.keyed(b, k), self.cached.has(k) & (self.entry[k] == b))
        )

    @invariant("only blocks of the table are computed")
    def computed_within(self) -> Bool:
        return forall(Seq, lambda s: self.computed[s] <= self.size[s])

    @invariant("a computed block holds the tokens of its sequence")
    def computed_truth(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(i < self.computed[s], self.content[self.table[s, i]] == self.prefix(s, i)),
        )

    @invariant("the block of a matchable key holds the tokens of the key")
    def entry_truth(self) -> Bool:
        return forall(Chain, lambda k: implies(self.cached.has(k), self.content[self.entry[k]] == k))

    @theorem("a block stands at most once in a table")
    def once_in_a_table(self) -> Bool:
        return forall(
            Seq,
            Index,
            Index,
            lambda s, i, j: implies(
                (i < self.size[s]) & (j < self.size[s]) & (self.table[s, i] == self.table[s, j]), i == j
            ),
        )

    @theorem("a computed block can be published once, and is matchable then", after=publish)
    def published_is_matchable(self, seq: Seq, index: Index) -> Bool:
        return self.cached.has(self.prefix(seq, index)) & self.keyed(self.table[seq, index], self.prefix(seq, index))

    @witness("two sequences share a block")
    def a_shared_block(self) -> Bool:
        return exists(
            Block,
            Seq,
            Seq,
            lambda b, s, t: (s != t) & self.seated(b, s, Index.zero()) & self.seated(b, t, Index.zero()),
        )


def anchor(blocks: int, length: int, *tokens: Sequence[int]) -> Structure:
    """So many blocks (padding included) and sequences of these tokens, at most ``length`` blocks each."""
    prefixes = sorted({tuple(t[: i + 1]) for t in tokens for i in range(length)})
    places = {(seq, index): tuple(t[: index + 1]) for seq, t in enumerate(tokens) for index in range(length)}
    statics = {
        ("padding",): 0,
        ("usable",): frozenset(range(1, blocks)),
        ("first",): prefixes[0],
        ("prefix",): places,
    }
    carriers = {
        "Block": list(range(blocks)),
        "Seq": list(range(len(tokens))),
        "Index": list(range(length + 1)),
        "Chain": list(prefixes),
    }
    return Structure(carriers, statics)
