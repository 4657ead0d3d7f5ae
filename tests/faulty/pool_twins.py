"""Faulty pools of ranks, one row each: the good one with exactly one method (or one fault in two places) replaced.

Used like `faulty.twins`: ``kvspec conform tests.faulty.pool_twins:match_unpinned``.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar

from kvspec.impl.block_manager_impl import BlockManagerImpl as Manager
from kvspec.impl.block_manager_pool import BlockManagerPool as Pool
from kvspec.impl.linear_state import LinearStatePrefixCache as States
from kvspec.impl.pool_target import TorchPoolTarget as Target
from kvspec.impl.state_buffers import StateBuffers as Buffers
from kvspec.model.conformance import PoolConfig

from . import pool_faults as f
from .twins import Fault, _row

T = TypeVar("T")

FAULTS: Final = (
    # -- one for each scenario of the field (tests/corpus/pools)
    _row(
        "B07", "an abort before the restore loses the slot", "partition",
        (Target, "abort", f.abort_while_waiting_loses_slot),
    ),
    _row(
        "B08", "a refused request loses its slot", "atomic_failure",
        (Pool, "_cancel_live_slot", f.refused_loses_slot),
    ),
    _row("B10", "finishing gives back no slot", "partition", (Pool, "_release_linear_state_slot", f.lose_live_slot)),
    _row("B11", "finishing gives back no single block", "partition", (Pool, "_release_single", f.lose_single)),
    _row(
        "B17", "the padding slot is taken for a state", "state_position",
        (Buffers, "write_tags", f.one_token_moves_padding),
    ),
    _row(
        "B22", "a checkpoint is matched before its copy is done", "state_position",
        (States, "contains", f.contains_pending), (Pool, "_pin", f.pin_pending),
    ),
    _row("B26", "a pinned checkpoint gives way", "no_reuse_while_used", (States, "_pop_victim", f.victim_anybody)),
    _row(
        "B43", "states are found with another block size", "state_position",
        (Target, "restore_finish", f.restore_of_first_boundary),
    ),
    _row(
        "B44", "the state of rejected tokens is kept", "state_position",
        (Pool, "_resume_before", f.truncate_keeps_state),
    ),
    _row("B46", "a boundary that no step ended on is saved", "units", (Pool, "begin_save", f.save_rounds_down)),
    _row("B47", "a hit is not restored", "state_position", (Pool, "_pin", f.pin_without_waiting)),
    _row("B60", "what can never fit is granted", "rank", (Target, "allocate", f.granted_without_room)),
    # -- others
    _row(
        "match_unpinned", "a match does not pin", "no_reuse_while_used",
        (States, "match_and_pin", f.match_does_not_pin), (States, "unpin", f.unpin_nothing),
    ),
    _row(
        "save_takes_live_slot", "a save writes over a live slot", "no_reuse_while_used",
        (States, "acquire_live_slot", f.acquire_remembers), (States, "reserve", f.reserve_live_slot),
    ),
    _row(
        "restored_from_before", "a restore copies from the slot of before", "state_position",
        (Target, "preempt", f.preempt_remembers_slot), (Target, "restore_finish", f.restore_from_slot_before),
    ),
    _row(
        "end_loses_reservation", "an end loses the reserved slot", "partition",
        (Pool, "_give_up_copies", f.end_loses_reservation),
    ),
    _row("trim_one_more", "trimming keeps a block too many", "state_position", (Pool, "_trim", f.trim_keeps_one_more)),
    _row(
        "trim_one_less", "trimming gives back a block too many", "state_position",
        (Pool, "_trim", f.trim_keeps_one_less),
    ),
    _row(
        "trim_shifts_table", "a trimmed block stays in the table", "no_reuse_while_used",
        (Pool, "_trim", f.trim_shifts_table),
    ),
    _row("rank_without_single", "a rank without a single block is chosen", "progress", (Pool, "_may_take", f.any_rank)),
    _row("ranks_mixed", "all tables grow from rank 0", "rank", (Pool, "_grow", f.grow_on_first_rank)),
    _row(
        "refused_keeps_rank", "a refused newcomer keeps its rank", "atomic_failure",
        (Pool, "_leave_rank", staticmethod(f.stay_on_rank)),
    ),
    _row(
        "used_never_falls", "the counter of used blocks never falls", "usage",
        (Manager, "deallocate", f.deallocate_keeps_counter),
    ),
    _row(
        "last_token_twice", "the state goes over the last token twice", "state_position",
        (Target, "restore_finish", f.restore_recomputes_last),
    ),
    _row(
        "slot_not_zeroed", "a live slot holds what was there before", "state_position",
        (States, "take_fresh_slots", f.fresh_is_not_zeroed),
    ),
    _row(
        "failed_save_matched", "a failed save can be matched", "state_position",
        (Pool, "finish_save", f.save_failed_counts),
    ),
    _row(
        "failed_restore_done", "a failed restore counts as done", "state_position",
        (Pool, "finish_restore", f.restore_failed_counts),
    ),
    _row(
        "written_while_saved", "a step goes on while the state is being saved", "misuse",
        (Target, "write", f.write_while_saving),
    ),
    _row(
        "written_unrestored", "a step goes on before the state is restored", "misuse",
        (Target, "write", f.write_before_restore),
    ),
    _row(
        "unpublished_while_saved", "nothing is published while the state is being saved", "map_truth",
        (Pool, "cache", f.cache_waits_for_save),
    ),
    _row(
        "reset_forgets_pinned", "reset forgets what is waited for", "no_reuse_while_used",
        (States, "reset", f.reset_forgets_pinned),
    ),
    _row("reset_drops_pins", "reset drops pins", "no_reuse_while_used", (States, "reset", f.reset_drops_pins)),
    _row("pin_leaks", "a request that leaves keeps its pin", "progress", (Pool, "_give_up_copies", f.end_keeps_pin)),
    _row(
        "restore_goes_on", "a restore goes on behind a truncate", "state_position",
        (Pool, "_resume_before", f.truncate_keeps_restore),
    ),
    _row(
        "save_goes_on", "a save goes on behind a truncate", "state_position",
        (Pool, "_resume_before", f.truncate_keeps_save),
    ),
    _row(
        "held_overwritten", "a held block is written over", "exclusive_writer",
        (Pool, "_grow", f.grow_overwrites_held),
    ),
    _row(
        "step_in_parts", "a long step moves the state by its last tokens", "state_position",
        (Target, "_moved", f.write_in_two_steps),
    ),
    _row(
        "counts_of_any_rank", "a rank that there is not has reference counts", "misuse",
        (Target, "ref_count", f.counts_of_any_rank),
    ),
)  # fmt: skip
"""All faulty pools; those of the field scenarios come first."""

BY_NAME: Final = {fault.name: fault for fault in FAULTS}


class PoolTwin(Target):
    """A good target whose parts are of the classes in `parts`, as far as they are named there."""

    parts: dict[type, type]

    def __init__(self, config: PoolConfig, **options: Any) -> None:
        super().__init__(config, **options)
        pool = self.pool_
        for part in (*pool.block_managers_, *pool.linear_state_prefix_caches_, *self.states_, pool):
            changed: Any = part
            changed.__class__ = self.parts.get(type(part), type(part))


@cache
def build(name: str) -> type[PoolTwin]:
    """The faulty pool of that name.

    Raises:
        KeyError: there is none.
    """
    return assembled(BY_NAME[name], Target, PoolTwin)


def assembled(fault: Fault, target: type, twin: type[T]) -> type[T]:
    """A twin of a target, with its own methods and those of its parts as the fault says."""
    methods: dict[type, dict[str, Any]] = {}
    for owner, method, replacement in fault.patches:
        of_instances = isinstance(replacement, property)  # it stands in for an attribute
        assert of_instances or hasattr(owner, method), f"{owner.__name__} has no {method}"
        methods.setdefault(owner, {})[method] = replacement
    own = methods.pop(target, {})
    parts = {o: type(f"Faulty{o.__name__}", (o,), new) for o, new in methods.items()}
    return type(fault.name, (twin,), {"parts": parts, "__doc__": fault.what, **own})


def __getattr__(name: str) -> type[PoolTwin]:
    if name in BY_NAME:
        return build(name)
    raise AttributeError(name)


__all__ = ["BY_NAME", "FAULTS", "Fault", "PoolTwin", "build"]
