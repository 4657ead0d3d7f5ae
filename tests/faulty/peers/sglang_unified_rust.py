"""Faults between SGLang's tree in Rust and what drives it (`RustUnifiedTreeCore`), as in ``sglang.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import DecLockRefResult
from sglang.srt.mem_cache.rust_tree_core.adapter import RustUnifiedTreeCore
from sglang.srt.mem_cache.unified_cache.cache_action import FreeDeviceKV
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType


def _around(name: str, new: Callable[..., Any]) -> None:
    """`new` takes what it replaces first, and then what that would take."""
    old = getattr(RustUnifiedTreeCore, name)
    setattr(RustUnifiedTreeCore, name, lambda *given, **named: new(old, *given, **named))


def lock_not_given_back() -> None:
    """A node stays locked when a request is over."""
    _around("dec_lock_ref", lambda old, self, *given, **named: DecLockRefResult())


def lock_given_back_at_once() -> None:
    """A node is locked, and not any more when the request begins."""

    def lock(old: Any, self: Any, node_id: int, *given: Any) -> Any:
        taken = old(self, node_id, *given)
        unlock(self, node_id, taken.to_dec_params())
        return taken

    unlock = RustUnifiedTreeCore.dec_lock_ref
    _around("inc_lock_ref", lock)
    RustUnifiedTreeCore.dec_lock_ref = lambda self, *given, **named: DecLockRefResult()


def evicted_leaf_not_freed() -> None:
    """What an evicted leaf had is not given back."""

    def evict(old: Any, self: Any, *given: Any) -> Any:
        found = old(self, *given)
        found.device_frees.clear()
        return found

    _around("evict_device_leaf", evict)


def duplicate_not_freed() -> None:
    """Pages that the tree has already are not given back."""

    def actions(old: Any, self: Any, actions: Any) -> Any:
        return [action for action in old(self, actions) if not isinstance(action, FreeDeviceKV)]

    _around("_cache_actions_from_tagged", actions)


def protected_part_forgotten() -> None:
    """What a request has from the tree counts as its own when it is inserted again."""

    def insert(old: Any, self: Any, params: Any) -> Any:
        params.prev_prefix_len = 0
        return old(self, params)

    _around("begin_insert", insert)


def context_forgotten() -> None:
    """Adapters and salts are not told to the tree."""

    def forget(old: Any, self: Any, params: Any) -> Any:
        key, params.key = params.key, params.key[:]
        params.key.extra_key = params.key.cache_salt = None
        try:
            return old(self, params)
        finally:
            params.key = key

    _around("match_prefix", forget)
    _around("begin_insert", forget)


def window_released_behind_nothing() -> None:
    """What was released of the window is told to the tree a page too early: it takes what is not there any more."""

    def insert(old: Any, self: Any, params: Any) -> Any:
        behind = params.get_evicted_seqlen(ComponentType.SWA)
        params.set_evicted_seqlen(ComponentType.SWA, max(0, behind - self.page_size))
        return old(self, params)

    _around("begin_insert", insert)


def state_there_already() -> None:
    """The tree says that it had no state yet, whether it had one or not."""

    def step(old: Any, self: Any, step: Any) -> Any:
        found = old(self, step)
        if found.result is not None:
            found.result.mamba_exist = False
        return found

    _around("_insert_step_from_binding", step)


def state_of_another_node() -> None:
    """Asked for the state of a node, the tree gives a slot that is one higher."""

    def value(old: Any, self: Any, node_id: int, component_type: Any) -> Any:
        found = old(self, node_id, component_type)
        return found + 1 if found is not None and component_type == ComponentType.MAMBA else found

    _around("get_component_device_value", value)


def removal_not_published() -> None:
    """A removal of more than one page has no event."""

    def take(old: Any, self: Any) -> Any:
        return [event for event in old(self) if not hasattr(event, "block_hashes") or hasattr(event, "token_ids")]

    _around("take_events", take)
