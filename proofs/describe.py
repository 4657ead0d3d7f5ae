"""A counterexample in words: what matters of the state before, the step, what changed, what is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvspec.model.concrete import State, Variant, evaluate
from kvspec.proofs.confirm import instance, step
from kvspec.proofs.decode import Decoded
from kvspec.proofs.finite import counted
from kvspec.proofs.obligations import Obligation
from kvspec.proofs.runs import Search, Step
from kvspec.proofs.verdicts import Report
from kvspec.spec.language import terms as T
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Path, Term


class _Watched(dict[Any, Any]):
    """A map that remembers which keys were looked up."""

    def __init__(self, entries: Mapping[Any, Any]) -> None:
        super().__init__(entries)
        self.read: set[Any] = set()

    def get(self, key: Any, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def describe(chapter: Chapter, obligation: Obligation, situation: Decoded, search: Search) -> Report:
    """The report of a confirmed counterexample; where a run was found, its last step is what is shown."""
    shown = search.run.situation if search.run is not None else situation
    before = shown.state
    after = step(chapter, obligation, shown)
    teller = _Teller(chapter, obligation, shown)
    lines = list(teller.lines(before, after))
    lines.append(("reached", _reached(search)))
    data = {
        "carriers": shown.structure.carriers, "statics": plain(shown.structure.statics), "before": plain(before),
        "after": plain(after), "event": obligation.event.name if obligation.event else obligation.row,
        "arguments": [plain(shown.values[p]) for p in obligation.event.parameters] if obligation.event else [],
    }  # fmt: skip
    reached = None if search.run is None else len(search.run.steps)
    try:
        scenario = write_scenario(chapter, obligation, situation)
    except Exception as error:  # whatever the writer cannot say: the verdict stands without a file
        scenario = None
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        lines.append(("run it", f"could not be written as a scenario: {reason}"))
    return Report(tuple(lines), size(chapter, shown), reached, data, scenario)


def write_scenario(chapter: Chapter, obligation: Obligation, situation: Decoded) -> str | None:
    """The counterexample as a scenario that ``kvspec run`` takes; None where there is no step to run.

    It is the situation that refutes, not the one that a run from the start reached: that may break more.
    """
    event = obligation.event
    if event is None or obligation.kind not in ("invariant", "call", "theorem"):
        return None
    from kvspec.model.scenario import BrokenInvariant, write_event_scenario  # read where a cell is refuted, only

    arguments = [situation.values[p] for p in event.parameters]
    broken = BrokenInvariant(obligation.column.removeprefix("->"))
    comment = f"{obligation.id}\n{obligation.sentence}"
    return write_event_scenario(
        obligation.chapter, chapter, situation.structure, situation.state, [(event.name, arguments)], [broken],
        comment=comment,
    )  # fmt: skip


def size(chapter: Chapter, situation: Decoded) -> str:
    """How many elements of each sort there are."""
    counts = [(name, len(all)) for name, all in situation.structure.carriers.items() if name in chapter.sorts]
    return ", ".join(counted(n, name.lower()) for name, n in counts)


def _reached(search: Search) -> str:
    if search.run is not None:
        if not search.run.steps:
            return "it is the start"
        steps = ", ".join(map(show_step, search.run.steps))
        return f"from the start in {counted(len(search.run.steps), 'step')}: {steps}"
    if search.complete:
        return "not reached by any run with so few elements: an invariant may be missing"
    return f"not reached within {counted(search.depth, 'step')}: an invariant may be missing"


def show_step(taken: Step) -> str:
    event, args = taken
    return " ".join([event.name, *(show(a, brackets=True) for a in args)])


def show(value: Any, brackets: bool = False) -> str:
    """A value in the notation of reports."""
    match value:
        case bool():
            return "true" if value else "false"
        case Variant():
            inside = ", ".join(show(f) for f in value.fields)
            return f"{value.case}({inside})" if inside else value.case
        case tuple():
            return f"({', '.join(show(v) for v in value)})"
        case set() | frozenset():
            return "{" + ", ".join(sorted(show(v) for v in value)) + "}"
        case str() if brackets and " " in value:
            return f"[{value}]"
    return str(value)


def plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {k if isinstance(k, str) else _key(k): plain(v) for k, v in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(show(v) for v in value)
    return value if isinstance(value, (bool, int, str)) else show(value)


def _key(key: Any) -> str:
    return ".".join(key) if isinstance(key, tuple) and all(isinstance(p, str) for p in key) else show(key)


class _Teller:
    """Tells one counterexample."""

    def __init__(self, chapter: Chapter, obligation: Obligation, situation: Decoded) -> None:
        self.chapter, self.obligation, self.situation = chapter, obligation, situation

    def lines(self, before: State, after: State) -> Iterator[tuple[str, str]]:
        event = self.obligation.event
        given = self._facts(self.situation.structure.statics, self._live_statics(), _truths)
        if given:
            yield "given", given
        if self.obligation.row != "init":
            yield "before", self._facts(before, self._live_state(), _cells) or "nothing is held or stored"
        if event is not None:
            yield "step", show_step((event, tuple(self.situation.values[p] for p in event.parameters)))
            if self.obligation.kind != "call":
                yield "after", self._changes(before, after) or "nothing has changed"
        elif self.obligation.row == "init":
            yield "start", self._changes({}, after) or "nothing is held or stored"
        yield "broken", self._broken(after)

    def _broken(self, after: State) -> str:
        o = self.obligation
        two_state = o.statement is None
        term, state = (o.goal, self.situation.state) if two_state else (o.statement or o.goal, after)
        values = {k: v for k, v in instance(term, self.situation, state).items() if not k.startswith("_")}
        told = ", ".join(f"{name} = {show(v)}" for name, v in values.items())
        return f"{o.column}: {o.sentence}" + (f" ({told})" if told else "") + f", {o.where}"

    # -- what matters --------------------------------------------------------------------------------------------

    def _mentioned(self, op: str) -> set[Path]:
        """Variables or statics that the step or the broken statement speaks of."""
        o = self.obligation
        terms = [o.goal if o.statement is None else o.statement]
        if o.event is not None:
            terms += [r.term for r in o.event.requires]
            for e in o.event.effects:
                terms += [*e.keys, *e.args, e.condition, T.make("state", (), T.BOOL, e.path)]
        return {t.data for term in terms for t in T.subterms(term) if t.op == op}

    def _live_state(self) -> dict[Path, set[Any] | None]:
        """Of the mentioned variables, the keys that any hypothesis or the statement looks at; None for all."""
        watched = _watched(self.situation.state)
        o = self.obligation
        self._look([*(t for _, t in o.hypotheses), o.goal], replace(self.situation, state=watched))
        mentioned = self._mentioned("state")
        return {p: _read(watched.get(p)) for p in self.chapter.variables if p in mentioned}

    def _live_statics(self) -> dict[Path, set[Any] | None]:
        """Of the mentioned statics, the arguments that the step or the statement looks at."""
        watched = _watched(self.situation.structure.statics)
        structure = replace(self.situation.structure, statics=watched)
        event = self.obligation.event
        terms = [self.obligation.goal, *(r.term for r in (event.requires if event is not None else ()))]
        self._look(terms, replace(self.situation, structure=structure))
        mentioned = self._mentioned("static")
        return {p: _read(watched.get(p)) for p in self.chapter.statics if p in mentioned}

    @staticmethod
    def _look(terms: Iterable[Term], situation: Decoded) -> None:
        for t in terms:
            try:
                evaluate(t, situation.structure, situation.state, situation.values)
            except (TypeError, KeyError):
                continue

    # -- in words ------------------------------------------------------------------------------------------------

    def _name(self, path: Path) -> str:
        """The last part of a name, or as much of it as tells it from others."""
        names = [*self.chapter.variables, *self.chapter.statics]
        for n in range(1, len(path)):
            if sum(other[-n:] == path[-n:] for other in names) == 1:
                return ".".join(path[-n:])
        return ".".join(path)

    def _facts(
        self,
        values: Mapping[Path, Any],
        live: Mapping[Path, set[Any] | None],
        tell: Callable[[str, Any, set[Any] | None], Iterable[str]],
    ) -> str:
        known = ((p, keys) for p, keys in live.items() if p in values)
        return "; ".join(fact for p, keys in known for fact in tell(self._name(p), values[p], keys))

    def _changes(self, before: State, after: State) -> str:
        told: list[str] = []
        for path in self.chapter.variables:
            old, new = before.get(path), after.get(path)
            if new is None or new == old:
                continue
            if isinstance(new, dict):
                known = old if isinstance(old, dict) else {}
                told += [f"{self._name(path)}[{show(k)}] = {show(v)}" for k, v in new.items() if known.get(k) != v]
            else:
                told.append(f"{self._name(path)} = {show(new)}")
        return "; ".join(told)


def _watched(values: Mapping[Path, Any]) -> dict[Path, Any]:
    return {p: _Watched(v) if isinstance(v, dict) else v for p, v in values.items()}


def _read(value: Any) -> set[Any] | None:
    return value.read if isinstance(value, _Watched) else None


def _cells(name: str, value: Any, keys: set[Any] | None) -> Iterator[str]:
    """The entries of a variable that were looked at and say something."""
    if not isinstance(value, dict):
        yield f"{name} = {show(value)}"
        return
    for key, entry in value.items():
        if (keys is None or key in keys) and entry != frozenset():
            yield f"{name}[{show(key)}] = {show(entry)}"


def _truths(name: str, value: Any, keys: set[Any] | None) -> Iterator[str]:
    """The entries of a static that say something: of a relation, where it holds between different things."""
    if not isinstance(value, dict):
        if isinstance(value, frozenset):
            yield f"{name} = {show(value)}"
        return
    for key, entry in value.items():
        if keys is not None and key not in keys:
            continue
        inside = ", ".join(show(k) for k in key) if isinstance(key, tuple) else show(key)
        if entry is True and not (isinstance(key, tuple) and len(set(key)) == 1):
            yield f"{name}({inside})"
        elif entry is not False and entry is not True:
            yield f"{name}({inside}) = {show(entry)}"
