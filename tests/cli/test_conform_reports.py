"""``kvspec conform``: what must have been seen, what is known, and what result files say of both."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as Xml
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kvspec.cli.main import run
from kvspec.cli.output import Exit
from kvspec.model.reporting.evidence import COUNTERS

TARGETS = """
from kvspec.model.reference import ModelTarget

class Good(ModelTarget):
    about = {"name": "the good one", "version": "1.2"}

class Asks(ModelTarget):
    minimum = {"copies": 100000}

class Odd(ModelTarget):
    minimum = {"hit": 1}

class Forgets(ModelTarget):
    def _copy(self, seq, index):
        super()._copy(seq, index)
        self._cells[self._pool.block(seq, index)] = 0

class Miscounts(Forgets):
    def used_count(self):
        return super().used_count() + bool(self._handles)
"""

KNOWN = """
version = 1

[[finding]]
id = "empty-copies"
rule = "content/content"
says = "A copy of a block has nothing in it."
kind = "violation"
versions = "up to 1.2"
link = "https://example.org/17"
scenario = "scenarios/copy.kv"
"""

COPY = """pool 4 block 2
start a 0
allocate a 1
write a 1
fork a b
append b 1
allocate b 2
"""


@pytest.fixture(autouse=True)
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of targets and a list of what is known of them; the current one."""
    (tmp_path / "reported.py").write_text(TARGETS)
    (tmp_path / "lists" / "scenarios").mkdir(parents=True)
    (tmp_path / "lists" / "known.toml").write_text(KNOWN)
    (tmp_path / "lists" / "scenarios" / "copy.kv").write_text(COPY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "reported", raising=False)
    return tmp_path


def conform(target: str, *options: str) -> int:
    usual = ["--form", "managers", "--operations", "1500", "--json", "o.json", "--junit", "o.xml", "--force"]
    return run(["conform", f"reported:{target}", *usual, *options])


def body() -> dict[str, Any]:
    found = json.loads(Path("o.json").read_text())
    assert isinstance(found, dict)
    return found


def suites() -> list[Xml.Element]:
    return list(Xml.parse("o.xml").getroot())


def outcomes(suite: Xml.Element) -> dict[str, tuple[str, str]]:
    """What became of each case, with its message; nothing of those that hold."""
    return {case.attrib["name"]: (mark.tag, mark.attrib["message"]) for case in suite.iter("testcase") for mark in case}


# -- versions and evidence --------------------------------------------------------------------------------------------


def test_results_say_with_what_they_were_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("Good", "--seed", "5") == Exit.HOLDS
    version, python = metadata.version("kvspec"), ".".join(map(str, sys.version_info[:3]))
    assert f"  kvspec {version}, Python {python}, the good one 1.2\n" in capsys.readouterr().out
    report = body()["report"]
    assert report["versions"] == {"kvspec": version, "Python": python}
    assert report["about"] == {"name": "the good one", "version": "1.2"}
    (suite,) = suites()
    assert {p.attrib["name"]: p.attrib["value"] for p in suite.findall("properties/property")} == {
        "target": "reported:Good", "seed": "5", "kvspec": version, "Python": python,
        "target name": "the good one", "target version": "1.2",
    }  # fmt: skip
    evidence = next(f["evidence"] for f in report["families"] if f["family"] == "partition")
    assert evidence["operations"] == report["operations"] and evidence["evictions"] == report["counts"]["evictions"]


def test_a_replay_says_so_too() -> None:
    replay = ["--replay", "lists/scenarios/copy.kv", "--json", "o.json", "--junit", "o.xml"]
    assert run(["conform", "reported:Good", *replay]) == Exit.HOLDS
    assert body()["versions"].keys() == {"kvspec", "Python"}
    (suite,) = suites()
    assert [p.attrib["name"] for p in suite.findall("properties/property")] == ["target", "kvspec", "Python"]


