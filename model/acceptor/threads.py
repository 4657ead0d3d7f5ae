"""A target that is called from several threads, in turn and one call at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple, get_args

from kvspec.model.conformance import NoReturnError, Target
from kvspec.model.operations import AnyOperation

PATIENCE: Final = 5.0
"""Seconds within which a call has to return. No other one is running, so it waits for nothing that could come."""

_TURNS: Final = frozenset(kind.__struct_config__.tag for kind in get_args(AnyOperation))
"""Methods that change something; all others only look."""


class _Answer(NamedTuple):
    """What a call has returned or raised."""

    value: Any
    error: BaseException | None


class InThreads:
    """Another target, each operation of which is called in the next of several threads; what it shows is looked at from
    the thread behind that. After a call that does not return no other one is made.

    Args:
        target: the target.
        num_threads: how many.
        patience: seconds within which a call has to return.
    """

    def __init__(self, target: Target, num_threads: int, patience: float = PATIENCE) -> None:
        self._target, self._patience = target, patience
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._calls: list[SimpleQueue[Callable[[], Any] | None]] = [SimpleQueue() for _ in range(num_threads)]
        self._threads = [
            threading.Thread(target=_serve, args=(calls, self._answers), daemon=True) for calls in self._calls
        ]
        self._turn = 0
        self._stuck = ""
        for thread in self._threads:
            thread.start()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, method: Callable[..., Any], *arguments: Any) -> Any:
        if self._stuck:
            raise NoReturnError(self._stuck)
        self._turn += name in _TURNS
        at = (self._turn + (name not in _TURNS)) % len(self._threads)
        self._calls[at].put(partial(method, *arguments))
        self._stuck = f"{name} has not returned in thread {at}, though no other call is running"
        try:
            answer = self._answers.get(timeout=self._patience)
        except Empty:
            raise NoReturnError(self._stuck) from None
        self._stuck = ""
        if answer.error is not None:
            raise answer.error
        return answer.value

    def leave(self) -> None:
        """No call follows: the threads end, but for one that does not return."""
        for calls in self._calls:
            calls.put(None)
        for thread in self._threads:
            if not self._stuck:
                thread.join()


def _serve(calls: SimpleQueue[Callable[[], Any] | None], answers: SimpleQueue[_Answer]) -> None:
    """Make the calls of one thread."""
    while (call := calls.get()) is not None:
        try:
            answer = _Answer(call(), None)
        except BaseException as error:
            answer = _Answer(None, error)
        answers.put(answer)
        del call, answer
