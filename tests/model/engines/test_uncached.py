"""Engines without a prefix cache: who can be one, and that none of them has keys."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Form, PoolConfig, TargetError
from kvspec.model.engines.reference import ModelEngineTarget
from kvspec.model.scenario import parse_scenario, run_scenario

UNCACHED = ConformOptions(form=Form.ENGINES, operations=1500, prefix_cache=False)
A_RUN = "pool 8 block 1 no-cache engine full\nsubmit a 0 1 then 2\nstep 2\nsubmit b 0 1 then 2\nstep\nexpect hit b 0\n"


class Publishing(ModelEngineTarget):
    """It goes on publishing."""

    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        self.manager.caches = True


class Always(ModelEngineTarget):
    """Its manager always has a prefix cache."""

    abilities = msgspec.structs.replace(ModelEngineTarget.abilities, uncached=False)


def test_an_engine_without_a_prefix_cache_holds_and_hits_nothing() -> None:
    report = conform(ModelEngineTarget, UNCACHED)
    assert report.violation is None, report.violation
    assert not report.counts.get("hits") and not report.counts.get("published")
    assert report.counts["taken"] and report.counts["preemptions"]


def test_a_scenario_can_ask_for_one() -> None:
    found = run_scenario(parse_scenario(A_RUN), ModelEngineTarget)
    assert found.passed, found


def test_a_key_where_there_is_no_cache_is_a_violation() -> None:
    violation = conform(Publishing, UNCACHED).violation
    assert violation is not None
    assert (violation.family, violation.rule) == ("publish_after_write", "publish")


def drive(make: Any) -> Any:
    return conform(make, UNCACHED)


def replay(make: Any) -> Any:
    return run_scenario(parse_scenario(A_RUN), make)


@pytest.mark.parametrize("run", [drive, replay])
def test_who_cannot_be_one_is_not_taken_for_one(run: Any) -> None:
    with pytest.raises(TargetError, match="has no manager without a prefix cache"):
        run(Always)
