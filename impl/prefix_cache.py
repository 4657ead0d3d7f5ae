"""`PrefixCache`: published blocks by the prefix that they end (seed 4.2, 4.3).

A key is a chained 128-bit xxh3: ``key[i] = H(key[i - 1], tokens of block i)``, where ``key[-1]`` is the hash of the
*context*, that is, of everything beside the tokens that decides what a block contains. A hit is not trusted to the hash
alone: the entry keeps its parent key, tokens and context, and they are compared.

Eviction works through handles only: it drops the cache's handle, and the release gives the id back (seed 4.3).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush

from xxhash import xxh3_128_digest

from kvspec.impl.block import Block, BlockRecord
from kvspec.impl.errors import InvalidRangeError, KeyMismatchError, ReleasedHandleError
from kvspec.impl.paging import block_index
from kvspec.impl.tokens import TOKEN_BYTES, token_bytes
from kvspec.model.conformance import CacheEvent

_ORDER_SHIFT = 32


@lru_cache(maxsize=1024)
def encode_context(
    adapter: str | None = None, adapter_version: int = 0, salt: str | None = None, images: tuple[str, ...] = ()
) -> bytes:
    """An injective encoding of a context (spec chapter `keys`).

    Each part carries its kind and length, so that adapter ``x`` and salt ``x``, an absent and an empty part, or two
    images and one longer one never give the same bytes.
    """
    parts: list[tuple[bytes, str]] = [(b"V", str(adapter_version))]
    if adapter is not None:
        parts.append((b"A", adapter))
    if salt is not None:
        parts.append((b"S", salt))
    parts.extend((b"I", image) for image in images)
    encoded = [(tag, text.encode("utf-8", "surrogatepass")) for tag, text in parts]
    return b"".join(tag + len(data).to_bytes(8, "little") + data for tag, data in encoded)


NO_CONTEXT = encode_context()


class PrefixKeys:
    """The chain of keys of one sequence, computed as far as somebody asked.

    Attributes:
        context: the encoded context.
        root: the parent of the first block's key.
        chain: keys of the leading full blocks.
    """

    __slots__ = ("block_size", "chain", "context", "root")

    def __init__(self, block_size: int, context: bytes = NO_CONTEXT) -> None:
        self.block_size = block_size
        self.context = context
        self.root: bytes = xxh3_128_digest(b"kvspec.context\0" + context)
        self.chain: list[bytes] = []

    def extend(self, tokens: array[int], num_blocks: int) -> None:
        """Compute the keys of the first num_blocks full blocks of the tokens, as far as they are not known."""
        chain = self.chain
        have = len(chain)
        if num_blocks <= have:
            return
        data = token_bytes(tokens[have * self.block_size : num_blocks * self.block_size])
        width = self.block_size * TOKEN_BYTES
        parent = chain[-1] if chain else self.root
        for start in range(0, len(data), width):
            parent = xxh3_128_digest(parent + data[start : start + width])
            chain.append(parent)

    def truncate(self, num_blocks: int) -> None:
        """Forget the keys behind the first num_blocks blocks: their tokens may change."""
        del self.chain[num_blocks:]

    def copy(self) -> PrefixKeys:
        """The same chain for a sequence that goes its own way from here."""
        other = PrefixKeys.__new__(PrefixKeys)
        other.block_size = self.block_size
        other.context = self.context
        other.root = self.root
        other.chain = self.chain[:]
        return other


class CacheEntry(Block):
    """One published block: the cache's handle of it, and what its key stands for.

    ``order`` is the recency: later operations are greater, and within one operation a parent is greater than its
    children, so that the tail of a chain goes first. ``late`` tells that the heap of the cache has the entry with
    this order.
    """

    __slots__ = ("context", "key", "late", "order", "parent", "tokens")

    def __init__(
        self, record: BlockRecord, key: bytes, parent: bytes, tokens: bytes, context: bytes, order: int
    ) -> None:
        self.record_ = record  # as Block does; a call of its constructor would show in the cost of a publication
        self.counted_ = False
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.context = context
        self.order = order
        self.late = False


class PrefixCache:
    """Map from keys to block handles, with eviction of idle entries in least recently used order.

    An entry is *idle* when the cache holds the only handle of its block. Idle entries wait in ``idle_``, oldest first.
    An entry that becomes idle with an order older than the last one there (a pin that was given back late) waits in a
    small heap instead; the next victim is the older of both fronts. Shared entries are in neither, so eviction never
    walks over them, and ``num_idle`` needs no scan.
    """

    def __init__(self, block_size: int, record_events: bool = True) -> None:
        self.block_size_ = block_size
        self.entries_: dict[bytes, CacheEntry] = {}
        self.epoch_ = 0
        self.num_idle_ = 0
        self._idle: OrderedDict[bytes, CacheEntry] = OrderedDict()
        self._last_order = 0
        self._late: list[tuple[int, bytes]] = []
        self._clock = 0
        self._record_events = record_events
        self._events: list[CacheEvent] = []
        # Entries of the last match with the orders that they had before.
        self._matched: list[tuple[CacheEntry, int]] = []

    def __len__(self) -> int:
        return len(self.entries_)

    @property
    def num_idle(self) -> int:
        """Entries whose block nobody else holds: what `evict` can free."""
        return self.num_idle_

    def drain_events(self) -> list[CacheEvent]:
        """Changes of the map since the last call, in order."""
        events, self._events = self._events, []
        return events

    # -- look up -------------------------------------------------------------------------------------------------
    def match(self, tokens: array[int], keys: PrefixKeys, max_blocks: int, first: int = 0) -> list[Block]:
        """New handles of the published blocks of the longest prefix, at most max_blocks; they count as used now.

        Args:
            tokens, keys: of the sequence.
            max_blocks: the logical index behind the last block.
            first: that of the first; the blocks before it are somewhere else.
        """
        found = self._find(tokens, keys, max_blocks, first)
        if not found:
            return []
        self._matched = [(entry, entry.order) for entry in found]
        base = self._tick()
        blocks = []
        for depth, entry in enumerate(found, first):
            entry.order = base - depth
            entry.late = False
            blocks.append(entry.copy())
        return blocks

    def undo_use(self) -> None:
        """Its last match was for a call that is refused: what it found counts as used no later than before.

        To be called before any other call that uses or evicts entries.
        """
        self._touch([(order, entry) for entry, order in self._matched])
        self._matched = []

    def _find(self, tokens: array[int], keys: PrefixKeys, max_blocks: int, first: int = 0) -> list[CacheEntry]:
        size = self.block_size_
        width = size * TOKEN_BYTES
        max_blocks = min(max_blocks, block_index(len(tokens), size))
        data = token_bytes(tokens[first * size : max_blocks * size])
        keys.extend(tokens, min(first, max_blocks))
        chain, context, entries = keys.chain, keys.context, self.entries_
        known = len(chain)
        parent = chain[first - 1] if 0 < first <= max_blocks else keys.root
        found: list[CacheEntry] = []
        for index in range(first, max_blocks):
            chunk = data[(index - first) * width : (index - first + 1) * width]
            if index < known:
                key = chain[index]
            else:
                key = xxh3_128_digest(parent + chunk)
                chain.append(key)
            entry = entries.get(key)
            if entry is None or entry.tokens != chunk or entry.parent != parent or entry.context != context:
                break
            found.append(entry)
            parent = key
        return found

    # -- publication -----------------------------------------------------------------------------------------------
    def insert(self, tokens: array[int], keys: PrefixKeys, blocks: Sequence[Block], first: int = 0) -> int:
        """Publish full blocks of the tokens under their keys; blocks[0] is the one with logical index first.

        A key that is there keeps its block (the duplicate stays private to its sequence) and counts as used now.

        Returns:
            The logical index behind the leading run of blocks that the cache names itself.
        Raises:
            KeyMismatchError: fewer tokens than the blocks hold, a block twice, or one that has another key.
            ReleasedHandleError: a handle was given back.
        """
        if not blocks:
            return first
        self._check_insert(tokens, keys, blocks, first)
        base = self._tick()
        entries, chain, width = self.entries_, keys.chain, self.block_size_ * TOKEN_BYTES
        own = first + len(blocks)
        data = token_bytes(tokens[first * self.block_size_ : own * self.block_size_])
        duplicates: list[tuple[int, CacheEntry]] = []
        for index, block in enumerate(blocks, first):
            entry = entries.get(chain[index])
            if entry is None:
                start = (index - first) * width
                self._store(keys, index, block, data[start : start + width], base - index)
            elif entry.record_ is block.record_:
                entry.order = base - index
                entry.late = False
            else:
                own = min(own, index)
                duplicates.append((base - index, entry))
        self._touch(duplicates)
        return own

    def _check_insert(self, tokens: array[int], keys: PrefixKeys, blocks: Sequence[Block], first: int) -> None:
        where, stop = "PrefixCache.insert", first + len(blocks)
        if first < 0 or stop * self.block_size_ > len(tokens):
            what = f"blocks {first} to {stop} of {len(tokens)} tokens"
            raise KeyMismatchError(where, what, "full blocks only")
        keys.extend(tokens, stop)
        chain, seen = keys.chain, set()
        for index, block in enumerate(blocks, first):
            record = block.record_
            if record is None:
                raise ReleasedHandleError(where, f"handle {index} was released before", "live handles")
            if record.hash_value_ is not None and record.hash_value_ != chain[index]:
                raise KeyMismatchError(where, f"block {record.id_} is published under another key", "its own key")
            seen.add(record.id_)
        if len(seen) != len(blocks):
            raise KeyMismatchError(where, "a block occurs twice", "one block per position")

    def _store(self, keys: PrefixKeys, index: int, block: Block, chunk: bytes, order: int) -> None:
        key = keys.chain[index]
        parent = keys.chain[index - 1] if index else keys.root
        record = block.record_
        assert record is not None
        record.add_reference()
        record.hash_value_ = key
        self.entries_[key] = CacheEntry(record, key, parent, chunk, keys.context, order)
        if self._record_events:
            self._events.append(CacheEvent("stored", key, record.id_))

    # -- recency -----------------------------------------------------------------------------------------------------
    def use(self) -> int:
        """Moment of a use that the caller will enter with `touch` before it lets go of the blocks."""
        self._clock += 1
        return self._clock

    def _tick(self) -> int:
        """Order of the first block of a chain that is used now; the next blocks count down from it."""
        return self.use() << _ORDER_SHIFT

    def touch(self, keys: Sequence[bytes], moment: int, first: int = 0) -> None:
        """Enter that keys[first:], of one chain, were used at an earlier moment, unless they were used since.

        A sequence that publishes again and again need not walk over what it has published before: it remembers the
        moment, and enters it while it still holds the blocks. (An idle entry would have to be queued again.)
        """
        base = moment << _ORDER_SHIFT
        for index in range(first, len(keys)):
            entry = self.entries_.get(keys[index])
            if entry is not None and entry.order < base - index:
                entry.order = base - index
                entry.late = False

    def _touch(self, entries: list[tuple[int, CacheEntry]]) -> None:
        """Give entries their new orders; idle ones queue up again, the tail of the chain first."""
        for order, entry in reversed(entries):
            record = entry.record_
            assert record is not None
            entry.order = order
            entry.late = False
            if record.ref_count_ == 1:
                self._idle.pop(entry.key, None)
                self._enqueue(entry)

    def _enqueue(self, entry: CacheEntry) -> None:
        if not self._idle or entry.order > self._last_order:
            self._idle[entry.key] = entry
            self._last_order = entry.order
        elif not entry.late:
            entry.late = True
            heappush(self._late, (entry.order, entry.key))
            if len(self._late) > 2 * len(self.entries_) + 64:
                self._compact()

    def _compact(self) -> None:
        """Drop what is outdated in the heap, so that it stays in proportion to the map."""
        self._late = list({item for item in self._late if self._late_entry(item) is not None})
        heapify(self._late)

    def became_idle(self, record: BlockRecord) -> None:
        """The cache holds the last handle of this block now."""
        assert record.hash_value_ is not None
        self.num_idle_ += 1
        self._enqueue(self.entries_[record.hash_value_])

    def became_shared(self, record: BlockRecord) -> None:
        """Somebody else holds this block now; it cannot be evicted."""
        assert record.hash_value_ is not None
        self.num_idle_ -= 1
        self._idle.pop(record.hash_value_, None)

    # -- eviction ----------------------------------------------------------------------------------------------------
    def evict(self, num_blocks: int) -> int:
        """Drop up to num_blocks idle entries, least recently used first; how many blocks became free.

        Raises:
            InvalidRangeError: num_blocks is negative.
        """
        if num_blocks < 0:
            raise InvalidRangeError("PrefixCache.evict", f"{num_blocks} blocks", "0 or more")
        freed = 0
        while freed < num_blocks:
            entry = self._pop_victim()
            if entry is None:
                break
            self.num_idle_ -= 1
            self._drop(entry)
            freed += 1
        return freed

    def _pop_victim(self) -> CacheEntry | None:
        if not self._late:
            return self._idle.popitem(last=False)[1] if self._idle else None
        late = self._late_victim()
        if not self._idle:
            return late
        oldest = next(iter(self._idle.values()))
        if late is not None and late.order < oldest.order:
            return late
        if late is not None:
            heappush(self._late, (late.order, late.key))
        del self._idle[oldest.key]
        return oldest

    def _late_victim(self) -> CacheEntry | None:
        while self._late:
            entry = self._late_entry(heappop(self._late))
            if entry is not None:
                return entry
        return None

    def _late_entry(self, item: tuple[int, bytes]) -> CacheEntry | None:
        """The idle entry that an item of the heap stands for, None if it is outdated."""
        order, key = item
        entry = self.entries_.get(key)
        if entry is None or entry.order != order:
            return None
        record = entry.record_
        assert record is not None
        if record.ref_count_ != 1 or key in self._idle:
            entry.late = False  # the item leaves the heap: should the entry need one again, it must be a new one
            return None
        return entry

    def reset(self) -> None:
        """Drop every entry. Blocks in use stay with their holders; the others become free."""
        self._idle.clear()
        self._late.clear()
        self.num_idle_ = 0
        self.epoch_ += 1
        for entry in list(self.entries_.values()):
            self._drop(entry)

    def _drop(self, entry: CacheEntry) -> None:
        """Remove the entry from the map *before* its handle is released: a freed block has no key."""
        record = entry.record_
        assert record is not None
        del self.entries_[entry.key]
        record.hash_value_ = None
        if self._record_events:
            self._events.append(CacheEvent("removed", entry.key, record.id_))
        entry.release()
