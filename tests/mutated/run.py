"""What random operations find of small mistakes that are made by the machine in a manager.

``python tests/mutated/run.py TARGET [--every K] [MODULE[:PREFIX] ...]`` makes every K-th of them in the functions of
these modules, or of those in `targets.toml`, one after the other, on lines that a run reaches; what is not found is
printed, and the sums.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import sysconfig
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
TARGETS: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "targets.toml").read_text(encoding="utf-8"))
OPERATIONS = 2000
SECONDS = 30.0

Fate = dict[str, Any]
Conform = Callable[[], Any]


def fates(target: str, modules: list[str] | None = None, every: int = 1) -> Iterator[Fate]:
    """What becomes of each mutant: its `function`, `line` and `text`, the `fate`, and the `rule` that it breaks.

    The fates are ``found``, ``refused`` (no target could be made), ``rare`` (the target's minimum of observations is
    not met), ``survived``, ``not reached``, ``hangs`` and ``ends`` (the process ended).
    """
    given = {"target": target, "modules": modules or TARGETS[target]["modules"], "every": every}
    own = [str(Path(__file__)), "--inside", sysconfig.get_path("purelib"), json.dumps(given)]
    with subprocess.Popen([*_interpreter(target), *own], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            yield json.loads(line)
    assert child.returncode == 0


def survivors(target: str) -> dict[tuple[str, str], str]:
    """The mistakes that nothing is found of, by function and text, with their fates; each has a reason in the list."""
    listed = tomllib.loads((FOLDER / "survivors" / f"{target}.toml").read_text(encoding="utf-8"))["survivor"]
    assert all(each["why"] for each in listed)
    return {(each["function"], line): each.get("fate", "survived") for each in listed for line in each["texts"]}


def _interpreter(target: str) -> list[str]:
    from kvspec.impl.adapters import environment

    if target not in environment.TARGETS:
        return [sys.executable]
    command = environment.command(target)
    return command[: command.index("-m")]


# -- in the environment of the target ----------------------------------------------------------------------------------


def _inside(target: str, modules: list[str], every: int) -> Iterator[Fate]:
    """A forked process for each mutant, so that a package is imported, and a judge prepared, once."""
    from mutated.code import function_of, mutants

    conform = _conform_of(target)
    parts = [(import_module(words.partition(":")[0]), words.partition(":")[2]) for words in modules]
    reached = _reached(conform, [module for module, _ in parts])
    there = (
        (module, mutant, function)
        for module, prefix in parts
        for mutant in mutants(module, prefix)
        if (function := function_of(module, mutant.function)) is not None
        and function.__code__.co_freevars == mutant.code.co_freevars
        and (module.__file__, mutant.line) in reached
    )
    for number, (module, mutant, function) in enumerate(there):
        if number % every == 0:
            fate = _in_a_fork(lambda f=function, m=mutant: _judge(conform, f, m.code))
            yield {
                "module": module.__name__,
                "function": mutant.function,
                "line": mutant.line,
                "text": mutant.text,
                **fate,
            }


def _conform_of(target: str) -> Conform:
    from kvspec.impl.adapters import environment
    from kvspec.model.conform import ConformOptions, conform
    from kvspec.model.conformance import Form
    from kvspec.model.pools import Pools
    from kvspec.model.reporting.known import read_known

    make: Any
    if target in environment.TARGETS:
        make = import_module(environment.module(target)).make
    else:
        import torch

        from kvspec.cli.targets import load_target

        torch.set_num_threads(1)  # a fork has no others
        make = load_target(target)
    file, pools = environment.known(target), Pools()
    options = ConformOptions(
        form=Form(TARGETS[target].get("form", Form.ENGINES)),
        operations=OPERATIONS,
        seconds=SECONDS,
        known=read_known(file) if file is not None else None,
        shrink_seconds=0.01,
    )
    return lambda: conform(make, options, name=target, pools=pools)


def _reached(conform: Conform, modules: list[ModuleType]) -> set[tuple[str | None, int]]:
    """The lines, by file, that a run without a mistake comes to; it has time for as many operations as it can do."""
    files, seen = {module.__file__ for module in modules}, set()

    def line(frame: FrameType, event: str, argument: object) -> Any:
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    sys.settrace(lambda frame, event, argument: line if frame.f_code.co_filename in files else None)
    conform()
    sys.settrace(None)
    return seen


def _judge(conform: Conform, function: FunctionType, code: CodeType) -> Fate:
    from mutated.code import REACHED

    from kvspec.model.conformance import TargetError

    reached: list[bool] = []

    def mark(*values: Any) -> Any:
        reached.append(True)
        return values[0] if values else None

    function.__globals__[REACHED] = mark
    function.__code__ = code
    try:
        report = conform()
    except TargetError:
        return {"fate": "refused"}
    if report.violation is not None:
        return {"fate": "found", "rule": f"{report.violation.family}/{report.violation.rule}"}
    return {"fate": "not reached" if not reached else "rare" if report.unmet else "survived"}


def _in_a_fork(judge: Callable[[], Fate]) -> Fate:
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)

    def work(out: Connection) -> None:
        out.send(judge())

    process = fork.Process(target=work, args=(there,))
    process.start()
    there.close()
    try:
        return dict(here.recv()) if here.poll(2 * SECONDS) else {"fate": "hangs"}
    except EOFError:
        return {"fate": "ends"}
    finally:
        process.kill()
        process.join()


def _serve(words: Mapping[str, Any]) -> None:
    for fate in _inside(words["target"], words["modules"], words["every"]):
        print(json.dumps(fate), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("modules", nargs="*", metavar="MODULE[:PREFIX]")
    parser.add_argument(
        "--every", type=int, default=1, metavar="K", help="so many are taken at a time, and one is tried"
    )
    given = parser.parse_args()
    sums: Counter[str] = Counter()
    for each in fates(given.target, given.modules, given.every):
        sums[each["fate"]] += 1
        if each["fate"] != "found":
            print(f"{each['fate']}: {each['function']}, line {each['line']}: {each['text']}", flush=True)
    print(", ".join(f"{count} {fate}" for fate, count in sums.most_common()))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    if sys.argv[1:2] == ["--inside"]:
        sys.path += [str(ROOT / ".links"), sys.argv[2]]
        warnings.simplefilter("ignore")
        _serve(json.loads(sys.argv[3]))
    else:
        main()
