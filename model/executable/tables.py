"""What the models of a manager and of a pool have in common: requests, and what can be said of their block tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from kvspec.model.compiled import Broken, Compiled
from kvspec.model.conformance import Context, PoolConfig
from kvspec.model.executable.part import Part
from kvspec.model.executable.request import Request
from kvspec.model.world import NOTHING, Chain, Chains, covers
from kvspec.spec.slots import blocks_needed


class Tables(ABC):
    """Requests and their block tables, over the state of a chapter.

    Every method that changes something fires events; an event that the spec does not allow raises
    `kvspec.model.compiled.StepError`, a broken invariant `InvariantError`.

    Attributes:
        config: sizes and options.
        chains: what blocks contain.
        machine: the chapter and its state.
        requests: those that are known, by name.
        fire: the events of the chapter.
    """

    machine: Compiled
    fire: Mapping[str, Any]

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.chains = Chains(config.block_size)
        self.requests: dict[str, Request] = {}

    # -- what there is -------------------------------------------------------------------------------------------

    @abstractmethod
    def parts(self) -> list[Part]:
        """Rank by rank."""

    @abstractmethod
    def part(self, seq: str) -> Part:
        """Where the sequence is."""

    @abstractmethod
    def size(self, seq: str) -> int:
        """Blocks in the table."""

    @abstractmethod
    def block(self, seq: str, index: int) -> int:
        """The block at a place of the table."""

    @abstractmethod
    def content(self, seq: str, block: int) -> Chain:
        """What is in a block, where the sequence is."""

    @abstractmethod
    def taker(self, seq: str, block: int) -> str | None:
        """Who took a block first, where the sequence is."""

    def table(self, seq: str) -> list[int]:
        """Physical ids, logical order."""
        return [self.block(seq, i) for i in range(self.size(seq))]

    def room(self, seq: str) -> int:
        """Tokens that the table has room for."""
        return self.size(seq) * self.config.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        return blocks_needed(num_tokens, self.config.block_size)

    def key(self, seq: str, index: int) -> Chain:
        """What a full block at this place of the table contains."""
        return self.requests[seq].chain(index, (index + 1) * self.config.block_size, self.chains)

    def hits(self, seq: str, limit: int, part: Part) -> int:
        """Blocks of the longest published prefix within the first `limit` tokens."""
        size, cached = self.config.block_size, part.cached
        count = 0
        while (count + 1) * size <= limit and self.key(seq, count) in cached:
            count += 1
        return count

    def writes_shared(self, seq: str, num_tokens: int) -> list[int]:
        """Places of the table that must be copied before tokens [computed, num_tokens) are written."""
        request = self.requests[seq]
        index = request.computed // self.config.block_size
        if num_tokens <= request.computed or index >= self.size(seq):
            return []
        last = min(self.blocks_for(num_tokens), self.size(seq))
        holders = self.part(seq).holders
        return [i for i in range(index, last) if len(holders[self.block(seq, i)]) > 1]

    def may_write(self, seq: str, index: int, num_tokens: int) -> bool:
        """Whether the sequence may write the block at a place up to its first num_tokens tokens, whoever else holds
        it: it writes the same again, or goes on in what it was the first to take (event `write`)."""
        stop = min(num_tokens, (index + 1) * self.config.block_size)
        chain, block = self.requests[seq].chain(index, stop, self.chains), self.block(seq, index)
        content = self.content(seq, block)
        return covers(content, chain) or (self.taker(seq, block) == seq and covers(chain, content))

    def publishable(self, seq: str) -> list[int]:
        """Places of full computed blocks whose key is not in the cache."""
        full = self.requests[seq].computed // self.config.block_size
        cached = self.part(seq).cached
        return [i for i in range(full) if self.key(seq, i) not in cached]

    # -- programs ------------------------------------------------------------------------------------------------

    def start(self, seq: str, tokens: Iterable[int], context: Context) -> None:
        """A request is known; it has nothing."""
        self.requests[seq] = Request(tokens, context)

    def append(self, seq: str, tokens: Iterable[int]) -> None:
        """More tokens are known."""
        self.requests[seq].tokens.extend(tokens)

    def write(self, seq: str, count: int) -> None:
        """Compute the next `count` tokens, block by block."""
        request, size = self.requests[seq], self.config.block_size
        end = request.computed + count
        fire = self.fire["write"]
        while request.computed < end:
            index = request.computed // size
            stop = min(end, (index + 1) * size)
            fire(seq, request.chain(index, stop, self.chains))
            request.computed = stop

    def publish(self, seq: str, index: int) -> None:
        """A full computed block gets its key."""
        self.fire["publish"](seq, index)

    @abstractmethod
    def copy(self, seq: str, index: int, target: int) -> None:
        """A shared block of the table is replaced by a copy."""

    @abstractmethod
    def preempt(self, seq: str) -> None:
        """Give everything back; the tokens stay known."""

    @abstractmethod
    def forget(self, seq: str) -> None:
        """Give everything back; the sequence is gone."""

    @abstractmethod
    def reset(self) -> None:
        """All keys are forgotten."""

    def sweep(self) -> list[Broken]:
        """Every invariant of the spec that does not hold, on the whole state; at most one violation each."""
        return self.machine.sweep()

    def _ends(self, num_tokens: int, computed: int) -> Iterable[tuple[int, int]]:
        """Blocks that lose computed tokens when only num_tokens are left, the last first, and where each ends then."""
        size = self.config.block_size
        written = self.blocks_for(computed) if num_tokens < computed else 0
        for index in reversed(range(num_tokens // size, written)):
            yield index, max(num_tokens, index * size)

    def _left(self, seq: str, index: int, end: int) -> Chain:
        """What is left in a block that ends at a token."""
        begin = index * self.config.block_size
        return NOTHING if end == begin else self.requests[seq].chain(index, end, self.chains)
