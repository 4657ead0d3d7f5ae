"""Small chapters of no specification, made so that their mutants end in every way in which a mutant can end."""

from __future__ import annotations

from library import Book, Day

from kvspec.spec.language import (
    Bool,
    Machine,
    Map,
    Nat,
    Set,
    Static,
    axiom,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    nat,
    require,
    theorem,
    when,
)


class Desk(Machine):
    """Books on a desk, some of them open."""

    there: Set[Book]
    opened: Set[Book]
    seen: Set[Book]
    visits: Nat

    @init
    def start(self) -> None:
        self.there.clear()
        self.opened.clear()
        self.visits = nat(0)

    @event
    def put(self, book: Book) -> None:
        """A book is put on the desk."""
        require(~self.there.has(book))
        self.there.add(book)

    @event
    def read(self, book: Book) -> None:
        """A book is opened."""
        require(self.there.has(book))
        self.opened.add(book)
        self.seen.add(book)

    @event
    def shut(self, book: Book) -> None:
        """An open book is shut."""
        require(self.opened.has(book))
        with when(self.there.has(book)):
            self.opened.discard(book)

    @event
    def rest(self) -> None:
        """There was no visit yet."""
        require(self.visits < 1)
        self.there.assign(self.opened)

    @invariant("an open book is on the desk")
    def opened_there(self) -> Bool:
        return forall(Book, lambda b: implies(self.opened.has(b), self.there.has(b)))

    @theorem("what was put is there", after=put)
    def put_is_there(self, book: Book) -> Bool:
        return self.there.has(book)

    @theorem("a book that was shut is shut", after=shut)
    def shut_is_shut(self, book: Book) -> Bool:
        return ~self.opened.has(book)


class Marks(Machine):
    """Days that are marked are noted; the first day is marked in a way of its own."""

    marked: Set[Day]
    noted: Set[Day]
    struck: Set[Day]
    torn: Set[Day]

    @init
    def start(self) -> None:
        self.marked.clear()
        self.struck.clear()
        self.torn.clear()

    @event
    def mark(self, day: Day) -> None:
        """A day is marked."""
        self.marked.add(day)
        self.noted.add(day)

    @event
    def begin(self) -> None:
        """The first day is marked."""
        self.marked.add(Day.zero())
        self.noted.add(Day.zero())

    @event
    def look(self) -> None:
        """Nothing happens."""

    @invariant("what is marked is noted")
    def marked_noted(self) -> Bool:
        return forall(Day, lambda d: implies(self.marked.has(d), self.noted.has(d)))

    @invariant("no day is struck")
    def none_struck(self) -> Bool:
        return forall(Day, lambda d: ~self.struck.has(d))

    @invariant("no day is torn out")
    def none_torn(self) -> Bool:
        return forall(Day, lambda d: ~self.torn.has(d))

    @invariant("the first day is not torn out")
    def first_whole(self) -> Bool:
        return ~self.torn.has(Day.zero())

    @theorem("nothing is struck", after=look)
    def nothing_struck(self) -> Bool:
        return self.struck.is_empty()


class Careless(Machine):
    """As `Marks`, but nobody marks the first day in a way of its own; and the same of books."""

    marked: Set[Day]
    noted: Set[Day]
    liked: Set[Book]
    known: Set[Book]

    @init
    def start(self) -> None:
        self.marked.clear()
        self.liked.clear()

    @event
    def mark(self, day: Day) -> None:
        """A day is marked."""
        self.marked.add(day)
        self.noted.add(day)

    @invariant("what is marked is noted")
    def marked_noted(self) -> Bool:
        return forall(Day, lambda d: implies(self.marked.has(d), self.noted.has(d)))

    @event
    def like(self, book: Book) -> None:
        """A book is read and liked."""
        self.known.add(book)
        self.liked.add(book)

    @invariant("what is liked is known")
    def liked_known(self) -> Bool:
        return forall(Book, lambda b: implies(self.liked.has(b), self.known.has(b)))


class Endless(Machine):
    """Without its first requirement, a statement that only endless states break."""

    after: Map[Day, Day]
    busy: Set[Day]

    @init
    def start(self) -> None:
        self.busy.clear()

    @event
    def look(self) -> None:
        """Nothing happens on a day that nobody is busy."""
        require(self.busy.is_empty())
        require(forall(Day, lambda d: implies(self.busy.has(d), self.busy.has(self.after[d]) & (self.after[d] > d))))

    @theorem("nobody is busy", after=look)
    def idle(self) -> Bool:
        return self.busy.is_empty()


class Rules(Machine):
    """Two things that are assumed, one of them needed."""

    bible: Static[Book]
    holy: Static[Set[Book]]
    burnt: Set[Book]

    @axiom("the bible is holy")
    def bible_holy(self) -> Bool:
        return self.holy.has(self.bible)

    @axiom("some other book is not holy")
    def not_all(self) -> Bool:
        return exists(Book, lambda b: ~self.holy.has(b) & (b != self.bible))

    @init
    def start(self) -> None:
        self.burnt.clear()

    @event
    def burn(self, book: Book) -> None:
        """A book that is not holy."""
        require(~self.holy.has(book))
        self.burnt.add(book)

    @invariant("the bible is not burnt")
    def bible_kept(self) -> Bool:
        return ~self.burnt.has(self.bible)
