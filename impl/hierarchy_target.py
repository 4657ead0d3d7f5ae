"""`TorchHierarchyTarget`: a `HierarchyBlockManagerPool` with K and V of both tiers in torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from kvspec.impl.block_copier import BlockCopier, Ended, block_copier
from kvspec.impl.block_transfer import BlockTransfer
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.hierarchy_block_manager_pool import HierarchyBlockManagerPool
from kvspec.impl.paging import block_index
from kvspec.impl.pool_target import TorchPoolTarget
from kvspec.impl.prefix_cache import PrefixKeys
from kvspec.impl.sanitizer import Memory, Sanitizer
from kvspec.impl.target import cached_blocks
from kvspec.impl.target_base import encoded, operation
from kvspec.impl.tokens import as_tokens
from kvspec.model.conformance import Context, Form, PoolConfig, Tags

MakeCopier = Callable[[Sequence[KVBuffers], Sequence[KVBuffers]], BlockCopier]


class TorchHierarchyTarget(TorchPoolTarget):
    """A pool with a host tier, scheduler and worker in one.

    Copies run beside the calls: `start_transfers` begins what was planned, `end_transfers` tells the pool what has
    ended. A sequence that is loading cannot be written before.

    Args:
        config: sizes and options, of a pool with a host tier.
        make_copier: who copies, from the buffers of both tiers by rank; by default as fits the device.
        device, layers, heads, head_dim, record_events: see `TorchPoolTarget`.
    """

    name_ = "TorchHierarchyTarget"
    form_ = Form.TIERS
    pool_: HierarchyBlockManagerPool

    def __init__(
        self,
        config: PoolConfig,
        *,
        make_copier: MakeCopier = block_copier,
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
        self.copier_ = make_copier(self.buffers_, self.host_buffers_)

    def _make_pool(self, record_events: bool) -> HierarchyBlockManagerPool:
        return HierarchyBlockManagerPool(self.config, copy_blocks=self._copy_blocks, record_events=record_events)

    # -- transfers ---------------------------------------------------------------------------------------------------
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
    def end_transfers(self, wait: bool = False) -> list[Ended]:
        """Tell the pool which copies have ended; with ``wait`` all that have begun."""
        ended = self.copier_.ended(wait)
        for transfer, ok in ended:
            self.pool_.finish_transfer(transfer, ok)
        return ended

    @operation
    def prefetch(
        self, tokens: Iterable[int], context: Context, rank: int, num_arrived: int, contents: Tags
    ) -> list[int]:
        """Full blocks of a prefix come from a store to the host, the first num_arrived of those that were planned.

        Args:
            tokens: the prefix.
            context: what it stands in.
            rank: where to.
            num_arrived: how many of the planned blocks arrive, at most.
            contents: the tag of each token.
        Returns:
            The logical indices of the blocks that have come.
        """
        size = self._block_size
        known = as_tokens(tokens)
        prefetch = self.pool_.begin_prefetch(known, PrefixKeys(size, encoded(context)), rank)
        planned = self.pool_.plan_prefetch(prefetch, block_index(len(known), size))
        self._settle(rank)
        arrived = planned[:num_arrived]
        for index, block_id in arrived:
            slots = torch.arange(block_id * size, (block_id + 1) * size)
            self.host_buffers_[rank].write_tags(slots, contents[index * size : (index + 1) * size])
        self.pool_.finish_prefetch(prefetch, len(arrived))
        return [index for index, _ in arrived]

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
        super().close()

    # -- observations ------------------------------------------------------------------------------------------------
    @operation
    def host_free_ids(self, rank: int) -> set[int]:
        """Host ids of the rank that nobody holds."""
        self.pool_.check_rank(rank, "host_free_ids")
        return set(self.pool_.host_block_managers_[rank].free_ids())

    @operation
    def host_cached(self, rank: int) -> Mapping[bytes, int]:
        """Keys that can be found on the host, and their blocks."""
        self.pool_.check_rank(rank, "host_cached")
        return cached_blocks(self.pool_.host_block_managers_[rank])

    def _watched(self, rank: int) -> Iterator[tuple[Sanitizer, Memory | None]]:
        yield from super()._watched(rank)
        sanitizer = self.pool_.host_block_managers_[rank].sanitizer_
        if sanitizer is not None:
            yield sanitizer, self.host_buffers_[rank]
