"""Threads that really run side by side, for many operations, with the accounts looked at again and again.

The interpreter rarely takes the processor from a thread between two neighbouring instructions. So at steps, drawn by
the seed, the thread gives it away; which thread gets it is up to the machine. Whether that is enough here is asked by
`control`: a soak that would not find a lost update says nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from types import TracebackType
from typing import Final, NamedTuple

from kvspec.impl.block import Block, TrackedBlock
from kvspec.impl.concurrent_block_manager_impl import ConcurrentBlockManagerImpl
from kvspec.impl.interleaving.programs import BLOCK_SIZE, accounts, drained, tokens_of
from kvspec.impl.interleaving.steps import Factory, Step, Stepper, watched

FAMILIES = 2
"""Different prefixes; few, so that all threads hold handles of the same blocks."""

MOST_HELD = 3
"""Sequences that a thread holds before it lets one go."""

PASS_ON = {"acquire": 0.02, "release": 0.02, "load": 0.02, "store": 0.2}
"""How often the processor is given away before a step of each kind; most before a store, which may be out of date."""


ROUNDS: Final = 40

PATIENCE: Final = 10.0
"""Seconds in which at least one of the threads has to begin another operation."""


class YieldingSteps:
    """A `Stepper` for real threads."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own = threading.local()

    def at(self, step: Step) -> None:
        """Let another thread go first, if the draw says so."""
        draw = getattr(self._own, "draw", None)
        if draw is None:
            draw = self._own.draw = random.Random(f"{self._seed} {threading.current_thread().name}")
        if draw.random() < PASS_ON[step.kind]:
            time.sleep(0)

    def lock(self, *, recursive: bool = True) -> YieldingLock:
        """A lock of the interpreter that announces its steps."""
        return YieldingLock(self, recursive)


class YieldingLock:
    """A lock that announces what is done to it."""

    def __init__(self, steps: YieldingSteps, recursive: bool) -> None:
        self._steps = steps
        self._lock = threading.RLock() if recursive else threading.Lock()

    def __enter__(self) -> YieldingLock:
        self._steps.at(Step("acquire", "lock"))
        self._lock.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._steps.at(Step("release", "lock"))
        self._lock.release()


class SoakReport(NamedTuple):
    """What came of it.

    Attributes:
        operations: how many were done.
        refused: allocations among them that found no room.
        passed_on: handles that one thread copied and another one released.
        violation: None if all was well, up to the drain.
    """

    operations: int
    refused: int
    passed_on: int
    violation: str | None


class _Worker:
    """What one thread holds, and what it does next: only what is allowed, so that every error is one of the manager."""

    def __init__(self, manager: ConcurrentBlockManagerImpl, mail: deque[Block], seed: str) -> None:
        self.manager = manager
        self.mail = mail
        self.draw = random.Random(seed)
        self.sequences: list[tuple[int, list[Block]]] = []
        self.bare: list[Block] = []
        self.operations = 0
        self.refused = 0
        self.passed_on = 0

    def handles(self) -> Iterator[Block]:
        return chain(self.bare, *(blocks for _, blocks in self.sequences))

    def step(self) -> None:
        self.operations += 1
        if len(self.sequences) >= MOST_HELD:
            return self._finish()
        actions: list[Callable[[], None]] = [
            self._allocate,
            self._match,
            self._release,
            self._release_mail,
            self._evict,
        ]
        if self.sequences:
            actions += [self._copy, self._copy, self._send, self._send, self._share, self._publish, self._finish]
        self.draw.choice(actions)()

    def _add(self, family: int, blocks: list[Block] | None) -> None:
        if blocks:
            self.sequences.append((family, blocks))

    def _any(self) -> tuple[int, list[Block]]:
        return self.draw.choice(self.sequences)

    def _allocate(self) -> None:
        blocks = self.manager.allocate(self.draw.randint(1, 2))
        self.refused += blocks is None
        self._add(self.draw.randrange(FAMILIES), blocks)

    def _match(self) -> None:
        family = self.draw.randrange(FAMILIES)
        self._add(family, self.manager.allocate_shared(tokens_of(family, 2)))

    def _share(self) -> None:
        family, blocks = self._any()
        self._add(family, self.manager.share(blocks))

    def _publish(self) -> None:
        family, blocks = self._any()
        self.manager.cache(tokens_of(family, len(blocks)), blocks)

    def _finish(self) -> None:
        _, blocks = self.sequences.pop(self.draw.randrange(len(self.sequences)))
        self.manager.release_blocks(blocks)

    def _copy(self) -> None:
        self.bare.append(self.draw.choice(self._any()[1]).copy())
        if len(self.bare) > MOST_HELD:
            self._release()

    def _send(self) -> None:
        self.mail.append(self.draw.choice(self._any()[1]).copy())
        if len(self.mail) > MOST_HELD:
            self._release_mail()

    def _release(self) -> None:
        if self.bare:
            self.bare.pop(self.draw.randrange(len(self.bare))).release()

    def _release_mail(self) -> None:
        try:
            block = self.mail.popleft()
        except IndexError:
            return
        self.passed_on += 1
        block.release()

    def _evict(self) -> None:
        assert self.manager.prefix_cache_ is not None
        self.manager.prefix_cache_.evict(1)


