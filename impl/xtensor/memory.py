"""`PageMemory`: reserved addresses, and physical pages that are mapped there one at a time.

A back end knows of no manager and keeps no account of what is mapped: that is `PagePool` and `VirtualPages`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from torch import Tensor

from kvspec.impl.errors import InvalidRangeError, KVCacheError


class MemoryUnavailableError(KVCacheError):
    """A back end was asked for that this installation or this machine does not have."""


class MappingError(RuntimeError):
    """A back end could not map or unmap a page; what was there before is there still.

    Args:
        where: class and operation.
        what: what the system said.
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


class PageMemory(ABC):
    """Physical pages ``0 .. num_pages - 1`` of equal size, and address ranges for them.

    Every address is a multiple of the page size. What is accessed where no page is mapped ends the process (CPU) or
    makes the context unusable (CUDA).

    Attributes:
        page_bytes: bytes of a page.
        num_pages: physical pages.
    """

    page_bytes: int
    num_pages: int

    @abstractmethod
    def reserve(self, num_pages: int) -> int:
        """The first address of a new range of that many pages, none of them mapped. Raises `MappingError`."""

    @abstractmethod
    def release(self, address: int, num_pages: int) -> None:
        """Give a range back in which no page is mapped. Raises `MappingError`."""

    @abstractmethod
    def map(self, address: int, frame: int) -> None:
        """Let a page of a range be the physical page of that number. Raises `MappingError`."""

    @abstractmethod
    def unmap(self, address: int) -> None:
        """Let a page of a range be without memory again. Raises `MappingError`."""

    @abstractmethod
    def tensor(self, address: int, num_bytes: int) -> Tensor:
        """Bytes ``[num_bytes]`` (uint8) of a range, on the device of the pages, whether or not they are mapped.

        Nobody may keep it when the range is released.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the physical pages back to the system; none is mapped."""


def check_sizes(where: str, num_pages: int, page_bytes: int, granularity: int) -> None:
    """Raises `InvalidRangeError` if there is no page, or a page is no multiple of what the system maps at once."""
    if num_pages < 1 or page_bytes < 1 or math.gcd(page_bytes, granularity) != granularity:
        what = f"{num_pages} pages of {page_bytes} bytes"
        raise InvalidRangeError(where, what, f"at least 1 page of a multiple of {granularity} bytes")
