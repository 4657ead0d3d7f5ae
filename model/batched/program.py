"""Statements made ready to run: a list of operations on planes.

A *plane* is one statement for a whole batch: an int64 word holds its truth for 64 states, so one operation on a tensor
of words decides it for all of them. Which negations to store is chosen here, and registers are used again as soon as
nobody needs what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kvspec.model.batched.logic import FALSE, Logic

Operation = tuple[Callable[..., Any], int, int, int]


class Program:
    """Computes some statements from the planes of others.

    Args:
        logic: where the statements are.
        inputs: for each node that is given from outside, the number of its plane.
        outputs: the literals to compute; what the program leaves out (constants, inputs as they are) costs nothing.
    """

    def __init__(self, logic: Logic, inputs: Mapping[int, int], outputs: Sequence[int]) -> None:
        writer = _Writer(logic, inputs)
        places = [writer.place(literal) for literal in outputs]
        self.planes = writer.planes
        self.registers = writer.allocate(places)
        self.operations: list[Operation] = writer.operations
        self.outputs = [writer.final(place) for place in places]

    def run(self, planes: Sequence[Tensor], memory: Tensor) -> list[Tensor]:
        """The outputs, some of them as views of ``memory``; valid until it is used again.

        Args:
            planes: all planes that inputs may name, each of the same width.
            memory: at least `registers` rows of that width.
        """
        files = [planes[i] for i in self.planes]
        files += memory.unbind(0)
        files[len(self.planes)].zero_()  # the false statement
        for operation, a, b, target in self.operations:
            if b < 0:
                operation(files[a], out=files[target])
            else:
                operation(files[a], files[b], out=files[target])
        return [files[i] for i in self.outputs]


class _Writer:
    """Chooses operations; a value's number is a register, given away at last by `allocate`."""

    def __init__(self, logic: Logic, inputs: Mapping[int, int]) -> None:
        self.logic, self.inputs = logic, inputs
        self.planes: list[int] = []
        self.operations: list[Operation] = []
        self._values = 0
        self._places: dict[int, int] = {FALSE: self._value()}
        self._given: dict[int, int] = {}
        self._where: dict[int, int] = {}

    def _value(self) -> int:
        self._values += 1
        return self._values - 1

    def _emit(self, operation: Callable[..., Any], a: int, b: int = -1) -> int:
        value = self._value()
        self.operations.append((operation, a, b, value))
        return value

    def place(self, literal: int) -> int:
        """The value that holds this literal."""
        stack = [literal >> 1]
        while stack:
            node = stack[-1]
            if 2 * node in self._places or 2 * node + 1 in self._places:
                stack.pop()
                continue
            operands = self.logic.operands[node]
            if operands is None:
                self._given[node] = self._places[2 * node] = self._value()
                continue
            open_nodes = [o >> 1 for o in operands if o not in self._places and o ^ 1 not in self._places]
            if open_nodes:
                stack += open_nodes
            else:
                stack.pop()
                self._compute(node, *operands)
        return self._signed(literal)

    def _signed(self, literal: int) -> int:
        if literal not in self._places:
            self._places[literal] = self._emit(torch.bitwise_not, self._places[literal ^ 1])
        return self._places[literal]

    def _compute(self, node: int, a: int, b: int) -> None:
        places = self._places
        if self.logic.parity[node]:
            sign = (a not in places) ^ (b not in places)
            one, two = (places[o] if o in places else places[o ^ 1] for o in (a, b))
            places[2 * node + sign] = self._emit(torch.bitwise_xor, one, two)
            return
        missing = (a not in places) + (b not in places)
        missing_negated = (a ^ 1 not in places) + (b ^ 1 not in places)
        if missing_negated < missing or (missing == missing_negated and b & 1 and a & 1):
            places[2 * node + 1] = self._emit(torch.bitwise_or, self._signed(a ^ 1), self._signed(b ^ 1))
        else:
            places[2 * node] = self._emit(torch.bitwise_and, self._signed(a), self._signed(b))

    # -- registers -----------------------------------------------------------------------------------------------

    def allocate(self, kept: Sequence[int]) -> int:
        """Give each value a register, a free one where there is one; how many registers that takes."""
        for node, value in self._given.items():
            self._where[value] = len(self.planes)
            self.planes.append(self.inputs[node])
        first = len(self.planes)
        last = self._last_uses()
        last |= dict.fromkeys(kept, len(self.operations))
        self._where[0] = first
        count, free = 1, list[int]()
        for number, (operation, a, b, value) in enumerate(self.operations):
            one, two = self._where[a], self._where[b] if b >= 0 else -1
            for done in {a, b}:
                if done > 0 and last[done] == number and self._where[done] >= first:
                    free.append(self._where[done])
            if free:
                self._where[value] = free.pop()
            else:
                self._where[value] = first + count
                count += 1
            if last.get(value, -1) < 0:
                free.append(self._where[value])
            self.operations[number] = (operation, one, two, self._where[value])
        return count

    def _last_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for number, (_, a, b, _) in enumerate(self.operations):
            last[a] = number
            last[b] = number
        return last

    def final(self, value: int) -> int:
        return self._where[value]
