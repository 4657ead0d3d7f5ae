"""``--exec``: what commands print, save and return where another process speaks for the manager."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from planted_children import all_ended, pids, planted

from kvspec.cli.main import run
from kvspec.cli.output import Exit

ROOT = Path(__file__).parent.parent.parent
DRIVER = shlex.join([sys.executable, str(ROOT / "docs" / "drivers" / "paged_driver.py")])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mistaken(folder: Path, line: str) -> str:
    """The driver with a line more where it publishes the blocks of a sequence; it keeps a list of its processes."""
    source = (ROOT / "docs" / "drivers" / "paged_driver.py").read_text(encoding="utf-8")
    begin = "    def cache(self, seq):\n        s = self.seq(seq)\n"
    assert source.count(begin) == 1
    note = f"import os, time\nprint(os.getpid(), file=open({str(folder / 'pids')!r}, 'a'))\n"
    (folder / "mistaken.py").write_text(note + source.replace(begin, f"{begin}        {line}\n"), encoding="utf-8")
    return shlex.join([sys.executable, str(folder / "mistaken.py")])


def test_a_driver_holds_under_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["conform", "--exec", DRIVER, "--operations", "600", "--json", "o.json", "--junit", "o.xml"]
    assert run(command) == Exit.HOLDS
    out = capsys.readouterr().out
    assert out.startswith("paged-py: 6") and "paged-py 1.0" in out and "\nholds: " in out
    body = json.loads(Path("o.json").read_text())
    assert body["target"] == "paged-py" and body["report"]["about"]["version"] == "1.0" and body["last words"] == []
    assert '"kvspec conform paged-py"' in Path("o.xml").read_text()


def test_a_violation_is_saved_and_its_commands_run_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", "--exec", f"{DRIVER} --fault leak", "--call-seconds", "20"]) == Exit.VIOLATED
    out = capsys.readouterr().out
    saved = Path("conform-failures/paged-py.holders.ref_count.kv")
    (again,) = re.findall(r"run it again: kvspec (.*)", out)
    assert "the last lines on standard error" not in out
    assert shlex.split(again)[1:] == [
        "--exec", f"{DRIVER} --fault leak", "--call-seconds", "20", "--replay", str(saved)
    ]  # fmt: skip
    assert run(shlex.split(again)) == Exit.VIOLATED
    assert "holders/ref_count" in capsys.readouterr().out
    assert run(["conform", "--exec", DRIVER, "--replay", str(saved)]) == Exit.HOLDS
    assert run(["run", str(saved), "--exec", f"{DRIVER} --fault leak", "--json", "r.json"]) == Exit.VIOLATED
    assert json.loads(Path("r.json").read_text())["target"] == "paged-py"
    (found,) = re.findall(r"^# found by kvspec (.*)$", saved.read_text(), re.MULTILINE)
    capsys.readouterr()
    assert run(shlex.split(found)) == Exit.VIOLATED
    assert "VIOLATED holders/ref_count" in capsys.readouterr().out


def test_a_trace_is_replayed_on_a_driver(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["replay", "builtin", "--requests", "3", "--blocks", "400", "--exec", DRIVER, "--json", "o.json"]
    assert run(command) == Exit.HOLDS
    assert json.loads(Path("o.json").read_text())["target"] == "paged-py"
    assert "holds: 0 violations" in capsys.readouterr().out


def test_what_a_process_said_last_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = mistaken(folder, r"print('first\nassertion failed', file=sys.stderr); sys.exit(3)")
    assert run(["conform", "--exec", command, "--json", "o.json"]) == Exit.VIOLATED
    out = capsys.readouterr().out
    assert "VIOLATED misuse/crash by operation 2: " in out
    assert "was not answered, as its process has ended with exit code 3; the last line on its standard error: " in out
    assert "\n  the last lines on standard error:\n    first\n    assertion failed\n" in out
    assert json.loads(Path("o.json").read_text())["last words"] == ["first", "assertion failed"]
    assert len(pids(folder)) > 2 and all_ended(folder)


def test_what_a_process_says_moves_no_cursor_and_its_scenario_reads_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = r"print('\x1b[2J\0', file=sys.stderr); raise ValueError('a\0\x1b[2J\nb\u2028c\x85' + 9000 * 'd')"
    command = mistaken(folder, line)
    assert run(["conform", "--exec", command, "--json", "o.json", "--junit", "o.xml"]) == Exit.VIOLATED
    out = capsys.readouterr().out
    assert "the target failed: ValueError: a\\x00\\x1b[2J b c ddd" in out
    assert all(line.isprintable() and len(line) < 2500 for line in out.splitlines())
    (saved,) = Path("conform-failures").iterdir()
    assert run(["conform", "--exec", command, "--replay", str(saved)]) == Exit.VIOLATED
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    "again",
    ["method == 'make'", "method == 'hello'", "method == 'start' and params['seq'] != 'never'"],
    ids=["not made", "not started", "ends elsewhere"],
)
def test_a_violation_stays_found_whatever_becomes_of_the_process(
    folder: Path, again: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends once in an operation; from then on it fails in another way."""
    plant = f"""
    if os.path.exists("failed") and {again}:
        os._exit(5)
    if method == "drain_events":
        open("failed", "w")
        os._exit(4)
    """
    command = shlex.join(planted(folder, plant))
    arguments = ["conform", "--exec", command, "--form", "managers", "--json", "o.json"]
    assert run(arguments) == Exit.VIOLATED
    caught = capsys.readouterr()
    assert "VIOLATED misuse/crash by operation " in caught.out and caught.err == ""
    assert json.loads(Path("o.json").read_text())["report"]["violation"]["family"] == "misuse"
    assert all_ended(folder)


