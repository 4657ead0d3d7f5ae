"""What happens to the blocks of one sequence at one `BlockManagerImpl`: growth, publication, return (seed 4.2, 5.2, 8).

Whoever manages sequences calls these, with one manager or with one for each rank.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

from kvspec.impl.block import Block, release_all
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.sequence import Sequence

Copy = Callable[[Sequence, Items[int], list[Block]], None]
"""Puts fresh blocks, with the content, in the place of the blocks at these logical indices, and gives those back."""


def check_known(sequence: Sequence, num_tokens: int, where: str) -> None:
    """Raises `InvalidRangeError` if the sequence does not know that many tokens, or they are negative."""
    if not 0 <= num_tokens <= len(sequence.tokens_):
        expected = f"0 to {len(sequence.tokens_)} known tokens"
        raise InvalidRangeError(where, f"{num_tokens} tokens of a sequence", expected)


def check_unmounted(sequence: Sequence, where: str) -> None:
    """Raises `InvalidRangeError` if the sequence has blocks: a hit is where a table begins."""
    if sequence.kv_state_.has_table:
        raise InvalidRangeError(where, f"a table of {len(sequence.kv_state_.handles())} blocks", "an empty table")


def grow(manager: BlockManagerImpl, sequence: Sequence, num_tokens: int, shared: Items[int], copy: Copy) -> bool:
    """Room for so many tokens, and blocks of its own in the place of shared ones; all or nothing, False if refused.

    If the copy raises, the table is as it was and the fresh blocks are free again; what was evicted for them is gone.
    """
    missing = max(sequence.blocks_for(num_tokens) - len(sequence.kv_state_.blocks_), 0)
    if not missing and not shared:
        return True
    blocks = manager.allocate(missing + len(shared))
    if blocks is None:
        return False
    if shared:
        try:
            copy(sequence, shared, blocks[missing:])
        except BaseException:
            manager.release_blocks(blocks)
            raise
        del blocks[missing:]
    sequence.kv_state_.add_kv_blocks(blocks, taken=True)
    return True


def replace_shared(
    manager: BlockManagerImpl,
    sequence: Sequence,
    indices: Items[int],
    blocks: list[Block],
    copy_blocks: Callable[[list[tuple[int, int]]], None],
) -> None:
    """Copy-on-write: put copies in the place of shared blocks, then give the shared handles back.

    Only the block in which the computed tokens end has content to copy; those behind it were never written by
    this sequence. The copy, (source, target) ids each, is done before the sources can be freed, and before the table
    names the targets: where it raises, nothing has changed.
    """
    copied, table = range(sequence.num_full_blocks, sequence.blocks_for(sequence.computed_)), sequence.kv_state_.ids_
    copy_blocks([(table[index], blocks[n].id) for n, index in enumerate(indices) if index in copied])
    manager.release_blocks(sequence.replace_shared(indices, blocks))


def publish(manager: BlockManagerImpl, sequence: Sequence) -> None:
    """Publish the full computed blocks, skipping those that this sequence is known to have published."""
    cache = manager.prefix_cache_
    full = sequence.num_full_blocks
    if cache is None or not full:
        return
    first = sequence.published_ if sequence.epoch_ == cache.epoch_ else 0
    if first < full:
        blocks = sequence.kv_state_.blocks_[first:full]
        sequence.published_ = manager.cache(sequence.tokens_, blocks, sequence.keys_, first)
        sequence.epoch_ = cache.epoch_
    sequence.published_at_ = cache.use()


def enter_use(manager: BlockManagerImpl, sequence: Sequence, first: int) -> None:
    """Enter the last publication as a use of the published blocks from this index on (see `publish`)."""
    cache = manager.prefix_cache_
    if cache is not None and sequence.published_ > first:
        cache.touch(sequence.keys_.chain[: sequence.published_], sequence.published_at_, first)


def give_back(manager: BlockManagerImpl, sequence: Sequence) -> None:
    """Give all blocks back, tail first; nothing is computed any more."""
    enter_use(manager, sequence, 0)
    manager.deallocate(sequence.kv_state_.blocks_)
    release_all(sequence.reset())
