"""transformers' continuous batching: `PagedAttentionCache`, called by the package's own schedulers.

Planning and updating a batch are the package's own functions, too (`ContinuousBatchProcessor.prepare_next_batch` and
`update_batch`), on a processor that has neither a model nor other processes beside it. Requests that have to give way
are started anew, since there is no memory to offload them to.

Sliding layers have a ring of blocks: a place stands for more than one range of tokens. Of theirs it is judged who has
which block; that tokens are written and read where the ring has them is looked at here. The kinds of layers are given
memory in sectors, so that a number of blocks does not say whether there is room where there are both kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, Literal

import torch
from transformers import LlamaConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor
from transformers.generation.continuous_batching.offloading_manager import OffloadingManager
from transformers.generation.continuous_batching.requests import RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import FIFOScheduler, PrefillFirstScheduler

from kvspec.model.conformance import Capability, Context, MisuseError, PoolConfig
from kvspec.model.engines.protocol import (
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
from kvspec.model.engines.recorder import Recorder, Seen

NAME: Final = "transformers"
PACKAGE: Final = "transformers"
VERSION: Final = "5.24.0"

_LAYERS: Final = {
    "full": ["full_attention"] * 2,
    "full-prefill-first": ["full_attention"] * 2,
    "full+sliding": ["full_attention", *["sliding_attention"] * 3],
    "sliding": ["sliding_attention"] * 2,
}
"""Layers of the model in each variant; sliding ones are more, so that their blocks are larger."""
_NO_LIMIT: Final = 64


class Cache(PagedAttentionCache):  # type: ignore[misc]
    """The cache as it is; what each call has left behind is recorded."""

    engine: Engine

    def _call(self, name: str, seq: str | None = None, **outcome: Any) -> None:
        self.engine.recorder.call(name, seq, **outcome)

    def search_prefix_match(self, request_id: str, prompt_ids: list[int]) -> int:
        found = int(super().search_prefix_match(request_id, prompt_ids))
        self._call("search_prefix_match", request_id, hit=found)
        return found

    def can_store_request_tokens(self, state: Any, request_len: int, dry_run: bool = False) -> bool:
        granted = bool(super().can_store_request_tokens(state, request_len, dry_run))
        room = state.current_len() + request_len if self.engine.is_single else 0
        # What is cached is dropped only when nobody else could be scheduled (OffloadingManager.offload_requests).
        kept = tuple(len(allocator.ledger.cached_blocks) for allocator in self.cache_allocators.values())
        self._call("can_store_request_tokens", state.request_id, refused=not granted, room=room, spare=kept)
        return granted

    def free_blocks(self, request_id: str, no_cache: bool = False) -> None:
        super().free_blocks(request_id, no_cache)
        self._call("free_blocks", request_id)

    def mark_complete_blocks(self, state: Any, complete_blocks: dict[str, int]) -> None:
        super().mark_complete_blocks(state, complete_blocks)
        self._call("mark_complete_blocks", state.request_id)

    def evict_cached_blocks(self) -> bool:
        found = bool(super().evict_cached_blocks())
        self._call("evict_cached_blocks")
        return found


class Engine:
    """One engine: the package's cache, scheduler and batch processor.

    Attributes:
        is_single: whether all layers are of one kind.
    """

    capabilities = frozenset({Capability.ENGINE, Capability.FREE_COUNT, Capability.REF_COUNTS, Capability.CACHED_KEYS})
    hit_limit: Literal["all_but_one"] = "all_but_one"
    abilities = Abilities(tuple(_LAYERS), fewest_blocks=6)
    minimum: Final = {"hits": 10, "evictions": 10, "refusals": 10, "preemptions": 10}
    resets_idle = True

    def __init__(self, config: PoolConfig) -> None:
        if config.engine is None:
            raise ValueError("no engine, expected how it schedules")
        self._config, self._engine = config, config.engine
        self._variant = config.engine.variant or "full"
        self.recorder = Recorder(self._look)
        self._outputs: dict[str, tuple[int, ...]] = {}
        self._lengths: dict[str, int] = {}
        self.cache = self._make_cache()
        self._allocators = list(self.cache.cache_allocators.values())
        self.is_single = len(self._allocators) == 1
        kind = PrefillFirstScheduler if self._variant == "full-prefill-first" else FIFOScheduler
        self.scheduler = _watched(kind)(self.cache, None, config.engine.max_running)
        self.scheduler.engine = self
        self._processor = self._make_processor()
        self._batch: list[Any] = []
        self._left_by_all = False
        self.recorder.call("PagedAttentionCache")

    def _make_cache(self) -> Cache:
        layers = _LAYERS[self._variant]
        model = LlamaConfig(
            num_hidden_layers=len(layers), hidden_size=16, num_attention_heads=2, num_key_value_heads=2, vocab_size=8
        )
        model.layer_types = layers
        model.sliding_window = self._engine.window
        batching = ContinuousBatchingConfig(
            page_size=self._config.block_size,
            num_blocks=self._config.num_blocks,
            max_batch_tokens=self._engine.max_batch_tokens,
            max_memory_percent=0.5,
        )
        cache = Cache(model, batching, "cpu", SimpleNamespace(tp_size=1), torch.float32)
        cache.engine = self
        return cache

    def _make_processor(self) -> Any:
        """What the two functions of `ContinuousBatchProcessor` use."""
        alone = SimpleNamespace(tp_all_reduce_min=lambda number, on_cpu=False: number)
        return SimpleNamespace(
            cache=self.cache,
            scheduler=self.scheduler,
            offloading_manager=OffloadingManager(self.cache, self.scheduler, 0.0, 0.5, None, alone),
            max_batch_tokens=self._engine.max_batch_tokens,
            use_async_batching=False,
            logit_processor=None,
            output_router=SimpleNamespace(deliver_batch=lambda outputs: None),
            model_runner=SimpleNamespace(maybe_pad_inputs=lambda q, kv, fast: (q, kv), pad_inputs=False),
            inputs_and_outputs=SimpleNamespace(
                prepare_batch_tensors=self._planned, prepare_batch_update=self._generated, compute_stream=None
            ),
            _update_tp_group_state=lambda: False,
        )

    def layout(self) -> Layout:
        size, stores, groups = self._config.block_size, [], []
        for number, allocator in enumerate(self._allocators):
            first = self.cache.pool.num_reserved_sectors * allocator.blocks_per_sector
            stores.append(Store(tuple(range(first, first + allocator.num_blocks)), "unkeyed"))
            kind: Literal["attention", "opaque"] = "attention" if allocator.supports_block_sharing else "opaque"
            groups.append(Group(number, kind, size, reuse=self.cache.use_prefix_sharing))
        stride = size if self.cache.use_prefix_sharing else 1
        return Layout(tuple(stores), tuple(groups), stride, self._longest(), evicts=True, contexts=False)

    def _longest(self) -> int:
        """Tokens that a request may have for its blocks to fit into the sectors."""
        return max(n for n in range(_NO_LIMIT + 1) if self._sectors_of(n) <= self.cache.num_sectors)

    def _sectors_of(self, num_tokens: int) -> int:
        found = 0
        for allocator in self._allocators:
            kept = num_tokens if allocator.supports_block_sharing else min(num_tokens, self._engine.window)
            found += -(-kept // (self._config.block_size * allocator.blocks_per_sector))
        return found

    def _look(self) -> Seen:
        tables: dict[str, list[list[int | None]]] = {}
        keys, refs = [], []
        for number, allocator in enumerate(self._allocators):
            ledger, held = allocator.ledger, dict[int, int]()
            for seq, table in allocator.block_table.items():
                tables.setdefault(seq, [[] for _ in self._allocators])[number] = list(table)
                held |= {block: ledger.shared_ref_counts.get(block, 1) for block in table}
            refs.append(held | {b: n for b, n in ledger.shared_ref_counts.items() if b not in held})
            found = ledger.block_to_hash.items()
            keys.append({block: f"{key:x}" for block, key in found if ledger.hash_to_block.get(key) == block})
        return Seen(tables, keys, self._free(), refs)

    def _free(self) -> list[int]:
        """Blocks of each kind that nobody has: those of sectors that are free or belong to another kind are among
        them."""
        pool, owned = self.cache.pool, [self._sectors(number) for number in range(len(self._allocators))]
        return [
            pool.count_free_blocks(number)
            + (len(pool.free_sectors) + sum(owned) - owned[number]) * allocator.blocks_per_sector
            for number, allocator in enumerate(self._allocators)
        ]

    def _sectors(self, number: int) -> int:
        """Sectors that a kind of layers has been given."""
        allocator, free = self._allocators[number], self.cache.pool._free_blocks[number].trees
        blocks = {block for table in allocator.block_table.values() for block in table}
        blocks.update(allocator.ledger.block_to_hash)
        return len({block // allocator.blocks_per_sector for block in blocks} | {s for s, left in free.items() if left})

    # -- requests ------------------------------------------------------------------------------------------------

    def submit(
        self, seq: str, tokens: Sequence[int], output: Sequence[int], context: Context, priority: int
    ) -> list[AnyRecord]:
        if seq in self._outputs or not tokens or not output or context != Context():
            raise MisuseError(f"{seq} was used before, has no tokens, or has a context")
        if len(tokens) + len(output) > self.layout().longest_request:
            raise MisuseError(f"{seq} would never fit")  # prepare_next_batch raises RuntimeError when it comes to that
        self._outputs[seq], self._lengths[seq] = tuple(output), len(tokens)
        self.scheduler.add_waiting_request(RequestState(seq, list(tokens), max_new_tokens=len(output)))
        return self.recorder.taken()

    def abort(self, seq: str) -> list[AnyRecord]:
        if self.scheduler.request_is_cancelled(seq):
            raise MisuseError(f"{seq} is not there")
        was_active = bool(self.scheduler.active_requests)
        self.scheduler.set_request_cancellation(seq)
        self.scheduler.clear_cancelled_requests()
        self._left_by_all |= was_active and not self.scheduler.active_requests
        self.recorder.add(Ended(seq))
        return self.recorder.taken()

    def evict(self, num_blocks: int) -> list[AnyRecord]:
        if num_blocks:
            self.cache.evict_cached_blocks()
        return self.recorder.taken()

    def reset(self) -> list[AnyRecord]:
        """`ContinuousBatchProcessor.reset` ends all requests first; here it is for an engine without any."""
        is_busy = self.resets_idle and self.scheduler.has_pending_requests()
        if not is_busy:
            self.cache.reset()
        self.recorder.call("reset", refused=is_busy, late=is_busy)
        return self.recorder.taken()

    def close(self) -> None:
        """Nothing has to be given back."""

    # -- a step --------------------------------------------------------------------------------------------------

    def step(self) -> list[AnyRecord]:
        if ContinuousBatchProcessor.prepare_next_batch(self._processor):
            ContinuousBatchProcessor.update_batch(self._processor)
            self._told()
            self._left_by_all = False
        elif self._left_by_all and self.scheduler.block_new_requests:  # what is known is not taken for anything else
            self.recorder.call("nothing: block_new_requests is set, and the last active request was cancelled")
        return self.recorder.taken()

    def _planned(self, requests_in_batch: list[Any], num_q_tokens: int, max_kv_read: int, **_: Any) -> None:
        """In the place of `ContinuousBatchingIOs.prepare_batch_tensors`: the device gets the batch."""
        self._batch, runs = requests_in_batch, []
        for future in requests_in_batch:
            state, start = future.state, future.state.position_offset
            state.position_offset += future.query_length
            runs.append(Run(state.request_id, start, state.position_offset))
        self._check_sizes(runs, num_q_tokens, max_kv_read)
        for run in runs:
            self._check_positions(run.seq, run.start, run.stop - run.start)
        self.recorder.add(Forward(runs))

    def _check_sizes(self, runs: list[Run], num_q_tokens: int, max_kv_read: int) -> None:
        """The device is told of as many tokens as there are, and of as many to read, for which it has room. Each layer
        has memory of its kind."""
        layers = [self.cache.layer_to_allocator[i].layer_type for i in range(len(_LAYERS[self._variant]))]
        if layers != _LAYERS[self._variant]:
            raise PositionError(f"layers have the memory of {layers}, and are {_LAYERS[self._variant]}")
        new, old = sum(run.stop - run.start for run in runs), [self._seen(run.start) for run in runs]
        most = max(sum(len(seen[number]) for seen in old) for number in range(len(self._allocators)))
        if num_q_tokens != new or not most <= max_kv_read <= self.cache.max_tokens_read:
            told = f"{num_q_tokens} new tokens and {max_kv_read} (of {self.cache.max_tokens_read}) to be read"
            raise PositionError(f"a batch is said to have {told}; it has {new} and {most}")

    def _seen(self, start: int) -> list[range]:
        """For each kind of layers the tokens before this one that it sees."""
        window = self._engine.window
        return [range(0 if a.supports_block_sharing else max(0, start - window + 1), start) for a in self._allocators]

    def _check_positions(self, seq: str, start: int, count: int) -> None:
        """Where the device is told to write and to read is where the table has these tokens, and nowhere else."""
        written: list[list[int]] = [[] for _ in self._allocators]
        read: list[list[int]] = [[] for _ in self._allocators]
        self.cache.extend_read_and_write_indices(seq, start, count, read, written)
        for allocator, seen, writes, reads in zip(self._allocators, self._seen(start), written, read, strict=True):
            is_ring, new = not allocator.supports_block_sharing, range(start, start + count)
            kept = new[-self._engine.window :] if is_ring else new  # what comes before them is written for nobody
            lost, there = writes[: count - len(kept)], writes[count - len(kept) :]
            if there != self._positions(allocator, seq, kept) or not self._is_trash(allocator, lost):
                raise PositionError(f"{seq} writes tokens {new} to {writes}, which is not where its table has them")
            # Rings are read before they are written: of what is new it is said only that it belongs there.
            wanted = self._positions(allocator, seq, seen)
            wanted += [allocator.sentinel_index] * count if is_ring else there
            if reads != wanted or len(reads) != allocator.get_seqlen_k(start, count):
                raise PositionError(f"{seq} reads tokens {seen} and {new} from {reads}, and they are at {wanted}")
            if allocator.supports_block_table:
                self._check_block_table(allocator, seq, start, count)

    def _check_block_table(self, allocator: Any, seq: str, start: int, count: int) -> None:
        """Kernels that find the places by themselves are told of pages where the blocks are."""
        blocks, size = allocator.block_table[seq], self._config.block_size
        pages = torch.zeros(len(blocks), dtype=torch.int32)
        allocator.fill_block_table(seq, start, count, pages)
        if [page * size for page in pages.tolist()] != [block * allocator.block_physical_stride for block in blocks]:
            raise PositionError(f"{seq} has blocks {blocks}, and a kernel is told of pages {pages.tolist()}")

    def _is_trash(self, allocator: Any, positions: list[int]) -> bool:
        """They are in the second reserved sector, from which nothing is read."""
        sector = allocator.blocks_per_sector * allocator.block_physical_stride
        return all(position // sector == 1 for position in positions)

    def _positions(self, allocator: Any, seq: str, tokens: range) -> list[int]:
        table, size, found = allocator.block_table[seq], self._config.block_size, []
        for token in tokens:
            at = token if allocator.supports_block_sharing else token % self._engine.window
            found.append(table[at // size] * allocator.block_physical_stride + at % size)
        return found

    def _generated(self) -> tuple[list[Any], list[int], None]:
        """In the place of `ContinuousBatchingIOs.prepare_batch_update`: what the model has generated."""
        return self._batch, [self._next(f.state) for f in self._batch if f.has_new_token], None

    def _next(self, state: Any) -> int:
        number = len(state.initial_tokens) + state.generated_len() - self._lengths[state.request_id]
        return int(self._outputs[state.request_id][number])

    def _told(self) -> None:
        """What the host knows behind the update."""
        for future in self._batch:
            state = future.state
            if state.status == RequestStatus.FINISHED:
                self.recorder.add(Ended(state.request_id))
            elif future.has_new_token:
                self.recorder.add(Known(state.request_id, len(state.initial_tokens) + state.generated_len()))


class PositionError(Exception):
    """The device would write or read something else than the table says."""


def _watched(kind: type[Any]) -> type[Any]:
    """The scheduler as it is; who has to start anew is recorded."""

    class Watched(kind):  # type: ignore[misc]
        engine: Engine

        def add_waiting_request(self, state: Any) -> None:
            super().add_waiting_request(state)
            if state._true_initial_tokens:  # RequestState.create_equivalent_initial_request
                self.engine.recorder.add(Preempted(state.request_id))

    return Watched


def misuse() -> None:
    """From now on the cache is reset whoever is still there."""
    Engine.resets_idle = False


def make(config: PoolConfig) -> Engine:
    """A new engine."""
    return Engine(config)