def test_a_violation_that_cannot_be_saved_is_told_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    arguments = ["conform", "--exec", f"{DRIVER} --fault leak", "--save", f"y/{long}", "--json", "o.json"]
    assert run(arguments) == Exit.VIOLATED
    caught = capsys.readouterr()
    assert f"\n  not saved: y/{long}: File name too long\n" in caught.out and "run it again" not in caught.out
    assert caught.out.rstrip().splitlines()[-1].startswith("violated: holders/ref_count")
    assert json.loads(Path("o.json").read_text())["saved"] is None


def test_a_call_that_takes_too_long_is_a_violation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = mistaken(folder, "time.sleep(600)")
    assert run(["conform", "--exec", command, "--call-seconds", "2"]) == Exit.VIOLATED
    out = capsys.readouterr().out
    assert "VIOLATED misuse/no_return by operation " in out and "--call-seconds 2 --replay" in out
    assert re.search(r"(cache|deallocate) has not returned: no answer came within ", out)
    assert all_ended(folder)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["conform"], "TARGET: missing, expected torch, "),
        (["conform", "model", "--exec", "x"], "--exec: given with the target model, expected one of them"),
        (["conform", "model", "--call-seconds", "3"], "--call-seconds: given without --exec, expected beside it"),
        (["conform", "--exec", ""], "--exec: nothing, expected a command line"),
        (["conform", "--exec", "a 'b"], "cannot be split (No closing quotation), expected a command line"),
        (["conform", "--exec", "x", "--call-seconds", "0"], "--call-seconds: 0.0, expected more than 0"),
        (["conform", "--exec", "x", "--threads", "2"], "--threads: given with --exec, expected one of them"),
        (["conform", "--exec", "no_such_command -x"], "--exec: 'no_such_command -x' cannot be started: "),
        (["conform", "--exec", "false"], "--exec: 'false' did not say hello: its process has ended with exit code 1"),
        (["conform", "--exec", "echo loading"], "--exec: 'echo loading' has written to its standard output what is no"),
        (["conform", "--exec", DRIVER, "--form", "pools"], "--exec: paged-py cannot be driven as a pool of ranks: "),
        (["conform", "--exec", "false", "--replay", "absent.kv"], "--exec: 'false' did not say hello"),
        (["replay", "builtin", "--exec", "false", "--threads", "2"], "--threads: given with --exec"),
        (["replay", "builtin", "--worker", "--exec", "x"], "--exec: given with --worker"),
        (["replay", "builtin", "--exec", "x", "--target", "model"], "--exec: given with the target model"),
    ],
)
def test_bad_input_is_one_line(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == Exit.BAD_INPUT
    caught = capsys.readouterr()
    assert caught.out == "" and caught.err.count("\n") == 1
    assert caught.err.startswith("kvspec: error: ") and words in caught.err


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        ("if method == 'start': say('starting\\n')", "planted has written to its standard output what is no answer"),
        ("if method == 'start': answer(3); continue", "planted has answered start with Expected `null`, got `int`"),
        ("if method == 'make': sys.exit(1)", "planted did not make a target with PoolConfig(num_blocks=4, "),
    ],
)
def test_what_is_no_answer_ends_the_run_with_a_line(
    folder: Path, plant: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["conform", "--exec", shlex.join(planted(folder, plant)), "--form", "managers"]) == Exit.BAD_INPUT
    err = capsys.readouterr().err
    assert err.startswith("kvspec: error: --exec: ") and words in err and err.count("\n") == 1
    assert all_ended(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_process_too(folder: Path, number: int) -> None:
    """Also in the middle of a call that does not return."""
    command = shlex.join(planted(folder, "if method == 'start': time.sleep(600)"))
    words = ["conform", "--exec", command, "--form", "managers", "--call-seconds", "500"]
    program = "import sys; from kvspec.cli.main import run; sys.exit(run(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while process.poll() is None and not _has_begun(folder):
            time.sleep(0.02)
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and "(interrupted)" in out and "Traceback" not in err
    assert pids(folder) and all_ended(folder)


def _has_begun(folder: Path) -> bool:
    file = folder / "calls"
    return file.exists() and "\nstart " in file.read_text()
