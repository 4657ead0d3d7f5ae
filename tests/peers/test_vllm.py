"""vLLM's manager under its own scheduler: it keeps its promises but for what is known; each planted fault is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from peers.cheap import process, scripts, shows
from peers.planted import MOST_LINES, faults_of, find, known_of

from kvspec.model import forms
from kvspec.model.conform import ConformOptions, ConformReport, conform
from kvspec.model.conformance import Form, PoolConfig
from kvspec.model.engines.generator import engine_config
from kvspec.model.engines.protocol import Abilities
from kvspec.model.generator import Source
from kvspec.model.remote.client import RemoteTargets

TARGET = "vllm"
pytestmark = pytest.mark.peer(TARGET)

VARIANTS = (
    "full", "sliding", "full+sliding", "mamba", "full+mamba",
    "full+sliding2", "sliding+sliding2", "full+sliding+mamba", "full+sliding/sparse", "full+mamba/sparse",
)  # fmt: skip
WAYS = ((), ("priority",), ("chunked",), ("overlapped",), ("priority", "chunked", "overlapped"))


@pytest.fixture(scope="module")
def vllm() -> Iterator[RemoteTargets]:
    """One process for all tests of the manager as it is."""
    with process(TARGET) as made:
        yield made


def always(ways: tuple[str, ...]) -> Callable[..., PoolConfig]:
    """Stands for `engine_config`: engines that schedule in one way."""

    def drawn(source: Source, abilities: Abilities) -> PoolConfig:
        config = engine_config(source, abilities)
        assert config.engine is not None
        chosen = {way: way in ways for way in abilities.ways}
        return msgspec.structs.replace(config, engine=msgspec.structs.replace(config.engine, **chosen))

    return drawn


def run(targets: RemoteTargets, operations: int, variant: str | None = None) -> ConformReport:
    options = ConformOptions(operations=operations, variant=variant, form=Form.ENGINES, known=known_of(TARGET))
    return conform(targets, options, name=TARGET)


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: "+".join(ways) or "plain")
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_conforms_in_each_way(
    vllm: RemoteTargets, monkeypatch: pytest.MonkeyPatch, variant: str, ways: tuple[str, ...]
) -> None:
    monkeypatch.setattr(forms, "engine_config", always(ways))
    report = run(vllm, 2000, variant)
    assert report.violation is None, str(report.violation)
    assert min(report.counts[what] for what in ("hits", "evictions", "refusals", "drains")) > 0
    if "sliding" in variant and "chunked" in ways:
        assert report.counts["slides"] > 0
    if "mamba" in variant:
        assert report.counts["states"] > 0


def test_all_variants_in_turn_show_what_has_to_be_seen(vllm: RemoteTargets) -> None:
    report = run(vllm, 5000)
    assert report.violation is None, str(report.violation)
    assert not report.unmet and len(report.minimum) == 6
    assert set(report.variants) == set(VARIANTS) and min(report.variants.values()) > 0


def test_without_a_prefix_cache_it_keeps_its_promises_too(vllm: RemoteTargets) -> None:
    options = ConformOptions(operations=5000, form=Form.ENGINES, known=known_of(TARGET), prefix_cache=False)
    report = conform(vllm, options, name=TARGET)
    assert report.violation is None, str(report.violation)
    assert not report.unmet and len(report.minimum) == 4
    assert min(report.variants[variant] for variant in VARIANTS) > 0


def test_what_is_known_is_seen_in_its_scenario(vllm: RemoteTargets) -> None:
    assert [verdict.state for verdict in run(vllm, 100).known] == ["known"]


def test_kept_look_ups_are_misuse_that_is_noticed() -> None:
    with process(TARGET, "--misuse") as made:
        found = run(made, 20_000).violation
    assert found is not None
    assert found.family == "map_truth"


@pytest.mark.parametrize("fault", faults_of(TARGET))
def test_a_planted_fault_is_found(vllm: RemoteTargets, fault: str) -> None:
    assert find(TARGET, fault, vllm).lines <= MOST_LINES


@pytest.mark.parametrize("script", scripts(TARGET), ids=lambda path: path.stem)
def test_a_finding_is_shown_by_its_script(script: Path) -> None:
    shows(script, TARGET)
