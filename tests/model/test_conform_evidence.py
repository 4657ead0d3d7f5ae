"""What a run has seen: counters, the minimum that was asked for, and versions."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kvspec.model import acceptor, engines
from kvspec.model.conform import ConformOptions, ConformReport, conform
from kvspec.model.conformance import Form, PoolConfig, Target, TargetError
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelTarget, model_target
from kvspec.model.reporting.evidence import COUNTERS, DONE, EVIDENCE, Wanted
from kvspec.model.reporting.text import report_lines, verdict_line, versions_line

POOLS = Pools()


class Modest(ModelTarget):
    """Says what must be seen of it, and what it is."""

    minimum = {"hits": 3, "evictions": 2}  # noqa: RUF012
    about = {"name": "modest", "version": "2.5", "device": "none"}  # noqa: RUF012


def drive(target: Any, **options: Any) -> ConformReport:
    return conform(target, ConformOptions(**{"operations": 1000, "form": Form.MANAGERS, **options}), pools=POOLS)


# -- counters ---------------------------------------------------------------------------------------------------------


def test_what_is_evidence_is_counted() -> None:
    for evidence in EVIDENCE.values():
        named = [*evidence.counters, *evidence.beside]
        assert {*named} <= {*COUNTERS} and len({*named}) == len(named)


def test_everything_that_the_judges_count_by_name_can_be_asked_for() -> None:
    """A call is counted by its verb, which is not evidence: it may have been an error."""
    folders = [Path(package.__file__ or "").parent for package in (acceptor, engines)]
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    found = re.findall(r'self\.counts\["([^"]+)"(?: if \w+ else "([^"]+)")?', source)
    named = {name for pair in found for name in pair}
    computed = {"offloads", "loads"}
    assert {"hits", "copied", "copies failed"} <= named
    assert {*COUNTERS} == (named - {""}) | computed | {*DONE.values()} | {"operations", "drains"}


@pytest.mark.parametrize("form", [None, Form.TIERS, Form.PAGES])
def test_the_evidence_of_a_family_is_what_happened_in_its_forms(form: Form | None) -> None:
    report = conform(model_target, ConformOptions(operations=1500, form=form), pools=POOLS)
    for family in report.families:
        evidence = next(e for f, e in EVIDENCE.items() if f.value == family.family)
        assert family.evidence.keys() == {*evidence.counters, *evidence.beside}
        assert all(0 <= seen <= report.counts.get(counter, 0) for counter, seen in family.evidence.items())
        assert family.count == sum(family.evidence[c] for c in evidence.counters)
        if form is not None:
            assert family.evidence == {counter: report.counts.get(counter, 0) for counter in family.evidence}


def test_the_table_says_how_often_each_family_was_judged_and_tried() -> None:
    report = drive(ModelTarget)
    lines = {line.split()[0]: line for line in report_lines("it", report) if line[:2] == "  " and " holds " in line}
    assert len(lines) == len(report.families)
    assert re.search(r" holds +in 1,\d{3} operations \([\d,]+ blocks handed out, \d+ evictions, ", lines["partition"])
    assert re.search(r"holds         in \d+ refusals or errors \(\d+ refusals, \d+ errors\)$", lines["atomic_failure"])
    assert re.search(r"holds         in \d+ drained pools$", lines["drain"])


# -- the minimum ------------------------------------------------------------------------------------------------------


def test_what_was_seen_often_enough_is_good() -> None:
    report = drive(Modest)
    assert [(w.counter, w.least) for w in report.minimum] == [("hits", 3), ("evictions", 2)]
    assert all(w.seen == report.counts[w.counter] >= w.least for w in report.minimum) and not report.unmet
    assert {*report.verdicts} == {"holds"} and verdict_line(report).startswith("holds: ")
    told = "\n".join(report_lines("it", report))
    assert re.search(r"  minimum               met           \d+ of 3 hits, \d+ of 2 evictions$", told, re.MULTILINE)


def test_what_was_seen_too_rarely_is_said_and_is_not_good() -> None:
    report = drive(Modest, operations=1)
    assert report.unmet == [Wanted("hits", 3, 0), Wanted("evictions", 2, 0)]
    assert "unknown" in report.verdicts and "violated" not in report.verdicts
    assert verdict_line(report).startswith("too little was seen: 0 of 3 hits, 0 of 2 evictions; ")
    assert "  minimum               not met       0 of 3 hits, 0 of 2 evictions" in [*report_lines("it", report)]


def test_who_drives_has_the_last_word() -> None:
    report = drive(Modest, operations=1, minimum={"hits": 0, "copies failed": 1})
    assert report.minimum == [Wanted("hits", 0, 0), Wanted("evictions", 2, 0), Wanted("copies failed", 1, 0)]
    assert [w.counter for w in report.unmet] == ["evictions", "copies failed"]


def test_all_forms_count_together_and_the_larger_minimum_is_meant() -> None:
    class Pool(Modest):
        minimum = {"hits": 1, "ranks": 5}  # noqa: RUF012

    def make(config: PoolConfig) -> Target:
        target: Any = model_target(config)
        target.minimum = (Pool if config.is_pool else Modest).minimum
        return target

    report = conform(make, ConformOptions(operations=2000), pools=POOLS)
    assert {w.counter: w.least for w in report.minimum} == {"hits": 3, "evictions": 2, "ranks": 5}
    assert not report.unmet


def test_a_violation_is_worse() -> None:
    class Wrong(Modest):
        def used_count(self) -> int:
            return -1

    report = drive(Wrong, shrink_seconds=0.1)
    assert report.unmet and report.violation is not None
    assert {"violated", "unknown"} <= {*report.verdicts}
    assert re.match(r"violated: usage/used_count; too little was seen: 0 of 3 hits, ", verdict_line(report))


@pytest.mark.parametrize(
    ("minimum", "words"),
    [
        ({"hit": 1}, f"'hit' is not counted, expected one of {', '.join(COUNTERS)}"),
        ({"hits": -1}, "-1 hits, expected a number from 0 on"),
        ({"hits": True}, "True hits, expected a number from 0 on"),
        ({"hits": 1.5}, "1.5 hits, expected a number from 0 on"),
    ],
)
def test_a_minimum_of_what_is_not_counted_is_refused(minimum: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r"^minimum: ") as error:
        ConformOptions(minimum=minimum)
    assert str(error.value).endswith(words)
    wrong = type("Wrong", (ModelTarget,), {"minimum": minimum})
    with pytest.raises(TargetError, match=r"^has minimum: ") as refused:
        drive(wrong)
    assert str(refused.value).endswith(words)


@pytest.mark.parametrize(
    "fields", [{"minimum": 3}, {"minimum": ["hits"]}, {"about": "2.5"}, {"about": {"version": 2.5}}, {"about": None}]
)
def test_what_a_target_says_of_itself_has_to_make_sense(fields: dict[str, Any]) -> None:
    wrong = type("Wrong", (ModelTarget,), fields)
    with pytest.raises(TargetError, match=f"^has {next(iter(fields))}: .*, expected "):
        drive(wrong)


# -- versions ---------------------------------------------------------------------------------------------------------


def test_a_report_says_what_it_was_made_with() -> None:
    report = drive(Modest, operations=1)
    assert report.versions == {"kvspec": metadata.version("kvspec"), "Python": platform.python_version()}
    ours = f"kvspec {report.versions['kvspec']}, Python {report.versions['Python']}"
    assert versions_line("it", report) == f"{ours}, modest 2.5, device none"
    assert f"  {versions_line('it', report)}" in [*report_lines("it", report)]
    assert versions_line("it", drive(ModelTarget, operations=1)) == ours


def test_a_version_without_a_name_is_that_of_the_target() -> None:
    named = type("Named", (ModelTarget,), {"about": {"version": "3"}})
    assert versions_line("it", drive(named, operations=1)).endswith(", it 3")


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_run_that_has_no_time_for_anything_has_seen_nothing() -> None:
    report = drive(ModelTarget, operations=None, seconds=1e-12)
    assert not report.operations and {*report.verdicts} == {"not observed"}
    assert verdict_line(report).startswith("nothing was observed (")


@pytest.mark.parametrize("limits", [{"operations": 50, "seconds": 600.0}, {"operations": 10**9, "seconds": 0.05}])
def test_whichever_end_comes_first_ends_a_run(limits: dict[str, Any]) -> None:
    report = drive(ModelTarget, **limits)
    assert report.violation is None and 50 <= report.operations < 10**6
    assert "holds" in report.verdicts and not {"violated", "unknown"} & {*report.verdicts}


def test_a_run_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds: inf, expected more than 0, and an end"):
        ConformOptions(operations=None, seconds=float("inf"))
