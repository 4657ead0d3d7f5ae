"""The specification: one chapter for each part of a KV-cache manager, in the order in which they are read.

Nothing is imported here until a chapter is asked for, so that the command line starts fast.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvspec.spec.language import Chapter

CHAPTERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "keys": ("kvspec.spec.keys", "Keys"),
        "slots": ("kvspec.spec.slots", "Slots"),
        "strides": ("kvspec.spec.strides", "Strides"),
        "blocks": ("kvspec.spec.blocks", "Blocks"),
        "handles": ("kvspec.spec.handles", "Handles"),
        "free_list": ("kvspec.spec.free_list", "FreeList"),
        "usage": ("kvspec.spec.usage", "Usage"),
        "prefix_cache": ("kvspec.spec.prefix_cache", "PrefixCache"),
        "recency": ("kvspec.spec.recency", "Recency"),
        "lru": ("kvspec.spec.lru", "Lru"),
        "sequences": ("kvspec.spec.sequences", "Sequences"),
        "single_block": ("kvspec.spec.single_block", "SingleBlock"),
        "linear_state": ("kvspec.spec.linear_state", "LinearState"),
        "trim": ("kvspec.spec.trim", "Trim"),
        "admission": ("kvspec.spec.admission", "Admission"),
        "lifecycle": ("kvspec.spec.lifecycle", "Lifecycle"),
        "pool": ("kvspec.spec.pool", "Pool"),
        "concurrent": ("kvspec.spec.concurrent", "Concurrent"),
        "window": ("kvspec.spec.window", "Window"),
        "sliding_window": ("kvspec.spec.sliding_window", "SlidingWindow"),
        "composite": ("kvspec.spec.composite", "Composite"),
        "pages": ("kvspec.spec.pages", "Pages"),
        "xtensor": ("kvspec.spec.xtensor", "XTensor"),
        "prefetch": ("kvspec.spec.prefetch", "Prefetch"),
        "hierarchy": ("kvspec.spec.hierarchy", "Hierarchy"),
        "engine": ("kvspec.spec.engine", "Engine"),
    }
)
"""Module and class of each chapter; a chapter stands behind those that it uses."""


class UnknownChapter(LookupError):
    """There is no chapter of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no chapter '{name}'; the chapters are {', '.join(CHAPTERS)}")


@functools.cache
def load(name: str) -> Chapter:
    """The chapter of that name, traced on first use.

    Raises:
        UnknownChapter: the name is none of `CHAPTERS`.
    """
    if name not in CHAPTERS:
        raise UnknownChapter(name)
    from kvspec.spec.language import Chapter

    module, cls = CHAPTERS[name]
    return Chapter(getattr(importlib.import_module(module), cls))
