"""One request on one rank: what it takes in which order, and how a call that fails gives all of it back (seed 5.2, 7.2,
8 and 10.1; classes `BlockManagerPool`, `Sequence`).

A request needs three resources: blocks (chapter `sequences`), a single block (`single_block`) and, where the model has
linear layers, a live state slot (`linear_state`). A call of ``allocate`` takes them stage by stage, and each stage is
an event of its own, so that a call can be refused at each of them. Only one call runs at a time on a rank; what the
worker does (steps, copies of states) happens between calls.

With linear state a hit is only worth as much as a state that can be restored behind it: the blocks behind the last safe
boundary are given back (chapter `trim` says which boundary that is), and the checkpoint of the kept boundary is pinned
in the same event that chooses it. From then on keys and values, and the recurrent state, stand at the same token.

Here a call goes on until it lacks something, and is refused at that stage. A manager may refuse it before it takes
anything, if it can count that the call will not get what it needs: chapter `admission` says when it may. Either way
nothing is left of the call.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.language import (
    Bool,
    Ghost,
    Machine,
    Map,
    Set,
    Static,
    Variants,
    axiom,
    case,
    choose,
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
from kvspec.spec.language.values import Case
from kvspec.spec.linear_state import LinearState
from kvspec.spec.sequences import Sequences
from kvspec.spec.single_block import SingleBlock
from kvspec.spec.sorts import Block, Chain, Index, Pin, Seat, Seq, Single, StateOwner, StateSlot
from kvspec.spec.trim import Test, contiguous, deepest, is_choice


class Phase(Variants):
    """How far a request has come."""

    out = case()
    begun = case()
    trimming = case()
    growing = case()
    undoing = case()
    running = case()
    leaving = case()


class Lifecycle(Machine):
    """A request has all of its resources or none, and a refused call leaves everything as it was."""

    kv = use(Sequences)
    single = use(SingleBlock, Unit=Single, Owner=Seq)
    state = use(LinearState)

    linear: Static[Bool]
    resumable: Static[Callable[[Chain], Bool]]

    phase: Map[Seq, Phase]
    busy: Bool
    caller: Seq
    newcomer: Bool
    known: Chain
    need: Index
    base: Index
    keep: Index
    housed: Set[Seq]
    single_of: Map[Seq, Single]
    stands: Map[Seq, Chain]
    stepping: Set[Seq]
    astray: Set[Seq]
    holders_before: Ghost[Map[Block, Set[Seat]]]
    singles_before: Ghost[Map[Single, Set[Seq]]]
    slots_before: Ghost[Map[StateSlot, Set[StateOwner]]]

    @axiom("the empty prefix is the same for keys and for states")
    def one_nothing(self) -> Bool:
        return self.kv.cache.nothing == self.state.nothing

    @init
    def start(self) -> None:
        self.phase.assign_all(lambda seq: Phase.out())
        self.stands.assign_all(lambda seq: self.state.nothing)
        self.end_call()
        self.housed.clear()
        self.stepping.clear()
        self.astray.clear()

    # -- allocate: the stages of a call --------------------------------------------------------------------------

    @event
    def begin(self, seq: Seq, need: Index, known: Chain) -> None:
        """A call begins for a request that has nothing, or for one that runs: its table is to have `need` blocks."""
        require(~self.busy)
        require(self.is_in(seq, Phase.out) | (self.is_in(seq, Phase.running) & ~self.stepping.has(seq)))
        self.busy = true()
        self.caller = seq
        self.newcomer = self.is_in(seq, Phase.out)
        self.known = known
        self.need = need
        self.base = self.kv.size[seq]
        self.holders_before.assign_all(lambda block: self.kv.cache.blocks.holders[block])
        self.singles_before.assign_all(lambda single: self.single.ids.holders[single])
        self.slots_before.assign_all(lambda slot: self.state.slots.ids.holders[slot])
        self.phase[seq] = choose(self.newcomer, Phase.begun(), Phase.growing())

    @event
    def take_single(self, seq: Seq, single: Single) -> None:
        """A newcomer gets its single block (allocate_single_block)."""
        require(self.is_in(seq, Phase.begun))
        require(~self.housed.has(seq))
        require(self.single.ids.free.has(single))
        self.single.allocate(single, seq)
        self.housed.add(seq)
        self.single_of[seq] = single

    @event
    def take_slot(self, seq: Seq, slot: StateSlot) -> None:
        """A newcomer gets its live slot (acquire_live_slot)."""
        require(self.is_in(seq, Phase.begun))
        require(self.linear & self.housed.has(seq))
        inherit(self.state.acquire)(seq, slot)

    @event
    def mount(self, seq: Seq, key: Chain) -> None:
        """A newcomer hits the next block of its tokens (allocate_shared); with linear state a token is left over."""
        require(self.is_in(seq, Phase.begun))
        require(self.equipped(seq))
        require(implies(self.linear, self.state.longer(self.known, key)))
        inherit(self.kv.mount)(seq, key)

    @event
    def keep_all(self, seq: Seq) -> None:
        """Without linear state every hit counts as computed."""
        require(self.is_in(seq, Phase.begun))
        require(self.housed.has(seq) & ~self.linear)
        size = self.kv.size[seq]
        with when(~size.is_zero()):
            self.stands[seq] = self.kv.text[seq, size.prev()]
        self.phase[seq] = Phase.growing()

    @event
    def pin_contiguous(self, seq: Seq, boundary: Index) -> None:
        """The hits are kept up to the boundary that policy contiguous chooses; its checkpoint is pinned."""
        require(self.is_contiguous(seq, boundary))
        self.pin(seq, boundary)

    @event
    def pin_deepest(self, seq: Seq, boundary: Index) -> None:
        """The hits are kept up to the boundary that policy deepest chooses; its checkpoint is pinned."""
        require(self.is_deepest(seq, boundary))
        self.pin(seq, boundary)

    @event
    def keep_none_contiguous(self, seq: Seq) -> None:
        """Policy contiguous chooses the empty prefix: no hit is kept."""
        require(self.is_contiguous(seq, Index.zero()))
        self.keep_none(seq)

    @event
    def keep_none_deepest(self, seq: Seq) -> None:
        """Policy deepest chooses the empty prefix: no hit is kept."""
        require(self.is_deepest(seq, Index.zero()))
        self.keep_none(seq)

    @event
    def trim(self, seq: Seq) -> None:
        """The last block behind the kept boundary is given back (deallocate of shared blocks)."""
        require(self.is_in(seq, Phase.trimming))
        require(self.keep < self.kv.size[seq])
        self.kv.drop(seq)

    @event
    def trimmed(self, seq: Seq) -> None:
        """Nothing is left behind the kept boundary."""
        require(self.is_in(seq, Phase.trimming))
        require(self.kv.size[seq] <= self.keep)
        self.phase[seq] = Phase.growing()

    @event
    def grow(self, seq: Seq, block: Block) -> None:
        """The table grows by a free block (allocate, add_kv_blocks), never beyond what is needed."""
        require(self.is_in(seq, Phase.growing))
        require(self.kv.size[seq] < self.need)
        inherit(self.kv.take)(seq, block)

    @event
    def admit(self, seq: Seq) -> None:
        """The call succeeds: the request has all that it needs."""
        require(self.is_in(seq, Phase.growing))
        require(self.need <= self.kv.size[seq])
        self.phase[seq] = Phase.running()
        self.end_call()

    @event
    def refuse(self, seq: Seq) -> None:
        """The call fails for want of something that no eviction can give; what it took is to be given back."""
        require(self.is_in(seq, Phase.begun) | self.is_in(seq, Phase.growing))
        require(self.lacks_single(seq) | self.lacks_slot(seq) | self.lacks_block(seq))
        self.phase[seq] = Phase.undoing()

    @event
    def undo_block(self, seq: Seq) -> None:
        """A block that the call mounted or took is given back."""
        require(self.is_in(seq, Phase.undoing))
        require(self.base < self.kv.size[seq])
        self.kv.drop(seq)

    @event
    def undo_slot(self, seq: Seq) -> None:
        """The newcomer's live slot is given back, and its pin with it (release_linear_state_slot)."""
        require(self.is_in(seq, Phase.undoing))
        require(self.newcomer & self.kv.size[seq].is_zero() & self.state.running.has(seq))
        self.state.release(seq)

    @event
    def undo_single(self, seq: Seq) -> None:
        """The newcomer's single block is given back."""
        require(self.is_in(seq, Phase.undoing))
        require(self.newcomer & self.housed.has(seq) & ~self.state.running.has(seq))
        self.give_single_back(seq)

    @event
    def refused(self, seq: Seq) -> None:
        """Everything that the call took is given back: the call returns, and nothing is left of it."""
        require(self.is_in(seq, Phase.undoing))
        require(self.kv.size[seq] <= self.base)
        require(implies(self.newcomer, ~self.housed.has(seq)))
        with when(self.newcomer):
            self.stands[seq] = self.state.nothing
        self.phase[seq] = choose(self.newcomer, Phase.out(), Phase.running())
        self.end_call()

    # -- the worker ----------------------------------------------------------------------------------------------

    @event
    def write(self, seq: Seq, chain: Chain) -> None:
        """A step computes tokens of one block; a request that waits for its state computes nothing."""
        require(self.is_idle(seq))
        require(~self.astray.has(seq) & ~self.state.waiting.has(seq) & ~self.state.being_saved(seq))
        require(self.state.longer(chain, self.stands[seq]))
        require(
            (self.stands[seq] == self.kv.cache.nothing)
            | (self.kv.depth(chain) == self.kv.depth(self.stands[seq]))
            | (self.kv.parent(chain) == self.stands[seq])
        )
        inherit(self.kv.write)(seq, chain)
        self.stands[seq] = chain
        with when(self.linear):
            self.stepping.add(seq)

    @event
    def end_step(self, seq: Seq) -> None:
        """A step ends: the recurrent state stands where the keys and values end."""
        require(self.stepping.has(seq))
        self.state.step(seq, self.stands[seq])
        self.stepping.discard(seq)

    @event
    def restore_started(self, seq: Seq) -> None:
        """The worker begins to copy the pinned checkpoint to the live slot."""
        require(self.is_idle(seq))
        inherit(self.state.restore_started)(seq)

    @event
    def restore_done(self, seq: Seq) -> None:
        """The live slot holds the state of the hit."""
        require(self.is_idle(seq))
        inherit(self.state.restore_done)(seq)

    @event
    def restore_failed(self, seq: Seq) -> None:
        """The copy has failed, or its request ends."""
        require(self.is_idle(seq) | self.is_in(seq, Phase.leaving))
        inherit(self.state.restore_failed)(seq)

    @event
    def reserve(self, seq: Seq, slot: StateSlot, key: Chain) -> None:
        """A slot is reserved for a checkpoint behind which blocks can be reused as well."""
        require(self.is_idle(seq))
        require(self.resumable(key))
        inherit(self.state.reserve)(seq, slot, key)

    @event
    def copy_started(self, seq: Seq, slot: StateSlot) -> None:
        """The worker begins to copy the live state, where a step has ended."""
        require(self.is_idle(seq))
        require(~self.stepping.has(seq) & ~self.astray.has(seq))
        inherit(self.state.copy_started)(seq, slot)

    @event
    def copy_done(self, seq: Seq, slot: StateSlot) -> None:
        """The checkpoint is complete."""
        require(self.is_idle(seq))
        inherit(self.state.copy_done)(seq, slot)

    @event
    def copy_failed(self, seq: Seq, slot: StateSlot) -> None:
        """The copy has failed, or its request ends."""
        require(self.is_idle(seq) | self.is_in(seq, Phase.leaving))
        inherit(self.state.copy_failed)(seq, slot)

    @event
    def commit(self, seq: Seq, slot: StateSlot) -> None:
        """The checkpoint can be matched."""
        require(self.is_idle(seq))
        inherit(self.state.commit)(seq, slot)

    @event
    def abort_save(self, seq: Seq, slot: StateSlot) -> None:
        """A reservation is given back."""
        require(self.is_idle(seq) | self.is_in(seq, Phase.leaving))
        inherit(self.state.abort)(seq, slot)

    @event
    def truncate(self, seq: Seq, chain: Chain) -> None:
        """Rejected tokens at the end are taken back; a recurrent state that has gone over them is of no use."""
        require(self.is_idle(seq))
        require(~self.stepping.has(seq) & ~self.state.being_saved(seq) & ~self.state.restoring.has(seq))
        require(self.stands[seq] != self.kv.cache.nothing)
        index = self.kv.depth(self.stands[seq])
        inherit(self.kv.truncate)(seq, index, chain)
        self.stands[seq] = chain
        with when((chain == self.kv.cache.nothing) & ~index.is_zero()):
            self.stands[seq] = self.kv.text[seq, index.prev()]
        with when(self.linear):
            self.astray.add(seq)

    @event
    def resume(self, seq: Seq) -> None:
        """A request whose tokens were taken back goes on behind a checkpoint of what is left."""
        require(self.is_idle(seq))
        require(self.astray.has(seq))
        require(self.state.cached.has(self.stands[seq]))
        inherit(self.state.start_over)(seq)
        self.state.match(seq, self.stands[seq])
        self.astray.discard(seq)

    @event
    def restart(self, seq: Seq) -> None:
        """A request whose tokens were all taken back begins anew, with the state of no tokens."""
        require(self.is_idle(seq))
        require(self.astray.has(seq))
        require(self.stands[seq] == self.kv.cache.nothing)
        inherit(self.state.start_over)(seq)
        self.astray.discard(seq)

    @event
    def give_back(self, seq: Seq) -> None:
        """A block behind all that is computed is given back (truncate)."""
        require(self.is_idle(seq))
        require(~self.kv.size[seq].is_zero())
        require(self.behind(seq, self.kv.size[seq].prev()))
        self.kv.drop(seq)

    @event
    def copy_on_write(self, seq: Seq, index: Index, target: Block) -> None:
        """A block that others hold and that would be overwritten is replaced by a copy, before a call takes more."""
        require(self.is_idle(seq))
        inherit(self.kv.copy_on_write)(seq, index, target)

    # -- keys and others -----------------------------------------------------------------------------------------

    @event
    def publish(self, seq: Seq, index: Index) -> None:
        """A full block becomes matchable (cache)."""
        require(self.is_idle(seq))
        inherit(self.kv.publish)(seq, index)

    @event
    def evict(self, key: Chain) -> None:
        """A key is forgotten whose block nobody else holds."""
        inherit(self.kv.evict)(key)

    @event
    def evict_state(self, key: Chain) -> None:
        """A checkpoint is forgotten that nobody waits for."""
        inherit(self.state.evict)(key)

    @event
    def reset(self) -> None:
        """All keys of blocks are forgotten."""
        require(~self.busy)
        inherit(self.kv.reset)()

    @event
    def hold(self, block: Block, pin: Pin) -> None:
        """Somebody outside takes a handle of a live block."""
        require(~self.busy)
        inherit(self.kv.hold)(block, pin)

    @event
    def unhold(self, block: Block, pin: Pin) -> None:
        """Somebody outside gives a handle back."""
        require(~self.busy)
        inherit(self.kv.unhold)(block, pin)

    # -- deallocate ----------------------------------------------------------------------------------------------

    @event
    def leave(self, seq: Seq) -> None:
        """A request ends, or gives way to others; what it has computed is published before (deallocate, preempt)."""
        require(self.is_idle(seq))
        require(~self.stepping.has(seq))
        self.busy = true()
        self.caller = seq
        self.phase[seq] = Phase.leaving()

    @event
    def leave_block(self, seq: Seq) -> None:
        """Its last block is given back."""
        require(self.is_in(seq, Phase.leaving))
        require(~self.kv.size[seq].is_zero())
        self.kv.drop(seq)

    @event
    def leave_slot(self, seq: Seq) -> None:
        """Its live slot is given back, after all of its blocks (release_linear_state_slot)."""
        require(self.is_in(seq, Phase.leaving))
        require(self.kv.size[seq].is_zero())
        inherit(self.state.release)(seq)

    @event
    def leave_single(self, seq: Seq) -> None:
        """Its single block is given back, after its live slot (deallocate_single_block)."""
        require(self.is_in(seq, Phase.leaving))
        require(self.kv.size[seq].is_zero() & ~self.state.running.has(seq) & self.housed.has(seq))
        self.give_single_back(seq)

    @event
    def left(self, seq: Seq) -> None:
        """It has nothing any more (reset of the sequence)."""
        require(self.is_in(seq, Phase.leaving))
        require(self.kv.size[seq].is_zero() & ~self.housed.has(seq))
        self.stands[seq] = self.state.nothing
        self.astray.discard(seq)
        self.phase[seq] = Phase.out()
        self.busy = false()

    # -- words ---------------------------------------------------------------------------------------------------

    def spaced(self, seq: Seq) -> Test:
        """Boundaries of the table at which blocks and states can be reused."""
        return lambda boundary: self.resumable(self.kv.text[seq, boundary.prev()])

    def saved(self, seq: Seq) -> Test:
        """Boundaries of the table that have a checkpoint."""
        return lambda boundary: self.state.cached.has(self.kv.text[seq, boundary.prev()])

    def contiguous(self, seq: Seq) -> Test:
        return contiguous(self.spaced(seq), self.saved(seq))

    def deepest(self, seq: Seq) -> Test:
        return deepest(self.saved(seq))

    def is_contiguous(self, seq: Seq, boundary: Index) -> Bool:
        return is_choice(boundary, self.kv.size[seq], self.contiguous(seq))

    def is_deepest(self, seq: Seq, boundary: Index) -> Bool:
        return is_choice(boundary, self.kv.size[seq], self.deepest(seq))

    def none_allowed(self, seq: Seq, allowed: Test) -> Bool:
        """A policy allows no boundary of the hits but the empty prefix."""
        return forall(Index, lambda b: implies((b <= self.kv.size[seq]) & allowed(b), b.is_zero()))

    def can_choose(self, seq: Seq) -> Bool:
        """The request has its hits and what it needs for them, and none is chosen yet."""
        return self.is_in(seq, Phase.begun) & self.linear & self.equipped(seq)

    def pin(self, seq: Seq, boundary: Index) -> None:
        require(self.can_choose(seq))
        require(~boundary.is_zero())
        key = self.kv.text[seq, boundary.prev()]
        self.state.match(seq, key)
        self.stands[seq] = key
        self.keep = boundary
        self.phase[seq] = Phase.trimming()

    def keep_none(self, seq: Seq) -> None:
        require(self.can_choose(seq))
        self.keep = Index.zero()
        self.phase[seq] = Phase.trimming()

    def give_single_back(self, seq: Seq) -> None:
        self.single.deallocate(self.single_of[seq], seq)
        self.housed.discard(seq)

    def end_call(self) -> None:
        """What was asked for is forgotten."""
        self.busy = false()
        self.need = Index.zero()
        self.known = self.state.nothing

    def is_in(self, seq: Seq, phase: Case) -> Bool:
        return self.phase[seq].is_case(phase)

    def is_idle(self, seq: Seq) -> Bool:
        """The request runs, and no call does."""
        return ~self.busy & self.is_in(seq, Phase.running)

    def equipped(self, seq: Seq) -> Bool:
        """The request has its single block and, where it needs one, its live slot."""
        return self.housed.has(seq) & implies(self.linear, self.state.running.has(seq))

    def lacks_single(self, seq: Seq) -> Bool:
        return self.is_in(seq, Phase.begun) & ~self.housed.has(seq) & self.single.ids.free.is_empty()

    def lacks_slot(self, seq: Seq) -> Bool:
        return (
            self.is_in(seq, Phase.begun)
            & self.linear
            & self.housed.has(seq)
            & ~self.state.running.has(seq)
            & self.state.slots.ids.free.is_empty()
            & forall(Chain, lambda k: ~self.state.evictable(k))
        )

    def lacks_block(self, seq: Seq) -> Bool:
        return (
            self.is_in(seq, Phase.growing)
            & (self.kv.size[seq] < self.need)
            & self.kv.cache.blocks.free.is_empty()
            & forall(
                Chain,
                lambda k: implies(
                    self.kv.cache.cached.has(k),
                    ~self.kv.cache.blocks.holders[self.kv.cache.entry[k]].is_only(Seat.cache_of(k)),
                ),
            )
        )

    def in_call(self, seq: Seq) -> Bool:
        """A call of the request runs that may still be refused."""
        return (
            self.is_in(seq, Phase.begun)
            | self.is_in(seq, Phase.trimming)
            | self.is_in(seq, Phase.growing)
            | self.is_in(seq, Phase.undoing)
        )

    def holds_nothing_else(self) -> Bool:
        """There are no keys, no checkpoints and no outside holders."""
        return forall(Chain, lambda k: ~self.kv.cache.cached.has(k) & ~self.state.cached.has(k)) & forall(
            Block, Pin, lambda b, p: ~self.kv.cache.blocks.holders[b].has(Seat.pin_of(p))
        )

    def all_free(self) -> Bool:
        """Every usable block, single block and state slot is free."""
        return forall(
            Block,
            Single,
            StateSlot,
            lambda b, u, x: (
                implies(self.kv.cache.blocks.usable.has(b), self.kv.cache.blocks.free.has(b))
                & implies(self.single.ids.usable.has(u), self.single.ids.free.has(u))
                & implies(self.state.slots.ids.usable.has(x), self.state.slots.ids.free.has(x))
            ),
        )

    def settled(self, seq: Seq) -> Bool:
        """The request has come past its hits, and will not lose them again."""
        return (
            self.is_in(seq, Phase.growing)
            | self.is_in(seq, Phase.running)
            | (self.is_in(seq, Phase.undoing) & ~self.newcomer)
        )

    def behind(self, seq: Seq, index: Index) -> Bool:
        """The place lies behind all that is computed."""
        return (self.stands[seq] == self.kv.cache.nothing) | (self.kv.depth(self.stands[seq]) < index)

    def newly(self, seq: Seq) -> Bool:
        """The request had nothing before the call that runs."""
        return self.newcomer & (seq == self.caller)

    def is_new(self, seat: Seat) -> Bool:
        """The seat is of a block that the call has mounted or taken."""
        seq: Seq = seat.field(Seat.seq_at, 0)
        index: Index = seat.field(Seat.seq_at, 1)
        return seat.is_case(Seat.seq_at) & (seq == self.caller) & (self.base <= index)

    def forgot_call(self) -> Bool:
        """No call runs, and nothing is known of what the last one asked for."""
        return ~self.busy & self.need.is_zero() & (self.known == self.state.nothing)

    def kept_can_be_restored(self, seq: Seq, boundary: Index) -> Bool:
        """The request waits for the checkpoint of the boundary, which is there, and keeps its hits up to it."""
        key = self.kv.text[seq, boundary.prev()]
        return (
            self.state.waiting.has(seq)
            & (self.state.at[seq] == key)
            & (self.stands[seq] == key)
            & (self.state.content[self.state.entry[key]] == key)
            & (self.keep == boundary)
            & (self.kv.depth(key) < self.keep)
            & (self.keep <= self.kv.size[seq])
        )

    # -- invariants: calls ---------------------------------------------------------------------------------------

    @invariant("only one request is in a call, and while none is nothing is half done")
    def one_call(self) -> Bool:
        return forall(
            Seq,
            lambda q: (self.is_in(q, Phase.out) | self.is_in(q, Phase.running)) == ~(self.busy & (q == self.caller)),
        )

    @invariant("only a newcomer has hits")
    def hits_are_newcomers(self) -> Bool:
        return forall(
            Seq, lambda q: implies(self.is_in(q, Phase.begun) | self.is_in(q, Phase.trimming), self.newcomer)
        )

    @invariant("a call keeps the blocks that were there when it began; a newcomer had none")
    def base_within(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.in_call(q), (self.base <= self.kv.size[q]) & implies(self.newcomer, self.base.is_zero())
            ),
        )

    # -- invariants: resources -----------------------------------------------------------------------------------

    @invariant("a request that is out has nothing")
    def out_is_empty(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.is_in(q, Phase.out),
                self.kv.size[q].is_zero()
                & ~self.housed.has(q)
                & ~self.state.running.has(q)
                & (self.stands[q] == self.kv.cache.nothing),
            ),
        )

    @invariant("a housed request has its single block")
    def housed_single(self) -> Bool:
        return forall(Seq, lambda q: implies(self.housed.has(q), self.single.ids.holders[self.single_of[q]].has(q)))

    @invariant("a single block is that of a housed request, which has no other")
    def single_housed(self) -> Bool:
        return forall(
            Single,
            Seq,
            lambda u, q: implies(self.single.ids.holders[u].has(q), self.housed.has(q) & (self.single_of[q] == u)),
        )

    @invariant("only a housed request has a live slot, and only where there is linear state")
    def slots_are_housed(self) -> Bool:
        return forall(Seq, lambda q: implies(self.state.running.has(q), self.housed.has(q) & self.linear))

    @invariant("a request that has come past its hits has its single block and, where it needs one, its live slot")
    def settled_equipped(self) -> Bool:
        return forall(Seq, lambda q: implies(self.settled(q) | self.is_in(q, Phase.trimming), self.equipped(q)))

    @invariant("a newcomer reserves nothing before it runs")
    def newcomer_reserves_nothing(self) -> Bool:
        return forall(
            Seq,
            StateSlot,
            lambda q, x: implies(self.state.reserved(q, x), ~(self.in_call(q) & self.newcomer)),
        )

    @invariant("a newcomer restores nothing before it runs")
    def newcomer_restores_nothing(self) -> Bool:
        return forall(Seq, lambda q: implies(self.state.restoring.has(q), ~(self.in_call(q) & self.newcomer)))

    @invariant("nothing is published ahead")
    def nothing_promised(self) -> Bool:
        return forall(Chain, lambda k: ~self.kv.cache.pending.has(k))

    # -- invariants: positions -----------------------------------------------------------------------------------

    @invariant("where a request stands, its table holds what it has computed")
    def stands_in_table(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                (self.settled(q) | self.is_in(q, Phase.trimming)) & (self.stands[q] != self.kv.cache.nothing),
                (self.kv.depth(self.stands[q]) < self.kv.size[q])
                & (self.kv.text[q, self.kv.depth(self.stands[q])] == self.stands[q]),
            ),
        )

    @invariant("what a running request has computed lies among the blocks that it keeps when a call is refused")
    def stands_below_base(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.in_call(q) & ~self.newcomer & (self.stands[q] != self.kv.cache.nothing),
                self.kv.depth(self.stands[q]) < self.base,
            ),
        )

    @invariant("behind where a request stands nothing is computed")
    def nothing_behind(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda q, i: implies(
                self.settled(q) & (i < self.kv.size[q]) & self.behind(q, i),
                self.kv.text[q, i] == self.kv.cache.nothing,
            ),
        )

    @invariant("between steps the recurrent state stands where keys and values do")
    def state_in_step(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                (self.settled(q) | self.is_in(q, Phase.trimming))
                & self.linear
                & ~self.stepping.has(q)
                & ~self.astray.has(q),
                self.state.at[q] == self.stands[q],
            ),
        )

    @invariant("during a step the recurrent state is behind, and can follow when the step ends")
    def state_follows(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.stepping.has(q),
                self.is_in(q, Phase.running)
                & self.linear
                & ~self.astray.has(q)
                & ~self.state.waiting.has(q)
                & self.state.longer(self.stands[q], self.state.at[q]),
            ),
        )

    @invariant("a state is copied neither during a step nor after tokens were taken back")
    def copied_at_rest(self) -> Bool:
        return forall(
            Seq,
            StateSlot,
            lambda q, x: implies(
                self.state.reserved(q, x) & self.state.copying.has(x), ~self.stepping.has(q) & ~self.astray.has(q)
            ),
        )

    @invariant("only a request that has run, with linear state, is astray")
    def astray_has_run(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.astray.has(q),
                self.linear & ~self.is_in(q, Phase.out) & ~(self.in_call(q) & self.newcomer),
            ),
        )

    @invariant("a newcomer has computed nothing before its hits are counted")
    def begun_at_nothing(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.is_in(q, Phase.begun),
                (self.stands[q] == self.kv.cache.nothing)
                & implies(
                    self.state.running.has(q),
                    (self.state.at[q] == self.kv.cache.nothing) & ~self.state.waiting.has(q),
                ),
            ),
        )

    # -- invariants: hits ----------------------------------------------------------------------------------------

    @invariant("a hit that may be trimmed is still matchable, in the block that was mounted")
    def mounted_keyed(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda q, i: implies(
                (self.is_in(q, Phase.begun) | self.is_in(q, Phase.trimming)) & (i < self.kv.size[q]),
                self.kv.cache.keyed(self.kv.table[q, i], self.kv.text[q, i])
                & self.equipped(q)
                & implies(self.linear, self.state.longer(self.known, self.kv.text[q, i])),
            ),
        )

    @invariant("what is kept ends at the boundary where the request goes on, and its checkpoint is waited for")
    def kept_boundary(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.is_in(q, Phase.trimming),
                self.linear
                & (self.keep <= self.kv.size[q])
                & implies(self.stands[q] == self.kv.cache.nothing, self.keep.is_zero())
                & implies(
                    self.stands[q] != self.kv.cache.nothing,
                    (self.kv.depth(self.stands[q]) < self.keep) & self.state.waiting.has(q),
                ),
            ),
        )

    @invariant("no place lies between the boundary where a request goes on and the first that is given back")
    def kept_next(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda q, i: implies(
                self.is_in(q, Phase.trimming)
                & (self.stands[q] != self.kv.cache.nothing)
                & (self.kv.depth(self.stands[q]) < i),
                self.keep <= i,
            ),
        )

    @invariant("checkpoints are reserved only where blocks can be reused as well")
    def reserved_resumable(self) -> Bool:
        return forall(
            Seq, StateSlot, lambda q, x: implies(self.state.reserved(q, x), self.resumable(self.state.key[x]))
        )

    @invariant("there are checkpoints only where blocks can be reused as well")
    def checkpoints_resumable(self) -> Bool:
        return forall(Chain, lambda k: implies(self.state.cached.has(k), self.resumable(k)))

    # -- invariants: what a call can give back -------------------------------------------------------------------

    @invariant("a handle that was not there before the call is that of a block that it mounted or took")
    def new_handles(self) -> Bool:
        return forall(
            Block,
            Seat,
            lambda b, h: implies(
                self.in_call(self.caller) & self.kv.cache.blocks.holders[b].has(h) & ~self.holders_before[b].has(h),
                self.is_new(h),
            ),
        )

    @invariant("a handle that was there before the call is no such handle, and is there unless its key was evicted")
    def old_handles(self) -> Bool:
        return forall(
            Block,
            Seat,
            lambda b, h: implies(
                self.in_call(self.caller) & self.holders_before[b].has(h),
                ~self.is_new(h)
                & (
                    self.kv.cache.blocks.holders[b].has(h)
                    | (h.is_case(Seat.cache_of) & ~self.kv.cache.cached.has(h.field(Seat.cache_of, 0)))
                ),
            ),
        )

    @invariant("the owners of single blocks are those of before the call, but for the newcomer")
    def old_singles(self) -> Bool:
        return forall(
            Single,
            Seq,
            lambda u, r: implies(
                self.in_call(self.caller),
                implies(self.singles_before[u].has(r), self.single.ids.holders[u].has(r) & ~self.newly(r))
                & implies(
                    self.single.ids.holders[u].has(r), self.singles_before[u].has(r) | self.newly(r)
                ),
            ),
        )

    @invariant("a state slot that was not had before the call is the newcomer's live slot")
    def new_slots(self) -> Bool:
        return forall(
            StateSlot,
            StateOwner,
            lambda x, o: implies(
                self.in_call(self.caller) & self.state.slots.ids.holders[x].has(o) & ~self.slots_before[x].has(o),
                self.newcomer & (o == StateOwner.live(self.caller)),
            ),
        )

    @invariant("a state slot that was had before the call is not the newcomer's, and is had unless it was evicted")
    def old_slots(self) -> Bool:
        return forall(
            StateSlot,
            StateOwner,
            lambda x, o: implies(
                self.in_call(self.caller) & self.slots_before[x].has(o),
                ~(self.newcomer & (o == StateOwner.live(self.caller)))
                & (
                    self.state.slots.ids.holders[x].has(o)
                    | (o.is_case(StateOwner.committed) & ~self.state.cached.has(o.field(StateOwner.committed, 0)))
                ),
            ),
        )

    # -- theorems: states ----------------------------------------------------------------------------------------

    @theorem("a request has at most one single block and one live slot")
    def at_most_one(self) -> Bool:
        return forall(
            Seq,
            Single,
            Single,
            StateSlot,
            StateSlot,
            lambda q, u, v, x, y: (
                implies(self.single.ids.holders[u].has(q) & self.single.ids.holders[v].has(q), u == v)
                & implies(self.state.is_live(q, x) & self.state.is_live(q, y), x == y)
            ),
        )

    @theorem("a request goes on only with the state of exactly the tokens that its blocks hold")
    def state_fits_blocks(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.is_in(q, Phase.running)
                & self.linear
                & ~self.stepping.has(q)
                & ~self.astray.has(q)
                & ~self.state.waiting.has(q),
                self.state.clean.has(self.state.live[q])
                & (self.state.content[self.state.live[q]] == self.stands[q]),
            ),
        )

    @theorem("the table of a running request that has computed nothing holds nothing of it")
    def nothing_computed(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda q, i: implies(
                self.is_in(q, Phase.running) & (self.stands[q] == self.kv.cache.nothing) & (i < self.kv.size[q]),
                self.kv.text[q, i] == self.kv.cache.nothing,
            ),
        )

    @theorem("what a request waits for is the state of exactly the tokens that its blocks hold")
    def waits_for_its_own(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.is_in(q, Phase.running) & self.state.waiting.has(q) & ~self.astray.has(q),
                (self.state.content[self.state.entry[self.stands[q]]] == self.stands[q])
                & self.state.clean.has(self.state.entry[self.stands[q]]),
            ),
        )

    @theorem("when all requests are out, all keys forgotten and no outside holder is left, everything is free")
    def drained(self) -> Bool:
        return implies(forall(Seq, lambda q: self.is_in(q, Phase.out)) & self.holds_nothing_else(), self.all_free())

    @theorem("at the start every request is out, and no call runs", after=start)
    def starts_idle(self) -> Bool:
        return self.forgot_call() & forall(Seq, lambda q: self.is_in(q, Phase.out) & ~self.stepping.has(q))

    # -- theorems: calls -----------------------------------------------------------------------------------------

    @theorem("a refused call leaves nothing behind: all is as it was, but for what was evicted", after=refused)
    def refused_leaves_nothing(self, seq: Seq) -> Bool:
        return (
            forall(
                Block,
                Seat,
                lambda b, h: (
                    implies(self.kv.cache.blocks.holders[b].has(h), self.holders_before[b].has(h))
                    & implies(
                        self.holders_before[b].has(h),
                        self.kv.cache.blocks.holders[b].has(h)
                        | (h.is_case(Seat.cache_of) & ~self.kv.cache.cached.has(h.field(Seat.cache_of, 0))),
                    )
                ),
            )
            & forall(Single, Seq, lambda u, r: self.singles_before[u].has(r) == self.single.ids.holders[u].has(r))
            & forall(
                StateSlot,
                StateOwner,
                lambda x, o: (
                    implies(self.state.slots.ids.holders[x].has(o), self.slots_before[x].has(o))
                    & implies(
                        self.slots_before[x].has(o),
                        self.state.slots.ids.holders[x].has(o)
                        | (
                            o.is_case(StateOwner.committed)
                            & ~self.state.cached.has(o.field(StateOwner.committed, 0))
                        ),
                    )
                ),
            )
        )

    @theorem("what was free when a refused call began is free again", after=refused)
    def refused_frees(self) -> Bool:
        return forall(
            Block,
            lambda b: implies(
                self.kv.cache.blocks.usable.has(b) & ~self.kv.cache.blocks.free.has(b),
                ~self.holders_before[b].is_empty(),
            ),
        )

    @theorem("a refused newcomer is out; a request that ran runs on, with its table and position", after=refused)
    def refused_goes_back(self, seq: Seq) -> Bool:
        return (
            self.forgot_call()
            & implies(old(self).newcomer, self.is_in(seq, Phase.out) & self.kv.size[seq].is_zero())
            & implies(
                ~old(self).newcomer,
                self.is_in(seq, Phase.running)
                & (self.kv.size[seq] == self.base)
                & (self.stands[seq] == old(self).stands[seq]),
            )
        )

    @theorem("a call is refused only if what it lacks cannot be had, even by eviction", after=refuse)
    def refused_for_cause(self, seq: Seq) -> Bool:
        return (
            self.is_in(seq, Phase.undoing)
            & implies(~self.housed.has(seq), forall(Single, lambda u: ~self.single.ids.free.has(u)))
            & implies(
                self.housed.has(seq) & old(self).is_in(seq, Phase.begun),
                forall(StateSlot, lambda x: ~self.state.slots.ids.free.has(x))
                & forall(Chain, lambda k: ~self.state.evictable(k)),
            )
            & implies(
                old(self).is_in(seq, Phase.growing),
                forall(Block, lambda b: ~self.kv.cache.blocks.free.has(b))
                & forall(
                    Chain,
                    lambda k: implies(
                        self.kv.cache.cached.has(k),
                        ~self.kv.cache.blocks.holders[self.kv.cache.entry[k]].is_only(Seat.cache_of(k)),
                    ),
                ),
            )
        )

    @theorem("a call that succeeds leaves the request with all that it needs", after=admit)
    def admitted_has_all(self, seq: Seq) -> Bool:
        return (
            self.equipped(seq)
            & (old(self).need <= self.kv.size[seq])
            & self.forgot_call()
            & self.is_in(seq, Phase.running)
        )

    @theorem("a table grows by one block at a time, and never beyond what is needed", after=grow)
    def grown_within(self, seq: Seq, block: Block) -> Bool:
        return (
            (self.kv.size[seq] <= self.need)
            & (self.kv.table[seq, old(self).kv.size[seq]] == block)
            & (self.stands[seq] == old(self).stands[seq])
        )

    @theorem("a call begins with what there is, and remembers it", after=begin)
    def begun_remembers(self, seq: Seq, need: Index, known: Chain) -> Bool:
        return (
            self.busy
            & (self.need == need)
            & (self.known == known)
            & (self.caller == seq)
            & (self.base == old(self).kv.size[seq])
            & forall(Block, Seat, lambda b, h: self.holders_before[b].has(h) == self.kv.cache.blocks.holders[b].has(h))
            & (self.is_in(seq, Phase.begun) == old(self).is_in(seq, Phase.out))
        )

    @theorem("the newcomer has the single block that it took", after=take_single)
    def single_taken(self, seq: Seq, single: Single) -> Bool:
        return self.housed.has(seq) & (self.single_of[seq] == single) & ~self.single.ids.free.has(single)

    @theorem("the newcomer has the live slot that it took, with the state of no tokens", after=take_slot)
    def slot_taken(self, seq: Seq, slot: StateSlot) -> Bool:
        return (
            self.state.is_live(seq, slot)
            & (self.state.at[seq] == self.kv.cache.nothing)
            & self.is_in(seq, Phase.begun)
        )

    # -- theorems: hits ------------------------------------------------------------------------------------------

    @theorem("contiguous: what is kept can be restored, and is the most that the policy allows", after=pin_contiguous)
    def contiguous_is_largest(self, seq: Seq, boundary: Index) -> Bool:
        return self.kept_can_be_restored(seq, boundary) & self.is_contiguous(seq, self.keep)

    @theorem("deepest: what is kept can be restored, and is the most that the policy allows", after=pin_deepest)
    def deepest_is_largest(self, seq: Seq, boundary: Index) -> Bool:
        return self.kept_can_be_restored(seq, boundary) & self.is_deepest(seq, self.keep)

    @theorem("contiguous keeps nothing only if it allows no boundary of the hits", after=keep_none_contiguous)
    def contiguous_keeps_none(self, seq: Seq) -> Bool:
        return (
            self.keep.is_zero() & self.is_in(seq, Phase.trimming) & self.none_allowed(seq, self.contiguous(seq))
        )

    @theorem("deepest keeps nothing only if it allows no boundary of the hits", after=keep_none_deepest)
    def deepest_keeps_none(self, seq: Seq) -> Bool:
        return self.keep.is_zero() & self.is_in(seq, Phase.trimming) & self.none_allowed(seq, self.deepest(seq))

    @theorem("trimming gives back one block behind the kept boundary, which its key still leads to", after=trim)
    def trim_frees_nothing(self, seq: Seq) -> Bool:
        index = self.kv.size[seq]
        return (
            (self.keep <= index)
            & (index < old(self).kv.size[seq])
            & ~self.kv.seated(old(self).kv.table[seq, index], seq, index)
            & forall(Block, lambda b: self.kv.cache.blocks.free.has(b) == old(self).kv.cache.blocks.free.has(b))
            & forall(Chain, lambda k: self.kv.cache.cached.has(k) == old(self).kv.cache.cached.has(k))
        )

    @theorem("what is left after trimming ends exactly where the request will be restored", after=trimmed)
    def trimmed_is_kept(self, seq: Seq) -> Bool:
        return (self.kv.size[seq] == self.keep) & self.is_in(seq, Phase.growing) & implies(
            self.stands[seq] != self.kv.cache.nothing,
            (self.state.at[seq] == self.stands[seq])
            & self.state.waiting.has(seq)
            & (self.kv.text[seq, self.kv.depth(self.stands[seq])] == self.stands[seq]),
        )

    @theorem("with linear state a hit leaves at least one token to compute", after=mount)
    def hit_leaves_a_token(self, seq: Seq, key: Chain) -> Bool:
        index = old(self).kv.size[seq]
        return (
            implies(self.linear, self.state.longer(self.known, key))
            & self.equipped(seq)
            & (index < self.kv.size[seq])
            & (self.kv.text[seq, index] == key)
        )

    @theorem("without linear state all hits count as computed", after=keep_all)
    def all_kept(self, seq: Seq) -> Bool:
        return (
            ~self.linear
            & (self.kv.size[seq] == old(self).kv.size[seq])
            & self.is_in(seq, Phase.growing)
            & implies(self.stands[seq] == self.kv.cache.nothing, self.kv.size[seq].is_zero())
        )

    # -- theorems: the worker ------------------------------------------------------------------------------------

    @theorem("nothing is computed before the state has been restored, nor while it is saved", after=write)
    def write_needs_state(self, seq: Seq, chain: Chain) -> Bool:
        return (
            ~self.state.waiting.has(seq)
            & ~self.astray.has(seq)
            & forall(StateSlot, lambda x: ~(self.state.reserved(seq, x) & self.state.copying.has(x)))
            & (self.stands[seq] == chain)
            & (self.stepping.has(seq) == self.linear)
        )

    @theorem("when a step has ended the state holds exactly the computed tokens", after=end_step)
    def step_ended(self, seq: Seq) -> Bool:
        return (
            ~self.stepping.has(seq)
            & (self.state.at[seq] == self.stands[seq])
            & (self.state.content[self.state.live[seq]] == self.stands[seq])
        )

    @theorem("a checkpoint is copied only where a step has ended, of tokens that count", after=copy_started)
    def saved_where_step_ended(self, seq: Seq, slot: StateSlot) -> Bool:
        return (self.state.key[slot] == self.stands[seq]) & self.resumable(self.state.key[slot])

    @theorem("a restored request goes on with the state of its hit", after=restore_done)
    def restored_goes_on(self, seq: Seq) -> Bool:
        return ~self.state.waiting.has(seq) & self.state.clean.has(self.state.live[seq])

    @theorem("a request stands where the tokens end that are left to it, and its state is of no use", after=truncate)
    def truncated_is_astray(self, seq: Seq, chain: Chain) -> Bool:
        return (
            implies(chain != self.kv.cache.nothing, self.stands[seq] == chain)
            & (self.kv.text[seq, self.kv.depth(old(self).stands[seq])] == chain)
            & (self.astray.has(seq) == self.linear)
            & ~self.state.restoring.has(seq)
            & forall(StateSlot, lambda x: ~(self.state.reserved(seq, x) & self.state.copying.has(x)))
            & (self.kv.size[seq] == old(self).kv.size[seq])
        )

    @theorem("a request that resumes waits for the state of exactly the tokens that are left", after=resume)
    def resumed_waits(self, seq: Seq) -> Bool:
        return (
            self.state.waiting.has(seq)
            & (self.state.at[seq] == self.stands[seq])
            & self.resumable(self.stands[seq])
            & ~self.astray.has(seq)
        )

    @theorem("a request that begins anew has the state of no tokens", after=restart)
    def restarted_at_nothing(self, seq: Seq) -> Bool:
        return (
            ~self.state.waiting.has(seq) & (self.state.at[seq] == self.kv.cache.nothing) & ~self.astray.has(seq)
        )

    # -- theorems: the end ---------------------------------------------------------------------------------------

    @theorem("a request that has left has nothing, and no call runs", after=left)
    def left_has_nothing(self, seq: Seq) -> Bool:
        return (
            self.is_in(seq, Phase.out)
            & ~self.busy
            & forall(Block, Index, lambda b, i: ~self.kv.seated(b, seq, i))
            & forall(Single, lambda u: ~self.single.ids.holders[u].has(seq))
            & forall(StateSlot, lambda x: ~self.state.is_live(seq, x) & ~self.state.reserved(seq, x))
        )

    @theorem("a single block goes back after the live slot, and the live slot after all blocks", after=leave_single)
    def seeds_order(self, seq: Seq) -> Bool:
        return self.kv.size[seq].is_zero() & ~self.state.running.has(seq) & ~self.housed.has(seq)

    # -- theorems: what an event does ----------------------------------------------------------------------------

    @theorem("a block that is undone is given back", after=undo_block)
    def undone_block_is_gone(self, seq: Seq) -> Bool:
        return (self.kv.size[seq] < old(self).kv.size[seq]) & (self.base <= self.kv.size[seq])

    @theorem("the newcomer's live slot goes back after its blocks", after=undo_slot)
    def undone_slot_is_gone(self, seq: Seq) -> Bool:
        return ~self.state.running.has(seq) & self.kv.size[seq].is_zero()

    @theorem("a block of a request that leaves is given back", after=leave_block)
    def left_block_is_gone(self, seq: Seq) -> Bool:
        return self.kv.size[seq] < old(self).kv.size[seq]

    @theorem("the live slot of a request that leaves goes back after its blocks", after=leave_slot)
    def left_slot_is_gone(self, seq: Seq) -> Bool:
        return ~self.state.running.has(seq) & self.kv.size[seq].is_zero()

    @theorem("a block that is given back held nothing that is computed", after=give_back)
    def given_back_was_empty(self, seq: Seq) -> Bool:
        return (self.kv.size[seq] < old(self).kv.size[seq]) & self.behind(seq, self.kv.size[seq])

    @theorem("a copy stands in the place of the shared block", after=copy_on_write)
    def copied_in_place(self, seq: Seq, index: Index, target: Block) -> Bool:
        return (self.kv.table[seq, index] == target) & (self.kv.size[seq] == old(self).kv.size[seq])

    @theorem("a restore runs", after=restore_started)
    def restore_runs(self, seq: Seq) -> Bool:
        return self.state.restoring.has(seq)

    @theorem("a restore that has failed does not run", after=restore_failed)
    def restore_stopped(self, seq: Seq) -> Bool:
        return ~self.state.restoring.has(seq) & self.state.waiting.has(seq)

    @theorem("a slot is reserved where blocks can be reused as well", after=reserve)
    def reserved_for_later(self, seq: Seq, slot: StateSlot, key: Chain) -> Bool:
        return self.state.reserved(seq, slot) & (self.state.key[slot] == key) & self.resumable(key)

    @theorem("a copy that is done is a checkpoint still to be committed", after=copy_done)
    def copy_complete(self, seq: Seq, slot: StateSlot) -> Bool:
        return self.state.copied.has(slot) & (self.state.content[slot] == self.stands[seq])

    @theorem("a copy that has failed does not run", after=copy_failed)
    def copy_stopped(self, slot: StateSlot) -> Bool:
        return ~self.state.copying.has(slot)

    @theorem("a committed checkpoint can be matched", after=commit)
    def checkpoint_matchable(self, seq: Seq, slot: StateSlot) -> Bool:
        key = self.state.key[slot]
        return self.resumable(key) & self.state.cached.has(key) & ~self.state.reserved(seq, slot)

    @theorem("a reservation that is given back leaves a free slot", after=abort_save)
    def save_aborted(self, slot: StateSlot) -> Bool:
        return self.state.slots.ids.free.has(slot)

    @theorem("what is published can be matched", after=publish)
    def published_is_matchable(self, seq: Seq, index: Index) -> Bool:
        return self.kv.cache.cached.has(self.kv.text[seq, index])

    @theorem("a key that is evicted cannot be matched", after=evict)
    def evicted_is_gone(self, key: Chain) -> Bool:
        return ~self.kv.cache.cached.has(key)

    @theorem("a checkpoint that is evicted cannot be matched", after=evict_state)
    def evicted_state_is_gone(self, key: Chain) -> Bool:
        return ~self.state.cached.has(key)

    @theorem("after a reset no key can be matched", after=reset)
    def reset_forgets(self) -> Bool:
        return forall(Chain, lambda k: ~self.kv.cache.cached.has(k))

    @theorem("an outside holder keeps the block in use", after=hold)
    def held_from_outside(self, block: Block, pin: Pin) -> Bool:
        return self.kv.cache.blocks.holders[block].has(Seat.pin_of(pin))

    @theorem("an outside holder that lets go holds nothing", after=unhold)
    def let_go(self, block: Block, pin: Pin) -> Bool:
        return ~self.kv.cache.blocks.holders[block].has(Seat.pin_of(pin))

    # -- theorems: what is possible ------------------------------------------------------------------------------

    @theorem("a request that runs can be ended between any two steps, whatever is copied")
    def can_leave(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                ~self.busy & self.is_in(q, Phase.running),
                implies(~self.stepping.has(q), possible(self.leave)(q))
                & implies(self.stepping.has(q), possible(self.end_step)(q)),
            ),
        )

    @theorem("a request that leaves always has a way on, until it has nothing")
    def leaving_goes_on(self) -> Bool:
        return forall(
            Seq,
            StateSlot,
            lambda q, x: implies(
                self.is_in(q, Phase.leaving),
                implies(~self.kv.size[q].is_zero(), possible(self.leave_block)(q))
                & implies(
                    self.state.reserved(q, x),
                    implies(self.state.copying.has(x), possible(self.copy_failed)(q, x))
                    & implies(~self.state.copying.has(x), possible(self.abort_save)(q, x)),
                )
                & implies(self.state.restoring.has(q), possible(self.restore_failed)(q))
                & implies(
                    self.kv.size[q].is_zero()
                    & self.state.running.has(q)
                    & ~self.state.restoring.has(q)
                    & forall(StateSlot, lambda y: ~self.state.reserved(q, y)),
                    possible(self.leave_slot)(q),
                )
                & implies(
                    self.kv.size[q].is_zero() & ~self.state.running.has(q),
                    implies(self.housed.has(q), possible(self.leave_single)(q))
                    & implies(~self.housed.has(q), possible(self.left)(q)),
                ),
            ),
        )

    @theorem("a call that is to be undone always has a way on, until nothing is left of it")
    def undoing_goes_on(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.is_in(q, Phase.undoing),
                implies(self.base < self.kv.size[q], possible(self.undo_block)(q))
                & implies(
                    ~(self.base < self.kv.size[q]) & self.newcomer & self.state.running.has(q),
                    possible(self.undo_slot)(q),
                )
                & implies(
                    self.newcomer & ~self.state.running.has(q) & self.housed.has(q), possible(self.undo_single)(q)
                )
                & implies(
                    ~(self.base < self.kv.size[q]) & implies(self.newcomer, ~self.housed.has(q)),
                    possible(self.refused)(q),
                ),
            ),
        )

    @theorem("a call that needs blocks takes a free one; it is refused only where none can be had")
    def growing_goes_on(self) -> Bool:
        return forall(
            Seq,
            Block,
            lambda q, b: implies(
                self.is_in(q, Phase.growing),
                implies(self.need <= self.kv.size[q], possible(self.admit)(q) & ~possible(self.refuse)(q))
                & implies(
                    (self.kv.size[q] < self.need) & self.kv.cache.blocks.free.has(b),
                    possible(self.grow)(q, b) & ~possible(self.refuse)(q),
                ),
            ),
        )

    @theorem("a newcomer takes a single block and a slot that are free, and is not refused for want of what it has")
    def newcomer_goes_on(self) -> Bool:
        return forall(
            Seq,
            Single,
            StateSlot,
            lambda q, u, x: implies(
                self.is_in(q, Phase.begun),
                implies(
                    ~self.housed.has(q) & self.single.ids.free.has(u),
                    possible(self.take_single)(q, u) & ~possible(self.refuse)(q),
                )
                & implies(
                    self.housed.has(q)
                    & self.linear
                    & ~self.state.running.has(q)
                    & self.state.slots.ids.free.has(x),
                    possible(self.take_slot)(q, x) & ~possible(self.refuse)(q),
                )
                & implies(self.housed.has(q) & ~self.linear, possible(self.keep_all)(q))
                & implies(self.equipped(q), ~possible(self.refuse)(q)),
            ),
        )

    @theorem("while a call runs the worker does nothing, and it does nothing for requests that do not run")
    def worker_waits(self) -> Bool:
        return forall(
            Seq,
            StateSlot,
            Chain,
            Index,
            lambda q, x, c, i: implies(
                ~self.is_idle(q),
                ~possible(self.write)(q, c)
                & ~possible(self.restore_started)(q)
                & ~possible(self.restore_done)(q)
                & ~possible(self.reserve)(q, x, c)
                & ~possible(self.copy_started)(q, x)
                & ~possible(self.copy_done)(q, x)
                & ~possible(self.commit)(q, x)
                & ~possible(self.truncate)(q, c)
                & ~possible(self.resume)(q)
                & ~possible(self.restart)(q)
                & ~possible(self.publish)(q, i)
                & ~possible(self.give_back)(q)
                & ~possible(self.leave)(q),
            ),
        )

    @theorem("a copy fails, and a reservation goes back, only between calls or when the request leaves")
    def failures_wait(self) -> Bool:
        return forall(
            Seq,
            StateSlot,
            lambda q, x: implies(
                ~self.is_idle(q) & ~self.is_in(q, Phase.leaving),
                ~possible(self.restore_failed)(q)
                & ~possible(self.copy_failed)(q, x)
                & ~possible(self.abort_save)(q, x),
            ),
        )

    @theorem("the boundary that a policy chooses can be kept")
    def choice_can_be_pinned(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda q, b: implies(
                self.can_choose(q) & ~b.is_zero(),
                implies(self.is_contiguous(q, b), possible(self.pin_contiguous)(q, b))
                & implies(self.is_deepest(q, b), possible(self.pin_deepest)(q, b)),
            ),
        )

    @theorem("where a policy allows no boundary of the hits the call goes on without them")
    def none_can_be_kept(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.can_choose(q),
                implies(self.none_allowed(q, self.contiguous(q)), possible(self.keep_none_contiguous)(q))
                & implies(self.none_allowed(q, self.deepest(q)), possible(self.keep_none_deepest)(q)),
            ),
        )

    @theorem("hits behind the kept boundary can be given back, and then the table grows")
    def trimming_goes_on(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.is_in(q, Phase.trimming),
                implies(self.keep < self.kv.size[q], possible(self.trim)(q))
                & implies(self.keep == self.kv.size[q], possible(self.trimmed)(q)),
            ),
        )

    @theorem("a request without anything can begin whenever no call runs, and so can one that runs, between its steps")
    def calls_can_begin(self) -> Bool:
        return forall(
            Seq,
            Index,
            Chain,
            lambda q, n, c: implies(~self.busy & ~self.stepping.has(q), possible(self.begin)(q, n, c)),
        )

    @theorem("tokens can be taken back as far as the block begins that was computed last, unless a copy runs")
    def cuts_go_on(self) -> Bool:
        return forall(
            Seq,
            Chain,
            lambda q, c: implies(
                self.is_idle(q)
                & ~self.stepping.has(q)
                & ~self.state.being_saved(q)
                & ~self.state.restoring.has(q)
                & (self.stands[q] != self.kv.cache.nothing)
                & self.kv.cache.covers(self.stands[q], c),
                possible(self.truncate)(q, c),
            ),
        )

    @theorem("a request whose tokens were all taken back can begin anew, unless a copy of its state runs")
    def restart_goes_on(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                ~self.busy
                & self.is_in(q, Phase.running)
                & self.astray.has(q)
                & (self.stands[q] == self.kv.cache.nothing)
                & ~self.state.restoring.has(q)
                & forall(StateSlot, lambda x: ~(self.state.reserved(q, x) & self.state.copying.has(x))),
                possible(self.restart)(q),
            ),
        )

    # -- witnesses -----------------------------------------------------------------------------------------------

    @witness("a request waits for its checkpoint behind a hit")
    def a_restored_hit(self) -> Bool:
        return exists(Seq, lambda q: self.is_in(q, Phase.running) & self.state.waiting.has(q))

    @witness("hits are to be trimmed")
    def something_to_trim(self) -> Bool:
        return exists(Seq, lambda q: self.is_in(q, Phase.trimming) & (self.keep < self.kv.size[q]))

    @witness("a running request is refused more blocks")
    def a_runner_refused(self) -> Bool:
        return exists(Seq, lambda q: self.is_in(q, Phase.undoing) & ~self.newcomer)
