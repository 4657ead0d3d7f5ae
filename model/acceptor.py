"""The acceptor: drives a target, looks at what it shows, and judges it by the spec.

Whatever a target decides (which free block, which victim, when a key is dropped) is read from its observations and
made as an event of the model; an event that the spec does not allow is the verdict. What is observed beyond that (free
ids, counters, reference counts, keys, device contents) is compared with the model's state after each operation, or, in
long runs, now and then.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from kvspec.model import operations as ops
from kvspec.model.compiled import InvariantError, StepError
from kvspec.model.conformance import CacheEvent, Capability, Context, MisuseError, PoolConfig, Tags, Target
from kvspec.model.operations import Operation, Pool
from kvspec.model.promises import CHAPTER, STEP_FAMILIES, Family, Violation
from kvspec.model.workload import CHAIN_START, ChainState, chain_tags
from kvspec.model.world import Chain


class Acceptor:
    """A target together with its judge; its operations are those of `Target`.

    Args:
        target: an instance of the target.
        config: the pool that it was made with.
        every: compare all observations after every n-th operation (0: only when `sweep` is called).
        watch: re-evaluate the spec's invariants after each event.
        pool: a new model of the pool to use, where making one each time would take too long.

    Raises (by the operations):
        Violation: the target did something that the spec does not allow.
        MisuseError: the call was an error, as expected, and the target said so and kept its state.
    """

    def __init__(
        self, target: Target, config: PoolConfig, *, every: int = 1, watch: bool = True, pool: Pool | None = None
    ) -> None:
        self.target, self.config, self.every = target, config, every
        self.capabilities = target.capabilities
        self.hit_limit = target.hit_limit
        self.pool = pool or Pool(config, watch)
        self.counts: Counter[str] = Counter()
        self.number = 0
        self.closed = False
        self.events: list[CacheEvent] = []
        self._handles: dict[str, tuple[int, int]] = {}
        self._released: dict[str, int] = {}
        self._keys: dict[Chain, bytes] = {}
        self._chains: dict[bytes, Chain] = {}
        self._tags: dict[str, tuple[Tags, ChainState | None]] = {}
        self._prepared: dict[str, int] = {}
        self._parts: dict[str, int] = {}
        self._compared = 0
        self._hides = self._hides_evictions()

    def _hides_evictions(self) -> bool:
        """Whether a key of an idle block may be gone without a trace."""
        shown = (Capability.EVENTS, Capability.CACHED_KEYS, Capability.FREE_IDS, Capability.REF_COUNTS)
        return not any(map(self.sees, shown))

    def sees(self, capability: Capability) -> bool:
        return capability in self.capabilities

    # -- one operation -------------------------------------------------------------------------------------------

    def _judge(
        self,
        verb: str,
        arguments: tuple[object, ...],
        call: Callable[[], Any],
        explain: Callable[[Any], None],
        misuse: str | None,
        either: bool = False,
    ) -> Any:
        """Make the call, explain its outcome by events, compare observations.

        With ``misuse`` the call must be an error, with ``either`` it may be one.
        """
        self.number += 1
        self.counts[verb] += 1
        try:
            if self.closed:
                misuse = "the target is closed"
            result, error = self._call(call, misuse)
            if error is None and misuse is not None:
                what = f"{misuse}; the target accepted the call and said {result!r}"
                raise Violation(Family.MISUSE, "error_expected", what)
            if error is not None and misuse is None and not either:
                what = f"a legal call was answered with: {error}"
                raise Violation(Family.MISUSE, "legal_call_refused", what) from error
            self._explained(explain, result, error)
        except Violation as violation:
            violation.number, violation.operation = self.number, " ".join(map(str, (verb, *arguments)))
            raise
        if error is not None:
            raise error
        return result

    def _call(self, call: Callable[[], Any], misuse: str | None) -> tuple[Any, MisuseError | None]:
        """What the target answers: a result, or an error."""
        try:
            return call(), None
        except MisuseError as error:
            return None, error
        except Exception as error:
            what = f"the target failed with {type(error).__name__}: {error}{_last_frame(error)}"
            raise Violation(Family.MISUSE, "crash", f"{misuse}; {what}" if misuse else what) from error

    def _explained(self, explain: Callable[[Any], None], result: Any, error: MisuseError | None) -> None:
        """The answer as events, and all observations compared; whatever fails here, the target showed it."""
        try:
            if error is not None:
                self.counts["errors"] += 1
                self._unchanged("error_changes_nothing")
                return
            explain(result)
            if self.every and self.number % self.every == 0 and self._compared != self.number and not self.closed:
                self.compare()
        except StepError as step:
            raise self._forbidden(step) from step
        except InvariantError as broken:
            raise Violation(Family.INVARIANT, broken.broken.statement.name, str(broken)) from broken
        except Violation:
            raise
        except Exception as failure:
            found = f"{type(failure).__name__}: {failure}{_last_frame(failure)}"
            what = f"what the target answers or shows is of no use: {found}"
            raise Violation(Family.MISUSE, "crash", what) from failure

    def _unchanged(self, rule: str) -> None:
        """After an error or a refusal the target shows what it showed before."""
        if self.closed:
            return
        found = self._drain()
        if found:
            what = f"block {found[0].block_id} was {found[0].kind} by a call that did nothing"
            raise Violation(Family.ATOMIC_FAILURE, rule, what)
        self._infer()
        if not self.every:
            return
        try:
            self.compare()
        except Violation as violation:
            if self.every > 1:
                raise
            raise Violation(Family.ATOMIC_FAILURE, rule, f"the call did nothing, but {violation.what}") from violation
        self._compared = self.number

    def _forbidden(self, error: StepError) -> Violation:
        family = STEP_FAMILIES.get(error.event.name, Family.INVARIANT)
        arguments = " ".join(map(str, error.arguments))
        shown = "".join(f"; block {block} is {self.holders(block)}" for block in self._blocks_of(error))
        where = f"the spec forbids it here ({error.requirement.where})"
        more = f"kvspec explain {CHAPTER}.{error.event.name}"
        return Violation(family, error.event.name, f"{error.event.name} {arguments}: {where}{shown}; see {more}")

    def _blocks_of(self, error: StepError) -> list[int]:
        """The blocks that an event is about."""
        pool, first, rest = self.pool, error.arguments[0] if error.arguments else None, error.arguments[1:]
        match error.event.name:
            case "take":
                return [rest[0]]
            case "copy_on_write":
                return [pool.block(str(first), rest[0]), rest[1]]
            case "publish":
                return [pool.block(str(first), rest[0])]
            case "write" if first in pool.requests:
                index = pool.requests[str(first)].computed // self.config.block_size
                return [pool.block(str(first), index)] if index < pool.size(str(first)) else []
            case "mount" | "evict":
                block = pool.entry.get(error.arguments[-1])
                return [] if block is None else [block]
            case "hold" | "unhold" if isinstance(first, int):
                return [first]
        return []

    def holders(self, block: int) -> str:
        """Who holds a block, in words."""
        if block == 0:
            return "the padding block"
        found = self.pool.holders.get(block)
        if not found:
            return "free"
        return "held by " + ", ".join(sorted(f"{h[1]}[{h[2]}]" if h[0] == "seq_at" else _other(h) for h in found))

    # -- operations ----------------------------------------------------------------------------------------------

    def start(self, seq: str, tokens: Sequence[int], context: Context | None = None) -> None:
        context = context or Context()
        misuse = f"{seq} exists already" if seq in self.pool.requests else _bad_tokens(tokens)

        def explain(_: Any) -> None:
            self._events()
            self.pool.start(seq, tokens, context)
            self._tags[seq] = (np.empty(0, np.int64), context_start(context))

        self._judge("start", (seq,), lambda: self.target.start(seq, tokens, context), explain, misuse)

    def append(self, seq: str, tokens: Sequence[int]) -> None:
        misuse = self._unknown(seq) or _bad_tokens(tokens)

        def explain(_: Any) -> None:
            self._events()
            self.pool.append(seq, tokens)

        self._judge("append", (seq,), lambda: self.target.append(seq, tokens), explain, misuse)

    def allocate_shared(self, seq: str) -> int:
        misuse = self._unknown(seq) or (f"{seq} has blocks already" if self.pool.size(seq) else None)

        def explain(hit: int) -> None:
            self._events()
            size, known = self.config.block_size, len(self.pool.requests[seq].tokens)
            limit = known if self.hit_limit == "all" else max(0, known - 1)
            best = self.pool.hit(seq, limit) if self.config.enable_prefix_cache else 0
            if hit % size or hit > limit or hit < 0:
                raise Violation(Family.MAP_TRUTH, "hit_length", f"a hit of {hit} tokens, expected at most {limit}")
            if hit // size > best:
                what = f"a hit of {hit // size} blocks; only {best} blocks of this prefix are published"
                raise Violation(Family.MAP_TRUTH, "hit_unpublished", what)
            if hit // size < best and not (self._hides and self._gone(seq, hit // size)):
                what = f"a hit of {hit // size} blocks; {best} blocks of this prefix are matchable"
                raise Violation(Family.MAP_TRUTH, "hit_longest", what)
            self.pool.mount(seq, hit // size)
            self._same_table(seq)
            self.counts["hits"] += hit > 0
            self._read(seq, 0, hit)

        return int(self._judge("allocate_shared", (seq,), lambda: self.target.allocate_shared(seq), explain, misuse))

    def allocate(self, seq: str, num_tokens: int) -> bool:
        misuse = self._unknown(seq)
        if misuse is None and not 0 <= num_tokens <= len(self.pool.requests[seq].tokens):
            misuse = f"room for {num_tokens} of {len(self.pool.requests[seq].tokens)} known tokens"

        def explain(granted: bool) -> None:
            if granted:
                self._granted(seq, num_tokens)
            else:
                self._refused(seq, num_tokens)

        call = lambda: self.target.allocate(seq, num_tokens)  # noqa: E731
        return bool(self._judge("allocate", (seq, num_tokens), call, explain, misuse))

    def _granted(self, seq: str, num_tokens: int) -> None:
        self._events()
        table = self.target.block_table(seq)
        have = self.pool.size(seq)
        if len(table) * self.config.block_size < num_tokens:
            what = f"{num_tokens} tokens were granted, the table of {seq} has {len(table)} blocks"
            raise Violation(Family.PROGRESS, "room_granted", what)
        if len(table) < have:
            raise Violation(Family.HOLDERS, "table_kept", f"{seq} had {have} blocks and has {len(table)}")
        first = self.pool.requests[seq].computed // self.config.block_size
        for index in range(min(first, have), have):
            if table[index] != self.pool.block(seq, index):
                self.counts["copies"] += 1
                self._hidden_eviction(table[index])
                self.pool.copy(seq, index, table[index])
        for block in table[have:]:
            if block == 0:
                raise Violation(Family.RESERVED, "padding_handed_out", f"{seq} was given the padding block")
            self._hidden_eviction(block)
            self.pool.take(seq, block)
            self.counts["taken"] += 1
        self._writable(seq, num_tokens)
        self._prepared[seq] = num_tokens

    def _writable(self, seq: str, num_tokens: int) -> None:
        """Room that was granted can be written: what others need was copied."""
        for index in self.pool.writes_shared(seq, num_tokens):
            if not self.pool.may_write(seq, index, num_tokens):
                block = self.pool.block(seq, index)
                what = f"room was granted in block {block} ({seq}[{index}]), which is {self.holders(block)}"
                raise Violation(Family.EXCLUSIVE_WRITER, "copy_on_write", what)

    def _refused(self, seq: str, num_tokens: int) -> None:
        self.counts["refusals"] += 1
        self._unchanged("refusal_changes_nothing")
        self._same_table(seq)
        more = max(0, self.pool.blocks_for(num_tokens) - self.pool.size(seq))
        copies = len(self.pool.writes_shared(seq, num_tokens))
        free, idle = len(self.pool.free), self.pool.reclaimable
        if more + copies <= free + idle:
            what = f"{more + copies} blocks were refused although {free} are free and {idle} more can be evicted"
            if not more + copies:
                what = f"room for {num_tokens} tokens was refused although {seq} has it already, in blocks of its own"
            raise Violation(Family.PROGRESS, "refused_for_cause", what)

    def write(self, batch: Sequence[tuple[str, int | Tags]]) -> None:
        """One forward step; an int stands for that many next tokens, with the contents that they must have."""
        if any(_count(t) < 0 for _, t in batch):
            raise MisuseError("write: fewer than no tokens, which no target can be asked for")
        misuse = next((m for m in (self._bad_write(s, _count(t)) for s, t in batch) if m), None) or _twice(batch)
        tagged = [] if misuse else [(s, self._tag(s, t)) for s, t in batch]
        given: list[tuple[str, Tags]] = tagged or [(s, np.zeros(max(_count(t), 0), np.int64)) for s, t in batch]

        def explain(_: Any) -> None:
            self._events()
            for seq, tags in tagged:
                self.pool.write(seq, len(tags))
                self.counts["tokens"] += len(tags)

        either = misuse is None and any(self.may_refuse(s, _count(t)) for s, t in batch)
        arguments = tuple(x for s, t in batch for x in (s, _count(t)))
        self._judge("write", arguments, lambda: self.target.write(given), explain, misuse, either)

    def read(self, seq: str, start: int, stop: int) -> Tags:
        """Contents of computed tokens, checked against what the tokens must have left there."""
        return self._read(seq, start, stop)

    def cache(self, seq: str) -> None:
        def explain(_: Any) -> None:
            self._published(seq, self._events(seq))

        self._judge("cache", (seq,), lambda: self.target.cache(seq), explain, self._unknown(seq))

    def deallocate(self, seq: str) -> None:
        def explain(_: Any) -> None:
            self._published(seq, self._events(seq))
            self._forget(seq)

        self._judge("deallocate", (seq,), lambda: self.target.deallocate(seq), explain, self._unknown(seq))

    def preempt(self, seq: str) -> None:
        def explain(_: Any) -> None:
            self._events(seq)
            self.pool.preempt(seq)
            self._new_holders(seq)
            self._same_table(seq)

        self._judge("preempt", (seq,), lambda: self.target.preempt(seq), explain, self._unknown(seq))

    def abort(self, seq: str) -> None:
        def explain(_: Any) -> None:
            self._events(seq)
            self._forget(seq)

        self._judge("abort", (seq,), lambda: self.target.abort(seq), explain, self._unknown(seq))

    def fork(self, parent: str, child: str) -> None:
        misuse = self._unknown(parent) or (f"{child} exists already" if child in self.pool.requests else None)

        def explain(_: Any) -> None:
            self._events()
            self.pool.fork(parent, child)
            self._tags[child] = self._tags[parent]
            self._new_holders(parent)
            self._same_table(child)
            self._same_table(parent)

        self._judge("fork", (parent, child), lambda: self.target.fork(parent, child), explain, misuse)

    def truncate(self, seq: str, num_tokens: int) -> None:
        misuse = self._unknown(seq)
        if misuse is None and not 0 <= num_tokens <= len(self.pool.requests[seq].tokens):
            misuse = f"{num_tokens} tokens kept of {len(self.pool.requests[seq].tokens)}"

        def explain(_: Any) -> None:
            self._events(seq)
            self.pool.truncate(seq, num_tokens)
            self._new_holders(seq)
            self.pool.drop_to(seq, max(self.pool.blocks_for(num_tokens), len(self.target.block_table(seq))))
            self._tags[seq] = (self._tags[seq][0][:num_tokens], None)
            self._same_table(seq)

        self._judge(
            "truncate", (seq, num_tokens), lambda: self.target.truncate(seq, num_tokens), explain, misuse
        )

    def evict(self, num_blocks: int) -> int:
        misuse = f"eviction of {num_blocks} blocks" if num_blocks < 0 else None
        idle = self.pool.reclaimable

        def explain(freed: int) -> None:
            before = len(self.pool.free)
            self._events()
            if not self._hides and freed != len(self.pool.free) - before:
                what = f"{freed} blocks reported as evicted, {len(self.pool.free) - before} became free"
                raise Violation(Family.PARTITION, "evicted_count", what)
            if freed > idle or (freed != min(num_blocks, idle) and not self._hides):
                what = f"{freed} of {num_blocks} blocks evicted with {idle} reclaimable"
                raise Violation(Family.PROGRESS, "evict_enough", what)

        return int(self._judge("evict", (num_blocks,), lambda: self.target.evict(num_blocks), explain, misuse))

    def reset(self) -> bool:
        def explain(done: bool) -> None:
            found = self._drain()
            if not done:
                self._reset_refused(found)
                return
            dropped = {self._chain_of(e) for e in found}
            missing = self.pool.cached - dropped if self.sees(Capability.EVENTS) else None
            if missing:
                raise Violation(Family.MAP_TRUTH, "reset_forgets", f"{missing.pop()} was not reported as removed")
            self.pool.reset()

        return bool(self._judge("reset", (), lambda: self.target.reset(), explain, None))

    def _reset_refused(self, found: Sequence[CacheEvent]) -> None:
        """A target may refuse to drop its keys only while blocks are in use."""
        if found:
            what = f"block {found[0].block_id} was {found[0].kind} by a reset that was refused"
            raise Violation(Family.ATOMIC_FAILURE, "refusal_changes_nothing", what)
        self._infer()
        if not self.pool.requests and not self._handles:
            raise Violation(Family.PROGRESS, "reset_refused", "a reset was refused although nothing is in use")

    def hold(self, seq: str, index: int, name: str) -> None:
        """An outside holder of the block at a place of a table."""
        misuse = self._unknown(seq) or (f"{name} holds a block already" if name in self._handles else None)
        block = -1
        if misuse is None:
            inside = 0 <= index < self.pool.size(seq)
            block, misuse = (self.pool.block(seq, index), None) if inside else (-1, f"{seq} has no block {index}")

        def explain(handle: int) -> None:
            self._events()
            self.pool.hold(block, name)
            self._new_holders(*self.pool.requests)
            self._handles[name] = (handle, block)

        self._judge("hold", (seq, index, name), lambda: self.target.hold(block), explain, misuse)

    def release(self, name: str) -> None:
        known = self._handles.get(name)
        misuse = None if known else f"{name} holds no block"
        handle = known[0] if known else self._released.get(name, -1)

        def explain(_: Any) -> None:
            assert known is not None
            self._events()
            self.pool.unhold(known[1], name)
            self._released[name] = self._handles.pop(name)[0]

        self._judge("release", (name,), lambda: self.target.release(handle), explain, misuse)

    def close(self) -> None:
        def explain(_: Any) -> None:
            self.closed = True

        self._judge("close", (), lambda: self.target.close(), explain, None)

    def do(self, operation: Operation) -> Any:
        """Run one operation given as data."""
        kind = type(operation)
        if kind is ops.Write:
            return self.write(operation.batch)  # type: ignore[attr-defined]
        name = kind.__struct_config__.tag
        arguments = [getattr(operation, f) for f in kind.__struct_fields__]
        return getattr(self, str(name))(*arguments)

    @property
    def handles(self) -> Mapping[str, int]:
        """Outside holders by name, and the blocks that they hold."""
        return {name: block for name, (_, block) in self._handles.items()}

    # -- observations --------------------------------------------------------------------------------------------

    def _drain(self) -> list[CacheEvent]:
        if not self.sees(Capability.EVENTS):
            return []
        found = list(self.target.drain_events())
        self.events = found
        return found

    def _events(self, seq: str | None = None) -> list[CacheEvent]:
        """Make the cache changes that the target reports as events of the model."""
        found = self._drain()
        for e in found:
            if e.kind == "stored":
                self._stored(e, seq)
            else:
                self._evicted(self._chain_of(e))
        self._infer()
        return found

    def _stored(self, e: CacheEvent, seq: str | None) -> None:
        place = None if seq is None else self._place_of(seq, e.block_id)
        if seq is None or place is None:
            raise Violation(Family.PUBLISH_AFTER_WRITE, "stored_by_owner", f"block {e.block_id} got a key by no call")
        request, size = self.pool.requests[seq], self.config.block_size
        if (place + 1) * size > request.computed:
            what = f"block {e.block_id} ({seq}[{place}]) got a key before it was completely written"
            raise Violation(Family.PUBLISH_AFTER_WRITE, "publish", what)
        chain = request.chain(place, (place + 1) * size, self.pool.chains)
        self.pool.publish(seq, place)
        self.counts["published"] += 1
        self._learn(chain, e.key)

    def _place_of(self, seq: str, block: int) -> int | None:
        """Where the block stands in the sequence's table."""
        return next((h[2] for h in self.pool.holders.get(block, ()) if h[0] == "seq_at" and h[1] == seq), None)

    def _learn(self, chain: Chain, key: bytes) -> None:
        """One key for one content: the target's key and the chain must determine each other."""
        if self._keys.setdefault(chain, key) != key:
            raise Violation(Family.KEY, "equal_content_equal_key", f"{chain} has two keys")
        if self._chains.setdefault(key, chain) is not chain:
            what = f"{chain} and {self._chains[key]} (or their contexts) share a key"
            raise Violation(Family.KEY, "equal_key_equal_content", what)

    def _chain_of(self, e: CacheEvent) -> Chain:
        """What a key that is reported as removed led to."""
        chain = self._chains.get(e.key)
        if e.kind != "removed" or chain is None or chain not in self.pool.cached:
            raise Violation(Family.MAP_TRUTH, "removed_was_stored", f"a key of block {e.block_id} that was not there")
        if self.pool.entry[chain] != e.block_id:
            what = f"the key of block {self.pool.entry[chain]} is reported as removed from block {e.block_id}"
            raise Violation(Family.MAP_TRUTH, "removed_block", what)
        return chain

    def _evicted(self, chain: Chain) -> None:
        self.counts["evictions"] += 1
        self.pool.evict(chain)

    def _infer(self) -> None:
        """Find out which keys a target without events has dropped."""
        if self.sees(Capability.EVENTS) or not self.pool.cached:
            return
        for chain in self._dropped():
            self._evicted(chain)

    def _dropped(self) -> list[Chain]:
        pool, target = self.pool, self.target
        if self.sees(Capability.CACHED_KEYS):
            left = set(target.cached().values())
            return [c for c in pool.cached if pool.entry[c] not in left]
        if self.sees(Capability.FREE_IDS):
            free = target.free_ids()
            return [c for c in pool.cached if pool.entry[c] in free]
        if self.sees(Capability.REF_COUNTS):
            return [c for c in pool.cached if not target.ref_count(pool.entry[c])]
        return []

    def _hidden_eviction(self, block: int) -> None:
        """A target that shows no events has evicted what it hands out, if only the cache held it."""
        if self.sees(Capability.EVENTS):
            return
        held = self.pool.holders.get(block, set())
        if len(held) == 1 and next(iter(held))[0] == "cache_of":
            self._evicted(next(iter(held))[1])

    def _gone(self, seq: str, index: int) -> bool:
        """Whether a key that was not matched may have been evicted unseen; it has been, then."""
        size = self.config.block_size
        chain = self.pool.requests[seq].chain(index, (index + 1) * size, self.pool.chains)
        if len(self.pool.holders[self.pool.entry[chain]]) > 1:
            return False
        self._evicted(chain)
        return True

    def _published(self, seq: str, found: Sequence[CacheEvent]) -> None:
        """After a call that publishes, every full computed block has its key."""
        if not self.config.enable_prefix_cache:
            return
        missing = self.pool.publishable(seq)
        if self.sees(Capability.EVENTS):
            if missing:
                place = missing[0]
                what = f"{seq}[{place}] (block {self.pool.block(seq, place)}) is full and written, and has no key"
                raise Violation(Family.MAP_TRUTH, "published", what)
            return
        for place in missing:
            self.pool.publish(seq, place)
            self.counts["published"] += 1

    def _same_table(self, seq: str) -> None:
        shown, known = list(self.target.block_table(seq)), self.pool.table(seq)
        if shown != known:
            at = next((i for i, (a, b) in enumerate(zip(shown, known, strict=False)) if a != b), None)
            what = f"{len(shown)} blocks, expected {len(known)}"
            if at is not None:
                what = f"block {shown[at]} at place {at}, expected block {known[at]}"
            raise Violation(Family.MAP_TRUTH, "table", f"the table of {seq} has {what}")

    def _read(self, seq: str, start: int, stop: int, counted: bool = True) -> Tags:
        if not self.sees(Capability.CONTENTS) or stop <= start:
            return np.empty(0, np.int64)
        found = np.asarray(self.target.read(seq, start, stop))
        wanted = self._wanted(seq, stop)[start:stop]
        if found.tobytes() != wanted.tobytes() and not np.array_equal(found, wanted):
            at = start + int(np.argmax(found != wanted)) if len(found) == len(wanted) else start
            block = self.pool.block(seq, at // self.config.block_size)
            part = f", read from token {start} on," if start else ""
            what = f"token {at} of {seq} (block {block}){part} reads as other content than was computed for it"
            raise Violation(Family.CONTENT, "content", what)
        self.counts["reads"] += counted
        return found

    def _wanted(self, seq: str, stop: int) -> Tags:
        tags, state = self._tags[seq]
        request = self.pool.requests[seq]
        if len(tags) < stop:
            if state is None:
                tags, state = tags[:0], context_start(request.context)
            more, state = chain_tags(np.array(request.tokens[len(tags) :], dtype=np.int64), state)
            tags = np.concatenate((tags, more))
            self._tags[seq] = (tags, state)
        return tags

    def _tag(self, seq: str, wanted: int | Tags) -> Tags:
        if not isinstance(wanted, int):
            return wanted
        done = self.pool.requests[seq].computed
        return self._wanted(seq, done + wanted)[done : done + wanted]

    def compare(self) -> None:
        """Compare everything that the target shows with the model."""
        pool, target = self.pool, self.target
        if self.sees(Capability.FREE_IDS):
            _same_ids("free", target.free_ids(), pool.free)
        if self.sees(Capability.FREE_COUNT):
            shown, known = target.free_count(), len(pool.free)
            if shown != known and not (self._hides and known <= shown <= known + pool.reclaimable):
                what = f"the target counts {shown} free blocks, there are {known}"
                raise Violation(Family.PARTITION, "free_count", what)
        if self.sees(Capability.USED_COUNT) and target.used_count() != pool.used:
            what = f"the target counts {target.used_count()} used blocks, {pool.used} are held by sequences"
            raise Violation(Family.USAGE, "used_count", what)
        if self.sees(Capability.REF_COUNTS):
            self._compare_references()
        if self.sees(Capability.CACHED_KEYS):
            self._compare_keys()
        for seq, request in pool.requests.items():
            self._same_table(seq)
            if target.num_computed(seq) != request.computed:
                what = f"{seq} has {target.num_computed(seq)} computed tokens, expected {request.computed}"
                raise Violation(Family.CONTENT, "computed", what)
            self._read(seq, 0, request.computed)
            self._read_parts(seq, request.computed)

    def _read_parts(self, seq: str, computed: int) -> None:
        """After a change also what is between two places: to the end, and a single token."""
        if computed > 1 and self._parts.get(seq) != computed:
            start = 1 + 5 * computed % (computed - 1)
            self._read(seq, start, computed, counted=False)
            self._read(seq, computed // 2, computed // 2 + 1, counted=False)
        self._parts[seq] = computed

    def _compare_references(self) -> None:
        count, holders = self.target.ref_count, self.pool.holders
        for block in range(1, self.config.num_blocks):
            shown, known = count(block), len(holders.get(block, ()))
            if shown != known:
                what = f"block {block} has reference count {shown} and is {self.holders(block)}"
                raise Violation(Family.HOLDERS, "ref_count", what)

    def _compare_keys(self) -> None:
        shown, entry = self.target.cached(), self.pool.entry
        if self.sees(Capability.EVENTS) and shown == {self._keys.get(c): entry[c] for c in self.pool.cached}:
            return
        ids = Counter(shown.values())
        known = Counter(entry[c] for c in self.pool.cached)
        for block in ids.keys() | known.keys():
            if ids[block] != known[block]:
                what = f"block {block} has {ids[block]} keys, expected {known[block]}"
                raise Violation(Family.MAP_TRUTH, "cached_keys", what)
        if shown and not self.sees(Capability.EVENTS):
            self._learn_shown(shown)
        for key, block in shown.items():
            chain = self._chains.get(key)
            if chain is not None and self.pool.entry.get(chain) != block:
                raise Violation(Family.MAP_TRUTH, "cached_keys", f"the key of {chain} leads to block {block}")

    def _learn_shown(self, shown: Mapping[bytes, int]) -> None:
        """Keys that were not reported as events are known by their blocks."""
        chains = {self.pool.entry[c]: c for c in self.pool.cached}
        for key, block in shown.items():
            self._learn(chains[block], key)

    def sweep(self) -> None:
        """All observations, and every invariant of the spec on the whole state."""
        self.compare()
        for broken in self.pool.machine.sweep():
            raise Violation(Family.INVARIANT, broken.statement.name, str(broken))

    def drain(self) -> None:
        """End all sequences and outside holders, drop the cache: every usable block must be free."""
        for name in list(self._handles):
            self.release(name)
        for seq in list(self.pool.requests):
            self.abort(seq)
        self.reset()
        self.compare()
        usable = self.config.num_blocks - 1
        if len(self.pool.free) != usable:
            raise Violation(Family.DRAIN, "drain", f"{len(self.pool.free)} of {usable} blocks are free at the end")

    # -- small things --------------------------------------------------------------------------------------------

    def _unknown(self, seq: str) -> str | None:
        return None if seq in self.pool.requests else f"{seq} is unknown"

    def _bad_write(self, seq: str, count: int) -> str | None:
        if seq not in self.pool.requests:
            return f"{seq} is unknown"
        request = self.pool.requests[seq]
        room = self.pool.size(seq) * self.config.block_size
        if count > min(room, len(request.tokens)) - request.computed:
            return f"{count} tokens written by {seq} with room for {room} and {len(request.tokens)} known"
        return None

    def may_refuse(self, seq: str, count: int) -> bool:
        """Whether a write may be done or be an error: it would touch blocks with other holders, and no allocate has
        asked for it since they came."""
        if seq not in self.pool.requests:
            return False
        end = self.pool.requests[seq].computed + count
        return end > self._prepared.get(seq, 0) and bool(self.pool.writes_shared(seq, end))

    def _new_holders(self, *seqs: str) -> None:
        """Blocks of these sequences got other holders: room that was granted before may have to be copied first."""
        for seq in seqs:
            self._prepared.pop(seq, None)

    def _forget(self, seq: str) -> None:
        self._new_holders(seq)
        self.pool.forget(seq)
        self._tags.pop(seq, None)
        self._parts.pop(seq, None)

    # the observations of the target itself, for those who drive the acceptor as a target

    def block_table(self, seq: str) -> Sequence[int]:
        return self.target.block_table(seq)

    def num_computed(self, seq: str) -> int:
        return self.target.num_computed(seq)

    def free_count(self) -> int:
        return self.target.free_count()

    def used_count(self) -> int:
        return self.target.used_count()

    def drain_events(self) -> Sequence[CacheEvent]:
        """The changes of the cache by the last operation; the acceptor has judged them."""
        return self.events


def context_start(context: Context) -> ChainState:
    """Where the tags of a context's tokens begin: the same tokens leave other contents under another adapter."""
    if context == Context():
        return CHAIN_START
    return ChainState(xxhash.xxh3_64_intdigest(msgspec.json.encode(context)), 0)


def _same_ids(name: str, shown: set[int], known: set[int]) -> None:
    if shown == known:
        return
    extra, lost = sorted(shown - known), sorted(known - shown)
    if 0 in extra:
        raise Violation(Family.RESERVED, "padding_free", f"the padding block is {name} for the target")
    what = f"blocks {extra} are {name} for the target only" if extra else f"blocks {lost} should be {name} and are not"
    raise Violation(Family.PARTITION, f"{name}_ids", what)


def _last_frame(error: Exception) -> str:
    """Where an exception was raised: the file from the current folder on, and the line."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if f.filename != __file__]
    if not inside:
        return ""
    path = Path(inside[-1].filename)
    with contextlib.suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return f" ({path}:{inside[-1].lineno})"


def _other(holder: tuple[Any, ...]) -> str:
    return f"the cache of {holder[1]}" if holder[0] == "cache_of" else f"the outside holder {holder[1]}"


def _twice(batch: Sequence[tuple[str, int | Tags]]) -> str | None:
    named = Counter(seq for seq, _ in batch)
    return next((f"{seq} is named twice in one write" for seq, n in named.items() if n > 1), None)


def _count(tags: int | Tags) -> int:
    return tags if isinstance(tags, int) else len(tags)


def _bad_tokens(tokens: Sequence[int]) -> str | None:
    return "a negative token" if len(tokens) and min(tokens) < 0 else None
