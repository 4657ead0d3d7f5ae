"""Composites: tables of several groups that grow, slide and drain together, for all sizes of blocks and windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from inspect import signature
from itertools import product

import faulty.composite_twins as twins
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from small_composites import (
    KNOWN,
    Program,
    Step,
    judged,
    new_sequence,
    of_composite,
    programs,
    sees,
    word_of,
)

import kvspec.spec.window as spec
from kvspec.impl.block import release_all
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.composite_block_manager import CompositeBlockManager
from kvspec.impl.errors import ClosedError, ForeignHandleError, InvalidRangeError, KVCacheError, NoIdsError
from kvspec.impl.paging import released_blocks
from kvspec.impl.sequence import NO_BLOCK, Sequence
from kvspec.impl.sliding_window_block_manager import SlidingWindowBlockManager
from kvspec.model.conformance import ManagerType

EXAMPLES = 3 * settings.default.max_examples  # type: ignore[union-attr]
FULL = ManagerType(9, 2)
WINDOW = ManagerType(9, 2, window=3)
GROUPS = (FULL, WINDOW, ManagerType(30, 1, window=1))


def grown(manager: CompositeBlockManager, num_tokens: int, computed: int) -> Sequence:
    """A sequence with room for so many tokens, and so many computed."""
    sequence = new_sequence()
    assert manager.allocate_for_sequence(sequence, num_tokens)
    sequence.advance(computed)
    return sequence


def tables(sequence: Sequence) -> list[list[int]]:
    """Its tables of ids."""
    return [table.ids_.tolist() for table in sequence.kv_state_.groups_]


# -- the rule ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 13])
def test_all_blocks_go_that_no_later_query_sees_and_no_other(window: int, block_size: int) -> None:
    kind = ManagerType(99, block_size, window)
    for computed in range(30):
        seen = {p // block_size for q in range(computed, 60) for p in range(q + 1) if sees(kind, q, p)}
        assert released_blocks(computed, window, block_size) == min(seen)
        assert released_blocks(computed, window, block_size) == spec.released_blocks(computed, window, block_size)


def test_sub_managers_are_of_their_types() -> None:
    manager = CompositeBlockManager(GROUPS)
    assert [type(m) for m in manager.sub_managers_] == [
        BlockManagerImpl, SlidingWindowBlockManager, SlidingWindowBlockManager,
    ]  # fmt: skip
    assert [(m.num_total_blocks, m.block_size_) for m in manager.sub_managers_] == [(9, 2), (9, 2), (30, 1)]
    assert all(m.prefix_cache_ is None for m in manager.sub_managers_)
    assert (manager.num_total_blocks, manager.num_free_blocks, manager.num_used_blocks) == (48, 45, 0)


# -- growing and sliding ----------------------------------------------------------------------------------------------
def test_every_group_grows_by_its_own_blocks() -> None:
    manager = CompositeBlockManager(GROUPS)
    sequence = grown(manager, 5, 0)
    assert tables(sequence) == [[1, 2, 3], [1, 2, 3], [1, 2, 3, 4, 5]]
    assert [[block and block.id for block in row] for row in sequence.kv_state_.composite_blocks_] == tables(sequence)
    assert sequence.kv_state_.blocks_ == [] and sequence.room == 5
    assert manager.num_used_blocks == 11


def test_what_leaves_the_window_keeps_its_place_and_may_come_again() -> None:
    """Of 8 tokens the next query sees three, or itself alone; the block that has gone is the first free one."""
    manager = CompositeBlockManager(GROUPS)
    sequence = grown(manager, 8, 8)
    assert manager.allocate_for_sequence(sequence, 9)
    assert tables(sequence) == [
        [1, 2, 3, 4, 5],
        [NO_BLOCK, NO_BLOCK, NO_BLOCK, 4, 1],
        [NO_BLOCK] * 8 + [1],
    ]
    assert sequence.kv_state_.composite_blocks_[1][:3] == [None] * 3
    assert manager.num_used_blocks == 5 + 2 + 1
    manager.deallocate_sequence(sequence)
    for part in manager.sub_managers_:
        assert sorted(part.free_ids()) == list(range(1, part.num_total_blocks))


def test_scheduled_tokens_and_drafts_let_nothing_go() -> None:
    manager = CompositeBlockManager([WINDOW])
    sequence = grown(manager, 16, 3)
    assert manager.slide(sequence) == 0
    sequence.advance(9, confirmed=3)
    assert manager.slide(sequence) == 0
    manager.truncate_sequence(sequence, 4, manager.resumable(sequence, 4))
    assert (sequence.computed_, sequence.confirmed_, len(tables(sequence)[0])) == (4, 3, 2)
    sequence.advance(sequence.computed_)
    assert manager.slide(sequence) == 1


def test_behind_its_window_a_sequence_starts_over() -> None:
    manager = CompositeBlockManager([FULL, WINDOW])
    sequence = grown(manager, 12, 8)
    assert manager.slide(sequence) == 3
    assert [manager.resumable(sequence, n) for n in (8, 7, 5)] == [8, 0, 0]
    before = of_composite(manager, sequence)
    with pytest.raises(InvalidRangeError, match="window has been released"):
        manager.truncate_sequence(sequence, 7, 7)
    assert of_composite(manager, sequence) == before
    manager.truncate_sequence(sequence, 7, 0)
    assert (sequence.computed_, sequence.confirmed_, tables(sequence)) == (0, 0, [[], []])
    assert manager.num_used_blocks == 0
    assert manager.allocate_for_sequence(sequence, 7)
    assert NO_BLOCK not in tables(sequence)[1]


def test_own_blocks_out_of_the_window_serve_before_a_refusal() -> None:
    manager = CompositeBlockManager([ManagerType(5, 2, window=3)])
    sequence = grown(manager, 8, 8)
    assert manager.num_free_blocks == 0
    assert manager.allocate_for_sequence(sequence, 10)
    assert tables(sequence) == [[NO_BLOCK, NO_BLOCK, NO_BLOCK, 4, 1]]
    other = new_sequence()
    assert not manager.allocate_for_sequence(other, 6)
    assert manager.allocate_for_sequence(other, 4)


def test_others_do_not_slide_for_a_sequence() -> None:
    manager = CompositeBlockManager([ManagerType(5, 2, window=3)])
    sequence = grown(manager, 8, 8)
    before = of_composite(manager, sequence)
    assert not manager.allocate_for_sequence(new_sequence(), 1)
    assert of_composite(manager, sequence) == before


# -- refused, or failing, at every group ------------------------------------------------------------------------------
class Broken(Exception):
    """A group fails with an error of its own."""


def refuse() -> None:
    return None


def fail() -> None:
    raise Broken


@pytest.mark.parametrize("end", [refuse, fail])
@pytest.mark.parametrize("group", range(3))
@pytest.mark.parametrize("computed", [None, 0, 4, 6], ids="{} computed".format)
def test_all_groups_grow_or_none(
    computed: int | None, group: int, end: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = CompositeBlockManager(GROUPS, sanitize=True)
    sequence = new_sequence() if computed is None else grown(manager, 6, computed)
    manager.slide(sequence)
    before = of_composite(manager, sequence)
    with monkeypatch.context() as patch:
        patch.setattr(manager.sub_managers_[group], "allocate", lambda num_blocks: end())
        if end is fail:
            with pytest.raises(Broken):
                manager.allocate_for_sequence(sequence, 11)
        else:
            assert not manager.allocate_for_sequence(sequence, 11)
    assert of_composite(manager, sequence) == before
    assert manager.allocate_for_sequence(sequence, 11)
    manager.deallocate_sequence(sequence)
    assert manager.num_free_blocks == manager.num_total_blocks - 3
    assert all(part.sanitizer_ is not None and part.sanitizer_.is_clean for part in manager.sub_managers_)


@pytest.mark.parametrize("small", range(3))
def test_refused_by_the_group_that_is_out_of_blocks(small: int) -> None:
    groups = [replace(kind, num_blocks=3 if n == small else 99) for n, kind in enumerate(GROUPS)]
    manager = CompositeBlockManager(groups)
    sequence = new_sequence()
    before = of_composite(manager, sequence)
    fits = 2 * groups[small].block_size
    assert not manager.allocate_for_sequence(sequence, fits + 1)
    assert of_composite(manager, sequence) == before
    assert manager.allocate_for_sequence(sequence, fits)


# -- misuse -----------------------------------------------------------------------------------------------------------
CALLS: dict[str, Callable[[CompositeBlockManager, Sequence], object]] = {
    "allocate_for_sequence": lambda manager, sequence: manager.allocate_for_sequence(sequence, 5),
    "slide": lambda manager, sequence: manager.slide(sequence),
    "truncate_sequence": lambda manager, sequence: manager.truncate_sequence(sequence, 1, 1),
    "deallocate_sequence": lambda manager, sequence: manager.deallocate_sequence(sequence),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("owner", ["composite", "manager"])
def test_a_sequence_of_another_manager_is_an_error(owner: str, call: str) -> None:
    manager, other = CompositeBlockManager(GROUPS), CompositeBlockManager(GROUPS)
    sequence = grown(other, 4, 4)
    if owner == "manager":
        sequence = new_sequence()
        sequence.kv_state_.add_kv_blocks(BlockManagerImpl(4, 1).allocate(2) or [], taken=True)
    before = of_composite(manager, sequence), of_composite(other, sequence)
    with pytest.raises(ForeignHandleError, match="blocks of another manager"):
        CALLS[call](manager, sequence)
    assert (of_composite(manager, sequence), of_composite(other, sequence)) == before


@pytest.mark.parametrize("num_tokens", [-1, KNOWN + 1])
@pytest.mark.parametrize("call", ["allocate_for_sequence", "truncate_sequence"])
def test_tokens_that_are_not_known_are_an_error(call: str, num_tokens: int) -> None:
    manager = CompositeBlockManager(GROUPS)
    sequence = grown(manager, 8, 8)
    before = of_composite(manager, sequence)
    arguments = [num_tokens] if call == "allocate_for_sequence" else [num_tokens, 0]
    with pytest.raises(InvalidRangeError, match=f"CompositeBlockManager.{call}: {num_tokens} tokens"):
        getattr(manager, call)(sequence, *arguments)
    assert of_composite(manager, sequence) == before


def test_ids_are_those_of_the_sub_managers() -> None:
    manager = CompositeBlockManager(GROUPS)
    sequence = grown(manager, 4, 4)
    before = of_composite(manager, sequence)
    blocks = sequence.kv_state_.handles()
    for call in (lambda: manager.allocate(1), lambda: manager.deallocate(blocks), lambda: manager.free(1)):
        with pytest.raises(NoIdsError, match="belong to the sub-managers"):
            call()
    assert manager.allocate_shared(sequence.tokens_) == []
    assert manager.cache(sequence.tokens_, blocks) == 0
    assert of_composite(manager, sequence) == before


def test_a_composite_of_no_groups_is_refused() -> None:
    with pytest.raises(InvalidRangeError, match="expected at least one"):
        CompositeBlockManager([])


@pytest.mark.parametrize("sizes", [(9, 2, 0), (9, 2, -1), (1, 2, None), (9, 0, 2)], ids=str)
def test_sizes_that_make_no_group_are_refused(sizes: tuple[int, int, int | None]) -> None:
    with pytest.raises(ValueError, match="expected at least"):
        ManagerType(*sizes)


@pytest.mark.parametrize("method", [
    *CALLS, "resumable", "owns", "allocate", "deallocate", "free", "allocate_shared", "cache", "close",
])  # fmt: skip
def test_a_closed_composite_answers_nothing(method: str) -> None:
    manager = CompositeBlockManager(GROUPS)
    sequence = grown(manager, 8, 8)
    before = sequence.kv_state_.handles()
    manager.close()
    values = {
        "sequence": sequence, "num_tokens": 8, "computed": 8, "num_blocks": 1, "blocks": before, "block_id": 1,
        "token_ids": sequence.tokens_,
    }  # fmt: skip
    needed = [p.name for p in signature(getattr(manager, method)).parameters.values() if p.default is p.empty]
    with pytest.raises(ClosedError, match=rf"CompositeBlockManager\.{method}: "):
        getattr(manager, method)(*(values[name] for name in needed))
    assert sequence.kv_state_.handles() == before
    with pytest.raises(KVCacheError):
        release_all(before)


# -- programs ---------------------------------------------------------------------------------------------------------
def test_every_program_finds_what_it_sees_and_loses_nothing() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES)
    @given(programs())
    def run(program: Program) -> None:
        seen.update(judged(CompositeBlockManager, program))

    run()
    wanted = {"grown": 500, "refused": 200, "released": 200, "drafts": 200, "rejected": 80, "started over": 2}
    assert {word: seen[word] for word, least in wanted.items() if seen[word] < least} == {}


# -- managers with one mistake ----------------------------------------------------------------------------------------
ALPHABET = [
    *(Step("run", 0, number) for number in range(1, 7)),
    Step("run", 0, 3, drafts=2),
    Step("reject", 0, 2),
    Step("slide"),
]
"""Steps that programs are made of, shortest programs first."""


def shortest(kind: type[CompositeBlockManager], *types: ManagerType) -> tuple[str, list[Step]] | None:
    """The shortest program, of three steps at most, in which something does not hold, and what; None if all does."""
    for size in range(4):
        for steps in product(ALPHABET, repeat=size):
            word = word_of(kind, Program(types, list(steps)))
            if word is not None:
                assert word_of(CompositeBlockManager, Program(types, list(steps))) is None
                return word, list(steps)
    return None


EDGES = {
    "page larger than the window": ManagerType(9, 4, window=2),
    "window no multiple of the block": ManagerType(9, 2, window=5),
    "window a multiple of the block": ManagerType(9, 2, window=4),
    "window of one token": ManagerType(9, 3, window=1),
    "block of one token": ManagerType(9, 1, window=3),
}
TOO_EARLY = [twins.RoundsUp, twins.OneTokenTooEarly, twins.SlidesByScheduled, twins.SlidesByDrafts]


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("kind", TOO_EARLY)
def test_a_block_that_goes_too_early_is_missed_at_every_edge(kind: type[CompositeBlockManager], edge: str) -> None:
    """Rounding cannot go wrong in blocks of one token."""
    found = shortest(kind, EDGES[edge])
    if (kind, edge) == (twins.RoundsUp, "block of one token"):
        assert found is None
    else:
        assert found is not None and found[0] in ("window", "rejection")


@pytest.mark.parametrize(
    ("kind", "word", "size"),
    [
        (twins.KeepsEarlierGroups, "all or nothing", 2),
        (twins.ForgetsStaged, "all or nothing", 2),
        (twins.SlidesAfterGrowth, "refusal", 2),
        (twins.DrainsFirstGroup, "partition", 1),
        (twins.ClosesUp, "window", 2),
        (twins.KeepsStaleIds, "partition", 2),
        (twins.ForgetsHowFar, "window", 3),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_is_found_in_a_short_program(kind: type[CompositeBlockManager], word: str, size: int) -> None:
    found = shortest(kind, ManagerType(9, 2), ManagerType(4, 2, window=3))
    assert found is not None
    assert (found[0], len(found[1])) == (word, size), found


def test_a_token_that_is_kept_too_long_only_costs_room() -> None:
    words: Counter[str | None] = Counter()

    @settings(max_examples=EXAMPLES)
    @given(programs())
    def run(program: Program) -> None:
        words[word_of(twins.OneTokenTooLate, program)] += 1

    run()
    assert set(words) == {None, "refusal"}
