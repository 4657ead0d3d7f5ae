"""Handles: counting, release exactly once, and handles that are lost (seed 3)."""

from __future__ import annotations

import gc

import pytest

from kvspec.impl.block import Block, TrackedBlock, block_ids, release_all
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.errors import ClosedError, HandleInUseError, ReleasedHandleError
from kvspec.impl.sanitizer import Sanitizer


def take(manager: BlockManagerImpl, count: int) -> list[Block]:
    """Blocks that no sequence holds any more, handles still live."""
    blocks = manager.allocate(count)
    assert blocks is not None
    manager.deallocate(blocks)
    return blocks


def test_the_last_release_frees_the_id() -> None:
    manager = BlockManagerImpl(4, 2)
    (block,) = take(manager, 1)
    other = block.copy()
    assert (block.id, block.size, block.ref_count, block.hash_value) == (1, 2, 2, None)
    assert block.manager is manager
    block.release()
    assert other.ref_count == 1
    assert 1 not in manager.free_ids()
    other.release()
    assert sorted(manager.free_ids()) == [1, 2, 3]


def test_a_handle_is_released_once() -> None:
    manager = BlockManagerImpl(4, 2)
    (block,) = take(manager, 1)
    other = block.copy()
    block.release()
    with pytest.raises(ReleasedHandleError, match="released before"):
        block.release()
    assert other.ref_count == 1
    assert block.is_released
    for use in (block.copy, lambda: block.id, lambda: block.ref_count, lambda: block.hash_value):
        with pytest.raises(ReleasedHandleError):
            use()


def test_a_stale_handle_does_not_touch_the_next_life_of_its_id() -> None:
    manager = BlockManagerImpl(2, 2)
    (old,) = take(manager, 1)
    old.release()
    (new,) = take(manager, 1)
    assert new.id == 1
    with pytest.raises(ReleasedHandleError):
        old.release()
    assert new.ref_count == 1


def test_a_sequences_handle_is_deallocated_before_its_release() -> None:
    manager = BlockManagerImpl(4, 2)
    blocks = manager.allocate(1)
    assert blocks is not None
    with pytest.raises(HandleInUseError, match="still counted as used"):
        blocks[0].release()
    assert (manager.num_used_blocks, blocks[0].ref_count) == (1, 1)


def test_release_after_close_is_an_error() -> None:
    manager = BlockManagerImpl(4, 2)
    (block,) = take(manager, 1)
    manager.close()
    with pytest.raises(ClosedError):
        block.release()


def test_release_all_starts_at_the_tail() -> None:
    manager = BlockManagerImpl(5, 2)
    blocks = take(manager, 3)
    assert block_ids(blocks) == [1, 2, 3]
    release_all(blocks)
    assert manager.free_ids() == [4, 3, 2, 1]


def test_a_lost_handle_is_reported_with_the_place_where_it_was_made() -> None:
    sanitizer = Sanitizer()
    manager = BlockManagerImpl(4, 2, sanitizer=sanitizer)
    (block,) = take(manager, 1)
    assert isinstance(block, TrackedBlock)
    kept = [block.copy()]
    assert isinstance(kept[0], TrackedBlock)
    with pytest.warns(ResourceWarning, match=r"block 1, made at .*test_block.py:\d+ in test_a_lost_handle"):
        kept.clear()
    assert [lost.block_id for lost in sanitizer.lost_handles] == [1]
    assert "test_block.py" in sanitizer.lost_handles[0].made_at
    assert not sanitizer.is_clean
    assert block.ref_count == 2, "the reference is lost, not given back"
    block.release()


def test_handles_that_die_with_their_manager_are_not_lost() -> None:
    sanitizer = Sanitizer()
    manager = BlockManagerImpl(4, 2, sanitizer=sanitizer)
    vars(manager)["kept"] = take(manager, 2)
    del manager
    gc.collect()
    assert sanitizer.is_clean


def test_released_handles_are_not_lost() -> None:
    sanitizer = Sanitizer()
    manager = BlockManagerImpl(4, 2, sanitizer=sanitizer)
    release_all(take(manager, 3))
    gc.collect()
    assert sanitizer.is_clean
    manager.close()
