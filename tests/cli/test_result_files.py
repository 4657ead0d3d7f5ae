"""Result files that cannot be written: found before the run where that is possible; behind it no verdict is lost."""

from __future__ import annotations

import errno
import inspect
import os
import re
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest
from cli_commands import COMMANDS as TEST_COMMANDS
from transcripts import steady

from kvspec.cli.main import COMMANDS, run

OF_RESULTS = ("json", "junit", "log", "plot")
"""Parameters of commands that name a file to be written."""
ARGUMENTS = {
    "explore": ["--chapter", "blocks"],
    "conform": ["model"],
    "run": ["violated.kv"],
    "replay": ["builtin"],
    "trace": ["violated.jsonl"],
    "explain": ["blocks"],
}
"""What a command cannot do without."""


def options(name: str) -> list[str]:
    """The options by which a command writes a result."""
    function = getattr(import_module(f"kvspec.cli.{name}_command"), name)
    return [f"--{parameter}" for parameter in inspect.signature(function).parameters if parameter in OF_RESULTS]


WRITERS = [(command.name, option) for command in COMMANDS for option in options(command.name)]

SCENARIO = "pool 4 block 2\nstart a 0 1\nallocate a 2\nexpect used 3\n"
LOG = """{"kvspec": "events", "version": 1, "chapter": "blocks", "complete": true, "num_blocks": 3}
{"event": "take", "block": 1, "holder": "a"}
{"event": "take", "block": 1, "holder": "b"}
"""
PROGRAM = """from kvspec.model.reference import ModelTarget

class Wasteful(ModelTarget):
    def free_count(self):
        return super().free_count() - len(self._pool.requests)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "violated.kv").write_text(SCENARIO)
    (tmp_path / "violated.jsonl").write_text(LOG)
    (tmp_path / "wasteful.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wasteful", raising=False)
    return tmp_path


def no_writing(**arguments: object) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_every_command_writes_its_result() -> None:
    assert {name for name, option in WRITERS if option == "--json"} == {command.name for command in COMMANDS}


@pytest.mark.parametrize(("name", "option"), WRITERS)
def test_a_read_only_place_is_told_before_anything_is_done(
    name: str, option: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "mkstemp", no_writing)
    assert run([name, *ARGUMENTS.get(name, []), option, str(folder / "result")]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        f"kvspec: error: {option}: the folder '{folder}' is not writable (Read-only file system), "
        "expected a folder to write to\n",
    )
    assert not (folder / "result").exists()


@pytest.mark.needs_file("/dev/full")
@pytest.mark.parametrize(("verdict", "code"), [(0, 2), (1, 1), (3, 3)])
def test_a_verdict_is_not_lost_by_a_file_that_is_full(
    verdict: int, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["end", str(verdict), "--json", "/dev/full"], TEST_COMMANDS) == code
    assert capsys.readouterr().err.startswith("kvspec: error: --json: '/dev/full' could not be written (No space")


FOUND = [
    ["run", "violated.kv"],
    ["conform", "model", "--replay", "violated.kv"],
    ["conform", "wasteful:Wasteful", "--operations", "500"],
    ["trace", "violated.jsonl"],
]
"""Commands that find something, and write two files."""


@pytest.mark.needs_file("/dev/full")
@pytest.mark.parametrize("command", FOUND, ids=" ".join)
def test_what_was_found_is_printed_and_the_other_file_written(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 1
    printed = steady(capsys.readouterr().out)
    shutil.rmtree("conform-failures", ignore_errors=True)
    shutil.rmtree("trace-failures", ignore_errors=True)
    assert run([*command, "--json", "/dev/full", "--junit", "cases.xml"]) == 1
    out, err = capsys.readouterr()
    assert steady(out) == printed
    assert err.splitlines()[-1].startswith("kvspec: error: --json: '/dev/full' could not be written (No space")
    assert "<failure" in (folder / "cases.xml").read_text()


@pytest.mark.parametrize(
    "command",
    [*FOUND[2:], ["interleave", "--target", "faulty.concurrent_twins:plain_lock"]],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_finding_that_cannot_be_saved_is_told_all_the_same(
    command: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_file(self: Path, *arguments: object, **named: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    monkeypatch.setattr(Path, "mkdir", no_file)
    assert run([*command, "--save", "found"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^ *not saved:? +found: Read-only file system$", out, re.MULTILINE), out
    assert "run it again" not in out and re.search("^violated", out, re.MULTILINE)
