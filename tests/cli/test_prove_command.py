"""``kvspec prove`` and ``kvspec explain`` from the outside: what is printed and written, and how they end."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from cli_commands import dying

from kvspec import spec
from kvspec.cli import check_command, prove_command
from kvspec.cli.main import INTERNAL_ERROR, INTERRUPTED, run
from kvspec.cli.output import Exit
from kvspec.cli.prove_report import not_proved
from kvspec.proofs import campaign, describe
from kvspec.proofs.campaign import Unit
from kvspec.proofs.manifest import scopes
from kvspec.proofs.verdicts import Result, Verdict
from kvspec.spec import load
from kvspec.spec.language import Chapter
from kvspec.spec.language import terms as T
from kvspec.spec.language.traced import Requirement


@pytest.fixture
def broken_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The chapter `blocks` whose event `drop_last` asks for nothing."""
    chapter = Chapter(load("blocks").cls)
    chapter.event("drop_last").requires.clear()
    monkeypatch.setattr(campaign, "load", lambda name: chapter)
    campaign.groups_of.cache_clear()
    yield
    campaign.groups_of.cache_clear()


def test_a_chapter_that_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prove", "--chapter", "blocks"]) == Exit.HOLDS
    shown = capsys.readouterr().out
    assert shown.startswith("blocks: Each usable block is free or held")
    for word in ("drop_shared", "1  free_iff_unheld: every usable id", "padding_reserved", "unbounded by z3"):
        assert word in shown
    last = shown.splitlines()[-1]
    assert re.fullmatch(r"(\d+) obligations in 1 chapter: \1 proved \(proofs unbounded, by z3\), \d+\.\d s", last)


def test_single_cells(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["prove", "--only", "evict/entry_held", "--only", "blocks.take/*", "--solver", "z3,cvc5"]
    assert run(args) == Exit.HOLDS
    lines = capsys.readouterr().out.splitlines()
    assert any("evict / entry_held" in line and "by z3+cvc5" in line for line in lines)
    assert sum("take / " in line for line in lines) == 5


def test_a_chapter_that_is_named_twice_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for names in ("handles", "handles, handles"):
        assert run(["prove", "--chapter", names]) == Exit.HOLDS
        counts.append(capsys.readouterr().out.splitlines()[-1].partition(":")[0])
    assert counts[0] == counts[1]


def test_results_as_files(tmp_path: Path) -> None:
    as_json, as_xml = tmp_path / "r.json", tmp_path / "r.xml"
    files = ["--json", str(as_json), "--junit", str(as_xml)]
    assert run(["prove", "--chapter", "handles,language", *files]) == Exit.HOLDS
    result = json.loads(as_json.read_text())
    assert (result["format"], result["exit"], result["complete"]) == ("kvspec/prove", 0, True)
    assert {o["chapter"] for o in result["obligations"]} == {"handles", "language"}
    assert all(o["verdict"] == "proved" and o["scope"] and o["line"] for o in result["obligations"])
    suites = Xml.fromstring(as_xml.read_text())
    assert [s.get("name") for s in suites] == ["handles", "language"]
    assert all(s.get("failures") == s.get("errors") == "0" for s in suites)


@pytest.mark.usefixtures("broken_blocks")
def test_a_chapter_that_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_json, as_xml = tmp_path / "r.json", tmp_path / "r.xml"
    files = ["--json", str(as_json), "--junit", str(as_xml)]
    assert run(["prove", "--chapter", "blocks", *files]) == Exit.VIOLATED
    shown = capsys.readouterr().out
    named = ", ".join(f"blocks.drop_last/{name}" for name in ("free_iff_unheld", "free_usable", "freed_was_held"))
    assert shown.splitlines()[-1] == f"3 refuted: {named}"
    _, _, report = shown.partition("drop_last / free_iff_unheld   REFUTED")
    lines = report.splitlines()
    assert "confirmed by the concrete reading" in lines[0]
    labels = [line.split()[0] for line in lines[1:7]]
    assert labels == ["given", "before", "step", "after", "broken", "reached"]
    assert "from the start in 2 steps: take" in lines[6]
    cell = next(o for o in json.loads(as_json.read_text())["obligations"] if o["verdict"] == "refuted")
    assert cell["id"].startswith("blocks.drop_last/") and cell["counterexample"]["state"]["event"] == "drop_last"
    failure = Xml.fromstring(as_xml.read_text()).find(".//failure")
    assert failure is not None and "broken: " in (failure.text or "")


@pytest.mark.usefixtures("broken_blocks")
def test_a_counterexample_that_cannot_be_saved_is_still_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prove_command, "save_text", full)
    file = tmp_path / "r.json"
    assert run(["prove", "--chapter", "blocks", "--json", str(file)]) == Exit.VIOLATED
    shown = capsys.readouterr().out
    assert "run it   could not be written as a scenario: [Errno 28] No space left on device" in shown
    assert json.loads(file.read_text())["exit"] == Exit.VIOLATED


