"""What is wrong with each faulty pool with a host tier: functions that stand in for one method of the good one."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import Any

from kvspec.impl.block import Block
from kvspec.impl.block_transfer import BlockTransfer, Direction, Prefetch, Prefix
from kvspec.impl.hierarchy_block_manager_pool import HierarchyBlockManagerPool as Pool
from kvspec.impl.hierarchy_target import TorchHierarchyTarget as Target
from kvspec.impl.sequence import Sequence
from kvspec.impl.sequence_blocks import publish
from kvspec.model.conformance import Tags

# -- what a copy holds ------------------------------------------------------------------------------------------------


def offload_frees_source(self: Pool, rank: int) -> list[BlockTransfer]:
    """The block of the device is let go when its copy begins."""
    started = Pool.start_offloads(self, rank)
    for transfer in started:
        transfer.device.release()
        transfer.device = self._ordinary(rank).padding_block_.copy()
    return started


def load_frees_source(self: Pool, rank: int) -> list[BlockTransfer]:
    """The block of the host is let go when its copy begins."""
    started = Pool.start_loads(self, rank)
    host = self.host_block_managers_[rank]
    for transfer in started:
        host.release_blocks([transfer.host])
        (transfer.host,) = host._count([host.padding_block_.copy()])
    return started


def end_frees_target(self: Pool, sequence: Sequence) -> None:
    """A block that is being filled goes with the sequence that wanted it."""
    targets = [transfer for transfer in sequence.loading_ if transfer.stage == "started"]
    Pool._give_up_loads(self, sequence)
    for transfer in targets:
        transfer.device.release()
        transfer.device = self._ordinary(transfer.rank).padding_block_.copy()


def host_block_for_two(self: Pool, sequence: Sequence) -> None:
    """Where the host has no block, the next offload goes where another is going."""
    Pool._plan_offloads(self, sequence)
    rank, full = sequence.dp_rank_, sequence.num_full_blocks
    going = [t for t in self.transfers_ if t.direction is Direction.OFFLOAD and t.rank == rank]
    if rank is None or not going or self.host_block_managers_[rank].num_available_blocks:
        return
    host, manager = self.host_block_managers_[rank], self._ordinary(rank)
    cache = manager.prefix_cache_
    assert cache is not None
    prefix = Prefix(sequence.tokens_[: full * sequence.block_size], sequence.keys_.copy())
    for index in range(full):
        entry = cache.entries_.get(sequence.keys_.chain[index])
        if entry is None or sequence.keys_.chain[index] in self._leaving[rank]:
            continue
        (taken,) = host._count([going[0].host.copy()])
        transfer = BlockTransfer(
            Direction.OFFLOAD, rank, device=manager.hold(entry.id), host=taken, prefix=prefix, index=index
        )
        self.transfers_[transfer] = None
        self.offload_block_pair_queues_[rank].append(transfer)
        return


def reset_frees_prefetch(self: Pool) -> None:
    """Blocks to which a prefetch is still written are given back."""
    Pool.reset(self)
    for prefetch in self.prefetches_:
        self.host_block_managers_[prefetch.rank].release_blocks(prefetch.blocks or [])
        prefetch.blocks = prefetch.blocks and []


def cancelled_load_leaks(self: Pool, sequence: Sequence) -> None:
    """A load that nobody wants any more is forgotten, with what it holds."""
    for transfer in sequence.loading_:
        transfer.sequence = None
        if transfer.stage == "planned":
            self.load_block_transfer_infos_[transfer.rank].remove(transfer)
            del self.transfers_[transfer]
    sequence.loading_, sequence.loaded_ = [], {}


def loads_paired_by_number(self: Pool, rank: int, prefix: Prefix, first: int, stop: int) -> list[Block]:
    """The n-th missing block is filled from the n-th block of the prefix."""
    return Pool._match(self, rank, prefix, 0, stop - first)


def first_rank_begins(self: Pool, rank: int) -> list[BlockTransfer]:
    """Copies of the first rank begin, and others do not."""
    return [] if rank else Pool.start_offloads(self, rank)


# -- what counts as done ----------------------------------------------------------------------------------------------


def key_visible_early(self: Pool, rank: int) -> list[BlockTransfer]:
    """A key is found on the host when its copy begins."""
    started = Pool.start_offloads(self, rank)
    for transfer in started:
        self._offloaded(transfer, True)
    return started


def key_never_visible(self: Pool, transfer: BlockTransfer, ok: bool) -> None:
    """What was copied is not entered on the host."""
    Pool._offloaded(self, transfer, False)


def failed_offload_counts(self: Pool, transfer: BlockTransfer, ok: bool) -> None:
    Pool._offloaded(self, transfer, True)


def failed_load_counts(self: Pool, transfer: BlockTransfer, ok: bool) -> None:
    Pool._loaded(self, transfer, True)


def gap_is_passed_over(self: Pool, transfer: BlockTransfer, ok: bool) -> None:
    """The sequence goes on behind the last load that was complete, whatever is before it."""
    sequence = transfer.sequence
    if sequence is not None:
        sequence.loaded_[transfer.index] = ok
        if len(sequence.loaded_) == len(sequence.loading_):
            first, stop = sequence.loading_[0].index, sequence.loading_[-1].index + 1
            sequence.load(max((i + 1 for i, good in sequence.loaded_.items() if good), default=first), stop)


def computed_before_loaded(self: Pool, sequence: Sequence) -> None:
    """The tokens of a load count as computed when it is planned."""
    Pool._plan_loads(self, sequence)
    if sequence.loading_:
        sequence.advance((sequence.loading_[-1].index + 1) * sequence.block_size)
        sequence.loading_ = []


def loads_last_token(self: Pool, sequence: Sequence) -> None:
    """The block of the last known token is loaded, too: nothing is left to compute."""
    sequence.tokens_.append(0)
    try:
        Pool._plan_loads(self, sequence)
    finally:
        sequence.tokens_.pop()


def nobody_waits(self: Pool, sequence: Sequence) -> None:
    """A sequence that is loading may be written."""
    Pool._plan_loads(self, sequence)
    for transfer in sequence.loading_:
        transfer.sequence = None
    sequence.loading_ = []


def waiter_remembered(self: Pool, sequence: Sequence) -> None:
    """A load for a sequence that gave way counts for what it is getting now."""
    sequence.loading_, sequence.loaded_ = [], {}


def offload_before_written(self: Pool, sequence: Sequence, num_tokens: int) -> bool:
    """Blocks begin to be copied to the host as soon as there is room for their tokens."""
    granted = Pool.allocate(self, sequence, num_tokens)
    rank, size = sequence.dp_rank_, sequence.block_size
    full = len(sequence.tokens_) // size
    if not granted or rank is None or sequence.num_full_blocks >= full or sequence.is_loading:
        return granted
    index = sequence.num_full_blocks
    hosts = self.host_block_managers_[rank].allocate(1) if index < len(sequence.kv_state_.ids_) else None
    if hosts is not None:
        sequence.keys_.extend(sequence.tokens_, full)
        transfer = BlockTransfer(
            Direction.OFFLOAD,
            rank,
            device=self._ordinary(rank).hold(sequence.kv_state_.ids_[index]),
            host=hosts[0],
            prefix=Prefix(sequence.tokens_[: full * size], sequence.keys_.copy()),
            index=index,
        )
        self.transfers_[transfer] = None
        self.offload_block_pair_queues_[rank].append(transfer)
    return granted


# -- from a store -----------------------------------------------------------------------------------------------------


def known_is_planned(self: Pool, prefetch: Prefetch, num_blocks: int) -> list[tuple[int, int]]:
    """Blocks that the host has are asked for again."""
    Pool.plan_prefetch(self, prefetch, num_blocks)
    self.host_block_managers_[prefetch.rank].release_blocks(prefetch.blocks or [])
    prefetch.first = 0
    prefetch.blocks = list(self._host_blocks(prefetch.rank, num_blocks))
    return [*enumerate(block.id for block in prefetch.blocks)]


def contents_in_reverse(self: Target, name: str, contents: Items[Tags]) -> None:
    """What a store gives goes to the planned blocks from the last to the first."""
    Target.finish_prefetch(self, name, contents[::-1])


def unarrived_visible(self: Pool, prefetch: Prefetch, found: int) -> None:
    """All planned blocks of a prefetch can be found."""
    Pool._end_prefetch(self, prefetch, len(prefetch.blocks or []))


def unarrived_kept(self: Pool, prefetch: Prefetch, found: int) -> None:
    """Host blocks to which nothing came are not given back."""
    prefetch.blocks = (prefetch.blocks or [])[:found]
    Pool._end_prefetch(self, prefetch, found)


def unplanned_is_finished(self: Target, name: str, contents: Items[Tags]) -> None:
    """A prefetch of which nothing is planned yet counts as one of which nothing is missing."""
    if not contents and name in self._prefetches and self._prefetches[name].blocks is None:
        self.plan_prefetch(name, 0)
    Target.finish_prefetch(self, name, contents)


def loads_over_computed(self: Pool, sequence: Sequence) -> None:
    """A block is loaded of which a part is computed."""
    computed = sequence.computed_
    sequence.computed_ = sequence.num_full_blocks * sequence.block_size
    Pool._plan_loads(self, sequence)
    sequence.computed_ = computed


# -- whole tiers ------------------------------------------------------------------------------------------------------


def reset_spares_host(self: Pool) -> None:
    """The host keeps its keys."""
    caches = [self._host_cache(rank) for rank in range(self.num_ranks)]
    kept: list[Any] = [cache.reset for cache in caches]
    for cache in caches:
        cache.reset = lambda: None  # type: ignore[method-assign,assignment]
    Pool.reset(self)
    for cache, reset in zip(caches, kept, strict=True):
        cache.reset = reset  # type: ignore[method-assign]


def reset_spares_copies(self: Pool) -> None:
    """What is on its way to the host can be found there afterwards."""
    on_the_way = list(self.transfers_)
    Pool.reset(self)
    for transfer in on_the_way:
        transfer.stale = False


def published_after_reset(self: Pool, sequence: Sequence) -> None:
    """What was computed before a reset gets its key again."""
    if sequence.dp_rank_ is not None:
        publish(self._ordinary(sequence.dp_rank_), sequence)


def allocate_remembers_old(self: Pool, sequence: Sequence, num_tokens: int) -> bool:
    if sequence.began_ != self.num_resets_:
        old = self.__dict__.setdefault("old", {})
        old.setdefault((id(sequence), self.num_resets_), sequence.num_full_blocks)
    return Pool.allocate(self, sequence, num_tokens)


def published_behind_old(self: Pool, sequence: Sequence) -> None:
    """What was computed behind a reset gets its key, though it was computed from what is from before."""
    if sequence.began_ == self.num_resets_ or sequence.dp_rank_ is None:
        Pool._publish(self, sequence)
        return
    full = sequence.num_full_blocks
    first = self.__dict__.get("old", {}).get((id(sequence), self.num_resets_), full)
    blocks = sequence.kv_state_.blocks_[first:full]
    self._ordinary(sequence.dp_rank_).cache(sequence.tokens_, blocks, sequence.keys_, first)


def sleep_keeps_keys(self: Pool) -> None:
    """The device loses its contents and keeps its keys."""
    caches = self.prefix_caches()
    kept: list[Any] = [cache.reset for cache in caches]
    for cache in caches:
        cache.reset = lambda: None  # type: ignore[method-assign,assignment]
    Pool.sleep(self)
    for cache, reset in zip(caches, kept, strict=True):
        cache.reset = reset  # type: ignore[method-assign]


def sleep_while_used(self: Pool) -> None:
    """The device sleeps whoever uses it."""
    held = [manager for manager in self.block_managers_ if manager.num_used_blocks]
    if held and not self.asleep_:
        self.asleep_ = True
        return
    Pool.sleep(self)


def sleep_drops_host(self: Pool) -> None:
    """The host forgets what it has, too."""
    Pool.sleep(self)
    for rank in range(self.num_ranks):
        self._host_cache(rank).reset()


def host_of_any_rank(self: Target, rank: int = 0) -> Mapping[bytes, int]:
    """A rank is not checked: the last is meant by -1."""
    return Target.host_cached(self, range(self.config.num_ranks)[rank])
