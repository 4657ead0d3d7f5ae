"""Operations for composites: sequences grow in small steps, are accepted late, and lose their drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import kvspec.model.operations as ops
from kvspec.model.conformance import ManagerType, PoolConfig
from kvspec.model.executable import GroupedPool, Request
from kvspec.model.generator import Generator, Makers, Source, table
from kvspec.model.operations import AnyOperation

_FRESH: Final = table(
    allocate=66, allocate_shared=6, append=12, truncate=3, cache=2, preempt=2, abort=2, deallocate=2, write=1, accept=1
)
_NEEDS_ROOM: Final = table(
    allocate=60, accept=14, truncate=6, preempt=5, deallocate=3, abort=3, cache=2, append=4, write=1
)
_CAN_WRITE: Final = table(
    write=62, accept=12, allocate=6, truncate=6, preempt=2, cache=2, deallocate=2, append=4, abort=2
)
_DRAFTS: Final = table(accept=46, truncate=18, append=18, allocate=5, deallocate=4, preempt=3, cache=3, abort=2)
"""What is next for a sequence that has computed all it knows, some of it not accepted."""

_ACCEPTED: Final = table(append=64, deallocate=10, truncate=6, allocate=5, cache=3, preempt=4, abort=4, accept=2)
_RELIEF: Final = table(preempt=26, deallocate=18, abort=10, allocate=26, accept=20)


def composite_config(source: Source, *, sanitizer: bool = False) -> PoolConfig:
    """One to three groups with few blocks, of full attention or a window: shorter than a block, as long, or longer."""
    kinds = tuple(_kind(source) for _ in range(source.choice((1, 1, 2, 2, 2, 3))))
    blocks, size = largest(kinds)
    return PoolConfig(
        num_blocks=blocks, block_size=size, enable_prefix_cache=False, sanitizer=sanitizer, manager_types=kinds
    )


def largest(kinds: Sequence[ManagerType]) -> tuple[int, int]:
    """What a config says in front of its groups: of how many blocks they are at most, and how long these are."""
    return max(kind.num_blocks for kind in kinds), max(kind.block_size for kind in kinds)


def _kind(source: Source) -> ManagerType:
    size = source.choice((1, 1, 2, 2, 3, 4))
    window = source.choice((None, None, 1, 2, 3, 4, 5, size, 2 * size, 7))
    return ManagerType(num_blocks=source.integer(2, 12), block_size=size, window=window)


class CompositeGenerator(Generator):
    """Makes operations for a composite; see `Generator`."""

    pool: GroupedPool

    def _draw_shape(self, capacity: int) -> None:
        """Sequences become about as long as the group of full attention that is full first; where there is none, about
        twice as long as the smallest."""
        kinds = self.config.manager_types
        full = [(kind.num_blocks - 1) * kind.block_size for kind in kinds if kind.window is None]
        windowed = [2 * (kind.num_blocks - 1) * kind.block_size for kind in kinds if kind.window is not None]
        super()._draw_shape(min(full or windowed))
        self._patient = self.source.choice((0.2, 0.6, 0.9))

    def _row(self, seq: str) -> Makers:
        if self._refused:
            return _RELIEF
        request, room = self.pool.requests[seq], self.pool.room(seq)
        if not room:
            return _FRESH
        if request.computed < min(room, len(request.tokens)):
            return _CAN_WRITE
        if request.computed < len(request.tokens):
            return _NEEDS_ROOM
        return _DRAFTS if self.pool.accepted(seq) < request.computed else _ACCEPTED

    def _can_write(self, seq: str) -> bool:
        return self._row(seq) is _CAN_WRITE

    def _allocate(self, seq: str) -> AnyOperation:
        """Room for a few tokens more, for all of them, or up to somewhere."""
        request, source = self.pool.requests[seq], self.source
        known = len(request.tokens)
        if source.chance(self._patient):
            return ops.Allocate(seq, min(known, request.computed + source.integer(1, 2 * self.config.block_size)))
        return ops.Allocate(seq, known if source.chance(0.7) else source.integer(0, known))

    def _accept(self, seq: str) -> AnyOperation:
        """All that is computed mostly, or a part of it."""
        accepted, computed = self.pool.accepted(seq), self.pool.requests[seq].computed
        return ops.Accept(seq, computed if self.source.chance(0.6) else self.source.integer(accepted, computed))

    def _truncate(self, seq: str) -> AnyOperation:
        """Some of what is not accepted is rejected."""
        accepted, known = self.pool.accepted(seq), len(self.pool.requests[seq].tokens)
        few = min(known - accepted, self.source.integer(1, self.config.block_size + 1))
        return ops.Truncate(seq, known - few if self.source.chance(0.7) else self.source.integer(accepted, known))

    def _wild(self) -> AnyOperation:
        live = tuple(self.pool.requests)
        if live and self.source.chance(0.25):
            seq = self.source.choice(live)
            return self._odd_accept(seq, self.pool.requests[seq])
        return super()._wild()

    def _odd_accept(self, seq: str, request: Request) -> AnyOperation:
        """What is not computed is accepted, what is accepted is taken back, or what only others have is asked for."""
        accepted, computed = self.pool.accepted(seq), request.computed
        odd: tuple[AnyOperation, ...] = (
            ops.Accept(seq, computed + 1), ops.Accept(seq, accepted - 1), ops.Accept(seq, -1), ops.Accept("ghost", 0),
            ops.Accept(seq, computed), ops.Truncate(seq, accepted - 1), ops.Truncate(seq, 0),
            ops.Truncate(seq, accepted), ops.Fork(seq, self._new_name()), ops.Hold(seq, 0, "h0"), ops.Release("h0"),
        )  # fmt: skip
        found = self.source.choice(odd)
        return self._takeable(found) if isinstance(found, ops.Truncate) else found  # the others are always errors


CompositeGenerator.makers = Generator.makers | {"accept": CompositeGenerator._accept}
