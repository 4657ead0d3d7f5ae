"""One rank of a pool, or one group of a composite, seen as a manager is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvspec.model.conformance import CacheEvent, CompositeTarget, PoolTarget


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


class GroupView:
    """What a composite shows of one group; keys and outside holders it has none."""

    def __init__(self, target: CompositeTarget, group: int) -> None:
        self._target, self._group = target, group

    def free_ids(self) -> set[int]:
        return self._target.free_ids(self._group)

    def free_count(self) -> int:
        return self._target.free_count(self._group)

    def used_count(self) -> int:
        return self._target.used_count(self._group)

    def ref_count(self, block_id: int) -> int:
        return self._target.ref_count(block_id, self._group)

    def cached(self) -> Mapping[bytes, int]:
        return self._target.cached()

    def drain_events(self) -> Sequence[CacheEvent]:
        return self._target.drain_events()

    def hold(self, block_id: int) -> int:
        return self._target.hold(block_id)

    def evict(self, num_blocks: int) -> int:
        return self._target.evict(num_blocks)
