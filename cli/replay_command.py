"""``kvspec replay``: a request trace on a manager, with every invariant watched."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from kvspec.cli.errors import fail_input
from kvspec.cli.options import CallSecondsOption, ExecOption, ForceOption, JsonOption
from kvspec.cli.output import (
    Exit,
    JsonFile,
    OutputFile,
    all_different,
    console,
    counted,
    exit_for,
    on_interrupt,
    progress,
)
from kvspec.cli.targets import DEFAULT, TARGET_HELP, asked_for, check_threads
from kvspec.model.conformance import Capability, ManagerType, PoolConfig
from kvspec.model.generate_workload import generate_requests
from kvspec.model.judged import JudgedReplay
from kvspec.model.plot import draw_replay
from kvspec.model.replay import ReplayOptions, ReplayReport, most_blocks
from kvspec.model.scenario.language import MAX_RANKS, MAX_THREADS
from kvspec.model.workload import GRANULE, Request, WorkloadError, check_block_size, read_requests, shared_prefixes

BUILT_IN = "builtin"
MAX_BUILT_IN = 1_000_000
"""So many requests the built-in generator makes at most: they are all held in memory."""
MAX_CELLS = 2**31
"""Cells of all ranks, tiers, groups and pages, at most: a pool of that size takes all that most machines have."""

MAX_SINGLE = 4096
"""Single blocks of each rank in a pool of ranks: more requests than that never run at once."""

WORKER_ONLY = ("divide", "slots", "interval", "trim")
MANAGER_ONLY = (
    "target", "command", "call_seconds", "sweep_steps", "plot", "host_blocks", "fail_copies", "window", "pages",
    "page_size", "threads",
)  # fmt: skip
"""Options that mean something with --worker only, and without it only."""

BESIDE = {"fail_copies": "host_blocks", "page_size": "pages"}
"""Options that mean something beside another one only."""

VARIANTS = {"window": "a composite", "pages": "a manager with pages", "ranks": "ranks", "host_blocks": "a host tier"}
"""Options that make a pool a variant, and what it is or has then."""

_OPTION_OF = {"command": "--exec", "num_blocks": "--blocks", "num_pages": "--pages", "num_host_blocks": "--host-blocks"}
"""Fields that are not called as the option that sets them."""


def replay(
    context: typer.Context,
    workload: Annotated[str, typer.Argument(help="A trace in the Mooncake format (JSON lines), or 'builtin'.")],
    target: Annotated[
        str | None,
        typer.Option(help=f"{TARGET_HELP} By default torch; --worker has a pool of its own.", show_default=False),
    ] = None,
    command: ExecOption = None,
    call_seconds: CallSecondsOption = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Only the first so many requests.")] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per block; divides 512.")] = 16,
    blocks: Annotated[int, typer.Option(help="Physical blocks of the pool, padding included.")] = 20_000,
    step_ms: Annotated[int, typer.Option(help="Virtual milliseconds of one engine step.")] = 30,
    max_running: Annotated[int | None, typer.Option(help="Requests that may run at once.")] = None,
    sweep_steps: Annotated[int, typer.Option(min=1, help="Compare the whole state every so many steps.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the built-in workload.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw occupancy, hits and evictions as a PNG file.")] = None,
    worker: Annotated[
        bool, typer.Option("--worker", help="Run a small hybrid model on the pool, and compare what it says.")
    ] = False,
    divide: Annotated[int, typer.Option(help="With --worker: lengths and the pool are so many times smaller.")] = 16,
    slots: Annotated[int, typer.Option(help="With --worker: state slots, padding included; at least 2.")] = 400,
    interval: Annotated[int, typer.Option(help="With --worker: tokens between checkpoints, once divided.")] = 64,
    trim: Annotated[str, typer.Option(help="With --worker: contiguous or deepest.")] = "contiguous",
    ranks: Annotated[int, typer.Option(help="Data-parallel ranks, each with such a pool.")] = 1,
    host_blocks: Annotated[int, typer.Option(min=0, help="Host blocks of each rank; 0: no host tier.")] = 0,
    fail_copies: Annotated[
        int, typer.Option(min=0, help="Every so many-th copy between the tiers fails; 0: none.")
    ] = 0,
    window: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            help="A composite: a group with this window, or 0 for full attention. Repeatable.",
            show_default=False,
        ),
    ] = None,
    pages: Annotated[int, typer.Option(min=0, help="Physical pages that are mapped on demand; 0: all is there.")] = 0,
    page_size: Annotated[int, typer.Option(min=1, help="With --pages: tokens per page.")] = 64,
    threads: Annotated[int, typer.Option(min=1, help="Call the manager from so many threads, in turn.")] = 1,
    json: JsonOption = None,
    force: ForceOption = False,
) -> Exit:
    """Replay a request trace on a manager, every invariant watched."""
    _check_given(context, worker)
    if worker:
        # It needs torch, which takes longer to import than many a replay takes.
        from kvspec.cli.worker_replay import Sizes, replay_worker

        _check_pool(blocks, block_size)
        sizes = Sizes(divide, blocks, block_size, slots, interval, trim, ranks, step_ms, max_running)
        result = JsonFile(json, force=force)
        return replay_worker(workload, read_workload(workload, requests, seed), sizes, result)
    _check_beside(context)
    _check_pool(blocks, block_size)
    _check_variant(context)
    check_threads(command, threads)
    is_pool = ranks > 1 or host_blocks > 0 or (target == "pool" and not window and not pages)
    config = _config(blocks, block_size, ranks, is_pool, host_blocks, window or [], pages, page_size, threads)
    options = _options(step_ms, max_running, fail_copies)
    result, picture = JsonFile(json, force=force), OutputFile(plot, option="--plot", force=force, ours=_is_png)
    all_different(result, picture)
    wanted = read_workload(workload, requests, seed)
    with asked_for(target, command, call_seconds, DEFAULT) as asked, progress("requests", len(wanted)) as bar:
        seen = [0]

        def advance(finished: int, note: str) -> None:
            bar.advance(finished - seen[0], note)
            seen[0] = finished

        run = JudgedReplay(
            asked.make,
            config,
            wanted,
            options,
            sweep_steps=sweep_steps,
            on_step=lambda s: advance(s.finished, f"{s.running} running"),
        )
        report = run.run()
    verdict = verdict_of(run, report)
    code = exit_for([verdict])

    def write() -> None:
        body = {"workload": workload, "target": asked.name, "verdict": verdict, "report": report}
        result.write("replay", body, exit=code, complete=not report.statistics.interrupted)
        if plot is not None:
            picture.write_bytes(draw_replay(report, f"{workload}: {len(wanted)} requests on {asked.name}"))

    describe(run, report, wanted, verdict)
    if report.statistics.interrupted:
        with on_interrupt(write):
            raise KeyboardInterrupt
    write()
    return code


def _check_given(context: typer.Context, worker: bool) -> None:
    """No option is given that would be ignored."""
    ignored = MANAGER_ONLY if worker else WORKER_ONLY
    given = [name for name in ignored if _is_given(context, name)]
    where = ", ".join(map(_option, given))
    if given and worker:
        expected = "without it: it runs the pool that comes with kvspec, and compares outputs"
        fail_input("given with --worker", where=where, expected=expected)
    if given:
        fail_input("given without --worker", where=where, expected="beside it")


def _check_beside(context: typer.Context) -> None:
    """No option is given that would be ignored without another."""
    for name, other in BESIDE.items():
        if _is_given(context, name) and not context.params[other]:
            fail_input(f"given without {_option(other)}", where=_option(name), expected="beside it")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _option(name: str) -> str:
    return _OPTION_OF.get(name, f"--{name.replace('_', '-')}")


def _check_variant(context: typer.Context) -> None:
    """Of composites, pages and ranks, with a host tier or without, one at most is asked for."""
    given = context.params
    asked = [name for name in VARIANTS if (given[name] > 1 if name == "ranks" else given[name])]
    if len(asked) > 1 and asked[0] in ("window", "pages"):
        first, second = asked[:2]
        expected = f"one of the two: {VARIANTS[first]} has no {VARIANTS[second].removeprefix('a ')}"
        fail_input(f"given with {_option(second)}", where=_option(first), expected=expected)


def _config(
    blocks: int,
    block_size: int,
    ranks: int,
    is_pool: bool,
    host_blocks: int,
    windows: list[int],
    pages: int,
    page_size: int,
    threads: int,
) -> PoolConfig:
    """The pool: one manager, a pool of ranks, or a variant of them."""
    for option, number, most in (("--ranks", ranks, MAX_RANKS), ("--threads", threads, MAX_THREADS)):
        if not 1 <= number <= most:
            fail_input(f"{number}", where=option, expected=f"1 to {most}")
    try:
        groups = [ManagerType(num_blocks=blocks, block_size=block_size, window=window or None) for window in windows]
        config = PoolConfig(
            num_blocks=blocks,
            block_size=block_size,
            enable_prefix_cache=not groups,
            num_ranks=ranks,
            num_single_blocks=MAX_SINGLE if is_pool else 0,
            num_host_blocks=host_blocks,
            manager_types=tuple(groups),
            num_pages=pages,
            page_size=page_size if pages else 0,
            num_threads=threads,
        )
    except ValueError as error:
        _fail_option(error)
    if config.num_cells > MAX_CELLS:
        expected = f"at most {MAX_CELLS} in all ranks, tiers, groups and pages"
        fail_input(f"a pool of {config.num_cells} tokens", expected=expected)
    return config


def _options(step_ms: int, max_running: int | None, fail_copies: int) -> ReplayOptions:
    try:
        return ReplayOptions(step_ms=step_ms, max_running=max_running, fail_copies=fail_copies)
    except ValueError as error:
        _fail_option(error)


def _fail_option(error: ValueError) -> NoReturn:
    """The pool or the scheduler refuses a number; they name a field of theirs."""
    name, _, rest = str(error).partition(": ")
    fail_input(rest, where=_option(name))


def _check_pool(blocks: int, block_size: int) -> None:
    try:
        check_block_size(block_size)
    except ValueError:
        fail_input(str(block_size), where="--block-size", expected=f"a divisor of {GRANULE}")
    if blocks * block_size > MAX_CELLS:
        what = f"{blocks} blocks of {block_size} tokens"
        fail_input(what, where="--blocks", expected=f"at most {MAX_CELLS} tokens in all")


def read_workload(workload: str, requests: int | None, seed: int) -> list[Request]:
    """The requests of a trace file, or of the built-in generator (200 unless told otherwise).

    Raises:
        InputError: the file cannot be read, or a line of it is broken.
    """
    if workload == BUILT_IN:
        if requests is not None and requests > MAX_BUILT_IN:
            fail_input(str(requests), where="--requests", expected=f"at most {MAX_BUILT_IN} with '{BUILT_IN}'")
        return list(generate_requests(requests or 200, seed))
    try:
        return list(read_requests(workload, requests))
    except WorkloadError as error:
        fail_input(str(error))


def verdict_of(run: JudgedReplay, report: ReplayReport) -> str:
    """holds, violated, interrupted, or vacuous: not one request was finished, so nothing was judged."""
    if run.violation is not None or report.violations:
        return "violated"
    if report.statistics.interrupted:
        return "interrupted"
    return "holds" if report.statistics.finished else "vacuous"


def describe(run: JudgedReplay, report: ReplayReport, requests: Iterable[Request], verdict: str) -> None:
    """What was seen, for a reader."""
    s, config = report.statistics, report.config
    limit = shared_prefixes(
        requests, config.block_size, hit_limit=run.acceptor.hit_limit, step_ms=report.options.step_ms
    )
    out = console()
    out.print(f"pool         {config.num_blocks - 1} usable blocks of {config.block_size} tokens{_variant(config)}")
    given_up = f", {s.given_up} given up" if s.given_up else ""
    left = f"{s.waiting + s.running} left"
    out.print(f"requests     {s.finished} finished, {s.rejected} larger than the pool{given_up}, {left}")
    if config.enable_prefix_cache:
        device = " on the device" if config.has_host_tier else ""
        out.print(
            f"hits         {s.hit_tokens} of {s.prompt_tokens} prompt tokens{device} ({100 * s.hit_rate:.1f} %); "
            f"{100 * limit.hit_rate:.1f} % with an unlimited pool"
        )
    if s.host_hit_tokens is not None:
        out.print(
            f"host tier    {s.host_hit_tokens} more tokens came from the host; {s.copies} copies done, "
            f"{s.failed_copies} failed, {run.acceptor.counts['host evictions']} keys of the host evicted"
        )
    out.print(f"written      {s.written_tokens} tokens, {s.output_tokens} of them decoded one by one")
    out.print(f"evictions    {s.evictions}    preemptions {s.preemptions}    refusals {s.refusals}")
    if report.series.used:
        usable = report.usable_blocks
        peak, mean = max(report.series.used) / usable, sum(report.series.used) / len(report.series.used) / usable
        out.print(f"occupancy    {100 * peak:.1f} % of the blocks used at most, {100 * mean:.1f} % on average")
    judged = run.acceptor
    out.print(
        f"judged       {judged.number} operations, {_reads(run)}, "
        f"{counted(run.sweeps, 'whole comparison')}; {s.steps} engine steps in {s.wall_seconds:.1f} s"
    )
    for violation in report.violations[:3]:
        out.print(f"violation    step {violation.step}: {violation.name}: {violation.message}")
    if run.violation is not None and not report.violations:
        out.print(f"violation    {run.violation}")
    if verdict == "vacuous":
        out.print("vacuous: nothing was judged, no request fits the pool")
        return
    violations = counted(len(report.violations) or int(run.violation is not None), "violation")
    out.print(f"{verdict}: {violations} (sampled: one run of {counted(s.arrived, 'request')})")


def _reads(run: JudgedReplay) -> str:
    """How often contents were compared with what was computed, or why they were not."""
    if not run.acceptor.sees(Capability.CONTENTS):
        return "contents not observed"
    reads = run.acceptor.counts["reads"]
    return f"{counted(reads, 'read')} of contents" if reads else "contents not read, as nothing was hit"


def _variant(config: PoolConfig) -> str:
    """What a pool has beside blocks."""
    ranks = f" on each of {config.num_ranks} ranks" if config.num_ranks > 1 else ""
    host = f", {config.num_host_blocks - 1} on the host" if config.has_host_tier else ""
    windows = [f"window {k.window}" if k.window is not None else "full attention" for k in config.manager_types]
    groups = f" in each group ({', '.join(windows)})" if windows else ""
    room = f"room for {most_blocks(config)} of them at a time"
    pages = f", {config.num_pages} pages of {config.page_size} tokens ({room})" if config.num_pages else ""
    threads = f", called from {config.num_threads} threads" if config.num_threads > 1 else ""
    return ranks + groups + host + pages + threads


def _is_png(head: bytes) -> bool:
    return head.startswith(b"\x89PNG")
