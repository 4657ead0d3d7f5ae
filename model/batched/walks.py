"""Random walks: many at once, each takes one of its enabled steps at a time.

Where a scope is too large to be explored, walks get deep into it. They prove nothing: what they say is *sampled*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kvspec.model.batched.bits import SINGLE_BITS, WORD, rows_of
from kvspec.model.batched.blame import Blame
from kvspec.model.batched.expansion import Expansion, Steps
from kvspec.model.batched.threads import one_thread
from kvspec.model.batched.transitions import Compiler, bad_state
from kvspec.model.batched.watch import Watch
from kvspec.model.concrete import NotEnabled, State, Structure, fire
from kvspec.model.exploring.instances import Instance, start_state
from kvspec.model.exploring.outcome import Step, Violation
from kvspec.model.exploring.plain import Taken, Wrong
from kvspec.model.exploring.size import check_formulas, check_walks
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Path


@dataclass(frozen=True)
class Walks:
    """What random walks came to.

    Attributes:
        walkers: how many walks there were, rounded up to a multiple of 64.
        steps: how long each was to be.
        taken: steps that were taken, by all of them.
        violation: what went wrong first, with a run in which no single step can be left out.
        fired: for each event that changed a state, after how many steps the first such step ended.
        reached: for each goal of `coverage.goals` that was met, after how many steps.
    """

    walkers: int
    steps: int
    taken: int
    violation: Violation | None = None
    fired: Mapping[str, int] = field(default_factory=dict)
    reached: Mapping[str, int] = field(default_factory=dict)


def walk(
    chapter: Chapter,
    structure: Structure,
    walkers: int,
    steps: int,
    seed: int,
    *,
    device: str = "cpu",
    given: Mapping[Path, Any] | None = None,
) -> Walks:
    """Let walkers loose at the start, all for so many steps; the same seed on the same device gives the same walks.

    Raises:
        TooManyInstances: some event can be tried in too many ways.
        TooLarge: there is too much to make ready.
        OutOfRange: a state has a value that no cell can hold.
    """
    check_formulas(chapter, structure)
    check_walks(chapter, structure, walkers)
    with one_thread():
        walking = _Walking(chapter, structure, start_state(chapter, structure, given), torch.device(device))
        return walking.run(walkers, steps, seed)


class _Walking:
    """The walks of one call."""

    def __init__(self, chapter: Chapter, structure: Structure, start: State, device: torch.device) -> None:
        self.structure, self.start, self.device = structure, start, device
        compiled = Compiler(chapter, structure, start, blank=False, whole=False).compile()
        self.layout = compiled.layout
        self.expansion = Expansion(compiled, [bad_state(chapter, compiled.reading), compiled.forbidden], device)
        self.watch = Watch(chapter, self.expansion, structure, start)
        self.blame = Blame(chapter, structure, compiled.layout)
        self.choices: list[Tensor] = []
        self.taken = 0

    def run(self, walkers: int, steps: int, seed: int) -> Walks:
        chance = torch.Generator(self.device).manual_seed(seed)
        walkers = WORD * max(1, -(-walkers // WORD))
        rows = self.layout.encode([self.start]).to(self.device).repeat(walkers, 1)
        wrong = self.blame.judge.start(self.start)
        violation = None if wrong is None else Violation(wrong.kind, wrong.name, wrong.sentence, ())
        for depth in range(steps + 1):
            if violation is not None:
                break
            violation, rows = self._step(rows, depth, chance, depth == steps)
        return Walks(walkers, steps, self.taken, violation, self.watch.fired, self.watch.reached)

    def _step(self, rows: Tensor, depth: int, chance: torch.Generator, last: bool) -> tuple[Violation | None, Tensor]:
        """One step of all walkers; where one is stuck it stays."""
        planes = self.expansion.load(rows)
        (bad, forbidden), enabled = self.expansion.survey(planes, len(rows))
        if bad.any():
            walker = int(rows_of(bad)[0])
            return self._violation(walker, self.blame.state(rows[walker]), None), rows
        self.watch.states(planes, depth)
        if forbidden.any():
            walker = int(rows_of(forbidden)[0])
            return self._violation(walker, *self.blame.call(rows[walker])), rows
        if last:
            return None, rows
        chosen = self._choose(enabled, chance)
        found, wrong = self.expansion.steps(rows, chosen)
        if wrong.any():
            row = int(rows_of(wrong)[0])
            walker, instance = int(found.source[row]), self.expansion.transitions[found.at(row).number].instance
            self.choices.pop()  # it is the step that goes wrong
            return self._violation(walker, self.blame.step(rows[walker], instance), instance), rows
        self.watch.steps(found, depth)
        return None, self._moved(rows, found)

    def _choose(self, enabled: Tensor, chance: torch.Generator) -> Tensor:
        """For each walker one of the transitions that are enabled, as planes."""
        bits = torch.tensor(SINGLE_BITS, device=self.device).view(1, WORD, 1)
        possible = ((enabled.unsqueeze(1) & bits) != 0).view(len(enabled), -1)
        lots = torch.rand(possible.shape, generator=chance, device=self.device) * possible
        best, choice = lots.max(0)
        self.choices.append(torch.where(best > 0, choice, -1).to(torch.int16).cpu())
        here = torch.arange(len(enabled), device=self.device).view(-1, 1, 1)
        taken = (choice.view(1, WORD, -1) == here) & (best > 0).view(1, WORD, -1)
        return (taken * bits).sum(1)

    def _moved(self, rows: Tensor, found: Steps) -> Tensor:
        self.taken += sum(c.count for c in found.columns)
        return rows.index_copy(0, found.source, found.rows()) if found.columns else rows

    # -- runs ------------------------------------------------------------------------------------------------------

    def _violation(self, walker: int, wrong: Wrong, last: Instance | None) -> Violation:
        taken = (int(choices[walker]) for choices in self.choices)
        way = [self.expansion.transitions[number].instance for number in taken if number >= 0]
        way = self._shortened(way if last is None else [*way, last], wrong)
        run = tuple(Step(i.event.name, i.args) for i in way)
        return Violation(wrong.kind, wrong.name, wrong.sentence, run)

    def _shortened(self, way: Sequence[Instance], wrong: Wrong) -> list[Instance]:
        """The run without steps that it does not need: first halves of it are left out, in the end single steps."""
        kept, size = list(way), max(1, len(way) // 2)
        while True:
            before, at = len(kept), 0
            while at < len(kept):
                shorter = kept[:at] + kept[at + size :]
                if self._ends_in(shorter, wrong):
                    kept = shorter
                else:
                    at += size
            if size == 1 and len(kept) == before:
                return kept
            size = max(1, size // 2)

    def _ends_in(self, way: Sequence[Instance], wrong: Wrong) -> bool:
        """The run can be made, and what is wrong is wrong at its end."""
        judge, inside = self.blame.judge, self.blame.stepper.inside
        state, last = self.start, None
        for number, instance in enumerate(way, start=1):
            try:
                after = fire(instance.event, self.structure, state, instance.args)
            except NotEnabled:
                return False
            asked_to_call = wrong.kind == "call" and number == len(way)
            if not asked_to_call and not inside.step(instance.event, instance.args, state, after):
                return False
            last, state = Taken(instance, state, after), after
        if last is not None and wrong.kind == "call":
            return judge.call(last) == wrong
        return judge.state(state) == wrong or (last is not None and judge.step(last) == wrong)
