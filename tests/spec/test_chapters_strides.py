"""The functions of chapter `strides` on plain numbers, and that they are the same as in its theorems."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.model.concrete import Structure, evaluate
from kvspec.model.conformance import PoolConfig
from kvspec.spec import load, strides
from kvspec.spec.language import nat

STRIDES = load("strides")
sizes = st.integers(1, 500)


@given(sizes, sizes)
def test_a_stride_is_the_least_common_multiple(block_size: int, checkpoint_interval: int) -> None:
    assert strides.stride(block_size, checkpoint_interval) == math.lcm(block_size, checkpoint_interval)


@pytest.mark.parametrize(("block_size", "interval", "tokens"), [(16, 0, 16), (16, 64, 64), (16, 24, 48), (4, 3, 12)])
def test_a_pool_has_the_stride_of_the_chapter(block_size: int, interval: int, tokens: int) -> None:
    config = PoolConfig(num_blocks=8, block_size=block_size, checkpoint_interval=interval)
    assert config.stride == strides.stride(block_size, interval or block_size) == tokens


@given(st.integers(1, 300), st.integers(1, 40), st.data())
def test_chunks_of_any_limit_end_at_every_boundary_on_their_way(num_tokens: int, stride: int, data: Any) -> None:
    computed, ends = 0, []
    while computed < num_tokens:
        limit = data.draw(st.integers(computed + 1, num_tokens))
        computed = strides.chunk_end(computed, limit, stride)
        ends.append(computed)
    numbers = range(1, strides.boundaries(num_tokens, stride) + 1)
    assert {strides.boundary_position(n, stride) for n in numbers} <= set(ends)


@pytest.mark.parametrize(("num_tokens", "number"), [(1, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_a_hit_leaves_the_last_token(num_tokens: int, number: int) -> None:
    assert strides.last_resumable(num_tokens, 16) == number


@pytest.mark.parametrize("function", STRIDES.functions.values(), ids=lambda f: f.__name__)
@given(data=st.data())
def test_the_terms_of_the_theorems_mean_what_the_functions_compute(function: Callable[..., Any], data: Any) -> None:
    arguments = [data.draw(st.integers(1, 2**33)) for _ in inspect.signature(function).parameters]
    term = function(*map(nat, arguments)).term
    assert evaluate(term, Structure({}), {}) == function(*arguments)


@pytest.mark.parametrize("theorem", STRIDES.theorems, ids=lambda t: t.name)
def test_the_theorems_hold_for_small_numbers(theorem: Any) -> None:
    assert evaluate(theorem.term, Structure({"Nat": list(range(5))}), {})


@pytest.mark.parametrize("witness", STRIDES.witnesses, ids=lambda w: w.name)
def test_the_situations_are_found_among_small_numbers(witness: Any) -> None:
    assert evaluate(witness.term, Structure({"Nat": list(range(5))}), {})
