"""Conformance as tests of pytest: what passes, what fails and what it says then, and what is left out."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import xml.etree.ElementTree as Xml
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from kvspec.model import testing
from kvspec.model.conformance import Form
from kvspec.model.forms import FORMS, OF_FORMS
from kvspec.model.promises import Family
from kvspec.model.scenario import format_scenario

pytest_plugins = ["pytester"]

PLUGIN = "kvspec.cli.pytest_plugin"
OF_MANAGERS = [f.value for f in Family if Form.MANAGERS in OF_FORMS.get(f, Form)]

HEAD = """
from kvspec.model.conformance import Capability
from kvspec.model.reference import ModelTarget
from kvspec.model.testing import ConformanceTests

class Forgets(ModelTarget):
    def _copy(self, seq, index):
        super()._copy(seq, index)
        self._cells[self._pool.block(seq, index)] = 0

class Blind(ModelTarget):
    def __init__(self, config):
        super().__init__(config, capabilities=frozenset({Capability.FREE_COUNT}))

class TestMine(ConformanceTests):
    form, operations = "managers", 800
    target = ModelTarget

    def make_target(self, config):
        return self.target(config)
"""

KNOWN = """
version = 1

[[finding]]
id = "empty-copies"
rule = "content/content"
says = "A copy of a block has nothing in it."
kind = "violation"
scenario = "copy.kv"
"""

COPY = "pool 4 block 2\nstart a 0\nallocate a 1\nwrite a 1\nfork a b\nappend b 1\nallocate b 2\n"


def of_mine(target: str = "ModelTarget", **attributes: Any) -> str:
    """A file with a class of tests of a target."""
    lines = [f"    target = {target}", *(f"    {name} = {value!r}" for name, value in attributes.items())]
    return HEAD.replace("    target = ModelTarget", "\n".join(lines))


@pytest.fixture
def mine(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with a list of known findings and a scenario."""
    (pytester.path / "known.toml").write_text(KNOWN)
    (pytester.path / "copy.kv").write_text(COPY)
    return pytester


def run(mine: pytest.Pytester, source: str, *arguments: str, plugin: bool = True) -> pytest.RunResult:
    """Run such a file, in this process."""
    mine.makepyfile(test_mine=source)
    return again(mine, *arguments, plugin=plugin)


def again(mine: pytest.Pytester, *arguments: str, plugin: bool = True) -> pytest.RunResult:
    installed = any(entry.name == "kvspec" for entry in metadata.entry_points(group="pytest11"))
    load = [] if installed == plugin else ["-p", PLUGIN if plugin else "no:kvspec"]
    return mine.runpytest_inprocess(*load, "-p", "no:cacheprovider", "-rA", "--strict-markers", *arguments)


def outcomes(result: pytest.RunResult) -> dict[str, str]:
    """What became of each test."""
    words = {"PASSED", "FAILED", "XFAIL", "XPASS", "ERROR"}
    rows = (line.split(maxsplit=2) for line in result.outlines if "::TestMine::" in line)
    return {row[1].rpartition("::")[2]: row[0] for row in rows if row[0] in words}


def families(outcome: str, *left_out: str) -> dict[str, str]:
    return {f"test_family[{family}]": outcome for family in OF_MANAGERS if family not in left_out}


# -- the tests of a class ---------------------------------------------------------------------------------------------


