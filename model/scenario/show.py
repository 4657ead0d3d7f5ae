"""The state of a run in a few lines: what the model holds, and what the target shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from kvspec.model.acceptor import Acceptor
from kvspec.model.conformance import Capability
from kvspec.model.scenario.write import ranges, word
from kvspec.model.world import Chain, chain_tokens

_LIMIT: Final = 16


def model_state(acceptor: Acceptor) -> list[str]:
    """What the spec's state is."""
    pool = acceptor.pool
    lines = [f"free {_ids(pool.free)}"]
    lines += [_sequence(seq, pool.table(seq), r.computed, len(r.tokens)) for seq, r in pool.requests.items()]
    lines += [f"cached {chain_text(chain)} at {pool.entry[chain]}" for chain in _in_order(pool.cached)]
    lines += [f"held {word(name)}: block {block}" for name, (_, block) in acceptor._handles.items()]
    return _cut(lines)


def target_state(acceptor: Acceptor) -> list[str]:
    """What the target shows; what it cannot show is left out."""
    lines: list[str] = []
    for show in (_shown_free, _shown_counts, _shown_tables, _shown_keys):
        try:
            lines += show(acceptor)
        except Exception as error:  # whatever a faulty target does when it is looked at
            lines.append(f"cannot be shown: {type(error).__name__}: {error}")
    return _cut(lines)


def _shown_free(acceptor: Acceptor) -> list[str]:
    if acceptor.sees(Capability.FREE_IDS):
        return [f"free {_ids(acceptor.target.free_ids())}"]
    return [f"free: {acceptor.target.free_count()} blocks"] if acceptor.sees(Capability.FREE_COUNT) else []


def _shown_counts(acceptor: Acceptor) -> list[str]:
    return [f"used: {acceptor.target.used_count()} blocks"] if acceptor.sees(Capability.USED_COUNT) else []


def _shown_tables(acceptor: Acceptor) -> list[str]:
    lines = []
    for seq, request in acceptor.pool.requests.items():
        try:
            table, computed = acceptor.target.block_table(seq), acceptor.target.num_computed(seq)
        except Exception as error:
            lines.append(f"{word(seq)}: {error}")
        else:
            lines.append(_sequence(seq, table, computed, len(request.tokens)))
    return lines


def _shown_keys(acceptor: Acceptor) -> list[str]:
    if not acceptor.sees(Capability.CACHED_KEYS):
        return []
    names: Callable[[bytes], str] = lambda key: _name(acceptor._chains.get(key), key)  # noqa: E731
    return [f"cached {names(key)} at {block}" for key, block in acceptor.target.cached().items()]


def chain_text(chain: Chain) -> str:
    """A chain as the language writes it, with its context where it has one."""
    first = chain
    while first.parent is not None and first.parent.number:
        first = first.parent
    context: Any = first.context
    parts = {f: getattr(context, f) for f in context.__struct_fields__} if context is not None else {}
    extra = [f"{name}={value}" for name, value in parts.items() if value not in (None, 0, ())]
    return f"[{' '.join(ranges(chain_tokens(chain)))}]" + (f" ({' '.join(extra)})" if extra else "")


def _name(chain: Chain | None, key: bytes) -> str:
    return chain_text(chain) if chain is not None else f"key {key.hex()[:8]}"


def _in_order(chains: Any) -> list[Chain]:
    return sorted(chains, key=lambda chain: int(chain.number))


def _sequence(seq: str, table: Sequence[int], computed: int, known: int) -> str:
    blocks = f"blocks {' '.join(map(str, table))}" if table else "no blocks"
    return f"{word(seq)}: {blocks}; {computed} of {known} tokens computed"


def _ids(ids: Any) -> str:
    return " ".join(ranges(sorted(ids))) or "none"


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _LIMIT else [*lines[:_LIMIT], f"and {len(lines) - _LIMIT} more"]
