"""A replay on pools of ranks, host tiers, composites, pages on demand and threads: the same workload, judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from faulty.tier_twins import build

from kvspec.cli.main import run
from kvspec.cli.targets import load_target
from kvspec.impl.composite_target import TorchCompositeTarget
from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import Capability, ManagerType, PoolConfig, Tags
from kvspec.model.generate_workload import generate_requests
from kvspec.model.judged import JudgedReplay
from kvspec.model.promises import Family
from kvspec.model.replay import ReplayOptions, ReplayReport

REQUESTS = list(generate_requests(25, seed=0))
SIZE = {"num_blocks": 300, "block_size": 16}
HOST = PoolConfig(**SIZE, num_single_blocks=64, num_host_blocks=600)
FULL, WINDOW = ManagerType(300, 16), ManagerType(300, 16, 64)
VARIANTS = {
    "ranks": PoolConfig(**SIZE, num_single_blocks=64, num_ranks=2),
    "host": HOST,
    "host and ranks": msgspec.structs.replace(HOST, num_ranks=2),
    "windows": PoolConfig(**SIZE, enable_prefix_cache=False, manager_types=(FULL, WINDOW)),
    "pages": PoolConfig(**SIZE, num_pages=80, page_size=64),
    "threads": PoolConfig(**SIZE, num_threads=3),
}


def replayed(config: PoolConfig, make: Any = None, **options: Any) -> tuple[JudgedReplay, ReplayReport]:
    judged = JudgedReplay(make or load_target("torch"), config, REQUESTS, ReplayOptions(**options), sweep_steps=200)
    return judged, judged.run()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_workload_is_served_to_its_end(variant: str) -> None:
    judged, report = replayed(VARIANTS[variant])
    assert judged.violation is None and not report.violations, judged.violation
    assert report.statistics.finished == len(REQUESTS) and judged.sweeps > 1
    assert max(report.series.used) <= report.usable_blocks
    counted: dict[str, Callable[[], int]] = {
        "ranks": lambda: judged.acceptor.counts["ranks"],
        "host": lambda: report.statistics.host_hit_tokens or 0,
        "host and ranks": lambda: report.statistics.copies or 0,
        "windows": lambda: judged.acceptor.counts["slides"],
        "pages": lambda: report.statistics.hit_tokens,
        "threads": lambda: report.statistics.hit_tokens,
    }
    assert counted[variant]() > 0


@pytest.mark.parametrize("target", ["torch", "model"])
@pytest.mark.parametrize("page_size", [24, 64])
def test_requests_that_the_pages_have_no_room_for_are_larger_than_the_pool(target: str, page_size: int) -> None:
    config = PoolConfig(**SIZE, num_pages=60 * 64 // page_size, page_size=page_size)
    judged, report = replayed(config, load_target(target))
    larger = sum(r.total_length > 239 * 16 for r in REQUESTS)
    assert judged.violation is None and not report.violations and report.statistics.given_up == 0
    assert 0 < larger == report.statistics.rejected == len(REQUESTS) - report.statistics.finished


class Loses(TorchCompositeTarget):
    """What is read of the second group lacks what was written last."""

    def read(self, seq: str, start: int, stop: int, group: int = 0) -> Tags:
        found = super().read(seq, start, stop, group)
        return found if group == 0 else np.where(np.arange(start, stop) == stop - 1, 0, found)


def test_contents_of_a_composite_are_read_before_a_request_ends() -> None:
    config = VARIANTS["windows"]
    judged, report = replayed(config)
    assert judged.acceptor.counts["reads"] >= report.statistics.finished
    judged, _ = replayed(config, Loses)
    assert judged.violation is not None and judged.violation.family is Family.CONTENT


def test_what_was_not_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["replay", "builtin", "--requests", "1"]
    assert run(words) == run([*words, "--target", f"{__name__}:Blind"]) == run([*words, "--window", "64"]) == 0
    plain, blind, windows = capsys.readouterr().out.split("pool  ")[1:]
    assert "operations, contents not read, as nothing was hit, " in plain and "contents not observed" in blind
    assert "reads of contents" not in plain + blind and "read of contents" in windows
    assert "hits  " in plain and "hits  " not in windows


class Blind(TorchTarget):
    """A manager that shows no contents."""

    capabilities = TorchTarget.capabilities - {Capability.CONTENTS}


def test_what_the_device_has_dropped_is_hit_on_the_host() -> None:
    """Of all prompt tokens each is hit on the device, loaded from the host, or computed."""
    with_host, without = (replayed(msgspec.structs.replace(HOST, num_host_blocks=n))[1].statistics for n in (600, 0))
    assert with_host.host_hit_tokens and with_host.written_tokens < without.written_tokens
    assert without.host_hit_tokens is None and without.copies is None


def test_failed_copies_cost_their_tokens_and_nothing_else() -> None:
    judged, report = replayed(HOST, fail_copies=4)
    statistics = report.statistics
    assert judged.violation is None and statistics.finished == len(REQUESTS)
    assert statistics.failed_copies * 3 <= (statistics.copies or 0) <= statistics.failed_copies * 3 + 3


def test_a_failed_load_that_counts_as_done_is_found_in_a_replay() -> None:
    judged, report = replayed(HOST, build("B54"), fail_copies=4)
    assert judged.violation is not None and judged.violation.family is Family.TIERS
    assert report.statistics.stopped


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host-blocks", "1"], "--host-blocks: 1, expected 0, or at least 2 (host block 0 is padding)"),
        (["--target", "pool", "--window", "4"], "a config of a composite"),
        (["--ranks", "0"], "--ranks: 0, expected 1 to 1024"),
        (["--threads", "0"], "--threads"),
        (["--threads", "65"], "--threads: 65, expected 1 to 64"),
        (["--fail-copies", "2"], "--fail-copies: given without --host-blocks, expected beside it"),
        (["--page-size", "32"], "--page-size: given without --pages, expected beside it"),
        (["--host-blocks", "999999999999"], "a pool of 16000000324080 tokens, expected at most 2147483648"),
        (["--pages", "999999999999"], "a pool of 64000000319936 tokens, expected at most 2147483648"),
        (["--ranks", "1024", "--blocks", "999999"], "at most 2147483648 in all ranks, tiers, groups and pages"),
        (["--window", "4", "--window", "0", "--blocks", "99999999"], "a pool of 3199999968 tokens"),
        (["--target", "hierarchy"], "TorchHierarchyTarget: a config of a manager"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "builtin", "--requests", "2", *options]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("kvspec: error:") == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--window", "--pages"), ("--window", "--ranks"), ("--window", "--host-blocks"),
        ("--pages", "--ranks"), ("--pages", "--host-blocks"),
    ],
)  # fmt: skip
def test_variants_that_are_none_together_are_named_by_their_options(
    one: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "builtin", other, "9", one, "9"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"kvspec: error: {one}: given with {other}, expected one of the two: a ")
    assert error.count("\n") == 1


def test_the_command_says_what_came_from_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["replay", "builtin", "--requests", "20", "--blocks", "200", "--host-blocks", "400", "--ranks", "2"]
    assert run(words) == 0
    told = capsys.readouterr().out
    assert "199 usable blocks of 16 tokens on each of 2 ranks, 399 on the host" in told
    assert "prompt tokens on the device (" in told and "more tokens came from the host" in told
    assert "holds: 0 violations" in told
