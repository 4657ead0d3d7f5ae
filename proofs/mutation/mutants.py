"""All mutants of a chapter: its text with one mistake, made by the machine from what was traced.

A mutant is known by its chapter, its row (an event, ``init``, a pure function, ``axiom`` or ``invariant``) and what was
changed there, in the words of the text, so its name outlives changes elsewhere. What a chapter takes from another one
is mutated where it stands: here only its own statements, and the calls that it makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from kvspec.proofs.mutation.neighbours import conditions, results, values
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import START, Chapter
from kvspec.spec.language.digest import digest
from kvspec.spec.language.errors import SourceLine, SpecError
from kvspec.spec.language.prose import render, short, unambiguous
from kvspec.spec.language.terms import Sort, Term
from kvspec.spec.language.traced import Site, Statement, StaticSymbol, TracedEvent
from kvspec.spec.language.tracing import Edit
from kvspec.spec.language.values import Value, lift, wrap

AXIOM, INVARIANT = "axiom", "invariant"
STATED = (AXIOM, INVARIANT)
"""Rows that all obligations of a chapter may rest on."""


@dataclass(frozen=True)
class Mutant:
    """One mistake. ``operator`` is drop, replace, off-by-one, negate, weaken, true or restrict."""

    chapter: str
    row: str
    operator: str
    change: str
    where: SourceLine
    text: Chapter = field(repr=False, compare=False)
    """The chapter with the mistake in it."""
    alike: Term | None = None
    """Of a pure function: that it computes the same with the mistake, for the parameters that occur free."""

    @property
    def id(self) -> str:
        return f"{self.chapter}.{self.row}: {self.change}"

    @property
    def invariant(self) -> str:
        """The invariant that was weakened; empty for a mutant of an event."""
        return self.change.partition(" ")[0] if self.row == INVARIANT else ""


def mutants(name: str, chapter: Chapter) -> Iterator[Mutant]:
    """Every mutant of a chapter, in the order of its text."""
    for row in (START, *chapter.event_names):
        yield from _numbered(of_row(name, chapter, row))
    for function in chapter.functions:
        yield from of_function(name, chapter, function)
    yield from of_axioms(name, chapter)
    yield from of_invariants(name, chapter)


def _numbered(found: Iterable[Mutant]) -> Iterator[Mutant]:
    """Statements that stand twice in a text are told apart by a number; mutants that say the same are one."""
    counts: dict[str, int] = {}
    seen: set[str] = set()
    for m in found:
        said = content(m)
        if said not in seen:
            seen.add(said)
            n = counts[m.change] = counts.get(m.change, 0) + 1
            yield m if n == 1 else Mutant(m.chapter, m.row, m.operator, f"{m.change} ({n})", m.where, m.text)


def content(mutant: Mutant) -> str:
    """The fingerprint of the row that was changed."""
    return row_content(mutant.text, mutant.row)


def row_content(chapter: Chapter, row: str) -> str:
    """What a row says: an event, the start, or all invariants."""
    if row == START:
        return digest(chapter.initial.values())
    if row == INVARIANT:
        return digest(s.term for s in chapter.invariants)
    if row == AXIOM:
        return digest(s.term for s in chapter.axioms)
    if row in chapter.functions:
        return digest(s.term for s in chapter.theorems if s.after is None)
    event = chapter.event(row)
    changes = [e for p, t in event.after.items() for e in (chapter.env[p], t) if t is not chapter.env[p]]
    return digest([event.guard, *(o.term for o in event.owed), *changes], event.parameters)


# -- events and the start ----------------------------------------------------------------------------------------------


def of_row(name: str, chapter: Chapter, row: str) -> Iterator[Mutant]:
    event = None if row == START else chapter.event(row)
    sites = chapter.start_sites if event is None else event.sites
    original = row_content(chapter, row)
    asking = [s.name for s in chapter.theorems if row in s.asks]
    for site in sites:
        for operator, change, terms in _mistakes(chapter, event, sites, site):
            text = _with(chapter, row, _instead(site.number, terms), asking)
            if text is not None and row_content(text, row) != original:
                yield Mutant(name, row, operator, change, site.where, text)


def _with(chapter: Chapter, row: str, edit: Edit, asking: Iterable[str]) -> Chapter | None:
    """None where the mistake makes a text that means nothing: an implementation that reads what it implements, or an
    event of which the theorems that ask for it cannot speak."""
    try:
        text = chapter.with_start(edit) if row == START else chapter.with_event(row, edit)
        for name in asking:
            text.theorem(name)
    except SpecError:
        return None
    return text


def _instead(number: int, terms: tuple[Term, ...] | None) -> Edit:
    return lambda site: terms if site.number == number else site.terms


Mistake = tuple[str, str, tuple[Term, ...] | None]
"""Operator, change in words, and the terms to be read (None: the statement is left out)."""


def _mistakes(chapter: Chapter, event: TracedEvent | None, sites: Sequence[Site], site: Site) -> Iterator[Mistake]:
    tell = _telling(chapter)
    said = tell(site, site.terms)
    if site.kind == "when":
        yield "weaken", f"{said} becomes always", (T.TRUE,)
        yield "negate", f"{said} is negated", (T.neg(site.terms[0]),)
    else:
        yield "drop", f"without {said}", None
    if site.kind in ("when", "require"):
        for operator, other in conditions(site.terms[0]):
            yield operator, f"{said} becomes {tell(site, (other,))}", (other,)
        return
    pool = _pool(chapter, event, sites)
    for i, term in enumerate(site.terms):
        for operator, other in values(term, pool):
            terms = (*site.terms[:i], other, *site.terms[i + 1 :])
            yield operator, f"{said} becomes {tell(site, terms)}", terms


def _pool(chapter: Chapter, event: TracedEvent | None, sites: Sequence[Site]) -> list[Term]:
    """Values at hand: parameters, constants, and what the text speaks of."""
    parameters = () if event is None else event.parameters
    constants = [
        T.make("static", (), s.result, p)
        for p, s in chapter.statics.items()
        if not s.arguments and isinstance(s.result, Sort)
    ]
    spoken = [
        t
        for site in sites
        for term in site.terms
        for t in T.subterms(term)
        if t.op in ("get", "call", "zero", "next", "prev") and t.free <= frozenset(parameters)
    ]
    return [*parameters, *constants, *spoken]


def _telling(chapter: Chapter) -> Callable[[Site, tuple[Term, ...]], str]:
    names = unambiguous([*chapter.variables, *chapter.statics])

    def tell(site: Site, terms: tuple[Term, ...]) -> str:
        told = [render(t, names) for t in terms]
        match site.kind:
            case "require" | "when":
                return f"{site.kind} {told[0]}"
            case "call":
                return f"{site.about[0]}({', '.join(told)})"
        name, kind = site.about
        values = 1 if kind == "assign" else len(told) - _keys(chapter, name)
        keys, args = told[: len(told) - values], told[len(told) - values :]
        place = name + (f"[{', '.join(keys)}]" if keys else "")
        if kind == "assign":
            return f"{place} := {args[0]}"
        element = args[0] if len(args) == 1 else f"({', '.join(args)})"
        return f"{place}.{'add' if kind == 'set_add' else 'discard'}({element})"

    return tell


def _keys(chapter: Chapter, name: str) -> int:
    sort = chapter.variables[tuple(name.split("."))].sort
    return len(sort.keys) if isinstance(sort, T.MapSort) else 0


# -- functions ---------------------------------------------------------------------------------------------------------


def of_function(name: str, chapter: Chapter, function: str) -> Iterator[Mutant]:
    """A pure function that the chapter's theorems speak of, computing something else."""
    body = chapter.functions[function]
    parameters = tuple(T.variable(p, T.NAT) for p in inspect.signature(body).parameters)
    result = cast("Value", body(*map(wrap, parameters))).term
    code = body.__code__
    where = SourceLine(code.co_filename, code.co_firstlineno)
    for operator, other in results(result):
        text = chapter.with_functions({function: _computing(parameters, other)})
        change = f"{render(result, short)} becomes {render(other, short)}"
        yield Mutant(name, function, operator, change, where, text, T.eq(result, other))


