"""A small scheduler that drives a manager with a request trace, and what it saw.

Policy, in virtual time on a grid of `ReplayOptions.step_ms`. A step does, in this order:

0. with a host tier, the copies that began in the last step end, and those that were planned since begin;
1. **arrivals** up to now join the waiting queue; one whose prompt and answer exceed what one request can have
   (`most_blocks`) is rejected;
2. **decode**: every running request, oldest admission first, appends one fresh output token and allocates room for it;
   when that is refused, the most recently admitted other request is preempted and goes to the front of the queue;
3. **admission**, first come first served, unless this step preempted: match (`allocate_shared`), then room for all
   tokens known so far. A refused request gives its hit back (`preempt`) and waits; the queue is looked at again once
   another request has given blocks back, since nothing else makes room. Up to `lookahead` requests behind a refused one
   are tried, too (not again those for which the blocks that no sequence holds look too few), until it has been passed
   `max_passes` times. A preempted request is recomputed with all its tokens;
4. one batched **write**: whole prompts of the admitted, one token of each of the others; who waits for copies from the
   host is not written, and decodes nothing, until they have ended. In a composite what was written is accepted;
5. **publication**: `cache` for those whose prompts were written, so prompt blocks can be hit from the next step on,
   never within the same; the rest is published when a request finishes (`deallocate`). What a preempted request had
   decoded is not published;
6. finished requests are deallocated, in a composite after their contents were read, and the pool is looked at.

A hit covers whole blocks, at most all tokens or all but the last (`hit_limit` of the target). With a pool that never
refuses, a request is admitted in the step ``ceil(timestamp / step_ms)``, so hits must equal
`kvspec.model.workload.shared_prefixes` with the same `step_ms`. Time in which nothing runs or waits is skipped.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from kvspec.model.conformance import CacheEvent, Capability, Context, PoolConfig, Tags
from kvspec.model.workload import (
    HitLimit,
    Request,
    Tokens,
    chain_tags,
    check_block_size,
    longest_hit,
    request_tokens,
)
from kvspec.spec.pages import end_whole

MAX_KEPT_VIOLATIONS = 100


class Driver(Protocol):
    """The operations of `kvspec.model.conformance.Target` that a replay uses; a judge may stand in between."""

    def start(self, seq: str, tokens: Sequence[int], context: Context) -> None:
        """Create a sequence."""

    def allocate_shared(self, seq: str) -> int:
        """Mount the longest published prefix; tokens hit."""

    def allocate(self, seq: str, num_tokens: int) -> bool:
        """Make room for the first `num_tokens` tokens."""

    def append(self, seq: str, tokens: Sequence[int]) -> None:
        """More known tokens."""

    def write(self, batch: Sequence[tuple[str, Tags]]) -> None:
        """One forward step."""

    def read(self, seq: str, start: int, stop: int) -> Tags:
        """Contents of computed tokens; in a composite of those in blocks that are not released."""

    def cache(self, seq: str) -> None:
        """Publish all full computed blocks."""

    def deallocate(self, seq: str) -> None:
        """Finish and publish."""

    def preempt(self, seq: str) -> None:
        """Give all blocks back, keep the tokens."""

    def abort(self, seq: str) -> None:
        """Give all blocks back and forget the sequence."""


@runtime_checkable
class HostDriver(Driver, Protocol):
    """What a replay uses beside, where there is a host tier."""

    def start_transfers(self) -> None:
        """All planned copies begin."""

    def num_transfers(self) -> int:
        """Copies that have not ended."""

    def transfer_finish(self, at: int, ok: bool) -> None:
        """A copy that has begun is complete, or has failed: the one at that place among those that have not ended."""

    def is_loading(self, seq: str) -> bool:
        """Whether a sequence waits for copies."""

    def num_computed(self, seq: str) -> int:
        """Computed tokens of a sequence."""


@runtime_checkable
class Observer(Protocol):
    """What a replay looks at after each step, as far as the capabilities say that it can be seen."""

    capabilities: frozenset[Capability]

    def free_count(self) -> int:
        """Free blocks, of all ranks or groups together."""

    def used_count(self) -> int:
        """Blocks held by sequences."""

    def drain_events(self) -> Sequence[CacheEvent]:
        """Changes of the prefix cache since the last call."""


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the scheduler behaves.

    Attributes:
        step_ms: virtual milliseconds of one engine step; at least 1.
        hit_limit: the longest permitted hit; `None` takes the driver's attribute `hit_limit`.
        max_running: requests that may run at once; `None` for any number.
        lookahead: waiting requests behind a refused one that may be tried; 0 for strict order.
        max_passes: how often a refused request may be passed by another before all behind it wait, too.
        check_hits: read every hit and compare it with the contents that its tokens stand for; in a composite, where
            nothing is hit, have the judge read every finished request.
        fail_copies: every so many-th copy between the tiers fails; 0 for none.
        stop_at_violation: end the run at the first violation that the replay itself finds.
        context: the context of every sequence.

    Raises:
        ValueError: a number is below 1.
    """

    step_ms: int = 30
    hit_limit: HitLimit | None = None
    max_running: int | None = None
    lookahead: int = 32
    max_passes: int = 8
    check_hits: bool = True
    fail_copies: int = 0
    stop_at_violation: bool = True
    context: Context = Context()

    def __post_init__(self) -> None:
        if self.step_ms < 1:
            raise ValueError(f"step_ms: {self.step_ms}, expected at least 1")
        if self.max_running is not None and self.max_running < 1:
            raise ValueError(f"max_running: {self.max_running}, expected at least 1")
        if self.lookahead < 0 or self.max_passes < 0:
            raise ValueError(f"lookahead: {self.lookahead}, max_passes: {self.max_passes}, expected at least 0")
        if self.fail_copies < 0:
            raise ValueError(f"fail_copies: {self.fail_copies}, expected at least 0")


