"""Chapters as state machines, and how their text is traced into terms.

A chapter is a class: annotations declare sorts of state variables, decorated methods are events, invariants and
theorems. Tracing runs a method once on symbolic values and keeps what it required, what it changed and on which line.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

from kvspec.spec.language import terms as T
from kvspec.spec.language.errors import SourceLine, SpecError, source_line
from kvspec.spec.language.terms import AnySort, MapSort, Path, SetSort, Sort, Term
from kvspec.spec.language.values import Bool, Map, Nat, Set, Value, _sort_view, lift, wrap

M = TypeVar("M", bound="Machine")
X = TypeVar("X")

_STATIC, _GHOST = "static", "ghost"
Static = Annotated[X, _STATIC]
"""A constant, a constant set or a function (``Static[Callable[[Chain], Bool]]``) that no event changes."""
Ghost = Annotated[X, _GHOST]
"""A state variable that only proofs read; no correct manager needs to have it."""


@dataclass(frozen=True)
class Variable:
    """A state variable of a chapter or of an instance inside it."""

    path: Path
    sort: AnySort
    ghost: bool

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class StaticSymbol:
    """A static constant or function; ``arguments`` is empty for a constant."""

    path: Path
    arguments: tuple[Sort, ...]
    result: AnySort

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class Requirement:
    """What an event asks for before it runs."""

    term: Term
    where: SourceLine


@dataclass(frozen=True)
class Owed:
    """What a called event of another chapter asks for; the caller has to prove it (``caller->callee/pre``)."""

    callee: str
    term: Term
    where: SourceLine


@dataclass(frozen=True)
class Effect:
    """One change: ``kind`` is assign, set_add or set_remove; all terms speak of the state before the event."""

    path: Path
    keys: tuple[Term, ...]
    kind: str
    args: tuple[Term, ...]
    condition: Term
    where: SourceLine


@dataclass
class TracedEvent:
    """An event, read once."""

    name: str
    sentence: str
    parameters: tuple[Term, ...]
    where: SourceLine
    requires: list[Requirement] = field(default_factory=list)
    owed: list[Owed] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    after: dict[Path, Term] = field(default_factory=dict)

    @property
    def guard(self) -> Term:
        return T.conj(r.term for r in self.requires)


@dataclass(frozen=True)
class Statement:
    """An invariant, axiom, theorem or witness: a name, a sentence and a term."""

    name: str
    sentence: str
    term: Term
    where: SourceLine
    after: str | None = None


@dataclass(frozen=True)
class LoopParts:
    """The pieces of a loop that a verification condition needs; see `Loop`."""

    name: str
    sentence: str
    where: SourceLine
    step: str
    parameters: tuple[Term, ...]
    start: Term
    keep: Term
    again: Term
    measure: Term
    result: Term


@dataclass(frozen=True)
class Loop:
    """A loop over one event: from ``start``, while ``again`` the event ``step`` runs; ``keep`` holds throughout,
    ``measure`` falls, and in the end there is ``result``."""

    step: Event
    start: Bool
    keep: Bool
    again: Bool
    measure: Nat
    result: Bool


# -- declarations ------------------------------------------------------------------------------------------------------


class _Declared:
    """A method of a chapter that is read, not called."""

    def __init__(self, body: Callable[..., Any], sentence: str = "", after: Event | None = None) -> None:
        self.body = body
        self.name = body.__name__
        self.sentence = sentence or (inspect.getdoc(body) or "").split("\n\n")[0].replace("\n", " ")
        self.after = after
        code = body.__code__
        self.where = SourceLine(code.co_filename, code.co_firstlineno)
        self.hints: dict[str, Any] = {}

    def parameters(self) -> list[tuple[str, AnySort]]:
        """Names and sorts of the parameters; a sort or a set of it."""
        names = list(inspect.signature(self.body).parameters)[1:]
        for name in names:
            if name not in self.hints:
                raise SpecError(f"parameter {name} of {self.name}", "an annotation that names a sort", self.where)
        return [(n, _sort(self.hints[n], f"parameter {n} of {self.name}")) for n in names]


class Event(_Declared):
    """A step of the machine; calling it from another event runs it there and owes what it requires."""

    def __get__(self, machine: Machine | None, owner: type | None = None) -> Any:
        return self if machine is None else _Callable(self, machine)


class Invariant(_Declared):
    """A statement that holds in every reachable state."""


class Theorem(_Declared):
    """A statement that follows from the invariants, in a state or across one event."""


class Axiom(_Declared):
    """A statement about statics that is assumed."""


class Witness(_Declared):
    """A situation that some run must reach, so that the invariants are known to speak of something."""


class Init(_Declared):
    """The state at the start."""


class LoopDeclaration(_Declared):
    """A loop over an event, with what is needed to verify it."""


class _Callable:
    def __init__(self, declared: Event, machine: Machine) -> None:
        self.declared, self.machine = declared, machine

    def __call__(self, *args: object) -> None:
        self.machine._scope.trace.call(self.declared, self.machine, args, inherit=False)


def event(body: Callable[..., None]) -> Any:
    """Declare an event. Its docstring is its sentence."""
    return Event(body)


def invariant(sentence: str) -> Callable[[Callable[[Any], Bool]], Any]:
    """Declare an invariant with its sentence; the method's name is its stable name."""
    return lambda body: Invariant(body, sentence)


