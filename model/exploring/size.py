"""How much there is to make ready before the first state: said first, so that nobody waits for what will not end.

Formulas are written out for all values of their variables, and looked up for all values that a key may have. What that
comes to is counted here, from the sizes of the sorts alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from kvspec.model.concrete import Structure
from kvspec.model.exploring.cells import key_sorts
from kvspec.model.exploring.instances import count_instances
from kvspec.model.exploring.quotient import Quotient
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import AnySort, MapSort, SetSort, Sort, Term
from kvspec.spec.language.traced import TracedEvent

MOST_PARTS: Final = 1_000_000
"""Some 15 to 40 microseconds each, so half a minute."""
MOST_EVALUATIONS: Final = 20_000_000
"""Of parts of axioms, a microsecond each."""
MOST_CHOICES: Final = 200_000_000
"""Of all random walks at each step, nine bytes each."""
EXCHANGE: Final = 30
"""Parts that it takes to exchange one cell with another, the comparison included."""
_LOOKS_UP: Final = frozenset({"get", "has", "only", "store", "set_add", "set_remove", "call", "case"})


class TooLarge(ValueError):
    """A scope has more to make ready than an exploration can wait for."""

    def __init__(self, what: str, count: int, most: int) -> None:
        many = f"{count:,}" if count < 10**12 else f"over {10**12:,}"
        super().__init__(f"too large a scope: {many} {what}; at most {most:,} are tried")


def _check(what: str, count: int, most: int = MOST_PARTS) -> None:
    if count > most:
        raise TooLarge(what, count, most)


def check_formulas(chapter: Chapter, structure: Structure) -> None:
    """All that the chapter says, and the cells of a state, can be written out.

    Raises:
        TooManyInstances: some event can be tried in too many ways.
        TooLarge: there is too much of it.
    """
    instances, sizes = count_instances(chapter, structure), _Sizes(structure)
    cells = sum(sizes.product(key_sorts(v.sort)) for v in chapter.variables.values())
    _check("cells in a state", cells)
    _check(f"parts of formulas, for {instances:,} instances of events", sizes.parts(_formulas(chapter)))


def check_exchanges(quotient: Quotient) -> None:
    """The classes of states can be told apart.

    Raises:
        TooLarge: there are too many exchanges.
    """
    forms, symmetry = quotient.forms, quotient.symmetry
    if forms is None or symmetry is None:
        return
    count = len(symmetry.exchanges) * len(quotient.cells.cells)
    for members in symmetry.classes.get(symmetry.pointer or "", ()):
        pairs = math.comb(len(members), 2)
        count += EXCHANGE * pairs * 2 * (len(forms.under[members[0]]) + len(forms.first))
    _check("exchanges of cells", count)


def check_statements(statements: Iterable[Term], structure: Structure) -> None:
    """The statements can be evaluated, one after the other.

    Raises:
        TooLarge: they look at too much.
    """
    sizes = _Sizes(structure)
    _check("parts of axioms", sum(map(sizes.evaluations, statements)), MOST_EVALUATIONS)


def check_walks(chapter: Chapter, structure: Structure, walkers: int) -> None:
    """So many walks can choose among all instances at the same time.

    Raises:
        TooManyInstances: some event can be tried in too many ways.
        TooLarge: they are too many.
    """
    count = count_instances(chapter, structure)
    _check(f"choices at each step, of {walkers:,} walks among {count:,} instances", walkers * count, MOST_CHOICES)


def _formulas(chapter: Chapter) -> Iterator[Term]:
    for name in chapter.event_names:
        yield from _event(chapter.event(name))
    statements = (*chapter.invariants, *chapter.lower_invariants, *chapter.theorems, *chapter.witnesses)
    yield from (s.term for s in statements)


def _event(event: TracedEvent) -> Iterator[Term]:
    yield from (r.term for r in event.requires)
    yield from (o.term for o in event.owed)
    for effect in event.effects:
        yield from (effect.condition, *effect.keys, *effect.args, event.after[effect.path])


class _Sizes:
    """Counts over the sorts of a structure."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self._known: dict[Sort, int] = {}
        self._costs: dict[Term, int] = {}

    def product(self, sorts: Iterable[AnySort]) -> int:
        return math.prod(map(self.values, sorts))

    def values(self, sort: AnySort) -> int:
        """How many values a variable of the sort has; numbers and maps are not gone through."""
        match sort:
            case SetSort(elements):
                return int(2 ** self.product(elements))
            case MapSort():
                return 1
            case Sort(kind="bool"):
                return 2
            case Sort(kind="variant", cases=cases):
                if sort not in self._known:
                    self._known[sort] = sum(self.product(fields) for _, fields in cases)
                return self._known[sort]
        return max(1, len(self.structure.carriers.get(sort.name, ())))

    def parts(self, formulas: Iterable[Term]) -> int:
        """Each part of the formulas once for all values of its free variables and of what it looks up."""
        seen, open_terms, count = set[Term](), list(formulas), 0
        while open_terms:
            term = open_terms.pop()
            if term not in seen:
                seen.add(term)
                open_terms += term.args
                count += self.product(v.sort for v in term.free) * self._looked_at(term)
        return count

    def _looked_at(self, term: Term) -> int:
        if term.op in T.BINDERS:
            return self.product(v.sort for v in term.data)
        if term.op in _LOOKS_UP:
            return self.product(a.sort for a in term.args if isinstance(a.sort, Sort) and _varies(a))
        return 1

    def evaluations(self, term: Term) -> int:
        """How many parts it takes to evaluate a term, each time anew."""
        found = self._costs.get(term)
        if found is None:
            times = self.product(v.sort for v in term.data) if term.op in T.BINDERS else 1
            found = self._costs[term] = 1 + times * sum(map(self.evaluations, term.args))
        return found


def _varies(term: Term) -> bool:
    """Its value depends on the state."""
    return any(t.op == "state" for t in T.subterms(term))
