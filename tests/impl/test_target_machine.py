"""Random lives of a small pool: every observation is compared with a plain account, every content with its tokens.

The same operations are drawn in two ways: by Hypothesis, whose failures shrink, and by a seeded generator with weights,
which gets deeper: to full pools, evictions, and hits after evictions.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from typing import Protocol, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.impl.prefix_cache import PrefixKeys, encode_context
from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import Context, MisuseError, PoolConfig, Tags

CONTEXTS = [Context()] * 8 + [Context(adapter="x"), Context(salt="x")]
NAMES = "abcde"
Chain = tuple[Context, tuple[int, ...]]
T = TypeVar("T")


class Draw(Protocol):
    """Where choices come from; `random.Random` is one."""

    def randint(self, a: int, b: int) -> int:
        """A number from a to b."""

    def choice(self, seq: list[T]) -> T:
        """One of some."""


class Drawn:
    """Choices of Hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data

    def randint(self, a: int, b: int) -> int:
        return self.data.draw(st.integers(a, b))

    def choice(self, seq: list[T]) -> T:
        return self.data.draw(st.sampled_from(seq))


class Account:
    """What the caller knows about a sequence."""

    def __init__(self, tokens: list[int], context: Context, computed: int = 0) -> None:
        self.tokens = tokens
        self.context = context
        self.computed = computed

    def chain(self, length: int) -> Chain:
        return self.context, tuple(self.tokens[:length])


