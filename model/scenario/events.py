"""Runs a scenario of events on the spec itself, in the concrete reading, and writes such scenarios.

The start state may be one that no run reaches: that is how a counterexample to induction is written down. Which
variables, static words and events there are, and how their arguments read, comes from the chapter; only chains have a
form of their own here, ``[7 8]``, because everybody thinks of them as tokens.
"""

from __future__ import annotations

import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, NoReturn

import msgspec

import kvspec.spec
from kvspec.model.concrete import ABSENT, NotEnabled, State, Structure, Variant, bare, evaluate, fire, initial
from kvspec.model.conformance import PoolConfig
from kvspec.model.scenario import language as la
from kvspec.model.scenario.language import ScenarioError
from kvspec.model.scenario.run import LineResult, ScenarioResult, Verdict, worst
from kvspec.model.scenario.write import atom, comment_lines, format_item, pool_line, word
from kvspec.model.world import NOTHING, Chain, Chains, chain_tokens, covers, longer, resumable
from kvspec.spec.language import Chapter
from kvspec.spec.language.machine import Machine
from kvspec.spec.language.terms import BOOL, AnySort, MapSort, Path, SetSort, Sort, Term
from kvspec.spec.language.traced import StaticSymbol, TracedEvent

_NO_WORD: Final = re.compile(r"[^A-Za-z0-9_.\-]+")
MAX_BLOCKS: Final = 64
"""Blocks of a pool on which events are run, and the largest number in them: every statement is evaluated for all."""
NUMBERED: Final = {
    "Block": "num_blocks",
    "Single": "num_single_blocks",
    "Unit": "num_single_blocks",
    "StateSlot": "num_state_slots",
    "Rank": "num_ranks",
}
"""Sorts whose elements are written as numbers, and how many there are in a pool."""


def chapter_names() -> list[str]:
    """Chapters of the spec, by the names of their files."""
    return sorted(m.name for m in pkgutil.iter_modules(kvspec.spec.__path__) if not m.ispkg and m.name != "sorts")


@cache
def load_chapter(name: str) -> Chapter:
    """The chapter of that name.

    Raises:
        KeyError: there is none, or it has no events.
    """
    if name not in chapter_names():
        raise KeyError(name)
    module = import_module(f"kvspec.spec.{name}")
    own = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Machine)]
    own = [c for c in own if c.__module__ == module.__name__]
    if not own:
        raise KeyError(name)
    return Chapter(next((c for c in own if c.__name__.lower() == name.replace("_", "")), own[0]))


