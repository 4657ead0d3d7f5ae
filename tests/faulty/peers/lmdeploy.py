"""Faults that are planted in LMDeploy's own classes: each function changes one method, for good.

They stand in for methods of the package: most call what they replace and do a little more, or a little less. Each is
one line in the table of ``docs/peers.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from lmdeploy.pytorch.paging import prefill_scheduler
from lmdeploy.pytorch.paging.block_manager import window_block_manager
from lmdeploy.pytorch.paging.block_manager.base_block_manager import LogicalAllocator, PhysicalAllocator
from lmdeploy.pytorch.paging.block_manager.default_block_manager import DefaultBlockManager
from lmdeploy.pytorch.paging.block_trie.kv_lifecycle import KVBlockLifecycle
from lmdeploy.pytorch.paging.block_trie.trie import BlockTrie
from lmdeploy.pytorch.paging.eviction_helper.recompute_eviction_helper import RecomputeEvictionHelper
from lmdeploy.pytorch.paging.seq_states.states import SequenceLifecycle


def _around(owner: Any, name: str, new: Callable[..., Any]) -> None:
    """`new` takes what it replaces first, and then what that would take."""
    old = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: new(old, *given, **named))


# -- references ---------------------------------------------------------------------------------------------------


def reference_not_given_back() -> None:
    """Of a block with several holders no reference is ever given back."""

    def free(old: Any, self: Any, blocks: Any) -> None:
        old(self, blocks[self.get_ref_count(blocks) == 1])

    _around(LogicalAllocator, "free", free)


def freed_while_shared() -> None:
    """Who gives a shared block back frees it for all."""

    def free(old: Any, self: Any, blocks: Any) -> None:
        self._log_mem.ref_count[blocks] = 1
        old(self, blocks)

    _around(LogicalAllocator, "free", free)


def hit_not_counted() -> None:
    """A hit does not count as a holder."""

    def match(old: Any, self: Any, seq: Any) -> None:
        had = seq.num_blocks
        old(self, seq)
        self.allocator.add_ref_count(seq.logical_blocks.get_real_blocks()[had:], -1)

    _around(BlockTrie, "match", match)


def trie_holds_nothing() -> None:
    """A block can be found, and the trie is none of its holders."""

    def commit(old: Any, self: Any, node: Any, ref_blocks: Any, free_blocks: Any) -> None:
        old(self, node, ref_blocks=[], free_blocks=free_blocks)

    _around(KVBlockLifecycle, "commit_path_extension", commit)


def duplicate_kept() -> None:
    """A block that is given up for one with the same content is not freed."""

    def commit(old: Any, self: Any, node: Any, ref_blocks: Any, free_blocks: Any) -> None:
        old(self, node, ref_blocks=ref_blocks, free_blocks=[])

    _around(KVBlockLifecycle, "commit_path_extension", commit)


def refused_keeps_its_hit() -> None:
    """A hit is not given back when the request is refused."""

    def _reset_to_unmatched(old: Any, self: Any) -> None:
        self.seq.set_step(0)
        self.seq.prefix_cache.trie_cursor = None

    _around(prefill_scheduler._TentativePrefixMatch, "_reset_to_unmatched", _reset_to_unmatched)


def over_keeps_a_block() -> None:
    """Who gives all back forgets its last block."""

    def release_paging_resources(old: Any, self: Any, seq: Any) -> None:
        if seq.num_blocks > 1:
            seq.logical_blocks.resize(seq.num_blocks - 1)
        old(self, seq)

    _around(SequenceLifecycle, "release_paging_resources", release_paging_resources)


def preempted_goes_on() -> None:
    """Who gave its blocks back goes on where it stood."""

    def _reclaim_candidate(old: Any, self: Any, seq: Any) -> bool:
        step = seq.num_history_ids
        done = bool(old(self, seq))
        if done:
            seq.set_step(step)
        return done

    _around(RecomputeEvictionHelper, "_reclaim_candidate", _reclaim_candidate)


# -- free blocks --------------------------------------------------------------------------------------------------


def one_block_of_memory_for_two() -> None:
    """Of blocks that are freed at once, the first is free twice and the second not at all."""

    def free(old: Any, self: Any, blocks: Any) -> Any:
        blocks = blocks.copy()
        blocks[1:2] = blocks[:1]
        return old(self, blocks)

    _around(PhysicalAllocator, "free", free)


def last_block_refused() -> None:
    """The last free block is not handed out."""

    def try_make_capacity_for(old: Any, self: Any, seq: Any, others: Any, ahead: int) -> bool:
        needed = self.block_manager.num_required_blocks(seq, ahead)
        granted = bool(old(self, seq, others, ahead))
        return granted and not 0 < needed == self.block_manager.get_num_free_gpu_blocks()

    _around(RecomputeEvictionHelper, "try_make_capacity_for", try_make_capacity_for)


def block_too_few() -> None:
    """A request gets one block less than it needs."""

    def allocate_msg(old: Any, self: Any, msg: Any, prealloc_size: int = 0) -> None:
        had = msg.num_blocks
        old(self, msg, prealloc_size)
        if msg.num_blocks > max(had, 1):
            self.truncate(msg, msg.num_blocks - 1)

    _around(DefaultBlockManager, "allocate_msg", allocate_msg)


def nothing_ahead() -> None:
    """A request that grows gets no room for the token that is planned while the last one is still computed."""
    old = DefaultBlockManager.num_required_blocks
    DefaultBlockManager.num_required_blocks = classmethod(lambda kind, seq, ahead=0: old(seq))


def evicted_in_use() -> None:
    """Blocks are evicted from the trie whoever holds them."""

    def evict(old: Any, self: Any, count: int) -> Any:
        counts = self.allocator.get_ref_count
        self.allocator.get_ref_count = lambda blocks: np.minimum(counts(blocks), 1)
        try:
            return old(self, count)
        finally:
            self.allocator.get_ref_count = counts

    _around(KVBlockLifecycle, "evict", evict)


# -- keys ---------------------------------------------------------------------------------------------------------


def adapters_share_blocks() -> None:
    """Blocks of one adapter are found by requests of all."""

    def _get_or_create_root(old: Any, self: Any, adapter_name: Any) -> Any:
        return old(self, None)

    _around(BlockTrie, "_get_or_create_root", _get_or_create_root)


def published_before_it_is_full() -> None:
    """The last block of a prompt can be found although it is not full."""

    def _extend_trie_path(old: Any, self: Any, seq: Any, node: Any, count: int) -> None:
        old(self, seq, node, min(count + 1, seq.num_blocks))

    _around(BlockTrie, "_extend_trie_path", _extend_trie_path)


def hit_a_block_too_long() -> None:
    """Behind a hit another block is taken for computed."""

    def match(old: Any, self: Any, seq: Any) -> None:
        old(self, seq)
        longer = seq.num_history_ids + self.block_size
        if self.block_size < longer < seq.num_valid_ids:
            seq.set_step(longer)

    _around(BlockTrie, "match", match)


# -- tables -------------------------------------------------------------------------------------------------------


def window_released_too_early() -> None:
    """A window gives a block back that the next token still sees."""
    old = window_block_manager._num_blocks_to_drop
    window_block_manager._num_blocks_to_drop = lambda seq, size: old(seq, max(1, size - seq.block_size))


def blocks_in_another_order() -> None:
    """The first two blocks of a request that grows change places."""

    def allocate_msg(old: Any, self: Any, msg: Any, prealloc_size: int = 0) -> None:
        had = msg.num_blocks
        old(self, msg, prealloc_size)
        if msg.num_blocks > had > 1:
            msg.logical_blocks[:2] = msg.logical_blocks[:2][::-1].copy()

    _around(DefaultBlockManager, "allocate_msg", allocate_msg)
