"""Contents of both tiers while copies are late, end in turn with other calls, and fail."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvspec.impl.block_copier import Ended, Fate, StreamCopier, ThreadCopier, block_copier
from kvspec.impl.block_transfer import BlockTransfer
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import ClosedError, ContentError, InvalidRangeError, KernelUnavailableError
from kvspec.impl.hierarchy_block_manager_pool import HierarchyBlockManagerPool
from kvspec.impl.hierarchy_target import TorchHierarchyTarget
from kvspec.impl.sequence import Sequence as KVSequence
from kvspec.model.conformance import Context, MisuseError, PoolConfig, Tags

SIZE = 2


def tags(tokens: Sequence[int]) -> Tags:
    """The content of each token: a number for the prefix up to it."""
    found, prefix = [], 17
    for token in tokens:
        prefix = (prefix * 6364136223846793005 + token + 1) % 2**48
        found.append(prefix)
    return np.array(found, dtype=np.int64)


class StepCopier(ThreadCopier):
    """Copies one block each time it is asked which have ended, in an order and with outcomes by a seed: in turn with
    the calls, so that a life is the same whenever it is run."""

    def __init__(self, device: Sequence[KVBuffers], host: Sequence[KVBuffers], source: random.Random) -> None:
        super().__init__(device, host)
        self.source, self.begun = source, list[BlockTransfer]()

    def start(self, transfers: Any) -> None:
        self.begun += transfers

    def ended(self, wait: bool = False) -> list[Ended]:
        found = []
        most = len(self.begun) if wait else self.source.randint(1, 3)
        while self.begun and len(found) < most:
            transfer = self.begun.pop(self.source.randrange(len(self.begun)))
            ok = self.source.random() < 0.8
            self._copy(transfer, ok)
            found.append(Ended(transfer, ok))
        return found


class Life:
    """A target with a host tier, what its sequences know, and a source of choices."""

    def __init__(self, seed: int, kind: type[TorchHierarchyTarget] = TorchHierarchyTarget) -> None:
        self.source = random.Random(seed)
        blocks, hosts = self.source.randint(4, 9), self.source.randint(3, 12)
        ranks = self.source.choice((1, 1, 2))
        self.config = PoolConfig(
            num_blocks=blocks, block_size=SIZE, num_single_blocks=5, num_ranks=ranks, num_host_blocks=hosts,
            sanitizer=True,
        )  # fmt: skip
        self.target = kind(
            self.config, layers=2, make_copier=lambda d, h: StepCopier(d, h, random.Random(seed + 1))
        )
        self.tokens: dict[str, list[int]] = {}
        self.counts: Counter[str] = Counter()
        self.stems = [[self.source.randrange(2) for _ in range(12)] for _ in range(2)]
        self.hosts = hosts

    def run(self, steps: int) -> None:
        for number in range(steps):
            self.step(number)
            self.check()
        self.drain()

    def step(self, number: int) -> None:
        source, target = self.source, self.target
        if not self.tokens or (len(self.tokens) < 3 and source.random() < 0.3):
            seq, stem = f"s{number}", source.choice(self.stems)
            self.tokens[seq] = stem[: source.randint(1, 12)]
            target.start(seq, self.tokens[seq], Context())
        elif source.random() < 0.5:
            self.transfers()
        elif self.tokens:
            self.go_on(source.choice(list(self.tokens)))

    def transfers(self) -> None:
        what = self.source.random()
        if what < 0.4:
            self.counts.update(t.direction.value for t in self.target.start_transfers())
        elif what < 0.92:
            self.counts.update("failed" for _, ok in self.target.end_transfers() if not ok)
        elif what < 0.98:
            tokens = self.source.choice(self.stems)[: self.source.randint(2, 8)]
            rank = self.source.randrange(self.config.num_ranks)
            self.prefetch(tokens, rank)
        else:
            self.target.reset()

    def prefetch(self, tokens: list[int], rank: int) -> None:
        """A store gives some of what was planned."""
        target = self.target
        target.begin_prefetch("p", tokens, Context(), rank)
        planned = target.plan_prefetch("p", len(tokens) // SIZE)
        arrived = planned[: self.source.randint(0, 3)]
        target.finish_prefetch("p", [tags(tokens)[i * SIZE : (i + 1) * SIZE] for i, _ in arrived])
        self.counts["prefetched"] += len(arrived)

    def go_on(self, seq: str) -> None:
        """Room and a step mostly, or an end."""
        target, what = self.target, self.source.random()
        sequence = target._sequences[seq]
        if sequence.is_loading and self.source.random() < 0.4:
            what = self.source.uniform(0.8, 1.0)  # it does not wait
        if sequence.computed_ == len(self.tokens[seq]) and self.source.random() < 0.6:
            what = self.source.choice((0.78, 0.95))  # it is done, or others need room
        if what < 0.75:
            if target.allocate(seq, len(self.tokens[seq])) and not sequence.is_loading:
                start = sequence.computed_
                stop = self.source.choice((len(self.tokens[seq]), self.source.randint(start, len(self.tokens[seq]))))
                target.write([(seq, tags(self.tokens[seq])[start:stop])])
        elif what < 0.8:
            target.evict(4, sequence.dp_rank_ or 0)
        elif what < 0.85:
            left = self.source.randint(1, len(self.tokens[seq]))
            target.truncate(seq, left)
            del self.tokens[seq][left:]
        elif what < 0.9:
            target.preempt(seq)
        else:
            rank = sequence.dp_rank_ or 0
            (target.deallocate if what < 0.98 else target.abort)(seq)
            del self.tokens[seq]
            if self.source.random() < 0.8:  # the next one finds it on the host only
                self.counts.update(t.direction.value for t in target.start_transfers())
                self.counts.update("failed" for _, ok in target.end_transfers(wait=True) if not ok)
                target.evict(self.config.num_blocks, rank)

    def check(self) -> None:
        """Everything that can be read is what was written, in both tiers; each id is free or held."""
        target = self.target
        for seq, tokens in self.tokens.items():
            computed = target.num_computed(seq)
            assert target.read(seq, 0, computed).tolist() == tags(tokens)[:computed].tolist(), f"content of {seq}"
        for rank, host in enumerate(target.pool_.host_block_managers_):
            self.check_keys(rank)
            free = target.host_free_ids(rank)
            held = {i for i in range(1, self.hosts) if host.ref_count(i)}
            assert 0 not in free and free | held == set(range(1, self.hosts)) and not free & held, "host ids"

    def check_keys(self, rank: int) -> None:
        """What a key names is complete."""
        cache = self.target.pool_._host_cache(rank)
        for entry in cache.entries_.values():
            self.target.host_buffers_[rank].read_tags(_table(entry.id), 0, SIZE)

    def drain(self) -> None:
        target = self.target
        target.start_transfers()
        target.end_transfers(wait=True)
        for seq in list(self.tokens):
            target.abort(seq)
        target.start_transfers()
        target.end_transfers(wait=True)
        target.reset()
        for rank in range(self.config.num_ranks):
            assert target.free_ids(rank) == set(range(1, self.config.num_blocks)), "device ids at the end"
            assert target.host_free_ids(rank) == set(range(1, self.hosts)), "host ids at the end"
        target.close()
        assert all(sanitizer.is_clean for sanitizer in target.sanitizers())


def _table(block_id: int) -> array[int]:
    return array("q", [block_id])


def test_contents_are_right_in_every_order_of_copies() -> None:
    counts: Counter[str] = Counter()
    for seed in range(25):
        life = Life(seed)
        life.run(80)
        counts.update(life.counts)
    assert min(counts[what] for what in ("load", "offload", "failed", "prefetched")) > 30, counts


# -- the protocol ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [-1, 1, 7])
def test_a_prefetch_for_an_unknown_rank_is_misuse(rank: int) -> None:
    target = TorchHierarchyTarget(PoolConfig(num_blocks=4, block_size=SIZE, num_single_blocks=3, num_host_blocks=4))
    with pytest.raises(MisuseError, match=f"rank {rank}"):
        target.begin_prefetch("p", [0, 1], Context(), rank)
    target.close()


# -- copiers -----------------------------------------------------------------------------------------------------------


def of_block(block_id: int) -> Tags:
    """What a block contains."""
    return tags([block_id] * SIZE)


def buffers() -> tuple[list[KVBuffers], list[KVBuffers]]:
    device, host = [KVBuffers(4, SIZE, layers=2)], [KVBuffers(4, SIZE, layers=2)]
    for block_id in range(1, 4):
        slots = device[0].slot_ids(_table(block_id), np.zeros(SIZE, np.int64), np.arange(SIZE))
        device[0].write_tags(slots, of_block(block_id))
    return device, host


@pytest.fixture
def offloads() -> list[BlockTransfer]:
    pool = HierarchyBlockManagerPool(PoolConfig(num_blocks=4, block_size=SIZE, num_single_blocks=3, num_host_blocks=4))
    sequence = KVSequence(_table(0) * 6, SIZE)
    assert pool.allocate(sequence, 6)
    sequence.advance(6)
    pool.deallocate(sequence)
    return pool.start_offloads(0)


def test_late_copies_end_when_they_are_complete(offloads: list[BlockTransfer]) -> None:
    device, host = buffers()
    late = {transfer: Fate(seconds=0.05) for transfer in offloads[:1]}
    copier = block_copier(device, host, lambda transfer: late.get(transfer, Fate()))
    copier.start(offloads)
    found = copier.ended(wait=True)
    assert [end.transfer for end in found] == offloads and all(end.ok for end in found)
    for transfer in offloads:
        copied = host[0].read_tags(_table(transfer.target_id), 0, SIZE)
        assert copied.tolist() == of_block(transfer.source_id).tolist()
    assert copier.ended() == copier.ended(wait=True) == []
    copier.close()
    with pytest.raises(ClosedError):
        copier.start([])


def test_nothing_can_be_read_where_a_copy_has_failed(offloads: list[BlockTransfer]) -> None:
    device, host = buffers()
    copier = ThreadCopier(device, host, lambda transfer: Fate(ok=transfer is not offloads[1]))
    copier.start(offloads)
    assert [end.ok for end in copier.ended(wait=True)] == [True, False, True]
    with pytest.raises(ContentError, match="poisoned or torn"):
        host[0].read_tags(_table(offloads[1].target_id), 0, SIZE)
    copier.close()


def test_a_copy_that_raises_has_failed(offloads: list[BlockTransfer]) -> None:
    device, _ = buffers()
    copier = ThreadCopier(device, [KVBuffers(4, SIZE, layers=1)])
    copier.start(offloads)
    assert [end.ok for end in copier.ended(wait=True)] == [False] * 3
    assert len(copier.errors_) == 3 and isinstance(copier.errors_[0], InvalidRangeError)
    copier.close()


def test_a_stream_needs_a_device_that_has_some() -> None:
    device, host = buffers()
    with pytest.raises(KernelUnavailableError, match="cpu"):
        StreamCopier(device, host)


@pytest.mark.gpu
def test_streams_copy_behind_what_was_computed(offloads: list[BlockTransfer]) -> None:
    host = [KVBuffers(4, SIZE, layers=2, pin_memory=True)]
    device = [KVBuffers(4, SIZE, layers=2, device="cuda")]
    device[0].copy_from(buffers()[0][0], [(n, n) for n in range(4)])
    copier = block_copier(device, host, lambda transfer: Fate(seconds=0.01))
    copier.start(offloads)
    assert all(end.ok for end in copier.ended(wait=True))
    for transfer in offloads:
        copied = host[0].read_tags(_table(transfer.target_id), 0, SIZE)
        assert copied.tolist() == of_block(transfer.source_id).tolist()
