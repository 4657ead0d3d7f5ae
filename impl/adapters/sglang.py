"""Adapter of SGLang's `RadixCache`, with its allocator of tokens and its allocator of pages.

python -m kvspec.impl.adapters sglang
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from kvspec.impl.adapters.sglang_cache import Space, TreeCache, TreePath, pages_of
from kvspec.impl.adapters.sglang_engine import SglangEngine
from kvspec.impl.adapters.sglang_package import (
    MAX_TOKENS,
    PACKAGE,
    VERSION,
    CacheInitParams,
    PagedTokenToKVPoolAllocator,
    RadixCache,
    ReqToTokenPool,
    TokenToKVPoolAllocator,
    model_config,
)
from kvspec.model.conformance import PoolConfig
from kvspec.model.engines.protocol import Abilities

__all__ = ["NAME", "PACKAGE", "VERSION", "make", "misuse"]

NAME: Final = "sglang"
ABILITIES: Final = Abilities(("token", "paged"), ("priority", "chunked"), fewest_blocks=8)
MINIMUM: Final = {"hits": 10, "evictions": 10, "refusals": 10, "preemptions": 1}


class Radix(TreeCache):
    """`RadixCache` with one of its allocators."""

    def __init__(self, variant: str, num_pages: int, page_size: int, num_rows: int) -> None:
        super().__init__(page_size)
        size = num_pages * page_size
        self.rows = ReqToTokenPool(num_rows, MAX_TOKENS, "cpu", False)
        if variant == "token":
            self.allocator: Any = TokenToKVPoolAllocator(size, torch.float32, "cpu", None, False)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(size, page_size, torch.float32, "cpu", None, False)
        self.tree = RadixCache(
            CacheInitParams(False, self.rows, self.allocator, page_size, enable_kv_cache_events=True)
        )

    def paths(self) -> Iterator[TreePath]:
        """The path to every node."""
        yield from self._below(self.tree.root_node, (), [])

    def _below(self, node: Any, tokens: Sequence[int], slots: Sequence[int]) -> Iterator[TreePath]:
        for child in node.children.values():
            reached = [*tokens, *child.key.raw_token_ids()]
            where = [*slots, *child.value.tolist()]
            space = Space(child.key.extra_key, child.key.cache_salt)
            yield TreePath(space, reached, [pages_of(where, self.page_size)])
            yield from self._below(child, reached, where)


def make(config: PoolConfig) -> SglangEngine:
    """An engine around one; in the variant ``token`` every token has a page of its own."""
    assert config.engine is not None
    model_config()
    variant = config.engine.variant or ABILITIES.variants[0]
    page_size = 1 if variant == "token" else max(2, config.block_size)
    cache = Radix(variant, config.num_blocks - 1, page_size, config.engine.max_running)
    return SglangEngine(cache, config.engine, ABILITIES, MINIMUM)


def misuse() -> None:
    """From now on a reset does not wait until nothing runs."""
    SglangEngine.flushes_in_use = True
