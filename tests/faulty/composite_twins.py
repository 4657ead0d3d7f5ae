"""Composites with one mistake each."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from kvspec.impl.block import Block, release_all
from kvspec.impl.composite_block_manager import CompositeBlockManager, out_of_window
from kvspec.impl.paging import released_blocks
from kvspec.impl.sequence import GroupTable, Sequence
from kvspec.impl.sliding_window_block_manager import SlidingWindowBlockManager


class WindowsOf(CompositeBlockManager):
    """A composite with windows of another kind."""

    kind: type[SlidingWindowBlockManager]

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        for manager in self.sub_managers_:
            if isinstance(manager, SlidingWindowBlockManager):
                manager.__class__ = self.kind


class _RoundsUp(SlidingWindowBlockManager):
    def released_blocks(self, num_tokens: int) -> int:
        return -(-max(0, num_tokens - self.window_ + 1) // self.block_size_)


class RoundsUp(WindowsOf):
    """The block at the edge goes though some of its tokens are seen."""

    kind = _RoundsUp


class _OneTokenTooEarly(SlidingWindowBlockManager):
    def released_blocks(self, num_tokens: int) -> int:
        return released_blocks(num_tokens + 1, self.window_, self.block_size_)


class OneTokenTooEarly(WindowsOf):
    """The window is a token too short."""

    kind = _OneTokenTooEarly


class _OneTokenTooLate(SlidingWindowBlockManager):
    def released_blocks(self, num_tokens: int) -> int:
        return released_blocks(num_tokens, self.window_ + 1, self.block_size_)


class OneTokenTooLate(WindowsOf):
    """A token is kept that nobody sees: of no harm but to a growth that is refused for it."""

    kind = _OneTokenTooLate


class SlidesByScheduled(CompositeBlockManager):
    """What will be computed is taken for computed."""

    def allocate_for_sequence(self, sequence: Sequence, num_tokens: int) -> bool:
        granted = super().allocate_for_sequence(sequence, num_tokens)
        if granted:
            for table in sequence.kv_state_.groups_:
                self._slide_table(table, num_tokens)
        return granted


class SlidesByDrafts(CompositeBlockManager):
    """What may be rejected is taken for confirmed."""

    def slide(self, sequence: Sequence) -> int:
        return sum(self._slide_table(table, sequence.computed_) for table in sequence.kv_state_.groups_)


class KeepsEarlierGroups(CompositeBlockManager):
    """What a group has given stays with the sequence when a later group refuses."""

    def allocate_for_sequence(self, sequence: Sequence, num_tokens: int) -> bool:
        self.slide(sequence)
        state = sequence.kv_state_
        state.groups_ = state.groups_ or [GroupTable(manager) for manager in self.sub_managers_]
        for table in state.groups_:
            blocks = table.manager_.allocate(table.missing(num_tokens))
            if blocks is None:
                return False
            table.add_kv_blocks(blocks)
        return True


class ForgetsStaged(CompositeBlockManager):
    """What a group has given is nobody's when a later group refuses."""

    @staticmethod
    def _stage(table: GroupTable, num_tokens: int, undo: object) -> object:  # type: ignore[override]
        return table.manager_.allocate(table.missing(num_tokens))


class SlidesAfterGrowth(CompositeBlockManager):
    """A growth is refused though blocks of the same sequence could go."""

    def allocate_for_sequence(self, sequence: Sequence, num_tokens: int) -> bool:
        confirmed, sequence.confirmed_ = sequence.confirmed_, 0
        granted = super().allocate_for_sequence(sequence, num_tokens)
        sequence.confirmed_ = confirmed
        if granted:
            self.slide(sequence)
        return granted


class DrainsFirstGroup(CompositeBlockManager):
    """Only the blocks of the first group come back at the end."""

    def deallocate_sequence(self, sequence: Sequence) -> None:
        table = sequence.kv_state_.groups_[:1]
        release_all(self._deallocated([block for each in table for block in each.held()]))
        sequence.reset()


class ClosesUp(CompositeBlockManager):
    """The places of blocks that have gone go, too."""

    @staticmethod
    def _slide_table(table: GroupTable, num_tokens: int) -> int:
        count = CompositeBlockManager._slide_table(table, num_tokens)
        del table.ids_[:count], table.blocks_[:count]
        table.released_ -= count
        return count


class KeepsStaleIds(CompositeBlockManager):
    """A block has gone, and its id stays in the table."""

    @staticmethod
    def _slide_table(table: GroupTable, num_tokens: int) -> int:
        before = table.ids_[:]
        count = CompositeBlockManager._slide_table(table, num_tokens)
        table.ids_[: len(before)] = before
        return count


class ForgetsHowFar(CompositeBlockManager):
    """A sequence goes on behind a window that has been released."""

    @staticmethod
    def _slide_table(table: GroupTable, num_tokens: int) -> int:
        count = CompositeBlockManager._slide_table(table, num_tokens)
        table.released_ = 0
        return count


