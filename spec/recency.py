"""Who was used last (seed 4.3 and 7: ``lru_lst_``).

A list by last use is an order here: one item is *older* than another. Who uses it says what the items are and when one
is used; the first in line need not be the one that goes, since the line does not know who may.
"""

from __future__ import annotations

from kvspec.spec.language import (
    Bool,
    Id,
    Machine,
    Set,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    old,
    require,
    theorem,
    witness,
)


class Item(Id):
    """What stands in line; a chapter that uses this one says what it is."""


class Recency(Machine):
    """Items stand in one line by their last use."""

    members: Set[Item]
    older: Set[tuple[Item, Item]]

    @init
    def start(self) -> None:
        self.members.clear()
        self.older.clear()

    @event
    def use(self, item: Item) -> None:
        """An item is used: it is the newest now, whether or not it stood in line before."""
        self.members.add(item)
        self.older.assign_where(
            lambda a, b: (a != item) & (self.older.has((a, b)) | (self.members.has(a) & (b == item)))
        )

    @event
    def leave(self, item: Item) -> None:
        """An item leaves the line."""
        require(self.members.has(item))
        self.members.discard(item)
        self.older.assign_where(lambda a, b: self.older.has((a, b)) & (a != item) & (b != item))

    @event
    def clear(self) -> None:
        """All leave."""
        self.members.clear()
        self.older.clear()

    @invariant("only members are older or newer than others")
    def only_members(self) -> Bool:
        return forall(
            Item, Item, lambda a, b: implies(self.older.has((a, b)), self.members.has(a) & self.members.has(b))
        )

    @invariant("no two items are each older than the other, and none is older than itself")
    def asymmetric(self) -> Bool:
        return forall(Item, Item, lambda a, b: ~(self.older.has((a, b)) & self.older.has((b, a))))

    @invariant("what is older than an older item is older")
    def transitive(self) -> Bool:
        return forall(
            Item,
            Item,
            Item,
            lambda a, b, c: implies(self.older.has((a, b)) & self.older.has((b, c)), self.older.has((a, c))),
        )

    @invariant("of two members one is older")
    def total(self) -> Bool:
        return forall(
            Item,
            Item,
            lambda a, b: implies(
                self.members.has(a) & self.members.has(b) & (a != b), self.older.has((a, b)) | self.older.has((b, a))
            ),
        )

    @theorem("no item is older than itself")
    def irreflexive(self) -> Bool:
        return forall(Item, lambda a: ~self.older.has((a, a)))

    @theorem("the line is no circle, so there is a first")
    def no_circle(self) -> Bool:
        return forall(
            Item,
            Item,
            Item,
            lambda a, b, c: ~(self.older.has((a, b)) & self.older.has((b, c)) & self.older.has((c, a))),
        )

    @theorem("what is used is the newest", after=use)
    def used_is_newest(self, item: Item) -> Bool:
        return self.members.has(item) & forall(
            Item, lambda k: implies(self.members.has(k) & (k != item), self.older.has((k, item)))
        )

    @theorem("others keep their order, and their places in line, when one is used", after=use)
    def use_keeps_others(self, item: Item) -> Bool:
        return forall(
            Item,
            Item,
            lambda a, b: implies(
                (a != item) & (b != item),
                (self.older.has((a, b)) == old(self).older.has((a, b)))
                & (self.members.has(a) == old(self).members.has(a)),
            ),
        )

    @theorem("who leaves stood in line until then", after=leave)
    def left_stood_in_line(self, item: Item) -> Bool:
        return old(self).members.has(item) & ~self.members.has(item)

    @theorem("others keep their order, and their places in line, when one leaves", after=leave)
    def leave_keeps_others(self, item: Item) -> Bool:
        return forall(
            Item,
            Item,
            lambda a, b: implies(
                (a != item) & (b != item),
                (self.older.has((a, b)) == old(self).older.has((a, b)))
                & (self.members.has(a) == old(self).members.has(a)),
            ),
        )

    @theorem("when all have left nobody stands in line", after=clear)
    def cleared(self) -> Bool:
        return self.members.is_empty() & self.older.is_empty()

    @witness("three stand in line")
    def three_in_line(self) -> Bool:
        return exists(Item, Item, Item, lambda a, b, c: self.older.has((a, b)) & self.older.has((b, c)))
