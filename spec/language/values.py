"""What a specification author handles: values with operators, made of terms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar, cast

from kvspec.spec.language import terms as T
from kvspec.spec.language.errors import SpecError
from kvspec.spec.language.terms import AnySort, MapSort, SetSort, Sort, Term

E = TypeVar("E")
K = TypeVar("K")
V = TypeVar("V")


class Place(Protocol):
    """Where a set or map value lives; asked for its current term, told of changes."""

    def read(self) -> Term: ...
    def change(self, kind: str, *args: Term) -> None: ...
    def at(self, keys: tuple[Term, ...]) -> Place: ...


class Value:
    """A scalar value. Subclasses are sorts: ``class Block(Id)`` declares the sort ``Block``."""

    sort: ClassVar[Sort]
    term: Term

    def __init__(self, term: Term) -> None:
        self.term = term

    def __eq__(self, other: object) -> Bool:  # type: ignore[override]
        return Bool(T.eq(self.term, lift(other, self.term.sort)))

    def __ne__(self, other: object) -> Bool:  # type: ignore[override]
        return ~(self == other)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise SpecError(
            "a symbolic value is used as a Python truth value",
            "when(...), implies(...), &, | or ~ instead of if, and, or, not",
        )

    def __iter__(self) -> Iterator[Any]:
        raise SpecError("a symbolic value is iterated", "forall(...) or exists(...)")


class Bool(Value):
    """A statement."""

    sort = T.BOOL

    def __and__(self, other: Bool) -> Bool:
        return Bool(T.conj((self.term, lift(other, T.BOOL))))

    def __or__(self, other: Bool) -> Bool:
        return Bool(T.disj((self.term, lift(other, T.BOOL))))

    def __invert__(self) -> Bool:
        return Bool(T.neg(self.term))


class Nat(Value):
    """A natural number: a count, or arithmetic."""

    sort = T.NAT

    def _binary(self, op: str, other: Nat | int, swap: bool = False) -> Nat:
        pair = (self.term, lift(other, T.NAT))
        return Nat(T.make(op, pair[::-1] if swap else pair, T.NAT))

    def __add__(self, other: Nat | int) -> Nat:
        return self._binary("add", other)

    def __radd__(self, other: Nat | int) -> Nat:
        return self._binary("add", other, True)

    def __sub__(self, other: Nat | int) -> Nat:
        return self._binary("sub", other)

    def __rsub__(self, other: Nat | int) -> Nat:
        return self._binary("sub", other, True)

    def __mul__(self, other: Nat | int) -> Nat:
        return self._binary("mul", other)

    def __rmul__(self, other: Nat | int) -> Nat:
        return self._binary("mul", other, True)

    def __floordiv__(self, other: Nat | int) -> Nat:
        return self._binary("div", other)

    def __mod__(self, other: Nat | int) -> Nat:
        return self._binary("mod", other)

    def __lt__(self, other: Nat | int) -> Bool:
        return less(self, other, T.NAT)

    def __gt__(self, other: Nat | int) -> Bool:
        return less(other, self, T.NAT)

    def __le__(self, other: Nat | int) -> Bool:
        return ~less(other, self, T.NAT)

    def __ge__(self, other: Nat | int) -> Bool:
        return ~less(self, other, T.NAT)


def less(left: object, right: object, sort: Sort) -> Bool:
    return Bool(T.make("lt", (lift(left, sort), lift(right, sort)), T.BOOL))


class Id(Value):
    """An opaque sort: its values can only be compared."""

    def __init_subclass__(cls) -> None:
        cls.sort = Sort(cls.__name__, "id")


class Position(Value):
    """A sort with a total order, a least value and, for each value, a next one (block indices, time stamps)."""

    def __init_subclass__(cls) -> None:
        cls.sort = Sort(cls.__name__, "position")

    @classmethod
    def zero(cls: type[P]) -> P:
        return cls(T.make("zero", (), cls.sort))

    def next(self: P) -> P:
        return type(self)(T.make("next", (self.term,), self.term.sort))

    def prev(self: P) -> P:
        return type(self)(T.make("prev", (self.term,), self.term.sort))

    def is_zero(self) -> Bool:
        return Bool(T.eq(self.term, T.make("zero", (), self.term.sort)))

    def __lt__(self: P, other: P) -> Bool:
        return less(self, other, cast(Sort, self.term.sort))

    def __gt__(self: P, other: P) -> Bool:
        return less(other, self, cast(Sort, self.term.sort))

    def __le__(self: P, other: P) -> Bool:
        return ~less(other, self, cast(Sort, self.term.sort))

    def __ge__(self: P, other: P) -> Bool:
        return ~less(self, other, cast(Sort, self.term.sort))


P = TypeVar("P", bound=Position)


class Case:
    """One case of a variant; call it with its fields."""

    def __init__(self, *fields: type[Value]) -> None:
        self.fields = fields
        self.name = ""
        self.owner: type[Variants] | None = None

    def __call__(self, *args: object) -> Any:
        assert self.owner is not None
        sorts = self.owner.sort.fields(self.name)
        if len(args) != len(sorts):
            raise SpecError(f"{self.name} with {len(args)} fields", f"{len(sorts)} fields")
        lifted = tuple(lift(a, s) for a, s in zip(args, sorts, strict=True))
        return self.owner(T.make("case", lifted, self.owner.sort, self.name))


def case(*fields: type[Value]) -> Case:
    """Declare a case of a `Variants` sort with these fields."""
    return Case(*fields)


class Variants(Value):
    """A sort with finitely many cases, for kinds and for holders::

        class Holder(Variants):
            seq_at = case(Seq, Index)
            cache_of = case(Chain)
    """

    def __init_subclass__(cls) -> None:
        own = {name: c for name, c in vars(cls).items() if isinstance(c, Case)}
        for name, c in own.items():
            c.name, c.owner = name, cls
        cls.sort = Sort(cls.__name__, "variant", tuple((n, tuple(f.sort for f in c.fields)) for n, c in own.items()))

    def is_case(self, which: Case) -> Bool:
        return Bool(T.make("is_case", (self.term,), T.BOOL, which.name))

    def field(self, which: Case, number: int) -> Any:
        sort = which.fields[number].sort
        return wrap(T.make("field", (self.term,), sort, (which.name, number)))


class _Incomparable:
    """Python would compare objects, not what they stand for."""

    _compare = "a statement about the elements"

    def __eq__(self, other: object) -> NoReturn:
        raise SpecError(f"'==' or '!=' on a {type(self).__name__}", self._compare)

    __ne__ = __eq__
    __hash__ = None  # type: ignore[assignment]


class Set(_Incomparable, Generic[E]):
    """A set of scalars or of tuples of scalars. Methods that change it are for events only."""

    _compare = "set.equals(other)"

    def __init__(self, term: Term | None, place: Place | None = None) -> None:
        self._term, self._place = term, place

    @property
    def term(self) -> Term:
        if self._term is not None:
            return self._term
        assert self._place is not None
        return self._place.read()

    def _element(self, element: object) -> tuple[Term, ...]:
        sort = self.term.sort
        assert isinstance(sort, SetSort)
        return lift_tuple(element, sort.elements)

    def has(self, element: object) -> Bool:
        """Membership. The sort is checked when the text is read: an instance may have replaced it (`use`)."""
        return Bool(T.make("has", (self.term, *self._element(element)), T.BOOL))

    def is_empty(self) -> Bool:
        return Bool(T.make("empty", (self.term,), T.BOOL))

    def is_only(self, element: object) -> Bool:
        """The set is exactly {element}."""
        return Bool(T.make("only", (self.term, *self._element(element)), T.BOOL))

    def size(self) -> Nat:
        return Nat(T.make("size", (self.term,), T.NAT))

    def equals(self, other: Set[E]) -> Bool:
        sort = self.term.sort
        assert isinstance(sort, SetSort)
        xs = tuple(T.variable("x", s) for s in sort.elements)
        both = [T.make("has", (s, *xs), T.BOOL) for s in (self.term, other.term)]
        return Bool(T.quantify("forall", xs, T.iff(*both)))

    def without(self, other: Set[E]) -> Set[E]:
        """The members that are not in the other set."""
        sort = self.term.sort
        assert isinstance(sort, SetSort)
        xs = tuple(T.variable("x", s) for s in sort.elements)
        mine, theirs = (T.make("has", (s, *xs), T.BOOL) for s in (self.term, other.term))
        return Set(T.make("set_lambda", (T.conj((mine, T.neg(theirs))),), sort, xs))

    def _change(self, kind: str, *args: Term) -> None:
        if self._place is None:
            raise SpecError("a set that is no state variable is changed", "a state variable of the chapter")
        self._place.change(kind, *args)

    def add(self, element: E) -> None:
        self._change("set_add", *self._element(element))

    def discard(self, element: E) -> None:
        self._change("set_remove", *self._element(element))

    def become(self, element: E) -> None:
        """The set is {element} from now on."""
        empty = T.make("set_empty", (), self.term.sort)
        self._change("assign", T.make("set_add", (empty, *self._element(element)), self.term.sort))

    def clear(self) -> None:
        self._change("assign", T.make("set_empty", (), self.term.sort))

    def assign(self, other: Set[E]) -> None:
        self._change("assign", other.term)

    def assign_where(self, rule: Callable[..., Bool]) -> None:
        """All elements with the property are members from now on, and no others."""
        sort = self.term.sort
        assert isinstance(sort, SetSort)
        xs = bound(rule, sort.elements)
        body = lift(rule(*map(wrap, xs)), T.BOOL)
        self._change("assign", T.make("set_lambda", (body,), sort, xs))

    def __contains__(self, element: object) -> NoReturn:
        raise SpecError("'in' on a symbolic set", "set.has(element)")

    def __iter__(self) -> Iterator[Any]:
        raise SpecError("a symbolic set is iterated", "forall(...) or exists(...)")

    def __bool__(self) -> NoReturn:
        raise SpecError("a symbolic set is used as a Python truth value", "~set.is_empty()")


class Map(_Incomparable, Generic[K, V]):
    """A total map. What it holds for a key that nothing was stored under is arbitrary.

    The sort of a key is checked when the text is read: an instance may have replaced it (`use`).
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    def _keys(self, key: object) -> tuple[Term, ...]:
        sort = self._place.read().sort
        assert isinstance(sort, MapSort)
        return lift_tuple(key, sort.keys)

    def __getitem__(self, key: object) -> V:
        place = self._place.at(self._keys(key))
        term = place.read()
        if isinstance(term.sort, SetSort):
            return cast(V, Set[Any](None, place))
        return cast(V, wrap(term))

    def __setitem__(self, key: object, value: V) -> None:
        place = self._place.at(self._keys(key))
        term = place.read()
        place.change("assign", value.term if isinstance(value, Set) else lift(value, cast(Sort, term.sort)))

    def assign_all(self, rule: Callable[..., object]) -> None:
        """From now on the map is given by the rule, for all keys at once."""
        sort = self._place.read().sort
        assert isinstance(sort, MapSort)
        xs = bound(rule, sort.keys)
        value = rule(*map(wrap, xs))
        body = value.term if isinstance(value, Set) else lift(value, cast(Sort, sort.value))
        self._place.change("assign", T.make("map_lambda", (body,), sort, xs))

    def __contains__(self, element: object) -> NoReturn:
        raise SpecError("'in' on a symbolic map", "a set of the keys that count, and set.has(key)")

    def __iter__(self) -> Iterator[Any]:
        raise SpecError("a symbolic map is iterated", "forall(...) or exists(...)")


