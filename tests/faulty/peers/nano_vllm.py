"""Faults that are planted in nano-vllm's own classes: each function changes one method, for good.

They stand in for methods of the package: most call what they replace and do a little more, or a little less. Each is
one line in the table of ``docs/peers.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanovllm.engine.block_manager import Block, BlockManager
from nanovllm.engine.scheduler import Scheduler


def _around(owner: Any, name: str, new: Callable[..., Any]) -> None:
    """`new` takes what it replaces first, and then what that would take."""
    old = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: new(old, *given, **named))


# -- references ---------------------------------------------------------------------------------------------------


def reference_not_given_back() -> None:
    """A request that is over leaves its first block held."""

    def deallocate(old: Any, self: Any, seq: Any) -> None:
        self.blocks[seq.block_table[0]].ref_count += 1
        old(self, seq)

    _around(BlockManager, "deallocate", deallocate)


def shared_given_back_twice() -> None:
    """Who gives a shared block back takes it from another holder as well."""

    def deallocate(old: Any, self: Any, seq: Any) -> None:
        for block in seq.block_table:
            self.blocks[block].ref_count -= self.blocks[block].ref_count > 1
        old(self, seq)

    _around(BlockManager, "deallocate", deallocate)


def hit_not_counted() -> None:
    """A hit on a block that others hold does not count as a holder."""

    def allocate(old: Any, self: Any, seq: Any) -> None:
        old(self, seq)
        for block in seq.block_table:
            self.blocks[block].ref_count = 1

    _around(BlockManager, "allocate", allocate)


def preempted_keeps_a_block() -> None:
    """Who gives way forgets its last block, and does not give it back."""

    def preempt(old: Any, self: Any, seq: Any) -> None:
        seq.block_table[-1:] = []
        old(self, seq)

    _around(Scheduler, "preempt", preempt)


# -- free blocks --------------------------------------------------------------------------------------------------


def grown_block_stays_free() -> None:
    """A block for the next token is handed out, and is free as well."""

    def may_append(old: Any, self: Any, seq: Any) -> None:
        had = len(seq.block_table)
        old(self, seq)
        if len(seq.block_table) > had:
            self.free_block_ids.append(seq.block_table[-1])

    _around(BlockManager, "may_append", may_append)


def room_counted_one_too_many() -> None:
    """A prompt is let in if all but one of its blocks are free."""

    def can_allocate(old: Any, self: Any, seq: Any) -> bool:
        return bool(len(self.free_block_ids) + 1 >= seq.num_blocks)

    _around(BlockManager, "can_allocate", can_allocate)


def last_block_refused() -> None:
    """The last free block is not handed out to a request that grows."""

    def can_append(old: Any, self: Any, seq: Any) -> bool:
        return bool(old(self, seq)) and len(self.free_block_ids) != 1

    _around(BlockManager, "can_append", can_append)


# -- keys ---------------------------------------------------------------------------------------------------------


def key_without_its_prefix() -> None:
    """The key of a block has nothing of what stands before it."""

    def compute_hash(old: Any, token_ids: list[int], prefix: int = -1) -> Any:
        return old(token_ids)

    old = BlockManager.compute_hash
    BlockManager.compute_hash = staticmethod(lambda *given: compute_hash(old, *given))


def key_kept_when_handed_out() -> None:
    """Blocks keep their keys when they are free, and when they are handed out again."""

    def reset(old: Any, self: Any) -> None:
        self.ref_count = 1

    def deallocate(old: Any, self: Any, seq: Any) -> None:
        keys = dict(self.hash_to_block_id)
        old(self, seq)
        self.hash_to_block_id = keys

    _around(Block, "reset", reset)
    _around(BlockManager, "deallocate", deallocate)


def published_before_it_is_full() -> None:
    """The last block of a prompt can be found as if it were full."""

    def allocate(old: Any, self: Any, seq: Any) -> None:
        old(self, seq)
        last = seq.block(seq.num_blocks - 1)
        if len(last) == self.block_size - 1:
            padded = [*last, 0]
            prefix = self.blocks[seq.block_table[-2]].hash if len(seq.block_table) > 1 else -1
            key = self.compute_hash(padded, prefix)
            self.blocks[seq.block_table[-1]].update(key, padded)
            self.hash_to_block_id[key] = seq.block_table[-1]

    _around(BlockManager, "allocate", allocate)


def hit_a_block_too_long() -> None:
    """Behind a hit another block is taken for computed."""

    def allocate(old: Any, self: Any, seq: Any) -> None:
        old(self, seq)
        if 0 < seq.num_cached_tokens < len(seq) - self.block_size:
            seq.num_cached_tokens += self.block_size

    _around(BlockManager, "allocate", allocate)


def blocks_in_another_order() -> None:
    """The first two blocks of a request that grows change places."""

    def may_append(old: Any, self: Any, seq: Any) -> None:
        had = len(seq.block_table)
        old(self, seq)
        if len(seq.block_table) > max(had, 2):
            seq.block_table[:2] = seq.block_table[1::-1]

    _around(BlockManager, "may_append", may_append)
