"""`Scheduler`: real threads of which one runs at a time, and somebody chooses which.

A thread runs up to its next step, announces it, and hands the token on. What it does between two steps is one with the
first of them. So a run is determined by the choices, on any interpreter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Protocol, TypeVar

from kvspec.impl.interleaving.steps import Step

PATIENCE: Final = 10.0
"""Seconds in which a thread that has the token has to come to a step or to its end."""

_T = TypeVar("_T")


class Stopped(BaseException):
    """Ends a thread whose run is given up; no error of a manager, so nothing in a manager catches it."""


class UndecidedError(RuntimeError):
    """Nothing can be said of a run."""


class Chooser(Protocol):
    """Decides which thread takes its step."""

    def choose(self, pending: dict[int, Step], enabled: list[int], last: int | None) -> int | None:
        """One of the enabled threads; None to give the run up.

        Args:
            pending: the next step of each thread that has not ended.
            enabled: those that can take it, in order; at least one.
            last: the thread that took the last step.
        """


class ScheduledLock:
    """A lock for the threads of a `Scheduler`; for everybody else it is open.

    Entering a recursive lock again is no step: no other thread can notice it.
    """

    def __init__(self, scheduler: Scheduler, name: str, recursive: bool) -> None:
        self._scheduler = scheduler
        self._name = name
        self._recursive = recursive
        self._owner: int | None = None
        self._depth = 0

    def is_free_for(self, thread: int) -> bool:
        """Whether the thread can enter."""
        return self._owner is None or (self._recursive and self._owner == thread)

    def __enter__(self) -> ScheduledLock:
        scheduler = self._scheduler
        if scheduler.is_running:
            if not (self._recursive and self._owner == scheduler.running):
                scheduler.at(Step("acquire", self._name))
            self._owner = scheduler.running
            self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        scheduler = self._scheduler
        if not scheduler.is_running:
            return
        if self._depth == 1:
            scheduler.at(Step("release", self._name))
        self._depth -= 1
        if not self._depth:
            self._owner = None


def _shut_gate() -> threading.Lock:
    """A lock that one thread waits for and another opens; a semaphore would do, and take ten times as long."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class _Thread:
    """One thread, the gate before which it waits for the token, and the step that it wants to take."""

    def __init__(self) -> None:
        self.gate = _shut_gate()
        self.pending: Step | None = None
        self.ended = False


class Scheduler:
    """Runs threads one step at a time.

    Attributes:
        taken: the steps so far, with the threads that took them.
        running: the thread that has the token.
        is_running: steps are scheduled now. Outside of `run` and inside of `aside` they are just taken.
        deadlock: no thread could go on, and one had not ended.
    """

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._threads: list[_Thread] = []
        self._locks: dict[str, ScheduledLock] = {}
        self._back = _shut_gate()
        self._starting = False
        self._stopped = False
        self._failure: BaseException | None = None
        self.taken: list[tuple[int, Step]] = []
        self.running = -1
        self.is_running = False
        self.deadlock = False

    def lock(self, *, recursive: bool = True) -> ScheduledLock:
        """A lock whose operations are steps."""
        name = "lock" if not self._locks else f"lock {len(self._locks) + 1}"
        self._locks[name] = made = ScheduledLock(self, name, recursive)
        return made

    def run(self, bodies: Sequence[Callable[[], None]]) -> bool:
        """Run the threads to their ends; False if the run was given up, or in a deadlock.

        Raises:
            UndecidedError: a thread neither took a step nor ended.
            BaseException: what a body or the chooser raised.
        """
        self._threads = [_Thread() for _ in bodies]
        workers = [threading.Thread(target=self._life, args=(i, b), daemon=True) for i, b in enumerate(bodies)]
        self._starting = True
        for index, worker in enumerate(workers):
            self.running, self.is_running = index, True
            worker.start()
            self._wait()
        self._starting = False
        self._pass_token(None)
        self._wait()
        self.is_running = False
        for worker in workers:
            worker.join()
        if self._failure is not None:
            raise self._failure
        return not self._stopped

    def _wait(self) -> None:
        """Until the token is back. Threads of a run that is interrupted, or stuck, end with their next step."""
        seen = None
        try:
            while not self._back.acquire(timeout=PATIENCE):
                now = self.running, len(self.taken)
                if now == seen and self.is_running:
                    raise UndecidedError(
                        f"thread {self.running} neither takes a step nor ends: it waits for a lock that it was not "
                        "given, or goes round in circles"
                    )
                seen = now
        except BaseException:
            self._stopped = True
            raise

    def aside(self, look: Callable[[], _T]) -> _T:
        """What `look` returns; it runs in the thread that has the token, and none of what it does is a step."""
        before, self.is_running = self.is_running, False
        try:
            return look()
        finally:
            self.is_running = before

    def at(self, step: Step) -> None:
        """See `Stepper.at`. Raises `Stopped` when the run is given up."""
        if not self.is_running:
            return
        index = self.running
        if not self._stopped:
            me = self._threads[index]
            me.pending = step
            if self._starting:
                self._back.release()
                me.gate.acquire()
            elif self._pass_token(index) != index:
                me.gate.acquire()
            me.pending = None
        if self._stopped:
            raise Stopped
        self.taken.append((index, step))

    def _life(self, index: int, body: Callable[[], None]) -> None:
        me = self._threads[index]
        try:
            body()
        except Stopped:
            pass
        except BaseException as error:
            self._failure = error
            self._stopped = True
        me.ended = True
        if self._starting:
            self._back.release()
        else:
            self._pass_token(index)

    def _pass_token(self, index: int | None) -> int | None:
        """Choose who goes next and let it go; who that is, None at the end."""
        following = self._next()
        if following is None:
            self._back.release()
        elif following != index:
            self.running = following
            self._threads[following].gate.release()
        return following

    def _next(self) -> int | None:
        going = [index for index, thread in enumerate(self._threads) if not thread.ended]
        if not going:
            return None
        if not self._stopped:
            chosen = self._choose({index: self._pending(index) for index in going})
            if chosen is not None:
                return chosen
            self._stopped = True
        return going[0]  # each in its turn, to its end

    def _choose(self, pending: dict[int, Step]) -> int | None:
        enabled = [index for index, step in pending.items() if self._is_enabled(index, step)]
        if not enabled:
            self.deadlock = True
            return None
        last = self.taken[-1][0] if self.taken else None
        try:
            return self._chooser.choose(pending, enabled, last)
        except BaseException as error:  # not to be taken for an error of the manager that is being called
            self._failure = error
            return None

    def _pending(self, index: int) -> Step:
        step = self._threads[index].pending
        assert step is not None
        return step

    def _is_enabled(self, index: int, step: Step) -> bool:
        return step.kind != "acquire" or self._locks[step.what].is_free_for(index)
