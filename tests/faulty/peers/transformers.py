"""Faults that are planted in transformers' own classes: each function changes one method, for good.

They stand in for methods of the package: most call what they replace and do a little more, or a little less. Each is
one line in the table of ``docs/peers.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.cache_allocators import cache_allocator
from transformers.generation.continuous_batching.cache_allocators.cache_allocator import BlockLedger, CacheAllocator
from transformers.generation.continuous_batching.cache_allocators.cache_pool import CachePool
from transformers.generation.continuous_batching.cache_allocators.full_attention import FullAttentionCacheAllocator
from transformers.generation.continuous_batching.cache_allocators.sliding_attention import (
    SlidingAttentionCacheAllocator,
)
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor
from transformers.generation.continuous_batching.scheduler import Scheduler


def _around(owner: Any, name: str, new: Callable[..., Any]) -> None:
    """`new` takes what it replaces first, and then what that would take."""
    old = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: new(old, *given, **named))


# -- references ---------------------------------------------------------------------------------------------------


def reference_not_given_back() -> None:
    """Of a block with several holders no reference is ever given back."""

    def release(old: Any, self: Any, block_id: int, no_cache: bool = False) -> bool:
        return False if block_id in self.shared_ref_counts else bool(old(self, block_id, no_cache))

    _around(BlockLedger, "release", release)


def shared_given_back_twice() -> None:
    """Who gives a shared block back takes it from another holder as well."""

    def release(old: Any, self: Any, block_id: int, no_cache: bool = False) -> bool:
        if block_id in self.shared_ref_counts:
            old(self, block_id, no_cache)
        return bool(old(self, block_id, no_cache))

    _around(BlockLedger, "release", release)


def hit_not_counted() -> None:
    """A hit on a block that others hold does not count as a holder."""

    def acquire(old: Any, self: Any, block_id: int) -> None:
        if block_id in self.cached_blocks:
            old(self, block_id)

    _around(BlockLedger, "acquire", acquire)


def hit_can_be_evicted() -> None:
    """A cached block that is hit stays among those that can be evicted."""

    def acquire(old: Any, self: Any, block_id: int) -> None:
        was_cached = block_id in self.cached_blocks
        old(self, block_id)
        if was_cached:
            self.cached_blocks[block_id] = None

    _around(BlockLedger, "acquire", acquire)


def preempted_keeps_a_block() -> None:
    """Who gives way forgets its first block, and does not give it back."""

    def free_blocks(old: Any, self: Any, request_id: str, no_cache: bool = False) -> None:
        if no_cache:
            self.block_table[request_id][:1] = []
        old(self, request_id, no_cache)

    _around(CacheAllocator, "free_blocks", free_blocks)


def cancelled_keeps_its_blocks() -> None:
    """Who is cancelled gives nothing back."""

    def clear_cancelled_requests(old: Any, self: Any) -> Any:
        self.cache.free_blocks, kept = lambda request_id: None, self.cache.free_blocks
        try:
            return old(self)
        finally:
            self.cache.free_blocks = kept

    _around(Scheduler, "clear_cancelled_requests", clear_cancelled_requests)


# -- free blocks --------------------------------------------------------------------------------------------------


def freed_block_lost() -> None:
    """Of several blocks that are freed at once, the last one is lost."""

    def free_blocks(old: Any, self: Any, index: int, block_ids: list[int]) -> None:
        old(self, index, block_ids[:-1] if len(block_ids) > 1 else block_ids)

    _around(CachePool, "free_blocks", free_blocks)


def duplicate_kept() -> None:
    """A block that is given up for one with the same content is not freed."""

    def mark_complete_blocks(old: Any, self: Any, *given: Any) -> None:
        pool, self.pool = self.pool, _NoPool()
        try:
            old(self, *given)
        finally:
            self.pool = pool

    _around(CacheAllocator, "mark_complete_blocks", mark_complete_blocks)


class _NoPool:
    def free_blocks(self, index: int, block_ids: list[int]) -> None:
        """Nothing is freed."""


def last_sector_refused() -> None:
    """The last free sector is not handed out."""

    def can_store_request_tokens(old: Any, self: Any, state: Any, length: int, dry_run: bool = False) -> bool:
        needed = sum(a.needs_new_sectors(state.request_id, state.current_len(), length) for a in self._kinds())
        return not 0 < needed == self.pool.num_free_sectors and bool(old(self, state, length, dry_run))

    PagedAttentionCache._kinds = lambda self: self.cache_allocators.values()
    _around(PagedAttentionCache, "can_store_request_tokens", can_store_request_tokens)


def block_too_few() -> None:
    """A request gets no block for a last token that begins one."""

    def _compute_blocks_needed(old: Any, self: Any, allocated: int, past: int, length: int) -> int:
        return int(old(self, allocated, past, length - 1)) if length > 1 else int(old(self, allocated, past, length))

    _around(FullAttentionCacheAllocator, "_compute_blocks_needed", _compute_blocks_needed)


# -- keys ---------------------------------------------------------------------------------------------------------


def key_without_its_prefix() -> None:
    """The key of a block has nothing of what stands before it."""
    old = cache_allocator.compute_block_hash
    cache_allocator.compute_block_hash = lambda parent, tokens: old(None, tokens)


def key_kept_when_freed() -> None:
    """A block with a key goes back to the pool, and can still be found."""

    def release(old: Any, self: Any, block_id: int, no_cache: bool = False) -> bool:
        old_result = bool(old(self, block_id, no_cache))
        return old_result or self.cached_blocks.pop(block_id, 0) is None

    _around(BlockLedger, "release", release)


def published_a_block_early() -> None:
    """A block can be found before its last token is computed."""

    def mark_complete_blocks(old: Any, self: Any, request_id: str, token_ids: list[int], count: int) -> None:
        old(self, request_id, token_ids, count + 1)

    _around(CacheAllocator, "mark_complete_blocks", mark_complete_blocks)


def hit_of_all_tokens() -> None:
    """A prompt that is found whole is hit whole."""

    def match_prefix_blocks(old: Any, self: Any, prompt_ids: list[int]) -> Any:
        return old(self, [*prompt_ids, 0])

    _around(CacheAllocator, "match_prefix_blocks", match_prefix_blocks)


def evicted_in_use() -> None:
    """Blocks with a key are evicted even if a request has them."""

    def evict_cached_blocks(old: Any, self: Any) -> Any:
        self.cached_blocks.update(dict.fromkeys(self.block_to_hash))
        return old(self)

    _around(BlockLedger, "evict_cached_blocks", evict_cached_blocks)


def blocks_in_another_order() -> None:
    """The first two blocks of a request that grows change places."""

    def allocate_cache_to_request(old: Any, self: Any, request_id: str, past: int, length: int) -> None:
        old(self, request_id, past, length)
        table = self.block_table[request_id]
        if past and len(table) > 1:
            table[:2] = table[1::-1]

    _around(FullAttentionCacheAllocator, "allocate_cache_to_request", allocate_cache_to_request)


def ring_one_token_off() -> None:
    """A token of a sliding layer is written where the next one should be."""

    def get_write_indices(old: Any, self: Any, request_id: str, past: int, length: int) -> Any:
        return old(self, request_id, past + (0 < past < self.sliding_window - 1), length)

    _around(SlidingAttentionCacheAllocator, "get_write_indices", get_write_indices)


def ring_read_too_far() -> None:
    """Of a sliding layer two tokens too many are read: what is longest gone has been written over."""

    def get_read_indices(old: Any, self: Any, request_id: str, past: int, length: int) -> Any:
        told = old(self, request_id, past, length)
        return [*told[: len(told) - length], *told[:2], *told[len(told) - length :]] if past > length else told

    _around(SlidingAttentionCacheAllocator, "get_read_indices", get_read_indices)


def ring_without_trash() -> None:
    """Of tokens that go out of the window in their own step nothing is said, so that there are too few places."""

    def get_write_indices(old: Any, self: Any, request_id: str, past: int, length: int) -> Any:
        return old(self, request_id, past, length)[-self.sliding_window :]

    _around(SlidingAttentionCacheAllocator, "get_write_indices", get_write_indices)


def written_before_its_place() -> None:
    """Places before the first new token of a block are written as well."""

    def get_write_indices(old: Any, self: Any, request_id: str, past: int, length: int) -> Any:
        told = old(self, request_id, past, length)
        return [*range(told[0] - past % self.tokens_per_page, told[0]), *told]

    _around(FullAttentionCacheAllocator, "get_write_indices", get_write_indices)


def read_length_one_off() -> None:
    """Of a sliding layer one token more is counted than is read."""

    def get_seqlen_k(old: Any, self: Any, past: int, length: int) -> int:
        return length + min(past, self.sliding_window)

    _around(SlidingAttentionCacheAllocator, "get_seqlen_k", get_seqlen_k)


def layer_of_another_kind() -> None:
    """The last layer has the memory of the first one, of whatever kind that is."""

    def init(old: Any, self: Any, *given: Any, **named: Any) -> None:
        old(self, *given, **named)
        self.layer_to_allocator[max(self.layer_to_allocator)] = self.layer_to_allocator[0]

    _around(PagedAttentionCache, "__init__", init)


def kernel_told_of_blocks() -> None:
    """Kernels that find the places by themselves are told of blocks where they need pages."""

    def fill_block_table(old: Any, self: Any, request_id: str, past: int, length: int, pages: Any) -> None:
        old(self, request_id, past, length, pages)
        pages //= self.block_physical_stride // self.tokens_per_page

    _around(FullAttentionCacheAllocator, "fill_block_table", fill_block_table)


def batch_that_reads_nothing() -> None:
    """The device is told that a batch reads nothing from the cache."""

    def _process_candidates(old: Any, self: Any, *given: Any) -> Any:
        *found, _ = old(self, *given)
        return *found, 0

    _around(Scheduler, "_process_candidates", _process_candidates)


def batch_that_reads_too_much() -> None:
    """A batch reads twice as many tokens as the device has room for."""

    def _process_candidates(old: Any, self: Any, candidates: Any, tokens: int, to_read: int, gone: Any) -> Any:
        return old(self, candidates, tokens, 2 * to_read, gone)

    _around(Scheduler, "_process_candidates", _process_candidates)


# -- going on -----------------------------------------------------------------------------------------------------


def blocked_for_good() -> None:
    """Once a request had to give way, none that waits is let in."""

    def update_batch(old: Any, self: Any) -> None:
        is_blocked = self.scheduler.block_new_requests
        old(self)
        self.scheduler.block_new_requests = is_blocked

    _around(ContinuousBatchProcessor, "update_batch", update_batch)


def gone_from_the_queue() -> None:
    """Who had to give way is not in the order of those who wait."""

    def add_waiting_request(old: Any, self: Any, state: Any) -> None:
        old(self, state)
        if state._true_initial_tokens:
            self.waiting_requests_order.pop()

    _around(Scheduler, "add_waiting_request", add_waiting_request)


# -- dropping all -------------------------------------------------------------------------------------------------


def reset_keeps_what_is_idle() -> None:
    """Blocks that were idle are still taken for that when all keys have been dropped."""

    def reset(old: Any, self: Any) -> None:
        idle = dict(self.cached_blocks)
        old(self)
        self.cached_blocks.update(idle)

    _around(BlockLedger, "reset", reset)


def reset_forgets_the_sizes() -> None:
    """When all keys have been dropped, a sector has another number of blocks."""

    def reset(old: Any, self: Any) -> None:
        old(self)
        for trees in self._free_blocks:
            trees.elems_per_tree += 1

    _around(CachePool, "reset", reset)
