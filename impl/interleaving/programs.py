"""Small programs of several threads on one manager, as text, and what their operations do.

    blocks 4
    setup: a = allocate 1; publish a 7; b = copy a
    thread: release b; c = allocate 2
    thread: d = match 7 1; finish d

A register holds handles. Setup runs before the threads, step by step. What comes before ``=`` is the register that the
operation fills; an operation on an empty register does nothing. What follows ``#`` is a comment.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from kvspec.impl.block import Block, block_ids
from kvspec.impl.block_manager_impl import BlockManagerImpl
from kvspec.impl.errors import InvalidRangeError
from kvspec.impl.prefix_cache import CacheEntry, PrefixCache

Seen = object
"""What an operation lets its caller see: ids, a number, None, or the name of an error."""

BLOCK_SIZE: Final = 1

MOST_NUMBER: Final = 999
"""The largest number in a program; it keeps pools small, and the tokens of two families apart."""

MOST_THREADS: Final = 64


class ProgramError(InvalidRangeError):
    """A text that is no program.

    Attributes:
        line: where, from 1; None if it is about the whole text.
    """

    def __init__(self, what: str, expected: str, line: int | None = None) -> None:
        super().__init__("program" if line is None else f"program, line {line}", what, expected)
        self.line = line


class Op(NamedTuple):
    """One operation.

    Attributes:
        name: see `OPERATIONS`.
        arguments: registers and numbers.
        target: the register that it fills, "" for none.
    """

    name: str
    arguments: tuple[str | int, ...]
    target: str = ""

    def __str__(self) -> str:
        words = " ".join(map(str, (self.name, *self.arguments)))
        return f"{self.target} = {words}" if self.target else words


class Program(NamedTuple):
    """What runs before the threads, and what each thread does.

    Attributes:
        num_blocks: blocks of the pool, padding included.
    """

    num_blocks: int
    setup: tuple[Op, ...]
    threads: tuple[tuple[Op, ...], ...]

    def __str__(self) -> str:
        lines = [f"blocks {self.num_blocks}"]
        if self.setup:
            lines.append(f"setup: {'; '.join(map(str, self.setup))}")
        lines += [f"thread: {'; '.join(map(str, ops))}" for ops in self.threads]
        return "\n".join(lines)


class Player:
    """A manager and registers: what operations are done to.

    Attributes:
        registers: handles by register; those that the manager refused or that were given back are gone.
    """

    def __init__(self, manager: BlockManagerImpl) -> None:
        self.manager = manager
        self.registers: dict[str, list[Block]] = {}

    def apply(self, op: Op) -> Seen:
        """Do an operation; what its caller sees. An error is seen, whatever it is: a serial manager raises it too."""
        try:
            return OPERATIONS[op.name].run(self, op)
        except Exception as error:
            return type(error).__name__

    def handles(self) -> Iterator[Block]:
        """The live handles of all registers."""
        for blocks in self.registers.values():
            yield from (block for block in blocks if not block.is_released)

    def _fill(self, op: Op, blocks: list[Block] | None) -> Seen:
        self.registers[op.target] = blocks or []
        return None if blocks is None else tuple(block_ids(blocks))

    def _of(self, op: Op, at: int = 0) -> list[Block]:
        return self.registers.get(str(op.arguments[at]), [])


def tokens_of(family: int, count: int) -> array[int]:
    """The first tokens of a sequence; sequences of two families share none."""
    return array("q", range(family * 1000, family * 1000 + count * BLOCK_SIZE))


def _allocate(player: Player, op: Op) -> Seen:
    return player._fill(op, player.manager.allocate(int(op.arguments[0])))


def _match(player: Player, op: Op) -> Seen:
    family, count = map(int, op.arguments)
    return player._fill(op, player.manager.allocate_shared(tokens_of(family, count)))


def _share(player: Player, op: Op) -> Seen:
    return player._fill(op, player.manager.share(player._of(op)))


def _copy(player: Player, op: Op) -> Seen:
    return player._fill(op, [player._of(op)[0].copy()] if player._of(op) else [])


def _publish(player: Player, op: Op) -> Seen:
    blocks = player._of(op)
    return player.manager.cache(tokens_of(int(op.arguments[1]), len(blocks)), blocks) if blocks else "nothing"


def _finish(player: Player, op: Op) -> Seen:
    blocks = player._of(op)
    player.manager.release_blocks(blocks)
    return len(blocks)


def _release(player: Player, op: Op) -> Seen:
    blocks = player._of(op)
    for block in blocks[:1]:
        block.release()
    return len(blocks)


def _evict(player: Player, op: Op) -> Seen:
    cache = player.manager.prefix_cache_
    return cache.evict(int(op.arguments[0])) if cache is not None else "nothing"


def _count(player: Player, op: Op) -> Seen:
    return player.manager.num_available_blocks


class Operation(NamedTuple):
    """What an operation does, and how it is written.

    Attributes:
        run: does it.
        takes: its arguments, "register" or "number" each.
        fills: it fills a register.
    """

    run: Callable[[Player, Op], Seen]
    takes: tuple[str, ...]
    fills: bool


OPERATIONS: Final = {
    "allocate": Operation(_allocate, ("number",), True),
    "match": Operation(_match, ("number", "number"), True),
    "share": Operation(_share, ("register",), True),
    "copy": Operation(_copy, ("register",), True),
    "publish": Operation(_publish, ("register", "number"), False),
    "finish": Operation(_finish, ("register",), False),
    "release": Operation(_release, ("register",), False),
    "evict": Operation(_evict, ("number",), False),
    "count": Operation(_count, (), False),
}
"""``allocate n``, ``match family n`` (a hit of up to n blocks), ``share r`` (handles for another sequence), ``copy r``
(a bare handle of its first block), ``publish r family``, ``finish r`` (a sequence lets go), ``release r`` (of a bare
handle), ``evict n``, ``count`` (available blocks)."""


# -- text -------------------------------------------------------------------------------------------------------------
def parse(text: str) -> Program:
    """A program from its text.

    Raises:
        ProgramError: a line cannot be read; the error names it.
    """
    num_blocks, setup, threads = 0, tuple[Op, ...](), []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        head, _, rest = line.partition(":")
        if head == "setup":
            setup += _ops(rest, number)
        elif head == "thread":
            threads.append(_ops(rest, number))
        elif head.startswith("blocks ") and (blocks := _number(head[7:].strip())) is not None:
            num_blocks = blocks
        elif line:
            raise ProgramError(line, f"blocks N (at most {MOST_NUMBER}), setup: ... or thread: ...", number)
    if num_blocks < 2:
        raise ProgramError(f"{num_blocks} blocks", "a line: blocks N, with N at least 2")
    if len(threads) > MOST_THREADS:
        raise ProgramError(f"{len(threads)} threads", f"at most {MOST_THREADS}")
    return Program(num_blocks, setup, tuple(threads))


def unfilled(program: Program) -> list[str]:
    """Registers that are used and that nothing fills, in the order of their first use."""
    ops = [op for part in (program.setup, *program.threads) for op in part]
    filled = {op.target for op in ops}
    return list(dict.fromkeys(a for op in ops for a in op.arguments if isinstance(a, str) and a not in filled))


def _ops(text: str, line: int) -> tuple[Op, ...]:
    return tuple(_op(part.strip(), line) for part in text.split(";") if part.strip())


def _op(text: str, line: int) -> Op:
    left, equals, right = text.partition("=")
    words = right.split() if equals else text.split()
    known = OPERATIONS.get(words[0]) if words else None
    if known is None:
        raise ProgramError(text, f"one of {', '.join(OPERATIONS)}", line)
    target = left.strip() if equals else ""
    fits = len(words) - 1 == len(known.takes) and bool(equals) == known.fills == target.isidentifier()
    arguments = [_argument(word, kind) for word, kind in zip(words[1:], known.takes, strict=False)]
    if not fits or None in arguments:
        wanted = " ".join([*["register ="] * known.fills, words[0], *known.takes])
        limit = f" (at most {MOST_NUMBER})" if "number" in known.takes else ""
        raise ProgramError(text, wanted + limit, line)
    return Op(words[0], tuple(a for a in arguments if a is not None), target)


def _argument(word: str, kind: str) -> str | int | None:
    if kind == "number":
        return _number(word)
    return word if word.isidentifier() else None


def _number(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= len(str(MOST_NUMBER)) else None


# -- random -----------------------------------------------------------------------------------------------------------
def random_program(seed: int, threads: int, operations: int, num_blocks: int) -> Program:
    """A program whose threads share the blocks of setup, and copy and release each other's handles."""
    draw = random.Random(seed)
    setup = tuple(op for thread in range(threads) for op in _random_setup(thread))
    return Program(
        num_blocks, setup, tuple(tuple(_random_ops(draw, thread, threads, operations)) for thread in range(threads))
    )


