"""From blocks to virtual pages (seed 5.1; class `XTensorBlockManagerImpl`).

The blocks of a region lie one behind the other from its first address on, so a block of ``block_bytes`` lies on the
pages of ``page_bytes`` that its bytes are on. If pages are not whole blocks, some blocks lie across a border, and need
both pages. Then a page has not always the same number of whole blocks: counts are those of the page, never
``page_bytes // block_bytes``.

The functions are written once and read twice, as in chapter `slots`.
"""

from __future__ import annotations

from typing import TypeVar

from kvspec.spec.language import Bool, Machine, Nat, exists, forall, implies, nat, theorem, witness

N = TypeVar("N", int, Nat)


def first_page(block_id: N, block_bytes: N, page_bytes: N) -> N:
    """The page of the first byte of a block; ``page_bytes >= 1``."""
    return block_id * block_bytes // page_bytes


def last_page(block_id: N, block_bytes: N, page_bytes: N) -> N:
    """The page of the last byte of a block; ``block_bytes`` and ``page_bytes >= 1``."""
    return (block_id * block_bytes + block_bytes - 1) // page_bytes


def pages_needed(num_blocks: N, block_bytes: N, page_bytes: N) -> N:
    """The least number of pages that have room for the blocks ``0 .. num_blocks - 1``; ``page_bytes >= 1``."""
    return (num_blocks * block_bytes + page_bytes - 1) // page_bytes


def first_block(page: N, block_bytes: N, page_bytes: N) -> N:
    """The first block with a byte on the page, or behind it; ``block_bytes >= 1``."""
    return page * page_bytes // block_bytes


def end_block(page: N, block_bytes: N, page_bytes: N) -> N:
    """One more than the last block with a byte on the page; ``block_bytes >= 1``."""
    return (page * page_bytes + page_bytes + block_bytes - 1) // block_bytes


def first_whole(page: N, block_bytes: N, page_bytes: N) -> N:
    """The first block that begins on the page, or behind it; ``block_bytes >= 1``."""
    return (page * page_bytes + block_bytes - 1) // block_bytes


def end_whole(page: N, block_bytes: N, page_bytes: N) -> N:
    """One more than the last block that ends on the page, or before it; ``block_bytes >= 1``.

    The whole blocks of a page are those from `first_whole` to before `end_whole`; there may be none.
    """
    return (page * page_bytes + page_bytes) // block_bytes


class Pages(Machine):
    """A block lies on the pages that its bytes are on, and the counts of blocks and pages agree."""

    # -- pages of a block --------------------------------------------------------------------------------------------

    @theorem("a block does not begin before a page exactly if its first page is not before that")
    def first_page_counted(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, page, size, bytes: implies(
                (size >= 1) & (bytes >= 1),
                (page <= first_page(block, size, bytes)) == (page * bytes <= block * size),
            ),
        )

    @theorem("a block ends on a page or behind it exactly if its last page is not before that")
    def last_page_counted(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, page, size, bytes: implies(
                (size >= 1) & (bytes >= 1),
                (page <= last_page(block, size, bytes)) == (page * bytes < block * size + size),
            ),
        )

    @theorem("the last page of a block is not before its first")
    def pages_in_order(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda block, size, bytes: implies(
                (size >= 1) & (bytes >= 1), first_page(block, size, bytes) <= last_page(block, size, bytes)
            ),
        )

    @theorem("the next block begins on the last page of a block or on the page behind it")
    def no_page_skipped(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda block, size, bytes: implies(
                (size >= 1) & (bytes >= 1),
                (last_page(block, size, bytes) <= first_page(block + 1, size, bytes))
                & (first_page(block + 1, size, bytes) <= last_page(block, size, bytes) + 1),
            ),
        )

    @theorem("the padding block lies on page 0")
    def padding_first(self) -> Bool:
        return forall(Nat, Nat, lambda size, bytes: implies(bytes >= 1, first_page(nat(0), size, bytes) == 0))

    # -- blocks of a page --------------------------------------------------------------------------------------------

    @theorem("the blocks before the end of a page's are those that begin on the page or before it")
    def end_block_counted(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, page, size, bytes: implies(
                (size >= 1) & (bytes >= 1),
                (block < end_block(page, size, bytes)) == (block * size < page * bytes + bytes),
            ),
        )

    @theorem("the blocks from a page's first on are those that end on the page or behind it")
    def first_block_counted(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, page, size, bytes: implies(
                (size >= 1) & (bytes >= 1),
                (first_block(page, size, bytes) <= block) == (page * bytes < block * size + size),
            ),
        )

    @theorem("the blocks from a page's first whole one on are those that do not begin before the page")
    def first_whole_counted(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, page, size, bytes: implies(
                (size >= 1) & (bytes >= 1),
                (first_whole(page, size, bytes) <= block) == (page * bytes <= block * size),
            ),
        )

    @theorem("the blocks before the end of a page's whole ones are those that do not end behind the page")
    def end_whole_counted(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, page, size, bytes: implies(
                (size >= 1) & (bytes >= 1),
                (block < end_whole(page, size, bytes)) == (block * size + size <= page * bytes + bytes),
            ),
        )

    @theorem(
        "if pages are whole blocks, each has equally many, behind those of the page before: none lies across a border"
    )
    def whole_pages(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda page, size, many: implies(
                size >= 1,
                (first_whole(page, size, many * size) == page * many)
                & (end_whole(page, size, many * size) == page * many + many),
            ),
        )

    @theorem("otherwise the count differs: of pages of 4 bytes and blocks of 3, page 1 has no whole block")
    def count_misleads(self) -> Bool:
        return end_whole(nat(1), nat(3), nat(4)) <= first_whole(nat(1), nat(3), nat(4))

    # -- amounts -----------------------------------------------------------------------------------------------------

    @theorem("every block that pages are needed for lies on one of them")
    def needed_reaches(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            Nat,
            lambda block, more, size, bytes: implies(
                (size >= 1) & (bytes >= 1),
                last_page(block, size, bytes) < pages_needed(block + 1 + more, size, bytes),
            ),
        )

    @theorem("the pages that are needed end with the last page of the last block")
    def needed_is_least(self) -> Bool:
        return forall(
            Nat,
            Nat,
            Nat,
            lambda block, size, bytes: implies(
                (size >= 1) & (bytes >= 1),
                pages_needed(block + 1, size, bytes) == last_page(block, size, bytes) + 1,
            ),
        )

    @theorem("no blocks need no page")
    def needed_zero(self) -> Bool:
        return forall(Nat, Nat, lambda size, bytes: implies(bytes >= 1, pages_needed(nat(0), size, bytes) == 0))

    @witness("a block lies across a border")
    def across_a_border(self) -> Bool:
        return exists(
            Nat,
            Nat,
            Nat,
            lambda block, size, bytes: (
                (size >= 1) & (size < bytes) & (first_page(block, size, bytes) < last_page(block, size, bytes))
            ),
        )

    @witness("a page has no whole block, though it is larger than one")
    def a_page_without(self) -> Bool:
        return exists(
            Nat,
            Nat,
            Nat,
            lambda page, size, bytes: (
                (size >= 1) & (size < bytes) & (end_whole(page, size, bytes) <= first_whole(page, size, bytes))
            ),
        )