@pytest.mark.usefixtures("broken_blocks")
def test_a_counterexample_that_is_no_scenario_is_still_a_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> str:
        raise ValueError("no word\nfor it")

    monkeypatch.setattr(describe, "write_scenario", fail)
    assert run(["prove", "--chapter", "blocks", "--only", "drop_last/*"]) == Exit.VIOLATED
    assert "run it   could not be written as a scenario: ValueError: no word for it" in capsys.readouterr().out


def cell(id: str, verdict: Verdict) -> Result:
    return Result(id, "blocks", "row", "column", "invariant", "", "", verdict, "unbounded", {}, 0.0)


def test_the_last_line_names_what_is_not_proved() -> None:
    assert not_proved([cell("a", Verdict.PROVED)]) == ""
    refuted = [cell(f"r{n}", Verdict.REFUTED) for n in range(7)]
    assert not_proved([cell("u", Verdict.UNKNOWN), *refuted[:5]]) == "5 refuted: r0, r1, r2, r3, r4; 1 unknown: u"
    assert not_proved(refuted) == "7 refuted: r0, r1, r2, r3, r4, and 2 more"


@pytest.mark.usefixtures("broken_blocks")
def test_check_names_at_its_end_what_is_not_proved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_command, "TARGETS", ())
    monkeypatch.setattr(campaign, "CHAPTERS", {"blocks": spec.CHAPTERS["blocks"]})
    monkeypatch.setattr(scopes, "SCOPES", {"blocks": scopes.SCOPES["blocks"]})
    assert run(["check", "--brief"]) == Exit.VIOLATED
    summary, named = capsys.readouterr().out.splitlines()[-2:]
    counted = re.match(r"check: (\d+) of (\d+) obligations proved \(proofs unbounded\); ", summary)
    assert counted is not None and int(counted[1]) == int(counted[2]) - 3
    assert "; replay builtin holds (sampled); " in summary
    assert named.startswith("3 refuted: blocks.drop_last/free_iff_unheld, ")


def test_in_brief_a_chapter_that_holds_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prove", "--chapter", "blocks,handles", "--brief"]) == Exit.HOLDS
    first, second, summary = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"✓ blocks +\d+ obligations proved   \d+\.\d\d s", first)
    assert second.startswith("✓ handles ")
    assert summary.endswith(" s")


@pytest.mark.usefixtures("broken_blocks")
def test_in_brief_a_chapter_that_does_not_hold_has_its_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prove", "--chapter", "blocks", "--brief"]) == Exit.VIOLATED
    assert "may call" in capsys.readouterr().out


