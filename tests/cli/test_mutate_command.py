"""``kvspec mutate`` from the outside: what is printed and written, what is remembered, and how it ends."""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cli_commands import dying
from manifests import copied
from msgspec.structs import replace

from kvspec.cli.main import INTERNAL_ERROR, INTERRUPTED, run
from kvspec.cli.mutate_command import MutationRun
from kvspec.cli.output import Exit
from kvspec.proofs.manifest.record import load_record, write_record
from kvspec.proofs.mutation import campaign
from kvspec.proofs.mutation.campaign import PIECE, Piece, is_invariant
from kvspec.proofs.mutation.key import key
from kvspec.proofs.mutation.kill import Fate, known


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return copied(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    known.cache_clear()
    yield
    known.cache_clear()


def mutate(tmp_path: Path, *args: str) -> int:
    return run(["mutate", "--jobs", "1", "--notebook", str(tmp_path / "notes.jsonl"), *args])


def rows(shown: str) -> dict[str, list[str]]:
    """The numbers of the table, by the first word of the line."""
    found = (line.split() for line in shown.splitlines())
    return {words[0]: words[1:] for words in found if len(words) == 7 and all(w.isdigit() for w in words[1:])}


def test_every_mutant_is_judged_and_then_known(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "handles.json").unlink()
    file, total = tmp_path / "r.json", len(known("handles"))
    assert mutate(tmp_path, "--chapter", "handles", "--json", str(file)) == Exit.HOLDS
    shown = capsys.readouterr().out
    table = rows(shown)
    assert set(table) == {"handles", "all"} and table["handles"] == table["all"]
    generated, *ends = map(int, table["handles"])
    assert generated == sum(ends) == total and ends[0] > 0.8 * total
    assert re.search(rf"^{total} mutants, 0 alive; 0 known from before; \d+ s$", shown, re.MULTILINE)

    result = json.loads(file.read_text())
    assert (result["format"], result["exit"], result["complete"]) == ("kvspec/mutate", 0, True)
    assert [m["id"] for m in result["mutants"]] == list(known("handles"))
    assert {m["verdict"] for m in result["mutants"]} <= {"killed", "equivalent"}
    assert all(m["killer"] for m in result["mutants"] if m["verdict"] == "killed")

    assert mutate(tmp_path, "--chapter", "handles") == Exit.HOLDS
    again = capsys.readouterr().out
    assert f"{total} mutants, 0 alive; {total} known from before" in again and rows(again) == table


def test_what_the_manifest_says_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    total = len(known("blocks"))
    assert mutate(tmp_path, "--chapter", "blocks") == Exit.HOLDS
    assert f"{total} mutants, 0 alive; {total} known from before" in capsys.readouterr().out
    assert not (tmp_path / "notes.jsonl").exists()


def test_each_mutant_has_a_line_if_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mutate(tmp_path, "--chapter", "blocks", "--each") == Exit.HOLDS
    lines = capsys.readouterr().out.splitlines()
    assert "killed by proof: blocks.take/free_iff_unheld  blocks.take: without free.discard(block)" in lines
    assert sum(line.startswith(("killed by ", "equivalent")) for line in lines) == len(known("blocks"))


@pytest.mark.usefixtures("lenient")
def test_nothing_of_the_table_is_cut_whatever_the_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    total, alive = len(known("blocks")), sum(map(is_invariant, known("blocks")))
    wide = f"blocks {total} {total - alive} 0 0 0 {alive}"
    narrow = f"blocks: {total} generated, {total - alive} proof, 0 exploration, 0 test, 0 equivalent, {alive} alive"
    judged = MutationRun(["prefix_cache", "blocks"], tmp_path / "notes.jsonl", again=True)
    judged.run(1)
    for columns in (20, 30, 40, 50, 60, 70, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        judged.show(True, False)
        lines = capsys.readouterr().out.splitlines()
        end = next(n for n, line in enumerate(lines) if re.match(r"\d+ mutants, ", line))
        table = [line for line in lines[:end] if not line.startswith("alive ")]
        shown = " ".join(" ".join(table).split())
        assert "…" not in shown and all(len(line) <= columns for line in table)
        for word in ("prefix_cache", "blocks", "generated", "exploration", "equivalent"):
            assert re.search(rf"\b{word}\b", shown)
        assert (wide if columns >= 70 else narrow) in shown


# -- with another judge ------------------------------------------------------------------------------------------------


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """A judge who lets every weakened invariant live and no other mutant; the pieces that were given to it."""
    pieces: list[Piece] = []

    def fate(id: str, rests_on: str) -> Fate:
        return Fate(id, rests_on, "alive") if is_invariant(id) else Fate(id, rests_on, "killed", "proof", "blocks.x/y")

    def judge(piece: Piece) -> list[Fate]:
        pieces.append(piece)
        return [fate(id, key(known(piece.chapter)[id])) for id in piece.ids]

    monkeypatch.setattr(campaign, "judge", judge)
    return pieces


@pytest.mark.usefixtures("lenient")
def test_a_mutant_that_survives_although_it_was_killed_before(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    assert mutate(tmp_path, "--chapter", "blocks", "--again", "--json", str(file)) == Exit.VIOLATED
    lines = capsys.readouterr().out.splitlines()
    before = load_record("blocks")
    assert before is not None
    dead = [f.id for f in before.mutants if f.verdict == "killed" and is_invariant(f.id)]
    assert dead and [line for line in lines if line.startswith("survives, and was killed before: ")] == [
        f"survives, and was killed before: {id}" for id in dead
    ]
    assert json.loads(file.read_text())["exit"] == Exit.VIOLATED


@pytest.mark.usefixtures("lenient")
def test_what_is_judged_otherwise_than_it_is_written_down(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = load_record("blocks")
    assert record is not None
    first, *rest = record.mutants
    hidden = replace(first, verdict="equivalent", by="", killer="", failing=())
    write_record(replace(record, mutants=(hidden, *(f for f in rest if not is_invariant(f.id)))))
    assert mutate(tmp_path, "--chapter", "blocks", "--again") == Exit.VIOLATED
    shown = capsys.readouterr().out.splitlines()
    assert f"judged otherwise: {first.id}: killed, written down as equivalent" in shown


@pytest.mark.usefixtures("lenient")
def test_a_mutant_that_is_alive_is_unknown_unless_there_is_a_reason(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "blocks.json").unlink()
    assert mutate(tmp_path, "--chapter", "blocks") == Exit.UNKNOWN
    alive = [id for id in known("blocks") if is_invariant(id)]
    shown = capsys.readouterr().out
    assert f"{len(known('blocks'))} mutants, {len(alive)} alive (0 for a reason that is written down)" in shown
    assert all(f"alive  {id}" in shown for id in alive)

    reasons = "".join(f"{json.dumps(id, ensure_ascii=False)} = 'as it is'\n" for id in alive)
    (folder / "reasons.toml").write_text(f"[alive]\n{reasons}", encoding="utf-8")
    assert mutate(tmp_path, "--chapter", "blocks") == Exit.HOLDS
    shown = capsys.readouterr().out
    assert f"{len(alive)} alive ({len(alive)} for a reason that is written down)" in shown
    assert all(f"alive  {id}  (as it is)" in shown for id in alive)


def test_an_interrupted_run_shows_and_keeps_what_was_judged(
    folder: Path,
    tmp_path: Path,
    lenient: list[Piece],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    judge = campaign.judge

    def stop(piece: Piece) -> list[Fate]:
        if len(lenient) == 2:
            raise KeyboardInterrupt
        return judge(piece)

    (folder / "blocks.json").unlink()
    monkeypatch.setattr(campaign, "judge", stop)
    file, total = tmp_path / "r.json", len(known("blocks"))
    assert mutate(tmp_path, "--chapter", "blocks", "--json", str(file)) == INTERRUPTED
    assert f"interrupted after {2 * PIECE} of {total}: {2 * PIECE} mutants, 0 alive" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert (result["complete"], result["exit"], len(result["mutants"])) == (False, INTERRUPTED, 2 * PIECE)
    monkeypatch.setattr(campaign, "judge", judge)
    assert mutate(tmp_path, "--chapter", "blocks") == Exit.UNKNOWN
    assert f"{2 * PIECE} known from before" in capsys.readouterr().out


def test_a_process_that_died_is_no_verdict(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "blocks.json").unlink()
    monkeypatch.setattr(campaign, "judge", dying)
    assert mutate(tmp_path, "--chapter", "blocks", "--jobs", "2") == INTERNAL_ERROR
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and err.startswith("kvspec: error: a worker process died")


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--chapter", "block"], "--chapter: unknown chapter 'block', expected one of keys, "),
        (["--chapter", "language"], "--chapter: unknown chapter 'language', expected one of keys, "),
        (["--jobs", "-1"], "mutate: Invalid value for '--jobs'"),
    ],
)
def test_bad_usage(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mutate", *args]) == Exit.BAD_INPUT
    assert capsys.readouterr().err.startswith(f"kvspec: error: {message}")


@pytest.mark.needs_file("/proc/version")
@pytest.mark.parametrize("name", [".", "folder", "/dev/null", "/proc/version", "/proc/no/notes", "file/notes"])
@pytest.mark.parametrize("command", ["mutate", "manifest"])
def test_a_notebook_that_takes_nothing_is_bad_input_before_anything_is_judged(
    command: str,
    name: str,
    folder: Path,
    tmp_path: Path,
    lenient: list[Piece],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (folder / "blocks.json").unlink()
    assert run([command, "--chapter", "blocks", "--jobs", "1", "--notebook", name]) == Exit.BAD_INPUT
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), lenient) == ("", 1, [])
    assert err.startswith(f"kvspec: error: --notebook: '{name}' ")
    assert err.endswith(", expected a file of fates, or a new one\n")


def test_a_notebook_that_takes_no_more_is_bad_input(
    folder: Path,
    tmp_path: Path,
    lenient: list[Piece],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(self: campaign.Notebook, fates: Sequence[Fate]) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(campaign.Notebook, "add", full)
    (folder / "blocks.json").unlink()
    assert mutate(tmp_path, "--chapter", "blocks") == Exit.BAD_INPUT
    assert "'{}' could not be written (Disk quota".format(tmp_path / "notes.jsonl") in capsys.readouterr().err


@pytest.mark.usefixtures("lenient")
def test_what_makes_no_sense_in_notebook_or_manifest_is_judged_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "blocks.json").unlink()
    first, second, third, *_ = (Fate(m.id, key(m), "killed", "proof", "a.b/c") for m in known("blocks").values())
    record = load_record("handles")
    assert record is not None
    write_record(replace(record, chapter="blocks", mutants=(replace(first, verdict="banana"), second)))
    campaign.Notebook(tmp_path / "notes.jsonl").add([replace(first, by="banana"), third])
    assert mutate(tmp_path, "--chapter", "blocks") == Exit.UNKNOWN
    assert " mutants, " in (shown := capsys.readouterr().out) and "; 2 known from before" in shown


@pytest.mark.parametrize("name", ["blocks.json", "reasons.toml"])
@pytest.mark.parametrize("text", ["x", "{", "[[", "\0", '{"schema": 1, "chapter": "blocks"}'])
@pytest.mark.parametrize(
    "args",
    [["mutate", "--chapter", "blocks"], ["manifest", "--chapter", "blocks"], ["explain", "blocks.free_iff_unheld"]],
    ids=lambda args: args[0],
)
def test_a_manifest_that_cannot_be_read_is_bad_input(
    args: list[str], text: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    assert run(args) == Exit.BAD_INPUT
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"kvspec: error: {folder / name}: ")
