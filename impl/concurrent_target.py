"""`TorchConcurrentTarget`: a `ConcurrentBlockManagerImpl` behind the target protocol."""

from __future__ import annotations

from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.concurrent_block_manager_impl import ConcurrentBlockManagerImpl
from kvspec.impl.target import TorchTarget


class TorchConcurrentTarget(TorchTarget):
    """Sequences over one `ConcurrentBlockManagerImpl`, with K and V in torch tensors; for the arguments see
    `TorchTarget`. One call at a time, from any thread."""

    name_ = "TorchConcurrentTarget"

    def _make_manager(self, record_events: bool) -> BlockManagerImpl:
        return ConcurrentBlockManagerImpl(
            self.config.num_blocks,
            self.config.block_size,
            enable_prefix_cache=self.config.enable_prefix_cache,
            sanitizer=self.sanitizer_,
            record_events=record_events,
        )
