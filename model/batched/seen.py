"""All rows that were seen, each once and with a number: exact, whatever the hash function does.

A hash only says where to look. There the number of a row is found, and the two rows are compared in full; if they
differ, the next place is looked at. Many rows are looked up at once: in each round every open row looks at one place,
and of several that want the same empty place the first one gets it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from kvspec.model.batched.storage import Storage

_MULTIPLIERS: Final = (-7046029254386353131, -4417276706812531889, 1609587929392839161, -8796714831421723037)
Hash = Callable[[Tensor], Tensor]


def mixed(rows: Tensor) -> Tensor:
    """A hash of [n, words]: int64, not negative."""
    found = rows[:, 0] * _MULTIPLIERS[0]
    for i in range(1, rows.shape[1]):
        found ^= (found >> 29) & 0x7FFFFFFFF
        found += rows[:, i]
        found *= _MULTIPLIERS[i % len(_MULTIPLIERS)]
    found ^= (found >> 32) & 0xFFFFFFFF
    found *= _MULTIPLIERS[1]
    return (found >> 29) & 0x7FFFFFFFF


class Seen:
    """The rows, numbered in the order in which they were first added.

    Args:
        storage: where the rows are kept.
        device: where look-ups run.
        hash_of: another hash function.
    """

    def __init__(self, storage: Storage, device: torch.device, hash_of: Hash = mixed) -> None:
        self.rows, self.device, self.hash_of = storage, device, hash_of
        self._slots = self._empty(1 << 14)

    def __len__(self) -> int:
        return len(self.rows)

    def _empty(self, size: int) -> Tensor:
        return torch.full((size,), -1, dtype=torch.int32, device=self.device)

    def add(self, rows: Tensor) -> Tensor:
        """Add the rows that are new; where in ``rows`` those stand, in the order of their numbers."""
        self._grow(len(self) + len(rows))
        places = self.hash_of(rows) & (len(self._slots) - 1)
        new: list[Tensor] = []
        # Rows that have not found their place yet: where they stand in `rows`, and the place to look at.
        open_rows = torch.arange(len(rows), device=self.device)
        while len(open_rows):
            found = self._slots.index_select(0, places)
            wanting = (found < 0).nonzero().view(-1)
            if len(wanting):
                first = self._claim(places.index_select(0, wanting))
                new.append(open_rows.index_select(0, wanting.index_select(0, first)))
                self.rows.append(rows.index_select(0, new[-1]))
                found = self._slots.index_select(0, places)
            other = self._differs(rows, open_rows, found)
            open_rows = open_rows.index_select(0, other)
            places = (places.index_select(0, other) + 1) & (len(self._slots) - 1)
        return torch.cat(new) if new else open_rows

    def _claim(self, places: Tensor) -> Tensor:
        """Give each empty place to the first of those that want it, numbered in order; which those are."""
        order = torch.arange(len(places), dtype=torch.int32, device=self.device)
        self._slots.index_fill_(0, places, torch.iinfo(torch.int32).max)
        self._slots.scatter_reduce_(0, places, order, "amin")
        first = (self._slots.index_select(0, places) == order).nonzero().view(-1)
        numbers = torch.arange(len(self), len(self) + len(first), dtype=torch.int32, device=self.device)
        self._slots.index_copy_(0, places.index_select(0, first), numbers)
        return first

    def _differs(self, rows: Tensor, open_rows: Tensor, found: Tensor) -> Tensor:
        """Which of the open rows are not the row with the number that they found."""
        there = self.rows.take(found)
        mine = rows if len(open_rows) == len(rows) else rows.index_select(0, open_rows)
        return (there != mine).any(1).nonzero().view(-1)

    def _grow(self, count: int) -> None:
        """Keep at least half of the places empty."""
        if 2 * count <= len(self._slots):
            return
        size = len(self._slots)
        while 2 * count > size:
            size *= 2
        self._slots = self._empty(size)
        step = 1 << 20
        for start in range(0, len(self), step):
            self._place(start, min(start + step, len(self)))

    def _place(self, start: int, end: int) -> None:
        """Find a place for rows that are known to differ from each other."""
        numbers = torch.arange(start, end, dtype=torch.int32, device=self.device)
        places = self.hash_of(self.rows.slice(start, end)) & (len(self._slots) - 1)
        while len(numbers):
            empty = (self._slots.index_select(0, places) < 0).nonzero().view(-1)
            free = places.index_select(0, empty)
            self._slots.index_copy_(0, free, numbers.index_select(0, empty))
            left = (self._slots.index_select(0, places) != numbers).nonzero().view(-1)
            numbers = numbers.index_select(0, left)
            places = (places.index_select(0, left) + 1) & (len(self._slots) - 1)
