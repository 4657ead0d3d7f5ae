"""The model of a pool of ranks: programs over the events of chapter `pool`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from typing import Any, Final, NamedTuple

from kvspec.model.compiled import Compiled
from kvspec.model.conformance import PoolConfig
from kvspec.model.executable import texts
from kvspec.model.executable.part import Part, Under, Users, less, more
from kvspec.model.executable.tables import Tables
from kvspec.model.world import NOTHING, Chain, Chains, pool_statics
from kvspec.spec.language.terms import Path

_NONE: Final[frozenset[Any]] = frozenset()
_KV: Final = ("ranks", "kv")
_STATE: Final = ("ranks", "state")


class _RankPart:
    """The blocks and keys of one rank of a pool."""

    def __init__(self, state: Mapping[Path, Any], rank: int, config: PoolConfig) -> None:
        self.rank = rank
        self.users = Users()
        self.holders: Under[int, set[Any]] = Under(state[*_KV, "cache", "blocks", "holders"], rank)
        self.entry: Under[Chain, int] = Under(state[*_KV, "cache", "entry"], rank)
        self._free: Mapping[int, set[int]] = state[*_KV, "cache", "blocks", "free"]
        self._cached: Mapping[int, set[Chain]] = state[*_KV, "cache", "cached"]
        self._num_blocks = config.num_blocks

    @property
    def free(self) -> Set[int]:
        return self._free.get(self.rank, _NONE)

    @property
    def cached(self) -> Set[Chain]:
        return self._cached.get(self.rank, _NONE)

    @property
    def used(self) -> int:
        return self.users.used

    @property
    def reclaimable(self) -> int:
        return self._num_blocks - 1 - len(self.free) - self.users.busy


class Way(NamedTuple):
    """How a request that comes could get what it needs, or why it could not.

    Attributes:
        rank: where; None if no rank can be chosen.
        victim: the checkpoint that gives way for its live slot.
        hits: blocks of its prefix that are published.
        kept: how many of these stay after trimming.
        lacks: what cannot be had; empty if there is everything.
    """

    rank: int | None
    victim: Chain | None = None
    hits: int = 0
    kept: int = 0
    lacks: str = ""


class RankedPool(Tables):
    """The executable model of a pool: a request has its resources on one rank.

    A call of ``allocate`` is `choose`, `begin`, `take_single`, `take_slot`, `mount`, `grow` and `admit`, in this order;
    evictions may stand between them.
    """

    def __init__(self, config: PoolConfig, watch: bool = True, ghosts: bool = True) -> None:
        super().__init__(config)
        carriers = {
            "Rank": lambda: range(self.config.num_ranks),
            "Seq": lambda: self.requests,  # one that is unknown has nothing
            "Block": lambda: range(self.config.num_blocks),
            "Single": lambda: range(self.config.num_single_blocks),
            "StateSlot": lambda: range(self.config.num_state_slots),
        }
        self.machine = Compiled(texts.pool(), pool_statics(self.chains, config), carriers, watch, ghosts)
        self.fire = self.machine.events
        self._at_first()

    def restart(self, config: PoolConfig) -> None:
        """An empty pool of another size, in the first state."""
        self.config = config
        self.chains = Chains(config.block_size)
        self.machine.restart(pool_statics(self.chains, config))
        self.requests.clear()
        self._at_first()

    def _at_first(self) -> None:
        state = self.machine.state
        self._parts = [_RankPart(state, rank, self.config) for rank in range(self.config.num_ranks)]
        self._saves: dict[str, int] = {}
        self._stride_blocks = self.config.stride // self.config.block_size

    # -- what there is: sequences --------------------------------------------------------------------------------

    def rank(self, seq: str) -> int | None:
        """The rank that the sequence has."""
        found: int | None = self._cell(("rank",), seq) if seq in self.machine.state[("placed",)] else None
        return found

    def is_in(self, seq: str) -> bool:
        """The sequence has its single block, and what else it needs."""
        rank = self.rank(seq)
        return rank is not None and seq in self._set(("ranks", "housed"), rank)

    def single(self, seq: str) -> int | None:
        """Its single block."""
        found: int | None = self._cell(("ranks", "single_of"), (self.rank(seq), seq)) if self.is_in(seq) else None
        return found

    def slot(self, seq: str) -> int | None:
        """Its live slot."""
        rank = self.rank(seq)
        if rank is None or seq not in self._set((*_STATE, "running"), rank):
            return None
        found: int = self._cell((*_STATE, "live"), (rank, seq))
        return found

    def waits(self, seq: str) -> bool:
        """Its checkpoint is still to be restored."""
        return seq in self._set((*_STATE, "waiting"), self.rank(seq))

    def is_restoring(self, seq: str) -> bool:
        """The copy of its checkpoint has begun."""
        return seq in self._set((*_STATE, "restoring"), self.rank(seq))

    def is_saving(self, seq: str) -> bool:
        """A copy of its live slot has begun."""
        return seq in self._saves

    def saving(self, seq: str) -> int | None:
        """The slot to which its live slot is being copied."""
        return self._saves.get(seq)

    def size(self, seq: str) -> int:
        """Blocks in the table."""
        found: int = self.machine.state[*_KV, "size"].get((self.rank(seq), seq), 0)
        return found

    def block(self, seq: str, index: int) -> int:
        """The block at a place of the table."""
        found: int = self._cell((*_KV, "table"), (self.rank(seq), seq, index))
        return found

    def content(self, seq: str, block: int) -> Chain:
        """What is in a block, where the sequence is."""
        found: Chain = self.machine.state[*_KV, "cache", "content"].get((self.rank(seq), block), NOTHING)
        return found

    def taker(self, seq: str, block: int) -> str | None:
        """Who took a block first, where the sequence is."""
        found: str | None = self.machine.state[*_KV, "taker"].get((self.rank(seq), block))
        return found

    # -- what there is: ranks ------------------------------------------------------------------------------------

    def parts(self) -> list[Part]:
        """Rank by rank."""
        return [*self._parts]

    def part(self, seq: str) -> Part:
        """The rank of the sequence; the first while it has none."""
        return self._parts[self.rank(seq) or 0]

    def free_singles(self, rank: int) -> Set[int]:
        """Single blocks that nobody has."""
        return self._set(("ranks", "single", "ids", "free"), rank)

    def free_slots(self, rank: int) -> Set[int]:
        """State slots that nobody has."""
        return self._set((*_STATE, "slots", "ids", "free"), rank)

    def checkpoints(self, rank: int) -> dict[Chain, int]:
        """Checkpoints that can be matched, and their slots."""
        return {key: self._cell((*_STATE, "entry"), (rank, key)) for key in self._set((*_STATE, "cached"), rank)}

    def idle_checkpoints(self, rank: int) -> list[Chain]:
        """Those that nobody waits for, the least recently used first."""
        pins = self.machine.state[*_STATE, "pins"]
        newer = Counter(older for older, _ in self._set((*_STATE, "line", "older"), rank))
        found = [key for key, slot in self.checkpoints(rank).items() if not pins.get((rank, slot))]
        return sorted(found, key=lambda key: -newer[key])

    def pending(self, rank: int) -> Set[Chain]:
        """Keys of the checkpoints that are on the way."""
        key = self.machine.state[*_STATE, "key"]
        return {key[rank, slot] for seq, slot in self._saves.items() if self.rank(seq) == rank}

    def best_ranks(self) -> list[int]:
        """Ranks that a newcomer may get."""
        able = [r for r in range(self.config.num_ranks) if self.free_singles(r) or not self.config.has_linear_state]
        most = max((len(self._parts[r].free) for r in able), default=0)
        return [r for r in able if len(self._parts[r].free) == most]

    def resumable(self, seq: str, index: int) -> bool:
        """A state can be restored behind this block of the sequence, if it was saved."""
        return (index + 1) % self._stride_blocks == 0

    def limit(self, seq: str, hit_limit: str) -> int:
        """How many tokens of the sequence may be hit: with linear state one is left over."""
        known = len(self.requests[seq].tokens)
        return known if hit_limit == "all" and not self.config.has_linear_state else max(0, known - 1)

    def kept(self, seq: str, hits: int, saved: Set[Chain]) -> int:
        """What the policy keeps of so many blocks that were hit, where these checkpoints can be matched."""
        if not self.config.has_linear_state:
            return hits
        kept = 0
        for index in range(hits):
            if not self.resumable(seq, index):
                continue
            if self.key(seq, index) in saved:
                kept = index + 1
            elif self.config.trim == "contiguous":
                break
        return kept

    # -- what may become of a call -------------------------------------------------------------------------------

    def ways(self, seq: str, need: int, hit_limit: str) -> list[Way]:
        """All that may become of a call of a sequence without blocks that is to have so many: a way for each rank that
        may be chosen and each checkpoint that may give way."""
        rank = self.rank(seq)
        ranks = self.best_ranks() if rank is None else [rank]
        if not ranks:
            return [Way(None, lacks="no rank has a free single block")]
        return [way for r in ranks for way in self._ways_on(seq, r, need, hit_limit)]

    def _ways_on(self, seq: str, rank: int, need: int, hit_limit: str) -> list[Way]:
        victims: list[Chain | None] = [None]
        if not self.is_in(seq):
            if not self.free_singles(rank):
                return [Way(rank, lacks=f"rank {rank} has no free single block")]
            if self.config.has_linear_state and not self.free_slots(rank):
                victims = [*self.idle_checkpoints(rank)]
        if not victims:
            return [Way(rank, lacks=f"no state slot of rank {rank} is free or can be evicted")]
        return [self._way(seq, rank, victim, need, hit_limit) for victim in victims]

    def _way(self, seq: str, rank: int, victim: Chain | None, need: int, hit_limit: str) -> Way:
        part = self._parts[rank]
        hits = self.hits(seq, self.limit(seq, hit_limit), part) if self.config.enable_prefix_cache else 0
        kept = self.kept(seq, hits, self._set((*_STATE, "cached"), rank) - {victim})
        idle_kept = sum(1 for i in range(kept) if len(part.holders[part.entry[self.key(seq, i)]]) == 1)
        missing, there = max(0, need - kept), len(part.free) + part.reclaimable - idle_kept
        lacks = f"{missing} blocks are missing, {there} of rank {rank} are free or can be evicted"
        return Way(rank, victim, hits, kept, lacks if missing > there else "")

    # -- allocate ------------------------------------------------------------------------------------------------

    def choose(self, seq: str, rank: int) -> None:
        """A sequence without a rank gets one."""
        self.fire["choose_rank"](seq, rank)

    def begin(self, seq: str, need: int) -> None:
        """A call begins: the table is to have so many blocks. One that runs, and has no block, comes anew."""
        if self.is_in(seq) and not self.size(seq):
            self._leave(seq)
        known = len(self.requests[seq].tokens)
        last = max(0, known - 1) // self.config.block_size
        self.fire["begin"](seq, need, self._left(seq, last, known))

    def take_single(self, seq: str, single: int) -> None:
        """It gets its single block."""
        self.fire["take_single"](seq, single)

    def take_slot(self, seq: str, slot: int) -> None:
        """It gets its live slot."""
        self.fire["take_slot"](seq, slot)

    def mount(self, seq: str, hits: int) -> int:
        """It hits so many blocks, and what the policy does not keep of them is given back; how many are left."""
        rank = self._placed(seq)
        part = self._parts[rank]
        for index in range(hits):
            key = self.key(seq, index)
            self.fire["mount"](seq, key)
            more(part.users.sequences, part.entry[key])
        kept = self.kept(seq, hits, self._set((*_STATE, "cached"), rank))
        self._keep(seq, kept)
        while self.config.has_linear_state and self.size(seq) > kept:
            self._drop("trim", seq)
        if self.config.has_linear_state:
            self.fire["trimmed"](seq)
        self.requests[seq].computed = kept * self.config.block_size
        return kept

    def _keep(self, seq: str, kept: int) -> None:
        if not self.config.has_linear_state:
            self.fire["keep_all"](seq)
        elif kept:
            self.fire[f"pin_{self.config.trim}"](seq, kept)
        else:
            self.fire[f"keep_none_{self.config.trim}"](seq)

    def grow(self, seq: str, block: int) -> None:
        """The table grows by a free block."""
        self.fire["grow"](seq, block)
        more(self._parts[self._placed(seq)].users.sequences, block)

    def admit(self, seq: str) -> None:
        """The call succeeds."""
        self.fire["admit"](seq)

    def copy(self, seq: str, index: int, target: int) -> None:
        """A shared block is replaced by a copy, before a call begins."""
        users, source = self._parts[self._placed(seq)].users.sequences, self.block(seq, index)
        self.fire["copy_on_write"](seq, index, target)
        less(users, source)
        more(users, target)

    def give_back_to(self, seq: str, size: int) -> None:
        """Give back the blocks at the end of the table, behind all that is computed, until `size` are left."""
        while self.size(seq) > size:
            self._drop("give_back", seq)

    # -- states --------------------------------------------------------------------------------------------------

    def write(self, seq: str, count: int) -> None:
        """Compute the next `count` tokens; the recurrent state follows when the step ends."""
        super().write(seq, count)
        if count and self.config.has_linear_state:
            self.fire["end_step"](seq)

    def save_start(self, seq: str, slot: int) -> None:
        """A slot is reserved for a checkpoint of the computed tokens, and the copy begins."""
        self.fire["reserve"](seq, slot, self.stands(seq))
        self.fire["copy_started"](seq, slot)
        self._saves[seq] = slot

    def save_finish(self, seq: str, ok: bool) -> None:
        """The copy is done, or has failed."""
        slot = self._saves.pop(seq)
        for name in ("copy_done", "commit") if ok else ("copy_failed", "abort_save"):
            self.fire[name](seq, slot)

    def restore_start(self, seq: str) -> None:
        """The pinned checkpoint begins to be copied."""
        self.fire["restore_started"](seq)

    def restore_finish(self, seq: str, ok: bool) -> None:
        """The copy is done, or has failed."""
        self.fire["restore_done" if ok else "restore_failed"](seq)

    def stands(self, seq: str) -> Chain:
        """The tokens that the sequence has computed."""
        found: Chain = self.machine.state["ranks", "stands"].get((self.rank(seq), seq), NOTHING)
        return found

    def resumes(self, seq: str, num_tokens: int) -> list[int]:
        """Where a sequence can go on of which num_tokens tokens are left: behind its checkpoints, the deepest first."""
        rank, stride = self._placed(seq), self._stride_blocks
        saved = self._set((*_STATE, "cached"), rank)
        places = range(stride, num_tokens // self.config.block_size + 1, stride)
        return [n * self.config.block_size for n in reversed(places) if self.key(seq, n - 1) in saved]

    def truncate(self, seq: str, num_tokens: int, computed: int) -> None:
        """Forget the tokens behind the first num_tokens; what is computed falls to `computed`. Blocks stay."""
        request = self.requests[seq]
        if computed < request.computed:
            self._give_up_copies(seq)
            for index, end in self._ends(computed, request.computed):
                self.fire["truncate"](seq, self._left(seq, index, end))
            if self.config.has_linear_state:
                self.fire["resume" if computed else "restart"](seq)
            request.computed = computed
        request.cut(num_tokens, self.config.block_size)

    # -- keys and others -----------------------------------------------------------------------------------------

    def evict(self, rank: int, key: Chain) -> None:
        """A key is forgotten whose block nobody else holds."""
        self.fire["evict"](rank, key)

    def evict_state(self, rank: int, key: Chain) -> None:
        """A checkpoint is forgotten that nobody waits for."""
        self.fire["evict_state"](rank, key)

    def reset(self) -> None:
        """All keys are forgotten, and all checkpoints that nobody waits for."""
        for rank in range(self.config.num_ranks):
            self.fire["reset"](rank)
            for key in self.idle_checkpoints(rank):
                self.evict_state(rank, key)

    def hold(self, rank: int, block: int, pin: str) -> None:
        """Somebody outside takes a handle of a live block."""
        self.fire["hold"](rank, block, pin)
        more(self._parts[rank].users.outside, block)

    def unhold(self, rank: int, block: int, pin: str) -> None:
        """Somebody outside gives a handle back."""
        self.fire["unhold"](rank, block, pin)
        less(self._parts[rank].users.outside, block)

    # -- the end -------------------------------------------------------------------------------------------------

    def preempt(self, seq: str) -> None:
        """Give everything back but the rank; the tokens stay known."""
        if self.is_in(seq):
            self._leave(seq)
        self.requests[seq].computed = 0

    def forget(self, seq: str) -> None:
        """Give everything back; the sequence is gone."""
        self.preempt(seq)
        if self.rank(seq) is not None:
            self.fire["forget"](seq)
        del self.requests[seq]

    def _leave(self, seq: str) -> None:
        rank, size = self._placed(seq), self.size(seq)
        self._give_up_copies(seq)
        self.fire["leave"](seq)
        while self.size(seq):
            self._drop("leave_block", seq)
        if self.slot(seq) is not None:
            self.fire["leave_slot"](seq)
        self.fire["leave_single"](seq)
        self.fire["left"](seq)
        state = self.machine.state
        for index in range(size):  # nobody reads cells behind the end of a table
            del state[*_KV, "table"][rank, seq, index], state[*_KV, "text"][rank, seq, index]

    def _give_up_copies(self, seq: str) -> None:
        """Copies that run will not be finished."""
        if self.is_saving(seq):
            self.save_finish(seq, ok=False)
        if self.is_restoring(seq):
            self.restore_finish(seq, ok=False)

    # -- small things --------------------------------------------------------------------------------------------

    def _placed(self, seq: str) -> int:
        rank = self.rank(seq)
        assert rank is not None, f"{seq} has no rank"
        return rank

    def _drop(self, event: str, seq: str) -> None:
        """The last block of the table is given back."""
        block = self.block(seq, self.size(seq) - 1)
        self.fire[event](seq)
        less(self._parts[self._placed(seq)].users.sequences, block)

    def _cell(self, path: Path, key: Any) -> Any:
        return self.machine.state[path][key]

    def _set(self, path: Path, rank: int | None) -> Set[Any]:
        found: Set[Any] = self.machine.state[path].get(rank, _NONE)
        return found
