"""A report in words, line by line, as a terminal and a failing test show it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kvspec.model.conform import ConformReport, FamilyVerdict, FoundViolation
from kvspec.model.operations import Operation
from kvspec.model.promises import PROMISES, Family
from kvspec.model.reporting.evidence import COUNTERS, EVIDENCE, Wanted
from kvspec.model.reporting.known import KnownVerdict
from kvspec.model.scenario import Check, Error, LineResult, ScenarioResult, format_scenario

_COUNTS: Final = (
    "taken", "hits", "published", "evictions", "copies", "forks", "truncations", "preemptions", "refusals", "errors",
    "reads",
)  # fmt: skip
_COUNTS_OF: Final = {
    Family.RANK: ("ranks", "trims", "saves", "restores", "states"),
    Family.WINDOW: ("slides",),
    Family.TIERS: ("offloads", "loads", "fetched", "copied", "copies failed", "tokens loaded", "host evictions"),
    Family.PAGES: ("mapped", "reclaimed"),
}
"""What else is counted where something can break a family."""


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
        happened = [told(report.counts.get(c, 0), COUNTERS[c]) for c in counted_in]
        yield f"  {', '.join(happened)}"
    yield (
        f"  pools of up to {report.most_blocks} blocks, blocks of up to {told(report.longest_block, 'tokens')}, "
        f"up to {told(report.longest_episode, 'operations')} in one pool"
    )
    if report.variants:
        yield f"  operations of each variant: {', '.join(f'{name} {n:,}' for name, n in report.variants.items())}"
    yield f"  {versions_line(name, report)}"
    yield ""
    for family in report.families:
        yield f"  {family.family:<22}{family.verdict:<14}{_seen(family)}"
    if report.minimum:
        seen = _wanted(report.minimum)
        yield f"  {'minimum':<22}{'not met' if report.unmet else 'met':<14}{seen}"
    if report.known:
        yield ""
        yield f"known findings of {report.options.known.file if report.options.known else ''}"
        width = max(len(k.finding.id) for k in report.known)
        for known in report.known:
            yield f"  {known.finding.id:<{width}}  {known_words(known)}"


def versions_line(name: str, report: ConformReport) -> str:
    """What the result was made with, and what the target says of itself."""
    about = dict(report.about)
    parts = [f"{what} {version}" for what, version in report.versions.items()]
    if "version" in about:
        parts.append(f"{about.pop('name', name)} {about.pop('version')}")
    return ", ".join([*parts, *(f"{what} {text}" for what, text in about.items())])


def known_words(known: KnownVerdict) -> str:
    """A known finding, and what became of it."""
    finding = known.finding
    if known.reason:
        return f"{known.state}: {finding.rule}: {known.reason}"
    more = [f"seen in {told(known.episodes, 'pools')}", *filter(None, (finding.versions, finding.link))]
    return f"{finding.kind}: {finding.rule}: {finding.says} ({'; '.join(more)})"


def _seen(family: FamilyVerdict) -> str:
    """How often it was judged, and how often what it depends on has happened; or why not."""
    if family.verdict in ("violated", "not observed"):
        return family.reason
    evidence = EVIDENCE[Family(family.family)]
    beside = [told(family.evidence[c], COUNTERS[c]) for c in evidence.told]
    count = f"in {told(family.count, family.unit)}" + (f" ({', '.join(beside)})" if beside else "")
    return f"{family.reason}; {count}" if family.verdict == "known" else count


def verdict_line(report: ConformReport) -> str:
    """All families in one line, after what is wrong."""
    counts = Counter(f.verdict for f in report.families)
    wrong = _wrong(report)
    held = told(counts["holds"], "families")
    parts = [f"{held} {'holds' if counts['holds'] == 1 else 'hold'}" if wrong else held]
    if known := [k.finding.id for k in report.known if k.open]:
        parts.append(f"known: {' and '.join(known)}")
    if counts["not observed"]:
        parts.append(f"{counts['not observed']} not observed")
    if wrong:
        return "; ".join([*wrong, ", ".join(parts)])
    if not counts["holds"] and not known:
        return f"nothing was observed ({told(len(report.families), 'families')})"
    return f"holds: {', '.join(parts)} (sampled)"


def _wrong(report: ConformReport) -> list[str]:
    """What keeps a report from being good."""
    found = []
    if report.violation is not None:
        found.append(f"violated: {report.violation.family}/{report.violation.rule}")
    for state in ("fixed", "changed", "unknown"):
        if ids := [k.finding.id for k in report.known if k.state == state]:
            found.append(f"{state}: {' and '.join(ids)}")
    if report.unmet:
        found.append(f"too little was seen: {_wanted(report.unmet)}")
    return found


def _wanted(wanted: Sequence[Wanted]) -> str:
    return ", ".join(f"{w.seen:,} of {told(w.least, COUNTERS[w.counter])}" for w in wanted)


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
