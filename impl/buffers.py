"""`KVBuffers`: the device memory of a pool, and the content tags that conformance checks read back (design 7)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvspec.impl.errors import ContentError, InvalidRangeError
from kvspec.impl.kernels import Backend, backend_for
from kvspec.impl.tags import TAG_LIMIT, high_half, joined, low_half
from kvspec.model.conformance import Tags

GUARD = -1.0
"""Content of the padding block in sanitizer mode; no tag encodes to it."""


def check_tags(tags: Tags, where: str) -> None:
    """Raises `InvalidRangeError` if a tag is negative or 2**48 or more."""
    if len(tags) and (int(tags.min()) < 0 or int(tags.max()) >= TAG_LIMIT):
        what = f"tags from {int(tags.min())} to {int(tags.max())}"
        raise InvalidRangeError(where, what, "tags in [0, 2**48)")


class KVBuffers:
    """K and V tensors ``[num_blocks, block_size, heads, head_dim]`` (float32) of each layer, in one allocation.

    A *tag* is a whole number below 2**48 that stands for a token's content. Its low 24 bits are stored in K, its high
    24 bits in V, in every layer, head and dimension; a read checks that all copies agree, so that a torn or partly
    overwritten cell is found.

    Args:
        num_blocks: blocks, padding block 0 included.
        block_size: tokens per block.
        layers, heads, head_dim: shape of the cells; at least 1 each.
        device: where the memory is; the kernels follow it.
        pin_memory: lock host memory for copies to and from a CUDA device.
    Raises:
        InvalidRangeError: a size is below 1.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        layers: int = 1,
        heads: int = 1,
        head_dim: int = 2,
        device: torch.device | str = "cpu",
        pin_memory: bool = False,
    ) -> None:
        shape = (2, layers, num_blocks, block_size, heads, head_dim)
        if min(shape) < 1:
            raise InvalidRangeError("KVBuffers", f"shape {shape}", "sizes of at least 1")
        self.block_size_ = block_size
        self.storage_ = torch.zeros(shape, dtype=torch.float32, device=device, pin_memory=pin_memory)
        self.cells_ = self.storage_.view(2 * layers, num_blocks * block_size, heads * head_dim)
        self.device_ = self.storage_.device
        self.kernels_: Backend = backend_for(self.device_)

    def keys(self, layer: int) -> Tensor:
        """K of a layer, ``[num_blocks, block_size, heads, head_dim]``."""
        return self.storage_[0, layer]

    def values(self, layer: int) -> Tensor:
        """V of a layer, ``[num_blocks, block_size, heads, head_dim]``."""
        return self.storage_[1, layer]

    # -- tags --------------------------------------------------------------------------------------------------------
    def slot_ids(self, tables: array[int], starts: Tags, positions: Tags) -> Tensor:
        """Slots ``[T]`` of tokens; arguments as in `kvspec.impl.kernels.reference`, on the host."""
        table = np.array(tables, dtype=np.int64)
        moved = (self._to_device(table), self._to_device(starts), self._to_device(positions))
        return self.kernels_.slot_ids(*moved, self.block_size_)

    def _to_device(self, host: np.ndarray[tuple[int, ...], np.dtype[Any]]) -> Tensor:
        tensor = torch.from_numpy(host)
        return tensor if self.device_.type == "cpu" else tensor.to(self.device_)

    def write_tags(self, slots: Tensor, tags: Tags) -> None:
        """Store tags ``[T]`` at slots ``[T]``. Raises `InvalidRangeError` if a tag is negative or 2**48 or more."""
        check_tags(tags, "KVBuffers.write_tags")
        planes, _, width = self.cells_.shape
        values = np.empty((planes, len(tags), width), dtype=np.float32)
        values[: planes // 2] = low_half(tags)[:, None]
        values[planes // 2 :] = high_half(tags)[:, None]
        self.kernels_.write_slots(self.cells_, slots, self._to_device(values), self.block_size_)

    def read_tags(self, table: array[int], start: int, stop: int) -> Tags:
        """Tags of the positions [start, stop) of a sequence with this block table.

        Raises:
            ContentError: a cell is poisoned, or its copies disagree.
        """
        if stop <= start:
            return np.empty(0, dtype=np.int64)
        ids = self._to_device(np.array(table, dtype=np.int64))
        where = torch.arange(start, stop, dtype=torch.int64, device=self.device_)
        found = self.kernels_.gather(self.cells_, ids, torch.zeros_like(where), where, self.block_size_)
        return self._decode(found.cpu().numpy(), start)

    def _decode(self, found: np.ndarray[tuple[int, ...], np.dtype[np.float32]], start: int) -> Tags:
        """Tags of cells ``[planes, T, width]``; start is the position of the first, for messages."""
        planes, count, width = found.shape
        halves = found.reshape(2, planes // 2, count, width)
        first = halves[:, :1, :, :1]
        bad = np.flatnonzero((halves != first).any(axis=(0, 1, 3)))  # NaN differs from itself: poison is found too
        if len(bad):
            numbers = np.unique(halves[:, :, bad[0]])
            shown = ", ".join([*(f"{number:g}" for number in numbers[:4]), *["..."][: len(numbers) > 4]])
            raise ContentError(f"position {start + int(bad[0])} holds {shown}: poisoned or torn")
        low, high = (halves[half, 0, :, 0].astype(np.int64) for half in range(2))
        return joined(low, high)

    # -- blocks ------------------------------------------------------------------------------------------------------
    def copy_from(self, source: KVBuffers, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks from buffers of equal cells, of another tier say, on the current stream.

        Args:
            source: where they are; equal but for the number of blocks and the device.
            pairs: ids in `source`, and ids here.
        Raises:
            InvalidRangeError: the cells are of another shape.
        """
        mine, theirs = ((*b.storage_.shape[:2], *b.storage_.shape[3:]) for b in (self, source))
        if mine != theirs:
            raise InvalidRangeError("KVBuffers.copy_from", f"cells {theirs}", f"{mine} (K and V, layers, block)")
        for there, here in pairs:
            self.storage_[:, :, here].copy_(source.storage_[:, :, there], non_blocking=True)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, target) each, in all layers (copy-on-write)."""
        if not pairs:
            return
        table = torch.tensor(pairs, dtype=torch.int64, device=self.device_)
        sources, targets = table[:, 0].contiguous(), table[:, 1].contiguous()
        self.kernels_.copy_blocks(self.cells_, sources, targets, self.block_size_)

    def poison(self, block_ids: Sequence[int]) -> None:
        """Fill blocks with NaN, so that a read of freed memory cannot pass for content."""
        index = torch.tensor(sorted(set(block_ids)), dtype=torch.int64, device=self.device_)
        self.storage_.index_fill_(2, index, torch.nan)

    def guard_padding(self) -> None:
        """Fill the padding block with a value that no tag encodes to."""
        self.storage_[:, :, 0] = GUARD

    def padding_is_intact(self) -> bool:
        """Whether the padding block still holds what `guard_padding` wrote."""
        return bool((self.storage_[:, :, 0] == GUARD).all())
