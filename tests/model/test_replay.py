"""The scheduler of a replay, on a simple manager in memory, and the plot of what it saw."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvspec.model.conformance import CacheEvent, Capability, Context, PoolConfig, Tags
from kvspec.model.executable import PagedPool
from kvspec.model.generate_workload import Shape, generate_requests
from kvspec.model.plot import PlotError, plot_replay
from kvspec.model.replay import Replay, ReplayOptions, ReplayReport, ReplayStatistics, ReplayViolation, most_blocks
from kvspec.model.workload import HitLimit, Request, WorkloadError, read_requests, shared_prefixes

TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake_conversation.jsonl"
SMALL = Shape(
    system_tokens=(512, 1100),
    message_tokens=(8, 600),
    output_tokens=(20, 200),
    long_tokens=(2000, 4000),
    arrival_ms=200,
)


class Room:
    """One sequence of the fake manager."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = np.asarray(tokens, dtype=np.int64)
        self.grown: list[int] = []
        self.table: list[int] = []
        self.computed = 0

    def known(self) -> int:
        """Tokens known."""
        return len(self.tokens) + len(self.grown)


class FakeTarget:
    """A prefix-caching manager in a few lines, with one row of cells per block; written for these tests only."""

    hit_limit: Literal["all", "all_but_one"] = "all_but_one"
    capabilities = frozenset({Capability.FREE_COUNT, Capability.USED_COUNT, Capability.EVENTS})

    def __init__(self, config: PoolConfig) -> None:
        self.size = config.block_size
        self.free = list(range(config.num_blocks - 1, 0, -1))
        self.cells = np.zeros((config.num_blocks, config.block_size), dtype=np.int64)
        self.holders = [0] * config.num_blocks
        self.used = self.written = 0
        self.keys: dict[int, bytes] = {}
        self.entries: dict[bytes, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.rooms: dict[str, Room] = {}
        self.events: list[CacheEvent] = []
        self.calls: list[tuple[str, Any]] = []

    def keys_of(self, room: Room, blocks: int) -> list[bytes]:
        """Chained keys of the first full blocks."""
        tokens = np.concatenate([room.tokens, np.asarray(room.grown, dtype=np.int64)])
        data, key, keys = tokens.tobytes(), b"", []
        for start in range(0, blocks * self.size * 8, self.size * 8):
            key = hashlib.blake2b(key + data[start : start + self.size * 8], digest_size=16).digest()
            keys.append(key)
        return keys

    def hold(self, block: int) -> None:
        """One more sequence has the block."""
        if not self.holders[block]:
            self.used += 1
            self.idle.pop(block, None)
        self.holders[block] += 1

    def drop(self, block: int) -> None:
        """One sequence less has the block."""
        self.holders[block] -= 1
        if not self.holders[block]:
            self.used -= 1
            if block in self.keys:
                self.idle[block] = None
            else:
                self.free.append(block)

    def start(self, seq: str, tokens: Sequence[int], context: Context) -> None:
        assert seq not in self.rooms
        assert len(tokens)
        assert type(tokens[0]) is int
        self.calls.append(("start", seq))
        self.rooms[seq] = Room(tokens)

    def allocate_shared(self, seq: str) -> int:
        room = self.rooms[seq]
        assert not room.table
        limit = room.known() - (self.hit_limit == "all_but_one")
        for key in self.keys_of(room, limit // self.size):
            block = self.entries.get(key)
            if block is None:
                break
            self.hold(block)
            room.table.append(block)
        room.computed = len(room.table) * self.size
        return room.computed

    def allocate(self, seq: str, num_tokens: int) -> bool:
        room = self.rooms[seq]
        assert room.computed <= num_tokens <= room.known()
        missing = -(-num_tokens // self.size) - len(room.table)
        if missing > len(self.free) + len(self.idle):
            return False
        for _ in range(missing):
            if not self.free:
                self.evict(1)
            room.table.append(block := self.free.pop())
            self.hold(block)
        return True

    def append(self, seq: str, tokens: Sequence[int]) -> None:
        self.rooms[seq].grown.extend(tokens)

    def write(self, batch: Sequence[tuple[str, Tags]]) -> None:
        self.calls.append(("write", [(seq, len(tags)) for seq, tags in batch]))
        flat = self.cells.reshape(-1)
        for seq, tags in batch:
            room = self.rooms[seq]
            assert tags.dtype == np.int64
            where = np.arange(room.computed, room.computed + len(tags))
            assert len(room.table) * self.size > where[-1]
            first = room.computed // self.size
            table = np.asarray(room.table[first:])
            flat[table[where // self.size - first] * self.size + where % self.size] = tags
            room.computed += len(tags)
            self.written += len(tags)
            assert room.computed <= room.known()

    def read(self, seq: str, start: int, stop: int) -> Tags:
        room = self.rooms[seq]
        assert stop <= room.computed
        return self.cells[room.table].reshape(-1)[start:stop]

    def cache(self, seq: str) -> None:
        room = self.rooms[seq]
        self.calls.append(("cache", seq))
        for block, key in zip(room.table, self.keys_of(room, room.computed // self.size), strict=False):
            if key not in self.entries and block not in self.keys:
                self.entries[key], self.keys[block] = block, key
                self.events.append(CacheEvent("stored", key, block))

    def deallocate(self, seq: str) -> None:
        assert self.rooms[seq].computed == self.rooms[seq].known(), "all tokens are computed at the end"
        self.cache(seq)
        self.abort(seq)

    def preempt(self, seq: str) -> None:
        room = self.rooms[seq]
        self.calls.append(("preempt", seq))
        for block in reversed(room.table):
            self.drop(block)
        room.table, room.computed = [], 0

    def abort(self, seq: str) -> None:
        self.preempt(seq)
        del self.rooms[seq]

    def evict(self, num_blocks: int) -> int:
        for _ in range(num_blocks):
            block, _ = self.idle.popitem(last=False)
            key = self.keys.pop(block)
            del self.entries[key]
            self.events.append(CacheEvent("removed", key, block))
            self.free.append(block)
        return num_blocks

    def free_count(self) -> int:
        return len(self.free)

    def used_count(self) -> int:
        return self.used

    def drain_events(self) -> Sequence[CacheEvent]:
        events, self.events = self.events, []
        return events


def replay(
    made: Sequence[Request],
    blocks: int,
    block_size: int = 16,
    options: ReplayOptions | None = None,
    target_class: type[FakeTarget] = FakeTarget,
) -> tuple[ReplayReport, FakeTarget]:
    """Run some requests on a fake target of a given size."""
    config = PoolConfig(num_blocks=blocks, block_size=block_size)
    target = target_class(config)
    return Replay(target, config, made, options).run(), target


def request(time: int, prompt: int, output: int, first_id: int) -> Request:
    """A request whose ids count up from a first one."""
    return Request(time, prompt, output, tuple(range(first_id, first_id + -(-prompt // 512))))


# -- no pressure ------------------------------------------------------------------------------------------------------


def test_one_request_step_by_step() -> None:
    report, target = replay([request(31, 40, 2, 0)], blocks=100)
    assert target.calls == [
        ("start", "r0"),
        ("write", [("r0", 40)]),
        ("cache", "r0"),
        ("write", [("r0", 1)]),
        ("write", [("r0", 1)]),
        ("cache", "r0"),
        ("preempt", "r0"),
    ]
    assert report.series.time_ms == [60, 90, 120], "31 ms is seen at the next point of the grid"
    assert report.series.used == [3, 3, 0]
    assert report.series.cached == [0, 0, 2]
    assert report.series.free == [96, 96, 97]
    statistics = report.statistics
    assert (statistics.finished, statistics.output_tokens, statistics.written_tokens) == (1, 2, 42)
    assert (statistics.steps, statistics.virtual_ms, statistics.violations) == (3, 120, 0)


def test_requests_of_one_step_share_one_write_and_no_blocks() -> None:
    report, target = replay([request(0, 40, 0, 7), request(0, 40, 0, 7), request(1, 40, 0, 7)], blocks=100)
    assert [call for call in target.calls if call[0] == "write"] == [
        ("write", [("r0", 40), ("r1", 40)]),
        ("write", [("r2", 8)]),
    ]
    assert (report.statistics.hit_tokens, report.statistics.prompt_tokens) == (32, 120)
    assert (report.statistics.hit_requests, report.statistics.finished) == (1, 3)


def test_idle_time_is_skipped() -> None:
    report, _ = replay([request(0, 10, 1, 0), request(10_000_000, 10, 1, 1)], blocks=100)
    assert report.series.time_ms == [0, 30, 10_000_020, 10_000_050]
    assert report.statistics.steps == 4


def test_nothing_to_do() -> None:
    report, _ = replay([], blocks=2)
    assert (report.statistics.steps, report.statistics.hit_rate) == (0, 0.0)


class HitsAll(FakeTarget):
    """Hits may cover the whole prompt."""

    hit_limit: Literal["all", "all_but_one"] = "all"


small_requests = st.builds(
    lambda time, rest, ids, output: Request(time, (len(ids) - 1) * 512 + rest, output, tuple(ids)),
    st.integers(0, 300),
    st.integers(1, 512),
    st.lists(st.integers(0, 2), min_size=1, max_size=3),
    st.integers(0, 8),
)
small_workloads = st.lists(small_requests, max_size=8).map(lambda made: sorted(made, key=lambda r: r.timestamp))


@settings(max_examples=60, deadline=None)
@given(small_workloads, st.sampled_from([16, 64, 512]), st.sampled_from(["all", "all_but_one"]), st.integers(1, 100))
def test_hits_without_limits_equal_the_independent_count(
    made: list[Request], block_size: int, hit_limit: HitLimit, step_ms: int
) -> None:
    target_class = HitsAll if hit_limit == "all" else FakeTarget
    report, _ = replay(made, 2000, block_size, ReplayOptions(step_ms=step_ms), target_class)
    count = shared_prefixes(made, block_size, hit_limit=hit_limit, step_ms=step_ms)
    assert report.statistics.hit_tokens == count.hit_tokens
    assert report.statistics.prompt_tokens == count.prompt_tokens
    assert report.statistics.hit_requests == sum(hit > 0 for hit in count.hits)
    assert (report.statistics.violations, report.statistics.preemptions, report.statistics.evictions) == (0, 0, 0)


def test_hits_of_the_built_in_workload_equal_the_independent_count() -> None:
    made = list(generate_requests(100, seed=5))
    report, _ = replay(made, 40_000)
    count = shared_prefixes(made, 16, hit_limit="all_but_one", step_ms=30)
    assert report.statistics.hit_tokens == count.hit_tokens
    assert report.statistics.hit_rate == count.hit_rate > 0.3


@pytest.mark.needs_file(TRACE)
def test_hits_of_the_real_trace_equal_the_independent_count() -> None:
    made = list(read_requests(TRACE, limit=150))
    report, _ = replay(made, 20_000, block_size=128)
    count = shared_prefixes(made, 128, hit_limit="all_but_one", step_ms=30)
    assert report.statistics.hit_tokens == count.hit_tokens > 0
    assert (report.statistics.finished, report.statistics.preemptions) == (150, 0)


# -- pressure ---------------------------------------------------------------------------------------------------------


def test_a_preempted_request_is_recomputed_with_all_its_tokens() -> None:
    """Two requests of 2 + 2 blocks in a pool of 5: the first gets a third block, for that of the other it must go."""
    report, target = replay([request(0, 30, 20, 0), request(0, 30, 20, 1)], blocks=6)
    assert next(seq for name, seq in target.calls if name == "preempt") == "r0", "never the one that asks"
    statistics = report.statistics
    assert (statistics.finished, statistics.preemptions, statistics.violations) == (2, 1, 0)
    assert statistics.recomputed_prompts == 1
    assert statistics.recomputed_tokens == 33, "30 of the prompt, 2 decoded, 1 whose write was still to come"
    assert statistics.output_tokens == 40, "no output token is lost or made twice"
    assert statistics.recomputed_hits == 16, "the published block of the prompt is hit"


def test_the_most_recently_admitted_request_is_preempted() -> None:
    made = [request(0, 30, 20, 0), request(30, 24, 20, 1), request(60, 20, 20, 2)]
    _, target = replay(made, blocks=7)
    assert next(seq for name, seq in target.calls if name == "preempt") == "r2"


def test_a_preempted_request_goes_before_those_that_wait() -> None:
    made = [request(0, 30, 20, 0), request(0, 30, 20, 1), request(0, 60, 1, 2)]
    report, target = replay(made, blocks=6)
    assert [seq for name, seq in target.calls if name == "start"] == ["r0", "r1", "r2"]
    finished = [seq for name, seq in target.calls if name == "preempt" and seq not in target.rooms]
    assert finished[-1] == "r2"
    assert report.statistics.finished == 3


def test_a_refused_admission_leaves_nothing_and_waits_for_room() -> None:
    made = [request(0, 64, 30, 0), request(0, 64, 1, 1), request(0, 5, 1, 2)]
    report, target = replay(made, blocks=8, options=ReplayOptions(lookahead=0))
    assert report.statistics.finished == 3
    assert report.statistics.refusals == 1, "it is not tried again before blocks were given back"
    assert max(report.series.waiting) == 2, "first come, first served: the small one waits behind"
    assert target.used == 0


@pytest.mark.parametrize(("max_passes", "order"), [(2, "0 2 3 1 4"), (1, "0 2 1 3 4"), (0, "0 1 2 3 4")])
def test_a_refused_request_may_be_passed_a_few_times(max_passes: int, order: str) -> None:
    made = [request(0, 64, 30, 0), request(0, 64, 0, 1), *(request(0, 5, 1, i) for i in (2, 3, 4))]
    report, target = replay(made, blocks=8, options=ReplayOptions(max_passes=max_passes))
    written = [seq for name, batch in target.calls if name == "write" for seq, size in batch if size > 1]
    assert " ".join(seq[1:] for seq in written) == order
    assert report.statistics.finished == 5
    assert report.statistics.refusals <= 2


def test_a_request_that_seems_too_large_is_tried_once_only() -> None:
    made = [request(0, 64, 30, 0), *(request(0, 64, 1, i) for i in (1, 2, 3)), *(request(0, 5, 1, i) for i in range(4))]
    report, _ = replay(made, blocks=8)
    assert report.statistics.finished == 8
    assert report.statistics.refusals == 8, "13 if those behind the first were tried again and again"


def test_a_request_that_never_fits_is_rejected() -> None:
    made = [request(0, 64, 16, 0), request(0, 64, 17, 1), request(5, 600, 1, 2), request(6, 80, 0, 0)]
    report, target = replay(made, blocks=6)
    assert (report.statistics.rejected, report.statistics.finished) == (2, 2)
    assert [seq for name, seq in target.calls if name == "start"] == ["r0", "r3"]


@settings(max_examples=60, deadline=None)
@given(small_workloads, st.integers(20, 140), st.sampled_from([16, 32]), st.sampled_from([None, 1, 2]))
def test_every_request_finishes_under_pressure(
    made: list[Request], blocks: int, block_size: int, max_running: int | None
) -> None:
    options = ReplayOptions(max_running=max_running)
    report, target = replay(made, blocks, block_size, options)
    statistics = report.statistics
    fits = [r for r in made if -(-r.total_length // block_size) <= blocks - 1]
    assert (statistics.finished, statistics.rejected) == (len(fits), len(made) - len(fits))
    assert statistics.output_tokens == sum(r.output_length for r in fits)
    assert statistics.violations == target.used == statistics.running == statistics.waiting == 0
    assert max(report.series.running, default=0) <= (max_running or len(made))
    check_series(report, blocks)


def check_series(report: ReplayReport, blocks: int) -> None:
    """The lists fit together and add up."""
    series = report.series
    for field in series.__struct_fields__:
        assert len(getattr(series, field)) == report.statistics.steps
    assert all(sum(row) == blocks - 1 for row in zip(series.used, series.cached, series.free, strict=True))
    for field in ("time_ms", "hit_tokens", "prompt_tokens", "evictions", "preemptions"):
        assert all(a <= b for a, b in pairwise(getattr(series, field)))


def test_pressure_makes_evictions_and_preemptions() -> None:
    report, target = replay(list(generate_requests(150, seed=2, shape=SMALL)), 400)
    statistics = report.statistics
    assert statistics.evictions is not None
    assert statistics.evictions > 1000
    assert statistics.preemptions > 10
    assert 0 < statistics.hit_tokens < statistics.prompt_tokens
    admitted = statistics.prompt_tokens - statistics.hit_tokens
    admitted += statistics.recomputed_tokens - statistics.recomputed_hits
    assert admitted < statistics.written_tokens <= admitted + statistics.output_tokens
    assert statistics.written_tokens == target.written
    check_series(report, 400)


def test_a_replay_is_deterministic() -> None:
    made = list(generate_requests(60, seed=2, shape=SMALL))
    one, other = replay(made, 400)[0], replay(made, 400)[0]
    one.statistics.wall_seconds = other.statistics.wall_seconds = 0
    assert msgspec.json.encode(one) == msgspec.json.encode(other)


# -- faulty managers and interrupts -----------------------------------------------------------------------------------


class Forgets(FakeTarget):
    """An evicted block stays in the map: a hit has the contents of someone else."""

    def evict(self, num_blocks: int) -> int:
        for _ in range(num_blocks):
            block, _ = self.idle.popitem(last=False)
            self.keys.pop(block)
            self.free.append(block)
        return num_blocks


class HitsTooMuch(FakeTarget):
    """Says that the whole prompt is hit."""

    def allocate_shared(self, seq: str) -> int:
        super().allocate_shared(seq)
        return -(-self.rooms[seq].known() // self.size) * self.size


class Refuses(FakeTarget):
    """Refuses all but short prompts although the pool is empty."""

    def allocate(self, seq: str, num_tokens: int) -> bool:
        return num_tokens <= 40 and super().allocate(seq, num_tokens)


class Drifts(FakeTarget):
    """The used counter is not taken back."""

    def used_count(self) -> int:
        return max(self.used, 1)


class Overflows(FakeTarget):
    """Used and free are more than there is."""

    def free_count(self) -> int:
        return len(self.free) + self.used + 1


FAULTS = {
    "content_of_hit": (Forgets, 400),
    "length_of_hit": (HitsTooMuch, 400),
    "progress": (Refuses, 400),
    "drain": (Drifts, 400),
    "partition": (Overflows, 400),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name: str) -> None:
    target_class, blocks = FAULTS[name]
    made = list(generate_requests(60, seed=2, shape=SMALL))
    report, _ = replay(made, blocks, target_class=target_class)
    assert [violation.name for violation in report.violations] == [name]
    assert report.violations[0].message
    assert report.statistics.stopped
    assert report.statistics.violations == 1


def test_a_run_may_go_on_after_violations() -> None:
    found: list[ReplayViolation] = []
    config = PoolConfig(num_blocks=400, block_size=16)
    made = [request(0, 30, 20, 0), request(0, 50, 1, 1), request(100, 30, 1, 2)]
    options = ReplayOptions(stop_at_violation=False)
    report = Replay(Refuses(config), config, made, options, on_violation=found.append).run()
    assert [violation.name for violation in found] == ["progress", "progress"]
    assert found == report.violations
    assert {violation.request for violation in found} == {0, 1}
    assert (report.statistics.finished, report.statistics.given_up, report.statistics.stopped) == (1, 2, False)


@pytest.mark.parametrize(("blocks", "block_size"), [(7, 1), (9, 3), (9, 4), (7, 5)])
def test_one_request_can_have_what_fits_on_the_pages_with_padding(blocks: int, block_size: int) -> None:
    """As many as an empty pool finds when it tries all places."""
    for page_size in range(1, 3 * block_size):
        for pages in range(-(-block_size // page_size), blocks + 2):
            config = PoolConfig(num_blocks=blocks, block_size=block_size, num_pages=pages, page_size=page_size)
            assert most_blocks(config) == len(PagedPool(config, watch=False).can_be_had()), config


def test_what_is_refused_with_pages_is_given_up_and_left_to_the_judge() -> None:
    config = PoolConfig(num_blocks=400, block_size=16, num_pages=100, page_size=64)
    made = [request(0, 30, 20, 0), request(0, 50, 1, 1), request(100, 30, 1, 2)]
    report = Replay(Refuses(config), config, made).run()
    assert (report.statistics.finished, report.statistics.given_up, report.violations) == (1, 2, [])


class JudgeError(Exception):
    """What a judge raises."""


def failing(error: BaseException, after: int) -> type[FakeTarget]:
    """A target that raises in its n-th write."""

    class Failing(FakeTarget):
        writes = 0

        def write(self, batch: Sequence[tuple[str, Tags]]) -> None:
            self.writes += 1
            if self.writes > after:
                raise error
            super().write(batch)

    return Failing


def test_a_violation_of_the_judge_ends_the_run_and_is_kept() -> None:
    config = PoolConfig(num_blocks=400, block_size=16)
    error = JudgeError("free_iff_unheld: block 1")
    run = Replay(failing(error, 2)(config), config, [request(0, 30, 20, 0)], violation_types=(JudgeError,))
    report = run.run()
    assert run.raised is error
    assert report.violations == [ReplayViolation("JudgeError", 2, 60, None, "free_iff_unheld: block 1")]
    assert (report.statistics.stopped, report.statistics.steps) == (True, 2)


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(JudgeError):
        replay([request(0, 30, 20, 0)], 400, target_class=failing(JudgeError("x"), 2))


def test_an_interrupt_leaves_what_was_seen() -> None:
    report, _ = replay([request(0, 30, 20, 0)] * 2, 400, target_class=failing(KeyboardInterrupt(), 5))
    assert (report.statistics.interrupted, report.statistics.stopped) == (True, False)
    assert (report.statistics.steps, report.statistics.running, report.statistics.finished) == (5, 2, 0)
    check_series(report, 400)


def test_a_broken_trace_surfaces(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(msgspec.json.encode(request(0, 30, 2, 0)) + b"\n{")
    config = PoolConfig(num_blocks=400, block_size=16)
    with pytest.raises(WorkloadError, match="cut off"):
        Replay(FakeTarget(config), config, read_requests(path)).run()


class Blind(FakeTarget):
    """Shows nothing."""

    capabilities: frozenset[Capability] = frozenset()


def test_what_is_not_observed_is_said() -> None:
    report, _ = replay([request(0, 30, 2, 0)], 400, target_class=Blind)
    assert report.statistics.evictions is None
    assert report.series.used == report.series.free == report.series.cached == report.series.evictions == []
    assert report.statistics.finished == 1


def test_evictions_may_be_reported_by_the_caller() -> None:
    config = PoolConfig(num_blocks=400, block_size=16)
    seen: list[int] = []

    def watch(statistics: ReplayStatistics) -> None:
        seen.append(statistics.evictions or 0)

    target = FakeTarget(config)
    report = Replay(target, config, [request(0, 30, 2, 0)], evictions=lambda: 7, on_step=watch).run()
    assert report.statistics.evictions == 7
    assert seen == [7, 7, 7]
    assert target.events, "the events are left to the caller"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ReplayOptions(step_ms=0), "step_ms"),
        (lambda: ReplayOptions(max_running=0), "max_running"),
        (lambda: ReplayOptions(lookahead=-1), "lookahead"),
        (lambda: ReplayOptions(max_passes=-1), "max_passes"),
        (lambda: replay([], 10, block_size=24), "block size"),
        (lambda: replay([], 10, target_class=type("Odd", (FakeTarget,), {"hit_limit": "most"})), "hit_limit"),
    ],
)
def test_impossible_options_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


# -- the plot ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_class", [FakeTarget, Blind])
def test_the_plot_is_a_picture_and_overwrites_nothing(tmp_path: Path, target_class: type[FakeTarget]) -> None:
    report, _ = replay(list(generate_requests(30, seed=2, shape=SMALL)), 400, target_class=target_class)
    path = tmp_path / "replay.png"
    plot_replay(report, path, title="fake target")
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG")
    with pytest.raises(PlotError, match="exists"):
        plot_replay(report, path)
    assert path.read_bytes() == first
    plot_replay(report, path, overwrite=True)
    with pytest.raises(PlotError, match="cannot be written"):
        plot_replay(report, tmp_path / "absent" / "x.png")


def test_an_empty_run_has_a_plot(tmp_path: Path) -> None:
    report, _ = replay([], blocks=2)
    plot_replay(report, tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000
