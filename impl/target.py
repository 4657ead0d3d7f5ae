"""`TorchTarget`: the implementation behind the target protocol of `kvspec.model.conformance`.

The flows are those of the seed (5.2 allocate, 8 deallocate) for one rank. Every operation checks first and changes
afterwards, so that an error or a refusal leaves all state as it was.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import torch

from kvspec.impl.block import Block
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import InvalidRangeError, InvalidTokensError, KVCacheError, UnknownSequenceError
from kvspec.impl.paging import block_index, longest_hit, window
from kvspec.impl.prefix_cache import encode_context
from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.sequence import Sequence
from kvspec.impl.tokens import as_tokens
from kvspec.model.conformance import CacheEvent, Capability, Context, MisuseError, PoolConfig, Tags

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _operation(
    method: Callable[Concatenate[TorchTarget, _P], _R],
) -> Callable[Concatenate[TorchTarget, _P], _R]:
    """Refuse after `close`, and turn the implementation's errors into those of the protocol."""

    @wraps(method)
    def call(self: TorchTarget, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        if self.closed_:
            raise MisuseError(f"TorchTarget.{method.__name__}: the target is closed; expected a call before close")
        try:
            return method(self, *args, **kwargs)
        except KVCacheError as error:
            raise MisuseError(str(error)) from error

    return call


class TorchTarget:
    """A pool of one rank: sequences over `BlockManagerImpl`, with K and V in torch tensors.

    Args:
        config: sizes and options.
        layers, heads, head_dim: shape of a cell (see `KVBuffers`).
        device: where K and V are.
        record_events: keep cache events for `drain_events`; without a reader they only grow.
    """

    capabilities: frozenset[Capability] = frozenset(Capability)
    hit_limit: Literal["all", "all_but_one"] = "all_but_one"

    def __init__(
        self,
        config: PoolConfig,
        *,
        layers: int = 1,
        heads: int = 1,
        head_dim: int = 2,
        device: torch.device | str = "cpu",
        record_events: bool = True,
    ) -> None:
        self.config = config
        self.closed_ = False
        self.sanitizer_ = Sanitizer() if config.sanitizer else None
        self.manager_ = self._make_manager(record_events)
        self.buffers_ = KVBuffers(
            config.num_blocks, config.block_size, layers=layers, heads=heads, head_dim=head_dim, device=device
        )
        if self.sanitizer_ is not None:
            self.buffers_.guard_padding()
        self._block_size = config.block_size
        self._sequences: dict[str, Sequence] = {}
        self._holds: dict[int, Block] = {}
        self._next_hold = 1

    def _make_manager(self, record_events: bool) -> BlockManagerImpl:
        return BlockManagerImpl(
            self.config.num_blocks,
            self.config.block_size,
            enable_prefix_cache=self.config.enable_prefix_cache,
            sanitizer=self.sanitizer_,
            record_events=record_events,
        )

    def __del__(self) -> None:
        # A target that is dropped without close takes its handles along; nobody has lost them.
        sanitizer = getattr(self, "sanitizer_", None)
        if sanitizer is not None:
            sanitizer.unwatch()

    # -- operations --------------------------------------------------------------------------------------------------
    @_operation
    def start(self, seq: str, tokens: Iterable[int], context: Context) -> None:
        """Create a sequence with its first tokens. Error if the name is in use or a token is negative."""
        self._check_new(seq, "start")
        encoded = encode_context(context.adapter, context.adapter_version, context.salt, context.images)
        self._sequences[seq] = Sequence(as_tokens(tokens), self._block_size, encoded)

    @_operation
    def allocate_shared(self, seq: str) -> int:
        """Mount the published blocks of the longest prefix, short of the last token; the number of tokens hit."""
        sequence = self._get(seq, "allocate_shared")
        if sequence.kv_state_.blocks_:
            what = f"{seq!r} has {len(sequence.kv_state_.blocks_)} blocks"
            raise InvalidRangeError("TorchTarget.allocate_shared", what, "an empty table")
        limit = longest_hit(len(sequence.tokens_), self._block_size)
        blocks = self.manager_.allocate_shared(sequence.tokens_, sequence.keys_, limit)
        sequence.mount(blocks)
        return sequence.computed_

    @_operation
    def allocate(self, seq: str, num_tokens: int) -> bool:
        """Make tokens [computed, num_tokens) writable: grow the table, copy shared blocks. All or nothing."""
        sequence = self._get(seq, "allocate")
        if not 0 <= num_tokens <= len(sequence.tokens_):
            expected = f"0 to {len(sequence.tokens_)} known tokens"
            raise InvalidRangeError("TorchTarget.allocate", f"{num_tokens} tokens of {seq!r}", expected)
        shared = sequence.shared_indices(num_tokens)
        missing = max(sequence.blocks_for(num_tokens) - len(sequence.kv_state_.blocks_), 0)
        if not missing and not shared:
            return True
        blocks = self.manager_.allocate(missing + len(shared))
        if blocks is None:
            return False
        if shared:
            self._copy_on_write(sequence, shared, blocks[missing:])
            del blocks[missing:]
        sequence.kv_state_.add_kv_blocks(blocks, taken=True)
        return True

    @_operation
    def append(self, seq: str, tokens: Iterable[int]) -> None:
        """More known tokens. Error if one is negative."""
        self._get(seq, "append").tokens_.extend(as_tokens(tokens))

    @_operation
    def write(self, batch: Items[tuple[str, Tags]]) -> None:
        """One forward step: one slot computation and one write for the whole batch.

        Error if a sequence lacks room or known tokens, is named twice, or would write a block that others hold.
        """
        parts, plan = [], _WritePlan(self._block_size)
        for seq, tags in batch:
            values = _as_tags(tags)
            plan.add(seq, self._get(seq, "write"), len(values))
            parts.append(values)
        if not plan.num_tokens:
            return
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._settle()
        starts, positions = plan.indices()
        slots = self.buffers_.slot_ids(plan.tables, starts, positions)
        self.buffers_.write_tags(slots, values)
        plan.commit()
        self._settle()

    @_operation
    def read(self, seq: str, start: int, stop: int) -> Tags:
        """Contents of the computed tokens [start, stop). Error if the range is not computed."""
        sequence = self._get(seq, "read")
        if not 0 <= start <= stop <= sequence.computed_:
            expected = f"a range within the {sequence.computed_} computed tokens of {seq!r}"
            raise InvalidRangeError("TorchTarget.read", f"[{start}, {stop})", expected)
        self._settle()
        table, first = window(sequence.kv_state_.ids_, start, stop, self._block_size)
        return self.buffers_.read_tags(table, first, first + stop - start)

    @_operation
    def cache(self, seq: str) -> None:
        """Publish all full computed blocks (seed 4.2)."""
        self._publish(self._get(seq, "cache"))

    @_operation
    def deallocate(self, seq: str) -> None:
        """Finish: publish, give all handles back, forget the sequence (seed 8)."""
        sequence = self._get(seq, "deallocate")
        self._publish(sequence)
        self._give_back(sequence)
        del self._sequences[seq]

    @_operation
    def preempt(self, seq: str) -> None:
        """Give all handles back without publishing; tokens stay known."""
        self._give_back(self._get(seq, "preempt"))

    @_operation
    def abort(self, seq: str) -> None:
        """Give all handles back without publishing and forget the sequence."""
        self._give_back(self._get(seq, "abort"))
        del self._sequences[seq]

    @_operation
    def fork(self, parent: str, child: str) -> None:
        """A new sequence with the parent's tokens, context and computed count, sharing its whole table."""
        sequence = self._get(parent, "fork")
        self._check_new(child, "fork")
        blocks = self.manager_.share(sequence.kv_state_.blocks_)
        self._sequences[child] = sequence.fork(blocks)

    @_operation
    def truncate(self, seq: str, num_tokens: int) -> None:
        """Keep the first num_tokens known tokens. Error if there are fewer, or num_tokens is negative."""
        sequence = self._get(seq, "truncate")
        if not 0 <= num_tokens <= len(sequence.tokens_):
            expected = f"0 to {len(sequence.tokens_)} known tokens"
            raise InvalidRangeError("TorchTarget.truncate", f"{num_tokens} tokens of {seq!r}", expected)
        self._enter_use(sequence, block_index(min(num_tokens, sequence.computed_), self._block_size))
        self.manager_.release_blocks(sequence.truncate(num_tokens))

    @_operation
    def evict(self, num_blocks: int) -> int:
        """Drop up to num_blocks idle entries, least recently used first; the number of blocks freed."""
        if num_blocks < 0:
            raise InvalidRangeError("TorchTarget.evict", f"{num_blocks} blocks", "0 or more")
        cache = self.manager_.prefix_cache_
        return cache.evict(num_blocks) if cache is not None else 0

    @_operation
    def reset(self) -> bool:
        """Drop every key; blocks in use stay with their sequences. Never refused."""
        if self.manager_.prefix_cache_ is not None:
            self.manager_.prefix_cache_.reset()
        return True

    @_operation
    def hold(self, block_id: int) -> int:
        """One more outside holder of a live block. Error if it is free, padding, or outside the pool."""
        handle = self._next_hold
        self._holds[handle] = self.manager_.hold(block_id)
        self._next_hold += 1
        return handle

    @_operation
    def release(self, handle: int) -> None:
        """Give such a handle back. Error if it is unknown or was given back before."""
        block = self._holds.pop(handle, None)
        if block is None:
            raise UnknownSequenceError("TorchTarget.release", f"handle {handle}", "a handle of hold, once")
        block.release()

    @_operation
    def close(self) -> None:
        """Give everything back; every later operation is an error."""
        for seq in list(self._sequences):
            self._give_back(self._sequences.pop(seq))
        for handle in list(self._holds):
            self._holds.pop(handle).release()
        self._settle()
        self.manager_.close()
        self.closed_ = True

    # -- observations ------------------------------------------------------------------------------------------------
    @_operation
    def block_table(self, seq: str) -> Items[int]:
        """Physical ids of the table, logical order; a copy, as an array, since a judge compares long tables often."""
        return self._get(seq, "block_table").kv_state_.ids_[:]

    @_operation
    def num_computed(self, seq: str) -> int:
        """Computed tokens of the sequence."""
        return self._get(seq, "num_computed").computed_

    def free_ids(self) -> set[int]:
        """Ids in the free list."""
        return set(self.manager_.free_ids())

    def free_count(self) -> int:
        """Counter of the free list."""
        return self.manager_.num_free_blocks_

    def used_count(self) -> int:
        """Blocks held by at least one sequence."""
        return self.manager_.num_used_blocks_

    @_operation
    def ref_count(self, block_id: int) -> int:
        """Handles of the block; 0 if it is free."""
        return self.manager_.ref_count(block_id)

    def cached(self) -> Mapping[bytes, int]:
        """Keys of the prefix cache and their blocks."""
        cache = self.manager_.prefix_cache_
        return {} if cache is None else {key: entry.id for key, entry in cache.entries_.items()}

    def drain_events(self) -> Items[CacheEvent]:
        """Changes of the prefix cache since the last call, in order."""
        cache = self.manager_.prefix_cache_
        return [] if cache is None else cache.drain_events()

    # -- parts -------------------------------------------------------------------------------------------------------
    def _get(self, seq: str, where: str) -> Sequence:
        sequence = self._sequences.get(seq)
        if sequence is None:
            raise UnknownSequenceError(f"TorchTarget.{where}", f"no sequence {seq!r}", "one that was started")
        return sequence

    def _check_new(self, seq: str, where: str) -> None:
        if seq in self._sequences:
            raise UnknownSequenceError(f"TorchTarget.{where}", f"sequence {seq!r} exists", "a new name")

    def _settle(self) -> None:
        if self.sanitizer_ is not None:
            self.sanitizer_.settle(self.buffers_)

    def _copy_on_write(self, sequence: Sequence, indices: Items[int], blocks: Items[Block]) -> None:
        """Put copies in the place of shared blocks, then give the shared handles back.

        Only the block in which the computed tokens end has content to copy; those behind it were never written by
        this sequence.
        """
        copied = range(sequence.num_full_blocks, sequence.blocks_for(sequence.computed_))
        old = sequence.replace_shared(indices, blocks)
        self._settle()
        pairs = [(old[n].id, blocks[n].id) for n, index in enumerate(indices) if index in copied]
        self.buffers_.copy_blocks(pairs)
        self.manager_.release_blocks(old)

    def _publish(self, sequence: Sequence) -> None:
        """Publish the full computed blocks, skipping those that this sequence is known to have published."""
        cache = self.manager_.prefix_cache_
        full = sequence.num_full_blocks
        if cache is None or not full:
            return
        first = sequence.published_ if sequence.epoch_ == cache.epoch_ else 0
        if first < full:
            blocks = sequence.kv_state_.blocks_[first:full]
            sequence.published_ = self.manager_.cache(sequence.tokens_, blocks, sequence.keys_, first)
            sequence.epoch_ = cache.epoch_
        sequence.published_at_ = cache.use()

    def _enter_use(self, sequence: Sequence, first: int) -> None:
        """Enter the last publication as a use of the published blocks from this index on (see `_publish`)."""
        cache = self.manager_.prefix_cache_
        if cache is not None and sequence.published_ > first:
            cache.touch(sequence.keys_.chain[: sequence.published_], sequence.published_at_, first)

    def _give_back(self, sequence: Sequence) -> None:
        """Give all blocks back, tail first; nothing is computed any more."""
        self._enter_use(sequence, 0)
        self.manager_.release_blocks(sequence.reset())


def _as_tags(tags: Tags | Items[int]) -> Tags:
    """Tags as one-dimensional int64. Raises `InvalidTokensError` for anything else."""
    values = np.asarray(tags)
    if values.ndim != 1 or (values.dtype.kind not in "iu" and len(values)):
        what = f"tags of shape {values.shape} and dtype {values.dtype}"
        raise InvalidTokensError("TorchTarget.write", what, "one dimension of integers")
    return values.astype(np.int64, copy=False)


class _WritePlan:
    """Which cells a batch writes: checked sequence by sequence, turned into slots at once."""

    __slots__ = ("_block_size", "_counts", "_firsts", "_sequences", "_starts", "num_tokens", "tables")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._sequences: dict[str, tuple[Sequence, int]] = {}
        self._starts: list[int] = []
        self._firsts: list[int] = []
        self._counts: list[int] = []
        self.tables = array("q")
        self.num_tokens = 0

    def add(self, seq: str, sequence: Sequence, count: int) -> None:
        """The next count tokens of a sequence. Raises `InvalidRangeError` if they cannot be written."""
        start = sequence.computed_
        stop = start + count
        if stop > len(sequence.tokens_) or stop > sequence.room or seq in self._sequences:
            raise self._refusal(seq, sequence, count)
        forbidden = sequence.first_forbidden(stop)
        if forbidden is not None:
            what = f"block {sequence.kv_state_.ids_[forbidden]} of {seq!r} has other holders"
            raise InvalidRangeError("TorchTarget.write", what, f"allocate({seq!r}, {stop}) before the write")
        self._sequences[seq] = (sequence, stop)
        table, first = window(sequence.kv_state_.ids_, start, stop, self._block_size)
        self._starts.append(len(self.tables))
        self._firsts.append(first)
        self._counts.append(count)
        self.tables.extend(table)
        self.num_tokens += count

    def _refusal(self, seq: str, sequence: Sequence, count: int) -> KVCacheError:
        if seq in self._sequences:
            return InvalidRangeError("TorchTarget.write", f"{seq!r} occurs twice in the batch", "once")
        known, room, computed = len(sequence.tokens_), sequence.room, sequence.computed_
        what = f"{count} more tokens of {seq!r} after {computed}"
        return InvalidRangeError("TorchTarget.write", what, f"at most {min(known, room)} ({known} known, room {room})")

    def indices(self) -> tuple[Tags, Tags]:
        """For each token the start of its table in `tables`, and its position from there."""
        starts = np.array(self._starts, dtype=np.int64)
        firsts = np.array(self._firsts, dtype=np.int64)
        if self.num_tokens == len(self._counts) and min(self._counts) == 1:  # a decode step: one token each
            return starts, firsts
        counts = np.array(self._counts, dtype=np.int64)
        ends = np.cumsum(counts)
        firsts -= ends - counts
        return np.repeat(starts, counts), np.arange(self.num_tokens, dtype=np.int64) + np.repeat(firsts, counts)

    def commit(self) -> None:
        """The tokens are written."""
        for sequence, stop in self._sequences.values():
            sequence.advance(stop)
