"""The reference explorer: breadth first, state by state, in the concrete reading. Slow, and meant to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvspec.model.concrete import NotEnabled, State, Structure, evaluate, fire
from kvspec.model.exploring.cells import Packed
from kvspec.model.exploring.coverage import START, Goal, goals, step_theorems
from kvspec.model.exploring.cutoff import covers
from kvspec.model.exploring.instances import Inside, Instance, instances, start_state
from kvspec.model.exploring.outcome import Outcome, States, Step, Violation
from kvspec.model.exploring.quotient import Quotient
from kvspec.model.exploring.symmetry import Exchange, composed, exchanged, inverse
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
    """The steps that can be taken in a state; by default, of all instances of all events."""

    unknown: tuple[type[Exception], ...] = ()
    """What may come of an instance that cannot be decided; such a one is not enabled."""

    def __init__(self, chapter: Chapter, structure: Structure, tried: Sequence[Instance] | None = None) -> None:
        self.structure = structure
        self.instances = instances(chapter, structure) if tried is None else tried
        self.inside = Inside(chapter, structure)

    def enabled(self, state: State) -> Iterator[Taken]:
        """All enabled instances, also those whose result is not inside the scope."""
        for instance in self.instances:
            try:
                after = fire(instance.event, self.structure, state, instance.args)
            except NotEnabled:
                continue
            except self.unknown:
                continue
            yield Taken(instance, state, after)

    def take(self, instance: Instance, state: State) -> Taken:
        """The step of an instance that is enabled."""
        return Taken(instance, state, fire(instance.event, self.structure, state, instance.args))

    def stays(self, taken: Taken) -> bool:
        """The result is inside the scope, so the step is taken."""
        return self.inside.step(taken.event, taken.instance.args, taken.before, taken.after)

    def steps(self, state: State) -> Iterator[Taken]:
        """All steps that are taken."""
        return filter(self.stays, self.enabled(state))


@dataclass(frozen=True)
class Wrong:
    """A statement that is false: what `Violation` says of it, without the run."""

    kind: str
    name: str
    sentence: str


class Judging(Protocol):
    """What is asked of every state and step; each answer is the first thing that is wrong."""

    def start(self, state: State) -> Wrong | None:
        """Of the start alone."""

    def state(self, state: State) -> Wrong | None:
        """Of a state."""

    def call(self, taken: Taken) -> Wrong | None:
        """Of a step that is possible, whether or not it stays inside the scope."""

    def step(self, taken: Taken) -> Wrong | None:
        """Of a step that is taken."""


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
        quotient = Quotient(chapter, structure, states, kept)
        search = Search(quotient, Stepper(chapter, structure), Judge(chapter, structure), start, goals(chapter))
        try:
            search.run(max_states, progress)
        except _CameToLife as alive:
            kept |= alive.paths
        else:
            return _outcome(chapter, search, scope, kept)


class Search:
    """One search, breadth first, for a state or step of which something is wrong.

    Attributes:
        wrong: what is wrong, and the steps to it from the start, if anything was found.
        levels: how many states are first reached after 0, 1, 2, ... steps.
        complete: every state was seen, and nothing is wrong.
    """

    def __init__(
        self, quotient: Quotient, stepper: Stepper, judge: Judging, start: State, wanted: Iterable[Goal] = ()
    ) -> None:
        self.quotient, self.stepper, self.judge, self.start = quotient, stepper, judge, start
        self.structure = stepper.structure
        self.open_goals = {g.name: g for g in wanted}
        self.reached: dict[str, int] = {}
        self.fired: dict[str, int] = {}
        self.parents: dict[Packed, tuple[Packed, str] | None] = {}
        self.levels: list[int] = []
        self.generated = 0
        self.complete = False
        self.wrong: tuple[Wrong, tuple[Taken, ...]] | None = None

    # -- level by level ------------------------------------------------------------------------------------------

    def run(self, max_states: int, progress: Progress | None = None) -> None:
        """Search until something is wrong, or there are more states than that."""
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
        if taken.event.name not in self.fired and self._changes(packed, after):
            self.fired[taken.event.name] = len(self.levels)
        self._meet(taken.event.name, taken.before, taken.values, len(self.levels))
        self._check_alive(packed, taken, after)
        return self.quotient.representative(after)

    def _changes(self, before: Packed, after: Packed) -> bool:
        """A cell that somebody can read before the step differs after it; of the others nobody knows what they held."""
        alive = self.quotient.alive
        return before != after if alive is None else any(before[n] != after[n] for n in alive.live(before))

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

    def _run(self, packed: Packed, wrong: Wrong, event: str | None) -> tuple[Taken, ...]:
        """The way to a state as a run of the chapter itself, whatever states stand for it here."""
        chain: list[tuple[str, Packed]] = []
        at = packed
        while (parent := self.parents[at]) is not None:
            chain.append((parent[1], at))
            at = parent[0]
        run = retraced(self.quotient, self.stepper, self.start, reversed(chain))
        state = run[-1].after if run else self.start
        if event is not None:
            run.append(next(t for t in _of(event, self.stepper.enabled(state)) if self._is_wrong(t, wrong)))
        return tuple(run)

    def _is_wrong(self, taken: Taken, wrong: Wrong) -> bool:
        return wrong in (self.judge.call(taken), self.judge.step(taken))


def retraced(quotient: Quotient, stepper: Stepper, start: State, chain: Iterable[tuple[str, Packed]]) -> list[Taken]:
    """A run of the chapter along representatives: for each step its event, and what stands for the state after it.

    Where names do not tell elements apart, a class may have several representatives, and a state need not lead to the
    one that its representative leads to. Then the step is that of the representative, with the elements exchanged back.
    """
    pack = quotient.cells.pack
    state, at = start, quotient.representative(pack(start))
    names, run = quotient.names(pack(start)), list[Taken]()

    def leading(before: State, event: str, target: Packed) -> Iterator[Taken]:
        return (t for t in _of(event, stepper.steps(before)) if quotient.representative(pack(t.after)) == target)

    for event, target in chain:
        taken = next(leading(state, event, target), None)
        if taken is not None:
            names = quotient.names(pack(taken.after))
        else:
            step = next(leading(quotient.cells.unpack(at), event, target))
            taken = stepper.take(_exchanged(step.instance, inverse(names)), state)
            names = composed(names, quotient.names(pack(step.after)))
        run.append(taken)
        state, at = taken.after, target
    return run


def _of(name: str, steps: Iterator[Taken]) -> Iterator[Taken]:
    return (taken for taken in steps if taken.event.name == name)


def _exchanged(instance: Instance, swap: Exchange) -> Instance:
    args = zip(instance.args, instance.event.parameters, strict=True)
    return Instance(instance.event, tuple(exchanged(value, p.sort, swap) for value, p in args))


def _outcome(chapter: Chapter, search: Search, scope: str, kept: frozenset[Path]) -> Outcome:
    violation = None
    if search.wrong is not None:
        wrong, run = search.wrong
        steps = tuple(Step(t.event.name, t.instance.args) for t in run)
        violation = Violation(wrong.kind, wrong.name, wrong.sentence, steps)
    quotient = search.quotient
    return Outcome(
        scope=scope,
        states=quotient.states,
        distinct=len(search.parents),
        generated=search.generated,
        depth=max(len(search.levels) - 1, 0),
        levels=tuple(search.levels) or (1,),
        complete=search.complete,
        violation=violation,
        fired=search.fired,
        reached=search.reached,
        cleared=quotient.cleared,
        kept=tuple(sorted(".".join(p) for p in kept)),
        renamed=quotient.renamed,
        unchanged=quotient.unchanged,
        covers=covers(chapter, quotient, search.parents) if search.complete else None,
    )
