"""`SingleBlockManager`: single ids, each for one owner (seed 6).

A sequence needs one beside its blocks, and a recurrent state needs one for the place where it is kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvspec.impl.block import Block, BlockRecord
from kvspec.impl.closing import while_open
from kvspec.impl.free_list_manager import FreeListManager
from kvspec.impl.prefix_cache import PrefixKeys
from kvspec.impl.sanitizer import Sanitizer


class SingleBlockManager(FreeListManager):
    """Allocator of ids 1 .. num_ids - 1, blocks of size 1 without a prefix cache; id 0 is padding.

    Args:
        num_ids: ids, padding included; at least 2.
        sanitizer: where to report misuse of handles; None for full speed.
    Raises:
        InvalidRangeError: there are fewer than 2 ids.
    """

    def __init__(self, num_ids: int, *, sanitizer: Sanitizer | None = None) -> None:
        super().__init__(num_ids, 1, sanitizer=sanitizer)

    @while_open
    def allocate_shared(
        self, token_ids: array[int], keys: PrefixKeys | None = None, max_blocks: int | None = None
    ) -> list[Block]:
        """Nothing is shared."""
        return []

    @while_open
    def cache(
        self, token_ids: array[int], blocks: Sequence[Block], keys: PrefixKeys | None = None, first: int = 0
    ) -> int:
        """Nothing is published."""
        return 0

    def block_idle(self, record: BlockRecord) -> None:
        """No id has a key, so none becomes idle."""

    def block_shared(self, record: BlockRecord) -> None:
        """No id has a key, so none ceases to be idle."""
