"""What a log has told of a state that nobody has seen whole: a reading of the spec with a third truth value.

A log that begins in the middle of a run says little of the state that it begins in. Here each element of a set and each
cell of a map is unknown until something tells: a snapshot; an event, since what it requires must have held; and an
invariant, where all but one of the things it speaks of are known. An event whose requirement is false by what is known
could not have happened, whatever the rest was; one that would only be wrong for some unknown is believed, and learned
from. So nothing is reported that a correct manager could have done. Some of what it could not have done is missed.

Values are as in `kvspec.model.compiled`; truth values are True, False and `UNKNOWN`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kvspec.model.compiled.touch import Query, violations
from kvspec.model.concrete import ABSENT, Structure, bare, default
from kvspec.model.scenario.events import NUMBERED
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import AnySort, MapSort, Path, SetSort, Sort, Term
from kvspec.spec.language.traced import Effect, Requirement, Statement, TracedEvent


class Unknown:
    """A truth value, or any other, that nothing has told."""

    def __repr__(self) -> str:
        return "unknown"

    def __bool__(self) -> bool:
        raise TypeError("an unknown value is neither true nor false")


UNKNOWN: Final = Unknown()
_MANY: Final = 4096
"""Values that are tried to find out whether a statement about all of them holds; if there are more it is unknown."""
_FEW: Final = 64
"""Values that are tried where an invariant leaves a variable open, or a key is unknown; if there are more, less is
learned."""
_SPLITS: Final = 4
"""Conditions of one event that may be unknown at once and are looked at case by case."""

Env = Mapping[Term, Any]


@dataclass
class Members:
    """What is known of a set.

    Attributes:
        yes, no: elements that are in it, and that are not.
        maybe: elements that nothing is known of, although the set is not open.
        open: whether nothing is known of the other elements; they are not in it otherwise.
        some: whether it is known to have a member.
    """

    yes: Any = field(default_factory=set)
    no: set[Any] = field(default_factory=set)
    maybe: set[Any] = field(default_factory=set)
    open: bool = True
    some: bool = False

    def has(self, x: Any) -> Any:
        if x in self.yes:
            return True
        if x in self.no:
            return False
        return UNKNOWN if self.open or x in self.maybe else False

    @property
    def empty(self) -> Any:
        if self.yes or self.some:
            return False
        return UNKNOWN if self.open or self.maybe else True

    def put(self, x: Any, status: Any) -> None:
        """From now on this is what is known of the element."""
        for one in (self.yes, self.no, self.maybe):
            one.discard(x)
        if status is UNKNOWN:
            if not self.open:
                self.maybe.add(x)
        elif status:
            self.yes.add(x)
        elif self.open:
            self.no.add(x)

    def close(self) -> None:
        """It has no other members than those that are known."""
        self.open = False
        self.no.clear()
        self.maybe.clear()

    def copy(self) -> Members:
        return Members(set(self.yes), set(self.no), set(self.maybe), self.open, self.some)


def _empty() -> Members:
    return Members(open=False)


@dataclass
class Table:
    """What is known of a map: its cells, and what stands in all others."""

    cells: dict[Any, Any] = field(default_factory=dict)
    rest: Any = UNKNOWN


class _Rule(NamedTuple):
    """A set that a statement describes."""

    term: Term
    env: Env


class Contradiction(Exception):
    """What is known cannot all be so: by a statement, or by itself (None)."""

    def __init__(self, statement: Statement | None = None) -> None:
        self.statement = statement
        super().__init__("" if statement is None else f"{statement.name}: {statement.sentence}")


class NotPossible(Exception):
    """An event requires what is known to be false."""

    def __init__(self, event: TracedEvent, requirement: Requirement, by: Statement | None) -> None:
        self.event, self.requirement, self.by = event, requirement, by
        super().__init__(f"{event.name}: the requirement at {requirement.where} does not hold")


class _Read(NamedTuple):
    """Where a query reads a variable: keys, and the element whose membership is asked."""

    query: Query
    term: Term
    keys: tuple[Term, ...]
    element: tuple[Term, ...] | None


class _Way(NamedTuple):
    """Values that a condition leaves, and what they are values of."""

    patterns: tuple[Term, ...]
    values: Collection[Any]


class _Change(NamedTuple):
    """A cell of which more is known; where part of its key is `UNKNOWN`, some cell that has the element."""

    path: Path
    key: Any
    element: Any


class _Somewhere(NamedTuple):
    """The key of a cell, partly unknown, and the terms that would say it."""

    parts: tuple[Any, ...]
    terms: tuple[Term, ...]


class Known:
    """A chapter, and what is known of its state.

    Args:
        chapter: whose state it is.
        structure: what its static words mean.
    """

    def __init__(self, chapter: Chapter, structure: Structure) -> None:
        self.chapter, self.structure = chapter, structure
        self.ghosts = frozenset(p for p, v in chapter.variables.items() if v.ghost)
        self.state: dict[Path, Any] = {p: _nothing_known(v.sort) for p, v in chapter.variables.items()}
        self._reads: dict[Path, list[_Read]] = defaultdict(list)
        for statement in (*chapter.lower_invariants, *chapter.invariants):
            if not any(t.op == "state" and t.data in self.ghosts for t in T.subterms(statement.term)):
                for query in violations(statement):
                    self._index(query)
        self._changed: list[_Change] = []
        self._supposed: dict[Term, bool] = {}
        self.concluding = False
        """What is assumed follows from an invariant, not from an event."""
        self._requires: Sequence[Requirement] = ()
        self._env: Env = {}

    def _index(self, query: Query) -> None:
        for t in (t for literal in query.literals for t in T.subterms(literal)):
            whole = t.args[0] if t.op == "has" else t
            cell, keys = (whole.args[0], whole.args[1:]) if whole.op == "get" else (whole, ())
            if cell.op == "state" and (t.op == "has" or not isinstance(t.sort, (SetSort, MapSort)) or t.op == "get"):
                self._reads[cell.data].append(_Read(query, t, keys, t.args[1:] if t.op == "has" else None))
            elif t.op == "empty" and whole is t and t.args[0].op == "state":
                self._reads[t.args[0].data].append(_Read(query, t, (), None))

    # -- what is known -------------------------------------------------------------------------------------------

    def cell(self, path: Path, key: Any) -> Any:
        """What is known of a variable, or of one cell of a map."""
        known = self.state[path]
        if not isinstance(known, Table):
            return known
        if key in known.cells:
            return known.cells[key]
        if known.rest is UNKNOWN and isinstance(self._sort(path), SetSort):
            return Members()
        return known.rest

    def _sort(self, path: Path) -> Sort | SetSort:
        sort = self.chapter.variables[path].sort
        return sort.value if isinstance(sort, MapSort) else sort

    def _own(self, path: Path, key: Any) -> Members:
        """The set itself, to be changed."""
        known = self.state[path]
        if not isinstance(known, Table):
            assert isinstance(known, Members)
            return known
        if key not in known.cells:
            known.cells[key] = Members() if known.rest is UNKNOWN else known.rest.copy()
        found = known.cells[key]
        assert isinstance(found, Members)
        return found

    def _store(self, path: Path, key: Any, value: Any) -> None:
        known = self.state[path]
        if isinstance(known, Table) and key is not None:
            known.cells[key] = value
        else:
            self.state[path] = value
        self._changed.append(_Change(path, key, None))

    def _put(self, path: Path, key: Any, element: Any, status: Any) -> None:
        self._own(path, key).put(element, status)
        self._changed.append(_Change(path, key, element))

    # -- learning ------------------------------------------------------------------------------------------------

    def fire(self, event: TracedEvent, arguments: Sequence[Any]) -> bool:
        """An event has happened.

        Returns:
            Whether everything that it requires was known.

        Raises:
            NotPossible: what is known forbids it.
            Contradiction: what it leads to breaks an invariant.
        """
        env = dict(zip(event.parameters, arguments, strict=True))
        self._requires, self._env = event.requires, env
        certain = True
        for requirement in event.requires:
            held = self.value(requirement.term, env)
            if held is UNKNOWN:
                certain = False
                try:
                    self.assume(requirement.term, env, True)
                    self._conclude()
                except Contradiction as error:
                    raise NotPossible(event, requirement, error.statement) from None
            elif not held:
                raise NotPossible(event, requirement, None)
        self._apply([e for e in event.effects if e.path not in self.ghosts], env)
        self._conclude()
        return certain

    def tell(self, path: Path, key: Any, value: Any) -> None:
        """A snapshot says what a variable, or a cell of a map, is.

        Raises:
            Contradiction: it is known to be something else.
        """
        if isinstance(self._sort(path), SetSort):
            self._tell_set(path, key, value)
        elif self.cell(path, key) is UNKNOWN:
            self._store(path, key, value)
        elif self.cell(path, key) != value:
            raise Contradiction
        self._conclude()

    def _tell_set(self, path: Path, key: Any, value: Iterable[Any]) -> None:
        mine, told = self.cell(path, key), set(value)
        wrong = not mine.yes <= told or told & mine.no or (not told and mine.some)
        if wrong or (not mine.open and not told <= mine.yes | mine.maybe):
            raise Contradiction
        self._store(path, key, Members(told, open=False))
        self._changed += [_Change(path, key, x) for x in told]

    def assume(self, t: Term, env: Env, want: bool) -> None:
        """A statement is true, or false: remember what follows for single cells.

        Raises:
            Contradiction: the opposite is known.
        """
        held = self.value(t, env)
        if held is UNKNOWN:
            if (rule := _RULES.get(t.op)) is not None:
                rule(self, t, env, want)
        elif held != want:
            raise Contradiction

    def _conclude(self) -> None:
        """What follows from what has become known, by the invariants."""
        self.concluding = True
        try:
            self._follow()
        finally:
            self.concluding = False

    def _follow(self) -> None:
        while self._changed:
            change = self._changed.pop()
            somewhere = _is_open(change.key)
            for read in self._reads[change.path]:
                if somewhere and read.element is None:
                    continue
                for env in self._instances(read, change):
                    self._supposed |= {read.term: True} if somewhere else {}
                    self._unit(read.query, env)
                    self._supposed.pop(read.term, None)

    def _unit(self, query: Query, env: Env) -> None:
        """Of an invariant's ways to fail, at least one condition must be false."""
        left = None
        for literal in query.literals:
            held = self.value(literal, env)
            if held is UNKNOWN:
                if left is not None:
                    return
                left = literal
            elif not held:
                return
        if left is None:
            self._changed.clear()
            self._supposed.clear()
            raise Contradiction(query.statement)
        self.assume(left, env, False)

    def _instances(self, read: _Read, change: _Change) -> Iterator[Env]:
        """Values of a query's variables for which it reads what has changed; none where a whole map has."""
        env: dict[Term, Any] = {}
        if read.keys and change.key is None:
            return
        keys = (change.key,) if len(read.keys) == 1 else change.key
        if read.keys and not all(self._match(p, v, env) for p, v in zip(read.keys, keys, strict=True)):
            return
        if read.element is not None and change.element is not None:
            parts = (change.element,) if len(read.element) == 1 else change.element
            if not all(self._match(p, v, env) for p, v in zip(read.element, parts, strict=True)):
                return
        yield from self._complete(read.query, env, _FEW)

    def _complete(self, query: Query, env: dict[Term, Any], most: int) -> Iterator[Env]:
        """Values for the variables that are open, from the condition that leaves fewest; none if they are too many."""
        left = {v for v in query.variables if v not in env}
        if not left:
            yield env
            return
        ways = [way for literal in query.literals if (way := self._way(literal, env, left)) is not None]
        fewest = min(ways, key=lambda way: len(way.values), default=None)
        if fewest is None or len(fewest.values) > most:
            return
        for value in fewest.values:
            more = dict(env)
            parts = (value,) if len(fewest.patterns) == 1 else value
            fits = all(self._match(p, v, more) for p, v in zip(fewest.patterns, parts, strict=True))
            if fits and len(more) > len(env):
                yield from self._complete(query, more, most)

    def _way(self, literal: Term, env: dict[Term, Any], left: set[Term]) -> _Way | None:
        """What a condition leaves for the open variables, if it says that."""
        if literal.op == "eq":
            for variable, other in (literal.args, literal.args[::-1]):
                if variable in left and not other.free & left:
                    value = self.value(other, env)
                    return _Way((variable,), () if value is UNKNOWN else (value,))
        if literal.op != "has" or not literal.free & left or literal.args[0].free & left:
            return None
        members = self.members(literal.args[0], env)
        return None if isinstance(members, _Rule) else _Way(literal.args[1:], members.yes)

    def _match(self, pattern: Term, value: Any, env: dict[Term, Any]) -> bool:
        """Whether the pattern can be the value; variables that it leaves open get theirs."""
        if pattern.op == "var":
            return bool(env.setdefault(pattern, value) == value)
        if pattern.op == "case" and value is not UNKNOWN:
            fits = isinstance(value, tuple) and value[0] == pattern.data
            return fits and all(self._match(p, v, env) for p, v in zip(pattern.args, value[1:], strict=True))
        return True  # what it really is comes out when the statement is looked at

    # -- changes -------------------------------------------------------------------------------------------------

    def _apply(self, effects: Sequence[Effect], env: Env) -> None:
        """Change what the event changes; where that rests on something unknown, keep what is the same either way."""
        worlds = list(self._worlds(effects, env, _SPLITS))
        touched = dict.fromkeys((path, key) for world in worlds for path, key, _, _ in world)
        meant = {at: self._meant(*at) for at in touched if isinstance(at[1], _Somewhere)}
        for path, key in touched:
            steps = [[(e, v) for p, k, e, v in world if (p, k) == (path, key)] for world in worlds]
            if isinstance(key, _Somewhere):
                for element, value in (step for case in steps for step in case):
                    self._somewhere(path, meant[path, key], element, value)
            else:
                self._change(path, key, steps)

    def _meant(self, path: Path, key: _Somewhere) -> list[Any]:
        """The cells of which one is meant, of those that something is known of; all, if they are too many."""
        cells = list(self.state[path].cells)
        if len(cells) > _FEW:
            return cells
        return [k for k in cells if self._may_be(key, (k,) if len(key.parts) == 1 else k)]

    def _worlds(self, effects: Sequence[Effect], env: Env, splits: int) -> Iterator[list[tuple[Path, Any, Any, Any]]]:
        """The changes, in every case of the conditions that are unknown."""
        held = [self.value(e.condition, env) for e in effects]
        doubtful = next((e.condition for e, h in zip(effects, held, strict=True) if h is UNKNOWN), None)
        if doubtful is None or not splits:
            yield [x for e, h in zip(effects, held, strict=True) if h is UNKNOWN or h for x in self._steps(e, h, env)]
            return
        core = self._core(doubtful, env)
        for case in (True, False):
            self._supposed[core] = case
            yield from self._worlds(effects, env, splits - 1)
            del self._supposed[core]

    def _core(self, t: Term, env: Env) -> Term:
        """The part of a condition that decides it."""
        while t.op in ("not", "and", "or"):
            t = next(a for a in t.args if self.value(a, env) is UNKNOWN)
        return t

    def _steps(self, effect: Effect, held: Any, env: Env) -> list[tuple[Path, Any, Any, Any]]:
        """Path, key, element and new value of each change of an effect; no element: the value is the whole cell."""
        keys = tuple(self.value(k, env) for k in effect.keys)
        key = _Somewhere(keys, effect.keys) if UNKNOWN in keys else bare(keys) if keys else None
        if effect.kind == "assign":
            value = self._whole(effect.args[0], env) if held is not UNKNOWN else self._no_value(effect.args[0].sort)
            return [(effect.path, key, None, value)]
        element = tuple(self.value(a, env) for a in effect.args)
        if UNKNOWN in element:
            return [(effect.path, key, None, Members())]
        return [(effect.path, key, (bare(element),), UNKNOWN if held is UNKNOWN else effect.kind == "set_add")]

    def _no_value(self, sort: AnySort) -> Any:
        return Table() if isinstance(sort, MapSort) else Members() if isinstance(sort, SetSort) else UNKNOWN

    def _change(self, path: Path, key: Any, cases: Sequence[Sequence[tuple[Any, Any]]]) -> None:
        """Make the changes of one cell, given for each case."""
        elements = {e[0] for steps in cases for e, _ in steps if e is not None}
        if all(e is not None for steps in cases for e, _ in steps):
            mine = self.cell(path, key)
            for x in elements:
                ends = [next((v for e, v in reversed(steps) if e == (x,)), mine.has(x)) for steps in cases]
                self._put(path, key, x, ends[0] if all(end is ends[0] for end in ends) else UNKNOWN)
            own = self._own(path, key)
            own.some = False
            return
        ends = [self._end(path, key, steps) for steps in cases]
        value = (
            ends[0] if len(ends) == 1 or all(_same(e, ends[0]) for e in ends) else self._no_value(self._of(path, key))
        )
        self._store(path, key, value)
        if isinstance(value, Members) and len(value.yes) <= _MANY:
            self._changed += [_Change(path, key, x) for x in value.yes]

    def _somewhere(self, path: Path, cells: Sequence[Any], element: Any, value: Any) -> None:
        """One of the cells has been changed, or one of which nothing is known."""
        table = self.state[path]
        for other in cells:
            mine = table.cells[other]
            if element is None:
                table.cells[other] = self._no_value(self._sort(path))
            elif mine.has(element[0]) is not value:
                mine.put(element[0], UNKNOWN)
                mine.some = False
        if element is None or table.rest is UNKNOWN:
            table.rest = UNKNOWN
        elif value is not False:
            table.rest = table.rest.copy()
            table.rest.put(element[0], UNKNOWN)

    def _may_be(self, key: _Somewhere, other: tuple[Any, ...]) -> bool:
        """Whether a cell can be the one that is meant, by what the event requires and by the invariants."""
        for part, known, term in zip(key.parts, other, key.terms, strict=True):
            if part is not UNKNOWN and part != known:
                return False
            at = _place(self, term, self._env) if part is UNKNOWN else None
            if at is not None and not self._can_be(*at, known):
                return False
        return True

    def _can_be(self, path: Path, key: Any, value: Any) -> bool:
        """Whether a cell of which nothing is known can have this value."""
        table = self.state[path]
        if not isinstance(table, Table):
            return True
        before = table.cells.get(key, _OTHER)
        table.cells[key] = value
        try:
            if any(self.value(r.term, self._env) is False for r in self._requires):
                return False
            for read in self._reads[path]:
                for env in self._instances(read, _Change(path, key, None)):
                    if all(self.value(literal, env) is True for literal in read.query.literals):
                        return False
            return True
        finally:
            del table.cells[key]
            table.cells |= {} if before is _OTHER else {key: before}

    def _of(self, path: Path, key: Any) -> AnySort:
        return self.chapter.variables[path].sort if key is None else self._sort(path)

    def _end(self, path: Path, key: Any, steps: Sequence[tuple[Any, Any]]) -> Any:
        value = self.state[path] if key is None else self.cell(path, key)
        for element, new in steps:
            if element is None:
                value = new
            else:
                value = value.copy()
                value.put(element[0], new)
                value.some = False
        return value

    def _whole(self, t: Term, env: Env) -> Any:
        """The new value of a variable or a cell."""
        if isinstance(t.sort, MapSort):
            return self._new_table(t, env)
        if not isinstance(t.sort, SetSort):
            return self.value(t, env)
        return self._settled(self.members(t, env)).copy()

    def _new_table(self, t: Term, env: Env) -> Table:
        """A map by a rule: every cell that something is known of, and one for all others if the rule is a constant."""
        if t.op != "map_lambda":
            return Table()
        body = t.args[0]
        if not body.free & set(t.data):
            return Table(rest=self._whole(body, env))
        found = {}
        for key in self._spoken_of(body, t.data):
            parts = (key,) if len(t.data) == 1 else key
            value = self._whole(body, {**env, **dict(zip(t.data, parts, strict=True))})
            if value is not UNKNOWN:
                found[key] = value
        rest = UNKNOWN
        if _reads_cells_only(body, t.data):
            rest = self._whole(body, {**env, **dict.fromkeys(t.data, _OTHER)})
        return Table(found, UNKNOWN if isinstance(rest, Members) and rest.open else rest)

    def _written_out(self, rule: _Rule) -> Members:
        """A set by a rule: what is known of the elements that something is known of."""
        variables, body = rule.term.data, rule.term.args[0]
        bounds = [
            self.members(literal.args[0], rule.env)
            for literal in T.literals(body)
            if literal.op == "has" and literal.args[1:] == variables and not literal.args[0].free & set(variables)
        ]
        closed = [m for m in bounds if isinstance(m, Members) and not m.open]
        around = min(closed, key=lambda m: len(m.yes)) if closed else None
        found = Members(open=around is None)
        for element in self._spoken_of(body, variables) if around is None else {*around.yes, *around.maybe}:
            parts = (element,) if len(variables) == 1 else element
            found.put(element, self.value(body, {**rule.env, **dict(zip(variables, parts, strict=True))}))
        return found

    def _spoken_of(self, body: Term, variables: Sequence[Term]) -> set[Any]:
        """Elements of which something is known where a rule looks."""
        found: set[Any] = set()
        for t in T.subterms(body):
            if t.op == "get" and t.args[0].op == "state" and t.args[1:] == tuple(variables):
                found |= set(self.state[t.args[0].data].cells)
            elif t.op == "has" and t.args[0].op == "state" and t.args[1:] == tuple(variables):
                known = self.state[t.args[0].data]
                found |= known.yes | known.no | known.maybe
        return found

    # -- reading -------------------------------------------------------------------------------------------------

    def value(self, t: Term, env: Env) -> Any:
        """The value of a scalar or of a statement, as far as it is known."""
        if t in self._supposed:
            return self._supposed[t]
        if t in env:
            return env[t]
        return _MEANING[t.op](self, t, env)

    def members(self, t: Term, env: Env) -> Members | _Rule:
        """What is known of a set."""
        match t.op:
            case "var":
                told = env[t]
                return told if isinstance(told, (Members, _Rule)) else Members(set(told), open=False)
            case "state":
                found = self.state[t.data]
            case "static":
                return Members(self.structure.statics[t.data], open=False)
            case "set_empty":
                return _empty()
            case "set_lambda":
                return _Rule(t, env)
            case "get":
                found = self._got(t, env)
            case "set_add" | "set_remove":
                found = self.members(t.args[0], env)
                element = tuple(self.value(a, env) for a in t.args[1:])
                if isinstance(found, _Rule) or UNKNOWN in element:
                    return Members()
                found = found.copy()
                found.put(bare(element), t.op == "set_add")
                found.some = False
            case "call":
                told = self._called(t, env)
                return Members() if told is UNKNOWN else Members(set(told), open=False)
            case "ite":
                held = self.value(t.args[0], env)
                if held is not UNKNOWN:
                    return self.members(t.args[1 if held else 2], env)
                ways = [self._settled(self.members(a, env)) for a in t.args[1:]]
                return ways[0] if all(way.empty is True for way in ways) else Members()
            case _:
                return Members()
        return found if isinstance(found, (Members, _Rule)) else Members()

    def _settled(self, found: Members | _Rule) -> Members:
        return self._written_out(found) if isinstance(found, _Rule) else found

    def _got(self, t: Term, env: Env) -> Any:
        whole, keys = t.args[0], tuple(self.value(k, env) for k in t.args[1:])
        if UNKNOWN in keys:
            return UNKNOWN
        if whole.op == "state":
            return self.cell(whole.data, bare(keys))
        if whole.op == "map_lambda":
            inner = {**env, **dict(zip(whole.data, keys, strict=True))}
            body = whole.args[0]
            return self.members(body, inner) if isinstance(body.sort, SetSort) else self.value(body, inner)
        if whole.op == "static":
            return self.structure.statics[whole.data].get(bare(keys), default(t.sort))  # type: ignore[arg-type]
        return UNKNOWN

    def _called(self, t: Term, env: Env) -> Any:
        arguments = tuple(self.value(a, env) for a in t.args[1:])
        return UNKNOWN if UNKNOWN in arguments else self.structure.apply(t.args[0].data, arguments)

    def _every(self, t: Term, env: Env) -> Any:
        """Whether something holds for all values: there are few, or a condition names those for which it could fail."""
        query = list(T.literals(T.neg(t.args[0])))
        around = next((literal for literal in query if self._is_bound(literal, t.data, env)), None)
        ways: Iterable[Env]
        if around is not None:
            ways = self._complete(Query(_NO_STATEMENT, t.data, (around,)), dict(env), _MANY)
        elif math.prod(self._number(v) for v in t.data) <= _MANY:
            ways = ({**env, **dict(zip(t.data, xs, strict=True))} for xs in self.structure.tuples(_sorts(t.data)))
        else:
            ways = self._complete(Query(_NO_STATEMENT, t.data, tuple(query)), dict(env), _FEW)
            return False if any(self.value(t.args[0], more) is False for more in ways) else UNKNOWN
        return _all(self.value(t.args[0], more) for more in ways)

    def _number(self, variable: Term) -> float:
        """How many values a variable has, if they do not become more as the log goes on."""
        (sort,) = _sorts((variable,))
        return len(self.structure.carriers[sort.name]) if sort.name in NUMBERED else math.inf

    def _is_bound(self, literal: Term, variables: Sequence[Term], env: Env) -> bool:
        """Whether a condition can hold for values only that are known."""
        if literal.op != "has" or not set(variables) <= literal.free or literal.args[0].free & set(variables):
            return False
        members = self.members(literal.args[0], env)
        closed = isinstance(members, Members) and not members.open and not members.maybe
        return closed and len(members.yes) <= _MANY  # type: ignore[union-attr]


