"""Faults that are planted in SGLang's own classes: each function changes a method or two, for good.

They stand in for methods of the package: most call what they replace and do a little more, or a little less. Each is
one line in the table of ``docs/peers.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.disaggregation.kv_events import BlockStored
from sglang.srt.managers import schedule_batch
from sglang.srt.mem_cache import common
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache, DecLockRefResult, IncLockRefResult
from sglang.srt.mem_cache.events import KVCacheEventRecorder
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.prefill_budget import PrefillBudget
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

ALLOCATORS = (TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator)


def _around(owner: Any, name: str, new: Callable[..., Any]) -> None:
    """`new` takes what it replaces first, and then what that would take."""
    old = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: new(old, *given, **named))


@contextmanager
def _without(owner: Any, name: str) -> Any:
    """For a while a method of an object does nothing."""
    setattr(owner, name, lambda *given, **named: None)
    try:
        yield
    finally:
        delattr(owner, name)


# -- locks --------------------------------------------------------------------------------------------------------


def lock_not_taken() -> None:
    """A node that a request uses is not locked."""
    RadixCache.inc_lock_ref = lambda self, node: IncLockRefResult(delta=0)
    RadixCache.dec_lock_ref = lambda self, node, params=None: DecLockRefResult(delta=0)


def lock_not_given_back() -> None:
    """A node stays locked when a request is over."""
    _around(BasePrefixCache, "unlock", lambda old, self, lock: None)


def locked_leaf_evicted() -> None:
    """When no leaf can be evicted, one that is locked is."""

    def evict(old: Any, self: Any, params: Any) -> Any:
        found = old(self, params)
        nodes = list(self.root_node.children.values())
        if found.num_tokens_evicted < params.num_tokens and nodes and not nodes[-1].children:
            self.token_to_kv_pool_allocator.free_segment(nodes[-1].value, start_pos=0)
            self.kv_events.record_remove(nodes[-1])
            self.protected_size_ -= len(nodes[-1].key)
            self.evictable_size_ += len(nodes[-1].key)
            self._delete_leaf(nodes[-1])
        return found

    _around(RadixCache, "evict", evict)


# -- pages --------------------------------------------------------------------------------------------------------


def duplicate_not_freed() -> None:
    """Pages that the tree has already are not given back."""

    def insert(old: Any, self: Any, *given: Any, **named: Any) -> Any:
        with _without(self.token_to_kv_pool_allocator, "free_segment"):
            return old(self, *given, **named)

    _around(RadixCache, "_insert_cache", insert)


def row_not_repointed() -> None:
    """A request goes on with its own pages, which the tree did not need and gave back."""

    def checkpoint(old: Any, self: Any, *given: Any, **named: Any) -> None:
        with _without(self.req_to_token_pool, "write"):
            old(self, *given, **named)

    _around(RadixCache, "checkpoint", checkpoint)


def evicted_page_not_freed() -> None:
    """What is evicted is not given back when it is a single page."""

    def free(old: Any, self: Any, free_index: Any, *, start_pos: int) -> None:
        if len(free_index) > self.page_size or start_pos:
            old(self, free_index, start_pos=start_pos)

    for allocator in (BaseTokenToKVPoolAllocator, PagedTokenToKVPoolAllocator):
        _around(allocator, "free_segment", free)


def page_handed_out_twice() -> None:
    """The last page that is handed out can be handed out again."""

    def alloc(old: Any, self: Any, *given: Any, **named: Any) -> Any:
        before = self.free_pages
        found = old(self, *given, **named)
        taken = len(before) - len(self.free_pages)
        if found is not None and taken > 2:
            self.free_pages = before[taken - 1 :]
        return found

    _around(TokenToKVPoolAllocator, "alloc", alloc)
    _around(PagedTokenToKVPoolAllocator, "alloc_extend", alloc)


def reserved_page_handed_out() -> None:
    """Page 0, to which padding is written, is handed out as well."""

    def clear(old: Any, self: Any) -> None:
        old(self)
        self.free_pages = self.free_pages - 1

    for allocator in ALLOCATORS:
        _around(allocator, "clear", clear)


def leak_on_retraction() -> None:
    """A request that is retracted keeps its last page."""
    _kept_when("is None")


def leak_on_abort() -> None:
    """A request that is ended from outside keeps its last page."""
    _kept_when("is not None")


def _kept_when(ended: str) -> None:
    def release(old: Any, req: Any, tree_cache: Any, *, checkpoint: bool) -> None:
        kept = not checkpoint and req.kv.holds_kv and (req.finished_reason is None) == (ended == "is None")
        if kept:
            page = tree_cache.page_size
            req.kv.kv_committed_len = max(req.kv.cache_protected_len, (req.kv.kv_committed_len - 1) // page * page)
            req.kv.kv_allocated_len = req.kv.kv_committed_len
        old(req, tree_cache, checkpoint=checkpoint)

    _around(common, "release_kv_cache", release)
    schedule_batch.release_kv_cache = common.release_kv_cache
    _engine().release_kv_cache = common.release_kv_cache


def _engine() -> Any:
    from kvspec.impl.adapters import sglang_engine

    return sglang_engine


def row_not_given_back() -> None:
    """A request that is over keeps its row, if it is not the first."""

    def free(old: Any, self: Any, req: Any) -> None:
        row = req.kv.req_pool_idx
        old(self, req)
        if row == 1:
            self.free_slots.remove(row)

    _around(ReqToTokenPool, "free", free)


def free_number_too_high() -> None:
    """The number of free tokens counts one page more."""
    for allocator in ALLOCATORS:
        _around(allocator, "available_size", lambda old, self: old(self) + self.page_size)


def refused_although_it_fits() -> None:
    """A request is let in only where two pages more stay free."""

    def check(old: Any, self: Any, **named: Any) -> Any:
        return old(self, **(named | {"total_tokens": named["total_tokens"] + 2 * self.page_size}))

    _around(PrefillBudget, "check_prefill", check)


# -- keys ---------------------------------------------------------------------------------------------------------


def key_without_context() -> None:
    """A key says nothing of adapters and salts."""
    RadixKey._check_compatible = lambda self, other: None

    def child_key_at(old: Any, self: Any, offset: int, page_size: int = 1) -> Any:
        extra_key, cache_salt, self.extra_key, self.cache_salt = self.extra_key, self.cache_salt, None, None
        try:
            return old(self, offset, page_size)
        finally:
            self.extra_key, self.cache_salt = extra_key, cache_salt

    _around(RadixKey, "child_key_at", child_key_at)


def key_of_part_of_a_page() -> None:
    """Only the first token of a page is compared, and the second."""

    def match_at(old: Any, self: Any, other: Any, offset: int, page_size: int = 1) -> int:
        found = old(self, other, offset, 1)
        most = min(len(self), len(other) - offset)
        return (
            min(most, -(-found // page_size) * page_size) // page_size * page_size
            if found % page_size > 1
            else (found // page_size * page_size)
        )

    _around(RadixKey, "match_at", match_at)
    _around(
        RadixKey, "child_key_at",
        lambda old, self, offset, page_size=1: old(self, offset, min(page_size, 2)),
    )  # fmt: skip


def split_in_wrong_order() -> None:
    """When a node is divided, its two halves of the same length change places."""

    def split(old: Any, self: Any, key: Any, child: Any, split_len: int) -> Any:
        new = old(self, key, child, split_len)
        if len(new.value) == len(child.value):
            new.value, child.value = child.value, new.value
        return new

    _around(RadixCache, "_split_node", split)


def published_before_computed() -> None:
    """The last token, which nobody has computed, is published with the others."""

    def checkpoint(old: Any, self: Any, req: Any, *, up_to: int) -> None:
        old(self, req, up_to=up_to + req.finished())

    _around(RadixCache, "checkpoint", checkpoint)


def _nothing_kept() -> None:
    """Nothing is ever published: no fault, but then nothing of the tree is tried."""
    RadixCache.checkpoint = lambda self, req, *, up_to: None


def reset_keeps_a_node() -> None:
    """A reset keeps the first node below the root."""

    def reset(old: Any, self: Any) -> None:
        kept = dict(list(self.root_node.children.items())[:1]) if hasattr(self, "root_node") else {}
        old(self)
        for key, node in kept.items():
            node.parent, node.children = self.root_node, {}
            self.root_node.children[key] = node
            self.evictable_size_ += len(node.key)
            self.kv_events.record_store(node)

    _around(RadixCache, "reset", reset)


# -- hits ---------------------------------------------------------------------------------------------------------


def hit_too_long() -> None:
    """A prompt that is found as a whole is hit as a whole."""
    _around(schedule_batch.Req, "_compute_max_prefix_len", lambda old, self, input_len: input_len)


def hit_in_wrong_order() -> None:
    """The last two pages of a long hit change places."""

    def path(old: Any, self: Any, node: Any) -> Any:
        found = old(self, node)
        page = self.page_size
        if len(found) < 3 * page:
            return found
        return torch.cat([found[: -2 * page], found[-page:], found[-2 * page : -page]])

    _around(RadixCache, "path_device_indices", path)


# -- events -------------------------------------------------------------------------------------------------------


def removal_not_published() -> None:
    """The removal of a node that begins with token 0 has no event."""

    def record(old: Any, self: Any, node: Any, medium: Any = None) -> None:
        if node.key.raw_token_ids()[0]:
            old(self, node, medium)

    _around(KVCacheEventRecorder, "record_remove", record)


def store_without_parent() -> None:
    """What is stored below a node is told as if it came first."""
    _around(KVCacheEventRecorder, "_parent_block_hash", lambda old, self, node: None)


def stores_joined_without_a_look() -> None:
    """What is stored is told with what was stored before, though it does not come behind it."""

    def enqueue(old: Any, self: Any, event: Any) -> None:
        tail = self._queue[-1] if self._queue else None
        if isinstance(tail, BlockStored) and isinstance(event, BlockStored):
            tail.block_hashes.extend(event.block_hashes)
            tail.token_ids.extend(event.token_ids)
        else:
            old(self, event)

    _around(KVCacheEventRecorder, "enqueue", enqueue)
