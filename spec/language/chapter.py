"""A chapter as readings see it: variables, events, invariants and theorems, with those of the chapters inside it."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar, cast

from kvspec.spec.language import terms as T
from kvspec.spec.language.errors import SourceLine, SpecError
from kvspec.spec.language.machine import (
    Axiom,
    Declared,
    Event,
    Init,
    Instance,
    Invariant,
    LoopDeclaration,
    Machine,
    StateSlot,
    StaticSlot,
    Theorem,
    Witness,
)
from kvspec.spec.language.terms import AnySort, MapSort, Path, SetSort, Sort, Term
from kvspec.spec.language.traced import (
    LoopParts,
    Site,
    Statement,
    StaticSymbol,
    TracedEvent,
    Variable,
    holds_nat,
    natural,
    natural_static,
)
from kvspec.spec.language.tracing import Edit, Scope, Trace, as_it_stands
from kvspec.spec.language.values import lift, wrap

X = TypeVar("X")

START = "init"
"""The row of the start, beside those of the events."""


class Chapter:
    """A chapter, traced: what every reading works on."""

    def __init__(self, cls: type[Machine]) -> None:
        self.cls = cls
        self.variables: dict[Path, Variable] = {}
        self.statics: dict[Path, StaticSymbol] = {}
        self._instances: list[tuple[Instance, Scope, tuple[Sort, ...]]] = []
        self.blank = Trace(self, {}, "statement")
        self._collect(Scope(self.blank, cls, (), (), ()), ())
        self.env = {p: T.make("state", (), v.sort, p) for p, v in self.variables.items()}
        self.sorts = self._all_sorts()
        self._events: dict[str, TracedEvent] = {}
        self._start: Edit = as_it_stands
        self._statements: dict[str, Term] = {}
        self._only: str | None = None
        self._unassumed: frozenset[str] = frozenset()

    @property
    def sentence(self) -> str:
        return (inspect.getdoc(self.cls) or "").split("\n\n")[0].replace("\n", " ")

    def _collect(self, scope: Scope, index: tuple[Sort, ...]) -> None:
        for name, slot in list(vars(scope.cls).items()):
            path = (*scope.path, name)
            if isinstance(slot, StateSlot):
                self.variables[path] = Variable(path, _indexed(scope.view(slot.sort), index), slot.ghost)
            elif isinstance(slot, StaticSlot):
                arguments = tuple(cast(Sort, scope.view(s)) for s in slot.arguments)
                self.statics[path] = StaticSymbol(path, arguments, scope.view(slot.result))
            elif isinstance(slot, Instance):
                self._check_sorts(slot)
                more = () if slot.index is None else (cast(Sort, scope.view(slot.index.sort)),)
                inner = scope.inner(slot)._scope
                self._instances.append((slot, inner, index + more))
                self._collect(inner, index + more)

    def _check_sorts(self, slot: Instance) -> None:
        """An instance can only replace sorts that its chapter speaks of."""
        inner = Chapter(slot.machine).sorts
        for name in slot.sorts:
            if name not in inner:
                raise SpecError(f"{slot.name} replaces the sort {name}", f"one of {', '.join(inner)}")

    def _all_sorts(self) -> dict[str, Sort]:
        found: dict[str, Sort] = {}

        def visit(sort: AnySort) -> None:
            match sort:
                case Sort():
                    for _, fields in sort.cases:
                        for field_sort in fields:
                            visit(field_sort)
                    if sort.kind not in ("bool", "nat"):
                        found[sort.name] = sort
                case SetSort():
                    for element in sort.elements:
                        visit(element)
                case MapSort():
                    for part in (*sort.keys, sort.value):
                        visit(part)

        for variable in self.variables.values():
            visit(variable.sort)
        for static in self.statics.values():
            for part in (*static.arguments, static.result):
                visit(part)
        for declared in self._declared(Event):
            for _, sort in declared.parameters():
                visit(sort)
        return found

    def _declared(self, kind: type[X], cls: type | None = None) -> list[X]:
        return [d for d in vars(cls or self.cls).values() if isinstance(d, kind)]

    # own declarations, in the order of the text

    @property
    def event_names(self) -> list[str]:
        return [e.name for e in self._declared(Event)]

    def event(self, name: str) -> TracedEvent:
        """The event of that name, traced on first use."""
        if name not in self._events:
            self._events[name] = self._trace_event(self._declared_event(name))
        return self._events[name]

    def _declared_event(self, name: str) -> Event:
        declared = next((e for e in self._declared(Event) if e.name == name), None)
        if declared is None:
            raise SpecError(f"{self.cls.__name__} has no event {name}", "one of " + ", ".join(self.event_names))
        return declared

    @property
    def declaration(self) -> str:
        """Everything that is declared beside statements and events: variables, statics, chapters inside."""
        variables = [f"{v.name}: {v.sort}{' ghost' if v.ghost else ''}" for v in self.variables.values()]
        statics = [f"{s.name}: {s.arguments} -> {s.result}" for s in self.statics.values()]
        inside = [
            f"{'.'.join(scope.path)}: {slot.machine.__name__} of {index}{' refined' if slot.refined else ''}"
            for slot, scope, index in self._instances
        ]
        return "; ".join((*variables, *statics, *inside))

    # -- other texts ---------------------------------------------------------------------------------------------

    def with_event(self, name: str, edit: Edit) -> Chapter:
        """The chapter as it would be if one event said something else, of the same parameters."""
        other = self._copy()
        other._events[name] = other._trace_event(self._declared_event(name), edit, self.event(name).parameters)
        return other

    def with_start(self, edit: Edit) -> Chapter:
        """The chapter as it would be if its start said something else."""
        other = self._copy()
        other._start = edit
        return other

    def with_invariant(self, name: str, term: Term, *symbols: StaticSymbol) -> Chapter:
        """The chapter as it would be if one of its invariants said something else; it may speak of new statics."""
        other = self._copy()
        other._statements[name] = term
        other.statics |= {s.path: s for s in symbols}
        return other

    def with_functions(self, functions: Mapping[str, Callable[..., object]]) -> Chapter:
        """The chapter as it would be if functions of its module computed something else: its theorems speak of that."""
        module = sys.modules[self.cls.__module__]
        saved = {name: getattr(module, name) for name in functions}
        other = self._copy()
        try:
            for name, function in functions.items():
                setattr(module, name, function)
            other._statements |= {s.name: s.term for s in other.theorems}
        finally:
            for name, function in saved.items():
                setattr(module, name, function)
        return other

    def without_axiom(self, name: str) -> Chapter:
        """The chapter as it would be if one of its axioms, or of those of the chapters inside, were not assumed."""
        other = self._copy()
        other._unassumed = self._unassumed | {name}
        return other

    def saying_only(self, invariant: str) -> Chapter:
        """The chapter with one of its invariants and no other statement, to see what that one finds alone."""
        other = self._copy()
        other._only = invariant
        other._events = {name: replace(self.event(name), owed=[]) for name in self.event_names}
        return other

    @property
    def functions(self) -> dict[str, Callable[..., object]]:
        """The public functions of numbers in the chapter's module, which its text may call."""
        module = sys.modules[self.cls.__module__]
        found = {n: f for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__}
        return {n: f for n, f in found.items() if not n.startswith("_") and _of_numbers(f)}

    def _copy(self) -> Chapter:
        other = copy.copy(self)
        other._events, other._statements = dict(self._events), dict(self._statements)
        other.statics = dict(self.statics)
        return other

    @property
    def start_sites(self) -> list[Site]:
        """The statements of the chapter's own start."""
        found: list[Site] = []

        def note(site: Site) -> tuple[Term, ...]:
            found.append(site)
            return site.terms

        _ = self.with_start(note).initial
        return found

    # -- statements ----------------------------------------------------------------------------------------------

    def _trace_event(
        self, declared: Event, edit: Edit = as_it_stands, given: tuple[Term, ...] | None = None
    ) -> TracedEvent:
        parameters = given or tuple(T.variable(n, sort) for n, sort in declared.parameters())
        trace = Trace(self, self.env, "event", edit)
        trace.run(declared, trace.root(), tuple(map(wrap, parameters)))
        traced = TracedEvent(declared.name, declared.sentence, parameters, declared.where)
        traced.requires, traced.owed, traced.effects = trace.requires, trace.owed, trace.effects
        traced.after, traced.sites = trace.env, trace.sites
        self._check_refinement(traced)
        return traced

    def _check_refinement(self, traced: TracedEvent) -> None:
        """An implementation may not look at the abstract state that it implements, nor at a ghost."""
        hidden = [inner.path for slot, inner, _ in self._instances if slot.refined]
        hidden += [v.path for v in self.variables.values() if v.ghost and hidden]
        reads: list[tuple[Term, SourceLine]] = [(r.term, r.where) for r in traced.requires]
        for e in traced.effects:
            if len(e.path) == 1 and not self.variables[e.path].ghost:
                reads += [(t, e.where) for t in (*e.keys, *e.args, e.condition)]
        for term, where in reads:
            for t in T.subterms(term):
                if t.op == "state" and any(t.data[: len(h)] == h for h in hidden):
                    raise SpecError(f"{traced.name} reads {'.'.join(t.data)}, which it implements", "own state", where)

    def _statement(self, declared: Declared, scope: Scope | None = None) -> Statement:
        scope = scope or Scope(self.blank, self.cls, (), (), ())
        trace = Trace(self, self.env, type(declared).__name__.lower())
        inner = Scope(trace, scope.cls, scope.path, scope.keys, scope.sorts)
        term = lift(trace.run(declared, inner.machine(), ()), T.BOOL)
        name = ".".join((*scope.path, declared.name))
        return Statement(name, declared.sentence, term, declared.where, asks=tuple(trace.asks))

    @property
    def invariants(self) -> list[Statement]:
        """The chapter's own invariants, and that counters never fall below zero."""
        stated = [self._statement(d) for d in self._declared(Invariant)] + self.naturals
        stated = [s for s in stated if self._only in (None, s.name)]
        return [replace(s, term=self._statements.get(s.name, s.term)) for s in stated]

    @property
    def naturals(self) -> list[Statement]:
        """That the chapter's own counters never fall below zero."""
        own = [v for v in self.variables.values() if len(v.path) == 1]
        return [natural(v, self.env[v.path], SourceLine(*self.where)) for v in own if holds_nat(v.sort)]

    @property
    def where(self) -> tuple[str, int]:
        """File and line of the class."""
        return inspect.getsourcefile(self.cls) or "", inspect.getsourcelines(self.cls)[1]

    @property
    def lower_invariants(self) -> list[Statement]:
        """Invariants of the instances inside; each was proved in its own chapter."""
        if self._only is not None:
            return []
        return self._from_instances(Invariant) + [
            natural(v, self.env[v.path], SourceLine(*self.where))
            for v in self.variables.values()
            if len(v.path) > 1 and holds_nat(v.sort)
        ]

    def _from_instances(self, kind: type[Declared]) -> list[Statement]:
        found = []
        for slot, inner, index in self._instances:
            keys = tuple(T.variable("k", s) for s in index)
            scope = Scope(inner.trace, inner.cls, inner.path, keys, inner.sorts)
            for declared in self._declared(kind, slot.machine):
                s = self._statement(declared, scope)
                found.append(Statement(s.name, s.sentence, T.quantify("forall", keys, s.term), s.where))
        return found

    @property
    def axioms(self) -> list[Statement]:
        stated = [self._statement(d) for d in self._declared(Axiom)] + self._from_instances(Axiom)
        stated += [natural_static(s, SourceLine(*self.where)) for s in self.statics.values() if s.result == T.NAT]
        return [s for s in stated if s.name not in self._unassumed]

    @property
    def witnesses(self) -> list[Statement]:
        return [self._statement(d) for d in self._declared(Witness)]

    @property
    def theorems(self) -> list[Statement]:
        stated = [self._theorem(d) for d in self._declared(Theorem) if self._only is None]
        return [replace(s, term=self._statements.get(s.name, s.term)) for s in stated]

    def theorem(self, name: str) -> Statement:
        """One theorem; the others are not read."""
        return self._theorem(next(d for d in self._declared(Theorem) if d.name == name))

    def _theorem(self, declared: Theorem) -> Statement:
        if declared.after is None:
            return self._statement(declared)
        if declared.after not in (*self._declared(Event), *self._declared(Init)):
            expected = f"one of {', '.join(self.event_names)}, or the chapter's own init"
            raise SpecError(f"{declared.name} is said of {declared.after.name}", expected, declared.where)
        if isinstance(declared.after, Init):
            row, trace, given = START, Trace(self, self.initial, "theorem"), {}
        else:
            traced = self.event(declared.after.name)
            row, trace, given = traced.name, Trace(self, traced.after, "theorem"), _by_name(traced.parameters)
            trace.before = dict(self.env)
        missing = [n for n, _ in declared.parameters() if n not in given]
        if missing:
            expected = f"one of {', '.join(given)}" if given else "none"
            raise SpecError(f"{declared.name}: parameter {missing[0]}", expected, declared.where)
        args = tuple(wrap(given[n]) for n, _ in declared.parameters())
        term = lift(trace.run(declared, trace.root(), args), T.BOOL)
        return Statement(declared.name, declared.sentence, term, declared.where, row)

    @property
    def loops(self) -> list[tuple[LoopParts, LoopParts]]:
        """Each loop before its step and after it."""
        return [self._loop(d) for d in self._declared(LoopDeclaration) if self._only is None]

    def _loop(self, declared: LoopDeclaration) -> tuple[LoopParts, LoopParts]:
        parameters = tuple(T.variable(n, sort) for n, sort in declared.parameters())

        def read(env: Mapping[Path, Term]) -> LoopParts:
            trace = Trace(self, env, "loop")
            got = trace.run(declared, trace.root(), tuple(map(wrap, parameters)))
            start, keep, again, result = (lift(x, T.BOOL) for x in (got.start, got.keep, got.again, got.result))
            head = (declared.name, declared.sentence, declared.where, got.step.name, parameters)
            return LoopParts(*head, start, keep, again, got.measure.term, result)

        before = read(self.env)
        return before, read(self.event(before.step).after)

    @property
    def initial(self) -> dict[Path, Term]:
        """The start state; a variable that no init sets keeps its own (arbitrary) term."""
        env = dict(self.env)
        for slot, inner, index in reversed(self._instances):
            env = self._run_init(slot.machine, inner, index, env)
        return self._run_init(self.cls, Scope(self.blank, self.cls, (), (), ()), (), env, self._start)

    def _run_init(
        self,
        cls: type[Machine],
        scope: Scope,
        index: tuple[Sort, ...],
        env: dict[Path, Term],
        edit: Edit = as_it_stands,
    ) -> dict[Path, Term]:
        keys = tuple(T.variable("k", s) for s in index)
        trace = Trace(self, env, "init", edit)
        for declared in self._declared(Init, cls):
            trace.run(declared, Scope(trace, cls, scope.path, keys, scope.sorts).machine(), ())
        if not keys:
            return trace.env
        return {p: t if t is env[p] else _for_all_keys(t, keys) for p, t in trace.env.items()}


def _by_name(parameters: tuple[Term, ...]) -> dict[str, Term]:
    return {p.data[0]: p for p in parameters}


def _of_numbers(function: Callable[..., object]) -> bool:
    """Whether it is written for numbers: Python's and those of the vocabulary."""
    said = [str(p.annotation) for p in inspect.signature(function).parameters.values()]
    return bool(said) and all(a in ("N", "Nat", "int | Nat", "Nat | int") for a in said)


def _for_all_keys(whole: Term, keys: tuple[Term, ...]) -> Term:
    assert isinstance(whole.sort, MapSort)
    xs = keys + tuple(T.variable("x", s) for s in whole.sort.keys[len(keys) :])
    return T.make("map_lambda", (T.make("get", (whole, *xs), whole.sort.value),), whole.sort, xs)


def _indexed(sort: AnySort, index: tuple[Sort, ...]) -> AnySort:
    if not index:
        return sort
    return MapSort(index + sort.keys, sort.value) if isinstance(sort, MapSort) else MapSort(index, sort)
