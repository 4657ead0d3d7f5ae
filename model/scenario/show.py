"""The state of a run in a few lines: what the model holds, and what the target shows.

What no target is asked to show is told of both, and of the target as what is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kvspec.model.acceptor import (
    Acceptor,
    AnyAcceptor,
    CompositeAcceptor,
    EngineAcceptor,
    PagedAcceptor,
    PoolAcceptor,
    TieredAcceptor,
)
from kvspec.model.conformance import Capability
from kvspec.model.engines.show import memory_lines
from kvspec.model.executable import AnyPool, GroupedPool, PagedPool, RankedPool, TieredPool
from kvspec.model.scenario.write import ranges, word
from kvspec.model.world import Chain, chain_tokens, context_of

_LIMIT: Final = 16
_KNOWN: Final = " (known)"
_NOT_BEGUN: Final = ", not begun"

_Other = Acceptor | PoolAcceptor | CompositeAcceptor
"""All judges but that of an engine, which is told of in other words."""
_Table = tuple[int, Sequence[int]]
"""Leading places that have been released, and the blocks behind them."""


def model_state(acceptor: AnyAcceptor) -> list[str]:
    """What the spec's state is."""
    if isinstance(acceptor, EngineAcceptor):
        return _cut(list(memory_lines(acceptor.pool)))
    pool = acceptor.pool
    lines = [
        line
        for rank, part in enumerate(pool.parts())
        for line in _rank(acceptor, rank, part.free, {chain: part.entry[chain] for chain in _in_order(part.cached)})
    ]
    if isinstance(pool, RankedPool):
        lines += _units(pool)
    if isinstance(pool, PagedPool):
        lines.append(f"mapped pages {_ids(pool.mapped)}")
    if isinstance(pool, TieredPool):
        lines += _hosts(pool)
    lines += [
        _sequence(seq, _model_tables(pool, seq), r.computed, len(r.tokens)) + _has(pool, seq) + _progress(pool, seq)
        for seq, r in pool.requests.items()
    ]
    return _cut([*lines, *_beside(acceptor)])


def _rank(acceptor: _Other, rank: int, free: Iterable[int], cached: Mapping[Chain, int]) -> list[str]:
    where = _at(acceptor, rank)
    return [f"free {_ids(free)}{where}", *(f"cached {chain_text(c)} at {b}{where}" for c, b in cached.items())]


def _at(acceptor: _Other, rank: int) -> str:
    if len(acceptor.config.manager_types) > 1:
        return f" in group {rank}"
    return f" on rank {rank}" if acceptor.config.num_ranks > 1 else ""


def _units(pool: RankedPool) -> Iterator[str]:
    """Single blocks and slots of each rank."""
    for rank in range(pool.config.num_ranks):
        slots = f", free slots {_ids(pool.free_slots(rank))}" if pool.config.has_linear_state else ""
        yield f"rank {rank}: free single blocks {_ids(pool.free_singles(rank))}{slots}"
        saved = pool.checkpoints(rank)
        yield from (f"rank {rank}: checkpoint {chain_text(c)} in slot {saved[c]}" for c in _in_order(saved))


def _hosts(pool: TieredPool) -> Iterator[str]:
    """The host tier of each rank, and copies between the tiers."""
    for rank, host in enumerate(pool.hosts()):
        yield f"host {rank}: free {_ids(host.free)}"
        yield from (f"host {rank}: cached {chain_text(c)} at {host.entry[c]}" for c in _in_order(host.cached))
        for number in pool.transfers():
            copy = pool.copies[number]
            if copy.rank == rank:
                ends = _ends(copy.direction, copy.device, copy.host, copy.seq, copy.place)
                yield f"{ends}: {chain_text(copy.key)}{_NOT_BEGUN * (number not in pool.begun)}"


def _ends(direction: str, device: int | None, host: int, seq: str | None, place: int) -> str:
    """A copy between the tiers: from where to where, and for whom."""
    ends = f"block {device} to host block {host}" if direction == "offload" else f"host block {host} to block {device}"
    return f"{direction} from {ends}" + (f" for {word(seq)}[{place}]" if seq is not None else "")