def test_each_family_is_a_test_and_the_run_is_made_once(
    mine: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    conform = testing.conform
    monkeypatch.setattr(testing, "conform", lambda *a, **more: runs.append(more["name"]) or conform(*a, **more))
    result = run(mine, of_mine())
    assert outcomes(result) == families("PASSED") | {"test_enough_was_seen": "PASSED"}
    result.assert_outcomes(passed=len(OF_MANAGERS) + 1)
    assert runs == ["TestMine"]
    assert not (mine.path / testing.FAILURES).exists()


def test_a_violation_fails_its_family_and_says_how_to_run_it_again(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine("Forgets"))
    seen = outcomes(result)
    assert [name for name, outcome in seen.items() if outcome == "FAILED"] == ["test_family[content]"]
    assert seen["test_enough_was_seen"] == "PASSED"
    saved = Path(testing.FAILURES) / "TestMine.content.content.kv"
    result.stdout.fnmatch_lines(
        [
            "VIOLATED content/content by operation * allocate *",
            "* a run that shows it (* operations; none can be taken out):",
            "    pool * block *",
            f"  saved as {saved}",
            f"  run it again: pytest test_mine.py::TestMine --kvspec-replay {saved}",
            "  found by pytest test_mine.py::TestMine --kvspec-seed 0 --kvspec-operations 800",
            "  kvspec *, Python *",
        ]
    )
    assert "Traceback" not in result.stdout.str() and "testing/__init__.py" not in result.stdout.str()
    text = (mine.path / saved).read_text()
    assert text.startswith("# TestMine: content/content at the last operation\n# token ")

    replayed = again(mine, "test_mine.py::TestMine", "--kvspec-replay", str(saved))
    assert outcomes(replayed) == {f"test_scenario[{saved.stem}]": "FAILED"}
    replayed.stdout.fnmatch_lines([f"{saved} on TestMine: * lines run, violated", "line *: allocate *", "  content/*"])
    found_again = again(mine, "test_mine.py::TestMine", "--kvspec-seed", "0", "--kvspec-operations", "800")
    assert outcomes(found_again) == seen and list((mine.path / testing.FAILURES).iterdir()) == [mine.path / saved]
    good = run(mine, of_mine(), "--kvspec-replay", str(saved))
    assert outcomes(good) == {f"test_scenario[{saved.stem}]": "PASSED"}


def test_a_violation_that_cannot_be_saved_is_told_all_the_same(mine: pytest.Pytester) -> None:
    (mine.path / "conform-failures").touch()
    result = run(mine, of_mine("Forgets"))
    assert outcomes(result)["test_family[content]"] == "FAILED"
    result.stdout.fnmatch_lines(["VIOLATED content/content by operation *", "  not saved: *File exists*"])


def test_what_was_not_observed_is_skipped_with_its_reason(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine("Blind"))
    skipped = {"holders", "publish_after_write", "exclusive_writer", "key", "usage", "content"}
    assert outcomes(result) == families("PASSED", *skipped) | {"test_enough_was_seen": "PASSED"}
    result.stdout.fnmatch_lines(["SKIPPED * not observed: the target lacks ref_counts"])


def test_all_forms_are_driven_unless_one_is_asked_for(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine(form=None, operations=300))
    result.assert_outcomes(passed=len(OF_MANAGERS) + 1, skipped=len(Family) - len(OF_MANAGERS))
    result.stdout.fnmatch_lines(["SKIPPED * not observed: nothing that was driven could break it"])


def test_a_family_that_is_not_observed_fails_where_the_minimum_needs_it(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine(operations=1, kind="wild", minimum={"hits": 1}))
    seen = outcomes(result)
    failed = {name for name, outcome in seen.items() if outcome == "FAILED"}
    assert {"test_enough_was_seen", "test_family[map_truth]"} <= failed
    assert "test_family[drain]" not in failed and "test_family[exclusive_writer]" not in failed
    result.stdout.fnmatch_lines(["not observed: no hits", "too little was seen: 0 of 1 hit; *"])


def test_a_target_may_ask_for_a_minimum_itself(mine: pytest.Pytester) -> None:
    source = of_mine() + "\n    target = type('Asks', (ModelTarget,), {'minimum': {'copies': 10**9}})\n"
    assert [n for n, o in outcomes(run(mine, source)).items() if o == "FAILED"] == ["test_enough_was_seen"]


def test_nothing_observed_is_not_enough(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine(operations=None, seconds=1e-12))
    assert outcomes(result) == {"test_enough_was_seen": "FAILED"}
    result.stdout.fnmatch_lines(["nothing was observed (*", "found by pytest * --kvspec-seed 0 --kvspec-seconds 1e-12"])


# -- what is known ----------------------------------------------------------------------------------------------------


def test_what_is_known_is_an_expected_failure(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine("Forgets", known="known.toml"))
    expected = {"test_family[content]": "XFAIL", "test_known[empty-copies]": "XFAIL", "test_enough_was_seen": "PASSED"}
    assert outcomes(result) == families("PASSED", "content") | expected
    result.stdout.fnmatch_lines(["XFAIL *::test_family* - empty-copies: A copy of a block has nothing in it."])
    result.stdout.fnmatch_lines(["XFAIL *::test_known* - empty-copies: violation: content/content: A copy * 1 pool)"])
    assert not (mine.path / testing.FAILURES).exists()


def test_it_fails_where_no_failure_is_to_be_expected(mine: pytest.Pytester) -> None:
    seen = outcomes(run(mine, of_mine("Forgets", known="known.toml"), "--runxfail"))
    failed = {name for name, outcome in seen.items() if outcome == "FAILED"}
    assert failed == {"test_family[content]", "test_known[empty-copies]"}


def test_what_is_no_longer_seen_fails(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine(known="known.toml"))
    assert outcomes(result) == families("PASSED") | {
        "test_enough_was_seen": "PASSED", "test_known[empty-copies]": "FAILED",
    }  # fmt: skip
    said = "fixed: content/content: no longer seen in its scenario: take it out of known.toml"
    result.stdout.fnmatch_lines([f"empty-copies: {said}"])


def test_what_is_known_of_another_target_is_skipped(mine: pytest.Pytester) -> None:
    (mine.path / "known.toml").write_text(KNOWN + 'target = "Another"\n')
    result = run(mine, of_mine(known="known.toml"))
    result.stdout.fnmatch_lines(["SKIPPED * empty-copies is known of Another only"])
    (mine.path / "known.toml").write_text(KNOWN + 'target = "TestMine"\n')
    assert outcomes(again(mine))["test_known[empty-copies]"] == "FAILED"


# -- scenarios --------------------------------------------------------------------------------------------------------


def test_each_scenario_of_a_folder_is_a_test(mine: pytest.Pytester) -> None:
    folder = mine.path / "found"
    folder.mkdir()
    for name, text in {
        "copies": COPY + "expect granted\n",
        "wrong": "pool 4 block 2\nexpect free 9\n",
        "broken": "pool 4 block\n",
        "of_the_spec": "pool 4 block 2\nchapter blocks\nevent take 1 holder0\n",
    }.items():
        (folder / f"{name}.kv").write_text(text)
    result = run(mine, of_mine(scenarios="found"), "-k", "scenario")
    assert outcomes(result) == {
        "test_scenario[copies]": "PASSED", "test_scenario[wrong]": "FAILED", "test_scenario[broken]": "FAILED",
        "test_scenario[of_the_spec]": "FAILED",
    }  # fmt: skip
    result.stdout.fnmatch_lines(["found/broken.kv:1:* expected a number"])
    result.stdout.fnmatch_lines(["found/of_the_spec.kv: this scenario runs on the spec, not on a target, *"])
    result.stdout.fnmatch_lines(["found/wrong.kv on TestMine: 1 line run, violated", "line 2: expect free 9"])


def test_a_scenario_of_what_is_known_is_expected_to_fail_and_one_of_what_is_not_shown_is_skipped(
    mine: pytest.Pytester,
) -> None:
    (mine.path / "found").mkdir()
    (mine.path / "found" / "copy.kv").write_text(COPY)
    result = run(mine, of_mine("Forgets", known="known.toml", scenarios="found"), "-k", "scenario")
    assert outcomes(result) == {"test_scenario[copy]": "XFAIL"}
    result = run(mine, of_mine("Blind", scenarios="found"), "-k", "scenario")
    assert outcomes(result) == {"test_scenario[copy]": "FAILED"}
    result.stdout.fnmatch_lines(["found/copy.kv: TestMine lacks the capability fork, which the scenario needs"])
    result.stdout.no_fnmatch_line("*exception*")
    (mine.path / "found" / "copy.kv").write_text("pool 4 block 2\nexpect used 0\n")
    result = run(mine, of_mine("Blind", scenarios="found"), "-k", "scenario")
    result.stdout.fnmatch_lines(["SKIPPED * found/copy.kv holds as far as TestMine shows it"])


@pytest.mark.parametrize("form", [form for form in Form if form is not Form.MANAGERS])
def test_a_scenario_of_another_form_fails_and_says_of_which(mine: pytest.Pytester, form: Form) -> None:
    (mine.path / "found").mkdir()
    (mine.path / "found" / "other.kv").write_text(format_scenario((), FORMS[form].smallest))
    result = run(mine, of_mine(scenarios="found"), "-k", "scenario")
    assert outcomes(result) == {"test_scenario[other]": "FAILED"}
    result.stdout.fnmatch_lines([f"found/other.kv: TestMine cannot be made with *; the scenario is for {form.words}"])


def test_a_scenario_that_is_not_there_is_said(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine(), "--kvspec-replay", "absent.kv")
    assert outcomes(result) == {"test_scenario[absent]": "FAILED"}
    result.stdout.fnmatch_lines(["*No such file or directory: 'absent.kv'"])


# -- what cannot be run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"known": "absent.toml"}, "absent.toml: No such file or directory, expected a file of known findings"),
        ({"known": "copy.kv"}, "copy.kv: *, expected TOML"),
        ({"scenarios": "absent"}, "TestMine.scenarios: no file in 'absent' ends in .kv, expected a scenario"),
    ],
)
def test_a_bad_file_is_an_error_when_tests_are_collected(
    mine: pytest.Pytester, attributes: dict[str, str], words: str
) -> None:
    result = run(mine, of_mine(**attributes))
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([words])


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"form": "pool"}, "TestMine: form: Invalid enum value 'pool'"),
        ({"kind": "mad"}, "TestMine: kind: Invalid enum value 'mad'"),
        ({"seconds": -1.0}, "TestMine: seconds: -1.0, expected more than 0, *"),
        ({"minimum": {"hit": 1}}, "TestMine: minimum: 'hit' is not counted, expected one of operations, *"),
        ({"options": {"num_block": 1}}, "TestMine: Object contains unknown field `num_block`"),
        ({"options": {"seed": 1}}, "TestMine: * got multiple values for keyword argument 'seed'"),
        ({"options": {"every": 0}}, "TestMine: every: 0, expected at least 1"),
        ({"options": {"num_blocks": "5"}}, "TestMine: num_blocks: Expected `int | null`, got `str`"),
        ({"seed": "0"}, "TestMine: seed: Expected `int`, got `str`"),
        ({"operations": 2.5}, "TestMine: operations: Expected `int | null`, got `float`"),
        ({"scenarios": 3}, "TestMine.scenarios: 3, expected a folder"),
    ],
)
def test_so_are_options_that_make_no_sense(mine: pytest.Pytester, attributes: dict[str, Any], words: str) -> None:
    result = run(mine, of_mine(**attributes))
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([words])
    assert "def _options" not in result.stdout.str()


