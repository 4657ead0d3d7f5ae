"""The engine: what a request has that was refused, and what fits together."""

from __future__ import annotations

import pytest

from kvspec.impl.block import Block
from kvspec.impl.worker.engine import Engine, Run
from kvspec.impl.worker.memory import num_bytes
from kvspec.impl.worker.model import HybridModel, LayerKind, ModelConfig
from kvspec.impl.worker.stream import EngineConfig, Request
from kvspec.model.conformance import PoolConfig

STEM = tuple(range(1, 9))


def engine_of() -> Engine:
    """An engine with two ranks that has seen the stem on rank 0."""
    pool = PoolConfig(num_blocks=9, block_size=2, num_single_blocks=5, num_ranks=2, num_state_slots=8)
    engine = Engine(HybridModel(ModelConfig(layers=("linear", "attention"))), EngineConfig(pool=pool, chunk=4))
    engine.run([Request(prompt=STEM, num_outputs=1)])
    return engine


def take_all(engine: Engine, rank: int) -> list[Block]:
    """All free blocks of a rank."""
    manager = engine.manager_.block_managers_[rank]
    blocks = manager.allocate(manager.num_free_blocks)
    assert blocks
    return blocks


@pytest.mark.parametrize("rank", [None, 0], ids=["newcomer", "preempted"])
def test_a_request_that_is_refused_behind_its_hit_keeps_the_rank_that_it_had(rank: int | None) -> None:
    """There is room for what it hits on rank 0, and none for what comes then; later there is room on rank 1."""
    engine = engine_of()
    take_all(engine, 0)
    held = take_all(engine, 1)
    run = Run(1, Request(prompt=STEM + (9,) * 6, num_outputs=1), 2)
    run.sequence.dp_rank_ = rank
    assert engine.manager_.allocate(run.sequence, len(STEM)) and run.computed == len(STEM)
    engine.manager_.preempt(run.sequence)
    run.sequence.dp_rank_ = rank
    assert not engine._admit(run)
    assert (run.sequence.dp_rank_, run.computed, run.sequence.single_block_) == (rank, 0, None)
    engine.manager_.block_managers_[1].release_blocks(held)
    assert engine._admit(run) == (rank is None)
    assert run.sequence.dp_rank_ == (1 if rank is None else 0)


@pytest.mark.parametrize(
    ("layers", "slots", "said"),
    [
        (("linear", "attention"), 0, "num_state_slots: 0, expected at least 2 for a model with linear layers"),
        (("linear",), 0, "num_state_slots: 0, expected at least 2 for a model with linear layers"),
        (("attention",), 3, "num_state_slots: 3, expected 0 for a model without linear layers"),
    ],
)
def test_a_pool_has_state_slots_exactly_if_the_model_has_states(
    layers: tuple[LayerKind, ...], slots: int, said: str
) -> None:
    pool = PoolConfig(num_blocks=4, block_size=2, num_single_blocks=2, num_state_slots=slots)
    with pytest.raises(ValueError, match=said):
        Engine(HybridModel(ModelConfig(layers=layers)), EngineConfig(pool=pool))


@pytest.mark.parametrize("layers", [("linear", "attention"), ("attention",) * 3, ("linear",)], ids=len)
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_memory_is_what_is_said_before_it_is_made(layers: tuple[LayerKind, ...], num_ranks: int) -> None:
    slots = 5 if "linear" in layers else 0
    pool = PoolConfig(num_blocks=7, block_size=3, num_single_blocks=2, num_ranks=num_ranks, num_state_slots=slots)
    engine = Engine(HybridModel(ModelConfig(layers=layers)), EngineConfig(pool=pool))
    made = 0
    for memory in engine.memories_:
        made += memory.buffers_.storage_.nbytes
        if memory.states_ is not None:
            made += memory.states_.recurrent_.nbytes + memory.states_.convolution_.nbytes
    assert num_bytes(engine.model_.config, pool) == made
