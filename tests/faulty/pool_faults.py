"""What is wrong with each faulty pool of ranks: functions that stand in for one method of the good one."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from contextlib import ExitStack, contextmanager
from typing import Any

from kvspec.impl.block import Block
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.block_manager_pool import BlockManagerPool
from kvspec.impl.kv_cache_manager import StateCopy
from kvspec.impl.linear_state import Checkpoint, LinearStatePrefixCache
from kvspec.impl.paging import block_index
from kvspec.impl.pool_target import TorchPoolTarget
from kvspec.impl.sequence import Sequence
from kvspec.impl.state_buffers import StateBuffers
from kvspec.impl.write_plan import WritePlan
from kvspec.model.conformance import Tags, advance

# -- pins and checkpoints ---------------------------------------------------------------------------------------------


def match_does_not_pin(self: LinearStatePrefixCache, key: bytes) -> Checkpoint | None:
    entry = self.entries_.get(key)
    if entry is not None:
        self._use(entry)
    return entry


def unpin_nothing(self: LinearStatePrefixCache, entry: Checkpoint) -> None:
    """Nobody has pinned it."""


def contains_pending(self: LinearStatePrefixCache, key: bytes) -> bool:
    return key in self.entries_ or key in self.pending_


def pin_pending(self: BlockManagerPool, sequence: Sequence, key: bytes, rank: int, undo: ExitStack) -> None:
    """The checkpoint counts as one that is there."""
    cache = self.linear_state_prefix_caches_[rank]
    pending = cache.pending_.get(key)
    if pending is not None:
        cache.entries_[key] = pending
    BlockManagerPool._pin(self, sequence, key, rank, undo)


def victim_anybody(self: LinearStatePrefixCache) -> Checkpoint | None:
    """The oldest checkpoint gives way, whoever waits for it."""
    return self.entries_.popitem(last=False)[1] if self.entries_ else None


def acquire_remembers(self: LinearStatePrefixCache) -> Block | None:
    slot = LinearStatePrefixCache.acquire_live_slot(self)
    if slot is not None:
        self.__dict__.setdefault("live_slots", []).append(slot)
    return slot


def reserve_live_slot(self: LinearStatePrefixCache, key: bytes) -> Checkpoint | None:
    """Where no slot can be had, the first live one is written over."""
    pending = LinearStatePrefixCache.reserve(self, key)
    live = [slot for slot in self.__dict__.get("live_slots", []) if slot.record_ is not None]
    if pending is not None or key in self.entries_ or key in self.pending_ or not live:
        return pending
    self.pending_[key] = Checkpoint(key, live[0].copy())
    return self.pending_[key]


def reset_forgets_pinned(self: LinearStatePrefixCache) -> int:
    """Every checkpoint goes, whoever waits for it."""
    entries = [*self.entries_.values()]
    self.entries_.clear()
    for entry in entries:
        self._give_up(entry)
    return len(entries)


def reset_drops_pins(self: LinearStatePrefixCache) -> int:
    """A pinned checkpoint stays, and nobody is known to wait for it any more."""
    freed = LinearStatePrefixCache.reset(self)
    for entry in self.entries_.values():
        entry.pins = 0
    return freed


def fresh_is_not_zeroed(self: LinearStatePrefixCache) -> list[int]:
    LinearStatePrefixCache.take_fresh_slots(self)
    return []


# -- saves and restores -----------------------------------------------------------------------------------------------


def save_rounds_down(self: BlockManagerPool, sequence: Sequence) -> StateCopy | None:
    """Behind a boundary that no step ended on, the state is saved as that of the boundary."""
    computed = sequence.computed_
    number = block_index(computed, self._stride)
    sequence.computed_ = number * self._stride
    try:
        return BlockManagerPool.begin_save(self, sequence)
    finally:
        sequence.computed_ = computed


def save_failed_counts(self: BlockManagerPool, sequence: Sequence, ok: bool) -> None:
    BlockManagerPool.finish_save(self, sequence, True)


def restore_failed_counts(self: BlockManagerPool, sequence: Sequence, ok: bool) -> None:
    BlockManagerPool.finish_restore(self, sequence, True)


def preempt_remembers_slot(self: TorchPoolTarget, seq: str) -> None:
    sequence = self._sequences.get(seq)
    slot = None if sequence is None or sequence.linear_state_slot_ is None else sequence.linear_state_slot_.id
    TorchPoolTarget.preempt(self, seq)
    if slot is not None:
        self.__dict__.setdefault("slots_before", {})[seq] = slot


def restore_from_slot_before(self: TorchPoolTarget, seq: str, ok: bool) -> None:
    """The state of a request that comes back is where it was; others may have been there since."""
    sequence, before = self._sequences.get(seq), self.__dict__.get("slots_before", {}).get(seq)
    checkpoint = None if sequence is None else sequence.resume_
    TorchPoolTarget.restore_finish(self, seq, ok)
    if ok and before is not None and checkpoint is not None and sequence is not None:
        self._copy_state(sequence, before, self._live_slot(sequence))


def restore_of_first_boundary(self: TorchPoolTarget, seq: str, ok: bool) -> None:
    """The place of the state is computed with the smaller block size of another group."""
    sequence = self._sequences.get(seq)
    checkpoint = None if sequence is None else sequence.resume_
    TorchPoolTarget.restore_finish(self, seq, ok)
    if ok and checkpoint is not None and sequence is not None:
        entries = self.pool_.linear_state_prefix_caches_[self._rank_of(sequence)].entries_
        first = next((entries[key] for key in sequence.keys_.chain if key in entries), checkpoint)
        self._copy_state(sequence, first.slot, self._live_slot(sequence))


def restore_recomputes_last(self: TorchPoolTarget, seq: str, ok: bool) -> None:
    """The last token of a hit is computed again for its logits, on the state that has gone over it already."""
    TorchPoolTarget.restore_finish(self, seq, ok)
    if ok:
        sequence = self._sequences[seq]
        computed, rank = sequence.computed_, self._rank_of(sequence)
        last = self.read(seq, computed - 1, computed)
        moved = advance(self.state(seq), last)
        self.states_[rank].write_tags([self._live_slot(sequence)], last * 0 + moved)


def pin_without_waiting(
    self: BlockManagerPool, sequence: Sequence, key: bytes, rank: int, undo: ExitStack
) -> None:
    """A hit is admitted, and nobody restores its state."""


def one_token_moves_padding(self: StateBuffers, slots: list[int], tags: Tags) -> None:
    """A step of one sequence takes the placeholder for its slot."""
    StateBuffers.write_tags(self, [0] if len(slots) == 1 else slots, tags)


@contextmanager
def forgotten(self: TorchPoolTarget, batch: Items[tuple[str, Tags]], copy: str) -> Iterator[None]:
    """For a while the sequences of a step have no copy of this kind that runs or is waited for."""
    sequences = [self._sequences[seq] for seq, _ in batch if seq in self._sequences]
    before = [getattr(sequence, copy) for sequence in sequences]
    for sequence in sequences:
        setattr(sequence, copy, None)
    try:
        yield
    finally:
        for sequence, value in zip(sequences, before, strict=True):
            setattr(sequence, copy, value)


def write_while_saving(self: TorchPoolTarget, batch: Items[tuple[str, Tags]]) -> None:
    """The live slot moves on while it is being copied."""
    with forgotten(self, batch, "saving_"):
        TorchPoolTarget.write(self, batch)


def write_before_restore(self: TorchPoolTarget, batch: Items[tuple[str, Tags]]) -> None:
    """The live slot moves on before the state is in it."""
    with forgotten(self, batch, "resume_"):
        TorchPoolTarget.write(self, batch)


def cache_waits_for_save(self: BlockManagerPool, sequence: Sequence) -> None:
    """Nothing is published while the state is being saved."""
    if not sequence.is_saving:
        BlockManagerPool.cache(self, sequence)


def truncate_keeps_restore(self: BlockManagerPool, sequence: Sequence, num_tokens: int, rank: int) -> int:
    """A restore that runs goes on, whatever is rejected meanwhile."""
    return num_tokens if sequence.restoring_ else BlockManagerPool._resume_before(self, sequence, num_tokens, rank)


def truncate_keeps_save(self: BlockManagerPool, sequence: Sequence, num_tokens: int, rank: int) -> int:
    """A save that runs goes on, whatever is rejected meanwhile."""
    saving, sequence.saving_ = sequence.saving_, None
    try:
        return BlockManagerPool._resume_before(self, sequence, num_tokens, rank)
    finally:
        sequence.saving_ = saving


# -- what is lost -----------------------------------------------------------------------------------------------------


def lose_live_slot(self: BlockManagerPool, sequence: Sequence, rank: int) -> None:
    self._give_up_copies(sequence, rank)
    sequence.linear_state_slot_ = None


def refused_loses_slot(self: BlockManagerPool, sequence: Sequence, rank: int) -> None:
    sequence.linear_state_slot_ = None


def lose_single(self: BlockManagerPool, sequence: Sequence, rank: int) -> None:
    sequence.single_block_ = None


def end_loses_reservation(self: BlockManagerPool, sequence: Sequence, rank: int) -> None:
    sequence.saving_ = None
    BlockManagerPool._give_up_copies(self, sequence, rank)


def end_keeps_pin(self: BlockManagerPool, sequence: Sequence, rank: int) -> None:
    """The checkpoint of a request that leaves is kept for it."""
    sequence.resume_, sequence.restoring_ = None, False
    BlockManagerPool._give_up_copies(self, sequence, rank)


def abort_while_waiting_loses_slot(self: TorchPoolTarget, seq: str) -> None:
    """Who has matched and is not restored yet has, for the abort, no slot of his own."""
    sequence = self._sequences.get(seq)
    if sequence is not None and sequence.is_waiting:
        rank = self._rank_of(sequence)
        self.pool_._give_up_copies(sequence, rank)
        sequence.linear_state_slot_ = None
    TorchPoolTarget.abort(self, seq)


# -- hits -------------------------------------------------------------------------------------------------------------


def trim_with(self: BlockManagerPool, sequence: Sequence, rank: int, undo: ExitStack, more: int) -> None:
    """The good method, but for the number of blocks that stay."""
    hits = sequence.num_full_blocks
    kept = self._safe_boundary(sequence, hits, rank) * self._stride_blocks
    stay = min(hits, max(0, kept + more)) if kept else 0
    self.block_managers_[rank].release_blocks(sequence.trim(stay))
    if kept:
        self._pin(sequence, sequence.keys_.chain[kept - 1], rank, undo)


def trim_keeps_one_more(self: BlockManagerPool, sequence: Sequence, rank: int, undo: ExitStack) -> None:
    trim_with(self, sequence, rank, undo, 1)


def trim_keeps_one_less(self: BlockManagerPool, sequence: Sequence, rank: int, undo: ExitStack) -> None:
    trim_with(self, sequence, rank, undo, -1)


def trim_shifts_table(self: BlockManagerPool, sequence: Sequence, rank: int, undo: ExitStack) -> None:
    """One block too many stays in the table, and counts for nothing."""
    trim_with(self, sequence, rank, undo, 1)
    if sequence.resume_ is not None:
        kept = sequence.keys_.chain.index(sequence.resume_.key) + 1
        sequence.computed_ = sequence.written_ = kept * sequence.block_size


# -- ranks and others -------------------------------------------------------------------------------------------------


def any_rank(self: BlockManagerPool, rank: int) -> bool:
    return True


def grow_on_first_rank(self: BlockManagerPool, sequence: Sequence, num_tokens: int) -> bool:
    """Tables grow by blocks of rank 0 as long as it has enough free ones."""
    enough = self.block_managers_[0].num_free_blocks >= sequence.blocks_for(num_tokens)
    rank, sequence.dp_rank_ = sequence.dp_rank_, 0 if enough else sequence.dp_rank_
    try:
        return BlockManagerPool._grow(self, sequence, num_tokens)
    finally:
        sequence.dp_rank_ = rank


def grow_overwrites_held(self: BlockManagerPool, sequence: Sequence, num_tokens: int) -> bool:
    """Cells of rejected tokens count as never written, so that nobody else can have read them."""
    sequence.written_ = sequence.computed_
    return BlockManagerPool._grow(self, sequence, num_tokens)


def stay_on_rank(sequence: Sequence, before: int | None) -> None:
    """A refused newcomer waits for the rank that had nothing for it."""


def deallocate_keeps_counter(self: BlockManagerImpl, blocks: list[Block]) -> None:
    """The used blocks of a sequence that ends stay used, for the counter."""
    BlockManagerImpl.deallocate(self, blocks)
    self.num_used_blocks_ += len(blocks)


def truncate_keeps_state(self: BlockManagerPool, sequence: Sequence, num_tokens: int, rank: int) -> int:
    """The state has gone over the rejected tokens, and is kept."""
    return num_tokens


def granted_without_room(self: TorchPoolTarget, seq: str, num_tokens: int) -> bool:
    TorchPoolTarget.allocate(self, seq, num_tokens)
    return True


def write_in_two_steps(self: TorchPoolTarget, rank: int, plan: WritePlan) -> Any:
    """Only the last tokens of a long step reach the state."""
    slots, moved = TorchPoolTarget._moved(self, rank, plan)
    for at, (_, tags) in enumerate(step for step in plan.steps() if len(step[1])):
        if len(tags) > 3:
            moved[at] = advance(int(self.states_[rank].read_tags([slots[at]])[0]), tags[-3:])
    return slots, moved


def counts_of_any_rank(self: TorchPoolTarget, block_id: int, rank: int = 0) -> int:
    """A rank is not checked: the last is meant by -1."""
    return TorchPoolTarget.ref_count(self, block_id, range(self.config.num_ranks)[rank])
