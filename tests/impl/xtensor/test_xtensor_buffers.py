"""K and V over mapped pages: slots, kernels and content are those of ordinary buffers, and a judge finds nothing while
pages come and go."""

from __future__ import annotations

import mmap
import random
from array import array

import numpy as np
import pytest
import torch

from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.target import TorchTarget
from kvspec.impl.xtensor.cpu_memory import CpuMemory
from kvspec.impl.xtensor.failing_memory import FailingMemory, never
from kvspec.impl.xtensor.page_pool import PagePool
from kvspec.impl.xtensor.xtensor_block_manager_impl import XTensorBlockManagerImpl
from kvspec.impl.xtensor.xtensor_buffers import XTensorBuffers, block_bytes
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import PoolConfig
from kvspec.spec.pages import pages_needed

PAGE = mmap.PAGESIZE
SIZE, HEADS, DIM, LAYERS = 4, 3, 64, 2
BYTES = block_bytes(SIZE, HEADS, DIM)
"""Three quarters of a page: every other block lies across a border."""


def manager_of(num_blocks: int, num_pages: int) -> XTensorBlockManagerImpl:
    pool = PagePool(CpuMemory(num_pages))
    return XTensorBlockManagerImpl(num_blocks, SIZE, pool, block_bytes=BYTES, num_regions=2 * LAYERS)


def test_content_is_that_of_ordinary_buffers() -> None:
    manager = manager_of(6, 20)
    assert manager.allocate(4) is not None
    pair = (
        XTensorBuffers(manager, layers=LAYERS, heads=HEADS, head_dim=DIM),
        KVBuffers(6, SIZE, layers=LAYERS, heads=HEADS, head_dim=DIM),
    )
    table, tags = array("q", [3, 1, 4, 2]), np.arange(16, dtype=np.int64) + 2**24 - 5
    none = np.zeros(16, dtype=np.int64)
    for buffers in pair:
        slots = buffers.slot_ids(table, none, np.arange(16, dtype=np.int64))
        buffers.write_tags(slots, tags)
        buffers.copy_blocks([(3, 2)])
        buffers.guard_padding()
        assert buffers.padding_is_intact()
        assert buffers.read_tags(table, 0, 12).tolist() == tags[:12].tolist()
        assert buffers.read_tags(table, 12, 16).tolist() == tags[:4].tolist()
    for layer in range(LAYERS):
        assert torch.equal(pair[0].keys(layer)[:5], pair[1].keys(layer)[:5])
        assert torch.equal(pair[0].values(layer)[:5], pair[1].values(layer)[:5])


def test_content_stays_while_other_pages_come_and_go() -> None:
    manager = manager_of(8, 28)
    buffers = XTensorBuffers(manager, layers=LAYERS, heads=HEADS, head_dim=DIM)
    blocks = manager.allocate(7)
    assert blocks is not None
    table, tags = array("q", [3]), np.array([11, 12, 13, 14], dtype=np.int64)
    buffers.write_tags(torch.arange(12, 16), tags)
    manager.release_blocks([block for block in blocks if block.id != 3])
    assert manager.reclaim() == 4 * LAYERS * 2
    assert manager.allocate(2) is not None
    assert buffers.read_tags(table, 0, 4).tolist() == tags.tolist()


def test_a_manager_with_another_layout_is_refused() -> None:
    with pytest.raises(InvalidRangeError, match=f"4 regions with blocks of {BYTES} bytes; expected 2 regions"):
        XTensorBuffers(manager_of(4, 16), heads=HEADS, head_dim=DIM)


class XTensorTarget(TorchTarget):
    """The target over mapped pages: idle ones are reclaimed before each call for blocks, and one in five fails."""

    memory_type = CpuMemory

    def __init__(self, config: PoolConfig) -> None:
        pages = pages_needed(config.num_blocks, block_bytes(config.block_size, HEADS, DIM), PAGE)
        self.memory = FailingMemory(self.memory_type(2 * pages))
        self.source = random.Random(1)
        super().__init__(config, heads=HEADS, head_dim=DIM)
        assert isinstance(self.manager_, XTensorBlockManagerImpl)
        self.buffers_ = XTensorBuffers(self.manager_, heads=HEADS, head_dim=DIM)
        if self.sanitizer_ is not None:
            self.buffers_.guard_padding()

    def _make_manager(self, record_events: bool) -> BlockManagerImpl:
        return XTensorBlockManagerImpl(
            self.config.num_blocks,
            self.config.block_size,
            PagePool(self.memory),
            block_bytes=block_bytes(self.config.block_size, HEADS, DIM),
            enable_prefix_cache=self.config.enable_prefix_cache,
            sanitizer=self.sanitizer_,
            record_events=record_events,
        )

    def allocate(self, seq: str, num_tokens: int) -> bool:
        if isinstance(self.manager_, XTensorBlockManagerImpl) and not self.closed_:
            self.memory.unmap_fails = lambda address: self.source.random() < 0.2
            self.manager_.reclaim()
            self.memory.unmap_fails = never
        return super().allocate(seq, num_tokens)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_judge_finds_nothing_while_pages_come_and_go(seed: int) -> None:
    report = conform(XTensorTarget, ConformOptions(operations=1500, seed=seed))
    assert report.violation is None
    assert report.counts["refusals"] and report.counts["hits"]


class OnePage(CpuMemory):
    """A mistake: whatever physical page is asked for, the first two are mapped in turn."""

    def map(self, address: int, frame: int) -> None:
        super().map(address, frame % 2)


class MistakenTarget(XTensorTarget):
    """The target over memory with that mistake."""

    memory_type = OnePage


def test_a_judge_finds_physical_pages_that_are_mapped_twice() -> None:
    found = conform(MistakenTarget, ConformOptions(operations=1500, seed=1)).violation
    assert found is not None
    assert "poisoned or torn" in found.what
