"""Python text for terms: expressions, and clauses that run through the values which satisfy a condition."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from kvspec.model.concrete import ABSENT
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Path, Sort, Term

Carrier = Callable[[], Iterable[Any]]


def default(sort: Sort) -> Any:
    """What a map to this sort holds where nothing was stored."""
    return {"nat": 0, "position": 0, "bool": False}.get(sort.kind, ABSENT)


def default_text(sort: Sort) -> str:
    value = default(sort)
    return "ABSENT" if value is ABSENT else repr(value)


def blank(initial: Term) -> Term | None:
    """The scalar that a map starts with at all keys, if it is one and the same."""
    if initial.op != "map_lambda":
        return None
    body = stored(initial.args[0])
    return None if not isinstance(body.sort, Sort) or body.free else body


def stored(body: Term) -> Term:
    """What a map holds that was just given a value under the keys at which it is read, or a rule for all."""
    while body.op == "get" and body.args[0].op in ("store", "map_lambda"):
        whole, keys = body.args[0], body.args[1:]
        if whole.op == "map_lambda":
            body = T.substitute(whole.args[0], dict(zip(whole.data, keys, strict=True)))
        elif whole.args[1:-1] == keys:
            body = whole.args[-1]
        else:
            break
    return body


def cannot_enumerate(sort: str) -> Iterable[Any]:
    """Stands where a statement would have to run through a sort that has no end."""
    raise TypeError(f"all values of sort {sort} are asked for; the statement needs a premise that bounds them")


def _is_known_cell(t: Term) -> bool:
    """A look-up in a state variable by names only."""
    return t.op == "get" and t.args[0].op == "state" and all(k.op in ("py", "static", "zero") for k in t.args[1:])


class Text:
    """Writes Python text for terms; keeps the names that the text uses."""

    def __init__(
        self, chapter: Chapter, state: Mapping[Path, Any], statics: Mapping[Path, Any], carriers: Mapping[str, Carrier]
    ) -> None:
        self.chapter, self.carriers = chapter, carriers
        self.state = state
        self.names: dict[Path, str] = {p: f"v{i}_{p[-1]}" for i, p in enumerate(chapter.variables)}
        self.space: dict[str, Any] = {n: state[p] for p, n in self.names.items()}
        self.space |= {"ABSENT": ABSENT, "EMPTY": frozenset(), "cannot_enumerate": cannot_enumerate}
        self.static_names: dict[Path, str] = {}
        for i, (path, value) in enumerate(statics.items()):
            self.static_names[path] = f"c{i}_{path[-1]}"
            self.space[self.static_names[path]] = value
        self.blanks: dict[Path, Term] = {p: b for p, t in chapter.initial.items() if (b := blank(t)) is not None}
        """What a map to scalars holds where nothing was stored, where its start says so."""
        self.indexes: dict[Path, str] = {}
        self._fresh = itertools.count()
        self._hoist: dict[Term, str] | None = None
        self._lines: list[str] = []
        self._parameters: frozenset[Term] = frozenset()
        self._cells: dict[Term, str] | None = None
        """Cells that the checks of an event read, each looked up once."""

    def fresh(self, hint: str) -> str:
        return f"{hint}_{next(self._fresh)}"

    def constant(self, value: Any, hint: str) -> str:
        name = self.fresh(hint)
        self.space[name] = value
        return name

    # -- expressions ---------------------------------------------------------------------------------------------

    def expr(self, t: Term, env: Mapping[Term, str]) -> str:
        """The text of a scalar or of a statement."""
        if self._cells is not None and _is_known_cell(t):
            return self._cells.setdefault(t, f"g{len(self._cells)}")
        if self._hoist is not None and t.op in ("get", "call") and isinstance(t.sort, Sort) and self._ground(t, env):
            if t not in self._hoist:
                text = self._expr(t, env)
                self._hoist[t] = self.fresh("t")
                self._lines.append(f"{self._hoist[t]} = {text}")
            return self._hoist[t]
        return self._expr(t, env)

    def _ground(self, t: Term, env: Mapping[Term, str]) -> bool:
        return all(v in self._parameters for v in t.free)

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
            case "least":
                return f"{t.data}({e(t.args[0], env)}, {e(t.args[1], env)})"
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
        return f"{self.names[m.data]}.get({self._tuple(keys, env)}, {self.blank_text(m.data, sort)})"

    def blank_text(self, path: Path, sort: Sort) -> str:
        """The text of what a map holds where nothing was stored."""
        return self.expr(self.blanks[path], {}) if path in self.blanks else default_text(sort)

    def set_value(self, s: Term, env: Mapping[Term, str]) -> str:
        """The set itself, not to be changed."""
        if self._cells is not None and _is_known_cell(s):
            return self._cells.setdefault(s, f"g{len(self._cells)}")
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
        parts = list(T.literals(s.args[0]))
        clauses, inner = self.plan(s.data, parts, env)
        either = next((p for p in parts if p.op == "or"), None)
        if either is not None and any("cannot_enumerate(" in c for c in clauses):
            cases = (T.conj(one if p is either else p for p in parts) for one in either.args)
            united = (self._comprehension(T.make("set_lambda", (c,), s.sort, s.data), env) for c in cases)
            return f"({' | '.join(united)})"
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
        clauses, _ = self.plan(t.data, list(T.literals(body)), env)
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
        elif a.op == "not" and a.args[0].op == "lt" and a.args[0].args[1] in open_vars:
            bound, x = a.args[0].args
            if not bound.free & open_vars:
                name = self.fresh(x.data[0])
                yield 20, [f"for {name} in range({self.expr(bound, env)} + 1)"], {x: name}, a
        elif a.op == "has":
            yield from self._members(a, open_vars, env)

    def _below_stored(self, a: Term, open_vars: set[Term], env: Mapping[Term, str]) -> Iterable[Any]:
        """Where there is a position below a stored bound: where nothing is stored the bound is the least position.

        The positions come next, behind all that can be said without them.
        """
        x, bound = a.args
        if x in bound.free or not all(self._matchable(k, open_vars) for k in bound.args[1:]):
            return
        clauses, found = self._unpack(self.names[bound.args[0].data], bound.args[1:], open_vars - {x}, env)
        yield 46, clauses, found, None

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
        clauses = [f"for {name} in {source}"]
        found: dict[Term, str] = {}
        for i, part in enumerate(parts):
            text = name if len(parts) == 1 else f"{name}[{i}]"
            self._match(part, text, open_vars, {**env, **found}, clauses, found)
        return clauses, found

    def _match(
        self,
        part: Term,
        text: str,
        open_vars: set[Term],
        env: Mapping[Term, str],
        clauses: list[str],
        found: dict[Term, str],
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
