"""Contracts of the pure functions of chapter `strides`, on Python's integers of any size."""

from __future__ import annotations

from contracts.terms import contract

import kvspec.spec.strides as strides


@contract(
    strides.stride,
    theorems=("stride_fits_both", "stride_is_least"),
    bound="block sizes and intervals of at most 6 tokens",
)
def stride(block_size: int, checkpoint_interval: int, multiple: int) -> None:
    """A stride is whole blocks and whole intervals, and so is no smaller number."""
    assert 1 <= block_size <= 6 and 1 <= checkpoint_interval <= 6
    assert multiple >= 1 and multiple % block_size == 0 and multiple % checkpoint_interval == 0
    found = strides.stride(block_size, checkpoint_interval)
    assert 1 <= found <= multiple
    assert found % block_size == 0 and found % checkpoint_interval == 0


@contract(strides.common_multiple, theorems=("stride_fits_both",))
def common_multiple(size: int, interval: int, divisor: int) -> None:
    """A divisor of both numbers is left out once: the product is a multiple of either."""
    assert size >= 1 and interval >= 1 and divisor >= 1
    found = strides.common_multiple(size * divisor, interval * divisor, divisor)
    assert found == size * (interval * divisor)
    assert found == interval * (size * divisor)


@contract(strides.boundaries, strides.boundary_position, theorems=("boundaries_counted", "number_back"))
def boundaries(num_tokens: int, stride: int) -> None:
    """The last boundary within some tokens is not behind them, and the next one is."""
    assert num_tokens >= 0 and stride >= 1
    number = strides.boundaries(num_tokens, stride)
    assert number >= 0
    assert strides.boundary_position(number, stride) <= num_tokens < strides.boundary_position(number + 1, stride)


@contract(strides.boundaries, strides.boundary_position, theorems=("number_back", "whole_strides"))
def number_back(number: int, stride: int) -> None:
    """A boundary's position is whole strides, and tells its number."""
    assert number >= 0 and stride >= 1
    position = strides.boundary_position(number, stride)
    assert position % stride == 0
    assert strides.boundaries(position, stride) == number


@contract(strides.last_resumable, theorems=("resumable_leaves_one", "full_hit_is_one_less"))
def last_resumable(num_tokens: int, stride: int) -> None:
    """The deepest boundary that leaves a token leaves one, and the next boundary leaves none."""
    assert num_tokens >= 1 and stride >= 1
    number = strides.last_resumable(num_tokens, stride)
    assert number >= 0
    assert number * stride < num_tokens <= (number + 1) * stride


@contract(strides.chunk_end, theorems=("chunk_goes_on", "chunk_skips_none", "chunk_ends_at_boundary"))
def chunk_end(computed: int, limit: int, stride: int) -> None:
    """A step goes on, not beyond its limit nor the next boundary, and ends at one of the two."""
    assert 0 <= computed < limit and stride >= 1
    end = strides.chunk_end(computed, limit, stride)
    following = (computed // stride + 1) * stride
    assert computed < end <= limit
    assert end <= following
    assert end in (limit, following)


@contract(strides.smaller, theorems=("chunk_goes_on",))
def smaller(one: int, other: int) -> None:
    """One of the two, and the other is not less."""
    assert isinstance(one, int) and isinstance(other, int)
    found = strides.smaller(one, other)
    assert found in (one, other)
    assert found <= one and found <= other
