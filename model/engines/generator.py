"""What an engine is asked: requests that share prompts come, are computed step by step, and sometimes go early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import kvspec.model.operations as ops
from kvspec.model.conformance import Context, EngineConfig, PoolConfig
from kvspec.model.engines.protocol import Abilities
from kvspec.model.generator import CONTEXTS, LOOKALIKES, Kind, Source
from kvspec.model.operations import AnyOperation

_LAST_STEPS: Final = 400
"""So many steps are enough for what is left at the end of an episode; whoever is there then is ended."""
_COME_AFTER: Final = 4
"""So many requests come when all keys have been dropped: what that has left undone shows in them."""
_UNCACHED: Final = 0.05
"""Without hits a request that gives way to itself gets nowhere: what is never given back shows in that."""
_CROWDED: Final = 0.3
_COMES: Final = 0.22
_GOES: Final = 0.03
_EVICTS: Final = 0.04
_RESETS: Final = 0.015


def engine_config(source: Source, abilities: Abilities) -> PoolConfig:
    """An engine with little memory: so few blocks that requests have to give way, and hits to be evicted. It has the
    first of its managers."""
    sizes = abilities.block_sizes or (1, 2, 2, 3, 4)
    ways = {way: source.chance(0.5) for way in abilities.ways}
    return PoolConfig(
        num_blocks=abilities.fewest_blocks + source.choice((0, 1, 2, 3, 4, 6, 8, 12, 20)),
        block_size=source.choice(sizes),
        enable_prefix_cache=not (abilities.uncached and source.chance(_UNCACHED)),
        engine=EngineConfig(
            variant=abilities.variants[0],
            max_batch_tokens=source.choice((4, 8, 8, 16, 32, 64)),
            max_running=source.choice((1, 2, 3, 4, 6)),
            window=source.choice((1, 2, 3, 4, 5, 8)),
            **ways,
        ),
    )


class EngineGenerator:
    """Makes one operation after the other for an engine; see `kvspec.model.generator.Generator`.

    There are no wild operations: what a scheduler may not do to its manager is not for an engine to be asked.
    """

    def __init__(
        self, source: Source, config: PoolConfig, pool: Any, capabilities: frozenset[Any], kind: Kind = Kind.VALID
    ) -> None:
        self.source, self.pool, self.layout = source, pool, pool.layout
        longest = self.layout.longest_request
        # Many short prompts with long outputs grow until one has to give way.
        self._crowded = source.chance(_CROWDED)
        whole = self._crowded or source.chance(0.5)
        self._longest = max(2, longest if whole else longest * source.choice((1, 2, 3)) // 4)
        self._alphabet = range(source.choice((3, 9) if self._crowded else (1, 2, 2, 3)))
        contexts = source.choice(LOOKALIKES) if source.chance(0.3) else (source.choice(CONTEXTS),)
        self._contexts = contexts if self.layout.contexts else (Context(),)
        self._stems = [self._tokens(self._longest) for _ in range(source.integer(1, 3))]
        self._most = source.choice((3, 4, 6, 8) if self._crowded else (1, 2, 3, 4, 6, 8))
        self._talkative = source.choice((0.1, 0.3, 0.6))
        self._steps = source.choice((1, 1, 2, 4))
        self._number = 0
        self._history: list[tuple[int, ...]] = []

    def next(self) -> AnyOperation:
        """The next operation."""
        source, live = self.source, tuple(self.pool.requests)
        if not live or (len(live) < self._most and source.chance(_COMES)):
            return self._submit()
        if source.chance(_GOES):
            return ops.Abort(source.choice(live))
        if self.layout.evicts and source.chance(_EVICTS):
            return ops.Evict(source.integer(1, 4))
        if source.chance(_RESETS):
            return ops.Reset()
        return ops.Step(source.integer(1, self._steps))

    def saw(self, result: object) -> None:
        """What the last operation returned: nothing that matters here."""

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.source.choice(self._alphabet) for _ in range(count))

    def _submit(self) -> AnyOperation:
        source = self.source
        stem = source.choice(self._history[-4:] or self._stems) if source.chance(0.5) else source.choice(self._stems)
        prompt = (*stem[: source.integer(0, len(stem))], *self._tokens(source.choice((0, 0, 1, 2))))
        prompt = prompt[: self._longest // 4 if self._crowded else self._longest - 1] or self._tokens(1)
        room = self._longest - len(prompt)
        count = source.integer(1, room) if source.chance(self._talkative) else min(room, source.integer(1, 3))
        count = source.integer(1 + room // 2, room) if self._crowded else count
        output = self._tokens(count)
        self._history.append(prompt + output)
        self._number += 1
        return ops.Submit(f"r{self._number}", prompt, output, source.choice(self._contexts), source.integer(0, 2))

    def ending(self) -> Iterator[AnyOperation]:
        """All requests come to their end, or are ended, and all keys are dropped. Then some come again: many managers
        drop nothing while one is there."""
        yield from self._over()
        if self.layout.evicts and self.source.chance(0.5):
            yield ops.Evict(self.source.integer(1, 4))
        yield ops.Reset()
        for _ in range(_COME_AFTER):
            yield self._submit()
            yield ops.Step(self.source.integer(1, 4))
        yield from self._over()
        yield ops.Reset()

    def _over(self) -> Iterator[AnyOperation]:
        if self.source.chance(0.5):
            for _ in range(_LAST_STEPS):
                if not self.pool.requests:
                    break
                yield ops.Step()
        yield from (ops.Abort(seq) for seq in tuple(self.pool.requests))
        yield ops.Step()

    def closing(self) -> Iterator[AnyOperation]:
        """The engine is closed."""
        yield ops.Close()
