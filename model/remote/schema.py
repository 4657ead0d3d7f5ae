"""The messages as a JSON Schema: ``python -m kvspec.model.remote.schema`` prints ``docs/protocol.schema.json``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, Union

import msgspec

from kvspec.model.conformance import Form
from kvspec.model.remote import protocol
from kvspec.model.remote.protocol import Answer, Hello, Introduction, Make, Method
from kvspec.model.remote.wire import codec

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SAYS: Final = (
    "A line is a request, which goes to a driver, or an answer, which comes from it. What the result of an answer is, "
    "depends on the method that was asked for: see `results`."
)


def schema() -> dict[str, Any]:
    """All messages: the requests, what an answer is, and what its result is for each method."""
    requests = [_request("hello", Hello, _first_sentence(Hello)), _request("make", Make, _first_sentence(Make))]
    results: dict[str, Any] = {"hello": Introduction, "make": _made()}
    for name, methods in sorted(_by_name().items()):
        requests.append(_request(name, _params(name, methods), _first_sentence(_function(name))))
        results[name] = _any_of(*dict.fromkeys(method.result.wire for method in methods))
    kinds = [*requests, Answer, *results.values()]
    found, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    schemas = list(found)
    answer = {"$ref": "#/$defs/Answer"}
    return {
        "$schema": _DIALECT,
        "title": f"kvspec target protocol, version {protocol.VERSION}",
        "description": _SAYS,
        "anyOf": [*schemas[: len(requests)], answer],
        "results": dict(zip(results, schemas[len(requests) + 1 :], strict=True)),
        "$defs": components,
    }


def document() -> str:
    """The schema as a file."""
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode() + "\n"


def _by_name() -> Mapping[str, list[Method]]:
    """Each method, as every form that has it has it."""
    found: dict[str, list[Method]] = {}
    for form in Form:
        own = {name for name, _ in inspect.getmembers(protocol.PROTOCOLS[form], inspect.isfunction)}
        for name, method in protocol.methods_of(form).items():
            if name in own:
                found.setdefault(name, []).append(method)
    return found


def _params(name: str, methods: list[Method]) -> type[msgspec.Struct]:
    """The arguments of all forms together; what only some have may be left out."""
    fields: dict[str, tuple[Any, ...]] = {}
    for method in methods:
        for parameter in method.parameters:
            field = parameter.name, parameter.codec.wire
            everywhere = all(parameter.name in {p.name for p in other.parameters} for other in methods)
            if not parameter.required:
                fields.setdefault(parameter.name, (*field, parameter.default))
            else:
                fields.setdefault(parameter.name, field if everywhere else _optional(*field))
    return msgspec.defstruct(f"{name} params", fields.values(), kw_only=True)


def _request(name: str, params: type[msgspec.Struct], says: str) -> type[msgspec.Struct]:
    fields = [("jsonrpc", Literal["2.0"]), ("id", int), ("method", Literal[name]), ("params", params)]
    return msgspec.defstruct(f"{name} request", fields, namespace={"__doc__": says})


def _made() -> type[msgspec.Struct]:
    """What `make` gives: what targets of all forms say of themselves."""
    of_all = [protocol.attributes_of(form) for form in Form]
    fields: list[tuple[Any, ...]] = []
    for name, kind in {name: kind for attributes in of_all for name, kind in attributes.items()}.items():
        field = name, codec(kind).wire
        fields.append(field if name in protocol.required() else _optional(*field))
    fields += [_optional(name, kind) for name, kind in protocol.OPTIONAL.items()]
    return msgspec.defstruct("Made", fields, kw_only=True, namespace={"__doc__": "What a target says of itself."})


def _optional(name: str, kind: Any) -> tuple[Any, ...]:
    """A field that may be left out."""
    return name, _any_of(kind, msgspec.UnsetType), msgspec.UNSET


def _any_of(*kinds: Any) -> Any:
    return Union[kinds]  # noqa: UP007


def _function(name: str) -> Any:
    """The method of the first form that says what it does."""
    functions = [getattr(protocol.PROTOCOLS[form], name, None) for form in Form]
    return next((function for function in functions if inspect.getdoc(function)), functions[0])


def _first_sentence(thing: Any) -> str:
    text = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.;]) ", text)[0].rstrip(";.") + "." if text else ""


if __name__ == "__main__":
    print(document(), end="")
