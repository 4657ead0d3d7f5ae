"""From text to `Scenario`: limits first, then the grammar, then what a grammar cannot say."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any, Final, NoReturn

import msgspec
from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedToken

from kvspec.model import operations as ops
from kvspec.model.conformance import Context, EngineConfig, Form, ManagerType, PoolConfig
from kvspec.model.promises import Family
from kvspec.model.scenario import language as la
from kvspec.model.scenario.language import ScenarioError
from kvspec.model.scenario.write import format_item

Node = Tree[Token]

_WORDS: Final[Mapping[str, str]] = {
    "INT": "a number",
    "RANGE": "a range such as 0..15",
    "WORD": "a name",
    "SEAT": "a place such as a[0]",
    "CALL": "a requirement such as blocks.take/pre.1",
    "_NL": "the end of the line",
    "$END": "the end of the file",
    "NO_CACHE": "'no-cache'",
    "ADAPTER": "'adapter='",
    "VERSION": "'version='",
    "SALT": "'salt='",
    "IMAGES": "'images='",
    "ON_RANK": "'rank='",
    "OF_PRIORITY": "'priority='",
    "COMMA": "','",
    "COLON": "':'",
    "SLASH": "'/'",
    "LEFT": "'['",
    "RIGHT": "']'",
    "OPEN": "'{'",
    "CLOSE_GROUP": "'}'",
}
OPERATION_WORDS: Final = frozenset(
    {"START", "ALLOCATE_SHARED", "ALLOCATE", "APPEND", "WRITE", "CACHE", "DEALLOCATE", "PREEMPT", "ABORT"}
    | {"FORK", "TRUNCATE", "EVICT", "RESET", "HOLD", "RELEASE", "CLOSE"}
    | {"SAVE", "SAVE_START", "SAVE_DONE", "SAVE_FAILED"}
    | {"RESTORE", "RESTORE_START", "RESTORE_DONE", "RESTORE_FAILED"}
    | {"ACCEPT", "RECLAIM", "FAIL_MAPPINGS"}
    | {"START_TRANSFERS", "TRANSFER_DONE", "TRANSFER_FAILED", "SLEEP", "WAKE"}
    | {"SUBMIT", "STEP"}
    | {"BEGIN_PREFETCH", "PLAN_PREFETCH", "FINISH_PREFETCH"}
)
"""Terminals of the words that operations begin with."""
_OF_POOLS: Final = (
    ops.Save, ops.SaveStart, ops.SaveFinish, ops.Restore, ops.RestoreStart, ops.RestoreFinish,
    la.Saved, la.Singles, la.Slots, la.Checkpoints, la.OnRank, la.Waiting, la.State,
)  # fmt: skip
_OF_HOST_TIERS: Final = (
    ops.StartTransfers, ops.TransferFinish, ops.Sleep, ops.Wake,
    ops.BeginPrefetch, ops.PlanPrefetch, ops.FinishPrefetch, la.HostFree, la.HostKeys, la.Transfers, la.Loading,
)  # fmt: skip
_OF_PAGES: Final = (ops.Reclaim, ops.FailMappings, la.Mapped)
_OF_ENGINES: Final = (ops.Submit, ops.Step)
_NOT_OF_ENGINES: Final = (
    ops.Start, ops.AllocateShared, ops.Allocate, ops.Append, ops.Write, ops.Cache, ops.Deallocate, ops.Preempt,
    ops.Fork, ops.Truncate, ops.Hold, ops.Release,
)  # fmt: skip
_OF_COMPOSITES: Final = (ops.Accept, la.Released)
OF_FORMS: Final[tuple[tuple[tuple[type, ...], frozenset[Form], str], ...]] = (
    (_OF_POOLS, frozenset({Form.POOLS, Form.TIERS}), "a pool, with 'single N' in its line"),
    (_OF_HOST_TIERS, frozenset({Form.TIERS}), "a host tier, with 'host N' in its line"),
    (_OF_COMPOSITES, frozenset({Form.COMPOSITES}), "a composite, with 'group N block N' in its line"),
    (_OF_PAGES, frozenset({Form.PAGES}), "pages, with 'pages N page N' in the line of the pool"),
    (_OF_ENGINES, frozenset({Form.ENGINES}), "an engine, with 'engine NAME' in the line of the pool"),
    (_NOT_OF_ENGINES, frozenset(Form) - {Form.ENGINES}, "submit, step, abort, evict, reset or close"),
)
"""Operations and checks that only some forms have, and how a scenario gets one."""
_AFTERWARDS: Final = (la.Granted, la.Saved, la.Refused, la.Error, la.Violated, *la.EVENT_CHECKS)
"""Checks of what was done before them."""
_UNPRINTABLE: Final = re.compile(r"[^\t\r\n\x20-\x7e\x80-\U0010ffff]")


def read_scenario(path: str | os.PathLike[str]) -> la.Scenario:
    """The scenario in a file.

    Raises:
        ScenarioError: it is too large, no text, or no scenario.
        OSError: it cannot be read.
    """
    name = os.fspath(path)
    with open(path, "rb") as file:
        data = file.read(la.MAX_BYTES + 1)
    if len(data) > la.MAX_BYTES:
        raise ScenarioError(name, 0, 0, "the file is too long", f"at most {la.MAX_BYTES} bytes")
    try:
        return parse_scenario(data.decode("utf-8"), name)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise ScenarioError(name, line, column, f"byte 0x{data[error.start]:02x}", "UTF-8 text") from None


def parse_scenario(text: str, name: str = "scenario") -> la.Scenario:
    """The scenario that a text describes.

    Raises:
        ScenarioError: with the place, what was found and what was expected.
    """
    _check_limits(text, name)
    try:
        tree = _grammar().parse(text if text.endswith("\n") else text + "\n")
    except UnexpectedToken as error:
        raise _unexpected(error, text, name) from None
    except UnexpectedCharacters as error:
        found = f"'{error.char}'" if error.char.isprintable() else repr(error.char)
        raise ScenarioError(name, error.line, error.column, f"found {found}", _either(error.allowed)) from None
    return _Reader(name).scenario(tree)


def _check_limits(text: str, name: str) -> None:
    if len(text) > la.MAX_BYTES:
        raise ScenarioError(name, 0, 0, "the text is too long", f"at most {la.MAX_BYTES} characters")
    for number, line in enumerate(text.split("\n"), 1):
        if number > la.MAX_LINES:
            raise ScenarioError(name, number, 1, "too many lines", f"at most {la.MAX_LINES}")
        if len(line) > la.MAX_COLUMNS:
            expected = f"at most {la.MAX_COLUMNS} characters"
            raise ScenarioError(name, number, la.MAX_COLUMNS + 1, "the line is too long", expected)
        if bad := _UNPRINTABLE.search(line):
            raise ScenarioError(name, number, bad.start() + 1, f"control character {bad.group()!r}", "printable text")


@cache
def _grammar() -> Lark:
    text = resources.files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", lexer="contextual", propagate_positions=True, maybe_placeholders=True)


def _unexpected(error: UnexpectedToken, text: str, name: str) -> ScenarioError:
    token = error.token
    shown = token.value.splitlines()[0] if token.value.strip() else ""
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    found = f"found '{shown}'" if shown else "the line ends" if token.type == "_NL" else "the file ends"
    at_end = token.type == "$END"
    line, column = (text.count("\n") + 1, 1) if at_end else (token.line or 1, token.column or 1)
    return ScenarioError(name, line, column, found, _either(error.accepts or error.expected))


def _either(terminals: Iterable[str]) -> str:
    found = set(terminals) - {"STRING"}
    words = sorted(_WORDS.get(t, f"'{t.lower()}'") for t in found - OPERATION_WORDS)
    if found >= OPERATION_WORDS:
        words.insert(0, f"an operation ({', '.join(sorted(w.lower() for w in OPERATION_WORDS))})")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if words else "nothing"


class _Reader:
    """Turns the tree into structs, with the place of everything that it refuses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tokens = 0

    def fail(self, at: Any, what: str, expected: str) -> NoReturn:
        place = at.meta if isinstance(at, Tree) else at
        raise ScenarioError(self.name, place.line, place.column, what, expected)

    # -- the whole ---------------------------------------------------------------------------------------------------

    def scenario(self, tree: Node) -> la.Scenario:
        parts = {p.data: p for p in _trees(tree) if p.data in ("pool", "chapter", "given")}
        config = self._pool(parts["pool"])
        given = parts.get("given")
        facts = None if given is None else tuple(self._fact(f) for f in _trees(given))
        lines = tuple(self._line(p) for p in _trees(tree) if p.data not in ("pool", "chapter", "given"))
        chapter = self._text(parts["chapter"].children[1]) if "chapter" in parts else "sequences"
        is_events = "chapter" in parts or given is not None or any(isinstance(x.item, la.EventLine) for x in lines)
        self._one_kind(lines, is_events)
        self._in_form(lines, config)
        self._checks_have_a_subject(lines, given is not None)
        return la.Scenario(self.name, config, lines, chapter if is_events else None, facts)

    def _one_kind(self, lines: tuple[la.Line, ...], is_events: bool) -> None:
        """Events and operations do not mix, and nothing follows an expected violation."""
        for line in lines:
            item = line.item
            if isinstance(item, ops.Operation if is_events else la.EventLine):
                what = "an operation in a scenario of events" if is_events else "an event in a scenario of operations"
                raise ScenarioError(self.name, line.number, 1, what, "only one of the two kinds")
            if isinstance(item, la.Check) and isinstance(item, la.EVENT_CHECKS) != is_events:
                what = "a check of operations" if is_events else "a check of events"
                other = "broken or forbidden" if is_events else "a check of operations"
                raise ScenarioError(self.name, line.number, 1, what, other)
        for line, following in pairwise(lines):
            if isinstance(line.item, la.Violated):
                raise ScenarioError(self.name, following.number, 1, "a line behind a violation", "the end of the file")

    def _in_form(self, lines: tuple[la.Line, ...], config: PoolConfig) -> None:
        """One manager has no ranks, single blocks or states; only composites have groups, and so on."""
        for line in lines:
            for kinds, forms, expected in OF_FORMS:
                has_rank = kinds is _OF_POOLS and getattr(line.item, "rank", None)
                has_group = kinds is _OF_COMPOSITES and getattr(line.item, "group", None) is not None
                has_group = has_group and not (config.form is Form.ENGINES and isinstance(line.item, la.OF_A_TABLE))
                if config.form not in forms and (isinstance(line.item, kinds) or has_rank or has_group):
                    what = f"'{format_item(line.item)}' where {config.form.words} is driven"
                    raise ScenarioError(self.name, line.number, 1, what, expected)

    def _checks_have_a_subject(self, lines: tuple[la.Line, ...], done: bool) -> None:
        """A check of what was done stands behind something that was done, or behind a given state."""
        for line in lines:
            if not done and isinstance(line.item, _AFTERWARDS):
                what = "a check of what was done before anything was"
                raise ScenarioError(self.name, line.number, 1, what, "an operation or event before it")
            done = done or not isinstance(line.item, la.Check) or isinstance(line.item, la.Drained)

    def _pool(self, tree: Node) -> PoolConfig:
        _, blocks, _, size, *options = tree.children
        num_blocks, block_size = self._count(blocks), self._count(size)
        words = self._pool_options([o for o in options if isinstance(o, Tree)])
        engine = self._engine(tree, words)
        if num_blocks < 2:
            self.fail(blocks, f"a pool of {num_blocks} blocks", "at least 2 (block 0 is padding)")
        if block_size < 1:
            self.fail(size, f"blocks of {block_size} tokens", "at least 1")
        if num_blocks * block_size > la.MAX_CELLS:
            self.fail(blocks, f"a pool of {num_blocks * block_size} token cells", f"at most {la.MAX_CELLS}")
        sizes: dict[str, Any] = {field: words[word] for word, field in la.POOL_SIZES.items() if word in words}
        groups = tuple(self._group(o) for o in options if isinstance(o, Tree) and str(o.children[0]) == "group")
        try:
            config = PoolConfig(
                num_blocks=num_blocks,
                block_size=block_size,
                enable_prefix_cache="no-cache" not in words,
                sanitizer="sanitizer" in words,
                trim="deepest" if "deepest" in words else "contiguous",
                manager_types=groups,
                engine=engine,
                **sizes,
            )
        except ValueError as error:
            self._no_pool(tree, error)
        if config.num_ranks > la.MAX_RANKS:
            self.fail(_options(tree)["ranks"], f"'ranks' is {config.num_ranks}", f"at most {la.MAX_RANKS}")
        if config.num_threads > la.MAX_THREADS:
            self.fail(_options(tree)["threads"], f"'threads' is {config.num_threads}", f"at most {la.MAX_THREADS}")
        if config.num_cells > la.MAX_CELLS:
            what = f"a pool of {config.num_cells} cells, single blocks and slots"
            self.fail(tree, what, f"at most {la.MAX_CELLS} on all ranks together")
        return config

    def _no_pool(self, tree: Node, error: ValueError) -> NoReturn:
        """The sizes are no pool's; at the word that is wrong, or at one that needs a word that is missing."""
        field, _, rest = str(error).partition(": ")
        found, _, expected = rest.partition(", expected ")
        names = {known: word for word, known in la.POOL_SIZES.items()} | {"manager_types": "group"}
        name = names.get(field, field)
        places = _options(tree)
        if name not in places:
            wanting = {"single": ("host", "slots", "ranks"), "pages": ("page",)}.get(name, ())
            at = next((places[word] for word in wanting if word in places), tree)
            self.fail(at, f"'{name} N' is missing", expected)
        self.fail(places[name], f"'{name}' is {found}", expected)

    def _pool_options(self, options: list[Node]) -> dict[str, Any]:
        """Words behind the block size, with their numbers."""
        words: dict[str, Any] = {}
        for option in options:
            word = str(option.children[0])
            if word == "group":
                continue
            if word in words:
                self.fail(option, f"'{word}' twice", "each option once")
            words[word] = self._option(option) if len(option.children) > 1 else 0
        if "contiguous" in words and "deepest" in words:
            self.fail(options[-1], "two policies", "contiguous or deepest")
        return words

    def _option(self, option: Node) -> Any:
        """What stands behind a word of the pool line: a number, or the name of an engine's manager."""
        value = option.children[1]
        return self._text(value) if _is_name(value) else self._count(value)

    def _engine(self, tree: Node, words: Mapping[str, Any]) -> EngineConfig | None:
        """How an engine schedules."""
        found = [word for word in (*la.ENGINE_SIZES, *la.ENGINE_WAYS) if word in words]
        if "engine" not in words:
            if found:
                self.fail(_options(tree)[found[0]], f"'{found[0]}' without an engine", "'engine NAME' before it")
            return None
        sizes = {field: words[word] for word, field in la.ENGINE_SIZES.items() if word in words}
        try:
            return EngineConfig(variant=words["engine"], **sizes, **{way: way in words for way in la.ENGINE_WAYS})
        except ValueError as error:
            field, _, rest = str(error).partition(": ")
            word = next(name for name, known in la.ENGINE_SIZES.items() if known == field)
            value, _, expected = rest.partition(", expected ")
            self.fail(_options(tree)[word], f"'{word}' is {value}", expected)

    def _group(self, option: Node) -> ManagerType:
        """A sub-manager of a composite."""
        numbers = [self._count(c) for c in option.children if isinstance(c, Token) and c.type == "INT"]
        try:
            return ManagerType(num_blocks=numbers[0], block_size=numbers[1], window=(*numbers, None)[2])
        except ValueError as error:
            field, _, rest = str(error).partition(": ")
            found, _, expected = rest.partition(", expected ")
            self.fail(option, f"'{field}' of a group is {found}", expected)

    def _line(self, tree: Node) -> la.Line:
        if tree.data == "expect":
            item: la.Item = self._check(tree.children[1])
        elif tree.data == "event":
            _, name, *atoms = tree.children
            item = la.EventLine(self._text(name), self._atoms(atoms))
        else:
            item = _OPERATIONS[tree.data](self, tree.children[1:])
        return la.Line(tree.meta.line, item)

    def _fact(self, tree: Node) -> la.Line:
        name, *rest = tree.children
        colon = next((i for i, c in enumerate(rest) if isinstance(c, Token) and c.type == "COLON"), None)
        found = [c for c in rest if c is not None]
        key = None if colon is None else self._atoms(rest[:colon])
        values = self._atoms(found if colon is None else [c for c in rest[colon + 1 :] if c is not None])
        return la.Line(tree.meta.line, la.Fact(self._text(name), key, values))

    def _check(self, tree: Any) -> la.Check:
        children = tree.children[1:]
        if tree.data == "violation":
            return self._violation(children)
        if tree.data == "broken":
            return la.BrokenInvariant(str(children[0]))
        if tree.data == "rank":
            name, number = children
            if _is_name(number) and self._text(number) != "none":
                self.fail(number, f"rank '{self._text(number)}'", "a number, or none")
            return la.OnRank(self._text(name), None if _is_name(number) else self._count(number))
        given = [c for c in children if c is not None and (_is_name(c) or c.type == "INT")]
        if any(isinstance(c, Token) and c.type == "GROUP" for c in children):
            group = self._count(given.pop())
            return msgspec.structs.replace(self._plain_check(tree.data, given), group=group)
        return self._plain_check(tree.data, given)

    def _plain_check(self, name: str, given: list[Any]) -> la.Check:
        """A check whose fields are names and numbers in their order."""
        return _CHECKS[name](*(self._text(c) if _is_name(c) else self._count(c) for c in given))

    def _violation(self, children: list[Any]) -> la.Check:
        family, _, rule = children
        families = [f.value for f in Family]
        if str(family) not in families:
            self.fail(family, f"unknown family '{family}'", "one of " + ", ".join(families))
        return la.Violated(str(family), None if rule is None else str(rule))

    # -- small things ------------------------------------------------------------------------------------------------

    def start(self, children: list[Any]) -> ops.Operation:
        name, *rest = children
        tokens = self.all_tokens([c for c in rest if c.data == "token"])
        context = self.context([c for c in rest if c.data != "token"])
        return ops.Start(self._text(name), tokens, context)

    def context(self, options: list[Node]) -> Context:
        found: dict[str, Any] = {}
        for option in options:
            key, children = str(option.data), option.children
            if key in found:
                self.fail(option, f"'{key}=' twice", "each option once")
            if key == "version":
                found[key] = self.number(children[1])
            else:
                texts = tuple(self._text(c) for c in children if _is_name(c))
                found[key] = texts if key == "images" else texts[0]
        if "version" in found:
            found["adapter_version"] = found.pop("version")
        return Context(**found)

    def all_tokens(self, children: Iterable[Any]) -> tuple[int, ...]:
        """Token ids, ranges written out."""
        found: list[int] = []
        for child in children:
            token = child.children[0] if isinstance(child, Tree) else child
            first, _, last = str(token).partition("..")
            low, high = self._whole(token, first), self._whole(token, last or first)
            if high < low:
                self.fail(token, f"the range {token} is empty", "the smaller number first")
            self.tokens += high - low + 1
            if self.tokens > la.MAX_TOKENS:
                self.fail(token, "too many tokens", f"at most {la.MAX_TOKENS} in all")
            found.extend(range(low, high + 1))
        return tuple(found)

    def _whole(self, token: Any, text: str) -> int:
        if len(text) > 20 or abs(int(text)) > la.MAX_NUMBER:
            self.fail(token, "a number out of range", f"at most {la.MAX_NUMBER}")
        return int(text)

    def number(self, token: Any) -> int:
        """A number that may be negative: some calls are meant to be errors."""
        return self._whole(token, str(token))

    def _count(self, token: Any) -> int:
        value = self.number(token)
        if value < 0:
            self.fail(token, f"{value}", "0 or more")
        return value

    def _text(self, node: Any) -> str:
        token: Any = node.children[0] if isinstance(node, Tree) else node
        return self._word(token, str(token))

    def _word(self, token: Token, text: str) -> str:
        if not text.startswith('"'):
            return text
        try:
            return str(json.loads(text))
        except ValueError:
            self.fail(token, f"{text}", "a string as in JSON")

    def _atoms(self, nodes: Iterable[Any]) -> tuple[la.Atom, ...]:
        return tuple(self._atom(n.children[0] if n.data == "atom" else n) for n in nodes)

    def _atom(self, node: Any) -> la.Atom:
        if isinstance(node, Tree):
            inner = [c for c in node.children if isinstance(c, Tree) or c.type in ("INT", "RANGE")]
            return la.Group(self._atoms(inner)) if node.data == "group" else la.Tokens(self.all_tokens(inner))
        if node.type == "INT":
            return self.number(node)
        if node.type == "COMMA":
            return la.Mark.COMMA
        if node.type == "SEAT":
            word, _, index = str(node)[:-1].rpartition("[")
            return la.Seated(self._word(node, word), self._whole(node, index))
        return self._word(node, str(node))

    def plain(self, kind: Callable[..., ops.Operation]) -> Callable[[list[Any]], ops.Operation]:
        """An operation whose fields are names and numbers in their order."""

        def make(children: list[Any]) -> ops.Operation:
            fields = [c for c in children if c is not None and (_is_name(c) or c.type == "INT")]
            return kind(*(self._text(c) if _is_name(c) else self.number(c) for c in fields))

        return make


