"""What docs/conform.md says: its examples hold, and its tables are those of the code."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kvspec.cli.main import run
from kvspec.cli.output import Exit
from kvspec.cli.targets import OWN
from kvspec.model import acceptor
from kvspec.model.conformance import METHODS_OF, CompositeTarget, PoolTarget
from kvspec.model.promises import CHECKS, PROMISES, STEPS_OF, Family
from kvspec.spec import load

DOCS = (Path(__file__).parent.parent.parent / "docs" / "conform.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
COMMANDS = re.findall(r"\$ kvspec (conform plain:.*)", DOCS)
SEEN = ("8 families, 7 not observed", "11 families, 7 not observed", "10 families, 4 not observed")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the examples of the page go, all in one file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "plain", raising=False)
    return tmp_path / "plain.py"


@pytest.mark.parametrize(
    ("command", "seen"), list(zip(COMMANDS, SEEN, strict=True)), ids=("manager", "pool", "composite")
)
def test_the_examples_hold(file: Path, command: str, seen: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("\n\n".join(EXAMPLES), encoding="utf-8")
    assert run(command.split()) == Exit.HOLDS
    assert f"\nholds: {seen} (sampled)\n" in capsys.readouterr().out


def test_the_examples_are_short() -> None:
    for example, most in zip(EXAMPLES, (100, 130, 90), strict=True):
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
    text = "\n\n".join(EXAMPLES)
    assert text.count(line) == 1
    file.write_text(text.replace(line, instead), encoding="utf-8")
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
    text = "\n\n".join(EXAMPLES)
    assert text.count(line) == 1
    file.write_text(text.replace(line, instead), encoding="utf-8")
    assert run(COMMANDS[2].split()) == Exit.VIOLATED
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


def test_every_rule_has_a_sentence() -> None:
    folder = Path(acceptor.__file__).parent
    source = "".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py")))
    named = set(re.findall(r'Family\.[A-Z_]+, "(\w+)"|_unchanged\("(\w+)"\)', source))
    assert {a or b for a, b in named} == set(CHECKS)
    for chapter, steps in STEPS_OF.items():
        assert set(steps) <= set(load(chapter).event_names)


def test_our_own_targets_are_named() -> None:
    said = DOCS[DOCS.index("Our own targets have names.") : DOCS.index("is the executable model itself")]
    assert set(re.findall(r"`(\w+)`", said)) == set(OWN)


@pytest.mark.parametrize("family", Family)
def test_each_family_is_explained(family: Family, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", family.value]) == Exit.HOLDS
    assert PROMISES[family] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
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


@pytest.mark.parametrize(("name", "words"), [("content/contant", "perhaps content"), ("contents/content", "one of")])
def test_what_is_no_rule_is_refused(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == Exit.BAD_INPUT
    assert words in capsys.readouterr().err
