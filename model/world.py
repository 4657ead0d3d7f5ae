"""The concrete meaning of chains: interned token prefixes, and the static functions on them.

A chain is what one block holds: its own tokens, and everything before them (the parent, a full block) with the context.
Equal chains are one object, which is what ideal hashing means (chapter `keys`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from kvspec.model.conformance import Context, ManagerType, PoolConfig
from kvspec.spec.language.terms import Path
from kvspec.spec.slots import block_index
from kvspec.spec.window import first_visible

TOKEN_BYTES: Final = 8
"""Tokens are kept as the bytes of an int64 array, so that a prefix of tokens is a prefix of bytes."""


class Chain:
    """The tokens of one block behind all blocks before it.

    Attributes:
        parent: the full block before, or `NOTHING`.
        tokens: this block's tokens as int64 bytes.
        depth: the number of blocks before.
        number: order of creation among the chains that are remembered.
    """

    __slots__ = ("context", "depth", "full", "number", "parent", "tokens")

    def __init__(
        self, parent: Chain | None, context: Context | None, tokens: bytes, depth: int, full: bool, number: int
    ) -> None:
        self.parent, self.context, self.tokens = parent, context, tokens
        self.depth, self.full, self.number = depth, full, number

    def __repr__(self) -> str:
        return "[" + " ".join(map(str, chain_tokens(self))) + "]"


NOTHING: Final = Chain(None, None, b"", 0, False, 0)


def chain_tokens(chain: Chain) -> list[int]:
    """All tokens up to the end of the chain."""
    blocks = []
    at: Chain | None = chain
    while at is not None:
        blocks.append(memoryview(at.tokens).cast("q").tolist())
        at = at.parent
    return [t for block in reversed(blocks) for t in block]


def context_of(chain: Chain) -> Context:
    """What else than tokens decides what the chain is; it is kept where the chain begins."""
    first = chain
    while first.parent is not None and first.parent.number:
        first = first.parent
    return first.context or Context()


class Chains:
    """All chains of a run; equal ones are the same object."""

    def __init__(self, block_size: int) -> None:
        self.block_bytes = block_size * TOKEN_BYTES
        self._known: dict[tuple[Any, ...], Chain] = {}

    def __iter__(self) -> Iterator[Chain]:
        yield NOTHING
        yield from self._known.values()

    def intern(self, parent: Chain, context: Context, tokens: bytes) -> Chain:
        """The chain of these tokens (not more than a block of them) behind a full block or `NOTHING`."""
        if not tokens:
            return NOTHING
        first = parent is NOTHING
        key = (context, tokens) if first else (parent.number, tokens)
        chain = self._known.get(key)
        if chain is None:
            depth = 0 if first else parent.depth + 1
            full = len(tokens) == self.block_bytes
            chain = Chain(parent, context, tokens, depth, full, len(self._known) + 1)
            self._known[key] = chain
        return chain

    def part(self, parent: Chain, context: Context, tokens: bytes) -> Chain:
        """The chain of a block that is not full, not remembered: no key, no parent and so no comparison needs it to be
        the same object again."""
        depth = 0 if parent is NOTHING else parent.depth + 1
        return Chain(parent, context, tokens, depth, False, 0) if tokens else NOTHING

    def statics(self, num_blocks: int) -> dict[Path, Any]:
        """The static words of the chapter `sequences`, for a manager of this size."""
        blocks = ("cache", "blocks")
        return {
            (*blocks, "padding"): 0,
            (*blocks, "usable"): frozenset(range(1, num_blocks)),
            ("cache", "nothing"): NOTHING,
            ("cache", "covers"): covers,
            ("cache", "full"): lambda c: c.full,
            ("parent",): lambda c: c.parent or NOTHING,
            ("depth",): lambda c: c.depth,
        }


def pool_statics(chains: Chains, config: PoolConfig) -> dict[Path, Any]:
    """The static words of the chapter `pool`; all ranks are of one size."""
    ranks: dict[Path, Any] = {("ranks", "kv", *path): word for path, word in chains.statics(config.num_blocks).items()}
    sizes = {("single",): config.num_single_blocks, ("state", "slots"): config.num_state_slots}
    for path, size in sizes.items():
        ranks["ranks", *path, "ids", "padding"] = 0
        ranks["ranks", *path, "ids", "usable"] = frozenset(range(1, size))
    return ranks | {
        ("ranks", "state", "nothing"): NOTHING,
        ("ranks", "state", "longer"): longer,
        ("ranks", "linear"): config.has_linear_state,
        ("ranks", "resumable"): resumable(config),
    }


def tier_statics(chains: Chains, config: PoolConfig) -> dict[Path, Any]:
    """The static words of the chapter `hierarchy`, for the tiers of one rank."""
    found: dict[Path, Any] = {}
    for tier, num_blocks in (("device", config.num_blocks), ("host", config.num_host_blocks)):
        words = chains.statics(num_blocks)
        found |= {(tier, *path[1:]): word for path, word in words.items() if path[0] == "cache"}
    return found


def place_in(kind: ManagerType, token: int) -> int:
    """The place of a token's block in a table of a group (chapter `composite`)."""
    return block_index(token, kind.block_size)


def first_seen(kind: ManagerType, query: int) -> int:
    """The first token that a query of a group sees (chapter `composite`)."""
    return 0 if kind.window is None else first_visible(query, kind.window)


def group_statics(config: PoolConfig) -> dict[Path, Any]:
    """The static words of the chapter `composite`; its blocks are those of the largest group."""
    return {
        ("groups", "blocks", "padding"): 0,
        ("groups", "blocks", "usable"): frozenset(range(1, max(kind.num_blocks for kind in config.manager_types))),
        ("groups", "place_in"): place_in,
        ("groups", "first_seen"): first_seen,
    }


def resumable(config: PoolConfig) -> Callable[[Any], bool]:
    """Whether a state can be restored behind a chain, if it was saved: whole blocks and whole intervals."""
    size, stride = config.block_size, config.stride
    return lambda chain: isinstance(chain, Chain) and chain.full and (chain.depth + 1) * size % stride == 0


def covers(chain: Any, part: Any) -> bool:
    """Whether a block that holds the chain can be read as the part: same blocks before, and these tokens first."""
    if chain is part or part is NOTHING:
        return True
    if not isinstance(chain, Chain) or not isinstance(part, Chain) or chain is NOTHING:
        return False
    if chain.parent is not part.parent or (chain.depth == 0 and chain.context != part.context):
        return False
    return chain.tokens.startswith(part.tokens)


def longer(chain: Any, part: Any) -> bool:
    """Whether the chain begins with all tokens of the part, in the same context, and has more."""
    if not isinstance(chain, Chain) or not isinstance(part, Chain):
        return False
    if part is NOTHING:
        return chain is not NOTHING
    begin = chain
    while begin.depth > part.depth and begin.parent is not None:
        begin = begin.parent
    return covers(begin, part) and (begin is not chain or len(begin.tokens) > len(part.tokens))