# -- the minimum ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "options"), [("Asks", []), ("Good", ["--minimum", "copies=100000", "--minimum", "hits=1"])]
)
def test_what_was_seen_too_rarely_is_never_green(
    target: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert conform(target, *options) == Exit.UNKNOWN
    out = capsys.readouterr().out
    assert re.search(r"\ntoo little was seen: \d+ of 100,000 copies; 15 families hold\n$", out)
    assert re.search(r"\n  minimum +not met +", out) and body()["exit"] == 3
    wanted = {w["counter"]: w["least"] for w in body()["report"]["minimum"]}
    assert wanted == {"copies": 100000} | ({"hits": 1} if options else {})
    (suite,) = suites()
    assert suite.attrib["errors"] == "1" and outcomes(suite)["minimum"][0] == "error"


def test_what_was_seen_often_enough_is_green(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("Asks", "--minimum", "copies=1", "--minimum", "evictions=2") == Exit.HOLDS
    assert re.search(r"\n  minimum +met +\d+ of 2 evictions, \d+ of 1 copy\n", capsys.readouterr().out)
    (suite,) = suites()
    assert "minimum" in {case.attrib["name"] for case in suite.iter("testcase")} and "minimum" not in outcomes(suite)


def test_a_family_that_did_not_occur_fails_only_where_the_minimum_needs_it() -> None:
    few = ["--operations", "1", "--kind", "wild"]
    assert conform("Good", *few) == Exit.HOLDS
    assert {f["family"]: f["verdict"] for f in body()["report"]["families"]}["map_truth"] == "not observed"
    assert conform("Good", *few, "--minimum", "hits=1") == Exit.UNKNOWN


def test_a_violation_stays_one() -> None:
    assert conform("Forgets", "--minimum", "hits=1000000") == Exit.VIOLATED


def test_time_gives_the_same_exit_codes() -> None:
    timed = ["--form", "managers", "--json", "o.json", "--seconds"]
    assert run(["conform", "reported:Good", *timed, "0.2"]) == Exit.HOLDS
    assert body()["report"]["options"]["operations"] is None
    assert run(["conform", "reported:Good", *timed, "0.2", "--minimum", "hits=1000000000"]) == Exit.UNKNOWN
    assert run(["conform", "reported:Forgets", *timed, "600"]) == Exit.VIOLATED
    assert run(["conform", "reported:Good", *timed, "1e-12"]) == Exit.UNKNOWN, "nothing was observed"


# -- what is known ----------------------------------------------------------------------------------------------------


def test_a_known_finding_does_not_fail_a_run_and_is_never_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("Forgets", "--known", "lists/known.toml") == Exit.HOLDS
    out = capsys.readouterr().out
    assert re.search(r"\n  content +known +empty-copies; in \d[\d,]* reads \(", out)
    assert "\nknown findings of lists/known.toml\n  empty-copies  violation: content/content: A copy of a block " in out
    assert re.search(r"\(seen in \d+ pools; up to 1.2; https://example.org/17\)\n", out)
    assert out.endswith("\nholds: 14 families, known: empty-copies (sampled)\n")
    assert not Path("conform-failures").exists()
    (known,) = body()["report"]["known"]
    assert known["state"] == "known" and known["episodes"] > 0 and known["finding"]["id"] == "empty-copies"
    families, findings = suites()
    said = "empty-copies: A copy of a block has nothing in it."
    assert outcomes(families) == {"content": ("skipped", said)}
    assert findings.attrib["name"] == "kvspec conform reported:Forgets: known findings"
    assert findings.attrib["skipped"] == "1"
    tag, message = outcomes(findings)["empty-copies"]
    assert tag == "skipped" and "A copy of a block has nothing in it." in message


def test_what_is_no_longer_seen_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("Good", "--known", "lists/known.toml") == Exit.VIOLATED
    said = "no longer seen in its scenario: take it out of lists/known.toml"
    assert f"\n  empty-copies  fixed: content/content: {said}\n" in (out := capsys.readouterr().out)
    assert out.endswith("\nfixed: empty-copies; 15 families hold\n")
    families, findings = suites()
    assert not outcomes(families) and outcomes(findings) == {
        "empty-copies": ("failure", f"fixed: content/content: {said}")
    }


def test_what_else_is_wrong_fails_and_the_saved_command_finds_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("Miscounts", "--known", "lists/known.toml") == Exit.VIOLATED
    assert "VIOLATED usage/used_count" in capsys.readouterr().out
    (saved,) = Path("conform-failures").iterdir()
    assert "--known lists/known.toml" in saved.read_text()
    assert conform("Miscounts", "--known", "lists/known.toml") == Exit.VIOLATED
    assert list(Path("conform-failures").iterdir()) == [saved]


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["Good", "--minimum", "hits"], "--minimum: 'hits', expected COUNTER=N, as in hits=10"),
        (["Good", "--minimum", "hits=many"], "--minimum: 'hits=many', expected COUNTER=N"),
        (["Good", "--minimum", "hits=-1"], "--minimum: 'hits=-1', expected COUNTER=N"),
        (["Good", "--minimum", "hit=1"], f"--minimum: 'hit' is not counted, expected one of {', '.join(COUNTERS)}"),
        (["Odd"], "TARGET: reported:Odd has minimum: 'hit' is not counted, expected one of operations, "),
        (["Good", "--known", "absent.toml"], "absent.toml: No such file or directory, expected a file of known"),
        (["Good", "--known", "reported.py"], "reported.py: "),
        (["Good", "--seconds", "inf"], "--seconds: inf, expected more than 0, and an end"),
    ],
)
def test_bad_input_is_one_line(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", f"reported:{args[0]}", *args[1:]]) == Exit.BAD_INPUT
    caught = capsys.readouterr()
    assert caught.out == "" and caught.err.count("\n") == 1
    assert caught.err.startswith("kvspec: error: ") and words in caught.err


@pytest.mark.parametrize(
    "given",
    [
        ["--form", "pools"], ["--seed", "0"], ["--operations", "5"], ["--kind", "wild"], ["--blocks", "4"],
        ["--group", "6,2"], ["--no-cache"], ["--minimum", "hits=1"], ["--known", "lists/known.toml"], ["--save", "x"],
    ],
)  # fmt: skip
def test_a_scenario_is_not_driven_by_options(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Also not by one that says what would be so anyway: the scenario's pool decides."""
    assert run(["conform", "model", "--replay", "lists/scenarios/copy.kv", *given]) == Exit.BAD_INPUT
    assert capsys.readouterr().err == f"kvspec: error: --replay: given with {given[0]}, expected one of them\n"


def test_two_results_do_not_go_to_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", "model", "--json", "o", "--junit", "o"]) == Exit.BAD_INPUT
    assert "'o' is the file of --json, too" in capsys.readouterr().err
