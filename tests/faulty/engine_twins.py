"""Faulty engines, one row each: the reference engine with a method of it, or of its manager, replaced; and legal ones,
which do otherwise what may be done otherwise.

Used like `faulty.twins`: ``kvspec conform tests.faulty.engine_twins:take_keeps_key``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from kvspec.model.conformance import Capability
from kvspec.model.engines.reference import Manager, ModelEngineTarget

from . import engine_faults as f

BLIND: Final = frozenset({Capability.ENGINE, Capability.CACHED_KEYS})
"""What an engine shows that has neither reference counts nor a number of free blocks."""


UNWRITTEN: Final = "publish_after_write/end_step"
TAKEN: Final = "no_reuse_while_used/take"
ATOMIC: Final = "atomic_failure/refusal_changes_nothing"


class Fault(NamedTuple):
    """A row of the table.

    Attributes:
        name: of the twin; that of its field scenario where it has one.
        what: the fault, in a few words.
        rule: what it is found to break, as ``family/rule``.
        manager, engine: by name, what replaces methods of `Manager` and of `ModelEngineTarget`.
    """

    name: str
    what: str
    rule: str
    manager: Mapping[str, Any] = {}
    engine: Mapping[str, Any] = {}


def _manager(what: str, rule: str, name: str = "", blind: bool = False, **methods: Any) -> Fault:
    """A row whose fault is in the manager; it is called like what replaces its first method, if nothing is said."""
    engine = {"capabilities": BLIND, "look": f.look_blindly} if blind else {}
    return Fault(name or next(iter(methods.values())).__name__, what, rule, methods, engine)


def _engine(what: str, rule: str, name: str = "", **methods: Any) -> Fault:
    return Fault(name or next(iter(methods.values())).__name__, what, rule, {}, methods)


FAULTS: Final = (
    # -- one for each scenario of the field (tests/corpus/engines)
    _engine("who is preempted does not write what it has published", UNWRITTEN, "B21", _plan=f.preempt_first),
    _manager("a state is hit before it is written", "map_truth/match", "B22", is_ready=f.is_always_ready),
    _manager("a copy goes, and stays in the table", "holders/ref_count", "B30", publish=f.publish_drops_copies),
    _manager("a refused request holds what it hit", "holders/ref_count", "B33", allocate=f.touch_before_check),
    _manager("a window is a token too short", "window/kept", "B38", places=f.places_short),
    _engine("the state of the block before is gone on from", "state_position/source", "B43", _run=f.state_from_before),
    _engine("steps end inside blocks", UNWRITTEN, "B46", _stop=f.stop_anywhere),
    _engine("a hit begins with an empty state", "state_position/source", "B47", _run=f.state_from_nothing),
    _engine("a key is told to be gone that another block has", "map_truth/events", "B65", look=f.removals_told_of_keys),
    # -- reference counts, and the list of free blocks
    _engine("a preempted request keeps a block", "holders/ref_count", _preempt=f.preempt_leaks),
    _engine("an aborted request keeps a block", "holders/ref_count", abort=f.abort_leaks),
    _engine("who is aborted while it runs keeps all", "holders/gave_back", abort=f.abort_waiting_only),
    _engine("who is done keeps all", "holders/gave_back", _end=f.end_keeps_blocks),
    _manager("a refused request has what it hit", ATOMIC, allocate=f.mount_before_check),
    _manager("a refused request has what was left", ATOMIC, allocate=f.take_before_check),
    _manager("who goes counts twice where others stay", "holders/ref_count", drop=f.drop_twice),
    _manager("a block is in the free list twice", "partition/free_count", drop=f.queue_twice),
    _manager("the same, unseen", TAKEN, "queue_twice_unseen", True, drop=f.queue_twice),
    _manager("a block is free when one of its holders goes", "partition/free_count", drop=f.drop_frees),
    _manager("the same, unseen", TAKEN, "drop_frees_unseen", True, drop=f.drop_frees),
    _manager("a block that was hit stays in the free list", "partition/free_count", touch=f.touch_counts_only),
    _manager("the same, unseen", TAKEN, "touch_counts_only_unseen", True, touch=f.touch_counts_only),
    _manager("a hit is no holder", "holders/ref_count", touch=f.touch_nothing),
    _manager("only the first group is given back", "holders/ref_count", free=f.free_first_group),
    _engine("a free block too many is counted", "partition/free_count", look=f.look_too_many),
    _engine("idle cached blocks do not count as free", "partition/free_count", look=f.look_unkeyed),
    # -- blocks that are handed out
    _manager("a block keeps its key when it is handed out", "no_reuse_while_used/take", take=f.take_keeps_key),
    _manager("a block that is held is handed out", "no_reuse_while_used/take", take=f.take_held),
    _manager("two requests get one block", "no_reuse_while_used/take", "take_again_unseen", True, take=f.take_again),
    _manager("the padding block is handed out", "reserved/padding_handed_out", take=f.take_padding),
    _manager("a block too few is handed out", "units/room", _wanted=f.allocate_one_less),
    _manager("the blocks of a hit are mounted in the wrong order", "map_truth/hit_content", _hits=f.hits_swapped),
    _manager("places move up where there is a gap", "units/room", _put=f.put_in_the_first_gap),
    Fault(
        "free_unpinned", "what a transfer still reads is handed out", TAKEN,
        {"free": f.free_unpinned}, {"look": f.look_moving, "step": f.step_unpinned, "capabilities": BLIND},
    ),
    # -- keys
    _manager("a key says nothing of the blocks before", "key/equal_key_equal_content", key=f.key_of_block),
    _manager("a key says nothing of the context", "map_truth/hit_content", key=f.key_without_context),
    _manager("a key says nothing of the adapter's version", "map_truth/hit_content", key=f.key_without_version),
    _manager("a key says nothing of the group", "key/equal_key_equal_content", key=f.key_without_group),
    _manager("a key says nothing of the order of tokens", "key/equal_key_equal_content", key=f.key_unordered),
    _manager("each request has keys of its own", "key/equal_content_equal_key", key=f.key_with_name),
    _manager("a block is published that is not full", UNWRITTEN, publish=f.publish_begun),
    _manager("a state is published that is inside a block", "exclusive_writer/write", publish=f.publish_all_room),
    _manager("a block is published that nobody has", "publish_after_write/stored_by_owner", evict=f.evict_moves),
    _engine("of two removals of keys one is told", "map_truth/events", look=f.removals_told_once),
    _engine("a second block of a key is told twice", "map_truth/events", look=f.stored_told_again),
    _engine("a block is told of without what is before", "map_truth/events", look=f.stored_told_without_parent),
    _engine("a block is told of with too few tokens", "map_truth/events", look=f.stored_told_of_other_tokens),
    _manager("a reset does nothing", "map_truth/reset_forgets", reset=f.reset_keeps_keys),
    _manager("a reset keeps a key", "map_truth/reset_forgets", reset=f.reset_keeps_one),
    _manager("a reset lists the padding block", "reserved/padding_handed_out", reset=f.reset_lists_padding),
    _engine("a reset is always refused", "progress/reset_refused", reset=f.reset_refused),
    _manager("evicted blocks are free while they are held", "holders/ref_count", evict=f.evict_held),
    _manager("nothing is evicted", "progress/evict_enough", evict=f.evict_nothing),
    # -- hits
    _manager("a hit is a block too short", "map_truth/hit_longest", look_up=f.look_up_short),
    _manager("a hit is cut where something was given back", "map_truth/hit_longest", look_up=f.look_up_as_ordered),
    _manager("a hit ends inside a block", "map_truth/hit_length", look_up=f.look_up_off_grid),
    _engine("a hit leaves nothing to compute", "map_truth/hit_length", _admitted=f.admitted_whole),
    _manager(
        "only the first group is asked for a hit", "map_truth/hit_content",
        _is_there=f.is_there_in_first, found=f.found_or_any,
    ),
    _manager(
        "only the last block is asked for a hit", "map_truth/hit_content",
        _is_there=f.is_there_at_the_end, found=f.found_or_any,
    ),
    _engine("a copy is forgotten", "content/content", _copy=f.copy_nothing),
    Fault(
        "allocate_unpinned", "what is still to be copied can be handed out", "content/content",
        {"allocate": f.allocate_unpinned, "end_copies": f.end_copies_unpinned}, {"look": f.look_unpinned},
    ),
    # -- windows
    _manager("of a window only the last block counts", "window/kept", places=f.places_by_last_block),
    _manager("a window slides by what will be computed", "window/kept", slide=f.slide_ahead),
    _manager("what has left the window stays in the table", "holders/ref_count", slide=f.slide_keeps_places),
    _manager("full attention slides", "window/kept", slide=f.slide_full_attention),
    # -- states
    _engine("a state is not copied to where it is gone on from", "state_position/source", _run=f.state_from_target),
    _engine("a state is written over that others need", "exclusive_writer/write", _run=f.state_to_source),
    _engine("where a state is, is not told", "misuse/records", _run=f.state_not_told),
    # -- the engine
    _manager("a block is kept back", "progress/refused_for_cause", allocate=f.allocate_reserves),
    _engine("two who wait let each other go first", "progress/goes_on", _plan=f.plan_nothing),
    _engine("two who run give way to each other", "progress/goes_on", _done=f.done_gives_way),
    _engine("a token is skipped", "units/computed_in_turn", _done=f.done_skips),
    _engine("more tokens are known than were computed", "misuse/records", _done=f.done_too_much),
    _engine("a request ends before its output does", "progress/ended_early", _done=f.done_early),
    _engine("what an abort gives back is not told of", "holders/gave_back", abort=f.abort_silently),
    _engine("who runs cannot be ended", "misuse/legal_call_refused", abort=f.abort_refuses),
    _engine("three requests are too many", "misuse/crash", step=f.step_fails),
    _engine("steps are empty when nothing is free", "progress/goes_on", step=f.forward_nothing),
)  # fmt: skip
"""All faulty engines."""

BY_NAME: Final = {fault.name: fault for fault in FAULTS}


@cache
def build(name: str) -> type[ModelEngineTarget]:
    """The engine of that name.

    Raises:
        KeyError: there is none.
    """
    fault = BY_NAME[name]
    kind = type(name, (Manager,), dict(fault.manager))
    return type(name, (ModelEngineTarget,), {"kind": kind, "__doc__": fault.what, **fault.engine})


def __getattr__(name: str) -> type[ModelEngineTarget]:
    if name in BY_NAME:
        return build(name)
    raise AttributeError(name)


__all__ = ["BY_NAME", "FAULTS", "Fault", "build"]
