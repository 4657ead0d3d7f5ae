"""transformers 5.24.0, continuous batching: a cache that is reset in use.

Prints what it shows. Needs transformers 5.24.0 and PyTorch alone; run it with ``python transformers_misuse.py``.
"""

import sys
from types import SimpleNamespace

import torch
import transformers
from transformers import LlamaConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.requests import RequestState

if transformers.__version__ != "5.24.0":
    sys.exit(f"made for transformers 5.24.0, found {transformers.__version__}")
model = LlamaConfig(num_hidden_layers=2, hidden_size=16, num_attention_heads=2, num_key_value_heads=2, vocab_size=8)
batching = ContinuousBatchingConfig(page_size=2, num_blocks=6, max_batch_tokens=8, max_memory_percent=0.5)
cache = PagedAttentionCache(model, batching, "cpu", SimpleNamespace(tp_size=1), torch.float32)
allocator = cache.cache_allocators["full_attention"]

state = RequestState("a", [1, 2, 3, 4], max_new_tokens=4)
cache.can_store_request_tokens(state, 4)
written = set(allocator.get_write_indices("a", 0, 4))
state.position_offset = 4
print(f"a has computed 4 tokens, in blocks {allocator.block_table['a']}")
cache.reset()
print(f"the cache is reset; blocks of a: {allocator.block_table.get('a')}")
other = RequestState("b", [5, 6, 7, 8], max_new_tokens=4)
cache.can_store_request_tokens(other, 4)
written -= set(allocator.get_write_indices("b", 0, 4))
stored = cache.can_store_request_tokens(state, 1)
unwritten = set(allocator.get_read_indices("a", 4, 1)) - written - set(allocator.get_write_indices("a", 4, 1))
print(f"one more token of a: granted {stored}, in blocks {allocator.block_table['a']}")
print(f"positions that it will read, and that it never wrote: {sorted(unwritten)}")
sys.exit(0 if stored and unwritten else "not shown")
