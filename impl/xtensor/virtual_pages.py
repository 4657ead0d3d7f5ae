"""`VirtualPages`: the pages of one manager's addresses, and which of them have memory (chapter `xtensor`)."""

from __future__ import annotations

from enum import Enum, auto

from kvspec.impl.block import Block
from kvspec.impl.xtensor.memory import MappingError
from kvspec.impl.xtensor.page_pool import PagePool


class Stage(Enum):
    """How far a virtual page has come."""

    UNMAPPED = auto()
    MAPPING = auto()
    MAPPED = auto()
    UNMAPPING = auto()
    QUARANTINED = auto()


class VirtualPages:
    """A reserved range of addresses: regions one behind the other, each with the same pages.

    A page is mapped in all regions or in none, unless it is quarantined: then some regions could not be unmapped, and
    keep their physical pages until `unmap` succeeds.

    Attributes:
        address_: the first address.
        stages_: of each page.

    Args:
        pool: where physical pages come from.
        num_pages: pages of a region.
        num_regions: regions.
    Raises:
        MappingError: the addresses are not to be had.
    """

    def __init__(self, pool: PagePool, num_pages: int, num_regions: int) -> None:
        self._pool = pool
        self._backing: list[list[Block | None]] = [[None] * num_regions for _ in range(num_pages)]
        self.num_regions_ = num_regions
        self.stages_ = [Stage.UNMAPPED] * num_pages
        self.address_ = pool.memory.reserve(num_regions * num_pages)

    @property
    def num_pages_(self) -> int:
        """Pages of a region."""
        return len(self.stages_)

    @property
    def region_bytes_(self) -> int:
        """Bytes from the start of a region to that of the next."""
        return self.num_pages_ * self._pool.memory.page_bytes

    def is_mapped(self, page: int) -> bool:
        """Whether the page can be used."""
        return self.stages_[page] is Stage.MAPPED

    def num_physical(self, page: int) -> int:
        """Physical pages behind the page, in all regions."""
        return sum(physical is not None for physical in self._backing[page])

    def address(self, page: int, region: int) -> int:
        """Where the page begins in a region."""
        return self.address_ + region * self.region_bytes_ + page * self._pool.memory.page_bytes

    def map(self, page: int) -> bool:
        """Map an unmapped page in all regions; False if that failed, and then in none, or it is quarantined."""
        self.stages_[page] = Stage.MAPPING
        for region in range(self.num_regions_):
            if not self._map_region(page, region):
                self.unmap(page)
                return False
        self.stages_[page] = Stage.MAPPED
        return True

    def unmap(self, page: int) -> bool:
        """Unmap a page in all regions, or what is left of it; False if it is quarantined."""
        self.stages_[page] = Stage.UNMAPPING
        unmapped = [self._unmap_region(page, region) for region in range(self.num_regions_)]
        self.stages_[page] = Stage.UNMAPPED if all(unmapped) else Stage.QUARANTINED
        return all(unmapped)

    def retry(self) -> None:
        """Try to unmap the quarantined pages again."""
        for page, stage in enumerate(self.stages_):
            if stage is Stage.QUARANTINED:
                self.unmap(page)

    def close(self) -> bool:
        """Unmap everything and give the addresses back; False if a page could not be unmapped, which keeps them."""
        stuck = [page for page in range(self.num_pages_) if not self.unmap(page)]
        if stuck:
            return False
        self._pool.memory.release(self.address_, self.num_regions_ * self.num_pages_)
        return True

    def _map_region(self, page: int, region: int) -> bool:
        physical = self._pool.take()
        if physical is None:
            return False
        try:
            self._pool.memory.map(self.address(page, region), physical.id - 1)
        except MappingError:
            self._pool.give_back(physical)
            return False
        self._backing[page][region] = physical
        return True

    def _unmap_region(self, page: int, region: int) -> bool:
        physical = self._backing[page][region]
        if physical is None:
            return True
        try:
            self._pool.memory.unmap(self.address(page, region))
        except MappingError:
            return False
        self._backing[page][region] = None
        self._pool.give_back(physical)
        return True
