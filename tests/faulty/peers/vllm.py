"""Faults that are planted in vLLM's own classes: each function changes one method, for good.

They stand in for methods of the package: most call what they replace and do a little more, or a little less. Each is
one line in the table of ``docs/peers.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator, KVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import (
    MambaManager,
    SingleTypeKVCacheManager,
    SlidingWindowManager,
)
from vllm.v1.request import RequestStatus


def _around(owner: Any, name: str, new: Callable[..., Any]) -> None:
    """`new` takes what it replaces first, and then what that would take."""
    old = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: new(old, *given, **named))


# -- references ---------------------------------------------------------------------------------------------------


def reference_not_given_back() -> None:
    """A request that is over gives its blocks back, all but every third."""

    def free_blocks(old: Any, self: Any, ordered_blocks: Any) -> None:
        old(self, [block for block in ordered_blocks if block.block_id % 3])

    _around(BlockPool, "free_blocks", free_blocks)


def hit_not_counted() -> None:
    """A hit on a block that others hold does not count as a holder."""

    def touch(old: Any, self: Any, blocks: Any) -> None:
        old(self, [block for block in blocks if block.ref_cnt == 0])

    _around(BlockPool, "touch", touch)


def freed_while_shared() -> None:
    """Who gives a shared block back frees it for all."""

    def free_blocks(old: Any, self: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            if not block.is_null:
                block.ref_cnt = 1
        old(self, blocks)

    _around(BlockPool, "free_blocks", free_blocks)


def leak_on_preemption() -> None:
    """A preempted request keeps a reference to its last block."""

    def free(old: Any, self: Any, request: Any) -> None:
        if request.status == RequestStatus.RUNNING and (blocks := self.get_blocks(request.request_id).blocks[0]):
            self.block_pool.touch(blocks[-1:])
        old(self, request)

    _around(KVCacheManager, "free", free)


def leak_on_abort() -> None:
    """A request that is ended from outside keeps its first block."""

    def free(old: Any, self: Any, request: Any) -> None:
        if request.status == RequestStatus.FINISHED_ABORTED and (b := self.get_blocks(request.request_id).blocks[0]):
            self.block_pool.touch(b[:1])
        old(self, request)

    _around(KVCacheManager, "free", free)


def null_block_freed() -> None:
    """The null block of released places is given back with the others."""

    def free(old: Any, self: Any, request_id: str) -> None:
        blocks = self.req_to_blocks.get(request_id, [])
        old(self, request_id)
        null = self.block_pool.null_block
        if any(block is null for block in blocks) and null.next_free_block is None:
            self.block_pool.free_block_queue.append(null)

    _around(SingleTypeKVCacheManager, "free", free)


# -- handing out --------------------------------------------------------------------------------------------------


def used_block_handed_out() -> None:
    """Instead of every fourth block, one that somebody holds is handed out."""

    def get_new_blocks(old: Any, self: Any, num_blocks: int) -> Any:
        blocks = old(self, num_blocks)
        used = next((b for b in self.blocks if b.ref_cnt and not b.is_null and b not in blocks), None)
        if used is not None and any(block.block_id % 4 == 3 for block in blocks[-1:]):
            self.free_blocks(blocks[-1:])
            used.ref_cnt += 1
            blocks[-1] = used
        return blocks

    _around(BlockPool, "get_new_blocks", get_new_blocks)


def hits_in_wrong_order() -> None:
    """The last two blocks of a long hit change places."""

    def add(old: Any, self: Any, request_id: str, new_computed_blocks: Any, *numbers: int) -> None:
        blocks = list(new_computed_blocks)
        if len(blocks) > 2 and not blocks[-2].is_null:
            blocks[-2:] = blocks[:-3:-1]
        old(self, request_id, blocks, *numbers)

    _around(SingleTypeKVCacheManager, "add_local_computed_blocks", add)


def free_number_too_high() -> None:
    """The number of free blocks counts the null block."""
    _around(BlockPool, "get_num_free_blocks", lambda old, self: old(self) + 1)


def refused_although_it_fits() -> None:
    """Two blocks always stay free."""

    def allocate_slots(old: Any, self: Any, *given: Any, **named: Any) -> Any:
        return old(self, *given, **named) if self.block_pool.get_num_free_blocks() > 2 else None

    _around(KVCacheManager, "allocate_slots", allocate_slots)


def refusal_half_done() -> None:
    """A refused request has got a block all the same."""

    def allocate_slots(old: Any, self: Any, request: Any, *given: Any, **named: Any) -> Any:
        found = old(self, request, *given, **named)
        group = self.coordinator.single_type_managers[0]
        if found is None and not isinstance(group, MambaManager) and self.block_pool.get_num_free_blocks():
            group.req_to_blocks[request.request_id].extend(self.block_pool.get_new_blocks(1))
        return found

    _around(KVCacheManager, "allocate_slots", allocate_slots)


# -- keys ---------------------------------------------------------------------------------------------------------


def key_kept_on_reuse() -> None:
    """A block that is handed out can still be matched under its old key."""

    def evict(old: Any, self: Any, block: Any) -> bool:
        block.reset_hash()
        return False

    _around(BlockPool, "_maybe_evict_cached_block", evict)


def published_before_planned() -> None:
    """A block whose last tokens come with the next step is published with its first."""

    def cache_blocks(old: Any, self: Any, request: Any, num_computed_tokens: int) -> None:
        room = min(len(m.req_to_blocks[request.request_id]) * m.block_size for m in self.single_type_managers)
        old(self, request, max(num_computed_tokens, min(room, request.num_tokens)))

    _around(KVCacheCoordinator, "cache_blocks", cache_blocks)


def key_without_parent() -> None:
    """A key says what is in a block, and nothing of what is before it."""
    _around(kv_cache_utils, "hash_block_tokens", lambda old, function, parent, *rest: old(function, None, *rest))


def key_without_context() -> None:
    """A key says nothing of adapters and salts."""

    def hash_block_tokens(old: Any, function: Any, parent: Any, tokens: Any, extra_keys: Any = None) -> Any:
        return old(function, parent, tokens, None)

    _around(kv_cache_utils, "hash_block_tokens", hash_block_tokens)


def key_of_another_group() -> None:
    """A look-up takes the block of the first group for all."""

    def get_cached_block(old: Any, self: Any, block_hash: Any, kv_cache_group_ids: list[int]) -> Any:
        return old(self, block_hash, [0] * len(kv_cache_group_ids))

    _around(BlockPool, "get_cached_block", get_cached_block)


def reset_keeps_a_key() -> None:
    """A reset forgets all keys but the first."""

    def reset(old: Any, self: Any) -> bool:
        entries = dict(list(self.cached_block_hash_to_block._cache.items())[:1])
        done: bool = old(self)
        if done:
            self.cached_block_hash_to_block._cache.update(entries)
        return done

    _around(BlockPool, "reset_prefix_cache", reset)


# -- hits ---------------------------------------------------------------------------------------------------------


def hit_too_long() -> None:
    """A prompt that is found as a whole is hit as a whole."""

    def get_computed_blocks(old: Any, self: Any, request: Any, *limit: Any) -> Any:
        return old(self, request, request.num_tokens)

    _around(KVCacheManager, "get_computed_blocks", get_computed_blocks)


def hit_agreed_on_once() -> None:
    """Groups of three kinds are asked once how long a hit can be, as if they were two."""

    class Two(list[Any]):
        def __len__(self) -> int:
            return 2

    def split(old: Any, self: Any) -> None:
        old(self)
        self.attention_groups = Two(self.attention_groups)

    _around(HybridKVCacheCoordinator, "verify_and_split_kv_cache_groups", split)


def resumed_like_running() -> None:
    """The worker is not told that a request was resumed, and keeps the blocks that it had before."""

    def made(old: Any, self: Any, *given: Any, **named: Any) -> Any:
        data = old(self, *given, **named)
        data.resumed_req_ids.clear()
        return data

    _around(Scheduler, "_make_cached_request_data", made)


# -- windows and states -------------------------------------------------------------------------------------------


def window_released_early() -> None:
    """A block is released as soon as the window begins in it."""
    _around(
        SlidingWindowManager,
        "get_num_skipped_tokens",
        lambda old, self, num_computed_tokens: old(self, num_computed_tokens + self.block_size - 1),
    )


def window_hit_too_short() -> None:
    """A hit needs one block less than the window has."""
    SlidingWindowManager._contiguous_blocks_for_hit = classmethod(
        lambda cls, window_size, block_size, use_eagle: max(1, -(-(window_size - 1) // block_size) - 1)
    )


def state_matched_in_its_step() -> None:
    """A state that this step is to write can be matched at once."""

    def need(old: Any, self: Any, *given: Any, **named: Any) -> Any:
        self.cached_blocks_this_step.clear()
        return old(self, *given, **named)

    _around(MambaManager, "get_num_blocks_to_allocate", need)


def state_released_early() -> None:
    """The state behind the computed tokens is released before the next step has read it."""
    _around(MambaManager, "get_num_skipped_tokens", lambda old, self, num_computed_tokens: num_computed_tokens)


# -- events -------------------------------------------------------------------------------------------------------


def duplicate_forgotten() -> None:
    """When one of two blocks with the same key is handed out, the key is gone for both, and one event says so."""

    def pop(old: Any, self: Any, key: Any, block_id: int) -> Any:
        found = old(self, key, block_id)
        self._cache.pop(key, None)
        return found

    _around(BlockHashToBlockMap, "pop", pop)


def removal_not_published() -> None:
    """Removals of some keys have no event: of every other, by their hash."""
    _around(
        BlockPool,
        "_emit_block_removed_events",
        lambda old, self, block_hashes: old(self, [key for key in block_hashes if key[0] % 2]),
    )


def parent_not_published() -> None:
    """Each block is told of as if it were the first of its request."""

    def build(old: Any, self: Any, *given: Any, **named: Any) -> Any:
        event = old(self, *given, **named)
        event.parent_block_hash = None
        return event

    _around(BlockPool, "_build_block_stored_event", build)


def tokens_published_a_token_late() -> None:
    """What is told to be in a block begins with its second token."""

    def build(old: Any, self: Any, *given: Any, **named: Any) -> Any:
        event = old(self, *given, **named)
        event.token_ids = event.token_ids[1:]
        return event

    _around(BlockPool, "_build_block_stored_event", build)
