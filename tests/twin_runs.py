"""What every faulty manager and every scenario of the field has to show, whatever variant it is of."""

from __future__ import annotations

from pathlib import Path

from kvspec.model.conform import ConformOptions, FoundViolation, Replayer, conform
from kvspec.model.conformance import MakeTarget
from kvspec.model.pools import Pools
from kvspec.model.scenario import format_whole, parse_scenario, read_scenario
from kvspec.model.shrink import Case

MOST_LINES = 15


def found_and_shrunk(twin: MakeTarget, good: MakeTarget, rule: str, options: ConformOptions, pools: Pools) -> None:
    """Random operations find that the twin breaks a rule (``family/rule``), in few lines that the good one passes."""
    found = conform(twin, options, pools=pools).violation
    assert found is not None, f"not found in {options.operations} operations"
    assert f"{found.family}/{found.rule}" == rule, found.what
    assert found.reproduced and found.shrunk
    assert 1 + len(found.operations) <= MOST_LINES, found.operations
    nothing_can_be_taken_out(twin, found, pools)
    assert Replayer(good, pools).run(case(found)).violation is None, "the good one fails, too"


def case(violation: FoundViolation) -> Case:
    """The run that shows it."""
    return Case(violation.config, tuple(violation.operations))


def nothing_can_be_taken_out(twin: MakeTarget, found: FoundViolation, pools: Pools) -> None:
    """Without any one of its operations the run does not break the same rule any more."""
    replayer = Replayer(twin, pools)
    whole = case(found)
    same = replayer.run(whole).violation
    assert same is not None and (same.family, same.rule) == (found.family, found.rule)
    assert replayer.fails_like(same)(whole)
    for at, taken_out in enumerate(whole.operations):
        shorter = Case(whole.config, (*whole.operations[:at], *whole.operations[at + 1 :]))
        assert not replayer.fails_like(same)(shorter), f"{taken_out} can be taken out"


def says_what_it_is_about(path: Path) -> None:
    """A file of the corpus names its case and its property, expects something, and reads back as it was written."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.stem}: ") and "\n# Property: " in text
    scenario = read_scenario(path)
    again = parse_scenario(format_whole(scenario))
    assert again.items == scenario.items and again.config == scenario.config
    assert len(scenario.checks) >= 2
