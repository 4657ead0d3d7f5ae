"""Recurrent states in memory: exact tags, torn and poisoned states, copies, and slot 0 that nothing changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvspec.impl.buffers import GUARD
from kvspec.impl.errors import ContentError, InvalidRangeError
from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.state_buffers import StateBuffers

EXTREMES = np.array([0, 1, 2**24 - 1, 2**24, 2**24 + 1, 2**47, 2**48 - 1], dtype=np.int64)


def buffers() -> StateBuffers:
    return StateBuffers(9, layers=3, heads=2, d_k=3, d_v=2, channels=5, width=3)


def test_shapes() -> None:
    states = buffers()
    assert states.recurrent(2).shape == (9, 2, 3, 2)
    assert states.convolution(0).shape == (9, 5, 3)
    assert states.recurrent(0).is_contiguous() and states.convolution(2).is_contiguous()


def test_tags_come_back_exactly() -> None:
    states, slots = buffers(), [8, 2, 5, 1, 7, 3, 4]
    states.write_tags(slots, EXTREMES)
    assert states.read_tags(slots).tolist() == EXTREMES.tolist()
    assert states.read_tags(slots[3:5]).tolist() == EXTREMES[3:5].tolist()
    assert states.read_tags([6]).tolist() == [0]
    assert states.read_tags([]).tolist() == []
    states.write_tags([], EXTREMES[:0])


def test_the_recurrent_part_holds_the_low_half() -> None:
    states = buffers()
    states.write_tags([4], np.array([5 + (7 << 24)]))
    assert set(states.recurrent_[:, 4].flatten().tolist()) == {5.0}
    assert set(states.convolution_[:, 4].flatten().tolist()) == {7.0}
    assert not states.recurrent_[:, 3].any() and not states.convolution_[:, 5].any()


@pytest.mark.parametrize("tag", [-1, 2**48])
def test_what_is_no_tag_is_refused_and_nothing_is_written(tag: int) -> None:
    states = buffers()
    with pytest.raises(InvalidRangeError, match="tags"):
        states.write_tags([1, 2], np.array([3, tag]))
    assert states.read_tags([1, 2]).tolist() == [0, 0]


@pytest.mark.parametrize("part", ["recurrent_", "convolution_"])
@pytest.mark.parametrize("layer", [0, 2])
def test_one_wrong_cell_is_found(part: str, layer: int) -> None:
    states = buffers()
    states.write_tags([4, 6], np.array([11, 12]))
    getattr(states, part)[layer, 6].view(-1)[-1] += 1
    assert states.read_tags([4]).tolist() == [11]
    with pytest.raises(ContentError, match="state slot 6"):
        states.read_tags([4, 6])


def test_half_of_another_state_is_found_by_its_tag() -> None:
    """A copy that stops between the parts leaves the tag of no state that was written."""
    states = buffers()
    states.write_tags([4, 6], np.array([11 + (1 << 24), 12 + (2 << 24)]))
    states.recurrent_[:, 6] = states.recurrent_[:, 4]
    assert states.read_tags([6]).tolist() == [11 + (2 << 24)]


def test_copies_take_the_whole_state_and_nothing_else() -> None:
    states = buffers()
    states.recurrent_.copy_(torch.rand(states.recurrent_.shape, generator=torch.Generator().manual_seed(1)))
    states.convolution_.copy_(torch.rand(states.convolution_.shape, generator=torch.Generator().manual_seed(2)))
    expected = [part.clone() for part in (states.recurrent_, states.convolution_)]
    states.copy([(3, 7), (3, 1), (5, 2)])
    for part, before in zip((states.recurrent_, states.convolution_), expected, strict=True):
        before[:, [7, 1, 2]] = before[:, [3, 3, 5]]
        assert torch.equal(part, before)
    states.copy([])


def test_zero_and_poison_change_slots_but_not_slot_0() -> None:
    states = buffers()
    states.guard_padding()
    states.write_tags([1, 2, 3], np.array([5, 6, 7]))
    states.zero([0, 1])
    states.poison([0, 2])
    states.write_tags([0], np.array([9]))
    assert states.padding_is_intact()
    assert states.read_tags([1, 3]).tolist() == [0, 7]
    with pytest.raises(ContentError, match="slot 2"):
        states.read_tags([2])
    states.zero([])
    states.poison([])


@pytest.mark.parametrize("part", ["recurrent_", "convolution_"])
def test_a_write_to_slot_0_is_found(part: str) -> None:
    states, sanitizer = buffers(), Sanitizer()
    states.guard_padding()
    sanitizer.freed(5)
    sanitizer.settle(states)
    assert sanitizer.is_clean
    with pytest.raises(ContentError):
        states.read_tags([5])
    getattr(states, part)[1, 0] = 3.0
    sanitizer.settle(states)
    assert sanitizer.padding_writes == 1
    assert float(states.recurrent_[1, 0, 0, 0, 0]) == GUARD


@pytest.mark.parametrize("size", ["layers", "heads", "d_k", "d_v", "channels", "width"])
def test_empty_shapes_are_refused(size: str) -> None:
    with pytest.raises(InvalidRangeError, match="at least 1"):
        StateBuffers(4, **{size: 0})  # type: ignore[arg-type]
