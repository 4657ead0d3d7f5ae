"""``kvspec explore`` from the outside: what is printed and written, and how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvspec.cli import explore_command
from kvspec.cli.main import INTERRUPTED, run
from kvspec.cli.output import Exit
from kvspec.model.exploring.outcome import States
from kvspec.model.exploring.scopes import DEFAULTS
from kvspec.proofs.manifest.scopes import SCOPES
from kvspec.spec import load
from kvspec.spec.language import Chapter
from kvspec.spec.language.traced import Site


def explore(*args: str) -> int:
    return run(["explore", *args])


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], Chapter]:
    """A chapter with the first statement of this kind left out of an event."""

    def leave_out(name: str, event: str, kind: str) -> Chapter:
        first = next(s for s in load(name).event(event).sites if s.kind == kind)

        def edit(site: Site) -> Any:
            return None if site.number == first.number else site.terms

        chapter = load(name).with_event(event, edit)
        monkeypatch.setattr(explore_command, "load", lambda _: chapter)
        return chapter

    return leave_out


def test_a_chapter_that_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert explore("--chapter", "blocks") == Exit.HOLDS
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("blocks: Each usable block is free or held")
    assert lines[1].split() == ["scope", "blocks=4,holders=2"]
    assert any(line.startswith("met          6 of 6 events") for line in lines)
    assert re.fullmatch(r"holds, exhaustively in this scope: 13 states, 169 steps, \d+\.\d s", lines[-1])


@pytest.mark.parametrize("states", States)
def test_states_count_as_one_as_wanted(states: States, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    args = ["--chapter", "handles", "--scope", "blocks=3,handles=2", "--states", states.value, "--json", str(file)]
    assert explore(*args) == Exit.HOLDS
    found = json.loads(file.read_text())
    assert (found["format"], found["exit"], found["complete"]) == ("kvspec/explore", 0, True)
    assert (found["states"], found["exhaustive"], found["violation"]) == (states.value, True, None)
    assert found["scope"] == "blocks=3,handles=2" and found["missing"] == []
    assert sum(found["levels"]) == found["distinct"]
    assert f"{found['distinct']:,} {explore_command._WHAT[states]}" in capsys.readouterr().out


def test_a_pool_that_is_large_enough_covers_every_larger_one(capsys: pytest.CaptureFixture[str]) -> None:
    for blocks, covers in ((4, False), (5, True)):
        assert explore("--chapter", "handles", "--scope", f"blocks={blocks},handles=3") == Exit.HOLDS
        assert capsys.readouterr().out.splitlines()[-1].startswith("covers every larger pool") == covers


def test_a_violation_is_shown_with_its_shortest_run(
    broken: Callable[[str, str, str], Chapter], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken("blocks", "drop_last", "require")
    file = tmp_path / "r.json"
    assert explore("--chapter", "blocks", "--json", str(file)) == Exit.VIOLATED
    lines = capsys.readouterr().out.splitlines()
    shown = next(n for n, line in enumerate(lines) if line.startswith("VIOLATED"))
    assert lines[shown + 1] == "  a shortest run:"
    assert re.fullmatch(r"     1  drop_last block=\d holder=holder\d", lines[shown + 2])
    assert re.fullmatch(r"violated: \w+, after 1 step, \d+\.\d s", lines[-1])
    violation = json.loads(file.read_text())["violation"]
    assert [s["event"] for s in violation["run"]] == ["drop_last"]
    assert lines[-1].startswith(f"violated: {violation['name']}")


def test_a_violation_is_found_by_walks_too(
    broken: Callable[[str, str, str], Chapter], capsys: pytest.CaptureFixture[str]
) -> None:
    broken("blocks", "take", "change")
    assert explore("--chapter", "blocks", "--walks", "64", "--steps", "10") == Exit.VIOLATED
    shown = capsys.readouterr().out
    assert "a run in which no step can be left out:\n     1  take block=" in shown
    assert shown.splitlines()[-1].startswith("violated: free_iff_unheld, after 1 step")


def test_walks_are_sampled(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    args = ["--chapter", "blocks", "--walks", "128", "--steps", "60", "--seed", "3", "--json", str(file)]
    assert explore(*args) == Exit.HOLDS
    assert re.fullmatch(r"holds \(sampled: 128 walks, \d+\.\d s\)", capsys.readouterr().out.splitlines()[-1])
    found = json.loads(file.read_text())
    assert (found["walks"], found["steps"], found["seed"], found["taken"]) == (128, 60, 3, 128 * 60)


def test_a_budget_that_is_spent_settles_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert explore("--chapter", "blocks", "--max-states", "5") == Exit.UNKNOWN
    assert capsys.readouterr().out.splitlines()[-1].startswith("unknown: stopped after ")


def test_what_is_never_met_is_vacuous(capsys: pytest.CaptureFixture[str]) -> None:
    assert explore("--chapter", "blocks", "--scope", "holders=1") == Exit.UNKNOWN
    lines = capsys.readouterr().out.splitlines()
    assert "  never      event share" in lines
    assert "  never      witness a_shared_block" in lines
    assert lines[-1].startswith("vacuous: ")


def test_where_something_is_never_met_the_scopes_are_named_in_which_everything_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "r.json"
    missing: set[str] | None = None
    assert explore("--chapter", "usage", "--scope", SCOPES["usage"][0]) == Exit.UNKNOWN
    lines = capsys.readouterr().out.splitlines()
    named = lines[lines.index("everything is met in the scopes of the manifest together, with --scope") + 1].split("; ")
    for scope in named:
        explore("--chapter", "usage", "--scope", scope.strip(), "--json", str(file), "--force")
        never = set(json.loads(file.read_text())["missing"])
        missing = never if missing is None else missing & never
    assert missing == set()


@pytest.mark.parametrize("more", [[], ["--walks", "64", "--steps", "10"]], ids=["all", "walks"])
def test_the_default_scope_is_named_in_words(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert explore("--chapter", "blocks", "--scope", "holders=1", *more) == Exit.UNKNOWN
    shown = "; ".join(scope or DEFAULTS["blocks"] for scope in SCOPES["blocks"])
    assert capsys.readouterr().out.splitlines()[-2] == f"  {shown}"


def test_scopes_are_named_only_where_they_are_the_reason(
    broken: Callable[[str, str, str], Chapter], capsys: pytest.CaptureFixture[str]
) -> None:
    assert explore("--chapter", "blocks") == Exit.HOLDS
    assert explore("--chapter", "blocks", "--max-states", "5") == Exit.UNKNOWN
    broken("blocks", "drop_last", "require")
    assert explore("--chapter", "blocks") == Exit.VIOLATED
    assert "everything is met" not in capsys.readouterr().out


def test_an_interruption_says_how_far_it_got(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from kvspec.model import batched

    def stop(*args: Any, **options: Any) -> Any:
        options["progress"](40, 100, 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(batched, "Explorer", stop)
    file = tmp_path / "r.json"
    assert explore("--chapter", "blocks", "--json", str(file)) == INTERRUPTED
    assert "interrupted after 40 states, 100 steps, depth 3" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert (result["complete"], result["exit"]) == (False, INTERRUPTED)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--chapter", "block"], "--chapter: unknown chapter 'block', expected one of keys, blocks"),
        (["--chapter", "slots"], "slots: the chapter has no state"),
        (["--chapter", "blocks", "--scope", "blocks=0"], "scope: blocks=0, expected a number of blocks"),
        (["--chapter", "blocks", "--scope", "pins=1"], "scope: chapter blocks has no pins, expected one of blocks"),
        (["--chapter", "blocks", "--scope", "holders=13"], "--scope: event drop_all has 8192 instances"),
        (["--chapter", "handles", "--scope", "blocks=64,handles=64"], "--scope: too large a scope: 1,2"),
        (["--chapter", "sequences", "--scope", "blocks=20,seqs=6,len=6", "--walks", "9"], "--scope: too large a scope"),
        (["--chapter", "keys", "--scope", "versions=20,len=2,tokens=1.2"], "seqs=3,len=2"),
        (["--chapter", "blocks", "--walks", "1000000000000"], "explore: Invalid value for '--walks'"),
        (["--chapter", "blocks", "--walks", "9", "--seed", "9" * 26], "explore: Invalid value for '--seed'"),
        (["--chapter", "blocks", "--walks", "9", "--steps", "9" * 12], "explore: Invalid value for '--steps'"),
        (["--chapter", "blocks", "--walks", "100000", "--steps", "100000"], "--walks: 10,000,000,000 steps, expected"),
    ],
)
def test_bad_input_is_one_line(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert explore(*args) == Exit.BAD_INPUT
    said = capsys.readouterr().err
    assert said.startswith(f"kvspec: error: {message}") and said.count("\n") == 1


def test_a_device_that_is_not_there_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert explore("--chapter", "blocks", "--device", "cuda") == Exit.BAD_INPUT
    assert "there is no CUDA device" in capsys.readouterr().err