def set_where(element: type[Value] | tuple[type[Value], ...], rule: Callable[..., Bool]) -> Set[Any]:
    """The set of all elements with the property."""
    sorts = tuple(sort_of(s) for s in (element if isinstance(element, tuple) else (element,)))
    xs = bound(rule, sorts)
    return Set(T.make("set_lambda", (lift(rule(*map(wrap, xs)), T.BOOL),), SetSort(sorts), xs))


def empty_set(*elements: type[Value]) -> Set[Any]:
    """The set of these sorts without members."""
    return Set(T.make("set_empty", (), SetSort(tuple(sort_of(s) for s in elements))))


def bound(rule: Callable[..., Any], sorts: tuple[Sort, ...]) -> tuple[Term, ...]:
    """Fresh variables for the parameters of a rule, with its own names."""
    names = list(inspect.signature(rule).parameters)
    if len(names) != len(sorts):
        raise SpecError(f"a rule of {len(names)} parameters", f"{len(sorts)}")
    return tuple(T.variable(n, s) for n, s in zip(names, sorts, strict=True))


sort_views: list[Callable[[Sort], Sort]] = []


def sort_of(cls: type[Value]) -> Sort:
    """The sort that a class names, as seen by the chapter that is being read (an instance may have replaced it)."""
    return sort_views[-1](cls.sort) if sort_views else cls.sort


