"""What a user can give wrongly: one clear line on stderr, exit code 2, nothing written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvspec.cli.main import INTERRUPTED, run

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}\n'


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["prove", "--chapter", "block"], "unknown chapter 'block'"),
        (["prove", "--solver", "yices"], "yices"),
        (["prove", "--only", "nothing/such"], "nothing/such"),
        (["replay", "builtin", "--blocks", "0"], "--blocks: 0, expected at least 2"),
        (["replay", "builtin", "--blocks", "1"], "--blocks: 1, expected at least 2"),
        (["replay", "builtin", "--blocks", "1", "--window", "4"], "--blocks: 1, expected at least 2"),
        (["replay", "builtin", "--block-size", "0"], "--block-size: 0, expected a divisor of 512"),
        (["replay", "builtin", "--block-size", "24"], "--block-size: 24, expected a divisor of 512"),
        (["replay", "builtin", "--step-ms", "0"], "--step-ms: 0, expected at least 1"),
        (["replay", "builtin", "--max-running", "0"], "--max-running: 0, expected at least 1"),
        (["replay", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["replay", "builtin", "--target", "no.such.module:X"], "no.such.module"),
        (["replay", "builtin", "--target", "json:dumps.x"], "dumps.x"),
        (["replay", "builtin", "--requests", "0"], "--requests"),
        (
            ["replay", "builtin", "--requests", "1000001"],
            "--requests: 1000001, expected at most 1000000 with 'builtin'",
        ),
        (["replay", "builtin", "--blocks", str(2**31), "--block-size", "2"], "at most 2147483648 tokens in all"),
        (["replay", "builtin", "--blocks", "4194305", "--block-size", "512"], "4194305 blocks of 512 tokens"),
        (["replay", "builtin", "--json", "x", "--plot", "x"], "--plot: 'x' is the file of --json, too"),
        (["prove", "--json", "x", "--junit", "./x"], "--junit: 'x' is the file of --json, too"),
        (["check", "--json", "x", "--junit", "x"], "--junit: 'x' is the file of --json, too"),
        (["run", "a.kv", "--json", "x", "--junit", "x"], "--junit: 'x' is the file of --json, too"),
        (["conform", "torch", "--operations", "0"], "--operations"),
        (["conform", "nothing"], "nothing"),
        (["conform", "json:JSONDecoder"], "JSONDecoder"),
        (["run", "no-such-file.kv"], "no-such-file.kv"),
        (["explain", "no_such_name"], "no_such_name"),
        (["check", "--trace", "no-such-file.jsonl"], "no-such-file.jsonl"),
        (["check", "--json", "no/such/folder/x.json"], "no/such/folder"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_2(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(args) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert error[0].startswith("kvspec: error: ")
    assert said in error[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (LINE + LINE[:40], 2),
        (LINE.replace("600", "-1"), 1),
        (LINE.replace("[1, 2]", "[1]"), 1),
        (LINE + "\x00\n", 2),
        (LINE.replace("1, 2", '"a", 2'), 1),
        ("", None),
    ],
)
def test_a_broken_trace_names_the_line(
    text: str, line: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(text)
    assert run(["replay", str(trace)]) == 2
    error = capsys.readouterr().err.strip()
    assert str(trace) in error
    assert line is None or f":{line}" in error or f"line {line}" in error


@pytest.mark.parametrize(
    "text",
    [
        "pool 0 block 4\n",
        "pool 1 block 4\n",
        "pool 6 block 0\n",
        "pool 6 block 4\nallocate a\n",
        "pool 6 block 4\nfly a 3\n",
        "start a 1 2\n",
        "pool 6 block 4\nstart a 1\nexpect wonders\n",
    ],
)
def test_a_broken_scenario_names_the_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "broken.kv"
    scenario.write_text(text)
    assert run(["run", str(scenario)]) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert f"broken.kv:{len(text.splitlines())}" in error


def test_a_replay_of_nothing_is_not_green(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    pool = ["--block-size", "512", "--blocks", "2"]
    assert run(["replay", "builtin", "--requests", "3", *pool, "--json", str(file)]) == 3
    shown = capsys.readouterr().out
    assert "0 finished, 3 larger than the pool" in shown
    assert shown.splitlines()[-1] == "vacuous: nothing was judged, no request fits the pool"
    written = json.loads(file.read_text())
    assert (written["exit"], written["verdict"]) == (3, "vacuous")


@pytest.mark.parametrize("command", [["replay", "builtin", "--target"], ["conform"]])
def test_an_interrupted_run_ends_with_what_it_has(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*command, "interrupting:InterruptingTarget", "--json", "result.json"]) == INTERRUPTED
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert shown.out
    written = json.loads(Path("result.json").read_text())
    assert written["complete"] is False
    assert written["exit"] == INTERRUPTED
