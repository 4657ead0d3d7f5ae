"""One batch of states: what is wrong with them, which steps they can take, and the states after those.

Guards and statements are decided for the whole batch at once, in planes (`program`). The steps that are enabled are
then laid side by side, instance by instance, each instance in columns of its own; effects change bits of those columns
only, and one transposition makes rows of them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kvspec.model.batched.bits import WORD, full_plane, population, rows_of, transpose
from kvspec.model.batched.logic import Logic
from kvspec.model.batched.program import Program
from kvspec.model.batched.transitions import Compiled

NARROW: Final = 2048
"""Words of a plane; all registers of a program of this width stay close to one core."""


class Planes:
    """Runs programs over the planes of a batch; the registers that they need are kept and used again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._memory = torch.empty(0, dtype=torch.int64, device=device)

    def run(self, program: Program, planes: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of a program; valid until the next run."""
        width = planes[0].numel() if planes else 0
        size = program.registers * width
        if size > self._memory.numel():
            self._memory = torch.empty(2 * size, dtype=torch.int64, device=self.device)
        return program.run(planes, self._memory[:size].view(program.registers, width))


@dataclass(frozen=True)
class Columns:
    """The steps of the transition of this number: their columns in `Steps`, and how many they are."""

    number: int
    start: int
    end: int
    count: int


@dataclass
class Steps:
    """The steps of a batch, side by side.

    Row ``r`` of the result is the step in column ``r % width`` (`bits` says which of its 64). Where a transition has
    fewer steps than its columns hold, its last one is there again.

    Attributes:
        source: for each row of the result the row of the batch that the step starts in.
        before: planes of the states before, [bits, width].
        after: planes of the states after; the same shape.
    """

    columns: list[Columns]
    source: Tensor
    before: Tensor
    after: Tensor

    @property
    def width(self) -> int:
        return self.before.shape[1]

    def rows(self) -> Tensor:
        """The states after, [64 * width, words]; `after` is used up."""
        words = [transpose(self.after[i : i + WORD]).view(-1) for i in range(0, len(self.after), WORD)]
        return torch.stack(words, 1) if len(words) > 1 else words[0].unsqueeze(1)

    def at(self, row: int) -> Columns:
        """The columns that a row of the result stands in."""
        return next(c for c in self.columns if c.start <= row % self.width < c.end)

    def numbers(self, rows: Tensor) -> Tensor:
        """For each of these rows of the result, the number of its transition."""
        ends = torch.tensor([c.end for c in self.columns], device=rows.device)
        numbers = torch.tensor([c.number for c in self.columns], device=rows.device)
        return numbers.index_select(0, torch.searchsorted(ends, rows % self.width, right=True))


class Expansion:
    """Expands batches of states.

    Args:
        compiled: the transitions.
        statements: literals to be decided of each state: that something is wrong with it.
        device: where to compute.
    """

    def __init__(self, compiled: Compiled, statements: Sequence[int], device: torch.device) -> None:
        self.compiled, self.device = compiled, device
        self.transitions = compiled.transitions
        self.inputs = {bit >> 1: plane for plane, bit in enumerate(compiled.bits)}
        self.planes = Planes(device)
        self._first = len(statements)
        self._survey = self.program([*statements, *(t.enabled for t in self.transitions)])
        self._effects = [self.program([t.wrong, *(new for _, new in t.changes)]) for t in self.transitions]

    @property
    def logic(self) -> Logic:
        return self.compiled.logic

    def program(self, outputs: Sequence[int]) -> Program:
        return Program(self.logic, self.inputs, outputs)

    def parts(self, planes: Tensor) -> Iterator[Tensor]:
        """Planes in parts that are narrow enough for long programs; only on a CPU, whose caches are small."""
        width = NARROW if self.device.type == "cpu" else max(planes.shape[1], 1)
        for start in range(0, planes.shape[1], width):
            yield planes[:, start : start + width]

    def load(self, rows: Tensor) -> Tensor:
        """The planes of rows, [bits, width]; the last row again and again where 64 does not divide their number."""
        width = -(-len(rows) // WORD)
        index = torch.arange(WORD * width, device=self.device).clamp_(max=len(rows) - 1)
        return self.loaded(rows, index)

    def loaded(self, rows: Tensor, index: Tensor) -> Tensor:
        """The planes of the rows with these numbers, 64 times as many as the planes are wide."""
        chosen = rows.index_select(0, index)
        words = chosen.shape[1]
        blocks = chosen.t().reshape(words * WORD, -1)
        if words == 1 and len(chosen) == len(rows):
            blocks = blocks.clone()
        for i in range(0, words * WORD, WORD):
            transpose(blocks[i : i + WORD])
        return blocks

    def survey(self, planes: Tensor, count: int) -> tuple[list[Tensor], Tensor]:
        """The statements, and for each transition where it is enabled; both for the first ``count`` rows only."""
        found = self.planes.run(self._survey, planes.unbind(0))
        valid = full_plane(count, planes.shape[1], self.device)
        statements = [plane & valid for plane in found[: self._first]]
        enabled = torch.stack(found[self._first :]) if self.transitions else planes[:0].clone()
        enabled &= valid
        return statements, enabled

    def steps(self, rows: Tensor, enabled: Tensor) -> tuple[Steps, Tensor]:
        """All steps of a batch, with the plane of those that went wrong."""
        columns, index, width = [], [], 0
        for number, count in enumerate(population(enabled).tolist()):
            if count:
                chosen = rows_of(enabled[number])
                wide = -(-count // WORD)
                chosen = torch.cat((chosen, chosen[-1:].expand(WORD * wide - count)))
                index.append(chosen.view(WORD, wide))
                columns.append(Columns(number, width, width + wide, count))
                width += wide
        source = torch.cat(index, 1).view(-1) if index else torch.empty(0, dtype=torch.int64, device=self.device)
        before = self.loaded(rows, source)
        steps = Steps(columns, source, before, before.clone())
        return steps, self._take(steps)

    def _take(self, steps: Steps) -> Tensor:
        wrong = torch.zeros(steps.width, dtype=torch.int64, device=self.device)
        for c in steps.columns:
            transition = self.transitions[c.number]
            before = steps.before[:, c.start : c.end].unbind(0)
            after = steps.after[:, c.start : c.end]
            bad, *new = self.planes.run(self._effects[c.number], before)
            if transition.wrong:
                wrong[c.start : c.end] = bad
            for (bit, _), plane in zip(transition.changes, new, strict=True):
                after[bit] = plane
        return wrong
