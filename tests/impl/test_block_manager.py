"""The allocator: all or nothing, usage, and misuse that leaves no trace. Names in brackets are field cases."""

from __future__ import annotations

from array import array

import pytest

from kvspec.impl.block import Block, release_all
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.errors import (
    DoubleFreeError,
    ForeignHandleError,
    HandleInUseError,
    InvalidRangeError,
    KeyMismatchError,
    KVCacheError,
    ReleasedHandleError,
)
from kvspec.impl.prefix_cache import PrefixKeys
from kvspec.impl.sanitizer import Sanitizer


def allocate(manager: BlockManagerImpl, count: int) -> list[Block]:
    blocks = manager.allocate(count)
    assert blocks is not None
    return blocks


def published(manager: BlockManagerImpl, first_token: int, count: int) -> tuple[array[int], list[Block]]:
    """A prefix of count blocks in the cache, still held by its sequence."""
    tokens = array("q", range(first_token, first_token + count * manager.block_size_))
    blocks = allocate(manager, count)
    manager.cache(tokens, blocks)
    return tokens, blocks


def state(manager: BlockManagerImpl) -> tuple[object, ...]:
    """All that a refused call must leave as it was."""
    cache = manager.prefix_cache_
    assert cache is not None
    return (
        manager.free_ids(),
        [manager.ref_count(block_id) for block_id in range(manager.num_total_blocks)],
        manager.num_used_blocks,
        {key: (entry.id, entry.order) for key, entry in cache.entries_.items()},
        cache.num_idle,
    )


def test_padding_is_never_handed_out() -> None:
    manager = BlockManagerImpl(5, 4)
    blocks = allocate(manager, 4)
    assert sorted(block.id for block in blocks) == [1, 2, 3, 4]
    assert manager.padding_block_.id == 0
    assert manager.allocate(1) is None
    assert (manager.num_free_blocks, manager.num_used_blocks, manager.num_total_blocks) == (0, 4, 5)


def test_freed_ids_come_back_last_in_first_out() -> None:
    manager = BlockManagerImpl(6, 4)
    blocks = allocate(manager, 4)
    manager.release_blocks([blocks[1]])
    manager.release_blocks([blocks[3]])
    assert [block.id for block in allocate(manager, 3)] == [4, 2, 5]


def test_nothing_is_allocated_for_nothing() -> None:
    manager = BlockManagerImpl(2, 4)
    assert manager.allocate(0) == []
    assert manager.has_enough_blocks(0)
    before = state(manager)
    with pytest.raises(InvalidRangeError):
        manager.allocate(-1)
    assert state(manager) == before


def test_one_release_call_with_a_block_twice_changes_nothing() -> None:
    """[B01] One physical block must not raise the free count by two."""
    manager = BlockManagerImpl(6, 4)
    (block,) = allocate(manager, 1)
    pending_store = manager.hold(block.id)
    before = state(manager)
    with pytest.raises(ForeignHandleError, match="each once"):
        manager.release_blocks([block, block])
    assert state(manager) == before
    manager.release_blocks([block])
    with pytest.raises(ReleasedHandleError):
        release_all([pending_store, pending_store])
    assert manager.num_free_blocks == len(set(manager.free_ids())) == 5


def test_two_paths_cannot_release_the_same_slot() -> None:
    """[B03] The second path finds a handle that was given back, and the ids add up."""
    manager = BlockManagerImpl(8, 1)
    blocks = allocate(manager, 5)
    manager.release_blocks(blocks)
    with pytest.raises(ForeignHandleError):
        manager.release_blocks(blocks[4:])
    assert sorted(manager.free_ids()) == list(range(1, 8))


