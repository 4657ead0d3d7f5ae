"""Contracts of the pure functions of chapter `slots`, on Python's integers of any size."""

from __future__ import annotations

from contracts.terms import contract

import kvspec.spec.slots as slots


@contract(slots.block_index, theorems=("position_splits", "index_monotone"))
def block_index(position: int, block_size: int) -> None:
    """A position is in the block with that index: not before its first token, and not behind its last."""
    assert position >= 0 and block_size >= 1
    index = slots.block_index(position, block_size)
    assert index * block_size <= position < (index + 1) * block_size


@contract(slots.block_offset, theorems=("position_splits",))
def block_offset(position: int, block_size: int) -> None:
    """An offset is inside the block, and is what the start of the block lacks to the position."""
    assert position >= 0 and block_size >= 1
    offset = slots.block_offset(position, block_size)
    assert 0 <= offset < block_size
    assert slots.block_index(position, block_size) * block_size + offset == position


@contract(slots.slot_id, theorems=("slot_inside", "padding_apart"))
def slot_inside(block_id: int, offset: int, block_size: int, num_blocks: int) -> None:
    """A slot of a pool is inside the pool, and one of a usable block is behind the padding block."""
    assert 0 <= block_id < num_blocks and 0 <= offset < block_size
    slot = slots.slot_id(block_id, offset, block_size)
    assert 0 <= slot < num_blocks * block_size
    assert (slot >= block_size) == (block_id >= 1)


@contract(slots.slot_id, theorems=("slots_distinct",))
def slots_distinct(block_id: int, offset: int, other: int, its_offset: int, block_size: int) -> None:
    """Different places have different slots."""
    assert block_id >= 0 and other >= 0 and 0 <= offset < block_size and 0 <= its_offset < block_size
    assert (block_id, offset) != (other, its_offset)
    slot = slots.slot_id(block_id, offset, block_size)
    assert slot != slots.slot_id(other, its_offset, block_size)


@contract(
    slots.block_of_slot, slots.offset_of_slot, slots.slot_id, theorems=("block_back", "offset_back", "slots_distinct")
)
def place_back(block_id: int, offset: int, block_size: int) -> None:
    """A slot tells the place that it was made of."""
    assert block_id >= 0 and 0 <= offset < block_size
    slot = slots.slot_id(block_id, offset, block_size)
    assert slots.block_of_slot(slot, block_size) == block_id
    assert slots.offset_of_slot(slot, block_size) == offset


@contract(slots.block_of_slot, slots.offset_of_slot, slots.slot_id, theorems=("slot_back",))
def slot_back(slot: int, block_size: int) -> None:
    """Every slot is that of its block and offset."""
    assert slot >= 0 and block_size >= 1
    block_id, offset = slots.block_of_slot(slot, block_size), slots.offset_of_slot(slot, block_size)
    assert block_id >= 0 and 0 <= offset < block_size
    assert slots.slot_id(block_id, offset, block_size) == slot


@contract(slots.blocks_needed, theorems=("needed_suffices", "needed_is_least", "needed_zero"))
def blocks_needed(num_tokens: int, block_size: int) -> None:
    """The blocks have room for the tokens, and one block less has not."""
    assert num_tokens >= 0 and block_size >= 1
    blocks = slots.blocks_needed(num_tokens, block_size)
    assert blocks >= 0
    assert blocks * block_size >= num_tokens
    assert (blocks - 1) * block_size < num_tokens


@contract(slots.round_down, theorems=("rounded_is_start", "rounded_is_near"))
def round_down(position: int, block_size: int) -> None:
    """The start of a block, less than a block before the position."""
    assert position >= 0 and block_size >= 1
    start = slots.round_down(position, block_size)
    assert start % block_size == 0
    assert start <= position < start + block_size


@contract(slots.cast_to_32_bits, theorems=("small_survives", "large_turns_negative"))
def cast_to_32_bits(number: int) -> None:
    """What is left fits a signed 32-bit variable and has the same lowest 32 bits, for negative numbers too."""
    assert isinstance(number, int)
    left = slots.cast_to_32_bits(number)
    assert -(2**31) <= left < 2**31
    assert (number - left) % 2**32 == 0


@contract(slots.fits_32_bits, theorems=("slot_survives", "large_turns_negative"))
def fits_32_bits(num_blocks: int, block_size: int) -> None:
    """A pool fits exactly if its last slot survives a 32-bit variable."""
    assert num_blocks >= 1 and block_size >= 1
    last = slots.slot_id(num_blocks - 1, block_size - 1, block_size)
    assert slots.fits_32_bits(num_blocks, block_size) == (slots.cast_to_32_bits(last) == last)
