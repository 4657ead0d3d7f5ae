"""`plan_pages` finds the best choice of pages, compared with all choices."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from kvspec.impl.xtensor.page_plan import plan_pages
from kvspec.spec.pages import first_page, last_page, pages_needed


def ready(spans: list[tuple[int, int]], pages: set[int]) -> int:
    return sum(pages.issuperset(range(first, last + 1)) for first, last in spans)


@pytest.mark.parametrize("seed", range(60))
def test_no_choice_is_better(seed: int) -> None:
    source = random.Random(seed)
    size, page, count = source.randint(1, 4), source.randint(1, 5), source.randint(2, 9)
    every = range(min(8, pages_needed(count, size, page)))
    kinds = {p: source.choice(("in_use", "idle", "unmapped", "unmapped", "stuck")) for p in every}
    in_use, idle, unmapped = ({p for p in every if kinds[p] == kind} for kind in ("in_use", "idle", "unmapped"))
    blocks = [b for b in range(count) if last_page(b, size, page) in every and source.random() < 0.8]
    spans = [(first_page(b, size, page), last_page(b, size, page)) for b in blocks]
    spare, wanted = source.randint(0, 4), source.randint(1, 6)

    found = plan_pages(spans, in_use, idle, unmapped, spare, wanted)

    assert len(found.pages) <= spare and {*found.pages} <= idle | unmapped
    assert found.pages == tuple(sorted(found.pages))
    assert min(wanted, ready(spans, in_use | {*found.pages})) == found.num_ready
    choices = [c for n in range(spare + 1) for c in combinations(sorted(idle | unmapped), n)]
    best = max(min(wanted, ready(spans, in_use | {*choice})) for choice in choices)
    assert found.num_ready == best
    if in_use | idle and max(in_use | idle) == max(every):  # otherwise a page further on might do for two
        enough = [c for c in choices if min(wanted, ready(spans, in_use | {*c})) == best]
        assert len(unmapped & {*found.pages}) == min(len(unmapped & {*choice}) for choice in enough)


def test_mapped_pages_are_preferred_and_low_ones_among_equal_ones() -> None:
    spans = [(page, page) for page in range(1, 6)]
    assert plan_pages(spans, {0}, set(), {1, 2, 3, 4, 5}, 2, 2).pages == (1, 2)
    assert plan_pages(spans, {0}, {4}, {1, 2, 3, 5}, 2, 2).pages == (1, 4)
    assert plan_pages(spans, {0}, set(), {1, 2, 3, 4, 5}, 9, 1) == (1, (1,))
