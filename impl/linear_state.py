"""`LinearStatePrefixCache`: places for recurrent states, and the checkpoints among them (seed 7).

A slot is free, *live* (the state of a running sequence), *pending* (reserved for a checkpoint that is being copied, not
to be matched yet) or *committed* (a checkpoint that can be matched). Live slots, pending ones and pinned checkpoints
are never evicted.
"""

from __future__ import annotations

from collections import OrderedDict

from kvspec.impl.block import Block
from kvspec.impl.closing import while_open
from kvspec.impl.errors import DoubleFreeError, ForeignHandleError, InvalidRangeError
from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.single_block_manager import SingleBlockManager


class Checkpoint:
    """One entry of the table (``CacheEntry`` of the seed): a slot with the state of exactly the tokens of a key.

    Attributes:
        key: of the last block of the tokens (`PrefixKeys`).
        slot_: the handle of the slot; None once it was given up.
        order: when it was last used, greater for later.
        pins: sequences that wait to be restored from it.
    """

    __slots__ = ("key", "order", "pins", "slot_")

    def __init__(self, key: bytes, slot: Block, order: int = 0) -> None:
        self.key = key
        self.slot_: Block | None = slot
        self.order = order
        self.pins = 0

    @property
    def slot(self) -> int:
        """The id of the slot. Raises `ForeignHandleError` if it was given up."""
        if self.slot_ is None:
            raise ForeignHandleError("Checkpoint.slot", "the checkpoint was given up", "one that is pending or matched")
        return self.slot_.id


