"""Models of pools that are used again: to make one takes longer than to run an episode in it."""

from __future__ import annotations

from typing import TypeVar

from kvspec.model.conformance import PoolConfig
from kvspec.model.executable import AnyPool, Pool, RankedPool

P = TypeVar("P", Pool, RankedPool)


def _reused(spare: list[P], config: PoolConfig) -> P | None:
    """One of those that were given back, in its first state."""
    if not spare:
        return None
    pool = spare.pop()
    pool.restart(config)
    return pool


class Pools:
    """Makes models of managers and of pools of ranks, and takes them back.

    Args:
        watch: whether they re-evaluate the invariants of the spec after each event.
    """

    def __init__(self, watch: bool = True) -> None:
        self._watch = watch
        self._managers: list[Pool] = []
        self._ranked: list[RankedPool] = []

    def take(self, config: PoolConfig) -> AnyPool:
        """A model in its first state, of the kind that the config asks for."""
        return self.take_ranked(config) if config.is_pool else self.take_manager(config)

    def take_manager(self, config: PoolConfig) -> Pool:
        """A model of one manager, in its first state."""
        return _reused(self._managers, config) or Pool(config, self._watch)

    def take_ranked(self, config: PoolConfig) -> RankedPool:
        """A model of a pool of ranks, in its first state."""
        return _reused(self._ranked, config) or RankedPool(config, self._watch)

    def give(self, pool: AnyPool) -> None:
        """The model is no longer of use to whoever took it here."""
        if isinstance(pool, Pool):
            self._managers.append(pool)
        else:
            self._ranked.append(pool)
