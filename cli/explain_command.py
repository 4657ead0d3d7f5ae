"""``kvspec explain``: what a name of the specification means, in words and in notation, and whether it is proved."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kvspec.cli.errors import fail_input
from kvspec.cli.mutate_command import manifest_input
from kvspec.cli.options import ForceOption, JsonOption
from kvspec.cli.output import Exit, JsonFile, console, counted, exit_for

if TYPE_CHECKING:
    from kvspec.model.promises import Family
    from kvspec.proofs.verdicts import Result
    from kvspec.spec.language import Chapter
    from kvspec.spec.language.traced import Statement, TracedEvent

NAME_HELP = (
    "A chapter, event, invariant, theorem or loop; CHAPTER.NAME where several chapters have it; the id of a cell, "
    "as kvspec prove prints it; "
    "or FAMILY or FAMILY/RULE, as kvspec conform names what is violated. Without it chapters and families are listed."
)


_JUDGED = ("family", "rule")
"""Kinds of names that are not of the specification, but of what is judged by it."""


@dataclass(frozen=True)
class Entry:
    """One thing that has a name."""

    chapter: str
    name: str
    kind: str

    @property
    def full(self) -> str:
        if self.kind in _JUDGED:
            return self.name
        return self.chapter if self.kind == "chapter" else f"{self.chapter}.{self.name}"


def explain(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help=NAME_HELP, show_default=False)] = None,
    prove: Annotated[bool, typer.Option("--prove/--no-prove", help="Prove it now and say what came out.")] = True,
    json: JsonOption = None,
    force: ForceOption = False,
) -> Exit:
    """Say in words what the spec demands, and why."""
    file = JsonFile(json, force=force)
    if name is None:
        listed = _listed()
        _show_list(listed)
        known = [{"name": entry.full, "kind": entry.kind, "lines": [["says", says]]} for entry, says in listed]
        file.write("explain", {"entries": known}, exit=Exit.HOLDS)
        return Exit.HOLDS
    told, results = [], []
    for entry in _of_obligation(name) or _promised(name) or _found(name):
        lines = list(_lines(entry))
        if prove and entry.kind not in _JUDGED:
            mine = _results(entry)
            lines.append(("proof", _verdicts(entry, mine)))
            results += mine
        with manifest_input():
            lines += _recorded(entry)
        told.append({"name": entry.full, "kind": entry.kind, "lines": [list(line) for line in lines]})
        _show(entry, lines)
    code = exit_for(r.verdict.value for r in results) if results else Exit.HOLDS
    file.write("explain", {"entries": told}, exit=code)
    return code


# -- names -------------------------------------------------------------------------------------------------------------


def _entries() -> Iterator[Entry]:
    from kvspec.spec import CHAPTERS, load

    for chapter in CHAPTERS:
        yield Entry(chapter, chapter, "chapter")
        traced = load(chapter)
        yield from (Entry(chapter, n, "event") for n in traced.event_names)
        groups = {"axiom": traced.axioms, "invariant": traced.invariants, "theorem": traced.theorems}
        for kind, statements in {**groups, "witness": traced.witnesses}.items():
            yield from (Entry(chapter, s.name, kind) for s in statements if "." not in s.name)
        yield from (Entry(chapter, before.name, "loop") for before, _ in traced.loops)


def _of_obligation(name: str) -> list[Entry]:
    """What an obligation is about, if it has that id: its statement, and the event or loop that it is a step of."""
    from kvspec.proofs.campaign import units
    from kvspec.spec import CHAPTERS

    chapter, _, cell = name.partition(".")
    if chapter not in CHAPTERS or not any(name in unit.ids for unit in units([chapter])):
        return []
    row, column = re.split("/|->", cell, maxsplit=1)
    return [e for e in _entries() if e.chapter == chapter and e.name in (row, column)]


def _promised(name: str) -> list[Entry]:
    """The family of that name, or its rule; with what the rule is about in the specification."""
    from kvspec.model.promises import CHAPTER, RULES, STEPS_OF, Family

    family, slash, rule = name.partition("/")
    if family not in frozenset(Family):
        if slash:
            expected = "one of " + ", ".join(Family)
            fail_input(f"there is no family '{family}'", expected=expected)
        return []
    if not slash:
        return [Entry(CHAPTER, family, "family")]
    inside = [e for e in _entries() if e.name == rule.rpartition(".")[2]]
    judged = [e for e in inside if STEPS_OF.get(e.chapter, {}).get(rule) == family]
    is_check = rule in RULES.get(Family(family), {})
    if not judged and (is_check or family == Family.INVARIANT):
        judged = [e for e in inside if is_check or e.kind == "invariant"][:1]
    if not judged and not is_check:
        near = _near(rule, _rules_of(Family(family))) or [n for n in _all_rules() if n.endswith(f"/{rule}")]
        expected = f"perhaps {' or '.join(near)}" if near else f"a rule that kvspec explain {family} lists"
        fail_input(f"there is no rule '{rule}' in family {family}", expected=expected)
    return [Entry(CHAPTER, name, "rule"), *judged]


def _rules_of(family: Family) -> list[str]:
    """The rules of a family; those of `invariant` are all invariants."""
    from kvspec.model.promises import Family, rules_of

    if family is Family.INVARIANT:
        return sorted({e.name for e in _entries() if e.kind == "invariant"})
    return sorted(rules_of(family))


def _all_rules() -> list[str]:
    from kvspec.model.promises import Family

    return [f"{family}/{rule}" for family in Family if family is not Family.INVARIANT for rule in _rules_of(family)]


def _found(name: str) -> list[Entry]:
    from kvspec.model.promises import Family

    entries = list(_entries())
    found = [e for e in entries if name in (e.full, e.name)]
    if not found:
        rules = _all_rules()
        known = {n for e in entries for n in (e.name, e.full)}
        near = [n for n in rules if n.endswith(f"/{name}")] or _near(name, [*known, *Family, *rules])
        expected = f"perhaps {' or '.join(near)}" if near else "what kvspec explain lists"
        fail_input(f"nothing in the specification is called '{name}'", expected=expected)
    return found


def _near(name: str, known: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, sorted(set(known)), n=3)


# -- what is said ------------------------------------------------------------------------------------------------------


def _listed() -> list[tuple[Entry, str]]:
    """Chapters and families, each in a sentence."""
    from kvspec.model.promises import CHAPTER, PROMISES
    from kvspec.spec import CHAPTERS, load

    chapters = [(Entry(name, name, "chapter"), load(name).sentence) for name in CHAPTERS]
    return [*chapters, *((Entry(CHAPTER, family, "family"), promise) for family, promise in PROMISES.items())]


def _show_list(listed: list[tuple[Entry, str]]) -> None:
    out = console()
    width = max(len(entry.name) for entry, _ in listed) + 2
    for kind, title in (("chapter", "chapters"), ("family", "families, as kvspec conform names what is violated")):
        out.print(title, style="bold")
        for entry, says in listed:
            if entry.kind == kind:
                out.print(f"  {entry.name:<{width}}{says}", markup=False, highlight=False)
        out.print()
    out.print("kvspec explain NAME lists what a chapter or a family has, and explains each of that")


def _about_family(name: str) -> Iterator[tuple[str, str]]:
    from kvspec.model.promises import PROMISES, Family

    yield "promise", PROMISES[Family(name)]
    yield "judged", "by kvspec conform, run and replay, call by call"
    if name == Family.INVARIANT:
        yield "rule", "each invariant, as kvspec explain CHAPTER lists them"
        return
    for rule in _rules_of(Family(name)):
        yield "rule", f"{rule}: {_demanded(Family(name), rule)}"


def _about_rule(name: str) -> Iterator[tuple[str, str]]:
    from kvspec.model.promises import PROMISES, Family

    family, _, rule = name.partition("/")
    yield "promise", PROMISES[Family(family)]
    yield "rule", _demanded(Family(family), rule)
    yield "judged", "by kvspec conform, run and replay, call by call"


def _demanded(family: Family, rule: str) -> str:
    from kvspec.model.promises import RULES, STEPS_OF

    if words := RULES.get(family, {}).get(rule):
        return words
    events = [f"{chapter}.{rule}" for chapter, steps in STEPS_OF.items() if steps.get(rule) is family]
    return f"what is required of {' and '.join(events)}" if events else "what the invariant says"


def _lines(entry: Entry) -> Iterator[tuple[str, str]]:
    from kvspec.spec import load

    if entry.kind in _JUDGED:
        yield from _about_family(entry.name) if entry.kind == "family" else _about_rule(entry.name)
        return
    chapter = load(entry.chapter)
    match entry.kind:
        case "chapter":
            yield from _about_chapter(chapter)
        case "event":
            yield from _about_event(chapter, chapter.event(entry.name))
        case "loop":
            yield from _about_loop(chapter, entry.name)
        case _:
            yield from _about_statement(chapter, entry)
    yield "seed", _seed(chapter)


def _about_chapter(chapter: Chapter) -> Iterator[tuple[str, str]]:
    from kvspec.spec.language.prose import render_variable

    yield "says", chapter.sentence
    for variable in chapter.variables.values():
        yield "state", render_variable(variable)
    for name in chapter.event_names:
        yield "event", f"{name}: {chapter.event(name).sentence}"
    for kind, statements in (("invariant", chapter.invariants), ("theorem", chapter.theorems)):
        for s in statements:
            yield kind, f"{s.name}: {s.sentence}"


def _about_event(chapter: Chapter, event: TracedEvent) -> Iterator[tuple[str, str]]:
    from kvspec.spec.language.prose import render, render_effect, render_sort, unambiguous

    names = unambiguous([*chapter.variables, *chapter.statics])
    yield "says", event.sentence
    yield "line", str(event.where)
    for parameter in event.parameters:
        yield "given", f"{parameter.data[0]}: {render_sort(parameter.sort)}"
    for requirement in event.requires:
        yield "requires", f"{render(requirement.term, names)}   ({requirement.where})"
    for owed in event.owed:
        yield "owes", f"to {owed.callee}: {render(owed.term, names)}"
    for effect in event.effects:
        yield "does", render_effect(effect, names)


def _about_loop(chapter: Chapter, name: str) -> Iterator[tuple[str, str]]:
    from kvspec.spec.language.prose import render, unambiguous

    names = unambiguous([*chapter.variables, *chapter.statics])
    parts = next(before for before, _ in chapter.loops if before.name == name)
    yield "says", parts.sentence
    yield "line", str(parts.where)
    yield "step", parts.step
    pieces = {"starts": parts.start, "keeps": parts.keep, "while": parts.again, "falls": parts.measure}
    for label, term in {**pieces, "result": parts.result}.items():
        yield label, render(term, names)


def _about_statement(chapter: Chapter, entry: Entry) -> Iterator[tuple[str, str]]:
    from kvspec.spec.language.prose import render, told_apart, unambiguous

    names = unambiguous([*chapter.variables, *chapter.statics])
    statement = _statement(chapter, entry)
    yield "says", statement.sentence
    yield "line", str(statement.where)
    if statement.after is not None:
        yield "after", f"{statement.after} (in terms of the state before it)"
    yield "formula", render(told_apart(statement.term), names)
    if entry.kind == "invariant":
        yield "touched", ", ".join(_touching(chapter, statement)) or "by no event"


def _statement(chapter: Chapter, entry: Entry) -> Statement:
    groups = {"axiom": chapter.axioms, "invariant": chapter.invariants, "theorem": chapter.theorems}
    statements = {**groups, "witness": chapter.witnesses}[entry.kind]
    return next(s for s in statements if s.name == entry.name)


def _touching(chapter: Chapter, statement: Statement) -> list[str]:
    """Events that write what the statement reads."""
    from kvspec.spec.language.terms import subterms

    reads = {t.data for t in subterms(statement.term) if t.op == "state"}
    return [n for n in chapter.event_names if reads & {e.path for e in chapter.event(n).effects}]


def _seed(chapter: Chapter) -> str:
    """The sections of the seed that the chapter's text names."""
    text = sys.modules[chapter.cls.__module__].__doc__ or ""
    found = re.search(r"\(seed ([^;:)]*)", text)
    return "section " + ", ".join(re.findall(r"\d+(?:\.\d+)*", found[1])) if found else "not named"


