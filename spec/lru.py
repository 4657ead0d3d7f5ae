"""Which key is evicted: the least recently used one (seed 4.3 and 7; ``lru_lst_`` of class `PrefixCache`).

The line itself is chapter `recency`. A key becomes the newest when it is published, matched, or inserted once more. The
victim is the oldest key among those that may be evicted, which need not be the oldest of all: keys whose block somebody
uses are passed over. This narrows the choice that chapter `prefix_cache` leaves open; another manager is judged by it
only where it declares this policy.
"""

from __future__ import annotations

from kvspec.spec.language import (
    Bool,
    Machine,
    event,
    exists,
    forall,
    implies,
    inherit,
    invariant,
    old,
    require,
    theorem,
    use,
    witness,
)
from kvspec.spec.prefix_cache import PrefixCache
from kvspec.spec.recency import Recency
from kvspec.spec.sorts import Block, Chain, Seat


class Lru(Machine):
    """The matchable keys stand in one line by their last use, and eviction takes the first that it may."""

    cache = use(PrefixCache)
    line = use(Recency, Item=Chain)

    # -- the line moves ------------------------------------------------------------------------------------------

    @event
    def match(self, key: Chain, seat: Seat) -> None:
        """A hit makes the key the newest (allocate_shared, `PrefixCache.match`)."""
        inherit(self.cache.match)(key, seat)
        self.line.use(key)

    @event
    def publish(self, key: Chain, block: Block) -> None:
        """A new key is the newest (cache, `PrefixCache.insert`)."""
        inherit(self.cache.publish)(key, block)
        self.line.use(key)

    @event
    def publish_ahead(self, key: Chain, block: Block) -> None:
        """A new key is the newest, also before its block is written."""
        inherit(self.cache.publish_ahead)(key, block)
        self.line.use(key)

    @event
    def touch(self, key: Chain) -> None:
        """A key that exists is inserted once more: it keeps its block and becomes the newest."""
        require(self.cache.cached.has(key))
        self.line.use(key)

    @event
    def evict(self, key: Chain) -> None:
        """The first in line that may be evicted is forgotten (`PrefixCache.evict`)."""
        require(forall(Chain, lambda k: implies(self.evictable(k), ~self.line.older.has((k, key)))))
        inherit(self.cache.evict)(key)
        self.line.leave(key)

    @event
    def withdraw(self, key: Chain) -> None:
        """A key that was published ahead is taken back and leaves the line."""
        inherit(self.cache.withdraw)(key)
        self.line.leave(key)

    @event
    def reset(self) -> None:
        """All keys are forgotten."""
        self.cache.reset()
        self.line.clear()

    # -- the line stays ------------------------------------------------------------------------------------------

    @event
    def allocate(self, block: Block, seat: Seat) -> None:
        """A free block is handed out."""
        inherit(self.cache.allocate)(block, seat)

    @event
    def share(self, block: Block, seat: Seat) -> None:
        """Somebody copies a handle."""
        inherit(self.cache.share)(block, seat)

    @event
    def release(self, block: Block, seat: Seat) -> None:
        """Somebody gives a handle back."""
        inherit(self.cache.release)(block, seat)

    @event
    def write(self, block: Block, chain: Chain) -> None:
        """The cells of a block are written."""
        inherit(self.cache.write)(block, chain)

    @event
    def settle(self, key: Chain) -> None:
        """The block of a key that was published ahead has been written."""
        inherit(self.cache.settle)(key)

    @event
    def begin_step(self) -> None:
        """The scheduler starts to plan a step."""
        self.cache.begin_step()

    @event
    def end_step(self) -> None:
        """The step is done."""
        inherit(self.cache.end_step)()

    # -- words ---------------------------------------------------------------------------------------------------

    def evictable(self, key: Chain) -> Bool:
        """The key is matchable and written, and nobody but the cache holds its block."""
        return (
            self.cache.cached.has(key)
            & ~self.cache.pending.has(key)
            & self.cache.blocks.holders[self.cache.entry[key]].is_only(Seat.cache_of(key))
        )

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant("the keys in line are the matchable ones")
    def in_line_cached(self) -> Bool:
        return forall(Chain, lambda k: self.line.members.has(k) == self.cache.cached.has(k))

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("the victim is the least recently used: every other key that could have gone is newer", after=evict)
    def victim_is_oldest(self, key: Chain) -> Bool:
        return forall(Chain, lambda k: implies(old(self).evictable(k) & (k != key), old(self).line.older.has((key, k))))

    @theorem("the victim was evictable, and its block is free afterwards", after=evict)
    def victim_goes(self, key: Chain) -> Bool:
        return (
            old(self).evictable(key)
            & ~self.cache.cached.has(key)
            & self.cache.blocks.free.has(old(self).cache.entry[key])
        )

    @theorem("a matched key is the newest: of the keys in line it is the last to go", after=match)
    def matched_is_newest(self, key: Chain) -> Bool:
        return forall(Chain, lambda k: implies(self.cache.cached.has(k) & (k != key), self.line.older.has((k, key))))

    @theorem("a published key is the newest", after=publish)
    def published_is_newest(self, key: Chain) -> Bool:
        return forall(Chain, lambda k: implies(self.cache.cached.has(k) & (k != key), self.line.older.has((k, key))))

    @theorem("a block that is handed out is held by who asked for it", after=allocate)
    def handed_out_holds(self, block: Block, seat: Seat) -> Bool:
        return self.cache.blocks.holders[block].is_only(seat)

    @theorem("a handle that is copied holds", after=share)
    def copied_holds(self, block: Block, seat: Seat) -> Bool:
        return self.cache.blocks.holders[block].has(seat)

    @theorem("a handle that is given back holds no more", after=release)
    def released_lets_go(self, block: Block, seat: Seat) -> Bool:
        return ~self.cache.blocks.holders[block].has(seat)

    @theorem("what is written can be read", after=write)
    def written_is_there(self, block: Block, chain: Chain) -> Bool:
        return self.cache.covers(self.cache.content[block], chain)

    @theorem("what has been written is no longer promised", after=settle)
    def settled_is_written(self, key: Chain) -> Bool:
        return ~self.cache.pending.has(key)

    @theorem("a step begins", after=begin_step)
    def begun(self) -> Bool:
        return self.cache.in_step

    @theorem("a step ends", after=end_step)
    def ended(self) -> Bool:
        return ~self.cache.in_step

    @theorem("a key that is inserted once more is the newest and keeps its block", after=touch)
    def touched_is_newest(self, key: Chain) -> Bool:
        return (self.cache.entry[key] == old(self).cache.entry[key]) & forall(
            Chain, lambda k: implies(self.cache.cached.has(k) & (k != key), self.line.older.has((k, key)))
        )

    @theorem("after a reset nothing stands in line", after=reset)
    def reset_empties(self) -> Bool:
        return self.line.older.is_empty()

    @witness("an older key is in use, a newer one may be evicted")
    def passed_over(self) -> Bool:
        return exists(Chain, Chain, lambda a, b: self.line.older.has((a, b)) & ~self.evictable(a) & self.evictable(b))
