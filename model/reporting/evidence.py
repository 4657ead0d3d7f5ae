"""What is counted in a run, and when a family of promises counts as judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import kvspec.model.operations as ops
from kvspec.model.conformance import Capability
from kvspec.model.promises import Family


class Evidence(NamedTuple):
    """When a family counts as judged: how often what happened, and one of the capabilities that it takes."""

    counters: tuple[str, ...]
    unit: str
    needs: tuple[Capability, ...] = ()


_FREE: Final = (Capability.FREE_IDS, Capability.FREE_COUNT)
_KEYS: Final = (Capability.EVENTS, Capability.CACHED_KEYS)

EVIDENCE: Final[Mapping[Family, Evidence]] = {
    Family.PARTITION: Evidence(("operations",), "operations", _FREE),
    Family.HOLDERS: Evidence(("operations",), "operations", (Capability.REF_COUNTS,)),
    Family.RESERVED: Evidence(("taken",), "blocks handed out"),
    Family.MAP_TRUTH: Evidence(("hits",), "hits"),
    Family.PUBLISH_AFTER_WRITE: Evidence(("published",), "keys published", _KEYS),
    Family.NO_REUSE_WHILE_USED: Evidence(("taken",), "blocks handed out"),
    Family.EXCLUSIVE_WRITER: Evidence(("copies",), "copies", (Capability.FORK, Capability.HOLD)),
    Family.ATOMIC_FAILURE: Evidence(("refusals", "errors"), "refusals or errors"),
    Family.DRAIN: Evidence(("drains",), "drained pools", _FREE),
    Family.KEY: Evidence(("published",), "keys published", _KEYS),
    Family.USAGE: Evidence(("operations",), "operations", (Capability.USED_COUNT,)),
    Family.PROGRESS: Evidence(("allocations",), "allocations"),
    Family.CONTENT: Evidence(("reads",), "reads", (Capability.CONTENTS,)),
    Family.STATE_POSITION: Evidence(("states",), "states", (Capability.STATES,)),
    Family.RANK: Evidence(("ranks",), "ranks chosen", (Capability.POOL,)),
    Family.UNITS: Evidence(("units",), "single blocks, slots or growths", (Capability.POOL, Capability.GROUPS)),
    Family.WINDOW: Evidence(("slides",), "blocks behind a window given back", (Capability.GROUPS,)),
    Family.TIERS: Evidence(("copied",), "copies between tiers", (Capability.HOST,)),
    Family.PAGES: Evidence(("taken",), "blocks handed out", (Capability.PAGES,)),
    Family.MISUSE: Evidence(("operations",), "operations"),
    Family.INVARIANT: Evidence(("operations",), "operations"),
}


DONE: Final[Mapping[type, str]] = {
    ops.Allocate: "allocations",
    ops.Fork: "forks",
    ops.Truncate: "truncations",
    ops.Preempt: "preemptions",
}
