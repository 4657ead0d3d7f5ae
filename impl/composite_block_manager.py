"""`CompositeBlockManager`: one manager around several, each for the layers of one group (seed 9.2, 9.3).

A sequence has a table in every group. The groups are of the whole context or of a window, with numbers and sizes of
blocks of their own. Nothing is shared or published: every block has one holder.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from contextlib import ExitStack

from kvspec.impl.block import Block, BlockRecord, release_all
from kvspec.impl.block_manager import BlockManager
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.closing import while_open
from kvspec.impl.errors import ForeignHandleError, InvalidRangeError, NoIdsError
from kvspec.impl.prefix_cache import PrefixKeys
from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.sequence import GroupTable, Sequence
from kvspec.impl.sequence_blocks import check_known
from kvspec.impl.sliding_window_block_manager import SlidingWindowBlockManager
from kvspec.model.conformance import ManagerType


class CompositeBlockManager(BlockManager):
    """Sub-managers that grow, slide and drain together, for one sequence at a time.

    It has no ids: an id means something in its group only. Counts are sums over the groups.

    Attributes:
        sub_managers_: in the order of the manager types, which is that of the tables of a sequence.

    Args:
        manager_types: what each sub-manager is; at least one.
        sanitize: report misuse of handles, to a `Sanitizer` of each sub-manager, since their memory is not the same.
    Raises:
        InvalidRangeError: there is no sub-manager.
    """

    def __init__(self, manager_types: Items[ManagerType], *, sanitize: bool = False) -> None:
        if not manager_types:
            raise InvalidRangeError("CompositeBlockManager", "no manager types", "at least one")
        self.closed_ = False
        self.sub_managers_ = [make_manager(kind, Sanitizer() if sanitize else None) for kind in manager_types]

    # -- counts ------------------------------------------------------------------------------------------------------
    @property
    def num_total_blocks(self) -> int:
        """Blocks of all groups, a padding block in each included."""
        return sum(manager.num_total_blocks for manager in self.sub_managers_)

    @property
    def num_free_blocks(self) -> int:
        """Blocks of all groups that no handle names."""
        return sum(manager.num_free_blocks for manager in self.sub_managers_)

    @property
    def num_used_blocks(self) -> int:
        """Blocks of all groups that a sequence holds."""
        return sum(manager.num_used_blocks for manager in self.sub_managers_)

    # -- sequences ---------------------------------------------------------------------------------------------------
    @while_open
    def allocate_for_sequence(self, sequence: Sequence, num_tokens: int) -> bool:
        """Places for so many tokens in every group; all groups grow or none, False if one is out of blocks.

        Before that, blocks of the sequence that have left their window are given back, so that they can be taken again
        (`slide`). They stay given back if the growth is refused, or fails: nobody can read them.

        Raises:
            InvalidRangeError: num_tokens is negative or above the known tokens.
            ForeignHandleError: the sequence has blocks of another manager.
        """
        check_known(sequence, num_tokens, "CompositeBlockManager.allocate_for_sequence")
        self.slide(sequence)
        tables = sequence.kv_state_.groups_ or [GroupTable(manager) for manager in self.sub_managers_]
        with ExitStack() as undo:
            staged: list[list[Block]] = []
            for table in tables:
                blocks = self._stage(table, num_tokens, undo)
                if blocks is None:
                    return False
                staged.append(blocks)
            undo.pop_all()
        for table, blocks in zip(tables, staged, strict=True):
            table.add_kv_blocks(blocks)
        sequence.kv_state_.groups_ = tables
        return True

    @staticmethod
    def _stage(table: GroupTable, num_tokens: int, undo: ExitStack) -> list[Block] | None:
        """Blocks that the group will add, which nobody sees yet and which go back if another group has none."""
        blocks = table.manager_.allocate(table.missing(num_tokens))
        if blocks:
            undo.callback(table.manager_.release_blocks, blocks)
        return blocks

    @while_open
    def slide(self, sequence: Sequence) -> int:
        """Give back the blocks that have left their window; how many (seed 9.3).

        What counts are the tokens that are computed and confirmed. Those that are only scheduled, and drafts that may
        be rejected, may have a query before them yet.

        Raises:
            ForeignHandleError: the sequence has blocks of another manager.
        """
        self._check_own(sequence, "slide")
        return sum(self._slide_table(table, sequence.confirmed_) for table in sequence.kv_state_.groups_)

    @staticmethod
    def _slide_table(table: GroupTable, num_tokens: int) -> int:
        stop = out_of_window(table, num_tokens)
        if stop <= table.released_:
            return 0
        dead = table.held(table.released_, stop)
        table.manager_.release_blocks(dead)
        table.release_before(stop)
        return len(dead)

    @while_open
    def truncate_sequence(self, sequence: Sequence, num_tokens: int, computed: int) -> None:
        """Keep the first num_tokens tokens, of which so many at most stay computed (`resumable`).

        Raises:
            InvalidRangeError: num_tokens is negative or above the known tokens, or the window behind the computed ones
                is gone.
            ForeignHandleError: the sequence has blocks of another manager.
        """
        self._check_own(sequence, "truncate_sequence")
        check_known(sequence, num_tokens, "CompositeBlockManager.truncate_sequence")
        kept = min(computed, num_tokens, sequence.computed_)
        if self.resumable(sequence, kept) != kept:
            what, expected = f"{kept} tokens whose window has been released", "0, or as many as can be gone on from"
            raise InvalidRangeError("CompositeBlockManager.truncate_sequence", what, expected)
        release_all(self._deallocated(sequence.truncate(num_tokens, kept)))

    @while_open
    def resumable(self, sequence: Sequence, num_tokens: int) -> int:
        """How many of so many computed tokens can stay: all, if the next query finds its window, or none.

        All, if they are not fewer than the confirmed ones: the window slides by those only. Fewer can stay as long as
        nothing has been released for those that go; then it is as if they had not been confirmed yet.
        """
        there = all(table.released_ <= out_of_window(table, num_tokens) for table in sequence.kv_state_.groups_)
        return num_tokens if there else 0

    @while_open
    def deallocate_sequence(self, sequence: Sequence) -> None:
        """Give back the blocks of all groups; nothing is computed any more.

        Raises:
            ForeignHandleError: the sequence has blocks of another manager; nothing has changed then.
        """
        self._check_own(sequence, "deallocate_sequence")
        self._deallocated(sequence.kv_state_.handles())
        release_all(sequence.reset())

    @while_open
    def owns(self, sequence: Sequence) -> bool:
        """Whether all tables of the sequence are of this manager; it may have none."""
        state = sequence.kv_state_
        if not state.groups_:
            return not state.blocks_
        return [table.manager_ for table in state.groups_] == self.sub_managers_

    def _check_own(self, sequence: Sequence, method: str) -> None:
        if not self.owns(sequence):
            where, what = f"CompositeBlockManager.{method}", "the sequence has blocks of another manager"
            raise ForeignHandleError(where, what, "one of this composite, or that has none")

    @staticmethod
    def _deallocated(blocks: list[Block]) -> list[Block]:
        """The handles, no longer counted as used by their managers."""
        for block in blocks:
            block.manager.deallocate([block])
        return blocks

    # -- what a manager of ids does ----------------------------------------------------------------------------------
    @while_open
    def allocate(self, num_blocks: int) -> list[Block] | None:
        """Raises `NoIdsError`: it is not said of which group. See `allocate_for_sequence`."""
        raise self._no_ids("allocate", "allocate_for_sequence")

    @while_open
    def deallocate(self, blocks: Items[Block]) -> None:
        """Raises `NoIdsError`. See `deallocate_sequence`."""
        raise self._no_ids("deallocate", "deallocate_sequence")

    @while_open
    def free(self, block_id: int) -> None:
        """Raises `NoIdsError`: ids go back to the sub-manager that they came from, with their last handle."""
        raise self._no_ids("free", "the release of a handle")

    @staticmethod
    def _no_ids(method: str, expected: str) -> NoIdsError:
        what = "block ids belong to the sub-managers"
        return NoIdsError(f"CompositeBlockManager.{method}", what, expected)

    @while_open
    def allocate_shared(
        self, token_ids: array[int], keys: PrefixKeys | None = None, max_blocks: int | None = None
    ) -> list[Block]:
        """Nothing is shared: there is no prefix cache (seed 9.2)."""
        return []

    @while_open
    def cache(
        self, token_ids: array[int], blocks: Items[Block], keys: PrefixKeys | None = None, first: int = 0
    ) -> int:
        """Nothing is published: there is no prefix cache (seed 9.2)."""
        return 0

    def block_idle(self, record: BlockRecord) -> None:
        """No block has a key, so none becomes idle."""

    def block_shared(self, record: BlockRecord) -> None:
        """No block has a key, so none ceases to be idle."""

    # -- end of life -------------------------------------------------------------------------------------------------
    @while_open
    def close(self) -> None:
        """Close the sub-managers; every later call, and use of a handle, is an error."""
        for manager in self.sub_managers_:
            manager.close()
        self.closed_ = True


def make_manager(kind: ManagerType, sanitizer: Sanitizer | None) -> BlockManagerImpl:
    """A sub-manager: a `SlidingWindowBlockManager` where there is a window, else a `BlockManagerImpl`."""
    if kind.window is not None:
        return SlidingWindowBlockManager(kind.num_blocks, kind.block_size, kind.window, sanitizer=sanitizer)
    return BlockManagerImpl(kind.num_blocks, kind.block_size, enable_prefix_cache=False, sanitizer=sanitizer)


def out_of_window(table: GroupTable, num_tokens: int) -> int:
    """Leading places of a table whose tokens no query behind so many tokens sees; 0 where all are seen."""
    manager = table.manager_
    return manager.released_blocks(num_tokens) if isinstance(manager, SlidingWindowBlockManager) else 0
