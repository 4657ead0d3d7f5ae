"""A small engine that does all that it may: the reference of the form ``engines``.

Its manager has one pool of blocks for all groups, as vLLM's has. It publishes blocks before they are written, keeps
several blocks for one key, and drops a key when its block is handed out again. In the variant ``partial`` a hit may end
inside a block, whose beginning is copied. Which of several blocks with one key is hit, is decided by a seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Final, Literal, NamedTuple

from kvspec.model.conformance import Capability, Context, MisuseError, PoolConfig
from kvspec.model.engines.protocol import (
    Abilities,
    AnyRecord,
    Copy,
    Ended,
    Forward,
    Group,
    Known,
    Layout,
    Move,
    Pin,
    Preempted,
    Run,
    Store,
)
from kvspec.model.engines.recorder import Recorder, Seen

_VARIANTS: Final[Mapping[str, tuple[str, ...]]] = {
    "full": ("full",),
    "sliding": ("sliding",),
    "state": ("state",),
    "full+sliding": ("full", "sliding"),
    "full+state": ("full", "state"),
    "partial": ("full",),
}


class Request:
    """One request, as the scheduler knows it."""

    def __init__(self, seq: str, tokens: Sequence[int], output: Sequence[int], context: Context, rank: tuple[int, int]):
        self.seq, self.tokens, self.context, self.rank = seq, (*tokens, *output), context, rank
        self.known, self.computed = len(tokens), 0
        self.tables: list[list[int | None]] = []


class Plan(NamedTuple):
    """A request's part of a step."""

    request: Request
    stop: int


class Key(NamedTuple):
    """What a block contains: of which group, in which context, and all tokens up to its end."""

    group: int
    context: Context
    tokens: tuple[int, ...]


