"""Contracts of the pure functions of chapter `pages`, on Python's integers of any size."""

from __future__ import annotations

from contracts.terms import contract

import kvspec.spec.pages as pages


@contract(pages.first_page, theorems=("first_page_counted", "padding_first"))
def first_page(block_id: int, block_bytes: int, page_bytes: int) -> None:
    """The first byte of a block is on its first page."""
    assert block_id >= 0 and block_bytes >= 1 and page_bytes >= 1
    page = pages.first_page(block_id, block_bytes, page_bytes)
    assert page * page_bytes <= block_id * block_bytes < (page + 1) * page_bytes


@contract(pages.last_page, theorems=("last_page_counted", "pages_in_order"))
def last_page(block_id: int, block_bytes: int, page_bytes: int) -> None:
    """The last byte of a block is on its last page."""
    assert block_id >= 0 and block_bytes >= 1 and page_bytes >= 1
    page = pages.last_page(block_id, block_bytes, page_bytes)
    assert page * page_bytes < (block_id + 1) * block_bytes <= (page + 1) * page_bytes


@contract(pages.pages_needed, theorems=("needed_reaches", "needed_is_least", "needed_zero"))
def pages_needed(num_blocks: int, block_bytes: int, page_bytes: int) -> None:
    """The pages have room for the blocks, and one page less has not."""
    assert num_blocks >= 0 and block_bytes >= 1 and page_bytes >= 1
    found = pages.pages_needed(num_blocks, block_bytes, page_bytes)
    assert found >= 0
    assert (found - 1) * page_bytes < num_blocks * block_bytes <= found * page_bytes


@contract(pages.first_block, theorems=("first_block_counted",))
def first_block(page: int, block_bytes: int, page_bytes: int) -> None:
    """The first byte of a page is in its first block."""
    assert page >= 0 and block_bytes >= 1 and page_bytes >= 1
    block_id = pages.first_block(page, block_bytes, page_bytes)
    assert block_id * block_bytes <= page * page_bytes < (block_id + 1) * block_bytes


@contract(pages.end_block, theorems=("end_block_counted",))
def end_block(page: int, block_bytes: int, page_bytes: int) -> None:
    """The last byte of a page is in the block before the end."""
    assert page >= 0 and block_bytes >= 1 and page_bytes >= 1
    block_id = pages.end_block(page, block_bytes, page_bytes)
    assert (block_id - 1) * block_bytes < (page + 1) * page_bytes <= block_id * block_bytes


@contract(pages.first_whole, theorems=("first_whole_counted", "whole_pages"))
def first_whole(page: int, block_bytes: int, page_bytes: int) -> None:
    """The first whole block begins on the page, the one before it earlier."""
    assert page >= 0 and block_bytes >= 1 and page_bytes >= 1
    block_id = pages.first_whole(page, block_bytes, page_bytes)
    assert (block_id - 1) * block_bytes < page * page_bytes <= block_id * block_bytes


@contract(pages.end_whole, theorems=("end_whole_counted", "count_misleads"))
def end_whole(page: int, block_bytes: int, page_bytes: int) -> None:
    """The last whole block ends on the page or before it, the one after it later."""
    assert page >= 0 and block_bytes >= 1 and page_bytes >= 1
    block_id = pages.end_whole(page, block_bytes, page_bytes)
    assert block_id * block_bytes <= (page + 1) * page_bytes < (block_id + 1) * block_bytes
