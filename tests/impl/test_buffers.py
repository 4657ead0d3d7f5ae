"""Device memory: exact tags, torn cells, poison and padding."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch

from kvspec.impl.buffers import GUARD, KVBuffers
from kvspec.impl.errors import ContentError, InvalidRangeError
from kvspec.impl.sanitizer import Sanitizer

EXTREMES = np.array([0, 1, 2**24 - 1, 2**24, 2**24 + 1, 2**47, 2**48 - 1], dtype=np.int64)
SHAPES = [(1, 1, 1), (1, 1, 2), (3, 2, 5)]


def slots_of(buffers: KVBuffers, table: list[int], count: int) -> torch.Tensor:
    return buffers.slot_ids(array("q", table), np.zeros(count, dtype=np.int64), np.arange(count, dtype=np.int64))


def write(buffers: KVBuffers, table: list[int], tags: np.ndarray) -> None:  # type: ignore[type-arg]
    buffers.write_tags(slots_of(buffers, table, len(tags)), tags)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_tags_come_back_exactly(shape: tuple[int, int, int], block_size: int) -> None:
    layers, heads, head_dim = shape
    buffers = KVBuffers(9, block_size, layers=layers, heads=heads, head_dim=head_dim)
    table = [8, 2, 5, 1, 7, 3, 4][: -(-len(EXTREMES) // block_size)]
    write(buffers, table, EXTREMES)
    assert buffers.read_tags(array("q", table), 0, len(EXTREMES)).tolist() == EXTREMES.tolist()
    assert buffers.read_tags(array("q", table), 2, 5).tolist() == EXTREMES[2:5].tolist()
    assert buffers.read_tags(array("q", table), 3, 3).tolist() == []
    assert buffers.keys(layers - 1).shape == buffers.values(0).shape == (9, block_size, heads, head_dim)


def test_k_holds_the_low_half_and_v_the_high_half() -> None:
    buffers = KVBuffers(4, 2, layers=2, heads=2, head_dim=3)
    write(buffers, [3], np.array([5 + (7 << 24), 2**48 - 1]))
    for layer in range(2):
        assert bool((buffers.keys(layer)[3, 0] == 5).all())
        assert bool((buffers.values(layer)[3, 0] == 7).all())
    assert int(buffers.keys(0)[3, 1, 0, 0]) == 2**24 - 1


@pytest.mark.parametrize("tags", [[-1], [2**48], [3, 2**60]])
def test_tags_out_of_range_are_refused(tags: list[int]) -> None:
    buffers = KVBuffers(4, 4)
    with pytest.raises(InvalidRangeError, match=r"2\*\*48"):
        write(buffers, [1], np.array(tags))
    assert not buffers.storage_.any()


@pytest.mark.parametrize("plane", ["k", "v"])
def test_a_torn_cell_is_found(plane: str) -> None:
    buffers = KVBuffers(4, 4, layers=2, heads=2, head_dim=2)
    write(buffers, [2], np.arange(4, dtype=np.int64))
    tensor = buffers.keys(1) if plane == "k" else buffers.values(1)
    tensor[2, 3, 1, 1] = 99
    assert buffers.read_tags(array("q", [2]), 0, 3).tolist() == [0, 1, 2]
    with pytest.raises(ContentError, match="position 3"):
        buffers.read_tags(array("q", [2]), 0, 4)


def test_copies_are_whole_blocks_in_all_layers() -> None:
    buffers = KVBuffers(6, 2, layers=2)
    write(buffers, [1, 2], np.array([10, 11, 12, 13]))
    buffers.copy_blocks([(1, 5), (2, 4)])
    buffers.copy_blocks([])
    assert buffers.read_tags(array("q", [5, 4]), 0, 4).tolist() == [10, 11, 12, 13]
    assert torch.equal(buffers.storage_[:, :, 5], buffers.storage_[:, :, 1])
    assert not buffers.storage_[:, :, 3].any()


def test_poison_cannot_pass_for_content() -> None:
    buffers = KVBuffers(4, 2)
    write(buffers, [1, 2], np.array([1, 2, 3, 4]))
    buffers.poison([2, 2])
    assert buffers.read_tags(array("q", [1]), 0, 2).tolist() == [1, 2]
    with pytest.raises(ContentError, match="poisoned"):
        buffers.read_tags(array("q", [1, 2]), 0, 3)


def test_a_wide_cell_is_shown_in_a_line() -> None:
    buffers = KVBuffers(3, 1, head_dim=512)
    write(buffers, [1], np.array([7]))
    buffers.keys(0)[1, 0, 0] = torch.arange(512)
    with pytest.raises(ContentError) as raised:
        buffers.read_tags(array("q", [1]), 0, 1)
    assert str(raised.value) == "position 0 holds 0, 1, 2, 3, ...: poisoned or torn"


def test_the_sanitizer_poisons_freed_blocks_and_repairs_padding() -> None:
    buffers, sanitizer = KVBuffers(4, 2), Sanitizer()
    buffers.guard_padding()
    sanitizer.freed(3)
    sanitizer.settle(buffers)
    assert bool(buffers.keys(0)[3].isnan().all())
    assert sanitizer.is_clean
    buffers.values(0)[0, 1, 0, 0] = 0
    sanitizer.settle(buffers)
    sanitizer.settle(buffers)
    assert (sanitizer.padding_writes, sanitizer.is_clean) == (1, False)
    assert bool((buffers.values(0)[0] == GUARD).all())


def test_padding_slots_are_never_written() -> None:
    buffers = KVBuffers(4, 2)
    buffers.write_tags(torch.tensor([0, 1, -1, 2]), np.array([5, 6, 7, 8]))
    assert not buffers.keys(0)[0].any()
    assert buffers.read_tags(array("q", [1]), 0, 1).tolist() == [8]


def test_sizes_are_checked() -> None:
    with pytest.raises(InvalidRangeError):
        KVBuffers(4, 4, heads=0)
