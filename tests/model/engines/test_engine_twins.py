"""Faulty engines: random operations find each of them, and the run that is left has no line too many. Legal engines
hold, whatever they choose."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty.engine_twins import FAULTS, Fault, build
from faulty.engine_variants import VARIANTS
from faulty.engine_variants import build as build_legal
from twin_runs import found_and_shrunk

from kvspec.cli.targets import load_target
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Form
from kvspec.model.engines.reference import ModelEngineTarget
from kvspec.model.pools import Pools
from kvspec.model.promises import Family, rules_of

BUDGET = 20_000
POOLS = Pools()


def test_each_twin_has_a_name_and_breaks_a_rule_that_there_is() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 60 and not set(names) & set(VARIANTS)
    for fault in FAULTS:
        family, _, rule = fault.rule.partition("/")
        assert rule in rules_of(Family(family)), fault.rule


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_random_operations_find_a_twin_and_shrink(fault: Fault) -> None:
    options = ConformOptions(operations=BUDGET, form=Form.ENGINES, shrink_seconds=120)
    found_and_shrunk(build(fault.name), ModelEngineTarget, fault.rule, options, POOLS)


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_free_is_judged_by_nobody(name: str) -> None:
    report = conform(build_legal(name), ConformOptions(operations=1500, seed=1, form=Form.ENGINES), pools=POOLS)
    assert report.violation is None
    assert all(report.counts[what] for what in ("hits", "evictions", "preemptions", "refusals"))


def test_a_run_shrinks_to_the_groups_that_it_needs() -> None:
    options = ConformOptions(operations=BUDGET, form=Form.ENGINES)
    alone, both = (conform(build(name), options, pools=POOLS).violation for name in ("B38", "free_first_group"))
    assert alone is not None and alone.config.engine is not None and alone.config.engine.variant == "sliding"
    assert both is not None and both.config.engine is not None and "+" in both.config.engine.variant


def test_twins_are_targets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    made = load_target("tests.faulty.engine_twins:hits_swapped")
    assert made.__name__ == "hits_swapped" and made.__doc__ == "the blocks of a hit are mounted in the wrong order"
    assert load_target("tests.faulty.engine_variants:take_any").__name__ == "take_any"