class Manager:
    """Blocks with reference counts and keys, and the tables of requests.

    Args:
        num_blocks: with block 0, which is never handed out.
        groups: the tables of a request.
        partial: hits may end inside a block.
        seed: for what is left open.

    Attributes:
        queue: blocks without a holder; the first is handed out next.
        coming: blocks that this step publishes, and is still to write.
        copies: blocks whose beginning this step copies to others, each held until then.
    """

    def __init__(self, num_blocks: int, groups: Sequence[Group], partial: bool, seed: int) -> None:
        self.groups, self.partial, self.random = groups, partial, Random(seed)
        self.ids = tuple(range(1, num_blocks))
        self.refs = dict.fromkeys(self.ids, 0)
        self.queue = list(self.ids)
        self.key_of: dict[int, Key] = {}
        self.coming: set[int] = set()
        self.copies: list[tuple[int, int]] = []
        self.caches = True

    # -- hits ----------------------------------------------------------------------------------------------------

    def key(self, request: Request, group: int, stop: int) -> Key:
        """The key of a block of a group that ends at a token."""
        return Key(group, request.context, request.tokens[:stop])

    def is_ready(self, block: int) -> bool:
        """Whether a block can be hit: layers of attention write before they read, states have to be there."""
        return block not in self.coming or self.groups[self.key_of[block].group].kind == "attention"

    def look_up(self, request: Request, limit: int) -> int:
        """The longest hit, at most `limit` tokens."""
        if not self.caches:
            return 0
        size = self.groups[0].block_size
        keys = {key for block, key in self.key_of.items() if self.is_ready(block)}
        hit = next((n for n in range(limit // size * size, 0, -size) if self._is_there(request, n, keys)), 0)
        if self.partial:
            return next((n for n in range(min(limit, hit + size - 1), hit, -1) if self.beginning(request, n)), hit)
        return hit

    def _is_there(self, request: Request, hit: int, keys: set[Key]) -> bool:
        size = self.groups[0].block_size
        return all(
            self.key(request, group, (place + 1) * size) in keys
            for group in range(len(self.groups))
            for place in self.places(group, hit, hit)
        )

    def beginning(self, request: Request, hit: int) -> list[int]:
        """Written blocks whose beginning is the last part of a hit that ends inside a block."""
        stop, wanted = hit + -hit % self.groups[0].block_size, self.key(request, 0, hit)
        return [
            block
            for block, key in self.key_of.items()
            if block not in self.coming and len(key.tokens) == stop
            if key._replace(tokens=key.tokens[:hit]) == wanted
        ]

    def places(self, group: int, query: int, stop: int) -> range:
        """Places that a query needs of what is before token `stop`."""
        kind, size = self.groups[group], self.groups[group].block_size
        if kind.kind == "state":
            return range(max(0, query - 1) // size, -(-query // size))
        first = 0 if kind.window is None else max(0, query - kind.window + 1)
        return range(first // size, -(-stop // size))

    def found(self, key: Key) -> int:
        """One of the blocks with the key."""
        return self.random.choice([b for b in self.ids if self.key_of.get(b) == key and self.is_ready(b)])

    # -- room ----------------------------------------------------------------------------------------------------

    def allocate(self, request: Request, stop: int, hit: int | None = None) -> bool:
        """Room for tokens up to `stop`, behind a hit for a request that comes; publishes what will be full."""
        if hit is None:
            self.slide(request)
        start = request.computed if hit is None else hit
        mounted = {} if hit is None else self._hits(request, hit)
        sources = self.random.sample(self.beginning(request, start), 1) if hit and self._inside(hit) else []
        wanted = [place for place in self._wanted(request, start, stop) if place not in mounted]
        idle = {block for block in (*mounted.values(), *sources) if not self.refs[block]}
        if len(wanted) > len(self.queue) - len(idle):
            return False
        for (group, at), block in mounted.items():
            self.touch(block)
            self._put(request, group, at, block)
        for source in sources:
            self.touch(source)
        for group, at in wanted:
            self._put(request, group, at, self.take())
        self.copies += [(source, self._at(request, start)) for source in sources]
        self.publish(request, start + (-start % self.groups[0].block_size if sources else 0), stop)
        return True

    def _inside(self, hit: int) -> int:
        """Tokens of a hit that are behind its whole blocks."""
        return hit % self.groups[0].block_size

    def _at(self, request: Request, token: int) -> int:
        block = request.tables[0][token // self.groups[0].block_size]
        assert block is not None
        return block

    def _hits(self, request: Request, hit: int) -> dict[tuple[int, int], int]:
        size, whole = self.groups[0].block_size, hit - self._inside(hit)
        return {
            (group, at): self.found(self.key(request, group, (at + 1) * size))
            for group in range(len(self.groups))
            for at in self.places(group, whole, whole)
        }

    def _wanted(self, request: Request, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Places without a block where something will be written."""
        for group, kind in enumerate(self.groups):
            table, size = request.tables[group], kind.block_size
            first = start // size if kind.kind == "attention" else (stop - 1) // size
            for at in range(first, -(-stop // size)):
                if at >= len(table) or table[at] is None:
                    yield group, at

    def _put(self, request: Request, group: int, at: int, block: int) -> None:
        table = request.tables[group]
        table += [None] * (at + 1 - len(table))
        table[at] = block

    def take(self) -> int:
        """A block that nobody needs; its key is dropped."""
        block = self.queue.pop(0)
        self.key_of.pop(block, None)
        self.refs[block] = 1
        return block

    def touch(self, block: int) -> None:
        """One more holder."""
        if not self.refs[block]:
            self.queue.remove(block)
        self.refs[block] += 1

    def drop(self, block: int) -> None:
        """One holder less."""
        self.refs[block] -= 1
        if not self.refs[block]:
            self.queue.append(block)

    def publish(self, request: Request, start: int, stop: int) -> None:
        """Blocks that this step fills get their keys."""
        if not self.caches:
            return
        for group, kind in enumerate(self.groups):
            size = kind.block_size
            first = start // size if kind.kind == "attention" else stop // size - 1
            for at, block in enumerate(request.tables[group][: stop // size]):
                if at >= first and block is not None and block not in self.key_of:
                    self.key_of[block] = self.key(request, group, (at + 1) * size)
                    self.coming.add(block)

    def slide(self, request: Request) -> None:
        """Give back what no query sees any more."""
        for group, table in enumerate(request.tables):
            kept = self.places(group, request.computed, max(request.computed, 1))
            for at, block in enumerate(table[: kept.start]):
                if block is not None:
                    self.drop(block)
                    table[at] = None

    def end_copies(self) -> None:
        """The copies of this step are made."""
        for source, _ in self.copies:
            self.drop(source)
        self.copies = []

    def evict(self, num_blocks: int) -> None:
        """Drop the keys of so many blocks without a holder; those that would be handed out first."""
        for block in [block for block in self.queue if block in self.key_of][:num_blocks]:
            self.key_of.pop(block, None)

    def reset(self) -> None:
        """Drop all keys."""
        self.key_of.clear()

    def free(self, request: Request) -> None:
        """Give all back, the last blocks first."""
        for table in request.tables:
            for block in reversed(table):
                if block is not None:
                    self.drop(block)
        request.tables = [[] for _ in self.groups]


class ModelEngineTarget:
    """The engine around it.

    Args:
        config: sizes, and how the engine schedules.
        seed: for what is left open.

    Raises:
        ValueError: there is no such engine.
    """

    capabilities = frozenset({Capability.ENGINE, Capability.FREE_COUNT, Capability.REF_COUNTS, Capability.CACHED_KEYS})
    hit_limit: Literal["all", "all_but_one"] = "all_but_one"
    kind: type[Manager] = Manager
    """The manager that is driven."""
    abilities = Abilities(tuple(_VARIANTS), ("priority", "chunked"), fewest_blocks=8, uncached=True)

    def __init__(self, config: PoolConfig, seed: int = 0) -> None:
        if config.engine is None:
            raise ValueError("no engine, expected how it schedules")
        variant = config.engine.variant or next(iter(_VARIANTS))
        if variant not in _VARIANTS:
            raise ValueError(f"variant: '{variant}', expected one of {', '.join(_VARIANTS)}")
        self.engine = config.engine
        self.size = config.block_size
        window = config.engine.window
        self.groups = tuple(
            Group(0, "state" if kind == "state" else "attention", self.size, window if kind == "sliding" else None)
            for kind in _VARIANTS[variant]
        )
        self.manager = self.kind(config.num_blocks, self.groups, variant == "partial", seed)
        self.manager.caches = config.enable_prefix_cache
        self.recorder = Recorder(self.look)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.names: set[str] = set()
        self.closed = False

    def look(self) -> Seen:
        """All that there is."""
        manager = self.manager
        tables = {r.seq: r.tables for r in (*self.running, *self.waiting) if any(r.tables)}
        keys = {block: str(key) for block, key in manager.key_of.items()}
        pins = [Pin(f"copy to {target}", 0, source) for source, target in manager.copies]
        return Seen(tables, [keys], [len(manager.queue)], [manager.refs], pins)

    def layout(self) -> Layout:
        states = sum(group.kind == "state" for group in self.groups)
        blocks = (len(self.manager.ids) - 2 * states - self.manager.partial) // len(self.groups)
        stride = 1 if self.manager.partial else self.size
        return Layout((Store(self.manager.ids, "unheld"),), self.groups, stride, blocks * self.size, evicts=True)

    def submit(
        self, seq: str, tokens: Sequence[int], output: Sequence[int], context: Context, priority: int
    ) -> list[AnyRecord]:
        self._open()
        if not tokens or not output:
            raise MisuseError("a request without tokens")
        if seq in self.names:
            raise MisuseError(f"{seq} was used before")
        self.names.add(seq)
        rank = priority if self.engine.priority else 0, len(self.names)
        request = Request(seq, tokens, output, context, rank)
        request.tables = [[] for _ in self.groups]
        self.waiting.append(request)
        return []

    def _open(self) -> None:
        if self.closed:
            raise MisuseError("it is closed")

    def abort(self, seq: str) -> list[AnyRecord]:
        self._open()
        request = next((r for r in (*self.waiting, *self.running) if r.seq == seq), None)
        if request is None:
            raise MisuseError(f"{seq} is not there")
        self._end(request)
        return self.recorder.taken()

    def _end(self, request: Request) -> None:
        self.manager.free(request)
        self.recorder.call("free", request.seq)
        self.recorder.add(Ended(request.seq))
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)

    def evict(self, num_blocks: int) -> list[AnyRecord]:
        self._open()
        if num_blocks < 0:
            raise MisuseError(f"{num_blocks} blocks")
        self.manager.evict(num_blocks)
        self.recorder.call("evict")
        return self.recorder.taken()

    def reset(self) -> list[AnyRecord]:
        self._open()
        if self.running:
            self.recorder.call("reset", refused=True, late=True)
        else:
            self.manager.reset()
            self.recorder.call("reset")
        return self.recorder.taken()

    def close(self) -> None:
        self._open()
        self.closed = True

    # -- a step --------------------------------------------------------------------------------------------------

    def step(self) -> list[AnyRecord]:
        self._open()
        self.manager.coming.clear()
        plans = self._plan()
        self._copy()
        if plans:
            self.recorder.add(Forward([self._run(plan) for plan in plans]))
        for request, stop in plans:
            self._done(request, stop)
        return self.recorder.taken()

    def _copy(self) -> None:
        for source, target in self.manager.copies:
            self.recorder.add(Copy(0, source, target))
        if self.manager.copies:
            self.manager.end_copies()
            self.recorder.call("end_copies")

    def _plan(self) -> list[Plan]:
        """Running requests first; whoever comes last gives way. Then others come, if nobody had to."""
        plans: list[Plan] = []
        budget, gave_way = self.engine.max_batch_tokens, False
        for request in sorted(self.running, key=lambda r: r.rank):
            stop = self._stop(request, request.computed, budget)
            if request not in self.running or stop <= request.computed:
                continue
            while not (granted := self._allocate(request, stop)):
                gave_way = True
                last = max(self.running, key=lambda r: r.rank)
                plans = [plan for plan in plans if plan.request is not last]
                self._preempt(last)
                if last is request:
                    break
            if granted:
                plans.append(Plan(request, stop))
                budget -= stop - request.computed
        while self.waiting and not gave_way and len(self.running) < self.engine.max_running:
            plan = self._admitted(min(self.waiting, key=lambda r: r.rank), budget)
            if plan is None:
                break
            plans.append(plan)
            budget -= plan.stop - plan.request.computed
        return plans

    def _stop(self, request: Request, start: int, budget: int) -> int:
        """Up to where a request is computed; states are kept at the ends of blocks."""
        if any(group.kind == "state" for group in self.groups):
            return min(request.known, start + budget, (start // self.size + 1) * self.size)
        if not self.engine.chunked and request.known - start > budget and budget < self.engine.max_batch_tokens:
            return start
        return min(request.known, start + budget)

    def _allocate(self, request: Request, stop: int, hit: int | None = None) -> bool:
        granted = self.manager.allocate(request, stop, hit)
        self.recorder.call("allocate", request.seq, refused=not granted, room=stop, hit=hit if granted else None)
        return granted

    def _admitted(self, request: Request, budget: int) -> Plan | None:
        hit = self.manager.look_up(request, request.known - 1)
        stop = self._stop(request, hit, budget)
        if stop <= hit or not self._allocate(request, stop, hit):
            return None
        request.computed = hit
        self.waiting.remove(request)
        self.running.append(request)
        return Plan(request, stop)

    def _preempt(self, request: Request) -> None:
        self.manager.free(request)
        request.computed = 0
        self.running.remove(request)
        self.waiting.append(request)
        self.recorder.call("free", request.seq)
        self.recorder.add(Preempted(request.seq))

    def _run(self, plan: Plan) -> Run:
        request, stop = plan
        moves = []
        for number, group in enumerate(self.groups):
            if group.kind == "state":
                table = request.tables[number]
                target = table[(stop - 1) // self.size]
                assert target is not None
                source = table[(request.computed - 1) // self.size] if request.computed else None
                moves.append(Move(number, source, target))
        return Run(request.seq, request.computed, stop, moves)

    def _done(self, request: Request, stop: int) -> None:
        """The device has computed it: a token is known more, or the request is over."""
        request.computed = stop
        if stop < request.known:
            return
        if request.known == len(request.tokens):
            self._end(request)
            return
        request.known += 1
        self.recorder.add(Known(request.seq, request.known))
