"""Who copies blocks between the tiers (seed 9.4, H2D and D2G): a thread on the CPU, side streams on CUDA, or nobody
before it is told to.

A copier is told to start transfers and asked which have ended, with or without success. It neither plans nor tells
the pool. Every copy can be made late or made to fail (`Fate`), so that what depends on their order can be tested.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

import torch

from kvspec.impl.block_transfer import BlockTransfer, Direction
from kvspec.impl.buffers import KVBuffers
from kvspec.impl.closing import while_open
from kvspec.impl.errors import KernelUnavailableError, TransferStateError

_CUDA: Final[Any] = torch.cuda
"""Its functions have no types."""
_CYCLES_PER_SECOND: Final = 10**9
"""About as many as a device has."""


class Fate(NamedTuple):
    """What becomes of a copy.

    Attributes:
        seconds: how long it waits before it begins.
        ok: whether it is complete at its end; where not, the target has been spoilt.
    """

    seconds: float = 0.0
    ok: bool = True


class Ended(NamedTuple):
    """A copy that has ended."""

    transfer: BlockTransfer
    ok: bool


GOOD = Fate()


def _good(transfer: BlockTransfer) -> Fate:
    return GOOD


class BlockCopier(ABC):
    """Copies between the device and host buffers of each rank.

    Args:
        device, host: buffers by rank, of equal cells.
        fate: what becomes of each copy; by default it begins at once and is complete.
    """

    def __init__(
        self,
        device: Sequence[KVBuffers],
        host: Sequence[KVBuffers],
        fate: Callable[[BlockTransfer], Fate] = _good,
    ) -> None:
        self.closed_ = False
        self._device, self._host, self._fate = device, host, fate

    @abstractmethod
    def start(self, transfers: Iterable[BlockTransfer]) -> None:
        """Begin these copies, behind everything that was done on the device until now. They end in any order."""

    @abstractmethod
    def ended(self, wait: bool = False) -> list[Ended]:
        """The copies that have ended since the last call; with ``wait`` all that were started."""

    def close(self) -> None:
        """Wait for the copies that run; every later call is an error."""
        self.ended(wait=True)
        self.closed_ = True

    def _copy(self, transfer: BlockTransfer, ok: bool) -> None:
        """Copy a block; a copy that fails leaves nothing there that could be read."""
        device, host = self._device[transfer.rank], self._host[transfer.rank]
        source, target = (host, device) if transfer.direction is Direction.LOAD else (device, host)
        if ok:
            target.copy_from(source, [(transfer.source_id, transfer.target_id)])
        else:
            target.poison([transfer.target_id])


class HeldCopier(BlockCopier):
    """Copies a block when it is told to, and not before: a copy that has begun can take as long as somebody likes.

    Args:
        device, host, fate: see `BlockCopier`; a fate does not wait, since nothing goes on by itself.
    """

    def __init__(
        self,
        device: Sequence[KVBuffers],
        host: Sequence[KVBuffers],
        fate: Callable[[BlockTransfer], Fate] = _good,
    ) -> None:
        super().__init__(device, host, fate)
        self._begun: dict[BlockTransfer, None] = {}

    @while_open
    def start(self, transfers: Iterable[BlockTransfer]) -> None:
        """See `BlockCopier.start`."""
        self._begun.update(dict.fromkeys(transfers))

    @while_open
    def finish(self, transfer: BlockTransfer, ok: bool) -> None:
        """Copy the block now, or fail. Raises `TransferStateError` if the copy has not begun."""
        if transfer not in self._begun:
            raise TransferStateError("HeldCopier.finish", repr(transfer), "a copy that has begun")
        del self._begun[transfer]
        self._copy(transfer, ok)

    @while_open
    def ended(self, wait: bool = False) -> list[Ended]:
        """See `BlockCopier.ended`: none, or with ``wait`` all."""
        found = [Ended(transfer, self._fate(transfer).ok) for transfer in self._begun] if wait else []
        for transfer, ok in found:
            self.finish(transfer, ok)
        return found


class ThreadCopier(BlockCopier):
    """One thread, which copies in the order in which it is told to.

    A copy that raises has failed; the errors are kept in ``errors_``.

    Args:
        device, host, fate: see `BlockCopier`.
    """

    def __init__(
        self,
        device: Sequence[KVBuffers],
        host: Sequence[KVBuffers],
        fate: Callable[[BlockTransfer], Fate] = _good,
    ) -> None:
        super().__init__(device, host, fate)
        self.errors_: list[Exception] = []
        self._running = 0
        self._waiting: SimpleQueue[BlockTransfer | None] = SimpleQueue()
        self._done: SimpleQueue[Ended] = SimpleQueue()
        self._never = threading.Event()
        self._thread = threading.Thread(target=self._work, name="kvspec block copier", daemon=True)
        self._thread.start()

    @while_open
    def start(self, transfers: Iterable[BlockTransfer]) -> None:
        """See `BlockCopier.start`; on the CPU everything that came before is done already."""
        for transfer in transfers:
            self._running += 1
            self._waiting.put(transfer)

    @while_open
    def ended(self, wait: bool = False) -> list[Ended]:
        """See `BlockCopier.ended`."""
        found = []
        while self._running:
            try:
                found.append(self._done.get(block=wait))
            except Empty:
                break
            self._running -= 1
        return found

    def close(self) -> None:
        """See `BlockCopier.close`; the thread ends."""
        if not self.closed_:
            super().close()
            self._waiting.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (transfer := self._waiting.get()) is not None:
            self._done.put(Ended(transfer, self._copied(transfer)))

    def _copied(self, transfer: BlockTransfer) -> bool:
        try:
            fate = self._fate(transfer)
            self._never.wait(fate.seconds)
            self._copy(transfer, fate.ok)
        except Exception as error:
            self.errors_.append(error)
            return False
        return fate.ok


class StreamCopier(BlockCopier):
    """A stream for each direction beside the one that computes; the host buffers are pinned.

    Args:
        device, host, fate: see `BlockCopier`. The seconds of a `Fate` are spent on the stream of the copy.
    Raises:
        KernelUnavailableError: the device buffers are not on CUDA.
    """

    def __init__(
        self,
        device: Sequence[KVBuffers],
        host: Sequence[KVBuffers],
        fate: Callable[[BlockTransfer], Fate] = _good,
    ) -> None:
        super().__init__(device, host, fate)
        where = device[0].device_
        if where.type != "cuda":
            raise KernelUnavailableError("StreamCopier", f"device {where}", "a CUDA device")
        self._streams = {direction: _CUDA.Stream(where) for direction in Direction}
        self._running: list[tuple[Any, Ended]] = []

    @while_open
    def start(self, transfers: Iterable[BlockTransfer]) -> None:
        """See `BlockCopier.start`: the copies wait for what the computing stream was given before."""
        for stream in self._streams.values():
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        for transfer in transfers:
            fate, stream = self._fate(transfer), self._streams[transfer.direction]
            with torch.cuda.stream(stream):
                _CUDA._sleep(int(fate.seconds * _CYCLES_PER_SECOND))
                self._copy(transfer, fate.ok)
                event = _CUDA.Event()
                event.record(stream)
            self._running.append((event, Ended(transfer, fate.ok)))

    @while_open
    def ended(self, wait: bool = False) -> list[Ended]:
        """See `BlockCopier.ended`. What the computing stream is given afterwards sees the copies that have ended."""
        found, running = [], []
        for event, end in self._running:
            if wait:
                event.synchronize()
            if event.query():
                found.append(end)
                torch.cuda.current_stream().wait_event(event)
            else:
                running.append((event, end))
        self._running = running
        return found


def block_copier(
    device: Sequence[KVBuffers], host: Sequence[KVBuffers], fate: Callable[[BlockTransfer], Fate] = _good
) -> BlockCopier:
    """The copier for the device that the buffers are on."""
    kind = StreamCopier if device[0].device_.type == "cuda" else ThreadCopier
    return kind(device, host, fate)
