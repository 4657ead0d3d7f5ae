"""Faulty pools: random operations find each of them, and the run that is left has no line too many."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty.pool_twins import FAULTS, Fault, PoolTwin, build
from twin_runs import found_and_shrunk

from kvspec.cli.targets import load_target
from kvspec.impl.pool_target import TorchPoolTarget
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Form
from kvspec.model.pools import Pools

BUDGET = 40_000
SEED = 3
POOLS = Pools()
BROKEN = {
    "B07": "partition/free_ids",
    "B08": "atomic_failure/refusal_changes_nothing",
    "B10": "partition/free_ids",
    "B11": "atomic_failure/refusal_changes_nothing",
    "B17": "state_position/state",
    "B22": "state_position/trim_unrestorable",
    "B26": "state_position/checkpoint_lost",
    "B43": "state_position/state",
    "B44": "state_position/truncate_position",
    "B46": "units/save_position",
    "B47": "state_position/waiting_readable",
    "B60": "progress/room_granted",
    "match_unpinned": "state_position/checkpoint_lost",
    "save_takes_live_slot": "no_reuse_while_used/save_slot",
    "restored_from_before": "state_position/state",
    "end_loses_reservation": "partition/free_ids",
    "trim_one_more": "state_position/trim_unrestorable",
    "trim_one_less": "state_position/trim_short",
    "trim_shifts_table": "progress/refused_for_cause",
    "rank_without_single": "progress/refused_for_cause",
    "ranks_mixed": "rank/isolation",
    "refused_keeps_rank": "atomic_failure/refusal_changes_nothing",
    "used_never_falls": "usage/used_count",
    "last_token_twice": "state_position/state",
    "slot_not_zeroed": "misuse/crash",
    "failed_save_matched": "state_position/checkpoint_saved",
    "failed_restore_done": "state_position/waiting_readable",
    "written_while_saved": "misuse/error_expected",
    "written_unrestored": "misuse/crash",
    "unpublished_while_saved": "map_truth/published",
    "reset_forgets_pinned": "state_position/checkpoint_lost",
    "reset_drops_pins": "misuse/legal_call_refused",
    "pin_leaks": "map_truth/reset_forgets",
    "restore_goes_on": "state_position/truncate_position",
    "save_goes_on": "partition/free_ids",
    "held_overwritten": "exclusive_writer/copy_on_write",
    "step_in_parts": "state_position/state",
    "counts_of_any_rank": "misuse/error_expected",
}
"""The promise that each of them is found to break."""


class Good(PoolTwin):
    """The good pool, put together like the faulty ones."""

    parts: dict[type, type] = {}  # noqa: RUF012


def test_each_twin_has_a_name_and_breaks_something() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) and set(names) == set(BROKEN)


def test_a_twin_without_a_fault_is_good() -> None:
    report = conform(Good, ConformOptions(operations=6000, form=Form.POOLS))
    assert report.violation is None
    counts = report.counts
    assert counts["evictions"] > 100 and counts["hits"] > 30 and counts["saves"] > 50 and counts["restores"] > 10


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_random_operations_find_a_twin_and_shrink(fault: Fault) -> None:
    options = ConformOptions(seed=SEED, operations=BUDGET, form=Form.POOLS, shrink_seconds=120)
    found_and_shrunk(build(fault.name), TorchPoolTarget, BROKEN[fault.name], options, POOLS)


def test_twins_are_targets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    made = load_target("tests.faulty.pool_twins:B47")
    assert made.__name__ == "B47" and made.__doc__ == "a hit is not restored"
