"""An event reads only what there is: no position before the first, no field of another case."""

from __future__ import annotations

import pytest

from kvspec.proofs.campaign import prove_chapter
from kvspec.proofs.defined import demands
from kvspec.proofs.obligations import ChapterObligations
from kvspec.proofs.prove import Options
from kvspec.proofs.verdicts import Verdict
from kvspec.spec.language import (
    Bool,
    Chapter,
    Id,
    Machine,
    Map,
    Position,
    Set,
    Variants,
    case,
    choose,
    event,
    exists,
    forall,
    implies,
    init,
    invariant,
    require,
    when,
)
from kvspec.spec.language import terms as T
from kvspec.spec.language.prose import render


class Day(Position):
    """A day."""


class Guest(Id):
    """Somebody."""


class Place(Variants):
    """Where a guest is."""

    room = case(Day)
    outside = case()


class House(Machine):
    """Events that read a day before, or the field of a case."""

    today: Day
    free: Set[Day]
    place: Map[Guest, Place]

    @init
    def start(self) -> None:
        self.today = Day.zero()
        self.free.clear()

    @event
    def careless(self) -> None:
        """Nothing is known of the day."""
        self.free.add(self.today.prev())

    @event
    def careful(self) -> None:
        """The day is not the first."""
        require(~self.today.is_zero())
        self.free.add(self.today.prev())

    @event
    def too_late(self) -> None:
        """It is asked behind what needs it."""
        require(self.free.has(self.today.prev()))
        require(~self.today.is_zero())

    @event
    def in_order(self) -> None:
        """It is asked before what needs it, in one requirement."""
        require(~self.today.is_zero() & self.free.has(self.today.prev()))

    @event
    def out_of_order(self) -> None:
        """It is asked behind what needs it, in one requirement."""
        require(self.free.has(self.today.prev()) & ~self.today.is_zero())

    @event
    def either(self) -> None:
        """The first day, or what was before."""
        require(self.today.is_zero() | self.free.has(self.today.prev()))

    @event
    def only_if(self) -> None:
        """Behind an implication."""
        require(implies(self.free.has(self.today) & ~self.today.is_zero(), self.free.has(self.today.prev())))

    @event
    def inside(self) -> None:
        """An effect under a condition."""
        with when(~self.today.is_zero()):
            self.free.add(self.today.prev())

    @event
    def condition(self) -> None:
        """A condition that needs it itself."""
        with when(self.free.has(self.today.prev())):
            self.free.clear()

    @event
    def choice(self) -> None:
        """One of two values."""
        self.today = choose(self.today.is_zero(), self.today, self.today.prev())

    @event
    def wrong_choice(self) -> None:
        """The other of two values."""
        self.today = choose(self.today.is_zero(), self.today.prev(), self.today)

    @event
    def field(self, guest: Guest) -> None:
        """The day of a guest who may be outside."""
        self.free.add(self.place[guest].field(Place.room, 0))

    @event
    def known_field(self, guest: Guest) -> None:
        """The day of a guest in a room."""
        require(self.place[guest].is_case(Place.room))
        self.free.add(self.place[guest].field(Place.room, 0))

    @event
    def every(self) -> None:
        """The days of all guests in rooms."""
        require(
            forall(
                Guest,
                lambda g: implies(
                    self.place[g].is_case(Place.room), self.free.has(self.place[g].field(Place.room, 0))
                ),
            )
        )

    @event
    def some(self) -> None:
        """The day of some guest, wherever."""
        require(exists(Guest, lambda g: self.free.has(self.place[g].field(Place.room, 0))))

    @event
    def harmless(self, guest: Guest) -> None:
        """Nothing that could be missing."""
        self.today = self.today.next()
        self.place[guest] = Place.outside()


GOOD = ("careful", "in_order", "either", "only_if", "inside", "choice", "known_field", "every")
BAD = ("careless", "too_late", "out_of_order", "condition", "wrong_choice", "field", "some")


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    results = prove_chapter("house", Chapter(House), Options(runs=0))
    return {r.row: r.verdict for r in results if r.column == "defined"}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_read_is_there(name: str, verdicts: dict[str, Verdict]) -> None:
    assert verdicts[name] is Verdict.PROVED


@pytest.mark.parametrize("name", BAD)
def test_what_is_read_may_be_missing(name: str, verdicts: dict[str, Verdict]) -> None:
    assert verdicts[name] is Verdict.REFUTED


def test_an_event_that_reads_only_what_is_always_there_owes_nothing(verdicts: dict[str, Verdict]) -> None:
    assert demands(Chapter(House).event("harmless")) is T.TRUE
    assert set(verdicts) == {*GOOD, *BAD}


def test_what_is_demanded_is_said_in_the_words_of_the_event() -> None:
    chapter = Chapter(House)
    told = {name: render(demands(chapter.event(name))) for name in ("careless", "careful", "condition", "some")}
    assert told == {
        "careless": "today ≠ 0",
        "careful": "today ≠ 0 → today ≠ 0",
        "condition": "today ≠ 0",
        "some": "∀ g ∈ Guest. place[g] is room",
    }


def test_an_invariant_may_be_what_makes_it_defined() -> None:
    class Later(Machine):
        """It is never the first day."""

        today: Day
        free: Set[Day]

        @event
        def back(self) -> None:
            """The day before."""
            self.free.add(self.today.prev())

        @invariant("it is not the first day")
        def not_first(self) -> Bool:
            return ~self.today.is_zero()

    (defined,) = (o for o in ChapterObligations("later", Chapter(Later)) if o.column == "defined")
    assert defined.id == "later.back/defined"
    found = {r.id: r.verdict for r in prove_chapter("later", Chapter(Later), Options(runs=0))}
    assert found[defined.id] is Verdict.PROVED
