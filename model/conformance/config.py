"""What a target is made as: its form, its size and its options."""

from __future__ import annotations

from enum import StrEnum
from math import lcm
from typing import Literal

import msgspec


class Form(StrEnum):
    """What a target is."""

    MANAGERS = "managers"
    POOLS = "pools"
    COMPOSITES = "composites"
    TIERS = "tiers"
    PAGES = "pages"
    ENGINES = "engines"

    @property
    def words(self) -> str:
        """What one of them is called."""
        return {
            Form.MANAGERS: "a manager",
            Form.POOLS: "a pool of ranks",
            Form.COMPOSITES: "a composite",
            Form.TIERS: "a pool with a host tier",
            Form.PAGES: "a manager with pages that are mapped on demand",
            Form.ENGINES: "the manager of an engine",
        }[self]


class ManagerType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sub-manager of a composite: the layers of one group (seed 9.2, manager_types).

    Attributes:
        num_blocks: its blocks, block 0 (padding) included; at least 2.
        block_size: tokens per block; at least 1.
        window: tokens that a query of its layers sees, its own included; None: all.

    Raises:
        ValueError: a size is out of range.
    """

    num_blocks: int
    block_size: int
    window: int | None = None

    def __post_init__(self) -> None:
        _check_blocks(self.num_blocks, self.block_size)
        if self.window is not None and self.window < 1:
            raise ValueError(f"window: {self.window}, expected at least 1")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine schedules (`kvspec.model.engines.protocol`).

    Attributes:
        variant: which of its managers is driven.
        max_batch_tokens: tokens of all requests in one step; at least 1.
        max_running: requests in one step; at least 1.
        window: tokens that a query sees in groups with a sliding window.
        priority: requests go by their priority, not by their order.
        chunked: a prompt may be computed in several steps.
        overlapped: the next step is planned before the results of the last one are known.

    Raises:
        ValueError: a number is out of range.
    """

    variant: str
    max_batch_tokens: int = 64
    max_running: int = 4
    window: int = 4
    priority: bool = False
    chunked: bool = False
    overlapped: bool = False

    def __post_init__(self) -> None:
        for name in ("max_batch_tokens", "max_running", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}, expected at least 1")


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size and options of one pool.

    Attributes:
        num_blocks: physical blocks, block 0 (padding) included; at least 2.
        block_size: tokens per block; at least 1.
        enable_prefix_cache: keep published blocks for later requests (seed 4).
        sanitizer: poison freed blocks, guard the padding block, report lost handles.
        num_single_blocks: single ids of each rank, id 0 (padding) included (seed 6); 0: what is driven is one
            `BlockManager`, not a pool, and no sequence has a single block.
        num_ranks: data-parallel ranks, each with blocks, single blocks and state slots of its own (seed 5.1).
        num_state_slots: recurrent-state slots of each rank, slot 0 (padding) included (seed 7); 0: no linear state.
        checkpoint_interval: tokens between positions that may have a checkpoint; 0: the block size.
        trim: which hits are kept where states have to be restored (seed 7.2): up to the first boundary without a
            checkpoint, or up to the deepest boundary with one.
        manager_types: sub-managers of a `CompositeBlockManager` (seed 9.2), one for each group; none: there is no
            composite. It has no prefix cache, and the blocks of its groups only.
        num_host_blocks: blocks of the host tier of each rank, block 0 (padding) included (seed 9.4); 0: there is none.
            Only in a pool with a prefix cache and without linear state.
        num_pages: physical pages of a manager whose blocks get memory on demand (seed 5.1, XTensor); 0: all of its
            memory is there.
        page_size: tokens that fit on a page; a page may have several blocks, or a block lie on several pages.
        num_threads: from how many threads it is called, in turn and one call at a time.
        engine: how the engine schedules, where a manager is driven by the steps of an engine.

    Raises:
        ValueError: a size is out of range, or options do not go together.
    """

    num_blocks: int
    block_size: int
    enable_prefix_cache: bool = True
    sanitizer: bool = False
    num_single_blocks: int = 0
    num_ranks: int = 1
    num_state_slots: int = 0
    checkpoint_interval: int = 0
    trim: Literal["contiguous", "deepest"] = "contiguous"
    manager_types: tuple[ManagerType, ...] = ()
    num_host_blocks: int = 0
    num_pages: int = 0
    page_size: int = 0
    num_threads: int = 1
    engine: EngineConfig | None = None

    def __post_init__(self) -> None:
        _check_blocks(self.num_blocks, self.block_size)
        for name, what in (
            ("num_single_blocks", "single block"), ("num_state_slots", "slot"), ("num_host_blocks", "host block"),
        ):  # fmt: skip
            if (number := getattr(self, name)) != 0 and number < 2:
                raise ValueError(f"{name}: {number}, expected 0, or at least 2 ({what} 0 is padding)")
        if self.num_ranks < 1:
            raise ValueError(f"num_ranks: {self.num_ranks}, expected at least 1")
        if self.checkpoint_interval < 0:
            raise ValueError(f"checkpoint_interval: {self.checkpoint_interval}, expected at least 0")
        if self.trim not in ("contiguous", "deepest"):
            raise ValueError(f"trim: {self.trim!r}, expected 'contiguous' or 'deepest'")
        if not self.is_pool and (self.num_ranks > 1 or self.has_linear_state or self.has_host_tier):
            raise ValueError("num_single_blocks: 0, expected at least 2 with ranks, state slots or a host tier")
        self._check_variants()

    def _check_variants(self) -> None:
        """What a composite, a host tier and pages go together with."""
        if self.manager_types and (self.is_pool or self.enable_prefix_cache):
            raise ValueError("manager_types: a composite, expected no single blocks and no prefix cache")
        if self.has_host_tier and (self.has_linear_state or not self.enable_prefix_cache):
            what = f"num_host_blocks: {self.num_host_blocks}"
            raise ValueError(f"{what}, expected a pool with a prefix cache and without state slots")
        if (self.num_pages > 0) != (self.page_size > 0) or min(self.num_pages, self.page_size) < 0:
            what = f"num_pages: {self.num_pages} pages of {self.page_size} tokens"
            raise ValueError(f"{what}, expected both, or none")
        if self.num_pages and (self.is_pool or self.manager_types):
            raise ValueError(f"num_pages: {self.num_pages}, expected 0 in a pool of ranks or a composite")
        if self.num_pages and self.num_pages * self.page_size < self.block_size:
            what = f"num_pages: {self.num_pages} pages of {self.page_size} tokens"
            raise ValueError(f"{what}, expected room for the padding block, of {self.block_size}")
        if self.num_threads < 1:
            raise ValueError(f"num_threads: {self.num_threads}, expected at least 1")
        if self.engine is not None and (self.is_pool or self.manager_types or self.num_pages):
            raise ValueError("engine: with single blocks, groups or pages, expected none of them")

    @property
    def form(self) -> Form:
        """What is driven."""
        if self.engine is not None:
            return Form.ENGINES
        if self.manager_types:
            return Form.COMPOSITES
        if self.has_host_tier:
            return Form.TIERS
        if self.num_pages:
            return Form.PAGES
        return Form.POOLS if self.is_pool else Form.MANAGERS

    @property
    def num_cells(self) -> int:
        """Token cells of all tiers, groups and physical pages, single blocks and state slots of all ranks together."""
        if self.manager_types:
            return sum(kind.num_blocks * kind.block_size for kind in self.manager_types)
        units, cells = self.num_single_blocks + self.num_state_slots, self.num_pages * self.page_size
        return cells + self.num_ranks * ((self.num_blocks + self.num_host_blocks) * self.block_size + units)

    @property
    def is_pool(self) -> bool:
        """A `KVCacheManager` is driven, which gives each sequence a rank and a single block."""
        return self.num_single_blocks > 0

    @property
    def has_linear_state(self) -> bool:
        """Sequences have a recurrent state (enable_linear_state)."""
        return self.num_state_slots > 0

    @property
    def has_host_tier(self) -> bool:
        """What the device has dropped may still be found in host memory (HierarchyBlockManagerPool)."""
        return self.num_host_blocks > 0

    @property
    def stride(self) -> int:
        """Tokens between positions at which a state can be restored: whole blocks, and whole intervals."""
        return lcm(self.block_size, self.checkpoint_interval or self.block_size)


def _check_blocks(num_blocks: int, block_size: int) -> None:
    if num_blocks < 2:
        raise ValueError(f"num_blocks: {num_blocks}, expected at least 2 (block 0 is padding)")
    if block_size < 1:
        raise ValueError(f"block_size: {block_size}, expected at least 1")
