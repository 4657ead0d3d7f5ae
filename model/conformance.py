"""The target protocol: what a KV-cache manager must offer so that it can be driven and judged.

A *target* wraps one manager. The acceptor calls its operations in the words of the seed (sections 2.1, 2.2 and 8),
looks at what the target can show, and accepts every behaviour that the specification allows: any free id, any legal
victim, any moment of eviction. Three outcomes are told apart:

- **done**: the call returns its result;
- **refused**: the pool has no room. ``allocate`` returns ``False`` and leaves everything as it was;
- **error**: the call itself makes no sense (unknown sequence, double release, negative length). It raises
  `MisuseError` and leaves everything as it was.

What a target cannot show is left out of its `Target.capabilities` and reported as *not observed*, never as passed;
`METHODS_OF` says which methods a capability needs. Any exception but `MisuseError` is a fault of the target.

The commands find a target as ``package.module:Class``, from the current folder on. ``docs/conform.md`` has an example.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

Tags = npt.NDArray[np.int64]
"""Content of device cells, one tag per token: a number below 2**48 that stands for the whole prefix up to the token."""


class MisuseError(Exception):
    """A call that no correct caller makes; the target refused it and kept its state."""


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size and options of one pool.

    Attributes:
        num_blocks: physical blocks, block 0 (padding) included; at least 2.
        block_size: tokens per block; at least 1.
        enable_prefix_cache: keep published blocks for later requests (seed 4).
        sanitizer: poison freed blocks, guard the padding block, report lost handles.

    Raises:
        ValueError: a size is out of range.
    """

    num_blocks: int
    block_size: int
    enable_prefix_cache: bool = True
    sanitizer: bool = False

    def __post_init__(self) -> None:
        if self.num_blocks < 2:
            raise ValueError(f"num_blocks: {self.num_blocks}, expected at least 2 (block 0 is padding)")
        if self.block_size < 1:
            raise ValueError(f"block_size: {self.block_size}, expected at least 1")


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything beside the tokens that decides what a block contains (spec chapter `keys`)."""

    adapter: str | None = None
    adapter_version: int = 0
    salt: str | None = None
    images: tuple[str, ...] = ()


class Capability(StrEnum):
    """What a target can show or take."""

    FREE_IDS = "free_ids"
    FREE_COUNT = "free_count"
    USED_COUNT = "used_count"
    REF_COUNTS = "ref_counts"
    CACHED_KEYS = "cached_keys"
    EVENTS = "events"
    CONTENTS = "contents"
    FORK = "fork"
    TRUNCATE = "truncate"
    HOLD = "hold"


class CacheEvent(msgspec.Struct, frozen=True):
    """One change of the prefix cache: a key began or ceased to be matchable."""

    kind: Literal["stored", "removed"]
    key: bytes
    block_id: int


@runtime_checkable
class Target(Protocol):
    """One manager under test; constructed with a `PoolConfig`.

    Every operation that names an unknown sequence is an error, and so is every operation after `close`.

    A sequence has tokens (known), a block table (room) and a number of computed tokens (written to the device);
    computed <= room, and computed <= known. Sequence names are chosen by the caller.
    """

    capabilities: frozenset[Capability]
    """What it shows and takes; the same for every pool."""

    hit_limit: Literal["all", "all_but_one"]
    """The longest permitted hit: all tokens, or all but the last (it is recomputed for its logits)."""

    # -- operations -----------------------------------------------------------------------------------------------
    def start(self, seq: str, tokens: Sequence[int], context: Context) -> None:
        """Create a sequence with its first tokens; takes no block. Error if the name is in use or a token is
        negative."""

    def allocate_shared(self, seq: str) -> int:
        """Match the longest published prefix and mount its blocks; the number of tokens hit, a multiple of the
        block size. Error unless the table is empty."""

    def allocate(self, seq: str, num_tokens: int) -> bool:
        """Make room so that tokens [computed, num_tokens) can be written: grow the table, evict idle cached blocks,
        copy a shared block that would be written (copy-on-write). All or nothing; False if refused.
        Error if num_tokens is above the number of known tokens or negative."""

    def append(self, seq: str, tokens: Sequence[int]) -> None:
        """More known tokens (sampled, or drafted); takes no block. Error if a token is negative."""

    def write(self, batch: Sequence[tuple[str, Tags]]) -> None:
        """One forward step: for each named sequence write the contents of its next len(tags) tokens and advance
        computed; all of the batch or, with an error, nothing. Error if there is no room, if more tokens are written
        than known, if a sequence is named twice, or if a block would be written that others hold and no `allocate` was
        granted for since they came (a target may do such a write where it spoils nothing)."""

    def read(self, seq: str, start: int, stop: int) -> Tags:
        """Contents of the computed tokens [start, stop), gathered through the block table; also of a range that
        begins or ends within a block."""

    def cache(self, seq: str) -> None:
        """Publish all full computed blocks under their keys (seed 4.2)."""

    def deallocate(self, seq: str) -> None:
        """Finish: publish, give all handles back, forget the sequence (seed 8)."""

    def preempt(self, seq: str) -> None:
        """Give all handles back without publishing; tokens stay known, computed becomes 0."""

    def abort(self, seq: str) -> None:
        """Give all handles back without publishing and forget the sequence."""

    def fork(self, parent: str, child: str) -> None:
        """A new sequence with the parent's tokens, context, computed count and, shared, its whole table. Error if the
        child's name is in use."""

    def truncate(self, seq: str, num_tokens: int) -> None:
        """Reject draft tokens: keep the first num_tokens known tokens; computed falls to at most that; blocks wholly
        behind it are given back. Error if num_tokens is above the number of known tokens or negative."""

    def evict(self, num_blocks: int) -> int:
        """Drop num_blocks idle entries of the prefix cache, or all if there are fewer; the number of blocks that became
        free. Error if num_blocks is negative."""

    def reset(self) -> bool:
        """Drop every key. Blocks in use stay with their sequences. False, with nothing changed, if the target refuses
        while a sequence exists or an outside holder has a block."""

    def hold(self, block_id: int) -> int:
        """One more outside holder of a live block (a pending store, a transfer); an opaque handle."""

    def release(self, handle: int) -> None:
        """Give such a handle back; error for one that is unknown or was given back before."""

    def close(self) -> None:
        """End of life; every later operation is an error."""

    # -- observations ---------------------------------------------------------------------------------------------
    def block_table(self, seq: str) -> Sequence[int]:
        """Physical ids of the sequence's table, logical order."""

    def num_computed(self, seq: str) -> int:
        """Computed tokens of the sequence."""

    def free_ids(self) -> set[int]:
        """Ids in the free list (each once)."""

    def free_count(self) -> int:
        """What the target's own counter says is free."""

    def used_count(self) -> int:
        """Blocks held by at least one sequence, by the target's own counter (seed 4, num_used_blocks_)."""

    def ref_count(self, block_id: int) -> int:
        """Holders of the block by the target's own counter; 0 if it is free."""

    def cached(self) -> Mapping[bytes, int]:
        """Matchable keys and their blocks."""

    def drain_events(self) -> Sequence[CacheEvent]:
        """Changes of the prefix cache since the last call, in order."""