def _beside(acceptor: _Other, mark: str = "") -> Iterator[str]:
    """What no target shows of the whole pool."""
    pool = acceptor.pool
    if isinstance(pool, PagedPool):
        yield f"free physical pages: {len(pool.frames)}{mark}"
    if isinstance(pool, TieredPool):
        fetches = (copy for copy in pool.copies.values() if copy.direction == "fetch")
        yield from (f"fetch from the store to host block {c.host}: {chain_text(c.key)}{mark}" for c in fetches)
        if pool.asleep:
            yield f"the device sleeps{mark}"
    yield from (f"held {word(name)}: block {block}{mark}" for name, block in acceptor.handles.items())


def _progress(pool: AnyPool, seq: str, mark: str = "") -> str:
    """What no target shows of a sequence."""
    if isinstance(pool, GroupedPool):
        return f", {pool.accepted(seq)} accepted{mark}"
    if not isinstance(pool, RankedPool) or pool.rank(seq) is None:
        return ""
    words = {"waits": pool.waits(seq), "is restored": pool.is_restoring(seq), "is saved": pool.is_saving(seq)}
    return "".join(f", {w}{mark}" for w, holds in words.items() if holds)


def _has(pool: AnyPool, seq: str) -> str:
    """What a sequence has in a pool of ranks, beside its blocks."""
    if not isinstance(pool, RankedPool) or pool.rank(seq) is None:
        return ""
    slot = f", slot {pool.slot(seq)}" if pool.slot(seq) is not None else ""
    single = f", single block {pool.single(seq)}{slot}" if pool.is_in(seq) else ""
    return f"; rank {pool.rank(seq)}{single}"


def target_state(acceptor: AnyAcceptor) -> list[str]:
    """What the target shows, and what is known beside that; what it cannot show is left out."""
    if isinstance(acceptor, EngineAcceptor):
        return _cut([*acceptor.last_record(), *(f"{line}{_KNOWN}" for line in memory_lines(acceptor.pool))])
    lines: list[str] = []
    for show in (_shown_ranks, _shown_units, _shown_pages, _shown_hosts, _shown_sequences):
        try:
            lines += show(acceptor)
        except Exception as error:  # whatever a faulty target does when it is looked at
            lines.append(f"cannot be shown: {type(error).__name__}: {error}")
    return _cut([*lines, *_beside(acceptor, _KNOWN)])


def _shown_ranks(acceptor: _Other) -> Iterator[str]:
    for rank, view in enumerate(acceptor.views):
        where = _at(acceptor, rank)
        if acceptor.sees(Capability.FREE_IDS):
            yield f"free {_ids(view.free_ids())}{where}"
        elif acceptor.sees(Capability.FREE_COUNT):
            yield f"free: {_number_of_blocks(view.free_count())}{where}"
        if acceptor.sees(Capability.USED_COUNT):
            yield f"used: {_number_of_blocks(view.used_count())}{where}"
        if acceptor.sees(Capability.CACHED_KEYS):
            yield from (f"cached {name} at {block}{where}" for name, block in _named(acceptor, view.cached()))


def _shown_units(acceptor: _Other) -> Iterator[str]:
    if not isinstance(acceptor, PoolAcceptor):
        return
    target = acceptor.target
    for rank in range(acceptor.config.num_ranks):
        linear = acceptor.config.has_linear_state
        slots = f", free slots {_ids(target.free_state_slots(rank))}" if linear else ""
        yield f"rank {rank}: free single blocks {_ids(target.free_single_blocks(rank))}{slots}"
        saved = _named(acceptor, target.checkpoints(rank)) if linear else ()
        yield from (f"rank {rank}: checkpoint {name} in slot {slot}" for name, slot in saved)


def _shown_pages(acceptor: _Other) -> Iterator[str]:
    if isinstance(acceptor, PagedAcceptor):
        yield f"mapped pages {_ids(acceptor.target.mapped_pages())}"


