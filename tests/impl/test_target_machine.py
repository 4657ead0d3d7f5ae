"""Random lives of a small pool: every observation is compared with a plain account, every content with its tokens."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvspec.impl.prefix_cache import PrefixKeys, encode_context
from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import Context, MisuseError, PoolConfig, Tags

CONTEXTS = (Context(), Context(adapter="x"), Context(salt="x"))
TOKENS = st.lists(st.integers(0, 1), max_size=7)
NAMES = "abcd"
Chain = tuple[Context, tuple[int, ...]]


class Account:
    """What the caller knows about a sequence."""

    def __init__(self, tokens: list[int], context: Context, computed: int = 0) -> None:
        self.tokens = tokens
        self.context = context
        self.computed = computed

    def chain(self, length: int) -> Chain:
        return self.context, tuple(self.tokens[:length])


RUNNING = precondition(lambda self: self.accounts)


class Pool(RuleBasedStateMachine):
    """Rules are the operations of the protocol, called with and without sense."""

    def __init__(self) -> None:
        super().__init__()
        self.accounts: dict[str, Account] = {}
        self.pins: dict[int, int] = {}
        self.tags: dict[Chain, int] = {}
        self.chains: dict[bytes, Chain] = {}
        self.mirror: dict[bytes, int] = {}

    @initialize(
        num_blocks=st.integers(2, 8),
        block_size=st.integers(1, 3),
        sanitizer=st.booleans(),
        cache=st.sampled_from([1, 1, 0]),
    )
    def make(self, num_blocks: int, block_size: int, sanitizer: bool, cache: int) -> None:
        config = PoolConfig(
            num_blocks=num_blocks, block_size=block_size, sanitizer=sanitizer, enable_prefix_cache=bool(cache)
        )
        self.config, self.block_size = config, block_size
        self.target = TorchTarget(config, heads=1, head_dim=1)

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
    def some(self, data: st.DataObject) -> tuple[str, Account]:
        seq = data.draw(st.sampled_from(sorted(self.accounts)))
        return seq, self.accounts[seq]

    @precondition(lambda self: len(self.accounts) < len(NAMES))
    @rule(tokens=TOKENS, context=st.sampled_from(CONTEXTS), match=st.booleans())
    def start(self, tokens: list[int], context: Context, match: bool) -> None:
        seq = min(set(NAMES) - set(self.accounts))
        self.target.start(seq, tokens, context)
        self.accounts[seq] = Account(list(tokens), context)
        if match:
            self.mount(seq, self.accounts[seq])

    @RUNNING
    @rule(data=st.data())
    def match(self, data: st.DataObject) -> None:
        seq, account = self.some(data)
        if not self.table(seq):
            self.mount(seq, account)

    def mount(self, seq: str, account: Account) -> None:
        known, limit = self.known_chains(), max(len(account.tokens) - 1, 0) // self.block_size
        expected = 0
        while expected < limit and account.chain((expected + 1) * self.block_size) in known:
            expected += 1
        account.computed = self.target.allocate_shared(seq)
        assert account.computed == expected * self.block_size

    @RUNNING
    @rule(data=st.data(), count=st.integers(0, 7))
    def step(self, data: st.DataObject, count: int) -> None:
        """Room, granted exactly if it is there, and then a write that must work."""
        seq, account = self.some(data)
        stop = data.draw(st.integers(0, len(account.tokens)))
        missing = max(-(-stop // self.block_size) - len(self.table(seq)), 0)
        need, before = missing + self.shared(seq, stop), self.state()
        fits = need <= self.available()
        assert self.target.allocate(seq, stop) == fits
        if not fits:
            assert self.state() == before
            return
        stop = min(stop, account.computed + count)
        if stop > account.computed:
            self.target.write([(seq, self.contents(account, account.computed, stop))])
            account.computed = stop

    @RUNNING
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """A batch that nobody prepared: written as a whole, or refused as a whole."""
        stops = {}
        for seq in data.draw(st.lists(st.sampled_from(sorted(self.accounts)), unique=True)):
            account = self.accounts[seq]
            room = min(len(self.table(seq)) * self.block_size, len(account.tokens))
            stops[seq] = data.draw(st.integers(account.computed, max(room, account.computed)))
        batch = [(seq, self.contents(self.accounts[seq], self.accounts[seq].computed, stops[seq])) for seq in stops]
        may_fail = any(self.shared(seq, stop) for seq, stop in stops.items())
        before = self.state()
        try:
            self.target.write(batch)
        except MisuseError:
            assert may_fail
            assert self.state() == before
            return
        for seq, stop in stops.items():
            self.accounts[seq].computed = stop

    @RUNNING
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), max_size=3))
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        seq, account = self.some(data)
        if len(account.tokens) < 12:
            self.target.append(seq, tokens)
            account.tokens += tokens

    @RUNNING
    @rule(data=st.data())
    def cache(self, data: st.DataObject) -> None:
        seq, account = self.some(data)
        self.target.cache(seq)
        self.expect_published(account)

    @RUNNING
    @rule(data=st.data(), how=st.sampled_from(["deallocate", "abort", "preempt"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        seq, account = self.some(data)
        getattr(self.target, how)(seq)
        if how == "deallocate":
            self.expect_published(account)
        account.computed = 0
        if how != "preempt":
            del self.accounts[seq]

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

    @precondition(lambda self: 0 < len(self.accounts) < len(NAMES))
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent, account = self.some(data)
        child = min(set(NAMES) - set(self.accounts))
        self.target.fork(parent, child)
        self.accounts[child] = Account(account.tokens[:], account.context, account.computed)
        assert self.table(child) == self.table(parent)

    @RUNNING
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        seq, account = self.some(data)
        length = data.draw(st.integers(0, len(account.tokens)))
        kept = self.table(seq)[: -(-length // self.block_size)]
        self.target.truncate(seq, length)
        del account.tokens[length:]
        account.computed = min(account.computed, length)
        assert self.table(seq) == kept

    @rule(count=st.integers(0, 3))
    def evict(self, count: int) -> None:
        before, idle = self.target.free_count(), self.available() - self.target.free_count()
        assert self.target.evict(count) == min(count, idle)
        assert self.target.free_count() == before + min(count, idle)

    @rule()
    def reset(self) -> None:
        assert self.target.reset()
        assert self.target.cached() == {}

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        live = sorted(set(range(1, self.config.num_blocks)) - self.target.free_ids())
        if live:
            block_id = data.draw(st.sampled_from(live))
            self.pins[self.target.hold(block_id)] = block_id

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.pins)))
        self.target.release(handle)
        del self.pins[handle]

    # -- what must hold ------------------------------------------------------------------------------------------------
    @invariant()
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

    @invariant()
    def everybody_reads_his_own(self) -> None:
        for seq, account in self.accounts.items():
            assert self.target.num_computed(seq) == account.computed
            found = self.target.read(seq, 0, account.computed)
            assert found.tolist() == self.contents(account, 0, account.computed).tolist()

    @invariant()
    def keys_tell_the_truth(self) -> None:
        for key, block_id in self.target.cached().items():
            context, tokens = self.chains[key]
            found = self.target.buffers_.read_tags(array("q", [block_id]), 0, self.block_size)
            expected = self.contents(Account(list(tokens), context), len(tokens) - self.block_size, len(tokens))
            assert found.tolist() == expected.tolist()

    @invariant()
    def events_replay_to_the_map(self) -> None:
        for event in self.target.drain_events():
            if event.kind == "stored":
                assert event.key not in self.mirror
                self.mirror[event.key] = event.block_id
            else:
                assert self.mirror.pop(event.key) == event.block_id
        assert self.mirror == self.target.cached()

    def teardown(self) -> None:
        """After the last sequence, pin and key everything is free."""
        if not hasattr(self, "target"):
            return
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


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=4 * settings().max_examples, stateful_step_count=60)
