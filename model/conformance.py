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
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

Tags = npt.NDArray[np.int64]
"""Content of device cells, one tag per token: a number below 2**48 that stands for the whole prefix up to the token."""


class MisuseError(Exception):
    """A call that no correct caller makes; the target refused it and kept its state."""


class NoReturnError(Exception):
    """A call has not returned, or one before has not."""


_T = TypeVar("_T")


class Listed(set[_T]):
    """A set that a target gave as a list.

    Attributes:
        twice: what was in the list more than once.
    """

    def __init__(self, items: Sequence[_T]) -> None:
        super().__init__(items)
        self.twice = [] if len(self) == len(items) else [item for at, item in enumerate(items) if item in items[:at]]


class RemoteError(Exception):
    """The failure of a target in another process: what was raised there (type, text and place), or how it has ended."""


_M = TypeVar("_M", bound=Callable[..., Any])


def look(method: _M) -> _M:
    """Mark a method that only looks: until the next operation it answers the same, however often it is called. Those
    that drain answer everything once."""
    method.__dict__["looks"] = True
    return method


class ManagerType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sub-manager of a composite: the layers of one group (seed 9.2, manager_types).

    Attributes:
        num_blocks: its blocks, block 0 (padding) included; at least 2.
        block_size: tokens per block; at least 1.
        window: tokens that a query of its layers sees, its own included; None: all.

    Raises:
        ValueError: a size is out of range.
    """

    num_blocks: int
    block_size: int
    window: int | None = None

    def __post_init__(self) -> None:
        _check_blocks(self.num_blocks, self.block_size)
        if self.window is not None and self.window < 1:
            raise ValueError(f"window: {self.window}, expected at least 1")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine schedules (`kvspec.model.engines.protocol`).

    Attributes:
        variant: which of its managers is driven.
        max_batch_tokens: tokens of all requests in one step; at least 1.
        max_running: requests in one step; at least 1.
        window: tokens that a query sees in groups with a sliding window.
        priority: requests go by their priority, not by their order.
        chunked: a prompt may be computed in several steps.
        overlapped: the next step is planned before the results of the last one are known.

    Raises:
        ValueError: a number is out of range.
    """

    variant: str
    max_batch_tokens: int = 64
    max_running: int = 4
    window: int = 4
    priority: bool = False
    chunked: bool = False
    overlapped: bool = False

    def __post_init__(self) -> None:
        for name in ("max_batch_tokens", "max_running", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}, expected at least 1")


