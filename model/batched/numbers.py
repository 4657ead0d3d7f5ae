"""Natural numbers, and differences of them, as bits of statements: two's complement, the sign last.

Widths grow with what is computed, so nothing wraps. A number may be absent (`kvspec.model.concrete.ABSENT`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvspec.model.batched.logic import FALSE, TRUE, Logic


@dataclass(frozen=True)
class Number:
    """Bits as literals, the least first, the sign last; and whether there is no number at all."""

    bits: tuple[int, ...]
    absent: int = FALSE

    def bit(self, place: int) -> int:
        return self.bits[min(place, len(self.bits) - 1)]


def constant(value: int) -> Number:
    """The bits of a number."""
    width = value.bit_length() + 1
    return Number(tuple(TRUE if value >> i & 1 else FALSE for i in range(width)))


def _trimmed(bits: list[int]) -> Number:
    while len(bits) > 1 and bits[-1] == bits[-2]:
        bits.pop()
    return Number(tuple(bits))


class Arithmetic:
    """Operations on numbers, as statements of one `Logic`."""

    def __init__(self, logic: Logic) -> None:
        self.logic = logic

    def add(self, a: Number, b: Number, carry: int = FALSE) -> Number:
        return _trimmed(self._sum(a, b, carry, max(len(a.bits), len(b.bits)) + 1))

    def _sum(self, a: Number, b: Number, carry: int, width: int) -> list[int]:
        logic, bits = self.logic, []
        for i in range(width):
            x, y = a.bit(i), b.bit(i)
            differ = logic.differ(x, y)
            bits.append(logic.differ(differ, carry))
            carry = logic.either(logic.both(x, y), logic.both(differ, carry))
        return bits

    def negative(self, a: Number) -> Number:
        return self.subtract(constant(0), a)

    def subtract(self, a: Number, b: Number) -> Number:
        return self.add(a, Number(tuple(bit ^ 1 for bit in b.bits)), TRUE)

    def multiply(self, a: Number, b: Number) -> Number:
        total = constant(0)
        for i, bit in enumerate(b.bits):
            part = Number((FALSE,) * i + tuple(self.logic.both(bit, x) for x in a.bits))
            total = self.subtract(total, part) if i == len(b.bits) - 1 else self.add(total, part)
        return total

    def divide(self, a: Number, b: Number) -> tuple[Number, Number]:
        """Quotient, rounded down, and remainder; of a division by zero, any two numbers."""
        minus = b.bits[-1]
        a, b = (self.choose(minus, self.negative(x), x) for x in (a, b))
        below = a.bits[-1]
        # Of a negative number: -1 - a is not negative, and so is divided in its place.
        quotient, remainder = self._divide(self.choose(below, self.subtract(constant(-1), a), a), b)
        quotient = self.choose(below, self.subtract(constant(-1), quotient), quotient)
        other = self.subtract(self.subtract(b, constant(1)), remainder)
        remainder = self.choose(below, other, remainder)
        return quotient, self.choose(minus, self.negative(remainder), remainder)

    def _divide(self, a: Number, b: Number) -> tuple[Number, Number]:
        """Of numbers that are not negative, bit by bit."""
        rest, quotient = constant(0), []
        for bit in reversed(a.bits[:-1]):
            rest = _trimmed([bit, *rest.bits])
            fits = self.less(rest, b) ^ 1
            rest = self.choose(fits, self.subtract(rest, b), rest)
            quotient.append(fits)
        return _trimmed([*reversed(quotient), FALSE]), rest

    def choose(self, condition: int, yes: Number, no: Number) -> Number:
        width = max(len(yes.bits), len(no.bits))
        bits = [self.logic.choose(condition, yes.bit(i), no.bit(i)) for i in range(width)]
        return Number(_trimmed(bits).bits, self.logic.choose(condition, yes.absent, no.absent))

    def less(self, a: Number, b: Number) -> int:
        """Strictly below; what is absent is below nothing and above nothing."""
        there = self.logic.either(a.absent, b.absent) ^ 1
        return self.logic.both(there, self.subtract(a, b).bits[-1])

    def equal(self, a: Number, b: Number) -> int:
        logic = self.logic
        width = max(len(a.bits), len(b.bits))
        same = logic.all_of(logic.differ(a.bit(i), b.bit(i)) ^ 1 for i in range(width))
        neither = logic.both(a.absent ^ 1, b.absent ^ 1)
        return logic.either(logic.both(neither, same), logic.both(a.absent, b.absent))

    def count(self, statements: Iterable[int]) -> Number:
        """How many of them hold."""
        parts = [Number((s, FALSE)) for s in statements]
        while len(parts) > 1:
            pairs = [self.add(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
            parts = pairs + parts[2 * len(pairs) :]
        return parts[0] if parts else constant(0)

    def values(self, a: Number) -> Iterator[tuple[int, int]]:
        """Each value that it may have, with the statement that it has this one."""
        low, high = -(1 << len(a.bits) - 1), 1 << len(a.bits) - 1
        for value in range(low, high):
            same = self.equal(a, constant(value))
            if same != FALSE:
                yield value, same
