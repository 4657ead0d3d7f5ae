"""The judge of one manager whose pages are mapped on demand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kvspec.model.acceptor.manager import Acceptor
from kvspec.model.compiled import StepError
from kvspec.model.conformance import CacheEvent, Capability, PagedTarget, PoolConfig, Target, TargetError
from kvspec.model.executable import PagedPool
from kvspec.model.promises import PAGE_CHAPTER, PAGE_STEP_FAMILIES, Family, Violation


class PagedAcceptor(Acceptor):
    """A manager with pages together with its judge; for the arguments see `Acceptor`.

    Which pages came and went during a call is seen from `PagedTarget.mapped_pages` before and after it. Pages are
    mapped before the first block is taken, as far as there are physical pages, and unmapped as soon as they are idle.

    Raises:
        TargetError: the target does not show its pages.
    """

    target: PagedTarget
    pool: PagedPool

    def __init__(
        self, target: Target, config: PoolConfig, *, every: int = 1, watch: bool = True, pool: PagedPool | None = None
    ) -> None:
        super().__init__(target, config, every=every, pool=pool or PagedPool(config, watch))
        if not self.sees(Capability.PAGES):
            raise TargetError(f"lacks the capability {Capability.PAGES}, without which it cannot be judged")
        self._looked = 0
        self._come: set[int] = set()
        self._left: set[int] = set()
        self._failing: deque[bool] = deque()
        self._failed = False
        """A mapping has failed before one that was done in the call that is explained, or before the call."""
        self._failures = 0
        """How many mappings may have failed in it."""

    # -- operations ----------------------------------------------------------------------------------------------

    def reclaim(self, num_pages: int) -> int:
        """Idle pages are unmapped."""
        misuse = f"{num_pages} pages to reclaim" if num_pages < 0 else None
        idle = len(self.pool.idle_pages)

        def explain(unmapped: int) -> None:
            self._look()
            gone = len(self._left)
            self._events()
            self._follow(strict=True)
            self.counts["reclaimed"] += gone
            if unmapped != gone:
                what = f"{unmapped} pages reported as unmapped, {gone} are no longer mapped"
                raise Violation(Family.PAGES, "reclaimed_count", what)
            if unmapped != min(num_pages, idle):
                raise Violation(Family.PAGES, "reclaim_enough", f"{unmapped} of {num_pages} pages, {idle} were idle")

        return int(self._judge("reclaim", (num_pages,), lambda: self.target.reclaim(num_pages), explain, misuse))

    def fail_mappings(self, failing: Sequence[bool]) -> None:
        """Mappings are going to fail."""

        def explain(_: Any) -> None:
            self._events()
            self._failing = deque(failing)

        words = tuple("yes" if fails else "no" for fails in failing)
        self._judge("fail_mappings", words, lambda: self.target.fail_mappings(failing), explain, None)

    # -- what pages do -------------------------------------------------------------------------------------------

    def _by_events(self, explain: Callable[[Any], None], result: Any) -> None:
        super()._by_events(explain, result)
        if not self.closed:
            self._follow(strict=True)

    def _events(self, seq: str | None = None) -> list[CacheEvent]:
        found = super()._events(seq)
        self._follow()
        return found

    def _let_go(self) -> None:
        super()._let_go()
        self._follow()

    def _look(self) -> None:
        """Which pages came and went by the call, and how many mappings may have failed."""
        if self._looked == self.number:
            return
        self._looked = self.number
        shown, known = self._shown_pages(), self.pool.mapped
        self._come, self._left = shown - known, known - shown
        self.counts["mapped"] += len(self._come)
        mapped, failed = len(self._come), 0
        while mapped and self._failing:
            fails = self._failing.popleft()
            failed += fails
            mapped -= not fails
        # What was mapped and unmapped again in one call is not seen, so all that are left may have been reached.
        self._failed, self._failures = failed > 0, failed + sum(self._failing)

    def _shown_pages(self) -> set[int]:
        shown = set(self.target.mapped_pages())
        unknown = shown - set(range(self.pool.num_pages))
        if unknown:
            what = f"page {min(unknown)} is mapped, expected pages 0 to {self.pool.num_pages - 1}"
            raise Violation(Family.PAGES, "mapped_pages", what)
        return shown

    def _follow(self, strict: bool = False) -> None:
        """Explain what came and went; strictly, or as far as it can be explained yet."""
        self._look()
        for page in sorted(self._left):
            self._unmapped(page, strict)
        for page in sorted(self._come):
            if strict or self.pool.frames:
                self.pool.map(page)
                self._come.discard(page)

    def _unmapped(self, page: int, strict: bool) -> None:
        if self._hides:
            for block in self.pool.blocks_on(page):
                self._hidden_eviction(0, block)
        try:
            self.pool.unmap(page)
        except StepError:
            if strict:
                raise
        else:
            self._left.discard(page)

    def _take(self, seq: str, block: int) -> None:
        self._follow()
        super()._take(seq, block)

    def _copied(self, seq: str, table: Sequence[int]) -> None:
        self._follow()
        super()._copied(seq, table)

    def _unchanged(self, rule: str) -> None:
        if rule == "refusal_changes_nothing":  # pages may have come and gone
            self._follow(strict=True)
        super()._unchanged(rule)

    # -- judging -------------------------------------------------------------------------------------------------

    def _refused_more(self, seq: str, num_tokens: int) -> None:
        pool = self.pool
        need = max(0, pool.blocks_for(num_tokens) - pool.size(seq)) + len(pool.writes_shared(seq, num_tokens))
        free, idle = len(pool.can_be_had()), pool.reclaimable
        # A mapping that fails takes as many blocks away as lie on a page.
        lost = self._failures * max(len(pool.blocks_on(page)) for page in range(pool.num_pages))
        if need <= idle + max(len(pool.ready), free - lost):
            what = f"{need} blocks were refused although {free} free ones can be had and {idle} more can be evicted"
            raise Violation(Family.PROGRESS, "refused_for_cause", what)
        if need <= idle + free and not self._failed:
            while not self._failing.popleft():  # at least the next one has failed
                pass

    def compare(self) -> None:
        """Compare everything that the target shows with the model."""
        shown, known = self._shown_pages(), self.pool.mapped
        if shown != known:
            what = f"pages {_listed(shown)} are mapped, expected {_listed(known)}"
            raise Violation(Family.PAGES, "mapped_pages", what)
        super().compare()

    def _forbidden(self, error: StepError) -> Violation:
        if self.pool.is_of_pages(error.event):
            self.chapter, self.step_families = PAGE_CHAPTER, PAGE_STEP_FAMILIES  # of an instance that is at its end
        return super()._forbidden(error)

    def _step_words(self, error: StepError) -> Sequence[str]:
        if not self.pool.is_of_pages(error.event):
            return super()._step_words(error)
        _, about, *_ = error.arguments
        match error.event.name:
            case "take":
                missing = self.pool.pages_of([about]) - self.pool.mapped
                return [f"block {about} lies on page {page}, which is not mapped" for page in sorted(missing)]
            case "unmap_begin":
                blocks = [b for b in self.pool.blocks_on(about) if b not in self.pool.free]
                return [f"on page {about} lies block {block}, {self.holders(block)}" for block in blocks]
            case "map_region":
                return [f"there are {self.config.num_pages} physical pages, and all are mapped"]
        return []


def _listed(pages: set[int]) -> str:
    return " ".join(map(str, sorted(pages))) or "none"
