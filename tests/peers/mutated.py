"""What random operations find of the mistakes that are made by the machine in another project's manager.

``python tests/peers/mutated.py TARGET [MODULE[:PREFIX] ...]`` makes them in the functions of these modules, or of those
that the table below has, one after the other; all that is not found is printed, and the sums.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import sysconfig
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
MODULES = {"nano-vllm": ["nanovllm.engine.block_manager"]}
OPERATIONS = 2000
SECONDS = 30.0


def found(target: str, *modules: str) -> list[dict[str, Any]]:
    """What became of each mutant: its `function`, `line` and `text`, the `fate`, and the `rule` that it breaks.

    The fates are ``found``, ``rare`` (the target's minimum of observations is not met), ``survived``, ``not reached``,
    ``hangs`` and ``ends`` (the process ended).
    """
    from kvspec.impl.adapters import environment

    command = environment.command(target)
    python = command.index("-m")
    own = [str(Path(__file__)), "--inside", sysconfig.get_path("purelib"), target, *(modules or MODULES[target])]
    child = subprocess.run([*command[:python], *own], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    return [json.loads(line) for line in child.stdout.splitlines()]


def survivors(target: str) -> dict[tuple[str, str], str]:
    """The mistakes that nothing is found of, by function and text, with their fates; each has a reason in the list."""
    text = (Path(__file__).parent / "survivors" / f"{target}.toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)["survivor"]
    assert all(each["why"] for each in listed)
    return {(each["function"], line): each.get("fate", "survived") for each in listed for line in each["texts"]}


def _inside(target: str, modules: Sequence[str]) -> Iterator[dict[str, Any]]:
    """In the environment of peers: a forked process for each mutant, so that the package is imported once."""
    from mutated_code import function_of, mutants

    from kvspec.impl.adapters import environment

    adapter = import_module(environment.module(target))
    _conform(target, adapter.make, 20)  # what a judge prepares once is not to be prepared in every fork
    for words in modules:
        name, _, prefix = words.partition(":")
        module = import_module(name)
        for mutant in mutants(module, prefix):
            function = function_of(module, mutant.function)
            if function is not None and function.__code__.co_freevars == mutant.code.co_freevars:
                fate = _in_a_fork(_judge, target, adapter.make, function, mutant.code)
                yield {"module": name, "function": mutant.function, "line": mutant.line, "text": mutant.text, **fate}


def _in_a_fork(judge: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)

    def work(out: Connection) -> None:
        out.send(judge(*given))

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


def _conform(target: str, make: Callable[..., Any], operations: int) -> Any:
    from kvspec.impl.adapters import environment
    from kvspec.model.conform import ConformOptions, conform
    from kvspec.model.conformance import Form
    from kvspec.model.reporting.known import read_known

    file = environment.known(target)
    known = read_known(file) if file is not None else None
    options = ConformOptions(
        form=Form.ENGINES, operations=operations, seconds=SECONDS, known=known, shrink_seconds=0.01
    )
    return conform(make, options, name=target)


def _judge(target: str, make: Callable[..., Any], function: FunctionType, code: Any) -> dict[str, Any]:
    reached: list[Any] = []

    def mark(*values: Any) -> Any:
        reached[:] = [True]
        return values[0] if values else None

    function.__globals__["__reached__"] = mark
    function.__code__ = code
    report = _conform(target, make, OPERATIONS)
    if report.violation is not None:
        return {"fate": "found", "rule": f"{report.violation.family}/{report.violation.rule}"}
    return {"fate": "not reached" if not reached else "rare" if report.unmet else "survived"}


def main(words: Sequence[str]) -> None:
    fates: Counter[str] = Counter()
    for each in found(*words):
        fates[each["fate"]] += 1
        if each["fate"] != "found":
            print(f"{each['fate']}: {each['function']}, line {each['line']}: {each['text']}")
    print(", ".join(f"{count} {fate}" for fate, count in fates.most_common()))


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        sys.path += [str(ROOT / "tests"), str(ROOT / ".links"), sys.argv[2]]
        warnings.simplefilter("ignore")
        for line in _inside(sys.argv[3], sys.argv[4:]):
            print(json.dumps(line), flush=True)
    else:
        main(sys.argv[1:])
