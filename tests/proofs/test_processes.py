"""Work in several processes: what comes out, and how it ends early."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import wait

import pytest

from kvspec.model.exploring.scopes import Scope
from kvspec.proofs.processes import spread
from kvspec.spec import UnknownChapter, load


@pytest.mark.parametrize("jobs", [0, 1, 2, 9])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_each_piece_of_work_is_done_once(jobs: int, count: int) -> None:
    work = [n * n for n in range(count)]
    assert sorted(spread(math.isqrt, work, jobs)) == [(n, n) for n in range(count)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_in_the_work_is_an_error(jobs: int) -> None:
    with pytest.raises(ValueError, match="nonnegative"):
        list(spread(math.isqrt, [4, -4], jobs))


def test_an_error_that_cannot_be_handed_on_is_told_in_words() -> None:
    """An error of several parts does not come through a pipe; one that is a text does."""
    with pytest.raises(RuntimeError, match="ScopeError: scope: unknown word 'blocs'"):
        list(spread(partial(Scope.parse, name="blocks"), ["blocs=4", "blocs=5"], 2))
    with pytest.raises(UnknownChapter, match="no chapter"):
        list(spread(load, ["nowhere", "neither"], 2))


def test_a_process_that_dies_is_no_closed_output(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokenProcessPool):
        list(spread(os._exit, [0, 1], 2))

    def gone(*args: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(ProcessPoolExecutor, "submit", gone)
    with pytest.raises(BrokenProcessPool):
        list(spread(abs, [0, 1], 2))


def test_who_asks_for_no_more_ends_the_processes() -> None:
    before = set(multiprocessing.active_children())
    results = spread(time.sleep, [0, 600, 600], 3)
    assert next(results) == (0, None)
    started = set(multiprocessing.active_children()) - before
    results.close()
    assert len(started) == 3
    for process in started:  # they sleep for ten minutes; who reaps them is not said
        assert wait([process.sentinel], timeout=120)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
