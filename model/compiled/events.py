"""One Python function for each event: what it requires, what it changes, what must still hold."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from kvspec.model.compiled.text import Text, blank, stored
from kvspec.model.compiled.touch import Check, Names, Query, Touches
from kvspec.spec.language import SpecError
from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import MapSort, Path, SetSort, Sort, Term
from kvspec.spec.language.traced import Effect, Requirement, Statement, TracedEvent


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


class Events(Text):
    """Writes the functions of a chapter's events, and of its sweeps."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.space |= {"StepError": StepError, "InvariantError": InvariantError, "Broken": Broken}
        self.space |= {"product": itertools.product, "replace": replace, "replace_map": replace_map, "reindex": reindex}
        self._checks: dict[str, list[tuple[Query, list[str], dict[Term, str]]]] = {}
        self._names: dict[str, Names] = {}
        self._looked_up: dict[str, dict[Term, str]] = {}

    def prepare(self, event: TracedEvent, queries: Sequence[Query]) -> None:
        """Find the checks of an event; asks for the indexes that they need."""
        names = self._names[event.name] = Names(event)
        touches = Touches(event, names, self._fold)
        self._cells = self._looked_up[event.name] = {}
        self._checks[event.name] = [self._planned(c) for c in touches.checks(queries)]
        self._cells = None

    def _planned(self, check: Check) -> tuple[Query, list[str], dict[Term, str]]:
        known = {v: self.expr(t, {}) for v, t in check.known.items()}
        clauses, env = self.plan(check.query.variables, list(check.literals), known)
        return check.query, clauses, env

    def _fold(self, call: Term) -> Term | None:
        """A statement about constants only."""
        if call.sort != T.BOOL or any(a.op != "static" for a in call.args[1:]):
            return None
        function = self.space[self.static_names[call.args[0].data]]
        found = function(*(self.space[self.static_names[a.data]] for a in call.args[1:]))
        return T.TRUE if found else T.FALSE

    # -- functions -----------------------------------------------------------------------------------------------

    def function(self, event: TracedEvent) -> Callable[..., None]:
        """The Python function of an event."""
        names = self._names[event.name]
        self._parameters = frozenset(event.parameters)
        self._hoist, self._lines = {}, []
        env = {p: names.of[p] for p in event.parameters}
        arguments = f"({''.join(env[p] + ', ' for p in event.parameters)})"
        event_name = self.constant(event, "event")
        for requirement in event.requires:
            text = self.expr(requirement.term, env)
            asked = self.constant(requirement, "requirement")
            self._lines += [f"if not {text}:", f"    raise StepError({event_name}, {asked}, {arguments})"]
        asking = [
            line
            for query, clauses, found in self._checks[event.name]
            for line in nest(clauses, f"raise InvariantError({event_name}, {arguments}, {self._broken(query, found)})")
        ]
        asking = self._look_up(self._looked_up[event.name], asking) + asking
        used = "\n".join(asking)
        changes = [line for i, e in enumerate(event.effects) for line in self._effect(e, i, env, names, used)]
        for term, name in list(names.of.items()):
            if name in used:
                self._scalar(term, env, names)
        lines = self._lines + changes + asking
        self._hoist = None
        return self._define(event.name, [env[p] for p in event.parameters], lines)

    def _look_up(self, cells: Mapping[Term, str], asking: Sequence[str]) -> list[str]:
        """The lines that look up each cell once, after the changes."""
        used = " ".join(asking)
        texts = []
        hoist, self._hoist = self._hoist, None
        for cell, name in cells.items():
            if re.search(rf"\b{name}\b", used):
                text = self.set_value(cell, {}) if isinstance(cell.sort, SetSort) else self.expr(cell, {})
                texts.append(f"{name} = {text}")
        self._hoist = hoist
        return texts

    def _scalar(self, term: Term, env: Mapping[Term, str], names: Names) -> str:
        """The text of a scalar in the state before the event, computed once under its name."""
        assert self._hoist is not None
        if term.op in ("static", "num", "zero", "true", "false") or term in env:
            return self.expr(term, env)
        name = names.name(term)
        if self._hoist.get(term) != name:
            text = self.expr(term, env)
            self._lines.append(f"{name} = {text}")
            self._hoist[term] = name
        return name

    def _broken(self, query: Query, env: Mapping[Term, str]) -> str:
        statement = self.constant(query.statement, "statement")
        pairs = "".join(f"({v.data[0]!r}, {env[v]}), " for v in query.variables if v in env)
        return f"Broken({statement}, ({pairs}))"

    def _define(self, name: str, parameters: list[str], body: list[str]) -> Callable[..., Any]:
        text = f"def {name}({', '.join(parameters)}):\n" + "".join(f"    {line}\n" for line in body or ["pass"])
        local: dict[str, Any] = {}
        exec(compile(text, f"<{self.chapter.cls.__name__}.{name}>", "exec"), self.space, local)
        function = cast(Callable[..., Any], local[name])
        function.__doc__ = text
        return function

    def sweeps(self, queries: Iterable[Query]) -> list[Callable[[], Broken | None]]:
        """One function for each query, over the whole state."""
        made = []
        for query in queries:
            clauses, env = self.plan(query.variables, list(query.literals), {})
            body = nest(clauses, f"return {self._broken(query, env)}")
            made.append(self._define("sweep_" + query.statement.name.replace(".", "_"), [], [*body, "return None"]))
        return made

    def start(self, term: Term) -> Callable[[], Any]:
        """A function that gives what an init stores: in a map of sets, what is not blank everywhere."""
        if isinstance(term.sort, MapSort):
            body = stored(term.args[0]) if term.op == "map_lambda" else None
            if body is not None and (body.op == "set_empty" or blank(term) is not None):
                return dict
            assert body is not None and isinstance(body.sort, SetSort), f"init gives {term} no start at all keys"
            key = self.fresh("key")
            inner = {x: key if len(term.data) == 1 else f"{key}[{i}]" for i, x in enumerate(term.data)}
            text = f"{{{key}: set({self.set_value(body, inner)}) for {key} in {self._all_keys(term.data)}}}"
            return self._define("start", [], [f"return {text}"])
        text = self.set_value(term, {}) if isinstance(term.sort, SetSort) else self.expr(term, {})
        return self._define("start", [], [f"return {text}"])

    def rebind(self, statics: Mapping[Path, Any]) -> None:
        """Give static words another meaning. Constants must stay what they are: the text may rest on them."""
        for path, value in statics.items():
            self.space[self.static_names[path]] = value

    def rebuild_indexes(self) -> None:
        """After the state was replaced."""
        for path, index in self.indexes.items():
            reindex(self.space[index], self.state[path])

    def evaluate(self, term: Term, values: Mapping[str, Any]) -> Any:
        """The value of a term in the current state; its free variables by name."""
        env = {v: v.data[0] for v in term.free}
        text = self.set_value(term, env) if isinstance(term.sort, SetSort) else self.expr(term, env)
        return self._define("value", list(env.values()), [f"return {text}"])(**values)

    # -- effects -------------------------------------------------------------------------------------------------

    def _effect(self, effect: Effect, number: int, env: Mapping[Term, str], names: Names, used: str) -> list[str]:
        """Arguments are evaluated first, for all effects, in the state before; the lines returned change it."""
        keys = [self._scalar(k, env, names) for k in effect.keys]
        key = keys[0] if len(keys) == 1 else f"({', '.join(keys)})"
        condition = ""
        if effect.condition is not T.TRUE:
            self._lines.append(f"if{number} = {self.expr(effect.condition, env)}")
            condition = f"if if{number}:"
        change = _Change(effect, number, key, self.names[effect.path], self.indexes.get(effect.path))
        if effect.kind != "assign":
            lines = self._members_change(change, effect.args, env, names)
        elif isinstance(effect.args[0].sort, MapSort):
            lines = self._bulk(change, env)
        elif isinstance(effect.args[0].sort, SetSort):
            lines = self._assign_set(change, env, names)
        else:
            lines = self._assign_scalar(change, env, names, f"old{number}" in used)
        return [condition, *("    " + x for x in lines)] if condition else lines

    def _members_change(
        self, change: _Change, element: Sequence[Term], env: Mapping[Term, str], names: Names
    ) -> list[str]:
        items = [self._element(a, env, names) for a in element]
        item = items[0] if len(items) == 1 else f"({', '.join(items)})"
        variable, key, index = change.variable, change.key, change.inverse
        if change.effect.kind in ("set_add", "assign"):
            target = f"{variable}.setdefault({key}, set())" if change.effect.keys else variable
            return [f"{target}.add({item})"] + ([f"{index}[{item}].add({key})"] if index else [])
        if not change.effect.keys:
            return [f"{variable}.discard({item})"]
        lines = [f"held = {variable}.get({key})", "if held is not None:", f"    held.discard({item})"]
        lines += ["    if not held:", f"        del {variable}[{key}]"]
        return lines + (_unindex(index, item, key) if index else [])

    def _element(self, a: Term, env: Mapping[Term, str], names: Names) -> str:
        if a.op != "case":
            return self._scalar(a, env, names)
        return f"({', '.join([repr(a.data), *(self._scalar(f, env, names) for f in a.args)])},)"

    def _assign_set(self, change: _Change, env: Mapping[Term, str], names: Names) -> list[str]:
        value, number = change.effect.args[0], change.number
        if value.op == "set_add" and value.args[0].op == "set_empty":
            return _clear(change) + self._members_change(change, value.args[1:], env, names)
        if value.op == "set_empty":
            return _clear(change)
        self._lines.append(f"new{number} = {self._outside(value, env)}")
        if not change.effect.keys:
            return [f"replace({change.variable}, new{number})"]
        lines = [*_clear(change), f"if new{number}:", f"    {change.variable}[{change.key}] = set(new{number})"]
        if change.inverse:
            lines += [f"for one in new{number}:", f"    {change.inverse}[one].add({change.key})"]
        return lines

    def _outside(self, value: Term, env: Mapping[Term, str]) -> str:
        """The text of a set with its own variables: nothing inside it may be computed ahead."""
        hoist, self._hoist = self._hoist, None
        text = self.set_value(value, env)
        self._hoist = hoist
        return text

    def _assign_scalar(self, change: _Change, env: Mapping[Term, str], names: Names, old: bool) -> list[str]:
        new = self._scalar(change.effect.args[0], env, names)
        if not change.effect.keys:
            return [f"{change.variable}[0] = {new}"]
        lines = [f"{change.variable}[{change.key}] = {new}"]
        if old or change.inverse:
            blank_text = self.blank_text(change.effect.path, cast(Sort, change.effect.args[0].sort))
            before = f"old{change.number} = {change.variable}.get({change.key}, {blank_text})"
            self._lines.append(before)
        if change.inverse:
            gone = _unindex(change.inverse, f"old{change.number}", change.key)
            lines = [*gone, *lines, f"{change.inverse}[{new}].add({change.key})"]
        return lines

    def _bulk(self, change: _Change, env: Mapping[Term, str]) -> list[str]:
        """A rule for all keys at once. Where it leaves blank what is blank, only stored keys are visited."""
        rule = change.effect.args[0]
        assert rule.op == "map_lambda", "a map is replaced by a rule"
        key = self.fresh("key")
        inner = dict(env)
        for i, x in enumerate(rule.data):
            inner[x] = key if len(rule.data) == 1 else f"{key}[{i}]"
        keys = change.variable if keeps_blank(rule, change.effect.path) else self._all_keys(rule.data)
        hoist, self._hoist = self._hoist, None
        body = rule.args[0]
        text = f"set({self.set_value(body, inner)})" if isinstance(body.sort, SetSort) else self.expr(body, inner)
        self._hoist = hoist
        self._lines.append(f"new{change.number} = {{{key}: {text} for {key} in {keys}}}")
        lines = [f"replace_map({change.variable}, new{change.number})"]
        return lines + ([f"reindex({change.inverse}, {change.variable})"] if change.inverse else [])


    def _all_keys(self, variables: Sequence[Term]) -> str:
        """Every key that there is: of sorts that can be enumerated."""
        parts = []
        for v in variables:
            sort = cast(Sort, v.sort)
            if sort.name not in self.carriers:
                what = f"a map over the sort {sort.name} is given other values at all keys at once"
                raise SpecError(what, "a rule that leaves blank what is blank, or a sort whose elements are known")
            parts.append(f"{self.constant(self.carriers[sort.name], 'carrier')}()")
        return parts[0] if len(parts) == 1 else f"product({', '.join(parts)})"


