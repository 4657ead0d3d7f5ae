"""One rank of a pool, seen as a manager is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvspec.model.conformance import CacheEvent, PoolTarget


class RankView:
    """What a pool shows of one rank."""

    def __init__(self, target: PoolTarget, rank: int) -> None:
        self._target, self._rank = target, rank

    def free_ids(self) -> set[int]:
        return self._target.free_ids(self._rank)

    def free_count(self) -> int:
        return self._target.free_count(self._rank)

    def used_count(self) -> int:
        return self._target.used_count(self._rank)

    def ref_count(self, block_id: int) -> int:
        return self._target.ref_count(block_id, self._rank)

    def cached(self) -> Mapping[bytes, int]:
        return self._target.cached(self._rank)

    def drain_events(self) -> Sequence[CacheEvent]:
        return self._target.drain_events(self._rank)

    def hold(self, block_id: int) -> int:
        return self._target.hold(block_id, self._rank)

    def evict(self, num_blocks: int) -> int:
        return self._target.evict(num_blocks, self._rank)
