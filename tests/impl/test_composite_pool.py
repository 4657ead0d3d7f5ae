"""A pool whose ranks have composites: the flows of the seed, and that nothing of a sequence stays behind."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from small_composites import of_composite
from small_pools import of_sequence, pool_of

from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.block_manager_pool import BlockManagerPool, ManagerChoice
from kvspec.impl.composite_block_manager import CompositeBlockManager
from kvspec.impl.errors import ForeignHandleError, InvalidRangeError
from kvspec.impl.linear_state import LinearStatePrefixCache
from kvspec.impl.sequence import NO_BLOCK, Sequence
from kvspec.impl.single_block_manager import SingleBlockManager
from kvspec.impl.sliding_window_block_manager import SlidingWindowBlockManager
from kvspec.model.conformance import ManagerType, PoolConfig

TYPES = (ManagerType(9, 2), ManagerType(7, 3, window=4))


def composite_pool(types: tuple[ManagerType, ...] = TYPES, **options: Any) -> BlockManagerPool:
    """A pool with a composite on every rank, without a prefix cache and, unless the options say so, without states."""
    sizes = {"num_blocks": 9, "block_size": 2, "num_single_blocks": 4, "enable_prefix_cache": False} | options
    return BlockManagerPool(PoolConfig(**sizes), choice=ManagerChoice(manager_types=types))


def request(tokens: int = 14, pool: BlockManagerPool | None = None) -> Sequence:
    """A sequence that knows so many tokens."""
    return Sequence(array("q", range(tokens)), pool.config.block_size if pool else 2)


def run(pool: BlockManagerPool, sequence: Sequence, stop: int) -> Sequence:
    """Compute tokens, in one step."""
    assert pool.allocate(sequence, stop)
    sequence.advance(stop)
    return sequence


def composites(pool: BlockManagerPool) -> list[CompositeBlockManager]:
    """Those of the ranks."""
    return [manager for manager in pool.block_managers_ if isinstance(manager, CompositeBlockManager)]


def of_pool(pool: BlockManagerPool, *sequences: Sequence) -> tuple[object, ...]:
    """Everything that a call could have changed."""
    slots = [cache.slots_ for cache in pool.linear_state_prefix_caches_]
    ids = [(part.free_ids(), part.num_used_blocks) for part in (*pool.single_block_managers_, *slots)]
    blocks = [of_composite(manager, *sequences) for manager in composites(pool)]
    return blocks, ids, [of_sequence(sequence) for sequence in sequences]


def is_empty(pool: BlockManagerPool) -> bool:
    """Whether every id of every kind of every rank is free."""
    slots = [cache.slots_ for cache in pool.linear_state_prefix_caches_]
    blocks = [part for manager in composites(pool) for part in manager.sub_managers_]
    parts = [*blocks, *pool.single_block_managers_, *slots]
    return all(part.num_free_blocks == part.num_total_blocks - 1 and not part.num_used_blocks for part in parts)


# -- which manager (seed 5.1) -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("others", [{}, {"enable_disagg_pd": True}, {"enable_kvcache_store": True}], ids=str)
def test_manager_types_make_a_composite_on_every_rank(others: dict[str, bool]) -> None:
    config = PoolConfig(num_blocks=4, block_size=2, num_single_blocks=2, num_ranks=2, enable_prefix_cache=False)
    pool = BlockManagerPool(config, choice=ManagerChoice(manager_types=TYPES, **others))
    assert [[type(part) for part in manager.sub_managers_] for manager in composites(pool)] == [
        [BlockManagerImpl, SlidingWindowBlockManager]
    ] * 2
    assert pool.prefix_caches() == []


def test_a_composite_has_no_prefix_cache() -> None:
    with pytest.raises(InvalidRangeError, match="enable_prefix_cache with manager_types"):
        composite_pool(enable_prefix_cache=True)


# -- flows (seed 5.2, 8, 9.2) -----------------------------------------------------------------------------------------
def test_allocate_takes_in_the_order_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    pool = composite_pool(num_state_slots=4)
    for owner, method in [
        (SingleBlockManager, "allocate"), (LinearStatePrefixCache, "acquire_live_slot"),
        (CompositeBlockManager, "allocate_for_sequence"), (BlockManagerImpl, "allocate"),
    ]:  # fmt: skip
        spy(monkeypatch, owner, method, order)
    assert pool.allocate(request(), 5)
    assert order == [
        "SingleBlockManager.allocate", "LinearStatePrefixCache.acquire_live_slot", "SingleBlockManager.allocate",
        "CompositeBlockManager.allocate_for_sequence", "BlockManagerImpl.allocate", "BlockManagerImpl.allocate",
    ]  # fmt: skip


def spy(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, order: list[str]) -> None:
    original = getattr(owner, method)

    def call(self: object, *args: object, **kwargs: object) -> object:
        order.append(f"{owner.__name__}.{method}")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(owner, method, call)


def test_nothing_is_shared_or_published() -> None:
    pool = composite_pool()
    sequence = run(pool, request(), 8)
    before = of_pool(pool, sequence)
    pool.cache(sequence)
    assert of_pool(pool, sequence) == before
    pool.deallocate(sequence)
    again = request()
    assert pool.allocate_shared(again) == 0
    assert is_empty(pool) and again.dp_rank_ is None
    assert pool.allocate(again, 8) and again.computed_ == 0


@pytest.mark.parametrize("end", ["deallocate", "abort", "preempt"])
@pytest.mark.parametrize("slots", [0, 4])
@pytest.mark.parametrize("computed", [0, 4, 9])
def test_every_sub_manager_is_drained_with_the_single_block_and_the_slot(computed: int, slots: int, end: str) -> None:
    pool = composite_pool(num_state_slots=slots, num_ranks=2, sanitizer=True)
    sequences = [run(pool, request(), computed) for _ in range(2)]
    assert [sequence.dp_rank_ for sequence in sequences] == ([0, 0] if computed == 0 else [0, 1])
    for sequence in sequences:
        assert pool.allocate(sequence, 11)
        assert (NO_BLOCK in sequence.kv_state_.groups_[1].ids_) == (computed == 9)
        getattr(pool, end)(sequence)
        assert sequence.kv_state_.groups_ == [] and sequence.single_block_ is sequence.linear_state_slot_ is None
    assert is_empty(pool)
    for manager in composites(pool):
        assert all(part.sanitizer_ is not None and part.sanitizer_.is_clean for part in manager.sub_managers_)


def test_preempted_and_admitted_again() -> None:
    pool = composite_pool()
    sequence = run(pool, request(), 9)
    run(pool, sequence, 11)
    pool.preempt(sequence)
    assert (sequence.computed_, sequence.confirmed_, sequence.room, sequence.dp_rank_) == (0, 0, 0, 0)
    run(pool, sequence, 9)
    assert NO_BLOCK not in sequence.kv_state_.groups_[1].ids_


def test_a_newcomer_gets_the_rank_with_the_most_free_blocks_of_all_groups() -> None:
    pool = composite_pool(num_ranks=2)
    run(pool, request(), 2)
    assert pool.get_dp_rank(request()) == 1
    with pytest.raises(InvalidRangeError, match="empty table"):
        pool.allocate_shared(run(pool, request(), 2))


# -- refused, or failing, at every stage ------------------------------------------------------------------------------
class Broken(Exception):
    """A stage fails with an error of its own."""


def refuse() -> None:
    return None


def fail() -> None:
    raise Broken


STAGES = ["single", "slot", "first group", "second group"]


def place_of(pool: BlockManagerPool, stage: str) -> tuple[object, str]:
    """What is called at a stage."""
    places: dict[str, tuple[object, str]] = {
        "single": (pool.single_block_managers_[0], "allocate"),
        "slot": (pool.linear_state_prefix_caches_[0], "acquire_live_slot"),
        "first group": (composites(pool)[0].sub_managers_[0], "allocate"),
        "second group": (composites(pool)[0].sub_managers_[1], "allocate"),
    }
    return places[stage]


@pytest.mark.parametrize("end", [refuse, fail])
@pytest.mark.parametrize("stage", STAGES)
def test_a_newcomer_that_is_refused_has_nothing(
    stage: str, end: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, sequence = composite_pool(num_state_slots=4), request()
    run(pool, request(), 3)
    before = of_pool(pool, sequence)
    with monkeypatch.context() as patch:
        patch.setattr(*place_of(pool, stage), lambda *_: end())
        if end is fail:
            with pytest.raises(Broken):
                pool.allocate(sequence, 5)
        else:
            assert not pool.allocate(sequence, 5)
    assert of_pool(pool, sequence) == before
    assert pool.allocate(sequence, 5)


@pytest.mark.parametrize("types", [(ManagerType(4, 2), TYPES[1]), (TYPES[0], ManagerType(3, 3, window=4))], ids=str)
def test_growth_that_a_group_refuses_changes_nothing(types: tuple[ManagerType, ...]) -> None:
    pool = composite_pool(types)
    sequence = run(pool, request(), 4)
    before = of_pool(pool, sequence)
    assert not pool.allocate(sequence, 7)
    assert of_pool(pool, sequence) == before
    assert pool.allocate(sequence, 6)


def test_a_sequence_goes_on_in_a_window_group_that_it_could_not_fill() -> None:
    pool = composite_pool((ManagerType(40, 2), ManagerType(4, 3, window=4)))
    sequence = request(50)
    for stop in range(2, 51, 2):
        run(pool, sequence, stop)
    assert composites(pool)[0].sub_managers_[1].num_used_blocks <= 3
    assert len(sequence.kv_state_.groups_[1].ids_) == 17
    pool.deallocate(sequence)
    assert is_empty(pool)


# -- rejected tokens --------------------------------------------------------------------------------------------------
def test_drafts_are_taken_back_behind_a_window_that_has_slid() -> None:
    pool = composite_pool()
    sequence = run(pool, request(), 8)
    assert pool.allocate(sequence, 12)
    sequence.advance(12, confirmed=8)
    assert pool.allocate(sequence, 12)
    pool.truncate(sequence, 9)
    assert (sequence.computed_, sequence.confirmed_) == (9, 8)
    assert [len(table.ids_) for table in sequence.kv_state_.groups_] == [5, 3]
    assert sequence.kv_state_.groups_[1].ids_.tolist()[0] == NO_BLOCK
    sequence.tokens_.extend(range(9, 14))
    assert pool.allocate(sequence, 14)


@pytest.mark.parametrize(("slots", "num_tokens", "computed"), [(0, 9, 9), (0, 8, 0), (4, 9, 0), (4, 10, 10)])
def test_a_sequence_goes_on_where_its_window_and_its_state_are(slots: int, num_tokens: int, computed: int) -> None:
    """Of ten computed tokens six have left the window; they have not for the query at position 8."""
    pool = composite_pool(num_state_slots=slots)
    sequence = run(pool, request(), 10)
    assert pool.allocate(sequence, 11)
    pool.truncate(sequence, num_tokens)
    assert (sequence.computed_, len(sequence.tokens_)) == (computed, num_tokens)
    places = [-(-(computed and num_tokens) // kind.block_size) for kind in TYPES]
    assert [len(table.ids_) for table in sequence.kv_state_.groups_] == places
    if slots and not computed:
        assert sequence.linear_state_slot_ is not None
        assert pool.take_fresh_slots(0) == [sequence.linear_state_slot_.id]
    assert pool.allocate(sequence, num_tokens)
    pool.deallocate(sequence)
    assert is_empty(pool)


def test_tokens_that_are_not_computed_are_cut_off() -> None:
    pool = composite_pool()
    sequence = run(pool, request(), 4)
    assert pool.allocate(sequence, 12)
    pool.truncate(sequence, 7)
    assert (sequence.computed_, len(sequence.tokens_)) == (4, 7)
    assert [len(table.ids_) for table in sequence.kv_state_.groups_] == [4, 3]


# -- misuse -----------------------------------------------------------------------------------------------------------
CALLS: dict[str, Callable[[BlockManagerPool, Sequence], object]] = {
    "allocate": lambda pool, sequence: pool.allocate(sequence, 9),
    "allocate_shared": lambda pool, sequence: pool.allocate_shared(sequence),
    "cache": lambda pool, sequence: pool.cache(sequence),
    "deallocate": lambda pool, sequence: pool.deallocate(sequence),
    "preempt": lambda pool, sequence: pool.preempt(sequence),
    "abort": lambda pool, sequence: pool.abort(sequence),
    "truncate": lambda pool, sequence: pool.truncate(sequence, 1),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("other", ["composite to composite", "composite to ordinary", "ordinary to composite"])
def test_a_sequence_of_another_pool_is_an_error(other: str, call: str) -> None:
    kinds: dict[str, Callable[[], BlockManagerPool]] = {
        "composite": composite_pool,
        "ordinary": lambda: pool_of(num_state_slots=0, enable_prefix_cache=False),
    }
    made, _, used = other.split()
    owner, pool = kinds[made](), kinds[used]()
    sequence = run(owner, request(), 8)
    before = of_pool(owner, sequence), of_pool(pool, sequence)
    with pytest.raises(ForeignHandleError, match=rf"BlockManagerPool\.{call}: .* blocks of another manager"):
        CALLS[call](pool, sequence)
    assert (of_pool(owner, sequence), of_pool(pool, sequence)) == before


def test_the_end_closes_the_sub_managers() -> None:
    pool = composite_pool(num_ranks=2)
    pool.close()
    assert all(part.closed_ for manager in composites(pool) for part in (manager, *manager.sub_managers_))