# -- is it a target? ---------------------------------------------------------------------------------------------

MakeTarget = Callable[[PoolConfig], Target]


class TargetError(Exception):
    """The target cannot be driven at all: it cannot be made, or lacks methods."""


METHODS_OF: Final[Mapping[Capability, tuple[str, ...]]] = {
    Capability.FREE_IDS: ("free_ids",),
    Capability.FREE_COUNT: ("free_count",),
    Capability.USED_COUNT: ("used_count",),
    Capability.REF_COUNTS: ("ref_count",),
    Capability.CACHED_KEYS: ("cached",),
    Capability.EVENTS: ("drain_events",),
    Capability.CONTENTS: ("read",),
    Capability.FORK: ("fork",),
    Capability.TRUNCATE: ("truncate",),
    Capability.HOLD: ("hold", "release"),
}
"""Methods that only a target with the capability needs."""

_PROTOCOL: Final = tuple(n for n, _ in inspect.getmembers(Target, inspect.isfunction) if not n.startswith("_"))


def missing_parts(target: object) -> list[str]:
    """What an object lacks to be a target: attributes, and methods that its capabilities ask for."""
    missing = [name for name in ("capabilities", "hit_limit") if not hasattr(target, name)]
    shown: Collection[Capability] = getattr(target, "capabilities", ())
    excused = {name for c, methods in METHODS_OF.items() if c not in shown for name in methods}
    return missing + [f"{m}()" for m in _PROTOCOL if m not in excused and not callable(getattr(target, m, None))]


def checked_target(make_target: MakeTarget, config: PoolConfig) -> Target:
    """A new target.

    Raises:
        TargetError: it cannot be made, or is none.
    """
    try:
        target = make_target(config)
    except Exception as error:
        raise TargetError(f"cannot be made with {_words(config)}: {type(error).__name__}: {error}") from error
    missing = missing_parts(target)
    if missing:
        raise TargetError(f"lacks {', '.join(missing)}")
    unknown = [str(c) for c in target.capabilities if c not in frozenset(Capability)]
    if unknown:
        raise TargetError(f"has unknown capabilities: {', '.join(unknown)}")
    if target.hit_limit not in ("all", "all_but_one"):
        raise TargetError(f"has hit_limit {target.hit_limit!r}, expected 'all' or 'all_but_one'")
    return target


def _words(config: PoolConfig) -> str:
    return f"{config.num_blocks} blocks of {config.block_size}"
