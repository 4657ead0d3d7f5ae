"""Single ids: one owner each, nothing shared, nothing published."""

from __future__ import annotations

from array import array

import pytest

from kvspec.impl.errors import ClosedError, DoubleFreeError, ForeignHandleError, HandleInUseError, InvalidRangeError
from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.single_block_manager import SingleBlockManager

TOKENS = array("q", range(8))


def test_ids_of_size_one_and_never_id_0() -> None:
    manager = SingleBlockManager(4)
    blocks = manager.allocate(3)
    assert blocks is not None
    assert sorted(block.id for block in blocks) == [1, 2, 3]
    assert {block.size for block in blocks} == {1}
    assert manager.allocate(1) is None
    assert manager.free_ids() == []
    assert manager.num_used_blocks == 3


def test_an_id_that_is_given_back_is_free_at_once() -> None:
    manager = SingleBlockManager(4)
    before = manager.free_ids()
    blocks = manager.allocate(2)
    assert blocks is not None
    manager.release_blocks(blocks)
    assert manager.free_ids() == before
    assert (manager.num_free_blocks, manager.num_used_blocks) == (3, 0)


def test_nothing_is_shared_and_nothing_published() -> None:
    manager = SingleBlockManager(4)
    blocks = manager.allocate(2)
    assert blocks is not None
    assert manager.cache(TOKENS, blocks) == 0
    assert manager.allocate_shared(TOKENS) == []
    assert [block.hash_value for block in blocks] == [None, None]


def test_all_or_nothing() -> None:
    manager = SingleBlockManager(4)
    assert manager.allocate(4) is None
    assert manager.num_free_blocks == 3


@pytest.mark.parametrize("num_ids", [1, 0, -3])
def test_a_pool_without_ids_is_refused(num_ids: int) -> None:
    with pytest.raises(InvalidRangeError, match=f"SingleBlockManager: {num_ids} blocks"):
        SingleBlockManager(num_ids)


def test_misuse_is_named_and_changes_nothing() -> None:
    manager, other = SingleBlockManager(4), SingleBlockManager(4)
    (block,) = manager.allocate(1) or []
    with pytest.raises(ForeignHandleError, match=r"SingleBlockManager\.deallocate"):
        other.deallocate([block])
    with pytest.raises(HandleInUseError):
        manager.free(block.id)
    with pytest.raises(DoubleFreeError):
        manager.free(3)
    with pytest.raises(InvalidRangeError):
        manager.allocate(-1)
    assert (manager.num_free_blocks, manager.num_used_blocks, manager.ref_count(block.id)) == (2, 1, 1)
    manager.release_blocks([block])
    manager.close()
    with pytest.raises(ClosedError):
        manager.allocate(1)


def test_a_lost_id_is_reported() -> None:
    sanitizer = Sanitizer()
    manager = SingleBlockManager(4, sanitizer=sanitizer)
    with pytest.warns(ResourceWarning, match="dropped without release"):
        assert manager.allocate(1) is not None
    assert [lost.block_id for lost in sanitizer.lost_handles] == [1]
    sanitizer.settle(None)
    assert not sanitizer.is_clean
