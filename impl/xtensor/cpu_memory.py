"""`CpuMemory`: pages of a memory file, mapped into a range of addresses without access (Linux)."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from functools import cache

import torch
from torch import Tensor

from kvspec.impl.xtensor.memory import MappingError, MemoryUnavailableError, PageMemory, check_sizes

_FIXED = 0x10
_NO_RESERVE = 0x4000
_NO_ACCESS = 0
_FAILED = ctypes.c_void_p(-1).value


@cache
def _libc() -> ctypes.CDLL:
    """The C library, with the two calls that place a mapping at an address, which module `mmap` does not offer."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


class CpuMemory(PageMemory):
    """Pages of host memory. A page that is unmapped keeps its content: it is mapped elsewhere as it is.

    Args:
        num_pages: physical pages; at least 1. They take memory when they are first written.
        page_bytes: a multiple of the system's page size.
    Raises:
        InvalidRangeError: a size is out of range.
        MemoryUnavailableError: the system is not Linux.
    """

    def __init__(self, num_pages: int, page_bytes: int = mmap.PAGESIZE) -> None:
        if sys.platform != "linux":
            raise MemoryUnavailableError("CpuMemory", f"the system is {sys.platform}", "linux")
        check_sizes("CpuMemory", num_pages, page_bytes, mmap.PAGESIZE)
        self.num_pages, self.page_bytes = num_pages, page_bytes
        self._file = os.memfd_create("kvspec-pages")
        os.ftruncate(self._file, num_pages * page_bytes)

    def reserve(self, num_pages: int) -> int:
        """See `PageMemory.reserve`."""
        return self._mmap("reserve", None, num_pages * self.page_bytes)

    def release(self, address: int, num_pages: int) -> None:
        """See `PageMemory.release`."""
        if _libc().munmap(address, num_pages * self.page_bytes):
            raise self._error("release")

    def map(self, address: int, frame: int) -> None:
        """See `PageMemory.map`."""
        self._mmap("map", address, self.page_bytes, frame)

    def unmap(self, address: int) -> None:
        """See `PageMemory.unmap`."""
        self._mmap("unmap", address, self.page_bytes)

    def tensor(self, address: int, num_bytes: int) -> Tensor:
        """See `PageMemory.tensor`."""
        return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), dtype=torch.uint8)

    def close(self) -> None:
        """See `PageMemory.close`."""
        os.close(self._file)

    def _mmap(self, where: str, address: int | None, num_bytes: int, frame: int | None = None) -> int:
        """One call both replaces what is mapped at an address and maps anew, so that nobody can get it in between."""
        if frame is None:
            access, kind, file, offset = _NO_ACCESS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, -1, 0
        else:
            access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED
            file, offset = self._file, frame * self.page_bytes
        kind |= 0 if address is None else _FIXED
        found: int | None = _libc().mmap(address, num_bytes, access, kind, file, offset)
        if found is None or found == _FAILED:
            raise self._error(where)
        return found

    @staticmethod
    def _error(where: str) -> MappingError:
        return MappingError(f"CpuMemory.{where}", os.strerror(ctypes.get_errno()))
