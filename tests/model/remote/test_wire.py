"""Values of the target protocol as JSON: what is written reads back, whatever the type."""

from __future__ import annotations

import array
import inspect
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from kvspec.model.conformance import CacheEvent, Capability, Context, Form, Listed, PoolConfig, Tags, Transfer
from kvspec.model.remote.protocol import PROTOCOLS, attributes_of, methods_of
from kvspec.model.remote.wire import as_plain, codec


class Pair(msgspec.Struct, frozen=True):
    """Something with bytes in it."""

    key: bytes
    number: int


class Marked(msgspec.Struct, tag="marked"):
    """Something with bytes and a tag."""

    key: bytes


def written(hint: Any, value: Any) -> bytes:
    how = codec(hint)
    return msgspec.json.encode(value if how.write is None else how.write(value), enc_hook=as_plain)


def read(hint: Any, line: bytes) -> Any:
    how = codec(hint)
    found = msgspec.json.decode(line, type=how.wire)
    return found if how.read is None else how.read(found)


@pytest.mark.parametrize(
    ("hint", "value", "line"),
    [
        (int, 2**62, b"4611686018427387904"),
        (bool, True, b"true"),
        (type(None), None, b"null"),
        (int | None, None, b"null"),
        (bytes, b"\x00\xff", b'"00ff"'),
        (bytes | None, b"\x07", b'"07"'),
        (bytes | None, None, b"null"),
        (Literal["all", "some"], "all", b'"all"'),
        (frozenset[Capability], frozenset({Capability.FORK}), b'["fork"]'),
        (set[int], {3}, b"[3]"),
        (Sequence[int], [4, 5], b"[4,5]"),
        (Mapping[bytes, int], {b"\x0a": 3}, b'{"0a":3}'),
        (Mapping[str, Sequence[bytes]], {"a": [b"\x01"]}, b'{"a":["01"]}'),
        (dict[int, str | None], {3: None}, b'{"3":null}'),
        (Sequence[tuple[int, int]], [(1, 2)], b"[[1,2]]"),
        (tuple[bytes, ...], (b"\x01", b""), b'["01",""]'),
        (tuple[bytes, int], (b"\x01", 2), b'["01",2]'),
        (CacheEvent, CacheEvent("stored", b"\x10", 3), b'{"kind":"stored","key":"10","block_id":3}'),
        (Sequence[Pair], [Pair(b"\x10", 3)], b'[{"key":"10","number":3}]'),
        (Context, Context(salt="ä\n\"", images=("a", "b")),
         '{"adapter":null,"adapter_version":0,"salt":"ä\\n\\"","images":["a","b"]}'.encode()),
        (Transfer, Transfer(number=1, direction="load", rank=0, device_block=2, host_block=3, index=4, seq="a"),
         b'{"number":1,"direction":"load","rank":0,"device_block":2,"host_block":3,"index":4,"seq":"a","started":false}'),
    ],
    ids=lambda part: str(part)[:24],
)  # fmt: skip
def test_what_is_written_reads_back(hint: Any, value: Any, line: bytes) -> None:
    assert written(hint, value) == line
    assert read(hint, line) == value


def test_contents_are_lists_of_numbers() -> None:
    tags = np.array([1, 2**48 - 1], dtype=np.int64)
    assert written(Tags, tags) == b"[1,281474976710655]"
    found = read(Tags, written(Tags, tags))
    assert found.dtype == np.int64 and np.array_equal(found, tags)
    assert written(Sequence[tuple[str, Tags]], [("a", tags[:1]), ("b", tags[:0])]) == b'[["a",[1]],["b",[]]]'
    ((name, part),) = read(Sequence[tuple[str, Tags]], b'[["a",[5]]]')
    assert name == "a" and part.tolist() == [5]


def test_arrays_and_their_numbers_are_what_json_has() -> None:
    assert written(Sequence[int], array.array("q", [1, 2])) == b"[1,2]"
    assert written(Sequence[int], np.arange(3)) == b"[0,1,2]"
    assert written(int, np.int64(7)) == b"7" and written(set[int], {np.int32(1)}) == b"[1]"
    with pytest.raises(NotImplementedError, match="object cannot be written"):
        written(int, object())


def test_a_set_remembers_what_was_in_the_list_twice() -> None:
    found = read(set[int], b"[3,1,3,3]")
    assert isinstance(found, Listed) and found == {1, 3} and found.twice == [3, 3]
    assert read(set[int], b"[3,1]").twice == []


@pytest.mark.parametrize("line", [b'"0"', b'"0G"', b'"AB"', b"7"])
def test_what_are_no_bytes_is_refused(line: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        read(bytes, line)
    if line != b"7":
        with pytest.raises(msgspec.ValidationError):
            read(Mapping[bytes, int], b"{%s:1}" % line)


@pytest.mark.parametrize("hint", [bytes | int, bytes | str | None, Marked])
def test_what_cannot_be_told_apart_has_no_way_to_be_written(hint: Any) -> None:
    with pytest.raises(TypeError, match="no way to write"):
        codec(hint)


@pytest.mark.parametrize("form", Form)
def test_every_method_of_every_protocol_can_be_sent(form: Form) -> None:
    """With its arguments in their order; nothing is left out, and nothing is named a second time."""
    methods = methods_of(form)
    for name, function in inspect.getmembers(PROTOCOLS[form], inspect.isfunction):
        if name.startswith("_"):
            continue
        hints = typing.get_type_hints(function, include_extras=True)
        assert [p.name for p in methods[name].parameters] == list(inspect.signature(function).parameters)[1:]
        assert [p.codec for p in methods[name].parameters] == [codec(hints[p.name]) for p in methods[name].parameters]
        assert methods[name].result == codec(hints["return"])
    assert {"capabilities", "hit_limit"} <= attributes_of(form).keys()


def test_all_looks_are_marked_and_no_operation_is() -> None:
    """What is not asked for again until the next operation changes nothing; and what drains is asked for each time."""
    looks = {method.name for form in Form for method in methods_of(form).values() if method.looks}
    drains = {method.name for form in Form for method in methods_of(form).values() if method.drains}
    operations = {"start", "allocate", "allocate_shared", "append", "write", "cache", "deallocate", "preempt", "abort",
                  "fork", "truncate", "evict", "reset", "hold", "release", "close", "accept", "reclaim",
                  "fail_mappings", "step", "submit", "layout", "sleep", "wake"}  # fmt: skip
    assert not looks & operations and looks | operations <= {m for form in Form for m in methods_of(form)}
    assert drains == {"drain_events", "drain_host_events"} < looks


def test_a_config_reads_back() -> None:
    config = PoolConfig(num_blocks=4, block_size=2, num_single_blocks=3, num_state_slots=4, trim="deepest")
    assert read(PoolConfig, written(PoolConfig, config)) == config
