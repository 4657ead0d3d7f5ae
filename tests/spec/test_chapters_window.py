"""The functions of chapter `window` on plain numbers, and that they are the same as in its theorems."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.model.concrete import Structure, evaluate
from kvspec.spec import load, window
from kvspec.spec.language import nat

WINDOW = load("window")
sizes = st.integers(1, 40)


def seen(query: int, tokens_seen: int) -> range:
    """The tokens that a query sees, one by one."""
    return range(max(0, query - tokens_seen + 1), query + 1)


@given(st.integers(0, 200), sizes, sizes)
def test_exactly_the_blocks_that_no_later_query_sees_go(num_tokens: int, tokens_seen: int, block_size: int) -> None:
    later = range(num_tokens, num_tokens + 3 * (tokens_seen + block_size))
    touched = {token // block_size for query in later for token in seen(query, tokens_seen)}
    assert window.released_blocks(num_tokens, tokens_seen, block_size) == min(touched)


@given(sizes, sizes)
def test_a_window_touches_no_more_blocks_than_the_bound_and_some_window_as_many(
    tokens_seen: int, block_size: int
) -> None:
    queries = range(tokens_seen + 2 * block_size)
    counts = [len({token // block_size for token in seen(query, tokens_seen)}) for query in queries]
    assert max(counts) == window.most_kept(tokens_seen, block_size)


@pytest.mark.parametrize(
    ("num_tokens", "released"), [(0, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 1), (10, 1), (11, 2), (12, 2)]
)
def test_blocks_of_four_tokens_go_once_a_window_of_four_is_behind_them(num_tokens: int, released: int) -> None:
    assert window.released_blocks(num_tokens, 4, 4) == released


@pytest.mark.parametrize("function", WINDOW.functions.values(), ids=lambda f: f.__name__)
@given(data=st.data())
def test_the_terms_of_the_theorems_mean_what_the_functions_compute(function: Callable[..., Any], data: Any) -> None:
    arguments = [data.draw(st.integers(1, 2**33)) for _ in inspect.signature(function).parameters]
    term = function(*map(nat, arguments)).term
    assert evaluate(term, Structure({}), {}) == function(*arguments)


@pytest.mark.parametrize("theorem", WINDOW.theorems, ids=lambda t: t.name)
def test_the_theorems_hold_for_small_numbers(theorem: Any) -> None:
    assert evaluate(theorem.term, Structure({"Nat": list(range(5))}), {})
