"""Everything that a target shows, compared with the model."""

from __future__ import annotations

from collections.abc import Set
from typing import NoReturn

from kvspec.model.acceptor.contents import ContentJudging
from kvspec.model.acceptor.judging import P
from kvspec.model.conformance import Capability, Listed
from kvspec.model.promises import Family, Violation


class Comparing(ContentJudging[P]):
    """Compares after an operation, and at the end."""

    def compare(self) -> None:
        """Compare everything that the target shows with the model."""
        for rank in range(len(self.views)):
            self._compare_rank(rank)
        for seq in self.pool.requests:
            self._compare_sequence(seq)

    def _compare_rank(self, rank: int) -> None:
        """What names a block comes before counters: of all that is broken together it says most about the cause."""
        if self.sees(Capability.FREE_IDS):
            same_ids("block", self.views[rank].free_ids(), self.part(rank).free)
        if self.sees(Capability.REF_COUNTS):
            self._compare_references(rank)
        if self.sees(Capability.CACHED_KEYS):
            self._compare_keys(rank)
        self._compare_counters(rank)

    def _compare_counters(self, rank: int) -> None:
        part, view = self.part(rank), self.views[rank]
        if self.sees(Capability.FREE_COUNT):
            shown, known = view.free_count(), len(part.free)
            if shown != known and not (self._hides and known <= shown <= known + part.reclaimable):
                what = f"the target counts {shown} free blocks, there are {known}"
                raise Violation(Family.PARTITION, "free_count", what)
        if self.sees(Capability.USED_COUNT) and view.used_count() != part.used:
            what = f"the target counts {view.used_count()} used blocks, {part.used} are held by sequences"
            raise Violation(Family.USAGE, "used_count", what)

    def _compare_references(self, rank: int) -> None:
        count, holders = self.views[rank].ref_count, self.part(rank).holders
        for block in range(1, self._num_blocks(rank)):
            shown, known = count(block), len(holders.get(block, ()))
            if shown != known:
                what = f"block {block} has reference count {shown} and is {self.holders(block, rank)}"
                raise Violation(Family.HOLDERS, "ref_count", what)

    def _num_blocks(self, rank: int) -> int:
        """Blocks that a rank has, padding included."""
        return self.config.num_blocks

    def _compare_sequence(self, seq: str) -> None:
        computed = self.pool.requests[seq].computed
        self._same_table(seq)
        if self.target.num_computed(seq) != computed:
            what = f"{seq} has {self.target.num_computed(seq)} computed tokens, expected {computed}"
            raise Violation(Family.CONTENT, "computed", what)
        self._read(seq, 0, computed)
        self._read_parts(seq, computed)

    def _same_table(self, seq: str) -> None:
        self._same_blocks(seq, list(self.target.block_table(seq)), self.pool.table(seq))

    def _same_blocks(self, seq: str, shown: list[int], known: list[int], where: str = "") -> None:
        if shown != known:
            at = next((i for i, (a, b) in enumerate(zip(shown, known, strict=False)) if a != b), None)
            what = f"{len(shown)} blocks, expected {len(known)}"
            if at is not None:
                what = f"block {shown[at]} at place {at}, expected block {known[at]}"
            raise Violation(Family.MAP_TRUTH, "table", f"the table of {seq}{where} has {what}")

    def sweep(self) -> None:
        """All observations, and every invariant of the spec on the whole state; nothing of one that is closed."""
        if self.closed:
            return
        try:
            self._shown(self._sweep)
        except Violation as violation:
            violation.number, violation.operation, violation.swept = self.number, "a look at everything", True
            raise

    def _sweep(self) -> None:
        self.compare()
        for broken in self.pool.sweep():
            raise Violation(Family.INVARIANT, broken.statement.name, str(broken))

    def drained(self) -> None:
        """When everything was given back and all keys are dropped, everything is free."""
        for rank, part in enumerate(self.pool.parts()):
            if len(part.free) != (usable := self._num_blocks(rank) - 1):
                not_drained(len(part.free), usable, "blocks")


def not_drained(free: int, usable: int, what: str) -> NoReturn:
    """Something has not come back."""
    raise Violation(Family.DRAIN, "drain", f"{free} of {usable} {what} are free at the end")


def same_ids(name: str, shown: Set[int], known: Set[int]) -> None:
    """What the target shows as free is what nobody has."""
    if isinstance(shown, Listed) and shown.twice:
        raise Violation(Family.PARTITION, "free_ids", f"{name} {shown.twice[0]} is free twice for the target")
    if shown == known:
        return
    extra, lost = sorted(shown - known), sorted(known - shown)
    if 0 in extra:
        raise Violation(Family.RESERVED, "padding_free", f"the padding {name} is free for the target")
    what = f"{name}s {extra} are free for the target only" if extra else f"{name}s {lost} should be free and are not"
    raise Violation(Family.PARTITION, "free_ids", what)
