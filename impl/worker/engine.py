"""`Engine`: a scheduler and a worker on a `KVCacheManager`, for streams of requests.

A step does, in this order:

1. **arrivals**, and what a test wants to happen (`Disturbance`; evictions that it wants come before the copies);
2. **schedule**: each running request, the one admitted first before the others, gets room for its next chunk; while
   that is refused, the request of its rank that was admitted last gives way (`preempt`) and goes to the front of the
   queue. Then requests are admitted in order of arrival; the first that is refused has the others wait, too;
3. **copies**: restores of the sequences that wait, then the checkpoints begun at the end of the step before (those of
   requests that have given way in between are dropped). A sequence whose restore failed does not run in this step;
4. **forward**: one step of the model for each rank;
5. **end**: full blocks are published, a checkpoint is begun where the step ended at a boundary, a token is chosen for
   each request whose known tokens are all computed, and requests that have all their outputs are given back; for
   a request that went over guessed tokens, they are rejected instead.

A chunk is cut at a boundary, so that a step ends there and its state can be saved: at the first one where hits go only
as far as every boundary has a checkpoint (`contiguous`), else at the last one within the chunk.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from typing import cast

import torch
from torch import Tensor

from kvspec.impl.block_manager import BlockManager
from kvspec.impl.block_manager_pool import BlockManagerPool, ManagerChoice
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import KVCacheError
from kvspec.impl.kv_cache_manager import StateCopy
from kvspec.impl.paging import block_index, blocks_needed
from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.sequence import Sequence
from kvspec.impl.state_buffers import StateBuffers
from kvspec.impl.worker.memory import RankMemory
from kvspec.impl.worker.model import HybridModel, Piece
from kvspec.impl.worker.stream import Counts, Disturbance, EngineConfig, Outcome, Request
from kvspec.model.conformance import ManagerType, PoolConfig


class NoProgressError(KVCacheError):
    """Nothing runs, and what waits is refused."""


class CountingPool(BlockManagerPool):
    """The pool, and how many blocks it trimmed from its last hit."""

    num_trimmed_ = 0

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """See `KVCacheManager.allocate`."""
        self.num_trimmed_ = 0
        return super().allocate(sequence, num_tokens)

    def _safe_boundary(self, sequence: Sequence, num_blocks: int, rank: int) -> int:
        boundary = super()._safe_boundary(sequence, num_blocks, rank)
        self.num_trimmed_ = num_blocks - boundary * self._stride_blocks
        return boundary


class Run:
    """One request on its way: its sequence, what it has generated, and what it waits for."""

    __slots__ = ("drafts", "logits", "number", "outputs", "request", "saving", "sequence", "stop")

    def __init__(self, number: int, request: Request, block_size: int) -> None:
        self.number, self.request = number, request
        self.sequence = Sequence(array("q", request.prompt), block_size)
        self.outputs: list[int] = []
        self.logits: list[Tensor] = []
        self.saving: StateCopy | None = None
        """A checkpoint that was begun and not copied yet."""
        self.stop = 0
        """Where this step ends for it."""
        self.drafts = 0
        """Known tokens at the end that are no more than guessed."""

    @property
    def known(self) -> int:
        """Tokens of its sequence."""
        return len(self.sequence.tokens_)

    @property
    def computed(self) -> int:
        """Tokens that have gone through the model."""
        return self.sequence.computed_

    @property
    def is_decoding(self) -> bool:
        """It can go on with its last token."""
        return self.computed == self.known - 1 and not self.sequence.is_waiting

    @property
    def is_done(self) -> bool:
        """It has all its outputs."""
        return len(self.outputs) == self.request.num_outputs


class Engine:
    """Runs requests to their end.

    Args:
        model: what runs.
        config: options of the engine and its pool.
    Raises:
        ValueError: the pool has no state slots and the model has linear layers, or the other way round; or so with
            blocks and layers with a window.
    """

    def __init__(self, model: HybridModel, config: EngineConfig) -> None:
        check_slots(model, config.pool)
        check_windows(model, config)
        self.model_, self.config_ = model, config
        self.manager_ = self.make_manager()
        self.memories_ = [self.make_memory() for _ in range(config.pool.num_ranks)]
        self.counts_ = Counts()
        self.waiting_: deque[Run] = deque()
        self.running_: list[Run] = []
        self._arrivals: deque[Run] = deque()
        self._failing = {"fail_saves": 0, "fail_restores": 0}

    def make_manager(self) -> CountingPool:
        """The manager of the pool."""
        return CountingPool(self.config_.pool, choice=self.choice)

    def make_memory(self) -> RankMemory:
        """The device memory of one rank."""
        return RankMemory(self.model_, self.config_.pool, self.windows)

    @property
    def windows(self) -> ManagerType | None:
        """The blocks of a rank for layers with a window; None if there are none."""
        config = self.config_
        if not config.window_blocks:
            return None
        return ManagerType(config.window_blocks, config.window_block_size, self.model_.config.window)

    @property
    def choice(self) -> ManagerChoice:
        """The kind of block manager: a composite of both kinds of attention if there is one with a window."""
        if self.windows is None:
            return ManagerChoice()
        pool = self.config_.pool
        return ManagerChoice(manager_types=(ManagerType(pool.num_blocks, pool.block_size), self.windows))

    # -- a run ---------------------------------------------------------------------------------------------------------
    def run(
        self,
        requests: Items[Request],
        disturbances: Items[Disturbance] = (),
        *,
        on_step: Callable[[int], None] | None = None,
    ) -> Outcome:
        """Run all requests; to be called once.

        Args:
            requests: in any order.
            disturbances: what happens meanwhile.
            on_step: called after each step with the number of requests that are finished.
        Raises:
            ValueError: a request can never fit.
            NoProgressError: what waits is refused though nothing runs.
        """
        runs = [Run(number, request, self.config_.pool.block_size) for number, request in enumerate(requests)]
        self._check_fits(requests)
        self._arrivals = deque(sorted(runs, key=lambda run: run.request.arrival))
        while self._arrivals or self.waiting_ or self.running_:
            self.step([d for d in disturbances if d.step == self.counts_.steps])
            if on_step is not None:
                on_step(len(runs) - len(self._arrivals) - len(self.waiting_) - len(self.running_))
        self._look()
        logits = [torch.stack(run.logits) for run in runs]
        return Outcome(logits, [run.outputs for run in runs], self.counts_)

    def _check_fits(self, requests: Items[Request]) -> None:
        pool, windows = self.config_.pool, self.windows
        for number, request in enumerate(requests):
            if not fits(request, pool):
                needed = blocks_needed(request.num_computed, pool.block_size)
                raise ValueError(f"request {number}: {needed} blocks, expected at most {pool.num_blocks - 1}")
            if windows is not None:
                needed = window_blocks(request, windows, self.config_.chunk)
                if needed >= windows.num_blocks:
                    what = f"request {number}: {needed} blocks of a window"
                    raise ValueError(f"{what}, expected at most {windows.num_blocks - 1}")

    def step(self, disturbances: Items[Disturbance] = ()) -> None:
        """One step; see the module."""
        self._arrive()
        self._disturb(disturbances)
        scheduled = self._schedule()
        self._evict(disturbances)
        ready = self._copy(scheduled)
        self._forward(ready)
        for run in ready:
            self._end(run)
        self._look()
        self.counts_.steps += 1

    def _arrive(self) -> None:
        if not self.running_ and not self.waiting_ and self._arrivals:
            self.counts_.steps = max(self.counts_.steps, self._arrivals[0].request.arrival)
        while self._arrivals and self._arrivals[0].request.arrival <= self.counts_.steps:
            self.waiting_.append(self._arrivals.popleft())

    def _disturb(self, disturbances: Items[Disturbance]) -> None:
        """What happens before requests are scheduled."""
        self._failing = {"fail_saves": 0, "fail_restores": 0}
        for kind, number in ((d.kind, d.number) for d in disturbances):
            if kind == "preempt" and number < len(self.running_):
                self._preempt(self.running_[number])
            elif kind == "draft":
                for run in [run for run in self.running_ if run.is_decoding][:1]:
                    run.drafts = number
            elif kind in self._failing:
                self._failing[kind] += number

    def _evict(self, disturbances: Items[Disturbance]) -> None:
        """What happens between the schedule and the copies, when sequences wait for what was matched."""
        for kind, number in ((d.kind, d.number) for d in disturbances):
            if kind == "evict_blocks":
                for cache in self.manager_.prefix_caches():
                    cache.evict(number)
            elif kind == "evict_states":
                for states in self.manager_.linear_state_prefix_caches_:
                    states.evict(number)

    # -- schedule ------------------------------------------------------------------------------------------------------
    def _schedule(self) -> list[Run]:
        """Requests with room for their next chunk."""
        scheduled = []
        for run in tuple(self.running_):
            if run in self.running_ and self._make_room(run):
                scheduled.append(run)
        while self.waiting_ and len(self.running_) < self.config_.max_running and self._admit(self.waiting_[0]):
            scheduled.append(self.waiting_.popleft())
            self.running_.append(scheduled[-1])
        if not self.running_ and self.waiting_:
            what = f"request {self.waiting_[0].number} is refused though nothing runs"
            raise NoProgressError("Engine.step", what, "room for it")
        return scheduled

    def _make_room(self, run: Run) -> bool:
        """Room for the next chunk of a running request; False if it gave way itself."""
        if run.drafts and self._draft(run):
            return True
        run.stop = self._end_of_chunk(run)
        while not self._allocate(run, run.stop):
            victim = self._latest(run)
            self._preempt(victim)
            if victim is run:
                return False
        return True

    def _latest(self, run: Run) -> Run:
        """The request of the same rank that was admitted last."""
        return next(other for other in reversed(self.running_) if other.sequence.dp_rank_ == run.sequence.dp_rank_)

    def _admit(self, run: Run) -> bool:
        """Room for the first chunk of a request that waits, behind what it hits; False, with nothing taken, if refused.

        How much it hits is known when there is room for its begin. Both allocations are one for the request: where the
        second is refused, it has the rank that it had before the first, so that a newcomer may get another one later.
        """
        rank = run.sequence.dp_rank_
        if not self._allocate(run, min(run.known, self.config_.chunk)):
            return False
        trimmed = self.manager_.num_trimmed_
        run.stop = self._end_of_chunk(run)
        if not self._allocate(run, run.stop):
            self.manager_.preempt(run.sequence)
            run.sequence.dp_rank_ = rank
            return False
        self.counts_.hit_tokens += run.computed
        self.counts_.trimmed_blocks += trimmed
        return True

    def _allocate(self, run: Run, num_tokens: int) -> bool:
        granted = self.manager_.allocate(run.sequence, num_tokens)
        self.counts_.refusals += not granted
        return granted

    def _end_of_chunk(self, run: Run) -> int:
        stop = min(run.known, run.computed + self.config_.chunk)
        pool = self.config_.pool
        if not (pool.has_linear_state and pool.enable_prefix_cache and self.config_.checkpoints):
            return stop
        boundaries = range(0, stop + 1, pool.stride)[block_index(run.computed, pool.stride) + 1 :]
        if not boundaries:
            return stop
        return boundaries[0] if pool.trim == "contiguous" else boundaries[-1]

    def _draft(self, run: Run) -> bool:
        """Guess the tokens that come next, all wrong; False, with nothing guessed, if there is no room for them."""
        before = run.known
        run.sequence.tokens_.extend([self.model_.config.vocabulary - 1] * run.drafts)
        run.stop = run.known
        if self._allocate(run, run.stop):
            return True
        self.manager_.truncate(run.sequence, before)
        run.drafts = 0
        return False

    def _reject(self, run: Run) -> None:
        """The guessed tokens are wrong; the one before them has to be gone over again for its logits."""
        last = run.known - run.drafts - 1
        token = run.sequence.tokens_[last]
        self.manager_.truncate(run.sequence, last)
        run.sequence.tokens_.append(token)
        self.counts_.rejected_tokens += run.drafts
        run.drafts = 0

    def _preempt(self, run: Run) -> None:
        self.manager_.preempt(run.sequence)
        run.saving, run.drafts = None, 0
        self.running_.remove(run)
        self.waiting_.appendleft(run)
        self.counts_.preemptions += 1

    # -- copies --------------------------------------------------------------------------------------------------------
    def _copy(self, scheduled: Items[Run]) -> list[Run]:
        """Zero fresh states, restore, save; the requests that can run."""
        self._settle()
        for rank, memory in enumerate(self.memories_):
            memory.zero(self.manager_.take_fresh_slots(rank))
        for run in scheduled:
            if run.sequence.is_waiting:
                self._restore(run)
        for run in scheduled:
            self._finish_save(run)
        return [run for run in scheduled if not run.sequence.is_waiting]

    def _restore(self, run: Run) -> None:
        plan = self.manager_.begin_restore(run.sequence)
        ok = self._do_copy(plan, "fail_restores")
        self.manager_.finish_restore(run.sequence, ok)
        self.counts_.restores += ok

    def _finish_save(self, run: Run) -> None:
        """Do the copy of a checkpoint that was begun before."""
        if run.saving is None:
            return
        plan, run.saving = run.saving, None
        ok = self._do_copy(plan, "fail_saves")
        self.manager_.finish_save(run.sequence, ok)
        self.counts_.saves += ok

    def _do_copy(self, plan: StateCopy, failing: str) -> bool:
        self._settle()
        memory = self.memories_[plan.rank]
        if self._failing[failing]:
            self._failing[failing] -= 1
            self.counts_.failed_copies += 1
            memory.spoil_state(plan.target)
            return False
        memory.copy_state(plan.source, plan.target)
        return True

    # -- forward and end -----------------------------------------------------------------------------------------------
    def _forward(self, ready: Items[Run]) -> None:
        for rank, memory in enumerate(self.memories_):
            runs = [run for run in ready if run.sequence.dp_rank_ == rank]
            if not runs:
                continue
            for run, logits in zip(runs, memory.run([piece_of(run) for run in runs]), strict=True):
                self.counts_.computed_tokens += run.stop - run.computed
                run.sequence.advance(run.stop, run.computed if run.drafts else None)
                if run.stop == run.known and not run.drafts:
                    run.logits.append(logits)

    def _end(self, run: Run) -> None:
        if run.drafts:
            self._reject(run)
            return
        self.manager_.cache(run.sequence)
        if self.config_.checkpoints and self.config_.pool.has_linear_state:
            run.saving = self.manager_.begin_save(run.sequence)
        if run.stop == run.known:
            self._choose(run)
        if run.is_done:
            self._finish_save(run)
            self.manager_.deallocate(run.sequence)
            self.running_.remove(run)

    def _choose(self, run: Run) -> None:
        """The next output: the one that is wanted, or else the most expected one."""
        given = run.request.outputs
        token = int(run.logits[-1].argmax()) if given is None else given[len(run.outputs)]
        run.outputs.append(token)
        self.counts_.output_tokens += 1
        if not run.is_done:
            run.sequence.tokens_.append(token)

    # -- what is seen --------------------------------------------------------------------------------------------------
    def _look(self) -> None:
        """Count what left the caches, and what the sanitizers report."""
        counts, manager = self.counts_, self.manager_
        for cache in manager.prefix_caches():
            counts.evicted_blocks += sum(event.kind == "removed" for event in cache.drain_events())
        # A checkpoint enters the table when its copy has succeeded, and leaves it by eviction only.
        counts.evicted_states = counts.saves - sum(len(c.entries_) for c in manager.linear_state_prefix_caches_)
        counts.misuse = sum(len(s.lost_handles) + len(s.double_frees) + s.padding_writes for s in self._sanitizers())

    def _settle(self) -> None:
        """Poison what was freed since the last access to the device."""
        for sanitizer, memory in self._watched():
            # A sanitizer needs of a memory what both kinds have.
            sanitizer.settle(cast("KVBuffers", memory))

    def _watched(self) -> Iterator[tuple[Sanitizer, KVBuffers | StateBuffers]]:
        """Sanitizers, and the memory whose ids they watch."""
        for rank, memory in enumerate(self.memories_):
            for ids, buffers in zip(self.manager_.id_managers(rank), memory.blocks(), strict=True):
                yield from _pair(ids, buffers)
            if memory.states_ is not None:
                yield from _pair(self.manager_.linear_state_prefix_caches_[rank].slots_, memory.states_)

    def _sanitizers(self) -> list[Sanitizer]:
        manager = self.manager_
        blocks = [ids for rank in range(self.config_.pool.num_ranks) for ids in manager.id_managers(rank)]
        slots = [cache.slots_ for cache in manager.linear_state_prefix_caches_]
        managers = [*blocks, *manager.single_block_managers_, *slots]
        return [ids.sanitizer_ for ids in managers if ids.sanitizer_ is not None]

    def __del__(self) -> None:
        # An engine that is dropped takes its handles along; nobody has lost them.
        if hasattr(self, "manager_"):
            for sanitizer in self._sanitizers():
                sanitizer.unwatch()


def _pair(
    ids: BlockManager, memory: KVBuffers | StateBuffers
) -> Iterator[tuple[Sanitizer, KVBuffers | StateBuffers]]:
    if ids.sanitizer_ is not None:
        yield ids.sanitizer_, memory


def check_slots(model: HybridModel, pool: PoolConfig) -> None:
    """Raises `ValueError` unless the pool has state slots exactly if the model has linear layers."""
    if model.config.num_linear and not pool.has_linear_state:
        raise ValueError("num_state_slots: 0, expected at least 2 for a model with linear layers")
    if pool.has_linear_state and not model.config.num_linear:
        raise ValueError(f"num_state_slots: {pool.num_state_slots}, expected 0 for a model without linear layers")


def check_windows(model: HybridModel, config: EngineConfig) -> None:
    """Raises `ValueError` unless there are blocks for layers with a window exactly if the model has such layers."""
    if model.config.num_window and not config.window_blocks:
        raise ValueError("window_blocks: 0, expected at least 2 for a model with window layers")
    if config.window_blocks and not model.config.num_window:
        raise ValueError(f"window_blocks: {config.window_blocks}, expected 0 for a model without window layers")


def fits(request: Request, pool: PoolConfig) -> bool:
    """Whether a request has room in a rank of an empty pool."""
    return blocks_needed(request.num_computed, pool.block_size) < pool.num_blocks


def window_blocks(request: Request, windows: ManagerType, chunk: int) -> int:
    """The most blocks of a window that a request has at once: those that a chunk sees, wherever it begins."""
    assert windows.window is not None
    seen = chunk + windows.window - 1
    across = blocks_needed(seen - 1, windows.block_size) + 1
    return min(across, blocks_needed(request.num_computed, windows.block_size))


def piece_of(run: Run) -> Piece:
    """What a scheduled request does in this step."""
    sequence, state = run.sequence, run.sequence.kv_state_
    slot = sequence.linear_state_slot_
    tokens = sequence.tokens_[run.computed : run.stop]
    tables = [table.ids_ for table in state.groups_] or [state.ids_]
    return Piece(tokens, run.computed, tables[0], 0 if slot is None else slot.id, *tables[1:])
