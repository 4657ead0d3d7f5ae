"""`TorchXTensorTarget`: it holds before a judge, its memory is real and given back, and mappings fail when told to."""

from __future__ import annotations

import gc
import os

import pytest

from kvspec.cli.targets import load_target
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.xtensor.cpu_memory import CpuMemory
from kvspec.impl.xtensor.target import TorchXTensorTarget
from kvspec.model.acceptor import PagedAcceptor
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Context, Form, MisuseError, PoolConfig

ACROSS = PoolConfig(num_blocks=6, block_size=3, num_pages=3, page_size=4)
"""Blocks 1 and 2 lie across a border, block 3 does not."""


@pytest.mark.parametrize("sanitizer", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_judge_finds_nothing(seed: int, sanitizer: bool) -> None:
    options = ConformOptions(operations=2500, seed=seed, form=Form.PAGES, sanitizer=sanitizer)
    report = conform(TorchXTensorTarget, options)
    assert report.violation is None
    seen = {name for name, count in report.counts.items() if count}
    assert {"mapped", "reclaimed", "evictions", "copies", "refusals"} <= seen


def judged(layers: int = 2) -> PagedAcceptor:
    judge = PagedAcceptor(TorchXTensorTarget(ACROSS, layers=layers), ACROSS)
    judge.start("a", range(12), Context())
    return judge


def test_a_mapping_fails_when_it_is_told_to_and_nothing_of_it_is_left() -> None:
    judge = judged()
    judge.fail_mappings((True, False, True))
    assert judge.allocate("a", 3)  # page 1 fails, page 2 has block 3
    assert list(judge.block_table("a")) == [3] and judge.target.mapped_pages() == {0, 2}
    assert judge.allocate("a", 6)  # page 1 again, and page 3 has block 4
    assert list(judge.block_table("a")) == [3, 4] and judge.target.mapped_pages() == {0, 2, 3}
    assert not judge.allocate("a", 9)


def test_content_stays_where_pages_of_others_go() -> None:
    judge = judged()
    assert judge.allocate("a", 9)
    judge.write([("a", 9)])
    judge.truncate("a", 3)
    assert judge.reclaim(5) == 1
    assert judge.read("a", 0, 3).shape == (3,)


@pytest.mark.parametrize("closed", [True, False])
def test_memory_is_given_back(closed: bool) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        target = TorchXTensorTarget(ACROSS)
        target.start("a", range(6), Context())
        assert target.allocate("a", 6)
        if closed:
            target.close()
    del target
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_freed_blocks_are_poisoned_only_where_there_is_memory() -> None:
    config = PoolConfig(num_blocks=6, block_size=3, num_pages=3, page_size=4, sanitizer=True)
    judge = PagedAcceptor(TorchXTensorTarget(config), config)
    judge.start("a", range(9), Context())
    assert judge.allocate("a", 9)
    judge.write([("a", 9)])
    judge.abort("a")
    judge.reclaim(2)
    judge.start("b", range(3), Context())
    assert judge.allocate("b", 3)
    judge.write([("b", 3)])
    judge.sweep()


@pytest.mark.parametrize("page_size", [1, 3, 4, 7, 1024, 1500])
def test_pages_of_any_size_are_pages_of_the_system(page_size: int) -> None:
    config = PoolConfig(num_blocks=3, block_size=2, num_pages=4, page_size=page_size)
    target = TorchXTensorTarget(config)
    target.start("a", range(4), Context())
    assert target.allocate("a", 2) and len(target.mapped_pages()) == -(-4 // page_size)
    target.close()


def test_bad_calls_are_errors() -> None:
    target = TorchXTensorTarget(ACROSS)
    with pytest.raises(MisuseError, match=r"TorchXTensorTarget.reclaim: -1 pages; expected 0 or more"):
        target.reclaim(-1)
    target.close()
    with pytest.raises(MisuseError, match="closed"):
        target.mapped_pages()
    with pytest.raises(InvalidRangeError, match="expected one of a manager with pages"):
        TorchXTensorTarget(PoolConfig(num_blocks=4, block_size=2))


class Twice(CpuMemory):
    """A mistake: whatever physical page is asked for, the first two are mapped in turn."""

    def map(self, address: int, frame: int) -> None:
        super().map(address, frame % 2)


class OnTwoPages(TorchXTensorTarget):
    """The target over memory with that mistake."""

    def _make_memory(self, num_pages: int, page_bytes: int) -> CpuMemory:
        return Twice(num_pages, page_bytes)


def test_physical_pages_that_are_mapped_twice_are_found() -> None:
    found = conform(OnTwoPages, ConformOptions(operations=3000, form=Form.PAGES)).violation
    assert found is not None
    assert "poisoned or torn" in found.what or found.rule == "content"


def test_the_target_of_torch_is_this_one_where_there_are_pages() -> None:
    assert isinstance(load_target("torch")(ACROSS), TorchXTensorTarget)
    assert isinstance(load_target("xtensor")(ACROSS), TorchXTensorTarget)
