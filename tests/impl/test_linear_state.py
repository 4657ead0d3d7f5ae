"""State slots: what each may become, who is evicted first, and what cannot be."""

from __future__ import annotations

import pytest

from kvspec.impl.errors import ClosedError, DoubleFreeError, ForeignHandleError, InvalidRangeError, ReleasedHandleError
from kvspec.impl.linear_state import Checkpoint, LinearStatePrefixCache
from kvspec.impl.sanitizer import Sanitizer

A, B, C, D = b"a", b"b", b"c", b"d"


def committed(cache: LinearStatePrefixCache, *keys: bytes) -> list[Checkpoint]:
    """Checkpoints under these keys, in this order."""
    found = []
    for key in keys:
        pending = cache.reserve(key)
        assert pending is not None
        cache.commit(pending)
        found.append(pending)
    return found


def state(cache: LinearStatePrefixCache) -> tuple[object, ...]:
    """All that can be seen, and the orders of the free list and of use."""
    return (
        cache.slots_.free_ids(),
        [(key, entry.slot, entry.order, entry.pins) for key, entry in cache.entries_.items()],
        [(key, entry.slot) for key, entry in cache.pending_.items()],
        dict.fromkeys(cache._fresh),
    )


def slots_are_in_one_state(cache: LinearStatePrefixCache, live: list[int]) -> None:
    owned = [entry.slot for entry in [*cache.entries_.values(), *cache.pending_.values()]]
    assert sorted([*cache.slots_.free_ids(), *owned, *live]) == list(range(1, cache.slots_.num_total_blocks))


# -- states of a slot -------------------------------------------------------------------------------------------------
def test_a_live_slot_is_fresh_until_it_was_taken_to_be_zeroed() -> None:
    cache = LinearStatePrefixCache(4)
    first, second = cache.acquire_live_slot(), cache.acquire_live_slot()
    assert first is not None and second is not None
    assert (first.id, second.id) == (1, 2)
    cache.release_live_slot(second)
    assert cache.take_fresh_slots() == [1]
    assert cache.take_fresh_slots() == []
    cache.restart(first)
    cache.restart(first)
    assert cache.take_fresh_slots() == [1]
    slots_are_in_one_state(cache, [1])


def test_pending_cannot_be_matched_and_committed_can() -> None:
    cache = LinearStatePrefixCache(4)
    pending = cache.reserve(A)
    assert pending is not None
    assert not cache.contains(A)
    assert cache.match_and_pin(A) is None
    cache.commit(pending)
    assert cache.contains(A)
    assert cache.match_and_pin(A) is pending
    assert pending.pins == 1
    slots_are_in_one_state(cache, [])


def test_an_aborted_reservation_is_a_free_slot() -> None:
    cache = LinearStatePrefixCache(4)
    before = state(cache)
    pending = cache.reserve(A)
    assert pending is not None
    cache.abort(pending)
    assert state(cache) == before
    with pytest.raises(ForeignHandleError, match="given up"):
        _ = pending.slot


def test_one_checkpoint_for_a_key() -> None:
    cache = LinearStatePrefixCache(6)
    pending = cache.reserve(A)
    assert cache.reserve(A) is None
    assert pending is not None
    cache.commit(pending)
    before = state(cache)
    assert cache.reserve(A) is None
    assert state(cache) == before


# -- eviction ---------------------------------------------------------------------------------------------------------
def test_the_least_recently_used_goes_first() -> None:
    cache = LinearStatePrefixCache(5)
    committed(cache, A, B, C)
    found = cache.match_and_pin(A)
    assert found is not None
    cache.unpin(found)
    assert list(cache.entries_) == [B, C, A]
    assert cache.evict(1) == 1
    assert list(cache.entries_) == [C, A]
    assert cache.evict(7) == 2
    assert cache.num_free_slots == 4


def test_pinned_ones_are_passed_over_as_often_as_they_are_pinned() -> None:
    cache = LinearStatePrefixCache(5)
    first, _ = committed(cache, A, B)
    assert cache.match_and_pin(A) is cache.match_and_pin(A) is first
    assert cache.num_idle == 1
    assert cache.evict(9) == 1
    cache.unpin(first)
    assert cache.evict(9) == 0
    cache.unpin(first)
    assert cache.evict(9) == 1
    assert len(cache.entries_) == 0


