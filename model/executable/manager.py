"""The model of one manager: programs over the events of chapter `sequences`."""

from __future__ import annotations

from typing import Any, Final

from kvspec.model.compiled import Compiled
from kvspec.model.conformance import PoolConfig
from kvspec.model.executable import texts
from kvspec.model.executable.part import Part, Users, less, more
from kvspec.model.executable.tables import Tables
from kvspec.model.world import NOTHING, Chain, Chains

_FREE: Final = ("cache", "blocks", "free")
_HOLDERS: Final = ("cache", "blocks", "holders")
_CACHED: Final = ("cache", "cached")
_ENTRY: Final = ("cache", "entry")
_CONTENT: Final = ("cache", "content")
_TAKER: Final = ("taker",)


class Pool(Tables):
    """The executable model of one manager, which is its only part."""

    def __init__(self, config: PoolConfig, watch: bool = True, ghosts: bool = True) -> None:
        super().__init__(config)
        carriers = {"Block": lambda: range(self.config.num_blocks)}
        self.machine = Compiled(texts.sequences(), self.chains.statics(config.num_blocks), carriers, watch, ghosts)
        self.fire = self.machine.events
        state = self.machine.state
        self.free: set[int] = state[_FREE]
        self.holders: dict[int, set[Any]] = state[_HOLDERS]
        self.cached: set[Chain] = state[_CACHED]
        self.entry: dict[Chain, int] = state[_ENTRY]
        self._size: dict[str, int] = state[("size",)]
        self._table: dict[tuple[str, int], int] = state[("table",)]
        self._text: dict[tuple[str, int], Chain] = state[("text",)]
        self._users = Users()

    def restart(self, config: PoolConfig) -> None:
        """An empty pool of another size, in the first state."""
        self.config = config
        self.chains = Chains(config.block_size)
        self.machine.restart(self.chains.statics(config.num_blocks))
        self.requests.clear()
        self._users.clear()

    # -- what there is -------------------------------------------------------------------------------------------

    def parts(self) -> list[Part]:
        """The manager."""
        return [self]

    def part(self, seq: str) -> Part:
        """The manager."""
        return self

    def size(self, seq: str) -> int:
        """Blocks in the table."""
        return self._size.get(seq, 0)

    def block(self, seq: str, index: int) -> int:
        """The block at a place of the table."""
        return self._table[seq, index]

    def content(self, seq: str, block: int) -> Chain:
        """What is in a block."""
        found: Chain = self.machine.state[_CONTENT].get(block, NOTHING)
        return found

    def taker(self, seq: str, block: int) -> str | None:
        """Who took a block first."""
        found: str | None = self.machine.state[_TAKER].get(block)
        return found

    @property
    def used(self) -> int:
        """Blocks held by at least one sequence."""
        return self._users.used

    @property
    def reclaimable(self) -> int:
        """Blocks that only the cache holds: evicting their keys would free them."""
        return self.config.num_blocks - 1 - len(self.free) - self._users.busy

    # -- programs ------------------------------------------------------------------------------------------------

    def mount(self, seq: str, count: int) -> None:
        """Mount the first `count` blocks of the request from the cache."""
        for i in range(count):
            chain = self.key(seq, i)
            self.fire["mount"](seq, chain)
            more(self._users.sequences, self.entry[chain])
        self.requests[seq].computed = count * self.config.block_size

    def take(self, seq: str, block: int) -> None:
        """The table grows by a free block."""
        self.fire["take"](seq, block)
        more(self._users.sequences, block)

    def copy(self, seq: str, index: int, target: int) -> None:
        """A shared block is replaced by a copy."""
        source = self._table[seq, index]
        self.fire["copy_on_write"](seq, index, target)
        less(self._users.sequences, source)
        more(self._users.sequences, target)

    def evict(self, key: Chain) -> None:
        """A key is forgotten whose block nobody else holds."""
        self.fire["evict"](key)
        self.entry.pop(key, None)  # nobody reads where a key led that is not in the cache

    def drop_to(self, seq: str, size: int) -> None:
        """Give back the blocks at the end of the table until `size` are left."""
        while self.size(seq) > size:
            block = self._table[seq, self.size(seq) - 1]
            self.fire["drop"](seq)
            less(self._users.sequences, block)

    def preempt(self, seq: str) -> None:
        """Give everything back; the tokens stay known."""
        self.drop_to(seq, 0)
        self.requests[seq].computed = 0

    def forget(self, seq: str) -> None:
        """Release everything; the sequence is gone."""
        size = self.size(seq)
        self.drop_to(seq, 0)
        for index in range(size):  # nobody reads cells behind the end of a table
            del self._table[seq, index], self._text[seq, index]
        del self.requests[seq]

    def fork(self, parent: str, child: str) -> None:
        """The child stands where the parent stands, in the same blocks."""
        self.requests[child] = self.requests[parent].copy()
        for index in range(self.size(parent)):
            self.fire["fork_next"](parent, child)
            more(self._users.sequences, self._table[child, index])

    def truncate(self, seq: str, num_tokens: int) -> None:
        """Reject the tokens behind the first num_tokens; blocks stay until `drop_to`."""
        request = self.requests[seq]
        for index, end in self._ends(num_tokens, request.computed):
            self.fire["truncate"](seq, index, self._left(seq, index, end))
        request.cut(num_tokens, self.config.block_size)

    def reset(self) -> None:
        """All keys are forgotten."""
        self.fire["reset"]()

    def hold(self, block: int, pin: str) -> None:
        """Somebody outside takes a handle of a live block."""
        self.fire["hold"](block, pin)
        more(self._users.outside, block)

    def unhold(self, block: int, pin: str) -> None:
        """Somebody outside gives a handle back."""
        self.fire["unhold"](block, pin)
        less(self._users.outside, block)
