"""What an engine's cache manager must offer to be driven and judged: the protocol of the form ``engines``.

A target of this form is a small engine around one manager: it has a queue of requests and a scheduler that calls the
manager as the real one does, but no model; what a request generates is given with it. The judge asks for one step after
the other and gets *records*: what each public call of the manager left behind, what the device was told to do, and what
became of requests. The device is the judge's: it keeps what every block contains.

A step has three parts, and its records come in this order: the calls by which it is planned (`Call`), the device's work
(`Copy`, then one `Forward`), and what the host does when it is done (`Known`, `Call`, `Ended`). An engine that overlaps
steps reports the device's work when it is planned: devices work in that order.

A `Call` comes after **every** public call of the manager, not once for each step: a block can be evicted, handed out
and published again in one step. `kvspec.model.engines.recorder.Recorder` finds out what changed.

Nothing but msgspec and the standard library is needed here, so that a target can live in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

from kvspec.model.conformance import Capability, Context

WAYS: Final = ("priority", "chunked", "overlapped")
"""In which an engine may schedule; see `EngineConfig`."""

Kind = Literal["attention", "state", "opaque"]
"""What blocks contain: keys and values of tokens; one recurrent state each; what is not judged (only who has them)."""


class Store(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Physical blocks (or slots of states) with ids of their own.

    Attributes:
        ids: those that can be handed out; whatever is reserved is not among them.
        free: what `Shown.free` counts: blocks without a holder, those that only the cache has among them
            (``unheld``), or blocks that neither a holder nor the cache has (``unkeyed``).
        cache_counts: whether the cache is one of the holders in `Shown.refs`.

    Raises:
        ValueError: an id twice.
    """

    ids: tuple[int, ...]
    free: Literal["unheld", "unkeyed"]
    cache_counts: bool = False

    def __post_init__(self) -> None:
        if len(set(self.ids)) < len(self.ids):
            twice = next(block for block in self.ids if self.ids.count(block) > 1)
            raise ValueError(f"ids: {twice} twice, expected each once")


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Layers with a common block table.

    Attributes:
        store: where its blocks are from; several groups may share one.
        kind: what its blocks contain.
        block_size: tokens of a block; for states, tokens between places of the table.
        window: tokens that a query sees, its own included; None: all.
        reuse: whether hits need it, and its blocks get keys.
        aligned: for states: place i of a table has the state behind ``(i + 1) * block_size`` tokens. Otherwise a table
            has one place, and what is in it is where the request stands.

    Raises:
        ValueError: a number is out of range.
    """

    store: int
    kind: Kind
    block_size: int
    window: int | None = None
    reuse: bool = True
    aligned: bool = True

    def __post_init__(self) -> None:
        for name in ("block_size", "window"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ValueError(f"{name}: {number}, expected at least 1")


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the manager is set up, once it is made.

    Attributes:
        stores, groups: its memory and its tables.
        hit_stride: a hit is a multiple of so many tokens.
        longest_hit: whether an admission takes the longest hit that there is; otherwise any hit will do.
        longest_request: tokens, generated ones included, that a request may have for it to fit alone.
        evicts: whether `EngineTarget.evict` does something.
        resets: whether `EngineTarget.reset` does something.
        contexts: whether requests can have a context (an adapter, a salt, images).

    Raises:
        ValueError: there is nothing, or a group is from a store that there is not.
    """

    stores: tuple[Store, ...]
    groups: tuple[Group, ...]
    hit_stride: int
    longest_request: int
    longest_hit: bool = True
    evicts: bool = False
    resets: bool = True
    contexts: bool = True

    def __post_init__(self) -> None:
        for name in ("stores", "groups"):
            if not getattr(self, name):
                raise ValueError(f"{name}: none, expected at least one")
        for group in self.groups:
            if group.store not in range(len(self.stores)):
                raise ValueError(f"groups: store {group.store}, expected one of {len(self.stores)}")
        if self.hit_stride < 1:
            raise ValueError(f"hit_stride: {self.hit_stride}, expected at least 1")


