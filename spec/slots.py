"""From token positions to slots (seed 9.5: ``block index``, ``block offset``, ``physical id``, ``slot id``).

The functions are written once and read twice: with Python's ``int`` they are what a program calls, with the numbers of
the vocabulary they are what the theorems below speak of. Contracts are in the docstrings; the theorems prove them for
all numbers.

**32 bits.** A slot fits a signed 32-bit number if the pool has at most 2**31 slots; beyond, a cast makes it negative or
lets it name another slot. The bound is on slots: an address is a slot times the bytes of a row, so kernels compute
addresses in 64 bits whatever the pool is.
"""

from __future__ import annotations

from typing import TypeVar, overload

from kvspec.spec.language import Bool, Machine, Nat, exists, forall, implies, nat, theorem, witness

N = TypeVar("N", int, Nat)

LIMIT = 2**31
"""Signed 32-bit numbers are below this."""


def block_index(position: N, block_size: N) -> N:
    """The place in the block table of the block of a token; ``block_size >= 1``."""
    return position // block_size


def block_offset(position: N, block_size: N) -> N:
    """The place of a token in its block; ``block_size >= 1``; the result is below ``block_size``."""
    return position % block_size


def slot_id(block_id: N, offset: N, block_size: N) -> N:
    """The slot of a place in a block; ``offset < block_size``.

    Different places have different slots, and the slots of blocks ``0 .. n-1`` are below ``n * block_size``.
    """
    return block_id * block_size + offset


def block_of_slot(slot: N, block_size: N) -> N:
    """The id of the block of a slot; ``block_size`` is the one that the slot was made with."""
    return slot // block_size


def offset_of_slot(slot: N, block_size: N) -> N:
    """The place of a slot in its block; ``block_size`` is the one that the slot was made with."""
    return slot % block_size


def blocks_needed(num_tokens: N, block_size: N) -> N:
    """The least number of blocks that have room for the tokens; ``block_size >= 1``."""
    return (num_tokens + block_size - 1) // block_size


def round_down(position: N, block_size: N) -> N:
    """The largest multiple of the block size that is not beyond the position; ``block_size >= 1``."""
    return position // block_size * block_size


def cast_to_32_bits(number: N) -> N:
    """What is left of a number in a signed 32-bit variable."""
    return (number + LIMIT) % (2 * LIMIT) - LIMIT


@overload
def fits_32_bits(num_blocks: int, block_size: int) -> bool: ...
@overload
def fits_32_bits(num_blocks: Nat, block_size: Nat) -> Bool: ...
def fits_32_bits(num_blocks: int | Nat, block_size: int | Nat) -> bool | Bool:
    """Every slot of a pool of this size survives a 32-bit variable."""
    return num_blocks * block_size <= LIMIT


