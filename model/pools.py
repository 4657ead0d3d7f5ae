"""Models of pools that are used again: to make one takes longer than to run an episode in it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kvspec.model.conformance import PoolConfig
from kvspec.model.operations import Pool
from kvspec.model.world import Chains


class Pools:
    """Makes models of pools, and takes them back.

    Args:
        watch: whether they re-evaluate the invariants of the spec after each event.
    """

    def __init__(self, watch: bool = True) -> None:
        self._watch = watch
        self._spare: dict[int, list[tuple[Pool, _First]]] = defaultdict(list)
        self._out: dict[int, _First] = {}

    def take(self, config: PoolConfig) -> Pool:
        """A pool in its first state."""
        spare = self._spare[config.num_blocks]
        if spare:
            pool, first = spare.pop()
            first.restore()
            _restart(pool, config)
        else:
            pool = Pool(config, self._watch)
            first = _First(pool)
        self._out[id(pool)] = first
        return pool

    def give(self, pool: Pool) -> None:
        """The pool is no longer of use to whoever took it here."""
        first = self._out.pop(id(pool))
        self._spare[pool.config.num_blocks].append((pool, first))


class _First:
    """The state of a pool when it is new."""

    def __init__(self, pool: Pool) -> None:
        writer = pool.machine._writer
        indexes = [writer.space[name] for name in writer.indexes.values()]
        self._state: list[tuple[Any, Any]] = [(kept, kept.copy()) for kept in (*pool.machine.state.values(), *indexes)]

    def restore(self) -> None:
        for kept, first in self._state:
            kept.clear()
            if isinstance(kept, list):
                kept.extend(first)
            else:
                kept.update(first)


def _restart(pool: Pool, config: PoolConfig) -> None:
    pool.config = config
    pool.chains = Chains(config.block_size)
    for kept in (pool.requests, pool._users, pool._outside):
        kept.clear()
