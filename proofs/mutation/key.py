"""What a verdict on a mutant rests on, as a fingerprint: if nothing of it has changed, the verdict stands.

A mutant of an event is judged by the obligations of its row, so by that event, the invariants and axioms, and the
theorems about the row. A weakened invariant is judged by the whole chapter, an axiom by all chapters that have it.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version

from kvspec.proofs.manifest.scopes import SCOPES
from kvspec.proofs.mutation.mutants import Mutant, content, row_content
from kvspec.spec import CHAPTERS, load
from kvspec.spec.language.chapter import START, Chapter
from kvspec.spec.language.digest import digest, joined
from kvspec.spec.language.traced import LoopParts, Statement

GENERATION = 2
"""Goes up when mutants are judged in another way, so that old verdicts do not count."""


def key(mutant: Mutant, by: str = "proof") -> str:
    """The fingerprint of everything that decides what becomes of a mutant; ``by`` says who was asked.

    What runs and judges say depends on the whole chapter, and on the scopes that are explored.
    """
    if by not in ("", "proof"):
        scopes = SCOPES.get(mutant.chapter, ())
        return joined((key(mutant), *row_keys(mutant.chapter).values(), *scopes))
    parts = row_keys(mutant.chapter)
    match mutant.row:
        case "axiom":
            said = [k for name in standing_on(mutant) for k in row_keys(name).values()]
        case "invariant":
            said = list(parts.values())
        case row:
            said = [parts[row]]
    return joined((*said, content(mutant)))


def standing_on(mutant: Mutant) -> dict[str, str]:
    """The chapters that have the axiom which a mutant does not assume, each with its name there: the mutant's own, and
    those that use it and may need it."""
    axiom = mutant.change.partition(" ")[0]
    return {
        name: s.name
        for name in dict.fromkeys((*CHAPTERS, mutant.chapter))  # which need not be one of the specification's own
        for s in load(name).axioms
        if s.where == mutant.where and s.name.rpartition(".")[2] == axiom
    }


@lru_cache(maxsize=64)
def row_keys(name: str) -> dict[str, str]:
    """For each row of a chapter the fingerprint of what is said in it and assumed for it."""
    return keys_of(load(name))


def keys_of(chapter: Chapter) -> dict[str, str]:
    """The same for a chapter that need not be one of the specification's own."""
    stated = digest(s.term for s in (*chapter.axioms, *chapter.lower_invariants, *chapter.invariants))
    assumed = joined((stated, chapter.declaration))
    theorems = chapter.theorems
    keys = {}
    for row in (START, *chapter.event_names):
        said = [statement_content(chapter, s) for s in theorems if row in (s.after, *s.asks)]
        loops = [_loop(loop) for loop, _ in chapter.loops if loop.step == row]
        keys[row] = joined((row_content(chapter, row), assumed, *said, *loops, *solvers(), str(GENERATION)))
    said_of_states = digest(s.term for s in theorems if s.after is None)
    proved = joined((said_of_states, assumed, *solvers(), str(GENERATION)))
    return keys | {"theorem": said_of_states} | dict.fromkeys(chapter.functions, proved)


def statement_content(chapter: Chapter, s: Statement) -> str:
    """The fingerprint of what an invariant, theorem or witness says."""
    parameters = chapter.event(s.after).parameters if s.after in chapter.event_names else ()
    return digest([s.term], parameters)


def _loop(loop: LoopParts) -> str:
    return digest((loop.start, loop.keep, loop.again, loop.measure, loop.result), loop.parameters)


def solvers() -> tuple[str, ...]:
    """Name and version of each solver."""
    return tuple(f"{package} {version(package)}" for package in ("z3-solver", "cvc5"))
