"""Long runs from seeds: the torch manager under the acceptor, and beside the model."""

from __future__ import annotations

import os

import pytest
from differential.lives import LARGE, Lives

from kvspec.impl.target import TorchTarget
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import PoolConfig
from kvspec.model.generator import Kind, RandomSource
from kvspec.model.reference import ModelTarget

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
OPERATIONS = 200_000 if DEEP else 8_000
POOLS = 300 if DEEP else 20


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("sanitizer", [False, True], ids=["plain", "sanitizer"])
def test_the_torch_manager_holds_in_long_runs(kind: Kind, sanitizer: bool) -> None:
    options = ConformOptions(operations=OPERATIONS, kind=kind, sanitizer=sanitizer, seed=11)
    report = conform(TorchTarget, options)
    assert report.violation is None
    assert {f.family: f.verdict for f in report.families if f.verdict != "holds"} == {}


@pytest.mark.parametrize(("blocks", "size"), [(2, 1), (3, 4), (12, 1), (64, 16)])
def test_the_torch_manager_holds_in_pools_of_other_sizes(blocks: int, size: int) -> None:
    options = ConformOptions(operations=OPERATIONS // 4, num_blocks=blocks, block_size=size, seed=12)
    assert conform(TorchTarget, options).violation is None


@pytest.mark.parametrize("cache", [False, True], ids=["no cache, small pool", "cache, large pool"])
@pytest.mark.parametrize("kind", Kind)
def test_torch_and_model_agree_where_neither_has_to_choose(kind: Kind, cache: bool) -> None:
    happened = 0
    for seed in range(POOLS):
        source = RandomSource(f"{kind} {seed}")
        blocks = LARGE if cache else source.integer(2, 10)
        config = PoolConfig(num_blocks=blocks, block_size=source.integer(1, 4), enable_prefix_cache=cache)
        lives = Lives(source, config, kind, (TorchTarget, ModelTarget), alike=True)
        for _ in range(120):
            lives.step()
        counts = lives.judges[0].counts
        happened += counts["hits"] if cache else counts["refusals"]
        assert not counts["evictions"]
        lives.end(close=True)
    assert happened > POOLS // 2
