"""Faulty managers of pages: random operations find each of them, and the run that is left has no line too many."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty.paged_twins import BY_NAME, FAULTS, PagedTwin, build
from faulty.twins import Fault
from twin_runs import found_and_shrunk, says_what_it_is_about

from kvspec.cli.targets import load_target
from kvspec.impl.xtensor.target import TorchXTensorTarget
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Form
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelPagedTarget
from kvspec.model.scenario import read_scenario, run_scenario

BUDGET = 40_000
POOLS = Pools()
FIELD = Path(__file__).parent.parent / "corpus" / "pages"
SCENARIOS = sorted(FIELD.glob("*.kv"))
BROKEN = {
    "B18": "reserved/padding_handed_out",
    "B24": "pages/unmap_begin",
    "B34": "atomic_failure/refusal_changes_nothing",
    "padding_unmapped": "pages/unmap_begin",
    "half_mapped": "pages/take",
    "page_lost": "misuse/legal_call_refused",
    "idle_stays": "progress/refused_for_cause",
    "reclaim_one": "pages/reclaim_enough",
}
"""The promise that each of them is found to break."""


class Good(PagedTwin):
    """The good manager, put together like the faulty ones."""

    parts: dict[type, type] = {}  # noqa: RUF012


def test_each_twin_has_a_name_and_breaks_something() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) and set(names) == set(BROKEN)


def test_a_twin_without_a_fault_is_good() -> None:
    report = conform(Good, ConformOptions(operations=5000, form=Form.PAGES), pools=POOLS)
    assert report.violation is None
    counts = report.counts
    assert counts["mapped"] > 50 and counts["reclaimed"] > 50 and counts["evictions"] > 20 and counts["hits"] > 20


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_random_operations_find_a_twin_and_shrink(fault: Fault) -> None:
    options = ConformOptions(operations=BUDGET, form=Form.PAGES, shrink_seconds=120)
    found_and_shrunk(build(fault.name), TorchXTensorTarget, BROKEN[fault.name], options, POOLS)


def test_twins_are_targets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    made = load_target("tests.faulty.paged_twins:half_mapped")
    assert made.__name__ == "half_mapped" and made.__doc__ == "a block on half of its pages is taken"


# -- scenarios of the field --------------------------------------------------------------------------------------------


def test_each_scenario_has_a_twin() -> None:
    assert {path.stem for path in SCENARIOS} <= {fault.name for fault in FAULTS}
    assert {fault.name for fault in FAULTS if fault.name[0] == "B"} <= {path.stem for path in SCENARIOS}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
@pytest.mark.parametrize("make_target", [TorchXTensorTarget, ModelPagedTarget])
def test_the_good_managers_pass(path: Path, make_target: type[TorchXTensorTarget] | type[ModelPagedTarget]) -> None:
    result = run_scenario(read_scenario(path), make_target, POOLS)
    assert result.passed, result.last


@pytest.mark.parametrize("seed", range(3))
def test_what_is_expected_does_not_hang_on_choices_that_the_spec_leaves_open(seed: int) -> None:
    for path in SCENARIOS:
        result = run_scenario(read_scenario(path), lambda config: ModelPagedTarget(config, seed=seed), POOLS)
        assert result.passed, (path.stem, result.last)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_a_file_says_what_it_is_about_and_reads_back(path: Path) -> None:
    says_what_it_is_about(path)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_a_field_scenario_finds_its_twin(path: Path) -> None:
    result = run_scenario(read_scenario(path), build(path.stem), POOLS)
    assert result.verdict == "violated", result.last
    assert result.family == BY_NAME[path.stem].family, result.last
