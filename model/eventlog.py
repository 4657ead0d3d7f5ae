"""Writes logs that ``kvspec trace`` reads. This file needs nothing but Python, so that it can be copied into an engine.

    log = EventLog("cache.jsonl", chapter="prefix_cache", complete=True, num_blocks=1024, block_size=16)
    log.event("allocate", block=7, seat=["seq_at", "request-1", 0])

Which events there are, and what they mean, is said by a chapter of the spec (``kvspec explain prefix_cache``); the form
of the file is said in ``docs/traces.md``.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, cast

VERSION = 1
"""Of the format."""
FRAMES_MAGIC = b"kvspec frames 1\n"
"""How a file of frames begins; see `FrameLog`."""

OnError = Literal["raise", "drop"] | Callable[[Exception], None]


class EventLog:
    """A log of events of one chapter.

    Each line is written whole and under a lock, so any thread may log. A value is anything that JSON knows, and sets,
    tuples, bytes (as hex digits) and maps with any keys; a chain is the list of its tokens, or an object with
    ``tokens`` and a context, and a holder of a block is a list such as ``["seq_at", "a", 0]``.

    Args:
        file: where to write: a path, whose file is continued if it is there, or an open text file.
        chapter: whose events these are.
        complete: the log begins with the start state of the chapter.
        max_bytes: a file that has so many bytes is renamed to ``PATH.1`` (what was there to ``PATH.2``, and so on), and
            a new one is begun; 0: never. Only with a path.
        keep: so many files that were renamed are kept; 0: all.
        state: gives the variables of the chapter, for a complete snapshot at the head of each new file. It is called
            under the lock of the log, by the thread whose event filled the file, before that event is written.
        flush: after each line; or so many seconds after the last time, with the next line; or never, if None.
        clock: gives the time of each line, in any unit; None: lines have no time.
        on_error: what becomes of an error: it is raised; or the line is dropped and counted, which the log says at its
            next line; or it is dropped and the error is given to this function. A call never raises then.
        constants: what the header has to say, such as ``num_blocks``, ``block_size``, or static words of the chapter.

    Attributes:
        dropped: lines that could not be written.
        last_error: why the last of them could not; None if all could.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | IO[str],
        *,
        chapter: str,
        complete: bool = False,
        max_bytes: int = 0,
        keep: int = 0,
        state: Callable[[], Mapping[str, Any]] | None = None,
        flush: Literal["line"] | float | None = "line",
        clock: Callable[[], float] | None = None,
        on_error: OnError = "raise",
        **constants: Any,
    ) -> None:
        self._path = None if hasattr(file, "write") else Path(file)
        self._file: IO[str] | None = None if self._path is not None else cast("IO[str]", file)
        if max_bytes and self._path is None:
            raise ValueError("max_bytes: an open file, expected a path")
        self._chapter, self._complete, self._constants = chapter, complete, constants
        self._max_bytes, self._keep, self._state = max_bytes, keep, state
        self._flush, self._clock, self._on_error = flush, clock, on_error
        self._lock = threading.RLock()
        self._part, self._size, self._flushed, self._torn = 1, 0, time.monotonic(), False
        self._wants_header, self._wants_state = True, False
        self.dropped = 0
        self.last_error: Exception | None = None

    def event(self, name: str, /, **arguments: Any) -> None:
        """An event has happened; its arguments have the names that they have in the chapter.

        ``time``, ``where`` and ``note`` may be given beside them; they are for whoever reads the log.
        """
        self._log({"event": name, **arguments})

    def snapshot(self, variables: Mapping[str, Any], *, complete: bool = False, **remarks: Any) -> None:
        """The state is so now. A set or a value is given whole, of a map the entries that are known.

        Args:
            variables: by their names in the chapter.
            complete: what is not said is empty; otherwise nothing is known of it.
            remarks: ``time``, ``where``, ``note``.
        """
        self._log({"snapshot": _entries(variables), **({"complete": True} if complete else {}), **remarks})

    def flush(self) -> None:
        """Hand over to the system what has been written."""
        self._guarded(self._flush_now)

    def close(self) -> None:
        """Write out everything; an open file that was given stays open."""
        self._guarded(self._close)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- one line at a time --------------------------------------------------------------------------------------

    def _log(self, line: dict[str, Any]) -> None:
        self._guarded(lambda: self._write_line(line), loses_a_line=True)

    def _guarded(self, action: Callable[[], None], loses_a_line: bool = False) -> None:
        with self._lock:
            try:
                action()
            except Exception as error:
                self.last_error = error
                if loses_a_line:
                    self.dropped += 1
                    # The reader sees a number that is missing, and knows that a line is, too.
                    self._part, self._wants_header, self._complete = self._part + 1, True, False
                if self._on_error == "raise":
                    raise
                if callable(self._on_error):
                    self._on_error(error)

    def _write_line(self, line: dict[str, Any]) -> None:
        if self._clock is not None:
            line.setdefault("time", self._clock())
        text = _text(line)
        if self._max_bytes and self._size >= self._max_bytes:
            self._rotate()
        if self._wants_header:
            self._put(_text(self._header()))
            self._wants_header, self._part, self._complete = False, self._part + 1, False
        if self._wants_state and self._state is not None:
            self._wants_state = False
            self._put(_text({"snapshot": _entries(self._state()), "complete": True}))
        self._put(text)
        if self._flush == "line" or (self._flush is not None and time.monotonic() - self._flushed >= self._flush):
            self._flush_now()

    def _header(self) -> dict[str, Any]:
        head = {"kvspec": "events", "version": VERSION, "chapter": self._chapter, "part": self._part}
        return {**head, **({"complete": True} if self._complete else {}), **self._constants}

    def _put(self, text: str) -> None:
        file = self._file if self._file is not None else self._open()
        begun, self._torn = self._torn, True  # a line that is not finished is ended before the next
        file.write(("\n" if begun else "") + text + "\n")
        self._torn = False
        self._size += len(text) + 1

    def _open(self) -> IO[str]:
        assert self._path is not None
        self._torn = _is_torn(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        self._size = self._file.tell()
        return self._file

    def _flush_now(self) -> None:
        self._flushed = time.monotonic()
        if self._file is not None:
            self._file.flush()

    def _close(self) -> None:
        file, self._file = self._file, self._file if self._path is None else None
        if file is not None:
            file.flush()
            if self._path is not None:
                file.close()

    # -- files ---------------------------------------------------------------------------------------------------

    def _rotate(self) -> None:
        assert self._path is not None
        self._close()
        last = 1
        while _numbered(self._path, last).exists():
            last += 1
        for number in range(last, 1, -1):
            _numbered(self._path, number - 1).replace(_numbered(self._path, number))
        self._path.replace(_numbered(self._path, 1))
        if self._keep:
            _numbered(self._path, self._keep + 1).unlink(missing_ok=True)
        self._size, self._wants_header, self._wants_state = 0, True, True


class FrameLog:
    """A recording of messages as they came from a socket, such as the KV events of an engine.

    The file begins with `FRAMES_MAGIC`; of each message it has the number of its frames, and of each frame its length
    and its bytes, both numbers as four bytes with the highest first.

        with FrameLog("events.frames") as log:
            while True:
                log.write(*socket.recv_multipart())
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = open(path, "ab")  # noqa: SIM115
        if not self._file.tell():
            self._file.write(FRAMES_MAGIC)

    def write(self, *frames: bytes) -> None:
        """A message has come: its topic, its number and its payload."""
        parts = [struct.pack(">I", len(frames)), *(struct.pack(">I", len(f)) + f for f in frames)]
        self._file.write(b"".join(parts))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> FrameLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _is_torn(path: Path) -> bool:
    """Whether a file ends in the middle of a line."""
    try:
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # it is not there, or empty
        return False


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps({name: _plain(value) for name, value in line.items()}, separators=(",", ":"), allow_nan=False)


def _entries(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Maps as lists of pairs: a key is seldom text."""
    return {n: [[k, v] for k, v in x.items()] if isinstance(x, Mapping) else x for n, x in variables.items()}


def _plain(value: Any) -> Any:
    """The value as JSON can have it."""
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return [_plain(v) for v in value]
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _plain(v) for key, v in value.items()}
        return [[_plain(k), _plain(v)] for k, v in value.items()]
    return value
