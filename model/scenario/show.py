"""The state of a run in a few lines: what the model holds, and what the target shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kvspec.model.acceptor import AnyAcceptor, CompositeAcceptor, PagedAcceptor, PoolAcceptor, TieredAcceptor
from kvspec.model.conformance import Capability
from kvspec.model.executable import AnyPool, GroupedPool, PagedPool, RankedPool, TieredPool
from kvspec.model.scenario.write import ranges, word
from kvspec.model.world import Chain, chain_tokens, context_of

_LIMIT: Final = 16

_Table = tuple[int, Sequence[int]]
"""Leading places that have been released, and the blocks behind them."""


def model_state(acceptor: AnyAcceptor) -> list[str]:
    """What the spec's state is."""
    pool = acceptor.pool
    lines = [
        line
        for rank, part in enumerate(pool.parts())
        for line in _rank(acceptor, rank, part.free, {chain: part.entry[chain] for chain in _in_order(part.cached)})
    ]
    if isinstance(pool, RankedPool):
        lines += _units(pool)
    if isinstance(pool, PagedPool):
        lines.append(f"mapped pages {_ids(pool.mapped)}, free physical pages: {len(pool.frames)}")
    if isinstance(pool, TieredPool):
        lines += _hosts(pool)
    lines += [
        _sequence(seq, _model_tables(pool, seq), r.computed, len(r.tokens)) + _has(pool, seq)
        for seq, r in pool.requests.items()
    ]
    lines += [f"held {word(name)}: block {block}" for name, block in acceptor.handles.items()]
    return _cut(lines)


def _rank(acceptor: AnyAcceptor, rank: int, free: Iterable[int], cached: Mapping[Chain, int]) -> list[str]:
    where = _at(acceptor, rank)
    return [f"free {_ids(free)}{where}", *(f"cached {chain_text(c)} at {b}{where}" for c, b in cached.items())]


def _at(acceptor: AnyAcceptor, rank: int) -> str:
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
    """The host tier of each rank, and what is on its way."""
    for rank, host in enumerate(pool.hosts()):
        yield f"host {rank}: free {_ids(host.free)}"
        yield from (f"host {rank}: cached {chain_text(c)} at {host.entry[c]}" for c in _in_order(host.cached))
    for copy in pool.copies.values():
        where = {
            "load": f"from host block {copy.host} to {copy.device}",
            "offload": f"from block {copy.device} to host block {copy.host}",
            "fetch": f"from the store to host block {copy.host}",
        }[copy.direction]
        begun = "" if copy.direction == "fetch" or copy.pin[1] in pool.begun else ", not begun"
        wanted = f" for {word(copy.seq)}[{copy.place}]" if copy.seq is not None else ""
        yield f"{copy.direction} {where}{wanted}: {chain_text(copy.key)}{begun}"
    if pool.asleep:
        yield "the device sleeps"


def _has(pool: AnyPool, seq: str) -> str:
    """What a sequence has in a pool, beside its blocks."""
    if isinstance(pool, GroupedPool):
        return f", {pool.accepted(seq)} accepted"
    if not isinstance(pool, RankedPool) or pool.rank(seq) is None:
        return ""
    slot = f", slot {pool.slot(seq)}" if pool.slot(seq) is not None else ""
    single = f", single block {pool.single(seq)}{slot}" if pool.is_in(seq) else ""
    words = {"waits": pool.waits(seq), "is restored": pool.is_restoring(seq), "is saved": pool.is_saving(seq)}
    return f"; rank {pool.rank(seq)}{single}" + "".join(f", {w}" for w, holds in words.items() if holds)


def target_state(acceptor: AnyAcceptor) -> list[str]:
    """What the target shows; what it cannot show is left out."""
    lines: list[str] = []
    for show in (_shown_ranks, _shown_units, _shown_pages, _shown_hosts, _shown_sequences):
        try:
            lines += show(acceptor)
        except Exception as error:  # whatever a faulty target does when it is looked at
            lines.append(f"cannot be shown: {type(error).__name__}: {error}")
    return _cut(lines)


