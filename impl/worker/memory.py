"""`RankMemory`: the device memory of one rank, and the steps that a worker does in it."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from kvspec.impl.buffers import KVBuffers
from kvspec.impl.state_buffers import StateBuffers
from kvspec.impl.worker.model import HybridModel, ModelConfig, Piece
from kvspec.model.conformance import ManagerType, PoolConfig


def make_buffers(model: HybridModel, num_blocks: int, block_size: int) -> KVBuffers:
    """K and V for the layers of a model that see all tokens before (for one layer if it has none)."""
    return _make_buffers(model, max(model.config.num_attention, 1), num_blocks, block_size)


def make_windows(model: HybridModel, num_blocks: int, block_size: int) -> KVBuffers | None:
    """K and V for the layers of a model with a window; None if it has none."""
    layers = model.config.num_window
    return _make_buffers(model, layers, num_blocks, block_size) if layers else None


def _make_buffers(model: HybridModel, layers: int, num_blocks: int, block_size: int) -> KVBuffers:
    c = model.config
    return KVBuffers(num_blocks, block_size, layers=layers, heads=c.heads, head_dim=c.head_dim, device=model.device)


def make_states(model: HybridModel, num_slots: int) -> StateBuffers | None:
    """States for the linear layers of a model; None if it has none."""
    c = model.config
    if not c.num_linear:
        return None
    return StateBuffers(
        num_slots,
        layers=c.num_linear,
        heads=c.linear_heads,
        d_k=c.key_dim,
        d_v=c.value_dim,
        channels=c.channels,
        width=c.reach,
        device=model.device,
    )


def num_bytes(config: ModelConfig, pool: PoolConfig, windows: ManagerType | None = None) -> int:
    """Bytes of K, V and states of all ranks, in float32, before anything is made."""
    layer = 2 * config.heads * config.head_dim
    state = config.linear_heads * config.key_dim * config.value_dim + config.channels * config.reach
    cells = max(config.num_attention, 1) * pool.num_blocks * pool.block_size
    if windows is not None:
        cells += config.num_window * windows.num_blocks * windows.block_size
    return 4 * pool.num_ranks * (cells * layer + pool.num_state_slots * config.num_linear * state)


class RankMemory:
    """K, V and recurrent states of one rank.

    Args:
        model: what runs here.
        pool: sizes of the rank.
        windows: sizes of the memory of layers with a window; None if there are none.
    """

    def __init__(self, model: HybridModel, pool: PoolConfig, windows: ManagerType | None = None) -> None:
        self.model_ = model
        self.buffers_ = make_buffers(model, pool.num_blocks, pool.block_size)
        self.windows_: KVBuffers | None = None
        if windows is not None:
            self.windows_ = make_windows(model, windows.num_blocks, windows.block_size)
        self.states_ = make_states(model, pool.num_state_slots)
        if pool.sanitizer:
            self._poison_all()

    def _poison_all(self) -> None:
        """Nothing was written yet, so nothing may be read."""
        for buffers in self.blocks():
            buffers.storage_.fill_(torch.nan)
            buffers.guard_padding()
        if self.states_ is not None:
            self.states_.recurrent_.fill_(torch.nan)
            self.states_.convolution_.fill_(torch.nan)
            self.states_.guard_padding()

    def blocks(self) -> list[KVBuffers]:
        """K and V of each group of layers, in the order of the tables of a sequence."""
        return [self.buffers_, *([self.windows_] if self.windows_ is not None else [])]

    def copy_state(self, source: int, target: int) -> None:
        """Copy the states of a slot, in all layers (checkpoint, restore)."""
        assert self.states_ is not None
        self.states_.copy([(source, target)])

    def spoil_state(self, slot: int) -> None:
        """What a copy that fails half-way leaves."""
        assert self.states_ is not None
        self.states_.poison([slot])

    def run(self, pieces: Items[Piece]) -> list[Tensor]:
        """One step: logits ``[vocabulary]`` behind the last token of each piece, on the host.

        The state of a sequence that starts is zeroed first: its slot holds what somebody left there. Pieces of one
        token go through the model apart from longer ones, so that they are not filled up to the length of these.
        """
        self.zero([piece.slot for piece in pieces if piece.start == 0])
        logits: list[Tensor | None] = [None] * len(pieces)
        for decode in (True, False):
            numbers = [n for n, piece in enumerate(pieces) if (len(piece.tokens) == 1) is decode]
            if not numbers:
                continue
            chosen = [pieces[n] for n in numbers]
            hidden = self.model_.forward(chosen, self.buffers_, self.states_, self.windows_)
            last = torch.tensor([len(piece.tokens) for piece in chosen]).cumsum(0) - 1
            for n, row in zip(numbers, self.model_.logits(hidden[last.to(hidden.device)]).cpu(), strict=True):
                logits[n] = row
        return [row for row in logits if row is not None]

    def zero(self, slots: Items[int]) -> None:
        """Forget the states in these slots."""
        if self.states_ is not None and slots:
            self.states_.zero(slots)
