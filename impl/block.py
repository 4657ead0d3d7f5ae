"""`Block`: the counted handle of a physical KV block (seed 3).

A `Block` object is *one handle*. Handles of the same physical block share a `BlockRecord` that counts them; the last
release calls ``manager.free(id)`` (seed 3, 4.3). Python has no destructors to rely on, so copying and releasing are
explicit; a handle that is dropped instead is a leak, which `TrackedBlock` reports in sanitizer mode.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvspec.impl.closing import closed_error
from kvspec.impl.errors import HandleInUseError, ReleasedHandleError

if TYPE_CHECKING:
    from kvspec.impl.block_manager import BlockManager
    from kvspec.impl.sanitizer import Sanitizer

_PACKAGE = str(Path(__file__).parent)


class BlockRecord:
    """What all handles of one physical block share. It is reused when its id is handed out again.

    Attributes:
        live_: the id is handed out; False while it is in the free list.
        id_: physical block id.
        size_: tokens in the block.
        ref_count_: live handles.
        holders_: those of them that belong to sequences; the block counts as used while this is not 0 (seed 4).
        hash_value_: key under which the prefix cache names this block, None if it does not.
        manager_: the manager that gets the id back; not owned.
    """

    __slots__ = ("hash_value_", "holders_", "id_", "live_", "manager_", "ref_count_", "size_")

    def __init__(self, block_id: int, size: int, manager: BlockManager) -> None:
        self.id_ = block_id
        self.size_ = size
        self.live_ = False
        self.ref_count_ = 0
        self.holders_ = 0
        self.hash_value_: bytes | None = None
        self.manager_ = manager

    def add_reference(self) -> None:
        """Count one more handle, which the caller makes; an idle block of the prefix cache stops being idle."""
        self.ref_count_ += 1
        if self.ref_count_ == 2 and self.hash_value_ is not None:
            self.manager_.block_shared(self)


class Block:
    """One handle of a physical block.

    Made by a manager or by `copy`; each must be given back by one `release`. The constructor does not count: it
    wraps a reference that its caller has already entered in the record.

    Attributes:
        record_: the shared record; None once released.
        counted_: a sequence holds this handle, so ``manager.deallocate`` must see it before its release.
    """

    __slots__ = ("counted_", "record_")

    def __init__(self, record: BlockRecord, counted: bool = False) -> None:
        self.record_: BlockRecord | None = record
        self.counted_ = counted

    @property
    def id(self) -> int:
        """Physical block id. Raises `ReleasedHandleError`."""
        return self._record("id").id_

    @property
    def size(self) -> int:
        """Tokens in the block. Raises `ReleasedHandleError`."""
        return self._record("size").size_

    @property
    def ref_count(self) -> int:
        """Live handles of the block. Raises `ReleasedHandleError`."""
        return self._record("ref_count").ref_count_

    @property
    def hash_value(self) -> bytes | None:
        """Key under which the prefix cache names the block, None if it does not. Raises `ReleasedHandleError`."""
        return self._record("hash_value").hash_value_

    @property
    def manager(self) -> BlockManager:
        """The manager of the block. Raises `ReleasedHandleError`."""
        return self._record("manager").manager_

    @property
    def is_released(self) -> bool:
        """Whether this handle was given back."""
        return self.record_ is None

    def copy(self) -> Block:
        """Another handle of the same block, not yet counted as a sequence's.

        Raises:
            ReleasedHandleError: this one was given back.
            ClosedError: the manager is closed.
        """
        record = self.record_
        if record is None:
            raise self._released("copy")
        manager = record.manager_
        if manager.closed_:
            raise closed_error("Block.copy")
        record.add_reference()
        return manager.handle_type_(record)

    def release(self) -> None:
        """Give this handle back; the last one of a block frees its id (seed 3.1).

        Raises:
            ReleasedHandleError: it was given back before.
            HandleInUseError: it is a sequence's and was not deallocated.
            ClosedError: the manager is closed.
        """
        record = self.record_
        if record is None:
            raise self._released("release")
        if self.counted_:
            what = f"block {record.id_} is still counted as used by a sequence"
            raise HandleInUseError("Block.release", what, "BlockManager.deallocate before the release")
        manager = record.manager_
        if manager.closed_:
            raise closed_error("Block.release")
        self.record_ = None
        count = record.ref_count_ - 1
        record.ref_count_ = count
        if not count:
            manager.free(record.id_)
        elif count == 1 and record.hash_value_ is not None:
            manager.block_idle(record)

    def _record(self, where: str) -> BlockRecord:
        if self.record_ is None:
            raise self._released(where)
        return self.record_

    @staticmethod
    def _released(where: str) -> ReleasedHandleError:
        return ReleasedHandleError(f"Block.{where}", "this handle was released before", "a live handle")

    def __repr__(self) -> str:
        record = self.record_
        if record is None:
            return "<Block released>"
        return f"<Block id={record.id_} ref_count={record.ref_count_} used={record.holders_}>"


class TrackedBlock(Block):
    """A handle that knows where it was made and reports when it is dropped without release (sanitizer mode)."""

    __slots__ = ("made_at_",)

    def __init__(self, record: BlockRecord, counted: bool = False) -> None:
        super().__init__(record, counted)
        self.made_at_ = caller_outside_package()

    def __del__(self) -> None:
        record = self.record_
        if record is None:
            return
        sanitizer = record.manager_.sanitizer_
        # A manager that dies together with its handles leaks nothing; one that is closed has settled its accounts.
        if sanitizer is None or not sanitizer.watches(record.manager_):
            return
        _report_lost(sanitizer, record.id_, self.made_at_)


def _report_lost(sanitizer: Sanitizer, block_id: int, made_at: str) -> None:
    sanitizer.lost_handle(block_id, made_at)
    message = f"a handle of block {block_id}, made at {made_at}, was dropped without release"
    warnings.warn(message, ResourceWarning, stacklevel=3)


def caller_outside_package() -> str:
    """``file:line in function`` of the innermost frame outside ``kvspec.impl`` (the outermost one if there is none)."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def release_all(blocks: Sequence[Block]) -> None:
    """Release the handles, last one first.

    The order matters for recency: the tail of a chain becomes idle first and is evicted first (seed 4.3).
    Raises as `Block.release` does, at the first handle that it refuses.
    """
    for block in reversed(blocks):
        block.release()


def block_ids(blocks: Iterable[Block]) -> list[int]:
    """Physical ids of live handles, in their order. Raises `ReleasedHandleError`."""
    return [block.id for block in blocks]
