"""What the checks of a scenario look at where an engine is driven: what its manager has shown, call by call."""

from __future__ import annotations

from kvspec.model.conformance import MisuseError
from kvspec.model.engines.judge import EngineAcceptor
from kvspec.model.scenario import language as la


def measured(judge: EngineAcceptor, check: la.Check) -> tuple[int, int]:
    """The number that a check expects, and the one that there is.

    Raises:
        MisuseError: there is nothing to look at.
    """
    memories = judge.pool.memories
    match check:
        case la.Free():
            return check.num_blocks, sum(memory.unheld for memory in memories)
        case la.Used():
            return check.num_blocks, sum(len(memory.store.ids) - memory.unheld for memory in memories)
        case la.Keys():
            return check.num_keys, sum(len(memory.keys) for memory in memories)
        case la.Computed():
            return check.num_tokens, judge.pool.request(check.seq).computed
        case la.Hit():
            return check.num_tokens, judge.pool.request(check.seq).hit
        case la.Blocks():
            return check.num_blocks, sum(block is not None for block in _table(judge, check.seq, check.group or 0))
        case la.References():
            group = check.group or 0
            memory = memories[judge.pool.layout.groups[group].store]
            return check.num_holders, len(memory.holders[block_at(judge, check.seq, check.index, group)])
    raise MisuseError("an engine does not show it")


def block_at(judge: EngineAcceptor, seq: str, index: int, group: int = 0) -> int:
    """The block at a place of a table.

    Raises:
        MisuseError: there is none.
    """
    table = _table(judge, seq, group)
    block = table[index] if index < len(table) else None
    if block is None:
        raise MisuseError(f"{seq} has no block {index}")
    return block


def _table(judge: EngineAcceptor, seq: str, group: int) -> list[int | None]:
    if group >= len(judge.pool.layout.groups):
        raise MisuseError(f"there is no group {group}")
    return judge.pool.request(seq).tables[group]
