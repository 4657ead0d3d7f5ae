"""Logs of events: they are written, cut, packed, spread over files, begun in the middle, and wrong in one place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_walks import SIZES, WORDS, Walk, chapters

from kvspec.model.scenario import ScenarioError, parse_scenario
from kvspec.model.scenario.events import load_chapter, run_events
from kvspec.model.tracing.schema import log_schema
from kvspec.model.tracing.trace import TraceReport, trace_events

Line = dict[str, Any]
HEAD: Line = {"kvspec": "events", "version": 1, "chapter": "prefix_cache", "num_blocks": 4, "block_size": 2}
START = {**HEAD, "complete": True}
STORY: list[Line] = [
    {"event": "allocate", "block": 3, "seat": "a[0]"},
    {"event": "write", "block": 3, "chain": [7, 8]},
    {"event": "publish", "key": [7, 8], "block": 3},
    {"event": "release", "block": 3, "seat": "a[0]"},
    {"event": "match", "key": [7, 8], "seat": ["seq_at", "b", 0]},
    {"event": "release", "block": 3, "seat": {"seq_at": ["b", 0]}},
    {"event": "evict", "key": [7, 8]},
]
CORPUS = Path(__file__).parents[2] / "corpus"


def write(path: Path, lines: Iterable[Line | str]) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def trace(path: Path, lines: Iterable[Line | str], **options: Any) -> TraceReport:
    return trace_events([write(path / "log.jsonl", lines)], **options)


def test_a_log_that_could_have_been_holds(tmp_path: Path) -> None:
    report = trace(tmp_path, [START, *STORY])
    assert report.finding is None
    assert (report.chapter, report.events, report.started, report.believed) == ("prefix_cache", 7, "start", 0)


def test_the_first_event_that_could_not_have_been_is_found(tmp_path: Path) -> None:
    report = trace(tmp_path, [START, *STORY[:5], STORY[6], STORY[0]])
    found = report.finding
    assert found is not None and (found.event, found.line) == (6, 7)
    assert found.rule == "prefix_cache.evict/require" and found.says.startswith("evict requires holders[entry[key]] =")
    assert found.before == ["holders 3: b[0], cache [7 8]", "cached [7 8]", "entry [7 8]: 3", "content 3: [7 8]"]
    assert "event publish [7 8] 1\n" in report.scenario
    assert run_events(parse_scenario(report.scenario)).passed


def test_the_scenario_has_what_matters_and_nothing_else(tmp_path: Path) -> None:
    others = [
        {"event": name, "block": block, "seat": f"x{block}[0]"}
        for _ in range(9)
        for block in (1, 2)
        for name in ("allocate", "release")
    ]
    report = trace(tmp_path, [START, *others, *STORY[:5], *others, STORY[6]])
    assert report.finding is not None and report.finding.event == 6 + 2 * len(others)
    assert report.scenario.splitlines()[2:] == [
        "event allocate 1 a[0]",
        "event write 1 [7 8]",
        "event publish [7 8] 1",
        "event match [7 8] b[0]",
        "event release 1 a[0]",
        "event evict [7 8]",
        "expect forbidden",
    ] or set(report.scenario.splitlines()) >= {"event match [7 8] b[0]", "event evict [7 8]", "expect forbidden"}
    assert "x1" not in report.scenario


@pytest.mark.parametrize("chapter", chapters())
def test_a_run_of_any_chapter_holds_and_a_wrong_event_is_found_where_it_is(chapter: str, tmp_path: Path) -> None:
    walk = Walk(chapter, 3)
    lines: list[Line] = []
    wrong = None
    for data, _, possible in walk.tries(1000):
        if possible:
            lines.append(data)
        elif len(lines) > 8 and wrong is None:
            wrong = len(lines), data
        if len(lines) == 25:
            break
    head = {"kvspec": "events", "version": 1, "chapter": chapter, "complete": True, **SIZES, **WORDS.get(chapter, {})}
    assert trace(tmp_path, [head, *lines]).finding is None
    assert wrong is not None
    at, data = wrong
    report = trace(tmp_path, [head, *lines[:at], data, *lines[at:]])
    assert report.finding is not None and report.finding.event == at + 1
    assert report.finding.rule == f"{chapter}.{data['event']}/require"
    if report.scenario:
        assert run_events(parse_scenario(report.scenario)).passed


def test_a_log_may_begin_in_the_middle(tmp_path: Path) -> None:
    report = trace(tmp_path, [HEAD, *STORY[2:]])
    assert report.finding is None and report.started == "unknown" and report.believed
    assert report.unknown == {"blocks.free": 2}
    report = trace(tmp_path, [HEAD, *STORY[2:], STORY[6]])
    assert report.finding is not None and report.finding.event == 6
    assert trace(tmp_path, [HEAD, *STORY[2:]], from_start=True).finding is not None


SNAPSHOT: Line = {
    "blocks.free": [1, 2],
    "holders": [[3, ["a[0]", ["cache_of", [7, 8]]]]],
    "cached": [[7, 8]],
    "entry": [[[7, 8], 3]],
    "content": {"3": [7, 8]},
}


def test_a_complete_snapshot_tells_the_whole_state(tmp_path: Path) -> None:
    report = trace(tmp_path, [HEAD, {"snapshot": SNAPSHOT, "complete": True}, *STORY[3:]])
    assert report.finding is None and (report.started, report.believed) == ("snapshot", 0)
    report = trace(tmp_path, [HEAD, {"snapshot": SNAPSHOT, "complete": True}, STORY[6]])
    assert report.finding is not None and report.finding.rule == "prefix_cache.evict/require"


def test_a_snapshot_must_be_what_the_events_have_led_to(tmp_path: Path) -> None:
    good = [START, *STORY[:3], {"snapshot": SNAPSHOT, "complete": True}, *STORY[3:]]
    assert trace(tmp_path, good).finding is None
    wrong: dict[str, Any] = {
        "blocks.free": [1, 2, 3],
        "holders": [[3, ["a[0]"]]],
        "cached": [],
        "entry": [[[7, 8], 2]],
        "content": [[3, [7]]],
    }
    for name, value in wrong.items():
        for complete in (False, True):
            for head in (START, HEAD):
                told = {**SNAPSHOT, name: value} if complete else {name: value}
                lines = [head, *STORY[:3], {"snapshot": told, "complete": complete}, *STORY[3:]]
                found = trace(tmp_path, lines).finding
                assert found is not None and (found.line, found.event) == (5, 3), (name, complete, head)
                assert found.rule.startswith("prefix_cache/"), found


def test_a_complete_snapshot_must_keep_the_invariants(tmp_path: Path) -> None:
    broken = {**SNAPSHOT, "blocks.free": [1, 2, 3]}
    found = trace(tmp_path, [HEAD, {"snapshot": broken, "complete": True}]).finding
    assert found is not None and found.rule.endswith("free_iff_unheld")


def test_part_of_a_snapshot_is_part_of_what_is_known(tmp_path: Path) -> None:
    lines = [HEAD, {"snapshot": {"holders": [[3, ["a[0]"]]]}}, {"event": "allocate", "block": 3, "seat": "c[0]"}]
    found = trace(tmp_path, lines).finding
    assert found is not None and (found.rule, found.before) == ("prefix_cache.allocate/require", ["holders 3: a[0]"])


def test_several_files_are_one_log(tmp_path: Path) -> None:
    first = write(tmp_path / "log.1", [{**START, "part": 1}, *STORY[:4]])
    second = write(tmp_path / "log", [{**HEAD, "part": 2}, *STORY[4:]])
    report = trace_events([first, second])
    assert report.finding is None and (report.believed, report.files, report.holes) == (0, 2, [])
    third = write(tmp_path / "log", [{**HEAD, "part": 3}, *STORY[4:]])
    report = trace_events([first, third])
    assert report.finding is None and report.believed and len(report.holes) == 1
    again = write(tmp_path / "log", [{**START, "part": 9}, *STORY])
    report = trace_events([first, again])
    assert report.finding is None and (report.believed, report.holes) == (0, [])


@pytest.mark.parametrize("parts", [(2, 1), (3, 1), (1, 1), (3, 2)])
def test_files_in_another_order_are_told(parts: tuple[int, int], tmp_path: Path) -> None:
    files = [write(tmp_path / f"log.{n}", [{**HEAD, "part": part}]) for n, part in enumerate(parts)]
    write(files[1], [{**HEAD, "part": parts[1]}, *STORY[:1]])
    (hole,) = trace_events(files).holes
    assert "the oldest first" in hole
    write(files[1], [{**HEAD, "part": parts[0] + 2}, *STORY[:1]])
    (hole,) = trace_events(files).holes
    assert "the oldest first" not in hole


BEYOND: dict[str, Line] = {
    "the first beyond": {**STORY[0], "block": 4},
    "far beyond": {**STORY[0], "block": 900},
    "what is given back": {"event": "release", "block": 4, "seat": "a[0]"},
    "what is written": {"event": "write", "block": 4, "chain": [7]},
    "in a set": {"snapshot": {"blocks.free": [1, 4]}},
    "in a map": {"snapshot": {"entry": [[[7, 8], 4]]}},
    "in front of one that is there": {"snapshot": {"holders": [[4, ["a[0]"]], [3, ["b[0]"]]]}},
    "in a whole state": {"snapshot": {"content": [[4, [7, 8]]]}, "complete": True},
}


@pytest.mark.parametrize("line", BEYOND.values(), ids=BEYOND)
@pytest.mark.parametrize("head", [HEAD, START], ids=["late", "start"])
def test_blocks_that_there_are_not_are_found_as_such(head: Line, line: Line, tmp_path: Path) -> None:
    before = [{**STORY[0], "block": 2}] if head is START else []
    report = trace(tmp_path, [head, *before, line, STORY[0]])
    found = report.finding
    assert found is not None and (found.rule, found.line) == ("prefix_cache/numbers", 2 + len(before))
    assert found.says == "numbers of Block are 0 to 3, as num_blocks of the header says" and "Block" in found.because
    assert not report.scenario


def test_blocks_that_the_header_names_are_there(tmp_path: Path) -> None:
    head = {**START, "usable": [2, 99]}
    assert trace(tmp_path, [head, {**STORY[0], "block": 99}]).finding is None
    found = trace(tmp_path, [head, {**STORY[0], "block": 98}]).finding
    assert found is not None and found.rule == "prefix_cache/numbers"


def test_a_packed_log_is_unpacked(tmp_path: Path) -> None:
    plain = write(tmp_path / "log", [START, *STORY, STORY[6]])
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    ours, theirs = trace_events([packed]), trace_events([plain])
    assert ours.finding is not None and theirs.finding is not None
    assert msgspec.structs.replace(ours.finding, file=str(plain)) == theirs.finding
    packed.write_bytes(packed.read_bytes()[:-12])
    assert trace_events([packed]).cuts


@pytest.mark.parametrize("left", [1, 30])
def test_a_log_that_was_cut_is_read_up_to_there(left: int, tmp_path: Path) -> None:
    path = write(tmp_path / "log", [START, *STORY])
    path.write_bytes(path.read_bytes()[:-left])
    report = trace_events([path])
    whole = left == 1
    assert report.finding is None and (report.events, len(report.cuts)) == (7 if whole else 6, 0 if whole else 1)


def test_behind_a_cut_the_state_is_not_known(tmp_path: Path) -> None:
    cut = tmp_path / "log.1"
    cut.write_text(json.dumps(START) + "\n" + json.dumps(STORY[0]) + "\n" + '{"event": "wri')
    rest = write(tmp_path / "log", [HEAD, *STORY[2:]])
    report = trace_events([cut, rest])
    assert report.finding is None and len(report.cuts) == len(report.holes) == 1
    both = write(tmp_path / "both", [START, STORY[0], '{"event": "wri', HEAD, *STORY[2:]])
    report = trace_events([both])
    assert report.finding is None and len(report.cuts) == len(report.holes) == 1


BAD: dict[str, tuple[list[Line | str], int, str]] = {
    "no header": ([STORY[0]], 1, "no header"),
    "no JSON": ([START, "{", STORY[0]], 2, "no JSON"),
    "no object": ([START, "[1]"], 2, "no JSON object"),
    "another format": ([{**START, "kvspec": "else"}], 1, "a log of 'else'"),
    "another version": ([{**START, "version": 2}], 1, "version 2"),
    "a flag for a version": ([{**START, "version": True}], 1, "version True"),
    "a flag for a part": ([{**START, "part": True}], 1, "part is True"),
    "unknown chapter": ([{**START, "chapter": "cache"}], 1, "chapter 'cache'"),
    "no size": ([{k: v for k, v in START.items() if k != "num_blocks"}], 1, "no num_blocks"),
    "no block size": ([{k: v for k, v in START.items() if k != "block_size"}], 1, "no block_size"),
    "a size that is none": ([{**START, "num_blocks": "many"}], 1, "num_blocks is 'many'"),
    "a pool that cannot be": ([{**START, "num_blocks": 1}], 1, "num_blocks: 1"),
    "an unknown constant": ([{**START, "nom_blocks": 4}], 1, "'nom_blocks' is no word"),
    "a variable in the header": ([{**START, "pending": []}], 1, "'pending' in a header"),
    "a ghost in a snapshot": (
        [{**START, "chapter": "lifecycle"}, {"snapshot": {"singles_before": [[1, ["a"]]]}}],
        2,
        "'singles_before' in a snapshot",
    ),
    "a pool that is too large": ([{**START, "num_blocks": 10**12}], 1, "num_blocks is 1000000000000"),
    "a chapter without events": ([{**START, "chapter": "window"}], 1, "chapter 'window'"),
    "nested too deep": ([START, "[" * 100_000, STORY[0]], 2, "no JSON"),
    "another pool": ([START, {**HEAD, "num_blocks": 9}], 2, "a header that differs"),
    "another chapter": ([START, {**START, "chapter": "blocks"}], 2, "a header that differs"),
    "neither": ([START, {"time": 1}], 2, "neither an event nor a snapshot"),
    "unknown event": ([START, {"event": "take"}], 2, "unknown event 'take'"),
    "a missing argument": ([START, {"event": "evict"}], 2, "no 'key' for 'evict'"),
    "an argument too many": ([START, {"event": "reset", "key": [7]}], 2, "'key' for 'reset'"),
    "a block that is none": ([START, {**STORY[0], "block": "b"}], 2, "'b' for 'block'"),
    "a flag for a block": ([START, {**STORY[0], "block": True}], 2, "True for 'block'"),
    "a chain that is none": ([START, {"event": "evict", "key": [7, "8"]}], 2, "[7, '8'] for 'key'"),
    "a context that is none": ([START, {"event": "evict", "key": {"tokens": [7, 8], "salt": 3}}], 2, "'salt': 3"),
    "images that are none": ([START, {"event": "evict", "key": {"tokens": [7, 8], "images": 3}}], 2, "'images': 3"),
    "a text for images": ([START, {"event": "evict", "key": {"tokens": [7, 8], "images": "ab"}}], 2, "'images': 'ab'"),
    "a flag for a token": ([START, {"event": "evict", "key": [7, True]}], 2, "[7, True] for 'key'"),
    "a seat that is none": ([START, {**STORY[0], "seat": ["seat", 1]}], 2, "'seat' for 'seat'"),
    "a seat with too little": ([START, {**STORY[0], "seat": ["seq_at", "a"]}], 2, "for 'seat'"),
    "a seat that cannot be read": ([START, {**STORY[0], "seat": "a[0"}], 2, "'a[0' for 'seat'"),
    "an unknown variable": ([START, {"snapshot": {"frei": []}}], 2, "'frei' is no word"),
    "a static word in a snapshot": ([START, {"snapshot": {"usable": [1]}}], 2, "'blocks.usable' in a snapshot"),
    "no map": ([START, {"snapshot": {"holders": [3]}}], 2, "3 for 'holders'"),
    "no set": ([START, {"snapshot": {"cached": 3}}], 2, "3 for 'cached'"),
    "a key twice": ([START, {"snapshot": {"entry": [[[7, 8], 1], [[7, 8], 2]]}}], 2, "for the same key twice"),
    "a snapshot that is none": ([START, {"snapshot": [1]}], 2, "a snapshot of another form"),
    "a remark that is none": ([START, {"snapshot": {}, "whole": True}], 2, "'whole' in a snapshot"),
}


@pytest.mark.parametrize(("lines", "number", "what"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_one_clear_error(
    lines: list[Line | str], number: int, what: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError) as error:
        trace(tmp_path, [*lines, START])
    assert what in error.value.what and error.value.line == number
    assert error.value.expected


@pytest.mark.parametrize("words", [{"time": 1.5}, {"where": "engine.cpp:7"}, {"note": {"any": ["thing"]}}])
def test_remarks_are_skipped(words: Line, tmp_path: Path) -> None:
    lines = [START, *STORY, {"snapshot": {"cached": []}}]
    assert trace(tmp_path, [{**line, **words} for line in lines]).finding is None


def test_contexts_tell_chains_apart(tmp_path: Path) -> None:
    salted = {"tokens": [7, 8], "salt": "s"}
    lines = [START, *STORY[:3], {"event": "match", "key": salted, "seat": "b[0]"}]
    found = trace(tmp_path, lines).finding
    assert found is not None and found.event == 4
    lines = [START, STORY[0], {**STORY[1], "chain": salted}, {**STORY[2], "key": salted}]
    assert trace(tmp_path, [*lines, {"event": "match", "key": salted, "seat": "b[0]"}]).finding is None


def test_a_chain_may_be_a_name(tmp_path: Path) -> None:
    lines: list[Line] = [{**line, **{k: "k1" for k in ("key", "chain") if k in line}} for line in STORY]
    assert trace(tmp_path, [START, *lines]).finding is None
    found = trace(tmp_path, [START, *lines, {"event": "match", "key": "k1", "seat": "c[0]"}]).finding
    assert found is not None and found.event == 8


def test_static_words_stand_in_the_header(tmp_path: Path) -> None:
    head = {**START, "usable": [2, 3]}
    assert trace(tmp_path, [head, *STORY]).finding is None
    found = trace(tmp_path, [head, {**STORY[0], "block": 1}]).finding
    assert found is not None and found.rule == "prefix_cache.allocate/require"
    usage = {"kvspec": "events", "version": 1, "chapter": "usage", "complete": True, "num_blocks": 4}
    with pytest.raises(ScenarioError, match="nothing says what"):
        trace(tmp_path, [usage])


WINDOW: Line = {
    "kvspec": "events",
    "version": 1,
    "chapter": "sliding_window",
    "complete": True,
    "num_blocks": 4,
    "place_in": [[["t", token], token // 2] for token in range(6)],
    "first_seen": [[["t", token], max(0, token - 3)] for token in range(6)],
}


def test_what_has_no_value_at_the_start_has_to_be_told(tmp_path: Path) -> None:
    grow = {"event": "grow", "seq": "a", "block": 1}
    lines = [grow, {**grow, "block": 2}, {"event": "confirm", "seq": "a", "token": 1}]
    told = {"snapshot": {"manager_type": "t"}}
    for complete in (False, True):
        whole = [{**WINDOW, "complete": complete}, told, *lines[:2], {"event": "finish", "seq": "a"}, told]
        assert trace(tmp_path, whole).finding is None
    found = trace(tmp_path, [WINDOW, told, *lines[:2], {"snapshot": {"manager_type": "u"}}]).finding
    assert found is not None and found.rule == "sliding_window/snapshot"
    with pytest.raises(ScenarioError, match=r"expected a snapshot before it, of .*manager_type"):
        trace(tmp_path, [WINDOW, *lines[:2], {"event": "finish", "seq": "a"}])


def test_a_value_that_the_header_does_not_give_is_one_clear_error(tmp_path: Path) -> None:
    head = {**START, "chapter": "admission", "is_sequence": True, "needs": {"a": 1}}
    begin = {"event": "begin", "request": "b"}
    with pytest.raises(ScenarioError, match=r"nothing says what .*needs is for b"):
        trace(tmp_path, [head, begin, {"event": "take", "block": 1, "holder": "b"}])


def test_things_of_which_the_start_says_something_are_named_in_the_header(tmp_path: Path) -> None:
    head = {"kvspec": "events", "version": 1, "chapter": "xtensor", "complete": True, **SIZES, **WORDS["xtensor"]}
    first = Walk("xtensor", 1).run(1)[0][0]
    assert trace(tmp_path, [head, first]).finding is None
    with pytest.raises(ScenarioError, match="no 'Manager'"):
        trace(tmp_path, [{k: v for k, v in head.items() if k != "Manager"}, first])
    with pytest.raises(ScenarioError, match="'other' is no Manager"):
        trace(tmp_path, [head, {k: "other" if k == "manager" else v for k, v in first.items()}])


@pytest.mark.parametrize("chapter", chapters())
def test_the_schema_has_every_event_and_its_arguments(chapter: str) -> None:
    traced = load_chapter(chapter)
    schema = log_schema(traced, chapter)
    events = {line["properties"]["event"]["const"]: line for line in schema["oneOf"] if "event" in line["properties"]}
    assert list(events) == traced.event_names
    for name, line in events.items():
        names = [p.data[0] for p in traced.event(name).parameters]
        assert line["required"] == ["event", *names]
        assert not {"event", "snapshot", "kvspec", "time", "where", "note"} & set(names)
