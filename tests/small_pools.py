"""A pool as its tests see it: a worker that only counts, and all that a call could have changed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from kvspec.impl.block_manager_pool import BlockManagerPool
from kvspec.impl.sequence import Sequence
from kvspec.model.conformance import PoolConfig


def pool_of(num_blocks: int = 12, block_size: int = 2, **options: Any) -> BlockManagerPool:
    """A pool with linear state, unless the options say otherwise."""
    options = {"num_single_blocks": 6, "num_state_slots": 8} | options
    return BlockManagerPool(PoolConfig(num_blocks=num_blocks, block_size=block_size, **options))


def request(pool: BlockManagerPool, tokens: Iterable[int]) -> Sequence:
    """A sequence that knows these tokens."""
    return Sequence(array("q", tokens), pool.config.block_size)


def restore(pool: BlockManagerPool, sequence: Sequence) -> None:
    """What a worker does before the first step of a sequence that waits."""
    if sequence.is_waiting:
        pool.begin_restore(sequence)
        pool.finish_restore(sequence, True)


def run(pool: BlockManagerPool, sequence: Sequence, stop: int | None = None) -> Sequence:
    """Compute the tokens, to the next boundary in each step, with a checkpoint at each."""
    stop = len(sequence.tokens_) if stop is None else stop
    stride = pool.config.stride
    while sequence.computed_ < stop:
        assert pool.allocate(sequence, stop)
        restore(pool, sequence)
        sequence.advance(min(stop, (sequence.computed_ // stride + 1) * stride))
        if pool.has_linear_state and pool.begin_save(sequence):
            pool.finish_save(sequence, True)
    return sequence


def done(pool: BlockManagerPool, tokens: Iterable[int]) -> None:
    """A request that has come, been computed and gone."""
    pool.deallocate(run(pool, request(pool, tokens)))


def of_sequence(sequence: Sequence) -> tuple[object, ...]:
    """Everything of a sequence but caches of keys and the bookkeeping of its publications."""
    return (
        sequence.tokens_.tolist(),
        sequence.computed_,
        sequence.written_,
        sequence.kv_state_.ids_.tolist(),
        bytes(sequence.kv_state_.taken_),
        sequence.dp_rank_,
        sequence.single_block_ and sequence.single_block_.id,
        sequence.linear_state_slot_ and sequence.linear_state_slot_.id,
        sequence.resume_ and sequence.resume_.key,
        sequence.restoring_,
        sequence.saving_ and sequence.saving_.key,
        sequence.ended_,
    )


def of_pool(pool: BlockManagerPool, *sequences: Sequence) -> tuple[object, ...]:
    """Everything that a call could have changed, the orders of free lists and of use included."""
    blocks = [
        (
            manager.free_ids(),
            manager.num_used_blocks,
            [(r.ref_count_, r.holders_, r.hash_value_) if r else (0, 0, None) for r in manager._records],
            by_use(pool, rank),
        )
        for rank, manager in enumerate(pool.block_managers_)
    ]
    singles = [(manager.free_ids(), manager.num_used_blocks) for manager in pool.single_block_managers_]
    states = [
        (
            cache.slots_.free_ids(),
            cache.slots_.num_used_blocks,
            [(key, entry.slot, entry.pins) for key, entry in cache.entries_.items()],
            [(key, entry.slot) for key, entry in cache.pending_.items()],
            set(cache._fresh),
        )
        for cache in pool.linear_state_prefix_caches_
    ]
    return (blocks, singles, states, [of_sequence(sequence) for sequence in sequences])


def by_use(pool: BlockManagerPool, rank: int) -> list[tuple[bytes, int]]:
    """Published keys and their blocks, least recently used first."""
    cache = pool.block_managers_[rank].prefix_cache_
    entries = [] if cache is None else cache.entries_.values()
    return [(entry.key, entry.id) for entry in sorted(entries, key=lambda entry: entry.order)]


def is_empty(pool: BlockManagerPool) -> bool:
    """Whether every id of every kind is free, once the caches are reset."""
    pool.reset()
    return all(
        manager.num_free_blocks == manager.num_total_blocks - 1 and manager.num_used_blocks == 0
        for manager in (
            *pool.block_managers_,
            *pool.single_block_managers_,
            *(cache.slots_ for cache in pool.linear_state_prefix_caches_),
        )
    )
