"""The gated delta rule and its short convolution: layers whose past is a state of fixed size.

With the state ``S``, ``[d_k, d_v]`` for each head, and for each token a key ``k``, a query ``q``, a value ``v``, a
log decay ``g <= 0`` and a strength ``beta`` in [0, 1]:

    S <- exp(g) S
    S <- S + k (beta (v - S^T k))^T
    o  = S^T q

Source: Yang, Kautz, Hatamizadeh, *Gated Delta Networks: Improving Mamba2 with Delta Rule* (2024), as in Qwen3-Next.
A token with ``g = 0`` and ``beta = 0`` leaves the state as it is: rows of a batch are filled up with such tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 32
"""Tokens that are solved together; the result does not depend on it."""


def gated_delta_rule(
    queries: Tensor, keys: Tensor, values: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Go over the tokens of a batch, a chunk at a time.

    Args:
        queries, keys: ``[batch, heads, tokens, d_k]``.
        values: ``[batch, heads, tokens, d_v]``.
        log_decay, beta: ``[batch, heads, tokens]``.
        state: ``[batch, heads, d_k, d_v]``, behind the tokens before.
    Returns:
        Outputs ``[batch, heads, tokens, d_v]``, and the state behind the last token.
    """
    parts = [torch.split(part, CHUNK, dim=2) for part in (queries, keys, values, log_decay, beta)]
    outputs = []
    for q, k, v, g, b in zip(*parts, strict=True):
        output, state = _step(q, k, v, g, b, state) if q.shape[2] == 1 else _chunk(q, k, v, g, b, state)
        outputs.append(output)
    return torch.cat(outputs, dim=2), state


def _step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token, by the formula."""
    state = state * g.exp().unsqueeze(-1)
    change = (v - k @ state) * beta.unsqueeze(-1)
    state = state + k.transpose(-1, -2) @ change
    return q @ state, state


def _chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Some tokens at once.

    What token i adds to the state, ``k_i u_i^T``, depends on what the tokens before it in the chunk have added:
    ``u_i = beta_i (v_i - exp(G_i) S^T k_i - sum over j < i of exp(G_i - G_j) (k_j . k_i) u_j)`` with ``G`` the sum
    of the log decays. That is a system with a triangle of ones and small numbers.
    """
    total = g.cumsum(-1)
    size = total.shape[-1]
    future = torch.ones(size, size, dtype=torch.bool, device=g.device).triu(1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(future, -torch.inf).exp()
    since_start = total.exp().unsqueeze(-1)

    system = (beta.unsqueeze(-1) * decay * (k @ k.transpose(-1, -2))).tril(-1)
    wanted = beta.unsqueeze(-1) * (v - since_start * (k @ state))
    # The diagonal is taken for ones whatever it holds.
    added = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)

    output = since_start * (q @ state) + (decay * (q @ k.transpose(-1, -2))) @ added
    to_end = (total[..., -1:] - total).exp().unsqueeze(-1)
    state = state * since_start[..., -1:, :] + (k * to_end).transpose(-1, -2) @ added
    return output, state


def causal_convolution(inputs: Tensor, lengths: Tensor, weight: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """A weighted sum over each token and the `width` tokens before it, channel by channel.

    Args:
        inputs: ``[batch, tokens, channels]``; rows may be filled up at their end.
        lengths: int64 ``[batch]``, tokens of each row that are real; at least 1.
        weight: ``[channels, width + 1]``, the oldest token first.
        state: ``[batch, channels, width]``, the inputs before the first, the oldest first; zeros where there are none.
    Returns:
        Sums ``[batch, tokens, channels]``, and the state behind the last token of each row.
    """
    width = state.shape[-1]
    line = torch.cat([state, inputs.transpose(1, 2)], dim=-1)
    output = (line.unfold(-1, width + 1, 1) * weight.unsqueeze(1)).sum(-1)
    last = lengths.unsqueeze(-1) + torch.arange(width, device=lengths.device)
    state = line.gather(-1, last.unsqueeze(1).expand(-1, line.shape[1], -1))
    return output.transpose(1, 2), state
