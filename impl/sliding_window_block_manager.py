"""`SlidingWindowBlockManager`: the blocks of layers that see a window of the last tokens (seed 9.3).

It allocates as `BlockManagerImpl` does. That blocks are given back when they have left the window is the work of the
composite that it belongs to, which knows the sequences.
"""

from __future__ import annotations

from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.closing import while_open
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.paging import released_blocks
from kvspec.impl.sanitizer import Sanitizer


class SlidingWindowBlockManager(BlockManagerImpl):
    """Allocator of blocks 1 .. num_blocks - 1 for layers with a window, without a prefix cache.

    Attributes:
        window_: tokens that a query sees.

    Args:
        num_blocks: blocks of the pool, padding included; at least 2.
        block_size: tokens per block; at least 1.
        window: tokens that a query sees, its own included; at least 1.
        sanitizer: where to report misuse of handles; None for full speed.
    Raises:
        InvalidRangeError: a size is out of range.
    """

    def __init__(self, num_blocks: int, block_size: int, window: int, *, sanitizer: Sanitizer | None = None) -> None:
        if window < 1:
            raise InvalidRangeError("SlidingWindowBlockManager", f"a window of {window} tokens", "at least 1")
        super().__init__(num_blocks, block_size, enable_prefix_cache=False, sanitizer=sanitizer)
        self.window_ = window

    @while_open
    def released_blocks(self, num_tokens: int) -> int:
        """See the function `released_blocks`."""
        return released_blocks(num_tokens, self.window_, self.block_size_)