class Form(StrEnum):
    """What a target is."""

    MANAGERS = "managers"
    POOLS = "pools"
    COMPOSITES = "composites"
    TIERS = "tiers"
    PAGES = "pages"
    ENGINES = "engines"

    @property
    def words(self) -> str:
        """What one of them is called."""
        return {
            Form.MANAGERS: "a manager",
            Form.POOLS: "a pool of ranks",
            Form.COMPOSITES: "a composite",
            Form.TIERS: "a pool with a host tier",
            Form.PAGES: "a manager with pages that are mapped on demand",
            Form.ENGINES: "the manager of an engine",
        }[self]


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
        manager_types: sub-managers of a `CompositeBlockManager` (seed 9.2), one for each group; none: there is no
            composite. It has no prefix cache, and the blocks of its groups only.
        num_host_blocks: blocks of the host tier of each rank, block 0 (padding) included (seed 9.4); 0: there is none.
            Only in a pool with a prefix cache and without linear state.
        num_pages: physical pages of a manager whose blocks get memory on demand (seed 5.1, XTensor); 0: all of its
            memory is there.
        page_size: tokens that fit on a page; a page may have several blocks, or a block lie on several pages.
        num_threads: from how many threads it is called, in turn and one call at a time.
        engine: how the engine schedules, where a manager is driven by the steps of an engine.

    Raises:
        ValueError: a size is out of range, or options do not go together.
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
    manager_types: tuple[ManagerType, ...] = ()
    num_host_blocks: int = 0
    num_pages: int = 0
    page_size: int = 0
    num_threads: int = 1
    engine: EngineConfig | None = None

    def __post_init__(self) -> None:
        _check_blocks(self.num_blocks, self.block_size)
        for name, what in (
            ("num_single_blocks", "single block"), ("num_state_slots", "slot"), ("num_host_blocks", "host block"),
        ):  # fmt: skip
            if (number := getattr(self, name)) != 0 and number < 2:
                raise ValueError(f"{name}: {number}, expected 0, or at least 2 ({what} 0 is padding)")
        if self.num_ranks < 1:
            raise ValueError(f"num_ranks: {self.num_ranks}, expected at least 1")
        if self.checkpoint_interval < 0:
            raise ValueError(f"checkpoint_interval: {self.checkpoint_interval}, expected at least 0")
        if self.trim not in ("contiguous", "deepest"):
            raise ValueError(f"trim: {self.trim!r}, expected 'contiguous' or 'deepest'")
        if not self.is_pool and (self.num_ranks > 1 or self.has_linear_state or self.has_host_tier):
            raise ValueError("num_single_blocks: 0, expected at least 2 with ranks, state slots or a host tier")
        self._check_variants()

    def _check_variants(self) -> None:
        """What a composite, a host tier and pages go together with."""
        if self.manager_types and (self.is_pool or self.enable_prefix_cache):
            raise ValueError("manager_types: a composite, expected no single blocks and no prefix cache")
        if self.has_host_tier and (self.has_linear_state or not self.enable_prefix_cache):
            what = f"num_host_blocks: {self.num_host_blocks}"
            raise ValueError(f"{what}, expected a pool with a prefix cache and without state slots")
        if (self.num_pages > 0) != (self.page_size > 0) or min(self.num_pages, self.page_size) < 0:
            what = f"num_pages: {self.num_pages} pages of {self.page_size} tokens"
            raise ValueError(f"{what}, expected both, or none")
        if self.num_pages and (self.is_pool or self.manager_types):
            raise ValueError(f"num_pages: {self.num_pages}, expected 0 in a pool of ranks or a composite")
        if self.num_pages and self.num_pages * self.page_size < self.block_size:
            what = f"num_pages: {self.num_pages} pages of {self.page_size} tokens"
            raise ValueError(f"{what}, expected room for the padding block, of {self.block_size}")
        if self.num_threads < 1:
            raise ValueError(f"num_threads: {self.num_threads}, expected at least 1")
        if self.engine is not None and (self.is_pool or self.manager_types or self.num_pages):
            raise ValueError("engine: with single blocks, groups or pages, expected none of them")

    @property
    def form(self) -> Form:
        """What is driven."""
        if self.engine is not None:
            return Form.ENGINES
        if self.manager_types:
            return Form.COMPOSITES
        if self.has_host_tier:
            return Form.TIERS
        if self.num_pages:
            return Form.PAGES
        return Form.POOLS if self.is_pool else Form.MANAGERS

    @property
    def num_cells(self) -> int:
        """Token cells of all tiers, groups and physical pages, single blocks and state slots of all ranks together."""
        if self.manager_types:
            return sum(kind.num_blocks * kind.block_size for kind in self.manager_types)
        units, cells = self.num_single_blocks + self.num_state_slots, self.num_pages * self.page_size
        return cells + self.num_ranks * ((self.num_blocks + self.num_host_blocks) * self.block_size + units)

    @property
    def is_pool(self) -> bool:
        """A `KVCacheManager` is driven, which gives each sequence a rank and a single block."""
        return self.num_single_blocks > 0

    @property
    def has_linear_state(self) -> bool:
        """Sequences have a recurrent state (enable_linear_state)."""
        return self.num_state_slots > 0

    @property
    def has_host_tier(self) -> bool:
        """What the device has dropped may still be found in host memory (HierarchyBlockManagerPool)."""
        return self.num_host_blocks > 0

    @property
    def stride(self) -> int:
        """Tokens between positions at which a state can be restored: whole blocks, and whole intervals."""
        return lcm(self.block_size, self.checkpoint_interval or self.block_size)


def _check_blocks(num_blocks: int, block_size: int) -> None:
    if num_blocks < 2:
        raise ValueError(f"num_blocks: {num_blocks}, expected at least 2 (block 0 is padding)")
    if block_size < 1:
        raise ValueError(f"block_size: {block_size}, expected at least 1")


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
    GROUPS = "groups"
    HOST = "host"
    SLEEP = "sleep"
    PREFETCH = "prefetch"
    PAGES = "pages"
    ENGINE = "engine"


