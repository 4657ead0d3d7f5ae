"""Composites under the acceptor: what the spec leaves open is accepted, and whatever else a target says is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kvspec.model.operations as ops
from kvspec.impl.composite_target import TorchCompositeTarget
from kvspec.model.acceptor import CompositeAcceptor, judge_of
from kvspec.model.conform import ConformOptions, ConformReport, Replayer, conform
from kvspec.model.conformance import (
    CacheEvent,
    Capability,
    Form,
    ManagerType,
    MisuseError,
    PoolConfig,
    TargetError,
    checked_target,
)
from kvspec.model.executable import GroupedPool
from kvspec.model.generator import Kind
from kvspec.model.pools import Pools
from kvspec.model.promises import Violation
from kvspec.model.reference import ModelCompositeTarget, ModelTarget, model_target
from kvspec.model.reference.grouped import OF_COMPOSITES
from kvspec.model.scenario import parse_scenario, run_scenario
from kvspec.model.shrink import Case, shrink

POOLS = Pools()
WINDOWED, FULL = ManagerType(5, 2, window=3), ManagerType(9, 3)


def config_of(*kinds: ManagerType) -> PoolConfig:
    return PoolConfig(num_blocks=2, block_size=1, enable_prefix_cache=False, manager_types=kinds)


def driven(make_target: Callable[[PoolConfig], Any], operations: int = 3000, **options: Any) -> ConformReport:
    return conform(make_target, ConformOptions(operations=operations, form=Form.COMPOSITES, **options), pools=POOLS)


def judged(target_type: type[ModelCompositeTarget] = ModelCompositeTarget, *kinds: ManagerType) -> CompositeAcceptor:
    config = config_of(*(kinds or (WINDOWED, FULL)))
    judge = judge_of(target_type(config), config)
    assert isinstance(judge, CompositeAcceptor)
    return judge


def do(judge: CompositeAcceptor, *operations: ops.Operation) -> CompositeAcceptor:
    for operation in operations:
        judge.do(operation)
    return judge


STARTED = (ops.Start("a", tuple(range(8))), ops.Allocate("a", 6), ops.Write("a", 6))


# -- what the spec leaves open ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind)
def test_the_model_is_accepted(kind: Kind) -> None:
    report = driven(lambda config: ModelCompositeTarget(config, watch=True), kind=kind)
    assert report.violation is None, report.violation


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_model_chooses_is_accepted(seed: int) -> None:
    report = driven(lambda config: ModelCompositeTarget(config, seed=seed), 2000, seed=seed)
    assert report.violation is None, report.violation
    counts = report.counts
    assert min(counts[name] for name in ("slides", "refusals", "truncations", "preemptions", "accept", "taken")) > 30


class SlidesAtOnce(ModelCompositeTarget):
    """What has left the window goes as soon as it has."""

    def accept(self, seq: str, num_tokens: int) -> None:
        super().accept(seq, num_tokens)
        self._slide(seq, self._groups)


class SlidesLast(ModelCompositeTarget):
    """What has left the window goes when it is wanted, and no sooner."""

    def _slide(self, seq: str, groups: Any) -> None:
        if groups is not self._groups:
            super()._slide(seq, groups)


class SlidesOthers(ModelCompositeTarget):
    """What has left the window of any sequence goes with any call."""

    def append(self, seq: str, tokens: Any) -> None:
        super().append(seq, tokens)
        for other in self._pool.requests:
            self._slide(other, self._groups)


class KeepsRoom(ModelCompositeTarget):
    """Blocks behind rejected drafts stay as room."""

    def truncate(self, seq: str, num_tokens: int) -> None:
        give_back, self._pool.give_back_to = self._pool.give_back_to, lambda seq, size, group: None  # type: ignore[method-assign]
        try:
            super().truncate(seq, num_tokens)
        finally:
            self._pool.give_back_to = give_back  # type: ignore[method-assign]


@pytest.mark.parametrize("choice", [SlidesAtOnce, SlidesLast, SlidesOthers, KeepsRoom], ids=lambda c: c.__name__)
def test_legal_choices_are_accepted(choice: type[ModelCompositeTarget]) -> None:
    report = driven(choice)
    assert report.violation is None, report.violation
    assert report.counts["slides"] > 20


def test_all_of_it_is_one_form_of_target() -> None:
    assert isinstance(model_target(config_of(FULL)), ModelCompositeTarget)
    with pytest.raises(ValueError, match="expected one of a composite"):
        ModelCompositeTarget(PoolConfig(num_blocks=4, block_size=2))
    with pytest.raises(ValueError, match="expected one of a manager"):
        ModelTarget(config_of(FULL))


def test_a_group_with_fewer_blocks_has_no_others() -> None:
    pool = GroupedPool(config_of(ManagerType(3, 1), ManagerType(9, 1), ManagerType(5, 1)))
    assert [sorted(part.free) for part in pool.parts()] == [[1, 2], list(range(1, 9)), [1, 2, 3, 4]]
    assert [part.used for part in pool.parts()] == [0, 0, 0]
    assert list(pool.sweep()) == []


def test_nothing_is_kept_of_who_is_gone() -> None:
    judge = do(judged(), *STARTED, ops.Accept("a", 6), ops.Preempt("a"), ops.Allocate("a", 8), ops.Allocate("a", 2))
    do(judge, ops.Truncate("a", 3), ops.Abort("a"))
    maps = {path: cells for path, cells in judge.pool.machine.state.items() if isinstance(cells, dict)}
    assert not [path for path, cells in maps.items() if any("a" in keyed(key) for key in cells)]


def keyed(key: Any) -> tuple[Any, ...]:
    """A key of a map as a tuple."""
    return key if isinstance(key, tuple) else (key,)


def test_what_may_slide_slides_and_nothing_else() -> None:
    judge = do(judged(SlidesAtOnce), *STARTED)
    assert judge.counts["slides"] == 0
    do(judge, ops.Accept("a", 4))
    assert judge.target.released("a") == judge.counts["slides"] == 1
    do(judge, ops.Accept("a", 6), ops.Truncate("a", 6), ops.Append("a", (9,)))
    assert judge.target.released("a") == 2 and judge.target.released("a", 1) == 0
    judge.sweep()


def test_a_refusal_lets_slide_what_it_wanted() -> None:
    judge = do(judged(), ops.Start("a", tuple(range(30))), ops.Allocate("a", 8), ops.Write("a", 8), ops.Accept("a", 8))
    assert not judge.allocate("a", 30)
    assert judge.target.released("a") == 3 and judge.counts["refusals"] == 1
    assert judge.allocate("a", 14)


# -- targets that show less -------------------------------------------------------------------------------------------


class Blind(ModelCompositeTarget):
    """Shows what has been released, and nothing else."""

    def __init__(self, config: PoolConfig, **options: Any) -> None:
        super().__init__(config, **(options | {"capabilities": frozenset({Capability.GROUPS})}))


def test_a_blind_target_is_judged_by_what_it_shows() -> None:
    report = driven(Blind)
    assert report.violation is None
    unseen = {f.family for f in report.families if f.verdict == "not observed"}
    assert unseen == {"partition", "holders", "map_truth", "drain", "usage", "content"}


@pytest.mark.parametrize("hidden", sorted(OF_COMPOSITES - {Capability.GROUPS}))
def test_each_capability_can_be_missing(hidden: Capability) -> None:
    report = driven(lambda config: ModelCompositeTarget(config, capabilities=OF_COMPOSITES - {hidden}), 1000)
    assert report.violation is None, report.violation


def test_what_has_been_released_must_be_shown() -> None:
    config = config_of(FULL)
    with pytest.raises(TargetError, match="lacks the capability groups"):
        judge_of(ModelCompositeTarget(config, capabilities=OF_COMPOSITES - {Capability.GROUPS}), config)


def test_what_cannot_be_made_is_said_by_its_groups() -> None:
    with pytest.raises(TargetError, match="with a group of 5 blocks of 2, a group of 9 blocks of 3: TypeError"):
        checked_target(lambda config: int(config), config_of(WINDOWED, FULL))  # type: ignore[call-overload]


class SlidesEarlyUnseen(Blind):
    """Gives a block back that is seen, and shows nothing but that."""

    def released(self, seq: str, group: int = 0) -> int:
        return super().released(seq, group) + (self._pool.accepted(seq) > 2)

    def block_table(self, seq: str, group: int = 0) -> Any:
        return super().block_table(seq, group)[self._pool.accepted(seq) > 2 :]


def test_a_blind_target_that_slides_too_early_is_found() -> None:
    found = driven(SlidesEarlyUnseen).violation
    assert found is not None and f"{found.family}/{found.rule}" == "window/slide"


# -- calls that make no sense -----------------------------------------------------------------------------------------


BAD_CALLS = {
    "accept more than is computed": ops.Accept("a", 7),
    "accept less than before": ops.Accept("a", 3),
    "accept a negative number": ops.Accept("a", -1),
    "accept of nobody": ops.Accept("ghost", 0),
    "take accepted tokens back": ops.Truncate("a", 3),
    "keep more than is known": ops.Truncate("a", 9),
    "room for more than is known": ops.Allocate("a", 9),
    "match with blocks": ops.AllocateShared("a"),
    "fork": ops.Fork("a", "b"),
    "hold": ops.Hold("a", 0, "h"),
    "release": ops.Release("h"),
    "evict": ops.Evict(-1),
    "write more than has room": ops.Write("a", 3),
    "start again": ops.Start("a", (1,)),
}


@pytest.mark.parametrize("call", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_a_call_that_makes_no_sense_is_an_error(call: ops.Operation) -> None:
    judge = do(judged(), *STARTED, ops.Accept("a", 4))
    with pytest.raises(MisuseError):
        judge.do(call)
    assert judge.counts["errors"] == 1
    do(judge, ops.Write("a", 0), ops.Deallocate("a"))
    judge.drain()


def test_what_only_a_prefix_cache_does_is_done_without_one() -> None:
    judge = do(judged(), ops.Start("a", (1, 2)))
    assert judge.allocate_shared("a") == 0
    do(judge, ops.Allocate("a", 2), ops.Write("a", 2), ops.Cache("a"))
    assert judge.evict(3) == 0 and judge.reset()
    do(judge, ops.Preempt("a"))
    assert judge.allocate_shared("a") == 0 and judge.pool.accepted("a") == 0


# -- targets that say what is not so ----------------------------------------------------------------------------------


def lying(**methods: Any) -> type[ModelCompositeTarget]:
    """The model, with some methods that get its answer, the target and the arguments."""

    def wrapped(name: str, lie: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *args: lie(getattr(ModelCompositeTarget, name)(self, *args), self, *args)

    return type("Lying", (ModelCompositeTarget,), {name: wrapped(name, lie) for name, lie in methods.items()})


def in_last(answer: Any, lie: Any, group: tuple[int, ...]) -> Any:
    """A lie about the last group."""
    return lie if group == (1,) else answer


LIES: dict[str, tuple[type[ModelCompositeTarget], str]] = {
    "a free block is not free": (lying(free_ids=lambda found, _, *g: in_last(found, found - {8}, g)), "free_ids"),
    "padding is free": (lying(free_ids=lambda found, _, *g: in_last(found, found | {0}, g)), "padding_free"),
    "one too many is free": (lying(free_count=lambda n, _, *g: in_last(n, n + 1, g)), "free_count"),
    "one too many is used": (lying(used_count=lambda n, _, *g: in_last(n, n + 1, g)), "used_count"),
    "two holders": (lying(ref_count=lambda n, _, block, *g: in_last(n, 2 * n, g)), "ref_count"),
    "another block": (
        lying(block_table=lambda ids, target, seq, *g: [*ids][::-1] if target.num_computed(seq) else ids), "table",
    ),
    "no block at all": (lying(block_table=lambda ids, _, seq, *g: in_last(ids, [], g)), "room_granted"),
    "a block too many": (lying(block_table=lambda ids, _, seq, *g: [*ids, 8] if ids else ids), "room_exact"),
    "padding in a table": (
        lying(block_table=lambda ids, _, seq, *g: in_last(ids, [0, *ids][: len(ids)], g)), "padding_handed_out",
    ),
    "a block that there is not": (
        lying(block_table=lambda ids, _, seq, *g: [7, *ids][: len(ids)]), "stage",
    ),
    "other contents": (lying(read=lambda tags, _, seq, start, stop, *g: in_last(tags, tags[::-1], g)), "content"),
    "fewer computed": (lying(num_computed=lambda n, _, seq: 0), "computed"),
    "a hit": (lying(allocate_shared=lambda hit, _, seq: 2), "hit_unpublished"),
    "something evicted": (lying(evict=lambda freed, _, count: 1), "evicted_count"),
    "not reset": (lying(reset=lambda done, _: False), "reset_refused"),
}  # fmt: skip


@pytest.mark.parametrize(("target", "rule"), LIES.values(), ids=LIES.keys())
def test_a_lie_is_found(target: type[ModelCompositeTarget], rule: str) -> None:
    assert run_of(judged(target)) == rule


def run_of(judge: CompositeAcceptor) -> str | None:
    """The rule that a run of all operations breaks."""
    try:
        do(judge, ops.Reset(), ops.Evict(2), ops.Start("a", tuple(range(8))), ops.AllocateShared("a"))
        do(judge, ops.Allocate("a", 6), ops.Write("a", 6), ops.Accept("a", 4), ops.Allocate("a", 8), ops.Write("a", 2))
        do(judge, ops.Truncate("a", 7), ops.Accept("a", 7), ops.Preempt("a"), ops.Allocate("a", 2), ops.Deallocate("a"))
        judge.sweep()
    except Violation as violation:
        return violation.rule
    return None


def test_nothing_is_found_where_nobody_lies() -> None:
    assert run_of(judged()) is None
    assert run_of(judged(lying())) is None


class ForgetsReleased(ModelCompositeTarget):
    """Places that were released are not, later."""

    def released(self, seq: str, group: int = 0) -> int:
        computed = self._pool.requests[seq].computed if seq in self._pool.requests else 0
        return 0 if computed > 6 else super().released(seq, group)


class Publishes(ModelCompositeTarget):
    """Reports a key."""

    def __init__(self, config: PoolConfig, **options: Any) -> None:
        super().__init__(config, **(options | {"capabilities": OF_COMPOSITES | {Capability.EVENTS}}))

    def drain_events(self) -> list[CacheEvent]:
        return [CacheEvent("stored", b"key", 1)] if self._pool.requests else []


class RefusesForNothing(ModelCompositeTarget):
    """Refuses what would fit."""

    def allocate(self, seq: str, num_tokens: int) -> bool:
        return False


class RefusesTwice(ModelCompositeTarget):
    """Refuses a call, and does it."""

    def allocate(self, seq: str, num_tokens: int) -> bool:
        return super().allocate(seq, num_tokens) and False


class AnyGroup(ModelCompositeTarget):
    """Answers for groups that there are not."""

    def free_count(self, group: int = 0) -> int:
        return super().free_count(group % len(self._groups))


class ReadsReleased(ModelCompositeTarget):
    """Reads something where nothing is."""

    def read(self, seq: str, start: int, stop: int, group: int = 0) -> Any:
        try:
            return super().read(seq, start, stop, group)
        except MisuseError:
            return self._cells[0].reshape(-1)[start:stop]


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        (ForgetsReleased, "released_kept"), (Publishes, "cached_keys"), (AnyGroup, "error_expected"),
        (RefusesForNothing, "refused_for_cause"), (RefusesTwice, "refusal_changes_nothing"),
        (ReadsReleased, "released_readable"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)  # fmt: skip
def test_a_target_that_does_what_none_may_is_found(target: type[ModelCompositeTarget], rule: str) -> None:
    assert run_of(judged(target)) == rule


def test_a_violation_says_in_which_group() -> None:
    judge = judged(lying(free_count=lambda n, _, *g: in_last(n, n + 1, g)))
    with pytest.raises(Violation, match="in group 1, the target counts 9 free blocks, there are 8"):
        do(judge, ops.Start("a", (1,)))


# -- scenarios --------------------------------------------------------------------------------------------------------

TEXT = """pool 2 block 1 no-cache group 4 block 2 window 3 group 9 block 3
start a 0..8
allocate a 6
write a 6
accept a 4
allocate a 8
"""


@pytest.mark.parametrize(
    ("check", "found"),
    [
        ("released a 1", None), ("released a 0 group 1", None), ("blocks a 3", None), ("blocks a 3 group 1", None),
        ("free 5", None), ("free 0 group 0", None), ("free 5 group 1", None), ("used 3 group 0", None),
        ("references a 1 1", None), ("references a 0 1 group 1", None), ("computed a 6", None),
        ("released a 2", "found 1"), ("blocks a 4", "found 3"), ("free 1 group 0", "found 0"),
        ("references a 0 1", "nothing to look at (a has no block 0)"),
        ("references a 4 1", "nothing to look at (a has no block 4)"),
        ("free 1 group 2", "nothing to look at (there is no group 2)"),
        ("blocks a 1 group 2", "nothing to look at"), ("released b 0", "nothing to look at (b is unknown)"),
        ("apart a a 0", "a has no block 0"), ("keys 0", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", [ModelCompositeTarget, TorchCompositeTarget])
def test_checks_look_at_groups(target: Any, check: str, found: str | None) -> None:
    result = run_scenario(parse_scenario(f"{TEXT}expect {check}\n"), target, POOLS)
    if found is None:
        assert result.verdict in ("passed", "not observed"), result.last
    else:
        assert result.verdict == "failed" and found in result.last.outcome


def test_a_failing_check_shows_every_group() -> None:
    result = run_scenario(parse_scenario(f"{TEXT}expect free 7 group 0\n"), ModelCompositeTarget, POOLS)
    tables = "a: group 0: 1 released, blocks 2 3 1; group 1: blocks 1 2 3; 6 of 9 tokens computed"
    assert result.last.before == ["free none in group 0", "free 4..8 in group 1", f"{tables}, 4 accepted"]
    assert result.last.after == [
        "free none in group 0",
        "used: 3 blocks in group 0",
        "free 4..8 in group 1",
        "used: 3 blocks in group 1",
        f"{tables}, 4 accepted (known)",
    ]


# -- shrinking --------------------------------------------------------------------------------------------------------


def test_groups_windows_and_blocks_are_taken_away() -> None:
    kinds = (ManagerType(9, 4, window=6), ManagerType(12, 3), ManagerType(7, 2, window=3))
    operations = (ops.Start("a", tuple(range(9))), ops.Allocate("a", 9), ops.Write("a", 9), ops.Accept("a", 9))

    def fails(case: Case) -> bool:
        kinds = case.config.manager_types
        grown = any(isinstance(o, ops.Allocate) and o.num_tokens > 2 for o in case.operations)
        return grown and any(kind.window is not None and kind.block_size > 1 for kind in kinds)

    small = shrink(Case(config_of(*kinds), operations), fails)
    assert small.config.manager_types == (ManagerType(2, 2, window=1),)
    assert small.operations == (ops.Allocate("a", 3),)


def test_a_run_without_a_violation_is_replayed_without_one() -> None:
    case = Case(config_of(WINDOWED, FULL), (*STARTED, ops.Accept("a", 4), ops.Accept("a", 2), ops.Deallocate("a")))
    assert Replayer(ModelCompositeTarget, POOLS).run(case).errors == (False, False, False, False, True, False)
