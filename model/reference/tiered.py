"""`ModelTieredTarget`: the model of a pool with a host tier behind the target protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np

from kvspec.model import conformance
from kvspec.model.conformance import CacheEvent, Capability, Context, Form, MisuseError, PoolConfig, Tags, Transfer
from kvspec.model.executable import Prefetch, TieredPool
from kvspec.model.reference.base import check_tokens, keys_of, removed
from kvspec.model.reference.ranked import OF_POOLS, ModelPoolTarget

OF_TIERS: Final = OF_POOLS - {Capability.HOLD, Capability.LINEAR_STATE, Capability.STATES} | conformance.OF_HOST_TIERS
_SPOILT: Final = -1


class ModelTieredTarget(ModelPoolTarget):
    """A pool with a host tier whose behaviour is the spec's.

    Args:
        config: sizes and options.
        seed: decide at random, by this seed; without one the lowest ids and the oldest keys are taken, and everything
            is loaded and offloaded that can be.
        hit_limit, capabilities, watch: see `ModelPoolTarget`.

    Raises:
        ValueError: the config is that of another form.
    """

    form = Form.TIERS
    _pool: TieredPool

    def __init__(
        self,
        config: PoolConfig,
        *,
        seed: int | None = None,
        hit_limit: Literal["all", "all_but_one"] = "all_but_one",
        capabilities: frozenset[Capability] = OF_TIERS,
        watch: bool = False,
    ) -> None:
        super().__init__(config, seed=seed, hit_limit=hit_limit, capabilities=capabilities, watch=watch)
        self._host_cells = np.zeros((config.num_ranks, config.num_host_blocks, config.block_size), dtype=np.int64)
        self._host_known: list[dict[bytes, int]] = [{} for _ in range(config.num_ranks)]
        self._last_copy = 0

    # -- sequences -----------------------------------------------------------------------------------------------

    def allocate_shared(self, seq: str) -> int:
        """As for every pool. Error while the device sleeps."""
        self._awake("allocate_shared")
        return super().allocate_shared(seq)

    def allocate(self, seq: str, num_tokens: int) -> bool:
        """As for every pool; where room was granted, what the host has of it is loaded."""
        self._awake("allocate")
        granted = super().allocate(seq, num_tokens)
        if granted:
            self._plan_loads(seq)
        return granted

    def _plan_loads(self, seq: str) -> None:
        """All that can be loaded without a gap and may be hit; at random fewer."""
        behind = self._pool.blocks_for(self._pool.requests[seq].computed)
        stop = self._pool.limit(seq, self.hit_limit) // self.config.block_size
        for number, index in enumerate(self._pool.loadable(seq), behind):
            if index != number or index >= stop or self._at_random(0.1):
                return
            self._pool.begin_load(self._new_copy(), seq, index)

    def _check_write(self, seq: str, count: int) -> None:
        super()._check_write(seq, count)
        if count and self._pool.is_loading(seq):
            raise MisuseError(f"write {seq}: it is being loaded")

    def deallocate(self, seq: str) -> None:
        """Publish, offload what the host does not have, and give everything back."""
        self.cache(seq)
        self._plan_offloads(seq)
        self._pool.forget(seq)
        self._cancel_planned()

    def _plan_offloads(self, seq: str) -> None:
        rank = self._rank_of(seq)
        for key in self._pool.offloadable(seq):
            block = None if self._at_random(0.1) else self._host_block(rank)
            if block is not None:
                self._pool.begin_offload(self._new_copy(), rank, key, block)

    def preempt(self, seq: str) -> None:
        """As for every pool; it waits for no copy any more."""
        super().preempt(seq)
        self._cancel_planned()

    def abort(self, seq: str) -> None:
        """As for every pool; it waits for no copy any more."""
        super().abort(seq)
        self._cancel_planned()

    def truncate(self, seq: str, num_tokens: int) -> None:
        """As for every pool; blocks that are being filled are given back."""
        first = min((copy.place for copy in self._pool.loads(seq)), default=None)
        super().truncate(seq, num_tokens)
        if first is not None:
            self._pool.give_back_to(seq, first)
        self._cancel_planned()

    def hold(self, block_id: int, rank: int = 0) -> int:
        """Always an error: only copies hold blocks beside sequences."""
        raise MisuseError("hold: there are no outside holders in a pool with a host tier")

    # -- transfers -----------------------------------------------------------------------------------------------

    def transfers(self, rank: int = 0) -> Sequence[Transfer]:
        """Those that have not ended."""
        self._part(rank)
        return [
            Transfer(
                number=number,
                direction="load" if copy.direction == "load" else "offload",
                rank=rank,
                device_block=copy.device,
                host_block=copy.host,
                index=copy.place,
                seq=copy.seq,
                started=number in self._pool.begun,
            )
            for number in self._pool.transfers()
            if (copy := self._pool.copies[number]).rank == rank and copy.device is not None
        ]

    def start_transfers(self) -> None:
        """All planned copies begin."""
        self._open()
        self._pool.start_transfers()

    def transfer_finish(self, number: int, ok: bool) -> None:
        """A copy is complete, or its target is spoilt."""
        self._open()
        copy = self._pool.copies.get(number)
        if copy is None or copy.device is None or number not in self._pool.begun:
            raise MisuseError(f"transfer_finish: the copy {number} does not run")
        device, host = self._cells[copy.rank, copy.device], self._host_cells[copy.rank, copy.host]
        source, target = (host, device) if copy.direction == "load" else (device, host)
        target[:] = source if ok else _SPOILT
        self._pool.end_copy(number, ok)
        if copy.seq is not None and (not self._pool.is_loading(copy.seq) or self._at_random(0.5)):
            self._pool.go_on(copy.seq, self._pool.leading(copy.seq))

    def _cancel_planned(self) -> None:
        """Loads that nobody waits for need not begin."""
        for number in self._pool.transfers():
            copy = self._pool.copies[number]
            if number not in self._pool.begun and copy.direction == "load" and copy.seq is None:
                self._pool.end_copy(number, False)

    def _new_copy(self) -> int:
        self._last_copy += 1
        return self._last_copy

    # -- all tiers -----------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """The device memory is given up."""
        self._awake("sleep")
        if not self._pool.is_idle():
            raise MisuseError("sleep: blocks of the device are in use")
        for part, published, events in zip(self._pool.parts(), self._published, self._events, strict=True):
            events += [removed(chain, part) for chain in published]
            published.clear()
        self._pool.sleep()
        self._cells[:] = _SPOILT

    def wake(self) -> None:
        """There is device memory again."""
        self._open()
        if not self._pool.asleep:
            raise MisuseError("wake: the device is awake")
        self._pool.wake()

    def _awake(self, verb: str) -> None:
        self._open()
        if self._pool.asleep:
            raise MisuseError(f"{verb}: the device sleeps")

    # -- from a store --------------------------------------------------------------------------------------------

    def begin_prefetch(self, name: str, tokens: Sequence[int], context: Context, rank: int = 0) -> None:
        """A store is asked for leading blocks of these tokens."""
        self._part(rank)
        check_tokens(tokens)
        if name in self._pool.prefetches:
            raise MisuseError(f"begin_prefetch: {name} has begun already")
        self._pool.begin_prefetch(name, tokens, context, rank)

    def plan_prefetch(self, name: str, num_blocks: int) -> Sequence[tuple[int, int]]:
        """The blocks that the host does not have, as far as there is room for them."""
        found = self._prefetch(name)
        full = len(found.request.tokens) // self.config.block_size
        if found.planned is not None or not 0 <= num_blocks <= full:
            raise MisuseError(f"plan_prefetch {name}: {num_blocks} of {full} blocks, or a second plan")
        planned = self._pool.plan_prefetch(name, [])
        for index in range(num_blocks):
            known = self._pool.prefetched(name, index) in self._pool.hosts()[found.rank].cached
            if known and (not planned or self._at_random(0.5)):
                continue
            block = self._host_block(found.rank)
            if block is None:
                break
            planned = self._pool.plan_prefetch(name, [(index, block)])
        return planned

    def finish_prefetch(self, name: str, contents: Sequence[Tags]) -> None:
        """The first of the planned blocks have come."""
        found = self._prefetch(name)
        if found.planned is None or len(contents) > len(found.planned):
            raise MisuseError(f"finish_prefetch {name}: {len(contents)} blocks, which were not planned")
        for (_, block), tags in zip(found.planned, contents, strict=False):
            self._host_cells[found.rank, block] = tags
        self._pool.finish_prefetch(name, len(contents))

    def _prefetch(self, name: str) -> Prefetch:
        self._open()
        if name not in self._pool.prefetches:
            raise MisuseError(f"the prefetch {name} has not begun")
        return self._pool.prefetches[name]

    # -- the host ------------------------------------------------------------------------------------------------

    def host_free_ids(self, rank: int = 0) -> set[int]:
        """Host ids that nobody holds."""
        self._part(rank)
        return set(self._pool.hosts()[rank].free)

    def host_cached(self, rank: int = 0) -> Mapping[bytes, int]:
        """Keys on the host and their blocks."""
        self._part(rank)
        return keys_of(self._pool.hosts()[rank])

    def drain_host_events(self, rank: int = 0) -> Sequence[CacheEvent]:
        """What became of keys on the host since the last call: the difference to what was known then."""
        now = dict(self.host_cached(rank))
        known, self._host_known[rank] = self._host_known[rank], now
        gone = [CacheEvent("removed", key, block) for key, block in known.items() if now.get(key) != block]
        return gone + [CacheEvent("stored", key, block) for key, block in now.items() if known.get(key) != block]

    def _host_block(self, rank: int) -> int | None:
        """A free block of the host; an idle key gives way if there is none."""
        host = self._pool.hosts()[rank]
        if not host.free:
            idle = sorted((k for k in host.cached if len(host.holders[host.entry[k]]) == 1), key=lambda k: k.number)
            if not idle:
                return None
            self._pool.evict_host(rank, self._one(idle))
        return self._lowest(host.free)

    def _at_random(self, probability: float) -> bool:
        return self._random is not None and self._random.random() < probability
