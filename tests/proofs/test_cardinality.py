"""The facts about sizes are theorems of finite sets, and wrong ones are not."""

from __future__ import annotations

import pytest

from kvspec.proofs.cardinality import FACTS, SizeFact, holds


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_a_fact_is_proved(fact: SizeFact) -> None:
    assert holds(fact.formula) is True


@pytest.mark.parametrize(
    "wrong",
    [
        "(= (set.card (set.insert x s)) (+ (set.card s) 1))",
        "(= (set.card (set.minus s (set.singleton x))) (- (set.card s) 1))",
        "(> (set.card s) 0)",
        "(=> (<= (set.card s) 1) (= s (as set.empty (Set E))))",
        "(= (set.card (set.union s t)) (+ (set.card s) (set.card t)))",
    ],
)
def test_a_wrong_fact_is_refuted(wrong: str) -> None:
    assert holds(wrong) is False
