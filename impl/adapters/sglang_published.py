"""The events by which SGLang tells others what its tree has, compared with the tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvspec.impl.adapters.sglang_cache import InconsistentError, TreePath
from kvspec.impl.adapters.sglang_package import AllBlocksCleared, BlockRemoved, BlockStored

Content = tuple[str | None, tuple[int, ...]]
"""What a hash of an event stands for: a salt, and all tokens up to the end of the page. Extra keys are not told apart
(`kv_event_namespace_seed`)."""


class Published:
    """What a reader of the events believes that the tree has.

    Attributes:
        taken: events since somebody wanted them last.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._contents: dict[int, Content] = {}
        self._stored: Counter[Content] | None = None
        self.taken: list[Any] = []

    def keys(self) -> dict[int, int]:
        """Hashes that are stored, and how often."""
        stored = self._stored or Counter()
        return {number: stored[content] for number, content in self._contents.items() if stored[content]}

    def compare(self, events: Sequence[Any], paths: Sequence[TreePath]) -> None:
        """Follow the events, and look whether what they leave is what the tree has.

        Raises:
            InconsistentError: it is not, or an event makes no sense.
        """
        for event in events:
            self._follow(event)
        self.taken += events
        pages = {
            (path.space, tuple(path.tokens[:stop]))
            for path in paths
            for stop in range(self._page_size, len(path.tables[0]) * self._page_size + 1, self._page_size)
        }
        there = Counter((space.cache_salt, tokens) for space, tokens in pages)
        if there != (self._stored or Counter()):
            gone, more = there - (self._stored or Counter()), (self._stored or Counter()) - there
            raise InconsistentError(f"events leave out {list(gone)}, and have {list(more)} beside what the tree has")

    def _follow(self, event: Any) -> None:
        if isinstance(event, AllBlocksCleared):
            self._stored = Counter()
            return
        if self._stored is None:
            raise InconsistentError(f"the first event is not that all blocks are cleared: {event}")
        if isinstance(event, BlockStored):
            self._store(event, self._stored)
        elif isinstance(event, BlockRemoved):
            for number in event.block_hashes:
                content = self._contents[number]
                if not self._stored[content]:
                    raise InconsistentError(f"an event removes {content}, which is not stored")
                self._stored -= Counter([content])

    def _store(self, event: Any, stored: Counter[Content]) -> None:
        parent = event.parent_block_hash
        if parent is not None and not stored[self._contents[parent]]:
            raise InconsistentError(f"an event stores {event.token_ids} behind what is not stored")
        tokens = () if parent is None else self._contents[parent][1]
        for index, number in enumerate(event.block_hashes):
            start = index * event.block_size
            tokens = (*tokens, *event.token_ids[start : start + event.block_size])
            content = (event.cache_salt, tokens)
            if self._contents.setdefault(number, content) != content:
                raise InconsistentError(f"{content} and {self._contents[number]} have one hash")
            stored[content] += 1
