"""Layers with a window, on blocks that are given back behind it, say what dense attention to the window says.

The other side of each comparison is the plain model: float64, every sequence alone and whole, no pages.
"""

from __future__ import annotations

from array import array
from functools import cache
from math import inf

import numpy as np
import pytest
import torch
from equivalence.plain import plain_logits
from equivalence.streams import request_of, requests, tokens_of
from faulty import composite_twins as twins
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvspec.impl.block_manager_pool import BlockManagerPool
from kvspec.impl.composite_block_manager import CompositeBlockManager
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.paging import blocks_needed
from kvspec.impl.sequence import NO_BLOCK, GroupTable, Sequence
from kvspec.impl.worker.compare import TOLERANCE, differences
from kvspec.impl.worker.engine import CountingPool, Engine, Run, piece_of, window_blocks
from kvspec.impl.worker.memory import RankMemory, make_buffers, make_windows, num_bytes
from kvspec.impl.worker.model import HybridModel, LayerKind, ModelConfig, Piece
from kvspec.impl.worker.reference import reference_logits
from kvspec.impl.worker.reference import tokens_of as all_tokens
from kvspec.impl.worker.stream import Disturbance, EngineConfig, Outcome, Request
from kvspec.model.conformance import ManagerType, PoolConfig

EXAMPLES = settings.default.max_examples  # type: ignore[union-attr]
LAYERS: tuple[tuple[LayerKind, ...], ...] = (
    ("window",),
    ("attention", "window"),
    ("window", "window", "attention"),
    ("linear", "window"),
)


@cache
def model_with(layers: tuple[LayerKind, ...], window: int) -> HybridModel:
    """A model with these layers and this window, made once."""
    return HybridModel(ModelConfig(layers=layers, window=window))


@cache
def plain(layers: tuple[LayerKind, ...], window: int, request: Request) -> Tensor:
    """What the plain model says in the place of each output."""
    found = plain_logits(model_with(layers, window), all_tokens(request))
    return torch.from_numpy(found)[len(request.prompt) - 1 :]


class Stream:
    """A model, what comes, how the engine runs it, and what happens meanwhile."""

    def __init__(
        self,
        layers: tuple[LayerKind, ...],
        window: int,
        wanted: list[Request],
        config: EngineConfig,
        disturbances: list[Disturbance],
    ) -> None:
        self.layers, self.window, self.requests = layers, window, wanted
        self.config, self.disturbances = config, disturbances

    def __repr__(self) -> str:
        return f"Stream({self.layers}, {self.window}, {self.requests}, {self.config}, {self.disturbances})"

    def run(self, engine: type[Engine]) -> tuple[Engine, Outcome]:
        """Run it on such an engine."""
        made = engine(model_with(self.layers, self.window), self.config)
        return made, made.run(self.requests, self.disturbances)

    def apart(self, outcome: Outcome) -> float:
        """How far the outputs are from those of the plain model."""
        return max(differences(outcome.logits, [plain(self.layers, self.window, each) for each in self.requests]))


