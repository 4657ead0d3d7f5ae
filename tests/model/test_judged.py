"""A judged replay: what it finds, and that it finds nothing in the managers that come with kvspec."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import PoolConfig, Tags
from kvspec.model.generate_workload import generate_requests
from kvspec.model.judged import JudgedReplay
from kvspec.model.reference import ModelTarget
from kvspec.model.workload import Request, read_requests, shared_prefixes

TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces" / "mooncake_conversation.jsonl"


@pytest.mark.parametrize("make", [TorchTarget, ModelTarget])
def test_the_built_in_workload_replays_without_a_violation(make: type) -> None:
    requests = list(generate_requests(40, seed=2))
    run = JudgedReplay(make, PoolConfig(num_blocks=700, block_size=16), requests, sweep_steps=200)
    report = run.run()
    assert run.violation is None
    assert report.violations == []
    assert report.statistics.finished + report.statistics.rejected == 40
    assert (report.statistics.evictions or 0) > 100
    assert report.statistics.hit_tokens > 0
    assert run.sweeps > 2


def test_hits_with_an_unlimited_pool_equal_the_independent_count() -> None:
    requests = list(generate_requests(60, seed=3))
    run = JudgedReplay(TorchTarget, PoolConfig(num_blocks=40_000, block_size=16), requests)
    report = run.run()
    count = shared_prefixes(requests, 16, hit_limit="all_but_one", step_ms=30)
    assert run.violation is None
    assert report.statistics.evictions == 0
    assert report.statistics.hit_tokens == count.hit_tokens > 0


@pytest.mark.needs_file(TRACE)
def test_the_real_trace_replays_without_a_violation() -> None:
    requests: list[Request] = list(read_requests(TRACE, limit=30))
    run = JudgedReplay(TorchTarget, PoolConfig(num_blocks=4_000, block_size=32), requests, sweep_steps=500)
    report = run.run()
    assert run.violation is None
    assert report.statistics.finished + report.statistics.rejected == 30


class _WritesElsewhere(TorchTarget):
    """Every hundredth step lands as other content."""

    steps = 0

    def write(self, batch: object) -> None:
        type(self).steps += 1
        parts: list[tuple[str, Tags]] = list(batch)  # type: ignore[call-overload]
        super().write([(s, t + 1) for s, t in parts] if self.steps % 100 == 0 else parts)


class _ForgetsOne(TorchTarget):
    """Every hundredth preempted or finished sequence leaves a block behind."""

    ends = 0

    def deallocate(self, seq: str) -> None:
        type(self).ends += 1
        if self.ends % 10 == 0 and len(self.block_table(seq)):
            super().hold(self.block_table(seq)[0])
        super().deallocate(seq)


@pytest.mark.parametrize(("make", "family"), [(_WritesElsewhere, "content"), (_ForgetsOne, "holders")])
def test_a_fault_in_a_long_run_is_found(make: type[TorchTarget], family: str) -> None:
    requests = list(generate_requests(30, seed=4))
    run = JudgedReplay(make, PoolConfig(num_blocks=4_000, block_size=16), requests, sweep_steps=50)
    run.run()
    assert run.violation is not None
    assert run.violation.family == family
