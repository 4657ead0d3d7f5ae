"""``kvspec run``: scenario files, line by line, on a manager or on the spec."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from kvspec.cli.errors import fail_input, place
from kvspec.cli.logs import LogFile, LogOption
from kvspec.cli.options import CallSecondsOption, ExecOption, ForceOption, JsonOption, JunitOption
from kvspec.cli.output import Case, Exit, JsonFile, JunitFile, all_different, console, counted, on_interrupt, worst
from kvspec.cli.targets import DEFAULT, TARGET_HELP, asked_for
from kvspec.model.conformance import MakeTarget
from kvspec.model.pools import Pools
from kvspec.model.scenario import LineResult, Scenario, ScenarioError, ScenarioResult, read_scenario, run_scenario
from kvspec.model.tracing.record import Recorder

if TYPE_CHECKING:
    from rich.console import Console

_EXITS: Final = {
    "passed": Exit.HOLDS,
    "failed": Exit.VIOLATED,
    "violated": Exit.VIOLATED,
    "not observed": Exit.UNKNOWN,
}
_WORDS: Final = {
    "passed": "holds",
    "failed": "failed",
    "violated": "violated",
    "not observed": "holds as far as the target shows it",
}
_COLUMN: Final = 44


def run(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Scenarios (docs/scenarios.md).")],
    target: Annotated[str | None, typer.Option(help=f"{TARGET_HELP} By default torch.", show_default=False)] = None,
    command: ExecOption = None,
    call_seconds: CallSecondsOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="One line for each scenario that holds.")] = False,
    log: LogOption = None,
    json: JsonOption = None,
    junit: JunitOption = None,
    force: ForceOption = False,
) -> Exit:
    """Run a scenario file."""
    result, report = JsonFile(json, force=force), JunitFile(junit, force=force)
    logged = LogFile(log, context, force=force)
    all_different(result, report, logged)
    scenarios = [_read(path) for path in files]
    _check_logged(logged, scenarios)
    name, pools = target or command or DEFAULT, Pools()
    done: list[tuple[ScenarioResult, float]] = []
    out = console()

    def write(complete: bool = True) -> Exit:
        found = [r for r, _ in done]
        code = worst(_EXITS[r.verdict] for r in found)
        result.write("run", {"target": name, "scenarios": found}, exit=code, complete=complete)
        report.write([_case(r, seconds, name) for r, seconds in done])
        if said := logged.write():
            out.print(said)
        return code

    def stop() -> None:
        write(complete=False)

    with on_interrupt(stop), asked_for(target, command, call_seconds, DEFAULT) as asked:
        name = asked.name
        for scenario in scenarios:
            start = time.monotonic()
            ended = _run(scenario, asked.make, pools, logged.recorder)
            done.append((ended, time.monotonic() - start))
            _print(out, scenario, ended, quiet)
    if len(done) > 1:
        held = sum(r.passed for r, _ in done)
        out.print(f"{counted(len(done), 'scenario')}: {held} hold, {len(done) - held} do not")
    return write()


def _read(path: Path) -> Scenario:
    try:
        return read_scenario(path)
    except ScenarioError as error:
        _fail(error)


def _check_logged(logged: LogFile, scenarios: list[Scenario]) -> None:
    """Of scenarios on the spec there is no log; those on a manager are to have the same events."""
    if logged.recorder is None:
        return
    for scenario in scenarios:
        if scenario.chapter is not None:
            what = f"given with {scenario.name}, which runs on the spec"
            fail_input(what, where="--log", expected="a scenario of operations")
    logged.check(*(scenario.config.form for scenario in scenarios))


def _run(scenario: Scenario, make_target: MakeTarget, pools: Pools, recorder: Recorder | None) -> ScenarioResult:
    try:
        return run_scenario(scenario, make_target, pools, recorder)
    except ScenarioError as error:
        _fail(error)


def _fail(error: ScenarioError) -> NoReturn:
    where = place(error.file, error.line, error.column) if error.line else error.file
    fail_input(error.what, where=where, expected=error.expected)


def _case(result: ScenarioResult, seconds: float, target: str) -> Case:
    last = result.lines[-1] if result.lines else None
    message = f"line {last.number}: {last.text}: {last.outcome}" if last and not result.passed else ""
    return Case(f"kvspec run {target}", result.name, seconds, result.verdict, message)


# -- the terminal -----------------------------------------------------------------------------------------------------


def _print(out: Console, scenario: Scenario, result: ScenarioResult, quiet: bool) -> None:
    if quiet and result.passed:
        out.print(f"{scenario.name}: {_summary(scenario, result)}")
        return
    out.print(scenario.name)
    for line in result.lines:
        out.print(_line(line))
        for title, state in (("before", line.before), ("after", line.after)):
            for number, fact in enumerate(state):
                out.print(f"      {title if not number else '':<8}{fact}")
    out.print(f"  {_summary(scenario, result)}")


def _line(line: LineResult) -> str:
    mark = "" if line.verdict == "passed" else f"{line.verdict}: "
    return f"{line.number:>5}  {line.text:<{_COLUMN}}  {mark}{line.outcome}".rstrip()


def _summary(scenario: Scenario, result: ScenarioResult) -> str:
    parts = [counted(len(scenario.lines), "line")] + [f"{result.skipped} of them not run"] * bool(result.skipped)
    unseen = sum(line.verdict == "not observed" for line in result.lines)
    parts += [f"{counted(unseen, 'check')} not observed"] * bool(unseen)
    return f"{_WORDS[result.verdict]} ({', '.join(parts)})"