def keeps_blank(rule: Term, path: Path) -> bool:
    """Whether a rule for all keys of a map gives its default wherever the map holds its default."""
    old = rule.args[0]
    sort = old.sort
    if isinstance(sort, SetSort):
        xs = tuple(T.variable("x", s) for s in sort.elements)
        return _blank_member(old, xs, rule.data, path) is T.FALSE
    blank = {"nat": T.num(0), "bool": T.FALSE}.get(cast(Sort, sort).kind)
    if cast(Sort, sort).kind == "position":
        blank = T.make("zero", (), sort)
    found = _with_blank(old, rule.data, path, blank)
    return blank is not None and found is blank


def _with_blank(term: Term, keys: Sequence[Term], path: Path, blank: Term | None) -> Term:
    """The term with the map's default put in where the rule reads its own cell."""
    if term.op == "get" and term.args[0].op == "state" and term.args[0].data == path and term.args[1:] == tuple(keys):
        return term if blank is None else blank
    return T.rebuild(term, tuple(_with_blank(a, keys, path, blank) for a in term.args)) if term.args else term


def _blank_member(s: Term, xs: Sequence[Term], keys: Sequence[Term], path: Path) -> Term:
    """Membership in a set that a rule gives, with the rule's own cell empty."""
    if s.op == "set_empty" or (s.op == "get" and s.args[0].op == "state" and s.args[0].data == path):
        same = s.op == "set_empty" or s.args[1:] == tuple(keys)
        return T.FALSE if same else T.TRUE
    if s.op == "set_remove":
        return _blank_member(s.args[0], xs, keys, path)
    if s.op == "set_lambda":
        body = T.substitute(s.args[0], dict(zip(s.data, xs, strict=True)))
        return _no_members(body, keys, path)
    return T.TRUE


