"""A content tag in two halves, each of which float32 holds exactly (see `kvspec.impl.buffers`).

One text for single numbers and for arrays of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from kvspec.model.conformance import Tags

N = TypeVar("N", int, "Tags")

HALF_BITS = 24
"""Whole numbers of so many bits are exact in float32."""
TAG_LIMIT = 1 << (2 * HALF_BITS)
"""Tags are below this."""


def low_half(tag: N) -> N:
    """The lower bits of a tag."""
    return tag & ((1 << HALF_BITS) - 1)


def high_half(tag: N) -> N:
    """The upper bits of a tag."""
    return tag >> HALF_BITS


def joined(low: N, high: N) -> N:
    """The tag with these halves."""
    return low + (high << HALF_BITS)
