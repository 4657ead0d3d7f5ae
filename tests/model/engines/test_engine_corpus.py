"""Field scenarios of engines: faults of managers inside engines, told again, and their faulty twins."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty.engine_twins import FAULTS, Fault, build
from faulty.engine_variants import VARIANTS
from faulty.engine_variants import build as build_legal
from twin_runs import says_what_it_is_about

from kvspec.model.engines.reference import ModelEngineTarget
from kvspec.model.pools import Pools
from kvspec.model.scenario import read_scenario, run_scenario

CORPUS = Path(__file__).parents[2] / "corpus"
POOLS = Pools()
SCENARIOS = sorted((CORPUS / "engines").glob("*.kv"))
OF_THE_FIELD = [fault for fault in FAULTS if fault.name[0] == "B"]

ELSEWHERE = {
    "B05": "composites",  # drafts are taken back: engines here have none
    "B07": "pools", "B08": "pools", "B10": "pools", "B17": "pools",  # slots of states, one live slot each
    "B19": "field",  # what is evicted is told of
    "B26": "pools", "B29": "field",  # something else needs what is evicted
    "B32": "field",  # forks
    "B34": "pages", "B36": "field", "B41": "field",  # eviction by the caller
    "B39": "composites",  # what was released is shown as being there
    "B44": "pools",  # states behind drafts
    "B60": "pools",  # loads from a host
    "B67": "field", "B68": "field",  # parts of a key
}  # fmt: skip
"""Cases of hits, duplicates, windows, states and preemption that are told for other forms, and where."""


def test_the_corpus_has_the_cases_that_it_is_for() -> None:
    names = {path.stem for path in SCENARIOS}
    assert names == {"B21", "B22", "B30", "B33", "B38", "B43", "B46", "B47", "B65"}
    assert names == {fault.name for fault in OF_THE_FIELD}
    assert not names & ELSEWHERE.keys()
    for name, folder in ELSEWHERE.items():
        assert (CORPUS / folder / f"{name}.kv").is_file(), name


@pytest.mark.parametrize("seed", range(5))
def test_the_reference_passes_whatever_it_chooses(seed: int) -> None:
    for path in SCENARIOS:
        result = run_scenario(read_scenario(path), lambda config: ModelEngineTarget(config, seed=seed), POOLS)
        assert result.passed, (path.stem, result.last)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_no_legal_engine_violates_anything(path: Path) -> None:
    """What they choose may not be what is expected of the reference."""
    for name in VARIANTS:
        result = run_scenario(read_scenario(path), build_legal(name), POOLS)
        assert result.family is None, (name, result.last)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_a_file_says_what_it_is_about_and_reads_back(path: Path) -> None:
    says_what_it_is_about(path)


@pytest.mark.parametrize("fault", OF_THE_FIELD, ids=lambda f: f.name)
def test_a_field_scenario_finds_its_twin(fault: Fault) -> None:
    result = run_scenario(read_scenario(CORPUS / "engines" / f"{fault.name}.kv"), build(fault.name), POOLS)
    assert result.verdict == "violated", result.last
    assert f"{result.family}/{result.rule}" == fault.rule, result.last