def _no_members(term: Term, keys: Sequence[Term], path: Path) -> Term:
    """A statement with every membership in the rule's own cell false."""
    if term.op == "has" and term.args[0].op == "get" and term.args[0].args[0].op == "state":
        cell = term.args[0]
        if cell.args[0].data == path and cell.args[1:] == tuple(keys):
            return T.FALSE
    return T.rebuild(term, tuple(_no_members(a, keys, path) for a in term.args)) if term.args else term


class _Change(NamedTuple):
    """An effect with the Python names of what it changes."""

    effect: Effect
    number: int
    key: str
    variable: str
    inverse: str | None


def _clear(change: _Change) -> list[str]:
    if not change.effect.keys:
        return [f"{change.variable}.clear()"]
    if not change.inverse:
        return [f"{change.variable}.pop({change.key}, None)"]
    gone = ["    " + x for x in _unindex(change.inverse, "one", change.key)]
    return [f"for one in {change.variable}.pop({change.key}, EMPTY):", *gone]


def _unindex(index: str, value: str, key: str) -> list[str]:
    return [
        f"known = {index}.get({value})", "if known is not None:", f"    known.discard({key})",
        "    if not known:", f"        del {index}[{value}]",
    ]  # fmt: skip


def nest(clauses: Sequence[str], last: str) -> list[str]:
    """Clauses as nested statements."""
    lines: list[str] = []
    depth = 0
    for clause in clauses:
        if clause != "for _ in (0,)":
            lines.append("    " * depth + clause + ":")
            depth += 1
    return [*lines, "    " * depth + last]


def replace(target: set[Any], source: Iterable[Any]) -> None:
    """Make a set equal to another, in place."""
    new = set(source)
    target.clear()
    target |= new


def replace_map(target: dict[Any, Any], source: dict[Any, Any]) -> None:
    """Make a map equal to another, in place; empty sets are not kept."""
    target.clear()
    target.update({k: v for k, v in source.items() if not (isinstance(v, set) and not v)})


def reindex(index: dict[Any, set[Any]], source: Mapping[Any, Any]) -> None:
    """Rebuild the inverse of a map."""
    index.clear()
    for key, value in source.items():
        for one in value if isinstance(value, set) else (value,):
            index[one].add(key)
