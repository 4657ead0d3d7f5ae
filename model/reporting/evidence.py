"""What is counted in a run, when a family of promises counts as judged, and what a run must have seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

import kvspec.model.operations as ops
from kvspec.model.conformance import Capability, TargetError
from kvspec.model.plain import one_line, sentence
from kvspec.model.promises import Family

COUNTERS: Final[Mapping[str, str]] = {
    "operations": "operations",
    "allocations": "allocations",
    "taken": "blocks handed out",
    "hits": "hits",
    "published": "keys published",
    "evictions": "evictions",
    "copies": "copies",
    "block writes": "block writes",
    "calls": "calls of a manager",
    "shares": "blocks shared with a fork",
    "forks": "forks",
    "truncations": "truncations",
    "preemptions": "preemptions",
    "refusals": "refusals",
    "errors": "errors",
    "reads": "reads",
    "tokens": "tokens written",
    "drains": "drained pools",
    "ranks": "ranks chosen",
    "units": "single blocks, slots or growths",
    "trims": "hits trimmed",
    "saves": "saves",
    "restores": "restores",
    "states": "states read",
    "slides": "blocks behind a window given back",
    "offloads": "offloads",
    "loads": "loads",
    "fetched": "blocks from a store",
    "copied": "copies done",
    "copies failed": "copies failed",
    "tokens loaded": "tokens loaded",
    "host evictions": "host evictions",
    "mapped": "pages mapped",
    "reclaimed": "pages reclaimed",
}
"""What is counted, and what it is in words."""

DONE: Final[Mapping[type, str]] = {
    ops.Allocate: "allocations",
    ops.Fork: "forks",
    ops.Truncate: "truncations",
    ops.Preempt: "preemptions",
}
"""Operations that are counted when they are answered without an error."""


class Evidence(NamedTuple):
    """When a family counts as judged.

    Attributes:
        counters: what has to happen; how often one of them did is on how many occasions the family was judged.
        unit: what an occasion is.
        needs: one of these capabilities.
        beside: what else tells how well the family was tried.
    """

    counters: tuple[str, ...]
    unit: str
    needs: tuple[Capability, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """What is told of it beside the number of occasions."""
        return (self.counters if len(self.counters) > 1 else ()) + self.beside


_FREE: Final = (Capability.FREE_IDS, Capability.FREE_COUNT)
_KEYS: Final = (Capability.EVENTS, Capability.CACHED_KEYS)

EVIDENCE: Final[Mapping[Family, Evidence]] = {
    Family.PARTITION: Evidence(
        ("operations",), "operations", _FREE, ("taken", "evictions", "preemptions", "truncations")
    ),
    Family.HOLDERS: Evidence(
        ("operations",), "operations", (Capability.REF_COUNTS,), ("taken", "hits", "forks", "preemptions")
    ),
    Family.RESERVED: Evidence(("taken",), "blocks handed out"),
    Family.MAP_TRUTH: Evidence(("hits",), "hits", (), ("published", "evictions")),
    Family.PUBLISH_AFTER_WRITE: Evidence(("published",), "keys published", _KEYS),
    Family.NO_REUSE_WHILE_USED: Evidence(("taken",), "blocks handed out", (), ("evictions",)),
    Family.EXCLUSIVE_WRITER: Evidence(
        ("copies", "block writes"),
        "copies or block writes",
        (Capability.FORK, Capability.HOLD, Capability.ENGINE),
        ("forks", "shares"),
    ),
    Family.ATOMIC_FAILURE: Evidence(("refusals", "errors"), "refusals or errors"),
    Family.DRAIN: Evidence(("drains",), "drained pools", _FREE),
    Family.KEY: Evidence(("published",), "keys published", _KEYS, ("hits",)),
    Family.USAGE: Evidence(("operations",), "operations", (Capability.USED_COUNT,), ("taken", "preemptions")),
    Family.PROGRESS: Evidence(("allocations",), "allocations", (), ("refusals", "evictions")),
    Family.CONTENT: Evidence(
        ("reads",), "reads", (Capability.CONTENTS, Capability.ENGINE), ("tokens", "hits", "copies")
    ),
    Family.STATE_POSITION: Evidence(
        ("states",), "states", (Capability.STATES, Capability.ENGINE), ("saves", "restores", "trims")
    ),
    Family.RANK: Evidence(("ranks",), "ranks chosen", (Capability.POOL,)),
    Family.UNITS: Evidence(
        ("units",), "single blocks, slots or growths", (Capability.POOL, Capability.GROUPS, Capability.ENGINE)
    ),
    Family.WINDOW: Evidence(
        ("slides",), "blocks behind a window given back", (Capability.GROUPS, Capability.ENGINE), ("refusals",)
    ),
    Family.TIERS: Evidence(
        ("copied",),
        "copies between tiers",
        (Capability.HOST,),
        ("loads", "offloads", "copies failed", "tokens loaded", "fetched", "host evictions"),
    ),
    Family.PAGES: Evidence(("taken",), "blocks handed out", (Capability.PAGES,), ("mapped", "reclaimed")),
    Family.MISUSE: Evidence(("operations",), "operations", (), ("errors",)),
    Family.INVARIANT: Evidence(("operations",), "operations"),
}


# -- what a run must have seen ----------------------------------------------------------------------------------------


class Wanted(msgspec.Struct, frozen=True):
    """What a run must have seen.

    Attributes:
        counter: of `COUNTERS`.
        least: how often.
        seen: how often it was.
    """

    counter: str
    least: int
    seen: int

    @property
    def met(self) -> bool:
        """It was seen often enough."""
        return self.seen >= self.least


def check_minimum(minimum: Mapping[str, int]) -> None:
    """Each is something that is counted, and a number of times.

    Raises:
        ValueError: one is not.
    """
    for counter, least in minimum.items():
        if counter not in COUNTERS:
            raise ValueError(f"minimum: '{counter}' is not counted, expected one of {', '.join(COUNTERS)}")
        if not isinstance(least, int) or isinstance(least, bool) or least < 0:
            raise ValueError(f"minimum: {least!r} {COUNTERS[counter]}, expected a number from 0 on")


def minimum_of(target: Any) -> dict[str, int]:
    """What a target says a run must have seen, in its optional attribute ``minimum``.

    Raises:
        TargetError: it says something else there.
    """
    minimum = getattr(target, "minimum", {})
    if not isinstance(minimum, Mapping):
        raise TargetError(f"has minimum: {minimum!r}, expected a number for each counter")
    try:
        check_minimum(minimum)
    except ValueError as error:
        raise TargetError(f"has {error}") from error
    return dict(minimum)


def about_of(target: Any) -> dict[str, str]:
    """What a target says of itself in its optional attribute ``about``, such as ``name`` and ``version``.

    Raises:
        TargetError: it says something else there.
    """
    about = getattr(target, "about", {})
    if not isinstance(about, Mapping) or not all(isinstance(text, str) for item in about.items() for text in item):
        raise TargetError(f"has about: {about!r}, expected texts by name")
    return {one_line(name): sentence(text) for name, text in about.items()}
