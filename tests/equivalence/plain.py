"""What a hybrid model says of a sequence, in float64 and NumPy, token by token: no pages, no chunks, no batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvspec.impl.worker.model import MLP, AttentionLayer, DeltaLayer, HybridModel

Array = npt.NDArray[np.float64]


class PlainStates:
    """Memory of recurrent states, as tensors."""

    def __init__(self, model: HybridModel, num_slots: int) -> None:
        c = model.config
        made = {"dtype": torch.float32, "device": model.device}
        heads = (c.num_linear, num_slots, c.linear_heads, c.key_dim, c.value_dim)
        self.recurrent_ = torch.zeros(heads, **made)  # type: ignore[arg-type]
        self.convolution_ = torch.zeros((c.num_linear, num_slots, c.channels, c.reach), **made)  # type: ignore[arg-type]

    def recurrent(self, layer: int) -> Tensor:
        """`[num_slots, heads, d_k, d_v]`."""
        return self.recurrent_[layer]

    def convolution(self, layer: int) -> Tensor:
        """`[num_slots, channels, width]`."""
        return self.convolution_[layer]


def plain_logits(model: HybridModel, tokens: list[int]) -> Array:
    """Logits behind each of the tokens, ``[tokens, vocabulary]``."""
    x = _plain(model.embedding_)[tokens]
    for layer, mlp in model.layers_:
        inner = _norm(x)
        x = x + (_attention(layer, inner) if isinstance(layer, AttentionLayer) else _delta(layer, inner))
        x = x + _mlp(mlp, _norm(x))
    return _norm(x) @ _plain(model.head_)


def _plain(weights: Tensor) -> Array:
    return weights.double().cpu().numpy()


def _norm(x: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _mlp(mlp: MLP, x: Array) -> Array:
    gate, value = np.split(x @ _plain(mlp.up_), 2, axis=-1)
    return (_silu(gate) * value) @ _plain(mlp.down_)


def _attention(layer: AttentionLayer, x: Array) -> Array:
    heads, dim = layer.heads_, layer.head_dim_
    q, k, v, gate = (part.reshape(len(x), heads, dim) for part in np.split(x @ _plain(layer.input_), 4, axis=-1))
    q, k = _turned(q, _plain(layer.turns_)), _turned(k, _plain(layer.turns_))
    out = np.zeros_like(v)
    for t in range(len(x)):
        first = 0 if layer.window_ is None else max(t + 1 - layer.window_, 0)
        for h in range(heads):
            weights = np.exp(k[first : t + 1, h] @ q[t, h] / np.sqrt(dim))
            out[t, h] = weights @ v[first : t + 1, h] / weights.sum()
    return (out * _sigmoid(gate)).reshape(len(x), -1) @ _plain(layer.output_)


def _turned(x: Array, turns: Array) -> Array:
    x = _norm(x)
    out = np.empty_like(x)
    for t in range(len(x)):
        for pair, turn in enumerate(turns):
            number = (x[t, :, 2 * pair] + 1j * x[t, :, 2 * pair + 1]) * np.exp(1j * t * turn)
            out[t, :, 2 * pair], out[t, :, 2 * pair + 1] = number.real, number.imag
    return out


def _delta(layer: DeltaLayer, x: Array) -> Array:
    mixed = _convolved(x @ _plain(layer.mixed_), _plain(layer.kernel_))
    strength, decay = np.split(x @ _plain(layer.rates_), 2, axis=-1)
    kept = np.exp(-_plain(layer.forget_) * np.log1p(np.exp(decay)))
    d_k, d_v = layer.key_dim_, layer.value_dim_
    heads = mixed.reshape(len(x), layer.heads_, 2 * d_k + d_v)
    out = np.zeros((len(x), layer.heads_, d_v))
    for h in range(layer.heads_):
        state = np.zeros((d_k, d_v))
        for t in range(len(x)):
            q, k, v = heads[t, h, :d_k], heads[t, h, d_k : 2 * d_k], heads[t, h, 2 * d_k :]
            q, k = q / np.linalg.norm(q), k / np.linalg.norm(k)
            state = state * kept[t, h]
            state = state + np.outer(k, _sigmoid(strength[t, h]) * (v - state.T @ k))
            out[t, h] = state.T @ q
    return (_norm(out).reshape(len(x), -1) * _silu(x @ _plain(layer.gate_))) @ _plain(layer.output_)


def _convolved(x: Array, kernel: Array) -> Array:
    reach = kernel.shape[1]
    line = np.concatenate([np.zeros((reach - 1, x.shape[1])), x])
    return _silu(np.stack([(line[t : t + reach] * kernel.T).sum(0) for t in range(len(x))]))
