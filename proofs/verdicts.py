"""What can be said of an obligation, and the record of it that reports, files and other processes read."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

UNBOUNDED = "unbounded"


class Verdict(StrEnum):
    """The answer to one obligation; only `PROVED` is success."""

    PROVED = "proved"
    """It follows, for pools of any size."""
    REFUTED = "refuted"
    """There is a counterexample, and the concrete reading confirms it."""
    UNKNOWN = "unknown"
    """Nobody could tell; `Result.note` says what was tried and what it usually means."""
    VACUOUS = "vacuous"
    """The hypotheses cannot hold together, as far as was looked: whatever they imply says nothing."""


@dataclass(frozen=True)
class Report:
    """A counterexample in words: lines of (label, text), and the same as data."""

    lines: tuple[tuple[str, str], ...]
    size: str
    reached: int | None
    state: dict[str, object] = field(default_factory=dict)
    scenario: str | None = None


@dataclass(frozen=True)
class Result:
    """The verdict on one obligation."""

    id: str
    chapter: str
    row: str
    column: str
    kind: str
    sentence: str
    where: str
    verdict: Verdict
    scope: str
    solvers: dict[str, str]
    """What each solver said: proved, unknown, or nothing if it was not asked."""
    seconds: float
    note: str = ""
    steps: int = 0
    """How many of its own steps Z3 needed to prove it at once; 0 if it did not."""
    shape: str = ""
    """How quantifiers alternate in the goal, as the solvers read it (`kvspec.proofs.shape`)."""
    counterexample: Report | None = None
