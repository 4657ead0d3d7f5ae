"""Pools of ranks: the model behind the protocol, and a judge that accepts every legal choice and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from kvspec.model.acceptor import PoolAcceptor
from kvspec.model.compiled import InvariantError, StepError
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Capability, Context, Form, MisuseError, PoolConfig, TargetError, advance
from kvspec.model.executable import RankedPool, following
from kvspec.model.generator import Generator, Kind, RandomSource, ranked_config
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelPoolTarget, ModelTarget, model_target
from kvspec.model.reference.ranked import OF_POOLS
from kvspec.model.scenario import parse_scenario, run_scenario
from kvspec.model.world import NOTHING
from kvspec.spec.language import Chapter
from kvspec.spec.language.terms import Path
from kvspec.spec.pool import Pool

SMALL = PoolConfig(num_blocks=6, block_size=2, num_single_blocks=3, num_ranks=2, num_state_slots=4)
POOLS = Pools()


def judged(config: PoolConfig = SMALL, **options: Any) -> PoolAcceptor:
    return PoolAcceptor(ModelPoolTarget(config, **options), config, pool=POOLS.take(config))


def holds(text: str, make_target: Callable[[PoolConfig], Any] = ModelPoolTarget) -> None:
    result = run_scenario(parse_scenario(text), make_target, POOLS)
    assert result.passed, result.last


# -- the model --------------------------------------------------------------------------------------------------------


def test_a_config_says_which_model_is_made() -> None:
    assert isinstance(model_target(SMALL, seed=1), ModelPoolTarget)
    assert isinstance(model_target(PoolConfig(num_blocks=4, block_size=2)), ModelTarget)
    with pytest.raises(ValueError, match="expected one of a pool of ranks"):
        ModelPoolTarget(PoolConfig(num_blocks=4, block_size=2))
    with pytest.raises(ValueError, match="expected one of a manager"):
        ModelTarget(SMALL)


def test_a_newcomer_gets_the_rank_with_the_most_free_blocks_and_a_single_block() -> None:
    target = ModelPoolTarget(SMALL)
    for seq, wanted in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        target.start(seq, [1, 2], Context())
        assert target.rank(seq) is None
        assert target.allocate(seq, 2)
        assert (target.rank(seq), target.single_block(seq)) == (wanted, 1 if seq in "ab" else 2)
    target.start("e", [1, 2], Context())
    assert not target.allocate("e", 2)
    assert target.rank("e") is None and target.free_single_blocks(0) == set()


def test_without_linear_state_a_rank_without_a_single_block_may_be_chosen_and_refuses() -> None:
    holds("""pool 9 block 2 ranks 2 single 2
