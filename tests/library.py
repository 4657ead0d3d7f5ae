"""Small chapters of no specification, with a mistake to be made in each of their statements."""

from __future__ import annotations

from kvspec.spec.language import (
    Bool,
    Id,
    Machine,
    Map,
    Nat,
    Position,
    Set,
    Static,
    event,
    forall,
    implies,
    init,
    invariant,
    nat,
    refines,
    require,
    theorem,
    when,
)


class Book(Id):
    """Something to read."""


class Day(Position):
    """A day."""


def rounded(number: Nat, unit: Nat) -> Nat:
    """Down to a multiple."""
    return number // unit * unit


class Library(Machine):
    """Books are lent until some day."""

    bible: Static[Book]
    lent: Set[Book]
    due: Map[Book, Day]
    count: Nat
    today: Day

    @init
    def start(self) -> None:
        self.lent.clear()
        self.count = nat(0)

    @event
    def lend(self, book: Book, day: Day) -> None:
        """A book is lent until a day to come."""
        require(~self.lent.has(book))
        require((self.today < day) & (book != self.bible))
        self.lent.add(book)
        self.due[book] = day
        self.count = self.count + 1

    @event
    def extend(self, book: Book) -> None:
        """One more day, if it is time."""
        with when(self.due[book] <= self.today):
            self.due[book] = self.due[book].next()

    @event
    def close(self) -> None:
        """Only what is due stays lent."""
        self.lent.assign_where(lambda b: self.lent.has(b) & (self.due[b] < self.today))

    @invariant("the bible is never lent")
    def bible_stays(self) -> Bool:
        return ~self.lent.has(self.bible)

    @invariant("every book that is lent is due some day")
    def due_later(self) -> Bool:
        return forall(Book, Day, lambda b, d: implies(self.lent.has(b) & (self.due[b] == d), d > self.today))

    @theorem("rounding goes down")
    def goes_down(self) -> Bool:
        return forall(Nat, Nat, lambda n, u: rounded(n, u + 1) <= n)


class Store(Machine):
    """A place for each book."""

    place: Map[Book, Book]
    stored: Set[Book]

    @event
    def store(self, book: Book) -> None:
        """A book is stored."""
        self.stored.add(book)


class Shop(Machine):
    """Implements the store."""

    store = refines(Store)
    mine: Set[Book]

    @event
    def put(self, book: Book) -> None:
        """A book is put into the store, and noted."""
        self.store.store(self.store.place[book])
        self.mine.add(book)
