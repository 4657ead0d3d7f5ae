"""Device kernels: slot ids from block tables, write by slot, gather by table, copy of blocks, fill of slots.

`reference` is plain torch, `triton_kernels` is Triton; both have the same five functions. `backend_for` chooses. A
recurrent state is a block of size 1 to them: its slot is its id.
"""

from __future__ import annotations

import importlib
from typing import Protocol, cast

import torch
from torch import Tensor

from kvspec.impl.errors import KernelUnavailableError


class Backend(Protocol):
    """The five kernels; shapes are in `kvspec.impl.kernels.reference`."""

    def slot_ids(self, tables: Tensor, starts: Tensor, positions: Tensor, block_size: int) -> Tensor:
        """Slot of each token."""

    def write_slots(self, cells: Tensor, slots: Tensor, values: Tensor, block_size: int) -> None:
        """Store values at their slots."""

    def gather(self, cells: Tensor, tables: Tensor, starts: Tensor, positions: Tensor, block_size: int) -> Tensor:
        """Values of the tokens, through the tables."""

    def copy_blocks(self, cells: Tensor, sources: Tensor, targets: Tensor, block_size: int) -> None:
        """Copy whole blocks."""

    def fill_slots(self, cells: Tensor, slots: Tensor, value: float) -> None:
        """Fill slots with one value."""


_MODULES = {"torch": "reference", "triton": "triton_kernels"}


def backend(name: str) -> Backend:
    """The kernels by name: ``torch`` or ``triton``.

    Raises:
        KernelUnavailableError: there is no such backend, or its library is not installed.
    """
    if name not in _MODULES:
        raise KernelUnavailableError("kernels.backend", f"backend {name!r}", " or ".join(sorted(_MODULES)))
    try:
        return cast(Backend, importlib.import_module(f"{__name__}.{_MODULES[name]}"))
    except ImportError as error:
        expected = "an installed triton (pip install triton), or the torch backend"
        raise KernelUnavailableError("kernels.backend", f"{name} cannot be imported ({error})", expected) from error


def backend_for(device: torch.device) -> Backend:
    """Torch on the CPU, Triton on CUDA. Raises `KernelUnavailableError` if Triton is needed and missing."""
    return backend("triton" if device.type == "cuda" else "torch")
