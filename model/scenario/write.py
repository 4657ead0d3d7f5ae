"""From structs to the text of a scenario; `kvspec.model.scenario.parse` reads it back to the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kvspec.model import operations as ops
from kvspec.model.conformance import Context, EngineConfig, PoolConfig
from kvspec.model.plain import printable
from kvspec.model.scenario import language as la

_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_SHORTEST_RANGE: Final = 3


def format_scenario(
    operations: Iterable[ops.Operation | la.Check],
    config: PoolConfig,
    expects: Iterable[la.Check] = (),
    comment: str = "",
) -> str:
    """The text of a scenario of operations.

    Args:
        operations: in their order; checks may stand between them.
        config: the pool.
        expects: checks at the end.
        comment: what the file says first, in lines of its own.
    """
    lines = [*comment_lines(comment), pool_line(config)]
    lines += map(format_item, (*operations, *expects))
    return "\n".join(lines) + "\n"


def format_whole(scenario: la.Scenario) -> str:
    """The text of any scenario, without comments."""
    lines = [pool_line(scenario.config)]
    if scenario.chapter is not None:
        lines.append(f"chapter {word(scenario.chapter)}")
    if scenario.given is not None:
        lines += ["given", *(f"  {format_item(line.item)}" for line in scenario.given), "end"]
    lines += map(format_item, scenario.items)
    return "\n".join(lines) + "\n"


def comment_lines(comment: str) -> list[str]:
    """A comment as lines of a file."""
    return [f"# {printable(line)}".rstrip() for line in comment.splitlines()]


def pool_line(config: PoolConfig) -> str:
    """The line that makes the pool."""
    options = ["no-cache"] * (not config.enable_prefix_cache) + ["sanitizer"] * config.sanitizer
    usual = PoolConfig(num_blocks=2, block_size=1)
    for option, field in la.POOL_SIZES.items():
        if (number := getattr(config, field)) != getattr(usual, field):
            options.append(f"{option} {number}")
    options += [config.trim] * (config.trim != "contiguous")
    if config.engine is not None:
        options += _engine(config.engine)
    for kind in config.manager_types:
        window = "" if kind.window is None else f" window {kind.window}"
        options.append(f"group {kind.num_blocks} block {kind.block_size}{window}")
    return " ".join([f"pool {config.num_blocks} block {config.block_size}", *options])


def _engine(engine: EngineConfig) -> Iterator[str]:
    usual = EngineConfig(variant="")
    yield f"engine {word(engine.variant)}"
    for name, field in la.ENGINE_SIZES.items():
        if getattr(engine, field) != getattr(usual, field):
            yield f"{name} {getattr(engine, field)}"
    yield from (way for way in la.ENGINE_WAYS if getattr(engine, way))


def format_item(item: la.Item) -> str:
    """One line, without its end."""
    match item:
        case ops.Start():
            return _join("start", word(item.seq), *ranges(item.tokens), *_context(item.context))
        case ops.Submit():
            priority = f"priority={item.priority}" if item.priority else ""
            tokens = (*ranges(item.tokens), "then", *ranges(item.output))
            return _join("submit", word(item.seq), *tokens, *_context(item.context), priority)
        case ops.Step():
            return "step" if item.count == 1 else f"step {item.count}"
        case ops.Append():
            return _join("append", word(item.seq), *ranges(item.tokens))
        case ops.Hold():
            return f"hold {word(item.seq)} {item.index} as {word(item.name)}"
        case ops.Write():
            return _join("write", *(f"{word(seq)} {count}" for seq, count in item.batch))
        case ops.SaveFinish() | ops.RestoreFinish():
            verb = _tag(item).removesuffix("finish")
            return _join(f"{verb}{'done' if item.ok else 'failed'}", word(item.seq))
        case ops.Evict():
            return _join("evict", str(item.num_blocks), f"rank {item.rank}" if item.rank else "")
        case ops.TransferFinish():
            return f"transfer_{'done' if item.ok else 'failed'} {item.at}"
        case ops.BeginPrefetch():
            rank = f"rank={item.rank}" if item.rank else ""
            return _join("begin_prefetch", word(item.name), *ranges(item.tokens), *_context(item.context), rank)
        case ops.FailMappings():
            return _join("fail_mappings", *("yes" if fails else "no" for fails in item.failing))
        case ops.Operation():
            return _join(_tag(item), *_fields(item))
        case la.OnRank():
            return _join("expect rank", word(item.seq), "none" if item.number is None else str(item.number))
        case la.Violated():
            return f"expect violation {item.family}" + (f"/{item.rule}" if item.rule else "")
        case la.BrokenInvariant():
            return f"expect broken {item.invariant}"
        case la.Check():
            return _join("expect", _tag(item), *_fields(item))
        case la.EventLine():
            return _join("event", word(item.name), _listed(item.atoms))
        case la.Fact():
            name = '"end"' if item.name == "end" else word(item.name)
            head = _join(name, _listed(item.key or ())) + ("" if item.key is None else ":")
            return _join(head, _listed(item.values))
    raise AssertionError(f"no text for {item!r}")


def word(text: str) -> str:
    """A name as it stands, or quoted where it would not read back."""
    return text if _BARE.fullmatch(text) else json.dumps(text).replace("\x7f", "\\u007f")


def ranges(tokens: Sequence[int]) -> list[str]:
    """Token ids, with runs of consecutive ones as ranges."""
    found: list[str] = []
    start = 0
    for at in range(1, len(tokens) + 1):
        if at < len(tokens) and tokens[at] == tokens[at - 1] + 1:
            continue
        run = tokens[start:at]
        found += [f"{run[0]}..{run[-1]}"] if len(run) >= _SHORTEST_RANGE else map(str, run)
        start = at
    return found


def atom(value: la.Atom) -> str:
    """One argument of an event or fact."""
    match value:
        case la.Mark():
            return value.value
        case la.Seated():
            return f"{word(value.seq)}[{value.index}]"
        case la.Tokens():
            return f"[{' '.join(ranges(value.tokens))}]"
        case la.Group():
            return f"{{{_listed(value.atoms)}}}"
        case int():
            return str(value)
        case str():
            return word(value)


def _listed(atoms: Iterable[la.Atom]) -> str:
    """Atoms with blanks between them; a comma stands close to what is before it."""
    text = ""
    for one in atoms:
        text += atom(one) if one is la.Mark.COMMA or not text else f" {atom(one)}"
    return text


def _context(context: Context) -> list[str]:
    found = []
    if context.adapter is not None:
        found.append(f"adapter={word(context.adapter)}")
    if context.adapter_version:
        found.append(f"version={context.adapter_version}")
    if context.salt is not None:
        found.append(f"salt={word(context.salt)}")
    if context.images:
        found.append(f"images={','.join(map(word, context.images))}")
    return found


def _tag(item: ops.Operation | la.Check) -> str:
    return str(type(item).__struct_config__.tag)


def _fields(item: ops.Operation | la.Check) -> list[str]:
    found = []
    for name in item.__struct_fields__:
        value = getattr(item, name)
        if value is not None:
            text = word(value) if isinstance(value, str) else str(value)
            found.append(f"{name} {text}" if name in ("rank", "group") else text)
    return found


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)
