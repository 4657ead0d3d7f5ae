"""Faults of the field in workers: B16 (a step of nobody writes to block 0), B56 (the tables of a step change before it
has run). B64 (blocks of two sides are paired by their number, not by their place) is a scenario of the host tier."""

from __future__ import annotations

from array import array

import numpy as np
import torch

from kvspec.impl.buffers import GUARD, KVBuffers
from kvspec.impl.worker.engine import Engine, Run, piece_of
from kvspec.impl.worker.model import Batch, HybridModel, ModelConfig, Piece
from kvspec.impl.worker.stream import EngineConfig, Request
from kvspec.model.conformance import PoolConfig

SIZE = 2
POOL = PoolConfig(
    num_blocks=12, block_size=SIZE, num_single_blocks=5, num_ranks=2, num_state_slots=8, sanitizer=True
)


def engine() -> Engine:
    return Engine(HybridModel(ModelConfig(layers=("linear", "attention"))), EngineConfig(pool=POOL, chunk=4))


def test_a_rank_with_nothing_to_do_has_nothing_written_to_it() -> None:
    """B16: whatever steps the other ranks make, an idle one keeps every cell, its padding block with them."""
    worker = engine()
    idle = worker.memories_[1]
    before = idle.buffers_.storage_.clone()
    outcome = worker.run([Request(prompt=tuple(range(1, 8)), num_outputs=3)])
    assert outcome.counts.computed_tokens > 0
    assert torch.equal(idle.buffers_.storage_, before) or torch.equal(
        idle.buffers_.storage_.nan_to_num(-1.0), before.nan_to_num(-1.0)
    )
    for memory in worker.memories_:
        assert bool((memory.buffers_.storage_[:, :, 0] == GUARD).all()), "the padding block was written"
    assert outcome.counts.misuse == 0


def test_rows_of_nobody_are_written_nowhere() -> None:
    """B16: a row without a token has slot -1, and a buffer of zeros for slots names the padding block: both are
    skipped."""
    memory = KVBuffers(4, SIZE, layers=1, heads=1, head_dim=1)
    memory.guard_padding()
    before = memory.storage_.clone()
    values = torch.full((2, 4, 1), 7.0)
    for slots in (torch.full((4,), -1), torch.zeros(4, dtype=torch.int64), torch.tensor([-1, 0, 1, -1])):
        memory.kernels_.write_slots(memory.cells_, slots, values, SIZE)
        assert torch.equal(memory.storage_, before)


def test_the_tables_of_a_step_stay_as_they_were_when_it_was_made() -> None:
    """B56: what a step reads when it runs is its own, whatever becomes of the sequences and of the next step."""
    table, tokens = array("q", [3, 5]), array("q", [1, 2, 3])
    batch = Batch([Piece(tokens, 0, table, 4)], None, torch.device("cpu"))
    seen = [tensor.clone() for tensor in (batch.whole.tables, batch.tokens, batch.positions, batch.slots)]
    table[0], tokens[0] = 9, 9
    table.append(7)
    Batch([Piece(tokens, 2, table, 6)], None, torch.device("cpu"))
    assert all(map(torch.equal, seen, (batch.whole.tables, batch.tokens, batch.positions, batch.slots)))


def test_the_slots_of_a_write_stay_as_they_were_when_it_was_made() -> None:
    """B56, in the targets: the tables of a write are copied before the sequences can change."""
    memory, table = KVBuffers(8, SIZE, layers=1, heads=1, head_dim=1), array("q", [3, 5])
    positions = np.arange(4, dtype=np.int64)
    slots = memory.slot_ids(table, np.zeros(4, dtype=np.int64), positions)
    seen = slots.clone()
    table[0], positions[0] = 1, 3
    memory.slot_ids(table, np.zeros(4, dtype=np.int64), positions)
    assert torch.equal(slots, seen) and slots.tolist() == [6, 7, 10, 11]


def test_a_step_that_was_scheduled_is_not_moved_by_the_next_schedule() -> None:
    """B56: the engine is one step ahead: what was handed over names the same blocks after the request has given way."""
    worker = engine()
    run = Run(0, Request(prompt=tuple(range(1, 6)), num_outputs=2), SIZE)
    assert worker.manager_.allocate(run.sequence, 5)
    run.stop = 5
    batch = Batch([piece_of(run)], None, torch.device("cpu"))
    blocks = batch.whole.tables.tolist()
    worker.manager_.preempt(run.sequence)
    other = Run(1, Request(prompt=(9, 9), num_outputs=1), SIZE)
    assert worker.manager_.allocate(other.sequence, 2) and not run.sequence.kv_state_.ids_
    assert batch.whole.tables.tolist() == blocks == [1, 2, 3]
