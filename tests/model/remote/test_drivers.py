"""The drivers that come with the documentation hold, and each of their mistakes breaks the promise that it should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvspec.model.conform import ConformOptions, ConformReport, conform
from kvspec.model.conformance import Capability, Form, TargetError, UnusableError
from kvspec.model.pools import Pools
from kvspec.model.remote.client import RemoteTargets

DRIVERS = Path(__file__).parent.parent.parent.parent / "docs" / "drivers"
CXX = os.environ.get("CXX", "c++")
POOLS = Pools()
MISTAKES = {
    "leak": "holders/ref_count",
    "double-free": "partition/free_ids",
    "free-padding": "reserved/padding_free",
    "evict-used": "no_reuse_while_used/evict",
    "keep-key": "no_reuse_while_used/take",
    "publish-early": "publish_after_write/publish",
    "short-key": "key/equal_key_equal_content",
    "ignore-context": "map_truth/hit_unpublished",
    "no-copy": "exclusive_writer/write",
    "copy-nothing": "content/content",
    "wrong-count": "usage/used_count",
    "long-hit": "map_truth/hit_length",
    "refuse-early": "progress/refused_for_cause",
    "half-refusal": "atomic_failure/refusal_changes_nothing",
    "evict-miscounted": "partition/evicted_count",
    "keep-computed": "content/computed",
    "flat-read": "content/content",
    "no-reset": "map_truth/reset_forgets",
    "forgive": "misuse/error_expected",
    "crash": "misuse/crash",
    "hang": "misuse/no_return",
}
"""What each mistake of the C++ driver is found to break."""


@pytest.fixture(scope="session")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The C++ driver, built where all workers of this run find it."""
    base = tmp_path_factory.getbasetemp()
    built = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "paged_driver"
    if not built.exists():
        part = base / "paged_driver.part"
        source = DRIVERS / "cpp" / "paged_driver.cpp"
        warnings = ["-Wall", "-Wextra", "-Wconversion", "-pedantic"]
        done = subprocess.run(
            [CXX, "-std=c++17", "-O1", *warnings, "-o", part, source], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        part.replace(built)
    return str(built)


def judged(argv: list[str], operations: int = 20_000, call_seconds: float = 10) -> ConformReport:
    options = ConformOptions(operations=operations, patience=call_seconds, shrink_seconds=3 * call_seconds)
    with RemoteTargets(argv, call_seconds=call_seconds) as made:
        return conform(made, options, pools=POOLS)


@pytest.mark.needs_program(CXX)
def test_the_driver_in_cpp_holds_and_shows_everything(cpp: str) -> None:
    report = judged([cpp], operations=4000)
    assert {family.verdict for family in report.families} == {"holds"}
    assert report.about == {"name": "paged-cpp", "version": "1.0"}
    unshown = {"pool", "linear_state", "states", "groups", "host", "sleep", "prefetch", "pages", "engine"}
    assert set(report.capabilities) == {c.value for c in Capability} - unshown


@pytest.mark.needs_program(CXX)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_in_cpp_is_found_and_made_small(cpp: str, mistake: str) -> None:
    report = judged([cpp, "--fault", mistake], call_seconds=2 if mistake == "hang" else 10)
    found = report.violation
    assert found is not None and f"{found.family}/{found.rule}" == MISTAKES[mistake]
    assert found.reproduced and (mistake == "hang" or (found.shrunk and len(found.operations) <= 9))


@pytest.mark.needs_program(CXX)
def test_the_driver_in_cpp_lists_its_mistakes(cpp: str) -> None:
    done = subprocess.run([cpp, "--list-faults"], capture_output=True, text=True, check=True)
    listed = dict(line.split(": ") for line in done.stdout.splitlines())
    assert listed.keys() == MISTAKES.keys() and all(listed.values())
    wrong = subprocess.run([cpp, "--fault", "none"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and wrong.stderr.startswith("usage: ")


@pytest.mark.needs_program(CXX)
@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ('{"jsonrpc":"2.0","id":1,"method":"fly","params":{}}', '{"code":-32601,"message":"there is no method fly"}'),
        ('{"id":1,"method":"evict"}', '{"code":-32000,"message":"the manager is closed"}'),
        ('{"id":1,"method":"make","params":{}}', '{"code":-32602,"message":"no `form`"}'),
        ('{"id":1,"method":"make","params":{"form":"pools"}}', '{"code":-32001,"message":"no pools here, '),
        ('{"id":1,"method":"fly"', '{"code":-32700,"message":"expected \'}\' at byte 22"}'),
        ('{"id":1,"method":1.5}', '"expected a whole number at byte 18"'),
        ('{"id":1,"method":99999999999999999999}', '"expected a number of at most 63 bits at byte'),
        ("[" * 100, '"expected less depth at byte 65"'),
        (r'{"id":1,"method":"a\u00e4\ud83d\ude00\n\"\u0001"}', r'no method aä😀\u000a\"\u0001"'),
        (r'{"id":1,"method":"\x"}', '"expected an escape at byte'),
    ],
)
def test_the_reader_and_writer_in_cpp_take_what_json_has(cpp: str, line: str, answer: str) -> None:
    done = subprocess.run([cpp], input=line + "\n", capture_output=True, text=True, check=True, encoding="utf-8")
    assert answer in done.stdout and done.stdout.count("\n") == 1


PYTHON = [sys.executable, str(DRIVERS / "paged_driver.py")]


def test_the_driver_in_python_holds() -> None:
    report = judged(PYTHON, operations=2500)
    verdicts = {family.family: family.verdict for family in report.families}
    unseen = {family for family, verdict in verdicts.items() if verdict != "holds"}
    assert unseen == {"exclusive_writer", "usage"} and report.about["name"] == "paged-py"


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [("leak", "holders/ref_count"), ("evict_used", "misuse/crash"), ("long_hit", "map_truth/hit_length")],
)
def test_every_mistake_in_python_is_found(mistake: str, rule: str) -> None:
    found = judged([*PYTHON, "--fault", mistake]).violation
    assert found is not None and f"{found.family}/{found.rule}" == rule and found.shrunk


def test_the_driver_in_python_is_short_and_needs_nothing() -> None:
    source = (DRIVERS / "paged_driver.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) < 200
    imported = {line.split()[1] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported <= set(sys.stdlib_module_names)


def test_a_form_that_a_driver_does_not_know_is_told() -> None:
    options = ConformOptions(operations=10, form=Form.POOLS)
    with RemoteTargets(PYTHON) as made, pytest.raises(TargetError, match="no pools here, expected managers") as caught:
        conform(made, options)
    assert not isinstance(caught.value, UnusableError)
