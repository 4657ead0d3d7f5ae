"""The host tier: what a copy holds, when its key can be found, and what becomes of it when others go on meanwhile.

Names in brackets are field cases.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvspec.impl.block_manager_pool import ManagerChoice
from kvspec.impl.block_transfer import BlockTransfer
from kvspec.impl.composite_block_manager import ManagerType
from kvspec.impl.errors import ClosedError, InvalidRangeError, KVCacheError, SequenceStateError, TransferStateError
from kvspec.impl.hierarchy_block_manager_pool import HierarchyBlockManagerPool
from kvspec.impl.prefix_cache import PrefixKeys
from kvspec.impl.sequence import Sequence as KVSequence
from kvspec.model.conformance import PoolConfig

SIZE = 2


def make(num_blocks: int = 8, num_host_blocks: int = 8, **options: Any) -> HierarchyBlockManagerPool:
    sizes = {"num_single_blocks": 6, "num_host_blocks": num_host_blocks}
    config = PoolConfig(num_blocks=num_blocks, block_size=SIZE, **sizes | options)
    return HierarchyBlockManagerPool(config, copy_blocks=lambda rank, pairs: None)


def request(tokens: Sequence[int]) -> KVSequence:
    return KVSequence(array("q", tokens), SIZE)


def run(pool: HierarchyBlockManagerPool, tokens: Sequence[int]) -> KVSequence:
    """A sequence that has computed all of its tokens."""
    sequence = request(tokens)
    assert pool.allocate(sequence, len(tokens))
    for transfer in pool.start_loads(0):
        pool.finish_transfer(transfer, True)
    sequence.advance(len(tokens))
    return sequence


def offloaded(pool: HierarchyBlockManagerPool, tokens: Sequence[int], ok: bool = True) -> list[BlockTransfer]:
    """The tokens are computed, copied to the host, and forgotten by the device."""
    pool.deallocate(run(pool, tokens))
    started = pool.start_offloads(0)
    for transfer in started:
        pool.finish_transfer(transfer, ok)
    forget(pool)
    return started


def forget(pool: HierarchyBlockManagerPool) -> None:
    """The device drops what is idle there."""
    manager = pool._ordinary(0)
    assert manager.prefix_cache_ is not None
    manager.prefix_cache_.evict(manager.num_total_blocks)


def on_host(pool: HierarchyBlockManagerPool, tokens: Sequence[int]) -> int:
    """How many leading blocks the host knows."""
    keys = PrefixKeys(SIZE)
    keys.extend(array("q", tokens), len(tokens) // SIZE)
    known = pool._host_cache(0).entries_
    return next((n for n, key in enumerate(keys.chain) if key not in known), len(keys.chain))


def free(pool: HierarchyBlockManagerPool) -> tuple[int, int]:
    """Free blocks of both tiers."""
    return pool.block_managers_[0].num_free_blocks, pool.host_block_managers_[0].num_free_blocks


def drained(pool: HierarchyBlockManagerPool) -> bool:
    pool.reset()
    config, host = pool.config, pool.host_block_managers_[0]
    return free(pool) == (config.num_blocks - 1, host.num_total_blocks - 1) and not host.num_used_blocks


# -- to the host -------------------------------------------------------------------------------------------------------


def test_a_key_is_found_on_the_host_when_its_copy_is_complete_and_not_before() -> None:
    """[B48, B51] Every full computed block is stored, from the first to the last."""
    pool = make()
    pool.deallocate(run(pool, range(7)))
    assert on_host(pool, range(6)) == 0
    started = pool.start_offloads(0)
    assert [t.index for t in started] == [0, 1, 2] and on_host(pool, range(6)) == 0
    for done, transfer in enumerate(started, 1):
        pool.finish_transfer(transfer, True)
        assert on_host(pool, range(6)) == done
    assert drained(pool)


def test_what_is_copied_is_held_until_the_copy_has_ended() -> None:
    pool = make(num_blocks=4)
    pool.deallocate(run(pool, range(6)))
    started = pool.start_offloads(0)
    forget(pool)
    assert free(pool)[0] == 0 and not pool.allocate(request(range(9, 11)), 2)
    sources, targets = ({getattr(t, name) for t in started} for name in ("source_id", "target_id"))
    assert len(sources) == len(targets) == 3
    pool.finish_transfer(started[0], True)
    late = request(range(9, 11))
    assert pool.allocate(late, 2) and late.kv_state_.ids_[0] not in {t.source_id for t in started[1:]}


def test_a_failed_offload_shows_nothing_and_loses_nothing() -> None:
    """[B54] The block is still to be had on the device, and is copied again by whoever ends next."""
    pool = make()
    pool.deallocate(run(pool, range(4)))
    for transfer in pool.start_offloads(0):
        pool.finish_transfer(transfer, False)
    assert on_host(pool, range(4)) == 0 and pool.host_block_managers_[0].num_free_blocks == 7
    again = request(range(5))
    assert pool.allocate_shared(again) == 4
    pool.deallocate(again)
    assert len(pool.start_offloads(0)) == 2


def test_a_block_goes_to_the_host_once() -> None:
    pool = make()
    first, second = run(pool, range(4)), run(pool, range(4))
    pool.deallocate(first)
    pool.deallocate(second)
    assert len(pool.start_offloads(0)) == 2
    offloaded(pool, range(4))
    assert not pool.offload_block_pair_queues_[0]


def test_a_key_that_came_otherwise_meanwhile_keeps_its_block() -> None:
    pool = make()
    pool.deallocate(run(pool, range(4)))
    started = pool.start_offloads(0)
    prefetch = pool.begin_prefetch(array("q", range(4)), PrefixKeys(SIZE), 0)
    pool.plan_prefetch(prefetch, 2)
    pool.finish_prefetch(prefetch, 2)
    for transfer in started:
        pool.finish_transfer(transfer, True)
    assert on_host(pool, range(4)) == 2 and pool.host_block_managers_[0].num_free_blocks == 5


def test_what_the_host_has_no_room_for_stays_on_the_device() -> None:
    """Idle keys of the host give way; what is being copied does not, so a long request is stored in part."""
    pool = make(num_host_blocks=4)
    offloaded(pool, range(6))
    assert on_host(pool, range(6)) == 3
    pool.deallocate(run(pool, range(10, 20)))
    started = pool.start_offloads(0)
    assert [t.index for t in started] == [0, 1, 2] and on_host(pool, range(6)) == 0
    for transfer in started:
        pool.finish_transfer(transfer, True)
    assert on_host(pool, range(10, 20)) == 3 and drained(pool)


# -- from the host -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcomes", list(itertools.product([True, False], repeat=3)), ids=str)
@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
def test_a_sequence_goes_on_behind_the_leading_blocks_that_came(outcomes: tuple[bool, ...], backwards: bool) -> None:
    """[B54] What failed is computed again; nothing counts before all have ended."""
    pool = make()
    offloaded(pool, range(6))
    sequence = request(range(7))
    assert pool.allocate(sequence, 7) and sequence.is_loading and not sequence.computed_
    ends = list(zip(pool.start_loads(0), outcomes, strict=True))
    for number, (transfer, ok) in enumerate(reversed(ends) if backwards else ends):
        assert sequence.is_loading and not sequence.computed_, number
        pool.finish_transfer(transfer, ok)
    complete = next((n for n, ok in enumerate(outcomes) if not ok), 3)
    assert sequence.computed_ == complete * SIZE and not sequence.is_loading
    sequence.advance(7)
    pool.deallocate(sequence)
    assert on_host(pool, range(6)) == 3, "what failed to come is still there"
    assert not pool.offload_block_pair_queues_[0] and drained(pool)


def test_the_device_comes_first_and_the_host_goes_on_behind_it() -> None:
    pool = make()
    offloaded(pool, range(6))
    pool.deallocate(run(pool, range(2)))
    sequence = request(range(7))
    assert pool.allocate(sequence, 7) and sequence.computed_ == 2
    assert [t.index for t in pool.start_loads(0)] == [1, 2]


def test_the_last_token_is_computed_and_only_what_has_room_is_loaded() -> None:
    pool = make()
    offloaded(pool, range(6))
    whole = request(range(6))
    assert pool.allocate(whole, 6) and len(whole.loading_) == 2
    part = request(range(7))
    assert pool.allocate(part, 3) and len(part.loading_) == 2
    for transfer in pool.start_loads(0):
        pool.finish_transfer(transfer, True)
    assert part.computed_ == 4 and pool.allocate(part, 7) and [t.index for t in part.loading_] == [2]


def test_what_is_loaded_stays_on_the_host_until_it_has_come() -> None:
    """[B27] Neither another's offload nor a key that is dropped takes the source away."""
    pool = make(num_blocks=12, num_host_blocks=4)
    offloaded(pool, range(6))
    sequence = request(range(7))
    assert pool.allocate(sequence, 7)
    loads = pool.start_loads(0)
    pool.deallocate(run(pool, range(10, 16)))
    assert not pool.start_offloads(0), "all host blocks are being read"
    pool.host_block_managers_[0].prefix_cache_.reset()  # type: ignore[union-attr]
    assert pool.host_block_managers_[0].num_free_blocks == 0
    for transfer in loads:
        pool.finish_transfer(transfer, True)
    assert sequence.computed_ == 6 and pool.host_block_managers_[0].num_free_blocks == 3


