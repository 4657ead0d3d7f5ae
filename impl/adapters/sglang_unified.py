"""Adapter of SGLang's `UnifiedRadixCache`, for full attention alone, with sliding windows, and with recurrent states.

python -m kvspec.impl.adapters sglang-unified

What the tree has is asked for by the paths that requests may have left there, since the Rust core has no nodes to walk
over. The look-ups that are used change nothing (`match_full_device_prefix`, `collect_path_info`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any, Final

import torch

from kvspec.impl.adapters.sglang_cache import STATES, Space, TreeCache, TreePath, numbered, pages_of
from kvspec.impl.adapters.sglang_engine import SglangEngine
from kvspec.impl.adapters.sglang_package import (
    MAX_TOKENS,
    PACKAGE,
    VERSION,
    BaseSWAKVPool,
    CacheInitParams,
    ComponentType,
    EvictParams,
    HybridReqToTokenPool,
    MambaSlotAllocator,
    PagedTokenToKVPoolAllocator,
    RadixKey,
    Req,
    ReqToTokenPool,
    SWATokenToKVPoolAllocator,
    TokenToKVPoolAllocator,
    UnifiedRadixCache,
    model_config,
)
from kvspec.model.conformance import EngineConfig, PoolConfig
from kvspec.model.engines.protocol import Abilities, Group, Store
from kvspec.model.engines.recorder import Table

__all__ = ["NAME", "PACKAGE", "VERSION", "make", "misuse"]

NAME: Final = "sglang-unified"
ABILITIES: Final = Abilities(("full", "full+sliding", "full+mamba"), ("priority", "chunked"), fewest_blocks=8)
MINIMUM: Final = {
    "hits": 10, "evictions": 10, "refusals": 10, "preemptions": 1, "slides": 10, "states": 10, "copies": 10,
}  # fmt: skip


class Unified(TreeCache):
    """`UnifiedRadixCache` of full attention.

    Args:
        core: ``python`` or ``rust``.
    """

    components: tuple[ComponentType, ...] = (ComponentType.FULL,)

    def __init__(self, core: str, num_pages: int, page_size: int, config: EngineConfig) -> None:
        super().__init__(page_size)
        self._sequences: dict[Space, list[array[int]]] = {}
        self.rows = self.new_rows(config)
        self.allocator = self.new_allocator(num_pages * page_size, config)
        params = CacheInitParams(
            False, self.rows, self.allocator, page_size, enable_kv_cache_events=True, tree_core_backend=core,
            tree_components=self.components, sliding_window_size=self.sliding_window_size(config),
        )  # fmt: skip
        self.tree = UnifiedRadixCache(params)

    def new_rows(self, config: EngineConfig) -> Any:
        """Rows of requests."""
        return ReqToTokenPool(config.max_running, MAX_TOKENS, "cpu", False)

    def new_allocator(self, size: int, config: EngineConfig) -> Any:
        """The allocator of slots for tokens."""
        if self.page_size == 1:
            return TokenToKVPoolAllocator(size, torch.float32, "cpu", None, False)
        return PagedTokenToKVPoolAllocator(size, self.page_size, torch.float32, "cpu", None, False)

    def sliding_window_size(self, config: EngineConfig) -> int | None:
        """What the package calls so: tokens that a query sees beside its own (`get_attention_sliding_window_size`)."""
        return None

    # -- what the tree has ---------------------------------------------------------------------------------------

    def expect(self, space: Space, tokens: Sequence[int]) -> None:
        """Remember a sequence, unless it is the beginning of another one."""
        new, known = array("q", tokens), self._sequences.setdefault(space, [])
        if any(old[: len(new)] == new for old in known):
            return
        known[:] = [old for old in known if new[: len(old)] != old]
        known.append(new)

    def paths(self) -> Iterator[TreePath]:
        core = self.tree.tree_core
        for space, sequences in self._sequences.items():
            for tokens in sequences:
                length, node, _ = core.match_full_device_prefix(RadixKey(tokens, *self._key_arguments(space)))
                if length:
                    yield TreePath(space, tokens[:length], self.along(node, length))

    def _key_arguments(self, space: Space) -> tuple[Any, ...]:
        return space.extra_key, False, None, space.cache_salt

    def along(self, node: Any, length: int) -> list[Table]:
        """The blocks of each group along a path that ends at or inside a node."""
        slots = self.tree.path_device_indices(node).tolist()[:length]
        return [pages_of(slots, self.page_size)]

    def values(self, node: Any, component: ComponentType) -> Iterator[tuple[int, int, list[int]]]:
        """What a component has in the nodes of a path: where the node begins and ends, and its numbers."""
        core = self.tree.tree_core
        for part in core.collect_path_info([node])[0]:
            value = core.get_component_device_value(part.node_id, component)
            if value is not None:
                yield part.path_start, part.path_end, value.tolist()


class Sliding(Unified):
    """Full attention and attention with a window; each has pages of its own, in step with the other's."""

    components = (ComponentType.FULL, ComponentType.SWA)

    def new_allocator(self, size: int, config: EngineConfig) -> Any:
        """Windows need less than everything does, and so little that prompts have to wait for them alone."""
        windows = size - size // self.page_size // 2 * self.page_size
        return SWATokenToKVPoolAllocator(size, windows, self.page_size, torch.float32, "cpu", Windows(), False)

    def sliding_window_size(self, config: EngineConfig) -> int:
        return max(1, config.window - 1)

    def stores(self) -> list[Store]:
        pages = numbered(self.allocator.size_full // self.page_size)
        return [pages, numbered(self.rows.size), numbered(self.allocator.size_swa // self.page_size)]

    def groups(self) -> list[Group]:
        window = self.tree.sliding_window_size + 1
        return [*super().groups(), Group(2, "attention", self.page_size, window)]

    def longest_request(self) -> int:
        """Its prompt is taken for whole pages (`SWAPrefillBudget.check_prefill`)."""
        return min(super().longest_request(), int(self.allocator.size_swa) - 2 * self.page_size)

    def tables(self, req: Req) -> list[Table]:
        return [*super().tables(req), self._windows(self._mapped(self.slots(req)))]

    def _mapped(self, slots: Sequence[int]) -> list[int]:
        return list(self.allocator.full_to_swa_index_mapping[list(slots)].tolist())

    def _windows(self, slots: Sequence[int]) -> Table:
        """Pages of a window; slot 0 stands for a token that has none (any more)."""
        size = self.page_size
        parts = [slots[start : start + size] for start in range(0, len(slots), size)]
        return [pages_of(part, size)[0] if any(part) else None for part in parts]

    def along(self, node: Any, length: int) -> list[Table]:
        slots = [0] * length
        for start, stop, value in self.values(node, ComponentType.SWA):
            slots[start:stop] = value
        return [*super().along(node, length), self._windows(slots[:length])]

    def keys(self, paths: Sequence[TreePath]) -> list[dict[int, str]]:
        return [*super().keys(paths), self.keys_of_pages(paths, 1)]

    def free(self) -> list[int]:
        full, window = self.allocator.full_available_size(), self.allocator.swa_available_size()
        return [full // self.page_size, self.rows.available_size(), window // self.page_size]

    def evict(self, num_blocks: int) -> None:
        count = num_blocks * self.page_size
        self.tree.evict(EvictParams(num_tokens=count, swa_num_tokens=count))

    def reserved(self, budget: Any) -> int:
        """A request is taken for a page more than it has: its prompt is rounded up, and then what it will generate is
        added (`SWAPrefillBudget.check_prefill`)."""
        return max(super().reserved(budget), 2 + ceil(float(budget.swa_offset) / self.page_size))

    def spare(self, num_pages: int) -> tuple[int, ...]:
        return (num_pages, 0, num_pages)


def _unused(*_: Any) -> Any:
    raise NotImplementedError


class Windows(BaseSWAKVPool):  # type: ignore[misc]
    """Stands for the memory of both kinds of layers, which nobody reads."""

    full_kv_pool = swa_kv_pool = None
    get_key_buffer = get_value_buffer = get_kv_buffer = set_kv_buffer = get_state_buf_infos = _unused

    def __init__(self) -> None:
        self.full_to_swa_index_mapping: Any = None

    def register_mapping(self, full_to_swa_index_mapping: Any) -> None:
        self.full_to_swa_index_mapping = full_to_swa_index_mapping

    def translate_loc_from_full_to_swa(self, kv_indices: Any) -> Any:
        return self.full_to_swa_index_mapping[kv_indices]


class Recurrent(Unified):
    """Full attention, and one state for each request and for each node that has one.

    Attributes:
        donated: slots that requests have copied their states to, and that the tree does not have yet.
    """

    components = (ComponentType.FULL, ComponentType.MAMBA)

    def __init__(self, core: str, num_pages: int, page_size: int, config: EngineConfig) -> None:
        assert page_size == 1  # MambaComponent.__init__, without the extra buffer
        super().__init__(core, num_pages, page_size, config)
        self.donated: dict[str, int] = {}

    def new_rows(self, config: EngineConfig) -> Any:
        return StateRows(config.max_running, 3 * config.max_running + 2)

    def stores(self) -> list[Store]:
        return [*super().stores(), numbered(self.rows.mamba_allocator.size)]

    def groups(self) -> list[Group]:
        return [*super().groups(), Group(STATES, "state", 1, aligned=False)]

    def tables(self, req: Req) -> list[Table]:
        # What a finished request keeps is the number of a slot that is the tree's (`cleanup_after_caching_req`).
        live: Table = [int(req.kv.mamba_pool_idx)] if req.kv.holds_mamba and not req.finished() else []
        donated = self.donated.get(req.rid)
        return [*super().tables(req), live + ([] if donated is None else [donated])]

    def along(self, node: Any, length: int) -> list[Table]:
        states: Table = [None] * length
        for _, stop, value in self.values(node, ComponentType.MAMBA):
            if stop <= length:
                states[stop - 1] = value[0]
        return [*super().along(node, length), states]

    def keys(self, paths: Sequence[TreePath]) -> list[dict[int, str]]:
        return [*super().keys(paths), self.keys_of_pages(paths, 1)]

    def free(self) -> list[int]:
        return [*super().free(), self.rows.mamba_allocator.available_size()]

    def evict(self, num_blocks: int) -> None:
        self.tree.evict(EvictParams(num_tokens=num_blocks, mamba_num=num_blocks))

    def spare(self, num_pages: int) -> tuple[int, ...]:
        return (num_pages, 0, 0)

    def watch_copies(self, watch: Callable[[int, int], None]) -> None:
        self.rows.mamba_pool.watch = watch

    def copied(self, req: Req, slot: int) -> None:
        self.donated[req.rid] = slot

    def settle(self, req: Req) -> None:
        self.donated.pop(req.rid, None)


class StatePool:
    """Stands for the memory of states: says what is copied."""

    replayssm_write_pos = replayssm_spec_write_pos = None

    def __init__(self, size: int) -> None:
        self.size = size
        self.watch: Callable[[int, int], None]

    def copy_from(self, src_index: Any, dst_index: Any) -> None:
        for source, target in zip(src_index.tolist(), dst_index.tolist(), strict=True):
            self.watch(source, target)


class Nothing:
    """A pool of states beside the states, of which there are none."""

    def clear(self) -> None:
        pass


class StateRows(HybridReqToTokenPool):  # type: ignore[misc]
    """The package's rows with slots of states; only the memory of the states is not there."""

    def __init__(self, num_rows: int, num_states: int) -> None:
        self._num_states = num_states
        super().__init__(
            size=num_rows, mamba_size=num_states, mamba_spec_state_size=0, max_context_len=MAX_TOKENS, device="cpu",
            enable_memory_saver=False, cache_params=None, mamba_layer_ids=[], enable_mamba_extra_buffer=False,
        )  # fmt: skip

    def _init_mamba_pool(self, **_: Any) -> None:
        self.mamba_pool = StatePool(self._num_states)
        self.mamba_allocator = MambaSlotAllocator(self._num_states, "cpu")
        self.mamba_ckpt_pool = None
        self.short_conv_pool = self.ngram_pool = Nothing()
        self.req_index_to_mamba_index_mapping = torch.zeros(self.req_to_token.shape[0], dtype=torch.int32)


_CACHES: Final = {"full": Unified, "full+sliding": Sliding, "full+mamba": Recurrent}


def make(config: PoolConfig, core: str = "python") -> SglangEngine:
    """An engine around one of its variants; states need pages of one token."""
    assert config.engine is not None
    model_config()
    variant = config.engine.variant or ABILITIES.variants[0]
    page_size = 1 if variant == "full+mamba" else config.block_size
    cache = _CACHES[variant](core, config.num_blocks - 1, page_size, config.engine)
    return SglangEngine(cache, config.engine, ABILITIES, MINIMUM)


def misuse() -> None:
    """From now on a match is not undone when its request is not let in."""
    SglangEngine.keeps_matches = True
