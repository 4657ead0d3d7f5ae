"""A second tier of blocks in host memory, and the copies to it and back (seed 9.4; class `HierarchyBlockManagerPool`).

What is published on the device can be *offloaded* to a block of the host (D2H), and is found there after the device has
evicted it; then it is *loaded* back to a block that a sequence has taken for it (H2D). What is in neither tier can be
*fetched* to a block of the host from a store outside. A copy takes time: that it starts, that it is done and that it
fails are events of their own. It holds its ends from the start on (of a fetch, the one on the host), and gives them
back one by one when it no longer runs. Meanwhile everything else goes on: the sequence may leave, the key may appear in
another block, all tiers may be reset.

Each tier is a `PrefixCache` with blocks of its own. A copy is a `Pin` there. The tokens of a sequence are, block by
block, what it wants at a place of its table (`key`); a place is computed once its block holds them. Of the store it is
only said that a fetch brings the tokens of its key or fails; chapter `prefetch` has more of it. Reset and sleep are
told apart: a reset forgets every tier, since what was stored before must not come back; sleep loses what is on the
device only.
"""

from __future__ import annotations

from kvspec.spec.language import (
    Bool,
    Ghost,
    Machine,
    Map,
    Set,
    axiom,
    event,
    exists,
    false,
    forall,
    implies,
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
from kvspec.spec.prefix_cache import PrefixCache
from kvspec.spec.sorts import Block, Chain, Index, Pin, Seat, Seq


class Hierarchy(Machine):
    """A copy holds its ends, and nobody reads its target before it is complete."""

    device = use(PrefixCache)
    host = use(PrefixCache)

    table: Map[tuple[Seq, Index], Block]
    key: Map[tuple[Seq, Index], Chain]
    computed: Set[tuple[Seq, Index]]
    writing: Set[tuple[Seq, Index]]
    waiting: Set[tuple[Seq, Index]]
    awaits: Map[tuple[Seq, Index], Pin]
    fresh: Set[tuple[Seq, Index]]
    offloading: Set[Pin]
    loading: Set[Pin]
    fetching: Set[Pin]
    stale: Set[Pin]
    copied: Map[Pin, Chain]
    device_end: Map[Pin, Block]
    host_end: Map[Pin, Block]
    asleep: Bool
    device_new: Ghost[Set[Block]]
    host_new: Ghost[Set[Block]]

    @axiom("blocks of both tiers have the same size: a chain that fills one fills the other")
    def one_size(self) -> Bool:
        return forall(Chain, lambda c: self.device.full(c) == self.host.full(c))

    @init
    def start(self) -> None:
        self.computed.clear()
        self.writing.clear()
        self.waiting.clear()
        self.offloading.clear()
        self.loading.clear()
        self.fetching.clear()
        self.asleep = false()
        self.device_new.clear()
        self.host_new.clear()

    # -- sequences on the device -------------------------------------------------------------------------------------

    @event
    def take(self, seq: Seq, index: Index, block: Block, key: Chain) -> None:
        """A place of a table gets a free block, for these tokens (allocate)."""
        require(~self.asleep)
        require(~self.placed(seq, index))
        require(self.device.blocks.free.has(block))
        self.device.allocate(block, Seat.seq_at(seq, index))
        self.table[seq, index] = block
        self.key[seq, index] = key
        self.fresh.discard((seq, index))

    @event
    def hit(self, seq: Seq, index: Index, key: Chain) -> None:
        """A place of a table gets the block of a key that the device has (allocate_shared)."""
        require(~self.placed(seq, index))
        require(self.device.cached.has(key))
        self.device.match(key, Seat.seq_at(seq, index))
        self.table[seq, index] = self.device.entry[key]
        self.key[seq, index] = key
        self.computed.add((seq, index))
        self.fresh.add((seq, index))

    @event
    def write_started(self, seq: Seq, index: Index) -> None:
        """A step begins to compute the tokens of a place; nobody else has anything to do with its block."""
        require(self.open(seq, index))
        self.writing.add((seq, index))
        self.fresh.add((seq, index))
        self.device_new.add(self.table[seq, index])

    @event
    def write_done(self, seq: Seq, index: Index) -> None:
        """The step has computed them."""
        require(self.writing.has((seq, index)))
        self.device.write(self.table[seq, index], self.key[seq, index])
        self.writing.discard((seq, index))
        self.computed.add((seq, index))

    @event
    def write_failed(self, seq: Seq, index: Index) -> None:
        """The step has failed; the tokens are still to be computed."""
        require(self.writing.has((seq, index)))
        self.writing.discard((seq, index))

    @event
    def publish(self, seq: Seq, index: Index) -> None:
        """A block that was computed since the last reset, as all before it, is matchable on the device now (cache)."""
        require(self.computed.has((seq, index)))
        require(self.is_new(seq, index))
        require(self.device.full(self.key[seq, index]))
        require(~self.device.cached.has(self.key[seq, index]))
        self.device.publish(self.key[seq, index], self.table[seq, index])

    @event
    def give_back(self, seq: Seq, index: Index) -> None:
        """A place of a table loses its block, also while it is loaded: the copy holds on (deallocate)."""
        require(self.placed(seq, index))
        require(~self.writing.has((seq, index)))
        self.device.release(self.table[seq, index], Seat.seq_at(seq, index))
        self.computed.discard((seq, index))
        self.waiting.discard((seq, index))

    # -- from the device to the host ---------------------------------------------------------------------------------

    @event
    def offload_started(self, pin: Pin, key: Chain, target: Block) -> None:
        """The block of a key begins to be copied to a free block of the host."""
        require(self.idle(pin))
        require(self.device.cached.has(key))
        require(self.host.blocks.free.has(target))
        self.device.match(key, Seat.pin_of(pin))
        self.host.allocate(target, Seat.pin_of(pin))
        with when(self.device_new.has(self.device.entry[key])):
            self.host_new.add(target)
        self.device_end[pin] = self.device.entry[key]
        self.host_end[pin] = target
        self.copied[pin] = key
        self.stale.discard(pin)
        self.offloading.add(pin)

    @event
    def offload_done(self, pin: Pin) -> None:
        """The copy is complete and can be matched on the host, unless it is stale or the key is there by now."""
        require(self.offloading.has(pin))
        self.host.write(self.host_end[pin], self.device.content[self.device_end[pin]])
        self.offloading.discard(pin)
        self.show(pin)

    @event
    def offload_failed(self, pin: Pin) -> None:
        """The copy has failed: nobody gets to see its target."""
        require(self.offloading.has(pin))
        self.offloading.discard(pin)

    # -- from the host to the device ---------------------------------------------------------------------------------

    @event
    def load_started(self, pin: Pin, seq: Seq, index: Index) -> None:
        """What the host has of the tokens of a place begins to be copied to its block."""
        key = self.key[seq, index]
        require(self.idle(pin))
        require(self.open(seq, index))
        require(self.host.cached.has(key))
        self.device.share(self.table[seq, index], Seat.pin_of(pin))
        self.host.match(key, Seat.pin_of(pin))
        with when(self.host_new.has(self.host.entry[key])):
            self.device_new.add(self.table[seq, index])
        self.device_end[pin] = self.table[seq, index]
        self.host_end[pin] = self.host.entry[key]
        self.copied[pin] = key
        self.awaits[seq, index] = pin
        self.waiting.add((seq, index))
        self.fresh.add((seq, index))
        self.loading.add(pin)

    @event
    def load_done(self, pin: Pin) -> None:
        """The copy is complete: the place that still waits for it is computed."""
        require(self.loading.has(pin))
        self.device.write(self.device_end[pin], self.host.content[self.host_end[pin]])
        self.loading.discard(pin)
        self.computed.assign_where(lambda seq, index: self.computed.has((seq, index)) | self.wanted(pin, seq, index))
        self.stop_waiting(pin)

    @event
    def load_failed(self, pin: Pin) -> None:
        """The copy has failed: the place that waits for it is to be computed, or loaded again."""
        require(self.loading.has(pin))
        self.loading.discard(pin)
        self.stop_waiting(pin)

    # -- from a store to the host ------------------------------------------------------------------------------------

    @event
    def fetch_started(self, pin: Pin, key: Chain, target: Block) -> None:
        """The tokens of a key begin to be brought to a free block of the host."""
        require(self.idle(pin))
        require(self.host.full(key))
        require(self.host.blocks.free.has(target))
        self.host.allocate(target, Seat.pin_of(pin))
        self.host_new.add(target)
        self.host_end[pin] = target
        self.copied[pin] = key
        self.stale.discard(pin)
        self.fetching.add(pin)

    @event
    def fetch_done(self, pin: Pin) -> None:
        """They are there and can be matched on the host, unless the copy is stale or the key is there by now."""
        require(self.fetching.has(pin))
        self.host.write(self.host_end[pin], self.copied[pin])
        self.fetching.discard(pin)
        self.show(pin)

    @event
    def fetch_failed(self, pin: Pin) -> None:
        """The store has failed, or has them no more: nobody gets to see the target."""
        require(self.fetching.has(pin))
        self.fetching.discard(pin)

    # -- the ends of a copy ------------------------------------------------------------------------------------------

    @event
    def release_device(self, pin: Pin) -> None:
        """A copy that no longer runs gives its block of the device back."""
        require(~self.running(pin))
        require(self.on_device(pin))
        self.device.release(self.device_end[pin], Seat.pin_of(pin))

    @event
    def release_host(self, pin: Pin) -> None:
        """A copy that no longer runs gives its block of the host back."""
        require(~self.running(pin))
        require(self.on_host(pin))
        self.host.release(self.host_end[pin], Seat.pin_of(pin))

    # -- whole tiers -------------------------------------------------------------------------------------------------

    @event
    def evict_device(self, key: Chain) -> None:
        """A key of the device is forgotten whose block neither a sequence nor a copy holds."""
        require(self.device.blocks.holders[self.device.entry[key]].is_only(Seat.cache_of(key)))
        self.device.evict(key)

    @event
    def evict_host(self, key: Chain) -> None:
        """A key of the host is forgotten whose block no copy holds."""
        require(self.host.blocks.holders[self.host.entry[key]].is_only(Seat.cache_of(key)))
        self.host.evict(key)

    @event
    def reset(self) -> None:
        """All tiers forget all keys; what is being copied is not to become visible any more, nor what is written."""
        self.device.reset()
        self.host.reset()
        self.fresh.clear()
        self.stale.assign_where(lambda pin: self.to_host(pin))
        self.device_new.clear()
        self.host_new.clear()

    @event
    def sleep(self) -> None:
        """The device gives up its memory, which nobody uses; the host keeps what it has."""
        require(
            forall(
                Block,
                Seat,
                lambda b, h: implies(self.device.blocks.holders[b].has(h), h.is_case(Seat.cache_of)),
            )
        )
        self.device.reset()
        self.device_new.clear()
        self.asleep = true()

    @event
    def wake(self) -> None:
        """The device has memory again; nothing is in it."""
        self.asleep = false()

    # -- words -------------------------------------------------------------------------------------------------------

    def seated(self, block: Block, seq: Seq, index: Index) -> Bool:
        """The block is held for this place of the sequence's table."""
        return self.device.blocks.holders[block].has(Seat.seq_at(seq, index))

    def placed(self, seq: Seq, index: Index) -> Bool:
        """The place has a block."""
        return self.seated(self.table[seq, index], seq, index)

    def open(self, seq: Seq, index: Index) -> Bool:
        """The place has a block for itself that is still to be filled, and no step is at it."""
        return (
            self.device.blocks.holders[self.table[seq, index]].is_only(Seat.seq_at(seq, index))
            & ~self.computed.has((seq, index))
            & ~self.writing.has((seq, index))
        )

    def is_new(self, seq: Seq, index: Index) -> Bool:
        """What the place has is not from before the last reset, nor is what it was computed from."""
        before = forall(Index, lambda i: implies((i < index) & self.computed.has((seq, i)), self.fresh.has((seq, i))))
        return self.fresh.has((seq, index)) & before

    def wanted(self, pin: Pin, seq: Seq, index: Index) -> Bool:
        """The place waits for this copy."""
        return self.waiting.has((seq, index)) & (self.awaits[seq, index] == pin)

    def stop_waiting(self, pin: Pin) -> None:
        self.waiting.assign_where(lambda seq, index: self.waiting.has((seq, index)) & (self.awaits[seq, index] != pin))

    def to_host(self, pin: Pin) -> Bool:
        """The copy runs, and writes its block of the host."""
        return self.offloading.has(pin) | self.fetching.has(pin)

    def running(self, pin: Pin) -> Bool:
        return self.to_host(pin) | self.loading.has(pin)

    def show(self, pin: Pin) -> None:
        """What a copy has brought to the host can be matched there, unless it is stale or the key is there by now."""
        with when(~self.stale.has(pin) & ~self.host.cached.has(self.copied[pin])):
            self.host.publish(self.copied[pin], self.host_end[pin])

    def on_device(self, pin: Pin) -> Bool:
        """The copy holds its block of the device."""
        return self.device.blocks.holders[self.device_end[pin]].has(Seat.pin_of(pin))

    def on_host(self, pin: Pin) -> Bool:
        """The copy holds its block of the host."""
        return self.host.blocks.holders[self.host_end[pin]].has(Seat.pin_of(pin))

    def idle(self, pin: Pin) -> Bool:
        """There is no such copy, or nothing of it is left."""
        return ~self.on_device(pin) & ~self.on_host(pin)

    # -- invariants: who holds what ----------------------------------------------------------------------------------

    @invariant("a block is held for a place only if it stands there")
    def seated_in_table(self) -> Bool:
        return forall(Block, Seq, Index, lambda b, s, i: implies(self.seated(b, s, i), self.table[s, i] == b))

    @invariant("a copy holds no block of the device but its end")
    def device_end_only(self) -> Bool:
        return forall(
            Block,
            Pin,
            lambda b, p: implies(self.device.blocks.holders[b].has(Seat.pin_of(p)), self.device_end[p] == b),
        )

    @invariant("a copy holds no block of the host but its end")
    def host_end_only(self) -> Bool:
        return forall(
            Block,
            Pin,
            lambda b, p: implies(self.host.blocks.holders[b].has(Seat.pin_of(p)), self.host_end[p] == b),
        )

    @invariant("a running copy holds both of its ends; a fetch has none on the device")
    def running_holds(self) -> Bool:
        return forall(
            Pin,
            lambda p: implies(self.running(p), self.on_host(p) & (self.on_device(p) == ~self.fetching.has(p))),
        )

    @invariant("a copy runs in one direction")
    def one_direction(self) -> Bool:
        return forall(
            Pin,
            lambda p: ~(self.to_host(p) & self.loading.has(p)) & ~(self.offloading.has(p) & self.fetching.has(p)),
        )

    @invariant("on the host there are but copies and keys")
    def host_without_tables(self) -> Bool:
        return forall(Block, Seq, Index, lambda b, s, i: ~self.host.blocks.holders[b].has(Seat.seq_at(s, i)))

    # -- invariants: places ------------------------------------------------------------------------------------------

    @invariant("what is computed, written or waited for has a block")
    def busy_placed(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                self.computed.has((s, i)) | self.writing.has((s, i)) | self.waiting.has((s, i)), self.placed(s, i)
            ),
        )

    @invariant("a place is computed, or being written, or waits for a copy: one of them at most")
    def one_stage(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: (
                ~(self.computed.has((s, i)) & self.writing.has((s, i)))
                & ~(self.computed.has((s, i)) & self.waiting.has((s, i)))
                & ~(self.writing.has((s, i)) & self.waiting.has((s, i)))
            ),
        )

    @invariant("what a place waits for is a running load of its tokens to its block")
    def wish(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                self.waiting.has((s, i)),
                self.loading.has(self.awaits[s, i])
                & (self.device_end[self.awaits[s, i]] == self.table[s, i])
                & (self.copied[self.awaits[s, i]] == self.key[s, i]),
            ),
        )

    @invariant("the block of a place that is not computed has no key")
    def uncomputed_unkeyed(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            Chain,
            lambda b, s, i, k: implies(self.seated(b, s, i) & ~self.computed.has((s, i)), ~self.device.keyed(b, k)),
        )

    @invariant("the block of a place that is not computed stands nowhere else")
    def uncomputed_unshared(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            Seq,
            Index,
            lambda b, s, i, t, j: implies(
                self.seated(b, s, i) & ~self.computed.has((s, i)) & self.seated(b, t, j), (s == t) & (i == j)
            ),
        )

    @invariant("no copy reads or writes a block that is being computed")
    def writing_alone(self) -> Bool:
        return forall(
            Seq,
            Index,
            Pin,
            lambda s, i, p: implies(
                self.writing.has((s, i)), ~self.device.blocks.holders[self.table[s, i]].has(Seat.pin_of(p))
            ),
        )

    @invariant("a place that is computed can read its tokens")
    def computed_truth(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                self.computed.has((s, i)),
                self.device.covers(self.device.content[self.table[s, i]], self.key[s, i]),
            ),
        )

    # -- invariants: copies ------------------------------------------------------------------------------------------

    @invariant("the target of a running load has no key")
    def load_unkeyed(self) -> Bool:
        return forall(Pin, Chain, lambda p, k: implies(self.loading.has(p), ~self.device.keyed(self.device_end[p], k)))

    @invariant("the target of a running load is the end of no other copy")
    def load_alone(self) -> Bool:
        return forall(
            Pin,
            Pin,
            lambda p, r: implies(
                self.loading.has(p) & self.device.blocks.holders[self.device_end[p]].has(Seat.pin_of(r)), p == r
            ),
        )

    @invariant("nobody reads the target of a running load")
    def load_unread(self) -> Bool:
        return forall(
            Pin,
            Seq,
            Index,
            lambda p, s, i: implies(
                self.loading.has(p) & self.seated(self.device_end[p], s, i), ~self.computed.has((s, i))
            ),
        )

    @invariant("on the host, the target of a running copy is held by that copy alone")
    def target_alone(self) -> Bool:
        return forall(
            Pin,
            lambda p: implies(self.to_host(p), self.host.blocks.holders[self.host_end[p]].is_only(Seat.pin_of(p))),
        )

    @invariant("what is copied to the host fills a block")
    def target_filled(self) -> Bool:
        return forall(Pin, lambda p: implies(self.to_host(p), self.host.full(self.copied[p])))

    @invariant("the source of a running offload holds what is copied")
    def offload_source(self) -> Bool:
        return forall(
            Pin,
            lambda p: implies(self.offloading.has(p), self.device.content[self.device_end[p]] == self.copied[p]),
        )

    @invariant("the source of a running load holds what is copied")
    def load_source(self) -> Bool:
        return forall(
            Pin,
            lambda p: implies(self.loading.has(p), self.host.content[self.host_end[p]] == self.copied[p]),
        )

    # -- invariants: since the last reset ----------------------------------------------------------------------------

    @invariant("what a fresh place has is not from before the last reset")
    def fresh_is_new(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(self.placed(s, i) & self.fresh.has((s, i)), self.device_new.has(self.table[s, i])),
        )

    @invariant("what a copy brings that is not stale is not from before the last reset")
    def brought_is_new(self) -> Bool:
        return forall(
            Pin,
            lambda p: implies(self.to_host(p) & ~self.stale.has(p), self.host_new.has(self.host_end[p])),
        )

    @invariant("what can be matched on the device is not from before the last reset, nor from before it slept")
    def device_keys_new(self) -> Bool:
        return forall(Block, Chain, lambda b, k: implies(self.device.keyed(b, k), self.device_new.has(b)))

    @invariant("what can be matched on the host is not from before the last reset")
    def host_keys_new(self) -> Bool:
        return forall(Block, Chain, lambda b, k: implies(self.host.keyed(b, k), self.host_new.has(b)))

    @invariant("while the device sleeps, none of its blocks is held")
    def asleep_unheld(self) -> Bool:
        return implies(self.asleep, forall(Block, Seat, lambda b, h: ~self.device.blocks.holders[b].has(h)))

    @invariant("no key is published before its block is complete")
    def nothing_promised(self) -> Bool:
        return forall(Chain, lambda k: ~self.device.pending.has(k) & ~self.host.pending.has(k))

    # -- theorems: what everybody relies on --------------------------------------------------------------------------

    @theorem("what can be matched in a tier is complete: its block holds exactly the tokens of its key")
    def visible_is_complete(self) -> Bool:
        return forall(
            Chain,
            lambda k: (
                implies(self.device.cached.has(k), self.device.content[self.device.entry[k]] == k)
                & implies(self.host.cached.has(k), self.host.content[self.host.entry[k]] == k)
            ),
        )

    @theorem("no end of a running copy is free")
    def ends_not_free(self) -> Bool:
        return forall(
            Pin,
            lambda p: implies(
                self.running(p),
                ~self.host.blocks.free.has(self.host_end[p])
                & (self.fetching.has(p) | ~self.device.blocks.free.has(self.device_end[p])),
            ),
        )

    @theorem("no key leads to what a running copy writes")
    def target_unseen(self) -> Bool:
        return forall(
            Pin,
            Chain,
            lambda p, k: (
                implies(self.to_host(p) & self.host.cached.has(k), self.host.entry[k] != self.host_end[p])
                & implies(self.loading.has(p) & self.device.cached.has(k), self.device.entry[k] != self.device_end[p])
            ),
        )

    @theorem("who reads its tokens on the device reads no block that is being written, by a step or by a copy")
    def reads_no_write(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                self.computed.has((s, i)),
                forall(
                    Seq,
                    Index,
                    lambda t, j: ~(self.writing.has((t, j)) & (self.table[t, j] == self.table[s, i])),
                )
                & forall(Pin, lambda p: ~(self.loading.has(p) & (self.device_end[p] == self.table[s, i]))),
            ),
        )

    @theorem("no copy reads a block that another copy writes, and no two write the same")
    def copies_apart(self) -> Bool:
        return forall(
            Pin,
            Pin,
            lambda p, r: (
                implies(self.to_host(p) & self.running(r) & (p != r), self.host_end[p] != self.host_end[r])
                & implies(
                    self.loading.has(p) & (self.offloading.has(r) | self.loading.has(r)) & (p != r),
                    self.device_end[p] != self.device_end[r],
                )
            ),
        )

    @theorem("no place and no copy has a padding block, and no key leads to one, in either tier")
    def padding_apart(self) -> Bool:
        device, host = self.device, self.host
        return (
            forall(Seq, Index, lambda s, i: implies(self.placed(s, i), self.table[s, i] != device.blocks.padding))
            & forall(Pin, lambda p: implies(self.on_device(p), self.device_end[p] != device.blocks.padding))
            & forall(Pin, lambda p: implies(self.on_host(p), self.host_end[p] != host.blocks.padding))
            & forall(
                Chain,
                lambda k: (
                    implies(device.cached.has(k), device.entry[k] != device.blocks.padding)
                    & implies(host.cached.has(k), host.entry[k] != host.blocks.padding)
                ),
            )
        )

    @theorem("when no place has a block, no copy an end and no tier a key, every block of both tiers is free")
    def drained(self) -> Bool:
        return implies(
            forall(Seq, Index, lambda s, i: ~self.placed(s, i))
            & forall(Pin, lambda p: self.idle(p))
            & forall(Chain, lambda k: ~self.device.cached.has(k) & ~self.host.cached.has(k)),
            forall(
                Block,
                lambda b: (
                    implies(self.device.blocks.usable.has(b), self.device.blocks.free.has(b))
                    & implies(self.host.blocks.usable.has(b), self.host.blocks.free.has(b))
                ),
            ),
        )

    # -- theorems: what is possible ----------------------------------------------------------------------------------

    @theorem("unless the device sleeps, a place without a block can have any that nobody holds, whatever its tokens")
    def can_take(self) -> Bool:
        return forall(
            Seq,
            Index,
            Block,
            Chain,
            lambda s, i, b, k: implies(
                ~self.asleep
                & forall(Block, lambda c: ~self.seated(c, s, i))
                & self.device.blocks.usable.has(b)
                & self.device.blocks.holders[b].is_empty(),
                possible(self.take)(s, i, b, k),
            ),
        )

    @theorem("a place without a block can have that of any key of the device")
    def can_hit(self) -> Bool:
        return forall(
            Seq,
            Index,
            Chain,
            lambda s, i, k: implies(
                self.device.cached.has(k) & forall(Block, lambda b: ~self.seated(b, s, i)), possible(self.hit)(s, i, k)
            ),
        )

    @theorem("what is neither computed nor being written can be computed, unless a copy has still to let go of it")
    def can_write(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                self.unfilled(s, i) & forall(Pin, lambda p: ~self.holds_table(p, s, i)),
                possible(self.write_started)(s, i),
            ),
        )

    @theorem("and it can be loaded, by any copy that has nothing, if the host has its tokens")
    def can_load(self) -> Bool:
        return forall(
            Pin,
            Seq,
            Index,
            lambda p, s, i: implies(
                self.unfilled(s, i)
                & forall(Pin, lambda r: ~self.holds_table(r, s, i))
                & self.holds_nothing(p)
                & self.host.cached.has(self.key[s, i]),
                possible(self.load_started)(p, s, i),
            ),
        )

    @theorem("what the device has can be offloaded to any block of the host that nobody holds")
    def can_offload(self) -> Bool:
        return forall(
            Pin,
            Chain,
            Block,
            lambda p, k, b: implies(
                self.holds_nothing(p)
                & self.device.cached.has(k)
                & self.host.blocks.usable.has(b)
                & self.host.blocks.holders[b].is_empty(),
                possible(self.offload_started)(p, k, b),
            ),
        )

    @theorem("whatever fills a block can be fetched to any block of the host that nobody holds")
    def can_fetch(self) -> Bool:
        return forall(
            Pin,
            Chain,
            Block,
            lambda p, k, b: implies(
                self.holds_nothing(p)
                & self.host.full(k)
                & self.host.blocks.usable.has(b)
                & self.host.blocks.holders[b].is_empty(),
                possible(self.fetch_started)(p, k, b),
            ),
        )

    @theorem("what was computed since the last reset can be published, unless it is")
    def can_publish(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: implies(
                self.computed.has((s, i))
                & self.is_new(s, i)
                & self.device.full(self.key[s, i])
                & ~self.device.cached.has(self.key[s, i]),
                possible(self.publish)(s, i),
            ),
        )

    @theorem("a step that computes a place can end or fail, and any other place can be given back")
    def can_give_back(self) -> Bool:
        return forall(
            Block,
            Seq,
            Index,
            lambda b, s, i: implies(
                self.seated(b, s, i),
                implies(self.writing.has((s, i)), possible(self.write_done)(s, i) & possible(self.write_failed)(s, i))
                & implies(~self.writing.has((s, i)), possible(self.give_back)(s, i)),
            ),
        )

    @theorem("a block is not held for ever: a copy that runs can end or fail, and one that does not can let go of it")
    def copies_let_go(self) -> Bool:
        return forall(
            Pin,
            Block,
            lambda p, b: (
                implies(self.offloading.has(p), possible(self.offload_done)(p) & possible(self.offload_failed)(p))
                & implies(self.loading.has(p), possible(self.load_done)(p) & possible(self.load_failed)(p))
                & implies(self.fetching.has(p), possible(self.fetch_done)(p) & possible(self.fetch_failed)(p))
                & implies(
                    ~self.running(p) & self.device.blocks.holders[b].has(Seat.pin_of(p)),
                    possible(self.release_device)(p),
                )
                & implies(
                    ~self.running(p) & self.host.blocks.holders[b].has(Seat.pin_of(p)), possible(self.release_host)(p)
                )
            ),
        )

    @theorem("a key can be evicted exactly if neither a sequence nor a copy holds its block")
    def can_evict(self) -> Bool:
        return forall(
            Chain,
            lambda k: (
                implies(
                    self.device.cached.has(k),
                    possible(self.evict_device)(k)
                    == (
                        forall(Seq, Index, lambda s, i: ~self.seated(self.device.entry[k], s, i))
                        & forall(Pin, lambda p: ~self.device.blocks.holders[self.device.entry[k]].has(Seat.pin_of(p)))
                    ),
                )
                & implies(
                    self.host.cached.has(k),
                    possible(self.evict_host)(k)
                    == forall(Pin, lambda p: ~self.host.blocks.holders[self.host.entry[k]].has(Seat.pin_of(p))),
                )
            ),
        )

    @theorem("the device can sleep exactly if no place has a block and no copy holds one there")
    def can_sleep(self) -> Bool:
        return possible(self.sleep)() == forall(
            Block,
            lambda b: (
                forall(Seq, Index, lambda s, i: ~self.seated(b, s, i))
                & forall(Pin, lambda p: ~self.device.blocks.holders[b].has(Seat.pin_of(p)))
            ),
        )

    def unfilled(self, seq: Seq, index: Index) -> Bool:
        """The place has a block that is neither computed nor being written."""
        return (
            exists(Block, lambda b: self.seated(b, seq, index))
            & ~self.computed.has((seq, index))
            & ~self.writing.has((seq, index))
        )

    def holds_table(self, pin: Pin, seq: Seq, index: Index) -> Bool:
        """The copy holds the block of the place."""
        return self.device.blocks.holders[self.table[seq, index]].has(Seat.pin_of(pin))

    def holds_nothing(self, pin: Pin) -> Bool:
        """The copy holds no block of either tier."""
        return forall(
            Block,
            lambda b: (
                ~self.device.blocks.holders[b].has(Seat.pin_of(pin))
                & ~self.host.blocks.holders[b].has(Seat.pin_of(pin))
            ),
        )

    # -- theorems: steps ---------------------------------------------------------------------------------------------

    @theorem("at the start no tier has a key, nothing runs, and the device is awake", after=start)
    def starts_empty(self) -> Bool:
        return (
            forall(Chain, lambda k: ~self.device.cached.has(k) & ~self.host.cached.has(k))
            & forall(Pin, lambda p: ~self.running(p))
            & forall(Seq, Index, lambda s, i: ~self.placed(s, i))
            & ~self.asleep
            & forall(Block, lambda b: ~self.device_new.has(b) & ~self.host_new.has(b))
        )

    @theorem("a block that is taken was free, has nothing in it, and is for these tokens", after=take)
    def taken_is_open(self, seq: Seq, index: Index, block: Block, key: Chain) -> Bool:
        return (
            self.open(seq, index)
            & (self.table[seq, index] == block)
            & (self.key[seq, index] == key)
            & old(self).device.blocks.free.has(block)
            & (self.device.content[block] == self.device.nothing)
        )

    @theorem("a hit is computed, exactly as its key says, and could have been computed just now", after=hit)
    def hit_is_exact(self, seq: Seq, index: Index, key: Chain) -> Bool:
        return (
            self.placed(seq, index)
            & self.computed.has((seq, index))
            & self.fresh.has((seq, index))
            & (self.key[seq, index] == key)
            & (self.device.content[self.table[seq, index]] == key)
        )

    @theorem("a place gets no second block", after=take)
    def taken_once(self, seq: Seq, index: Index) -> Bool:
        return forall(Block, lambda b: ~old(self).seated(b, seq, index))

    @theorem("a place gets no second block by a hit", after=hit)
    def hit_once(self, seq: Seq, index: Index) -> Bool:
        return forall(Block, lambda b: ~old(self).seated(b, seq, index))

    @theorem("what begins to be computed was neither computed nor loaded, nor is it a copy's end", after=write_started)
    def written_alone(self, seq: Seq, index: Index) -> Bool:
        return (
            self.writing.has((seq, index))
            & self.fresh.has((seq, index))
            & ~old(self).writing.has((seq, index))
            & ~old(self).computed.has((seq, index))
            & ~old(self).waiting.has((seq, index))
            & forall(Pin, lambda p: ~self.holds_table(p, seq, index))
        )

    @theorem("what was written is computed and can be read", after=write_done)
    def written_is_computed(self, seq: Seq, index: Index) -> Bool:
        return (
            old(self).writing.has((seq, index))
            & ~self.writing.has((seq, index))
            & self.computed.has((seq, index))
            & self.device.covers(self.device.content[self.table[seq, index]], self.key[seq, index])
        )

    @theorem("a step that fails leaves its place open, and counts as nothing", after=write_failed)
    def failed_write_is_open(self, seq: Seq, index: Index) -> Bool:
        return old(self).writing.has((seq, index)) & self.open(seq, index)

    @theorem("what is published can be matched, and was computed since the last reset, as all before it", after=publish)
    def published_is_visible(self, seq: Seq, index: Index) -> Bool:
        return (
            self.device.cached.has(self.key[seq, index])
            & (self.device.entry[self.key[seq, index]] == self.table[seq, index])
            & old(self).computed.has((seq, index))
            & old(self).fresh.has((seq, index))
            & forall(Index, lambda i: implies((i < index) & self.computed.has((seq, i)), self.fresh.has((seq, i))))
        )

    @theorem("a place that is given back has no block, and nobody computes or awaits it", after=give_back)
    def given_back_is_empty(self, seq: Seq, index: Index) -> Bool:
        return (
            forall(Block, lambda b: ~self.seated(b, seq, index))
            & old(self).placed(seq, index)
            & ~old(self).writing.has((seq, index))
            & ~self.computed.has((seq, index))
            & ~self.waiting.has((seq, index))
        )

    @theorem("a sequence that leaves takes nothing from a copy or a key", after=give_back)
    def copies_hold_on(self) -> Bool:
        return forall(Pin, lambda p: self.on_device(p) == old(self).on_device(p)) & forall(
            Chain, lambda k: self.device.cached.has(k) == old(self).device.cached.has(k)
        )

    @theorem("an offload runs from the block of the key to a free one; the host sees nothing", after=offload_started)
    def offload_begun(self, pin: Pin, key: Chain, target: Block) -> Bool:
        return (
            self.offloading.has(pin)
            & ~self.stale.has(pin)
            & ~old(self).running(pin)
            & old(self).idle(pin)
            & (self.copied[pin] == key)
            & (self.device_end[pin] == self.device.entry[key])
            & (self.host_end[pin] == target)
            & old(self).device.cached.has(key)
            & old(self).host.blocks.free.has(target)
            & forall(Chain, lambda k: self.host.cached.has(k) == old(self).host.cached.has(k))
        )

    @theorem("what was offloaded is found on the host, unless a reset came between", after=offload_done)
    def offloaded_is_found(self, pin: Pin) -> Bool:
        return (
            old(self).offloading.has(pin)
            & ~self.offloading.has(pin)
            & implies(~old(self).stale.has(pin), self.host.cached.has(self.copied[pin]))
        )

    @theorem("a copy that a reset overtook brings nothing back; no other key comes or goes", after=offload_done)
    def stale_stays_out(self, pin: Pin) -> Bool:
        return self.shows_at_most(pin)

    @theorem("an offload that fails shows nothing and loses nothing", after=offload_failed)
    def failed_offload_is_nothing(self, pin: Pin) -> Bool:
        return old(self).offloading.has(pin) & ~self.running(pin) & self.same_keys() & self.on_device(pin)

    @theorem("a load runs from the block of the key to that of the place, which waits for it", after=load_started)
    def load_begun(self, pin: Pin, seq: Seq, index: Index) -> Bool:
        return (
            self.loading.has(pin)
            & old(self).idle(pin)
            & ~old(self).running(pin)
            & old(self).open(seq, index)
            & self.wanted(pin, seq, index)
            & (self.copied[pin] == self.key[seq, index])
            & (self.host_end[pin] == self.host.entry[self.key[seq, index]])
            & (self.device_end[pin] == self.table[seq, index])
            & self.fresh.has((seq, index))
            & ~self.computed.has((seq, index))
        )

    @theorem("a load that is done fills the place that still waits for it, and no other", after=load_done)
    def loaded_is_computed(self, pin: Pin) -> Bool:
        return (
            old(self).loading.has(pin)
            & ~self.running(pin)
            & self.device.covers(self.device.content[self.device_end[pin]], self.copied[pin])
            & forall(
                Seq,
                Index,
                lambda s, i: (
                    (self.computed.has((s, i)) == (old(self).computed.has((s, i)) | old(self).wanted(pin, s, i)))
                    & (self.waiting.has((s, i)) == (old(self).waiting.has((s, i)) & ~old(self).wanted(pin, s, i)))
                ),
            )
        )

    @theorem("a load that fails fills nothing: its place is still to be filled, and no key is lost", after=load_failed)
    def failed_load_is_nothing(self, pin: Pin) -> Bool:
        return (
            old(self).loading.has(pin)
            & ~self.running(pin)
            & self.same_keys()
            & self.on_host(pin)
            & forall(
                Seq,
                Index,
                lambda s, i: (
                    (self.computed.has((s, i)) == old(self).computed.has((s, i)))
                    & (self.waiting.has((s, i)) == (old(self).waiting.has((s, i)) & ~old(self).wanted(pin, s, i)))
                    & implies(old(self).wanted(pin, s, i), self.unfilled(s, i))
                ),
            )
        )

    @theorem("a fetch needs nothing but a free block of the host, and shows nothing", after=fetch_started)
    def fetch_begun(self, pin: Pin, key: Chain, target: Block) -> Bool:
        return (
            self.fetching.has(pin)
            & ~self.stale.has(pin)
            & ~old(self).running(pin)
            & old(self).idle(pin)
            & (self.copied[pin] == key)
            & (self.host_end[pin] == target)
            & old(self).host.blocks.free.has(target)
            & ~self.on_device(pin)
            & self.same_keys()
        )

    @theorem("what was fetched is the key's tokens, found on the host unless a reset came between", after=fetch_done)
    def fetched_is_found(self, pin: Pin) -> Bool:
        return (
            old(self).fetching.has(pin)
            & ~self.running(pin)
            & (self.host.content[self.host_end[pin]] == self.copied[pin])
            & implies(~old(self).stale.has(pin), self.host.cached.has(self.copied[pin]))
        )

    @theorem("a fetch that a reset overtook brings nothing back; no other key comes or goes", after=fetch_done)
    def stale_fetch_stays_out(self, pin: Pin) -> Bool:
        return self.shows_at_most(pin)

    @theorem("a fetch that fails shows nothing and loses nothing", after=fetch_failed)
    def failed_fetch_is_nothing(self, pin: Pin) -> Bool:
        return old(self).fetching.has(pin) & ~self.running(pin) & self.same_keys() & self.on_host(pin)

    @theorem("only a copy that does not run lets go of its block of the device", after=release_device)
    def device_end_released(self, pin: Pin) -> Bool:
        return ~self.on_device(pin) & old(self).on_device(pin) & ~old(self).running(pin)

    @theorem("only a copy that does not run lets go of its block of the host", after=release_host)
    def host_end_released(self, pin: Pin) -> Bool:
        return ~self.on_host(pin) & old(self).on_host(pin) & ~old(self).running(pin)

    @theorem("a key that the device evicts is gone there; the host keeps its own", after=evict_device)
    def evicted_on_device(self, key: Chain) -> Bool:
        return (
            ~self.device.cached.has(key)
            & self.device.blocks.free.has(old(self).device.entry[key])
            & forall(Chain, lambda k: self.host.cached.has(k) == old(self).host.cached.has(k))
        )

    @theorem("a key that the host evicts is gone there; the device keeps its own", after=evict_host)
    def evicted_on_host(self, key: Chain) -> Bool:
        return (
            ~self.host.cached.has(key)
            & self.host.blocks.free.has(old(self).host.entry[key])
            & forall(Chain, lambda k: self.device.cached.has(k) == old(self).device.cached.has(k))
        )

    @theorem("a reset forgets every key of every tier, and what is being copied stays out", after=reset)
    def reset_forgets(self) -> Bool:
        return (
            forall(Chain, lambda k: ~self.device.cached.has(k) & ~self.host.cached.has(k))
            & forall(Pin, lambda p: implies(self.to_host(p), self.stale.has(p)))
            & forall(Seq, Index, lambda s, i: ~self.fresh.has((s, i)))
            & forall(Block, lambda b: ~self.device_new.has(b) & ~self.host_new.has(b))
        )

    @theorem("a reset takes no block from a place or a copy", after=reset)
    def reset_keeps_holders(self) -> Bool:
        return forall(
            Seq,
            Index,
            lambda s, i: (
                (self.placed(s, i) == old(self).placed(s, i))
                & (self.computed.has((s, i)) == old(self).computed.has((s, i)))
            ),
        ) & forall(
            Pin,
            lambda p: (
                (self.on_device(p) == old(self).on_device(p))
                & (self.on_host(p) == old(self).on_host(p))
                & (self.running(p) == old(self).running(p))
            ),
        )

    @theorem("a device that sleeps has no key and nobody uses it; the host has what it had", after=sleep)
    def sleep_loses_device(self) -> Bool:
        return (
            self.asleep
            & forall(Chain, lambda k: ~self.device.cached.has(k))
            & forall(Block, lambda b: ~self.device_new.has(b))
            & forall(Seq, Index, lambda s, i: ~old(self).placed(s, i))
            & forall(Pin, lambda p: ~old(self).on_device(p))
            & forall(Chain, lambda k: self.host.cached.has(k) == old(self).host.cached.has(k))
        )

    @theorem("after the device wakes nothing can be matched there, and every block is free", after=wake)
    def awake_and_empty(self) -> Bool:
        return ~self.asleep & implies(
            old(self).asleep,
            forall(Chain, lambda k: ~self.device.cached.has(k))
            & forall(Block, lambda b: implies(self.device.blocks.usable.has(b), self.device.blocks.free.has(b))),
        )

    def shows_at_most(self, pin: Pin) -> Bool:
        """The host has every key where it was, and besides them at most that of the copy, unless it is stale."""
        return forall(
            Chain,
            lambda k: implies(
                old(self).stale.has(pin) | (k != self.copied[pin]),
                self.host.cached.has(k) == old(self).host.cached.has(k),
            ),
        ) & forall(
            Chain,
            lambda k: implies(
                old(self).host.cached.has(k), self.host.cached.has(k) & (self.host.entry[k] == old(self).host.entry[k])
            ),
        )

    def same_keys(self) -> Bool:
        """Each tier has the keys that it had."""
        return forall(
            Chain,
            lambda k: (
                (self.device.cached.has(k) == old(self).device.cached.has(k))
                & (self.host.cached.has(k) == old(self).host.cached.has(k))
            ),
        )

    # -- witnesses ---------------------------------------------------------------------------------------------------

    @witness("a place waits for a load while the host has its tokens under a key")
    def a_load(self) -> Bool:
        return exists(Seq, Index, lambda s, i: self.waiting.has((s, i)) & self.host.cached.has(self.key[s, i]))

    @witness("a load runs that nobody waits for any more")
    def an_unwanted_load(self) -> Bool:
        return exists(Pin, lambda p: self.loading.has(p) & forall(Seq, Index, lambda s, i: ~self.wanted(p, s, i)))

    @witness("an offload runs whose key the host has by now")
    def a_late_offload(self) -> Bool:
        return exists(Pin, lambda p: self.offloading.has(p) & ~self.stale.has(p) & self.host.cached.has(self.copied[p]))

    @witness("a reset has overtaken an offload")
    def a_stale_offload(self) -> Bool:
        return exists(Pin, lambda p: self.offloading.has(p) & self.stale.has(p))

    @witness("a fetch runs whose key the host has by now")
    def a_late_fetch(self) -> Bool:
        return exists(Pin, lambda p: self.fetching.has(p) & ~self.stale.has(p) & self.host.cached.has(self.copied[p]))

    @witness("a reset has overtaken a fetch")
    def a_stale_fetch(self) -> Bool:
        return exists(Pin, lambda p: self.fetching.has(p) & self.stale.has(p))

    @witness("the device sleeps while something is fetched that no tier has")
    def a_fetch_in_sleep(self) -> Bool:
        return self.asleep & exists(Pin, lambda p: self.fetching.has(p) & ~self.host.cached.has(self.copied[p]))

    @witness("the device sleeps, and the host has a key")
    def asleep_with_host(self) -> Bool:
        return self.asleep & exists(Chain, lambda k: self.host.cached.has(k))
