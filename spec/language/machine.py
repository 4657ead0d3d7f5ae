"""How a chapter is declared: annotations for its state, decorators for events, invariants and theorems, instances of
other chapters. Tracing (`tracing`) runs the decorated methods; `chapter` collects what they say."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar, cast

from kvspec.spec.language import terms as T
from kvspec.spec.language.errors import SourceLine, SpecError
from kvspec.spec.language.terms import AnySort, MapSort, SetSort, Sort
from kvspec.spec.language.tracing import Place, Scope
from kvspec.spec.language.values import Bool, Map, Nat, Set, Value, lift, wrap

M = TypeVar("M", bound="Machine")
X = TypeVar("X")

_STATIC, _GHOST = "static", "ghost"
Static = Annotated[X, _STATIC]
"""A constant, a constant set or a function (``Static[Callable[[Chain], Bool]]``) that no event changes."""
Ghost = Annotated[X, _GHOST]
"""A state variable that only proofs read; no correct manager needs to have it."""


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


class Declared:
    """A method of a chapter that is read, not called."""

    def __init__(self, body: Callable[..., Any], sentence: str = "", after: Event | Init | None = None) -> None:
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


class Event(Declared):
    """A step of the machine; calling it from another event runs it there and owes what it requires."""

    def __get__(self, machine: Machine | None, owner: type | None = None) -> Any:
        return self if machine is None else _Callable(self, machine)


class Invariant(Declared):
    """A statement that holds in every reachable state."""


class Theorem(Declared):
    """A statement that follows from the invariants, in a state or across one event."""


class Axiom(Declared):
    """A statement about statics that is assumed."""


class Witness(Declared):
    """A situation that some run must reach, so that the invariants are known to speak of something."""


class Init(Declared):
    """The state at the start."""


class LoopDeclaration(Declared):
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
    state before, and parameters with the event's names are the event's. With ``after=start`` (the `init`) it speaks of
    the start."""
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
class Instance:
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
    def __init__(self, instance: Instance, holder: Machine) -> None:
        self._instance, self._holder = instance, holder

    def __getitem__(self, key: Value) -> Machine:
        assert self._instance.index is not None
        keys = (lift(key, self._instance.index.sort),)
        return cast(Machine, self._holder._scope.inner(self._instance, keys))


def _instance(machine: type[Machine], index: type[Value] | None, refined: bool, sorts: Mapping[str, Any]) -> Any:
    return Instance(machine, {name: cls.sort for name, cls in sorts.items()}, index, refined)


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


class StateSlot:
    """Class attribute behind an annotation: reads and writes go to the trace that is running."""

    def __init__(self, name: str, sort: AnySort, ghost: bool) -> None:
        self.name, self.sort, self.ghost = name, sort, ghost

    def place(self, machine: Machine) -> Place:
        scope = machine._scope
        return Place(scope, (*scope.path, self.name), scope.keys)

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


class StaticSlot:
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


class _OneName(dict[str, Any]):
    """The body of a chapter: no name may be declared twice, or the first would be lost without a word."""

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(self.get(name), (Declared, Instance)):
            raise SpecError(f"'{name}' is declared twice", "another name")
        super().__setitem__(name, value)


class _ChapterType(type):
    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], /, **options: Any) -> _OneName:
        return _OneName()


class Machine(metaclass=_ChapterType):
    """Base class of chapters."""

    _scope: Scope

    def __init_subclass__(cls) -> None:
        frame = sys._getframe(1)
        names = {**vars(sys.modules[cls.__module__]), **frame.f_locals}
        own = dict(vars(cls).get("__annotations__", {}))
        holder = type("Hints", (), {"__annotations__": own, "__module__": cls.__module__})
        for name, hint in typing.get_type_hints(holder, names, None, include_extras=True).items():
            kind, arguments, sort = _parse(hint, f"{cls.__name__}.{name}")
            slot = StaticSlot(name, arguments, sort) if kind == _STATIC else StateSlot(name, sort, kind == _GHOST)
            setattr(cls, name, slot)
        for declared in vars(cls).values():
            if isinstance(declared, Declared):
                declared.hints = typing.get_type_hints(declared.body, names)

    def __eq__(self, other: object) -> NoReturn:
        raise SpecError(f"'==' or '!=' on a {type(self).__name__}", "a statement about its variables")

    __ne__ = __eq__
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        raise SpecError(f"'{name}' is not declared in {type(self).__name__}", "an annotated variable or an event")

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(getattr(type(self), name, None), StateSlot):
            raise SpecError(f"'{name}' is not declared in {type(self).__name__}", "an annotated state variable")
        object.__setattr__(self, name, value)
