"""One generator of operations: what a scheduler would ask of a manager, and what no scheduler should.

Every choice comes from a `Source`, so the same text makes long runs from a seed and, with Hypothesis behind it,
examples that shrink. *Valid* operations lead a few requests through their lives in a pool that is too small: prompts
share prefixes and contexts clash in part, so there are hits, evictions, forks, copies, rejected drafts, preemptions and
refusals. *Wild* operations are mostly calls that must be answered with an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import accumulate
from random import Random
from typing import Any, ClassVar, Final, Protocol, TypeVar

import kvspec.model.operations as ops
from kvspec.model.conformance import Capability, Context, PoolConfig
from kvspec.model.executable import AnyPool, RankedPool, Request
from kvspec.model.operations import AnyOperation

T = TypeVar("T")


class Source(Protocol):
    """Where choices come from."""

    def integer(self, low: int, high: int) -> int:
        """A number from low to high, both included."""

    def choice(self, items: Sequence[T]) -> T:
        """One of the items."""

    def chance(self, probability: float) -> bool:
        """True with about this probability."""


class RandomSource:
    """Choices from a seed."""

    def __init__(self, seed: int | str) -> None:
        self._random = Random(seed).random

    def integer(self, low: int, high: int) -> int:
        """A number from low to high, both included."""
        return low + int(self._random() * (high - low + 1))

    def choice(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[int(self._random() * len(items))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random() < probability


class Kind(StrEnum):
    """What is generated: mostly valid operations, wild ones among them, or some of both."""

    MIXED = "mixed"
    VALID = "valid"
    WILD = "wild"


CONTEXTS: Final = (
    Context(),
    Context(adapter="x"),
    Context(salt="x"),
    Context(images=("x",)),
    Context(adapter="x", adapter_version=1),
    Context(adapter="x1"),
    Context(adapter="x", salt="x"),
    Context(images=("x", "x")),
    Context(salt="x1"),
    Context(images=("xx",)),
)
"""Contexts that differ as little as they can: one name in different parts, names that are others put together."""

_ADAPTER, _SALT, _IMAGE, _VERSION, _ADAPTER_1, _BOTH, _IMAGES, _SALT_1, _LONG_IMAGE = CONTEXTS[1:]
LOOKALIKES: Final = (
    (_ADAPTER, _SALT, _IMAGE),
    (_ADAPTER, _VERSION, _ADAPTER_1),
    (Context(), _SALT, _SALT_1),
    (Context(), _ADAPTER, _BOTH),
    (_IMAGE, _IMAGES, _LONG_IMAGE),
    (Context(images=("x", "y")), Context(images=("y", "x"))),
    (Context(), Context(salt=""), Context(adapter=""), Context(adapter_version=1)),
    (Context(adapter_version=1), Context(adapter_version=257), Context(adapter_version=2**32 + 1)),
    (_VERSION, Context(adapter="x", adapter_version=257), Context(adapter="x", adapter_version=2**32 + 1)),
    (_VERSION, Context(adapter="x", adapter_version=2**16 + 1), Context(adapter="x", adapter_version=2**48 + 1)),
    (Context(salt="request-1"), Context(salt="request-2"), Context(salt="Request-1")),
    (_SALT, Context(salt="X"), Context(salt="x ")),
    (_ADAPTER, Context(adapter="X"), Context(adapter="x" * 64 + "1"), Context(adapter="x" * 64 + "2")),
    (_IMAGE, Context(images=("X",)), Context(images=("x", "")), Context(images=("image-1a",))),
)
"""Contexts that a key with a part missing, or with its parts run together, takes for one another."""

LARGE: Final = (2**31, 2**32, 2**32 + 1, 2**47, 2**48, 2**48 + 1, 2**62)
"""Tokens that need more than 31, 32 or 48 bits; with a careless hash some are the same as a small one."""


def pool_config(source: Source, *, sanitizer: bool = False, larger: bool = True) -> PoolConfig:
    """A small pool, 1 to 11 usable blocks of 1 to 4 tokens; with `larger` some have more blocks, some longer ones."""
    return PoolConfig(
        num_blocks=source.integer(13, 40) if larger and source.chance(0.05) else source.integer(2, 12),
        block_size=source.integer(5, 16) if larger and source.chance(0.1) else source.integer(1, 4),
        enable_prefix_cache=not source.chance(0.05),
        sanitizer=sanitizer,
    )


def ranked_config(source: Source, *, linear: bool, sanitizer: bool = False, keys: bool = True) -> PoolConfig:
    """A small pool of ranks: 1 to 3, with 1 to 9 usable blocks, a few single blocks and state slots each.

    Args:
        source: where choices come from.
        linear: whether the target has recurrent states.
        sanitizer: have the target poison what is freed.
        keys: whether there may be a prefix cache.
    """
    size = source.integer(1, 4)
    return PoolConfig(
        num_blocks=source.integer(2, 12),
        block_size=size,
        enable_prefix_cache=keys and not source.chance(0.05),
        sanitizer=sanitizer,
        num_ranks=source.choice((1, 1, 1, 2, 2, 3)),
        num_single_blocks=source.choice((2, 3, 4, 5, 5, 7)),
        num_state_slots=source.choice((2, 3, 4, 5, 6, 6, 7, 7)) if linear and source.chance(0.75) else 0,
        checkpoint_interval=source.choice((0, 0, size, 2 * size, 1, size + 1, 3)),
        trim=source.choice(("contiguous", "deepest")),
    )


Makers = tuple[tuple[str, ...], tuple[int, ...]]


def table(**weights: int) -> Makers:
    """What may be next, and how often."""
    return tuple(weights), tuple(accumulate(weights.values()))


# What is next for a sequence without blocks, one that needs room, one that has room to write, one that is computed.
_FRESH: Final = table(
    allocate_shared=60, allocate=25, append=3, fork=3, abort=3, deallocate=2, truncate=2, preempt=1, cache=1
)
_NEEDS_ROOM: Final = table(
    allocate=60, preempt=7, fork=6, truncate=6, hold=5, deallocate=5, abort=4, cache=4, append=2, write=1
)
_SHARED: Final = table(
    allocate=50, write=14, preempt=6, fork=6, truncate=6, hold=5, deallocate=5, abort=3, cache=4, append=1
)
"""For a sequence that would write blocks which others hold: an error mostly, if nobody was asked for copies before."""

_CAN_WRITE: Final = table(
    write=62, allocate=5, fork=6, hold=5, truncate=5, preempt=4, cache=4, deallocate=3, append=3, abort=2
)
_COMPUTED: Final = table(
    append=36, deallocate=18, fork=13, cache=10, truncate=9, hold=6, preempt=4, abort=2, allocate=1, write=1
)
_COMES: Final = table(allocate=58, allocate_shared=26, append=3, abort=3, deallocate=2, truncate=2, preempt=1, cache=1)
"""What is next for a sequence without blocks in a pool, where a match that finds nothing leaves it as it was."""

_BLANK: Final = table(append=70, allocate=9, allocate_shared=6, abort=5, deallocate=5, preempt=5)
"""In a pool for a sequence that knows no tokens."""

_DRAFTED: Final = table(
    append=34, truncate=24, deallocate=14, cache=8, hold=8, preempt=4, abort=3, allocate=3, write=2
)
"""In a pool without recurrent states for a sequence that is computed: there tokens go back into a block."""

_REJECTED: Final = table(hold=45, append=25, truncate=10, cache=5, deallocate=5, preempt=5, abort=5)
"""In a pool behind rejected tokens, whose cells stand in a block of its own: who holds it now may have read them."""

# The same in pools with recurrent states, where a state can be saved now, was saved just now, is being saved, or is to
# be restored.
_CAN_SAVE: Final = table(save=38, save_start=36, cache=8, write=6, append=5, deallocate=4, truncate=3)
_SAVED: Final = table(cache=40, deallocate=15, write=15, append=15, allocate=5, truncate=5, preempt=3, abort=2)
_SAVING: Final = table(
    save_done=18, save_failed=7, cache=20, append=10, allocate=12, hold=9, truncate=9, preempt=5, abort=5, deallocate=5
)
_WAITING: Final = table(
    restore=12, restore_start=32, allocate=14, append=8, hold=10, truncate=7, cache=4, preempt=5, abort=4, deallocate=4
)
_RESTORING: Final = table(
    restore_done=25, restore_failed=11, allocate=14, append=9, hold=10, truncate=10, cache=6, preempt=5, abort=5,
    deallocate=5,
)  # fmt: skip
_RELIEF: Final = table(preempt=40, deallocate=30, abort=15, allocate=15)

_NEEDS: Final = {"fork": Capability.FORK, "truncate": Capability.TRUNCATE, "hold": Capability.HOLD}

SHOW_EVICTION: Final = frozenset(
    {Capability.EVENTS, Capability.CACHED_KEYS, Capability.FREE_IDS, Capability.REF_COUNTS}
)
"""A target without all of these drops keys that nobody can see go; it is not asked to, and evicts what it hands out."""


class Generator:
    """Makes one operation after the other, each for the state that the ones before have led to.

    Args:
        source: where choices come from.
        config: the pool that is driven.
        pool: its state, as the judge knows it; it is read, not changed.
        capabilities: what the target can take.
        kind: valid, wild, or both.
        measure: requests have about as many tokens as so many blocks hold; by default those of the pool.
    """

    makers: ClassVar[dict[str, Callable[[Any, str], AnyOperation]]]
    """What is made of each word of a table."""
    pool: Any

    def __init__(
        self,
        source: Source,
        config: PoolConfig,
        pool: AnyPool,
        capabilities: frozenset[Capability],
        kind: Kind = Kind.VALID,
        measure: int | None = None,
    ) -> None:
        self.source, self.config, self.pool, self.capabilities = source, config, pool, capabilities
        absent = {name for name, need in _NEEDS.items() if need not in capabilities}
        self._missing = frozenset(absent | {"fork"} if config.is_pool else absent)
        self._evicts = bool(capabilities & SHOW_EVICTION)
        self._wildness = {Kind.VALID: 0.0, Kind.MIXED: 0.1, Kind.WILD: 0.6}[kind]
        self._started = 0
        self._held: list[str] = []
        self._released: list[str] = []
        self._refused = self._asked_for_room = False
        self._focus = ""
        self._closed = False
        self._draw_shape((measure or config.num_blocks - 1) * config.block_size)

    def _draw_shape(self, capacity: int) -> None:
        """What this life of the pool is like: how many sequences, how long, how alike."""
        source = self.source
        self._most = source.choice((1, 2, 2, 3, 4, 6))
        self._longest = max(2, capacity * source.choice((2, 3, 4, 5)) // 4)
        small = range(source.choice((1, 2, 2, 3)))
        large = [source.choice(LARGE), source.choice(LARGE)] if source.chance(0.2) else []
        self._alphabet: tuple[int, ...] = (*small, *large)
        self._contexts = source.choice(LOOKALIKES) if source.chance(0.4) else (source.choice(CONTEXTS),)
        self._stems = [self._tokens(self._longest) for _ in range(source.integer(1, 3))]
        self._hold_rate = source.choice((0.0, 0.02, 0.1)) if "hold" not in self._missing else 0.0
        self._patience = source.choice((0.3, 0.7, 0.95))

    def next(self) -> AnyOperation:
        """The next operation."""
        wild = self._wildness and self.source.chance(self._wildness)
        operation = self._wild() if wild else self._valid()
        self._asked_for_room = not isinstance(operation, ops.Save | ops.SaveStart)
        return operation

    def saw(self, result: object) -> None:
        """What the last operation returned; after a refusal somebody has to make room."""
        self._refused = result is False and self._asked_for_room

    # -- valid ---------------------------------------------------------------------------------------------------

    def _valid(self) -> AnyOperation:
        source, live = self.source, self.pool.requests
        if not live or (len(live) < self._most and source.chance(0.12)):
            return self._start()
        if self._held and source.chance(0.05 * len(self._held)):
            return self._release()
        if source.chance(self._drop_rate()):
            return ops.Reset() if source.chance(0.15) or not self._evicts else self._evict()
        # One sequence goes on for a while, as in a step of an engine, then another.
        if self._refused and self.config.is_pool and source.chance(0.7):
            self._focus = source.choice([s for s in live if self.pool.size(s)] or tuple(live))  # it can give way
        elif self._focus not in live or not source.chance(self._patience):
            self._focus = source.choice(tuple(live))
        elif len(live) > 1 and self._can_write(self._focus) and source.chance(0.3):
            self._focus = source.choice(tuple(live))  # another gets room, too, and both are written in one step
        return self._step(self._focus)

    def _drop_rate(self) -> float:
        """How often keys are dropped: more often where a rank has refused something, or a checkpoint is in use."""
        if not self.config.is_pool:
            return 0.03
        return 0.2 if self._refused else 0.08 if self._copying() else 0.03

    def _copying(self) -> list[str]:
        """Sequences whose state is to be restored, or is being saved."""
        pool = self.pool
        if not isinstance(pool, RankedPool) or not self.config.has_linear_state:
            return []
        return [seq for seq in pool.requests if pool.waits(seq) or pool.is_saving(seq)]

    def _evict(self) -> AnyOperation:
        ranks = self.config.num_ranks
        return ops.Evict(self.source.integer(0, 2), self.source.integer(0, ranks - 1) if ranks > 1 else 0)

    def _step(self, seq: str) -> AnyOperation:
        names, weights = self._row(seq)
        at = self.source.integer(0, weights[-1] - 1)
        name = next(n for n, w in zip(names, weights, strict=True) if at < w)
        if name in self._missing or (name == "fork" and len(self.pool.requests) >= self._most):
            name = "append"
        return self.makers[name](self, seq)

    def _row(self, seq: str) -> Makers:
        if self._refused:
            return _RELIEF
        pool = self.pool
        request, size = pool.requests[seq], pool.size(seq)
        known = len(request.tokens)
        if not size:
            return _FRESH if not self.config.is_pool else _COMES if known else _BLANK
        state = self._state_row(seq, request)
        if state is not None:
            return state
        if self._has_rejected(seq, request):
            return _REJECTED
        if request.computed == known:
            return _DRAFTED if self.config.is_pool and not self.config.has_linear_state else _COMPUTED
        room = min(known, size * self.config.block_size)
        if room == request.computed:
            return _NEEDS_ROOM
        return _SHARED if pool.writes_shared(seq, room) else _CAN_WRITE

    def _can_write(self, seq: str) -> bool:
        return self._row(seq) is _CAN_WRITE

    def _state_row(self, seq: str, request: Request) -> Makers | None:
        """What is next for a sequence whose state is to be restored or saved."""
        pool = self.pool
        if not isinstance(pool, RankedPool) or not self.config.has_linear_state:
            return None
        if pool.waits(seq):
            return _RESTORING if pool.is_restoring(seq) else _WAITING
        if pool.is_saving(seq):
            return _SAVING
        if not request.computed or request.computed % self.config.stride or not self.config.enable_prefix_cache:
            return _CAN_SAVE if self.source.chance(0.05) else None  # it will be refused
        rank, key = pool.rank(seq) or 0, pool.stands(seq)
        if key in pool.checkpoints(rank):
            return _SAVED if pool.publishable(seq) and self.source.chance(0.6) else None
        there_is_room = pool.free_slots(rank) or pool.idle_checkpoints(rank)
        return _CAN_SAVE if self.source.chance(0.9 if there_is_room else 0.1) else None

    def _has_rejected(self, seq: str, request: Request) -> bool:
        """In a pool: a block of its own has cells of rejected tokens behind what is computed."""
        pool, (index, within) = self.pool, divmod(request.computed, self.config.block_size)
        if not self.config.is_pool or not within:
            return False
        block = pool.block(seq, index)
        left = request.chain(index, request.computed, pool.chains)
        return pool.content(seq, block) != left and len(pool.part(seq).holders[block]) == 1

    def _start(self) -> AnyOperation:
        source, copying = self.source, self._copying()
        if copying and source.chance(0.6):
            return self._start_like(source.choice(copying))
        stem = source.choice(self._stems)
        least = min(len(stem), self.config.stride + 1) if self.config.has_linear_state and source.chance(0.7) else 1
        tokens = stem[: source.integer(least, len(stem))]
        if source.chance(0.4):
            tokens += self._tokens(source.integer(1, self.config.block_size))
        return ops.Start(self._new_name(), tokens, source.choice(self._contexts))

    def _start_like(self, seq: str) -> AnyOperation:
        """A prompt that begins with what another request has computed, whose checkpoint is in use."""
        request = self.pool.requests[seq]
        more = self._tokens(self.source.integer(1, self.config.block_size))
        self._focus = self._new_name()  # it comes while the copy runs
        return ops.Start(self._focus, (*request.tokens[: request.computed], *more), request.context)

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.source.choice(self._alphabet) for _ in range(count))

    def _new_name(self) -> str:
        """A name that is not in use; sometimes that of one that has ended."""
        if self._started and self.source.chance(0.3):
            old = f"s{self.source.integer(1, self._started)}"
            if old not in self.pool.requests:
                return old
        self._started += 1
        return f"s{self._started}"

    def _allocate_shared(self, seq: str) -> AnyOperation:
        return ops.AllocateShared(seq)

    def _allocate(self, seq: str) -> AnyOperation:
        """Room for all tokens mostly, or up to somewhere."""
        request = self.pool.requests[seq]
        known, least = len(request.tokens), request.computed if self.config.is_pool else 0
        return ops.Allocate(seq, known if self.source.chance(0.7) else self.source.integer(least, known))

    def _append(self, seq: str) -> AnyOperation:
        """One sampled token, or some drafts; as long as the sequence fits into the pool."""
        if len(self.pool.requests[seq].tokens) > self._longest + 2 * self.config.block_size:
            return ops.Deallocate(seq)
        count = 1 if self.source.chance(0.6) else self.source.integer(1, 2 * self.config.block_size)
        return ops.Append(seq, self._tokens(count))

    def _write(self, seq: str) -> AnyOperation:
        """All that there is room for mostly, or a part of it; some steps serve several sequences."""
        first = ops.Write(seq, self._some(seq))
        if len(self.pool.requests) == 1 or not self.source.chance(0.7):
            return first
        others = [s for s in self.pool.requests if s != seq and self._can_write(s)]
        return ops.Write.of((*first.batch, *((s, self._some(s)) for s in others)))

    def _room(self, seq: str) -> int:
        request = self.pool.requests[seq]
        room: int = min(len(request.tokens), self.pool.room(seq)) - request.computed
        return room

    def _some(self, seq: str) -> int:
        """How many tokens of a sequence a step computes; with linear state often up to where its state can be saved."""
        room, stride = self._room(seq), self.config.stride
        if self.config.has_linear_state and self.source.chance(0.75):
            computed: int = self.pool.requests[seq].computed
            return min(room, stride - computed % stride)
        return room if self.source.chance(0.7) else self.source.integer(0, room)

    def _cache(self, seq: str) -> AnyOperation:
        return ops.Cache(seq)

    def _deallocate(self, seq: str) -> AnyOperation:
        """The end of a turn; the next may begin with all that was said."""
        tokens = tuple(self.pool.requests[seq].tokens)
        if tokens and self.source.chance(0.5):
            self._stems[self.source.integer(0, len(self._stems) - 1)] = tokens
        return ops.Deallocate(seq)

    def _preempt(self, seq: str) -> AnyOperation:
        return ops.Preempt(seq)

    def _abort(self, seq: str) -> AnyOperation:
        return ops.Abort(seq)

    def _fork(self, seq: str) -> AnyOperation:
        return ops.Fork(seq, self._new_name())

    def _truncate(self, seq: str) -> AnyOperation:
        """The last few tokens are rejected mostly, or everything behind some place; or what a copy is of."""
        known = len(self.pool.requests[seq].tokens)
        if self.config.has_linear_state and seq in self._copying() and self.source.chance(0.5):
            return ops.Truncate(seq, self.source.integer(0, self.pool.requests[seq].computed))
        few = min(known, self.source.integer(1, self.config.block_size + 1))
        return ops.Truncate(seq, known - few if self.source.chance(0.7) else self.source.integer(0, known))

    def _hold(self, seq: str) -> AnyOperation:
        size = self.pool.size(seq)
        if not size or len(self._held) > 2 or self._hold_rate == 0:
            return self._append(seq)
        name = f"h{len(self._held) + len(self._released) + 1}"
        self._held.append(name)
        last = self.pool.requests[seq].computed // self.config.block_size
        if self.config.is_pool and last < size and self.source.chance(0.7):
            return ops.Hold(seq, last, name)  # where it is written next
        return ops.Hold(seq, self.source.integer(0, size - 1), name)

    def _release(self) -> AnyOperation:
        name = self._held.pop(self.source.integer(0, len(self._held) - 1))
        self._released.append(name)
        return ops.Release(name)

    def _save(self, seq: str) -> AnyOperation:
        return ops.Save(seq)

    def _save_start(self, seq: str) -> AnyOperation:
        return ops.SaveStart(seq)

    def _save_done(self, seq: str) -> AnyOperation:
        return ops.SaveFinish(seq, True)

    def _save_failed(self, seq: str) -> AnyOperation:
        return ops.SaveFinish(seq, False)

    def _restore(self, seq: str) -> AnyOperation:
        return ops.Restore(seq)

    def _restore_start(self, seq: str) -> AnyOperation:
        return ops.RestoreStart(seq)

    def _restore_done(self, seq: str) -> AnyOperation:
        return ops.RestoreFinish(seq, True)

    def _restore_failed(self, seq: str) -> AnyOperation:
        return ops.RestoreFinish(seq, False)

    # -- wild ----------------------------------------------------------------------------------------------------

    def _wild(self) -> AnyOperation:
        """A call that makes no sense, or is at the edge of it."""
        source, live = self.source, tuple(self.pool.requests)
        if source.chance(0.15) or not live:
            return self._of_nobody()
        copying = self._copying()
        if copying and source.chance(0.75):
            return self._too_early(source.choice(copying))
        seq = source.choice(live)
        makers = (*_WILD, *_WILD_IN_POOLS) if self.config.is_pool else _WILD
        return source.choice(makers)(self, seq, self.pool.requests[seq])

    def _of_nobody(self) -> AnyOperation:
        """A sequence that never was, or is no more; a handle likewise."""
        source = self.source
        seq = source.choice(("ghost", f"s{source.integer(1, self._started + 1)}"))
        made: Sequence[AnyOperation] = (
            ops.AllocateShared(seq), ops.Allocate(seq, source.integer(-1, 2)), ops.Append(seq, (0,)),
            ops.Write(seq, source.integer(0, 2)), ops.Cache(seq), ops.Deallocate(seq), ops.Preempt(seq),
            ops.Abort(seq), ops.Fork(seq, self._new_name()), ops.Truncate(seq, 0), ops.Hold("ghost", 0, "h0"),
            ops.Release("h0"), ops.Evict(-1),
        )  # fmt: skip
        if self.config.has_linear_state:
            made = (*made, ops.SaveStart(seq), ops.SaveFinish(seq), ops.RestoreStart(seq), ops.RestoreFinish(seq))
        return self._takeable(source.choice(made))

    def _again(self, seq: str, request: Request) -> AnyOperation:
        return ops.Start(seq, self._tokens(1), self.source.choice(self._contexts))

    def _odd_start(self, seq: str, request: Request) -> AnyOperation:
        tokens = self.source.choice(((), (-1,), (0, -(2**40)), (0, 0, -1)))
        return ops.Start(self._new_name(), tokens)

    def _odd_allocate(self, seq: str, request: Request) -> AnyOperation:
        known = len(request.tokens)
        return ops.Allocate(seq, self.source.choice((-1, 0, known, known + 1, known + 100, 2**40, -(2**40))))

    def _odd_append(self, seq: str, request: Request) -> AnyOperation:
        return ops.Append(seq, self.source.choice(((), (-1,), (0, -1))))

    def _odd_write(self, seq: str, request: Request) -> AnyOperation:
        room = max(0, self.pool.room(seq) - request.computed)
        unknown = max(0, len(request.tokens) - request.computed)
        return ops.Write(seq, self.source.choice((0, room, room + 1, unknown, unknown + 1, 1000)))

    def _odd_batch(self, seq: str, request: Request) -> AnyOperation:
        """One part of a step is impossible: then nothing of it may be done."""
        good = (seq, max(0, self._room(seq)))
        other = self.source.choice(tuple(self.pool.requests))
        bad = self.source.choice((("ghost", 0), (seq, 0), (other, max(0, self._room(other)) + 1)))
        return ops.Write.of((good, bad) if self.source.chance(0.7) else (bad, good))

    def _odd_truncate(self, seq: str, request: Request) -> AnyOperation:
        known = len(request.tokens)
        return self._takeable(ops.Truncate(seq, self.source.choice((-1, known, known + 1, 2**40))))

    def _match_again(self, seq: str, request: Request) -> AnyOperation:
        return ops.AllocateShared(seq)

    def _odd_fork(self, seq: str, request: Request) -> AnyOperation:
        child = self.source.choice((seq, self.source.choice(tuple(self.pool.requests))))
        return self._takeable(ops.Fork(seq, child))

    def _odd_hold(self, seq: str, request: Request) -> AnyOperation:
        size = self.pool.size(seq)
        if self._held and self.source.chance(0.3):
            return self._takeable(ops.Hold(seq, 0, self._held[0]))
        return self._takeable(ops.Hold(seq, self.source.choice((-1, size, size + 1)), "h0"))

    def _odd_release(self, seq: str, request: Request) -> AnyOperation:
        return self._takeable(ops.Release(self.source.choice((*self._released[-3:], "h0"))))

    def _odd_evict(self, seq: str, request: Request) -> AnyOperation:
        legal = (0, self.config.num_blocks, 1000) if self._evicts else (0,)
        return ops.Evict(self.source.choice((-1, -(2**40), *legal)))

    def _odd_copy(self, seq: str, request: Request) -> AnyOperation:
        """A copy of a state that is not to be copied, or a second time."""
        if not self.config.has_linear_state:
            return ops.AllocateShared(seq)
        copies: tuple[AnyOperation, ...] = (
            ops.SaveStart(seq), ops.SaveFinish(seq), ops.RestoreStart(seq), ops.RestoreFinish(seq), ops.Save(seq),
            ops.Restore(seq),
        )  # fmt: skip
        return self.source.choice(copies)

    def _too_early(self, seq: str) -> AnyOperation:
        """What has to wait for a copy: a step mostly."""
        room = self._room(seq)
        if room > 0 and self.source.chance(0.7):
            return ops.Write(seq, self.source.integer(1, room))
        return self._odd_copy(seq, self.pool.requests[seq])

    def _odd_rank(self, seq: str, request: Request) -> AnyOperation:
        return ops.Evict(self.source.integer(0, 1), self.source.choice((-1, self.config.num_ranks, 2**40)))

    def _fork_in_pool(self, seq: str, request: Request) -> AnyOperation:
        return ops.Fork(seq, self._new_name())

    def _takeable(self, operation: AnyOperation) -> AnyOperation:
        """The operation, or a match if the target has nothing of this kind."""
        name = str(operation.__struct_config__.tag)
        if name in self._missing or (name == "release" and "hold" in self._missing):
            return ops.AllocateShared("ghost")
        return operation

    # -- the end -------------------------------------------------------------------------------------------------

    def ending(self) -> Iterator[AnyOperation]:
        """Everything is given back: outside holders, sequences, keys; the pool is then as new."""
        yield from (ops.Release(name) for name in self._held)
        yield from (ops.Abort(seq) for seq in tuple(self.pool.requests))
        yield ops.Reset()

    def closing(self) -> Iterator[AnyOperation]:
        """The manager is closed, and asked for more."""
        yield ops.Close()
        for operation in (ops.Start("late", (0,)), ops.Evict(1), ops.Reset(), self._of_nobody(), ops.Close()):
            if self.source.chance(0.5):
                yield operation


Generator.makers = {
    "allocate_shared": Generator._allocate_shared,
    "allocate": Generator._allocate,
    "append": Generator._append,
    "write": Generator._write,
    "cache": Generator._cache,
    "deallocate": Generator._deallocate,
    "preempt": Generator._preempt,
    "abort": Generator._abort,
    "fork": Generator._fork,
    "truncate": Generator._truncate,
    "hold": Generator._hold,
    "save": Generator._save,
    "save_start": Generator._save_start,
    "save_done": Generator._save_done,
    "save_failed": Generator._save_failed,
    "restore": Generator._restore,
    "restore_start": Generator._restore_start,
    "restore_done": Generator._restore_done,
    "restore_failed": Generator._restore_failed,
}

_WILD: Final[tuple[Callable[[Generator, str, Request], AnyOperation], ...]] = (
    Generator._again,
    Generator._odd_start,
    Generator._odd_allocate,
    Generator._odd_allocate,
    Generator._odd_append,
    Generator._odd_write,
    Generator._odd_write,
    Generator._odd_batch,
    Generator._odd_truncate,
    Generator._match_again,
    Generator._odd_fork,
    Generator._odd_hold,
    Generator._odd_release,
    Generator._odd_evict,
)

_WILD_IN_POOLS: Final[tuple[Callable[[Generator, str, Request], AnyOperation], ...]] = (
    Generator._odd_copy,
    Generator._odd_copy,
    Generator._odd_copy,
    Generator._odd_rank,
    Generator._fork_in_pool,
)
