"""The model as a target: it survives its own judge, whatever it decides and however little it shows."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Literal

import numpy as np
import pytest

from kvspec.model.acceptor import Acceptor
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Capability, Context, MisuseError, PoolConfig, Target
from kvspec.model.generator import Kind
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelTarget
from kvspec.model.reference.manager import OF_MANAGERS

SMALL = PoolConfig(num_blocks=5, block_size=2)
SHOWN = (
    Capability.FREE_IDS,
    Capability.FREE_COUNT,
    Capability.USED_COUNT,
    Capability.REF_COUNTS,
    Capability.CACHED_KEYS,
    Capability.EVENTS,
    Capability.CONTENTS,
)
TAKEN = OF_MANAGERS - frozenset(SHOWN)


def written(target: ModelTarget, seq: str, tokens: list[int], tags: list[int]) -> None:
    """A sequence with all its tokens computed."""
    target.start(seq, tokens, Context())
    assert target.allocate(seq, len(tokens))
    target.write([(seq, np.array(tags, dtype=np.int64))])


def test_it_follows_the_protocol() -> None:
    assert isinstance(ModelTarget(SMALL), Target)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("limit", ["all", "all_but_one"])
@pytest.mark.parametrize("seed", [None, 1])
def test_it_survives_the_acceptor(kind: Kind, limit: Literal["all", "all_but_one"], seed: int | None) -> None:
    made = partial(ModelTarget, seed=seed, hit_limit=limit, watch=True)
    report = conform(made, ConformOptions(operations=2500, kind=kind, seed=7))
    assert report.violation is None
    assert all(family.verdict == "holds" for family in report.families), report.families


@pytest.mark.parametrize("shown", [*itertools.combinations(SHOWN, 1), *itertools.combinations(SHOWN, 6), ()], ids=str)
def test_the_acceptor_accepts_it_however_little_it_shows(shown: tuple[Capability, ...]) -> None:
    made = partial(ModelTarget, seed=3, capabilities=frozenset(shown) | TAKEN)
    report = conform(made, ConformOptions(operations=1500, seed=5))
    assert report.violation is None
    unseen = {f.family for f in report.families if f.verdict == "not observed"}
    assert ("content" in unseen) == (Capability.CONTENTS not in shown)
    assert ("usage" in unseen) == (Capability.USED_COUNT not in shown)
    assert ("holders" in unseen) == (Capability.REF_COUNTS not in shown)


def test_without_a_seed_the_lowest_free_block_and_the_oldest_key_are_taken() -> None:
    target = ModelTarget(SMALL)
    written(target, "a", [1, 2], [1, 2])
    written(target, "b", [3, 4], [3, 4])
    target.deallocate("b")
    target.deallocate("a")
    assert target.evict(1) == 1
    assert target.free_ids() == {2, 3, 4}


def test_an_allocation_is_granted_whole_or_not_at_all() -> None:
    target = ModelTarget(SMALL)
    target.start("a", list(range(9)), Context())
    before = target.free_ids()
    assert not target.allocate("a", 9)
    assert target.free_ids() == before and target.block_table("a") == []
    assert target.allocate("a", 8)
    assert target.free_count() == 0


def test_copy_on_write_counts_in_the_need() -> None:
    target = ModelTarget(PoolConfig(num_blocks=3, block_size=2))
    written(target, "a", [1], [1])
    target.fork("a", "b")
    target.append("b", [2, 3])
    assert not target.allocate("b", 3)
    assert target.block_table("a") == target.block_table("b") == [1]
    assert target.allocate("b", 2)
    assert target.block_table("b") == [2]


def test_contents_are_found_through_the_block_table() -> None:
    target = ModelTarget(SMALL, seed=1)
    written(target, "a", [1, 2, 3], [11, 12, 13])
    target.fork("a", "b")
    target.append("b", [4])
    assert target.allocate("b", 4)
    target.write([("b", np.array([14], dtype=np.int64))])
    assert list(target.read("a", 0, 3)) == [11, 12, 13]
    assert list(target.read("b", 1, 4)) == [12, 13, 14]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.start("a", [1], Context()), "exists"),
        (lambda t: t.start("c", [-1], Context()), "negative"),
        (lambda t: t.append("a", [-1]), "negative"),
        (lambda t: t.append("c", [1]), "unknown"),
        (lambda t: t.allocate("a", 4), "3 tokens"),
        (lambda t: t.allocate("a", -1), "-1"),
        (lambda t: t.allocate_shared("a"), "blocks already"),
        (lambda t: t.write([("a", np.ones(2, np.int64))]), "3 known"),
        (lambda t: t.write([("a", np.zeros(0, np.int64)), ("a", np.zeros(0, np.int64))]), "twice"),
        (lambda t: t.read("a", 0, 3), "computed"),
        (lambda t: t.fork("a", "a"), "exists"),
        (lambda t: t.truncate("a", 4), "4 of 3"),
        (lambda t: t.evict(-1), "-1"),
        (lambda t: t.hold(0), "not live"),
        (lambda t: t.hold(4), "not live"),
        (lambda t: t.hold(99), "not live"),
        (lambda t: t.release(1), "holds nothing"),
    ],
)
def test_misuse_is_an_error_and_changes_nothing(call: object, words: str) -> None:
    target = ModelTarget(SMALL)
    target.start("a", [1, 2, 3], Context())
    assert target.allocate("a", 3)
    target.write([("a", np.array([1, 2], dtype=np.int64))])
    before = (target.free_ids(), target.block_table("a"), target.num_computed("a"), target.cached())
    with pytest.raises(MisuseError, match=words):
        call(target)  # type: ignore[operator]
    assert before == (target.free_ids(), target.block_table("a"), target.num_computed("a"), target.cached())


def test_a_pool_that_is_used_again_is_as_new() -> None:
    pools = Pools()
    for config in (SMALL, PoolConfig(num_blocks=9, block_size=3), PoolConfig(num_blocks=3, block_size=1)):
        pool = pools.take(config)
        assert pool.machine.state == Pools().take(config).machine.state
        judge = Acceptor(ModelTarget(config), config, pool=pool)
        judge.start("a", [1, 1, 1])
        judge.allocate("a", 2)
        judge.write([("a", 1)])
        judge.fork("a", "b")
        judge.cache("b")
        judge.hold("a", 0, "h")
        judge.sweep()
        pools.give(pool)