def _trees(tree: Node) -> list[Node]:
    return [c for c in tree.children if isinstance(c, Tree)]


def _options(pool: Node) -> dict[str, Node]:
    """The words of the pool line, with the first place of each."""
    return {str(option.children[0]): option for option in reversed(_trees(pool))}


def _is_name(node: Any) -> bool:
    return isinstance(node, Tree) and node.data in ("name", "variant")


def _plain(kind: Callable[..., ops.Operation]) -> Callable[[_Reader, list[Any]], ops.Operation]:
    return lambda reader, children: reader.plain(kind)(children)


def _append(reader: _Reader, children: list[Any]) -> ops.Operation:
    return ops.Append(reader._text(children[0]), reader.all_tokens(children[1:]))


def _write(reader: _Reader, children: list[Any]) -> ops.Operation:
    found = [c for c in children if c is not None]
    return ops.Write.of((reader._text(s), reader.number(n)) for s, n in zip(found[::2], found[1::2], strict=True))


def _begin_prefetch(reader: _Reader, children: list[Any]) -> ops.Operation:
    name, *rest = children
    tokens = reader.all_tokens([c for c in rest if c.data == "token"])
    context = reader.context([c for c in rest if c.data not in ("token", "on_rank")])
    ranks = [c for c in rest if c.data == "on_rank"]
    if len(ranks) > 1:
        reader.fail(ranks[1], "'rank=' twice", "each option once")
    rank = reader.number(ranks[0].children[1]) if ranks else 0
    return ops.BeginPrefetch(reader._text(name), tokens, context, rank)


