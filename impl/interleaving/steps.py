"""What a thread does that other threads can notice, and managers that announce it.

A manager needs no change for this: it takes its lock as an argument, and `watched` puts properties in the place of its
counters. Each operation on the lock and each load and store of a counter is then a `Step`, announced to a `Stepper`
before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import getattr_static
from typing import Any, NamedTuple, Protocol, cast

from kvspec.impl.block import BlockRecord
from kvspec.impl.concurrent_block_manager_impl import ConcurrentBlockManagerImpl, Lock


class Step(NamedTuple):
    """One operation on one shared object.

    Attributes:
        kind: "acquire", "release", "load" or "store".
        what: the lock or counter.
    """

    kind: str
    what: str

    def depends(self, other: Step) -> bool:
        """Whether the order of the two may matter: they touch one object, and not both only read it."""
        return self.what == other.what and not self.kind == other.kind == "load"

    def __str__(self) -> str:
        return f"{self.kind} {self.what}"


class Stepper(Protocol):
    """Who is told of steps."""

    def at(self, step: Step) -> None:
        """The calling thread is about to take a step; returns when it may."""

    def lock(self, *, recursive: bool = True) -> Lock:
        """A lock whose operations are steps; one that is not recursive blocks its own owner."""


Factory = Callable[[Stepper, int, int], ConcurrentBlockManagerImpl]
"""Makes a manager that announces its steps, of so many blocks of such a size."""


class _Counter:
    """A property that announces each load and store of an attribute, and leaves the attribute where it was."""

    def __init__(self, name: str, slot: Any = None) -> None:
        self.name = name
        self.slot = slot

    def __get__(self, owner: Any, kind: type) -> int:
        _announce(owner, "load", self.name)
        value = vars(owner)[self.name] if self.slot is None else self.slot.__get__(owner, kind)
        return cast(int, value)

    def __set__(self, owner: Any, value: int) -> None:
        _announce(owner, "store", self.name)
        if self.slot is None:
            vars(owner)[self.name] = value
        else:
            self.slot.__set__(owner, value)


def _announce(owner: Any, kind: str, name: str) -> None:
    """Announce a step on a counter of a manager or of one of its records."""
    if isinstance(owner, BlockRecord):
        # A record that is being made has no manager yet, and nobody else knows it.
        manager, what = getattr(owner, "manager_", None), f"{name} of block {owner.id_}"
    else:
        manager, what = owner, name
    stepper: Stepper | None = getattr(manager, "stepper_", None)
    if stepper is not None:
        stepper.at(Step(kind, what))


_WatchedRecord = type(
    "WatchedRecord",
    (BlockRecord,),
    {"__slots__": (), **{n: _Counter(n, getattr_static(BlockRecord, n)) for n in ("ref_count_", "holders_")}},
)


@cache
def _watched_type(kind: type[ConcurrentBlockManagerImpl]) -> type[ConcurrentBlockManagerImpl]:
    counters = {name: _Counter(name) for name in ("num_free_blocks_", "num_used_blocks_")}
    return type(f"Watched{kind.__name__}", (kind,), {**counters, "record_type_": _WatchedRecord})


def watched(
    kind: type[ConcurrentBlockManagerImpl], stepper: Stepper, num_blocks: int, block_size: int, lock: Lock
) -> ConcurrentBlockManagerImpl:
    """A manager of this kind, with this lock, whose counters announce their loads and stores.

    Raises:
        InvalidRangeError: a size is out of range.
    """
    made = _watched_type(kind)(num_blocks, block_size, record_events=False, lock=lock)
    vars(made)["stepper_"] = stepper
    return made


def concurrent(stepper: Stepper, num_blocks: int, block_size: int) -> ConcurrentBlockManagerImpl:
    """The `ConcurrentBlockManagerImpl` as a `Factory`."""
    return watched(ConcurrentBlockManagerImpl, stepper, num_blocks, block_size, stepper.lock())
