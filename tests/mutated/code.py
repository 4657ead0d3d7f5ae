"""Small mistakes in a module's functions, made by the machine: the code of one function is replaced by another."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

REACHED = "__reached__"
"""The global that a mutated function calls, with the value of a changed expression or nothing, when it comes there."""

_OTHER: dict[type[ast.AST], ast.AST] = {
    ast.Lt: ast.LtE(), ast.LtE: ast.Lt(), ast.Gt: ast.GtE(), ast.GtE: ast.Gt(),
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.And: ast.Or(), ast.Or: ast.And(),
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "reversed": "list"}
_ASKED = (ast.If, ast.IfExp, ast.While)
_NO_PLACE = (
    ast.Raise,
    ast.Assert,
    ast.JoinedStr,
    ast.FunctionDef,
    ast.Lambda,
    ast.ClassDef,
    ast.pattern,
    ast.arguments,
)
"""What is not looked into: messages, and functions inside of functions."""


class Mutant(NamedTuple):
    """A function with one mistake.

    Attributes:
        function: its qualified name.
        line: where the mistake is, in the file.
        text: what the statement was, and what it has become; with `function` a name that outlives other lines.
        code: what the function does instead.
    """

    function: str
    line: int
    text: str
    code: CodeType


def mutants(module: ModuleType, prefix: str = "") -> Iterator[Mutant]:
    """All mutants of the functions and methods of a module whose qualified names begin in this way."""
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for name, holder, place in list(_functions(tree, "")):
        if name.startswith(prefix):
            whole = holder[place]
            for line, text, mutated in _mutated(whole):
                holder[place] = mutated
                yield Mutant(name, line, text, _code(compile(tree, module.__file__, "exec"), name))
            holder[place] = whole


def function_of(module: ModuleType, name: str) -> FunctionType | None:
    """The function that a module has under a qualified name; None for what is no plain function."""
    found: Any = module
    for part in name.split("."):
        found = vars(found).get(part)
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__func__", found)
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found if isinstance(found, FunctionType) else None


def _functions(tree: ast.AST, before: str) -> Iterator[tuple[str, list[ast.stmt], int]]:
    body = getattr(tree, "body", [])
    for place, child in enumerate(body):
        if isinstance(child, ast.FunctionDef):
            yield before + child.name, body, place
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{before}{child.name}.")


def _code(code: CodeType, name: str) -> CodeType:
    """The last one of a name counts, as for Python: the ones before are the other halves of an overload or property."""
    head, _, rest = name.partition(".")
    found = [c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == head][-1]
    return _code(found, rest) if rest else found


def _mutated(function: ast.stmt) -> Iterator[tuple[int, str, ast.stmt]]:
    places = list(_places(function))
    for number, (_, node, statement) in enumerate(places):
        for edit in _edits(node):
            other = copy.deepcopy(function)
            (holder, key), there, _ = list(_places(other))[number]
            _put(holder, key, ast.copy_location(edit(there), there))
            ast.fix_missing_locations(other)
            yield statement.lineno, _told(function, other), other


def _places(function: ast.stmt) -> Iterator[tuple[tuple[Any, Any], ast.AST, ast.stmt]]:
    """Every node, in which field of what it stands, and its statement."""

    def inside(node: ast.AST, statement: ast.stmt) -> Iterator[tuple[tuple[Any, Any], ast.AST, ast.stmt]]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "decorator_list", "returns"):
                continue
            holder, keys = (value, range(len(value))) if isinstance(value, list) else (node, [name])
            for key in keys:
                child = holder[key] if isinstance(value, list) else value
                if isinstance(child, ast.AST) and not isinstance(child, _NO_PLACE):
                    mine = child if isinstance(child, ast.stmt) else statement
                    yield (holder, key), child, mine
                    yield from inside(child, mine)

    return inside(function, function)


def _put(holder: Any, key: Any, node: ast.AST) -> None:
    if isinstance(holder, list):
        holder[key] = node
    else:
        setattr(holder, key, node)


def _reached(value: ast.expr | None = None) -> ast.Call:
    return ast.Call(ast.Name(REACHED, ast.Load()), [] if value is None else [value], [])


def _edits(node: Any) -> Iterator[Callable[[Any], ast.AST]]:
    """What may be done to a node; each makes the node that replaces it."""
    if _can_be_left_out(node):
        yield lambda n: ast.Expr(_reached())
    if isinstance(node, _ASKED):
        yield lambda n: _with(n, test=_reached(ast.UnaryOp(ast.Not(), n.test)))
    if isinstance(node, ast.If):
        yield lambda n: _with(n, test=_reached(ast.Constant(True)))
        yield lambda n: _with(n, test=_reached(ast.Constant(False)))
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OTHER:
            yield lambda n: _reached(_with(n, ops=[_OTHER[type(n.ops[0])]]))
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            yield lambda n: _reached(_with(n, op=_OTHER[type(n.op)]))
        case ast.AugAssign(op=ast.Add() | ast.Sub()):
            yield lambda n: _with(n, op=_OTHER[type(n.op)], value=_reached(n.value))
        case ast.BoolOp():
            yield lambda n: _reached(_with(n, op=_OTHER[type(n.op)]))
            for left_out in range(len(node.values)):
                yield lambda n, k=left_out: _reached(_without(n, k))
        case ast.Constant(value=bool()):
            yield lambda n: _reached(ast.Constant(not n.value))
        case ast.Constant(value=int()):
            yield lambda n: _reached(ast.Constant(n.value + 1))
        case ast.Call(func=ast.Name(id="min" | "max" | "reversed")):
            yield lambda n: _reached(_with(n, func=ast.Name(_NAMES[n.func.id], ast.Load())))
        case ast.Slice():
            one = ast.Constant(1)
            if node.lower is not None:
                yield lambda n: _with(n, lower=_reached(ast.BinOp(n.lower, ast.Add(), one)))
            if node.upper is not None:
                yield lambda n: _with(n, upper=_reached(ast.BinOp(n.upper, ast.Sub(), one)))


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def _without(node: ast.BoolOp, place: int) -> ast.expr:
    rest = node.values[:place] + node.values[place + 1 :]
    return ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0]


def _can_be_left_out(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="logger")))):
            return False
        case ast.Assign(targets=targets):  # without a name, what follows could not run
            return any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case (
            ast.Expr()
            | ast.AugAssign()
            | ast.Delete()
            | ast.Break()
            | ast.Continue()
            | ast.For()
            | ast.Return(value=None)
        ):
            return True
    return False


def _told(before: ast.stmt, after: ast.stmt) -> str:
    """The first line that differs."""
    old, new = (ast.unparse(each).splitlines() for each in (before, after))
    number = next(k for k, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    return f"{old[number].strip()} -> {new[number].strip()}".replace(f"{REACHED}()", "nothing").replace(REACHED, "")
