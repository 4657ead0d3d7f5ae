"""The executable model behind the target protocol.

It is the contract taken at its word: every operation is a program of events of the spec, contents are one tag per
token, and what the contract leaves open (which free block, which victim, which rank) is decided here, by the lowest
number or by a seed. So it shows what a target has to do, and it is what others are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvspec.model.conformance import Form, PoolConfig
from kvspec.model.engines.reference import ModelEngineTarget
from kvspec.model.reference.grouped import ModelCompositeTarget
from kvspec.model.reference.manager import ModelTarget
from kvspec.model.reference.paged import ModelPagedTarget
from kvspec.model.reference.ranked import ModelPoolTarget
from kvspec.model.reference.tiered import ModelTieredTarget

__all__ = [
    "ModelCompositeTarget", "ModelPagedTarget", "ModelPoolTarget", "ModelTarget", "ModelTieredTarget", "model_target",
]  # fmt: skip


AnyModelTarget = ModelTarget | ModelPoolTarget | ModelCompositeTarget | ModelEngineTarget

TARGETS: Final[Mapping[Form, type[AnyModelTarget]]] = {
    Form.MANAGERS: ModelTarget,
    Form.POOLS: ModelPoolTarget,
    Form.PAGES: ModelPagedTarget,
    Form.TIERS: ModelTieredTarget,
    Form.COMPOSITES: ModelCompositeTarget,
    Form.ENGINES: ModelEngineTarget,
}
"""The target of each form."""


def model_target(config: PoolConfig, **options: Any) -> AnyModelTarget:
    """A target of the form that the config asks for.

    Args:
        config: sizes and options.
        options: those of all classes.
    """
    return TARGETS[config.form](config, **options)
