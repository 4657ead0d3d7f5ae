"""The judge of a pool of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvspec.model.acceptor.resources import Resources
from kvspec.model.conformance import Capability, MisuseError, PoolConfig, Target
from kvspec.model.executable import RankedPool
from kvspec.model.promises import Family, Violation
from kvspec.model.world import Chain


class PoolAcceptor(Resources):
    """A pool of ranks together with its judge; its operations are those of `PoolTarget`.

    Args:
        target: an instance of the target.
        config: the pool that it was made with.
        every: compare all observations after every n-th operation (0: only when `sweep` is called).
        watch: re-evaluate the spec's invariants after each event.
        pool: a new model of the pool to use, where making one each time would take too long.

    Raises:
        TargetError: the target does not show what a pool must show.

    Raises (by the operations):
        Violation: the target did something that the spec does not allow.
        MisuseError: the call was an error, as expected, and the target said so and kept its state.
    """

    def __init__(
        self, target: Target, config: PoolConfig, *, every: int = 1, watch: bool = True, pool: RankedPool | None = None
    ) -> None:
        super().__init__(target, config, pool or RankedPool(config, watch), every)

    def _judge(
        self,
        verb: str,
        arguments: tuple[object, ...],
        call: Callable[[], Any],
        explain: Callable[[Any], None],
        misuse: str | None,
        either: bool = False,
    ) -> Any:
        self._concerned(verb, arguments)
        return super()._judge(verb, arguments, call, explain, misuse, either)

    def _concerned(self, verb: str, arguments: tuple[object, ...]) -> None:
        """Which ranks a call is about, by its words."""
        match verb, arguments:
            case "reset" | "close", _:
                self._concerns(None)
            case "evict", (_, int(rank)):
                self._concerns([rank])
            case "evict", _:
                self._concerns([0])
            case "release", (str(name),):
                self._concerns([self._handles[name][2]] if name in self._handles else [])
            case "write", _:
                self._concerns(self.pool.rank(seq) for seq in arguments[::2] if isinstance(seq, str))
            case _, (str(seq), *_):
                self._concerns([self.pool.rank(seq)], seq)

    # -- room ----------------------------------------------------------------------------------------------------

    def allocate_shared(self, seq: str) -> int:
        misuse = self._unknown(seq) or (f"{seq} has blocks already" if self.pool.size(seq) else None)

        def explain(hit: int) -> None:
            self._hit_form(seq, hit)
            if not hit:
                self._nothing_hit(seq)
                return
            self._came(seq, 0)
            if hit != self.pool.requests[seq].computed:
                what = f"a hit of {hit} tokens, and {self.pool.requests[seq].computed} are computed"
                raise Violation(Family.MAP_TRUTH, "hit_length", what)

        return int(self._judge("allocate_shared", (seq,), lambda: self.target.allocate_shared(seq), explain, misuse))

    def _hit_form(self, seq: str, hit: int) -> None:
        limit = self.pool.limit(seq, self.hit_limit)
        if hit % self.config.block_size or not 0 <= hit <= limit:
            raise Violation(Family.MAP_TRUTH, "hit_length", f"a hit of {hit} tokens, expected at most {limit}")

    def _nothing_hit(self, seq: str) -> None:
        self._unchanged("refusal_changes_nothing")
        ways = self.pool.ways(seq, 0, self.hit_limit)
        if all(way.kept and not way.lacks for way in ways):
            what = f"nothing was hit; {ways[0].hits} blocks of this prefix are matchable, {ways[0].kept} to be kept"
            raise Violation(Family.MAP_TRUTH, "hit_longest", what)

    def allocate(self, seq: str, num_tokens: int) -> bool:
        misuse = self._unknown(seq) or self._out_of_known(seq, num_tokens)
        if misuse is None and num_tokens < self.pool.requests[seq].computed:
            misuse = f"room for {num_tokens} tokens of {self.pool.requests[seq].computed} computed ones"

        def explain(granted: bool) -> None:
            if not granted:
                self._refused(seq, num_tokens)
            elif self.pool.size(seq):
                self._extended(seq, num_tokens)
            else:
                self._came(seq, self.pool.blocks_for(num_tokens))
            if granted:
                self._writable(seq, num_tokens)

        call = lambda: self.target.allocate(seq, num_tokens)  # noqa: E731
        return bool(self._judge("allocate", (seq, num_tokens), call, explain, misuse))

    def _refused(self, seq: str, num_tokens: int) -> None:
        self.counts["refusals"] += 1
        self._unchanged("refusal_changes_nothing")
        if self.pool.size(seq):
            self._refused_more(seq, num_tokens)
            return
        ways = self.pool.ways(seq, self.pool.blocks_for(num_tokens), self.hit_limit)
        if not any(way.lacks for way in ways):
            part = self.pool.parts()[ways[0].rank or 0]
            what = f"{num_tokens} tokens were refused although rank {ways[0].rank} has a single block, a state slot if "
            what += f"needed, {len(part.free)} free blocks and {part.reclaimable} more that can be evicted"
            raise Violation(Family.PROGRESS, "refused_for_cause", what)

    def _extended(self, seq: str, num_tokens: int) -> None:
        """A sequence with blocks got more; a call that asks for none takes none."""
        self._events()
        self._copied(seq, self.target.block_table(seq))
        need = self.pool.blocks_for(num_tokens)
        if need > self.pool.size(seq):
            self.pool.begin(seq, need)
            self._grown(seq, need)
            self.pool.admit(seq)
        else:
            self._grown(seq, need)

    def _came(self, seq: str, need: int) -> None:
        """A sequence without blocks got all that it needs, stage by stage."""
        single, slot = self.pool.single(seq), self.pool.slot(seq)
        self._ranked(seq)
        self.pool.begin(seq, need)
        self._events()
        rank = self.rank_of(seq)
        self.pool.take_single(seq, self._unit(seq, "single block", self.target.single_block(seq), single))
        if self._linear:
            self.pool.take_slot(seq, self._unit(seq, "live slot", self.target.state_slot(seq), slot))
        hits = self.pool.hits(seq, self.pool.limit(seq, self.hit_limit), self.part(rank)) if self._caches else 0
        self._kept(seq, hits)
        kept = self.pool.mount(seq, hits)
        self.counts["hits"] += kept > 0
        self.counts["trims"] += kept < hits
        self._grown(seq, need)
        self.pool.admit(seq)
        self._read(seq, 0, kept * self.config.block_size)

    def _ranked(self, seq: str) -> None:
        """The sequence has a rank."""
        rank, had = self.target.rank(seq), self.pool.rank(seq)
        if rank is None or not 0 <= rank < self.config.num_ranks:
            raise Violation(Family.RANK, "rank_given", f"{seq} was granted room and has rank {rank}")
        if had is None:
            self.counts["ranks"] += 1
            self.pool.choose(seq, rank)
        elif rank != had:
            raise Violation(Family.RANK, "rank_kept", f"{seq} has rank {rank}, expected {had}")

    def _kept(self, seq: str, hits: int) -> None:
        """Of a hit so much is computed as the policy keeps."""
        size, shown = self.config.block_size, self.target.num_computed(seq)
        self._hit_form(seq, shown)
        kept = self.pool.kept(seq, hits, self.pool.checkpoints(self.rank_of(seq)).keys())
        if shown > hits * size:
            what = f"a hit of {shown // size} blocks; only {hits} blocks of this prefix are published"
            raise Violation(Family.MAP_TRUTH, "hit_unpublished", what)
        if shown > kept * size:
            what = f"{shown} tokens of a hit were kept; a state can be restored only behind {kept * size}"
            raise Violation(Family.STATE_POSITION, "trim_unrestorable", what)
        if shown < kept * size and self._linear:
            what = f"{shown} tokens of a hit were kept; the policy '{self.config.trim}' keeps {kept * size}"
            raise Violation(Family.STATE_POSITION, "trim_short", what)
        if shown < kept * size:
            what = f"a hit of {shown // size} blocks; {hits} blocks of this prefix are matchable"
            raise Violation(Family.MAP_TRUTH, "hit_longest", what)

    def _grown(self, seq: str, need: int) -> None:
        """The table has grown to so many blocks."""
        table, size = self.target.block_table(seq), self.pool.size(seq)
        self._roomy(seq, need * self.config.block_size, table)
        if [*table[:size]] != self.pool.table(seq):
            self._same_table(seq)
        self._taken(seq, table[size : max(size, need)])
        if len(table) > max(size, need):
            what = f"the table of {seq} has {len(table)} blocks, {need} were asked for and {size} were there or hit"
            raise Violation(Family.UNITS, "room_exact", what)

    # -- tokens --------------------------------------------------------------------------------------------------

    def _bad_write(self, seq: str, count: int) -> str | None:
        bad = super()._bad_write(seq, count)
        if bad is None and count and self.pool.waits(seq):
            return f"{count} tokens written by {seq}, which waits for its state"
        if bad is None and count and self.pool.is_saving(seq):
            return f"{count} tokens written by {seq}, whose state is being saved"
        return bad

    def may_refuse(self, seq: str, count: int) -> bool:
        if seq in self.pool.requests and (self.pool.waits(seq) or self.pool.is_saving(seq)):
            return True  # a step of no tokens
        return super().may_refuse(seq, count)

    def _written(self, seq: str) -> None:
        if self._linear:
            self._same_state(seq)

    def fork(self, parent: str, child: str) -> None:
        def explain(_: Any) -> None:
            raise AssertionError("a fork is always an error")

        misuse = "there is no fork in a pool"
        fork = getattr(self.target, "fork", _no_fork)  # a pool need not have one
        self._judge("fork", (parent, child), lambda: fork(parent, child), explain, misuse)

    def truncate(self, seq: str, num_tokens: int) -> None:
        self.needs(Capability.TRUNCATE)
        misuse = self._unknown(seq) or self._out_of_known(seq, num_tokens)

        def explain(_: Any) -> None:
            self._events()
            computed = self.pool.requests[seq].computed
            if num_tokens < computed:
                computed = self._goes_on(seq, num_tokens)
            self.pool.truncate(seq, num_tokens, computed)
            self._new_holders(seq)
            self._cut(seq, num_tokens)
            shown = len(self.target.block_table(seq))
            self.pool.give_back_to(seq, max(self.pool.blocks_for(computed), min(shown, self.pool.size(seq))))
            self._let_go()
            self._same_table(seq)

        call = lambda: self.target.truncate(seq, num_tokens)  # noqa: E731
        self._judge("truncate", (seq, num_tokens), call, explain, misuse)

    def _goes_on(self, seq: str, num_tokens: int) -> int:
        """Where a sequence goes on that has computed more tokens than are left."""
        shown, size = self.target.num_computed(seq), self.config.block_size
        index = num_tokens // size
        shared = len(self.pool.part(seq).holders[self.pool.block(seq, index)]) > 1
        places = {num_tokens, index * size if shared else num_tokens}
        if self._linear:
            places = {*self.pool.resumes(seq, num_tokens), 0}
        if shown not in places:
            told = " or ".join(map(str, sorted(places)))
            what = f"{seq} goes on behind {shown} of {num_tokens} tokens that are left, expected {told}"
            raise Violation(Family.STATE_POSITION, "truncate_position", what)
        return shown

    def _cut(self, seq: str, num_tokens: int) -> None:
        super()._cut(seq, num_tokens)
        self._states.pop(seq, None)

    # -- states --------------------------------------------------------------------------------------------------

    def save(self, seq: str) -> bool:
        """A save that is done at once; False if it was refused."""
        started = self.save_start(seq)
        if started:
            self.number -= 1  # it is one operation
            self.save_finish(seq, True)
        return started

    def save_start(self, seq: str) -> bool:
        misuse = self._unknown(seq)
        if misuse is None and (self.pool.slot(seq) is None or self.pool.waits(seq) or self.pool.is_saving(seq)):
            misuse = f"{seq} has no live slot, waits, or is being saved"

        def explain(started: bool) -> None:
            if started:
                self._save_started(seq)
            else:
                self._save_refused(seq)

        return bool(self._judge("save_start", (seq,), lambda: self.target.save_start(seq), explain, misuse))

    def _save_refused(self, seq: str) -> None:
        self.counts["refusals"] += 1
        self._unchanged("refusal_changes_nothing")
        rank = self.rank_of(seq)
        if self._no_save(seq) is None and (self.pool.free_slots(rank) or self.pool.idle_checkpoints(rank)):
            what = f"a checkpoint of {self.pool.requests[seq].computed} tokens was refused, and there is a slot for it"
            raise Violation(Family.PROGRESS, "save_for_cause", what)

    def _no_save(self, seq: str) -> Violation | None:
        """Why no checkpoint of the computed tokens may be made, whatever slots there are."""
        computed, rank, key = self.pool.requests[seq].computed, self.rank_of(seq), self.pool.stands(seq)
        if not computed or computed % self.config.stride or not self._caches:
            what = f"a checkpoint of {computed} tokens was begun, with a stride of {self.config.stride}"
            return Violation(Family.UNITS, "save_position", what if self._caches else f"{what} and without keys")
        if key in self.pool.checkpoints(rank) or key in self.pool.pending(rank):
            what = f"a second checkpoint of the first {computed} tokens of {seq} was begun"
            return Violation(Family.STATE_POSITION, "save_once", what)
        return None

    def _save_started(self, seq: str) -> None:
        wrong = self._no_save(seq)
        if wrong is not None:
            raise wrong
        self._events()
        rank = self.rank_of(seq)
        taken = self.pool.free_slots(rank) - self.target.free_state_slots(rank)
        if len(taken) != 1:
            what = f"a save has taken {len(taken)} free slots, expected one"
            raise Violation(Family.NO_REUSE_WHILE_USED, "save_slot", what)
        self.pool.save_start(seq, next(iter(taken)))

    def save_finish(self, seq: str, ok: bool = True) -> None:
        misuse = self._unknown(seq)
        if misuse is None and not self.pool.is_saving(seq):
            misuse = f"{seq} is not being saved"

        def explain(_: Any) -> None:
            slot, rank, chain = self.pool.saving(seq), self.rank_of(seq), self.pool.stands(seq)
            self._events()
            self.pool.save_finish(seq, ok)
            self._let_go()
            shown = {at: key for key, at in self.target.checkpoints(rank).items()}
            if ok and slot in shown:
                self._learn(chain, shown[slot])
                self.counts["saves"] += 1

        self._judge("save_finish", (seq, ok), lambda: self.target.save_finish(seq, ok), explain, misuse)

    def restore(self, seq: str) -> None:
        """A restore that is done at once."""
        self.restore_start(seq)
        self.number -= 1  # it is one operation
        self.restore_finish(seq, True)

    def restore_start(self, seq: str) -> None:
        misuse = self._unknown(seq)
        if misuse is None and (not self.pool.waits(seq) or self.pool.is_restoring(seq)):
            misuse = f"{seq} does not wait for a restore to begin"

        def explain(_: Any) -> None:
            self._events()
            self.pool.restore_start(seq)

        self._judge("restore_start", (seq,), lambda: self.target.restore_start(seq), explain, misuse)

    def restore_finish(self, seq: str, ok: bool = True) -> None:
        misuse = self._unknown(seq)
        if misuse is None and not self.pool.is_restoring(seq):
            misuse = f"{seq} is not being restored"

        def explain(_: Any) -> None:
            self._events()
            self.pool.restore_finish(seq, ok)
            self._let_go()
            self.counts["restores"] += ok
            self._same_state(seq)

        self._judge("restore_finish", (seq, ok), lambda: self.target.restore_finish(seq, ok), explain, misuse)

    # -- ranks ---------------------------------------------------------------------------------------------------

    def _call_evict(self, num_blocks: int, rank: int) -> int:
        return self.target.evict(num_blocks, rank)

    def _forgotten_states(self, rank: int) -> None:
        """After a reset only checkpoints that somebody waits for are left."""
        shown = set(self.target.checkpoints(rank).values())
        idle = {self.pool.checkpoints(rank)[chain] for chain in self.pool.idle_checkpoints(rank)}
        if idle & shown:
            what = f"the checkpoint in slot {min(idle & shown)} of rank {rank} can be matched after a reset"
            raise Violation(Family.MAP_TRUTH, "reset_forgets", what)

    def _reset_done(self) -> None:
        for rank in range(self.config.num_ranks if self._linear else 0):
            self._forgotten_states(rank)
        super()._reset_done()

    # -- events --------------------------------------------------------------------------------------------------

    def _evict(self, rank: int, chain: Chain) -> None:
        self.pool.evict(rank, chain)

    def _take(self, seq: str, block: int) -> None:
        self.pool.grow(seq, block)

    def _hold(self, rank: int, block: int, name: str) -> None:
        self.pool.hold(rank, block, name)

    def _unhold(self, rank: int, block: int, name: str) -> None:
        self.pool.unhold(rank, block, name)


def _no_fork(parent: str, child: str) -> None:
    raise MisuseError("there is no fork in a pool")
