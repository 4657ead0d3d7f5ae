"""What ``kvspec interleave`` runs: every order of some programs, one schedule, random programs, or real threads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from kvspec.cli.errors import fail_input
from kvspec.cli.output import counted, progress
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.interleaving.explore import (
    Coverage,
    Failure,
    Script,
    explore,
    first_failure,
    follow,
    sample,
    sampled_failure,
    shrink,
)
from kvspec.impl.interleaving.programs import Program, random_program, unfilled
from kvspec.impl.interleaving.soak import ROUNDS, SoakReport, control, soak
from kvspec.impl.interleaving.steps import Factory

SHRINK_SECONDS: Final = 30.0
SHRINK_RUNS: Final = 1_000
"""Of each smaller program, for each number of preemptions."""
MOST_IN_A_ROUND: Final = 5_000
"""Operations of a soak between two looks at the accounts."""


@dataclass
class Job:
    """What a call of the command runs.

    Attributes:
        violation: what was found, "" if nothing.
        failure: the run that shows it, if it can be run again.
        reason: why nothing can be said, "" if something can.
        steps: so many were taken.
    """

    factory: Factory
    violation: str = field(default="", init=False)
    failure: Failure | None = field(default=None, init=False)
    reason: str = field(default="", init=False)
    steps: int = field(default=0, init=False)

    def run(self) -> None:
        """Go on to the end or to a violation. Raises `UndecidedError` where nothing can be said of a run."""
        raise NotImplementedError

    def smaller(self, failure: Failure) -> Failure:
        """The same by a smaller program."""
        return failure

    def covered(self) -> Iterator[str]:
        """Lines that say how far it came."""
        raise NotImplementedError

    def holds(self) -> str:
        """What holds, and how far that goes."""
        raise NotImplementedError

    def json(self) -> dict[str, object]:
        """How far it came."""
        raise NotImplementedError

    @property
    def verdict(self) -> str:
        """One of the words of every command."""
        if self.violation:
            return "violated"
        if self.reason:
            return "unknown"
        return "holds" if self.steps else "vacuous"

    def found(self, failure: Failure) -> None:
        """This is a violation."""
        self.violation, self.failure = failure.violation, failure


@dataclass
class Orders(Job):
    """Every order of some programs."""

    programs: Mapping[str, Program]
    max_runs: int
    rows: dict[str, Coverage] = field(default_factory=dict)

    def run(self) -> None:
        with progress("runs") as bar:
            for name, program in self.programs.items():

                def tell(coverage: Coverage, name: str = name) -> None:
                    self.rows[name] = coverage
                    bar.advance(1, f"{name}, {coverage.states} states")

                coverage = self.rows[name] = explore(program, self.factory, self.max_runs, tell)
                self.steps += coverage.steps
                if coverage.failure is not None:
                    return self.found(coverage.failure)
                if coverage.classes is None:
                    self.reason = f"{name} was given up after {counted(coverage.runs, 'run')}; raise --max-runs"

    def smaller(self, failure: Failure) -> Failure:
        return _smallest(failure, self.factory)

    def covered(self) -> Iterator[str]:
        width = max(map(len, (*self.rows, "all")))
        yield f"{'':<{width}}{'runs':>10}{'steps':>12}{'states':>10}{'classes':>12}"
        for name, c in self.rows.items():
            yield _row(name.ljust(width), c)
        if len(self.rows) > 1:
            yield _row("all".ljust(width), _sum([*self.rows.values()]))
        for name in self.rows:
            if empty := unfilled(self.programs[name]):
                yield f"{name}: nothing fills {', '.join(empty)}, so what is done to it is done to no block"

    def holds(self) -> str:
        these = "this program" if len(self.programs) == 1 else "these programs"
        return f"every order of {counted(len(self.programs), 'program')} is a serial one (bounded: {these})"

    def json(self) -> dict[str, object]:
        rows = [
            {"name": name, "program": str(self.programs[name]), "runs": c.runs, "steps": c.steps, "states": c.states,
             "classes": c.classes}
            for name, c in self.rows.items()
        ]  # fmt: skip
        return {"mode": "orders", "programs": rows}


@dataclass
class Schedule(Job):
    """One run, by the schedule that a file gives."""

    path: Path
    script: Script

    def run(self) -> None:
        program, schedule = self.script
        assert schedule is not None
        try:
            run = follow(program, schedule, self.factory)
        except InvalidRangeError as error:
            expected = f"{error.expected}, or no schedule, for every order"
            fail_input(f"{error.where}: {error.what}", where=str(self.path), expected=expected)
        self.steps = len(run.scheduler.taken)
        failure = Failure.of(program, run)
        if failure is not None:
            self.found(failure)

    def covered(self) -> Iterator[str]:
        yield f"{self.path}: one run of {counted(self.steps, 'step')}, by its schedule"

    def holds(self) -> str:
        return "this order is a serial one (sampled: 1 run; without the schedule every order is run)"

    def json(self) -> dict[str, object]:
        return {"mode": "schedule", "program": str(self.script.program), "steps": self.steps}


@dataclass
class Random(Job):
    """Random programs, each by one random schedule."""

    programs: int
    threads: int
    operations: int
    blocks: int
    seed: int
    done: int = 0
    switches: int = 0

    def run(self) -> None:
        with progress("programs", self.programs) as bar:
            for number in range(self.seed, self.seed + self.programs):
                program = random_program(number, self.threads, self.operations, self.blocks)
                run = sample(program, self.factory, number)
                self.done += 1
                taken = [thread for thread, _ in run.scheduler.taken]
                self.steps += len(taken)
                self.switches += sum(one != other for one, other in pairwise(taken))
                failure = Failure.of(program, run)
                if failure is not None:
                    return self.found(failure)
                bar.advance()

    def smaller(self, failure: Failure) -> Failure:
        return _smallest(shrink(failure, self.factory, sampled_failure), self.factory)

    def covered(self) -> Iterator[str]:
        yield (
            f"programs     {self.done:,} of {self.threads} threads with {counted(self.operations, 'operation')} each, "
            f"{self.blocks} blocks, seeds {self.seed} to {self.seed + self.done - 1}"
        )
        yield f"steps        {self.steps:,}, {self.switches:,} of them by another thread than the one before"

    def holds(self) -> str:
        return f"{counted(self.done, 'run')} (sampled: one random schedule of each program)"

    def json(self) -> dict[str, object]:
        return {
            "mode": "random", "programs": self.done, "threads": self.threads, "operations": self.operations,
            "blocks": self.blocks, "seed": self.seed, "steps": self.steps, "switches": self.switches,
        }  # fmt: skip


@dataclass
class Soak(Job):
    """Threads that really run, and the same of a manager with a planted mistake."""

    operations: int
    threads: int
    blocks: int
    seed: int
    planted: SoakReport | None = None
    report: SoakReport | None = None

    def run(self) -> None:
        sizes = {"threads": self.threads, "seed": self.seed, "num_blocks": self.blocks}
        self.planted = control(self.operations, **sizes)
        if self.planted.violation is None:
            self.reason = "the planted lost update was not found in a tenth of the operations; raise --soak"
        with progress("operations", self.operations) as bar:

            def tell(report: SoakReport) -> None:
                bar.advance(report.operations - self.steps)
                self.report, self.steps = report, report.operations

            rounds = max(ROUNDS, self.operations // MOST_IN_A_ROUND)
            self.report = soak(self.factory, self.operations, rounds=rounds, on_round=tell, **sizes)
        self.violation = self.report.violation or ""

    def covered(self) -> Iterator[str]:
        for title, report in (("planted", self.planted), ("operations", self.report)):
            if report is not None:
                yield f"{title:<13}{self._told(report, title == 'planted')}"

    def _told(self, report: SoakReport, planted: bool) -> str:
        if planted:
            found = "not found" if report.violation is None else "found"
            return f"a lost update, {found} in {report.operations:,} operations"
        return (
            f"{report.operations:,} by {self.threads} threads that really run, {report.refused:,} refused, "
            f"{report.passed_on:,} handles given back by another thread"
        )

    def holds(self) -> str:
        return f"{counted(self.steps, 'operation')}, and the pool was whole again at the end (sampled)"

    def json(self) -> dict[str, object]:
        def body(report: SoakReport | None) -> dict[str, object] | None:
            return None if report is None else report._asdict()

        sizes = {"threads": self.threads, "blocks": self.blocks, "seed": self.seed}
        return {"mode": "soak", **sizes, "planted": body(self.planted), "soak": body(self.report)}


def _row(name: str, c: Coverage) -> str:
    """Of a table: how far a search came."""
    classes = "?" if c.classes is None else f"{c.classes:,}"
    return f"{name}{c.runs:>10,}{c.steps:>12,}{c.states:>10,}{classes:>12}"


def _sum(parts: list[Coverage]) -> Coverage:
    """All searches together."""
    classes = [c.classes for c in parts if c.classes is not None]
    whole = sum(classes) if len(classes) == len(parts) else None
    return Coverage(sum(c.runs for c in parts), sum(c.steps for c in parts), sum(c.states for c in parts), whole)


def _smallest(failure: Failure, factory: Factory) -> Failure:
    """The same by a program without what it does not need, and by few preemptions, as far as the time allows."""
    end = time.monotonic() + SHRINK_SECONDS

    with progress("smaller programs") as bar:

        def find(program: Program, factory: Factory, kind: str) -> Failure | None:
            bar.advance()
            return first_failure(program, factory, kind, most_runs=SHRINK_RUNS) if time.monotonic() < end else None

        return shrink(find(failure.program, factory, failure.kind) or failure, factory, find)
