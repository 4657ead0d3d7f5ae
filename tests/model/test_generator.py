"""The generator: deep where it should be, wild where it should be, and the same for the same choices."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvspec.model.operations as ops
from kvspec.model.acceptor import Acceptor
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Capability, MisuseError, PoolConfig
from kvspec.model.generator import Generator, Kind, RandomSource, pool_config
from kvspec.model.operations import AnyOperation
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelTarget

EVERYTHING = frozenset(Capability)
POOLS = Pools()


def life(seed: int, kind: Kind, count: int, capabilities: frozenset[Capability] = EVERYTHING) -> tuple[
    list[AnyOperation], Counter[str]
]:  # fmt: skip
    """Operations of one pool, and what happened."""
    source = RandomSource(seed)
    config = pool_config(source)
    judge = Acceptor(ModelTarget(config, capabilities=capabilities), config, pool=POOLS.take(config))
    generator = Generator(source, config, judge.pool, judge.capabilities, kind)
    done = []
    for _ in range(count):
        done.append(generator.next())
        try:
            generator.saw(judge.do(done[-1]))
        except MisuseError:
            generator.saw(None)
    POOLS.give(judge.pool)
    return done, judge.counts


def test_the_same_seed_gives_the_same_operations() -> None:
    assert life(1, Kind.MIXED, 200) == life(1, Kind.MIXED, 200)
    assert life(1, Kind.MIXED, 200)[0] != life(2, Kind.MIXED, 200)[0]


def test_valid_operations_go_deep() -> None:
    counts = conform(ModelTarget, ConformOptions(operations=10_000, kind=Kind.VALID)).counts
    wanted = {
        "hits": 200, "evictions": 300, "copies": 40, "forks": 80, "truncations": 200, "preemptions": 200,
        "refusals": 200, "published": 400,
    }  # fmt: skip
    assert {name: counts[name] for name, least in wanted.items() if counts[name] < least} == {}
    assert counts["errors"] < 300  # closed pools, and writes for which room was asked before somebody came to share it


@pytest.mark.parametrize("kind", Kind)
def test_some_steps_serve_several_sequences(kind: Kind) -> None:
    done = [o for seed in range(20) for o in life(seed, kind, 200)[0] if isinstance(o, ops.Write) and o.more]
    assert len(done) >= 30
    named_twice = [o for o in done if len({seq for seq, _ in o.batch}) < len(o.batch)]
    assert bool(named_twice) == (kind is not Kind.VALID)


def test_wild_operations_are_mostly_errors_of_every_kind() -> None:
    errors: Counter[str] = Counter()
    for seed in range(12):
        for operation in life(seed, Kind.WILD, 200)[0]:
            errors[str(operation.__struct_config__.tag)] += 1
    assert set(errors) >= {
        "start", "allocate_shared", "allocate", "append", "write", "fork", "truncate", "evict", "hold", "release",
    }  # fmt: skip
    counts = conform(ModelTarget, ConformOptions(operations=4000, kind=Kind.WILD)).counts
    assert 1200 < counts["errors"] < 3000
    assert counts["evictions"] and counts["hits"] and counts["copies"]


@pytest.mark.parametrize("missing", [Capability.FORK, Capability.TRUNCATE, Capability.HOLD])
@pytest.mark.parametrize("kind", Kind)
def test_nothing_is_asked_that_the_target_cannot_take(missing: Capability, kind: Kind) -> None:
    used = {str(o.__struct_config__.tag) for s in range(5) for o in life(s, kind, 200, EVERYTHING - {missing})[0]}
    assert missing.value not in used
    assert (missing is not Capability.HOLD) or "release" not in used


def test_a_blind_target_is_not_asked_to_evict() -> None:
    blind = frozenset({Capability.FREE_COUNT, Capability.FORK})
    counts = conform(lambda c: ModelTarget(c, capabilities=blind), ConformOptions(operations=3000)).counts
    assert counts["evictions"] > 50


@given(low=st.integers(-5, 5), width=st.integers(0, 5), seed=st.integers())
def test_a_random_source_stays_within_its_bounds(low: int, width: int, seed: int) -> None:
    source = RandomSource(seed)
    found = {source.integer(low, low + width) for _ in range(20)}
    assert min(found) >= low and max(found) <= low + width
    assert source.choice("xyz") in "xyz"
    assert not source.chance(0.0) and source.chance(1.0)


@given(seed=st.integers())
def test_pools_are_small_and_of_all_kinds(seed: int) -> None:
    config = pool_config(RandomSource(seed), sanitizer=True)
    assert 2 <= config.num_blocks <= 40 and 1 <= config.block_size <= 16 and config.sanitizer
    assert isinstance(config, PoolConfig)
