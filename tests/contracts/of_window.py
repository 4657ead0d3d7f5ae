"""Contracts of the pure functions of chapter `window`, on Python's integers of any size."""

from __future__ import annotations

from contracts.terms import contract

import kvspec.spec.window as window


@contract(window.first_visible, theorems=("sees_a_window", "window_of_one"))
def first_visible(position: int, tokens_seen: int) -> None:
    """A query sees as many tokens as the window has, its own the last of them, or all if there are no more."""
    assert position >= 0 and tokens_seen >= 1
    first = window.first_visible(position, tokens_seen)
    assert 0 <= first <= position
    assert position - first + 1 == tokens_seen or (first == 0 and position + 1 <= tokens_seen)


@contract(window.released_blocks, theorems=("visible_is_kept", "released_is_largest", "long_window_is_full"))
def released_blocks(num_tokens: int, tokens_seen: int, block_size: int) -> None:
    """What has gone ends before the first token that the next query sees, and one block more would not."""
    assert num_tokens >= 0 and tokens_seen >= 1 and block_size >= 1
    number = window.released_blocks(num_tokens, tokens_seen, block_size)
    first = max(0, num_tokens - tokens_seen + 1)
    assert number >= 0
    assert number * block_size <= first < (number + 1) * block_size


@contract(window.most_kept, theorems=("kept_is_bounded", "bound_is_reached", "long_blocks"))
def most_kept(tokens_seen: int, block_size: int) -> None:
    """A window whose first token is the last of block 0 ends in the last of so many blocks."""
    assert tokens_seen >= 1 and block_size >= 1
    blocks = window.most_kept(tokens_seen, block_size)
    last = block_size - 1 + tokens_seen - 1
    assert (blocks - 1) * block_size <= last < blocks * block_size