class ReplayViolation(msgspec.Struct, frozen=True):
    """Something that no correct manager does.

    Attributes:
        name: ``content_of_hit``, ``length_of_hit``, ``progress``, ``partition``, ``drain``, or the class of the
            exception that the driver raised.
        step: number of the step.
        time_ms: virtual time.
        request: number of the request in the trace, if it is about one.
        message: what was seen and what was expected.
    """

    name: str
    step: int
    time_ms: int
    request: int | None
    message: str


class ReplayStatistics(msgspec.Struct):
    """Counts of a run so far; `None` means not observed.

    Attributes:
        arrived, finished, rejected: requests; rejected are those that the whole pool cannot hold.
        given_up: requests dropped since they were refused although nothing else runs: a ``progress`` violation, but
            with pages, where it depends on the places of blocks what one more can have; there the judge decides.
        waiting, running: requests at the end (of an interrupted or stopped run).
        prompt_tokens, hit_tokens: of first admissions; `hit_tokens` of them came from the cache.
        hit_requests: first admissions with a hit.
        recomputed_prompts, recomputed_tokens, recomputed_hits: admissions after a preemption, their tokens, and how
            many of these came from the cache.
        output_tokens: tokens appended.
        written_tokens: cells written.
        refusals: refused admissions; `preemptions`: requests preempted.
        evictions: keys removed from the prefix cache.
        host_hit_tokens: tokens that came from the host tier; `copies`, `failed_copies`: between the tiers.
        steps: engine steps; `virtual_ms`: time of the last; `wall_seconds`: real duration.
        violations: how many were found.
        interrupted: the run was ended by Ctrl-C; `stopped`: it was ended by a violation.
    """

    arrived: int = 0
    finished: int = 0
    rejected: int = 0
    given_up: int = 0
    waiting: int = 0
    running: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    hit_requests: int = 0
    recomputed_prompts: int = 0
    recomputed_tokens: int = 0
    recomputed_hits: int = 0
    output_tokens: int = 0
    written_tokens: int = 0
    refusals: int = 0
    preemptions: int = 0
    evictions: int | None = None
    host_hit_tokens: int | None = None
    copies: int | None = None
    failed_copies: int = 0
    steps: int = 0
    virtual_ms: int = 0
    wall_seconds: float = 0.0
    violations: int = 0
    interrupted: bool = False
    stopped: bool = False

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens of first admissions that were hits; 0 for none."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class ReplaySeries(msgspec.Struct):
    """One entry per step, as it ends. Lists of what was not observed stay empty.

    Attributes:
        time_ms: virtual time.
        used, cached, free: blocks held by sequences, idle in the prefix cache, free; together the usable blocks.
        running, waiting: requests.
        prompt_tokens, hit_tokens, evictions, preemptions: totals so far.
    """

    time_ms: list[int] = msgspec.field(default_factory=list)
    used: list[int] = msgspec.field(default_factory=list)
    cached: list[int] = msgspec.field(default_factory=list)
    free: list[int] = msgspec.field(default_factory=list)
    running: list[int] = msgspec.field(default_factory=list)
    waiting: list[int] = msgspec.field(default_factory=list)
    prompt_tokens: list[int] = msgspec.field(default_factory=list)
    hit_tokens: list[int] = msgspec.field(default_factory=list)
    evictions: list[int] = msgspec.field(default_factory=list)
    preemptions: list[int] = msgspec.field(default_factory=list)


