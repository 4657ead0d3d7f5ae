"""The concrete reading made fast: each event of a chapter becomes one Python function.

The function checks what the event requires, changes the state in place and re-evaluates the invariants on what it
touched: an instance of an invariant can only have become false if a cell that it reads was written, so the written
cells are matched against the reads of each invariant, and the variables that this leaves open are found through the
other conditions (members of a set, positions below a bound, inverse indexes). `Compiled.sweep` evaluates everything.

Values are as in `kvspec.model.concrete`, except that a variant is a plain tuple ``(case, *fields)``.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from kvspec.model.concrete import ABSENT
from kvspec.spec.language import terms as T
from kvspec.spec.language.machine import Chapter, Effect, Requirement, Statement, TracedEvent
from kvspec.spec.language.terms import BOOL, MapSort, Path, SetSort, Sort, Term

Carrier = Callable[[], Iterable[Any]]


class Broken(NamedTuple):
    """An invariant that does not hold, and for which values of its variables."""

    statement: Statement
    instance: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        values = ", ".join(f"{name} = {value}" for name, value in self.instance)
        return f"{self.statement.name}: {self.statement.sentence} ({values})"


class StepError(Exception):
    """An event could not be taken: its requirement does not hold."""

    def __init__(self, event: TracedEvent, requirement: Requirement, arguments: tuple[Any, ...]) -> None:
        self.event, self.requirement, self.arguments = event, requirement, arguments
        shown = " ".join(map(str, arguments))
        super().__init__(f"{event.name} {shown}: the requirement at {requirement.where} does not hold")


class InvariantError(Exception):
    """An event was taken and an invariant does not hold afterwards."""

    def __init__(self, event: TracedEvent, arguments: tuple[Any, ...], broken: Broken) -> None:
        self.event, self.arguments, self.broken = event, arguments, broken
        super().__init__(f"after {event.name} {' '.join(map(str, arguments))}: {broken}")


@dataclass(frozen=True)
class _Query:
    """Some values of the variables that satisfy all literals: a way to violate the statement."""

    statement: Statement
    variables: tuple[Term, ...]
    literals: tuple[Term, ...]


class Compiled:
    """A chapter, its state, and a function for each event.

    Args:
        chapter: what to run.
        statics: static constants (values), sets and functions (callables), by path.
        carriers: for each sort that must be enumerated, its elements.
        watch: re-evaluate invariants after each event.
    """

    def __init__(
        self, chapter: Chapter, statics: Mapping[Path, Any], carriers: Mapping[str, Carrier], watch: bool = True
    ) -> None:
        self.chapter = chapter
        self.state: dict[Path, Any] = {p: _blank(v.sort) for p, v in chapter.variables.items()}
        self.statements = [*chapter.lower_invariants, *chapter.invariants]
        self._writer = _Writer(chapter, self.state, statics, carriers)
        self.events: dict[str, Callable[..., None]] = {}
        self._traced = [chapter.event(n) for n in chapter.event_names]
        queries = [q for s in self.statements for q in violations(s)]
        for event in self._traced:
            self._writer.prepare(event, queries if watch else [])
        self._sweeps = self._writer.sweeps(queries)
        for event in self._traced:
            self.events[event.name] = self._writer.function(event)
        self._start()

    def _start(self) -> None:
        """Run the chapter's init: whatever it sets for all keys at once is what blank state means."""
        for path, term in self.chapter.initial.items():
            if term.op == "state":
                continue
            value = self._writer.initial(term)
            if isinstance(value, (set, frozenset)):
                self.state[path].update(value)
            elif not isinstance(self.state[path], dict):
                self.state[path][0] = value

    def sweep(self) -> list[Broken]:
        """Every invariant, on the whole state; at most one violation each."""
        found = []
        for check in self._sweeps:
            broken = check()
            if broken is not None:
                found.append(Broken(*broken))
        return found

    def value(self, term: Term, **values: Any) -> Any:
        """The value of a term in the current state (for tests and reports); variables by name."""
        return self._writer.evaluate(term, values)


def violations(statement: Statement) -> list[_Query]:
    """The ways in which a statement can fail, each a conjunction over some variables."""
    found: list[_Query] = []

    def split(term: Term, variables: tuple[Term, ...]) -> None:
        if term.op == "forall":
            split(term.args[0], variables + term.data)
        elif term.op == "and":
            for part in term.args:
                split(part, variables)
        else:
            found.append(_Query(statement, variables, tuple(_literals(T.neg(term)))))

    split(statement.term, ())
    return found