start a 0
allocate a 1
start b 0..9
allocate b 10
expect rank b 1
start c 0
allocate c 1
expect refused
expect rank c none
""")


def test_a_state_goes_over_every_token_once_in_whatever_steps() -> None:
    target = ModelPoolTarget(SMALL)
    for seq in ("a", "b"):
        target.start(seq, [1, 2, 3, 4], Context())
        assert target.allocate(seq, 4)
    tags = np.array([11, 12, 13, 14], dtype=np.int64)
    assert target.state("a") == 0
    target.write([("a", tags), ("b", tags[:1])])
    target.write([("b", tags[1:])])
    assert target.state("a") == target.state("b") == advance(0, tags)


@pytest.mark.parametrize(("trim", "kept"), [("contiguous", 2), ("deepest", 6)])
def test_a_hit_is_kept_as_far_as_the_policy_says(trim: Any, kept: int) -> None:
    config = PoolConfig(num_blocks=12, block_size=2, num_single_blocks=4, num_state_slots=6, trim=trim)
    target = ModelPoolTarget(config)
    target.start("a", [0, 1, 2, 3, 4, 5, 6], Context())
    assert target.allocate("a", 7)
    for count in (2, 4, 1):
        target.write([("a", np.arange(count))])
        assert target.save_start("a") == (count != 1)
        if count != 1:
            target.save_finish("a", True)
    target.cache("a")
    target.start("b", [0, 1, 2, 3, 4, 5, 6], Context())
    assert target.allocate_shared("b") == kept == target.num_computed("b")
    assert len(target.block_table("b")) == kept // 2
    with pytest.raises(MisuseError):
        target.state("b")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.evict(1, 2), "rank 2"),
        (lambda t: t.hold(1, -1), "rank -1"),
        (lambda t: t.free_ids(7), "rank 7"),
        (lambda t: t.checkpoints(2), "rank 2"),
        (lambda t: t.drain_events(2), "rank 2"),
        (lambda t: t.fork("a", "c"), "no fork"),
        (lambda t: t.allocate("a", 1), "less than it has computed"),
        (lambda t: t.allocate("a", 4), "4 of 3"),
        (lambda t: t.allocate_shared("a"), "blocks already"),
        (lambda t: t.save_finish("a", True), "not being saved"),
        (lambda t: t.restore_start("a"), "does not wait"),
        (lambda t: t.restore_finish("a", True), "not being restored"),
        (lambda t: t.save_start("b"), "no state"),
        (lambda t: t.state("b"), "no state"),
        (lambda t: t.rank("c"), "unknown"),
    ],
)
def test_misuse_is_an_error_and_changes_nothing(call: Callable[[ModelPoolTarget], object], words: str) -> None:
    target = ModelPoolTarget(SMALL)
    target.start("a", [1, 2, 3], Context())
    target.start("b", [1], Context())
    assert target.allocate("a", 3)
    target.write([("a", np.array([1, 2], dtype=np.int64))])

    def shown() -> tuple[object, ...]:
        return target.free_ids(), target.free_state_slots(0), target.state("a"), target.block_table("a")

    before = shown()
    with pytest.raises(MisuseError, match=words):
        call(target)
    assert shown() == before


def test_a_model_that_is_used_again_is_as_new() -> None:
    pools = Pools()
    plain = PoolConfig(num_blocks=5, block_size=1, num_single_blocks=2)
    for config in (SMALL, plain, SMALL):
        pool = pools.take(config)
        fresh = RankedPool(config)
        assert pool.machine.state == fresh.machine.state and pool.parts()[0].free == fresh.parts()[0].free
        judge = PoolAcceptor(ModelPoolTarget(config), config, pool=pool)
        judge.start("a", [1, 1, 1])
        assert judge.allocate("a", 3)
        judge.write([("a", 2)])
        judge.cache("a")
        judge.sweep()
        pools.give(pool)


# -- invariants are watched -------------------------------------------------------------------------------------------


def driven(pool: RankedPool, config: PoolConfig, seed: int, after: Callable[[], None], length: int = 60) -> None:
    """Random operations, explained by a pool, with a look after each."""
    target = ModelPoolTarget(config, seed=seed)
    judge = PoolAcceptor(target, config, pool=pool)
    generator = Generator(RandomSource(seed), config, pool, target.capabilities, Kind.VALID)
    for _ in range(length):
        operation = generator.next()
        try:
            generator.saw(judge.do(operation))
        except MisuseError:
            generator.saw(None)
        after()


@pytest.mark.parametrize("seed", range(6))
def test_what_is_watched_after_each_event_is_all_that_a_sweep_finds(seed: int) -> None:
    config = ranked_config(RandomSource(seed), linear=True)
    pool = POOLS.take(config)
    sweeps: list[list[Any]] = []
    driven(pool, config, seed, lambda: sweeps.append(pool.machine.sweep()))
    assert len(sweeps) == 60 and not any(sweeps)


SHRINKING = ("trim", "undo_block", "leave_block", "give_back")
"""Events that need a last block: before the first place there is none."""


def unguarded() -> RankedPool:
    """A pool whose events may run although their requirements do not hold, so that invariants break."""
    text = Chapter(Pool)
    for name in text.event_names:
        if name not in SHRINKING:
            text.event(name).requires = []
    with following(text):
        return RankedPool(SMALL)


def copied(state: Mapping[Path, Any]) -> dict[Path, Any]:
    return {
        path: {k: set(v) if isinstance(v, set) else v for k, v in whole.items()} if isinstance(whole, dict)
        else whole.copy()
        for path, whole in state.items()
    }  # fmt: skip


def outcome(pool: RankedPool, event: str, arguments: Sequence[Any]) -> str:
    """Whether an event breaks something, for the watch and for a sweep."""
    noticed = None
    try:
        pool.fire[event](*arguments)
    except InvariantError as error:
        noticed = error.broken
    swept = pool.machine.sweep()
    assert bool(swept) == (noticed is not None), (event, arguments, noticed, swept)
    return "broken" if swept else "silent"


def test_what_an_event_breaks_is_noticed_at_once() -> None:
    """The watch after an event is silent exactly where a sweep over the whole state is."""
    pool, rng = unguarded(), Random(7)
    seen: Counter[str] = Counter()
    for seed in range(5):
        pool.restart(SMALL)
        driven(pool, SMALL, seed, lambda: None, length=50)
        chains = [NOTHING, *(chain for chain in pool.chains if chain.full)]
        carriers: dict[str, Sequence[Any]] = {
            "Seq": [seq for seq in pool.requests if pool.rank(seq) is not None], "Rank": range(2),
            "Block": range(6), "Single": range(3), "StateSlot": range(4),
            "Index": range(3), "Chain": chains, "Pin": ["h"],
        }  # fmt: skip
        if not carriers["Seq"]:
            continue
        for _ in range(120):
            event = pool.machine.chapter.event(rng.choice(pool.machine.chapter.event_names))
            arguments = [rng.choice(carriers[p.sort.name]) for p in event.parameters]  # type: ignore[union-attr]
            keep = copied(pool.machine.state)
            try:
                noticed = outcome(pool, event.name, arguments)
            except (StepError, AttributeError, TypeError):  # what is read is not there
                noticed = "undefined"
            seen[noticed] += 1
            pool.machine.load(keep)
    assert seen["broken"] > 150 and seen["silent"] > 50, seen


# -- the judge --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("hit_limit", ["all", "all_but_one"])
def test_every_legal_choice_is_accepted(seed: int | None, hit_limit: Any) -> None:
    report = conform(
        lambda config: ModelPoolTarget(config, seed=seed, hit_limit=hit_limit),
        ConformOptions(operations=2500, seed=seed or 0, form=Form.POOLS),
        pools=POOLS,
    )
    assert report.violation is None, report.violation
    assert report.counts["ranks"] > 50 and report.counts["states"] > 500


@pytest.mark.parametrize(
    "hidden",
    [
        {Capability.EVENTS},
        {Capability.EVENTS, Capability.CACHED_KEYS, Capability.REF_COUNTS},
        {Capability.EVENTS, Capability.CACHED_KEYS, Capability.FREE_IDS, Capability.FREE_COUNT},
        {Capability.EVENTS, Capability.CACHED_KEYS, Capability.FREE_IDS, Capability.REF_COUNTS},
        {Capability.STATES, Capability.CONTENTS, Capability.TRUNCATE},
        {Capability.LINEAR_STATE, Capability.STATES},
    ],
    ids=["events", "only free ids", "only counts", "blind", "contents", "linear state"],
)
def test_what_a_pool_does_not_show_is_no_violation(hidden: set[Capability]) -> None:
    report = conform(
        lambda config: ModelPoolTarget(config, capabilities=OF_POOLS - hidden),
        ConformOptions(operations=2500, seed=3, form=Form.POOLS),
        pools=POOLS,
    )
    assert report.violation is None, report.violation


def test_a_pool_that_shows_too_little_cannot_be_judged() -> None:
    for hidden in (Capability.POOL, Capability.LINEAR_STATE):
        with pytest.raises(TargetError, match=hidden.value):
            judged(capabilities=OF_POOLS - {hidden})
    blind = OF_POOLS - {Capability.EVENTS, Capability.CACHED_KEYS, Capability.FREE_IDS, Capability.REF_COUNTS}
    with pytest.raises(TargetError, match=r"neither .* \(--no-cache; no-cache in a scenario\)"):
        judged(capabilities=blind)
    with pytest.raises(TargetError, match="cannot be driven as a pool"):
        conform(ModelTarget, ConformOptions(operations=10, form=Form.POOLS))


def test_managers_and_pools_are_driven_as_far_as_a_target_can_be_made_so() -> None:
    made: list[bool] = []

    def make(config: PoolConfig) -> ModelTarget | ModelPoolTarget:
        made.append(config.is_pool)
        return model_target(config)

    for form, expected in ((None, {False, True}), (Form.MANAGERS, {False}), (Form.POOLS, {True})):
        made.clear()
        assert conform(make, ConformOptions(operations=600, form=form), pools=POOLS).violation is None
        assert set(made) == expected


def test_a_request_that_gave_way_comes_back_to_its_rank() -> None:
    holds("""pool 6 block 2 ranks 2 single 4 slots 4
