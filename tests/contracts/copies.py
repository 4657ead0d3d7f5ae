"""Copies of a pure function's module with a fault in it, and of the contracts that judge it."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import contracts
from contracts import of_impl, of_pages, of_slots, of_strides, of_window, pairs
from contracts.faults import Fault
from contracts.terms import Function, contracts_of

Job = list[str]
CONTRACTS: tuple[ModuleType, ...] = (of_slots, of_strides, of_window, of_pages, of_impl)


def jobs_about(function: Function) -> Iterator[tuple[ModuleType, Job]]:
    """What CrossHair can be asked about a function; and the module in which the question stands."""
    for module in CONTRACTS:
        for name, terms in contracts_of(module).items():
            if function in terms.functions:
                yield module, ["contract", module.__name__, name]
    if function in pairs.PAIRS:
        yield pairs, ["pair", pairs.__name__, *pairs.PAIRS[function]]


@dataclass(frozen=True)
class Planted:
    """A fault in a copy, and what is asked about the copy."""

    fault: Fault
    jobs: list[Job]


def plant(fault: Fault, number: int, folder: Path) -> Planted:
    """Write the copies into a folder, from which they can be imported."""
    module = inspect.getmodule(fault.function)
    assert module is not None
    copy = f"fault_{number}"
    source = inspect.getsource(fault.function)
    assert source.count(fault.old) == 1, f"{fault}: {fault.old!r} stands {source.count(fault.old)} times in its source"
    text = inspect.getsource(module).replace(source, source.replace(fault.old, fault.new))
    (folder / f"{copy}.py").write_text(text, encoding="utf-8")
    jobs = []
    for judge, (kind, _, *names) in jobs_about(fault.function):
        name = f"{judge.__name__.rpartition('.')[2]}_of_{copy}"
        short = module.__name__.rpartition(".")[2]
        right = f"import {module.__name__} as {short}\n"
        text = inspect.getsource(judge)
        assert right in text
        (folder / f"{name}.py").write_text(text.replace(right, f"import {copy} as {short}\n"), encoding="utf-8")
        jobs.append([kind, name, *names])
    return Planted(fault, jobs)


def ask(jobs: Sequence[Job], folder: Path) -> list[dict[str, Any]]:
    """CrossHair's verdicts (see `crosshair_worker`) on functions of the tests, and of copies in a folder."""
    tests = Path(contracts.__path__[0]).parent
    paths = os.pathsep.join([str(tests), str(folder)])
    done = subprocess.run(
        [sys.executable, "-m", "contracts.crosshair_worker"],
        input=json.dumps(jobs),
        env={**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    verdicts: list[dict[str, Any]] = json.loads(done.stdout)
    return verdicts


def outcome(job: Job, arguments: Sequence[Any]) -> bool:
    """Whether a contract or a pair holds for these arguments, without CrossHair."""
    kind, module, *names = job
    functions = [getattr(importlib.import_module(module), name) for name in names]
    if kind == "pair":
        first, second = (function(*arguments) for function in functions)
        return bool(first == second)
    try:
        functions[0](*arguments)
    except Exception:
        return False
    return True
