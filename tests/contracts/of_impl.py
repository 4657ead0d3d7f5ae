"""Contracts of pure functions of the implementation and of the model that have no counterpart in the specification.

They are written in terms of the functions of its chapters. The others are compared with their counterpart: `pairs`.
"""

from __future__ import annotations

from contracts.terms import contract

import kvspec.impl.paging as paging
import kvspec.impl.tags as tags
import kvspec.impl.trim as trim
import kvspec.model.workload as workload
import kvspec.spec.slots as slots
import kvspec.spec.strides as strides


@contract(paging.blocks_between)
def blocks_between(start: int, stop: int, num_blocks: int, block_size: int, index: int) -> None:
    """A block is listed exactly if the table has it and one of the tokens is in it."""
    assert start >= 0 and num_blocks >= 0 and block_size >= 1 and index >= 0
    has_token = max(start, index * block_size) < min(stop, (index + 1) * block_size)
    listed = index in paging.blocks_between(start, stop, num_blocks, block_size)
    assert listed == (has_token and index < num_blocks)


@contract(
    paging.window,
    theorems=("counted_from_block", "slot_back"),
    bound="tables of at most 3 blocks, of any size",
)
def window_names_the_same_cells(table: list[int], start: int, stop: int, position: int, block_size: int) -> None:
    """Every token has the same block and offset in the part as in the whole table."""
    assert len(table) <= 3 and block_size >= 1 and 0 <= start <= position < stop <= len(table) * block_size
    part, first = paging.window(table, start, stop, block_size)
    moved = first + position - start
    assert part[slots.block_index(moved, block_size)] == table[slots.block_index(position, block_size)]
    assert slots.block_offset(moved, block_size) == slots.block_offset(position, block_size)


@contract(paging.window)
def window_is_small(table: list[int], start: int, stop: int, block_size: int) -> None:
    """The part starts in the block of the first token and has no block more than its tokens need."""
    assert block_size >= 1 and 0 <= start < stop <= len(table) * block_size
    part, first = paging.window(table, start, stop, block_size)
    assert 0 <= first < block_size
    assert len(part) == slots.blocks_needed(first + stop - start, block_size)


@contract(tags.low_half, tags.high_half, tags.joined)
def tag_back(tag: int) -> None:
    """Both halves of a tag are exact in float32, and together they are the tag."""
    assert 0 <= tag < tags.TAG_LIMIT
    low, high = tags.low_half(tag), tags.high_half(tag)
    assert 0 <= low < 2**24 and 0 <= high < 2**24
    assert tags.joined(low, high) == tag


@contract(tags.low_half, tags.high_half, tags.joined)
def halves_back(low: int, high: int) -> None:
    """A tag tells the halves that it was made of."""
    assert 0 <= low < 2**24 and 0 <= high < 2**24
    tag = tags.joined(low, high)
    assert 0 <= tag < tags.TAG_LIMIT
    assert tags.low_half(tag) == low
    assert tags.high_half(tag) == high


@contract(workload.longest_hit)
def longest_hit(num_tokens: int, block_size: int, all_but_one: bool) -> None:
    """The whole blocks of all tokens, or of all but the last."""
    assert num_tokens >= 0 and block_size >= 1
    usable = max(num_tokens - 1, 0) if all_but_one else num_tokens
    hit = workload.longest_hit(num_tokens, block_size, "all_but_one" if all_but_one else "all")
    assert hit == slots.round_down(usable, block_size)


@contract(paging.longest_hit, theorems=("resumable_leaves_one",))
def hit_is_resumable(num_tokens: int, stride: int) -> None:
    """Counted in strides, the longest hit ends at the last resumable boundary."""
    assert num_tokens >= 1 and stride >= 1
    assert paging.longest_hit(num_tokens, stride) == strides.last_resumable(num_tokens, stride)


@contract(trim.contiguous, theorems=("trim_is_exact",), bound="hits of at most 5 boundaries")
def contiguous(checkpoints: list[bool]) -> None:
    """All boundaries up to the kept one have a checkpoint, and the next one has none."""
    assert len(checkpoints) <= 5
    kept = trim.contiguous(checkpoints)
    assert 0 <= kept <= len(checkpoints)
    assert all(checkpoints[:kept])
    assert kept == len(checkpoints) or not checkpoints[kept]


@contract(trim.deepest, theorems=("trim_is_exact",), bound="hits of at most 5 boundaries")
def deepest(checkpoints: list[bool]) -> None:
    """The kept boundary has a checkpoint, and none behind it has."""
    assert len(checkpoints) <= 5
    kept = trim.deepest(checkpoints)
    assert 0 <= kept <= len(checkpoints)
    assert kept == 0 or checkpoints[kept - 1]
    assert not any(checkpoints[kept:])


@contract(
    trim.contiguous,
    trim.deepest,
    theorems=("deepest_keeps_more", "same_without_gaps"),
    bound="hits of at most 5 boundaries",
)
def policies_compared(checkpoints: list[bool]) -> None:
    """The deepest boundary is never less than the contiguous one, and the same exactly where no checkpoint is lost."""
    assert len(checkpoints) <= 5
    kept = trim.contiguous(checkpoints)
    assert kept <= trim.deepest(checkpoints)
    assert (kept == trim.deepest(checkpoints)) == (not any(checkpoints[kept:]))
