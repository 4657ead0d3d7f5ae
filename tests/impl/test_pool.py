"""The pool: ranks, the flows of allocate and deallocate, and calls that are refused at every stage."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items

import pytest
from small_pools import by_use, done, is_empty, of_pool, of_sequence, pool_of, request, restore, run

from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.block_manager_pool import BlockManagerPool, ManagerChoice
from kvspec.impl.concurrent_block_manager_impl import ConcurrentBlockManagerImpl
from kvspec.impl.errors import (
    EndedSequenceError,
    ForeignHandleError,
    InvalidRangeError,
    SequenceStateError,
)
from kvspec.impl.linear_state import LinearStatePrefixCache
from kvspec.impl.sequence import Sequence
from kvspec.impl.single_block_manager import SingleBlockManager
from kvspec.model.conformance import PoolConfig


# -- ranks (seed 5.3) -------------------------------------------------------------------------------------------------
def test_a_newcomer_gets_the_rank_with_the_most_free_blocks_and_keeps_it() -> None:
    pool = pool_of(num_ranks=3)
    first = run(pool, request(pool, range(6)))
    second = run(pool, request(pool, range(4)))
    third = run(pool, request(pool, range(2)))
    assert [s.dp_rank_ for s in (first, second, third)] == [0, 1, 2]
    assert run(pool, request(pool, range(5))).dp_rank_ == 2
    pool.preempt(first)
    assert first.dp_rank_ == 0
    assert pool.get_dp_rank(first) == 0
    run(pool, first)
    assert first.dp_rank_ == 0


@pytest.mark.parametrize(("slots", "rank"), [(8, 1), (0, 0)])
def test_only_with_linear_state_a_rank_without_a_single_block_is_passed_over(slots: int, rank: int) -> None:
    """Rank 0 has the most free blocks, and its only single block is taken."""
    pool = pool_of(num_ranks=2, num_single_blocks=2, num_state_slots=slots)
    pool.single_block_managers_[0].allocate(1)
    pool.block_managers_[1].allocate(5)
    newcomer = request(pool, range(3))
    assert pool.get_dp_rank(newcomer) == rank
    assert pool.allocate(newcomer, 3) == (rank == 1)
    assert newcomer.dp_rank_ == (1 if rank else None)


def test_without_any_single_block_a_newcomer_is_refused() -> None:
    pool = pool_of(num_ranks=2, num_single_blocks=2)
    for manager in pool.single_block_managers_:
        manager.allocate(1)
    newcomer = request(pool, range(3))
    assert pool.get_dp_rank(newcomer) is None
    assert not pool.allocate(newcomer, 3)
    assert newcomer.dp_rank_ is None


def test_a_refused_newcomer_may_have_another_rank_next_time() -> None:
    pool = pool_of(num_blocks=6, num_ranks=2)
    holder = run(pool, request(pool, range(10)))
    other = run(pool, request(pool, range(8)))
    newcomer = request(pool, range(20, 26))
    assert not pool.allocate(newcomer, 6)
    assert newcomer.dp_rank_ is None
    pool.deallocate(holder)
    pool.reset()
    assert pool.allocate(newcomer, 6)
    assert newcomer.dp_rank_ == 0 and other.dp_rank_ == 1


def test_ranks_share_nothing() -> None:
    pool = pool_of(num_ranks=2)
    done(pool, range(8))
    same = request(pool, range(8))
    assert pool.allocate_shared(same) == 0
    same.dp_rank_ = 0
    assert pool.allocate_shared(same) == 6
    elsewhere = of_pool(pool)
    assert isinstance(elsewhere[0], list)
    pool.deallocate(run(pool, same))
    after = of_pool(pool)
    assert isinstance(after[0], list)
    assert elsewhere[0][1] == after[0][1]


@pytest.mark.parametrize("rank", [-1, 2, 77])
def test_an_unknown_rank_is_an_error(rank: int) -> None:
    pool = pool_of(num_ranks=2)
    sequence = request(pool, range(3))
    sequence.dp_rank_ = rank
    for call in (pool.allocate_shared, pool.cache, pool.deallocate, pool.preempt, pool.begin_save):
        with pytest.raises(InvalidRangeError, match=f"rank {rank}"):
            call(sequence)
    with pytest.raises(InvalidRangeError, match="rank"):
        pool.take_fresh_slots(rank)
    assert is_empty(pool)


# -- which manager (seed 5.1) -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("choice", [ManagerChoice(enable_disagg_pd=True), ManagerChoice(enable_kvcache_store=True)])
def test_threads_of_transfers_and_stores_get_the_concurrent_manager(choice: ManagerChoice) -> None:
    pool = BlockManagerPool(PoolConfig(num_blocks=4, block_size=2, num_single_blocks=2, num_ranks=2), choice=choice)
    assert [type(m) for m in pool.block_managers_] == [ConcurrentBlockManagerImpl] * 2


def test_the_ordinary_manager_is_the_default() -> None:
    assert ManagerChoice().class_name == "BlockManagerImpl"
    pool = pool_of(num_ranks=3, num_state_slots=0)
    assert [type(m) for m in pool.block_managers_] == [BlockManagerImpl] * 3
    assert [type(m) for m in pool.single_block_managers_] == [SingleBlockManager] * 3
    assert pool.linear_state_prefix_caches_ == []


def test_a_config_without_single_blocks_is_no_pool() -> None:
    with pytest.raises(InvalidRangeError, match="BlockManagerPool"):
        BlockManagerPool(PoolConfig(num_blocks=4, block_size=2))


# -- allocate and deallocate (seed 5.2, 8) ----------------------------------------------------------------------------
def test_a_sequence_has_three_resources_once() -> None:
    pool = pool_of()
    sequence = request(pool, range(7))
    for num_tokens in (3, 3, 7, 7):
        assert pool.allocate(sequence, num_tokens)
    assert len(sequence.kv_state_.ids_) == 4
    assert sequence.single_block_ is not None and sequence.linear_state_slot_ is not None
    assert pool.single_block_managers_[0].num_used_blocks == 1
    assert pool.linear_state_prefix_caches_[0].slots_.num_used_blocks == 1


def test_allocate_takes_in_the_order_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    pool = pool_of()
    done(pool, range(8))
    for owner, method in STAGES:
        spy(monkeypatch, owner, method, order)
    newcomer = request(pool, range(12))
    assert pool.allocate(newcomer, 12)
    assert order == [
        "SingleBlockManager.allocate", "LinearStatePrefixCache.acquire_live_slot", "SingleBlockManager.allocate",
        "BlockManagerImpl.allocate_shared", "LinearStatePrefixCache.match_and_pin", "BlockManagerImpl.allocate",
    ]  # fmt: skip


def test_deallocate_gives_back_in_the_order_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    pool = pool_of()
    sequence = run(pool, request(pool, range(4)))
    table = sequence.kv_state_.ids_.tolist()
    for owner, method in [
        (BlockManagerImpl, "cache"), (BlockManagerImpl, "deallocate"), (LinearStatePrefixCache, "release_live_slot"),
        (SingleBlockManager, "deallocate"), (BlockManagerImpl, "free"),
    ]:  # fmt: skip
        spy(monkeypatch, owner, method, order)
    pool.deallocate(sequence)
    assert order == [
        "BlockManagerImpl.cache", "BlockManagerImpl.deallocate", "LinearStatePrefixCache.release_live_slot",
        "SingleBlockManager.deallocate", "SingleBlockManager.deallocate",
    ]  # fmt: skip
    assert [pool.block_managers_[0].ref_count(block_id) for block_id in table] == [1, 1], "only the cache holds them"
    assert pool.block_managers_[0].num_used_blocks == 0


def spy(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, order: list[str]) -> None:
    original = getattr(owner, method)

    def call(self: object, *args: object, **kwargs: object) -> object:
        if type(self) is owner:
            order.append(f"{owner.__name__}.{method}")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(owner, method, call)


def test_a_hit_may_be_longer_than_what_was_asked_for() -> None:
    pool = pool_of(num_state_slots=0)
    done(pool, range(8))
    sequence = request(pool, range(8))
    assert pool.allocate(sequence, 2)
    assert sequence.computed_ == 6
    assert len(sequence.kv_state_.ids_) == 3


def test_everything_comes_back() -> None:
    pool = pool_of(num_ranks=2)
    sequences = [run(pool, request(pool, range(start, start + 7))) for start in (0, 0, 20, 40)]
    for end, sequence in zip((pool.deallocate, pool.abort, pool.preempt, pool.deallocate), sequences, strict=True):
        end(sequence)
    assert is_empty(pool)


def test_preempted_and_admitted_again() -> None:
    pool = pool_of()
    sequence = run(pool, request(pool, range(7)), stop=4)
    pool.cache(sequence)
    pool.preempt(sequence)
    assert (sequence.computed_, sequence.kv_state_.ids_.tolist(), sequence.single_block_) == (0, [], None)
    assert sequence.linear_state_slot_ is None
    assert pool.allocate(sequence, 7)
    assert sequence.computed_ == 4 and sequence.is_waiting
    run(pool, sequence)


def test_abort_and_preempt_publish_nothing() -> None:
    pool = pool_of()
    for end in (pool.abort, pool.preempt):
        end(run(pool, request(pool, range(8))))
    assert by_use(pool, 0) == []


# -- hits and trimming (seed 7.2) -------------------------------------------------------------------------------------
def with_checkpoints(pool: BlockManagerPool, tokens: int, positions: list[int]) -> None:
    """A request that has gone, with checkpoints at these positions only."""
    sequence = request(pool, range(tokens))
    while sequence.computed_ < tokens:
        assert pool.allocate(sequence, tokens)
        restore(pool, sequence)
        sequence.advance(min(sequence.computed_ + pool.config.block_size, tokens))
        if sequence.computed_ in positions and pool.begin_save(sequence):
            pool.finish_save(sequence, True)
    pool.deallocate(sequence)


@pytest.mark.parametrize(
    ("trim", "positions", "hit"),
    [
        ("contiguous", [2, 4, 8], 4), ("deepest", [2, 4, 8], 8), ("contiguous", [4, 6], 0), ("deepest", [4, 6], 6),
        ("contiguous", [], 0), ("deepest", [], 0), ("deepest", [2, 10], 2), ("contiguous", [2, 4, 6, 8, 10], 8),
    ],
)  # fmt: skip
def test_a_hit_is_kept_up_to_the_safe_boundary(trim: str, positions: list[int], hit: int) -> None:
    """The last known token, at 10, is computed anew: its boundary is not restored."""
    pool = pool_of(trim=trim)
    with_checkpoints(pool, 10, positions)
    free = pool.block_managers_[0].num_available_blocks
    sequence = request(pool, range(10))
    assert pool.allocate_shared(sequence) == hit
    assert sequence.computed_ == hit and len(sequence.kv_state_.ids_) * 2 == hit
    assert sequence.is_waiting == (hit > 0)
    assert pool.block_managers_[0].num_used_blocks * 2 == hit, "what is trimmed is given back"
    assert pool.block_managers_[0].num_available_blocks == free - sequence.computed_ // 2
    if hit:
        plan = pool.begin_restore(sequence)
        assert plan.source == pool.linear_state_prefix_caches_[0].entries_[sequence.keys_.chain[hit // 2 - 1]].slot
        assert sequence.linear_state_slot_ is not None and plan.target == sequence.linear_state_slot_.id


@pytest.mark.parametrize(("interval", "hit"), [(3, 6), (4, 4), (1, 6), (8, 0), (0, 6)])
def test_hits_end_at_multiples_of_the_stride(interval: int, hit: int) -> None:
    """Blocks of 2; eight tokens, of which seven may be hit."""
    pool = pool_of(checkpoint_interval=interval, num_state_slots=9, num_blocks=30)
    done(pool, range(8))
    assert pool.allocate_shared(request(pool, range(8))) == hit


def test_no_hit_leaves_nothing_behind() -> None:
    pool = pool_of()
    with_checkpoints(pool, 8, [6])
    sequence = request(pool, range(8))
    before = of_pool(pool, sequence)
    assert pool.allocate_shared(sequence) == 0
    assert of_pool(pool, sequence) == before


def test_a_pinned_checkpoint_outlives_its_keys() -> None:
    pool = pool_of(num_state_slots=5)
    done(pool, range(4))
    sequence = request(pool, range(4))
    assert pool.allocate_shared(sequence) == 2
    cache = pool.linear_state_prefix_caches_[0]
    pool.reset()
    assert cache.evict(9) == 0
    source = pool.begin_restore(sequence).source
    assert [entry.slot for entry in cache.entries_.values()] == [source]
    pool.finish_restore(sequence, True)
    assert not sequence.is_waiting
    assert cache.evict(9) == 1


# -- saves and restores -----------------------------------------------------------------------------------------------
def test_what_is_saved_is_matched_only_when_it_is_done() -> None:
    pool = pool_of()
    sequence = request(pool, range(5))
    assert pool.allocate(sequence, 5)
    sequence.advance(2)
    plan = pool.begin_save(sequence)
    assert plan is not None and sequence.linear_state_slot_ is not None
    assert (plan.rank, plan.source) == (0, sequence.linear_state_slot_.id)
    assert plan.target not in (0, plan.source)
    pool.cache(sequence)
    other = request(pool, range(5))
    assert pool.allocate_shared(other) == 0
    pool.finish_save(sequence, True)
    assert pool.allocate_shared(other) == 2


@pytest.mark.parametrize("computed", [0, 1, 3, 5])
def test_only_whole_strides_are_saved(computed: int) -> None:
    pool = pool_of()
    sequence = request(pool, range(5))
    assert pool.allocate(sequence, 5)
    sequence.advance(computed)
    before = of_pool(pool, sequence)
    assert pool.begin_save(sequence) is None
    assert of_pool(pool, sequence) == before


def test_a_checkpoint_that_is_there_or_on_the_way_is_not_made_again() -> None:
    pool = pool_of()
    one, other = request(pool, range(3)), request(pool, range(3))
    for sequence in (one, other):
        assert pool.allocate(sequence, 2)
        sequence.advance(2)
    assert pool.begin_save(one) is not None
    assert pool.begin_save(other) is None
    pool.finish_save(one, True)
    assert pool.begin_save(other) is None
    assert pool.begin_save(one) is None


def test_nothing_is_saved_without_a_prefix_cache_or_a_slot() -> None:
    for options in ({"enable_prefix_cache": False}, {"num_state_slots": 2}):
        pool = pool_of(**options)
        sequence = request(pool, range(3))
        assert pool.allocate(sequence, 2)
        sequence.advance(2)
        assert pool.begin_save(sequence) is None


def test_a_failed_save_gives_its_slot_back_and_a_failed_restore_waits_on() -> None:
    pool = pool_of()
    done(pool, range(4))
    sequence = request(pool, range(6))
    assert pool.allocate_shared(sequence) == 4
    waiting = of_pool(pool, sequence)
    pool.begin_restore(sequence)
    pool.finish_restore(sequence, False)
    assert of_pool(pool, sequence) == waiting
    restore(pool, sequence)
    assert pool.allocate(sequence, 6)
    sequence.advance(6)
    before = of_pool(pool, sequence)
    assert pool.begin_save(sequence) is not None
    pool.finish_save(sequence, False)
    assert of_pool(pool, sequence) == before


def test_fresh_slots_are_those_of_sequences_that_start_from_nothing() -> None:
    pool = pool_of(num_ranks=2)
    sequences = [request(pool, range(4)) for _ in range(3)]
    for sequence in sequences:
        assert pool.allocate(sequence, 4)
    pool.abort(sequences[1])
    assert [pool.take_fresh_slots(rank) for rank in (0, 1)] == [[1, 2], []]
    run(pool, sequences[0])
    pool.truncate(sequences[0], 1)
    assert [pool.take_fresh_slots(rank) for rank in (0, 1)] == [[1], []]


# -- refused at every stage -------------------------------------------------------------------------------------------
STAGES = [
    (SingleBlockManager, "allocate"),
    (LinearStatePrefixCache, "acquire_live_slot"),
    (BlockManagerImpl, "allocate_shared"),
    (LinearStatePrefixCache, "match_and_pin"),
    (BlockManagerImpl, "allocate"),
]
REFUSING = [STAGES[0], STAGES[1], STAGES[4]]


class Broken(Exception):
    """A stage fails with an error of its own."""


def refuse() -> None:
    return None


def fail() -> None:
    raise Broken


class Failing:
    """Lets the n-th sub-allocation of a call fail, counted over all stages."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, how: Callable[[], None], stages: list[tuple[type, str]]
    ) -> None:
        self.countdown = -1
        self._how = how
        for owner, method in stages:
            monkeypatch.setattr(owner, method, self._wrapped(owner, getattr(owner, method)))

    def _wrapped(self, owner: type, original: Callable[..., object]) -> Callable[..., object]:
        def call(manager: object, *args: object, **kwargs: object) -> object:
            if type(manager) is owner:
                self.countdown -= 1
                if self.countdown == 0:
                    return self._how()
            return original(manager, *args, **kwargs)

        return call


