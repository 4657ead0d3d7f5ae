"""Safe boundaries: the example of the seed, and both policies against their definitions on every small case."""

from __future__ import annotations

from itertools import product

import pytest

from kvspec.impl.trim import POLICIES, contiguous, deepest
from kvspec.model.conformance import PoolConfig

CASES = [case for length in range(7) for case in product([False, True], repeat=length)]


def test_the_example_of_the_seed() -> None:
    """Checkpoints at hash0, hash1 and hash3: blocks 0 and 1 are kept, or with the other policy all four."""
    assert contiguous([True, True, False, True]) == 2
    assert deepest([True, True, False, True]) == 4


@pytest.mark.parametrize("policy", [contiguous, deepest])
def test_what_is_kept_can_be_restored(policy: object) -> None:
    assert callable(policy)
    for case in CASES:
        kept = policy(case)
        assert 0 <= kept <= len(case)
        assert kept == 0 or case[kept - 1]


def test_each_policy_keeps_as_much_as_it_may() -> None:
    for case in CASES:
        runs = [n for n in range(len(case) + 1) if all(case[:n])]
        ends = [n for n in range(len(case) + 1) if n == 0 or case[n - 1]]
        assert contiguous(case) == max(runs)
        assert deepest(case) == max(ends)


def test_a_config_names_a_policy() -> None:
    names = [PoolConfig(num_blocks=2, block_size=1, trim=name).trim for name in ("contiguous", "deepest")]
    assert [POLICIES[name] for name in names] == [contiguous, deepest]
    assert set(POLICIES) == set(names)