def test_usage_falls_although_the_cache_keeps_the_blocks() -> None:
    """[B13] Used means held by a sequence; the cache's own handle does not count."""
    manager = BlockManagerImpl(8, 4)
    for _ in range(3):
        tokens = array("q", range(8))
        blocks = manager.allocate_shared(tokens) or allocate(manager, 2)
        assert manager.num_used_blocks == 2
        manager.cache(tokens, blocks)
        manager.release_blocks(blocks)
        assert manager.num_used_blocks == 0
        assert [manager.ref_count(block_id) for block_id in (1, 2)] == [1, 1]


def test_a_block_of_two_sequences_is_used_once() -> None:
    manager = BlockManagerImpl(8, 4)
    blocks = allocate(manager, 2)
    others = manager.share(blocks)
    assert manager.num_used_blocks == 2
    manager.release_blocks(blocks)
    assert (manager.num_used_blocks, manager.num_free_blocks) == (2, 5)
    manager.release_blocks(others)
    assert (manager.num_used_blocks, manager.num_free_blocks) == (0, 7)


def test_deallocate_lowers_usage_before_the_id_is_free() -> None:
    """Seed 3.1: the two are different moments."""
    manager = BlockManagerImpl(4, 4)
    blocks = allocate(manager, 2)
    manager.deallocate(blocks)
    assert (manager.num_used_blocks, manager.num_free_blocks) == (0, 1)
    release_all(blocks)
    assert manager.num_free_blocks == 3


def test_a_refused_allocation_evicts_nothing() -> None:
    manager = BlockManagerImpl(6, 4)
    _, idle = published(manager, 0, 2)
    manager.release_blocks(idle)
    held = allocate(manager, 1)
    before = state(manager)
    assert manager.allocate(5) is None
    assert not manager.has_enough_blocks(5)
    assert state(manager) == before
    assert len(allocate(manager, 4)) == 4
    assert held[0].ref_count == 1


def test_idle_hits_are_not_counted_as_available() -> None:
    """[B33] The free list is exactly the hits; after the match they are held, and a refusal restores them."""
    manager = BlockManagerImpl(6, 4)
    tokens, blocks = published(manager, 0, 3)
    manager.release_blocks(blocks)
    allocate(manager, 2)
    counts = [manager.ref_count(block_id) for block_id in range(6)]
    assert (manager.num_free_blocks, manager.num_available_blocks) == (0, 3)
    hits = manager.allocate_shared(tokens)
    assert (len(hits), manager.num_available_blocks) == (3, 0)
    after_match = state(manager)
    assert manager.allocate(3) is None
    assert state(manager) == after_match
    manager.release_blocks(hits)
    assert [manager.ref_count(block_id) for block_id in range(6)] == counts
    assert manager.num_available_blocks == 3


def test_eviction_passes_over_shared_blocks_without_counting_them() -> None:
    """[B41] A shared entry is older than the idle one; the allocation must still succeed."""
    manager = BlockManagerImpl(5, 4)
    _, shared = published(manager, 0, 1)
    _, idle = published(manager, 100, 1)
    manager.release_blocks(idle)
    assert len(allocate(manager, 3)) == 3
    assert shared[0].ref_count == 2


def test_eviction_frees_through_the_handle() -> None:
    """Seed 4.3: the cache never touches the free list; a block that somebody pins meanwhile is no victim."""
    manager = BlockManagerImpl(4, 4)
    _, blocks = published(manager, 0, 3)
    manager.release_blocks(blocks)
    pin = manager.hold(2)
    assert manager.prefix_cache_ is not None
    assert manager.prefix_cache_.evict(3) == 2
    assert sorted(manager.free_ids()) == [1, 3]
    pin.release()
    assert manager.prefix_cache_.evict(3) == 1


def test_free_is_refused_for_live_free_and_foreign_ids() -> None:
    sanitizer = Sanitizer()
    manager = BlockManagerImpl(4, 4, sanitizer=sanitizer)
    blocks = allocate(manager, 1)
    before = state(manager)
    with pytest.raises(HandleInUseError, match="1 live handles"):
        manager.free(1)
    with pytest.raises(HandleInUseError):
        manager.free(0)
    with pytest.raises(DoubleFreeError, match="free already"):
        manager.free(2)
    for block_id in (-1, 4):
        with pytest.raises(ForeignHandleError):
            manager.free(block_id)
    assert state(manager) == before
    assert sanitizer.double_frees == [2]
    manager.release_blocks(blocks)


