"""The model against its plain version: however a sequence is cut, paged and batched, it says the same."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
import pytest
import torch
from equivalence.plain import PlainStates, plain_logits

from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.kernels import backend
from kvspec.impl.worker.model import HybridModel, ModelConfig, Piece

CONFIG = ModelConfig(layers=("linear", "attention", "linear", "attention"))
CLOSE = 2e-5
SIZE = 4


def tokens_of(length: int, seed: int) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, CONFIG.vocabulary, length).tolist()


class Memory:
    """Buffers of a model, and the logits of what runs on them."""

    def __init__(self, model: HybridModel, blocks: int = 40, slots: int = 6) -> None:
        c = model.config
        shape = {"layers": c.num_attention, "heads": c.heads, "head_dim": c.head_dim}
        self.model = model
        self.buffers = KVBuffers(blocks, SIZE, device=model.device, **shape)
        self.states = PlainStates(model, slots)

    def run(self, *pieces: Piece) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """Logits of all tokens of the pieces."""
        return self.model.logits(self.model.forward(pieces, self.buffers, self.states)).cpu().numpy()


@pytest.fixture(scope="module")
def model() -> HybridModel:
    """One for all tests here."""
    return HybridModel(CONFIG)


def test_one_step_says_what_the_plain_model_says(model: HybridModel) -> None:
    tokens = tokens_of(50, seed=1)
    found = Memory(model).run(Piece(tokens, 0, array("q", range(1, 14)), 1))
    assert np.abs(found - plain_logits(model, tokens)).max() < CLOSE


def test_a_cut_at_every_position_says_the_same(model: HybridModel) -> None:
    tokens = tokens_of(18, seed=2)
    want = plain_logits(model, tokens)
    table = array("q", [9, 3, 7, 1, 5])
    for cut in range(1, len(tokens)):
        memory = Memory(model)
        first = memory.run(Piece(tokens[:cut], 0, table, 2))
        second = memory.run(Piece(tokens[cut:], cut, table, 2))
        assert np.abs(np.concatenate([first, second]) - want).max() < CLOSE


def test_sequences_of_different_lengths_do_not_disturb_each_other(model: HybridModel) -> None:
    memory = Memory(model)
    lines = [tokens_of(length, seed=length) for length in (23, 9, 14)]
    tables = [array("q", [4, 8, 15, 16, 23, 30]), array("q", [5, 1, 9]), array("q", [2, 3, 31, 7])]
    cuts = [(0, 11, 12, 23), (0, 1, 8, 9), (0, 6, 13, 14)]
    found: list[list[float]] = [[], [], []]
    for step in range(3):
        pieces = []
        for n, line in enumerate(lines):
            start, stop = list(pairwise(cuts[n]))[step]
            pieces.append(Piece(line[start:stop], start, tables[n], n + 1))
        logits, at = memory.run(*pieces).tolist(), 0
        for n, piece in enumerate(pieces):
            found[n] += logits[at : at + len(piece.tokens)]
            at += len(piece.tokens)
    for n, line in enumerate(lines):
        assert np.abs(np.array(found[n]) - plain_logits(model, line)).max() < CLOSE


def test_cells_and_slots_of_others_are_not_touched_or_read(model: HybridModel) -> None:
    memory = Memory(model)
    memory.buffers.storage_.fill_(torch.nan)
    memory.states.recurrent_[:, [0, 2, 3, 4, 5]] = torch.nan
    memory.states.convolution_[:, [0, 2, 3, 4, 5]] = torch.nan
    tokens = tokens_of(10, seed=3)
    found = memory.run(Piece(tokens, 0, array("q", [2, 6, 4]), 1))
    assert np.abs(found - plain_logits(model, tokens)).max() < CLOSE
    cells = memory.buffers.storage_.isfinite().all(dim=(0, 1, 4, 5)).flatten()
    assert cells.nonzero().flatten().tolist() == [8, 9, 10, 11, 16, 17, 24, 25, 26, 27]
    assert memory.states.recurrent_.isfinite().all(dim=(0, 2, 3, 4)).tolist() == [False, True] + 4 * [False]


def test_every_layer_matters_to_what_comes_later(model: HybridModel) -> None:
    tokens = tokens_of(30, seed=4)
    table = array("q", range(1, 9))
    whole = Memory(model).run(Piece(tokens, 0, table, 1))[-1]
    for spoil in ("recurrent", "convolution", "keys", "values"):
        for layer in range(2):
            memory = Memory(model)
            memory.run(Piece(tokens[:-1], 0, table, 1))
            place = getattr(memory.buffers if spoil in ("keys", "values") else memory.states, spoil)(layer)
            place[1] = 0
            changed = memory.run(Piece(tokens[-1:], 29, table, 1))[-1]
            assert np.abs(changed - whole).max() > 100 * CLOSE, (spoil, layer)


@pytest.mark.parametrize(
    "piece",
    [
        Piece([], 0, array("q", [1]), 1),
        Piece([1] * 5, 0, array("q", [1]), 1),
        Piece([CONFIG.vocabulary], 0, array("q", [1]), 1),
        Piece([-1], 0, array("q", [1]), 1),
        Piece([1], -1, array("q", [1]), 1),
    ],
    ids=["no token", "no room", "large token", "negative token", "negative start"],
)
def test_a_piece_that_makes_no_sense_is_refused(model: HybridModel, piece: Piece) -> None:
    with pytest.raises(InvalidRangeError):
        Memory(model).run(piece)


@pytest.mark.parametrize(
    "sizes",
    [
        {"layers": ()},
        {"layers": ("other",)},
        {"hidden": 0},
        {"head_dim": 3},
        {"reach": 0},
    ],
    ids=str,
)
def test_sizes_that_make_no_model_are_refused(sizes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        ModelConfig(**sizes)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_a_gpu_says_the_same() -> None:
    tokens = tokens_of(50, seed=1)
    memory = Memory(HybridModel(CONFIG, "cuda"))
    table = array("q", range(1, 14))
    found = np.concatenate([memory.run(Piece(tokens[:31], 0, table, 1)), memory.run(Piece(tokens[31:], 31, table, 1))])
    assert np.abs(found - plain_logits(memory.model, tokens)).max() < CLOSE


def test_the_triton_kernels_say_the_same(model: HybridModel) -> None:
    tokens = tokens_of(14, seed=6)
    memory = Memory(model, blocks=8)
    memory.buffers.kernels_ = backend("triton")
    table = array("q", [5, 2, 7, 4])
    found = np.concatenate([memory.run(Piece(tokens[:9], 0, table, 1)), memory.run(Piece(tokens[9:], 9, table, 1))])
    assert np.abs(found - plain_logits(model, tokens)).max() < CLOSE
