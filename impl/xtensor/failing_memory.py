"""`FailingMemory`: another memory, some of whose operations fail (fault injection)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kvspec.impl.xtensor.memory import MappingError, PageMemory


def never(address: int) -> bool:
    """No operation fails."""
    return False


class FailingMemory(PageMemory):
    """A memory that maps and unmaps as another one does, except where it is told to fail.

    Attributes:
        map_fails, unmap_fails: for the address of a page, whether to map or unmap it fails.
    """

    def __init__(self, memory: PageMemory) -> None:
        self._memory = memory
        self.num_pages, self.page_bytes = memory.num_pages, memory.page_bytes
        self.map_fails: Callable[[int], bool] = never
        self.unmap_fails: Callable[[int], bool] = never

    def reserve(self, num_pages: int) -> int:
        """See `PageMemory.reserve`."""
        return self._memory.reserve(num_pages)

    def release(self, address: int, num_pages: int) -> None:
        """See `PageMemory.release`."""
        self._memory.release(address, num_pages)

    def map(self, address: int, frame: int) -> None:
        """See `PageMemory.map`."""
        if self.map_fails(address):
            raise MappingError("FailingMemory.map", "a failure that was asked for")
        self._memory.map(address, frame)

    def unmap(self, address: int) -> None:
        """See `PageMemory.unmap`."""
        if self.unmap_fails(address):
            raise MappingError("FailingMemory.unmap", "a failure that was asked for")
        self._memory.unmap(address)

    def tensor(self, address: int, num_bytes: int) -> Tensor:
        """See `PageMemory.tensor`."""
        return self._memory.tensor(address, num_bytes)

    def close(self) -> None:
        """See `PageMemory.close`."""
        self._memory.close()
