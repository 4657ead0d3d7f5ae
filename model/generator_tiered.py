"""Operations for pools with a host tier: copies are late, end in any order and fail, and the store gives less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import kvspec.model.operations as ops
from kvspec.model.conformance import Capability, PoolConfig
from kvspec.model.executable import TieredPool
from kvspec.model.generator import Generator, Makers, Source, ranked_config, table
from kvspec.model.operations import AnyOperation
from kvspec.model.world import chain_tokens, context_of

_LOADING: Final = table(wait=55, allocate=12, append=10, truncate=8, cache=4, preempt=5, abort=3, deallocate=3)
"""What is next for a sequence that waits for copies."""

_GAP_RATE: Final = 0.4
_OLD: Final = table(append=45, cache=25, deallocate=20, truncate=5, preempt=5)
"""What is next for one that is computed and came before the last reset: what it computes now is of no use to others."""


_PARTLY: Final = table(allocate=60, write=14, append=10, preempt=6, truncate=5, cache=5)
"""For one that has computed a part of a block that the host has: to load it would cost what is computed if it fails."""


def tiered_config(source: Source, *, sanitizer: bool = False) -> PoolConfig:
    """A small pool of 1 or 2 ranks, with a host tier that is smaller or larger than the device."""
    plain = ranked_config(source, linear=False)
    return PoolConfig(
        num_blocks=source.integer(3, 9),
        block_size=source.integer(1, 3),
        sanitizer=sanitizer,
        num_ranks=source.choice((1, 1, 1, 2)),
        num_single_blocks=plain.num_single_blocks,
        num_host_blocks=source.choice((2, 3, 4, 6, 9, 12, 16)),
    )


class TieredGenerator(Generator):
    """Makes operations for a pool with a host tier; see `Generator`."""

    pool: TieredPool

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._can_sleep = Capability.SLEEP in self.capabilities
        self._has_store = Capability.PREFETCH in self.capabilities
        self._failure_rate = self.source.choice((0.0, 0.1, 0.1, 0.5))
        self._haste = self.source.choice((0.05, 0.3, 0.6))
        self._sleep_rate = self.source.choice((0.0, 0.3))

    # -- valid ---------------------------------------------------------------------------------------------------

    def _valid(self) -> AnyOperation:
        source, pool = self.source, self.pool
        if pool.asleep and source.chance(0.4):
            return ops.Wake()
        if not (pool.asleep or pool.requests) and pool.copies and source.chance(0.2):
            return ops.Reset()  # some targets refuse it while a sequence exists
        if pool.transfers() and source.chance(self._haste):
            return self._transfer()
        if self._has_store and source.chance(0.25 if pool.prefetches else 0.04):
            return self._prefetch()
        if pool.asleep:
            return self._start() if len(pool.requests) < self._most else ops.Wake()
        if self._can_sleep and pool.is_idle() and source.chance(self._sleep_rate):
            return ops.Sleep()
        if source.chance(0.01):
            return ops.Reset()
        if source.chance(0.05) and any(host.cached for host in pool.hosts()):
            # What the device has as well is not loaded.
            return ops.Evict(self.config.num_blocks, source.integer(0, self.config.num_ranks - 1))
        return super()._valid()

    def _row(self, seq: str) -> Makers:
        if self._refused:
            return super()._row(seq)
        request = self.pool.requests[seq]
        if self.pool.is_old(seq) and request.computed == len(request.tokens):
            return _OLD
        if self.pool.is_loading(seq):
            return _LOADING
        partly = request.computed % self.config.block_size and self._host_has(seq)
        return _PARTLY if partly else super()._row(seq)

    def _host_has(self, seq: str) -> bool:
        """Whether the host has the block in which the next token is computed."""
        request, index = self.pool.requests[seq], self.pool.requests[seq].computed // self.config.block_size
        known = (index + 1) * self.config.block_size <= len(request.tokens)
        return known and self.pool.key(seq, index) in self.pool.hosts()[self.pool.rank(seq) or 0].cached

    def _some(self, seq: str) -> int:
        """As for every pool; of a block that the host has, since a load has failed, often a part."""
        least = self.config.block_size - 1
        if least and self._host_has(seq) and self.source.chance(0.6):
            return min(self._room(seq), self.source.integer(1, least))
        return super()._some(seq)

    def _start(self) -> AnyOperation:
        """A prompt that begins with what only the host has, rather more than less of it, or as for every pool."""
        parts = zip(self.pool.parts(), self.pool.hosts(), strict=True)
        found = sorted({c for device, host in parts for c in host.cached - device.cached}, key=lambda c: c.number)
        if not found or not self.source.chance(0.4):
            return super()._start()
        chain = max((self.source.choice(found) for _ in range(3)), key=lambda c: len(chain_tokens(c)))
        more = self._tokens(self.source.integer(1, self.config.block_size))
        return ops.Start(self._new_name(), (*chain_tokens(chain), *more), context_of(chain))

    def _wait(self, seq: str) -> AnyOperation:
        return self._transfer() if self.pool.transfers() else self._append(seq)

    def _transfer(self) -> AnyOperation:
        """What is planned begins, or one of those that run ends."""
        known = self.pool.transfers()
        running = [at for at, number in enumerate(known) if number in self.pool.begun]
        if not running or (len(running) < len(known) and self.source.chance(0.4)):
            return ops.StartTransfers()
        at = running[0] if self.source.chance(0.5) else self.source.choice(running)
        return ops.TransferFinish(at, not self.source.chance(self._rate_of(known[at])))

    def _rate_of(self, number: int) -> float:
        """How often a copy fails: one of several loads of a sequence more often, so that there are gaps."""
        seq = self.pool.copies[number].seq
        several = seq is not None and len(self.pool.loads(seq)) > 1
        return max(self._failure_rate, _GAP_RATE) if several and self._failure_rate else self._failure_rate

    def _prefetch(self) -> AnyOperation:
        """A prefetch begins, or goes on."""
        source, prefetches = self.source, self.pool.prefetches
        if not prefetches or (len(prefetches) < 3 and source.chance(0.2)):
            return self._begin_prefetch()
        name = source.choice(tuple(prefetches))
        planned = prefetches[name].planned
        if planned is None:
            full = len(prefetches[name].request.tokens) // self.config.block_size
            return ops.PlanPrefetch(name, full if source.chance(0.6) else source.integer(0, full))
        return ops.FinishPrefetch(name, len(planned) if source.chance(0.5) else source.integer(0, len(planned)))

    def _begin_prefetch(self) -> AnyOperation:
        source = self.source
        stem = source.choice(self._stems)
        name = next(name for number in range(1, 99) if (name := f"p{number}") not in self.pool.prefetches)
        rank = source.integer(0, self.config.num_ranks - 1)
        return ops.BeginPrefetch(name, stem[: source.integer(1, len(stem))], source.choice(self._contexts), rank)

    # -- wild ----------------------------------------------------------------------------------------------------

    def _wild(self) -> AnyOperation:
        """What has to wait for a copy, or makes no sense between the tiers; or as for every pool."""
        loading = [seq for seq in self.pool.requests if self.pool.is_loading(seq)]
        if loading and self.source.chance(0.4):
            seq = self.source.choice(loading)
            return ops.Write(seq, max(1, self._room(seq)))
        return self._odd_in_tiers() if self.source.chance(0.4) else super()._wild()

    def _odd_in_tiers(self) -> AnyOperation:
        source, copies = self.source, len(self.pool.transfers())
        made: list[AnyOperation] = [
            ops.TransferFinish(source.integer(-1, copies), source.chance(0.5)),
            *((ops.Sleep(), ops.Wake()) if self._can_sleep else ()),
            ops.Hold(source.choice((*self.pool.requests, "ghost")), 0, "h0"),
        ]
        if self.pool.asleep:
            made += [ops.Allocate(seq, len(r.tokens)) for seq, r in self.pool.requests.items()]
        if self._has_store:
            name = source.choice((*self.pool.prefetches, "p0"))
            made += [
                ops.BeginPrefetch(name, (0,), rank=source.choice((-1, 0, self.config.num_ranks))),
                ops.BeginPrefetch("p0", (-1,)),
                ops.PlanPrefetch(name, source.choice((-1, 0, 99))),
                ops.FinishPrefetch(name, source.choice((0, 99))),
            ]
        return source.choice(made)

    # -- the end -------------------------------------------------------------------------------------------------

    def ending(self) -> Iterator[AnyOperation]:
        """What the store still gives is not waited for, and all copies end; then as for every pool."""
        if self.pool.asleep:
            yield ops.Wake()
        for name in tuple(self.pool.prefetches):
            if self.pool.prefetches[name].planned is None:
                yield ops.PlanPrefetch(name, 0)
            yield ops.FinishPrefetch(name, 0)
        yield from (ops.Abort(seq) for seq in tuple(self.pool.requests))
        if self.pool.transfers():
            yield ops.StartTransfers()
        while self.pool.transfers():
            yield ops.TransferFinish(0, self.source.chance(0.5))
        yield ops.Reset()


TieredGenerator.makers = {**Generator.makers, "wait": TieredGenerator._wait}
