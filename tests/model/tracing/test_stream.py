"""Streams of KV events: every form in which they come, what is right, and what is wrong at which event."""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kv_streams import (
    CLEARED,
    Event,
    chain,
    frames,
    key,
    messages,
    numbers,
    plain,
    random_stream,
    removed,
    stored,
)

from kvspec.model.scenario import ScenarioError
from kvspec.model.tracing.feed import Batch, Engine, detect, read_batches
from kvspec.model.tracing.stream import NOTES, RULES, FinalKey, StreamReport, judge_stream, read_final

PROMPT = (7, 8, 9, 10, 11, 12)
FIRST, REST = chain(PROMPT[:2], 2, 0), chain(PROMPT, 2, 1)
KEYS = [key(PROMPT[: 2 * n]) for n in (1, 2, 3)]


def judge(
    tmp_path: Path, events: Sequence[Event], engine: Engine = "vllm", *, first: int = 0, **options: Any
) -> StreamReport:
    options = {"groups": ("full",), **options} if engine == "vllm" else options
    return judge_stream([frames(tmp_path / "events", messages(events, first=first))], engine, **options)


def found(report: StreamReport) -> list[tuple[str, int]]:
    return [(f.rule, f.event) for f in report.findings]


# -- forms ------------------------------------------------------------------------------------------------------------


def test_batches_come_in_many_forms(tmp_path: Path) -> None:
    events = [FIRST, REST, removed(KEYS[2]), CLEARED]
    sent = messages(events, per=2)
    recording = frames(tmp_path / "events", sent)
    wanted = [b.events for b in read_batches([recording]) if isinstance(b, Batch)]
    assert [len(batch) for batch in wanted] == [2, 2]

    def readable(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, dict):
            return {k: readable(v) for k, v in value.items()}
        return [readable(v) for v in value] if isinstance(value, list) else value

    packed = [msgspec.msgpack.encode(batch) for _, _, batch in sent]
    forms = {
        "lists": [readable(batch) for _, _, batch in sent],
        "objects": [{"ts": 0.5, "events": readable(b[1]), "data_parallel_rank": 0} for _, _, b in sent],
        "numbered": [{"seq": n, "topic": "kv", "batch": readable(b)} for _, n, b in sent],
        "hex": [{"seq": n, "hex": p.hex()} for n, p in enumerate(packed)],
        "base64": [{"seq": n, "base64": base64.b64encode(p).decode()} for n, p in enumerate(packed)],
    }
    for name, lines in forms.items():
        path = tmp_path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        read = [b for b in read_batches([path]) if isinstance(b, Batch)]
        assert [b.events for b in read] == wanted, name
        assert [b.number for b in read] == ([None, None] if name in ("lists", "objects") else [0, 1])
    zipped = tmp_path / "events.gz"
    zipped.write_bytes(gzip.compress(recording.read_bytes()))
    assert [b.events for b in read_batches([zipped]) if isinstance(b, Batch)] == wanted


def test_events_may_be_lists_and_may_have_more_or_fewer_fields(tmp_path: Path) -> None:
    short = ["BlockStored", [KEYS[0]], None, [7, 8], 2, None]
    long = ["BlockStored", [KEYS[1]], KEYS[0], [9, 10], 2, None, "GPU", None, None, 0, None, None, "new", {"x": 1}]
    named = {**removed(KEYS[1]), "a_new_field": [1]}
    report = judge(tmp_path, [short, long, named, ["BlockRemoved", [KEYS[0]]], ["AllBlocksCleared"]])  # type: ignore[list-item]
    assert found(report) == [] and (report.stored, report.removed, report.cleared) == (2, 2, 1)


def test_what_a_key_stands_for_may_be_anything(tmp_path: Path) -> None:
    odd = {**FIRST, "lora_name": ["x"], "extra_keys": [{"image": [1, {"at": 2}]}], "kv_cache_spec_kind": []}
    assert found(judge(tmp_path, [odd, odd])) == []
    other = {**odd, "extra_keys": [{"image": [1, {"at": 3}]}]}
    assert found(judge(tmp_path, [odd, other])) == [("one_content", 2)]


