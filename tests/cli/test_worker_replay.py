"""``kvspec replay --worker``: a trace made small, run on the pool, and compared with each request alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from equivalence.twins import RestoreSkipped
from transcripts import transcripts

from kvspec.cli import worker_replay
from kvspec.cli.main import INTERRUPTED, run
from kvspec.cli.replay_command import WORKER_ONLY, replay
from kvspec.cli.worker_trace import scaled
from kvspec.impl.sequence import Sequence as KVSequence
from kvspec.impl.worker.engine import CountingPool, Engine
from kvspec.impl.worker.stream import Disturbance
from kvspec.model.generate_workload import generate_requests
from kvspec.model.workload import Request, read_requests, request_tokens

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT.parent / "shared" / "traces" / "mooncake_conversation.jsonl"
BUILT_IN = ["replay", "builtin", "--worker", "--requests", "40", "--blocks", "560"]


def test_outputs_on_a_full_pool_are_those_of_each_request_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    assert run([*BUILT_IN, "--ranks", "2", "--interval", "32", "--trim", "deepest", "--json", str(file)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "holds: every request says what it says alone (sampled: one run)"
    assert "40 to run, 0 larger than the pool" in shown[2]
    written = json.loads(file.read_text())
    assert (written["format"], written["exit"], written["verdict"]) == ("kvspec/replay-worker", 0, "holds")
    report = written["report"]
    assert 0 < report["largest_difference"] < report["tolerance"]
    counts = report["counts"]
    assert min(counts[name] for name in ("hit_tokens", "saves", "restores", "evicted_blocks")) > 0
    assert counts["misuse"] == 0


def test_a_pool_that_answers_wrongly_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_replay, "Engine", RestoreSkipped)
    file = tmp_path / "r.json"
    assert run([*BUILT_IN, "--json", str(file)]) == 1
    shown = capsys.readouterr().out
    report = json.loads(file.read_text())["report"]
    assert report["different"]
    assert f"request {report['different'][0]}" in shown or f": {report['different'][0]}" in shown
    assert shown.splitlines()[-1].startswith("violated: ")
    assert report["largest_difference"] > 100 * report["tolerance"]


class Interrupted(Engine):
    """Somebody presses Ctrl-C in the fourth step."""

    def step(self, disturbances: Sequence[Disturbance] = ()) -> None:
        """A step, or the interrupt."""
        if self.counts_.steps > 3:
            raise KeyboardInterrupt
        super().step(disturbances)


def test_an_interrupted_run_leaves_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_replay, "Engine", Interrupted)
    file = tmp_path / "r.json"
    assert run([*BUILT_IN, "--json", str(file)]) == INTERRUPTED
    written = json.loads(file.read_text())
    assert (written["complete"], written["exit"], written["verdict"]) == (False, INTERRUPTED, "interrupted")
    assert written["report"]["counts"]["computed_tokens"] > 0
    assert written["report"]["largest_difference"] is None


class Refusing(CountingPool):
    """Has room for nobody."""

    def allocate(self, sequence: KVSequence, num_tokens: int) -> bool:
        """Refused."""
        return False


def test_a_pool_that_refuses_what_fits_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "make_manager", lambda engine: Refusing(engine.config_.pool))
    assert run(BUILT_IN) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].startswith("violated: Engine.step: request 0 is refused though nothing runs")


@pytest.mark.needs_file(TRACE)
def test_a_slice_of_a_real_trace(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    command = ["replay", str(TRACE), "--worker", "--requests", "40", "--blocks", "8000", "--json", str(file)]
    assert run(command) == 0
    report = json.loads(file.read_text())["report"]
    assert report["requests"] == 40
    wanted = ("hit_tokens", "saves", "restores", "trimmed_blocks", "evicted_blocks", "evicted_states", "preemptions")
    assert min(report["counts"][name] for name in wanted) > 0


def test_a_run_of_nothing_is_not_green(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "builtin", "--worker", "--requests", "3", "--blocks", "32"]) == 3
    assert capsys.readouterr().out.splitlines()[-1] == "vacuous: nothing was judged, no request fits the pool"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--divide", "3"], "--divide: 3, expected a divisor of 512"),
        (["--divide", "0"], "--divide: 0, expected a divisor of 512"),
        (["--slots", "1"], "--slots: 1, expected 2 to 65536, slot 0 (padding) included"),
        (["--slots", "0"], "--slots: 0, expected 2 to 65536, slot 0 (padding) included"),
        (["--interval", "0"], "--interval: 0, expected 1 to"),
        (["--ranks", "0"], "--ranks: 0, expected 1 to"),
        (["--ranks", "65536"], "--ranks: 65536, expected 1 to 1024"),
        (["--slots", "1000000000"], "--slots: 1000000000, expected 2 to 65536, slot 0"),
        (["--interval", "1000000000"], "--interval: 1000000000, expected 1 to 65536"),
        (["--slots", "65536", "--ranks", "1024"], "140.9 GiB of K, V and states, expected at most 4 GiB in all"),
        (["--blocks", "4000000", "--ranks", "8"], "--blocks, --slots, --ranks: 7.6 GiB of K, V and states, expected"),
        (["--blocks", "134217728"], "--blocks, --slots, --ranks: 32.0 GiB of K, V and states, expected"),
        (["--blocks", "1000000000000"], "--blocks: 1000000000000 blocks of 16 tokens, expected at most"),
        (["--trim", "widest"], "--trim: 'widest', expected contiguous or deepest"),
        (["--blocks", "16"], "--blocks: 16, expected at least 32: 2 once divided by 16, of which one is padding"),
        (["--block-size", "24"], "512"),
        (["--step-ms", "0"], "--step-ms: 0, expected at least 1"),
        (["--max-running", "0"], "--max-running: 0, expected at least 1"),
        (["--target", "model"], "error: --target: given with --worker, expected without it"),
        (["--target", "pool"], "error: --target: given with --worker, expected without it"),
        (["--plot", "x.png"], "error: --plot: given with --worker, expected without it"),
        (["--sweep-steps", "9", "--plot", "x.png"], "error: --sweep-steps, --plot: given with --worker, expected"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_makes_no_sense_is_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["replay", "builtin", "--worker", "--requests", "2", *options]) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert said in error
    assert not list(tmp_path.iterdir())


ONLY = [("--divide", "16"), ("--slots", "400"), ("--interval", "64"), ("--trim", "contiguous")]


@pytest.mark.parametrize("option", ONLY, ids=lambda option: option[0])
def test_what_only_the_worker_has_is_not_ignored_without_it(
    option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", "builtin", "--requests", "2", *option]) == 2
    said = "given without --worker, expected beside it"
    assert capsys.readouterr() == ("", f"kvspec: error: {option[0]}: {said}\n")


def test_every_option_that_says_so_is_of_the_worker_only() -> None:
    hints = get_type_hints(replay, include_extras=True)
    helps = {name: getattr(part, "help", None) for name, h in hints.items() for part in getattr(h, "__metadata__", ())}
    said = {name for name, text in helps.items() if text and text.startswith("With --worker: ")}
    assert said == set(WORKER_ONLY) == {option.removeprefix("--") for option, _ in ONLY}


@pytest.mark.parametrize("wanted", [10**9, 10**30])
def test_no_more_single_blocks_are_made_than_requests_can_run(wanted: int, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    command = ["replay", "builtin", "--worker", "--requests", "3", "--max-running", str(wanted), "--json", str(file)]
    assert run(command) == 0
    config = json.loads(file.read_text())["report"]["config"]
    assert (config["max_running"], config["pool"]["num_single_blocks"]) == (3, 4)


BESIDE = [
    ("--host-blocks", "6"), ("--fail-copies", "2"), ("--window", "4"), ("--pages", "9"), ("--page-size", "64"),
    ("--threads", "2"),
]  # fmt: skip


@pytest.mark.parametrize("option", BESIDE, ids=lambda option: option[0])
def test_what_the_worker_does_not_have_is_not_ignored_with_it(
    option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*BUILT_IN, *option]) == 2
    assert f"kvspec: error: {option[0]}: given with --worker, expected without it" in capsys.readouterr().err


# -- the trace made small ----------------------------------------------------------------------------------------------


def test_lengths_are_divided_and_rounded_up() -> None:
    trace = list(generate_requests(40, seed=3))
    for divide in (1, 16, 512):
        for request, small in zip(trace, scaled(trace, divide, 30, 64), strict=True):
            assert len(small.prompt) == -(-request.input_length // divide)
            assert small.num_outputs == max(-(-request.output_length // divide), 1)
            assert small.arrival * 30 * divide >= request.timestamp > (small.arrival - 1) * 30 * divide


def test_what_is_shared_stays_shared() -> None:
    trace = list(generate_requests(60, seed=4))
    small = scaled(trace, 16, 30, 64)
    seen = 0
    for (one, first), (other, second) in pairwise(zip(trace, small, strict=True)):
        common = shared(one.hash_ids, other.hash_ids)
        if common and common < min(len(one.hash_ids), len(other.hash_ids)):
            seen += 1
            assert shared(first.prompt, second.prompt) in range(common * 32, common * 32 + 10)
    assert seen > 10


def test_an_undivided_trace_keeps_its_tokens_apart() -> None:
    request = Request(timestamp=0, input_length=600, output_length=3, hash_ids=(5, 9))
    (small,) = scaled([request], 1, 30, 1 << 30)
    tokens = (*small.prompt, *(small.outputs or ()))
    assert len(set(tokens)) == len(request_tokens(0, request)) == 603
    (folded,) = scaled([request], 1, 30, 64)
    assert len(np.bincount(folded.prompt, minlength=64).nonzero()[0]) > 60


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Places from the start in which two lines agree."""
    length = min(len(one), len(other))
    return next((n for n in range(length) if one[n] != other[n]), length)


@pytest.mark.needs_file(TRACE)
def test_a_real_trace_is_as_long_as_it_says() -> None:
    trace = list(read_requests(TRACE, 100))
    assert [len(small.prompt) for small in scaled(trace, 32, 30, 64)] == [-(-r.input_length // 32) for r in trace]


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    ((command, shown),) = transcripts((ROOT / "docs" / "worker.md").read_text(encoding="utf-8"))
    assert run(command.split()) == 0
    # The difference is rounding, which is not the same on every machine.
    assert without_difference(capsys.readouterr().out) == without_difference(shown)


def without_difference(text: str) -> list[str]:
    """Lines of a report but the one with the difference."""
    return [line for line in text.strip().splitlines() if not line.startswith("difference")]
