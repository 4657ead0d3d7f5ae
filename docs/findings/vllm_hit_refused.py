"""vLLM 0.33.0: a request that fits is refused for good because a part of it is found in the cache.

A model with full attention and recurrent states (cache mode "align"), whose blocks have four tokens and whose hashes
one, so that a hit can end inside a block. Such a hit needs the block that it found and a copy of it, in both groups.
With a prefix of one token in the cache, a request needs six blocks, and without it three. Of five blocks all are
free, and stay so: nobody else is there to forget the prefix.

Needs vLLM 0.33.0 alone; run it with ``python vllm_hit_refused.py``.
"""

import os
import sys

os.environ.setdefault("PYTHONHASHSEED", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.request import Request

BLOCK_SIZE = 4
HASH_SIZE = 1
NUM_BLOCKS = 6  # block 0 is the null block
LONGEST = 8


def make_manager():
    attention = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    states = MambaSpec(block_size=BLOCK_SIZE, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")
    groups = [KVCacheGroupSpec(["attention"], attention), KVCacheGroupSpec(["states"], states)]
    return KVCacheManager(
        KVCacheConfig(NUM_BLOCKS, [], groups),
        max_model_len=LONGEST,
        scheduler_block_size=BLOCK_SIZE,
        hash_block_size=HASH_SIZE,
        max_in_flight_tokens=16,
    )


def make_request(name, tokens):
    hasher = get_request_block_hasher(HASH_SIZE, sha256)
    return Request(name, tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher)


def compute(manager, request, num_tokens):
    """One step of a running request, as the scheduler plans it."""
    manager.new_step_starts()
    assert manager.allocate_slots(request, num_tokens) is not None
    _, ends_of_copies = manager.take_kv_cache_block_copies()
    manager.block_pool.free_blocks(ends_of_copies)
    request.num_computed_tokens += num_tokens


def admit(manager, request):
    """What the scheduler does with a waiting request; the hit, and whether there is room."""
    manager.new_step_starts()
    found, num_tokens, _ = manager.get_computed_blocks(request)
    blocks = manager.allocate_slots(
        request,
        request.num_tokens - num_tokens,
        num_new_computed_tokens=num_tokens,
        new_computed_blocks=found,
        full_sequence_must_fit=True,
        has_scheduled_reqs=False,
    )
    return num_tokens, blocks is not None


def main():
    init_none_hash(sha256)
    manager = make_manager()
    first = make_request("first", [1, 2])
    compute(manager, first, 1)  # prompts are cut where the last state is kept: `Scheduler._mamba_block_aligned_split`
    compute(manager, first, 1)
    manager.free(first)

    second = make_request("second", [1, 3, 3, 3, 3, 3, 3])
    free = manager.block_pool.get_num_free_blocks()
    outcomes = []
    for step in range(1, 4):
        num_tokens, has_room = admit(manager, second)
        outcomes.append(has_room)
        print(f"step {step}: {free} of 5 blocks are free, {num_tokens} token is found, admitted: {has_room}")
    manager.reset_prefix_cache()
    num_tokens, has_room = admit(manager, second)
    print(f"after reset_prefix_cache: {num_tokens} tokens are found, admitted: {has_room}")
    return 0 if has_room and not any(outcomes) and free == NUM_BLOCKS - 1 else 1


if __name__ == "__main__":
    sys.exit(main())
