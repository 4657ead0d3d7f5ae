"""`HybridModel`: softmax attention over paged K and V, and gated delta rule layers, in float32 with random weights.

Attention sees all tokens before, or a window of the last ones; the two kinds of layers have tables and memory of their
own. The model knows a sequence only through a `Piece`: some tokens, where they start, the block tables, the state slot.
Whatever it reads of the past comes from `KVBuffers` through the table, and from `StateBuffers` through the slot.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items
from math import sqrt
from typing import Final, Literal, NamedTuple, Protocol, get_args

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention, silu, softplus

from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.paging import first_visible
from kvspec.impl.paging import window as cells_of
from kvspec.impl.worker.delta_rule import causal_convolution, gated_delta_rule

LayerKind = Literal["linear", "attention", "window"]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a model; its weights follow from them and the seed.

    Attributes:
        vocabulary: token ids are below this.
        hidden: numbers per token between layers.
        layers: kinds of the layers, first to last.
        heads, head_dim: of attention, with a window or without; head_dim is even.
        window: tokens that a query of a layer with a window sees, its own included.
        linear_heads, key_dim, value_dim: of the gated delta rule.
        reach: tokens before a token that its convolution sees.
        seed: of the weights.

    Raises:
        ValueError: a size is below 1, head_dim is odd, or there is no layer.
    """

    vocabulary: int = 64
    hidden: int = 32
    layers: tuple[LayerKind, ...] = ("linear", "attention")
    heads: int = 2
    head_dim: int = 8
    window: int = 6
    linear_heads: int = 2
    key_dim: int = 8
    value_dim: int = 8
    reach: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = ("vocabulary", "hidden", "heads", "head_dim", "window", "linear_heads", "key_dim", "value_dim", "reach")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)}, expected at least 1")
        if self.head_dim & 1:
            raise ValueError(f"head_dim: {self.head_dim}, expected an even number")
        if not self.layers or not set(self.layers) <= set(get_args(LayerKind)):
            raise ValueError(f"layers: {self.layers!r}, expected at least one of {', '.join(get_args(LayerKind))}")

    @property
    def channels(self) -> int:
        """Numbers per token that go through the convolution: queries, keys and values of all heads."""
        return self.linear_heads * (2 * self.key_dim + self.value_dim)

    @property
    def num_attention(self) -> int:
        """Layers with K and V of all tokens."""
        return self.layers.count("attention")

    @property
    def num_window(self) -> int:
        """Layers with K and V of a window."""
        return self.layers.count("window")

    @property
    def num_linear(self) -> int:
        """Layers with a recurrent state."""
        return self.layers.count("linear")


class States(Protocol):
    """What a model needs of the memory of recurrent states."""

    def recurrent(self, layer: int) -> Tensor:
        """``[num_slots, heads, d_k, d_v]`` of a layer."""

    def convolution(self, layer: int) -> Tensor:
        """``[num_slots, channels, width]`` of a layer."""


NO_TABLE: Final = array("q")
"""The table of a piece in layers that a model does not have."""


class Piece(NamedTuple):
    """What one sequence does in a step: its tokens [start, start + len(tokens)); at least one.

    The window table is that of the layers with a window; what no token of the piece sees needs no block there.
    """

    tokens: Items[int]
    start: int
    table: array[int]
    slot: int
    window_table: array[int] = NO_TABLE

    @property
    def stop(self) -> int:
        """The position behind its tokens."""
        return self.start + len(self.tokens)

    def lowest(self, window: int | None) -> int:
        """The first position that a token of it sees; all tokens before without a window."""
        return 0 if window is None else first_visible(self.start, window)


class View:
    """What the pieces of a step see through one table each, as tensors: no cell is named that none of its tokens sees.

    Args:
        pieces: of the step.
        tables: the table of each.
        where: position of each place of a row, ``[B, longest]``.
        rows: for each token its row.
        window: tokens that a query sees, its own included; None: all.
        device: where the tensors are to be.
    """

    def __init__(
        self,
        pieces: Items[Piece],
        tables: Items[array[int]],
        where: Tensor,
        rows: Tensor,
        window: int | None,
        device: torch.device,
    ) -> None:
        lowest = torch.tensor([piece.lowest(window) for piece in pieces])
        stops = torch.tensor([piece.stop for piece in pieces])
        seen = lowest.unsqueeze(1) + torch.arange(int((stops - lowest).max()))
        there = seen < stops.unsqueeze(1)
        behind = where.unsqueeze(2) - seen.unsqueeze(1)
        visible = there.unsqueeze(1) & (behind >= 0)
        if window is not None:
            visible &= behind < window
        offsets = torch.tensor([0, *map(len, tables)]).cumsum(0)[:-1]

        self.tables = torch.tensor([b for table in tables for b in table], dtype=torch.int64).to(device)
        self.starts = offsets[rows].to(device)
        """For each token, where the table of its sequence starts in `tables`."""
        self.seen = torch.where(there, seen, -1).flatten().to(device)
        """Positions of a sequence from the first that is seen to the end of its piece, then -1, for each row."""
        self.seen_starts = offsets.repeat_interleave(seen.shape[1]).to(device)
        self.visible = visible.unsqueeze(1).to(device)
        """What each place of a row may look at, ``[B, 1, longest, positions]``."""