class ReplayReport(msgspec.Struct):
    """All that a run leaves: the pool, the options, counts, the series for a plot, and the first violations."""

    config: PoolConfig
    options: ReplayOptions
    statistics: ReplayStatistics
    series: ReplaySeries
    violations: list[ReplayViolation]

    @property
    def usable_blocks(self) -> int:
        """Blocks of all ranks and groups together, padding not counted."""
        groups = sum(kind.num_blocks - 1 for kind in self.config.manager_types)
        return groups or (self.config.num_blocks - 1) * self.config.num_ranks


def most_blocks(config: PoolConfig) -> int:
    """Blocks that one request can have if nobody else has any: all but padding, or those that the pages have room for.

    Pages in a row from the first one on, where the padding block lies, have room for the most.
    """
    if not config.num_pages:
        return config.num_blocks - 1
    return min(config.num_blocks, end_whole(config.num_pages - 1, config.block_size, config.page_size)) - 1


class _Run:
    """One request on its way through the pool: tokens known, tokens computed, and what all its cells must hold."""

    __slots__ = (
        "computed", "hit", "index", "known", "loading", "name", "passed", "published", "request", "running", "seen",
        "tags", "tokens", "total",
    )  # fmt: skip

    def __init__(self, index: int, request: Request) -> None:
        self.index, self.request = index, request
        self.name = f"r{index}"
        self.total = request.total_length
        self.known = request.input_length
        self.computed = self.hit = self.passed = 0
        self.running = False
        self.loading = False
        """Whether it waits for copies from the host."""
        self.published = False
        """Whether its prompt is published."""
        self.seen = False
        """Whether it was admitted before."""
        self.tokens: array[int] | None = None
        self.tags: Tags = _NO_TAGS

    def prepare(self) -> array[int]:
        """Tokens and tags of the whole request, made when the sequence is started; the tokens of the prompt."""
        tokens = request_tokens(self.index, self.request)
        self.tags, _ = chain_tags(tokens)
        self.tokens = _as_array(tokens)
        return self.tokens[: self.known]


_NO_TAGS: Tags = np.empty(0, dtype=np.int64)


def _as_array(tokens: Tokens) -> array[int]:
    """The tokens as a sequence of Python integers that keeps 8 bytes for each and lends its memory to numpy."""
    return array("q", tokens.tobytes())


class _Stop(Exception):
    """A violation was recorded and the run shall end."""


