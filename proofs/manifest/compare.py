"""The manifest against the text and against what ran: what no longer fits, in words.

- *stale*: the text says something else than what was judged; nothing is known of the new text yet.
- *changed*: something ran and came out otherwise.
- *bare*: a statement that nothing speaks for: no obligation, no run in which it says something, no mistake that turns
  it red.
- *alive*: a mutant that nobody killed, and no reason is written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import msgspec.toml

from kvspec.model.exploring.outcome import Outcome
from kvspec.proofs.manifest.bounds import mistakes
from kvspec.proofs.manifest.build import exploration_entry
from kvspec.proofs.manifest.record import FOLDER, ManifestError, Record
from kvspec.proofs.mutation.campaign import makes_sense
from kvspec.proofs.mutation.key import key, row_keys, statement_content
from kvspec.proofs.mutation.kill import ALIVE, PROOF, known
from kvspec.proofs.prove import SOLVERS
from kvspec.proofs.verdicts import Result
from kvspec.spec import CHAPTERS, load

STALE, CHANGED, BARE, LIVING = "stale", "changed", "bare", "alive"
MOST_ALIVE = 0.02
"""The share of mutants that may be alive for a reason."""


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit."""

    kind: str
    chapter: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.chapter}.{self.what}"


class Accepted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is accepted, each with its reason.

    Attributes:
        alive: mutants that nobody killed.
        no_bound: invariants (``chapter.invariant``) that no exploration sees broken by a mistake.
        no_killer: invariants and theorems (``chapter.name``) that no mutant turns red.
    """

    alive: dict[str, str] = {}
    no_bound: dict[str, str] = {}
    no_killer: dict[str, str] = {}


def accepted(folder: Path = FOLDER) -> Accepted:
    """The reasons that are written down.

    Raises:
        ManifestError: the file of reasons cannot be read.
    """
    path = folder / "reasons.toml"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Accepted)
    except (OSError, msgspec.MsgspecError) as error:
        expected = "tables 'alive', 'no_bound' and 'no_killer' of reasons"
        raise ManifestError(f"{path}: {error}, expected {expected}") from error


# -- the text ----------------------------------------------------------------------------------------------------------


def of_text(record: Record) -> Iterator[Finding]:
    """What the text says now and the manifest does not know, or knows otherwise."""
    yield from contents_of(record)
    yield from _mutants(record)


def contents_of(record: Record) -> Iterator[Finding]:
    """The same of statements and events."""
    name = record.chapter
    chapter = load(name)
    sections = (
        ("invariant", chapter.invariants, record.invariants),
        ("theorem", chapter.theorems, record.theorems),
        ("witness", chapter.witnesses, record.witnesses),
    )
    for kind, statements, entries in sections:
        said = [(s.name, statement_content(chapter, s)) for s in statements]
        yield from _contents(name, kind, said, {e.name: e.content for e in entries})
    events = [(e, row_keys(name)[e]) for e in chapter.event_names]
    yield from _contents(name, "event", events, {e.name: e.key for e in record.events})


def _contents(
    chapter: str, kind: str, now: Sequence[tuple[str, str]], before: Mapping[str, str]
) -> Iterator[Finding]:
    for name, content in now:
        if name not in before:
            yield Finding(STALE, chapter, f"{name}: a new {kind}")
        elif before[name] != content:
            rests = "what it rests on has changed" if kind == "event" else "it says something else now"
            yield Finding(STALE, chapter, f"{name}: {rests}")
    for name in before.keys() - dict(now).keys():
        yield Finding(STALE, chapter, f"{name}: this {kind} is gone")


def _mutants(record: Record) -> Iterator[Finding]:
    now = known(record.chapter)
    before = {f.id: f for f in record.mutants}
    new = [id for id, m in now.items() if id not in before or before[id].key != key(m, before[id].by)]
    gone = before.keys() - now.keys()
    if new or gone:
        told = f"{len(new)} of {len(now)} mutants not judged on this text" + (f", {len(gone)} gone" if gone else "")
        yield Finding(STALE, record.chapter, f"mutants: {told} (kvspec mutate, kvspec manifest --update)")


# -- what ran ----------------------------------------------------------------------------------------------------------


def of_results(record: Record, results: Iterable[Result]) -> Iterator[Finding]:
    """Obligations that came out otherwise, or that the manifest does not have."""
    before = {o.id: o for o in record.obligations}
    ran = list(results)
    for r in ran:
        short = r.id.partition(".")[2]
        if r.id not in before:
            yield Finding(STALE, record.chapter, f"{short}: a new obligation")
        elif strangers := set(before[r.id].solvers) - set(SOLVERS):
            yield Finding(CHANGED, record.chapter, f"{short}: no solver is called {', '.join(sorted(strangers))}")
        elif (before[r.id].verdict, before[r.id].scope) != (r.verdict.value, r.scope):
            was = before[r.id]
            what = f"{short}: {r.verdict.value} ({r.scope}), was {was.verdict} ({was.scope})"
            yield Finding(CHANGED, record.chapter, what)
    for id in before.keys() - {r.id for r in ran}:
        yield Finding(STALE, record.chapter, f"{id.partition('.')[2]}: this obligation is gone")


def of_outcomes(record: Record, outcomes: Iterable[Outcome]) -> Iterator[Finding]:
    """Explorations that counted otherwise."""
    before = {(e.scope, e.states): e for e in record.explorations}
    for outcome in outcomes:
        entry = exploration_entry(outcome)
        was = before.get((entry.scope, entry.states))
        if was is None:
            yield Finding(STALE, record.chapter, f"exploration of {entry.scope}: not in the manifest")
        elif was != entry:
            counts = f"{entry.distinct} states, {entry.generated} steps, depth {entry.depth}"
            old = f"{was.distinct} states, {was.generated} steps, depth {was.depth}"
            yield Finding(CHANGED, record.chapter, f"exploration of {entry.scope}: {counts}; it was {old}")


def of_rebuilt(record: Record, rebuilt: Record) -> Iterator[Finding]:
    """What is written down otherwise than it follows from what has run: counts, witnesses, killers."""
    before, after = _entries(record), _entries(rebuilt)
    for place in (p for p in after if p in before and p[0] != "exploration"):  # that is told of by `of_outcomes`
        section, name = place
        if section == "obligation":  # who proved it, and how hard it was, depends on who was asked
            told = _difference(_only(before[place], "shape"), _only(after[place], "shape"))
        else:
            told = _difference(before[place], after[place])
        if told:
            yield Finding(CHANGED, record.chapter, f"{name}: written down otherwise than it comes out: {told}")
    for section, name in before.keys() - after.keys():
        if section == "exploration":
            yield Finding(STALE, record.chapter, f"{name}: this exploration has not run")


def _only(entry: Mapping[str, object], field: str) -> dict[str, object]:
    return {field: entry.get(field)}


# -- the manifest itself -----------------------------------------------------------------------------------------------


def of_itself(record: Record, reasons: Accepted) -> Iterator[Finding]:
    """Statements that nothing speaks for, and mutants that nobody killed."""
    name = record.chapter
    for s in (*record.invariants, *record.theorems):
        excused = f"{name}.{s.name}" in reasons.no_killer
        if excused and s.killers:
            yield Finding(STALE, name, f"{s.name}: a reason for a statement that has a killer")
        lacks = [
            word
            for word, there in (("obligation", s.obligations), ("witness", s.witness), ("killer", s.killers or excused))
            if not there
        ]
        if lacks:
            yield Finding(BARE, name, f"{s.name}: no {', no '.join(lacks)}")
    yield from _bounds(record, reasons)
    for e in record.events:
        if e.witness is None:
            yield Finding(BARE, name, f"{e.name}: no run in which it happens and changes something")
    for w in record.witnesses:
        if w.witness is None:
            yield Finding(BARE, name, f"{w.name}: no run reaches it")
    yield from _verdicts(record)
    alive = [f.id for f in record.mutants if f.verdict == ALIVE]
    for id in alive:
        if id not in reasons.alive:
            yield Finding(LIVING, name, f"{id.partition('.')[2]}")


def _verdicts(record: Record) -> Iterator[Finding]:
    """Each mutant once, with a verdict that there is, killed by something that there is."""
    name = record.chapter
    ids = [f.id for f in record.mutants]
    for id in sorted({id for id in ids if ids.count(id) > 1}):
        yield Finding(CHANGED, name, f"{id.partition('.')[2]}: it stands there more than once")
    killers = {o.id for o in record.obligations} | set(ids)
    for f in record.mutants:
        stranger = f.by == PROOF and f.killer.startswith(f"{name}.") and f.killer not in killers
        if stranger or not makes_sense(f):
            told = f"{f.verdict} by {f.by or 'nobody'}: {f.killer or 'nothing'}"
            yield Finding(CHANGED, name, f"{f.id.partition('.')[2]}: no judgement reads {told}")


def _bounds(record: Record, reasons: Accepted) -> Iterator[Finding]:
    """Each invariant is seen broken by a mistake in one of the scopes that are explored."""
    explored = {e.scope for e in record.explorations}
    for s in record.invariants:
        id = f"{record.chapter}.{s.name}"
        if s.bound is None and id not in reasons.no_bound:
            yield Finding(BARE, record.chapter, f"{s.name}: no exploration sees a mistake break it")
        elif s.bound is not None and s.bound.mutant not in mistakes(s.name, record.mutants):
            yield Finding(CHANGED, record.chapter, f"{s.name}: {s.bound.mutant} is no mistake that breaks it")
        elif s.bound is not None and s.bound.scope not in explored:
            yield Finding(BARE, record.chapter, f"{s.name}: {s.bound.scope} is not explored, and only there it shows")
        elif s.bound is not None and id in reasons.no_bound:
            yield Finding(STALE, record.chapter, f"{s.name}: a reason for an invariant that has a bound")


def of_reasons(records: Sequence[Record], reasons: Accepted) -> Iterator[Finding]:
    """Reasons for mutants that are not alive, and too many that are."""
    alive = {f.id for r in records for f in r.mutants if f.verdict == ALIVE}
    for id in reasons.alive.keys() - alive:
        chapter, _, rest = id.partition(".")
        if chapter in {r.chapter for r in records}:
            yield Finding(STALE, chapter, f"{rest}: a reason for a mutant that is not alive")
    statements = {f"{r.chapter}.{s.name}" for r in records for s in (*r.invariants, *r.theorems)}
    for id in {*reasons.no_bound, *reasons.no_killer} - statements:
        chapter, _, rest = id.partition(".")
        if chapter not in CHAPTERS or chapter in {r.chapter for r in records}:
            yield Finding(STALE, chapter, f"{rest}: a reason for a statement that is not there")
    total = sum(len({f.id for f in r.mutants}) for r in records)
    if len(alive) > MOST_ALIVE * total:
        yield Finding(LIVING, "all", f"{len(alive)} of {total} mutants, at most 2 in 100 may be")


def changes(old: Record | None, new: Record) -> Iterator[str]:
    """What is different in a new manifest: a line for each entry that says something else, and one for all that were
    judged on another text and came out as before."""
    before = {} if old is None else _entries(old)
    after = _entries(new)
    again = 0
    for place, entry in after.items():
        if place not in before:
            yield f"+ {' '.join(place)}"
        elif told := _difference(before[place], entry):
            yield f"~ {' '.join(place)}: {told}"
        elif before[place] != entry:
            again += 1
    if again:
        yield f"~ {again} of {new.chapter} judged again, as before"
    for place in before.keys() - after.keys():
        yield f"- {' '.join(place)}"


def _entries(record: Record) -> dict[tuple[str, str], dict[str, object]]:
    parts = msgspec.to_builtins(record)
    found: dict[tuple[str, str], dict[str, object]] = {("hypotheses", record.chapter): {"shape": record.hypotheses}}
    for section in _SECTIONS:
        for entry in parts[section]:
            name = entry.get("id") or entry.get("name") or f"{record.chapter} {entry['scope']} {entry['states']}"
            entry.pop("effort", None)  # what a proof costs is told, not promised
            found[_SECTIONS[section], name] = entry
    return found


_SECTIONS = {
    "obligations": "obligation", "invariants": "invariant", "theorems": "theorem", "events": "event",
    "witnesses": "witness", "mutants": "mutant", "explorations": "exploration",
}  # fmt: skip


def _difference(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    names = [n for n in (*new, *(o for o in old if o not in new)) if n not in ("key", "content")]
    return ", ".join(f"{n} {_change(old.get(n), new.get(n))}" for n in names if old.get(n) != new.get(n))


def _change(old: object, new: object) -> str:
    """What has gone from a list and what has come to it; of anything else what it was and what it is."""
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return " ".join([*(f"-[{x}]" for x in old if x not in new), *(f"+[{x}]" for x in new if x not in old)])
    return f"{'nothing' if old is None else old} -> {'nothing' if new is None else new}"