ENDS: dict[str, Callable[[HierarchyBlockManagerPool, KVSequence], None]] = {
    "abort": lambda pool, sequence: pool.abort(sequence),
    "preempt": lambda pool, sequence: pool.preempt(sequence),
    "deallocate": lambda pool, sequence: pool.deallocate(sequence),
    "truncate": lambda pool, sequence: pool.truncate(sequence, 5),
}


@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("end", ENDS)
def test_who_no_longer_waits_lets_go_and_the_copy_keeps_its_block(end: str, ok: bool) -> None:
    """The old copy must not write where the next one reads, nor count for anybody."""
    pool = make(num_blocks=4)
    offloaded(pool, range(6))
    sequence = request(range(7))
    assert pool.allocate(sequence, 6)
    loads = pool.start_loads(0)
    ENDS[end](pool, sequence)
    assert not sequence.is_loading and not sequence.computed_ and not sequence.kv_state_.ids_
    assert free(pool)[0] == 0
    for transfer in loads:
        pool.finish_transfer(transfer, ok)
    assert not sequence.computed_ and free(pool)[0] == 3
    if not sequence.ended_:
        assert pool.allocate(sequence, 5)
        assert [t.index for t in sequence.loading_] == list(range((len(sequence.tokens_) - 1) // SIZE))
        pool.abort(sequence)
    assert drained(pool)


@pytest.mark.parametrize("end", ENDS)
def test_a_copy_that_has_not_begun_is_called_off(end: str) -> None:
    pool = make(num_blocks=4)
    offloaded(pool, range(6))
    sequence = request(range(7))
    assert pool.allocate(sequence, 6)
    ENDS[end](pool, sequence)
    assert free(pool)[0] == 3 and not pool.start_loads(0) and not pool.transfers_


def test_more_room_leaves_the_blocks_in_place_that_are_being_loaded() -> None:
    """Also where a copy that failed has written to them before: nobody has read it."""
    pool = make()
    offloaded(pool, range(6))
    sequence = request(range(7))
    for ok in (False, True):
        assert pool.allocate(sequence, 6)
        loads, table = pool.start_loads(0), sequence.kv_state_.ids_[:3]
        assert pool.allocate(sequence, 7) and sequence.kv_state_.ids_[:3] == table
        for transfer in loads:
            pool.finish_transfer(transfer, ok)
    assert sequence.computed_ == 6


def test_a_block_that_somebody_else_holds_is_not_loaded_into() -> None:
    pool = make()
    sequence = request(range(7))
    assert pool.allocate(sequence, 6) and not sequence.is_loading
    held = pool._ordinary(0).hold(sequence.kv_state_.ids_[1])
    prefetch = pool.begin_prefetch(array("q", range(6)), PrefixKeys(SIZE), 0)
    pool.plan_prefetch(prefetch, 3)
    pool.finish_prefetch(prefetch, 3)
    assert pool.allocate(sequence, 6) and [t.index for t in sequence.loading_] == [0]
    held.release()


# -- from a store ------------------------------------------------------------------------------------------------------


def test_a_prefetch_without_a_plan_has_not_ended() -> None:
    """[B53] Nothing of nothing is not done."""
    pool = make()
    prefetch = pool.begin_prefetch(array("q", range(6)), PrefixKeys(SIZE), 0)
    assert not prefetch.ended
    with pytest.raises(TransferStateError, match="planned: False"):
        pool.finish_prefetch(prefetch, 0)
    assert pool.plan_prefetch(prefetch, 0) == [] and not prefetch.ended
    pool.finish_prefetch(prefetch, 0)
    assert prefetch.ended and drained(pool)


@pytest.mark.parametrize("arrived", range(4))
def test_of_a_prefetch_that_comes_in_part_the_rest_is_given_back(arrived: int) -> None:
    pool = make()
    prefetch = pool.begin_prefetch(array("q", range(7)), PrefixKeys(SIZE), 0)
    assert [index for index, _ in pool.plan_prefetch(prefetch, 3)] == [0, 1, 2]
    assert on_host(pool, range(6)) == 0 and pool.host_block_managers_[0].num_free_blocks == 4
    pool.finish_prefetch(prefetch, arrived)
    assert on_host(pool, range(6)) == arrived and pool.host_block_managers_[0].num_free_blocks == 7 - arrived
    sequence = request(range(7))
    assert pool.allocate(sequence, 7) and len(sequence.loading_) == arrived


def test_a_prefetch_leaves_out_what_is_there_and_ends_with_the_room() -> None:
    pool = make(num_host_blocks=4)
    offloaded(pool, range(2))
    prefetch = pool.begin_prefetch(array("q", range(10)), PrefixKeys(SIZE), 0)
    assert [index for index, _ in pool.plan_prefetch(prefetch, 5)] == [1, 2, 3], "the key before may give way"
    pool.cancel_prefetch(prefetch)
    assert prefetch.ended and pool.host_block_managers_[0].num_free_blocks == 3


# -- both tiers --------------------------------------------------------------------------------------------------------


def test_a_reset_forgets_both_tiers_and_what_is_on_its_way() -> None:
    """[B25]"""
    pool = make()
    offloaded(pool, range(2))
    pool.deallocate(run(pool, range(10, 16)))
    first, *others = pool.start_offloads(0)
    prefetch = pool.begin_prefetch(array("q", range(20, 22)), PrefixKeys(SIZE), 0)
    pool.plan_prefetch(prefetch, 1)
    pool.finish_transfer(first, True)
    pool.reset()
    again = run(pool, range(10, 16))
    pool.deallocate(again)
    assert len(pool.offload_block_pair_queues_[0]) == 3, "what was on its way will not be found: it goes again"
    for transfer in others:
        pool.finish_transfer(transfer, True)
    pool.finish_prefetch(prefetch, 1)
    assert [on_host(pool, t) for t in (range(2), range(10, 16), range(20, 22))] == [0, 0, 0]
    for transfer in pool.start_offloads(0):
        pool.finish_transfer(transfer, True)
    assert on_host(pool, range(10, 16)) == 3 and drained(pool)


def test_after_sleep_the_device_knows_nothing_and_the_host_what_it_knew() -> None:
    """[B24]"""
    pool = make()
    sequence = run(pool, range(6))
    with pytest.raises(SequenceStateError, match="3 device blocks are in use"):
        pool.sleep()
    pool.deallocate(sequence)
    started = pool.start_offloads(0)
    with pytest.raises(SequenceStateError, match="3 device blocks are in use"):
        pool.sleep()
    for transfer in started:
        pool.finish_transfer(transfer, True)
    pool.sleep()
    for call in (lambda: pool.allocate(request(range(2)), 2), lambda: pool.allocate_shared(request(range(2)))):
        with pytest.raises(SequenceStateError, match="the pool sleeps"):
            call()
    pool.wake()
    again = request(range(7))
    assert pool.allocate_shared(again) == 0 and pool.allocate(again, 7) and len(again.loading_) == 3


def test_a_close_gives_back_what_is_planned() -> None:
    pool = make()
    offloaded(pool, range(4))
    sequence = request(range(5))
    assert pool.allocate(sequence, 5)
    pool.abort(sequence)
    pool.deallocate(run(pool, range(10, 14)))
    pool.begin_prefetch(array("q", range(2)), PrefixKeys(SIZE), 0)
    pool.close()
    with pytest.raises(ClosedError):
        pool.start_loads(0)


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_a_transfer_ends_once_and_only_after_it_has_begun() -> None:
    pool = make()
    pool.deallocate(run(pool, range(2)))
    planned = next(iter(pool.transfers_))
    with pytest.raises(TransferStateError, match=r"offload of block 0, rank 0, planned"):
        pool.finish_transfer(planned, True)
    (started,) = pool.start_offloads(0)
    with pytest.raises(TransferStateError, match="started"):
        make().finish_transfer(started, True)
    pool.finish_transfer(started, True)
    with pytest.raises(TransferStateError, match="ended"):
        pool.finish_transfer(started, False)
    assert on_host(pool, range(2)) == 1


MISUSES: dict[str, tuple[Callable[[HierarchyBlockManagerPool], object], str]] = {
    "rank of loads": (lambda pool: pool.start_loads(1), "rank 1"),
    "rank of offloads": (lambda pool: pool.start_offloads(-1), "rank -1"),
    "rank of a prefetch": (lambda pool: pool.begin_prefetch(array("q"), PrefixKeys(SIZE), 3), "rank 3"),
    "keys of other blocks": (lambda pool: pool.begin_prefetch(array("q"), PrefixKeys(3), 0), "keys of blocks of 3"),
    "more than the tokens have": (lambda pool: pool.plan_prefetch(begun(pool), 4), "4 blocks; expected 0 to 3"),
    "fewer than none": (lambda pool: pool.plan_prefetch(begun(pool), -1), "-1 blocks"),
    "planned twice": (lambda pool: [pool.plan_prefetch(p, 1) for p in [begun(pool)] * 2], "planned: True"),
    "more than were planned": (lambda pool: pool.finish_prefetch(planned(pool), 3), "3 blocks; expected 0 to 2"),
    "ended twice": (lambda pool: [pool.finish_prefetch(p, 1) for p in [planned(pool)] * 2], "ended or of another"),
    "cancelled twice": (lambda pool: [pool.cancel_prefetch(p) for p in [begun(pool)] * 2], "ended or of another"),
    "awake": (lambda pool: pool.wake(), "it is awake"),
    "asleep": (lambda pool: [pool.sleep() for _ in range(2)], "the pool sleeps"),
}


def begun(pool: HierarchyBlockManagerPool) -> Any:
    return pool.begin_prefetch(array("q", range(7)), PrefixKeys(SIZE), 0)


def planned(pool: HierarchyBlockManagerPool) -> Any:
    prefetch = begun(pool)
    pool.plan_prefetch(prefetch, 2)
    return prefetch


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_says_what_was_expected(misuse: str) -> None:
    call, words = MISUSES[misuse]
    with pytest.raises(KVCacheError, match=words):
        call(make())


@pytest.mark.parametrize(
    ("hosts", "choice"),
    [(0, ManagerChoice()), (8, ManagerChoice(manager_types=(ManagerType(num_blocks=4, block_size=2),)))],
    ids=["no host tier", "composite"],
)
def test_pools_that_have_no_host_tier(hosts: int, choice: ManagerChoice) -> None:
    config = PoolConfig(num_blocks=4, block_size=SIZE, num_single_blocks=3, num_host_blocks=hosts)
    with pytest.raises(InvalidRangeError):
        HierarchyBlockManagerPool(config, choice=choice)


@pytest.mark.parametrize(
    "options",
    [{"num_state_slots": 4}, {"enable_prefix_cache": False}, {"num_single_blocks": 0}, {"num_host_blocks": 1}],
)
def test_configs_that_cannot_have_a_host_tier(options: dict[str, Any]) -> None:
    sizes = {"num_single_blocks": 3, "num_host_blocks": 8} | options
    with pytest.raises(ValueError, match=r"num_(host|single)_blocks: .*expected"):
        PoolConfig(num_blocks=4, block_size=SIZE, **sizes)
