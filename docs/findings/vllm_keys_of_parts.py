"""vLLM 0.33.0: keys are published that no look-up asks for.

Full attention with blocks of four tokens and a window with blocks of two: keys are made every two tokens, and hits
end at multiples of four. When a prompt of eight tokens is computed, its second block gets the key of all eight, and
one more, of the first six; an event says so. Hits inside a block are only there for models with recurrent states, so
nobody will find it.

Needs vLLM 0.33.0 alone; run it with ``python vllm_keys_of_parts.py``.
"""

import os
import sys

os.environ.setdefault("PYTHONHASHSEED", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.distributed.kv_events import BlockStored
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request


def make_manager():
    layer = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    full = FullAttentionSpec(block_size=4, **layer)
    window = SlidingWindowSpec(block_size=2, sliding_window=3, **layer)
    groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["window"], window)]
    return KVCacheManager(
        KVCacheConfig(16, [], groups), 64, scheduler_block_size=4, hash_block_size=2, enable_kv_cache_events=True
    )


def make_request(name, tokens):
    hasher = get_request_block_hasher(2, sha256)
    return Request(name, tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher)


def main():
    init_none_hash(sha256)
    manager = make_manager()
    assert manager.allocate_slots(make_request("first", [1, 2, 3, 4, 5, 6, 7, 8]), 8) is not None
    stored = [e for e in manager.take_events() if isinstance(e, BlockStored) and e.group_idx == 0]
    for event in stored:
        print(f"stored in the group of full attention: tokens {list(event.token_ids)}, block_size {event.block_size}")
    _, num_tokens, _ = manager.get_computed_blocks(make_request("second", [1, 2, 3, 4, 5, 6, 9, 9]))
    print(f"of a prompt that begins with the same 6 tokens {num_tokens} are found")
    return 0 if any(event.block_size == 2 for event in stored) and num_tokens == 4 else 1


if __name__ == "__main__":
    sys.exit(main())
