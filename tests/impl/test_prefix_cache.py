"""The prefix cache: keys, truth of hits, recency, events. Names in brackets are field cases."""

from __future__ import annotations

import random
import subprocess
import sys
from array import array
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.impl import prefix_cache
from kvspec.impl.block import Block
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.errors import InvalidRangeError, InvalidTokensError
from kvspec.impl.prefix_cache import PrefixCache, PrefixKeys, encode_context
from kvspec.impl.tokens import as_tokens


def tokens_of(*values: int) -> array[int]:
    return array("q", values)


def cache_of(manager: BlockManagerImpl) -> PrefixCache:
    assert manager.prefix_cache_ is not None
    return manager.prefix_cache_


def publish(manager: BlockManagerImpl, tokens: array[int], context: bytes = prefix_cache.NO_CONTEXT) -> list[Block]:
    blocks = manager.allocate(len(tokens) // manager.block_size_)
    assert blocks is not None
    manager.cache(tokens, blocks, PrefixKeys(manager.block_size_, context))
    return blocks


# -- keys ------------------------------------------------------------------------------------------------------------
CONTEXTS = [
    {},
    {"adapter": "x"},
    {"salt": "x"},
    {"images": ("x",)},
    {"images": ("x", "x")},
    {"images": ("xx",)},
    {"images": ("",)},
    {"adapter": ""},
    {"salt": ""},
    {"adapter": "x", "adapter_version": 1},
    {"adapter_version": 1},
    {"adapter_version": 11},
    {"adapter": "xS\x01\x00\x00\x00\x00\x00\x00\x00x"},
    {"adapter": "x", "salt": "x"},
    {"images": ("x", "y")},
    {"images": ("y", "x")},
]


def test_contexts_that_differ_in_any_part_have_different_keys() -> None:
    """[B67] [B68] Parts share no name space; a new version of an adapter is another context."""
    tokens = tokens_of(*range(4))
    for one, other in combinations(CONTEXTS, 2):
        encoded = [encode_context(**context) for context in (one, other)]  # type: ignore[arg-type]
        assert encoded[0] != encoded[1], (one, other)
        keys = [PrefixKeys(4, context) for context in encoded]
        for key in keys:
            key.extend(tokens, 1)
        assert keys[0].chain != keys[1].chain


@pytest.mark.parametrize(
    "other",
    [{"salt": "x"}, {"adapter": "x", "adapter_version": 2}, {"images": ("x",)}, {}],
    ids=["salt x [B67]", "adapter reloaded [B68]", "image", "base model"],
)
def test_a_hit_needs_the_same_context(other: dict[str, object]) -> None:
    manager = BlockManagerImpl(8, 4)
    tokens = tokens_of(*range(8))
    publish(manager, tokens, encode_context(adapter="x", adapter_version=1))
    assert manager.allocate_shared(tokens, PrefixKeys(4, encode_context(**other))) == []  # type: ignore[arg-type]
    assert len(manager.allocate_shared(tokens, PrefixKeys(4, encode_context(adapter="x", adapter_version=1)))) == 2


TEXTS = st.none() | st.text(alphabet="xAS\x00\x01é\ud800", max_size=3)
ANY_CONTEXT = st.tuples(
    TEXTS, st.integers(-2, 12), TEXTS, st.lists(st.text(alphabet="xI\x00", max_size=2), max_size=2).map(tuple)
)


@given(ANY_CONTEXT, ANY_CONTEXT)
def test_encoding_is_injective(
    one: tuple[str | None, int, str | None, tuple[str, ...]], other: tuple[str | None, int, str | None, tuple[str, ...]]
) -> None:
    assert (encode_context(*one) == encode_context(*other)) == (one == other)


def test_keys_are_chained_and_the_same_in_every_process() -> None:
    keys = PrefixKeys(2, encode_context(adapter="a", adapter_version=3, salt="s", images=("i",)))
    keys.extend(tokens_of(1, 2, 3, 4), 2)
    script = (
        "from array import array; from kvspec.impl.prefix_cache import PrefixKeys, encode_context\n"
        "keys = PrefixKeys(2, encode_context('a', 3, 's', ('i',))); keys.extend(array('q', [1, 2, 3, 4]), 2)\n"
        "print(*[key.hex() for key in keys.chain])"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.split() == [key.hex() for key in keys.chain]
    assert [len(key) for key in keys.chain] == [16, 16]
    swapped = PrefixKeys(2, keys.context)
    swapped.extend(tokens_of(3, 4, 1, 2), 2)
    assert not set(swapped.chain) & set(keys.chain)


def test_keys_follow_their_tokens() -> None:
    keys = PrefixKeys(2)
    keys.extend(tokens_of(1, 2, 3, 4), 2)
    fork = keys.copy()
    keys.truncate(1)
    keys.extend(tokens_of(1, 2, 9, 9), 2)
    assert keys.chain[0] == fork.chain[0]
    assert keys.chain[1] != fork.chain[1]


# -- hits ------------------------------------------------------------------------------------------------------------
def test_a_hit_is_the_longest_published_prefix_of_whole_blocks() -> None:
    manager = BlockManagerImpl(8, 2)
    blocks = publish(manager, tokens_of(1, 2, 3, 4, 5, 6))
    for tokens, expected in [
        ((1, 2, 3, 4, 5, 6), 3),
        ((1, 2, 3, 4, 5), 2),
        ((1, 2, 3, 9, 5, 6), 1),
        ((9, 2, 3, 4), 0),
        ((1,), 0),
        ((), 0),
    ]:
        hits = manager.allocate_shared(tokens_of(*tokens))
        assert [block.id for block in hits] == [block.id for block in blocks[:expected]]
        manager.release_blocks(hits)
    assert len(manager.allocate_shared(tokens_of(1, 2, 3, 4, 5, 6), max_blocks=1)) == 1
    assert manager.allocate_shared(tokens_of(1, 2), max_blocks=-1) == []


def test_an_empty_key_is_an_empty_hit_and_sizes_are_counted_in_blocks() -> None:
    """[B15] Six tokens are one full block of four; everything that was inserted can be evicted, and no more."""
    manager = BlockManagerImpl(8, 4)
    cache = cache_of(manager)
    tokens = tokens_of(*range(6))
    manager.release_blocks(publish(manager, tokens))
    assert (len(cache), cache.num_idle) == (1, 1)
    assert manager.allocate_shared(tokens[:3]) == []
    assert cache.num_idle == 1
    assert cache.evict(9) == 1
    assert (len(cache), cache.num_idle) == (0, 0)


def test_an_evicted_block_is_in_no_map() -> None:
    """[B19] A block that is handed out again does not serve its old key."""
    manager = BlockManagerImpl(3, 4)
    first = tokens_of(*range(4))
    manager.release_blocks(publish(manager, first))
    second = manager.allocate(2)
    assert second is not None
    assert {block.id for block in second} == {1, 2}
    assert all(block.hash_value is None for block in second)
    assert manager.allocate_shared(first) == []


def test_an_existing_key_keeps_its_block() -> None:
    """[B30] The duplicate stays with its sequence, so no table names a free block."""
    manager = BlockManagerImpl(8, 1)
    tokens = tokens_of(*range(3))
    one, other = publish(manager, tokens), publish(manager, tokens)
    assert [block.ref_count for block in one] == [2, 2, 2]
    assert [block.ref_count for block in other] == [1, 1, 1]
    assert not {block.id for block in other} & set(manager.free_ids())
    assert [block.id for block in manager.allocate_shared(tokens)] == [block.id for block in one]


def test_the_return_of_insert_tells_which_blocks_are_named() -> None:
    manager = BlockManagerImpl(12, 1)
    publish(manager, tokens_of(1, 2))
    mine = manager.allocate_shared(tokens_of(1)) + (manager.allocate(2) or [])
    keys = PrefixKeys(1)
    assert manager.cache(tokens_of(1, 2, 3), mine, keys) == 1, "block 1 is a duplicate"
    assert manager.cache(tokens_of(1, 2, 3), mine[2:], keys, 2) == 3
    assert manager.cache(tokens_of(1, 2, 3), [], keys, 3) == 3


def test_a_hit_is_compared_and_not_only_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hash that always collides nothing wrong is served, and nothing is stored over another key."""
    monkeypatch.setattr(prefix_cache, "xxh3_128_digest", lambda data: bytes(16))
    manager = BlockManagerImpl(8, 2)
    publish(manager, tokens_of(1, 2))
    assert len(manager.allocate_shared(tokens_of(1, 2))) == 1
    assert manager.allocate_shared(tokens_of(1, 3)) == []
    assert manager.allocate_shared(tokens_of(1, 2), PrefixKeys(2, encode_context(salt="s"))) == []


# -- eviction --------------------------------------------------------------------------------------------------------
def test_the_tail_of_a_chain_goes_first() -> None:
    manager = BlockManagerImpl(8, 1)
    blocks = publish(manager, tokens_of(1, 2, 3))
    ids = [block.id for block in blocks]
    manager.release_blocks(blocks)
    cache = cache_of(manager)
    cache.drain_events()
    assert cache.evict(2) == 2
    assert [event.block_id for event in cache.drain_events()] == [ids[2], ids[1]]


def test_a_match_makes_recent() -> None:
    manager = BlockManagerImpl(8, 1)
    for token in (1, 2, 3):
        manager.release_blocks(publish(manager, tokens_of(token)))
    manager.release_blocks(manager.allocate_shared(tokens_of(1)))
    assert cache_of(manager).evict(2) == 2
    assert manager.allocate_shared(tokens_of(2)) == manager.allocate_shared(tokens_of(3)) == []
    assert len(manager.allocate_shared(tokens_of(1))) == 1


def test_reset_frees_idle_blocks_and_leaves_the_others_to_their_holders() -> None:
    manager = BlockManagerImpl(8, 1)
    manager.release_blocks(publish(manager, tokens_of(1, 2)))
    held = publish(manager, tokens_of(7))
    cache = cache_of(manager)
    cache.reset()
    assert (len(cache), cache.num_idle, manager.num_free_blocks) == (0, 0, 6)
    assert (held[0].ref_count, held[0].hash_value) == (1, None)
    assert manager.cache(tokens_of(7), held) == 1, "it can be published again"
    manager.release_blocks(held)
    assert cache.evict(5) == 1


def test_eviction_counts_are_checked() -> None:
    cache = cache_of(BlockManagerImpl(4, 1))
    assert cache.evict(0) == cache.evict(3) == 0
    with pytest.raises(InvalidRangeError):
        cache.evict(-1)


def test_events_can_be_switched_off() -> None:
    manager = BlockManagerImpl(4, 1, record_events=False)
    manager.release_blocks(publish(manager, tokens_of(1)))
    assert cache_of(manager).drain_events() == []


# -- tokens ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "tokens",
    [[1, 2], (1, 2), array("q", [1, 2]), array("i", [1, 2]), np.array([1, 2], np.int32), np.array([1, 2], np.uint64)],
)
def test_tokens_come_in_many_forms(tokens: list[int]) -> None:
    found = as_tokens(tokens)
    assert found == array("q", [1, 2])
    assert found is not tokens


@pytest.mark.parametrize(
    "tokens",
    [
        [-1],
        [1.5],
        ["1"],
        [2**63],
        list(range(-1, 40)),
        np.array([-1]),
        np.array([1.0]),
        np.array([[1]]),
        np.array([2**63], np.uint64),
        array("q", [3, -3]),
        5,
    ],
)
def test_wrong_tokens_are_refused(tokens: list[int]) -> None:
    with pytest.raises(InvalidTokensError, match=r"integers in \[0, 2\*\*63\)"):
        as_tokens(tokens)


# -- recency against a plain list --------------------------------------------------------------------------------------
class Recency:
    """Eviction order against a naive account: every operation stamps what it used, the victim has the least stamp.

    Chains share prefixes; sequences and pins come and go in any order, so entries become idle out of order.
    """

    CHAINS = ((1,), (1, 2), (1, 2, 3), (1, 5), (7,), (7, 8, 9), (4, 4))

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.manager = BlockManagerImpl(400, 1)
        self.cache = cache_of(self.manager)
        self.clock = 0
        self.stamps: dict[tuple[int, ...], tuple[int, int]] = {}
        self.keys: dict[bytes, tuple[int, ...]] = {}
        self.held: list[list[Block]] = []
        self.pins: list[Block] = []

    def use(self, chain: tuple[int, ...]) -> None:
        self.clock += 1
        for depth in range(len(chain)):
            self.stamps[chain[: depth + 1]] = (self.clock, -depth)

    def publish(self) -> None:
        """With or without a look-up before; without it the blocks may be duplicates."""
        chain = self.draw.choice(self.CHAINS)
        tokens, keys = tokens_of(*chain), PrefixKeys(1)
        hits = self.manager.allocate_shared(tokens, keys) if self.draw.random() < 0.5 else []
        fresh = self.manager.allocate(len(chain) - len(hits))
        assert fresh is not None
        self.manager.cache(tokens, hits + fresh, keys)
        self.use(chain)
        self.keys.update({key: chain[: depth + 1] for depth, key in enumerate(keys.chain)})
        self.held.append(hits + fresh)

    def match(self) -> None:
        chain = self.draw.choice(self.CHAINS)
        hits = self.manager.allocate_shared(tokens_of(*chain))
        missing = [depth for depth in range(len(chain)) if chain[: depth + 1] not in self.stamps]
        assert len(hits) == (missing[0] if missing else len(chain))
        self.use(chain[: len(hits)])
        self.held.append(hits)

    def let_go(self) -> None:
        while self.held and (len(self.held) > 8 or self.draw.random() < 0.5):
            blocks = self.held.pop(self.draw.randrange(len(self.held)))
            self.manager.release_blocks(blocks[::-1] if self.draw.random() < 0.5 else blocks)

    def pin(self) -> None:
        if self.stamps and len(self.pins) < 3:
            self.pins.append(self.manager.hold(self.draw.choice(list(self.cache.entries_.values())).id))

    def unpin(self) -> None:
        if self.pins:
            self.pins.pop(self.draw.randrange(len(self.pins))).release()

    def evict(self) -> None:
        count = self.draw.choice([0, 1, 1, 1, 2, 9])
        idle = [self.keys[key] for key, entry in self.cache.entries_.items() if entry.ref_count == 1]
        victims = sorted(idle, key=lambda chain: self.stamps[chain])[:count]
        self.cache.drain_events()
        assert self.cache.evict(count) == len(victims)
        assert [self.keys[event.key] for event in self.cache.drain_events()] == victims
        for chain in victims:
            del self.stamps[chain]

    def reset(self) -> None:
        self.cache.reset()
        self.stamps.clear()

    def check(self) -> None:
        entries = self.cache.entries_
        assert {self.keys[key] for key in entries} == set(self.stamps)
        assert self.cache.num_idle == sum(entry.ref_count == 1 for entry in entries.values())
        assert all(entry.hash_value == key for key, entry in entries.items())
        held = {block.id for blocks in self.held for block in blocks}
        assert self.manager.num_used_blocks == len(held)
        # What waits in the heap stays in proportion to the map.
        assert len(self.cache._late) <= 2 * len(entries) + 64


@pytest.mark.parametrize("seed", range(8))
def test_the_victim_is_the_least_recently_used_idle_entry(seed: int) -> None:
    recency = Recency(random.Random(seed))
    weights = {"publish": 6, "match": 4, "let_go": 9, "pin": 5, "unpin": 5, "evict": 5, "reset": 0.2}
    for operation in recency.draw.choices(list(weights), list(weights.values()), k=1500):
        getattr(recency, operation)()
        recency.check()


def test_the_heap_of_late_entries_stays_small() -> None:
    manager = BlockManagerImpl(8, 1)
    manager.release_blocks(publish(manager, tokens_of(1)))
    manager.release_blocks(publish(manager, tokens_of(2)))
    cache = cache_of(manager)
    for _ in range(500):
        for token in (1, 2):
            manager.release_blocks(manager.allocate_shared(tokens_of(token)))
        pins = [manager.hold(block_id) for block_id in (1, 2)]
        for pin in reversed(pins):
            pin.release()
    assert len(cache._late) <= 2 * len(cache) + 64
    cache.drain_events()
    assert cache.evict(2) == 2
    assert [event.block_id for event in cache.drain_events()] == [1, 2]


# -- a match for a call that is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize("given_back", ["before", "after", "some before"])
@pytest.mark.parametrize("held", [False, True])
def test_a_match_that_is_taken_back_was_no_use(given_back: str, held: bool) -> None:
    """The keys are evicted in the order in which they would have been, whether their blocks were idle before or not."""
    orders = []
    for matched in (False, True):
        manager = BlockManagerImpl(12, 2)
        cache = cache_of(manager)
        chains = [tokens_of(*range(10 * n, 10 * n + 6)) for n in range(3)]
        holders = [publish(manager, chain) for chain in chains]
        for number, blocks in enumerate(holders):
            if not (held and number == 1):
                manager.release_blocks(blocks)
        for number in (1, 0) if matched else ():
            blocks = manager.allocate_shared(chains[number])
            assert len(blocks) == 3
            early = {"before": blocks, "after": [], "some before": blocks[1:]}[given_back]
            manager.release_blocks(early)
            cache.undo_use()
            manager.release_blocks(blocks[: len(blocks) - len(early)])
        if held:
            manager.release_blocks(holders[1])
        assert cache.num_idle == 9
        cache.drain_events()
        orders.append([(cache.evict(1), *cache.drain_events()) for _ in range(9)])
    assert orders[0] == orders[1]