@pytest.mark.parametrize("source", [of_mine("repr"), HEAD.partition("    def make_target")[0]], ids=["none", "nothing"])
def test_a_target_that_cannot_be_driven_fails_every_test_and_is_shown_once(mine: pytest.Pytester, source: str) -> None:
    result = run(mine, source)
    assert outcomes(result) == families("FAILED") | {"test_enough_was_seen": "FAILED"}
    words = "lacks capabilities, *" if "repr" in source else "cannot be made with *: NotImplementedError: *"
    result.stdout.fnmatch_lines([f"E *TargetError: {words}", f"TestMine {words}"])
    assert result.stdout.str().count("def checked_target") == 1


# -- the plugin -------------------------------------------------------------------------------------------------------


def test_options_of_the_command_line_are_those_of_the_run(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine(seed=3), "--kvspec-seed=7", "--kvspec-operations=1", "--junitxml=o.xml", "-k", "enough")
    assert outcomes(result) == {"test_enough_was_seen": "PASSED"}
    properties = {p.attrib["name"]: p.attrib["value"] for p in Xml.parse(mine.path / "o.xml").iter("property")}
    assert properties == {
        "kvspec: seed": "7", "kvspec: kvspec": metadata.version("kvspec"),
        "kvspec: Python": ".".join(map(str, sys.version_info[:3])),
    }  # fmt: skip
    wanted = run(mine, of_mine(minimum={"hits": 10**9}), "--kvspec-seconds=0.05", "-k", "enough")
    wanted.stdout.fnmatch_lines(["found by pytest * --kvspec-seed 0 --kvspec-seconds 0.05"])


