"""`TorchXTensorTarget`: an `XTensorBlockManagerImpl` behind the target protocol, with K and V in mapped memory."""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Iterable

import torch

from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.paging import block_index
from kvspec.impl.target import TorchTarget
from kvspec.impl.target_base import operation
from kvspec.impl.xtensor.cpu_memory import CpuMemory
from kvspec.impl.xtensor.failing_memory import FailingMemory
from kvspec.impl.xtensor.memory import PageMemory
from kvspec.impl.xtensor.page_pool import PagePool
from kvspec.impl.xtensor.virtual_pages import VirtualPages
from kvspec.impl.xtensor.xtensor_block_manager_impl import XTensorBlockManagerImpl
from kvspec.impl.xtensor.xtensor_buffers import XTensorBuffers, block_bytes
from kvspec.model.conformance import Capability, Form, PoolConfig


class TorchXTensorTarget(TorchTarget):
    """Sequences over one `XTensorBlockManagerImpl`, with K and V in host memory that is mapped on demand.

    A token is as wide as it has to be for `PoolConfig.page_size` of them to fill pages of the system. Each page of the
    protocol is one in each region (K and V of every layer). A mapping that is to fail does so in the last region.

    Args:
        config: sizes and options, of a manager with pages.
        layers, heads, record_events: see `TorchTarget`.
    Raises:
        InvalidRangeError: the config is that of another form.
        MemoryUnavailableError: the system is not Linux.
    """

    capabilities: frozenset[Capability] = TorchTarget.capabilities | {Capability.PAGES}
    name_ = "TorchXTensorTarget"
    form_ = Form.PAGES
    manager_: XTensorBlockManagerImpl

    def __init__(self, config: PoolConfig, *, layers: int = 1, heads: int = 1, record_events: bool = True) -> None:
        self._layers, self._heads = layers, heads
        self._head_dim = _head_dim(config.page_size) if config.page_size else 1
        super().__init__(config, layers=layers, heads=heads, head_dim=self._head_dim, record_events=record_events)
        self._failures = self._memory.map_fails = _Failures(self.manager_.pages_)
        self._give_back_memory = weakref.finalize(self, _close, self.manager_.pages_, self._memory)

    def _make_manager(self, record_events: bool) -> BlockManagerImpl:
        self._num_regions = 2 * self._layers
        page_bytes = block_bytes(self.config.page_size, self._heads, self._head_dim)
        self._memory = FailingMemory(self._make_memory(self.config.num_pages * self._num_regions, page_bytes))
        return XTensorBlockManagerImpl(
            self.config.num_blocks,
            self.config.block_size,
            PagePool(self._memory),
            block_bytes=block_bytes(self.config.block_size, self._heads, self._head_dim),
            num_regions=self._num_regions,
            enable_prefix_cache=self.config.enable_prefix_cache,
            sanitizer=self.sanitizer_,
            record_events=record_events,
        )

    def _make_memory(self, num_pages: int, page_bytes: int) -> PageMemory:
        return CpuMemory(num_pages, page_bytes)

    def _make_buffers(self, layers: int, heads: int, head_dim: int, device: torch.device | str) -> KVBuffers:
        return XTensorBuffers(self.manager_, layers=layers, heads=heads, head_dim=head_dim)

    # -- operations --------------------------------------------------------------------------------------------------
    @operation
    def reclaim(self, num_pages: int) -> int:
        """Unmap up to that many idle pages, the last one first; how many were. Error if num_pages is negative."""
        if num_pages < 0:
            raise InvalidRangeError(self._where("reclaim"), f"{num_pages} pages", "0 or more")
        return block_index(self.manager_.reclaim(num_pages * self._num_regions), self._num_regions)

    @operation
    def fail_mappings(self, failing: Iterable[bool]) -> None:
        """Whether each of the next attempts to map a page fails, in turn."""
        self._failures.coming = deque(failing)

    @operation
    def close(self) -> None:
        """Give everything back, memory included; every later operation is an error."""
        super().close()
        self._give_back_memory.detach()
        self.manager_.pool_.close()

    # -- observations ------------------------------------------------------------------------------------------------
    @operation
    def mapped_pages(self) -> set[int]:
        """Pages that are mapped, in all regions."""
        pages = self.manager_.pages_
        return {page for page in range(pages.num_pages_) if pages.is_mapped(page)}


class _Failures:
    """Which attempts to map a page are going to fail: each begins in the first region, and fails in the last."""

    def __init__(self, pages: VirtualPages) -> None:
        self._pages = pages
        self._fails = False
        self.coming: deque[bool] = deque()

    def __call__(self, address: int) -> bool:
        region = block_index(address - self._pages.address_, self._pages.region_bytes_)
        if region == 0:
            self._fails = bool(self.coming) and self.coming.popleft()
        return self._fails and region == self._pages.num_regions_ - 1


def _head_dim(page_size: int) -> int:
    """The least width of a token of one head with which pages of so many tokens are pages of the system."""
    return block_index(mmap.PAGESIZE, math.gcd(mmap.PAGESIZE, block_bytes(page_size, 1, 1)))


def _close(pages: VirtualPages, memory: PageMemory) -> None:
    """A target that is dropped without close leaves nothing mapped."""
    pages.close()
    memory.close()
