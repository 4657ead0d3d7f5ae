"""vLLM's manager under its own scheduler: it keeps its promises but for what is known; each planted fault is found."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from kvspec.impl.adapters import environment
from kvspec.model import forms
from kvspec.model.conform import ConformOptions, ConformReport, conform
from kvspec.model.conformance import Form, MakeTarget, PoolConfig
from kvspec.model.engines.generator import engine_config
from kvspec.model.engines.protocol import Abilities
from kvspec.model.generator import Source
from kvspec.model.remote.client import RemoteTargets
from kvspec.model.reporting.known import KnownFindings, read_known

pytestmark = pytest.mark.peer("vllm")

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests" / "faulty" / "peers" / "vllm.py"
VARIANTS = ("full", "sliding", "full+sliding", "mamba", "full+mamba")
WAYS = ((), ("priority",), ("chunked",), ("overlapped",), ("priority", "chunked", "overlapped"))

FOUND = {
    "reference_not_given_back": "partition/free_count",
    "hit_not_counted": "holders/ref_count",
    "freed_while_shared": "partition/free_count",
    "leak_on_preemption": "partition/free_count",
    "leak_on_abort": "partition/free_count",
    "null_block_freed": "partition/free_count",
    "used_block_handed_out": "no_reuse_while_used/take",
    "hits_in_wrong_order": "map_truth/hit_content",
    "free_number_too_high": "partition/free_count",
    "refused_although_it_fits": "progress/refused_for_cause",
    "refusal_half_done": "atomic_failure/refusal_changes_nothing",
    "key_kept_on_reuse": "no_reuse_while_used/take",
    "published_before_planned": "publish_after_write/end_step",
    "key_without_parent": "map_truth/hit_content",
    "key_without_context": "map_truth/hit_content",
    "key_of_another_group": "map_truth/hit_content",
    "reset_keeps_a_key": "misuse/crash",
    "hit_too_long": "misuse/crash",
    "window_released_early": "window/kept",
    "window_hit_too_short": "window/kept",
    "state_matched_in_its_step": "map_truth/match",
    "state_released_early": "holders/source",
    "duplicate_forgotten": "misuse/crash",
    "removal_not_published": "misuse/crash",
}
"""What each planted fault is found as."""


def known() -> KnownFindings:
    file = environment.known("vllm")
    assert file is not None
    return read_known(file)


@contextmanager
def targets(*options: str) -> Iterator[RemoteTargets]:
    with RemoteTargets(environment.command("vllm", *options), start_seconds=120) as made:
        yield made


@pytest.fixture(scope="module")
def vllm() -> Iterator[RemoteTargets]:
    """One process for all tests of the manager as it is."""
    with targets() as made:
        yield made


def always(variant: str, ways: tuple[str, ...]) -> Callable[..., PoolConfig]:
    """Stands for `engine_config`: engines of one variant that schedule in one way."""

    def drawn(source: Source, abilities: Abilities) -> PoolConfig:
        config = engine_config(source, abilities)
        assert config.engine is not None
        chosen = {way: way in ways for way in abilities.ways}
        return msgspec.structs.replace(config, engine=msgspec.structs.replace(config.engine, variant=variant, **chosen))

    return drawn


def run(make: MakeTarget, operations: int, known: KnownFindings | None, seed: int = 0) -> ConformReport:
    options = ConformOptions(operations=operations, seed=seed, form=Form.ENGINES, known=known, shrink_seconds=60)
    return conform(make, options, name="vllm")


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: "+".join(ways) or "plain")
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_conforms_in_each_way(
    vllm: RemoteTargets, monkeypatch: pytest.MonkeyPatch, variant: str, ways: tuple[str, ...]
) -> None:
    monkeypatch.setattr(forms, "engine_config", always(variant, ways))
    report = run(vllm, 2000, known())
    assert report.violation is None, str(report.violation)
    assert min(report.counts[what] for what in ("hits", "evictions", "refusals", "drains")) > 0
    if "sliding" in variant and "chunked" in ways:
        assert report.counts["slides"] > 0
    if "mamba" in variant:
        assert report.counts["states"] > 0


def test_what_is_known_is_seen_in_its_scenario(vllm: RemoteTargets) -> None:
    report = run(vllm, 100, known())
    assert [verdict.state for verdict in report.known] == ["known"]


def test_every_planted_fault_is_expected_to_be_found() -> None:
    names = {line.split()[1].partition("(")[0] for line in FAULTS.read_text().splitlines() if line.startswith("def ")}
    assert {name for name in names if not name.startswith("_")} == set(FOUND)


@pytest.mark.parametrize("fault", FOUND)
def test_a_planted_fault_is_found_and_made_small(fault: str) -> None:
    # what is known would be in the way where the fault looks like it
    findings = None if FOUND[fault] == "publish_after_write/end_step" else known()
    with targets("--patch", f"{FAULTS}:{fault}") as make:
        found = run(make, 20_000, findings).violation
    assert found is not None
    assert f"{found.family}/{found.rule}" == FOUND[fault]
    assert found.reproduced and found.shrunk
    assert len(found.operations) <= 15


def test_kept_look_ups_are_misuse_that_is_noticed() -> None:
    with targets("--misuse") as make:
        found = run(make, 5000, known()).violation
    assert found is not None
    assert f"{found.family}/{found.rule}" == "map_truth/hit_content"


@pytest.mark.parametrize("script", sorted(ROOT.glob("docs/findings/vllm*.py")), ids=lambda path: path.stem)
def test_a_finding_is_shown_by_its_script(script: Path) -> None:
    python = environment.command("vllm")
    argv = [*python[: python.index("-m")], str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
