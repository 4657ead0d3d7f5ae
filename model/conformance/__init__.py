"""The target protocol: what a KV-cache manager must offer so that it can be driven and judged.

A *target* wraps one manager. The acceptor calls its operations in the words of the seed (sections 2.1, 2.2 and 8),
looks at what the target can show, and accepts every behaviour that the specification allows: any free id, any legal
victim, any moment of eviction. Three outcomes are told apart:

- **done**: the call returns its result;
- **refused**: the pool has no room. ``allocate`` returns ``False`` and leaves everything as it was;
- **error**: the call itself makes no sense (unknown sequence, double release, negative length). It raises
  `MisuseError` and leaves everything as it was.

What a target cannot show is left out of its `Target.capabilities` and reported as *not observed*, never as passed;
`METHODS_OF` says which methods a capability needs. Any exception but `MisuseError` is a fault of the target.

The commands find a target as ``package.module:Class``, from the current folder on. ``docs/conform.md`` has an example.
"""

from __future__ import annotations

from kvspec.model.conformance.capabilities import (
    METHODS_OF,
    OF_HOST_TIERS,
    OF_POOLS,
    OF_VARIANTS,
    Capability,
    excused_by,
)
from kvspec.model.conformance.check import checked_target, missing_parts
from kvspec.model.conformance.config import EngineConfig, Form, ManagerType, PoolConfig
from kvspec.model.conformance.errors import MisuseError, NoReturnError, RemoteError, TargetError, UnusableError, told
from kvspec.model.conformance.targets import (
    Bounded,
    CompositeTarget,
    HostTarget,
    MakeTarget,
    PagedTarget,
    PoolTarget,
    Target,
    look,
)
from kvspec.model.conformance.values import STATE_BITS, CacheEvent, Context, Listed, Tags, Transfer, advance

__all__ = [
    "METHODS_OF",
    "OF_HOST_TIERS",
    "OF_POOLS",
    "OF_VARIANTS",
    "STATE_BITS",
    "Bounded",
    "CacheEvent",
    "Capability",
    "CompositeTarget",
    "Context",
    "EngineConfig",
    "Form",
    "HostTarget",
    "Listed",
    "MakeTarget",
    "ManagerType",
    "MisuseError",
    "NoReturnError",
    "PagedTarget",
    "PoolConfig",
    "PoolTarget",
    "RemoteError",
    "Tags",
    "Target",
    "TargetError",
    "Transfer",
    "UnusableError",
    "advance",
    "checked_target",
    "excused_by",
    "look",
    "missing_parts",
    "told",
]
