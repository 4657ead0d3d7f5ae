"""``kvspec run``: exit codes, and what is printed and written."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvspec.cli.main import run

GOOD = "pool 6 block 4\nstart a 0..5\nallocate a 6\nwrite a 6\nexpect free 3\n"
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.kv"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.kv"
    path.write_text(f"{GOOD}expect used 9\nreset\n")
    return path


def test_what_holds_ends_with_0(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(good), "--target", "model"]) == 0
    out = capsys.readouterr().out
    assert "    3  allocate a 6" in out and "granted" in out and "holds (4 lines)" in out
    assert run(["run", "-q", str(good), str(good)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 scenarios: 2 hold, 0 do not"


def test_what_fails_ends_with_1_and_shows_the_state(
    good: Path, bad: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, report = tmp_path / "out.json", tmp_path / "out.xml"
    assert run(["run", str(bad), str(good), "--json", str(result), "--junit", str(report)]) == 1
    out = capsys.readouterr().out
    assert "failed: found 2" in out and "before  free 3..5" in out and "1 of them not run" in out
    body = json.loads(result.read_bytes())
    assert (body["format"], body["exit"]) == ("kvspec/run", 1)
    assert [s["verdict"] for s in body["scenarios"]] == ["failed", "passed"]
    suite = ElementTree.parse(report).getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


def test_a_violation_ends_with_1(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good.write_text(f"{GOOD}deallocate a\n")
    assert run(["run", str(good), "--target", "tests.faulty.twins:B13"]) == 1
    assert "violated: usage/used_count: the target counts 1 used blocks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool 1 block 4\n", "broken.kv:1:6: a pool of 1 blocks, expected at least 2"),
        ("pool 4 block 2\nallocate a\n", "broken.kv:2:11: the line ends, expected a number"),
        ("pool 4 block 2\nevent leap\n", "broken.kv:2:1: unknown event 'leap', expected one of take"),
        ("pool 4 block 2\nchapter luck\n", "broken.kv: unknown chapter 'luck', expected one of"),
    ],
)
def test_a_broken_file_ends_with_2(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.kv"
    path.write_text(text)
    assert run(["run", str(path)]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_other_bad_input_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(tmp_path / "missing.kv")]) == 2
    assert run(["run"]) == 2
    path = tmp_path / "fine.kv"
    path.write_text(GOOD)
    assert run(["run", str(path), "--target", "no.such:thing"]) == 2


def test_what_cannot_be_observed_ends_with_3(
    good: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvspec.model.conformance import Capability
    from kvspec.model.reference import ModelTarget
    from kvspec.model.reference.manager import OF_MANAGERS

    shown = OF_MANAGERS - {Capability.FREE_IDS, Capability.FREE_COUNT}
    monkeypatch.setattr("kvspec.cli.targets.load_target", lambda name: lambda c: ModelTarget(c, capabilities=shown))
    assert run(["run", str(good)]) == 3
    assert "not observed: 3 in the model" in capsys.readouterr().out
