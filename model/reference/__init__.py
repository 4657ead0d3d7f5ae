"""The executable model behind the target protocol.

It is the contract taken at its word: every operation is a program of events of the spec, contents are one tag per
token, and what the contract leaves open (which free block, which victim, which rank) is decided here, by the lowest
number or by a seed. So it shows what a target has to do, and it is what others are compared with.
"""

from __future__ import annotations

from typing import Any

from kvspec.model.conformance import PoolConfig
from kvspec.model.reference.manager import ModelTarget
from kvspec.model.reference.ranked import ModelPoolTarget

__all__ = ["ModelPoolTarget", "ModelTarget", "model_target"]


def model_target(config: PoolConfig, **options: Any) -> ModelTarget | ModelPoolTarget:
    """A manager or a pool of ranks, as the config asks for.

    Args:
        config: sizes and options.
        options: those of both classes.
    """
    return ModelPoolTarget(config, **options) if config.is_pool else ModelTarget(config, **options)
