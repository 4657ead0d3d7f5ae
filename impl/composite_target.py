"""`TorchCompositeTarget`: a composite behind the target protocol of `kvspec.model.conformance` (seed 9.2, 9.3)."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch

from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.composite_block_manager import CompositeBlockManager
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.paging import window
from kvspec.impl.sequence import GroupTable, Sequence
from kvspec.impl.sequence_blocks import check_unmounted
from kvspec.impl.target_base import BaseTarget, operation
from kvspec.impl.write_plan import WritePlan, as_tags
from kvspec.model.conformance import Capability, Form, MisuseError, PoolConfig, Tags


class TorchCompositeTarget(BaseTarget):
    """Sequences over one `CompositeBlockManager`, with K and V of each group in torch tensors.

    Args:
        config: what the groups are.
        layers, heads, head_dim: shape of a cell (see `KVBuffers`), the same in all groups.
        device: where K and V are.
    Raises:
        InvalidRangeError: the config is that of another form.
    """

    capabilities: frozenset[Capability] = frozenset(
        {
            Capability.FREE_IDS, Capability.FREE_COUNT, Capability.USED_COUNT, Capability.REF_COUNTS,
            Capability.CONTENTS, Capability.TRUNCATE, Capability.GROUPS,
        }
    )  # fmt: skip
    name_ = "TorchCompositeTarget"
    form_ = Form.COMPOSITES

    def __init__(
        self,
        config: PoolConfig,
        *,
        layers: int = 1,
        heads: int = 1,
        head_dim: int = 2,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(config)
        self.manager_ = CompositeBlockManager(config.manager_types, sanitize=config.sanitizer)
        self.buffers_ = [
            KVBuffers(kind.num_blocks, kind.block_size, layers=layers, heads=heads, head_dim=head_dim, device=device)
            for kind in config.manager_types
        ]
        for buffers in self.buffers_ if config.sanitizer else ():
            buffers.guard_padding()

    def __del__(self) -> None:
        # A target that is dropped without close takes its handles along; nobody has lost them.
        manager = getattr(self, "manager_", None)
        for part in manager.sub_managers_ if manager is not None else ():
            if part.sanitizer_ is not None:
                part.sanitizer_.unwatch()

    # -- operations --------------------------------------------------------------------------------------------------
    @operation
    def allocate_shared(self, seq: str) -> int:
        """Nothing is shared; always 0. Error unless the tables are empty."""
        sequence = self._get(seq, "allocate_shared")
        check_unmounted(sequence, "TorchCompositeTarget.allocate_shared")
        return len(self.manager_.allocate_shared(sequence.tokens_, sequence.keys_))

    @operation
    def allocate(self, seq: str, num_tokens: int) -> bool:
        """Places for num_tokens tokens in every group; what has left a window goes back before. All or nothing."""
        return self.manager_.allocate_for_sequence(self._get(seq, "allocate"), num_tokens)

    @operation
    def write(self, batch: Items[tuple[str, Tags]]) -> None:
        """One forward step: one slot computation and one write for the whole batch in each group.

        Error if a sequence lacks room or known tokens, or is named twice.
        """
        plans = [WritePlan(kind.block_size, "TorchCompositeTarget.write") for kind in self.config.manager_types]
        for seq, tags in batch:
            sequence, values = self._get(seq, "write"), as_tags(tags)
            for plan, table in zip(plans, self._tables(sequence), strict=True):
                plan.add(seq, sequence, values, table.ids_)
        if not plans[0].num_tokens:
            return
        self._settle()
        for plan, buffers in zip(plans, self.buffers_, strict=True):
            plan.write(buffers)
        for sequence, values in plans[0].steps():
            sequence.advance(sequence.computed_ + len(values), sequence.confirmed_)
        self._settle()

    @operation
    def accept(self, seq: str, num_tokens: int) -> None:
        """The first num_tokens computed tokens are no drafts any more. Error if they are not all computed, or fewer
        than before."""
        sequence = self._get(seq, "accept")
        if not sequence.confirmed_ <= num_tokens <= sequence.computed_:
            expected = f"{sequence.confirmed_} to {sequence.computed_} computed tokens"
            raise InvalidRangeError("TorchCompositeTarget.accept", f"{num_tokens} tokens of {seq!r}", expected)
        sequence.confirmed_ = num_tokens

    @operation
    def truncate(self, seq: str, num_tokens: int) -> None:
        """Keep the first num_tokens known tokens. Error if there are fewer, or more are accepted."""
        sequence = self._get(seq, "truncate")
        if num_tokens < sequence.confirmed_:
            expected = f"at least the {sequence.confirmed_} accepted ones"
            raise InvalidRangeError("TorchCompositeTarget.truncate", f"{num_tokens} tokens of {seq!r}", expected)
        self.manager_.truncate_sequence(sequence, num_tokens, num_tokens)

    @operation
    def cache(self, seq: str) -> None:
        """Nothing is published."""
        self._get(seq, "cache")

    @operation
    def deallocate(self, seq: str) -> None:
        """Finish: give all handles back, forget the sequence."""
        self.manager_.deallocate_sequence(self._get(seq, "deallocate"))
        del self._sequences[seq]

    @operation
    def preempt(self, seq: str) -> None:
        """Give all handles back; tokens stay known."""
        self.manager_.deallocate_sequence(self._get(seq, "preempt"))

    @operation
    def abort(self, seq: str) -> None:
        """Give all handles back and forget the sequence."""
        self.manager_.deallocate_sequence(self._get(seq, "abort"))
        del self._sequences[seq]

    def fork(self, parent: str, child: str) -> None:
        """Always an error: no block is shared."""
        raise MisuseError(f"{self._where('fork')}: a composite, expected sequences that share nothing")

    @operation
    def evict(self, num_blocks: int) -> int:
        """There is nothing to drop; always 0."""
        if num_blocks < 0:
            raise InvalidRangeError("TorchCompositeTarget.evict", f"{num_blocks} blocks", "0 or more")
        return 0

    @operation
    def reset(self) -> bool:
        """There is nothing to drop. Never refused."""
        return True

    @operation
    def close(self) -> None:
        """Give everything back; every later operation is an error."""
        for seq in list(self._sequences):
            self.manager_.deallocate_sequence(self._sequences.pop(seq))
        self._settle()
        self.manager_.close()
        self.closed_ = True

    # -- observations ------------------------------------------------------------------------------------------------
    @operation
    def released(self, seq: str, group: int = 0) -> int:
        """Leading places of the table without a block."""
        return self._table(seq, group, "released").released_

    @operation
    def block_table(self, seq: str, group: int = 0) -> Items[int]:
        """Physical ids of the places that have a block; a copy."""
        table = self._table(seq, group, "block_table")
        return table.ids_[table.released_ :]

    @operation
    def read(self, seq: str, start: int, stop: int, group: int = 0) -> Tags:
        """Contents of the computed tokens [start, stop) in a group. Error if one is not computed, or was released."""
        computed, table = self._get(seq, "read").computed_, self._table(seq, group, "read")
        first = min(table.released_ * table.block_size, stop)
        if not first <= start <= stop <= computed:
            expected = f"a range within the computed tokens {first} to {computed} of {seq!r}"
            raise InvalidRangeError(self._where("read"), f"[{start}, {stop})", expected)
        self._settle()
        part, at = window(table.ids_, start, stop, table.block_size)
        return self.buffers_[group].read_tags(part, at, at + stop - start)

    @operation
    def free_ids(self, group: int = 0) -> set[int]:
        """Ids in the free list of the group."""
        return set(self._manager(group, "free_ids").free_ids())

    @operation
    def free_count(self, group: int = 0) -> int:
        """Counter of the free list of the group."""
        return self._manager(group, "free_count").num_free_blocks

    @operation
    def used_count(self, group: int = 0) -> int:
        """Blocks of the group that a sequence holds."""
        return self._manager(group, "used_count").num_used_blocks

    @operation
    def ref_count(self, block_id: int, group: int = 0) -> int:
        """Handles of the block; 0 if it is free."""
        return self._manager(group, "ref_count").ref_count(block_id)

    # -- parts -------------------------------------------------------------------------------------------------------
    def _settled(self, sequence: Sequence) -> KVBuffers:
        self._settle()
        return self.buffers_[0]

    def _settle(self) -> None:
        for part, buffers in zip(self.manager_.sub_managers_, self.buffers_, strict=True):
            if part.sanitizer_ is not None:
                part.sanitizer_.settle(buffers)

    def _manager(self, group: int, where: str) -> BlockManagerImpl:
        if not 0 <= group < len(self.buffers_):
            raise InvalidRangeError(self._where(where), f"group {group}", f"0 to {len(self.buffers_) - 1}")
        return self.manager_.sub_managers_[group]

    def _table(self, seq: str, group: int, where: str) -> GroupTable:
        self._manager(group, where)
        return self._tables(self._get(seq, where))[group]

    def _tables(self, sequence: Sequence) -> list[GroupTable]:
        """The tables of a sequence; empty ones where it has none."""
        return sequence.kv_state_.groups_ or [GroupTable(manager) for manager in self.manager_.sub_managers_]
