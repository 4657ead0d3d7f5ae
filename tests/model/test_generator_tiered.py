"""What the generator reaches in pools with a host tier, whatever a target refuses."""

from __future__ import annotations

import pytest
from faulty.tier_twins import build

from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Form
from kvspec.model.pools import Pools

POOLS = Pools()


@pytest.mark.parametrize("name", ["B25", "reset_spares_copies"])
@pytest.mark.parametrize("seed", range(3))
def test_copies_are_reset_where_a_target_refuses_that_while_a_sequence_exists(name: str, seed: int) -> None:
    class Refuses(build(name)):  # type: ignore[misc]
        def reset(self) -> bool:
            return False if self._sequences else bool(super().reset())

    options = ConformOptions(operations=5000, seed=seed, form=Form.TIERS, shrink_seconds=1)
    found = conform(Refuses, options, pools=POOLS).violation
    assert found is not None and f"{found.family}/{found.rule}" == "tiers/host_visible"
