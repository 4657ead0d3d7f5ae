"""What the adapters use of SGLang, in one place, with the settings of a server."""

from __future__ import annotations

import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from kvspec.impl.adapters.imports import prepare_sglang

os.environ.setdefault("SGLANG_SWA_EVICTION_INTERVAL", "1")  # windows go on with each token, not each 128
os.environ.setdefault("SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS", "4")  # so soon, not in 600 steps, admission is bold
prepare_sglang()

from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch  # noqa: E402
from sglang.srt.disaggregation.utils import DisaggregationMode  # noqa: E402
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ScheduleBatch  # noqa: E402
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder, SchedulePolicy  # noqa: E402
from sglang.srt.managers.scheduler_components.invariant_checker import SchedulerInvariantChecker  # noqa: E402
from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import NewTokenRatioTracker  # noqa: E402
from sglang.srt.managers.scheduler_components.pool_stats_observer import SchedulerPoolStatsObserver  # noqa: E402
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.mamba import MambaSlotAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import EvictParams  # noqa: E402
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache  # noqa: E402
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm  # noqa: E402

__all__ = [
    "FINISH_ABORT",
    "AddReqResult",
    "AllBlocksCleared",
    "BaseSWAKVPool",
    "BlockRemoved",
    "BlockStored",
    "CacheInitParams",
    "ComponentType",
    "DisaggregationMode",
    "EvictParams",
    "HybridReqToTokenPool",
    "KVEventBatch",
    "MambaSlotAllocator",
    "NewTokenRatioTracker",
    "PagedTokenToKVPoolAllocator",
    "PrefillAdder",
    "RadixCache",
    "RadixKey",
    "Req",
    "ReqToTokenPool",
    "SWATokenToKVPoolAllocator",
    "SamplingParams",
    "ScheduleBatch",
    "SchedulePolicy",
    "SchedulerInvariantChecker",
    "SchedulerPoolStatsObserver",
    "SpeculativeAlgorithm",
    "TokenToKVPoolAllocator",
    "UnifiedRadixCache",
    "checkpoint_kv_cache",
    "model_config",
    "release_kv_cache",
    "runtime_context",
]

PACKAGE: Final = "sglang"
VERSION: Final = "0.5.23"
MAX_TOKENS: Final = 1024
"""Tokens of a request that have a place in its row."""
_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
    "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 4, "vocab_size": 1 << 16,
    "max_position_embeddings": MAX_TOKENS, "torch_dtype": "float32",
}  # fmt: skip


@cache
def model_config() -> Any:
    """Publish the settings of a server, as the process of its scheduler does; what a batch asks of the model.

    Admission reserves little for what running requests will generate, so that some have to be retracted.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
        arguments = ServerArgs(
            model_path=folder, device="cpu", skip_tokenizer_init=True, schedule_conservativeness=0.2,
            schedule_low_priority_values_first=True,
        )  # fmt: skip
        runtime_context.publish(arguments, role="scheduler")
        arguments._mamba_cache_chunk_size = 1
        return runtime_context.process_model_config()