def _random_setup(thread: int) -> list[Op]:
    own = f"s{thread}"
    return [Op("allocate", (1,), own), Op("publish", (own, thread)), Op("copy", (own,), f"c{thread}")]


def _random_ops(draw: random.Random, thread: int, threads: int, operations: int) -> Iterator[Op]:
    counted, bare = [f"s{thread}"], [f"c{thread}"]
    for index in range(operations):
        fresh, other = f"r{thread}_{index}", draw.randrange(threads)
        name = draw.choice([name for name in OPERATIONS if bare or name != "release"])
        if name in ("allocate", "match", "share"):
            arguments: dict[str, tuple[str | int, ...]] = {
                "allocate": (draw.randint(1, 2),),
                "match": (other, 1),
                "share": (draw.choice(counted),),
            }
            yield Op(name, arguments[name], fresh)
            counted.append(fresh)
        elif name == "copy":
            yield Op(name, (draw.choice([f"c{other}", *counted]),), fresh)
            bare.append(fresh)
        elif name == "release":
            yield Op(name, (bare.pop(draw.randrange(len(bare))),))
        elif name == "publish":
            yield Op(name, (draw.choice(counted), draw.randrange(threads)))
        elif name == "finish":
            yield Op(name, (draw.choice(counted),))
        else:
            yield Op(name, (1,) if name == "evict" else ())


