"""Runs CrossHair in a process of its own, since it patches the interpreter: jobs on stdin, verdicts on stdout, as JSON.

A job is ``["contract", module, name]`` or ``["pair", module, name, name]``. A verdict has

- ``says``: ``confirmed`` (for all arguments), ``refuted``, or ``not confirmed``;
- ``arguments``: of a call that breaks the contract, or in which the pair differs;
- ``why``: CrossHair's words.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from crosshair import diff_behavior
from crosshair.core import explore_paths
from crosshair.core_and_libs import analyze_function, run_checkables
from crosshair.fnutil import FunctionInfo
from crosshair.options import DEFAULT_OPTIONS, AnalysisKind, AnalysisOptionSet
from crosshair.statespace import MessageType, RootNode, VerificationStatus

# CPU seconds, for one condition and for one path in it. Nothing here needs a second; more only matters when it fails.
SECONDS = 60.0

Verdict = dict[str, Any]
WORDS = {MessageType.CONFIRMED: "confirmed", MessageType.CANNOT_CONFIRM: "not confirmed"}


def contract(module: str, name: str) -> Verdict:
    """Whether a function of asserts holds for all arguments that its leading asserts let through."""
    options = AnalysisOptionSet(
        analysis_kind=[AnalysisKind.asserts],
        report_all=True,
        per_condition_timeout=SECONDS,
        per_path_timeout=SECONDS,
    )
    function = getattr(importlib.import_module(module), name)
    (message,) = run_checkables(analyze_function(function, options))
    says = WORDS.get(message.state, "refuted")
    return {"says": says, "arguments": arguments_in(message.message), "why": message.message}


def arguments_in(message: str) -> list[Any] | None:
    """The arguments of the call that a message of CrossHair ends with."""
    _, found, call = message.partition("when calling ")
    if not found:
        return None
    expression = ast.parse(call, mode="eval").body
    assert isinstance(expression, ast.Call) and not expression.keywords, message
    return [ast.literal_eval(argument) for argument in expression.args]


def pair(module: str, first: str, second: str) -> Verdict:
    """Whether two functions do the same for all arguments."""
    one, other = (FunctionInfo.from_fn(getattr(importlib.import_module(module), name)) for name in (first, second))
    options = DEFAULT_OPTIONS.overlay(
        per_condition_timeout=2 * SECONDS, per_path_timeout=2 * SECONDS, stats=Counter[str]()
    )
    searches: list[RootNode] = []

    def explore_and_keep(
        run: Callable[..., Any], signature: Any, given: Any, root: RootNode, *rest: Any, **kw: Any
    ) -> None:
        searches.append(root)
        explore_paths(run, signature, given, root, *rest, **kw)

    with patch.object(diff_behavior, "explore_paths", explore_and_keep):
        differences = diff_behavior.diff_behavior(one, other, options)
    if isinstance(differences, str):
        raise RuntimeError(differences)
    if differences:
        arguments = [ast.literal_eval(text) for text in differences[0].args.values()]
        return {"says": "refuted", "arguments": arguments, "why": str(differences[0])}
    # CrossHair calls a search exhausted even where its solver gave up on a path; the tree of paths tells.
    done = [root.child.is_exhausted() and status(root) is VerificationStatus.CONFIRMED for root in searches]
    return {"says": "confirmed" if done == [True, True] else "not confirmed", "arguments": None, "why": f"{done}"}


def status(root: RootNode) -> VerificationStatus | None:
    """The verdict on a tree of paths."""
    return root.child.get_result().verification_status


def main() -> None:
    kinds: dict[str, Callable[..., Verdict]] = {"contract": contract, "pair": pair}
    verdicts = [kinds[kind](*names) for kind, *names in json.load(sys.stdin)]
    json.dump(verdicts, sys.stdout)


if __name__ == "__main__":
    main()
