"""``kvspec conform``: drives a KV-cache manager by random operations and judges it by the spec."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from kvspec.cli.errors import fail_input, place
from kvspec.cli.logs import LogFile, LogOption, not_logged
from kvspec.cli.options import CallSecondsOption, ExecOption, ForceOption, JsonOption, JunitOption
from kvspec.cli.output import (
    Case,
    Exit,
    JsonFile,
    JunitFile,
    all_different,
    console,
    exit_for,
    on_interrupt,
    progress,
)
from kvspec.cli.targets import JUDGED_HELP, Asked, asked_for, check_threads
from kvspec.impl.adapters import environment
from kvspec.model.conform import (
    DEFAULT_OPERATIONS,
    ConformOptions,
    ConformReport,
    FoundViolation,
)
from kvspec.model.conform import (
    conform as drive,
)
from kvspec.model.conformance import Form, ManagerType
from kvspec.model.forms import FORMS
from kvspec.model.generator import Kind
from kvspec.model.reporting.known import KnownError, KnownFindings, read_known
from kvspec.model.reporting.saving import saved_or_why
from kvspec.model.reporting.text import (
    REPLAYED,
    known_words,
    report_lines,
    scenario_lines,
    scenario_text,
    verdict_line,
    violation_lines,
)
from kvspec.model.reporting.versions import versions
from kvspec.model.scenario import ScenarioError, read_scenario, run_scenario
from kvspec.model.tracing.record import NotLoggedError

if TYPE_CHECKING:
    from rich.console import Console


class Trim(StrEnum):
    """What is kept of a hit where states have to be restored."""

    CONTIGUOUS = "contiguous"
    DEEPEST = "deepest"


_OPTION_OF: Final = {
    "seed": "--seed", "operations": "--operations", "seconds": "--seconds", "kind": "--kind", "form": "--form",
    "num_blocks": "--blocks", "block_size": "--block-size", "num_ranks": "--ranks", "num_single_blocks": "--single",
    "num_state_slots": "--slots", "checkpoint_interval": "--interval", "trim": "--trim",
    "num_host_blocks": "--host-blocks", "num_pages": "--pages", "page_size": "--page-size",
    "variant": "--variant", "max_batch_tokens": "--batch", "max_running": "--running", "window": "--window",
    "num_threads": "--threads", "manager_types": "--group", "prefix_cache": "--no-cache", "sanitizer": "--sanitizer",
    "minimum": "--minimum", "known": "--known",
}  # fmt: skip
FAILURES: Final = Path("conform-failures")
_OF_A_PROCESS: Final = ("crash", "no_return")
"""Rules that are broken by how a process fails, so that what it has said is of interest."""
_SAID: Final = 20
"""Lines of that."""


def conform(
    context: typer.Context,
    target: Annotated[str | None, typer.Argument(help=JUDGED_HELP, show_default=False)] = None,
    command: ExecOption = None,
    call_seconds: CallSecondsOption = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same operations.")] = 0,
    operations: Annotated[
        int | None,
        typer.Option(min=1, help=f"How many; {DEFAULT_OPERATIONS} unless --seconds is given.", show_default=False),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="For how long.", show_default=False)] = None,
    kind: Annotated[Kind, typer.Option(help="Valid operations, wild ones (mostly errors), or both.")] = Kind.MIXED,
    blocks: Annotated[
        int | None,
        typer.Option(min=2, help="Blocks of every pool; by default 2 to 12, in some 40.", show_default=False),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens per block; by default 1 to 4, in some 16.", show_default=False)
    ] = None,
    form: Annotated[
        Form | None, typer.Option(help="What to drive; by default all that the target can be.", show_default=False)
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Ranks of every pool; by default 1 to 3.", show_default=False)
    ] = None,
    single: Annotated[
        int | None, typer.Option(min=2, help="Single blocks of each rank, with 0 (padding).", show_default=False)
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=0, help="State slots of each rank, with 0; 0: no states.", show_default=False)
    ] = None,
    interval: Annotated[
        int | None, typer.Option(min=0, help="Tokens between places for checkpoints.", show_default=False)
    ] = None,
    trim: Annotated[Trim | None, typer.Option(help="What is kept of a hit.", show_default=False)] = None,
    host_blocks: Annotated[
        int | None, typer.Option(min=2, help="Host blocks of each rank, with 0 (padding).", show_default=False)
    ] = None,
    pages: Annotated[
        int | None,
        typer.Option(min=1, help="Physical pages, of managers whose pages are mapped on demand.", show_default=False),
    ] = None,
    page_size: Annotated[int | None, typer.Option(min=1, help="Tokens per page.", show_default=False)] = None,
    variant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of an engine, this manager alone; by default all.", show_default=False),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Tokens of all requests in one step of an engine.", show_default=False)
    ] = None,
    running: Annotated[
        int | None, typer.Option(min=1, help="Requests in one step of an engine.", show_default=False)
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that a query sees, of engines with a sliding window.", show_default=False),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Call from so many threads, in turn.", show_default=False)
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BLOCKS,TOKENS[,WINDOW]",
            help="A group of every composite: blocks, with 0, tokens per block, tokens that a query sees. Repeatable.",
            show_default=False,
        ),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Pools without a prefix cache only.")] = False,
    sanitizer: Annotated[bool, typer.Option("--sanitizer", help="Have the target poison freed blocks.")] = False,
    minimum: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COUNTER=N",
            help="What must have been seen, and how often, such as hits=10; else exit code 3. Repeatable.",
            show_default=False,
        ),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Findings that are known and do not end the run; those of other projects have theirs.",
            show_default=False,
        ),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run this scenario instead.", show_default=False)
    ] = None,
    save: Annotated[Path, typer.Option(metavar="DIR", help="Where a failing scenario goes.")] = FAILURES,
    log: LogOption = None,
    json: JsonOption = None,
    junit: JunitOption = None,
    force: ForceOption = False,
) -> Exit:
    """Drive a KV-cache manager and judge it by the spec."""
    result, cases = JsonFile(json, force=force), JunitFile(junit, force=force)
    logged = LogFile(log, context, force=force)
    all_different(result, cases, logged)
    if replay is not None:
        _nothing_but_a_scenario(context)
        with asked_for(target, command, call_seconds) as asked:
            return _replay(asked, replay, result, cases, logged)
    if save.exists() and not save.is_dir():
        fail_input(f"'{save}' is a file", where="--save", expected="a folder")
    limit = operations if operations is not None or seconds is not None else DEFAULT_OPERATIONS
    sizes: dict[str, Any] = {
        "num_ranks": ranks,
        "num_single_blocks": single,
        "num_state_slots": slots,
        "checkpoint_interval": interval,
        "trim": None if trim is None else trim.value,
        "num_host_blocks": host_blocks,
        "num_pages": pages,
        "page_size": page_size,
        "variant": variant,
        "max_batch_tokens": batch,
        "max_running": running,
        "window": window,
        "manager_types": _groups(group or []) or None,
    }
    try:
        options = ConformOptions(
            seed=seed,
            operations=limit,
            seconds=seconds,
            kind=kind,
            num_blocks=blocks,
            block_size=block_size,
            form=form or _form_of(sizes),
            **sizes,
            num_threads=threads,
            prefix_cache=not no_cache,
            sanitizer=sanitizer,
            minimum=_minimum(minimum or []),
            known=_known(known or environment.known(target or "")),
        )
    except ValueError as error:
        name, colon, rest = str(error).partition(": ")
        where = _OPTION_OF.get(name, name)
        if name == "prefix_cache":
            where = ", ".join([*(_asked(sizes) or [f"--form {form}"]), where])
        fail_input(rest if colon else name, where=where if colon else None)
    check_threads(command, threads)
    with asked_for(target, command, call_seconds) as asked, progress("operations", options.operations) as bar:
        if asked.patience is not None:
            options = msgspec.structs.replace(options, patience=asked.patience)
        try:
            report = drive(asked.make, options, name=asked.name, on_progress=bar.advance, recorder=logged.recorder)
        except NotLoggedError as error:
            not_logged(error, by=", by --form")
    return _finish(asked, report, save, result, cases, logged)


def _nothing_but_a_scenario(context: typer.Context) -> None:
    """Options that say how to drive mean nothing where a scenario is run."""
    driving = {*_OPTION_OF.values(), "--save"}
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "")
        if given is not None and given.name == "COMMANDLINE" and (names := driving & {*option.opts}):
            fail_input(f"given with {min(names)}", where="--replay", expected="one of them")


def _minimum(texts: list[str]) -> dict[str, int]:
    """How often what must be seen, as it is asked for."""
    found = {}
    for text in texts:
        counter, equals, number = text.rpartition("=")
        if not equals or not (number.isascii() and number.isdecimal() and len(number) < 20):
            fail_input(f"'{text}'", where="--minimum", expected="COUNTER=N, as in hits=10")
        found[counter] = int(number)
    return found


def _known(path: Path | None) -> KnownFindings | None:
    try:
        return None if path is None else read_known(path)
    except KnownError as error:
        fail_input(error.what, where=error.where, expected=error.expected)


def _groups(texts: list[str]) -> tuple[ManagerType, ...]:
    """The groups of composites, as they are asked for."""
    found = []
    for text in texts:
        numbers = text.split(",")
        if len(numbers) not in (2, 3) or not all(n.isascii() and n.isdecimal() and len(n) < 20 for n in numbers):
            fail_input(f"'{text}'", where="--group", expected="BLOCKS,TOKENS or BLOCKS,TOKENS,WINDOW, as in 6,2,4")
        try:
            found.append(ManagerType(*map(int, numbers)))
        except ValueError as error:
            fail_input(f"'{text}' has {error}", where="--group")
    return tuple(found)


def _form_of(given: dict[str, object]) -> Form | None:
    """What is driven, by what is asked for of it."""
    asked = {name for name, value in given.items() if value is not None}
    if not asked:
        return None
    form = next((form for form, trait in FORMS.items() if asked <= {*trait.options}), None)
    if form is None:
        fail_input("given together", where=", ".join(_asked(given)), expected="options of one form")
    return form


def _asked(given: dict[str, object]) -> list[str]:
    """The options that were given."""
    return [_OPTION_OF[name] for name, value in sorted(given.items()) if value is not None]


def _finish(
    asked: Asked, report: ConformReport, save: Path, result: JsonFile, cases: JunitFile, logged: LogFile
) -> Exit:
    """Print, save and write everything; an interrupted run then ends as one."""
    code = exit_for(report.verdicts)
    name, violation = asked.name, report.violation
    saved, unsaved = _saved(save, asked, violation, report.options)
    again = None if saved is None else shlex.join(["kvspec", "conform", *asked.words, "--replay", str(saved)])
    said = asked.last_words if violation is not None and violation.rule in _OF_A_PROCESS else []
    print_conform(console(), name, report, saved, again, said, unsaved, logged.write())
    body = {
        "target": name,
        "report": report,
        "rate": round(report.rate, 1),
        "scenario": None if violation is None else scenario_text(violation),
        "saved": None if saved is None else str(saved),
        "last words": said,
    }
    result.write("conform", body, exit=code, complete=not report.interrupted)
    cases.write(conform_cases(name, report), {"target": name, "seed": str(report.options.seed), **_properties(report)})
    if report.interrupted:
        with on_interrupt(lambda: None):
            raise KeyboardInterrupt
    return code


def _properties(report: ConformReport) -> dict[str, str]:
    """What a result was made with, by unambiguous names."""
    return report.versions | {f"target {what}": text for what, text in report.about.items()}


def conform_cases(name: str, report: ConformReport) -> Iterator[Case]:
    """A case for each family, for what must have been seen, and for each known finding."""
    suite, share = f"kvspec conform {name}", report.seconds / len(report.families)
    says = {k.finding.id: k.finding.says for k in report.known}
    for family in report.families:
        message = family.reason
        if family.verdict == "violated" and report.violation is not None:
            message = "\n".join([family.reason, "", scenario_text(report.violation)])
        elif family.verdict == "known":
            message = "; ".join(f"{id}: {says[id]}" for id in family.reason.split(", "))
        yield Case(suite, family.family, share, family.verdict, message)
    if report.minimum:
        verdict = "unknown" if report.unmet else "holds"
        yield Case(suite, "minimum", 0.0, verdict, verdict_line(report) if report.unmet else "")
    for known in report.known:
        yield Case(f"{suite}: known findings", known.finding.id, 0.0, known.verdict, known_words(known))


def print_conform(
    out: Console,
    name: str,
    report: ConformReport,
    saved: Path | None = None,
    again: str | None = None,
    said: Sequence[str] = (),
    unsaved: str = "",
    log: str = "",
) -> None:
    """Print a report.

    Args:
        saved: where the failing run was saved.
        again: how to run it again.
        said: what was last heard from a process that has failed.
        unsaved: why the failing run was not saved.
        log: what is to be said of the log.
    """
    for line in report_lines(name, report):
        out.print(line)
    if report.violation is not None:
        out.print()
        for line in violation_lines(report.violation):
            out.print(line)
        if said:
            out.print()
            out.print("  the last lines on standard error:")
            for line in said[-_SAID:]:
                out.print(f"    {line}")
        if saved is not None:
            out.print()
            out.print(f"  saved as {saved}")
            out.print(f"  run it again: {again}")
        if unsaved:
            out.print()
            out.print(f"  not saved: {unsaved}")
    if log:
        out.print()
        out.print(log)
    out.print()
    out.print(verdict_line(report))


# -- a violation as a file --------------------------------------------------------------------------------------------


def command_line(target: Sequence[str], options: ConformOptions) -> str:
    """The command that drives a target in the same way: the seed, and what is not as it is by default."""
    words = ["kvspec", "conform", *target, "--seed", str(options.seed)]
    usual = ConformOptions()
    for field, option in _OPTION_OF.items():
        value = getattr(options, field)
        if option in words or value is None or value == getattr(usual, field):
            continue
        if field == "manager_types":
            words += [word for kind in value for word in (option, _group_text(kind))]
        elif field == "minimum":
            words += [word for counter, least in value.items() for word in (option, f"{counter}={least}")]
        elif field == "known":
            words += [option, value.file]
        else:
            words += [option] if isinstance(value, bool) else [option, str(value)]
    return shlex.join(words)


def _group_text(kind: ManagerType) -> str:
    """A group as `--group` takes it."""
    return ",".join(str(number) for number in (kind.num_blocks, kind.block_size, kind.window) if number is not None)


def _saved(
    folder: Path, asked: Asked, violation: FoundViolation | None, options: ConformOptions
) -> tuple[Path | None, str]:
    """Where the scenario of a violation is, in a new file of the folder, or why it could not be saved."""
    if violation is None:
        return None, ""
    name = asked.name
    comment = "\n".join(
        [
            f"{name}: {violation.family}/{violation.rule} at the last operation",
            violation.what,
            f"found by {command_line(asked.words, options)}",
        ]
    )
    return saved_or_why(folder, f"{name}.{violation.family}.{violation.rule}", ".kv", scenario_text(violation, comment))


# -- a scenario instead -----------------------------------------------------------------------------------------------


def _replay(asked: Asked, path: Path, result: JsonFile, cases: JunitFile, logged: LogFile) -> Exit:
    """Run a scenario on the target; what it expects is checked, too."""
    name = asked.name
    try:
        scenario = read_scenario(path)
    except ScenarioError as error:
        where = place(error.file, error.line, error.column) if error.line else error.file
        fail_input(error.what, where=where, expected=error.expected)
    if scenario.chapter is not None:
        fail_input("this scenario runs on the spec, not on a target", where=str(path), expected="kvspec run")
    logged.check(scenario.config.form)
    found = run_scenario(scenario, asked.make, recorder=logged.recorder)
    verdict = REPLAYED[found.verdict]
    code = exit_for([verdict])
    out = console()
    for text in scenario_lines(name, path, found):
        out.print(text)
    if log := logged.write():
        out.print(log)
    body = {"target": name, "replay": str(path), "versions": versions(), "result": found}
    result.write("conform", body, exit=code)
    outcome = found.last.outcome if found.lines else ""
    cases.write([Case(f"kvspec conform {name}", str(path), 0.0, verdict, outcome)], {"target": name, **versions()})
    return code
