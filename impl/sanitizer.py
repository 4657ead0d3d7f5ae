"""`Sanitizer`: finds misuse of handles and of device memory while it happens, at some cost in speed.

- a handle that is dropped without release, with the place where it was made;
- an id that is freed twice;
- a freed block that is read: its cells are poisoned with NaN before they can be handed out again;
- a write to the padding block: its cells hold a guard value that is checked.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kvspec.impl.block_manager import BlockManager


class Memory(Protocol):
    """Device memory that ids stand for: `KVBuffers` for blocks, `StateBuffers` for state slots."""

    def poison(self, ids: Sequence[int], /) -> None:
        """Make the memory of ids unreadable."""

    def guard_padding(self) -> None:
        """Fill that of id 0 with the guard value."""

    def padding_is_intact(self) -> bool:
        """Whether it still has that value."""


class LostHandle(NamedTuple):
    """A handle that was dropped without release: its block id, and where it was made (file:line in function)."""

    block_id: int
    made_at: str


class Sanitizer:
    """Reports of one manager and the memory of its ids, if they have any.

    Attributes:
        lost_handles: handles dropped without release.
        double_frees: ids that were freed while free.
        padding_writes: how often the padding block was found changed.
    """

    def __init__(self) -> None:
        self.lost_handles: list[LostHandle] = []
        self.double_frees: list[int] = []
        self.padding_writes = 0
        self._manager: weakref.ref[BlockManager] | None = None
        self._unpoisoned: list[int] = []

    @property
    def is_clean(self) -> bool:
        """Whether nothing was reported."""
        return not (self.lost_handles or self.double_frees or self.padding_writes)

    def watch(self, manager: BlockManager) -> None:
        """Report on this manager's handles, without keeping it alive."""
        self._manager = weakref.ref(manager)

    def unwatch(self) -> None:
        """Report no more lost handles: their manager is going away as a whole."""
        self._manager = None

    def watches(self, manager: BlockManager) -> bool:
        """Whether a lost handle of this manager matters: it is alive and not closed."""
        return self._manager is not None and self._manager() is manager and not manager.closed_

    def lost_handle(self, block_id: int, made_at: str) -> None:
        """A handle was dropped without release."""
        self.lost_handles.append(LostHandle(block_id, made_at))

    def double_free(self, block_id: int) -> None:
        """A free id was freed."""
        self.double_frees.append(block_id)

    def freed(self, block_id: int) -> None:
        """An id came back; its cells are poisoned at the next `settle`."""
        self._unpoisoned.append(block_id)

    def settle(self, memory: Memory | None) -> None:
        """Poison what was freed since the last call and look at the padding; without memory only forget.

        To be called before every access to device memory: a freed block cannot be written by its next owner, nor
        read, before it is poisoned, and all blocks of a step are poisoned by one call.
        """
        freed, self._unpoisoned = self._unpoisoned, []
        if memory is None:
            return
        if freed:
            memory.poison(freed)
        if not memory.padding_is_intact():
            self.padding_writes += 1
            memory.guard_padding()
