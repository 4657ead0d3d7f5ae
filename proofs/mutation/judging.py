"""The third answer: whether a judge who follows the mistake still lets a correct manager pass."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from kvspec.proofs.mutation.key import key
from kvspec.proofs.mutation.kill import KILLED, TEST, Fate
from kvspec.proofs.mutation.mutants import Mutant
from kvspec.spec.language.chapter import Chapter

JUDGED = "sequences"
"""The chapter that judges follow."""

Judge = Callable[[Chapter], str | None]
"""Has a correct manager judged by a text; the promise that it is said to break, if any."""


def fate_by_test(alive: Fate, mutant: Mutant, judge: Judge) -> Fate:
    """The fate of a mutant of an event that neither proofs nor runs have killed."""
    broken = judge(mutant.text) if mutant.chapter == JUDGED else None
    if broken is None:
        return alive
    note = "a correct manager is said to break it"
    return msgspec.structs.replace(
        alive, key=key(mutant, TEST), verdict=KILLED, by=TEST, killer=broken, note=note
    )
