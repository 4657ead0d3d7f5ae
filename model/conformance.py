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
from math import lcm
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
        num_single_blocks: single ids of each rank, id 0 (padding) included (seed 6); 0: what is driven is one
            `BlockManager`, not a pool, and no sequence has a single block.
        num_ranks: data-parallel ranks, each with blocks, single blocks and state slots of its own (seed 5.1).
        num_state_slots: recurrent-state slots of each rank, slot 0 (padding) included (seed 7); 0: no linear state.
        checkpoint_interval: tokens between positions that may have a checkpoint; 0: the block size.
        trim: which hits are kept where states have to be restored (seed 7.2): up to the first boundary without a
            checkpoint, or up to the deepest boundary with one.

    Raises:
        ValueError: a size is out of range.
    """

    num_blocks: int
    block_size: int
    enable_prefix_cache: bool = True
    sanitizer: bool = False
    num_single_blocks: int = 0
    num_ranks: int = 1
    num_state_slots: int = 0
    checkpoint_interval: int = 0
    trim: Literal["contiguous", "deepest"] = "contiguous"

    def __post_init__(self) -> None:
        if self.num_blocks < 2:
            raise ValueError(f"num_blocks: {self.num_blocks}, expected at least 2 (block 0 is padding)")
        if self.block_size < 1:
            raise ValueError(f"block_size: {self.block_size}, expected at least 1")
        for name, what in (("num_single_blocks", "single block"), ("num_state_slots", "slot")):
            if (number := getattr(self, name)) != 0 and number < 2:
                raise ValueError(f"{name}: {number}, expected 0, or at least 2 ({what} 0 is padding)")
        if self.num_ranks < 1:
            raise ValueError(f"num_ranks: {self.num_ranks}, expected at least 1")
        if self.checkpoint_interval < 0:
            raise ValueError(f"checkpoint_interval: {self.checkpoint_interval}, expected at least 0")
        if self.trim not in ("contiguous", "deepest"):
            raise ValueError(f"trim: {self.trim!r}, expected 'contiguous' or 'deepest'")
        if not self.is_pool and (self.num_ranks > 1 or self.has_linear_state):
            raise ValueError("num_single_blocks: 0, expected at least 2 in a pool with ranks or state slots")

    @property
    def num_cells(self) -> int:
        """Token cells, single blocks and state slots of all ranks together."""
        units = self.num_single_blocks + self.num_state_slots
        return self.num_ranks * (self.num_blocks * self.block_size + units)

    @property
    def is_pool(self) -> bool:
        """A `KVCacheManager` is driven, which gives each sequence a rank and a single block."""
        return self.num_single_blocks > 0

    @property
    def has_linear_state(self) -> bool:
        """Sequences have a recurrent state (enable_linear_state)."""
        return self.num_state_slots > 0

    @property
    def stride(self) -> int:
        """Tokens between positions at which a state can be restored: whole blocks, and whole intervals."""
        return lcm(self.block_size, self.checkpoint_interval or self.block_size)


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
    POOL = "pool"
    LINEAR_STATE = "linear_state"
    STATES = "states"


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


# -- pools ---------------------------------------------------------------------------------------------------------


class PoolTarget(Target, Protocol):
    """A target with `Capability.POOL`: one `KVCacheManager`, made with a config that `PoolConfig.is_pool`.

    Beside its blocks a sequence has a rank, a single block and, with linear state, a live state slot. It gets them with
    its first `allocate_shared` or `allocate` and keeps them until `deallocate`, `preempt` or `abort`; its rank it keeps
    over a preemption. Blocks, single blocks, slots and keys are those of a rank: no call for a sequence changes
    anything of another rank.

    **Ranks** (seed 5.3). A sequence without a rank gets the one with the most free blocks; with linear state, ranks
    without a free single block are passed over. Any of several equal ones may be chosen. A call that is refused
    leaves the sequence with the rank that it had before: a newcomer with none.

    **States** (seed 7). The live slot holds the state behind the computed tokens: 0 behind none, and `advance` says how
    tokens move it. A *checkpoint* is a copy of the live slot under the key of the computed tokens, taken where a step
    ended, at a multiple of `PoolConfig.stride`. A hit ends where a checkpoint can be restored, and never covers the
    last known token; the sequence then *waits*: its checkpoint is pinned, and it must be restored before the first
    write. Pinned, live and half-copied slots are never evicted.

    In a pool `fork` is always an error.
    """

    # -- operations -----------------------------------------------------------------------------------------------
    def allocate_shared(self, seq: str) -> int:
        """Choose a rank, take the single block and the live slot, match, and trim; the number of tokens hit.

        0: nothing was taken, since nothing could be hit, or no rank has a single block and a slot to give.
        Error unless the sequence has no block."""

    def allocate(self, seq: str, num_tokens: int) -> bool:
        """The flow of seed 5.2: rank, single block, live slot, hits if the table is empty, growth to num_tokens tokens
        (hits may make it longer). All or nothing; False if refused. Error also if num_tokens is below the computed
        tokens."""

    def truncate(self, seq: str, num_tokens: int) -> None:
        """As for every target, but computed may fall further: with linear state to a position whose state can be
        restored (the sequence then waits) or to 0, and without to the begin of a block that others hold. Blocks
        behind the new computed position may stay as room."""

    def save_start(self, seq: str) -> bool:
        """Reserve a slot for a checkpoint of the computed tokens, evicting an idle checkpoint if none is free, and
        begin the copy. False, with nothing changed: no multiple of the stride, nothing computed, a checkpoint of these
        tokens exists or is on the way, the prefix cache is off, or no slot can be had. Until `save_finish` the
        sequence cannot be written. Error if it waits, has no live slot, or a save has begun."""

    def save_finish(self, seq: str, ok: bool) -> None:
        """The copy is done: the checkpoint can be matched; or it failed, and its slot is given back. Error without a
        save that has begun. A sequence that ends before gives the slot back by itself."""

    def restore_start(self, seq: str) -> None:
        """Begin to copy the pinned checkpoint to the live slot. Error unless the sequence waits and has not begun."""

    def restore_finish(self, seq: str, ok: bool) -> None:
        """The copy is done, the pin is released and the sequence no longer waits; or it failed, and the sequence waits
        as before, with nothing readable in its live slot. Error without a restore that has begun."""

    # -- observations ---------------------------------------------------------------------------------------------
    def rank(self, seq: str) -> int | None:
        """The rank of the sequence; None before it has one."""

    def single_block(self, seq: str) -> int | None:
        """Its single block; None while it has none."""

    def state_slot(self, seq: str) -> int | None:
        """Its live slot; None while it has none, or without linear state."""

    def state(self, seq: str) -> int:
        """The content of its live slot, read from the device. Error if it has none, or waits."""

    def free_single_blocks(self, rank: int) -> set[int]:
        """Single ids of the rank that nobody has."""

    def free_state_slots(self, rank: int) -> set[int]:
        """State slots of the rank that nobody has, live, pending or committed."""

    def checkpoints(self, rank: int) -> Mapping[bytes, int]:
        """Matchable checkpoints of the rank: the key of their last block, as in `cached`, and their slot."""

    def free_ids(self, rank: int = 0) -> set[int]: ...
    def free_count(self, rank: int = 0) -> int: ...
    def used_count(self, rank: int = 0) -> int: ...
    def ref_count(self, block_id: int, rank: int = 0) -> int: ...
    def cached(self, rank: int = 0) -> Mapping[bytes, int]: ...
    def drain_events(self, rank: int = 0) -> Sequence[CacheEvent]: ...
    def hold(self, block_id: int, rank: int = 0) -> int: ...
    def evict(self, num_blocks: int, rank: int = 0) -> int:
        """Drop idle entries of one rank. An unknown rank is an error, here and in every observation."""


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
    Capability.POOL: ("rank", "single_block", "free_single_blocks"),
    Capability.LINEAR_STATE: (
        "state_slot", "free_state_slots", "checkpoints", "save_start", "save_finish", "restore_start", "restore_finish",
    ),
    Capability.STATES: ("state",),
}
"""Methods that only a target with the capability needs."""

_PROTOCOL: Final = tuple(n for n, _ in inspect.getmembers(PoolTarget, inspect.isfunction) if not n.startswith("_"))
"""All methods, those of pools too: who has no such capability is excused from them."""


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
