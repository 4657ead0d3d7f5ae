"""Composites with one mistake each."""

from __future__ import annotations

from kvspec.impl.block import release_all
from kvspec.impl.composite_block_manager import CompositeBlockManager
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
