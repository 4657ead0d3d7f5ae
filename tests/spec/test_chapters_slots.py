"""The functions of chapter `slots` on plain numbers, and that they are the same as in its theorems."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.model.concrete import Structure, evaluate
from kvspec.spec import load, slots
from kvspec.spec.language import nat

sizes = st.integers(1, 4096)
numbers = st.integers(0, 2**40)


@given(numbers, sizes)
def test_a_position_is_the_first_of_its_block_plus_its_offset(position: int, size: int) -> None:
    index, offset = slots.block_index(position, size), slots.block_offset(position, size)
    assert index * size + offset == position
    assert 0 <= offset < size


@given(st.integers(1, 30), st.integers(1, 20))
def test_a_pool_has_each_slot_once(num_blocks: int, size: int) -> None:
    made = [slots.slot_id(b, o, size) for b in range(num_blocks) for o in range(size)]
    assert made == list(range(num_blocks * size))


@given(numbers, sizes)
def test_a_slot_tells_what_it_was_made_of(slot: int, size: int) -> None:
    block, offset = slots.block_of_slot(slot, size), slots.offset_of_slot(slot, size)
    assert 0 <= offset < size
    assert slots.slot_id(block, offset, size) == slot


@given(st.integers(0, 500), st.integers(1, 40))
def test_the_blocks_that_are_needed_are_the_least_that_suffice(tokens: int, size: int) -> None:
    assert slots.blocks_needed(tokens, size) == next(n for n in range(tokens + 1) if n * size >= tokens)


@given(numbers, sizes)
def test_rounding_down_gives_the_start_of_the_block(position: int, size: int) -> None:
    start = slots.round_down(position, size)
    assert start == slots.slot_id(slots.block_index(position, size), 0, size)
    assert start <= position < start + size


@given(st.integers(-(2**70), 2**70))
def test_the_cast_is_that_of_the_machine(number: int) -> None:
    assert slots.cast_to_32_bits(number) == ctypes.c_int32(number).value


@pytest.mark.parametrize(("num_blocks", "size", "fits"), [(2**27, 16, True), (2**27 + 1, 16, False), (2**31, 1, True)])
def test_the_largest_slot_survives_the_cast_if_the_pool_fits(num_blocks: int, size: int, fits: bool) -> None:
    largest = slots.slot_id(num_blocks - 1, size - 1, size)
    assert slots.fits_32_bits(num_blocks, size) is fits
    assert (slots.cast_to_32_bits(largest) == largest) is fits


def test_beyond_the_bound_a_slot_becomes_negative_and_two_become_one() -> None:
    assert slots.cast_to_32_bits(slots.slot_id(2**27, 0, 16)) == -(2**31)
    assert slots.cast_to_32_bits(slots.slot_id(2**28, 0, 16)) == slots.slot_id(0, 0, 16)


def test_a_slot_that_is_decoded_with_another_block_size_is_another_block() -> None:
    assert slots.block_of_slot(slots.slot_id(3, 5, 16), 4) == 13


FUNCTIONS: list[Callable[..., Any]] = [
    f for f in vars(slots).values() if inspect.isfunction(f) and f.__module__ == slots.__name__
]


def test_the_functions_are_found() -> None:
    assert {f.__name__ for f in FUNCTIONS} >= {"block_index", "slot_id", "blocks_needed", "fits_32_bits"}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@given(data=st.data())
def test_the_terms_of_the_theorems_mean_what_the_functions_compute(function: Callable[..., Any], data: Any) -> None:
    arguments = [data.draw(st.integers(1, 2**33)) for _ in inspect.signature(function).parameters]
    term = function(*map(nat, arguments)).term
    assert evaluate(term, Structure({}), {}) == function(*arguments)


@pytest.mark.parametrize("theorem", load("slots").theorems, ids=lambda t: t.name)
def test_the_theorems_hold_for_small_numbers(theorem: Any) -> None:
    assert evaluate(theorem.term, Structure({"Nat": list(range(6))}), {})


def test_a_misread_slot_is_found_among_small_numbers() -> None:
    (witness,) = load("slots").witnesses
    assert evaluate(witness.term, Structure({"Nat": list(range(6))}), {})
