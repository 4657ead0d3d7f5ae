"""Why chapter `concurrent` says what it says: what becomes of threads with a plain lock, and with a plain counter."""

from __future__ import annotations

import pytest

from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.plain import explore
from kvspec.model.exploring.scopes import Scope
from kvspec.proofs.campaign import prove_chapter
from kvspec.proofs.mutation.mutants import of_row
from kvspec.proofs.prove import Options
from kvspec.proofs.verdicts import Verdict
from kvspec.spec import load
from kvspec.spec.concurrent import Concurrent, Doing, Thread
from kvspec.spec.handles import Handle
from kvspec.spec.language import Chapter, Machine, Map, Nat, Set, event, forall, require
from kvspec.spec.language.machine import Invariant, Theorem, Witness

NAME = "concurrent"
Statement = Invariant, Theorem, Witness


def shortest_run(chapter: Chapter, scope: str, states: States = States.FULL) -> tuple[str, list[str]]:
    """What goes wrong first, and the steps to it from the start."""
    found = explore(chapter, Scope.parse(scope, NAME).structure, states).violation
    assert found is not None
    return found.name, [str(step) for step in found.run]


def run(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


# -- a plain lock ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_lock() -> Chapter:
    """Nobody has the lock when somebody gets it: its owner, too, would have to wait until it is left."""
    return next(m.text for m in of_row(NAME, load(NAME), "enter") if m.id.endswith("owner ≠ thread becomes always"))


def test_with_a_plain_lock_every_invariant_holds_and_only_the_deadlock_is_seen(plain_lock: Chapter) -> None:
    found = prove_chapter(NAME, plain_lock, Options(solvers=("z3",)))
    assert [r.id for r in found if r.verdict is not Verdict.PROVED] == ["concurrent.theorem/no_deadlock"]


def test_with_a_plain_lock_a_thread_that_evicts_waits_for_itself(plain_lock: Chapter) -> None:
    assert shortest_run(plain_lock, "threads=1") == ("no_deadlock", DEADLOCK)


DEADLOCK = run(
    """
    call thread0
    enter thread0
    pop thread0 1
    make thread0 handle0
    leave thread0
    call thread0
    enter thread0
    publish thread0 handle0 handle1
    leave thread0
    release thread0 handle0
    call thread0
    enter thread0
    look thread0 1
    evict thread0
    """
)
"""The last step counts to zero and wants the lock, which the thread has since two steps before."""


# -- a plain counter ---------------------------------------------------------------------------------------------------


class PlainCounter(Machine):
    """What a program does whose handles count by a load and a store: a copy takes two steps, on any number of threads.

    It plays by the rules else: a thread does one thing at a time, and a handle that is being copied is not destroyed.
    The manager has no prefix cache: nothing of this needs one.
    """

    copying: Set[Thread]
    seen: Map[Thread, Nat]

    @event
    def copy_load(self, thread: Thread, source: Handle) -> None:
        """A thread begins to copy a handle: it loads the counter."""
        require(self.at(thread, Doing.idle()))
        require(~self.copying.has(thread))
        require(self.is_own(source))
        self.handle[thread] = source
        self.seen[thread] = self.ref_count[self.block_of[source]]
        self.copying.add(thread)

    @event
    def copy_store(self, thread: Thread, target: Handle) -> None:
        """It stores what it has loaded, and one more."""
        source = self.handle[thread]
        require(self.copying.has(thread))
        require(~self.live.has(target))
        self.count_up(target, self.block_of[source])
        self.ref_count[self.block_of[source]] = self.seen[thread] + 1
        self.copying.discard(thread)
        self.handles.copy(source, target)

    @event
    def call(self, thread: Thread) -> None:
        """A thread calls the manager and wants the lock."""
        require(self.at(thread, Doing.idle()))
        require(~self.copying.has(thread))
        self.doing[thread] = Doing.calling()

    @event
    def release(self, thread: Thread, handle: Handle) -> None:
        """A thread destroys a handle, in one step of the counter."""
        require(self.at(thread, Doing.idle()))
        require(~self.copying.has(thread))
        require(self.is_own(handle))
        require(forall(Thread, lambda t: ~(self.copying.has(t) & (self.handle[t] == handle))))
        self.count_down(thread, handle)


def counting_plainly(theorem: str) -> Chapter:
    """The chapter with plain counters; it says this, and nothing else."""
    sought = vars(Concurrent)[theorem]
    kept = {name: part for name, part in vars(Concurrent).items() if not isinstance(part, Statement)}
    kept |= {name: part for name, part in vars(PlainCounter).items() if not name.startswith("_")}
    kept |= {theorem: Invariant(sought.body, sought.sentence)}
    kept["__annotations__"] = {**Concurrent.__annotations__, **PlainCounter.__annotations__}
    for name in ("copy", "match", "publish", "look", "evict"):
        del kept[name]
    return Chapter(type(Machine)("Concurrent", (Machine,), kept)).saying_only(theorem)


def test_with_a_plain_counter_a_lost_update_frees_a_block_that_has_a_handle() -> None:
    found = shortest_run(counting_plainly("live_not_free"), "handles=3", States.CANONICAL)
    assert found == ("live_not_free", USE_AFTER_FREE)


USE_AFTER_FREE = run(
    """
    call thread0
    enter thread0
    pop thread0 1
    make thread0 handle0
    leave thread0
    copy_load thread0 handle0
    copy_load thread1 handle0
    copy_store thread0 handle1
    copy_store thread1 handle2
    release thread0 handle0
    release thread0 handle1
    enter thread0
    push thread0
    """
)
"""Both threads load 1 and store 2: three handles count as two, and handle2 is left."""


def test_with_a_plain_counter_an_update_that_is_lost_loses_the_id() -> None:
    assert shortest_run(counting_plainly("no_lost_id"), "handles=2") == ("no_lost_id", LOST_ID)


LOST_ID = run(
    """
    call thread0
    enter thread0
    pop thread0 1
    make thread0 handle0
    leave thread0
    copy_load thread0 handle0
    copy_store thread0 handle1
    copy_load thread0 handle0
    release thread1 handle1
    copy_store thread0 handle1
    release thread0 handle0
    release thread0 handle1
    """
)
"""A release between load and store is forgotten: the last handle has gone, and the counter says one."""
