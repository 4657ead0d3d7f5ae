"""Findings that are known: a run goes on behind them, and the list of them has to be true."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvspec.model.conform import ConformOptions, ConformReport, conform
from kvspec.model.conform import run as conform_run
from kvspec.model.conformance import Capability, Form, PoolConfig, Target
from kvspec.model.pools import Pools
from kvspec.model.promises import RULES, Family
from kvspec.model.reference import ModelPoolTarget, ModelTarget
from kvspec.model.reporting.known import KnownError, KnownFindings, read_known
from kvspec.model.reporting.text import report_lines, scenario_text, verdict_line

POOLS = Pools()
HEAD = "version = 1\n"


class Forgets(ModelTarget):
    """Copies are empty."""

    def _copy(self, seq: str, index: int) -> None:
        super()._copy(seq, index)
        self._cells[self._pool.block(seq, index)] = 0


class ForgetsAndMiscounts(Forgets):
    """And a reset makes it forget to count."""

    off = False

    def reset(self) -> bool:
        self.off = bool(self._pool.requests)
        return super().reset()

    def used_count(self) -> int:
        return super().used_count() + self.off


class FailsTwice(ModelTarget):
    """Nothing to publish is one fault, something is another."""

    def cache(self, seq: str) -> None:
        super().cache(seq)
        raise ZeroDivisionError("something" if self._request(seq).computed else "nothing")


def drive(target: Any, known: KnownFindings | None = None, **options: Any) -> ConformReport:
    options = {"operations": 1500, "form": Form.MANAGERS, "shrink_seconds": 60, **options}
    return conform(target, ConformOptions(known=known, **options), name="the target", pools=POOLS)


def finding(id: str = "one", rule: str = "content/content", scenario: str = "one.kv", **more: str) -> str:
    fields = {"id": id, "rule": rule, "says": f"The sentence of {id}.", "kind": "violation", "scenario": scenario}
    return "[[finding]]\n" + "".join(f"{name} = '{text}'\n" for name, text in (fields | more).items())


def listed(folder: Path, *findings: str) -> KnownFindings:
    file = folder / "known.toml"
    file.write_text(HEAD + "".join(findings))
    return read_known(file)


@pytest.fixture(scope="module")
def forgotten() -> str:
    """A scenario of what `Forgets` does wrong."""
    found = drive(Forgets).violation
    assert found is not None and f"{found.family}/{found.rule}" == "content/content"
    return scenario_text(found)


@pytest.fixture
def folder(tmp_path: Path, forgotten: str) -> Path:
    """With that scenario, and one in which nothing is wrong."""
    (tmp_path / "one.kv").write_text(forgotten)
    (tmp_path / "nothing.kv").write_text("pool 4 block 2\nstart a 0 1\n")
    return tmp_path


def verdicts(report: ConformReport) -> dict[str, str]:
    return {f.family: f.verdict for f in report.families}


# -- the run ----------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_behind_what_is_known(folder: Path) -> None:
    report = drive(Forgets, listed(folder, finding()))
    assert report.violation is None and 1500 <= report.operations < 1600
    (known,) = report.known
    assert known.state == "known" and 1 < known.episodes <= report.episodes
    assert report.counts["drains"] == report.episodes - known.episodes, "the others came to their end"
    family = next(f for f in report.families if f.family == "content")
    assert (family.verdict, family.reason) == ("known", "one") and family.count > 0
    assert Counter(verdicts(report).values()) == {"holds": len(report.families) - 1, "known": 1}
    assert verdict_line(report) == f"holds: {len(report.families) - 1} families, known: one (sampled)"
    told = "\n".join(report_lines("it", report))
    assert f"one  violation: content/content: The sentence of one. (seen in {known.episodes} pools)" in told


def test_it_is_not_made_smaller_and_found_in_the_same_places_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conform_run, "Shrinker", None)
    one, other = (drive(Forgets, listed(folder, finding())) for _ in range(2))
    assert one.counts == other.counts and one.known == other.known and one.episodes == other.episodes


def test_what_else_is_wrong_is_found(folder: Path) -> None:
    report = drive(ForgetsAndMiscounts, listed(folder, finding()), operations=8000)
    assert report.violation is not None and report.violation.family == "usage"
    assert report.violation.reproduced and report.violation.shrunk
    assert verdicts(report)["usage"] == "violated" and verdicts(report)["content"] == "known"
    assert verdict_line(report).startswith("violated: usage/used_count; ")


def test_what_is_known_is_told_from_another_violation_of_the_same_rule(folder: Path) -> None:
    (folder / "two.kv").write_text("pool 4 block 2\nstart a 0 1\ncache a\n")
    known = listed(folder, finding("two", "misuse/crash", "two.kv", what=r"ZeroDivisionError: nothing"))
    report = drive(FailsTwice, known, operations=8000)
    assert report.known[0].episodes > 0 and report.known[0].state == "known"
    assert report.violation is not None and report.violation.shrunk
    assert "ZeroDivisionError: something" in report.violation.what, "made smaller, it would be the other one"
    both = listed(folder, finding("two", "misuse/crash", "two.kv"))
    assert drive(FailsTwice, both).violation is None


def test_the_first_that_fits_is_counted(folder: Path) -> None:
    first, second = drive(Forgets, listed(folder, finding(), finding("two"))).known
    assert first.episodes > 0 == second.episodes and first.state == second.state == "known"


def test_the_violation_of_an_unknown_family_beside_a_known_one_is_violated(folder: Path) -> None:
    known = listed(folder, finding(what="never said of it"))
    report = drive(Forgets, known)
    assert report.violation is not None and verdicts(report)["content"] == "violated"
    assert report.known[0].state == "fixed" and report.known[0].episodes == 0


# -- is the list true? ------------------------------------------------------------------------------------------------


def test_what_is_no_longer_there_is_told(folder: Path) -> None:
    report = drive(ModelTarget, listed(folder, finding()))
    assert report.violation is None and set(verdicts(report).values()) == {"holds"}
    (known,) = report.known
    assert (known.state, known.verdict, known.episodes) == ("fixed", "violated", 0)
    assert known.reason == f"no longer seen in its scenario: take it out of {folder / 'known.toml'}"
    assert verdict_line(report).startswith("fixed: one; ") and "violated" in report.verdicts


def test_a_scenario_that_shows_something_else_is_no_scenario_of_it(folder: Path) -> None:
    (folder / "two.kv").write_text("pool 4 block 2\nstart a 0 1\ncache a\n")
    (known,) = drive(FailsTwice, listed(folder, finding(scenario="two.kv")), operations=1).known
    assert known.state == "fixed" and "(it breaks misuse/crash: the target failed with" in known.reason


def test_a_finding_that_only_the_run_shows_needs_another_scenario(folder: Path) -> None:
    report = drive(Forgets, listed(folder, finding(scenario="nothing.kv")))
    (known,) = report.known
    assert (known.state, known.verdict) == ("changed", "violated") and known.episodes
    assert known.reason.startswith("seen in the run, but no longer in its scenario: it needs another one in ")
    assert verdicts(report)["content"] == "known" and verdict_line(report).startswith("changed: one; ")


def test_a_violation_may_be_expected_in_the_scenario(folder: Path, forgotten: str) -> None:
    (folder / "one.kv").write_text(f"{forgotten}expect violation content/content\n")
    assert drive(Forgets, listed(folder, finding())).known[0].state == "known"


def test_a_scenario_that_cannot_be_run_is_not_good(folder: Path) -> None:
    (folder / "pool.kv").write_text("pool 4 block 2 single 2\nstart a 0 1\n")

    class OnlyManagers(Forgets):
        def __init__(self, config: PoolConfig) -> None:
            if config.is_pool:
                raise ValueError("no pools here")
            super().__init__(config)

    report = drive(OnlyManagers, listed(folder, finding(scenario="pool.kv")))
    assert report.known[0].state == report.known[0].verdict == "unknown"
    assert "could not be run: cannot be made with 4 blocks of 2: ValueError: no pools here" in report.known[0].reason
    assert verdict_line(report).startswith("unknown: one; ")


def test_a_run_that_is_interrupted_says_what_it_knows(folder: Path) -> None:
    def stop(operations: int, note: str) -> None:
        nonlocal episodes
        episodes += 1
        if episodes == 12:
            raise KeyboardInterrupt

    episodes = 0
    options = ConformOptions(known=listed(folder, finding()), form=Form.MANAGERS)
    report = conform(Forgets, options, on_progress=stop, pools=POOLS)
    assert report.interrupted and report.known[0].state == "unknown" and report.known[0].episodes
    assert verdicts(report)["content"] == "known"


# -- of which target --------------------------------------------------------------------------------------------------


class Named(Forgets):
    about = {"name": "its own name", "version": "7.1"}  # noqa: RUF012


@pytest.mark.parametrize(
    ("target", "name", "known"),
    [
        (Forgets, "the target", True),
        (Forgets, "another", False),
        (Forgets, "its own name", False),
        (Named, "its own name", True),
        (Named, "the target", True),
    ],
)
def test_a_finding_may_be_of_one_target(folder: Path, target: type[ModelTarget], name: str, known: bool) -> None:
    report = drive(target, listed(folder, finding(target=name)), shrink_seconds=0.1)
    assert (report.violation is None) == known and len(report.known) == known


# -- the file ---------------------------------------------------------------------------------------------------------


def test_a_file_is_read_whole(folder: Path) -> None:
    more = {"what": "other", "target": "x", "link": "https://example.org/1", "versions": "1.0 to 1.2"}
    first, second = listed(folder, finding(), finding("two", kind="misuse accepted", **more)).findings
    assert (first.id, first.what, first.target, first.link, first.versions) == ("one", None, None, None, None)
    assert msgspec.structs.asdict(second).items() >= more.items() and second.family == "content"
    assert not listed(folder).findings


@pytest.mark.parametrize("family", Family)
def test_every_rule_can_be_known(folder: Path, family: Family) -> None:
    for rule in RULES.get(family, {"entry_held": "an invariant"}):
        assert listed(folder, finding(rule=f"{family}/{rule}")).findings[0].family == family


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "known.toml: version: None, expected version = 1"),
        ("version = 2\n", "known.toml: version: 2, expected version = 1"),
        ("version", "known.toml: Expected '=' after a key"),
        (HEAD + "findings = []\n", "contains unknown field `findings`"),
        (HEAD + "finding = 3\n", "finding: Expected `array`, got `int`"),
        (HEAD + finding().replace("says", "said"), "finding 1: Object contains unknown field `said`"),
        (HEAD + finding() + "[[finding]]\nid = 'x'\n", "finding 2: Object missing required field `rule`, "),
        (HEAD + finding() + finding(), "finding 2: there is a finding 'one' already, expected another id"),
        (HEAD + finding(kind="odd"), "finding 1: kind: Invalid enum value 'odd'"),
        (HEAD + finding(rule="contents/content"), "one: rule 'contents/content', expected FAMILY/RULE"),
        (HEAD + finding(rule="content"), "one: rule 'content', expected a rule that kvspec explain content lists"),
        (HEAD + finding(rule="content/contant"), "expected a rule that kvspec explain content lists"),
        (HEAD + finding(what="("), "one: what '(' (missing ), unterminated subpattern at position 0), "),
        (HEAD + finding(says=" "), "one: nothing in says, expected a sentence"),
        (HEAD + finding("one, two"), "one, two: id 'one, two', expected letters, digits"),
        (HEAD + finding(""), ": id '', expected letters, digits"),
        (HEAD + finding().replace("'one.kv'", r'"a\u0000"'), "one: scenario a\0: embedded null byte, expected a file"),
        (HEAD + f"finding = {'[' * 5000}{']' * 5000}", "maximum recursion depth exceeded"),
        (HEAD + finding(scenario="known.toml"), "one: scenario known.toml:1:1: "),
        (HEAD + finding(scenario="events.kv"), "events.kv runs on the spec, expected a scenario of operations"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(folder: Path, text: str, words: str) -> None:
    (folder / "events.kv").write_text("pool 4 block 2\nchapter blocks\nevent take 1 a[0]\n")
    (folder / "known.toml").write_text(text)
    with pytest.raises(KnownError) as error:
        read_known(folder / "known.toml")
    assert words in str(error.value) and str(error.value).startswith(f"{folder / 'known.toml'}: ")


def test_a_file_that_is_not_there_or_no_text_says_so(folder: Path) -> None:
    (folder / "binary.toml").write_bytes(b"\xff\xfe")
    for name, words in (("absent.toml", "No such file or directory"), ("binary.toml", "can't decode byte")):
        with pytest.raises(KnownError, match=words):
            read_known(folder / name)


def test_a_finding_may_be_of_any_form(folder: Path) -> None:
    class Loses(ModelPoolTarget):
        def state(self, seq: str) -> int:
            return super().state(seq) + 1

    found = drive(Loses, form=Form.POOLS).violation
    assert found is not None and found.family == "state_position"
    (folder / "two.kv").write_text(scenario_text(found))
    known = listed(folder, finding(rule=f"state_position/{found.rule}", scenario="two.kv"))
    report = drive(Loses, known, form=Form.POOLS)
    assert report.violation is None and report.known[0].episodes and verdicts(report)["state_position"] == "known"


def test_what_a_target_does_not_show_is_not_seen_in_its_scenario(folder: Path) -> None:
    def make(config: PoolConfig) -> Target:
        return Forgets(config, capabilities=frozenset({Capability.FREE_COUNT, Capability.FORK}))

    report = drive(make, listed(folder, finding()))
    assert report.known[0].state == "fixed" and verdicts(report)["content"] == "not observed"
