"""The JSON schema of a log of events of a chapter, made from the chapter."""

from __future__ import annotations

from typing import Any, Final

from kvspec.model.conformance import Context
from kvspec.model.scenario.events import NUMBERED, case_word
from kvspec.model.tracing.header import POOL
from kvspec.model.tracing.log import FORMAT, IGNORED, VERSION
from kvspec.spec.language import Chapter
from kvspec.spec.language.terms import AnySort, MapSort, SetSort, Sort
from kvspec.spec.language.traced import StaticSymbol

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def log_schema(chapter: Chapter, name: str) -> dict[str, Any]:
    """The schema of one line: a header, an event, or a snapshot.

    Args:
        chapter: whose events they are.
        name: of the chapter.
    """
    lines = [_header(chapter, name), *(_event(chapter, event) for event in chapter.event_names), _snapshot(chapter)]
    return {"$schema": DIALECT, "title": f"a line of a log of events of the chapter {name}", "oneOf": lines}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    remarks: dict[str, Any] = {word: {} for word in IGNORED}
    found = {"type": "object", "properties": properties | remarks, "required": required}
    return found | {"additionalProperties": False}


def _header(chapter: Chapter, name: str) -> dict[str, Any]:
    fixed: dict[str, Any] = {"kvspec": {"const": FORMAT}, "version": {"const": VERSION}, "chapter": {"const": name}}
    fields = fixed | {"complete": {"type": "boolean"}, "part": {"type": "integer"}}
    sizes = {size: {"type": "integer"} for size in POOL}
    words = {w: value_schema(_static(s)) for s in chapter.statics.values() for w in (s.path[-1], s.name)}
    return _object(fields | sizes | words, list(fixed))


def _static(symbol: StaticSymbol) -> AnySort:
    if not symbol.arguments or isinstance(symbol.result, MapSort):
        return symbol.result
    is_relation = isinstance(symbol.result, Sort) and symbol.result.kind == "bool"
    return SetSort(symbol.arguments) if is_relation else MapSort(symbol.arguments, symbol.result)


def _event(chapter: Chapter, name: str) -> dict[str, Any]:
    event = chapter.event(name)
    parameters = {p.data[0]: value_schema(p.sort) for p in event.parameters}
    found = _object({"event": {"const": name}} | parameters, ["event", *parameters])
    return found | {"description": event.sentence}


def _snapshot(chapter: Chapter) -> dict[str, Any]:
    told = {w: value_schema(v.sort) for v in chapter.variables.values() for w in (v.path[-1], v.name)}
    inside = {"type": "object", "properties": told}
    return _object({"snapshot": inside, "complete": {"type": "boolean"}}, ["snapshot"])


def value_schema(sort: AnySort) -> dict[str, Any]:
    """The schema of a value of a sort."""
    if isinstance(sort, SetSort):
        return {"type": "array", "items": _row(sort.elements)}
    if isinstance(sort, MapSort):
        value = value_schema(sort.value)
        pair = {"type": "array", "prefixItems": [_row(sort.keys), value], "items": False, "minItems": 2}
        return {"anyOf": [{"type": "array", "items": pair}, {"type": "object", "additionalProperties": value}]}
    if sort.kind == "bool":
        return {"type": "boolean"}
    if sort.kind == "variant":
        return {"anyOf": [{"type": "string"}, *(_case(case, fields) for case, fields in sort.cases)]}
    if sort.kind in ("nat", "position") or sort.name in NUMBERED:
        return {"type": "integer", "minimum": 0}
    return _chain() if sort.name == "Chain" else {"type": ["string", "integer"]}


def _row(sorts: tuple[Sort, ...]) -> dict[str, Any]:
    if len(sorts) == 1:
        return value_schema(sorts[0])
    return {"anyOf": [{"type": "string"}, {"type": "array", "prefixItems": [value_schema(s) for s in sorts]}]}


def _case(case: str, fields: tuple[Sort, ...]) -> dict[str, Any]:
    names = {"enum": sorted({case, case_word(case)})}
    told = [value_schema(f) for f in fields]
    listed = {"type": "array", "prefixItems": [names, *told], "items": False, "minItems": 1 + len(told)}
    inside = told[0] if len(told) == 1 else {"type": "array", "prefixItems": told}
    keyed = [{"type": "object", "properties": {n: inside}, "required": [n]} for n in names["enum"]]
    return {"anyOf": [listed, *keyed]}


def _chain() -> dict[str, Any]:
    tokens = {"type": "array", "items": {"type": "integer"}}
    context: dict[str, Any] = {name: {} for name in Context.__struct_fields__}
    whole = {"type": "object", "properties": {"tokens": tokens} | context, "required": ["tokens"]}
    return {"anyOf": [tokens, {"type": "string"}, whole | {"additionalProperties": False}]}
