"""Faulty managers that are good as long as one thread calls them, one row each.

Used like `faulty.twins`: ``kvspec conform tests.faulty.thread_twins:lock_kept --threads 2``.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, Final

from kvspec.impl.block import Block
from kvspec.impl.concurrent_block_manager_impl import ConcurrentBlockManagerImpl as Manager
from kvspec.impl.concurrent_target import TorchConcurrentTarget as Target
from kvspec.model.conformance import MisuseError, PoolConfig

from .pool_twins import assembled
from .twins import _row


def refused_keeps_lock(self: Manager, num_blocks: int) -> list[Block] | None:
    """The way out of a refusal does not let the lock go."""
    self.lock_.__enter__()
    blocks = Manager.allocate(self, num_blocks)
    if blocks is not None:
        self.lock_.__exit__(None, None, None)
    return blocks


def keep_with_thread(self: Target, block: Block) -> int:
    handle = Target._keep(self, block)
    self.__dict__.setdefault("owners", {})[handle] = threading.get_ident()
    return handle


def release_by_owner(self: Target, handle: int) -> None:
    """A handle can be given back by the thread only that took it."""
    owner = self.__dict__.get("owners", {}).get(handle, threading.get_ident())
    if handle in self._holds and owner != threading.get_ident():
        raise MisuseError(f"release: handle {handle} is that of another thread")
    Target.release(self, handle)


def _used(self: Manager) -> int:
    counts: dict[int, int] = self.__dict__.setdefault("used", {})
    return counts.get(threading.get_ident(), 0)


def _count_used(self: Manager, number: int) -> None:
    self.__dict__.setdefault("used", {})[threading.get_ident()] = number


used_by_thread: Any = property(_used, _count_used)
"""Each thread counts for itself."""

FAULTS: Final = (
    _row("lock_kept", "a refusal keeps the lock", "misuse", (Manager, "allocate", refused_keeps_lock)),
    _row(
        "own_handles", "a handle is bound to its thread", "misuse",
        (Target, "_keep", keep_with_thread), (Target, "release", release_by_owner),
    ),
    _row("own_counts", "each thread counts for itself", "usage", (Manager, "num_used_blocks_", used_by_thread)),
)  # fmt: skip
"""All of them."""

BY_NAME: Final = {fault.name: fault for fault in FAULTS}


class ThreadTwin(Target):
    """A good target whose manager is of the class in `parts`, if there is one."""

    parts: dict[type, type]

    def __init__(self, config: PoolConfig, **options: Any) -> None:
        super().__init__(config, **options)
        changed: Any = self.manager_
        changed.__class__ = self.parts.get(type(self.manager_), type(self.manager_))


@cache
def build(name: str) -> type[ThreadTwin]:
    """The faulty manager of that name.

    Raises:
        KeyError: there is none.
    """
    return assembled(BY_NAME[name], Target, ThreadTwin)


def __getattr__(name: str) -> type[ThreadTwin]:
    if name in BY_NAME:
        return build(name)
    raise AttributeError(name)
