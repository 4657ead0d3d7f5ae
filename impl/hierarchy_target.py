"""`TorchHierarchyTarget`: a `HierarchyBlockManagerPool` with K and V of both tiers in torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Items
from itertools import count

import torch

from kvspec.impl.block_copier import BlockCopier, Ended, HeldCopier
from kvspec.impl.block_transfer import BlockTransfer, Direction, Prefetch, Stage
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.hierarchy_block_manager_pool import HierarchyBlockManagerPool
from kvspec.impl.pool_target import TorchPoolTarget
from kvspec.impl.prefix_cache import PrefixKeys
from kvspec.impl.sanitizer import Memory, Sanitizer
from kvspec.impl.target import cached_blocks
from kvspec.impl.target_base import encoded, operation
from kvspec.impl.tokens import as_tokens
from kvspec.model.conformance import OF_HOST_TIERS, CacheEvent, Capability, Context, Form, PoolConfig, Tags, Transfer

MakeCopier = Callable[[Items[KVBuffers], Items[KVBuffers]], BlockCopier]


class TorchHierarchyTarget(TorchPoolTarget):
    """A pool with a host tier, scheduler and worker in one.

    `start_transfers` begins the copies that were planned. They end when `transfer_finish` says so; with another copier
    they run beside the calls, and `end_transfers` tells the pool what has ended. A sequence that is loading cannot be
    written before.

    Args:
        config: sizes and options, of a pool with a host tier.
        make_copier: who copies, from the buffers of both tiers by rank; see `block_copier` for what fits a
            device.
        device, layers, heads, head_dim, record_events: see `TorchPoolTarget`.
    """

    capabilities: frozenset[Capability] = (
        TorchPoolTarget.capabilities - {Capability.HOLD, Capability.LINEAR_STATE, Capability.STATES} | OF_HOST_TIERS
    )
    name_ = "TorchHierarchyTarget"
    form_ = Form.TIERS
    pool_: HierarchyBlockManagerPool

    def __init__(
        self,
        config: PoolConfig,
        *,
        make_copier: MakeCopier = HeldCopier,
        layers: int = 1,
        heads: int = 1,
        head_dim: int = 2,
        device: torch.device | str = "cpu",
        record_events: bool = True,
    ) -> None:
        super().__init__(
            config, layers=layers, heads=heads, head_dim=head_dim, device=device, record_events=record_events
        )
        self.host_buffers_ = [
            KVBuffers(
                config.num_host_blocks,
                config.block_size,
                layers=layers,
                heads=heads,
                head_dim=head_dim,
                pin_memory=torch.device(device).type == "cuda",
            )
            for _ in range(config.num_ranks)
        ]
        if config.sanitizer:
            for memory in self.host_buffers_:
                memory.guard_padding()
        self._next_number = count(1)
        self._numbers: dict[BlockTransfer, int] = {}
        self._prefetches: dict[str, Prefetch] = {}
        self.copier_ = make_copier(self.buffers_, self.host_buffers_)

    def _make_pool(self, record_events: bool) -> HierarchyBlockManagerPool:
        return HierarchyBlockManagerPool(self.config, copy_blocks=self._copy_blocks, record_events=record_events)

    # -- transfers ---------------------------------------------------------------------------------------------------
    @operation
    def transfers(self, rank: int = 0) -> list[Transfer]:
        """Those of the rank that are planned or have begun, in the order of their plans."""
        self.pool_.check_rank(rank, "transfers")
        names = {id(sequence): seq for seq, sequence in self._sequences.items()}
        numbers = self._number_transfers()
        return [
            Transfer(
                number=numbers[transfer],
                direction="load" if transfer.direction is Direction.LOAD else "offload",
                rank=rank,
                device_block=transfer.device.id,
                host_block=transfer.host.id,
                index=transfer.index,
                seq=names.get(id(transfer.sequence)),
                started=transfer.stage is Stage.STARTED,
            )
            for transfer in self.pool_.transfers_
            if transfer.rank == rank
        ]

    @operation
    def start_transfers(self) -> list[BlockTransfer]:
        """Begin the copies that were planned, of all ranks."""
        started = []
        for rank in range(self.config.num_ranks):
            self._settle(rank)  # what was freed is poisoned before something is copied there
            started += [*self.pool_.start_loads(rank), *self.pool_.start_offloads(rank)]
        self.copier_.start(started)
        return started

    @operation
    def transfer_finish(self, number: int, ok: bool) -> None:
        """A copy is complete, or has failed. Error unless it runs, and the copier waits to be told."""
        transfer = next((t for t, n in self._number_transfers().items() if n == number), None)
        if transfer is None or not isinstance(self.copier_, HeldCopier):
            what = f"transfer {number}, {type(self.copier_).__name__}"
            raise InvalidRangeError("TorchHierarchyTarget.transfer_finish", what, "one that runs, HeldCopier")
        self.copier_.finish(transfer, ok)
        self.pool_.finish_transfer(transfer, ok)

    def _number_transfers(self) -> dict[BlockTransfer, int]:
        """A number for each that has not ended, which it keeps."""
        known = self._numbers
        self._numbers = {t: known[t] if t in known else next(self._next_number) for t in self.pool_.transfers_}
        return self._numbers

    @operation
    def end_transfers(self, wait: bool = False) -> list[Ended]:
        """Tell the pool which copies have ended by themselves; with ``wait`` all that have begun."""
        ended = self.copier_.ended(wait)
        for transfer, ok in ended:
            self.pool_.finish_transfer(transfer, ok)
        return ended

    # -- from a store ------------------------------------------------------------------------------------------------
    @operation
    def begin_prefetch(self, name: str, tokens: Iterable[int], context: Context, rank: int = 0) -> None:
        """A store is asked for leading blocks of these tokens. Error if the name is in use, or for an unknown rank."""
        if name in self._prefetches:
            where = "TorchHierarchyTarget.begin_prefetch"
            raise InvalidRangeError(where, f"{name!r}, which has begun already", "a name that is not in use")
        keys = PrefixKeys(self._block_size, encoded(context))
        self._prefetches[name] = self.pool_.begin_prefetch(as_tokens(tokens), keys, rank)

    @operation
    def plan_prefetch(self, name: str, num_blocks: int) -> list[tuple[int, int]]:
        """The store has so many leading blocks: logical indices and host blocks of those that are to come."""
        return self.pool_.plan_prefetch(self._prefetch(name), num_blocks)

    @operation
    def finish_prefetch(self, name: str, contents: Items[Tags]) -> None:
        """The contents of the first of the planned blocks have come, and no more will."""
        prefetch, size = self._prefetch(name), self._block_size
        blocks = [] if prefetch.blocks is None else [block.id for block in prefetch.blocks]
        self._settle(prefetch.rank)
        for block_id, tags in zip(blocks, contents, strict=False):
            slots = torch.arange(block_id * size, (block_id + 1) * size)
            self.host_buffers_[prefetch.rank].write_tags(slots, tags)
        self.pool_.finish_prefetch(prefetch, len(contents))
        del self._prefetches[name]

    def _prefetch(self, name: str) -> Prefetch:
        if name not in self._prefetches:
            raise InvalidRangeError("TorchHierarchyTarget", f"the prefetch {name!r}", "one that has begun")
        return self._prefetches[name]

    # -- all tiers ---------------------------------------------------------------------------------------------------
    @operation
    def hold(self, block_id: int, rank: int = 0) -> int:
        """Always an error: only copies hold blocks beside sequences."""
        raise InvalidRangeError("TorchHierarchyTarget.hold", f"block {block_id}", "no outside holder in such a pool")

    @operation
    def sleep(self) -> None:
        """Give the device memory up. Error while a block of it is in use."""
        self.pool_.sleep()
        for rank, buffers in enumerate(self.buffers_):
            self._settle(rank)
            buffers.poison(range(self.config.num_blocks))

    @operation
    def wake(self) -> None:
        """There is device memory again. Error unless it sleeps."""
        self.pool_.wake()
        if self.config.sanitizer:
            for buffers in self.buffers_:
                buffers.guard_padding()

    @operation
    def close(self) -> None:
        """Wait for the copies that run, then give everything back; every later operation is an error."""
        self.end_transfers(wait=True)
        self.copier_.close()
        if self.pool_.asleep_:
            self.pool_.wake()  # a sequence cannot leave before
        super().close()

    # -- observations ------------------------------------------------------------------------------------------------
    @operation
    def host_free_ids(self, rank: int = 0) -> set[int]:
        """Host ids of the rank that nobody holds."""
        self.pool_.check_rank(rank, "host_free_ids")
        return set(self.pool_.host_block_managers_[rank].free_ids())

    @operation
    def host_cached(self, rank: int = 0) -> Mapping[bytes, int]:
        """Keys that can be found on the host, and their blocks."""
        self.pool_.check_rank(rank, "host_cached")
        return cached_blocks(self.pool_.host_block_managers_[rank])

    @operation
    def drain_host_events(self, rank: int = 0) -> Items[CacheEvent]:
        """Changes of these keys since the last call, in order."""
        self.pool_.check_rank(rank, "drain_host_events")
        cache = self.pool_.host_block_managers_[rank].prefix_cache_
        return [] if cache is None else cache.drain_events()

    def _watched(self, rank: int) -> Iterator[tuple[Sanitizer, Memory | None]]:
        yield from super()._watched(rank)
        sanitizer = self.pool_.host_block_managers_[rank].sanitizer_
        if sanitizer is not None:
            yield sanitizer, self.host_buffers_[rank]
