"""Faulty managers of pages, one row each: the good one with exactly one method replaced.

Used like `faulty.twins`: ``kvspec conform tests.faulty.paged_twins:half_mapped``.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any, Final

from kvspec.impl.xtensor.cpu_memory import CpuMemory
from kvspec.impl.xtensor.memory import PageMemory
from kvspec.impl.xtensor.target import TorchXTensorTarget as Target
from kvspec.impl.xtensor.virtual_pages import VirtualPages as Pages
from kvspec.impl.xtensor.xtensor_block_manager_impl import XTensorBlockManagerImpl as Manager
from kvspec.model.conformance import PoolConfig

from . import paged_faults as f
from .pool_twins import assembled
from .twins import _row

FAULTS: Final = (
    # -- one for each scenario of the field (tests/corpus/pages)
    _row("B18", "padding stands in for a page", "reserved", (Manager, "allocate", f.short_gets_padding)),
    _row("B24", "reclaim takes cached blocks' pages", "pages", (Manager, "_is_idle", f.idle_with_cached)),
    _row("B34", "a refusal loses what was taken", "atomic_failure", (Manager, "allocate", f.refused_keeps_taken)),
    # -- others
    _row("padding_unmapped", "reclaim takes the padding's page", "pages", (Manager, "_is_idle", f.idle_with_padding)),
    _row("half_mapped", "a block on half of its pages is taken", "pages", (Manager, "is_ready", f.ready_by_first_page)),
    _row("page_lost", "a failed mapping loses its page", "progress", (Pages, "_map_region", f.failed_page_is_lost)),
    _row("idle_stays", "own idle pages are not taken", "progress", (Manager, "_plan", f.idle_stays)),
    _row("reclaim_one", "reclaim stops at one page", "pages", (Manager, "reclaim", f.one_page_is_enough)),
)
"""All faulty managers of pages; those of the field scenarios come first."""

BY_NAME: Final = {fault.name: fault for fault in FAULTS}


class Forgiving(CpuMemory):
    """What is accessed where nothing is mapped must be told by the judge: here it does not end the process."""

    def reserve(self, num_pages: int) -> int:
        address = super().reserve(num_pages)
        self._open(address, num_pages)
        return address

    def unmap(self, address: int) -> None:
        super().unmap(address)
        self._open(address, 1)

    def _open(self, address: int, num_pages: int) -> None:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        assert not ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), num_pages * self.page_bytes, access)


class PagedTwin(Target):
    """A good target whose parts are of the classes in `parts`, as far as they are named there."""

    parts: dict[type, type]

    def _make_memory(self, num_pages: int, page_bytes: int) -> PageMemory:
        return Forgiving(num_pages, page_bytes)

    def __init__(self, config: PoolConfig, **options: Any) -> None:
        super().__init__(config, **options)
        for part in (self.manager_, self.manager_.pages_):
            changed: Any = part
            changed.__class__ = self.parts.get(type(part), type(part))


@cache
def build(name: str) -> type[PagedTwin]:
    """The faulty manager of that name.

    Raises:
        KeyError: there is none.
    """
    return assembled(BY_NAME[name], Target, PagedTwin)


def __getattr__(name: str) -> type[PagedTwin]:
    if name in BY_NAME:
        return build(name)
    raise AttributeError(name)
