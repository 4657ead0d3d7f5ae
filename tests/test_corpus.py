"""The field scenarios: real faults of KV-cache managers, told again, and how the good managers do on them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kvspec.cli.main import run
from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import PoolConfig
from kvspec.model.reference import ModelTarget
from kvspec.model.scenario import format_whole, parse_scenario, read_scenario, run_scenario

FIELD = Path(__file__).parent / "corpus" / "field"
SCENARIOS = sorted(FIELD.glob("*.kv"))
ASKED = {
    "B01", "B02", "B03", "B06", "B08", "B13", "B15", "B19", "B21", "B22", "B24", "B30", "B32", "B33", "B34", "B36",
    "B41", "B59", "B60", "B67", "B68", "B69",
}  # fmt: skip


def test_the_corpus_has_the_cases_that_it_is_for() -> None:
    assert {path.stem for path in SCENARIOS} >= ASKED


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
@pytest.mark.parametrize("make_target", [TorchTarget, ModelTarget])
def test_the_good_managers_pass(path: Path, make_target: type[TorchTarget] | type[ModelTarget]) -> None:
    result = run_scenario(read_scenario(path), make_target)
    assert result.passed, result.last


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_the_sanitizer_finds_nothing(path: Path) -> None:
    scenario = read_scenario(path)
    made: list[TorchTarget] = []

    def make(config: PoolConfig) -> TorchTarget:
        made.append(TorchTarget(msgspec.structs.replace(config, sanitizer=True), layers=2))
        return made[0]

    result = run_scenario(scenario, make)
    assert result.passed, result.last
    made[0].close()
    assert made[0].sanitizer_ is not None and made[0].sanitizer_.is_clean


@pytest.mark.parametrize("seed", range(3))
def test_what_is_expected_does_not_hang_on_choices_that_the_spec_leaves_open(seed: int) -> None:
    for path in SCENARIOS:
        result = run_scenario(read_scenario(path), lambda config: ModelTarget(config, seed=seed))
        assert result.passed, (path.stem, result.last)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_a_file_says_what_it_is_about_and_reads_back(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.stem}: ") and "\n# Property: " in text
    scenario = read_scenario(path)
    assert parse_scenario(format_whole(scenario)).items == scenario.items
    assert len(scenario.checks) >= 2


def test_the_command_runs_them_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "result.json"
    assert run(["run", "--quiet", "--json", str(report), *map(str, SCENARIOS)]) == 0
    assert f"{len(SCENARIOS)} scenarios: {len(SCENARIOS)} hold" in capsys.readouterr().out
    assert {s["verdict"] for s in json.loads(report.read_bytes())["scenarios"]} == {"passed"}
