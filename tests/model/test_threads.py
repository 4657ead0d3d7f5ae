"""Targets that are called from several threads: what is found, and that nothing else changes."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

import pytest
from faulty.thread_twins import FAULTS, ThreadTwin, build
from faulty.twins import Fault

from kvspec.impl.concurrent_block_manager_impl import ConcurrentBlockManagerImpl
from kvspec.impl.concurrent_target import TorchConcurrentTarget
from kvspec.impl.target import TorchTarget
from kvspec.model import operations as ops
from kvspec.model.acceptor import judge_of
from kvspec.model.acceptor.threads import InThreads
from kvspec.model.conform import ConformOptions, Replayer, conform
from kvspec.model.conformance import Context, Form, MisuseError, PoolConfig
from kvspec.model.pools import Pools
from kvspec.model.promises import Violation
from kvspec.model.reference import ModelTarget, model_target
from kvspec.model.scenario import parse_scenario, run_scenario
from kvspec.model.shrink import Case

POOLS = Pools()
BROKEN = {"lock_kept": "misuse/no_return", "own_handles": "misuse/legal_call_refused", "own_counts": "usage/used_count"}
"""The promise that each of the faulty managers is found to break."""
THREE = PoolConfig(num_blocks=4, block_size=2, num_threads=3)


class Good(ThreadTwin):
    """The good manager, put together like the faulty ones."""

    parts: dict[type, type] = {}  # noqa: RUF012


@pytest.mark.parametrize("make_target", [Good, TorchConcurrentTarget, TorchTarget, ModelTarget])
def test_a_good_manager_holds_whoever_calls_it(make_target: type[TorchTarget]) -> None:
    report = conform(make_target, ConformOptions(operations=1500, num_threads=3), pools=POOLS)
    assert report.violation is None


@pytest.mark.parametrize("form", Form)
def test_targets_of_every_form_can_be_called_so(form: Form) -> None:
    options = ConformOptions(operations=600, num_threads=2, form=form)
    report = conform(model_target, options, pools=POOLS)
    assert report.violation is None


def test_operations_are_the_same_from_however_many_threads() -> None:
    one, three = (conform(ModelTarget, ConformOptions(operations=800, num_threads=n), pools=POOLS) for n in (1, 3))
    assert one.counts == three.counts


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_a_fault_is_found_with_threads_and_not_without(fault: Fault) -> None:
    alone = conform(build(fault.name), ConformOptions(operations=2000), pools=POOLS)
    assert alone.violation is None
    options = ConformOptions(operations=2000, num_threads=3, patience=1.0, shrink_seconds=60)
    found = conform(build(fault.name), options, pools=POOLS).violation
    assert found is not None
    assert f"{found.family}/{found.rule}" == BROKEN[fault.name], found.what
    assert found.shrunk and found.reproduced and len(found.operations) <= 4, found.operations
    assert found.config.num_threads == 2
    good = Replayer(TorchConcurrentTarget, POOLS).run(Case(found.config, tuple(found.operations)))
    assert good.violation is None


def test_each_fault_is_expected() -> None:
    assert {fault.name for fault in FAULTS} == set(BROKEN)


class Recording(ModelTarget):
    """Knows which threads have called it."""

    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        self.operated: list[int] = []
        self.looked: set[int] = set()

    def append(self, seq: str, tokens: Any) -> None:
        super().append(seq, tokens)
        self.operated.append(threading.get_ident())

    def num_computed(self, seq: str) -> int:
        self.looked.add(threading.get_ident())
        return super().num_computed(seq)


def test_threads_take_turns_look_at_what_others_did_and_end() -> None:
    before = threading.active_count()
    target = Recording(THREE)
    judge = judge_of(target, THREE)
    judge.start("a", [], Context())
    for token in range(6):
        judge.append("a", [token])
    first = target.operated
    assert first[:3] == first[3:] and len({*first}) == 3 and threading.get_ident() not in first
    assert target.looked == {*first}
    judge.leave()
    assert threading.active_count() == before


def test_errors_and_faults_come_back() -> None:
    class Fails(ModelTarget):
        def append(self, seq: str, tokens: Any) -> None:
            raise ZeroDivisionError("here")

    judge = judge_of(Fails(THREE), THREE)
    with pytest.raises(MisuseError, match="a is unknown"):
        judge.allocate("a", 1)
    judge.start("a", [], Context())
    with pytest.raises(Violation, match=r"ZeroDivisionError: here \(.*test_threads\.py:\d+\)"):
        judge.append("a", [1])
    judge.leave()


COUNTED = """
pool 4 block 2 threads 2
start a 0..3
allocate a 4
expect used 2
"""


def test_a_scenario_can_be_run_from_threads() -> None:
    assert run_scenario(parse_scenario(COUNTED), TorchConcurrentTarget).passed
    result = run_scenario(parse_scenario(COUNTED), build("own_counts"))
    assert (result.verdict, result.family, result.rule) == ("violated", "usage", "used_count")
    assert run_scenario(parse_scenario(COUNTED.replace(" threads 2", "")), build("own_counts")).passed


def test_after_a_call_that_does_not_return_no_other_is_made() -> None:
    case = Case(PoolConfig(num_blocks=2, block_size=1, num_threads=2), (ops.Start("a", (0, 0)), ops.Allocate("a", 2)))
    found = Replayer(build("lock_kept"), POOLS).run(case, describe=True, patience=0.2).violation
    assert found is not None and found.rule == "no_return"
    assert "has not returned in thread 1, though no other call is running" in found.what
    assert any("cannot be shown" in line for line in found.after)


def test_a_call_that_returns_in_no_thread_is_made_smaller_from_threads() -> None:
    callers = set()

    class Waits(ModelTarget):
        def append(self, seq: str, tokens: Any) -> None:
            callers.add(threading.current_thread())
            if threading.main_thread() not in callers:
                threading.Event().wait()

    options = ConformOptions(form=Form.MANAGERS, num_threads=3, operations=1000, patience=0.2)
    found = conform(Waits, options, pools=POOLS).violation
    assert found is not None and (found.rule, found.config.num_threads) == ("no_return", 2)
    assert found.shrunk and found.reproduced and len(found.operations) == 1
    assert threading.main_thread() not in callers, "that would never end"


def test_who_is_interrupted_does_not_wait_for_a_call_that_does_not_return() -> None:
    class Waits(ModelTarget):
        def append(self, seq: str, tokens: Any) -> None:
            threading.Event().wait()

    class Interrupted(SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            raise KeyboardInterrupt

    called = InThreads(Waits(THREE), 3)
    called._answers = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        called.append("a", [1])
    leaving = threading.Thread(target=called.leave, daemon=True)
    leaving.start()
    leaving.join(10)
    assert not leaving.is_alive()


def test_the_concurrent_target_has_the_concurrent_manager() -> None:
    target = TorchConcurrentTarget(PoolConfig(num_blocks=4, block_size=2))
    assert isinstance(target.manager_, ConcurrentBlockManagerImpl)
