"""`ModelTarget`: the model of one manager behind the target protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np

from kvspec.model import conformance
from kvspec.model.conformance import CacheEvent, Capability, Form, MisuseError, PoolConfig, Tags
from kvspec.model.executable import Pool
from kvspec.model.reference.base import POOLS, Reference, expect_form, key_of, keys_of, removed
from kvspec.model.world import Chain

OF_MANAGERS: Final = frozenset(Capability) - conformance.OF_POOLS - conformance.OF_VARIANTS


class ModelTarget(Reference[Pool]):
    """A manager whose behaviour is the spec's.

    Args:
        config: sizes and options.
        seed: decide at random, by this seed; without one the lowest free block and the oldest key are taken.
        hit_limit: the longest hit.
        capabilities: what it shows; less than everything serves to test the acceptor.
        watch: re-evaluate the invariants of the spec after each event.

    Raises:
        ValueError: the config is that of another form.
    """

    form = Form.MANAGERS

    def __init__(
        self,
        config: PoolConfig,
        *,
        seed: int | None = None,
        hit_limit: Literal["all", "all_but_one"] = "all_but_one",
        capabilities: frozenset[Capability] = OF_MANAGERS,
        watch: bool = False,
    ) -> None:
        expect_form(config, self.form)
        self._pools = POOLS[watch]
        pool = self._pools.take(config)
        super().__init__(config, pool, seed=seed, hit_limit=hit_limit, capabilities=capabilities)
        self._cells = np.zeros((config.num_blocks, config.block_size), dtype=np.int64)
        self._published: dict[Chain, None] = {}
        self._events: list[CacheEvent] = []
        self._handles: dict[int, int] = {}

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pools.give(self._pool)

    # -- operations ----------------------------------------------------------------------------------------------

    def allocate_shared(self, seq: str) -> int:
        """The table begins with the blocks of the longest published prefix."""
        request = self._request(seq)
        if self._pool.size(seq):
            raise MisuseError(f"allocate_shared {seq}: it has blocks already")
        if not self.config.enable_prefix_cache:
            return 0
        known = len(request.tokens)
        hit = self._pool.hits(seq, known if self.hit_limit == "all" else known - 1, self._pool)
        self._pool.mount(seq, hit)
        return hit * self.config.block_size

    def allocate(self, seq: str, num_tokens: int) -> bool:
        """Take the blocks that are missing, and copies of those that others hold; all of them or none."""
        self._check_room(seq, num_tokens)
        shared, missing = self._pool.writes_shared(seq, num_tokens), self._missing(seq, num_tokens)
        need = missing + len(shared)
        if not self._make_room(seq, need):
            return False
        for index in shared:
            self._copy(seq, index)
        for _ in range(missing):
            self._pool.take(seq, self._free_block())
        return True

    def write(self, batch: Sequence[tuple[str, Tags]]) -> None:
        """The cells behind the computed tokens get their contents."""
        self._open()
        if len({seq for seq, _ in batch}) != len(batch):
            raise MisuseError("write: a sequence is named twice")
        for seq, tags in batch:
            self._check_write(seq, len(tags))
        for seq, tags in batch:
            self._fill(seq, tags)
            self._pool.write(seq, len(tags))

    def fork(self, parent: str, child: str) -> None:
        """The child stands where the parent stands, in the same blocks."""
        self._request(parent)
        self._new_name(child)
        self._pool.fork(parent, child)

    def truncate(self, seq: str, num_tokens: int) -> None:
        """Forget tokens at the end, and the blocks behind what is left."""
        self._check_room(seq, num_tokens)
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
        self._events += [removed(chain, self._pool) for chain in self._published]
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

    # -- observations --------------------------------------------------------------------------------------------

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
        return keys_of(self._pool)

    def drain_events(self) -> Sequence[CacheEvent]:
        """What happened to keys since the last call."""
        events, self._events = self._events, []
        return events

    # -- choices -------------------------------------------------------------------------------------------------

    def _memory(self, seq: str) -> Tags:
        return self._cells

    def _note(self, seq: str, index: int) -> None:
        chain = self._pool.key(seq, index)
        self._published[chain] = None
        self._events.append(CacheEvent("stored", key_of(chain), self._pool.entry[chain]))

    def _make_room(self, seq: str, need: int) -> bool:
        """Have so many blocks free, if that can be."""
        if not self._fits(seq, need):
            return False
        self._evict(need - len(self._pool.free))
        return True

    def _free_block(self) -> int:
        return self._lowest(self._pool.free)

    def _evict(self, num_blocks: int) -> int:
        """Drop up to num_blocks idle keys, the oldest first or any; the number of blocks that became free."""
        if num_blocks <= 0:
            return 0
        pool = self._pool
        idle = [chain for chain in self._published if len(pool.holders[pool.entry[chain]]) == 1]
        if self._random is not None:
            self._random.shuffle(idle)
        for chain in idle[:num_blocks]:
            del self._published[chain]
            self._events.append(removed(chain, pool))
            pool.evict(chain)
        return min(num_blocks, len(idle))

    def _copy(self, seq: str, index: int) -> None:
        source, target = self._pool.block(seq, index), self._free_block()
        self._pool.copy(seq, index, target)
        self._cells[target] = self._cells[source]
