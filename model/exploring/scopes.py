"""Small scopes: how many blocks, sequences, tokens, ... an exploration has, as words that anybody can type.

``blocks=4,seqs=2,len=2`` is a scope. What a chapter has and the text does not name gets the chapter's default, small
enough for seconds. The static words of the chapter mean what they mean in a running model (`kvspec.model.world`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from kvspec.model.concrete import ABSENT, Structure, Variant, evaluate
from kvspec.model.conformance import Context
from kvspec.model.exploring.size import TooLarge, check_statements
from kvspec.model.world import NOTHING, Chain, chain_tokens, covers, longer
from kvspec.spec import load, slots, window
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import MapSort, Path, SetSort
from kvspec.spec.language.traced import StaticSymbol
from kvspec.spec.pages import first_page, last_page, pages_needed

WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "blocks": "physical blocks, padding included",
        "seqs": "sequences",
        "len": "blocks that a sequence can have",
        "tokens": "token sequences whose prefixes are the chains, such as 1.2/1.3",
        "block_size": "tokens of a block",
        "window": "tokens that a query sees in the layers with a window",
        "groups": "groups of layers: the first of full attention, the others with a window",
        "pins": "outside holders",
        "handles": "handle objects",
        "threads": "threads",
        "holders": "holders of blocks; in chapter usage, the sequences",
        "keys": "holders that are no sequences",
        "units": "single ids, padding included",
        "owners": "owners of single ids",
        "slots": "recurrent-state slots, padding included; 1 is none",
        "items": "items that stand in line",
        "stride": "blocks from one boundary that can have a checkpoint to the next",
        "names": "names of adapters, salts and images",
        "versions": "versions of an adapter",
        "digests": "different digests",
        "requests": "callers: the first needs one block, the next two, ...",
        "ranks": "data-parallel ranks, each with all of this",
        "managers": "managers that share physical pages",
        "regions": "regions of each manager, laid out alike",
        "physical": "physical pages, padding included",
        "block_bytes": "bytes of a block in a region",
        "page_bytes": "bytes of a page",
    }
)
"""The words of a scope, and what each counts."""

DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "keys": "seqs=3,len=1,tokens=1,names=1,versions=2,digests=1",
        "blocks": "blocks=4,holders=2",
        "handles": "blocks=4,handles=3",
        "free_list": "blocks=4,handles=3",
        "usage": "blocks=3,holders=2,keys=1",
        "prefix_cache": "blocks=3,seqs=1,len=1,block_size=1,pins=1",
        "recency": "items=3",
        "lru": "blocks=4,seqs=1,len=1,tokens=1/2/3,block_size=1,pins=1",
        "sequences": "blocks=3,seqs=2,len=1,block_size=1,pins=1",
        "single_block": "units=4,owners=2",
        "linear_state": "slots=5,seqs=2,len=1,tokens=1.2/1.3,block_size=2",
        "trim": "len=4,stride=2",
        "admission": "blocks=3,holders=2,keys=1,requests=2",
        "lifecycle": "blocks=2,seqs=1,len=1,tokens=1,block_size=1,units=2,slots=3,stride=1,pins=0",
        "pool": "ranks=2,blocks=2,seqs=1,len=1,tokens=1,block_size=1,units=2,slots=1,stride=1,pins=0",
        "concurrent": "blocks=2,handles=2,threads=2",
        "sliding_window": "blocks=3,seqs=2,len=2,block_size=1,window=1",
        "composite": "groups=2,blocks=2,seqs=1,len=2,block_size=1,window=1",
        "xtensor": "managers=1,blocks=2,holders=1,regions=2,physical=5,block_bytes=3,page_bytes=4",
        "prefetch": "blocks=3,seqs=1,len=2,tokens=1.2,block_size=1,pins=1",
        "hierarchy": "blocks=3,seqs=1,len=1,tokens=1,block_size=1,pins=2",
        "engine": "blocks=3,seqs=2,len=1,tokens=1,block_size=1,pins=1",
    }
)
"""The words of each chapter, with their defaults. Where nothing is said of tokens there are two sequences of them, as
long as a table can be, that share their first block if they have more than one."""

_PADDED: Final = ("blocks", "units", "slots", "physical")
"""Words that count ids of which the first, 0, belongs to nobody."""

_LEAST: Final = {**dict.fromkeys(_PADDED, 2), "slots": 1, "pins": 0}
"""The smallest number of each word, if it is not 1: outside holders and state slots there need not be."""

_TWO: Final = "two"
_FULL, _WINDOWED = "full", "windowed"
_GUIDE: Final = " of kvspec.model.exploring.scopes (see docs/writing-a-chapter.md)"
LARGEST: Final = 64
"""No word counts further: no exploration would end."""

MOST_CHAINS: Final = 1_000
"""Prefixes of one length of one token sequence, under all contexts; each is a key."""


class ScopeError(ValueError):
    """A scope makes no sense: where, what, and what was expected."""

    def __init__(self, where: str, what: str, expected: str) -> None:
        self.where, self.what, self.expected = where, what, expected
        super().__init__(f"{where}: {what}, expected {expected}")


@dataclass(frozen=True)
class Scope:
    """A chapter's words with numbers, and the structure that they stand for.

    Attributes:
        chapter: the name of the chapter.
        text: all words of the scope, in one form for equal scopes.
        structure: carriers and static words.
        given: start values of variables that no init sets.
    """

    chapter: str
    text: str
    structure: Structure
    given: Mapping[Path, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, name: str) -> Scope:
        """The scope that the text describes for the chapter of that name.

        Raises:
            UnknownChapter: there is no such chapter.
            ScopeError: the text is no scope of the chapter.
        """
        chapter = load(name)
        if not chapter.variables:
            raise ScopeError(name, "the chapter has no state: there is nothing to explore", "a chapter with state")
        if name not in DEFAULTS:
            raise ScopeError(name, "no words are known for scopes of the chapter", f"them in DEFAULTS{_GUIDE}")
        allowed = dict(_pairs(DEFAULTS[name], name))
        if "block_size" in allowed and "Chain" in chapter.sorts:
            allowed.setdefault("tokens", _TWO)
        said = {**allowed, **dict(_said(text, name, allowed))}
        sizes = {w: _number(w, v) for w, v in said.items() if w != "tokens"}
        tokens = said.get("tokens")
        lists = () if tokens is None else _token_lists(_two_lists(sizes) if tokens == _TWO else tokens)
        world = _World(sizes, lists)
        words = {w: tokens_text(world.tokens) if w == "tokens" else str(sizes[w]) for w in WORDS if w in allowed}
        scope = ",".join(f"{w}={v}" for w, v in words.items())
        structure = world.structure(chapter)
        _check_axioms(chapter, structure, scope)
        return cls(name, scope, structure, world.given(chapter))


def _pairs(text: str, where: str) -> Iterator[tuple[str, str]]:
    for part in filter(None, (p.strip() for p in text.split(","))):
        word, sign, value = part.partition("=")
        if not sign:
            raise ScopeError(where, f"'{part}'", "word=value, such as blocks=4")
        yield word.strip(), value.strip()


def _said(text: str, name: str, allowed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    seen = set[str]()
    for word, value in _pairs(text, "scope"):
        if word not in WORDS:
            raise ScopeError("scope", f"unknown word '{word}'", f"one of {', '.join(w for w in WORDS if w in allowed)}")
        if word not in allowed:
            wanted = ", ".join(w for w in WORDS if w in allowed)
            raise ScopeError("scope", f"chapter {name} has no {word}", f"one of {wanted}")
        if word in seen:
            raise ScopeError("scope", f"'{word}' is given twice", "each word once")
        seen.add(word)
        yield word, value


def _number(word: str, value: str) -> int:
    least = _LEAST.get(word, 1)
    if not (value.isascii() and value.isdigit() and least <= int(value) <= LARGEST):
        what = f"a number of {word}, one of them padding," if word in _PADDED else "a number"
        raise ScopeError("scope", f"{word}={value}", f"{what} from {least} to {LARGEST}")
    return int(value)


Tokens = tuple[int, ...]


def _token_lists(text: str) -> tuple[Tokens, ...]:
    lists = []
    for part in text.split("/"):
        items = part.split(".")
        if not all(i.isascii() and i.isdigit() and int(i) < 2**31 for i in items):
            raise ScopeError("scope", f"tokens={text}", "numbers with dots between them, such as 1.2/1.3")
        lists.append(tuple(map(int, items)))
    return tuple(lists)


def tokens_text(lists: tuple[Tokens, ...]) -> str:
    """Token sequences as the word `tokens` has them."""
    return "/".join(".".join(map(str, tokens)) for tokens in lists)


def _two_lists(sizes: Mapping[str, int]) -> str:
    """Two token sequences as long as a sequence can be, with the first block in common if they have more than one."""
    size, length = sizes["block_size"], sizes["len"]
    common = size if length > 1 else 0
    one = range(1, size * length + 1)
    other = [*one[:common], *(t + size * length for t in one[common:])]
    return tokens_text((tuple(one), tuple(other)))


def _check_axioms(chapter: Chapter, structure: Structure, scope: str) -> None:
    try:
        check_statements((axiom.term for axiom in chapter.axioms), structure)
    except TooLarge as error:
        raise ScopeError(scope, str(error), "a smaller scope") from error
    for axiom in chapter.axioms:
        if not evaluate(axiom.term, structure, {}):
            raise ScopeError(scope, f"axiom {axiom.name} is false ({axiom.sentence})", "a scope that satisfies it")


class _World:
    """The elements of each sort and what the static words say of them.

    In chapter `keys` the first two sequences apply an adapter, the third has a salt, the fourth shows images.
    """

    def __init__(self, sizes: Mapping[str, int], tokens: tuple[Tokens, ...]) -> None:
        self.sizes, self.tokens = sizes, tokens
        self.block_size = sizes.get("block_size", 1)
        longest = max(map(len, tokens), default=0)
        if longest > self.block_size * sizes.get("len", 0) and tokens:
            raise ScopeError(
                "scope",
                f"tokens={tokens_text(tokens)}: {longest} tokens in one sequence",
                f"at most {self.block_size * sizes['len']} (len={sizes['len']} blocks of {self.block_size})",
            )
        self.names = [f"name{n}" for n in range(sizes.get("names", 0))]
        self.groups = [f"group{n}" for n in range(sizes.get("groups", 0))]
        self.chains = [NOTHING, *self._chains()]

    # -- chains --------------------------------------------------------------------------------------------------

    def _chains(self) -> list[Chain]:
        """All prefixes of the token sequences, under every context that a block can have."""
        found: dict[tuple[Chain, Context, bytes], Chain] = {}
        for tokens in self.tokens:
            parents = [NOTHING]
            for begin in range(0, len(tokens), self.block_size):
                block = tokens[begin : begin + self.block_size]
                if len(parents) * len(self._contexts()) > MOST_CHAINS:
                    what = f"too large a scope: over {MOST_CHAINS:,} chains of one length"
                    raise ScopeError("scope", what, "fewer versions, sequences or tokens")
                parents = [self._grow(found, p, c, block) for p in parents for c in self._contexts()]
        return list(found.values())

    def _grow(
        self, found: dict[tuple[Chain, Context, bytes], Chain], parent: Chain, context: Context, block: Tokens
    ) -> Chain:
        """The chain of a block with all its parts before it."""
        for end in range(1, len(block) + 1):
            data = array("q", block[:end]).tobytes()
            depth = 0 if parent is NOTHING else parent.depth + 1
            key = parent, context, data
            if key not in found:
                found[key] = Chain(parent, context, data, depth, end == self.block_size, len(found) + 1)
        return found[key]

    def _contexts(self) -> list[Context]:
        """One without parts or, in chapter `keys`, those of its sequences."""
        if not self.names:
            return [Context()]
        name = self.names[0]
        applied = [Context(adapter=name, adapter_version=v) for v in range(self.sizes["versions"])]
        return [*applied, Context(salt=name), Context(images=(name,))][: len(applied) + max(self.sizes["seqs"] - 2, 0)]

    # -- the structure -------------------------------------------------------------------------------------------

    def structure(self, chapter: Chapter) -> Structure:
        known = self._carriers(chapter)
        for sort in chapter.sorts.values():
            if sort.kind != "variant" and sort.name not in known:
                raise ScopeError(sort.name, "a sort without elements in scopes", f"them in _carriers{_GUIDE}")
        structure = Structure({name: known[name] for name in chapter.sorts if name in known}, {})
        statics = {path: self._static(symbol, structure) for path, symbol in chapter.statics.items()}
        return Structure(structure.carriers, statics)

    def _carriers(self, chapter: Chapter) -> dict[str, list[Any]]:
        size = self.sizes.get
        held = [v.sort.value if isinstance(v.sort, MapSort) else v.sort for v in chapter.variables.values()]
        grows = chapter.sorts.get("Index") in held
        return {
            "Block": list(range(size("blocks", 0))),
            "Place": list(range(size("blocks", 0) + 1)),
            "Seq": [f"seq{n}" for n in range(size("seqs", 0))],
            "Index": list(range(size("len", 0) + grows)),
            "Token": list(range(size("len", 0) * self.block_size + 1)),
            "ManagerType": [_FULL, _WINDOWED],
            "Group": self.groups,
            "Chain": list(self.chains),
            "Pin": [f"pin{n}" for n in range(size("pins", 0))],
            "Handle": [f"handle{n}" for n in range(size("handles", 0))],
            "Thread": [f"thread{n}" for n in range(size("threads", 0))],
            "Holder": [f"holder{n}" for n in range(size("holders", 0))] + [f"key{n}" for n in range(size("keys", 0))],
            "Name": self.names,
            "Version": list(range(size("versions", 0))),
            "Tokens": list(dict.fromkeys(c.tokens for c in self.chains)),
            "Digest": list(range(size("digests", 0))),
            "Unit": list(range(size("units", 0))),
            "Single": list(range(size("units", 0))),
            "Owner": [f"owner{n}" for n in range(size("owners", 0))],
            "StateSlot": list(range(size("slots", 0))),
            "Request": [f"request{n}" for n in range(size("requests", 0))],
            "Rank": [f"rank{n}" for n in range(size("ranks", 0))],
            "Item": [f"item{n}" for n in range(size("items", 0))],
            "Manager": [f"manager{n}" for n in range(size("managers", 0))],
            "Page": list(range(self._pages())),
            "Region": list(range(size("regions", 0) + 1)),
            "PhysicalPage": list(range(size("physical", 0))),
        }

    def _pages(self) -> int:
        """Virtual pages of a manager: as many as its blocks need."""
        if "page_bytes" not in self.sizes:
            return 0
        return pages_needed(self.sizes["blocks"], self.sizes["block_bytes"], self.sizes["page_bytes"])

    def on_page(self, block: int, page: int) -> bool:
        sizes = self.sizes["block_bytes"], self.sizes["page_bytes"]
        return first_page(block, *sizes) <= page <= last_page(block, *sizes)

    def given(self, chapter: Chapter) -> dict[Path, Any]:
        """In chapter `keys` every adapter has a version from the start; managers have their types."""
        known: dict[Path, Any] = {
            ("version",): dict.fromkeys(self.names, 0),
            ("manager_type",): _WINDOWED,
            ("groups", "manager_type"): {g: _WINDOWED if n else _FULL for n, g in enumerate(self.groups)},
        }
        return {path: known[path] for path in chapter.variables if path in known}

    def _static(self, symbol: StaticSymbol, structure: Structure) -> Any:
        """A constant, or a table of a function; of what is absent nothing is known."""
        name = symbol.path[-1]
        if name not in _MEANINGS:
            raise ScopeError(symbol.name, "a static word without a meaning in scopes", f"one in _MEANINGS{_GUIDE}")
        meaning = _MEANINGS[name]
        if isinstance(symbol.result, SetSort) and not symbol.arguments:
            return frozenset(e for (e,) in structure.tuples(symbol.result.elements) if meaning(self, e))
        if not symbol.arguments:
            return meaning(self)
        table = {args: meaning(self, *args) for args in structure.tuples(symbol.arguments)}
        unknown = {"bool": False}.get(getattr(symbol.result, "kind", ""), ABSENT)
        missing = frozenset[Any]() if isinstance(symbol.result, SetSort) else unknown
        return lambda *args: table.get(args, missing)

    def is_layered(self, chain: Chain) -> bool:
        """In chapter `engine` the first token sequence is for layers of attention; the others lead to states."""
        tokens = chain_tokens(chain)
        return tokens == list(self.tokens[0][: len(tokens)])

    # -- words of chapter `keys` ---------------------------------------------------------------------------------

    def upto(self, chain: Chain, index: int) -> Chain:
        while chain.depth > index and chain.parent is not None:
            chain = chain.parent
        return chain

    def says(self, seq: str, index: int) -> bytes:
        """Sequences take the token sequences in turn."""
        tokens = self.tokens[self._number(seq) % len(self.tokens)]
        return array("q", tokens[index * self.block_size : (index + 1) * self.block_size]).tobytes()

    def kind(self, seq: str) -> str:
        """What a sequence has beside its tokens."""
        return {2: "salt", 3: "image"}.get(self._number(seq), "adapter")

    def has_part(self, seq: str, kind: str, name: str) -> bool:
        return self.kind(seq) == kind and name == self.names[0]

    def _number(self, seq: str) -> int:
        return int(seq.lstrip("abcdefghijklmnopqrstuvwxyz"))


def _parts(chain: Chain) -> frozenset[Variant]:
    context = chain.context or Context()
    parts = [Variant("image", (name,)) for name in context.images]
    parts += [] if context.salt is None else [Variant("salt", (context.salt,))]
    parts += [] if context.adapter is None else [Variant("adapter", (context.adapter, context.adapter_version))]
    return frozenset(parts)


_MEANINGS: Mapping[str, Callable[..., Any]] = {
    "padding": lambda w: 0,
    "usable": lambda w, number: number != 0,
    "capacity": lambda w: w.sizes["blocks"] - 1,
    "first_order": lambda w, place: (place + 1) % w.sizes["blocks"],
    "first_place": lambda w, block: (block - 1) % w.sizes["blocks"],
    "is_sequence": lambda w, holder: holder.startswith("holder"),
    "nothing": lambda w: NOTHING,
    "covers": lambda w, chain, part: covers(chain, part),
    "longer": lambda w, chain, part: longer(chain, part),
    "spaced": lambda w, boundary: boundary % w.sizes["stride"] == 0 != boundary,
    "resumable": lambda w, chain: chain.full and (chain.depth + 1) % w.sizes["stride"] == 0,
    "linear": lambda w: w.sizes["slots"] > 1,
    "needs": lambda w, request: 1 + w._number(request),
    "place_in": lambda w, kind, token: slots.block_index(token, w.block_size),
    "first_seen": lambda w, kind, query: 0 if kind == _FULL else window.first_visible(query, w.sizes["window"]),
    "full": lambda w, chain: chain.full,
    "layered": lambda w, chain: w.is_layered(chain),
    "parent": lambda w, chain: chain.parent or NOTHING,
    "depth": lambda w, chain: chain.depth,
    "tokens": lambda w, chain: chain.tokens,
    "parts": lambda w, chain: _parts(chain),
    "upto": lambda w, chain, index: w.upto(chain, index),
    "digest": lambda w, chain: chain.number % w.sizes["digests"],
    "says": lambda w, seq, index: w.says(seq, index),
    "shows": lambda w, seq, index, name: w.has_part(seq, "image", name),
    "applies": lambda w, seq, name: w.has_part(seq, "adapter", name),
    "regions": lambda w, region: region != w.sizes["regions"],
    "lies_on": lambda w, manager, block, page: w.on_page(block, page),
    "salted": lambda w, seq, name: w.has_part(seq, "salt", name),
}
"""Static words by their own name, whatever instance they belong to; of a set, whether an element is in it."""
