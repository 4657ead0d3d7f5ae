"""Values of a log, as the atoms of a scenario: JSON by its sort, text as in a scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NoReturn

import msgspec

from kvspec.model.conformance import Context
from kvspec.model.plain import shortened
from kvspec.model.scenario import language as la
from kvspec.model.scenario.events import NUMBERED, case_word
from kvspec.model.scenario.parse import parse_scenario
from kvspec.model.world import Chain, chain_tokens, context_of
from kvspec.spec.language.terms import AnySort, MapSort, SetSort, Sort

CONTEXT: Final = frozenset(Context.__struct_fields__)


class NoValue(ValueError):
    """A value of a log that is none of its sort; the text says which."""


def atoms(value: Any, sort: AnySort) -> tuple[la.Atom, ...]:
    """What a scenario would say for this value.

    Raises:
        NoValue: it can be no value of the sort.
    """
    if isinstance(sort, SetSort):
        return (la.Group(tuple(members(value, sort.elements))),)
    assert isinstance(sort, Sort)
    if sort.kind == "bool":
        return ("true" if value else "false",) if isinstance(value, bool) else _none(value)
    if sort.kind == "variant":
        return _variant(value, sort)
    if sort.kind in ("nat", "position") or sort.name in NUMBERED:
        return (value,) if isinstance(value, int) and not isinstance(value, bool) else _none(value)
    if sort.name == "Chain":
        return _chain(value)
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return _none(value)
    return (str(value),)


def members(rows: Any, sorts: tuple[Sort, ...]) -> Iterator[la.Atom]:
    """The members of a set, one after the other."""
    for row in rows if isinstance(rows, list) else _none(rows):
        yield from _row(row, sorts)


def entries(table: Any, sort: MapSort) -> Iterator[tuple[tuple[la.Atom, ...], tuple[la.Atom, ...]]]:
    """Keys and values of a map: an object whose keys are text, or a list of pairs."""
    pairs = table.items() if isinstance(table, Mapping) else table if isinstance(table, list) else _none(table)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            _none(pair)
        key, value = pair
        told = text_atoms(key) if isinstance(table, Mapping) else tuple(_row(key, sort.keys))
        found = tuple(members(value, sort.value.elements)) if isinstance(sort.value, SetSort) else None
        yield told, atoms(value, sort.value) if found is None else found


@lru_cache(maxsize=1 << 16)
def text_atoms(text: str) -> tuple[la.Atom, ...]:
    """The atoms of a text as in a scenario: ``a[0]``, ``cache [7 8]``.

    Raises:
        NoValue: a scenario could not say it so.
    """
    if "\n" in text or "#" in text:
        _none(text)
    try:
        (line,) = parse_scenario(f"pool 2 block 1\nchapter blocks\nevent x {text}\n").lines
    except (la.ScenarioError, ValueError):
        _none(text)
    assert isinstance(line.item, la.EventLine)
    return line.item.atoms


def _row(row: Any, sorts: tuple[Sort, ...]) -> Iterator[la.Atom]:
    if len(sorts) == 1:
        yield from atoms(row, sorts[0])
    elif isinstance(row, str):
        yield from text_atoms(row)
    elif isinstance(row, list) and len(row) == len(sorts):
        for one, sort in zip(row, sorts, strict=True):
            yield from atoms(one, sort)
    else:
        _none(row)


def _variant(value: Any, sort: Sort) -> tuple[la.Atom, ...]:
    """``"cache [7 8]"``, ``["cache", [7, 8]]`` or ``{"cache": [7, 8]}``; several fields are a list there."""
    if isinstance(value, str):
        return text_atoms(value)
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, inside),) = value.items()
        given = inside if len(_fields(name, sort)) > 1 and isinstance(inside, list) else [inside]
    elif isinstance(value, list) and value and isinstance(value[0], str):
        name, given = value[0], value[1:]
    else:
        _none(value)
    fields = _fields(name, sort)
    if len(given) != len(fields):
        _none(value)
    told = [a for one, field in zip(given, fields, strict=True) for a in atoms(one, field)]
    return (next(case for case in _names(sort) if name in _names(sort)[case]), *told)


def _names(sort: Sort) -> dict[str, set[str]]:
    """The word of each case in a scenario, and all names that it has in a log."""
    return {case_word(case): {case, case_word(case)} for case, _ in sort.cases}


def _fields(name: str, sort: Sort) -> tuple[Sort, ...]:
    for case, fields in sort.cases:
        if name in (case, case_word(case)):
            return fields
    return _none(name)


def _chain(value: Any) -> tuple[la.Atom, ...]:
    if isinstance(value, str):
        return text_atoms(value) if value.startswith("[") else (value,)
    context = Context()
    if isinstance(value, Mapping) and "tokens" in value and value.keys() <= CONTEXT | {"tokens"}:
        said = {name: v for name, v in value.items() if name != "tokens"}
        try:
            context = msgspec.convert(said, Context)
        except msgspec.ValidationError:
            _none(value)
        value = value["tokens"]
    if not isinstance(value, list) or not all(type(t) is int and abs(t) <= la.MAX_NUMBER for t in value):
        return _none(value)
    return (la.Tokens(tuple(value), context),)


def _none(value: Any) -> NoReturn:
    raise NoValue(shortened(repr(value)))


def told(value: Any, sort: AnySort) -> Any:
    """A value of `kvspec.model.compiled`, as a log has it; what `atoms` reads."""
    if isinstance(sort, SetSort):
        return [_row_told(row, sort.elements) for row in value]
    assert isinstance(sort, Sort)
    if sort.kind == "variant":
        return [value[0], *(told(v, f) for v, f in zip(value[1:], sort.fields(value[0]), strict=True))]
    if not isinstance(value, Chain):
        return value if isinstance(value, (bool, int, str)) else repr(value)
    tokens, usual = chain_tokens(value), msgspec.to_builtins(Context())
    said = {n: v for n, v in msgspec.to_builtins(context_of(value)).items() if v != usual[n]}
    return {"tokens": tokens, **said} if said else tokens


def _row_told(row: Any, sorts: tuple[Sort, ...]) -> Any:
    if len(sorts) == 1:
        return told(row, sorts[0])
    return [told(v, s) for v, s in zip(row, sorts, strict=True)]
