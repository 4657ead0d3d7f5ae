"""What is wrong with each faulty manager of pages: functions that stand in for one method of the good one."""

from __future__ import annotations

from kvspec.impl.block import Block
from kvspec.impl.xtensor.memory import MappingError
from kvspec.impl.xtensor.page_plan import PagePlan, plan_pages
from kvspec.impl.xtensor.virtual_pages import Stage, VirtualPages
from kvspec.impl.xtensor.xtensor_block_manager_impl import XTensorBlockManagerImpl
from kvspec.spec.pages import end_block, first_block


def _used_on(manager: XTensorBlockManagerImpl, page: int, first: int = 0) -> list[int]:
    """Blocks on a page that are in use, from one on."""
    sizes = manager._sizes
    blocks = range(max(first, first_block(page, *sizes)), min(end_block(page, *sizes), manager.num_total_blocks))
    return [block for block in blocks if block == 0 or manager.ref_count(block)]


def idle_with_padding(self: XTensorBlockManagerImpl, page: int) -> bool:
    """The padding block is nobody's."""
    return not _used_on(self, page, first=1)


def idle_with_cached(self: XTensorBlockManagerImpl, page: int) -> bool:
    """A block that only the cache holds is taken for one that nobody holds."""
    entries = {} if self.prefix_cache_ is None else self.prefix_cache_.entries_
    cached = {entry.id for entry in entries.values()}
    return all(block in cached and self.ref_count(block) == 1 for block in _used_on(self, page))


def ready_by_first_page(self: XTensorBlockManagerImpl, block_id: int) -> bool:
    return self.pages_.is_mapped(self._pages_of(block_id)[0])


def refused_keeps_taken(self: XTensorBlockManagerImpl, num_blocks: int) -> list[Block] | None:
    """Blocks are taken one by one, and forgotten when a page cannot be had."""
    taken: list[Block] = []
    for _ in range(num_blocks):
        block = XTensorBlockManagerImpl.allocate(self, 1)
        if block is None:
            self.__dict__.setdefault("lost", []).extend(taken)
            return None
        taken += block
    return taken


def short_gets_padding(self: XTensorBlockManagerImpl, num_blocks: int) -> list[Block] | None:
    """Where one page too few can be had, the padding block fills in, whose page is always there."""
    blocks = XTensorBlockManagerImpl.allocate(self, num_blocks)
    if blocks is None and num_blocks:
        blocks = XTensorBlockManagerImpl.allocate(self, num_blocks - 1)
        if blocks is not None:
            blocks += self._count([self.padding_block_.copy()])
    return blocks


def failed_page_is_lost(self: VirtualPages, page: int, region: int) -> bool:
    """A physical page that could not be mapped is not given back."""
    physical = self._pool.take()
    if physical is None:
        return False
    try:
        self._pool.memory.map(self.address(page, region), physical.id - 1)
    except MappingError:
        self.__dict__.setdefault("lost", []).append(physical)
        return False
    self._backing[page][region] = physical
    return True


def idle_stays(self: XTensorBlockManagerImpl, wanted: int, failed: set[int]) -> PagePlan:
    """Idle pages of its own are never unmapped for others."""
    mapped = {page for page in range(self.pages_.num_pages_) if self.pages_.is_mapped(page)}
    unmapped = {page for page, stage in enumerate(self.pages_.stages_) if stage is Stage.UNMAPPED} - failed
    spare = self.pool_.num_within_reach(self) // self.pages_.num_regions_
    spans = ((pages[0], pages[-1]) for pages in map(self._pages_of, self.free_ids()))
    return plan_pages(spans, mapped, set(), unmapped, spare, wanted)


def one_page_is_enough(self: XTensorBlockManagerImpl, num_physical: int | None = None) -> int:
    """However many are wanted, one page is reclaimed."""
    regions = self.pages_.num_regions_
    return XTensorBlockManagerImpl.reclaim(self, num_physical and min(num_physical, regions))