class Replay:
    """One run of a trace; see the module for the policy."""

    def __init__(
        self,
        driver: Driver,
        config: PoolConfig,
        requests: Iterable[Request],
        options: ReplayOptions | None = None,
        *,
        observer: Observer | None = None,
        evictions: Callable[[], int] | None = None,
        violation_types: tuple[type[Exception], ...] = (),
        on_violation: Callable[[ReplayViolation], None] | None = None,
        on_step: Callable[[ReplayStatistics], None] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            driver: a target, or a judge that has the same operations.
            config: the pool that the driver has.
            requests: in order of arrival; taken one by one, so an error in a trace file surfaces in `run`.
            options: how the scheduler behaves.
            observer: what to look at after each step; the driver, if it has the methods.
            evictions: total evictions so far; else counted from the observer's events, else not observed.
            violation_types: exceptions of the driver that are violations; they end the run and are kept in `raised`.
            on_violation: called with each violation.
            on_step: called after each step with the counts so far.

        Raises:
            ValueError: the block size does not divide 512, or no hit limit is known.
        """
        check_block_size(config.block_size)
        self._driver, self._config = driver, config
        self._options = options or ReplayOptions()
        self._usable = most_blocks(config)
        """Blocks that a request can have."""
        self._host = driver if config.has_host_tier and isinstance(driver, HostDriver) else None
        self._accept: Callable[[str, int], None] | None = getattr(driver, "accept", None)
        self._rank_of: Callable[[str], int] = getattr(driver, "rank_of", _first_rank)
        self._begun = 0
        """Copies that have begun and not ended."""
        self._violation_types = violation_types
        self._on_violation, self._on_step = on_violation, on_step
        self._arrivals = enumerate(requests)
        self._next: tuple[int, Request] | None = None
        self._waiting: deque[_Run] = deque()
        self._running: list[_Run] = []
        self._retry = True
        """Whether blocks were given back since the last refused admission."""
        self._step_number = 0
        self._report = ReplayReport(config, self._options, ReplayStatistics(), ReplaySeries(), [])
        self._all_usable = self._report.usable_blocks
        self._statistics, self._series = self._report.statistics, self._report.series
        self._observe(driver, observer, evictions)
        self._hit_limit = self._known_hit_limit()
        self.raised: Exception | None = None
        """The exception of the driver that ended the run."""

    def _observe(self, driver: Driver, observer: Observer | None, evictions: Callable[[], int] | None) -> None:
        if observer is None and isinstance(driver, Observer):
            observer = driver
        seen = observer.capabilities if observer is not None else frozenset()
        self._free_count = observer.free_count if observer and Capability.FREE_COUNT in seen else None
        self._used_count = observer.used_count if observer and Capability.USED_COUNT in seen else None
        if evictions is None and observer is not None and Capability.EVENTS in seen:
            evictions = _EvictionCounter(observer)
        self._evictions = evictions
        self._report.statistics.evictions = None if evictions is None else 0
        if self._host is not None:
            self._report.statistics.host_hit_tokens = self._report.statistics.copies = 0

    def _known_hit_limit(self) -> HitLimit:
        limit: HitLimit | None = self._options.hit_limit or getattr(self._driver, "hit_limit", None)
        if limit not in ("all", "all_but_one"):
            raise ValueError(f"hit_limit: {limit!r}, expected 'all' or 'all_but_one'")
        return limit

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> ReplayReport:
        """Replay all requests, and say what was seen; to be called once.

        Ctrl-C ends the run with what it has (`ReplayStatistics.interrupted`).

        Raises:
            WorkloadError: the trace is broken further down.
        """
        started = time.perf_counter()
        try:
            self._loop()
            self._check_drained()
        except KeyboardInterrupt:
            self._statistics.interrupted = True
        except _Stop:
            self._statistics.stopped = True
        except self._violation_types as error:
            self.raised = error
            self._statistics.stopped = True
            self._record(type(error).__name__, None, str(error))
        finally:
            self._statistics.wall_seconds = time.perf_counter() - started
            self._statistics.running, self._statistics.waiting = len(self._running), len(self._waiting)
            self._cut_series()
        return self._report

    def _loop(self) -> None:
        self._next = next(self._arrivals, None)
        while True:
            if not self._running and not self._waiting:
                if self._next is None:
                    return
                arrival_step = -(-self._next[1].timestamp // self._options.step_ms)
                self._step_number = max(self._step_number, arrival_step)
            self._step()
            self._step_number += 1

    def _step(self) -> None:
        now = self._step_number * self._options.step_ms
        self._statistics.virtual_ms = now
        if self._host is not None:
            self._transfer(self._host)
        self._arrive(now)
        preempted = self._statistics.preemptions
        self._decode()
        if self._statistics.preemptions == preempted:
            self._admit()
        self._write()
        self._publish()
        self._finish()
        self._sample(now)
        self._statistics.steps += 1
        if self._on_step is not None:
            self._on_step(self._statistics)

    def _arrive(self, now: int) -> None:
        while self._next is not None and self._next[1].timestamp <= now:
            run = _Run(*self._next)
            self._statistics.arrived += 1
            if -(-run.total // self._config.block_size) > self._usable:
                self._statistics.rejected += 1
            else:
                self._waiting.append(run)
            self._next = next(self._arrivals, None)

    # -- copies between the tiers -------------------------------------------------------------------------------------

    def _transfer(self, host: HostDriver) -> None:
        """Copies that have begun end, the oldest first, and those that are planned begin."""
        statistics, every = self._statistics, self._options.fail_copies
        for _ in range(self._begun):
            done = (statistics.copies or 0) + statistics.failed_copies + 1
            ok = not every or done % every != 0
            host.transfer_finish(0, ok)
            if ok:
                statistics.copies = (statistics.copies or 0) + 1
            else:
                statistics.failed_copies += 1
        self._retry = self._retry or self._begun > 0
        for run in self._running:
            if run.loading and not host.is_loading(run.name):
                self._loaded(run, host.num_computed(run.name))
        self._begun = host.num_transfers()
        if self._begun:
            host.start_transfers()

    def _is_loading(self, run: _Run) -> bool:
        """Whether the last call has planned to load what the host knows."""
        return self._host is not None and self._host.is_loading(run.name)

    def _loaded(self, run: _Run, computed: int) -> None:
        """All that a request waited for has come, or has failed."""
        run.loading = False
        self._statistics.host_hit_tokens = (self._statistics.host_hit_tokens or 0) + computed - run.computed
        if computed > run.computed and self._options.check_hits:
            self._check_content(run, computed)
        run.computed = computed

    # -- decode and preemption ----------------------------------------------------------------------------------------

    def _decode(self) -> None:
        append, allocate = self._driver.append, self._driver.allocate
        for run in tuple(self._running):
            if not run.running or run.loading or run.tokens is None or run.known == run.total:
                continue
            append(run.name, (run.tokens[run.known],))
            run.known += 1
            self._statistics.output_tokens += 1
            while not allocate(run.name, run.known):
                if not self._preempt_other(run):
                    self._give_up(run)
                    break
            run.loading = run.running and self._is_loading(run)

    def _preempt_other(self, run: _Run) -> bool:
        """Preempt the most recently admitted request beside `run`, on the same rank; False if there is none."""
        rank = self._rank_of(run.name)
        others = (other for other in reversed(self._running) if other is not run)
        victim = next((other for other in others if self._rank_of(other.name) == rank), None)
        if victim is None:
            return False
        self._driver.preempt(victim.name)
        self._running.remove(victim)
        victim.running = victim.loading = victim.published = False
        victim.computed = 0
        self._waiting.appendleft(victim)
        self._retry = True
        self._statistics.preemptions += 1
        return True

    def _give_up(self, run: _Run) -> None:
        """A request that the pool could hold was refused although nothing else runs."""
        self._driver.abort(run.name)
        if run.running:
            self._running.remove(run)
            run.running = False
        self._retry = True
        self._statistics.given_up += 1
        if not self._config.num_pages:
            blocks = -(-run.known // self._config.block_size)
            self._violate("progress", run, f"refused {blocks} of {self._usable} blocks although nothing else runs")

    # -- admission ----------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Admit in the order of the queue; refused requests may be passed by later ones, within the limits."""
        refused: list[_Run] = []
        while self._retry and self._waiting and not self._full() and self._may_pass(refused):
            run = self._waiting.popleft()
            if refused and self._seems_too_large(run):
                refused.append(run)
            elif self._enter(run):
                for earlier in refused:
                    earlier.passed += 1
            elif self._running or self._begun:
                refused.append(run)
            else:
                self._give_up(run)
        self._waiting.extendleft(reversed(refused))
        self._retry = self._retry and not refused

    def _may_pass(self, refused: list[_Run]) -> bool:
        """Whether one more request may be tried although these were refused."""
        options = self._options
        return len(refused) <= options.lookahead and all(run.passed < options.max_passes for run in refused)

    def _seems_too_large(self, run: _Run) -> bool:
        """Whether it was refused before, and the blocks that no sequence holds are too few beside its last hit."""
        if run.tokens is None or self._used_count is None:
            return False
        needed = -(-run.known // self._config.block_size) - run.hit // self._config.block_size
        return needed > self._all_usable - self._used_count()

    def _full(self) -> bool:
        limit = self._options.max_running
        return limit is not None and len(self._running) >= limit

    def _enter(self, run: _Run) -> bool:
        """Match and make room for all known tokens; False if refused, with nothing left behind."""
        driver = self._driver
        if run.tokens is None:
            driver.start(run.name, run.prepare(), self._options.context)
        run.hit = driver.allocate_shared(run.name)
        self._check_hit(run)
        if not driver.allocate(run.name, run.known):
            driver.preempt(run.name)
            self._statistics.refusals += 1
            return False
        run.running, run.computed, run.passed = True, run.hit, 0
        run.loading = self._is_loading(run)
        self._running.append(run)
        self._count_admission(run)
        return True

    def _count_admission(self, run: _Run) -> None:
        statistics = self._statistics
        if run.seen:
            statistics.recomputed_prompts += 1
            statistics.recomputed_tokens += run.known
            statistics.recomputed_hits += run.hit
        else:
            run.seen = True
            statistics.prompt_tokens += run.known
            statistics.hit_tokens += run.hit
            statistics.hit_requests += run.hit > 0

    def _check_hit(self, run: _Run) -> None:
        longest = longest_hit(run.known, self._config.block_size, self._hit_limit)
        if not 0 <= run.hit <= longest or run.hit % self._config.block_size:
            expected = f"a multiple of {self._config.block_size} up to {longest}"
            self._violate("length_of_hit", run, f"hit of {run.hit} tokens, expected {expected}")
        elif run.hit and self._options.check_hits:
            self._check_content(run, run.hit)

    def _check_content(self, run: _Run, stop: int) -> None:
        """What was hit reads as what was computed for these tokens."""
        found = self._driver.read(run.name, 0, stop)
        if not np.array_equal(found, run.tags[:stop]):
            self._violate("content_of_hit", run, _difference(found, run.tags[:stop]))

    # -- the forward step and its end ---------------------------------------------------------------------------------

    def _write(self) -> None:
        batch: list[tuple[str, Tags]] = []
        written_runs: list[_Run] = []
        written = 0
        for run in self._running:
            if run.computed < run.known and not run.loading:
                batch.append((run.name, run.tags[run.computed : run.known]))
                written_runs.append(run)
                written += run.known - run.computed
                run.computed = run.known
        if batch:
            self._driver.write(batch)
            self._statistics.written_tokens += written
        if self._accept is not None:
            for run in written_runs:
                self._accept(run.name, run.computed)

    def _publish(self) -> None:
        """Prompts that have been written can be hit from now on."""
        for run in self._running:
            if not run.published and not run.loading:
                self._driver.cache(run.name)
                run.published = True

    def _finish(self) -> None:
        done = [run for run in self._running if run.known == run.total == run.computed]
        for run in done:
            if self._accept is not None and self._options.check_hits:
                self._driver.read(run.name, 0, run.computed)
            self._driver.deallocate(run.name)
            self._running.remove(run)
            self._statistics.finished += 1
            self._retry = True

    def _sample(self, now: int) -> None:
        series, statistics = self._series, self._statistics
        series.time_ms.append(now)
        series.running.append(len(self._running))
        series.waiting.append(len(self._waiting))
        series.prompt_tokens.append(statistics.prompt_tokens)
        series.hit_tokens.append(statistics.hit_tokens)
        series.preemptions.append(statistics.preemptions)
        if self._evictions is not None:
            statistics.evictions = self._evictions()
            series.evictions.append(statistics.evictions)
        self._sample_blocks()

    def _sample_blocks(self) -> None:
        free = self._free_count() if self._free_count is not None else None
        used = self._used_count() if self._used_count is not None else None
        if free is not None:
            self._series.free.append(free)
        if used is not None:
            self._series.used.append(used)
        if free is None or used is None:
            return
        self._series.cached.append(max(0, self._all_usable - used - free))
        if free < 0 or used < 0 or free + used > self._all_usable:
            self._violate("partition", None, f"{used} blocks used and {free} free of {self._all_usable}")

    def _cut_series(self) -> None:
        """Leave only whole steps, so that the lists fit together after an interrupt."""
        for field in self._series.__struct_fields__:
            del getattr(self._series, field)[self._statistics.steps :]

    def _check_drained(self) -> None:
        used = self._used_count() if self._used_count is not None else 0
        if used:
            self._violate("drain", None, f"{used} blocks are used after the last request, expected 0")

    # -- violations ---------------------------------------------------------------------------------------------------

    def _violate(self, name: str, run: _Run | None, message: str) -> None:
        self._record(name, run, message)
        if self._options.stop_at_violation:
            raise _Stop

    def _record(self, name: str, run: _Run | None, message: str) -> None:
        request = run.index if run is not None else None
        violation = ReplayViolation(name, self._step_number, self._statistics.virtual_ms, request, message)
        self._statistics.violations += 1
        if len(self._report.violations) < MAX_KEPT_VIOLATIONS:
            self._report.violations.append(violation)
        if self._on_violation is not None:
            self._on_violation(violation)


def _first_rank(seq: str) -> int:
    return 0


class _EvictionCounter:
    """Counts the ``removed`` events of an observer; each call drains them."""

    def __init__(self, observer: Observer) -> None:
        self._drain, self._total = observer.drain_events, 0

    def __call__(self) -> int:
        self._total += sum(event.kind == "removed" for event in self._drain())
        return self._total


def _difference(found: Tags, expected: Tags) -> str:
    """Where the contents of a hit first differ."""
    if len(found) != len(expected):
        return f"read gave {len(found)} cells, expected {len(expected)}"
    where = int(np.argmax(found != expected))
    return f"token {where} of a hit of {len(expected)} holds {found[where]}, expected {expected[where]}"
