"""``kvspec conform``: drives a KV-cache manager by random operations and judges it by the spec."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvspec.cli.errors import fail_input, place
from kvspec.cli.options import ForceOption, JsonOption, JunitOption
from kvspec.cli.output import Case, Exit, JsonFile, JunitFile, console, exit_for, on_interrupt, progress, save_text
from kvspec.cli.targets import TARGET_HELP, drivable, load_target
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
from kvspec.model.operations import Operation
from kvspec.model.promises import PROMISES, Family
from kvspec.model.scenario import (
    Check,
    Error,
    LineResult,
    ScenarioError,
    ScenarioResult,
    format_scenario,
    read_scenario,
    run_scenario,
)

if TYPE_CHECKING:
    from rich.console import Console

_COUNTS: Final = (
    "taken", "hits", "published", "evictions", "copies", "forks", "truncations", "preemptions", "refusals", "errors",
    "reads",
)  # fmt: skip
_COUNTS_OF: Final = {
    Family.RANK: ("ranks", "trims", "saves", "restores", "states"),
    Family.WINDOW: ("slides",),
    Family.TIERS: ("offloads", "loads", "fetched", "copied", "copies failed", "tokens loaded", "host evictions"),
}
"""What else is counted where something can break a family."""
_WORDS: Final = {
    "taken": "blocks handed out", "published": "keys published", "ranks": "ranks chosen", "trims": "hits trimmed",
    "fetched": "blocks from a store", "copied": "copies done", "states": "states read",
    "slides": "blocks behind a window given back",
}  # fmt: skip


class Trim(StrEnum):
    """What is kept of a hit where states have to be restored."""

    CONTIGUOUS = "contiguous"
    DEEPEST = "deepest"


_OPTION_OF: Final = {
    "seed": "--seed", "operations": "--operations", "seconds": "--seconds", "kind": "--kind", "form": "--form",
    "num_blocks": "--blocks", "block_size": "--block-size", "num_ranks": "--ranks", "num_single_blocks": "--single",
    "num_state_slots": "--slots", "checkpoint_interval": "--interval", "trim": "--trim",
    "num_host_blocks": "--host-blocks", "num_pages": "--pages", "page_size": "--page-size",
    "num_threads": "--threads", "manager_types": "--group", "prefix_cache": "--no-cache", "sanitizer": "--sanitizer",
}  # fmt: skip
FAILURES: Final = Path("conform-failures")
_REPLAYED: Final = {"passed": "holds", "failed": "violated", "violated": "violated", "not observed": "not observed"}


def conform(
    target: Annotated[str, typer.Argument(help=TARGET_HELP)],
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
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run this scenario instead.", show_default=False)
    ] = None,
    save: Annotated[Path, typer.Option(metavar="DIR", help="Where a failing scenario goes.")] = FAILURES,
    json: JsonOption = None,
    junit: JunitOption = None,
    force: ForceOption = False,
) -> Exit:
    """Drive a KV-cache manager and judge it by the spec."""
    result, cases = JsonFile(json, force=force), JunitFile(junit, force=force)
    if replay is not None:
        return _replay(target, replay, result, cases)
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
        )
    except ValueError as error:
        name, colon, rest = str(error).partition(": ")
        where = _OPTION_OF.get(name, name)
        if name == "prefix_cache":
            where = ", ".join([*(_asked(sizes) or [f"--form {form}"]), where])
        fail_input(rest if colon else name, where=where if colon else None)
    with drivable(target), progress("operations", options.operations) as bar:
        report = drive(load_target(target), options, on_progress=bar.advance)
    return _finish(target, report, save, result, cases)


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


def _finish(name: str, report: ConformReport, save: Path, result: JsonFile, cases: JunitFile) -> Exit:
    """Print, save and write everything; an interrupted run then ends as one."""
    code = exit_for(f.verdict for f in report.families)
    violation = report.violation
    saved = _save(save, name, violation, report.options) if violation is not None else None
    print_conform(console(), name, report, saved)
    body = {
        "target": name,
        "report": report,
        "rate": round(report.rate, 1),
        "scenario": None if violation is None else scenario_text(violation),
        "saved": None if saved is None else str(saved),
    }
    result.write("conform", body, exit=code, complete=not report.interrupted)
    cases.write(conform_cases(name, report))
    if report.interrupted:
        with on_interrupt(lambda: None):
            raise KeyboardInterrupt
    return code


def conform_cases(name: str, report: ConformReport) -> Iterator[Case]:
    """A case for each family."""
    share = report.seconds / len(report.families)
    for family in report.families:
        message = family.reason
        if family.verdict == "violated" and report.violation is not None:
            message = "\n".join([family.reason, "", scenario_text(report.violation)])
        yield Case(f"kvspec conform {name}", family.family, share, family.verdict, message)


# -- a violation as a file --------------------------------------------------------------------------------------------


def scenario_text(violation: FoundViolation, comment: str = "") -> str:
    """The run as a scenario; calls that must be answered with an error say so."""
    lines: list[Operation | Check] = []
    for operation, error in zip(violation.operations, violation.errors, strict=True):
        lines += [operation, Error()] if error else [operation]
    return format_scenario(lines, violation.config, comment=comment)


def command_line(name: str, options: ConformOptions) -> str:
    """The command that drives a target in the same way: the seed, and what is not as it is by default."""
    words = ["kvspec", "conform", name, "--seed", str(options.seed)]
    usual = ConformOptions()
    for field, option in _OPTION_OF.items():
        value = getattr(options, field)
        if option in words or value is None or value == getattr(usual, field):
            continue
        if field == "manager_types":
            words += [word for kind in value for word in (option, _group_text(kind))]
        else:
            words += [option] if isinstance(value, bool) else [option, str(value)]
    return shlex.join(words)


def _group_text(kind: ManagerType) -> str:
    """A group as `--group` takes it."""
    return ",".join(str(number) for number in (kind.num_blocks, kind.block_size, kind.window) if number is not None)


def _save(folder: Path, name: str, violation: FoundViolation, options: ConformOptions) -> Path:
    """Write the scenario into a new file of the folder."""
    comment = "\n".join(
        [
            f"{name}: {violation.family}/{violation.rule} at the last operation",
            violation.what,
            f"found by {command_line(name, options)}",
        ]
    )
    return save_text(folder, f"{name}.{violation.family}.{violation.rule}", ".kv", scenario_text(violation, comment))


# -- a scenario instead -----------------------------------------------------------------------------------------------


def _replay(name: str, path: Path, result: JsonFile, cases: JunitFile) -> Exit:
    """Run a scenario on the target; what it expects is checked, too."""
    make_target = load_target(name)
    try:
        scenario = read_scenario(path)
    except ScenarioError as error:
        where = place(error.file, error.line, error.column) if error.line else error.file
        fail_input(error.what, where=where, expected=error.expected)
    if scenario.chapter is not None:
        fail_input("this scenario runs on the spec, not on a target", where=str(path), expected="kvspec run")
    with drivable(name):
        found = run_scenario(scenario, make_target)
    verdict = _REPLAYED[found.verdict]
    code = exit_for([verdict])
    _print_replayed(console(), name, path, found)
    result.write("conform", {"target": name, "replay": str(path), "result": found}, exit=code)
    cases.write([Case(f"kvspec conform {name}", str(path), 0.0, verdict, found.last.outcome if found.lines else "")])
    return code


def _print_replayed(out: Console, name: str, path: Path, found: ScenarioResult) -> None:
    out.print(f"{path} on {name}: {_told(len(found.lines), 'lines')} run, {_REPLAYED[found.verdict]}")
    if found.lines and found.verdict in ("failed", "violated"):
        _print_line(out, found.last)


def _print_line(out: Console, line: LineResult) -> None:
    out.print(f"line {line.number}: {line.text}")
    out.print(f"  {line.outcome}")
    _print_state(out, "before", line.before)
    _print_state(out, "after", line.after)


# -- the terminal -----------------------------------------------------------------------------------------------------


def print_conform(out: Console, name: str, report: ConformReport, saved: Path | None = None) -> None:
    """Print a report; with the place where the failing run was saved, how to run it again."""
    end = " (interrupted)" if report.interrupted else ""
    options = report.options
    out.print(
        f"{name}: {_told(report.operations, 'operations')} in {_told(report.episodes, 'pools')}{end}, "
        f"seed {options.seed}, {options.kind}, {report.seconds:.1f} s, {report.rate:,.0f} operations/s"
    )
    judged = {f.family for f in report.families}
    more = [counts for family, counts in _COUNTS_OF.items() if family in judged]
    for counted_in in (_COUNTS, *more):
        happened = [_told(report.counts.get(c, 0), _WORDS.get(c, c)) for c in counted_in]
        out.print(f"  {', '.join(happened)}")
    out.print(
        f"  pools of up to {report.most_blocks} blocks, blocks of up to {_told(report.longest_block, 'tokens')}, "
        f"up to {_told(report.longest_episode, 'operations')} in one pool"
    )
    out.print()
    for family in report.families:
        seen = f"sampled, {_told(family.count, family.unit)}" if family.verdict == "holds" else family.reason
        out.print(f"  {family.family:<22}{family.verdict:<14}{seen}")
    if report.violation is not None:
        _print_violation(out, name, report.violation, saved)
    out.print()
    out.print(_verdict_line(report))


def _verdict_line(report: ConformReport) -> str:
    """All families in one line."""
    counts = Counter(f.verdict for f in report.families)
    held = _told(counts["holds"], "families")
    told = [f"{held} {'holds' if counts['holds'] == 1 else 'hold'}"] if counts["violated"] else []
    if counts["not observed"]:
        told.append(f"{counts['not observed']} not observed")
    if report.violation is not None:
        broken = f"{report.violation.family}/{report.violation.rule}"
        return f"violated: {broken}; {', '.join(told)}"
    if not counts["holds"]:
        return f"nothing was observed ({_told(len(report.families), 'families')})"
    return f"holds: {', '.join([held, *told])} (sampled)"


def _told(number: int, what: str) -> str:
    """``1 copy between tiers``, ``2 copies between tiers``; `what` is in the plural, with all its alternatives."""
    if number == 1:
        alternatives = re.split("(, | or )", what)
        what = "".join(re.sub(r"(ie)?s\b", lambda end: "y" if end[1] else "", one, count=1) for one in alternatives)
    return f"{number:,} {what}"


def _print_violation(out: Console, name: str, violation: FoundViolation, saved: Path | None) -> None:
    out.print()
    out.print(f"VIOLATED {violation.family}/{violation.rule} by operation {violation.number}: {violation.operation}")
    out.print(f"  {violation.what}")
    out.print(f"  hint: {PROMISES[Family(violation.family)]}")
    out.print(f"        (kvspec explain {violation.family}/{violation.rule})")
    out.print(f"  found at operation {violation.found_at} of pool {violation.episode}")
    _print_state(out, "before", violation.before)
    _print_state(out, "after", violation.after)
    out.print()
    out.print(_how_small(violation))
    for line in scenario_text(violation).splitlines():
        out.print(f"    {line}")
    if saved is not None:
        out.print()
        out.print(f"  saved as {saved}")
        out.print(f"  run it again: kvspec conform {name} --replay {saved}")


def _how_small(violation: FoundViolation) -> str:
    count = _told(len(violation.operations), "operations")
    if not violation.reproduced:
        return f"  the run of {count}, as it was; it was not seen to fail a second time:"
    if not violation.shrunk:
        return f"  the shortest run found in the time ({count}):"
    return f"  a run that shows it ({count}; none can be taken out):"


def _print_state(out: Console, title: str, state: list[str]) -> None:
    for number, fact in enumerate(state):
        out.print(f"    {title if not number else '':<8}{fact}")
