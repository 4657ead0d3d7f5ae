"""The judge of a composite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from kvspec.model.acceptor.judging import Look
from kvspec.model.acceptor.operating import Operating
from kvspec.model.acceptor.views import GroupView
from kvspec.model.compiled import StepError
from kvspec.model.conformance import (
    CacheEvent,
    Capability,
    CompositeTarget,
    MisuseError,
    PoolConfig,
    Tags,
    Target,
    TargetError,
)
from kvspec.model.executable import GroupedPool
from kvspec.model.promises import COMPOSITE_CHAPTER, COMPOSITE_STEP_FAMILIES, Family, Violation
from kvspec.model.world import Chain


class CompositeAcceptor(Operating[GroupedPool]):
    """A composite together with its judge; its operations are those of `CompositeTarget`.

    Group by group it is looked at as a pool is, rank by rank. When a table slides is the target's choice.

    Args:
        target: an instance of the target.
        config: the composite that it was made with.
        every: compare all observations after every n-th operation (0: only when `sweep` is called).
        watch: re-evaluate the spec's invariants after each event.
        pool: a new model of the composite to use, where making one each time would take too long.

    Raises (by the operations):
        Violation: the target did something that the spec does not allow.
        MisuseError: the call was an error, as expected, and the target said so and kept its state.

    Raises:
        TargetError: the target does not show what has been released.
    """

    chapter = COMPOSITE_CHAPTER
    step_families = COMPOSITE_STEP_FAMILIES
    target: CompositeTarget

    def __init__(
        self, target: Target, config: PoolConfig, *, every: int = 1, watch: bool = True, pool: GroupedPool | None = None
    ) -> None:
        shown = cast(CompositeTarget, target)
        views = [GroupView(shown, group) for group in range(len(config.manager_types))]
        super().__init__(target, config, pool or GroupedPool(config, watch), every, views)
        self._groups = range(len(views))
        if not self.sees(Capability.GROUPS):
            raise TargetError(f"lacks the capability {Capability.GROUPS}, without which no composite can be judged")

    # -- operations ----------------------------------------------------------------------------------------------

    def allocate_shared(self, seq: str) -> int:
        misuse = self._unknown(seq)
        if misuse is None and any(self.pool.size(seq, group) for group in self._groups):
            misuse = f"{seq} has blocks already"

        def explain(hit: int) -> None:
            self._events()
            if hit:
                what = f"a hit of {hit} tokens, and nothing is published in a composite"
                raise Violation(Family.MAP_TRUTH, "hit_unpublished", what)

        return int(self._judge("allocate_shared", (seq,), lambda: self.target.allocate_shared(seq), explain, misuse))

    def allocate(self, seq: str, num_tokens: int) -> bool:
        misuse = self._unknown(seq) or self._out_of_known(seq, num_tokens)

        def explain(granted: bool) -> None:
            self._events()
            self._slid()
            if granted:
                self._granted(seq, num_tokens)
            else:
                self._refused(seq, num_tokens)

        call = lambda: self.target.allocate(seq, num_tokens)  # noqa: E731
        return bool(self._judge("allocate", (seq, num_tokens), call, explain, misuse))

    def _granted(self, seq: str, num_tokens: int) -> None:
        """All tables have grown as far as they must, and no further."""
        grown = [self._grown(seq, num_tokens, group) for group in self._groups]
        self.counts["units"] += 1
        if num_tokens <= self.pool.covered(seq):
            return
        self.pool.begin(seq, num_tokens)
        for group, blocks in enumerate(grown):
            for block in blocks:
                self.pool.stage(group, block)
                self.counts["taken"] += 1
        self.pool.commit()

    def _grown(self, seq: str, num_tokens: int, group: int) -> Sequence[int]:
        """The blocks by which a table has grown."""
        had, missing = self.pool.size(seq, group), self.pool.missing(seq, num_tokens, group)
        places = self._places(seq, group)
        new = list(self.target.block_table(seq, group))[had - self.pool.released(seq, group) :]
        words = f"the table of {seq}{self._in(group)} has {places} places"
        if places < had:
            raise Violation(Family.HOLDERS, "table_kept", f"{words}, and had {had}")
        if places < had + missing:
            size = self.pool.kinds[group].block_size
            what = f"{num_tokens} tokens were granted, {words} of {size} tokens"
            raise Violation(Family.PROGRESS, "room_granted", what)
        if places > had + missing:
            raise Violation(Family.UNITS, "room_exact", f"{words}, and {had + missing} were asked for")
        if 0 in new:
            what = f"{seq} was given the padding block{self._in(group)}"
            raise Violation(Family.RESERVED, "padding_handed_out", what)
        return new

    def _places(self, seq: str, group: int) -> int:
        """Places of a table, those that have been released included."""
        return self.target.released(seq, group) + len(self.target.block_table(seq, group))

    def _refused(self, seq: str, num_tokens: int) -> None:
        """Nothing is left of the call, and one group at least had to refuse."""
        self.counts["refusals"] += 1
        self._unchanged("refusal_changes_nothing")
        lacking = self.pool.lacking(seq, num_tokens)
        stuck = [group for group in lacking if not self.pool.unseen(seq, group)]
        if not lacking:
            needs = [(self.pool.missing(seq, num_tokens, group), len(self.part(group).free)) for group in self._groups]
            told = ", ".join(f"{missing} blocks of {free} free ones" for missing, free in needs)
            what = f"room for {num_tokens} tokens was refused although every group has it: {told} would do"
            raise Violation(Family.PROGRESS, "refused_for_cause", what)
        if not stuck:
            group = lacking[0]
            what = f"room for {num_tokens} tokens was refused for want of blocks{self._in(group)}, although "
            what += f"{self.pool.unseen(seq, group)} of {seq} there have left the window"
            raise Violation(Family.WINDOW, "refused_in_window", what)
        self.pool.refuse(seq, num_tokens, stuck[0])

    def accept(self, seq: str, num_tokens: int) -> None:
        """The first num_tokens computed tokens are there to stay."""
        misuse = self._unknown(seq)
        if misuse is None:
            low, high = self.pool.accepted(seq), self.pool.requests[seq].computed
            if not low <= num_tokens <= high:
                misuse = f"{num_tokens} tokens accepted of {high} computed ones, {low} of which are accepted already"

        def explain(_: Any) -> None:
            self._events()
            self.pool.accept(seq, num_tokens)

        call = lambda: self.target.accept(seq, num_tokens)  # noqa: E731
        self._judge("accept", (seq, num_tokens), call, explain, misuse)

    def truncate(self, seq: str, num_tokens: int) -> None:
        self.needs(Capability.TRUNCATE)
        misuse = self._unknown(seq) or self._out_of_known(seq, num_tokens)
        if misuse is None and num_tokens < self.pool.accepted(seq):
            misuse = f"{num_tokens} tokens are to be left, and {self.pool.accepted(seq)} are accepted"

        def explain(_: Any) -> None:
            self._events()
            self._slid()
            self.pool.truncate(seq, num_tokens)
            self._cut(seq, num_tokens)
            for group in self._groups:
                self.pool.give_back_to(seq, self._places(seq, group), group)
            self._same_table(seq)

        call = lambda: self.target.truncate(seq, num_tokens)  # noqa: E731
        self._judge("truncate", (seq, num_tokens), call, explain, misuse)

    def fork(self, parent: str, child: str) -> None:
        self._never("fork", (parent, child), (parent, child), "there is no fork in a composite")

    def hold(self, seq: str, index: int, name: str) -> None:
        self._never("hold", (seq, index, name), (-1,), "there are no outside holders in a composite")

    def release(self, name: str) -> None:
        self._never("release", (name,), (-1,), f"{name} holds no block")

    def _never(self, verb: str, said: tuple[object, ...], given: tuple[object, ...], misuse: str) -> None:
        """A call that is an error, whatever it says; a composite need not have it."""

        def explain(_: Any) -> None:
            raise AssertionError(f"{verb} is always an error")

        def missing(*_: object) -> None:
            raise MisuseError(misuse)

        call = partial(getattr(self.target, verb, missing), *given)
        with self._in_words(misuse):
            self._judge(verb, said, call, explain, misuse)

    # -- what slides ---------------------------------------------------------------------------------------------

    def _behind(self) -> None:
        super()._behind()
        if not self.closed:
            self._slid()

    def _slid(self) -> None:
        """Blocks that the target has given back at the front of tables are events of the model."""
        for seq in self.pool.requests:
            for group in self._groups:
                shown, known = self.target.released(seq, group), self.pool.released(seq, group)
                if shown < known:
                    what = f"{shown} places of {seq}{self._in(group)} are released, and {known} were before"
                    raise Violation(Family.WINDOW, "released_kept", what)
                for _ in range(known, shown):
                    self.pool.slide(seq, group)
                    self.counts["slides"] += 1

    # -- comparing -----------------------------------------------------------------------------------------------

    def _num_blocks(self, rank: int) -> int:
        return self.pool.kinds[rank].num_blocks

    def _compare_rank(self, rank: int) -> None:
        try:
            super()._compare_rank(rank)
        except Violation as violation:
            if len(self._groups) > 1:
                what = f"in group {rank}, {violation.what}"
                raise Violation(violation.family, violation.rule, what) from violation
            raise

    def _same_table(self, seq: str) -> None:
        for group in self._groups:
            shown, known = self.target.released(seq, group), self.pool.released(seq, group)
            if shown != known:
                what = f"{shown} places of {seq}{self._in(group)} are released, expected {known}"
                raise Violation(Family.MAP_TRUTH, "table", what)
            held = list(self.target.block_table(seq, group))
            self._same_blocks(seq, held, self.pool.table(seq, group), self._in(group))

    def _compare_sequence(self, seq: str) -> None:
        super()._compare_sequence(seq)
        for group in self._groups:
            if self.pool.released(seq, group):
                self._unreadable(seq, group)

    def _read(self, seq: str, start: int, stop: int, counted: bool = True) -> Tags:
        """Contents of computed tokens in every group, from the first kept place on; those of the first are returned."""
        found = [self._read_group(seq, group, start, stop) for group in self._groups]
        self.counts["reads"] += counted and any(map(len, found))
        return found[0]

    def _read_group(self, seq: str, group: int, start: int, stop: int) -> Tags:
        size = self.pool.kinds[group].block_size
        first = max(start, self.pool.released(seq, group) * size)
        if not self.sees(Capability.CONTENTS) or stop <= first:
            return np.empty(0, np.int64)
        block_of = lambda at: f"{self.pool.block(seq, at // size, group)}{self._in(group)}"  # noqa: E731
        return self._as_written(seq, self.target.read(seq, first, stop, group), first, stop, block_of)

    def _unreadable(self, seq: str, group: int) -> None:
        """What has been released cannot be read."""
        if not self.sees(Capability.CONTENTS):
            return
        first = self.pool.released(seq, group) * self.pool.kinds[group].block_size
        why = f"token {first - 1} of {seq}{self._in(group)} lies in a released block"
        found, error = self._call(lambda: self.target.read(seq, first - 1, first, group), why)
        if error is None:
            raise Violation(Family.WINDOW, "released_readable", f"{why}; the target read {found!r}")

    def _drain_of(self, rank: int) -> list[CacheEvent]:
        found = super()._drain_of(rank)
        if found:
            what = f"block {found[0].block_id} was {found[0].kind}, and nothing is published in a composite"
            raise Violation(Family.MAP_TRUTH, "cached_keys", what)
        return found

    def _sweep(self) -> None:
        super()._sweep()
        for group in (-1, len(self._groups)):
            self._nothing_there(self._of_groups(), "group", group)

    def _of_groups(self) -> Iterator[Look]:
        """All that is shown of one group."""
        yield Look("free_ids", Capability.FREE_IDS)
        yield Look("free_count", Capability.FREE_COUNT)
        yield Look("used_count", Capability.USED_COUNT)
        yield Look("ref_count", Capability.REF_COUNTS, (1,))
        for seq in self.pool.requests:
            yield Look("released", Capability.GROUPS, (seq,))
            yield Look("block_table", Capability.GROUPS, (seq,))
            yield Look("read", Capability.CONTENTS, (seq, 0, 0))

    # -- words ---------------------------------------------------------------------------------------------------

    def _in(self, group: int) -> str:
        return f" in group {group}" if len(self._groups) > 1 else ""

    def holders(self, block: int, rank: int = 0) -> str:
        if block == 0:
            return "the padding block"
        held = [f"{seq}[{index}]" for _, seq, index in self.part(rank).holders.get(block, ())]
        return f"held by {', '.join(held)}" if held else "free"

    def _step_words(self, error: StepError) -> Sequence[str]:
        match error.event.name, error.arguments:
            case "stage", (int(group), int(block)):
                if block >= self._num_blocks(group):
                    return [f"there is no block {block}{self._in(group)}"]
                return [f"block {block}{self._in(group)} is {self.holders(block, group)}"]
            case "slide", (str(seq), int(group)):
                first = self.pool.released(seq, group) * self.pool.kinds[group].block_size
                seen = self.pool.seen_from(seq, group)
                accepted = f"{self.pool.accepted(seq)} tokens of {seq} are accepted"
                return [f"{accepted}, so a query may come that sees token {seen}; the block begins at {first}"]
            case "give_back", (str(seq), int(group)):
                return [f"{self.pool.covered(seq)} tokens of {seq} are to have room{self._in(group)}"]
        return []

    # -- what only others have ------------------------------------------------------------------------------------

    def _take(self, seq: str, block: int) -> None:
        raise AssertionError("a table grows in all groups")

    def _evict(self, rank: int, chain: Chain) -> None:
        raise AssertionError("nothing is published in a composite")

    def _hold(self, rank: int, block: int, name: str) -> None:
        raise AssertionError("there are no outside holders in a composite")

    _unhold = _hold
