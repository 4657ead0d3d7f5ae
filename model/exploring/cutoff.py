"""When a pool of this size settles the question for every larger one.

A *spare* block is one that no cell holds and under which nothing is stored but what was there at the start. Statements
that speak of at most n blocks at a time cannot tell n spare blocks from more of them. So if every state of the scope
has at least n, and the words of the chapter mean the same in a larger pool, its states are the same with more spare
blocks. `docs/exploration.md` has the proof.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvspec.model.exploring.cells import Packed, key_sorts
from kvspec.model.exploring.coverage import START
from kvspec.model.exploring.quotient import Quotient
from kvspec.model.exploring.symmetry import held_in
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import AnySort, MapSort, SetSort, Sort, Term
from kvspec.spec.language.traced import Statement, StaticSymbol, TracedEvent

POOL: Final = "Block"
"""The sort that a larger pool has more elements of."""


def covers(chapter: Chapter, quotient: Quotient, states: Iterable[Packed]) -> str | None:
    """What a complete exploration says of larger pools, if anything; the first of the states is that of the start."""
    spoken = blocks_spoken_of(chapter)
    start, *others = states
    if spoken is None or not _alike_at_the_start(quotient, start) or not _means_the_same(chapter, quotient):
        return None
    if any(spare(quotient, start, packed) < spoken for packed in (start, *others)):
        return None
    if spoken == 0:
        return "every larger pool: nothing speaks of any block that no cell holds"
    blocks = "one block" if spoken == 1 else f"{spoken} blocks"
    return f"every larger pool: nothing speaks of more than {blocks} at a time, and so many are spare in each state"


def _means_the_same(chapter: Chapter, quotient: Quotient) -> bool:
    """The static words do not depend on how many blocks there are, other than that all usable ones are usable."""
    assert quotient.symmetry is not None
    structure, pool = quotient.symmetry.structure, frozenset(_pool(quotient))
    return all(_fixed(s, structure.statics.get(s.path), pool) for s in chapter.statics.values())


def _fixed(symbol: StaticSymbol, value: object, pool: frozenset[object]) -> bool:
    """A block or another element, all blocks of the pool, or a function that knows no blocks.

    A number or position might count the blocks.
    """
    result = symbol.result
    if symbol.arguments:
        return not any(map(_blocks, (*symbol.arguments, result)))
    if isinstance(result, SetSort):
        return result.elements == (Sort(POOL, "id"),) and value == pool
    return isinstance(result, Sort) and result.kind == "id"


def _pool(quotient: Quotient) -> tuple[object, ...]:
    """The blocks that a larger pool has more of; empty if they are not renamed, or not all alike."""
    if quotient.symmetry is None or quotient.symmetry.pointer != POOL or len(quotient.symmetry.classes[POOL]) != 1:
        return ()
    return quotient.symmetry.classes[POOL][0]


def _alike_at_the_start(quotient: Quotient, start: Packed) -> bool:
    return quotient.forms is not None and len({quotient.forms.signature(start, x) for x in _pool(quotient)}) == 1


def spare(quotient: Quotient, start: Packed, packed: Packed) -> int:
    """How many blocks are held by no cell and have under them what each had at the start."""
    forms, pool = quotient.forms, _pool(quotient)
    if forms is None or not pool:
        return 0
    cells = quotient.cells.cells
    held = {x for value, cell in zip(packed, cells, strict=True) for x in held_in(value, cell.sort, POOL)}
    blank = forms.signature(start, pool[0])
    return sum(x not in held and forms.signature(packed, x) == blank for x in pool)


def blocks_spoken_of(chapter: Chapter) -> int | None:
    """The largest number of blocks that the start, an event or a statement speaks of at a time.

    None if something counts blocks or takes a set of them, and so can tell one number of spare blocks from another, or
    if cells stand between two blocks.
    """
    if any(_between(v.sort) > 1 for v in chapter.variables.values()):
        return None
    events = [chapter.event(name) for name in chapter.event_names]
    statements: list[Statement] = [*chapter.invariants, *chapter.lower_invariants]
    statements += [*chapter.theorems, *chapter.witnesses]
    try:
        found = [_event(e) for e in events] + [_stored(term) for term in chapter.initial.values()]
        for s in statements:
            after = None if s.after in (None, START) else s.after
            found.append(_nested(s.term) + (0 if after is None else _parameters(chapter.event(after))))
    except _Unbounded:
        return None
    return max(found, default=0)


def _between(sort: AnySort) -> int:
    """How many blocks a cell of the sort has in its place and in what it holds."""
    value = sort.value if isinstance(sort, MapSort) else sort
    return sum(map(_blocks, key_sorts(sort))) + (_blocks(value) if isinstance(value, Sort) else 0)


class _Unbounded(Exception):
    """Something speaks of any number of blocks."""


def _event(event: TracedEvent) -> int:
    inner = [_nested(r.term) for r in event.requires] + [_nested(o.term) for o in event.owed]
    for effect in event.effects:
        inner += [_nested(effect.condition), *map(_nested, effect.keys)]
        inner += map(_stored, effect.args)
    return _parameters(event) + max(inner, default=0)


def _parameters(event: TracedEvent) -> int:
    for p in event.parameters:
        if isinstance(p.sort, SetSort) and _blocks(p.sort):
            raise _Unbounded
    return sum(_blocks(p.sort) for p in event.parameters)


def _nested(term: Term) -> int:
    """How many variables of the sort stand inside each other, those that sets hide included."""
    if term.op in ("get", "has") and term.args[0].op in T.BINDERS:  # what is bound there is one of the keys here
        return max(map(_nested, (*term.args[0].args, *term.args[1:])))
    inner = max(map(_nested, term.args), default=0)
    if term.op in T.BINDERS:
        return inner + sum(_blocks(v.sort) for v in term.data)
    if term.op in ("empty", "only", "size") and _blocks(term.args[0].sort):
        if term.op == "size":
            raise _Unbounded
        return inner + _blocks(term.args[0].sort)
    return inner


def _stored(term: Term) -> int:
    """The same of a value that is stored: of a set or map as a whole, with the blocks that it takes to name a cell."""
    return _nested(term) + (0 if term.op in T.BINDERS or isinstance(term.sort, Sort) else _blocks(term.sort))


def _blocks(sort: AnySort) -> int:
    """How many blocks it takes to name an element of the sort, of a set or of a map."""
    match sort:
        case SetSort(elements):
            return sum(map(_blocks, elements))
        case MapSort(keys, value):
            return sum(map(_blocks, keys)) + (_blocks(value) if isinstance(value, SetSort) else 0)
        case Sort(name, _, cases):
            return int(name == POOL) + max((sum(map(_blocks, fields)) for _, fields in cases), default=0)
