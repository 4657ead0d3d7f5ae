"""`Sequence` and its `KVCacheState`: what a request knows, and which blocks hold it (seed 2.1, 9.5)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Final

from kvspec.impl.block import Block, block_ids
from kvspec.impl.errors import InvalidRangeError, KeyMismatchError
from kvspec.impl.paging import block_index, blocks_between, blocks_needed
from kvspec.impl.prefix_cache import NO_CONTEXT, PrefixKeys

if TYPE_CHECKING:
    from kvspec.impl.block_manager_impl import BlockManagerImpl
    from kvspec.impl.block_transfer import BlockTransfer
    from kvspec.impl.linear_state import Checkpoint

NO_BLOCK: Final = -1
"""Stands in a table of ids where the block was released. It is no id, and every slot made of it is negative."""


class GroupTable:
    """The block table of a sequence in one group of a composite (seed 9.2).

    A logical index means the same tokens for ever: what is released leaves a place without a block.

    Attributes:
        manager_: the sub-manager of the group, which all blocks here come from; not owned.
        blocks_: handles in logical order; None where the block was released.
        ids_: their physical ids as int64; `NO_BLOCK` where the block was released.
        released_: leading places without a block. All later ones have one.
    """

    __slots__ = ("blocks_", "ids_", "manager_", "released_")

    def __init__(self, manager: BlockManagerImpl) -> None:
        self.manager_ = manager
        self.blocks_: list[Block | None] = []
        self.ids_ = array("q")
        self.released_ = 0

    @property
    def block_size(self) -> int:
        """Tokens per block of the group."""
        return self.manager_.block_size_

    @property
    def room(self) -> int:
        """Tokens that the table has places for."""
        return len(self.ids_) * self.block_size

    def missing(self, num_tokens: int) -> int:
        """Blocks to be added so that there are places for so many tokens."""
        return max(blocks_needed(num_tokens, self.block_size) - len(self.ids_), 0)

    def held(self, start: int = 0, stop: int | None = None) -> list[Block]:
        """The handles at logical indices [start, stop)."""
        return [block for block in self.blocks_[start:stop] if block is not None]

    def add_kv_blocks(self, blocks: Items[Block]) -> None:
        """Append fresh handles at the end of the table (seed 5.2). Raises `ReleasedHandleError`."""
        self.ids_.extend(block_ids(blocks))
        self.blocks_.extend(blocks)

    def release_before(self, index: int) -> None:
        """The places before a logical index have no block any more; the caller gives the handles back."""
        count = index - self.released_
        self.blocks_[self.released_ : index] = [None] * count
        self.ids_[self.released_ : index] = array("q", [NO_BLOCK]) * count
        self.released_ = index

    def take_from(self, num_tokens: int) -> list[Block]:
        """Remove the places behind so many tokens; their handles, which the caller gives back."""
        index = blocks_needed(num_tokens, self.block_size)
        taken = self.held(index)
        del self.blocks_[index:]
        del self.ids_[index:]
        self.released_ = min(self.released_, index)
        return taken


class KVCacheState:
    """The block table of a sequence: logical block index to handle, and to physical id.

    Attributes:
        blocks_: handles in logical order (seed 9.5).
        ids_: their physical ids as int64, so that slots of a batch are computed without visiting the handles.
        taken_: for each of them 1 if this sequence took it fresh, 0 if it was shared with it (hit, fork).
        groups_: the tables of a sequence of a composite, by sub-manager; it has no other, and nobody else has them.
    """

    __slots__ = ("blocks_", "groups_", "ids_", "taken_")

    def __init__(self) -> None:
        self.blocks_: list[Block] = []
        self.ids_ = array("q")
        self.taken_ = bytearray()
        self.groups_: list[GroupTable] = []

    @property
    def composite_blocks_(self) -> list[list[Block | None]]:
        """Handles of a sequence of a composite, by sub-manager and logical index (seed 9.2); None where released."""
        return [table.blocks_ for table in self.groups_]

    @property
    def has_table(self) -> bool:
        """Whether there is a place in it, or in that of a group."""
        return bool(self.blocks_) or any(table.ids_ for table in self.groups_)

    def handles(self) -> list[Block]:
        """All handles, those of a composite group after group."""
        return [*self.blocks_, *(block for table in self.groups_ for block in table.held())]

    def add_kv_blocks(self, blocks: Items[Block], *, taken: bool) -> None:
        """Append handles at the end of the table (seed 5.2), fresh or shared ones. Raises `ReleasedHandleError`."""
        self.ids_.extend(block_ids(blocks))
        self.blocks_.extend(blocks)
        self.taken_.extend((b"\1" if taken else b"\0") * len(blocks))

    def replace(self, index: int, block: Block) -> Block:
        """Put a fresh handle at a logical index; the handle that was there, which the caller gives back."""
        old = self.blocks_[index]
        self.ids_[index] = block.id
        self.blocks_[index] = block
        self.taken_[index] = 1
        return old

    def take_from(self, index: int) -> list[Block]:
        """Remove the handles from a logical index on; the caller gives them back."""
        taken = self.blocks_[index:]
        del self.blocks_[index:]
        del self.ids_[index:]
        del self.taken_[index:]
        return taken


class Sequence:
    """A request: known tokens, a table of blocks, and how many tokens are computed (written to the device).

    ``computed_ <= room`` and ``computed_ <= len(tokens_)``; the manager that moves them keeps this. In a pool it has
    three resources (seed 6): its blocks, a single block and, with linear state, a live slot.

    Attributes:
        tokens_: known tokens.
        keys_: chain of prefix keys of the tokens, in the context of the sequence.
        kv_state_: the block table.
        computed_: tokens written.
        confirmed_: those of them that no rejection takes back; blocks leave a window by them (seed 9.3).
        written_: cells from this position on have not been written since their block was taken. It is above computed_
            where draft tokens were rejected, or where a copied block brought the cells of another sequence along.
        published_: leading blocks that the prefix cache names, in cache epoch epoch_; they are skipped when the
            sequence publishes again, and published_at_ is the moment to enter for them (`PrefixCache.touch`).
        dp_rank_: its rank in a pool, None before it has one; it keeps it over a preemption.
        single_block_: handle of its single block, None while it has none.
        linear_state_slot_: handle of its live slot, None while it has none.
        resume_: the pinned checkpoint behind which it goes on, None if its live slot holds its state.
        restoring_: that checkpoint is being copied to the live slot.
        saving_: the checkpoint to which the live slot is being copied, None if it is not.
        loading_: copies of blocks behind the computed tokens from the host that have not all ended, in logical order.
        loaded_: of those that have ended whether they were complete, by logical index.
        ended_: it was deallocated or aborted.
        began_: resets of a pool with a host tier before its table began.
    """

    __slots__ = (
        "began_",
        "computed_",
        "confirmed_",
        "dp_rank_",
        "ended_",
        "epoch_",
        "keys_",
        "kv_state_",
        "linear_state_slot_",
        "loaded_",
        "loading_",
        "published_",
        "published_at_",
        "restoring_",
        "resume_",
        "saving_",
        "single_block_",
        "tokens_",
        "written_",
    )

    def __init__(self, tokens: array[int], block_size: int, context: bytes = NO_CONTEXT) -> None:
        self.tokens_ = tokens
        self.keys_ = PrefixKeys(block_size, context)
        self.dp_rank_: int | None = None
        self.single_block_: Block | None = None
        self.linear_state_slot_: Block | None = None
        self.resume_: Checkpoint | None = None
        self.restoring_ = False
        self.saving_: Checkpoint | None = None
        self.ended_ = False
        self._start_over()

    def _start_over(self) -> None:
        self.kv_state_ = KVCacheState()
        self.computed_ = 0
        self.confirmed_ = 0
        self.written_ = 0
        self.published_ = 0
        self.published_at_ = 0
        self.epoch_ = -1
        self.began_ = 0
        self.loading_: list[BlockTransfer] = []
        self.loaded_: dict[int, bool] = {}

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.keys_.block_size

    @property
    def is_waiting(self) -> bool:
        """Its state has to be restored before it is written: the live slot is not that of the computed tokens."""
        return self.resume_ is not None

    @property
    def is_saving(self) -> bool:
        """Its live slot is being copied: it must not be written."""
        return self.saving_ is not None

    @property
    def is_loading(self) -> bool:
        """Blocks behind the computed tokens are being copied from the host: it must not be written."""
        return bool(self.loading_)

    @property
    def room(self) -> int:
        """Tokens that the table has cells for; in a composite, every table."""
        groups = self.kv_state_.groups_
        return min(table.room for table in groups) if groups else len(self.kv_state_.blocks_) * self.keys_.block_size

    @property
    def num_full_blocks(self) -> int:
        """Blocks whose tokens are all computed."""
        return block_index(self.computed_, self.keys_.block_size)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold that many tokens."""
        return blocks_needed(num_tokens, self.keys_.block_size)

    def shared_indices(self, stop: int) -> list[int]:
        """Logical indices of blocks that tokens [computed, stop) would write and that somebody else names too.

        Such a block is copied when room is made (copy-on-write): a fork, a pin or the prefix cache counts on its
        content. Blocks that are not in the table yet are not listed.
        """
        blocks = self.kv_state_.blocks_
        written = blocks_between(self.computed_, stop, len(blocks), self.keys_.block_size)
        return [index for index in written if blocks[index].ref_count > 1]

    def forbidden_indices(self, stop: int) -> list[int]:
        """Logical indices of blocks that a write of tokens [computed, stop) would spoil for somebody else.

        A shared block may be written by the sequence that took it, where it was not written before: the others
        cannot have read these cells. Every other write needs a block of one's own. A block that is being loaded is
        one: it is the copy that holds it, too.
        """
        taken, size = self.kv_state_.taken_, self.keys_.block_size
        loading = {transfer.index for transfer in self.loading_}
        return [
            index
            for index in self.shared_indices(stop)
            if index not in loading and (not taken[index] or max(self.computed_, index * size) < self.written_)
        ]

    def mount(self, blocks: Items[Block]) -> None:
        """Start with shared blocks whose content is that of the tokens (a hit)."""
        self.kv_state_.add_kv_blocks(blocks, taken=False)
        self.advance(self.room)

    def trim(self, num_blocks: int) -> list[Block]:
        """Keep the first blocks of a hit; the handles of the others, which the caller gives back."""
        trimmed = self.kv_state_.take_from(num_blocks)
        self.advance(self.room)
        return trimmed

    def advance(self, stop: int, confirmed: int | None = None) -> None:
        """Tokens [computed, stop) are written.

        Args:
            stop: how many are computed then.
            confirmed: how many of them are no draft that may still be rejected; None: all.
        """
        self.computed_ = self.written_ = stop
        self.confirmed_ = stop if confirmed is None else confirmed

    def load(self, complete: int, end: int) -> None:
        """All copies have ended: blocks up to a logical index are computed, and those up to `end` may be written."""
        self.loading_, self.loaded_ = [], {}
        self.advance(complete * self.block_size)
        self.written_ = end * self.block_size

    def replace_shared(self, indices: Items[int], blocks: Items[Block]) -> list[Block]:
        """Put copies of blocks of the table in their place; the handles that were there."""
        old = [self.kv_state_.replace(index, block) for index, block in zip(indices, blocks, strict=True)]
        if indices:
            # A copy may hold cells behind the computed ones that another sequence wrote.
            self.written_ = max(self.written_, (indices[0] + 1) * self.block_size)
        return old

    def fork(self, blocks: Items[Block]) -> Sequence:
        """A sequence with the same tokens, context and computed count, on further handles of the same blocks.

        Raises:
            KeyMismatchError: the handles are not of the blocks of the table.
        """
        child = Sequence(self.tokens_[:], self.block_size, self.keys_.context)
        child.keys_ = self.keys_.copy()
        child.kv_state_.add_kv_blocks(blocks, taken=False)
        if child.kv_state_.ids_ != self.kv_state_.ids_:
            what = f"blocks {child.kv_state_.ids_.tolist()}"
            raise KeyMismatchError("Sequence.fork", what, f"{self.kv_state_.ids_.tolist()}")
        child.computed_, child.confirmed_, child.written_ = self.computed_, self.confirmed_, self.written_
        child.published_, child.published_at_, child.epoch_ = self.published_, self.published_at_, self.epoch_
        return child

    def truncate(self, num_tokens: int, computed: int | None = None) -> list[Block]:
        """Keep the first num_tokens tokens (rejected draft tokens).

        Args:
            num_tokens: tokens kept.
            computed: where the sequence goes on, if computed tokens go; num_tokens at most, which is the default.
        Returns:
            The handles of the blocks wholly behind the tokens, or behind computed if that falls; the caller gives
            them back.
        Raises:
            InvalidRangeError: num_tokens is negative or above the number of known tokens.
        """
        if not 0 <= num_tokens <= len(self.tokens_):
            expected = f"0 to {len(self.tokens_)} known tokens"
            raise InvalidRangeError("Sequence.truncate", f"{num_tokens} tokens", expected)
        room = num_tokens if computed is None or computed >= self.computed_ else computed
        del self.tokens_[num_tokens:]
        self.computed_ = min(self.computed_, room)
        self.confirmed_ = min(self.confirmed_, self.computed_)
        self.keys_.truncate(block_index(num_tokens, self.block_size))
        self.published_ = min(self.published_, self.num_full_blocks)
        taken = self.kv_state_.take_from(self.blocks_for(room))
        for table in self.kv_state_.groups_:
            taken += table.take_from(room)
        self.written_ = min(self.written_, self.room)
        return taken

    def reset(self) -> list[Block]:
        """Back to nothing computed (seed 8); tokens stay known. The handles, which the caller gives back."""
        blocks = self.kv_state_.handles()
        self._start_over()
        return blocks
