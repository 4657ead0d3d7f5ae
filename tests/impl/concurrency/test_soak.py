"""Threads that really run side by side; it counts only because it finds a planted lost update early."""

from __future__ import annotations

import os

from faulty.concurrent_twins import PlainCounter, with_manager

from kvspec.impl.interleaving.soak import soak
from kvspec.impl.interleaving.steps import concurrent

OPERATIONS = 1_000_000 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 12_000


def test_eight_threads_end_where_they_began() -> None:
    report = soak(concurrent, OPERATIONS, threads=8)
    assert report.violation is None
    assert report.operations >= OPERATIONS
    assert report.passed_on > OPERATIONS // 20 and report.refused > 0


def test_a_plain_counter_is_found_in_a_tenth_of_the_operations() -> None:
    report = soak(with_manager(PlainCounter), OPERATIONS // 10, threads=8, rounds=10)
    assert report.violation is not None
