"""Building Z3 expressions without the checks of its Python layer, which cost more than the proofs.

The arguments are known to be of the right sorts and of one context; equal results are shared by Z3 itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import z3
from z3 import z3core


def _many(make: Callable[..., Any], wrap: type) -> Callable[[Any, Sequence[Any]], Any]:
    def build(context: Any, args: Sequence[Any]) -> Any:
        array = (z3.Ast * len(args))(*(a.ast for a in args))
        return wrap(make(context.ref(), len(args), array), context)

    return build


def _few(make: Callable[..., Any], wrap: type | None) -> Callable[[Any, Sequence[Any]], Any]:
    def build(context: Any, args: Sequence[Any]) -> Any:
        kind = wrap or type(args[-1])
        return kind(make(context.ref(), *(a.ast for a in args)), context)

    return build


BUILD: Mapping[str, Callable[[Any, Sequence[Any]], Any]] = {
    "not": _few(z3core.Z3_mk_not, z3.BoolRef),
    "and": _many(z3core.Z3_mk_and, z3.BoolRef),
    "or": _many(z3core.Z3_mk_or, z3.BoolRef),
    "implies": _few(z3core.Z3_mk_implies, z3.BoolRef),
    "iff": _few(z3core.Z3_mk_eq, z3.BoolRef),
    "eq": _few(z3core.Z3_mk_eq, z3.BoolRef),
    "ite": _few(z3core.Z3_mk_ite, None),
    "lt": _few(z3core.Z3_mk_lt, z3.BoolRef),
    "add": _many(z3core.Z3_mk_add, z3.ArithRef),
    "sub": _many(z3core.Z3_mk_sub, z3.ArithRef),
    "mul": _many(z3core.Z3_mk_mul, z3.ArithRef),
    "div": _few(z3core.Z3_mk_div, z3.ArithRef),
    "mod": _few(z3core.Z3_mk_mod, z3.ArithRef),
}
"""The expression of each operator, from a context and its arguments."""


def apply(function: Any, args: Sequence[Any], context: Any) -> Any:
    """A function at arguments."""
    array = (z3.Ast * len(args))(*(a.ast for a in args))
    made = z3core.Z3_mk_app(context.ref(), function.ast, len(args), array)
    return z3.z3._to_expr_ref(made, context)
