"""The vocabulary that other texts are made with: an event as a list of sites, and copies that say something else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvspec.proofs.campaign import prove_chapter
from kvspec.proofs.prove import Options
from kvspec.proofs.verdicts import Verdict
from kvspec.spec.language import (
    Bool,
    Chapter,
    Id,
    Machine,
    Map,
    Nat,
    Set,
    SpecError,
    Static,
    axiom,
    event,
    false,
    forall,
    implies,
    inherit,
    init,
    invariant,
    nat,
    old,
    possible,
    require,
    theorem,
    true,
    use,
    when,
)
from kvspec.spec.language import terms as T
from kvspec.spec.language.prose import render
from kvspec.spec.language.terms import Term
from kvspec.spec.language.traced import Site, StaticSymbol
from kvspec.spec.language.tracing import Edit


class Book(Id):
    """Something to read."""


def doubled(number: Nat) -> Nat:
    return number * 2


class Shelf(Machine):
    """Books, some of them lent."""

    there: Set[Book]
    lent: Map[Book, Bool]
    count: Nat

    @init
    def start(self) -> None:
        self.there.clear()
        self.count = nat(0)

    @event
    def put(self, book: Book) -> None:
        """A new book."""
        require(~self.there.has(book))
        self.there.add(book)
        with when(self.lent[book]):
            self.lent[book] = false()
        self.count = self.count + 1

    @event
    def replace(self, book: Book, other: Book) -> None:
        """One book goes, another comes; nothing is asked."""
        self.there.discard(book)
        self.put(other)

    @event
    def put_again(self, book: Book) -> None:
        """As `put`, with what it asks for."""
        inherit(self.put)(book)

    @invariant("no more books are lent than there are")
    def lent_there(self) -> Bool:
        return forall(Book, lambda b: implies(self.lent[b], self.there.has(b)))

    @theorem("at the start there is nothing", after=start)
    def starts_empty(self) -> Bool:
        return self.there.is_empty() & (self.count == 0)

    @theorem("a book that is not there can be put")
    def can_be_put(self) -> Bool:
        return forall(Book, lambda b: implies(~self.there.has(b), possible(self.put)(b)))

    @theorem("twice as much is more")
    def more(self) -> Bool:
        return forall(Nat, lambda n: n <= doubled(n))


class Room(Machine):
    """A shelf, and what is wished for it."""

    shelf = use(Shelf)
    favourite: Static[Book]
    wished: Set[Book]

    @init
    def start(self) -> None:
        self.wished.clear()

    @event
    def wish(self, book: Book) -> None:
        """A book is wished for."""
        self.wished.add(book)

    @event
    def buy(self, book: Book) -> None:
        """A book that is wished for is bought."""
        require(self.wished.has(book))
        self.shelf.put(book)
        self.wished.discard(book)

    @event
    def find(self, book: Book) -> None:
        """A book is found and put."""
        inherit(self.shelf.put)(book)

    @invariant("what is wished for is not there")
    def wished_missing(self) -> Bool:
        return forall(Book, lambda b: implies(self.wished.has(b), ~self.shelf.there.has(b)))

    @invariant("the favourite book is not wished for")
    def favourite_unwished(self) -> Bool:
        return ~self.wished.has(self.favourite)


class Ruled(Machine):
    """Some books, of which something is assumed."""

    books: Static[Set[Book]]

    @axiom("there are books")
    def some_book(self) -> Bool:
        return ~self.books.is_empty()


def shelf() -> Chapter:
    return Chapter(Shelf)


def told(sites: list[Site]) -> list[str]:
    return [" ".join((s.kind, *s.about, *map(render, s.terms))) for s in sites]


def at(number: int, *terms: Term) -> Edit:
    """Other terms at one site."""
    return lambda site: terms if site.number == number else site.terms


def without(number: int) -> Edit:
    return lambda site: None if site.number == number else site.terms


# -- the statements of a text ------------------------------------------------------------------------------------------


def test_the_sites_of_an_event_are_its_statements_in_order() -> None:
    sites = shelf().event("put").sites
    assert told(sites) == [
        "require book ∉ there",
        "change there set_add book",
        "when lent[book]",
        "change lent assign book false",
        "change count assign count + 1",
    ]
    assert [s.number for s in sites] == list(range(5))
    assert [s.where.line - sites[0].where.line for s in sites] == [0, 1, 2, 3, 4]
    assert all(s.where.file == __file__ for s in sites)


def test_an_event_that_is_called_inside_the_chapter_is_read_as_own_text_but_what_it_asks_for_is_owed() -> None:
    replace = shelf().event("replace")
    assert told(replace.sites)[:2] == ["change there set_remove book", "change there set_add other"]
    assert not [s for s in replace.sites if s.kind in ("require", "call")]
    assert [render(o.term) for o in replace.owed] == ["other ∉ there ∖ {book}"]


def test_what_is_inherited_inside_the_chapter_is_own_text() -> None:
    chapter = shelf()
    assert told(chapter.event("put_again").sites) == told(chapter.event("put").sites)


def test_a_call_of_another_chapter_is_one_site() -> None:
    chapter = Chapter(Room)
    assert told(chapter.event("buy").sites) == [
        "require book ∈ wished",
        "call shelf.put book",
        "change wished set_remove book",
    ]
    assert told(chapter.event("find").sites) == ["call shelf.put inherit book"]


def test_the_sites_of_the_start_are_the_chapters_own() -> None:
    assert told(Chapter(Room).start_sites) == ["change wished assign ∅"]
    assert told(shelf().start_sites) == ["change there assign ∅", "change count assign 0"]


# -- other texts -------------------------------------------------------------------------------------------------------


def test_a_requirement_left_out_is_not_asked_for() -> None:
    chapter = shelf()
    other = chapter.with_event("put", without(0))
    assert other.event("put").guard is T.TRUE
    assert render(chapter.event("put").guard) == "book ∉ there"
    assert other.event("put").after == chapter.event("put").after
    assert other.event("put").parameters == chapter.event("put").parameters


def test_a_change_left_out_or_made_otherwise() -> None:
    chapter = shelf()
    (book,) = chapter.event("put").parameters
    put = chapter.event("put").after["there",]
    dropped = chapter.with_event("put", without(1)).event("put")
    assert dropped.after["there",] is chapter.env["there",]
    assert "there" not in {e.path[0] for e in dropped.effects}
    count = chapter.env["count",]
    otherwise = chapter.with_event("put", at(4, count)).event("put")
    assert otherwise.after["count",] is count
    assert chapter.event("put").after["there",] is put and render(put) == "there ∪ {book}"
    kept = chapter.with_event("put", at(3, book, T.TRUE)).event("put").effects[1]
    assert [render(t) for t in (*kept.keys, *kept.args, kept.condition)] == ["book", "true", "lent[book]"]


@pytest.mark.parametrize(("edit", "condition"), [(without(2), "false"), (at(2, T.TRUE), "true")])
def test_a_condition_that_never_or_always_holds(edit: Edit, condition: str) -> None:
    event = shelf().with_event("put", edit).event("put")
    effect = next(e for e in event.effects if e.path == ("lent",))
    assert render(effect.condition) == condition
    assert all(e.condition is T.TRUE for e in event.effects if e.path != ("lent",))


def test_a_call_left_out_owes_nothing_and_changes_nothing() -> None:
    chapter = Chapter(Room)
    other = chapter.with_event("buy", without(1)).event("buy")
    assert other.owed == [] and {e.path for e in other.effects} == {("wished",)}
    assert chapter.event("buy").owed and ("shelf", "there") in {e.path for e in chapter.event("buy").effects}


def test_a_call_with_another_argument() -> None:
    chapter = Chapter(Room)
    favourite = T.make("static", (), Book.sort, ("favourite",))
    other = chapter.with_event("buy", at(1, favourite)).event("buy")
    assert [render(o.term) for o in other.owed] == ["favourite ∉ there"]
    assert [render(o.term) for o in chapter.event("buy").owed] == ["book ∉ there"]


def test_only_one_event_says_something_else() -> None:
    chapter = shelf()
    other = chapter.with_event("put", without(0))
    for name in ("replace", "put_again"):
        assert told(other.event(name).sites) == told(chapter.event(name).sites)
    assert render(other.event("put_again").guard) == "book ∉ there"


def test_an_event_that_is_not_there_cannot_be_edited() -> None:
    with pytest.raises(SpecError, match=r"Shelf has no event take; expected one of put, replace, put_again"):
        shelf().with_event("take", without(0))


def test_a_start_that_says_something_else() -> None:
    chapter = shelf()
    other = chapter.with_start(at(1, T.num(7)))
    assert (render(other.initial["count",]), render(chapter.initial["count",])) == ("7", "0")
    assert chapter.with_start(without(0)).initial["there",] is chapter.env["there",]
    assert render(chapter.initial["there",]) == "∅"
    assert [s.term for s in other.theorems] != [s.term for s in chapter.theorems]


def test_an_invariant_that_says_something_else_and_speaks_of_a_new_constant() -> None:
    chapter = shelf()
    symbol = StaticSymbol(("some_Book",), (), Book.sort)
    term = T.make("has", (chapter.env["there",], T.make("static", (), Book.sort, symbol.path)), T.BOOL)
    other = chapter.with_invariant("lent_there", term, symbol)
    assert {s.name: s.term for s in other.invariants}["lent_there"] is term
    assert other.statics == {symbol.path: symbol} and chapter.statics == {}
    assert {s.name: render(s.term) for s in chapter.invariants} == {
        "lent_there": "∀ b ∈ Book. lent[b] → b ∈ there",
        "count_natural": "0 ≤ count",
    }


def test_an_axiom_that_is_not_assumed() -> None:
    class Rules(Machine):
        """The favourite book is there, in a room with a shelf that has rules of its own."""

        room = use(Ruled)
        there: Static[Set[Book]]

        @axiom("something is there")
        def something(self) -> Bool:
            return ~self.there.is_empty()

    chapter = Chapter(Rules)
    names = ["something", "room.some_book"]
    assert [s.name for s in chapter.axioms] == names
    assert [s.name for s in chapter.without_axiom("room.some_book").axioms] == names[:1]
    assert [s.name for s in chapter.without_axiom("something").without_axiom("room.some_book").axioms] == []
    assert [s.name for s in chapter.axioms] == names


def test_a_function_that_computes_something_else() -> None:
    chapter = shelf()
    assert chapter.functions["doubled"] is doubled
    other = chapter.with_functions({"doubled": lambda number: number})
    more = {s.name: s.term for s in other.theorems}["more"]
    assert render(more) == "∀ n ∈ Nat. n ≤ n"
    assert {s.name: render(s.term) for s in chapter.theorems}["more"] == "∀ n ∈ Nat. n ≤ n · 2"
    assert chapter.functions["doubled"] is doubled


def test_a_function_is_back_in_its_place_even_if_the_other_one_fails() -> None:
    def fails(number: Nat) -> Nat:
        raise ValueError("no result")

    with pytest.raises(ValueError, match="no result"):
        shelf().with_functions({"doubled": fails})
    assert shelf().functions["doubled"] is doubled


def test_a_chapter_that_says_only_one_thing() -> None:
    chapter = Chapter(Room)
    other = chapter.saying_only("wished_missing")
    assert [s.name for s in other.invariants] == ["wished_missing"]
    assert (other.theorems, other.lower_invariants) == ([], [])
    assert [other.event(name).owed for name in other.event_names] == [[], [], []]
    assert [s.name for s in chapter.invariants] == ["wished_missing", "favourite_unwished"]
    assert chapter.lower_invariants and chapter.event("buy").owed
    assert other.event("buy").after == chapter.event("buy").after


# -- theorems about the start ------------------------------------------------------------------------------------------


def verdicts(machine: type[Machine]) -> dict[str, Verdict]:
    return {r.id: r.verdict for r in prove_chapter("made", Chapter(machine), Options(runs=0))}


def test_a_theorem_about_the_start_speaks_of_the_first_state_only() -> None:
    (first, *_) = shelf().theorems
    assert (first.name, first.after) == ("starts_empty", "init")
    assert verdicts(Shelf)["made.init/starts_empty"] is Verdict.PROVED


class Wrong(Machine):
    """A counter of which something false is said at its start, and something false of what is possible."""

    n: Nat

    @init
    def start(self) -> None:
        self.n = nat(1)

    @event
    def down(self) -> None:
        """One less, as long as there is something."""
        require(self.n > 0)
        self.n = self.n - 1

    @theorem("it starts with nothing", after=start)
    def nothing(self) -> Bool:
        return self.n == 0

    @theorem("it can always go down")
    def goes_on(self) -> Bool:
        return possible(self.down)()

    @theorem("it can go down from one on")
    def goes_on_from_one(self) -> Bool:
        return implies(self.n >= 1, possible(self.down)())


def test_false_statements_about_the_start_and_about_what_is_possible_are_refuted() -> None:
    found = verdicts(Wrong)
    assert found["made.init/nothing"] is Verdict.REFUTED
    assert found["made.theorem/goes_on"] is Verdict.REFUTED
    assert found["made.theorem/goes_on_from_one"] is Verdict.PROVED


def test_a_theorem_about_the_start_has_no_parameters_and_no_past() -> None:
    class Parameters(Machine):
        """Asks for a book at the start."""

        s: Set[Book]

        @init
        def start(self) -> None:
            self.s.clear()

        @theorem("a book", after=start)
        def a_book(self, book: Book) -> Bool:
            return ~self.s.has(book)

    class Past(Machine):
        """Asks what was before the start."""

        s: Set[Book]

        @init
        def start(self) -> None:
            self.s.clear()

        @theorem("before", after=start)
        def before(self) -> Bool:
            return old(self).s.is_empty()

    with pytest.raises(SpecError, match=r"a_book: parameter book; expected none"):
        _ = Chapter(Parameters).theorems
    with pytest.raises(SpecError, match=r"old\(\.\.\.\) in a theorem about a state"):
        _ = Chapter(Past).theorems


def test_a_theorem_speaks_of_the_start_of_its_own_chapter() -> None:
    class Elsewhere(Machine):
        """Speaks of somebody else's start."""

        shelf = use(Shelf)

        @theorem("elsewhere", after=Shelf.start)
        def elsewhere(self) -> Bool:
            return self.shelf.there.is_empty()

    with pytest.raises(SpecError, match="elsewhere is said of start"):
        _ = Chapter(Elsewhere).theorems


