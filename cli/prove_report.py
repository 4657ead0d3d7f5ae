"""How results of proofs are shown: a matrix for each chapter, a line for each cell that needs one, a summary."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kvspec.cli.output import counted, padded
from kvspec.proofs.verdicts import Result, Verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

NAMED = 5
"""So many cells are named in the last line."""

_MARKS: Mapping[Verdict, tuple[str, str, str]] = {
    Verdict.PROVED: ("✓", "+", "green"),
    Verdict.REFUTED: ("✗", "X", "bold red"),
    Verdict.UNKNOWN: ("?", "?", "yellow"),
    Verdict.VACUOUS: ("∅", "0", "yellow"),
}


def mark(verdict: Verdict) -> str:
    """One character, one that the output can write."""
    fine, plain, _ = _MARKS[verdict]
    try:
        fine.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return plain
    return fine


def show_chapter(
    console: Console,
    name: str,
    sentence: str,
    results: Sequence[Result],
    saved: Mapping[str, str],
    *,
    brief: bool = False,
) -> None:
    """The matrix of a chapter and what has to be said beside it; in brief one line if everything is proved."""
    if brief and all(r.verdict is Verdict.PROVED for r in results):
        seconds = sum(r.seconds for r in results)
        console.print(
            f"{mark(Verdict.PROVED)} {padded(name)}{counted(len(results), 'obligation')} proved   {seconds:.2f} s"
        )
        show_failures(console, results, saved)
        return
    console.print(f"{name}: {sentence}", style="bold")
    invariants = list(dict.fromkeys(r.column for r in results if r.kind == "invariant"))
    rows = list(dict.fromkeys(r.row for r in results if r.row != "theorem"))
    if rows:
        console.print(_matrix(rows, invariants, results))
    sentences = {r.column: r.sentence for r in results}
    for number, column in enumerate(invariants, 1):
        console.print(f"  {number:>2}  {column}: {sentences[column]}")
    for r in results:
        if r.kind in ("theorem", "loop"):
            console.print(line(r), style=style(r))
    console.print()
    show_failures(console, results, saved)


def _matrix(rows: Sequence[str], invariants: Sequence[str], results: Sequence[Result]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), pad_edge=True)
    titles = ["", "can happen", "may call", *map(str, range(1, len(invariants) + 1)), "then", "time"]
    for title in titles:
        table.add_column(title, justify="right" if title == "time" else "left" if title == "" else "center")
    for row in rows:
        mine = [r for r in results if r.row == row]
        others = [r for r in mine if r.column not in invariants]
        cells = [_marks(r for r in others if r.kind == kind) for kind in ("possible", "call")]
        cells += [_marks(r for r in mine if r.column == column) for column in invariants]
        cells.append(_marks(r for r in mine if r.kind in ("theorem", "loop")))
        table.add_row(row, *cells, f"{sum(r.seconds for r in mine):.2f} s")
    return table


def _marks(results: Iterable[Result]) -> Text:
    from rich.text import Text

    text = Text()
    for r in results:
        text.append(mark(r.verdict), style=style(r))
    return text


def style(result: Result) -> str:
    """The colour of a verdict."""
    return _MARKS[result.verdict][2]


def line(r: Result) -> str:
    """One result in one line."""
    solvers = "+".join(name for name, said in r.solvers.items() if said == "proved")
    by = f" by {solvers}" if solvers else ""
    note = f"; {r.note}" if r.note else ""
    name = r.column if r.row == "theorem" else f"{r.row} / {r.column}"
    says = f"  {mark(r.verdict)}  {name}: {r.sentence}"
    return f"{says}  ({r.verdict.value}, {r.scope}{by}, {r.seconds:.2f} s{note})"


def show_failures(console: Console, results: Iterable[Result], saved: Mapping[str, str]) -> None:
    """Every cell that is not proved, with its counterexample; and those that only one solver proved."""
    for r in results:
        if r.verdict is not Verdict.PROVED:
            _show_failure(console, r, saved.get(r.id))
        elif r.note:
            console.print(line(r))


def _show_failure(console: Console, r: Result, saved: str | None) -> None:
    found = r.counterexample
    parts = [f"{r.row} / {r.column}", r.verdict.value.upper(), r.scope if found is None else found.size]
    parts += [f"{r.seconds:.2f} s"]
    parts += ["confirmed by the concrete reading"] if found is not None else []
    console.print("   ".join(parts), style=style(r))
    lines = [("note", r.note)] if r.note else []
    lines += list(found.lines) if found is not None else [("says", r.sentence), ("at", r.where)]
    lines += [("run it", saved)] if saved is not None else []
    for label, text in lines:
        console.print(f"  {label:<8} {text}")
    console.print()


def summary(results: Sequence[Result], seconds: float, solvers: Sequence[str]) -> str:
    """How many obligations, what became of them, how long it took."""
    counts = {v: sum(r.verdict is v for r in results) for v in Verdict}
    what = ", ".join(f"{n} {v.value}" for v, n in counts.items() if n)
    chapters = len({r.chapter for r in results})
    return (
        f"{counted(len(results), 'obligation')} in {counted(chapters, 'chapter')}: {what or 'nothing was checked'} "
        f"(proofs unbounded, by {' and '.join(solvers)}), {seconds:.1f} s"
    )


def not_proved(results: Sequence[Result]) -> str:
    """The names of what is not proved, such as ``2 refuted: CELL, CELL; 1 unknown: CELL``; empty if all is."""
    parts = []
    for verdict in (Verdict.REFUTED, Verdict.UNKNOWN, Verdict.VACUOUS):
        if names := [r.id for r in results if r.verdict is verdict]:
            more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
            parts.append(f"{len(names)} {verdict.value}: {', '.join(names[:NAMED] + more)}")
    return "; ".join(parts)


def as_json(r: Result) -> dict[str, object]:
    """A result as ``--json`` writes it."""
    found = r.counterexample
    body: dict[str, object] = {
        "id": r.id, "chapter": r.chapter, "row": r.row, "column": r.column, "sentence": r.sentence, "line": r.where,
        "verdict": r.verdict.value, "scope": r.scope, "solvers": r.solvers, "seconds": round(r.seconds, 4),
    }  # fmt: skip
    if r.note:
        body["note"] = r.note
    if found is not None:
        body["counterexample"] = {
            "size": found.size, "reached": found.reached, "lines": dict(found.lines), "state": found.state,
        }  # fmt: skip
    return body


def message(r: Result) -> str:
    """What a JUnit report says of a cell that is not proved."""
    head = f"{r.row} / {r.column} {r.verdict.value}: {r.sentence} ({r.where})"
    lines = [head, *([r.note] if r.note else [])]
    if r.counterexample is not None:
        lines += [f"{label}: {text}" for label, text in r.counterexample.lines]
    return "\n".join(lines)