def sizes(
    wanted: list[Request], window: ManagerType, more: int = 0, *, block_size: int = 2, chunk: int = 8, **pool: object
) -> EngineConfig:
    """A pool in which each request alone has room, and so many blocks more."""
    needed = max(blocks_needed(request.num_computed, block_size) for request in wanted)
    behind = max(window_blocks(request, window, chunk) for request in wanted)
    options: dict[str, object] = {"num_single_blocks": 5, "enable_prefix_cache": False, "sanitizer": True}
    return EngineConfig(
        pool=PoolConfig(num_blocks=1 + needed + more, block_size=block_size, **(options | pool)),  # type: ignore[arg-type]
        chunk=chunk,
        window_blocks=1 + behind + more,
        window_block_size=window.block_size,
    )


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Requests, a pool in which each of them alone has room, and disturbances."""
    wanted, layers = draw(requests()), draw(st.sampled_from(LAYERS))
    window = ManagerType(2, draw(st.integers(1, 5)), draw(st.sampled_from([1, 2, 3, 4, 6, 9])))
    config = sizes(
        wanted,
        window,
        draw(st.integers(0, 6)),
        block_size=draw(st.integers(1, 4)),
        chunk=draw(st.sampled_from([1, 2, 3, 5, 8, 16])),
        num_ranks=draw(st.sampled_from([1, 1, 2])),
        num_state_slots=4 if "linear" in layers else 0,
        sanitizer=draw(st.integers(0, 3)) > 0,
    )
    one = st.builds(
        Disturbance, st.integers(0, 24), st.sampled_from(["preempt", "draft", "draft"]), st.integers(0, 3)
    )
    assert window.window is not None
    return Stream(layers, window.window, wanted, config, draw(st.lists(one, max_size=8)))


class Watched(Engine):
    """Counts the blocks that leave a window."""

    released_ = 0

    def _allocate(self, run: Run, num_tokens: int) -> bool:
        before = released(run)
        granted = super()._allocate(run, num_tokens)
        self.released_ += released(run) - before
        return granted


def released(run: Run) -> int:
    """Places of a request without a block."""
    return sum(table.released_ for table in run.sequence.kv_state_.groups_)


# -- the right engine --------------------------------------------------------------------------------------------------
def test_every_stream_says_what_dense_attention_to_the_window_says() -> None:
    seen = dict.fromkeys(["released", "preempted", "refused", "rejected"], 0)

    @settings(max_examples=EXAMPLES)
    @given(streams())
    def run(stream: Stream) -> None:
        engine, outcome = stream.run(Watched)
        assert stream.apart(outcome) < TOLERANCE, outcome.counts
        assert outcome.counts.misuse == 0
        check_drained(engine)
        assert isinstance(engine, Watched)
        for name, count in (
            ("released", engine.released_), ("preempted", outcome.counts.preemptions),
            ("refused", outcome.counts.refusals), ("rejected", outcome.counts.rejected_tokens),
        ):  # fmt: skip
            seen[name] += count

    run()
    # The streams are about something: each of these happened, again and again.
    wanted = {"released": 500, "preempted": 50, "refused": 50, "rejected": 20}
    assert {name: count for name, count in seen.items() if count < wanted[name]} == {}


def check_drained(engine: Engine) -> None:
    """Every id of every group of every rank is free."""
    for rank in range(engine.config_.pool.num_ranks):
        for ids in (*engine.manager_.id_managers(rank), engine.manager_.single_block_managers_[rank]):
            assert (ids.num_free_blocks, ids.num_used_blocks) == (ids.num_total_blocks - 1, 0)


@pytest.mark.parametrize("layers", LAYERS, ids="-".join)
@pytest.mark.parametrize("window", [1, 5, 40])
def test_the_reference_is_the_plain_model(layers: tuple[LayerKind, ...], window: int) -> None:
    wanted = [request_of(tokens_of(length, length), 4, 1, 0) for length in (3, 40)]
    found = reference_logits(model_with(layers, window), wanted)
    assert max(differences(found, [plain(layers, window, request) for request in wanted])) < TOLERANCE


def test_a_window_is_told_from_a_longer_one_and_from_all() -> None:
    request = request_of(tokens_of(20, 1), 4, 2, 0)
    of_windows = [plain(("window",), window, request) for window in (3, 4, 30)]
    assert min(differences(of_windows[:2], of_windows[1:])) > 100 * TOLERANCE


def test_a_long_request_needs_no_more_blocks_of_a_window_than_a_chunk_sees() -> None:
    wanted = [request_of(tokens_of(60, 3), 30, 4, 0)]
    stream = Stream(("attention", "window"), 5, wanted, sizes(wanted, ManagerType(2, 3, 5)), [])
    assert stream.config.window_blocks == 1 + 5
    _, outcome = stream.run(Engine)
    assert stream.apart(outcome) < TOLERANCE
    assert (outcome.counts.refusals, outcome.counts.preemptions) == (0, 0)


@pytest.mark.gpu
def test_a_gpu_says_what_dense_attention_to_the_window_says() -> None:
    wanted = [request_of(tokens_of(30, n), 8, n, n) for n in range(6)]
    for window, block_size in EDGES:
        model = HybridModel(ModelConfig(layers=("attention", "window"), window=window), "cuda")
        config = sizes(wanted, ManagerType(2, block_size, window), 8, chunk=5, num_ranks=2)
        outcome = Engine(model, config).run(wanted, [Disturbance(step, "preempt", 0) for step in range(3, 12, 4)])
        dense = [plain(("attention", "window"), window, request) for request in wanted]
        assert max(differences(outcome.logits, dense)) < TOLERANCE
        assert outcome.counts.misuse == 0


# -- what is read ------------------------------------------------------------------------------------------------------
SIZE = 3


def test_no_cell_is_read_that_no_token_sees() -> None:
    """The blocks that have gone are poison, and so are the cells of kept blocks behind the window."""
    model = model_with(("window",), 4)
    tokens = list(tokens_of(14, 5))
    buffers, windows = make_buffers(model, 9, SIZE), make_windows(model, 9, SIZE)
    assert windows is not None
    table, holes = array("q", [4, 2, 7, 5, 1]), array("q", [NO_BLOCK, NO_BLOCK, 7, 5, 1])
    model.forward([Piece(tokens[:10], 0, table, 0, table)], buffers, None, windows)
    windows.poison([2, 4])
    windows.cells_[:, 7 * SIZE] = torch.nan
    found = model.logits(model.forward([Piece(tokens[10:], 10, table, 0, holes)], buffers, None, windows))
    assert np.abs(found.numpy() - plain_logits(model, tokens)[10:]).max() < TOLERANCE


def test_a_table_without_a_block_that_is_seen_is_refused() -> None:
    model = model_with(("attention", "window"), 4)
    buffers, windows = make_buffers(model, 9, SIZE), make_windows(model, 9, SIZE)
    table = array("q", [4, 2, 7])
    for whole, seen in (
        (table, array("q", [NO_BLOCK, NO_BLOCK, 7])), (array("q", [NO_BLOCK, 2, 7]), table), (table, table[:2]),
        (table, array("q")),
    ):  # fmt: skip
        with pytest.raises(InvalidRangeError, match=r"HybridModel\.forward: .*expected (a block|room)"):
            model.forward([Piece([1], 8, whole, 0, seen)], buffers, None, windows)


def test_memory_is_what_is_said_before_it_is_made() -> None:
    model = model_with(("window", "window", "attention"), 4)
    pool, windows = PoolConfig(num_blocks=7, block_size=3, num_single_blocks=2, num_ranks=2), ManagerType(5, 2, 4)
    made = sum(buffers.storage_.nbytes for buffers in RankMemory(model, pool, windows).blocks())
    assert num_bytes(model.config, pool, windows) == 2 * made


# -- what makes no sense -----------------------------------------------------------------------------------------------
def test_blocks_for_windows_go_with_layers_that_have_one() -> None:
    wanted = [request_of((1, 2, 3), 2, 1, 0)]
    config = sizes(wanted, ManagerType(2, 2, 4))
    with pytest.raises(ValueError, match="expected 0 for a model without window layers"):
        Engine(model_with(("attention",), 4), config)
    with pytest.raises(ValueError, match="window_blocks: 0, expected at least 2 for a model with window layers"):
        Engine(model_with(("window",), 4), EngineConfig(pool=config.pool))


@pytest.mark.parametrize(("blocks", "size"), [(1, 2), (0, 2), (2, 0), (-3, 2)])
def test_sizes_that_make_no_pool_are_refused(blocks: int, size: int) -> None:
    pool = PoolConfig(num_blocks=4, block_size=2, num_single_blocks=2, enable_prefix_cache=False)
    with pytest.raises(ValueError, match=f"window_blocks: {blocks}, window_block_size: {size}"):
        EngineConfig(pool=pool, window_blocks=blocks, window_block_size=size)


def test_a_prefix_cache_does_not_go_with_windows() -> None:
    pool = PoolConfig(num_blocks=4, block_size=2, num_single_blocks=2)
    with pytest.raises(ValueError, match="with a prefix cache, expected a pool without"):
        EngineConfig(pool=pool, window_blocks=3, window_block_size=2)


def test_a_chunk_larger_than_the_blocks_of_a_window_is_refused_at_once() -> None:
    wanted = [request_of(tokens_of(20, 1), 2, 1, 0)]
    config = EngineConfig(
        pool=sizes(wanted, ManagerType(2, 2, 4)).pool, chunk=8, window_blocks=6, window_block_size=2
    )
    with pytest.raises(ValueError, match="request 0: 6 blocks of a window, expected at most 5"):
        Engine(model_with(("window",), 4), config).run(wanted)


# -- engines with one mistake ------------------------------------------------------------------------------------------
class CompositeOf(Engine):
    """An engine on composites of another kind."""

    kind: type[CompositeBlockManager]

    def make_manager(self) -> CountingPool:
        """A pool with such composites."""
        pool = super().make_manager()
        made = [self.kind(self.choice.manager_types, sanitize=pool.config.sanitizer) for _ in pool.block_managers_]
        pool.block_managers_ = list(made)
        return pool


class _EarlyAndStale(twins.OneTokenTooEarly):
    @staticmethod
    def _slide_table(table: GroupTable, num_tokens: int) -> int:
        return twins.KeepsStaleIds._slide_table(table, num_tokens)


class ReleasedTooEarly(CompositeOf):
    """A block goes one token too early, and is read all the same."""

    kind = _EarlyAndStale


class _ScheduledAndStale(twins.SlidesByScheduled):
    @staticmethod
    def _slide_table(table: GroupTable, num_tokens: int) -> int:
        return twins.KeepsStaleIds._slide_table(table, num_tokens)


class ReleasedByScheduled(CompositeOf):
    """Blocks go that only the tokens of this step see, and are read all the same."""

    kind = _ScheduledAndStale


class _Reorders(CompositeBlockManager):
    def allocate_for_sequence(self, sequence: Sequence, num_tokens: int) -> bool:
        granted = super().allocate_for_sequence(sequence, num_tokens)
        for table in sequence.kv_state_.groups_:
            if table.released_:
                table.blocks_[table.released_ :] = reversed(table.held())
                table.ids_[table.released_ :] = table.ids_[table.released_ :][::-1]
        return granted


class Reordered(CompositeOf):
    """Where blocks have gone, those that are kept change their places."""

    kind = _Reorders


def crowded(window: int, block_size: int, sanitizer: bool) -> Stream:
    """Two requests at once, so that what one gives back the other takes."""
    wanted = [request_of(tokens_of(14, 71), 9, 72, 0), request_of(tokens_of(13, 73), 9, 74, 0)]
    config = sizes(wanted, ManagerType(2, block_size, window), 12, chunk=5, sanitizer=sanitizer)
    return Stream(("attention", "window"), window, wanted, config, [])


EDGES = [(2, 4), (5, 2), (4, 2), (3, 1)]
"""Windows and blocks: a page larger than the window, no multiple, a multiple, a block of one token."""


@pytest.mark.parametrize(("window", "block_size"), EDGES)
@pytest.mark.parametrize("engine", [ReleasedTooEarly, ReleasedByScheduled])
def test_what_has_gone_too_early_is_read_as_poison(engine: type[Engine], window: int, block_size: int) -> None:
    stream = crowded(window, block_size, sanitizer=True)
    assert stream.apart(stream.run(Engine)[1]) < TOLERANCE
    assert stream.apart(stream.run(engine)[1]) == inf


@pytest.mark.parametrize(("window", "block_size"), EDGES)
def test_places_that_move_move_the_outputs(window: int, block_size: int) -> None:
    stream = crowded(window, block_size, sanitizer=False)
    assert stream.apart(stream.run(Engine)[1]) < TOLERANCE
    assert 100 * TOLERANCE < stream.apart(stream.run(Reordered)[1]) < inf


class TooEarly(CompositeOf):
    """A block goes one token too early, and its place says so."""

    kind = twins.OneTokenTooEarly


@pytest.mark.parametrize(("window", "block_size"), [*EDGES, (1, 3)])
def test_a_place_without_a_block_that_is_seen_stops_the_step(window: int, block_size: int) -> None:
    with pytest.raises(InvalidRangeError, match="have no block"):
        crowded(window, block_size, sanitizer=True).run(TooEarly)


def test_a_piece_has_the_tables_of_both_groups() -> None:
    wanted = [request_of(tokens_of(9, 1), 2, 1, 0)]
    engine = Engine(model_with(("attention", "window"), 4), sizes(wanted, ManagerType(2, 3, 4)))
    run = Run(0, wanted[0], 2)
    assert isinstance(engine.manager_, BlockManagerPool) and engine.manager_.allocate(run.sequence, 8)
    run.stop = 8
    piece = piece_of(run)
    assert (list(piece.table), list(piece.window_table)) == ([1, 2, 3, 4], [1, 2, 3])
