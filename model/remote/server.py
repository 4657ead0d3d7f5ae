"""`serve`: a driver for targets that are written in Python, in whatever environment they need.

It needs the standard library, msgspec and numpy. Standard input and output of the process are for messages; whatever a
manager prints goes to standard error, and there is nothing for it to read.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

import msgspec

from kvspec.model.conformance import Form, MakeTarget, MisuseError, Target, TargetError, missing_parts
from kvspec.model.remote import protocol
from kvspec.model.remote.protocol import Answer, Detail, Hello, Introduction, Make, Problem, Request
from kvspec.model.remote.wire import as_plain

_encode = msgspec.json.Encoder(enc_hook=as_plain).encode


class Streams(NamedTuple):
    """Where requests come from, and where answers go."""

    requests: BinaryIO
    answers: BinaryIO


def serve(
    make_target: MakeTarget,
    *,
    name: str | None = None,
    version: str = "",
    about: Mapping[str, str] | None = None,
    streams: Streams | None = None,
) -> None:
    """Speak for the targets that `make_target` makes, until there are no more requests.

    Args:
        make_target: makes a target for a config; a class that follows `kvspec.model.conformance.Target`, for one.
        name: what reports call the manager; by default what `make_target` is called.
        version: of the manager.
        about: anything else worth knowing in a report.
        streams: what `take_streams` gave; to be called before anything is imported that may print.
    """
    known = name or str(getattr(make_target, "__name__", type(make_target).__name__))
    server = Server(make_target, Introduction(protocol.VERSION, known, version, dict(about or {})))
    requests, answers = streams or take_streams()
    with requests, answers:
        for line in requests:
            answers.write(server.answer(line))
            answers.flush()


def take_streams() -> Streams:
    """Standard input and output; in their place there is nothing to read, and standard error."""
    streams = Streams(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.flush()
    os.dup2(2, 1)
    return streams


class _UnknownError(Exception):
    """There is no such method."""


class _BadParametersError(Exception):
    """The parameters are not those of the method."""


class Server:
    """Answers one request after the other.

    Args:
        make_target: makes a target for a config.
        introduction: the answer to `Hello`.
    """

    def __init__(self, make_target: MakeTarget, introduction: Introduction) -> None:
        self._make_target, self._introduction = make_target, introduction
        self._target: Target | None = None
        self._form = Form.MANAGERS
        self._others: Mapping[str, Callable[[bytes], Any]] = {"hello": self._hello, "make": self._make}

    def answer(self, line: bytes) -> bytes:
        """The answer to a request, as a line."""
        try:
            request = msgspec.json.decode(line, type=Request)
        except msgspec.ValidationError as error:
            return _failed(None, protocol.BAD_REQUEST, protocol.words(error))
        except protocol.UNREADABLE as error:
            return _failed(None, protocol.NO_JSON, str(error))
        try:
            result = self._result(request.method, request.params)
        except _UnknownError as error:
            return _failed(request.id, protocol.NO_SUCH_METHOD, str(error))
        except _BadParametersError as error:
            return _failed(request.id, protocol.BAD_PARAMETERS, str(error))
        except MisuseError as error:
            return _failed(request.id, protocol.MISUSE, str(error))
        except Exception as error:
            return _failed(request.id, protocol.FAILURE, str(error), _detail(error))
        return _encode(Answer("2.0", request.id, msgspec.Raw(result))) + b"\n"

    def _result(self, name: str, params: bytes) -> bytes:
        if name in self._others:
            return _encode(self._others[name](params))
        method = protocol.methods_of(self._form).get(name)
        if method is None:
            raise _UnknownError(f"there is no method {name}")
        if self._target is None:
            raise RuntimeError(f"{name} without a target, expected make first")
        call = getattr(self._target, name, None)
        if not callable(call):
            raise _UnknownError(f"the target lacks {name}()")
        found = call(*_arguments(method, params))
        return _encode(found if method.result.write is None else method.result.write(found))

    def _hello(self, params: bytes) -> Introduction:
        _decoded(params, Hello)
        return self._introduction

    def _make(self, params: bytes) -> dict[str, Any]:
        wanted = _decoded(params, Make)
        self._target = None  # nothing of it is needed any more, if it is large
        target = self._make_target(wanted.config)
        if missing := missing_parts(target):
            raise TargetError(f"the target lacks {', '.join(missing)}")
        self._target, self._form = target, wanted.form
        names = [*protocol.attributes_of(wanted.form), *protocol.OPTIONAL]
        return {name: getattr(target, name) for name in names if hasattr(target, name)}


def _decoded(params: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(params, type=kind)
    except protocol.UNREADABLE as error:
        raise _BadParametersError(protocol.words(error)) from error


def _arguments(method: protocol.Method, params: bytes) -> list[Any]:
    """The arguments in their order; those that are left out at the end have to have a default."""
    given = _decoded(params, dict[str, msgspec.Raw])
    found = []
    for parameter in method.parameters:
        if parameter.name not in given:
            if parameter.required:
                raise _BadParametersError(f"{method.name} without {parameter.name}")
            break
        value = _decoded(given[parameter.name], parameter.codec.wire)
        found.append(value if parameter.codec.read is None else parameter.codec.read(value))
    return found


def _failed(number: int | None, code: int, message: str, detail: Detail | None = None) -> bytes:
    return _encode(Answer("2.0", number, error=Problem(code, message, detail))) + b"\n"


def _detail(error: Exception) -> Detail:
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if frame.filename != __file__]
    where = f"{outside[-1].filename}:{outside[-1].lineno}" if outside else ""
    return Detail(type(error).__name__, where, "".join(traceback.format_exception(error)))
