"""How values of the target protocol are written as JSON: by their type hints, whatever the protocol is.

Most is what msgspec makes of it. Beside that bytes are hexadecimal text, also where they are keys of an object, and
arrays of contents are lists of numbers. A set that comes as a list remembers what was in it twice.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec
import numpy as np

from kvspec.model.conformance import Listed

Convert = Callable[[Any], Any]

Hex = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$", description="Bytes, as hexadecimal text.")]
"""Bytes as they are written."""


class Codec(NamedTuple):
    """How values of a type travel.

    Attributes:
        wire: the type of what is written, as msgspec takes it.
        write: what is written for a value; None: the value itself.
        read: the value of what was written; None: that itself.
    """

    wire: Any
    write: Convert | None = None
    read: Convert | None = None

    @property
    def converts(self) -> bool:
        """Whether msgspec alone would not do."""
        return self.write is not None or self.read is not None


def as_plain(value: Any) -> Any:
    """What JSON has for what msgspec does not know: numbers and arrays of numpy, and other arrays.

    Raises:
        NotImplementedError: it is something else.
    """
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Iterable):
        return list(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")


@cache
def codec(hint: Any) -> Codec:
    """How values of a type travel.

    Raises:
        TypeError: there is no way to write such values.
    """
    origin, inside = get_origin(hint), get_args(hint)
    if hint is bytes:
        return Codec(Hex, bytes.hex, bytes.fromhex)
    if origin is np.ndarray:
        return Codec(list[int], lambda tags: np.asarray(tags).tolist(), lambda tags: np.array(tags, dtype=np.int64))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(hint)
    if isinstance(origin, type) and issubclass(origin, set):
        return Codec(list[inside[0]], None, Listed)  # type: ignore[valid-type]
    parts = [codec(part) for part in inside if part is not ... and (isinstance(part, type) or get_origin(part))]
    if not any(part.converts for part in parts):
        return Codec(hint)
    if origin in (Union, types.UnionType) and len(parts) == 2 and type(None) in inside:
        return _optional(next(part for part in parts if part.converts))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(*parts)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _tuple(parts) if issubclass(origin, tuple) and inside[-1] is not ... else _items(origin, parts[0])
    raise TypeError(f"no way to write {hint} as JSON")


def _of(convert: Convert | None) -> Convert:
    return convert or (lambda value: value)


def _optional(part: Codec) -> Codec:
    write, read = _of(part.write), _of(part.read)
    return Codec(
        Union[part.wire, None],  # noqa: UP007
        lambda value: None if value is None else write(value),
        lambda value: None if value is None else read(value),
    )


def _mapping(key: Codec, item: Codec) -> Codec:
    writes, reads = (_of(key.write), _of(item.write)), (_of(key.read), _of(item.read))
    return Codec(
        dict[key.wire, item.wire],  # type: ignore[name-defined]
        lambda found: {writes[0](k): writes[1](v) for k, v in found.items()},
        lambda found: {reads[0](k): reads[1](v) for k, v in found.items()},
    )


def _tuple(parts: Sequence[Codec]) -> Codec:
    writes, reads = [_of(part.write) for part in parts], [_of(part.read) for part in parts]
    return Codec(
        tuple[tuple(part.wire for part in parts)],  # type: ignore[misc]
        lambda items: [write(item) for write, item in zip(writes, items, strict=True)],
        lambda items: tuple(read(item) for read, item in zip(reads, items, strict=True)),
    )


def _items(origin: type, part: Codec) -> Codec:
    write, read = _of(part.write), _of(part.read)
    make = tuple if issubclass(origin, tuple) else list
    return Codec(
        list[part.wire],  # type: ignore[name-defined]
        lambda items: [write(item) for item in items],
        lambda items: make(read(item) for item in items),
    )


def _struct(kind: type[msgspec.Struct]) -> Codec:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = msgspec.structs.fields(kind)
    parts = {field.name: codec(hints[field.name]) for field in fields}
    if not any(part.converts for part in parts.values()):
        return Codec(kind)
    if any(not field.required for field in fields) or kind.__struct_config__.tag or kind.__struct_config__.array_like:
        raise TypeError(f"no way to write {kind.__name__} as JSON: it has bytes, and tags or defaults")
    wire = msgspec.defstruct(
        kind.__name__, [(name, part.wire) for name, part in parts.items()], namespace={"__doc__": kind.__doc__}
    )
    writes, reads = ({name: _of(one) for name, one in ones} for ones in (
        [(name, part.write) for name, part in parts.items()], [(name, part.read) for name, part in parts.items()],
    ))  # fmt: skip
    return Codec(
        wire,
        lambda value: {name: write(getattr(value, name)) for name, write in writes.items()},
        lambda value: kind(**{name: read(getattr(value, name)) for name, read in reads.items()}),
    )
