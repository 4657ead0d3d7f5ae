"""The repository itself: it runs anywhere, is packaged whole, and each of its tests can fail."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("spec", "model", "impl", "proofs", "cli")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def repository_files() -> list[Path]:
    """Every file that is, or with the next `git add` would be, part of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


# -- nothing of the machine it was written on -------------------------------------------------------------------------

# The bracket in each keeps this file from finding itself.
FOREIGN = {
    "an absolute path": re.compile(
        r"(?<![\w./:~}\)-])(?:/(?:[w]ork|[h]ome|[r]oot|[U]sers|[o]pt|[m]nt|[s]rv|[t]mp)/|[A-Z]:\\(?=\w))"
    ),
    "a package index": re.compile(
        r"[p]ypi\.org|[p]ythonhosted|[d]ownload\.pytorch|--(?:extra-)?[i]ndex-url|--[f]ind-links"
    ),
}


def foreign(text: str) -> Iterator[str]:
    """Line number, text and kind of everything in a text that ties it to one machine."""
    for number, line in enumerate(text.splitlines(), start=1):
        for kind, pattern in FOREIGN.items():
            if pattern.search(line):
                yield f"{number}: {kind}: {line.strip()[:120]}"


def test_no_file_names_a_machine_path_or_package_index() -> None:
    found = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image
        found += [f"{path.relative_to(ROOT)}:{line}" for line in foreign(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        f'open("{"/"}home/me/trace.jsonl")',
        f"see {'/'}tmp/x",
        f"cd {'/'}work/main",
        f"C:{chr(92)}traces",
        f"pip install --{'index'}-url x",
        f"https://{'pypi'}.org/simple",
    ],
)
def test_a_machine_path_is_found(line: str) -> None:
    assert len(list(foreign(f"first\n{line}"))) == 1


@pytest.mark.parametrize(
    "line", ["#!/usr/bin/env bash", "a/tmp/b", "https://example.org/home/x", "/dev/null", "1/work"]
)
def test_other_paths_are_let_through(line: str) -> None:
    assert list(foreign(line)) == []


# -- each test can fail -----------------------------------------------------------------------------------------------


def hollow(source: str) -> Iterator[str]:
    """Tests in a file that cannot fail, or that are switched off."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
            inside = [part for statement in body for part in ast.walk(statement)]
            if not any(isinstance(part, ast.Assert | ast.Raise | ast.Call) for part in inside):
                yield f"{node.lineno}: {node.name} checks nothing"
        elif isinstance(node, ast.Attribute) and node.attr in {"skip", "skipif", "xfail", "importorskip"}:
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if owner in {"pytest", "mark", "unittest"}:
                yield f"{node.lineno}: {owner}.{node.attr} (use the markers `gpu` and `needs_file`)"
        elif isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and node.test.value:
            yield f"{node.lineno}: asserts a constant"


def test_no_test_is_empty_or_switched_off() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert files
    found = [f"{path.relative_to(ROOT)}:{line}" for path in files for line in hollow(path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "def test_nothing(): pass",
        'def test_nothing():\n    """Later."""\n    ...',
        "def test_nothing():\n    x = 1",
        "class TestX:\n    def test_nothing(self): pass",
        "def test_nothing():\n    assert True",
        "@pytest.mark.skip\ndef test_off():\n    assert f()",
        "@pytest.mark.xfail(strict=True)\ndef test_off():\n    assert f()",
        "def test_off():\n    pytest.skip('later')\n    assert f()",
        "torch = pytest.importorskip('torch')",
    ],
)
def test_a_hollow_test_is_found(source: str) -> None:
    assert len(list(hollow(source))) == 1


# -- everything is packaged -------------------------------------------------------------------------------------------


def test_every_folder_with_code_is_a_listed_package() -> None:
    folders = {file.parent.relative_to(ROOT) for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(f"kvspec.{'.'.join(f.parts)}" for f in folders)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_declares_its_types(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_every_data_file_of_a_package_matches_a_pattern_of_the_wheel() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    packaged = [path for path in repository_files() if path.relative_to(ROOT).parts[0] in PACKAGES]
    left_out = [
        str(path.relative_to(ROOT))
        for path in packaged
        if path.suffix != ".py" and not any(path.match(pattern) for pattern in patterns)
    ]
    assert packaged
    assert not left_out
    assert all((path.parent / "__init__.py").exists() for path in packaged)
