"""Managers with a mistake that only several threads can show, each as a `Factory`, with a program that shows it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final, NamedTuple

from kvspec.impl.block import Block, BlockRecord, TrackedBlock
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.concurrent_block_manager_impl import (
    ConcurrentBlock,
    ConcurrentBlockManagerImpl,
    ConcurrentPrefixCache,
    TrackedConcurrentBlock,
)
from kvspec.impl.interleaving.soak import plain_counter
from kvspec.impl.interleaving.steps import Factory, Stepper, watched
from kvspec.impl.prefix_cache import CacheEntry, PrefixCache


class UnlocksBeforeFree(ConcurrentBlockManagerImpl):
    """The lock is given up once more before an id goes back to the free list."""

    def free(self, block_id: int) -> None:
        self.lock_.__exit__(None, None, None)
        try:
            BlockManagerImpl.free(self, block_id)
        finally:
            self.lock_.__enter__()


class ChecksBeforeLock(ConcurrentBlockManagerImpl):
    """An allocation looks for room before it has the lock."""

    def allocate(self, num_blocks: int) -> list[Block] | None:
        if not self.has_enough_blocks(num_blocks):
            return None
        with self.lock_:
            self.num_used_blocks_ += num_blocks
            return self._pop_blocks(num_blocks, counted=True)


class LateReport(ConcurrentBlock):
    """The count changes under the lock; the cache learns of it after the lock was given up."""

    __slots__ = ()

    def release(self) -> None:
        record = self._record("release")
        manager = record.manager_
        assert isinstance(manager, ConcurrentBlockManagerImpl)
        with manager.lock_:
            self.record_ = None
            count = record.ref_count_ - 1
            record.ref_count_ = count
            if not count:
                manager.free(record.id_)
        if count == 1 and record.hash_value_ is not None:
            manager.block_idle(record)


class ReportsLate(ConcurrentBlockManagerImpl):
    """As its handles do."""

    handle_types_ = (LateReport, TrackedConcurrentBlock)


def drop_as_if_alone(cache: ConcurrentPrefixCache, entry: CacheEntry) -> None:
    """Drop an entry in the belief that the cache's handle is the last one."""
    record: BlockRecord | None = entry.record_
    assert record is not None
    cache._idle.pop(entry.key, None)
    cache.num_idle_ -= 1
    record.ref_count_ = 1
    cache._drop(entry)


class EvictsAnything(ConcurrentPrefixCache):
    """Eviction does not look at the count."""

    def evict(self, num_blocks: int) -> int:
        with self.lock_:
            oldest = sorted(self.entries_.values(), key=lambda entry: entry.order)[:num_blocks]
            for entry in oldest:
                drop_as_if_alone(self, entry)
            return len(oldest)


class EvictsAsSeenBefore(ConcurrentPrefixCache):
    """Eviction looks at the count before it has the lock, and not again."""

    def evict(self, num_blocks: int) -> int:
        by_use = sorted(self.entries_.values(), key=lambda entry: entry.order)
        idle = [entry for entry in by_use if entry.record_ is not None and entry.record_.ref_count_ == 1][:num_blocks]
        with self.lock_:
            for entry in idle:
                drop_as_if_alone(self, entry)
        return len(idle)


def plain_lock(stepper: Stepper, num_blocks: int, block_size: int) -> ConcurrentBlockManagerImpl:
    return watched(ConcurrentBlockManagerImpl, stepper, num_blocks, block_size, stepper.lock(recursive=False))


class LocksOutside(ConcurrentBlockManagerImpl):
    """No method that has the lock calls one that takes it, except that an eviction ends in `free`."""

    has_enough_blocks = BlockManagerImpl.has_enough_blocks
    release_blocks = BlockManagerImpl.release_blocks
    block_idle = BlockManagerImpl.block_idle
    block_shared = BlockManagerImpl.block_shared
    handle_types_ = (Block, TrackedBlock)


def plain_lock_in_eviction(stepper: Stepper, num_blocks: int, block_size: int) -> ConcurrentBlockManagerImpl:
    made = watched(LocksOutside, stepper, num_blocks, block_size, stepper.lock(recursive=False))
    made.prefix_cache_ = PrefixCache(block_size, record_events=False)
    return made


