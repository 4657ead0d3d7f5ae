"""A replay that is judged: every step of the manager is explained by events of the spec."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import cast

from kvspec.model.acceptor import judge_of
from kvspec.model.conformance import MakeTarget, PoolConfig, checked_target
from kvspec.model.pools import Pools
from kvspec.model.promises import Violation
from kvspec.model.replay import Driver, Replay, ReplayOptions, ReplayReport, ReplayStatistics
from kvspec.model.workload import Request


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of small objects and hardly a cycle: the cyclic collector would find nothing, again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class JudgedReplay:
    """Drives a target with a workload under the acceptor.

    After each operation the invariants are re-evaluated on what it touched, but for those that compare a call with what
    there was before it (`Compiled`, ghosts): a refusal is compared with that anyway. The whole state and everything
    that the target shows are compared every `sweep_steps` engine steps and at the end.

    Attributes:
        sweeps: how many whole comparisons were made.
        violation: the first one, if any.
    """

    def __init__(
        self,
        make_target: MakeTarget,
        config: PoolConfig,
        requests: Iterable[Request],
        options: ReplayOptions | None = None,
        *,
        sweep_steps: int = 1000,
        on_step: Callable[[ReplayStatistics], None] = lambda statistics: None,
    ) -> None:
        pool = Pools(ghosts=False).take(config)
        self.acceptor = judge_of(checked_target(make_target, config), config, every=0, pool=pool)
        self.sweeps = 0
        self.violation: Violation | None = None
        self._sweep_steps, self._on_step = sweep_steps, on_step
        self._replay = Replay(
            cast(Driver, self.acceptor),
            config,
            requests,
            options,
            evictions=lambda: self.acceptor.counts["evictions"],
            violation_types=(Violation,),
            on_step=self._step,
        )

    def run(self) -> ReplayReport:
        """Run to the end, or to the first violation.

        An interrupted run is not compared at its end: it may have stopped in the middle of an operation.
        """
        try:
            return self._run()
        finally:
            self.acceptor.leave()

    def _run(self) -> ReplayReport:
        with _no_collection():
            report = self._replay.run()
        raised = self._replay.raised
        self.violation = raised if isinstance(raised, Violation) else None
        if self.violation is None and not report.violations and not report.statistics.interrupted:
            try:
                self._sweep()
            except Violation as violation:
                self.violation = violation
        return report

    def _step(self, statistics: ReplayStatistics) -> None:
        if statistics.steps % self._sweep_steps == 0:
            self._sweep()
        self._on_step(statistics)

    def _sweep(self) -> None:
        self.acceptor.sweep()
        self.sweeps += 1
