"""`CudaMemory`: pages of device memory, mapped by CUDA's virtual memory management (package ``cuda-bindings``)."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from kvspec.impl.xtensor.memory import MappingError, MemoryUnavailableError, PageMemory, check_sizes


def _driver() -> ModuleType:
    """The driver's interface. Raises `MemoryUnavailableError`."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        expected = "the extra 'cuda' of kvspec (pip install 'kvspec[cuda]')"
        raise MemoryUnavailableError("CudaMemory", f"no package cuda-bindings ({error})", expected) from error


class CudaMemory(PageMemory):
    """Pages of one device. A page that is unmapped keeps its content: it is mapped elsewhere as it is.

    Before a page is unmapped all kernels of the device end, since an idle page may still be read by one.

    Args:
        num_pages: physical pages; at least 1. All are taken at once.
        page_bytes: a multiple of what the device maps at once (2 MiB as a rule); None for just that.
        device: number of the device.
    Raises:
        InvalidRangeError: a size is out of range.
        MemoryUnavailableError: there is no such device, or no package ``cuda-bindings``.
        MappingError: the device has not so much memory.
    """

    def __init__(self, num_pages: int, page_bytes: int | None = None, *, device: int = 0) -> None:
        self._cuda = _driver()
        if not torch.cuda.is_available() or device >= torch.cuda.device_count():
            raise MemoryUnavailableError("CudaMemory", f"no CUDA device {device}", "one that torch can use")
        torch.zeros(1, device=f"cuda:{device}")  # torch makes the context of the device, in which all below happens
        self._device = device
        self._properties = self._device_memory()
        minimum = self._cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        granularity = int(self._call("cuMemGetAllocationGranularity", self._properties, minimum))
        page_bytes = granularity if page_bytes is None else page_bytes
        check_sizes("CudaMemory", num_pages, page_bytes, granularity)
        self.num_pages, self.page_bytes = num_pages, page_bytes
        self._pages: list[Any] = []
        try:
            for _ in range(num_pages):
                self._pages.append(self._call("cuMemCreate", page_bytes, self._properties, 0))
        except MappingError:
            self.close()
            raise

    def reserve(self, num_pages: int) -> int:
        """See `PageMemory.reserve`."""
        return int(self._call("cuMemAddressReserve", num_pages * self.page_bytes, self.page_bytes, 0, 0))

    def release(self, address: int, num_pages: int) -> None:
        """See `PageMemory.release`."""
        self._call("cuMemAddressFree", address, num_pages * self.page_bytes)

    def map(self, address: int, frame: int) -> None:
        """See `PageMemory.map`."""
        self._call("cuMemMap", address, self.page_bytes, 0, self._pages[frame], 0)
        access = self._cuda.CUmemAccessDesc()
        access.location = self._properties.location
        access.flags = self._cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        try:
            self._call("cuMemSetAccess", address, self.page_bytes, [access], 1)
        except MappingError:
            self._call("cuMemUnmap", address, self.page_bytes)
            raise

    def unmap(self, address: int) -> None:
        """See `PageMemory.unmap`."""
        torch.cuda.synchronize(self._device)
        self._call("cuMemUnmap", address, self.page_bytes)

    def tensor(self, address: int, num_bytes: int) -> Tensor:
        """See `PageMemory.tensor`."""
        interface = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "strides": None, "version": 3}
        return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device=f"cuda:{self._device}")

    def close(self) -> None:
        """See `PageMemory.close`."""
        while self._pages:
            self._call("cuMemRelease", self._pages.pop())

    def _device_memory(self) -> Any:
        properties = self._cuda.CUmemAllocationProp()
        properties.type = self._cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = self._cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = self._device
        return properties

    def _call(self, name: str, *args: Any) -> Any:
        """A call of the driver; its one result, None if it has none."""
        code, *results = getattr(self._cuda, name)(*args)
        if code != self._cuda.CUresult.CUDA_SUCCESS:
            raise MappingError(f"CudaMemory: {name}", code.name)
        return results[0] if results else None
