"""Faulty composites: random operations find each of them, and the run that is left has no line too many."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty.group_twins import FAULTS, CompositeTwin, Fault, build
from twin_runs import found_and_shrunk

from kvspec.cli.targets import load_target
from kvspec.impl.composite_target import TorchCompositeTarget
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Form
from kvspec.model.pools import Pools

BUDGET = 20_000
POOLS = Pools()
BROKEN = {
    "B02": "holders/ref_count",
    "B05": "holders/give_back",
    "B38": "window/slide",
    "B39": "no_reuse_while_used/stage",
    "rounds_up": "window/slide",
    "one_token_early": "window/slide",
    "one_token_late": "window/refused_in_window",
    "whole_blocks": "window/slide",
    "window_of_none": "window/slide",
    "never_slides": "window/refused_in_window",
    "slides_once": "window/refused_in_window",
    "slides_after_growth": "window/refused_in_window",
    "slides_another": "window/slide",
    "slides_by_scheduled": "window/slide",
    "slides_by_drafts": "window/slide",
    "write_accepts": "misuse/legal_call_refused",
    "truncate_accepted": "misuse/error_expected",
    "keeps_earlier": "atomic_failure/refusal_changes_nothing",
    "forgets_staged": "atomic_failure/refusal_changes_nothing",
    "drains_first": "partition/free_ids",
    "forgets_windowed": "partition/free_ids",
    "keeps_confirmed": "misuse/legal_call_refused",
    "closes_up": "map_truth/table",
    "gives_padding": "reserved/padding_handed_out",
    "first_groups_size": "progress/refused_for_cause",
    "most_blocks": "units/room_exact",
    "first_groups_slots": "content/content",
    "counts_slid": "usage/used_count",
    "table_of_any_group": "misuse/error_expected",
    "reads_released": "window/released_readable",
}
"""The promise that each of them is found to break."""


def test_each_twin_has_a_name_and_breaks_something() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) and set(names) == set(BROKEN)
    assert {fault.name: fault.family for fault in FAULTS} == {n: rule.split("/")[0] for n, rule in BROKEN.items()}


def test_a_twin_without_a_fault_is_good() -> None:
    report = conform(CompositeTwin, ConformOptions(operations=6000, form=Form.COMPOSITES))
    assert report.violation is None
    assert report.counts["slides"] > 100 and report.counts["refusals"] > 300 and report.counts["truncations"] > 100


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_random_operations_find_a_twin_and_shrink(fault: Fault) -> None:
    options = ConformOptions(operations=BUDGET, form=Form.COMPOSITES, shrink_seconds=120)
    found_and_shrunk(build(fault.name), TorchCompositeTarget, BROKEN[fault.name], options, POOLS)


def test_a_run_shrinks_to_the_groups_that_it_needs() -> None:
    options = ConformOptions(operations=BUDGET, form=Form.COMPOSITES)
    alone, both = (conform(build(name), options, pools=POOLS).violation for name in ("rounds_up", "keeps_earlier"))
    assert alone is not None and len(alone.config.manager_types) == 1
    assert both is not None and len(both.config.manager_types) == 2


def test_twins_are_targets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent.parent.parent)
    made = load_target("tests.faulty.group_twins:B39")
    assert made.__name__ == "B39" and made.__doc__ == "released places look as if they had blocks"