_OTHER: Final = object()
"""Stands for a key of which nothing was said."""
_NO_STATEMENT: Any = None


def _sorts(variables: Sequence[Term]) -> tuple[Sort, ...]:
    return tuple(v.sort for v in variables if isinstance(v.sort, Sort))


def _nothing_known(sort: AnySort) -> Any:
    return Table() if isinstance(sort, MapSort) else Members() if isinstance(sort, SetSort) else UNKNOWN


def _reads_cells_only(t: Term, variables: Sequence[Term]) -> bool:
    """Whether a rule looks at a key's own cells, and nowhere else at the key."""
    if t.op == "get" and t.args[0].op == "state" and t.args[1:] == tuple(variables):
        return True
    if t.op == "eq" and t.args[0] in variables:
        return not t.args[1].free & set(variables)  # which is unknown, of another key
    return t not in variables and all(_reads_cells_only(a, variables) for a in t.args)


def _same(one: Any, other: Any) -> bool:
    return one is other or (one is not UNKNOWN and other is not UNKNOWN and bool(one == other))


# -- the operators ----------------------------------------------------------------------------------------------------


def _not(value: Any) -> Any:
    return UNKNOWN if value is UNKNOWN else not value


def _all(values: Iterable[Any]) -> Any:
    found: Any = True
    for value in values:
        if value is UNKNOWN:
            found = UNKNOWN
        elif not value:
            return False
    return found