def crowded() -> tuple[BlockManagerPool, Sequence, Sequence]:
    """Every slot taken, checkpoints used in some order, a hit that is trimmed; one who is there, and a newcomer."""
    pool = pool_of(num_state_slots=6, num_blocks=14, sanitizer=True, trim="deepest")
    done(pool, [*range(4), 99, 98])
    with_checkpoints(pool, 8, [2, 6])
    other = run(pool, request(pool, range(30, 32)))
    assert other.is_waiting is False
    assert pool.linear_state_prefix_caches_[0].num_free_slots == 0
    return pool, other, request(pool, range(11))


@pytest.mark.parametrize("operation", ["allocate", "allocate_shared"])
@pytest.mark.parametrize(("how", "stages"), [(refuse, REFUSING), (fail, STAGES)], ids=["refused", "broken"])
def test_a_call_that_fails_at_the_nth_stage_changes_nothing(
    operation: str, how: Callable[[], None], stages: list[tuple[type, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, failures = Failing(monkeypatch, how, stages), 0
    for number in range(1, 9):
        pool, other, newcomer = crowded()
        before = of_pool(pool, newcomer)
        failing.countdown = number
        try:
            granted = pool.allocate(newcomer, 11) if operation == "allocate" else pool.allocate_shared(newcomer)
        except Broken:
            granted = False
        met = failing.countdown <= 0
        failing.countdown = -1
        if not granted:
            assert met
            failures += 1
            assert of_pool(pool, newcomer) == before
            assert evicted_in_order(pool) == by_use_before(before)
            assert pool.allocate(newcomer, 11), "and nothing is in its way afterwards"
        for sequence in (newcomer, other):
            pool.abort(sequence)
        pool.close()
    # No slot is free, and one that the free list refuses is taken from a checkpoint: that refusal fails nothing.
    assert failures == {"allocate": {refuse: 3, fail: 6}, "allocate_shared": {refuse: 2, fail: 5}}[operation][how]


def by_use_before(before: tuple[object, ...]) -> list[bytes]:
    blocks = before[0]
    assert isinstance(blocks, list)
    return [key for key, _ in blocks[0][3]]


def evicted_in_order(pool: BlockManagerPool) -> list[bytes]:
    """The keys in the order in which they are evicted, one by one."""
    cache, order = pool.block_managers_[0].prefix_cache_, []
    assert cache is not None
    cache.drain_events()
    while cache.evict(1):
        order += [event.key for event in cache.drain_events()]
    return order


def shortages() -> Iterator[tuple[str, BlockManagerPool]]:
    """Pools in which a newcomer with ten tokens is refused, each for want of something else."""
    yield "single", pool_of(num_single_blocks=2, num_state_slots=0)
    yield "slot", pool_of(num_state_slots=2)
    yield "blocks", pool_of(num_blocks=7)


@pytest.mark.parametrize("want", ["single", "slot", "blocks"])
def test_a_real_shortage_refuses_and_changes_nothing(want: str) -> None:
    pool = dict(shortages())[want]
    done(pool, range(4))
    run(pool, request(pool, range(30, 34)))
    newcomer = request(pool, range(10))
    before = of_pool(pool, newcomer)
    assert not pool.allocate(newcomer, 10)
    assert of_pool(pool, newcomer) == before
    assert pool.allocate_shared(newcomer) == (4 if want == "blocks" else 0)


def test_growth_that_is_refused_changes_nothing() -> None:
    pool = pool_of(num_blocks=6)
    sequence = run(pool, request(pool, range(12)), stop=6)
    before = of_pool(pool, sequence)
    assert not pool.allocate(sequence, 12)
    assert of_pool(pool, sequence) == before
    assert pool.allocate(sequence, 10)


def test_refused_only_for_want() -> None:
    """Granted exactly if the blocks that are missing are free or idle, a hit counted as what it spares."""
    draw = random.Random(3)
    refused = 0
    for _ in range(200):
        pool = pool_of(num_blocks=draw.randint(3, 9), num_state_slots=0)
        for _ in range(draw.randint(0, 3)):
            sequence = request(pool, range(draw.randint(1, 6)))
            if pool.allocate(sequence, len(sequence.tokens_)):
                sequence.advance(len(sequence.tokens_))
                if draw.random() < 0.5:
                    pool.deallocate(sequence)
                else:
                    pool.cache(sequence)
        newcomer, manager = request(pool, range(draw.randint(1, 12))), pool.block_managers_[0]
        assert manager.prefix_cache_ is not None
        limit = (len(newcomer.tokens_) - 1) // 2
        found = manager.prefix_cache_._find(newcomer.tokens_, newcomer.keys_, limit)
        idle = sum(manager.ref_count(entry.id) == 1 for entry in found)
        missing = -(-len(newcomer.tokens_) // 2) - len(found)
        fits = missing <= manager.num_available_blocks - idle
        assert pool.allocate(newcomer, len(newcomer.tokens_)) == fits
        refused += not fits
    assert 40 < refused < 160


# -- ends at every stage ----------------------------------------------------------------------------------------------
def stages_of_a_life(pool: BlockManagerPool, sequence: Sequence) -> Iterator[str]:
    """A sequence at every stage at which it may end."""
    yield "new"
    assert pool.allocate_shared(sequence) == 4
    yield "waiting"
    pool.begin_restore(sequence)
    yield "restoring"
    pool.finish_restore(sequence, False)
    yield "restore failed"
    restore(pool, sequence)
    yield "restored"
    assert pool.allocate(sequence, 9)
    yield "grown"
    sequence.advance(6)
    yield "computed"
    assert pool.begin_save(sequence) is not None
    yield "saving"
    pool.finish_save(sequence, True)
    yield "saved"
    pool.truncate(sequence, 5)
    yield "truncated"
    pool.preempt(sequence)
    yield "preempted"


STAGE_NAMES = [
    "new", "waiting", "restoring", "restore failed", "restored", "grown", "computed", "saving", "saved", "truncated",
    "preempted",
]  # fmt: skip


@pytest.mark.parametrize("end", ["deallocate", "abort", "preempt"])
@pytest.mark.parametrize("stop", STAGE_NAMES)
def test_a_sequence_may_end_at_every_stage(end: str, stop: str) -> None:
    pool = pool_of(num_blocks=20, sanitizer=True)
    done(pool, range(5))
    sequence = request(pool, range(9))
    for stage in stages_of_a_life(pool, sequence):
        if stage == stop:
            break
    getattr(pool, end)(sequence)
    assert sequence.single_block_ is sequence.linear_state_slot_ is sequence.resume_ is sequence.saving_ is None
    assert not sequence.restoring_
    assert pool.block_managers_[0].num_used_blocks == 0
    assert pool.single_block_managers_[0].num_used_blocks == 0
    cache = pool.linear_state_prefix_caches_[0]
    assert cache.pending_ == {} and cache.slots_.num_used_blocks == len(cache.entries_) == cache.num_idle
    assert is_empty(pool)


# -- rejected tokens --------------------------------------------------------------------------------------------------
def test_truncate_goes_back_to_the_deepest_checkpoint() -> None:
    pool = pool_of()
    sequence = run(pool, request(pool, range(9)))
    pool.truncate(sequence, 7)
    assert (sequence.computed_, sequence.is_waiting, len(sequence.kv_state_.ids_)) == (6, True, 3)
    cache = pool.linear_state_prefix_caches_[0]
    del cache.entries_[sequence.keys_.chain[1]]
    pool.truncate(sequence, 5)
    assert (sequence.computed_, sequence.is_waiting, len(sequence.kv_state_.ids_)) == (2, True, 1)
    assert [entry.pins for entry in cache.entries_.values()].count(1) == 1
    restore(pool, sequence)
    pool.truncate(sequence, 1)
    assert (sequence.computed_, sequence.is_waiting, sequence.kv_state_.ids_.tolist()) == (0, False, [])
    assert sequence.linear_state_slot_ is not None
    assert pool.take_fresh_slots(0) == [sequence.linear_state_slot_.id]
    assert pool.allocate(sequence, 1)


def test_truncate_of_tokens_that_are_not_computed_moves_nothing() -> None:
    pool = pool_of()
    sequence = run(pool, request(pool, range(9)), stop=4)
    assert pool.allocate(sequence, 9)
    pool.truncate(sequence, 5)
    assert (sequence.computed_, sequence.is_waiting, len(sequence.kv_state_.ids_)) == (4, False, 3)


@pytest.mark.parametrize("copying", ["save", "restore"])
def test_truncate_gives_up_a_copy_that_runs(copying: str) -> None:
    pool = pool_of()
    done(pool, range(5))
    sequence = request(pool, range(9))
    assert pool.allocate(sequence, 9)
    if copying == "save":
        restore(pool, sequence)
        sequence.advance(6)
        assert pool.begin_save(sequence) is not None
    else:
        pool.begin_restore(sequence)
    pool.truncate(sequence, 3)
    assert (sequence.computed_, sequence.is_waiting, sequence.is_saving, sequence.restoring_) == (2, True, False, False)
    assert pool.linear_state_prefix_caches_[0].pending_ == {}
    pool.abort(sequence)
    assert is_empty(pool)


def test_without_states_truncate_keeps_what_nobody_shares() -> None:
    pool = pool_of(num_state_slots=0)
    sequence = run(pool, request(pool, range(8)))
    pool.truncate(sequence, 5)
    assert (sequence.computed_, len(sequence.kv_state_.ids_)) == (5, 3)
    pool.allocate(sequence, 5)
    sequence = run(pool, request(pool, range(20, 28)))
    pool.cache(sequence)
    pool.truncate(sequence, 5)
    assert (sequence.computed_, len(sequence.kv_state_.ids_)) == (4, 2)
    sequence.tokens_.extend([1, 2])
    assert pool.allocate(sequence, 7)
    assert sequence.forbidden_indices(7) == []


def test_a_block_with_rejected_cells_that_somebody_holds_is_copied() -> None:
    copied: list[tuple[int, list[tuple[int, int]]]] = []
    config = PoolConfig(num_blocks=8, block_size=4, num_single_blocks=2, num_ranks=2)
    pool = BlockManagerPool(config, copy_blocks=lambda rank, pairs: copied.append((rank, list(pairs))))
    sequence = run(pool, request(pool, range(8)))
    pool.truncate(sequence, 6)
    (_, before) = sequence.kv_state_.ids_
    held = pool.block_managers_[0].hold(before)
    sequence.tokens_.extend([7, 8])
    assert pool.allocate(sequence, 8)
    (_, after) = sequence.kv_state_.ids_
    assert copied == [(0, [(before, after)])] and before != after
    held.release()
    assert pool.block_managers_[0].ref_count(before) == 0


def test_such_a_copy_needs_somebody_who_copies() -> None:
    pool = pool_of(num_state_slots=0, block_size=4)
    sequence = run(pool, request(pool, range(8)))
    pool.truncate(sequence, 6)
    held = pool.block_managers_[0].hold(sequence.kv_state_.ids_[1])
    assert pool.allocate(sequence, 6), "nothing is written"
    sequence.tokens_.extend([1])
    before = of_pool(pool, sequence)
    with pytest.raises(SequenceStateError, match="copy_blocks"):
        pool.allocate(sequence, 7)
    assert of_pool(pool, sequence) == before
    held.release()


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize(("num_blocks", "more"), [(8, 0), (8, 6), (6, 5)], ids=["room", "grown", "after evictions"])
def test_a_copy_that_raises_changes_nothing(error: type[BaseException], num_blocks: int, more: int) -> None:
    """But what was evicted for its blocks."""
    working = [False]

    def copy_blocks(rank: int, pairs: Items[tuple[int, int]]) -> None:
        if not working[0]:
            raise error

    config = PoolConfig(num_blocks=num_blocks, block_size=4, num_single_blocks=3, sanitizer=True)
    pool = BlockManagerPool(config, copy_blocks=copy_blocks)
    if more == 5:
        done(pool, range(50, 59))
        assert pool.block_managers_[0].num_free_blocks == 3
    sequence = run(pool, request(pool, range(8)))
    pool.truncate(sequence, 6)
    held = pool.block_managers_[0].hold(sequence.kv_state_.ids_[1])
    sequence.tokens_.extend(range(6, 8 + more))
    before, available = of_pool(pool, sequence), pool.block_managers_[0].num_available_blocks
    with pytest.raises(error):
        pool.allocate(sequence, 8 + more)
    assert pool.block_managers_[0].num_available_blocks == available
    assert of_sequence(sequence) == of_sequence_before(before)
    if more != 5:
        assert of_pool(pool, sequence) == before
    working[0] = True
    assert pool.allocate(sequence, 8 + more) and sequence.forbidden_indices(8 + more) == []
    pool.abort(sequence)
    held.release()
    gc.collect()
    assert is_empty(pool)
    assert all(m.sanitizer_ is not None and m.sanitizer_.is_clean for m in pool.block_managers_)


def of_sequence_before(before: tuple[object, ...]) -> object:
    sequences = before[-1]
    assert isinstance(sequences, list)
    return sequences[0]


# -- misuse -----------------------------------------------------------------------------------------------------------
CALLS: dict[str, Callable[[BlockManagerPool, Sequence], object]] = {
    "allocate": lambda pool, sequence: pool.allocate(sequence, 1),
    "allocate_shared": lambda pool, sequence: pool.allocate_shared(sequence),
    "cache": lambda pool, sequence: pool.cache(sequence),
    "deallocate": lambda pool, sequence: pool.deallocate(sequence),
    "preempt": lambda pool, sequence: pool.preempt(sequence),
    "abort": lambda pool, sequence: pool.abort(sequence),
    "truncate": lambda pool, sequence: pool.truncate(sequence, 0),
    "begin_save": lambda pool, sequence: pool.begin_save(sequence),
    "finish_save": lambda pool, sequence: pool.finish_save(sequence, True),
    "begin_restore": lambda pool, sequence: pool.begin_restore(sequence),
    "finish_restore": lambda pool, sequence: pool.finish_restore(sequence, True),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("end", ["deallocate", "abort"])
def test_a_sequence_is_not_used_after_its_end(call: str, end: str) -> None:
    pool = pool_of()
    sequence = run(pool, request(pool, range(5)))
    getattr(pool, end)(sequence)
    before = of_pool(pool, sequence)
    with pytest.raises(EndedSequenceError, match=rf"BlockManagerPool\.{call}:"):
        CALLS[call](pool, sequence)
    assert of_pool(pool, sequence) == before


@pytest.mark.parametrize("num_tokens", [-1, 3, 8])
def test_counts_that_shrink_or_are_not_known_are_errors(num_tokens: int) -> None:
    pool = pool_of()
    sequence = run(pool, request(pool, range(7)), stop=4)
    before = of_pool(pool, sequence)
    with pytest.raises(InvalidRangeError, match=r"BlockManagerPool\.allocate"):
        pool.allocate(sequence, num_tokens)
    assert of_pool(pool, sequence) == before


def test_a_hit_needs_an_empty_table() -> None:
    pool = pool_of()
    sequence = run(pool, request(pool, range(7)))
    before = of_pool(pool, sequence)
    with pytest.raises(InvalidRangeError, match="empty table"):
        pool.allocate_shared(sequence)
    assert of_pool(pool, sequence) == before


@pytest.mark.parametrize("num_tokens", [-1, 8])
def test_truncate_to_what_is_not_known_is_an_error(num_tokens: int) -> None:
    pool = pool_of()
    sequence = run(pool, request(pool, range(7)))
    before = of_pool(pool, sequence)
    with pytest.raises(InvalidRangeError, match=r"BlockManagerPool\.truncate"):
        pool.truncate(sequence, num_tokens)
    assert of_pool(pool, sequence) == before


def test_copies_out_of_order_are_errors() -> None:
    pool = pool_of()
    done(pool, range(5))
    new, waiting, running = (request(pool, range(9)) for _ in range(3))
    assert pool.allocate(waiting, 9)
    run(pool, running, stop=6)
    wrong = [
        (new, "has no live slot", ("begin_save", "finish_save", "begin_restore", "finish_restore")),
        (waiting, "is waiting", ("begin_save", "finish_save", "finish_restore")),
        (running, "is neither waiting nor being saved", ("finish_save", "begin_restore", "finish_restore")),
    ]
    for sequence, words, calls in wrong:
        before = of_pool(pool, sequence)
        for call in calls:
            with pytest.raises(SequenceStateError, match=rf"BlockManagerPool\.{call}: the sequence {words}; "):
                CALLS[call](pool, sequence)
        assert of_pool(pool, sequence) == before
    pool.begin_restore(waiting)
    with pytest.raises(SequenceStateError, match="the sequence is waiting and is being restored; "):
        pool.begin_restore(waiting)
    running.advance(8)
    assert pool.begin_save(running) is not None
    with pytest.raises(SequenceStateError, match="the sequence is being saved; "):
        pool.begin_save(running)


def test_a_sequence_of_other_blocks_is_an_error() -> None:
    pool, other = pool_of(), pool_of(block_size=3)
    sequence = request(other, range(5))
    with pytest.raises(InvalidRangeError, match="blocks of 3"):
        pool.allocate(sequence, 5)
    assert of_sequence(sequence) == of_sequence(request(other, range(5)))


def without_pool(sequence: Sequence) -> None:
    """Blocks of a manager that is in no pool."""
    sequence.kv_state_.add_kv_blocks(BlockManagerImpl(4, 2).allocate(2) or [], taken=True)
    sequence.advance(2)


@pytest.mark.parametrize("slots", [0, 8])
@pytest.mark.parametrize("call", [*CALLS, "get_dp_rank"])
@pytest.mark.parametrize("stage", ["no pool", *STAGE_NAMES[1:-1]])
def test_a_sequence_of_another_pool_is_an_error(stage: str, call: str, slots: int) -> None:
    """Wherever it stands there, in a pool of the same sizes, and in one without states."""
    owner, pool = pool_of(num_blocks=20), pool_of(num_blocks=20, num_state_slots=slots)
    for each in (owner, pool):
        done(each, range(5))
    sequence = request(owner, range(9))
    if stage == "no pool":
        without_pool(sequence)
    else:
        for reached in stages_of_a_life(owner, sequence):
            if reached == stage:
                break
    before = of_pool(owner, sequence), of_pool(pool, sequence)
    with pytest.raises(ForeignHandleError, match=rf"BlockManagerPool\.{call}: .* blocks of another manager"):
        (CALLS | {"get_dp_rank": BlockManagerPool.get_dp_rank})[call](pool, sequence)
    assert (of_pool(owner, sequence), of_pool(pool, sequence)) == before


def test_a_sequence_that_has_nothing_may_go_to_another_pool() -> None:
    owner, pool = pool_of(), pool_of()
    sequence = run(owner, request(owner, range(9)))
    owner.preempt(sequence)
    pool.deallocate(run(pool, sequence))
    assert is_empty(owner) and is_empty(pool)
