"""nano-vllm-fork 20260210: what its scheduler does with requests that give way, and with prompts that are found whole.

Each part prints what it shows. Needs nano-vllm-fork 20260210, xxhash and numpy alone; run it with
``python nano_vllm_scheduler.py``.
"""

import importlib.util
import sys
import types
from importlib.metadata import version

# The package's own __init__ wants a GPU; its scheduler and its block manager do not.
for name in ("nanovllm", "nanovllm.engine"):
    package = types.ModuleType(name)
    package.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
    sys.modules[name] = package
sys.modules.setdefault("transformers", types.SimpleNamespace(AutoConfig=object))

from nanovllm.engine.scheduler import Scheduler
from nanovllm.engine.sequence import Sequence
from nanovllm.sampling_params import SamplingParams

BLOCK_SIZE = 3


def make_scheduler(num_blocks):
    Sequence.block_size = BLOCK_SIZE
    return Scheduler(
        types.SimpleNamespace(
            max_num_seqs=2, max_num_batched_tokens=32, eos=-1, num_kvcache_blocks=num_blocks,
            kvcache_block_size=BLOCK_SIZE,
        )
    )  # fmt: skip


def add(scheduler, tokens, outputs):
    request = Sequence(tokens, SamplingParams(max_tokens=outputs, ignore_eos=True))
    scheduler.add(request)
    return request


def step(scheduler):
    batch, is_prefill = scheduler.schedule()
    scheduler.postprocess(batch, [0] * len(batch))
    return batch, is_prefill


def preempted_stays_running():
    scheduler = make_scheduler(2)
    first, second = add(scheduler, [0, 0, 0], 2), add(scheduler, [0], 2)
    step(scheduler)  # both prompts
    scheduler.schedule()  # the first needs the block of the second
    print(f"  second gave way: it has blocks {second.block_table} and waits: {second in scheduler.waiting}")
    print(f"  it is among the running requests as well: {second in scheduler.running}")
    scheduler.postprocess([first], [0])
    step(scheduler)  # its prompt once more, and its last token
    print(
        f"  it is finished: {second.is_finished}; and still among the running requests: {second in scheduler.running}"
    )
    try:
        step(scheduler)
    except IndexError as error:
        print(f"  the next step schedules it without blocks, and raises IndexError: {error}")
        return second.is_finished
    return False


def whole_prompt_is_hit():
    scheduler = make_scheduler(2)
    first, second = add(scheduler, [1, 2, 3], 2), add(scheduler, [1, 2, 3], 2)
    batch, is_prefill = scheduler.schedule()
    left = len(second) - second.num_cached_tokens
    print(f"  a prefill of both: {is_prefill and batch == [first, second]}; tokens of the second to compute: {left}")
    return is_prefill and second in batch and left == 0


def allocation_fails_half_way():
    scheduler = make_scheduler(2)
    manager = scheduler.block_manager
    request = Sequence([1, 2, 3, 4, 5, 6, 7], SamplingParams())
    try:
        manager.allocate(request)
    except IndexError as error:
        print(f"  allocate raises IndexError: {error}")
    print(f"  blocks taken: {request.block_table}; free: {len(manager.free_block_ids)} of 2")
    print(f"  blocks that can be found, and were not written: {sorted(manager.hash_to_block_id.values())}")
    return len(request.block_table) == 2 and not manager.free_block_ids and len(manager.hash_to_block_id) == 2


if version("nano-vllm-fork") != "20260210":
    sys.exit(f"made for nano-vllm-fork 20260210, found {version('nano-vllm-fork')}")
shown = []
for part in (preempted_stays_running, whole_prompt_is_hit, allocation_fails_half_way):
    print(part.__name__.replace("_", " "))
    shown.append(part())
sys.exit(0 if all(shown) else "not shown")
