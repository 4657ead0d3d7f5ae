"""Dead data on whole batches: which cells somebody can still read, as statements, and the others cleared.

What is read and written, and under which conditions, is found by `kvspec.model.exploring.liveness`; here it is asked of
the bits of a row.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kvspec.model.batched.bits import WORD
from kvspec.model.batched.expansion import Expansion, Steps
from kvspec.model.batched.logic import FALSE, TRUE
from kvspec.model.batched.program import Program
from kvspec.model.batched.transitions import values
from kvspec.model.exploring.instances import values_of
from kvspec.model.exploring.liveness import Alive, Read, Write
from kvspec.spec.language.terms import Term


class Clearing:
    """Clears what nothing can read, and watches that nothing comes to life without being written."""

    def __init__(self, expansion: Expansion, alive: Alive) -> None:
        self.expansion, self.alive = expansion, alive
        self.compiled = expansion.compiled
        live: dict[int, int] = {n: FALSE for n, c in enumerate(alive.cells.cells) if c.path in alive.liveness.reads}
        for reads in alive.liveness.reads.values():
            for read in reads:
                self._reach(read, {}, live)
        self.numbers = list(live)
        self._live = expansion.program(list(live.values()))
        # Statements that only the check below is told: that a cell came to life.
        self.came = {number: self.compiled.logic.variable() for number in live}
        self._revived: dict[int, Program] = {}

    def _reach(self, access: Read | Write, given: Mapping[Term, Any], found: dict[int, int]) -> None:
        """Add to each cell the conditions under which it is read or written."""
        reading, logic = self.compiled.reading, self.compiled.logic
        domains = [list(values_of(v.sort, self.compiled.reading.structure)) for v in access.variables]
        for choice in itertools.product(*domains):
            env = {**given, **dict(zip(access.variables, choice, strict=True))}
            condition = logic.all_of(reading.statement(c, env) for c in access.conditions)
            if condition == FALSE:
                continue
            for place, literal in reading.combined(access.place, env):
                number = self.alive.cells.number.get((access.path, place))
                if number in found:
                    found[number] = logic.either(found[number], logic.both(condition, literal))

    def live(self, planes: Tensor) -> Tensor:
        """For each cell in `numbers` where it is live."""
        if not self.numbers:
            return planes[:0]
        run = self.expansion.planes.run
        return torch.cat([torch.stack(run(self._live, p.unbind(0))) for p in self.expansion.parts(planes)], 1)

    def clear(self, planes: Tensor, live: Tensor) -> None:
        """Clear the cells that are not live, in place."""
        for number, plane in zip(self.numbers, live, strict=True):
            place = self.compiled.layout.places[number]
            if place.width:
                planes[place.first : place.first + place.width] &= plane

    def revived(self, steps: Steps, before: Tensor, live: Tensor) -> Tensor:
        """The plane of those steps after which a cell is live that was not before, and that they did not write."""
        came = live & ~before
        found = torch.zeros(steps.width, dtype=torch.int64, device=came.device)
        for c in steps.columns:
            planes = (*steps.before[:, c.start : c.end].unbind(0), *came[:, c.start : c.end].unbind(0))
            (found[c.start : c.end],) = self.expansion.planes.run(self._check(c.number), planes)
        return found

    def _check(self, transition: int) -> Program:
        """That some cell came to life that a step of this transition does not write."""
        program = self._revived.get(transition)
        if program is None:
            logic, instance = self.compiled.logic, self.compiled.transitions[transition].instance
            written = dict.fromkeys(self.numbers, FALSE)
            for write in self.alive.liveness.writes[instance.event.name]:
                self._reach(write, values(instance), written)
            wrong = (logic.both(self.came[n], written[n] ^ 1) for n in self.numbers if written[n] != TRUE)
            first = self.compiled.layout.words * WORD
            inputs = {**self.expansion.inputs, **{self.came[n] >> 1: first + i for i, n in enumerate(self.numbers)}}
            program = self._revived[transition] = Program(logic, inputs, [logic.any_of(wrong)])
        return program
