"""SGLang 0.5.23: calls that make no sense, and are answered in silence.

Each part makes one such call and shows what becomes of it: the same slots handed out twice, a node that is in use and
evicted, a prefix that is somebody else's by then.

Needs SGLang 0.5.23 alone; run it with ``python sglang_misuse.py``.
"""

import sys
from array import array
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

import torch


class Torchvision(MetaPathFinder, Loader):
    """SGLang imports it, and nothing here needs it."""

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] == "torchvision" else None

    def create_module(self, spec):
        module = ModuleType(spec.name)
        module.__getattr__ = lambda name: type(name, (), {}) if not name.startswith("__") else None
        return module

    def exec_module(self, module):
        pass


if find_spec("torchvision") is None:
    import transformers.utils.import_utils  # noqa: F401  # before the stub, which it must not find

    sys.meta_path.insert(0, Torchvision())

from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey


def double_free(allocator):
    """Slots that are given back twice are handed out twice."""
    slots = allocator.alloc(4)
    allocator.free(slots)
    allocator.free(slots)
    free = allocator.available_size()
    print(f"{type(allocator).__name__}: slots given back twice; of {allocator.size} tokens {free} are free")
    handed_out = [allocator.alloc(4).tolist() for _ in range(3)]
    print(f"  three requests get {handed_out}")
    return free == 12 and sum(slots.tolist() == found for found in handed_out) == 2


def tree_with(tokens):
    allocator = TokenToKVPoolAllocator(16, torch.float32, "cpu", None, False)
    tree = RadixCache(CacheInitParams(False, None, allocator, 1))
    tree.insert(InsertParams(key=RadixKey(array("q", tokens)), value=allocator.alloc(len(tokens))))
    return tree, allocator


def match(tree, tokens):
    return tree.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))


def unlocked_too_often():
    """A node that is unlocked once too often is not kept by the next lock."""
    tree, _ = tree_with([1, 2, 3])
    node = match(tree, [1, 2, 3]).last_device_node
    tree.dec_lock_ref(node)
    tree.inc_lock_ref(node)
    evicted = tree.evict(EvictParams(num_tokens=3)).num_tokens_evicted
    print(f"dec_lock_ref without a lock, then a lock: {evicted} tokens of the locked node are evicted")
    print(f"  they say: {tree.evictable_size()} tokens evictable, {tree.protected_size()} protected")
    return evicted == 3


def match_not_locked():
    """A match keeps nothing: what was found may be somebody else's a moment later."""
    tree, allocator = tree_with([1, 2, 3])
    found = match(tree, [1, 2, 3])
    tree.evict(EvictParams(num_tokens=3))
    stale, new = tree.path_device_indices(found.last_device_node).tolist(), allocator.alloc(16).tolist()
    print(f"a match of slots {stale} without a lock; evicted, and handed out again: {set(stale) <= set(new)}")
    return found.device_prefix_len == 3 and set(stale) <= set(new)


def reset_while_locked():
    """A reset while a node is locked is noticed when it is unlocked; by then the new tree counts what it has not."""
    tree, _ = tree_with([1, 2, 3])
    lock = tree.lock(match(tree, [1, 2, 3]).last_device_node)
    tree.reset()
    try:
        tree.unlock(lock)
        told = "nothing"
    except AssertionError as error:
        told = f"AssertionError: {error}"
    print(f"reset while locked, then unlock: {told}")
    print(f"  the empty tree says: {tree.evictable_size()} tokens evictable, {tree.protected_size()} protected")
    return tree.evictable_size() == 3


def main():
    shown = [
        double_free(TokenToKVPoolAllocator(8, torch.float32, "cpu", None, False)),
        double_free(PagedTokenToKVPoolAllocator(8, 4, torch.float32, "cpu", None, False)),
        unlocked_too_often(),
        match_not_locked(),
        reset_while_locked(),
    ]
    return 0 if all(shown) else 1


if __name__ == "__main__":
    sys.exit(main())
