"""What docs/conform.md says: its example holds, and its tables are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvspec.cli.main import run
from kvspec.cli.output import Exit
from kvspec.model import acceptor
from kvspec.model.conformance import METHODS_OF
from kvspec.model.promises import CHAPTER, CHECKS, POOL_STEP_FAMILIES, PROMISES, STEP_FAMILIES, Family
from kvspec.spec import load
from kvspec.spec.language import Chapter
from kvspec.spec.pool import Pool

DOCS = (Path(__file__).parent.parent.parent / "docs" / "conform.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)[0]


def test_the_example_is_short_and_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(EXAMPLE.splitlines()) < 100
    (tmp_path / "plain.py").write_text(EXAMPLE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = re.findall(r"\$ kvspec (conform plain.*)", DOCS)[0]
    assert run(command.split()) == Exit.HOLDS
    assert "\nholds: 8 families, 7 not observed (sampled)\n" in capsys.readouterr().out


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
    assert set(STEP_FAMILIES) <= set(load(CHAPTER).event_names)
    assert set(POOL_STEP_FAMILIES) <= set(Chapter(Pool).event_names)


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
    ],
)
def test_rules_are_explained(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "--no-prove", name]) == Exit.HOLDS
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(("name", "words"), [("content/contant", "perhaps content"), ("contents/content", "one of")])
def test_what_is_no_rule_is_refused(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", name]) == Exit.BAD_INPUT
    assert words in capsys.readouterr().err