def _and(k: Known, t: Term, env: Env) -> Any:
    return _all(k.value(a, env) for a in t.args)


def _or(k: Known, t: Term, env: Env) -> Any:
    return _not(_all(_not(k.value(a, env)) for a in t.args))


def _implies(k: Known, t: Term, env: Env) -> Any:
    premise = k.value(t.args[0], env)
    if premise is False:
        return True
    conclusion = k.value(t.args[1], env)
    return True if conclusion is True else conclusion if premise is True else UNKNOWN


def _ite(k: Known, t: Term, env: Env) -> Any:
    held = k.value(t.args[0], env)
    if held is not UNKNOWN:
        return k.value(t.args[1 if held else 2], env)
    yes, no = k.value(t.args[1], env), k.value(t.args[2], env)
    return yes if _same(yes, no) else UNKNOWN


def _strict(meaning: Callable[..., Any]) -> Callable[[Known, Term, Env], Any]:
    """An operator whose value is unknown as soon as one of its arguments is."""

    def value(k: Known, t: Term, env: Env) -> Any:
        arguments = [k.value(a, env) for a in t.args]
        return UNKNOWN if any(a is UNKNOWN for a in arguments) else meaning(t, *arguments)

    return value


def _less(t: Term, left: Any, right: Any) -> bool:
    return left is not ABSENT and right is not ABSENT and left < right


