"""What an engine cannot be made as is no smaller run: the search goes on with others."""

from __future__ import annotations

import pytest
from faulty.engine_twins import FAULTS, build

from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import EngineConfig, Form, PoolConfig
from kvspec.model.engines.protocol import Abilities
from kvspec.model.scenario import parse_scenario


class Choosy(build(FAULTS[0].name)):  # type: ignore[misc]
    """A faulty engine that is made with blocks of two or three tokens only."""

    abilities = Abilities(("full",), block_sizes=(2, 3), fewest_blocks=8)

    def __init__(self, config: PoolConfig) -> None:
        if config.block_size not in self.abilities.block_sizes:
            raise ValueError(f"block_size: {config.block_size}, expected 2 or 3")
        super().__init__(config)


def test_a_config_that_cannot_be_made_is_passed_over() -> None:
    found = conform(Choosy, ConformOptions(form=Form.ENGINES, operations=5000)).violation
    assert found is not None
    assert found.shrunk and found.reproduced
    assert found.config.block_size == 2


@pytest.mark.parametrize("name", ["full", "as-shipped", '"full+state"', "batch"])
def test_words_behind_the_name_of_a_variant_are_options(name: str) -> None:
    config = parse_scenario(f"pool 9 block 2 engine {name} batch 8 running 3 window 5 chunked\nreset\n").config
    assert config.engine == EngineConfig(
        variant=name.strip('"'), max_batch_tokens=8, max_running=3, window=5, chunked=True
    )
