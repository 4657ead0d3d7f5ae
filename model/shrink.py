"""Makes a failing run of operations small: no line of the result can be taken out without losing the failure.

A candidate counts only if it fails in the same way (the caller decides what that means). Lines go first: those of one
sequence, large pieces, single lines and pairs. One line takes the place of two, and one sequence that of two; tokens,
numbers and contexts become simpler, and the pool smaller. All over again, until nothing changes or the time is used up.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

import kvspec.model.operations as ops
from kvspec.model.conformance import Context, EngineConfig, Form, ManagerType, PoolConfig
from kvspec.model.operations import AnyOperation


class Case(msgspec.Struct, frozen=True):
    """A pool and what is asked of it."""

    config: PoolConfig
    operations: tuple[AnyOperation, ...]


Fails = Callable[[Case], bool]

_SEQUENCE_FIELDS: Final = ("seq", "parent", "child")
_TOKENS: Final = ("tokens", "output")
_PAIRS_UP_TO: Final = 24
_MANY: Final = 40
"""Of so many lines it is faster to take out those of one sequence than one after the other."""
_LONG: Final = 300
"""With so many lines there are too many sequences to take them out one by one."""


def shrink(case: Case, fails: Fails, *, seconds: float = 20.0) -> Case:
    """The smallest case found that still fails.

    Args:
        case: fails.
        fails: whether a case fails in the same way.
        seconds: after this time the best so far is returned; an interruption (Ctrl-C) ends it, too.
    """
    shrinker = Shrinker(case, fails, seconds)
    shrinker.run()
    return shrinker.best


class Shrinker:
    """One search for a smaller case.

    Attributes:
        best: the smallest case so far.
        complete: whether the search came to its end: nothing can be taken out of `best`.
        tries: how many cases were run.
    """

    def __init__(self, case: Case, fails: Fails, seconds: float) -> None:
        self.best = case
        self.complete = False
        self.tries = 0
        self._fails = fails
        self._deadline = time.monotonic() + seconds
        self._seen: set[Case] = {case}

    def run(self) -> None:
        """Search until nothing changes, or the time is used up."""
        passes = (
            self._chunks, self._sequences, self._evictors, self._folds, self._merges, self._publishers, self._hits,
            self._ends, self._pool, self._slides, self._everywhere, self._simpler, self._sequences_and_pool,
            self._pairs,
        )  # fmt: skip
        try:
            self._try(Case(self.best.config, tuple(lives(self.best.operations))))
            if len(self.best.operations) > _MANY:
                self._hits()
                if self.best.config.engine is not None:  # few requests can be taken out alone
                    self._steps()
                    self._chunks()
                self._parts()
                self._sequences()
            while sum(one() for one in passes) or self._any_line():
                pass
            self._try(Case(self.best.config, tuple(renamed(self.best.operations))))
            self.complete = True
        except (TimeoutError, KeyboardInterrupt):
            pass

    def _try(self, case: Case) -> bool:
        """Keep the case if it fails in the same way."""
        if case in self._seen:
            return False
        self._seen.add(case)
        if time.monotonic() > self._deadline:
            raise TimeoutError
        self.tries += 1
        if not self._fails(case):
            return False
        self.best = case
        return True

    def _without(self, taken: Iterable[int]) -> bool:
        out = set(taken)
        kept = tuple(o for i, o in enumerate(self.best.operations) if i not in out)
        return self._try(Case(self.best.config, kept))

    # -- lines ---------------------------------------------------------------------------------------------------

    def _parts(self) -> None:
        """Take large parts out of very many lines."""
        size = len(self.best.operations) // 2
        while size and len(self.best.operations) > _LONG:
            self._chunks_of(size)
            size //= 2

    def _chunks(self) -> bool:
        """Take out runs of lines, half of all at first, single ones at last; from the end, where less hangs on them."""
        changed = False
        size = max(1, len(self.best.operations) // 2)
        while True:
            removed = self._chunks_of(size)
            changed |= removed
            if size == 1 and not removed:
                return changed
            size = max(1, size // 2)

    def _chunks_of(self, size: int) -> bool:
        changed = False
        at = len(self.best.operations)
        while at > 0:
            at = min(at, len(self.best.operations))
            changed |= self._without(range(max(0, at - size), at))
            at -= size
        return changed

    def _sequences(self) -> bool:
        """Take out everything that names a sequence."""
        changed = False
        for name in dict.fromkeys(n for o in self.best.operations for n in names(o)):
            changed |= self._without(i for i, o in enumerate(self.best.operations) if name in names(o))
        return changed

    def _evictors(self) -> bool:
        """Take out a sequence that is there to evict; a call that drops idle keys does so in its place."""
        changed = False
        ranks = range(self.best.config.num_ranks)
        for name in dict.fromkeys(n for o in self.best.operations for n in names(o)):
            lines = self.best.operations
            first = next(i for i, o in enumerate(lines) if name in names(o))
            behind = tuple(o for o in lines[first:] if name not in names(o))
            if len(lines) - first - len(behind) > 1:
                drops = (ops.Evict(self.best.config.num_blocks, rank) for rank in ranks)
                changed |= any(self._try(Case(self.best.config, (*lines[:first], one, *behind))) for one in drops)
        return changed

    def _sequences_and_pool(self) -> bool:
        """Take out a sequence and what it needed: a pool that is too large would hide what was full."""
        changed = False
        for name in dict.fromkeys(n for o in self.best.operations for n in names(o)):
            kept = tuple(o for o in self.best.operations if name not in names(o))
            smaller = (
                _smaller_config(self.best.config, field, value)
                for field, values in _smaller_pool(self.best.config)
                for value in values
            )
            changed |= any(config is not None and self._try(Case(config, kept)) for config in smaller)
        return changed

    def _pairs(self) -> bool:
        """Take out two lines that only make sense together."""
        count = len(self.best.operations)
        if count > _PAIRS_UP_TO:
            return False
        return any(self._without(pair) for pair in itertools.combinations(range(count), 2))

    def _steps(self) -> bool:
        """Many steps of an engine in one line each, where nothing comes between them."""
        return self._try(Case(self.best.config, tuple(_in_one(self.best.operations))))

    def _folds(self) -> bool:
        """Say at the start what is appended later; write at once what is written in parts."""
        changed = False
        for i, j in itertools.combinations(range(len(self.best.operations)), 2):
            lines = self.best.operations
            joined = _joined(lines[i], lines[j]) if j < len(lines) else None
            if joined is not None:
                between = lines[i + 1 : j]
                ways = ((joined, *between), (*between, joined))
                changed |= any(self._try(Case(self.best.config, (*lines[:i], *w, *lines[j + 1 :]))) for w in ways)
        return changed

    def _merges(self) -> bool:
        """Let one sequence do what two did: the line that makes one of them goes, another takes its place."""
        changed = False
        for i, made in enumerate(self.best.operations):
            new = made.child if isinstance(made, ops.Fork) else made.seq if isinstance(made, ops.Start) else None
            if new is None or i >= len(self.best.operations) or self.best.operations[i] is not made:
                continue
            before, after = self.best.operations[:i], self.best.operations[i + 1 :]
            others = dict.fromkeys(n for o in (*before, *after) for n in names(o) if n != new)
            ways = (
                tuple(_called((*lines, *after), new, old))
                for old in others
                for lines in (before, tuple(_going_on(before, old, made)))
            )
            changed |= any(self._try(Case(self.best.config, lines)) for lines in ways)
        return changed

    def _publishers(self) -> bool:
        """Take out a sequence that is there to publish; another publishes what it has written in its place."""
        changed = False
        for name in dict.fromkeys(o.seq for o in self.best.operations if isinstance(o, ops.Cache | ops.Deallocate)):
            kept = tuple(o for o in self.best.operations if name not in names(o))
            written = [(i, o.seq) for i, o in enumerate(kept, 1) if isinstance(o, ops.Write)]
            ways = ((*kept[:i], ops.Cache(seq), *kept[i:]) for i, seq in written)
            changed |= any(self._try(Case(self.best.config, way)) for way in ways)
        return changed

    def _hits(self) -> bool:
        """Let a sequence that hits something compute it; the others, who have computed it before, go."""
        changed = False
        size, hits = self.best.config.block_size, (ops.AllocateShared, ops.Restore, ops.RestoreStart)
        for name in dict.fromkeys(o.seq for o in self.best.operations if isinstance(o, hits)):
            kept = [o for o in self.best.operations if names(o) in ([], [name])]
            known = max((len(o.tokens) for o in kept if isinstance(o, ops.Start)), default=0)
            ways = (tuple(n for o in kept for n in _computing(o, count)) for count in range(size, known + 1, size))
            changed |= any(self._try(Case(self.best.config, way)) for way in ways)
        return changed

    def _ends(self) -> bool:
        """A sequence that gives everything back ends, and what it has computed can be hit: another need not do it."""
        changed = False
        if self.best.config.form is Form.ENGINES:
            return changed  # requests end by themselves
        for i, line in enumerate(self.best.operations):
            if isinstance(line, ops.Abort | ops.Preempt):
                lines = self.best.operations
                changed |= self._try(Case(self.best.config, (*lines[:i], ops.Deallocate(line.seq), *lines[i + 1 :])))
        return changed

    def _any_line(self) -> bool:
        """The last line is one that could be any; what was there for the old one can go."""
        return self._try(Case(self.best.config, (*self.best.operations[:-1], ops.Reset())))

    # -- what lines say ------------------------------------------------------------------------------------------

    def _slides(self) -> bool:
        """The same a block or a token earlier in all sequences."""
        config = self.best.config
        steps = dict.fromkeys((config.block_size, *(kind.block_size for kind in config.manager_types), 1))
        return any(self._try(Case(self.best.config, tuple(earlier(self.best.operations, step)))) for step in steps)

    def _everywhere(self) -> bool:
        """Plainer contexts and smaller tokens, the same in all lines."""
        changed = False
        for context in dict.fromkeys(o.context for o in self.best.operations if isinstance(o, ops.Start | ops.Submit)):
            changed |= any(self._replaced(("context",), context, new) for new in _plainer(context))
        told = (getattr(o, f) for o in self.best.operations for f in _TOKENS if f in o.__struct_fields__)
        for token in dict.fromkeys(t for tokens in told for t in tokens):
            changed |= any(self._replaced(_TOKENS, token, new) for new in _smaller(token))
        return changed

    def _replaced(self, fields: Iterable[str], old: Any, new: Any) -> bool:
        """Put one value in the place of another wherever it stands in one of the fields, or in a tuple there."""
        lines = []
        for line in self.best.operations:
            put = {f: _put(old, new, getattr(line, f)) for f in fields if f in line.__struct_fields__}
            lines.append(msgspec.structs.replace(line, **put) if put else line)
        return self._try(Case(self.best.config, tuple(lines)))

    def _simpler(self) -> bool:
        """Fewer tokens, smaller numbers, plainer contexts."""
        changed = False
        for i in range(len(self.best.operations)):
            while self._simpler_at(i):
                changed = True
        return changed

    def _simpler_at(self, i: int) -> bool:
        lines = self.best.operations
        return any(self._try(Case(self.best.config, (*lines[:i], o, *lines[i + 1 :]))) for o in simpler(lines[i]))

    def _pool(self) -> bool:
        """Fewer and smaller blocks, no options."""
        size = self.best.config.block_size
        if size > 1:
            interval = -(-self.best.config.checkpoint_interval // size)
            page = -(-self.best.config.page_size // size)
            config = msgspec.structs.replace(
                self.best.config, block_size=1, checkpoint_interval=interval, page_size=page
            )
            self._try(Case(config, tuple(_in_blocks(self.best.operations, size))))
        return sum(self._field(name, values) for name, values in _smaller_pool(self.best.config)) > 0

    def _field(self, name: str, values: Iterable[Any]) -> bool:
        for value in values:
            config = _smaller_config(self.best.config, name, value)
            if config is not None and self._try(Case(config, self.best.operations)):
                return True
        return False


def _smaller_config(config: PoolConfig, name: str, value: Any) -> PoolConfig | None:
    """The config with one field smaller; None where the others do not allow that."""
    try:
        return msgspec.structs.replace(config, **{name: value})
    except ValueError:
        return None


def _smaller_pool(config: PoolConfig) -> Iterator[tuple[str, Iterable[Any]]]:
    yield "num_blocks", range(2, config.num_blocks)
    yield "block_size", range(1, config.block_size)
    yield "sanitizer", [False] * config.sanitizer
    if config.is_pool:
        yield "num_ranks", range(1, config.num_ranks)
        yield "num_single_blocks", range(2, config.num_single_blocks)
        yield "num_state_slots", [n for n in (0, *range(2, config.num_state_slots)) if n < config.num_state_slots]
        yield "checkpoint_interval", range(config.checkpoint_interval)
        yield "trim", ["contiguous"] * (config.trim != "contiguous")
    yield "num_threads", range(1, config.num_threads)
    if config.engine is not None:
        yield "engine", _smaller_engine(config.engine)
    if config.num_pages:
        yield "num_pages", range(1, config.num_pages)
        yield "page_size", range(1, config.page_size)
    if config.manager_types:
        yield "manager_types", _smaller_groups(config.manager_types)
    else:
        yield "enable_prefix_cache", [True] * (not config.enable_prefix_cache)


def _smaller_engine(engine: EngineConfig) -> Iterator[EngineConfig]:
    """With a manager of fewer kinds of groups, as engines usually are, or with a smaller number."""
    usual, kinds = EngineConfig(variant=engine.variant), engine.variant.split("+")
    less: list[dict[str, Any]] = [{"variant": kind} for kind in kinds if len(kinds) > 1]
    for field in engine.__struct_fields__:
        value, plain = getattr(engine, field), getattr(usual, field)
        if value != plain:
            numbers = () if isinstance(value, bool) else range(1, value)
            less += [{field: other} for other in (plain, *numbers)]
    yield from (msgspec.structs.replace(engine, **fields) for fields in less)


def _smaller_groups(kinds: tuple[ManagerType, ...]) -> Iterator[tuple[ManagerType, ...]]:
    """Fewer groups, then no window or a shorter one, and smaller or fewer blocks."""
    if len(kinds) > 1:
        yield from (kinds[:at] + kinds[at + 1 :] for at in range(len(kinds)))
    for at, kind in enumerate(kinds):
        windows = () if kind.window is None else (None, *range(1, kind.window))
        less = [{"window": window} for window in windows]
        less += [{"block_size": size} for size in range(1, kind.block_size)]
        less += [{"num_blocks": number} for number in range(2, kind.num_blocks)]
        yield from ((*kinds[:at], msgspec.structs.replace(kind, **fields), *kinds[at + 1 :]) for fields in less)


def _joined(first: AnyOperation, second: AnyOperation) -> AnyOperation | None:
    """One operation in place of two of the same sequence."""
    match first, second:
        case ops.Start() | ops.Append(), ops.Append() if first.seq == second.seq:
            return msgspec.structs.replace(first, tokens=first.tokens + second.tokens)
        case ops.Write(more=()), ops.Write(more=()) if first.seq == second.seq:
            return ops.Write(first.seq, first.num_tokens + second.num_tokens)
        case ops.SaveStart(), ops.SaveFinish(ok=True) if first.seq == second.seq:
            return ops.Save(first.seq)
        case ops.RestoreStart(), ops.RestoreFinish(ok=True) if first.seq == second.seq:
            return ops.Restore(first.seq)
        case ops.AllocateShared() | ops.Allocate(), ops.Allocate() if first.seq == second.seq:
            return second
        case ops.Accept(), ops.Accept() if first.seq == second.seq:
            return second
        case ops.Step(), ops.Step():
            return ops.Step(first.count + second.count)
        case ops.Cache() | ops.Preempt(), ops.Deallocate() if first.seq == second.seq:
            return second
        case ops.Cache(), ops.Abort() | ops.Preempt() if first.seq == second.seq:
            return ops.Deallocate(first.seq)
    return None


def _in_one(operations: Iterable[AnyOperation]) -> Iterator[AnyOperation]:
    """Steps that follow each other as one line."""
    for are_steps, found in itertools.groupby(operations, lambda operation: isinstance(operation, ops.Step)):
        run = tuple(found)
        yield from (ops.Step(sum(o.count for o in run if isinstance(o, ops.Step))),) if are_steps else run


def _computing(operation: AnyOperation, count: int) -> tuple[AnyOperation, ...]:
    """What takes the place of an operation where so many tokens are computed instead of hit."""
    match operation:
        case ops.AllocateShared():
            return ops.Allocate(operation.seq, count), ops.Write(operation.seq, count)
        case ops.Restore() | ops.RestoreStart():
            return (ops.Write(operation.seq, count),)
    return (operation,)


def _going_on(operations: Iterable[AnyOperation], seq: str, made: AnyOperation) -> Iterator[AnyOperation]:
    """With a sequence that does not end, and knows what another one does that is made."""
    known = made.tokens if isinstance(made, ops.Start) else ()
    for operation in operations:
        match operation:
            case ops.Start() if operation.seq == seq and len(known) > len(operation.tokens):
                yield msgspec.structs.replace(operation, tokens=known)
            case ops.Deallocate() if operation.seq == seq:
                yield ops.Cache(seq)
            case ops.Abort() | ops.Preempt() if operation.seq == seq:
                pass
            case _:
                yield operation


def _less_batch(write: ops.Write) -> Iterator[ops.Write]:
    """The same step without one of its sequences, or with fewer tokens of one."""
    batch = write.batch
    for i, (seq, count) in enumerate(batch):
        if len(batch) > 1:
            yield ops.Write.of((*batch[:i], *batch[i + 1 :]))
        for less in _smaller(count):
            yield ops.Write.of((*batch[:i], (seq, less), *batch[i + 1 :]))


def _put(old: Any, new: Any, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_put(old, new, v) for v in value)
    return new if value == old else value


def names(operation: AnyOperation) -> list[str]:
    """Sequences that an operation names."""
    if isinstance(operation, ops.Write):
        return [seq for seq, _ in operation.batch]
    return [getattr(operation, f) for f in operation.__struct_fields__ if f in _SEQUENCE_FIELDS]


def simpler(operation: AnyOperation) -> Iterator[AnyOperation]:
    """Operations of the same kind that say less, the simplest first."""
    if isinstance(operation, ops.Write):
        yield from _less_batch(operation)
        return
    if isinstance(operation, ops.Submit):
        yield from (less for less in _less_fields(operation) if less.tokens and less.output)
        return
    if isinstance(operation, ops.Step):
        yield from (ops.Step(count) for count in _smaller(operation.count) if count)
        return
    yield from _less_fields(operation)


def _less_fields(operation: Any) -> Iterator[Any]:
    """With one field that says less."""
    for field in operation.__struct_fields__:
        value = getattr(operation, field)
        for less in _less(value):
            yield msgspec.structs.replace(operation, **{field: less})


def _less(value: Any) -> Iterator[Any]:
    match value:
        case bool() | str():
            return
        case int():
            yield from _smaller(value)
        case Context():
            yield from _plainer(value)
        case (bool(), *_):
            yield from _fewer(value)
        case tuple():
            yield from _shorter(value)


def _smaller(number: int) -> Iterator[int]:
    """Numbers nearer to 0 with the same sign; 0 first."""
    sign = -1 if number < 0 else 1
    size = abs(number)
    yield from (sign * n for n in sorted({0, 1, 2, 3, size // 2, size - 1}) if 0 <= n < size)


def _plainer(context: Context) -> Iterator[Context]:
    plain = Context()
    if context == plain:
        return
    yield plain
    for field in context.__struct_fields__:
        if getattr(context, field) != getattr(plain, field):
            yield msgspec.structs.replace(context, **{field: getattr(plain, field)})
    if len(context.images) > 1:
        yield msgspec.structs.replace(context, images=context.images[:1])


def _shorter(tokens: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if not tokens:
        return
    yield from ((), tokens[: len(tokens) // 2], tokens[:-1], tokens[1:])
    yield (0,) * len(tokens)
    for i, token in enumerate(tokens):
        for less in (0, 1):
            if less < abs(token):
                yield (*tokens[:i], less, *tokens[i + 1 :])


def _fewer(failing: tuple[bool, ...]) -> Iterator[tuple[bool, ...]]:
    """Less of what is going to fail."""
    yield from ((), failing[:-1], failing[1:])
    yield from ((*failing[:i], False, *failing[i + 1 :]) for i, fails in enumerate(failing) if fails)


def _called(operations: Iterable[AnyOperation], name: str, other: str) -> Iterator[AnyOperation]:
    """A sequence under another name."""
    for operation in operations:
        if isinstance(operation, ops.Write):
            yield ops.Write.of((other if s == name else s, n) for s, n in operation.batch)
            continue
        new = {f: other for f in operation.__struct_fields__ if f in _SEQUENCE_FIELDS and getattr(operation, f) == name}
        yield msgspec.structs.replace(operation, **new) if new else operation


def lives(operations: Iterable[AnyOperation]) -> Iterator[AnyOperation]:
    """A name that is used again after its sequence has ended is another one, so that each sequence has its own."""
    now: dict[str, str] = {}
    ended: set[str] = set()
    for number, operation in enumerate(operations):
        for name in names(operation):
            made = isinstance(operation, ops.Start) or (isinstance(operation, ops.Fork) and name == operation.child)
            if made and name in ended:
                ended.remove(name)
                now[name] = f"{name}/{number}"
        for name in names(operation):
            (operation,) = _called([operation], name, now.get(name, name))
            if isinstance(operation, ops.Abort | ops.Deallocate):
                ended.add(name)
        yield operation


def earlier(operations: Iterable[AnyOperation], step: int) -> Iterator[AnyOperation]:
    """What begins with so many tokens less, all lengths being from the beginning."""
    written: set[str] = set()
    for operation in operations:
        match operation:
            case ops.Start():
                yield msgspec.structs.replace(operation, tokens=operation.tokens[step:])
            case ops.Submit() if len(operation.tokens) > step:
                yield msgspec.structs.replace(operation, tokens=operation.tokens[step:])
            case ops.Allocate() | ops.Truncate() | ops.Accept() if operation.num_tokens >= step:
                yield msgspec.structs.replace(operation, num_tokens=operation.num_tokens - step)
            case ops.Write():
                batch = operation.batch
                first = {s for s, n in batch if s not in written and n >= step}
                written |= first
                yield ops.Write.of((s, n - step if s in first else n) for s, n in batch)
            case _:
                yield operation


def _in_blocks(operations: Iterable[AnyOperation], size: int) -> Iterator[AnyOperation]:
    """A token for each block of tokens."""
    for operation in operations:
        match operation:
            case ops.Start() | ops.Append():
                yield msgspec.structs.replace(operation, tokens=operation.tokens[: -(-len(operation.tokens) // size)])
            case ops.Submit():
                less = {f: (told := getattr(operation, f))[: -(-len(told) // size)] for f in _TOKENS}
                yield msgspec.structs.replace(operation, **less)
            case ops.Write():
                yield ops.Write.of((s, -(-n // size)) for s, n in operation.batch)
            case ops.Allocate() | ops.Truncate():
                yield msgspec.structs.replace(operation, num_tokens=-(-operation.num_tokens // size))
            case _:
                yield operation


def renamed(operations: Iterable[AnyOperation]) -> Iterator[AnyOperation]:
    """Sequences are called a, b, c ... in their order, outside holders h1, h2 ..."""
    given: dict[str, str] = {}
    holders: dict[str, str] = {}
    for operation in operations:
        if isinstance(operation, ops.Write):
            yield ops.Write.of((given.setdefault(s, _letter(len(given))), n) for s, n in operation.batch)
            continue
        new = {}
        for field in operation.__struct_fields__:
            value = getattr(operation, field)
            if field in _SEQUENCE_FIELDS:
                new[field] = given.setdefault(value, _letter(len(given)))
            elif field == "name":
                new[field] = holders.setdefault(value, f"h{len(holders) + 1}")
        yield msgspec.structs.replace(operation, **new) if new else operation


def _letter(number: int) -> str:
    letter = chr(ord("a") + number % 26)
    return letter if number < 26 else f"{letter}{number // 26}"
