"""Models of pools that are used again: to make one takes longer than to run an episode in it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from kvspec.model.conformance import Form, PoolConfig
from kvspec.model.engines.pool import EnginePool
from kvspec.model.executable import AnyPool, GroupedPool, PagedPool, Pool, RankedPool, TieredPool

MODELS: Final[Mapping[Form, type[AnyPool | EnginePool]]] = {
    Form.MANAGERS: Pool,
    Form.POOLS: RankedPool,
    Form.PAGES: PagedPool,
    Form.TIERS: TieredPool,
    Form.COMPOSITES: GroupedPool,
    Form.ENGINES: EnginePool,
}
"""What runs the specification of each form."""


class Pools:
    """Makes models, and takes them back.

    Args:
        watch, ghosts: whether they re-evaluate the invariants of the spec after each event, and keep ghosts (see
            `Compiled`).
    """

    def __init__(self, watch: bool = True, ghosts: bool = True) -> None:
        self._watch, self._ghosts = watch, ghosts
        self._spare: defaultdict[Form, list[Any]] = defaultdict(list)

    def take(self, config: PoolConfig) -> Any:
        """A model in its first state, of the form of the config."""
        spare = self._spare[config.form]
        if not spare:
            return MODELS[config.form](config, self._watch, self._ghosts)
        pool = spare.pop()
        pool.restart(config)
        return pool

    def give(self, pool: AnyPool | EnginePool) -> None:
        """The model is no longer of use to whoever took it here."""
        self._spare[pool.config.form].append(pool)
