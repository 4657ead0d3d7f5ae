"""Blocks that come from a store into a tier before they are asked for (seed 9.4, below the host tier).

A prefetch is for one sequence: a batch of blocks is planned, one after the other, and filled in the same order. A store
may give less than was planned: then the first blocks of the batch are there and the others never were. What has arrived
can be matched by anybody at once; that the prefetch is *complete* is another matter, and is said only when all that was
planned has come, and something was planned at all.

The tier is a `PrefixCache`, such as the host of chapter `hierarchy`; block i of a batch is held there as place i of the
sequence, and a `Pin` is anybody else who reads in the tier, such as a load to the device. Of the store it is known only
of which keys it has a complete copy.
"""

from __future__ import annotations

from kvspec.spec.language import (
    Bool,
    Ghost,
    Machine,
    Map,
    Set,
    Variants,
    case,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    old,
    possible,
    require,
    theorem,
    use,
    when,
    witness,
)
from kvspec.spec.prefix_cache import PrefixCache
from kvspec.spec.sorts import Block, Chain, Index, Pin, Seat, Seq


class Stage(Variants):
    """How far a prefetch is."""

    out = case()
    planning = case()
    fetching = case()
    complete = case()
    stopped = case()


class Prefetch(Machine):
    """Of what is fetched, the part that has arrived can be matched, and nothing else ever could."""

    tier = use(PrefixCache)

    stage: Map[Seq, Stage]
    planned: Map[Seq, Index]
    arrived: Map[Seq, Index]
    block: Map[tuple[Seq, Index], Block]
    key: Map[tuple[Seq, Index], Chain]
    stale: Set[Seq]
    stored: Set[Chain]
    recent: Ghost[Set[Block]]

    @init
    def start(self) -> None:
        self.stage.assign_all(lambda seq: Stage.out())
        self.planned.assign_all(lambda seq: Index.zero())
        self.stored.clear()
        self.recent.clear()

    # -- the stages of a prefetch ------------------------------------------------------------------------------------

    @event
    def begin(self, seq: Seq) -> None:
        """A prefetch begins for a sequence; what there is to fetch is not known yet."""
        require(self.is_in(seq, Stage.out()))
        self.stage[seq] = Stage.planning()
        self.arrived[seq] = Index.zero()
        self.stale.discard(seq)

    @event
    def plan(self, seq: Seq, block: Block, key: Chain) -> None:
        """A free block of the tier is to be filled with these tokens, behind what is planned so far."""
        index = self.planned[seq]
        require(self.is_in(seq, Stage.planning()))
        require(self.stored.has(key))
        require(self.tier.blocks.free.has(block))
        self.tier.allocate(block, Seat.seq_at(seq, index))
        self.recent.add(block)
        self.block[seq, index] = block
        self.key[seq, index] = key
        self.planned[seq] = index.next()

    @event
    def plan_ready(self, seq: Seq) -> None:
        """All is planned, which is one block at least; now the store is asked."""
        require(self.is_in(seq, Stage.planning()))
        require(~self.planned[seq].is_zero())
        self.stage[seq] = Stage.fetching()

    @event
    def arrive(self, seq: Seq) -> None:
        """The next block is complete and can be matched, unless a reset came between or the key is there by now."""
        index = self.arrived[seq]
        require(self.is_in(seq, Stage.fetching()))
        require(index < self.planned[seq])
        self.tier.write(self.block[seq, index], self.key[seq, index])
        with when(~self.stale.has(seq) & ~self.tier.cached.has(self.key[seq, index])):
            self.tier.publish(self.key[seq, index], self.block[seq, index])
        self.arrived[seq] = index.next()

    @event
    def complete(self, seq: Seq) -> None:
        """All that was planned has arrived."""
        require(self.is_in(seq, Stage.fetching()))
        require(self.arrived[seq] == self.planned[seq])
        self.stage[seq] = Stage.complete()

    @event
    def stop(self, seq: Seq) -> None:
        """Nothing more will come: the store has failed, or has no more, or nobody wants to wait."""
        require(self.is_in(seq, Stage.planning()) | self.is_in(seq, Stage.fetching()))
        self.stage[seq] = Stage.stopped()

    @event
    def let_go(self, seq: Seq) -> None:
        """The last block of the batch is given back; it stays in the tier if it has a key."""
        require(self.over(seq))
        require(~self.planned[seq].is_zero())
        index = self.planned[seq].prev()
        self.tier.release(self.block[seq, index], Seat.seq_at(seq, index))
        self.planned[seq] = index

    @event
    def end(self, seq: Seq) -> None:
        """The prefetch is over: it holds nothing."""
        require(self.over(seq))
        require(self.planned[seq].is_zero())
        self.stage[seq] = Stage.out()

    # -- the tier and the store --------------------------------------------------------------------------------------

    @event
    def put(self, block: Block, pin: Pin, key: Chain) -> None:
        """Somebody else fills a free block of the tier, and publishes it unless it is there (such as an offload)."""
        require(self.tier.full(key))
        require(~self.tier.cached.has(key))
        require(self.tier.blocks.free.has(block))
        self.tier.allocate(block, Seat.pin_of(pin))
        self.tier.write(block, key)
        self.tier.publish(key, block)
        self.recent.add(block)

    @event
    def hold(self, key: Chain, pin: Pin) -> None:
        """Somebody else takes a handle of the block of a key (such as a load)."""
        require(self.tier.cached.has(key))
        require(~self.tier.blocks.holders[self.tier.entry[key]].has(Seat.pin_of(pin)))
        self.tier.match(key, Seat.pin_of(pin))

    @event
    def unhold(self, block: Block, pin: Pin) -> None:
        """Somebody else gives a handle back."""
        require(self.tier.blocks.holders[block].has(Seat.pin_of(pin)))
        self.tier.release(block, Seat.pin_of(pin))

    @event
    def store(self, key: Chain) -> None:
        """The store has got a complete copy of what the tier has under a key."""
        require(self.tier.cached.has(key))
        self.stored.add(key)

    @event
    def lose(self, key: Chain) -> None:
        """The store drops a copy, whoever counts on it."""
        require(self.stored.has(key))
        self.stored.discard(key)

    @event
    def evict(self, key: Chain) -> None:
        """A key is forgotten whose block no prefetch and nobody else holds."""
        require(self.tier.blocks.holders[self.tier.entry[key]].is_only(Seat.cache_of(key)))
        self.tier.evict(key)

    @event
    def reset(self) -> None:
        """The tier and the store forget all keys; what is under way is not to become visible any more."""
        self.tier.reset()
        self.stored.clear()
        self.stale.assign_where(lambda seq: ~self.is_in(seq, Stage.out()))
        self.recent.clear()

    # -- words -------------------------------------------------------------------------------------------------------

    def is_in(self, seq: Seq, stage: Stage) -> Bool:
        return self.stage[seq] == stage

    def over(self, seq: Seq) -> Bool:
        """Nothing more will come, for good or ill."""
        return self.is_in(seq, Stage.complete()) | self.is_in(seq, Stage.stopped())

    def seated(self, block: Block, seq: Seq, index: Index) -> Bool:
        """The prefetch holds the block for this place of its batch."""
        return self.tier.blocks.holders[block].has(Seat.seq_at(seq, index))

    # -- invariants --------------------------------------------------------------------------------------------------

    @invariant("every block of a batch is held for its place")
    def planned_held(self) -> Bool:
        return forall(Seq, Index, lambda q, i: implies(i < self.planned[q], self.seated(self.block[q, i], q, i)))

    @invariant("a prefetch holds the blocks of its batch and no others")
    def held_planned(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, q, i: implies(self.seated(b, q, i), (i < self.planned[q]) & (self.block[q, i] == b)),
        )

    @invariant("who fetches nothing has planned nothing")
    def out_unplanned(self) -> Bool:
        return forall(Seq, lambda q: implies(self.is_in(q, Stage.out()), self.planned[q].is_zero()))

    @invariant("while a plan is made nothing arrives")
    def planning_unarrived(self) -> Bool:
        return forall(Seq, lambda q: implies(self.is_in(q, Stage.planning()), self.arrived[q].is_zero()))

    @invariant("a batch that is being fetched has a block at least, and no more arrive than were planned")
    def fetching_planned(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.is_in(q, Stage.fetching()), ~self.planned[q].is_zero() & (self.arrived[q] <= self.planned[q])
            ),
        )

    @invariant("of a complete batch every block has arrived")
    def complete_arrived(self) -> Bool:
        return forall(Seq, lambda q: implies(self.is_in(q, Stage.complete()), self.planned[q] <= self.arrived[q]))

    @invariant("a block that has not arrived is held by its prefetch alone: no key leads to it")
    def unarrived_alone(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda q, i: implies(
                (i < self.planned[q]) & (self.arrived[q] <= i),
                self.tier.blocks.holders[self.block[q, i]].is_only(Seat.seq_at(q, i)),
            ),
        )

    @invariant("a block that has arrived holds what it was planned for")
    def arrived_truth(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda q, i: implies(
                (i < self.planned[q]) & (i < self.arrived[q]),
                self.tier.covers(self.tier.content[self.block[q, i]], self.key[q, i]),
            ),
        )

    @invariant("what is planned fills a block")
    def planned_full(self) -> Bool:
        return forall(Seq, Index, lambda q, i: implies(i < self.planned[q], self.tier.full(self.key[q, i])))

    @invariant("what the store has fills a block")
    def stored_full(self) -> Bool:
        return forall(Chain, lambda k: implies(self.stored.has(k), self.tier.full(k)))

    @invariant("a batch that is not stale was planned since the last reset")
    def planned_recent(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda q, i: implies(
                ~self.is_in(q, Stage.out()) & ~self.stale.has(q) & (i < self.planned[q]),
                self.recent.has(self.block[q, i]),
            ),
        )

    @invariant("what can be matched has come since the last reset")
    def keys_recent(self) -> Bool:
        return forall(Block, Chain, lambda b, k: implies(self.tier.keyed(b, k), self.recent.has(b)))

    @invariant("no key is published before its block is complete")
    def nothing_promised(self) -> Bool:
        return forall(Chain, lambda k: ~self.tier.pending.has(k))

    # -- theorems ----------------------------------------------------------------------------------------------------

    @theorem("what can be matched is complete: its block holds exactly the tokens of its key")
    def visible_is_complete(self) -> Bool:
        return forall(Chain, lambda k: implies(self.tier.cached.has(k), self.tier.content[self.tier.entry[k]] == k))

    @theorem("what has not arrived can neither be matched nor evicted, and its block is not free")
    def unarrived_unseen(self) -> Bool:
        return forall(
            Seq,
            Index,
            Chain,
            lambda q, i, k: implies(
                (i < self.planned[q]) & (self.arrived[q] <= i),
                ~(self.tier.cached.has(k) & (self.tier.entry[k] == self.block[q, i]))
                & ~self.tier.blocks.free.has(self.block[q, i]),
            ),
        )

    @theorem("of a complete prefetch, whatever it holds has the tokens that were planned for it")
    def complete_is_there(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda q, i: implies(
                self.is_in(q, Stage.complete()) & (i < self.planned[q]),
                self.tier.covers(self.tier.content[self.block[q, i]], self.key[q, i]),
            ),
        )

    @theorem("no two places are filled in one block")
    def targets_apart(self) -> Bool:
        return forall(
            Seq,
            Index,
            Seq,
            Index,
            lambda q, i, r, j: implies(
                (i < self.planned[q])
                & (self.arrived[q] <= i)
                & (j < self.planned[r])
                & (self.block[q, i] == self.block[r, j]),
                (q == r) & (i == j),
            ),
        )

    @theorem("a key can be evicted exactly if no prefetch holds its block, nor anybody else")
    def can_evict(self) -> Bool:
        return forall(
            Chain,
            lambda k: implies(
                self.tier.cached.has(k),
                possible(self.evict)(k)
                == (
                    forall(
                        Seq,
                        Index,
                        lambda q, i: ~((i < self.planned[q]) & (self.block[q, i] == self.tier.entry[k])),
                    )
                    & forall(Pin, lambda p: ~self.tier.blocks.holders[self.tier.entry[k]].has(Seat.pin_of(p)))
                ),
            ),
        )

    @theorem("when no prefetch runs, nobody else holds a block and no key is left, every block is free")
    def drained(self) -> Bool:
        return implies(
            forall(Seq, lambda q: self.is_in(q, Stage.out()))
            & forall(Block, Pin, lambda b, p: ~self.tier.blocks.holders[b].has(Seat.pin_of(p)))
            & forall(Chain, lambda k: ~self.tier.cached.has(k)),
            forall(Block, lambda b: implies(self.tier.blocks.usable.has(b), self.tier.blocks.free.has(b))),
        )

    @theorem("a prefetch can always go on: stop while it runs, let go of a block behind that, and end without one")
    def can_come_to_an_end(self) -> Bool:
        return forall(
            Seq,
            Block,
            Index,
            lambda q, b, i: (
                implies(~self.is_in(q, Stage.out()) & ~self.over(q), possible(self.stop)(q))
                & implies(self.over(q) & self.seated(b, q, i), possible(self.let_go)(q))
                & implies(
                    self.over(q) & forall(Block, Index, lambda c, j: ~self.seated(c, q, j)), possible(self.end)(q)
                )
            ),
        )

    @theorem("without a prefetch one can begin, and plan whatever the store has for any block that nobody holds")
    def can_plan(self) -> Bool:
        return forall(
            Seq,
            Block,
            Chain,
            lambda q, b, k: (
                implies(self.is_in(q, Stage.out()), possible(self.begin)(q))
                & implies(
                    self.is_in(q, Stage.planning())
                    & self.stored.has(k)
                    & self.tier.blocks.usable.has(b)
                    & self.tier.blocks.holders[b].is_empty(),
                    possible(self.plan)(q, b, k),
                )
            ),
        )

    @theorem("once something is planned the store can be asked; then blocks can arrive until it is complete")
    def can_be_completed(self) -> Bool:
        return forall(
            Seq,
            Block,
            Index,
            lambda q, b, i: (
                implies(self.is_in(q, Stage.planning()) & self.seated(b, q, i), possible(self.plan_ready)(q))
                & implies(self.is_in(q, Stage.fetching()), possible(self.arrive)(q) | possible(self.complete)(q))
            ),
        )

    @theorem("at the start nothing is fetched, and neither the tier nor the store has a key", after=start)
    def starts_empty(self) -> Bool:
        return (
            forall(Seq, lambda q: self.is_in(q, Stage.out()))
            & forall(Chain, lambda k: ~self.tier.cached.has(k) & ~self.stored.has(k))
            & forall(Block, lambda b: ~self.recent.has(b))
        )

    @theorem("a prefetch that begins holds nothing, and there was none before", after=begin)
    def begun_is_empty(self, seq: Seq) -> Bool:
        return (
            old(self).is_in(seq, Stage.out())
            & self.is_in(seq, Stage.planning())
            & self.planned[seq].is_zero()
            & ~self.stale.has(seq)
        )

    @theorem("the next place of a batch gets a block that was free, for a key of the store", after=plan)
    def planned_is_next(self, seq: Seq, block: Block, key: Chain) -> Bool:
        index = old(self).planned[seq]
        return (
            old(self).is_in(seq, Stage.planning())
            & (self.block[seq, index] == block)
            & (self.key[seq, index] == key)
            & (index < self.planned[seq])
            & old(self).tier.blocks.free.has(block)
            & self.stored.has(key)
        )

    @theorem("the store is asked for one block at least, once", after=plan_ready)
    def asked_for_something(self, seq: Seq) -> Bool:
        return (
            old(self).is_in(seq, Stage.planning())
            & self.is_in(seq, Stage.fetching())
            & (self.arrived[seq] < self.planned[seq])
        )

    @theorem("what has arrived can be matched, unless a reset came between", after=arrive)
    def arrived_is_visible(self, seq: Seq) -> Bool:
        index = old(self).arrived[seq]
        return (
            old(self).is_in(seq, Stage.fetching())
            & (index < self.planned[seq])
            & (index < self.arrived[seq])
            & implies(~self.stale.has(seq), self.tier.cached.has(self.key[seq, index]))
            & self.tier.covers(self.tier.content[self.block[seq, index]], self.key[seq, index])
        )

    @theorem("a block that arrives makes one key visible at most, and hides none", after=arrive)
    def arrival_is_local(self, seq: Seq) -> Bool:
        return forall(
            Chain,
            lambda k: implies(
                old(self).tier.cached.has(k) | (k != self.key[seq, old(self).arrived[seq]]),
                self.tier.cached.has(k) == old(self).tier.cached.has(k),
            ),
        )

    @theorem("a prefetch is complete only if something was planned, and all of it has come", after=complete)
    def complete_is_all(self, seq: Seq) -> Bool:
        return (
            old(self).is_in(seq, Stage.fetching())
            & self.is_in(seq, Stage.complete())
            & ~self.planned[seq].is_zero()
            & (self.arrived[seq] == self.planned[seq])
        )

    @theorem("a prefetch that is stopped does not count as complete, and no key comes or goes", after=stop)
    def stopped_is_partial(self, seq: Seq) -> Bool:
        return (
            ~old(self).over(seq)
            & ~old(self).is_in(seq, Stage.out())
            & self.is_in(seq, Stage.stopped())
            & forall(Chain, lambda k: self.tier.cached.has(k) == old(self).tier.cached.has(k))
        )

    @theorem("what is given back had arrived or will not: it is free, unless somebody else holds it", after=let_go)
    def let_go_of_last(self, seq: Seq) -> Bool:
        index = self.planned[seq]
        block = old(self).block[seq, index]
        return (
            old(self).over(seq)
            & (index < old(self).planned[seq])
            & ~self.seated(block, seq, index)
            & implies(self.arrived[seq] <= index, self.tier.blocks.free.has(block))
        )

    @theorem("a prefetch that is over holds nothing", after=end)
    def ended_is_empty(self, seq: Seq) -> Bool:
        return (
            old(self).over(seq)
            & self.is_in(seq, Stage.out())
            & forall(Block, Index, lambda b, i: ~self.seated(b, seq, i))
        )

    @theorem("who puts something into the tier has a block of his own, and it can be matched", after=put)
    def put_is_visible(self, block: Block, pin: Pin, key: Chain) -> Bool:
        return (
            old(self).tier.blocks.free.has(block)
            & ~old(self).tier.cached.has(key)
            & self.tier.cached.has(key)
            & (self.tier.entry[key] == block)
            & self.tier.blocks.holders[block].has(Seat.pin_of(pin))
        )

    @theorem("who holds the block of a key reads exactly its tokens", after=hold)
    def held_is_exact(self, key: Chain, pin: Pin) -> Bool:
        return (
            old(self).tier.cached.has(key)
            & self.tier.blocks.holders[self.tier.entry[key]].has(Seat.pin_of(pin))
            & ~old(self).tier.blocks.holders[self.tier.entry[key]].has(Seat.pin_of(pin))
            & (self.tier.content[self.tier.entry[key]] == key)
        )

    @theorem("a handle that is given back was held, and holds no more", after=unhold)
    def unheld(self, block: Block, pin: Pin) -> Bool:
        return old(self).tier.blocks.holders[block].has(Seat.pin_of(pin)) & ~self.tier.blocks.holders[block].has(
            Seat.pin_of(pin)
        )

    @theorem("the store gets what can be matched", after=store)
    def stored_is_complete(self, key: Chain) -> Bool:
        return self.stored.has(key) & self.tier.cached.has(key)

    @theorem("what the store drops it had, and has no more", after=lose)
    def lost_is_gone(self, key: Chain) -> Bool:
        return old(self).stored.has(key) & ~self.stored.has(key)

    @theorem("an evicted key is gone, its block free, and no prefetch had it", after=evict)
    def evicted_is_free(self, key: Chain) -> Bool:
        block = old(self).tier.entry[key]
        return (
            ~self.tier.cached.has(key)
            & self.tier.blocks.free.has(block)
            & forall(Seq, Index, lambda q, i: ~old(self).seated(block, q, i))
        )

    @theorem("a reset forgets every key of the tier and of the store, and what is under way stays out", after=reset)
    def reset_forgets(self) -> Bool:
        return (
            forall(Chain, lambda k: ~self.tier.cached.has(k) & ~self.stored.has(k))
            & forall(Seq, lambda q: self.stale.has(q) == ~self.is_in(q, Stage.out()))
            & forall(Block, lambda b: ~self.recent.has(b))
        )

    @theorem("a reset takes no block from a prefetch", after=reset)
    def reset_keeps_batches(self) -> Bool:
        return forall(Seq, Index, Block, lambda q, i, b: self.seated(b, q, i) == old(self).seated(b, q, i)) & forall(
            Seq, lambda q: self.stage[q] == old(self).stage[q]
        )

    # -- witnesses ---------------------------------------------------------------------------------------------------

    @witness("a prefetch was stopped when a part of its batch had arrived")
    def a_partial_result(self) -> Bool:
        return exists(
            Seq,
            lambda q: self.is_in(q, Stage.stopped()) & (self.arrived[q] < self.planned[q]) & ~self.arrived[q].is_zero(),
        )

    @witness("a key that is being fetched is there by now, in another block")
    def a_late_arrival(self) -> Bool:
        return exists(
            Seq,
            lambda q: (
                self.is_in(q, Stage.fetching())
                & ~self.stale.has(q)
                & (self.arrived[q] < self.planned[q])
                & self.tier.cached.has(self.key[q, self.arrived[q]])
            ),
        )

    @witness("a reset has overtaken a prefetch")
    def a_stale_prefetch(self) -> Bool:
        return exists(Seq, lambda q: self.is_in(q, Stage.fetching()) & self.stale.has(q))
