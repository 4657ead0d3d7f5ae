"""Contents of device cells: what each token must have left where it was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import xxhash

from kvspec.model.acceptor.judging import P, View
from kvspec.model.acceptor.keys import KeyJudging
from kvspec.model.conformance import Capability, Context, PoolConfig, Tags, Target
from kvspec.model.promises import Family, Violation
from kvspec.model.workload import CHAIN_START, ChainState, chain_tags


class ContentJudging(KeyJudging[P]):
    """Follows the contents."""

    def __init__(self, target: Target, config: PoolConfig, pool: P, every: int, views: Sequence[View]) -> None:
        super().__init__(target, config, pool, every, views)
        self._tags: dict[str, tuple[Tags, ChainState | None]] = {}
        self._parts: dict[str, int] = {}

    def read(self, seq: str, start: int, stop: int) -> Tags:
        """Contents of computed tokens, checked against what the tokens must have left there."""
        return self._read(seq, start, stop)

    def _read(self, seq: str, start: int, stop: int, counted: bool = True) -> Tags:
        if not self.sees(Capability.CONTENTS) or stop <= start:
            return np.empty(0, np.int64)
        size = self.config.block_size
        shown = self.target.read(seq, start, stop)
        found = self._as_written(seq, shown, start, stop, lambda at: self.pool.block(seq, at // size))
        self.counts["reads"] += counted
        return found

    def _as_written(self, seq: str, shown: Tags, start: int, stop: int, block_of: Callable[[int], object]) -> Tags:
        """What was read of computed tokens, if it is what they must have left."""
        found, wanted = np.asarray(shown), self._wanted(seq, stop)[start:stop]
        if found.tobytes() != wanted.tobytes() and not np.array_equal(found, wanted):
            at = start + int(np.argmax(found != wanted)) if len(found) == len(wanted) else start
            part = f", read from token {start} on," if start else ""
            what = f"token {at} of {seq} (block {block_of(at)}){part} reads as other content than was computed for it"
            raise Violation(Family.CONTENT, "content", what)
        return found

    def _read_parts(self, seq: str, computed: int) -> None:
        """After a change also what is between two places: to the end, and a single token."""
        if computed > 1 and self._parts.get(seq) != computed:
            start = 1 + 5 * computed % (computed - 1)
            self._read(seq, start, computed, counted=False)
            self._read(seq, computed // 2, computed // 2 + 1, counted=False)
        self._parts[seq] = computed

    def _wanted(self, seq: str, stop: int) -> Tags:
        """What the tokens before `stop` leave in their cells."""
        tags, state = self._tags[seq]
        request = self.pool.requests[seq]
        if len(tags) < stop:
            if state is None:
                tags, state = tags[:0], context_start(request.context)
            more, state = chain_tags(np.array(request.tokens[len(tags) :], dtype=np.int64), state)
            tags = np.concatenate((tags, more))
            self._tags[seq] = (tags, state)
        return tags

    def _tag(self, seq: str, wanted: int | Tags) -> Tags:
        if not isinstance(wanted, int):
            return wanted
        done = self.pool.requests[seq].computed
        return self._wanted(seq, done + wanted)[done : done + wanted]

    def _cut(self, seq: str, num_tokens: int) -> None:
        """Tokens behind the first num_tokens are rejected."""
        self._tags[seq] = (self._tags[seq][0][:num_tokens], None)

    def _forget_contents(self, seq: str) -> None:
        self._tags.pop(seq, None)
        self._parts.pop(seq, None)


def context_start(context: Context) -> ChainState:
    """Where the tags of a context's tokens begin: the same tokens leave other contents under another adapter."""
    if context == Context():
        return CHAIN_START
    return ChainState(xxhash.xxh3_64_intdigest(msgspec.json.encode(context)), 0)
