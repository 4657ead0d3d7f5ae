"""Whether the concrete reading agrees that a situation is a counterexample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from kvspec.model.concrete import NotEnabled, State, evaluate, fire, initial
from kvspec.proofs.decode import Decoded
from kvspec.proofs.obligations import Obligation
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Sort, Term


def step(chapter: Chapter, obligation: Obligation, situation: Decoded) -> State:
    """The state after what the obligation speaks of: the event, the start, or nothing.

    Raises:
        NotEnabled: the event cannot happen here.
    """
    structure, state = situation.structure, situation.state
    if obligation.event is not None:
        arguments = tuple(situation.values[p] for p in obligation.event.parameters)
        return fire(obligation.event, structure, state, arguments)
    return {**state, **initial(chapter, structure)} if obligation.row == "init" else state


def violated(obligation: Obligation, situation: Decoded, after: State) -> bool:
    """The statement is false after the step, or what a call asks for is false before it.

    Where the situation says for which values of the outermost variables, it is asked for these only: a number need
    not be among the few that a quantifier goes through.
    """
    term, state = (obligation.goal, situation.state) if obligation.statement is None else (obligation.statement, after)
    while term.op == "forall" and all(v in situation.values for v in term.data):
        term = term.args[0]
    return not evaluate(term, situation.structure, state, situation.values)


def cut_short(obligation: Obligation) -> bool:
    """A counterexample would have to hold for all numbers somewhere, and a finite reading goes through a few."""
    goal = obligation.goal
    while goal.op == "forall":
        goal = goal.args[0]
    hypotheses = (h for _, h in obligation.hypotheses)
    return _universal(goal, False, ("nat", "position")) or any(_universal(h, True, ("nat",)) for h in hypotheses)


def _universal(term: Term, holds: bool | None, endless: tuple[str, ...]) -> bool:
    """Whether some quantifier over an endless sort asks for all of it, not only for what lies below something.

    ``holds`` is None where both ways count.
    """
    match term.op:
        case "not":
            return _universal(term.args[0], None if holds is None else not holds, endless)
        case "implies":
            premise = _universal(term.args[0], None if holds is None else not holds, endless)
            return premise or _universal(term.args[1], holds, endless)
        case "iff" | "eq":
            return any(_universal(a, None, endless) for a in term.args)
        case "ite":
            return _universal(term.args[0], None, endless) or any(_universal(a, holds, endless) for a in term.args[1:])
        case "forall" | "exists" if any(cast(Sort, v.sort).kind in endless for v in _unbounded(term)):
            if holds is None or holds is (term.op == "forall"):
                return True
    return any(_universal(a, holds, endless) for a in term.args)


def _unbounded(term: Term) -> set[Term]:
    """Variables of a quantifier that need not lie below any value; those below another variable follow it."""
    body = T.neg(term.args[0]) if term.op == "forall" else term.args[0]
    bounds = [pair for a in T.literals(body) if (pair := _bound(a)) is not None]
    left = set(term.data)
    while found := {x for x, bound in bounds if x in left and not bound.free & left}:
        left -= found
    return left


def _bound(literal: Term) -> tuple[Term, Term] | None:
    """x and y for ``x < y`` and for ``x <= y``."""
    if literal.op == "lt":
        return literal.args[0], literal.args[1]
    if literal.op == "not" and literal.args[0].op == "lt":
        return literal.args[0].args[1], literal.args[0].args[0]
    return None


def disagreement(chapter: Chapter, obligation: Obligation, situation: Decoded) -> str | None:
    """Why the concrete reading does not take this for a counterexample; None if it does."""
    try:
        for name, term in obligation.hypotheses:
            if not evaluate(term, situation.structure, situation.state, situation.values):
                return f"{name} does not hold before"
        if not violated(obligation, situation, step(chapter, obligation, situation)):
            return f"{obligation.column} holds"
    except NotEnabled as refusal:
        return str(refusal)
    except (TypeError, KeyError, AttributeError) as error:
        return f"a term has no value there ({type(error).__name__}: {error})"
    return None


def instance(statement: Term, situation: Decoded, state: State) -> dict[str, Any]:
    """Values of the outermost quantified variables for which the statement is false."""
    values = dict(situation.values)
    shown: dict[str, Any] = {}
    while True:
        if statement.op == "and":
            bad = (a for a in statement.args if not evaluate(a, situation.structure, state, values))
            statement = next(bad, T.TRUE)
        elif statement.op == "forall":
            values |= _falsifying(statement, situation, state, values)
            shown |= {v.data[0]: values[v] for v in statement.data}
            statement = statement.args[0]
        else:
            return shown


def _falsifying(statement: Term, situation: Decoded, state: State, values: Mapping[Term, Any]) -> dict[Term, Any]:
    """Values of the bound variables for which the body is false: those of the situation, if it names them."""
    if all(v in values for v in statement.data):
        return {}
    found: dict[Term, Any] = {}
    for xs in situation.structure.tuples(tuple(v.sort for v in statement.data)):
        found = dict(zip(statement.data, xs, strict=True))
        if not evaluate(statement.args[0], situation.structure, state, {**values, **found}):
            break
    return found
