"""`BlockManagerImpl`: the ordinary allocator, with free list, padding block and prefix cache (seed 4)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvspec.impl.block import Block, BlockRecord, TrackedBlock, release_all
from kvspec.impl.block_manager import BlockManager
from kvspec.impl.errors import (
    DoubleFreeError,
    ForeignHandleError,
    HandleInUseError,
    InvalidRangeError,
    KVCacheError,
    ReleasedHandleError,
)
from kvspec.impl.paging import block_index
from kvspec.impl.prefix_cache import PrefixCache, PrefixKeys
from kvspec.impl.sanitizer import Sanitizer

PADDING_ID = 0
"""Physical block that is never handed out (seed 4.1)."""


class BlockManagerImpl(BlockManager):
    """Allocator of blocks 1 .. num_blocks - 1; block 0 is padding (seed 4.1).

    Attributes:
        free_blocks_: array stack; its first num_free_blocks_ cells are the free ids, the rest is stale.
        num_free_blocks_: live cells of the stack.
        num_used_blocks_: blocks that at least one sequence holds, whatever the prefix cache holds.
        padding_block_: the handle that keeps block 0 out of circulation.
        prefix_cache_: None if prefix caching is off.

    Args:
        num_blocks: blocks of the pool, padding included; at least 2.
        block_size: tokens per block; at least 1.
        enable_prefix_cache: keep published blocks for later requests.
        sanitizer: where to report misuse of handles; None for full speed.
        record_events: keep the changes of the prefix cache for `PrefixCache.drain_events`.
    Raises:
        InvalidRangeError: a size is out of range.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_cache: bool = True,
        sanitizer: Sanitizer | None = None,
        record_events: bool = True,
    ) -> None:
        if num_blocks < 2 or block_size < 1:
            what = f"{num_blocks} blocks of {block_size} tokens"
            raise InvalidRangeError("BlockManagerImpl", what, "at least 2 blocks of at least 1 token")
        self.block_size_ = block_size
        self.closed_ = False
        self.sanitizer_ = sanitizer
        self.handle_type_ = Block if sanitizer is None else TrackedBlock
        # Filled when an id is first handed out: a large pool costs nothing before it is used.
        self._records: list[BlockRecord | None] = [None] * num_blocks
        self.prefix_cache_ = PrefixCache(block_size, record_events) if enable_prefix_cache else None
        # Low ids are on top, so that they are handed out first: short pools stay readable.
        self.free_blocks_ = list(range(num_blocks - 1, -1, -1))
        self.num_free_blocks_ = num_blocks
        self.num_used_blocks_ = 0
        self.padding_block_ = self._pop_blocks(1, counted=False)[0]
        if sanitizer is not None:
            sanitizer.watch(self)

    # -- counts ------------------------------------------------------------------------------------------------------
    @property
    def num_total_blocks(self) -> int:
        """Blocks of the pool, padding included."""
        return len(self._records)

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no handle names."""
        return self.num_free_blocks_

    @property
    def num_used_blocks(self) -> int:
        """Blocks that at least one sequence holds."""
        return self.num_used_blocks_

    @property
    def num_available_blocks(self) -> int:
        """Blocks that an allocation can get: free ones, and idle ones of the prefix cache."""
        return self.num_free_blocks_ + (self.prefix_cache_.num_idle_ if self.prefix_cache_ is not None else 0)

    def free_ids(self) -> list[int]:
        """The free ids, bottom of the stack first."""
        return self.free_blocks_[: self.num_free_blocks_]

    def ref_count(self, block_id: int) -> int:
        """Handles of a block, 0 if it is free. Raises `ForeignHandleError` for an id outside the pool."""
        record = self._record(block_id, "BlockManagerImpl.ref_count")
        return record.ref_count_ if record is not None else 0

    # -- allocation (seed 4.2) ---------------------------------------------------------------------------------------
    def allocate(self, num_blocks: int) -> list[Block] | None:
        """Handles of that many blocks, counted as used; idle cached blocks are evicted as far as needed.

        Returns:
            None if there is no room. Nothing is evicted then, and no count has changed.
        Raises:
            InvalidRangeError: num_blocks is negative.
            ClosedError: the manager is closed.
        """
        if self.closed_:
            raise self.closed_error("BlockManagerImpl.allocate")
        if num_blocks < 0:
            raise InvalidRangeError("BlockManagerImpl.allocate", f"{num_blocks} blocks", "0 or more")
        if num_blocks > self.num_free_blocks_ and not self.has_enough_blocks(num_blocks):
            return None
        blocks = self._pop_blocks(num_blocks, counted=True)
        self.num_used_blocks_ += num_blocks
        return blocks

    def has_enough_blocks(self, num_blocks: int) -> bool:
        """Whether that many blocks are free, after evicting idle cached ones if, and only if, that suffices.

        Eviction drops the cache's handles; their release brings the ids back through `free` (seed 4.3). A block that
        a caller has matched is held, hence not idle, hence not counted as available.
        """
        short = num_blocks - self.num_free_blocks_
        if short <= 0:
            return True
        cache = self.prefix_cache_
        if cache is None or cache.num_idle_ < short:
            return False
        cache.evict(short)
        return self.num_free_blocks_ >= num_blocks

    def _pop_blocks(self, num_blocks: int, counted: bool) -> list[Block]:
        """Handles of the ids on top of the stack; the caller has checked that there are enough."""
        top = self.num_free_blocks_
        self.num_free_blocks_ = bottom = top - num_blocks
        records, handle_type = self._records, self.handle_type_
        holders = 1 if counted else 0
        blocks = []
        for block_id in reversed(self.free_blocks_[bottom:top]):
            record = records[block_id]
            if record is None:
                record = records[block_id] = BlockRecord(block_id, self.block_size_, self)
            record.live_ = True
            record.ref_count_ = 1
            record.holders_ = holders
            blocks.append(handle_type(record, counted))
        return blocks

    def share(self, blocks: Sequence[Block]) -> list[Block]:
        """Further handles of the same blocks for another sequence (fork), counted as used.

        Raises:
            ReleasedHandleError: a handle was given back.
            ForeignHandleError: a block belongs to another manager.
        """
        self._check_own(blocks, "BlockManagerImpl.share")
        return self._count([block.copy() for block in blocks])

    def hold(self, block_id: int) -> Block:
        """A handle for a holder that is no sequence (a pending store, a transfer); its block does not count as used.

        Raises:
            ForeignHandleError: the id is outside the pool, free, or padding.
        """
        where = "BlockManagerImpl.hold"
        record = self._record(block_id, where)
        if record is None or not record.live_ or block_id == PADDING_ID:
            raise ForeignHandleError(where, f"block {block_id} is not in use", "a live block other than padding")
        record.add_reference()
        return self.handle_type_(record)

    def _count(self, blocks: list[Block]) -> list[Block]:
        """Enter fresh handles as a sequence's."""
        used = 0
        for block in blocks:
            record = block.record_
            assert record is not None
            block.counted_ = True
            if not record.holders_:
                used += 1
            record.holders_ += 1
        self.num_used_blocks_ += used
        return blocks

    # -- giving back (seed 3.1) --------------------------------------------------------------------------------------
    def deallocate(self, blocks: Sequence[Block]) -> None:
        """A sequence no longer uses these handles: lowers the usage count. The handles stay live until released.

        Raises:
            ForeignHandleError: a handle is not a sequence's, belongs to another manager, or is listed twice;
                nothing has changed then.
        """
        if self.closed_:
            raise self.closed_error("BlockManagerImpl.deallocate")
        unused = 0
        for index, block in enumerate(blocks):
            record = block.record_
            if record is None or not block.counted_ or record.manager_ is not self:
                self._count_again(blocks[:index])
                raise self._not_counted(block)
            block.counted_ = False
            record.holders_ -= 1
            if not record.holders_:
                unused += 1
        self.num_used_blocks_ -= unused

    @staticmethod
    def _count_again(blocks: Sequence[Block]) -> None:
        """Undo the first part of a refused `deallocate`; the total has not been touched yet."""
        for block in blocks:
            assert block.record_ is not None
            block.counted_ = True
            block.record_.holders_ += 1

    @staticmethod
    def _not_counted(block: Block) -> KVCacheError:
        where, expected = "BlockManagerImpl.deallocate", "handles of sequences of this manager, each once"
        return ForeignHandleError(where, f"{block!r} is not counted as used here", expected)

    def release_blocks(self, blocks: Sequence[Block]) -> None:
        """`deallocate`, then release of the handles, tail first: what a sequence does when it lets go (seed 8)."""
        self.deallocate(blocks)
        release_all(blocks)

    def free(self, block_id: int) -> None:
        """Take an id back; called by the last release of its handles (seed 3).

        Raises:
            DoubleFreeError: the id is free already.
            HandleInUseError: handles of the block are live.
            ForeignHandleError: the id is outside the pool.
        """
        if not 0 <= block_id < len(self._records):
            raise self._foreign(block_id, "BlockManagerImpl.free")
        record = self._records[block_id]
        if record is None or not record.live_ or record.ref_count_:
            raise self._bad_free(block_id, record)
        record.live_ = False
        self.free_blocks_[self.num_free_blocks_] = block_id
        self.num_free_blocks_ += 1
        if self.sanitizer_ is not None:
            self.sanitizer_.freed(block_id)

    def _bad_free(self, block_id: int, record: BlockRecord | None) -> KVCacheError:
        where = "BlockManagerImpl.free"
        if record is not None and record.live_:
            what = f"block {block_id} has {record.ref_count_} live handles"
            return HandleInUseError(where, what, "a block whose last handle was released")
        if self.sanitizer_ is not None:
            self.sanitizer_.double_free(block_id)
        return DoubleFreeError(where, f"block {block_id} is free already", "a block in use")

    # -- prefix cache ------------------------------------------------------------------------------------------------
    def allocate_shared(
        self, token_ids: array[int], keys: PrefixKeys | None = None, max_blocks: int | None = None
    ) -> list[Block]:
        """Handles, counted as used, of the published blocks of the longest known prefix (seed 4.2).

        Args:
            token_ids: tokens of the sequence.
            keys: its chain of keys; without it the tokens stand in no context.
            max_blocks: longest hit, in blocks.
        Raises:
            ClosedError: the manager is closed.
        """
        if self.closed_:
            raise self.closed_error("BlockManagerImpl.allocate_shared")
        cache = self.prefix_cache_
        if cache is None:
            return []
        limit = block_index(len(token_ids), self.block_size_)
        limit = limit if max_blocks is None else min(limit, max_blocks)
        if limit <= 0:
            return []
        return self._count(cache.match(token_ids, keys or PrefixKeys(self.block_size_), limit))

    def cache(
        self, token_ids: array[int], blocks: Sequence[Block], keys: PrefixKeys | None = None, first: int = 0
    ) -> int:
        """Publish full blocks of the tokens (seed 4.2); the caller vouches for their content.

        Args:
            token_ids: tokens of the sequence, from its start.
            blocks: handles, blocks[0] at logical index first.
            keys: its chain of keys; without it the tokens stand in no context.
            first: logical index of the first block to publish.
        Returns:
            The logical index behind the leading run of blocks that the cache names itself; 0 without a cache.
        Raises:
            KeyMismatchError, ReleasedHandleError: see `PrefixCache.insert`.
            ForeignHandleError: a block belongs to another manager.
            ClosedError: the manager is closed.
        """
        if self.closed_:
            raise self.closed_error("BlockManagerImpl.cache")
        cache = self.prefix_cache_
        if cache is None:
            return 0
        self._check_own(blocks, "BlockManagerImpl.cache")
        return cache.insert(token_ids, keys or PrefixKeys(self.block_size_), blocks, first)

    def block_idle(self, record: BlockRecord) -> None:
        """A published block has lost its last holder besides the cache."""
        if self.prefix_cache_ is not None:
            self.prefix_cache_.became_idle(record)

    def block_shared(self, record: BlockRecord) -> None:
        """A published block has got its first holder besides the cache."""
        if self.prefix_cache_ is not None:
            self.prefix_cache_.became_shared(record)

    # -- end of life -------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Drop the prefix cache and the padding handle; every later call, and release, is an error."""
        if self.closed_:
            raise self.closed_error("BlockManagerImpl.close")
        if self.prefix_cache_ is not None:
            self.prefix_cache_.reset()
        self.padding_block_.record_ = None  # not released: the padding id must not reach the free list
        self.closed_ = True

    # -- checks ------------------------------------------------------------------------------------------------------
    def _check_own(self, blocks: Sequence[Block], where: str) -> None:
        for block in blocks:
            record = block.record_
            if record is None:
                raise ReleasedHandleError(where, "a handle was released before", "live handles")
            if record.manager_ is not self:
                raise ForeignHandleError(where, f"{block!r} belongs to another manager", "blocks of this manager")

    def _record(self, block_id: int, where: str) -> BlockRecord | None:
        if not 0 <= block_id < len(self._records):
            raise self._foreign(block_id, where)
        return self._records[block_id]

    def _foreign(self, block_id: int, where: str) -> ForeignHandleError:
        return ForeignHandleError(where, f"block {block_id}", f"an id in [0, {len(self._records)})")
