"""A target in whose fiftieth step the user presses Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence

from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import Tags


class InterruptingTarget(TorchTarget):
    """Raises KeyboardInterrupt in the middle of an operation, after the target has changed."""

    steps = 0

    def write(self, batch: Sequence[tuple[str, Tags]]) -> None:
        super().write(batch)
        type(self).steps += 1
        if self.steps % 50 == 0:
            raise KeyboardInterrupt
