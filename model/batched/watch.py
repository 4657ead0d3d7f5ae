"""What an exploration has met so far: events that changed something, and the goals of `coverage`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kvspec.model.batched.expansion import Columns, Expansion, Steps
from kvspec.model.batched.program import Program
from kvspec.model.batched.transitions import values
from kvspec.model.concrete import State, Structure, evaluate
from kvspec.model.exploring.coverage import START, Goal, goals
from kvspec.spec.language.chapter import Chapter

Clear = Callable[[Tensor, Columns], None]
"""Clears in planes that stand in some columns what counts as cleared there."""


class Watch:
    """Notes after how many steps something was met for the first time; what was met is not looked for again.

    Attributes:
        fired: the events that changed something which can be read before the step.
        reached: the goals.
    """

    def __init__(self, chapter: Chapter, expansion: Expansion, structure: Structure, start: State) -> None:
        self.expansion = expansion
        self.fired: dict[str, int] = {}
        found = goals(chapter)
        self.reached = {g.name: 0 for g in found if g.after == START and evaluate(g.term, structure, start)}
        self._open = [(goal, self._program(goal)) for goal in found if goal.after != START]

    def _program(self, goal: Goal) -> Program:
        """Where the goal is met: in a state or, for a goal about steps, by a step that is enabled there."""
        logic, reading = self.expansion.logic, self.expansion.compiled.reading
        if goal.after is None:
            return self.expansion.program([reading.statement(goal.term, {})])
        taken = [t for t in self.expansion.transitions if t.instance.event.name == goal.after]
        met = (logic.both(t.enabled, reading.statement(goal.term, values(t.instance))) for t in taken)
        return self.expansion.program([logic.any_of(met)])

    def states(self, planes: Tensor, depth: int) -> None:
        """States that are reached after ``depth`` steps; the last may stand there more than once."""
        left = []
        for goal, program in self._open:
            (met,) = self.expansion.planes.run(program, planes.unbind(0))
            if met.any():
                self.reached[goal.name] = depth if goal.after is None else depth + 1
            else:
                left.append((goal, program))
        self._open = left

    def steps(self, steps: Steps, depth: int, clear: Clear = lambda planes, columns: None) -> None:
        """Steps from states of this depth, as effects left them.

        ``clear`` clears in planes, [bits, width], which stand in these columns, what nothing can read before the steps.
        """
        for c in steps.columns:
            name = self.expansion.transitions[c.number].instance.event.name
            if name not in self.fired:
                differ = steps.after[:, c.start : c.end] ^ steps.before[:, c.start : c.end]
                clear(differ, c)
                if differ.any():
                    self.fired[name] = depth + 1
