"""Exit codes from verdicts, result files that never lose anything, progress, the console."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
import threading
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.cli.errors import InputError, place
from kvspec.cli.exploring import told
from kvspec.cli.output import (
    SCHEMA,
    Case,
    Exit,
    JsonFile,
    JunitFile,
    OutputFile,
    all_different,
    console,
    counted,
    exit_for,
    junit,
    outcome,
    progress,
    version,
    worst,
)
from kvspec.cli.prove_report import show_chapter
from kvspec.model.plain import one_line
from kvspec.spec import CHAPTERS

# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], Exit.UNKNOWN),
        (["proved", "holds", "passed"], Exit.HOLDS),
        (["proved", "not observed"], Exit.HOLDS),
        (["not observed"], Exit.UNKNOWN),
        (["proved", "vacuous"], Exit.UNKNOWN),
        (["proved", "timeout"], Exit.UNKNOWN),
        (["unknown", "refuted", "proved"], Exit.VIOLATED),
        (["violated"], Exit.VIOLATED),
        (["failed"], Exit.VIOLATED),
        (["interrupted", "passed"], Exit.UNKNOWN),
        (["known", "holds"], Exit.HOLDS),
        (["known", "not observed"], Exit.UNKNOWN),
        (["known", "holds", "violated"], Exit.VIOLATED),
    ],
)
def test_the_exit_code_of_verdicts(verdicts: list[str], code: Exit) -> None:
    for order in permutations(verdicts):
        assert exit_for(order) is code


def test_a_verdict_that_nobody_knows_is_no_success() -> None:
    with pytest.raises(ValueError, match="'fine', expected one of proved"):
        outcome("fine")
    with pytest.raises(ValueError, match="'PROVED'"):
        exit_for(["proved", "PROVED"])


def test_the_worst_of_several_parts() -> None:
    assert worst([]) is Exit.UNKNOWN
    assert worst([Exit.HOLDS, Exit.HOLDS]) is Exit.HOLDS
    assert worst([Exit.HOLDS, Exit.UNKNOWN]) is Exit.UNKNOWN
    assert worst([Exit.UNKNOWN, Exit.VIOLATED, Exit.HOLDS]) is Exit.VIOLATED


# -- one line of error -------------------------------------------------------------------------------------------------


@given(st.text())
def test_an_error_is_one_printable_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert str(InputError(text, where=text, expected=text)).isprintable()


def test_the_parts_of_an_error() -> None:
    assert str(InputError("what")) == "what"
    assert str(InputError("what", where=place("f", 3, 4), expected="x")) == "f:3:4: what, expected x"
    assert place(Path("f")) == "f"


# -- result files ------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    id: str


@pytest.mark.parametrize(("complete", "code"), [(True, 1), (False, 130)], ids=["complete", "interrupted"])
def test_a_json_result_begins_with_what_it_is(complete: bool, code: int, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    JsonFile(path).write("prove", {"rows": [Row("a")]}, exit=Exit.VIOLATED, complete=complete)
    result = json.loads(path.read_text())
    assert list(result.items())[:5] == [
        ("format", "kvspec/prove"),
        ("schema", SCHEMA),
        ("version", version()),
        ("complete", complete),
        ("exit", code),
    ]
    assert result["rows"] == [{"id": "a"}]
    assert list(tmp_path.iterdir()) == [path]


def test_the_head_of_a_result_is_not_for_the_body(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exit"):
        JsonFile(tmp_path / "x").write("prove", {"exit": 0}, exit=Exit.VIOLATED)
    assert not list(tmp_path.iterdir())


def test_without_a_path_nothing_is_written() -> None:
    JsonFile(None).write("prove", {}, exit=Exit.HOLDS)
    JunitFile(None).write([])
    OutputFile(None, option="--plot").write_bytes(b"x")
    assert JsonFile(None).path is None


@pytest.mark.parametrize("kind", [JsonFile, JunitFile])
def test_what_kvspec_did_not_make_is_kept(kind: type[JsonFile] | type[JunitFile], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"format": "other", "note": "kvspec/"}')
    with pytest.raises(
        InputError, match=r"^--(json|junit): .* was not made by kvspec, expected a new file, or --force"
    ):
        kind(path)
    assert kind(path, force=True).path == path
    assert "other" in path.read_text()


def test_what_kvspec_made_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        JsonFile(tmp_path / "j").write("run", {}, exit=Exit.HOLDS)
        JunitFile(tmp_path / "x").write([])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j", "x"]


def test_an_empty_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.touch(0o640)
    JunitFile(path).write([])
    assert path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    JunitFile(tmp_path / "ours").write([])
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("name", ["", ".", "-", "folder", "missing/file"])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"^--plot: .*, expected a "):
        OutputFile(Path(name), option="--plot")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    JunitFile(tmp_path / "link").write([])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes()


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    file = OutputFile(path, option="--json")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    file.write_bytes(b"all")
    reader.join()
    assert read == [b"all"]


@pytest.mark.needs_file("/dev/full")
def test_a_file_that_takes_nothing_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"^--json: '/dev/full' could not be written \(No space left on device\)"):
        JsonFile(Path("/dev/full")).write("run", {}, exit=Exit.HOLDS)


def test_a_full_disk_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"--junit: .*No space left"):
        JunitFile(tmp_path / "x").write([])
    assert not list(tmp_path.iterdir())


def test_two_results_need_two_files(tmp_path: Path) -> None:
    (tmp_path / "same").symlink_to(tmp_path / "file")
    all_different(JsonFile(tmp_path / "file"), JunitFile(tmp_path / "other"), JunitFile(None), JunitFile(None))
    all_different(JsonFile(Path(os.devnull)), JunitFile(Path(os.devnull)))
    with pytest.raises(InputError, match=r"^--junit: .* is the file of --json, too, expected another file"):
        all_different(JsonFile(tmp_path / "file"), JunitFile(tmp_path / "same"))


def test_a_failed_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    file = OutputFile(path, option="--json", force=True)

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        file.write_bytes(b"after")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


# -- JUnit -------------------------------------------------------------------------------------------------------------


def test_the_report_counts_each_kind() -> None:
    root = ElementTree.fromstring(
        junit(
            [
                Case("blocks", "take/partition", 0.25, "proved"),
                Case("keys", "chain", 0.0, "vacuous"),
                Case("blocks", "drop/partition", 0.5, "refuted", "block 1 <leaks>\nbefore\nafter"),
                Case("blocks", "used", 0.0, "not observed", "the target shows no counter"),
            ]
        )
    )
    assert root.get("name") == "kvspec"
    blocks, keys = root
    assert blocks.attrib == {
        "name": "blocks", "tests": "3", "failures": "1", "errors": "0", "skipped": "1", "time": "0.750",
    }  # fmt: skip
    assert [case.get("name") for case in blocks] == ["take/partition", "drop/partition", "used"]
    passed, failed, skipped = blocks
    assert len(passed) == 0
    assert failed[0].tag == "failure"
    assert failed[0].attrib == {"message": "block 1 <leaks>", "type": "refuted"}
    assert failed[0].text == "block 1 <leaks>\nbefore\nafter"
    assert skipped[0].tag == "skipped"
    assert keys.get("errors") == "1"
    assert keys[0][0].attrib == {"message": "vacuous", "type": "vacuous"}


@given(st.text(), st.text())
def test_the_report_is_xml_whatever_is_in_it(name: str, message: str) -> None:
    root = ElementTree.fromstring(junit([Case(name, name, 1.0, "failed", message)]))
    assert root[0].get("tests") == "1"


# -- progress and console ----------------------------------------------------------------------------------------------


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 4.0, 11.0, 12.0, 25.0])
    with progress("prove", 8, clock=lambda: next(times)) as shown:
        shown.advance()
        shown.advance(2, "evict/partition")
        shown.advance(1, "not shown")
        shown.advance()
    assert capsys.readouterr() == ("", "prove: 3/8 (37 %) evict/partition\nprove: 5/8 (62 %)\n")


def test_progress_with_no_known_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("conform", every=0.0) as shown:
        shown.advance(100, "3 evictions")
    assert capsys.readouterr().err == "conform: 100 3 evictions\n"


ON_TERMINAL = """
import sys
from kvspec.cli.output import console, progress
with progress("prove [a]", 4) as shown:
    for step in range(4):
        shown.advance(1, "evict [7 8]")
        console().print(f"result {step}")
