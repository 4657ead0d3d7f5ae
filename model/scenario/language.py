"""What a scenario says, as data: a pool, then operations and checks, or events of a chapter and checks.

`kvspec.model.scenario.parse` makes these from text, `kvspec.model.scenario.write` makes text of them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from kvspec.model.conformance import Context, PoolConfig
from kvspec.model.engines.protocol import WAYS
from kvspec.model.operations import Operation

MAX_BYTES: Final = 4 * 2**20
MAX_LINES: Final = 20_000
MAX_COLUMNS: Final = 2**16
MAX_NUMBER: Final = 2**63 - 1
MAX_TOKENS: Final = 2**20
MAX_RANKS: Final = 2**10
MAX_THREADS: Final = 2**6
MAX_CELLS: Final = 2**24
"""Limits of a scenario: bytes and lines of a file, characters of a line, a number of any kind, tokens in all, ranks,
threads, and cells of all ranks together (`PoolConfig.num_cells`)."""


POOL_SIZES: Final = {
    "ranks": "num_ranks",
    "single": "num_single_blocks",
    "slots": "num_state_slots",
    "interval": "checkpoint_interval",
    "host": "num_host_blocks",
    "pages": "num_pages",
    "page": "page_size",
    "threads": "num_threads",
}
"""Words of the pool line that a number follows, and what they mean."""


ENGINE_SIZES: Final = {"batch": "max_batch_tokens", "running": "max_running", "window": "window"}
ENGINE_WAYS: Final = WAYS
"""Words of the pool line of an engine, and what they mean; those of its ways are their fields."""


class ScenarioError(ValueError):
    """A scenario that cannot be read.

    Attributes:
        file, line, column: where, both numbers from 1; 0 where it is about the whole file.
        what: what was found.
        expected: what would have been right.
    """

    def __init__(self, file: str, line: int, column: int, what: str, expected: str) -> None:
        self.file, self.line, self.column, self.what, self.expected = file, line, column, what, expected
        place = f"{file}:{line}:{column}" if line else file
        super().__init__(f"{place}: {what}, expected {expected}")


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="expect", tag=str.lower):
    """One ``expect`` line."""


class Hit(Check, frozen=True):
    """The last ``allocate_shared`` of the sequence found that many tokens."""

    seq: str
    num_tokens: int


class Saved(Check, frozen=True):
    """The previous ``save`` or ``save_start`` was done."""


class Granted(Check, frozen=True):
    """The previous operation was done."""


class Refused(Check, frozen=True):
    """The previous operation was refused."""


class Error(Check, frozen=True):
    """The previous operation was an error."""


class Free(Check, frozen=True):
    """So many blocks are free, on one rank or in one group, or in all together."""

    num_blocks: int
    rank: int | None = None
    group: int | None = None


class Used(Check, frozen=True):
    """So many blocks are held by sequences, on one rank or in one group, or in all together."""

    num_blocks: int
    rank: int | None = None
    group: int | None = None


class Keys(Check, frozen=True):
    """So many keys can be matched, on one rank or on all together."""

    num_keys: int
    rank: int | None = None


class Singles(Check, frozen=True):
    """So many single blocks are free, on one rank or on all together."""

    num_singles: int
    rank: int | None = None


class Slots(Check, frozen=True):
    """So many state slots are free, on one rank or on all together."""

    num_slots: int
    rank: int | None = None


class Checkpoints(Check, frozen=True):
    """So many checkpoints can be matched, on one rank or on all together."""

    num_checkpoints: int
    rank: int | None = None


class Mapped(Check, frozen=True):
    """So many pages are mapped."""

    num_pages: int


class OnRank(Check, frozen=True, tag="rank"):
    """The sequence has this rank, or none."""

    seq: str
    number: int | None


class Waiting(Check, frozen=True):
    """The sequence waits for its state to be restored."""

    seq: str


class HostFree(Check, frozen=True, tag="host_free"):
    """So many host blocks are free, on one rank or on all together."""

    num_blocks: int
    rank: int | None = None


class HostKeys(Check, frozen=True, tag="host_keys"):
    """So many keys can be found on the host, on one rank or on all together."""

    num_keys: int
    rank: int | None = None


class Transfers(Check, frozen=True):
    """So many copies between the tiers have not ended, on one rank or on all together."""

    num_transfers: int
    rank: int | None = None


class Loading(Check, frozen=True):
    """The sequence waits for copies from the host."""

    seq: str


class State(Check, frozen=True):
    """The live slot of the sequence holds the state behind so many of its tokens."""

    seq: str
    num_tokens: int


class Blocks(Check, frozen=True):
    """The sequence's table has so many blocks, in the first group or in another."""

    seq: str
    num_blocks: int
    group: int | None = None


