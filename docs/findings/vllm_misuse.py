"""vLLM 0.33.0: calls of `KVCacheManager` and `BlockPool` that make no sense, and are answered in silence.

Each part makes one such call and prints what it leads to. Needs vLLM 0.33.0 alone; run it with
``python vllm_misuse.py``.
"""

import os
import sys

os.environ.setdefault("PYTHONHASHSEED", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_block_hash, get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK_SIZE = 2


def make_manager(num_blocks):
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    return KVCacheManager(config, 64, scheduler_block_size=BLOCK_SIZE, hash_block_size=BLOCK_SIZE)


def make_request(name, tokens, lora=None):
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    return Request(name, tokens, SamplingParams(max_tokens=9), None, block_hasher=hasher, lora_request=lora)


def compute(manager, request, num_tokens):
    """Room for more tokens, which the device then computes."""
    blocks = manager.allocate_slots(request, num_tokens)
    assert blocks is not None
    request.num_computed_tokens += num_tokens


def look_up_again_is_needed():
    """A look-up that is used late: its blocks have gone to somebody else, and are handed out as a hit all the same."""
    manager = make_manager(num_blocks=4)
    first = make_request("first", [1, 1, 1, 1])
    compute(manager, first, 4)
    manager.free(first)
    late = make_request("late", [1, 1, 1, 1, 1])
    found, num_tokens, _ = manager.get_computed_blocks(late)
    other = make_request("other", [2, 2, 2, 2, 2, 2])
    compute(manager, other, 6)
    manager.free(other)
    manager.allocate_slots(late, 1, num_new_computed_tokens=num_tokens, new_computed_blocks=found)
    (table,) = manager.get_block_ids("late")
    block = manager.block_pool.blocks[table[0]]
    print(f"  'late' goes on behind {num_tokens} tokens in block {block.block_id}")
    foreign = any(get_block_hash(block.block_hash) == theirs for theirs in other.block_hashes)
    print(f"  block {block.block_id} has the key of tokens of 'other': {foreign}")
    return foreign


def free_blocks_twice():
    """The blocks of one request are freed twice: the second time takes them from the request that shares them."""
    manager = make_manager(num_blocks=8)
    one = make_request("one", [1, 1, 1, 1, 1])
    compute(manager, one, 5)
    two = make_request("two", [1, 1, 1, 1, 1])
    found, num_tokens, _ = manager.get_computed_blocks(two)
    manager.allocate_slots(two, 1, num_new_computed_tokens=num_tokens, new_computed_blocks=found)
    mine = list(manager.get_blocks("one").blocks[0])
    manager.free(one)
    manager.block_pool.free_blocks(mine[:2])
    shared = manager.get_block_ids("two")[0][:2]
    third = make_request("third", [3] * 12)
    compute(manager, third, 12)
    both = sorted(set(shared) & set(manager.get_block_ids("third")[0]))
    print(f"  'two' has blocks {shared}; after the second free 'third' was given {both} of them")
    return bool(both)


def publish_what_is_not_computed():
    """`cache_blocks` with more tokens than are computed: blocks that were never written can be matched."""
    manager = make_manager(num_blocks=8)
    request = make_request("request", [1] * 6)
    manager.allocate_slots(request, 2, num_lookahead_tokens=4)  # room for 6 tokens; 2 are to be computed
    request.num_computed_tokens = 2
    manager.cache_blocks(request, 6)
    _, num_tokens, _ = manager.get_computed_blocks(make_request("other", [1] * 7))
    print(f"  2 tokens are computed, and {num_tokens} are found in the cache")
    return num_tokens > 2


def free_of_nobody():
    """A request is freed twice, and one that the manager has never seen is freed: nothing is said."""
    manager = make_manager(num_blocks=8)
    request = make_request("request", [1] * 4)
    compute(manager, request, 4)
    manager.free(request)
    manager.free(request)
    manager.free(make_request("stranger", [1] * 4))
    print(f"  no error; {manager.block_pool.get_num_free_blocks()} of 7 blocks are free")
    return manager.block_pool.get_num_free_blocks() == 7


def adapter_loaded_in_place():
    """An adapter that is loaded again in place, under its name and path, has the keys that it had before."""
    before = make_request("before", [1, 1], LoRARequest("adapter", 1, "/path"))
    after = make_request("after", [1, 1], LoRARequest("adapter", 1, "/path", load_inplace=True))
    same = before.block_hashes == after.block_hashes
    print(f"  the same key before and after: {same}")
    return same


PARTS = (
    look_up_again_is_needed,
    free_blocks_twice,
    publish_what_is_not_computed,
    free_of_nobody,
    adapter_loaded_in_place,
)


def main():
    init_none_hash(sha256)
    shown = []
    for part in PARTS:
        print(f"{part.__name__}: {part.__doc__}")
        shown.append(part())
    return 0 if all(shown) else 1


if __name__ == "__main__":
    sys.exit(main())