# -- what can be seen at a moment -------------------------------------------------------------------------------------
def portrait(player: Player) -> tuple[object, ...]:
    """All that the manager will act on, and the registers. Equal for managers that nothing will tell apart."""
    manager = player.manager
    return (
        tuple(manager.free_blocks_[: manager.num_free_blocks_]),
        tuple((r.ref_count_, r.holders_, r.hash_value_) if r and r.live_ else None for r in manager._records),
        manager.num_used_blocks_,
        _cache_portrait(manager),
        tuple(sorted((name, tuple(map(_handle, blocks))) for name, blocks in player.registers.items())),
    )


def _handle(block: Block) -> tuple[int, bool] | None:
    return None if block.record_ is None else (block.record_.id_, block.counted_)


def _cache_portrait(manager: BlockManagerImpl) -> tuple[object, ...]:
    """Entries in the order of their use: the numbers that say it grow for ever."""
    cache = manager.prefix_cache_
    if cache is None:
        return ()

    def order(entry: CacheEntry) -> int:
        return entry.order

    by_use = sorted(cache.entries_.values(), key=order)
    return tuple((e.key, _handle(e), e.key in cache._idle, e.late) for e in by_use), cache.num_idle_


def accounts(manager: BlockManagerImpl, handles: Iterable[Block]) -> str | None:
    """What is wrong with the ids of a manager that no thread is working on, None if they add up.

    Each id is free or named by handles, exactly as many as its count says; padding is never free.

    Args:
        handles: the live ones, without those of the manager and its cache.
    """
    free = manager.free_blocks_[: manager.num_free_blocks_]
    holders = [0] * manager.num_total_blocks
    cache = manager.prefix_cache_
    entries = [] if cache is None else list(cache.entries_.values())
    for block in [manager.padding_block_, *entries, *handles]:
        if block.record_ is None:
            return "lost handle: one that nobody gave back, or that the cache keeps, was released"
        holders[block.record_.id_] += 1
    for block_id, count in enumerate(holders):
        record = manager._records[block_id]
        counted = record.ref_count_ if record is not None and record.live_ else 0
        if block_id in free and count:
            return f"use after free: block {block_id} is free and has {count} handles"
        if free.count(block_id) > 1:
            return f"double free: block {block_id} is {free.count(block_id)} times in the free list"
        if block_id not in free and not count:
            return f"lost id: block {block_id} is not free and has no handle"
        if counted != count:
            return f"lost update: block {block_id} has {count} handles and a count of {counted}"
    return None if cache is None else _idle_accounts(cache)


def _idle_accounts(cache: PrefixCache) -> str | None:
    """Whether those entries wait for eviction that nobody else holds."""
    alone = {key for key, entry in cache.entries_.items() if entry.ref_count == 1}
    first, late = set(cache._idle), {key for key, entry in cache.entries_.items() if entry.late}
    if cache.num_idle_ == len(alone) and first <= alone <= first | late:
        return None
    return f"idle entries: {len(alone)} are held by nobody, {len(first | late)} wait, {cache.num_idle_} are counted"


def drained(manager: BlockManagerImpl, handles: Iterable[Block]) -> str | None:
    """Give all handles back and drop the cache; what keeps ids but padding from being free then (field rule I9)."""
    try:
        for block in list(handles):
            if block.counted_:
                manager.deallocate([block])
            block.release()
        if manager.prefix_cache_ is not None:
            manager.prefix_cache_.reset()
    except Exception as error:
        return f"drain: {type(error).__name__}: {error}"
    free, used = sorted(manager.free_blocks_[: manager.num_free_blocks_]), manager.num_used_blocks_
    if free == list(range(1, manager.num_total_blocks)) and not used:
        return None
    return f"drain: {free} are free and {used} used with no handle left"
