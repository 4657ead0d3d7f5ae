"""What docs/conform.md says: its examples hold, and its tables are those of the code."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from kvspec.cli.main import run
from kvspec.cli.output import Exit
from kvspec.cli.targets import OWN
from kvspec.model import acceptor, engines
from kvspec.model.conformance import METHODS_OF, CompositeTarget, Form, PoolTarget, Target
from kvspec.model.promises import CHECKS, PROMISES, RULES, STEPS_OF, Family
from kvspec.model.remote.protocol import methods_of
from kvspec.model.reporting.evidence import COUNTERS
from kvspec.model.reporting.known import Finding, read_known
from kvspec.spec import CHAPTERS, load

DOCS = (Path(__file__).parent.parent.parent / "docs" / "conform.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
COMMANDS = re.findall(r"\$ kvspec (conform plain:.*)", DOCS)
SEEN = (
    "8 families, 7 not observed", "11 families, 7 not observed", "10 families, 4 not observed",
    "12 families, 5 not observed", "9 families, 7 not observed",
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the examples of the page go, all in one file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "plain", raising=False)
    return tmp_path / "plain.py"


@pytest.mark.parametrize(
    ("command", "seen"), list(zip(COMMANDS, SEEN, strict=True)), ids=("manager", "pool", "composite", "tiers", "pages")
)
def test_the_examples_hold(file: Path, command: str, seen: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("\n\n".join(EXAMPLES), encoding="utf-8")
    assert run(command.split()) == Exit.HOLDS
    assert f"\nholds: {seen} (sampled)\n" in capsys.readouterr().out


def plant(file: Path, line: str, instead: str) -> None:
    """The examples with a mistake in one line."""
    text = "\n\n".join(EXAMPLES)
    assert text.count(line) == 1
    file.write_text(text.replace(line, instead), encoding="utf-8")


def test_the_first_example_has_fewer_than_eighty_lines_of_code() -> None:
    assert sum(1 for line in EXAMPLES[0].splitlines() if line.strip()) < 80


def test_what_is_looked_at_is_explained() -> None:
    said = DOCS[DOCS.index("What is looked at is compared") : DOCS.index("This one has no prefix cache")]
    methods = methods_of(Form.MANAGERS)
    looks = {name for name in vars(Target) if name in methods and methods[name].looks}
    first = re.findall(r"^- (`.*?`): ", said, re.MULTILINE)
    assert set(re.findall(r"`(\w+)\(\)`", "".join(first))) == looks


def test_the_examples_are_short() -> None:
    for example, most in zip(EXAMPLES, (100, 130, 90, 200, 120), strict=True):
        assert len(example.splitlines()) < most


@pytest.mark.parametrize(
    ("line", "instead", "rule"),
    [
        ("advance(self.states.get(seq, 0), tags)", "0", "state_position/"),
        ("max(ranks,", "min(ranks,", "progress/"),
        ("return self.ranks.get(seq)\n", "return self.ranks.get(seq) if seq in self.units else None\n", "rank/"),
        ("self.ranks.get(seq, max(", "(max(", "no_reuse_while_used/"),
    ],
)
def test_a_mistake_in_the_pool_is_found(
    file: Path, line: str, instead: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(file, line, instead)
    assert run(COMMANDS[1].split()) == Exit.VIOLATED
    assert f"VIOLATED {rule}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "instead", "rule"),
    [
        ("- kind.window + 1, 0)", "- kind.window + 2, 0)", "window/slide"),
        ("        self._slide(seq)\n", "", "window/refused_in_window"),
        ("table[max(places, gone) :]", "table[places:]", "partition/"),
        ("any(many > len(free)", "all(many > len(free)", "misuse/crash"),
        ("        self.accepted[seq] = 0\n\n    def released", "\n    def released", "misuse/"),
    ],
)
def test_a_mistake_in_the_composite_is_found(
    file: Path, line: str, instead: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(file, line, instead)
    assert run(COMMANDS[2].split()) == Exit.VIOLATED
    assert f"VIOLATED {rule}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "instead", "rule"),
    [
        ("if ok and key is not None:", "if key is not None:", "tiers/host_visible"),
        ("        self.leaving.clear()\n", "", "tiers/host_visible"),
        ("self.loaded[copy.seq].add(copy.index)", "self.computed[copy.seq] += self.size", "tiers/load_counted"),
        ("        self.device.drop(copy.device_block)\n", "", "partition/"),
        ("if copy.seq == seq and copy.started:", "if False:", "tiers/copy_kept"),
        ("if any(len(tags) and self._is_loading(seq) for seq, tags in batch):", "if False:", "misuse/error_expected"),
        ("        self.device.refs.update(hits)", "        self.device.refs", "no_reuse_while_used/"),
        ("if seq in self.fresh else 0)", "if seq else 0)", "tiers/offload_published"),
    ],
)
def test_a_mistake_in_the_host_tier_is_found(
    file: Path, line: str, instead: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(file, line, instead)
    assert run(COMMANDS[3].split()) == Exit.VIOLATED
    assert f"VIOLATED {rule}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "instead", "rule"),
    [
        ("self.mapped - self._busy() - wanted, len", "self.mapped - wanted, len", "pages/unmap_begin"),
        ("for block in sorted(self.free):", "for block in sorted(self.free)[:num_blocks]:", "progress/"),
        ("(block + 1) * self.size - 1) for", "block * self.size) for", "pages/take"),
        ("if not failed_now:", "if True:", "pages/take"),
        ("            failed |= failed_now\n", "            return False\n", "progress/"),
        ("return self._unmap(", "return num_pages + self._unmap(", "pages/reclaimed_count"),
    ],
)
def test_a_mistake_in_the_pages_is_found(
    file: Path, line: str, instead: str, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(file, line, instead)
    assert run(COMMANDS[4].split()) == Exit.VIOLATED
    assert f"VIOLATED {rule}" in capsys.readouterr().out


def test_the_arguments_of_groups_are_those_of_the_protocol() -> None:
    said = DOCS[DOCS.index("- A table for each group of") : DOCS.index("take one more argument, `group=0`")]
    taking = {n for n, f in inspect.getmembers(CompositeTarget, inspect.isfunction) if group_of(f) == 0}
    assert set(re.findall(r"`(\w+)\(\)`", said)) == taking


def group_of(method: Any) -> Any:
    """The default of its argument `group`; None if it has no such argument."""
    group = inspect.signature(method).parameters.get("group")
    return None if group is None else group.default


def test_the_arguments_of_ranks_are_those_of_the_protocol() -> None:
    said = DOCS[DOCS.index("- Ids and keys are those of a rank.") : DOCS.index("One that does not exist")]
    optional, always = said.split("`rank=0`")
    for text, default in ((optional, 0), (always, inspect.Parameter.empty)):
        taking = {n for n, f in inspect.getmembers(PoolTarget, inspect.isfunction) if rank_of(f) is default}
        assert set(re.findall(r"`(\w+)\(\)`", text)) == taking


def rank_of(method: Any) -> Any:
    """The default of its argument `rank`; None if it has no such argument."""
    rank = inspect.signature(method).parameters.get("rank")
    return None if rank is None else rank.default


def test_the_tables_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"\| `([a-z_]+)` \| ([^`|]+) \|\n", DOCS))
    assert rows == {f.value: PROMISES[f] for f in Family}
    for capability, methods in METHODS_OF.items():
        assert f"| `{capability}` | {', '.join(f'`{m}()`' for m in methods)} |" in DOCS


def test_the_report_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    (command, shown), *more = re.findall(r"\$ kvspec (conform model [^\n]*)\n(.*?)```", DOCS, re.DOTALL)
    assert not more and run(command.split()) == Exit.HOLDS
    printed = capsys.readouterr().out.splitlines()
    lines = [line for line in shown.splitlines() if line != "..."]
    assert len(lines) == 4 and [line for line in printed if line in lines] == lines


def test_every_counter_is_named() -> None:
    said = DOCS[DOCS.index("What can be asked for:") : DOCS.index("## Findings that are known")]
    named = re.findall(r"`([^`]+)`(?: \(([^)]+)\))?", said)
    assert {name: re.sub(r"\s+", " ", words) or name for name, words in named} == COUNTERS


def test_the_list_of_known_findings_can_be_read_and_its_fields_are_told(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "empty-copies.kv").write_text("pool 4 block 2\n")
    (tmp_path / "known.toml").write_text(text)
    (finding,) = read_known(tmp_path / "known.toml").findings
    fields = dict(re.findall(r"^\| `(\w+)` \| (needed)? ?\| ", DOCS, re.MULTILINE))
    needed = {f.name: "needed" * f.required for f in msgspec.structs.fields(Finding)}
    assert fields == needed and all(getattr(finding, name) for name, need in needed.items() if need)
    kinds = next(line for line in DOCS.splitlines() if line.startswith("| `kind` "))
    assert re.findall(r"`([a-z ]+)`: ", kinds) == list(get_args(get_type_hints(Finding)["kind"]))


def test_every_rule_has_a_sentence() -> None:
    folders = [Path(package.__file__).parent for package in (acceptor, engines)]
    source = "".join(file.read_text(encoding="utf-8") for folder in folders for file in sorted(folder.glob("*.py")))
    named = set(re.findall(r'Family\.[A-Z_]+, "(\w+)"|_unchanged\("(\w+)"\)', source))
    assert {a or b for a, b in named} == set(CHECKS)
    assert sum(map(len, RULES.values())) == len(CHECKS)
    raised = set(re.findall(r'Family\.([A-Z_]+),\s*"(\w+)"', source))
    assert {(f, rule) for f, rule in raised if rule not in RULES.get(Family[f], {})} == set()
    for chapter, steps in STEPS_OF.items():
        assert set(steps) <= set(load(chapter).event_names)


def test_our_own_targets_are_named() -> None:
    said = DOCS[DOCS.index("Our own targets have names.") : DOCS.index("is the executable model itself")]
    assert set(re.findall(r"`(\w+)`", said)) == set(OWN)


@pytest.mark.parametrize("family", Family)
def test_each_family_is_explained(family: Family, capsys: pytest.CaptureFixture[str]) -> None:
    """With all its rules, each of which can be asked for; what belongs to another family is no rule of it."""
    assert run(["explain", family.value]) == Exit.HOLDS
    shown = capsys.readouterr().out
    assert PROMISES[family] in shown
    steps = {event for events in STEPS_OF.values() for event, broken in events.items() if broken is family}
    rules = steps | set(RULES.get(family, ()))
    assert set(re.findall(r"^  (?:rule)? +(\w+): ", shown, re.MULTILINE)) == rules
    for rule in sorted(rules):
        assert run(["explain", "--no-prove", f"{family}/{rule}"]) == Exit.HOLDS
        said = capsys.readouterr().out
        assert said.startswith(f"{family}/{rule}   rule\n") and "\n  rule       " in said
        events = [f"{chapter}.{rule}" for chapter, steps in STEPS_OF.items() if steps.get(rule) is family]
        assert all(f"{event}   event\n" in said for event in events)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiers/load_started", "rule       what is required of hierarchy.load_started"),
        ("invariant/entry_held", "prefix_cache.entry_held   invariant"),
        ("content/content", CHECKS["content"]),
        ("exclusive_writer/write", "sequences.write   event"),
        ("exclusive_writer/copy_on_write", "sequences.copy_on_write   event"),
        ("no_reuse_while_used/copy_on_write", "pool.copy_on_write   event"),
        ("holders/give_back", "composite.give_back   event"),
        ("window/slide", "composite.slide   event"),
    ],
)
def test_rules_are_explained(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--no-prove", name]) == Exit.HOLDS
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("content/contant", "no rule 'contant' in family content, expected perhaps content\n"),
        ("contents/content", "one of"),
        ("content/free_count", "perhaps partition/free_count\n"),
        ("tiers/released", "a rule that kvspec explain tiers lists"),
        ("tiers/load_start", "perhaps load_started or load_target or offload_started\n"),
        ("host_visible", "perhaps tiers/host_visible\n"),
        ("invariant/write", "no rule 'write' in family invariant"),
        ("tier", "perhaps tiers"),
    ],
)
def test_what_is_no_rule_is_refused(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == Exit.BAD_INPUT
    assert words in capsys.readouterr().err


def test_without_a_name_it_is_listed_what_can_be_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    assert run(["explain", "--json", str(file)]) == Exit.HOLDS
    shown = capsys.readouterr().out
    assert re.findall(r"^  (\w+)  ", shown, re.MULTILINE) == [*CHAPTERS, *Family]
    assert [entry["name"] for entry in json.loads(file.read_text())["entries"]] == [*CHAPTERS, *Family]
