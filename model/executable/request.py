"""What the model knows of one sequence."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from kvspec.model.conformance import Context
from kvspec.model.world import NOTHING, TOKEN_BYTES, Chain, Chains


class Request:
    """What the model knows of one sequence beside its table.

    Attributes:
        tokens: known tokens.
        context: what else decides the content.
        computed: how many tokens are written.
    """

    __slots__ = ("_chains", "computed", "context", "tokens")

    def __init__(self, tokens: Iterable[int], context: Context) -> None:
        self.tokens = array("q", tokens)
        self.context = context
        self.computed = 0
        self._chains: list[Chain] = []

    def chain(self, index: int, end: int, chains: Chains) -> Chain:
        """The chain of block `index` up to token `end` (exclusive, at most the end of the block)."""
        size = chains.block_bytes // TOKEN_BYTES
        while len(self._chains) < index:
            self._extend(chains, size)
        if end == (index + 1) * size:
            if len(self._chains) == index:
                self._extend(chains, size)
            return self._chains[index]
        parent = self._chains[index - 1] if index else NOTHING
        return chains.part(parent, self.context, self.tokens[index * size : end].tobytes())

    def _extend(self, chains: Chains, size: int) -> None:
        at = len(self._chains)
        parent = self._chains[-1] if at else NOTHING
        self._chains.append(chains.intern(parent, self.context, self.tokens[at * size : (at + 1) * size].tobytes()))

    def cut(self, num_tokens: int, block_size: int) -> None:
        """Forget the tokens behind the first num_tokens."""
        del self.tokens[num_tokens:]
        del self._chains[num_tokens // block_size :]
        self.computed = min(self.computed, num_tokens)

    def copy(self) -> Request:
        """The same for a forked child."""
        child = Request(self.tokens[:], self.context)
        child.computed, child._chains = self.computed, self._chains[:]
        return child


