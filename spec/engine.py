"""Blocks of a manager inside a running engine, which hands out keys before contents (beside the contract: what managers
of other projects have in common, such as vLLM's `KVCacheManager`, SGLang's `RadixCache`, LMDeploy's `BlockTrie`).

Such a manager plans a whole step before the device does anything. It may publish a block that the step is still to
write, and another request of the same step may match it: every layer of attention writes before it reads. It may keep
several blocks for one key, forget a key at any time, and hand out any block that nobody needs. What it must not do is
the same for all: hand out or overwrite what somebody relies on.

A table is one request's blocks in one group of layers; here it is a sequence of its own. A block of recurrent state is
covered by nothing but the same state, so it can be matched only when it is there.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.blocks import Blocks
from kvspec.spec.language import (
    Bool,
    Machine,
    Map,
    Set,
    Static,
    axiom,
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
    when,
    witness,
)
from kvspec.spec.sorts import Block, Chain, Index, Pin, Seat, Seq


class Engine(Machine):
    """What a holder relies on stays where it is, and what can be matched is there when the step is over."""

    blocks = use(Blocks, Holder=Seat)

    nothing: Static[Chain]
    covers: Static[Callable[[Chain, Chain], Bool]]
    layered: Static[Callable[[Chain], Bool]]

    content: Map[Block, Chain]
    keyed: Set[Block]
    key: Map[Block, Chain]
    ahead: Set[Block]
    in_step: Bool
    relies: Map[tuple[Block, Seq, Index], Chain]

    @axiom("a chain covers itself")
    def covers_itself(self) -> Bool:
        return forall(Chain, lambda c: self.covers(c, c))

    @axiom("what is covered by a covered chain is covered")
    def covers_transitive(self) -> Bool:
        return forall(
            Chain, Chain, Chain, lambda c, d, e: implies(self.covers(c, d) & self.covers(d, e), self.covers(c, e))
        )

    @axiom("every chain covers the empty one")
    def nothing_is_least(self) -> Bool:
        return forall(Chain, lambda c: self.covers(c, self.nothing))

    @axiom("a state is covered by nothing but the same state")
    def states_are_whole(self) -> Bool:
        return forall(
            Chain,
            Chain,
            lambda c, d: implies(self.covers(c, d) & ~self.layered(d) & (d != self.nothing), c == d),
        )

    @init
    def start(self) -> None:
        self.keyed.clear()
        self.ahead.clear()
        self.in_step = false()

    # -- holders -------------------------------------------------------------------------------------------------

    @event
    def take(self, block: Block, seq: Seq, index: Index) -> None:
        """A free block is handed out for a place of a table; what was in it counts for nothing."""
        inherit(self.blocks.take)(block, Seat.seq_at(seq, index))
        self.content[block] = self.nothing
        self.relies[block, seq, index] = self.nothing

    @event
    def match(self, block: Block, seq: Seq, index: Index) -> None:
        """A block with a key gets one more holder, who relies on the key; ahead of its content only in layers that
        write before they read."""
        require(self.keyed.has(block))
        require(~self.holds(block, seq, index))
        require(implies(self.ahead.has(block), self.layered(self.key[block])))
        self.blocks.share(block, Seat.seq_at(seq, index))
        self.relies[block, seq, index] = self.key[block]

    @event
    def share(self, block: Block, giver: Seq, place: Index, seq: Seq, index: Index) -> None:
        """A holder lets another table hold its block, too (fork)."""
        require(self.holds(block, giver, place))
        inherit(self.blocks.share)(block, Seat.seq_at(seq, index))
        self.relies[block, seq, index] = self.relies[block, giver, place]

    @event
    def release(self, block: Block, seq: Seq, index: Index) -> None:
        """A table gives a block back."""
        inherit(self.blocks.drop)(block, Seat.seq_at(seq, index))

    @event
    def hold(self, block: Block, pin: Pin) -> None:
        """Something outside of the tables needs a block that is in use: a pending copy, a transfer."""
        inherit(self.blocks.share)(block, Seat.pin_of(pin))

    @event
    def unhold(self, block: Block, pin: Pin) -> None:
        """It needs the block no longer."""
        inherit(self.blocks.drop)(block, Seat.pin_of(pin))

    # -- contents ------------------------------------------------------------------------------------------------

    @event
    def write(self, block: Block, seq: Seq, index: Index, chain: Chain) -> None:
        """A holder writes a block up to some token, or a state into it.

        What is there already may be written again. Otherwise it has to agree with the key, and either goes on with what
        is there or takes nothing from others that they rely on. Who writes a part of what it relies on goes on
        relying on all of it.
        """
        key = self.key[block]
        agrees = implies(self.keyed.has(block), self.covers(key, chain) | self.covers(chain, key))
        spares = self.covers(chain, self.content[block]) | self.spares_others(block, seq, index, chain)
        require(self.holds(block, seq, index))
        require(self.covers(self.content[block], chain) | (agrees & spares))
        with when(~self.covers(self.relies[block, seq, index], chain)):
            self.relies[block, seq, index] = chain
        with when(~self.covers(self.content[block], chain)):
            self.fill(block, chain)

    @event
    def copy(self, source: Block, target: Block, seq: Seq, index: Index) -> None:
        """The device copies a block that is held to another one, whose key, if it has one, is ahead, and where nobody
        else relies on what is there."""
        require(source != target)
        require(~self.blocks.holders[source].is_empty())
        require(self.holds(target, seq, index))
        require(implies(self.keyed.has(target), self.ahead.has(target)))
        require(self.spares_others(target, seq, index, self.content[source]))
        self.relies[target, seq, index] = self.content[source]
        self.fill(target, self.content[source])

    def fill(self, block: Block, chain: Chain) -> None:
        """The block has another content; what its key says is there, or still is to come."""
        with when(self.covers(chain, self.key[block])):
            self.ahead.discard(block)
        self.content[block] = chain

    # -- keys ----------------------------------------------------------------------------------------------------

    @event
    def publish(self, block: Block, key: Chain) -> None:
        """A block that somebody holds, and that has what the key says, can be matched; other blocks may have the same
        key."""
        require(~self.keyed.has(block))
        require(~self.blocks.holders[block].is_empty())
        require(self.covers(self.content[block], key))
        self.blocks.share(block, Seat.cache_of(key))
        self.keyed.add(block)
        self.key[block] = key

    @event
    def begin_step(self) -> None:
        """The scheduler starts to plan a step."""
        require(~self.in_step)
        self.in_step = true()

    @event
    def publish_ahead(self, block: Block, key: Chain) -> None:
        """A block that this step will write can be matched already, whatever is in it; it is ahead until what the key
        says is there."""
        require(self.in_step)
        require(~self.keyed.has(block))
        require(~self.blocks.holders[block].is_empty())
        self.blocks.share(block, Seat.cache_of(key))
        self.keyed.add(block)
        self.key[block] = key
        with when(~self.covers(self.content[block], key)):
            self.ahead.add(block)

    @event
    def forget(self, block: Block) -> None:
        """A key is forgotten (eviction, reset); a block that nobody else holds becomes free. A key that was published
        ahead is taken back only if nobody relies on it."""
        require(self.keyed.has(block))
        require(
            forall(
                Seq,
                Index,
                lambda seq, index: implies(
                    self.holds(block, seq, index), self.covers(self.content[block], self.relies[block, seq, index])
                ),
            )
        )
        self.keyed.discard(block)
        self.ahead.discard(block)
        self.blocks.drop(block, Seat.cache_of(self.key[block]))

    @event
    def end_step(self) -> None:
        """The step is done; every block that was published ahead has been written, or its key taken back."""
        require(self.in_step)
        require(self.ahead.is_empty())
        self.in_step = false()

    def holds(self, block: Block, seq: Seq, index: Index) -> Bool:
        """The block stands at this place of the table."""
        return self.blocks.holders[block].has(Seat.seq_at(seq, index))

    def spares_others(self, block: Block, seq: Seq, index: Index, chain: Chain) -> Bool:
        """With this chain in the block, all other places that hold it find what they rely on, now or when what was
        published ahead is there; and nothing outside needs the block."""
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                self.holds(block, s, i) & ((s != seq) | (i != index)),
                self.covers(chain, self.relies[block, s, i])
                | (self.ahead.has(block) & (self.relies[block, s, i] == self.key[block])),
            ),
        ) & ~self.is_needed_outside(block)

    def is_needed_outside(self, block: Block) -> Bool:
        """Something that is no table and not the cache holds the block."""
        return exists(Pin, lambda p: self.blocks.holders[block].has(Seat.pin_of(p)))

    def has_no_user(self, block: Block) -> Bool:
        """No table holds the block, and nothing outside."""
        return ~self.is_needed_outside(block) & ~exists(Seq, Index, lambda s, i: self.holds(block, s, i))

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant("the cache holds each block with a key")
    def keyed_held(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(self.keyed.has(b), self.blocks.holders[b].has(Seat.cache_of(self.key[b]))),
        )

    @invariant("the cache holds a block only for its key")
    def held_keyed(self) -> Bool:
        return forall(
            Block,
            Chain,
            lambda b, k: implies(self.blocks.holders[b].has(Seat.cache_of(k)), self.keyed.has(b) & (self.key[b] == k)),
        )

    @invariant("a block that was published ahead has a key")
    def ahead_keyed(self) -> Bool:
        return forall(Block, lambda b: implies(self.ahead.has(b), self.keyed.has(b)))

    @invariant("keys are published ahead only inside a step")
    def ahead_in_step(self) -> Bool:
        return forall(Block, lambda b: implies(self.ahead.has(b), self.in_step))

    @invariant("a block with a key holds what the key says, unless it is still to be written in this step")
    def entry_truth(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(self.keyed.has(b) & ~self.ahead.has(b), self.covers(self.content[b], self.key[b])),
        )

    @invariant("a key is ahead only as long as what it says is not there")
    def ahead_unwritten(self) -> Bool:
        return forall(Block, lambda b: implies(self.ahead.has(b), ~self.covers(self.content[b], self.key[b])))

    @invariant("what a holder relies on is there, or is the key, not of a state, that this step is still to write")
    def relied_there(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(
                self.holds(b, s, i),
                self.covers(self.content[b], self.relies[b, s, i])
                | (self.ahead.has(b) & (self.relies[b, s, i] == self.key[b]) & self.layered(self.key[b])),
            ),
        )

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("between steps every holder finds what it relies on")
    def nothing_is_lost(self) -> Bool:
        return implies(
            ~self.in_step,
            forall(
                Block,
                Seq,
                Index,
                lambda b, s, i: implies(self.holds(b, s, i), self.covers(self.content[b], self.relies[b, s, i])),
            ),
        )

    @theorem("between steps whatever can be matched is written")
    def written_between_steps(self) -> Bool:
        return implies(
            ~self.in_step,
            forall(Block, lambda b: implies(self.keyed.has(b), self.covers(self.content[b], self.key[b]))),
        )

    @theorem("a hit holds the block, and finds what the key says, or will in this step", after=match)
    def hit_is_exact(self, block: Block, seq: Seq, index: Index) -> Bool:
        return (
            self.holds(block, seq, index)
            & (self.relies[block, seq, index] == self.key[block])
            & (self.covers(self.content[block], self.key[block]) | self.in_step)
        )

    @theorem("a hit on a state finds exactly this state, not one that is still to come", after=match)
    def states_are_there(self, block: Block) -> Bool:
        state = self.key[block]
        return implies(~self.layered(state) & (state != self.nothing), self.content[block] == state)

    @theorem("a block that is handed out is held by who asked for it alone, and is empty", after=take)
    def handed_out_empty(self, block: Block, seq: Seq, index: Index) -> Bool:
        return self.blocks.holders[block].is_only(Seat.seq_at(seq, index)) & (self.content[block] == self.nothing)

    @theorem("a block that is handed out has no key", after=take)
    def handed_out_without_key(self, block: Block) -> Bool:
        return ~self.keyed.has(block)

    @theorem("who is let in relies on what the giver relies on", after=share)
    def shared_relies(self, block: Block, giver: Seq, place: Index, seq: Seq, index: Index) -> Bool:
        return self.holds(block, seq, index) & (self.relies[block, seq, index] == self.relies[block, giver, place])

    @theorem("a block that is given back is held no more", after=release)
    def released_lets_go(self, block: Block, seq: Seq, index: Index) -> Bool:
        return ~self.holds(block, seq, index)

    @theorem("what is needed outside is held until it is not", after=hold)
    def held_outside(self, block: Block, pin: Pin) -> Bool:
        return self.blocks.holders[block].has(Seat.pin_of(pin))

    @theorem("what is no longer needed outside is not held for it", after=unhold)
    def unheld_outside(self, block: Block, pin: Pin) -> Bool:
        return ~self.blocks.holders[block].has(Seat.pin_of(pin))

    @theorem("only a holder writes; what it writes can be read, and it relies on that", after=write)
    def written_is_there(self, block: Block, seq: Seq, index: Index, chain: Chain) -> Bool:
        return (
            self.holds(block, seq, index)
            & self.covers(self.content[block], chain)
            & self.covers(self.relies[block, seq, index], chain)
        )

    @theorem("who writes a part of what it relies on goes on relying on all of it", after=write)
    def still_relied_on(self, block: Block, seq: Seq, index: Index, chain: Chain) -> Bool:
        relied = old(self).relies[block, seq, index]
        return implies(self.covers(relied, chain), self.relies[block, seq, index] == relied)

    @theorem("whoever else holds a block that is written still finds in it what it relies on", after=write)
    def others_undisturbed(self, block: Block, seq: Seq, index: Index) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                self.holds(block, s, i)
                & ((s != seq) | (i != index))
                & self.covers(old(self).content[block], self.relies[block, s, i]),
                self.covers(self.content[block], self.relies[block, s, i]),
            ),
        )

    @theorem("what is needed outside still has all that it had after it was written", after=write)
    def outside_undisturbed(self, block: Block) -> Bool:
        return implies(self.is_needed_outside(block), self.covers(self.content[block], old(self).content[block]))

    @theorem("what a key says is still there after its block was written", after=write)
    def key_undisturbed(self, block: Block) -> Bool:
        key = self.key[block]
        return implies(
            self.keyed.has(block) & self.covers(old(self).content[block], key), self.covers(self.content[block], key)
        )

    @theorem("a write changes one block, and what one holder relies on", after=write)
    def write_is_local(self, block: Block, seq: Seq, index: Index) -> Bool:
        return forall(Block, lambda b: implies(b != block, self.content[b] == old(self).content[b])) & forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(
                (b != block) | (s != seq) | (i != index), self.relies[b, s, i] == old(self).relies[b, s, i]
            ),
        )

    @theorem("a copy is from a block that is held to another one, of its taker, that nothing outside needs", after=copy)
    def copied_from_held(self, source: Block, target: Block, seq: Seq, index: Index) -> Bool:
        return (
            (source != target)
            & ~self.blocks.holders[source].is_empty()
            & self.holds(target, seq, index)
            & ~self.is_needed_outside(target)
        )

    @theorem("a copy has what its source had, and its source is as it was", after=copy)
    def copied_is_there(self, source: Block, target: Block, seq: Seq, index: Index) -> Bool:
        return (
            (self.content[target] == old(self).content[source])
            & (self.content[source] == old(self).content[source])
            & (self.relies[target, seq, index] == self.content[target])
        )

    @theorem("a published block can be matched under its key", after=publish)
    def published_is_keyed(self, block: Block, key: Chain) -> Bool:
        return self.keyed.has(block) & (self.key[block] == key) & self.covers(self.content[block], key)

    @theorem("what is published ahead can be matched; it is ahead unless its key is there", after=publish_ahead)
    def ahead_is_keyed(self, block: Block, key: Chain) -> Bool:
        return (
            self.keyed.has(block)
            & (self.key[block] == key)
            & (self.ahead.has(block) == ~self.covers(self.content[block], key))
        )

    @theorem("a key that is forgotten takes its block from nobody, and no other key with it", after=forget)
    def forget_is_local(self, block: Block) -> Bool:
        return ~self.keyed.has(block) & forall(
            Block,
            Seat,
            lambda b, s: implies(
                (b != block) | ~s.is_case(Seat.cache_of),
                self.blocks.holders[b].has(s) == old(self).blocks.holders[b].has(s),
            ),
        )

    @theorem("a step begins", after=begin_step)
    def begun(self) -> Bool:
        return self.in_step

    @theorem("a step ends", after=end_step)
    def ended(self) -> Bool:
        return ~self.in_step

    # -- what a manager may do ------------------------------------------------------------------------------------

    @theorem("a block that no table needs, nothing outside and no key can be handed out, for any place")
    def can_take(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(
                self.blocks.usable.has(b) & ~self.keyed.has(b) & self.has_no_user(b), possible(self.take)(b, s, i)
            ),
        )

    @theorem("between steps whatever has a key can be matched, for any place that does not hold it already")
    def can_match(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(
                ~self.in_step & self.keyed.has(b) & ~self.holds(b, s, i), possible(self.match)(b, s, i)
            ),
        )

    @theorem("a table can give back whatever it holds")
    def can_release(self) -> Bool:
        return forall(Block, Seq, Index, lambda b, s, i: implies(self.holds(b, s, i), possible(self.release)(b, s, i)))

    @theorem("a holder can write again what is there")
    def can_rewrite(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            Chain,
            lambda b, s, i, c: implies(
                self.holds(b, s, i) & self.covers(self.content[b], c), possible(self.write)(b, s, i, c)
            ),
        )

    @theorem("whoever is alone can write anything: a state is replaced in its place")
    def can_replace(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            Chain,
            lambda b, s, i, c: implies(
                self.blocks.holders[b].is_only(Seat.seq_at(s, i)), possible(self.write)(b, s, i, c)
            ),
        )

    @theorem("what was published ahead can be written by any holder, if all holders rely on that or on nothing yet")
    def can_settle(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(
                self.ahead.has(b)
                & self.holds(b, s, i)
                & ~self.is_needed_outside(b)
                & forall(
                    Seq,
                    Index,
                    lambda r, j: implies(
                        self.holds(b, r, j),
                        (self.relies[b, r, j] == self.key[b]) | (self.relies[b, r, j] == self.nothing),
                    ),
                ),
                possible(self.write)(b, s, i, self.key[b]),
            ),
        )

    @theorem("without a key a holder can go on, whoever else holds the block")
    def can_go_on(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            Chain,
            lambda b, s, i, c: implies(
                self.holds(b, s, i) & ~self.keyed.has(b) & self.covers(c, self.content[b]),
                possible(self.write)(b, s, i, c),
            ),
        )

    @theorem("a step can publish any block that a table holds ahead of its content, under any key")
    def can_publish_ahead(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            Chain,
            lambda b, s, i, k: implies(
                self.in_step & self.holds(b, s, i) & ~self.keyed.has(b),
                possible(self.publish_ahead)(b, k),
            ),
        )

    @theorem("between steps any key can be forgotten, whoever holds its block")
    def can_forget(self) -> Bool:
        return forall(Block, lambda b: implies(~self.in_step & self.keyed.has(b), possible(self.forget)(b)))

    @theorem("a key that was published ahead can be taken back when no table holds its block")
    def can_take_back(self) -> Bool:
        return forall(Block, lambda b: implies(self.keyed.has(b) & self.has_no_user(b), possible(self.forget)(b)))

    @theorem("a step can end when what each key says is there")
    def can_end(self) -> Bool:
        return implies(
            self.in_step
            & forall(Block, lambda b: implies(self.keyed.has(b), self.covers(self.content[b], self.key[b]))),
            possible(self.end_step)(),
        )

    @theorem("at the start nothing can be matched, and no step is planned", after=start)
    def starts_empty(self) -> Bool:
        return forall(Block, lambda b: ~self.keyed.has(b)) & ~self.in_step

    @witness("two blocks have one key")
    def a_duplicate(self) -> Bool:
        return exists(
            Block,
            Block,
            lambda a, b: (a != b) & self.keyed.has(a) & self.keyed.has(b) & (self.key[a] == self.key[b]),
        )

    @witness("a block is matched before it is written")
    def a_hit_ahead(self) -> Bool:
        return exists(
            Block,
            Seq,
            Index,
            lambda b, s, i: (
                self.ahead.has(b)
                & self.holds(b, s, i)
                & (self.relies[b, s, i] == self.key[b])
                & ~self.covers(self.content[b], self.key[b])
            ),
        )

    @witness("a key's block is also held by a table")
    def a_shared_hit(self) -> Bool:
        return exists(Block, lambda b: self.keyed.has(b) & ~self.blocks.holders[b].is_only(Seat.cache_of(self.key[b])))