def _shown_ranks(acceptor: AnyAcceptor) -> Iterator[str]:
    for rank, view in enumerate(acceptor.views):
        where = _at(acceptor, rank)
        if acceptor.sees(Capability.FREE_IDS):
            yield f"free {_ids(view.free_ids())}{where}"
        elif acceptor.sees(Capability.FREE_COUNT):
            yield f"free: {view.free_count()} blocks{where}"
        if acceptor.sees(Capability.USED_COUNT):
            yield f"used: {view.used_count()} blocks{where}"
        if acceptor.sees(Capability.CACHED_KEYS):
            yield from (f"cached {name} at {block}{where}" for name, block in _named(acceptor, view.cached()))


def _shown_units(acceptor: AnyAcceptor) -> Iterator[str]:
    if not isinstance(acceptor, PoolAcceptor):
        return
    target = acceptor.target
    for rank in range(acceptor.config.num_ranks):
        linear = acceptor.config.has_linear_state
        slots = f", free slots {_ids(target.free_state_slots(rank))}" if linear else ""
        yield f"rank {rank}: free single blocks {_ids(target.free_single_blocks(rank))}{slots}"
        saved = _named(acceptor, target.checkpoints(rank)) if linear else ()
        yield from (f"rank {rank}: checkpoint {name} in slot {slot}" for name, slot in saved)


def _shown_pages(acceptor: AnyAcceptor) -> Iterator[str]:
    if isinstance(acceptor, PagedAcceptor):
        yield f"mapped pages {_ids(acceptor.target.mapped_pages())}"


def _shown_hosts(acceptor: AnyAcceptor) -> Iterator[str]:
    if not isinstance(acceptor, TieredAcceptor):
        return
    target = acceptor.target
    for rank in range(acceptor.config.num_ranks):
        yield f"host {rank}: free {_ids(target.host_free_ids(rank))}"
        found = _named(acceptor, target.host_cached(rank))
        yield from (f"host {rank}: cached {name} at {block}" for name, block in found)
        for t in target.transfers(rank):
            ends = (t.host_block, t.device_block) if t.direction == "load" else (t.device_block, t.host_block)
            wanted = f" for {word(t.seq)}[{t.index}]" if t.seq is not None else ""
            yield f"{t.direction} from {ends[0]} to {ends[1]}{wanted}{'' if t.started else ', not begun'}"


def _model_tables(pool: AnyPool, seq: str) -> list[_Table]:
    if isinstance(pool, GroupedPool):
        return [(pool.released(seq, group), pool.table(seq, group)) for group in range(len(pool.kinds))]
    return [(0, pool.table(seq))]


def _shown_tables(acceptor: AnyAcceptor, seq: str) -> list[_Table]:
    if isinstance(acceptor, CompositeAcceptor):
        target, groups = acceptor.target, range(len(acceptor.views))
        return [(target.released(seq, group), target.block_table(seq, group)) for group in groups]
    return [(0, acceptor.target.block_table(seq))]


def _shown_sequences(acceptor: AnyAcceptor) -> Iterator[str]:
    for seq, request in acceptor.pool.requests.items():
        try:
            tables, computed = _shown_tables(acceptor, seq), acceptor.target.num_computed(seq)
            has = _shown_resources(acceptor, seq)
        except Exception as error:
            yield f"{word(seq)}: {error}"
        else:
            yield _sequence(seq, tables, computed, len(request.tokens)) + has


def _shown_resources(acceptor: AnyAcceptor, seq: str) -> str:
    if not isinstance(acceptor, PoolAcceptor) or acceptor.target.rank(seq) is None:
        return ""
    target = acceptor.target
    slot = target.state_slot(seq) if acceptor.config.has_linear_state else None
    return f"; rank {target.rank(seq)}, single block {target.single_block(seq)}" + (f", slot {slot}" if slot else "")


def chain_text(chain: Chain) -> str:
    """A chain as the language writes it, with its context where it has one."""
    context = context_of(chain)
    parts = {f: getattr(context, f) for f in context.__struct_fields__}
    extra = [f"{name}={value}" for name, value in parts.items() if value not in (None, 0, ())]
    return f"[{' '.join(ranges(chain_tokens(chain)))}]" + (f" ({' '.join(extra)})" if extra else "")


def _named(acceptor: AnyAcceptor, entries: Mapping[bytes, int]) -> list[tuple[str, int]]:
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


def _blocks(table: Sequence[int]) -> str:
    return f"blocks {' '.join(map(str, table))}" if table else "no blocks"


def _ids(ids: Any) -> str:
    return " ".join(ranges(sorted(ids))) or "none"


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= _LIMIT else [*lines[:_LIMIT], f"and {len(lines) - _LIMIT} more"]