OF_POOLS: Final = frozenset({Capability.POOL, Capability.LINEAR_STATE, Capability.STATES})
OF_HOST_TIERS: Final = frozenset({Capability.HOST, Capability.SLEEP, Capability.PREFETCH})
OF_VARIANTS: Final = OF_HOST_TIERS | {Capability.GROUPS, Capability.PAGES, Capability.ENGINE}
"""Capabilities that only pools of ranks have, only those with a host tier, and only one variant or another."""


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

    Two more attributes are optional: ``about``, texts by name such as ``name`` and ``version``, for reports; and
    ``minimum``, how often what must have been seen in a run (``docs/conform.md``).
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

    @look
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
    @look
    def block_table(self, seq: str) -> Sequence[int]:
        """Physical ids of the sequence's table, logical order."""

    @look
    def num_computed(self, seq: str) -> int:
        """Computed tokens of the sequence."""

    @look
    def free_ids(self) -> set[int]:
        """Ids in the free list (each once)."""

    @look
    def free_count(self) -> int:
        """What the target's own counter says is free."""

    @look
    def used_count(self) -> int:
        """Blocks held by at least one sequence, by the target's own counter (seed 4, num_used_blocks_)."""

    @look
    def ref_count(self, block_id: int) -> int:
        """Holders of the block by the target's own counter; 0 if it is free."""

    @look
    def cached(self) -> Mapping[bytes, int]:
        """Matchable keys and their blocks."""

    @look
    def drain_events(self) -> Sequence[CacheEvent]:
        """Changes of the prefix cache since the last call, in order."""


# -- pools ---------------------------------------------------------------------------------------------------------


class CompositeTarget(Target, Protocol):
    """A target with `Capability.GROUPS`: one `CompositeBlockManager`, made with `PoolConfig.manager_types`.

    A sequence has a block table in every group. Blocks that have left the window of every query that can still come
    may be given back at any time, and have to be before an `allocate` of their sequence is refused for want of blocks
    of that group; the other blocks of the table keep their places. A growth is done in all groups or in none. There is
    no prefix cache and no sharing: `allocate_shared` hits nothing, `cache` publishes nothing, `evict` frees nothing,
    and `fork` and `hold` are always errors.

    What `write` computes are drafts until they are accepted: only behind accepted tokens does a window slide. Behind
    a `preempt` nothing is accepted.

    The blocks are those of the groups; `PoolConfig.num_blocks` and `PoolConfig.block_size` mean nothing here.
    """

    def truncate(self, seq: str, num_tokens: int) -> None:
        """As for every target, in all groups; blocks behind num_tokens may stay as room. Error also if num_tokens is
        below the accepted tokens."""

    def accept(self, seq: str, num_tokens: int) -> None:
        """The first num_tokens computed tokens are there to stay; `truncate` cannot take them back. Error if num_tokens
        is above the computed tokens, or below those that are accepted already."""

    @look
    def released(self, seq: str, group: int = 0) -> int:
        """How many leading places of the table have been given back."""

    def block_table(self, seq: str, group: int = 0) -> Sequence[int]:
        """Physical ids of the places that are held: those from `released` on."""

    def read(self, seq: str, start: int, stop: int, group: int = 0) -> Tags:
        """Contents of computed tokens in the layers of a group. Error for a range that begins in a released block."""

    def free_ids(self, group: int = 0) -> set[int]: ...
    def free_count(self, group: int = 0) -> int: ...
    def used_count(self, group: int = 0) -> int: ...
    def ref_count(self, block_id: int, group: int = 0) -> int:
        """An unknown group is an error, here and in every observation."""


