"""What a pool has beside blocks: ranks, single blocks, state slots and states, compared and explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from kvspec.model.acceptor.comparing import not_drained, same_ids
from kvspec.model.acceptor.judging import Look
from kvspec.model.acceptor.operating import Operating
from kvspec.model.acceptor.views import RankView
from kvspec.model.compiled import StepError
from kvspec.model.conformance import (
    CacheEvent,
    Capability,
    MisuseError,
    PoolConfig,
    PoolTarget,
    Target,
    TargetError,
    advance,
)
from kvspec.model.executable import RankedPool
from kvspec.model.promises import POOL_CHAPTER, POOL_STEP_FAMILIES, Family, Violation
from kvspec.model.world import Chain


class Resources(Operating[RankedPool]):
    """Follows the resources of a pool.

    Raises:
        TargetError: the target does not show what a pool must show.
    """

    chapter = POOL_CHAPTER
    step_families = POOL_STEP_FAMILIES
    target: PoolTarget

    def __init__(self, target: Target, config: PoolConfig, pool: RankedPool, every: int) -> None:
        shown = cast(PoolTarget, target)
        super().__init__(target, config, pool, every, [RankView(shown, rank) for rank in range(config.num_ranks)])
        self._linear, self._caches = config.has_linear_state, config.enable_prefix_cache
        self._subject: str | None = None
        self._places: set[int] | None = None
        self._states: dict[str, tuple[int, int]] = {}
        lacking = [c for c in (Capability.POOL, Capability.LINEAR_STATE)[: 1 + self._linear] if not self.sees(c)]
        if lacking:
            raise TargetError(f"lacks the capability {lacking[0]}, without which this pool cannot be judged")
        if self._hides and config.enable_prefix_cache:
            needed = "one of them is needed to judge a host tier"
            if not config.has_host_tier:
                needed = "only pools without a prefix cache can be judged so (--no-cache; no-cache in a scenario)"
            raise TargetError(f"shows neither events, cached keys, free ids nor reference counts: {needed}")

    # -- isolation of ranks --------------------------------------------------------------------------------------

    def rank_of(self, seq: str) -> int:
        return self.pool.rank(seq) or 0

    def _concerns(self, ranks: Iterable[int | None] | None, subject: str | None = None) -> None:
        """The next call is about these ranks, or about all: nothing may change on any other.

        Args:
            ranks: None for all; a None among them is the rank that a sequence has not got.
            subject: a sequence that may get its rank by the call.
        """
        self._subject = subject
        self._places = None if ranks is None else {rank for rank in ranks if rank is not None}

    def _at(self) -> set[int] | None:
        """The ranks that the call that is explained is about; a newcomer's as soon as it has one."""
        came = None if self._subject is None else self.pool.rank(self._subject)
        if self._places is not None and came is not None:
            self._places.add(came)
        return self._places

    def _elsewhere(self, rank: int) -> bool:
        at = self._at()
        return at is not None and rank not in at

    def _unchanged(self, rule: str) -> None:
        if not self._at():
            self._places = None  # that a call did something is worse than where it did it
        super()._unchanged(rule)

    def _drain_of(self, rank: int) -> list[CacheEvent]:
        found = super()._drain_of(rank)
        if found and self._elsewhere(rank):
            raise self._isolation(rank, f"block {found[0].block_id} was {found[0].kind}")
        return found

    def _evicted(self, rank: int, chain: Chain) -> None:
        if self._elsewhere(rank):
            raise self._isolation(rank, f"the key {chain} has gone")
        super()._evicted(rank, chain)

    def _isolation(self, rank: int, what: str) -> Violation:
        about = " and ".join(f"rank {at}" for at in sorted(self._at() or ())) or "a sequence without a rank"
        return Violation(Family.RANK, "isolation", f"the call is about {about}, but on rank {rank} {what}")

    def _compare_rank(self, rank: int) -> None:
        try:
            super()._compare_rank(rank)
            self._compare_resources(rank)
        except Violation as violation:
            if self._at() and self._elsewhere(rank):
                raise self._isolation(rank, violation.what) from violation
            raise

    # -- comparing -----------------------------------------------------------------------------------------------

    def _compare_resources(self, rank: int) -> None:
        same_ids("single block", self.target.free_single_blocks(rank), self.pool.free_singles(rank))
        if self._linear:
            self._compare_checkpoints(rank)
            same_ids("state slot", self.target.free_state_slots(rank), self.pool.free_slots(rank))

    def _compare_checkpoints(self, rank: int) -> None:
        shown, known = self.target.checkpoints(rank), self.pool.checkpoints(rank)
        expected = {self._keys.get(chain): slot for chain, slot in known.items()}
        if shown == expected:
            return
        slots = {slot: chain for chain, slot in known.items()}
        for key, slot in shown.items():
            if slot not in slots:
                what = f"slot {slot} can be matched, and no checkpoint was saved there"
                raise Violation(Family.STATE_POSITION, "checkpoint_saved", what)
            if self._chains.get(key) is not slots[slot]:
                what = f"the checkpoint of {slots[slot]} in slot {slot} is found under another key"
                raise Violation(Family.STATE_POSITION, "checkpoint_key", what)
        lost = next(slot for slot in slots if slot not in shown.values())
        raise Violation(Family.STATE_POSITION, "checkpoint_lost", f"the checkpoint in slot {lost} cannot be matched")

    def _compare_sequence(self, seq: str) -> None:
        super()._compare_sequence(seq)
        target, pool = self.target, self.pool
        if target.rank(seq) != pool.rank(seq):
            what = f"{seq} has rank {target.rank(seq)}, expected {pool.rank(seq)}"
            raise Violation(Family.RANK, "rank_kept", what)
        self._same_unit(seq, "single block", target.single_block(seq), pool.single(seq))
        if self._linear:
            self._same_unit(seq, "live slot", target.state_slot(seq), pool.slot(seq))
            self._same_state(seq)

    def _same_unit(self, seq: str, name: str, shown: int | None, known: int | None) -> None:
        if shown != known:
            what = f"{seq} has {_one(name, shown)}, expected {_one(name, known)}"
            raise Violation(Family.HOLDERS, "unit_kept", what)

    def _same_state(self, seq: str) -> None:
        """The live slot holds the state behind the computed tokens, if the sequence need not be restored."""
        if not self.sees(Capability.STATES) or self.pool.slot(seq) is None:
            return
        if self.pool.waits(seq):
            self._unreadable(seq)
            return
        found, wanted = self.target.state(seq), self._state(seq)
        self.counts["states"] += 1
        if found != wanted:
            computed = self.pool.requests[seq].computed
            twice = computed and found == advance(wanted, self._wanted(seq, computed)[computed - 1 :])
            more = ", it has gone over the last one twice" if twice else ""
            what = f"the state of {seq} (slot {self.pool.slot(seq)}) is not that of its first {computed} tokens{more}"
            raise Violation(Family.STATE_POSITION, "state", what)

    def _unreadable(self, seq: str) -> None:
        try:
            found = f"it is {self.target.state(seq)}"
        except MisuseError:
            return
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        what = f"the state of {seq} is still to be restored, and the target has one to be read: {found}"
        raise Violation(Family.STATE_POSITION, "waiting_readable", what)

    def _state(self, seq: str) -> int:
        """The state behind the computed tokens."""
        computed = self.pool.requests[seq].computed
        done, state = self._states.get(seq, (0, 0))
        if done > computed:
            done, state = 0, 0
        if done < computed:
            state = advance(state, self._wanted(seq, computed)[done:computed])
            self._states[seq] = computed, state
        return state

    def state_behind(self, seq: str, num_tokens: int) -> int:
        """The state behind the first num_tokens tokens of a sequence."""
        return advance(0, self._wanted(seq, num_tokens)[:num_tokens])

    def _forget_contents(self, seq: str) -> None:
        super()._forget_contents(seq)
        self._states.pop(seq, None)

    def _sweep(self) -> None:
        super()._sweep()
        for rank in (-1, self.config.num_ranks):
            self._nothing_there(self._of_ranks(), "rank", rank)

    def _of_ranks(self) -> Iterator[Look]:
        """All that is shown of one rank."""
        yield Look("free_single_blocks", Capability.POOL)
        yield Look("free_ids", Capability.FREE_IDS)
        yield Look("free_count", Capability.FREE_COUNT)
        yield Look("used_count", Capability.USED_COUNT)
        yield Look("ref_count", Capability.REF_COUNTS, (1,))
        yield Look("cached", Capability.CACHED_KEYS)
        yield Look("drain_events", Capability.EVENTS)
        if self._linear:
            yield Look("free_state_slots", Capability.LINEAR_STATE)
            yield Look("checkpoints", Capability.LINEAR_STATE)

    def drained(self) -> None:
        """When everything was given back and all keys are dropped, everything is free."""
        super().drained()
        units = [("single blocks", self.config.num_single_blocks - 1, self.pool.free_singles)]
        if self._linear:
            units.append(("state slots", self.config.num_state_slots - 1, self.pool.free_slots))
        for name, usable, free in units:
            for rank in range(self.config.num_ranks):
                if len(free(rank)) != usable:
                    not_drained(len(free(rank)), usable, name)

    # -- explaining ----------------------------------------------------------------------------------------------

    def _follow_checkpoints(self) -> None:
        """Checkpoints that cannot be matched any more were evicted."""
        if not self._linear:
            return
        for rank in range(self.config.num_ranks):
            shown = set(self.target.checkpoints(rank).values())
            known = self._late_of(self.pool.evict_state, rank)
            for chain, slot in self.pool.checkpoints(rank).items():
                if slot in shown or chain in known:
                    continue
                if self._elsewhere(rank):
                    raise self._isolation(rank, f"the checkpoint in slot {slot} has gone")
                self._dropped_by(self.pool.evict_state, rank, chain)

    def _events(self, seq: str | None = None) -> list[CacheEvent]:
        found = super()._events(seq)
        self._follow_checkpoints()
        return found

    def _let_go(self) -> None:
        self._follow_checkpoints()
        super()._let_go()

    def _unit(self, seq: str, name: str, shown: int | None, had: int | None) -> int:
        """The single block or live slot of a sequence that was granted room."""
        if shown is None:
            raise Violation(Family.HOLDERS, "unit_given", f"{seq} was granted room and has no {name}")
        if had is not None and shown != had:
            self._same_unit(seq, name, shown, had)
        if shown == 0:
            raise Violation(Family.RESERVED, "padding_handed_out", f"{seq} was given the padding as its {name}")
        self.counts["units"] += 1
        return shown

    def _step_words(self, error: StepError) -> Sequence[str]:
        first, rest = error.arguments[0] if error.arguments else "", error.arguments[1:]
        rank = first if isinstance(first, int) else self.rank_of(str(first))
        part = self.part(rank) if 0 <= rank < self.config.num_ranks else None
        match error.event.name:
            case "choose_rank":
                able = ", ".join(f"rank {r}: {len(p.free)} blocks" for r, p in enumerate(self.pool.parts()))
                full = [r for r in range(self.config.num_ranks) if not self.pool.free_singles(r)]
                return [f"free are {able}", *(f"rank {r} has no free single block" for r in full)]
            case "grow" | "hold" | "unhold":
                return [f"block {rest[0]} is {self.holders(rest[0], rank)}"]
            case "copy_on_write":
                blocks = (self.pool.block(first, rest[0]), rest[1])
                return [f"block {block} is {self.holders(block, rank)}" for block in blocks]
            case "mount" | "evict" if part is not None and rest[-1] in part.cached:
                block = part.entry[rest[-1]]
                return [f"block {block} is {self.holders(block, rank)}"]
            case "take_single":
                return [f"single block {rest[0]} is that of {self._owner_of_single(rank, rest[0])}"]
            case "take_slot" | "reserve":
                return [f"slot {rest[0]} is {self.slot_words(rank, rest[0])}"]
            case "evict_state":
                return [f"slot {self.pool.checkpoints(rank)[rest[0]]} is waited for"]
        return []

    def _owner_of_single(self, rank: int, single: int) -> str:
        return next((s for s in self.pool.requests if self.pool.rank(s) == rank and self.pool.single(s) == single), "?")

    def slot_words(self, rank: int, slot: int) -> str:
        """What a state slot is, in words."""
        if slot == 0:
            return "padding"
        here = [s for s in self.pool.requests if self.pool.rank(s) == rank]
        live = next((f"the live slot of {s}" for s in here if self.pool.slot(s) == slot), "")
        saved = next((f"a checkpoint of {s} on the way" for s in here if self.pool.saving(s) == slot), "")
        kept = next((f"the checkpoint of {c}" for c, at in self.pool.checkpoints(rank).items() if at == slot), "")
        return live or saved or kept or "free"



def _one(name: str, unit: int | None) -> str:
    return f"no {name}" if unit is None else f"{name} {unit}"