class EventRun:
    """One run of a scenario of events."""

    def __init__(self, scenario: la.Scenario) -> None:
        self.scenario = scenario
        self.chapter = self._load()
        self.words = Words(scenario.name, scenario.config, self.chapter)
        self.structure = Structure({}, {})
        self.state: State = {}
        self.forbidden = ""
        self.broken: list[str] = []
        self.known = [*self.chapter.lower_invariants, *self.chapter.invariants]
        self.theorems = [s for s in self.chapter.theorems if s.after is None]
        self.results: list[LineResult] = []

    def _load(self) -> Chapter:
        name = self.scenario.chapter or ""
        sizes = {size: getattr(self.scenario.config, size) for size in NUMBERED.values()}
        most = max(sizes, key=lambda size: sizes[size])
        if sizes[most] > MAX_BLOCKS:
            what = f"a pool of {sizes[most]} {most.removeprefix('num_').replace('_', ' ')} for events"
            raise ScenarioError(self.scenario.name, 0, 0, what, f"at most {MAX_BLOCKS}")
        try:
            return load_chapter(name)
        except KeyError:
            expected = "one of " + ", ".join(chapter_names())
            raise ScenarioError(self.scenario.name, 0, 0, f"unknown chapter '{name}'", expected) from None

    def run(self) -> ScenarioResult:
        """Run event after event, up to the first line that does not pass."""
        self.structure, given = self.words.world(self.scenario.given, self.scenario.lines)
        self.state = dict(given) if given is not None else initial(self.chapter, self.structure)
        self._start()
        for at, line in enumerate(self.scenario.lines):
            if not all(r.verdict == "passed" for r in self.results):
                break
            before = self.state
            verdict, outcome = self._item(at, line)
            result = LineResult(line.number, format_item(line.item), verdict, outcome)
            if verdict != "passed" or self.broken:
                result.before, result.after = self._changes(before)
            self.results.append(result)
        skipped = len(self.scenario.lines) - sum(r.number > 0 and r.text != "given" for r in self.results)
        return ScenarioResult(self.scenario.name, worst([r.verdict for r in self.results]), self.results, skipped)

    def _start(self) -> None:
        """A given start state must be one that the proof starts from: nothing is broken before the first event."""
        if self.scenario.given is None:
            return
        wrong = [s for s in self.chapter.axioms if not evaluate(s.term, self.structure, self.state)]
        wrong += [s for s in self.known if not evaluate(s.term, self.structure, self.state)]
        outcome = f"breaks {wrong[0].name}: {wrong[0].sentence}" if wrong else ""
        self.broken = [s.name for s in self.theorems if not evaluate(s.term, self.structure, self.state)]
        number = self.scenario.given[0].number - 1 if self.scenario.given else 1
        verdict, told = self._broken_verdict([line.item for line in self.scenario.lines])
        self.results.append(LineResult(number, "given", "failed" if wrong else verdict, outcome or told))

    def _broken_verdict(self, following: Sequence[la.Item]) -> tuple[Verdict, str]:
        """Whether what is broken was expected to be."""
        if not self.broken:
            return "passed", ""
        expected = bool(following) and isinstance(following[0], la.BrokenInvariant)
        return ("passed" if expected else "violated"), f"broken: {', '.join(self.broken)}"

    def _item(self, at: int, line: la.Line) -> tuple[Verdict, str]:
        following = [x.item for x in self.scenario.lines[at + 1 :]]
        item = line.item
        if isinstance(item, la.EventLine):
            self._fire(line.number, item)
            if self.forbidden:
                expected = bool(following) and isinstance(following[0], la.Forbidden)
                return ("passed" if expected else "violated"), f"forbidden: {self.forbidden}"
            return self._broken_verdict(following)
        if isinstance(item, la.Forbidden):
            return ("passed" if self.forbidden else "failed"), self.forbidden or "it was allowed"
        assert isinstance(item, la.BrokenInvariant)
        return ("passed" if item.invariant in self.broken else "failed"), self._about(line.number, item.invariant)

    def _fire(self, number: int, item: la.EventLine) -> None:
        self.forbidden, self.broken = "", []
        names = self.chapter.event_names
        if item.name not in names:
            expected = "one of " + ", ".join(names)
            raise ScenarioError(self.scenario.name, number, 1, f"unknown event '{item.name}'", expected)
        event = self.chapter.event(item.name)
        arguments = self.words.arguments(number, item.atoms, [p.sort for p in event.parameters], item.name)
        before = self.state
        try:
            self.state = fire(event, self.structure, before, tuple(arguments))
        except NotEnabled as error:
            self.forbidden = f"{error.requirement.where}"
            return
        self.broken = list(self._found(event, before, dict(zip(event.parameters, arguments, strict=True))))

    def _found(self, event: TracedEvent, before: State, values: Mapping[Term, Any]) -> Iterator[str]:
        """Names of what the step owed and did not keep: requirements of events that it calls, invariants, theorems."""
        for name, term in _owed(event):
            if not evaluate(term, self.structure, before, values):
                yield name
        for s in (*self.known, *self.theorems):
            if not evaluate(s.term, self.structure, self.state):
                yield s.name
        for s in self.chapter.theorems:
            if s.after == event.name and not evaluate(s.term, self.structure, before, values):
                yield s.name

    def _sentences(self) -> dict[str, str]:
        """Everything that can be broken, and what it says."""
        sentences = {s.name: s.sentence for s in (*self.known, *self.chapter.theorems)}
        for event in map(self.chapter.event, self.chapter.event_names):
            sentences |= {name: f"what {event.name} has to see to" for name, _ in _owed(event)}
        return sentences

    def _about(self, number: int, name: str) -> str:
        sentences = self._sentences()
        if name not in sentences:
            expected = "one of " + ", ".join(sentences)
            raise ScenarioError(self.scenario.name, number, 1, f"unknown statement '{name}'", expected)
        found = self.forbidden and f"the event is forbidden: {self.forbidden}"
        return sentences[name] if name in self.broken else found or f"broken: {', '.join(self.broken) or 'nothing'}"

    def _changes(self, before: State) -> tuple[list[str], list[str]]:
        """The facts that differ; all of them where the step was not taken."""
        names = Names(self.chapter, self.structure)
        old, new = (state_facts(self.chapter, names, s) for s in (before, self.state))
        if old == new:
            return old, []
        return [f for f in old if f not in new], [f for f in new if f not in old]