def test_an_id_that_came_back_is_not_freed_again() -> None:
    manager = BlockManagerImpl(4, 4)
    manager.release_blocks(allocate(manager, 1))
    with pytest.raises(DoubleFreeError, match="block 1 is free already"):
        manager.free(1)
    assert manager.free_ids() == [3, 2, 1]


def test_a_foreign_handle_is_refused_and_the_call_undone() -> None:
    manager, other = BlockManagerImpl(6, 4), BlockManagerImpl(6, 4)
    mine, theirs = allocate(manager, 2), allocate(other, 1)
    before = state(manager), state(other)
    with pytest.raises(ForeignHandleError):
        manager.deallocate([*mine, *theirs])
    with pytest.raises(ForeignHandleError):
        manager.share([*mine, *theirs])
    with pytest.raises(ForeignHandleError):
        manager.cache(array("q", range(12)), [*mine, *theirs])
    assert (state(manager), state(other)) == before


def test_only_sequences_handles_are_deallocated() -> None:
    manager = BlockManagerImpl(6, 4)
    blocks = allocate(manager, 1)
    pin = manager.hold(blocks[0].id)
    with pytest.raises(ForeignHandleError):
        manager.deallocate([pin])
    manager.release_blocks(blocks)
    assert manager.num_used_blocks == 0
    pin.release()
    with pytest.raises(ForeignHandleError, match="not in use"):
        manager.hold(1)
    with pytest.raises(ForeignHandleError):
        manager.hold(0)


def test_a_block_takes_no_second_key() -> None:
    manager = BlockManagerImpl(6, 4)
    tokens, blocks = published(manager, 0, 2)
    fresh = allocate(manager, 1)
    before = state(manager)
    with pytest.raises(KeyMismatchError, match="another key"):
        manager.cache(array("q", range(50, 58)), blocks)
    with pytest.raises(KeyMismatchError, match="twice"):
        manager.cache(array("q", range(50, 58)), [*fresh, *fresh])
    with pytest.raises(KeyMismatchError, match="full blocks only"):
        manager.cache(tokens[:7], blocks)
    assert state(manager) == before


def test_without_a_cache_nothing_is_shared() -> None:
    manager = BlockManagerImpl(6, 4, enable_prefix_cache=False)
    tokens = array("q", range(8))
    blocks = allocate(manager, 2)
    assert manager.cache(tokens, blocks, PrefixKeys(4)) == 0
    assert manager.allocate_shared(tokens) == []
    manager.release_blocks(blocks)
    assert manager.num_free_blocks == manager.num_available_blocks == 5
    assert manager.allocate(6) is None


def test_close_drops_what_is_cached() -> None:
    manager = BlockManagerImpl(6, 4)
    _, blocks = published(manager, 0, 1)
    manager.release_blocks(blocks)
    manager.close()
    assert (manager.num_free_blocks, manager.num_available_blocks, manager.num_used_blocks) == (5, 5, 0)


@pytest.mark.parametrize(("blocks", "size"), [(1, 4), (0, 4), (4, 0), (4, -1)])
def test_sizes_are_checked(blocks: int, size: int) -> None:
    with pytest.raises(InvalidRangeError):
        BlockManagerImpl(blocks, size)


def test_errors_say_where_what_and_what_was_expected() -> None:
    with pytest.raises(KVCacheError) as caught:
        BlockManagerImpl(4, 4).free(9)
    assert caught.value.where == "BlockManagerImpl.free"
    assert str(caught.value) == "BlockManagerImpl.free: block 9; expected an id in [0, 4)"
