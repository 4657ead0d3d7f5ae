"""transformers 5.24.0, continuous batching: after a cancellation at the wrong time nothing is ever scheduled again.

It drives the package's own cache, scheduler and offloading, and prints what it shows. Needs transformers 5.24.0 and
PyTorch alone; run it with ``python transformers_stuck.py``.
"""

import sys
from types import SimpleNamespace

import torch
import transformers
from transformers import LlamaConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor
from transformers.generation.continuous_batching.offloading_manager import OffloadingManager
from transformers.generation.continuous_batching.requests import RequestState
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

BLOCKS = 6


def make_processor():
    """The parts of a `ContinuousBatchProcessor` that plan a batch and update it; the model always answers 0."""
    model = LlamaConfig(num_hidden_layers=2, hidden_size=16, num_attention_heads=2, num_key_value_heads=2, vocab_size=8)
    batching = ContinuousBatchingConfig(page_size=1, num_blocks=BLOCKS, max_batch_tokens=8, max_memory_percent=0.5)
    cache = PagedAttentionCache(model, batching, "cpu", SimpleNamespace(tp_size=1), torch.float32)
    scheduler = FIFOScheduler(cache, None, 2)
    alone = SimpleNamespace(tp_all_reduce_min=lambda number, on_cpu=False: number)
    batch = []

    def prepare(requests_in_batch, **_):
        batch[:] = requests_in_batch
        for future in requests_in_batch:
            future.state.position_offset += future.query_length

    return SimpleNamespace(
        cache=cache,
        scheduler=scheduler,
        offloading_manager=OffloadingManager(cache, scheduler, 0.0, 0.5, None, alone),
        max_batch_tokens=8,
        use_async_batching=False,
        logit_processor=None,
        output_router=SimpleNamespace(deliver_batch=lambda outputs: None),
        model_runner=SimpleNamespace(maybe_pad_inputs=lambda q, kv, fast: (q, kv), pad_inputs=False),
        inputs_and_outputs=SimpleNamespace(
            prepare_batch_tensors=prepare,
            prepare_batch_update=lambda: (batch, [0] * sum(f.has_new_token for f in batch), None),
            compute_stream=None,
        ),
        _update_tp_group_state=lambda: False,
    )


def step(processor):
    """One step; whether there was a batch."""
    if not ContinuousBatchProcessor.prepare_next_batch(processor):
        return False
    ContinuousBatchProcessor.update_batch(processor)
    return True


if transformers.__version__ != "5.24.0":
    sys.exit(f"made for transformers 5.24.0, found {transformers.__version__}")
processor = make_processor()
scheduler = processor.scheduler
scheduler.add_waiting_request(RequestState("a", [1], max_new_tokens=5))
scheduler.add_waiting_request(RequestState("b", [2], max_new_tokens=5))
while "b" not in scheduler.waiting_requests or not scheduler.active_requests:
    step(processor)
print(f"b gave way: active {list(scheduler.active_requests)}, waiting {list(scheduler.waiting_requests)}")
print(f"new requests are blocked: {scheduler.block_new_requests}")
scheduler.set_request_cancellation("a")
steps = [step(processor) for _ in range(100)]
free = processor.cache.pool.num_free_sectors + len(
    processor.cache.cache_allocators["full_attention"].ledger.cached_blocks
)
print(f"a is cancelled: active {list(scheduler.active_requests)}, waiting {list(scheduler.waiting_requests)}")
print(f"batches in the next 100 steps: {sum(steps)}; blocks that nobody uses: {free} of {BLOCKS}")
scheduler.add_waiting_request(RequestState("c", [3], max_new_tokens=1))
later = [step(processor) for _ in range(100)]
print(f"c comes; batches in the next 100 steps: {sum(later)}; new requests are blocked: {scheduler.block_new_requests}")
sys.exit(0 if not any(steps + later) and scheduler.block_new_requests else "not shown")
