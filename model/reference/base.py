"""What the two targets over the executable model have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Final, Generic, Literal, TypeVar

import numpy as np

from kvspec.model.conformance import CacheEvent, Capability, Context, Form, MisuseError, PoolConfig, Tags
from kvspec.model.executable import Part, Request, Tables
from kvspec.model.pools import Pools
from kvspec.model.world import Chain

P = TypeVar("P", bound=Tables)
T = TypeVar("T")

POOLS: Final = {watch: Pools(watch) for watch in (False, True)}


class Reference(ABC, Generic[P]):
    """A target whose behaviour is the spec's.

    Args:
        config: sizes and options.
        pool: the model, in its first state.
        seed: decide at random, by this seed; without one the lowest number and the oldest are taken.
        hit_limit: the longest hit.
        capabilities: what it shows; less than everything serves to test the acceptor.
    """

    def __init__(
        self,
        config: PoolConfig,
        pool: P,
        *,
        seed: int | None,
        hit_limit: Literal["all", "all_but_one"],
        capabilities: frozenset[Capability],
    ) -> None:
        self.config = config
        self.capabilities = capabilities
        self.hit_limit: Literal["all", "all_but_one"] = hit_limit
        self._pool: P = pool
        self._random = None if seed is None else Random(seed)
        self._last_handle = 0
        self._closed = False

    # -- operations ----------------------------------------------------------------------------------------------

    def start(self, seq: str, tokens: Sequence[int], context: Context) -> None:
        """A request is known; it has no block."""
        self._open()
        self._new_name(seq)
        check_tokens(tokens)
        self._pool.start(seq, tokens, context)

    def append(self, seq: str, tokens: Sequence[int]) -> None:
        """More tokens are known."""
        self._request(seq)
        check_tokens(tokens)
        self._pool.append(seq, tokens)

    def read(self, seq: str, start: int, stop: int) -> Tags:
        """The cells of computed tokens, found through the block table."""
        request = self._request(seq)
        if not 0 <= start <= stop <= request.computed:
            raise MisuseError(f"read {seq}: [{start}, {stop}) of {request.computed} computed tokens")
        size = self.config.block_size
        first = start // size
        blocks = [self._pool.block(seq, i) for i in range(first, self._pool.blocks_for(stop))]
        found: Tags = self._memory(seq)[blocks].reshape(-1)[start - first * size : stop - first * size]
        return found

    def deallocate(self, seq: str) -> None:
        """Publish, then give everything back."""
        self.cache(seq)
        self._pool.forget(seq)

    def preempt(self, seq: str) -> None:
        """Give everything back; the tokens stay known."""
        self._request(seq)
        self._pool.preempt(seq)

    def abort(self, seq: str) -> None:
        """Give everything back and forget the request."""
        self._request(seq)
        self._pool.forget(seq)

    def cache(self, seq: str) -> None:
        """Every full computed block gets its key, if its prefix has none."""
        self._request(seq)
        if not self.config.enable_prefix_cache:
            return
        for index in self._pool.publishable(seq):
            self._pool.publish(seq, index)
            self._note(seq, index)

    def close(self) -> None:
        """Nothing works any more."""
        self._open()
        self._closed = True

    # -- observations --------------------------------------------------------------------------------------------

    def block_table(self, seq: str) -> Sequence[int]:
        """Physical ids, logical order."""
        self._request(seq)
        return self._pool.table(seq)

    def num_computed(self, seq: str) -> int:
        """Computed tokens."""
        return self._request(seq).computed

    # -- what each of them has in its own way --------------------------------------------------------------------

    @abstractmethod
    def _memory(self, seq: str) -> Tags:
        """The cells of the blocks that the sequence can have, a row for each."""

    @abstractmethod
    def _note(self, seq: str, index: int) -> None:
        """The block at a place of the sequence has got its key."""

    # -- small things --------------------------------------------------------------------------------------------

    def _one(self, items: Sequence[T]) -> T:
        """One of the items: the first, or any."""
        return items[0] if self._random is None else self._random.choice(items)

    def _lowest(self, ids: Collection[int]) -> int:
        """One of the ids: the lowest, or any."""
        return min(ids) if self._random is None else self._random.choice(sorted(ids))

    def _open(self) -> None:
        if self._closed:
            raise MisuseError("the target is closed")

    def _request(self, seq: str) -> Request:
        self._open()
        request = self._pool.requests.get(seq)
        if request is None:
            raise MisuseError(f"{seq} is unknown")
        return request

    def _new_name(self, seq: str) -> None:
        if seq in self._pool.requests:
            raise MisuseError(f"{seq} exists already")

    def _check_write(self, seq: str, count: int) -> None:
        request = self._request(seq)
        stop = request.computed + count
        room = self._pool.room(seq)
        if stop > room or stop > len(request.tokens):
            raise MisuseError(f"write {seq}: {stop} tokens, {len(request.tokens)} known, room for {room}")
        if self._pool.writes_shared(seq, stop):
            raise MisuseError(f"write {seq}: others hold a block that it would write; allocate first")

    def _check_room(self, seq: str, num_tokens: int) -> None:
        known = len(self._request(seq).tokens)
        if not 0 <= num_tokens <= known:
            raise MisuseError(f"{seq}: {num_tokens} of {known} tokens")

    def _fill(self, seq: str, tags: Tags) -> None:
        """Write the cells behind the computed tokens."""
        size, start = self.config.block_size, self._pool.requests[seq].computed
        first = start // size
        blocks = [self._pool.block(seq, i) for i in range(first, self._pool.blocks_for(start + len(tags)))]
        cells = (np.array(blocks, dtype=np.int64)[:, None] * size + np.arange(size)).reshape(-1)
        self._memory(seq).reshape(-1)[cells[start - first * size :][: len(tags)]] = tags

    def _missing(self, seq: str, num_tokens: int) -> int:
        return max(0, self._pool.blocks_for(num_tokens) - self._pool.size(seq))

    def _fits(self, seq: str, need: int) -> bool:
        """Whether so many blocks can be had where the sequence is."""
        part = self._pool.part(seq)
        return need <= len(part.free) or need <= len(part.free) + part.reclaimable


def expect_form(config: PoolConfig, form: Form) -> None:
    """Raises `ValueError` if the config is that of another form."""
    if config.form is not form:
        raise ValueError(f"a config of {config.form.words}, expected one of {form.words}")


def keys_of(part: Part) -> Mapping[bytes, int]:
    """Keys and their blocks."""
    return {key_of(chain): part.entry[chain] for chain in part.cached}


def key_of(chain: Chain) -> bytes:
    """Equal prefixes are one chain, so its number is a key without collisions."""
    return chain.number.to_bytes(8, "little")


def removed(chain: Chain, part: Part) -> CacheEvent:
    """That a key has ceased to be matchable."""
    return CacheEvent("removed", key_of(chain), part.entry[chain])


def check_tokens(tokens: Sequence[int]) -> None:
    """Raises `MisuseError` if a token is negative."""
    if len(tokens) and min(tokens) < 0:
        raise MisuseError(f"a negative token: {min(tokens)}")
