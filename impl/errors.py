"""Exceptions of the implementation.

Two families, told apart because they call for different work:

- `KVCacheError`: the *caller* asked for something that makes no sense. The state is as it was before the call.
- `ContentError`: the *manager* broke a promise about device memory. Nothing can be said about the state.

A pool without room is neither: it is an ordinary answer (``None`` or ``False``).
"""

from __future__ import annotations


class KVCacheError(RuntimeError):
    """A call that no correct caller makes.

    Args:
        where: class and operation that refused, e.g. ``BlockManagerImpl.free``.
        what: what was found.
        expected: what would have been accepted.
    """

    def __init__(self, where: str, what: str, expected: str) -> None:
        super().__init__(f"{where}: {what}; expected {expected}")
        self.where = where
        self.what = what
        self.expected = expected


class ReleasedHandleError(KVCacheError):
    """A handle was used after its release, or released twice."""


class HandleInUseError(KVCacheError):
    """A handle was released, or an id freed, while the accounts still show a user of it."""


class ForeignHandleError(KVCacheError):
    """A handle or block id does not belong to this manager, or not to a sequence."""


class NoIdsError(KVCacheError):
    """Ids were asked of, or given back to, a manager that has none of its own but those of its sub-managers."""


class DoubleFreeError(KVCacheError):
    """An id was freed that is free already."""


class ClosedError(KVCacheError):
    """The manager was used after `close`."""


class UnknownSequenceError(KVCacheError):
    """No sequence has this name, or a new one would take a name in use."""


class EndedSequenceError(KVCacheError):
    """A sequence was used after its deallocation or abortion."""


class SequenceStateError(KVCacheError):
    """A sequence is not where the call would need it: it waits for a restore, is being saved, or has no live slot."""


class TransferStateError(KVCacheError):
    """A transfer between tiers is not where the call would need it: it was not started, or has ended."""


class InvalidTokensError(KVCacheError):
    """Token ids that are negative, not integers or above 63 bits."""


class InvalidRangeError(KVCacheError):
    """A count or position outside of what the sequence or the pool has."""


class KeyMismatchError(KVCacheError):
    """A block would be published under a second key, or blocks and tokens do not fit together."""


class KernelUnavailableError(KVCacheError):
    """A kernel backend was asked for that this installation does not have."""


class ContentError(RuntimeError):
    """Device memory does not hold what the manager promised (poisoned, torn or overwritten cells)."""
