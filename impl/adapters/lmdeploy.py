"""LMDeploy: `DefaultBlockManager` with `BlockTrie`, and `WindowBlockManager`, called by the package's own `Scheduler`.

What is here of the engine follows `InputsMakerAsync` and `EngineLoop`: a prefill goes before the next decode while few
requests are running, a prompt that is too long for one step is computed in parts, and the session of a finished request
is ended a step later, as its client does it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, Literal

import numpy as np

from kvspec.impl.adapters.imports import shells

shells("lmdeploy", "lmdeploy.pytorch")

import lmdeploy.pytorch.strategies.ar.sequence as ar  # noqa: E402  # before the scheduler, which needs it half made
from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig  # noqa: E402
from lmdeploy.pytorch.messages import (  # noqa: E402
    MessageStatus,
    SamplingParam,
    SequenceMeta,
    UpdateTokenMode,
)
from lmdeploy.pytorch.paging.block_manager import base_block_manager  # noqa: E402
from lmdeploy.pytorch.paging.scheduler import Scheduler  # noqa: E402

from kvspec.model.conformance import Capability, Context, MisuseError, PoolConfig  # noqa: E402
from kvspec.model.engines.protocol import (  # noqa: E402
    Abilities,
    AnyRecord,
    Ended,
    Forward,
    Group,
    Known,
    Layout,
    Preempted,
    Run,
    Store,
)
from kvspec.model.engines.recorder import Recorder, Seen  # noqa: E402

NAME: Final = "lmdeploy"
PACKAGE: Final = "lmdeploy"
VERSION: Final = "0.18.0"

AHEAD: Final = 2
"""Tokens for which there is room ahead of what is computed (`SchedulerConfig.prefill_interval`)."""
_VARIANTS: Final = ("trie", "window")

# Blocks remember the whole second in which they were used last, and those of one second are evicted by their addresses
# in memory. So that the same run is the same again, each use has a second of its own.
base_block_manager.time = SimpleNamespace(perf_counter=itertools.count().__next__)


class Engine:
    """One engine: the package's scheduler with what it manages, watched."""

    capabilities = frozenset({Capability.ENGINE, Capability.FREE_COUNT, Capability.REF_COUNTS, Capability.CACHED_KEYS})
    hit_limit: Literal["all_but_one"] = "all_but_one"
    abilities = Abilities(_VARIANTS, ("chunked",))
    minimum: Final = {"hits": 10, "evictions": 10, "refusals": 10, "preemptions": 1, "slides": 10}
    makes_room = True

    def __init__(self, config: PoolConfig) -> None:
        if config.engine is None:
            raise ValueError("no engine, expected how it schedules")
        self._config, self._engine = config, config.engine
        self.window = config.engine.window if config.engine.variant == "window" else None
        room = config.num_blocks * config.block_size
        cache = CacheConfig(
            max_batches=config.engine.max_running,
            block_size=config.block_size,
            num_cpu_blocks=0,
            num_gpu_blocks=config.num_blocks,
            window_size=self.window or -1,
            max_prefill_token_num=config.engine.max_batch_tokens if config.engine.chunked else room,
            enable_prefix_caching=self.window is None,
        )
        cache.enable_prefix_caching = self.window is None  # a window of one token does not switch it off by itself
        scheduling = SchedulerConfig(config.engine.max_running, room, prefill_interval=AHEAD)
        self.scheduler = Scheduler(scheduling, cache, SequenceMeta(config.block_size, ar.ARSequenceStrategy()))
        self.recorder = Recorder(self._look)
        self._names: dict[int, str] = {}
        self._sequences: dict[str, Any] = {}
        self._outputs: dict[str, tuple[int, ...]] = {}
        self._running: list[Any] = []
        self._over: list[str] = []
        self._chunked: Any = None
        self._decodes = 0
        self._watch()
        self.recorder.call("Scheduler")

    def layout(self) -> Layout:
        config = self._config
        store = Store(tuple(range(config.num_blocks)), "unkeyed", cache_counts=True)
        group = Group(0, "attention", config.block_size, self.window, reuse=self.window is None)
        room = config.num_blocks * config.block_size - AHEAD
        return Layout((store,), (group,), config.block_size, room, evicts=self.window is None)

    # -- watching ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Everything that the scheduler calls is recorded."""
        scheduler, call = self.scheduler, self.recorder.call
        manager, trie, helper = scheduler.block_manager, scheduler.block_trie, scheduler.eviction_helper

        def matched(seq: Any, before: int, result: Any) -> None:
            found = seq.num_blocks > before
            call("match", self._name(seq), hit=seq.num_history_ids if found or not before else None)

        def evicted(seq: Any, room: int, granted: bool) -> None:
            call("try_make_capacity_for", self._name(seq), refused=not granted, room=room)

        def reclaimed(seq: Any, before: None, done: bool) -> None:
            if done:
                self.recorder.add(Preempted(self._name(seq)))

        def after(name: str) -> Callable[[Any, None, Any], None]:
            return lambda seq, before, result: call(name, self._name(seq) if hasattr(seq, "seq_id") else None)

        _wrap(manager, "allocate", after("allocate"))
        _wrap(manager, "free", after("free"))
        _wrap(manager, "truncate", after("truncate"))
        _wrap(trie, "evict", after("evict"))
        _wrap(trie, "allocate", after("trie.allocate"))
        if trie.enabled:
            _wrap(trie, "match", matched, before=lambda seq: seq.num_blocks)
        if not self.makes_room:  # `allocate` is not to be called without it: it raises MemoryError
            helper.try_make_capacity_for = lambda *_: True
        _wrap(helper, "try_make_capacity_for", evicted, before=self._room)
        _wrap(helper, "_reclaim_candidate", reclaimed)

    def _room(self, seq: Any, others: Any = (), ahead: int = 0) -> int:
        """Tokens for which `num_required_blocks` asks."""
        limit = seq.kv_token_limit
        return int(seq.num_all_ids if limit is None else min(seq.num_all_ids, limit)) + ahead

    def _name(self, seq: Any) -> str:
        return self._names[seq.seq_id]

    def _look(self) -> Seen:
        manager = self.scheduler.block_manager
        allocator = manager.allocator
        counts = allocator.get_ref_count(np.arange(self._config.num_blocks))
        blocks = allocator.get_physical_blocks(np.arange(self._config.num_blocks)).tolist()
        refs = {blocks[i]: n for i, n in enumerate(counts.tolist()) if n}
        keys = {blocks[node.block_id]: text for node, text in self._nodes()}
        tables = {name: [self._table(seq)] for name, seq in self._sequences.items() if seq.num_blocks}
        return Seen(tables, [keys], [manager.get_num_free_gpu_blocks()], [refs])

    def _table(self, seq: Any) -> list[int | None]:
        """Blocks on the device; what a window has left behind is not in the package's table any more."""
        blocks: list[int | None] = self.scheduler.block_manager.get_block_table(seq).tolist()
        return [None] * (seq.num_ignored_history // self._config.block_size) + blocks

    def _nodes(self) -> Iterator[tuple[Any, str]]:
        """All nodes of the trie, and what leads to them."""
        left = [(root, repr(adapter)) for adapter, root in self.scheduler.block_trie._roots.items()]
        while left:
            node, text = left.pop()
            for child in node.children.values():
                path = f"{text} {' '.join(map(str, child.token_ids.tolist()))}"
                yield child, path
                left.append((child, path))

    # -- requests ------------------------------------------------------------------------------------------------

    def submit(
        self, seq: str, tokens: Sequence[int], output: Sequence[int], context: Context, priority: int
    ) -> list[AnyRecord]:
        if seq in self._outputs or not tokens or not output:
            raise MisuseError(f"{seq} was used before, or has no tokens")
        if len(tokens) + len(output) > self.layout().longest_request:
            raise MisuseError(f"{seq} would never fit")  # SchedulerConfig.max_session_len, which Engine looks at
        session = self.scheduler.add_session(len(self._outputs))
        self._outputs[seq] = tuple(output)
        # Blocks of different adapters are kept apart; salts and images are made part of the adapter's name.
        adapter = None if context == Context() else repr(context)
        found = session.add_sequence(np.array(tokens), SamplingParam(max_new_tokens=len(output)), adapter_name=adapter)
        found.arrive_time = float(found.seq_id)
        self._names[found.seq_id], self._sequences[seq] = seq, found
        return self.recorder.taken()

    def abort(self, seq: str) -> list[AnyRecord]:
        if seq not in self._sequences:
            raise MisuseError(f"{seq} is not there")
        self._end(seq)
        return self.recorder.taken()

    def _end(self, seq: str) -> None:
        found = self._sequences[seq]
        self.scheduler.end_session(found.session_id)
        if found in self._running:
            self._running.remove(found)
        self._chunked = None if self._chunked is found else self._chunked
        self._over = [other for other in self._over if other != seq]
        del self._sequences[seq]
        self.recorder.call("end_session", seq)
        self.recorder.add(Ended(seq))

    def evict(self, num_blocks: int) -> list[AnyRecord]:
        self.scheduler.block_trie.evict(num_blocks)
        return self.recorder.taken()

    def reset(self) -> list[AnyRecord]:
        """There is no call that drops all; with nothing in use, eviction has to be able to."""
        is_busy = bool(self._sequences)
        if not is_busy:
            self.scheduler.block_trie.evict(self._config.num_blocks)
        self.recorder.call("reset", refused=is_busy, late=is_busy)
        return self.recorder.taken()

    def close(self) -> None:
        """Nothing has to be given back."""

    # -- a step --------------------------------------------------------------------------------------------------

    def step(self) -> list[AnyRecord]:
        for seq in list(self._over):
            self._end(seq)
        if not self._prefill():
            self._decode()
        return self.recorder.taken()

    def _prefill(self) -> bool:
        """A part of a long prompt, or prompts that come."""
        if self._chunked is not None:
            return self._next_chunk()
        if not self.scheduler.has_waiting() or not self._is_prefill_due():
            return False
        batch = self.scheduler.schedule(is_prefill=True, prealloc_size=AHEAD).running
        self.scheduler.activate_seqs(batch)
        if len(batch) == 1 and batch[0].kv_token_limit is not None:
            self._chunked = batch[0]
            self._forward_chunk()
        else:
            self._forward_prefill(batch)
        return bool(batch)

    def _is_prefill_due(self) -> bool:
        """As `InputsMakerAsync.do_prefill_default` says."""
        few = self.scheduler.num_running() < self._engine.max_running * 0.5
        if few or self._decodes >= AHEAD or not self._running:
            self._decodes = 0
            return True
        self._decodes += 1
        return False

    def _next_chunk(self) -> bool:
        seq, most = self._chunked, self.scheduler.cache_config.max_prefill_token_num
        is_last = seq.num_token_ids <= most
        size = min(seq.num_token_ids, most)
        ahead = AHEAD if is_last else 0
        if not self.scheduler.reserve_long_context_chunk(seq, size, prealloc_size=ahead, is_last_chunk=is_last):
            return False
        if is_last:
            self._chunked = None
            self._forward_prefill([seq])
        else:
            self._forward_chunk()
        return True

    def _forward_chunk(self) -> None:
        """`LongContextChunker.update_step`: what is computed becomes history."""
        seq = self._chunked
        self._forward([seq], seq.kv_token_limit)
        seq.set_step(seq.kv_token_limit)

    def _forward_prefill(self, batch: list[Any]) -> None:
        if batch:
            self._forward(batch)
            self._running += batch
            self._update(batch, UpdateTokenMode.PREFILL)

    def _decode(self) -> None:
        if not self._running:
            return
        valid = self.scheduler.schedule_running(self._running, 1, AHEAD)
        self._running = [seq for seq, is_valid in zip(self._running, valid, strict=True) if is_valid]
        self._check_room()
        if self._running:
            self._forward(self._running)
            self._update(list(self._running), UpdateTokenMode.DECODE)

    def _check_room(self) -> None:
        """There is room for one token more than is known: the package's engine plans a step while the last one runs.

        Where there is not even so much as is known, the step shows it."""
        for seq in self._running:
            if len(self._table(seq)) * self._config.block_size == seq.num_all_ids:
                what = f"{self._name(seq)} has room for the {seq.num_all_ids} tokens that are known"
                raise RoomError(f"{what}, and one more was asked for")

    def _forward(self, batch: Sequence[Any], stop: int | None = None) -> None:
        runs = [Run(self._name(s), int(s.num_history_ids), int(stop or s.num_all_ids)) for s in batch]
        self.recorder.add(Forward(runs))

    def _update(self, batch: Sequence[Any], mode: Any) -> None:
        """`ARSequenceStrategy.update_running`."""
        for seq in batch:
            name = self._name(seq)
            assert seq.status == MessageStatus.RUNNING
            seq.update_token_ids(np.array([self._outputs[name][seq.num_new_tokens]]), mode=mode)
            if seq.num_new_tokens == len(self._outputs[name]):
                seq.finish()
                self._running.remove(seq)
                self._over.append(name)
            else:
                self.recorder.add(Known(name, int(seq.num_all_ids)))


class RoomError(Exception):
    """A request that was granted room has less than was asked for."""


def _wrap(
    owner: Any, name: str, after: Callable[[Any, Any, Any], None], before: Callable[..., Any] | None = None
) -> None:
    """Have a method of an object followed by a look at what it did."""
    method = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        seen = before(*arguments, **named) if before is not None else None
        result = method(*arguments, **named)
        after(arguments[0] if arguments else None, seen, result)
        return result

    setattr(owner, name, watched)


def misuse() -> None:
    """From now on nobody makes room before blocks are allocated."""
    Engine.makes_room = False


def make(config: PoolConfig) -> Engine:
    """A new engine."""
    return Engine(config)
