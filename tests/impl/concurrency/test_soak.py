"""Threads that really run side by side; it counts only because it finds a planted lost update early."""

from __future__ import annotations

import os

import pytest
from faulty.concurrent_twins import plain_lock

from kvspec.impl.interleaving import soak as soaking
from kvspec.impl.interleaving.soak import control, soak
from kvspec.impl.interleaving.steps import concurrent

OPERATIONS = 1_000_000 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 12_000


def test_eight_threads_end_where_they_began() -> None:
    report = soak(concurrent, OPERATIONS, threads=8)
    assert report.violation is None
    assert report.operations >= OPERATIONS
    assert report.passed_on > OPERATIONS // 20 and report.refused > 0


def test_a_plain_counter_is_found_in_a_tenth_of_the_operations() -> None:
    report = control(OPERATIONS, threads=8)
    assert report.violation is not None and report.operations <= OPERATIONS // 10 + 80


def test_threads_that_wait_for_ever_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soaking, "PATIENCE", 0.3)
    report = soak(plain_lock, OPERATIONS, threads=3)
    assert report.violation == "no return: no thread has come to the end of an operation for 0.3 seconds"
