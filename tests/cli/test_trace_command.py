"""``kvspec trace``: exit codes, what is printed, written and saved; and the page on it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from kv_streams import CLEARED, Event, chain, frames, key, messages, plain, removed
from transcripts import same, transcripts

from kvspec.cli.main import run
from kvspec.model.scenario import read_scenario
from kvspec.model.scenario.events import run_events
from kvspec.model.tracing.header import POOL
from kvspec.model.tracing.log import HEADER
from kvspec.model.tracing.record import CHAPTERS
from kvspec.model.tracing.stream import NOTES, RULES
from kvspec.model.tracing.trace import trace_events

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "traces.md").read_text(encoding="utf-8")
HEAD = '{"kvspec": "events", "version": 1, "chapter": "blocks", "complete": true, "num_blocks": 3}\n'
TAKE = '{"event": "take", "block": 1, "holder": "a"}\n'
PROMPT = (1, 2, 3, 4)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").symlink_to(DOCS)
    monkeypatch.chdir(tmp_path)


def log(text: str, name: str = "log.jsonl") -> str:
    Path(name).write_text(text)
    return name


def stream(events: list[Event], name: str = "events") -> str:
    frames(Path(name), messages(events))
    return name


def out(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run(["trace", *words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_what_could_have_been_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = out(capsys, log(HEAD + TAKE))
    assert code == 0 and printed.endswith("holds in 1 event\n")
    code, printed = out(capsys, stream([chain(PROMPT, 2, 0), removed(key(PROMPT))]))
    assert code == 0 and printed.endswith("holds in 2 events\n")


def test_what_could_not_have_been_ends_with_1_and_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = out(capsys, log(HEAD + TAKE + TAKE), "--json", "r.json", "--junit", "r.xml", "--save", "found")
    assert code == 1 and "violated at event 2 (log.jsonl:3): blocks.take/require" in printed
    (saved,) = Path("found").iterdir()
    assert f"kvspec run {saved}" in printed and run_events(read_scenario(saved)).passed
    result = json.loads(Path("r.json").read_text())
    assert (result["format"], result["kind"], result["verdict"]) == ("kvspec/trace", "events", "violated")
    assert result["report"]["finding"]["line"] == 3 and result["saved"] == str(saved)
    failure = ElementTree.parse("r.xml").getroot().find(".//failure")
    assert failure is not None and failure.get("message", "").startswith("log.jsonl:3: blocks.take/require")


@pytest.mark.parametrize("folder", ["log.jsonl/below", "log.jsonl/below/it"])
def test_a_finding_that_cannot_be_saved_is_told_all_the_same(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = out(capsys, log(HEAD + TAKE + TAKE), "--json", "r.json", "--save", folder)
    assert code == 1 and "violated at event 2" in printed and "  not saved  " in printed and "run it" not in printed
    assert json.loads(Path("r.json").read_text())["verdict"] == "violated"


def test_each_finding_of_a_stream_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = out(capsys, stream([removed(n) for n in range(12)]), "--json", "r.json")
    assert code == 1 and "violated: 12 findings" in printed and "and 2 more" in printed
    result = json.loads(Path("r.json").read_text())
    assert result["kind"] == "stream" and len(result["report"]["findings"]) == 12


def test_nothing_to_judge_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (log(HEAD), stream([])):
        code, printed = out(capsys, name, *(["--engine", "vllm"] if name == "events" else []))
        assert code == 3 and "vacuous" in printed


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_nothing_to_judge(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert out(capsys, log(text))[0] == 3


def test_a_cut_is_told_and_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = out(capsys, log(HEAD + TAKE + TAKE[:9]))
    assert code == 0 and "cut          log.jsonl:3: the file ends in the middle of a line" in printed


def test_what_is_unknown_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    head = HEAD.replace('"complete": true, ', "")
    code, printed = out(capsys, log(head + TAKE))
    assert code == 0 and "from a state that is not known" in printed
    assert "believed     1 event required" in printed and "unknown      1 that may or may not be in free" in printed
    code, printed = out(capsys, log(head + TAKE + TAKE), "--from-start")
    assert code == 1 and "from the start state" in printed
    held = '{"snapshot": {"holders": {"1": ["b"]}}, "complete": true}\n'
    code, printed = out(capsys, log(head + held))
    assert code == 1 and "free_iff_unheld" in printed


@pytest.mark.parametrize("name", ["\x1b[31m", "\x9b31m", "a\r\nb"])
def test_what_a_log_says_cannot_steer_a_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = {"type": "BlockStored", "block_hashes": [name], "parent_block_hash": name * 2, "token_ids": [1]}
    lost = {"type": "BlockRemoved", "block_hashes": [name], "medium": name}
    batch = json.dumps([0.0, [{**told, "block_size": 1, "medium": name}, lost, lost], 0])
    take = json.dumps({"event": "take", "block": 1, "holder": name, "note": name}) + "\n"
    for text, options in ((HEAD + take + take, []), (batch + "\n", ["--engine", "vllm", "--from-start"])):
        code, printed = out(capsys, log(text), *options)
        assert code == 1 and all(line.isprintable() for line in printed.split("\n")), printed
        assert "\r" not in printed


def test_options_of_streams_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    rest = chain(PROMPT, 2, 1)
    code, printed = out(capsys, stream([rest]))
    assert code == 0 and "note " in printed and "parent_unknown" in printed
    assert out(capsys, stream([rest]), "--groups", "full")[0] == 1
    Path("dump.json").write_text(json.dumps([key(PROMPT).hex(), "00"]))
    assert out(capsys, stream([rest]), "--final", "dump.json")[0] == 1
    assert out(capsys, stream([CLEARED, plain(chain(PROMPT, 2, 0))]))[0] == 0
    assert out(capsys, stream([CLEARED]), "--engine", "sglang")[0] == 0
    code, printed = out(capsys, stream([chain(PROMPT, 2, 0)]), "--blocks", "1")
    assert code == 1 and "2 blocks of rank 0 have keys, of 1" in printed


def test_both_kinds_are_told_apart_packed_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    import gzip

    for name in (log(HEAD + TAKE), stream([chain(PROMPT, 2, 0)])):
        plain_code, printed = out(capsys, name)
        Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
        assert out(capsys, f"{name}.gz") == (plain_code, printed)


BAD: dict[str, tuple[list[str], str]] = {
    "no log": ([], "LOG: no log"),
    "no such file": (["nowhere"], "nowhere"),
    "a folder": (["docs"], "LOG: 'docs' is no regular file"),
    "no header": (["bad"], "bad:1:1: no header"),
    "an event of the spec as a stream": (["log.jsonl", "--engine", "vllm"], "log.jsonl:1:1: no batch of events"),
    "groups of the spec": (["log.jsonl", "--groups", "full"], "--groups: a log of events of the spec"),
    "a dump for the spec": (["log.jsonl", "--final", "bad"], "--final: a log of events of the spec"),
    "an unknown engine": (["cleared", "--engine", "other"], "--engine: 'other'"),
    "an unknown kind": (["cleared", "--engine", "vllm", "--groups", "half"], "--groups: 'half'"),
    "no engine that can be told": (["cleared"], "nothing tells whose events"),
    "a broken dump": (["cleared", "--engine", "vllm", "--final", "bad"], "no dump of keys"),
    "an unknown chapter": (["--schema", "cache"], "--schema: unknown chapter 'cache'"),
    "a file to save in": (["log.jsonl", "--save", "bad"], "--save: 'bad' is a file"),
}


@pytest.mark.parametrize(("words", "what"), BAD.values(), ids=BAD)
def test_bad_input_ends_with_2_and_one_line(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    log(HEAD + TAKE)
    log(TAKE, "bad")
    stream([CLEARED], "cleared")
    code, printed = out(capsys, *words)
    assert code == 2 and what in printed and printed.count("\n") == 1, printed


def test_the_schema_of_a_chapter_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = out(capsys, "--schema", "prefix_cache")
    assert code == 0 and json.loads(printed)["title"].endswith("prefix_cache")


# -- the page ---------------------------------------------------------------------------------------------------------


def first_cells(head: str) -> dict[str, str]:
    """The table below a head: first column, and second."""
    table = PAGE.partition(f"\n| {head} |")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", table, re.MULTILINE))


@pytest.mark.parametrize(("command", "shown"), transcripts(PAGE), ids=[c for c, _ in transcripts(PAGE)])
def test_transcripts_are_what_is_printed(command: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command.split()) == ("violated" in shown)
    printed = capsys.readouterr().out
    assert same(printed, shown), printed


def test_the_log_of_a_manager_that_is_shown_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = (command for command, _ in transcripts(PAGE) if "--log" in command)
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert run(command.split()) == 0 and Path(command.split()[-1]).read_text() == shown
    table = first_cells("form | chapter | what the log does not say")
    assert {form: rest.split()[0].strip("`") for form, rest in table.items()} == CHAPTERS


def test_the_page_names_every_field_rule_note_and_option() -> None:
    assert set(first_cells("field of a header | meaning")) == {*HEADER, *POOL}
    assert first_cells("rule | says") == RULES
    assert first_cells("note | says") == NOTES
    assert set(first_cells("option | meaning")) == {
        "--engine", "--from-start", "--groups", "--blocks", "--final",
    }  # fmt: skip


def test_the_lines_that_are_shown_are_a_log() -> None:
    (lines,) = re.findall(r"```jsonl\n(.*?)```", PAGE, re.DOTALL)
    report = trace_events([Path(log(lines))])
    assert report.finding is None and (report.events, report.snapshots) == (3, 1)


def test_the_writer_that_is_shown_writes_a_log() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    space: dict[str, Any] = {}
    exec(code, space)
    report = trace_events([Path("cache.jsonl")])
    assert report.finding is None and (report.events, report.snapshots, space["log"].dropped) == (3, 1, 0)
