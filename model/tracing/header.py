"""What the header of a log says: the chapter, the pool and what its static words mean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from kvspec.model.compiled.text import blank, stored
from kvspec.model.concrete import ABSENT, Structure, bare
from kvspec.model.conformance import PoolConfig
from kvspec.model.scenario import language as la
from kvspec.model.scenario.events import NUMBERED, Words, chapter_names, form, load_chapter
from kvspec.model.tracing import log
from kvspec.model.tracing.log import Row
from kvspec.model.tracing.values import NoValue, atoms, entries, members
from kvspec.spec.language import Chapter
from kvspec.spec.language.terms import AnySort, MapSort, SetSort, Sort

POOL: Final = {
    f.name: f.type
    for f in msgspec.structs.fields(PoolConfig)
    if f.name in {*NUMBERED.values(), "block_size", "checkpoint_interval"}
}
"""Constants of a header that are sizes of the pool."""


class Header:
    """The first line of a log.

    Args:
        row: the line.

    Raises:
        ScenarioError: it is no header of this version, or says too little.
    """

    def __init__(self, row: Row) -> None:
        log.check_header(row)
        self.row = row
        self.name = str(row.data.get("chapter"))
        try:
            self.chapter = load_chapter(self.name)
            if not self.chapter.event_names:
                raise KeyError(self.name)
        except KeyError:
            expected = '"chapter": one of ' + ", ".join(chapter_names())
            raise row.fail(f"chapter {row.data.get('chapter')!r}", expected) from None
        self.complete = row.data.get("complete", False)
        self.part: int | None = row.data.get("part")
        self.constants = log.without(row.data, log.HEADER)
        self.words = Words(row.file, self._pool(), self.chapter, most=la.MAX_NUMBER)
        self.listed = listed_sorts(self.chapter)
        for name in self.listed:
            self.words.found[name] = dict.fromkeys(self._elements(name))
        said = {n: v for n, v in self.constants.items() if self._is_static(n) or not (n in POOL or n in self.listed)}
        same = self._same_for_all(said)
        told_one_by_one = facts(row, [(n, v) for n, v in said.items() if n not in same], self.words, self.chapter)
        known = {self.words.named(row.number, n)[1]: value for n, value in same.items()}
        structure, told = self.words.world(list(told_one_by_one), known=known)
        statics = {
            p: _function(self.chapter.statics[p].name, v)
            if isinstance(v, dict) and self.chapter.statics[p].arguments
            else v
            for p, v in structure.statics.items()
        }
        self.structure = Structure(structure.carriers, statics)
        if told:
            raise row.fail(f"'{'.'.join(next(iter(told)))}' in a header", "variables in a snapshot")

    def _elements(self, sort: str) -> list[str]:
        """All elements of a sort of whose elements the start state says something."""
        found = self.constants.get(sort)
        if not isinstance(found, list) or not found or not all(isinstance(x, str) for x in found):
            raise self.row.fail(f"'{sort}' is {found!r}" if found else f"no '{sort}'", f'"{sort}": a list of all names')
        return [sys.intern(x) for x in found]

    def _is_static(self, name: str) -> bool:
        return any(path[-1] == name for path in self.chapter.statics)

    def _same_for_all(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Static functions to truth values that are one and the same for all arguments."""
        relations = {
            name
            for path, symbol in self.chapter.statics.items()
            for name in (path[-1], symbol.name)
            if symbol.arguments and isinstance(symbol.result, Sort) and symbol.result.kind == "bool"
        }
        return {n: (lambda *_, always=v: always) for n, v in said.items() if n in relations and isinstance(v, bool)}

    def _pool(self) -> PoolConfig:
        sizes = {name: self.constants[name] for name in POOL if name in self.constants}
        needed = {"num_blocks": "usable", "block_size": ""}
        for name, word in needed.items():
            asked = any(p[-1] == word for p in self.chapter.statics) and word not in self.constants if word else False
            asked = asked or (name == "block_size" and "Chain" in self.chapter.sorts)
            if asked and name not in sizes:
                raise self.row.fail(f"no {name} in the header", f'"{name}": a number')
        for name, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size > la.MAX_CELLS:
                raise self.row.fail(f"{name} is {size!r}", f"a number up to {la.MAX_CELLS}")
        plain: dict[str, Any] = {"num_blocks": 2, "block_size": 1} | sizes
        if plain.get("num_ranks", 1) > 1 or plain.get("num_state_slots"):
            plain.setdefault("num_single_blocks", 2)
        try:
            return PoolConfig(**plain)
        except (TypeError, ValueError) as error:
            raise self.row.fail(*_halves(str(error))) from None

    def same_as(self, other: Header) -> bool:
        """Whether both speak of one pool."""
        return (self.name, self.constants) == (other.name, other.constants)


