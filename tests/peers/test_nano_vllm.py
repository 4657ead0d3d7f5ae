"""nano-vllm's block manager under its own scheduler, as it is shipped and mended; each planted fault is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mutated.run import fates, survivors
from peers.cheap import driven, process, scripts, shows
from peers.planted import MOST_LINES, ROOT, faults_of, find

from kvspec.model.remote.client import RemoteTargets

TARGET = "nano-vllm"
pytestmark = pytest.mark.peer(TARGET)


@pytest.fixture(scope="module")
def targets() -> Iterator[RemoteTargets]:
    with process(TARGET) as made:
        yield made


def test_the_manager_keeps_its_promises_under_a_scheduler_that_is_mended(targets: RemoteTargets) -> None:
    report = driven(targets, TARGET, "mended", 4000)
    assert report.violation is None, report.violation
    assert not [verdict for verdict in report.known if verdict.episodes]
    assert min(report.counts[what] for what in ("hits", "evictions", "refusals", "preemptions", "drains")) > 0


def test_as_it_is_shipped_it_does_nothing_wrong_but_what_is_known(targets: RemoteTargets) -> None:
    report = driven(targets, TARGET, "as-shipped", 4000)
    assert report.violation is None, report.violation
    assert {verdict.state for verdict in report.known} == {"known"}


def test_a_prompt_for_which_there_is_no_room_raises_an_error_half_way() -> None:
    with process(TARGET, "--misuse") as made:
        found = driven(made, TARGET, "mended", 20_000).violation
    assert found is not None
    assert (found.family, found.rule) == ("misuse", "crash")
    assert "pop from an empty deque" in found.what or "index out of range" in found.what


@pytest.mark.parametrize("fault", faults_of(TARGET))
def test_a_planted_fault_is_found(targets: RemoteTargets, fault: str) -> None:
    assert find(TARGET, fault, targets).lines <= MOST_LINES


@pytest.mark.parametrize("script", scripts("nano_vllm"), ids=lambda path: path.stem)
def test_a_finding_is_shown_by_its_script(script) -> None:
    shows(script, TARGET)


def test_a_mistake_that_nothing_is_found_of_is_listed_with_a_reason() -> None:
    became = {(each["function"], each["text"]): each["fate"] for each in fates(TARGET)}
    found = list(became.values()).count("found")
    assert f"{len(became)} mutants, {found} found" in (ROOT / "docs" / "mutated-managers.md").read_text(
        encoding="utf-8"
    )
    assert {mistake: fate for mistake, fate in became.items() if fate != "found"} == survivors(TARGET)
