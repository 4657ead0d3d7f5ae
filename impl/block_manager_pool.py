"""`BlockManagerPool`: the `KVCacheManager` of a scheduler, over the managers of each rank (seed 1, 5, 8)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import ExitStack
from typing import Final, NamedTuple

from kvspec.impl.block import Block, release_all
from kvspec.impl.block_manager import BlockManager
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.closing import while_open
from kvspec.impl.composite_block_manager import CompositeBlockManager
from kvspec.impl.concurrent_block_manager_impl import ConcurrentBlockManagerImpl
from kvspec.impl.errors import (
    EndedSequenceError,
    ForeignHandleError,
    InvalidRangeError,
    SequenceStateError,
)
from kvspec.impl.kv_cache_manager import KVCacheManager, StateCopy
from kvspec.impl.linear_state import LinearStatePrefixCache
from kvspec.impl.paging import block_index, longest_hit
from kvspec.impl.prefix_cache import PrefixCache
from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.sequence import Sequence
from kvspec.impl.sequence_blocks import check_known, check_unmounted, enter_use, grow, publish, replace_shared
from kvspec.impl.single_block_manager import SingleBlockManager
from kvspec.impl.trim import POLICIES, deepest
from kvspec.impl.xtensor.page_pool import PagePool
from kvspec.impl.xtensor.xtensor_block_manager_impl import XTensorBlockManagerImpl
from kvspec.model.conformance import ManagerType, PoolConfig

CopyBlocks = Callable[[int, Items[tuple[int, int]]], None]
"""Copies whole blocks of a rank on its device, (source, target) ids each."""

MANAGER_TYPES: Final[dict[str, type[BlockManagerImpl]]] = {
    kind.__name__: kind for kind in (BlockManagerImpl, ConcurrentBlockManagerImpl)
}
"""Kinds of block managers that need nothing but their sizes, by the name of their class."""


class PageSource(NamedTuple):
    """Where the block managers of all ranks get memory for their pages, if it is mapped on demand.

    Attributes:
        pool: the physical pages, which all ranks share; whoever made it closes it, behind the pool of ranks.
        block_bytes: bytes of a block in a region.
        num_regions: regions of each rank, e.g. K and V of each layer.
    """

    pool: PagePool
    block_bytes: int
    num_regions: int = 2


class ManagerChoice(NamedTuple):
    """Which kind of block manager each rank gets (seed 5.1).

    Attributes:
        enable_xtensor: pages mapped on demand, ``XTensorBlockManagerImpl``; the pool is then made with a `PageSource`.
        manager_types: a `CompositeBlockManager` over managers of these kinds.
        enable_disagg_pd, enable_kvcache_store: a ``ConcurrentBlockManagerImpl``.
    """

    enable_xtensor: bool = False
    manager_types: tuple[ManagerType, ...] = ()
    enable_disagg_pd: bool = False
    enable_kvcache_store: bool = False

    @property
    def class_name(self) -> str:
        """The class of the manager."""
        if self.enable_xtensor:
            return "XTensorBlockManagerImpl"
        if self.manager_types:
            return "CompositeBlockManager"
        if self.enable_disagg_pd or self.enable_kvcache_store:
            return "ConcurrentBlockManagerImpl"
        return "BlockManagerImpl"


class BlockManagerPool(KVCacheManager):
    """Ranks with a block manager, a single-block manager and, with linear state, a `LinearStatePrefixCache` each.

    A call that is refused or fails leaves all as it was: rank, single block, live slot, pin, blocks, the checkpoint
    that gave way for the slot, and the order in which blocks and checkpoints were used. So does one whose `copy_blocks`
    raises, except that what was evicted for the copies is gone.

    Attributes:
        block_managers_, single_block_managers_, linear_state_prefix_caches_: by rank; the last one is empty without
            linear state.

    Args:
        config: sizes and options; of a pool (`PoolConfig.is_pool`).
        choice: which kind of block manager to make. A composite has blocks as its manager types say, and none of the
            config.
        pages: where pages come from; if, and only if, the choice is a manager whose pages are mapped on demand.
        copy_blocks: copies blocks at once. Only needed where outside holders (`BlockManagerImpl.hold`) come to a
            block whose end was written and rejected.
        record_events: keep cache events for ``PrefixCache.drain_events``; without a reader they only grow.
    Raises:
        InvalidRangeError: the config is not one of a pool, or wants a prefix cache of a composite, which has none; or
            choice and pages do not go together.
        PagesUnavailableError: there is no memory for the padding block of each rank.
    """

    def __init__(
        self,
        config: PoolConfig,
        *,
        choice: ManagerChoice = ManagerChoice(),  # noqa: B008 - it is a constant
        pages: PageSource | None = None,
        copy_blocks: CopyBlocks | None = None,
        record_events: bool = True,
    ) -> None:
        if not config.is_pool:
            what = f"num_single_blocks {config.num_single_blocks}"
            raise InvalidRangeError("BlockManagerPool", what, "a pool, with at least 2 single blocks")
        self.config = config
        self.closed_ = False
        self._copy_blocks = copy_blocks
        ranks = range(config.num_ranks)
        if (pages is not None) != choice.enable_xtensor:
            what = f"enable_xtensor {choice.enable_xtensor} with pages {pages}"
            raise InvalidRangeError("BlockManagerPool", what, "pages if, and only if, they are mapped on demand")
        self.block_managers_ = self._make_block_managers(choice, pages, record_events)
        self.single_block_managers_ = [
            SingleBlockManager(config.num_single_blocks, sanitizer=self._sanitizer()) for _ in ranks
        ]
        self.linear_state_prefix_caches_ = [
            LinearStatePrefixCache(config.num_state_slots, sanitizer=self._sanitizer())
            for _ in ranks
            if config.has_linear_state
        ]
        # With linear state a hit ends at a multiple of the stride, counted in boundaries.
        self._stride = config.stride
        self._stride_blocks = block_index(config.stride, config.block_size)
        self._policy = POLICIES[config.trim]

    def _make_block_managers(
        self, choice: ManagerChoice, pages: PageSource | None, record_events: bool
    ) -> list[BlockManager]:
        """One for each rank, or none."""
        with ExitStack() as undo:
            made = []
            for _ in range(self.config.num_ranks):
                made.append(self._make_block_manager(choice, pages, record_events))
                undo.callback(made[-1].close)
            undo.pop_all()
        return made

    def _make_block_manager(
        self, choice: ManagerChoice, pages: PageSource | None, record_events: bool
    ) -> BlockManager:
        sizes = self.config.num_blocks, self.config.block_size
        caches, sanitizer = self.config.enable_prefix_cache, self._sanitizer()
        if pages is not None:
            return XTensorBlockManagerImpl(
                *sizes,
                pages.pool,
                block_bytes=pages.block_bytes,
                num_regions=pages.num_regions,
                enable_prefix_cache=caches,
                sanitizer=sanitizer,
                record_events=record_events,
            )
        if choice.manager_types:
            return self._make_composite(choice.manager_types)
        kind = MANAGER_TYPES[choice.class_name]
        return kind(*sizes, enable_prefix_cache=caches, sanitizer=sanitizer, record_events=record_events)

    def _make_composite(self, manager_types: Items[ManagerType]) -> CompositeBlockManager:
        if self.config.enable_prefix_cache:
            what = "enable_prefix_cache with manager_types"
            raise InvalidRangeError("BlockManagerPool", what, "no prefix cache: a composite has none")
        return CompositeBlockManager(manager_types, sanitize=self.config.sanitizer)

    def _sanitizer(self) -> Sanitizer | None:
        return Sanitizer() if self.config.sanitizer else None

    def _ordinary(self, rank: int) -> BlockManagerImpl:
        """The manager of a rank, where something is shared, copied or published: a composite does none of it."""
        manager = self.block_managers_[rank]
        assert isinstance(manager, BlockManagerImpl)
        return manager

    @while_open
    def id_managers(self, rank: int) -> list[BlockManager]:
        """The managers that the block ids of a rank belong to: the sub-managers of a composite, or the only one."""
        manager = self.block_managers_[rank]
        return list(manager.sub_managers_) if isinstance(manager, CompositeBlockManager) else [manager]

    @while_open
    def prefix_caches(self) -> list[PrefixCache]:
        """Those that the ranks have."""
        managers = (manager for manager in self.block_managers_ if isinstance(manager, BlockManagerImpl))
        return [manager.prefix_cache_ for manager in managers if manager.prefix_cache_ is not None]

    # -- ranks (seed 5.3) --------------------------------------------------------------------------------------------
    @property
    def has_linear_state(self) -> bool:
        """Sequences have a recurrent state."""
        return bool(self.linear_state_prefix_caches_)

    @while_open
    def get_dp_rank(self, sequence: Sequence) -> int | None:
        """The rank of the sequence if it has one; else the one with the most free blocks, the lowest of equal ones.

        With linear state, ranks without a free single block are passed over; None if none is left. Raises as every
        method does (see `KVCacheManager`).
        """
        self._check(sequence, "get_dp_rank")
        return self._choose_rank(sequence)

    def _choose_rank(self, sequence: Sequence) -> int | None:
        if sequence.dp_rank_ is not None:
            return sequence.dp_rank_
        ranks = [rank for rank in range(len(self.block_managers_)) if self._may_take(rank)]
        return max(ranks, key=lambda rank: self.block_managers_[rank].num_free_blocks, default=None)

    def _may_take(self, rank: int) -> bool:
        return not self.has_linear_state or self.single_block_managers_[rank].num_free_blocks > 0

    @while_open
    def check_rank(self, rank: int, where: str) -> None:
        """Raises `InvalidRangeError` if there is no such rank."""
        if not 0 <= rank < len(self.block_managers_):
            expected = f"a rank in [0, {len(self.block_managers_)})"
            raise InvalidRangeError(f"BlockManagerPool.{where}", f"rank {rank}", expected)

    # -- allocate (seed 5.2) -----------------------------------------------------------------------------------------
    @while_open
    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """See `KVCacheManager.allocate`: rank, single block, live slot, hits, growth, in this order."""
        self._check(sequence, "allocate")
        check_known(sequence, num_tokens, "BlockManagerPool.allocate")
        if num_tokens < sequence.computed_:
            expected = f"at least the {sequence.computed_} computed tokens"
            raise InvalidRangeError("BlockManagerPool.allocate", f"{num_tokens} tokens of a sequence", expected)
        if sequence.kv_state_.has_table:
            return self._grow(sequence, num_tokens)
        with ExitStack() as undo:
            if not self._admit(sequence, undo):
                return False
            self._mount_shared(sequence, undo)
            if not self._grow(sequence, num_tokens):
                return False
            undo.pop_all()
        return True

    @while_open
    def allocate_shared(self, sequence: Sequence) -> int:
        """See `KVCacheManager.allocate_shared`."""
        self._check(sequence, "allocate_shared")
        check_unmounted(sequence, "BlockManagerPool.allocate_shared")
        with ExitStack() as undo:
            if not self.config.enable_prefix_cache or not self._admit(sequence, undo):
                return 0
            if not self._mount_shared(sequence, undo):
                return 0
            undo.pop_all()
        return sequence.computed_

    def _admit(self, sequence: Sequence, undo: ExitStack) -> bool:
        """Rank, single block and live slot, as far as the sequence lacks them."""
        rank, before = self._choose_rank(sequence), sequence.dp_rank_
        if rank is None:
            return False
        sequence.dp_rank_ = rank
        undo.callback(self._leave_rank, sequence, before)
        return self._allocate_single_block(sequence, rank, undo)

    @staticmethod
    def _leave_rank(sequence: Sequence, before: int | None) -> None:
        sequence.dp_rank_ = before

    def _allocate_single_block(self, sequence: Sequence, rank: int, undo: ExitStack) -> bool:
        if sequence.single_block_ is None:
            blocks = self.single_block_managers_[rank].allocate(1)
            if blocks is None:
                return False
            sequence.single_block_ = blocks[0]
            undo.callback(self._release_single, sequence, rank)
        if self.has_linear_state and sequence.linear_state_slot_ is None:
            return self._acquire_live_slot(sequence, rank, undo)
        return True

    def _acquire_live_slot(self, sequence: Sequence, rank: int, undo: ExitStack) -> bool:
        slot = self.linear_state_prefix_caches_[rank].acquire_live_slot()
        if slot is None:
            return False
        sequence.linear_state_slot_ = slot
        undo.callback(self._cancel_live_slot, sequence, rank)
        return True

    def _cancel_live_slot(self, sequence: Sequence, rank: int) -> None:
        slot, sequence.linear_state_slot_ = sequence.linear_state_slot_, None
        assert slot is not None
        self.linear_state_prefix_caches_[rank].cancel_live_slot(slot)

    # -- hits (seed 4.2, 7.2) ----------------------------------------------------------------------------------------
    def _mount_shared(self, sequence: Sequence, undo: ExitStack) -> int:
        """Mount the published blocks of the longest prefix as far as its state can be restored; how many tokens."""
        rank = sequence.dp_rank_
        assert rank is not None
        manager = self.block_managers_[rank]
        limit = longest_hit(len(sequence.tokens_), sequence.block_size)
        blocks = manager.allocate_shared(sequence.tokens_, sequence.keys_, limit)
        if not blocks:
            return 0
        undo.callback(self._unmount, sequence, self._ordinary(rank))
        sequence.mount(blocks)
        if self.has_linear_state:
            self._trim(sequence, rank, undo)
        return sequence.computed_

    def _trim(self, sequence: Sequence, rank: int, undo: ExitStack) -> None:
        """Give back the shared blocks behind the safe boundary, and pin the checkpoint there (seed 7.2)."""
        kept = self._safe_boundary(sequence, sequence.num_full_blocks, rank) * self._stride_blocks
        self._ordinary(rank).release_blocks(sequence.trim(kept))
        if kept:
            self._pin(sequence, sequence.keys_.chain[kept - 1], rank, undo)

    def _safe_boundary(self, sequence: Sequence, num_blocks: int, rank: int) -> int:
        """Up to which of the boundaries that can have a checkpoint a hit of so many blocks is kept."""
        cache, width = self.linear_state_prefix_caches_[rank], self._stride_blocks
        keys = sequence.keys_.chain[width - 1 : num_blocks : width]
        return self._policy([cache.contains(key) for key in keys])

    def _pin(self, sequence: Sequence, key: bytes, rank: int, undo: ExitStack) -> None:
        cache = self.linear_state_prefix_caches_[rank]
        before = cache.entries_[key].order
        sequence.resume_ = checkpoint = cache.match_and_pin(key)
        assert checkpoint is not None
        undo.callback(self._cancel_match, sequence, cache, before)

    @staticmethod
    def _cancel_match(sequence: Sequence, cache: LinearStatePrefixCache, before: int) -> None:
        checkpoint, sequence.resume_ = sequence.resume_, None
        assert checkpoint is not None
        cache.cancel_match(checkpoint, before)

    @staticmethod
    def _unmount(sequence: Sequence, manager: BlockManagerImpl) -> None:
        """Give back what was hit for a call that is refused."""
        assert manager.prefix_cache_ is not None
        manager.prefix_cache_.undo_use()
        manager.release_blocks(sequence.reset())

    # -- growth ------------------------------------------------------------------------------------------------------
    def _grow(self, sequence: Sequence, num_tokens: int) -> bool:
        rank = sequence.dp_rank_
        assert rank is not None
        manager = self.block_managers_[rank]
        if isinstance(manager, CompositeBlockManager):
            return manager.allocate_for_sequence(sequence, num_tokens)
        shared = sequence.forbidden_indices(num_tokens)
        if shared and self._copy_blocks is None:
            what = f"block {sequence.kv_state_.ids_[shared[0]]} has other holders and written cells behind the computed"
            raise SequenceStateError("BlockManagerPool.allocate", what, "a pool that was given copy_blocks")
        return grow(self._ordinary(rank), sequence, num_tokens, shared, self._copy_on_write)

    def _copy_on_write(self, sequence: Sequence, indices: Items[int], blocks: list[Block]) -> None:
        rank, copy_blocks = sequence.dp_rank_, self._copy_blocks
        assert rank is not None and copy_blocks is not None
        replace_shared(self._ordinary(rank), sequence, indices, blocks, lambda pairs: copy_blocks(rank, pairs))

    # -- publication and return (seed 8) -----------------------------------------------------------------------------
    @while_open
    def cache(self, sequence: Sequence) -> None:
        """See `KVCacheManager.cache`."""
        self._check(sequence, "cache")
        self._publish(sequence)

    def _publish(self, sequence: Sequence) -> None:
        manager = None if sequence.dp_rank_ is None else self.block_managers_[sequence.dp_rank_]
        if isinstance(manager, BlockManagerImpl):
            publish(manager, sequence)

    @while_open
    def deallocate(self, sequence: Sequence) -> None:
        """See `KVCacheManager.deallocate`."""
        self._check(sequence, "deallocate")
        self._publish(sequence)
        self._give_back(sequence)
        sequence.ended_ = True

    @while_open
    def preempt(self, sequence: Sequence) -> None:
        """See `KVCacheManager.preempt`."""
        self._check(sequence, "preempt")
        self._give_back(sequence)

    @while_open
    def abort(self, sequence: Sequence) -> None:
        """See `KVCacheManager.abort`."""
        self._check(sequence, "abort")
        self._give_back(sequence)
        sequence.ended_ = True

    def _give_back(self, sequence: Sequence) -> None:
        """Usage falls, then the single block and the slot go, then the handles of the blocks; nothing is computed."""
        rank = sequence.dp_rank_
        if rank is None:
            return
        manager = self.block_managers_[rank]
        if isinstance(manager, CompositeBlockManager):
            manager.deallocate_sequence(sequence)
        elif isinstance(manager, BlockManagerImpl):
            enter_use(manager, sequence, 0)
            manager.deallocate(sequence.kv_state_.blocks_)
        self._deallocate_single_block(sequence, rank)
        release_all(sequence.reset())

    def _deallocate_single_block(self, sequence: Sequence, rank: int) -> None:
        if sequence.linear_state_slot_ is not None:
            self._release_linear_state_slot(sequence, rank)
        if sequence.single_block_ is not None:
            self._release_single(sequence, rank)

    def _release_single(self, sequence: Sequence, rank: int) -> None:
        block, sequence.single_block_ = sequence.single_block_, None
        assert block is not None
        self.single_block_managers_[rank].release_blocks([block])

    def _release_linear_state_slot(self, sequence: Sequence, rank: int) -> None:
        self._give_up_copies(sequence, rank)
        slot, sequence.linear_state_slot_ = sequence.linear_state_slot_, None
        assert slot is not None
        self.linear_state_prefix_caches_[rank].release_live_slot(slot)

    def _give_up_copies(self, sequence: Sequence, rank: int) -> None:
        """The reservation of a save that has begun goes, and the pin of a sequence that waits."""
        cache = self.linear_state_prefix_caches_[rank]
        if sequence.saving_ is not None:
            cache.abort(sequence.saving_)
            sequence.saving_ = None
        if sequence.resume_ is not None:
            cache.unpin(sequence.resume_)
            sequence.resume_, sequence.restoring_ = None, False

    # -- rejected tokens ---------------------------------------------------------------------------------------------
    @while_open
    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """See `KVCacheManager.truncate`."""
        self._check(sequence, "truncate")
        check_known(sequence, num_tokens, "BlockManagerPool.truncate")
        rank = sequence.dp_rank_
        if rank is None or num_tokens >= sequence.computed_:
            computed = sequence.computed_
        elif self.has_linear_state:
            computed = self._resume_before(sequence, num_tokens, rank)
        else:
            computed = self._resumable(sequence, num_tokens, self.block_managers_[rank])
        self._cut(sequence, num_tokens, computed)

    def _cut(self, sequence: Sequence, num_tokens: int, computed: int) -> None:
        rank = sequence.dp_rank_
        if rank is None:
            sequence.truncate(num_tokens)
            return
        manager = self.block_managers_[rank]
        if isinstance(manager, CompositeBlockManager):
            manager.truncate_sequence(sequence, num_tokens, computed)
        elif isinstance(manager, BlockManagerImpl):
            enter_use(manager, sequence, block_index(computed, sequence.block_size))
            manager.release_blocks(sequence.truncate(num_tokens, computed))

    def _resumable(self, sequence: Sequence, num_tokens: int, manager: BlockManager) -> int:
        """Where a sequence without a recurrent state goes on, if computed tokens behind so many are rejected."""
        if isinstance(manager, CompositeBlockManager):
            return manager.resumable(sequence, num_tokens)
        return self._unshared_before(sequence, num_tokens)

    @staticmethod
    def _unshared_before(sequence: Sequence, num_tokens: int) -> int:
        """Where a write would spoil nothing: within a block of one's own, or at the begin of a shared one."""
        index = block_index(num_tokens, sequence.block_size)
        blocks = sequence.kv_state_.blocks_
        shared = index < len(blocks) and blocks[index].ref_count > 1
        return index * sequence.block_size if shared else num_tokens

    def _resume_before(self, sequence: Sequence, num_tokens: int, rank: int) -> int:
        """Let the sequence wait for the deepest checkpoint of the first num_tokens tokens, or start over; where."""
        cache = self.linear_state_prefix_caches_[rank]
        slot, width = sequence.linear_state_slot_, self._stride_blocks
        assert slot is not None
        number = block_index(num_tokens, self._stride)
        sequence.keys_.extend(sequence.tokens_, number * width)
        kept = deepest([cache.contains(key) for key in sequence.keys_.chain[width - 1 : number * width : width]])
        checkpoint = cache.match_and_pin(sequence.keys_.chain[kept * width - 1]) if kept else None
        self._give_up_copies(sequence, rank)
        sequence.resume_ = checkpoint
        if checkpoint is None:
            cache.restart(slot)
        return kept * self._stride

    # -- recurrent states (seed 7) -----------------------------------------------------------------------------------
    @while_open
    def take_fresh_slots(self, rank: int) -> list[int]:
        """See `KVCacheManager.take_fresh_slots`."""
        self.check_rank(rank, "take_fresh_slots")
        return self.linear_state_prefix_caches_[rank].take_fresh_slots() if self.has_linear_state else []

    @while_open
    def begin_save(self, sequence: Sequence) -> StateCopy | None:
        """See `KVCacheManager.begin_save`."""
        self._check(sequence, "begin_save")
        slot, rank, computed = sequence.linear_state_slot_, sequence.dp_rank_, sequence.computed_
        if slot is None or rank is None or sequence.is_waiting or sequence.is_saving:
            raise self._state_error(sequence, "begin_save", "a live slot with the state of the computed tokens, once")
        number = block_index(computed, self._stride)
        if not self.config.enable_prefix_cache or not number or computed != number * self._stride:
            return None
        return self._reserve(sequence, rank, slot, number * self._stride_blocks)

    def _reserve(self, sequence: Sequence, rank: int, slot: Block, num_blocks: int) -> StateCopy | None:
        sequence.keys_.extend(sequence.tokens_, num_blocks)
        pending = self.linear_state_prefix_caches_[rank].reserve(sequence.keys_.chain[num_blocks - 1])
        if pending is None:
            return None
        sequence.saving_ = pending
        return StateCopy(rank, slot.id, pending.slot)

    @while_open
    def finish_save(self, sequence: Sequence, ok: bool) -> None:
        """See `KVCacheManager.finish_save`."""
        self._check(sequence, "finish_save")
        pending, rank = sequence.saving_, sequence.dp_rank_
        if pending is None or rank is None:
            raise self._state_error(sequence, "finish_save", "a save that has begun")
        cache = self.linear_state_prefix_caches_[rank]
        sequence.saving_ = None
        if ok:
            cache.commit(pending)
        else:
            cache.abort(pending)

    @while_open
    def begin_restore(self, sequence: Sequence) -> StateCopy:
        """See `KVCacheManager.begin_restore`."""
        self._check(sequence, "begin_restore")
        checkpoint, slot, rank = sequence.resume_, sequence.linear_state_slot_, sequence.dp_rank_
        if checkpoint is None or slot is None or rank is None or sequence.restoring_:
            raise self._state_error(sequence, "begin_restore", "one that waits, once")
        sequence.restoring_ = True
        return StateCopy(rank, checkpoint.slot, slot.id)

    @while_open
    def finish_restore(self, sequence: Sequence, ok: bool) -> None:
        """See `KVCacheManager.finish_restore`."""
        self._check(sequence, "finish_restore")
        checkpoint, rank = sequence.resume_, sequence.dp_rank_
        if checkpoint is None or rank is None or not sequence.restoring_:
            raise self._state_error(sequence, "finish_restore", "a restore that has begun")
        sequence.restoring_ = False
        if ok:
            sequence.resume_ = None
            self.linear_state_prefix_caches_[rank].unpin(checkpoint)

    @staticmethod
    def _state_error(sequence: Sequence, method: str, expected: str) -> SequenceStateError:
        words = {
            "has no live slot": sequence.linear_state_slot_ is None,
            "is waiting": sequence.is_waiting,
            "is being restored": sequence.restoring_,
            "is being saved": sequence.is_saving,
        }
        what = " and ".join(word for word, holds in words.items() if holds) or "is neither waiting nor being saved"
        return SequenceStateError(f"BlockManagerPool.{method}", f"the sequence {what}", expected)

    # -- all ranks ---------------------------------------------------------------------------------------------------
    @while_open
    def reset(self) -> None:
        """Drop every key. Blocks in use stay with their sequences, and pinned checkpoints until they are restored."""
        for prefix_cache in self.prefix_caches():
            prefix_cache.reset()
        for cache in self.linear_state_prefix_caches_:
            cache.reset()

    @while_open
    def close(self) -> None:
        """End of life: the sequences have been given back; every later call is an error."""
        for cache in self.linear_state_prefix_caches_:
            cache.close()
        for single in self.single_block_managers_:
            single.close()
        for manager in self.block_managers_:
            manager.close()
        self.closed_ = True

    def _check(self, sequence: Sequence, method: str) -> None:
        if sequence.ended_:
            what, expected = "the sequence was deallocated or aborted", "one that lives"
            raise EndedSequenceError(f"BlockManagerPool.{method}", what, expected)
        if sequence.dp_rank_ is not None:
            self.check_rank(sequence.dp_rank_, method)
        if sequence.block_size != self.config.block_size:
            what, expected = f"a sequence with blocks of {sequence.block_size}", f"blocks of {self.config.block_size}"
            raise InvalidRangeError(f"BlockManagerPool.{method}", what, expected)
        if not self._is_owner(sequence):
            what = "the sequence has blocks of another manager"
            raise ForeignHandleError(f"BlockManagerPool.{method}", what, "one of this pool, or that has none")

    def _is_owner(self, sequence: Sequence) -> bool:
        """Whether what the sequence has is from its rank of this pool; all that it has is from the same one."""
        rank, single, state = sequence.dp_rank_, sequence.single_block_, sequence.kv_state_
        if rank is None:
            return single is None and not state.has_table
        if single is not None and single.manager is not self.single_block_managers_[rank]:
            return False
        manager = self.block_managers_[rank]
        if isinstance(manager, CompositeBlockManager):
            return manager.owns(sequence)
        return not state.groups_ and (not state.blocks_ or state.blocks_[0].manager is manager)