def listed_sorts(chapter: Chapter) -> list[str]:
    """Sorts of names of which the start state says something for each: a header has to say which there are."""
    found: dict[str, None] = {}
    for term in chapter.initial.values():
        if isinstance(term.sort, MapSort) and term.op == "map_lambda":
            if stored(term.args[0]).op == "set_empty" or blank(term) is not None:
                continue
            found |= {k.name: None for k in term.sort.keys if k.kind == "id" and k.name not in NUMBERED}
    return list(found)


class NoMeaning(LookupError):
    """An event asks for a value of a static function that the header does not give."""


def _function(name: str, table: dict[Any, Any]) -> Callable[..., Any]:
    def value(*arguments: Any) -> Any:
        if ABSENT in arguments:
            return ABSENT
        try:
            return table[bare(arguments)]
        except KeyError:
            raise NoMeaning(f"nothing says what {name} is for {' '.join(map(str, arguments))}") from None

    return value


def _halves(text: str) -> tuple[str, str]:
    what, _, expected = text.partition(", expected ")
    return what, expected or "sizes that go together"


def facts(row: Row, said: Iterable[tuple[str, Any]], words: Words, chapter: Chapter) -> Iterable[la.Line]:
    """What a header or a snapshot says of variables and static words, as the facts of a scenario.

    Raises:
        ScenarioError: a word is none of the chapter's, or a value is none of its sort.
    """
    words.file = row.file
    for name, value in said:
        sort, _, _ = words.named(row.number, name)
        try:
            for key, told in _cells(value, sort):
                yield la.Line(row.number, la.Fact(name, key, told))
        except NoValue as error:
            raise row.fail(f"{error} for '{name}'", _form(sort)) from None


def _cells(value: Any, sort: AnySort) -> Iterable[tuple[tuple[la.Atom, ...] | None, tuple[la.Atom, ...]]]:
    if isinstance(sort, MapSort):
        return entries(value, sort)
    if isinstance(sort, SetSort):
        return [(None, tuple(members(value, sort.elements)))]
    return [(None, atoms(value, sort))]


def _form(sort: AnySort) -> str:
    if isinstance(sort, MapSort):
        return "an object, or a list of pairs of a key and a value"
    return "a list" if isinstance(sort, SetSort) else form(sort, la.MAX_NUMBER)


def arguments(row: Row, words: Words, chapter: Chapter) -> list[Any]:
    """The arguments of the event in a line, which stand there by their names.

    Raises:
        ScenarioError: there is no such event, an argument is missing, or one too many.
    """
    name = row.data["event"]
    if name not in chapter.event_names:
        raise row.fail(f"unknown event {name!r}", "one of " + ", ".join(chapter.event_names))
    given: Mapping[str, Any] = log.without(row.data, ("event",))
    parameters = {p.data[0]: p.sort for p in chapter.event(name).parameters}
    for wrong in given.keys() - parameters.keys():
        raise row.fail(f"'{wrong}' for '{name}'", ", ".join(parameters) or "no arguments")
    words.file = row.file
    found: list[Any] = []
    for parameter, sort in parameters.items():
        if parameter not in given:
            raise row.fail(f"no '{parameter}' for '{name}'", form(sort, la.MAX_NUMBER))
        try:
            told = atoms(given[parameter], sort)
        except NoValue as error:
            raise row.fail(f"{error} for '{parameter}' of '{name}'", form(sort, la.MAX_NUMBER)) from None
        found += words.arguments(row.number, told, [sort], name)
    return found
