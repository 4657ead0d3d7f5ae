"""What calls take and give: contents of cells, contexts, changes of a cache, copies between tiers, states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

Tags = npt.NDArray[np.int64]
"""Content of device cells, one tag per token: a number below 2**48 that stands for the whole prefix up to the token."""

_T = TypeVar("_T")


class Listed(set[_T]):
    """A set that a target gave as a list.

    Attributes:
        twice: what was in the list more than once.
    """

    def __init__(self, items: Sequence[_T]) -> None:
        super().__init__(items)
        self.twice = [] if len(self) == len(items) else [item for at, item in enumerate(items) if item in items[:at]]


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything beside the tokens that decides what a block contains (spec chapter `keys`)."""

    adapter: str | None = None
    adapter_version: int = 0
    salt: str | None = None
    images: tuple[str, ...] = ()


class CacheEvent(msgspec.Struct, frozen=True):
    """One change of the prefix cache: a key began or ceased to be matchable."""

    kind: Literal["stored", "removed"]
    key: bytes
    block_id: int


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of one block between the tiers of a rank.

    Attributes:
        number: tells it from all others of the target, of all ranks, and stays as it is; any will do.
        direction: ``load``, from the host to the device (H2D), or ``offload``, from the device to the host (D2H).
        rank: of which rank.
        device_block, host_block: its ends.
        seq, index: for a load, the sequence and the place of its table; for an offload, the place at which the block
            stood, and no sequence.
        started: the copy has begun.
    """

    number: int
    direction: Literal["load", "offload"]
    rank: int
    device_block: int
    host_block: int
    index: int
    seq: str | None = None
    started: bool = False


STATE_BITS: Final = 48
_STATE_FACTOR: Final = 0x5DEECE66D


def advance(state: int, tags: Tags) -> int:
    """The state behind more tokens: for each tag t in turn ``state = (state * a + t) mod 2**48``, with an odd factor a.

    It stands for a recurrent state: it depends on every token and on their order, however they are cut into steps, and
    going over a token twice shows.
    """
    if not len(tags):
        return state
    powers = np.full(len(tags) + 1, _STATE_FACTOR, dtype=np.uint64)
    powers[0] = 1
    powers = np.multiply.accumulate(powers)  # wraps at 2**64, of which 2**48 is a divisor
    moved = np.uint64(state) * powers[-1:] + np.sum(tags.astype(np.uint64) * powers[-2::-1], dtype=np.uint64)
    return int(moved[0]) & ((1 << STATE_BITS) - 1)
