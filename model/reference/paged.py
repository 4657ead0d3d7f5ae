"""`ModelPagedTarget`: the model of one manager with pages behind the target protocol."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from kvspec.model.conformance import Capability, Form, MisuseError, PoolConfig
from kvspec.model.executable import PagedPool
from kvspec.model.reference.manager import OF_MANAGERS, ModelTarget

OF_PAGES: Final = OF_MANAGERS | {Capability.PAGES}
_LOST: Final = -1
"""What is read where nothing is mapped."""


class ModelPagedTarget(ModelTarget):
    """A manager with pages whose behaviour is the spec's; for the arguments see `ModelTarget`.

    Raises:
        ValueError: the config is that of another form.
    """

    form = Form.PAGES
    _pool: PagedPool

    def __init__(
        self,
        config: PoolConfig,
        *,
        seed: int | None = None,
        hit_limit: Literal["all", "all_but_one"] = "all_but_one",
        capabilities: frozenset[Capability] = OF_PAGES,
        watch: bool = False,
    ) -> None:
        super().__init__(config, seed=seed, hit_limit=hit_limit, capabilities=capabilities, watch=watch)
        self._failing: deque[bool] = deque()

    # -- operations ----------------------------------------------------------------------------------------------

    def mapped_pages(self) -> set[int]:
        """Pages that are mapped."""
        self._open()
        return self._pool.mapped

    def reclaim(self, num_pages: int) -> int:
        """Unmap idle pages."""
        self._open()
        if num_pages < 0:
            raise MisuseError(f"reclaim: {num_pages} pages")
        return self._reclaim(self._pool.idle_pages, num_pages)

    def fail_mappings(self, failing: Sequence[bool]) -> None:
        """Which of the next attempts fail."""
        self._open()
        self._failing = deque(failing)

    # -- choices -------------------------------------------------------------------------------------------------

    def _make_room(self, seq: str, need: int) -> bool:
        """Have so many blocks ready: map pages for free ones, and evict only for what is left."""
        pool, failed = self._pool, set[int]()
        while len(pool.ready) < need:
            found = pool.can_be_had(without=failed)[:need]
            if len(found) + pool.reclaimable < need:
                return False
            wanted = pool.pages_of(found)
            if wanted <= pool.mapped:
                break
            failed |= self._map(wanted)
        self._evict(need - len(pool.ready))
        return True

    def _map(self, wanted: set[int]) -> set[int]:
        """Map pages, in the place of idle ones that are not wanted; those with which it failed."""
        pool, failed = self._pool, set[int]()
        missing = wanted - pool.mapped
        self._reclaim(pool.idle_pages - wanted, len(missing) - len(pool.frames))
        for page in sorted(missing):
            if self._failing and self._failing.popleft():
                pool.fail_mapping(page)
                failed.add(page)
            else:
                pool.map(page)
        return failed

    def _reclaim(self, idle: Iterable[int], num_pages: int) -> int:
        """Unmap so many of these pages, the highest or any; how many were."""
        pages = sorted(idle, reverse=True)
        if self._random is not None:
            self._random.shuffle(pages)
        gone = pages[: max(0, num_pages)]
        for page in gone:
            self._pool.unmap(page)
            begin = page * self.config.page_size
            self._cells.reshape(-1)[begin : begin + self.config.page_size] = _LOST
        return len(gone)

    def _free_block(self) -> int:
        return self._lowest(self._pool.ready)
