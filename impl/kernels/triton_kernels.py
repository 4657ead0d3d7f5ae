"""The kernels in Triton, for CUDA; on the CPU only under its interpreter (``TRITON_INTERPRET=1``), for tests.

Shapes and meaning are those of `kvspec.impl.kernels.reference`. Every index is widened to 64 bits *before* it is
multiplied: ``id * block_size * width`` passes 2**31 on pools of ordinary size.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvspec.impl.errors import InvalidRangeError, KernelUnavailableError

# Triton decides this when the kernels below are defined, so changing the variable later has no effect.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

_TOKENS = 128
"""Tokens of one program of the slot kernel."""
_TILE = 1024
"""Cells of one program of the other kernels."""


@triton.jit
def _slots_of(tables, starts, positions, tokens, live, block_size):  # type: ignore[no-untyped-def]
    """Slots of some tokens, int64; -1 for those without a position."""
    position = tl.load(positions + tokens, mask=live, other=-1).to(tl.int64)
    valid = live & (position >= 0)
    safe = tl.where(valid, position, 0)
    block = safe // block_size
    start = tl.load(starts + tokens, mask=valid, other=0).to(tl.int64)
    block_id = tl.load(tables + start + block, mask=valid, other=0).to(tl.int64)
    return tl.where(valid, block_id * block_size + (safe - block * block_size), -1)


@triton.jit  # type: ignore[untyped-decorator]
def _slot_ids_kernel(tables, starts, positions, slots, num_tokens, block_size, TOKENS: tl.constexpr):  # type: ignore[no-untyped-def]
    tokens = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    live = tokens < num_tokens
    tl.store(slots + tokens, _slots_of(tables, starts, positions, tokens, live, block_size), mask=live)


@triton.jit  # type: ignore[untyped-decorator]
def _write_kernel(  # type: ignore[no-untyped-def]
    cells, slots, values, num_tokens, num_slots, width, block_size, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    plane = tl.program_id(2).to(tl.int64)
    slot = tl.load(slots + rows, mask=rows < num_tokens, other=-1).to(tl.int64)
    # Slots below block_size are -1 or padding.
    mask = ((slot >= block_size) & (slot < num_slots))[:, None] & (columns < width)[None, :]
    value = tl.load(values + (plane * num_tokens + rows)[:, None] * width + columns[None, :], mask=mask)
    tl.store(cells + (plane * num_slots + slot)[:, None] * width + columns[None, :], value, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _gather_kernel(  # type: ignore[no-untyped-def]
    cells,
    tables,
    starts,
    positions,
    out,
    num_tokens,
    num_slots,
    width,
    block_size,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    plane = tl.program_id(2).to(tl.int64)
    slot = _slots_of(tables, starts, positions, rows, rows < num_tokens, block_size)
    inside = (columns < width)[None, :]
    found = ((slot >= 0) & (slot < num_slots))[:, None] & inside
    value = tl.load(cells + (plane * num_slots + slot)[:, None] * width + columns[None, :], mask=found, other=0)
    target = out + (plane * num_tokens + rows)[:, None] * width + columns[None, :]
    tl.store(target, value, mask=(rows < num_tokens)[:, None] & inside)


@triton.jit  # type: ignore[untyped-decorator]
def _copy_kernel(cells, sources, targets, plane_size, block_cells, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    pair = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    plane = tl.program_id(2).to(tl.int64)
    mask = offsets < block_cells
    source = plane * plane_size + tl.load(sources + pair).to(tl.int64) * block_cells
    target = plane * plane_size + tl.load(targets + pair).to(tl.int64) * block_cells
    tl.store(cells + target + offsets, tl.load(cells + source + offsets, mask=mask), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _fill_kernel(cells, slots, value, num_slots, width, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    slot = tl.load(slots + tl.program_id(0).to(tl.int64)).to(tl.int64)
    offsets = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    plane = tl.program_id(2).to(tl.int64)
    end = tl.where((slot > 0) & (slot < num_slots), width, 0)
    tile = tl.zeros((TILE,), dtype=tl.float32) + value
    tl.store(cells + (plane * num_slots + slot) * width + offsets, tile, mask=offsets < end)


def slot_ids(tables: Tensor, starts: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Slot of each token; see the reference."""
    count = positions.numel()
    slots = torch.empty(count, dtype=torch.int64, device=positions.device)
    if count:
        with _on(positions):
            grid = (triton.cdiv(count, _TOKENS),)
            _slot_ids_kernel[grid](tables, starts, positions, slots, count, block_size, TOKENS=_TOKENS)
    return slots


