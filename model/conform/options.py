"""What a run is asked for."""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import msgspec

from kvspec.model.acceptor import PATIENCE
from kvspec.model.conformance import Form, ManagerType
from kvspec.model.forms import FORMS, with_fixed
from kvspec.model.generator import Kind
from kvspec.model.reporting.evidence import check_minimum
from kvspec.model.reporting.known import KnownFindings
from kvspec.model.scenario.language import MAX_RANKS, MAX_THREADS

DEFAULT_OPERATIONS: Final = 20_000
MAX_CELLS: Final = 2**20
"""Every comparison looks at each cell of the largest pool that is driven."""


class ConformOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do.

    Attributes:
        seed: the same seed gives the same operations, as long as the target answers the same.
        operations: how many; None for any number (then `seconds` must be given).
        seconds: for how long at most.
        kind: valid operations, wild ones, or both.
        form: what to drive; by default all that the target can be.
        num_blocks, block_size: the same pool each time; by default mostly small ones of all sizes.
        num_ranks, num_single_blocks, num_state_slots, checkpoint_interval, trim: so for pools of ranks.
        num_host_blocks: so for pools with a host tier.
        num_pages, page_size: so for managers with pages.
        variant: of an engine, the only manager that is driven; by default all that there are, in turn.
        max_batch_tokens, max_running, window: so for engines.
        num_threads: from how many threads the target is called, in turn; by default from one.
        manager_types: the groups of every composite.
        prefix_cache: whether pools may have a prefix cache; otherwise none has one.
        sanitizer: have the target poison freed blocks.
        minimum: how often what must have happened, by the names of `COUNTERS`; before what the target asks for.
        known: findings that do not end the run.
        every: compare all observations after every so many operations.
        shrink_seconds: how long to look for a smaller run after a violation.
        patience: seconds within which a call has to return, where there are several threads, or another process.

    Raises:
        ValueError: a number is out of range, or there is no end.
    """

    seed: int = 0
    operations: int | None = DEFAULT_OPERATIONS
    seconds: float | None = None
    kind: Kind = Kind.MIXED
    form: Form | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    num_ranks: int | None = None
    num_single_blocks: int | None = None
    num_state_slots: int | None = None
    checkpoint_interval: int | None = None
    trim: Literal["contiguous", "deepest"] | None = None
    num_host_blocks: int | None = None
    num_pages: int | None = None
    page_size: int | None = None
    variant: str | None = None
    max_batch_tokens: int | None = None
    max_running: int | None = None
    window: int | None = None
    num_threads: int | None = None
    manager_types: tuple[ManagerType, ...] | None = None
    prefix_cache: bool = True
    sanitizer: bool = False
    minimum: dict[str, int] = msgspec.field(default_factory=dict)
    known: KnownFindings | None = None
    every: int = 1
    shrink_seconds: float = 30.0
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        if self.operations is None and self.seconds is None:
            raise ValueError("operations and seconds are both open, expected an end")
        if self.operations is not None and self.operations < 1:
            raise ValueError(f"operations: {self.operations}, expected at least 1")
        if self.seconds is not None and not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ValueError(f"seconds: {self.seconds}, expected more than 0, and an end")
        if self.every < 1:
            raise ValueError(f"every: {self.every}, expected at least 1")
        check_minimum(self.minimum)
        self._check_sizes()

    def _check_sizes(self) -> None:
        known = FORMS[self.form].options if self.form is not None else None
        for name, value in (item for form in FORMS for item in self.fixed_of(form).items()):
            if known is not None and name not in known:
                shown = f"{len(value)} groups" if isinstance(value, tuple) else value
                raise ValueError(f"{name}: {shown}, expected none where only {self.form} are driven")
        tiers = self.form is Form.TIERS or self.num_host_blocks is not None
        if tiers and not self.prefix_cache:
            raise ValueError("prefix_cache: a host tier without a prefix cache, expected both, or neither")
        if self.manager_types is not None and (self.num_blocks or self.block_size):
            raise ValueError("manager_types: with num_blocks or block_size, expected either of them")
        if self.num_ranks is not None and self.num_ranks > MAX_RANKS:
            raise ValueError(f"num_ranks: {self.num_ranks}, expected at most {MAX_RANKS}")
        if self.num_threads is not None and self.num_threads > MAX_THREADS:
            raise ValueError(f"num_threads: {self.num_threads}, expected at most {MAX_THREADS}")
        least = {"num_blocks": self.num_blocks or 2, "block_size": self.block_size or 1}
        forms = [form for form in FORMS if self.fixed_of(form)] or [Form.MANAGERS]
        cells = min(with_fixed(FORMS[f].smallest, least | self.fixed_of(f)).num_cells for f in forms)
        if cells > MAX_CELLS:
            what = f"a pool of {cells} cells, single blocks and slots"
            raise ValueError(f"{what}, expected at most {MAX_CELLS} on all ranks together")

    def fixed_of(self, form: Form) -> dict[str, Any]:
        """What is fixed of pools of a form, beside blocks and their size."""
        return {name: value for name in FORMS[form].options if (value := getattr(self, name)) is not None}
