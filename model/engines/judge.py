"""The judge of an engine's manager: explains what each of its calls left behind by events of chapter `engine`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, cast

import msgspec

from kvspec.model.acceptor.judging import Judging
from kvspec.model.compiled import StepError
from kvspec.model.conformance import CacheEvent, Capability, Context, PoolConfig, Target, TargetError
from kvspec.model.engines.pool import EnginePool, EngineRequest, Memory, Place
from kvspec.model.engines.protocol import (
    AnyRecord,
    Call,
    Copy,
    Ended,
    EngineTarget,
    Forward,
    KeyEvent,
    Known,
    Pin,
    Preempted,
    Run,
    Shown,
)
from kvspec.model.engines.sense import Sense, layout_of
from kvspec.model.operations import Operation
from kvspec.model.promises import ENGINE_CHAPTER, ENGINE_STEP_FAMILIES, Family, Violation
from kvspec.model.world import NOTHING, Chain, chain_tokens, context_of, covers

_IDLE_STEPS: Final = 4
"""So many steps without any work, though there are requests, and an engine does not go on."""
_STATE_BLOCKS: Final = 3
"""The most that a request can need of states at once: where it stands, where it goes, and a copy."""


class EngineAcceptor(Judging[Any]):
    """An engine together with its judge; its operations are those of `EngineTarget`.

    Args, Raises: as for `kvspec.model.acceptor.Acceptor`.
    """

    chapter = ENGINE_CHAPTER
    step_families = ENGINE_STEP_FAMILIES
    pool: EnginePool

    def __init__(
        self, target: Target, config: PoolConfig, *, every: int = 1, watch: bool = True, pool: EnginePool | None = None
    ) -> None:
        super().__init__(target, config, pool or EnginePool(config, watch), every, [])
        if not self.sees(Capability.ENGINE):
            raise TargetError(f"lacks the capability {Capability.ENGINE}, without which no engine can be judged")
        self.engine = cast(EngineTarget, target)
        if not config.enable_prefix_cache and not self.engine.abilities.uncached:
            raise TargetError("has no manager without a prefix cache")
        self.pool.set_up(layout_of(self.engine))
        self._sense = Sense(self.pool.layout, self.capabilities)
        self.handles: dict[str, int] = {}
        self.events: list[CacheEvent] = []
        self._keys: dict[Chain, str] = {}
        self._heard: Counter[str] = Counter()
        self._chains: dict[str, Chain] = {}
        self._refs: list[Counter[int]] = [Counter() for _ in self.pool.memories]
        self._pins: set[Pin] = set()
        self._overlapped = config.engine is not None and config.engine.overlapped
        self._names: set[str] = set()
        self._aborted: str | None = None
        self._idle = self._stuck = 0
        self._last: AnyRecord | None = None

    # -- operations ----------------------------------------------------------------------------------------------

    def submit(
        self, seq: str, tokens: Sequence[int], output: Sequence[int], context: Context | None = None, priority: int = 0
    ) -> None:
        context = context or Context()
        misuse = f"{seq} was used before" if seq in self._names else None
        misuse = misuse or (None if tokens and output else "a request without a prompt, or without output")

        def explain(records: list[AnyRecord]) -> None:
            self._names.add(seq)
            self.pool.requests[seq] = EngineRequest(tuple(tokens), tuple(output), context, self.pool.layout)
            self._all(records)

        call = lambda: self.engine.submit(seq, tokens, output, context, priority)  # noqa: E731
        self._judge("submit", (seq,), call, explain, misuse)

    def step(self, count: int = 1) -> None:
        for number in range(count):
            self.number -= number > 0  # all of them are one operation
            self._judge("step", (), self.engine.step, self._stepped, None)

    def abort(self, seq: str) -> None:
        def explain(records: list[AnyRecord]) -> None:
            self._aborted = seq
            self._all(records)
            if seq in self.pool.requests:
                self._over(seq)

        self._judge("abort", (seq,), lambda: self.engine.abort(seq), explain, self._unknown(seq))

    def evict(self, num_blocks: int, rank: int = 0) -> None:
        misuse = f"eviction of {num_blocks} blocks" if num_blocks < 0 else None

        def explain(records: list[AnyRecord]) -> None:
            idle = 0 if any(map(_in_use, self.pool.memories)) else sum(len(m.keyed) for m in self.pool.memories)
            evicted = self.counts["evictions"]
            self._all(records)
            if self.pool.layout.evicts and num_blocks and idle and self.counts["evictions"] == evicted:
                what = f"{num_blocks} blocks were to be evicted, and none was; {idle} have a key, and nobody has any"
                raise Violation(Family.PROGRESS, "evict_enough", what)

        self._judge("evict", (num_blocks,), lambda: self.engine.evict(num_blocks), explain, misuse)

    def reset(self) -> bool:
        """Drop every key; whether that was done."""

        def explain(records: list[AnyRecord]) -> None:
            evicted = self.counts["evictions"]
            self._all(records)
            self.counts["evictions"] = evicted  # what a reset drops is not evicted
            if self.pool.layout.resets:
                self._reset_refused() if _is_refused(records) else self._reset()

        return not _is_refused(self._judge("reset", (), self.engine.reset, explain, None))

    def _reset(self) -> None:
        for memory in self.pool.memories:
            if memory.keyed:
                what = f"{memory.key[min(memory.keyed)]} can still be matched"
                raise Violation(Family.MAP_TRUTH, "reset_forgets", what)

    def _reset_refused(self) -> None:
        if not self.pool.requests and not any(map(_in_use, self.pool.memories)):
            raise Violation(Family.PROGRESS, "reset_refused", "a reset was refused, and no block is in use")

    def close(self) -> None:
        def explain(_: Any) -> None:
            self.closed = True

        self._judge("close", (), self.engine.close, explain, None)

    def do(self, operation: Operation) -> Any:
        """Run one operation given as data."""
        kind = type(operation)
        arguments = [getattr(operation, f) for f in kind.__struct_fields__]
        return getattr(self, str(kind.__struct_config__.tag))(*arguments)

    def _stepped(self, records: list[AnyRecord]) -> None:
        for memory in self.pool.memories:
            memory.fire["begin_step"]()
        self._all(records)
        for memory in self.pool.memories:
            self._written(memory)
            memory.fire["end_step"]()
        self._goes_on(records)

    def _written(self, memory: Memory) -> None:
        """What was published ahead is there when the step is over."""
        for block in sorted(memory.ahead):
            left = "" if memory.users(block) else "; nobody has it any more"
            what = f"block {block} has the key of {memory.key[block]} when the step is over, and was not written{left}"
            raise Violation(Family.PUBLISH_AFTER_WRITE, "end_step", what)

    def _goes_on(self, records: Sequence[AnyRecord]) -> None:
        """With requests that fit, an engine does not stand still."""
        requests = self.pool.requests
        late = any(isinstance(r, Call) and r.refused and r.late for r in records)
        worked = any(isinstance(r, Ended) or (isinstance(r, Forward) and r.batch) for r in records)
        fits = all(self._fits(request) for request in requests.values())
        self._idle = 0 if worked or late or not fits or not requests else self._idle + 1
        self._stuck = self._stuck + 1 if fits and requests else 0
        waiting = ", ".join(requests)
        if self._idle >= _IDLE_STEPS:
            called = "".join(f"; {record.name}" for record in records if isinstance(record, Call))
            raise Violation(Family.PROGRESS, "goes_on", f"{self._idle} steps did nothing, and {waiting} wait{called}")
        if self._stuck >= _IDLE_STEPS + sum(len(request.tokens) for request in requests.values()):
            what = f"{self._stuck} steps computed nothing that was not computed before, and {waiting} wait"
            raise Violation(Family.PROGRESS, "goes_on", what)

    def _fits(self, request: EngineRequest) -> bool:
        return len(request.tokens) <= self.pool.layout.longest_request

    # -- records -------------------------------------------------------------------------------------------------

    def _all(self, records: list[AnyRecord]) -> None:
        for record in records:
            self._last = record
            if type(record) not in _EXPLAIN:
                raise Violation(Family.MISUSE, "records", f"{record!r} is no record of an engine")
            _EXPLAIN[type(record)](self, record)

    def _request(self, seq: str) -> EngineRequest:
        if seq not in self.pool.requests:
            raise Violation(Family.HOLDERS, "gave_back", f"{seq} is not there (any more), and something is done for it")
        return self.pool.requests[seq]

    def _know(self, record: Known) -> None:
        request = self._request(record.seq)
        self._sense.known(record, request)
        request.known = record.num_tokens

    def _preempted(self, record: Preempted) -> None:
        self._empty(record.seq, "was preempted")
        self._request(record.seq).computed = 0
        self.counts["preemptions"] += 1

    def _ended(self, record: Ended) -> None:
        """A request that fits ends when all that it generates has been computed, or it was aborted."""
        request = self._request(record.seq)
        if request.furthest < len(request.tokens) - 1 and record.seq != self._aborted and self._fits(request):
            what = f"{record.seq} is over, and {request.furthest} of its {len(request.tokens)} tokens were computed"
            raise Violation(Family.PROGRESS, "ended_early", what)
        self._over(record.seq)

    def _over(self, seq: str) -> None:
        self._empty(seq, "is over")
        del self.pool.requests[seq]
        self._stuck = 0

    def _empty(self, seq: str, why: str) -> None:
        for number, table in enumerate(self._request(seq).tables):
            for index, block in enumerate(table):
                if block is not None:
                    what = f"{seq} {why}, and still has block {block} at {Place(seq, number, index)}"
                    raise Violation(Family.HOLDERS, "gave_back", what)

    # -- calls ---------------------------------------------------------------------------------------------------

    def _called(self, call: Call) -> None:
        self.counts["calls"] += 1
        self._sense.call(call)
        best = self._best(call)
        new = _Changes(self, call.shown)
        self._forget(new.replaced())
        self._publish(new.published(early=True))
        self._pin(new.handed_over())
        self._release(new, call)
        taken = self._match(new, call)
        self._forget(new.dropped)
        for place, block in taken:
            self._take(place, block)
        self._publish(new.published(early=False))
        self._pin(new.pins)
        self.counts["allocations"] += not call.refused and bool(new.came or call.hit is not None)
        if call.refused:
            self._refused(call, new)
        elif call.hit is not None and call.seq is not None:
            self._hit(call, call.seq, call.hit, best)
        self._compared_with(call.shown)

    def _best(self, call: Call) -> tuple[int, int]:
        """The longest permitted hit, and the longest that there is, before anything changes."""
        if call.hit is None or call.seq is None or call.refused or call.parent is not None:
            return 0, 0
        known = self._request(call.seq).known
        limit = known if self.hit_limit == "all" else known - 1
        return limit, self.pool.longest_hit(call.seq, limit)

    def _hit(self, call: Call, seq: str, hit: int, best: tuple[int, int]) -> None:
        if call.parent is None:
            self._found(call.name, seq, hit, best)
        else:
            self._forked(call.name, seq, hit, call.parent)
        request = self._request(seq)
        request.computed = request.hit = hit
        request.furthest = max(request.furthest, hit)

    def _forked(self, name: str, seq: str, hit: int, parent: str) -> None:
        """A child goes on behind what its parent has computed, as far as they have the same tokens."""
        child, other = self._request(seq), self._request(parent)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(child.tokens, other.tokens, strict=False)))
        most = min(same, other.computed) if child.context == other.context else 0
        if not 0 <= hit <= most:
            what = f"{name}: {seq} goes on behind {hit} tokens of {parent}; {most} of them are its own, and computed"
            raise Violation(Family.MAP_TRUTH, "hit_unpublished", what)

    def _found(self, name: str, seq: str, hit: int, best: tuple[int, int]) -> None:
        limit, found = best
        if hit % self.pool.layout.hit_stride or not 0 <= hit <= limit:
            what = f"a hit of {hit} tokens, expected at most {limit}, a multiple of {self.pool.layout.hit_stride}"
            raise Violation(Family.MAP_TRUTH, "hit_length", what)
        if hit > found:
            what = f"{name}: {seq} goes on behind {hit} tokens; only {found} of them can be found in the cache"
            raise Violation(Family.MAP_TRUTH, "hit_unpublished", what)
        if hit < found and self.pool.layout.longest_hit:
            what = f"{name}: {seq} goes on behind {hit} tokens; {found} can be found in the cache"
            raise Violation(Family.MAP_TRUTH, "hit_longest", what)
        self.counts["hits"] += hit > 0

    def _release(self, new: _Changes, call: Call) -> None:
        for place, block in new.left:
            self.pool.memory(place).fire["release"](block, place.table, place.at)
            request = self._request(place.seq)
            self.counts["slides"] += self.pool.group(place).window is not None and not new.is_gone(place.seq)
            request.tables[place.group][place.at] = None
        for seq, tables in call.shown.tables.items():
            request = self._request(seq)
            for number, table in enumerate(tables):
                have = request.tables[number]
                del have[len(table) :]
                have += [None] * (len(table) - len(have))
        for pin in sorted(self._pins - new.pins, key=str):
            self.pool.memories[pin.store].fire["unhold"](pin.block, pin.name)
        self._pins &= new.pins

    def _match(self, new: _Changes, call: Call) -> list[tuple[Place, int]]:
        """Mount what was found in the cache, or is shared with a parent; what is left was taken."""
        taken = []
        for place, block in new.came:
            memory = self.pool.memory(place)
            if self._is_match(memory, place, block, new):
                if self._is_ahead(call, place) and not memory.users(block):
                    self._again(memory, place, block)
                    continue
                memory.fire["match"](block, place.table, place.at)
                self._request(place.seq).tables[place.group][place.at] = block
            elif call.parent is not None and self._is_shared(call.parent, place, block):
                giver = Place(call.parent, place.group, place.at)
                memory.fire["share"](block, giver.table, giver.at, place.table, place.at)
                self._request(place.seq).tables[place.group][place.at] = block
                self.counts["shares"] += 1
            else:
                self._within_hit(call, memory, place, block, new)
                taken.append((place, block))
        return taken

    def _is_match(self, memory: Memory, place: Place, block: int, new: _Changes) -> bool:
        if block not in memory.keyed or block in new.dropped[self.pool.group(place).store]:
            return False
        whole = self.pool.whole(place)
        return whole is not None and covers(whole, memory.key[block])

    def _is_ahead(self, call: Call, place: Place) -> bool:
        """The place is behind what is computed, and behind what was hit: it is there to be written."""
        hit = (call.hit or 0) if call.seq == place.seq else 0
        return place.at * self.pool.group(place).block_size >= max(self._request(place.seq).computed, hit)

    def _again(self, memory: Memory, place: Place, block: int) -> None:
        """An idle block was handed out, and has got the key again that it had: it will be written once more."""
        chain = memory.key[block]
        self._forget_one(memory, block)
        self._take(place, block)
        memory.fire["publish_ahead"](block, chain)
        self.counts["published"] += 1

    def _is_shared(self, parent: str, place: Place, block: int) -> bool:
        table = self._request(parent).tables[place.group]
        return place.at < len(table) and table[place.at] == block

    def _within_hit(self, call: Call, memory: Memory, place: Place, block: int, new: _Changes) -> None:
        """A place in front of where the request goes on gets what was found there, and nothing else."""
        group = self.pool.group(place)
        if call.seq != place.seq or not call.hit or call.refused or group.kind == "opaque" or not group.aligned:
            return
        if (place.at + 1) * group.block_size > call.hit:
            return
        is_dropped = block in new.dropped[group.store]
        has = f"has the key of {memory.key[block]}" if block in memory.keyed and not is_dropped else "has no key"
        what = f"{call.name}: {call.hit} tokens were hit, and {place} is block {block}, which {has}"
        raise Violation(Family.MAP_TRUTH, "hit_content", f"{what}; expected the content of the place")

    def _take(self, place: Place, block: int) -> None:
        memory = self.pool.memory(place)
        if block not in memory.store.ids:
            what = f"{place} is block {block}, which is reserved, or there is none"
            raise Violation(Family.RESERVED, "padding_handed_out", what)
        memory.fire["take"](block, place.table, place.at)
        self._request(place.seq).tables[place.group][place.at] = block
        self.counts["taken"] += 1
        self.counts["units"] += 1

    def _forget(self, dropped: Sequence[set[int]]) -> None:
        for memory, blocks in zip(self.pool.memories, dropped, strict=True):
            for block in sorted(blocks):
                self._forget_one(memory, block)
            blocks.clear()

    def _forget_one(self, memory: Memory, block: int) -> None:
        self.counts["evictions"] += not memory.users(block)
        memory.fire["forget"](block)

    def _publish(self, found: Sequence[tuple[int, int, str]]) -> None:
        for store, block, key in found:
            if not self.config.enable_prefix_cache:
                what = f"block {block} got a key, in an engine without a prefix cache"
                raise Violation(Family.PUBLISH_AFTER_WRITE, "publish", what)
            memory = self.pool.memories[store]
            chain = self._content_of_key(store, block)
            is_there = covers(memory.content(block), chain)
            memory.fire["publish" if is_there else "publish_ahead"](block, chain)
            self._learn(chain, key)
            self.counts["published"] += 1

    def _content_of_key(self, store: int, block: int) -> Chain:
        """What a block that gets a key has, or will have in this step."""
        memory, places = self.pool.memories[store], list(self.pool.places(store, block))
        if not places:
            what = f"block {block} got a key, and no table has it"
            raise Violation(Family.PUBLISH_AFTER_WRITE, "stored_by_owner", what)
        for place in places:
            whole = self.pool.whole(place)
            if whole is not None:
                return whole
            if self.pool.group(place).kind == "state" and not self.pool.group(place).aligned:
                return memory.content(block)
        what = f"block {block} ({places[0]}) got a key, and its request has not so many tokens"
        raise Violation(Family.PUBLISH_AFTER_WRITE, "publish", what)

    def _learn(self, chain: Chain, key: str) -> None:
        """One key for one content."""
        if self._keys.setdefault(chain, key) != key:
            raise Violation(Family.KEY, "equal_content_equal_key", f"{chain} has two keys")
        if self._chains.setdefault(key, chain) is not chain:
            what = f"{chain} and {self._chains[key]} (or their contexts, or groups) share a key"
            raise Violation(Family.KEY, "equal_key_equal_content", what)

    def _pin(self, pins: set[Pin]) -> None:
        for pin in sorted(pins - self._pins, key=str):
            self.pool.memories[pin.store].fire["hold"](pin.block, pin.name)
        self._pins |= pins

    # -- refusals ------------------------------------------------------------------------------------------------

    def _refused(self, call: Call, new: _Changes) -> None:
        self.counts["refusals"] += 1
        if new.came and not call.late:
            place, block = new.came[0]
            what = f"{call.name} was refused, and {place} has got block {block}"
            raise Violation(Family.ATOMIC_FAILURE, "refusal_changes_nothing", what)
        if call.late or call.seq is None or call.room <= 0:
            return
        wanted = [self._need(call, store) for store in range(len(self.pool.memories))]
        free = [memory.unheld for memory in self.pool.memories]
        if all(need <= there for need, there in zip(wanted, free, strict=True)):
            what = f"{call.name}: room for {call.room} tokens was refused to {call.seq}; {_told(wanted)} are needed"
            raise Violation(Family.PROGRESS, "refused_for_cause", f"{what} at most, {_told(free)} can be had")

    def _need(self, call: Call, store: int) -> int:
        """The most blocks of a store that a call may have to take."""
        assert call.seq is not None
        request, need = self._request(call.seq), call.spare[store] if call.spare else 0
        for number, group in enumerate(self.pool.layout.groups):
            if group.store != store:
                continue
            if group.kind == "state":
                need += _STATE_BLOCKS
            else:
                need += max(0, -(-call.room // group.block_size) - len(request.tables[number]))
                need += self.pool.layout.hit_stride % group.block_size > 0  # a block that is copied stays where it is
        return need

    # -- the device ----------------------------------------------------------------------------------------------

    def _copied(self, copy: Copy) -> None:
        self._sense.copy(copy)
        place = next(self.pool.places(copy.store, copy.target), None)
        if place is None:
            what = f"block {copy.source} is copied to block {copy.target}, which no table has"
            raise Violation(Family.EXCLUSIVE_WRITER, "copy", what)
        self.pool.memories[copy.store].fire["copy"](copy.source, copy.target, place.table, place.at)
        self.counts["copies"] += 1

    def _forward(self, forward: Forward) -> None:
        self._sense.forward(forward)
        runs = [run for run in forward.batch if self._in_turn(run)]
        for run in runs:
            self._states(run)
        late = [run for run in runs if not self._write(run)]
        for run in late:
            self._write(run, must=True)
        for run in runs:
            self._read(run)
            self._advance(run)
            self.counts["tokens"] += run.stop - run.start

    def _advance(self, run: Run) -> None:
        request = self._request(run.seq)
        request.computed = run.stop
        if run.stop > request.furthest:
            request.furthest, self._stuck = run.stop, 0

    def _in_turn(self, run: Run) -> bool:
        self._sense.run(run)
        request = self._request(run.seq)
        most = len(request.tokens) if self._overlapped else request.known
        if run.start != request.computed or not run.start < run.stop <= most:
            what = f"tokens [{run.start}, {run.stop}) of {run.seq} are computed; {request.computed} are computed so far"
            raise Violation(Family.UNITS, "computed_in_turn", f"{what}, {request.known} are known")
        return True

    def _attention(self, run: Run, first: Callable[[int], int]) -> Iterator[tuple[Place, int, int]]:
        """Places of attention from token `first(group)` on to the end of the run: where, up to which token, block."""
        request = self._request(run.seq)
        for number, group in enumerate(self.pool.layout.groups):
            if group.kind != "attention":
                continue
            table = request.tables[number]
            for index in range(first(number) // group.block_size, -(-run.stop // group.block_size)):
                block = table[index] if index < len(table) else None
                place = Place(run.seq, number, index)
                if block is None:
                    is_new = (index + 1) * group.block_size > run.start
                    family, rule = (Family.UNITS, "room") if is_new else (Family.WINDOW, "kept")
                    what = f"tokens [{run.start}, {run.stop}) of {run.seq} are computed, and {place} has no block"
                    raise Violation(family, rule, what)
                yield place, min(run.stop, (index + 1) * group.block_size), block

    def _write(self, run: Run, must: bool = False) -> bool:
        """Whether the run could go on in blocks that are begun: what is before may still be written in this step."""
        begun = [found for found in self._attention(run, lambda number: run.start) if not self._goes_on_in(run, *found)]
        if begun and not must:
            return False
        for place, _, block in begun:
            found, wanted = self.pool.memory(place).content(block), self.pool.chain(place, run.start)
            what = (
                f"{place} (block {block}) is gone on with behind token {run.start} and has {found}, expected {wanted}"
            )
            raise Violation(Family.CONTENT, "content", what)
        for place, stop, block in self._attention(run, lambda number: run.start):
            self.pool.memory(place).fire["write"](block, place.table, place.at, self.pool.chain(place, stop))
            self.counts["block writes"] += 1
        return True

    def _goes_on_in(self, run: Run, place: Place, stop: int, block: int) -> bool:
        """A block at this place has all that is before the run."""
        is_begun = place.at * self.pool.group(place).block_size < run.start
        return not is_begun or covers(self.pool.memory(place).content(block), self.pool.chain(place, run.start))

    def _read(self, run: Run) -> None:
        for place, stop, block in self._attention(run, lambda number: self.pool.first_seen(number, run.start)):
            self.counts["reads"] += 1
            found, wanted = self.pool.memory(place).content(block), self.pool.chain(place, stop)
            if not covers(found, wanted):
                what = f"{place} (block {block}) is read up to token {stop} and has {found}, expected {wanted}"
                raise Violation(Family.CONTENT, "content", what)

    def _states(self, run: Run) -> None:
        for move in run.moves:
            group = self.pool.layout.groups[move.group]
            memory = self.pool.memories[group.store]
            self._source(run, move.group, move.source, memory)
            table = self._request(run.seq).tables[move.group]
            if move.target not in table:
                what = f"the state of {run.seq} behind {run.stop} tokens goes to slot {move.target}, which it has not"
                raise Violation(Family.UNITS, "room", what)
            index = len(table) - 1 - table[::-1].index(move.target)
            place, state = Place(run.seq, move.group, index), self.pool.state(run.seq, move.group, run.stop)
            memory.fire["write"](move.target, place.table, place.at, state)
            self.counts["states"] += 1

    def _source(self, run: Run, group: int, source: int | None, memory: Memory) -> None:
        wanted = self.pool.state(run.seq, group, run.start)
        found = memory.content(source) if source is not None else self.pool.state(run.seq, group, 0)
        if source is not None and found is NOTHING:
            what = f"{run.seq} goes on behind {run.start} tokens from slot {source}, in which no holder has put a state"
            raise Violation(Family.STATE_POSITION, "source", what)
        if found is not wanted:
            where = "no state" if source is None else f"slot {source}, which has the state behind {found}"
            what = f"{run.seq} goes on behind {run.start} tokens from {where}, expected {wanted}"
            raise Violation(Family.STATE_POSITION, "source", what)
        if source is not None and not memory.users(source):
            what = f"{run.seq} goes on from slot {source}, which nobody holds"
            raise Violation(Family.HOLDERS, "source_held", what)

    # -- comparing -----------------------------------------------------------------------------------------------

    def _compared_with(self, shown: Shown) -> None:
        for number, counts in enumerate(shown.refs or ()):
            self._refs[number].update({block: n - self._refs[number][block] for block, n in counts.items()})
            self._same_refs(number)
        for number, free in enumerate(shown.free):
            self._same_free(number, free)
        if shown.events is not None:
            self._same_keys(shown.events)

    def _same_keys(self, events: Sequence[KeyEvent]) -> None:
        """Whoever counts what is told of each key knows how many blocks have it."""
        for event in events:
            if event.kind == "cleared":
                self._heard.clear()
            else:
                self._heard[event.key] += 1 if event.kind == "stored" else -1
                self._same_content(event)
        there = Counter(self._keys[memory.key[block]] for memory in self.pool.memories for block in memory.keyed)
        wrong = next((key for key in {**there, **self._heard} if there[key] != self._heard[key]), None)
        if wrong is not None:
            what = f"{there[wrong]} blocks have the key {wrong}; {self._heard[wrong]}, by what was told of it"
            raise Violation(Family.MAP_TRUTH, "events", what)

    def _same_content(self, event: KeyEvent) -> None:
        """What is told of a block is what its key stands for; a parent that never had a key may be anything."""
        if event.tokens is None or event.key not in self._chains:
            return
        chain, parent = self._chains[event.key], self._chains.get(event.parent or "", NOTHING)
        whole = chain_tokens(chain)
        before = chain_tokens(parent) if parent is not NOTHING or event.parent is None else whole[: -len(event.tokens)]
        alike = parent is NOTHING or context_of(parent) == context_of(chain)
        if not alike or [*before, *event.tokens] != whole:
            behind = "nothing" if event.parent is None else f"{event.parent}, which stands for {before}"
            what = f"{event.key} is told to be {list(event.tokens)} behind {behind}; it stands for {whole}"
            raise Violation(Family.MAP_TRUTH, "events", what)

    def _same_free(self, number: int, shown: int) -> None:
        memory = self.pool.memories[number]
        known = memory.unheld if memory.store.free == "unheld" else len(memory.free)
        if shown != known:
            idle = "" if memory.store.free == "unkeyed" else ", those that only the cache has among them"
            what = f"the manager counts {shown} free blocks, there are {known}{idle}"
            raise Violation(Family.PARTITION, "free_count", what)

    def _same_refs(self, number: int) -> None:
        memory, counts = self.pool.memories[number], self._refs[number]
        for block in memory.store.ids:
            held = memory.holders.get(block, ())
            known = len(held) if memory.store.cache_counts else sum(1 for seat in held if seat[0] != "cache_of")
            if counts[block] != known:
                what = f"block {block} has reference count {counts[block]} and is {self.held_by(number, block)}"
                raise Violation(Family.HOLDERS, "ref_count", what)

    def held_by(self, number: int, block: int) -> str:
        """Who holds a block of a store, in words."""
        memory = self.pool.memories[number]
        if block not in memory.store.ids:
            return "reserved"
        names = [f"{seat[1].rpartition('/')[0]}[{seat[2]}]" for seat in memory.users(block) if seat[0] == "seq_at"]
        names += [f"the outside holder {seat[1]}" for seat in memory.users(block) if seat[0] == "pin_of"]
        names += [f"the cache of {memory.key[block]}"] if block in memory.keyed else []
        return f"held by {', '.join(sorted(names))}" if names else "free"

    def last_record(self) -> Iterator[str]:
        """What was looked at last, as the target sent it."""
        if self._last is not None:
            yield f"last {_sent(self._last)}"

    def drain(self) -> None:
        """End all requests and drop the keys: everything must be free."""
        for seq in list(self.pool.requests):
            self.abort(seq)
        self.reset()
        self.drained()

    def compare(self) -> None:
        """All is compared behind each call."""

    def sweep(self) -> None:
        """Every invariant of the chapter on the whole state."""
        for broken in self.pool.sweep():
            raise Violation(Family.INVARIANT, broken.statement.name, str(broken))

    def drained(self) -> None:
        """When every request is over, nothing is held; behind a reset, nothing has a key either."""
        for memory in self.pool.memories:
            usable = len(memory.store.ids)
            free = len(memory.free) if self.pool.layout.resets else memory.unheld
            if free != usable:
                raise Violation(Family.DRAIN, "drain", f"{free} of {usable} blocks are free at the end")

    def _drain(self) -> list[CacheEvent]:
        return []

    def _infer(self) -> None:
        """Nothing has to be inferred: calls show all that changed."""

    def _all_explained(self) -> None:
        """Each call is explained by itself."""

    def _unchanged(self, rule: str) -> None:
        """What an engine answers with an error has no records."""

    def _step_words(self, error: StepError) -> Sequence[str]:
        blocks = error.arguments[:2] if error.event.name == "copy" else error.arguments[:1]
        return [
            f"block {block}{self._of_store(number)} is {self.held_by(number, block)}"
            for block in blocks
            for number, memory in enumerate(self.pool.memories)
            if block in memory.store.ids
        ]

    def _of_store(self, number: int) -> str:
        return f" of store {number}" if len(self.pool.memories) > 1 else ""


def _in_use(memory: Memory) -> bool:
    """Somebody beside the cache holds a block."""
    return memory.unheld < len(memory.store.ids)


def _is_refused(records: Sequence[AnyRecord]) -> bool:
    return any(isinstance(record, Call) and record.refused for record in records)


def _sent(record: AnyRecord) -> str:
    try:
        return msgspec.json.encode(record).decode()
    except Exception:  # in one process a record may have anything in it
        return repr(record)


def _told(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers)) + " blocks"


class _Changes:
    """What a call has changed, against the model."""

    def __init__(self, judge: EngineAcceptor, shown: Shown) -> None:
        self._pool, self._tables = judge.pool, shown.tables
        self.left: list[tuple[Place, int]] = []
        self.came: list[tuple[Place, int]] = []
        self.pins = judge._pins if shown.pins is None else set(shown.pins)
        self._unpinned = judge._pins - self.pins
        for seq, tables in shown.tables.items():
            self._compare(judge._request(seq), seq, tables)
        self._new = self._just_taken()
        self._given: list[tuple[int, int, str]] = []
        self.dropped: list[set[int]] = [set() for _ in judge.pool.memories]
        for store, keys in enumerate(shown.keys):
            for block, key in sorted(keys.items()):
                if key is not None:
                    self._given.append((store, block, key))
                if block in judge.pool.memories[store].keyed:
                    self.dropped[store].add(block)

    def _compare(self, request: EngineRequest, seq: str, tables: Sequence[Sequence[int | None]]) -> None:
        for number, table in enumerate(tables):
            have = request.tables[number]
            for index in range(max(len(have), len(table))):
                old = have[index] if index < len(have) else None
                new = table[index] if index < len(table) else None
                if old != new:
                    place = Place(seq, number, index)
                    self.left += [] if old is None else [(place, old)]
                    self.came += [] if new is None else [(place, new)]

    def is_gone(self, seq: str) -> bool:
        """The request has nothing any more."""
        return all(block is None for table in self._tables.get(seq, ()) for block in table)

    def handed_over(self) -> set[Pin]:
        """Pins of blocks that lose a holder by this call, and come to no table: they are held all the time."""
        left, came = ({(self._pool.group(at).store, block) for at, block in moved} for moved in (self.left, self.came))
        left |= {(pin.store, pin.block) for pin in self._unpinned}
        return {pin for pin in self.pins if (pin.store, pin.block) in left - came}

    def replaced(self) -> list[set[int]]:
        """Blocks that were held before, and have another key now; they are dropped no more."""
        found: list[set[int]] = [set() for _ in self.dropped]
        for store, block, _ in self.published(early=True):
            if block in self.dropped[store]:
                self.dropped[store].discard(block)
                found[store].add(block)
        return found

    def published(self, early: bool) -> list[tuple[int, int, str]]:
        """Blocks that got a key: those that were held before, or those that have just been taken."""
        return [given for given in self._given if (given[:2] not in self._new) == early]

    def _just_taken(self) -> set[tuple[int, int]]:
        """Blocks of stores that came somewhere and do not have what belongs there."""
        return {(self._pool.group(place).store, block) for place, block in self.came if not self._has(place, block)}

    def _has(self, place: Place, block: int) -> bool:
        memory, whole = self._pool.memory(place), self._pool.whole(place)
        return whole is not None and bool(memory.users(block)) and covers(memory.content(block), whole)


_EXPLAIN: Final[Mapping[type, Callable[[EngineAcceptor, Any], None]]] = {
    Call: EngineAcceptor._called,
    Copy: EngineAcceptor._copied,
    Forward: EngineAcceptor._forward,
    Known: EngineAcceptor._know,
    Preempted: EngineAcceptor._preempted,
    Ended: EngineAcceptor._ended,
}
