"""Adapter of SGLang's `UnifiedRadixCache` with the tree that is written in Rust.

python -m kvspec.impl.adapters sglang-unified-rust
"""

from __future__ import annotations

from typing import Final

from kvspec.impl.adapters import sglang_unified
from kvspec.impl.adapters.sglang_engine import SglangEngine
from kvspec.impl.adapters.sglang_package import PACKAGE, VERSION
from kvspec.impl.adapters.sglang_unified import ABILITIES, misuse
from kvspec.model.conformance import PoolConfig

__all__ = ["ABILITIES", "NAME", "PACKAGE", "VERSION", "make", "misuse"]

NAME: Final = "sglang-unified-rust"


def make(config: PoolConfig) -> SglangEngine:
    """An engine around one of its variants."""
    return sglang_unified.make(config, "rust")
