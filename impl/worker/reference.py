"""The outputs that a run is compared with: every sequence alone in memory of its own, without any manager."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from kvspec.impl.buffers import KVBuffers
from kvspec.impl.paging import blocks_needed
from kvspec.impl.state_buffers import StateBuffers
from kvspec.impl.worker.memory import make_buffers, make_states, make_windows
from kvspec.impl.worker.model import HybridModel, Piece
from kvspec.impl.worker.stream import Request

BLOCK_SIZE = 16
CHUNK = 512
"""Tokens of a sequence that go through the model at once."""
MAX_TOGETHER = 1 << 22
"""Numbers of sequences times the square of the longest, at most, that are computed together."""


def reference_logits(model: HybridModel, requests: Items[Request]) -> list[Tensor]:
    """Logits of every output of every request, ``[num_outputs, vocabulary]`` each, on the host.

    The tokens are known beforehand, so that a whole sequence goes through the model in as few steps as possible:
    no token is decoded, nothing is cached, shared, given back or taken again.

    Raises:
        ValueError: a request does not say which outputs it is to generate.
    """
    found: dict[int, Tensor] = {}
    for numbers in _together(requests):
        for number, logits in zip(numbers, _compute(model, [requests[n] for n in numbers]), strict=True):
            found[number] = logits
    return [found[number] for number in range(len(requests))]


def _together(requests: Items[Request]) -> Iterator[list[int]]:
    """Numbers of requests of about the same length, as many as fit."""
    numbers: list[int] = []
    for number in sorted(range(len(requests)), key=lambda n: requests[n].num_computed):
        if numbers and (len(numbers) + 1) * requests[number].num_computed ** 2 > MAX_TOGETHER:
            yield numbers
            numbers = []
        numbers.append(number)
    if numbers:
        yield numbers


def _compute(model: HybridModel, requests: Items[Request]) -> list[Tensor]:
    lines = [tokens_of(request) for request in requests]
    tables, num_blocks = _tables([len(line) for line in lines])
    buffers: KVBuffers = make_buffers(model, num_blocks, BLOCK_SIZE)
    windows: KVBuffers | None = make_windows(model, num_blocks, BLOCK_SIZE)
    states: StateBuffers | None = make_states(model, len(lines) + 1)
    rows: list[list[Tensor]] = [[] for _ in requests]
    for start in range(0, max(map(len, lines)), CHUNK):
        alive = [n for n, line in enumerate(lines) if start < len(line)]
        pieces = [Piece(lines[n][start : start + CHUNK], start, tables[n], n + 1, tables[n]) for n in alive]
        hidden = torch.split(model.forward(pieces, buffers, states, windows), [len(piece.tokens) for piece in pieces])
        for n, part in zip(alive, hidden, strict=True):
            first = max(len(requests[n].prompt) - 1 - start, 0)
            rows[n].append(model.logits(part[first:]))
    return [torch.cat(parts).cpu() for parts in rows]


def _tables(lengths: Items[int]) -> tuple[list[array[int]], int]:
    """Block tables of sequences that lie one after another behind the padding block, and the blocks in all."""
    tables, stop = [], 1
    for length in lengths:
        start, stop = stop, stop + blocks_needed(length, BLOCK_SIZE)
        tables.append(array("q", range(start, stop)))
    return tables, stop


def tokens_of(request: Request) -> list[int]:
    """The tokens of a request that go through the model: the prompt, and all outputs but the last.

    Raises:
        ValueError: the outputs are not given.
    """
    if request.outputs is None:
        raise ValueError("outputs: not given, expected the tokens to be generated")
    return [*request.prompt, *request.outputs[:-1]]
