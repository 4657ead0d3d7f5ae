"""`RemoteTargets`: targets that another process makes, driven like any others.

One process is kept for all targets, since some take long to start; it is started again when it has ended. That it dies
or does not return from a call is found like any other fault. What is no answer at all ends the run, as nobody can say
what it means.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import metadata
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

import msgspec

from kvspec.model.conformance import (
    Bounded,
    Capability,
    Form,
    MisuseError,
    NoReturnError,
    PoolConfig,
    RemoteError,
    Target,
    UnusableError,
    excused_by,
)
from kvspec.model.remote import protocol
from kvspec.model.remote.ahead import Ahead, Habit, Look
from kvspec.model.remote.process import Child, ChildEndedError, ChildError, shortened
from kvspec.model.remote.protocol import Answer, Hello, Introduction, Make, Method
from kvspec.model.remote.wire import as_plain

CALL_SECONDS: Final = 10.0
"""Within which a call has to return."""
START_SECONDS: Final = 120.0
"""Within which a process has to say hello, and to make a target."""
_SHOWN_LINES: Final = 3
"""Lines of standard error in an error message."""
_MUCH_LONGER: Final = 20
"""A call that takes so many times as long as the longest before does not return, where one does not wait for long."""
_MANY_LINES: Final = 20_000

_encode = msgspec.json.Encoder(enc_hook=as_plain).encode
_decode_answer = msgspec.json.Decoder(Answer).decode


def _line(method: str, params: bytes) -> bytes:
    """A request but for its number, which comes behind it."""
    return b'{"jsonrpc":"2.0","method":"%s","params":%s,"id":' % (method.encode(), params)


class _Line(NamedTuple):
    """A call as it is sent."""

    method: Method
    line: bytes


class RemoteTargets:
    """Makes targets in another process; to be closed at the end. It is a `MakeTarget`.

    Args:
        argv: the command that starts the process, and its arguments.
        call_seconds: within which a call has to return.
        start_seconds: within which the process has to say hello, and to make a target.

    Attributes:
        last_words: of the last failure: the traceback that came with it, or the last lines on standard error of a
            process that has ended.
        habits: what its targets are looked at behind which operation.
    """

    def __init__(
        self, argv: Sequence[str], *, call_seconds: float = CALL_SECONDS, start_seconds: float = START_SECONDS
    ) -> None:
        self.argv, self.call_seconds = tuple(argv), call_seconds
        self.last_words: list[str] = []
        self.habits: dict[str, Habit] = {}
        self._start_seconds = max(start_seconds, call_seconds)
        self._child: Child | None = None
        self._introduction: Introduction | None = None
        self._numbers = itertools.count(1)
        self._made = 0
        self._longest_call = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def introduction(self) -> Introduction:
        """What the process says of itself; it is started for that.

        Raises:
            UnusableError: it cannot be started, or does not speak the protocol.
        """
        self._started()
        assert self._introduction is not None
        return self._introduction

    def __call__(self, config: PoolConfig) -> Target:
        """A new target; the former one ends.

        Raises:
            RemoteError: it cannot be made so.
            UnusableError: there is no usable answer.
        """
        self._started()
        self._made += 1
        line = _line("make", _encode(Make(config.form, config)))
        try:
            (answer,) = self._ask([line], self._start_seconds)
        except ChildError as error:
            raise self._unusable(f"did not make a target with {config}: {error}") from error
        try:
            result = msgspec.json.decode(self._result("make", answer), type=dict[str, msgspec.Raw])
            given = protocol.attributes(config.form, result)
        except protocol.UNREADABLE as error:
            raise self._no_answer(answer, f"has answered make with {protocol.words(error)}") from error
        return cast(Target, RemoteTarget(self, self._made, config.form, {"about": self.about, **given}))

    @property
    def about(self) -> dict[str, str]:
        """What is known of the manager, for reports."""
        known = self.introduction
        about = {"name": known.name, "version": known.version} | known.about
        return {name: words for name, words in about.items() if words}

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.end()

    # -- the process ---------------------------------------------------------------------------------------------

    def _started(self) -> None:
        """The process, which may have to be started."""
        if self._child is not None:
            return
        try:
            self._child = Child(self.argv)
        except (OSError, ValueError) as error:
            raise UnusableError(f"cannot be started: {error}") from error
        line = _line("hello", _encode(Hello(protocol.VERSION, metadata.version("kvspec"))))
        try:
            (answer,) = self._ask([line], self._start_seconds)
        except ChildError as error:
            raise self._unusable(f"did not say hello: {error}") from error
        try:
            self._introduction = msgspec.json.decode(self._result("hello", answer), type=Introduction)
        except protocol.UNREADABLE as error:
            raise self._no_answer(answer, f"has answered hello with {protocol.words(error)}") from error
        if self._introduction.protocol != protocol.VERSION:
            what = f"speaks version {self._introduction.protocol} of the protocol, expected {protocol.VERSION}"
            raise self._unusable(what, with_tail=False)

    def _ask(self, lines: Sequence[bytes], seconds: float) -> list[Answer]:
        """Send requests, and wait for all answers.

        Raises:
            ChildError: the process did not answer all; it has been ended.
            UnusableError: something else has come.
        """
        child = self._child
        assert child is not None
        numbers = [next(self._numbers) for _ in lines]
        sent = b"".join(b"%s%d}\n" % (line, number) for line, number in zip(lines, numbers, strict=True))
        try:
            came = child.ask(sent, len(lines), seconds)
            return [self._answer(line, number) for line, number in zip(came, numbers, strict=True)]
        except BaseException as error:  # what still comes would be taken for other answers
            self._child = None
            child.end(at_once=True)
            self.last_words = child.tail
            if isinstance(error, ChildError):
                for line, number in zip(error.answered, numbers, strict=False):
                    self._answer(line, number)
            raise

    def _answer(self, line: bytes, number: int) -> Answer:
        """A line as the answer that it has to be."""
        try:
            answer = _decode_answer(line)
        except protocol.UNREADABLE as error:
            raise self._no_answer(line, f"has written to its standard output what is no answer ({error})") from error
        if answer.id != number:
            found = "no request" if answer.error is None else f"no request: {answer.error.message}"
            raise self._no_answer(line, f"has answered {found} instead of the one with id {number}")
        if (answer.error is None) == (answer.result is msgspec.UNSET):
            raise self._no_answer(line, "has answered with both a result and an error, or neither")
        return answer

    def _result(self, method: str, answer: Answer) -> bytes:
        """What a request was answered with.

        Raises:
            MisuseError, RemoteError: that is an error.
            UnusableError: the process does not know the method, or takes it for something else.
        """
        problem = answer.error
        if problem is None:
            return cast(msgspec.Raw, answer.result)
        if problem.code == protocol.MISUSE:
            raise MisuseError(problem.message)
        if problem.code != protocol.FAILURE:
            raise self._unusable(f"answers {method} with error {problem.code}: {problem.message}")
        detail = problem.data or protocol.Detail()
        if detail.traceback:
            self.last_words = detail.traceback.splitlines()
        kind = f"{detail.type}: " if detail.type else ""
        raise RemoteError(f"{kind}{problem.message}" + (f" ({detail.where})" if detail.where else ""))

    def _no_answer(self, line: bytes | Answer, what: str) -> UnusableError:
        came = line if isinstance(line, bytes) else _encode(line)
        return self._unusable(f"{what}: {shortened(came)}, expected an answer (docs/protocol.md)", with_tail=False)

    def _unusable(self, what: str, with_tail: bool = True) -> UnusableError:
        """Why nothing can be asked any more."""
        child, self._child = self._child, None
        if child is not None:
            child.end(at_once=True)
            self.last_words = child.tail
        tail = " | ".join(line for line in self.last_words[-_SHOWN_LINES:] if line.strip())
        return UnusableError(f"{what}; on its standard error: {tail}" if tail and with_tail else what)

    # -- calls of a target ---------------------------------------------------------------------------------------

    def ask_all(self, number: int, calls: Sequence[_Line], patience: float | None) -> list[Answer]:
        """Answers to calls of the target with this number, which has to be the last one that was made.

        Raises:
            NoReturnError: a call has not returned in time; the process has been ended.
            RemoteError: the process has ended.
        """
        if self._child is None or number != self._made:
            raise RemoteError("its process has ended" if number == self._made else "another target has been made since")
        seconds = self.call_seconds
        if patience is not None:
            seconds = min(seconds, max(patience, _MUCH_LONGER * self._longest_call))
        begin = time.perf_counter()
        try:
            answers = self._ask([call.line for call in calls], seconds)
        except ChildError as error:
            method = calls[len(error.answered)].method.name
            if isinstance(error, ChildEndedError):
                tail = next((line for line in reversed(self.last_words) if line.strip()), "")
                said = f"; the last line on its standard error: {tail.strip()}" if tail else ""
                raise RemoteError(f"{method} was not answered, as {error}{said}") from error
            raise NoReturnError(f"{method} has not returned: {error}") from error
        self._longest_call = max(self._longest_call, time.perf_counter() - begin)
        return answers

    def value(self, method: Method, answer: Answer) -> Any:
        """The result of a call.

        Raises:
            MisuseError, RemoteError: the call was answered with an error.
            UnusableError: the result is none of such a method.
        """
        try:
            found = method.decode(self._result(method.name, answer))
            return found if method.result.read is None else method.result.read(found)
        except protocol.UNREADABLE as error:
            raise self._no_answer(answer, f"has answered {method.name} with {protocol.words(error)}") from error


class RemoteTarget(Bounded):
    """A target in another process; it has the methods of what it can show or do.

    What was looked at behind an operation is asked for together with the next one (`Ahead`), and an answer is kept
    until there is another operation, so that it takes few round trips.
    """

    capabilities: frozenset[Capability]

    def __init__(self, targets: RemoteTargets, number: int, form: Form, given: Mapping[str, Any]) -> None:
        self.__dict__.update(given)
        self._targets, self._number, self._methods = targets, number, protocol.methods_of(form)
        self._ahead = Ahead(targets.habits)
        self._seen: dict[Look, Answer] = {}
        self._drained: defaultdict[Look, list[Answer]] = defaultdict(list)
        self._fresh: set[Look] = set()
        self._lines: dict[Look, _Line] = {}

    def __getattr__(self, name: str) -> Any:
        method = self.__dict__.get("_methods", {}).get(name)
        if method is None or name in excused_by(self.capabilities):
            raise AttributeError(f"the target lacks {name}")
        call = partial(self._look if method.looks else self._operate, method)
        self.__dict__[name] = call
        return call

    def _operate(self, method: Method, *arguments: Any, **named: Any) -> Any:
        looks = self._ahead.operated(method.name, (*arguments, *named.values()))
        line = _Line(method, _line(method.name, _encode(method.params(arguments, named))))
        lines = [line, *map(self._line_of, looks)]
        answer, *seen = self._targets.ask_all(self._number, lines, self.patience)
        self._seen = dict(zip(looks, seen, strict=True))
        self._fresh = {look for look in looks if self._methods[look.name].drains}
        for look in self._fresh:
            self._drained[look].append(self._seen.pop(look))
        if answer.error is not None:
            self._ahead.failed()
        return self._targets.value(method, answer)

    def _look(self, method: Method, *arguments: Any, **named: Any) -> Any:
        look = Look(method.name, (*arguments, *named.values()))
        self._ahead.looked(look)
        if method.drains:
            found = self._drained.pop(look, [])
            found += [] if look in self._fresh else [self._asked(look)]
            self._fresh.discard(look)
            return [item for answer in found for item in self._targets.value(method, answer)]
        answer = self._seen.get(look)
        if answer is None:
            answer = self._seen[look] = self._asked(look)
        return self._targets.value(method, answer)

    def _asked(self, look: Look) -> Answer:
        (answer,) = self._targets.ask_all(self._number, [self._line_of(look)], self.patience)
        return answer

    def _line_of(self, look: Look) -> _Line:
        line = self._lines.get(look)
        if line is None:
            if len(self._lines) >= _MANY_LINES:
                self._lines.clear()
            method = self._methods[look.name]
            line = _Line(method, _line(method.name, _encode(method.params(look.arguments, {}))))
            self._lines[look] = line
        return line
