"""The scheduler and the search by themselves: determinism, deadlocks, and that no class of runs is left out."""

from __future__ import annotations

import doctest
import threading
from collections.abc import Callable, Iterator
from math import factorial

import pytest

from kvspec.impl import interleaving
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.interleaving import scheduler as scheduling
from kvspec.impl.interleaving.explore import explore, read_schedule, read_script, replay, write_schedule
from kvspec.impl.interleaving.judge import Done, Run, firsts
from kvspec.impl.interleaving.programs import Op, Program, ProgramError, parse
from kvspec.impl.interleaving.scheduler import Scheduler, UndecidedError
from kvspec.impl.interleaving.soak import plain_counter
from kvspec.impl.interleaving.steps import Factory, Step, concurrent


class Follow:
    """Chooses by a list, then the first that can."""

    def __init__(self, *threads: int) -> None:
        self._threads = list(threads)

    def choose(self, pending: dict[int, Step], enabled: list[int], last: int | None) -> int | None:
        return self._threads.pop(0) if self._threads else enabled[0]


def stepping(scheduler: Scheduler, log: list[str], name: str, steps: int) -> Callable[[], None]:
    def body() -> None:
        for index in range(steps):
            scheduler.at(Step("store", name))
            log.append(f"{name}{index}")

    return body


def test_threads_go_in_the_order_that_is_chosen() -> None:
    log: list[str] = []
    scheduler = Scheduler(Follow(1, 0, 0, 1))
    assert scheduler.run([stepping(scheduler, log, "a", 2), stepping(scheduler, log, "b", 2)])
    assert log == ["b0", "a0", "a1", "b1"]
    assert [thread for thread, _ in scheduler.taken] == [1, 0, 0, 1]


def crossing(scheduler: Scheduler) -> list[Callable[[], None]]:
    """Two threads that take two locks in opposite orders."""
    one, two = scheduler.lock(), scheduler.lock()

    def first() -> None:
        with one, two:
            pass

    def second() -> None:
        with two, one:
            pass

    return [first, second]


@pytest.mark.parametrize(("chosen", "dead"), [((0, 1), True), ((0, 0), False), ((1, 1, 1, 1), False)])
def test_a_deadlock_is_seen_and_every_thread_ends(chosen: tuple[int, ...], dead: bool) -> None:
    scheduler = Scheduler(Follow(*chosen))
    before = threading.active_count()
    assert scheduler.run(crossing(scheduler)) is not dead
    assert scheduler.deadlock is dead
    assert threading.active_count() == before


def test_a_recursive_lock_lets_its_owner_in_again_and_nobody_else() -> None:
    scheduler = Scheduler(Follow(0, 0))
    lock, log = scheduler.lock(), list[str]()

    def owner() -> None:
        with lock, lock:
            scheduler.at(Step("store", "x"))
            log.append("owner")

    def other() -> None:
        with lock:
            log.append("other")

    assert scheduler.run([owner, other])
    assert log == ["owner", "other"]
    assert [step.kind for _, step in scheduler.taken] == ["acquire", "store", "release", "acquire", "release"]


