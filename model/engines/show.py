"""The state of an engine's memory in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvspec.model.engines.pool import EnginePool, EngineRequest, Memory


def memory_lines(pool: EnginePool) -> Iterator[str]:
    """What every store has, and every request."""
    for number, memory in enumerate(pool.memories):
        where = f" in store {number}" if len(pool.memories) > 1 else ""
        yield f"free {_ids(sorted(memory.free))}{where}"
        yield from (f"{_entry(memory, block)}{where}" for block in sorted(memory.keyed))
    yield from (_request(seq, request) for seq, request in pool.requests.items())


def _entry(memory: Memory, block: int) -> str:
    ahead = ", still to be written" if block in memory.ahead else ""
    return f"cached {memory.key[block]} at {block}{ahead}"


def _request(seq: str, request: EngineRequest) -> str:
    tables = " and ".join(f"[{_ids(table)}]" for table in request.tables)
    return f"{seq}: blocks {tables}, {request.computed} of {request.known} known tokens computed"


def _ids(blocks: Sequence[int | None]) -> str:
    return " ".join("-" if block is None else str(block) for block in blocks) or "none"