def theorem(sentence: str, after: Any = None) -> Callable[[Callable[..., Bool]], Any]:
    """Declare a theorem; with ``after=event`` it speaks of the step: ``self`` is the state after, ``old(self)`` the
    state before, and parameters with the event's names are the event's."""
    return lambda body: Theorem(body, sentence, after)


def axiom(sentence: str) -> Callable[[Callable[[Any], Bool]], Any]:
    """Declare what is assumed of statics."""
    return lambda body: Axiom(body, sentence)


def witness(sentence: str) -> Callable[[Callable[[Any], Bool]], Any]:
    """Declare a situation that must be reachable."""
    return lambda body: Witness(body, sentence)


def init(body: Callable[[Any], None]) -> Any:
    """Declare the start state. The instances inside a chapter are initialised before it."""
    return Init(body)


def loop(body: Callable[..., Loop]) -> Any:
    """Declare a loop over an event; the method returns a `Loop`."""
    return LoopDeclaration(body)


@dataclass(frozen=True)
class _Instance:
    """A chapter inside a chapter."""

    machine: type[Machine]
    sorts: Mapping[str, Sort]
    index: type[Value] | None
    refined: bool
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)

    def __get__(self, holder: Machine | None, owner: type | None = None) -> Any:
        if holder is None:
            return self
        return _Indexed(self, holder) if self.index is not None else holder._scope.inner(self)


class _Indexed:
    def __init__(self, instance: _Instance, holder: Machine) -> None:
        self._instance, self._holder = instance, holder

    def __getitem__(self, key: Value) -> Machine:
        assert self._instance.index is not None
        keys = (lift(key, self._instance.index.sort),)
        return cast(Machine, self._holder._scope.inner(self._instance, keys))


def _instance(machine: type[Machine], index: type[Value] | None, refined: bool, sorts: Mapping[str, Any]) -> Any:
    return _Instance(machine, {name: cls.sort for name, cls in sorts.items()}, index, refined)


def use(machine: type[M], **sorts: type[Value]) -> M:
    """An instance of another chapter, its opaque sorts replaced: ``blocks = use(Blocks, Holder=Seat)``."""
    return cast(M, _instance(machine, None, False, sorts))


def use_each(index: type[X], machine: type[M], **sorts: type[Value]) -> Mapping[X, M]:
    """One instance for each value of a sort: ``managers = use_each(Rank, Blocks)``, then ``self.managers[rank]``."""
    return cast("Mapping[X, M]", _instance(machine, cast("type[Value]", index), False, sorts))


def refines(machine: type[M], **sorts: type[Value]) -> M:
    """The chapter that this one implements. Each event makes the abstract step beside its own; what it requires and
    what it stores must not read the abstract state."""
    return cast(M, _instance(machine, None, True, sorts))


