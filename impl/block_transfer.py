"""Blocks on their way between tiers (seed 9.4): what is copied, and who holds both ends until the copy has ended.

A transfer is planned by the scheduler, started and ended by whoever copies. From its plan to its end it owns a handle
of its source and one of its target, so that neither can be handed out, evicted or overwritten meanwhile, whatever the
sequences and caches do that it was planned for.
"""

from __future__ import annotations

from array import array
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from kvspec.impl.prefix_cache import PrefixKeys

if TYPE_CHECKING:
    from kvspec.impl.block import Block
    from kvspec.impl.sequence import Sequence


class Direction(StrEnum):
    """From where to where."""

    LOAD = "load"
    """Host to device (H2D)."""
    OFFLOAD = "offload"
    """Device to host (D2G)."""


class Stage(StrEnum):
    """How far a transfer has come; it only goes on in this order."""

    PLANNED = "planned"
    STARTED = "started"
    ENDED = "ended"


class Prefix(NamedTuple):
    """Known tokens with their keys: what the contents of leading blocks are known by."""

    tokens: array[int]
    keys: PrefixKeys


class BlockTransfer:
    """One block, in all layers.

    Attributes:
        direction: from which tier to which.
        rank: the rank of both blocks.
        device, host: handles of the two blocks; released when the transfer has ended.
        prefix: the tokens that the block belongs to.
        index: its logical index in them.
        sequence: of a load, who waits for it; None if nobody does any more.
        stale: of an offload, that keys were dropped since it was planned: what it copies is not to be found.
        stage: how far it has come.
    """

    __slots__ = ("device", "direction", "host", "index", "prefix", "rank", "sequence", "stage", "stale")

    def __init__(
        self,
        direction: Direction,
        rank: int,
        *,
        device: Block,
        host: Block,
        prefix: Prefix,
        index: int,
        sequence: Sequence | None = None,
    ) -> None:
        self.direction = direction
        self.rank = rank
        self.device = device
        self.host = host
        self.prefix = prefix
        self.index = index
        self.sequence = sequence
        self.stale = False
        self.stage = Stage.PLANNED

    @property
    def key(self) -> bytes:
        """The key of the block."""
        return self.prefix.keys.chain[self.index]

    @property
    def source_id(self) -> int:
        """The id that is read, in its tier."""
        return self.host.id if self.direction is Direction.LOAD else self.device.id

    @property
    def target_id(self) -> int:
        """The id that is written, in its tier."""
        return self.device.id if self.direction is Direction.LOAD else self.host.id

    def __repr__(self) -> str:
        return f"BlockTransfer({self.direction} of block {self.index}, rank {self.rank}, {self.stage})"


class Prefetch:
    """Leading blocks of some tokens on their way from a store to the host (seed 5.1, kvcache_store).

    That nothing is planned yet is not the same as that nothing is to come: it has ended only when it was told so.

    Attributes:
        rank: the rank whose host blocks they get.
        prefix: the tokens, and their keys as far as they were planned.
        first: logical index of the first block that comes; those before are on the host already.
        blocks: handles of the host blocks that are written, in logical order; None before they are planned.
        stale: keys were dropped since it began: what comes is not to be found.
        ended: it was told how many have come.
    """

    __slots__ = ("blocks", "ended", "first", "prefix", "rank", "stale")

    def __init__(self, rank: int, prefix: Prefix) -> None:
        self.rank = rank
        self.prefix = prefix
        self.first = 0
        self.blocks: list[Block] | None = None
        self.stale = False
        self.ended = False
