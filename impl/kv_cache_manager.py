"""`KVCacheManager`: what a scheduler calls for its sequences (seed 2.1).

Its unit is one sequence, not a block: how much cache the sequence needs, what of it can be had from earlier requests,
and what comes back when it ends. It plans on the host only. Copies of recurrent states are done by the worker between
two calls, so that they can be late or fail: ``begin_...`` plans one, ``finish_...`` tells how it went.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kvspec.impl.sequence import Sequence


class StateCopy(NamedTuple):
    """A copy of one recurrent state, in all layers, from one slot of a rank to another."""

    rank: int
    source: int
    target: int


class KVCacheManager(ABC):
    """Allocates, shares, publishes and takes back for whole sequences.

    Every method raises `EndedSequenceError` for a sequence that was deallocated or aborted, `InvalidRangeError` for one
    whose rank or block size is not of this manager, `ForeignHandleError` for one that has blocks of another manager,
    and after the end of its life `ClosedError`; and changes nothing then.
    """

    @abstractmethod
    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room so that tokens [computed, num_tokens) can be written; all or nothing, False if refused.

        A sequence whose table is empty starts with what can be hit, which may make it longer than num_tokens. If it
        is waiting afterwards (`Sequence.is_waiting`), its state has to be restored before it is written.

        Raises:
            InvalidRangeError: num_tokens is below the computed or above the known tokens.
        """

    @abstractmethod
    def deallocate(self, sequence: Sequence) -> None:
        """The sequence ends: publish, then give everything back (seed 8)."""

    @abstractmethod
    def allocate_shared(self, sequence: Sequence) -> int:
        """Start with what can be hit; the number of tokens, 0 with nothing taken.

        Raises:
            InvalidRangeError: the table is not empty.
        """

    @abstractmethod
    def cache(self, sequence: Sequence) -> None:
        """Publish the full computed blocks of the sequence."""

    @abstractmethod
    def preempt(self, sequence: Sequence) -> None:
        """Take everything back but the rank, without publishing; the sequence may be allocated for again."""

    @abstractmethod
    def abort(self, sequence: Sequence) -> None:
        """The sequence ends without publishing."""

    @abstractmethod
    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """Keep the first num_tokens known tokens (rejected draft tokens).

        Where computed tokens go, computed falls to where the sequence can go on: with linear state to the deepest
        checkpoint among the kept tokens, for which it then waits, or to 0; with windows to 0 if one has gone on behind
        the kept tokens, which happens to confirmed ones only; otherwise into a block that nobody else holds, or to its
        begin. A save or restore that has begun is given up then.

        Raises:
            InvalidRangeError: num_tokens is negative or above the known tokens.
        """

    # -- recurrent states (seed 7) -----------------------------------------------------------------------------------
    @abstractmethod
    def take_fresh_slots(self, rank: int) -> list[int]:
        """Live slots that have to be zeroed, since their sequences start from no tokens; each is named once.

        To be zeroed before any step or copy that was planned after this call.

        Raises:
            InvalidRangeError: there is no such rank.
        """

    @abstractmethod
    def begin_save(self, sequence: Sequence) -> StateCopy | None:
        """Reserve a checkpoint of the computed tokens: the copy to do, after which `finish_save` has to be called.

        None, with nothing changed, if there is nothing to save: computed is 0 or no multiple of the stride, the
        prefix cache is off, a checkpoint of these tokens exists or is on the way, or no slot can be had. Until the end
        of the save the sequence must not be written.

        Raises:
            SequenceStateError: it waits, has no live slot, or a save has begun.
        """

    @abstractmethod
    def finish_save(self, sequence: Sequence, ok: bool) -> None:
        """The copy is done, and the checkpoint can be matched; or it failed, and its slot is given back.

        Raises:
            SequenceStateError: no save has begun.
        """

    @abstractmethod
    def begin_restore(self, sequence: Sequence) -> StateCopy:
        """The copy from the pinned checkpoint to the live slot, after which `finish_restore` has to be called.

        Raises:
            SequenceStateError: it does not wait, or a restore has begun.
        """

    @abstractmethod
    def finish_restore(self, sequence: Sequence, ok: bool) -> None:
        """The copy is done, and the sequence no longer waits; or it failed, and the sequence waits as before.

        Raises:
            SequenceStateError: no restore has begun.
        """
