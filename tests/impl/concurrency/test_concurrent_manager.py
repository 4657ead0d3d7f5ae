"""The concurrent manager: what stands under the lock, and that one thread sees no difference (seed 9.1)."""

from __future__ import annotations

import queue
import threading
from array import array
from collections.abc import Callable
from inspect import getattr_static
from types import FunctionType, TracebackType

import pytest
from small_pools import is_empty, request

from kvspec.impl.block import Block, block_ids, release_all
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.block_manager_pool import BlockManagerPool, ManagerChoice
from kvspec.impl.concurrent_block_manager_impl import ConcurrentBlockManagerImpl, ConcurrentPrefixCache
from kvspec.impl.errors import ClosedError, ReleasedHandleError
from kvspec.impl.pool_target import TorchPoolTarget
from kvspec.impl.prefix_cache import PrefixCache
from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.target import TorchTarget
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Form, PoolConfig
from kvspec.model.pools import Pools

TOKENS = array("q", range(4))


class Entered(Exception):
    """Somebody wants the lock."""


class Closed:
    """A lock that nobody gets."""

    def __enter__(self) -> None:
        raise Entered

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        raise AssertionError("nobody has entered")


def public(kind: type) -> list[str]:
    """Names of the methods and properties that others may call."""
    named = [name for name in dir(kind) if not name.startswith("_")]
    return [name for name in named if isinstance(getattr_static(kind, name), FunctionType | property)]


def take(manager: BlockManagerImpl, count: int) -> list[Block]:
    blocks = manager.allocate(count)
    assert blocks is not None
    return blocks


def cache_of(manager: BlockManagerImpl) -> ConcurrentPrefixCache:
    assert isinstance(manager.prefix_cache_, ConcurrentPrefixCache)
    return manager.prefix_cache_


def in_thread(body: Callable[[], object]) -> None:
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()


@pytest.mark.parametrize("name", public(BlockManagerImpl))
def test_a_manager_does_nothing_before_it_has_the_lock(name: str) -> None:
    manager = ConcurrentBlockManagerImpl(4, 2)
    manager.lock_ = Closed()
    with pytest.raises(Entered):
        getattr(manager, name)()


@pytest.mark.parametrize("name", public(PrefixCache))
def test_a_cache_does_nothing_before_it_has_the_lock(name: str) -> None:
    cache = cache_of(ConcurrentBlockManagerImpl(4, 2))
    cache.lock_ = Closed()
    with pytest.raises(Entered):
        getattr(cache, name)()


@pytest.mark.parametrize("sanitizer", [None, Sanitizer()])
def test_every_kind_of_handle_is_copied_and_released_under_the_lock(sanitizer: Sanitizer | None) -> None:
    manager = ConcurrentBlockManagerImpl(4, 2, sanitizer=sanitizer)
    (counted,) = take(manager, 1)
    lock = manager.lock_
    bare, (shared,) = counted.copy(), manager.share([counted])
    manager.cache(TOKENS[:2], [counted])
    (hit,) = manager.allocate_shared(TOKENS[:2])
    held = manager.hold(counted.id)
    for handle in (counted, bare, shared, hit, held, manager.padding_block_):
        manager.lock_ = Closed()
        with pytest.raises(Entered):
            handle.copy()
        with pytest.raises(Entered):
            handle.release()
        manager.lock_ = lock
        assert not handle.is_released
    manager.release_blocks([counted, shared, hit])
    release_all([bare, held])
    manager.close()


def test_the_lock_is_entered_again_when_an_eviction_frees_a_block() -> None:
    manager = ConcurrentBlockManagerImpl(4, 2)
    blocks = take(manager, 2)
    manager.cache(TOKENS, blocks)
    manager.release_blocks(blocks)
    assert (manager.num_free_blocks, manager.num_available_blocks) == (1, 3)
    assert sorted(block.id for block in take(manager, 3)) == [1, 2, 3]


def test_the_last_release_may_be_on_any_thread() -> None:
    manager = ConcurrentBlockManagerImpl(4, 2)
    blocks = take(manager, 1)
    other = blocks[0].copy()
    manager.release_blocks(blocks)
    assert manager.num_free_blocks == 2
    in_thread(other.release)
    assert manager.num_free_blocks == 3
    with pytest.raises(ReleasedHandleError):
        other.release()
    with pytest.raises(ReleasedHandleError):
        other.copy()


def test_what_belongs_together_can_be_one_step() -> None:
    """The lock is the callers', too: nothing comes between the match and what follows it."""
    manager = ConcurrentBlockManagerImpl(4, 2)
    blocks = take(manager, 2)
    manager.cache(TOKENS, blocks)
    order: list[str] = []

    def release() -> None:
        manager.release_blocks(blocks)
        order.append("released")

    other = threading.Thread(target=release)
    with manager.lock_:
        other.start()
        hits = manager.allocate_shared(TOKENS)
        cache_of(manager).undo_use()
        order.append("undone")
    other.join()
    assert order == ["undone", "released"]
    manager.release_blocks(hits)