class Abilities(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the target can be made as.

    Attributes:
        variants: its managers by name, such as ``full+sliding``; each is driven in turn.
        ways: which of its scheduling ways can be asked for: ``priority``, ``chunked``, ``overlapped``.
        block_sizes: tokens of a block that it can have; none: any.
        fewest_blocks: that it can be made with, reserved ones included.
        uncached: whether it can be made without a prefix cache.

    Raises:
        ValueError: there is no manager, or there are no such ways, or sizes.
    """

    variants: tuple[str, ...]
    ways: tuple[str, ...] = ()
    block_sizes: tuple[int, ...] = ()
    fewest_blocks: int = 4
    uncached: bool = False

    def __post_init__(self) -> None:
        if not self.variants:
            raise ValueError("variants: none, expected at least one")
        for way in self.ways:
            if way not in WAYS:
                raise ValueError(f"ways: '{way}', expected some of {', '.join(WAYS)}")
        for name, sizes in (("block_sizes", self.block_sizes), ("fewest_blocks", (self.fewest_blocks,))):
            if min(sizes, default=1) < 1:
                raise ValueError(f"{name}: {min(sizes)}, expected at least 1")


class Record(msgspec.Struct, frozen=True, tag_field="is", tag=str.lower, omit_defaults=True):
    """One thing that happened."""


class Pin(msgspec.Struct, frozen=True):
    """A block that something holds which is neither a table nor the cache, such as a copy that is still to be made."""

    name: str
    store: int
    block: int


class KeyEvent(msgspec.Struct, frozen=True):
    """What a manager tells the world of a key: one more block has it, or one less; or no block has any key now.

    Attributes:
        kind: ``stored``, ``removed``, or ``cleared``.
        key: as in `Shown.keys`; for ``cleared`` it says nothing.
        tokens: for ``stored``, what is told to be in the block; None: that is not told.
        parent: with them, the key of what is told to be before; None: nothing is.
    """

    kind: Literal["stored", "removed", "cleared"]
    key: str = ""
    tokens: tuple[int, ...] | None = None
    parent: str | None = None


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the manager shows after a call, as far as it has changed since the last `Shown`.

    Attributes:
        tables: whole tables of requests that have changed: for each group the block of every place, None where there is
            none (released, skipped). A request that has nothing has empty tables.
        keys: for each store, blocks whose key has changed, and the key, None if it has none any more. A key is whatever
            the manager uses, as text; it must tell groups apart.
        refs: for each store, blocks whose reference count has changed, and the count. None: it shows no counts.
        free: for each store, the manager's own number of free blocks; empty: it shows none.
        pins: all pins there are now; None: as before.
        events: what it has told of its keys since the last `Shown`, one event for each block; None: it tells nothing.
    """

    tables: dict[str, list[list[int | None]]] = {}
    keys: list[dict[int, str | None]] = []
    refs: list[dict[int, int]] | None = None
    free: list[int] = []
    pins: list[Pin] | None = None
    events: list[KeyEvent] | None = None


class Call(Record, frozen=True):
    """A public call of the manager has returned.

    Attributes:
        name: the method, as upstream calls it.
        shown: what has changed by it.
        seq: the request that it was for.
        hit: tokens that the request goes on behind because they were found in the cache, or its parent has computed
            them. None: no look-up.
        refused: the manager had no room.
        room: for a refusal: tokens for which the request was to have room, the most that the call may ask for: the
            whole prompt, where all of it has to fit. 0: nobody asks whether there was room.
        spare: for a refusal: for each store, blocks that the call may leave free beside (a watermark); empty: none.
        late: a refusal that is legal for another reason than room, such as a hit that is not there yet.
        parent: the request whose blocks it came to share by the call (fork), at the same places.
    """

    name: str
    shown: Shown = Shown()
    seq: str | None = None
    hit: int | None = None
    refused: bool = False
    room: int = 0
    spare: tuple[int, ...] = ()
    late: bool = False
    parent: str | None = None


class Copy(Record, frozen=True):
    """The device copies a whole block, or a state, to another one."""

    store: int
    source: int
    target: int


class Move(msgspec.Struct, frozen=True, array_like=True):
    """Where a state is read from, and where the next one is written, in a group of states."""

    group: int
    source: int | None
    target: int


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request's part of a forward pass.

    Attributes:
        seq: the request.
        start, stop: tokens that are computed, [start, stop).
        moves: for each group of states, which slot is read (None: the state of no tokens) and which is written.
    """

    seq: str
    start: int
    stop: int
    moves: list[Move] = []


class Forward(Record, frozen=True):
    """The device computes tokens of some requests: all writes of attention, then all reads; states are read first."""

    batch: list[Run]


class Known(Record, frozen=True):
    """So many tokens of the request are known to the host now (prompt and generated)."""

    seq: str
    num_tokens: int


class Preempted(Record, frozen=True):
    """The request gave everything back and waits again; nothing of it is computed. Behind the `Call` that did it."""

    seq: str


class Ended(Record, frozen=True):
    """The request is over and has nothing any more. Behind the `Call` that gave its blocks back."""

    seq: str


AnyRecord = Call | Copy | Forward | Known | Preempted | Ended


class EngineTarget(Protocol):
    """An engine around one manager; made with a `PoolConfig` that has an `EngineConfig`.

    ``num_blocks`` and ``block_size`` of the config are wishes: `layout` says what there is.
    """

    capabilities: frozenset[Capability]
    """With `Capability.ENGINE`; `REF_COUNTS`, `FREE_COUNT` and `CACHED_KEYS` say what `Shown` has."""

    hit_limit: Literal["all", "all_but_one"]
    """The longest permitted hit: all tokens, or all but the last one."""

    abilities: Abilities

    def layout(self) -> Layout:
        """How it is set up."""

    def submit(
        self, seq: str, tokens: Sequence[int], output: Sequence[int], context: Context, priority: int
    ) -> list[AnyRecord]:
        """A new request waits to be scheduled. It will generate `output` (at least one token), one token a step, and
        end. Lower priorities go first, where there are any. Error if the name was used before."""

    def step(self) -> list[AnyRecord]:
        """Schedule and run one step. Nothing to do is no error."""

    def abort(self, seq: str) -> list[AnyRecord]:
        """End a request, wherever it is. Error if there is none."""

    def evict(self, num_blocks: int) -> list[AnyRecord]:
        """Ask the cache to drop so many idle blocks, where that can be asked for."""

    def reset(self) -> list[AnyRecord]:
        """Drop every key, as an engine does on new weights; where it must be idle for that and is not, nothing happens
        (a `Call` that was refused, with ``late``)."""

    def close(self) -> None:
        """End of life."""