class _StateSlot:
    """Class attribute behind an annotation: reads and writes go to the trace that is running."""

    def __init__(self, name: str, sort: AnySort, ghost: bool) -> None:
        self.name, self.sort, self.ghost = name, sort, ghost

    def place(self, machine: Machine) -> _Place:
        scope = machine._scope
        return _Place(scope, (*scope.path, self.name), scope.keys)

    def __get__(self, machine: Machine | None, owner: type | None = None) -> Any:
        if machine is None:
            return self
        place = self.place(machine)
        if isinstance(self.sort, MapSort):
            return Map[Any, Any](place)
        return Set[Any](None, place) if isinstance(self.sort, SetSort) else wrap(place.read())

    def __set__(self, machine: Machine, value: Any) -> None:
        if not isinstance(self.sort, Sort):
            raise SpecError(f"'{self.name}' is replaced as a whole", f"{self.name}.assign(...) or .assign_all(...)")
        place = self.place(machine)
        place.change("assign", lift(value, cast(Sort, place.read().sort)))


class _StaticSlot:
    def __init__(self, name: str, arguments: tuple[Sort, ...], result: AnySort) -> None:
        self.name, self.arguments, self.result = name, arguments, result

    def __get__(self, machine: Machine | None, owner: type | None = None) -> Any:
        if machine is None:
            return self
        scope = machine._scope
        symbol = T.make("static", (), scope.view(self.result), (*scope.path, self.name))
        if not self.arguments:
            return wrap(symbol)
        sorts = tuple(cast(Sort, scope.view(s)) for s in self.arguments)

        def apply(*args: object) -> Any:
            if len(args) != len(sorts):
                raise SpecError(f"{self.name} of {len(args)} arguments", f"{len(sorts)}")
            lifted = tuple(lift(a, s) for a, s in zip(args, sorts, strict=True))
            return wrap(T.make("call", (symbol, *lifted), symbol.sort))

        return apply


def _parse(annotation: Any, where: str) -> tuple[str, tuple[Sort, ...], AnySort]:
    """(kind, argument sorts, sort) of an annotation."""
    kind = "state"
    if typing.get_origin(annotation) is Annotated:
        annotation, kind = typing.get_args(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if kind == _STATIC and args and isinstance(args[0], list):
        return kind, tuple(a.sort for a in args[0]), _sort(args[1], where)
    return kind, (), _sort(annotation if origin is None else origin[args], where)


def _sort(annotation: Any, where: str) -> AnySort:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Value):
        return annotation.sort
    if origin is Set:
        return SetSort(_tuple(args[0]))
    if origin is Map:
        value = _sort(args[1], where)
        if not isinstance(value, MapSort):
            return MapSort(_tuple(args[0]), value)
    raise SpecError(f"{where}: {annotation}", "a sort, Set[...], Map[..., ...], Static[...] or Ghost[...]")


def _tuple(annotation: Any) -> tuple[Sort, ...]:
    args = typing.get_args(annotation) if typing.get_origin(annotation) is tuple else (annotation,)
    return tuple(a.sort for a in args)


class Machine:
    """Base class of chapters."""

    _scope: _Scope

    def __init_subclass__(cls) -> None:
        frame = sys._getframe(1)
        names = {**vars(sys.modules[cls.__module__]), **frame.f_locals}
        own = dict(vars(cls).get("__annotations__", {}))
        holder = type("Hints", (), {"__annotations__": own, "__module__": cls.__module__})
        for name, hint in typing.get_type_hints(holder, names, None, include_extras=True).items():
            kind, arguments, sort = _parse(hint, f"{cls.__name__}.{name}")
            slot = _StaticSlot(name, arguments, sort) if kind == _STATIC else _StateSlot(name, sort, kind == _GHOST)
            setattr(cls, name, slot)
        for declared in vars(cls).values():
            if isinstance(declared, _Declared):
                declared.hints = typing.get_type_hints(declared.body, names)

    def __getattr__(self, name: str) -> Any:
        raise SpecError(f"'{name}' is not declared in {type(self).__name__}", "an annotated variable or an event")

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(getattr(type(self), name, None), _StateSlot):
            raise SpecError(f"'{name}' is not declared in {type(self).__name__}", "an annotated state variable")
        object.__setattr__(self, name, value)


