"""What has to be proved of a chapter, each with a stable name.

- ``chapter.init/invariant``: the start state satisfies it;
- ``chapter.event/invariant``: the event keeps it;
- ``chapter.event/defined``: the event reads only what there is;
- ``chapter.event->callee/pre.N``: the event may call what it calls (N counts the callee's requirements);
- ``chapter.theorem``, ``chapter.event/theorem``: it follows;
- ``chapter.loop/part``: the verification conditions of a loop;
- ``chapter.can_fail/invariant``: the invariant is not true in every state whatever the events do;
- ``chapter.defined/statement``: it reads only what there is;
- ``chapter.event/can_fire``, ``chapter.init/can_start`` and the like: the hypotheses of the others can hold together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvspec.proofs.defined import demands, statement_demands
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import START, Chapter
from kvspec.spec.language.errors import SourceLine
from kvspec.spec.language.terms import Path, Sort, Term
from kvspec.spec.language.traced import LoopParts, Statement, TracedEvent

DEFINED = "defined"
"""The row in which statements show that they read only what there is; for events it is a column."""
CAN_FAIL = "can_fail"
"""The row in which every invariant shows that it says something."""


@dataclass(frozen=True)
class Obligation:
    """Hypotheses and a goal, in the words of the specification.

    ``row`` and ``column`` place it in the report's matrix. ``event`` is the step it speaks of, if any. ``statement``
    is the goal before the step was substituted into it, for a reading that takes the step itself. ``kind`` is
    invariant, call, theorem, loop or possible: whether the hypotheses can hold at all.
    """

    id: str
    chapter: str
    row: str
    column: str
    sentence: str
    where: SourceLine
    hypotheses: tuple[tuple[str, Term], ...]
    goal: Term
    constants: frozenset[Term]
    event: TracedEvent | None = None
    kind: str = "theorem"
    statement: Term | None = None


def after(term: Term, post: Mapping[Path, Term]) -> Term:
    """A statement about the state, read in the state that ``post`` describes."""
    memo: dict[Term, Term] = {}

    def walk(t: Term) -> Term:
        if t.op == "state":
            return post[t.data]
        if not t.args:
            return t
        done = memo.get(t)
        if done is None:
            done = memo[t] = T.rebuild(t, tuple(walk(a) for a in t.args))
        return done

    return walk(term)


class ChapterObligations:
    """All obligations of one chapter, in the order of its text."""

    def __init__(self, name: str, chapter: Chapter) -> None:
        self.name, self.chapter = name, chapter
        self.own = chapter.invariants
        self.assumed = [(s.name, s.term) for s in (*chapter.axioms, *chapter.lower_invariants, *self.own)]

    def __iter__(self) -> Iterator[Obligation]:
        yield from self._initial()
        numbers = {s.name for s in self.chapter.naturals}  # their sort says the same
        yield from (self._not_empty(s) for s in self.own if s.name not in numbers)
        statements = [s for s in (*self.own, *self.chapter.theorems) if s.after is None]
        yield from (self._means(s) for s in statements if statement_demands(s.term) is not T.TRUE)
        for name in self.chapter.event_names:
            yield from self._event(name)
        yield from self._theorems()
        for before, _ in self.chapter.loops:
            yield from self._loop(before)

    def of(self, row: str) -> Iterator[Obligation]:
        """Those that speak of the start (``init``), of one event (as a step of its own or of a loop), or, through the
        theorems, of a pure function."""
        if row == "init":
            yield from self._initial()
            return
        if row in self.chapter.functions:
            yield from self._theorems()
            return
        yield from self._event(row)
        yield from (self._after(s) for s in self._said_after(row))
        yield from (self._implied(s) for s in self.chapter.theorems if row in s.asks)
        for before, _ in self.chapter.loops:
            if before.step == row:
                yield from self._loop(before)

    def _event(self, name: str) -> Iterator[Obligation]:
        event = self.chapter.event(name)
        yield self._possible(event.name, "can_fire", f"{event.name} can happen", event.where, event)
        yield from self._defined(event)
        yield from self._owed(event)
        yield from self._kept(event)

    def _defined(self, event: TracedEvent) -> Iterator[Obligation]:
        """Hypotheses without the guard: it is what is asked about."""
        goal = demands(event)
        if goal is not T.TRUE:
            yield Obligation(
                f"{self.name}.{event.name}/{DEFINED}", self.name, event.name, DEFINED,
                f"{event.name} reads only what there is", event.where, tuple(self.assumed), goal,
                frozenset(event.parameters),
            )  # fmt: skip

    def _initial(self) -> Iterator[Obligation]:
        statements = (*self.chapter.axioms, *self.chapter.naturals)
        axioms = tuple((s.name, s.term) for s in statements)  # what no init sets holds a value of its sort, too
        where = SourceLine(*self.chapter.where)
        yield Obligation(
            f"{self.name}.init/can_start", self.name, "init", "can_start", "what is assumed can be true", where, axioms,
            T.FALSE, frozenset(), kind="possible",
        )  # fmt: skip
        for s in self.own:
            goal = after(s.term, self.chapter.initial)
            yield Obligation(
                f"{self.name}.init/{s.name}", self.name, "init", s.name, s.sentence, s.where, axioms, goal, frozenset(),
                None, "invariant", s.term,
            )  # fmt: skip
        for s in self._said_after(START):
            yield Obligation(
                f"{self.name}.init/{s.name}", self.name, "init", s.name, s.sentence, s.where, axioms, s.term,
                frozenset(),
            )  # fmt: skip

    def _not_empty(self, s: Statement) -> Obligation:
        hypotheses = (*((a.name, a.term) for a in self.chapter.axioms), (f"{s.name} is false", T.neg(s.term)))
        return Obligation(
            f"{self.name}.{CAN_FAIL}/{s.name}", self.name, CAN_FAIL, s.name, f"it says something: {s.sentence}",
            s.where, hypotheses, T.FALSE, frozenset(), kind="possible",
        )  # fmt: skip

    def _means(self, s: Statement) -> Obligation:
        """Without the other invariants: each means something for itself."""
        axioms = tuple((a.name, a.term) for a in self.chapter.axioms)
        return Obligation(
            f"{self.name}.{DEFINED}/{s.name}", self.name, DEFINED, s.name, f"it reads only what there is: {s.sentence}",
            s.where, axioms, statement_demands(s.term), frozenset(),
        )  # fmt: skip

    def _said_after(self, row: str) -> list[Statement]:
        return [s for s in self.chapter.theorems if s.after == row]

    def _possible(
        self, row: str, column: str, sentence: str, where: SourceLine, event: TracedEvent | None = None
    ) -> Obligation:
        hypotheses = tuple(self.assumed) if event is None else self._step(event)
        constants = frozenset[Term]() if event is None else frozenset(event.parameters)
        id = f"{self.name}.{row}/{column}"
        return Obligation(
            id, self.name, row, column, sentence, where, hypotheses, T.FALSE, constants, event, "possible"
        )

    def _step(self, event: TracedEvent) -> tuple[tuple[str, Term], ...]:
        guards = [(f"{event.name} requires, line {r.where.line}", r.term) for r in event.requires]
        naturals = [
            (f"{p.data[0]} is a number", T.neg(T.make("lt", (p, T.num(0)), T.BOOL)))
            for p in event.parameters
            if p.sort == T.NAT
        ]
        return (*self.assumed, *guards, *naturals)

    def _of_event(
        self,
        event: TracedEvent,
        id: str,
        column: str,
        sentence: str,
        where: SourceLine,
        goal: Term,
        kind: str = "theorem",
        statement: Term | None = None,
    ) -> Obligation:
        return Obligation(
            id, self.name, event.name, column, sentence, where, self._step(event), goal, frozenset(event.parameters),
            event, kind, statement,
        )  # fmt: skip

    def _owed(self, event: TracedEvent) -> Iterator[Obligation]:
        counts: dict[str, int] = {}
        for owed in event.owed:
            number = counts[owed.callee] = counts.get(owed.callee, 0) + 1
            column = f"{owed.callee}/pre.{number}"
            sentence = f"{event.name} may call {owed.callee}"
            id = f"{self.name}.{event.name}->{column}"
            yield self._of_event(event, id, f"->{column}", sentence, owed.where, owed.term, "call")

    def _kept(self, event: TracedEvent) -> Iterator[Obligation]:
        for s in self.own:
            goal = after(s.term, event.after)
            id = f"{self.name}.{event.name}/{s.name}"
            yield self._of_event(event, id, s.name, s.sentence, s.where, goal, "invariant", s.term)

    def _theorems(self) -> Iterator[Obligation]:
        if any(s.after is None for s in self.chapter.theorems):
            where = SourceLine(*self.chapter.where)
            yield self._possible("theorem", "can_hold", "axioms and invariants can hold together", where)
        for s in self.chapter.theorems:
            if s.after != START:
                yield self._implied(s) if s.after is None else self._after(s)

    def _after(self, s: Statement) -> Obligation:
        assert s.after is not None
        id = f"{self.name}.{s.after}/{s.name}"
        return self._of_event(self.chapter.event(s.after), id, s.name, s.sentence, s.where, s.term)

    def _implied(self, s: Statement) -> Obligation:
        id = f"{self.name}.theorem/{s.name}"
        return Obligation(
            id, self.name, "theorem", s.name, s.sentence, s.where, tuple(self.assumed), s.term, frozenset()
        )

    def _loop(self, before: LoopParts) -> Iterator[Obligation]:
        """That the loop begins well, keeps what it should, never sticks, comes to an end, and ends well."""
        event = self.chapter.event(before.step)
        going = T.conj((before.keep, before.again))
        falls = T.make("lt", (after(before.measure, event.after), before.measure), T.BOOL)
        from_zero = T.neg(T.make("lt", (before.measure, T.num(0)), T.BOOL))
        step, still = self._step(event), tuple(self.assumed)
        yield self._part(before, "begins", still, T.TRUE, T.implies(before.start, before.keep))
        yield self._part(before, "can_run", step, going, T.FALSE, event)
        yield self._part(before, "keeps", step, going, after(before.keep, event.after), event)
        yield self._part(before, "falls", step, going, T.conj((from_zero, falls)), event)
        if all(isinstance(p.sort, Sort) for p in event.parameters):
            goes_on = T.quantify("exists", event.parameters, event.guard)
            yield self._part(before, "goes_on", still, going, goes_on)
        yield self._part(before, "ends", still, T.conj((before.keep, T.neg(before.again))), before.result)

    def _part(
        self,
        loop: LoopParts,
        part: str,
        hypotheses: tuple[tuple[str, Term], ...],
        premise: Term,
        goal: Term,
        event: TracedEvent | None = None,
    ) -> Obligation:
        numbers = [p for p in loop.parameters if p.sort == T.NAT]
        natural = tuple(("a number", T.neg(T.make("lt", (p, T.num(0)), T.BOOL))) for p in numbers)
        constants = frozenset(loop.parameters) | frozenset(() if event is None else event.parameters)
        sentence = f"{loop.sentence} ({_PARTS[part]})"
        kind = "possible" if goal is T.FALSE else "loop"
        return Obligation(
            f"{self.name}.{loop.name}/{part}", self.name, loop.name, part, sentence, loop.where,
            (*hypotheses, *natural, ("where the loop stands", premise)), goal, constants, event, kind,
        )  # fmt: skip


_PARTS: Mapping[str, str] = {
    "can_run": "some step of it is possible",
    "begins": "what it keeps holds at the start",
    "keeps": "each step keeps it",
    "falls": "each step brings the end nearer",
    "goes_on": "as long as it goes on, some step can be taken",
    "ends": "when it stops, the result is there",
}
