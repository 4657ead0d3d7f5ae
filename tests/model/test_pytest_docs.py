"""What docs/pytest.md says: its example holds, and its tables are those of the code."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

from kvspec.cli import pytest_plugin
from kvspec.model.testing import ConformanceTests

pytest_plugins = ["pytester"]

FOLDER = Path(__file__).parent.parent.parent / "docs"
DOCS = (FOLDER / "pytest.md").read_text(encoding="utf-8")
PLAIN = re.findall(r"```python\n(.*?)```", (FOLDER / "conform.md").read_text(encoding="utf-8"), re.DOTALL)[0]
EXAMPLE = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)[0]


def run(pytester: pytest.Pytester, plain: str) -> pytest.RunResult:
    sys.modules.pop("plain", None)  # what another test has imported under this name
    (pytester.path / "plain.py").write_text(plain, encoding="utf-8")
    (pytester.path / "test_plain.py").write_text(EXAMPLE, encoding="utf-8")
    installed = any(entry.name == "kvspec" for entry in metadata.entry_points(group="pytest11"))
    pytester.syspathinsert()
    return pytester.runpytest_inprocess("-q", *([] if installed else ["-p", "kvspec.cli.pytest_plugin"]))


def test_the_example_holds(pytester: pytest.Pytester) -> None:
    (shown,) = re.findall(r"\$ pytest -q test_plain.py\n([.s]+) .*\n(\d+) passed, (\d+) skipped", DOCS)
    result = run(pytester, PLAIN)
    result.assert_outcomes(passed=int(shown[1]), skipped=int(shown[2]))
    assert result.outlines[0].split()[0] == shown[0]


def test_a_violation_is_told_as_the_page_says(pytester: pytest.Pytester) -> None:
    line = "self.free += self.table[seq][keep:]"
    assert PLAIN.count(line) == 1
    result = run(pytester, PLAIN.replace(line, "self.free += self.table[seq][keep:-1]"))
    result.assert_outcomes(failed=1, passed=6, skipped=9)
    (shown,) = re.findall(r"```\n(  saved as .*?)```", DOCS, re.DOTALL)
    told = [re.sub(r"\d+(\.\d+)+", "#", line) for line in shown.splitlines()]
    printed = [re.sub(r"\d+(\.\d+)+", "#", line) for line in result.outlines]
    assert len(told) == 4 and [line for line in printed if line in told] == told


def rows(head: str) -> list[str]:
    """The first cells of the table behind a line."""
    table = DOCS[DOCS.index(head) + len(head) :].strip().splitlines()[1:]
    cells = [line.split("|")[1] for line in table[: table.index("")]]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_tables_are_those_of_the_code() -> None:
    tests = [name for name, _ in inspect.getmembers(ConformanceTests, inspect.isfunction) if name.startswith("test_")]
    assert sorted(re.findall(r"^- `(test_\w+)(?:\[\.\.\.\])?` ", DOCS, re.MULTILINE)) == sorted(tests)
    attributes = [name for name in vars(ConformanceTests)["__annotations__"] if name[0] != "_"]
    assert sorted(rows("| attribute | is |")) == sorted(attributes)

    parser = pytest.Parser(_ispytest=True)
    pytest_plugin.pytest_addoption(parser)
    options = {name for option in parser.getgroup("kvspec").options for name in option.names()}
    assert {name.split()[0] for name in rows("| option | |")} == options
