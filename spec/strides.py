"""Where a recurrent state can have a checkpoint, in tokens (seed 7.2; class `LinearStatePrefixCache`).

A checkpoint goes with a prefix of whole blocks, and an engine may want one only every so many tokens. So the positions
that can have one are the multiples of a *stride*, the least common multiple of the block size and the checkpoint
interval. Here boundaries are counted in strides (chapter `trim` counts all that lie between blocks): boundary n has n
strides of tokens before it, and boundary 0 is the empty prefix.

Going over a token twice spoils a recurrent state, and the last known token has to be computed, since its logits are
needed: a hit ends at the *last resumable* boundary or before. A checkpoint can only be taken where a step ended, so
while a prompt is computed in chunks, each ends at the next boundary or at the limit of the step (`chunk_end`).

The functions are written once and read twice, as in chapter `slots`.
"""

from __future__ import annotations

import math
from typing import TypeVar

from kvspec.spec.language import Bool, Machine, Nat, choose, exists, forall, implies, nat, theorem, witness

N = TypeVar("N", int, Nat)


def stride(block_size: int, checkpoint_interval: int) -> int:
    """The least common multiple of the block size and the checkpoint interval, in tokens; both ``>= 1``."""
    return common_multiple(block_size, checkpoint_interval, math.gcd(block_size, checkpoint_interval))


def common_multiple(block_size: N, checkpoint_interval: N, divisor: N) -> N:
    """A multiple of both numbers, for a divisor of both; the greater the divisor, the less it is."""
    return block_size // divisor * checkpoint_interval


def boundaries(num_tokens: N, stride: N) -> N:
    """The number of the last boundary within that many tokens: so many strides are whole; ``stride >= 1``."""
    return num_tokens // stride


def boundary_position(number: N, stride: N) -> N:
    """The tokens before a boundary."""
    return number * stride


def last_resumable(num_tokens: N, stride: N) -> N:
    """The number of the deepest boundary that leaves a token to be computed; ``num_tokens`` and ``stride >= 1``."""
    return boundaries(num_tokens - 1, stride)


def chunk_end(computed: N, limit: N, stride: N) -> N:
    """Where a step ends that goes from ``computed`` tokens to the next boundary, and at most to the limit."""
    return smaller(boundary_position(boundaries(computed, stride) + 1, stride), limit)


def smaller(one: N, other: N) -> N:
    """One of two numbers, and not more than either."""
    if isinstance(one, Nat):
        return choose(one < other, one, other)
    return min(one, other)


class Strides(Machine):
    """A step that ends by `chunk_end` skips no boundary, and a hit that ends by `last_resumable` leaves a token."""

    # -- the stride ----------------------------------------------------------------------------------------------

    @theorem("a stride is a number of whole blocks and of whole intervals")
    def stride_fits_both(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda size, interval, divisor: implies(
                divisor >= 1,
                (common_multiple(size * divisor, interval * divisor, divisor) == interval * (size * divisor))
                & (common_multiple(size * divisor, interval * divisor, divisor) == size * (interval * divisor)),
            ),
        )

    # Numbers without a common divisor have multiples that differ by one, which is how the theorem says it of the two.
    @theorem("without a common divisor it is the least: whole blocks that are whole intervals are whole strides")
    def stride_is_least(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            Nat,
            Nat,
            lambda size, interval, more, less, blocks, intervals: implies(
                (more * size == less * interval + 1) & (blocks * size == intervals * interval),
                blocks * size == (intervals * more - blocks * less) * common_multiple(size, interval, nat(1)),
            ),
        )

    # -- boundaries ----------------------------------------------------------------------------------------------

    @theorem("the boundaries within some tokens are those that are not behind them")
    def boundaries_counted(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda tokens, number, stride: implies(
                stride >= 1,
                (number <= boundaries(tokens, stride)) == (boundary_position(number, stride) <= tokens),
            ),
        )

    @theorem("a boundary's position tells its number")
    def number_back(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda number, stride: implies(
                stride >= 1, boundaries(boundary_position(number, stride), stride) == number
            ),
        )

    @theorem("a position is a boundary exactly if it is whole strides")
    def whole_strides(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda tokens, stride: implies(
                stride >= 1,
                (tokens % stride == 0) == (boundary_position(boundaries(tokens, stride), stride) == tokens),
            ),
        )

    # -- where a hit ends ----------------------------------------------------------------------------------------

    @theorem("a boundary leaves a token to be computed exactly if it is not deeper than the last resumable one")
    def resumable_leaves_one(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda tokens, number, stride: implies(
                (stride >= 1) & (tokens >= 1),
                (number <= last_resumable(tokens, stride)) == (boundary_position(number, stride) < tokens),
            ),
        )

    @theorem("a sequence that ends at a boundary is resumed one boundary before")
    def full_hit_is_one_less(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda number, stride: implies(
                stride >= 1, last_resumable(boundary_position(number + 1, stride), stride) == number
            ),
        )

    # -- where a step ends ---------------------------------------------------------------------------------------

    @theorem("a step goes on, and not beyond its limit")
    def chunk_goes_on(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda computed, limit, stride: implies(
                (stride >= 1) & (computed < limit),
                (computed < chunk_end(computed, limit, stride)) & (chunk_end(computed, limit, stride) <= limit),
            ),
        )

    @theorem("a step skips no boundary: before its last token there are no more than before its first")
    def chunk_skips_none(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda computed, limit, stride: implies(
                (stride >= 1) & (computed < limit),
                boundaries(chunk_end(computed, limit, stride) - 1, stride) == boundaries(computed, stride),
            ),
        )

    @theorem("a step that ends before its limit ends at the next boundary")
    def chunk_ends_at_boundary(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda computed, limit, stride: implies(
                (stride >= 1) & (chunk_end(computed, limit, stride) < limit),
                chunk_end(computed, limit, stride) == boundary_position(boundaries(computed, stride) + 1, stride),
            ),
        )

    @witness("a stride is longer than a block and an interval")
    def longer_than_both(self) -> Bool:
        return exists(
            Nat,
            Nat,
            lambda size, interval: (
                (size > interval) & (interval >= 1) & (common_multiple(size, interval, nat(1)) > size)
            ),
        )

    @witness("a step ends at a boundary before its limit, another at its limit before the next boundary")
    def both_ends(self) -> Bool:
        return exists(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda computed, early, late, stride: (
                (stride >= 1)
                & (computed < early)
                & (chunk_end(computed, early, stride) == early)
                & (early % stride != 0)
                & (chunk_end(computed, late, stride) < late)
            ),
        )
