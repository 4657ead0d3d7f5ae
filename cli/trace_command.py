"""``kvspec trace``: the first event of a log that no correct manager could have produced."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, get_args

import msgspec
import typer

from kvspec.cli.errors import fail_input, place
from kvspec.cli.options import ForceOption, JsonOption, JunitOption
from kvspec.cli.output import (
    Case,
    Exit,
    JsonFile,
    JunitFile,
    all_different,
    console,
    counted,
    exit_for,
    on_interrupt,
    progress,
)
from kvspec.model.plain import printable
from kvspec.model.reporting.saving import saved_or_why
from kvspec.model.scenario import ScenarioError
from kvspec.model.scenario.events import chapter_names, load_chapter
from kvspec.model.tracing.feed import Engine, detect, is_frames
from kvspec.model.tracing.log import lines
from kvspec.model.tracing.schema import log_schema
from kvspec.model.tracing.stream import KINDS, FinalKey, StreamReport, judge_stream, listed, read_final
from kvspec.model.tracing.trace import TraceReport, trace_events

if TYPE_CHECKING:
    from rich.console import Console

FAILURES: Final = Path("trace-failures")
_SHOWN: Final = 10
"""Findings of a stream that are printed; the result file has all."""
_STARTS: Final = {
    "start": "from the start state",
    "snapshot": "from a snapshot",
    "unknown": "from a state that is not known",
}
_STREAM_ONLY: Final = ("engine", "groups", "blocks", "final")


def trace(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="LOG", help="The files of one log, the oldest first (docs/traces.md).", show_default=False
        ),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="The log begins with the start state, or the start of the engine.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option(help="KV events of vllm or sglang; found out if it is not given.", show_default=False)
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="KINDS",
            help="KV events: what the groups are, such as full,window; or state.",
            show_default=False,
        ),
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(min=1, help="KV events: blocks of each rank for keys, without padding.", show_default=False),
    ] = None,
    final: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="KV events: compare the keys at the end with this dump.", show_default=False),
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(metavar="CHAPTER", help="Print the JSON schema of a log of a chapter.", show_default=False),
    ] = None,
    save: Annotated[Path, typer.Option(metavar="DIR", help="Where a scenario of the finding goes.")] = FAILURES,
    json: JsonOption = None,
    junit: JunitOption = None,
    force: ForceOption = False,
) -> Exit:
    """Find the first event of a log that no correct manager makes."""
    if schema is not None:
        return _print_schema(schema)
    if not files:
        fail_input("no log", where="LOG", expected="one file or more")
    for file in files:
        if file.exists() and not file.is_file():
            fail_input(f"'{file}' is no regular file", where="LOG", expected="a file, packed or not")
    if save.exists() and not save.is_dir():
        fail_input(f"'{save}' is a file", where="--save", expected="a folder")
    result, cases = JsonFile(json, force=force), JunitFile(junit, force=force)
    all_different(result, cases)
    start = time.monotonic()

    def write(report: TraceReport | StreamReport | None, saved: Path | None, message: str) -> Exit:
        verdict = "interrupted" if report is None else _verdict(report)
        body = {"log": list(map(str, files)), "kind": _kind(report), "verdict": verdict, "report": report}
        code = exit_for([verdict])
        result.write("trace", {**body, "saved": saved and str(saved)}, exit=code, complete=report is not None)
        cases.write([Case("kvspec trace", str(files[-1]), time.monotonic() - start, verdict, message)])
        return code

    def stop() -> None:
        write(None, None, "interrupted")

    try:
        with on_interrupt(stop), progress("events") as bar:
            done = [0]

            def advance(events: int) -> None:
                bar.advance(events - done[0])
                done[0] = events

            if engine is not None or _is_stream(files[0]):
                report: TraceReport | StreamReport = _stream(files, engine, from_start, groups, blocks, final, advance)
            else:
                _check_options(context)
                report = trace_events(files, from_start=from_start, progress=advance)
    except ScenarioError as error:
        _fail(error)
    out = console()
    if isinstance(report, StreamReport):
        _print_stream(out, report)
        return write(report, None, "\n".join(listed(report.findings)))
    saved, unsaved = _save(save, report) if report.scenario else (None, "")
    _print_events(out, report, saved, unsaved)
    found = report.finding
    return write(report, saved, "" if found is None else f"{found.file}:{found.line}: {found.rule}: {found.says}")


def _check_options(context: typer.Context) -> None:
    for name in _STREAM_ONLY:
        if context.params[name] is not None:
            fail_input("a log of events of the spec", where=f"--{name}", expected="a stream of KV events")


def _fail(error: ScenarioError) -> NoReturn:
    where = place(error.file, error.line, error.column or None) if error.line else error.file
    fail_input(error.what, where=where, expected=error.expected)


def _print_schema(chapter: str) -> Exit:
    try:
        found = log_schema(load_chapter(chapter), chapter)
    except KeyError:
        fail_input(f"unknown chapter '{chapter}'", where="--schema", expected="one of " + ", ".join(chapter_names()))
    typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    return Exit.HOLDS


# -- which kind of log ------------------------------------------------------------------------------------------------


def _is_stream(path: Path) -> bool:
    """Whether a log has KV events of an engine: frames, or batches in JSON."""
    if is_frames(path):
        return True
    for _, line, _ in lines(path):
        try:
            first = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return isinstance(first, list) or (
            isinstance(first, dict) and bool(first.keys() & {"events", "batch", "hex", "base64"})
        )
    return False


def _stream(
    files: list[Path],
    engine: str | None,
    from_start: bool,
    groups: str | None,
    blocks: int | None,
    final: Path | None,
    advance: Callable[[int], None],
) -> StreamReport:
    kinds = groups.split(",") if groups else []
    if wrong := [kind for kind in kinds if kind not in KINDS]:
        fail_input(f"'{wrong[0]}'", where="--groups", expected=f"some of {', '.join(KINDS)}, with commas")
    dump: list[FinalKey] | None = None if final is None else read_final(final)
    found = _engine(engine) if engine is not None else detect(files)
    if found is None:
        fail_input("nothing tells whose events these are", where=str(files[0]), expected="--engine vllm or sglang")
    return judge_stream(files, found, from_start=from_start, groups=kinds, blocks=blocks, final=dump, progress=advance)


def _engine(name: str) -> Engine:
    for engine in get_args(Engine):
        if engine == name:
            return engine  # type: ignore[no-any-return]
    fail_input(f"'{name}'", where="--engine", expected="vllm or sglang")


# -- the result -------------------------------------------------------------------------------------------------------


def _kind(report: TraceReport | StreamReport | None) -> str | None:
    return None if report is None else "stream" if isinstance(report, StreamReport) else "events"


def _verdict(report: TraceReport | StreamReport) -> str:
    if isinstance(report, StreamReport):
        wrong, seen = bool(report.findings), report.events
    else:
        wrong, seen = report.finding is not None, report.events + report.snapshots
    return "violated" if wrong else "holds" if seen else "vacuous"


def _save(folder: Path, report: TraceReport) -> tuple[Path | None, str]:
    """Where the scenario is, or why it could not be saved."""
    assert report.finding is not None
    comment = f"# {report.finding.rule}: {report.finding.says}\n"
    return saved_or_why(folder, report.finding.rule.replace("/", "."), ".kv", comment + report.scenario)


def _print_events(out: Console, report: TraceReport, saved: Path | None, unsaved: str) -> None:
    if report.chapter:
        out.print(f"chapter      {report.chapter}, {_STARTS[report.started]}")
    shots = f", {counted(report.snapshots, 'snapshot')}" if report.snapshots else ""
    out.print(f"events       {report.events:,} behind {counted(report.files, 'header')}{shots}")
    _print_unknown(out, report)
    for cut in report.cuts:
        out.print(f"cut          {cut}: the file ends in the middle of a line")
    for hole in report.holes:
        out.print(f"hole         {hole}; from here on the state is not known")
    if report.finding is None:
        if not report.events + report.snapshots:
            out.print("vacuous: the log has no events")
        else:
            out.print(f"holds in {counted(report.events, 'event')}")
        return
    found = report.finding
    out.print(f"violated at event {found.event:,} ({found.file}:{found.line}): {found.rule}")
    out.print(f"  says       {found.says}")
    if found.because:
        out.print(f"  because    {found.because}")
    out.print(f"  line       {printable(found.text)}")
    for title, state in (("before", found.before), ("after", found.after)):
        for number, fact in enumerate(state):
            out.print(f"  {title if not number else '':<11}{fact}")
    if saved is not None:
        out.print(f"  run it     kvspec run {saved}")
    if unsaved:
        out.print(f"  not saved  {unsaved}")


def _print_unknown(out: Console, report: TraceReport) -> None:
    if report.believed:
        what = "event required" if report.believed == 1 else "events required"
        out.print(f"believed     {report.believed:,} {what} what the log had not told")
    for name, number in report.unknown.items():
        out.print(f"unknown      {number:,} that may or may not be in {name} at the end")


def _print_stream(out: Console, report: StreamReport) -> None:
    start = "the start of the engine" if report.started == "start" else "a state that is not known"
    out.print(f"engine       {report.engine}, from {start}")
    out.print(
        f"events       {report.events:,} in {counted(report.messages, 'message')}: {report.stored:,} keys stored, "
        f"{report.removed:,} removed, all cleared {counted(report.cleared, 'time')}"
    )
    for place_ in report.keys:
        where = f"rank {place_['rank']}, group {place_['group']}, {printable(str(place_['medium']))}"
        out.print(f"at the end   {counted(place_['keys'], 'key')}, {place_['copies']:,} copies ({where})")
    if report.unknown:
        out.print(f"unknown      {report.unknown:,} keys that may have been stored before the stream begins")
    for cut in report.cuts:
        out.print(f"cut          {cut}: the file ends in the middle of a message")
    for note in report.notes:
        times = report.note_counts[note.rule]
        out.print(
            f"note         {place(note.file, note.line)}: event {note.event:,}: {note.what} ({counted(times, 'time')})"
        )
        out.print(f"             {note.rule}: {note.says}")
    if not report.findings:
        out.print(f"holds in {counted(report.events, 'event')}" if report.events else "vacuous: there are no events")
        return
    out.print(f"violated: {counted(len(report.findings), 'finding')}")
    for finding in report.findings[:_SHOWN]:
        where = place(finding.file, finding.line)
        out.print(f"  event {finding.event:,} ({where}): {finding.rule}: {finding.what}")
        out.print(f"    says     {finding.says}")
    if len(report.findings) > _SHOWN:
        out.print(f"  and {len(report.findings) - _SHOWN} more")
