"""Models of pools that are used again: to make one takes longer than to run an episode in it."""

from __future__ import annotations

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
        self._spare: list[Pool] = []
        self._blank: dict[int, list[Any]] = {}

    def take(self, config: PoolConfig) -> Pool:
        """A pool in its first state."""
        if self._spare:
            pool = self._spare.pop()
            self._restart(pool, config)
            return pool
        pool = Pool(config, self._watch)
        self._blank[id(pool)] = [kept.copy() for kept in _state(pool)]
        return pool

    def give(self, pool: Pool) -> None:
        """The pool is no longer of use to whoever took it here."""
        self._spare.append(pool)

    def _restart(self, pool: Pool, config: PoolConfig) -> None:
        """The state of a new pool of this size."""
        for kept, blank in zip(_state(pool), self._blank[id(pool)], strict=True):
            kept.clear()
            if isinstance(kept, list):
                kept.extend(blank)
            else:
                kept.update(blank)
        for used in (pool.requests, pool._users, pool._outside):
            used.clear()
        pool.config, pool.chains, pool._blocks = config, Chains(config.block_size), range(config.num_blocks)
        writer = pool.machine._writer
        for path, value in pool.chains.statics(config.num_blocks).items():
            writer.space[writer.static_names[path]] = value
        pool.free.clear()
        pool.free.update(range(1, config.num_blocks))


def _state(pool: Pool) -> list[Any]:
    """The state variables, and the indexes that are kept beside them."""
    writer = pool.machine._writer
    return [*pool.machine.state.values(), *(writer.space[name] for name in writer.indexes.values())]