def test_it_works_without_the_plugin(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine(), plugin=False)
    result.assert_outcomes(passed=len(OF_MANAGERS) + 1, skipped=2)


def test_the_class_itself_is_never_collected(mine: pytest.Pytester) -> None:
    result = run(mine, of_mine(operations=300), "-o", "python_classes=*Tests Test*")
    result.assert_outcomes(passed=len(OF_MANAGERS) + 1)


def test_every_worker_says_the_same(mine: pytest.Pytester) -> None:
    alone = outcomes(run(mine, of_mine("Forgets", known="known.toml")))
    assert outcomes(again(mine, "-n", "2")) == alone


GROUPS = """
def pytest_collection_modifyitems(items):
    assert {item.get_closest_marker("xdist_group").args for item in items} == {("test_mine.py::TestMine",)}
"""


def test_one_worker_can_have_all_tests_of_a_class(mine: pytest.Pytester) -> None:
    mine.makeconftest(GROUPS)
    assert run(mine, of_mine(known="known.toml"), "--collect-only").ret == pytest.ExitCode.OK
    mine.makeconftest(GROUPS.replace("TestMine", "Another"))
    assert again(mine, "--collect-only").ret == pytest.ExitCode.INTERNAL_ERROR


def test_it_is_found_by_pytest_where_kvspec_is_installed() -> None:
    project = Path(__file__).parent.parent.parent / "pyproject.toml"
    points = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["entry-points"]["pytest11"]
    assert points == {"kvspec": PLUGIN}


IMPORTED = f"import pytest, sys; before = set(sys.modules); import {PLUGIN}; print(*sorted(set(sys.modules) - before))"


def test_it_costs_next_to_nothing_where_it_is_not_used() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) <= {"kvspec", "kvspec.cli", PLUGIN}
