"""What a run leaves."""

from __future__ import annotations

import msgspec

from kvspec.model.conform.options import ConformOptions
from kvspec.model.conformance import PoolConfig
from kvspec.model.operations import AnyOperation
from kvspec.model.reporting.evidence import Wanted
from kvspec.model.reporting.known import KnownVerdict


class FamilyVerdict(msgspec.Struct, frozen=True):
    """What was seen of one family of promises.

    Attributes:
        family: its name.
        verdict: ``holds``, ``violated``, ``known`` (something known violates it) or ``not observed``.
        count: on how many occasions it was judged.
        unit: what an occasion is.
        reason: why it was not observed, what was violated, or the known findings.
        evidence: how often what happened that it depends on.
    """

    family: str
    verdict: str
    count: int
    unit: str
    reason: str = ""
    evidence: dict[str, int] = msgspec.field(default_factory=dict)


class FoundViolation(msgspec.Struct):
    """The first violation.

    Attributes:
        family, rule, what: as in `kvspec.model.acceptor.Violation`, for the operations below.
        number, operation: the call that showed it, in the run that is given below.
        config, operations: a run that shows it; the last operation is the one that violates.
        errors: for each operation, whether it is rightly answered with an error.
        before, after: the model before the last operation, and what the target shows after it.
        episode, found_at: where it was found: the episode, and the operation in it.
        shrunk: whether no line can be taken out of the operations.
        reproduced: whether the run showed it again with a new target; if not, it is the run as it was.
    """

    family: str
    rule: str
    what: str
    number: int
    operation: str
    config: PoolConfig
    operations: tuple[AnyOperation, ...]
    errors: tuple[bool, ...]
    before: list[str]
    after: list[str]
    episode: int
    found_at: int
    shrunk: bool
    reproduced: bool


class ConformReport(msgspec.Struct):
    """All that a run leaves.

    Attributes:
        versions: of kvspec and Python.
        about: what the target says of itself.
        options: what was asked.
        operations, episodes, seconds: what was done; the time is without shrinking.
        most_blocks, longest_block, longest_episode: the largest pool, block and number of operations in one pool.
        variants: of an engine, how many operations each of its managers was driven by.
        capabilities: what the target shows.
        counts: how often what happened.
        families: verdict by verdict.
        minimum: what had to be seen.
        known: what became of the findings that are known of this target.
        violation: the first one that is not known.
        interrupted: the run was ended by Ctrl-C.
    """

    versions: dict[str, str]
    about: dict[str, str]
    options: ConformOptions
    operations: int
    episodes: int
    seconds: float
    most_blocks: int
    longest_block: int
    longest_episode: int
    variants: dict[str, int]
    capabilities: list[str]
    counts: dict[str, int]
    families: list[FamilyVerdict]
    minimum: list[Wanted]
    known: list[KnownVerdict]
    violation: FoundViolation | None = None
    interrupted: bool = False

    @property
    def unmet(self) -> list[Wanted]:
        """What was seen too rarely."""
        return [wanted for wanted in self.minimum if not wanted.met]

    @property
    def verdicts(self) -> list[str]:
        """Of all families, of what was seen too rarely, and of the known findings."""
        unmet = ["unknown"] * bool(self.unmet)
        return [f.verdict for f in self.families] + unmet + [k.verdict for k in self.known]

    @property
    def rate(self) -> float:
        """Judged operations per second."""
        return self.operations / self.seconds if self.seconds else 0.0
