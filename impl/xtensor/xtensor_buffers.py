"""`XTensorBuffers`: K and V over the addresses of a manager (see `KVBuffers`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.kernels import backend_for
from kvspec.impl.xtensor.xtensor_block_manager_impl import XTensorBlockManagerImpl

_DTYPE = torch.float32


def block_bytes(block_size: int, heads: int, head_dim: int) -> int:
    """Bytes of K, or of V, of a block in one layer."""
    return block_size * heads * head_dim * _DTYPE.itemsize


class XTensorBuffers(KVBuffers):
    """K and V tensors whose blocks lie where an `XTensorBlockManagerImpl` maps pages; same slots, same kernels.

    Regions are K of each layer, then V of each layer. Only blocks that were handed out may be accessed, and the padding
    block; and nothing once the manager is closed.

    Args:
        manager: it has two regions for each layer, with blocks of ``block_bytes(block_size, heads, head_dim)`` bytes.
        layers, heads, head_dim: shape of the cells; at least 1 each.
    Raises:
        InvalidRangeError: the manager's blocks or regions are others.
    """

    def __init__(self, manager: XTensorBlockManagerImpl, *, layers: int = 1, heads: int = 1, head_dim: int = 2) -> None:
        num_blocks, block_size, pages = manager.num_total_blocks, manager.block_size_, manager.pages_
        wanted = block_bytes(block_size, heads, head_dim)
        if (manager.block_bytes_, pages.num_regions_) != (wanted, 2 * layers):
            what = f"{pages.num_regions_} regions with blocks of {manager.block_bytes_} bytes"
            raise InvalidRangeError("XTensorBuffers", what, f"{2 * layers} regions with blocks of {wanted} bytes")
        self._manager = manager
        self.block_size_ = block_size
        total = manager.pool_.memory.tensor(pages.address_, pages.num_regions_ * pages.region_bytes_).view(_DTYPE)
        blocks = total.view(2, layers, -1, block_size, heads, head_dim)
        self.cells_ = total.view(2 * layers, -1, heads * head_dim)
        self.storage_ = blocks[:, :, :num_blocks]
        self.device_ = self.storage_.device
        self.kernels_ = backend_for(self.device_)

    def poison(self, block_ids: Sequence[int]) -> None:
        """Fill blocks with NaN; of a block whose page was unmapped meanwhile there is nothing left."""
        super().poison([block_id for block_id in block_ids if self._manager.is_ready(block_id)])
