"""Ranks: which one a request gets, and that none touches another (seed 5.1, 5.3 and 10; class `BlockManagerPool`).

Each data-parallel rank has blocks, single blocks, state slots, keys and checkpoints of its own; what a request does on
its rank is chapter `lifecycle`, and every event of it is one of the pool, for the rank that the request has. A rank is
chosen once and kept, also by a request that gives way and comes back. A newcomer whose first call is refused keeps
nothing, so not its rank either: it would else wait for a full rank beside an empty one.
"""

from __future__ import annotations

from kvspec.spec.language import (
    Bool,
    Machine,
    Map,
    Set,
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
    use_each,
    when,
    witness,
)
from kvspec.spec.lifecycle import Lifecycle, Phase
from kvspec.spec.sorts import Block, Chain, Index, Pin, Rank, Seq, Single, StateSlot


class Pool(Machine):
    """A request has its blocks, its single block and its state slot on one rank, and no call touches another."""

    ranks = use_each(Rank, Lifecycle)

    placed: Set[Seq]
    newcomers: Set[Seq]
    rank: Map[Seq, Rank]

    @init
    def start(self) -> None:
        self.placed.clear()
        self.newcomers.clear()

    # -- allocate: the stages of a call -------------------------------------------------------------------------------

    @event
    def choose_rank(self, seq: Seq, rank: Rank) -> None:
        """A request without a rank gets the one with the most free blocks; any of several equal ones (get_dp_rank)."""
        require(~self.placed.has(seq))
        require(self.may_be_chosen(rank))
        self.placed.add(seq)
        self.newcomers.add(seq)
        self.rank[seq] = rank

    @event
    def begin(self, seq: Seq, need: Index, known: Chain) -> None:
        """A call begins for a request, on its rank; that of a newcomer still has the most free blocks."""
        require(self.placed.has(seq))
        require(implies(self.newcomers.has(seq), self.may_be_chosen(self.rank[seq])))
        inherit(self.at(seq).begin)(seq, need, known)

    @event
    def take_single(self, seq: Seq, single: Single) -> None:
        """A newcomer gets its single block (allocate_single_block)."""
        require(self.placed.has(seq))
        inherit(self.at(seq).take_single)(seq, single)

    @event
    def take_slot(self, seq: Seq, slot: StateSlot) -> None:
        """A newcomer gets its live slot (acquire_live_slot)."""
        require(self.placed.has(seq))
        inherit(self.at(seq).take_slot)(seq, slot)

    @event
    def mount(self, seq: Seq, key: Chain) -> None:
        """A newcomer hits the next block of its tokens (allocate_shared); with linear state a token is left over."""
        require(self.placed.has(seq))
        inherit(self.at(seq).mount)(seq, key)

    @event
    def keep_all(self, seq: Seq) -> None:
        """Without linear state every hit counts as computed."""
        require(self.placed.has(seq))
        inherit(self.at(seq).keep_all)(seq)

    @event
    def pin_contiguous(self, seq: Seq, boundary: Index) -> None:
        """The hits are kept up to the boundary that policy contiguous chooses; its checkpoint is pinned."""
        require(self.placed.has(seq))
        inherit(self.at(seq).pin_contiguous)(seq, boundary)

    @event
    def pin_deepest(self, seq: Seq, boundary: Index) -> None:
        """The hits are kept up to the boundary that policy deepest chooses; its checkpoint is pinned."""
        require(self.placed.has(seq))
        inherit(self.at(seq).pin_deepest)(seq, boundary)

    @event
    def keep_none_contiguous(self, seq: Seq) -> None:
        """Policy contiguous chooses the empty prefix: no hit is kept."""
        require(self.placed.has(seq))
        inherit(self.at(seq).keep_none_contiguous)(seq)

    @event
    def keep_none_deepest(self, seq: Seq) -> None:
        """Policy deepest chooses the empty prefix: no hit is kept."""
        require(self.placed.has(seq))
        inherit(self.at(seq).keep_none_deepest)(seq)

    @event
    def trim(self, seq: Seq) -> None:
        """The last block behind the kept boundary is given back (deallocate of shared blocks)."""
        require(self.placed.has(seq))
        inherit(self.at(seq).trim)(seq)

    @event
    def trimmed(self, seq: Seq) -> None:
        """Nothing is left behind the kept boundary."""
        require(self.placed.has(seq))
        inherit(self.at(seq).trimmed)(seq)

    @event
    def grow(self, seq: Seq, block: Block) -> None:
        """The table grows by a free block (allocate, add_kv_blocks), never beyond what is needed."""
        require(self.placed.has(seq))
        inherit(self.at(seq).grow)(seq, block)

    @event
    def admit(self, seq: Seq) -> None:
        """The call succeeds: the request has all that it needs."""
        require(self.placed.has(seq))
        inherit(self.at(seq).admit)(seq)
        self.newcomers.discard(seq)

    @event
    def refuse(self, seq: Seq) -> None:
        """The call fails for want of something that no eviction can give; what it took is to be given back."""
        require(self.placed.has(seq))
        inherit(self.at(seq).refuse)(seq)

    @event
    def undo_block(self, seq: Seq) -> None:
        """A block that the call mounted or took is given back."""
        require(self.placed.has(seq))
        inherit(self.at(seq).undo_block)(seq)

    @event
    def undo_slot(self, seq: Seq) -> None:
        """The newcomer's live slot is given back, and its pin with it (release_linear_state_slot)."""
        require(self.placed.has(seq))
        inherit(self.at(seq).undo_slot)(seq)

    @event
    def undo_single(self, seq: Seq) -> None:
        """The newcomer's single block is given back."""
        require(self.placed.has(seq))
        inherit(self.at(seq).undo_single)(seq)

    @event
    def refused(self, seq: Seq) -> None:
        """The call returns, and nothing is left of it: a newcomer is not bound to the rank that was chosen for it."""
        require(self.placed.has(seq))
        inherit(self.at(seq).refused)(seq)
        with when(self.newcomers.has(seq)):
            self.placed.discard(seq)
        self.newcomers.discard(seq)

    # -- the worker ---------------------------------------------------------------------------------------------------

    @event
    def write(self, seq: Seq, chain: Chain) -> None:
        """A step computes tokens of one block; a request that waits for its state computes nothing."""
        require(self.placed.has(seq))
        inherit(self.at(seq).write)(seq, chain)

    @event
    def end_step(self, seq: Seq) -> None:
        """A step ends: the recurrent state stands where the keys and values end."""
        require(self.placed.has(seq))
        inherit(self.at(seq).end_step)(seq)

    @event
    def restore_started(self, seq: Seq) -> None:
        """The worker begins to copy the pinned checkpoint to the live slot."""
        require(self.placed.has(seq))
        inherit(self.at(seq).restore_started)(seq)

    @event
    def restore_done(self, seq: Seq) -> None:
        """The live slot holds the state of the hit."""
        require(self.placed.has(seq))
        inherit(self.at(seq).restore_done)(seq)

    @event
    def restore_failed(self, seq: Seq) -> None:
        """The copy has failed, or its request ends."""
        require(self.placed.has(seq))
        inherit(self.at(seq).restore_failed)(seq)

    @event
    def reserve(self, seq: Seq, slot: StateSlot, key: Chain) -> None:
        """A slot is reserved for a checkpoint behind which blocks can be reused as well."""
        require(self.placed.has(seq))
        inherit(self.at(seq).reserve)(seq, slot, key)

    @event
    def copy_started(self, seq: Seq, slot: StateSlot) -> None:
        """The worker begins to copy the live state, where a step has ended."""
        require(self.placed.has(seq))
        inherit(self.at(seq).copy_started)(seq, slot)

    @event
    def copy_done(self, seq: Seq, slot: StateSlot) -> None:
        """The checkpoint is complete."""
        require(self.placed.has(seq))
        inherit(self.at(seq).copy_done)(seq, slot)

    @event
    def copy_failed(self, seq: Seq, slot: StateSlot) -> None:
        """The copy has failed, or its request ends."""
        require(self.placed.has(seq))
        inherit(self.at(seq).copy_failed)(seq, slot)

    @event
    def commit(self, seq: Seq, slot: StateSlot) -> None:
        """The checkpoint can be matched."""
        require(self.placed.has(seq))
        inherit(self.at(seq).commit)(seq, slot)

    @event
    def abort_save(self, seq: Seq, slot: StateSlot) -> None:
        """A reservation is given back."""
        require(self.placed.has(seq))
        inherit(self.at(seq).abort_save)(seq, slot)

    @event
    def truncate(self, seq: Seq, chain: Chain) -> None:
        """Rejected tokens at the end are taken back; a recurrent state that has gone over them is of no use."""
        require(self.placed.has(seq))
        inherit(self.at(seq).truncate)(seq, chain)

    @event
    def resume(self, seq: Seq) -> None:
        """A request whose tokens were taken back goes on behind a checkpoint of what is left."""
        require(self.placed.has(seq))
        inherit(self.at(seq).resume)(seq)

    @event
    def restart(self, seq: Seq) -> None:
        """A request whose tokens were all taken back begins anew, with the state of no tokens."""
        require(self.placed.has(seq))
        inherit(self.at(seq).restart)(seq)

    @event
    def give_back(self, seq: Seq) -> None:
        """A block behind all that is computed is given back (truncate)."""
        require(self.placed.has(seq))
        inherit(self.at(seq).give_back)(seq)

    @event
    def copy_on_write(self, seq: Seq, index: Index, target: Block) -> None:
        """A block that others hold and that would be overwritten is replaced by a copy, before a call takes more."""
        require(self.placed.has(seq))
        inherit(self.at(seq).copy_on_write)(seq, index, target)

    # -- keys and others ----------------------------------------------------------------------------------------------

    @event
    def publish(self, seq: Seq, index: Index) -> None:
        """A full block becomes matchable (cache)."""
        require(self.placed.has(seq))
        inherit(self.at(seq).publish)(seq, index)

    @event
    def evict(self, rank: Rank, key: Chain) -> None:
        """A key is forgotten whose block nobody else holds."""
        inherit(self.ranks[rank].evict)(key)

    @event
    def evict_state(self, rank: Rank, key: Chain) -> None:
        """A checkpoint is forgotten that nobody waits for."""
        inherit(self.ranks[rank].evict_state)(key)

    @event
    def reset(self, rank: Rank) -> None:
        """All keys of blocks are forgotten."""
        inherit(self.ranks[rank].reset)()

    @event
    def hold(self, rank: Rank, block: Block, pin: Pin) -> None:
        """Somebody outside takes a handle of a live block."""
        inherit(self.ranks[rank].hold)(block, pin)

    @event
    def unhold(self, rank: Rank, block: Block, pin: Pin) -> None:
        """Somebody outside gives a handle back."""
        inherit(self.ranks[rank].unhold)(block, pin)

    # -- deallocate ---------------------------------------------------------------------------------------------------

    @event
    def leave(self, seq: Seq) -> None:
        """A request ends, or gives way to others; what it has computed is published before (deallocate, preempt)."""
        require(self.placed.has(seq))
        inherit(self.at(seq).leave)(seq)

    @event
    def leave_block(self, seq: Seq) -> None:
        """Its last block is given back."""
        require(self.placed.has(seq))
        inherit(self.at(seq).leave_block)(seq)

    @event
    def leave_slot(self, seq: Seq) -> None:
        """Its live slot is given back, after all of its blocks (release_linear_state_slot)."""
        require(self.placed.has(seq))
        inherit(self.at(seq).leave_slot)(seq)

    @event
    def leave_single(self, seq: Seq) -> None:
        """Its single block is given back, after its live slot (deallocate_single_block)."""
        require(self.placed.has(seq))
        inherit(self.at(seq).leave_single)(seq)

    @event
    def left(self, seq: Seq) -> None:
        """It has nothing any more (reset of the sequence)."""
        require(self.placed.has(seq))
        inherit(self.at(seq).left)(seq)

    @event
    def forget(self, seq: Seq) -> None:
        """A request that has nothing any more ends for good, and its rank with it."""
        require(self.placed.has(seq))
        require(self.is_out(seq, self.rank[seq]))
        self.placed.discard(seq)
        self.newcomers.discard(seq)

    # -- words ---------------------------------------------------------------------------------------------------

    def at(self, seq: Seq) -> Lifecycle:
        return self.ranks[self.rank[seq]]

    def is_out(self, seq: Seq, rank: Rank) -> Bool:
        return self.ranks[rank].is_in(seq, Phase.out)

    def has_room(self, rank: Rank) -> Bool:
        """With linear state a rank without a free single block is passed over."""
        return implies(self.ranks[rank].linear, ~self.ranks[rank].single.ids.free.is_empty())

    def may_be_chosen(self, rank: Rank) -> Bool:
        """No rank that could be chosen has more free blocks."""
        return self.has_room(rank) & forall(
            Rank,
            lambda r: implies(
                self.has_room(r),
                self.ranks[r].kv.cache.blocks.free.size() <= self.ranks[rank].kv.cache.blocks.free.size(),
            ),
        )

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant("a request has something only on its own rank")
    def elsewhere_out(self) -> Bool:
        return forall(
            Seq, Rank, lambda q, r: implies(~self.is_out(q, r), self.placed.has(q) & (self.rank[q] == r))
        )

    @invariant("a newcomer has a rank, and nothing on it but what its first call takes")
    def newcomers_placed(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.newcomers.has(q),
                self.placed.has(q)
                & ~self.at(q).is_in(q, Phase.running)
                & ~self.at(q).is_in(q, Phase.leaving)
                & implies(~self.is_out(q, self.rank[q]), self.at(q).newcomer),
            ),
        )

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("ids of ranks never mix: a block, a single block or a slot on a rank is that of a request with this rank")
    def ranks_never_mix(self) -> Bool:
        return forall(
            Rank,
            Seq,
            Block,
            Index,
            Single,
            StateSlot,
            lambda r, q, b, i, u, x: implies(
                self.ranks[r].kv.seated(b, q, i)
                | self.ranks[r].single.ids.holders[u].has(q)
                | self.ranks[r].state.is_live(q, x),
                self.placed.has(q) & (self.rank[q] == r),
            ),
        )

    @theorem("a request has a table, a single block and a live slot on one rank only")
    def on_one_rank(self) -> Bool:
        return forall(
            Seq,
            Rank,
            Rank,
            lambda q, r, s: implies(
                (~self.ranks[r].kv.size[q].is_zero() | self.ranks[r].housed.has(q) | self.ranks[r].state.running.has(q))
                & (~self.ranks[s].kv.size[q].is_zero() | self.ranks[s].housed.has(q)),
                r == s,
            ),
        )

    @theorem("at the start no request has a rank", after=start)
    def starts_unplaced(self) -> Bool:
        return forall(Seq, lambda q: ~self.placed.has(q) & ~self.newcomers.has(q))

    @theorem("a newcomer's rank has the most free blocks of those that have a single block to give", after=choose_rank)
    def chosen_has_most(self, seq: Seq, rank: Rank) -> Bool:
        return (
            (self.rank[seq] == rank)
            & self.placed.has(seq)
            & self.newcomers.has(seq)
            & self.has_room(rank)
            & forall(
                Rank,
                lambda r: implies(
                    self.has_room(r),
                    self.ranks[r].kv.cache.blocks.free.size() <= self.ranks[rank].kv.cache.blocks.free.size(),
                ),
            )
        )

    @theorem("a request that has no rank can get any of the best ones, whatever rank has refused it before")
    def best_can_be_chosen(self) -> Bool:
        return forall(
            Seq,
            Rank,
            lambda q, r: implies(~self.placed.has(q) & self.may_be_chosen(r), possible(self.choose_rank)(q, r)),
        )

    @theorem("with linear state a rank without a free single block is never chosen")
    def full_rank_passed_over(self) -> Bool:
        return forall(
            Seq,
            Rank,
            lambda q, r: implies(
                self.ranks[r].linear & self.ranks[r].single.ids.free.is_empty(), ~possible(self.choose_rank)(q, r)
            ),
        )

    @theorem("a call begins as it was asked for, that of a newcomer on a rank with the most free blocks", after=begin)
    def begun_on_best(self, seq: Seq, need: Index, known: Chain) -> Bool:
        return (
            self.at(seq).busy
            & (self.at(seq).need == need)
            & (self.at(seq).known == known)
            & implies(self.newcomers.has(seq), self.may_be_chosen(self.rank[seq]))
        )

    @theorem("contiguous: the hits are kept up to the boundary that was chosen", after=pin_contiguous)
    def kept_contiguous(self, seq: Seq, boundary: Index) -> Bool:
        return self.at(seq).keep == boundary

    @theorem("deepest: the hits are kept up to the boundary that was chosen", after=pin_deepest)
    def kept_deepest(self, seq: Seq, boundary: Index) -> Bool:
        return self.at(seq).keep == boundary

    @theorem("a request that has a rank can begin there between calls and steps, a newcomer as long as it is the best")
    def calls_can_begin(self) -> Bool:
        return forall(
            Seq,
            Index,
            Chain,
            lambda q, n, c: implies(
                self.placed.has(q)
                & implies(self.newcomers.has(q), self.may_be_chosen(self.rank[q]))
                & ~self.at(q).busy
                & ~self.at(q).stepping.has(q),
                possible(self.begin)(q, n, c),
            ),
        )

    @theorem("a refused newcomer has no rank; a request that had one keeps it", after=refused)
    def refused_unbound(self, seq: Seq) -> Bool:
        return (self.placed.has(seq) == ~old(self).newcomers.has(seq)) & (self.rank[seq] == old(self).rank[seq])

    @theorem("an admitted request is bound to its rank", after=admit)
    def admitted_bound(self, seq: Seq) -> Bool:
        return (
            self.placed.has(seq)
            & ~self.newcomers.has(seq)
            & (self.rank[seq] == old(self).rank[seq])
            & self.at(seq).is_in(seq, Phase.running)
        )

    @theorem("a request that has left keeps its rank, and has nothing anywhere", after=left)
    def left_keeps_rank(self, seq: Seq) -> Bool:
        return (
            self.placed.has(seq)
            & (self.rank[seq] == old(self).rank[seq])
            & forall(Rank, lambda r: self.is_out(seq, r))
        )

    @theorem("a request that is forgotten has no rank, and had nothing", after=forget)
    def forgotten(self, seq: Seq) -> Bool:
        return ~self.placed.has(seq) & forall(Rank, lambda r: self.is_out(seq, r))

    @theorem("a block that is taken on one rank is taken on no other", after=grow)
    def growth_is_local(self, seq: Seq) -> Bool:
        return forall(
            Rank,
            Block,
            lambda r, b: implies(
                r != self.rank[seq],
                self.ranks[r].kv.cache.blocks.free.has(b) == old(self).ranks[r].kv.cache.blocks.free.has(b),
            ),
        )

    @theorem("when no request has a rank, a rank without keys, checkpoints and outside holders is wholly free")
    def drained(self) -> Bool:
        return forall(
            Rank,
            lambda r: implies(
                forall(Seq, lambda q: ~self.placed.has(q)) & self.ranks[r].holds_nothing_else(),
                self.ranks[r].all_free(),
            ),
        )

    @witness("two requests run on different ranks")
    def two_ranks(self) -> Bool:
        return exists(
            Seq,
            Seq,
            lambda q, p: (
                (self.rank[q] != self.rank[p])
                & self.at(q).is_in(q, Phase.running)
                & self.at(p).is_in(p, Phase.running)
            ),
        )

    @witness("a request that has given way has a rank and nothing on it")
    def gave_way(self) -> Bool:
        return exists(
            Seq,
            lambda q: self.placed.has(q) & ~self.newcomers.has(q) & self.is_out(q, self.rank[q]),
        )