class Slots(Machine):
    """A token position, its place in a block and its slot name the same cell, and no two cells have one slot."""

    # -- positions -----------------------------------------------------------------------------------------------

    @theorem("a position is the first of its block plus its offset, which is inside the block")
    def position_splits(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda position, size: implies(
                size >= 1,
                (block_index(position, size) * size + block_offset(position, size) == position)
                & (block_offset(position, size) < size),
            ),
        )

    @theorem("two positions with the same block index and offset are the same")
    def positions_differ(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda i, j, size: implies(
                (size >= 1)
                & (block_index(i, size) == block_index(j, size))
                & (block_offset(i, size) == block_offset(j, size)),
                i == j,
            ),
        )

    @theorem("a later position is in the same block or a later one")
    def index_monotone(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda i, j, size: implies((size >= 1) & (i <= j), block_index(i, size) <= block_index(j, size)),
        )

    @theorem("the position after the last of a block is the first of the next block")
    def next_block(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda position, size: implies(
                (size >= 1) & (block_offset(position, size) == size - 1),
                (block_index(position + 1, size) == block_index(position, size) + 1)
                & (block_offset(position + 1, size) == 0),
            ),
        )

    @theorem("a position counted from the start of some block has the same offset, and an index less by that block's")
    def counted_from_block(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda first, index, offset, size: implies(
                offset < size,
                (block_index(first * size + index * size + offset, size) == first + index)
                & (block_offset(first * size + index * size + offset, size) == offset),
            ),
        )

    # -- slots ---------------------------------------------------------------------------------------------------

    @theorem("different places have different slots")
    def slots_distinct(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, other, i, j, size: implies(
                (i < size) & (j < size) & (slot_id(block, i, size) == slot_id(other, j, size)),
                (block == other) & (i == j),
            ),
        )

    @theorem("a slot tells the block that it was made of")
    def block_back(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda block, offset, size: implies(
                offset < size, block_of_slot(slot_id(block, offset, size), size) == block
            ),
        )

    @theorem("a slot tells the offset that it was made of")
    def offset_back(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda block, offset, size: implies(
                offset < size, offset_of_slot(slot_id(block, offset, size), size) == offset
            ),
        )

    @theorem("every slot is that of its block and offset")
    def slot_back(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda slot, size: implies(
                size >= 1,
                (slot_id(block_of_slot(slot, size), offset_of_slot(slot, size), size) == slot)
                & (offset_of_slot(slot, size) < size),
            ),
        )

    @theorem("the slots of the blocks of a pool are inside the pool")
    def slot_inside(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, offset, size, num_blocks: implies(
                (block < num_blocks) & (offset < size), slot_id(block, offset, size) < num_blocks * size
            ),
        )

    @theorem("no slot of a usable block is a slot of the padding block 0")
    def padding_apart(self) -> Bool:
        return forall(
            Nat, Nat, Nat, lambda block, offset, size: implies(block >= 1, slot_id(block, offset, size) >= size)
        )

    @theorem("a slot that was made with blocks of 16 and is decoded with blocks of 4 names another block")
    def other_size_misleads(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda block, offset: implies(
                (block >= 1) & (offset < 16),
                block_of_slot(slot_id(block, offset, nat(16)), nat(4)) != block,
            ),
        )

    # -- amounts -------------------------------------------------------------------------------------------------

    @theorem("the blocks that are needed have room for the tokens")
    def needed_suffices(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda tokens, size: implies(size >= 1, blocks_needed(tokens, size) * size >= tokens),
        )

    @theorem("tokens that have room in some number of blocks need no more than these")
    def needed_is_least(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda blocks, left, size: implies(
                (size >= 1) & (left <= blocks * size), blocks_needed(blocks * size - left, size) <= blocks
            ),
        )

    @theorem("the block of every token is among the blocks that are needed")
    def needed_reaches(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda tokens, size, position: implies(
                (size >= 1) & (position < tokens), block_index(position, size) < blocks_needed(tokens, size)
            ),
        )

    @theorem("more tokens never need fewer blocks")
    def needed_monotone(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda tokens, more, size: implies(
                (size >= 1) & (tokens <= more), blocks_needed(tokens, size) <= blocks_needed(more, size)
            ),
        )

    @theorem("no tokens need no block")
    def needed_zero(self) -> Bool:
        return forall(Nat, lambda size: implies(size >= 1, blocks_needed(nat(0), size) == 0))

    @theorem("rounding down ends at the start of a block")
    def rounded_is_start(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda position, size: implies(size >= 1, block_offset(round_down(position, size), size) == 0),
        )

    @theorem("rounding down takes away less than a block")
    def rounded_is_near(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda position, size: implies(
                size >= 1,
                (round_down(position, size) <= position) & (position < round_down(position, size) + size),
            ),
        )

    @theorem("rounding down keeps the order")
    def rounded_monotone(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda i, j, size: implies((size >= 1) & (i <= j), round_down(i, size) <= round_down(j, size)),
        )

    # -- 32 bits -------------------------------------------------------------------------------------------------

    @theorem("a number below the limit survives a 32-bit variable")
    def small_survives(self) -> Bool:
        return forall(Nat, lambda number: implies(number < LIMIT, cast_to_32_bits(number) == number))

    @theorem("in a pool of at most 2**31 slots every slot survives a 32-bit variable")
    def slot_survives(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, offset, size, after: implies(
                fits_32_bits(block + 1 + after, size) & (offset < size),
                cast_to_32_bits(slot_id(block, offset, size)) == slot_id(block, offset, size),
            ),
        )

    @theorem("in a larger pool the last slot does not: the bound is as wide as it can be")
    def bound_is_tight(self) -> Bool:
        return forall(
            Nat,
            Nat,
            lambda block, size: implies(
                (size >= 1) & ~fits_32_bits(block + 1, size),
                cast_to_32_bits(slot_id(block, size - 1, size)) != slot_id(block, size - 1, size),
            ),
        )

    @theorem("beyond the limit a number becomes negative")
    def large_turns_negative(self) -> Bool:
        return forall(
            Nat, lambda number: implies((number >= LIMIT) & (number < 2 * LIMIT), cast_to_32_bits(number) < 0)
        )

    @theorem("one block more: in a pool of 2**27 + 1 blocks of 16 tokens the slots of the last block are negative")
    def slot_overflows(self) -> Bool:
        return forall(
            Nat, lambda offset: implies(offset < 16, cast_to_32_bits(slot_id(nat(2**27), offset, nat(16))) < 0)
        )

    @theorem("in a pool of 2**28 + 1 blocks of 16 tokens the slots of the last block are those of block 0")
    def slots_collide(self) -> Bool:
        return forall(
            Nat,
            lambda offset: implies(
                offset < 16,
                cast_to_32_bits(slot_id(nat(2**28), offset, nat(16))) == slot_id(nat(0), offset, nat(16)),
            ),
        )

    @witness("a slot is decoded with another block size than it was made with, and names another block")
    def a_misread_slot(self) -> Bool:
        return exists(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, offset, size, other: (
                (offset < size) & (other >= 1) & (block_of_slot(slot_id(block, offset, size), other) != block)
            ),
        )
