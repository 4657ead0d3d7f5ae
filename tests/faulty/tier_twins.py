"""Faulty pools with a host tier, one row each, like `faulty.pool_twins`:
``kvspec conform tests.faulty.tier_twins:key_visible_early``.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from kvspec.impl.hierarchy_block_manager_pool import HierarchyBlockManagerPool as Pool
from kvspec.impl.hierarchy_target import TorchHierarchyTarget as Target
from kvspec.model.conformance import PoolConfig

from . import tier_faults as f
from .pool_twins import assembled
from .twins import Fault, _row

FAULTS: Final = (
    # -- one for each scenario of the field (tests/corpus/tiers)
    _row("B24", "sleep keeps the keys of the device", "map_truth", (Pool, "sleep", f.sleep_keeps_keys)),
    _row("B25", "a reset does not reach the host", "tiers", (Pool, "reset", f.reset_spares_host)),
    _row("B27", "a reset gives back what a prefetch writes to", "partition", (Pool, "reset", f.reset_frees_prefetch)),
    _row(
        "B48", "an offload begins before its source is written", "tiers",
        (Pool, "allocate", f.offload_before_written),
    ),
    _row("B50", "two offloads go to one host block", "tiers", (Pool, "_plan_offloads", f.host_block_for_two)),
    _row("B51", "a complete offload is not entered", "tiers", (Pool, "_offloaded", f.key_never_visible)),
    _row(
        "B53", "an unplanned prefetch counts as finished", "misuse",
        (Target, "finish_prefetch", f.unplanned_is_finished),
    ),
    _row("B64", "host and device blocks are paired by number", "tiers", (Pool, "_match", f.loads_paired_by_number)),
    _row("B54", "a failed load counts as done", "tiers", (Pool, "_loaded", f.failed_load_counts)),
    # -- others
    _row(
        "offload_frees_source", "an offload lets its source go", "tiers",
        (Pool, "start_offloads", f.offload_frees_source),
    ),
    _row("load_frees_source", "a load lets its source go", "tiers", (Pool, "start_loads", f.load_frees_source)),
    _row(
        "end_frees_target", "a load's target goes with the sequence", "tiers",
        (Pool, "_give_up_loads", f.end_frees_target),
    ),
    _row(
        "cancelled_load_leaks", "an unwanted load keeps its blocks", "partition",
        (Pool, "_give_up_loads", f.cancelled_load_leaks),
    ),
    _row(
        "key_visible_early", "a host key is found before its copy is done", "tiers",
        (Pool, "start_offloads", f.key_visible_early),
    ),
    _row(
        "failed_offload_counts", "a failed offload counts as done", "tiers",
        (Pool, "_offloaded", f.failed_offload_counts),
    ),
    _row(
        "gap_is_passed_over", "what failed to be loaded is passed over", "tiers",
        (Pool, "_loaded", f.gap_is_passed_over),
    ),
    _row(
        "computed_before_loaded", "a load counts as done when it is planned", "content",
        (Pool, "_plan_loads", f.computed_before_loaded),
    ),
    _row(
        "loads_over_computed", "a load goes over what is computed", "tiers",
        (Pool, "_plan_loads", f.loads_over_computed),
    ),
    _row("loads_last_token", "a load leaves nothing to compute", "tiers", (Pool, "_plan_loads", f.loads_last_token)),
    _row("first_rank_begins", "only one rank copies", "tiers", (Pool, "start_offloads", f.first_rank_begins)),
    _row("nobody_waits", "a sequence that is loading is written", "misuse", (Pool, "_plan_loads", f.nobody_waits)),
    _row("waiter_remembered", "a load counts for who gave way", "tiers", (Pool, "_give_up_loads", f.waiter_remembered)),
    _row(
        "known_is_planned", "a store is asked for what the host has", "tiers",
        (Pool, "plan_prefetch", f.known_is_planned),
    ),
    _row(
        "contents_in_reverse", "what a store gives goes to other blocks", "content",
        (Target, "finish_prefetch", f.contents_in_reverse),
    ),
    _row(
        "unarrived_visible", "what did not come is found on the host", "tiers",
        (Pool, "_end_prefetch", f.unarrived_visible),
    ),
    _row(
        "unarrived_kept", "what did not come keeps its host block", "partition",
        (Pool, "_end_prefetch", f.unarrived_kept),
    ),
    _row(
        "reset_spares_copies", "a reset does not reach what is on its way", "tiers",
        (Pool, "reset", f.reset_spares_copies),
    ),
    _row(
        "published_after_reset", "what is from before a reset is published", "publish_after_write",
        (Pool, "_publish", f.published_after_reset),
    ),
    _row(
        "published_behind_old", "what rests on something from before a reset is published", "publish_after_write",
        (Pool, "_publish", f.published_behind_old), (Pool, "allocate", f.allocate_remembers_old),
    ),
    _row("sleep_while_used", "the device sleeps while it is used", "misuse", (Pool, "sleep", f.sleep_while_used)),
    _row(
        "host_of_any_rank", "a rank that there is not has host blocks", "misuse",
        (Target, "host_cached", f.host_of_any_rank),
    ),
    _row("sleep_drops_host", "sleep drops the keys of the host", "tiers", (Pool, "sleep", f.sleep_drops_host)),
)  # fmt: skip
"""All faulty pools; those of the field scenarios come first."""

BY_NAME: Final = {fault.name: fault for fault in FAULTS}


class TierTwin(Target):
    """A good target whose pool is of the class in `parts`, if it is named there."""

    parts: dict[type, type]

    def __init__(self, config: PoolConfig, **options: Any) -> None:
        super().__init__(config, **options)
        changed: Any = self.pool_
        changed.__class__ = self.parts.get(type(changed), type(changed))


@cache
def build(name: str) -> type[TierTwin]:
    """The faulty pool of that name.

    Raises:
        KeyError: there is none.
    """
    return assembled(BY_NAME[name], Target, TierTwin)


def __getattr__(name: str) -> type[TierTwin]:
    if name in BY_NAME:
        return build(name)
    raise AttributeError(name)


__all__ = ["BY_NAME", "FAULTS", "Fault", "TierTwin", "build"]
