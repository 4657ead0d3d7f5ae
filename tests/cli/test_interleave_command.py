"""``kvspec interleave``: what it prints, saves and returns."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from transcripts import same, transcripts

from kvspec.cli import interleaving
from kvspec.cli.main import INTERRUPTED, run
from kvspec.cli.output import Exit
from kvspec.impl.interleaving import scheduler, soak
from kvspec.impl.interleaving.builtin import PROGRAMS
from kvspec.impl.interleaving.explore import explore, read_script
from kvspec.impl.interleaving.programs import OPERATIONS, parse
from kvspec.impl.interleaving.steps import concurrent

GUIDE = (Path(__file__).parent.parent.parent / "docs" / "threads.md").read_text(encoding="utf-8")
LOCK, COUNTER = "faulty.concurrent_twins:plain_lock", "kvspec.impl.interleaving.soak:PlainCounter"
SMALL = (
    "blocks 3\nsetup: a = allocate 1; b = copy a\nthread: release b; c = allocate 1\nthread: finish a; d = allocate 1"
)
WORKSHOP = """
import os, signal, threading
from kvspec.impl.concurrent_block_manager_impl import ConcurrentBlockManagerImpl
from kvspec.impl.free_list_manager import FreeListManager

class OwnLock(ConcurrentBlockManagerImpl):
    def __init__(self, num_blocks, block_size, *, record_events, lock):
        super().__init__(num_blocks, block_size, record_events=record_events, lock=threading.RLock())

class Pressed(ConcurrentBlockManagerImpl):  # somebody presses Ctrl-C while a thread is in a call
    left = 0

    def allocate_shared(self, *args, **options):
        if threading.current_thread() is not threading.main_thread():
            Pressed.left -= 1
            if Pressed.left == 0:
                os.kill(os.getpid(), signal.SIGINT)
        return super().allocate_shared(*args, **options)

class NoLock(ConcurrentBlockManagerImpl):
    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)

def silent(stepper, num_blocks, block_size):
    return ConcurrentBlockManagerImpl(num_blocks, block_size)

def nothing(stepper, num_blocks, block_size):
    return None

