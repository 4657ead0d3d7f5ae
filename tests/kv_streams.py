"""Streams of KV events as vLLM and SGLang publish them, and how to break them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvspec.model.eventlog import FrameLog

Event = dict[str, Any]
Message = tuple[bytes, int, list[Any]]
"""Topic, number and batch."""


def stored(hashes: Sequence[Any], parent: Any, tokens: Sequence[int], size: int, **more: Any) -> Event:
    """Blocks got keys (vLLM; medium and adapter are always there)."""
    fixed = {"block_hashes": list(hashes), "parent_block_hash": parent, "token_ids": list(tokens), "block_size": size}
    return {"type": "BlockStored", **fixed, "lora_id": None, "medium": "GPU", "lora_name": None, "group_idx": 0, **more}


def removed(*hashes: Any, **more: Any) -> Event:
    """Blocks lost their keys (vLLM)."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0, **more}


def plain(event: Event) -> Event:
    """The same as SGLang sends it: what is None is left out."""
    return {k: v for k, v in event.items() if v is not None and k != "group_idx"} | (
        {"parent_block_hash": event["parent_block_hash"], "lora_id": None} if "token_ids" in event else {}
    )


CLEARED: Event = {"type": "AllBlocksCleared"}


def key(tokens: Sequence[int]) -> bytes:
    """A key of 32 bytes for a prefix."""
    return random.Random(repr(list(tokens))).randbytes(32)


def numbers(tokens: Sequence[int]) -> int:
    """A key of 64 bits with a sign."""
    return int.from_bytes(key(tokens)[:8], "big", signed=True)


def chain(tokens: Sequence[int], size: int, start: int, hashed: Any = key) -> Event:
    """The event of all full blocks of a prefix behind the first `start`."""
    count = len(tokens) // size
    hashes = [hashed(tokens[: (n + 1) * size]) for n in range(start, count)]
    parent = hashed(tokens[: start * size]) if start else None
    return stored(hashes, parent, tokens[start * size : count * size], size)


def messages(events: Sequence[Event], per: int = 3, topic: bytes = b"kv", first: int = 0) -> list[Message]:
    """The events in batches, with their numbers."""
    batches = [list(events[at : at + per]) for at in range(0, len(events), per)]
    return [(topic, number, [0.5, batch, 0]) for number, batch in enumerate(batches, first)]


def frames(path: Path, sent: Sequence[Message]) -> Path:
    """A recording of these messages."""
    path.unlink(missing_ok=True)
    with FrameLog(path) as log:
        for topic, number, batch in sent:
            log.write(topic, number.to_bytes(8, "big", signed=True), msgspec.msgpack.encode(batch))
    return path


def random_stream(seed: int, hashed: Any = key, size: int = 2, unique: bool = False) -> list[Event]:
    """Prompts that share beginnings, published block by block and evicted leaf first, as a radix cache does it."""
    chance = random.Random(seed)
    there: dict[tuple[int, ...], int] = {}
    events: list[Event] = []
    for _ in range(60):
        tokens = tuple(chance.randrange(2) for _ in range(size * chance.randrange(1, 5)))
        prefixes = [tokens[: (n + 1) * size] for n in range(len(tokens) // size)]
        start = 0
        while start < len(prefixes) and there.get(prefixes[start]) and (unique or chance.random() < 0.8):
            start += 1
        if start < len(prefixes):
            events.append(chain(tokens, size, start, hashed))
            for prefix in prefixes[start:]:
                there[prefix] = there.get(prefix, 0) + 1
        while sum(there.values()) > 12:
            leaves = [p for p in there if not any(q[: len(p)] == p and q != p for q in there)]
            leaf = chance.choice(leaves)
            events.append(removed(hashed(leaf)))
            there[leaf] -= 1
            there = {p: n for p, n in there.items() if n}
    return events
