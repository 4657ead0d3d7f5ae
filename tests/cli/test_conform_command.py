"""``kvspec conform``: what it prints, saves and returns."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest

from kvspec.cli import conform_command
from kvspec.cli.main import run
from kvspec.cli.output import Exit
from kvspec.model.conform import ConformOptions, ConformReport, conform
from kvspec.model.conformance import Form, PoolConfig, Target
from kvspec.model.generator import Kind
from kvspec.model.reference import ModelTarget, model_target
from kvspec.model.reporting.evidence import COUNTERS, EVIDENCE
from kvspec.model.reporting.text import scenario_text, told
from kvspec.model.scenario import parse_scenario

FAULTY = """
from kvspec.model.conformance import Capability
from kvspec.model.reference import ModelPoolTarget, ModelTarget

class Forgets(ModelTarget):
    def _copy(self, seq, index):
        super()._copy(seq, index)
        self._cells[self._pool.block(seq, index)] = 0

class Blind(ModelTarget):
    def __init__(self, config):
        super().__init__(config, capabilities=frozenset({Capability.FREE_COUNT}))

class Odd(ModelTarget):
    def release(self, handle):
        if handle in self._handles:
            super().release(handle)

class NeedsSixteen(ModelTarget):
    def __init__(self, config):
        if config.block_size % 16:
            raise ValueError("block size")
        super().__init__(config)

class Pool(ModelPoolTarget):
    capabilities = frozenset({Capability.POOL})
    rank = single_block = None

class Nothing:
    def __init__(self, config):
        pass

class Partial:
    capabilities = frozenset()
    hit_limit = "all"
    def __init__(self, config):
        pass

five = 5
"""


@pytest.fixture(autouse=True)
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of targets; the current one."""
    (tmp_path / "workshop.py").write_text(FAULTY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "workshop", raising=False)
    return tmp_path