class _Soak:
    """Rounds of threads; between them nobody works, and the ids are counted."""

    def __init__(self, factory: Factory, threads: int, seed: int, num_blocks: int) -> None:
        self.manager = factory(YieldingSteps(seed), num_blocks, BLOCK_SIZE)
        self.mail: deque[Block] = deque()
        self.workers = [_Worker(self.manager, self.mail, f"{seed} {thread}") for thread in range(threads)]
        self.violation: str | None = None

    def round(self, operations: int) -> None:
        share = len(range(0, operations, len(self.workers)))  # rounded up
        threads = [
            threading.Thread(target=self._work, args=(worker, share), name=f"soak-{index}", daemon=True)
            for index, worker in enumerate(self.workers)
        ]
        for thread in threads:
            thread.start()
        try:
            self._wait(threads)
        except BaseException:
            self.violation = "interrupted"  # which ends the threads
            raise
        if self.violation is None:
            self.violation = accounts(self.manager, self.handles())

    def _wait(self, threads: list[threading.Thread]) -> None:
        """Until all have ended; that none comes further is a violation."""
        seen = None
        while running := [thread for thread in threads if thread.is_alive()]:
            running[0].join(PATIENCE)
            begun = self.report().operations
            if running[0].is_alive() and begun == seen:
                self.violation = f"no return: no thread has come to the end of an operation for {PATIENCE:g} seconds"
                return
            seen = begun

    def handles(self) -> list[Block]:
        return [*self.mail, *chain.from_iterable(worker.handles() for worker in self.workers)]

    def _work(self, worker: _Worker, operations: int) -> None:
        for _ in range(operations):
            if self.violation is not None:
                return
            try:
                worker.step()
            except Exception as error:
                self.violation = f"{type(error).__name__}: {error}"

    def report(self) -> SoakReport:
        workers = self.workers
        return SoakReport(
            sum(worker.operations for worker in workers),
            sum(worker.refused for worker in workers),
            sum(worker.passed_on for worker in workers),
            self.violation,
        )


def soak(
    factory: Factory,
    operations: int,
    *,
    threads: int = 8,
    seed: int = 0,
    num_blocks: int = 20,
    rounds: int = ROUNDS,
    on_round: Callable[[SoakReport], None] = lambda report: None,
) -> SoakReport:
    """So many operations by threads that really run, the accounts after each round, and a drain at the end.

    Args:
        factory: makes the manager.
        operations: of all threads and rounds together, at least.
        threads, seed, num_blocks, rounds: as they say.
        on_round: told after each round what has come of it so far.
    """
    run = _Soak(factory, threads, seed, num_blocks)
    for _ in range(rounds):
        run.round(len(range(0, operations, rounds)))  # rounded up
        on_round(run.report())
        if run.violation is not None:
            break
    else:
        run.violation = drained(run.manager, run.handles())
    return run.report()


# -- would a mistake be found? ----------------------------------------------------------------------------------------
class PlainCounter(ConcurrentBlockManagerImpl):
    """Handles are counted without the lock: load and store are two steps."""

    handle_types_ = (Block, TrackedBlock)


def plain_counter(stepper: Stepper, num_blocks: int, block_size: int) -> ConcurrentBlockManagerImpl:
    """`PlainCounter` as a `Factory`."""
    return watched(PlainCounter, stepper, num_blocks, block_size, stepper.lock())


def control(operations: int, *, threads: int = 8, seed: int = 0, num_blocks: int = 20) -> SoakReport:
    """A soak of `PlainCounter` by a tenth of the operations; what it finds there, if anything."""
    return soak(plain_counter, operations // 10, threads=threads, seed=seed, num_blocks=num_blocks, rounds=ROUNDS // 4)
