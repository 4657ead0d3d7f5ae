"""A small engine that does all that it may: the reference of the form ``engines``.

Its manager has one pool of blocks for all groups, as vLLM's has. It publishes blocks before they are written, keeps
several blocks for one key, and drops a key when its block is handed out again. What is left open (which block, which of
several with one key) is decided by a seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from kvspec.model.conformance import Capability, Context, MisuseError, PoolConfig
from kvspec.model.engines.protocol import (
    Abilities,
    AnyRecord,
    Ended,
    Forward,
    Group,
    Known,
    Layout,
    Move,
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


class Manager:
    """Blocks with reference counts and keys, and the tables of requests."""

    def __init__(self, num_blocks: int, groups: Sequence[Group], seed: int) -> None:
        self.groups, self.random = groups, Random(seed)
        self.ids = tuple(range(1, num_blocks))
        self.refs = dict.fromkeys(self.ids, 0)
        self.queue = list(self.ids)
        self.key_of: dict[int, str] = {}
        self.coming: set[int] = set()
        """States that this step is still to write: they cannot be hit before."""

    # -- hits ----------------------------------------------------------------------------------------------------

    def key(self, request: Request, group: int, stop: int) -> str:
        """The key of a block of a group that ends at a token."""
        return f"{group} {request.context} {request.tokens[:stop]}"

    def look_up(self, request: Request, limit: int) -> int:
        """The longest hit, at most `limit` tokens."""
        size = self.groups[0].block_size
        keys = {key for block, key in self.key_of.items() if block not in self.coming}
        return next((n for n in range(limit // size * size, 0, -size) if self._is_there(request, n, keys)), 0)

    def _is_there(self, request: Request, hit: int, keys: set[str]) -> bool:
        size = self.groups[0].block_size
        return all(
            self.key(request, group, (place + 1) * size) in keys
            for group in range(len(self.groups))
            for place in self.places(group, hit, hit)
        )

    def places(self, group: int, query: int, stop: int) -> range:
        """Places that a query needs of what is before token `stop`."""
        kind, size = self.groups[group], self.groups[group].block_size
        if kind.kind == "state":
            return range(max(0, query - 1) // size, -(-query // size))
        first = 0 if kind.window is None else max(0, query - kind.window + 1)
        return range(first // size, -(-stop // size))

    def found(self, key: str) -> int:
        """One of the blocks with the key."""
        there = (block for block in self.ids if block not in self.coming)
        return self.random.choice([block for block in there if self.key_of.get(block) == key])

    # -- room ----------------------------------------------------------------------------------------------------

    def allocate(self, request: Request, stop: int, hit: int | None = None) -> bool:
        """Room for tokens up to `stop`, behind a hit for a request that comes; publishes what will be full."""
        if hit is None:
            self.slide(request)
        mounted = {} if hit is None else self._hits(request, hit)
        start = request.computed if hit is None else hit
        wanted = [place for place in self._wanted(request, start, stop) if place not in mounted]
        idle = {block for block in mounted.values() if not self.refs[block]}
        if len(wanted) > len(self.queue) - len(idle):
            return False
        for (group, at), block in mounted.items():
            self.touch(block)
            self._put(request, group, at, block)
        for group, at in wanted:
            self._put(request, group, at, self.take())
        self.publish(request, start, stop)
        return True

    def _hits(self, request: Request, hit: int) -> dict[tuple[int, int], int]:
        size = self.groups[0].block_size
        return {
            (group, at): self.found(self.key(request, group, (at + 1) * size))
            for group in range(len(self.groups))
            for at in self.places(group, hit, hit)
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
        for group, kind in enumerate(self.groups):
            size = kind.block_size
            first = start // size if kind.kind == "attention" else stop // size - 1
            for at in range(max(0, first), stop // size):
                block = request.tables[group][at]
                if block is not None and block not in self.key_of:
                    self.key_of[block] = self.key(request, group, (at + 1) * size)
                    if kind.kind == "state":
                        self.coming.add(block)

    def slide(self, request: Request) -> None:
        """Give back what no query sees any more."""
        for group, table in enumerate(request.tables):
            kept = self.places(group, request.computed, max(request.computed, 1))
            for at, block in enumerate(table[: kept.start]):
                if block is not None:
                    self.drop(block)
                    table[at] = None

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
    """

    capabilities = frozenset(
        {Capability.ENGINE, Capability.FREE_COUNT, Capability.REF_COUNTS, Capability.CACHED_KEYS}
    )
    hit_limit: Final = "all_but_one"
    abilities = Abilities(tuple(_VARIANTS), ("priority", "chunked"), fewest_blocks=8)

    def __init__(self, config: PoolConfig, seed: int = 0) -> None:
        if config.engine is None:
            raise ValueError("no engine, expected how it schedules")
        self.engine = config.engine
        self.size = config.block_size
        window = config.engine.window
        self.groups = tuple(
            Group(0, "state" if kind == "state" else "attention", self.size, window if kind == "sliding" else None)
            for kind in _VARIANTS[config.engine.variant or "full"]
        )
        self.manager = self.make_manager(config.num_blocks, seed)
        self.recorder = Recorder(self.look)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.number = 0

    def make_manager(self, num_blocks: int, seed: int) -> Manager:
        """The manager that is driven."""
        return Manager(num_blocks, self.groups, seed)

    def look(self) -> Seen:
        """All that there is."""
        tables = {r.seq: r.tables for r in (*self.running, *self.waiting) if any(r.tables)}
        return Seen(tables, [self.manager.key_of], [len(self.manager.queue)], [self.manager.refs])

    def layout(self) -> Layout:
        states = sum(group.kind == "state" for group in self.groups)
        blocks = (len(self.manager.ids) - 2 * states) // len(self.groups)
        return Layout((Store(self.manager.ids, "unheld"),), self.groups, self.size, blocks * self.size)

    def submit(
        self, seq: str, tokens: Sequence[int], output: Sequence[int], context: Context, priority: int
    ) -> list[AnyRecord]:
        if not tokens or not output:
            raise MisuseError("a request without tokens")
        if any(seq == r.seq for r in (*self.waiting, *self.running)):
            raise MisuseError(f"{seq} is there")
        self.number += 1
        request = Request(seq, tokens, output, context, (priority if self.engine.priority else 0, self.number))
        request.tables = [[] for _ in self.groups]
        self.waiting.append(request)
        return []

    def abort(self, seq: str) -> list[AnyRecord]:
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
        return []

    def reset(self) -> list[AnyRecord]:
        if self.running:
            self.recorder.call("reset", refused=True, late=True)
        else:
            self.manager.key_of.clear()
            self.recorder.call("reset")
        return self.recorder.taken()

    def close(self) -> None:
        """Nothing has to be given back."""

    # -- a step --------------------------------------------------------------------------------------------------

    def step(self) -> list[AnyRecord]:
        self.manager.coming.clear()
        plans = self._plan()
        if plans:
            self.recorder.add(Forward([self._run(plan) for plan in plans]))
        for request, stop in plans:
            self._done(request, stop)
        return self.recorder.taken()

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
