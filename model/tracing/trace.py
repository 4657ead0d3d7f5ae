"""Follows a log of events through the spec, up to the first that no correct manager could have produced.

Where the state is known, from the start of a run or from a complete snapshot, each event is run by
`kvspec.model.compiled`, which evaluates the invariants on what it touched; where it is not, by
`kvspec.model.tracing.known`, which believes what it cannot refute.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from kvspec.model.compiled import Compiled, InvariantError, StepError
from kvspec.model.compiled.text import blank
from kvspec.model.concrete import ABSENT, State, Variant, default, evaluate
from kvspec.model.scenario.events import NUMBERED
from kvspec.model.tracing.header import POOL, Header, NoMeaning, arguments, facts
from kvspec.model.tracing.known import UNKNOWN, Contradiction, Known, Members, NotPossible, Table
from kvspec.model.tracing.log import Cut, Row, rows, without
from kvspec.model.tracing.show import Focus, Step, state_lines
from kvspec.model.tracing.story import tell_story
from kvspec.model.world import NOTHING, Chain
from kvspec.spec.language import SpecError
from kvspec.spec.language.prose import render
from kvspec.spec.language.terms import AnySort, MapSort, SetSort, Sort
from kvspec.spec.language.terms import Path as Name
from kvspec.spec.language.traced import Requirement, Statement

MAX_KEPT: Final = 1_000_000
"""Events that are kept for a scenario of what has happened."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a log that no correct manager could have written.

    Attributes:
        rule: ``chapter.event/require``, or a chapter and an invariant, or ``chapter/snapshot``, or ``chapter/numbers``.
        says: what that demands.
        because: what is known that contradicts it, where that is not the state itself.
        file, line: where.
        event: the number of the event in the log, from 1; of the last one before it for a snapshot.
        text: the line.
        before, after: the state as far as the line speaks of it, as lines of a scenario's ``given``.
    """

    rule: str
    says: str
    because: str = ""
    file: str
    line: int
    event: int
    text: str
    before: list[str] = []
    after: list[str] = []


class TraceReport(msgspec.Struct, kw_only=True):
    """What a log was found to be.

    Attributes:
        chapter: whose events it has.
        events, snapshots, files: how many there were, up to the finding.
        started: what the state was at first: ``start``, ``snapshot`` or ``unknown``.
        believed: events that required something which the log had not told.
        unknown: for each set of blocks or the like, of how many elements it is unknown at the end.
        cuts, holes: places where a file ends too early, and where the state was lost.
        finding: the first line that is wrong; None if there is none.
        scenario: a scenario that shows it; empty if none could be made.
    """

    chapter: str = ""
    events: int = 0
    snapshots: int = 0
    files: int = 0
    started: str = ""
    believed: int = 0
    unknown: dict[str, int] = msgspec.field(default_factory=dict)
    cuts: list[str] = msgspec.field(default_factory=list)
    holes: list[str] = msgspec.field(default_factory=list)
    finding: Finding | None = None
    scenario: str = ""


class _Wrong(Exception):
    """A line that ends the trace."""

    def __init__(self, rule: str, says: str, because: str = "", where: str = "") -> None:
        self.rule, self.says, self.because, self.where = rule, says, because, where
        super().__init__(rule)


def trace_events(
    paths: Sequence[Path], *, from_start: bool = False, progress: Callable[[int], None] | None = None
) -> TraceReport:
    """Follow a log.

    Args:
        paths: its files, the oldest first.
        from_start: the log begins with the start state, whether or not its header says so.
        progress: told how many events there were, now and then.

    Raises:
        ScenarioError: a line cannot be read.
        OSError: a file cannot be read.
    """
    return _Trace(from_start, progress or (lambda events: None)).run(rows(paths))


class _Trace:
    def __init__(self, from_start: bool, progress: Callable[[int], None]) -> None:
        self.from_start, self.progress = from_start, progress
        self.report = TraceReport()
        self.header: Header | None = None
        self.exact: Compiled | None = None
        self._compiled: tuple[Mapping[str, Any], Compiled] | None = None
        """What the header says beside sizes, and the chapter with it: to compile it takes longer than many runs."""
        self.known: Known | None = None
        self.history: list[Step] | None = []
        self.last: Row | None = None
        self.numbered: dict[str, int] = {}
        """Of each sort, how many were spoken of and are known to be there."""
        self.hole = ""
        """Why what follows may not follow from what was before."""

    def run(self, lines: Iterable[Row | Cut]) -> TraceReport:
        row = None
        try:
            for row in lines:
                if isinstance(row, Cut):
                    self.report.cuts.append(f"{row.file}:{row.number}")
                    self.hole = f"{row.file}:{row.number}: the file ends in the middle of a line"
                else:
                    self._line(row)
            self._sweep()
        except _Wrong as wrong:
            self._found(wrong)
        self.report.unknown = self._unknown()
        return self.report

    def _line(self, row: Row) -> None:
        self.last = row
        if "kvspec" in row.data:
            self._header(row)
            return
        if self.header is None:
            raise row.fail("no header", 'a first line such as {"kvspec": "events", "version": 1, "chapter": "blocks"}')
        if self.hole:
            self._lose(self.hole)
        if "event" in row.data:
            self._event(row)
        elif "snapshot" in row.data:
            self._snapshot(row)
        else:
            raise row.fail("neither an event nor a snapshot", '"event": NAME, or "snapshot": {...}')

    # -- headers ------------------------------------------------------------------------------------------------------

    def _header(self, row: Row) -> None:
        before, new = self.header, Header(row)
        self.report.files += 1
        if before is None:
            self.report.chapter = new.name
            self._take_over(new)
            complete = new.complete or self.from_start
            self.report.started = "start" if complete else "unknown"
            self._begin() if complete else self._lose("")
            return
        if not before.same_as(new) and not (new.complete and new.name == before.name):
            raise row.fail("a header that differs from the one before", "files of one log, or a new run of the chapter")
        if new.complete:
            self.hole = ""
            self._take_over(new)
            self._begin()
        elif before.part is not None and new.part is not None and new.part != before.part + 1:
            order = "" if new.part > before.part else ": another run, or files in another order (the oldest first)"
            self.hole = f"{row.place}: part {new.part} comes behind part {before.part}{order}"
        before.part = new.part

    def _take_over(self, header: Header) -> None:
        """What follows is to be read by this header."""
        self.header = header
        self.numbered = {sort: len(header.words.found.get(sort, ())) for sort in NUMBERED}

    def _now(self) -> Header:
        """The header by which the log is read."""
        assert self.header is not None
        return self.header

    def _begin(self) -> None:
        """The start state of the chapter."""
        assert self.header is not None
        told = without(self.header.constants, POOL)
        if self._compiled is None or self._compiled[0] != told:
            self._compiled = told, machine(self.header, self._now)
        self.known, self.exact = None, self._compiled[1]
        self.exact.restart(self.header.structure.statics)
        self.history = []

    def _lose(self, why: str) -> None:
        """From here on nothing is known of the state."""
        assert self.header is not None
        self.exact, self.known = None, Known(self.header.chapter, self.header.structure)
        self.history, self.hole = [], ""
        self.report.holes += [why] if why else []

    # -- events -------------------------------------------------------------------------------------------------------

    def _event(self, row: Row) -> None:
        assert self.header is not None
        values = tuple(map(plain, arguments(row, self.header.words, self.header.chapter)))
        self._check_listed(row)
        name = row.data["event"]
        self.report.events += 1
        if self.report.events % 4096 == 0:
            self.progress(self.report.events)
        self._check_numbers()
        step = Step(name, values)
        try:
            if self.exact is not None:
                self.exact.events[name](*values)
            elif self.known is not None:
                self.report.believed += not self.known.fire(self.header.chapter.event(name), values)
        except StepError as error:
            raise self._not_allowed(name, error.requirement) from None
        except NotPossible as error:
            raise self._not_allowed(name, error.requirement, error.by) from None
        except InvariantError as error:
            statement = error.broken.statement
            raise _Wrong(f"{self.header.name}/{statement.name}", statement.sentence) from None
        except Contradiction as error:
            raise self._contradicted(error) from None
        except NoMeaning as error:
            raise row.fail(str(error), "a header that says it") from None
        except TypeError:
            raise self._undefined(row, values) from None
        if self.history is not None:
            self.history.append(step)
            self.history = self.history if len(self.history) <= MAX_KEPT else None

    def _check_listed(self, row: Row) -> None:
        """Nothing is spoken of that the header would have had to name."""
        assert self.header is not None
        for sort in self.header.listed:
            known, found = self.header.constants[sort], self.header.words.found[sort]
            if len(found) > len(known):
                other = next(x for x in found if x not in known)
                raise row.fail(f"'{other}' is no {sort}", f"one of {', '.join(known)}")

    def _check_numbers(self) -> None:
        """Nothing is spoken of beyond what there is by the sizes in the header."""
        assert self.header is not None
        for sort, size in NUMBERED.items():
            found = self.header.words.found.get(sort, {})
            most = self.header.constants.get(size, sys.maxsize)
            for number in islice(reversed(found), len(found) - self.numbered[sort]):
                if number >= most:
                    says = f"numbers of {sort} are 0 to {most - 1}, as {size} of the header says"
                    raise _Wrong(f"{self.header.name}/numbers", says, f"{sort} {number} is spoken of")
            self.numbered[sort] = len(found)

    def _not_allowed(self, event: str, requirement: Requirement, by: Statement | None = None) -> _Wrong:
        assert self.header is not None
        says = f"{event} requires {render(requirement.term)} ({requirement.where})"
        because = f"{by.name}: {by.sentence}" if by is not None else ""
        return _Wrong(f"{self.header.name}.{event}/require", says, because, str(requirement.where))

    def _undefined(self, row: Row, values: tuple[Any, ...]) -> Exception:
        """Why an event cannot be that reads what there is not: something forbids it, or the log said too little."""
        assert self.header is not None and self.exact is not None
        known, event = whole(self.header, self.exact), self.header.chapter.event(row.data["event"])
        env = dict(zip(event.parameters, values, strict=True))
        for requirement in event.requires:
            if known.value(requirement.term, env) is False:
                return self._not_allowed(event.name, requirement)
        unset = [".".join(p) for p, term in self.header.chapter.initial.items() if term.op == "state"]
        what = f"{event.name} reads something that has no value at the start"
        return row.fail(what, f"a snapshot before it, of {', '.join(unset) or 'what it reads'}")

    def _contradicted(self, error: Contradiction) -> _Wrong:
        assert self.header is not None
        if error.statement is None:
            return _Wrong(f"{self.header.name}/snapshot", "a snapshot is the state that the events before it lead to")
        return _Wrong(f"{self.header.name}/{error.statement.name}", error.statement.sentence)

    def _sweep(self) -> None:
        """Every invariant, on all that there is at the end."""
        if self.hole and self.header is None:
            return
        for broken in self.exact.sweep() if self.exact is not None else ():
            assert self.header is not None
            raise _Wrong(f"{self.header.name}/{broken.statement.name}", broken.statement.sentence)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _snapshot(self, row: Row) -> None:
        assert self.header is not None
        said, whole = row.data["snapshot"], row.data.get("complete", False)
        if wrong := without(row.data, ("snapshot", "complete")):
            raise row.fail(f"'{next(iter(wrong))}' in a snapshot", "snapshot, complete")
        if not isinstance(said, dict) or not isinstance(whole, bool):
            raise row.fail("a snapshot of another form", '{"snapshot": {VARIABLE: VALUE}, "complete": true or false}')
        told, statics = self._read(row, said)
        if statics:
            raise row.fail(f"'{'.'.join(next(iter(statics)))}' in a snapshot", "static words in the header")
        for path in told:
            if self.header.chapter.variables[path].ghost:
                raise row.fail(f"'{'.'.join(path)}' in a snapshot", "variables that are no ghosts of the proofs")
        self.report.snapshots += 1
        self._check_numbers()
        if not self.report.events and self.report.started == "unknown" and self.report.snapshots == 1:
            self.report.started = "snapshot" if whole else "unknown"
        try:
            self._compare(told, whole)
        except Contradiction as error:
            raise self._contradicted(error) from None

    def _read(self, row: Row, said: Mapping[str, Any]) -> tuple[State, dict[Name, Any]]:
        assert self.header is not None
        told: State = {}
        statics: dict[Name, Any] = {}
        for line in facts(row, said.items(), self.header.words, self.header.chapter):
            self.header.words.fact(line.number, line.item, told, statics)  # type: ignore[arg-type]
        return {path: _plain_all(value) for path, value in told.items()}, statics

    def _compare(self, told: State, whole: bool) -> None:
        """Compare with what is known, and take over what is not."""
        assert self.header is not None
        variables = self.header.chapter.variables
        if whole:
            told = {p: told.get(p, _blank(v.sort)) for p, v in variables.items() if not v.ghost}
            loaded = self._loaded(told)
        if self.known is not None:
            for path, value in told.items():
                cells = value.items() if isinstance(variables[path].sort, MapSort) else [(None, value)]
                for key, inner in cells:
                    self.known.tell(path, key, inner)
            if whole:
                self.known, self.exact, self.history = None, loaded, None
        elif self.exact is not None:
            for path, value in told.items():
                self._equal(path, value, whole)
            self._set(told)

    def _loaded(self, told: State) -> Compiled:
        """The chapter in a state that is told whole, and that keeps the invariants."""
        assert self.header is not None
        compiled = machine(self.header)
        state = {path: _blank(v.sort) for path, v in self.header.chapter.variables.items()} | told
        compiled.load({p: v if isinstance(v, (dict, set, frozenset)) else [v] for p, v in state.items()})
        for broken in compiled.sweep():
            raise _Wrong(f"{self.header.name}/{broken.statement.name}", broken.statement.sentence)
        return compiled

    def _equal(self, path: Name, value: Any, whole: bool) -> None:
        """A variable of a snapshot is what the events have made of it."""
        assert self.exact is not None and self.header is not None
        mine, sort = self.exact.state[path], self.header.chapter.variables[path].sort
        if not isinstance(sort, MapSort):
            self._agree(mine[0] if isinstance(sort, Sort) else mine, value, path)
            return
        rest = initially(self.header, path, sort)
        for key in value.keys() | (mine.keys() if whole else ()):
            self._agree(mine.get(key, rest), value.get(key, rest), path)

    def _agree(self, mine: Any, told: Any, path: Name) -> None:
        """A value of which the start said nothing may be any, and is what is told."""
        assert self.header is not None
        free = mine is ABSENT and self.header.chapter.initial[path].op == "state"
        if mine != told and not free:
            raise Contradiction

    def _set(self, told: State) -> None:
        """Take over the values of which the start said nothing."""
        assert self.exact is not None
        state = dict(self.exact.state)
        for path, value in told.items():
            if isinstance(value, dict):
                state[path] = {**value, **state[path]}
            elif isinstance(state[path], list) and state[path][0] is ABSENT:
                state[path] = [value]
        self.exact.load(state)

    # -- what is told -------------------------------------------------------------------------------------------------

    def _found(self, wrong: _Wrong) -> None:
        assert self.header is not None and self.last is not None
        row = self.last
        step = Step(row.data["event"], self._again(row)) if "event" in row.data else None
        focus = Focus(self.header.chapter, step)
        state = state_lines(self.header.chapter, self.header.structure, self._shown(), focus)
        was_taken = step is not None and not wrong.where
        self.report.finding = Finding(
            rule=wrong.rule,
            says=wrong.says,
            because=wrong.because,
            file=row.file,
            line=row.number,
            event=self.report.events,
            text=msgspec.json.encode(row.data).decode(),
            before=[] if was_taken else state,
            after=state if was_taken else [],
        )
        if step is not None and self.history is not None and wrong.where:
            compiled = self.exact or machine(self.header)
            self.report.scenario = tell_story(
                self.header, compiled, self.history, step, self.exact is not None, wrong.where
            )

    def _again(self, row: Row) -> tuple[Any, ...]:
        assert self.header is not None
        return tuple(map(plain, arguments(row, self.header.words, self.header.chapter)))

    def _shown(self) -> State:
        """The state, as far as it is known."""
        if self.exact is not None:
            return {p: v[0] if isinstance(v, list) else v for p, v in self.exact.state.items()}
        assert self.known is not None
        return {p: _certain(v) for p, v in self.known.state.items()}

    def _unknown(self) -> dict[str, int]:
        """For each set of things that are numbered: of how many it is unknown whether they are in it."""
        found = {}
        for path, known in self.known.state.items() if self.known is not None and self.header is not None else ():
            sort = self.header.chapter.variables[path].sort  # type: ignore[union-attr]
            if isinstance(known, Members) and isinstance(sort, SetSort) and sort.elements[0].name in NUMBERED:
                all_of = self.header.structure.carriers[sort.elements[0].name]  # type: ignore[union-attr]
                if number := sum(known.has(x) is UNKNOWN for x in all_of if x):
                    found[".".join(path)] = number
        return found


def plain(value: Any) -> Any:
    """A value as `kvspec.model.compiled` has it."""
    if isinstance(value, Variant):
        return (value.case, *map(plain, value.fields))
    if isinstance(value, (frozenset, set)):
        return frozenset(map(plain, value))
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def _plain_all(value: Any) -> Any:
    return {plain(k): plain(v) for k, v in value.items()} if isinstance(value, dict) else plain(value)


def _blank(sort: AnySort) -> Any:
    return {} if isinstance(sort, MapSort) else default(sort)


def _certain(known: Any) -> Any:
    if isinstance(known, Members):
        return set(known.yes)
    if isinstance(known, Table):
        return {k: c for k, v in known.cells.items() if (c := _certain(v)) is not None and c != set()}
    return None if known is UNKNOWN else known


def initially(header: Header, path: Name, sort: MapSort) -> Any:
    """What a map holds where nothing was stored."""
    start = blank(header.chapter.initial[path])
    return default(sort.value) if start is None else plain(evaluate(start, header.structure, {}))


def whole(header: Header, compiled: Compiled) -> Known:
    """A state as one of which everything is known."""
    known = Known(header.chapter, header.structure)
    for path, variable in header.chapter.variables.items():
        state, sort = compiled.state[path], variable.sort
        if variable.ghost:
            continue
        if isinstance(sort, SetSort):
            known.state[path] = Members(set(state), open=False)
        elif isinstance(sort, MapSort):
            of_sets = isinstance(sort.value, SetSort)
            rest = Members(open=False) if of_sets else initially(header, path, sort)
            known.state[path] = Table(
                {k: Members(set(v), open=False) if of_sets else v for k, v in state.items()}, rest
            )
        else:
            known.state[path] = state[0]
    return known


def machine(header: Header, now: Callable[[], Header] | None = None) -> Compiled:
    """The chapter of a header, ready to run: compiled, with all there is in the log as the elements of its sorts.

    Args:
        header: where it begins.
        now: gives the header that is read by at each time, where there are several of the chapter.
    """
    read_by = now or (lambda: header)

    def elements(name: str) -> Callable[[], Iterable[Any]]:
        def spoken_of() -> Iterable[Any]:
            return read_by().words.found.get(name, ())

        def carrier() -> Iterable[Any]:
            return read_by().structure.carriers.get(name, ())

        sort = header.chapter.sorts.get(name)
        if name == "Nat" or (sort is not None and sort.kind == "position"):
            return lambda: range(max((x for x in spoken_of() if isinstance(x, int)), default=0) + 2)
        if name == "Chain":
            return lambda: dict.fromkeys([NOTHING, *read_by().words.chains, *_named(carrier()), *spoken_of()])
        return lambda: dict.fromkeys([*carrier(), *spoken_of()])

    carriers = {name: elements(name) for name in (*header.chapter.sorts, "Nat")}
    statics = header.structure.statics
    try:
        return Compiled(header.chapter, statics, carriers, ghosts=False)
    except SpecError:
        return Compiled(header.chapter, statics, carriers)


def _named(chains: Iterable[Any]) -> list[Any]:
    """Those that are a name only."""
    return [c for c in chains if not isinstance(c, Chain)]


__all__ = ["Finding", "TraceReport", "initially", "machine", "plain", "trace_events", "whole"]
