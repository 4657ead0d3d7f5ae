"""How much of a hit can be kept when a recurrent state has to go with it (seed 7.2; class `LinearStatePrefixCache`).

Boundary n of a table lies behind its first n blocks: block i ends at boundary i + 1, and boundary 0 is the empty
prefix, whose state is known. A hit of n blocks offers boundaries 1 to n, but a sequence can go on only where its
recurrent state can be restored, so what lies behind the chosen boundary is *trimmed*. Some boundaries can have a
checkpoint (chapter `strides`), some of these have one. Two policies say which boundary may be chosen:

- *contiguous* (the seed's): one with a checkpoint, if no boundary before it that could have one lacks it;
- *deepest*: any with a checkpoint.

Both choose the deepest boundary that they allow, and both find it in one scan upwards: they differ only in where it
stops. Chapter `lifecycle` gives the blocks back; here a table is a number of places.
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.spec.language import (
    Bool,
    Ghost,
    Loop,
    Machine,
    Set,
    Static,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    loop,
    old,
    possible,
    require,
    theorem,
    when,
    witness,
)
from kvspec.spec.sorts import Index

Test = Callable[[Index], Bool]
"""Something that is so of a boundary or not."""


def restorable(boundary: Index, saved: Test) -> Bool:
    """The state at a boundary can be had: it is that of no tokens, or there is a checkpoint of it."""
    return boundary.is_zero() | saved(boundary)


def gap(boundary: Index, spaced: Test, saved: Test) -> Bool:
    """A boundary could have a checkpoint and has none."""
    return spaced(boundary) & ~saved(boundary)


def gapless(boundary: Index, spaced: Test, saved: Test) -> Bool:
    """Every boundary up to this one has a checkpoint if it could have one; the empty prefix needs none."""
    return forall(Index, lambda c: implies((c <= boundary) & ~c.is_zero(), ~gap(c, spaced, saved)))


def contiguous(spaced: Test, saved: Test) -> Test:
    """What policy `contiguous` allows."""
    return lambda boundary: restorable(boundary, saved) & gapless(boundary, spaced, saved)


def deepest(saved: Test) -> Test:
    """What policy `deepest` allows."""
    return lambda boundary: restorable(boundary, saved)


def is_choice(boundary: Index, hits: Index, allowed: Test) -> Bool:
    """The boundary is the deepest one within the hit that a policy allows."""
    return (
        (boundary <= hits)
        & allowed(boundary)
        & forall(Index, lambda b: implies((b <= hits) & allowed(b), b <= boundary))
    )


class Trim(Machine):
    """A hit is kept up to the deepest boundary that the policy allows, where its state can be restored, no further."""

    spaced: Static[Set[Index]]

    hits: Index
    saved: Set[Index]
    seen: Index
    kept: Index
    size: Index
    table: Set[Index]
    ahead: Ghost[Set[Index]]

    @init
    def start(self) -> None:
        self.hits = Index.zero()
        self.begin(Index.zero())

    @event
    def match(self, hits: Index, saved: Set[Index]) -> None:
        """A prompt finds so many blocks in the prefix cache, and these boundaries have a checkpoint."""
        self.hits = hits
        self.saved.assign(saved)
        self.begin(hits)

    @event
    def look(self) -> None:
        """The scan goes on to the next boundary, which is the deepest so far if it has a checkpoint (contains)."""
        require(self.size == self.hits)
        require(self.seen < self.hits)
        boundary = self.seen.next()
        with when(self.saved.has(boundary)):
            self.kept = boundary
        self.seen = boundary
        self.ahead.discard(boundary)

    @event
    def give_back(self) -> None:
        """The scan is over, and the last block of the table lies behind the kept boundary: it is given back."""
        require(self.at_gap() | self.at_end())
        require(self.kept < self.size)
        last = self.size.prev()
        self.table.discard(last)
        self.size = last

    # -- loops ---------------------------------------------------------------------------------------------------

    @loop
    def scan_to_gap(self) -> Loop:
        """Policy contiguous: the scan stops at the first boundary that could have a checkpoint and has none."""
        return Loop(
            step=Trim.look,
            start=self.seen.is_zero() & (self.size == self.hits),
            keep=self.gapless_so_far() & (self.size == self.hits),
            again=(self.seen < self.hits) & ~self.gap(self.seen.next()),
            measure=self.ahead.size(),
            result=self.at_gap() & self.is_contiguous(self.kept),
        )

    @loop
    def scan_to_end(self) -> Loop:
        """Policy deepest: the scan goes over all boundaries of the hit, wherever it has come to."""
        return Loop(
            step=Trim.look,
            start=self.size == self.hits,
            keep=self.size == self.hits,
            again=self.seen < self.hits,
            measure=self.ahead.size(),
            result=self.at_end() & self.is_deepest(self.kept),
        )

    @loop
    def trim_behind(self) -> Loop:
        """After either scan, blocks are given back from the last on until the table ends at the kept boundary."""
        return Loop(
            step=Trim.give_back,
            start=self.at_gap() | self.at_end(),
            keep=self.at_gap() | self.at_end(),
            again=self.kept < self.size,
            measure=self.table.size(),
            result=self.trimmed(),
        )

    # -- words ---------------------------------------------------------------------------------------------------

    def begin(self, hits: Index) -> None:
        self.seen = Index.zero()
        self.kept = Index.zero()
        self.size = hits
        self.table.assign_where(lambda i: i < hits)
        self.ahead.assign_where(lambda b: ~b.is_zero() & (b <= hits))

    def gap(self, boundary: Index) -> Bool:
        return gap(boundary, self.spaced.has, self.saved.has)

    def gapless_so_far(self) -> Bool:
        return gapless(self.seen, self.spaced.has, self.saved.has)

    def at_gap(self) -> Bool:
        """Policy `contiguous` stops here: before the first gap, or at the end if there is none."""
        return self.gapless_so_far() & ((self.seen == self.hits) | self.gap(self.seen.next()))

    def at_end(self) -> Bool:
        """Policy `deepest` stops here."""
        return self.seen == self.hits

    def trimmed(self) -> Bool:
        """The scan is over and nothing is left to be given back."""
        return (self.at_gap() | self.at_end()) & (self.size == self.kept)

    def is_contiguous(self, boundary: Index) -> Bool:
        return is_choice(boundary, self.hits, contiguous(self.spaced.has, self.saved.has))

    def is_deepest(self, boundary: Index) -> Bool:
        return is_choice(boundary, self.hits, deepest(self.saved.has))

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant(
        "trim safety: a hit is kept up to a boundary where its state can be restored, no block before that is given "
        "back, and behind it no boundary was found where the state could be restored"
    )
    def trim_safety(self) -> Bool:
        return (
            restorable(self.kept, self.saved.has)
            & forall(Index, lambda i: implies(i < self.kept, self.table.has(i)))
            & forall(Index, lambda b: implies((self.kept < b) & (b <= self.seen), ~self.saved.has(b)))
        )

    @invariant("the kept boundary has been looked at, and nothing behind the hit")
    def inside_hit(self) -> Bool:
        return (self.kept <= self.seen) & (self.seen <= self.hits) & (self.size <= self.hits)

    @invariant("the boundaries ahead are those of the hit that have not been looked at")
    def ahead_unseen(self) -> Bool:
        return forall(Index, lambda b: self.ahead.has(b) == ((self.seen < b) & (b <= self.hits)))

    @invariant("the places of the table that have a block are the first ones")
    def table_size(self) -> Bool:
        return forall(Index, lambda i: self.table.has(i) == (i < self.size))

    @invariant("nothing is given back before the scan is over")
    def scan_first(self) -> Bool:
        return (self.size == self.hits) | self.at_gap() | self.at_end()

    # -- theorems ------------------------------------------------------------------------------------------------

    @theorem("once trimmed, a hit has lost exactly the blocks behind its kept boundary, the deepest the policy allows")
    def trim_is_exact(self) -> Bool:
        return implies(
            self.trimmed(),
            forall(Index, lambda i: self.table.has(i) == (i < self.kept))
            & implies(self.at_gap(), self.is_contiguous(self.kept))
            & implies(self.at_end(), self.is_deepest(self.kept)),
        )

    @theorem("policy deepest never keeps less than contiguous")
    def deepest_keeps_more(self) -> Bool:
        return forall(Index, lambda k: implies(self.at_end() & self.is_contiguous(k), k <= self.kept))

    @theorem("where no checkpoint lies behind a gap, both policies keep the same")
    def same_without_gaps(self) -> Bool:
        without_gaps = forall(
            Index,
            Index,
            lambda x, y: implies((x <= y) & ~x.is_zero() & (y <= self.hits) & self.saved.has(y), ~self.gap(x)),
        )
        return implies(self.at_end() & without_gaps, self.is_contiguous(self.kept))

    @theorem("policy deepest keeps the whole hit if its last boundary has a checkpoint")
    def whole_hit(self) -> Bool:
        return implies(self.at_end() & self.saved.has(self.hits), self.kept == self.hits)

    @theorem("a hit without checkpoints is not kept at all")
    def nothing_saved(self) -> Bool:
        return implies(self.saved.is_empty(), self.kept.is_zero())

    @theorem("as long as nothing is given back, any boundary of the hit can still be looked at")
    def can_look(self) -> Bool:
        return implies((self.size == self.hits) & ~self.ahead.is_empty(), possible(self.look)())

    @theorem("after either scan what lies behind the kept boundary can be given back")
    def can_give_back(self) -> Bool:
        return forall(
            Index,
            lambda i: implies(
                (self.at_gap() | self.at_end()) & self.table.has(i) & (self.kept <= i), possible(self.give_back)()
            ),
        )

    @theorem("a look goes over exactly one boundary and never moves the choice back", after=look)
    def look_goes_on(self) -> Bool:
        return (
            forall(Index, lambda b: (old(self).seen < b) == (self.seen <= b))
            & (old(self).kept <= self.kept)
            & ~self.ahead.has(self.seen)
        )

    @theorem("the block that is given back lay behind the kept boundary; no other is touched", after=give_back)
    def gives_back_behind(self) -> Bool:
        return (
            (self.kept <= self.size)
            & old(self).table.has(self.size)
            & forall(Index, lambda i: self.table.has(i) == (old(self).table.has(i) & (i != self.size)))
        )

    @witness("a checkpoint lies behind a gap: policy contiguous stops before it, with something kept")
    def checkpoint_behind_gap(self) -> Bool:
        return (
            ~self.kept.is_zero()
            & self.gap(self.seen.next())
            & self.gapless_so_far()
            & exists(Index, lambda b: (self.seen < b) & (b <= self.hits) & self.saved.has(b))
        )

    @witness("policy contiguous passes over a boundary that cannot have a checkpoint")
    def passed_over(self) -> Bool:
        return self.is_contiguous(self.kept) & exists(
            Index, lambda b: ~b.is_zero() & (b < self.kept) & ~self.spaced.has(b)
        )

    @witness("part of a hit is trimmed and part is kept")
    def partly_trimmed(self) -> Bool:
        return ~self.kept.is_zero() & (self.size < self.hits) & self.trimmed()
