"""Faulty composites behind the target protocol, one row each: the good target over a faulty manager, or with one of its
own methods replaced.

Used like `faulty.twins`: ``kvspec conform tests.faulty.group_twins:rounds_up``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import torch

from kvspec.impl.composite_block_manager import CompositeBlockManager
from kvspec.impl.composite_target import TorchCompositeTarget
from kvspec.impl.paging import window
from kvspec.impl.target_base import operation
from kvspec.impl.write_plan import WritePlan, as_tags
from kvspec.model.conformance import PoolConfig, Tags

from . import composite_twins as twins


class Fault(NamedTuple):
    """A row of the table.

    Attributes:
        name: of the twin; that of its field scenario where it has one.
        what: the fault, in a few words.
        family: what its field scenario is found to break (for a twin without one: what is usually found).
        manager: the faulty manager, or the good one.
        methods: of the target, what replaces them.
    """

    name: str
    what: str
    family: str
    manager: type[CompositeBlockManager] = CompositeBlockManager
    methods: Mapping[str, Callable[..., Any]] = {}


@operation
def write_by_first_group(self: TorchCompositeTarget, batch: Any) -> None:
    """The slots of all groups are computed with the block size of the first."""
    plans = [WritePlan(self.config.manager_types[0].block_size, "write") for _ in self.buffers_]
    for seq, tags in batch:
        sequence = self._get(seq, "write")
        for plan, table in zip(plans, self._tables(sequence), strict=True):
            plan.add(seq, sequence, as_tags(tags), table.ids_)
    if not plans[0].num_tokens:
        return
    for plan, buffers in zip(plans, self.buffers_, strict=True):
        slots = buffers.kernels_.slot_ids(*map(torch.as_tensor, (plan.tables, *plan.indices())), plan._block_size)
        buffers.write_tags(slots.clamp(0, buffers.cells_.shape[1] - 1), plan.values)
    for sequence, values in plans[0].steps():
        sequence.advance(sequence.computed_ + len(values), sequence.confirmed_)


@operation
def write_accepts(self: TorchCompositeTarget, batch: Any) -> None:
    """What is computed is taken for accepted."""
    TorchCompositeTarget.write(self, batch)
    for seq, _ in batch:
        self._sequences[seq].confirmed_ = self._sequences[seq].computed_


@operation
def read_released(self: TorchCompositeTarget, seq: str, start: int, stop: int, group: int = 0) -> Tags:
    """Places that have been released are read like others."""
    table = self._table(seq, group, "read")
    part, at = window(table.ids_, start, stop, table.block_size)
    return self.buffers_[group].read_tags(part, at, at + stop - start)


@operation
def truncate_accepted(self: TorchCompositeTarget, seq: str, num_tokens: int) -> None:
    """Accepted tokens are taken back as long as their window is there."""
    sequence = self._get(seq, "truncate")
    self.manager_.truncate_sequence(sequence, num_tokens, self.manager_.resumable(sequence, num_tokens))


@operation
def table_of_any_group(self: TorchCompositeTarget, seq: str, group: int = 0) -> list[int]:
    """A group is not checked: the last is meant by -1."""
    table = self._tables(self._get(seq, "block_table"))[group]
    return table.ids_[table.released_ :]


FAULTS: Final = (
    # -- one for each scenario of the field (tests/corpus/composites)
    Fault("B02", "a block is counted once for each place it has stood at", "holders", twins.CountsEachCell),
    Fault("B05", "rejected drafts take a block along of which tokens stay", "holders", twins.CutsByAnotherGrid),
    Fault("B38", "a block longer than the window goes with the window's edge in it", "window", twins.LongBlocksRoundUp),
    Fault("B39", "released places look as if they had blocks", "no_reuse_while_used", twins.ForgetsHowFar),
    # -- others
    Fault("rounds_up", "the block at the edge of the window goes", "window", twins.RoundsUp),
    Fault("one_token_early", "the window is a token too short", "window", twins.OneTokenTooEarly),
    Fault("one_token_late", "the window is a token too long", "window", twins.OneTokenTooLate),
    Fault("whole_blocks", "of a window only the whole blocks count", "window", twins.WholeBlocks),
    Fault("window_of_none", "a window of one token is taken for none", "window", twins.WindowOfNone),
    Fault("never_slides", "nothing goes before the end", "window", twins.NeverSlides),
    Fault("slides_once", "one block goes in a call, however many could", "window", twins.SlidesOnceInACall),
    Fault("slides_after_growth", "what could go goes when it is too late", "window", twins.SlidesAfterGrowth),
    Fault("slides_another", "a group slides by the window of another", "window", twins.SlidesAnotherGroup),
    Fault("slides_by_scheduled", "what will be computed counts as computed", "window", twins.SlidesByScheduled),
    Fault("slides_by_drafts", "drafts count as accepted", "window", twins.SlidesByDrafts),
    Fault("write_accepts", "what is computed is accepted", "misuse", methods={"write": write_accepts}),
    Fault("truncate_accepted", "accepted tokens are taken back", "misuse", methods={"truncate": truncate_accepted}),
    Fault("keeps_earlier", "a refused growth keeps what other groups gave", "atomic_failure", twins.KeepsEarlierGroups),
    Fault("forgets_staged", "a refused growth loses what other groups gave", "atomic_failure", twins.ForgetsStaged),
    Fault("drains_first", "only the first group is drained", "partition", twins.DrainsFirstGroup),
    Fault("forgets_windowed", "a group that has slid is not drained", "partition", twins.ForgetsEndOfWindowed),
    Fault("keeps_confirmed", "who comes back slides by what was accepted before", "misuse", twins.KeepsConfirmed),
    Fault("closes_up", "places move up when a block goes", "map_truth", twins.ClosesUp),
    Fault("gives_padding", "one block short, the padding block fills in", "reserved", twins.GivesPadding),
    Fault("first_groups_size", "all groups grow by the blocks of the first", "progress", twins.OtherGroupsSize),
    Fault("most_blocks", "all groups grow by the blocks of the one that needs most", "units", twins.MostBlocks),
    Fault(
        "first_groups_slots", "all groups are written with the slots of the first", "content",
        methods={"write": write_by_first_group},
    ),
    Fault("counts_slid", "what has slid out counts as used", "usage", twins.CountsSlid),
    Fault(
        "table_of_any_group", "a group that there is not has a table", "misuse",
        methods={"block_table": table_of_any_group},
    ),
    Fault("reads_released", "released places can be read", "window", methods={"read": read_released}),
)  # fmt: skip
"""All faulty composites; those of the field scenarios come first."""

BY_NAME: Final = {fault.name: fault for fault in FAULTS}


class CompositeTwin(TorchCompositeTarget):
    """A target over a manager of another kind."""

    kind: type[CompositeBlockManager] = CompositeBlockManager

    def __init__(self, config: PoolConfig, **options: Any) -> None:
        super().__init__(config, **options)
        self.manager_ = self.kind(config.manager_types, sanitize=config.sanitizer)


@cache
def build(name: str) -> type[CompositeTwin]:
    """The faulty composite of that name.

    Raises:
        KeyError: there is none.
    """
    fault = BY_NAME[name]
    return type(name, (CompositeTwin,), {"kind": fault.manager, "__doc__": fault.what, **fault.methods})


def __getattr__(name: str) -> type[CompositeTwin]:
    if name in BY_NAME:
        return build(name)
    raise AttributeError(name)


__all__ = ["BY_NAME", "FAULTS", "CompositeTwin", "Fault", "build"]
