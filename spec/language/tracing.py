"""Reading one method of a chapter on symbolic values: who runs, what it requires, what it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from kvspec.spec.language import terms as T
from kvspec.spec.language.errors import SourceLine, SpecError, source_line
from kvspec.spec.language.terms import AnySort, MapSort, Path, SetSort, Sort, Term
from kvspec.spec.language.traced import Effect, Owed, Requirement, Site
from kvspec.spec.language.values import Bool, lift, sort_views, wrap

if TYPE_CHECKING:
    from kvspec.spec.language.chapter import Chapter
    from kvspec.spec.language.machine import Declared, Event, Instance, Machine

M = TypeVar("M", bound="Machine")
Edit = Callable[[Site], "tuple[Term, ...] | None"]
"""What to read in the place of a statement: its own terms or others; None to pass over it."""


def as_it_stands(site: Site) -> tuple[Term, ...] | None:
    return site.terms


@dataclass(frozen=True)
class Scope:
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

    def inner(self, instance: Instance, keys: tuple[Term, ...] = ()) -> Any:
        sorts = tuple((name, cast(Sort, self.view(s))) for name, s in instance.sorts.items())
        refined = self.refined or instance.refined
        scope = Scope(self.trace, instance.machine, (*self.path, instance.name), self.keys + keys, sorts, refined)
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
class Place:
    """A state variable, or the part of it under some keys."""

    scope: Scope
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

    def at(self, keys: tuple[Term, ...]) -> Place:
        return Place(self.scope, self.path, self.keys + keys)

    def change(self, kind: str, *args: Term) -> None:
        self.scope.trace.change(self, kind, args)


class Trace:
    """One reading of one method; ``edit`` may have it read otherwise than it stands."""

    def __init__(
        self, chapter: Chapter, env: Mapping[Path, Term], purpose: str, edit: Edit = as_it_stands
    ) -> None:
        self.chapter, self.purpose, self._edit = chapter, purpose, edit
        self.sites: list[Site] = []
        self.asks: list[str] = []
        self.env = dict(env)
        self.before: dict[Path, Term] | None = None
        self.requires: list[Requirement] = []
        self.owed: list[Owed] = []
        self.effects: list[Effect] = []
        self.conditions: list[Term] = []
        self.callers: list[tuple[Scope, str, bool]] = []

    def root(self) -> Any:
        return Scope(self, self.chapter.cls, (), (), ()).machine()

    @contextmanager
    def reading(self, scope: Scope, name: str, inherit: bool = False) -> Iterator[None]:
        self.callers.append((scope, name, inherit))
        sort_views.append(lambda s: cast(Sort, scope.view(s)))
        _traces.append(self)
        try:
            yield
        finally:
            _traces.pop()
            sort_views.pop()
            self.callers.pop()

    def run(self, declared: Declared, machine: Machine, args: tuple[object, ...], inherit: bool = False) -> Any:
        scope = machine._scope
        with self.reading(scope, ".".join((*scope.path, declared.name)), inherit):
            return declared.body(machine, *args)

    def call(self, declared: Event, machine: Machine, args: tuple[object, ...], inherit: bool) -> None:
        if self.purpose != "event":
            raise SpecError(f"event {declared.name} is called by a {self.purpose}", "an event as the caller")
        caller, callee = self.callers[-1][0], machine._scope
        if any(scope.path == callee.path and name.split(".")[-1] == declared.name for scope, name, _ in self.callers):
            raise SpecError(f"{declared.name} calls itself", "an event that ends")
        if callee.path not in (caller.path, (*caller.path, callee.path[-1] if callee.path else "")):
            raise SpecError(
                f"{'.'.join((*callee.path, declared.name))} is called past the chapter it belongs to",
                "an event of a chapter that is used directly",
            )
        sorts = [callee.view(sort) for _, sort in declared.parameters()]
        if len(args) != len(sorts):
            raise SpecError(f"{declared.name} called with {len(args)} arguments", f"{len(sorts)}")
        terms = tuple(lift(a, s) for a, s in zip(args, sorts, strict=True))
        if callee.path:
            name = ".".join((*callee.path, declared.name))
            read = self.read("call", (name, *(["inherit"] if inherit else [])), terms)
            if read is None:
                return
            terms = read
        self._numbers(declared, callee, terms, inherit)
        self.run(declared, machine, tuple(map(wrap, terms)), inherit)

    def read(self, kind: str, about: tuple[str, ...], terms: tuple[Term, ...]) -> tuple[Term, ...] | None:
        """The terms of a statement, as the edit wants them read.

        What other chapters say is read as it stands, and so is what an event asks of this one, its caller.
        """
        owed = kind == "require" and not all(inherit for _, _, inherit in self.callers[1:])
        if owed or self.callers[-1][0].path:
            return terms
        site = Site(kind, len(self.sites), about, terms, source_line())
        self.sites.append(site)
        return self._edit(site)

    def _numbers(self, declared: Event, callee: Scope, terms: tuple[Term, ...], inherit: bool) -> None:
        """An event may count on its numbers not being negative, so its caller has to see to it."""
        where = source_line()
        for term in terms:
            if term.sort == T.NAT and term.op != "num":
                self.callers.append((callee, ".".join((*callee.path, declared.name)), inherit))
                natural = T.neg(T.make("lt", (term, T.num(0)), T.BOOL))
                self._ask(T.implies(T.conj(self.conditions), natural), where)
                self.callers.pop()

    def require(self, condition: Bool) -> None:
        if self.purpose != "event":
            raise SpecError(f"require(...) in a {self.purpose}", "an event")
        read = self.read("require", (), (lift(condition, T.BOOL),))
        if read is not None:
            self._ask(T.implies(T.conj(self.conditions), read[0]), source_line())

    def _ask(self, term: Term, where: SourceLine) -> None:
        """What a called event asks for: the guard of the outermost event where the text inherits it, owed elsewhere.

        Calls inside the chapter are read as if their text stood there. What another chapter's event asks for where it
        calls on its own account was proved in that chapter.
        """
        calls = self.callers[1:]
        own = self.callers[0][0].path
        inside = next((i for i, (scope, _, _) in enumerate(calls) if scope.path != own), len(calls))
        if not all(inherit for _, _, inherit in calls[inside + 1 :]):
            return
        if all(inherit for _, _, inherit in calls[: inside + 1]):
            self.requires.append(Requirement(term, where))
        else:
            self.owed.append(Owed(calls[min(inside, len(calls) - 1)][1], term, where))

    def change(self, place: Place, kind: str, args: tuple[Term, ...]) -> None:
        name = ".".join(place.path)
        if self.purpose not in ("event", "init"):
            raise SpecError(f"a {self.purpose} changes {name}", "a statement that changes nothing")
        owner = self.callers[-1][0]
        if owner.path != place.path[:-1]:
            raise SpecError(
                f"{self.callers[-1][1] or 'this event'} writes {name}, which belongs to {place.scope.cls.__name__}",
                f"a call of an event of {place.scope.cls.__name__}",
            )
        read = self.read("change", (name, kind), (*place.keys, *args))
        if read is None:
            return
        keys, args = read[: len(place.keys)], read[len(place.keys) :]
        whole, condition = self.env[place.path], T.conj(self.conditions)
        keys, args = _complete(whole, keys, args)
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
    read = trace.read("when", (), (lift(condition, T.BOOL),))
    trace.conditions.append(T.FALSE if read is None else read[0])
    try:
        yield
    finally:
        trace.conditions.pop()


def inherit(call: Any) -> Callable[..., None]:
    """``inherit(self.blocks.take)(block, holder)``: call an event and make its requirements one's own."""
    trace = _current("inherit")
    return lambda *args: trace.call(call.declared, call.machine, args, inherit=True)


