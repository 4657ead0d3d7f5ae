"""Which blocks a sliding window leaves behind (seed 9.3; class `SlidingWindowBlockManager`).

In a layer with a *window* of W tokens, a query sees its own token and the W - 1 before it. Of a sequence with n
computed tokens the next query stands at position n, so what lies before ``n - W + 1`` is seen by no query that can
still come, and a block goes when all of it lies there. Full attention is a window longer than every sequence.

What is computed counts, not what is scheduled: a query of a step that has still to run sees tokens from before it.

The functions are written once and read twice, as in chapter `slots`.
"""

from __future__ import annotations

from typing import TypeVar

from kvspec.spec.language import Bool, Machine, Nat, exists, forall, implies, nat, theorem, witness
from kvspec.spec.slots import block_index, blocks_needed
from kvspec.spec.strides import smaller

N = TypeVar("N", int, Nat)


def first_visible(position: N, window: N) -> N:
    """The first token that a query at a position sees, ``max(0, position - window + 1)``; ``window >= 1`` tokens."""
    return position + 1 - smaller(position + 1, window)


def released_blocks(num_tokens: N, window: N, block_size: N) -> N:
    """How many blocks at the front no query can see once so many tokens are computed; ``block_size >= 1`` tokens."""
    return block_index(first_visible(num_tokens, window), block_size)


def most_kept(window: N, block_size: N) -> N:
    """The most blocks that the window of a query touches, the block of its own token among them."""
    return blocks_needed(window - 1, block_size) + 1


class Window(Machine):
    """A released block is seen by no query that can still come, and the first that is kept is seen by the next."""

    # -- what a query sees ---------------------------------------------------------------------------------------

    @theorem("a query sees its own token, at most a window of tokens, and less only if there are no more")
    def sees_a_window(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda query, window: implies(
                window >= 1,
                (first_visible(query, window) <= query)
                & (query < first_visible(query, window) + window)
                & ((first_visible(query, window) == 0) | (query + 1 == first_visible(query, window) + window)),
            ),
        )

    @theorem("a later query sees no earlier token")
    def visible_monotone(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda query, later, window: implies(
                (window >= 1) & (query <= later), first_visible(query, window) <= first_visible(later, window)
            ),
        )

    @theorem("window 1: a query sees its own token only")
    def window_of_one(self) -> Bool:
        return forall(Nat, lambda query: first_visible(query, nat(1)) == query)

    @theorem("a window longer than the sequence is full attention: every query sees all tokens, and no block goes")
    def long_window_is_full(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda tokens, window, size: implies(
                (tokens < window) & (size >= 1),
                (first_visible(tokens, window) == 0) & (released_blocks(tokens, window, size) == 0),
            ),
        )

    # -- what goes -----------------------------------------------------------------------------------------------

    @theorem("what a query that can still come sees lies in a kept block")
    def visible_is_kept(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            Nat,
            lambda tokens, query, seen, window, size: implies(
                (window >= 1) & (size >= 1) & (tokens <= query) & (first_visible(query, window) <= seen),
                released_blocks(tokens, window, size) <= block_index(seen, size),
            ),
        )

    @theorem("no more can go: so many blocks go as end before the first token that the next query sees")
    def released_is_largest(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda tokens, number, window, size: implies(
                (window >= 1) & (size >= 1),
                (number <= released_blocks(tokens, window, size)) == (number * size <= first_visible(tokens, window)),
            ),
        )

    @theorem("a block that has gone is not needed again when there are more tokens")
    def released_monotone(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda tokens, more, window, size: implies(
                (window >= 1) & (size >= 1) & (tokens <= more),
                released_blocks(tokens, window, size) <= released_blocks(more, window, size),
            ),
        )

    @theorem("a token more is a block more to give back, or none")
    def released_one_by_one(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda tokens, window, size: implies(
                (window >= 1) & (size >= 1),
                released_blocks(tokens + 1, window, size) <= released_blocks(tokens, window, size) + 1,
            ),
        )

    # -- what stays ----------------------------------------------------------------------------------------------

    # `released_blocks` is the number of the block in which the window of the next query begins: the rest is what stays.
    @theorem("wherever in a block a window begins, it touches no more blocks than the bound")
    def kept_is_bounded(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            Nat,
            lambda number, offset, further, window, size: implies(
                (offset < size) & (further < window),
                number * size + offset + further < (number + most_kept(window, size)) * size,
            ),
        )

    @theorem("a window whose first token is the last of a block touches as many")
    def bound_is_reached(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda number, window, size: implies(
                (window >= 1) & (size >= 1),
                (number + most_kept(window, size) - 1) * size <= number * size + (size - 1) + (window - 1),
            ),
        )

    @theorem("blocks as long as the window or longer: at most two stay, and with window 1 one")
    def long_blocks(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda window, size: implies(
                (window >= 1) & (window <= size), (most_kept(window, size) <= 2) & (most_kept(nat(1), size) == 1)
            ),
        )

    @witness("a block has gone, and as many stay as a window can touch")
    def gone_and_full(self) -> Bool:
        return exists(
            Nat,
            Nat,
            Nat,
            lambda tokens, window, size: (
                (window > 1)
                & (size >= 1)
                & (released_blocks(tokens, window, size) >= 1)
                & (block_index(tokens, size) + 1 == released_blocks(tokens, window, size) + most_kept(window, size))
            ),
        )