five = 5
"""


def interleave(*args: str | Path) -> int:
    return run(["interleave", *map(str, args)])


@pytest.fixture(autouse=True)
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program and a module of managers; the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("workshop", "plain"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    Path("workshop.py").write_text(WORKSHOP)
    Path("small.threads").write_text(SMALL)
    return tmp_path


# -- every order ------------------------------------------------------------------------------------------------------
def test_every_order_of_the_built_in_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert interleave("builtin", "--json", "r.json") == Exit.HOLDS
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(Path("r.json").read_text())
    assert (found["format"], found["exit"], found["verdict"]) == ("kvspec/interleave", 0, "holds")
    assert [row["name"] for row in found["programs"]] == list(PROGRAMS)
    for row, line in zip(found["programs"], lines[1:], strict=False):
        assert parse(row["program"]) == parse(PROGRAMS[row["name"]])
        numbers = [row[column] for column in ("runs", "steps", "states", "classes")]
        assert line.split("  ")[0] == row["name"] and line.split()[-4:] == [f"{n:,}" for n in numbers]
    assert lines[-2].split() == ["all", *(f"{sum(r[c] for r in found['programs']):,}" for c in lines[0].split())]
    assert lines[-1] == "holds: every order of 6 programs is a serial one (bounded: these programs)"
    assert not Path("interleave-failures").exists()


def test_every_order_of_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert interleave("small.threads") == Exit.HOLDS
    head, row, last = capsys.readouterr().out.splitlines()
    coverage = explore(parse(SMALL), concurrent)
    assert head.split() == ["runs", "steps", "states", "classes"]
    assert row.split()[1:] == [f"{n:,}" for n in (coverage.runs, coverage.steps, coverage.states, coverage.classes)]
    assert last == "holds: every order of 1 program is a serial one (bounded: this program)"


def test_registers_that_nothing_fills_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("slip.threads").write_text(f"{SMALL}\nthread: release bb; publish c2 1; release bb")
    assert interleave("slip.threads") == Exit.HOLDS
    said = "slip.threads: nothing fills bb, c2, so what is done to it is done to no block"
    assert capsys.readouterr().out.splitlines()[-2] == said


def test_a_search_that_is_given_up_settles_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert interleave("--max-runs", "70", "--json", "r.json") == Exit.UNKNOWN
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "unknown: chains of two was given up after 70 runs; raise --max-runs"
    assert lines[-2].endswith(" ?") and lines[1].split()[-4:] == ["70", *lines[1].split()[-3:-1], "?"]
    assert json.loads(Path("r.json").read_text())["programs"][0]["classes"] is None


@pytest.mark.parametrize("text", ["blocks 3", "blocks 3\nthread:", "blocks 3\nthread: release a\nthread: release a"])
def test_threads_that_do_nothing_show_nothing(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("idle.threads").write_text(text)
    assert interleave("idle.threads") == Exit.UNKNOWN
    assert capsys.readouterr().out.splitlines()[-1] == "vacuous: no thread has taken a step"


def test_a_manager_that_announces_nothing_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert interleave("--target", "workshop:silent") == Exit.UNKNOWN
    assert capsys.readouterr().out.splitlines()[-1] == "vacuous: no thread has taken a step"


def test_a_manager_with_a_lock_of_its_own_cannot_be_scheduled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scheduler, "PATIENCE", 0.2)
    assert interleave("--target", "workshop:OwnLock") == Exit.UNKNOWN
    assert "neither takes a step nor ends: it waits for a lock that it was not given" in capsys.readouterr().out


# -- mistakes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("more", [(), ("--random", "50"), ("small.threads",)], ids=["builtin", "random", "file"])
@pytest.mark.parametrize(("target", "kind"), [(LOCK, "deadlock"), (COUNTER, "lost")], ids=["lock", "counter"])
def test_a_mistake_is_shown_saved_and_can_be_run_again(
    target: str, kind: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert interleave(*more, "--target", target, "--json", "r.json") == Exit.VIOLATED
    out, found = capsys.readouterr().out, json.loads(Path("r.json").read_text())
    assert (found["exit"], found["verdict"], found["complete"]) == (1, "violated", True)
    assert found["violation"].startswith(kind)
    assert f"\nVIOLATED {found['violation']}\n" in out and out.endswith(f"\nviolated: {found['violation']}\n")
    saved = Path(found["saved"])
    assert f"run it again: kvspec interleave {saved} --target {target}\n" in out
    program, schedule = read_script(saved.read_text())
    assert f"{program}\n" in found["script"] and schedule is not None and len(schedule) == len(found["log"])
    assert sum(map(len, program.threads)) <= 4

    assert interleave(saved, "--target", target, "--json", "again.json") == Exit.VIOLATED
    again = json.loads(Path("again.json").read_text())
    assert [again[key] for key in ("violation", "script", "log")] == [found[k] for k in ("violation", "script", "log")]
    assert again["saved"] is None and list(saved.parent.iterdir()) == [saved]


def test_a_function_that_makes_a_manager_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for target in (COUNTER, "kvspec.impl.interleaving.soak:plain_counter"):
        assert interleave("small.threads", "--target", target, "--save", "found") == Exit.VIOLATED
        shown.append(capsys.readouterr().out.partition("  saved as")[0])
    assert shown[0] == shown[1]


def test_a_schedule_on_another_manager(capsys: pytest.CaptureFixture[str]) -> None:
    Path("serial.threads").write_text(f"{SMALL}\nschedule: 1*5")
    assert interleave("serial.threads") == Exit.HOLDS
    told, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"serial\.threads: one run of \d+ steps, by its schedule", told)
    assert last == "holds: this order is a serial one (sampled: 1 run; without the schedule every order is run)"
    Path("odd.threads").write_text(f"{SMALL}\nschedule: 1*1 0*9")
    assert interleave("odd.threads") == Exit.BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith("kvspec: error: odd.threads: schedule, step 2: thread 0, expected one that can go on: [1]")


# -- at random, and for real ------------------------------------------------------------------------------------------
def test_random_programs(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--random", "12", "--threads", "4", "--operations", "6", "--blocks", "7", "--seed", "3", "--json", "r.json"]
    shown = []
    for _ in range(2):
        assert interleave(*args) == Exit.HOLDS
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    lines = shown[0].splitlines()
    assert lines[0] == "programs     12 of 4 threads with 6 operations each, 7 blocks, seeds 3 to 14"
    assert lines[-1] == "holds: 12 runs (sampled: one random schedule of each program)"
    found = json.loads(Path("r.json").read_text())
    assert (found["mode"], found["programs"], found["seed"]) == ("random", 12, 3)
    assert found["steps"] > found["switches"] > 12 * 3
    interleave(*args[:-4], "--seed", "4")
    assert capsys.readouterr().out.splitlines()[1] != lines[1]


def test_a_soak(capsys: pytest.CaptureFixture[str]) -> None:
    assert interleave("--soak", "12000", "--threads", "8", "--seed", "1", "--json", "r.json") == Exit.HOLDS
    planted, told, last = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"planted      a lost update, found in [\d,]+ operations", planted)
    assert " by 8 threads that really run, " in told
    found = json.loads(Path("r.json").read_text())
    assert found["planted"]["violation"] and found["soak"]["violation"] is None
    assert found["planted"]["operations"] <= 1_200 + 80 and found["soak"]["operations"] >= 12_000
    assert last == f"holds: {found['soak']['operations']} operations, and the pool was whole again at the end (sampled)"


def test_a_soak_that_would_not_find_a_mistake_is_not_green(capsys: pytest.CaptureFixture[str]) -> None:
    assert interleave("--soak", "9", "--json", "r.json") == Exit.UNKNOWN
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("planted      a lost update, not found in 0 operations")
    assert lines[-1] == "unknown: the planted lost update was not found in a tenth of the operations; raise --soak"
    assert json.loads(Path("r.json").read_text())["soak"]["violation"] is None


def test_a_soak_finds_mistakes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(soak, "PATIENCE", 0.3)
    for target, words in ((COUNTER, "violated: "), (LOCK, "violated: no return: ")):
        assert interleave("--soak", "12000", "--target", target) == Exit.VIOLATED
        assert capsys.readouterr().out.splitlines()[-1].startswith(words)


# -- bad input --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["absent.threads"], "absent.threads: No such file or directory"),
        (["."], ".: Is a directory"),
        (["small.threads", "--random", "3"], "PROGRAM, --random: given together, expected one of them"),
        (["--soak", "3", "--random", "3"], "--random, --soak: given together"),
        (["--threads", "3"], "--threads: it says nothing here, expected it with --random or --soak"),
        (["--soak", "3", "--operations", "3"], "--operations: it says nothing here, expected it with --random"),
        (["--soak", "3", "--max-runs", "3"], "--max-runs: it says nothing here, expected it with PROGRAM"),
        (["--random", "0"], "interleave: Invalid value for '--random'"),
        (["--random", "3", "--threads", "1"], "interleave: Invalid value for '--threads'"),
        (
            ["--random", "3", "--threads", "64", "--operations", "7"],
            "--operations: 448 operations, expected at most 400",
        ),
        (["--random", "3", "--blocks", "1000"], "interleave: Invalid value for '--blocks'"),
        (["--target", "nothing"], "--target: 'nothing' is no target, expected concurrent or package.module:attribute"),
        (["--target", "workshop:five"], "--target: workshop:five is no manager, expected a class with"),
        (["--target", "workshop:FreeListManager"], "--target: workshop:FreeListManager is no manager"),
        (["--target", "workshop:NoLock"], "--target: workshop:NoLock cannot be made: TypeError"),
        (["--target", "workshop:nothing"], "--target: workshop:nothing made a NoneType, expected a class with"),
        (["--save", "small.threads"], "--save: 'small.threads' is a file, expected a folder"),
        (["--json", "small.threads"], "--json: 'small.threads' exists and was not made by kvspec"),
    ],
)
def test_bad_input_is_one_line(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert interleave(*args) == Exit.BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith(f"kvspec: error: {message}") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "p: 0 blocks, expected a line: blocks N"),
        (b"\xff", "p: byte 0 is no UTF-8, expected a program of threads"),
        (b"#" * (1 << 20) + b"\n", "p: the file is too large, expected at most 1048576 bytes"),
        (b"blocks 3\nthread: count; fork a", "p:2: fork a, expected one of allocate, match, "),
        (b"blocks 3\n\nthread: a = allocate x", "p:3: a = allocate x, expected register = allocate number"),
        (b"blocks 3\nthread: finish", "p:2: finish, expected finish register"),
        (b"blocks 3\nthreads: count", "p:2: threads: count, expected blocks N"),
        (b"blocks 3\n# one\nthread: count\nschedule: 0", "p:4: 0, expected thread*steps"),
        (b"blocks 3\nthread: count\nschedule: 7*1", "p: schedule, step 1: thread 7, expected one that can go on: [0]"),
    ],
)
def test_a_bad_program_is_refused_with_its_line(data: bytes, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p").write_bytes(data)
    assert interleave("p") == Exit.BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith(f"kvspec: error: {message}") and said.count("\n") == 1


# -- interruption -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("args", "mode", "calls"),
    [([], "orders", 200), (["--random", "200"], "random", 30), (["--soak", "20000"], "soak", 300)],
    ids=["orders", "random", "soak"],
)
def test_an_interruption_says_how_far_it_got(
    args: list[str], mode: str, calls: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("workshop.py").write_text(WORKSHOP.replace("left = 0", f"left = {calls}"))
    assert interleave(*args, "--target", "workshop:Pressed", "--json", "r.json") == INTERRUPTED
    out, err = capsys.readouterr()
    assert err == "kvspec: interrupted\n"
    assert out.splitlines()[-1] == "unknown: interrupted, and nothing is said of the rest"
    found = json.loads(Path("r.json").read_text())
    assert (found["complete"], found["exit"], found["verdict"]) == (False, INTERRUPTED, "unknown")
    assert found["mode"] == mode


def test_what_was_found_is_shown_though_it_could_not_be_shrunk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(interleaving, "_smallest", press)
    assert interleave("small.threads", "--target", COUNTER, "--json", "r.json") == INTERRUPTED
    out, found = capsys.readouterr().out, json.loads(Path("r.json").read_text())
    assert out.splitlines()[-1] == f"violated: {found['violation']}"
    assert (found["complete"], found["exit"], found["verdict"]) == (False, INTERRUPTED, "violated")
    assert read_script(Path(found["saved"]).read_text()).program == parse(SMALL)


# -- the guide --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("command", "shown"), transcripts(GUIDE), ids=[c for c, _ in transcripts(GUIDE)])
def test_a_transcript_is_what_the_command_prints(command: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("plain.py").write_text(re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0])
    assert run(command.split()) == (Exit.VIOLATED if "VIOLATED" in shown else Exit.HOLDS)
    printed = capsys.readouterr().out
    assert same(printed, shown), printed


def test_the_guide_has_every_operation_and_its_example_runs() -> None:
    rows = dict(re.findall(r"^\| `(?:r = )?(\w+)([^`]*)` \|", GUIDE, flags=re.MULTILINE))
    assert {name: len(arguments.split()) for name, arguments in rows.items()} == {
        name: len(operation.takes) for name, operation in OPERATIONS.items()
    }
    program = re.findall(r"```\n(blocks .*?)```", GUIDE, re.DOTALL)[0]
    assert explore(parse(program), concurrent).classes is not None
