"""Engines and managers with one mistake each that reaches what a model reads, and streams in which it does."""

from __future__ import annotations

from collections.abc import Sequence as Items
from contextlib import ExitStack
from dataclasses import dataclass

from equivalence.streams import Stream, request_of, tokens_of

from kvspec.impl.kv_cache_manager import StateCopy
from kvspec.impl.linear_state import Checkpoint, LinearStatePrefixCache
from kvspec.impl.sequence import Sequence
from kvspec.impl.worker.engine import CountingPool, Engine, Run
from kvspec.impl.worker.memory import RankMemory
from kvspec.impl.worker.model import LayerKind
from kvspec.impl.worker.stream import Disturbance, EngineConfig, Request
from kvspec.model.conformance import PoolConfig

HYBRID: tuple[LayerKind, ...] = ("linear", "attention")
ROOT = tokens_of(32, seed=1)
"""What the prompts of a stream start with."""


@dataclass(frozen=True)
class Twin:
    """A mistake, in one line; the engine that makes it; a stream that provokes it."""

    mistake: str
    engine: type[Engine]
    stream: Stream


def config(*, chunk: int = 8, max_running: int = 4, **pool: object) -> EngineConfig:
    """A roomy pool with blocks of 4 tokens, unless told otherwise."""
    sizes: dict[str, object] = {"num_blocks": 40, "block_size": 4, "num_single_blocks": 9, "num_state_slots": 20}
    return EngineConfig(pool=PoolConfig(**(sizes | pool)), chunk=chunk, max_running=max_running)  # type: ignore[arg-type]


def after(arrival: int, length: int, own: int = 3, outputs: int = 4) -> Request:
    """A request whose prompt is so many tokens of the root, and some of its own."""
    seed = 1000 * arrival + 10 * length + own
    return request_of(ROOT[:length] + tokens_of(own, seed), outputs, seed + 1, arrival)


# -- copies ------------------------------------------------------------------------------------------------------------


class RestoreSkipped(Engine):
    """The sequence goes on as if its state had been restored."""

    def _restore(self, run: Run) -> None:
        self.manager_.begin_restore(run.sequence)
        self.manager_.finish_restore(run.sequence, True)


class RestoredFromAnother(Engine):
    """The copy comes from another checkpoint, as it does from the previous owner of a slot."""

    def _restore(self, run: Run) -> None:
        plan = self.manager_.begin_restore(run.sequence)
        entries = self.manager_.linear_state_prefix_caches_[plan.rank].entries_.values()
        other = next(entry.slot for entry in entries if entry.slot != plan.source)
        self._do_copy(StateCopy(plan.rank, other, plan.target), "fail_restores")
        self.manager_.finish_restore(run.sequence, True)


class FailureIgnored(Engine):
    """A copy to a checkpoint failed, and the checkpoint is published all the same."""

    def _finish_save(self, run: Run) -> None:
        plan, run.saving = run.saving, None
        if plan is not None:
            if not self._failing["fail_saves"]:
                self._do_copy(plan, "fail_saves")
            self.manager_.finish_save(run.sequence, True)


class NotZeroed(Engine):
    """A sequence starts from the state that somebody left in its slot."""

    def make_memory(self) -> RankMemory:
        """Memory in which nothing is zeroed."""
        return _NeverZero(self.model_, self.config_.pool)


class _NeverZero(RankMemory):
    def zero(self, slots: Items[int]) -> None:
        """Nothing."""


# -- checkpoints -------------------------------------------------------------------------------------------------------


class _StatesOf(Engine):
    """An engine whose checkpoints are kept by another class."""

    states: type[LinearStatePrefixCache]

    def make_manager(self) -> CountingPool:
        """A pool with such checkpoints."""
        manager = super().make_manager()
        manager.linear_state_prefix_caches_ = [
            self.states(cache.slots_.num_total_blocks, sanitizer=cache.slots_.sanitizer_)
            for cache in manager.linear_state_prefix_caches_
        ]
        return manager