@pytest.mark.parametrize("want", ["live", "pending"])
def test_idle_checkpoints_give_way_and_nothing_else_does(want: str) -> None:
    cache = LinearStatePrefixCache(5)
    live = cache.acquire_live_slot()
    pending = cache.reserve(A)
    pinned, idle = committed(cache, B, C)
    cache.match_and_pin(B)
    assert live is not None and pending is not None
    slot = idle.slot

    def take() -> int | None:
        if want == "live":
            block = cache.acquire_live_slot()
            return None if block is None else block.id
        reserved = cache.reserve(D)
        return None if reserved is None else reserved.slot

    assert take() == slot
    assert list(cache.entries_) == [B] and not cache.contains(C)
    before = state(cache)
    assert take() is None
    assert state(cache) == before
    assert (live.id, pending.slot, pinned.slot) == (1, 2, 3)


def test_reset_drops_what_nobody_waits_for() -> None:
    cache = LinearStatePrefixCache(6)
    pinned, _ = committed(cache, A, B)
    pending = cache.reserve(C)
    cache.match_and_pin(A)
    assert pending is not None
    assert cache.reset() == 1
    assert list(cache.entries_) == [A] and list(cache.pending_) == [C]
    cache.unpin(pinned)
    cache.commit(pending)
    assert cache.reset() == 2
    assert cache.num_free_slots == 5


# -- calls that are refused -------------------------------------------------------------------------------------------
def test_a_cancelled_slot_brings_back_the_checkpoint_that_gave_way() -> None:
    cache = LinearStatePrefixCache(4)
    committed(cache, A, B, C)
    found = cache.match_and_pin(A)
    before = state(cache)
    slot = cache.acquire_live_slot()
    assert slot is not None and not cache.contains(B)
    cache.cancel_live_slot(slot)
    assert state(cache) == before
    assert found is not None
    cache.unpin(found)
    assert [cache.evict(1) and list(cache.entries_) for _ in range(3)] == [[C, A], [A], []]


def test_a_cancelled_slot_that_was_free_is_free_again() -> None:
    cache = LinearStatePrefixCache(4)
    before = state(cache)
    slot = cache.acquire_live_slot()
    assert slot is not None
    cache.cancel_live_slot(slot)
    assert state(cache) == before


def test_a_cancelled_match_was_no_use() -> None:
    cache = LinearStatePrefixCache(4)
    first, _, _ = committed(cache, A, B, C)
    before, order = state(cache), first.order
    assert cache.match_and_pin(A) is first
    assert list(cache.entries_) == [B, C, A]
    cache.cancel_match(first, order)
    assert state(cache) == before


# -- misuse -----------------------------------------------------------------------------------------------------------
def test_misuse_changes_nothing() -> None:
    cache, other = LinearStatePrefixCache(5), LinearStatePrefixCache(5)
    live, foreign = cache.acquire_live_slot(), other.acquire_live_slot()
    (done,) = committed(cache, A)
    pending = cache.reserve(B)
    assert live is not None and foreign is not None and pending is not None
    cache.release_live_slot(live)
    before = state(cache)
    for error, call in [
        (ForeignHandleError, lambda: cache.release_live_slot(foreign)),
        (ForeignHandleError, lambda: cache.release_live_slot(live)),
        (ForeignHandleError, lambda: cache.commit(done)),
        (ForeignHandleError, lambda: cache.abort(done)),
        (ForeignHandleError, lambda: cache.commit(Checkpoint(B, foreign))),
        (DoubleFreeError, lambda: cache.unpin(done)),
        (InvalidRangeError, lambda: cache.evict(-1)),
    ]:
        with pytest.raises(error):
            call()
        assert state(cache) == before
    with pytest.raises(ReleasedHandleError):
        _ = live.id


@pytest.mark.parametrize("num_slots", [0, 1])
def test_a_cache_needs_a_slot(num_slots: int) -> None:
    with pytest.raises(InvalidRangeError):
        LinearStatePrefixCache(num_slots)


def test_close_gives_everything_up() -> None:
    sanitizer = Sanitizer()
    cache = LinearStatePrefixCache(5, sanitizer=sanitizer)
    committed(cache, A)
    assert cache.reserve(B) is not None
    cache.close()
    assert sanitizer.is_clean
    with pytest.raises(ClosedError):
        cache.acquire_live_slot()