def write_slots(cells: Tensor, slots: Tensor, values: Tensor, block_size: int) -> None:
    """Store values at their slots, except -1 and padding; see the reference. Slots outside the pool are skipped."""
    planes, num_slots, width = _shape(cells, "write_slots")
    count = slots.numel()
    if not count:
        return
    rows, columns = _tile(width)
    grid = (triton.cdiv(count, rows), triton.cdiv(width, columns), planes)
    with _on(cells):
        _write_kernel[grid](
            cells, slots, values.contiguous(), count, num_slots, width, block_size, ROWS=rows, COLUMNS=columns
        )


def gather(cells: Tensor, tables: Tensor, starts: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Values of the tokens, through the tables; zeros for those without a position; see the reference."""
    planes, num_slots, width = _shape(cells, "gather")
    count = positions.numel()
    out = torch.empty((planes, count, width), dtype=cells.dtype, device=cells.device)
    if not count:
        return out
    rows, columns = _tile(width)
    grid = (triton.cdiv(count, rows), triton.cdiv(width, columns), planes)
    with _on(cells):
        _gather_kernel[grid](
            cells,
            tables,
            starts,
            positions,
            out,
            count,
            num_slots,
            width,
            block_size,
            ROWS=rows,
            COLUMNS=columns,
        )
    return out


def copy_blocks(cells: Tensor, sources: Tensor, targets: Tensor, block_size: int) -> None:
    """Copy whole blocks; see the reference."""
    planes, num_slots, width = _shape(cells, "copy_blocks")
    if not sources.numel():
        return
    block_cells = block_size * width
    tile = min(_TILE, triton.next_power_of_2(block_cells))
    grid = (sources.numel(), triton.cdiv(block_cells, tile), planes)
    with _on(cells):
        _copy_kernel[grid](cells, sources, targets, num_slots * width, block_cells, TILE=tile)


def fill_slots(cells: Tensor, slots: Tensor, value: float) -> None:
    """Store one value in slots, except padding; see the reference. Slots outside the pool are skipped."""
    planes, num_slots, width = _shape(cells, "fill_slots")
    if not slots.numel():
        return
    tile = min(_TILE, triton.next_power_of_2(width))
    with _on(cells):
        _fill_kernel[(slots.numel(), triton.cdiv(width, tile), planes)](
            cells, slots, value, num_slots, width, TILE=tile
        )


def _tile(width: int) -> tuple[int, int]:
    """Rows and columns of one program: whole rows where they fit."""
    columns = min(_TILE, triton.next_power_of_2(width))
    return max(_TILE // columns, 1), columns


def _shape(cells: Tensor, where: str) -> tuple[int, int, int]:
    if cells.dim() != 3 or not cells.is_contiguous():
        what = f"cells of shape {tuple(cells.shape)} and strides {cells.stride()}"
        raise InvalidRangeError(f"triton_kernels.{where}", what, "contiguous [planes, slots, width]")
    planes, num_slots, width = cells.shape
    return planes, num_slots, width


def _on(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes the device of the tensor the current one. Raises `KernelUnavailableError` if it is not a GPU."""
    if not tensor.is_cuda and not INTERPRETED:
        expected = "a CUDA tensor, or TRITON_INTERPRET=1 set before the first import"
        raise KernelUnavailableError("triton_kernels", f"a tensor on {tensor.device}", expected)
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
