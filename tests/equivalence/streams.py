"""Streams of requests, pools too small for them, and what happens on the way: what Hypothesis draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvspec.impl.paging import blocks_needed
from kvspec.impl.worker.model import HybridModel, LayerKind, ModelConfig
from kvspec.impl.worker.stream import Disturbance, EngineConfig, Request
from kvspec.model.conformance import PoolConfig

LAYERS: tuple[tuple[LayerKind, ...], ...] = (
    ("linear", "attention"),
    ("attention", "linear"),
    ("linear", "linear", "attention"),
    ("attention", "attention"),
)


@cache
def model_with(layers: tuple[LayerKind, ...]) -> HybridModel:
    """A model with these layers, made once."""
    return HybridModel(ModelConfig(layers=layers))


@dataclass
class Stream:
    """A model, what comes, how the engine runs it, and what happens meanwhile."""

    layers: tuple[LayerKind, ...]
    requests: list[Request]
    config: EngineConfig
    disturbances: list[Disturbance] = field(default_factory=list)

    @property
    def model(self) -> HybridModel:
        """The model with its layers."""
        return model_with(self.layers)


def tokens_of(length: int, seed: int) -> tuple[int, ...]:
    """Random tokens."""
    return tuple(np.random.default_rng(seed).integers(0, ModelConfig().vocabulary, length).tolist())


def request_of(prompt: tuple[int, ...], num_outputs: int, seed: int, arrival: int) -> Request:
    """A request whose outputs are known beforehand."""
    outputs = tokens_of(num_outputs, seed)
    return Request(prompt=prompt, num_outputs=num_outputs, outputs=outputs, arrival=arrival)


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    """Three to seven requests; many start with the same tokens, and some ask for what was asked before."""
    roots = [tokens_of(24, seed) for seed in range(2)]
    made: list[Request] = []
    for number in range(draw(st.integers(3, 7))):
        root = roots[draw(st.integers(0, 5)) == 5]
        again = [*made[-1].prompt, *(made[-1].outputs or ())] if made and draw(st.booleans()) else root
        shared = tuple(again[: draw(st.integers(1, len(again)))])
        tail = tokens_of(draw(st.integers(0, 6)), 100 + number)
        outputs, arrival = draw(st.integers(1, 5)), draw(st.sampled_from([0, 4, 9, 9, 16, 16]))
        made.append(request_of(shared + tail, outputs, 200 + number, arrival))
    return made


@st.composite
def disturbances(draw: st.DrawFn) -> list[Disturbance]:
    """Up to eight things that happen in the first steps, and in half of the streams evictions in several in a row."""
    kinds = st.sampled_from(["preempt", "draft", "evict_blocks", "evict_states", "fail_saves", "fail_restores"])
    one: st.SearchStrategy[Any] = st.builds(Disturbance, st.integers(0, 24), kinds, st.integers(0, 3))
    found: list[Disturbance] = draw(st.lists(one, max_size=8))
    if draw(st.booleans()):
        first, kind = draw(st.integers(6, 18)), draw(st.sampled_from(["evict_states", "evict_states", "evict_blocks"]))
        found += [Disturbance(step, kind, draw(st.integers(1, 3))) for step in range(first, first + 6)]
    return found


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Requests, a pool in which each of them alone has room, and disturbances."""
    wanted = draw(requests())
    block_size = draw(st.integers(1, 4))
    needed = max(blocks_needed(request.num_computed, block_size) for request in wanted)
    layers = draw(st.sampled_from(LAYERS))
    num_slots = 1 + draw(st.sampled_from([1, 3, 4, 5, 6, 9, 12])) if "linear" in layers else 0
    pool = PoolConfig(
        num_blocks=1 + needed + draw(st.integers(0, 12)),
        block_size=block_size,
        enable_prefix_cache=draw(st.integers(0, 7)) > 0,
        sanitizer=draw(st.integers(0, 3)) > 0,
        num_single_blocks=1 + draw(st.integers(1, 4)),
        num_ranks=draw(st.sampled_from([1, 1, 2])),
        num_state_slots=num_slots,
        checkpoint_interval=draw(st.integers(0, 4)),
        trim=draw(st.sampled_from(["contiguous", "deepest"])),
    )
    config = EngineConfig(
        pool=pool,
        chunk=draw(st.sampled_from([1, 2, 3, 5, 8, 16, 32])),
        max_running=draw(st.integers(1, 4)),
        checkpoints=draw(st.integers(0, 7)) > 0,
    )
    return Stream(layers, wanted, config, draw(disturbances()))
