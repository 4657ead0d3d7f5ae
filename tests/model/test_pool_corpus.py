"""Field scenarios of pools: faults of ranks, single blocks and recurrent states, told again, and their faulty twins."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty.pool_twins import FAULTS, Fault, build
from twin_runs import says_what_it_is_about

from kvspec.impl.pool_target import TorchPoolTarget
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelPoolTarget
from kvspec.model.scenario import read_scenario, run_scenario

FIELD = Path(__file__).parent.parent / "corpus" / "pools"
POOLS = Pools()
SCENARIOS = sorted(FIELD.glob("*.kv"))
ASKED = {"B07", "B08", "B10", "B11", "B17", "B22", "B26", "B43", "B44", "B46", "B47", "B60"}


def test_the_corpus_has_the_cases_that_it_is_for() -> None:
    names = {path.stem for path in SCENARIOS}
    assert names >= ASKED
    assert names == {fault.name for fault in FAULTS if fault.name[0] == "B"}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
@pytest.mark.parametrize("make_target", [TorchPoolTarget, ModelPoolTarget])
def test_the_good_pools_pass(path: Path, make_target: type[TorchPoolTarget] | type[ModelPoolTarget]) -> None:
    result = run_scenario(read_scenario(path), make_target, POOLS)
    assert result.passed, result.last


@pytest.mark.parametrize("seed", range(3))
def test_what_is_expected_does_not_hang_on_choices_that_the_spec_leaves_open(seed: int) -> None:
    for path in SCENARIOS:
        result = run_scenario(read_scenario(path), lambda config: ModelPoolTarget(config, seed=seed), POOLS)
        assert result.passed, (path.stem, result.last)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_a_file_says_what_it_is_about_and_reads_back(path: Path) -> None:
    says_what_it_is_about(path)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name[0] == "B"], ids=lambda f: f.name)
def test_a_field_scenario_finds_its_twin(fault: Fault) -> None:
    result = run_scenario(read_scenario(FIELD / f"{fault.name}.kv"), build(fault.name), POOLS)
    assert result.verdict == "violated", result.last
    assert result.family == fault.family, result.last