_classes: dict[str, type[Value]] = {"bool": Bool, "nat": Nat}


def wrap(term: Term) -> Any:
    """The value of a scalar term."""
    sort = term.sort
    if isinstance(sort, SetSort):
        return Set[Any](term)
    assert isinstance(sort, Sort)
    if sort.kind in _classes:
        return _classes[sort.kind](term)
    base = {"id": Id, "position": Position, "variant": Variants}[sort.kind]
    value = base.__new__(base)
    value.term = term
    return value


def lift(value: object, sort: AnySort) -> Term:
    """The term of a value, checked against the sort that is wanted."""
    if isinstance(value, Set) and value.term.sort == sort:
        return value.term
    if isinstance(value, bool) and sort == T.BOOL:
        return T.TRUE if value else T.FALSE
    if isinstance(value, int) and not isinstance(value, bool) and sort == T.NAT:
        return T.num(value)
    if isinstance(value, Value):
        if value.term.sort != sort:
            raise SpecError(f"a value of sort {_name(value.term.sort)}", f"sort {_name(sort)}")
        return value.term
    raise SpecError(f"a value of Python type {type(value).__name__}", f"sort {_name(sort)}")


def _name(sort: AnySort) -> str:
    match sort:
        case Sort():
            return sort.name
        case SetSort():
            return f"Set[{', '.join(s.name for s in sort.elements)}]"
        case MapSort():
            return f"Map[{', '.join(s.name for s in sort.keys)} -> {_name(sort.value)}]"


