"""The target of a pool: states move with their tokens, checkpoints hold what they say, misuse changes nothing.

Names in brackets are field cases. Random lives compare every observation with what the caller knows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from small_pools import of_pool

from kvspec.impl.buffers import GUARD
from kvspec.impl.errors import ContentError, InvalidRangeError
from kvspec.impl.pool_target import TorchPoolTarget
from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import (
    OF_VARIANTS,
    Capability,
    Context,
    MisuseError,
    PoolConfig,
    PoolTarget,
    Tags,
    advance,
    checked_target,
)


def tags(tokens: Sequence[int]) -> Tags:
    """The content of each token: a number for the prefix up to it, of which both halves are used."""
    found, prefix = [], 17
    for token in tokens:
        prefix = (prefix * 6364136223846793005 + token + 1) % 2**48
        found.append(prefix)
    return np.array(found, dtype=np.int64)


class Driver:
    """A target, and what its sequences should contain."""

    def __init__(self, num_blocks: int = 16, block_size: int = 2, **options: Any) -> None:
        options = {"num_single_blocks": 6, "num_state_slots": 8, "sanitizer": True} | options
        self.config = PoolConfig(num_blocks=num_blocks, block_size=block_size, **options)
        self.target = TorchPoolTarget(self.config, layers=2)
        self.tokens: dict[str, list[int]] = {}

    def start(self, seq: str, tokens: Sequence[int]) -> None:
        self.tokens[seq] = list(tokens)
        self.target.start(seq, tokens, Context())

    def waits(self, seq: str) -> bool:
        return self.target._sequences[seq].is_waiting

    def restore(self, seq: str) -> None:
        if self.waits(seq):
            self.target.restore_start(seq)
            self.target.restore_finish(seq, True)

    def save(self, seq: str) -> bool:
        started = self.target.save_start(seq)
        if started:
            self.target.save_finish(seq, True)
        return started

    def step(self, seq: str, stop: int) -> None:
        """Write the tokens up to stop at once."""
        assert self.target.allocate(seq, stop)
        self.restore(seq)
        self.target.write([(seq, tags(self.tokens[seq])[self.target.num_computed(seq) : stop])])

    def run(self, seq: str, tokens: Sequence[int]) -> None:
        """Start and write all, with a checkpoint at each boundary."""
        self.start(seq, tokens)
        assert self.target.allocate(seq, 0)
        stride = self.config.stride
        while (computed := self.target.num_computed(seq)) < len(tokens):
            self.step(seq, min(len(tokens), (computed // stride + 1) * stride))
            if self.config.has_linear_state:
                self.save(seq)

    def done(self, seq: str, tokens: Sequence[int]) -> None:
        self.run(seq, tokens)
        self.target.deallocate(seq)

    def is_right(self, seq: str) -> bool:
        """The sequence reads its own contents and has the state of its computed tokens."""
        computed = self.target.num_computed(seq)
        own = tags(self.tokens[seq])[:computed]
        if self.target.read(seq, 0, computed).tolist() != own.tolist():
            return False
        slot = self.target.state_slot(seq)
        return slot is None or self.waits(seq) or self.target.state(seq) == advance(0, own)

    def observed(self) -> tuple[object, ...]:
        """All that can be seen, and every cell."""
        target = self.target
        target_state = of_pool(target.pool_, *target._sequences.values())
        memory = [part for b in target.buffers_ for part in [b.storage_]]
        memory += [part for s in target.states_ for part in (s.recurrent_, s.convolution_)]
        return target_state, sorted(target._sequences), [m.nan_to_num(-5.0).tolist() for m in memory]

    def is_clean(self) -> bool:
        return all(sanitizer.is_clean for sanitizer in self.target.sanitizers())


def refused(call: Callable[[], object], driver: Driver, match: str) -> None:
    """The call is misuse, says so, and changes nothing."""
    for rank in range(driver.config.num_ranks):
        driver.target._settle(rank)
    before = driver.observed()
    with pytest.raises(MisuseError, match=match):
        call()
    assert driver.observed() == before


def test_it_is_a_target_of_pools() -> None:
    config = PoolConfig(num_blocks=4, block_size=2, num_single_blocks=2)
    target: PoolTarget = TorchPoolTarget(config)
    assert checked_target(TorchPoolTarget, config).hit_limit == "all_but_one"
    assert frozenset(Capability) - target.capabilities == OF_VARIANTS | {Capability.FORK}


def test_each_target_refuses_the_other_kind_of_config() -> None:
    with pytest.raises(InvalidRangeError, match="TorchTarget: a config of a pool of ranks; expected one of a manager"):
        TorchTarget(PoolConfig(num_blocks=4, block_size=2, num_single_blocks=2))
    with pytest.raises(InvalidRangeError, match="TorchPoolTarget: a config of a manager"):
        TorchPoolTarget(PoolConfig(num_blocks=4, block_size=2))


# -- states ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cut", range(8))
def test_a_state_does_not_depend_on_how_steps_are_cut(cut: int) -> None:
    driver = Driver()
    driver.start("a", range(7))
    assert driver.target.allocate("a", 7)
    assert driver.target.state("a") == 0
    driver.step("a", cut)
    driver.step("a", 7)
    assert driver.target.state("a") == advance(0, tags(range(7)))


def test_a_batch_moves_every_state_once_on_its_rank() -> None:
    driver = Driver(num_ranks=3)
    for number, seq in enumerate("abcdef"):
        driver.start(seq, range(10 * number, 10 * number + 4))
        assert driver.target.allocate(seq, 4)
    assert sorted(Counter(driver.target.rank(seq) for seq in "abcdef").values()) == [2, 2, 2]
    driver.target.write([(seq, tags(driver.tokens[seq])[:3]) for seq in "fdbeca"])
    assert all(driver.is_right(seq) and driver.target.num_computed(seq) == 3 for seq in "abcdef")


def test_a_resumed_sequence_has_the_state_of_its_prefix() -> None:
    driver = Driver()
    driver.done("a", range(7))
    driver.start("b", [*range(5), 77, 78])
    assert driver.target.allocate_shared("b") == 4
    driver.restore("b")
    assert driver.target.state("b") == advance(0, tags(range(4)))
    driver.step("b", 7)
    assert driver.is_right("b")


def test_the_last_token_is_never_hit() -> None:
    """[B46] All tokens are cached and have a checkpoint; the last block is computed anew, from the state before it."""
    driver = Driver()
    driver.done("a", range(4))
    assert len(driver.target.checkpoints(0)) == 2
    driver.start("b", range(4))
    assert driver.target.allocate("b", 4)
    assert driver.target.num_computed("b") == 2
    driver.step("b", 4)
    assert driver.is_right("b")


def test_no_step_before_the_restore() -> None:
    """[B47]"""
    driver = Driver()
    driver.done("a", range(5))
    driver.start("b", range(6))
    assert driver.target.allocate("b", 6)
    refused(lambda: driver.target.write([("b", tags(range(6))[4:])]), driver, "'b' waits for a restore")
    refused(lambda: driver.target.state("b"), driver, "'b' waits")
    driver.target.restore_start("b")
    refused(lambda: driver.target.write([("b", tags(range(6))[4:])]), driver, "waits")
    driver.target.restore_finish("b", False)
    refused(lambda: driver.target.write([("b", tags(range(6))[4:])]), driver, "waits")
    driver.step("b", 6)
    assert driver.is_right("b")


def test_no_step_while_a_copy_runs() -> None:
    driver = Driver()
    driver.start("a", range(6))
    driver.step("a", 4)
    assert driver.target.save_start("a")
    assert driver.target.allocate("a", 6)
    refused(lambda: driver.target.write([("a", tags(range(6))[4:])]), driver, "'a' is being saved")
    assert driver.target.checkpoints(0) == {}
    driver.target.save_finish("a", True)
    driver.step("a", 6)
    assert len(driver.target.checkpoints(0)) == 1


@pytest.mark.parametrize("copy", ["save", "restore"])
def test_nothing_can_be_read_where_a_copy_goes(copy: str) -> None:
    driver = Driver()
    driver.done("a", range(3))
    driver.start("b", range(5))
    assert driver.target.allocate("b", 5)
    if copy == "save":
        driver.step("b", 4)
        assert driver.target.save_start("b")
        saving = driver.target._sequences["b"].saving_
        assert saving is not None
        slot = saving.slot
    else:
        driver.target.restore_start("b")
        live = driver.target.state_slot("b")
        assert live is not None
        slot = live
    with pytest.raises(ContentError):
        driver.target.states_[0].read_tags([slot])


def test_a_slot_starts_from_zero_whoever_had_it() -> None:
    """[B43] The only usable slot goes from one to the next."""
    for sanitizer in (False, True):
        driver = Driver(num_state_slots=2, sanitizer=sanitizer)
        for seq in "abc":
            driver.start(seq, [ord(seq)] * 5)
            assert driver.target.allocate(seq, 5)
            assert (driver.target.state_slot(seq), driver.target.state(seq)) == (1, 0)
            driver.step(seq, 5)
            assert driver.is_right(seq)
            driver.target.deallocate(seq)


def test_a_checkpoint_that_gave_way_and_came_back_holds_its_state() -> None:
    """A refused call evicts for its slot and undoes it; the checkpoint can be restored from as before."""
    driver = Driver(num_blocks=6, num_state_slots=3)
    driver.done("a", range(3))
    driver.start("big", range(50, 60))
    driver.run("b", [30])
    assert driver.target.free_state_slots(0) == set()
    before = driver.observed()
    assert not driver.target.allocate("big", 10)
    assert driver.observed() == before
    driver.target.abort("big")
    driver.target.abort("b")
    driver.start("c", range(3))
    assert driver.target.allocate_shared("c") == 2
    driver.step("c", 3)
    assert driver.is_right("c")
    assert driver.is_clean()


def test_truncated_tokens_leave_the_state() -> None:
    driver = Driver()
    driver.run("a", range(8))
    for length in (7, 5, 1):
        driver.target.truncate("a", length)
        del driver.tokens["a"][length:]
        more = [90 + length, 91, 92]
        driver.tokens["a"] += more
        driver.target.append("a", more)
        driver.step("a", len(driver.tokens["a"]))
        assert driver.is_right("a")


def test_poison_reaches_freed_states() -> None:
    driver = Driver()
    driver.run("a", range(4))
    slot = driver.target.state_slot("a")
    assert slot is not None
    driver.target.abort("a")
    driver.target._settle(0)
    with pytest.raises(ContentError, match=f"slot {slot}"):
        driver.target.states_[0].read_tags([slot])


def test_a_write_to_padding_is_found() -> None:
    for kind in ("buffers_", "states_"):
        driver = Driver()
        memory = getattr(driver.target, kind)[0]
        part = memory.storage_[0, 0, 0] if kind == "buffers_" else memory.recurrent_[0, 0]
        assert float(part.view(-1)[0]) == GUARD
        part.fill_(3.0)
        driver.run("a", range(3))
        assert not driver.is_clean()


# -- ranks and observations --------------------------------------------------------------------------------------------
def test_what_a_sequence_has() -> None:
    driver = Driver(num_ranks=2)
    target = driver.target
    driver.start("a", range(3))
    assert (target.rank("a"), target.single_block("a"), target.state_slot("a")) == (None, None, None)
    driver.step("a", 3)
    assert (target.rank("a"), target.single_block("a"), target.state_slot("a")) == (0, 1, 1)
    assert (target.free_single_blocks(0), target.free_single_blocks(1)) == ({2, 3, 4, 5}, {1, 2, 3, 4, 5})
    assert (target.free_state_slots(0), target.free_state_slots(1)) == (set(range(2, 8)), set(range(1, 8)))
    assert (target.used_count(0), target.used_count(1), target.free_count(1)) == (2, 0, 15)
    target.preempt("a")
    assert (target.rank("a"), target.single_block("a"), target.state_slot("a")) == (0, None, None)


def test_keys_and_checkpoints_have_the_same_names() -> None:
    driver = Driver(checkpoint_interval=4)
    driver.done("a", range(9))
    cached, checkpoints = driver.target.cached(0), driver.target.checkpoints(0)
    assert len(cached) == 4
    assert list(checkpoints) == [key for index, key in enumerate(cached) if index % 2]
    assert [event.key for event in driver.target.drain_events(0)] == list(cached)
    assert driver.target.drain_events(0) == []


def test_without_states_a_pool_shows_none() -> None:
    driver = Driver(num_state_slots=0)
    driver.run("a", range(5))
    assert driver.target.state_slot("a") is None
    assert (driver.target.free_state_slots(0), driver.target.checkpoints(0)) == (set(), {})
    refused(lambda: driver.target.state("a"), driver, "no live slot")
    refused(lambda: driver.target.save_start("a"), driver, "no live slot")


def test_evict_reset_and_holders_are_those_of_a_rank() -> None:
    driver = Driver(num_ranks=2)
    target = driver.target
    driver.done("a", range(5))
    driver.run("b", range(5))
    target.cache("b")
    assert (target.rank("b"), len(target.cached(0)), len(target.cached(1))) == (1, 2, 2)
    handle = target.hold(target.block_table("b")[0], 1)
    target.deallocate("b")
    assert (target.evict(9, 1), len(target.cached(1)), len(target.cached(0))) == (1, 1, 2)
    assert target.reset()
    assert (target.cached(0), target.cached(1), target.checkpoints(0), target.checkpoints(1)) == ({}, {}, {}, {})
    assert (target.free_count(0), target.free_count(1)) == (15, 14)
    target.release(handle)
    assert target.free_count(1) == 15


# -- misuse ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rank", [-1, 2])
def test_an_unknown_rank_is_misuse(rank: int) -> None:
    driver = Driver(num_ranks=2)
    driver.run("a", range(3))
    target = driver.target
    calls: list[Callable[[], object]] = [
        lambda: target.free_single_blocks(rank), lambda: target.free_state_slots(rank),
        lambda: target.checkpoints(rank), lambda: target.free_ids(rank), lambda: target.free_count(rank),
        lambda: target.used_count(rank), lambda: target.ref_count(1, rank), lambda: target.cached(rank),
        lambda: target.drain_events(rank), lambda: target.hold(1, rank), lambda: target.evict(1, rank),
    ]  # fmt: skip
    for call in calls:
        refused(call, driver, f"rank {rank}")


def test_a_name_that_nobody_has_is_misuse() -> None:
    driver = Driver()
    driver.done("a", range(3))
    target = driver.target
    calls: dict[str, Callable[[], object]] = {
        "allocate": lambda: target.allocate("a", 1), "allocate_shared": lambda: target.allocate_shared("a"),
        "append": lambda: target.append("a", [1]), "write": lambda: target.write([("a", tags([1]))]),
        "read": lambda: target.read("a", 0, 0), "cache": lambda: target.cache("a"),
        "deallocate": lambda: target.deallocate("a"), "preempt": lambda: target.preempt("a"),
        "abort": lambda: target.abort("a"), "truncate": lambda: target.truncate("a", 0),
        "save_start": lambda: target.save_start("a"), "save_finish": lambda: target.save_finish("a", True),
        "restore_start": lambda: target.restore_start("a"), "restore_finish": lambda: target.restore_finish("a", True),
        "rank": lambda: target.rank("a"), "single_block": lambda: target.single_block("a"),
        "state_slot": lambda: target.state_slot("a"), "state": lambda: target.state("a"),
        "block_table": lambda: target.block_table("a"), "num_computed": lambda: target.num_computed("a"),
    }  # fmt: skip
    for name, call in calls.items():
        refused(call, driver, f"TorchPoolTarget.{name}: no sequence 'a'")


def test_an_impossible_part_of_a_batch_refuses_all_of_it() -> None:
    driver = Driver(num_ranks=2)
    target = driver.target
    for seq in "ab":
        driver.start(seq, range(5))
        assert target.allocate(seq, 4)
    assert {target.rank(seq) for seq in "ab"} == {0, 1}
    good = tags(range(5))
    for bad, match in [
        (("b", good), "at most 4"), (("b", np.array([2**48])), "tags"), (("b", np.array([-1])), "tags"),
        (("a", good[:1]), "twice"), (("x", good[:1]), "no sequence"), (("b", np.array([0.5])), "integers"),
    ]:  # fmt: skip
        refused(lambda bad=bad: target.write([("a", good[:3]), bad]), driver, match)  # type: ignore[misc]
    target.write([("a", good[:3]), ("b", good[:0])])
    assert driver.is_right("a") and target.num_computed("b") == 0


def test_other_misuse() -> None:
    driver = Driver()
    driver.run("a", range(5))
    target = driver.target
    driver.start("new", range(3))
    for call, match in [
        (lambda: target.start("a", [1], Context()), "exists"),
        (lambda: target.fork("a", "b"), "no fork"),
        (lambda: target.allocate("a", 4), "at least the 5 computed"),
        (lambda: target.allocate("a", 6), "0 to 5 known"),
        (lambda: target.allocate("new", -1), "0 to 3 known"),
        (lambda: target.allocate_shared("a"), "empty table"),
        (lambda: target.truncate("a", 6), "0 to 5 known"),
        (lambda: target.append("a", [-1]), "token id -1"),
        (lambda: target.read("a", 2, 6), "computed"),
        (lambda: target.evict(-1), "-1 blocks"),
        (lambda: target.hold(0), "padding"),
        (lambda: target.hold(16), "block 16"),
        (lambda: target.release(1), "handle 1"),
        (lambda: target.save_finish("a", True), "save that has begun"),
        (lambda: target.restore_start("a"), "waits"),
        (lambda: target.restore_finish("a", True), "restore that has begun"),
        (lambda: target.save_start("new"), "no live slot"),
        (lambda: target.state("new"), "no live slot"),
    ]:
        refused(call, driver, match)


def test_after_close_everything_is_misuse() -> None:
    driver = Driver(num_ranks=2)
    driver.done("a", range(5))
    driver.run("b", range(7))
    assert driver.target.allocate("b", 7)
    driver.target.hold(driver.target.block_table("b")[0], 1)
    driver.target.close()
    assert driver.is_clean()
    for call in (driver.target.close, driver.target.reset, lambda: driver.target.free_ids(0)):
        with pytest.raises(MisuseError, match="closed"):
            call()


# -- random lives ------------------------------------------------------------------------------------------------------
class Lives:
    """A small pool on which operations are drawn; after each one everybody has his own, and every slot one owner."""

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        self.draw = random.Random(seed)
        self.driver = Driver(**config)
        self.target = self.driver.target
        self.names = 0
        self.holds: list[int] = []
        self.seen: Counter[str] = Counter()
        self.states: dict[bytes, int] = {}
        """State behind the tokens of each key that was ever published."""

    def run(self, steps: int) -> None:
        for step in range(steps):
            operation = self.draw.choice(OPERATIONS)
            if operation in ("start", "evict", "reset", "let_go") or self.driver.tokens:
                getattr(self, operation)()
            self.check(contents=not step % 3)
        for seq in list(self.driver.tokens):
            self.end(seq, "abort")
        while self.holds:
            self.let_go()
        self.target.reset()
        for rank in range(self.driver.config.num_ranks):
            assert self.target.free_count(rank) == self.driver.config.num_blocks - 1
            assert len(self.target.free_single_blocks(rank)) == self.driver.config.num_single_blocks - 1
            assert len(self.target.free_state_slots(rank)) == max(self.driver.config.num_state_slots - 1, 0)
        assert self.driver.is_clean()

    # -- operations ----------------------------------------------------------------------------------------------------
    def some(self) -> str:
        return self.draw.choice(sorted(self.driver.tokens))

    def start(self) -> None:
        if len(self.driver.tokens) < 4:
            self.names += 1
            tokens = [self.draw.choice([0] * 19 + [1]) for _ in range(self.draw.randint(0, 16))]
            self.driver.start(f"s{self.names}", tokens)
            if self.draw.random() < 0.5:
                self.seen["hit"] += self.target.allocate_shared(f"s{self.names}") > 0

    def allocate(self) -> None:
        seq = self.some()
        known, computed = len(self.driver.tokens[seq]), self.target.num_computed(seq)
        before = of_pool(self.target.pool_, *self.target._sequences.values())
        if self.target.allocate(seq, self.draw.choice([known, self.draw.randint(computed, known)])):
            self.seen["granted"] += 1
        else:
            self.seen["refused"] += 1
            assert of_pool(self.target.pool_, *self.target._sequences.values()) == before

    def write(self) -> None:
        batch = []
        for seq in self.draw.sample(sorted(self.driver.tokens), self.draw.randint(1, len(self.driver.tokens))):
            sequence = self.target._sequences[seq]
            room = min(sequence.room, len(sequence.tokens_))
            if sequence.is_waiting or sequence.is_saving or room <= sequence.computed_:
                continue
            stop = self.stop(sequence.computed_, room)
            if sequence.forbidden_indices(stop):
                assert self.target.allocate(seq, stop) or stop > sequence.computed_
                if sequence.forbidden_indices(stop):
                    continue
            batch.append((seq, tags(self.driver.tokens[seq])[sequence.computed_ : stop]))
        self.target.write(batch)
        self.seen["write"] += len(batch)

    def stop(self, computed: int, room: int) -> int:
        """Where a step ends: mostly at the next boundary, so that it can be saved."""
        stride = self.driver.config.stride
        boundary = (computed // stride + 1) * stride
        return boundary if boundary <= room and self.draw.random() < 0.7 else self.draw.randint(computed, room)

    def append(self) -> None:
        seq = self.some()
        if len(self.driver.tokens[seq]) < 16:
            more = [self.draw.choice([0, 0, 1]) for _ in range(self.draw.randint(1, 3))]
            self.driver.tokens[seq] += more
            self.target.append(seq, more)

    def save(self) -> None:
        seq = self.some()
        sequence = self.target._sequences[seq]
        if sequence.is_saving:
            self.target.save_finish(seq, self.draw.random() < 0.8)
        elif sequence.linear_state_slot_ is not None and not sequence.is_waiting:
            self.seen["save"] += self.target.save_start(seq)

    def restore(self) -> None:
        seq = self.some()
        sequence = self.target._sequences[seq]
        if sequence.restoring_:
            ok = self.draw.random() < 0.8
            self.target.restore_finish(seq, ok)
            self.seen["restored"] += ok
        elif sequence.is_waiting:
            self.target.restore_start(seq)

    def cache(self) -> None:
        self.target.cache(self.some())

    def truncate(self) -> None:
        seq = self.some()
        length = self.draw.randint(0, len(self.driver.tokens[seq]))
        computed = self.target.num_computed(seq)
        length = length if self.draw.random() < 0.2 else max(len(self.driver.tokens[seq]) - 1, 0)
        self.target.truncate(seq, length)
        del self.driver.tokens[seq][length:]
        self.seen["rejected"] += self.target.num_computed(seq) < computed

    def preempt(self) -> None:
        if self.draw.random() < 0.5:
            self.target.preempt(self.some())

    def finish(self) -> None:
        self.end(self.some(), self.draw.choice(["deallocate", "deallocate", "abort"]))

    def end(self, seq: str, how: str) -> None:
        getattr(self.target, how)(seq)
        del self.driver.tokens[seq]

    def evict(self) -> None:
        rank = self.draw.randrange(self.driver.config.num_ranks)
        self.seen["evicted"] += self.target.evict(self.draw.randint(0, 3), rank)

    def reset(self) -> None:
        if self.draw.random() < 0.3:
            self.target.reset()

    def hold(self) -> None:
        seq = self.some()
        if self.target.block_table(seq):
            rank = self.target.rank(seq)
            assert rank is not None
            self.holds.append(self.target.hold(self.draw.choice(list(self.target.block_table(seq))), rank))

    def let_go(self) -> None:
        if self.holds:
            self.target.release(self.holds.pop(self.draw.randrange(len(self.holds))))

    # -- checks --------------------------------------------------------------------------------------------------------
    def check(self, contents: bool) -> None:
        self.learn()
        for rank in range(self.driver.config.num_ranks):
            self.every_id_has_one_owner(rank)
            if contents:
                self.checkpoints_are_true(rank)
        assert not contents or all(self.driver.is_right(seq) for seq in self.driver.tokens)

    def learn(self) -> None:
        for seq, sequence in self.target._sequences.items():
            own = tags(self.driver.tokens[seq])
            for index, key in enumerate(sequence.keys_.chain):
                self.states[key] = advance(0, own[: (index + 1) * self.driver.config.block_size])

    def every_id_has_one_owner(self, rank: int) -> None:
        here = [s for s in self.target._sequences.values() if s.dp_rank_ == rank]
        singles = [s.single_block_.id for s in here if s.single_block_ is not None]
        assert sorted([*singles, *self.target.free_single_blocks(rank)]) == list(
            range(1, self.driver.config.num_single_blocks)
        )
        live = [s.linear_state_slot_.id for s in here if s.linear_state_slot_ is not None]
        pending = [s.saving_.slot for s in here if s.saving_ is not None]
        committed = list(self.target.checkpoints(rank).values())
        slots = [*live, *pending, *committed, *self.target.free_state_slots(rank)]
        assert sorted(slots) == list(range(1, self.driver.config.num_state_slots))
        held = {block for s in here for block in s.kv_state_.ids_}
        assert self.target.used_count(rank) == len(held)
        assert not held & self.target.free_ids(rank) and 0 not in held

    def checkpoints_are_true(self, rank: int) -> None:
        checkpoints = self.target.checkpoints(rank)
        if checkpoints:
            found = self.target.states_[rank].read_tags(list(checkpoints.values())).tolist()
            assert found == [self.states[key] for key in checkpoints]


OPERATIONS = [
    *["start"] * 5, *["allocate"] * 7, *["write"] * 12, *["append"] * 2, *["save"] * 12, *["restore"] * 5, "cache",
    "truncate", "preempt", *["finish"] * 2, "evict", "reset", "hold", *["let_go"] * 2,
]  # fmt: skip

# fmt: off
CONFIGS: dict[str, dict[str, Any]] = {
    "states": {"num_blocks": 18, "num_single_blocks": 4, "num_state_slots": 9},
    "deepest": {"num_blocks": 12, "num_single_blocks": 4, "num_state_slots": 6, "trim": "deepest", "block_size": 1},
    "ranks": {"num_blocks": 8, "num_single_blocks": 3, "num_state_slots": 5, "num_ranks": 2, "trim": "deepest"},
    "intervals": {
        "num_blocks": 14, "num_single_blocks": 4, "num_state_slots": 6, "checkpoint_interval": 3, "block_size": 1,
    },
    "no states": {"num_blocks": 7, "num_single_blocks": 3, "num_state_slots": 0, "num_ranks": 2, "block_size": 3},
    "no cache": {"num_blocks": 9, "num_single_blocks": 4, "num_state_slots": 4, "enable_prefix_cache": False},
}
# fmt: on
MET: dict[str, set[str]] = {
    "states": {"hit", "granted", "refused", "write", "save", "restored", "rejected", "evicted"},
    "deepest": {"hit", "granted", "refused", "write", "save", "restored", "rejected", "evicted"},
    "ranks": {"hit", "granted", "refused", "write", "save", "restored", "rejected", "evicted"},
    "intervals": {"granted", "refused", "write", "save", "restored", "rejected", "evicted"},
    "no states": {"hit", "granted", "refused", "write", "rejected", "evicted"},
    "no cache": {"granted", "refused", "write", "rejected"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_random_lives(name: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(5):
        lives = Lives(CONFIGS[name], seed)
        lives.run(600)
        seen += lives.seen
    assert {what for what in MET[name] if seen[what] < 3} == set(), seen
