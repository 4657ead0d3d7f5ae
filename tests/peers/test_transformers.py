"""transformers' continuous batching keeps its promises but for what is known; each planted fault is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.cheap import driven, process, scripts, shows
from peers.planted import MOST_LINES, faults_of, find

from kvspec.model.remote.client import RemoteTargets

TARGET = "transformers"
pytestmark = pytest.mark.peer(TARGET)


@pytest.fixture(scope="module")
def targets() -> Iterator[RemoteTargets]:
    with process(TARGET) as made:
        yield made


@pytest.mark.parametrize("variant", ["full", "full-prefill-first"])
def test_full_layers_do_nothing_wrong_but_what_is_known(targets: RemoteTargets, variant: str) -> None:
    report = driven(targets, TARGET, variant, 2500)
    assert report.violation is None, report.violation
    assert {verdict.state for verdict in report.known} == {"known"}
    assert min(report.counts[what] for what in ("hits", "evictions", "refusals", "preemptions", "drains")) > 0


@pytest.mark.parametrize("variant", ["full+sliding", "sliding"])
def test_sliding_layers_do_nothing_wrong_but_what_is_known(targets: RemoteTargets, variant: str) -> None:
    report = driven(targets, TARGET, variant, 2000)
    assert report.violation is None, report.violation
    assert min(report.counts[what] for what in ("allocations", "drains")) > 0
    assert not report.counts.get("hits") and not report.counts.get("published")


def test_a_cache_that_is_reset_in_use_is_noticed() -> None:
    with process(TARGET, "--misuse") as made:
        found = driven(made, TARGET, "full", 20_000).violation
    assert found is not None
    assert found.family == "content"


@pytest.mark.parametrize("fault", faults_of(TARGET))
def test_a_planted_fault_is_found(targets: RemoteTargets, fault: str) -> None:
    assert find(TARGET, fault, targets).lines <= MOST_LINES


@pytest.mark.parametrize("script", scripts(TARGET), ids=lambda path: path.stem)
def test_a_finding_is_shown_by_its_script(script: Path) -> None:
    shows(script, TARGET)
