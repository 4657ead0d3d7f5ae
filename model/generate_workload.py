"""A built-in workload in the Mooncake format, made from a seed, so that a replay needs no file.

It has the shape of a chat service: a few system prompts that many conversations share, turns that extend the earlier
prompt and answer, some prompts sent twice, a few very long documents, arrivals as a Poisson process. Only
`random.Random.random` is drawn from, so the same seed gives the same requests everywhere.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from itertools import count, islice

import msgspec

from kvspec.model.workload import GRANULE, Request


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the requests look like. Ranges of tokens are inclusive and drawn log-uniformly.

    Attributes:
        system_prompts: how many there are; the first ones are used most.
        system_tokens: length of a system prompt.
        message_tokens: length of a user's message.
        output_tokens: length of an answer.
        long_tokens: length of a very long first message.
        long_share: part of the conversations that begin with one.
        repeat_share: part of the requests that are sent once more, unchanged.
        next_turn_share: probability that a conversation goes on after an answer.
        max_tokens: a conversation ends before its prompt would be longer.
        arrival_ms: mean time between new conversations.
        think_ms: mean time of a user between answer and next message.
        token_ms: time of one output token, as the conversation sees it.
    """

    system_prompts: int = 5
    system_tokens: tuple[int, int] = (1024, 3072)
    message_tokens: tuple[int, int] = (24, 1500)
    output_tokens: tuple[int, int] = (8, 400)
    long_tokens: tuple[int, int] = (16_000, 28_000)
    long_share: float = 0.03
    repeat_share: float = 0.04
    next_turn_share: float = 0.65
    max_tokens: int = 40_000
    arrival_ms: float = 700.0
    think_ms: float = 3000.0
    token_ms: float = 30.0


class _Conversation:
    """Ids of one conversation so far, the length of its prompt, and the answer to be added to the next prompt."""

    def __init__(self, ids: list[int], message: int, output: int) -> None:
        self.ids = ids
        self.length = len(ids) * GRANULE
        self.message = message
        self.output = output
        self.answered = 0


class _Generator:
    def __init__(self, seed: int, shape: Shape) -> None:
        self.random, self.shape = random.Random(seed), shape
        self.fresh, self.serial = count(), count()
        self.systems = [self._ids(self._between(shape.system_tokens) // GRANULE) for _ in range(shape.system_prompts)]
        self.pending: list[tuple[float, int, _Conversation]] = []
        self.next_start = 0.0

    def _ids(self, number: int) -> list[int]:
        return list(islice(self.fresh, number))

    def _between(self, bounds: tuple[int, int]) -> int:
        low, high = bounds
        return min(high, int(low * math.exp(self.random.random() * math.log((high + 1) / low))))

    def _wait(self, mean: float) -> float:
        return -math.log(1.0 - self.random.random()) * mean

    def _begin(self) -> None:
        """A new conversation; earlier system prompts are likelier (the square of a uniform number)."""
        which = int(self.random.random() ** 2 * len(self.systems)) if self.systems else 0
        ids = list(self.systems[which]) if self.systems else []
        long = self.random.random() < self.shape.long_share
        message = self._between(self.shape.long_tokens if long else self.shape.message_tokens)
        self._push(self.next_start, _Conversation(ids, message, self._between(self.shape.output_tokens)))
        self.next_start += self._wait(self.shape.arrival_ms)

    def _push(self, time: float, conversation: _Conversation) -> None:
        heapq.heappush(self.pending, (time, next(self.serial), conversation))

    def requests(self) -> Iterator[Request]:
        while True:
            while not self.pending or self.next_start <= self.pending[0][0]:
                self._begin()
            time, _, conversation = heapq.heappop(self.pending)
            yield self._turn(time, conversation)
            self._go_on(time, conversation)

    def _turn(self, time: float, talk: _Conversation) -> Request:
        """Prompt of the next turn: all full ids of the last prompt, then new ids for the rest."""
        kept = talk.ids[: talk.length // GRANULE] if talk.message else talk.ids
        talk.length += talk.answered + talk.message
        talk.ids = kept + self._ids(-(-talk.length // GRANULE) - len(kept))
        talk.message, talk.answered = 0, talk.output
        return Request(int(time), talk.length, talk.output, tuple(talk.ids))

    def _go_on(self, time: float, talk: _Conversation) -> None:
        later = time + talk.output * self.shape.token_ms + self._wait(self.shape.think_ms)
        if self.random.random() < self.shape.repeat_share:
            talk.answered = 0
            self._push(later, talk)
        elif self.random.random() < self.shape.next_turn_share:
            talk.message = self._between(self.shape.message_tokens)
            talk.output = self._between(self.shape.output_tokens)
            if talk.length + talk.answered + talk.message <= self.shape.max_tokens:
                self._push(later, talk)


def generate_requests(number: int, seed: int = 0, shape: Shape | None = None) -> Iterator[Request]:
    """The first `number` requests of the workload of a seed; a longer workload begins with the shorter one.

    Raises:
        ValueError: `number` is below 1, or the shape has a range that is empty or begins below 1.
    """
    shape = shape or Shape()
    if number < 1:
        raise ValueError(f"number of requests: {number}, expected at least 1")
    for name in ("system_tokens", "message_tokens", "output_tokens", "long_tokens"):
        low, high = getattr(shape, name)
        if not 1 <= low <= high:
            raise ValueError(f"{name}: {low} to {high}, expected a range from at least 1 upwards")
    return islice(_Generator(seed, shape).requests(), number)
