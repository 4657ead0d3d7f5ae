"""What SGLang notices itself of a planted fault: the engine runs without a judge, and with SGLang's own checks.

.peers/bin/python tests/peers/sglang_checks.py TARGET FILE.py FUNCTION [--all]

Its checks when idle are always there, as they are in a server (`Scheduler.on_idle`); ``--all`` adds those that have to
be switched on (SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY, SGLANG_CHECK_KV_PAGE_INVARIANTS, SGLANG_DEBUG_MEMORY_POOL).
It prints what was raised, and after how many operations; or that nothing was.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, Final

ALL: Final = "--all" in sys.argv
for name in ("SGLANG_CHECK_KV_PAGE_INVARIANTS", "SGLANG_DEBUG_MEMORY_POOL"):
    os.environ[name] = str(ALL)
os.environ["SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY"] = "1" if ALL else "0"

from importlib import import_module  # noqa: E402
from importlib.util import module_from_spec, spec_from_file_location  # noqa: E402
from types import SimpleNamespace  # noqa: E402

from kvspec.impl.adapters import environment, sglang_published  # noqa: E402
from kvspec.impl.adapters.sglang_cache import TreeCache  # noqa: E402
from kvspec.model.engines.generator import EngineGenerator, engine_config  # noqa: E402
from kvspec.model.engines.protocol import Ended  # noqa: E402
from kvspec.model.generator import RandomSource  # noqa: E402
from kvspec.model.operations import Abort, Evict, Reset, Step, Submit  # noqa: E402

OPERATIONS: Final = 4000
EPISODE: Final = 60
IDLE_STEPS: Final = 50


def checker(engine: Any) -> Any:
    """The package's own checks of an engine."""
    from sglang.srt.disaggregation.utils import DisaggregationMode
    from sglang.srt.managers.scheduler_components.invariant_checker import SchedulerInvariantChecker
    from sglang.srt.managers.scheduler_components.pool_stats_observer import SchedulerPoolStatsObserver

    cache = engine._cache
    windows, states = cache.tree.supports_swa(), cache.tree.supports_mamba()
    full = cache.allocator.size_full
    shared = {
        "is_hybrid_swa": windows, "is_hybrid_ssm": states, "full_tokens_per_layer": full,
        "swa_tokens_per_layer": cache.allocator.size_swa if windows else None, "max_total_num_tokens": full,
        "tree_cache": cache.tree, "token_to_kv_pool_allocator": cache.allocator, "req_to_token_pool": cache.rows,
    }  # fmt: skip
    observer = SchedulerPoolStatsObserver(
        session_controller=None, hisparse_coordinator=None, enable_hisparse=False, **shared
    )
    return SchedulerInvariantChecker(
        disaggregation_mode=DisaggregationMode.NULL, page_size=cache.page_size, pool_stats_observer=observer,
        get_last_batch=lambda: engine._last, get_running_batch=lambda: engine._running,
        get_chunked_req=lambda: engine._chunked, scheduler_stage_metrics=None, **shared,
    )  # fmt: skip


def check(engine: Any, checks: Any) -> None:
    """What the scheduler checks behind a step."""
    if ALL and engine._last is not None:
        checks.self_check_during_busy()
    if not engine._reqs:  # Scheduler.on_idle
        has_leak, messages = checks._check_all_pools(checks.pool_stats_observer.get_pool_stats())
        if has_leak:
            checks._report_leak("pool", "\n".join(messages))
        checks._check_req_pool()
        checks._check_tree_cache()


def do(engine: Any, operation: Any, live: dict[str, None]) -> None:
    match operation:
        case Submit(seq, tokens, output, context, priority):
            live[seq] = None
            records = engine.submit(seq, tokens, output, context, priority)
        case Step(count):
            records = [record for _ in range(count) for record in engine.step()]
        case Abort(seq):
            records = engine.abort(seq)
        case Evict(num_blocks):
            records = engine.evict(num_blocks)
        case Reset():
            records = engine.reset()
    for record in records:
        if isinstance(record, Ended):
            live.pop(record.seq, None)


def episode(adapter: Any, number: int) -> int:
    """Run one engine; how many operations it was asked for."""
    source = RandomSource(number)
    config = engine_config(source, adapter.ABILITIES)
    engine = adapter.make(config)
    checks, live = checker(engine), {}
    generator = EngineGenerator(source, config, SimpleNamespace(requests=live, layout=engine.layout()), frozenset())
    for _ in range(EPISODE):
        do(engine, generator.next(), live)
        check(engine, checks)
    for _ in range(IDLE_STEPS):
        if live:
            do(engine, Step(1), live)
            check(engine, checks)
    return EPISODE


def main() -> None:
    target, file, function = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    adapter = import_module(environment.module(target))
    TreeCache.check = lambda self, paths: None  # what the adapter would notice does not count
    sglang_published.Published.compare = lambda self, events, paths: None
    spec = spec_from_file_location("faults", file)
    faults = module_from_spec(spec)
    spec.loader.exec_module(faults)
    getattr(faults, function)()
    done = number = 0
    try:
        while done < OPERATIONS:
            number += 1
            done += episode(adapter, number)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = " ".join(str(error).split())[:100]
        print(f"{type(error).__name__} in {where.filename.rpartition('/')[2]}:{where.name} after {done}: {told}")
    else:
        print("nothing")


main()