class Batch:
    """The pieces of a step as tensors, made once and used by every layer.

    Tokens lie one after another, ``[T]``; in layers that look at the past a piece is a row, ``[B, longest]``.
    """

    def __init__(self, pieces: Items[Piece], window: int | None, device: torch.device) -> None:
        lengths = torch.tensor([len(piece.tokens) for piece in pieces])
        firsts = torch.tensor([piece.start for piece in pieces])
        steps = torch.arange(int(lengths.max()))
        real = steps < lengths.unsqueeze(1)
        rows, columns = real.nonzero(as_tuple=True)
        # A place that is filled up looks at what the last token looks at: at nothing, it would have no average.
        where = firsts.unsqueeze(1) + torch.minimum(steps, lengths.unsqueeze(1) - 1)

        self.lengths = lengths.to(device)
        self.real = real.to(device)
        """Places of a row that are tokens, ``[B, longest]``."""
        self.rows, self.columns = rows.to(device), columns.to(device)
        """Row and place in it of each token."""
        self.tokens = torch.tensor([t for piece in pieces for t in piece.tokens]).to(device)
        self.positions = where[rows, columns].to(device)
        self.last = (lengths.cumsum(0) - 1).to(device)
        """The last token of each piece."""
        self.slots = torch.tensor([piece.slot for piece in pieces]).to(device)
        self.whole = View(pieces, [piece.table for piece in pieces], where, rows, None, device)
        """What layers see that see all tokens before."""
        self.window: View | None = None
        """What layers see that see a window; None where there are none."""
        if window is not None:
            self.window = View(pieces, [piece.window_table for piece in pieces], where, rows, window, device)

    def as_rows(self, values: Tensor) -> Tensor:
        """Values ``[T, ...]`` of the tokens as ``[B, longest, ...]``, filled up with zeros."""
        rows = values.new_zeros((*self.real.shape, *values.shape[1:]))
        rows[self.rows, self.columns] = values
        return rows

    def as_tokens(self, rows: Tensor) -> Tensor:
        """The reverse of `as_rows`."""
        return rows[self.rows, self.columns]


class _Weights:
    """Draws weights whose products keep the size of what goes in."""

    def __init__(self, seed: int, device: torch.device) -> None:
        # Drawn on the CPU, so that a seed means the same weights on every device.
        self._generator, self._device = torch.Generator().manual_seed(seed), device

    def matrix(self, inputs: int, outputs: int) -> Tensor:
        return (torch.randn(inputs, outputs, generator=self._generator) / sqrt(inputs)).to(self._device)

    def uniform(self, low: float, high: float, size: int) -> Tensor:
        return (low + (high - low) * torch.rand(size, generator=self._generator)).to(self._device)


def _norm(x: Tensor) -> Tensor:
    """Divide by the root of the mean square (RMSNorm without weights)."""
    scale: Tensor = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return x * scale


