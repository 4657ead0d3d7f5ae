"""vLLM: its own `Scheduler`, or `AsyncScheduler`, on its own `KVCacheManager`, without a model.

Nothing of what plans a step is imitated. What is imitated is around it: the engine core's loop
(`vllm.v1.engine.core.EngineCore.step` and `step_with_batch_queue`), the worker's block tables, and its choice of state
blocks (`vllm.v1.worker.mamba_utils.preprocess_mamba`).
"""

from __future__ import annotations

import logging
import os

os.environ.setdefault("PYTHONHASHSEED", "0")  # first keys derive from it
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Literal

from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from kvspec.impl.adapters.vllm_manager import WatchedManager
from kvspec.impl.adapters.vllm_setup import Setup
from kvspec.model.conformance import Capability, Context, MisuseError, PoolConfig
from kvspec.model.engines.protocol import Abilities, AnyRecord, Forward, Known, Layout, Move, Run

NAME: Final = "vllm"
PACKAGE: Final = "vllm"
VERSION: Final = "0.33.0"

VARIANTS: Final = (
    "full", "sliding", "full+sliding", "mamba", "full+mamba",
    "full+sliding2", "sliding+sliding2", "full+sliding+mamba", "full+sliding/sparse", "full+mamba/sparse",
)  # fmt: skip
"""Groups of layers. Blocks of the windows are larger with ``sliding2``. With ``sparse`` only such blocks of windows and
states are published as the same prompt would need (`prefix_cache_retention_interval`). Not driven is what puts
several keys on one block: full attention whose blocks are larger than what is hashed, and hits inside a block."""

logging.getLogger("vllm").setLevel(logging.ERROR)  # that a cache cannot be reset is no news here
init_none_hash(sha256)


class _Recording(Scheduler):  # type: ignore[misc]  # packages of peers have no types here
    """The scheduler; the manager is watched, and what the host learns is recorded where it does."""

    kv_cache_manager: WatchedManager

    def _update_request_with_output(self, request: Request, *output: Any, **options: Any) -> Any:
        found = super()._update_request_with_output(request, *output, **options)
        self.kv_cache_manager.recorder.add(Known(request.request_id, request.num_tokens))
        return found

    def _free_cow_retained_blocks(self, *ends: Any) -> None:
        super()._free_cow_retained_blocks(*ends)
        self.kv_cache_manager.copied()


class _RecordingAsync(_Recording, AsyncScheduler):  # type: ignore[misc]
    """The scheduler of overlapped steps."""


class Engine:
    """One engine around one manager.

    Attributes:
        scheduler, manager: vLLM's own; the manager is watched.
        minimum: what a run of all variants must have seen.
    """

    capabilities = frozenset({Capability.ENGINE, Capability.REF_COUNTS, Capability.FREE_COUNT, Capability.CACHED_KEYS})
    hit_limit: Literal["all_but_one"] = "all_but_one"
    abilities = Abilities(VARIANTS, ("priority", "chunked", "overlapped"), fewest_blocks=6, uncached=True)

    def __init__(self, config: PoolConfig) -> None:
        self._setup = setup = Setup(config)
        self.minimum = {"refusals": 10, "preemptions": 5, "slides": 10, "states": 10}
        self.minimum |= {"hits": 10, "evictions": 10} if setup.caching else {}
        kind = _RecordingAsync if setup.engine.overlapped else _Recording
        self.scheduler = kind(
            setup.vllm_config(),
            setup.kv_cache_config(),
            setup.no_structured_output(),
            setup.scheduler_block_size,
            setup.hash_block_size,
        )
        self.manager = self.scheduler.kv_cache_manager = WatchedManager(self.scheduler.kv_cache_manager)
        self._hasher = get_request_block_hasher(setup.hash_block_size, sha256) if setup.caching else None
        self._worker = _Worker(self.manager, setup)
        self._planned: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._submitted: dict[str, int] = {}
        self.manager.recorder.call("KVCacheManager")

    def layout(self) -> Layout:
        return self._setup.layout()

    # -- requests ------------------------------------------------------------------------------------------------

    def submit(
        self, seq: str, tokens: Sequence[int], output: Sequence[int], context: Context, priority: int
    ) -> list[AnyRecord]:
        """With overlapped steps a request ends by its last token, if that can be told from the others: the scheduler
        does not know of it when it plans the step behind it. Otherwise it ends by its length."""
        if seq in self._submitted:
            raise MisuseError(f"{seq} was used before")
        self._submitted[seq] = len(self._submitted)
        self._worker.scripts[seq] = (*tokens, *output)
        stops = self._setup.engine.overlapped and output[-1] not in output[:-1]
        self.scheduler.add_request(
            Request(
                seq,
                list(tokens),
                SamplingParams(max_tokens=len(output) + stops, stop_token_ids=[output[-1]] if stops else None),
                None,
                arrival_time=float(self._submitted[seq]),
                lora_request=_lora(context),
                cache_salt=_salt(context),
                priority=priority,
                block_hasher=self._hasher,
            )
        )
        return self.manager.recorder.taken()

    def abort(self, seq: str) -> list[AnyRecord]:
        if not self.scheduler.has_request(seq):
            raise MisuseError(f"there is no {seq}")
        self.scheduler.finish_requests(seq, RequestStatus.FINISHED_ABORTED)
        return self.manager.recorder.taken()

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self) -> list[AnyRecord]:
        """`EngineCore.step`, or for overlapped steps `EngineCore.step_with_batch_queue`: results are waited for only
        when two steps are planned, or nothing more can be."""
        depth = 2 if self._setup.engine.overlapped else 1
        if self.scheduler.has_requests():
            planned = self.scheduler.schedule()
            self._planned.append((planned, self._worker.execute(planned, self.scheduler.requests)))
            waits = planned.total_num_scheduled_tokens or self.scheduler.has_requests()
            if len(self._planned) < depth and waits:
                return self.manager.recorder.taken()
        if self._planned:
            self.scheduler.update_from_output(*self._planned.popleft())
        return self.manager.recorder.taken()

    def evict(self, num_blocks: int) -> list[AnyRecord]:
        """What the scheduler does with blocks that were not loaded (`Scheduler._handle_invalid_blocks`)."""
        idle = [b.block_id for b in self.manager.block_pool.blocks if b.block_hash is not None and not b.ref_cnt]
        self.manager.evict_blocks(set(idle[:num_blocks]))
        return self.manager.recorder.taken()

    def reset(self) -> list[AnyRecord]:
        # with overlapped steps as for new weights: who runs gives way, and what is in flight counts for nothing
        self.scheduler.reset_prefix_cache(reset_running_requests=self._setup.engine.overlapped)
        return self.manager.recorder.taken()

    def close(self) -> None:
        self.scheduler.shutdown()


