"""`TorchTarget`: the implementation behind the target protocol of `kvspec.model.conformance`.

The flows are those of the seed (5.2 allocate, 8 deallocate) for one block manager. Every operation checks first and
changes afterwards, so that an error or a refusal leaves all state as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items

import torch

from kvspec.impl.block import Block
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.paging import block_index, longest_hit
from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.sequence import Sequence
from kvspec.impl.sequence_blocks import (
    check_known,
    check_unmounted,
    enter_use,
    give_back,
    grow,
    publish,
    replace_shared,
)
from kvspec.impl.target_base import BaseTarget, operation
from kvspec.impl.write_plan import WritePlan, as_tags
from kvspec.model.conformance import OF_POOLS, OF_VARIANTS, CacheEvent, Capability, Form, PoolConfig, Tags


class TorchTarget(BaseTarget):
    """Sequences over one `BlockManagerImpl`, with K and V in torch tensors.

    Args:
        config: sizes and options, of one manager.
        layers, heads, head_dim: shape of a cell (see `KVBuffers`).
        device: where K and V are.
        record_events: keep cache events for `drain_events`; without a reader they only grow.
    Raises:
        InvalidRangeError: the config is that of another form.
    """

    capabilities: frozenset[Capability] = frozenset(Capability) - OF_POOLS - OF_VARIANTS
    name_ = "TorchTarget"
    form_ = Form.MANAGERS

    def __init__(
        self,
        config: PoolConfig,
        *,
        layers: int = 1,
        heads: int = 1,
        head_dim: int = 2,
        device: torch.device | str = "cpu",
        record_events: bool = True,
    ) -> None:
        super().__init__(config)
        self.sanitizer_ = Sanitizer() if config.sanitizer else None
        self.manager_ = self._make_manager(record_events)
        self.buffers_ = self._make_buffers(layers, heads, head_dim, device)
        if self.sanitizer_ is not None:
            self.buffers_.guard_padding()

    def _make_manager(self, record_events: bool) -> BlockManagerImpl:
        return BlockManagerImpl(
            self.config.num_blocks,
            self.config.block_size,
            enable_prefix_cache=self.config.enable_prefix_cache,
            sanitizer=self.sanitizer_,
            record_events=record_events,
        )

    def _make_buffers(self, layers: int, heads: int, head_dim: int, device: torch.device | str) -> KVBuffers:
        sizes = self.config.num_blocks, self.config.block_size
        return KVBuffers(*sizes, layers=layers, heads=heads, head_dim=head_dim, device=device)

    def __del__(self) -> None:
        # A target that is dropped without close takes its handles along; nobody has lost them.
        sanitizer = getattr(self, "sanitizer_", None)
        if sanitizer is not None:
            sanitizer.unwatch()

    # -- operations --------------------------------------------------------------------------------------------------
    @operation
    def allocate_shared(self, seq: str) -> int:
        """Mount the published blocks of the longest prefix, short of the last token; the number of tokens hit."""
        sequence = self._get(seq, "allocate_shared")
        check_unmounted(sequence, "TorchTarget.allocate_shared")
        limit = longest_hit(len(sequence.tokens_), self._block_size)
        blocks = self.manager_.allocate_shared(sequence.tokens_, sequence.keys_, limit)
        sequence.mount(blocks)
        return sequence.computed_

    @operation
    def allocate(self, seq: str, num_tokens: int) -> bool:
        """Make tokens [computed, num_tokens) writable: grow the table, copy shared blocks. All or nothing."""
        sequence = self._get(seq, "allocate")
        check_known(sequence, num_tokens, "TorchTarget.allocate")
        return grow(self.manager_, sequence, num_tokens, sequence.shared_indices(num_tokens), self._copy_on_write)

    @operation
    def write(self, batch: Items[tuple[str, Tags]]) -> None:
        """One forward step: one slot computation and one write for the whole batch.

        Error if a sequence lacks room or known tokens, is named twice, or would write a block that others hold.
        """
        plan = WritePlan(self._block_size, "TorchTarget.write")
        for seq, tags in batch:
            values = as_tags(tags)
            plan.add(seq, self._get(seq, "write"), values)
        if not plan.num_tokens:
            return
        self._settle()
        plan.write(self.buffers_)
        plan.commit()
        self._settle()

    @operation
    def cache(self, seq: str) -> None:
        """Publish all full computed blocks (seed 4.2)."""
        self._publish(self._get(seq, "cache"))

    @operation
    def deallocate(self, seq: str) -> None:
        """Finish: publish, give all handles back, forget the sequence (seed 8)."""
        sequence = self._get(seq, "deallocate")
        self._publish(sequence)
        self._give_back(sequence)
        del self._sequences[seq]

    @operation
    def preempt(self, seq: str) -> None:
        """Give all handles back without publishing; tokens stay known."""
        self._give_back(self._get(seq, "preempt"))

    @operation
    def abort(self, seq: str) -> None:
        """Give all handles back without publishing and forget the sequence."""
        self._give_back(self._get(seq, "abort"))
        del self._sequences[seq]

    @operation
    def fork(self, parent: str, child: str) -> None:
        """A new sequence with the parent's tokens, context and computed count, sharing its whole table."""
        sequence = self._get(parent, "fork")
        self._check_new(child, "fork")
        blocks = self.manager_.share(sequence.kv_state_.blocks_)
        self._sequences[child] = sequence.fork(blocks)

    @operation
    def truncate(self, seq: str, num_tokens: int) -> None:
        """Keep the first num_tokens known tokens. Error if there are fewer, or num_tokens is negative."""
        sequence = self._get(seq, "truncate")
        check_known(sequence, num_tokens, "TorchTarget.truncate")
        enter_use(self.manager_, sequence, block_index(min(num_tokens, sequence.computed_), self._block_size))
        self.manager_.release_blocks(sequence.truncate(num_tokens))

    @operation
    def evict(self, num_blocks: int) -> int:
        """Drop up to num_blocks idle entries, least recently used first; the number of blocks freed."""
        if num_blocks < 0:
            raise InvalidRangeError("TorchTarget.evict", f"{num_blocks} blocks", "0 or more")
        cache = self.manager_.prefix_cache_
        return cache.evict(num_blocks) if cache is not None else 0

    @operation
    def reset(self) -> bool:
        """Drop every key; blocks in use stay with their sequences. Never refused."""
        if self.manager_.prefix_cache_ is not None:
            self.manager_.prefix_cache_.reset()
        return True

    @operation
    def hold(self, block_id: int) -> int:
        """One more outside holder of a live block. Error if it is free, padding, or outside the pool."""
        return self._keep(self.manager_.hold(block_id))

    @operation
    def close(self) -> None:
        """Give everything back; every later operation is an error."""
        for seq in list(self._sequences):
            self._give_back(self._sequences.pop(seq))
        for handle in list(self._holds):
            self._holds.pop(handle).release()
        self._settle()
        self.manager_.close()
        self.closed_ = True

    # -- observations ------------------------------------------------------------------------------------------------
    @operation
    def free_ids(self) -> set[int]:
        """Ids in the free list."""
        return set(self.manager_.free_ids())

    @operation
    def free_count(self) -> int:
        """Counter of the free list."""
        return self.manager_.num_free_blocks_

    @operation
    def used_count(self) -> int:
        """Blocks held by at least one sequence."""
        return self.manager_.num_used_blocks_

    @operation
    def ref_count(self, block_id: int) -> int:
        """Handles of the block; 0 if it is free."""
        return self.manager_.ref_count(block_id)

    @operation
    def cached(self) -> Mapping[bytes, int]:
        """Keys of the prefix cache and their blocks."""
        return cached_blocks(self.manager_)

    @operation
    def drain_events(self) -> Items[CacheEvent]:
        """Changes of the prefix cache since the last call, in order."""
        cache = self.manager_.prefix_cache_
        return [] if cache is None else cache.drain_events()

    # -- parts -------------------------------------------------------------------------------------------------------
    def _settled(self, sequence: Sequence) -> KVBuffers:
        self._settle()
        return self.buffers_

    def _settle(self) -> None:
        if self.sanitizer_ is not None:
            self.sanitizer_.settle(self.buffers_)

    def _copy_on_write(self, sequence: Sequence, indices: Items[int], blocks: list[Block]) -> None:
        replace_shared(self.manager_, sequence, indices, blocks, self._copy_blocks)

    def _copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        self._settle()
        self.buffers_.copy_blocks(pairs)

    def _publish(self, sequence: Sequence) -> None:
        publish(self.manager_, sequence)

    def _give_back(self, sequence: Sequence) -> None:
        give_back(self.manager_, sequence)


def cached_blocks(manager: BlockManagerImpl) -> Mapping[bytes, int]:
    """Keys of the prefix cache of a manager and their blocks."""
    cache = manager.prefix_cache_
    return {} if cache is None else {key: entry.id for key, entry in cache.entries_.items()}
