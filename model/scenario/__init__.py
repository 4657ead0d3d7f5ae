"""The scenario language: what people paste into a bug report, what a counterexample prints, what the corpus holds.

A scenario is a small text: a pool, then operations of a manager with checks between them, or events of a chapter of the
spec from a start state that no run needs to reach. ``docs/scenarios.md`` describes the language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvspec.model.conformance import MakeTarget
from kvspec.model.pools import Pools
from kvspec.model.scenario.events import chapter_names, run_events, write_event_scenario
from kvspec.model.scenario.language import (
    Apart,
    Blocks,
    BrokenInvariant,
    Check,
    Computed,
    Drained,
    Error,
    EventLine,
    Evicted,
    Fact,
    Forbidden,
    Free,
    Granted,
    Hit,
    Keys,
    Line,
    References,
    Refused,
    Scenario,
    ScenarioError,
    Shared,
    Used,
    Violated,
)
from kvspec.model.scenario.parse import parse_scenario, read_scenario
from kvspec.model.scenario.run import LineResult, OperationRun, ScenarioResult
from kvspec.model.scenario.write import format_scenario, format_whole

if TYPE_CHECKING:
    from kvspec.model.tracing.record import Recorder

__all__ = [
    "Apart",
    "Blocks",
    "BrokenInvariant",
    "Check",
    "Computed",
    "Drained",
    "Error",
    "EventLine",
    "Evicted",
    "Fact",
    "Forbidden",
    "Free",
    "Granted",
    "Hit",
    "Keys",
    "Line",
    "LineResult",
    "MakeTarget",
    "References",
    "Refused",
    "Scenario",
    "ScenarioError",
    "ScenarioResult",
    "Shared",
    "Used",
    "Violated",
    "chapter_names",
    "format_scenario",
    "format_whole",
    "parse_scenario",
    "read_scenario",
    "run_scenario",
    "write_event_scenario",
]


def run_scenario(
    scenario: Scenario, make_target: MakeTarget, pools: Pools | None = None, recorder: Recorder | None = None
) -> ScenarioResult:
    """Run a scenario: its operations on a target, or its events on the spec (no target is made then).

    Args:
        scenario: what to run.
        make_target: makes the target.
        pools: models that are used again, where there are many scenarios.
        recorder: writes down what happens when operations are run.

    Raises:
        ScenarioError: it speaks of an event, variable or value that its chapter does not have.
        NotLoggedError: what it drives cannot be recorded.
    """
    if scenario.chapter is not None:
        return run_events(scenario)
    return OperationRun(scenario, make_target, pools or Pools(), recorder).run()
