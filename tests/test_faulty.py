"""Faulty managers: each is told from the good one by its field scenario and by random operations."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty.twins import FAULTS, Fault, Twin, build

from kvspec.cli.targets import load_target
from kvspec.impl.target import TorchTarget
from kvspec.model.conform import ConformOptions, FoundViolation, Replayer, conform
from kvspec.model.promises import Family, Violation
from kvspec.model.scenario import read_scenario, run_scenario
from kvspec.model.shrink import Case

FIELD = Path(__file__).parent / "corpus" / "field"
BUDGET = 40_000
MOST_LINES = 15


class Good(Twin):
    """The good manager, put together like the faulty ones."""

    parts: dict[type, type] = {}  # noqa: RUF012


def case(violation: FoundViolation) -> Case:
    return Case(violation.config, tuple(violation.operations))


def test_there_is_a_twin_for_each_field_scenario_and_more() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 25 + len(list(FIELD.glob("*.kv")))
    assert {path.stem for path in FIELD.glob("*.kv")} == {name for name in names if name[0] == "B"}
    assert {fault.family for fault in FAULTS} <= {family.value for family in Family}


def test_a_twin_without_a_fault_is_good() -> None:
    report = conform(Good, ConformOptions(operations=5000))
    assert report.violation is None
    assert report.counts["evictions"] > 100 and report.counts["copies"] > 20 and report.counts["hits"] > 50


@pytest.mark.parametrize("fault", [f for f in FAULTS if (FIELD / f"{f.name}.kv").exists()], ids=lambda f: f.name)
def test_a_field_scenario_finds_its_twin(fault: Fault) -> None:
    result = run_scenario(read_scenario(FIELD / f"{fault.name}.kv"), build(fault.name))
    assert result.verdict == "violated", result.last
    assert result.family == fault.family, result.last


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_random_operations_find_a_twin_and_shrink(fault: Fault) -> None:
    found = conform(build(fault.name), ConformOptions(operations=BUDGET, shrink_seconds=120)).violation
    assert found is not None, f"{fault.what}: not found in {BUDGET} operations"
    assert found.reproduced and found.shrunk
    assert 1 + len(found.operations) <= MOST_LINES, found.operations
    nothing_can_be_taken_out(build(fault.name), found)
    assert Replayer(TorchTarget).run(case(found)).violation is None, "the good manager fails, too"


def nothing_can_be_taken_out(twin: type[Twin], found: FoundViolation) -> None:
    """Without any one of its operations the run does not break the same rule any more."""
    replayer = Replayer(twin)
    same = Violation(Family(found.family), found.rule, found.what)
    whole = case(found)
    assert replayer.fails_like(same)(whole)
    for at, taken_out in enumerate(whole.operations):
        shorter = Case(whole.config, (*whole.operations[:at], *whole.operations[at + 1 :]))
        assert not replayer.fails_like(same)(shorter), f"{taken_out} can be taken out"


def test_twins_are_targets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent)
    made = load_target("tests.faulty.twins:B13")
    assert made.__name__ == "B13" and made.__doc__ == "used falls only without the cache"
