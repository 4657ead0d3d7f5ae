"""False statements about small chapters that once could be proved, or texts that lost a statement without a word."""

from __future__ import annotations

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
    Position,
    Set,
    SpecError,
    event,
    exists,
    false,
    forall,
    implies,
    inherit,
    init,
    invariant,
    nat,
    old,
    require,
    theorem,
    use,
)


class A(Id):
    """A thing."""


class Day(Position):
    """A day."""


def verdicts(cls: type[Machine]) -> dict[str, Verdict]:
    return {r.id.partition(".")[2]: r.verdict for r in prove_chapter("made", Chapter(cls), Options(solvers=("z3",)))}


class Counter(Machine):
    """Counts up by what it is told."""

    n: Nat

    @init
    def start(self) -> None:
        self.n = nat(0)

    @event
    def add(self, k: Nat) -> None:
        """Count."""
        self.n = self.n + k


class Owner(Machine):
    """Only members may be taken."""

    s: Set[A]

    @event
    def take(self, x: A) -> None:
        """Take a member."""
        require(self.s.has(x))
        self.s.discard(x)


def test_a_number_that_is_given_to_an_event_must_not_be_negative() -> None:
    class Up(Machine):
        """Counts down by counting up."""

        low = use(Counter)
        a: Nat

        @init
        def start(self) -> None:
            self.a = nat(0)

        @event
        def go(self) -> None:
            """Add one less than nothing."""
            self.low.add(self.a - 1)

    assert verdicts(Up)["go->low.add/pre.1"] is Verdict.REFUTED


@pytest.mark.parametrize("by_inheritance", [False, True])
def test_a_call_inside_the_chapter_does_not_hide_what_it_calls_further_down(by_inheritance: bool) -> None:
    class Up(Machine):
        """Breaks its invariant on the way and calls its own event, which counts on it."""

        low = use(Owner)
        mine: Set[A]

        @event
        def grab(self, x: A) -> None:
            """Take what is mine."""
            require(self.mine.has(x))
            self.mine.discard(x)
            self.low.take(x)

        @event
        def bad(self, x: A) -> None:
            """Call something mine that is not, and grab it."""
            self.mine.add(x)
            if by_inheritance:
                inherit(self.grab)(x)
            else:
                self.grab(x)

        @invariant("what is mine is there")
        def inside(self) -> Bool:
            return forall(A, lambda a: implies(self.mine.has(a), self.low.s.has(a)))

    assert verdicts(Up)["bad->low.take/pre.1"] is Verdict.REFUTED


def test_names_of_the_text_are_not_names_of_the_machinery() -> None:
    class Inner(Machine):
        """A number that is always nothing, and a statement that is always false."""

        s: Nat

        @init
        def start(self) -> None:
            self.s = nat(0)

    class Outer(Machine):
        """An instance with a treacherous name beside a set."""

        size = use(Inner)
        nonempty = use(Inner)
        s: Set[A]

        @event
        def grow(self, a: A) -> None:
            """One more."""
            self.s.add(a)

        @invariant("the number is nothing")
        def nothing(self) -> Bool:
            return self.size.s == 0

        @theorem("the set has no members")
        def no_members(self) -> Bool:
            return self.s.size() == 0

        @theorem("the set is empty")
        def empty(self) -> Bool:
            return self.s.is_empty()

    found = verdicts(Outer)
    assert found["theorem/no_members"] is Verdict.REFUTED
    assert found["theorem/empty"] is Verdict.REFUTED


def test_only_what_is_said_of_counters_is_assumed_at_the_start() -> None:
    class Start(Machine):
        """No init sets the set."""

        x: Set[A]

        @invariant("nothing is in it")
        def x_natural(self) -> Bool:
            return self.x.is_empty()

    assert verdicts(Start)["init/x_natural"] is Verdict.REFUTED


def test_there_is_always_a_later_day() -> None:
    class Days(Machine):
        """A calendar without end."""

        today: Day

        @event
        def sleep(self) -> None:
            """The next day."""
            self.today = self.today.next()

        @theorem("there is a later day")
        def later(self) -> Bool:
            return exists(Day, lambda d: d > self.today)

    assert verdicts(Days)["theorem/later"] is not Verdict.REFUTED


