"""Faults that are planted in SGLang's `UnifiedRadixCache`, as in ``sglang.py``.

Those of the first part are in what both trees share: the cache that drives the tree, its components, the allocators.
Those of the second part are in the tree that is written in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers import schedule_batch
from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.events import KVCacheEventRecorder
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget
from sglang.srt.mem_cache.unified_cache.cache_action import FreeDeviceKV
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.components import MambaComponent, SWAComponent
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


def _around(owner: Any, name: str, new: Callable[..., Any]) -> None:
    """`new` takes what it replaces first, and then what that would take."""
    old = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: new(old, *given, **named))


# -- shared: locks and pages --------------------------------------------------------------------------------------


def lock_not_given_back() -> None:
    """A node stays locked when a request is over."""
    _around(UnifiedRadixCache, "unlock", lambda old, self, lock: None)


def lock_given_back_at_once() -> None:
    """A node is locked, and not any more when the request begins."""

    def lock(old: Any, self: Any, *given: Any) -> Any:
        taken = old(self, *given)
        old_unlock(self, taken)
        return None

    old_unlock = UnifiedRadixCache.unlock
    _around(UnifiedRadixCache, "lock", lock)


def duplicate_not_freed() -> None:
    """Pages that the tree has already are not given back."""

    def apply(old: Any, self: Any, action: Any) -> None:
        if not isinstance(action, FreeDeviceKV):
            old(self, action)

    _around(UnifiedRadixCache, "_apply_cache_action", apply)


def protected_part_forgotten() -> None:
    """What a request has from the tree counts as its own when it is inserted again."""

    def insert(old: Any, self: Any, params: Any) -> Any:
        params.prev_prefix_len = 0
        return old(self, params)

    _around(UnifiedRadixCache, "insert", insert)


def hit_too_long() -> None:
    """A prompt that is found as a whole is hit as a whole."""
    _around(schedule_batch.Req, "_compute_max_prefix_len", lambda old, self, input_len: input_len)


def hit_in_wrong_order() -> None:
    """The last two pages of a long hit change places."""

    def indices(old: Any, self: Any, req: Any) -> Any:
        found, page = old(self, req), self.page_size
        if len(found) < 3 * page:
            return found
        return torch.cat([found[: -2 * page], found[-page:], found[-2 * page : -page]])

    _around(UnifiedRadixCache, "prefix_device_indices", indices)


# -- shared: windows ----------------------------------------------------------------------------------------------


def window_released_early() -> None:
    """A page more than is behind the window is released."""

    def evict(old: Any, self: Any, req: Any, pre_len: int, **named: Any) -> None:
        old(self, req, pre_len + self.page_size + self.sliding_window_size, **named)

    _around(UnifiedRadixCache, "evict_sliding_windows", evict)


def window_page_not_freed() -> None:
    """What is behind the window is forgotten, and not given back."""

    def free(old: Any, self: Any, free_index: Any, *, start_pos: int) -> None:
        self.clear_full_to_swa_mapping(free_index)

    _around(SWATokenToKVPoolAllocator, "free_swa_segment", free)


def windows_not_reserved() -> None:
    """Requests that are let in together may all have the same pages of windows."""

    def reserve(old: Any, self: Any, *given: Any, **named: Any) -> None:
        old(self, *given, **named)
        self.swa_offset = 0

    _around(SWAPrefillBudget, "reserve", reserve)


# -- shared: states -----------------------------------------------------------------------------------------------


def state_not_copied() -> None:
    """A state that was matched is not copied to the request's slot."""

    def finalize(old: Any, self: Any, params: Any, result: Any) -> Any:
        found = old(self, params, result)
        if params.req is not None:
            params.req.kv.mamba_cow_src_index = None
        return found

    _around(MambaComponent, "finalize_match_result_in_cache", finalize)


def state_used_in_place() -> None:
    """A request goes on in the slot of the state that was matched, not in a copy."""

    def finalize(old: Any, self: Any, params: Any, result: Any) -> Any:
        found, req = old(self, params, result), params.req
        if req is not None and req.kv.mamba_cow_src_index is not None:
            self.cache.req_to_token_pool.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(0))
            req.kv.mamba_pool_idx, req.kv.mamba_cow_src_index = req.kv.mamba_cow_src_index[0], None
        return found

    _around(MambaComponent, "finalize_match_result_in_cache", finalize)