def _owed(event: TracedEvent) -> Iterator[tuple[str, Term]]:
    """What an event owes to those that it calls, by the names of the proofs."""
    counts: dict[str, int] = {}
    for owed in event.owed:
        counts[owed.callee] = counts.get(owed.callee, 0) + 1
        yield f"{owed.callee}/pre.{counts[owed.callee]}", owed.term


def run_events(scenario: la.Scenario) -> ScenarioResult:
    """Run a scenario of events.

    Raises:
        ScenarioError: it speaks of an event, variable or value that its chapter does not have.
    """
    return EventRun(scenario).run()


# -- reading ----------------------------------------------------------------------------------------------------------


class Words:
    """Reads values by their sorts, and collects what there is of each sort.

    Args:
        file: where they stand, for errors.
        config: the pool.
        chapter: which variables, static words and events there are.
        most: the largest number that is read.
    """

    def __init__(self, file: str, config: PoolConfig, chapter: Chapter, most: int = MAX_BLOCKS) -> None:
        self.file, self.config, self.chapter, self.most = file, config, chapter, most
        self.chains = Chains(config.block_size)
        self.found: dict[str, dict[Any, None]] = {}

    def world(
        self,
        given: Sequence[la.Line] | None,
        lines: Sequence[la.Line] = (),
        known: Mapping[Path, Any] | None = None,
    ) -> tuple[Structure, State | None]:
        """The structure in which events run, and the state, by the facts; the lines say what else there is.

        Args:
            given: facts.
            lines: where else elements are spoken of.
            known: what some static words mean, where no fact says it.
        """
        state: State | None = None if given is None else {}
        statics: dict[Path, Any] = {}
        for line in given or ():
            assert isinstance(line.item, la.Fact)
            self.fact(line.number, line.item, {} if state is None else state, statics)
        for line in lines:
            if isinstance(line.item, la.EventLine) and line.item.name in self.chapter.event_names:
                event = self.chapter.event(line.item.name)
                self.arguments(line.number, line.item.atoms, [p.sort for p in event.parameters], line.item.name)
        statics = {**self._usual(), **(known or {}), **statics}
        for path, symbol in self.chapter.statics.items():
            if symbol.arguments and isinstance(statics.get(path), frozenset):
                statics[path] = _relation(statics[path])
            elif symbol.arguments and isinstance(symbol.result, SetSort) and isinstance(statics.get(path), dict):
                statics[path] = _sets(statics[path])
            if path not in statics:
                self.fail(0, f"nothing says what '{symbol.name}' is", "a line for it in given")
        nothing = next((v for p, v in statics.items() if p[-1] == "nothing"), NOTHING)
        return Structure(self._carriers(nothing), statics), state

    def _usual(self) -> dict[Path, Any]:
        """What the static words mean unless the scenario says otherwise."""
        config = self.config
        words = {
            "padding": 0,
            "nothing": NOTHING,
            "covers": covers,
            "longer": longer,
            "full": lambda c: not isinstance(c, Chain) or c.full,
            "parent": lambda c: c.parent or NOTHING if isinstance(c, Chain) else NOTHING,
            "depth": lambda c: c.depth if isinstance(c, Chain) else 0,
            "linear": config.has_linear_state,
            "resumable": resumable(config),
        }
        usable = {
            p: self._usable(s.result)
            for p, s in self.chapter.statics.items()
            if p[-1] == "usable" and isinstance(s.result, SetSort) and s.result.elements[0].name in NUMBERED
        }
        return usable | {path: words[path[-1]] for path in self.chapter.statics if path[-1] in words}

    def _usable(self, sort: AnySort) -> frozenset[int]:
        assert isinstance(sort, SetSort)
        return frozenset(range(1, self._number(sort.elements[0].name)))

    def _number(self, sort: str) -> int:
        """How many there are of a sort whose elements are numbers."""
        found = max(self.found.get(sort, ()), default=0)
        size: int = getattr(self.config, NUMBERED.get(sort, "num_blocks"))
        return max(size, found + 1)

    def _carriers(self, nothing: Any) -> dict[str, list[Any]]:
        """All elements of each sort: those that are spoken of, and a little room for blocks, numbers and places."""
        carriers: dict[str, list[Any]] = {"Nat": list(range(self.config.num_blocks + 2))}
        for name, sort in self.chapter.sorts.items():
            found = list(self.found.get(name, ()))
            if sort.kind == "position":
                carriers[name] = list(range(max(found, default=0) + 2))
            elif name in NUMBERED:
                carriers[name] = list(range(self._number(name)))
            elif name == "Chain":
                others = [c for c in self.chains if c is not NOTHING or nothing is NOTHING]
                carriers[name] = [*(c for c in found if not isinstance(c, Chain)), *others]
            elif sort.kind == "id":
                carriers[name] = found or [f"some_{name.lower()}"]
        return carriers

    def fact(self, number: int, fact: la.Fact, state: State, statics: dict[Path, Any]) -> None:
        sort, path, is_static = self.named(number, fact.name)
        values = statics if is_static else state
        if fact.key is None and isinstance(sort, SetSort):
            rows = self._rows(number, fact, sort.elements, state)
            values[path] = values.get(path, frozenset()) | rows
        elif fact.key is None and isinstance(sort, Sort):
            (values[path],) = self.arguments(number, fact.values, [sort], fact.name)
        elif fact.key is not None and isinstance(sort, MapSort):
            key = bare(tuple(self.arguments(number, fact.key, sort.keys, fact.name)))
            table = values.setdefault(path, {})
            if key in table:
                self.fail(number, f"'{fact.name}' for the same key twice", "one line for each")
            table[key] = self._value(number, fact, sort.value)
        elif isinstance(sort, MapSort) and isinstance(sort.value, SetSort) and not fact.values:
            values.setdefault(path, {})  # a map of sets that are all empty
        else:
            form = "NAME KEY: VALUES" if isinstance(sort, MapSort) else "NAME VALUES, without a colon"
            self.fail(number, f"a line for '{fact.name}'", f"the form {form}")

    def _value(self, number: int, fact: la.Fact, sort: Sort | SetSort) -> Any:
        if isinstance(sort, SetSort):
            return self._rows(number, fact, sort.elements, None)
        return self.arguments(number, fact.values, [sort], fact.name)[0]

    def _rows(self, number: int, fact: la.Fact, sorts: Sequence[Sort], state: State | None) -> frozenset[Any]:
        """The members of a set; ``KEY at BLOCK`` says in one what is matchable and where it leads."""
        rest = _no_commas(fact.values)
        found = set()
        while rest:
            row = bare(tuple(self._take(number, rest, sort, fact.name) for sort in sorts))
            found.add(row)
            if rest and rest[0] == "at" and state is not None:
                rest.pop(0)
                sort, path, _ = self.named(number, "entry")
                assert isinstance(sort, MapSort) and isinstance(sort.value, Sort)
                state.setdefault(path, {})[row] = self._take(number, rest, sort.value, fact.name)
        return frozenset(found)

    def named(self, number: int, name: str) -> tuple[AnySort, Path, bool]:
        """Sort and path of a variable or static word; a function is written like a map, a relation like a set."""
        tail = tuple(name.split("."))
        variables = [(v.sort, p, False) for p, v in self.chapter.variables.items() if p[-len(tail) :] == tail]
        statics = [(_as_state(s), p, True) for p, s in self.chapter.statics.items() if p[-len(tail) :] == tail]
        found = variables + statics
        if len(found) != 1:
            everything = [".".join(p) for p in (*self.chapter.variables, *self.chapter.statics)]
            what = f"'{name}' is {'not one word' if found else 'no word'} of the chapter"
            self.fail(number, what, "one of " + ", ".join(everything))
        return found[0]

    def arguments(self, number: int, atoms: Iterable[la.Atom], sorts: Sequence[AnySort], name: str) -> list[Any]:
        """Values of these sorts, from exactly these atoms."""
        rest = _no_commas(atoms)
        values = [self._take(number, rest, sort, name) for sort in sorts]
        if rest:
            self.fail(number, f"{atom(rest[0])} behind '{name}'", f"{len(sorts)} arguments")
        return values

    def _take(self, number: int, rest: list[la.Atom], sort: AnySort, name: str) -> Any:
        if not rest:
            self.fail(number, f"too few arguments of '{name}'", form(sort, self.most))
        if isinstance(sort, SetSort):
            return self._set(number, rest.pop(0), sort, name)
        assert isinstance(sort, Sort)
        if sort.kind == "variant":
            return self._variant(number, rest, sort, name)
        value = self._scalar(rest[0], sort)
        if value is None:
            self.fail(number, f"{atom(rest[0])} for '{name}'", form(sort, self.most))
        rest.pop(0)
        self.found.setdefault(sort.name, {})[value] = None
        return value

    def _set(self, number: int, one: la.Atom, sort: SetSort, name: str) -> frozenset[Any]:
        if not isinstance(one, la.Group):
            self.fail(number, f"{atom(one)} for '{name}'", "a set such as {1 2}")
        rest = _no_commas(one.atoms)
        found = set()
        while rest:
            found.add(bare(tuple(self._take(number, rest, s, name) for s in sort.elements)))
        return frozenset(found)

    def _scalar(self, one: la.Atom, sort: Sort) -> Any:
        if sort.kind == "bool":
            return {"true": True, "false": False}.get(one) if isinstance(one, str) else None
        if sort.kind in ("nat", "position") or sort.name in NUMBERED:
            return one if isinstance(one, int) and 0 <= one <= self.most else None
        if sort.name == "Chain" and isinstance(one, la.Tokens):
            return self._chain(one)
        return sys.intern(one) if isinstance(one, str) else None  # what is equal is the same, as with chains

    def _chain(self, whole: la.Tokens) -> Chain:
        tokens, size, chain = whole.tokens, self.config.block_size, NOTHING
        for start in range(0, len(tokens), size):
            data = b"".join(t.to_bytes(8, "little", signed=True) for t in tokens[start : start + size])
            chain = self.chains.intern(chain, whole.context, data)
        return chain

    def _variant(self, number: int, rest: list[la.Atom], sort: Sort, name: str) -> Variant:
        first = rest.pop(0)
        cases = {case_word(case): (case, fields) for case, fields in sort.cases}
        if isinstance(first, la.Seated) and SEAT in dict(sort.cases):
            rest[:0] = [first.seq, first.index]
            first = SEAT
        if not isinstance(first, str) or first not in cases:
            self.fail(number, f"{atom(first)} for '{name}'", form(sort, self.most))
        case, fields = cases[first]
        return Variant(case, tuple(self._take(number, rest, f, name) for f in fields))

    def fail(self, number: int, what: str, expected: str) -> NoReturn:
        raise ScenarioError(self.file, number, int(number > 0), what, expected)