def orders(manager: BlockManagerImpl) -> list[int]:
    return [entry.order for entry in cache_of(manager).entries_.values()]


def test_an_undone_match_leaves_the_recency_as_it_was() -> None:
    manager = ConcurrentBlockManagerImpl(6, 2)
    blocks = take(manager, 2)
    manager.cache(TOKENS, blocks)
    before = orders(manager)
    hits = manager.allocate_shared(TOKENS)
    assert orders(manager) != before
    cache_of(manager).undo_use()
    assert orders(manager) == before
    manager.release_blocks(hits)
    cache_of(manager).undo_use()
    assert orders(manager) == before, "a match is undone once"


def test_a_match_of_another_thread_is_not_undone() -> None:
    manager = ConcurrentBlockManagerImpl(6, 2)
    blocks = take(manager, 2)
    manager.cache(TOKENS, blocks)
    hits = manager.allocate_shared(TOKENS)
    in_thread(lambda: hits.extend(manager.allocate_shared(TOKENS[:2])))
    second_use = orders(manager)[0]
    in_thread(cache_of(manager).undo_use)
    assert orders(manager)[0] == second_use, "a thread that matched nothing has nothing to undo"
    cache_of(manager).undo_use()
    assert orders(manager)[0] == second_use, "used by the other thread since"
    assert orders(manager)[1] < second_use >> 32 << 32
    manager.release_blocks(hits)


def test_undoing_passes_over_what_was_dropped_meanwhile() -> None:
    manager = ConcurrentBlockManagerImpl(6, 2)
    blocks = take(manager, 2)
    manager.cache(TOKENS, blocks)
    hits = manager.allocate_shared(TOKENS)
    in_thread(cache_of(manager).reset)
    cache_of(manager).undo_use()
    manager.release_blocks([*hits, *blocks])
    assert manager.num_free_blocks == 5


def test_after_close_every_call_and_handle_is_refused() -> None:
    manager = ConcurrentBlockManagerImpl(4, 2)
    (block,) = take(manager, 1)
    manager.close()
    for call in (lambda: manager.allocate(1), block.copy, manager.close):
        with pytest.raises(ClosedError):
            call()
    manager.num_free_blocks  # noqa: B018 - counts can still be read


def test_without_a_cache_there_is_none() -> None:
    manager = ConcurrentBlockManagerImpl(4, 2, enable_prefix_cache=False)
    assert manager.prefix_cache_ is None
    assert manager.allocate_shared(TOKENS) == []


class OnConcurrent(TorchTarget):
    """The sequences of `TorchTarget` on the concurrent manager."""

    def _make_manager(self, record_events: bool) -> BlockManagerImpl:
        config = self.config
        return ConcurrentBlockManagerImpl(
            config.num_blocks,
            config.block_size,
            enable_prefix_cache=config.enable_prefix_cache,
            sanitizer=self.sanitizer_,
            record_events=record_events,
        )


def test_one_thread_sees_the_ordinary_manager() -> None:
    report = conform(OnConcurrent, ConformOptions(operations=1500))
    assert report.violation is None
    assert report.counts["evictions"] > 20 and report.counts["hits"] > 10


TRANSFERS = ManagerChoice(enable_disagg_pd=True)


class PoolOnConcurrent(TorchPoolTarget):
    """A pool of concurrent managers."""

    def _make_pool(self, record_events: bool) -> BlockManagerPool:
        return BlockManagerPool(
            self.config, choice=TRANSFERS, copy_blocks=self._copy_blocks, record_events=record_events
        )


def test_a_pool_of_one_thread_sees_the_ordinary_managers() -> None:
    report = conform(PoolOnConcurrent, ConformOptions(operations=600, form=Form.POOLS), pools=Pools())
    assert report.violation is None
    assert report.counts["evictions"] > 0 and report.counts["hits"] > 0


def test_transfers_give_their_blocks_back_while_the_scheduler_goes_on() -> None:
    """Seed 9.1: requests end while other threads still send their blocks away."""
    pool = BlockManagerPool(PoolConfig(num_blocks=24, block_size=2, num_single_blocks=4), choice=TRANSFERS)
    manager = pool.block_managers_[0]
    sent: queue.SimpleQueue[list[Block] | None] = queue.SimpleQueue()
    failed: list[Exception] = []

    def transfer() -> None:
        try:
            while (blocks := sent.get()) is not None:
                copies = [block.copy() for block in blocks]
                release_all(blocks)
                release_all(copies)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=transfer) for _ in range(4)]
    for thread in threads:
        thread.start()
    refused = 0
    for number in range(400):
        sequence = request(pool, range(number % 5 * 10, number % 5 * 10 + 8))
        if pool.allocate(sequence, 8):
            sequence.advance(8)
            pool.cache(sequence)
            sent.put([manager.hold(block_id) for block_id in block_ids(sequence.kv_state_.blocks_)])
        else:
            refused += 1
        pool.deallocate(sequence)
    for _ in threads:
        sent.put(None)
    for thread in threads:
        thread.join()
    assert not failed
    assert refused < 400
    assert is_empty(pool)