def test_sets_maps_and_machines_are_not_compared_as_objects() -> None:
    class Equal(Machine):
        """Two sets."""

        a: Set[A]
        b: Set[A]
        m: Map[A, A]

        @theorem("sets")
        def of_sets(self) -> Bool:
            return implies(self.a == self.b, false())  # type: ignore[arg-type]

        @theorem("maps")
        def of_maps(self) -> Bool:
            return self.m != self.m  # type: ignore[return-value]

        @theorem("machines")
        def of_machines(self) -> Bool:
            return self == self  # type: ignore[return-value]

    with pytest.raises(SpecError, match=r"set\.equals"):
        verdicts(Equal)
    for name in ("of_maps", "of_machines"):
        with pytest.raises(SpecError, match="=="):
            Chapter(Equal)._theorem(vars(Equal)[name])


def test_a_name_is_declared_once() -> None:
    with pytest.raises(SpecError, match="declared twice"):

        class Twice(Machine):
            """Two statements of one name."""

            @invariant("false")
            def inv(self) -> Bool:
                return false()

            @invariant("another")  # type: ignore[no-redef]
            def inv(self) -> Bool:  # noqa: F811
                return ~false()


def test_an_instance_replaces_only_sorts_that_its_chapter_has() -> None:
    class Wrong(Machine):
        """A misspelt sort."""

        low = use(Owner, Nope=A)

    with pytest.raises(SpecError, match="Nope"):
        Chapter(Wrong)


def test_a_theorem_speaks_of_an_event_of_its_own_chapter() -> None:
    class Other(Machine):
        """A theorem about somebody else's event."""

        low = use(Owner)

        @theorem("elsewhere", after=Owner.take)
        def elsewhere(self) -> Bool:
            return false()

    with pytest.raises(SpecError, match="take"):
        verdicts(Other)


class Diary(Machine):
    """Days up to the last one; a counterexample has to say something of each of them, or of all days."""

    last: Day
    kept: Set[Day]

    @invariant("the last day is kept")
    def last_kept(self) -> Bool:
        return self.kept.has(self.last)

    @theorem("not all days up to the last one are kept")
    def some_lost(self) -> Bool:
        return ~forall(Day, lambda d: implies(d <= self.last, self.kept.has(d)))

    @theorem("below some kept day one is lost")
    def some_lost_below(self) -> Bool:
        return ~forall(Day, Day, lambda c, d: implies((c < d) & (d <= self.last), self.kept.has(c)))

    @theorem("not all days are kept")
    def some_lost_anywhere(self) -> Bool:
        return ~forall(Day, lambda d: self.kept.has(d))

    @theorem("not all days from the last one on are kept")
    def some_lost_behind(self) -> Bool:
        return ~forall(Day, lambda d: implies(self.last <= d, self.kept.has(d)))


def test_what_is_said_of_days_below_another_is_decided_by_a_few_days_and_nothing_else_is() -> None:
    found = verdicts(Diary)
    assert found["theorem/some_lost"] is found["theorem/some_lost_below"] is Verdict.REFUTED
    assert found["theorem/some_lost_anywhere"] is found["theorem/some_lost_behind"] is Verdict.UNKNOWN


def test_old_is_for_steps() -> None:
    class Past(Machine):
        """Speaks of a past that a state does not have."""

        s: Set[A]

        @theorem("a state")
        def state(self) -> Bool:
            return old(self).s.is_empty()

    with pytest.raises(SpecError, match="old"):
        verdicts(Past)


def test_the_day_after_a_bound_day_has_no_meaning() -> None:
    class Bound(Machine):
        """All next days."""

        s: Set[Day]

        @invariant("closed")
        def closed(self) -> Bool:
            return forall(Day, lambda d: implies(self.s.has(d), self.s.has(d.next())))

    with pytest.raises(SpecError, match="bound"):
        verdicts(Bound)


def test_an_event_does_not_call_itself() -> None:
    class Round(Machine):
        """A circle."""

        @event
        def go(self) -> None:
            """Again."""
            self.go()

    with pytest.raises(SpecError, match="calls itself"):
        verdicts(Round)