SEAT: Final = "seq_at"
"""The case that is written ``a[0]``."""


def case_word(case: str) -> str:
    """How a case of a variant is written: ``cache_of`` as ``cache``."""
    return case.removesuffix("_of")


def _no_commas(atoms: Iterable[la.Atom]) -> list[la.Atom]:
    """Commas are for the reader; sorts say where a value ends."""
    return [a for a in atoms if a is not la.Mark.COMMA]


def _relation(rows: frozenset[Any]) -> Callable[..., bool]:
    """A static function to truth values, from the rows for which it is true."""
    return lambda *arguments: bare(arguments) in rows


def _sets(rows: Mapping[Any, frozenset[Any]]) -> Callable[..., frozenset[Any]]:
    """A static function to sets, empty where nothing is said."""
    return lambda *arguments: rows.get(bare(arguments), frozenset())


def _as_state(symbol: StaticSymbol) -> AnySort:
    """The sort of a state variable that would hold a static word."""
    if not symbol.arguments or isinstance(symbol.result, MapSort):
        return symbol.result
    if isinstance(symbol.result, Sort) and symbol.result.kind == "bool":
        return SetSort(symbol.arguments)
    return MapSort(symbol.arguments, symbol.result)


def form(sort: AnySort, most: int = MAX_BLOCKS) -> str:
    """How a value of a sort is written."""
    if not isinstance(sort, Sort):
        return "a set such as {1 2}"
    if sort.kind == "variant":
        words = [f"{case_word(c)} {' '.join(f.name.upper() for f in fields)}".strip() for c, fields in sort.cases]
        return " or ".join("a[0]" if w.startswith(SEAT) else w for w in words)
    if sort.kind in ("nat", "position") or sort.name in NUMBERED:
        return f"a number{f' up to {most}' if most < la.MAX_NUMBER else ''} ({sort.name})"
    forms = {"Chain": "a chain such as [7 8], or a name", "Bool": "true or false"}
    return forms.get(sort.name, f"a name ({sort.name})")


