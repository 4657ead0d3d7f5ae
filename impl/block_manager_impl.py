"""`BlockManagerImpl`: the ordinary allocator, with free list, padding block and prefix cache (seed 4)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvspec.impl.block import Block, BlockRecord
from kvspec.impl.closing import while_open
from kvspec.impl.free_list_manager import FreeListManager
from kvspec.impl.paging import block_index
from kvspec.impl.prefix_cache import PrefixCache, PrefixKeys
from kvspec.impl.sanitizer import Sanitizer


class BlockManagerImpl(FreeListManager):
    """Allocator of blocks 1 .. num_blocks - 1; block 0 is padding (seed 4.1).

    A block counts as used while a sequence holds it, whatever the prefix cache holds.

    Attributes:
        prefix_cache_: None if prefix caching is off.

    Args:
        num_blocks: blocks of the pool, padding included; at least 2.
        block_size: tokens per block; at least 1.
        enable_prefix_cache: keep published blocks for later requests.
        sanitizer: where to report misuse of handles; None for full speed.
        record_events: keep the changes of the prefix cache for `PrefixCache.drain_events`.
    Raises:
        InvalidRangeError: a size is out of range.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_cache: bool = True,
        sanitizer: Sanitizer | None = None,
        record_events: bool = True,
    ) -> None:
        super().__init__(num_blocks, block_size, sanitizer=sanitizer)
        self.prefix_cache_ = PrefixCache(block_size, record_events) if enable_prefix_cache else None

    @property
    def num_available_blocks(self) -> int:
        """Blocks that an allocation can get: free ones, and idle ones of the prefix cache."""
        return self.num_free_blocks_ + (self.prefix_cache_.num_idle_ if self.prefix_cache_ is not None else 0)

    @while_open
    def has_enough_blocks(self, num_blocks: int) -> bool:
        """Whether that many blocks are free, after evicting idle cached ones if, and only if, that suffices.

        Eviction drops the cache's handles; their release brings the ids back through `free` (seed 4.3). A block that
        a caller has matched is held, hence not idle, hence not counted as available.
        """
        short = num_blocks - self.num_free_blocks_
        if short <= 0:
            return True
        cache = self.prefix_cache_
        if cache is None or cache.num_idle_ < short:
            return False
        cache.evict(short)
        return self.num_free_blocks_ >= num_blocks

    # -- prefix cache ------------------------------------------------------------------------------------------------
    @while_open
    def allocate_shared(
        self, token_ids: array[int], keys: PrefixKeys | None = None, max_blocks: int | None = None, first: int = 0
    ) -> list[Block]:
        """Handles, counted as used, of the published blocks of the longest known prefix (seed 4.2).

        Args:
            token_ids: tokens of the sequence.
            keys: its chain of keys; without it the tokens stand in no context.
            max_blocks: longest hit, in blocks.
            first: logical index of the first block that is asked for; those before it are in another tier.
        """
        cache = self.prefix_cache_
        if cache is None:
            return []
        limit = block_index(len(token_ids), self.block_size_)
        limit = limit if max_blocks is None else min(limit, max_blocks)
        if limit <= first:
            return []
        return self._count(cache.match(token_ids, keys or PrefixKeys(self.block_size_), limit, first))

    @while_open
    def cache(
        self, token_ids: array[int], blocks: Sequence[Block], keys: PrefixKeys | None = None, first: int = 0
    ) -> int:
        """Publish full blocks of the tokens (seed 4.2); the caller vouches for their content.

        Args:
            token_ids: tokens of the sequence, from its start.
            blocks: handles, blocks[0] at logical index first.
            keys: its chain of keys; without it the tokens stand in no context.
            first: logical index of the first block to publish.
        Returns:
            The logical index behind the leading run of blocks that the cache names itself; 0 without a cache.
        Raises:
            KeyMismatchError, ReleasedHandleError: see `PrefixCache.insert`.
            ForeignHandleError: a block belongs to another manager.
        """
        cache = self.prefix_cache_
        if cache is None:
            return 0
        self._check_own(blocks, "cache")
        return cache.insert(token_ids, keys or PrefixKeys(self.block_size_), blocks, first)

    def block_idle(self, record: BlockRecord) -> None:
        """A published block has lost its last holder besides the cache."""
        if self.prefix_cache_ is not None:
            self.prefix_cache_.became_idle(record)

    def block_shared(self, record: BlockRecord) -> None:
        """A published block has got its first holder besides the cache."""
        if self.prefix_cache_ is not None:
            self.prefix_cache_.became_shared(record)

    # -- end of life -------------------------------------------------------------------------------------------------
    @while_open
    def close(self) -> None:
        """Drop the prefix cache and the padding handle; every later call, and use of a handle, is an error."""
        if self.prefix_cache_ is not None:
            self.prefix_cache_.reset()
        super().close()
