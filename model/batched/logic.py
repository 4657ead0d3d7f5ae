"""Statements about a state as a graph of *and* and *exclusive or*, with equal parts once and constants folded.

A literal is an ``int``: a node's number times two, plus one for the negation. Building a statement costs a look-up for
each operator, so guards, effects and invariants of one chapter share whatever they have in common.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

FALSE: Final = 0
TRUE: Final = 1


class Logic:
    """A graph of statements; `operands` holds for each node its two literals, and `parity` which operator it is."""

    def __init__(self) -> None:
        self.operands: list[tuple[int, int] | None] = [None]
        self.parity: list[bool] = [False]
        self._known: dict[tuple[int, int, bool], int] = {}

    def variable(self) -> int:
        """A statement that is given from outside."""
        return self._node(None, False)

    def _node(self, operands: tuple[int, int] | None, parity: bool) -> int:
        self.operands.append(operands)
        self.parity.append(parity)
        return 2 * len(self.operands) - 2

    def both(self, a: int, b: int) -> int:
        """The conjunction."""
        if a > b:
            a, b = b, a
        if a <= TRUE:
            return b if a else FALSE
        if a >> 1 == b >> 1:
            return a if a == b else FALSE
        found = self._known.get((a, b, False))
        if found is None:
            found = self._known[a, b, False] = self._conjunction(a, b)
        return found

    def _conjunction(self, a: int, b: int) -> int:
        for one, other in ((a, b), (b, a)):
            parts = None if self.parity[one >> 1] else self.operands[one >> 1]
            if parts is None:
                continue
            x, y = parts
            if not one & 1:
                if other in parts:
                    return one
                if other ^ 1 in parts or self._excluded(parts, other):
                    return FALSE
            else:
                if other ^ 1 in parts or self._excluded(parts, other):
                    return other
                if other == x:
                    return self.both(x, y ^ 1)
                if other == y:
                    return self.both(y, x ^ 1)
        return self._node((a, b), False)

    def _excluded(self, parts: tuple[int, int], other: int) -> bool:
        """Whether a conjunction of these parts cannot hold together with another conjunction, as far as one sees."""
        if other & 1 or self.parity[other >> 1]:
            return False
        theirs = self.operands[other >> 1]
        return theirs is not None and (parts[0] ^ 1 in theirs or parts[1] ^ 1 in theirs)

    def either(self, a: int, b: int) -> int:
        """The disjunction."""
        return self.both(a ^ 1, b ^ 1) ^ 1

    def differ(self, a: int, b: int) -> int:
        """Exactly one of the two."""
        sign, a, b = (a ^ b) & 1, a & ~1, b & ~1
        if a > b:
            a, b = b, a
        if a == FALSE:
            return b ^ sign
        if a == b:
            return sign
        found = self._known.get((a, b, True))
        if found is None:
            found = self._known[a, b, True] = self._node((a, b), True)
        return found ^ sign

    def choose(self, condition: int, yes: int, no: int) -> int:
        """The one or the other, by a condition."""
        if yes == no or condition == TRUE:
            return yes
        if condition == FALSE:
            return no
        if yes == no ^ 1:
            return self.differ(condition, no)
        return self.either(self.both(condition, yes), self.both(condition ^ 1, no))

    def all_of(self, parts: Iterable[int]) -> int:
        """The conjunction of all; parts behind the first false one are not asked for."""
        result = TRUE
        for part in parts:
            result = self.both(result, part)
            if result == FALSE:
                break
        return result

    def any_of(self, parts: Iterable[int]) -> int:
        """The disjunction of all; parts behind the first true one are not asked for."""
        return self.all_of(part ^ 1 for part in parts) ^ 1
