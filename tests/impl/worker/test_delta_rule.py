"""The gated delta rule and the convolution against plain recurrences in float64, token by token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from kvspec.impl.worker.delta_rule import CHUNK, causal_convolution, gated_delta_rule

Array = npt.NDArray[np.float64]


def recurrence(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array) -> tuple[Array, Array]:
    """One head of one sequence, from the formula: decay, correct what the state says of the key, read."""
    outputs = []
    for t in range(len(q)):
        state = np.exp(g[t]) * state
        said = state.T @ k[t]
        state = state + np.outer(k[t], beta[t] * (v[t] - said))
        outputs.append(state.T @ q[t])
    return np.array(outputs), state


def inputs(tokens: int, seed: int, batch: int = 2, heads: int = 2, d_k: int = 4, d_v: int = 3) -> list[Tensor]:
    """Random queries, normalised keys, values, log decays, strengths and a start state, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(batch, heads, *shape, generator=generator, dtype=torch.float64)

    keys = torch.nn.functional.normalize(draw(tokens, d_k), dim=-1)
    decay = -torch.nn.functional.softplus(draw(tokens))
    return [draw(tokens, d_k), keys, draw(tokens, d_v), decay, draw(tokens).sigmoid(), draw(d_k, d_v)]


def expected(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The recurrence for each row and head."""
    batch, heads = parts[0].shape[:2]
    rows = [[recurrence(*(part[b, h].numpy() for part in parts)) for h in range(heads)] for b in range(batch)]
    outputs = torch.from_numpy(np.array([[head[0] for head in row] for row in rows]))
    return outputs, torch.from_numpy(np.array([[head[1] for head in row] for row in rows]))


@pytest.mark.parametrize("tokens", [1, 2, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_the_rule_is_the_recurrence(tokens: int) -> None:
    parts = inputs(tokens, seed=tokens)
    outputs, state = expected(parts)
    found_outputs, found_state = gated_delta_rule(*parts)
    torch.testing.assert_close(found_outputs, outputs, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found_state, state, rtol=1e-11, atol=1e-11)


def test_float32_stays_close_to_the_recurrence() -> None:
    parts = inputs(100, seed=5)
    outputs, state = expected(parts)
    found_outputs, found_state = gated_delta_rule(*(part.float() for part in parts))
    torch.testing.assert_close(found_outputs.double(), outputs, rtol=0, atol=2e-5)
    torch.testing.assert_close(found_state.double(), state, rtol=0, atol=2e-5)


def test_a_split_at_every_position_gives_the_same() -> None:
    tokens = CHUNK + 6
    parts = inputs(tokens, seed=1)
    outputs, state = gated_delta_rule(*parts)
    for cut in range(1, tokens):
        first, middle = gated_delta_rule(*(part[:, :, :cut] for part in parts[:5]), parts[5])
        second, end = gated_delta_rule(*(part[:, :, cut:] for part in parts[:5]), middle)
        torch.testing.assert_close(torch.cat([first, second], 2), outputs, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(end, state, rtol=1e-10, atol=1e-10)


def test_going_over_a_token_twice_shows() -> None:
    parts = inputs(9, seed=2)
    _, state = gated_delta_rule(*parts)
    _, again = gated_delta_rule(*(part[:, :, -1:] for part in parts[:5]), state)
    assert float((again - state).abs().max()) > 1e-2


def test_tokens_without_decay_and_strength_change_nothing() -> None:
    parts = inputs(5, seed=3)
    _, state = gated_delta_rule(*(part[:, :, :3] for part in parts[:5]), parts[5])
    filled = [part.clone() for part in parts]
    filled[3][:, :, 3:] = 0
    filled[4][:, :, 3:] = 0
    assert torch.allclose(gated_delta_rule(*filled)[1], state, rtol=1e-12, atol=1e-12)


def test_decay_to_nothing_forgets_the_past_without_overflow() -> None:
    parts = inputs(CHUNK, seed=4)
    parts[3][:, :, 10] = -1e4
    outputs, state = gated_delta_rule(*parts)
    other = [*parts[:5], parts[5] + 100]
    assert torch.isfinite(outputs).all()
    torch.testing.assert_close(gated_delta_rule(*other)[1], state, rtol=0, atol=0)


# -- the convolution --------------------------------------------------------------------------------------------------


def convolved(line: Array, weight: Array) -> Array:
    """Sums for each token of one row, the tokens before the first being zeros; ``line`` is ``[tokens, channels]``."""
    tokens, channels = line.shape
    reach = weight.shape[1]
    sums = np.zeros((tokens, channels))
    for t in range(tokens):
        for c in range(channels):
            for back in range(min(t + 1, reach)):
                sums[t, c] += weight[c, reach - 1 - back] * line[t - back, c]
    return sums


def test_the_convolution_is_a_sum_over_the_tokens_before() -> None:
    generator = torch.Generator().manual_seed(1)
    line = torch.randn(2, 9, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    nothing = torch.zeros(2, 3, 3, dtype=torch.float64)
    found, _ = causal_convolution(line, torch.tensor([9, 9]), weight, nothing)
    want = np.array([convolved(row.numpy(), weight.numpy()) for row in line])
    torch.testing.assert_close(found, torch.from_numpy(want), rtol=1e-12, atol=1e-12)


def test_a_convolution_that_is_cut_anywhere_goes_on_from_its_state() -> None:
    generator = torch.Generator().manual_seed(2)
    line = torch.randn(2, 9, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    start = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    whole, end = causal_convolution(line, torch.tensor([9, 9]), weight, start)
    for cut in range(1, 9):
        first, middle = causal_convolution(line[:, :cut], torch.tensor([cut, cut]), weight, start)
        second, last = causal_convolution(line[:, cut:], torch.tensor([9 - cut, 9 - cut]), weight, middle)
        torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(last, end, rtol=0, atol=0)


def test_what_fills_up_a_row_is_not_in_the_state() -> None:
    line = torch.arange(1.0, 6.0).view(1, 5, 1)
    state = torch.tensor([[[-2.0, -1.0, 0.0]]])
    _, short = causal_convolution(line, torch.tensor([2]), torch.ones(1, 4), state)
    assert short.tolist() == [[[0.0, 1.0, 2.0]]]
    _, long = causal_convolution(line, torch.tensor([5]), torch.ones(1, 4), state)
    assert long.tolist() == [[[3.0, 4.0, 5.0]]]
