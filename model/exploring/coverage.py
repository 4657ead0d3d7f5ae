"""What an exploration has to meet, so that its verdict says something.

A statement of the form "if p then q" says nothing where p is never true, a theorem about a step nothing if the step is
never taken. Each is a *goal*: that it was met once is evidence that the verdict is not vacuous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Term
from kvspec.spec.language.traced import Statement

START: Final = "init"
"""What a theorem about the start is said of, where others name an event."""


@dataclass(frozen=True)
class Goal:
    """A situation to be met: a statement about a state or, with ``after``, about a step of that event (or the start).

    ``kind`` is witness or premise. The term of a step speaks of the state before it and of the event's parameters.
    """

    name: str
    kind: str
    sentence: str
    term: Term
    after: str | None = None


def goals(chapter: Chapter) -> tuple[Goal, ...]:
    """The witnesses of the chapter, and the premises of its invariants and theorems.

    A statement with several premises (a conjunction) has a goal for each, named ``name/1``, ``name/2``, ...
    """
    found = [Goal(w.name, "witness", w.sentence, w.term) for w in chapter.witnesses]
    for statement in (*chapter.invariants, *chapter.theorems):
        premises = premises_of(statement.term)
        for number, premise in enumerate(premises, start=1):
            name = statement.name if len(premises) == 1 else f"{statement.name}/{number}"
            found.append(Goal(name, "premise", statement.sentence, premise, statement.after))
    return tuple(found)


def premises_of(term: Term) -> tuple[Term, ...]:
    """For each part of a statement, that its premise is true for some values of the quantified variables.

    A part that is no implication has the premise *true*: it says something everywhere.
    """
    if term.op == "and":
        return tuple(dict.fromkeys(p for part in term.args for p in premises_of(part)))
    if term.op == "forall":
        return tuple(T.quantify("exists", term.data, p) for p in premises_of(term.args[0]))
    return (term.args[0],) if term.op == "implies" else (T.TRUE,)


def step_theorems(chapter: Chapter) -> dict[str, list[Statement]]:
    """The theorems about a step of each event, and about the start."""
    found: dict[str, list[Statement]] = {name: [] for name in (START, *chapter.event_names)}
    for theorem in chapter.theorems:
        if theorem.after is not None:
            found[theorem.after].append(theorem)
    return found
