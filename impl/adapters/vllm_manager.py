"""vLLM's `KVCacheManager` as it is, watched: whatever is called, what it left behind is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockStored
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_block_hash, get_group_id, maybe_convert_block_hash
from vllm.v1.core.single_type_kv_cache_manager import MambaManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request

from kvspec.model.engines.protocol import Copy, Ended, KeyEvent, Pin, Preempted
from kvspec.model.engines.recorder import Recorder, Seen


class WatchedManager:
    """Stands for the manager where the scheduler has it; everything else goes to the manager.

    Attributes:
        keeps_look_ups: what was found for a request is used whenever it gets its turn. That is misuse: a look-up pins
            nothing, and the scheduler makes it right before `allocate_slots`.
        recorder: gets a record behind each call.
        published: events since the scheduler took them last.
    """

    keeps_look_ups = False

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self.recorder = Recorder(self.look)
        self.published: list[Any] = []
        self._copying: list[KVCacheBlock] = []
        self._found: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    # -- what it shows -------------------------------------------------------------------------------------------

    def look(self) -> Seen:
        """Tables, keys, reference counts and the free number; the null block is nobody's."""
        pool, events = self._manager.block_pool, self._manager.take_events()
        self.published += events
        return Seen(
            {seq: self._tables(seq) for seq in self._holders()},
            [self._keys()],
            [pool.get_num_free_blocks()],
            [{block.block_id: block.ref_cnt for block in pool.blocks if block.ref_cnt and not block.is_null}],
            tuple(self._pins()),
            [told for event in events for told in self._told(event)] if self._manager.enable_kv_cache_events else None,
        )

    def _holders(self) -> list[str]:
        managers = self._manager.coordinator.single_type_managers
        return list(
            dict.fromkeys(seq for manager in managers for seq, blocks in manager.req_to_blocks.items() if blocks)
        )

    def _tables(self, seq: str) -> list[list[int | None]]:
        null = self._manager.block_pool.null_block.block_id
        return [[None if block == null else block for block in ids] for ids in self._manager.get_block_ids(seq)]

    def _keys(self) -> dict[int, str]:
        """The key of each block that has one; of several, the one that the block itself knows."""
        found: dict[int, str] = {}
        for key, block in self._entries():
            if block.block_id not in found or block.block_hash == key:
                found[block.block_id] = _name(*_published(key))
        return found

    def _told(self, event: Any) -> Iterator[KeyEvent]:
        """An event of vLLM has several keys; they are counted, since each block that has a key is told of. Groups that
        leave blocks out tell their tokens all the same: which are whose, cannot be known then."""
        if isinstance(event, AllBlocksCleared):
            yield KeyEvent("cleared")
            return
        keys = [_name(block_hash, event.group_idx) for block_hash in event.block_hashes]
        if not isinstance(event, BlockStored):
            yield from (KeyEvent("removed", key) for key in keys)
            return
        parent = None if event.parent_block_hash is None else _name(event.parent_block_hash, event.group_idx)
        spec = self._manager.kv_cache_config.kv_cache_groups[event.group_idx].kv_cache_spec
        if isinstance(spec, FullAttentionSpec) or len(event.token_ids) == len(keys) * event.block_size:
            yield from _stored(event, keys, parent)
        else:
            yield from (KeyEvent("stored", key) for key in keys)

    def _entries(self) -> Iterator[tuple[Any, KVCacheBlock]]:
        """Everything that can be matched: each key, once for every block that has it."""
        for key, found in self._manager.block_pool.cached_block_hash_to_block._cache.items():
            for block in found.values() if isinstance(found, dict) else (found,):
                yield key, block

    def keys(self) -> Counter[tuple[Any, int]]:
        """Keys as events have them, and how many blocks have each."""
        return Counter(_published(key) for key, _ in self._entries())

    def _pins(self) -> Iterator[Pin]:
        """Both ends of a copy are kept until the step is planned (`SingleTypeKVCacheManager._apply_cow`)."""
        managers = self._manager.coordinator.single_type_managers
        pending = [block for m in managers for pair in m._pending_cow_copies for block in pair]
        for number, block in enumerate(pending or self._copying):
            yield Pin(f"end {number} of a copy", 0, block.block_id)

    # -- calls that it is watched at -----------------------------------------------------------------------------

    def new_step_starts(self) -> None:
        self._manager.new_step_starts()
        self.recorder.call("new_step_starts")

    def get_computed_blocks(self, request: Request, *limit: Any) -> Any:
        found = self._manager.get_computed_blocks(request, *limit)
        self.recorder.call("get_computed_blocks", request.request_id)
        return self._found.setdefault(request.request_id, found) if self.keeps_look_ups else found

    def allocate_slots(
        self, request: Request, num_new_tokens: int, *, num_new_computed_tokens: int = 0, **options: Any
    ) -> KVCacheBlocks | None:
        found = options.get("new_computed_blocks")
        late = found is not None and self._is_late(found)
        blocks = self._manager.allocate_slots(
            request, num_new_tokens, num_new_computed_tokens=num_new_computed_tokens, **options
        )
        stop = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        refused = blocks is None
        self.recorder.call(
            "allocate_slots",
            request.request_id,
            hit=None if refused or found is None else num_new_computed_tokens,
            refused=refused,
            room=max(stop, request.num_tokens) if options.get("full_sequence_must_fit") else stop,
            late=refused and late,
        )
        return blocks

    def _is_late(self, found: KVCacheBlocks) -> bool:
        """A state that is written in this step cannot be matched yet (`MambaManager.get_num_blocks_to_allocate`)."""
        return any(
            isinstance(manager, MambaManager) and blocks and blocks[-1].block_hash in manager.cached_blocks_this_step
            for manager, blocks in zip(self._manager.coordinator.single_type_managers, found.blocks, strict=True)
        )

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        self._manager.cache_blocks(request, num_computed_tokens)
        self.recorder.call("cache_blocks", request.request_id)

    def free(self, request: Request) -> None:
        """The scheduler sets the state of a request that is over before, that of one that is preempted after."""
        self._manager.free(request)
        seq = request.request_id
        self.recorder.call("free", seq)
        self.recorder.add(Ended(seq) if request.is_finished() else Preempted(seq))

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[KVCacheBlock]]:
        """The copies are the first thing that the device does in this step, so nothing can come between."""
        copies, ends = self._manager.take_kv_cache_block_copies()
        self._copying = list(ends)
        for copy in copies:
            self.recorder.add(Copy(0, copy.src_block_id, copy.dst_block_id))
        return copies, ends

    def copied(self) -> None:
        """The scheduler has given both ends back."""
        self._copying = []
        self.recorder.call("free_blocks")

    def evict_blocks(self, block_ids: set[int]) -> None:
        self._manager.evict_blocks(block_ids)
        self.recorder.call("evict_blocks")

    def reset_prefix_cache(self) -> bool:
        done: bool = self._manager.reset_prefix_cache()
        self.recorder.call("reset_prefix_cache", refused=not done, late=not done)
        return done

    def take_events(self) -> list[Any]:
        events, self.published = self.published, []
        return events


def _stored(event: BlockStored, keys: list[str], parent: str | None) -> Iterator[KeyEvent]:
    """Blocks that stand one behind the other, and what is in them; the last one has all that is left."""
    for at, key in enumerate(keys):
        start = at * event.block_size
        stop = start + event.block_size if at < len(keys) - 1 else None
        yield KeyEvent("stored", key, tuple(event.token_ids[start:stop]), parent)
        parent = key


def _published(key: Any) -> tuple[Any, int]:
    """A key as events have it: the hash, and the group."""
    return maybe_convert_block_hash(get_block_hash(key)), get_group_id(key)


def _name(block_hash: Any, group: int) -> str:
    """A key as text."""
    return f"{block_hash:x}/{group}" if isinstance(block_hash, int) else f"{block_hash.hex()}/{group}"
