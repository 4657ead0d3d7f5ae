"""All obligations of some chapters, in this process or spread over several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial

from kvspec.proofs import cardinality
from kvspec.proofs.obligations import ChapterObligations
from kvspec.proofs.problems import Group, grouped
from kvspec.proofs.processes import spread
from kvspec.proofs.prove import Options, Prover
from kvspec.proofs.verdicts import Result
from kvspec.spec import CHAPTERS, load
from kvspec.spec.language.chapter import Chapter


@dataclass(frozen=True)
class Unit:
    """Some obligations of one group of a chapter: what one process does in one go."""

    chapter: str
    group: int
    ids: frozenset[str]


def chapters() -> tuple[str, ...]:
    """Everything that can be proved: the chapters of the specification, and `cardinality.CHAPTER`."""
    return (*CHAPTERS, cardinality.CHAPTER)


def sentence(chapter: str) -> str:
    """What a chapter says in one sentence."""
    return cardinality.SENTENCE if chapter == cardinality.CHAPTER else load(chapter).sentence


def selected(id: str, row: str, column: str, only: Sequence[str]) -> bool:
    """Whether a pattern names the obligation: ``EVENT/INVARIANT``, a whole id, or either with ``*`` in it."""
    return not only or any(fnmatchcase(f"{row}/{column}", p) or fnmatchcase(id, p) for p in only)


@lru_cache(maxsize=64)
def groups_of(name: str) -> tuple[Group, ...]:
    """The groups of a chapter of the specification."""
    return groups(name, load(name))


def groups(name: str, chapter: Chapter) -> tuple[Group, ...]:
    return tuple(grouped(ChapterObligations(name, chapter)))


def units(chapters: Sequence[str], only: Sequence[str] = ()) -> list[Unit]:
    """The work, in the order of the text."""
    found = []
    for name in chapters:
        if name == cardinality.CHAPTER:
            ids = frozenset(f.name for f in cardinality.FACTS if selected(f"{name}.{f.name}", name, f.name, only))
            found += [Unit(name, 0, ids)] if ids else []
            continue
        for number, group in enumerate(groups_of(name)):
            ids = frozenset(o.id for o in group.obligations if selected(o.id, o.row, o.column, only))
            if ids:
                found.append(Unit(name, number, ids))
    return found


def prove_group(group: Group, options: Options, ids: frozenset[str] | None = None) -> list[Result]:
    """The results of a group's obligations, or of some of them, in order."""
    prover = Prover(group, options)
    return [prover.result(o) for o in group.obligations if ids is None or o.id in ids]


def prove_chapter(name: str, chapter: Chapter, options: Options | None = None) -> list[Result]:
    """All results of a chapter that need not be one of the specification's own."""
    chosen = options or Options()
    return [result for group in groups(name, chapter) for result in prove_group(group, chosen)]


def _prove_unit(unit: Unit, options: Options) -> list[Result]:
    if unit.chapter == cardinality.CHAPTER:
        return [cardinality.result(fact) for fact in cardinality.FACTS if fact.name in unit.ids]
    return prove_group(groups_of(unit.chapter)[unit.group], options, unit.ids)


def prove_units(work: Sequence[Unit], options: Options, jobs: int = 1) -> Iterator[tuple[int, list[Result]]]:
    """Numbers of units with their results, as they get ready."""
    return spread(partial(_prove_unit, options=options), work, jobs)