def _field(t: Term, value: Any) -> Any:
    case, number = t.data
    return value[1 + number] if isinstance(value, tuple) and value[0] == case else ABSENT


def _has(k: Known, t: Term, env: Env) -> Any:
    element = tuple(k.value(a, env) for a in t.args[1:])
    found = k.members(t.args[0], env)
    if any(e is UNKNOWN for e in element):
        return UNKNOWN if isinstance(found, _Rule) or found.empty is not True else False
    if isinstance(found, Members):
        return found.has(bare(element))
    return k.value(found.term.args[0], {**found.env, **dict(zip(found.term.data, element, strict=True))})


def _is_empty(k: Known, t: Term, env: Env) -> Any:
    return k._settled(k.members(t.args[0], env)).empty


def _only(k: Known, t: Term, env: Env) -> Any:
    element = tuple(k.value(a, env) for a in t.args[1:])
    found = k._settled(k.members(t.args[0], env))
    if any(e is UNKNOWN for e in element):
        return UNKNOWN
    one = bare(element)
    if found.has(one) is False or any(x != one for x in found.yes):
        return False
    return UNKNOWN if found.open or found.maybe else True


def _size(k: Known, t: Term, env: Env) -> Any:
    found = k._settled(k.members(t.args[0], env))
    return UNKNOWN if found.open or found.maybe else len(found.yes)


