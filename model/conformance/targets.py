"""The protocols: the methods of a target of each form, what they do, and when they are errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from kvspec.model.conformance.capabilities import Capability
from kvspec.model.conformance.config import PoolConfig
from kvspec.model.conformance.values import CacheEvent, Context, Tags, Transfer

_M = TypeVar("_M", bound=Callable[..., Any])


def look(method: _M) -> _M:
    """Mark a method that only looks: until the next operation it answers the same, however often it is called. Those
    that drain answer everything once."""
    method.__dict__["looks"] = True
    return method


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
        """One more outside holder of a live block (a pending store, a transfer); an opaque handle. Error for a block
        that nobody holds, and for padding."""

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


MakeTarget = Callable[[PoolConfig], Target]


class Bounded:
    """A target that sees to it that its calls return: one that takes longer than so many seconds is ended, and raises
    `NoReturnError`."""

    patience: float | None = None
    """Seconds; None: as long as the target itself allows."""
