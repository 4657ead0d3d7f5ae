"""Whether what an engine sends makes sense at all, before it is explained: that it has as many parts as there are
groups and stores, names such as there are, and shows what the target says that it shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from kvspec.model.conformance import Capability, TargetError, told
from kvspec.model.engines.pool import EngineRequest
from kvspec.model.engines.protocol import Call, Copy, EngineTarget, Forward, Known, Layout, Move, Run
from kvspec.model.promises import Family, Violation


def layout_of(target: EngineTarget) -> Layout:
    """How a target is set up.

    Raises:
        TargetError: it cannot say so.
    """
    try:
        layout: Any = target.layout()
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(f"cannot say how it is set up: {told(error)}") from error
    if not isinstance(layout, Layout):
        raise TargetError(f"has layout {layout!r}, expected a Layout")
    return layout


class Sense:
    """What is asked of the records of one engine.

    Args:
        layout: how it is set up.
        shown: what it says that it shows.
    """

    def __init__(self, layout: Layout, shown: Collection[Capability]) -> None:
        self._groups, self._stores = len(layout.groups), len(layout.stores)
        self._states = sorted(number for number, group in enumerate(layout.groups) if group.kind == "state")
        self._shown = frozenset(shown)

    def call(self, call: Call) -> None:
        """A call shows whole tables, and all that there is of each store."""
        shown = call.shown
        for seq, tables in shown.tables.items():
            self._as_many(call.name, f"tables of {seq}", tables, self._groups, "groups")
        self._of_stores(call.name, "keys", shown.keys, Capability.CACHED_KEYS)
        self._of_stores(call.name, "reference counts", shown.refs or (), Capability.REF_COUNTS)
        self._of_stores(call.name, "free counts", shown.free, Capability.FREE_COUNT)
        if call.spare:
            self._as_many(call.name, "numbers of spare blocks", call.spare, self._stores, "stores")
        if call.refused and not call.late and call.seq is None:
            raise _senseless(f"{call.name} was refused to nobody", "whom, or that it is late")
        for pin in shown.pins or ():
            self._store(pin.store, call.name)

    def _of_stores(self, where: str, what: str, shown: Sequence[object], capability: Capability) -> None:
        if shown or capability in self._shown:
            self._as_many(where, what, shown, self._stores, "stores")

    def copy(self, copy: Copy) -> None:
        """A copy is inside a store."""
        self._store(copy.store, "a copy")

    def forward(self, forward: Forward) -> None:
        """A forward pass has one part of each request."""
        names = [run.seq for run in forward.batch]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise _senseless(f"a forward pass has {names.count(twice)} parts of {twice}", "one")

    def run(self, run: Run) -> None:
        """A part of a forward pass moves each of its states."""
        if not all(isinstance(move, Move) for move in run.moves):
            raise _senseless(f"a step of {run.seq} has the moves {run.moves!r}", "Move(group, source, target) for each")
        moved = sorted(move.group for move in run.moves)
        if moved != self._states:
            raise _senseless(f"a step of {run.seq} moves states of the groups {moved}", f"{self._states}")

    def known(self, known: Known, request: EngineRequest) -> None:
        """Nobody forgets a token, or knows one before it is computed."""
        least, most = request.known, min(len(request.tokens), request.furthest + 1)
        if not least <= known.num_tokens <= max(least, most):
            raise _senseless(f"{known.num_tokens} tokens of {known.seq} are known", f"{least} to {max(least, most)}")

    def _store(self, number: int, where: str) -> None:
        if number not in range(self._stores):
            raise _senseless(f"{where} names store {number}", f"one of {self._stores}")

    def _as_many(self, where: str, what: str, found: Sequence[object], count: int, parts: str) -> None:
        if len(found) != count:
            raise _senseless(f"{where} shows {len(found)} {what}", f"{count}, as there are {parts}")


def _senseless(what: str, expected: str) -> Violation:
    return Violation(Family.MISUSE, "records", f"{what}, expected {expected}")
