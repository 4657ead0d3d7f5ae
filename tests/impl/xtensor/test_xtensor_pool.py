"""Pools of ranks whose blocks get memory on demand: all ranks share the physical pages."""

from __future__ import annotations

import mmap

import pytest

from kvspec.impl.block_manager_pool import BlockManagerPool, ManagerChoice, PageSource
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.pool_target import TorchPoolTarget
from kvspec.impl.sequence import Sequence
from kvspec.impl.tokens import as_tokens
from kvspec.impl.xtensor.cpu_memory import CpuMemory
from kvspec.impl.xtensor.page_pool import PagePool
from kvspec.impl.xtensor.xtensor_block_manager_impl import PagesUnavailableError, XTensorBlockManagerImpl
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Form, ManagerType, PoolConfig

ON_DEMAND = ManagerChoice(enable_xtensor=True)
HALF = mmap.PAGESIZE // 2
TWO = PoolConfig(num_blocks=8, block_size=2, num_single_blocks=6, num_ranks=2)


def pages_of(number: int, *, num_regions: int = 2) -> PageSource:
    """So many physical pages for each region; two blocks lie on each."""
    return PageSource(PagePool(CpuMemory(number * num_regions)), HALF, num_regions)


def request(length: int) -> Sequence:
    return Sequence(as_tokens(range(length)), TWO.block_size, b"")


def managers(pool: BlockManagerPool) -> list[XTensorBlockManagerImpl]:
    return [m for m in pool.block_managers_ if isinstance(m, XTensorBlockManagerImpl)]


def test_each_rank_has_a_manager_over_the_same_pages() -> None:
    pages = pages_of(9, num_regions=3)
    pool = BlockManagerPool(TWO, choice=ON_DEMAND, pages=pages)
    found = managers(pool)
    assert len(found) == 2 and {m.pool_ for m in found} == {pages.pool}
    assert {(m.block_bytes_, m.pages_.num_regions_, m.num_total_blocks) for m in found} == {(HALF, 3, 8)}
    assert pages.pool.num_free_pages == 3 * (9 - 2)
    pool.close()
    assert pages.pool.num_free_pages == 3 * 9
    pages.pool.close()


def test_what_one_rank_does_without_another_gets() -> None:
    pages = pages_of(4)
    pool = BlockManagerPool(TWO, choice=ON_DEMAND, pages=pages)
    first, second = request(10), request(6)
    assert pool.allocate(first, 10) and first.dp_rank_ == 0
    assert pool.allocate(second, 2) and second.dp_rank_ == 1
    assert not pool.allocate(second, 6)
    pool.abort(first)
    assert pool.allocate(second, 6)
    assert [len([p for p in range(4) if m.pages_.is_mapped(p)]) for m in managers(pool)] == [2, 2]


def test_a_refused_newcomer_has_nothing() -> None:
    pool = BlockManagerPool(TWO, choice=ON_DEMAND, pages=pages_of(3))
    newcomer = request(10)
    assert not pool.allocate(newcomer, 10)
    assert newcomer.dp_rank_ is None and [m.num_used_blocks for m in managers(pool)] == [0, 0]


def test_without_memory_for_the_padding_of_each_rank_there_is_no_pool() -> None:
    pages = pages_of(1)
    with pytest.raises(PagesUnavailableError, match="expected 1 in each of 2 regions for the padding block"):
        BlockManagerPool(TWO, choice=ON_DEMAND, pages=pages)
    assert pages.pool.num_free_pages == 2
    pages.pool.close()


def test_pages_on_demand_come_before_other_choices() -> None:
    choice = ManagerChoice(enable_xtensor=True, manager_types=(ManagerType(num_blocks=4, block_size=2),))
    assert choice.class_name == "XTensorBlockManagerImpl"
    assert len(managers(BlockManagerPool(TWO, choice=choice, pages=pages_of(4)))) == 2


@pytest.mark.parametrize("choice", [ON_DEMAND, ManagerChoice()])
def test_pages_and_choice_go_together(choice: ManagerChoice) -> None:
    with pytest.raises(InvalidRangeError, match="expected pages if, and only if, they are mapped on demand"):
        BlockManagerPool(TWO, choice=choice, pages=None if choice.enable_xtensor else pages_of(4))


class OnDemand(TorchPoolTarget):
    """The target over such a pool, with memory for every block: then it does what it does with other managers."""

    def _make_pool(self, record_events: bool) -> BlockManagerPool:
        pages = pages_of(self.config.num_ranks * self.config.num_blocks)
        return BlockManagerPool(
            self.config, choice=ON_DEMAND, pages=pages, copy_blocks=self._copy_blocks, record_events=record_events
        )


def test_a_judge_of_pools_finds_nothing() -> None:
    report = conform(OnDemand, ConformOptions(operations=1500, form=Form.POOLS))
    assert report.violation is None
    assert report.counts["evictions"] and report.counts["hits"] and report.counts["refusals"]
