"""Rows that grow: in the memory of the device up to a budget, beyond it in host memory or in a temporary file."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor


class Storage:
    """A growing table of [n, width] values.

    Args:
        width: values in a row.
        device: where rows come from and are wanted.
        memory: bytes; a table that is larger leaves the device: to host memory or, where that is the device, to a
            temporary file.
    """

    def __init__(self, width: int, device: torch.device, memory: int, dtype: torch.dtype = torch.int64) -> None:
        self.width, self.device, self.memory, self.dtype = width, device, memory, dtype
        self.outside = False
        self._file: Any = None
        self._count = 0
        self._table = torch.empty((0, width), dtype=dtype, device=device)

    def __len__(self) -> int:
        return self._count

    def append(self, rows: Tensor) -> None:
        """Add rows at the end."""
        end = self._count + len(rows)
        if end > len(self._table):
            self._grow(max(end, 2 * len(self._table), 1024))
        self._table[self._count : end] = rows if not self.outside else rows.to(self._table.device)
        self._count = end

    def take(self, numbers: Tensor) -> Tensor:
        """The rows of these numbers."""
        return self._there(self._table.index_select(0, numbers if not self.outside else self._near(numbers)))

    def slice(self, start: int, end: int) -> Tensor:
        """The rows from one number up to another."""
        return self._there(self._table[start:end])

    def _near(self, numbers: Tensor) -> Tensor:
        return numbers.to(self._table.device)

    def _there(self, rows: Tensor) -> Tensor:
        return rows.to(self.device) if self.outside else rows

    def _grow(self, capacity: int) -> None:
        size = capacity * self.width * self.dtype.itemsize
        if size <= self.memory:
            larger = torch.empty((capacity, self.width), dtype=self.dtype, device=self.device)
        elif self.device.type != "cpu":
            larger = torch.empty((capacity, self.width), dtype=self.dtype)
            self.outside = True
        else:
            larger = self._mapped(capacity)
            self.outside = True
        larger[: self._count] = self._table[: self._count]
        self._table = larger

    def _mapped(self, capacity: int) -> Tensor:
        """A table in a file that nobody else sees and that is gone with this object."""
        if self._file is None:
            self._file = tempfile.NamedTemporaryFile(prefix="kvspec-states-")  # noqa: SIM115
        values = capacity * self.width
        self._file.truncate(values * self.dtype.itemsize)
        flat = torch.from_file(self._file.name, shared=True, size=values, dtype=self.dtype)
        return flat.view(capacity, self.width)
