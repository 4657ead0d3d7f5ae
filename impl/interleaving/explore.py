"""Every order of the steps of a small program, one run for each that matters; schedules to run again; random ones.

The search goes depth first and starts each run anew. Two reductions keep it small:

- *Sleep sets* (Godefroid 1996): of two orders that differ only in neighbouring steps on different objects, one is run.
  Such orders form a class (Mazurkiewicz 1977).
- *Known states*: where no operation is under way, the state decides what can follow (see `judge`). A state that was met
  with the same sleep set is not continued again; the classes that follow it are counted again.

Steps are operations on locks and counters. What a manager does between two of them is one with the first; a manager
that leaves other state without a lock is tried in fewer orders than there are.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.interleaving.judge import Run
from kvspec.impl.interleaving.programs import Op, Program, ProgramError, parse
from kvspec.impl.interleaving.steps import Factory, Step

MOST_RUNS = 100_000
"""Runs after which a search gives up."""

MOST_PREEMPTIONS = 3
"""Bound of `first_failure`: most faults need no more (Musuvathi and Qadeer 2007)."""

MOST_STEPS: Final = 100_000
"""Of a schedule."""

SAMPLES = 30
"""Random schedules of a program in which `sampled_failure` looks for a violation."""


class Failure(NamedTuple):
    """A run that breaks a rule.

    Attributes:
        program: what ran.
        violation: what was found.
        schedule: which thread took each step.
        steps: what it did.
    """

    program: Program
    violation: str
    schedule: tuple[int, ...]
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, program: Program, run: Run) -> Failure | None:
        """The failure of a run; None if it has none."""
        if run.violation is None:
            return None
        taken = run.scheduler.taken
        return cls(program, run.violation, tuple(t for t, _ in taken), tuple(s for _, s in taken))

    @property
    def kind(self) -> str:
        """What sort of violation it is."""
        return self.violation.partition(":")[0]

    @property
    def script(self) -> str:
        """Program and schedule, as `replay` takes them."""
        return f"{self.program}\nschedule: {write_schedule(self.schedule)}"

    @property
    def log(self) -> list[str]:
        """A line for each step: who took it, and what it was."""
        return [f"thread {thread}: {step}" for thread, step in zip(self.schedule, self.steps, strict=True)]

    def __str__(self) -> str:
        return "\n".join([self.violation, self.script, *(f"  {line}" for line in self.log)])


@dataclass
class Coverage:
    """What a search went through.

    Attributes:
        runs: executions.
        steps: those of all runs.
        states: different states in which no operation was under way and somebody went on.
        classes: classes of complete runs that these stand for; None if the search did not end, or was bounded.
        failure: the first violation; the search ends there.
    """

    runs: int = 0
    steps: int = 0
    states: int = 0
    classes: int | None = None
    failure: Failure | None = None


# -- schedules --------------------------------------------------------------------------------------------------------
class Script(NamedTuple):
    """A program, and the schedule to run it by; None stands for all of them."""

    program: Program
    schedule: tuple[int, ...] | None


def read_script(text: str) -> Script:
    """A program that may have a schedule below it.

    Raises:
        ProgramError: a line of it cannot be read.
    """
    above, *below = re.split(r"^[ \t]*schedule:", text, maxsplit=1, flags=re.MULTILINE)
    program = parse(above)
    if not below:
        return Script(program, None)
    words = " ".join(line.partition("#")[0] for line in below[0].splitlines())
    try:
        return Script(program, read_schedule(words))
    except InvalidRangeError as error:
        raise ProgramError(error.what, error.expected, above.count("\n") + 1) from error


def write_schedule(schedule: Sequence[int]) -> str:
    """Threads with the number of steps that each takes in a row: ``0*3 1*2``."""
    return " ".join(f"{thread}*{len(list(steps))}" for thread, steps in groupby(schedule))


def read_schedule(text: str) -> tuple[int, ...]:
    """The inverse of `write_schedule`. Raises `InvalidRangeError` where a word is not ``thread*steps``."""
    schedule: list[int] = []
    for word in text.split():
        thread, star, count = word.partition("*")
        if not (star and re.fullmatch("[0-9]{1,6}", thread) and re.fullmatch("[0-9]{1,6}", count)):
            raise InvalidRangeError("schedule", word, "thread*steps, such as 0*3")
        schedule += [int(thread)] * int(count)
        if len(schedule) > MOST_STEPS:
            raise InvalidRangeError("schedule", f"{len(schedule)} steps", f"at most {MOST_STEPS}")
    return tuple(schedule)


def replay(script: str, factory: Factory) -> Run:
    """Run a program by its schedule (`Failure.script`); without one, the first thread that can goes on.

    Raises:
        InvalidRangeError: the text cannot be read, or a thread of the schedule cannot take a step.
    """
    program, schedule = read_script(script)
    return follow(program, schedule or (), factory)


def follow(program: Program, schedule: Sequence[int], factory: Factory) -> Run:
    """Run a program by a schedule; when that is over, the first thread that can goes on.

    Raises:
        InvalidRangeError: a thread of the schedule cannot take a step.
    """
    left = iter(schedule)

    def choose(run: Run, pending: dict[int, Step], enabled: list[int], last: int | None) -> int | None:
        if run.is_quiet and not run.settle():
            return None
        thread = next(left, enabled[0])
        if thread not in enabled:
            where = f"schedule, step {len(run.scheduler.taken) + 1}"
            raise InvalidRangeError(where, f"thread {thread}", f"one that can go on: {enabled}")
        return thread

    return Run(program, factory, choose).execute()


# -- all schedules ----------------------------------------------------------------------------------------------------
@dataclass
class _Node:
    """A moment of the current run at which somebody was chosen.

    Attributes:
        pending: the next step of each thread.
        sleep: threads whose step now would only give a class again.
        options: threads still to be chosen here, the current one last.
        preemptions: how often a thread that could go on was passed over before.
        key: under which its classes are kept, None where an operation is under way.
        classes: those found from here on.
    """

    pending: dict[int, Step]
    sleep: dict[int, Step]
    options: list[int]
    last: int | None
    preemptions: int
    key: object
    classes: int = 0

    @property
    def chosen(self) -> int:
        return self.options[-1]

    def sleep_of_child(self) -> dict[int, Step]:
        step = self.pending[self.chosen]
        return {thread: asleep for thread, asleep in self.sleep.items() if not asleep.depends(step)}

    def preemptions_of_child(self, enabled: Sequence[int]) -> int:
        return self.preemptions + (self.last in enabled and self.chosen != self.last)


@dataclass
class _Search:
    """Depth-first search over the schedules of a program; with a bound on preemptions, without sleep sets."""

    program: Program
    factory: Factory
    bound: int | None = None
    most_runs: int = MOST_RUNS
    kind: str = ""
    on_run: Callable[[Coverage], None] = lambda coverage: None
    coverage: Coverage = field(default_factory=Coverage)
    path: list[_Node] = field(default_factory=list)
    known: dict[object, int] = field(default_factory=dict)
    met: set[object] = field(default_factory=set)
    depth: int = 0
    leaf: int = 0

    def search(self) -> Coverage:
        coverage = self.coverage
        while coverage.runs < self.most_runs:
            self.depth, self.leaf = 0, 0
            run = Run(self.program, self.factory, self._choose).execute()
            coverage.runs += 1
            coverage.steps += len(run.scheduler.taken)
            coverage.states = len(self.met)
            if run.violation is not None and run.violation.startswith(self.kind):
                coverage.failure = Failure.of(self.program, run)
                break
            more = self._backtrack(1 if run.is_complete else self.leaf)
            self.on_run(coverage)
            if not more:
                break
        return coverage

    def _choose(self, run: Run, pending: dict[int, Step], enabled: list[int], last: int | None) -> int | None:
        if run.is_quiet and not run.settle():
            return None
        if self.depth == len(self.path) and not self._open(run, pending, enabled, last):
            return None
        self.depth += 1
        return self.path[self.depth - 1].chosen

    def _open(self, run: Run, pending: dict[int, Step], enabled: list[int], last: int | None) -> bool:
        """A new moment; False if there is no need to go on from it."""
        parent = self.path[-1] if self.path else None
        sleep = parent.sleep_of_child() if parent and self.bound is None else {}
        spent = parent.preemptions_of_child(list(parent.pending)) if parent else 0
        key = None
        if run.is_quiet:
            state = run.state()
            self.met.add(state)
            key = (state, frozenset(sleep)) if self.bound is None else (state, spent, last)
            if key in self.known:
                self.leaf = self.known[key]
                return False
        options = self._options([thread for thread in enabled if thread not in sleep], last, spent)
        if options:
            self.path.append(_Node(dict(pending), sleep, options, last, spent, key))
        return bool(options)

    def _options(self, awake: list[int], last: int | None, spent: int) -> list[int]:
        """In the order of choice from the end: who ran last goes on first."""
        if last not in awake:
            return awake[::-1]
        if self.bound is not None and spent >= self.bound:
            return [last]
        return [*(thread for thread in reversed(awake) if thread != last), last]

    def _backtrack(self, classes: int) -> bool:
        """Count what was found, and go to the next choice that is left; False if there is none."""
        while self.path:
            node = self.path[-1]
            node.classes += classes
            chosen = node.options.pop()
            node.sleep[chosen] = node.pending[chosen]
            if node.options:
                return True
            self.path.pop()
            classes = node.classes
            if node.key is not None:
                self.known[node.key] = classes
        if self.bound is None:
            self.coverage.classes = classes
        return False


def explore(
    program: Program,
    factory: Factory,
    most_runs: int = MOST_RUNS,
    on_run: Callable[[Coverage], None] = lambda coverage: None,
) -> Coverage:
    """Run a program in all orders of its steps, up to the first violation or so many runs.

    Args:
        on_run: told after each run how far the search has come.
    Raises:
        UndecidedError: nothing can be said of a run.
    """
    return _Search(program, factory, most_runs=most_runs, on_run=on_run).search()


def first_failure(
    program: Program, factory: Factory, kind: str = "", preemptions: int = MOST_PREEMPTIONS, most_runs: int = MOST_RUNS
) -> Failure | None:
    """A violation with as few preemptions as possible, None if so many give none.

    Args:
        kind: how the violation begins, such as "lost id"; a run with another one is not followed further.
        preemptions: how often a thread that could go on is passed over, at most.
        most_runs: for each number of preemptions, at most.
    """
    for bound in range(preemptions + 1):
        failure = _Search(program, factory, bound, most_runs, kind).search().failure
        if failure is not None:
            return failure
    return None


Find = Callable[[Program, Factory, str], Failure | None]
"""Looks for a violation of this kind in a program, such as `first_failure`."""


def shrink(failure: Failure, factory: Factory, find: Find = first_failure) -> Failure:
    """The same kind of violation by a program of which no operation can be left out, as far as `find` finds it."""
    place = in_vain = 0
    while in_vain < len(programs := list(_shorter(failure.program))):
        place %= len(programs)
        shorter = find(programs[place], factory, failure.kind)
        if shorter is None:
            place, in_vain = place + 1, in_vain + 1
        else:
            failure, in_vain = shorter, 0
    return failure


def _shorter(program: Program) -> Iterator[Program]:
    for index, ops in enumerate(program.threads):
        rest = program.threads[:index], program.threads[index + 1 :]
        if len(program.threads) > 1:
            yield program._replace(threads=(*rest[0], *rest[1]))
        for shorter in _without_one(ops):
            yield program._replace(threads=(*rest[0], shorter, *rest[1]))
    for setup in _without_one(program.setup):
        yield program._replace(setup=setup)


def _without_one(ops: tuple[Op, ...]) -> Iterator[tuple[Op, ...]]:
    return ((*ops[:index], *ops[index + 1 :]) for index in range(len(ops)))


# -- random schedules -------------------------------------------------------------------------------------------------
def sample(program: Program, factory: Factory, seed: int) -> Run:
    """Run a program once, by a schedule that the seed decides.

    Raises:
        UndecidedError: nothing can be said of the run.
    """
    draw = random.Random(seed)

    def choose(run: Run, pending: dict[int, Step], enabled: list[int], last: int | None) -> int | None:
        if run.is_quiet and not run.settle():
            return None
        return draw.choice(enabled)

    return Run(program, factory, choose).execute()


def random_run(program: Program, factory: Factory, seed: int) -> Failure | None:
    """The violation in the run that the seed decides, None if there is none."""
    return Failure.of(program, sample(program, factory, seed))


def sampled_failure(program: Program, factory: Factory, kind: str) -> Failure | None:
    """A violation of this kind in a few random runs, None if they have none."""
    runs = (random_run(program, factory, seed) for seed in range(SAMPLES))
    return next((found for found in runs if found is not None and found.violation.startswith(kind)), None)
