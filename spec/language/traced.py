"""What tracing leaves of a chapter's text: terms with the lines that they came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvspec.spec.language import terms as T
from kvspec.spec.language.errors import SourceLine
from kvspec.spec.language.terms import AnySort, MapSort, Path, Sort, Term


@dataclass(frozen=True)
class Variable:
    """A state variable of a chapter or of an instance inside it."""

    path: Path
    sort: AnySort
    ghost: bool

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class StaticSymbol:
    """A static constant or function; ``arguments`` is empty for a constant."""

    path: Path
    arguments: tuple[Sort, ...]
    result: AnySort

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class Requirement:
    """What an event asks for before it runs."""

    term: Term
    where: SourceLine


@dataclass(frozen=True)
class Owed:
    """What a called event of another chapter asks for; the caller has to prove it (``caller->callee/pre``)."""

    callee: str
    term: Term
    where: SourceLine


@dataclass(frozen=True)
class Effect:
    """One change: ``kind`` is assign, set_add or set_remove; all terms speak of the state before the event."""

    path: Path
    keys: tuple[Term, ...]
    kind: str
    args: tuple[Term, ...]
    condition: Term
    where: SourceLine


@dataclass(frozen=True)
class Site:
    """A statement of an event's own text, as it is read.

    ``kind`` is require, change, call or when; ``about`` names the variable (and how it changes: assign, set_add,
    set_remove) or the called event. ``terms`` are the condition, the keys and values, or the arguments.
    """

    kind: str
    number: int
    about: tuple[str, ...]
    terms: tuple[Term, ...]
    where: SourceLine


@dataclass
class TracedEvent:
    """An event, read once."""

    name: str
    sentence: str
    parameters: tuple[Term, ...]
    where: SourceLine
    requires: list[Requirement] = field(default_factory=list)
    owed: list[Owed] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    after: dict[Path, Term] = field(default_factory=dict)

    @property
    def guard(self) -> Term:
        return T.conj(r.term for r in self.requires)


@dataclass(frozen=True)
class Statement:
    """An invariant, axiom, theorem or witness: a name, a sentence and a term.

    ``after`` names the event whose step a theorem speaks of, or ``init``.
    """

    name: str
    sentence: str
    term: Term
    where: SourceLine
    after: str | None = None
    asks: tuple[str, ...] = ()
    """Events of which it says that they are possible."""


@dataclass(frozen=True)
class LoopParts:
    """The pieces of a loop that a verification condition needs; see `Loop`."""

    name: str
    sentence: str
    where: SourceLine
    step: str
    parameters: tuple[Term, ...]
    start: Term
    keep: Term
    again: Term
    measure: Term
    result: Term


def holds_nat(sort: AnySort) -> bool:
    return sort == T.NAT or (isinstance(sort, MapSort) and sort.value == T.NAT)


def natural(v: Variable, state: Term, where: SourceLine) -> Statement:
    """That a counter is never negative: the type fact of sort Nat."""
    keys = tuple(T.variable("x", s) for s in v.sort.keys) if isinstance(v.sort, MapSort) else ()
    value = T.make("get", (state, *keys), T.NAT) if keys else state
    term = T.quantify("forall", keys, T.neg(T.make("lt", (value, T.num(0)), T.BOOL)))
    return Statement(f"{v.name}_natural", f"the counter {v.name} is never below zero", term, where)


def natural_static(s: StaticSymbol, where: SourceLine) -> Statement:
    """The same of a static number, which nothing proves: it is what the sort says."""
    symbol = T.make("static", (), s.result, s.path)
    keys = tuple(T.variable("x", sort) for sort in s.arguments)
    value = T.make("call", (symbol, *keys), T.NAT) if keys else symbol
    term = T.quantify("forall", keys, T.neg(T.make("lt", (value, T.num(0)), T.BOOL)))
    return Statement(f"{s.name}_natural", f"the number {s.name} is never below zero", term, where)
