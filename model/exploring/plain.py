"""The reference explorer: breadth first, state by state, in the concrete reading. Slow, and meant to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvspec.model.concrete import NotEnabled, State, Structure, evaluate, fire
from kvspec.model.exploring.cells import Packed
from kvspec.model.exploring.coverage import START, goals, step_theorems
from kvspec.model.exploring.cutoff import covers
from kvspec.model.exploring.instances import Inside, Instance, instances, start_state
from kvspec.model.exploring.outcome import Outcome, States, Step, Violation
from kvspec.model.exploring.quotient import Quotient
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Path, Term
from kvspec.spec.language.traced import TracedEvent

Progress = Callable[[int, int, int], None]
"""Told of distinct states, generated states and depth, level by level."""


@dataclass(frozen=True)
class Taken:
    """One step: an instance, and the states before and after."""

    instance: Instance
    before: State
    after: State

    @property
    def event(self) -> TracedEvent:
        return self.instance.event

    @property
    def values(self) -> dict[Term, Any]:
        """The event's parameters."""
        return dict(zip(self.event.parameters, self.instance.args, strict=True))


class Stepper:
    """The steps that can be taken in a state."""

    def __init__(self, chapter: Chapter, structure: Structure) -> None:
        self.structure = structure
        self.instances = instances(chapter, structure)
        self.inside = Inside(chapter, structure)

    def enabled(self, state: State) -> Iterator[Taken]:
        """All enabled instances, also those whose result is not inside the scope."""
        for instance in self.instances:
            try:
                after = fire(instance.event, self.structure, state, instance.args)
            except NotEnabled:
                continue
            yield Taken(instance, state, after)

    def stays(self, taken: Taken) -> bool:
        """The result is inside the scope, so the step is taken."""
        return self.inside.step(taken.event, taken.after)

    def steps(self, state: State) -> Iterator[Taken]:
        """All steps that are taken."""
        return filter(self.stays, self.enabled(state))


@dataclass(frozen=True)
class Wrong:
    """A statement that is false: what `Violation` says of it, without the run."""

    kind: str
    name: str
    sentence: str


class Judge:
    """The statements of a chapter, asked of states and of steps."""

    def __init__(self, chapter: Chapter, structure: Structure) -> None:
        self.structure = structure
        self.always = [("invariant", s) for s in (*chapter.invariants, *chapter.lower_invariants)]
        self.always += [("theorem", s) for s in chapter.theorems if s.after is None]
        self.theorems = step_theorems(chapter)

    def start(self, state: State) -> Wrong | None:
        """The first theorem about the start that is false."""
        for s in self.theorems[START]:
            if not evaluate(s.term, self.structure, state):
                return Wrong("theorem", s.name, s.sentence)
        return None

    def state(self, state: State) -> Wrong | None:
        """The first statement about all states that is false here."""
        for kind, s in self.always:
            if not evaluate(s.term, self.structure, state):
                return Wrong(kind, s.name, s.sentence)
        return None

    def call(self, taken: Taken) -> Wrong | None:
        """The first requirement of a called event that does not hold."""
        counts: dict[str, int] = {}
        for owed in taken.event.owed:
            number = counts[owed.callee] = counts.get(owed.callee, 0) + 1
            if not evaluate(owed.term, self.structure, taken.before, taken.values):
                name = f"{taken.event.name}->{owed.callee}/pre.{number}"
                return Wrong("call", name, f"{taken.event.name} may call {owed.callee}")
        return None

    def step(self, taken: Taken) -> Wrong | None:
        """The first theorem about the step that is false."""
        for s in self.theorems[taken.event.name]:
            if not evaluate(s.term, self.structure, taken.before, taken.values):
                return Wrong("theorem", s.name, s.sentence)
        return None


class _CameToLife(Exception):
    """Cells of these variables can be read after a step, could not be before it, and were not written by it."""

    def __init__(self, paths: frozenset[Path]) -> None:
        self.paths = paths
        super().__init__(", ".join(".".join(p) for p in paths))


def explore(
    chapter: Chapter,
    structure: Structure,
    states: States = States.FULL,
    *,
    given: Mapping[Path, Any] | None = None,
    scope: str = "",
    max_states: int = 1_000_000,
    progress: Progress | None = None,
) -> Outcome:
    """Go through all states of a chapter that can be reached in a structure, up to so many.

    ``given``: start values of variables that no init sets. A violation ends the exploration.

    Raises:
        TooManyInstances: some event can be tried in too many ways.
    """
    start = start_state(chapter, structure, given)
    kept: frozenset[Path] = frozenset()
    while True:
        search = _Search(chapter, structure, Quotient(chapter, structure, states, kept), start)
        try:
            search.run(max_states, progress)
        except _CameToLife as alive:
            kept |= alive.paths
        else:
            return search.outcome(scope, kept)


