"""How vLLM is set up: what a model's configuration would say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import torch
from vllm.config.kv_events import KVEventsConfig
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from kvspec.model.conformance import EngineConfig, PoolConfig
from kvspec.model.engines.protocol import Group, Layout, Store

_STATES_AT_ONCE: Final = 3
"""State blocks of one request, at most: of the last step, of this one, and of one that is in flight."""


class Setup:
    """The groups of a variant, and everything that the scheduler asks the configuration for.

    Attributes:
        engine: how it schedules.
        caching: whether there is a prefix cache.
        scheduler_block_size, hash_block_size: as the engine core finds them.
    """

    def __init__(self, config: PoolConfig) -> None:
        assert config.engine is not None
        self.engine: EngineConfig = config.engine
        self.caching = config.enable_prefix_cache
        self._num_blocks = config.num_blocks
        self._block_size = config.block_size
        groups, _, kept = (self.engine.variant or "full").partition("/")  # a sample has no variant
        self._kinds = groups.split("+")
        self._retention = 0 if kept == "sparse" else None
        # `MambaSpec` in mode "align" ends chunks where states are kept, whatever is asked for
        self._chunked = self.engine.chunked or "mamba" in self._kinds
        # of a window of one token nothing has to be found, and vLLM still looks for a block
        self._window = max(2, self.engine.window)
        self.longest = self._longest()
        self.scheduler_block_size, self.hash_block_size = resolve_kv_cache_block_sizes(
            self.kv_cache_config(), self.vllm_config()
        )

    # -- memory --------------------------------------------------------------------------------------------------

    def kv_cache_config(self) -> KVCacheConfig:
        """The groups; all of them have blocks of one pool."""
        groups = [KVCacheGroupSpec([f"layer.{n}"], self._spec(kind)) for n, kind in enumerate(self._kinds)]
        return KVCacheConfig(self._num_blocks, [], groups, prefix_cache_retention_interval=self._retention)

    def _spec(self, kind: str) -> KVCacheSpec:
        size = self._size(kind)
        heads: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
        if kind.startswith("full"):
            return FullAttentionSpec(block_size=size, **heads)
        if kind.startswith("sliding"):
            return SlidingWindowSpec(block_size=size, sliding_window=self._window, **heads)
        return MambaSpec(
            block_size=size if self.caching else self.longest,
            shapes=((1,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align" if self.caching else "none",
        )

    def _size(self, kind: str) -> int:
        """Tokens of a block of a group; a number behind its name says how many times as many it has."""
        return self._block_size * int(kind.lstrip("abcdefghijklmnopqrstuvwxyz") or 1)

    def layout(self) -> Layout:
        """As the judge sees it; block 0 is the null block."""
        return Layout(
            (Store(tuple(range(1, self._num_blocks)), "unheld"),),
            tuple(self._group(kind) for kind in self._kinds),
            hit_stride=self.scheduler_block_size,
            longest_request=self.longest,
            evicts=self.caching,
        )

    def _group(self, kind: str) -> Group:
        size = self._spec(kind).block_size
        if kind == "mamba":
            return Group(0, "state", size, reuse=self.caching, aligned=self.caching)
        return Group(0, "attention", size, self._window if kind.startswith("sliding") else None, self.caching)

    def _longest(self) -> int:
        """Tokens of a request that can be served alone. The last one is not computed, unless it is in flight."""
        limit = (self._num_blocks - 1) * self._block_size * 2
        if not self._chunked:
            limit = min(limit, self.engine.max_batch_tokens)
        fits = [n for n in range(1, limit + 1) if sum(self._need(kind, n) for kind in self._kinds) < self._num_blocks]
        return max(fits, default=1) + (not self.engine.overlapped)

    def _need(self, kind: str, num_tokens: int) -> int:
        """Blocks of a request of so many tokens (`SlidingWindowSpec.max_admission_blocks_per_request`)."""
        size = self._size(kind)
        blocks = -(-num_tokens // size)
        if kind.startswith("sliding"):
            return min(blocks, -(-(self._window - 1 + self._in_flight) // size) + 1)
        return blocks if kind.startswith("full") else min(blocks, _STATES_AT_ONCE)

    # -- what a configuration would say --------------------------------------------------------------------------

    @property
    def _batches(self) -> int:
        """Steps that can be in flight (`VllmConfig.max_concurrent_batches`)."""
        return 2 if self.engine.overlapped else 1

    @property
    def _in_flight(self) -> int:
        return self._batches * self.engine.max_batch_tokens

    def vllm_config(self) -> Any:
        """All that the scheduler reads of a `VllmConfig`, for one device, without speculation and connectors."""
        return SimpleNamespace(
            scheduler_config=self._scheduler_config(),
            cache_config=SimpleNamespace(
                block_size=self._spec(self._kinds[0]).block_size,
                num_gpu_blocks=self._num_blocks,
                enable_prefix_caching=self.caching,
                prefix_match_unit=None,
                mamba_cache_mode="align" if self.caching and "mamba" in self._kinds else "none",
                enable_mamba_shared_prefix_checkpoint=False,
            ),
            model_config=SimpleNamespace(
                max_model_len=self.longest,
                uses_mrope=False,
                is_encoder_decoder=False,
                is_diffusion=False,
                runner_type="generate",
                supports_multimodal_inputs=False,
                return_sampling_mask=False,
            ),
            parallel_config=SimpleNamespace(
                data_parallel_index=0,
                data_parallel_size=1,
                decode_context_parallel_size=1,
                prefill_context_parallel_size=1,
                pipeline_parallel_size=1,
            ),
            observability_config=SimpleNamespace(
                per_request_spec_decode_metrics="none",
                kv_cache_metrics=False,
                enable_logging_iteration_details=False,
                enable_mfu_metrics=False,
            ),
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
            ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
            aux_output_config=SimpleNamespace(enabled=False),
            lora_config=None,
            speculative_config=None,
            kv_transfer_config=None,
            ec_transfer_config=None,
            is_mm_encoder_only=False,
            use_v2_model_runner=False,
            max_concurrent_batches=self._batches,
            max_in_flight_tokens=self._in_flight,
            num_speculative_tokens=0,
            num_lookahead_tokens=0,
            num_prefill_lookahead_tokens=0,
            num_hash_lookahead_tokens=0,
        )

    def _scheduler_config(self) -> Any:
        return SimpleNamespace(
            max_num_seqs=self.engine.max_running,
            max_num_active_seqs=None,
            max_num_batched_tokens=self.engine.max_batch_tokens,
            max_num_scheduled_tokens=None,
            long_prefill_token_threshold=0,
            long_prefill_token_threshold_adaptive=False,
            enable_chunked_prefill=self._chunked,
            disable_chunked_mm_input=False,
            policy="priority" if self.engine.priority else "fcfs",
            async_scheduling=self.engine.overlapped,
            watermark=0.0,
            prefill_schedule_interval=1,
            scheduler_reserve_full_isl=True,
        )

    def no_structured_output(self) -> Any:
        """Every token is accepted."""
        return SimpleNamespace(accept_tokens=lambda request, tokens: True)