# -- writing ----------------------------------------------------------------------------------------------------------


class Names:
    """How the elements of a structure are written."""

    def __init__(self, chapter: Chapter, structure: Structure) -> None:
        self.chapter, self.structure = chapter, structure
        self._known: dict[tuple[str, Any], str] = {}
        self._used: set[str] = {"at", "true", "false"}
        for sort in NUMBERED:
            self._number(sort)

    @property
    def config(self) -> PoolConfig:
        """A pool that has all blocks, and all else that is numbered."""
        blocks, singles, slots, ranks = (self._size(sort) for sort in ("Block", "Single", "StateSlot", "Rank"))
        singles = max(singles, self._size("Unit"))
        in_pool = any(self.chapter.sorts.get(sort) for sort in ("Single", "Unit", "StateSlot", "Rank"))
        return PoolConfig(
            num_blocks=max(2, blocks),
            block_size=2,
            num_single_blocks=max(2, singles) if in_pool else 0,
            num_state_slots=max(2, slots) if "StateSlot" in self.chapter.sorts else 0,
            num_ranks=max(1, ranks),
        )

    def _size(self, sort: str) -> int:
        return 1 + max((int(n) for (known, _), n in self._known.items() if known == sort), default=0)

    def _static(self, word: str, sort: str) -> Any:
        """What a static word is, for the elements of a sort."""
        for path, symbol in self.chapter.statics.items():
            of = symbol.result.elements[0] if isinstance(symbol.result, SetSort) else symbol.result
            if path[-1] == word and isinstance(of, Sort) and of.name == sort:
                return self.structure.statics.get(path)
        return None

    def _number(self, sort: str) -> None:
        """Numbers for the elements of a sort: 0 is the padding, usable ones come next."""
        elements = list(self.structure.carriers.get(sort, ()))
        padding, usable = self._static("padding", sort), self._static("usable", sort) or frozenset()
        if all(isinstance(b, int) for b in elements):
            order = {b: b for b in elements}
        else:
            rest = sorted((b for b in elements if b != padding), key=lambda b: b not in usable)
            first = [] if sort == "Rank" else [padding]
            order = {b: n for n, b in enumerate([*first, *rest])}
        self._known.update({(sort, b): str(n) for b, n in order.items() if b is not None})

    def value(self, value: Any, sort: AnySort) -> str:
        """A value as an argument."""
        if isinstance(sort, SetSort):
            return "{" + ", ".join(sorted(self.row(v, sort.elements) for v in value)) + "}"
        assert isinstance(sort, Sort)
        if sort.kind == "variant":
            return self._variant(value, sort)
        if sort.kind == "bool":
            return "true" if value else "false"
        if sort.kind in ("nat", "position"):
            return str(value)
        if isinstance(value, Chain):
            return atom(la.Tokens(tuple(chain_tokens(value))))
        return self._named(value, sort.name)

    def row(self, value: Any, sorts: Sequence[Sort]) -> str:
        """A member of a set, or a key of a map."""
        parts = (value,) if len(sorts) == 1 else value
        return " ".join(self.value(v, s) for v, s in zip(parts, sorts, strict=True))

    def _variant(self, value: Any, sort: Sort) -> str:
        case, fields = (value.case, value.fields) if isinstance(value, Variant) else (value[0], value[1:])
        texts = [self.value(v, s) for v, s in zip(fields, sort.fields(case), strict=True)]
        return f"{texts[0]}[{texts[1]}]" if case == SEAT else " ".join([case_word(case), *texts])

    def _named(self, value: Any, sort: str) -> str:
        known = self._known.get((sort, value))
        if known is None:
            plain = _NO_WORD.sub("_", value) if isinstance(value, str) else ""
            known = word(plain) if plain and plain not in self._used else self._fresh(sort)
            self._known[sort, value] = known
            self._used.add(known)
        return known

    def _fresh(self, sort: str) -> str:
        return next(n for i in range(1, 10_000) if (n := f"{sort[0].lower()}{i}") not in self._used)


