"""The command line as such: what is imported when, exit codes, errors in one line."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest
from cli_commands import COMMANDS as TEST_COMMANDS

from kvspec.cli import main
from kvspec.cli.main import BROKEN_PIPE, COMMANDS, INTERNAL_ERROR, INTERRUPTED, Command, run
from kvspec.cli.targets import JUDGED_HELP, TARGET_HELP

TESTS = Path(__file__).parent.parent
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from cli_commands import COMMANDS
from kvspec.cli.main import run
sys.exit(run(sys.argv[2:], COMMANDS))
"""


def start(*args: str) -> subprocess.Popen[str]:
    """The command line with the commands for tests, as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(TESTS), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is sent to a whole process group
    )


# -- start-up ----------------------------------------------------------------------------------------------------------


def loaded_by(*args: str) -> set[str]:
    program = (
        "import sys\nfrom kvspec.cli.main import run\ncode = run(sys.argv[1:])\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("args", [["--help"], ["--version"]])
def test_help_and_version_import_only_the_front_door(args: list[str]) -> None:
    modules = loaded_by(*args)
    ours = {name for name in modules if name.startswith("kvspec.")}
    front = {"kvspec.cli", "kvspec.cli.main", "kvspec.cli.errors", "kvspec.cli.output"}
    assert ours == front | {"kvspec.model", "kvspec.model.plain"}
    heavy = {"torch", "z3", "cvc5", "numpy", "networkx", "matplotlib", "msgspec", "pydantic", "rich"}
    assert not modules & heavy


def test_help_of_one_command_imports_no_other() -> None:
    modules = loaded_by("prove", "--help")
    assert {name for name in modules if name.endswith("_command")} == {"kvspec.cli.prove_command"}
    assert "torch" not in modules


def test_help_lists_every_command_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in COMMANDS:
        assert re.search(rf"^  {command.name} +{re.escape(command.help)}$", shown, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_listed_line_is_the_first_of_the_docstring(command: Command) -> None:
    function = getattr(import_module(command.module), command.name)
    assert function.__doc__.partition("\n")[0] == command.help


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command.name, "--help"]) == 0
    assert f"Usage: kvspec {command.name}" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "told"), [("conform", JUDGED_HELP), ("run", TARGET_HELP), ("replay", TARGET_HELP)])
def test_all_targets_are_named_where_one_can_be_given(
    name: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([name, "--help"]) == 0
    assert "".join(told.split()) in "".join(capsys.readouterr().out.split())  # lines may end at a hyphen


def test_no_arguments_show_the_help_and_are_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert "Usage: kvspec" in capsys.readouterr().out


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"kvspec {metadata.version('kvspec')}\n"


def test_the_module_is_the_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "kvspec.cli", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("kvspec ")


# -- how a command ends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_a_command_ends_with_the_code_it_returns(code: int) -> None:
    assert run(["end", str(code)], TEST_COMMANDS) == code


@pytest.mark.parametrize(
    ("args", "begin", "end"),
    [
        (["end"], "end: Missing argument 'code'", " (see 'kvspec end --help')"),
        (["end", "x"], "end: Invalid value for 'code': ", " (see 'kvspec end --help')"),
        (["end", "1", "2"], "end: Got unexpected extra argument", " (see 'kvspec end --help')"),
        (["end", "1", "--fource"], "end: No such option: --fource ", " (see 'kvspec end --help')"),
        (["end", "1", "--json"], "Option '--json' requires an argument", " --help')"),
        (["complaim"], "No such command 'complaim'. Did you mean 'complain'?", " (see 'kvspec --help')"),
        (["--nonsense"], "No such option: --nonsense", " (see 'kvspec --help')"),
        (["complain", "a.kv"], "a.kv:7: 3 blocks too\\x1b[31m many, ", "expected at most 2"),
        (["read", "no such file"], "no such file: ", "No such file or directory"),
        (
            ["end", "1", "--json", "no/x"],
            "--json: there is no folder 'no', ",
            "expected a file in a folder that exists",
        ),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    args: list[str], begin: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(args, TEST_COMMANDS) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"kvspec: error: {begin}")
    assert err.endswith(f"{end}\n")
    assert err.count("\n") == 1


def test_an_interrupted_command_shows_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stop"], TEST_COMMANDS) == INTERRUPTED
    assert capsys.readouterr() == ("2 of 5 done\n", "kvspec: interrupted\n")


ENDING = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])


@ENDING
def test_an_ended_command_leaves_no_traceback(number: signal.Signals) -> None:
    process = start("wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(number)
    _, err = process.communicate()
    assert (process.returncode, err) == (INTERRUPTED, "kvspec: interrupted\n")


@pytest.mark.parametrize("at_work", [0, 1, 2])
def test_ctrl_c_ends_all_processes_at_once(at_work: int) -> None:
    process = start("spread_out", "2")
    assert process.stdout is not None
    try:
        seen = [process.stdout.readline() for _ in range(1 + at_work)]
    finally:
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()  # ends when nobody has the output open any more
    assert seen == ["spreading\n"] + at_work * ["at work\n"]
    assert (process.returncode, err) == (INTERRUPTED, "kvspec: interrupted\n")
    assert out.replace("at work\n", "") == "reported\n"


@ENDING
def test_who_ends_the_command_alone_ends_its_processes_too(number: signal.Signals) -> None:
    process = start("spread_out", "2")
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(3)]
    process.send_signal(number)
    out, err = process.communicate()
    assert seen == ["spreading\n", "at work\n", "at work\n"]
    assert (process.returncode, out, err) == (INTERRUPTED, "reported\n", "kvspec: interrupted\n")


def test_a_process_that_died_is_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lose"], TEST_COMMANDS) == INTERNAL_ERROR
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("kvspec: error: a worker process died (out of memory?)")


def test_a_closed_pipe_is_no_verdict() -> None:
    process = start("talk")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == BROKEN_PIPE
    assert process.stderr.read() == ""


@pytest.mark.needs_file("/dev/full")
@pytest.mark.parametrize("args", [["talk"], ["--version"], ["--help"]])
def test_an_output_that_is_full_is_one_line(args: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(TESTS), *args], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "kvspec: error: the output could not be written: No space left on device\n"


@pytest.mark.parametrize("args", ["talk", "--version"])
def test_an_output_that_is_closed_is_one_line(args: str) -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", PROGRAM, str(TESTS), args]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "kvspec: error: standard output is closed, expected somewhere to write to\n"


def test_with_a_closed_stderr_nothing_of_it_is_on_stdout() -> None:
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", PROGRAM, str(TESTS), "complain", "x"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(("command", "reason"), [("crash", "lost"), ("forget", "None"), ("absent", "no_such_module")])
def test_a_fault_of_the_tool_is_no_verdict(command: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command], TEST_COMMANDS) == INTERNAL_ERROR
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert reason in err
    assert "not a verdict" in err.splitlines()[-1]


def test_a_command_that_was_not_selected_cannot_be_called() -> None:
    with pytest.raises(AssertionError, match="not imported"):
        main._not_selected()


def test_text_that_the_terminal_cannot_show_is_escaped() -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(TESTS), "complain", "é\udcff.kv"],
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert process.returncode == 2
    assert rb"\xe9\udcff.kv:7" in process.stderr


def test_a_result_is_written_through_the_options(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    assert run(["end", "1", "--json", str(file)], TEST_COMMANDS) == 1
    assert json.loads(file.read_text())["exit"] == 1
    assert run(["end", "3", "--json", str(file)], TEST_COMMANDS) == 3
    assert json.loads(file.read_text())["exit"] == 3
    file.write_text("mine")
    assert run(["end", "0", "--json", str(file)], TEST_COMMANDS) == 2
    assert file.read_text() == "mine"
    assert run(["end", "0", "--json", str(file), "--force"], TEST_COMMANDS) == 0
    assert json.loads(file.read_text())["exit"] == 0
