"""The messages: JSON-RPC 2.0, each one line of UTF-8. ``docs/protocol.md`` describes them for those who write a driver.

A *driver* is the program that speaks for a manager. It reads requests from its standard input, answers each of them on
its standard output, in order, and ends when its input ends. `hello` comes first. `make` takes a config and makes a
target, in the place of the one before; everything else is a method of the target.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple

import msgspec

from kvspec.model.conformance import (
    CompositeTarget,
    Form,
    HostTarget,
    PagedTarget,
    PoolConfig,
    PoolTarget,
    Target,
)
from kvspec.model.engines.protocol import EngineTarget
from kvspec.model.remote.wire import Codec, codec

VERSION: Final = 1
"""Goes up when a message changes its meaning or goes away. Whoever does not know a field of a message ignores it."""

PROTOCOLS: Final[Mapping[Form, type[Any]]] = {
    Form.MANAGERS: Target,
    Form.POOLS: PoolTarget,
    Form.COMPOSITES: CompositeTarget,
    Form.TIERS: HostTarget,
    Form.PAGES: PagedTarget,
    Form.ENGINES: EngineTarget,
}
"""What a target of each form follows."""

OPTIONAL: Final[Mapping[str, Any]] = {"minimum": dict[str, int]}
"""What a target of any form may say of itself beside."""

MISUSE: Final = -32000
"""A call that makes no sense: `MisuseError`."""
FAILURE: Final = -32001
"""Anything else that went wrong, `make` for one; what and where is in the data."""
NO_SUCH_METHOD: Final = -32601
BAD_PARAMETERS: Final = -32602
BAD_REQUEST: Final = -32600
NO_JSON: Final = -32700

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)
"""What is raised for a text that is no JSON, has other types, is nested too deeply, or has numbers beyond 64 bits."""


_LONGEST_NAME: Final = 200


class Hello(msgspec.Struct, frozen=True):
    """The first request: what kvspec speaks.

    Attributes:
        protocol: the version of the protocol.
        kvspec: the version of kvspec.
    """

    protocol: int
    kvspec: str = ""


class Introduction(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to `Hello`: what the driver speaks, and for whom.

    Attributes:
        protocol: the version of the protocol.
        name: of the manager, one line of at most 200 characters; reports call it so.
        version: of the manager.
        about: anything else worth knowing in a report.
    """

    protocol: int
    name: str
    version: str = ""
    about: dict[str, str] = {}

    def __post_init__(self) -> None:
        if not (self.name.strip() and self.name.isprintable() and len(self.name) <= _LONGEST_NAME):
            raise ValueError(f"a name that is not one line of 1 to {_LONGEST_NAME} characters")


class Make(msgspec.Struct, frozen=True):
    """A new target, in the place of the former one.

    Attributes:
        form: what it is to be; a driver fails for one that it does not know.
        config: sizes and options.
    """

    form: Form
    config: PoolConfig


class Detail(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a failure.

    Attributes:
        type: what kind of failure, such as the type of an exception.
        where: the place in the source.
        traceback: all of it.
    """

    type: str = ""
    where: str = ""
    traceback: str = ""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why there is no result."""

    code: int
    message: str
    data: Detail | None = None


class Request(msgspec.Struct, frozen=True):
    """One line to a driver."""

    jsonrpc: Literal["2.0"]
    id: int
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line from a driver: a result, or an error."""

    jsonrpc: Literal["2.0"]
    id: int | None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: Problem | None = None


class Parameter(NamedTuple):
    """One argument of a method."""

    name: str
    codec: Codec
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


class Method(NamedTuple):
    """A method of a protocol.

    Attributes:
        name: of the method.
        parameters: its arguments, in their order.
        result: what it returns.
        decode: reads what was written for that.
        looks: it changes nothing (`kvspec.model.conformance.look`).
    """

    name: str
    parameters: tuple[Parameter, ...]
    result: Codec
    decode: Callable[[bytes], Any]
    looks: bool

    @property
    def drains(self) -> bool:
        """A look that shows everything once."""
        return self.looks and self.name.startswith("drain_")

    def params(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments by name, as they are written."""
        if len(arguments) > len(self.parameters):
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments, {len(arguments)} are given")
        found = {}
        for at, (name, how, default) in enumerate(self.parameters):
            value = arguments[at] if at < len(arguments) else named.get(name, default)
            if value is inspect.Parameter.empty:
                raise TypeError(f"{self.name} needs {name}")
            found[name] = value if how.write is None else how.write(value)
        return found


@cache
def methods_of(form: Form) -> Mapping[str, Method]:
    """All methods that there are, as a target of the form has them; those of other forms may be asked for, too, as what
    a target can do is the same for every config."""
    found: dict[str, Method] = {}
    for protocol in (PROTOCOLS[form], *PROTOCOLS.values()):
        for name, function in inspect.getmembers(protocol, inspect.isfunction):
            if not name.startswith("_"):
                found.setdefault(name, _method(name, function))
    return found


@cache
def attributes_of(form: Form) -> Mapping[str, Any]:
    """What a target of the form says of itself, and its type."""
    hints = typing.get_type_hints(PROTOCOLS[form], include_extras=True)
    return {name: hint for name, hint in hints.items() if not name.startswith("_")}


@cache
def required() -> frozenset[str]:
    """What targets of all forms say of themselves: it is in every answer to `make`."""
    return frozenset.intersection(*(frozenset(attributes_of(form)) for form in Form))


def attributes(form: Form, given: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """What a target says of itself, as it was written. One that cannot be what it was to be lacks what only that has.

    Raises:
        msgspec.ValidationError: something is missing, or has another type.
    """
    wanted = attributes_of(form)
    if missing := required() - given.keys():
        raise msgspec.ValidationError(f"no `{min(missing)}`")
    kinds = {**OPTIONAL, **wanted}
    return {name: msgspec.json.decode(given[name], type=kind) for name, kind in kinds.items() if name in given}


@cache
def _looks() -> frozenset[str]:
    """Names that are marked in some protocol; others give them more arguments, and need not mark them again."""
    return frozenset(
        name
        for protocol in PROTOCOLS.values()
        for name, function in inspect.getmembers(protocol, inspect.isfunction)
        if getattr(function, "looks", False)
    )


def _method(name: str, function: Any) -> Method:
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    result = codec(hints["return"])
    return Method(
        name,
        tuple(Parameter(p.name, codec(hints[p.name]), p.default) for p in parameters),
        result,
        msgspec.json.Decoder(result.wire).decode,
        name in _looks(),
    )


def words(error: Exception) -> str:
    """What is wrong with a message, without the sign for its top."""
    return str(error).replace(" - at `$", " at `").replace(" at ``", "")
