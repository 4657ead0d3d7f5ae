"""The model of one manager whose blocks get memory on demand: chapters `sequences` and `xtensor`, side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from kvspec.model.compiled import Broken, Compiled
from kvspec.model.conformance import PoolConfig
from kvspec.model.executable import texts
from kvspec.model.executable.manager import Pool
from kvspec.spec.language.terms import Path
from kvspec.spec.language.traced import TracedEvent
from kvspec.spec.pages import end_block, first_block, first_page, last_page, pages_needed

_MANAGER: Final = 0
_REGION: Final = 0
_USER: Final = "somebody"
"""What is in use has one holder in chapter `xtensor`; who that is says chapter `sequences`."""

_MAPPED: Final = ("mapped",)


class PagedPool(Pool):
    """The executable model of one manager with pages.

    Attributes:
        xtensor: chapter `xtensor` and its state, with one manager and one region.
    """

    def __init__(self, config: PoolConfig, watch: bool = True, ghosts: bool = True) -> None:
        super().__init__(config, watch, ghosts)
        carriers = {
            "Manager": lambda: [_MANAGER],
            "Region": lambda: [_REGION],
            "Block": lambda: range(self.config.num_blocks),
            "Page": lambda: range(self.num_pages),
            "PhysicalPage": lambda: range(self.config.num_pages + 1),
        }
        self.xtensor = Compiled(texts.xtensor(), _statics(config), carriers, watch, ghosts)
        self._open()

    def restart(self, config: PoolConfig) -> None:
        """An empty pool of another size, with nothing mapped but the pages of the padding block."""
        super().restart(config)
        self.xtensor.restart(_statics(config))
        self._open()

    def _open(self) -> None:
        for page in self.pages_of([0]):
            self.map(page)
        self._event("open")

    def _event(self, name: str, *arguments: Any) -> None:
        self.xtensor.events[name](_MANAGER, *arguments)

    # -- what there is -------------------------------------------------------------------------------------------

    @property
    def num_pages(self) -> int:
        """Pages on which blocks lie."""
        return pages_needed(self.config.num_blocks, self.config.block_size, self.config.page_size)

    @property
    def mapped(self) -> set[int]:
        """Pages that are mapped."""
        return {page for (_, page), stage in self.xtensor.state[("stage",)].items() if stage == _MAPPED}

    @property
    def frames(self) -> set[int]:
        """Physical pages that are free."""
        found: set[int] = self.xtensor.state["memory", "ids", "free"]
        return found

    def pages_of(self, blocks: Iterable[int]) -> set[int]:
        """Pages on which these blocks lie."""
        return {page for block in blocks for page in self._span(block)}

    def blocks_on(self, page: int) -> range:
        """Blocks that lie on the page, or on a part of it."""
        sizes = self.config.block_size, self.config.page_size
        return range(first_block(page, *sizes), min(end_block(page, *sizes), self.config.num_blocks))

    @property
    def idle_pages(self) -> set[int]:
        """Mapped pages on which no block in use lies, nor the padding block."""
        return self.mapped - self._busy_pages()

    @property
    def ready(self) -> set[int]:
        """Free blocks on mapped pages."""
        mapped = self.mapped
        return {block for block in self.free if mapped.issuperset(self._span(block))}

    def can_be_had(self, without: Collection[int] = ()) -> list[int]:
        """As many free blocks as can be had at the same time: all lie on pages that there are physical pages for, when
        each idle page was unmapped that they do not need.

        Args:
            without: pages that cannot be mapped.
        """
        given = self._busy_pages()
        spare = self.config.num_pages - len(given)
        best: dict[tuple[int, int], list[int]] = {(-1, 0): []}  # by the last page that is had, and the cost so far
        for block in sorted(self.free):
            span = self._span(block)
            if any(page in without for page in span):
                continue
            for (end, cost), blocks in list(best.items()):
                more = cost + sum(page > end and page not in given for page in span)
                key = max(end, span[-1]), more
                if more <= spare and len(best.get(key, ())) <= len(blocks):
                    best[key] = [*blocks, block]
        return max(best.values(), key=len)

    def is_of_pages(self, event: TracedEvent) -> bool:
        """Whether an event is one of chapter `xtensor`."""
        chapter = self.xtensor.chapter
        return event.name in chapter.event_names and chapter.event(event.name) is event

    def sweep(self) -> list[Broken]:
        """Every invariant of both chapters that does not hold."""
        return [*super().sweep(), *self.xtensor.sweep()]

    def _span(self, block: int) -> range:
        sizes = self.config.block_size, self.config.page_size
        return range(first_page(block, *sizes), last_page(block, *sizes) + 1)

    def _busy_pages(self) -> set[int]:
        """Pages on which a block in use lies, or the padding block."""
        return self.pages_of(block for block in range(self.config.num_blocks) if block not in self.free)

    # -- programs ------------------------------------------------------------------------------------------------

    def map(self, page: int) -> None:
        """A page gets a physical page; the lowest one, for nobody can see which."""
        self._event("map_begin", page)
        self._event("map_region", page, _REGION, min(self.frames, default=0))
        self._event("map_commit", page)

    def fail_mapping(self, page: int) -> None:
        """A page could not be mapped, and what was begun is undone."""
        self._event("map_begin", page)
        self._event("map_failed", page)
        self._event("unmap_commit", page)

    def unmap(self, page: int) -> None:
        """An idle page is unmapped."""
        self.let_go()
        self._event("unmap_begin", page)
        self._event("unmap_region", page, _REGION)
        self._event("unmap_commit", page)

    def let_go(self) -> None:
        """What nobody holds any more, nobody holds in chapter `xtensor` either."""
        for block in self.free - self.xtensor.state["managers", "free"].get(_MANAGER, set()):
            self._event("drop", block, _USER)

    def take(self, seq: str, block: int) -> None:
        """The table grows by a free block on mapped pages."""
        self.let_go()
        super().take(seq, block)
        self._use(block)

    def copy(self, seq: str, index: int, target: int) -> None:
        """A shared block is replaced by a copy, on mapped pages too."""
        self.let_go()
        super().copy(seq, index, target)
        self._use(target)

    def _use(self, block: int) -> None:
        self._event("call")
        self._event("take", block, _USER)


def _statics(config: PoolConfig) -> dict[Path, Any]:
    """The static words of the chapter, for one manager with one region."""
    sizes = config.block_size, config.page_size
    return {
        ("managers", "padding"): 0,
        ("managers", "usable"): frozenset(range(1, config.num_blocks)),
        ("memory", "ids", "padding"): 0,
        ("memory", "ids", "usable"): frozenset(range(1, config.num_pages + 1)),
        ("regions",): frozenset([_REGION]),
        ("lies_on",): lambda _, block, page: first_page(block, *sizes) <= page <= last_page(block, *sizes),
    }