class Released(Check, frozen=True):
    """So many leading places of the sequence's table have been given back (composites)."""

    seq: str
    num_blocks: int
    group: int | None = None


class Computed(Check, frozen=True):
    """So many tokens of the sequence are computed."""

    seq: str
    num_tokens: int


class Shared(Check, frozen=True):
    """Both tables have the same physical block at a place."""

    seq: str
    other: str
    index: int


class Apart(Check, frozen=True):
    """The two tables have different physical blocks at a place."""

    seq: str
    other: str
    index: int


class References(Check, frozen=True):
    """The block at a place of a table has so many holders."""

    seq: str
    index: int
    num_holders: int
    group: int | None = None


class Evicted(Check, frozen=True):
    """The last ``evict`` freed so many blocks."""

    num_blocks: int


class Violated(Check, frozen=True, tag="violation"):
    """The previous line breaks a promise of this family (and this rule); nothing follows in the scenario."""

    family: str
    rule: str | None = None


class Drained(Check, frozen=True):
    """When all sequences have ended and the cache is dropped, every block is free. Ends all sequences."""


class BrokenInvariant(Check, frozen=True, tag="broken"):
    """After the previous event this invariant or theorem does not hold; or it asks for more than was there of an
    event that it calls (``callee/pre.N``)."""

    invariant: str


class Forbidden(Check, frozen=True):
    """The spec does not allow the previous event."""


OF_A_TABLE: Final = (Blocks, References)
"""Checks of one table where a sequence has several: composites and engines have a table for each group."""

EVENT_CHECKS: Final = (BrokenInvariant, Forbidden)
"""Checks of a scenario of events; the others are those of a scenario of operations."""


class Mark(Enum):
    """Punctuation among the atoms of an event or fact."""

    COMMA = ","


class Seated(msgspec.Struct, frozen=True):
    """``a[0]``: the place of a sequence's table."""

    seq: str
    index: int


class Tokens(msgspec.Struct, frozen=True):
    """``[7 8]``: the chain of these tokens; a log of events may say in which context, a scenario has one only."""

    tokens: tuple[int, ...]
    context: Context = Context()


class Group(msgspec.Struct, frozen=True):
    """``{...}``: a set as one argument."""

    atoms: tuple[Atom, ...]


Atom = int | str | Seated | Tokens | Group | Mark
"""What the arguments of events and the facts of a start state are made of; their sorts say how they are read."""


class EventLine(msgspec.Struct, frozen=True):
    """``event NAME ARGUMENTS``."""

    name: str
    atoms: tuple[Atom, ...] = ()


class Fact(msgspec.Struct, frozen=True):
    """``NAME KEY: VALUES`` of a given start state; ``key`` is None where there is no colon."""

    name: str
    key: tuple[Atom, ...] | None
    values: tuple[Atom, ...]


Item = Operation | Check | EventLine | Fact
"""One line behind the head of a scenario."""


class Line(msgspec.Struct, frozen=True):
    """An item and where it stands."""

    number: int
    item: Item


class Scenario(msgspec.Struct, frozen=True):
    """A scenario as it was written.

    Attributes:
        name: what it is called, usually its file.
        config: the pool.
        lines: operations and checks, or events and checks.
        chapter: the chapter whose events are run; None for a scenario of operations.
        given: facts of the start state; None where the chapter's own start is meant.
    """

    name: str
    config: PoolConfig
    lines: tuple[Line, ...]
    chapter: str | None = None
    given: tuple[Line, ...] | None = None

    @property
    def items(self) -> list[Item]:
        """The lines without their numbers."""
        return [line.item for line in self.lines]

    @property
    def operations(self) -> list[Operation]:
        """The operations alone."""
        return [line.item for line in self.lines if isinstance(line.item, Operation)]

    @property
    def checks(self) -> list[Check]:
        """The checks alone."""
        return [line.item for line in self.lines if isinstance(line.item, Check)]
