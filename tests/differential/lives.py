"""Targets led through the operations of the one generator, each under its own judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from kvspec.model.acceptor import Acceptor
from kvspec.model.conformance import MisuseError, PoolConfig, Target
from kvspec.model.generator import Generator, Kind, Source
from kvspec.model.operations import AnyOperation, Evict, Write
from kvspec.model.pools import Pools

T = TypeVar("T")
MakeTarget = Callable[[PoolConfig], Target]
ERROR = "error"
LARGE = 250
"""Blocks of a pool that needs no eviction in a life of a hundred operations."""

POOLS = Pools()


class DrawnSource:
    """Choices that Hypothesis makes, and makes simpler."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def integer(self, low: int, high: int) -> int:
        """A number from low to high."""
        return self.data.draw(st.integers(low, high))

    def choice(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.data.draw(st.integers(0, len(items) - 1))]

    def chance(self, probability: float) -> bool:
        """True with about this probability; the simpler answer is no."""
        return self.data.draw(st.integers(1, 1000)) > 1000 * (1 - probability)


class Lives:
    """The same operations on several targets; what to do next is decided by the state of the first.

    With `alike` the targets must answer and show the same, so they are given nothing to choose.
    """

    def __init__(
        self, source: Source, config: PoolConfig, kind: Kind, makers: Sequence[MakeTarget], alike: bool = False
    ) -> None:
        self.config, self.alike = config, alike
        self.judges = [Acceptor(make(config), config, pool=POOLS.take(config)) for make in makers]
        first = self.judges[0]
        measure = 6 if alike and config.num_blocks >= LARGE else None
        self.generator = Generator(source, config, first.pool, first.capabilities, kind, measure)
        self.done: list[AnyOperation] = []
        self.broken = False

    def step(self) -> list[Any]:
        """One operation on each target; what they answered."""
        operation = self.generator.next()
        if self.alike and self._leaves_a_choice(operation):
            operation = Evict(0)
        answers = self.do(operation)
        if self.alike:
            first, second = self.judges
            assert answers[0] == answers[1], operation
            assert shown(first) == shown(second), operation
        return answers

    def _leaves_a_choice(self, operation: AnyOperation) -> bool:
        """A victim is a choice; so is whether blocks that others hold may be written without asking for room."""
        judge = self.judges[0]
        match operation:
            case Evict():
                return operation.num_blocks > 0
            case Write():
                return any(judge.may_refuse(seq, count) for seq, count in operation.batch)
        return False

    def do(self, operation: AnyOperation) -> list[Any]:
        """This operation on each target."""
        self.broken = True
        self.done.append(operation)
        answers = [_answer(judge, operation) for judge in self.judges]
        self.broken = False
        self.generator.saw(answers[0])
        return answers

    def end(self, close: bool = False) -> None:
        """Give everything back, look at everything, and close."""
        try:
            if not self.broken:
                self._drain(close)
        finally:
            for judge in self.judges:
                POOLS.give(judge.pool)

    def _drain(self, close: bool) -> None:
        for operation in self.generator.ending():
            self.do(operation)
        for judge in self.judges:
            judge.sweep()
            assert len(judge.pool.free) == self.config.num_blocks - 1
        for operation in self.generator.closing() if close else ():
            self.do(operation)


def _answer(judge: Acceptor, operation: AnyOperation) -> Any:
    try:
        return judge.do(operation)
    except MisuseError:
        return ERROR


def shown(judge: Acceptor) -> dict[str, Any]:
    """What does not depend on which block is taken."""
    target, sequences = judge.target, judge.pool.requests
    return {
        "free": target.free_count(),
        "used": target.used_count(),
        "keys": len(target.cached()),
        "computed": {seq: target.num_computed(seq) for seq in sequences},
        "blocks": {seq: len(target.block_table(seq)) for seq in sequences},
        "references": sorted(target.ref_count(block) for block in range(1, judge.config.num_blocks)),
    }
