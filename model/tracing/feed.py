"""Reads the KV events that vLLM and SGLang publish, from a recording of their messages or from JSON lines.

A message has three frames: a topic, a number of eight bytes with the highest first, and a payload: a batch in msgpack,
a list ``[time, events, rank]``. An event is a map with its ``type`` and its fields by name, or, in older versions, a
list of its type and its fields in order. Both grow at their ends: what is behind the known fields is skipped, and what
is missing there has its default.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from kvspec.model.eventlog import FRAMES_MAGIC
from kvspec.model.scenario.language import ScenarioError
from kvspec.model.tracing.log import MAX_LINE, Cut, lines, open_log

Engine = Literal["vllm", "sglang"]
Hash = int | str
"""A key; those that are bytes are given as hex digits."""

DEVICE: Final = "GPU"
"""The medium of an event that names none."""
_END: Final = -1
"""The number of the empty message that ends a replay of missed batches."""
_RANKS: Final = ("data_parallel_rank", "attn_dp_rank", "dp_rank")


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks got keys, one behind the other.

    Attributes:
        hashes: their keys.
        parent: the key of the block before; None at the start of a sequence.
        tokens: what stands in the blocks.
        block_size: tokens of each.
        group, medium: where they are.
        extra: what else the key of each block stands for; empty where nothing is said.
        shared: what else the keys of all of them stand for.
        kind: of attention, of the group, if it is said.
    """

    hashes: tuple[Hash, ...]
    parent: Hash | None
    tokens: tuple[Any, ...]
    block_size: int
    group: int = 0
    medium: str = DEVICE
    extra: tuple[Any, ...] = ()
    shared: tuple[Any, ...] = ()
    kind: str | None = None


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks lost their keys."""

    hashes: tuple[Hash, ...]
    group: int = 0
    medium: str = DEVICE


class Cleared(msgspec.Struct, frozen=True):
    """All keys are gone."""


Event = Stored | Removed | Cleared

_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "BlockStored": (
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
        "group_idx", "kv_cache_spec_kind",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}  # fmt: skip
"""Types of events, and the order of their fields where they have no names."""


class Batch(NamedTuple):
    """One message.

    Attributes:
        file, line: where it stands; in a recording of frames, the number of the message.
        source: its topic and, if it says one, its rank: each has numbers of its own.
        number: of the message, if it has one.
        rank: whose events these are.
        events: as they were sent.
        raw: the same, before they were read.
    """

    file: str
    line: int
    source: tuple[str, int]
    number: int | None
    rank: int
    events: list[Event]
    raw: Sequence[Any]


def read_batches(paths: Sequence[Path]) -> Iterator[Batch | Cut]:
    """Every message of the files, and a `Cut` where one ends too early.

    Raises:
        ScenarioError: a message is none, or has an event of an unknown type.
        OSError: a file cannot be read.
    """
    events = 0
    for path in paths:
        messages = _frames(path) if is_frames(path) else _json_lines(path)
        for message in messages:
            if isinstance(message, Cut):
                yield message
            else:
                batch = _batch(str(path), *message, events)
                events += len(batch.events)
                yield batch


def is_frames(path: Path) -> bool:
    """Whether a file is a recording of frames."""
    with open_log(path) as file:
        try:
            return file.read(len(FRAMES_MAGIC)) == FRAMES_MAGIC
        except (OSError, EOFError):
            return False


_Message = tuple[int, str, int | None, Any]
"""Line, topic, number and batch."""


def _frames(path: Path) -> Iterator[_Message | Cut]:
    with open_log(path) as file:
        file.read(len(FRAMES_MAGIC))
        line = 0
        while head := _read(file, 4):
            line += 1
            frames = []
            for _ in range(_number(head) if len(head) == 4 else 1):
                size = _read(file, 4)
                if _number(size) > MAX_LINE:
                    what = f"a frame of {_number(size)} bytes"
                    raise ScenarioError(str(path), line, 0, what, f"at most {MAX_LINE}")
                frame = _read(file, _number(size))
                if len(size) < 4 or len(frame) < _number(size):
                    yield Cut(str(path), line)
                    return
                frames.append(frame)
            found = _message(str(path), line, frames)
            if found is not None:
                yield found


def _read(file: Any, size: int) -> bytes:
    try:
        return bytes(file.read(size))
    except EOFError:  # a packed file that was cut
        return b""


def _number(data: bytes) -> int:
    return int(struct.unpack(">I", data.rjust(4, b"\0"))[0])


def _message(file: str, line: int, frames: list[bytes]) -> _Message | None:
    if not frames or len(frames) > 3:
        raise ScenarioError(file, line, 0, f"a message of {len(frames)} frames", "topic, number and payload")
    topic = frames[0].decode("utf-8", "replace") if len(frames) == 3 else ""
    number = int.from_bytes(frames[-2], "big", signed=True) if len(frames) > 1 else None
    if number == _END:
        return None
    return line, topic, number, _unpacked(file, line, frames[-1])


def _unpacked(file: str, line: int, payload: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ScenarioError(file, line, 0, f"no msgpack ({error})", "a batch of events") from None


def _json_lines(path: Path) -> Iterator[_Message | Cut]:
    for line, text, whole in lines(path):
        try:
            data = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not whole:
                yield Cut(str(path), line)
                return
            raise ScenarioError(str(path), line, 1, f"no JSON ({error})", "a batch of events") from None
        if isinstance(data, dict):
            number, topic = data.get("seq"), data.get("topic", "")
            if not isinstance(topic, str) or not (number is None or isinstance(number, int)):
                raise ScenarioError(str(path), line, 1, "a message without number or topic", '"seq": 0, "topic": ""')
            yield line, topic, number, _payload(str(path), line, data)
        else:
            yield line, "", None, data


def _payload(file: str, line: int, data: Mapping[str, Any]) -> Any:
    """The batch of a JSON object: packed, a list, or its fields beside the number."""
    try:
        for name, unpack in (("hex", bytes.fromhex), ("base64", lambda text: base64.b64decode(text, validate=True))):
            if name in data:
                return _unpacked(file, line, unpack(data[name]))
    except (ValueError, TypeError, binascii.Error) as error:
        raise ScenarioError(file, line, 1, f"a payload that cannot be read ({error})", "hex or base64") from None
    return data.get("batch", data)


def _batch(file: str, line: int, topic: str, number: int | None, data: Any, before: int) -> Batch:
    if isinstance(data, Mapping) and isinstance(data.get("events"), list):
        events, rank = data["events"], next((data[r] for r in _RANKS if data.get(r) is not None), None)
    elif isinstance(data, list) and len(data) >= 2 and isinstance(data[1], list):
        events, rank = data[1], data[2] if len(data) > 2 else None
    else:
        raise ScenarioError(file, line, 1, "no batch of events", "[time, [events], rank]")
    if not (rank is None or isinstance(rank, int)):
        raise ScenarioError(file, line, 1, f"rank {rank!r}", "a number")
    found = []
    for at, event in enumerate(events, before + 1):
        try:
            found.append(_event(event))
        except (_NoEvent, msgspec.ValidationError) as error:
            what, _, expected = str(error).partition("; ")
            raise ScenarioError(file, line, 1, f"event {at}: {what}", expected or "an event of KV blocks") from None
    return Batch(file, line, (topic, rank or 0), number, rank or 0, found, events)


class _NoEvent(ValueError):
    pass


def _named(event: Any) -> tuple[str, Mapping[str, Any]]:
    """Type and fields of an event in any of its forms."""
    if isinstance(event, Mapping) and isinstance(event.get("type"), str):
        tag, fields = event["type"], event
    elif isinstance(event, list) and event and isinstance(event[0], str):
        tag = event[0]
        fields = dict(zip(_FIELDS.get(tag, ()), event[1:], strict=False))
    else:
        raise _NoEvent("no event; a type and its fields")
    if tag not in _FIELDS:
        raise _NoEvent(f"an event of type {tag!r}; one of {', '.join(_FIELDS)}")
    return tag, fields


def _event(event: Any) -> Event:
    tag, fields = _named(event)
    if tag == "AllBlocksCleared":
        return Cleared()
    hashes, group, medium = fields.get("block_hashes"), fields.get("group_idx") or 0, fields.get("medium") or DEVICE
    if not isinstance(hashes, list) or not isinstance(group, int) or group < 0 or not isinstance(medium, str):
        raise _NoEvent(f"a {tag} without keys, group or medium; block_hashes, a list")
    keys = tuple(map(_hash, hashes))
    if tag == "BlockRemoved":
        return Removed(hashes=keys, group=group, medium=medium)
    parent, tokens, size = (fields.get(n) for n in ("parent_block_hash", "token_ids", "block_size"))
    if not isinstance(tokens, list) or not isinstance(size, int) or size < 1:
        raise _NoEvent("a BlockStored without tokens or block size; token_ids, a list, and block_size, a number")
    keyed, ahead = fields.get("extra_keys") or (), fields.get("lookahead_token_ids") or ()
    if not isinstance(keyed, (list, tuple)) or not isinstance(ahead, (list, tuple)):
        raise _NoEvent("a BlockStored with other extra keys; extra_keys, a list")
    extra = list(zip(keyed, ahead, strict=False)) if keyed and ahead else keyed or ahead
    return Stored(
        hashes=keys,
        parent=None if parent is None else _hash(parent),
        tokens=_frozen(tokens),
        block_size=size,
        group=group,
        medium=medium,
        extra=_frozen(extra),
        shared=_frozen((fields.get("lora_name"), fields.get("cache_salt"))),
        kind=kind if isinstance(kind := fields.get("kv_cache_spec_kind"), str) else None,
    )


def _hash(value: Any) -> Hash:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    raise _NoEvent(f"a key that is {value!r}; a number, bytes or text")


def _frozen(value: Any) -> Any:
    """The value as one that can be a key."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(k), _frozen(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    is_plain = value is None or isinstance(value, (bool, int, float, str, bytes))
    return value if is_plain else msgspec.msgpack.encode(value)


# -- which engine -----------------------------------------------------------------------------------------------------

MAX_LOOK: Final = 10_000
"""Messages that are looked at to find out which engine has sent them."""


def detect(paths: Sequence[Path]) -> Engine | None:
    """The engine whose events these are, by the fields that only one of them sends; None if nothing tells."""
    for seen, batch in enumerate(read_batches(paths)):
        if isinstance(batch, Batch):
            for event in batch.raw:
                if (engine := _sender(event)) is not None:
                    return engine
        if seen > MAX_LOOK:
            break
    return None


def _sender(event: Any) -> Engine | None:
    tag, fields = _named(event)
    if tag == "AllBlocksCleared" or not isinstance(event, Mapping):
        return None
    if {"cache_salt"} & fields.keys() or fields.get("medium") in ("CPU_PINNED", "DISK", "EXTERNAL"):
        return "sglang"
    if {"group_idx", "extra_keys", "kv_cache_spec_kind"} & fields.keys():
        return "vllm"
    if tag == "BlockStored" and fields.get("lora_name") is None:
        return "vllm" if "lora_name" in fields else "sglang"  # which leaves out what is None
    return None