def _shown_hosts(acceptor: _Other) -> Iterator[str]:
    if not isinstance(acceptor, TieredAcceptor):
        return
    target = acceptor.target
    for rank in range(acceptor.config.num_ranks):
        yield f"host {rank}: free {_ids(target.host_free_ids(rank))}"
        found = _named(acceptor, target.host_cached(rank))
        yield from (f"host {rank}: cached {name} at {block}" for name, block in found)
        for t in target.transfers(rank):
            copy = acceptor.pool.copies.get(t.number)
            tokens = f": {chain_text(copy.key)}{_KNOWN}" if copy is not None else ""
            ends = _ends(t.direction, t.device_block, t.host_block, t.seq, t.index)
            yield f"{ends}{tokens}{_NOT_BEGUN * (not t.started)}"


def _model_tables(pool: AnyPool, seq: str) -> list[_Table]:
    if isinstance(pool, GroupedPool):
        return [(pool.released(seq, group), pool.table(seq, group)) for group in range(len(pool.kinds))]
    return [(0, pool.table(seq))]


def _shown_tables(acceptor: _Other, seq: str) -> list[_Table]:
    if isinstance(acceptor, CompositeAcceptor):
        target, groups = acceptor.target, range(len(acceptor.views))
        return [(target.released(seq, group), target.block_table(seq, group)) for group in groups]
    return [(0, acceptor.target.block_table(seq))]


def _shown_sequences(acceptor: _Other) -> Iterator[str]:
    for seq, request in acceptor.pool.requests.items():
        try:
            tables, computed = _shown_tables(acceptor, seq), acceptor.target.num_computed(seq)
            has = _shown_resources(acceptor, seq)
        except Exception as error:
            yield f"{word(seq)}: {error}"
        else:
            shown = _sequence(seq, tables, computed, len(request.tokens)) + has
            yield shown + _progress(acceptor.pool, seq, _KNOWN)


def _shown_resources(acceptor: _Other, seq: str) -> str:
    if not isinstance(acceptor, PoolAcceptor) or acceptor.target.rank(seq) is None:
        return ""
    target = acceptor.target
    slot = target.state_slot(seq) if acceptor.config.has_linear_state else None
    units = {"single block": target.single_block(seq), "slot": slot}
    has = [f"rank {target.rank(seq)}", *(f"{name} {unit}" for name, unit in units.items() if unit is not None)]
    return f"; {', '.join(has)}"


def chain_text(chain: Chain) -> str:
    """A chain as the language writes it, with its context where it has one."""
    context = context_of(chain)
    parts = {f: getattr(context, f) for f in context.__struct_fields__}
    extra = [f"{name}={value}" for name, value in parts.items() if value not in (None, 0, ())]
    return f"[{' '.join(ranges(chain_tokens(chain)))}]" + (f" ({' '.join(extra)})" if extra else "")


def _named(acceptor: _Other, entries: Mapping[bytes, int]) -> list[tuple[str, int]]:
    """Entries of a target by what their keys stand for, in the order of the model; keys of nothing known are last."""
    chains = acceptor._chains
    keys = sorted(entries, key=lambda key: (key not in chains, int(chains[key].number) if key in chains else 0, key))
    return [(_name(chains.get(key), key), entries[key]) for key in keys]


def _name(chain: Chain | None, key: bytes) -> str:
    return chain_text(chain) if chain is not None else f"key {key.hex()[:8]}"


def _in_order(chains: Any) -> list[Chain]:
    return sorted(chains, key=lambda chain: int(chain.number))


def _sequence(seq: str, tables: Sequence[_Table], computed: int, known: int) -> str:
    blocks = "; ".join(
        (f"group {group}: " if len(tables) > 1 else "")
        + (f"{released} released, " if released else "")
        + _blocks(table)
        for group, (released, table) in enumerate(tables)
    )
    return f"{word(seq)}: {blocks}; {computed} of {known} tokens computed"


def _number_of_blocks(number: int) -> str:
    return f"{number} block" if number == 1 else f"{number} blocks"


def _blocks(table: Sequence[int]) -> str:
    return f"blocks {' '.join(map(str, table))}" if table else "no blocks"


def _ids(ids: Any) -> str:
    return " ".join(ranges(sorted(ids))) or "none"


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _LIMIT else [*lines[:_LIMIT], f"and {len(lines) - _LIMIT} more"]
