"""Published blocks that later requests may reuse (seed 4.2 and 4.3; class `PrefixCache`).

The cache is a map from keys to blocks and one more holder of each block in it. It never touches the free set: an
evicted block becomes free because its last handle is given back. A key may be published *ahead*, before the block is
written, but only for readers of the same step: until then it is pending.
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
    require,
    set_where,
    theorem,
    true,
    use,
    when,
    witness,
)
from kvspec.spec.sorts import Block, Chain, Seat


class PrefixCache(Machine):
    """A matchable key names a live block that holds exactly the key's tokens."""

    blocks = use(Blocks, Holder=Seat)

    nothing: Static[Chain]
    covers: Static[Callable[[Chain, Chain], Bool]]
    full: Static[Callable[[Chain], Bool]]

    cached: Set[Chain]
    entry: Map[Chain, Block]
    content: Map[Block, Chain]
    pending: Set[Chain]
    in_step: Bool

    @axiom("a chain covers itself")
    def covers_itself(self) -> Bool:
        return forall(Chain, lambda c: self.covers(c, c))

    @axiom("what is covered by a covered chain is covered")
    def covers_transitive(self) -> Bool:
        return forall(
            Chain, Chain, Chain, lambda c, d, e: implies(self.covers(c, d) & self.covers(d, e), self.covers(c, e))
        )

    @axiom("a full chain is covered by itself only: its block has no room for more")
    def full_is_maximal(self) -> Bool:
        return forall(Chain, Chain, lambda c, d: implies(self.full(d) & self.covers(c, d), c == d))

    @axiom("every chain covers the empty one, which covers no other and is not full")
    def nothing_is_least(self) -> Bool:
        return (
            forall(Chain, lambda c: self.covers(c, self.nothing))
            & forall(Chain, lambda c: implies(self.covers(self.nothing, c), c == self.nothing))
            & ~self.full(self.nothing)
        )

    @init
    def start(self) -> None:
        self.cached.clear()
        self.pending.clear()
        self.in_step = false()

    @event
    def allocate(self, block: Block, seat: Seat) -> None:
        """A free block is handed out; what was in it counts for nothing (allocate)."""
        require(self.blocks.free.has(block))
        require(~seat.is_case(Seat.cache_of))
        self.blocks.take(block, seat)
        self.content[block] = self.nothing

    @event
    def share(self, block: Block, seat: Seat) -> None:
        """Somebody other than the cache copies a handle."""
        require(~seat.is_case(Seat.cache_of))
        inherit(self.blocks.share)(block, seat)

    @event
    def release(self, block: Block, seat: Seat) -> None:
        """Somebody other than the cache gives a handle back; whether the id becomes free is the handle's business."""
        require(~seat.is_case(Seat.cache_of))
        inherit(self.blocks.drop)(block, seat)

    @event
    def write(self, block: Block, chain: Chain) -> None:
        """The cells of a block now hold at least this chain; a block with a key takes only what the key says."""
        require(forall(Chain, lambda k: implies(self.keyed(block, k), self.covers(k, chain))))
        with when(~self.covers(self.content[block], chain)):
            self.content[block] = chain

    @event
    def match(self, key: Chain, seat: Seat) -> None:
        """A matchable key's block gets one more holder (allocate_shared, `PrefixCache.match`)."""
        require(self.cached.has(key))
        require(~seat.is_case(Seat.cache_of))
        require(~self.blocks.holders[self.entry[key]].has(seat))
        self.blocks.share(self.entry[key], seat)

    @event
    def publish(self, key: Chain, block: Block) -> None:
        """A written full block becomes matchable (cache, `PrefixCache.insert`); a key that exists keeps its block."""
        require(self.full(key))
        require(~self.cached.has(key))
        require(~self.blocks.holders[block].is_empty())
        require(self.covers(self.content[block], key))
        self.blocks.share(block, Seat.cache_of(key))
        self.cached.add(key)
        self.entry[key] = block

    @event
    def begin_step(self) -> None:
        """The scheduler starts to plan a step."""
        self.in_step = true()

    @event
    def publish_ahead(self, key: Chain, block: Block) -> None:
        """A block that this step will write becomes matchable for requests of the same step."""
        require(self.in_step)
        require(self.full(key))
        require(~self.cached.has(key))
        require(~self.blocks.holders[block].is_empty())
        require(self.covers(key, self.content[block]))
        require(forall(Chain, lambda k: ~self.keyed(block, k)))
        self.blocks.share(block, Seat.cache_of(key))
        self.cached.add(key)
        self.entry[key] = block
        self.pending.add(key)

    @event
    def settle(self, key: Chain) -> None:
        """The block of a key that was published ahead has been written."""
        require(self.covers(self.content[self.entry[key]], key))
        self.pending.discard(key)

    @event
    def withdraw(self, key: Chain) -> None:
        """A key that was published ahead is taken back: its writer will not come."""
        require(self.pending.has(key))
        self.pending.discard(key)
        self.cached.discard(key)
        self.blocks.drop(self.entry[key], Seat.cache_of(key))

    @event
    def end_step(self) -> None:
        """The step is done; every key that was published ahead has been written or taken back."""
        require(self.pending.is_empty())
        self.in_step = false()

    @event
    def evict(self, key: Chain) -> None:
        """A key whose block nobody else holds is forgotten; the block becomes free through its last handle."""
        require(~self.pending.has(key))
        require(self.blocks.holders[self.entry[key]].is_only(Seat.cache_of(key)))
        self.cached.discard(key)
        self.blocks.drop_last(self.entry[key], Seat.cache_of(key))

    @event
    def reset(self) -> None:
        """All keys are forgotten; blocks in use stay with their holders."""
        self.cached.clear()
        self.pending.clear()
        self.blocks.drop_all(set_where(Seat, lambda seat: seat.is_case(Seat.cache_of)))

    def keyed(self, block: Block, key: Chain) -> Bool:
        """The cache holds the block under this key."""
        return self.blocks.holders[block].has(Seat.cache_of(key))

    @invariant("a matchable key's block is held by the cache, so it is live")
    def entry_held(self) -> Bool:
        return forall(Chain, lambda k: implies(self.cached.has(k), self.keyed(self.entry[k], k)))

    @invariant("the cache holds a block only for a key that leads to it")
    def held_cached(self) -> Bool:
        return forall(
            Block, Chain, lambda b, k: implies(self.keyed(b, k), self.cached.has(k) & (self.entry[k] == b))
        )

    @invariant("only full blocks have keys")
    def keys_full(self) -> Bool:
        return forall(Chain, lambda k: implies(self.cached.has(k), self.full(k)))

    @invariant("the block of a key holds the key's tokens, unless it is still to be written in this step")
    def entry_truth(self) -> Bool:
        return forall(
            Block,
            Chain,
            lambda b, k: implies(self.keyed(b, k) & ~self.pending.has(k), self.covers(self.content[b], k)),
        )

    @invariant("a key that was published ahead is matchable")
    def pending_cached(self) -> Bool:
        return forall(Chain, lambda k: implies(self.pending.has(k), self.cached.has(k)))

    @invariant("a block that waits for its content holds at most a part of it")
    def pending_unwritten(self) -> Bool:
        return forall(
            Block,
            Chain,
            lambda b, k: implies(self.keyed(b, k) & self.pending.has(k), self.covers(k, self.content[b])),
        )

    @invariant("keys are published ahead only inside a step")
    def pending_in_step(self) -> Bool:
        return forall(Chain, lambda k: implies(self.pending.has(k), self.in_step))

    @invariant("a block has at most one key")
    def one_key(self) -> Bool:
        return forall(
            Block, Chain, Chain, lambda b, j, k: implies(self.keyed(b, j) & self.keyed(b, k), j == k)
        )

    @theorem("a hit returns exactly the content of its prefix", after=match)
    def hit_is_exact(self, key: Chain) -> Bool:
        return implies(~self.pending.has(key), self.content[self.entry[key]] == key)

    @theorem("unwritten blocks cannot be matched across steps")
    def written_between_steps(self) -> Bool:
        return implies(
            ~self.in_step, forall(Chain, lambda k: implies(self.cached.has(k), self.content[self.entry[k]] == k))
        )

    @theorem("at the start nothing can be matched, and no step is planned", after=start)
    def starts_empty(self) -> Bool:
        return forall(Chain, lambda k: ~self.cached.has(k)) & ~self.in_step

    @theorem("a step begins", after=begin_step)
    def begun(self) -> Bool:
        return self.in_step

    @theorem("a step ends", after=end_step)
    def ended(self) -> Bool:
        return ~self.in_step

    @theorem("a block that is handed out is held by who asked for it alone, and is empty", after=allocate)
    def handed_out_empty(self, block: Block, seat: Seat) -> Bool:
        return self.blocks.holders[block].is_only(seat) & (self.content[block] == self.nothing)

    @theorem("a handle that is copied holds", after=share)
    def copied_holds(self, block: Block, seat: Seat) -> Bool:
        return self.blocks.holders[block].has(seat)

    @theorem("a handle that is given back holds no more", after=release)
    def released_lets_go(self, block: Block, seat: Seat) -> Bool:
        return ~self.blocks.holders[block].has(seat)

    @theorem("what is written can be read", after=write)
    def written_is_there(self, block: Block, chain: Chain) -> Bool:
        return self.covers(self.content[block], chain)

    @theorem("a hit holds the block of the key", after=match)
    def hit_holds(self, key: Chain, seat: Seat) -> Bool:
        return self.blocks.holders[self.entry[key]].has(seat)

    @theorem("what has been written is no longer promised", after=settle)
    def settled_is_written(self, key: Chain) -> Bool:
        return ~self.pending.has(key)

    @theorem("a block leaves the map before it is handed out again", after=allocate)
    def handed_out_without_key(self, block: Block) -> Bool:
        return forall(Chain, lambda k: implies(self.cached.has(k), self.entry[k] != block))

    @theorem("only a block that nobody but the cache holds is evicted, and its id is free afterwards", after=evict)
    def evicted_unshared(self, key: Chain) -> Bool:
        block = old(self).entry[key]
        return (
            old(self).blocks.holders[block].is_only(Seat.cache_of(key))
            & self.blocks.free.has(block)
            & ~self.cached.has(key)
        )

    @theorem("eviction frees one block and disturbs no other key", after=evict)
    def evict_is_local(self, key: Chain) -> Bool:
        return forall(Chain, lambda k: implies(old(self).cached.has(k) & (k != key), self.cached.has(k)))

    @theorem("after a reset no key can be matched and no block is held by the cache", after=reset)
    def reset_forgets(self) -> Bool:
        return forall(Chain, lambda k: ~self.cached.has(k)) & forall(
            Block, Chain, lambda b, k: ~self.keyed(b, k)
        )

    @theorem("a reset takes no block from anybody else", after=reset)
    def reset_keeps_users(self) -> Bool:
        return forall(
            Block,
            Seat,
            lambda b, h: implies(
                ~h.is_case(Seat.cache_of), self.blocks.holders[b].has(h) == old(self).blocks.holders[b].has(h)
            ),
        )

    @witness("a key's block is also held by a sequence")
    def a_shared_hit(self) -> Bool:
        return exists(
            Chain, lambda k: self.cached.has(k) & ~self.blocks.holders[self.entry[k]].is_only(Seat.cache_of(k))
        )

    @witness("a key is published ahead of its content")
    def an_unwritten_key(self) -> Bool:
        return exists(Chain, lambda k: self.pending.has(k))