class LinearStatePrefixCache:
    """State slots 1 .. num_slots - 1 of a rank; slot 0 is padding.

    After `close` every method raises `ClosedError`; counts can still be read.

    Attributes:
        slots_: the manager of the slots.
        entries_: committed checkpoints by key, least recently used first.
        pending_: reserved ones by key.

    Args:
        num_slots: slots, padding included; at least 2.
        sanitizer: where to report misuse of handles; None for full speed.
    Raises:
        InvalidRangeError: there are fewer than 2 slots.
    """

    def __init__(self, num_slots: int, *, sanitizer: Sanitizer | None = None) -> None:
        self.slots_ = SingleBlockManager(num_slots, sanitizer=sanitizer)
        self.entries_: OrderedDict[bytes, Checkpoint] = OrderedDict()
        self.pending_: dict[bytes, Checkpoint] = {}
        self._clock = 0
        # Live slots that hold what was there before, with the checkpoint that gave way for them.
        self._fresh: dict[int, Checkpoint | None] = {}

    @property
    def closed_(self) -> bool:
        """Whether it was closed."""
        return self.slots_.closed_

    @property
    def num_free_slots(self) -> int:
        """Slots that nobody has."""
        return self.slots_.num_free_blocks

    @property
    def num_idle(self) -> int:
        """Checkpoints that are not pinned: what `evict` can free."""
        return sum(not entry.pins for entry in self.entries_.values())

    # -- live slots --------------------------------------------------------------------------------------------------
    @while_open
    def acquire_live_slot(self) -> Block | None:
        """A slot for the state of a sequence that starts from no tokens; the oldest idle checkpoint gives way.

        Until `take_fresh_slots` the slot holds what it held before.

        Returns:
            None if no slot is free and no checkpoint idle.
        """
        slot, victim = self._take_slot()
        if slot is not None:
            self._fresh[slot.id] = victim
        return slot

    @while_open
    def release_live_slot(self, slot: Block) -> None:
        """A sequence gives its slot back. Raises `ForeignHandleError` if it is none of a sequence."""
        self.slots_.deallocate([slot])
        self._fresh.pop(slot.id, None)
        slot.release()

    @while_open
    def cancel_live_slot(self, slot: Block) -> None:
        """Take back a slot that was acquired for a call that is refused, as if it had not been acquired.

        The checkpoint that gave way is there again, no more recently used than before: its state is still in the slot.
        """
        victim = self._fresh.pop(slot.id, None)
        if victim is None:
            self.release_live_slot(slot)
            return
        victim.slot_ = slot
        self.entries_[victim.key] = victim
        self._sort()

    @while_open
    def restart(self, slot: Block) -> None:
        """The sequence of a live slot starts from no tokens again."""
        self._fresh[slot.id] = None

    @while_open
    def take_fresh_slots(self) -> list[int]:
        """Live slots to be zeroed, since their sequences start from no tokens; each is named once."""
        fresh, self._fresh = list(self._fresh), {}
        return fresh

    # -- checkpoints -------------------------------------------------------------------------------------------------
    @while_open
    def reserve(self, key: bytes) -> Checkpoint | None:
        """A pending checkpoint; the oldest idle one gives way if no slot is free.

        Returns:
            None if there is one under this key, committed or pending, or no slot can be had.
        """
        if key in self.entries_ or key in self.pending_:
            return None
        slot, _ = self._take_slot()
        if slot is None:
            return None
        self.pending_[key] = pending = Checkpoint(key, slot)
        return pending

    @while_open
    def commit(self, pending: Checkpoint) -> None:
        """Its copy is done: it can be matched. Raises `ForeignHandleError` if it is not pending."""
        self._settle(pending, "commit")
        self.entries_[pending.key] = pending
        self._use(pending)

    @while_open
    def abort(self, pending: Checkpoint) -> None:
        """It will not be committed: its slot is free. Raises `ForeignHandleError` if it is not pending."""
        self._settle(pending, "abort")
        self._give_up(pending)

    @while_open
    def contains(self, key: bytes) -> bool:
        """Whether a state can be restored under this key."""
        return key in self.entries_

    @while_open
    def match_and_pin(self, key: bytes) -> Checkpoint | None:
        """The checkpoint of a key, which counts as used and is kept until `unpin`; None if there is none."""
        entry = self.entries_.get(key)
        if entry is not None:
            entry.pins += 1
            self._use(entry)
        return entry

    @while_open
    def unpin(self, entry: Checkpoint) -> None:
        """One sequence no longer waits for it. Raises `DoubleFreeError` if none does."""
        if not entry.pins:
            what = f"the checkpoint in slot {entry.slot} is not pinned"
            raise DoubleFreeError("LinearStatePrefixCache.unpin", what, "one unpin for each match")
        entry.pins -= 1

    @while_open
    def cancel_match(self, entry: Checkpoint, order: int) -> None:
        """Unpin what was matched for a call that is refused; it counts as used no later than before (order)."""
        self.unpin(entry)
        entry.order = order
        self._sort()

    # -- eviction ----------------------------------------------------------------------------------------------------
    @while_open
    def evict(self, num_slots: int) -> int:
        """Forget up to num_slots checkpoints, least recently used first; how many slots became free.

        Raises:
            InvalidRangeError: num_slots is negative.
        """
        if num_slots < 0:
            raise InvalidRangeError("LinearStatePrefixCache.evict", f"{num_slots} slots", "0 or more")
        freed = 0
        while freed < num_slots:
            victim = self._pop_victim()
            if victim is None:
                break
            self._give_up(victim)
            freed += 1
        return freed

    @while_open
    def reset(self) -> int:
        """Forget every checkpoint that nobody waits for; how many. Pinned ones stay until they have been restored."""
        return self.evict(len(self.entries_))

    @while_open
    def close(self) -> None:
        """Forget everything; every later call, and use of a slot, is an error."""
        for entry in [*self.entries_.values(), *self.pending_.values()]:
            self._give_up(entry)
        self.entries_.clear()
        self.pending_.clear()
        self.slots_.close()

    # -- parts -------------------------------------------------------------------------------------------------------
    def _take_slot(self) -> tuple[Block | None, Checkpoint | None]:
        """A slot, and the checkpoint that gave way for it: its handle changes hands, and is never free in between."""
        slots = self.slots_.allocate(1)
        if slots is not None:
            return slots[0], None
        victim = self._pop_victim()
        if victim is None:
            return None, None
        slot, victim.slot_ = victim.slot_, None
        return slot, victim

    def _pop_victim(self) -> Checkpoint | None:
        """Remove the least recently used checkpoint that is not pinned from the table."""
        for entry in self.entries_.values():
            if not entry.pins:
                del self.entries_[entry.key]
                return entry
        return None

    def _give_up(self, entry: Checkpoint) -> None:
        slot, entry.slot_ = entry.slot_, None
        assert slot is not None
        self.slots_.release_blocks([slot])

    def _settle(self, pending: Checkpoint, method: str) -> None:
        if self.pending_.get(pending.key) is not pending:
            where, what = f"LinearStatePrefixCache.{method}", "the checkpoint is not pending"
            raise ForeignHandleError(where, what, "one that was reserved, once")
        del self.pending_[pending.key]

    def _use(self, entry: Checkpoint) -> None:
        self._clock += 1
        entry.order = self._clock
        self.entries_.move_to_end(entry.key)

    def _sort(self) -> None:
        """Bring the table into its order again after one entry went back to an earlier place."""
        self.entries_ = OrderedDict(sorted(self.entries_.items(), key=lambda item: item[1].order))