def possible(call: Any) -> Callable[..., Bool]:
    """``possible(self.take)(block, holder)``: that the event can happen now: all that it requires holds."""
    trace, declared = _current("possible"), call.declared
    if trace.purpose != "theorem" or trace.before is not None or call.machine._scope.path:
        expected = "a theorem about a state, and an event of the chapter itself"
        raise SpecError(f"possible({declared.name}) in a {trace.purpose}", expected)
    event = trace.chapter.event(declared.name)
    trace.asks.append(event.name)

    def ask(*args: object) -> Bool:
        if len(args) != len(event.parameters):
            raise SpecError(f"possible({event.name}) of {len(args)} arguments", f"{len(event.parameters)}")
        terms = [lift(a, p.sort) for a, p in zip(args, event.parameters, strict=True)]
        return Bool(T.substitute(event.guard, dict(zip(event.parameters, terms, strict=True))))

    return ask


def old(machine: M) -> M:
    """The machine as it was before the step, in a theorem about a step."""
    scope = machine._scope
    if scope.trace.purpose != "theorem":
        raise SpecError(f"old(...) in a {scope.trace.purpose}", "a theorem about a step")
    if scope.trace.before is None:
        raise SpecError("old(...) in a theorem about a state", "@theorem(..., after=event)")
    past = Trace(scope.trace.chapter, scope.trace.before, "theorem")
    return cast(M, Scope(past, scope.cls, scope.path, scope.keys, scope.sorts).machine())