@pytest.mark.parametrize("target", ["torch", "model"])
def test_our_own_targets_hold(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", target, "--operations", "1500", "--seed", "4"]) == Exit.HOLDS
    out = capsys.readouterr().out
    assert out.startswith(f"{target}: 1,5") and "seed 4" in out
    assert "sampled" in out and "violated" not in out
    assert not Path("conform-failures").exists()


@pytest.mark.parametrize("kind", ["valid", "wild"])
def test_kinds_and_time(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", "model", "--seconds", "0.2", "--kind", kind]) == Exit.HOLDS
    assert f", {kind}, " in capsys.readouterr().out


def test_a_violation_is_shown_saved_and_can_be_run_again(workshop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["conform", "workshop:Forgets", "--json", "o.json", "--junit", "o.xml"]
    assert run(command) == Exit.VIOLATED
    out = capsys.readouterr().out
    saved = Path("conform-failures/workshop_Forgets.content.content.kv")
    assert "VIOLATED content/content by operation" in out
    assert "before  free" in out and "after   free" in out and "none can be taken out" in out
    assert f"run it again: kvspec conform workshop:Forgets --replay {saved}" in out
    text = saved.read_text()
    assert text.startswith("# workshop:Forgets: content/content at the last operation")
    assert "conform workshop:Forgets --seed 0" in text and str(workshop) not in text

    assert run(["conform", "workshop:Forgets", "--replay", str(saved)]) == Exit.VIOLATED
    assert "content/content: token 0" in capsys.readouterr().out
    assert run(["conform", "model", "--replay", str(saved), "--junit", "r.xml", "--json", "r.json"]) == Exit.HOLDS
    assert json.loads(Path("r.json").read_text())["result"]["verdict"] == "passed"
    assert run(["run", str(saved), "--target", "workshop:Forgets"]) == Exit.VIOLATED


GIVEN = [
    ["--seed", "3", "--operations", "900", "--kind", "wild", "--blocks", "5", "--block-size", "3", "--threads", "2"],
    ["--seconds", "1.5", "--form", "managers", "--no-cache", "--sanitizer"],
    ["--ranks", "2", "--single", "3", "--slots", "4", "--interval", "6", "--trim", "deepest"],
    ["--host-blocks", "4"],
    ["--pages", "4", "--page-size", "3"],
    ["--group", "6,2,4", "--group", "9,3"],
    ["--variant", "sliding", "--batch", "8", "--running", "2", "--window", "3"],
    ["--minimum", "hits=0", "--minimum", "copies failed=0", "--known", "known.toml"],
]


@pytest.mark.parametrize("given", GIVEN, ids=" ".join)
def test_the_command_that_is_saved_asks_for_the_same(given: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ConformOptions] = []
    Path("known.toml").write_text("version = 1\n")

    def note(make_target: object, options: ConformOptions, **others: object) -> ConformReport:
        asked.append(options)
        return conform(ModelTarget, ConformOptions(operations=1))

    monkeypatch.setattr(conform_command, "drive", note)
    assert run(["conform", "model", *given]) == Exit.HOLDS
    line = conform_command.command_line(["model"], asked[0])
    assert set(given) <= set(shlex.split(line))
    assert run(shlex.split(line)[1:]) == Exit.HOLDS
    assert asked[0] == asked[1]


def test_every_option_of_a_run_is_in_the_command_that_is_saved() -> None:
    """But those that `kvspec conform` does not take."""
    inside = {"every", "shrink_seconds", "patience"}
    assert conform_command._OPTION_OF.keys() == {*ConformOptions.__struct_fields__} - inside
    assert set(conform_command._OPTION_OF.values()) == {word for given in GIVEN for word in given if word[:2] == "--"}


def test_the_command_that_is_saved_finds_the_same_again() -> None:
    given = ["--form", "managers", "--kind", "valid", "--blocks", "5", "--block-size", "2", "--operations", "4000"]
    assert run(["conform", "workshop:Forgets", *given]) == Exit.VIOLATED
    (saved,) = Path("conform-failures").iterdir()
    found = re.search(r"^# found by kvspec (.*)$", saved.read_text(), re.MULTILINE)
    assert found is not None
    assert run([*shlex.split(found[1]), "--save", "again"]) == Exit.VIOLATED
    assert (Path("again") / saved.name).read_text() == saved.read_text()


@pytest.mark.parametrize("what", [*(e.unit for e in EVIDENCE.values()), *COUNTERS.values(), "families"])
def test_one_is_told_in_the_singular(what: str) -> None:
    behind = ("drained", "single", "host", "block ")
    nouns = [part.split()[: 1 + part.startswith(behind)][-1] for part in re.split(", | or ", what)]
    one = told(1, what)
    assert not [noun for noun in nouns if re.search(rf"\b{noun}\b", one)]
    assert told(0, what) == f"0 {what}" and told(2, what) == f"2 {what}"
    assert len(one.split()) == 1 + len(what.split())


def test_a_short_run_is_told_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", "model", "--form", "pools", "--operations", "1", "--block-size", "1"]) == Exit.HOLDS
    out = capsys.readouterr().out
    assert " in 1 pool, " in out and "blocks of up to 1 token, " in out and "1 drained pool\n" in out
    assert not re.search(r"\b1 \w+s\b", out)


def test_result_files_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", "workshop:Forgets", "--json", "o.json", "--junit", "o.xml"]) == Exit.VIOLATED
    body = json.loads(Path("o.json").read_text())
    assert body["format"] == "kvspec/conform" and body["exit"] == 1 and body["complete"]
    assert body["report"]["violation"]["family"] == "content"
    assert body["scenario"].startswith("pool ") and body["saved"].startswith("conform-failures")
    verdicts = {f["family"]: f["verdict"] for f in body["report"]["families"]}
    assert verdicts["content"] == "violated" and verdicts["holders"] == "holds"
    suite = Xml.parse("o.xml").getroot()[0]
    assert suite.attrib["failures"] == "1" and suite.attrib["tests"] == str(len(verdicts))
    failure = suite.find("testcase/failure")
    assert failure is not None and body["scenario"].strip() in (failure.text or "")


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("found")
    folder.mkdir()
    mine = folder / "workshop_Forgets.content.content.kv"
    mine.write_text("mine")
    for _ in range(2):  # the same failure is the same file
        assert run(["conform", "workshop:Forgets", "--save", "found"]) == Exit.VIOLATED
    assert mine.read_text() == "mine"
    assert sorted(p.name for p in folder.iterdir()) == [
        "workshop_Forgets.content.content.2.kv",
        "workshop_Forgets.content.content.kv",
    ]


def test_what_a_target_cannot_show_is_not_observed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", "workshop:Blind", "--operations", "1500"]) == Exit.HOLDS
    out = capsys.readouterr().out
    assert "holders               not observed  the target lacks ref_counts" in out
    assert "content               not observed  the target lacks contents" in out


def test_calls_that_must_fail_say_so_in_the_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", "workshop:Odd", "--kind", "wild"]) == Exit.VIOLATED
    saved = next(Path("conform-failures").iterdir())
    assert "misuse" in saved.name
    assert run(["conform", "workshop:Odd", "--replay", str(saved)]) == Exit.VIOLATED


def test_a_run_with_errors_in_it_reads_back() -> None:
    class Late(ModelTarget):
        errors = 0

        def truncate(self, seq: str, num_tokens: int) -> None:
            try:
                super().truncate(seq, num_tokens)
            except Exception:
                self.errors += 1
                raise

        def used_count(self) -> int:
            return super().used_count() + (self.errors > 1)

    found = conform(Late, ConformOptions(operations=5000)).violation
    assert found is not None and found.errors.count(True) == 1
    text = scenario_text(found)
    assert "expect error" in text
    assert parse_scenario(text).config == found.config


CALLS = [
    (Form.MANAGERS, "start"), (Form.MANAGERS, "append"), (Form.MANAGERS, "hold"), (Form.POOLS, "evict"),
    (Form.POOLS, "save_finish"), (Form.POOLS, "restore_finish"), (Form.TIERS, "transfer_finish"),
    (Form.TIERS, "begin_prefetch"), (Form.PAGES, "fail_mappings"), (Form.COMPOSITES, "accept"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "verb"), CALLS)
def test_the_call_that_violates_is_told_as_in_its_scenario(form: Form, verb: str) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    def make(config: PoolConfig) -> Target:
        target = model_target(config)
        setattr(target, verb, fail)
        return target

    found = conform(make, ConformOptions(form=form, kind=Kind.VALID)).violation
    assert found is not None and found.rule == "crash"
    assert scenario_text(found).splitlines()[-1] == found.operation


def test_a_pool_that_suits_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", "workshop:NeedsSixteen"]) == Exit.BAD_INPUT
    assert "cannot be made with" in capsys.readouterr().err
    command = ["conform", "workshop:NeedsSixteen", "--block-size", "16", "--blocks", "6", "--operations", "800"]
    assert run(command) == Exit.HOLDS


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nothing"], "'nothing' is no target"),
        (["nothing:"], "'nothing:' is no target"),
        (["no_such_module:Thing"], "No module named 'no_such_module'"),
        (["workshop:Absent"], "has no Absent"),
        (["workshop:five"], "cannot be called"),
        (["workshop:Nothing"], "lacks abort(), allocate(), "),
        (["workshop:Partial"], "lacks abort(), allocate(), "),
        (["workshop:Pool"], "workshop:Pool lacks rank(), single_block()"),
        (["json:dumps"], "cannot be made with"),
        (["model", "--operations", "0"], "--operations"),
        (["model", "--seconds", "0"], "seconds: 0.0, expected more than 0"),
        (["model", "--kind", "mad"], "'mad'"),
        (["model", "--slots", "1"], "--slots: 1, expected 0, or at least 2 (slot 0 is padding)"),
        (["model", "--ranks", "1000000000"], "--ranks: 1000000000, expected at most 1024"),
        (["model", "--slots", "1000000000"], "a pool of 1000000004 cells"),
        (["model", "--single", "1000000000"], "expected at most 1048576 on all ranks together"),
        (["model", "--ranks", "1000", "--blocks", "1000", "--block-size", "2"], "a pool of 2002000 cells"),
        (["model", "--blocks", "100000000"], "a pool of 100000000 cells"),
        (["model", "--group", "6"], "--group: '6', expected BLOCKS,TOKENS or BLOCKS,TOKENS,WINDOW"),
        (["model", "--group", "6,2,x"], "--group: '6,2,x', expected"),
        (["model", "--group", "1,2"], "--group: '1,2' has num_blocks: 1, expected at least 2"),
        (["model", "--group", "6,2,0"], "--group: '6,2,0' has window: 0, expected at least 1"),
        (["model", "--group", "6,2", "--blocks", "4"], "--group: with num_blocks or block_size, expected either"),
        (["model", "--group", "6,2", "--form", "pools"], "--group: 1 groups, expected none where only pools"),
        (["model", "--group", "99999,99"], "a pool of 9899901 cells"),
        (["model", "--form", "managers", "--ranks", "2"], "--ranks: 2, expected none where only managers are driven"),
        (["model", "--form", "managers", "--trim", "deepest"], "--trim: deepest, expected none"),
        (["model", "--pages", "1", "--page-size", "1", "--block-size", "3"], "1 pages of 1 tokens, expected room for"),
        (["model", "--pages", "99999999", "--page-size", "99"], "a pool of 9899999903 cells"),
        (["model", "--pages", "4", "--ranks", "2"], "--pages, --ranks: given together"),
        (["model", "--form", "managers", "--page-size", "2"], "--page-size: 2, expected none where only managers"),
        (["model", "--threads", "65"], "--threads: 65, expected at most 64"),
        (["model", "--host-blocks", "4", "--no-cache"], "--host-blocks, --no-cache: a host tier without a prefix"),
        (["model", "--form", "tiers", "--no-cache"], "--form tiers, --no-cache: a host tier without a prefix cache"),
        (["workshop:NeedsSixteen", "--form", "pools"], "as a pool of ranks: it cannot be made with 4 blocks of 2: "),
        (["model", "--blocks", "1"], "--blocks"),
        (["model", "--replay", "absent.kv"], "absent.kv"),
        (["model", "--replay", "workshop.py"], "workshop.py:2:1"),
        (["model", "--save", "workshop.py"], "'workshop.py' is a file"),
        (["model", "--json", "workshop.py"], "was not made by kvspec"),
    ],
)
def test_bad_input_is_one_line(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", *args]) == Exit.BAD_INPUT
    caught = capsys.readouterr()
    assert caught.out == "" and caught.err.count("\n") == 1
    assert caught.err.startswith("kvspec: error: ") and words in caught.err


COUNTED = """
from kvspec.model.reference import ModelTarget

class Counted(ModelTarget):
    made = 0

    def __init__(self, config):
        super().__init__(config)
        Counted.made += 1
        if Counted.made == 10:
            print("go", flush=True)
"""


def test_an_interruption_leaves_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "counted.py").write_text(COUNTED)
    program = "import sys; from kvspec.cli.main import run; sys.exit(run(sys.argv[1:]))"
    args = ["conform", "counted:Counted", "--form", "managers", "--seconds", "600", "--json", "o.json"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *args], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "(interrupted)" in out and "Traceback" not in err
    body = json.loads((tmp_path / "o.json").read_text())
    assert not body["complete"] and body["report"]["interrupted"] and body["report"]["operations"] > 0


def test_the_groups_of_composites_can_be_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--group", "6,2,4", "--group", "9,3", "--operations", "1500", "--json", str(report)]
    assert run(["conform", "model", *options]) == Exit.HOLDS
    shown = capsys.readouterr().out
    assert "pools of up to 9 blocks, blocks of up to 3 tokens" in shown
    assert " blocks behind a window given back\n" in shown and "rank " not in shown
    families = {f["family"]: f["verdict"] for f in json.loads(report.read_bytes())["report"]["families"]}
    assert families["window"] == families["units"] == "holds" and "key" not in families


@pytest.mark.parametrize("target", ["torch", "model", "composite"])
def test_composites_are_driven_by_name(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--form", "composites", "--blocks", "4", "--block-size", "3", "--operations", "300"]
    assert run(["conform", target, *options]) == Exit.HOLDS
    assert "pools of up to 4 blocks, blocks of up to 3 tokens" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["torch", "xtensor", "model"])
def test_pages_can_be_asked_for(target: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    args = ["--pages", "4", "--page-size", "3", "--operations", "600", "--threads", "2", "--json", str(report)]
    assert run(["conform", target, *args]) == Exit.HOLDS
    assert "\n  pages                 holds" in capsys.readouterr().out
    options = json.loads(report.read_bytes())["report"]["options"]
    assert (options["form"], options["num_pages"], options["page_size"], options["num_threads"]) == ("pages", 4, 3, 2)


def test_the_concurrent_target_is_driven_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conform", "concurrent", "--threads", "3", "--operations", "600"]) == Exit.HOLDS
    assert capsys.readouterr().out.startswith("concurrent: 6")
