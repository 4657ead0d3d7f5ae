"""Mutants as texts: which mistakes are made, what they are called, and that each says something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import pytest
from editions import edition
from library import Book, Day, Library, Shop

from kvspec.proofs.mutation.mutants import AXIOM, Mutant, content, mutants, row_content
from kvspec.proofs.mutation.neighbours import Neighbour, conditions, results, values
from kvspec.spec import CHAPTERS, load
from kvspec.spec.language import (
    Bool,
    Chapter,
    Machine,
    Set,
    SpecError,
    Variants,
    case,
    event,
    forall,
    implies,
    inherit,
    possible,
    require,
    theorem,
    use,
)
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import START
from kvspec.spec.language.prose import render
from kvspec.spec.language.terms import BOOL, NAT, MapSort, SetSort, Term
from kvspec.spec.language.traced import Site


def found(machine: type[Machine] = Library) -> list[Mutant]:
    return list(mutants("library", Chapter(machine)))


MUTANTS = """
drop        init: without lent := ∅
drop        init: without count := 0
off-by-one  init: count := 0 becomes count := 1
drop        lend: without require book ∉ lent
drop        lend: without require today < day ∧ book ≠ bible
off-by-one  lend: require today < day ∧ book ≠ bible becomes require today ≤ day ∧ book ≠ bible
weaken      lend: require today < day ∧ book ≠ bible becomes require book ≠ bible
weaken      lend: require today < day ∧ book ≠ bible becomes require today < day
drop        lend: without lent.add(book)
replace     lend: lent.add(book) becomes lent.add(bible)
drop        lend: without due[book] := day
replace     lend: due[book] := day becomes due[bible] := day
off-by-one  lend: due[book] := day becomes due[book] := day + 1
drop        lend: without count := count + 1
off-by-one  lend: count := count + 1 becomes count := (count + 1) + 1
weaken      extend: when due[book] ≤ today becomes always
negate      extend: when due[book] ≤ today is negated
off-by-one  extend: when due[book] ≤ today becomes when due[book] < today
drop        extend: without due[book] := due[book] + 1
replace     extend: due[book] := due[book] + 1 becomes due[bible] := due[book] + 1
off-by-one  extend: due[book] := due[book] + 1 becomes due[book] := due[book]
drop        close: without lent := {b ∈ Book | b ∈ lent ∧ due[b] < today}
weaken      close: lent := {b ∈ Book | b ∈ lent ∧ due[b] < today} becomes lent := {b ∈ Book | due[b] < today}
weaken      close: lent := {b ∈ Book | b ∈ lent ∧ due[b] < today} becomes lent := {b ∈ Book | b ∈ lent}
off-by-one  rounded: (number div unit) · unit becomes (number div unit) · unit + 1
replace     rounded: (number div unit) · unit becomes number div unit + unit
replace     rounded: (number div unit) · unit becomes (number mod unit) · unit
true        invariant: bible_stays becomes true
true        invariant: due_later becomes true
restrict    invariant: due_later only for b ≠ some_Book
restrict    invariant: due_later only for d ≠ 0
true        invariant: count_natural becomes true
"""


def test_the_mutants_of_a_chapter() -> None:
    assert [f"{m.operator:<10}  {m.id.removeprefix('library.')}" for m in found()] == MUTANTS.split("\n")[1:-1]


def test_a_mutant_knows_the_line_of_its_statement() -> None:
    chapter = Chapter(Library)
    lines = {m.where.line for m in found() if m.row == "lend"}
    assert lines == {s.where.line for s in chapter.event("lend").sites}
    (stays, *_) = (m for m in found() if m.invariant == "bible_stays")
    assert stays.where == {s.name: s.where for s in chapter.invariants}["bible_stays"]


def test_the_text_of_a_mutant_says_what_its_name_says() -> None:
    texts = {m.change: m.text for m in found()}
    assert render(texts["without require book ∉ lent"].event("lend").guard) == "today < day ∧ book ≠ bible"
    assert render(texts["count := 0 becomes count := 1"].initial["count",]) == "1"
    assert render(texts["lent.add(book) becomes lent.add(bible)"].event("lend").after["lent",]) == "lent ∪ {bible}"
    spared = next(s for s in texts["due_later only for d ≠ 0"].invariants if s.name == "due_later")
    assert render(spared.term) == "∀ b ∈ Book, d ∈ Day. d ≠ 0 → (b ∈ lent ∧ due[b] = d → today < d)"
    rounded = texts["(number div unit) · unit becomes (number mod unit) · unit"].theorems[0]
    assert render(rounded.term) == "∀ n ∈ Nat, u ∈ Nat. (n mod (u + 1)) · (u + 1) ≤ n"


def test_the_names_of_mutants_outlive_changes_elsewhere() -> None:
    def visit(self: Library, book: Book) -> None:
        """A book is looked at."""
        require(self.lent.has(book))

    before, after = [m.id for m in found()], [m.id for m in found(edition(visit=event(visit)))]
    assert [id for id in after if not id.startswith("library.visit:")] == before
    assert len(after) == len(before) + 1


def test_statements_that_stand_twice_are_told_apart() -> None:
    def lend(self: Library, book: Book) -> None:
        """A book is lent, and comes back at once."""
        self.count = self.count + 1
        self.lent.discard(book)
        self.count = self.count + 1

    names = [m.change for m in found(edition(lend=event(lend))) if m.row == "lend" and m.operator == "drop"]
    # Each of the two makes the number larger by one, so leaving out the one is leaving out the other.
    assert names == ["without count := count + 1", "without lent.discard(book)"]

    def extend(self: Library, book: Book) -> None:
        """Both ends of a day."""
        self.due[book] = self.today
        self.due[self.bible] = self.today
        self.due[book] = self.today

    names = [m.change for m in found(edition(extend=event(extend))) if m.row == "extend" and m.operator == "drop"]
    assert len(names) == len(set(names))


def test_a_mistake_that_makes_an_implementation_read_what_it_implements_is_no_text() -> None:
    chapter = Chapter(Shop)
    (argument,) = chapter.event("put").sites[0].terms
    with pytest.raises(SpecError, match=r"reads store\.place"):
        chapter.with_event("put", lambda site: (argument,) if site.number == 1 else site.terms)
    assert [m.change for m in found(Shop) if m.row == "put"] == [
        "without store.store(place[book])",
        "store.store(place[book]) becomes store.store(book)",
        "without mine.add(book)",
    ]


class Row(Machine):
    """Days that are taken."""

    taken: Set[Day]

    @event
    def take(self, day: Day) -> None:
        """A day is taken."""
        require(~self.taken.has(day))
        self.taken.add(day)


class Calendar(Machine):
    """A theorem speaks of an event for any day."""

    row = use(Row)

    @event
    def book(self, day: Day) -> None:
        """A day is booked."""
        inherit(self.row.take)(day)

    @theorem("any day that is not taken can be booked")
    def can_book(self) -> Bool:
        return forall(Day, lambda d: implies(~self.row.taken.has(d), possible(self.book)(d)))


def test_a_mistake_that_a_theorem_about_the_event_cannot_speak_of_is_no_text() -> None:
    """Of the day after any day nothing can be said."""
    chapter = Chapter(Calendar)
    (site,), (day,) = chapter.event("book").sites, chapter.event("book").parameters
    after = T.make("next", (day,), day.sort)
    text = chapter.with_event("book", lambda at: (after,) if at.number == site.number else at.terms)
    with pytest.raises(SpecError, match="the position after a bound one"):
        text.theorem("can_book")
    assert [m.change for m in found(Calendar)] == ["without row.take(day)"]


# -- the specification -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def made_of(name: str) -> tuple[tuple[Mutant, str], ...]:
    """The mutants of a chapter with what they say."""
    return tuple((m, content(m)) for m in mutants(name, load(name)))


@pytest.mark.parametrize("name", CHAPTERS)
def test_mutants_of_a_chapter_are_different_texts_with_different_names(name: str) -> None:
    chapter = load(name)
    made = made_of(name)
    assert made and [id for id, count in Counter(m.id for m, _ in made).items() if count > 1] == []
    rows = {row: row_content(chapter, row) for row in {m.row for m, _ in made}}
    said = Counter(rows.items())
    said.update((m.row, says) for m, says in made)
    assert {said for said, count in said.items() if count > 1} == set()


@pytest.mark.parametrize("name", CHAPTERS)
def test_every_statement_is_left_out_once(name: str) -> None:
    chapter = load(name)
    made: dict[str, set[str]] = {}
    for m, says in made_of(name):
        made.setdefault(m.row, set()).add(says)
    missing = []
    for row in (START, *chapter.event_names):
        for site in chapter.start_sites if row == START else chapter.event(row).sites:
            if site.kind != "when":
                text = left_out(chapter, row, site)
                # A statement without which the text says the same is none.
                if row_content(text, row) not in {*made.get(row, ()), row_content(chapter, row)}:
                    missing.append((row, site))
    assert missing == []
    weakened = {m.invariant for m, _ in made_of(name) if m.operator == "true"}
    assert weakened == {s.name for s in chapter.invariants}
    forgotten = {m.change.partition(" ")[0] for m, _ in made_of(name) if m.row == AXIOM}
    assert forgotten == {s.name for s in chapter.axioms if "." not in s.name}


def left_out(chapter: Chapter, row: str, left: Site) -> Chapter:
    def edit(site: Site) -> tuple[Term, ...] | None:
        return None if site.number == left.number else site.terms

    return chapter.with_start(edit) if row == START else chapter.with_event(row, edit)


# -- what stands in the place of a term --------------------------------------------------------------------------------


class Reader(Variants):
    """Who reads, and until when."""

    member = case(Book, Day)
    guest = case()


B, D, R = Book.sort, Day.sort, Reader.sort
b, c, d = (T.variable(n, s) for n, s in (("b", B), ("c", B), ("d", D)))
n = T.variable("n", NAT)
read = T.make("state", (), SetSort((B,)), ("read",))
due = T.make("state", (), MapSort((B,), D), ("due",))
zero = T.make("zero", (), D)


def has(x: Term) -> Term:
    return T.make("has", (read, x), BOOL)


def less(x: Term, y: Term) -> Term:
    return T.make("lt", (x, y), BOOL)


def told(neighbours: Iterable[Neighbour]) -> list[str]:
    return [f"{how}: {render(term)}" for how, term in neighbours]


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (read, ["replace: ∅"]),
        (T.make("set_empty", (), SetSort((B,))), []),
        (T.TRUE, ["negate: false"]),
        (T.num(3), ["off-by-one: 4"]),
        (n, ["off-by-one: n + 1"]),
        (d, ["off-by-one: d + 1", "replace: 0"]),
        (T.make("next", (d,), D), ["off-by-one: d", "replace: d", "replace: 0"]),
        (T.make("prev", (d,), D), ["off-by-one: d", "replace: d", "replace: 0"]),
        (b, ["replace: c"]),
        (T.make("case", (), R, "guest"), []),
        (
            T.make("case", (b, d), R, "member"),
            ["replace: member(c, d)", "off-by-one: member(b, d + 1)", "replace: member(b, 0)"],
        ),
        (due, []),
    ],
)
def test_what_may_be_written_instead(term: Term, expected: list[str]) -> None:
    assert told(values(term, [b, c, d, zero, n, b])) == expected


def test_no_more_than_two_other_values_are_tried() -> None:
    books = [T.variable(name, B) for name in "vwxyz"]
    assert told(values(b, books)) == ["replace: v", "replace: w"]


def a_set(body: Term) -> Term:
    return T.make("set_lambda", (body,), SetSort((B,)), (b,))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (has(b), ["negate: {b ∈ Book | b ∉ read}", "weaken: {b ∈ Book | true}"]),
        (T.conj((has(b), T.eq(b, c))), ["weaken: {b ∈ Book | b = c}", "weaken: {b ∈ Book | b ∈ read}"]),
        (T.disj((has(b), T.eq(b, c))), ["weaken: {b ∈ Book | b = c}", "weaken: {b ∈ Book | b ∈ read}"]),
        (
            T.make("ite", (has(b), has(c), T.eq(b, c)), BOOL),
            ["weaken: {b ∈ Book | b = c}", "weaken: {b ∈ Book | c ∈ read}"],
        ),
        (
            T.conj((has(c), T.disj((has(b), T.eq(b, c))))),
            [
                "weaken: {b ∈ Book | b ∈ read ∨ b = c}",
                "weaken: {b ∈ Book | c ∈ read}",
                "weaken: {b ∈ Book | c ∈ read ∧ b = c}",
                "weaken: {b ∈ Book | c ∈ read ∧ b ∈ read}",
            ],
        ),
    ],
)
def test_a_rule_that_has_a_part_too_few(body: Term, expected: list[str]) -> None:
    assert told(values(a_set(body), [c])) == expected


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (has(b), []),
        (less(zero, d), ["off-by-one: 0 ≤ d"]),
        (T.neg(less(zero, d)), ["off-by-one: d < 0"]),
        (less(T.num(1), n), ["off-by-one: 1 ≤ n", "off-by-one: 2 < n", "off-by-one: 0 < n"]),
        (T.eq(n, T.num(0)), ["off-by-one: n = 1"]),
        (T.eq(d, T.make("next", (zero,), D)), ["off-by-one: d = 0"]),
        (T.conj((has(b), has(c))), ["weaken: c ∈ read", "weaken: b ∈ read"]),
        (T.disj((has(b), T.conj((has(c), T.eq(b, c))))), ["weaken: b ∈ read ∨ b = c", "weaken: b ∈ read ∨ c ∈ read"]),
        (
            T.quantify("forall", (b,), T.implies(has(b), less(T.make("get", (due, b), D), d))),
            ["off-by-one: ∀ b ∈ Book. b ∈ read → due[b] ≤ d"],
        ),
    ],
)
def test_what_may_be_asked_instead(term: Term, expected: list[str]) -> None:
    assert told(conditions(term)) == expected


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (
            T.make("add", (n, T.num(1)), NAT),
            ["off-by-one: (n + 1) + 1", "off-by-one: n + 2", "off-by-one: n + 0", "replace: n − 1"],
        ),
        (
            T.make("div", (n, T.num(2)), NAT),
            ["off-by-one: n div 2 + 1", "off-by-one: n div 3", "off-by-one: n div 1", "replace: n mod 2"],
        ),
        (T.neg(less(n, T.num(0))), ["negate: n < 0", "off-by-one: 0 < n", "off-by-one: 1 ≤ n"]),
    ],
)
def test_what_may_be_computed_instead(term: Term, expected: list[str]) -> None:
    assert told(results(term)) == expected
