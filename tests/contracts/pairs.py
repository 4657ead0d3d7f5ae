"""What the implementation computes for itself, beside what the specification or the model says about it.

Two functions of a pair get the same arguments and must do the same: give one result, or refuse by the assert that both
start with, which says for which arguments the comparison is meant.
"""

from __future__ import annotations

from contracts.terms import Function

import kvspec.impl.paging as paging
import kvspec.model.workload as workload
import kvspec.spec.slots as slots
import kvspec.spec.window as spec_window


def spec_block_index(position: int, block_size: int) -> int:
    assert position >= 0 and block_size >= 1
    return slots.block_index(position, block_size)


def impl_block_index(position: int, block_size: int) -> int:
    assert position >= 0 and block_size >= 1
    return paging.block_index(position, block_size)


def spec_blocks_needed(num_tokens: int, block_size: int) -> int:
    assert num_tokens >= 0 and block_size >= 1
    return slots.blocks_needed(num_tokens, block_size)


def impl_blocks_needed(num_tokens: int, block_size: int) -> int:
    assert num_tokens >= 0 and block_size >= 1
    return paging.blocks_needed(num_tokens, block_size)


def spec_slot_id(position: int, block_id: int, block_size: int) -> int:
    assert position >= 0 and block_id >= 0 and block_size >= 1
    return slots.slot_id(block_id, slots.block_offset(position, block_size), block_size)


def impl_slot_id(position: int, block_id: int, block_size: int) -> int:
    assert position >= 0 and block_id >= 0 and block_size >= 1
    return paging.slot_id(position, paging.block_index(position, block_size), block_id, block_size)


def model_longest_hit(num_tokens: int, block_size: int) -> int:
    assert num_tokens >= 0 and block_size >= 1
    return workload.longest_hit(num_tokens, block_size, "all_but_one")


def impl_longest_hit(num_tokens: int, block_size: int) -> int:
    assert num_tokens >= 0 and block_size >= 1
    return paging.longest_hit(num_tokens, block_size) * block_size


def spec_first_visible(position: int, window: int) -> int:
    assert position >= 0 and window >= 1
    return spec_window.first_visible(position, window)


def impl_first_visible(position: int, window: int) -> int:
    assert position >= 0 and window >= 1
    return paging.first_visible(position, window)


def spec_released_blocks(num_tokens: int, window: int, block_size: int) -> int:
    assert num_tokens >= 0 and window >= 1 and block_size >= 1
    return spec_window.released_blocks(num_tokens, window, block_size)


def impl_released_blocks(num_tokens: int, window: int, block_size: int) -> int:
    assert num_tokens >= 0 and window >= 1 and block_size >= 1
    return paging.released_blocks(num_tokens, window, block_size)


PAIRS: dict[Function, tuple[str, str]] = {
    paging.block_index: ("spec_block_index", "impl_block_index"),
    paging.blocks_needed: ("spec_blocks_needed", "impl_blocks_needed"),
    paging.slot_id: ("spec_slot_id", "impl_slot_id"),
    paging.first_visible: ("spec_first_visible", "impl_first_visible"),
    paging.released_blocks: ("spec_released_blocks", "impl_released_blocks"),
    paging.longest_hit: ("model_longest_hit", "impl_longest_hit"),
}
"""For each function of the implementation that is compared, the names of its counterpart and of its call above."""