def lift_tuple(value: object, sorts: tuple[Sort, ...]) -> tuple[Term, ...]:
    items = value if isinstance(value, tuple) else (value,)
    if len(items) != len(sorts):
        raise SpecError(f"{len(items)} components", f"{len(sorts)} ({', '.join(s.name for s in sorts)})")
    return tuple(lift(i, s) for i, s in zip(items, sorts, strict=True))


def _quantifier(op: str, args: tuple[Any, ...]) -> Bool:
    *classes, rule = args
    xs = bound(rule, tuple(sort_of(c) for c in classes))
    body = lift(rule(*map(wrap, xs)), T.BOOL)
    if any(t.op == "next" and not t.free.isdisjoint(xs) for t in T.subterms(body)):
        raise SpecError("the position after a bound one", "next() of a parameter or of what is stored")
    return Bool(T.quantify(op, xs, body))


def forall(*args: Any) -> Bool:
    """``forall(Block, Seq, lambda b, s: ...)``: for all values of the sorts."""
    return _quantifier("forall", args)


def exists(*args: Any) -> Bool:
    """``exists(Block, lambda b: ...)``: for some value of the sort."""
    return _quantifier("exists", args)


def implies(premise: Bool, conclusion: Bool) -> Bool:
    """If the premise holds, so does the conclusion."""
    return Bool(T.implies(lift(premise, T.BOOL), lift(conclusion, T.BOOL)))


def iff(left: Bool, right: Bool) -> Bool:
    """Both or neither."""
    return Bool(T.iff(lift(left, T.BOOL), lift(right, T.BOOL)))


def nat(value: int) -> Nat:
    """A number, where a Python ``int`` is not taken."""
    return Nat(T.num(value))


def true() -> Bool:
    """The true statement."""
    return Bool(T.TRUE)


def false() -> Bool:
    """The false statement."""
    return Bool(T.FALSE)


def choose(condition: Bool, yes: V, no: V) -> V:
    """One scalar or the other, by a condition."""
    one = cast(Value, yes)
    return cast(V, wrap(T.ite(lift(condition, T.BOOL), one.term, lift(no, one.term.sort))))
