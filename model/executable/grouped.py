"""The model of a composite: programs over the events of chapter `composite`."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Final

from kvspec.model.compiled import Compiled
from kvspec.model.conformance import ManagerType, PoolConfig
from kvspec.model.executable import texts
from kvspec.model.executable.part import Part, Under
from kvspec.model.executable.tables import Tables
from kvspec.model.world import NOTHING, Chain, Chains, first_seen, group_statics, place_in
from kvspec.spec.language.terms import Path
from kvspec.spec.slots import blocks_needed

_FREE: Final = ("groups", "blocks", "free")
_HOLDERS: Final = ("groups", "blocks", "holders")
_TYPE: Final = ("groups", "manager_type")
_SIZE: Final = ("groups", "size")
_RELEASED: Final = ("groups", "released")
_TABLE: Final = ("groups", "table")
_OF_SEQUENCES: Final = (_SIZE, _RELEASED, ("groups", "computed"), ("groups", "confirmed"))
_NONE: Final[frozenset[Any]] = frozenset()

_NOBODY: Final = None
"""The chapter has as many blocks in each group. Those that a smaller group has not are held, from the start and for
ever, by a sequence that nobody can name."""


class _GroupPart:
    """The blocks of one group; there are no keys."""

    cached: frozenset[Chain] = frozenset()
    entry: Mapping[Chain, int] = {}
    reclaimable = 0

    def __init__(self, state: Mapping[Path, Any], group: int, kind: ManagerType) -> None:
        self.group, self.kind = group, kind
        self.holders: Under[int, set[Any]] = Under(state[_HOLDERS], group)
        self._free: Mapping[int, set[int]] = state[_FREE]

    @property
    def free(self) -> Set[int]:
        return self._free.get(self.group, _NONE)

    @property
    def used(self) -> int:
        return self.kind.num_blocks - 1 - len(self.free)


class GroupedPool(Tables):
    """The executable model of a composite: a request has a table in every group, and nothing is shared.

    A call of ``allocate`` is `begin`, `stage` for each block and `commit`, or `refuse`; slides may stand between them.
    Where no group is said, it is the first.
    """

    def __init__(self, config: PoolConfig, watch: bool = True, ghosts: bool = True) -> None:
        super().__init__(config)
        carriers = {
            "Group": lambda: range(len(self.config.manager_types)),
            "Block": lambda: range(max(kind.num_blocks for kind in self.config.manager_types)),
            "Index": lambda: range(max(self._size.values(), default=0) + 1),
            "Seq": lambda: [*self.requests, _NOBODY],
        }
        self.machine = Compiled(texts.composite(), group_statics(config), carriers, watch, ghosts)
        self.fire = self.machine.events
        self._size: dict[tuple[int, str], int] = self.machine.state[_SIZE]
        self._released: dict[tuple[int, str], int] = self.machine.state[_RELEASED]
        self._table: dict[tuple[int, str, int], int] = self.machine.state[_TABLE]
        self._covered: dict[str, int] = self.machine.state[("covered",)]
        self._accepted: dict[str, int] = self.machine.state[("accepted",)]
        self._running: set[str] = self.machine.state[("running",)]
        self._at_first()

    def restart(self, config: PoolConfig) -> None:
        """An empty composite of other groups, in the first state."""
        self.config = config
        self.chains = Chains(config.block_size)
        self.machine.restart(group_statics(config))
        self.requests.clear()
        self._at_first()

    def _at_first(self) -> None:
        kinds = self.config.manager_types
        most = max(kind.num_blocks for kind in kinds)
        absent = {(g, i): i + kind.num_blocks for g, kind in enumerate(kinds) for i in range(most - kind.num_blocks)}
        start = dict(self.machine.state)
        start[_TYPE] = dict(enumerate(kinds))
        start[_FREE] = {g: set(range(1, kind.num_blocks)) for g, kind in enumerate(kinds)}
        start[_HOLDERS] = {(g, block): {("entry_of", _NOBODY, i)} for (g, i), block in absent.items()}
        start[_TABLE] = {(g, _NOBODY, i): block for (g, i), block in absent.items()}
        start[_SIZE] = {(g, _NOBODY): most - kind.num_blocks for g, kind in enumerate(kinds)}
        start["running",] = {_NOBODY}
        self.machine.load(start)
        self._parts = [_GroupPart(self.machine.state, g, kind) for g, kind in enumerate(kinds)]

    # -- what there is -------------------------------------------------------------------------------------------

    def parts(self) -> list[Part]:
        """Group by group."""
        return [*self._parts]

    def part(self, seq: str) -> Part:
        """The first group."""
        return self._parts[0]

    @property
    def kinds(self) -> tuple[ManagerType, ...]:
        """What the groups are."""
        return self.config.manager_types

    def size(self, seq: str, group: int = 0) -> int:
        """Places of the table, those that have been released included."""
        return self._size.get((group, seq), 0)

    def released(self, seq: str, group: int = 0) -> int:
        """Leading places that have been released."""
        return self._released.get((group, seq), 0)

    def block(self, seq: str, index: int, group: int = 0) -> int:
        """The block at a place of the table."""
        return self._table[group, seq, index]

    def table(self, seq: str, group: int = 0) -> list[int]:
        """Physical ids of the places that are held."""
        return [self.block(seq, i, group) for i in range(self.released(seq, group), self.size(seq, group))]

    def room(self, seq: str) -> int:
        """Tokens that have room in every group."""
        return min(self.size(seq, g) * kind.block_size for g, kind in enumerate(self.kinds))

    def covered(self, seq: str) -> int:
        """Tokens that room was asked for."""
        return self._covered.get(seq, 0)

    def accepted(self, seq: str) -> int:
        """Computed tokens that are there to stay."""
        return self._accepted.get(seq, 0)

    def seen_from(self, seq: str, group: int) -> int:
        """The first token that a query sees which can still come."""
        return first_seen(self.kinds[group], self.accepted(seq))

    def unseen(self, seq: str, group: int) -> int:
        """Places that are held, and of which no query that can still come sees a token."""
        return place_in(self.kinds[group], self.seen_from(seq, group)) - self.released(seq, group)

    def missing(self, seq: str, num_tokens: int, group: int) -> int:
        """Blocks by which the table has to grow, so that so many tokens have room."""
        return max(0, blocks_needed(num_tokens, self.kinds[group].block_size) - self.size(seq, group))

    def lacking(self, seq: str, num_tokens: int) -> list[int]:
        """Groups that have fewer free blocks than are missing."""
        parts = enumerate(self._parts)
        return [g for g, part in parts if self.missing(seq, num_tokens, g) > len(part.free)]

    def content(self, seq: str, block: int) -> Chain:
        """What others may read in a block: nothing is shared."""
        return NOTHING

    def taker(self, seq: str, block: int) -> str | None:
        """Who took a block: he who has it."""
        return seq

    def hits(self, seq: str, limit: int, part: Part) -> int:
        """Nothing is published."""
        return 0

    def writes_shared(self, seq: str, num_tokens: int) -> list[int]:
        """Nothing is shared."""
        return []

    def publishable(self, seq: str) -> list[int]:
        """There is no cache."""
        return []

    # -- programs ------------------------------------------------------------------------------------------------

    def begin(self, seq: str, num_tokens: int) -> None:
        """A call begins for room for more tokens than are covered."""
        self.fire["begin"](seq, num_tokens)

    def stage(self, group: int, block: int) -> None:
        """A group gives a block."""
        self.fire["stage"](group, block)

    def commit(self) -> None:
        """The call succeeds."""
        self.fire["commit"]()

    def refuse(self, seq: str, num_tokens: int, group: int) -> None:
        """A call that fails, since a group has nothing to give when it has given all that is free."""
        self.begin(seq, num_tokens)
        for block in sorted(self._parts[group].free):
            self.stage(group, block)
        before = self.machine.state["size_before",].get(group, 0)
        self.fire["refuse"](group)
        while self.size(seq, group) > before:
            self.fire["unstage"](group)
        self.fire["refused"]()

    def slide(self, seq: str, group: int) -> None:
        """The first block of a table goes back."""
        self.fire["slide"](seq, group)

    def write(self, seq: str, count: int) -> None:
        """Every group computes the next `count` tokens; those for which there is room, but for which none was asked,
        are covered first."""
        request = self.requests[seq]
        end = request.computed + count
        if end > self.covered(seq):
            self.begin(seq, end)
            self.commit()
        if count:
            for group in range(len(self.kinds)):
                self.fire["compute"](seq, group, end)
        request.computed = end

    def accept(self, seq: str, num_tokens: int) -> None:
        """The first num_tokens computed tokens are there to stay."""
        if num_tokens != self.accepted(seq):
            self.fire["accept"](seq, num_tokens)

    def truncate(self, seq: str, num_tokens: int) -> None:
        """Reject the tokens behind the first num_tokens; blocks stay until `give_back_to`."""
        request = self.requests[seq]
        if num_tokens < request.computed:
            for group in range(len(self.kinds)):
                self.fire["take_back"](seq, group, num_tokens)
        if num_tokens < self.covered(seq):
            self.fire["shorten"](seq, num_tokens)
        request.cut(num_tokens, self.config.block_size)

    def give_back_to(self, seq: str, size: int, group: int) -> None:
        """Give back the blocks at the end of the table until it has `size` places."""
        while self.size(seq, group) > size:
            self.fire["give_back"](seq, group)

    def copy(self, seq: str, index: int, target: int) -> None:
        """Never: nothing is shared."""
        raise AssertionError("a block that nobody else has is copied")

    def preempt(self, seq: str) -> None:
        """Give everything back; the tokens stay known."""
        if seq in self._running:
            self.fire["leave"](seq)
            for group in range(len(self.kinds)):
                self.fire["leave_group"](seq, group)
            self.fire["left"](seq)
        self.requests[seq].computed = 0

    def forget(self, seq: str) -> None:
        """Give everything back; the sequence is gone."""
        self.preempt(seq)
        del self.requests[seq]
        self._covered.pop(seq, None)  # nobody reads what is said of one who is gone
        self._accepted.pop(seq, None)
        for group in range(len(self.kinds)):
            for path in _OF_SEQUENCES:
                self.machine.state[path].pop((group, seq), None)
            index = 0
            while self._table.pop((group, seq, index), None) is not None:
                index += 1

    def reset(self) -> None:
        """There are no keys."""
