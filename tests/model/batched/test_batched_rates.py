"""A measured exploration is the exploration, with its rates."""

from __future__ import annotations

import pytest
from pools.anchor import AnchorPool, anchor

from kvspec.model.batched import Explorer, measure
from kvspec.spec.language import Chapter


def test_rates_are_those_of_the_outcome() -> None:
    explorer = Explorer(Chapter(AnchorPool), anchor(3, 1, (1,)))
    found = measure(explorer)
    assert found.outcome == explorer.explore()
    assert found.wall > 0
    ratio = found.generated_per_second / found.distinct_per_second
    assert ratio == pytest.approx(found.outcome.generated / found.outcome.distinct)