def test_a_recording_that_was_cut_is_read_up_to_there(tmp_path: Path) -> None:
    path = frames(tmp_path / "events", messages([FIRST, REST], per=1))
    whole = path.read_bytes()
    length = len(whole)
    for left in (1, 20, 100):
        path.write_bytes(whole[: length - left])
        report = judge_stream([path], "vllm")
        assert (report.events, len(report.cuts)) == (1, 1)
    lines = tmp_path / "lines"
    lines.write_text('[0, [["AllBlocksCleared"]], 0]\n[0, [["AllBl')
    report = judge_stream([lines], "vllm")
    assert (report.events, len(report.cuts)) == (1, 1)


FIRST_AS_JSON = stored([1], None, [7, 8], 2)
BAD: dict[str, tuple[Any, str]] = {
    "an unknown type": ([0, [CLEARED, {"type": "BlockMoved"}], 0], "event 2: an event of type 'BlockMoved'"),
    "no event": ([0, [7], 0], "event 1: no event"),
    "no batch": ({"ts": 1}, "no batch of events"),
    "no list of events": ([0, 7], "no batch of events"),
    "a rank that is none": ([0, [], "0"], "rank '0'"),
    "no keys": ([0, [{"type": "BlockRemoved"}], 0], "event 1: a BlockRemoved without keys"),
    "a key that is none": ([0, [removed(1.5)], 0], "event 1: a key that is 1.5"),
    "no tokens": ([0, [stored([1], None, [], 2) | {"token_ids": None}], 0], "event 1: a BlockStored without tokens"),
    "no block size": ([0, [stored([1], None, [7], 0)], 0], "event 1: a BlockStored without tokens or block size"),
    "extra keys that are none": (
        [0, [FIRST_AS_JSON | {"extra_keys": 7}], 0],
        "event 1: a BlockStored with other extra",
    ),
    "a group that is none": ([0, [removed(1, group_idx=-1)], 0], "event 1: a BlockRemoved without keys, group"),
    "a payload that is none": ({"seq": 0, "hex": "xyz"}, "a payload that cannot be read"),
    "a payload that is no msgpack": ({"seq": 0, "hex": "92"}, "no msgpack"),
    "a number that is none": ({"seq": "0", "batch": [0, []]}, "a message without number"),
}