start a 0..1
allocate a 2
expect rank a 0
start b 0..3
allocate b 4
expect rank b 1
preempt a
expect rank a 0
expect slots 5
start c 0..7
allocate c 8
expect rank c 0
allocate a 2
expect rank a 0
expect drained
""")


def test_copies_that_run_are_given_up_with_their_request() -> None:
    holds("""pool 10 block 2 single 4 slots 5
start a 0..3
allocate a 4
write a 2
save_start a
expect slots 2
truncate a 1
expect slots 3
save_done a
expect error
append a 1..3
allocate a 4
write a 2
save a
deallocate a
start b 0..4
allocate_shared b
restore_start b
preempt b
restore_done b
expect error
expect slots 3
expect drained
""")


def test_only_checkpoints_that_somebody_waits_for_survive_a_reset() -> None:
    holds("""pool 12 block 2 single 4 slots 5
start a 0..3
allocate a 4
write a 2
save a
write a 2
save a
deallocate a
start b 0..2
allocate_shared b
expect hit b 2
reset
expect keys 0
expect checkpoints 1
restore b
expect state b 2
reset
expect checkpoints 0
expect drained
""")


def test_a_sequence_whose_blocks_are_all_gone_is_matched_again() -> None:
    holds("""pool 12 block 2 single 4 slots 5
start p 0..3
allocate p 4
write p 2
save p
deallocate p
start a 9
allocate a 1
write a 1
truncate a 0
append a 0..3
expect blocks a 0
allocate a 4
expect waiting a
expect computed a 2
restore a
write a 2
expect drained
""")
