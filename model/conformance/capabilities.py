"""What a target can show or take, and the methods that it needs for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final


class Capability(StrEnum):
    """What a target can show or take."""

    FREE_IDS = "free_ids"
    FREE_COUNT = "free_count"
    USED_COUNT = "used_count"
    REF_COUNTS = "ref_counts"
    CACHED_KEYS = "cached_keys"
    EVENTS = "events"
    CONTENTS = "contents"
    FORK = "fork"
    TRUNCATE = "truncate"
    HOLD = "hold"
    POOL = "pool"
    LINEAR_STATE = "linear_state"
    STATES = "states"
    GROUPS = "groups"
    HOST = "host"
    SLEEP = "sleep"
    PREFETCH = "prefetch"
    PAGES = "pages"
    ENGINE = "engine"


OF_POOLS: Final = frozenset({Capability.POOL, Capability.LINEAR_STATE, Capability.STATES})
OF_HOST_TIERS: Final = frozenset({Capability.HOST, Capability.SLEEP, Capability.PREFETCH})
OF_VARIANTS: Final = OF_HOST_TIERS | {Capability.GROUPS, Capability.PAGES, Capability.ENGINE}
"""Capabilities that only pools of ranks have, only those with a host tier, and only one variant or another."""

METHODS_OF: Final[Mapping[Capability, tuple[str, ...]]] = {
    Capability.FREE_IDS: ("free_ids",),
    Capability.FREE_COUNT: ("free_count",),
    Capability.USED_COUNT: ("used_count",),
    Capability.REF_COUNTS: ("ref_count",),
    Capability.CACHED_KEYS: ("cached",),
    Capability.EVENTS: ("drain_events", "drain_host_events"),
    Capability.CONTENTS: ("read",),
    Capability.FORK: ("fork",),
    Capability.TRUNCATE: ("truncate",),
    Capability.HOLD: ("hold", "release"),
    Capability.POOL: ("rank", "single_block", "free_single_blocks"),
    Capability.LINEAR_STATE: (
        "state_slot", "free_state_slots", "checkpoints", "save_start", "save_finish", "restore_start", "restore_finish",
    ),
    Capability.STATES: ("state",),
    Capability.GROUPS: ("released", "accept"),
    Capability.HOST: (
        "transfers", "start_transfers", "transfer_finish", "host_free_ids", "host_cached", "drain_host_events",
    ),
    Capability.SLEEP: ("sleep", "wake"),
    Capability.PREFETCH: ("begin_prefetch", "plan_prefetch", "finish_prefetch"),
    Capability.PAGES: ("mapped_pages", "reclaim", "fail_mappings"),
}
"""Methods that only a target with the capability needs; one that is named twice, only a target with both."""


def excused_by(shown: Collection[Capability]) -> set[str]:
    """Methods that a target with these capabilities need not have."""
    return {name for c, methods in METHODS_OF.items() if c not in shown for name in methods}
