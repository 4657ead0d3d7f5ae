"""What a caller of a manager can ask for, and what each request means in events of the spec.

`Operation` structs are the common currency of the generator, the scenario language and the acceptor. `Pool` is the
executable model: it holds the state of chapter `sequences` and offers, for each operation, the program of events that
it stands for, with every free choice (which block, which victim) given by the caller.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import msgspec

from kvspec.model.compiled import Compiled
from kvspec.model.conformance import Context, PoolConfig
from kvspec.model.world import NOTHING, TOKEN_BYTES, Chain, Chains, covers
from kvspec.spec.language import Chapter
from kvspec.spec.sequences import Sequences
from kvspec.spec.slots import blocks_needed


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Operation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag=_tag):
    """One call of a target."""


class Start(Operation, frozen=True):
    """A new sequence with its first tokens."""

    seq: str
    tokens: tuple[int, ...]
    context: Context = Context()


class AllocateShared(Operation, frozen=True):
    """Match the longest published prefix (seed 4.2, allocate_shared)."""

    seq: str


class Allocate(Operation, frozen=True):
    """Make room for the first num_tokens tokens."""

    seq: str
    num_tokens: int


class Append(Operation, frozen=True):
    """More known tokens."""

    seq: str
    tokens: tuple[int, ...]


class Write(Operation, frozen=True):
    """Compute the next num_tokens tokens, in one step with those of other sequences."""

    seq: str
    num_tokens: int
    more: tuple[tuple[str, int], ...] = ()

    @property
    def batch(self) -> tuple[tuple[str, int], ...]:
        """All sequences of the step, with the tokens of each."""
        return ((self.seq, self.num_tokens), *self.more)

    @classmethod
    def of(cls, batch: Iterable[tuple[str, int]]) -> Write:
        """The step that writes this batch; there is at least one sequence in it."""
        (seq, num_tokens), *more = batch
        return cls(seq, num_tokens, tuple(more))


class Cache(Operation, frozen=True):
    """Publish full computed blocks."""

    seq: str


class Deallocate(Operation, frozen=True):
    """Finish a sequence: publish and release."""

    seq: str


class Preempt(Operation, frozen=True):
    """Release everything, keep the tokens."""

    seq: str


class Abort(Operation, frozen=True):
    """Release everything, forget the sequence."""

    seq: str


class Fork(Operation, frozen=True):
    """A child that shares the parent's table."""

    parent: str
    child: str


class Truncate(Operation, frozen=True):
    """Keep the first num_tokens tokens."""

    seq: str
    num_tokens: int


class Evict(Operation, frozen=True):
    """Drop up to num_blocks idle entries."""

    num_blocks: int


class Reset(Operation, frozen=True):
    """Drop every key."""


class Hold(Operation, frozen=True):
    """An outside holder of the block at a place of a table, under a name."""

    seq: str
    index: int
    name: str


class Release(Operation, frozen=True):
    """Give an outside handle back; an unknown or released name makes a call that must be an error."""

    name: str


class Close(Operation, frozen=True):
    """End of the manager's life."""


AnyOperation = (
    Start | AllocateShared | Allocate | Append | Write | Cache | Deallocate | Preempt | Abort | Fork | Truncate
    | Evict | Reset | Hold | Release | Close
)  # fmt: skip
"""Every operation; msgspec encodes and decodes it by its tag."""


_other_texts: list[Chapter] = []


def sequences() -> Chapter:
    """The chapter that the model runs."""
    return _other_texts[-1] if _other_texts else _sequences()


@cache
def _sequences() -> Chapter:
    return Chapter(Sequences)


@contextmanager
def following(text: Chapter) -> Iterator[None]:
    """Pools that are made inside follow another text of the chapter: what does a judge find who misreads it?"""
    _other_texts.append(text)
    try:
        yield
    finally:
        _other_texts.pop()


