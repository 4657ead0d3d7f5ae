"""Whether an object is a target."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Final

from kvspec.model.conformance.capabilities import METHODS_OF, Capability, excused_by
from kvspec.model.conformance.config import PoolConfig
from kvspec.model.conformance.errors import TargetError, told
from kvspec.model.conformance.targets import MakeTarget, Target

_PROTOCOL: Final = sorted(
    {name for name, _ in inspect.getmembers(Target, inspect.isfunction) if not name.startswith("_")}.union(
        *METHODS_OF.values()
    )
)
"""All methods, those of variants too: who has no such capability is excused from them."""

_ENGINE_METHODS: Final = ("layout", "submit", "step", "abort", "evict", "reset", "close")
"""Of `kvspec.model.engines.protocol.EngineTarget`, in the place of all others."""


def missing_parts(target: object) -> list[str]:
    """What an object lacks to be a target: attributes, and methods that its capabilities ask for."""
    missing = [name for name in ("capabilities", "hit_limit") if not hasattr(target, name)]
    shown: Collection[Capability] = getattr(target, "capabilities", ())
    excused = excused_by(shown)
    if Capability.ENGINE in shown:
        methods = [*_ENGINE_METHODS, *([] if "abilities" in dir(target) else ["abilities"])]
        return missing + [f"{m}()" if m in _ENGINE_METHODS else m for m in methods if not hasattr(target, m)]
    return missing + [f"{m}()" for m in _PROTOCOL if m not in excused and not callable(getattr(target, m, None))]


def checked_target(make_target: MakeTarget, config: PoolConfig) -> Target:
    """A new target.

    Raises:
        TargetError: it cannot be made, or is none.
    """
    try:
        target = make_target(config)
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(f"cannot be made with {_words(config)}: {told(error)}") from error
    missing = missing_parts(target)
    if missing:
        raise TargetError(f"lacks {', '.join(missing)}")
    unknown = [str(c) for c in target.capabilities if c not in frozenset(Capability)]
    if unknown:
        raise TargetError(f"has unknown capabilities: {', '.join(unknown)}")
    if target.hit_limit not in ("all", "all_but_one"):
        raise TargetError(f"has hit_limit {target.hit_limit!r}, expected 'all' or 'all_but_one'")
    return target


def _words(config: PoolConfig) -> str:
    if config.manager_types:
        return ", ".join(f"a group of {kind.num_blocks} blocks of {kind.block_size}" for kind in config.manager_types)
    return f"{config.num_blocks} blocks of {config.block_size}"