class _Worker:
    """What the worker keeps, and what it does with a planned step.

    Attributes:
        scripts: all tokens that a request will ever have.
    """

    def __init__(self, manager: WatchedManager, setup: Setup) -> None:
        self._manager = manager
        self._state_groups = {
            g: group.block_size for g, group in enumerate(setup.layout().groups) if group.kind == "state"
        }
        self._tables: dict[str, tuple[list[int], ...]] = {}
        self._column: dict[str, int] = {}
        self.scripts: dict[str, tuple[int, ...]] = {}

    def execute(self, planned: SchedulerOutput, requests: dict[str, Request]) -> ModelRunnerOutput:
        """The forward pass of a step, and what it samples: nothing before a prompt is computed as far as it is known
        (`GPUModelRunner.execute_model`)."""
        self._take_over(planned)
        starts, runs, sampled = _starts(planned), [], []
        for seq, count in planned.num_scheduled_tokens.items():
            self._check_table(seq)
            start, stop = starts[seq], starts[seq] + count
            runs.append(Run(seq, start, stop, self._moves(seq, start, stop)))
            sampled.append([] if requests[seq].is_prefill_chunk else [self._token(seq, stop)])
        if runs:
            self._manager.recorder.add(Forward(runs))
        names = [run.seq for run in runs]
        return ModelRunnerOutput(names, {seq: row for row, seq in enumerate(names)}, sampled)

    def _token(self, seq: str, position: int) -> int:
        """What is sampled for a position; behind the end, before it is known to be one, anything."""
        script = self.scripts[seq]
        return script[position] if position < len(script) else 0

    def _take_over(self, planned: SchedulerOutput) -> None:
        """New blocks are put behind those that the worker has; it is never told of released ones. What a preempted
        request had is replaced when it is resumed (`GPUModelRunner._update_states`)."""
        cached = planned.scheduled_cached_reqs
        over = {*planned.finished_req_ids, *cached.resumed_req_ids}
        for seq in over:
            self._tables.pop(seq, None)
        for seq in {*over, *(planned.preempted_req_ids or ())}:
            self._column.pop(seq, None)
        for new in planned.scheduled_new_reqs:
            self._tables[new.req_id] = tuple(list(ids) for ids in new.block_ids)
        for seq, added in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if seq not in self._tables:
                self._tables[seq] = tuple(list(ids) for ids in added)
            elif added is not None:
                for table, ids in zip(self._tables[seq], added, strict=True):
                    table.extend(ids)

    def _check_table(self, seq: str) -> None:
        """The worker has each block where the manager has it."""
        for group, (own, table) in enumerate(zip(self._tables[seq], self._manager.get_block_ids(seq), strict=True)):
            if len(own) != len(table) or any(there not in (0, have) for have, there in zip(own, table, strict=True)):
                raise TableError(f"the worker was told {own} for {seq} in group {group}, the manager has {table}")

    def _moves(self, seq: str, start: int, stop: int) -> list[Move]:
        """States are kept in the column of the last token (`preprocess_mamba`)."""
        moves = []
        for group, size in self._state_groups.items():
            source = self._column.get(seq, (start - 1) // size)
            target = (stop - 1) // size
            table = self._tables[seq][group]
            moves.append(Move(group, None if source < 0 else table[source], table[target]))
        if moves:
            self._column[seq] = target
        return moves


def _starts(planned: SchedulerOutput) -> dict[str, int]:
    """How many tokens of each request were computed before, as the worker is told."""
    cached = planned.scheduled_cached_reqs
    starts = {new.req_id: new.num_computed_tokens for new in planned.scheduled_new_reqs}
    return starts | dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))


class TableError(Exception):
    """The blocks that a scheduled request was given are not those that it has."""


def _lora(context: Context) -> LoRARequest | None:
    """Keys have an adapter's name and path (`_gen_lora_extra_hash_keys`): a version needs a path of its own."""
    if context.adapter is None and not context.adapter_version:
        return None
    return LoRARequest(repr(context.adapter), 1, f"/{context.adapter_version}")


def _salt(context: Context) -> str | None:
    """Images have no place without an encoder; who sends them keeps them apart by the salt."""
    return repr((context.salt, context.images)) if context.salt is not None or context.images else None


def make(config: PoolConfig) -> Engine:
    """A new engine."""
    return Engine(config)


def misuse() -> None:
    """From now on look-ups are kept, which pins nothing: see `WatchedManager.keeps_look_ups`."""
    WatchedManager.keeps_look_ups = True
