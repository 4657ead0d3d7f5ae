"""The environment of peers: what is in it is pinned, made once, and missed with one line that says what makes it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from peers.planted import MOST_LINES, ROOT, faults_of, module_of, rows_of

from kvspec.cli.main import run
from kvspec.impl.adapters import __main__ as adapters
from kvspec.impl.adapters import environment, install
from kvspec.model.conformance import PoolConfig
from kvspec.model.remote.client import RemoteTargets
from kvspec.model.reporting.known import read_known

ADAPTERS = ROOT / "impl" / "adapters"
RECIPE = tomllib.loads((ADAPTERS / "peers.toml").read_text(encoding="utf-8"))
TARGETS = sorted(environment.TARGETS)
WITH_FAULTS = [target for target in TARGETS if module_of(target).is_file()]


def constants_of(target: str) -> dict[str, str]:
    """Texts that stand in an adapter, which cannot be imported without its package."""
    found = {}
    for file in ADAPTERS.glob(f"{target.split('-')[0]}*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                found[ast.unparse(node.target)] = str(node.value.value)
    return found


# -- what there is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_has_an_adapter_for_a_package_that_is_pinned(target: str) -> None:
    peer = environment.TARGETS[target]
    assert (ADAPTERS / f"{environment.module(target).rpartition('.')[2]}.py").is_file()
    pins = {pin for entry in RECIPE["lists"].values() for pin in entry}
    pins |= {str(RECIPE["peers"][peer].get(key)) for key in ("package", "sources")}
    known = constants_of("nano_vllm" if target == "nano-vllm" else target)
    assert f"{known['PACKAGE']}=={known['VERSION']}" in pins


def test_all_is_pinned_and_what_is_needed_is_listed() -> None:
    assert set(RECIPE["peers"]) == set(environment.PEERS) == set(environment.TARGETS.values())
    for peer in RECIPE["peers"].values():
        assert set(peer["lists"]) <= {*RECIPE["lists"], "torch"}
    pins = [pin for entry in RECIPE["lists"].values() for pin in entry]
    assert all(re.fullmatch(r"[\w.\-]+==[\w.]+", pin) for pin in pins)


def test_a_package_has_one_version_in_all_lists() -> None:
    versions: dict[str, set[str]] = {}
    for entry in RECIPE["lists"].values():
        for pin in entry:
            name, _, version = pin.partition("==")
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


@pytest.mark.parametrize("file", sorted(ADAPTERS.glob("known/*.toml")), ids=lambda file: file.stem)
def test_what_is_known_belongs_to_a_target_and_is_told(file: Path) -> None:
    assert file.stem in environment.TARGETS
    findings = read_known(file).findings
    told = "".join(text.read_text(encoding="utf-8") for text in (ROOT / "docs" / "findings").glob("*.md"))
    assert [finding.id for finding in findings if f"`{finding.id}`" not in told] == []


@pytest.mark.parametrize("script", sorted((ROOT / "docs" / "findings").glob("*.py")), ids=lambda file: file.stem)
def test_a_script_is_told_of_and_needs_nothing_of_this_project(script: Path) -> None:
    texts = [text.read_text(encoding="utf-8") for text in script.parent.glob("*.md")]
    assert any(f"`{script.name}`" in text for text in texts)
    assert "kvspec" not in script.read_text(encoding="utf-8")


def test_the_list_of_findings_leads_to_every_script_and_scenario() -> None:
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#]+)\)", text)}
    assert all(path.exists() for path in linked)
    assert linked >= {*(ROOT / "docs" / "findings").iterdir()} | {*ADAPTERS.glob("known/*.kv")}


@pytest.mark.parametrize("target", WITH_FAULTS)
def test_the_table_has_every_planted_fault_and_no_other(target: str) -> None:
    rows = rows_of(target)
    assert list(rows) == faults_of(target)
    assert len(rows) >= 8
    assert all(int(row.split("|")[3]) <= MOST_LINES for row in rows.values())


# -- what there is not --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_an_environment_that_is_not_there_is_missed_in_one_line(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KVSPEC_PEERS", raising=False)
    with pytest.raises(environment.AbsentError, match=f"make peer-{environment.TARGETS[target]}"):
        environment.command(target)


def test_the_command_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVSPEC_PEERS", str(tmp_path / "nowhere"))
    assert run(["conform", "vllm"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("kvspec: error: TARGET: vllm needs vllm in ")
    assert line.endswith("expected what this makes: make peer-vllm, or python -m kvspec.impl.adapters.install vllm")


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("absent.py:f", "--patch: 'absent.py:f', expected FILE.py:FUNCTION"),
        ("patch.py", "--patch: 'patch.py', expected FILE.py:FUNCTION"),
        (".:f", "--patch: '.:f', expected FILE.py:FUNCTION"),
        ("patch.py:absent", "--patch: 'patch.py:absent', expected a function of patch.py"),
        ("patch.py:number", "--patch: 'patch.py:number', expected a function of patch.py"),
    ],
)
def test_what_is_no_patch_is_told_in_one_line(
    patch: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("patch.py").write_text("number = 1\n")
    with pytest.raises(SystemExit, match=f"^{re.escape(words)}$"):
        adapters._patch(patch)


def test_what_a_package_or_a_patch_prints_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(
        "import os, types\nfrom kvspec.model.reference import ModelTarget\n"
        "os.write(1, b'at import\\n')\nPACKAGE, VERSION, make = 'kvspec', '0', ModelTarget\n"
    )
    (tmp_path / "patch.py").write_text("print('at patch')\ndef f():\n    print('in patch', flush=True)\n")
    begin = "import kvspec.impl.adapters.__main__ as a; a.module = lambda target: 'printing'; a.main()"
    command = ["env", f"--chdir={tmp_path}", sys.executable, "-c", begin, "vllm", "--patch", "patch.py:f"]
    with RemoteTargets(command) as made:
        target: Any = made(PoolConfig(num_blocks=4, block_size=2))
        assert made.introduction.name == "vllm" and made.about["patch"] == "patch.py:f"
        assert target.free_count() == 3


def test_an_unknown_peer_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["nobody"]) == 2
    assert "unknown peer 'nobody', expected one of transformers" in capsys.readouterr().err


# -- making it ----------------------------------------------------------------------------------------------------


def test_a_part_is_made_once_and_again_when_it_is_made_of_something_else(tmp_path: Path) -> None:
    made = []
    for made_of in (["a==1"], ["a==1"], ["a==2"], ["a==2"]):
        install._make(tmp_path, "list-a", made_of, lambda made_of=made_of: made.append(made_of))
    assert made == [["a==1"], ["a==2"]]


def _interpreter(folder: Path) -> Path:
    """Where the interpreter of an environment is, which is there now."""
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.symlink_to(sys.executable)
    return python


def test_an_environment_without_its_interpreter_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSPEC_PEERS", str(tmp_path))
    install._make(tmp_path, "vllm", [1], lambda: None)
    assert not environment.has("vllm")
    python = _interpreter(tmp_path)
    assert environment.command("vllm")[-4:] == [str(python), "-m", "kvspec.impl.adapters", "vllm"]
    python.unlink()
    python.symlink_to(tmp_path / "gone")
    with pytest.raises(environment.AbsentError, match=r"needs vllm in .*make peer-vllm"):
        environment.command("vllm")


def test_a_part_that_was_interrupted_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("KVSPEC_PEERS", str(tmp_path))
    _interpreter(tmp_path)
    install._make(tmp_path, "vllm", [1], lambda: None)
    assert environment.has("vllm")
    with pytest.raises(KeyboardInterrupt):
        install._make(tmp_path, "vllm", [2], interrupted)
    assert not environment.has("vllm")


def test_of_a_wheel_only_python_and_what_it_says_of_itself_are_taken(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("a/b.py", "a/kernels.so", "a-1.dist-info/METADATA"):
            archive.writestr(name, "")
    install._unpack(wheel, tmp_path / "there")
    found = {str(p.relative_to(tmp_path / "there")) for p in (tmp_path / "there").rglob("*") if p.is_file()}
    assert found == {"a/b.py", "a-1.dist-info/METADATA"}


def test_pip_that_fails_is_told_in_its_own_words(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho first >&2\necho 'ERROR: no such thing' >&2\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(install.InstallError, match="pip install ended with 3: ERROR: no such thing"):
        install._pip(tmp_path, "install", "nothing")
