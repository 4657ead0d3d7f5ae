"""A violation comes back from the run that is saved, and a run that is saved as it was holds on a good target."""

from __future__ import annotations

from typing import Any

import pytest

from kvspec.model.conform import ConformOptions, FoundViolation, conform
from kvspec.model.conformance import Form, PoolConfig
from kvspec.model.generator import Kind
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelPoolTarget, ModelTarget, model_target
from kvspec.model.reporting.text import scenario_text
from kvspec.model.scenario import parse_scenario, run_scenario

POOLS = Pools()


class Modulo(ModelPoolTarget):
    """Knows ranks that there are not; no operation asks for one."""

    def free_single_blocks(self, rank: int) -> set[int]:
        return super().free_single_blocks(rank % self.config.num_ranks)


class IndexedFromBehind(ModelPoolTarget):
    """Looks for ranks that there are not, and fails."""

    def checkpoints(self, rank: int) -> Any:
        return super().checkpoints({known: known for known in range(self.config.num_ranks)}[rank])


class Once(ModelTarget):
    """Only one life of the class goes wrong, after a while."""

    lives = 0

    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        Once.lives += 1
        self.number = Once.lives

    def used_count(self) -> int:
        return super().used_count() + (self.number == 6 and self._last_handle > 1)


def found_in(target: Any, form: Form, **options: Any) -> FoundViolation:
    found = conform(target, ConformOptions(operations=8000, form=form, **options), pools=POOLS).violation
    assert found is not None
    return found


@pytest.mark.parametrize(("target", "rule"), [(Modulo, "error_expected"), (IndexedFromBehind, "crash")])
def test_what_only_a_look_at_everything_finds_is_shrunk_and_comes_back(target: Any, rule: str) -> None:
    found = found_in(target, Form.POOLS)
    assert (found.family, found.rule) == ("misuse", rule)
    assert found.reproduced and found.shrunk and len(found.operations) == 1
    scenario = parse_scenario(scenario_text(found))
    again = run_scenario(scenario, target)
    assert (again.verdict, again.family, again.rule) == ("violated", "misuse", rule)
    assert run_scenario(scenario, model_target).passed
    expected = parse_scenario(scenario_text(found) + f"expect violation misuse/{rule}\n")
    assert run_scenario(expected, target).passed


@pytest.mark.parametrize("kind", [Kind.MIXED, Kind.WILD])
def test_a_run_that_is_saved_as_it_was_holds_on_a_good_target(kind: Kind) -> None:
    Once.lives = 0
    found = found_in(Once, Form.MANAGERS, kind=kind)
    assert not found.reproduced and any(found.errors) and len(found.errors) == len(found.operations)
    result = run_scenario(parse_scenario(scenario_text(found)), ModelTarget)
    assert result.passed, result.last
