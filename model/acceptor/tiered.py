"""The judge of a pool with a host tier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np

from kvspec.model.acceptor.comparing import not_drained, same_ids
from kvspec.model.acceptor.contents import context_start
from kvspec.model.acceptor.judging import Look
from kvspec.model.acceptor.operating import bad_tokens
from kvspec.model.acceptor.ranked import PoolAcceptor
from kvspec.model.compiled import StepError
from kvspec.model.conformance import (
    CacheEvent,
    Capability,
    Context,
    HostTarget,
    MisuseError,
    PoolConfig,
    Tags,
    Target,
    TargetError,
    Transfer,
)
from kvspec.model.executable import Copy, Prefetch, TieredPool
from kvspec.model.promises import POOL_STEP_FAMILIES, TIER_CHAPTER, TIER_STEP_FAMILIES, Family, Violation
from kvspec.model.workload import chain_tags
from kvspec.model.world import Chain

_NO_COPY: Final = -1
_MAY_WAIT: Final = frozenset({"cache", "deallocate", "preempt", "abort", "truncate"})
"""Calls for a sequence that need no device memory, which a target may refuse to make while there is none."""


class TieredAcceptor(PoolAcceptor):
    """A pool with a host tier together with its judge; its operations are those of `HostTarget`.

    A transfer is told by its place among all that have not ended, of all ranks, in the order in which they were seen:
    call after call, in one call rank after rank, and of a rank in the order in which the target shows them.

    Args:
        target, config, every, watch, pool: see `PoolAcceptor`.

    Raises:
        TargetError: the target does not show what a pool with a host tier must show.

    Raises (by the operations):
        Violation: the target did something that the spec does not allow.
        MisuseError: the call was an error, as expected, and the target said so and kept its state.
    """

    step_families = POOL_STEP_FAMILIES | TIER_STEP_FAMILIES
    target: HostTarget
    pool: TieredPool

    def __init__(
        self, target: Target, config: PoolConfig, *, every: int = 1, watch: bool = True, pool: TieredPool | None = None
    ) -> None:
        super().__init__(target, config, every=every, watch=watch, pool=pool or TieredPool(config, watch))
        self.target = cast(HostTarget, target)
        self._host_news: list[tuple[int, CacheEvent]] = []
        """Keys that have come to the host by the call that is explained."""
        self._overtaken: set[tuple[int, int]] = set()
        """Ranks and host blocks to which something came that is from before a reset, or still comes."""
        if not self.sees(Capability.HOST):
            raise TargetError(f"lacks the capability {Capability.HOST}, without which this pool cannot be judged")

    def _judge(
        self,
        verb: str,
        arguments: tuple[object, ...],
        call: Callable[[], Any],
        explain: Callable[[Any], None],
        misuse: str | None,
        either: bool = False,
    ) -> Any:
        if self.pool.asleep and verb in ("allocate", "allocate_shared"):
            misuse = misuse or "the device sleeps"
        either = either or (self.pool.asleep and verb in _MAY_WAIT and misuse is None)
        return super()._judge(verb, arguments, call, explain, misuse, either)

    def _concerned(self, verb: str, arguments: tuple[object, ...]) -> None:
        match verb, arguments:
            case "sleep", _:
                self._concerns(None)
            case "transfer_finish", (int(at), _) if 0 <= at < len(self.pool.transfers()):
                self._concerns([self.pool.copies[self.pool.transfers()[at]].rank])
            case ("transfer_finish" | "start_transfers" | "wake"), _:
                self._concerns([])
            case ("begin_prefetch" | "plan_prefetch" | "finish_prefetch"), (str(name), *_):
                self._concerns([self.pool.prefetches[name].rank] if name in self.pool.prefetches else [])
            case _:
                super()._concerned(verb, arguments)

    # -- for those who drive it as a target -----------------------------------------------------------------------

    def num_transfers(self) -> int:
        """Copies that have not ended."""
        return len(self.pool.transfers())

    def is_loading(self, seq: str) -> bool:
        """Whether a sequence waits for copies."""
        return self.pool.is_loading(seq)

    # -- transfers -----------------------------------------------------------------------------------------------

    def start_transfers(self) -> None:
        """All planned copies begin."""

        def explain(_: Any) -> None:
            self._events()
            self.pool.start_transfers()

        self._judge("start_transfers", (), lambda: self.target.start_transfers(), explain, None)

    def transfer_finish(self, at: int, ok: bool = True) -> None:
        """A copy is complete, or has failed: the one at that place among those that have not ended."""
        known = self.pool.transfers()
        number = known[at] if 0 <= at < len(known) else _NO_COPY
        misuse = None if number in self.pool.begun else _not_running(at, len(known))

        def explain(_: Any) -> None:
            self._events()
            copy = self.pool.copies[number]
            self.pool.end_copy(number, ok)
            if not ok and copy.direction == "offload":
                self._overtaken.discard((copy.rank, copy.host))
            self._entered([copy])
            self.counts["copied" if ok else "copies failed"] += 1
            if copy.seq is not None:
                self._loaded(copy.seq)
            self._let_go()

        with self._in_words(misuse):
            call = lambda: self.target.transfer_finish(number, ok)  # noqa: E731
            self._judge("transfer_finish", (at, ok), call, explain, misuse)

    def _loaded(self, seq: str) -> None:
        """A copy that a sequence waited for has ended: it goes on behind what is complete."""
        done, shown, leading = self.pool.requests[seq].computed, self.target.num_computed(seq), self.pool.leading(seq)
        running = self.pool.is_loading(seq)
        if shown != leading and not (running and done <= shown < leading):
            what = f"{seq} goes on behind {shown} tokens; {leading} are computed or have been loaded"
            raise Violation(Family.TIERS, "load_counted", what)
        self.pool.go_on(seq, shown)
        self.counts["tokens loaded"] += shown - done
        self._read(seq, done, shown)

    def _entered(self, copies: Iterable[Copy]) -> None:
        """What has come to the host can be found there: nothing makes room for something else meanwhile."""
        for copy in copies:
            host = self.pool.hosts()[copy.rank]
            is_new = copy.key in host.cached and host.entry[copy.key] == copy.host and copy.direction != "load"
            if not is_new:
                continue  # the key was there, or is not to be entered any more
            if not self._is_entered(copy):
                what = f"a copy of {copy.key} to host block {copy.host} is complete, and it cannot be found"
                raise Violation(Family.TIERS, "host_lost", what)

    def _is_entered(self, copy: Copy) -> bool:
        if not self.sees(Capability.EVENTS):
            return copy.host in self.target.host_cached(copy.rank).values()
        new = next((e for r, e in self._host_news if r == copy.rank and e.block_id == copy.host), None)
        if new is not None:
            self._host_news.remove((copy.rank, new))
            self._learn(copy.key, new.key)
        return new is not None

    # -- sequences -----------------------------------------------------------------------------------------------

    def _bad_write(self, seq: str, count: int) -> str | None:
        bad = super()._bad_write(seq, count)
        if bad is None and count and self.pool.is_loading(seq):
            return f"{count} tokens written by {seq}, which is being loaded"
        return bad

    def may_refuse(self, seq: str, count: int) -> bool:
        waits = seq in self.pool.requests and self.pool.is_loading(seq)
        return waits or super().may_refuse(seq, count)

    def _writable(self, seq: str, num_tokens: int) -> None:
        self._plans(self._shown_transfers())  # a block that is being filled for the sequence is its own
        super()._writable(seq, num_tokens)

    def _forget(self, seq: str) -> None:
        self._plans(self._shown_transfers(), strict=False)  # a copy that begins holds what the sequence lets go of
        super()._forget(seq)

    def hold(self, seq: str, index: int, name: str) -> None:
        """Always an error: only copies hold blocks beside sequences."""
        misuse = "there are no outside holders in a pool with a host tier"
        inside = seq in self.pool.requests and 0 <= index < self.pool.size(seq)
        block, rank = (self.pool.block(seq, index), self.rank_of(seq)) if inside else (0, 0)
        hold = getattr(self.target, "hold", _no_hold)  # it need not have one
        with self._in_words(misuse):
            self._judge("hold", (seq, index, name), lambda: hold(block, rank), _never, misuse)

    # -- following the host tier ---------------------------------------------------------------------------------

    def _events(self, seq: str | None = None) -> Any:
        found = super()._events(seq)
        self._follow_hosts()
        return found

    def _let_go(self) -> None:
        self._follow_hosts()
        if self._late:
            self._given_up(self._shown_transfers(), strict=False)
        super()._let_go()

    def _follow_hosts(self) -> None:
        """Keys that cannot be found on the host any more were evicted."""
        for rank in range(self.config.num_ranks):
            known = self._late_of(self.pool.evict_host, rank)
            for key in self._gone_from_host(rank):
                if key in known:
                    continue
                if self._elsewhere(rank):
                    raise self._isolation(rank, f"the key {key} of the host has gone")
                self.counts["host evictions"] += 1
                self._dropped_by(self.pool.evict_host, rank, key)

    def _gone_from_host(self, rank: int) -> list[Chain]:
        host = self.pool.hosts()[rank]
        if not self.sees(Capability.EVENTS):
            shown = set(self.target.host_cached(rank).values())
            return [key for key in host.cached if host.entry[key] not in shown]
        gone = []
        for e in self.target.drain_host_events(rank):
            if e.kind == "stored":
                self._host_news.append((rank, e))
                continue
            key = self._chains.get(e.key)
            if key is None or key not in host.cached or host.entry[key] != e.block_id:
                what = f"a key of host block {e.block_id} that was not there has gone"
                raise Violation(Family.TIERS, "host_lost", what)
            gone.append(key)
        return gone

    def _unchanged(self, rule: str) -> None:
        super()._unchanged(rule)
        if self.closed or not self.sees(Capability.EVENTS):
            return
        for rank in range(self.config.num_ranks):
            for e in self.target.drain_host_events(rank):
                what = f"host block {e.block_id} was {e.kind} by a call that did nothing"
                raise Violation(Family.ATOMIC_FAILURE, rule, what)

    def _reset_done(self) -> None:
        hosts = enumerate(self.pool.hosts())
        self._overtaken |= {(rank, host.entry[key]) for rank, host in hosts for key in host.cached}
        self._overtaken |= {(c.rank, c.host) for c in self.pool.copies.values() if c.direction != "load"}
        super()._reset_done()
        if self.sees(Capability.EVENTS):
            for rank in range(self.config.num_ranks):
                self._host_news += [(rank, e) for e in self.target.drain_host_events(rank) if e.kind == "stored"]

    def _behind(self) -> None:
        if not self.closed:
            shown = self._shown_transfers()
            self._plans(shown)
            self._given_up(shown)
        for rank, e in self._host_news:
            raise self._wrongly_found(rank, e.block_id)

    def _wrongly_found(self, rank: int, block: int) -> Violation:
        """A host block can be found that must not be."""
        coming = any((c.rank, c.host) == (rank, block) and c.direction != "load" for c in self.pool.copies.values())
        is_old = (rank, block) in self._overtaken and not coming
        why = "what was copied to it is from before a reset" if is_old else "no copy to it is complete"
        return Violation(Family.TIERS, "host_visible", f"host block {block} can be found, and {why}")

    def _shown_transfers(self) -> dict[int, Transfer]:
        ranks = range(self.config.num_ranks)
        return {transfer.number: transfer for rank in ranks for transfer in self.target.transfers(rank)}

    def _plans(self, shown: Mapping[int, Transfer], strict: bool = True) -> None:
        """Copies that were planned; strictly, or as far as they can be explained yet."""
        for number, transfer in shown.items():
            if number in self.pool.copies:
                continue
            try:
                self._planned(transfer)
            except StepError:
                if strict:
                    raise

    def _planned(self, transfer: Transfer) -> None:
        if self._elsewhere(transfer.rank):
            raise self._isolation(transfer.rank, f"a {transfer.direction} was planned")
        if transfer.direction == "offload":
            self._offload_planned(transfer)
        else:
            self._load_planned(transfer)
        self.counts[f"{transfer.direction}s"] += 1

    def _offload_planned(self, transfer: Transfer) -> None:
        part = self.part(transfer.rank)
        key = next((key for key in part.cached if part.entry[key] == transfer.device_block), None)
        if key is None:
            what = f"block {transfer.device_block} is to be copied to the host and has no key"
            raise Violation(Family.TIERS, "offload_published", what)
        self.pool.begin_offload(transfer.number, transfer.rank, key, transfer.host_block)
        self._overtaken.discard((transfer.rank, transfer.host_block))

    def _load_planned(self, transfer: Transfer) -> None:
        seq, index, pool = transfer.seq, transfer.index, self.pool
        at_home = seq is not None and seq in pool.requests and self.rank_of(seq) == transfer.rank
        if seq is None or not at_home or not 0 <= index < pool.size(seq):
            what = f"a load is planned to place {index} of {seq}, which is not on rank {transfer.rank}"
            raise Violation(Family.TIERS, "load_target", what)
        if pool.block(seq, index) != transfer.device_block:
            what = f"{seq}[{index}] is in block {pool.block(seq, index)}, and loaded to block {transfer.device_block}"
            raise Violation(Family.TIERS, "load_target", what)
        host = self.pool.hosts()[transfer.rank]
        known = (index + 1) * self.config.block_size <= len(pool.requests[seq].tokens)
        key = pool.key(seq, index) if known else None
        if key is None or key not in host.cached or host.entry[key] != transfer.host_block:
            what = f"{seq}[{index}] is loaded from host block {transfer.host_block}, which does not have its tokens"
            raise Violation(Family.TIERS, "load_source", what)
        stop, limit = (index + 1) * self.config.block_size, pool.limit(seq, self.hit_limit)
        if stop > limit:
            what = f"{seq} is loaded up to token {stop - 1}; of its tokens {limit} may be hit at most"
            raise Violation(Family.TIERS, "load_limit", what)
        pool.begin_load(transfer.number, seq, index)

    def _given_up(self, shown: Mapping[int, Transfer], strict: bool = True) -> None:
        """Copies that are not shown any more: only those that had not begun, and that nobody waits for; strictly, or as
        far as it is known yet that nobody does."""
        for number in self.pool.transfers():
            if number in shown:
                continue
            copy = self.pool.copies[number]
            if number not in self.pool.begun and copy.seq is None and copy.direction == "load":
                self.pool.end_copy(number, False)
                self._retry()
            elif strict:
                why = "has begun" if number in self.pool.begun else "is still wanted"
                raise Violation(Family.TIERS, "copy_kept", f"the {copy.direction} {number} has gone, and {why}")

    # -- all tiers -----------------------------------------------------------------------------------------------

    def sleep(self) -> None:
        """The device memory is given up."""
        self.needs(Capability.SLEEP)
        misuse = "the device sleeps" if self.pool.asleep else None
        misuse = misuse or (None if self.pool.is_idle() else "blocks of the device are in use")

        def explain(_: Any) -> None:
            for rank in range(self.config.num_ranks):
                self._forgotten(rank, self._drain_of(rank))
            self.pool.sleep()

        self._judge("sleep", (), lambda: self.target.sleep(), explain, misuse)

    def wake(self) -> None:
        """There is device memory again."""
        self.needs(Capability.SLEEP)
        misuse = None if self.pool.asleep else "the device is awake"

        def explain(_: Any) -> None:
            self._events()
            self.pool.wake()

        self._judge("wake", (), lambda: self.target.wake(), explain, misuse)

    # -- from a store --------------------------------------------------------------------------------------------

    def begin_prefetch(self, name: str, tokens: Sequence[int], context: Context | None = None, rank: int = 0) -> None:
        """A store is asked for leading blocks of these tokens."""
        self.needs(Capability.PREFETCH)
        context = context or Context()
        misuse = f"the prefetch {name} has begun already" if name in self.pool.prefetches else bad_tokens(tokens)
        misuse = misuse or self._bad_rank(rank)

        def explain(_: Any) -> None:
            self._events()
            self.pool.begin_prefetch(name, tokens, context, rank)

        call = lambda: self.target.begin_prefetch(name, tokens, context, rank)  # noqa: E731
        self._judge("begin_prefetch", (name,), call, explain, misuse)

    def plan_prefetch(self, name: str, num_blocks: int) -> list[int]:
        """The store has so many leading blocks; the places of those that are to come."""
        self.needs(Capability.PREFETCH)
        found = self.pool.prefetches.get(name)
        full = 0 if found is None else len(found.request.tokens) // self.config.block_size
        misuse = None if found is not None else f"the prefetch {name} has not begun"
        if found is not None and (found.planned is not None or not 0 <= num_blocks <= full):
            misuse = f"{num_blocks} of {full} blocks are planned, or a second time"

        def explain(planned: Sequence[tuple[int, int]]) -> None:
            self._events()
            places = [index for index, _ in planned]
            if places != sorted(set(places)) or not all(0 <= index < num_blocks for index in places):
                what = f"places {places} are planned, of {num_blocks} leading blocks"
                raise Violation(Family.TIERS, "prefetch_places", what)
            self._not_there(name, places)
            self.pool.plan_prefetch(name, planned)
            blocks = {(self.pool.prefetches[name].rank, block) for _, block in planned}
            self._overtaken -= blocks
            if self.pool.prefetches[name].is_old:
                self._overtaken |= blocks

        call = lambda: self.target.plan_prefetch(name, num_blocks)  # noqa: E731
        planned = self._judge("plan_prefetch", (name, num_blocks), call, explain, misuse)
        return [index for index, _ in planned]

    def _not_there(self, name: str, places: Sequence[int]) -> None:
        """What is planned first is not among the leading blocks that the host has."""
        host = self.pool.hosts()[self.pool.prefetches[name].rank]
        if places and all(self.pool.prefetched(name, index) in host.cached for index in range(places[0] + 1)):
            what = f"place {places[0]} is planned, and the host has that block and all before it"
            raise Violation(Family.TIERS, "prefetch_places", what)

    def finish_prefetch(self, name: str, num_arrived: int) -> None:
        """So many of the planned blocks have come."""
        self.needs(Capability.PREFETCH)
        found = self.pool.prefetches.get(name)
        planned = [] if found is None or found.planned is None else found.planned
        misuse = None if found is not None and found.planned is not None else f"the prefetch {name} has no plan"
        if misuse is None and not 0 <= num_arrived <= len(planned):
            misuse = f"{num_arrived} blocks of {len(planned)} have come"

        def explain(_: Any) -> None:
            self._events()
            copies = [self.pool.copies[name, index] for index, _ in planned]
            self._overtaken -= {(copy.rank, copy.host) for copy in copies[num_arrived:]}
            self.pool.finish_prefetch(name, num_arrived)
            self._entered(copies)
            self.counts["fetched"] += num_arrived
            self._let_go()

        if num_arrived < 0:
            raise MisuseError("finish_prefetch: fewer than no blocks, which no target can be told")
        contents = [] if found is None else self._contents(found, [index for index, _ in planned])
        blocks = [*contents, *[np.zeros(self.config.block_size, np.int64)] * num_arrived][:num_arrived]
        call = lambda: self.target.finish_prefetch(name, blocks)  # noqa: E731
        self._judge("finish_prefetch", (name, num_arrived), call, explain, misuse)

    def _contents(self, found: Prefetch, planned: Sequence[int]) -> list[Tags]:
        """What the store has of each planned block."""
        size = self.config.block_size
        tags, _ = chain_tags(np.array(found.request.tokens, np.int64), context_start(found.request.context))
        return [tags[index * size : (index + 1) * size] for index in planned]

    # -- comparing -----------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare everything that the target shows with the model."""
        super().compare()
        for rank in range(self.config.num_ranks):
            try:
                self._compare_host(rank)
            except Violation as violation:
                if self._at() and self._elsewhere(rank):
                    raise self._isolation(rank, violation.what) from violation
                raise
        self._compare_transfers()

    def _compare_host(self, rank: int) -> None:
        host, shown = self.pool.hosts()[rank], self.target.host_cached(rank)
        blocks = {host.entry[key]: key for key in host.cached}
        for key, block in shown.items():
            if block not in blocks:
                raise self._wrongly_found(rank, block)
            self._learn(blocks[block], key)
        lost = blocks.keys() - set(shown.values())
        if lost:
            what = f"host block {min(lost)} cannot be found, and has the tokens of {blocks[min(lost)]}"
            raise Violation(Family.TIERS, "host_lost", what)
        same_ids("host block", self.target.host_free_ids(rank), host.free)

    def _compare_transfers(self) -> None:
        for number, transfer in self._shown_transfers().items():
            copy = self.pool.copies.get(number)
            if copy is None:
                what = f"a {transfer.direction} was planned by a call that did nothing"
                raise Violation(Family.TIERS, "copy_kept", what)
            shown = (transfer.direction, transfer.rank, transfer.device_block, transfer.host_block)
            if shown != (copy.direction, copy.rank, copy.device, copy.host):
                raise Violation(Family.TIERS, "copy_kept", f"the {copy.direction} {number} is shown as {transfer}")
            if transfer.started != (number in self.pool.begun):
                shown_as, was = ("begun", "has not") if transfer.started else ("planned", "has")
                what = f"the {copy.direction} {number} is shown as {shown_as}, and it {was} begun"
                raise Violation(Family.TIERS, "copy_begun", what)

    def _of_ranks(self) -> Iterator[Look]:
        yield from super()._of_ranks()
        yield Look("transfers", Capability.HOST)
        yield Look("host_free_ids", Capability.HOST)
        yield Look("host_cached", Capability.HOST)
        yield Look("drain_host_events", Capability.EVENTS)

    def drain(self) -> None:
        """End everything, in both tiers: all must be free."""
        if self.pool.asleep:
            self.wake()
        for name, prefetch in list(self.pool.prefetches.items()):
            if prefetch.planned is None:
                self.plan_prefetch(name, 0)
            self.finish_prefetch(name, 0)
        for seq in list(self.pool.requests):
            self.abort(seq)
        if self.pool.transfers():
            self.start_transfers()
        while self.pool.transfers():
            self.transfer_finish(0, False)
        super().drain()

    def drained(self) -> None:
        """When everything was given back and all keys are dropped, everything is free in both tiers."""
        super().drained()
        usable = self.config.num_host_blocks - 1
        for host in self.pool.hosts():
            if len(host.free) != usable:
                not_drained(len(host.free), usable, "host blocks")

    def _step_words(self, error: StepError) -> Sequence[str]:
        match error.event.name, error.arguments:
            case "offload_started" | "fetch_started", (_, _, int(block)):
                return [f"host block {block} is {self._on_host(rank, block)}" for rank in sorted(self._at() or ())]
        return super()._step_words(error)

    def _on_host(self, rank: int, block: int) -> str:
        """What a host block is, in words."""
        host = self.pool.hosts()[rank]
        keys = [f"that of {key}" for key in host.cached if host.entry[key] == block]
        copies = [c for c in self.pool.copies.values() if (c.rank, c.host) == (rank, block)]
        ends = ["the padding block"] if block == 0 else [f"an end of a copy of {copy.key}" for copy in copies]
        return ", ".join([*keys, *ends]) or "free"

    def _chapter_of(self, event: str) -> str:
        return TIER_CHAPTER if event in TIER_STEP_FAMILIES else super()._chapter_of(event)


def _not_running(at: int, count: int) -> str:
    """Why the copy at a place cannot end, where so many have not ended."""
    if 0 <= at < count:
        return f"copy {at} of {count} has not begun"
    left = f"{count} {'has' if count == 1 else 'have'} not ended" if count else "all have ended"
    return f"there is no copy {at}; {left}"


def _no_hold(block_id: int, rank: int) -> int:
    raise MisuseError("there are no outside holders in a pool with a host tier")


def _never(_: Any) -> None:
    raise AssertionError("it is always an error")
