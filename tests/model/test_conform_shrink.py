"""Shrinking: what is left fails in the same way, and nothing can be taken out of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvspec.model.operations as ops
from kvspec.model.conformance import Context, PoolConfig
from kvspec.model.executable import Pool
from kvspec.model.generator import Generator, Kind, RandomSource, pool_config
from kvspec.model.operations import AnyOperation
from kvspec.model.shrink import Case, Shrinker, lives, renamed, shrink, simpler

POOL = PoolConfig(num_blocks=6, block_size=3)
Contains = Callable[[Case], bool]


def kinds(case: Case) -> list[type]:
    return [type(o) for o in case.operations]


def noise(count: int) -> tuple[AnyOperation, ...]:
    """Operations that nobody runs."""
    pool = Pool(POOL, watch=False)
    generator = Generator(RandomSource(1), POOL, pool, frozenset(), Kind.WILD)
    made = []
    for _ in range(count):
        made.append(generator.next())
        if isinstance(made[-1], ops.Start) and made[-1].seq not in pool.requests:
            pool.start(made[-1].seq, made[-1].tokens, made[-1].context)
    return tuple(made)


def test_only_what_is_needed_is_left() -> None:
    def fails(case: Case) -> bool:
        found = kinds(case)
        return ops.Reset in found and ops.Close in found[found.index(ops.Reset) :]

    lines = (*noise(40), ops.Reset(), *noise(25), ops.Close())
    assert shrink(Case(POOL, lines), fails).operations == (ops.Reset(), ops.Close())


def test_two_lines_that_only_make_sense_together_go_together() -> None:
    def fails(case: Case) -> bool:
        found = kinds(case)
        return ops.Close in found and found.count(ops.Fork) == found.count(ops.Abort)

    lines = (ops.Fork("a", "b"), ops.Reset(), ops.Abort("b"), ops.Close())
    assert shrink(Case(POOL, lines), fails).operations == (ops.Close(),)


@pytest.mark.parametrize(
    ("two", "one"),
    [
        ((ops.SaveStart("a"), ops.SaveFinish("a")), ops.Save("a")),
        ((ops.RestoreStart("a"), ops.RestoreFinish("a")), ops.Restore("a")),
        ((ops.Cache("a"), ops.Abort("a")), ops.Deallocate("a")),
        ((ops.Cache("a"), ops.Preempt("a")), ops.Deallocate("a")),
        ((ops.Preempt("a"), ops.Deallocate("a")), ops.Deallocate("a")),
        ((ops.AllocateShared("a"), ops.Allocate("a", 0)), ops.Allocate("a", 0)),
        ((ops.Allocate("a", 0), ops.Allocate("a", 1)), ops.Allocate("a", 1)),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_one_line_takes_the_place_of_two(two: tuple[AnyOperation, ...], one: AnyOperation, last: bool) -> None:
    """With another line between them; the new one may have to be where either was."""
    first, second = two
    wanted = (ops.Reset(), one) if last else (one, ops.Reset())

    def fails(case: Case) -> bool:
        return case.operations in ((first, ops.Reset(), second), wanted)

    assert shrink(Case(POOL, (first, ops.Reset(), second)), fails).operations == wanted


def test_a_sequence_takes_the_place_of_one_that_has_ended() -> None:
    lines = (ops.Start("a", ()), ops.Save("a"), ops.Deallocate("a"), ops.Start("b", ()), ops.Cache("b"), ops.Reset())

    def fails(case: Case) -> bool:
        """Somebody is saved before somebody publishes, and nobody does what he does after his end."""
        alive: set[str] = set()
        for line in case.operations:
            if isinstance(line, ops.Start):
                alive.add(line.seq)
            elif not isinstance(line, ops.Reset) and not alive.intersection([getattr(line, "seq", "")]):
                return False
            elif isinstance(line, ops.Deallocate):
                alive.discard(line.seq)
        found = kinds(case)
        return ops.Save in found and ops.Cache in found[found.index(ops.Save) :]

    assert shrink(Case(POOL, lines), fails).operations == (ops.Start("a", ()), ops.Save("a"), ops.Cache("a"))


def test_it_then_knows_the_tokens_of_both_and_publishes_as_if_it_had_ended() -> None:
    lines = (
        ops.Start("a", (0,)), ops.Write("a", 1), ops.Deallocate("a"), ops.Start("b", (0, 0)), ops.Save("b"),
    )  # fmt: skip
    wanted = (ops.Start("a", (0, 0)), lines[1], ops.Cache("a"), ops.Save("a"))
    assert shrink(Case(POOL, lines), lambda case: case.operations in (lines, wanted)).operations == wanted


def test_a_last_line_that_could_be_any_is_a_reset() -> None:
    lines = (ops.Start("a", ()), ops.Release("h"))
    assert shrink(Case(POOL, lines), lambda case: len(case.operations) > 0).operations == (ops.Reset(),)


def test_another_sequence_publishes_in_the_place_of_one() -> None:
    lines = (
        ops.Start("a", ()), ops.Allocate("a", 1), ops.Write("a", 1), ops.Deallocate("a"),
        ops.Start("b", ()), ops.Allocate("b", 1), ops.Write("b", 1), ops.Save("b"),
    )  # fmt: skip

    wanted = (*lines[4:7], ops.Cache("b"), lines[7])
    small = shrink(Case(POOL, lines), lambda case: case.operations in (lines, wanted))
    assert small.operations == wanted


HIT = {
    "restored": (ops.Allocate("b", 4), ops.Restore("b")),
    "being restored": (ops.Allocate("b", 4), ops.RestoreStart("b")),
    "shared": (ops.Allocate("b", 0), ops.AllocateShared("b")),
}


@pytest.mark.parametrize("hit", HIT.values(), ids=HIT)
def test_a_sequence_computes_what_it_has_hit(hit: tuple[AnyOperation, AnyOperation]) -> None:
    lines = (
        ops.Start("a", (0,) * 4), ops.Allocate("a", 4), ops.Write("a", 4), ops.Save("a"), ops.Deallocate("a"),
        ops.Start("b", (0,) * 4), *hit, ops.Save("b"),
    )  # fmt: skip
    room = (ops.Allocate("b", 3),) if isinstance(hit[1], ops.AllocateShared) else ()
    wanted = (lines[5], hit[0], *room, ops.Write("b", 3), ops.Save("b"))
    assert shrink(Case(POOL, lines), lambda case: case.operations in (lines, wanted)).operations == wanted


def test_a_rank_goes_with_the_sequence_that_was_in_the_way() -> None:
    pool = PoolConfig(num_blocks=2, block_size=1, num_single_blocks=2, num_ranks=3, num_state_slots=3)
    lines = (*(o for s in "abc" for o in (ops.Start(s, ()), ops.Allocate(s, 0))), ops.Save("c"))

    def fails(case: Case) -> bool:
        """One for each rank, and the last one is saved."""
        starts = [o.seq for o in case.operations if isinstance(o, ops.Start)]
        room = [o.seq for o in case.operations if isinstance(o, ops.Allocate)]
        return len(starts) == case.config.num_ranks and starts == room and ops.Save(starts[-1]) in case.operations

    small = shrink(Case(pool, lines), fails)
    assert small.config.num_ranks == 1 and kinds(small) == [ops.Start, ops.Allocate, ops.Save]


def test_each_sequence_has_a_name_of_its_own() -> None:
    lines = (
        ops.Start("a", ()), ops.Start("a", (1,)), ops.Fork("a", "b"), ops.Write("a", 1, (("b", 1),)), ops.Abort("b"),
        ops.Deallocate("a"), ops.Start("b", ()), ops.Fork("b", "a"), ops.Write("a", 1, (("b", 1),)), ops.Cache("a"),
    )  # fmt: skip
    assert list(renamed(lives(lines))) == [
        *lines[:6],
        ops.Start("c", ()),
        ops.Fork("c", "d"),
        ops.Write("d", 1, (("c", 1),)),
        ops.Cache("d"),
    ]


SHRINKS = """
import kvspec.model.operations as ops
from kvspec.model.conformance import Context, PoolConfig
from kvspec.model.shrink import Case, shrink
names = "alpha beta gamma delta".split()
lines = tuple(ops.Start(n, (5, 6, 7), Context(salt=n)) for n in names)
print(shrink(Case(PoolConfig(num_blocks=9, block_size=2), lines), lambda case: len(case.operations) > 1))
"""


def test_the_same_run_shrinks_to_the_same_lines_in_every_process() -> None:
    """Names are strings, and their order in a set is another one in each process."""
    seen = {
        subprocess.run(
            [sys.executable, "-c", SHRINKS], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "123"
    }
    assert len(seen) == 1


def test_values_and_pools_become_simple() -> None:
    start = ops.Start("s9", (5, 2**40, 7), Context(adapter="x", salt="y", images=("p", "q")))
    lines = (start, ops.Append("s9", (4, 4)), ops.Allocate("s9", 5), ops.Hold("s9", 1, "h7"))

    def fails(case: Case) -> bool:
        """Two tokens, some salt, room for two, a holder, and at least 3 blocks."""
        tokens = sum(len(o.tokens) for o in case.operations if isinstance(o, ops.Start | ops.Append))
        salted = any(isinstance(o, ops.Start) and o.context.salt for o in case.operations)
        room = any(isinstance(o, ops.Allocate) and o.num_tokens >= 2 for o in case.operations)
        return tokens >= 2 and salted and room and ops.Hold in kinds(case) and case.config.num_blocks >= 3

    small = shrink(Case(POOL, lines), fails)
    assert small.config == PoolConfig(num_blocks=3, block_size=1)
    assert small.operations == (
        ops.Start("a", (0, 0), Context(salt="y")),
        ops.Allocate("a", 2),
        ops.Hold("a", 0, "h1"),
    )


def test_steps_of_several_sequences_become_shorter() -> None:
    lines = (ops.Write("x", 4, (("y", 5), ("z", 6), ("x", 2))), ops.Write("z", 3))

    def fails(case: Case) -> bool:
        return any(isinstance(o, ops.Write) and len(o.batch) > 1 and o.batch[-1][1] > 1 for o in case.operations)

    assert shrink(Case(POOL, lines), fails).operations in (
        (ops.Write("a", 0, (("b", 2),)),),
        (ops.Write("a", 0, (("a", 2),)),),
    )


def test_tokens_that_must_stay_equal_become_smaller_together() -> None:
    lines = (ops.Start("a", (2**40, 8)), ops.Start("b", (2**40, 8)))

    def fails(case: Case) -> bool:
        starts = [o.tokens for o in case.operations if isinstance(o, ops.Start)]
        return len(starts) == 2 and starts[0] == starts[1] and len(set(starts[0])) == 2

    assert [o.tokens for o in shrink(Case(POOL, lines), fails).operations if isinstance(o, ops.Start)] in (
        [(0, 1), (0, 1)],
        [(1, 0), (1, 0)],
    )


def test_what_only_the_old_last_line_needed_goes_with_it() -> None:
    def fails(case: Case) -> bool:
        return kinds(case)[-1:] == [ops.Reset] or {ops.Start, ops.Allocate} <= set(kinds(case))

    assert kinds(shrink(Case(POOL, (ops.Start("a", (1,)), ops.Allocate("a", 1))), fails)) == [ops.Reset]


def test_the_time_is_bounded_and_the_best_so_far_is_kept() -> None:
    lines = noise(60)
    shrinker = Shrinker(Case(POOL, lines), lambda case: len(case.operations) > 3, seconds=0.0)
    shrinker.run()
    assert not shrinker.complete and shrinker.best.operations == lines and not shrinker.tries


def test_an_interruption_keeps_the_best_so_far() -> None:
    def fails(case: Case) -> bool:
        if len(case.operations) < 8:
            raise KeyboardInterrupt
        return True

    shrinker = Shrinker(Case(POOL, noise(60)), fails, seconds=20)
    shrinker.run()
    assert not shrinker.complete and 8 <= len(shrinker.best.operations) < 60


@given(seed=st.integers(0, 10_000), needed=st.lists(st.integers(0, 29), min_size=1, max_size=4, unique=True))
def test_any_lines_are_found_again(seed: int, needed: list[int]) -> None:
    lines = tuple(ops.Evict(100 + i) for i in range(30))
    wanted = {lines[i] for i in needed}
    small = shrink(Case(POOL, lines), lambda case: wanted <= set(case.operations))
    assert small.operations == tuple(lines[i] for i in sorted(needed))


@pytest.mark.parametrize("operation", [o for o in noise(80) if o.__struct_fields__])
def test_simpler_operations_are_of_the_same_kind_and_end(operation: AnyOperation) -> None:
    seen = 0
    at = [operation]
    while at:
        seen += 1
        assert seen < 500
        at = [next(iter(simpler(o))) for o in at if any(True for _ in simpler(o))]


def test_names_are_given_in_order() -> None:
    lines = (ops.Start("s7", (1,)), ops.Fork("s7", "ghost"), ops.Hold("ghost", 0, "h0"), ops.Release("zz"), ops.Reset())
    assert list(renamed(lines)) == [
        ops.Start("a", (1,)),
        ops.Fork("a", "b"),
        ops.Hold("b", 0, "h1"),
        ops.Release("h2"),
        ops.Reset(),
    ]
    many = [ops.Start(f"x{i}", ()) for i in range(60)]
    assert len({o.seq for o in renamed(many) if isinstance(o, ops.Start)}) == 60


def test_pools_of_a_source_do_not_depend_on_the_kind() -> None:
    assert pool_config(RandomSource(4)) == pool_config(RandomSource(4))
