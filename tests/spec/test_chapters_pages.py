"""The functions of chapter `pages` on plain numbers: as if each byte were looked up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvspec.spec import pages

sizes = st.integers(1, 40)
numbers = st.integers(0, 30)


@given(numbers, sizes, sizes)
def test_a_block_lies_on_the_pages_of_its_bytes(block_id: int, block_bytes: int, page_bytes: int) -> None:
    on = {byte // page_bytes for byte in range(block_id * block_bytes, (block_id + 1) * block_bytes)}
    first, last = (f(block_id, block_bytes, page_bytes) for f in (pages.first_page, pages.last_page))
    assert on == {*range(first, last + 1)}


@given(numbers, sizes, sizes)
def test_the_blocks_of_a_page_are_those_of_its_bytes_and_the_whole_ones_have_no_other(
    page: int, block_bytes: int, page_bytes: int
) -> None:
    touching = {byte // block_bytes for byte in range(page * page_bytes, (page + 1) * page_bytes)}
    first, end = (f(page, block_bytes, page_bytes) for f in (pages.first_block, pages.end_block))
    assert touching == {*range(first, end)}
    first, end = (f(page, block_bytes, page_bytes) for f in (pages.first_whole, pages.end_whole))
    inside = {
        b for b in touching if b * block_bytes >= page * page_bytes and (b + 1) * block_bytes <= (page + 1) * page_bytes
    }
    assert inside == {*range(first, end)}


@given(numbers, sizes, sizes)
def test_the_pages_that_are_needed_are_those_of_the_blocks(num_blocks: int, block_bytes: int, page_bytes: int) -> None:
    on = {byte // page_bytes for byte in range(num_blocks * block_bytes)}
    assert pages.pages_needed(num_blocks, block_bytes, page_bytes) == len(on)


def test_whole_blocks_cannot_be_counted_by_a_division_of_sizes() -> None:
    counts = [pages.end_whole(p, 3, 4) - pages.first_whole(p, 3, 4) for p in range(3)]
    assert counts == [1, 0, 1]
