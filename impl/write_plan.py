"""`WritePlan`: which cells one forward step writes, checked for each sequence and turned into slots at once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items

import numpy as np

from kvspec.impl.buffers import KVBuffers
from kvspec.impl.errors import InvalidRangeError, InvalidTokensError, KVCacheError, SequenceStateError
from kvspec.impl.paging import window
from kvspec.impl.sequence import Sequence
from kvspec.model.conformance import Tags


def as_tags(tags: Tags | Items[int]) -> Tags:
    """Tags as one-dimensional int64. Raises `InvalidTokensError` for anything else."""
    values = np.asarray(tags)
    if values.ndim != 1 or (values.dtype.kind not in "iu" and len(values)):
        what = f"tags of shape {values.shape} and dtype {values.dtype}"
        raise InvalidTokensError("as_tags", what, "one dimension of integers")
    return values.astype(np.int64, copy=False)


class WritePlan:
    """The next tokens of some sequences whose blocks lie in the same buffers.

    Args:
        block_size: tokens per block.
        where: the operation that errors name.
    """

    __slots__ = (
        "_block_size",
        "_counts",
        "_firsts",
        "_parts",
        "_sequences",
        "_starts",
        "_where",
        "num_tokens",
        "tables",
    )

    def __init__(self, block_size: int, where: str) -> None:
        self._block_size = block_size
        self._where = where
        self._sequences: dict[str, tuple[Sequence, int]] = {}
        self._starts: list[int] = []
        self._firsts: list[int] = []
        self._counts: list[int] = []
        self._parts: list[Tags] = []
        self.tables = array("q")
        self.num_tokens = 0

    def add(self, seq: str, sequence: Sequence, tags: Tags, ids: array[int] | None = None) -> None:
        """The next tokens of a sequence, with their contents; the ids of its blocks, if they are those of a group.

        Raises:
            InvalidRangeError: there is no room, fewer tokens are known, the sequence is there already, or a block
                would be spoilt for its other holders.
            SequenceStateError: the live slot is not that of the computed tokens, or is being copied, or blocks are on
                their way from the host.
        """
        count, start = len(tags), sequence.computed_
        stop = start + count
        if stop > len(sequence.tokens_) or stop > sequence.room or seq in self._sequences:
            raise self._refusal(seq, sequence, count)
        if sequence.resume_ is not None or sequence.saving_ is not None or sequence.loading_:
            copies = {"waits for a restore": sequence.is_waiting, "is being saved": sequence.is_saving}
            doing = next((words for words, holds in copies.items() if holds), "is loading")
            raise SequenceStateError(self._where, f"{seq!r} {doing}", "a write after that")
        forbidden = sequence.forbidden_indices(stop)
        if forbidden:
            what = f"block {sequence.kv_state_.ids_[forbidden[0]]} of {seq!r} has other holders"
            raise InvalidRangeError(self._where, what, f"allocate({seq!r}, {stop}) before the write")
        self._sequences[seq] = (sequence, stop)
        table, first = window(sequence.kv_state_.ids_ if ids is None else ids, start, stop, self._block_size)
        self._starts.append(len(self.tables))
        self._firsts.append(first)
        self._counts.append(count)
        self._parts.append(tags)
        self.tables.extend(table)
        self.num_tokens += count

    def _refusal(self, seq: str, sequence: Sequence, count: int) -> KVCacheError:
        if seq in self._sequences:
            return InvalidRangeError(self._where, f"{seq!r} occurs twice in the batch", "once")
        known, room, computed = len(sequence.tokens_), sequence.room, sequence.computed_
        what = f"{count} more tokens of {seq!r} after {computed}"
        return InvalidRangeError(self._where, what, f"at most {min(known, room)} ({known} known, room {room})")

    def indices(self) -> tuple[Tags, Tags]:
        """For each token the start of its table in `tables`, and its position from there."""
        starts = np.array(self._starts, dtype=np.int64)
        firsts = np.array(self._firsts, dtype=np.int64)
        if self.num_tokens == len(self._counts) and min(self._counts) == 1:  # a decode step: one token each
            return starts, firsts
        counts = np.array(self._counts, dtype=np.int64)
        ends = np.cumsum(counts)
        firsts -= ends - counts
        return np.repeat(starts, counts), np.arange(self.num_tokens, dtype=np.int64) + np.repeat(firsts, counts)

    @property
    def values(self) -> Tags:
        """Contents of all tokens, in the order of `indices`."""
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)

    def steps(self) -> list[tuple[Sequence, Tags]]:
        """The sequences, with the contents of their tokens."""
        return [(sequence, tags) for (sequence, _), tags in zip(self._sequences.values(), self._parts, strict=True)]

    def write(self, buffers: KVBuffers) -> None:
        """One slot computation and one write for all tokens. Raises `InvalidRangeError` for what is no tag."""
        starts, positions = self.indices()
        buffers.write_tags(buffers.slot_ids(self.tables, starts, positions), self.values)

    def commit(self) -> None:
        """The tokens are written."""
        for sequence, stop in self._sequences.values():
            sequence.advance(stop)