# -- proof -------------------------------------------------------------------------------------------------------------


def _results(entry: Entry) -> list[Result]:
    from kvspec.proofs.campaign import prove_units, units
    from kvspec.proofs.prove import Options

    only = {
        "chapter": ["*"],
        "event": [f"{entry.chapter}.{entry.name}/*", f"{entry.chapter}.{entry.name}->*"],
        "loop": [f"{entry.chapter}.{entry.name}/*"],
    }.get(entry.kind, [f"*/{entry.name}"])
    work = units([entry.chapter], only)
    return [result for _, results in prove_units(work, Options()) for result in results]


def _verdicts(entry: Entry, results: list[Result]) -> str:
    if not results:
        return "a situation that some run must reach" if entry.kind == "witness" else "nothing to prove: it is assumed"
    counts: dict[str, int] = {}
    for r in results:
        counts[r.verdict.value] = counts.get(r.verdict.value, 0) + 1
    told = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    failed = [r.id for r in results if r.verdict.value != "proved"]
    more = f" ({', '.join(failed)})" if failed else ""
    return f"{told} of {len(results)}, for pools of any size, by z3{more}"


# -- the manifest -----------------------------------------------------------------------------------------------------


def _recorded(entry: Entry) -> Iterator[tuple[str, str]]:
    """What the manifest knows: where it says something in a run, and what turns it red."""
    from kvspec.proofs.manifest.compare import accepted, contents_of
    from kvspec.proofs.manifest.record import load_record

    record = load_record(entry.chapter) if entry.kind in ("event", "invariant", "theorem", "witness") else None
    if record is None:
        return
    stale = [f.what for f in contents_of(record) if f.what.startswith(f"{entry.name}: ")]
    for what in stale:
        told = f"{what.partition(': ')[2]}: what follows was seen of an earlier text"
        yield "stale", f"{told} (kvspec manifest --update)"
    if any("a new" in what for what in stale):
        return
    if entry.kind == "witness":
        met = next((w.witness for w in record.witnesses if w.name == entry.name), None)
    elif entry.kind == "event":
        met = next((e.witness for e in record.events if e.name == entry.name), None)
    else:
        stated = next((s for s in (*record.invariants, *record.theorems) if s.name == entry.name), None)
        met = stated.witness if stated is not None else None
        reasons = accepted()
        if (reason := {**reasons.no_killer, **reasons.no_bound}.get(entry.full)) is not None:
            yield "accepted", reason
        if stated is not None:
            yield from (("red at", killer.partition(".")[2]) for killer in stated.killers)
            if stated.bound is not None:
                b = stated.bound
                mistake = b.mutant.partition(".")[2]
                yield "first", f"seen broken in {b.scope}, after {counted(b.steps, 'step')}: {mistake}"
                yield from (("run", step) for step in b.run)
    if met is not None:
        yield "met", f"in {met.scope}, after {counted(met.steps, 'step')}"
    if entry.kind == "event":
        fates = [f.by or f.verdict for f in record.mutants if f.id.startswith(f"{entry.chapter}.{entry.name}: ")]
        told = ", ".join(f"{fates.count(word)} {_FATES[word]}" for word in _FATES if word in fates)
        yield "mutants", f"{len(fates)}: {told}"


_FATES = {
    "proof": "killed by proof", "exploration": "killed by exploration", "test": "killed by a test",
    "equivalent": "equivalent", "alive": "alive",
}  # fmt: skip


def _show(entry: Entry, lines: list[tuple[str, str]]) -> None:
    out = console()
    out.print(f"{entry.full}   {entry.kind}", style="bold")
    last = ""
    for label, text in lines:
        out.print(f"  {label if label != last else '':<10} {text}", markup=False, highlight=False)
        last = label
    out.print()