def _submit(reader: _Reader, children: list[Any]) -> ops.Operation:
    name, *rest = children
    then = next(at for at, child in enumerate(rest) if isinstance(child, Token))
    before, behind = rest[:then], [c for c in rest[then + 1 :] if c.data == "token"]
    priorities = [c for c in rest[then + 1 :] if c.data == "priority"]
    if len(priorities) > 1:
        reader.fail(priorities[1], "'priority=' twice", "each option once")
    context = reader.context([c for c in rest[then + 1 :] if c.data not in ("token", "priority")])
    priority = reader.number(priorities[0].children[1]) if priorities else 0
    return ops.Submit(reader._text(name), reader.all_tokens(before), reader.all_tokens(behind), context, priority)


def _step(reader: _Reader, children: list[Any]) -> ops.Operation:
    if children[0] is None:
        return ops.Step()
    count = reader.number(children[0])
    if count < 1:
        reader.fail(children[0], f"{count} steps", "at least 1")
    return ops.Step(count)


def _transfer(ok: bool) -> Callable[[_Reader, list[Any]], ops.Operation]:
    return lambda reader, children: ops.TransferFinish(reader.number(children[0]), ok)


def _fail_mappings(reader: _Reader, children: list[Any]) -> ops.Operation:
    return ops.FailMappings(tuple(child.type == "YES" for child in children))


