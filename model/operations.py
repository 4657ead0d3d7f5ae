"""What a caller of a manager can ask for, as data.

`Operation` structs are the common currency of the generator, the scenario language and the acceptor. What each means in
events of the spec says the executable model (`kvspec.model.executable`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from kvspec.model.conformance import Context


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag=_tag):
    """One call of a target."""


class Start(Operation, frozen=True):
    """A new sequence with its first tokens."""

    seq: str
    tokens: tuple[int, ...]
    context: Context = Context()


class AllocateShared(Operation, frozen=True):
    """Match the longest published prefix (seed 4.2, allocate_shared)."""

    seq: str


class Allocate(Operation, frozen=True):
    """Make room for the first num_tokens tokens."""

    seq: str
    num_tokens: int


class Append(Operation, frozen=True):
    """More known tokens."""

    seq: str
    tokens: tuple[int, ...]


class Write(Operation, frozen=True):
    """Compute the next num_tokens tokens, in one step with those of other sequences."""

    seq: str
    num_tokens: int
    more: tuple[tuple[str, int], ...] = ()

    @property
    def batch(self) -> tuple[tuple[str, int], ...]:
        """All sequences of the step, with the tokens of each."""
        return ((self.seq, self.num_tokens), *self.more)

    @classmethod
    def of(cls, batch: Iterable[tuple[str, int]]) -> Write:
        """The step that writes this batch; there is at least one sequence in it."""
        (seq, num_tokens), *more = batch
        return cls(seq, num_tokens, tuple(more))


class Cache(Operation, frozen=True):
    """Publish full computed blocks."""

    seq: str


class Deallocate(Operation, frozen=True):
    """Finish a sequence: publish and release."""

    seq: str


class Preempt(Operation, frozen=True):
    """Release everything, keep the tokens."""

    seq: str


class Abort(Operation, frozen=True):
    """Release everything, forget the sequence."""

    seq: str


class Fork(Operation, frozen=True):
    """A child that shares the parent's table."""

    parent: str
    child: str


class Truncate(Operation, frozen=True):
    """Keep the first num_tokens tokens."""

    seq: str
    num_tokens: int


class Evict(Operation, frozen=True):
    """Drop up to num_blocks idle entries, of one rank in a pool."""

    num_blocks: int
    rank: int = 0


class Reset(Operation, frozen=True):
    """Drop every key."""


class Hold(Operation, frozen=True):
    """An outside holder of the block at a place of a table, under a name."""

    seq: str
    index: int
    name: str


class Release(Operation, frozen=True):
    """Give an outside handle back; an unknown or released name makes a call that must be an error."""

    name: str


class Save(Operation, frozen=True):
    """A checkpoint of the computed tokens, begun and done at once (pools with linear state)."""

    seq: str


class SaveStart(Operation, frozen=True):
    """A slot is reserved for a checkpoint, and the copy begins."""

    seq: str


class SaveFinish(Operation, frozen=True):
    """The copy to the checkpoint is done, or has failed."""

    seq: str
    ok: bool = True


class Restore(Operation, frozen=True):
    """The pinned checkpoint is copied to the live slot, begun and done at once."""

    seq: str


class RestoreStart(Operation, frozen=True):
    """The copy of the pinned checkpoint to the live slot begins."""

    seq: str


class RestoreFinish(Operation, frozen=True):
    """The copy to the live slot is done, or has failed."""

    seq: str
    ok: bool = True


class Accept(Operation, frozen=True):
    """The first num_tokens computed tokens are there to stay (composites)."""

    seq: str
    num_tokens: int


class StartTransfers(Operation, frozen=True):
    """All planned copies between the tiers begin (host tier)."""


class TransferFinish(Operation, frozen=True):
    """A copy between the tiers is complete, or has failed.

    Attributes:
        at: which one, counted from 0 in the order of their plans among all that have not ended, of all ranks; one that
            there is not makes a call that must be an error.
        ok: whether it is complete.
    """

    at: int = 0
    ok: bool = True


class Sleep(Operation, frozen=True):
    """The device memory is given up (host tier)."""


class Wake(Operation, frozen=True):
    """There is device memory again (host tier)."""


class BeginPrefetch(Operation, frozen=True):
    """A store is asked for leading blocks of these tokens, under a name (host tier)."""

    name: str
    tokens: tuple[int, ...]
    context: Context = Context()
    rank: int = 0


class PlanPrefetch(Operation, frozen=True):
    """The store has so many leading blocks."""

    name: str
    num_blocks: int


class FinishPrefetch(Operation, frozen=True):
    """So many of the planned blocks have come, the first ones, and no more will."""

    name: str
    num_arrived: int


class Reclaim(Operation, frozen=True):
    """Unmap up to num_pages idle pages (pages mapped on demand)."""

    num_pages: int


class FailMappings(Operation, frozen=True):
    """Whether each of the next attempts to map a page fails (pages mapped on demand)."""

    failing: tuple[bool, ...]


class Submit(Operation, frozen=True):
    """A request that will generate these tokens waits to be scheduled (engines)."""

    seq: str
    tokens: tuple[int, ...]
    output: tuple[int, ...]
    context: Context = Context()
    priority: int = 0


class Step(Operation, frozen=True):
    """So many steps of the engine, at least one (engines).

    Raises:
        ValueError: none.
    """

    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count: {self.count}, expected at least 1")


class Close(Operation, frozen=True):
    """End of the manager's life."""


AnyOperation = (
    Start | AllocateShared | Allocate | Append | Write | Cache | Deallocate | Preempt | Abort | Fork | Truncate
    | Evict | Reset | Hold | Release | Save | SaveStart | SaveFinish | Restore | RestoreStart | RestoreFinish
    | Accept | StartTransfers | TransferFinish | Sleep | Wake | BeginPrefetch | PlanPrefetch | FinishPrefetch
    | Reclaim | FailMappings | Submit | Step | Close
)  # fmt: skip
"""Every operation; msgspec encodes and decodes it by its tag."""