class PagedTarget(Target, Protocol):
    """A target with `Capability.PAGES`: one `XTensorBlockManagerImpl`, made with `PoolConfig.num_pages`.

    Token t of block b lies at address ``b * block_size + t``, and page p has the `PoolConfig.page_size` addresses from
    ``p * page_size`` on. A block can only be handed out if all pages on which it lies are mapped to physical pages, of
    which there are `PoolConfig.num_pages`; those of the padding block always are.

    A page may be mapped at any time, and unmapped at any time while no block on it is in use: held by a sequence, the
    prefix cache or an outside holder. `allocate` is refused only if free blocks on pages that can be mapped, after each
    idle page that they do not need was unmapped, and idle cached blocks together are too few. A page whose mapping has
    failed need not be tried again in the same call; others are tried in its place.
    """

    @look
    def mapped_pages(self) -> set[int]:
        """Pages that are mapped."""

    def reclaim(self, num_pages: int) -> int:
        """Unmap so many pages on which no block in use lies, or all such if there are fewer; how many were unmapped.
        Error if num_pages is negative."""

    def fail_mappings(self, failing: Sequence[bool]) -> None:
        """Whether each of the next attempts to map a page fails, in turn; those behind them succeed."""


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
    @look
    def rank(self, seq: str) -> int | None:
        """The rank of the sequence; None before it has one."""

    @look
    def single_block(self, seq: str) -> int | None:
        """Its single block; None while it has none."""

    @look
    def state_slot(self, seq: str) -> int | None:
        """Its live slot; None while it has none, or without linear state."""

    @look
    def state(self, seq: str) -> int:
        """The content of its live slot, read from the device. Error if it has none, or waits."""

    @look
    def free_single_blocks(self, rank: int) -> set[int]:
        """Single ids of the rank that nobody has."""

    @look
    def free_state_slots(self, rank: int) -> set[int]:
        """State slots of the rank that nobody has, live, pending or committed."""

    @look
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


class HostTarget(PoolTarget, Protocol):
    """A target with `Capability.HOST`: a `HierarchyBlockManagerPool`, made with `PoolConfig.num_host_blocks`.

    Each rank has host blocks behind its device blocks. Copies of whole blocks between them are *transfers*: the target
    plans them, `start_transfers` begins all that are planned, and `transfer_finish` ends one. A transfer holds both of
    its ends from its plan to its end.

    **Loads** are planned by a granted `allocate`, for blocks of the table behind what was hit whose tokens the host
    has, as far as a hit may reach. The sequence cannot be written while one of them has not ended; when all have, it
    goes on behind the leading blocks that are complete. `allocate` is legal meanwhile, and may plan more. A sequence
    that gives its blocks back waits no more: loads into them that have begun go on, others may be dropped. Nothing else
    is ever dropped.

    **Offloads** are planned by `deallocate`, for published blocks that the host does not have. The key can be found on
    the host when the copy is complete, and not before; never behind a failed one, nor if there was a `reset` meanwhile.

    `reset` drops the keys of both tiers. What was computed before it is not published any more.

    **Keys** of the host are the same bytes as those of the device for the same tokens; as there, any will do.

    **Sleep** (`Capability.SLEEP`). While the device sleeps these are legal: `start`, `append`, a `write` of no tokens,
    `evict`, which finds nothing, `reset`, which drops the keys of the host, what is asked of a store,
    `start_transfers`, `wake`, `close` and all observations. `cache`, `deallocate`, `preempt`, `abort` and `truncate`
    may be answered, or be errors. Everything else is an error.

    There are no outside holders: `hold` is always an error.
    """

    @look
    def transfers(self, rank: int = 0) -> Sequence[Transfer]:
        """Transfers of the rank that are planned or have begun, in the order of their plans."""

    def start_transfers(self) -> None:
        """All planned copies begin, of all ranks."""

    def transfer_finish(self, number: int, ok: bool) -> None:
        """A copy is complete, or has failed. Error unless it has begun and not ended."""

    def sleep(self) -> None:
        """The device memory is given up, and its keys with it; the host keeps what it has. Error if it sleeps, or if a
        device block is held by a sequence or a transfer."""

    def wake(self) -> None:
        """There is device memory again, with nothing in it. Error unless it sleeps."""

    def begin_prefetch(self, name: str, tokens: Sequence[int], context: Context, rank: int = 0) -> None:
        """A store is asked for leading blocks of these tokens. Error if the name is in use, or for an unknown rank."""

    def plan_prefetch(self, name: str, num_blocks: int) -> Sequence[tuple[int, int]]:
        """The store has so many leading blocks: the logical index and the host block for each that is to come, one
        after the other. Those in front that the host has are left out, and so are those for which it has no room.
        Error for a second plan, a negative number, or more full blocks than the tokens have."""

    def finish_prefetch(self, name: str, contents: Sequence[Tags]) -> None:
        """The contents of the first of the planned blocks have come, and no more will; what has come can be found on
        the host, unless there was a `reset` meanwhile. Error before a plan, or for more than were planned."""

    @look
    def host_free_ids(self, rank: int = 0) -> set[int]:
        """Host ids of the rank that nobody holds."""

    @look
    def host_cached(self, rank: int = 0) -> Mapping[bytes, int]:
        """Keys that can be found on the host, and their blocks."""

    @look
    def drain_host_events(self, rank: int = 0) -> Sequence[CacheEvent]:
        """Changes of these keys since the last call, in order; only with `Capability.EVENTS`."""


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


