"""The quantifier shape of a formula: how universal and existential quantifiers alternate in it.

A chapter whose hypotheses are all ``∀`` asks of a solver only to find instances; each ``∃`` behind a ``∀`` makes new
elements out of old ones, and proofs that depend on it can run away. So the shape is written down and kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvspec.spec.language.terms import Term


def shape(term: Term, positive: bool = True) -> str:
    """The longest alternation, such as ``∀∃``; empty where nothing is quantified."""
    match term.op:
        case "forall" | "exists":
            sign = "∀" if (term.op == "forall") is positive else "∃"
            inner = shape(term.args[0], positive)
            return inner if inner.startswith(sign) else sign + inner
        case "not":
            return shape(term.args[0], not positive)
        case "implies":
            return strongest((shape(term.args[0], not positive), shape(term.args[1], positive)))
        case "iff" | "eq":
            return strongest(shape(a, side) for a in term.args for side in (True, False))
        case "ite":
            condition = [shape(term.args[0], side) for side in (True, False)]
            return strongest([*condition, *(shape(a, positive) for a in term.args[1:])])
    return strongest(shape(a, positive) for a in term.args)


def strongest(shapes: Iterable[str]) -> str:
    """The longest of some alternations."""
    return max(shapes, key=lambda s: (len(s), s), default="")