class _PublishesAtOnce(LinearStatePrefixCache):
    def reserve(self, key: bytes) -> Checkpoint | None:
        """Reserve, and let it be matched before its copy is done."""
        pending = super().reserve(key)
        if pending is not None:
            self.entries_[key] = pending
        return pending


class PendingMatched(_StatesOf):
    """A checkpoint is matched before its copy is done."""

    states = _PublishesAtOnce


class _IgnoresPins(LinearStatePrefixCache):
    def _pop_victim(self) -> Checkpoint | None:
        for entry in self.entries_.values():
            del self.entries_[entry.key]
            return Checkpoint(entry.key, entry.slot_, entry.order)
        return None


class PinnedEvicted(_StatesOf):
    """A checkpoint gives way to a newcomer while a sequence waits for it."""

    states = _IgnoresPins


class _PoolOf(Engine):
    """An engine on another pool."""

    pool: type[CountingPool]

    def make_manager(self) -> CountingPool:
        """That pool."""
        return self.pool(self.config_.pool)


class _SavesAnywhere(CountingPool):
    def begin_save(self, sequence: Sequence) -> StateCopy | None:
        """A checkpoint of the last boundary, with the state behind the computed tokens."""
        number = sequence.computed_ // self._stride
        slot, rank = sequence.linear_state_slot_, sequence.dp_rank_
        if not number or slot is None or rank is None:
            return None
        return self._reserve(sequence, rank, slot, number * self._stride_blocks)


class SavedElsewhere(_PoolOf):
    """A checkpoint is stored at a boundary where no step ended."""

    pool = _SavesAnywhere

    def _end_of_chunk(self, run: Run) -> int:
        return min(run.known, run.computed + self.config_.chunk)


# -- hits --------------------------------------------------------------------------------------------------------------


class _HitsEverything(CountingPool):
    """Copies a block that is written though others hold it, so that only the state is wrong."""

    def _mount_shared(self, sequence: Sequence, undo: ExitStack) -> int:
        sequence.tokens_.append(0)
        hit = super()._mount_shared(sequence, undo)
        sequence.tokens_.pop()
        if hit == len(sequence.tokens_):
            sequence.computed_ = hit - 1
        return sequence.computed_


class AdvancedTwice(Engine):
    """A prompt is hit in full, and its last token computed again, on a state that has seen it."""

    def make_manager(self) -> CountingPool:
        """That pool."""
        return _HitsEverything(
            self.config_.pool,
            copy_blocks=lambda rank, pairs: self.memories_[rank].buffers_.copy_blocks(pairs),
        )


