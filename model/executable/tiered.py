"""The model of a pool with a host tier: chapter `pool` for what the device has, and chapter `hierarchy` beside it.

Each chapter says a part of what may happen: `pool` of ranks, tables and tokens, `hierarchy` of copies between the tiers
of a rank and of what can be found where. Both follow the device blocks, so a step has to be allowed by both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from kvspec.model.compiled import Broken, Compiled
from kvspec.model.conformance import Context, PoolConfig
from kvspec.model.executable import texts
from kvspec.model.executable.part import Part
from kvspec.model.executable.ranked import RankedPool
from kvspec.model.executable.request import Request
from kvspec.model.world import Chain, tier_statics

CopyId = int | tuple[str, int]
"""A number, or the name of a prefetch and a place in it."""

Pin = tuple[str, CopyId]
"""A copy in the chapter: its direction, and what tells it from others."""


class Copy(NamedTuple):
    """A copy that has not ended.

    Attributes:
        pin: its name in the chapter.
        rank: where it runs.
        direction: ``load``, ``offload`` or ``fetch``.
        device, host: its ends; a fetch has none on the device.
        key: what is copied.
        seq, place: what a load is for.
    """

    pin: Pin
    rank: int
    direction: str
    device: int | None
    host: int
    key: Chain
    seq: str | None = None
    place: int = 0


@dataclass
class Prefetch:
    """Leading blocks of some tokens that a store was asked for.

    Attributes:
        request: the tokens.
        rank: where to.
        planned: places and host blocks of those that are to come; None while the store has not answered.
        is_old: all keys were dropped since it began.
    """

    request: Request
    rank: int
    planned: list[tuple[int, int]] | None = None
    is_old: bool = False


class HostPart:
    """The host blocks of one rank, and its keys there."""

    def __init__(self, machine: Compiled, num_blocks: int) -> None:
        state = machine.state
        self.free: Set[int] = state["host", "blocks", "free"]
        self.holders: Mapping[int, Set[Any]] = state["host", "blocks", "holders"]
        self.cached: Set[Chain] = state["host", "cached"]
        self.entry: Mapping[Chain, int] = state["host", "entry"]
        self._num_blocks = num_blocks

    @property
    def used(self) -> int:
        """Blocks held by at least one sequence: sequences have none on the host."""
        return 0

    @property
    def reclaimable(self) -> int:
        """Blocks that only the cache holds."""
        return sum(1 for key in self.cached if len(self.holders[self.entry[key]]) == 1)


class TieredPool(RankedPool):
    """The executable model of a pool with a host tier.

    Attributes:
        tiers: the chapter `hierarchy` and its state, by rank.
        copies: those that have not ended, in the order of their plans.
        begun: the transfers among them that have begun.
        prefetches: those that have not ended, by name.
        asleep: the device has no memory.
    """

    def __init__(self, config: PoolConfig, watch: bool = True, ghosts: bool = True) -> None:
        self._watch, self._ghosts = watch, ghosts
        self.tiers: list[Compiled] = []
        super().__init__(config, watch, ghosts)

    def _at_first(self) -> None:
        super()._at_first()
        statics = tier_statics(self.chains, self.config)
        for tier in self.tiers:
            tier.restart(statics)
        while len(self.tiers) < self.config.num_ranks:
            carriers = {
                "Block": lambda: range(max(self.config.num_blocks, self.config.num_host_blocks)),
                "Seq": lambda: self.requests,
                "Pin": lambda: [copy.pin for copy in self.copies.values()],
            }
            self.tiers.append(Compiled(texts.hierarchy(), statics, carriers, self._watch, self._ghosts))
        self._hosts = [HostPart(tier, self.config.num_host_blocks) for tier in self.tiers[: self.config.num_ranks]]
        self.copies: dict[CopyId, Copy] = {}
        self.begun: set[int] = set()
        self.prefetches: dict[str, Prefetch] = {}
        self.asleep = False
        self._new: set[str] = set()

    # -- what there is -------------------------------------------------------------------------------------------

    def hosts(self) -> list[Part]:
        """The host tier, rank by rank."""
        return [*self._hosts]

    def transfers(self) -> list[int]:
        """Copies between the tiers that have not ended, in the order of their plans."""
        return [number for number in self.copies if isinstance(number, int)]

    def is_idle(self) -> bool:
        """No sequence and no copy has a block of the device."""
        usable = self.config.num_blocks - 1
        return all(len(part.free) + part.reclaimable == usable for part in self._parts)

    def loads(self, seq: str) -> list[Copy]:
        """The copies that a sequence waits for."""
        return [copy for copy in self.copies.values() if copy.seq == seq]

    def is_loading(self, seq: str) -> bool:
        """The sequence waits for a copy."""
        return any(copy.seq == seq for copy in self.copies.values())

    def is_computed(self, seq: str, index: int) -> bool:
        """The block of a place has all its tokens, computed or loaded."""
        tier, size = self._tier(seq).state, self.config.block_size
        known = (index + 1) * size <= len(self.requests[seq].tokens)
        return known and (seq, index) in tier["computed",] and tier["key",][seq, index] is self.key(seq, index)

    def is_old(self, seq: str) -> bool:
        """The sequence has something, and came before the last reset."""
        return self.size(seq) > 0 and seq not in self._new

    def leading(self, seq: str) -> int:
        """Tokens of the leading blocks that are complete, or what is computed if that is more."""
        computed, size = self.requests[seq].computed, self.config.block_size
        index = computed // size
        while index < self.size(seq) and self.is_computed(seq, index):
            index += 1
        return max(computed, index * size)

    def writes_shared(self, seq: str, num_tokens: int) -> list[int]:
        """As for every pool; that a copy fills a block for the sequence itself is not sharing."""
        loading = {copy.place for copy in self.loads(seq)}
        return [index for index in super().writes_shared(seq, num_tokens) if index not in loading]

    def publishable(self, seq: str) -> list[int]:
        """As for every pool; none of a sequence that came before the last reset: what it computes rests on what it
        had."""
        return super().publishable(seq) if seq in self._new else []

    def loadable(self, seq: str) -> list[int]:
        """Places behind what is computed that the host has the tokens of, and that nobody else holds."""
        rank = self.rank(seq)
        if rank is None or self.asleep:
            return []
        known, size = len(self.requests[seq].tokens), self.config.block_size
        loading = {copy.place for copy in self.loads(seq)}
        found = []
        for index in range(self.blocks_for(self.requests[seq].computed), min(self.size(seq), known // size)):
            alone = len(self._parts[rank].holders[self.block(seq, index)]) == 1
            if alone and index not in loading and not self.is_computed(seq, index):
                found.append(index)
        return [index for index in found if self.key(seq, index) in self._hosts[rank].cached]

    def offloadable(self, seq: str) -> list[Chain]:
        """Published blocks of a sequence that the host neither has nor is getting."""
        rank = self.rank(seq)
        if rank is None:
            return []
        leaving = {c.key for c in self.copies.values() if c.direction == "offload" and c.rank == rank}
        keys = (self.key(seq, i) for i in range(self.requests[seq].computed // self.config.block_size))
        known = self._hosts[rank].cached | leaving
        return [key for key in keys if key in self._parts[rank].cached and key not in known]

    # -- tables, in both chapters --------------------------------------------------------------------------------

    def mount(self, seq: str, hits: int) -> int:
        """It comes, and hits so many blocks."""
        self._new.add(seq)
        kept = super().mount(seq, hits)
        fire = self._tier(seq).events["hit"]
        for index in range(hits):
            fire(seq, index, self.key(seq, index))
        return kept

    def grow(self, seq: str, block: int) -> None:
        """The table grows by a free block."""
        index = self.size(seq)
        super().grow(seq, block)
        self._seat(seq, index, block)

    def copy(self, seq: str, index: int, target: int) -> None:
        """A shared block is replaced by a copy, before a call begins."""
        super().copy(seq, index, target)
        self._tier(seq).events["give_back"](seq, index)
        self._seat(seq, index, target)

    def write(self, seq: str, count: int) -> None:
        """Compute the next `count` tokens, block by block."""
        size = self.config.block_size
        first = self.requests[seq].computed // size
        super().write(seq, count)
        for index in range(first, self.requests[seq].computed // size):
            self._filled(seq, index)

    def _filled(self, seq: str, index: int) -> None:
        """All tokens of a place are computed: it is for these tokens, whatever it was taken for."""
        tier, key = self._tier(seq), self.key(seq, index)
        if self.is_computed(seq, index):
            return
        if tier.state["key",][seq, index] is not key or (seq, index) in tier.state["computed",]:
            self._seat_again(seq, index)
        tier.events["write_started"](seq, index)
        tier.events["write_done"](seq, index)

    def publish(self, seq: str, index: int) -> None:
        """A full computed block gets its key."""
        super().publish(seq, index)
        self._tier(seq).events["publish"](seq, index)

    def _drop(self, event: str, seq: str) -> None:
        index = self.size(seq) - 1
        tier = self._tier(seq)
        super()._drop(event, seq)
        tier.events["give_back"](seq, index)

    def _seat(self, seq: str, index: int, block: int) -> None:
        """A place is for as many of its tokens as are known; if more become known, it is taken again (`_filled`)."""
        known, size = len(self.requests[seq].tokens), self.config.block_size
        end = max(index * size, min(known, (index + 1) * size))
        self._tier(seq).events["take"](seq, index, block, self._left(seq, index, end))

    def _seat_again(self, seq: str, index: int) -> None:
        self._tier(seq).events["give_back"](seq, index)
        self._seat(seq, index, self.block(seq, index))

    def _tier(self, seq: str) -> Compiled:
        return self.tiers[self.rank(seq) or 0]

    # -- keys ----------------------------------------------------------------------------------------------------

    def evict(self, rank: int, key: Chain) -> None:
        """A key of the device is forgotten whose block nobody else holds."""
        super().evict(rank, key)
        self.tiers[rank].events["evict_device"](key)

    def evict_host(self, rank: int, key: Chain) -> None:
        """A key of the host is forgotten whose block no copy holds."""
        self.tiers[rank].events["evict_host"](key)

    def reset(self) -> None:
        """All keys of both tiers are forgotten."""
        super().reset()
        self._new.clear()
        for prefetch in self.prefetches.values():
            prefetch.is_old = True
        for tier in self.tiers[: self.config.num_ranks]:
            tier.events["reset"]()

    def sleep(self) -> None:
        """The device memory is given up, and its keys with it."""
        super().reset()
        for tier in self.tiers[: self.config.num_ranks]:
            tier.events["sleep"]()
        self.asleep = True

    def wake(self) -> None:
        """There is device memory again."""
        for tier in self.tiers[: self.config.num_ranks]:
            tier.events["wake"]()
        self.asleep = False

    # -- copies --------------------------------------------------------------------------------------------------

    def begin_load(self, number: CopyId, seq: str, index: int) -> None:
        """What the host has of a place begins to be copied there."""
        rank, pin, key = self._placed(seq), ("load", number), self.key(seq, index)
        behind = self.requests[seq].computed <= index * self.config.block_size
        if self._tier(seq).state["key",].get((seq, index)) is not key or (behind and self.is_computed(seq, index)):
            self._seat_again(seq, index)
        self.tiers[rank].events["load_started"](pin, seq, index)
        block = self.block(seq, index)
        self._hold_end(rank, block, pin)
        self.copies[number] = Copy(pin, rank, "load", block, self._hosts[rank].entry[key], key, seq, index)

    def begin_offload(self, number: CopyId, rank: int, key: Chain, target: int) -> None:
        """The block of a key begins to be copied to a free block of the host."""
        pin = ("offload", number)
        self.tiers[rank].events["offload_started"](pin, key, target)
        block = self._parts[rank].entry[key]
        self._hold_end(rank, block, pin)
        self.copies[number] = Copy(pin, rank, "offload", block, target, key)

    def start_transfers(self) -> None:
        """All that are planned have begun."""
        self.begun.update(self.transfers())

    def end_copy(self, number: CopyId, ok: bool) -> None:
        """A copy is complete, or has failed; it lets go of both ends."""
        copy = self.copies.pop(number)
        self.begun.discard(cast(int, number))
        fire = self.tiers[copy.rank].events
        fire[f"{copy.direction}_{'done' if ok else 'failed'}"](copy.pin)
        if copy.device is not None:
            fire["release_device"](copy.pin)
            self.unhold(copy.rank, copy.device, _name(copy.pin))
        fire["release_host"](copy.pin)

    # -- from a store --------------------------------------------------------------------------------------------

    def begin_prefetch(self, name: str, tokens: Iterable[int], context: Context, rank: int) -> None:
        """A store is asked for leading blocks of these tokens."""
        self.prefetches[name] = Prefetch(Request(tokens, context), rank)

    def prefetched(self, name: str, index: int) -> Chain:
        """What a block is to have that comes to a prefetch."""
        return self.prefetches[name].request.chain(index, (index + 1) * self.config.block_size, self.chains)

    def plan_prefetch(self, name: str, more: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """More places, and the free host blocks that they come to; all that are planned."""
        prefetch = self.prefetches[name]
        planned = prefetch.planned = prefetch.planned or []
        for index, block in more:
            key, copy = self.prefetched(name, index), (name, index)
            self.tiers[prefetch.rank].events["fetch_started"](("fetch", copy), key, block)
            self.copies[copy] = Copy(("fetch", copy), prefetch.rank, "fetch", None, block, key)
            planned.append((index, block))
        return planned

    def finish_prefetch(self, name: str, num_arrived: int) -> None:
        """So many of the planned blocks have come, and no more will; what was asked for before a reset is of no use."""
        prefetch = self.prefetches.pop(name)
        for number, (index, _) in enumerate(prefetch.planned or []):
            self.end_copy((name, index), number < num_arrived and not prefetch.is_old)

    # -- what was loaded -----------------------------------------------------------------------------------------

    def go_on(self, seq: str, num_tokens: int) -> None:
        """So many tokens are computed, with what was loaded. Once no load runs, what is complete behind a gap does not
        count."""
        done = self.requests[seq].computed
        if num_tokens > done:
            super().write(seq, num_tokens - done)
        if self.is_loading(seq):
            return
        for index in range(self.requests[seq].computed // self.config.block_size, self.size(seq)):
            alone = len(self._parts[self._placed(seq)].holders[self.block(seq, index)]) == 1
            if self.is_computed(seq, index) and alone:
                self._seat_again(seq, index)

    def _hold_end(self, rank: int, block: int, pin: Pin) -> None:
        self.hold(rank, block, _name(pin))

    def stop_waiting(self, seq: str, size: int = 0) -> None:
        """The sequence waits for no copy to places from `size` on any more; those that run go on."""
        for number, copy in self.copies.items():
            if copy.seq == seq and copy.place >= size:
                self.copies[number] = copy._replace(seq=None)

    def give_back_to(self, seq: str, size: int) -> None:
        """Give back the blocks at the end of the table, until `size` are left; also those that are being filled."""
        super().give_back_to(seq, size)
        self.stop_waiting(seq, size)

    def _leave(self, seq: str) -> None:
        self.stop_waiting(seq)
        self._new.discard(seq)
        super()._leave(seq)

    def sweep(self) -> list[Broken]:
        """Every invariant of both chapters that does not hold."""
        tiers = self.tiers[: self.config.num_ranks]
        return [*super().sweep(), *(broken for tier in tiers for broken in tier.sweep())]


def _name(pin: Pin) -> str:
    return f"the {pin[0]} {pin[1]}"
