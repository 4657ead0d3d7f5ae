"""A child process that is sent lines and answers with lines, and that always ends.

Whatever it does, nobody waits for ever: it is written to only as far as it reads, its standard error is read whenever
something is awaited, and an answer has its time. It has a process group of its own, so that Ctrl-C does not reach it,
and so that whatever it has started ends with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Final

_PIECE: Final = 1 << 16
_TAIL: Final = 1 << 14
"""Bytes of standard error that are kept, the last ones."""
_LONGEST_LINE: Final = 1 << 28
_LAST_WORDS: Final = 0.5
"""Seconds for what still comes from a process that does not read any more, or has ended."""
_GRACE: Final = 2.0
"""Seconds for a process to end by itself, and again after it was asked to."""


class ChildError(Exception):
    """There is no answer: the process has ended, or takes too long.

    Attributes:
        answered: lines that have come before.
    """

    def __init__(self, what: str, answered: Sequence[bytes]) -> None:
        super().__init__(what)
        self.answered = answered


class ChildEndedError(ChildError):
    """The process has ended, or will not say any more."""


class ChildStuckError(ChildError):
    """The answer has not come in time."""


class Child:
    """A process.

    Args:
        argv: the command and its arguments.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, process_group=0
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._input, self._output, self._errors = (pipe.fileno() for pipe in self._pipes)
        for pipe in (self._input, self._output, self._errors):
            os.set_blocking(pipe, False)
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)
        self._poll.register(self._errors, select.POLLIN)
        self._received, self._said = bytearray(), bytearray()
        self._searched = 0  # so many of the bytes received are in no whole line
        self._is_deaf = False

    @property
    def tail(self) -> list[str]:
        """The last lines that it has written to its standard error."""
        return bytes(self._said).decode(errors="replace").splitlines()

    # -- lines ---------------------------------------------------------------------------------------------------

    def ask(self, sent: bytes, count: int, seconds: float) -> list[bytes]:
        """Send some bytes, and wait for so many lines.

        Args:
            sent: whole lines.
            count: how many lines are to come.
            seconds: within which each has to come, from the last one on.

        Raises:
            ChildError: one of them has not come.
        """
        unsent = memoryview(sent)
        lines: list[bytes] = []
        deadline = time.monotonic() + seconds
        was_over = False
        while True:
            if unsent:
                unsent = self._send(unsent)
                if self._is_deaf:
                    deadline = min(deadline, time.monotonic() + _LAST_WORDS)
            ready = self._wait(min(deadline, time.monotonic() + _LAST_WORDS))
            if not ready and was_over:  # what it has started may keep its output open
                raise ChildEndedError(self._how_it_ended(), lines)
            was_over = not ready and self._has_ended()
            if self._output in ready:
                if not self._receive():
                    raise ChildEndedError(self._how_it_ended(), lines)
                if more := self._taken(count - len(lines)):
                    lines += more
                    deadline = time.monotonic() + seconds
            if len(lines) == count:
                return lines
            if time.monotonic() >= deadline:
                if self._is_deaf:
                    raise ChildEndedError(self._how_it_ended(), lines)
                raise ChildStuckError(f"no answer came within {seconds:g} s{self._begun()}", lines)

    def _send(self, unsent: memoryview) -> memoryview:
        """Write what it takes; the rest."""
        try:
            return self._watched(unsent[os.write(self._input, unsent) :])
        except BlockingIOError:
            return self._watched(unsent)
        except BrokenPipeError:
            self._is_deaf = True
            return self._watched(unsent[:0])

    def _watched(self, unsent: memoryview) -> memoryview:
        """Be told when it takes more, if there is more."""
        if unsent:
            self._poll.register(self._input, select.POLLOUT)
        else:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._input)
        return unsent

    def _wait(self, deadline: float) -> dict[int, int]:
        """What is ready, once something is; its standard error is read."""
        ready = dict(self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
        if self._errors in ready and self._listen() is False:
            self._poll.unregister(self._errors)
        return ready

    def _listen(self) -> bool | None:
        """Read its standard error; None if there is nothing now, False if there will be nothing more."""
        said = _read(self._errors)
        self._said += said or b""
        del self._said[:-_TAIL]
        return None if said is None else bool(said)

    def _receive(self) -> bool:
        """Read its standard output; whether there may be more."""
        received = _read(self._output)
        self._received += received or b""
        return received != b"" and len(self._received) <= _LONGEST_LINE

    def _taken(self, most: int) -> list[bytes]:
        """Lines that have come, at most so many."""
        lines: list[bytes] = []
        start = 0
        while len(lines) < most and (end := self._received.find(b"\n", max(start, self._searched))) >= 0:
            lines.append(bytes(self._received[start:end]))
            start = end + 1
        self._searched = len(self._received) - start if len(lines) < most else 0
        del self._received[:start]
        return lines

    # -- the end -------------------------------------------------------------------------------------------------

    def end(self, at_once: bool = False) -> None:
        """End it, and whatever it has started: its input ends, then it is asked to, then it is killed."""
        with contextlib.suppress(OSError):
            self._pipes[0].close()
        try:
            for signal_number in () if at_once else (None, signal.SIGTERM):
                if signal_number is not None:
                    self._signal(signal_number)
                if self._is_over(_GRACE):
                    break
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()
            for pipe in self._pipes[1:]:
                pipe.close()

    def _is_over(self, seconds: float) -> bool:
        """Whether it ends within some time; what it still has to say is read, so that it is not held up by that."""
        deadline = time.monotonic() + seconds
        pause = 0.0005
        while not self._has_ended():
            if time.monotonic() > deadline:
                return False
            _read(self._output)
            self._listen()
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return True

    def _has_ended(self) -> bool:
        """Where that can be, it is not waited for: as long as nobody does, its number is that of no other process."""
        if self._process.returncode is not None or not hasattr(os, "waitid"):
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _how_it_ended(self) -> str:
        """Why nothing more comes."""
        if len(self._received) > _LONGEST_LINE:
            return f"its process has written {len(self._received)} bytes without the end of a line"
        if not self._is_over(_LAST_WORDS):
            return f"its process has closed its standard {'input' if self._is_deaf else 'output'}{self._begun()}"
        self._signal(signal.SIGKILL)  # nothing that it has started goes on
        while self._listen():
            pass
        code = self._process.wait()
        how = f"has ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        return f"its process {how}{self._begun()}"

    def _begun(self) -> str:
        """What has come of a line that does not end."""
        if not self._received:
            return ""
        return f", in the middle of the line {shortened(bytes(self._received))}"


def shortened(line: bytes) -> str:
    """A line for an error message."""
    text = line[:200].decode(errors="replace")
    return repr(text + "..." if len(line) > 200 else text)


def _read(pipe: int) -> bytes | None:
    """What there is; nothing at the end, None if there is nothing now."""
    try:
        return os.read(pipe, _PIECE)
    except BlockingIOError:
        return None