class _KeepsOneMore(CountingPool):
    def _safe_boundary(self, sequence: Sequence, num_blocks: int, rank: int) -> int:
        boundary = super()._safe_boundary(sequence, num_blocks, rank)
        return min(boundary + 1, num_blocks // self._stride_blocks) if boundary else 0

    def _pin(self, sequence: Sequence, key: bytes, rank: int, undo: ExitStack) -> None:
        chain = sequence.keys_.chain
        if not self.linear_state_prefix_caches_[rank].contains(key):
            key = chain[chain.index(key) - self._stride_blocks]
        super()._pin(sequence, key, rank, undo)


class TrimmedTooLittle(_PoolOf):
    """One boundary too many of K and V is kept, with the state of the boundary before."""

    pool = _KeepsOneMore


class _PublishesKnown(CountingPool):
    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room, and publish what will be written there."""
        granted = super().allocate(sequence, num_tokens)
        if granted and num_tokens > sequence.computed_:
            computed, sequence.computed_ = sequence.computed_, num_tokens
            self.cache(sequence)
            sequence.computed_ = computed
        return granted


class UnwrittenPublished(_PoolOf):
    """Blocks are published when there is room for them, before anything is written."""

    pool = _PublishesKnown

    def _end_of_chunk(self, run: Run) -> int:
        return run.known

    def _forward(self, ready: Items[Run]) -> None:
        # The step of whoever hits comes before the step of whoever writes, as with two streams of a device.
        for run in sorted(ready, key=lambda run: -run.computed):
            super()._forward([run])


# -- blocks ------------------------------------------------------------------------------------------------------------


class _HandsOutUsed(CountingPool):
    first_: Sequence | None = None

    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room; the first block is the one that the first sequence has."""
        fresh = not sequence.kv_state_.blocks_
        granted = super().allocate(sequence, num_tokens)
        if granted and fresh:
            self.first_ = self.first_ or sequence
            sequence.kv_state_.ids_[0] = self.first_.kv_state_.ids_[0]
        return granted


class FreedWhileUsed(_PoolOf):
    """A block that a sequence still has is handed out to another one."""

    pool = _HandsOutUsed


class OtherRank(Engine):
    """Block ids and slots of one rank are taken for those of another."""

    def make_memory(self) -> RankMemory:
        """The same memory for all ranks."""
        if not hasattr(self, "only_"):
            self.only_ = super().make_memory()
        return self.only_


# -- rejected tokens ---------------------------------------------------------------------------------------------------


class _KeepsState(CountingPool):
    def _resume_before(self, sequence: Sequence, num_tokens: int, rank: int) -> int:
        return num_tokens


class StateNotTakenBack(_PoolOf):
    """Guessed tokens are rejected, and the state that has seen them is kept."""

    pool = _KeepsState


# -- all of them -------------------------------------------------------------------------------------------------------

TWICE = [after(0, 16), after(12, 16, own=5)]
"""The second one hits what the first one has left."""
STRANGERS = [request_of(tokens_of(14, 71), 4, 72, 0), request_of(tokens_of(13, 73), 4, 74, 0)]
"""At the same time, and with nothing in common."""


def stream(
    requests: list[Request],
    config: EngineConfig,
    disturbances: Items[Disturbance] = (),
    layers: tuple[LayerKind, ...] = HYBRID,
) -> Stream:
    """A stream on a small hybrid model."""
    return Stream(layers, requests, config, list(disturbances))


def twins() -> list[Twin]:
    """Each mistake with a stream that provokes it."""
    failing = [Disturbance(step, "fail_saves", 1) for step in range(12)]
    one_slot = config(num_state_slots=3, checkpoint_interval=16)
    later = request_of(tokens_of(9, 75), 4, 76, 12)
    return [
        Twin("restore skipped", RestoreSkipped, stream(TWICE, config())),
        Twin("restored from another slot", RestoredFromAnother, stream(TWICE, config())),
        Twin("failed copy taken for done", FailureIgnored, stream(TWICE, config(), failing)),
        Twin("live slot not zeroed", NotZeroed, stream(STRANGERS, config(max_running=1))),
        Twin("pending checkpoint matched", PendingMatched, stream([after(0, 16), after(1, 16, own=5)], config())),
        Twin("checkpoint evicted while pinned", PinnedEvicted, stream([*TWICE, later], one_slot)),
        Twin("checkpoint where no step ended", SavedElsewhere, stream(TWICE, config(chunk=6))),
        Twin(
            "state advanced twice over the last token",
            AdvancedTwice,
            stream([after(0, 16, 0), after(12, 16, 0)], config()),
        ),
        Twin(
            "K and V trimmed one boundary too little",
            TrimmedTooLittle,
            stream(TWICE, config(checkpoint_interval=8), [Disturbance(2, "fail_saves", 1)]),
        ),
        Twin(
            "blocks published before they are written",
            UnwrittenPublished,
            stream([after(0, 16), after(0, 16, own=5)], config(num_state_slots=0), layers=("attention", "attention")),
        ),
        Twin("block freed while used", FreedWhileUsed, stream(STRANGERS, config(enable_prefix_cache=False))),
        Twin("blocks of the other rank", OtherRank, stream(STRANGERS, config(num_ranks=2))),
        Twin(
            "state kept though tokens were rejected",
            StateNotTakenBack,
            stream(TWICE, config(), [Disturbance(6, "draft", 2)]),
        ),
    ]
