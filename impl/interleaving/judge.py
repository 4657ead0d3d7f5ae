"""One run of a program under a chooser, judged against the serial manager (field rule I18).

Whenever no operation is under way, the operations since the last such moment must have an order that the serial
`BlockManagerImpl` can follow: with the same results, ending in the same state, and with no operation before one that
had ended when it began (Herlihy and Wing 1990). From that moment on only the state matters, so two runs that
meet in a state need not both be continued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.interleaving.programs import BLOCK_SIZE, Op, Player, Program, Seen, accounts, drained, portrait
from kvspec.impl.interleaving.scheduler import Chooser, Scheduler, UndecidedError
from kvspec.impl.interleaving.steps import Factory, Step

MOST_TRIED: Final = 5_000
"""Serial operations tried in search of one order, after which a run is given up."""


class Done(NamedTuple):
    """An operation that has ended.

    Attributes:
        thread, op: whose and which.
        seen: its result.
        first, last: number of steps of the run before its first one, and at its end.
    """

    thread: int
    op: Op
    seen: Seen
    first: int
    last: int

    def __str__(self) -> str:
        return f"thread {self.thread}: {self.op} -> {self.seen}"


Choose = Callable[["Run", dict[int, Step], list[int], int | None], int | None]
"""As `Chooser.choose`, with the run."""


class Run(Chooser):
    """One execution of a program.

    Attributes:
        violation: what was found, None if nothing.
        scheduler: its steps so far.
        is_quiet: no operation is under way, except that some may wait to enter a lock for the first time.

    Args:
        program: what to run.
        factory: makes the manager.
        choose: decides who goes next.
    """

    def __init__(self, program: Program, factory: Factory, choose: Choose) -> None:
        self.violation: str | None = None
        self.is_quiet = False
        self.scheduler = Scheduler(self)
        self._program = program
        self._choose = choose
        self._player = Player(factory(self.scheduler, program.num_blocks, BLOCK_SIZE))
        self._settled: list[Op] = list(program.setup)
        self._tried = 0
        self._dead: set[object] = set()
        self._window: list[Done] = []
        self._position = [0] * len(program.threads)
        self._begun: list[int | None] = [None] * len(program.threads)
        self._finished = False

    def execute(self) -> Run:
        """Run to the end, to a violation, or to where `choose` gave up."""
        for op in self._program.setup:
            self._player.apply(op)
        self._serial = self._replayed(self._settled)
        bodies = [self._body(thread) for thread in range(len(self._program.threads))]
        self._finished = self.scheduler.run(bodies)
        if self.scheduler.deadlock:
            self.violation = f"deadlock: {self._waiting}"
        elif self._finished and self.settle():
            self.violation = drained(self._player.manager, self._player.handles())
        return self

    @property
    def is_complete(self) -> bool:
        """Whether every thread came to its end."""
        return self._finished

    def choose(self, pending: dict[int, Step], enabled: list[int], last: int | None) -> int | None:
        """See `Chooser.choose`; a violation ends the run."""
        # What an operation does before it has the lock is its own affair; without a lock it may be anything.
        self.is_quiet = not any(begun is not None for begun in self._begun) and all(
            step.kind == "acquire" for step in pending.values()
        )
        chosen = self._choose(self, pending, enabled, last)
        if chosen is not None and self._begun[chosen] is None:
            self._begun[chosen] = len(self.scheduler.taken)
        return chosen

    # -- moments -----------------------------------------------------------------------------------------------------
    def settle(self) -> bool:
        """Judge what has ended since the last quiet moment; False if that is a violation."""
        return self.scheduler.aside(self._settle)

    def state(self) -> tuple[object, ...]:
        """What the rest of a run depends on at a quiet moment."""
        return self.scheduler.aside(lambda: (tuple(self._position), portrait(self._player)))

    def _settle(self) -> bool:
        self.violation = accounts(self._player.manager, self._player.handles())
        if self.violation is None and not self._has_order():
            said = "; ".join(map(str, self._window))
            self.violation = f"no serial order gives these results and this state: {said}"
        self._window.clear()
        return self.violation is None

    def _has_order(self) -> bool:
        self._tried, self._dead = 0, set()
        goal, window = portrait(self._player), list(self._window)
        return self._grow(self._serial if len(window) == 1 else None, [], window, goal)

    def _grow(self, serial: Player | None, order: list[Done], rest: list[Done], goal: tuple[object, ...]) -> bool:
        """Whether this order, which gives what was seen, goes on to the end (Wing and Gong 1993).

        Args:
            serial: a manager that has followed it; None if one has to be made.
        """
        serial = serial or self._replayed([*self._settled, *(done.op for done in order)])
        state = portrait(serial)
        if not rest:
            if state == goal:
                self._serial = serial
                self._settled += [done.op for done in order]
            return state == goal
        key = (frozenset(map(id, rest)), state)
        if key in self._dead:
            return False
        self._dead.add(key)
        for done in firsts(rest):
            self._tried += 1
            if self._tried > MOST_TRIED:
                raise UndecidedError(f"{len(self._window)} operations overlap, in too many orders to try them all")
            serial = serial or self._replayed([*self._settled, *(done.op for done in order)])
            if serial.apply(done.op) == done.seen:
                others = [other for other in rest if other is not done]
                if self._grow(serial, [*order, done], others, goal):
                    return True
            serial = None
        return False

    def _replayed(self, ops: Sequence[Op]) -> Player:
        manager = BlockManagerImpl(self._program.num_blocks, BLOCK_SIZE, record_events=False)
        player = Player(manager)
        for op in ops:
            player.apply(op)
        return player

    # -- threads -----------------------------------------------------------------------------------------------------
    def _body(self, thread: int) -> Callable[[], None]:
        def body() -> None:
            for op in self._program.threads[thread]:
                seen = self._player.apply(op)
                now = len(self.scheduler.taken)
                begun = self._begun[thread]
                self._window.append(Done(thread, op, seen, now if begun is None else begun, now))
                self._begun[thread] = None
                self._position[thread] += 1

        return body

    @property
    def _waiting(self) -> str:
        under_way = [
            f"thread {thread} in {ops[self._position[thread]]}"
            for thread, ops in enumerate(self._program.threads)
            if self._position[thread] < len(ops)
        ]
        return f"nobody can go on: {'; '.join(under_way)}"


def firsts(window: Sequence[Done]) -> Iterator[Done]:
    """Those before which no other one had ended when they began; the first that ended comes first."""
    for index, done in enumerate(window):
        earlier, rest = window[:index], [*window[:index], *window[index + 1 :]]
        if not (any(one.thread == done.thread for one in earlier) or any(_is_before(one, done) for one in rest)):
            yield done


def _is_before(one: Done, other: Done) -> bool:
    """Whether one had ended when the other began. Two that took no step, at one moment, have no order."""
    return one.last <= other.first and (one.first < one.last or other.first < other.last)