def no_lock(stepper: Stepper, num_blocks: int, block_size: int) -> ConcurrentBlockManagerImpl:
    return watched(ConcurrentBlockManagerImpl, stepper, num_blocks, block_size, nullcontext())


def with_manager(kind: type[ConcurrentBlockManagerImpl]) -> Factory:
    def make(stepper: Stepper, num_blocks: int, block_size: int) -> ConcurrentBlockManagerImpl:
        return watched(kind, stepper, num_blocks, block_size, stepper.lock())

    return make


def with_cache(kind: type[ConcurrentPrefixCache]) -> Factory:
    def make(stepper: Stepper, num_blocks: int, block_size: int) -> ConcurrentBlockManagerImpl:
        made = with_manager(ConcurrentBlockManagerImpl)(stepper, num_blocks, block_size)
        assert made.prefix_cache_ is not None
        made.prefix_cache_.__class__ = kind
        return made

    return make


class ConcurrentFault(NamedTuple):
    """A faulty manager.

    Attributes:
        name: how tests call it.
        factory: makes it.
        kind: what it is found by (`Failure.kind`).
        program: a program in which it is found; it holds more than it need.
    """

    name: str
    factory: Factory
    kind: str
    program: str


CONCURRENT_FAULTS: Final = (
    ConcurrentFault(
        "plain_lock",
        plain_lock,
        "deadlock",
        """blocks 2
        setup: a = allocate 1; publish a 1; finish a
        thread: b = allocate 1; finish b
        thread: count""",
    ),
    ConcurrentFault(
        "plain_lock_in_eviction",
        plain_lock_in_eviction,
        "deadlock",
        """blocks 2
        setup: a = allocate 1; publish a 1; finish a
        thread: b = allocate 1; finish b
        thread: count""",
    ),
    ConcurrentFault(
        "plain_counter_copy",
        plain_counter,
        "use after free",
        """blocks 3
        setup: a = allocate 1; b = copy a
        thread: finish a; c = allocate 1
        thread: d = copy b; release b""",
    ),
    ConcurrentFault(
        "plain_counter_release",
        plain_counter,
        "lost id",
        """blocks 3
        setup: a = allocate 1; b = copy a
        thread: release b; c = allocate 1
        thread: finish a; d = allocate 1""",
    ),
    ConcurrentFault(
        "unlock_before_free",
        with_manager(UnlocksBeforeFree),
        "lost id",
        """blocks 4
        setup: a = allocate 1; b = copy a; finish a; c = allocate 1; d = copy c; finish c
        thread: release b; e = allocate 1
        thread: release d; count""",
    ),
    ConcurrentFault(
        "check_before_lock",
        with_manager(ChecksBeforeLock),
        "use after free",
        """blocks 3
        setup: z = allocate 1
        thread: a = allocate 1; finish a
        thread: b = allocate 1; finish b""",
    ),
    ConcurrentFault(
        "late_report",
        with_manager(ReportsLate),
        "idle entries",
        """blocks 3
        setup: a = allocate 1; publish a 1; b = copy a; finish a
        thread: release b; count
        thread: c = match 1 1; d = allocate 2""",
    ),
    ConcurrentFault(
        "evict_anything",
        with_cache(EvictsAnything),
        "use after free",
        """blocks 3
        setup: a = allocate 1; publish a 1; finish a
        thread: b = match 1 1; finish b
        thread: evict 1; c = allocate 1""",
    ),
    ConcurrentFault(
        "evict_as_seen_before",
        with_cache(EvictsAsSeenBefore),
        "use after free",
        """blocks 3
        setup: a = allocate 1; publish a 1; finish a
        thread: b = match 1 1; finish b
        thread: evict 1; c = allocate 1""",
    ),
    ConcurrentFault(
        "no_lock",
        no_lock,
        "use after free",
        """blocks 4
        thread: a = allocate 1; finish a
        thread: b = allocate 1; c = copy b""",
    ),
)
"""All faulty managers."""
