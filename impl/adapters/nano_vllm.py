"""nano-vllm (the fork that is installed as nano-vllm-fork): `BlockManager`, called by the package's own `Scheduler`.

Two variants: ``as-shipped`` is the scheduler as it is. In ``mended`` it is kept from two faults that no manager could
make good: a request that had to give way stays among the running ones (``Scheduler.schedule``, ``Scheduler.preempt``),
and a prompt that is found whole leaves no token whose result could be sampled (``BlockManager.allocate``).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Final, Literal

from kvspec.impl.adapters.imports import shells, stub

stub("transformers")  # of which nanovllm.config wants a name
shells("nanovllm", "nanovllm.engine")

from nanovllm.engine.block_manager import BlockManager  # noqa: E402
from nanovllm.engine.scheduler import Scheduler  # noqa: E402
from nanovllm.engine.sequence import Sequence as Request  # noqa: E402
from nanovllm.sampling_params import SamplingParams  # noqa: E402

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

NAME: Final = "nano-vllm"
PACKAGE: Final = "nano-vllm-fork"
VERSION: Final = "20260210"

VARIANTS: Final = ("mended", "as-shipped")


class Watched(BlockManager):  # type: ignore[misc]
    """The manager as it is; what each call has left behind is recorded."""

    asks_for_room = True

    def __init__(self, num_blocks: int, block_size: int, engine: Engine) -> None:
        super().__init__(num_blocks, block_size)
        self._engine, self._record = engine, engine.recorder.call

    def can_allocate(self, seq: Request) -> bool:
        # `allocate` is not to be called without this (Scheduler.schedule): it fails half way.
        granted = not self.asks_for_room or bool(super().can_allocate(seq))
        if not granted:
            self._record("can_allocate", self._engine.name(seq), refused=True, room=len(seq))
        return granted

    def allocate(self, seq: Request) -> None:
        super().allocate(seq)
        if self._engine.is_mended and seq.num_cached_tokens == len(seq):
            seq.num_cached_tokens -= self.block_size  # the last block is computed once more
        self._record("allocate", self._engine.name(seq), hit=seq.num_cached_tokens)

    def can_append(self, seq: Request) -> bool:
        granted = bool(super().can_append(seq))
        if not granted:
            self._record("can_append", self._engine.name(seq), refused=True, room=len(seq))
        return granted

    def may_append(self, seq: Request) -> None:
        super().may_append(seq)
        self._record("may_append", self._engine.name(seq))

    def deallocate(self, seq: Request) -> None:
        super().deallocate(seq)
        self._record("deallocate", self._engine.name(seq))


class Recording(Scheduler):  # type: ignore[misc]
    """The scheduler as it is, or mended; who had to give way is recorded."""

    engine: Engine

    def preempt(self, seq: Request) -> None:
        super().preempt(seq)
        self.engine.recorder.add(Preempted(self.engine.name(seq)))
        if self.engine.is_mended and seq in self.running:
            self.running.remove(seq)


class Engine:
    """One engine: the package's scheduler and manager, and what `LLMEngine` does around them."""

    capabilities = frozenset({Capability.ENGINE, Capability.FREE_COUNT, Capability.REF_COUNTS, Capability.CACHED_KEYS})
    abilities = Abilities(VARIANTS, block_sizes=(2, 3, 4))
    """`can_append` and `may_append` never find a place for the next token if a block has one."""
    minimum: Final = {"hits": 10, "evictions": 10, "refusals": 10, "preemptions": 1}

    def __init__(self, config: PoolConfig) -> None:
        if config.engine is None:
            raise ValueError("no engine, expected how it schedules")
        if config.block_size not in self.abilities.block_sizes:
            raise ValueError(f"block_size: {config.block_size}, expected one of {self.abilities.block_sizes}")
        self.is_mended = (config.engine.variant or VARIANTS[0]) == "mended"
        self.hit_limit: Literal["all", "all_but_one"] = "all_but_one" if self.is_mended else "all"
        self._config = config
        self.recorder = Recorder(self._look)
        self._requests: dict[str, Request] = {}
        self._names: dict[int, str] = {}
        self._outputs: dict[str, tuple[int, ...]] = {}
        Request.block_size = config.block_size  # ModelRunner.__init__ sets it for the whole process
        self.scheduler = Recording(
            SimpleNamespace(
                max_num_seqs=config.engine.max_running,
                max_num_batched_tokens=config.engine.max_batch_tokens,
                eos=-1,
                num_kvcache_blocks=config.num_blocks,
                kvcache_block_size=config.block_size,
            )
        )
        self.scheduler.engine = self
        self.manager = self.scheduler.block_manager = Watched(config.num_blocks, config.block_size, self)

    def name(self, request: Request) -> str:
        """What the judge calls a request."""
        return self._names[request.seq_id]

    def layout(self) -> Layout:
        config = self._config
        assert config.engine is not None
        group = Group(0, "attention", config.block_size)
        room = min(config.num_blocks * config.block_size, config.engine.max_batch_tokens)
        store = Store(tuple(range(config.num_blocks)), "unheld")
        return Layout((store,), (group,), config.block_size, room, contexts=False)

    def _look(self) -> Seen:
        manager = self.manager
        keys = {
            block: f"{key:x}" for key, block in manager.hash_to_block_id.items() if manager.blocks[block].hash == key
        }
        refs = {block.block_id: block.ref_count for block in manager.blocks}
        tables = {name: [request.block_table] for name, request in self._requests.items() if request.block_table}
        return Seen(tables, [keys], [len(manager.free_block_ids)], [refs])

    # -- operations ----------------------------------------------------------------------------------------------

    def submit(
        self, seq: str, tokens: Sequence[int], output: Sequence[int], context: Context, priority: int
    ) -> list[AnyRecord]:
        if seq in self._outputs or not tokens or not output or context != Context():
            raise MisuseError(f"{seq} was used before, has no tokens, or has a context")
        if len(tokens) + len(output) > self.layout().longest_request:
            raise MisuseError(f"{seq} would never fit")  # nobody upstream looks; Scheduler.schedule asserts
        request = Request(list(tokens), SamplingParams(max_tokens=len(output), ignore_eos=True))
        self._names[request.seq_id] = seq
        self._requests[seq], self._outputs[seq] = request, tuple(output)
        self.scheduler.add(request)
        return self.recorder.taken()

    def step(self) -> list[AnyRecord]:
        if self.scheduler.is_finished():
            return []
        batch, is_prefill = self.scheduler.schedule()
        self._check_queues()
        # ModelRunner.prepare_prefill and prepare_decode: behind what is cached, or the last token
        starts = [r.num_cached_tokens if is_prefill else len(r) - 1 for r in batch]
        runs = [Run(self.name(r), start, len(r)) for r, start in zip(batch, starts, strict=True)]
        self.recorder.add(Forward(runs))
        self.scheduler.postprocess(batch, [self._next(r) for r in batch])
        for request in batch:
            if request.is_finished:
                self._over(self.name(request))
            else:
                self.recorder.add(Known(self.name(request), len(request)))
        return self.recorder.taken()

    def _check_queues(self) -> None:
        """What comes of a request that is scheduled twice has many faces; this is one for all of them."""
        for name, request in self._requests.items():
            if request in self.scheduler.waiting and request in self.scheduler.running:
                raise QueueError(f"{name} waits, and is among the running requests at the same time")

    def _next(self, request: Request) -> int:
        return self._outputs[self.name(request)][int(request.num_completion_tokens)]

    def abort(self, seq: str) -> list[AnyRecord]:
        if seq not in self._requests:
            raise MisuseError(f"{seq} is not there")
        request = self._requests[seq]
        for queue in (self.scheduler.waiting, self.scheduler.running):
            while request in queue:
                queue.remove(request)
        if request.block_table:  # as LLMEngine.reset does for each
            self.manager.deallocate(request)
        self._over(seq)
        return self.recorder.taken()

    def _over(self, seq: str) -> None:
        self.recorder.add(Ended(seq))
        del self._requests[seq]

    def evict(self, num_blocks: int) -> list[AnyRecord]:
        return []

    def reset(self) -> list[AnyRecord]:
        """`LLMEngine.reset` ends what there is; keys go with their blocks, so nothing is left to be dropped."""
        is_busy = bool(self._requests)
        self.recorder.call("reset", refused=is_busy, late=is_busy)
        return self.recorder.taken()

    def close(self) -> None:
        """Nothing has to be given back."""


class QueueError(Exception):
    """A request is in more than one queue."""


def misuse() -> None:
    """From now on nobody asks whether there is room for a prompt."""
    Watched.asks_for_room = False


def make(config: PoolConfig) -> Engine:
    """A new engine."""
    return Engine(config)