# -- tracing -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scope:
    """Where in the whole a machine stands while it is read."""

    trace: Trace
    cls: type[Machine]
    path: Path
    keys: tuple[Term, ...]
    sorts: tuple[tuple[str, Sort], ...]
    refined: bool = False

    def view(self, sort: AnySort) -> AnySort:
        """A sort of the machine's own text as the whole knows it."""
        return _replace(sort, dict(self.sorts))

    def inner(self, instance: _Instance, keys: tuple[Term, ...] = ()) -> Any:
        sorts = tuple((name, cast(Sort, self.view(s))) for name, s in instance.sorts.items())
        refined = self.refined or instance.refined
        scope = _Scope(self.trace, instance.machine, (*self.path, instance.name), self.keys + keys, sorts, refined)
        return scope.machine()

    def machine(self) -> Machine:
        machine = object.__new__(self.cls)
        object.__setattr__(machine, "_scope", self)
        return machine


def _replace(sort: AnySort, sorts: Mapping[str, Sort]) -> AnySort:
    match sort:
        case Sort():
            return sorts.get(sort.name, sort)
        case SetSort():
            return SetSort(tuple(sorts.get(s.name, s) for s in sort.elements))
        case MapSort():
            keys = tuple(sorts.get(s.name, s) for s in sort.keys)
            return MapSort(keys, cast("Sort | SetSort", _replace(sort.value, sorts)))


@dataclass(frozen=True)
class _Place:
    """A state variable, or the part of it under some keys."""

    scope: _Scope
    path: Path
    keys: tuple[Term, ...]

    @property
    def _whole(self) -> Term:
        return self.scope.trace.env[self.path]

    def read(self) -> Term:
        whole = self._whole
        if not self.keys:
            return whole
        sort = whole.sort
        assert isinstance(sort, MapSort)
        if len(self.keys) == len(sort.keys):
            return T.make("get", (whole, *self.keys), sort.value)
        return T.make("get", (whole, *self.keys), MapSort(sort.keys[len(self.keys) :], sort.value))

    def at(self, keys: tuple[Term, ...]) -> _Place:
        return _Place(self.scope, self.path, self.keys + keys)

    def change(self, kind: str, *args: Term) -> None:
        self.scope.trace.change(self, kind, args)


