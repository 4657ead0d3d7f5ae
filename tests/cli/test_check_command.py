"""The parts of ``kvspec check`` that compare with the manifest and explore, on one small chapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from manifests import copied
from msgspec.structs import replace

from kvspec import spec
from kvspec.cli import check_command
from kvspec.cli.main import run
from kvspec.cli.output import Exit
from kvspec.proofs import campaign
from kvspec.proofs.manifest import scopes
from kvspec.proofs.manifest.record import load_record, write_record

ONE = {"handles": spec.CHAPTERS["handles"]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The main job on one chapter, without managers, beside a copy of the manifests."""
    monkeypatch.setattr(campaign, "CHAPTERS", ONE)
    monkeypatch.setattr(scopes, "SCOPES", {name: scopes.SCOPES[name] for name in ONE})
    monkeypatch.setattr(check_command, "TARGETS", ())
    monkeypatch.setattr(check_command, "REQUESTS", 2)
    return copied(tmp_path, monkeypatch)


def edit(**changes: Any) -> None:
    """Write something else into the manifest."""
    record = load_record("handles")
    assert record is not None
    write_record(replace(record, **{n: change(getattr(record, n)) for n, change in changes.items()}))


def check(tmp_path: Path) -> tuple[int, dict[str, Any], Xml.Element]:
    """How it ends, the manifest's part of the result, and its case in the report."""
    as_json, as_xml = tmp_path / "r.json", tmp_path / "r.xml"
    code = run(["check", "--brief", "--json", str(as_json), "--junit", str(as_xml)])
    (part,) = (p for p in json.loads(as_json.read_text())["parts"] if p["part"] == "manifest")
    case = Xml.fromstring(as_xml.read_text()).find(".//testsuite[@name='kvspec manifest']/testcase")
    assert case is not None
    return code, part, case


def test_a_manifest_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, part, case = check(tmp_path)
    shown = capsys.readouterr().out
    assert code == Exit.HOLDS
    assert "manifest: what every verdict stands on\n  it fits the text and what has run\n" in shown
    assert "explorations (exhaustive in small scopes) hold; manifests hold; " in shown.splitlines()[-1]
    assert "✓ handles" in shown and "nothing violated; every event, premise and witness is met" in shown
    assert (part["verdict"], part["exit"], part["findings"]) == ("holds", 0, [])
    assert list(case) == []


def test_what_was_judged_on_another_text_is_stale_and_red(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(events=lambda events: (replace(events[0], key="of another text"), *events[1:]))
    code, part, case = check(tmp_path)
    (finding,) = part["findings"]
    assert code == part["exit"] == Exit.UNKNOWN and finding["kind"] == "stale"
    assert f"  stale: handles.{finding['what']}" in capsys.readouterr().out.splitlines()
    assert finding["what"].endswith(": what it rests on has changed")
    assert [(child.tag, child.get("type")) for child in case] == [("error", "unknown")]


def test_a_chapter_without_a_manifest_is_red(tmp_path: Path, folder: Path) -> None:
    (folder / "handles.json").unlink()
    code, part, _ = check(tmp_path)
    assert code == Exit.UNKNOWN and [f["kind"] for f in part["findings"]] == ["stale"]


@pytest.mark.parametrize(
    ("section", "change"), [("obligations", {"scope": "bounded"}), ("explorations", {"distinct": 10**6})]
)
def test_what_came_out_otherwise_is_a_violation(tmp_path: Path, section: str, change: dict[str, object]) -> None:
    edit(**{section: lambda entries: (replace(entries[0], **change), *entries[1:])})
    code, part, case = check(tmp_path)
    assert code == part["exit"] == Exit.VIOLATED and [f["kind"] for f in part["findings"]] == ["changed"]
    assert [child.tag for child in case] == ["failure"]


def test_a_witness_that_is_written_down_otherwise_is_red(tmp_path: Path) -> None:
    edit(theorems=lambda entries: (replace(entries[0], witness=None), *entries[1:]))
    code, part, _ = check(tmp_path)
    assert code == Exit.VIOLATED and [f["kind"] for f in part["findings"]] == ["changed"]


def test_every_part_has_a_heading(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check_command, "TARGETS", ("model",))
    monkeypatch.setattr(check_command, "OPERATIONS", 1)
    assert run(["check", "--brief"]) == Exit.HOLDS
    shown = capsys.readouterr().out
    for heading, first in (
        ("explore every chapter in small scopes", "✓"), ("manifest: what every verdict stands on", "  it"),
        ("conform model", "model: "), ("replay builtin on torch", ""),
    ):  # fmt: skip
        assert f"\n\n{heading}\n{first}" in shown


def test_a_manifest_that_cannot_be_read_is_bad_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "handles.json").write_text("{", encoding="utf-8")
    assert run(["check"]) == Exit.BAD_INPUT
    said = capsys.readouterr()
    assert said.err.startswith(f"kvspec: error: {folder / 'handles.json'}: ") and said.out == ""


def test_what_is_never_met_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scopes, "SCOPES", {"handles": ("blocks=2,handles=1",)})
    file = tmp_path / "r.json"
    assert run(["check", "--brief", "--json", str(file)]) == Exit.VIOLATED  # the manifest says what was met
    assert "∅ handles" in capsys.readouterr().out
    (part,) = (p for p in json.loads(file.read_text())["parts"] if p["part"] == "explore")
    assert part["verdict"] == "vacuous" and part["missing"]


def test_deep_judges_all_mutants_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spec, "CHAPTERS", {"handles": spec.CHAPTERS["handles"]})
    monkeypatch.setattr(scopes, "DEEP", {"handles": ("blocks=3,handles=3",)})
    monkeypatch.chdir(tmp_path)
    report = tmp_path / "r.xml"
    assert run(["check", "--deep", "--brief", "--junit", str(report)]) == Exit.HOLDS
    shown = capsys.readouterr().out
    assert "by z3 and cvc5" in shown and "0 known from before" in shown and "; mutants hold; " in shown
    case = Xml.parse(report).find(".//testsuite[@name='kvspec mutate']/testcase")
    assert case is not None and list(case) == []
