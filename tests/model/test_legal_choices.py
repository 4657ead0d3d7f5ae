"""Targets that choose what others do not, and are right: nobody may be called faulty for a moment of eviction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from faulty.tier_twins import TierTwin

from kvspec.impl.hierarchy_block_manager_pool import HierarchyBlockManagerPool as HostPool
from kvspec.impl.sequence import Sequence
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Capability, Form, PoolConfig, Tags
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelPoolTarget, ModelTarget
from kvspec.model.reference.manager import OF_MANAGERS
from kvspec.model.reference.ranked import OF_POOLS

POOLS = Pools()
ENDS = ("deallocate", "preempt", "abort", "release", "truncate")
STEPS = ("allocate_shared", "allocate", "append", "cache", "save_finish", "restore_start", "restore_finish")


def then_evict(name: str, base: Any) -> Callable[..., Any]:
    """A call that is done as usual, and some eviction behind it."""
    usual = getattr(base, name)

    def call(self: Any, *arguments: Any) -> Any:
        rank = self.rank_of_call(name, arguments)
        result = usual(self, *arguments)
        done = result is not False and (result or name != "allocate_shared")
        rank = self.rank_of_call(name, arguments) if rank is None else rank
        if done and rank is not None and self._random.random() < 0.5:
            self.evict_something(rank)
        return result

    return call


class EarlyManager(ModelTarget):
    """Drops idle keys behind any call."""

    def rank_of_call(self, name: str, arguments: Any) -> int | None:
        return 0

    def evict_something(self, rank: int) -> None:
        self._evict(self._random.choice((1, 2, 9)))  # type: ignore[union-attr]

    def write(self, batch: Any) -> None:
        super().write(batch)
        self.evict_something(0)


class EarlyPool(ModelPoolTarget):
    """Drops idle keys and checkpoints behind any call, on the rank that it is about."""

    def rank_of_call(self, name: str, arguments: Any) -> int | None:
        if name == "release":
            return self._handles[arguments[0]][0] if arguments[0] in self._handles else None
        return self._pool.rank(arguments[0]) if arguments[0] in self._pool.requests else None

    def evict_something(self, rank: int) -> None:
        assert self._random is not None
        self._evict(rank, self._random.choice((0, 1, 9)))
        idle = self._pool.idle_checkpoints(rank)
        for chain in self._random.sample(idle, self._random.choice((0, min(1, len(idle)), len(idle)))):
            self._pool.evict_state(rank, chain)

    def write(self, batch: list[tuple[str, Tags]]) -> None:  # type: ignore[override]
        super().write(batch)
        if batch and (rank := self._pool.rank(batch[0][0])) is not None:
            self.evict_something(rank)


for _name in (*ENDS, *STEPS):
    if hasattr(EarlyManager, _name):
        setattr(EarlyManager, _name, then_evict(_name, ModelTarget))
    setattr(EarlyPool, _name, then_evict(_name, ModelPoolTarget))


def accepted(make: Callable[[PoolConfig], Any], form: Form, seed: int = 0) -> None:
    report = conform(make, ConformOptions(operations=4000, seed=seed, form=form, shrink_seconds=5), pools=POOLS)
    assert report.violation is None, (report.violation.what, report.violation.operations)
    assert report.counts["evictions"] > 100


@pytest.mark.parametrize("seed", range(2))
def test_a_manager_may_evict_behind_any_call(seed: int) -> None:
    accepted(lambda config: EarlyManager(config, seed=seed), Form.MANAGERS, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_may_evict_behind_any_call(seed: int) -> None:
    accepted(lambda config: EarlyPool(config, seed=seed), Form.POOLS, seed)


HIDDEN = {
    "events": {Capability.EVENTS},
    "only free ids": {Capability.EVENTS, Capability.CACHED_KEYS, Capability.REF_COUNTS},
    "only counts": {Capability.EVENTS, Capability.CACHED_KEYS, Capability.FREE_IDS, Capability.FREE_COUNT},
}


@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN)
def test_nor_need_it_tell(hidden: set[Capability]) -> None:
    accepted(lambda config: EarlyManager(config, seed=1, capabilities=OF_MANAGERS - hidden), Form.MANAGERS)
    accepted(lambda config: EarlyPool(config, seed=1, capabilities=OF_POOLS - hidden), Form.POOLS)


class CopiesAndEvicts(ModelTarget):
    """Drops the key of what it has just copied, and hands its block out in the same call."""

    def _copy(self, seq: str, index: int) -> None:
        super()._copy(seq, index)
        self._evict(1)


def test_a_block_that_was_copied_can_be_handed_out_at_once() -> None:
    accepted(CopiesAndEvicts, Form.MANAGERS)


# -- what looks like it, and is not legal -----------------------------------------------------------------------------


def published_before(name: str, base: Any) -> type:
    """A target that publishes where it must not."""

    def call(self: Any, seq: str, *arguments: Any) -> None:
        if seq in self._pool.requests:
            self.cache(seq)
        getattr(base, name)(self, seq, *arguments)

    return type(f"Publishes{name}", (base,), {name: call})


@pytest.mark.parametrize("name", ["abort", "preempt", "truncate", "append"])
@pytest.mark.parametrize("hidden", [(), (Capability.EVENTS,), (Capability.EVENTS, Capability.CACHED_KEYS)], ids=len)
def test_only_cache_and_deallocate_publish(name: str, hidden: tuple[Capability, ...]) -> None:
    for base, everything, form in ((ModelTarget, OF_MANAGERS, Form.MANAGERS), (ModelPoolTarget, OF_POOLS, Form.POOLS)):
        made = published_before(name, base)
        shown = everything.difference(hidden)
        options = ConformOptions(operations=8000, form=form)
        found = conform(lambda config: made(config, capabilities=shown), options, pools=POOLS).violation  # noqa: B023
        assert found is not None and len(found.operations) <= 6
        assert found.family in {"publish_after_write", "map_truth", "partition", "holders"}


class EvictsElsewhere(ModelPoolTarget):
    """Drops keys wherever there are some."""

    def evict_everywhere(self) -> None:
        for rank in range(self.config.num_ranks):
            self._evict(rank, 1)


@pytest.mark.parametrize("name", ["start", "append", "write", "cache", "release"])
def test_no_call_changes_a_rank_that_it_is_not_about(name: str) -> None:
    def call(self: Any, *arguments: Any) -> Any:
        result = getattr(ModelPoolTarget, name)(self, *arguments)
        self.evict_everywhere()
        return result

    made = type(f"Elsewhere{name}", (EvictsElsewhere,), {name: call})
    found = conform(made, ConformOptions(operations=20_000, form=Form.POOLS, num_ranks=2), pools=POOLS).violation
    assert found is not None and (found.family, found.rule) == ("rank", "isolation"), found.what
    assert len(found.operations) <= 12


def test_who_has_no_rank_changes_nothing() -> None:
    class Starts(EvictsElsewhere):
        def start(self, *arguments: Any) -> None:
            super().start(*arguments)
            self.evict_everywhere()

    found = conform(Starts, ConformOptions(operations=5000, form=Form.POOLS, num_ranks=1), pools=POOLS).violation
    assert found is not None and "about a sequence without a rank, but on rank 0" in found.what


# -- host tiers -------------------------------------------------------------------------------------------------------


def never(self: HostPool, sequence: Sequence) -> None:
    """Nothing is planned."""


def one_by_one(self: HostPool, rank: int, prefix: Any, first: int, stop: int) -> Any:
    """A call plans one load at most."""
    return HostPool._match(self, rank, prefix, first, min(stop, first + 1))


def offloads_early(self: HostPool, sequence: Sequence) -> None:
    HostPool.cache(self, sequence)
    self._plan_offloads(sequence)


def goes_on_early(self: HostPool, transfer: Any, ok: bool) -> None:
    """A sequence goes on with every load that is complete, as far as there is no gap."""
    sequence = transfer.sequence
    if sequence is not None and len(sequence.loaded_) + 1 < len(sequence.loading_):
        sequence.loaded_[transfer.index] = ok
        stop = sequence.loading_[0].index
        while sequence.loaded_.get(stop):
            stop += 1
        sequence.advance(stop * sequence.block_size)
        sequence.loading_ = [load for load in sequence.loading_ if load.index >= stop]
        sequence.loaded_ = {index: done for index, done in sequence.loaded_.items() if index >= stop}
        return
    HostPool._loaded(self, transfer, ok)


def unwanted_loads_run(self: HostPool, sequence: Sequence) -> None:
    """A load that nobody wants any more is not taken back."""
    for transfer in sequence.loading_:
        transfer.sequence = None
    sequence.loading_, sequence.loaded_ = [], {}


def evicts_host(self: HostPool, sequence: Sequence) -> None:
    """What waits is given up before something else is decided, and makes room for it."""
    self._check(sequence, "deallocate")
    self._publish(sequence)
    self._give_up_loads(sequence)
    if sequence.dp_rank_ is not None:
        self._host_cache(sequence.dp_rank_).evict(self.config.num_host_blocks)
    self._plan_offloads(sequence)
    self._give_back(sequence)
    sequence.ended_ = True


def moves_on_host(self: HostPool, sequence: Sequence, num_tokens: int) -> None:
    """A planned load is given up with its key."""
    HostPool.truncate(self, sequence, num_tokens)
    if sequence.dp_rank_ is not None:
        self._host_cache(sequence.dp_rank_).evict(1)


@pytest.mark.parametrize(
    "methods",
    [
        {"_plan_loads": never},
        {"_plan_offloads": never},
        {"_match": one_by_one},
        {"cache": offloads_early},
        {"_loaded": goes_on_early},
        {"_give_up_loads": unwanted_loads_run},
        {"deallocate": evicts_host},
        {"truncate": moves_on_host},
    ],
    ids=lambda methods: next(iter(methods)),
)
def test_a_host_tier_may_plan_and_forget_as_it_likes(methods: dict[str, Any]) -> None:
    target = type("Odd", (TierTwin,), {"parts": {HostPool: type("OddPool", (HostPool,), methods)}})
    report = conform(target, ConformOptions(operations=4000, form=Form.TIERS), pools=POOLS)
    assert report.violation is None, report.violation