def state_facts(chapter: Chapter, names: Names, state: Mapping[Path, Any]) -> list[str]:
    """The facts of a state, as lines of ``given``; what is blank is left out."""
    short = _short_names(chapter)
    return [f for p, v in chapter.variables.items() for f in _facts(short[p], state.get(p), v.sort, names)]


def _static_facts(chapter: Chapter, structure: Structure, names: Names) -> list[str]:
    short, found = _short_names(chapter), []
    for path, symbol in chapter.statics.items():
        value = structure.statics.get(path)
        if path[-1] == "padding" or (callable(value) and not _abstract(structure)):
            continue
        sort = _as_state(symbol)
        if isinstance(value, Chain) or (path[-1] == "usable" and _is_usual(value, sort, names)):
            continue
        if sort == BOOL:
            found.append(f"{short[path]} {'true' if value else 'false'}")
            continue
        if symbol.arguments:
            value = _table(structure, path, symbol, isinstance(sort, SetSort))
        # An empty set is said, too: a static word that is left out has its usual meaning.
        found += _facts(short[path], value, sort, names) or [short[path]]
    return found


def _is_usual(value: Any, sort: AnySort, names: Names) -> bool:
    """Whether the usable elements are all but the padding."""
    assert isinstance(sort, SetSort)
    name = sort.elements[0].name
    size = getattr(names.config, NUMBERED[name]) if name in NUMBERED else 0
    return {names._named(b, name) for b in value} == {str(n) for n in range(1, size)}