class Trace:
    """One reading of one method."""

    def __init__(self, chapter: Chapter, env: Mapping[Path, Term], purpose: str) -> None:
        self.chapter, self.purpose = chapter, purpose
        self.env = dict(env)
        self.before: dict[Path, Term] = dict(env)
        self.requires: list[Requirement] = []
        self.owed: list[Owed] = []
        self.effects: list[Effect] = []
        self.conditions: list[Term] = []
        self.callers: list[tuple[_Scope, str, bool]] = []

    def root(self) -> Any:
        return _Scope(self, self.chapter.cls, (), (), ()).machine()

    @contextmanager
    def reading(self, scope: _Scope, name: str, inherit: bool = False) -> Iterator[None]:
        self.callers.append((scope, name, inherit))
        _sort_view.append(lambda s: cast(Sort, scope.view(s)))
        _traces.append(self)
        try:
            yield
        finally:
            _traces.pop()
            _sort_view.pop()
            self.callers.pop()

    def run(self, declared: _Declared, machine: Machine, args: tuple[object, ...], inherit: bool = False) -> Any:
        scope = machine._scope
        with self.reading(scope, ".".join((*scope.path, declared.name)), inherit):
            return declared.body(machine, *args)

    def call(self, declared: Event, machine: Machine, args: tuple[object, ...], inherit: bool) -> None:
        if self.purpose != "event":
            raise SpecError(f"event {declared.name} is called by a {self.purpose}", "an event as the caller")
        caller, callee = self.callers[-1][0], machine._scope
        if callee.path not in (caller.path, (*caller.path, callee.path[-1] if callee.path else "")):
            raise SpecError(
                f"{'.'.join((*callee.path, declared.name))} is called past the chapter it belongs to",
                "an event of a chapter that is used directly",
            )
        sorts = [callee.view(sort) for _, sort in declared.parameters()]
        if len(args) != len(sorts):
            raise SpecError(f"{declared.name} called with {len(args)} arguments", f"{len(sorts)}")
        values = tuple(wrap(lift(a, s)) for a, s in zip(args, sorts, strict=True))
        self.run(declared, machine, values, inherit)

    def require(self, condition: Bool) -> None:
        if self.purpose != "event":
            raise SpecError(f"require(...) in a {self.purpose}", "an event")
        term = T.implies(T.conj(self.conditions), lift(condition, T.BOOL))
        where = source_line()
        inherited = [inherit for _, _, inherit in self.callers[1:]]
        if all(inherited):
            self.requires.append(Requirement(term, where))
        elif all(inherited[1:]):
            self.owed.append(Owed(self.callers[1][1], term, where))

    def change(self, place: _Place, kind: str, args: tuple[Term, ...]) -> None:
        name = ".".join(place.path)
        if self.purpose not in ("event", "init"):
            raise SpecError(f"a {self.purpose} changes {name}", "a statement that changes nothing")
        owner = self.callers[-1][0]
        if owner.path != place.path[:-1]:
            raise SpecError(
                f"{self.callers[-1][1] or 'this event'} writes {name}, which belongs to {place.scope.cls.__name__}",
                f"a call of an event of {place.scope.cls.__name__}",
            )
        whole, condition = self.env[place.path], T.conj(self.conditions)
        keys, args = _complete(whole, place.keys, args)
        old = T.make("get", (whole, *keys), cast(MapSort, whole.sort).value) if keys else whole
        new = args[0] if kind == "assign" else T.make(kind, (old, *args), old.sort)
        new = T.ite(condition, new, old)
        self.env[place.path] = T.make("store", (whole, *keys, new), whole.sort) if keys else new
        self.effects.append(Effect(place.path, keys, kind, args, condition, source_line()))


def _complete(whole: Term, keys: tuple[Term, ...], args: tuple[Term, ...]) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """A bulk change of the part under some keys, as a bulk change of the whole."""
    if not keys or not isinstance(whole.sort, MapSort) or len(keys) == len(whole.sort.keys):
        return keys, args
    (rule,) = args
    outer = tuple(T.variable("k", s) for s in whole.sort.keys[: len(keys)])
    xs = rule.data
    same = T.conj(T.eq(o, k) for o, k in zip(outer, keys, strict=True))
    old = T.make("get", (whole, *outer, *xs), whole.sort.value)
    body = T.ite(same, rule.args[0], old)
    return (), (T.make("map_lambda", (body,), whole.sort, outer + xs),)


_traces: list[Trace] = []


def _current(word: str) -> Trace:
    if not _traces:
        raise SpecError(f"{word}(...) outside a chapter", "a method of a chapter that is being read")
    return _traces[-1]


def require(condition: Bool) -> None:
    """What must hold for the event to run."""
    _current("require").require(condition)


@contextmanager
def when(condition: Bool) -> Iterator[None]:
    """The effects inside happen only if the condition held when it was evaluated."""
    trace = _current("when")
    trace.conditions.append(lift(condition, T.BOOL))
    try:
        yield
    finally:
        trace.conditions.pop()


def inherit(call: Any) -> Callable[..., None]:
    """``inherit(self.blocks.take)(block, holder)``: call an event and make its requirements one's own."""
    trace = _current("inherit")
    return lambda *args: trace.call(call.declared, call.machine, args, inherit=True)


def old(machine: M) -> M:
    """The machine as it was before the step, in a theorem about a step."""
    scope = machine._scope
    if scope.trace.purpose != "theorem":
        raise SpecError(f"old(...) in a {scope.trace.purpose}", "a theorem about a step")
    past = Trace(scope.trace.chapter, scope.trace.before, "theorem")
    return cast(M, _Scope(past, scope.cls, scope.path, scope.keys, scope.sorts).machine())


# -- chapters as readings see them -------------------------------------------------------------------------------------


