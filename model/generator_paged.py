"""Operations for managers with pages that are mapped on demand: pages are scarce, are reclaimed, and fail to map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

import kvspec.model.operations as ops
from kvspec.model.conformance import PoolConfig
from kvspec.model.executable import PagedPool
from kvspec.model.generator import Generator, Source, pool_config
from kvspec.model.operations import AnyOperation


def paged_config(source: Source, *, sanitizer: bool = False) -> PoolConfig:
    """A small pool; pages have several blocks, or blocks several pages, and few blocks lie across a border or most of
    them. Mostly there are fewer physical pages than blocks need."""
    config = pool_config(source, sanitizer=sanitizer)
    size, tokens = config.block_size, config.block_size * config.num_blocks
    whole = (size, 2 * size, 1, max(1, size // 2))
    page = source.choice((*whole, size + 1, size + 1, size + 2, max(1, 2 * size - 1), 2 * size + 1))
    least, most = -(-size // page), -(-tokens // page)
    few = min(most, least + source.choice((0, 1, 1, 1, 2, 2, 3, 5)))
    pages = few if source.chance(0.8) else most + source.integer(0, 1)
    return msgspec.structs.replace(config, num_pages=pages, page_size=page)


_RECLAIM_RATE: Final = 0.08
_REFUSED_RATE: Final = 0.2
"""How often pages are reclaimed; more often when something was refused."""

_EDGE_RATE: Final = 0.4
"""How often all is asked for that can be had, and no more."""


class PagedGenerator(Generator):
    """Makes operations for a manager with pages; see `Generator`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        config: PoolConfig = args[1]
        there = config.num_pages * config.page_size // config.block_size
        super().__init__(*args, **{"measure": min(config.num_blocks - 1, there)} | options)
        assert isinstance(self.pool, PagedPool)
        self._pages: PagedPool = self.pool
        self._failure_rate = self.source.choice((0.0, 0.03, 0.1))

    def _valid(self) -> AnyOperation:
        source = self.source
        if source.chance(self._failure_rate):
            return ops.FailMappings(tuple(source.chance(0.6) for _ in range(source.integer(1, 3))))
        if source.chance(_REFUSED_RATE if self._refused else _RECLAIM_RATE):
            return self._reclaim(source.integer(0, 3))
        return super()._valid()

    def _start(self) -> AnyOperation:
        """Some prompts are as long as there is room for."""
        operation = super()._start()
        if not self.source.chance(_EDGE_RATE) or not isinstance(operation, ops.Start):
            return operation
        tokens = self._tokens(self._most_blocks() * self.config.block_size)
        return msgspec.structs.replace(operation, tokens=tokens)

    def _step(self, seq: str) -> AnyOperation:
        """Some calls for room ask for all that can be had."""
        operation = super()._step(seq)
        if not isinstance(operation, ops.Allocate) or not self.source.chance(_EDGE_RATE):
            return operation
        room = (self.pool.size(seq) + self._most_blocks()) * self.config.block_size
        return ops.Allocate(seq, min(room, len(self.pool.requests[seq].tokens)))

    def _most_blocks(self) -> int:
        return len(self._pages.can_be_had()) + self._pages.reclaimable

    def _reclaim(self, num_pages: int) -> AnyOperation:
        return ops.Reclaim(num_pages)

    def _wild(self) -> AnyOperation:
        if self.source.chance(0.1):
            return self._reclaim(self.source.choice((-1, -(2**40), 0, self.config.num_pages + 1)))
        return super()._wild()

    def ending(self) -> Iterator[AnyOperation]:
        """Everything is given back, and all idle pages are unmapped."""
        yield from super().ending()
        yield self._reclaim(self.config.num_pages)

    def closing(self) -> Iterator[AnyOperation]:
        """The manager is closed, and asked for more."""
        yield from super().closing()
        for operation in (self._reclaim(1), ops.FailMappings(())):
            if self.source.chance(0.5):
                yield operation
