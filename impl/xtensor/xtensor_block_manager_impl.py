"""`XTensorBlockManagerImpl`: the allocator whose blocks get memory on demand (seed 5.1; chapter `xtensor`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvspec.impl.block import Block
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.closing import while_open
from kvspec.impl.errors import InvalidRangeError, KVCacheError
from kvspec.impl.free_list_manager import PADDING_ID
from kvspec.impl.paging import block_index, blocks_needed
from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.xtensor.page_plan import PagePlan, plan_pages
from kvspec.impl.xtensor.page_pool import PagePool
from kvspec.impl.xtensor.virtual_pages import Stage, VirtualPages
from kvspec.spec.pages import end_block, first_block, first_page, last_page, pages_needed
from kvspec.spec.strides import stride


class PagesUnavailableError(KVCacheError):
    """The pages of the padding block could not be mapped: a manager cannot begin."""


def region_pages(num_blocks: int, block_bytes: int, page_bytes: int) -> int:
    """The least number of pages that have room for the blocks and end where a block could end.

    So all regions together are one contiguous tensor of blocks, as kernels need it; addresses cost nothing.
    """
    whole = stride(block_bytes, page_bytes)
    return pages_needed(blocks_needed(num_blocks * block_bytes, whole), whole, page_bytes)


class XTensorBlockManagerImpl(BlockManagerImpl):
    """Allocator of blocks that lie in reserved addresses, and whose pages are mapped when a block is wanted.

    A block is *ready* if every page on which it lies is mapped; only ready blocks are handed out. The free list has all
    free ids, the ready ones on top. An allocation first takes ready blocks, then maps pages, with what is free in the
    pool, idle in its other managers, or idle here and of no use, and evicts cached blocks only for what is left. Pages
    of blocks that become free stay mapped until `reclaim`, or until they are needed elsewhere.

    Attributes:
        pages_: the addresses; region r of block b begins ``b * block_bytes`` bytes behind ``pages_.address(0, r)``.
        block_bytes_: bytes of a block in a region.
        num_ready_blocks_: free blocks that can be handed out at once.

    Args:
        num_blocks, block_size, enable_prefix_cache, sanitizer, record_events: see `BlockManagerImpl`.
        pool: where physical pages come from.
        block_bytes: bytes of a block in a region; at least 1.
        num_regions: parts of the cache that are laid out alike, e.g. K and V of each layer; at least 1.
    Raises:
        InvalidRangeError: a size is out of range.
        MappingError: the addresses are not to be had.
        PagesUnavailableError: there is no memory for the padding block.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        pool: PagePool,
        *,
        block_bytes: int,
        num_regions: int = 2,
        enable_prefix_cache: bool = True,
        sanitizer: Sanitizer | None = None,
        record_events: bool = True,
    ) -> None:
        if block_bytes < 1 or num_regions < 1:
            what = f"{num_regions} regions with blocks of {block_bytes} bytes"
            raise InvalidRangeError(type(self).__name__, what, "at least 1 region and 1 byte")
        self.num_ready_blocks_ = num_blocks
        super().__init__(
            num_blocks,
            block_size,
            enable_prefix_cache=enable_prefix_cache,
            sanitizer=sanitizer,
            record_events=record_events,
        )
        self.block_bytes_ = block_bytes
        self._sizes = (block_bytes, pool.memory.page_bytes)
        self.pool_ = pool
        self.pages_ = VirtualPages(pool, region_pages(num_blocks, *self._sizes), num_regions)
        self._map_padding()
        self._sort_free()
        pool.join(self)

    def _map_padding(self) -> None:
        pages = self._pages_of(PADDING_ID)
        self.pool_.make_free(len(pages) * self.pages_.num_regions_, self)
        if not all(self.pages_.map(page) for page in pages):
            self.pages_.close()
            super().close()
            what = f"{self.pool_.num_free_pages} physical pages are free"
            expected = f"{len(pages)} in each of {self.pages_.num_regions_} regions for the padding block"
            raise PagesUnavailableError(type(self).__name__, what, expected)

    # -- blocks and pages --------------------------------------------------------------------------------------------
    def _pages_of(self, block_id: int) -> range:
        return range(first_page(block_id, *self._sizes), last_page(block_id, *self._sizes) + 1)

    def is_ready(self, block_id: int) -> bool:
        """Whether every page on which the block lies is mapped."""
        return all(self.pages_.is_mapped(page) for page in self._pages_of(block_id))

    def _is_idle(self, page: int) -> bool:
        """No block on the page is in use; the padding block always is."""
        end = min(end_block(page, *self._sizes), self.num_total_blocks)
        records = self._records[first_block(page, *self._sizes) : end]
        return not any(record is not None and record.live_ for record in records)

    def _sort_free(self) -> None:
        """Ready ids on top of the free list, otherwise in the order in which they were."""
        free = self.free_blocks_[: self.num_free_blocks_]
        ready = [block_id for block_id in free if self.is_ready(block_id)]
        others = [block_id for block_id in free if not self.is_ready(block_id)]
        self.free_blocks_[: len(free)] = others + ready
        self.num_ready_blocks_ = len(ready)

    # -- allocation --------------------------------------------------------------------------------------------------
    @property
    def num_available_blocks(self) -> int:
        """Blocks that an allocation can get: free ones for which pages can be mapped, and idle cached ones."""
        return self._plan(self.num_free_blocks_, set()).num_ready + self._num_idle_cached

    @property
    def _num_idle_cached(self) -> int:
        return self.prefix_cache_.num_idle_ if self.prefix_cache_ is not None else 0

    @while_open
    def allocate(self, num_blocks: int) -> list[Block] | None:
        """Handles of that many blocks on mapped pages, counted as used (seed 4.2).

        Returns:
            None if there is no room. No count has changed then, though pages may have been mapped.
        Raises:
            InvalidRangeError: num_blocks is negative.
        """
        if num_blocks > 0 and not self.has_enough_blocks(num_blocks):
            return None
        return super().allocate(num_blocks)

    @while_open
    def has_enough_blocks(self, num_blocks: int) -> bool:
        """Whether that many blocks are ready, after pages were mapped and cached blocks evicted if that suffices.

        Quarantined pages are tried again first. A page whose mapping fails is not tried again in this call; others are
        tried in its place.
        """
        if num_blocks <= self.num_ready_blocks_:
            return True
        self.pages_.retry()
        failed = set[int]()
        while (short := num_blocks - self.num_ready_blocks_) > 0:
            plan = self._plan(num_blocks, failed)
            if plan.num_ready + self._num_idle_cached < num_blocks:
                return False
            missing = [page for page in plan.pages if not self.pages_.is_mapped(page)]
            if not missing:
                break
            failed |= self._map(missing, plan.pages)
        if self.prefix_cache_ is not None and short > 0:
            self.prefix_cache_.evict(short)
        return self.num_ready_blocks_ >= num_blocks

    def _plan(self, wanted: int, failed: set[int]) -> PagePlan:
        """Pages to have so that so many free blocks are ready, or as many as can be; those that failed are left out."""
        idle = {page for page in self._reclaimable() if self.pages_.is_mapped(page)}
        unmapped = {page for page, stage in enumerate(self.pages_.stages_) if stage is Stage.UNMAPPED} - failed
        in_use = {page for page in range(self.pages_.num_pages_) if self.pages_.is_mapped(page)} - idle
        spare = len(idle) + block_index(self.pool_.num_within_reach(self), self.pages_.num_regions_)
        spans = ((pages[0], pages[-1]) for pages in map(self._pages_of, self.free_ids()))
        return plan_pages(spans, in_use, idle, unmapped, spare, wanted)

    def _map(self, pages: Sequence[int], kept: Collection[int]) -> set[int]:
        """Map pages, in the place of idle ones that need not be kept if nobody else has memory; those that failed."""
        wanted = len(pages) * self.pages_.num_regions_
        if not self.pool_.make_free(wanted, self):
            for page in self._reclaimable():
                if page not in kept and self.pool_.num_free_pages < wanted:
                    self.pages_.unmap(page)
        failed = {page for page in pages if not self.pages_.map(page)}
        self._sort_free()
        return failed

    def _pop_blocks(self, num_blocks: int, counted: bool) -> list[Block]:
        self.num_ready_blocks_ -= num_blocks
        return super()._pop_blocks(num_blocks, counted)

    def free(self, block_id: int) -> None:
        """Take an id back (see `FreeListManager.free`); its pages stay mapped."""
        super().free(block_id)
        self.num_ready_blocks_ += 1

    # -- reclaim -----------------------------------------------------------------------------------------------------
    @while_open
    def num_reclaimable(self) -> int:
        """Physical pages behind idle and quarantined pages."""
        return sum(self.pages_.num_physical(page) for page in self._reclaimable())

    @while_open
    def reclaim(self, num_physical: int | None = None) -> int:
        """Unmap idle pages, and quarantined ones again, until so many physical pages are free that were not before.

        Args:
            num_physical: how many are wanted; None for all that can be.
        Returns:
            How many became free; a page that cannot be unmapped is quarantined and counts only with what it gave back.
        """
        before = self.pool_.num_free_pages
        for page in self._reclaimable():
            if num_physical is not None and self.pool_.num_free_pages - before >= num_physical:
                break
            self.pages_.unmap(page)
        self._sort_free()
        return self.pool_.num_free_pages - before

    def _reclaimable(self) -> list[int]:
        """Idle and quarantined pages, the last one first: low ids are handed out first, and their pages stay."""
        stages = self.pages_.stages_
        return [
            page
            for page in reversed(range(len(stages)))
            if stages[page] is Stage.QUARANTINED or (stages[page] is Stage.MAPPED and self._is_idle(page))
        ]

    # -- end of life -------------------------------------------------------------------------------------------------
    @while_open
    def close(self) -> None:
        """Give all physical pages and the addresses back; every later call, and use of a handle, is an error.

        Nobody may access the memory any more. A page that cannot be unmapped keeps its physical pages, and the pool
        cannot be closed then.
        """
        super().close()
        self.pages_.close()
        self.pool_.leave(self)
