"""Each mistake that reaches what the model reads moves its outputs a hundred times farther than rounding does."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from equivalence.figures import apart, poisoned, row
from equivalence.twins import Twin, twins

from kvspec.impl.worker.compare import TOLERANCE
from kvspec.impl.worker.engine import Engine

TWINS = twins()
PAGE = Path(__file__).parents[2] / "docs" / "worker.md"


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.engine.__name__)
def test_a_mistake_moves_the_outputs_a_hundred_times_the_tolerance(twin: Twin) -> None:
    assert apart(Engine, twin.stream) < TOLERANCE
    assert apart(Engine, poisoned(twin.stream)) < TOLERANCE
    assert 100 * TOLERANCE < apart(twin.engine, twin.stream) < inf
    assert apart(twin.engine, poisoned(twin.stream)) > 100 * TOLERANCE


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.engine.__name__)
def test_the_page_has_the_row_that_was_measured(twin: Twin) -> None:
    mistake, said, factor, nan = row(twin).strip("| ").split(" | ")
    (written,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {mistake} |")]
    _, said_there, factor_there, nan_there = written.strip("| ").split(" | ")
    assert (said_there, nan_there) == (said, nan)
    # Rounding is not the same on every machine, and no more than rounding may differ.
    assert number(factor_there) == pytest.approx(number(factor), rel=0.01)


def number(text: str) -> float:
    """A number with commas."""
    return float(text.replace(",", ""))
