"""A report in words, line by line, as a terminal and a failing test show it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvspec.model.conform import ConformReport, FoundViolation
from kvspec.model.operations import Operation
from kvspec.model.promises import PROMISES, Family
from kvspec.model.scenario import Check, Error, LineResult, ScenarioResult, format_scenario

_COUNTS: Final = (
    "taken", "hits", "published", "evictions", "copies", "forks", "truncations", "preemptions", "refusals", "errors",
    "reads",
)  # fmt: skip
_COUNTS_OF: Final = {
    Family.RANK: ("ranks", "trims", "saves", "restores", "states"),
    Family.WINDOW: ("slides",),
    Family.TIERS: ("offloads", "loads", "fetched", "copied", "copies failed", "tokens loaded", "host evictions"),
}
"""What else is counted where something can break a family."""
WORDS: Final = {
    "taken": "blocks handed out", "published": "keys published", "ranks": "ranks chosen", "trims": "hits trimmed",
    "fetched": "blocks from a store", "copied": "copies done", "states": "states read",
    "slides": "blocks behind a window given back",
}  # fmt: skip


def report_lines(name: str, report: ConformReport) -> Iterator[str]:
    """What was done, what happened, and each family; the violation is told apart from it."""
    end = " (interrupted)" if report.interrupted else ""
    options = report.options
    yield (
        f"{name}: {told(report.operations, 'operations')} in {told(report.episodes, 'pools')}{end}, "
        f"seed {options.seed}, {options.kind}, {report.seconds:.1f} s, {report.rate:,.0f} operations/s"
    )
    judged = {f.family for f in report.families}
    more = [counts for family, counts in _COUNTS_OF.items() if family in judged]
    for counted_in in (_COUNTS, *more):
        happened = [told(report.counts.get(c, 0), WORDS.get(c, c)) for c in counted_in]
        yield f"  {', '.join(happened)}"
    yield (
        f"  pools of up to {report.most_blocks} blocks, blocks of up to {told(report.longest_block, 'tokens')}, "
        f"up to {told(report.longest_episode, 'operations')} in one pool"
    )
    yield ""
    for family in report.families:
        seen = f"sampled, {told(family.count, family.unit)}" if family.verdict == "holds" else family.reason
        yield f"  {family.family:<22}{family.verdict:<14}{seen}"


def verdict_line(report: ConformReport) -> str:
    """All families in one line."""
    counts = Counter(f.verdict for f in report.families)
    held = told(counts["holds"], "families")
    parts = [f"{held} {'holds' if counts['holds'] == 1 else 'hold'}"] if counts["violated"] else []
    if counts["not observed"]:
        parts.append(f"{counts['not observed']} not observed")
    if report.violation is not None:
        broken = f"{report.violation.family}/{report.violation.rule}"
        return f"violated: {broken}; {', '.join(parts)}"
    if not counts["holds"]:
        return f"nothing was observed ({told(len(report.families), 'families')})"
    return f"holds: {', '.join([held, *parts])} (sampled)"


def told(number: int, what: str) -> str:
    """``1 copy between tiers``, ``2 copies between tiers``; `what` is in the plural, with all its alternatives."""
    if number == 1:
        alternatives = re.split("(, | or )", what)
        what = "".join(re.sub(r"(ie)?s\b", lambda end: "y" if end[1] else "", one, count=1) for one in alternatives)
    return f"{number:,} {what}"


# -- a violation ------------------------------------------------------------------------------------------------------


def scenario_text(violation: FoundViolation, comment: str = "") -> str:
    """The run as a scenario; calls that must be answered with an error say so."""
    lines: list[Operation | Check] = []
    for operation, error in zip(violation.operations, violation.errors, strict=True):
        lines += [operation, Error()] if error else [operation]
    return format_scenario(lines, violation.config, comment=comment)


def violation_lines(violation: FoundViolation) -> Iterator[str]:
    """What is broken by which call, the state around it, and a run that shows it."""
    yield f"VIOLATED {violation.family}/{violation.rule} by operation {violation.number}: {violation.operation}"
    yield f"  {violation.what}"
    yield f"  hint: {PROMISES[Family(violation.family)]}"
    yield f"        (kvspec explain {violation.family}/{violation.rule})"
    yield f"  found at operation {violation.found_at} of pool {violation.episode}"
    yield from _state("before", violation.before)
    yield from _state("after", violation.after)
    yield ""
    yield _how_small(violation)
    for line in scenario_text(violation).splitlines():
        yield f"    {line}"


def _how_small(violation: FoundViolation) -> str:
    count = told(len(violation.operations), "operations")
    if not violation.reproduced:
        return f"  the run of {count}, as it was; it was not seen to fail a second time:"
    if not violation.shrunk:
        return f"  the shortest run found in the time ({count}):"
    return f"  a run that shows it ({count}; none can be taken out):"


# -- a scenario -------------------------------------------------------------------------------------------------------

REPLAYED: Final = {"passed": "holds", "failed": "violated", "violated": "violated", "not observed": "not observed"}
"""The verdict on a target, by that of a scenario."""


def scenario_lines(name: str, path: Path, found: ScenarioResult) -> Iterator[str]:
    """What became of a scenario on a target, and the line at which it failed."""
    yield f"{path} on {name}: {told(len(found.lines), 'lines')} run, {REPLAYED[found.verdict]}"
    if found.lines and found.verdict in ("failed", "violated"):
        yield from _line(found.last)


def _line(line: LineResult) -> Iterator[str]:
    yield f"line {line.number}: {line.text}"
    yield f"  {line.outcome}"
    yield from _state("before", line.before)
    yield from _state("after", line.after)


def _state(title: str, state: list[str]) -> Iterator[str]:
    for number, fact in enumerate(state):
        yield f"    {title if not number else '':<8}{fact}"
