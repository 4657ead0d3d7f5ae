"""vLLM 0.33.0: with priority scheduling, a request that is preempted in the step it was scheduled in leaves keys of
blocks that are never written; a later request is given them as a prefix hit.

Two requests run. In one step the scheduler first serves the one of low priority: its blocks get their keys at once,
before the device has written them. Then the one of high priority needs a block, and there is none: the first request is
preempted, and its part of the step is cancelled. Its blocks go back to the pool with their keys.

Needs vLLM 0.33.0 alone; run it with ``python vllm_priority_preemption.py``.
"""

import os
import sys
from types import SimpleNamespace as Config

os.environ.setdefault("PYTHONHASHSEED", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

BLOCK_SIZE = 2
NUM_BLOCKS = 10  # block 0 is the null block


def make_scheduler():
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = Config(
        scheduler_config=Config(
            max_num_seqs=4,
            max_num_active_seqs=None,
            max_num_batched_tokens=8,
            max_num_scheduled_tokens=None,
            long_prefill_token_threshold=4,
            long_prefill_token_threshold_adaptive=False,
            enable_chunked_prefill=True,
            disable_chunked_mm_input=False,
            policy="priority",
            async_scheduling=False,
            watermark=0.0,
            prefill_schedule_interval=1,
            scheduler_reserve_full_isl=True,
        ),
        cache_config=Config(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=NUM_BLOCKS,
            enable_prefix_caching=True,
            prefix_match_unit=None,
            mamba_cache_mode="none",
            enable_mamba_shared_prefix_checkpoint=False,
        ),
        model_config=Config(
            max_model_len=64,
            uses_mrope=False,
            is_encoder_decoder=False,
            is_diffusion=False,
            runner_type="generate",
            supports_multimodal_inputs=False,
            return_sampling_mask=False,
        ),
        parallel_config=Config(
            data_parallel_index=0,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
        ),
        observability_config=Config(
            per_request_spec_decode_metrics="none",
            kv_cache_metrics=False,
            enable_logging_iteration_details=False,
            enable_mfu_metrics=False,
        ),
        ec_manager_config=Config(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=Config(enabled=False),
        kv_events_config=None,
        lora_config=None,
        speculative_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        is_mm_encoder_only=False,
        use_v2_model_runner=False,
        max_concurrent_batches=1,
        max_in_flight_tokens=8,
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
    )
    memory = KVCacheConfig(NUM_BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
    return Scheduler(config, memory, Config(accept_tokens=lambda request, tokens: True), BLOCK_SIZE)


class Engine:
    """Steps of the scheduler, and a device that knows what was written to which cell."""

    def __init__(self):
        self.scheduler = make_scheduler()
        self.hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self.cells = {}

    def submit(self, name, tokens, priority, arrival):
        sampling = SamplingParams(max_tokens=30, ignore_eos=True)
        request = Request(
            name, tokens, sampling, None, arrival_time=arrival, priority=priority, block_hasher=self.hasher
        )
        self.scheduler.add_request(request)

    def step(self):
        """Plan a step and run it; what was planned, and what is read though it was never written."""
        plan = self.scheduler.schedule()
        unwritten = []
        for name, count in plan.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            (table,) = self.scheduler.kv_cache_manager.get_block_ids(name)
            stop = request.num_computed_tokens
            for position in range(stop):
                cell = table[position // BLOCK_SIZE], position % BLOCK_SIZE
                prefix = tuple(request.all_token_ids[: position + 1])
                if position >= stop - count:
                    self.cells[cell] = prefix
                elif self.cells.get(cell) != prefix:
                    unwritten.append((name, position, cell[0]))
        names = list(plan.num_scheduled_tokens)
        sampled = [[] if self.scheduler.requests[name].is_prefill_chunk else [7] for name in names]
        rows = {name: row for row, name in enumerate(names)}
        self.scheduler.update_from_output(plan, ModelRunnerOutput(names, rows, sampled))
        return plan, unwritten


def main():
    init_none_hash(sha256)
    engine = Engine()
    engine.submit("low", [1] * 18, priority=1, arrival=1.0)
    for number in range(1, 10):
        if number == 2:
            engine.submit("high", [2, 2], priority=0, arrival=2.0)
        plan, unwritten = engine.step()
        preempted = sorted(plan.preempted_req_ids or ())
        print(
            f"step {number}: scheduled {plan.num_scheduled_tokens}" + (f", preempted {preempted}" if preempted else "")
        )
        for name, position, block in unwritten:
            print(f"  {name} reads token {position} from block {block}, where it was never written")
        if unwritten:
            return 0
        if "low" in preempted:
            engine.scheduler.finish_requests("high", RequestStatus.FINISHED_ABORTED)
    print("not seen")
    return 1


if __name__ == "__main__":
    sys.exit(main())
