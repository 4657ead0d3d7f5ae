"""Which pages to have so that as many free blocks as are wanted lie on mapped ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class PagePlan(NamedTuple):
    """Pages to have, beside those that are in use.

    Attributes:
        num_ready: how many of the blocks lie on mapped pages then; at most so many as were wanted.
        pages: in ascending order.
    """

    num_ready: int
    pages: tuple[int, ...]


class _Way(NamedTuple):
    """One way to choose among the first pages; of two ways to the same place the larger is the better one: more blocks
    are ready, fewer pages are mapped anew, and low pages are chosen."""

    num_ready: int
    kept: int
    pages: tuple[int, ...]


def plan_pages(
    spans: Iterable[tuple[int, int]], in_use: set[int], idle: set[int], unmapped: set[int], spare: int, wanted: int
) -> PagePlan:
    """The best choice of at most `spare` pages.

    It goes from page to page. All that matters of the choice so far is how many pages it has, and since which page it
    has all: that says which of the blocks that end on the next page are ready with it. Behind the last mapped page it
    ends as soon as enough blocks are ready; pages further on could at best be fewer.

    Args:
        spans: first and last page of each free block.
        in_use: mapped pages with blocks in use; they are there in any case.
        idle: other mapped pages, which can be unmapped for others.
        unmapped: pages that can be mapped.
        spare: how many pages there can be in all, beside those in use.
        wanted: so many blocks suffice.
    """
    firsts = defaultdict[int, list[int]](list)
    longest = 1
    for first, last in spans:
        firsts[last].append(first)
        longest = max(longest, last - first + 1)
    spare = min(spare, wanted * longest)
    mapped = max(in_use | idle, default=-1)
    ways = {(0, 0): _Way(0, 0, ())}
    for page in range(max(firsts, default=-1) + 1):
        after: dict[tuple[int, int], _Way] = {}
        for (had, since), way in ways.items():
            if page not in in_use:
                _keep(after, (had, page + 1), way)
            if page in in_use or (had < spare and (page in idle or page in unmapped)):
                since = max(since, page - longest + 1)
                ready = min(wanted, way.num_ready + sum(first >= since for first in firsts[page]))
                if page in in_use:
                    _keep(after, (had, since), way._replace(num_ready=ready))
                else:
                    chosen = _Way(ready, way.kept - (page in unmapped), (*way.pages, -page))
                    _keep(after, (had + 1, since), chosen)
        ways = after
        if page >= mapped and max(ways.values()).num_ready == wanted:
            break
    best = max(ways.values())
    return PagePlan(best.num_ready, tuple(-page for page in best.pages))


def _keep(ways: dict[tuple[int, int], _Way], place: tuple[int, int], way: _Way) -> None:
    if place not in ways or ways[place] < way:
        ways[place] = way