def _literals(term: Term) -> Iterable[Term]:
    """A conjunction in pieces, negations pushed inward."""
    if term.op == "and":
        for a in term.args:
            yield from _literals(a)
    elif term.op == "not" and term.args[0].op == "implies":
        premise, conclusion = term.args[0].args
        yield from _literals(premise)
        yield from _literals(T.neg(conclusion))
    elif term.op == "not" and term.args[0].op == "or":
        for a in term.args[0].args:
            yield from _literals(T.neg(a))
    else:
        yield term


def _blank(sort: Any) -> Any:
    if isinstance(sort, SetSort):
        return set()
    if isinstance(sort, MapSort):
        return {}
    return [_default(sort)]


def _default(sort: Sort) -> Any:
    return {"nat": 0, "position": 0, "bool": False}.get(sort.kind, ABSENT)


def py(text: str, sort: Any) -> Term:
    """A Python expression inside a term."""
    return T.make("py", (), sort, text)


class _Writer:
    """Writes Python text for terms; keeps the names that the text uses."""

    def __init__(
        self, chapter: Chapter, state: Mapping[Path, Any], statics: Mapping[Path, Any], carriers: Mapping[str, Carrier]
    ) -> None:
        self.chapter, self.carriers = chapter, carriers
        self.state = state
        self.names: dict[Path, str] = {p: f"v{i}_{p[-1]}" for i, p in enumerate(chapter.variables)}
        self.space: dict[str, Any] = {n: state[p] for p, n in self.names.items()}
        self.space |= {"ABSENT": ABSENT, "EMPTY": frozenset(), "StepError": StepError, "InvariantError": InvariantError}
        self.space |= {"Broken": Broken, "replace": replace, "replace_map": replace_map, "reindex": reindex}
        self.space |= {"cannot_enumerate": cannot_enumerate}
        self.static_names: dict[Path, str] = {}
        for i, (path, value) in enumerate(statics.items()):
            self.static_names[path] = f"c{i}_{path[-1]}"
            self.space[self.static_names[path]] = value
        self.indexes: dict[Path, str] = {}
        self.checks: dict[str, list[tuple[_Query, list[str], dict[Term, str]]]] = {}
        self._fresh = itertools.count()
        self._hoist: dict[Term, str] | None = None
        self._lines: list[str] = []

    def fresh(self, hint: str) -> str:
        return f"{hint}_{next(self._fresh)}"

    def constant(self, value: Any, hint: str) -> str:
        name = self.fresh(hint)
        self.space[name] = value
        return name

    # -- expressions ---------------------------------------------------------------------------------------------

    def expr(self, t: Term, env: Mapping[Term, str]) -> str:
        if self._hoist is not None and t.op in ("get", "call") and isinstance(t.sort, Sort) and self._ground(t, env):
            if t not in self._hoist:
                text = self._expr(t, env)
                self._hoist[t] = self.fresh("t")
                self._lines.append(f"{self._hoist[t]} = {text}")
            return self._hoist[t]
        return self._expr(t, env)

    def _ground(self, t: Term, env: Mapping[Term, str]) -> bool:
        return all(v in self._parameters for v in t.free)

    _parameters: frozenset[Term] = frozenset()

    def _expr(self, t: Term, env: Mapping[Term, str]) -> str:
        e = self.expr
        match t.op:
            case "py":
                return cast(str, t.data)
            case "true" | "false":
                return "True" if t.op == "true" else "False"
            case "not":
                return f"(not {e(t.args[0], env)})"
            case "and" | "or":
                return "(" + f" {t.op} ".join(e(a, env) for a in t.args) + ")"
            case "implies":
                return f"(not {e(t.args[0], env)} or {e(t.args[1], env)})"
            case "iff" | "eq":
                return f"({e(t.args[0], env)} == {e(t.args[1], env)})"
            case "ite":
                return f"({e(t.args[1], env)} if {e(t.args[0], env)} else {e(t.args[2], env)})"
            case "lt":
                return f"({e(t.args[0], env)} < {e(t.args[1], env)})"
            case "num":
                return repr(t.data)
            case "add" | "sub" | "mul" | "div" | "mod":
                sign = {"add": "+", "sub": "-", "mul": "*", "div": "//", "mod": "%"}[t.op]
                return f"({e(t.args[0], env)} {sign} {e(t.args[1], env)})"
            case "zero":
                return "0"
            case "next" | "prev":
                return f"({e(t.args[0], env)} {'+' if t.op == 'next' else '-'} 1)"
            case "var":
                return env[t]
            case "state":
                name = self.names[t.data]
                return name if not isinstance(t.sort, Sort) else f"{name}[0]"
            case "static":
                return self.static_names[t.data]
            case "call":
                return f"{self.static_names[t.args[0].data]}({', '.join(e(a, env) for a in t.args[1:])})"
            case "case":
                return f"({', '.join([repr(t.data), *(e(a, env) for a in t.args)])},)"
            case "is_case":
                inner = t.args[0]
                return repr(inner.data == t.data) if inner.op == "case" else f"({e(inner, env)}[0] == {t.data!r})"
            case "field":
                return f"{e(t.args[0], env)}[{1 + t.data[1]}]"
            case "get":
                return self._get(t.args[0], t.args[1:], t.sort, env)
            case "has":
                return self._has(t.args[0], t.args[1:], env)
            case "empty":
                return f"(not {self.set_value(t.args[0], env)})"
            case "only":
                s = self.set_value(t.args[0], env)
                return f"(len({s}) == 1 and {self._tuple(t.args[1:], env)} in {s})"
            case "size":
                return f"len({self.set_value(t.args[0], env)})"
            case "forall" | "exists":
                return self._quantified(t, env)
        raise AssertionError(f"operator {t.op} has no Python text")

    def _tuple(self, items: Sequence[Term], env: Mapping[Term, str]) -> str:
        texts = [self.expr(i, env) for i in items]
        return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"

    def _same(self, left: Sequence[Term], right: Sequence[Term], env: Mapping[Term, str]) -> str:
        return " and ".join(f"{self.expr(a, env)} == {self.expr(b, env)}" for a, b in zip(left, right, strict=True))

    def _get(self, m: Term, keys: Sequence[Term], sort: Any, env: Mapping[Term, str]) -> str:
        match m.op:
            case "store":
                *at, value = m.args[1:]
                inner = T.make("get", (m.args[0], *keys), sort)
                if all(a is b for a, b in zip(at, keys, strict=True)):
                    return self.expr(value, env)
                return f"({self.expr(value, env)} if {self._same(keys, at, env)} else {self.expr(inner, env)})"
            case "map_lambda":
                return self.expr(T.substitute(m.args[0], dict(zip(m.data, keys, strict=True))), env)
            case "ite":
                yes, no = (T.make("get", (part, *keys), sort) for part in m.args[1:])
                return f"({self.expr(yes, env)} if {self.expr(m.args[0], env)} else {self.expr(no, env)})"
        shown = repr(_default(sort)) if _default(sort) is not ABSENT else "ABSENT"
        return f"{self.names[m.data]}.get({self._tuple(keys, env)}, {shown})"

    def set_value(self, s: Term, env: Mapping[Term, str]) -> str:
        """The set itself, not to be changed."""
        match s.op:
            case "set_empty":
                return "EMPTY"
            case "set_add":
                return f"({self.set_value(s.args[0], env)} | {{{self._tuple(s.args[1:], env)}}})"
            case "set_remove":
                return f"({self.set_value(s.args[0], env)} - {{{self._tuple(s.args[1:], env)}}})"
            case "ite":
                condition, yes, no = self.expr(s.args[0], env), *(self.set_value(a, env) for a in s.args[1:])
                return f"({yes} if {condition} else {no})"
            case "set_lambda":
                return self._comprehension(s, env)
            case "get":
                return self._set_of_map(s.args[0], s.args[1:], s, env)
        return self.expr(s, env)

    def _set_of_map(self, m: Term, keys: Sequence[Term], s: Term, env: Mapping[Term, str]) -> str:
        match m.op:
            case "store":
                *at, value = m.args[1:]
                if all(a is b for a, b in zip(at, keys, strict=True)):
                    return self.set_value(value, env)
                inner = self.set_value(T.make("get", (m.args[0], *keys), s.sort), env)
                return f"({self.set_value(value, env)} if {self._same(keys, at, env)} else {inner})"
            case "map_lambda":
                return self.set_value(T.substitute(m.args[0], dict(zip(m.data, keys, strict=True))), env)
            case "ite":
                yes, no = (self.set_value(T.make("get", (part, *keys), s.sort), env) for part in m.args[1:])
                return f"({yes} if {self.expr(m.args[0], env)} else {no})"
        return f"{self.names[m.data]}.get({self._tuple(keys, env)}, EMPTY)"

    def _comprehension(self, s: Term, env: Mapping[Term, str]) -> str:
        clauses, inner = self.plan(s.data, list(_literals(s.args[0])), env)
        return f"{{{self._tuple(s.data, inner)} {' '.join(clauses)}}}"

    def _has(self, s: Term, element: Sequence[Term], env: Mapping[Term, str]) -> str:
        match s.op:
            case "set_empty":
                return "False"
            case "set_add":
                return f"({self._same(element, s.args[1:], env)} or {self._has(s.args[0], element, env)})"
            case "set_remove":
                return f"(not ({self._same(element, s.args[1:], env)}) and {self._has(s.args[0], element, env)})"
            case "set_lambda":
                return self.expr(T.substitute(s.args[0], dict(zip(s.data, element, strict=True))), env)
        return f"({self._tuple(element, env)} in {self.set_value(s, env)})"

    def _quantified(self, t: Term, env: Mapping[Term, str]) -> str:
        body = T.neg(t.args[0]) if t.op == "forall" else t.args[0]
        hoist, self._hoist = self._hoist, None
        clauses, _ = self.plan(t.data, list(_literals(body)), env)
        self._hoist = hoist
        return f"({'not ' if t.op == 'forall' else ''}any(True {' '.join(clauses)}))"

    # -- finding values ------------------------------------------------------------------------------------------

    def plan(
        self, variables: Iterable[Term], literals: list[Term], env: Mapping[Term, str]
    ) -> tuple[list[str], dict[Term, str]]:
        """Clauses (``for ... in ...`` and ``if ...``) that run through the values that satisfy all literals."""
        env = dict(env)
        open_vars = {v for v in variables if v not in env}
        clauses: list[str] = []
        literals = [a for a in literals if a is not T.TRUE]
        while True:
            for a in [a for a in literals if not (a.free & open_vars)]:
                literals.remove(a)
                clauses.append(f"if {self.expr(a, env)}")
            if not open_vars:
                break
            options = [o for a in literals for o in self._generators(a, open_vars, env)]
            options += [self._carrier(v) for v in sorted(open_vars, key=lambda v: v.data[1])]
            _, more, found, used = min(options, key=lambda o: o[0])
            clauses += more
            self._ask_for_indexes(more)
            env |= found
            open_vars -= found.keys()
            if used is not None:
                literals.remove(used)
        if clauses and clauses[0].startswith("if"):
            clauses.insert(0, "for _ in (0,)")
        return clauses or ["for _ in (0,)"], env

    def _carrier(self, v: Term) -> tuple[int, list[str], dict[Term, str], Term | None]:
        name = self.fresh(v.data[0])
        sort = cast(Sort, v.sort)
        if sort.name not in self.carriers:
            return 99, [f"for {name} in cannot_enumerate({sort.name!r})"], {v: name}, None
        carrier = self.constant(self.carriers[sort.name], "carrier")
        return 50, [f"for {name} in {carrier}()"], {v: name}, None

    def _generators(self, a: Term, open_vars: set[Term], env: Mapping[Term, str]) -> Iterable[Any]:
        if a.op == "range":
            x, low, high = a.args
            if x in open_vars:
                name = self.fresh(x.data[0])
                yield 0, [f"for {name} in range({self.expr(low, env)}, {self.expr(high, env)})"], {x: name}, a
        elif a.op == "eq":
            yield from self._equal(a, open_vars, env)
        elif a.op == "lt" and a.args[0] in open_vars and not (a.args[1].free & open_vars):
            name = self.fresh(a.args[0].data[0])
            yield 20, [f"for {name} in range({self.expr(a.args[1], env)})"], {a.args[0]: name}, a
        elif a.op == "lt" and a.args[0] in open_vars and a.args[1].op == "get" and a.args[1].args[0].op == "state":
            yield from self._below_stored(a, open_vars, env)
        elif a.op == "has":
            yield from self._members(a, open_vars, env)

    def _below_stored(self, a: Term, open_vars: set[Term], env: Mapping[Term, str]) -> Iterable[Any]:
        """A position below a stored bound: where nothing is stored the bound is the least position."""
        x, bound = a.args
        if x in bound.free or not all(self._matchable(k, open_vars) for k in bound.args[1:]):
            return
        name, position = self.fresh("k"), self.fresh(x.data[0])
        variable = self.names[bound.args[0].data]
        clauses, found = self._unpack(variable, bound.args[1:], open_vars - {x}, env)
        key = clauses[0].split()[1]
        clauses[0] = f"for {key}, {name} in {variable}.items()"
        yield 46, [*clauses, f"for {position} in range({name})"], {**found, x: position}, a

    def _equal(self, a: Term, open_vars: set[Term], env: Mapping[Term, str]) -> Iterable[Any]:
        for one, other in (a.args, a.args[::-1]):
            if other.free & open_vars:
                continue
            if one in open_vars:
                name = self.fresh(one.data[0])
                yield 1, [f"for {name} in ({self.expr(other, env)},)"], {one: name}, a
            elif one.op == "prev" and one.args[0] in open_vars:
                name = self.fresh("i")
                yield 1, [f"for {name} in ({self.expr(other, env)} + 1,)"], {one.args[0]: name}, a
            elif one.op == "get" and one.args[0].op == "state":
                keys = one.args[1:]
                if all(k in open_vars or not (k.free & open_vars) for k in keys) and set(keys) & open_vars:
                    text = f"inverse_{self.names[one.args[0].data]}.get({self.expr(other, env)}, EMPTY)"
                    yield 48, *self._unpack(text, keys, open_vars, env), a

    def _unpack(
        self, source: str, parts: Sequence[Term], open_vars: set[Term], env: Mapping[Term, str]
    ) -> tuple[list[str], dict[Term, str]]:
        """Run through a collection of bare tuples; new variables are bound, known parts compared."""
        name = self.fresh("x")
        clauses, found = [f"for {name} in {source}"], {}
        for i, part in enumerate(parts):
            text = name if len(parts) == 1 else f"{name}[{i}]"
            self._match(part, text, open_vars, {**env, **found}, clauses, found)
        return clauses, found

    def _match(
        self, part: Term, text: str, open_vars: set[Term], env: Mapping[Term, str], clauses: list[str], found: dict[Term, str]
    ) -> None:
        if part in open_vars and part not in env:
            found[part] = text
        elif part.op == "case" and part.free & open_vars:
            clauses.append(f"if {text}[0] == {part.data!r}")
            for i, field in enumerate(part.args):
                self._match(field, f"{text}[{i + 1}]", open_vars, {**env, **found}, clauses, found)
        else:
            clauses.append(f"if {text} == {self.expr(part, {**env, **found})}")

    def _matchable(self, part: Term, open_vars: set[Term]) -> bool:
        if part in open_vars or not (part.free & open_vars):
            return True
        return part.op == "case" and all(self._matchable(f, open_vars) for f in part.args)

    def _members(self, a: Term, open_vars: set[Term], env: Mapping[Term, str]) -> Iterable[Any]:
        s, element = a.args[0], a.args[1:]
        if not all(self._matchable(p, open_vars) for p in element):
            return
        if not (s.free & open_vars):
            cost = {"get": 5, "state": 30, "static": 40}.get(s.op, 35)
            yield cost, *self._unpack(self.set_value(s, env), element, open_vars, env), a
        elif s.op == "get" and s.args[0].op == "state":
            keys = s.args[1:]
            if not all(self._matchable(k, open_vars) for k in keys):
                return
            if not any(p.free & open_vars for p in element):
                text = f"inverse_{self.names[s.args[0].data]}.get({self._tuple(element, env)}, EMPTY)"
                yield 6, *self._unpack(text, keys, open_vars, env), a
            else:
                name, members = self.fresh("k"), self.fresh("s")
                clauses = [f"for {name}, {members} in {self.names[s.args[0].data]}.items()"]
                found: dict[Term, str] = {}
                for i, k in enumerate(keys):
                    text = name if len(keys) == 1 else f"{name}[{i}]"
                    self._match(k, text, open_vars, {**env, **found}, clauses, found)
                more, rest = self._unpack(members, element, open_vars - found.keys(), {**env, **found})
                yield 45, clauses + more, {**found, **rest}, a

    def _ask_for_indexes(self, clauses: Sequence[str]) -> None:
        """The inverse of a map leads from a value, or from a member of the set it holds, to the keys; it is kept only
        for maps whose inverse some clause uses."""
        for path, name in self.names.items():
            index = f"inverse_{name}"
            if path not in self.indexes and any(f"{index}.get(" in c for c in clauses):
                self.indexes[path] = index
                self.space[index] = defaultdict(set)

    # -- invariants on what was touched --------------------------------------------------------------------------

    def prepare(self, event: TracedEvent, queries: list[_Query]) -> None:
        """Find the checks of an event; asks for the indexes that they need."""
        checks: dict[tuple[Any, ...], tuple[_Query, list[str], dict[Term, str]]] = {}
        for number, effect in enumerate(event.effects):
            for query in queries:
                for bound, literals in self._touched(query, effect, number):
                    key = (query.statement.name, frozenset(literals))
                    if key not in checks:
                        known = {v: self.expr(t, {}) for v, t in bound.items()}
                        clauses, env = self.plan(query.variables, list(literals), known)
                        checks[key] = (query, clauses, env)
        self.checks[event.name] = list(checks.values())

    def _touched(
        self, query: _Query, effect: Effect, number: int
    ) -> Iterable[tuple[dict[Term, Term], tuple[Term, ...]]]:
        """The query restricted to instances that read a cell that the effect wrote."""
        bulk = not effect.keys and effect.kind == "assign"
        for literal in query.literals:
            parents = _parents(literal)
            for t in T.subterms(literal):
                for touch in self._reads(t, parents[t], effect, number, _polarity(t, literal)):
                    if bulk:
                        yield {}, query.literals
                        continue
                    patterns, values, extra = touch
                    found = self._bind(query, patterns, values)
                    if found is not None:
                        bound, more = found
                        yield bound, tuple(T.substitute(x, bound) for x in (*query.literals, *more, *extra))

    def _reads(
        self, t: Term, parents: list[Term], effect: Effect, number: int, polarity: int
    ) -> Iterable[tuple[tuple[Term, ...], tuple[Term, ...], tuple[Term, ...]]]:
        """Reads of a written cell that stand at this place of a statement."""
        if isinstance(t.sort, (SetSort, MapSort)) and all(p.op in ("has", "get") and p.args[0] is t for p in parents):
            return  # a membership or a value is looked at where it stands
        touch = self._occurrence(t, effect, number, polarity)
        if touch is None:
            return
        bounds = [p for p in parents if p.op == "lt" and p.args[1] is t and p.args[0].op == "var"]
        if len(bounds) < len(parents) or not effect.keys or t.op != "get":
            yield touch
        for p in bounds if len(bounds) == len(parents) and effect.keys and t.op == "get" else ():
            ends = (py(f"{f}(old{number}, new{number})", T.NAT) for f in ("min", "max"))
            yield touch[0], touch[1], (T.make("range", (p.args[0], *ends), BOOL),)

    def _occurrence(
        self, t: Term, effect: Effect, number: int, polarity: int
    ) -> tuple[tuple[Term, ...], tuple[Term, ...], tuple[Term, ...]] | None:
        """If the term reads what the effect wrote: what it reads, what was written, further conditions."""
        whole = t if t.op == "state" else t.args[0] if t.op == "get" else None
        element: tuple[Term, ...] = ()
        if t.op == "has":
            inner = t.args[0]
            whole = inner if inner.op == "state" else inner.args[0] if inner.op == "get" else None
            element = t.args[1:]
        if whole is None or whole.op != "state" or whole.data != effect.path:
            return None
        keys = t.args[0].args[1:] if t.op == "has" and t.args[0].op == "get" else t.args[1:] if t.op == "get" else ()
        written = tuple(py(f"k{number}_{i}", k.sort) for i, k in enumerate(effect.keys))
        if effect.kind == "assign" and not effect.keys:
            return (), (), ()
        if not element:
            return keys, written, ()
        if effect.kind == "set_add" and polarity < 0 or effect.kind == "set_remove" and polarity > 0:
            return None
        if effect.kind in ("set_add", "set_remove"):
            return (*keys, *element), (*written, *self._elements(effect, number)), ()
        single = effect.args[0]
        if polarity > 0 and single.op == "set_empty":
            return None
        if polarity > 0 and single.op == "set_add" and single.args[0].op == "set_empty":
            return (*keys, *element), (*written, *self._elements(effect, number)), ()
        return keys, written, ()

    def _elements(self, effect: Effect, number: int) -> tuple[Term, ...]:
        source = effect.args[0].args[1:] if effect.kind == "assign" else effect.args
        return tuple(
            T.make("case", tuple(py(f"e{number}_{i}_{j}", f.sort) for j, f in enumerate(a.args)), a.sort, a.data)
            if a.op == "case"
            else py(f"e{number}_{i}", a.sort)
            for i, a in enumerate(source)
        )

    def _bind(
        self, query: _Query, patterns: Sequence[Term], values: Sequence[Term]
    ) -> tuple[dict[Term, Term], list[Term]] | None:
        bound: dict[Term, Term] = {}
        more: list[Term] = []
        todo = list(zip(patterns, values, strict=True))
        while todo:
            pattern, value = todo.pop(0)
            if pattern in query.variables and pattern not in bound:
                bound[pattern] = value
            elif pattern.op == "case" and value.op == "case":
                if pattern.data != value.data:
                    return None
                todo += list(zip(pattern.args, value.args, strict=True))
            elif pattern.op == "case":
                more.append(T.make("is_case", (value,), BOOL, pattern.data))
                for i, f in enumerate(pattern.args):
                    todo.append((f, py(f"{value.data}[{i + 1}]", f.sort)))
            else:
                more.append(T.eq(pattern, value))
        return bound, more

    # -- functions -----------------------------------------------------------------------------------------------

    def function(self, event: TracedEvent) -> Callable[..., None]:
        """The Python function of an event."""
        names = {p: self.fresh(p.data[0]) for p in event.parameters}
        self._parameters = frozenset(event.parameters)
        self._hoist, self._lines = {}, []
        arguments = f"({''.join(n + ', ' for n in names.values())})"
        event_name = self.constant(event, "event")
        for requirement in event.requires:
            text = self.expr(requirement.term, names)
            asked = self.constant(requirement, "requirement")
            self._lines += [f"if not {text}:", f"    raise StepError({event_name}, {asked}, {arguments})"]
        changes = [line for i, e in enumerate(event.effects) for line in self._effect(e, i, names)]
        body = self._lines + changes
        self._hoist = None
        for query, clauses, env in self.checks[event.name]:
            broken = self._broken(query, env)
            body += _nest(clauses, f"raise InvariantError({event_name}, {arguments}, Broken(*{broken}))")
        return self._define(event.name, list(names.values()), body)

    def _broken(self, query: _Query, env: Mapping[Term, str]) -> str:
        statement = self.constant(query.statement, "statement")
        pairs = ", ".join(f"({v.data[0]!r}, {env[v]})" for v in query.variables if v in env)
        return f"({statement}, ({pairs}{',' if pairs else ''}))"

    def _define(self, name: str, parameters: list[str], body: list[str]) -> Callable[..., Any]:
        text = f"def {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in body or ["pass"])
        local: dict[str, Any] = {}
        exec(compile(text, f"<{self.chapter.cls.__name__}.{name}>", "exec"), self.space, local)
        function = cast(Callable[..., Any], local[name])
        function.__doc__ = text
        return function

    def _effect(self, effect: Effect, number: int, names: Mapping[Term, str]) -> list[str]:
        """Arguments are evaluated first, for all effects, in the state before; the lines returned change it."""
        for i, k in enumerate(effect.keys):
            self._lines.append(f"k{number}_{i} = {self.expr(k, names)}")
        condition = ""
        if effect.condition is not T.TRUE:
            self._lines.append(f"if{number} = {self.expr(effect.condition, names)}")
            condition = f"if if{number}:"
        variable = self.names[effect.path]
        key = ", ".join(f"k{number}_{i}" for i in range(len(effect.keys)))
        key = key if len(effect.keys) == 1 else f"({key})"
        lines = self._set_effect(effect, number, names, variable, key) or self._value_effect(
            effect, number, names, variable, key
        )
        return [condition, *("    " + x for x in lines)] if condition else lines

    def _set_effect(
        self, effect: Effect, number: int, names: Mapping[Term, str], variable: str, key: str
    ) -> list[str] | None:
        sort = self.chapter.variables[effect.path].sort
        if effect.kind == "assign":
            is_set = isinstance(sort, SetSort) or (isinstance(sort, MapSort) and isinstance(sort.value, SetSort))
            if not is_set or (not effect.keys and isinstance(sort, MapSort)):
                return None
            return self._assign_set(effect, number, names, variable, key)
        items = []
        for i, a in enumerate(effect.args):
            if a.op == "case":
                for j, f in enumerate(a.args):
                    self._lines.append(f"e{number}_{i}_{j} = {self.expr(f, names)}")
                fields = "".join(f", e{number}_{i}_{j}" for j in range(len(a.args)))
                self._lines.append(f"e{number}_{i} = ({a.data!r}{fields},)")
            else:
                self._lines.append(f"e{number}_{i} = {self.expr(a, names)}")
            items.append(f"e{number}_{i}")
        item = items[0] if len(items) == 1 else f"({', '.join(items)})"
        index = self.indexes.get(effect.path)
        if effect.kind == "set_add":
            target = f"{variable}.setdefault({key}, set())" if effect.keys else variable
            return [f"{target}.add({item})"] + ([f"{index}[{item}].add({key})"] if index else [])
        if not effect.keys:
            return [f"{variable}.discard({item})"]
        lines = [f"held = {variable}.get({key})", "if held is not None:", f"    held.discard({item})"]
        lines += ["    if not held:", f"        del {variable}[{key}]"]
        return lines + (self._unindex(index, item, key) if index else [])

    def _unindex(self, index: str, value: str, key: str) -> list[str]:
        return [
            f"known = {index}.get({value})", "if known is not None:", f"    known.discard({key})",
            "    if not known:", f"        del {index}[{value}]",
        ]  # fmt: skip

    def _assign_set(self, effect: Effect, number: int, names: Mapping[Term, str], variable: str, key: str) -> list[str]:
        value = effect.args[0]
        if value.op == "set_add" and value.args[0].op == "set_empty":
            single = Effect(effect.path, effect.keys, "set_add", value.args[1:], T.TRUE, effect.where)
            add = self._set_effect(single, number, names, variable, key) or []
            return self._clear(effect, variable, key) + add
        self._lines.append(f"new{number} = {self.set_value(value, names)}")
        if not effect.keys:
            return [f"{variable}.clear()" if value.op == "set_empty" else f"replace({variable}, new{number})"]
        index = self.indexes.get(effect.path)
        lines = self._clear(effect, variable, key)
        if value.op != "set_empty":
            lines += [f"if new{number}:", f"    {variable}[{key}] = set(new{number})"]
            lines += [f"for one in new{number}:", f"    {index}[one].add({key})"] if index else []
        return lines

    def _clear(self, effect: Effect, variable: str, key: str) -> list[str]:
        if not effect.keys:
            return [f"{variable}.clear()"]
        index = self.indexes.get(effect.path)
        lines = [f"gone = {variable}.pop({key}, EMPTY)"]
        return lines + (["for one in gone:", *("    " + x for x in self._unindex(index, "one", key))] if index else [])

    def _value_effect(
        self, effect: Effect, number: int, names: Mapping[Term, str], variable: str, key: str
    ) -> list[str]:
        value = effect.args[0]
        sort = self.chapter.variables[effect.path].sort
        if isinstance(sort, MapSort) and not effect.keys:
            return self._bulk_map(effect, number, names, variable)
        self._lines.append(f"new{number} = {self.expr(value, names)}")
        if not effect.keys:
            return [f"{variable}[0] = new{number}"]
        index = self.indexes.get(effect.path)
        shown = repr(_default(cast(Sort, value.sort))) if _default(cast(Sort, value.sort)) is not ABSENT else "ABSENT"
        self._lines.append(f"old{number} = {variable}.get({key}, {shown})")
        lines = [f"{variable}[{key}] = new{number}"]
        if index:
            lines = [*self._unindex(index, f"old{number}", key), *lines, f"{index}[new{number}].add({key})"]
        return lines

    def _bulk_map(self, effect: Effect, number: int, names: Mapping[Term, str], variable: str) -> list[str]:
        """A rule for all keys at once: keys that hold nothing keep nothing, so only stored ones are visited."""
        rule = effect.args[0]
        assert rule.op == "map_lambda"
        key = self.fresh("key")
        env = dict(names)
        for i, x in enumerate(rule.data):
            env[x] = key if len(rule.data) == 1 else f"{key}[{i}]"
        hoist, self._hoist = self._hoist, None
        is_set = isinstance(rule.args[0].sort, SetSort)
        text = f"set({self.set_value(rule.args[0], env)})" if is_set else self.expr(rule.args[0], env)
        self._hoist = hoist
        self._lines.append(f"new{number} = {{{key}: {text} for {key} in {variable}}}")
        lines = [f"replace_map({variable}, new{number})"]
        index = self.indexes.get(effect.path)
        return lines + ([f"reindex({index}, {variable})"] if index else [])

    def sweeps(self, queries: list[_Query]) -> list[Callable[[], Any]]:
        """One function for each query, over the whole state."""
        made = []
        for query in queries:
            clauses, env = self.plan(query.variables, list(query.literals), {})
            body = _nest(clauses, f"return {self._broken(query, env)}")
            made.append(self._define("sweep_" + query.statement.name.replace(".", "_"), [], [*body, "return None"]))
        return made

    def initial(self, term: Term) -> Any:
        """What an init stores; maps that hold their default everywhere stay blank."""
        if isinstance(term.sort, MapSort):
            body = term.args[0] if term.op == "map_lambda" else None
            blank = body is not None and (body.op in ("set_empty", "zero", "false") or body is T.num(0))
            assert blank, f"init gives {term} a start that is not blank"
            return {}
        text = self.set_value(term, {}) if isinstance(term.sort, SetSort) else self.expr(term, {})
        return self._define("start", [], [f"return {text}"])()

    def evaluate(self, term: Term, values: Mapping[str, Any]) -> Any:
        env = {v: v.data[0] for v in term.free}
        text = self.set_value(term, env) if isinstance(term.sort, SetSort) else self.expr(term, env)
        return self._define("value", list(env.values()), [f"return {text}"])(**values)