def state_not_freed_when_there() -> None:
    """A state that the tree has already is not given back."""

    def cleanup(old: Any, self: Any, req: Any, **named: Any) -> None:
        if named.get("insert_result") is not None and not named["is_finished"]:
            named["insert_result"].mamba_exist = False
        old(self, req, **named)

    _around(MambaComponent, "cleanup_after_caching_req", cleanup)


def state_handed_out_twice() -> None:
    """A slot that is handed out can be handed out again."""

    def alloc(old: Any, self: Any, need_size: int) -> Any:
        found = old(self, need_size)
        if found is not None and int(found[-1]) % 3 == 0:
            self.free_slots = torch.cat((found[-1:], self.free_slots))
        return found

    _around(MambaSlotAllocator, "_do_alloc", alloc)


def leak_of_a_state_on_retraction() -> None:
    """A request that is retracted, or ended, keeps its slot."""

    def free(old: Any, self: Any, req: Any, *given: Any, **named: Any) -> None:
        if req.kv.cache_inserted_len and int(req.kv.mamba_pool_idx) % 2:
            req.kv.mamba_pool_idx = None
        else:
            old(self, req, *given, **named)

    _around(HybridReqToTokenPool, "free_mamba_cache", free)


# -- the tree in Python -------------------------------------------------------------------------------------------


def window_hit_too_short() -> None:
    """A hit needs a window that is a page shorter."""

    def validator(old: Any, self: Any, match_device_only: bool = False) -> Any:
        whole = self.sliding_window_size
        self.sliding_window_size = max(1, whole - self.tree_core.page_size)
        try:
            return old(self, match_device_only)
        finally:
            self.sliding_window_size = whole

    _around(SWAComponent, "create_match_validator", validator)


def window_not_locked() -> None:
    """The window of a hit is not locked."""

    def acquire(old: Any, self: Any, node: Any, result: Any, lock_host: bool = False) -> Any:
        result.set_lock_uuid(self.component_type, None, lock_host=lock_host)
        return result

    _around(SWAComponent, "acquire_component_lock", acquire)
    _around(SWAComponent, "release_component_lock", lambda old, self, *given, **named: None)


def state_counted_with_each_lock() -> None:
    """A state that is locked counts as locked once more with each request, and as free of locks only once."""

    def acquire(old: Any, self: Any, node: Any, result: Any, *given: Any, **named: Any) -> Any:
        core, kind = self.tree_core, self.component_type
        data = node.component_data[kind]
        if data.lock_ref and data.value is not None and node is not core.root_node:
            core.component_evictable_size_[kind] -= 1
            core.component_protected_size_[kind] += 1
        return old(self, node, result, *given, **named)

    _around(MambaComponent, "acquire_component_lock", acquire)


def state_kept_by_both_halves() -> None:
    """When a node is divided, both halves have its state."""

    def divide(old: Any, self: Any, new_parent: Any, child: Any) -> None:
        old(self, new_parent, child)
        new_parent.component_data[self.component_type].value = child.component_data[self.component_type].value

    _around(MambaComponent, "redistribute_on_node_split", divide)


def state_hit_ignored() -> None:
    """A node without a state is hit as well."""
    _around(MambaComponent, "create_match_validator", lambda old, self, match_device_only=False: lambda node: True)


def split_in_wrong_order() -> None:
    """When a node is divided, its two halves of the same length change places."""

    def split(old: Any, self: Any, key: Any, child: Any, split_len: int) -> Any:
        new, action = old(self, key, child, split_len)
        first, second = (node.component_data[ComponentType.FULL] for node in (new, child))
        if len(first.value) == len(second.value):
            first.value, second.value = second.value, first.value
        return new, action

    _around(UnifiedTreeCore, "_split_node", split)


def removal_not_published() -> None:
    """The removal of a node that begins with token 0 has no event."""

    def record(old: Any, self: Any, node: Any, medium: Any = None) -> None:
        if node.key.raw_token_ids()[0]:
            old(self, node, medium)

    _around(KVCacheEventRecorder, "record_remove", record)
