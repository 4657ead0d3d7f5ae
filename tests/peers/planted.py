"""What every fault that is planted in another project's manager has to show.

``python tests/peers/planted.py TARGET [FAULT ...]`` prints the rows of the table in ``docs/peers.md``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kvspec.model.operations as ops
from kvspec.impl.adapters import environment
from kvspec.model.conform import ConformOptions, FoundViolation, Replayer, conform
from kvspec.model.conformance import Form, RemoteError
from kvspec.model.promises import Family, Violation
from kvspec.model.remote.client import RemoteTargets
from kvspec.model.reporting.known import KnownFindings, read_known
from kvspec.model.shrink import Case

ROOT = Path(__file__).parent.parent.parent
MOST_LINES = 15
LAST_STEPS = 20
"""So many steps later a manager may still notice a fault."""


class Found(NamedTuple):
    """How a planted fault was found.

    Attributes:
        rule: what it breaks.
        lines: of the shrunk run.
        noticed: whether the package itself raises an error in that run, or on the way to its end, which it does not
            where nothing is planted.
    """

    rule: str
    lines: int
    noticed: bool

    def row(self, fault: str) -> str:
        """The row of the table."""
        return f"| `{fault}` | `{self.rule}` | {self.lines} | {'yes' if self.noticed else 'no'} |"


def module_of(target: str) -> Path:
    """The file with the faults of a target."""
    return ROOT / "tests" / "faulty" / "peers" / f"{target.replace('-', '_')}.py"


def faults_of(target: str) -> list[str]:
    """The names of its faults; the package is not imported for that."""
    tree = ast.parse(module_of(target).read_text(encoding="utf-8"))
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]


def rows_of(target: str) -> dict[str, str]:
    """The rows of a target in the table, by the fault."""
    text = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    section = text.partition(f"\n### {target}\n")[2].partition("\n#")[0]
    return {line.split("`")[1]: line for line in section.splitlines() if line.startswith("| `")}


def find(target: str, fault: str, good: RemoteTargets, seconds: float = 60.0) -> Found:
    """Random operations find the fault, in a short run that shows nothing in the process where there is none."""
    with RemoteTargets(environment.command(target, "--patch", f"{module_of(target)}:{fault}")) as twin:
        report = conform(twin, _options(target, None, seconds), name=target)
        found = report.violation
        assert found is not None, f"{fault} was not found in {report.operations} operations"
        assert found.reproduced, found.what
        assert found.shrunk, found.operations
        assert 1 + len(found.operations) <= MOST_LINES, found.operations
        _nothing_can_be_taken_out(twin, found)
        elsewhere = Replayer(good).run(_case(found)).violation
        assert elsewhere is None or _is_known(target, elsewhere), f"found where nothing was planted: {elsewhere}"
        noticed = _is_noticed(twin, found) and not _is_noticed(good, found)
        return Found(f"{found.family}/{found.rule}", 1 + len(found.operations), noticed)


def known_of(target: str) -> KnownFindings | None:
    file = environment.known(target)
    return None if file is None else read_known(file)


def _is_known(target: str, violation: Violation) -> bool:
    known = known_of(target)
    return known is not None and known.fitting(violation) is not None


def _options(target: str, operations: int | None, seconds: float | None) -> ConformOptions:
    # a machine that is busy with something else takes long to make a run small
    return ConformOptions(
        form=Form.ENGINES, operations=operations, seconds=seconds, known=known_of(target), shrink_seconds=600
    )


def _case(found: FoundViolation) -> Case:
    return Case(found.config, tuple(found.operations))


def _nothing_can_be_taken_out(twin: RemoteTargets, found: FoundViolation) -> None:
    replayer, whole = Replayer(twin), _case(found)
    fails = replayer.fails_like(Violation(Family(found.family), found.rule, found.what))
    for at, taken_out in enumerate(whole.operations):
        shorter = Case(whole.config, (*whole.operations[:at], *whole.operations[at + 1 :]))
        assert not fails(shorter), f"{taken_out} can be taken out"


def _is_noticed(targets: RemoteTargets, found: FoundViolation) -> bool:
    """Whether the package raises an error when nobody judges; the adapter's own errors do not count."""
    target: Any = targets(found.config)
    gone = [o.seq for o in found.operations if isinstance(o, ops.Submit)]
    try:
        for operation in [*found.operations, ops.Step(LAST_STEPS)]:
            _do(target, operation)
        for seq in gone:
            try:
                target.abort(seq)
            except Exception as error:
                if type(error) is RemoteError:
                    raise
    except RemoteError as error:
        return "kvspec" not in str(error)
    return False


def _do(target: Any, operation: Any) -> None:
    match operation:
        case ops.Submit():
            target.submit(operation.seq, operation.tokens, operation.output, operation.context, operation.priority)
        case ops.Step():
            for _ in range(max(operation.count, 1)):
                target.step()
        case ops.Abort():
            target.abort(operation.seq)
        case ops.Evict():
            target.evict(operation.num_blocks)
        case ops.Reset():
            target.reset()


def main(words: Sequence[str]) -> None:
    target, *faults = words
    with RemoteTargets(environment.command(target)) as good:
        for fault in faults or faults_of(target):
            try:
                print(find(target, fault, good).row(fault), flush=True)
            except AssertionError as error:
                print(f"{fault}: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
