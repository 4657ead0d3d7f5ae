"""How much of a hit can be kept where recurrent states have to be restored (seed 7.2).

Of the boundaries of a hit only those at a multiple of the stride can have a checkpoint; they are counted from 1, and
boundary 0, the empty prefix, needs none. A policy says up to which of them the hit is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

Policy = Callable[[Sequence[bool]], int]
"""From whether each boundary has a checkpoint to the number of boundaries that are kept."""


def contiguous(checkpoints: Sequence[bool]) -> int:
    """The boundaries before the first one without a checkpoint."""
    for kept, has_checkpoint in enumerate(checkpoints):
        if not has_checkpoint:
            return kept
    return len(checkpoints)


def deepest(checkpoints: Sequence[bool]) -> int:
    """The boundaries up to the last one with a checkpoint: only the state at the end is restored."""
    for kept in range(len(checkpoints), 0, -1):
        if checkpoints[kept - 1]:
            return kept
    return 0


POLICIES: Final[Mapping[str, Policy]] = {"contiguous": contiguous, "deepest": deepest}
