"""What a manager promises: families of rules, each in a sentence, and the violation of one."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kvspec.model.plain import sentence


class Family(StrEnum):
    """What kind of promise a violation breaks; one line each in a report. `PROMISES` says what each means."""

    PARTITION = "partition"
    HOLDERS = "holders"
    RESERVED = "reserved"
    MAP_TRUTH = "map_truth"
    PUBLISH_AFTER_WRITE = "publish_after_write"
    NO_REUSE_WHILE_USED = "no_reuse_while_used"
    EXCLUSIVE_WRITER = "exclusive_writer"
    ATOMIC_FAILURE = "atomic_failure"
    DRAIN = "drain"
    KEY = "key"
    USAGE = "usage"
    PROGRESS = "progress"
    CONTENT = "content"
    STATE_POSITION = "state_position"
    RANK = "rank"
    UNITS = "units"
    WINDOW = "window"
    TIERS = "tiers"
    PAGES = "pages"
    MISUSE = "misuse"
    INVARIANT = "invariant"


PROMISES: Final[Mapping[Family, str]] = {
    Family.PARTITION: "every usable block is free or held, never both; free lists, counters and evictions agree",
    Family.HOLDERS: "each block has exactly the holders that took it: tables, the cache and outside handles",
    Family.RESERVED: "block 0 is padding: it is never free and never handed out; nor is single block 0, nor slot 0",
    Family.MAP_TRUTH: "tables and the cache say where things are: a hit is the longest published prefix, no more",
    Family.PUBLISH_AFTER_WRITE: "a block gets a key only by its owner's call, and only after all of it was written",
    Family.NO_REUSE_WHILE_USED: "a block that somebody holds is not handed out, and not evicted",
    Family.EXCLUSIVE_WRITER: "nobody writes into a block that others hold: it is copied first",
    Family.ATOMIC_FAILURE: "a refusal or an error changes nothing that can be seen",
    Family.DRAIN: "when everything was given back, every usable block is free again",
    Family.KEY: "blocks have the same key exactly if their tokens, all tokens before, and their contexts are the same",
    Family.USAGE: "the used blocks are those that at least one sequence holds",
    Family.PROGRESS: "a refusal has a cause: what evicting idle blocks can give is granted, and granted room is there",
    Family.CONTENT: "a computed token reads as what was computed for it, wherever its block is",
    Family.STATE_POSITION: "a recurrent state is that of exactly the computed tokens; a hit ends where one can be had",
    Family.RANK: "a sequence gets the rank with the most free blocks and keeps it; no call for it changes another rank",
    Family.UNITS: "tokens, blocks and strides are not mixed up: tables have the blocks that were asked for and no more",
    Family.WINDOW: "a block goes back only if no query that can still come sees a token of it; then it can be had",
    Family.TIERS: "a key is visible in a tier only after a complete copy, whose two ends are held until it has ended",
    Family.PAGES: "a block in use lies on mapped pages, and what can be mapped can be had",
    Family.MISUSE: "calls that make no sense raise MisuseError, legal calls are answered, and nothing crashes",
    Family.INVARIANT: "every invariant of the specification holds after each step",
}
"""What each family promises, in one sentence."""

RULES: Final[Mapping[Family, Mapping[str, str]]] = {
    Family.PARTITION: {
        "evicted_count": "evict returns how many blocks became free",
        "free_count": "the counter of free blocks is the number of free blocks",
        "free_ids": "the free blocks are those that nobody holds",
    },
    Family.HOLDERS: {
        "ref_count": "the reference count of a block is the number of its holders",
        "gave_back": "a request that is over, or was preempted, has no block",
        "source_held": "the state from which a step goes on is in a slot that somebody holds",
        "table_kept": "allocate takes no block away",
        "unit_given": "a sequence that was granted room has a single block and, with linear state, a live slot",
        "unit_kept": "a sequence keeps its single block and its live slot until it gives all back",
    },
    Family.RESERVED: {
        "padding_free": "block 0 is not free",
        "padding_handed_out": "block 0 is in no table",
    },
    Family.MAP_TRUTH: {
        "cached_keys": "the keys that the target shows are those that were published and not dropped, at their blocks",
        "events": "what an engine's manager has told of its keys, counted, is how many blocks have each",
        "hit_content": "a block that a hit gives has the content of its place",
        "hit_length": "a hit is a multiple of the block size, and within hit_limit",
        "hit_longest": "a hit is as long as the published prefix",
        "hit_unpublished": "a hit is no longer than the published prefix",
        "published": "cache and deallocate publish every full computed block",
        "removed_block": "a removal names the block that the key led to",
        "removed_was_stored": "only a key that is there can be removed",
        "reset_forgets": "a reset drops every key",
        "table": "the block table is what the calls so far have made of it",
    },
    Family.PUBLISH_AFTER_WRITE: {
        "end_step": "what was published ahead in a step has been written when the step is over",
        "publish": "only a block that is full and written is published",
        "stored_by_owner": "a key is entered only by cache or deallocate of a sequence that has the block",
    },
    Family.NO_REUSE_WHILE_USED: {
        "save_slot": "a save takes one free slot, or that of a checkpoint that gives way",
    },
    Family.EXCLUSIVE_WRITER: {
        "copy": "a copy is from a block that somebody holds, to a block that a table has",
        "copy_on_write": "room that was granted is in blocks of one's own, where something would be overwritten",
    },
    Family.ATOMIC_FAILURE: {
        "error_changes_nothing": "after an error everything looks as before",
        "refusal_changes_nothing": "after a refusal everything looks as before",
    },
    Family.DRAIN: {
        "drain": "all usable blocks are free when nobody holds anything",
    },
    Family.KEY: {
        "equal_content_equal_key": "one content has one key",
        "equal_key_equal_content": "one key stands for one content",
    },
    Family.USAGE: {
        "used_count": "the counter of used blocks is the number of blocks that sequences hold",
    },
    Family.PROGRESS: {
        "ended_early": "a request that fits ends when all that it generates was computed, or it is aborted",
        "evict_enough": "evict(n) frees n blocks, or all that are idle",
        "goes_on": "an engine whose requests fit goes on with one of them",
        "refused_for_cause": "allocate is refused only if free and idle blocks that can be had together are too few",
        "reset_refused": "a reset is refused only while blocks are in use",
        "room_granted": "after a granted allocate the table is long enough",
        "save_for_cause": "a save is refused only where no checkpoint makes sense, or no slot can be had",
    },
    Family.CONTENT: {
        "computed": "the number of computed tokens is that of the tokens written",
        "content": "a token reads as what was written for it",
    },
    Family.STATE_POSITION: {
        "checkpoint_key": "a checkpoint is found under the key of the tokens whose state it is",
        "checkpoint_lost": "a checkpoint can be matched until it is evicted",
        "checkpoint_saved": "only what was saved, and whose copy is done, can be matched",
        "save_once": "a save is refused where a checkpoint of the same tokens exists or is on the way",
        "source": "a step goes on from the state behind the computed tokens",
        "state": "the live slot holds the state behind the computed tokens",
        "trim_short": "a hit is kept as far as the policy allows",
        "trim_unrestorable": "a hit is kept only up to where its state can be restored",
        "truncate_position": "a sequence goes on where its state can be restored, or from the beginning",
        "waiting_readable": "a state that is still to be restored cannot be read",
    },
    Family.RANK: {
        "isolation": "no call for a sequence changes anything of another rank",
        "rank_given": "a sequence that was granted room has a rank, one that there is",
        "rank_kept": "a sequence keeps its rank until it ends, and has none after a first call that was refused",
    },
    Family.UNITS: {
        "computed_in_turn": "a step computes the known tokens behind those that are computed",
        "room": "a step computes tokens for which the table has a block",
        "room_exact": "a table has no more blocks than were asked for, or hit",
        "save_position": "a checkpoint is of one token or more, at a multiple of the stride",
    },
    Family.WINDOW: {
        "kept": "a block that a query sees is in the table",
        "refused_in_window": "allocate is refused only when no wanted block of the sequence has left the window",
        "released_kept": "a place that has been released has no block again",
        "released_readable": "what lies in a released block cannot be read",
    },
    Family.TIERS: {
        "copy_begun": "a copy has begun once it was told to, and not before",
        "copy_kept": "a copy stays as it was planned, goes on once it has begun, and is planned by no refusal or error",
        "host_lost": "a key can be found on the host until it is evicted, or a reset",
        "host_visible": "a key can be found on the host only if a copy to its block is complete",
        "load_counted": "once all loads of a sequence have ended, it goes on behind its leading complete blocks",
        "load_limit": "a load reaches no further than a hit may",
        "load_source": "a load is from the host block that has the tokens of that place",
        "load_target": "a load goes to the block that the sequence has at that place, on its rank",
        "offload_published": "what is copied to the host is a published block of the device",
        "prefetch_places": "a prefetch plans leading blocks of the store, each once; none in front that the host has",
    },
    Family.PAGES: {
        "mapped_pages": "the mapped pages are those that the calls so far have mapped; an error maps or unmaps none",
        "reclaim_enough": "reclaim(n) unmaps n pages, or all that are idle",
        "reclaimed_count": "reclaim returns how many pages were unmapped",
    },
    Family.MISUSE: {
        "crash": "the target answers or raises MisuseError; every other exception is a fault",
        "error_expected": "a call that makes no sense is answered with MisuseError",
        "legal_call_refused": "a call that makes sense is not answered with an error",
        "records": "what an engine reports names only what there is, and shows all that it says it shows",
        "no_return": "every call returns, whichever thread it comes from, while no other call is running",
    },
}
"""What each check demands that is not an event or invariant of the specification, by what it is to keep."""

CHECKS: Final[Mapping[str, str]] = {rule: words for rules in RULES.values() for rule, words in rules.items()}
"""The same of all families together."""


class Violation(Exception):
    """The first thing that no correct manager could have done.

    Attributes:
        family: the kind of promise that is broken.
        rule: name of the invariant, event or check.
        what: one sentence with the ids.
        operation: the call, and its number from 1.
        swept: the call showed nothing; what is wrong was seen by a look at everything behind it.
    """

    def __init__(self, family: Family, rule: str, what: str) -> None:
        self.family, self.rule, self.what = family, rule, sentence(what)
        self.operation: str = ""
        self.number = 0
        self.swept = False
        self.before: list[str] = []
        self.after: list[str] = []
        super().__init__(self.what)

    def __str__(self) -> str:
        at = f"operation {self.number} ({self.operation}): " if self.number else ""
        return f"{at}{self.family}/{self.rule}: {self.what}"


CHAPTER: Final = "sequences"
"""The chapter whose events explain what a target does."""

STEP_FAMILIES: Final = {
    "take": Family.NO_REUSE_WHILE_USED,
    "mount": Family.MAP_TRUTH,
    "evict": Family.NO_REUSE_WHILE_USED,
    "write": Family.EXCLUSIVE_WRITER,
    "publish": Family.PUBLISH_AFTER_WRITE,
    "copy_on_write": Family.NO_REUSE_WHILE_USED,
    "drop": Family.HOLDERS,
    "hold": Family.HOLDERS,
    "unhold": Family.HOLDERS,
}

POOL_CHAPTER: Final = "pool"
"""The chapter whose events explain what a pool of ranks does."""

POOL_STEP_FAMILIES: Final = {
    "choose_rank": Family.RANK,
    "take_single": Family.NO_REUSE_WHILE_USED,
    "take_slot": Family.NO_REUSE_WHILE_USED,
    "mount": Family.MAP_TRUTH,
    "grow": Family.NO_REUSE_WHILE_USED,
    "copy_on_write": Family.NO_REUSE_WHILE_USED,
    "give_back": Family.HOLDERS,
    "write": Family.EXCLUSIVE_WRITER,
    "reserve": Family.NO_REUSE_WHILE_USED,
    "publish": Family.PUBLISH_AFTER_WRITE,
    "evict": Family.NO_REUSE_WHILE_USED,
    "evict_state": Family.NO_REUSE_WHILE_USED,
    "hold": Family.HOLDERS,
    "unhold": Family.HOLDERS,
}

TIER_CHAPTER: Final = "hierarchy"
"""The chapter whose events explain copies between tiers."""

TIER_STEP_FAMILIES: Final = {
    "take": Family.NO_REUSE_WHILE_USED,
    "hit": Family.MAP_TRUTH,
    "write_started": Family.EXCLUSIVE_WRITER,
    "offload_started": Family.TIERS,
    "load_started": Family.TIERS,
    "fetch_started": Family.TIERS,
    "evict_device": Family.NO_REUSE_WHILE_USED,
    "evict_host": Family.NO_REUSE_WHILE_USED,
    "sleep": Family.TIERS,
}

PAGE_CHAPTER: Final = "xtensor"
"""The chapter whose events explain what becomes of pages."""

PAGE_STEP_FAMILIES: Final = {
    "map_region": Family.PAGES,
    "unmap_begin": Family.PAGES,
    "take": Family.PAGES,
}

COMPOSITE_CHAPTER: Final = "composite"
"""The chapter whose events explain what a composite does."""

COMPOSITE_STEP_FAMILIES: Final = {
    "stage": Family.NO_REUSE_WHILE_USED,
    "slide": Family.WINDOW,
    "give_back": Family.HOLDERS,
}

ENGINE_CHAPTER: Final = "engine"
"""The chapter whose events explain what the manager of an engine does."""

ENGINE_STEP_FAMILIES: Final = {
    "take": Family.NO_REUSE_WHILE_USED,
    "match": Family.MAP_TRUTH,
    "share": Family.HOLDERS,
    "release": Family.HOLDERS,
    "hold": Family.HOLDERS,
    "unhold": Family.HOLDERS,
    "write": Family.EXCLUSIVE_WRITER,
    "copy": Family.EXCLUSIVE_WRITER,
    "publish": Family.PUBLISH_AFTER_WRITE,
    "publish_ahead": Family.PUBLISH_AFTER_WRITE,
    "forget": Family.NO_REUSE_WHILE_USED,
    "end_step": Family.PUBLISH_AFTER_WRITE,
}

STEPS_OF: Final[Mapping[str, Mapping[str, Family]]] = {
    CHAPTER: STEP_FAMILIES,
    POOL_CHAPTER: POOL_STEP_FAMILIES,
    TIER_CHAPTER: TIER_STEP_FAMILIES,
    PAGE_CHAPTER: PAGE_STEP_FAMILIES,
    COMPOSITE_CHAPTER: COMPOSITE_STEP_FAMILIES,
    ENGINE_CHAPTER: ENGINE_STEP_FAMILIES,
}
"""The events of each chapter by which a target is judged, and what is broken where one of them is not allowed."""


def rules_of(family: Family) -> frozenset[str]:
    """The rules of a family, but for `Family.INVARIANT`, of which every invariant of the specification is one."""
    steps = {event for events in STEPS_OF.values() for event, broken in events.items() if broken is family}
    return frozenset({*RULES.get(family, ()), *steps})
