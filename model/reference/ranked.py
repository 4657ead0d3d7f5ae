"""`ModelPoolTarget`: the model of a pool of ranks behind the target protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np

from kvspec.model import conformance
from kvspec.model.conformance import CacheEvent, Capability, Form, MisuseError, PoolConfig, Tags, advance
from kvspec.model.executable import Part, RankedPool, Way
from kvspec.model.reference.base import POOLS, Reference, expect_form, key_of, keys_of, removed
from kvspec.model.world import Chain

OF_POOLS: Final = frozenset(Capability) - conformance.OF_VARIANTS - {Capability.FORK}

_UNREADABLE: Final = -1
"""What is in a slot while it is copied to."""


class ModelPoolTarget(Reference[RankedPool]):
    """A pool of ranks whose behaviour is the spec's.

    Args:
        config: sizes and options, of a pool.
        seed: decide at random, by this seed; without one the lowest number and the oldest key are taken.
        hit_limit: the longest hit, without linear state.
        capabilities: what it shows; less than everything serves to test the acceptor.
        watch: re-evaluate the invariants of the spec after each event.

    Raises:
        ValueError: the config is not that of a pool.
    """

    form: Form = Form.POOLS

    def __init__(
        self,
        config: PoolConfig,
        *,
        seed: int | None = None,
        hit_limit: Literal["all", "all_but_one"] = "all_but_one",
        capabilities: frozenset[Capability] = OF_POOLS,
        watch: bool = False,
    ) -> None:
        expect_form(config, self.form)
        self._pools = POOLS[watch]
        pool = self._pools.take(config)
        super().__init__(config, pool, seed=seed, hit_limit=hit_limit, capabilities=capabilities)
        ranks = range(config.num_ranks)
        self._cells = np.zeros((config.num_ranks, config.num_blocks, config.block_size), dtype=np.int64)
        self._states = [[_UNREADABLE] * config.num_state_slots for _ in ranks]
        self._published: list[dict[Chain, None]] = [{} for _ in ranks]
        self._events: list[list[CacheEvent]] = [[] for _ in ranks]
        self._handles: dict[int, tuple[int, int]] = {}

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self._pools.give(self._pool)

    # -- allocate ------------------------------------------------------------------------------------------------

    def allocate_shared(self, seq: str) -> int:
        """Come to a rank if something can be hit there; how many tokens are left of the hit after trimming."""
        self._request(seq)
        if self._pool.size(seq):
            raise MisuseError(f"allocate_shared {seq}: it has blocks already")
        way = self._way(seq, 0)
        if way is None or not way.kept:
            return 0
        self._enter(seq, way, 0)
        return way.kept * self.config.block_size

    def allocate(self, seq: str, num_tokens: int) -> bool:
        """Rank, single block, live slot, hits, growth; all of them or nothing."""
        self._check_room(seq, num_tokens)
        if num_tokens < self._pool.requests[seq].computed:
            raise MisuseError(f"allocate {seq}: room for less than it has computed")
        if self._pool.size(seq):
            return self._extend(seq, num_tokens)
        need = self._pool.blocks_for(num_tokens)
        way = self._way(seq, need)
        if way is not None:
            self._enter(seq, way, need)
        return way is not None

    def _way(self, seq: str, need: int) -> Way | None:
        """How to come, if there is a way: the first that may be taken, or any."""
        way = self._one(self._pool.ways(seq, need, self.hit_limit))
        return None if way.lacks else way

    def _enter(self, seq: str, way: Way, need: int) -> None:
        """The stages of a call that will not fail."""
        pool, rank = self._pool, way.rank
        assert rank is not None
        single, slot = pool.single(seq), pool.slot(seq)
        if pool.rank(seq) is None:
            pool.choose(seq, rank)
        pool.begin(seq, need)
        if way.victim is not None:
            pool.evict_state(rank, way.victim)
        pool.take_single(seq, self._lowest(pool.free_singles(rank)) if single is None else single)
        if self.config.has_linear_state:
            slot = self._lowest(pool.free_slots(rank)) if slot is None else slot
            pool.take_slot(seq, slot)
            self._states[rank][slot] = 0
        pool.mount(seq, way.hits)
        self._grow(seq, need)
        pool.admit(seq)

    def _extend(self, seq: str, num_tokens: int) -> bool:
        """More blocks for a request that has some, and copies of those that it would overwrite for others."""
        shared, need = self._pool.writes_shared(seq, num_tokens), self._pool.blocks_for(num_tokens)
        if not self._fits(seq, self._missing(seq, num_tokens) + len(shared)):
            return False
        for index in shared:
            self._copy(seq, index)
        self._pool.begin(seq, need)
        self._grow(seq, need)
        self._pool.admit(seq)
        return True

    def _grow(self, seq: str, need: int) -> None:
        while self._pool.size(seq) < need:
            self._pool.grow(seq, self._free_block(seq))

    def _copy(self, seq: str, index: int) -> None:
        source, target = self._pool.block(seq, index), self._free_block(seq)
        self._pool.copy(seq, index, target)
        cells = self._memory(seq)
        cells[target] = cells[source]

    # -- other operations ----------------------------------------------------------------------------------------

    def write(self, batch: Sequence[tuple[str, Tags]]) -> None:
        """Cells get their contents, and live states go on over the same tokens."""
        self._open()
        if len({seq for seq, _ in batch}) != len(batch):
            raise MisuseError("write: a sequence is named twice")
        for seq, tags in batch:
            self._check_write(seq, len(tags))
            if len(tags) and (self._pool.waits(seq) or self._pool.is_saving(seq)):
                raise MisuseError(f"write {seq}: its state is to be restored, or is being saved")
        for seq, tags in batch:
            if not len(tags):
                continue
            self._fill(seq, tags)
            self._pool.write(seq, len(tags))
            if self.config.has_linear_state:
                self._step(seq, tags)

    def _step(self, seq: str, tags: Tags) -> None:
        """The recurrent state goes on over the tokens of a step."""
        self._put(seq, advance(self._state(seq), tags))

    def fork(self, parent: str, child: str) -> None:
        """Always an error: two sequences cannot have one single block."""
        raise MisuseError("fork: there is no fork in a pool")

    def truncate(self, seq: str, num_tokens: int) -> None:
        """Forget tokens at the end; computed falls to where the sequence can go on, and blocks behind it go."""
        self._check_room(seq, num_tokens)
        pool = self._pool
        computed = pool.requests[seq].computed
        behind = num_tokens
        if num_tokens < computed:
            behind = computed = self._go_on(seq, num_tokens)
        pool.truncate(seq, num_tokens, computed)
        if not computed and pool.slot(seq) is not None:
            self._put(seq, 0)
        pool.give_back_to(seq, pool.blocks_for(behind))

    def _go_on(self, seq: str, num_tokens: int) -> int:
        """Where a sequence goes on that has computed more tokens than are left."""
        if self.config.has_linear_state:
            return next(iter(self._pool.resumes(seq, num_tokens)), 0)
        index = num_tokens // self.config.block_size
        holders = self._pool.part(seq).holders[self._pool.block(seq, index)]
        return index * self.config.block_size if len(holders) > 1 else num_tokens

    def evict(self, num_blocks: int, rank: int = 0) -> int:
        """Drop keys of a rank whose blocks nobody else holds."""
        self._part(rank)
        if num_blocks < 0:
            raise MisuseError(f"evict: {num_blocks} blocks")
        return self._evict(rank, num_blocks)

    def reset(self) -> bool:
        """Drop all keys, and all checkpoints that nobody waits for."""
        self._open()
        for part, published, events in zip(self._pool.parts(), self._published, self._events, strict=True):
            events += [removed(chain, part) for chain in published]
            published.clear()
        self._pool.reset()
        return True

    def hold(self, block_id: int, rank: int = 0) -> int:
        """One more holder of a live block."""
        if not self._part(rank).holders.get(block_id):
            raise MisuseError(f"hold: block {block_id} of rank {rank} is not live")
        self._last_handle += 1
        self._pool.hold(rank, block_id, str(self._last_handle))
        self._handles[self._last_handle] = rank, block_id
        return self._last_handle

    def release(self, handle: int) -> None:
        """One holder less."""
        self._open()
        if handle not in self._handles:
            raise MisuseError(f"release: handle {handle} holds nothing")
        self._pool.unhold(*self._handles.pop(handle), str(handle))

    # -- states --------------------------------------------------------------------------------------------------

    def save_start(self, seq: str) -> bool:
        """Reserve a slot and begin the copy, where a checkpoint of the computed tokens makes sense."""
        computed = self._request(seq).computed
        if self._pool.slot(seq) is None or self._pool.waits(seq) or self._pool.is_saving(seq):
            raise MisuseError(f"save_start {seq}: it has no state that could be copied now")
        if not computed or computed % self.config.stride or not self.config.enable_prefix_cache:
            return False
        slot = self._slot_to_save(seq)
        if slot is not None:
            self._pool.save_start(seq, slot)
        return slot is not None

    def _slot_to_save(self, seq: str) -> int | None:
        """A slot for a checkpoint, unless there is one of these tokens, or none can be had."""
        pool, rank = self._pool, self._rank_of(seq)
        key = pool.stands(seq)
        if key in pool.checkpoints(rank) or key in pool.pending(rank):
            return None
        if not pool.free_slots(rank):
            if not (idle := pool.idle_checkpoints(rank)):
                return None
            pool.evict_state(rank, self._one(idle))
        return self._lowest(pool.free_slots(rank))

    def save_finish(self, seq: str, ok: bool) -> None:
        """The copy is done, or has failed."""
        self._request(seq)
        slot = self._pool.saving(seq)
        if slot is None:
            raise MisuseError(f"save_finish {seq}: it is not being saved")
        if ok:
            self._states[self._rank_of(seq)][slot] = self._state(seq)
        self._pool.save_finish(seq, ok)

    def restore_start(self, seq: str) -> None:
        """Begin to copy the pinned checkpoint; nobody can read the live slot meanwhile."""
        self._request(seq)
        if not self._pool.waits(seq) or self._pool.is_restoring(seq):
            raise MisuseError(f"restore_start {seq}: it does not wait for that")
        self._pool.restore_start(seq)
        self._put(seq, _UNREADABLE)

    def restore_finish(self, seq: str, ok: bool) -> None:
        """The copy is done, or has failed."""
        self._request(seq)
        if not self._pool.is_restoring(seq):
            raise MisuseError(f"restore_finish {seq}: it is not being restored")
        if ok:
            rank = self._rank_of(seq)
            self._put(seq, self._states[rank][self._pool.checkpoints(rank)[self._pool.stands(seq)]])
        self._pool.restore_finish(seq, ok)

    # -- observations --------------------------------------------------------------------------------------------

    def rank(self, seq: str) -> int | None:
        """Its rank."""
        self._request(seq)
        return self._pool.rank(seq)

    def single_block(self, seq: str) -> int | None:
        """Its single block."""
        self._request(seq)
        return self._pool.single(seq)

    def state_slot(self, seq: str) -> int | None:
        """Its live slot."""
        self._request(seq)
        return self._pool.slot(seq)

    def state(self, seq: str) -> int:
        """What is in its live slot."""
        self._request(seq)
        if self._pool.slot(seq) is None or self._pool.waits(seq):
            raise MisuseError(f"state {seq}: it has no state to be read")
        return self._state(seq)

    def free_single_blocks(self, rank: int) -> set[int]:
        """Single ids that nobody has."""
        self._part(rank)
        return set(self._pool.free_singles(rank))

    def free_state_slots(self, rank: int) -> set[int]:
        """State slots that nobody has."""
        self._part(rank)
        return set(self._pool.free_slots(rank))

    def checkpoints(self, rank: int) -> Mapping[bytes, int]:
        """Matchable checkpoints and their slots."""
        self._part(rank)
        return {key_of(chain): slot for chain, slot in self._pool.checkpoints(rank).items()}

    def free_ids(self, rank: int = 0) -> set[int]:
        """Free ids."""
        return set(self._part(rank).free)

    def free_count(self, rank: int = 0) -> int:
        """How many are free."""
        return len(self._part(rank).free)

    def used_count(self, rank: int = 0) -> int:
        """How many are held by sequences."""
        return self._part(rank).used

    def ref_count(self, block_id: int, rank: int = 0) -> int:
        """How many hold the block."""
        return len(self._part(rank).holders.get(block_id, ()))

    def cached(self, rank: int = 0) -> Mapping[bytes, int]:
        """Keys and their blocks."""
        return keys_of(self._part(rank))

    def drain_events(self, rank: int = 0) -> Sequence[CacheEvent]:
        """What happened to keys since the last call."""
        self._part(rank)
        events, self._events[rank] = self._events[rank], []
        return events

    # -- choices -------------------------------------------------------------------------------------------------

    def _free_block(self, seq: str) -> int:
        """A free block where the sequence is; an idle key gives way if there is none."""
        part = self._pool.part(seq)
        if not part.free:
            self._evict(self._rank_of(seq), 1)
        return self._lowest(part.free)

    def _evict(self, rank: int, num_blocks: int) -> int:
        """Drop up to num_blocks idle keys, the oldest first or any; the number of blocks that became free."""
        part = self._pool.parts()[rank]
        idle = [chain for chain in self._published[rank] if len(part.holders[part.entry[chain]]) == 1]
        if self._random is not None:
            self._random.shuffle(idle)
        for chain in idle[:num_blocks]:
            del self._published[rank][chain]
            self._events[rank].append(removed(chain, part))
            self._pool.evict(rank, chain)
        return min(num_blocks, len(idle))

    # -- small things --------------------------------------------------------------------------------------------

    def _part(self, rank: int) -> Part:
        self._open()
        if not 0 <= rank < self.config.num_ranks:
            raise MisuseError(f"rank {rank} of {self.config.num_ranks}")
        return self._pool.parts()[rank]

    def _rank_of(self, seq: str) -> int:
        return self._pool.rank(seq) or 0

    def _memory(self, seq: str) -> Tags:
        found: Tags = self._cells[self._rank_of(seq)]
        return found

    def _note(self, seq: str, index: int) -> None:
        rank, chain = self._rank_of(seq), self._pool.key(seq, index)
        self._published[rank][chain] = None
        block = self._pool.parts()[rank].entry[chain]
        self._events[rank].append(CacheEvent("stored", key_of(chain), block))

    def _state(self, seq: str) -> int:
        return self._states[self._rank_of(seq)][self._pool.slot(seq) or 0]

    def _put(self, seq: str, state: int) -> None:
        self._states[self._rank_of(seq)][self._pool.slot(seq) or 0] = state
