"""`PagePool`: the physical pages that several managers share (chapter `xtensor`, `memory`)."""

from __future__ import annotations

from typing import Protocol

from kvspec.impl.block import Block
from kvspec.impl.closing import while_open
from kvspec.impl.errors import HandleInUseError
from kvspec.impl.single_block_manager import SingleBlockManager
from kvspec.impl.xtensor.memory import PageMemory


class PageUser(Protocol):
    """A manager that has pages of the pool."""

    def num_reclaimable(self) -> int:
        """Physical pages that it could do without."""

    def reclaim(self, num_physical: int | None = None) -> int:
        """Give physical pages back, about that many or all that can be; the number that were."""


class PagePool:
    """Each physical page is free or is mapped once. The pool and its managers are used by one thread at a time.

    Attributes:
        memory: where the pages are.
        pages_: their ids; id n is physical page n - 1 of the memory, id 0 is none.

    Args:
        memory: owned by the pool from now on.
    """

    def __init__(self, memory: PageMemory) -> None:
        self.memory = memory
        self.pages_ = SingleBlockManager(memory.num_pages + 1)
        self.closed_ = False
        self._users: list[PageUser] = []

    @property
    def num_free_pages(self) -> int:
        """Physical pages that nobody has."""
        return self.pages_.num_free_blocks_

    @while_open
    def take(self) -> Block | None:
        """A free physical page for one owner, or None if there is none."""
        taken = self.pages_.allocate(1)
        return taken[0] if taken else None

    @while_open
    def give_back(self, page: Block) -> None:
        """A physical page is mapped no more, and free."""
        self.pages_.release_blocks([page])

    @while_open
    def join(self, user: PageUser) -> None:
        """A manager begins to use the pool."""
        self._users.append(user)

    @while_open
    def leave(self, user: PageUser) -> None:
        """A manager uses the pool no more."""
        self._users.remove(user)

    @while_open
    def num_within_reach(self, user: PageUser) -> int:
        """Physical pages that a manager can get: free ones, and idle ones of the other managers."""
        return self.num_free_pages + sum(u.num_reclaimable() for u in self._users if u is not user)

    @while_open
    def make_free(self, num_physical: int, user: PageUser) -> bool:
        """Whether that many physical pages are free for a manager, after others have given idle ones back if need be.

        A page that could not be unmapped stays with its manager, so the answer may be no though `num_within_reach`
        promised more.
        """
        for other in self._users:
            if self.num_free_pages >= num_physical:
                break
            if other is not user:
                other.reclaim(num_physical - self.num_free_pages)
        return self.num_free_pages >= num_physical

    @while_open
    def close(self) -> None:
        """Give the memory back to the system.

        Raises:
            HandleInUseError: a physical page is mapped; nothing has changed.
        """
        mapped = self.pages_.num_used_blocks
        if mapped:
            raise HandleInUseError(
                "PagePool.close", f"{mapped} physical pages are mapped", "every manager closed before"
            )
        self.pages_.close()
        self.memory.close()
        self.closed_ = True