def _parents(literal: Term) -> dict[Term, list[Term]]:
    found: dict[Term, list[Term]] = defaultdict(list)
    for t in T.subterms(literal):
        for a in t.args:
            found[a].append(t)
    return found


def _polarity(t: Term, literal: Term) -> int:
    """1 if the literal is this membership, -1 if it is its negation, 0 otherwise."""
    if t.op != "has":
        return 0
    return 1 if literal is t else -1 if literal.op == "not" and literal.args[0] is t else 0


def _nest(clauses: Sequence[str], last: str) -> list[str]:
    lines = []
    for depth, clause in enumerate([*clauses, ""]):
        lines.append("    " * depth + (clause + ":" if clause else last))
    return lines


def cannot_enumerate(sort: str) -> Iterable[Any]:
    """Stands where a statement would have to run through a sort that has no end."""
    raise TypeError(f"all values of sort {sort} are asked for; the statement needs a premise that bounds them")


def replace(target: set[Any], source: Iterable[Any]) -> None:
    new = set(source)
    target.clear()
    target |= new


def replace_map(target: dict[Any, Any], source: dict[Any, Any]) -> None:
    target.clear()
    target.update({k: v for k, v in source.items() if not (isinstance(v, set) and not v)})


def reindex(index: dict[Any, set[Any]], source: Mapping[Any, Any]) -> None:
    index.clear()
    for key, value in source.items():
        for one in value if isinstance(value, set) else (value,):
            index[one].add(key)
