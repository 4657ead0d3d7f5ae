"""LMDeploy 0.18.0: blocks at wrong places behind a preemption, and room that is granted and not there.

It drives the package's own scheduler, and prints what it shows. Needs LMDeploy 0.18.0 alone; run it
with ``python lmdeploy_scheduler.py``.
"""

import importlib.util
import sys
import time
import types
from importlib.metadata import version

import numpy as np

# The packages' own __init__ want what is only there on a machine that serves models; the scheduler does not.
for name in ("lmdeploy", "lmdeploy.pytorch"):
    package = types.ModuleType(name)
    package.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
    sys.modules[name] = package

import lmdeploy.pytorch.strategies.ar.sequence as ar
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
from lmdeploy.pytorch.messages import SamplingParam, SequenceMeta, UpdateTokenMode
from lmdeploy.pytorch.paging.scheduler import Scheduler


def make_scheduler(num_blocks, block_size=1, ahead=2):
    cache = CacheConfig(
        max_batches=4, block_size=block_size, num_cpu_blocks=0, num_gpu_blocks=num_blocks, enable_prefix_caching=True,
    )  # fmt: skip
    meta = SequenceMeta(block_size, ar.ARSequenceStrategy())
    return Scheduler(SchedulerConfig(4, num_blocks * block_size, prefill_interval=ahead), cache, meta)


def add(scheduler, session, tokens):
    return scheduler.add_session(session).add_sequence(np.array(tokens), SamplingParam(max_new_tokens=8))


def prefill(scheduler, ahead=2):
    batch = scheduler.schedule(is_prefill=True, prealloc_size=ahead).running
    scheduler.activate_seqs(batch)
    for seq in batch:
        seq.update_token_ids(np.array([0]), mode=UpdateTokenMode.PREFILL)
    return batch


def decode(scheduler, running, ahead=2):
    valid = scheduler.schedule_running(running, 1, ahead)
    running = [seq for seq, is_valid in zip(running, valid, strict=True) if is_valid]
    for seq in running:
        seq.update_token_ids(np.array([0]), mode=UpdateTokenMode.DECODE)
    return running


def blocks_behind_its_own():
    scheduler = make_scheduler(6)
    a = add(scheduler, 0, [0])
    prefill(scheduler)
    decode(scheduler, [a])
    b = add(scheduler, 1, [0, 0])
    prefill(scheduler)
    [still] = decode(scheduler, [a, b])
    gave_way = next(seq for seq in (a, b) if seq is not still)
    own = gave_way.logical_blocks.get_real_blocks().tolist()
    print(f"  a or b gave way ({'a' if gave_way is a else 'b'}), and keeps its blocks {own}")
    scheduler.block_trie.match(gave_way)
    table = gave_way.logical_blocks.get_real_blocks().tolist()
    print(f"  let in again, it looks up what is cached, and its table becomes {table}")
    added = table[len(own) :]
    nodes, left = {}, list(scheduler.block_trie._roots.values())
    while left:
        node = left.pop()
        left += node.children.values()
        nodes[node.block_id] = node.prefix_len - 1
    for place, block in enumerate(added, len(own)):
        print(f"  block {block} is at place {place}; the trie has it for place {nodes[block]}")
    shared = [block for block in added if block in still.logical_blocks.get_real_blocks()]
    print(f"  of these the other request has {shared}; the one that gave way will write its token {len(own)} there")
    return bool(added) and all(nodes[block] != place for place, block in enumerate(added, len(own)))


def room_that_is_not_there():
    scheduler = make_scheduler(4, block_size=2, ahead=0)
    a = add(scheduler, 0, [1, 2])
    batch = scheduler.schedule(is_prefill=True, prealloc_size=0).running
    scheduler.activate_seqs(batch)
    valid = scheduler.schedule_running([a], num_required_tokens=1, prealloc_size=0)
    room = a.num_blocks * 2
    print(f"  asked for 1 more token behind {a.num_all_ids}: valid {valid}; room for {room} tokens")
    return valid == [True] and room < a.num_all_ids + 1


def used_last_and_evicted_first():
    last_was_evicted = 0
    for _ in range(40):
        scheduler = make_scheduler(6, ahead=0)
        allocator = scheduler.block_manager.allocator
        a, b = add(scheduler, 0, [1]), add(scheduler, 1, [2])
        prefill(scheduler, ahead=0)
        blocks = [int(seq.logical_blocks.get_real_blocks()[0]) for seq in (a, b)]
        for session in (0, 1):
            scheduler.end_session(session)
            time.sleep(0.01)
        times = allocator.get_access_time(np.array(blocks)).tolist()
        scheduler.block_trie.evict(1)
        kept = [node.block_id for root in scheduler.block_trie._roots.values() for node in root.children.values()]
        last_was_evicted += blocks[1] not in kept
    print(f"  two blocks, the second used 10 ms behind the first; the times that are kept: {times}")
    print(f"  of 40 evictions of one of them, {last_was_evicted} took the second")
    return last_was_evicted > 0


if version("lmdeploy") != "0.18.0":
    sys.exit(f"made for lmdeploy 0.18.0, found {version('lmdeploy')}")
shown = []
for part in (blocks_behind_its_own, room_that_is_not_there, used_last_and_evicted_first):
    print(part.__name__.replace("_", " "))
    shown.append(part())
sys.exit(0 if all(shown) else "not shown")