_MEANING: Mapping[str, Callable[[Known, Term, Env], Any]] = {
    "true": lambda k, t, env: True,
    "false": lambda k, t, env: False,
    "not": lambda k, t, env: _not(k.value(t.args[0], env)),
    "and": _and,
    "or": _or,
    "implies": _implies,
    "iff": _strict(lambda t, a, b: a == b),
    "ite": _ite,
    "eq": _strict(lambda t, a, b: UNKNOWN if _OTHER in (a, b) else a == b),
    "lt": _strict(_less),
    "num": lambda k, t, env: t.data,
    "add": _strict(lambda t, a, b: a + b),
    "sub": _strict(lambda t, a, b: a - b),
    "mul": _strict(lambda t, a, b: a * b),
    "div": _strict(lambda t, a, b: a // b),
    "mod": _strict(lambda t, a, b: a % b),
    "zero": lambda k, t, env: 0,
    "next": _strict(lambda t, a: a + 1),
    "prev": _strict(lambda t, a: a - 1 if a > 0 else ABSENT),
    "forall": lambda k, t, env: k._every(t, env),
    "exists": lambda k, t, env: _not(k.value(T.quantify("forall", t.data, T.neg(t.args[0])), env)),
    "var": lambda k, t, env: env[t],
    "state": lambda k, t, env: k.state[t.data],
    "static": lambda k, t, env: k.structure.statics[t.data],
    "call": lambda k, t, env: k._called(t, env),
    "get": lambda k, t, env: k._got(t, env),
    "has": _has,
    "empty": _is_empty,
    "only": _only,
    "size": _size,
    "case": _strict(lambda t, *fields: (t.data, *fields)),
    "is_case": _strict(lambda t, value: isinstance(value, tuple) and value[0] == t.data),
    "field": _strict(_field),
}
"""The scalar operators; `Known.members` has those of sets."""


def _each_side(k: Known, t: Term, env: Env, want: bool) -> None:
    left, right = (k.value(a, env) for a in t.args)
    if left is not UNKNOWN:
        k.assume(t.args[1], env, left == want)
    elif right is not UNKNOWN:
        k.assume(t.args[0], env, right == want)


def _parts(all_are: bool) -> Callable[[Known, Term, Env, bool], None]:
    """For a conjunction: all parts are true if it is; the one part that is unknown is false if it is not."""

    def rule(k: Known, t: Term, env: Env, want: bool) -> None:
        if want is all_are:
            for a in t.args:
                k.assume(a, env, all_are)
            return
        doubtful = [a for a in t.args if k.value(a, env) is UNKNOWN]
        if len(doubtful) == 1:
            k.assume(doubtful[0], env, not all_are)

    return rule


def _implication(k: Known, t: Term, env: Env, want: bool) -> None:
    premise, conclusion = t.args
    if not want or k.value(premise, env) is True:
        k.assume(conclusion, env, want)
    if not want:
        k.assume(premise, env, True)
    elif k.value(conclusion, env) is False:
        k.assume(premise, env, False)


def _is_open(key: Any) -> bool:
    """Whether part of a key is unknown."""
    return key is UNKNOWN or (isinstance(key, tuple) and any(part is UNKNOWN for part in key))


def _place(k: Known, t: Term, env: Env) -> tuple[Path, Any] | None:
    """The variable, or the cell of a map, that a term reads."""
    if t.op == "state":
        return t.data, None
    if t.op == "get" and t.args[0].op == "state":
        keys = tuple(k.value(a, env) for a in t.args[1:])
        return None if UNKNOWN in keys else (t.args[0].data, bare(keys))
    return None


def _membership(k: Known, t: Term, env: Env, want: bool) -> None:
    element, at = tuple(k.value(a, env) for a in t.args[1:]), _place(k, t.args[0], env)
    if any(e is UNKNOWN for e in element):
        return
    if at is not None:
        k._put(*at, bare(element), want)
    elif want:
        _somewhere_has(k, t.args[0], env, bare(element))


def _somewhere_has(k: Known, cell: Term, env: Env, element: Any) -> None:
    """Some cell has the element, which may say something although it is unknown which.

    It is not remembered, so what follows from it is concluded once, when an event says it.
    """
    if cell.op == "get" and cell.args[0].op == "state" and not k.concluding:
        keys = tuple(k.value(a, env) for a in cell.args[1:])
        k._changed.append(_Change(cell.args[0].data, bare(keys), element))


def _emptiness(k: Known, t: Term, env: Env, want: bool) -> None:
    at = _place(k, t.args[0], env)
    if at is not None and want:
        k._store(*at, _empty())
    elif at is not None:
        k._own(*at).some = True
        k._changed.append(_Change(*at, None))


def _onliness(k: Known, t: Term, env: Env, want: bool) -> None:
    element, at = tuple(k.value(a, env) for a in t.args[1:]), _place(k, t.args[0], env)
    if not want or any(e is UNKNOWN for e in element):
        return
    if at is None:
        _somewhere_has(k, t.args[0], env, bare(element))
        return
    k._store(*at, Members({bare(element)}, open=False))
    k._changed.append(_Change(*at, bare(element)))


def _equality(k: Known, t: Term, env: Env, want: bool) -> None:
    for one, other in (t.args, t.args[::-1]):
        value, at = k.value(other, env), _place(k, one, env)
        if want and at is not None and value is not UNKNOWN:
            k._store(*at, value)
            return


def _flag(k: Known, t: Term, env: Env, want: bool) -> None:
    if (at := _place(k, t, env)) is not None:
        k._store(*at, want)


_RULES: Mapping[str, Callable[[Known, Term, Env, bool], None]] = {
    "not": lambda k, t, env, want: k.assume(t.args[0], env, not want),
    "and": _parts(True),
    "or": _parts(False),
    "implies": _implication,
    "iff": _each_side,
    "eq": _equality,
    "has": _membership,
    "empty": _emptiness,
    "only": _onliness,
    "state": _flag,
    "get": _flag,
}
"""What follows for single cells from the truth of a statement, by its operator; of others nothing is learned."""
