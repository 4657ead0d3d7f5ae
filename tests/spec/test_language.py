"""Misuse of the vocabulary is an error where it stands, with what was expected instead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvspec.spec.blocks import Blocks, Holder
from kvspec.spec.language import (
    Bool,
    Chapter,
    Id,
    Machine,
    Map,
    Nat,
    Set,
    SpecError,
    event,
    forall,
    init,
    invariant,
    old,
    refines,
    require,
    theorem,
    use,
    when,
)
from kvspec.spec.prefix_cache import PrefixCache
from kvspec.spec.sorts import Block, Seat


class Toy(Id):
    """Something."""


class PythonIf(Machine):
    """Asks Python."""

    toys: Set[Toy]

    @event
    def play(self, toy: Toy) -> None:
        """Play."""
        if self.toys.has(toy):
            self.toys.discard(toy)


class PythonAnd(Machine):
    """Asks Python to connect."""

    toys: Set[Toy]

    @event
    def play(self, toy: Toy, other: Toy) -> None:
        """Play."""
        require(self.toys.has(toy) and self.toys.has(other))


class PythonIn(Machine):
    """Asks Python for a member."""

    toys: Set[Toy]

    @event
    def play(self, toy: Toy) -> None:
        """Play."""
        require(toy in self.toys)  # type: ignore[operator]


class Iterates(Machine):
    """Goes through a set."""

    toys: Set[Toy]

    @event
    def play(self) -> None:
        """Play."""
        for toy in self.toys:  # type: ignore[attr-defined]
            require(toy == toy)


class Undeclared(Machine):
    """Reads what is not there."""

    toys: Set[Toy]

    @event
    def play(self) -> None:
        """Play."""
        require(self.games.is_empty())


class AssignsUndeclared(Machine):
    """Writes what is not there."""

    toys: Set[Toy]

    @event
    def play(self) -> None:
        """Play."""
        self.games = 1


class WritesAnothersVariable(Machine):
    """Writes what belongs to blocks."""

    blocks = use(Blocks, Holder=Seat)

    @event
    def take(self, block: Block) -> None:
        """Take."""
        self.blocks.free.discard(block)


class CallsPast(Machine):
    """Calls an event of a chapter that belongs to a chapter."""

    cache = use(PrefixCache)

    @event
    def take(self, block: Block, seat: Seat) -> None:
        """Take."""
        self.cache.blocks.take(block, seat)


class WrongSort(Machine):
    """Mixes sorts."""

    toys: Set[Toy]

    @event
    def play(self, block: Block) -> None:
        """Play."""
        self.toys.add(block)  # type: ignore[arg-type]


class WrongCount(Machine):
    """Calls with too few."""

    blocks = use(Blocks)

    @event
    def take(self, block: Block) -> None:
        """Take."""
        self.blocks.take(block)  # type: ignore[call-arg]


class NoAnnotation(Machine):
    """Forgets a sort."""

    toys: Set[Toy]

    @event
    def play(self, toy) -> None:  # type: ignore[no-untyped-def]
        """Play."""
        self.toys.add(toy)


class ReplacesWhole(Machine):
    """Assigns a set."""

    toys: Set[Toy]
    other: Set[Toy]

    @event
    def play(self) -> None:
        """Play."""
        self.toys = self.other


class LooksAtAbstract(Machine):
    """Decides by the state that it implements."""

    blocks = refines(Blocks)

    @event
    def take(self, block: Block, holder: Holder) -> None:
        """Take."""
        require(self.blocks.free.has(block))
        self.blocks.take(block, holder)


class InvariantChanges(Machine):
    """Changes something in an invariant."""

    toys: Set[Toy]

    @init
    def start(self) -> None:
        self.toys.clear()

    @invariant("changes")
    def changes(self) -> Bool:
        self.toys.clear()
        return self.toys.is_empty()


class InvariantRequires(Machine):
    """Requires something in an invariant."""

    toys: Set[Toy]

    @invariant("requires")
    def requires(self) -> Bool:
        require(self.toys.is_empty())
        return self.toys.is_empty()


class OldInAnInvariant(Machine):
    """Looks back where there is no step."""

    toys: Set[Toy]

    @invariant("looks back")
    def looks_back(self) -> Bool:
        return old(self).toys.is_empty()


class WrongParameter(Machine):
    """A theorem with a name that the event does not have."""

    toys: Set[Toy]

    @event
    def play(self, toy: Toy) -> None:
        """Play."""
        self.toys.add(toy)

    @theorem("speaks of another", after=play)
    def speaks(self, other: Toy) -> Bool:
        return self.toys.has(other)


class TooManyVariables(Machine):
    """A rule with more parameters than sorts."""

    toys: Set[Toy]

    @invariant("two for one")
    def two(self) -> Bool:
        return forall(Toy, lambda a, b: a == b)


class CountsWithSets(Machine):
    """Compares a set with a number."""

    toys: Set[Toy]
    number: Nat
    of: Map[Toy, Nat]

    @invariant("compares")
    def compares(self) -> Bool:
        return self.number == self.toys


def _events(machine: type[Machine]) -> None:
    chapter = Chapter(machine)
    for name in chapter.event_names:
        chapter.event(name)


def _statements(machine: type[Machine]) -> None:
    chapter = Chapter(machine)
    assert chapter.invariants or chapter.theorems


@pytest.mark.parametrize(
    ("machine", "read", "what", "expected"),
    [
        (PythonIf, _events, "used as a Python truth value", "when("),
        (PythonAnd, _events, "used as a Python truth value", "&"),
        (PythonIn, _events, "'in' on a symbolic set", "set.has"),
        (Iterates, _events, "a symbolic set is iterated", "forall"),
        (Undeclared, _events, "'games' is not declared in Undeclared", "annotated variable"),
        (AssignsUndeclared, _events, "'games' is not declared in AssignsUndeclared", "annotated state variable"),
        (
            WritesAnothersVariable,
            _events,
            "writes blocks.free, which belongs to Blocks",
            "a call of an event of Blocks",
        ),
        (CallsPast, _events, "cache.blocks.take is called past the chapter", "used directly"),
        (WrongSort, _events, "a value of sort Block", "sort Toy"),
        (WrongCount, _events, "take called with 1 arguments", "2"),
        (NoAnnotation, _events, "parameter toy of play", "an annotation that names a sort"),
        (ReplacesWhole, _events, "'toys' is replaced as a whole", "toys.assign("),
        (LooksAtAbstract, _events, "take reads blocks.free, which it implements", "own state"),
        (InvariantChanges, _statements, "a invariant changes toys", "a statement that changes nothing"),
        (InvariantRequires, _statements, "require(...) in a invariant", "an event"),
        (OldInAnInvariant, _statements, "old(...) in a invariant", "a theorem about a step"),
        (WrongParameter, _statements, "speaks: parameter other", "toy"),
        (TooManyVariables, _statements, "a rule of 2 parameters", "1"),
        (CountsWithSets, _statements, "a value of Python type Set", "sort Nat"),
    ],
)
def test_misuse_is_an_error_with_its_line(
    machine: type[Machine], read: Callable[[type[Machine]], None], what: str, expected: str
) -> None:
    with pytest.raises(SpecError) as caught:
        read(machine)
    assert what in caught.value.what
    assert expected in caught.value.expected
    assert str(caught.value).startswith("test_language.py:")


def test_words_of_events_mean_nothing_outside_a_chapter() -> None:
    with pytest.raises(SpecError, match=r"require\(...\) outside a chapter"):
        require(Bool(Chapter(Blocks).invariants[0].term))
    with (
        pytest.raises(SpecError, match=r"when\(...\) outside a chapter"),
        when(Bool(Chapter(Blocks).invariants[0].term)),
    ):
        pass


def test_a_sort_that_is_none_is_an_error_where_the_chapter_is_declared() -> None:
    with pytest.raises(SpecError, match="a sort, Set"):

        class Wrong(Machine):
            """Names no sort."""

            number: int