@pytest.mark.parametrize(("line", "what"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_one_clear_error(line: Any, what: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ScenarioError) as error:
        list(read_batches([path]))
    assert what in error.value.what and (error.value.line, error.value.file) == (1, str(path))
    assert error.value.expected


@pytest.mark.parametrize("value", [msgspec.msgpack.Ext(5, b"a"), datetime(2026, 1, 1, tzinfo=UTC)], ids=["ext", "time"])
def test_values_that_only_msgpack_has_are_contents_like_others(value: Any, tmp_path: Path) -> None:
    assert found(judge(tmp_path, [FIRST | {"token_ids": [value, 8]}, FIRST | {"token_ids": [value, 8]}])) == []
    other = judge(tmp_path, [FIRST | {"token_ids": [value, 8]}, FIRST | {"token_ids": [value, 9]}])
    assert found(other) == [("one_content", 2)]


def test_the_engine_is_found_out_by_what_only_it_sends(tmp_path: Path) -> None:
    cases: list[tuple[list[Event], Engine | None]] = [
        ([CLEARED, plain(FIRST)], "sglang"),
        ([FIRST], "vllm"),
        ([plain(removed(1, medium="CPU_PINNED"))], "sglang"),
        ([removed(1)], "vllm"),
        ([{k: v for k, v in FIRST.items() if k != "group_idx"}], "vllm"),
        ([plain({**FIRST, "cache_salt": "s"})], "sglang"),
        ([CLEARED], None),
    ]
    for events, engine in cases:
        assert detect([frames(tmp_path / "events", messages(events))]) == engine


# -- what is right ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_what_could_have_been_holds_and_says_what_is_there(seed: int, tmp_path: Path) -> None:
    events = random_stream(seed)
    report = judge(tmp_path, events)
    assert found(report) == [] and report.started == "start" and not report.unknown
    kept = report.keys[0]
    assert kept["copies"] == report.stored - report.removed >= kept["keys"] > 0
    own = [CLEARED, *map(plain, random_stream(seed, numbers, unique=True))]
    assert found(judge(tmp_path, own, "sglang")) == []
    middle = events[len(events) // 3 :]
    assert found(judge(tmp_path, middle, first=7)) == []
    assert judge(tmp_path, middle, first=7).unknown > 0
    assert found(judge(tmp_path, own[len(own) // 3 :], "sglang", first=7)) == []


def test_places_have_keys_of_their_own(tmp_path: Path) -> None:
    other = {**FIRST, "group_idx": 1}
    host = {**FIRST, "medium": "CPU"}
    sent = [(b"", 0, [0, [FIRST, other, host], 0]), (b"", 0, [0, [FIRST], 1]), (b"", 1, [0, [removed(KEYS[0])], 1])]
    report = judge_stream([frames(tmp_path / "events", sent)], "vllm")
    assert found(report) == []
    assert [(k["rank"], k["group"], k["medium"], k["keys"]) for k in report.keys] == [
        (0, 0, "CPU", 1), (0, 0, "GPU", 1), (0, 1, "GPU", 1), (1, 0, "GPU", 0),
    ]  # fmt: skip


def test_of_state_groups_only_the_keys_count(tmp_path: Path) -> None:
    odd = stored([KEYS[0]], KEYS[2], [1, 2, 3], 2)
    assert found(judge(tmp_path, [odd, {**odd, "token_ids": []}, removed(*KEYS[:1])], groups=("state",))) == []
    assert found(judge(tmp_path, [{**odd, "kv_cache_spec_kind": "mamba"}], groups=())) == []


def test_of_windows_blocks_may_be_left_out_and_parents_may_be_gone(tmp_path: Path) -> None:
    part = stored([KEYS[2]], None, PROMPT, 2)
    behind = stored([key((*PROMPT, 1, 2))], key((5, 5)), [1, 2], 2)
    for groups in (("window",), ()):
        report = judge(tmp_path, [part, behind], groups=groups)
        assert found(report) == [] and [n.rule for n in report.notes] == ["parent_unknown"]


def test_keys_of_parts_of_a_block_stand_behind_keys_that_no_block_has(tmp_path: Path) -> None:
    whole = stored([key((1, 2, 3, 4))], None, [1, 2, 3, 4], 4)
    part = stored([key((1, 2, 3, 4, 5, 6, 7))], key((1, 2, 3, 4, 5, 6)), [7], 1)
    assert found(judge(tmp_path, [whole, part])) == []


# -- what is wrong ----------------------------------------------------------------------------------------------------

NEXT = stored([key((*PROMPT, 1, 2))], KEYS[2], [1, 2], 2)
WRONG: dict[str, tuple[list[Event], list[tuple[str, int]]]] = {
    "a key is removed that was never stored": ([FIRST, removed(KEYS[2])], [("removed_was_stored", 2)]),
    "a key is removed twice": ([FIRST, removed(KEYS[0]), removed(KEYS[0])], [("removed_was_stored", 3)]),
    "a key is removed more often than stored": (
        [FIRST, FIRST, removed(KEYS[0], KEYS[0]), removed(KEYS[0])],
        [("removed_was_stored", 4)],
    ),
    "a key is removed after all were cleared": ([FIRST, CLEARED, removed(KEYS[0])], [("removed_was_stored", 3)]),
    "the block before was never stored": ([REST], [("parent_stored", 1)]),
    "the block before was removed": ([FIRST, removed(KEYS[0]), REST], [("parent_stored", 3)]),
    "too few tokens": ([stored(KEYS, None, PROMPT[:4], 2)], [("tokens_per_key", 1)]),
    "too many tokens": ([stored(KEYS[:1], None, PROMPT[:4], 2)], [("tokens_per_key", 1)]),
    "other tokens under the same key": ([FIRST, stored(KEYS[:1], None, [7, 9], 2)], [("one_content", 2)]),
    "another parent under the same key": ([FIRST, REST, stored(KEYS[2:], KEYS[0], [11, 12], 2)], [("one_content", 3)]),
    "another context under the same key": (
        [stored(KEYS[:1], None, [7, 8], 2, extra_keys=[["s"]]), FIRST],
        [("one_content", 2)],
    ),
    "another adapter under the same key": ([FIRST, {**FIRST, "lora_name": "x"}], [("one_content", 2)]),
}
OF_SGLANG: dict[str, tuple[list[Event], list[tuple[str, int]]]] = {
    "nothing is said to be cleared at first": ([FIRST], [("cleared_first", 1)]),
    "a key is stored twice": ([CLEARED, FIRST, FIRST], [("stored_once", 3)]),
    "other tokens": ([CLEARED, FIRST, removed(KEYS[0]), stored(KEYS[:1], None, [7, 9], 2)], [("one_content", 4)]),
    "another salt": ([CLEARED, FIRST, removed(KEYS[0]), {**FIRST, "cache_salt": "s"}], [("one_content", 4)]),
    "the block before was never stored": ([CLEARED, REST], [("parent_stored", 2)]),
    "tokens that do not fit": ([CLEARED, stored(KEYS[:1], None, [7, 8, 9], 2)], [("tokens_per_key", 2)]),
}


@pytest.mark.parametrize(("events", "rules"), WRONG.values(), ids=WRONG)
def test_what_no_correct_manager_says_is_found_where_it_is(
    events: list[Event], rules: list[tuple[str, int]], tmp_path: Path
) -> None:
    assert found(judge(tmp_path, events)) == rules


@pytest.mark.parametrize(("events", "rules"), OF_SGLANG.values(), ids=OF_SGLANG)
def test_sglang_has_rules_of_its_own(events: list[Event], rules: list[tuple[str, int]], tmp_path: Path) -> None:
    assert found(judge(tmp_path, [plain(e) for e in events], "sglang")) == rules


def test_each_rule_and_note_is_met(tmp_path: Path) -> None:
    met = {rule for _, rules in (*WRONG.values(), *OF_SGLANG.values()) for rule, _ in rules}
    assert met | {"fits_pool", "sequence_gap", "sequence_back", "final_keys"} == set(RULES)
    again = stored([KEYS[1]], None, [7, 8], 2)
    assert [n.rule for n in judge(tmp_path, [FIRST, again]).notes] == ["other_key_same_content"]
    assert set(NOTES) == {"other_key_same_content", "parent_unknown", "not_in_dump"}


def test_no_more_blocks_have_keys_than_there_are(tmp_path: Path) -> None:
    again = stored(KEYS[1:2], KEYS[0], [9, 10], 2)
    assert found(judge(tmp_path, [FIRST, REST], blocks=3)) == []
    assert found(judge(tmp_path, [FIRST, REST, again, again, CLEARED, FIRST], blocks=3)) == [("fits_pool", 3)]
    assert found(judge(tmp_path, [FIRST, REST, removed(KEYS[2]), again], blocks=3)) == []
    other = {**FIRST, "group_idx": 1}
    assert found(judge(tmp_path, [FIRST, other], groups=("full", "full"), blocks=1)) == [("fits_pool", 2)]
    assert found(judge(tmp_path, [FIRST, {**FIRST, "medium": "CPU"}], blocks=1)) == []
    part = stored([key((1, 2, 3))], None, [1], 1)
    assert found(judge(tmp_path, [FIRST, FIRST], blocks=1)) == [] == found(judge(tmp_path, [FIRST, part], blocks=1))


def test_messages_that_are_missing_or_come_twice_are_found(tmp_path: Path) -> None:
    sent = messages([FIRST, REST, removed(KEYS[2]), removed(KEYS[1]), removed(KEYS[0])], per=1)
    for rule, broken, event in (
        ("sequence_gap", [*sent[:2], *sent[3:]], 3),
        ("sequence_back", [*sent[:3], sent[2], *sent[3:]], 4),
        ("sequence_back", [sent[0], sent[2], sent[1], *sent[3:]], 3),
    ):
        report = judge_stream([frames(tmp_path / "events", broken)], "vllm", groups=["full"])
        assert (rule, event) in found(report)
        assert report.findings[0].rule.startswith("sequence")
    late = judge(tmp_path, [FIRST], first=5, from_start=True)
    assert [rule for rule, _ in found(late)] == ["sequence_gap"]


def test_behind_a_gap_only_what_follows_is_known(tmp_path: Path) -> None:
    sent = [*messages([FIRST]), *messages([removed(KEYS[0], KEYS[0]), REST], first=4)]
    report = judge_stream([frames(tmp_path / "events", sent)], "vllm", groups=["full"])
    assert [rule for rule, _ in found(report)] == ["sequence_gap"] and report.unknown == 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_stream_that_was_tampered_with_is_found_at_the_right_event(seed: int, engine: Engine, tmp_path: Path) -> None:
    """One event is left out or said twice: that is found there, or where it is missed, and never before."""
    events = random_stream(seed, unique=engine == "sglang")
    events = [CLEARED, *map(plain, events)] if engine == "sglang" else events
    final = [FinalKey(hash=k, copies=n) for k, n in remaining(events).items()]
    assert found(judge(tmp_path, events, engine, final=final)) == []
    chance = random.Random(seed)
    for at in chance.sample(range(1, len(events)), 12):
        missing = judge(tmp_path, [*events[:at], *events[at + 1 :]], engine, final=final)
        assert missing.findings or missing.notes, events[at]
        assert all(finding.event >= at for finding in missing.findings)
        twice = judge(tmp_path, [*events[: at + 1], *events[at:]], engine, final=final)
        assert twice.findings or twice.notes, events[at]
        told_at_once = engine == "sglang" or (events[at]["type"] == "BlockRemoved" and was_last(events, at))
        assert not told_at_once or twice.findings[0].event == at + 2


def was_last(events: Sequence[Event], at: int) -> bool:
    """Whether the event removed the last copy of its keys."""
    left = remaining(events[: at + 1])
    return all(h.hex() not in left for h in events[at]["block_hashes"])


def remaining(events: Sequence[Event]) -> dict[str, int]:
    """The keys that are left, and how often."""
    there: dict[str, int] = {}
    for event in events:
        step = 1 if event["type"] == "BlockStored" else -1
        for one in event.get("block_hashes", ()):
            there[one.hex()] = there.get(one.hex(), 0) + step
    return {k: n for k, n in there.items() if n}


def test_the_keys_at_the_end_are_compared_with_a_dump(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    first, second, third = (k.hex() for k in KEYS)
    for dump, rules in (
        ([first, second, third], []),
        ({first: 1, second: 1, third: 1}, []),
        ([{"hash": first}, {"hash": second, "copies": 1}, third], []),
        ([first, second], ["final_keys"]),
        ([first, second, third, "00"], ["final_keys"]),
        ({first: 2, second: 1, third: 1}, ["final_keys"]),
        ([first, second, {"hash": third, "group": 1}], ["final_keys", "final_keys"]),
    ):
        path.write_text(json.dumps(dump))
        report = judge(tmp_path, [FIRST, REST], final=read_final(path))
        assert [rule for rule, _ in found(report)] == rules, dump
    path.write_text(json.dumps([first]))
    assert found(judge(tmp_path, [REST, removed(KEYS[1], KEYS[2])], first=9, final=read_final(path))) == []
    twice = judge(tmp_path, [FIRST, FIRST, removed(KEYS[0])], final=[])
    assert found(twice) == [] and [n.rule for n in twice.notes] == ["not_in_dump"]


@pytest.mark.parametrize("text", ["", "{", "7", '[{"hsh": 1}]', "[1.5]", '{"a": "b"}', '{"a": -1}'])
def test_a_dump_that_cannot_be_read_is_one_clear_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text(text)
    with pytest.raises(ScenarioError, match="no dump of keys"):
        read_final(path)
