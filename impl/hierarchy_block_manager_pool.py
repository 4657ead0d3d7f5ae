"""`HierarchyBlockManagerPool`: a second tier of blocks in host memory behind each rank (seed 9.4).

What a sequence has computed goes to the host when it ends (offload, D2G), and comes back for a later sequence with the
same prefix whose blocks the device has dropped meanwhile (load, H2D). The pool only plans: copies are started and ended
by the worker, late, in any order, and some fail.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack

from kvspec.impl.block import Block
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.block_manager_pool import BlockManagerPool, CopyBlocks, ManagerChoice
from kvspec.impl.block_transfer import BlockTransfer, Direction, Prefetch, Prefix, Stage
from kvspec.impl.closing import while_open
from kvspec.impl.errors import InvalidRangeError, SequenceStateError, TransferStateError
from kvspec.impl.paging import block_index, longest_hit
from kvspec.impl.prefix_cache import PrefixCache, PrefixKeys
from kvspec.impl.sequence import Sequence
from kvspec.model.conformance import Form, PoolConfig


class HierarchyBlockManagerPool(BlockManagerPool):
    """A `BlockManagerPool` with host blocks for each rank.

    **Load.** Behind what it hits on the device, a table goes on with host blocks as far as there is room; until all of
    these copies have ended (`Sequence.is_loading`) the sequence cannot be written. Then it goes on behind the leading
    ones that were complete: a failed copy costs its tokens, which are computed again, and nothing else.

    **Offload.** When a sequence ends, its full computed blocks are published on the device; those that the host does
    not know are copied there as far as host blocks can be had. A key can be found on the host when its copy is
    complete, and not before.

    **Reset** drops the keys of both tiers; what is on its way to the host is not found there afterwards. **Sleep**
    gives the device contents up, keys first; the host keeps its own.

    Attributes:
        host_block_managers_: by rank.
        load_block_transfer_infos_: planned loads by rank, not yet started.
        offload_block_pair_queues_: planned offloads by rank, not yet started.
        transfers_: all that have not ended.
        prefetches_: all that have not ended.
        num_resets_: how often all keys were dropped. What a sequence computes rests on what it has computed or hit
            before, so it publishes nothing if it began before the last one.
        asleep_: the device contents are gone, and only `wake` and what ends transfers can be called.

    Args:
        config: sizes and options, of a pool with a host tier. It has no linear state: a state cannot be taken from a
            host block.
        choice: which kind of block manager the device has; no composite, which has no keys.
        copy_blocks, record_events: see `BlockManagerPool`.
    Raises:
        InvalidRangeError: the config has no host tier, or the device would be a composite.
    """

    def __init__(
        self,
        config: PoolConfig,
        *,
        choice: ManagerChoice = ManagerChoice(),  # noqa: B008 - it is a constant
        copy_blocks: CopyBlocks | None = None,
        record_events: bool = True,
    ) -> None:
        if config.form is not Form.TIERS or choice.manager_types:
            what = f"{config.form.words} and {choice}"
            raise InvalidRangeError("HierarchyBlockManagerPool", what, f"{Form.TIERS.words}, and no composite")
        super().__init__(config, choice=choice, copy_blocks=copy_blocks, record_events=record_events)
        ranks = range(config.num_ranks)
        self.host_block_managers_ = [
            BlockManagerImpl(
                config.num_host_blocks, config.block_size, sanitizer=self._sanitizer(), record_events=record_events
            )
            for _ in ranks
        ]
        self.load_block_transfer_infos_: list[deque[BlockTransfer]] = [deque() for _ in ranks]
        self.offload_block_pair_queues_: list[deque[BlockTransfer]] = [deque() for _ in ranks]
        self.transfers_: dict[BlockTransfer, None] = {}
        self.prefetches_: dict[Prefetch, None] = {}
        self.asleep_ = False
        self.num_resets_ = 0
        self._leaving: list[set[bytes]] = [set() for _ in ranks]

    # -- sequences ---------------------------------------------------------------------------------------------------
    @while_open
    def allocate(self, sequence: Sequence, num_tokens: int) -> bool:
        """See `KVCacheManager.allocate`; where room was granted, loads are planned for what the host knows."""
        if not super().allocate(sequence, num_tokens):
            return False
        self._plan_loads(sequence)
        return True

    @while_open
    def deallocate(self, sequence: Sequence) -> None:
        """See `KVCacheManager.deallocate`; offloads are planned for what the host does not know."""
        self._check(sequence, "deallocate")
        self._publish(sequence)
        self._plan_offloads(sequence)
        self._give_back(sequence)
        sequence.ended_ = True

    @while_open
    def truncate(self, sequence: Sequence, num_tokens: int) -> None:
        """See `KVCacheManager.truncate`; a sequence that is loading waits no more, and lets go of the blocks."""
        if sequence.is_loading and 0 <= num_tokens <= len(sequence.tokens_):
            self._check(sequence, "truncate")
            first = sequence.loading_[0].index
            self._give_up_loads(sequence)
            # A copy may still run: nobody else may write where it writes.
            self._ordinary(self._rank_of(sequence)).release_blocks(sequence.kv_state_.take_from(first))
        super().truncate(sequence, num_tokens)

    def _admit(self, sequence: Sequence, undo: ExitStack) -> bool:
        sequence.began_ = self.num_resets_
        return super()._admit(sequence, undo)

    def _publish(self, sequence: Sequence) -> None:
        if sequence.began_ == self.num_resets_:
            super()._publish(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self._give_up_loads(sequence)
        super()._give_back(sequence)

    @staticmethod
    def _rank_of(sequence: Sequence) -> int:
        assert sequence.dp_rank_ is not None
        return sequence.dp_rank_

    # -- plans -------------------------------------------------------------------------------------------------------
    def _plan_loads(self, sequence: Sequence) -> None:
        """Loads for the blocks behind the computed tokens that the host knows, as far as the table has room."""
        rank, first = self._rank_of(sequence), sequence.num_full_blocks
        if sequence.is_loading or sequence.computed_ != first * sequence.block_size:
            return
        room = self._private_until(sequence, first)
        stop = min(room, longest_hit(len(sequence.tokens_), sequence.block_size))
        hosts = self._match(rank, Prefix(sequence.tokens_, sequence.keys_), first, stop)
        if not hosts:
            return
        prefix = Prefix(sequence.tokens_[: (first + len(hosts)) * sequence.block_size], sequence.keys_.copy())
        table, manager = sequence.kv_state_.ids_, self._ordinary(rank)
        for index, host in enumerate(hosts, first):
            device = manager.hold(table[index])
            transfer = BlockTransfer(
                Direction.LOAD, rank, device=device, host=host, prefix=prefix, index=index, sequence=sequence
            )
            self.transfers_[transfer] = None
            self.load_block_transfer_infos_[rank].append(transfer)
            sequence.loading_.append(transfer)

    @staticmethod
    def _private_until(sequence: Sequence, first: int) -> int:
        """Up to which logical index nobody else has the blocks of the table: a load may write them."""
        blocks = sequence.kv_state_.blocks_
        return next((i for i in range(first, len(blocks)) if blocks[i].ref_count > 1), len(blocks))

    def _match(self, rank: int, prefix: Prefix, first: int, stop: int) -> list[Block]:
        """Handles of the host blocks of the logical indices from `first` on, without a gap, before `stop`."""
        if stop <= first:
            return []
        return self.host_block_managers_[rank].allocate_shared(*prefix, stop, first=first)

    def _plan_offloads(self, sequence: Sequence) -> None:
        """Offloads for the full computed blocks that the host neither knows nor is getting, while it has room.

        What is copied is the block that the device has under the key: the same tokens may have been computed twice.
        What has no key there, since it is from before a reset, is not copied.
        """
        rank, full = sequence.dp_rank_, sequence.num_full_blocks
        if rank is None or not full:
            return
        sequence.keys_.extend(sequence.tokens_, full)
        chain, known, leaving = sequence.keys_.chain, self._host_cache(rank).entries_, self._leaving[rank]
        cache = self._ordinary(rank).prefix_cache_
        assert cache is not None
        prefix = Prefix(sequence.tokens_[: full * sequence.block_size], sequence.keys_.copy())
        for index in range(full):
            entry = cache.entries_.get(chain[index])
            if entry is None or chain[index] in known or chain[index] in leaving:
                continue
            hosts = self.host_block_managers_[rank].allocate(1)
            if hosts is None:
                break
            device = self._ordinary(rank).hold(entry.id)
            transfer = BlockTransfer(
                Direction.OFFLOAD, rank, device=device, host=hosts[0], prefix=prefix, index=index
            )
            leaving.add(transfer.key)
            self.transfers_[transfer] = None
            self.offload_block_pair_queues_[rank].append(transfer)

    def _host_cache(self, rank: int) -> PrefixCache:
        cache = self.host_block_managers_[rank].prefix_cache_
        assert cache is not None
        return cache

    # -- the worker's side -------------------------------------------------------------------------------------------
    @while_open
    def start_loads(self, rank: int) -> list[BlockTransfer]:
        """The planned loads of a rank; their copies run from now until `finish_transfer`.

        Raises `InvalidRangeError` if there is no such rank.
        """
        self.check_rank(rank, "start_loads")
        return self._start(self.load_block_transfer_infos_[rank])

    @while_open
    def start_offloads(self, rank: int) -> list[BlockTransfer]:
        """The planned offloads of a rank; their copies run from now until `finish_transfer`.

        The worker has done every step that it was given before: the sources are computed. Raises `InvalidRangeError`
        if there is no such rank.
        """
        self.check_rank(rank, "start_offloads")
        return self._start(self.offload_block_pair_queues_[rank])

    @staticmethod
    def _start(planned: deque[BlockTransfer]) -> list[BlockTransfer]:
        started = list(planned)
        planned.clear()
        for transfer in started:
            transfer.stage = Stage.STARTED
        return started

    @while_open
    def finish_transfer(self, transfer: BlockTransfer, ok: bool) -> None:
        """The copy of a started transfer is complete, or has failed.

        Raises:
            TransferStateError: it was not started, has ended, or is of another pool.
        """
        if transfer not in self.transfers_ or transfer.stage is not Stage.STARTED:
            raise TransferStateError("HierarchyBlockManagerPool.finish_transfer", repr(transfer), "a started one")
        if transfer.direction is Direction.OFFLOAD:
            self._offloaded(transfer, ok)
        else:
            self._loaded(transfer, ok)
        self._end(transfer)

    def _end(self, transfer: BlockTransfer) -> None:
        """Both blocks are let go."""
        del self.transfers_[transfer]
        transfer.stage = Stage.ENDED
        transfer.device.release()
        self.host_block_managers_[transfer.rank].release_blocks([transfer.host])

    def _offloaded(self, transfer: BlockTransfer, ok: bool) -> None:
        """The key can be found on the host if its copy is complete, unless it is there by now or was to be dropped."""
        if not transfer.stale:
            self._leaving[transfer.rank].discard(transfer.key)
        if ok and not transfer.stale:
            self.host_block_managers_[transfer.rank].cache(
                transfer.prefix.tokens, [transfer.host], transfer.prefix.keys, transfer.index
            )

    def _loaded(self, transfer: BlockTransfer, ok: bool) -> None:
        """When the last load of a sequence has ended, it goes on behind the leading ones that were complete."""
        sequence = transfer.sequence
        if sequence is None:
            return
        sequence.loaded_[transfer.index] = ok
        if len(sequence.loaded_) < len(sequence.loading_):
            return
        first = sequence.loading_[0].index
        complete = next((t.index for t in sequence.loading_ if not sequence.loaded_[t.index]), None)
        stop = first + len(sequence.loading_)
        sequence.load(stop if complete is None else complete, stop)

    def _give_up_loads(self, sequence: Sequence) -> None:
        """The sequence waits for no load any more; those that have not been started need not be."""
        for transfer in sequence.loading_:
            transfer.sequence = None
            if transfer.stage is Stage.PLANNED:
                self.load_block_transfer_infos_[transfer.rank].remove(transfer)
                self._end(transfer)
        sequence.loading_, sequence.loaded_ = [], {}

    # -- from a store ------------------------------------------------------------------------------------------------
    @while_open
    def begin_prefetch(self, tokens: array[int], keys: PrefixKeys, rank: int) -> Prefetch:
        """Somebody asks a store for leading blocks of these tokens; nothing is planned before it has answered.

        Raises:
            InvalidRangeError: there is no such rank, or the keys are of blocks of another size.
        """
        self.check_rank(rank, "begin_prefetch")
        if keys.block_size != self.config.block_size:
            what, expected = f"keys of blocks of {keys.block_size}", f"blocks of {self.config.block_size}"
            raise InvalidRangeError("HierarchyBlockManagerPool.begin_prefetch", what, expected)
        prefetch = Prefetch(rank, Prefix(tokens[:], keys.copy()))
        self.prefetches_[prefetch] = None
        return prefetch

    @while_open
    def plan_prefetch(self, prefetch: Prefetch, num_blocks: int) -> list[tuple[int, int]]:
        """The store has so many leading blocks: logical indices and the host ids that they go to.

        Blocks that the host knows are left out, and so are those for which it has no room.

        Raises:
            TransferStateError: it was planned before, has ended, or is of another pool.
            InvalidRangeError: a negative number, or more full blocks than the tokens have.
        """
        self._check_prefetch(prefetch, "plan_prefetch", planned=False)
        tokens, keys = prefetch.prefix
        most = block_index(len(tokens), self.config.block_size)
        if not 0 <= num_blocks <= most:
            where = "HierarchyBlockManagerPool.plan_prefetch"
            raise InvalidRangeError(where, f"{num_blocks} blocks", f"0 to {most}")
        keys.extend(tokens, num_blocks)
        known = self._host_cache(prefetch.rank).entries_
        prefetch.first = next((i for i in range(num_blocks) if keys.chain[i] not in known), num_blocks)
        prefetch.blocks = list(self._host_blocks(prefetch.rank, num_blocks - prefetch.first))
        return [(prefetch.first + n, block.id) for n, block in enumerate(prefetch.blocks)]

    def _host_blocks(self, rank: int, most: int) -> Iterator[Block]:
        for _ in range(most):
            blocks = self.host_block_managers_[rank].allocate(1)
            if blocks is None:
                return
            yield blocks[0]

    @while_open
    def finish_prefetch(self, prefetch: Prefetch, num_arrived: int) -> None:
        """So many of the planned blocks have come, the first ones: they can be found; the others are given back.

        Raises:
            TransferStateError: nothing was planned, it has ended, or is of another pool.
            InvalidRangeError: a negative number, or more than were planned.
        """
        self._check_prefetch(prefetch, "finish_prefetch", planned=True)
        blocks = prefetch.blocks or []
        if not 0 <= num_arrived <= len(blocks):
            where = "HierarchyBlockManagerPool.finish_prefetch"
            raise InvalidRangeError(where, f"{num_arrived} blocks", f"0 to {len(blocks)}")
        self._end_prefetch(prefetch, 0 if prefetch.stale else num_arrived)

    @while_open
    def cancel_prefetch(self, prefetch: Prefetch) -> None:
        """Nothing comes any more; nobody writes to its blocks. Raises `TransferStateError` if it has ended."""
        self._check_prefetch(prefetch, "cancel_prefetch", planned=None)
        self._end_prefetch(prefetch, 0)

    def _end_prefetch(self, prefetch: Prefetch, found: int) -> None:
        host, blocks = self.host_block_managers_[prefetch.rank], prefetch.blocks or []
        tokens, keys = prefetch.prefix
        host.cache(tokens, blocks[:found], keys, prefetch.first)
        host.release_blocks(blocks)
        del self.prefetches_[prefetch]
        prefetch.ended = True

    def _check_prefetch(self, prefetch: Prefetch, method: str, planned: bool | None) -> None:
        is_planned = prefetch.blocks is not None
        if prefetch not in self.prefetches_ or planned not in (None, is_planned):
            state = "ended or of another pool" if prefetch not in self.prefetches_ else f"planned: {is_planned}"
            expected = "one that has begun" if planned is None else f"one that has begun, planned: {planned}"
            raise TransferStateError(f"HierarchyBlockManagerPool.{method}", f"a prefetch that is {state}", expected)

    # -- all tiers ---------------------------------------------------------------------------------------------------
    @while_open
    def reset(self) -> None:
        """Drop every key of both tiers; what is on its way to the host cannot be found there afterwards, and what
        sequences have computed is not published."""
        super().reset()
        self.num_resets_ += 1
        for rank, manager in enumerate(self.host_block_managers_):
            assert manager.prefix_cache_ is not None
            manager.prefix_cache_.reset()
            self._leaving[rank].clear()
        for transfer in self.transfers_:
            transfer.stale = True
        for prefetch in self.prefetches_:
            prefetch.stale = True

    @while_open
    def sleep(self) -> None:
        """The device memory is given up: its keys are dropped, those of the host stay.

        Raises:
            SequenceStateError: it sleeps already, or a block of the device is in use, by a sequence, an outside holder
                or a transfer.
        """
        if self.asleep_:
            raise SequenceStateError("HierarchyBlockManagerPool.sleep", "the pool sleeps", "a call after wake")
        held = [m.num_total_blocks - 1 - m.num_available_blocks for m in map(self._ordinary, range(self.num_ranks))]
        if any(held):
            what = f"{sum(held)} device blocks are in use"
            raise SequenceStateError("HierarchyBlockManagerPool.sleep", what, "none")
        super().reset()
        self.asleep_ = True

    @while_open
    def wake(self) -> None:
        """There is device memory again, with nothing in it. Raises `SequenceStateError` unless it sleeps."""
        if not self.asleep_:
            raise SequenceStateError("HierarchyBlockManagerPool.wake", "it is awake", "a pool that sleeps")
        self.asleep_ = False

    @property
    def num_ranks(self) -> int:
        """Ranks of the pool."""
        return len(self.block_managers_)

    @while_open
    def close(self) -> None:
        """End of life: the sequences have been given back and no copy runs; every later call is an error."""
        for planned in (*self.load_block_transfer_infos_, *self.offload_block_pair_queues_):
            planned.clear()
        for transfer in list(self.transfers_):
            self._end(transfer)
        for prefetch in list(self.prefetches_):
            self._end_prefetch(prefetch, 0)
        super().close()
        for manager in self.host_block_managers_:
            manager.close()

    def _check(self, sequence: Sequence, method: str) -> None:
        if self.asleep_:
            raise SequenceStateError(f"HierarchyBlockManagerPool.{method}", "the pool sleeps", "a call after wake")
        super()._check(sequence, method)
