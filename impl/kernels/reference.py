"""The kernels in plain torch: what every other version is compared with, and what runs on the CPU.

Shapes, for all functions of this package:

- ``tables``: int64 ``[M]``, block tables of any number of sequences one after the other;
- ``starts``: int64 ``[T]``, for each token the index in ``tables`` where the table of its sequence starts;
- ``positions``: int64 ``[T]``, for each token its position in its sequence, counted from that start; -1 for none;
- ``slots``: int64 ``[T]``, slot ids, that is ``block id * block_size + offset`` (seed 9.5); -1 for none;
- ``cells``: ``[planes, num_blocks * block_size, width]``, the pool; a plane is K or V of one layer;
- ``values``: ``[planes, T, width]``, of the type of the cells.

All index arithmetic is in 64 bits, and the block size that builds a slot is an argument, never read off
a shape.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvspec.impl.paging import block_index, slot_id


def slot_ids(tables: Tensor, starts: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Slot of each token, int64 ``[T]``; -1 where the position is negative."""
    if not tables.numel():
        return torch.full_like(positions, -1)
    index = block_index(positions, block_size)
    # The clamp is for tokens without a position, whose start may be anything; what they read is masked below.
    ids = tables.index_select(0, (starts + index).clamp_(0, tables.numel() - 1))
    return slot_id(positions, index, ids, block_size).masked_fill_(positions < 0, -1)


def write_slots(cells: Tensor, slots: Tensor, values: Tensor, block_size: int) -> None:
    """Store values at their slots. Negative slots are skipped, and so are those of the padding block 0.

    A slot occurs at most once.
    """
    keep = slots >= block_size
    if not bool(keep.all()):
        slots, values = slots[keep], values[:, keep]
    cells.index_copy_(1, slots, values)


def gather(cells: Tensor, tables: Tensor, starts: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Values ``[planes, T, width]`` of the tokens, through the tables; zeros where the position is negative."""
    slots = slot_ids(tables, starts, positions, block_size)
    out = cells.index_select(1, slots.clamp(min=0))
    out[:, slots < 0] = 0
    return out


def copy_blocks(cells: Tensor, sources: Tensor, targets: Tensor, block_size: int) -> None:
    """Copy whole blocks (copy-on-write). int64 ``[C]`` each; targets are distinct and none of them is a source."""
    planes, _, width = cells.shape
    blocks = cells.view(planes, -1, block_size, width)
    blocks.index_copy_(1, targets, blocks.index_select(1, sources))


def fill_slots(cells: Tensor, slots: Tensor, value: float) -> None:
    """Store one value in all cells of slots (zeroed and poisoned states). Slot 0 and negative slots are skipped."""
    cells.index_fill_(1, slots[slots > 0], value)
