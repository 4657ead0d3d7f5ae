"""LMDeploy's block managers under its own scheduler do nothing wrong but what is known; planted faults are found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.cheap import driven, process, scripts, shows
from peers.planted import MOST_LINES, faults_of, find

from kvspec.model.remote.client import RemoteTargets

TARGET = "lmdeploy"
pytestmark = pytest.mark.peer(TARGET)


@pytest.fixture(scope="module")
def targets() -> Iterator[RemoteTargets]:
    with process(TARGET) as made:
        yield made


def test_the_manager_with_a_trie_does_nothing_wrong_but_what_is_known(targets: RemoteTargets) -> None:
    report = driven(targets, TARGET, "trie", 4000)
    assert report.violation is None, report.violation
    assert {verdict.state for verdict in report.known} == {"known"}
    assert min(report.counts[what] for what in ("hits", "evictions", "refusals", "preemptions", "drains")) > 0


def test_the_manager_of_a_window_keeps_its_promises(targets: RemoteTargets) -> None:
    report = driven(targets, TARGET, "window", 2500)
    assert report.violation is None, report.violation
    assert min(report.counts[what] for what in ("slides", "refusals", "preemptions", "drains")) > 0
    assert not report.counts.get("hits")


def test_blocks_for_which_nobody_made_room_are_refused_with_an_error() -> None:
    with process(TARGET, "--misuse") as made:
        found = driven(made, TARGET, "trie", 20_000).violation
    assert found is not None
    assert (found.family, found.rule) == ("misuse", "crash")
    assert "MemoryError: No enough free memory blocks." in found.what


@pytest.mark.parametrize("fault", faults_of(TARGET))
def test_a_planted_fault_is_found(targets: RemoteTargets, fault: str) -> None:
    assert find(TARGET, fault, targets).lines <= MOST_LINES


@pytest.mark.parametrize("script", scripts(TARGET), ids=lambda path: path.stem)
def test_a_finding_is_shown_by_its_script(script: Path) -> None:
    shows(script, TARGET)
