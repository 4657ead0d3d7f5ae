"""`TorchPoolTarget`: a `BlockManagerPool` behind the pool protocol of `kvspec.model.conformance`.

The target is scheduler and worker in one: the pool plans, and K, V and recurrent states of each rank are in torch
tensors. A copy of a state is done when its ``..._finish`` is called; until then nothing can be read where it goes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items

import numpy as np
import torch

from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.block_manager_pool import BlockManagerPool
from kvspec.impl.buffers import KVBuffers, check_tags
from kvspec.impl.errors import InvalidRangeError, SequenceStateError
from kvspec.impl.linear_state import LinearStatePrefixCache
from kvspec.impl.sanitizer import Memory, Sanitizer
from kvspec.impl.sequence import Sequence
from kvspec.impl.state_buffers import StateBuffers
from kvspec.impl.target import cached_blocks
from kvspec.impl.target_base import BaseTarget, operation
from kvspec.impl.write_plan import WritePlan, as_tags
from kvspec.model.conformance import OF_VARIANTS, CacheEvent, Capability, Form, PoolConfig, Tags, advance


class TorchPoolTarget(BaseTarget):
    """Sequences over a `BlockManagerPool`, with blocks and recurrent states of each rank in torch tensors.

    Args:
        config: sizes and options, of a pool.
        layers, heads, head_dim: shape of a cell (see `KVBuffers`); there are as many layers with a recurrent state.
        d_k, d_v, channels, width: shape of a state (see `StateBuffers`), with as many heads.
        device: where the memory is.
        record_events: keep cache events for `drain_events`; without a reader they only grow.
    Raises:
        InvalidRangeError: the config is that of another form.
    """

    capabilities: frozenset[Capability] = frozenset(Capability) - OF_VARIANTS - {Capability.FORK}
    name_ = "TorchPoolTarget"
    form_ = Form.POOLS

    def __init__(
        self,
        config: PoolConfig,
        *,
        layers: int = 1,
        heads: int = 1,
        head_dim: int = 2,
        d_k: int = 2,
        d_v: int = 2,
        channels: int = 2,
        width: int = 2,
        device: torch.device | str = "cpu",
        record_events: bool = True,
    ) -> None:
        super().__init__(config)
        self.pool_ = self._make_pool(record_events)
        ranks = range(config.num_ranks)
        self.buffers_ = [
            KVBuffers(
                config.num_blocks, config.block_size, layers=layers, heads=heads, head_dim=head_dim, device=device
            )
            for _ in ranks
        ]
        self.states_ = [
            StateBuffers(
                config.num_state_slots,
                layers=layers,
                heads=heads,
                d_k=d_k,
                d_v=d_v,
                channels=channels,
                width=width,
                device=device,
            )
            for _ in ranks
            if config.has_linear_state
        ]
        if config.sanitizer:
            memories: list[Memory] = [*self.buffers_, *self.states_]
            for memory in memories:
                memory.guard_padding()

    def _make_pool(self, record_events: bool) -> BlockManagerPool:
        return BlockManagerPool(self.config, copy_blocks=self._copy_blocks, record_events=record_events)

    def __del__(self) -> None:
        # A target that is dropped without close takes its handles along; nobody has lost them.
        if hasattr(self, "states_"):
            for sanitizer in self.sanitizers():
                sanitizer.unwatch()

    # -- operations --------------------------------------------------------------------------------------------------
    @operation
    def allocate_shared(self, seq: str) -> int:
        """Start with what can be hit; the number of tokens, 0 with nothing taken. Error unless the table is empty."""
        return self.pool_.allocate_shared(self._get(seq, "allocate_shared"))

    @operation
    def allocate(self, seq: str, num_tokens: int) -> bool:
        """Rank, single block, live slot, hits, growth (seed 5.2). All or nothing."""
        return self.pool_.allocate(self._get(seq, "allocate"), num_tokens)

    @operation
    def write(self, batch: Items[tuple[str, Tags]]) -> None:
        """One forward step: on each rank one write of K and V, and one move of the live states.

        Error if a sequence lacks room or known tokens, is named twice, waits or is being saved, or would write a block
        that others hold.
        """
        plans: dict[int, WritePlan] = {}
        for seq, tags in batch:
            sequence, values = self._get(seq, "write"), as_tags(tags)
            rank = 0 if sequence.dp_rank_ is None else sequence.dp_rank_
            plan = plans.setdefault(rank, WritePlan(self._block_size, "TorchPoolTarget.write"))
            plan.add(seq, sequence, values)
        plans = {rank: plan for rank, plan in plans.items() if plan.num_tokens}
        for plan in plans.values():
            check_tags(plan.values, "TorchPoolTarget.write")
        moved = {rank: self._moved(rank, plan) for rank, plan in plans.items() if self.states_}
        for rank, plan in plans.items():
            self._settle(rank)
            plan.write(self.buffers_[rank])
            if rank in moved:
                self.states_[rank].write_tags(*moved[rank])
            plan.commit()
            self._settle(rank)

    @operation
    def cache(self, seq: str) -> None:
        """Publish all full computed blocks (seed 4.2)."""
        self.pool_.cache(self._get(seq, "cache"))

    @operation
    def deallocate(self, seq: str) -> None:
        """Finish: publish, give everything back, forget the sequence (seed 8)."""
        self.pool_.deallocate(self._get(seq, "deallocate"))
        del self._sequences[seq]

    @operation
    def preempt(self, seq: str) -> None:
        """Give everything but the rank back without publishing; tokens stay known."""
        self.pool_.preempt(self._get(seq, "preempt"))

    @operation
    def abort(self, seq: str) -> None:
        """Give everything back without publishing and forget the sequence."""
        self.pool_.abort(self._get(seq, "abort"))
        del self._sequences[seq]

    @operation
    def fork(self, parent: str, child: str) -> None:
        """Always an error: two sequences cannot have one recurrent state, nor one single block."""
        raise InvalidRangeError("TorchPoolTarget.fork", f"fork of {parent!r}", "no fork in a pool")

    @operation
    def truncate(self, seq: str, num_tokens: int) -> None:
        """Keep the first num_tokens known tokens; computed falls to where the sequence can go on."""
        self.pool_.truncate(self._get(seq, "truncate"), num_tokens)

    @operation
    def save_start(self, seq: str) -> bool:
        """Reserve a slot for a checkpoint of the computed tokens and begin the copy; False if there is none to make."""
        copy = self.pool_.begin_save(self._get(seq, "save_start"))
        if copy is not None:
            self._spoil(copy.rank, copy.target)
        return copy is not None

    @operation
    def save_finish(self, seq: str, ok: bool) -> None:
        """The copy is done, or has failed."""
        sequence = self._get(seq, "save_finish")
        if ok and sequence.saving_ is not None:
            self._copy_state(sequence, self._live_slot(sequence), sequence.saving_.slot)
        self.pool_.finish_save(sequence, ok)

    @operation
    def restore_start(self, seq: str) -> None:
        """Begin to copy the pinned checkpoint to the live slot."""
        copy = self.pool_.begin_restore(self._get(seq, "restore_start"))
        self._spoil(copy.rank, copy.target)

    @operation
    def restore_finish(self, seq: str, ok: bool) -> None:
        """The copy is done, or has failed."""
        sequence = self._get(seq, "restore_finish")
        if ok and sequence.restoring_ and sequence.resume_ is not None:
            self._copy_state(sequence, sequence.resume_.slot, self._live_slot(sequence))
        self.pool_.finish_restore(sequence, ok)

    @operation
    def evict(self, num_blocks: int, rank: int = 0) -> int:
        """Drop up to num_blocks idle entries of a rank, least recently used first; the number of blocks freed."""
        cache = self._manager(rank, "evict").prefix_cache_
        if num_blocks < 0:
            raise InvalidRangeError("TorchPoolTarget.evict", f"{num_blocks} blocks", "0 or more")
        return cache.evict(num_blocks) if cache is not None else 0

    @operation
    def reset(self) -> bool:
        """Drop every key; blocks in use, and pinned checkpoints, stay with their sequences. Never refused."""
        self.pool_.reset()
        return True

    @operation
    def hold(self, block_id: int, rank: int = 0) -> int:
        """One more outside holder of a live block. Error if it is free, padding, or outside the pool."""
        return self._keep(self._manager(rank, "hold").hold(block_id))

    @operation
    def close(self) -> None:
        """Give everything back; every later operation is an error."""
        for seq in list(self._sequences):
            self.pool_.abort(self._sequences.pop(seq))
        for handle in list(self._holds):
            self._holds.pop(handle).release()
        for rank in range(self.config.num_ranks):
            self._settle(rank)
        self.pool_.close()
        self.closed_ = True

    # -- observations: sequences -------------------------------------------------------------------------------------
    @operation
    def rank(self, seq: str) -> int | None:
        """The rank of the sequence; None before it has one."""
        return self._get(seq, "rank").dp_rank_

    @operation
    def single_block(self, seq: str) -> int | None:
        """Its single block; None while it has none."""
        block = self._get(seq, "single_block").single_block_
        return None if block is None else block.id

    @operation
    def state_slot(self, seq: str) -> int | None:
        """Its live slot; None while it has none."""
        slot = self._get(seq, "state_slot").linear_state_slot_
        return None if slot is None else slot.id

    @operation
    def state(self, seq: str) -> int:
        """The content of its live slot. Error if it has none, or waits."""
        sequence = self._get(seq, "state")
        if sequence.linear_state_slot_ is None or sequence.is_waiting:
            what = f"{seq!r} {'waits' if sequence.is_waiting else 'has no live slot'}"
            raise SequenceStateError("TorchPoolTarget.state", what, "a sequence with a state")
        rank = self._rank_of(sequence)
        self._settle(rank)
        return int(self.states_[rank].read_tags([sequence.linear_state_slot_.id])[0])

    # -- observations: ranks -----------------------------------------------------------------------------------------
    @operation
    def free_single_blocks(self, rank: int) -> set[int]:
        """Single ids of the rank that nobody has."""
        self.pool_.check_rank(rank, "free_single_blocks")
        return set(self.pool_.single_block_managers_[rank].free_ids())

    @operation
    def free_state_slots(self, rank: int) -> set[int]:
        """State slots of the rank that nobody has, live, pending or committed."""
        return {slot for cache in self._caches(rank, "free_state_slots") for slot in cache.slots_.free_ids()}

    @operation
    def checkpoints(self, rank: int) -> Mapping[bytes, int]:
        """Matchable checkpoints of the rank: the key of their last block and their slot."""
        caches = self._caches(rank, "checkpoints")
        return {key: entry.slot for cache in caches for key, entry in cache.entries_.items()}

    @operation
    def free_ids(self, rank: int = 0) -> set[int]:
        """Ids in the free list."""
        return set(self._manager(rank, "free_ids").free_ids())

    @operation
    def free_count(self, rank: int = 0) -> int:
        """Counter of the free list."""
        return self._manager(rank, "free_count").num_free_blocks_

    @operation
    def used_count(self, rank: int = 0) -> int:
        """Blocks held by at least one sequence."""
        return self._manager(rank, "used_count").num_used_blocks_

    @operation
    def ref_count(self, block_id: int, rank: int = 0) -> int:
        """Handles of the block; 0 if it is free."""
        return self._manager(rank, "ref_count").ref_count(block_id)

    @operation
    def cached(self, rank: int = 0) -> Mapping[bytes, int]:
        """Keys of the prefix cache and their blocks."""
        return cached_blocks(self._manager(rank, "cached"))

    @operation
    def drain_events(self, rank: int = 0) -> Items[CacheEvent]:
        """Changes of the prefix cache since the last call, in order."""
        cache = self._manager(rank, "drain_events").prefix_cache_
        return [] if cache is None else cache.drain_events()

    def sanitizers(self) -> Iterator[Sanitizer]:
        """Reports of all managers; none outside of sanitizer mode."""
        for rank in range(self.config.num_ranks):
            for sanitizer, _ in self._watched(rank):
                yield sanitizer

    # -- parts -------------------------------------------------------------------------------------------------------
    def _manager(self, rank: int, where: str) -> BlockManagerImpl:
        self.pool_.check_rank(rank, where)
        manager = self.pool_.block_managers_[rank]
        assert isinstance(manager, BlockManagerImpl)
        return manager

    def _caches(self, rank: int, where: str) -> list[LinearStatePrefixCache]:
        """That of the rank; none without linear state."""
        self.pool_.check_rank(rank, where)
        return self.pool_.linear_state_prefix_caches_[rank : rank + 1]

    @staticmethod
    def _rank_of(sequence: Sequence) -> int:
        assert sequence.dp_rank_ is not None
        return sequence.dp_rank_

    @staticmethod
    def _live_slot(sequence: Sequence) -> int:
        assert sequence.linear_state_slot_ is not None
        return sequence.linear_state_slot_.id

    def _settled(self, sequence: Sequence) -> KVBuffers:
        rank = sequence.dp_rank_ or 0
        self._settle(rank)
        return self.buffers_[rank]

    def _settle(self, rank: int) -> None:
        """Poison what was freed, then zero fresh states: a slot may be both."""
        for sanitizer, memory in self._watched(rank):
            sanitizer.settle(memory)
        if self.states_:
            self.states_[rank].zero(self.pool_.take_fresh_slots(rank))

    def _watched(self, rank: int) -> Iterator[tuple[Sanitizer, Memory | None]]:
        """Sanitizers of a rank, with the memory of the ids that they watch."""
        pool = self.pool_
        parts: list[tuple[Sanitizer | None, Memory | None]] = [
            (pool.block_managers_[rank].sanitizer_, self.buffers_[rank]),
            (pool.single_block_managers_[rank].sanitizer_, None),
        ]
        if self.states_:
            parts.append((pool.linear_state_prefix_caches_[rank].slots_.sanitizer_, self.states_[rank]))
        yield from ((sanitizer, memory) for sanitizer, memory in parts if sanitizer is not None)

    def _copy_blocks(self, rank: int, pairs: Items[tuple[int, int]]) -> None:
        self._settle(rank)
        self.buffers_[rank].copy_blocks(pairs)

    def _copy_state(self, sequence: Sequence, source: int, target: int) -> None:
        rank = self._rank_of(sequence)
        self._settle(rank)
        self.states_[rank].copy([(source, target)])

    def _spoil(self, rank: int, slot: int) -> None:
        """A copy has begun: nothing can be read where it goes."""
        self._settle(rank)
        self.states_[rank].poison([slot])

    def _moved(self, rank: int, plan: WritePlan) -> tuple[list[int], Tags]:
        """Live slots of a step, and the states behind its tokens."""
        steps = [(self._live_slot(sequence), tags) for sequence, tags in plan.steps() if len(tags)]
        self._settle(rank)
        slots = [slot for slot, _ in steps]
        states = self.states_[rank].read_tags(slots).tolist()
        moved = [advance(state, tags) for state, (_, tags) in zip(states, steps, strict=True)]
        return slots, np.array(moved, dtype=np.int64)