class _LongBlocksRoundUp(SlidingWindowBlockManager):
    def released_blocks(self, num_tokens: int) -> int:
        if self.block_size_ <= self.window_:
            return super().released_blocks(num_tokens)
        return -(-max(0, num_tokens - self.window_ + 1) // self.block_size_)


class LongBlocksRoundUp(WindowsOf):
    """A block that is longer than the window goes though some of its tokens are seen."""

    kind = _LongBlocksRoundUp


class _WholeBlocks(SlidingWindowBlockManager):
    def released_blocks(self, num_tokens: int) -> int:
        if self.window_ % self.block_size_ == 0:
            return super().released_blocks(num_tokens)
        return max(0, num_tokens // self.block_size_ - self.window_ // self.block_size_)


class WholeBlocks(WindowsOf):
    """A window that is no multiple of the block is taken for as many whole blocks as it has."""

    kind = _WholeBlocks


class _NoWindow(SlidingWindowBlockManager):
    def released_blocks(self, num_tokens: int) -> int:
        if self.window_ > 1:
            return super().released_blocks(num_tokens)
        return -(-num_tokens // self.block_size_)


class WindowOfNone(WindowsOf):
    """A window of one token is taken for none: the block of the next token goes, too."""

    kind = _NoWindow


class _NeverSlides(SlidingWindowBlockManager):
    def released_blocks(self, num_tokens: int) -> int:
        return 0


class NeverSlides(WindowsOf):
    """Nothing goes before the end."""

    kind = _NeverSlides


class SlidesOnceInACall(CompositeBlockManager):
    """Only one block goes in a call, however many could."""

    @staticmethod
    def _slide_table(table: GroupTable, num_tokens: int) -> int:
        stop = min(out_of_window(table, num_tokens), table.released_ + 1)
        if stop > table.released_:
            table.manager_.release_blocks(table.held(table.released_, stop))
            table.release_before(stop)
        return 0


class SlidesAnotherGroup(CompositeBlockManager):
    """What has left the window of one group goes in the next, too."""

    def slide(self, sequence: Sequence) -> int:
        tables = sequence.kv_state_.groups_
        for table in tables:
            stop = max(min(out_of_window(other, sequence.confirmed_), len(table.ids_)) for other in tables)
            if stop > table.released_:
                table.manager_.release_blocks(table.held(table.released_, stop))
                table.release_before(stop)
        return 0


class OtherGroupsSize(CompositeBlockManager):
    """All groups grow by as many blocks as the first needs."""

    def _stage(self, table: GroupTable, num_tokens: int, undo: ExitStack) -> list[Block] | None:  # type: ignore[override]
        needed = -(-num_tokens // self.sub_managers_[0].block_size_)
        blocks = table.manager_.allocate(max(0, needed - len(table.ids_)))
        if blocks:
            undo.callback(table.manager_.release_blocks, blocks)
        return blocks


class MostBlocks(CompositeBlockManager):
    """All groups grow by as many blocks as the one with the shortest needs, as far as they have them."""

    def _stage(self, table: GroupTable, num_tokens: int, undo: ExitStack) -> list[Block] | None:  # type: ignore[override]
        shortest = min(manager.block_size_ for manager in self.sub_managers_)
        most = min(-(-num_tokens // shortest) - len(table.ids_), table.manager_.num_free_blocks)
        blocks = table.manager_.allocate(max(table.missing(num_tokens), most))
        if blocks:
            undo.callback(table.manager_.release_blocks, blocks)
        return blocks


class CountsSlid(CompositeBlockManager):
    """What has slid out counts as used until the end."""

    @staticmethod
    def _slide_table(table: GroupTable, num_tokens: int) -> int:
        used = table.manager_.num_used_blocks_
        count = CompositeBlockManager._slide_table(table, num_tokens)
        table.manager_.num_used_blocks_ = used
        return count


class CutsByAnotherGrid(CompositeBlockManager):
    """When drafts are rejected, a block goes of which some tokens stay."""

    def truncate_sequence(self, sequence: Sequence, num_tokens: int, computed: int) -> None:
        super().truncate_sequence(sequence, num_tokens, computed)
        for table in sequence.kv_state_.groups_:
            whole = num_tokens // table.block_size * table.block_size
            if num_tokens < whole + table.block_size and table.released_ * table.block_size <= whole:
                release_all(self._deallocated(table.take_from(whole)))


class GivesPadding(CompositeBlockManager):
    """One block short, the padding block fills in."""

    @staticmethod
    def _stage(table: GroupTable, num_tokens: int, undo: ExitStack) -> list[Block] | None:
        missing, manager = table.missing(num_tokens), table.manager_
        short = missing == manager.num_free_blocks + 1
        blocks = manager.allocate(missing - short)
        if blocks is None:
            return None
        undo.callback(manager.release_blocks, blocks)
        return [*blocks, *([manager._count([manager.padding_block_.copy()])[0]] if short else [])]


class CountsEachCell(CompositeBlockManager):
    """A block that comes again at another place of the table is counted once for each place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.counted: list[Block] = []

    def allocate_for_sequence(self, sequence: Sequence, num_tokens: int) -> bool:
        for table in sequence.kv_state_.groups_:
            seen = out_of_window(table, sequence.confirmed_)
            if table.missing(num_tokens) and table.released_ < seen:
                again = table.held(table.released_, table.released_ + 1)
                table.release_before(table.released_ + 1)
                self.counted += table.manager_.share(again)
                table.add_kv_blocks(again)
        return super().allocate_for_sequence(sequence, num_tokens)


class KeepsConfirmed(CompositeBlockManager):
    """Who gives way and comes back slides by what was accepted before."""

    def deallocate_sequence(self, sequence: Sequence) -> None:
        confirmed = sequence.confirmed_
        super().deallocate_sequence(sequence)
        sequence.confirmed_ = confirmed


class ForgetsEndOfWindowed(CompositeBlockManager):
    """At the end only the groups that have not slid give their blocks back."""

    def deallocate_sequence(self, sequence: Sequence) -> None:
        tables = [table for table in sequence.kv_state_.groups_ if not table.released_]
        release_all(self._deallocated([block for table in tables for block in table.held()]))
        sequence.reset()
