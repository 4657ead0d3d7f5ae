"""Finds out what has changed since the last look, so that a target of the form ``engines`` need only say what there is.

recorder = Recorder(look)                 # look() -> Seen: everything that the manager shows now
...
blocks = manager.allocate_slots(request, 5)
recorder.call("allocate_slots", "a", refused=blocks is None, room=5)
...
recorder.add(Forward([...]))
return recorder.taken()                   # the records of this step
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvspec.model.engines.protocol import AnyRecord, Call, KeyEvent, Pin, Shown

Table = list[int | None]


class Seen(NamedTuple):
    """Everything that a manager shows at one moment.

    Attributes:
        tables: of each request that has something, the table of each group.
        keys: for each store, the blocks with a key, and the key.
        free: for each store, the manager's own number of free blocks; empty: it shows none.
        refs: for each store, the reference counts; a block that is left out has 0. None: it shows none.
        pins: blocks that something else holds.
        events: what it has told of its keys since the last look; None: it tells nothing.
    """

    tables: Mapping[str, Sequence[Table]]
    keys: Sequence[Mapping[int, str]]
    free: Sequence[int] = ()
    refs: Sequence[Mapping[int, int]] | None = None
    pins: Sequence[Pin] = ()
    events: Sequence[KeyEvent] | None = None


class Recorder:
    """Collects the records of one engine.

    Args:
        look: shows everything; it is called behind each public call of the manager.
    """

    def __init__(self, look: Callable[[], Seen]) -> None:
        self._look = look
        self._last = Seen({}, [], [], None, ())
        self._records: list[AnyRecord] = []

    def call(self, name: str, seq: str | None = None, **outcome: Any) -> None:
        """A public call of the manager has returned; `outcome` has fields of `Call`."""
        self._records.append(Call(name, self._changes(), seq, **outcome))

    def add(self, record: AnyRecord) -> None:
        """Something else happened."""
        self._records.append(record)

    def taken(self) -> list[AnyRecord]:
        """All records since the last time."""
        found, self._records = self._records, []
        return found

    def _changes(self) -> Shown:
        new, old = _copied(self._look()), self._last
        self._last = new
        gone: dict[str, list[Table]] = {
            seq: [[] for _ in tables] for seq, tables in old.tables.items() if seq not in new.tables
        }
        return Shown(
            {**{s: list(t) for s, t in new.tables.items() if old.tables.get(s) != t}, **gone},
            _differing(old.keys, new.keys, None),
            None if new.refs is None else _differing(old.refs or [], new.refs, 0),
            list(new.free),
            list(new.pins) if new.pins != old.pins else None,
            None if new.events is None else list(new.events),
        )


def _copied(seen: Seen) -> Seen:
    """What a manager shows may be its own lists, which go on changing."""
    return Seen(
        {seq: [list(table) for table in tables] for seq, tables in seen.tables.items()},
        [dict(keys) for keys in seen.keys],
        list(seen.free),
        None if seen.refs is None else [dict(refs) for refs in seen.refs],
        tuple(seen.pins),
        seen.events,
    )


def _differing(old: Sequence[Mapping[int, Any]], new: Sequence[Mapping[int, Any]], absent: Any) -> list[dict[int, Any]]:
    """For each store what is new or other, and what is gone as `absent`."""
    found = []
    for number, now in enumerate(new):
        before = old[number] if number < len(old) else {}
        changed = {block: value for block, value in now.items() if before.get(block, absent) != value}
        found.append(changed | {block: absent for block in before if block not in now})
    return found