def test_a_thread_that_fails_ends_the_run() -> None:
    scheduler = Scheduler(Follow())

    def failing() -> None:
        scheduler.at(Step("store", "x"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        scheduler.run([failing, stepping(scheduler, [], "a", 2)])


def test_a_chooser_that_fails_is_not_taken_for_the_manager() -> None:
    program = parse("blocks 2\nthread: count")

    def choose(run: Run, pending: dict[int, Step], enabled: list[int], last: int | None) -> int | None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Run(program, concurrent, choose).execute()


def test_a_thread_that_comes_to_no_step_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a lock that is not one of the scheduler, and that a thread has which waits for its turn."""
    monkeypatch.setattr(scheduling, "PATIENCE", 0.2)
    scheduler, own, ends = Scheduler(Follow(0, 1)), threading.Lock(), list[str]()

    def body() -> None:
        scheduler.at(Step("store", "x"))
        with own:
            scheduler.at(Step("store", "y"))
        ends.append("end")

    with pytest.raises(UndecidedError, match="thread 1 neither takes a step nor ends"):
        scheduler.run([body, body])
    assert not ends


def test_a_run_that_is_interrupted_ends_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(Follow())
    monkeypatch.setattr(scheduler, "_back", _Interrupted())
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        scheduler.run([stepping(scheduler, [], "a", 10)])
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
        assert not thread.is_alive()


class _Interrupted:
    """A gate at which somebody presses Ctrl-C once all threads have started."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate = threading.Lock()
        self.gate.acquire()

    def acquire(self, timeout: float = -1) -> bool:
        self.calls += 1
        if self.calls == 2:
            raise KeyboardInterrupt
        return self.gate.acquire(timeout=timeout)

    def release(self) -> None:
        self.gate.release()


# -- no class is left out ---------------------------------------------------------------------------------------------
Trace = tuple[tuple[int, Step], ...]


def all_runs(program: Program, factory: Factory) -> list[Trace]:
    """Every complete run, without any reduction."""
    found: list[Trace] = []
    path: list[list[int]] = []
    while True:
        depth = 0

        def choose(run: Run, pending: dict[int, Step], enabled: list[int], last: int | None) -> int | None:
            nonlocal depth
            if depth == len(path):
                path.append(list(enabled))
            depth += 1
            return path[depth - 1][-1]

        run = Run(program, factory, choose).execute()
        assert run.violation is None
        found.append(tuple(run.scheduler.taken))
        while path and len(path[-1]) == 1:
            path.pop()
        if not path:
            return found
        path[-1].pop()


def foata(trace: Trace) -> tuple[frozenset[tuple[int, str]], ...]:
    """The normal form of a class: each step in the first layer behind all that it depends on."""
    layers: list[list[tuple[int, Step]]] = []
    for thread, step in trace:
        layer = len(layers)
        while layer and not any(t == thread or s.depends(step) for t, s in layers[layer - 1]):
            layer -= 1
        if layer == len(layers):
            layers.append([])
        layers[layer].append((thread, step))
    return tuple(frozenset((thread, str(step)) for thread, step in layer) for layer in layers)


@pytest.mark.parametrize(
    "text",
    [
        "blocks 4\nsetup: a = allocate 1; b = allocate 1\nthread: c = copy a\nthread: d = copy b",
        "blocks 4\nsetup: a = allocate 1; b = allocate 1\nthread: c = copy a; count\nthread: d = copy b; count",
        "blocks 4\nsetup: a = allocate 1; b = allocate 1\nthread: count; c = copy a\nthread: d = copy b; e = copy b",
        "blocks 3\nsetup: a = allocate 1; b = copy a; c = copy a; d = copy a\n"
        "thread: count; finish a\nthread: count\nthread: count; count",
    ],
)
def test_as_many_classes_are_counted_as_there_are(text: str) -> None:
    """Handles that are counted outside the lock make steps that have no order among each other."""
    program, factory = parse(text), plain_counter
    runs = all_runs(program, factory)
    coverage = explore(program, factory)
    assert coverage.failure is None
    assert coverage.classes == len({foata(run) for run in runs})
    assert coverage.runs <= len(runs)


def test_operations_under_one_lock_have_as_many_orders_as_there_are_ways_to_merge_them() -> None:
    coverage = explore(parse("blocks 2\n" + "thread: count; count; count\n" * 3), concurrent)
    assert coverage.failure is None
    assert coverage.classes == factorial(9) // factorial(3) ** 3
    assert coverage.states == 4**3 - 1, "how far each thread has come; the end is none from which somebody goes on"
    assert coverage.runs <= 3 * coverage.states, "states that were met before are not continued"


# -- text -------------------------------------------------------------------------------------------------------------
def test_a_schedule_is_written_and_read() -> None:
    schedule = (0, 0, 1, 0, 2, 2, 2)
    assert write_schedule(schedule) == "0*2 1*1 0*1 2*3"
    assert read_schedule(write_schedule(schedule)) == schedule


@pytest.mark.parametrize("text", ["0", "0*x", "*3", "a*1", "0*1 2", "0*1000000", "٠*1"])
def test_an_unreadable_schedule_is_refused(text: str) -> None:
    with pytest.raises(InvalidRangeError, match="thread\\*steps"):
        read_schedule(text)


def test_a_schedule_without_end_is_refused() -> None:
    with pytest.raises(InvalidRangeError, match="199998 steps; expected at most"):
        read_schedule("0*99999 1*99999 " * 1000)


def test_a_script_is_a_program_with_a_schedule_or_without() -> None:
    program = parse("blocks 2\nthread: count")
    assert read_script(str(program)) == (program, None)
    assert read_script(f"# one\n{program}  # two\n schedule: 0*1  # three\n  0*1") == (program, (0, 0))
    assert read_script(f"{program}\nschedule:") == (program, ())


def test_an_unreadable_schedule_is_refused_with_its_line() -> None:
    with pytest.raises(ProgramError, match="line 3: x; expected thread") as refused:
        read_script("blocks 2\nthread: count\nschedule: x")
    assert refused.value.line == 3


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidRangeError, match=r"step 1: thread 1; expected one that can go on: \[0\]"):
        replay("blocks 2\nthread: count\nschedule: 1*1", concurrent)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("thread: count", "0 blocks"),
        ("blocks 1", "1 blocks"),
        ("blocks 3\nthreads: count", "line 2"),
        ("blocks 3\nthread: a = count", "expected count"),
        ("blocks 3\nthread: allocate 1", "expected register = allocate number"),
        ("blocks 3\nthread: a = allocate b", "expected register = allocate number"),
        ("blocks 3\nthread: finish", "expected finish register"),
        ("blocks 3\nthread: fork a", "one of allocate, match"),
        ("blocks 3\nthread: a b = allocate 1", "expected register = allocate number"),
        ("blocks 3\nthread: = allocate 1", "expected register = allocate number"),
        ("blocks 3\n\nthread: a = allocate 1000", "line 3: .*expected register = allocate number .at most 999"),
        ("blocks 1000", "line 1: blocks 1000"),
        ("blocks ٣", "line 1"),
        ("blocks 3\nwhat", "line 2: what"),
        ("blocks 3\n" + "thread: count\n" * 65, "65 threads"),
    ],
)
def test_an_unreadable_program_is_refused(text: str, what: str) -> None:
    with pytest.raises(InvalidRangeError, match=what):
        parse(text)


def test_a_program_is_written_and_read() -> None:
    text = "blocks 4\nsetup: a = allocate 2; publish a 7\nthread: b = match 7 1; finish b\nthread: evict 1"
    assert str(parse(text)) == text


def orders(window: list[Done]) -> Iterator[list[Done]]:
    """All of them, each grown from its front."""
    if not window:
        yield []
    for first in firsts(window):
        yield from ([first, *order] for order in orders([done for done in window if done is not first]))


def test_only_what_had_ended_comes_before() -> None:
    def done(thread: int, first: int, last: int) -> Done:
        return Done(thread, Op("count", ()), None, first, last)

    early, late, both = done(0, 0, 2), done(1, 2, 4), done(2, 1, 3)
    assert list(orders([early, both, late])) == [[early, both, late], [early, late, both], [both, early, late]]
    instant = [done(0, 3, 3), done(0, 3, 3), done(1, 3, 3)]
    assert len(list(orders(instant))) == 3, "operations without steps keep the order of their thread only"


def test_the_example_runs() -> None:
    result = doctest.testmod(interleaving)
    assert result.attempted == 6 and not result.failed
