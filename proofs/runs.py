"""Runs from the start, by breadth-first search in the concrete reading.

A counterexample to induction need not be reachable. Within its sorts and statics this looks for a run that ends in the
same violation: of the same statement, by the same event.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from kvspec.model.concrete import State, initial
from kvspec.model.exploring.instances import instances_of
from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.plain import Search as Exploration
from kvspec.model.exploring.plain import Stepper, Taken, Wrong
from kvspec.model.exploring.quotient import Quotient
from kvspec.proofs.confirm import violated
from kvspec.proofs.decode import Decoded
from kvspec.proofs.obligations import Obligation
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Term
from kvspec.spec.language.traced import TracedEvent

Step = tuple[TracedEvent, tuple[Any, ...]]
LARGEST_SET: Final = 2
"""Members of a set that an event is tried with."""


@dataclass(frozen=True)
class Run:
    """Steps from the start, and the situation in which the last of them goes wrong."""

    steps: tuple[Step, ...]
    situation: Decoded


@dataclass(frozen=True)
class Search:
    """What a search came to: a run, or how many steps deep it looked everywhere."""

    run: Run | None
    depth: int
    complete: bool
    """Every state that can be reached in these sorts was seen."""


def search(chapter: Chapter, obligation: Obligation, situation: Decoded, budget: int) -> Search:
    """Look for a run that ends in this violation, trying about so many steps."""
    if obligation.row == "init":
        return Search(Run((), situation), 0, True)
    structure, own = situation.structure, obligation.event
    events = [own if own is not None and own.name == n else chapter.event(n) for n in chapter.event_names]
    tried = [i for event in events for i in instances_of(event, structure, LARGEST_SET)]
    # What no init sets is arbitrary, so it may as well be what the counterexample has.
    start = {**situation.state, **initial(chapter, structure)}
    sought = _Sought(obligation, situation)
    stepper = _Stepper(chapter, structure, tried)
    found = Exploration(Quotient(chapter, structure, States.FULL), stepper, sought, start)
    found.run(budget // max(len(tried), 1))
    depth = max(len(found.levels) - 1, 0)
    if found.wrong is None:
        return Search(None, depth, found.complete)
    _, steps = found.wrong
    run = Run(tuple((t.event, t.instance.args) for t in steps), sought.situation(start, steps))
    return Search(run, len(steps), False)


class _Stepper(Stepper):
    """A solver leaves open what a static function says of what it does not look at: there nothing can be done."""

    unknown = (TypeError, KeyError)


class _Sought:
    """The violation that is looked for: of this statement, by this event; nothing else is wrong here."""

    def __init__(self, obligation: Obligation, situation: Decoded) -> None:
        self.obligation = obligation
        fixed = {p: v for p, v in situation.values.items() if p in obligation.constants}
        self._given = replace(situation, values=fixed)  # a run may go wrong for other values of the variables

    def start(self, state: State) -> Wrong | None:
        return None

    def state(self, state: State) -> Wrong | None:
        return self._wrong(self._at(state), state) if self.obligation.event is None else None

    def call(self, taken: Taken) -> Wrong | None:
        return None

    def step(self, taken: Taken) -> Wrong | None:
        return self._wrong(self._by(taken), taken.after) if taken.event is self.obligation.event else None

    def situation(self, start: State, run: tuple[Taken, ...]) -> Decoded:
        """Where the last step of the run goes wrong: before it or, for a statement about states, after it."""
        if self.obligation.event is not None:
            return self._by(run[-1])
        return self._at(run[-1].after if run else start)

    def _at(self, state: State) -> Decoded:
        return replace(self._given, state=state)

    def _by(self, taken: Taken) -> Decoded:
        values: dict[Term, Any] = {**self._given.values, **taken.values}
        return replace(self._given, state=taken.before, values=values)

    def _wrong(self, here: Decoded, after: State) -> Wrong | None:
        try:
            found = violated(self.obligation, here, after)
        except (TypeError, KeyError):
            return None
        return Wrong(self.obligation.kind, self.obligation.id, self.obligation.sentence) if found else None
