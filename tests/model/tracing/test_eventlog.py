"""The writer of logs: from threads, over several files, through errors; what it writes can be traced."""

from __future__ import annotations

import ast
import io
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kvspec.model import eventlog
from kvspec.model.eventlog import FRAMES_MAGIC, EventLog, FrameLog
from kvspec.model.tracing.feed import Batch, is_frames, read_batches
from kvspec.model.tracing.trace import trace_events

SIZES = {"num_blocks": 9, "block_size": 2}


def turns(log: EventLog, count: int, seq: str = "a", block: int = 1) -> None:
    """A block is taken and given back, so many times."""
    for _ in range(count):
        log.event("allocate", block=block, seat=("seq_at", seq, 0))
        log.event("release", block=block, seat=("seq_at", seq, 0))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_writer_needs_nothing_but_python() -> None:
    tree = ast.parse(Path(eventlog.__file__).read_text(encoding="utf-8"))
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | {"__future__"}


def test_what_is_written_can_be_traced(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog(path, chapter="prefix_cache", complete=True, clock=lambda: 7.5, **SIZES) as log:
        turns(log, 3)
        log.snapshot({"blocks.free": frozenset(range(1, 9)), "holders": {}, "content": {1: []}}, where="here")
        log.event("reset", note="x")
    assert lines(path)[0] == {
        "kvspec": "events", "version": 1, "chapter": "prefix_cache", "part": 1, "complete": True, **SIZES,
    }  # fmt: skip
    assert lines(path)[1] == {"event": "allocate", "block": 1, "seat": ["seq_at", "a", 0], "time": 7.5}
    report = trace_events([path])
    assert report.finding is None and (report.events, report.snapshots, report.started) == (7, 1, "start")


def test_files_of_a_size_are_one_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with EventLog(path, chapter="prefix_cache", complete=True, max_bytes=1000, **SIZES) as log:
        turns(log, 40)
    files = [*sorted(tmp_path.glob("log.*"), key=lambda p: -int(p.suffix[1:])), path]
    assert len(files) > 3
    report = trace_events(files)
    assert report.finding is None and (report.events, report.believed, report.holes) == (80, 0, [])
    assert [lines(f)[0]["part"] for f in files] == list(range(1, len(files) + 1))
    report = trace_events([*files[:1], *files[2:]])
    assert report.finding is None and len(report.holes) == 1


def test_old_files_are_dropped_and_new_ones_begin_with_the_state(tmp_path: Path) -> None:
    held: set[str] = set()
    path = tmp_path / "log"

    def state() -> dict[str, Any]:
        free = set(range(1, 9)) - ({1} if held else set())
        holders = {1: [["seq_at", s, 0] for s in held]} if held else {}
        return {"blocks.free": free, "holders": holders, "content": {1: []}}

    with EventLog(path, chapter="prefix_cache", complete=True, max_bytes=400, keep=2, state=state, **SIZES) as log:
        for _ in range(40):
            log.event("allocate", block=1, seat=["seq_at", "a", 0])
            held.add("a")
            log.event("release", block=1, seat=["seq_at", "a", 0])
            held.clear()
    assert {p.name for p in tmp_path.iterdir()} == {"log", "log.1", "log.2"}
    assert [next(iter(line)) for line in lines(path)[:2]] == ["kvspec", "snapshot"]
    report = trace_events([tmp_path / "log.2", tmp_path / "log.1", path])
    assert report.finding is None and (report.started, report.believed, report.snapshots) == ("snapshot", 0, 3)


def test_a_log_is_continued_and_says_that_something_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for _ in range(2):
        with EventLog(path, chapter="prefix_cache", **SIZES) as log:
            turns(log, 1)
    report = trace_events([path])
    assert report.events == 4 and len(report.holes) == 1
    with path.open("a") as file:
        file.write('{"event": "rel')
    with EventLog(path, chapter="prefix_cache", complete=True, **SIZES) as log:
        turns(log, 1)
    report = trace_events([path])
    assert report.finding is None and report.events == 6 and len(report.cuts) == 1


class Failing(io.StringIO):
    """A file that cannot always be written to, and then has half a line."""

    fails = False

    def write(self, text: str) -> int:
        if self.fails:
            super().write(text[:5])
            raise OSError("no space left")
        return super().write(text)


@pytest.mark.parametrize("how", ["drop", "call"])
def test_an_error_does_not_reach_the_engine_and_the_log_says_so(how: str, tmp_path: Path) -> None:
    errors: list[Exception] = []
    file = Failing()
    on_error: Any = errors.append if how == "call" else "drop"
    log = EventLog(file, chapter="prefix_cache", complete=True, on_error=on_error, **SIZES)
    log.event("allocate", block=1, seat=["seq_at", "a", 0])
    file.fails = True
    log.event("release", block=1, seat=["seq_at", "a", 0])
    file.fails = False
    log.event("allocate", block=object(), seat=["seq_at", "a", 0])
    turns(log, 2)
    assert log.dropped == 2 and log.last_error is not None and len(errors) == (2 if how == "call" else 0)
    path = tmp_path / "log"
    path.write_text(file.getvalue())
    report = trace_events([path])
    assert report.finding is None and report.events == 5 and len(report.holes) == 1


def test_errors_are_raised_if_nothing_else_is_wanted(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", chapter="prefix_cache", **SIZES)
    with pytest.raises(TypeError):
        log.event("allocate", block=object())
    with pytest.raises(ValueError, match="max_bytes"):
        EventLog(io.StringIO(), chapter="prefix_cache", max_bytes=1)
    log.close()


def test_threads_share_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = EventLog(path, chapter="prefix_cache", complete=True, flush=None, max_bytes=5000, **SIZES)
    threads = [threading.Thread(target=turns, args=(log, 100, f"s{n}", n)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    files = [*sorted(tmp_path.glob("log.*"), key=lambda p: -int(p.suffix[1:])), path]
    report = trace_events(files)
    assert report.finding is None and (report.events, report.believed) == (800, 0)


def test_lines_are_handed_over_when_they_should(tmp_path: Path) -> None:
    for flush, there in (("line", 3), (None, 0), (1e6, 0), (0.0, 3)):
        path = tmp_path / f"log{flush}"
        log = EventLog(path, chapter="prefix_cache", flush=flush, **SIZES)  # type: ignore[arg-type]
        turns(log, 1)
        assert len(lines(path)) == there
        log.flush()
        assert len(lines(path)) == 3
        log.close()


def test_frames_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    for number in range(2):
        with FrameLog(path) as log:
            log.write(b"kv", number.to_bytes(8, "big"), b"\x92\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\x90")
    assert path.read_bytes().startswith(FRAMES_MAGIC) and is_frames(path)
    found = [b for b in read_batches([path]) if isinstance(b, Batch)]
    assert [(b.source, b.number, b.events) for b in found] == [(("kv", 0), 0, []), (("kv", 0), 1, [])]
