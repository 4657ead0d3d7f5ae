"""What there is of one rank: its blocks, who holds them, and its keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, Protocol, TypeVar

from kvspec.model.world import Chain

K = TypeVar("K")
V = TypeVar("V")

Counts = dict[int, int]


class Part(Protocol):
    """The blocks and keys of one rank; a manager without ranks is one part."""

    @property
    def free(self) -> Set[int]:
        """Blocks that nobody holds."""

    @property
    def holders(self) -> Mapping[int, Set[Any]]:
        """Seats of each block that somebody holds."""

    @property
    def cached(self) -> Set[Chain]:
        """Keys that can be matched."""

    @property
    def entry(self) -> Mapping[Chain, int]:
        """The block of each of these keys."""

    @property
    def used(self) -> int:
        """Blocks held by at least one sequence."""

    @property
    def reclaimable(self) -> int:
        """Blocks that only the cache holds: evicting their keys would free them."""


class Users:
    """How many sequences, and how many outside holders, have each block."""

    def __init__(self) -> None:
        self.sequences: Counts = {}
        self.outside: Counts = {}

    def clear(self) -> None:
        """Nobody has anything."""
        self.sequences.clear()
        self.outside.clear()

    @property
    def used(self) -> int:
        """Blocks that sequences have."""
        return len(self.sequences)

    @property
    def busy(self) -> int:
        """Blocks that sequences or others have."""
        return len(self.sequences) + sum(1 for b in self.outside if b not in self.sequences)


def more(counts: Counts, block: int) -> None:
    """One more has the block."""
    counts[block] = counts.get(block, 0) + 1


def less(counts: Counts, block: int) -> None:
    """One less has the block."""
    if counts[block] == 1:
        del counts[block]
    else:
        counts[block] -= 1


class Under(Mapping[K, V]):
    """The part of a map that lies under one rank: of ``{(rank, key): value}`` what belongs to the rank."""

    __slots__ = ("_rank", "_whole")

    def __init__(self, whole: Mapping[tuple[int, K], V], rank: int) -> None:
        self._whole, self._rank = whole, rank

    def __getitem__(self, key: K) -> V:
        return self._whole[self._rank, key]

    def __iter__(self) -> Iterator[K]:
        return (key for rank, key in self._whole if rank == self._rank)

    def __len__(self) -> int:
        return sum(1 for _ in self)