# -- what is possible --------------------------------------------------------------------------------------------------


def test_possible_is_what_an_event_requires_of_these_arguments() -> None:
    chapter = shelf()
    found = {s.name: s for s in chapter.theorems}["can_be_put"]
    assert render(found.term) == "∀ b ∈ Book. b ∉ there → b ∉ there"
    assert found.asks == ("put",)
    assert {s.asks for s in chapter.theorems if s.name != "can_be_put"} == {()}


def test_possible_asks_the_event_as_the_text_has_it() -> None:
    other = shelf().with_event("put", at(0, T.FALSE))
    assert render({s.name: s.term for s in other.theorems}["can_be_put"]) == "∀ b ∈ Book. b ∉ there → false"


def misuses() -> Iterator[type[Machine]]:
    class InAnInvariant(Machine):
        """expected a theorem about a state"""

        s: Set[Book]

        @event
        def go(self) -> None:
            """Nothing."""

        @invariant("it goes on")
        def goes_on(self) -> Bool:
            return possible(self.go)()

    class InAnEvent(Machine):
        """expected a theorem about a state"""

        s: Set[Book]

        @event
        def go(self) -> None:
            """Nothing."""

        @event
        def ask(self) -> None:
            """Asks."""
            require(possible(self.go)())

    class AboutAStep(Machine):
        """expected a theorem about a state"""

        @event
        def go(self) -> None:
            """Nothing."""

        @theorem("it goes on", after=go)
        def goes_on(self) -> Bool:
            return possible(self.go)()

    class OfAnotherChapter(Machine):
        """an event of the chapter itself"""

        shelf = use(Shelf)

        @theorem("more books")
        def more(self) -> Bool:
            return forall(Book, lambda b: possible(self.shelf.put)(b))

    class TooFew(Machine):
        """possible(go) of 0 arguments; expected 1"""

        @event
        def go(self, book: Book) -> None:
            """Nothing."""

        @theorem("it goes on")
        def goes_on(self) -> Bool:
            return possible(self.go)()

    class AnotherSort(Machine):
        """expected sort Book"""

        @event
        def go(self, book: Book) -> None:
            """Nothing."""

        @theorem("it goes on")
        def goes_on(self) -> Bool:
            return possible(self.go)(true())

    yield from (InAnInvariant, InAnEvent, AboutAStep, OfAnotherChapter, TooFew, AnotherSort)


@pytest.mark.parametrize("machine", list(misuses()), ids=lambda machine: machine.__name__)
def test_possible_is_refused_where_it_means_nothing(machine: type[Machine]) -> None:
    chapter = Chapter(machine)
    with pytest.raises(SpecError) as error:
        _ = chapter.invariants, [chapter.event(name) for name in chapter.event_names], chapter.theorems
    assert (machine.__doc__ or "") in str(error.value)
    assert error.value.where.file == __file__


def test_possible_is_for_chapters() -> None:
    with pytest.raises(SpecError, match=r"possible\(\.\.\.\) outside a chapter"):
        possible(Shelf.put)
