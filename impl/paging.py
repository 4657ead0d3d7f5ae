"""From tokens to blocks and slots (seed 9.5): all divisions by the block size.

Where a function takes a number or a tensor of numbers, one text serves both: what holds for numbers is checked once,
and the kernels compute with it in 64 bits. Kernels in Triton cannot call it and are compared with those in torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from array import array

    from torch import Tensor

N = TypeVar("N", int, "Tensor")
Table = TypeVar("Table", "array[int]", list[int])


def block_index(position: N, block_size: int) -> N:
    """The place in the block table of the block of a token. Of a number of tokens: how many blocks they fill."""
    return position // block_size


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """Blocks that have room for that many tokens."""
    return -(-num_tokens // block_size)


def slot_id(position: N, index: N, block_id: N, block_size: int) -> N:
    """The slot of a token whose block has a place in the table (`block_index`) and an id."""
    return position + (block_id - index) * block_size


def longest_hit(num_tokens: int, block_size: int) -> int:
    """The most blocks that a prompt can find in the cache: its last token is computed, since its logits are needed."""
    return max(num_tokens - 1, 0) // block_size


def blocks_between(start: int, stop: int, num_blocks: int, block_size: int) -> range:
    """Places in a table of that many blocks where tokens [start, stop) are; no place if there are no such tokens."""
    if stop <= start:
        return range(0)
    return range(start // block_size, min((stop - 1) // block_size + 1, num_blocks))


def window(table: Table, start: int, stop: int, block_size: int) -> tuple[Table, int]:
    """The part of a table that has tokens [start, stop), and the position of token start in it.

    A position and a table that are both counted from there name the same slot.
    """
    first = block_index(start, block_size)
    part = table[first : blocks_needed(stop, block_size)]
    return part, start - first * block_size


def first_visible(position: int, window: int) -> int:
    """The first token that a query at a position sees; the window is at least 1 token, its own."""
    return max(0, position - window + 1)


def released_blocks(num_tokens: int, window: int, block_size: int) -> int:
    """How many leading blocks no query sees any more, if that many tokens will not be computed again.

    Chapter `window` proves of the function of this name there that it is the most that may go.

    Args:
        num_tokens: computed and confirmed tokens; the next query stands behind them.
        window: tokens that a query sees, its own included; at least 1.
        block_size: tokens per block; at least 1.
    """
    return block_index(first_visible(num_tokens, window), block_size)
