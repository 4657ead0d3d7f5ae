"""What docs/engines.md says: its example holds, its mistakes are found, and it speaks of all that the protocol has."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec
import pytest

from kvspec.cli.main import run
from kvspec.cli.output import Exit
from kvspec.model.engines import protocol
from kvspec.model.engines.protocol import AnyRecord, Call, EngineTarget, Layout, Shown
from kvspec.model.forms import FORMS, Form

DOCS = (Path(__file__).parents[3] / "docs" / "engines.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
(COMMAND,) = re.findall(r"\$ kvspec (conform .*)", DOCS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the example is saved."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "tiny", raising=False)
    return tmp_path


def test_the_example_holds(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.py").write_text(EXAMPLE)
    assert run([*COMMAND.split(), "--operations", "3000"]) == Exit.HOLDS
    assert "\nholds: 13 families, 4 not observed (sampled)\n" in capsys.readouterr().out


def test_the_example_can_be_a_process(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.py").write_text(EXAMPLE)
    command = f"{sys.executable} -m kvspec.model.remote {COMMAND.split()[1]}"
    assert "`python -m kvspec.model.remote tiny:Tiny`" in DOCS
    assert run(["conform", "--exec", command, "--operations", "600"]) == Exit.HOLDS
    assert "\nholds: 13 families" in capsys.readouterr().out


def test_the_example_is_short() -> None:
    assert sum(1 for line in EXAMPLE.splitlines() if line.strip()) <= 80


@pytest.mark.parametrize(
    ("line", "instead", "rule"),
    [
        ("if block not in taken}", "}", "no_reuse_while_used/take|publish_after_write/end_step"),
        ("if block not in found]", "]", "partition/free_count"),
        ("return request.context, ", "return 0, ", "map_truth/hit_content|key/equal_key"),
        ("request.tokens[: (place + 1) * self.size]", "request.tokens[place * self.size :][: self.size]", "key/"),
        ("self.free += reversed(request.table)", "self.free += request.table[1:]", "partition/free_count"),
        ("        self.keys = {}\n        self.recorder", "        self.recorder", "map_truth/reset_forgets"),
        ("(len(blocks) + 1) * self.size < request.known", "len(blocks) < 1", "map_truth/hit_l"),
        ("if wanted > len(self.free) - len(found):", "if wanted >= len(self.free) - len(found):", "progress/refused"),
        ("wanted = -(-stop // self.size)", "wanted = stop // self.size", "units/room"),
        ("range(stop // self.size)", "range(len(request.table))", "publish_after_write/"),
        ("        self.recorder.call(\"free\", request.seq)\n", "", "holders/gave_back"),
    ],
)  # fmt: skip
def test_a_mistake_is_found(line: str, instead: str, rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert EXAMPLE.count(line) == 1
    Path("tiny.py").write_text(EXAMPLE.replace(line, instead))
    assert run(COMMAND.split()) == Exit.VIOLATED
    assert re.search(f"VIOLATED ({rule})", capsys.readouterr().out)


def test_the_page_speaks_of_all_that_there_is() -> None:
    records: tuple[type[msgspec.Struct], ...] = AnyRecord.__args__
    for kind in records:
        assert re.search(rf"^\| `{kind.__name__}` ", DOCS, re.MULTILINE), kind
    for name in ("layout", "submit", "step", "abort", "evict", "reset", "close"):
        assert callable(getattr(EngineTarget, name)) and f"| `{name}()` |" in DOCS, name
    for field in (*Shown.__struct_fields__, *Call.__struct_fields__[2:], *Layout.__struct_fields__[2:]):
        assert re.search(rf"`(\w+\.)?{field}`", DOCS), field
    for kinds in protocol.Kind.__args__:
        assert f"`{kinds}`" in DOCS, kinds
    assert len(FORMS[Form.ENGINES].options) == 4
