"""`BlockManager`: the abstract allocator of physical blocks (seed 2.2).

Its unit is "N block ids", not a sequence: it hands out handles, keeps the usage count, asks the prefix cache, and takes
an id back when its last handle is released.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvspec.impl.block import Block, BlockRecord

if TYPE_CHECKING:
    from kvspec.impl.prefix_cache import PrefixKeys
    from kvspec.impl.sanitizer import Sanitizer


class BlockManager(ABC):
    """Allocator of physical blocks.

    Attributes:
        closed_: set by `close`. Every later call is an error, and so is a release or copy of a handle; counts can
            still be read.
        sanitizer_: reports of the sanitizer mode, None outside of it.
        handle_type_: class of the handles that are made, `TrackedBlock` in sanitizer mode.
    """

    closed_: bool = False
    handle_type_: type[Block] = Block
    sanitizer_: Sanitizer | None = None

    @abstractmethod
    def allocate(self, num_blocks: int) -> list[Block] | None:
        """Handles of that many blocks, counted as used, or None if they are not to be had. All or nothing."""

    @abstractmethod
    def deallocate(self, blocks: Sequence[Block]) -> None:
        """A sequence no longer uses these handles: lowers the usage count only (seed 3.1). The handles stay live."""

    @abstractmethod
    def allocate_shared(
        self, token_ids: array[int], keys: PrefixKeys | None = None, max_blocks: int | None = None
    ) -> list[Block]:
        """Handles, counted as used, of the published blocks of the longest known prefix."""

    @abstractmethod
    def cache(
        self, token_ids: array[int], blocks: Sequence[Block], keys: PrefixKeys | None = None, first: int = 0
    ) -> int:
        """Publish full blocks, the first one at logical index first, under the keys of their prefixes."""

    @abstractmethod
    def free(self, block_id: int) -> None:
        """Take an id back; called by the last release of its handles, and by nobody else."""

    @abstractmethod
    def close(self) -> None:
        """End of life: every later call, and use of a handle, is an error."""

    @property
    @abstractmethod
    def num_total_blocks(self) -> int:
        """Blocks of the pool, padding included."""

    @property
    @abstractmethod
    def num_free_blocks(self) -> int:
        """Blocks that no handle names."""

    @property
    @abstractmethod
    def num_used_blocks(self) -> int:
        """Blocks that at least one sequence holds."""

    @abstractmethod
    def block_idle(self, record: BlockRecord) -> None:
        """A published block has lost its last holder besides the cache."""

    @abstractmethod
    def block_shared(self, record: BlockRecord) -> None:
        """A published block has got its first holder besides the cache."""
