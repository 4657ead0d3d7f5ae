"""The model of an engine's memory: one state of chapter `engine` for each store, and the tables of all requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kvspec.model.compiled import Broken, Compiled
from kvspec.model.conformance import Context, MisuseError, PoolConfig
from kvspec.model.engines.protocol import Group, Layout, Store
from kvspec.model.executable import texts
from kvspec.model.executable.request import Request
from kvspec.model.world import NOTHING, Chain, Chains, covers
from kvspec.spec.language.terms import Path

_NO_BLOCK: Final = -1
"""What stands for the padding block: it is never shown, since reserved blocks are in no store."""

_NONE: Final = Layout((Store((), "unheld"),), (Group(0, "opaque", 1),), 1, 1)
"""How an engine is set up that has not said it yet."""

Table = list[int | None]


class GroupContext(Context, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The context of what a group's blocks contain: layers of one group have nothing of another's."""

    group: int
    is_state: bool


class Place(NamedTuple):
    """A place of a table: of which request, in which group, and where."""

    seq: str
    group: int
    at: int

    @property
    def table(self) -> str:
        """The name of the table in the chapter."""
        return f"{self.seq}/{self.group}"

    def __str__(self) -> str:
        return f"{self.seq}[{self.at}]" + (f" in group {self.group}" if self.group else "")


class EngineRequest:
    """What the model knows of one request.

    Attributes:
        tokens: the prompt, and all that it will generate.
        known: how many of them the host knows.
        computed: how many the device has computed.
        furthest: how many were ever computed, or hit.
        hit: how many were found in the cache when it was admitted last.
        tables: for each group the block of every place.
        groups: what each group's blocks contain.
    """

    def __init__(self, prompt: tuple[int, ...], output: tuple[int, ...], context: Context, layout: Layout) -> None:
        self.tokens = (*prompt, *output)
        self.context = context
        self.known = len(prompt)
        self.computed = self.furthest = self.hit = 0
        self.tables: list[Table] = [[] for _ in layout.groups]
        parts = {name: getattr(context, name) for name in context.__struct_fields__}
        self.groups = [
            Request(self.tokens, GroupContext(**parts, group=number, is_state=group.kind == "state"))
            for number, group in enumerate(layout.groups)
        ]


class Memory:
    """One store: the chapter's state of its blocks."""

    def __init__(self, watch: bool, ghosts: bool) -> None:
        self.store = Store((), "unheld")
        carriers = {"Block": lambda: self.store.ids}
        self.machine = Compiled(texts.engine(), _statics(self.store), carriers, watch, ghosts)
        state, self.fire = self.machine.state, self.machine.events
        self.free: set[int] = state["blocks", "free"]
        self.holders: dict[int, set[Any]] = state["blocks", "holders"]
        self.keyed: set[int] = state[("keyed",)]
        self.key: dict[int, Chain] = state[("key",)]
        self.ahead: set[int] = state[("ahead",)]
        self._content: dict[int, Chain] = state[("content",)]

    def restart(self, store: Store) -> None:
        """A store of this size, in its first state."""
        self.store = store
        self.machine.restart(_statics(store))

    def content(self, block: int) -> Chain:
        """What is in a block."""
        return self._content.get(block, NOTHING)

    @property
    def keys(self) -> dict[Chain, set[int]]:
        """What can be found, and the blocks that have it."""
        found: dict[Chain, set[int]] = {}
        for block in self.keyed:
            found.setdefault(self.key[block], set()).add(block)
        return found

    def users(self, block: int) -> list[Any]:
        """Who holds the block beside the cache."""
        return [seat for seat in self.holders.get(block, ()) if seat[0] != "cache_of"]

    @property
    def unheld(self) -> int:
        """Blocks that nobody but the cache holds."""
        return sum(1 for block in self.store.ids if not self.users(block))


def _statics(store: Store) -> dict[Path, Any]:
    """The static words of the chapter `engine`."""
    return {
        ("blocks", "padding"): _NO_BLOCK,
        ("blocks", "usable"): frozenset(store.ids),
        ("nothing",): NOTHING,
        ("covers",): covers,
        ("layered",): _layered,
    }


def _layered(chain: Any) -> bool:
    """Whether what the chain stands for is written before it is read in one step: keys and values, not states."""
    return not (isinstance(chain, Chain) and isinstance(chain.context, GroupContext) and chain.context.is_state)


