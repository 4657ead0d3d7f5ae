"""SGLang 0.5.23: KV events of equal tokens with different extra keys have the same hash.

In the tree an extra key (an adapter, a class of requests) keeps equal tokens apart. Events do not say it, and hashes do
not depend on it: the same block is stored twice, and removed when the first of both is evicted. Who keeps a set of
hashes, as a router does, then believes that it is gone, while the other one can still be matched.

Needs SGLang 0.5.23 alone; run it with ``python sglang_events_of_two_spaces.py``.
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

from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockStored
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

TOKENS = array("q", [5, 6, 7])


def follow(known, events):
    for event in events:
        if isinstance(event, AllBlocksCleared):
            known.clear()
        elif isinstance(event, BlockStored):
            print(f"  stored {event.block_hashes}, tokens {event.token_ids}")
            known |= set(event.block_hashes)
        else:
            print(f"  removed {event.block_hashes}")
            known -= set(event.block_hashes)


def main():
    allocator = TokenToKVPoolAllocator(16, torch.float32, "cpu", None, False)
    tree = RadixCache(CacheInitParams(False, None, allocator, 1, enable_kv_cache_events=True))
    known = set()
    for adapter in ("adapter-a", "adapter-b"):
        print(f"tokens {list(TOKENS)} of {adapter}")
        tree.insert(InsertParams(key=RadixKey(TOKENS, adapter), value=allocator.alloc(len(TOKENS))))
        follow(known, tree.take_events())
    print("the older one is evicted")
    tree.evict(EvictParams(num_tokens=len(TOKENS)))
    follow(known, tree.take_events())
    hits = {
        name: tree.match_prefix(MatchPrefixParams(key=RadixKey(TOKENS, name))).device_prefix_len
        for name in ("adapter-a", "adapter-b")
    }
    print(f"a reader of the events knows {len(known)} blocks; in the tree are hits of {hits} tokens")
    return 0 if not known and sorted(hits.values()) == [0, 3] else 1


if __name__ == "__main__":
    sys.exit(main())
