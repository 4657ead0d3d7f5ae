"""KV events that vLLM's manager has published are followed by ``kvspec trace``; with one wrong, that one is found."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from kvspec.impl.adapters import environment
from kvspec.model.eventlog import FRAMES_MAGIC, FrameLog
from kvspec.model.tracing.stream import StreamReport, judge_stream, read_final

pytestmark = pytest.mark.peer("vllm")

VARIANTS = ("full", "full+sliding")
"""One group, and two with the same hashes; the second is recorded with overlapped steps."""
EVERY = 7
"""So many events are passed over between two that are spoilt."""

Message = tuple[bytes, bytes, bytes]


class Recording(NamedTuple):
    """What a run has published.

    Attributes:
        path: the file.
        messages: in it.
        final: the file with the keys at the end.
    """

    path: Path
    messages: list[Message]
    final: Path


@pytest.fixture(scope="module", params=VARIANTS)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("events")
    path, final = folder / "events.frames", folder / "final.json"
    argv = environment.command("vllm")
    argv = [*argv[: argv.index("-m")], "-m", "kvspec.impl.adapters.vllm_events", str(path), "--final", str(final)]
    argv += ["--variant", request.param, *(["--overlapped"] if "+" in request.param else [])]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return Recording(path, list(read(path)), final)


def read(path: Path) -> Iterator[Message]:
    """The messages of a recording, read by hand."""
    data = path.read_bytes()
    at = len(FRAMES_MAGIC)
    assert data[:at] == FRAMES_MAGIC
    while at < len(data):
        (count,) = struct.unpack_from(">I", data, at)
        at, frames = at + 4, []
        for _ in range(count):
            (size,) = struct.unpack_from(">I", data, at)
            frames.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        topic, number, payload = frames
        yield topic, number, payload


def judged(messages: list[Message], recording: Recording, tmp_path: Path) -> StreamReport:
    path = tmp_path / "spoilt.frames"
    path.unlink(missing_ok=True)
    with FrameLog(path) as log:
        for message in messages:
            log.write(*message)
    return judge_stream([path], "vllm", final=read_final(recording.final))


def events_of(message: Message) -> list[dict[str, Any]]:
    _, events, *_ = msgspec.msgpack.decode(message[2])
    found: list[dict[str, Any]] = events
    return found


def with_events(message: Message, events: list[dict[str, Any]]) -> Message:
    ts, _, *rest = msgspec.msgpack.decode(message[2])
    return message[0], message[1], msgspec.msgpack.encode([ts, events, *rest])


# -- the recording as it is -------------------------------------------------------------------------------------------


def test_what_vllm_publishes_is_what_its_keys_are(recording: Recording, tmp_path: Path) -> None:
    report = judged(recording.messages, recording, tmp_path)
    assert (report.findings, report.notes, report.unknown, report.started) == ([], [], 0, "start")
    assert min(report.stored, report.removed, report.cleared) > 0


def test_the_command_follows_it(recording: Recording) -> None:
    argv = ["-m", "kvspec.cli", "trace", str(recording.path), "--final", str(recording.final)]
    assert kvspec(argv) == 0


def test_the_command_does_not_believe_another_end(recording: Recording, tmp_path: Path) -> None:
    keys = json.loads(recording.final.read_text())
    (tmp_path / "final.json").write_text(json.dumps([*keys, {"hash": 1}]))
    assert kvspec(["-m", "kvspec.cli", "trace", str(recording.path), "--final", str(tmp_path / "final.json")]) == 1


def kvspec(argv: list[str]) -> int:
    return subprocess.run([sys.executable, *argv], capture_output=True, timeout=120, check=False).returncode


# -- a message is lost, comes twice, or late -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "rule", "wrong"),
    [
        (lambda m, k: [*m[:k], *m[k + 1 :]], "sequence_gap", 0),
        (lambda m, k: [*m[: k + 1], *m[k:]], "sequence_back", 1),
        (lambda m, k: [*m[:k], m[k + 1], m[k], *m[k + 2 :]], "sequence_gap", 0),
    ],
    ids=("lost", "twice", "late"),
)
def test_a_message_that_is_spoilt_is_found(
    recording: Recording,
    tmp_path: Path,
    spoil: Callable[[list[Message], int], list[Message]],
    rule: str,
    wrong: int,
) -> None:
    for k in range(1, len(recording.messages) - 1, EVERY):
        spoilt = spoil(recording.messages, k)
        first, *_ = judged(spoilt, recording, tmp_path).findings
        assert (first.rule, first.line) == (rule, k + wrong + 1)
        assert first.event == sum(len(events_of(message)) for message in spoilt[: k + wrong]) + 1


# -- an event is lost, comes twice, or late ---------------------------------------------------------------------------


def lost(events: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
    return [*events[:at], *events[at + 1 :]]


def twice(events: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
    return [*events[: at + 1], *events[at:]]


def late(events: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
    return [*events[:at], *events[at + 1 : at + 2], events[at], *events[at + 2 :]]


@pytest.mark.parametrize("spoil", [lost, twice, late])
def test_an_event_that_is_spoilt_is_found_where_it_shows(
    recording: Recording, tmp_path: Path, spoil: Callable[[list[dict[str, Any]], int], list[dict[str, Any]]]
) -> None:
    """Where the keys, counted by hand, first say something impossible, or at the end, where they are not the dump's."""
    final, seen = read_final(recording.final), 0
    dump = Counter({(key.group, key.hash): key.copies or 1 for key in final})
    places = [(m, e) for m, message in enumerate(recording.messages) for e in range(len(events_of(message)))]
    for m, e in places[::EVERY]:
        message = with_events(recording.messages[m], spoil(events_of(recording.messages[m]), e))
        spoilt = [*recording.messages[:m], message, *recording.messages[m + 1 :]]
        expected = first_wrong([event for one in spoilt for event in events_of(one)], dump)
        found = [finding.event for finding in judged(spoilt, recording, tmp_path).findings[:1]]
        assert found == expected, (spoil.__name__, m, e)
        seen += len(found)
    assert seen > len(places) // EVERY // 4 or spoil is late  # a reset forgets what would have shown


def first_wrong(events: list[dict[str, Any]], dump: Counter[tuple[int, Any]]) -> list[int]:
    """The number of the first event that no manager could have sent, if there is one."""
    there: Counter[tuple[int, Any]] = Counter()
    announced: set[tuple[int, Any]] = set()
    for number, event in enumerate(events, 1):
        keys = [(event.get("group_idx"), key) for key in event.get("block_hashes", ())]
        if event["type"] == "AllBlocksCleared":
            there.clear()
            announced.clear()
        elif event["type"] == "BlockRemoved":
            there.subtract(keys)
            if any(there[key] < 0 for key in keys):
                return [number]
        else:
            parent = (event["group_idx"], event["parent_block_hash"])
            if event["kv_cache_spec_kind"] == "full_attention" and parent[1] is not None and there[parent] < 1:
                return [number]
            if parent[1] is None and all(there[key] > 0 for key in keys):
                announced.update(keys)  # a hit may be announced again, which is no copy
            there.update(keys)
    wrong = [k for k in there.keys() | dump.keys() if max(there[k], 0) != dump[k]]
    return [len(events)] if any(k not in announced or there[k] < dump[k] for k in wrong) else []