class _Search:
    """One exploration under one quotient."""

    def __init__(self, chapter: Chapter, structure: Structure, quotient: Quotient, start: State) -> None:
        self.chapter, self.structure, self.quotient, self.start = chapter, structure, quotient, start
        self.stepper, self.judge = Stepper(chapter, structure), Judge(chapter, structure)
        self.open_goals = {g.name: g for g in goals(chapter)}
        self.reached: dict[str, int] = {}
        self.fired: dict[str, int] = {}
        self.parents: dict[Packed, tuple[Packed, str] | None] = {}
        self.levels: list[int] = []
        self.generated = 0
        self.complete = False
        self.wrong: tuple[Wrong, tuple[Step, ...]] | None = None

    # -- level by level ------------------------------------------------------------------------------------------

    def run(self, max_states: int, progress: Progress | None) -> None:
        first = self.quotient.representative(self.quotient.cells.pack(self.start))
        level = [first] if self._enter(first, None) else []
        self._meet(START, self.start, {}, 0)
        if (wrong := self.judge.start(self.start)) is not None:
            self._blame(wrong, first, None)
        while level and self.wrong is None:
            self.levels.append(len(level))
            if progress is not None:
                progress(len(self.parents), self.generated, len(self.levels) - 1)
            following: list[Packed] = []
            for packed in level:
                following += self._expand(packed)
                if self.wrong is not None or len(self.parents) > max_states:
                    return
            level = following
        self.complete = self.wrong is None

    def _expand(self, packed: Packed) -> Iterator[Packed]:
        """The states that are first reached from here; it stops at the first thing that is wrong."""
        state = self.quotient.cells.unpack(packed)
        for taken in self.stepper.enabled(state):
            wrong = self.judge.call(taken)
            if wrong is None and self.stepper.stays(taken):
                self.generated += 1
                wrong = self.judge.step(taken)
                after = self._after(packed, taken)
                if wrong is None and after not in self.parents and self._enter(after, (packed, taken.event.name)):
                    yield after
            if wrong is not None:
                self._blame(wrong, packed, taken.event.name)
            if self.wrong is not None:
                return

    def _enter(self, packed: Packed, parent: tuple[Packed, str] | None) -> bool:
        """A new state; false if a statement is false in it."""
        self.parents[packed] = parent
        state = self.quotient.cells.unpack(packed)
        wrong = self.judge.state(state)
        self._meet(None, state, {}, 0 if parent is None else len(self.levels))
        if wrong is not None:
            self._blame(wrong, packed, None)
        return wrong is None

    def _after(self, packed: Packed, taken: Taken) -> Packed:
        """The representative of the state after a step, with the step noted."""
        after = self.quotient.cells.pack(taken.after)
        if after != packed:
            self.fired.setdefault(taken.event.name, len(self.levels))
        self._meet(taken.event.name, taken.before, taken.values, len(self.levels))
        self._check_alive(packed, taken, after)
        return self.quotient.representative(after)

    def _meet(self, event: str | None, state: State, values: Mapping[Term, Any], depth: int) -> None:
        """Goals that are met here for the first time."""
        for goal in [g for g in self.open_goals.values() if g.after == event]:
            if evaluate(goal.term, self.structure, state, values):
                self.reached[goal.name] = depth
                del self.open_goals[goal.name]

    def _check_alive(self, packed: Packed, taken: Taken, after: Packed) -> None:
        """No cell comes to life without being written."""
        alive = self.quotient.alive
        if alive is not None:
            new = alive.live(after) - alive.live(packed)
            new -= alive.written(taken.event, taken.instance.args, taken.before)
            if new:
                raise _CameToLife(frozenset(alive.cells.cells[n].path for n in new))

    # -- what is found -------------------------------------------------------------------------------------------

    def _blame(self, wrong: Wrong, packed: Packed, event: str | None) -> None:
        """The first violation: by the last of the steps to this state or, with an event, by a step from it."""
        if self.wrong is None:
            self.wrong = wrong, self._run(packed, wrong, event)

    def _run(self, packed: Packed, wrong: Wrong, event: str | None) -> tuple[Step, ...]:
        """The way to a state as a run of the chapter itself, whatever states stand for it here."""
        chain: list[tuple[str, Packed]] = []
        at = packed
        while (parent := self.parents[at]) is not None:
            chain.append((parent[1], at))
            at = parent[0]
        state, run = self.start, list[Step]()
        for name, target in reversed(chain):
            taken = next(t for t in self._of(name, self.stepper.steps(state)) if self._leads_to(t, target))
            state = taken.after
            run.append(Step(name, taken.instance.args))
        if event is not None:
            last = next(t for t in self._of(event, self.stepper.enabled(state)) if self._is_wrong(t, wrong))
            run.append(Step(event, last.instance.args))
        return tuple(run)

    def _of(self, name: str, steps: Iterator[Taken]) -> Iterator[Taken]:
        return (taken for taken in steps if taken.event.name == name)

    def _leads_to(self, taken: Taken, target: Packed) -> bool:
        return self.quotient.representative(self.quotient.cells.pack(taken.after)) == target

    def _is_wrong(self, taken: Taken, wrong: Wrong) -> bool:
        return (self.judge.call(taken) if wrong.kind == "call" else self.judge.step(taken)) == wrong

    def outcome(self, scope: str, kept: frozenset[Path]) -> Outcome:
        violation = None
        if self.wrong is not None:
            wrong, run = self.wrong
            violation = Violation(wrong.kind, wrong.name, wrong.sentence, run)
        quotient = self.quotient
        return Outcome(
            scope=scope,
            states=quotient.states,
            distinct=len(self.parents),
            generated=self.generated,
            depth=max(len(self.levels) - 1, 0),
            levels=tuple(self.levels) or (1,),
            complete=self.complete,
            violation=violation,
            fired=self.fired,
            reached=self.reached,
            cleared=quotient.cleared,
            kept=tuple(sorted(".".join(p) for p in kept)),
            renamed=quotient.renamed,
            unchanged=quotient.unchanged,
            covers=covers(self.chapter, quotient, self.parents) if self.complete else None,
        )