"""


def test_progress_on_a_terminal_keeps_out_of_the_results() -> None:
    ours, theirs = os.openpty()
    done = subprocess.run(
        [sys.executable, "-c", ON_TERMINAL],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        check=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.stdout == "".join(f"result {step}\n" for step in range(4))
    assert "prove [a]" in shown
    assert "evict [7 8]" in shown
    assert "4/4" in shown


def test_one_is_no_plural() -> None:
    assert [counted(n, "block") for n in range(3)] == ["0 blocks", "1 block", "2 blocks"]


def test_the_name_of_every_chapter_stands_apart(capsys: pytest.CaptureFixture[str]) -> None:
    for name in CHAPTERS:
        show_chapter(console(), name, "", [], {}, brief=True)
        assert re.fullmatch(rf"\S {name}  +0 obligations proved .*\n", capsys.readouterr().out)
        _, line, _ = told(name, [])
        assert re.match(rf"\S {name}  +0 scopes", line)


def test_the_console_prints_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    line = "evict [7 8] [bold]x[/bold] :smile: " + "long " * 60
    console().print(line)
    console(stderr=True).print("[red]")
    assert capsys.readouterr() == (line + "\n", "[red]\n")
    with pytest.raises(BrokenPipeError):
        console().on_broken_pipe()
