"""Keys of the prefix cache: what a target reports or lets be seen of them, as events of the model."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvspec.model.acceptor.judging import Judging, P, View
from kvspec.model.compiled import StepError
from kvspec.model.conformance import CacheEvent, Capability, PoolConfig, Target
from kvspec.model.promises import Family, Violation
from kvspec.model.world import Chain

_SHOW_EVICTION: Final = (Capability.EVENTS, Capability.CACHED_KEYS, Capability.FREE_IDS, Capability.REF_COUNTS)

Drop = Callable[[int, Chain], None]
"""The event that forgets a key, or a checkpoint, of a rank."""


class KeyJudging(Judging[P]):
    """Follows the cache.

    Attributes:
        events: the changes of the cache by the last operation.
    """

    def __init__(self, target: Target, config: PoolConfig, pool: P, every: int, views: Sequence[View]) -> None:
        super().__init__(target, config, pool, every, views)
        self.events: list[CacheEvent] = []
        self._keys: dict[Chain, bytes] = {}
        self._chains: dict[bytes, Chain] = {}
        self._late: list[tuple[Drop, int, Chain]] = []
        """Evictions that are not possible yet, as far as the call is explained."""
        self._evicted_now: list[tuple[int, Chain]] = []
        """Keys that were evicted by the call that is explained."""
        self._hides = not any(map(self.sees, _SHOW_EVICTION))
        """A key of an idle block may be gone without a trace."""

    @abstractmethod
    def _evict(self, rank: int, chain: Chain) -> None:
        """The event that forgets a key."""

    def _drain(self) -> list[CacheEvent]:
        self.events = [e for rank in range(len(self.views)) for e in self._drain_of(rank)]
        return self.events

    def _drain_of(self, rank: int) -> list[CacheEvent]:
        return list(self.views[rank].drain_events()) if self.sees(Capability.EVENTS) else []

    def _events(self, seq: str | None = None) -> list[CacheEvent]:
        """Make the cache changes that the target reports as events of the model."""
        self.events = []
        if not self.sees(Capability.EVENTS):
            self._infer()
            return self.events
        for rank in range(len(self.views)):
            found = self._drain_of(rank)
            for e in found:
                if e.kind == "stored":
                    self._stored(rank, e, seq)
                else:
                    self._evicted(rank, self._chain_of(rank, e))
            self.events += found
        return self.events

    def _stored(self, rank: int, e: CacheEvent, seq: str | None) -> None:
        place = None if seq is None or rank != self.rank_of(seq) else self._place_of(seq, e.block_id)
        if seq is None or place is None:
            raise Violation(Family.PUBLISH_AFTER_WRITE, "stored_by_owner", f"block {e.block_id} got a key by no call")
        if (place + 1) * self.config.block_size > self.pool.requests[seq].computed:
            what = f"block {e.block_id} ({seq}[{place}]) got a key before it was completely written"
            raise Violation(Family.PUBLISH_AFTER_WRITE, "publish", what)
        chain = self.pool.key(seq, place)
        self.pool.publish(seq, place)
        self.counts["published"] += 1
        self._learn(chain, e.key)

    def _place_of(self, seq: str, block: int) -> int | None:
        """Where the block stands in the sequence's table."""
        holders = self.part(self.rank_of(seq)).holders.get(block, ())
        return next((h[2] for h in holders if h[0] == "seq_at" and h[1] == seq), None)

    def _learn(self, chain: Chain, key: bytes) -> None:
        """One key for one content: the target's key and the chain must determine each other."""
        if self._keys.setdefault(chain, key) != key:
            raise Violation(Family.KEY, "equal_content_equal_key", f"{chain} has two keys")
        if self._chains.setdefault(key, chain) is not chain:
            what = f"{chain} and {self._chains[key]} (or their contexts) share a key"
            raise Violation(Family.KEY, "equal_key_equal_content", what)

    def _chain_of(self, rank: int, e: CacheEvent) -> Chain:
        """What a key that is reported as removed led to."""
        part, chain = self.part(rank), self._chains.get(e.key)
        there = chain is not None and chain in part.cached and chain not in self._late_of(self._evict, rank)
        if e.kind != "removed" or chain is None or not there:
            raise Violation(Family.MAP_TRUTH, "removed_was_stored", f"a key of block {e.block_id} that was not there")
        if part.entry[chain] != e.block_id:
            what = f"the key of block {part.entry[chain]} is reported as removed from block {e.block_id}"
            raise Violation(Family.MAP_TRUTH, "removed_block", what)
        return chain

    def _evicted(self, rank: int, chain: Chain) -> None:
        self._evicted_now.append((rank, chain))
        self._dropped_by(self._evict, rank, chain)

    # A call that lets go of something may evict it behind that. Only the end of the call says whether it could.

    def _dropped_by(self, drop: Drop, rank: int, chain: Chain) -> None:
        """Something was evicted by the call that is explained, now or behind what is not explained yet."""
        self.counts["evictions"] += 1
        self._late.append((drop, rank, chain))
        self._retry()

    def _late_of(self, drop: Drop, rank: int) -> list[Chain]:
        return [chain for made, of, chain in self._late if made == drop and of == rank]

    def _retry(self) -> None:
        left, self._late = self._late, []
        for late in left:
            try:
                late[0](*late[1:])
            except StepError:
                self._late.append(late)

    def _let_go(self) -> None:
        """Somebody has let go of something: what was evicted behind that is explained, too."""
        self._infer()
        self._retry()

    def _all_explained(self) -> None:
        for drop, rank, chain in self._late:
            drop(rank, chain)
        self._late.clear()
        self._evicted_now.clear()

    def _infer(self) -> None:
        if self.sees(Capability.EVENTS):
            return
        for rank in range(len(self.views)):
            if self.part(rank).cached:
                known = self._late_of(self._evict, rank)
                for chain in self._dropped(rank):
                    if chain not in known:
                        self._evicted(rank, chain)

    def _dropped(self, rank: int) -> list[Chain]:
        part, view = self.part(rank), self.views[rank]
        if self.sees(Capability.CACHED_KEYS):
            left = set(view.cached().values())
            return [c for c in part.cached if part.entry[c] not in left]
        if self.sees(Capability.FREE_IDS):
            free = view.free_ids()
            return [c for c in part.cached if part.entry[c] in free]
        if self.sees(Capability.REF_COUNTS):
            return [c for c in part.cached if not view.ref_count(part.entry[c])]
        return []

    def _hidden_eviction(self, rank: int, block: int) -> None:
        """A target that shows no events has evicted what it hands out, if only the cache held it."""
        if self.sees(Capability.EVENTS):
            return
        held = self.part(rank).holders.get(block, ())
        if len(held) == 1 and next(iter(held))[0] == "cache_of":
            self._evicted(rank, next(iter(held))[1])

    def _published(self, seq: str) -> None:
        """After a call that publishes, every full computed block has its key."""
        if not self.config.enable_prefix_cache:
            return
        missing = [place for place in self.pool.publishable(seq) if not self._gone_again(seq, place)]
        if self.sees(Capability.EVENTS):
            if missing:
                place = missing[0]
                what = f"{seq}[{place}] (block {self.pool.block(seq, place)}) is full and written, and has no key"
                raise Violation(Family.MAP_TRUTH, "published", what)
            return
        for place in missing:
            self.pool.publish(seq, place)
            self.counts["published"] += 1

    def _gone_again(self, seq: str, place: int) -> bool:
        """Whether the key of a place was there, of another block, and was evicted behind the publication."""
        rank, block = self.rank_of(seq), self.pool.block(seq, place)
        if (rank, self.pool.key(seq, place)) not in self._evicted_now:
            return False
        if self.sees(Capability.EVENTS):
            return True
        if self.sees(Capability.CACHED_KEYS):
            return block not in self.views[rank].cached().values()
        held = len(self.part(rank).holders[block])
        return self.sees(Capability.REF_COUNTS) and self.views[rank].ref_count(block) == held

    def _forgotten(self, rank: int, found: Sequence[CacheEvent]) -> None:
        """After a reset every key of the rank was reported as removed."""
        dropped = {self._chain_of(rank, e) for e in found}
        missing = self.part(rank).cached - dropped if self.sees(Capability.EVENTS) else None
        if missing:
            raise Violation(Family.MAP_TRUTH, "reset_forgets", f"{next(iter(missing))} was not reported as removed")

    def _compare_keys(self, rank: int) -> None:
        shown, part = self.views[rank].cached(), self.part(rank)
        entry, cached = part.entry, part.cached
        if self.sees(Capability.EVENTS) and shown == {self._keys.get(c): entry[c] for c in cached}:
            return
        ids, known = Counter(shown.values()), Counter(entry[c] for c in cached)
        for block in ids.keys() | known.keys():
            if ids[block] != known[block]:
                what = f"block {block} has {ids[block]} keys, expected {known[block]}"
                raise Violation(Family.MAP_TRUTH, "cached_keys", what)
        if shown and not self.sees(Capability.EVENTS):
            self._learn_shown(rank, shown)
        for key, block in shown.items():
            chain = self._chains.get(key)
            if chain is not None and (chain not in cached or entry[chain] != block):
                raise Violation(Family.MAP_TRUTH, "cached_keys", f"the key of {chain} leads to block {block}")

    def _learn_shown(self, rank: int, shown: Mapping[bytes, int]) -> None:
        """Keys that were not reported as events are known by their blocks."""
        part = self.part(rank)
        chains = {part.entry[c]: c for c in part.cached}
        for key, block in shown.items():
            self._learn(chains[block], key)