class EnginePool:
    """The executable model of an engine's memory; `set_up` makes it one of a layout.

    Attributes:
        config, layout: how the engine is set up.
        requests: those that are not over, by name.
    """

    def __init__(self, config: PoolConfig, watch: bool = True, ghosts: bool = True) -> None:
        self.config = config
        self._watch, self._ghosts = watch, ghosts
        self._spare: list[Memory] = []
        self.memories: list[Memory] = []
        self.requests: dict[str, EngineRequest] = {}
        self.layout = _NONE
        self._chains: list[Chains] = []

    def restart(self, config: PoolConfig) -> None:
        """Nothing is there; `set_up` comes next."""
        self.config = config
        self.requests.clear()

    def set_up(self, layout: Layout) -> None:
        """An empty memory of this layout."""
        self.layout = layout
        while len(self._spare) < len(layout.stores):
            self._spare.append(Memory(self._watch, self._ghosts))
        self.memories = self._spare[: len(layout.stores)]
        for memory, store in zip(self.memories, layout.stores, strict=True):
            memory.restart(store)
        self._chains = [Chains(1 if group.kind == "state" else group.block_size) for group in layout.groups]
        self.requests.clear()

    # -- what there is -------------------------------------------------------------------------------------------

    def parts(self) -> list[Any]:
        """There are no ranks."""
        return []

    def request(self, seq: str) -> EngineRequest:
        """A request that is not over.

        Raises:
            MisuseError: there is none of that name.
        """
        if seq not in self.requests:
            raise MisuseError(f"{seq} is unknown")
        return self.requests[seq]

    def group(self, place: Place) -> Group:
        """The group of a place."""
        return self.layout.groups[place.group]

    def memory(self, place: Place) -> Memory:
        """The store of a place."""
        return self.memories[self.group(place).store]

    def places(self, store: int, block: int) -> Iterator[Place]:
        """Where a block of a store stands in tables."""
        for seq, request in self.requests.items():
            for number, table in enumerate(request.tables):
                if self.layout.groups[number].store == store:
                    yield from (Place(seq, number, i) for i, held in enumerate(table) if held == block)

    def chain(self, place: Place, stop: int) -> Chain:
        """What a block of attention at this place contains up to token `stop`."""
        request = self.requests[place.seq]
        return request.groups[place.group].chain(place.at, stop, self._chains[place.group])

    def state(self, seq: str, group: int, num_tokens: int) -> Chain:
        """The state behind so many tokens."""
        if not num_tokens:
            return NOTHING
        return self.requests[seq].groups[group].chain(num_tokens - 1, num_tokens, self._chains[group])

    def whole(self, place: Place) -> Chain | None:
        """What a key of a block at this place stands for; None if the request has not so many tokens, or the content
        does not hang on the place."""
        group, request = self.group(place), self.requests[place.seq]
        stop = (place.at + 1) * group.block_size
        if stop > len(request.tokens) or group.kind == "opaque":
            return None
        if group.kind == "attention":
            return self.chain(place, stop)
        return self.state(place.seq, place.group, stop) if group.aligned else None

    # -- hits ----------------------------------------------------------------------------------------------------

    def longest_hit(self, seq: str, limit: int) -> int:
        """The most tokens, at most `limit`, that can be found in the cache."""
        if not self.config.enable_prefix_cache or not any(group.reuse for group in self.layout.groups):
            return 0
        stride, there = self.layout.hit_stride, [memory.keys for memory in self.memories]
        return next((n for n in range(limit // stride * stride, 0, -stride) if self._can_hit(seq, n, there)), 0)

    def _can_hit(self, seq: str, num_tokens: int, there: list[dict[Chain, set[int]]]) -> bool:
        return all(
            self._found(there[group.store], self.memories[group.store].ahead, chain)
            for number, group in enumerate(self.layout.groups)
            for chain in self.needed(seq, number, num_tokens)
        )

    def _found(self, keys: dict[Chain, set[int]], ahead: set[int], chain: Chain) -> bool:
        """Whether a block with this content can be mounted or, where it is not a whole one, copied.

        Only layers that write before they read find there what is still to be written; a copy is made before.
        """
        if chain.full:
            return chain in keys and (_layered(chain) or bool(keys[chain] - ahead))
        return any(covers(key, chain) and bool(blocks - ahead) for key, blocks in keys.items())

    def needed(self, seq: str, number: int, num_tokens: int) -> list[Chain]:
        """What a group needs for a hit of so many tokens."""
        group = self.layout.groups[number]
        if not group.reuse:
            return []
        if group.kind == "state":
            return [self.state(seq, number, num_tokens)]
        size, first = group.block_size, self.first_seen(number, num_tokens)
        return [
            self.chain(Place(seq, number, index), min((index + 1) * size, num_tokens))
            for index in range(first // size, -(-num_tokens // size))
        ]

    def first_seen(self, number: int, query: int) -> int:
        """The first token that a query of a group sees."""
        window = self.layout.groups[number].window
        return 0 if window is None else max(0, query - window + 1)

    def sweep(self) -> list[Broken]:
        """Invariants of the chapter that do not hold in the whole state."""
        return [broken for memory in self.memories for broken in memory.machine.sweep()]
