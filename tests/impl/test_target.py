"""The target: the field cases as scripts, and misuse that changes nothing. Names in brackets are field cases."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from kvspec.impl.sanitizer import Sanitizer
from kvspec.impl.target import TorchTarget
from kvspec.model.conformance import OF_POOLS, OF_VARIANTS, Capability, Context, MisuseError, PoolConfig, Target

PLAIN = Context()
_TAGS: dict[tuple[Context, tuple[int, ...]], int] = {}


def tags(tokens: Sequence[int], context: Context = PLAIN) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The content of each token: a number for the prefix up to it; both halves of the 48 bits are used."""
    prefixes = [(context, tuple(tokens[: index + 1])) for index in range(len(tokens))]
    numbers = [_TAGS.setdefault(prefix, len(_TAGS) + 1) for prefix in prefixes]
    return np.array([number + (number << 24) for number in numbers], dtype=np.int64)


class Driver:
    """A target and what its sequences should contain."""

    def __init__(self, num_blocks: int, block_size: int, *, cache: bool = True, sanitizer: bool = True) -> None:
        config = PoolConfig(
            num_blocks=num_blocks, block_size=block_size, enable_prefix_cache=cache, sanitizer=sanitizer
        )
        self.target = TorchTarget(config, layers=2, heads=1, head_dim=2)
        self.tokens: dict[str, list[int]] = {}
        self.contexts: dict[str, Context] = {}

    def start(self, seq: str, tokens: Sequence[int], context: Context = PLAIN) -> int:
        """Start and match; the tokens hit."""
        self.tokens[seq], self.contexts[seq] = list(tokens), context
        self.target.start(seq, tokens, context)
        return self.target.allocate_shared(seq)

    def fill(self, seq: str, stop: int | None = None) -> None:
        """Make room and write all known tokens, or those before stop."""
        stop = len(self.tokens[seq]) if stop is None else stop
        assert self.target.allocate(seq, stop)
        self.target.write([(seq, self.contents(seq)[self.target.num_computed(seq) : stop])])

    def run(self, seq: str, tokens: Sequence[int], context: Context = PLAIN) -> int:
        """Start, match, write all; the tokens hit."""
        hit = self.start(seq, tokens, context)
        self.fill(seq)
        return hit

    def table(self, seq: str) -> list[int]:
        return list(self.target.block_table(seq))

    def append(self, seq: str, *tokens: int) -> None:
        self.tokens[seq] += tokens
        self.target.append(seq, tokens)

    def fork(self, parent: str, child: str) -> None:
        self.tokens[child], self.contexts[child] = self.tokens[parent][:], self.contexts[parent]
        self.target.fork(parent, child)

    def contents(self, seq: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return tags(self.tokens[seq], self.contexts[seq])

    def reads_its_own(self, seq: str) -> bool:
        computed = self.target.num_computed(seq)
        return self.target.read(seq, 0, computed).tolist() == self.contents(seq)[:computed].tolist()

    def state(self) -> tuple[object, ...]:
        """All that can be seen, and the order of the free list."""
        target = self.target
        return (
            target.manager_.free_ids(),
            [target.ref_count(block_id) for block_id in range(target.config.num_blocks)],
            target.used_count(),
            dict(target.cached()),
            {seq: (list(target.block_table(seq)), target.num_computed(seq)) for seq in target._sequences},
            {seq: sequence.tokens_[:] for seq, sequence in target._sequences.items()},
            target.buffers_.storage_.nan_to_num(-5.0).tolist(),
        )


@pytest.fixture(autouse=True)
def _no_handle_is_lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every sanitizer that a test makes stays clean."""
    made: list[Sanitizer] = []
    original = Sanitizer.__init__

    def remember(self: Sanitizer) -> None:
        original(self)
        made.append(self)

    monkeypatch.setattr(Sanitizer, "__init__", remember)
    gc.freeze()  # what was there before is not looked at
    yield
    gc.collect()
    gc.unfreeze()
    assert all(sanitizer.is_clean for sanitizer in made)


def refused(call: Callable[[], object], driver: Driver, match: str) -> None:
    """The call is misuse, says so, and changes nothing."""
    before = driver.state()
    with pytest.raises(MisuseError, match=match):
        call()
    assert driver.state() == before


def test_it_is_a_target_with_every_capability_of_one_manager() -> None:
    target = TorchTarget(PoolConfig(num_blocks=4, block_size=2))
    assert isinstance(target, Target)
    assert frozenset(Capability) - target.capabilities == OF_POOLS | OF_VARIANTS
    assert target.hit_limit == "all_but_one"


# -- one sequence ----------------------------------------------------------------------------------------------------
def test_a_sequence_reads_what_it_wrote() -> None:
    driver = Driver(6, 4)
    assert driver.run("a", range(10)) == 0
    assert driver.table("a") == [1, 2, 3]
    assert driver.reads_its_own("a")
    assert driver.target.read("a", 3, 9).tolist() == driver.contents("a")[3:9].tolist()
    assert driver.target.read("a", 5, 5).tolist() == []


def test_a_batch_is_written_at_once() -> None:
    driver = Driver(9, 4)
    for seq, length in (("a", 7), ("b", 1), ("c", 8), ("d", 3)):
        driver.start(seq, range(length))
        assert driver.target.allocate(seq, length)
    driver.target.write([("a", driver.contents("a")[:5]), ("b", driver.contents("b")), ("d", driver.contents("d")[:0])])
    driver.target.write([(seq, driver.contents(seq)[driver.target.num_computed(seq) :]) for seq in "cad"])
    driver.target.write([])
    assert [driver.target.num_computed(seq) for seq in "abcd"] == [7, 1, 8, 3]
    assert all(driver.reads_its_own(seq) for seq in "abcd")


def test_one_write_kernel_call_per_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(9, 4)
    kernels = driver.target.buffers_.kernels_
    calls: list[str] = []
    for name in ("slot_ids", "write_slots"):
        original = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *args, f=original, n=name: (calls.append(n), f(*args))[1])
    for seq in "abc":
        driver.start(seq, range(6))
        assert driver.target.allocate(seq, 6)
    driver.target.write([(seq, driver.contents(seq)) for seq in "abc"])
    assert calls == ["slot_ids", "write_slots"]


def test_room_is_made_all_or_nothing() -> None:
    driver = Driver(4, 4)
    driver.run("a", range(8))
    driver.start("b", range(100, 112))
    before = driver.state()
    assert not driver.target.allocate("b", 12)
    assert driver.state() == before
    assert driver.target.allocate("b", 4)
    assert driver.target.allocate("b", 0)


# -- prefix cache ----------------------------------------------------------------------------------------------------
def test_the_last_token_is_recomputed() -> None:
    driver = Driver(9, 4)
    driver.run("a", range(8))
    driver.target.deallocate("a")
    assert driver.start("b", range(8)) == 4
    assert driver.start("c", range(9)) == 8
    assert driver.table("c")[0] == driver.table("b")[0]
    assert driver.start("d", []) == 0


def test_a_block_that_nobody_wrote_is_not_published() -> None:
    """[B21] Preempted, aborted or finished before the write: the next request misses."""
    for leave in ("preempt", "abort", "deallocate"):
        driver = Driver(8, 4)
        driver.start("a", range(9))
        assert driver.target.allocate("a", 9)
        driver.target.cache("a")
        getattr(driver.target, leave)("a")
        assert driver.start("b", range(9)) == 0
        assert driver.target.cached() == {}


def test_a_block_is_matched_only_after_its_write() -> None:
    """[B22] In the step that writes it, it is not there yet."""
    driver = Driver(8, 4)
    driver.start("a", range(9))
    assert driver.target.allocate("a", 9)
    driver.target.cache("a")
    assert driver.start("b", range(9)) == 0
    driver.target.write([("a", driver.contents("a"))])
    driver.target.cache("a")
    assert driver.start("c", range(9)) == 8
    assert driver.reads_its_own("c")


def test_an_evicted_prefix_is_a_miss() -> None:
    """[B19]"""
    driver = Driver(3, 4)
    driver.run("a", range(4))
    driver.target.deallocate("a")
    driver.run("b", range(50, 58))
    driver.target.abort("b")
    assert driver.start("c", range(5)) == 0


def test_duplicates_stay_in_their_table() -> None:
    """[B30] Both compute the same prefix; no table names a free block afterwards."""
    driver = Driver(14, 1)
    for seq in "ab":
        driver.start(seq, range(4))
    for seq in "ab":
        driver.fill(seq)
        driver.target.cache(seq)
    driver.run("c", range(50, 54))
    tables = {seq: set(driver.table(seq)) for seq in "abc"}
    assert not tables["b"] & driver.target.free_ids()
    assert not tables["b"] & tables["c"]
    assert all(driver.reads_its_own(seq) for seq in "abc")
    driver.target.deallocate("a")
    assert driver.target.evict(9) == 4
    driver.target.cache("b")
    assert set(driver.target.cached().values()) == tables["b"], "the copy takes the place of the evicted original"


def test_a_refused_newcomer_changes_nothing_that_counts() -> None:
    """[B33] Three hits and three new blocks, while only the hits are idle."""
    driver = Driver(6, 4)
    driver.run("a", range(12))
    driver.target.deallocate("a")
    driver.run("x", range(50, 58))
    free, keys = driver.target.manager_.free_ids(), driver.target.cached()
    assert driver.start("b", range(24)) == 12
    assert not driver.target.allocate("b", 24)
    driver.target.preempt("b")
    assert [driver.target.ref_count(block_id) for block_id in keys.values()] == [1, 1, 1]
    assert (driver.target.manager_.free_ids(), driver.target.cached()) == (free, keys)


def test_an_idle_block_behind_a_shared_one_is_found() -> None:
    """[B41]"""
    driver = Driver(5, 4)
    driver.run("a", range(4))
    driver.target.cache("a")
    driver.run("b", range(50, 54))
    driver.target.deallocate("b")
    driver.start("c", range(100, 112))
    assert driver.target.allocate("c", 12)


def test_usage_does_not_drift() -> None:
    """[B13]"""
    driver = Driver(8, 4)
    for round_ in range(4):
        driver.run(f"s{round_}", range(8))
        driver.target.cache(f"s{round_}")
        assert driver.target.used_count() == 2
        driver.target.deallocate(f"s{round_}")
        assert driver.target.used_count() == 0


@pytest.mark.parametrize(
    "other",
    [Context(salt="x"), Context(adapter="x", adapter_version=2), PLAIN, Context(adapter="x", images=("i",))],
    ids=["[B67] salt", "[B68] reloaded adapter", "base model", "image"],
)
def test_other_contexts_miss(other: Context) -> None:
    driver = Driver(12, 4)
    context = Context(adapter="x", adapter_version=1)
    driver.run("a", range(9), context)
    driver.target.deallocate("a")
    assert driver.run("b", range(9), other) == 0
    assert driver.start("c", range(9), context) == 8
    assert driver.reads_its_own("c")


def test_events_replay_to_the_map() -> None:
    driver = Driver(8, 2)
    for number, tokens in enumerate([range(6), range(3, 9), range(6), range(20, 29)]):
        driver.run(f"s{number}", tokens)
        driver.target.deallocate(f"s{number}")
    driver.target.evict(1)
    mirror: dict[bytes, int] = {}
    for event in driver.target.drain_events():
        if event.kind == "stored":
            assert event.key not in mirror
            mirror[event.key] = event.block_id
        else:
            assert mirror.pop(event.key) == event.block_id
    assert mirror == driver.target.cached()
    assert driver.target.drain_events() == []
    assert driver.target.reset()
    assert {event.kind for event in driver.target.drain_events()} == {"removed"}


def test_publication_again_and_again_is_one_use_each_time() -> None:
    """What `cache` skips because it was published before is still recent."""
    driver = Driver(8, 1)
    driver.run("a", range(2))
    driver.target.cache("a")
    driver.run("b", range(50, 52))
    driver.target.cache("b")
    driver.target.cache("a")
    driver.target.abort("a")
    driver.target.abort("b")
    assert driver.target.evict(2) == 2
    assert driver.start("c", [0, 1, 2]) == 2
    assert driver.start("d", [50, 51, 52]) == 0


def test_without_a_cache_nothing_is_kept() -> None:
    driver = Driver(8, 4, cache=False)
    driver.run("a", range(9))
    driver.target.deallocate("a")
    assert driver.run("b", range(9)) == 0
    assert (driver.target.evict(3), driver.target.reset(), driver.target.cached()) == (0, True, {})
    assert list(driver.target.drain_events()) == []


# -- copy-on-write ---------------------------------------------------------------------------------------------------
def test_diverging_beams_get_their_own_block() -> None:
    """[B32]"""
    driver = Driver(8, 4)
    driver.run("a", range(6))
    driver.fork("a", "b")
    assert driver.table("a") == driver.table("b")
    driver.append("a", 100)
    driver.append("b", 200)
    for seq in "ab":
        driver.fill(seq)
    assert driver.table("a")[0] == driver.table("b")[0]
    assert driver.table("a")[1] != driver.table("b")[1]
    assert driver.reads_its_own("a")
    assert driver.reads_its_own("b")
    driver.target.preempt("b")
    assert (driver.target.num_computed("b"), driver.table("b")) == (0, [])
    driver.fill("b")
    assert driver.reads_its_own("b")


def test_a_fork_without_room_for_the_copy_is_refused() -> None:
    driver = Driver(3, 4)
    driver.run("a", range(6))
    driver.fork("a", "b")
    driver.append("b", 9)
    before = driver.state()
    assert not driver.target.allocate("b", 7)
    assert driver.state() == before
    refused(lambda: driver.target.write([("b", tags([9]))]), driver, "has other holders")
    driver.target.abort("a")
    driver.fill("b")
    assert driver.table("b") == [1, 2], "alone it writes in place"
    assert driver.reads_its_own("b")


def test_a_copy_that_raises_leaves_a_fork_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(8, 4)
    driver.run("a", range(6))
    driver.fork("a", "b")
    driver.append("b", *range(20, 30))

    def broken(pairs: Sequence[tuple[int, int]]) -> None:
        raise RuntimeError("the device is lost")

    before = driver.state()
    with monkeypatch.context() as patch:
        patch.setattr(driver.target.buffers_, "copy_blocks", broken)
        with pytest.raises(RuntimeError, match="the device is lost"):
            driver.target.allocate("b", 16)
    assert driver.state() == before
    driver.fill("b")
    assert driver.reads_its_own("a") and driver.reads_its_own("b")
    for seq in ("a", "b"):
        driver.target.abort(seq)
    assert driver.target.free_count() == 7


def test_reserved_blocks_of_a_fork_are_replaced_without_a_copy() -> None:
    driver = Driver(9, 2)
    driver.start("a", range(6))
    assert driver.target.allocate("a", 6)
    driver.target.write([("a", driver.contents("a")[:3])])
    driver.fork("a", "b")
    driver.fill("b")
    driver.fill("a")
    assert driver.table("a")[0] == driver.table("b")[0]
    assert not set(driver.table("a")[1:]) & set(driver.table("b")[1:])
    assert driver.reads_its_own("a")
    assert driver.reads_its_own("b")


def test_a_copy_starts_at_the_first_cell_of_a_shared_block() -> None:
    driver = Driver(9, 2)
    driver.start("a", range(6))
    assert driver.target.allocate("a", 6)
    driver.target.write([("a", driver.contents("a")[:2])])
    driver.fork("a", "b")
    driver.fill("b", 5)
    assert driver.table("a")[0] == driver.table("b")[0]
    assert not set(driver.table("a")[1:]) & set(driver.table("b")[1:])


def test_the_taker_of_a_copy_goes_on_in_it() -> None:
    driver = Driver(9, 4)
    driver.run("a", range(5))
    driver.fork("a", "b")
    driver.append("b", 7)
    driver.fill("b")
    pin = driver.target.hold(driver.table("b")[1])
    driver.append("b", 8)
    driver.target.write([("b", driver.contents("b")[6:])])
    assert driver.reads_its_own("b")
    driver.target.release(pin)


def test_a_copy_that_brought_more_cells_along_is_not_written_under_a_reader() -> None:
    driver = Driver(9, 4)
    driver.run("a", range(7))
    driver.fork("a", "b")
    driver.tokens["b"] = [*range(5), 50]
    driver.target.truncate("b", 5)
    driver.target.append("b", [50])
    assert driver.target.allocate("b", 6)
    pin = driver.target.hold(driver.table("b")[1])
    refused(lambda: driver.target.write([("b", driver.contents("b")[5:])]), driver, "has other holders")
    driver.target.release(pin)
    driver.target.write([("b", driver.contents("b")[5:])])
    assert driver.reads_its_own("a")
    assert driver.reads_its_own("b")


def test_cells_that_the_parent_wrote_after_the_fork_count_as_written_in_the_copy() -> None:
    driver = Driver(9, 4)
    driver.start("a", range(7))
    assert driver.target.allocate("a", 7)
    driver.target.write([("a", driver.contents("a")[:5])])
    driver.fork("a", "b")
    driver.target.write([("a", driver.contents("a")[5:])])
    assert driver.target.allocate("b", 7)
    pin = driver.target.hold(driver.table("b")[1])
    refused(lambda: driver.target.write([("b", driver.contents("b")[5:])]), driver, "has other holders")
    driver.target.release(pin)


def test_fresh_blocks_after_a_truncation_are_not_taken_for_written_ones() -> None:
    driver = Driver(9, 4)
    driver.run("a", range(8))
    driver.target.truncate("a", 4)
    driver.tokens["a"] = list(range(4))
    driver.append("a", 40, 50)
    assert driver.target.allocate("a", 6)
    pin = driver.target.hold(driver.table("a")[1])
    driver.target.write([("a", driver.contents("a")[4:])])
    assert driver.reads_its_own("a")
    driver.target.release(pin)


def test_truncated_blocks_were_used_when_they_were_published_last() -> None:
    driver = Driver(8, 1)
    driver.run("a", range(2))
    driver.target.cache("a")
    driver.run("b", [50])
    driver.target.deallocate("b")
    driver.target.cache("a")
    driver.target.truncate("a", 0)
    driver.target.drain_events()
    assert driver.target.evict(1) == 1
    assert driver.start("c", [0, 1, 2]) == 2


def test_the_taker_goes_on_in_a_pinned_block() -> None:
    """The first write of a cell belongs to the sequence that took the block; a reader cannot have seen it."""
    driver = Driver(8, 4)
    driver.start("a", range(8))
    assert driver.target.allocate("a", 8)
    pin = driver.target.hold(driver.table("a")[0])
    driver.target.write([("a", driver.contents("a"))])
    assert driver.reads_its_own("a")
    driver.target.release(pin)


def test_rejected_drafts_do_not_overwrite_what_is_published() -> None:
    driver = Driver(8, 4)
    driver.run("a", range(8))
    driver.target.cache("a")
    published = driver.table("a")[1]
    driver.tokens["a"] = list(range(6))
    driver.target.truncate("a", 6)
    driver.append("a", 60, 70)
    refused(lambda: driver.target.write([("a", driver.contents("a")[6:])]), driver, "has other holders")
    driver.fill("a")
    assert driver.table("a")[1] != published
    assert driver.reads_its_own("a")
    assert driver.start("b", range(9)) == 8
    assert driver.reads_its_own("b")
    driver.target.cache("a")
    assert driver.start("c", [*range(6), 60, 70, 80]) == 8
    assert driver.reads_its_own("c")


def test_truncation_gives_blocks_behind_back() -> None:
    driver = Driver(8, 4)
    driver.run("a", range(12))
    driver.target.truncate("a", 4)
    driver.tokens["a"] = list(range(4))
    assert (driver.target.num_computed("a"), len(driver.table("a"))) == (4, 1)
    assert driver.target.free_count() == 6
    driver.append("a", 9)
    driver.fill("a")
    assert driver.reads_its_own("a")
    driver.target.truncate("a", 0)
    assert driver.table("a") == []


# -- pins ------------------------------------------------------------------------------------------------------------
def test_a_pinned_block_outlives_its_sequence() -> None:
    driver = Driver(4, 4)
    driver.run("a", range(4))
    block_id = driver.table("a")[0]
    pin = driver.target.hold(block_id)
    driver.target.abort("a")
    assert (driver.target.ref_count(block_id), driver.target.used_count()) == (1, 0)
    assert block_id not in driver.target.free_ids()
    refused(lambda: driver.target.hold(3), driver, "not in use")
    refused(lambda: driver.target.hold(0), driver, "not in use")
    refused(lambda: driver.target.hold(4), driver, "an id in")
    driver.target.release(pin)
    refused(lambda: driver.target.release(pin), driver, "a handle of hold")
    assert driver.target.free_count() == 3


# -- misuse ----------------------------------------------------------------------------------------------------------
def test_misuse_changes_nothing() -> None:
    driver = Driver(8, 4)
    driver.run("a", range(6))
    driver.target.cache("a")
    target = driver.target
    target.start("b", [1], PLAIN)
    for call, match in (
        (lambda: target.start("a", [1], PLAIN), "exists"),
        (lambda: target.start("n", [1, -1], PLAIN), "token id -1"),
        (lambda: target.append("a", [-2]), "token id -2"),
        (lambda: target.append("a", [2, 1.5]), "integer"),  # type: ignore[list-item]
        (lambda: target.allocate("a", 7), "0 to 6 known"),
        (lambda: target.allocate("a", -1), "0 to 6 known"),
        (lambda: target.allocate_shared("a"), "an empty table"),
        (lambda: target.write([("a", tags([1]))]), "at most 6"),
        (lambda: target.write([("b", tags([1]))]), "at most 0"),
        (lambda: target.write([("b", tags([])), ("b", tags([]))]), "twice"),
        (lambda: target.write([("b", np.array([1.0]))]), "one dimension of integers"),  # type: ignore[list-item]
        (lambda: target.read("a", 0, 7), "6 computed"),
        (lambda: target.read("a", 4, 3), "6 computed"),
        (lambda: target.read("a", -1, 3), "6 computed"),
        (lambda: target.fork("a", "b"), "exists"),
        (lambda: target.fork("n", "m"), "no sequence 'n'"),
        (lambda: target.truncate("a", 7), "0 to 6 known"),
        (lambda: target.truncate("a", -1), "0 to 6 known"),
        (lambda: target.evict(-1), "0 or more"),
        (lambda: target.release(77), "handle 77"),
        (lambda: target.ref_count(8), "an id in"),
    ):
        refused(call, driver, match)
    for name in ("allocate_shared", "cache", "deallocate", "preempt", "abort", "block_table", "num_computed"):
        refused(lambda name=name: getattr(target, name)("n"), driver, "no sequence 'n'")  # type: ignore[misc]


def test_a_batch_with_one_bad_part_writes_nothing() -> None:
    driver = Driver(8, 4)
    for seq in "ab":
        driver.start(seq, range(4))
    assert driver.target.allocate("a", 4)
    good = ("a", driver.contents("a"))
    refused(lambda: driver.target.write([good, ("b", driver.contents("b"))]), driver, "room 0")
    refused(lambda: driver.target.write([("a", driver.contents("a") + 2**50)]), driver, r"2\*\*48")


def test_close_gives_everything_back() -> None:
    driver = Driver(8, 4)
    driver.run("a", range(6))
    driver.target.cache("a")
    driver.target.hold(1)
    driver.target.close()
    manager = driver.target.manager_
    assert (manager.num_free_blocks, manager.num_used_blocks, manager.num_total_blocks) == (7, 0, 8)


def test_the_padding_block_is_never_written() -> None:
    driver = Driver(5, 2)
    for number in range(6):
        driver.run(f"s{number}", range(number, number + 5))
        driver.target.deallocate(f"s{number}")
    assert driver.target.sanitizer_ is not None
    assert driver.target.buffers_.padding_is_intact()
    driver.target.close()


def test_numpy_tokens_and_plain_tags() -> None:
    target = TorchTarget(PoolConfig(num_blocks=8, block_size=4))
    target.start("a", np.arange(6, dtype=np.int32), PLAIN)  # type: ignore[arg-type]
    target.append("a", np.array([7], dtype=np.uint8))  # type: ignore[arg-type]
    assert target.allocate("a", 7)
    target.write([("a", [1, 2, 3, 4, 5, 6, 7])])  # type: ignore[list-item]
    assert target.read("a", 0, 7).tolist() == [1, 2, 3, 4, 5, 6, 7]
    target.cache("a")
    target.start("b", list(range(6)), PLAIN)
    assert target.allocate_shared("b") == 4
