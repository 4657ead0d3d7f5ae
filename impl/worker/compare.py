"""How far the outputs of two runs are apart."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Final

import torch
from torch import Tensor

TOLERANCE: Final = 2e-4
"""Logits of correct runs differ by less (see docs/worker.md for what was measured)."""


def differences(found: Items[Tensor], wanted: Items[Tensor]) -> list[float]:
    """For each request, the largest difference of two logits of it; infinite where one is no number.

    Raises:
        ValueError: the runs are not of the same requests.
    """
    if [part.shape for part in found] != [part.shape for part in wanted]:
        raise ValueError("logits of different shapes, expected runs of the same requests")
    return [_difference(one, other) for one, other in zip(found, wanted, strict=True)]


def _difference(found: Tensor, wanted: Tensor) -> float:
    apart = (found.double() - wanted.double()).abs()
    return float(torch.where(apart.isnan(), torch.inf, apart).max())