class Request:
    """What the model knows of one sequence beside its table.

    Attributes:
        tokens: known tokens.
        context: what else decides the content.
        computed: how many tokens are written.
    """

    __slots__ = ("_chains", "computed", "context", "tokens")

    def __init__(self, tokens: Iterable[int], context: Context) -> None:
        self.tokens = array("q", tokens)
        self.context = context
        self.computed = 0
        self._chains: list[Chain] = []

    def chain(self, index: int, end: int, chains: Chains) -> Chain:
        """The chain of block `index` up to token `end` (exclusive, at most the end of the block)."""
        size = chains.block_bytes // TOKEN_BYTES
        while len(self._chains) < index:
            self._extend(chains, size)
        if end == (index + 1) * size:
            if len(self._chains) == index:
                self._extend(chains, size)
            return self._chains[index]
        parent = self._chains[index - 1] if index else NOTHING
        return chains.part(parent, self.context, self.tokens[index * size : end].tobytes())

    def _extend(self, chains: Chains, size: int) -> None:
        at = len(self._chains)
        parent = self._chains[-1] if at else NOTHING
        self._chains.append(chains.intern(parent, self.context, self.tokens[at * size : (at + 1) * size].tobytes()))

    def cut(self, num_tokens: int, block_size: int) -> None:
        """Forget the tokens behind the first num_tokens."""
        del self.tokens[num_tokens:]
        del self._chains[num_tokens // block_size :]
        self.computed = min(self.computed, num_tokens)

    def copy(self) -> Request:
        """The same for a forked child."""
        child = Request(self.tokens[:], self.context)
        child.computed, child._chains = self.computed, self._chains[:]
        return child


FREE: Final = ("cache", "blocks", "free")
HOLDERS: Final = ("cache", "blocks", "holders")
CACHED: Final = ("cache", "cached")
ENTRY: Final = ("cache", "entry")
CONTENT: Final = ("cache", "content")
TAKER: Final = ("taker",)


class Pool:
    """The executable model of one pool: requests, and the state of the spec.

    Every method that changes something fires events; an event that the spec does not allow raises
    `kvspec.model.compiled.StepError`, a broken invariant `InvariantError`.
    """

    def __init__(self, config: PoolConfig, watch: bool = True) -> None:
        self.config = config
        self.chains = Chains(config.block_size)
        carriers = {"Block": lambda: range(self.config.num_blocks)}
        self.machine = Compiled(sequences(), self.chains.statics(config.num_blocks), carriers, watch)
        self.requests: dict[str, Request] = {}
        self.fire: Mapping[str, Any] = self.machine.events
        state = self.machine.state
        self.free: set[int] = state[FREE]
        self.holders: dict[int, set[Any]] = state[HOLDERS]
        self.cached: set[Chain] = state[CACHED]
        self.entry: dict[Chain, int] = state[ENTRY]
        self._size: dict[str, int] = state[("size",)]
        self._table: dict[tuple[str, int], int] = state[("table",)]
        self._text: dict[tuple[str, int], Chain] = state[("text",)]
        self._users: dict[int, int] = {}
        self._outside: dict[int, int] = {}

    def restart(self, config: PoolConfig) -> None:
        """An empty pool of another size, in the first state."""
        self.config = config
        self.chains = Chains(config.block_size)
        self.machine.restart(self.chains.statics(config.num_blocks))
        for known in (self.requests, self._users, self._outside):
            known.clear()

    # -- what there is -------------------------------------------------------------------------------------------

    def size(self, seq: str) -> int:
        """Blocks in the table."""
        return self._size.get(seq, 0)

    def table(self, seq: str) -> list[int]:
        """Physical ids, logical order."""
        return [self._table[seq, i] for i in range(self.size(seq))]

    def block(self, seq: str, index: int) -> int:
        return self._table[seq, index]

    @property
    def used(self) -> int:
        """Blocks held by at least one sequence."""
        return len(self._users)

    @property
    def reclaimable(self) -> int:
        """Blocks that only the cache holds: evicting their keys would free them."""
        busy = len(self._users) + sum(1 for b in self._outside if b not in self._users)
        return self.config.num_blocks - 1 - len(self.free) - busy

    def blocks_for(self, num_tokens: int) -> int:
        return blocks_needed(num_tokens, self.config.block_size)

    def hit(self, seq: str, limit: int) -> int:
        """Blocks of the longest published prefix within the first `limit` tokens."""
        request, size = self.requests[seq], self.config.block_size
        count = 0
        while (count + 1) * size <= limit and request.chain(count, (count + 1) * size, self.chains) in self.cached:
            count += 1
        return count

    def writes_shared(self, seq: str, num_tokens: int) -> list[int]:
        """Places of the table that must be copied before tokens [computed, num_tokens) are written."""
        request = self.requests[seq]
        index = request.computed // self.config.block_size
        if num_tokens <= request.computed or index >= self.size(seq):
            return []
        last = min(self.blocks_for(num_tokens), self.size(seq))
        return [i for i in range(index, last) if len(self.holders[self._table[seq, i]]) > 1]

    def may_write(self, seq: str, index: int, num_tokens: int) -> bool:
        """Whether the sequence may write the block at a place up to its first num_tokens tokens, whoever else holds
        it: it writes the same again, or goes on in what it was the first to take (event `write`)."""
        stop = min(num_tokens, (index + 1) * self.config.block_size)
        chain, block = self.requests[seq].chain(index, stop, self.chains), self._table[seq, index]
        state = self.machine.state
        content = state[CONTENT].get(block, NOTHING)
        return covers(content, chain) or (state[TAKER].get(block) == seq and covers(chain, content))

    # -- programs ------------------------------------------------------------------------------------------------

    def start(self, seq: str, tokens: Iterable[int], context: Context) -> None:
        self.requests[seq] = Request(tokens, context)

    def append(self, seq: str, tokens: Iterable[int]) -> None:
        self.requests[seq].tokens.extend(tokens)

    def mount(self, seq: str, count: int) -> None:
        """Mount the first `count` blocks of the request from the cache."""
        request, size = self.requests[seq], self.config.block_size
        for i in range(count):
            chain = request.chain(i, (i + 1) * size, self.chains)
            self.fire["mount"](seq, chain)
            self._more(self._users, self.entry[chain])
        request.computed = count * size

    def take(self, seq: str, block: int) -> None:
        self.fire["take"](seq, block)
        self._more(self._users, block)

    def copy(self, seq: str, index: int, target: int) -> None:
        source = self._table[seq, index]
        self.fire["copy_on_write"](seq, index, target)
        self._less(self._users, source)
        self._more(self._users, target)

    def evict(self, key: Chain) -> None:
        self.fire["evict"](key)
        self.entry.pop(key, None)  # nobody reads where a key led that is not in the cache

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
        self.fire["publish"](seq, index)

    def publishable(self, seq: str) -> list[int]:
        """Places of full computed blocks whose key is not in the cache."""
        request, size = self.requests[seq], self.config.block_size
        full = request.computed // size
        return [i for i in range(full) if request.chain(i, (i + 1) * size, self.chains) not in self.cached]

    def drop_to(self, seq: str, size: int) -> None:
        """Give back the blocks at the end of the table until `size` are left."""
        while self.size(seq) > size:
            block = self._table[seq, self.size(seq) - 1]
            self.fire["drop"](seq)
            self._less(self._users, block)

    def preempt(self, seq: str) -> None:
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
        self.requests[child] = self.requests[parent].copy()
        for index in range(self.size(parent)):
            self.fire["fork_next"](parent, child)
            self._more(self._users, self._table[child, index])

    def truncate(self, seq: str, num_tokens: int) -> None:
        """Reject the tokens behind the first num_tokens; blocks stay until `drop_to`."""
        request, size = self.requests[seq], self.config.block_size
        written = self.blocks_for(request.computed) if num_tokens < request.computed else 0
        for index in reversed(range(num_tokens // size, written)):
            end = max(num_tokens, index * size)
            chain = NOTHING if end == index * size else request.chain(index, end, self.chains)
            self.fire["truncate"](seq, index, chain)
        request.cut(num_tokens, size)

    def reset(self) -> None:
        self.fire["reset"]()

    def hold(self, block: int, pin: str) -> None:
        self.fire["hold"](block, pin)
        self._more(self._outside, block)

    def unhold(self, block: int, pin: str) -> None:
        self.fire["unhold"](block, pin)
        self._less(self._outside, block)

    @staticmethod
    def _more(counts: dict[int, int], block: int) -> None:
        counts[block] = counts.get(block, 0) + 1

    @staticmethod
    def _less(counts: dict[int, int], block: int) -> None:
        if counts[block] == 1:
            del counts[block]
        else:
            counts[block] -= 1
