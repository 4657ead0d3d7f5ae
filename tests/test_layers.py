"""Who may import whom: the spec stands below everything, and the two sides that are compared do not share code."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("spec", "model", "impl", "proofs", "cli")

# The solvers and torch may be used only where a row of this table does not name them.
FORBIDDEN = {
    "spec": {"z3", "cvc5", "torch", "triton", "kvspec.model", "kvspec.impl", "kvspec.proofs", "kvspec.cli"},
    "model": {"z3", "cvc5", "torch", "triton", "kvspec.impl", "kvspec.proofs", "kvspec.cli"},
    "proofs": {"torch", "triton", "kvspec.impl", "kvspec.cli"},
    "impl": {"kvspec.proofs", "kvspec.cli"},
    "cli": set[str](),
}
# The batched reading is the one part of the model that is made of tensors: `model/batched.py`, `model/batched_*.py`, or
# a folder of such a name.
BATCHED_MAY = {"torch", "triton"}


def imported(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a file imports, at its top or anywhere inside, by any spelling."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in {"import_module", "__import__"}:
                yield node.lineno, str(node.args[0].value)


def violations(path: PurePosixPath, source: str) -> list[str]:
    """What a file (its path is relative to the root) imports against the table."""
    forbidden = FORBIDDEN[path.parts[0]]
    if path.parts[0] == "model" and path.parts[1].startswith("batched"):
        forbidden = forbidden - BATCHED_MAY
    package = ".".join(["kvspec", *path.parts[:-1]])
    return [
        f"{path}:{line}: imports {name}"
        for line, name in imported(source, package)
        if any(name == bad or name.startswith(f"{bad}.") for bad in forbidden)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_imports_against_the_table(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = [
        line
        for file in files
        for line in violations(PurePosixPath(file.relative_to(ROOT).as_posix()), file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("spec/blocks.py", "import z3"),
        ("spec/blocks.py", "import torch.nn as nn"),
        ("spec/language/terms.py", "def late():\n    from kvspec.model import concrete"),
        ("spec/language/terms.py", "from ...impl import block"),
        ("spec/__init__.py", "from ..proofs import solver"),
        ("model/concrete.py", "import torch"),
        ("model/concrete.py", "from kvspec import impl"),
        ("model/explorer.py", "from kvspec.proofs.solver import check"),
        ("model/batched.py", "from z3 import Bool"),
        ("model/acceptor.py", "import importlib\nimportlib.import_module('kvspec.impl.block')"),
        ("proofs/symbolic.py", "from torch import Tensor"),
        ("proofs/symbolic.py", "__import__('kvspec.impl')"),
        ("impl/block.py", "from kvspec.proofs import solver"),
        ("impl/kernels/copy.py", "from kvspec.cli.output import Exit"),
    ],
)
def test_a_forbidden_import_is_found(path: str, source: str) -> None:
    assert len(violations(PurePosixPath(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("spec/blocks.py", "from kvspec.spec.language import Machine\nfrom .language import event\nimport z3_like"),
        ("model/batched_explorer.py", "import torch"),
        ("model/batched/tables.py", "import torch, triton"),
        ("proofs/symbolic.py", "import z3, cvc5\nfrom kvspec.model import concrete\nfrom kvspec.spec import blocks"),
        ("impl/block.py", "import torch\nfrom ..model.conformance import Target"),
        ("cli/check_command.py", "from kvspec.impl import block\nfrom kvspec.proofs import solver"),
    ],
)
def test_an_allowed_import_is_let_through(path: str, source: str) -> None:
    assert violations(PurePosixPath(path), source) == []


IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if ".batched" not in module.name:
        importlib.import_module(module.name)
print(*sorted({"z3", "cvc5", "torch", "triton"} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    ("package", "allowed"), [("spec", set[str]()), ("model", set[str]()), ("proofs", {"z3", "cvc5"})]
)
def test_importing_a_package_loads_nothing_heavy_by_a_detour(package: str, allowed: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, f"kvspec.{package}"], check=True, capture_output=True, text=True
    )
    assert set(done.stdout.split()) <= allowed
