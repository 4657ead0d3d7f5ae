"""``kvspec replay --worker``: a request trace through a hybrid model on the pool, compared with each request alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, cast, get_args, get_type_hints

import msgspec

from kvspec.cli.errors import fail_input
from kvspec.cli.output import Exit, JsonFile, console, counted, exit_for, on_interrupt, progress
from kvspec.cli.worker_trace import scaled
from kvspec.impl.worker.compare import TOLERANCE, differences
from kvspec.impl.worker.engine import Engine, NoProgressError, fits
from kvspec.impl.worker.memory import num_bytes
from kvspec.impl.worker.model import HybridModel, ModelConfig
from kvspec.impl.worker.reference import reference_logits
from kvspec.impl.worker.stream import Counts, EngineConfig, Request
from kvspec.impl.worker.threads import one_thread
from kvspec.model.conformance import PoolConfig
from kvspec.model.workload import GRANULE
from kvspec.model.workload import Request as TraceRequest

MODEL: Final = ModelConfig(layers=("linear", "attention", "linear", "attention"))
CHUNK: Final = 128
MAX_RUNNING: Final = 128
LIMITS: Final = {"slots": (2, 1 << 16), "interval": (1, 1 << 16), "ranks": (1, 1 << 10)}
"""From what to what these options may go; slot 0 is padding."""
TRIMS: Final = get_args(get_type_hints(PoolConfig)["trim"])
MAX_BYTES: Final = 1 << 32
"""Of K, V and states of all ranks, at most: that much many a machine has to spare."""


class Sizes(NamedTuple):
    """What the command was given; blocks and step_ms are those of the trace, before lengths are divided."""

    divide: int
    blocks: int
    block_size: int
    slots: int
    interval: int
    trim: str
    ranks: int
    step_ms: int
    max_running: int | None


class WorkerReport(msgspec.Struct):
    """What a run has shown.

    Attributes:
        config, model: what ran.
        divide: lengths of the trace and blocks of the pool were divided by this.
        requests, too_large: requests that ran; requests that have no room in the pool.
        prompt_tokens: of those that ran.
        counts: what happened; of an interrupted run, until then.
        tolerance: what two logits may differ by.
        largest_difference: of all logits; None of a run that did not come to its end.
        different: numbers of the requests in the trace whose outputs differ by more.
        refused: what was refused though it fits; the run ended there.
    """

    config: EngineConfig
    model: ModelConfig
    divide: int
    requests: int
    too_large: int
    prompt_tokens: int
    counts: Counts
    tolerance: float = TOLERANCE
    largest_difference: float | None = None
    different: list[int] = msgspec.field(default_factory=list)
    refused: str | None = None


def replay_worker(workload: str, trace: Sequence[TraceRequest], sizes: Sizes, result: JsonFile) -> Exit:
    """Run the requests through an engine with everything on, and compare their outputs with the reference.

    Raises:
        InputError: a size makes no sense.
    """
    config = config_of(sizes, len(trace))
    stream = scaled(trace, sizes.divide, sizes.step_ms, MODEL.vocabulary)
    numbers = [number for number, request in enumerate(stream) if fits(request, config.pool)]
    requests = [stream[number] for number in numbers]
    prompt_tokens = sum(len(request.prompt) for request in requests)
    report = WorkerReport(
        config, MODEL, sizes.divide, len(requests), len(stream) - len(requests), prompt_tokens, Counts()
    )

    def write(verdict: str) -> None:
        body = {"workload": workload, "verdict": verdict, "report": report}
        result.write("replay-worker", body, exit=exit_for([verdict]), complete=verdict != "interrupted")

    with on_interrupt(lambda: write("interrupted")), one_thread():
        verdict = _run(report, requests, numbers)
    describe(report, verdict)
    write(verdict)
    return exit_for([verdict])


def config_of(sizes: Sizes, num_requests: int) -> EngineConfig:
    """The engine and its pool, with as many single blocks as requests can run at once.

    Raises:
        InputError: a size makes no sense, or the pool is too large.
    """
    _check(sizes)
    wanted = MAX_RUNNING if sizes.max_running is None else sizes.max_running
    max_running = min(wanted, max(num_requests, 1))
    try:
        pool = PoolConfig(
            num_blocks=sizes.blocks // sizes.divide,
            block_size=sizes.block_size,
            sanitizer=True,
            num_single_blocks=max_running + 1,
            num_ranks=sizes.ranks,
            num_state_slots=sizes.slots,
            checkpoint_interval=sizes.interval,
            trim=cast(Literal["contiguous", "deepest"], sizes.trim),
        )
        config = EngineConfig(pool=pool, chunk=CHUNK, max_running=max_running)
    except ValueError as error:
        fail_input(str(error))
    if (needed := num_bytes(MODEL, pool)) > MAX_BYTES:
        what, expected = f"{needed / 2**30:,.1f} GiB of K, V and states", f"at most {MAX_BYTES >> 30} GiB in all"
        fail_input(what, where="--blocks, --slots, --ranks", expected=expected)
    return config


def _check(sizes: Sizes) -> None:
    """The options by their names, before they become words of a config."""
    if sizes.divide < 1 or GRANULE % sizes.divide:
        fail_input(str(sizes.divide), where="--divide", expected=f"a divisor of {GRANULE}")
    if sizes.blocks < (least := 2 * sizes.divide):
        expected = f"at least {least}: 2 once divided by {sizes.divide}, of which one is padding"
        fail_input(str(sizes.blocks), where="--blocks", expected=expected)
    if sizes.step_ms < 1:
        fail_input(str(sizes.step_ms), where="--step-ms", expected="at least 1")
    for name, (least, most) in LIMITS.items():
        if not least <= (number := getattr(sizes, name)) <= most:
            padding = ", slot 0 (padding) included" if name == "slots" else ""
            fail_input(str(number), where=f"--{name}", expected=f"{least} to {most}{padding}")
    if sizes.trim not in TRIMS:
        fail_input(f"'{sizes.trim}'", where="--trim", expected=" or ".join(TRIMS))
    if sizes.max_running is not None and sizes.max_running < 1:
        fail_input(str(sizes.max_running), where="--max-running", expected="at least 1")


def _run(report: WorkerReport, requests: list[Request], numbers: list[int]) -> str:
    """Fill the report; the verdict."""
    if not requests:
        return "vacuous"
    model = HybridModel(report.model)
    engine = Engine(model, report.config)
    report.counts = engine.counts_
    with progress("requests", len(requests)) as bar:
        seen = [0]

        def advance(finished: int) -> None:
            bar.advance(finished - seen[0], f"{len(engine.running_)} running")
            seen[0] = finished

        try:
            outcome = engine.run(requests, on_step=advance)
        except NoProgressError as error:
            report.refused = str(error)
            return "violated"
    apart = differences(outcome.logits, reference_logits(model, requests))
    report.largest_difference = max(apart)
    report.different = [number for number, far in zip(numbers, apart, strict=True) if far >= report.tolerance]
    return "violated" if report.different or report.counts.misuse else "holds"


def describe(report: WorkerReport, verdict: str) -> None:
    """What was seen, for a reader."""
    out, counts, pool = console(), report.counts, report.config.pool
    ranks = f" in each of {pool.num_ranks} ranks" if pool.num_ranks > 1 else ""
    out.print(
        f"pool         {pool.num_blocks - 1} usable blocks of {pool.block_size} tokens, {pool.num_state_slots - 1} "
        f"state slots{ranks}; freed ones are filled with NaN"
    )
    out.print(
        f"scale        lengths and pool divided by {report.divide}; a boundary every {pool.stride} tokens; {pool.trim}"
    )
    out.print(f"requests     {report.requests} to run, {report.too_large} larger than the pool")
    if verdict == "vacuous":
        out.print("vacuous: nothing was judged, no request fits the pool")
        return
    out.print(
        f"hits         {counts.hit_tokens} tokens, beside {report.prompt_tokens} of prompts; "
        f"{counts.computed_tokens} computed, {counts.output_tokens} of them outputs"
    )
    out.print(
        f"states       {counts.saves} saved, {counts.restores} restored    trimmed {counts.trimmed_blocks} blocks"
    )
    out.print(
        f"evictions    {counts.evicted_blocks} blocks, {counts.evicted_states} states    "
        f"preemptions {counts.preemptions}    refusals {counts.refusals}"
    )
    if counts.misuse:
        out.print(f"misuse       {counted(counts.misuse, 'lost or twice freed handle')}")
    if report.refused is not None:
        out.print(f"violated: {report.refused}")
        return
    out.print(f"difference   {report.largest_difference:.1e} at most, tolerance {report.tolerance:.0e}")
    if report.different:
        named = ", ".join(map(str, report.different[:10])) + (", ..." if len(report.different) > 10 else "")
        out.print(f"different    {counted(len(report.different), 'request')}: {named}")
    if verdict == "holds":
        out.print("holds: every request says what it says alone (sampled: one run)")
    else:
        out.print("violated: what a request says depends on what else the pool did, or handles were misused")