class AttentionLayer:
    """Softmax attention with rotary positions; K and V of the past are read through the block tables.

    Attributes:
        window_: tokens that a query sees, its own included; None: all.
    """

    window_: int | None = None

    def __init__(self, config: ModelConfig, index: int, weights: _Weights) -> None:
        self.index_, self.heads_, self.head_dim_ = index, config.heads, config.head_dim
        width = config.heads * config.head_dim
        self.input_ = weights.matrix(config.hidden, 4 * width)
        self.output_ = weights.matrix(width, config.hidden)
        self.turns_ = 100.0 ** -torch.linspace(0, 1, config.head_dim // 2, device=self.input_.device)

    def forward(self, x: Tensor, batch: Batch, view: View, buffers: KVBuffers) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``; stores K and V of the tokens."""
        q, k, v, gate = (x @ self.input_).chunk(4, dim=-1)
        q, k = self._turned(q, batch.positions), self._turned(k, batch.positions)
        keys, values = self._with_past(k, v, batch, view, buffers)
        queries = batch.as_rows(q.view(-1, self.heads_, self.head_dim_)).transpose(1, 2)
        seen = scaled_dot_product_attention(queries, keys, values, attn_mask=view.visible)
        return (batch.as_tokens(seen.transpose(1, 2)).flatten(1) * gate.sigmoid()) @ self.output_

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """Normalised for each head, and turned by the position (Su et al., RoFormer, 2021)."""
        pairs = _norm(x.view(-1, self.heads_, self.head_dim_)).view(len(x), self.heads_, -1, 2)
        angles = positions.view(-1, 1, 1) * self.turns_
        cos, sin = angles.cos(), angles.sin()
        first, second = pairs[..., 0], pairs[..., 1]
        return torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1).flatten(1)

    def _with_past(
        self, k: Tensor, v: Tensor, batch: Batch, view: View, buffers: KVBuffers
    ) -> tuple[Tensor, Tensor]:
        """Store K and V of the tokens; K and V of all that is seen, ``[B, heads, positions, head_dim]``."""
        size, kernels = buffers.block_size_, buffers.kernels_
        slots = kernels.slot_ids(view.tables, view.starts, batch.positions, size)
        planes = len(buffers.cells_) // 2
        found = []
        for plane, values in ((self.index_, k), (planes + self.index_, v)):
            cells = buffers.cells_[plane : plane + 1]
            kernels.write_slots(cells, slots, values.unsqueeze(0), size)
            past = kernels.gather(cells, view.tables, view.seen_starts, view.seen, size)
            found.append(past.view(len(batch.real), -1, self.heads_, self.head_dim_).transpose(1, 2))
        return found[0], found[1]


class WindowLayer(AttentionLayer):
    """Attention to the last tokens only (Beltagy et al., Longformer, 2020), with tables and memory of its own kind."""

    def __init__(self, config: ModelConfig, index: int, weights: _Weights) -> None:
        super().__init__(config, index, weights)
        self.window_ = config.window


class DeltaLayer:
    """A gated delta rule layer, as in Qwen3-Next; the past is the state in the slot."""

    def __init__(self, config: ModelConfig, index: int, weights: _Weights) -> None:
        self.index_ = index
        self.heads_, self.key_dim_, self.value_dim_ = config.linear_heads, config.key_dim, config.value_dim
        width = config.linear_heads * config.value_dim
        self.mixed_ = weights.matrix(config.hidden, config.channels)
        self.gate_ = weights.matrix(config.hidden, width)
        self.rates_ = weights.matrix(config.hidden, 2 * config.linear_heads)
        self.kernel_ = weights.matrix(config.reach + 1, config.channels).T.contiguous()
        # Half of a state is forgotten after about ten to a hundred tokens.
        self.forget_ = weights.uniform(0.01, 0.1, config.linear_heads)
        self.output_ = weights.matrix(width, config.hidden)

    def forward(self, x: Tensor, batch: Batch, states: States) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``; moves the states behind the tokens."""
        q, k, v = self._convolved(x, batch, states)
        beta, log_decay = self._rates_of(x, batch)
        memory = states.recurrent(self.index_)
        past = memory.index_select(0, batch.slots)
        found, state = gated_delta_rule(q, k, v, log_decay, beta, past)
        memory.index_copy_(0, batch.slots, state)
        heads = batch.as_tokens(found.transpose(1, 2))
        return (_norm(heads).flatten(1) * silu(x @ self.gate_)) @ self.output_

    def _convolved(self, x: Tensor, batch: Batch, states: States) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, ``[B, heads, longest, dim]``; moves the state of the convolution."""
        memory = states.convolution(self.index_)
        past = memory.index_select(0, batch.slots)
        mixed, state = causal_convolution(batch.as_rows(x @ self.mixed_), batch.lengths, self.kernel_, past)
        memory.index_copy_(0, batch.slots, state)
        sizes = [self.key_dim_, self.key_dim_, self.value_dim_]
        heads = silu(mixed).reshape(*mixed.shape[:2], self.heads_, -1).transpose(1, 2)
        q, k, v = torch.split(heads, sizes, dim=-1)
        return normalize(q, dim=-1), normalize(k, dim=-1), v

    def _rates_of(self, x: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Strength and log decay, ``[B, heads, longest]``; both are 0 where a row is filled up."""
        strength, decay = (x @ self.rates_).chunk(2, dim=-1)
        rates = (strength.sigmoid(), -self.forget_ * softplus(decay))
        beta, log_decay = (batch.as_rows(rate).transpose(1, 2) for rate in rates)
        return beta, log_decay


class MLP:
    """The gated layer between: ``(silu(x A) * (x B)) C``."""

    def __init__(self, config: ModelConfig, weights: _Weights) -> None:
        self.up_ = weights.matrix(config.hidden, 4 * config.hidden)
        self.down_ = weights.matrix(2 * config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """``[T, hidden]`` to ``[T, hidden]``."""
        gate, value = (x @ self.up_).chunk(2, dim=-1)
        return (silu(gate) * value) @ self.down_


LAYERS: Final[dict[LayerKind, type[AttentionLayer | DeltaLayer]]] = {
    "linear": DeltaLayer,
    "attention": AttentionLayer,
    "window": WindowLayer,
}


class HybridModel:
    """Embeddings, layers, logits.

    Args:
        config: sizes and the seed of the weights; the same on every device.
        device: where weights and buffers are.
    """

    def __init__(self, config: ModelConfig, device: torch.device | str = "cpu") -> None:
        self.config = config
        self.device = torch.device(device)
        weights = _Weights(config.seed, self.device)
        self.embedding_ = weights.matrix(config.vocabulary, config.hidden) * sqrt(config.vocabulary)
        self.layers_: list[tuple[AttentionLayer | DeltaLayer, MLP]] = []
        for number, kind in enumerate(config.layers):
            made = LAYERS[kind](config, config.layers[:number].count(kind), weights)
            self.layers_.append((made, MLP(config, weights)))
        self.head_ = weights.matrix(config.hidden, config.vocabulary)

    @torch.inference_mode()
    def forward(
        self, pieces: Items[Piece], buffers: KVBuffers, states: States | None, windows: KVBuffers | None = None
    ) -> Tensor:
        """One step: go over the tokens of all pieces, and store what later tokens need.

        Args:
            pieces: at least one; no block that is written and no slot occurs in two of them.
            buffers: of K and V, with one layer for each attention layer without a window.
            states: with one layer for each linear layer; None if there are none.
            windows: of K and V, with one layer for each layer with a window; None if there are none.
        Returns:
            What the last layer says of each token, ``[T, hidden]``, piece after piece; for `logits`.
        Raises:
            InvalidRangeError: a piece without tokens, a token outside the vocabulary, or a table that is too short or
                has no block where something is seen.
        """
        self._check(pieces, buffers, windows)
        batch = Batch(pieces, self.config.window if self.config.num_window else None, self.device)
        x = self.embedding_[batch.tokens]
        for layer, mlp in self.layers_:
            if isinstance(layer, WindowLayer):
                assert batch.window is not None and windows is not None
                x = x + layer.forward(_norm(x), batch, batch.window, windows)
            elif isinstance(layer, AttentionLayer):
                x = x + layer.forward(_norm(x), batch, batch.whole, buffers)
            else:
                assert states is not None
                x = x + layer.forward(_norm(x), batch, states)
            x = x + mlp.forward(_norm(x))
        return x

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """``[..., hidden]`` to ``[..., vocabulary]``: how much each token is expected next."""
        found: Tensor = _norm(hidden) @ self.head_
        return found

    def _check(self, pieces: Items[Piece], buffers: KVBuffers, windows: KVBuffers | None) -> None:
        for piece in pieces:
            if not piece.tokens or piece.start < 0:
                what = f"tokens [{piece.start}, {piece.stop})"
                raise InvalidRangeError("HybridModel.forward", what, "at least one, from position 0 on")
            if not 0 <= min(piece.tokens) <= max(piece.tokens) < self.config.vocabulary:
                what = f"tokens from {min(piece.tokens)} to {max(piece.tokens)}"
                raise InvalidRangeError("HybridModel.forward", what, f"[0, {self.config.vocabulary})")
            self._check_table(piece, piece.table, buffers.block_size_, None)
            if windows is not None:
                self._check_table(piece, piece.window_table, windows.block_size_, self.config.window)

    @staticmethod
    def _check_table(piece: Piece, table: array[int], block_size: int, window: int | None) -> None:
        lowest = piece.lowest(window)
        if piece.stop > len(table) * block_size:
            what = f"tokens [{piece.start}, {piece.stop}) over {len(table)} blocks"
            raise InvalidRangeError("HybridModel.forward", what, "room for them")
        if min(cells_of(table, lowest, piece.stop, block_size)[0]) < 1:
            what = f"a table in which tokens of [{lowest}, {piece.stop}) have no block"
            raise InvalidRangeError("HybridModel.forward", what, "a block wherever something is seen")
