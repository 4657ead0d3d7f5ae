"""A complete exploration of a pool that is large enough says what every larger pool does."""

from __future__ import annotations

import pytest
from pools.anchor import AnchorPool, anchor

from kvspec.model.exploring.cutoff import blocks_spoken_of
from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.plain import explore
from kvspec.spec import load
from kvspec.spec.language import Chapter

POOL = Chapter(AnchorPool)


@pytest.mark.parametrize(("tokens", "holders"), [([(1,)], 2), ([(1,), (1,)], 3), ([(1,), (2,)], 4)])
def test_from_the_holders_on_no_class_is_new_and_one_block_more_shows_it(
    tokens: list[tuple[int, ...]], holders: int
) -> None:
    """As many blocks are held as there are table cells and prefixes, each holding one; one more is always spare."""
    found = {n: explore(POOL, anchor(n + 1, 1, *tokens), States.RENAMED) for n in range(1, holders + 3)}
    assert [n for n, outcome in found.items() if outcome.covers] == [holders + 1, holders + 2]
    assert found[holders - 1].distinct < found[holders].distinct
    assert len({found[n].distinct for n in (holders, holders + 1, holders + 2)}) == 1


def test_full_states_settle_nothing_of_larger_pools() -> None:
    assert explore(POOL, anchor(5, 1, (1,)), States.LIVE).covers is None


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("blocks", 2), ("prefix_cache", 1), ("handles", 1), ("usage", None)],
)
def test_how_many_blocks_a_chapter_speaks_of_at_a_time(name: str, blocks: int | None) -> None:
    """None where sizes of sets of blocks are compared, or a set of blocks is an argument."""
    assert blocks_spoken_of(load(name)) == blocks


def test_the_small_pool_speaks_of_one_block_at_a_time() -> None:
    assert blocks_spoken_of(POOL) == 1