class Chapter:
    """A chapter, traced: what every reading works on."""

    def __init__(self, cls: type[Machine]) -> None:
        self.cls = cls
        self.variables: dict[Path, Variable] = {}
        self.statics: dict[Path, StaticSymbol] = {}
        self._instances: list[tuple[_Instance, _Scope, tuple[Sort, ...]]] = []
        self.blank = Trace(self, {}, "statement")
        self._collect(_Scope(self.blank, cls, (), (), ()), ())
        self.env = {p: T.make("state", (), v.sort, p) for p, v in self.variables.items()}
        self.sorts = self._all_sorts()
        self._events: dict[str, TracedEvent] = {}

    @property
    def sentence(self) -> str:
        return (inspect.getdoc(self.cls) or "").split("\n\n")[0].replace("\n", " ")

    def _collect(self, scope: _Scope, index: tuple[Sort, ...]) -> None:
        for name, slot in list(vars(scope.cls).items()):
            path = (*scope.path, name)
            if isinstance(slot, _StateSlot):
                self.variables[path] = Variable(path, _indexed(scope.view(slot.sort), index), slot.ghost)
            elif isinstance(slot, _StaticSlot):
                arguments = tuple(cast(Sort, scope.view(s)) for s in slot.arguments)
                self.statics[path] = StaticSymbol(path, arguments, scope.view(slot.result))
            elif isinstance(slot, _Instance):
                more = () if slot.index is None else (cast(Sort, scope.view(slot.index.sort)),)
                inner = scope.inner(slot)._scope
                self._instances.append((slot, inner, index + more))
                self._collect(inner, index + more)

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
            declared = next((e for e in self._declared(Event) if e.name == name), None)
            if declared is None:
                raise SpecError(f"{self.cls.__name__} has no event {name}", "one of " + ", ".join(self.event_names))
            self._events[name] = self._trace_event(declared)
        return self._events[name]

    def _trace_event(self, declared: Event) -> TracedEvent:
        parameters = tuple(T.variable(n, sort) for n, sort in declared.parameters())
        trace = Trace(self, self.env, "event")
        trace.run(declared, trace.root(), tuple(map(wrap, parameters)))
        traced = TracedEvent(declared.name, declared.sentence, parameters, declared.where)
        traced.requires, traced.owed, traced.effects = trace.requires, trace.owed, trace.effects
        traced.after = trace.env
        self._check_refinement(traced)
        return traced

    def _check_refinement(self, traced: TracedEvent) -> None:
        """An implementation may not look at the abstract state that it implements."""
        hidden = [inner.path for slot, inner, _ in self._instances if slot.refined]
        reads: list[tuple[Term, SourceLine]] = [(r.term, r.where) for r in traced.requires]
        for e in traced.effects:
            if len(e.path) == 1 and not self.variables[e.path].ghost:
                reads += [(t, e.where) for t in (*e.keys, *e.args, e.condition)]
        for term, where in reads:
            for t in T.subterms(term):
                if t.op == "state" and any(t.data[: len(h)] == h for h in hidden):
                    raise SpecError(f"{traced.name} reads {'.'.join(t.data)}, which it implements", "own state", where)

    def _statement(self, declared: _Declared, scope: _Scope | None = None) -> Statement:
        scope = scope or _Scope(self.blank, self.cls, (), (), ())
        trace = Trace(self, self.env, type(declared).__name__.lower())
        inner = _Scope(trace, scope.cls, scope.path, scope.keys, scope.sorts)
        term = lift(trace.run(declared, inner.machine(), ()), T.BOOL)
        name = ".".join((*scope.path, declared.name))
        return Statement(name, declared.sentence, term, declared.where)

    @property
    def invariants(self) -> list[Statement]:
        """The chapter's own invariants, and that counters never fall below zero."""
        return [self._statement(d) for d in self._declared(Invariant)] + self._naturals()

    def _naturals(self) -> list[Statement]:
        own = [v for v in self.variables.values() if len(v.path) == 1]
        return [natural(v, self.env[v.path], SourceLine(*self.where)) for v in own if _holds_nat(v.sort)]

    @property
    def where(self) -> tuple[str, int]:
        """File and line of the class."""
        return inspect.getsourcefile(self.cls) or "", inspect.getsourcelines(self.cls)[1]

    @property
    def lower_invariants(self) -> list[Statement]:
        """Invariants of the instances inside; each was proved in its own chapter."""
        return self._from_instances(Invariant) + [
            natural(v, self.env[v.path], SourceLine(*self.where))
            for v in self.variables.values()
            if len(v.path) > 1 and _holds_nat(v.sort)
        ]

    def _from_instances(self, kind: type[_Declared]) -> list[Statement]:
        found = []
        for slot, inner, index in self._instances:
            keys = tuple(T.variable("k", s) for s in index)
            scope = _Scope(inner.trace, inner.cls, inner.path, keys, inner.sorts)
            for declared in self._declared(kind, slot.machine):
                s = self._statement(declared, scope)
                found.append(Statement(s.name, s.sentence, T.quantify("forall", keys, s.term), s.where))
        return found

    @property
    def axioms(self) -> list[Statement]:
        return [self._statement(d) for d in self._declared(Axiom)] + self._from_instances(Axiom)

    @property
    def witnesses(self) -> list[Statement]:
        return [self._statement(d) for d in self._declared(Witness)]

    @property
    def theorems(self) -> list[Statement]:
        return [self._theorem(d) for d in self._declared(Theorem)]

    def _theorem(self, declared: Theorem) -> Statement:
        if declared.after is None:
            return self._statement(declared)
        traced = self.event(declared.after.name)
        trace = Trace(self, traced.after, "theorem")
        trace.before = dict(self.env)
        given = {p.data[0]: p for p in traced.parameters}
        missing = [n for n, _ in declared.parameters() if n not in given]
        if missing:
            raise SpecError(f"{declared.name}: parameter {missing[0]}", f"one of {', '.join(given)}", declared.where)
        args = tuple(wrap(given[n]) for n, _ in declared.parameters())
        term = lift(trace.run(declared, trace.root(), args), T.BOOL)
        return Statement(declared.name, declared.sentence, term, declared.where, traced.name)

    @property
    def loops(self) -> list[tuple[LoopParts, LoopParts]]:
        """Each loop before its step and after it."""
        return [self._loop(d) for d in self._declared(LoopDeclaration)]

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
        return self._run_init(self.cls, _Scope(self.blank, self.cls, (), (), ()), (), env)

    def _run_init(
        self, cls: type[Machine], scope: _Scope, index: tuple[Sort, ...], env: dict[Path, Term]
    ) -> dict[Path, Term]:
        keys = tuple(T.variable("k", s) for s in index)
        trace = Trace(self, env, "init")
        for declared in self._declared(Init, cls):
            trace.run(declared, _Scope(trace, cls, scope.path, keys, scope.sorts).machine(), ())
        if not keys:
            return trace.env
        return {p: t if t is env[p] else _for_all_keys(t, keys) for p, t in trace.env.items()}


def _for_all_keys(whole: Term, keys: tuple[Term, ...]) -> Term:
    assert isinstance(whole.sort, MapSort)
    xs = keys + tuple(T.variable("x", s) for s in whole.sort.keys[len(keys) :])
    return T.make("map_lambda", (T.make("get", (whole, *xs), whole.sort.value),), whole.sort, xs)


def _indexed(sort: AnySort, index: tuple[Sort, ...]) -> AnySort:
    if not index:
        return sort
    return MapSort(index + sort.keys, sort.value) if isinstance(sort, MapSort) else MapSort(index, sort)


def _holds_nat(sort: AnySort) -> bool:
    return sort == T.NAT or (isinstance(sort, MapSort) and sort.value == T.NAT)


def natural(v: Variable, state: Term, where: SourceLine) -> Statement:
    """That a counter is never negative: the type fact of sort Nat."""
    keys = tuple(T.variable("x", s) for s in v.sort.keys) if isinstance(v.sort, MapSort) else ()
    value = T.make("get", (state, *keys), T.NAT) if keys else state
    term = T.quantify("forall", keys, T.neg(T.make("lt", (value, T.num(0)), T.BOOL)))
    return Statement(f"{v.name}_natural", f"the counter {v.name} is never below zero", term, where)
