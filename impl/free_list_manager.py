"""`FreeListManager`: handles of single ids from a free list, with their counts (seed 3, 4.1, 6).

What every manager of ids does alike; `BlockManagerImpl` adds the prefix cache, `SingleBlockManager` nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvspec.impl.block import Block, BlockRecord, TrackedBlock, release_all
from kvspec.impl.block_manager import BlockManager
from kvspec.impl.closing import closed_error, while_open
from kvspec.impl.errors import (
    DoubleFreeError,
    ForeignHandleError,
    HandleInUseError,
    InvalidRangeError,
    KVCacheError,
    ReleasedHandleError,
)
from kvspec.impl.sanitizer import Sanitizer

PADDING_ID = 0
"""Physical id that is never handed out (seed 4.1, 6)."""


class FreeListManager(BlockManager):
    """Allocator of ids 1 .. num_blocks - 1; id 0 is padding.

    After `close` every method raises `ClosedError`; counts can still be read.

    Attributes:
        free_blocks_: array stack; its first num_free_blocks_ cells are the free ids, the rest is stale.
        num_free_blocks_: live cells of the stack.
        num_used_blocks_: ids that at least one sequence holds.
        padding_block_: the handle that keeps id 0 out of circulation.
        handle_types_: classes of the handles that are made, at full speed and in sanitizer mode.
        record_type_: class of the records.

    Args:
        num_blocks: ids, padding included; at least 2.
        block_size: tokens per block; at least 1.
        sanitizer: where to report misuse of handles; None for full speed.
    Raises:
        InvalidRangeError: a size is out of range.
    """

    handle_types_: tuple[type[Block], type[Block]] = (Block, TrackedBlock)
    record_type_: type[BlockRecord] = BlockRecord

    def __init__(self, num_blocks: int, block_size: int, *, sanitizer: Sanitizer | None = None) -> None:
        if num_blocks < 2 or block_size < 1:
            what = f"{num_blocks} blocks of {block_size} tokens"
            raise InvalidRangeError(type(self).__name__, what, "at least 2 blocks of at least 1 token")
        self.block_size_ = block_size
        self.closed_ = False
        self.sanitizer_ = sanitizer
        self.handle_type_ = self.handle_types_[sanitizer is not None]
        # Filled when an id is first handed out: a large pool costs nothing before it is used.
        self._records: list[BlockRecord | None] = [None] * num_blocks
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

    @while_open
    def free_ids(self) -> list[int]:
        """The free ids, bottom of the stack first."""
        return self.free_blocks_[: self.num_free_blocks_]

    @while_open
    def ref_count(self, block_id: int) -> int:
        """Handles of a block, 0 if it is free. Raises `ForeignHandleError` for an id outside the pool."""
        record = self._record(block_id, "ref_count")
        return record.ref_count_ if record is not None else 0

    # -- allocation (seed 4.2) ---------------------------------------------------------------------------------------
    @while_open
    def allocate(self, num_blocks: int) -> list[Block] | None:
        """Handles of that many blocks, counted as used (seed 4.2).

        Returns:
            None if there is no room (`has_enough_blocks`). No count has changed then.
        Raises:
            InvalidRangeError: num_blocks is negative.
        """
        if num_blocks < 0:
            raise InvalidRangeError(self._where("allocate"), f"{num_blocks} blocks", "0 or more")
        if num_blocks > self.num_free_blocks_ and not self.has_enough_blocks(num_blocks):
            return None
        blocks = self._pop_blocks(num_blocks, counted=True)
        self.num_used_blocks_ += num_blocks
        return blocks

    @while_open
    def has_enough_blocks(self, num_blocks: int) -> bool:
        """Whether that many ids are free; a manager that can make some free does so if that suffices."""
        return num_blocks <= self.num_free_blocks_

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
                record = records[block_id] = self.record_type_(block_id, self.block_size_, self)
            record.live_ = True
            record.ref_count_ = 1
            record.holders_ = holders
            blocks.append(handle_type(record, counted))
        return blocks

    @while_open
    def share(self, blocks: Sequence[Block]) -> list[Block]:
        """Further handles of the same blocks for another sequence (fork), counted as used.

        Raises:
            ReleasedHandleError: a handle was given back.
            ForeignHandleError: a block belongs to another manager.
        """
        self._check_own(blocks, "share")
        return self._count([block.copy() for block in blocks])

    @while_open
    def hold(self, block_id: int) -> Block:
        """A handle for a holder that is no sequence (a pending store, a transfer); its block does not count as used.

        Raises:
            ForeignHandleError: the id is outside the pool, free, or padding.
        """
        record = self._record(block_id, "hold")
        if record is None or not record.live_ or block_id == PADDING_ID:
            what = f"block {block_id} is not in use"
            raise ForeignHandleError(self._where("hold"), what, "a live block other than padding")
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
    @while_open
    def deallocate(self, blocks: Sequence[Block]) -> None:
        """A sequence no longer uses these handles: lowers the usage count. The handles stay live until released.

        Raises:
            ForeignHandleError: a handle is not a sequence's, belongs to another manager, or is listed twice;
                nothing has changed then.
        """
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

    def _not_counted(self, block: Block) -> KVCacheError:
        where, expected = self._where("deallocate"), "handles of sequences of this manager, each once"
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
        if self.closed_:  # not as a decorator: this is called for each block
            raise closed_error(self._where("free"))
        if not 0 <= block_id < len(self._records):
            raise self._foreign(block_id, "free")
        record = self._records[block_id]
        if record is None or not record.live_ or record.ref_count_:
            raise self._bad_free(block_id, record)
        record.live_ = False
        self.free_blocks_[self.num_free_blocks_] = block_id
        self.num_free_blocks_ += 1
        if self.sanitizer_ is not None:
            self.sanitizer_.freed(block_id)

    def _bad_free(self, block_id: int, record: BlockRecord | None) -> KVCacheError:
        where = self._where("free")
        if record is not None and record.live_:
            what = f"block {block_id} has {record.ref_count_} live handles"
            return HandleInUseError(where, what, "a block whose last handle was released")
        if self.sanitizer_ is not None:
            self.sanitizer_.double_free(block_id)
        return DoubleFreeError(where, f"block {block_id} is free already", "a block in use")

    # -- end of life -------------------------------------------------------------------------------------------------
    @while_open
    def close(self) -> None:
        """Drop the padding handle; every later call, and use of a handle, is an error."""
        self.padding_block_.record_ = None  # not released: the padding id must not reach the free list
        self.closed_ = True

    def _where(self, method: str) -> str:
        return f"{type(self).__name__}.{method}"

    # -- checks ------------------------------------------------------------------------------------------------------
    def _check_own(self, blocks: Sequence[Block], method: str) -> None:
        for block in blocks:
            record = block.record_
            if record is None:
                raise ReleasedHandleError(self._where(method), "a handle was released before", "live handles")
            if record.manager_ is not self:
                what = f"{block!r} belongs to another manager"
                raise ForeignHandleError(self._where(method), what, "blocks of this manager")

    def _record(self, block_id: int, method: str) -> BlockRecord | None:
        if not 0 <= block_id < len(self._records):
            raise self._foreign(block_id, method)
        return self._records[block_id]

    def _foreign(self, block_id: int, method: str) -> ForeignHandleError:
        return ForeignHandleError(self._where(method), f"block {block_id}", f"an id in [0, {len(self._records)})")