def test_one_obligation_is_no_plural(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prove", "--only", "blocks.take/held_usable"]) == Exit.HOLDS
    assert capsys.readouterr().out.splitlines()[-1].startswith("1 obligation in 1 chapter: 1 proved")


@pytest.fixture
def stuck_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The chapter `blocks` whose event `take` asks for what cannot be."""
    chapter = Chapter(load("blocks").cls)
    take = chapter.event("take")
    take.requires.append(Requirement(T.FALSE, take.where))
    monkeypatch.setattr(campaign, "load", lambda name: chapter)
    campaign.groups_of.cache_clear()
    yield
    campaign.groups_of.cache_clear()


@pytest.mark.usefixtures("stuck_blocks")
def test_what_is_vacuous_is_not_green(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prove", "--chapter", "blocks", "--only", "take/*"]) == Exit.UNKNOWN
    assert "take / can_fire   VACUOUS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--chapter", "block"], "--chapter: unknown chapter 'block', expected one of keys, "),
        (["--solver", "vampire"], "--solver: unknown solver 'vampire', expected z3 or cvc5"),
        (["--solver", ","], "--solver: no solver, expected z3 or cvc5"),
        (["--only", "no/such"], "--only: no obligation is called 'no/such', expected EVENT/INVARIANT"),
        (["--only", "evict/entry_hold"], "'evict/entry_hold' (perhaps evict/entry_held"),
        (["--only", "blocks.tak/held_usable"], "'blocks.tak/held_usable' (perhaps blocks.take/held_usable"),
        (["--only", "evict/entry_held", "--only", "no/such"], "no obligation is called 'no/such'"),
        (["--only", ""], "no obligation is called '', expected"),
    ],
)
def test_bad_usage(args: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prove", *args]) == Exit.BAD_INPUT
    assert line in capsys.readouterr().err


def test_an_interrupted_run_shows_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = campaign.prove_units

    def some(work: list[Unit], *rest: object) -> Iterator[tuple[int, list[Result]]]:
        yield from whole(work[:2], *rest)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "prove_units", some)
    file = tmp_path / "r.json"
    assert run(["prove", "--chapter", "blocks", "--json", str(file)]) == INTERRUPTED
    assert "interrupted; what follows is what was done until then" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert result["complete"] is False and result["exit"] == INTERRUPTED and result["obligations"]


def test_a_process_that_died_is_no_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(campaign, "_prove_unit", dying)
    assert run(["prove", "--chapter", "blocks", "--jobs", "2"]) == INTERNAL_ERROR
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and err.startswith("kvspec: error: a worker process died")


def test_several_processes_say_the_same(tmp_path: Path) -> None:
    verdicts = []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.json"
        assert run(["prove", "--chapter", "blocks,handles", "--jobs", jobs, "--json", str(file)]) == Exit.HOLDS
        found = json.loads(file.read_text())["obligations"]
        verdicts.append([(o["id"], o["verdict"], o["scope"]) for o in found])
    assert verdicts[0] == verdicts[1]


def test_proofs_need_no_torch() -> None:
    program = (
        "import sys\nfrom kvspec.cli.main import run\n"
        "code = run(['prove', '--chapter', 'blocks'])\nassert 'torch' not in sys.modules\nsys.exit(code)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


# -- explain -----------------------------------------------------------------------------------------------------------


def test_an_invariant_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    assert run(["explain", "entry_held", "--json", str(file)]) == Exit.HOLDS
    shown = capsys.readouterr().out
    assert "∀ k ∈ Chain. k ∈ cached → cache_of(k) ∈ holders[entry[k]]" in shown
    assert "section 4.2, 4.3" in shown and "evict" in shown and re.search(r"(\d+) proved of \1,", shown)
    assert "red at     init: without cached := ∅" in shown and "first      seen broken in blocks=2," in shown
    assert json.loads(file.read_text())["entries"][0]["name"] == "prefix_cache.entry_held"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("prefix_cache.evict", ["requires   key ∉ pending", "owes", "does       cached := cached ∖ {key}"]),
        ("make_room", ["while      |free| < need ∧ idle ≠ ∅", "falls      |idle|"]),
        ("hit_is_exact", ["after      match"]),
        ("covers_itself", ["nothing to prove: it is assumed"]),
        ("blocks", ["state      free: Set[Block]", "for pools of any size"]),
    ],
)
def test_other_names_are_explained(name: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == Exit.HOLDS
    shown = capsys.readouterr().out
    assert all(word in shown for word in words), shown


def test_a_name_that_is_nearly_right_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "entry_hold"]) == Exit.BAD_INPUT
    assert "perhaps entry_held" in capsys.readouterr().err
