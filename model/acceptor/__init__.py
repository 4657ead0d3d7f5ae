"""The acceptor: drives a target, looks at what it shows, and judges it by the spec.

Whatever a target decides (which free block, which victim, which rank, when a key is dropped) is read from its
observations and made as an event of the model; an event that the spec does not allow is the verdict. What is observed
beyond that (free ids, counters, reference counts, keys, states, device contents) is compared with the model's state
after each operation, or, in long runs, now and then.

`judge_of` gives the judge for a target: an `Acceptor` for one manager, a `PoolAcceptor` for a pool of ranks, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvspec.model.acceptor.contents import context_start
from kvspec.model.acceptor.grouped import CompositeAcceptor
from kvspec.model.acceptor.manager import Acceptor
from kvspec.model.acceptor.paged import PagedAcceptor
from kvspec.model.acceptor.ranked import PoolAcceptor
from kvspec.model.acceptor.threads import PATIENCE, InThreads
from kvspec.model.acceptor.tiered import TieredAcceptor
from kvspec.model.conformance import Bounded, Form, PoolConfig, Target
from kvspec.model.engines.judge import EngineAcceptor
from kvspec.model.executable import AnyPool

AnyAcceptor = Acceptor | PoolAcceptor | CompositeAcceptor | EngineAcceptor

JUDGES: Final[Mapping[Form, type[AnyAcceptor]]] = {
    Form.MANAGERS: Acceptor,
    Form.POOLS: PoolAcceptor,
    Form.PAGES: PagedAcceptor,
    Form.TIERS: TieredAcceptor,
    Form.COMPOSITES: CompositeAcceptor,
    Form.ENGINES: EngineAcceptor,
}
"""Who judges a target of each form."""

__all__ = [
    "PATIENCE",
    "Acceptor",
    "AnyAcceptor",
    "CompositeAcceptor",
    "EngineAcceptor",
    "PagedAcceptor",
    "PoolAcceptor",
    "TieredAcceptor",
    "context_start",
    "judge_of",
]


def judge_of(
    target: Target,
    config: PoolConfig,
    *,
    every: int = 1,
    watch: bool = True,
    pool: AnyPool | None = None,
    patience: float | None = None,
) -> AnyAcceptor:
    """The judge for a target, by the config that the target was made with. `Judging.leave` is to be called at its end.

    Args:
        target, config, every, watch: as for `Acceptor`.
        pool: a new model of the right form, where making one each time would take too long.
        patience: seconds within which a call has to return, where several threads call, or another process is called.

    Raises:
        TargetError: the target does not show enough to be judged.
    """
    judge: Any = JUDGES[config.form]
    if isinstance(target, Bounded):
        target.patience = patience
    called: Any = target if config.num_threads == 1 else InThreads(target, config.num_threads, patience or PATIENCE)
    found: AnyAcceptor = judge(called, config, every=every, watch=watch, pool=pool)
    return found