def _computing(parameters: tuple[Term, ...], result: Term) -> Callable[..., Value]:
    def compute(*args: object) -> Value:
        terms = [lift(a, T.NAT) for a in args]
        return cast("Value", wrap(T.substitute(result, dict(zip(parameters, terms, strict=True)))))

    return compute


# -- axioms ------------------------------------------------------------------------------------------------------------


def of_axioms(name: str, chapter: Chapter) -> Iterator[Mutant]:
    """Each axiom of the chapter's own left out: what nothing rests on need not be assumed."""
    for s in chapter.axioms:
        if "." not in s.name:
            yield Mutant(name, AXIOM, "drop", f"{s.name} is not assumed", s.where, chapter.without_axiom(s.name))


# -- invariants --------------------------------------------------------------------------------------------------------


def of_invariants(name: str, chapter: Chapter) -> Iterator[Mutant]:
    """Each invariant left out, and each of its quantifiers made to spare something."""
    for s in chapter.invariants:
        if s.term is not T.TRUE:
            text = chapter.with_invariant(s.name, T.TRUE)
            yield Mutant(name, INVARIANT, "true", f"{s.name} becomes true", s.where, text)
            yield from _restricted(name, chapter, s)


def _restricted(name: str, chapter: Chapter, s: Statement) -> Iterator[Mutant]:
    if s.term.op != "forall":
        return
    for v in s.term.data:
        condition, symbols = _spare(v)
        body = T.implies(condition, s.term.args[0])
        text = chapter.with_invariant(s.name, T.quantify("forall", s.term.data, body), *symbols)
        change = f"{s.name} only for {render(condition, short)}"
        yield Mutant(name, INVARIANT, "restrict", change, s.where, text)


def _spare(v: Term) -> tuple[Term, tuple[StaticSymbol, ...]]:
    """That a variable is not the one value that is spared: zero, or some element, whichever."""
    assert isinstance(v.sort, Sort)
    if v.sort == T.NAT:
        return T.neg(T.eq(v, T.num(0))), ()
    if v.sort.kind == "position":
        return T.neg(T.eq(v, T.make("zero", (), v.sort))), ()
    symbol = StaticSymbol((f"some_{v.sort.name}",), (), v.sort)
    return T.neg(T.eq(v, T.make("static", (), v.sort, symbol.path))), (symbol,)
