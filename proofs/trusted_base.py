"""The generated parts of ``docs/trusted-base.md``: what the text assumes, and what the manifests say of the rest.

A part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. In a checkout,

    python -m kvspec.proofs.trusted_base

writes all parts anew. Nothing is proved or explored for it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from kvspec.proofs.cardinality import FACTS
from kvspec.proofs.confirm import cut_short
from kvspec.proofs.manifest.compare import accepted
from kvspec.proofs.manifest.record import ObligationEntry, Record, load_record
from kvspec.proofs.mutation.campaign import by_verdict
from kvspec.proofs.mutation.kill import KILLED
from kvspec.proofs.mutation.mutants import STATED
from kvspec.proofs.obligations import ChapterObligations
from kvspec.spec import CHAPTERS, load
from kvspec.spec.language.prose import render, unambiguous

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "trusted-base.md"
PINNED: Final = ROOT / "constraints.txt"
MARKED: Final = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


class PageError(Exception):
    """The page cannot be generated: where, what, and what was expected."""


# -- the parts ---------------------------------------------------------------------------------------------------------


def axioms() -> Iterator[str]:
    """The axioms of each chapter, in words and in notation."""
    for name in CHAPTERS:
        chapter = load(name)
        names = unambiguous([*chapter.variables, *chapter.statics])
        own = [s for s in chapter.axioms if "." not in s.name]
        yield f"- `{name}`" + ("" if own else ": none of its own")
        for s in own:
            yield f"  - `{s.name}`: {s.sentence}"
            yield ""
            yield f"        {render(s.term, names)}"
            yield ""


def versions() -> Iterator[str]:
    """The programs that decide verdicts, with the versions that they are pinned to."""
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", PINNED.read_text(encoding="utf-8"), flags=re.MULTILINE))
    yield from _table(("program", "version", "decides"), [(p, pinned[p], what) for p, what in _PROGRAMS.items()])


_PROGRAMS: Final = MappingProxyType(
    {
        "z3-solver": "every proof; with enumerated sorts every finite model and counterexample",
        "cvc5": "every proof once more, where both are asked; the facts about sizes",
        "crosshair-tool": "contracts of the pure functions",
        "torch": "explorations (integers only), and the manager that comes with kvspec",
    }
)


def obligations() -> Iterator[str]:
    """How many obligations there are, and how far each verdict goes."""
    records = _records()
    titles = ("chapter", "obligations", "both solvers", "one solver", *_POSSIBLE, "elements", "assumes")
    rows = [(*_obligation_row(r.chapter, r.obligations), r.hypotheses or "nothing") for r in records]
    yield from _table(titles, rows, _sums(rows, up_to=len(titles) - 2))
    yield ""
    yield f"Beside them, {len(FACTS)} facts about sizes of finite sets, by cvc5 alone."
    yield ""
    asked = [o for name in CHAPTERS for o in ChapterObligations(name, load(name)) if o.kind != "possible"]
    endless = [o.id for o in asked if cut_short(o)]
    yield f"Proofs that no finite scope could refute (a counterexample would need all numbers): {_listed(endless)}"


_POSSIBLE: Final = ("can_start", "can_fire", "can_run", "can_hold", "can_fail")


def _obligation_row(chapter: str, found: Sequence[ObligationEntry]) -> tuple[object, ...]:
    shown = [o for o in found if o.effort == "model"]
    solvers = Counter(len(o.solvers) for o in found if o.effort != "model")
    kinds = Counter(next(k for k in _POSSIBLE if k in o.id) for o in shown)
    elements = max(int(n) for o in shown for n in re.findall(r"\d+", o.scope) or ["0"])
    return (chapter, len(found), solvers[2], solvers[1], *(kinds[k] for k in _POSSIBLE), elements)


def explorations() -> Iterator[str]:
    """What was explored, and how many invariants are seen broken there by a mistake."""
    records = _records()
    entries = [(r.chapter, e) for r in records for e in r.explorations]
    rows = [
        (chapter, f"`{e.scope}`", f"{e.distinct:,}", f"{e.generated:,}", e.depth, "yes" if e.covers else "no")
        for chapter, e in entries
    ]
    yield from _table(("chapter", "scope", "classes", "steps", "depth", "covers every larger pool"), rows)
    yield ""
    invariants = [s for r in records for s in r.invariants]
    bound = sum(s.bound is not None for s in invariants)
    yield f"{bound} of {len(invariants)} invariants are broken there by some mistake in an event."


def mutants() -> Iterator[str]:
    """What became of the mistakes that the machine made."""
    records = _records()
    rows = [(r.chapter, len(r.mutants), *by_verdict(r.mutants).values()) for r in records]
    titles = ("chapter", "mutants", "killed by proof", "by exploration", "by a test", "equivalent", "alive")
    yield from _table(titles, rows, _sums(rows))
    yield ""
    notes = Counter((f.verdict, f.note) for r in records for f in r.mutants if f.note and f.verdict != "alive")
    for (verdict, note), number in notes.most_common():
        yield f"- {number} {verdict}: {note}"
    yield ""
    alone = [f.id for r in records for f in r.mutants if f.failing and all(".can_fail/" in id for id in f.failing)]
    yield f"Noticed by their own `can_fail` and by nothing else: {_listed(alone)}"
    yield ""
    unmoved = [f"{r.chapter}.{s.name}" for r in records for s in r.invariants if not _moved(r, s.name)]
    yield f"Invariants that no mistake in an event or in the start turns red: {_listed(unmoved)}"


def _moved(record: Record, invariant: str) -> bool:
    """Whether a mutant of an event or of the start makes this invariant red."""
    elsewhere = tuple(f"{record.chapter}.{row}: " for row in STATED)
    dead = (f for f in record.mutants if f.verdict == KILLED and not f.id.startswith(elsewhere))
    return any(id.rpartition("/")[2] == invariant for f in dead for id in (f.killer, *f.failing))


def exceptions() -> Iterator[str]:
    """What is accepted although nothing speaks for it, each with its reason."""
    reasons = accepted()
    groups = {
        "Mutants that nothing kills": reasons.alive,
        "Invariants that no exploration sees broken by a mistake": reasons.no_bound,
        "Statements that no mutant turns red": reasons.no_killer,
    }
    for title, found in groups.items():
        yield f"{title}:"
        yield ""
        yield from (f"- `{id}`: {reason}" for id, reason in found.items())
        if not found:
            yield "- none"
        yield ""


PARTS: Final[Mapping[str, Callable[[], Iterable[str]]]] = MappingProxyType(
    {f.__name__: f for f in (axioms, versions, obligations, explorations, mutants, exceptions)}
)


# -- the page ----------------------------------------------------------------------------------------------------------


def rewritten(text: str) -> str:
    """A page with all its generated parts as they are now.

    Raises:
        PageError: a part has a name that nothing generates, or no end.
        ManifestError: a manifest or the reasons cannot be read.
    """
    if text.count("<!-- generated:") != len(MARKED.findall(text)):
        raise PageError("a generated part is not marked as such, expected <!-- generated: NAME --> ... <!-- end -->")
    return MARKED.sub(_part, text)


def _part(found: re.Match[str]) -> str:
    begin, name, end = found.groups()
    if name not in PARTS:
        raise PageError(f"generated part '{name}', expected one of {', '.join(PARTS)}")
    lines = "\n".join(PARTS[name]()).strip("\n")
    return f"{begin}\n{lines}\n\n{end}"


def main(page: Path = PAGE) -> int:
    """Write the page anew; 2 where there is none."""
    if not page.is_file():
        print(f"{page}: there is no such page, expected a checkout of kvspec", file=sys.stderr)
        return 2
    old = page.read_text(encoding="utf-8")
    new = rewritten(old)
    page.write_text(new, encoding="utf-8")
    print(f"{page.name}: {'as it was' if new == old else 'written'}")
    return 0


# -- tables ------------------------------------------------------------------------------------------------------------


def _records() -> list[Record]:
    return [record for name in CHAPTERS if (record := load_record(name)) is not None]


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]], last: Sequence[object] = ()) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for row in [*rows, *([last] if last else [])]:
        yield f"| {' | '.join(map(str, row))} |"


def _sums(rows: Sequence[Sequence[object]], up_to: int | None = None) -> list[object]:
    """A last row with the sum of each column; columns from ``up_to`` on have none."""
    columns = list(zip(*rows, strict=True))[1:up_to]
    sums: list[object] = ["all", *(sum(int(str(n)) for n in column) for column in columns)]
    return [*sums, *[""] * (len(rows[0]) - len(sums))]


def _listed(ids: Sequence[str]) -> str:
    return f"{', '.join(f'`{id}`' for id in ids)}." if ids else "none."


if __name__ == "__main__":
    sys.exit(main())
