"""Terms in the notation of mathematics, for people: what `explain` shows and the document says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kvspec.spec.language import terms as T
from kvspec.spec.language.terms import MapSort, Path, SetSort, Sort, Term
from kvspec.spec.language.traced import Effect, Variable

Names = Callable[[Path], str]

# How tightly an operator binds; an argument that binds less tightly gets parentheses.
_LOOSE, _QUANTIFIER, _IFF, _IMPLIES, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _TIGHT = range(11)
_BETWEEN: Mapping[str, tuple[str, int]] = {
    "iff": (" ↔ ", _IFF),
    "implies": (" → ", _IMPLIES),
    "or": (" ∨ ", _OR),
    "and": (" ∧ ", _AND),
    "eq": (" = ", _COMPARE),
    "lt": (" < ", _COMPARE),
    "add": (" + ", _SUM),
    "sub": (" − ", _SUM),
    "mul": (" · ", _PRODUCT),
    "div": (" div ", _PRODUCT),
    "mod": (" mod ", _PRODUCT),
}


def short(path: Path) -> str:
    """The last part of a name."""
    return path[-1]


def unambiguous(paths: Iterable[Path]) -> Names:
    """For each name as much of its end as tells it from the others."""
    known = list(paths)

    def name(path: Path) -> str:
        for n in range(1, len(path)):
            if sum(other[-n:] == path[-n:] for other in known) == 1:
                return ".".join(path[-n:])
        return ".".join(path)

    return name


def told_apart(term: Term) -> Term:
    """The term with other names for bound variables, wherever one of the same name is meant beside them."""
    if term.op in T.BINDERS:
        taken = {v.data[0] for v in term.args[0].free - set(term.data)}
        new: dict[Term, Term] = {}
        for v in term.data:
            name = v.data[0]
            while name in taken:
                name += "′"
            taken.add(name)
            new[v] = v if name == v.data[0] else T.variable(name, v.sort)
        body = told_apart(T.substitute(term.args[0], {v: n for v, n in new.items() if n is not v}))
        return T.make(term.op, (body,), term.sort, tuple(new.values()))
    args = tuple(map(told_apart, term.args))
    return term if args == term.args else T.make(term.op, args, term.sort, term.data)


def render(term: Term, names: Names = short) -> str:
    """The term in readable notation."""
    return _Writer(names).write(term, _LOOSE)


def render_effect(effect: Effect, names: Names = short) -> str:
    """One change of an event: ``free := free ∖ {block}``."""
    writer = _Writer(names)
    place = names(effect.path) + (f"[{writer.list(effect.keys)}]" if effect.keys else "")
    change = f"{place} := {writer.new_value(place, effect)}"
    return change if effect.condition is T.TRUE else f"{change}, if {writer.write(effect.condition, _LOOSE)}"


def render_sort(sort: T.AnySort) -> str:
    """A sort as declarations write it."""
    match sort:
        case Sort():
            return sort.name
        case SetSort():
            return f"Set[{_several(s.name for s in sort.elements)}]"
        case MapSort():
            return f"Map[{_several(k.name for k in sort.keys)}, {render_sort(sort.value)}]"


def render_variable(variable: Variable) -> str:
    """``free: Set[Block]``."""
    return f"{variable.name}: {render_sort(variable.sort)}" + (" (ghost)" if variable.ghost else "")


def _several(parts: Iterable[str]) -> str:
    found = list(parts)
    return found[0] if len(found) == 1 else f"({', '.join(found)})"


class _Writer:
    def __init__(self, names: Names) -> None:
        self.names = names

    def write(self, term: Term, around: int) -> str:
        text, binds = self._text(term)
        return f"({text})" if binds < around else text

    def list(self, terms: Iterable[Term]) -> str:
        return ", ".join(self.write(t, _LOOSE) for t in terms)

    def new_value(self, place: str, effect: Effect) -> str:
        if effect.kind == "assign":
            return self.write(effect.args[0], _LOOSE)
        sign = "∪" if effect.kind == "set_add" else "∖"
        return f"{place} {sign} {{{self._element(effect.args)}}}"

    def _element(self, terms: tuple[Term, ...]) -> str:
        return self.list(terms) if len(terms) == 1 else f"({self.list(terms)})"

    def _text(self, term: Term) -> tuple[str, int]:
        if term.op in _BETWEEN:
            sign, binds = _BETWEEN[term.op]
            return sign.join(self.write(a, binds + 1) for a in term.args), binds
        if term.op == "not":
            return self._negated(term.args[0])
        if term.op in T.BINDERS:
            return self._binder(term)
        if term.op == "ite":
            condition, yes, no = (self.write(a, _QUANTIFIER) for a in term.args)
            return f"if {condition} then {yes} else {no}", _LOOSE
        return self._set(term) or self._atom(term)

    def _negated(self, inside: Term) -> tuple[str, int]:
        match inside.op:
            case "eq" | "has" | "empty" | "only":
                text, binds = self._text(inside)
                for sign, other in ((" = ", " ≠ "), (" ∈ ", " ∉ ")):
                    if text.count(sign) == 1:
                        return text.replace(sign, other), binds
            case "lt":
                left, right = (self.write(a, _SUM) for a in inside.args)
                return f"{right} ≤ {left}", _COMPARE
        return f"¬{self.write(inside, _NOT + 1)}", _NOT

    def _binder(self, term: Term) -> tuple[str, int]:
        body = self.write(term.args[0], _LOOSE)
        names = ", ".join(f"{v.data[0]} ∈ {render_sort(v.sort)}" for v in term.data)
        match term.op:
            case "set_lambda":
                return f"{{{names} | {body}}}", _TIGHT
            case "map_lambda":
                return f"{names} ↦ {body}", _LOOSE
        return f"{'∀' if term.op == 'forall' else '∃'} {names}. {body}", _QUANTIFIER

    def _set(self, term: Term) -> tuple[str, int] | None:
        """Sets and what is asked of them."""
        first = self.write(term.args[0], _SUM) if term.args else ""
        match term.op:
            case "has":
                return f"{self._element(term.args[1:])} ∈ {first}", _COMPARE
            case "empty":
                return f"{first} = ∅", _COMPARE
            case "only":
                return f"{first} = {{{self._element(term.args[1:])}}}", _COMPARE
            case "size":
                return f"|{self.write(term.args[0], _LOOSE)}|", _TIGHT
            case "set_empty":
                return "∅", _TIGHT
            case "set_add" if term.args[0].op == "set_empty":
                return f"{{{self._element(term.args[1:])}}}", _TIGHT
            case "set_add" | "set_remove":
                sign = "∪" if term.op == "set_add" else "∖"
                return f"{first} {sign} {{{self._element(term.args[1:])}}}", _SUM
        return None

    def _looked_up(self, term: Term) -> tuple[str, int]:
        """A value of a map that an event has just changed: the new value, or the old one elsewhere."""
        whole, *keys = term.args
        if whole.op == "map_lambda":
            return self._text(T.substitute(whole.args[0], dict(zip(whole.data, keys, strict=True))))
        older, *at, value = whole.args
        before = T.make("get", (older, *keys), term.sort)
        same = T.conj(T.eq(k, a) for k, a in zip(keys, at, strict=True))
        return self._text(T.ite(same, value, before))

    def _atom(self, term: Term) -> tuple[str, int]:
        match term.op:
            case "true" | "false":
                return term.op, _TIGHT
            case "num":
                return str(term.data), _TIGHT
            case "zero":
                return "0", _TIGHT
            case "next" | "prev":
                return f"{self.write(term.args[0], _SUM)} {'+' if term.op == 'next' else '−'} 1", _SUM
            case "var":
                return str(term.data[0]), _TIGHT
            case "state" | "static":
                return self.names(term.data), _TIGHT
            case "call":
                return f"{self.names(term.args[0].data)}({self.list(term.args[1:])})", _TIGHT
            case "get" if term.args[0].op in ("store", "map_lambda"):
                return self._looked_up(term)
            case "get":
                return f"{self.write(term.args[0], _TIGHT)}[{self.list(term.args[1:])}]", _TIGHT
            case "store":
                whole, *keys, value = term.args
                return f"{self.write(whole, _TIGHT)} with [{self.list(keys)}] := {self.write(value, _LOOSE)}", _LOOSE
            case "case":
                return (f"{term.data}({self.list(term.args)})" if term.args else str(term.data)), _TIGHT
            case "is_case":
                return f"{self.write(term.args[0], _SUM)} is {term.data}", _COMPARE
            case "field":
                return f"{self.write(term.args[0], _TIGHT)}.{term.data[0]}.{term.data[1]}", _TIGHT
        raise AssertionError(f"operator {term.op} has no notation")
