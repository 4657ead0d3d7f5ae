"""Models of pools that are used again: to make one takes longer than to run an episode in it."""

from __future__ import annotations

from kvspec.model.conformance import PoolConfig
from kvspec.model.operations import Pool


class Pools:
    """Makes models of pools, and takes them back.

    Args:
        watch: whether they re-evaluate the invariants of the spec after each event.
    """

    def __init__(self, watch: bool = True) -> None:
        self._watch = watch
        self._spare: list[Pool] = []

    def take(self, config: PoolConfig) -> Pool:
        """A pool in its first state."""
        if not self._spare:
            return Pool(config, self._watch)
        pool = self._spare.pop()
        pool.restart(config)
        return pool

    def give(self, pool: Pool) -> None:
        """The pool is no longer of use to whoever took it here."""
        self._spare.append(pool)