def _finish(kind: Callable[[str, bool], ops.Operation], ok: bool) -> Callable[[_Reader, list[Any]], ops.Operation]:
    return lambda reader, children: kind(reader._text(children[0]), ok)


_OPERATIONS: Final[Mapping[str, Callable[[_Reader, list[Any]], ops.Operation]]] = {
    "start_sequence": _Reader.start,
    "append": _append,
    "allocate_shared": _plain(ops.AllocateShared),
    "allocate": _plain(ops.Allocate),
    "write": _write,
    "cache": _plain(ops.Cache),
    "deallocate": _plain(ops.Deallocate),
    "preempt": _plain(ops.Preempt),
    "abort": _plain(ops.Abort),
    "fork": _plain(ops.Fork),
    "truncate": _plain(ops.Truncate),
    "evict": _plain(ops.Evict),
    "reset": _plain(ops.Reset),
    "hold": _plain(ops.Hold),
    "release": _plain(ops.Release),
    "save": _plain(ops.Save),
    "save_start": _plain(ops.SaveStart),
    "save_done": _finish(ops.SaveFinish, True),
    "save_failed": _finish(ops.SaveFinish, False),
    "restore": _plain(ops.Restore),
    "restore_start": _plain(ops.RestoreStart),
    "restore_done": _finish(ops.RestoreFinish, True),
    "restore_failed": _finish(ops.RestoreFinish, False),
    "accept": _plain(ops.Accept),
    "start_transfers": _plain(ops.StartTransfers),
    "transfer_done": _transfer(True),
    "transfer_failed": _transfer(False),
    "sleep": _plain(ops.Sleep),
    "wake": _plain(ops.Wake),
    "begin_prefetch": _begin_prefetch,
    "plan_prefetch": _plain(ops.PlanPrefetch),
    "finish_prefetch": _plain(ops.FinishPrefetch),
    "reclaim": _plain(ops.Reclaim),
    "fail_mappings": _fail_mappings,
    "submit": _submit,
    "step": _step,
    "close": _plain(ops.Close),
}
_CHECKS: Final[Mapping[str, type[la.Check]]] = {
    "hit": la.Hit,
    "granted": la.Granted,
    "refused": la.Refused,
    "error": la.Error,
    "free": la.Free,
    "used": la.Used,
    "keys": la.Keys,
    "singles": la.Singles,
    "slots": la.Slots,
    "checkpoints": la.Checkpoints,
    "mapped": la.Mapped,
    "host_free": la.HostFree,
    "host_keys": la.HostKeys,
    "transfers": la.Transfers,
    "loading": la.Loading,
    "waiting": la.Waiting,
    "state": la.State,
    "saved": la.Saved,
    "blocks": la.Blocks,
    "released": la.Released,
    "computed": la.Computed,
    "shared": la.Shared,
    "apart": la.Apart,
    "references": la.References,
    "evicted": la.Evicted,
    "drained": la.Drained,
    "forbidden": la.Forbidden,
}
