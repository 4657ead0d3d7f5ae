"""Recurrent states: live slots, checkpoints, and what may be restored from where (seed 7 and 7.1; class
`LinearStatePrefixCache`).

A linear-state layer keeps, instead of keys and values of all tokens, one state that every token changes. It lies in the
*live* slot of its sequence. A *checkpoint* is a copy of it: *pending* from its reservation until it is committed, and
only then to be found under its key. Neither can be overwritten without harm: going over a token twice gives another
state than going over it once. So a state counts only as *clean* content, up to exactly one position, and whatever is
done in a wrong order leaves a slot that is not clean.

A copy takes time: that it starts, that it is done and that it fails are events of their own. A sequence that is to go
on behind a checkpoint *waits* until the copy to its live slot is done; the checkpoint is pinned from the match on.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.language import (
    Bool,
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
    possible,
    require,
    theorem,
    use,
    when,
    witness,
)
from kvspec.spec.recency import Recency
from kvspec.spec.single_block import SingleBlock
from kvspec.spec.sorts import Chain, Seq, StateOwner, StateSlot


class LinearState(Machine):
    """Every slot is free, live, pending or committed; what is matched is the state of exactly its key's tokens."""

    slots = use(SingleBlock, Unit=StateSlot, Owner=StateOwner)
    line = use(Recency, Item=Chain)

    nothing: Static[Chain]
    longer: Static[Callable[[Chain, Chain], Bool]]

    running: Set[Seq]
    live: Map[Seq, StateSlot]
    at: Map[Seq, Chain]
    waiting: Set[Seq]
    restoring: Set[Seq]
    pins: Map[StateSlot, Set[Seq]]
    key: Map[StateSlot, Chain]
    copying: Set[StateSlot]
    copied: Set[StateSlot]
    cached: Set[Chain]
    entry: Map[Chain, StateSlot]
    content: Map[StateSlot, Chain]
    clean: Set[StateSlot]

    @axiom("of two prefixes one at most is longer than the other, and none is longer than itself")
    def longer_is_asymmetric(self) -> Bool:
        return forall(Chain, Chain, lambda c, d: ~(self.longer(c, d) & self.longer(d, c)))

    @axiom("what is longer than a longer prefix is longer")
    def longer_is_transitive(self) -> Bool:
        return forall(
            Chain, Chain, Chain, lambda c, d, e: implies(self.longer(c, d) & self.longer(d, e), self.longer(c, e))
        )

    @axiom("every prefix but the empty one is longer than the empty one")
    def nothing_is_shortest(self) -> Bool:
        return forall(Chain, lambda c: self.longer(c, self.nothing) == (c != self.nothing))

    @init
    def start(self) -> None:
        self.running.clear()
        self.waiting.clear()
        self.restoring.clear()
        self.copying.clear()
        self.copied.clear()
        self.clean.clear()
        self.cached.clear()
        self.pins.assign_all(lambda slot: empty_set(Seq))

    # -- the live slot -------------------------------------------------------------------------------------------

    @event
    def acquire(self, seq: Seq, slot: StateSlot) -> None:
        """A sequence gets its live slot, with the state of no tokens (acquire_live_slot)."""
        require(~self.running.has(seq))
        require(self.slots.ids.free.has(slot))
        self.slots.allocate(slot, StateOwner.live(seq))
        self.running.add(seq)
        self.live[seq] = slot
        self.zero(seq, slot)

    @event
    def step(self, seq: Seq, chain: Chain) -> None:
        """A step of the worker: the state goes on over the tokens behind the position where the sequence stands."""
        require(self.running.has(seq))
        require(~self.waiting.has(seq))
        require(~self.being_saved(seq))
        require(self.longer(chain, self.at[seq]))
        with when(self.content[self.live[seq]] != self.at[seq]):
            self.clean.discard(self.live[seq])
        self.content[self.live[seq]] = chain
        self.at[seq] = chain

    @event
    def start_over(self, seq: Seq) -> None:
        """A sequence goes back to the state of no tokens, whatever it has waited for."""
        require(self.running.has(seq))
        require(~self.restoring.has(seq))
        require(~self.being_saved(seq))
        self.unpin(seq)
        self.zero(seq, self.live[seq])

    @event
    def release(self, seq: Seq) -> None:
        """A sequence gives its live slot back; it has no reservation left (release_live_slot)."""
        require(self.running.has(seq))
        require(~self.restoring.has(seq))
        require(forall(StateSlot, lambda x: ~self.reserved(seq, x)))
        self.unpin(seq)
        self.running.discard(seq)
        self.clean.discard(self.live[seq])
        self.slots.deallocate(self.live[seq], StateOwner.live(seq))

    # -- from a checkpoint ---------------------------------------------------------------------------------------

    @event
    def match(self, seq: Seq, key: Chain) -> None:
        """A sequence is to go on behind a checkpoint, which is pinned until it has been restored (match_and_pin)."""
        require(self.running.has(seq))
        require(~self.waiting.has(seq))
        require(~self.being_saved(seq))
        require(self.cached.has(key))
        self.pins[self.entry[key]].add(seq)
        self.waiting.add(seq)
        self.at[seq] = key
        self.line.use(key)

    @event
    def restore_started(self, seq: Seq) -> None:
        """The copy of the pinned checkpoint to the live slot begins; nobody can read the live slot meanwhile."""
        require(self.waiting.has(seq))
        require(~self.restoring.has(seq))
        self.restoring.add(seq)
        self.clean.discard(self.live[seq])

    @event
    def restore_done(self, seq: Seq) -> None:
        """The copy is complete: the sequence can go on, and needs the checkpoint no more."""
        require(self.restoring.has(seq))
        self.copy_content(self.entry[self.at[seq]], self.live[seq])
        self.restoring.discard(seq)
        self.unpin(seq)

    @event
    def restore_failed(self, seq: Seq) -> None:
        """The copy has failed: the sequence waits as before."""
        require(self.restoring.has(seq))
        self.restoring.discard(seq)

    # -- to a checkpoint -----------------------------------------------------------------------------------------

    @event
    def reserve(self, seq: Seq, slot: StateSlot, key: Chain) -> None:
        """A slot is reserved for the state at a position where the sequence stands, or to which it may come."""
        require(self.running.has(seq))
        require((key == self.at[seq]) | self.longer(key, self.at[seq]))
        require(key != self.nothing)
        require(self.slots.ids.free.has(slot))
        self.slots.allocate(slot, StateOwner.pending(seq))
        self.key[slot] = key

    @event
    def copy_started(self, seq: Seq, slot: StateSlot) -> None:
        """The live state begins to be copied: the sequence stands exactly where the key says."""
        require(self.reserved(seq, slot))
        require(~self.waiting.has(seq))
        require(~self.copying.has(slot))
        require(~self.copied.has(slot))
        require(self.key[slot] == self.at[seq])
        self.copying.add(slot)
        self.clean.discard(slot)

    @event
    def copy_done(self, seq: Seq, slot: StateSlot) -> None:
        """The copy is complete; it is what the live slot holds now."""
        require(self.reserved(seq, slot))
        require(self.copying.has(slot))
        self.copy_content(self.live[seq], slot)
        self.copying.discard(slot)
        self.copied.add(slot)

    @event
    def copy_failed(self, seq: Seq, slot: StateSlot) -> None:
        """The copy has failed; the slot stays reserved, to be tried again or given back."""
        require(self.reserved(seq, slot))
        require(self.copying.has(slot))
        self.copying.discard(slot)

    @event
    def commit(self, seq: Seq, slot: StateSlot) -> None:
        """A copied checkpoint can be matched from now on, and no longer belongs to the sequence."""
        require(self.reserved(seq, slot))
        require(self.copied.has(slot))
        require(~self.cached.has(self.key[slot]))
        self.slots.hand_over(slot, StateOwner.pending(seq), StateOwner.committed(self.key[slot]))
        self.copied.discard(slot)
        self.cached.add(self.key[slot])
        self.entry[self.key[slot]] = slot
        self.line.use(self.key[slot])

    @event
    def abort(self, seq: Seq, slot: StateSlot) -> None:
        """A reservation is given back, whether or not it has been copied to."""
        require(self.reserved(seq, slot))
        require(~self.copying.has(slot))
        self.copied.discard(slot)
        self.clean.discard(slot)
        self.slots.deallocate(slot, StateOwner.pending(seq))

    # -- eviction ------------------------------------------------------------------------------------------------

    @event
    def evict(self, key: Chain) -> None:
        """A checkpoint that nobody waits for is forgotten, and its slot is free."""
        require(self.evictable(key))
        self.forget(key)

    @event
    def evict_oldest(self, key: Chain) -> None:
        """The least recently used checkpoint that nobody waits for is forgotten."""
        require(self.evictable(key))
        require(forall(Chain, lambda k: implies(self.evictable(k), ~self.line.older.has((k, key)))))
        self.forget(key)

    # -- words ---------------------------------------------------------------------------------------------------

    def zero(self, seq: Seq, slot: StateSlot) -> None:
        self.at[seq] = self.nothing
        self.content[slot] = self.nothing
        self.clean.add(slot)

    def copy_content(self, source: StateSlot, target: StateSlot) -> None:
        self.content[target] = self.content[source]
        with when(self.clean.has(source)):
            self.clean.add(target)

    def unpin(self, seq: Seq) -> None:
        with when(self.waiting.has(seq)):
            self.pins[self.entry[self.at[seq]]].discard(seq)
            self.waiting.discard(seq)

    def forget(self, key: Chain) -> None:
        self.clean.discard(self.entry[key])
        self.cached.discard(key)
        self.line.leave(key)
        self.slots.deallocate(self.entry[key], StateOwner.committed(key))

    def is_live(self, seq: Seq, slot: StateSlot) -> Bool:
        """The slot is the sequence's live one."""
        return self.slots.ids.holders[slot].has(StateOwner.live(seq))

    def reserved(self, seq: Seq, slot: StateSlot) -> Bool:
        """The sequence has reserved the slot for a checkpoint."""
        return self.slots.ids.holders[slot].has(StateOwner.pending(seq))

    def committed(self, slot: StateSlot, key: Chain) -> Bool:
        """The slot is the checkpoint of this key."""
        return self.slots.ids.holders[slot].has(StateOwner.committed(key))

    def being_saved(self, seq: Seq) -> Bool:
        """A copy of the live slot is running."""
        return exists(StateSlot, lambda x: self.reserved(seq, x) & self.copying.has(x))

    def evictable(self, key: Chain) -> Bool:
        return self.cached.has(key) & self.pins[self.entry[key]].is_empty()

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant("a running sequence has its live slot")
    def running_live(self) -> Bool:
        return forall(Seq, lambda q: implies(self.running.has(q), self.is_live(q, self.live[q])))

    @invariant("a live slot is that of a running sequence, which has no other")
    def live_running(self) -> Bool:
        return forall(
            Seq, StateSlot, lambda q, x: implies(self.is_live(q, x), self.running.has(q) & (self.live[q] == x))
        )

    @invariant("a reservation is that of a running sequence: somebody will commit it or give it back")
    def reserved_running(self) -> Bool:
        return forall(Seq, StateSlot, lambda q, x: implies(self.reserved(q, x), self.running.has(q)))

    @invariant("a key that can be matched has its slot")
    def cached_committed(self) -> Bool:
        return forall(Chain, lambda k: implies(self.cached.has(k), self.committed(self.entry[k], k)))

    @invariant("a committed slot can be found under its key")
    def committed_cached(self) -> Bool:
        return forall(
            StateSlot, Chain, lambda x, k: implies(self.committed(x, k), self.cached.has(k) & (self.entry[k] == x))
        )

    @invariant("a checkpoint holds exactly the state of its key's tokens")
    def checkpoint_truth(self) -> Bool:
        return forall(
            StateSlot, Chain, lambda x, k: implies(self.committed(x, k), self.clean.has(x) & (self.content[x] == k))
        )

    @invariant("what has been copied is the state of the key's tokens")
    def copied_truth(self) -> Bool:
        return forall(
            Seq,
            StateSlot,
            lambda q, x: implies(
                self.reserved(q, x) & self.copied.has(x), self.clean.has(x) & (self.content[x] == self.key[x])
            ),
        )

    @invariant("while the live state is copied its sequence stands where the key says")
    def copying_source(self) -> Bool:
        return forall(
            Seq,
            StateSlot,
            lambda q, x: implies(
                self.reserved(q, x) & self.copying.has(x), ~self.waiting.has(q) & (self.key[x] == self.at[q])
            ),
        )

    @invariant("a slot that is copied to is in use, and a copy that is done does not run")
    def copies_used(self) -> Bool:
        return forall(
            StateSlot,
            lambda x: implies(
                self.copying.has(x) | self.copied.has(x),
                ~self.slots.ids.free.has(x) & ~(self.copying.has(x) & self.copied.has(x)),
            ),
        )

    @invariant("no live slot counts as copied to")
    def live_uncopied(self) -> Bool:
        return forall(
            Seq, StateSlot, lambda q, x: implies(self.is_live(q, x), ~self.copying.has(x) & ~self.copied.has(x))
        )

    @invariant("no checkpoint counts as copied to any more")
    def committed_uncopied(self) -> Bool:
        return forall(
            StateSlot, Chain, lambda x, k: implies(self.committed(x, k), ~self.copying.has(x) & ~self.copied.has(x))
        )

    @invariant("nobody saves the state of no tokens")
    def saved_something(self) -> Bool:
        return forall(Seq, StateSlot, lambda q, x: implies(self.reserved(q, x), self.key[x] != self.nothing))

    @invariant("a checkpoint is the state of one token or more")
    def cached_something(self) -> Bool:
        return ~self.cached.has(self.nothing)

    @invariant("a checkpoint is pinned only for sequences that wait for it")
    def pinned_waiting(self) -> Bool:
        return forall(
            StateSlot,
            Seq,
            lambda x, q: implies(self.pins[x].has(q), self.waiting.has(q) & (self.entry[self.at[q]] == x)),
        )

    @invariant("a waiting sequence runs, and the checkpoint of the position where it stands is there and pinned for it")
    def waiting_pinned(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.waiting.has(q),
                self.running.has(q) & self.cached.has(self.at[q]) & self.pins[self.entry[self.at[q]]].has(q),
            ),
        )

    @invariant("what is restored is waited for")
    def restoring_waiting(self) -> Bool:
        return forall(Seq, lambda q: implies(self.restoring.has(q), self.waiting.has(q)))

    @invariant("unless a sequence waits, its live slot holds the state of exactly the tokens up to its position")
    def live_truth(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.running.has(q) & ~self.waiting.has(q),
                self.clean.has(self.live[q]) & (self.content[self.live[q]] == self.at[q]),
            ),
        )

    @invariant("nothing can be read in a free slot")
    def free_unreadable(self) -> Bool:
        return forall(StateSlot, lambda x: implies(self.slots.ids.free.has(x), ~self.clean.has(x)))

    @invariant("the keys in line are those that can be matched")
    def in_line_cached(self) -> Bool:
        return forall(Chain, lambda k: self.line.members.has(k) == self.cached.has(k))

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("no two sequences have one live slot")
    def live_not_shared(self) -> Bool:
        return forall(
            Seq,
            Seq,
            lambda q, r: implies(self.running.has(q) & self.running.has(r) & (self.live[q] == self.live[r]), q == r),
        )

    @theorem("a slot that is reserved cannot be matched, nor can a live one")
    def pending_not_matchable(self) -> Bool:
        return forall(
            Seq,
            StateSlot,
            Chain,
            lambda q, x, k: implies(
                (self.reserved(q, x) | self.is_live(q, x)) & self.cached.has(k), self.entry[k] != x
            ),
        )

    @theorem("no slot is the checkpoint of two keys")
    def one_key(self) -> Bool:
        return forall(
            Chain,
            Chain,
            lambda j, k: implies(self.cached.has(j) & self.cached.has(k) & (self.entry[j] == self.entry[k]), j == k),
        )

    @theorem("the padding slot is never live, reserved or a checkpoint")
    def padding_unused(self) -> Bool:
        padding = self.slots.ids.padding
        return forall(
            Seq,
            Chain,
            lambda q, k: (
                implies(self.running.has(q), self.live[q] != padding)
                & ~self.slots.ids.holders[padding].has(StateOwner.pending(q))
                & implies(self.cached.has(k), self.entry[k] != padding)
            ),
        )

    @theorem("no slot leaks: one that is neither live nor reserved nor to be found under a key is free")
    def no_slot_leak(self) -> Bool:
        return forall(
            StateSlot,
            lambda x: implies(
                self.slots.ids.usable.has(x)
                & forall(Seq, lambda q: ~(self.running.has(q) & (self.live[q] == x)) & ~self.reserved(q, x))
                & forall(Chain, lambda k: ~(self.cached.has(k) & (self.entry[k] == x))),
                self.slots.ids.free.has(x),
            ),
        )

    @theorem("when no sequence runs and no key is left, every slot is free")
    def drained(self) -> Bool:
        return implies(
            forall(Seq, lambda q: ~self.running.has(q)) & forall(Chain, lambda k: ~self.cached.has(k)),
            forall(StateSlot, lambda x: implies(self.slots.ids.usable.has(x), self.slots.ids.free.has(x))),
        )

    @theorem("what a sequence waits for is not evicted")
    def pinned_stays(self) -> Bool:
        return forall(Seq, lambda q: implies(self.waiting.has(q), ~possible(self.evict)(self.at[q])))

    @theorem("a checkpoint that nobody waits for can be evicted")
    def idle_can_go(self) -> Bool:
        return forall(
            Chain,
            lambda k: implies(
                self.cached.has(k)
                & forall(Seq, lambda q: ~(self.waiting.has(q) & (self.entry[self.at[q]] == self.entry[k]))),
                possible(self.evict)(k),
            ),
        )

    @theorem("a match can be given up, unless the copy runs: then it may fail first")
    def match_can_be_given_up(self) -> Bool:
        return forall(
            Seq,
            lambda q: implies(
                self.waiting.has(q),
                (self.restoring.has(q) | possible(self.start_over)(q))
                & implies(self.restoring.has(q), possible(self.restore_failed)(q)),
            ),
        )

    @theorem("at whatever stage a sequence is, its slots can go back: copies fail, reservations end, the live one last")
    def can_be_ended(self) -> Bool:
        return forall(
            Seq,
            StateSlot,
            lambda q, x: (
                implies(self.reserved(q, x) & self.copying.has(x), possible(self.copy_failed)(q, x))
                & implies(self.reserved(q, x) & ~self.copying.has(x), possible(self.abort)(q, x))
                & implies(
                    self.is_live(q, x) & ~self.restoring.has(q) & forall(StateSlot, lambda y: ~self.reserved(q, y)),
                    possible(self.release)(q),
                )
            ),
        )

    @theorem("who has a live slot can go on, unless it has to be restored first or is being saved")
    def can_go_on(self) -> Bool:
        return forall(
            Seq,
            StateSlot,
            Chain,
            lambda q, x, c: implies(
                self.is_live(q, x)
                & ~self.waiting.has(q)
                & self.longer(c, self.at[q])
                & forall(StateSlot, lambda y: ~(self.reserved(q, y) & self.copying.has(y))),
                possible(self.step)(q, c),
            ),
        )

    @theorem("a step can be of any length: it may pass where a shorter one would have ended")
    def step_can_pass(self) -> Bool:
        return forall(
            Seq,
            Chain,
            Chain,
            lambda q, c, d: implies(possible(self.step)(q, c) & self.longer(d, c), possible(self.step)(q, d)),
        )

    @theorem("at the start nothing can be matched and no sequence runs", after=start)
    def starts_empty(self) -> Bool:
        return (
            forall(Chain, lambda k: ~self.cached.has(k))
            & forall(Seq, lambda q: ~self.running.has(q) & ~self.waiting.has(q))
            & forall(StateSlot, lambda x: ~self.copying.has(x) & ~self.copied.has(x) & ~self.clean.has(x))
        )

    @theorem("a sequence begins with the state of no tokens, whatever was in its slot", after=acquire)
    def acquired_is_zero(self, seq: Seq, slot: StateSlot) -> Bool:
        return (
            (self.live[seq] == slot)
            & self.is_live(seq, slot)
            & self.clean.has(slot)
            & (self.content[slot] == self.nothing)
        )

    @theorem("after a step the live slot holds the state of exactly the tokens up to the new position", after=step)
    def stepped_is_exact(self, seq: Seq, chain: Chain) -> Bool:
        return (
            (self.at[seq] == chain)
            & (self.content[self.live[seq]] == chain)
            & self.clean.has(self.live[seq])
            & self.longer(chain, old(self).at[seq])
        )

    @theorem("no step goes over a token twice, and behind a step there is a state to be saved", after=step)
    def step_goes_on(self, seq: Seq, chain: Chain) -> Bool:
        return (chain != old(self).at[seq]) & ~self.longer(old(self).at[seq], chain) & (chain != self.nothing)

    @theorem("a sequence that starts over has the state of no tokens and waits for nothing", after=start_over)
    def started_over(self, seq: Seq) -> Bool:
        return (
            ~self.waiting.has(seq)
            & (self.content[self.live[seq]] == self.nothing)
            & (self.at[seq] == self.nothing)
            & self.clean.has(self.live[seq])
        )

    @theorem("a live slot that is given back is free, and its sequence waits for nothing", after=release)
    def released_is_free(self, seq: Seq) -> Bool:
        return ~self.running.has(seq) & ~self.waiting.has(seq) & self.slots.ids.free.has(old(self).live[seq])

    @theorem("what is matched is pinned: the state of exactly the tokens, one or more, to go on behind", after=match)
    def matched_is_exact(self, seq: Seq, key: Chain) -> Bool:
        return (
            (key != self.nothing)
            & self.waiting.has(seq)
            & (self.at[seq] == key)
            & self.pins[self.entry[key]].has(seq)
            & (self.content[self.entry[key]] == key)
            & self.clean.has(self.entry[key])
        )

    @theorem("what is matched is the newest", after=match)
    def matched_is_newest(self, key: Chain) -> Bool:
        return forall(Chain, lambda k: implies(self.cached.has(k) & (k != key), self.line.older.has((k, key))))

    @theorem("what has been restored is the state of exactly the tokens up to the position", after=restore_done)
    def restored_is_exact(self, seq: Seq) -> Bool:
        return (
            ~self.waiting.has(seq)
            & (self.content[self.live[seq]] == self.at[seq])
            & (self.at[seq] == old(self).at[seq])
            & self.clean.has(self.live[seq])
        )

    @theorem("nobody can read a live slot while it is restored, which it is once at a time", after=restore_started)
    def restoring_unreadable(self, seq: Seq) -> Bool:
        return ~self.clean.has(self.live[seq]) & self.restoring.has(seq) & ~old(self).restoring.has(seq)

    @theorem("a copy that has failed leaves the sequence waiting, to be restored again", after=restore_failed)
    def failed_waits(self, seq: Seq) -> Bool:
        return self.waiting.has(seq) & ~self.restoring.has(seq) & (self.at[seq] == old(self).at[seq])

    @theorem("a slot is reserved for one sequence and one key, and was free", after=reserve)
    def reserved_is_own(self, seq: Seq, slot: StateSlot, key: Chain) -> Bool:
        return self.reserved(seq, slot) & (self.key[slot] == key) & old(self).slots.ids.free.has(slot)

    @theorem("what is reserved for is a state that the sequence has, or to which it may still come", after=reserve)
    def reserved_is_ahead(self, seq: Seq, key: Chain) -> Bool:
        return (self.at[seq] == key) | self.longer(key, self.at[seq])

    @theorem("nobody can read a slot while it is copied to, which it is once at a time", after=copy_started)
    def copying_unreadable(self, slot: StateSlot) -> Bool:
        return self.copying.has(slot) & ~self.clean.has(slot) & ~old(self).copying.has(slot)

    @theorem("a copy that is done is exact", after=copy_done)
    def copy_is_exact(self, slot: StateSlot) -> Bool:
        return self.copied.has(slot) & ~self.copying.has(slot) & (self.content[slot] == self.key[slot])

    @theorem("a copy that has failed may be tried again", after=copy_failed)
    def failed_copy_is_pending(self, seq: Seq, slot: StateSlot) -> Bool:
        return self.reserved(seq, slot) & ~self.copying.has(slot) & ~self.copied.has(slot)

    @theorem("what is committed can be matched, is the newest, and no longer depends on its sequence", after=commit)
    def committed_is_matchable(self, seq: Seq, slot: StateSlot) -> Bool:
        key = self.key[slot]
        return (
            self.cached.has(key)
            & (self.entry[key] == slot)
            & ~self.reserved(seq, slot)
            & ~self.copied.has(slot)
            & forall(Chain, lambda k: implies(self.cached.has(k) & (k != key), self.line.older.has((k, key))))
        )

    @theorem("a reservation that is given back leaves nothing behind", after=abort)
    def aborted_is_free(self, slot: StateSlot) -> Bool:
        return self.slots.ids.free.has(slot) & ~self.copied.has(slot)

    @theorem("an evicted checkpoint was neither live nor reserved nor pinned; its slot is free", after=evict)
    def victim_was_idle(self, key: Chain) -> Bool:
        slot = old(self).entry[key]
        return (
            forall(Seq, lambda q: ~old(self).is_live(q, slot) & ~old(self).reserved(q, slot))
            & forall(Seq, lambda q: ~old(self).pins[slot].has(q))
            & self.slots.ids.free.has(slot)
            & ~self.cached.has(key)
        )

    @theorem("eviction disturbs no other checkpoint", after=evict)
    def evict_is_local(self, key: Chain) -> Bool:
        return forall(Chain, lambda k: implies(k != key, self.cached.has(k) == old(self).cached.has(k)))

    @theorem("the victim is the least recently used of those that could go", after=evict_oldest)
    def victim_is_oldest(self, key: Chain) -> Bool:
        return ~self.cached.has(key) & forall(
            Chain,
            lambda k: implies(old(self).evictable(k) & (k != key), old(self).line.older.has((key, k))),
        )

    @witness("a sequence waits for a checkpoint while another is being saved")
    def waits_and_saves(self) -> Bool:
        return exists(Seq, StateSlot, Seq, lambda q, x, r: self.waiting.has(q) & self.reserved(r, x) & (q != r))

    @witness("two sequences wait for one checkpoint")
    def pinned_twice(self) -> Bool:
        return exists(
            Seq,
            Seq,
            lambda q, r: (q != r) & self.waiting.has(q) & self.waiting.has(r) & (self.at[q] == self.at[r]),
        )
