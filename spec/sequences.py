"""Block tables of running sequences (seed 2.1, 9.5 and 10.1; classes `Sequence`, `KVCacheState`).

A sequence has a table of blocks and, for each of them, the chain that it has computed there (`nothing` for a block that
is only reserved). Tokens are not counted here: chapter `slots` turns a token position into a place in the table.
Operations of a manager are programs over these events: preemption drops block by block, so does a finished request;
forking shares block by block.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.language import (
    Bool,
    Machine,
    Map,
    Static,
    axiom,
    event,
    exists,
    forall,
    implies,
    inherit,
    init,
    invariant,
    old,
    possible,
    require,
    theorem,
    use,
    witness,
)
from kvspec.spec.prefix_cache import PrefixCache
from kvspec.spec.sorts import Block, Chain, Index, Pin, Seat, Seq


class Sequences(Machine):
    """Every block of a table is held by its sequence and holds what the sequence has computed in it."""

    cache = use(PrefixCache)

    parent: Static[Callable[[Chain], Chain]]
    depth: Static[Callable[[Chain], Index]]

    size: Map[Seq, Index]
    table: Map[tuple[Seq, Index], Block]
    text: Map[tuple[Seq, Index], Chain]
    taker: Map[Block, Seq]

    @axiom("a part of a block's chain stands in the same block, behind the same blocks")
    def parts_stand_together(self) -> Bool:
        return forall(
            Chain,
            Chain,
            lambda c, d: implies(
                self.cache.covers(c, d) & (d != self.cache.nothing),
                (self.parent(c) == self.parent(d)) & (self.depth(c) == self.depth(d)),
            ),
        )

    @axiom("a block begins behind a full one; only the first begins behind nothing")
    def parents_full(self) -> Bool:
        return forall(
            Chain,
            lambda c: implies(c != self.cache.nothing, self.depth(c).is_zero() | self.cache.full(self.parent(c))),
        )

    @init
    def start(self) -> None:
        self.size.assign_all(lambda seq: Index.zero())

    # -- room ----------------------------------------------------------------------------------------------------

    @event
    def take(self, seq: Seq, block: Block) -> None:
        """The table grows by a free block, to be written by this sequence first (allocate, add_kv_blocks)."""
        index = self.size[seq]
        require(self.cache.blocks.free.has(block))
        self.cache.allocate(block, Seat.seq_at(seq, index))
        self.append_block(seq, block)
        self.text[seq, index] = self.cache.nothing
        self.taker[block] = seq

    @event
    def mount(self, seq: Seq, key: Chain) -> None:
        """The table grows by the block of a matching key (allocate_shared)."""
        index = self.size[seq]
        require(self.cache.cached.has(key))
        require(self.depth(key) == index)
        require(self.follows(seq, index, key))
        self.cache.match(key, Seat.seq_at(seq, index))
        self.append_block(seq, self.cache.entry[key])
        self.text[seq, index] = key

    @event
    def fork_next(self, parent: Seq, child: Seq) -> None:
        """The child shares the parent's next block (fork of a beam; one block of it)."""
        index = self.size[child]
        require(index < self.size[parent])
        require(index.is_zero() | (self.text[child, index.prev()] == self.text[parent, index.prev()]))
        self.cache.share(self.table[parent, index], Seat.seq_at(child, index))
        self.append_block(child, self.table[parent, index])
        self.text[child, index] = self.text[parent, index]

    @event
    def copy_on_write(self, seq: Seq, index: Index, target: Block) -> None:
        """A shared block is replaced by a private copy, which the sequence may then write."""
        source = self.table[seq, index]
        seat = Seat.seq_at(seq, index)
        require(index < self.size[seq])
        require(self.cache.blocks.free.has(target))
        require(self.cache.covers(self.cache.content[source], self.text[seq, index]))
        require(~self.promised_by(seq, source))
        self.cache.allocate(target, seat)
        self.cache.write(target, self.cache.content[source])
        self.cache.release(source, seat)
        self.table[seq, index] = target
        self.taker[target] = seq

    @event
    def drop(self, seq: Seq) -> None:
        """The last block of the table is given back (deallocate, preempt, truncate; one block of it)."""
        require(~self.size[seq].is_zero())
        index = self.size[seq].prev()
        require(~self.promised_by(seq, self.table[seq, index]))
        self.cache.release(self.table[seq, index], Seat.seq_at(seq, index))
        self.size[seq] = index

    # -- content -------------------------------------------------------------------------------------------------

    @event
    def write(self, seq: Seq, chain: Chain) -> None:
        """The sequence computes tokens of one block, up to the given chain.

        Cells that others may read are left as they are: the writer is alone, or adds to what it was the first to
        take, or writes the same again.
        """
        index = self.depth(chain)
        block = self.table[seq, index]
        require(index < self.size[seq])
        require(self.cache.covers(chain, self.text[seq, index]))
        require(self.follows(seq, index, chain))
        require(
            self.cache.covers(self.cache.content[block], chain)
            | self.cache.blocks.holders[block].is_only(Seat.seq_at(seq, index))
            | ((self.taker[block] == seq) & self.cache.covers(chain, self.cache.content[block]))
        )
        inherit(self.cache.write)(block, chain)
        self.text[seq, index] = chain

    @event
    def truncate(self, seq: Seq, index: Index, chain: Chain) -> None:
        """Tokens at the end are taken back (rejected draft tokens): in this block only the given chain remains."""
        require(self.cache.covers(self.text[seq, index], chain))
        require(self.cache.covers(self.cache.content[self.table[seq, index]], chain))
        require(
            forall(
                Index,
                lambda later: implies(
                    (index < later) & (later < self.size[seq]), self.text[seq, later] == self.cache.nothing
                ),
            )
        )
        self.text[seq, index] = chain

    # -- keys ----------------------------------------------------------------------------------------------------

    @event
    def publish(self, seq: Seq, index: Index) -> None:
        """A block that the sequence has filled becomes matchable (cache)."""
        require(index < self.size[seq])
        require(self.cache.full(self.text[seq, index]))
        require(~self.cache.cached.has(self.text[seq, index]))
        self.cache.publish(self.text[seq, index], self.table[seq, index])

    @event
    def publish_ahead(self, seq: Seq, key: Chain) -> None:
        """A block that the sequence is going to fill in this step becomes matchable for the requests of the step."""
        index = self.depth(key)
        require(index < self.size[seq])
        require(self.taker[self.table[seq, index]] == seq)
        inherit(self.cache.publish_ahead)(key, self.table[seq, index])

    @event
    def settle(self, key: Chain) -> None:
        """A block that was published ahead has been written."""
        inherit(self.cache.settle)(key)

    @event
    def withdraw(self, key: Chain) -> None:
        """A key that was published ahead is taken back, if no other sequence counts on it."""
        require(
            forall(
                Seq,
                Index,
                lambda s, i: implies(self.seated(self.cache.entry[key], s, i), self.text[s, i] != key),
            )
        )
        inherit(self.cache.withdraw)(key)

    @event
    def begin_step(self) -> None:
        """The scheduler starts to plan a step."""
        self.cache.begin_step()

    @event
    def end_step(self) -> None:
        """The step is done."""
        inherit(self.cache.end_step)()

    @event
    def evict(self, key: Chain) -> None:
        """A key whose block nobody else holds is forgotten."""
        inherit(self.cache.evict)(key)

    @event
    def reset(self) -> None:
        """All keys are forgotten, between steps."""
        require(self.cache.pending.is_empty())
        self.cache.reset()

    # -- others --------------------------------------------------------------------------------------------------

    @event
    def hold(self, block: Block, pin: Pin) -> None:
        """Somebody outside takes a handle of a live block."""
        inherit(self.cache.share)(block, Seat.pin_of(pin))

    @event
    def unhold(self, block: Block, pin: Pin) -> None:
        """Somebody outside gives a handle back."""
        inherit(self.cache.release)(block, Seat.pin_of(pin))

    # -- words ---------------------------------------------------------------------------------------------------

    def append_block(self, seq: Seq, block: Block) -> None:
        self.table[seq, self.size[seq]] = block
        self.size[seq] = self.size[seq].next()

    def seated(self, block: Block, seq: Seq, index: Index) -> Bool:
        """The block stands at this place of the sequence's table."""
        return self.cache.blocks.holders[block].has(Seat.seq_at(seq, index))

    def follows(self, seq: Seq, index: Index, chain: Chain) -> Bool:
        """The chain goes on where the block before ends."""
        return (index.is_zero() & (self.parent(chain) == self.cache.nothing)) | (
            ~index.is_zero() & (self.parent(chain) == self.text[seq, index.prev()])
        )

    def promised_by(self, seq: Seq, block: Block) -> Bool:
        """The sequence has still to write the block under a key that others may count on."""
        return (self.taker[block] == seq) & exists(
            Chain, lambda k: self.cache.keyed(block, k) & self.cache.pending.has(k)
        )

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant("every block of a table is held for that place")
    def table_held(self) -> Bool:
        return forall(
            Seq, Index, lambda s, i: implies(i < self.size[s], self.seated(self.table[s, i], s, i))
        )

    @invariant("a block is held for a place only if it stands there")
    def held_table(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(self.seated(b, s, i), (i < self.size[s]) & (self.table[s, i] == b)),
        )

    @invariant("a sequence can read what it has computed, or what is promised for this step")
    def text_readable(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(
                self.seated(b, s, i),
                self.cache.covers(self.cache.content[b], self.text[s, i])
                | (self.cache.pending.has(self.text[s, i]) & self.cache.keyed(b, self.text[s, i])),
            ),
        )

    @invariant("what a sequence has computed in a block goes on where the block before ends")
    def text_linked(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                (i < self.size[s]) & (self.text[s, i] != self.cache.nothing), self.follows(s, i, self.text[s, i])
            ),
        )

    @invariant("what a sequence has computed in a block belongs to that place")
    def text_in_place(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                (i < self.size[s]) & (self.text[s, i] != self.cache.nothing), self.depth(self.text[s, i]) == i
            ),
        )

    @invariant("a block stands at the same place in all tables, so at most once in each")
    def same_place(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            Seq,
            Index,
            lambda b, s, i, t, j: implies(self.seated(b, s, i) & self.seated(b, t, j), i == j),
        )

    @invariant("a block with a key stands at the place that the key says")
    def key_in_place(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            Chain,
            lambda b, s, i, k: implies(self.seated(b, s, i) & self.cache.keyed(b, k), self.depth(k) == i),
        )

    @invariant("what is in a block belongs to the place where it stands")
    def content_in_place(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(
                self.seated(b, s, i) & (self.cache.content[b] != self.cache.nothing),
                self.depth(self.cache.content[b]) == i,
            ),
        )

    @invariant("who has promised to write a block holds it")
    def promise_held(self) -> Bool:
        return forall(
            Block,
            Chain,
            lambda b, k: implies(
                self.cache.keyed(b, k) & self.cache.pending.has(k), self.seated(b, self.taker[b], self.depth(k))
            ),
        )

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("no table names a free block")
    def tables_never_free(self) -> Bool:
        return forall(
            Seq, Index, lambda s, i: implies(i < self.size[s], ~self.cache.blocks.free.has(self.table[s, i]))
        )

    @theorem("a block occurs at most once in a table")
    def once_in_a_table(self) -> Bool:
        return forall(
            Seq,
            Index,
            Index,
            lambda s, i, j: implies(
                (i < self.size[s]) & (j < self.size[s]) & (self.table[s, i] == self.table[s, j]), i == j
            ),
        )

    @theorem("between steps every sequence reads its own tokens, block by block")
    def reads_own_tokens(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                ~self.cache.in_step & (i < self.size[s]),
                self.cache.covers(self.cache.content[self.table[s, i]], self.text[s, i]),
            ),
        )

    @theorem("a written cell is never overwritten with other content while somebody else may read it", after=write)
    def others_undisturbed(self, seq: Seq, chain: Chain) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(
                self.seated(b, s, i)
                & (s != seq)
                & self.cache.covers(old(self).cache.content[b], old(self).text[s, i]),
                self.cache.covers(self.cache.content[b], self.text[s, i]),
            ),
        )

    @theorem("after copy-on-write the writer is alone and reads what it read before", after=copy_on_write)
    def copy_is_private(self, seq: Seq, index: Index, target: Block) -> Bool:
        return (
            self.cache.blocks.holders[target].is_only(Seat.seq_at(seq, index))
            & (self.table[seq, index] == target)
            & self.cache.covers(self.cache.content[target], old(self).text[seq, index])
        )

    @theorem("a hit mounts the block that holds exactly the tokens of its key", after=mount)
    def mounted_is_exact(self, seq: Seq, key: Chain) -> Bool:
        return implies(
            ~self.cache.pending.has(key), self.cache.content[self.table[seq, old(self).size[seq]]] == key
        )

    @theorem("a block that was taken is the last of the table, and its first write belongs to who took it", after=take)
    def taken_is_last(self, seq: Seq, block: Block) -> Bool:
        return (
            (self.table[seq, old(self).size[seq]] == block)
            & (self.taker[block] == seq)
            & self.cache.blocks.holders[block].is_only(Seat.seq_at(seq, old(self).size[seq]))
        )

    @theorem("what a sequence has published can be matched", after=publish)
    def published_is_matchable(self, seq: Seq, index: Index) -> Bool:
        return self.cache.cached.has(self.text[seq, index]) & ~self.cache.pending.has(self.text[seq, index])

    @theorem("what is published ahead can be matched, and is promised", after=publish_ahead)
    def promised_is_matchable(self, key: Chain) -> Bool:
        return self.cache.cached.has(key) & self.cache.pending.has(key)

    @theorem("what has been written is no longer promised", after=settle)
    def settled_is_written(self, key: Chain) -> Bool:
        return ~self.cache.pending.has(key)

    @theorem("what is taken back cannot be matched", after=withdraw)
    def withdrawn_is_gone(self, key: Chain) -> Bool:
        return ~self.cache.cached.has(key)

    @theorem("a key that is evicted cannot be matched", after=evict)
    def evicted_is_gone(self, key: Chain) -> Bool:
        return ~self.cache.cached.has(key)

    @theorem("after a reset no key can be matched", after=reset)
    def reset_forgets(self) -> Bool:
        return forall(Chain, lambda k: ~self.cache.cached.has(k))

    @theorem("an outside holder keeps the block in use", after=hold)
    def held_from_outside(self, block: Block, pin: Pin) -> Bool:
        return self.cache.blocks.holders[block].has(Seat.pin_of(pin))

    @theorem("an outside holder that lets go holds nothing", after=unhold)
    def let_go(self, block: Block, pin: Pin) -> Bool:
        return ~self.cache.blocks.holders[block].has(Seat.pin_of(pin))

    @theorem("a block that is given back is no longer in the table", after=drop)
    def dropped_is_gone(self, seq: Seq) -> Bool:
        index = self.size[seq]
        return ~self.seated(old(self).table[seq, index], seq, index) & (index < old(self).size[seq])

    @theorem("what is mounted counts as computed", after=mount)
    def mounted_is_computed(self, seq: Seq, key: Chain) -> Bool:
        return self.text[seq, old(self).size[seq]] == key

    @theorem("a child that forks shares the block of its parent, and what was computed in it", after=fork_next)
    def forked_is_shared(self, parent: Seq, child: Seq) -> Bool:
        index = old(self).size[child]
        return (
            (self.table[child, index] == self.table[parent, index])
            & (self.text[child, index] == self.text[parent, index])
            & (index < self.size[child])
        )

    @theorem("a private copy holds what the original held, and is its owner's to write first", after=copy_on_write)
    def copied_is_private(self, seq: Seq, index: Index, target: Block) -> Bool:
        source = old(self).table[seq, index]
        return (
            (self.table[seq, index] == target)
            & self.cache.blocks.holders[target].is_only(Seat.seq_at(seq, index))
            & self.cache.covers(self.cache.content[target], old(self).cache.content[source])
            & (self.taker[target] == seq)
        )

    @theorem("a step begins", after=begin_step)
    def begun(self) -> Bool:
        return self.cache.in_step

    @theorem("a step ends", after=end_step)
    def ended(self) -> Bool:
        return ~self.cache.in_step

    @theorem("what a sequence writes is what it can read then", after=write)
    def written_is_readable(self, seq: Seq, chain: Chain) -> Bool:
        index = self.depth(chain)
        return (self.text[seq, index] == chain) & self.cache.covers(self.cache.content[self.table[seq, index]], chain)

    @theorem("cells that somebody else may read are written first by who took the block", after=write)
    def first_write_is_takers(self, seq: Seq, chain: Chain) -> Bool:
        block = self.table[seq, self.depth(chain)]
        return (
            (self.cache.content[block] == old(self).cache.content[block])
            | self.cache.blocks.holders[block].is_only(Seat.seq_at(seq, self.depth(chain)))
            | (self.taker[block] == seq)
        )

    @theorem("of a block that is cut, what remains can be read", after=truncate)
    def cut_is_shorter(self, seq: Seq, index: Index, chain: Chain) -> Bool:
        return self.text[seq, index] == chain

    @theorem("a sequence without blocks holds none: nothing leaks when it ends")
    def drained(self) -> Bool:
        return forall(Seq, Block, Index, lambda s, b, i: implies(self.size[s].is_zero(), ~self.seated(b, s, i)))

    # -- what is possible ----------------------------------------------------------------------------------------

    @theorem("a child that has come as far as its parent goes on")
    def forks_go_on(self) -> Bool:
        return forall(
            Seq,
            Seq,
            lambda parent, child: implies(
                (self.size[child] < self.size[parent])
                & (
                    self.size[child].is_zero()
                    | (self.text[child, self.size[child].prev()] == self.text[parent, self.size[child].prev()])
                ),
                possible(self.fork_next)(parent, child),
            ),
        )

    @theorem("who holds a block alone, without a key on it, can write what comes next")
    def writes_go_on(self) -> Bool:
        return forall(
            Seq,
            Chain,
            lambda seq, chain: implies(
                (self.depth(chain) < self.size[seq])
                & self.cache.blocks.holders[self.table[seq, self.depth(chain)]].is_only(
                    Seat.seq_at(seq, self.depth(chain))
                )
                & self.cache.covers(chain, self.text[seq, self.depth(chain)])
                & self.follows(seq, self.depth(chain), chain),
                possible(self.write)(seq, chain),
            ),
        )

    @theorem("the last tokens of a sequence can be taken back, unless the block is still to be written")
    def cuts_go_on(self) -> Bool:
        return forall(
            Seq,
            Chain,
            lambda seq, chain: implies(
                ~self.size[seq].is_zero()
                & self.cache.covers(self.text[seq, self.size[seq].prev()], chain)
                & ~self.cache.pending.has(self.text[seq, self.size[seq].prev()]),
                possible(self.truncate)(seq, self.size[seq].prev(), chain),
            ),
        )

    @witness("two sequences share a block")
    def a_shared_block(self) -> Bool:
        return exists(
            Block,
            Seq,
            Seq,
            lambda b, s, t: (s != t) & self.seated(b, s, Index.zero()) & self.seated(b, t, Index.zero()),
        )