def _abstract(structure: Structure) -> bool:
    return any(not isinstance(c, Chain) for c in structure.carriers.get("Chain", ()))


def _table(structure: Structure, path: Path, symbol: StaticSymbol, is_relation: bool) -> Any:
    """A static function as a dict, a relation as a set."""
    rows = {bare(xs): structure.apply(path, xs) for xs in structure.tuples(symbol.arguments)}
    return {x for x, yes in rows.items() if yes is True} if is_relation else rows


def _facts(name: str, value: Any, sort: AnySort, names: Names) -> list[str]:
    if value is None or value is ABSENT:
        return []
    if isinstance(sort, SetSort):
        rows = sorted(names.row(v, sort.elements) for v in value)
        return [f"{name} {', '.join(rows)}"] if rows else []
    if isinstance(sort, Sort):
        return [f"{name} {names.value(value, sort)}"] if value is not False and value != 0 else []
    found = []
    for key, inner in value.items():
        if isinstance(sort.value, SetSort):
            text = ", ".join(sorted(names.row(v, sort.value.elements) for v in inner))
        else:
            text = "" if inner is ABSENT else names.value(inner, sort.value)
        found += [f"{name} {names.row(key, sort.keys)}: {text}"] if text else []
    return sorted(found)


def _short_names(chapter: Chapter) -> dict[Path, str]:
    """The shortest tail of each path that names nothing else."""
    paths = [*chapter.variables, *chapter.statics]
    found = {}
    for path in paths:
        tails = (path[-n:] for n in range(1, len(path) + 1))
        tail = next(t for t in tails if sum(p[-len(t) :] == t for p in paths) == 1 or t == path)
        found[path] = ".".join(tail)
    return found


def write_event_scenario(
    name: str,
    chapter: Chapter,
    structure: Structure,
    state: Mapping[Path, Any] | None,
    steps: Iterable[tuple[str, Sequence[Any]]],
    checks: Iterable[la.Check] = (),
    *,
    block_size: int = 2,
    comment: str = "",
) -> str:
    """The text of a scenario of events, as a counterexample is handed out.

    Args:
        name: of the chapter.
        chapter: what to run.
        structure: its carriers, and its static words as constants, sets, dicts or callables. Elements may be anything;
            they get names here (blocks get numbers).
        state: the start state; None for the chapter's own.
        steps: events with their arguments.
        checks: what is seen after the last of them.
        block_size: tokens per block, for chains that are made of tokens.
        comment: what the file says first.
    """
    names = Names(chapter, structure)
    events = []
    for event, arguments in steps:
        sorts = [p.sort for p in chapter.event(event).parameters]
        shown = (names.value(v, s) for v, s in zip(arguments, sorts, strict=True))
        events.append(" ".join(["event", event, *shown]))
    config = msgspec.structs.replace(names.config, block_size=block_size)
    lines = [*comment_lines(comment), pool_line(config), f"chapter {word(name)}"]
    if state is not None:
        facts = [*_static_facts(chapter, structure, names), *state_facts(chapter, names, state)]
        lines += ["given", *(f"  {fact}" for fact in facts), "end"]
    return "\n".join([*lines, *events, *map(format_item, checks)]) + "\n"


__all__ = ["MAX_BLOCKS", "EventRun", "chapter_names", "load_chapter", "pool_line", "run_events", "write_event_scenario"]
