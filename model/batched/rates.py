"""How fast an exploration is, for benchmarks."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kvspec.model.batched.explorer import Explorer
from kvspec.model.exploring.outcome import Outcome


@dataclass(frozen=True)
class Measured:
    """An exploration with the seconds that it took, by the clock and of the processor; compiling is part of both."""

    outcome: Outcome
    wall: float
    processor: float

    @property
    def generated_per_second(self) -> float:
        """Steps taken, by the clock."""
        return self.outcome.generated / self.wall

    @property
    def distinct_per_second(self) -> float:
        """New states, by the clock."""
        return self.outcome.distinct / self.wall


def measure(explorer: Explorer) -> Measured:
    """Explore once, with the clock running."""
    wall, processor = time.perf_counter(), time.process_time()
    outcome = explorer.explore()
    return Measured(outcome, time.perf_counter() - wall, time.process_time() - processor)
