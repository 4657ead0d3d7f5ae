"""Field scenarios of composites: faults of windows and groups, told again, and their faulty twins."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from faulty.group_twins import FAULTS, Fault, build
from twin_runs import says_what_it_is_about

from kvspec.impl.composite_target import TorchCompositeTarget
from kvspec.model.conformance import PoolConfig
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelCompositeTarget
from kvspec.model.scenario import read_scenario, run_scenario

FIELD = Path(__file__).parent.parent / "corpus" / "composites"
POOLS = Pools()
SCENARIOS = sorted(FIELD.glob("*.kv"))


def test_the_corpus_has_the_cases_that_it_is_for() -> None:
    names = {path.stem for path in SCENARIOS}
    assert names == {"B02", "B05", "B38", "B39"} == {fault.name for fault in FAULTS if fault.name[0] == "B"}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
@pytest.mark.parametrize("make_target", [TorchCompositeTarget, ModelCompositeTarget])
def test_the_good_composites_pass(
    path: Path, make_target: type[TorchCompositeTarget] | type[ModelCompositeTarget]
) -> None:
    result = run_scenario(read_scenario(path), make_target, POOLS)
    assert result.passed, result.last


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_the_sanitizers_find_nothing(path: Path) -> None:
    made: list[TorchCompositeTarget] = []

    def make(config: PoolConfig) -> TorchCompositeTarget:
        made.append(TorchCompositeTarget(msgspec.structs.replace(config, sanitizer=True), layers=2))
        return made[0]

    assert run_scenario(read_scenario(path), make, POOLS).passed
    made[0].close()
    assert all(part.sanitizer_ and part.sanitizer_.is_clean for part in made[0].manager_.sub_managers_)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_expected_does_not_hang_on_choices_that_the_spec_leaves_open(seed: int) -> None:
    for path in SCENARIOS:
        result = run_scenario(read_scenario(path), lambda config: ModelCompositeTarget(config, seed=seed), POOLS)
        assert result.passed, (path.stem, result.last)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_a_file_says_what_it_is_about_and_reads_back(path: Path) -> None:
    says_what_it_is_about(path)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name[0] == "B"], ids=lambda f: f.name)
def test_a_field_scenario_finds_its_twin(fault: Fault) -> None:
    result = run_scenario(read_scenario(FIELD / f"{fault.name}.kv"), build(fault.name), POOLS)
    assert result.verdict == "violated", result.last
    assert result.family == fault.family, result.last
