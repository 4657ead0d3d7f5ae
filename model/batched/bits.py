"""Rows and planes: the same table of bits, by state or by statement.

A batch of ``64 * width`` rows of int64 words becomes one plane of ``width`` words for each bit of a row. Row
``k * width + g`` is bit ``k`` of word ``g`` of each plane, so that all six stages of the transposition run over
contiguous memory.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

WORD: Final = 64


def signed(word: int) -> int:
    """A pattern of 64 bits as the int64 that has it."""
    return word - (1 << 64) if word >> 63 else word


def _low_halves(step: int) -> int:
    return signed(sum(((1 << step) - 1) << start for start in range(0, WORD, 2 * step)))


_STAGES: Final = tuple((step, _low_halves(step)) for step in (32, 16, 8, 4, 2, 1))
SINGLE_BITS: Final = tuple(signed(1 << i) for i in range(WORD))


def transpose(block: Tensor) -> Tensor:
    """The 64 words of each column as the 64 bits of each word, and back; ``block``, [64, width], is overwritten."""
    for step, mask in _STAGES:
        pairs = block.view(WORD // (2 * step), 2, -1)
        low, high = pairs[:, 0], pairs[:, 1]
        change = low >> step
        change ^= high
        change &= mask
        high ^= change
        change <<= step
        low ^= change
    return block


def rows_of(plane: Tensor) -> Tensor:
    """Numbers of the rows for which a plane holds, ascending."""
    bits = torch.tensor(SINGLE_BITS, device=plane.device)
    return (plane.unsqueeze(0) & bits.unsqueeze(1)).view(-1).nonzero().view(-1)


def full_plane(rows: int, width: int, device: torch.device) -> Tensor:
    """The plane that holds for the first ``rows`` rows of a batch."""
    if rows == WORD * width:
        return torch.full((width,), -1, dtype=torch.int64, device=device)
    result = torch.zeros(width, dtype=torch.int64, device=device)
    for k in range(WORD):
        held = min(max(rows - k * width, 0), width)
        if not held:
            break
        result[:held] |= SINGLE_BITS[k]
    return result


def population(planes: Tensor) -> Tensor:
    """How many bits are set in each row of [n, width] words."""
    x = planes - ((planes >> 1) & 0x5555555555555555)
    x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0F
    x = x + (x >> 8)
    x = x + (x >> 16)
    x = (x + (x >> 32)) & 0x7F
    return x.sum(1)