class Bounded:
    """A target that sees to it that its calls return: one that takes longer than so many seconds is ended, and raises
    `NoReturnError`."""

    patience: float | None = None
    """Seconds; None: as long as the target itself allows."""


class TargetError(Exception):
    """The target cannot be driven at all: it cannot be made, or lacks methods."""


class UnusableError(TargetError):
    """It cannot even be asked what it can be made as."""


METHODS_OF: Final[Mapping[Capability, tuple[str, ...]]] = {
    Capability.FREE_IDS: ("free_ids",),
    Capability.FREE_COUNT: ("free_count",),
    Capability.USED_COUNT: ("used_count",),
    Capability.REF_COUNTS: ("ref_count",),
    Capability.CACHED_KEYS: ("cached",),
    Capability.EVENTS: ("drain_events", "drain_host_events"),
    Capability.CONTENTS: ("read",),
    Capability.FORK: ("fork",),
    Capability.TRUNCATE: ("truncate",),
    Capability.HOLD: ("hold", "release"),
    Capability.POOL: ("rank", "single_block", "free_single_blocks"),
    Capability.LINEAR_STATE: (
        "state_slot", "free_state_slots", "checkpoints", "save_start", "save_finish", "restore_start", "restore_finish",
    ),
    Capability.STATES: ("state",),
    Capability.GROUPS: ("released", "accept"),
    Capability.HOST: (
        "transfers", "start_transfers", "transfer_finish", "host_free_ids", "host_cached", "drain_host_events",
    ),
    Capability.SLEEP: ("sleep", "wake"),
    Capability.PREFETCH: ("begin_prefetch", "plan_prefetch", "finish_prefetch"),
    Capability.PAGES: ("mapped_pages", "reclaim", "fail_mappings"),
}
"""Methods that only a target with the capability needs; one that is named twice, only a target with both."""

_PROTOCOL: Final = sorted(
    {name for name, _ in inspect.getmembers(Target, inspect.isfunction) if not name.startswith("_")}.union(
        *METHODS_OF.values()
    )
)
"""All methods, those of variants too: who has no such capability is excused from them."""


_ENGINE_METHODS: Final = ("layout", "submit", "step", "abort", "evict", "reset", "close")
"""Of `kvspec.model.engines.protocol.EngineTarget`, in the place of all others."""


def excused_by(shown: Collection[Capability]) -> set[str]:
    """Methods that a target with these capabilities need not have."""
    return {name for c, methods in METHODS_OF.items() if c not in shown for name in methods}


def missing_parts(target: object) -> list[str]:
    """What an object lacks to be a target: attributes, and methods that its capabilities ask for."""
    missing = [name for name in ("capabilities", "hit_limit") if not hasattr(target, name)]
    shown: Collection[Capability] = getattr(target, "capabilities", ())
    excused = excused_by(shown)
    if Capability.ENGINE in shown:
        methods = [*_ENGINE_METHODS, *([] if "abilities" in dir(target) else ["abilities"])]
        return missing + [f"{m}()" if m in _ENGINE_METHODS else m for m in methods if not hasattr(target, m)]
    return missing + [f"{m}()" for m in _PROTOCOL if m not in excused and not callable(getattr(target, m, None))]


def told(error: Exception) -> str:
    """An exception by its type and text; what was raised in another process says so itself."""
    return str(error) if isinstance(error, RemoteError) else f"{type(error).__name__}: {error}"


def checked_target(make_target: MakeTarget, config: PoolConfig) -> Target:
    """A new target.

    Raises:
        TargetError: it cannot be made, or is none.
    """
    try:
        target = make_target(config)
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(f"cannot be made with {_words(config)}: {told(error)}") from error
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
    if config.manager_types:
        return ", ".join(f"a group of {kind.num_blocks} blocks of {kind.block_size}" for kind in config.manager_types)
    return f"{config.num_blocks} blocks of {config.block_size}"
