"""Pools with a host tier: a judge that accepts every legal choice and nothing else, faulty pools, field scenarios."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from faulty.tier_twins import FAULTS, Fault, TierTwin, build
from twin_runs import found_and_shrunk, says_what_it_is_about

from kvspec.impl.hierarchy_target import TorchHierarchyTarget
from kvspec.model.acceptor import TieredAcceptor
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import OF_HOST_TIERS, Capability, Context, Form, MisuseError, PoolConfig, TargetError
from kvspec.model.generator import SHOW_EVICTION, Kind
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelTieredTarget, model_target
from kvspec.model.reference.tiered import OF_TIERS
from kvspec.model.scenario import parse_scenario, read_scenario, run_scenario

POOLS = Pools()
SMALL = PoolConfig(num_blocks=6, block_size=2, num_single_blocks=4, num_host_blocks=6)
FIELD = Path(__file__).parent.parent / "corpus" / "tiers"
SCENARIOS = sorted(FIELD.glob("*.kv"))
ASKED = {"B24", "B25", "B27", "B48", "B50", "B51", "B53", "B54", "B64"}
BUDGET = 40_000
BROKEN = {
    "B24": "map_truth/reset_forgets",
    "B25": "tiers/host_visible",
    "B27": "partition/free_ids",
    "B48": "tiers/offload_published",
    "B50": "tiers/offload_started",
    "B51": "tiers/host_lost",
    "B53": "misuse/error_expected",
    "B54": "tiers/load_counted",
    "B64": "tiers/load_source",
    "offload_frees_source": "holders/ref_count",
    "load_frees_source": "tiers/copy_kept",
    "end_frees_target": "partition/free_ids",
    "cancelled_load_leaks": "partition/free_ids",
    "key_visible_early": "tiers/host_visible",
    "failed_offload_counts": "tiers/host_visible",
    "gap_is_passed_over": "tiers/load_counted",
    "computed_before_loaded": "map_truth/hit_unpublished",
    "loads_over_computed": "tiers/load_counted",
    "loads_last_token": "tiers/load_limit",
    "first_rank_begins": "tiers/copy_begun",
    "known_is_planned": "tiers/prefetch_places",
    "contents_in_reverse": "content/content",
    "nobody_waits": "tiers/load_target",
    "waiter_remembered": "misuse/crash",
    "unarrived_visible": "tiers/host_visible",
    "unarrived_kept": "partition/free_ids",
    "reset_spares_copies": "tiers/host_visible",
    "published_after_reset": "publish_after_write/publish",
    "published_behind_old": "publish_after_write/publish",
    "sleep_while_used": "misuse/error_expected",
    "host_of_any_rank": "misuse/error_expected",
    "sleep_drops_host": "tiers/host_lost",
}
"""The promise that each of the faulty pools is found to break."""


# -- the model ---------------------------------------------------------------------------------------------------------


def test_a_config_with_host_blocks_makes_a_pool_with_a_host_tier() -> None:
    assert isinstance(model_target(SMALL, seed=1), ModelTieredTarget)
    with pytest.raises(ValueError, match="a config of a manager, expected one of a pool with a host tier"):
        ModelTieredTarget(PoolConfig(num_blocks=4, block_size=2))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [Kind.VALID, Kind.WILD])
def test_every_legal_choice_is_accepted(seed: int, kind: Kind) -> None:
    options = ConformOptions(operations=2500, seed=seed, kind=kind, form=Form.TIERS, shrink_seconds=5)
    report = conform(lambda config: ModelTieredTarget(config, seed=seed or None), options, pools=POOLS)
    assert report.violation is None, report.violation


def test_everything_that_can_happen_between_the_tiers_does() -> None:
    options = ConformOptions(operations=6000, form=Form.TIERS)
    report = conform(TorchHierarchyTarget, options, pools=POOLS)
    assert report.violation is None, report.violation
    least = {
        "loads": 50, "offloads": 80, "copied": 100, "copies failed": 10, "tokens loaded": 60, "fetched": 60,
        "host evictions": 25, "sleep": 30, "wake": 30, "reset": 30, "evictions": 100, "hits": 50, "preemptions": 50,
    }  # fmt: skip
    assert not {what: report.counts[what] for what, most in least.items() if report.counts[what] < most}
    verdicts = {f.family: f.verdict for f in report.families}
    assert set(verdicts.values()) == {"holds"} and "tiers" in verdicts and "exclusive_writer" not in verdicts


@pytest.mark.parametrize("hidden", sorted(OF_TIERS - {Capability.POOL, Capability.HOST}))
def test_a_pool_that_shows_less_is_judged_by_the_rest(hidden: Capability) -> None:
    options = ConformOptions(operations=1500, seed=2, form=Form.TIERS)
    report = conform(lambda c: ModelTieredTarget(c, seed=2, capabilities=OF_TIERS - {hidden}), options, pools=POOLS)
    assert report.violation is None, report.violation


def test_what_does_not_show_its_copies_cannot_be_judged() -> None:
    with pytest.raises(TargetError, match="lacks the capability host"):
        TieredAcceptor(ModelTieredTarget(SMALL, capabilities=OF_TIERS - OF_HOST_TIERS), SMALL)
    with pytest.raises(TargetError, match=r"shows neither .*: one of them is needed to judge a host tier"):
        TieredAcceptor(ModelTieredTarget(SMALL, capabilities=OF_TIERS - SHOW_EVICTION), SMALL)


class Little(ModelTieredTarget):
    """It cannot sleep, has no store and reports no events, nor has it the methods for that."""

    sleep = wake = begin_prefetch = plan_prefetch = finish_prefetch = None  # type: ignore[assignment]
    drain_events = drain_host_events = None  # type: ignore[assignment]

    def __init__(self, config: PoolConfig) -> None:
        lacking = {Capability.SLEEP, Capability.PREFETCH, Capability.EVENTS}
        super().__init__(config, seed=3, capabilities=OF_TIERS - lacking)


@pytest.mark.parametrize("kind", Kind)
def test_a_pool_without_what_it_need_not_have_is_driven_without_it(kind: Kind) -> None:
    report = conform(Little, ConformOptions(operations=1500, form=Form.TIERS, kind=kind), pools=POOLS)
    assert report.violation is None, report.violation
    assert report.counts["copied"] and not {"sleep", "wake", "begin_prefetch"} & report.counts.keys()


ASLEEP = "pool 6 block 2 single 4 host 6\nstart a 0..3\nsleep\n"
LEGAL = (
    "start b 1", "append a 4", "write a 0", "evict 1", "reset", "start_transfers", "wake", "close",
    "begin_prefetch p 0..3\nplan_prefetch p 2\nfinish_prefetch p 1",
)  # fmt: skip
EITHER = ("cache a", "deallocate a", "preempt a", "abort a", "truncate a 1")
ERRORS = ("allocate a 4", "allocate_shared a", "write a 1", "sleep", "fork a b", "hold a 0 as h", "transfer_done 0")


def refusing(verb: str) -> type[ModelTieredTarget]:
    """A target to which this call is an error while it sleeps."""

    def refuse(self: ModelTieredTarget, *arguments: Any) -> Any:
        self._awake(verb)
        return getattr(ModelTieredTarget, verb)(self, *arguments)

    return type("Refusing", (ModelTieredTarget,), {verb: refuse})


@pytest.mark.parametrize("make", [ModelTieredTarget, TorchHierarchyTarget])
@pytest.mark.parametrize("line", [*LEGAL, *ERRORS])
def test_what_is_legal_while_the_device_sleeps(make: type[ModelTieredTarget], line: str) -> None:
    scenario = parse_scenario(ASLEEP + line + ("\nexpect error\n" if line in ERRORS else "\n"))
    assert run_scenario(scenario, make, POOLS).passed


@pytest.mark.parametrize("line", [line for line in LEGAL if line != "wake"])
def test_what_is_legal_while_the_device_sleeps_has_to_be_answered(line: str) -> None:
    result = run_scenario(parse_scenario(ASLEEP + line + "\n"), refusing(line.split()[0]), POOLS)
    assert result.rule == "legal_call_refused"


@pytest.mark.parametrize("line", EITHER)
def test_what_may_wait_until_the_device_is_awake_is_answered_or_an_error(line: str) -> None:
    assert run_scenario(parse_scenario(f"{ASLEEP}{line}\n"), ModelTieredTarget, POOLS).passed
    refused = parse_scenario(f"{ASLEEP}{line}\nexpect error\n")
    assert run_scenario(refused, refusing(line.split()[0]), POOLS).passed


def loaded(target: TieredAcceptor, until: int = 0) -> None:
    """A request whose two blocks are on the host only, and another that asks for them; so many copies have ended."""
    target.start("a", range(5))
    assert target.allocate("a", 5)
    target.write([("a", 5)])
    target.deallocate("a")
    target.start_transfers()
    for _ in range(2):
        target.transfer_finish(0)
    target.evict(2)
    target.start("b", range(5))
    assert target.allocate("b", 5)
    target.start_transfers()
    for _ in range(until):
        target.transfer_finish(0)


def judged(make: type[ModelTieredTarget] | type[TorchHierarchyTarget] = ModelTieredTarget) -> TieredAcceptor:
    return TieredAcceptor(make(SMALL), SMALL, pool=POOLS.take(SMALL))


@pytest.mark.parametrize("make", [ModelTieredTarget, TorchHierarchyTarget])
def test_a_sequence_goes_on_behind_what_was_loaded(make: type[ModelTieredTarget]) -> None:
    target = judged(make)
    loaded(target, until=2)
    assert target.pool.requests["b"].computed == 4 and target.counts["tokens loaded"] == 4
    target.write([("b", 1)])
    target.drain()


@pytest.mark.parametrize("make", [ModelTieredTarget, TorchHierarchyTarget])
def test_misuse_between_the_tiers_is_an_error_and_changes_nothing(make: type[ModelTieredTarget]) -> None:
    target = judged(make)
    loaded(target, until=1)
    calls = {
        "one that loads is written": lambda: target.write([("b", 1)]),
        "no such copy": lambda: target.transfer_finish(5),
        "in use": lambda: target.sleep(),
        "awake": lambda: target.wake(),
        "an outside holder": lambda: target.hold("b", 0, "h"),
        "no such rank": lambda: target.begin_prefetch("p", (0,), Context(), 1),
        "no such prefetch": lambda: target.plan_prefetch("p", 0),
    }
    for call in calls.values():
        with pytest.raises(MisuseError):
            call()
    target.drain()


def test_a_blank_of_a_table_that_learns_its_tokens_late_is_published_and_loaded() -> None:
    """The tokens of a place are known only after it has its block, and change when drafts are rejected."""
    target = judged(TorchHierarchyTarget)
    target.start("a", (1, 2, 3))
    assert target.allocate("a", 3)
    target.append("a", (4,))
    target.write([("a", 4)])
    target.truncate("a", 3)
    target.append("a", (5, 6))
    assert target.allocate("a", 5)
    target.write([("a", 2)])
    target.deallocate("a")
    target.drain()


# -- faulty pools ------------------------------------------------------------------------------------------------------


class Good(TierTwin):
    """The good pool, put together like the faulty ones."""

    parts: dict[type, type] = {}  # noqa: RUF012


def test_each_twin_has_a_name_and_breaks_something() -> None:
    names = Counter(fault.name for fault in FAULTS)
    assert max(names.values()) == 1 and set(names) == set(BROKEN)
    options = ConformOptions(operations=2000, form=Form.TIERS)
    assert conform(Good, options, pools=POOLS).violation is None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_random_operations_find_a_twin_and_shrink(fault: Fault) -> None:
    options = ConformOptions(operations=BUDGET, form=Form.TIERS, shrink_seconds=120)
    found_and_shrunk(build(fault.name), TorchHierarchyTarget, BROKEN[fault.name], options, POOLS)


def test_a_host_block_that_somebody_has_is_told_with_its_tokens() -> None:
    found = conform(build("B50"), ConformOptions(operations=BUDGET, form=Form.TIERS), pools=POOLS).violation
    assert found is not None and "; host block 1 is an end of a copy of [" in found.what


@pytest.mark.parametrize("name", [n for n, rule in BROKEN.items() if rule == "tiers/host_visible"])
def test_what_can_be_found_wrongly_is_from_before_a_reset_or_not_complete(name: str) -> None:
    why = "what was copied to it is from before a reset" if "reset" in fault_of(name) else "no copy to it is complete"
    options = ConformOptions(operations=BUDGET, form=Form.TIERS, shrink_seconds=0.1)
    found = conform(build(name), options, pools=POOLS).violation
    assert found is not None and found.what.endswith(f" can be found, and {why}"), found.what


def fault_of(name: str) -> str:
    return next(fault.what for fault in FAULTS if fault.name == name)


TWO_COPIES = "pool 8 block 2 single 4 host 8\nstart a 0..4\nallocate a 5\nwrite a 5\ndeallocate a\n"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("transfer_done 1", "copy 1 of 2 has not begun"),
        ("transfer_done 5", "there is no copy 5; 2 have not ended"),
        ("start_transfers\ntransfer_done 0\ntransfer_failed 1", "there is no copy 1; 1 has not ended"),
        ("start_transfers\ntransfer_done 0\ntransfer_done 0\ntransfer_failed 0", "no copy 0; all have ended"),
    ],
)
def test_a_copy_that_cannot_end_is_told_from_one_that_is_not_there(lines: str, words: str) -> None:
    class Silent(ModelTieredTarget):
        def transfer_finish(self, number: int, ok: bool) -> None:
            with contextlib.suppress(MisuseError):
                super().transfer_finish(number, ok)

    result = run_scenario(parse_scenario(TWO_COPIES + lines + "\n"), Silent, POOLS)
    assert result.verdict == "violated" and words in result.last.outcome


# -- scenarios of the field --------------------------------------------------------------------------------------------


def test_the_corpus_has_the_cases_that_it_is_for() -> None:
    names = {path.stem for path in SCENARIOS}
    assert names == ASKED == {fault.name for fault in FAULTS if fault.name[0] == "B"}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
@pytest.mark.parametrize("make", [ModelTieredTarget, TorchHierarchyTarget])
def test_the_good_pools_pass(path: Path, make: type[ModelTieredTarget]) -> None:
    result = run_scenario(read_scenario(path), make, POOLS)
    assert result.passed, result.last


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_a_file_says_what_it_is_about_and_reads_back(path: Path) -> None:
    says_what_it_is_about(path)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name[0] == "B"], ids=lambda f: f.name)
def test_a_field_scenario_finds_its_twin(fault: Fault) -> None:
    result = run_scenario(read_scenario(FIELD / f"{fault.name}.kv"), build(fault.name), POOLS)
    assert result.verdict == "violated", result.last
    assert result.family == fault.family, result.last
