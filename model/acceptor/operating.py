"""Operations that are judged in the same way for a manager and for a pool of ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from kvspec.model import operations as ops
from kvspec.model.acceptor.comparing import Comparing
from kvspec.model.acceptor.contents import context_start
from kvspec.model.acceptor.judging import P, View
from kvspec.model.conformance import CacheEvent, Capability, Context, MisuseError, PoolConfig, Tags, Target
from kvspec.model.operations import Operation
from kvspec.model.promises import Family, Violation


class Operating(Comparing[P]):
    """The operations of a target, judged."""

    def __init__(self, target: Target, config: PoolConfig, pool: P, every: int, views: Sequence[View]) -> None:
        super().__init__(target, config, pool, every, views)
        self._handles: dict[str, tuple[int, int, int]] = {}
        self._released: dict[str, int] = {}
        self._prepared: dict[str, int] = {}

    # -- tokens --------------------------------------------------------------------------------------------------

    def start(self, seq: str, tokens: Sequence[int], context: Context | None = None) -> None:
        context = context or Context()
        misuse = f"{seq} exists already" if seq in self.pool.requests else bad_tokens(tokens)

        def explain(_: Any) -> None:
            self._events()
            self.pool.start(seq, tokens, context)
            self._tags[seq] = (np.empty(0, np.int64), context_start(context))

        self._judge("start", (seq,), lambda: self.target.start(seq, tokens, context), explain, misuse)

    def append(self, seq: str, tokens: Sequence[int]) -> None:
        misuse = self._unknown(seq) or bad_tokens(tokens)

        def explain(_: Any) -> None:
            self._events()
            self.pool.append(seq, tokens)

        self._judge("append", (seq,), lambda: self.target.append(seq, tokens), explain, misuse)

    def write(self, batch: Sequence[tuple[str, int | Tags]]) -> None:
        """One forward step; an int stands for that many next tokens, with the contents that they must have."""
        if any(_count(t) < 0 for _, t in batch):
            raise MisuseError("write: fewer than no tokens, which no target can be asked for")
        misuse = next((m for m in (self._bad_write(s, _count(t)) for s, t in batch) if m), None) or _twice(batch)
        tagged = [] if misuse else [(s, self._tag(s, t)) for s, t in batch]
        given: list[tuple[str, Tags]] = tagged or [(s, np.zeros(max(_count(t), 0), np.int64)) for s, t in batch]

        def explain(_: Any) -> None:
            self._events()
            for seq, tags in tagged:
                self.pool.write(seq, len(tags))
                self.counts["tokens"] += len(tags)
                self._written(seq)

        either = misuse is None and any(self.may_refuse(s, _count(t)) for s, t in batch)
        arguments = tuple(x for s, t in batch for x in (s, _count(t)))
        self._judge("write", arguments, lambda: self.target.write(given), explain, misuse, either)

    def _written(self, seq: str) -> None:
        """A step of the sequence has been explained."""

    def _bad_write(self, seq: str, count: int) -> str | None:
        if seq not in self.pool.requests:
            return f"{seq} is unknown"
        request = self.pool.requests[seq]
        room = self.pool.room(seq)
        if count > min(room, len(request.tokens)) - request.computed:
            return f"{count} tokens written by {seq} with room for {room} and {len(request.tokens)} known"
        return None

    def may_refuse(self, seq: str, count: int) -> bool:
        """Whether a write may be done or be an error: it would touch blocks with other holders, and no allocate has
        asked for it since they came."""
        if seq not in self.pool.requests:
            return False
        end = self.pool.requests[seq].computed + count
        return end > self._prepared.get(seq, 0) and bool(self.pool.writes_shared(seq, end))

    # -- room ----------------------------------------------------------------------------------------------------

    def _out_of_known(self, seq: str, num_tokens: int) -> str | None:
        known = len(self.pool.requests[seq].tokens)
        return None if 0 <= num_tokens <= known else f"{num_tokens} of {known} known tokens"

    def _taken(self, seq: str, blocks: Sequence[int]) -> None:
        """The table grows by these blocks."""
        for block in blocks:
            if block == 0:
                raise Violation(Family.RESERVED, "padding_handed_out", f"{seq} was given the padding block")
            self._hidden_eviction(self.rank_of(seq), block)
            self._take(seq, block)
            self.counts["taken"] += 1

    @abstractmethod
    def _take(self, seq: str, block: int) -> None:
        """The event by which a table grows."""

    def _copied(self, seq: str, table: Sequence[int]) -> None:
        """Blocks behind what is computed that stand in the place of others are copies of these."""
        have = self.pool.size(seq)
        if len(table) < have:
            raise Violation(Family.HOLDERS, "table_kept", f"{seq} had {have} blocks and has {len(table)}")
        first = self.pool.requests[seq].computed // self.config.block_size
        for index in range(min(first, have), have):
            if table[index] != self.pool.block(seq, index):
                self.counts["copies"] += 1
                self._hidden_eviction(self.rank_of(seq), table[index])
                self.pool.copy(seq, index, table[index])
                self._let_go()

    def _roomy(self, seq: str, num_tokens: int, table: Sequence[int]) -> None:
        """A table has the room that was granted."""
        if len(table) * self.config.block_size < num_tokens:
            what = f"{num_tokens} tokens were granted, the table of {seq} has {len(table)} blocks"
            raise Violation(Family.PROGRESS, "room_granted", what)

    def _writable(self, seq: str, num_tokens: int) -> None:
        """Room that was granted can be written: what others need was copied."""
        for index in self.pool.writes_shared(seq, num_tokens):
            if not self.pool.may_write(seq, index, num_tokens):
                block = self.pool.block(seq, index)
                holders = self.holders(block, self.rank_of(seq))
                what = f"room was granted in block {block} ({seq}[{index}]), which is {holders}"
                raise Violation(Family.EXCLUSIVE_WRITER, "copy_on_write", what)
        self._prepared[seq] = num_tokens

    def _refused_more(self, seq: str, num_tokens: int) -> None:
        """More room was refused to a sequence with blocks."""
        part = self.pool.part(seq)
        more = max(0, self.pool.blocks_for(num_tokens) - self.pool.size(seq))
        copies = len(self.pool.writes_shared(seq, num_tokens))
        free, idle = len(part.free), part.reclaimable
        if more + copies <= free + idle:
            what = f"{more + copies} blocks were refused although {free} are free and {idle} more can be evicted"
            if not more + copies:
                what = f"room for {num_tokens} tokens was refused although {seq} has it already, in blocks of its own"
            raise Violation(Family.PROGRESS, "refused_for_cause", what)

    # -- keys and the end ----------------------------------------------------------------------------------------

    def cache(self, seq: str) -> None:
        def explain(_: Any) -> None:
            self._events(seq)
            self._published(seq)

        self._judge("cache", (seq,), lambda: self.target.cache(seq), explain, self._unknown(seq))

    def deallocate(self, seq: str) -> None:
        def explain(_: Any) -> None:
            self._events(seq)
            self._published(seq)
            self._forget(seq)

        self._judge("deallocate", (seq,), lambda: self.target.deallocate(seq), explain, self._unknown(seq))

    def preempt(self, seq: str) -> None:
        def explain(_: Any) -> None:
            self._events()
            self.pool.preempt(seq)
            self._let_go()
            self._new_holders(seq)
            self._same_table(seq)

        self._judge("preempt", (seq,), lambda: self.target.preempt(seq), explain, self._unknown(seq))

    def abort(self, seq: str) -> None:
        def explain(_: Any) -> None:
            self._events()
            self._forget(seq)

        self._judge("abort", (seq,), lambda: self.target.abort(seq), explain, self._unknown(seq))

    def _forget(self, seq: str) -> None:
        self._new_holders(seq)
        self.pool.forget(seq)
        self._let_go()
        self._forget_contents(seq)

    def evict(self, num_blocks: int, rank: int = 0) -> int:
        """Idle keys of a rank are dropped; without ranks there is only rank 0."""
        misuse = f"eviction of {num_blocks} blocks" if num_blocks < 0 else self._bad_rank(rank)
        idle = 0 if misuse else self.part(rank).reclaimable

        def explain(freed: int) -> None:
            part = self.part(rank)
            before = len(part.free)
            self._events()
            if not self._hides and freed != len(part.free) - before:
                what = f"{freed} blocks reported as evicted, {len(part.free) - before} became free"
                raise Violation(Family.PARTITION, "evicted_count", what)
            if freed > idle or (freed != min(num_blocks, idle) and not self._hides):
                what = f"{freed} of {num_blocks} blocks evicted with {idle} reclaimable"
                raise Violation(Family.PROGRESS, "evict_enough", what)

        call = lambda: self._call_evict(num_blocks, rank)  # noqa: E731
        return int(self._judge("evict", (num_blocks, rank) if rank else (num_blocks,), call, explain, misuse))

    def _bad_rank(self, rank: int) -> str | None:
        return None if 0 <= rank < len(self.views) else f"rank {rank} of {len(self.views)}"

    def _call_evict(self, num_blocks: int, rank: int) -> int:
        return self.views[rank].evict(num_blocks)

    def reset(self) -> bool:
        def explain(done: bool) -> None:
            if not done:
                self._reset_refused()
            else:
                self._reset_done()

        return bool(self._judge("reset", (), lambda: self.target.reset(), explain, None))

    def _reset_done(self) -> None:
        for rank in range(len(self.views)):
            self._forgotten(rank, self._drain_of(rank))
        self.pool.reset()

    def _reset_refused(self) -> None:
        """A target may refuse to drop its keys only while blocks are in use."""
        found = self._drain()
        if found:
            what = f"block {found[0].block_id} was {found[0].kind} by a reset that was refused"
            raise Violation(Family.ATOMIC_FAILURE, "refusal_changes_nothing", what)
        self._infer()
        if not self.pool.requests and not self._handles:
            raise Violation(Family.PROGRESS, "reset_refused", "a reset was refused although nothing is in use")

    # -- outside holders -----------------------------------------------------------------------------------------

    def hold(self, seq: str, index: int, name: str) -> None:
        """An outside holder of the block at a place of a table."""
        self.needs(Capability.HOLD)
        misuse = self._unknown(seq) or (f"{name} holds a block already" if name in self._handles else None)
        block, rank = -1, self.rank_of(seq)
        if misuse is None:
            behind = index - self.pool.size(seq)
            inside = index >= 0 > behind
            misuse = None if inside else f"{seq} has no block {index}"
            block = self.pool.block(seq, index) if inside else self._nobodys(rank, behind)

        def explain(handle: int) -> None:
            self._events()
            self._hold(rank, block, name)
            self._new_holders(*self.pool.requests)
            self._handles[name] = (handle, block, rank)

        with self._in_words(misuse):
            self._judge("hold", (seq, index, name), lambda: self.views[rank].hold(block), explain, misuse)

    def _nobodys(self, rank: int, behind: int) -> int:
        """What is asked for in the stead of a place so far behind a table: a free block, padding, or no block."""
        return {0: min(self.part(rank).free, default=0), 1: 0}.get(behind, -1)

    def release(self, name: str) -> None:
        known = self._handles.get(name)
        misuse = None if known else f"{name} holds no block"
        handle = known[0] if known else self._released.get(name, -1)

        def explain(_: Any) -> None:
            assert known is not None
            self._events()
            self._unhold(known[2], known[1], name)
            self._let_go()
            self._released[name] = self._handles.pop(name)[0]

        release = getattr(self.target, "release", _no_holder)  # without holders it need not have one
        with self._in_words(misuse):
            self._judge("release", (name,), lambda: release(handle), explain, misuse)

    @contextmanager
    def _in_words(self, misuse: str | None) -> Iterator[None]:
        """Say what is wrong with a name or a place. No target knows them: it is asked for a number in their stead that
        nobody has, and its error is about that number."""
        try:
            yield
        except MisuseError as error:
            if misuse is None or self.closed:
                raise
            raise MisuseError(misuse) from error

    @abstractmethod
    def _hold(self, rank: int, block: int, name: str) -> None:
        """The event by which somebody outside takes a handle."""

    @abstractmethod
    def _unhold(self, rank: int, block: int, name: str) -> None:
        """The event by which he gives it back."""

    @property
    def handles(self) -> Mapping[str, int]:
        """Outside holders by name, and the blocks that they hold."""
        return {name: block for name, (_, block, _) in self._handles.items()}

    def _new_holders(self, *seqs: str) -> None:
        """Blocks of these sequences got other holders: room that was granted before may have to be copied first."""
        for seq in seqs:
            self._prepared.pop(seq, None)

    # -- others --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        def explain(_: Any) -> None:
            self.closed = True

        self._judge("close", (), lambda: self.target.close(), explain, None)

    def do(self, operation: Operation) -> Any:
        """Run one operation given as data."""
        kind = type(operation)
        if kind is ops.Write:
            return self.write(operation.batch)  # type: ignore[attr-defined]
        name = kind.__struct_config__.tag
        arguments = [getattr(operation, f) for f in kind.__struct_fields__]
        return getattr(self, str(name))(*arguments)

    def drain(self) -> None:
        """End all sequences and outside holders, drop the cache: everything must be free."""
        for name in list(self._handles):
            self.release(name)
        for seq in list(self.pool.requests):
            self.abort(seq)
        self.reset()
        self.compare()
        self.drained()

    # the observations of the target itself, for those who drive the acceptor as a target

    def block_table(self, seq: str) -> Sequence[int]:
        return self.target.block_table(seq)

    def num_computed(self, seq: str) -> int:
        return self.target.num_computed(seq)

    def free_count(self) -> int:
        return sum(view.free_count() for view in self.views)

    def used_count(self) -> int:
        return sum(view.used_count() for view in self.views)

    def drain_events(self) -> Sequence[CacheEvent]:
        """The changes of the cache by the last operation; the acceptor has judged them."""
        return self.events


def _twice(batch: Sequence[tuple[str, int | Tags]]) -> str | None:
    named = Counter(seq for seq, _ in batch)
    return next((f"{seq} is named twice in one write" for seq, n in named.items() if n > 1), None)


def _count(tags: int | Tags) -> int:
    return tags if isinstance(tags, int) else len(tags)


def bad_tokens(tokens: Sequence[int]) -> str | None:
    return "a negative token" if len(tokens) and min(tokens) < 0 else None


def _no_holder(handle: int) -> None:
    raise MisuseError(f"nobody holds a block by {handle}")
