"""`ModelTarget`: the executable model behind the target protocol.

It is the contract taken at its word: every operation is a program of events of the spec on a `Pool`, contents are one
cell per token, and what the contract leaves open (which free block, which victim) is decided here, by the lowest number
or by a seed. So it shows what a target has to do, and it is what others are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, Literal

import numpy as np

from kvspec.model.conformance import CacheEvent, Capability, Context, MisuseError, PoolConfig, Tags
from kvspec.model.operations import Request
from kvspec.model.pools import Pools
from kvspec.model.world import Chain

EVERYTHING: Final = frozenset(Capability)

_POOLS: Final = {watch: Pools(watch) for watch in (False, True)}


class ModelTarget:
    """A pool whose behaviour is the spec's.

    Args:
        config: sizes and options.
        seed: decide at random, by this seed; without one the lowest free block and the oldest key are taken.
        hit_limit: the longest hit.
        capabilities: what it shows; less than everything serves to test the acceptor.
        watch: re-evaluate the invariants of the spec after each event.
    """

    def __init__(
        self,
        config: PoolConfig,
        *,
        seed: int | None = None,
        hit_limit: Literal["all", "all_but_one"] = "all_but_one",
        capabilities: frozenset[Capability] = EVERYTHING,
        watch: bool = False,
    ) -> None:
        self.config = config
        self.capabilities = capabilities
        self.hit_limit: Literal["all", "all_but_one"] = hit_limit
        self._pools = _POOLS[watch]
        self._pool = self._pools.take(config)
        self._random = None if seed is None else Random(seed)
        self._cells = np.zeros((config.num_blocks, config.block_size), dtype=np.int64)
        self._published: dict[Chain, None] = {}
        self._events: list[CacheEvent] = []
        self._handles: dict[int, int] = {}
        self._last_handle = 0
        self._closed = False

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pools.give(self._pool)

    # -- operations ----------------------------------------------------------------------------------------------

    def start(self, seq: str, tokens: Sequence[int], context: Context) -> None:
        """A request is known; it has no block."""
        self._open()
        self._new_name(seq)
        _check_tokens(tokens)
        self._pool.start(seq, tokens, context)

    def allocate_shared(self, seq: str) -> int:
        """The table begins with the blocks of the longest published prefix."""
        request = self._request(seq)
        if self._pool.size(seq):
            raise MisuseError(f"allocate_shared {seq}: it has blocks already")
        if not self.config.enable_prefix_cache:
            return 0
        known = len(request.tokens)
        hit = self._pool.hit(seq, known if self.hit_limit == "all" else known - 1)
        self._pool.mount(seq, hit)
        return hit * self.config.block_size

    def allocate(self, seq: str, num_tokens: int) -> bool:
        """Take the blocks that are missing, and copies of those that others hold; all of them or none."""
        request = self._request(seq)
        if not 0 <= num_tokens <= len(request.tokens):
            raise MisuseError(f"allocate {seq}: room for {num_tokens} of {len(request.tokens)} tokens")
        shared = self._pool.writes_shared(seq, num_tokens)
        missing = max(0, self._pool.blocks_for(num_tokens) - self._pool.size(seq))
        need = missing + len(shared)
        if need > len(self._pool.free) and need > len(self._pool.free) + self._pool.reclaimable:
            return False
        self._make_free(need)
        for index in shared:
            self._copy(seq, index)
        for _ in range(missing):
            self._pool.take(seq, self._free_block())
        return True

    def append(self, seq: str, tokens: Sequence[int]) -> None:
        """More tokens are known."""
        self._request(seq)
        _check_tokens(tokens)
        self._pool.append(seq, tokens)

    def write(self, batch: Sequence[tuple[str, Tags]]) -> None:
        """The cells behind the computed tokens get their contents."""
        self._open()
        if len({seq for seq, _ in batch}) != len(batch):
            raise MisuseError("write: a sequence is named twice")
        for seq, tags in batch:
            self._check_write(seq, len(tags))
        for seq, tags in batch:
            self._cells.reshape(-1)[self._slots(seq, self._pool.requests[seq].computed, len(tags))] = tags
            self._pool.write(seq, len(tags))

    def read(self, seq: str, start: int, stop: int) -> Tags:
        """The cells of computed tokens, found through the block table."""
        request = self._request(seq)
        if not 0 <= start <= stop <= request.computed:
            raise MisuseError(f"read {seq}: [{start}, {stop}) of {request.computed} computed tokens")
        size = self.config.block_size
        first = start // size
        blocks = [self._pool.block(seq, i) for i in range(first, self._pool.blocks_for(stop))]
        return self._cells[blocks].reshape(-1)[start - first * size : stop - first * size]

    def cache(self, seq: str) -> None:
        """Every full computed block gets its key, if its prefix has none."""
        request = self._request(seq)
        if not self.config.enable_prefix_cache:
            return
        size = self.config.block_size
        for index in self._pool.publishable(seq):
            chain = request.chain(index, (index + 1) * size, self._pool.chains)
            self._pool.publish(seq, index)
            self._published[chain] = None
            self._events.append(CacheEvent("stored", _key(chain), self._pool.entry[chain]))

    def deallocate(self, seq: str) -> None:
        """Publish, then give everything back."""
        self.cache(seq)
        self._pool.forget(seq)

    def preempt(self, seq: str) -> None:
        """Give everything back; the tokens stay known."""
        self._request(seq)
        self._pool.preempt(seq)

    def abort(self, seq: str) -> None:
        """Give everything back and forget the request."""
        self._request(seq)
        self._pool.forget(seq)

    def fork(self, parent: str, child: str) -> None:
        """The child stands where the parent stands, in the same blocks."""
        self._request(parent)
        self._new_name(child)
        self._pool.fork(parent, child)

    def truncate(self, seq: str, num_tokens: int) -> None:
        """Forget tokens at the end, and the blocks behind what is left."""
        request = self._request(seq)
        if not 0 <= num_tokens <= len(request.tokens):
            raise MisuseError(f"truncate {seq}: {num_tokens} of {len(request.tokens)} tokens")
        self._pool.truncate(seq, num_tokens)
        self._pool.drop_to(seq, self._pool.blocks_for(num_tokens))

    def evict(self, num_blocks: int) -> int:
        """Drop keys whose blocks nobody else holds."""
        self._open()
        if num_blocks < 0:
            raise MisuseError(f"evict: {num_blocks} blocks")
        return self._evict(num_blocks)

    def reset(self) -> bool:
        """Drop all keys."""
        self._open()
        for chain in self._published:
            self._events.append(CacheEvent("removed", _key(chain), self._pool.entry[chain]))
        self._published.clear()
        self._pool.reset()
        return True

    def hold(self, block_id: int) -> int:
        """One more holder of a live block."""
        self._open()
        if not self._pool.holders.get(block_id):
            raise MisuseError(f"hold: block {block_id} is not live")
        self._last_handle += 1
        self._pool.hold(block_id, str(self._last_handle))
        self._handles[self._last_handle] = block_id
        return self._last_handle

    def release(self, handle: int) -> None:
        """One holder less."""
        self._open()
        if handle not in self._handles:
            raise MisuseError(f"release: handle {handle} holds nothing")
        self._pool.unhold(self._handles.pop(handle), str(handle))

    def close(self) -> None:
        """Nothing works any more."""
        self._open()
        self._closed = True

    # -- observations --------------------------------------------------------------------------------------------

    def block_table(self, seq: str) -> Sequence[int]:
        """Physical ids, logical order."""
        self._request(seq)
        return self._pool.table(seq)

    def num_computed(self, seq: str) -> int:
        """Computed tokens."""
        return self._request(seq).computed

    def free_ids(self) -> set[int]:
        """Free ids."""
        return set(self._pool.free)

    def free_count(self) -> int:
        """How many are free."""
        return len(self._pool.free)

    def used_count(self) -> int:
        """How many are held by sequences."""
        return self._pool.used

    def ref_count(self, block_id: int) -> int:
        """How many hold the block."""
        return len(self._pool.holders.get(block_id, ()))

    def cached(self) -> Mapping[bytes, int]:
        """Keys and their blocks."""
        return {_key(chain): self._pool.entry[chain] for chain in self._pool.cached}

    def drain_events(self) -> Sequence[CacheEvent]:
        """What happened to keys since the last call."""
        events, self._events = self._events, []
        return events

    # -- choices -------------------------------------------------------------------------------------------------

    def _free_block(self) -> int:
        if self._random is None:
            return min(self._pool.free)
        return self._random.choice(sorted(self._pool.free))

    def _make_free(self, num_blocks: int) -> None:
        if num_blocks > len(self._pool.free):
            self._evict(num_blocks - len(self._pool.free))

    def _evict(self, num_blocks: int) -> int:
        """Drop up to num_blocks idle keys, the oldest first or any; the number of blocks that became free."""
        if not num_blocks:
            return 0
        pool = self._pool
        idle = [chain for chain in self._published if len(pool.holders[pool.entry[chain]]) == 1]
        if self._random is not None:
            self._random.shuffle(idle)
        for chain in idle[:num_blocks]:
            del self._published[chain]
            self._events.append(CacheEvent("removed", _key(chain), pool.entry[chain]))
            pool.evict(chain)
        return min(num_blocks, len(idle))

    def _copy(self, seq: str, index: int) -> None:
        source, target = self._pool.block(seq, index), self._free_block()
        self._pool.copy(seq, index, target)
        self._cells[target] = self._cells[source]

    # -- small things --------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed:
            raise MisuseError("the target is closed")

    def _request(self, seq: str) -> Request:
        self._open()
        request = self._pool.requests.get(seq)
        if request is None:
            raise MisuseError(f"{seq} is unknown")
        return request

    def _new_name(self, seq: str) -> None:
        if seq in self._pool.requests:
            raise MisuseError(f"{seq} exists already")

    def _check_write(self, seq: str, count: int) -> None:
        request = self._request(seq)
        stop = request.computed + count
        room = self._pool.size(seq) * self.config.block_size
        if stop > room or stop > len(request.tokens):
            raise MisuseError(f"write {seq}: {stop} tokens, {len(request.tokens)} known, room for {room}")
        if self._pool.writes_shared(seq, stop):
            raise MisuseError(f"write {seq}: others hold a block that it would write; allocate first")

    def _slots(self, seq: str, start: int, count: int) -> Tags:
        """Cell numbers of tokens: block * block size + offset (seed 9.5)."""
        size = self.config.block_size
        first = start // size
        blocks = [self._pool.block(seq, i) for i in range(first, self._pool.blocks_for(start + count))]
        cells = (np.array(blocks, dtype=np.int64)[:, None] * size + np.arange(size)).reshape(-1)
        return cells[start - first * size :][:count]


def _check_tokens(tokens: Sequence[int]) -> None:
    if len(tokens) and min(tokens) < 0:
        raise MisuseError(f"a negative token: {min(tokens)}")


def _key(chain: Chain) -> bytes:
    """Equal prefixes are one chain, so its number is a key without collisions."""
    return chain.number.to_bytes(8, "little")
