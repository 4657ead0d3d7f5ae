"""`ConcurrentBlockManagerImpl`: the allocator for several threads (seed 9.1).

All state of a manager stands under one recursive lock: free list, counts, prefix cache, and the handle count of each
block. It is recursive because an eviction releases handles while its caller has the lock, and the last release of a
block calls ``manager.free``.

The handle count is not an atomic number of its own. The second and the second to last handle of a published block
change what can be evicted (`block_shared`, `block_idle`). If the count changed first and the cache learned of it
later, two threads could report in the other order than they counted, and an idle entry would hide a shared block. An
atomic number would need a lock of its own as well: Python has none, and a free-threaded interpreter makes
``count += 1`` two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from inspect import getattr_static
from types import FunctionType
from typing import Any, TypeVar, cast

from kvspec.impl.block import Block, TrackedBlock
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.prefix_cache import CacheEntry, PrefixCache
from kvspec.impl.sanitizer import Sanitizer

Lock = AbstractContextManager[Any]
"""A lock that its owner may enter again; ``threading.RLock`` is one."""

_C = TypeVar("_C", bound=type)


def synchronized(kind: _C) -> _C:
    """The class with every public method and property, inherited ones too, under the ``lock_`` of its instance."""
    for name in dir(kind):
        member = getattr_static(kind, name)
        if name.startswith("_"):
            continue
        if isinstance(member, FunctionType):
            setattr(kind, name, _locked(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, property(_locked(member.fget), doc=member.__doc__))
    return kind


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        with self.lock_:
            return method(self, *args, **kwargs)

    return call


def _lock_of(block: Block) -> Lock | None:
    """The lock of the handle's manager, None if the handle was released. A handle never changes its manager."""
    record = block.record_
    return None if record is None else cast(ConcurrentBlockManagerImpl, record.manager_).lock_


class ConcurrentBlock(Block):
    """A handle that any thread may copy and release.

    Two threads may even release the same handle: one succeeds, the other gets `ReleasedHandleError`.
    """

    __slots__ = ()

    def copy(self) -> Block:
        """See `Block.copy`."""
        lock = _lock_of(self)
        if lock is None:
            raise self._released("copy")
        with lock:
            return super().copy()

    def release(self) -> None:
        """See `Block.release`. The id is free when this returns: the count and `free` are one step to others."""
        lock = _lock_of(self)
        if lock is None:
            raise self._released("release")
        with lock:
            super().release()


class TrackedConcurrentBlock(ConcurrentBlock, TrackedBlock):
    """The same in sanitizer mode."""

    __slots__ = ()


@synchronized
class ConcurrentPrefixCache(PrefixCache):
    """The prefix cache under the lock of its manager.

    Args:
        block_size, record_events: see `PrefixCache`.
        lock: that of the manager.
    """

    def __init__(self, block_size: int, record_events: bool, lock: Lock) -> None:
        super().__init__(block_size, record_events)
        self.lock_ = lock
        self._matches = threading.local()

    def match(self, *args: Any, **options: Any) -> list[Block]:
        """See `PrefixCache.match`."""
        blocks = super().match(*args, **options)
        self._matches.last = [(entry, before, entry.order) for entry, before in self._matched] if blocks else []
        return blocks

    def undo_use(self) -> None:
        """See `PrefixCache.undo_use`. This thread's last match counts, as far as no other thread used it since."""
        last: list[tuple[CacheEntry, int, int]] = getattr(self._matches, "last", [])
        self._matched = [
            (entry, before) for entry, before, given in last if not entry.is_released and entry.order == given
        ]
        self._matches.last = []
        super().undo_use()


@synchronized
class ConcurrentBlockManagerImpl(BlockManagerImpl):
    """A `BlockManagerImpl` that any thread may call, and whose handles any thread may copy and release.

    Each call is one step to other threads. Several calls that belong together (a match and its `undo_use`) are not;
    ``with manager.lock_`` makes them one step.

    Attributes:
        lock_: the lock.

    Args:
        num_blocks, block_size, enable_prefix_cache, sanitizer, record_events: see `BlockManagerImpl`.
        lock: the lock to use; a ``threading.RLock`` if None.
    Raises:
        InvalidRangeError: a size is out of range.
    """

    handle_types_: tuple[type[Block], type[Block]] = (ConcurrentBlock, TrackedConcurrentBlock)

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_cache: bool = True,
        sanitizer: Sanitizer | None = None,
        record_events: bool = True,
        lock: Lock | None = None,
    ) -> None:
        self.lock_: Lock = threading.RLock() if lock is None else lock
        super().__init__(num_blocks, block_size, enable_prefix_cache=False, sanitizer=sanitizer)
        if enable_prefix_cache:
            self.prefix_cache_ = ConcurrentPrefixCache(block_size, record_events, self.lock_)
