"""Every interleaving of small programs is a serial one; mistakes are found, shrunk, and can be run again."""

from __future__ import annotations

import os

import pytest
from faulty.concurrent_twins import CONCURRENT_FAULTS, ConcurrentFault

from kvspec.impl.interleaving import judge
from kvspec.impl.interleaving.builtin import PROGRAMS
from kvspec.impl.interleaving.explore import explore, first_failure, random_run, replay, shrink
from kvspec.impl.interleaving.programs import parse, random_program
from kvspec.impl.interleaving.scheduler import UndecidedError
from kvspec.impl.interleaving.steps import concurrent

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_every_interleaving_is_serial(text: str) -> None:
    coverage = explore(parse(text), concurrent)
    assert coverage.failure is None, str(coverage.failure)
    assert coverage.classes is not None and coverage.classes >= 250
    assert coverage.runs < coverage.classes, "no run was saved"
    assert coverage.states > 50


@pytest.mark.parametrize("seed", range(200 if DEEP else 6))
def test_every_interleaving_of_a_random_program_is_serial(seed: int) -> None:
    coverage = explore(random_program(seed, threads=3, operations=3, num_blocks=6), concurrent)
    assert coverage.failure is None, str(coverage.failure)
    assert coverage.classes is not None


@pytest.mark.parametrize("seed", range(2000 if DEEP else 12))
def test_a_random_interleaving_of_a_large_program_is_serial(seed: int) -> None:
    program = random_program(seed, threads=5, operations=20, num_blocks=12)
    failure = random_run(program, concurrent, seed)
    assert failure is None, str(failure)


# -- mistakes ---------------------------------------------------------------------------------------------------------
by_name = pytest.mark.parametrize("fault", CONCURRENT_FAULTS, ids=lambda fault: fault.name)


@by_name
def test_a_mistake_is_found_and_shrunk_to_a_schedule_that_runs_again(fault: ConcurrentFault) -> None:
    program = parse(fault.program)
    assert explore(program, concurrent).failure is None, "the good manager fails, too"
    found = first_failure(program, fault.factory, fault.kind)
    assert found is not None
    shrunk = shrink(found, fault.factory)
    assert shrunk.kind == fault.kind
    assert sum(map(len, shrunk.program.threads)) <= 3, str(shrunk)
    again = replay(shrunk.script, fault.factory)
    assert again.violation == shrunk.violation
    assert [thread for thread, _ in again.scheduler.taken] == list(shrunk.schedule)


@by_name
def test_a_mistake_is_found_in_all_interleavings(fault: ConcurrentFault) -> None:
    assert explore(parse(fault.program), fault.factory).failure is not None


@by_name
def test_the_built_in_programs_find_every_mistake(fault: ConcurrentFault) -> None:
    assert any(explore(parse(text), fault.factory).failure is not None for text in PROGRAMS.values())


@by_name
def test_random_interleavings_find_a_mistake(fault: ConcurrentFault) -> None:
    program = parse(fault.program)
    assert any(random_run(program, fault.factory, seed) is not None for seed in range(100))


@by_name
def test_many_operations_that_overlap_are_judged(fault: ConcurrentFault) -> None:
    """Twenty and more have more orders than anybody can try; most begin with what was not seen."""
    for seed in range(6):
        random_run(random_program(seed, threads=5, operations=20, num_blocks=12), fault.factory, seed)


def test_what_overlaps_in_too_many_orders_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "MOST_TRIED", 0)
    with pytest.raises(UndecidedError, match="too many orders"):
        explore(parse("blocks 2\nthread: count"), concurrent)


def test_a_failure_says_what_ran_and_how() -> None:
    fault = next(fault for fault in CONCURRENT_FAULTS if fault.name == "plain_counter_release")
    found = first_failure(parse(fault.program), fault.factory, fault.kind)
    assert found is not None
    said = str(shrink(found, fault.factory)).splitlines()
    assert said[:5] == [
        "lost id: block 1 is not free and has no handle",
        "blocks 3",
        "setup: a = allocate 1; b = copy a",
        "thread: release b",
        "thread: finish a",
    ]
    assert said[5].startswith("schedule: 0*1 1*")
    assert said[6] == "  thread 0: load ref_count_ of block 1"
    assert said[-1] == "  thread 0: store ref_count_ of block 1"