class Pool:
    """A target and the account of it. Operations do nothing where there is nothing to do them on."""

    def __init__(self, config: PoolConfig, draw: Draw) -> None:
        self.config, self.block_size, self.draw = config, config.block_size, draw
        self.target = TorchTarget(config, heads=1, head_dim=1)
        self.accounts: dict[str, Account] = {}
        self.pins: dict[int, int] = {}
        self.tags: dict[Chain, int] = {}
        self.chains: dict[bytes, Chain] = {}
        self.mirror: dict[bytes, int] = {}
        self.seen: Counter[str] = Counter()
        """How often something happened that is worth having happened."""

    def run(self, operation: str) -> None:
        """One operation, then every check."""
        needs_sequence = operation not in ("start", "evict", "reset", "hold", "release")
        if not needs_sequence or self.accounts:
            getattr(self, operation)()
        for check in (
            self.counts_are_sizes,
            self.everybody_reads_his_own,
            self.keys_tell_the_truth,
            self.events_replay_to_the_map,
        ):
            check()

    # -- the account ---------------------------------------------------------------------------------------------------
    def contents(self, account: Account, start: int, stop: int) -> Tags:
        chains = [account.chain(position + 1) for position in range(start, stop)]
        numbers = [self.tags.setdefault(chain, (len(self.tags) + 1) * (2**24 + 1)) for chain in chains]
        return np.array(numbers, dtype=np.int64)

    def table(self, seq: str) -> list[int]:
        return list(self.target.block_table(seq))

    def shared(self, seq: str, stop: int) -> int:
        """Blocks of the table that tokens [computed, stop) lie in and that have other holders."""
        table, computed = self.table(seq), self.accounts[seq].computed
        touched = {position // self.block_size for position in range(computed, stop)}
        return sum(self.target.ref_count(table[index]) > 1 for index in touched if index < len(table))

    def state(self) -> tuple[object, ...]:
        return (
            self.target.manager_.free_ids(),
            [self.target.ref_count(block_id) for block_id in range(self.config.num_blocks)],
            dict(self.target.cached()),
            {seq: (self.table(seq), self.target.num_computed(seq)) for seq in self.accounts},
        )

    def available(self) -> int:
        idle = sum(self.target.ref_count(block_id) == 1 for block_id in self.target.cached().values())
        return self.target.free_count() + idle

    def known_chains(self) -> set[Chain]:
        return {self.chains[key] for key in self.target.cached()}

    # -- operations ----------------------------------------------------------------------------------------------------
    def some(self) -> tuple[str, Account]:
        seq = self.draw.choice(sorted(self.accounts))
        return seq, self.accounts[seq]

    def sometimes(self) -> bool:
        return self.draw.randint(0, 2) == 0

    # -- operations ----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Few different tokens, so that prefixes are shared; long sequences, so that blocks run out."""
        free_names = sorted(set(NAMES) - set(self.accounts))
        if not free_names:
            return
        tokens = [self.draw.choice([0] * 9 + [1]) for _ in range(self.draw.randint(0, 12))]
        seq, account = free_names[0], Account(tokens, self.draw.choice(CONTEXTS))
        self.target.start(seq, tokens[:], account.context)
        self.accounts[seq] = account
        if not self.sometimes():
            self.mount(seq, account)

    def match(self) -> None:
        seq, account = self.some()
        if not self.table(seq):
            self.mount(seq, account)

    def mount(self, seq: str, account: Account) -> None:
        """The hit is as long as the map and the limit allow."""
        known, limit = self.known_chains(), max(len(account.tokens) - 1, 0) // self.block_size
        expected = 0
        while expected < limit and account.chain((expected + 1) * self.block_size) in known:
            expected += 1
        account.computed = self.target.allocate_shared(seq)
        assert account.computed == expected * self.block_size
        self.seen["hit"] += expected > 0

    def step(self) -> None:
        """Room for some of the tokens, and a write of some of them."""
        seq, account = self.some()
        stop = self.draw.randint(0, len(account.tokens))
        if self.make_room(seq, stop):
            self.write_one(seq, self.draw.randint(min(account.computed, stop), stop))

    def forward(self) -> None:
        """Room for all known tokens, their write, and maybe their publication."""
        self.forward_one(self.some()[0])

    def forward_one(self, seq: str) -> None:
        account = self.accounts[seq]
        if self.make_room(seq, len(account.tokens)):
            self.write_one(seq, len(account.tokens))
            if self.sometimes():
                self.target.cache(seq)
                self.expect_published(account)

    def make_room(self, seq: str, stop: int) -> bool:
        """Allocate: granted exactly if the room is there, with no more evictions than it needs."""
        missing, shared = max(-(-stop // self.block_size) - len(self.table(seq)), 0), self.shared(seq, stop)
        need, before = missing + shared, self.state()
        free, keys, fits = self.target.free_count(), len(self.target.cached()), need <= self.available()
        assert self.target.allocate(seq, stop) == fits
        if not fits:
            assert self.state() == before
            self.seen["refusal"] += 1
            return False
        assert len(self.target.cached()) == keys - max(need - free, 0)
        self.seen["eviction"] += need > free
        self.seen["copy"] += shared > 0
        return True

    def write_one(self, seq: str, stop: int) -> None:
        """A write for which room was made must work."""
        account = self.accounts[seq]
        if stop > account.computed:
            self.target.write([(seq, self.contents(account, account.computed, stop))])
            account.computed = stop

    def write(self) -> None:
        """A batch that nobody prepared: written as a whole, or refused as a whole."""
        stops = {}
        for seq, account in self.accounts.items():
            room = min(len(self.table(seq)) * self.block_size, len(account.tokens))
            if room > account.computed and not self.sometimes():
                stops[seq] = self.draw.randint(account.computed, room)
        batch = [(seq, self.contents(self.accounts[seq], self.accounts[seq].computed, stops[seq])) for seq in stops]
        may_fail = any(self.shared(seq, stop) for seq, stop in stops.items())
        before = self.state()
        try:
            self.target.write(batch)
        except MisuseError:
            assert may_fail
            assert self.state() == before
            self.seen["spoiling write"] += 1
            return
        for seq, stop in stops.items():
            self.accounts[seq].computed = stop

    def append(self) -> None:
        self.append_to(self.some()[0])

    def append_to(self, seq: str) -> None:
        account = self.accounts[seq]
        if len(account.tokens) < 16:
            tokens = [self.draw.choice([0, 0, 1]) for _ in range(self.draw.randint(1, 3))]
            self.target.append(seq, tokens)
            account.tokens += tokens

    def cache(self) -> None:
        seq, account = self.some()
        self.target.cache(seq)
        self.expect_published(account)

    def leave(self) -> None:
        seq, account = self.some()
        how = self.draw.choice(["deallocate", "deallocate", "abort", "preempt"])
        getattr(self.target, how)(seq)
        if how == "deallocate":
            self.expect_published(account)
        account.computed = 0
        if how != "preempt":
            del self.accounts[seq]

    def fork(self) -> None:
        """A beam splits, and sometimes both parts go on at once."""
        parent, account = self.some()
        free_names = sorted(set(NAMES) - set(self.accounts))
        if not free_names:
            return
        child = free_names[0]
        self.target.fork(parent, child)
        self.accounts[child] = Account(account.tokens[:], account.context, account.computed)
        assert self.table(child) == self.table(parent)
        for seq in (parent, child):
            if self.sometimes():
                self.append_to(seq)
                self.forward_one(seq)

    def truncate(self) -> None:
        """Drafts are rejected, and sometimes other tokens take their place."""
        seq, account = self.some()
        length = max(len(account.tokens) - self.draw.randint(0, 5), 0)
        kept = self.table(seq)[: -(-length // self.block_size)]
        self.target.truncate(seq, length)
        del account.tokens[length:]
        account.computed = min(account.computed, length)
        assert self.table(seq) == kept
        if self.sometimes():
            self.append_to(seq)

    def evict(self) -> None:
        if self.sometimes() and self.sometimes():
            assert self.target.reset()
            assert self.target.cached() == {}
            return
        count, free = self.draw.randint(0, 3), self.target.free_count()
        idle = self.available() - free
        assert self.target.evict(count) == min(count, idle)
        assert self.target.free_count() == free + min(count, idle)

    def hold(self) -> None:
        live = sorted(set(range(1, self.config.num_blocks)) - self.target.free_ids())
        if live and len(self.pins) < 2:
            block_id = self.draw.choice(live)
            self.pins[self.target.hold(block_id)] = block_id

    def release(self) -> None:
        if self.pins:
            handle = self.draw.choice(sorted(self.pins))
            self.target.release(handle)
            del self.pins[handle]

    def expect_published(self, account: Account) -> None:
        self.learn(account)
        if self.config.enable_prefix_cache:
            full = account.computed // self.block_size
            assert {account.chain((n + 1) * self.block_size) for n in range(full)} <= self.known_chains()

    def learn(self, account: Account) -> None:
        """The keys of an account's chains, so that the map can be read."""
        context = account.context
        encoded = encode_context(context.adapter, context.adapter_version, context.salt, context.images)
        keys, full = PrefixKeys(self.block_size, encoded), account.computed // self.block_size
        keys.extend(array("q", account.tokens), full)
        self.chains.update({key: account.chain((n + 1) * self.block_size) for n, key in enumerate(keys.chain)})

    # -- what must hold ------------------------------------------------------------------------------------------------
    def counts_are_sizes(self) -> None:
        target, usable = self.target, set(range(1, self.config.num_blocks))
        tables = [self.table(seq) for seq in self.accounts]
        holders = Counter(block_id for table in tables for block_id in table)
        used = len(holders)
        holders.update(target.cached().values())
        holders.update(self.pins.values())
        assert {block_id: target.ref_count(block_id) for block_id in usable} == {b: holders[b] for b in usable}
        assert target.free_ids() == usable - set(holders)
        assert target.free_count() == len(target.manager_.free_ids()) == len(target.free_ids())
        assert target.used_count() == used
        assert all(len(set(table)) == len(table) for table in tables)

    def everybody_reads_his_own(self) -> None:
        for seq, account in self.accounts.items():
            assert self.target.num_computed(seq) == account.computed
            found = self.target.read(seq, 0, account.computed)
            assert found.tolist() == self.contents(account, 0, account.computed).tolist()

    def keys_tell_the_truth(self) -> None:
        for key, block_id in self.target.cached().items():
            context, tokens = self.chains[key]
            found = self.target.buffers_.read_tags(array("q", [block_id]), 0, self.block_size)
            expected = self.contents(Account(list(tokens), context), len(tokens) - self.block_size, len(tokens))
            assert found.tolist() == expected.tolist()

    def events_replay_to_the_map(self) -> None:
        for event in self.target.drain_events():
            if event.kind == "stored":
                assert event.key not in self.mirror
                self.mirror[event.key] = event.block_id
            else:
                assert self.mirror.pop(event.key) == event.block_id
        assert self.mirror == self.target.cached()

    def drain(self) -> None:
        """After the last sequence, pin and key everything is free."""
        for seq in self.accounts:
            self.target.abort(seq)
        assert self.target.used_count() == 0
        for handle in self.pins:
            self.target.release(handle)
        assert self.available() == self.config.num_blocks - 1
        self.target.reset()
        assert self.target.free_ids() == set(range(1, self.config.num_blocks))
        sanitizer = self.target.sanitizer_
        self.target.close()
        assert sanitizer is None or sanitizer.is_clean


WEIGHTS = {
    "start": 8,
    "match": 2,
    "step": 3,
    "forward": 12,
    "write": 3,
    "append": 6,
    "cache": 3,
    "leave": 5,
    "fork": 5,
    "truncate": 3,
    "evict": 1,
    "hold": 1,
    "release": 2,
}
OPERATIONS = [name for name, weight in WEIGHTS.items() for _ in range(weight)]


@given(
    st.builds(
        PoolConfig,
        num_blocks=st.integers(2, 12),
        block_size=st.integers(1, 3),
        sanitizer=st.booleans(),
        enable_prefix_cache=st.sampled_from([True, True, False]),
    ),
    st.lists(st.sampled_from(OPERATIONS), max_size=40),
    st.data(),
)
def test_any_life_of_a_pool(config: PoolConfig, operations: list[str], data: st.DataObject) -> None:
    pool = Pool(config, Drawn(data))
    for operation in operations:
        pool.run(operation)
    pool.drain()


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_long_lives_of_a_pool(block_size: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(8):
        draw = random.Random(seed)
        config = PoolConfig(num_blocks=draw.randint(24, 40) // block_size, block_size=block_size, sanitizer=seed > 3)
        pool = Pool(config, draw)
        for _ in range(500):
            pool.run(draw.choice(OPERATIONS))
        pool.drain()
        seen += pool.seen
    wanted = ["hit", "refusal", "eviction", "copy", "spoiling write"]
    rare = [event for event in wanted if seen[event] < 5 and not (block_size == 1 and event in wanted[3:])]
    assert not rare, f"these hardly occur: {seen}"
