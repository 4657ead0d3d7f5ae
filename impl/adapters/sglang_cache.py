"""SGLang's caches with their allocators and rows, and what they show: pages and states by number, keys as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from kvspec.impl.adapters.sglang_package import MAX_TOKENS, EvictParams, Req
from kvspec.model.conformance import Context
from kvspec.model.engines.protocol import Group, Store
from kvspec.model.engines.recorder import Table

STATES: Final = 2
"""The store and the group of states, in caches that have some."""
_ROW: Final = 1 << 30
"""Tokens of a row: a request has one, whatever its length."""


class InconsistentError(Exception):
    """What the cache says of itself does not fit together."""


class Space(NamedTuple):
    """What keeps equal tokens apart in a tree (`Req.extra_key`, `Req.cache_salt`)."""

    extra_key: str | None
    cache_salt: str | None


def space_of(context: Context) -> Space:
    """Where the tokens of a request belong; whatever is no salt is part of the extra key (`Req.__init__`).

    To SGLang an empty salt is none (`RadixKey.__init__`); to us it is one, and goes to the extra key.
    """
    others = (context.adapter, context.adapter_version, context.images, context.salt == "")
    return Space(None if others == (None, 0, (), False) else repr(others), context.salt or None)


class TreePath(NamedTuple):
    """A path of the tree: where it belongs, its tokens, and along it the blocks of each group."""

    space: Space
    tokens: Sequence[int]
    tables: Sequence[Table]


def pages_of(slots: Sequence[int], page_size: int) -> Table:
    """The pages that slots of successive tokens are on.

    Raises:
        InconsistentError: the slots of a page are not one behind the other.
    """
    pages = [slot // page_size for slot in slots[::page_size]]
    for position, slot in enumerate(slots):
        page = pages[position // page_size]
        if slot != page * page_size + position % page_size:
            raise InconsistentError(f"token {position} has slot {slot}, and its page is {page}")
    return list(pages)


class TreeCache:
    """A cache of SGLang with pages of attention, and a row for each request.

    Attributes:
        tree, rows, allocator: the package's objects.
        page_size: tokens of a page.
    """

    tree: Any
    rows: Any
    allocator: Any

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size

    def paths(self) -> Iterator[TreePath]:
        """All that the tree has, along its paths; beginnings that paths have in common come more than once."""
        raise NotImplementedError

    def expect(self, space: Space, tokens: Sequence[int]) -> None:
        """The tree may get these tokens."""

    def watch_copies(self, watch: Callable[[int, int], None]) -> None:
        """To be called when a state is copied, with its slot and with the other one."""

    def copied(self, req: Req, slot: int) -> None:
        """The request's state was copied to this slot, which the tree will have."""

    def settle(self, req: Req) -> None:
        """A checkpoint of the request is done: what was copied for the tree is no longer the request's."""

    # -- what it is ----------------------------------------------------------------------------------------------

    def stores(self) -> list[Store]:
        """Pages and rows, and whatever else has numbers; 0 is reserved."""
        return [numbered(self.allocator.size // self.page_size), numbered(self.rows.size)]

    def groups(self) -> list[Group]:
        """The tables of a request: its pages, its row."""
        return [Group(0, "attention", self.page_size), Group(1, "opaque", _ROW, reuse=False)]

    def longest_request(self) -> int:
        """Tokens of a request that fits alone: a page, and one token, are left (`PrefillBudget.check_prefill`)."""
        return min(int(self.allocator.size) - self.page_size - 1, MAX_TOKENS)

    # -- what it shows -------------------------------------------------------------------------------------------

    def slots(self, req: Req) -> list[int]:
        """Where the tokens of a request are: in its row, or, before that is written, on the path that is locked."""
        if req.kv.kv_allocated_len:
            return list(self.rows.req_to_token[req.kv.req_pool_idx, : req.kv.kv_allocated_len].tolist())
        return list(self.tree.prefix_device_indices(req).tolist()) if req.lock is not None else []

    def tables(self, req: Req) -> list[Table]:
        """For each group the blocks of a request."""
        return [pages_of(self.slots(req), self.page_size), [req.kv.req_pool_idx] if req.kv.holds_kv else []]

    def keys(self, paths: Sequence[TreePath]) -> list[dict[int, str]]:
        """For each store the keys of its blocks."""
        return [self.keys_of_pages(paths, 0), {}]

    def keys_of_pages(self, paths: Sequence[TreePath], group: int) -> dict[int, str]:
        """The key of a page is the path up to its end."""
        found: dict[int, str] = {}
        for space, tokens, tables in paths:
            for index, page in enumerate(tables[group]):
                if page is not None:
                    found[page] = key_text(space, tokens[: (index + 1) * self.page_size], group)
        return found

    def free(self) -> list[int]:
        """For each store the free blocks; the allocators count tokens."""
        return [self.allocator.available_size() // self.page_size, self.rows.available_size()]

    def check(self, paths: Sequence[TreePath]) -> None:
        """Whether the tree's own counts are what it has.

        Raises:
            InconsistentError: they are not.
        """
        pages = {page for path in paths for page in path.tables[0]}
        counted = self.tree.evictable_size() + self.tree.protected_size()
        if counted != len(pages) * self.page_size:
            raise InconsistentError(f"the tree counts {counted} tokens, and has {len(pages) * self.page_size}")

    # -- what it is asked for ------------------------------------------------------------------------------------

    def evict(self, num_blocks: int) -> None:
        """Drop so many idle pages."""
        self.tree.evict(EvictParams(num_tokens=num_blocks * self.page_size))

    def flush(self) -> None:
        """Drop everything (`Scheduler.flush_cache`)."""
        self.tree.reset()
        self.rows.clear()
        self.allocator.clear()

    def reserved(self, budget: Any) -> int:
        """Pages that an admission leaves free beside its own: those reserved for others, a page, and one token
        (`PrefillBudget.check_prefill`, `PrefillAdder.add_one_req`)."""
        return 1 + ceil(float(budget.total_offset + 1) / self.page_size)

    def spare(self, num_pages: int) -> tuple[int, ...]:
        """So many pages, for each store."""
        return (num_pages, 0)


def numbered(count: int) -> Store:
    """Blocks 1, 2, ..., of which those are free that neither a request nor the tree has."""
    return Store(tuple(range(1, count + 1)), "unkeyed")


def key_text(space: Space, tokens: Sequence[int], group: int) -> str:
    """What the tree knows a block by, as text: the whole path, and the group."""
    return f"{group} {space.extra_key} {space.cache_salt} {' '.join(map(str, tokens))}"
