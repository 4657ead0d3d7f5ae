"""Ids of size one, each for one owner (seed 6; class `SingleBlockManager`).

A sequence needs one such id beside its blocks, and a recurrent state needs one for the place where it is kept (chapter
`linear_state`). There is no prefix cache here and nothing is shared: what is not free belongs to exactly one owner, who
may leave it to another.
"""

from __future__ import annotations

from kvspec.spec.blocks import Blocks
from kvspec.spec.language import (
    Bool,
    Id,
    Machine,
    event,
    exists,
    forall,
    implies,
    inherit,
    invariant,
    old,
    possible,
    require,
    theorem,
    use,
    witness,
)


class Unit(Id):
    """A single id; a chapter that uses this one says what it is the id of."""


class Owner(Id):
    """Somebody who needs an id for himself."""


class SingleBlock(Machine):
    """Each usable id is free or belongs to one owner; id 0 (padding) does not belong to anybody."""

    ids = use(Blocks, Block=Unit, Holder=Owner)

    @event
    def allocate(self, unit: Unit, owner: Owner) -> None:
        """A free id gets its owner (allocate(1))."""
        inherit(self.ids.take)(unit, owner)

    @event
    def hand_over(self, unit: Unit, owner: Owner, heir: Owner) -> None:
        """An owner leaves an id to somebody else; it is never free in between."""
        require(self.ids.holders[unit].has(owner))
        require(owner != heir)
        self.ids.share(unit, heir)
        self.ids.drop_shared(unit, owner)

    @event
    def deallocate(self, unit: Unit, owner: Owner) -> None:
        """An owner gives an id back, which is free at once, since nobody else has it (deallocate)."""
        require(self.ids.holders[unit].has(owner))
        self.ids.drop_last(unit, owner)

    @invariant("an id has one owner at most")
    def never_shared(self) -> Bool:
        return forall(
            Unit, Owner, Owner, lambda u, o, p: implies(self.ids.holders[u].has(o) & self.ids.holders[u].has(p), o == p)
        )

    @theorem("an id of the pool that nobody owns can be had, by anybody")
    def unowned_can_be_had(self) -> Bool:
        return forall(
            Unit,
            Owner,
            lambda u, o: implies(
                self.ids.usable.has(u) & forall(Owner, lambda p: ~self.ids.holders[u].has(p)),
                possible(self.allocate)(u, o),
            ),
        )

    @theorem("who gets an id has it alone, and nobody had it before", after=allocate)
    def allocated_is_own(self, unit: Unit, owner: Owner) -> Bool:
        return self.ids.holders[unit].is_only(owner) & old(self).ids.holders[unit].is_empty()

    @theorem("an id that is given back is free at once: nothing leaks", after=deallocate)
    def given_back_is_free(self, unit: Unit) -> Bool:
        return self.ids.free.has(unit) & self.ids.holders[unit].is_empty()

    @theorem("an id that is left to somebody belongs to him alone, and was not free", after=hand_over)
    def heir_is_owner(self, unit: Unit, heir: Owner) -> Bool:
        return self.ids.holders[unit].is_only(heir) & ~old(self).ids.free.has(unit)

    @witness("an owner has two ids")
    def two_ids(self) -> Bool:
        return exists(
            Unit, Unit, Owner, lambda u, v, o: (u != v) & self.ids.holders[u].has(o) & self.ids.holders[v].has(o)
        )
