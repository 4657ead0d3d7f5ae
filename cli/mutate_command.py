"""``kvspec mutate``: the specification with one mistake at a time, and what turns red at it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from kvspec.cli.errors import fail_input
from kvspec.cli.options import ForceOption, JsonOption
from kvspec.cli.output import Exit, JsonFile, console, counted, on_interrupt, progress
from kvspec.cli.prove_command import CHAPTERS_HELP

if TYPE_CHECKING:
    from rich.console import Console

    from kvspec.proofs.mutation.kill import Fate
    from kvspec.proofs.verdicts import Result

NOTEBOOK = Path(".kvspec/mutants.jsonl")


def mutate(
    chapter: Annotated[str, typer.Option("--chapter", metavar="NAME,...", help=CHAPTERS_HELP)] = "",
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; 0 means one for each processor.")] = 0,
    again: Annotated[bool, typer.Option("--again", help="Judge all of them, also those that are known.")] = False,
    each: Annotated[bool, typer.Option("--each", help="A line for every mutant, not only for those alive.")] = False,
    notebook: Annotated[Path, typer.Option(metavar="FILE", help="Where fates are kept as they get known.")] = NOTEBOOK,
    json: JsonOption = None,
    force: ForceOption = False,
) -> Exit:
    """Make one mistake at a time in the spec; see what turns red."""
    json_file = JsonFile(json, force=force)
    with manifest_input():
        run = MutationRun(spec_chapters(chapter), notebook, again)

    def finish(complete: bool) -> None:
        run.show(complete, each)
        json_file.write("mutate", run.as_json(), exit=run.exit(complete), complete=complete)

    with on_interrupt(lambda: finish(False)):
        run.run(jobs)
    finish(True)
    return run.exit(True)


@contextmanager
def manifest_input() -> Iterator[None]:
    """A manifest that cannot be read is bad input."""
    from kvspec.proofs.manifest.record import ManifestError

    try:
        yield
    except ManifestError as error:
        fail_input(str(error))


def _no_notebook(what: str) -> NoReturn:
    fail_input(what, where="--notebook", expected="a file of fates, or a new one")


def spec_chapters(text: str) -> list[str]:
    """Chapters of the specification by name, separated by commas; all of them for an empty text."""
    from kvspec.spec import CHAPTERS

    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())) or list(CHAPTERS)
    for name in names:
        if name not in CHAPTERS:
            fail_input(f"unknown chapter '{name}'", where="--chapter", expected=f"one of {', '.join(CHAPTERS)}")
    return names


class MutationRun:
    """The mutants of some chapters, and what has become of them so far."""

    def __init__(self, chapters: Sequence[str], notebook: Path, again: bool = False) -> None:
        from kvspec.proofs.manifest.compare import accepted
        from kvspec.proofs.manifest.record import load_record
        from kvspec.proofs.mutation.campaign import Campaign, Notebook

        self.began = time.perf_counter()
        if notebook.exists() and not notebook.is_file():
            _no_notebook(f"'{notebook}' is no file")
        self.reasons = accepted().alive
        notes = Notebook(notebook)
        self.before = {name: record for name in chapters if (record := load_record(name)) is not None}
        recorded = [f for record in self.before.values() for f in record.mutants]
        self.campaign = Campaign(chapters, [] if again else [*recorded, *notes.fates()], on_fates=self._noted)
        self._notes = notes
        self.known = len(self.campaign.fates)
        self.red = ""
        """What of the text itself is not proved."""
        if self.known < self.campaign.total:
            with self._writing():
                notes.prepare()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _no_notebook(f"'{self._notes.path}' could not be written ({error.strerror or error})")

    def _note(self, fates: Sequence[Fate]) -> None:
        with self._writing():
            self._notes.add(fates)

    def _noted(self, fates: Sequence[Fate]) -> None:
        self._note(fates)
        self._advance(len(fates))

    def run(self, jobs: int, results: Sequence[Result] | None = None) -> None:
        """Judge what is not known, if the text itself is proved: where it is red, a mistake changes nothing.

        ``results`` of the chapters, if somebody has proved them already.
        """
        from kvspec.cli.prove_report import not_proved

        self.red = not_proved(self._prove() if results is None else results)
        if self.red:
            return
        with progress("mutants", self.campaign.total) as bar:
            self._advance = bar.advance
            bar.advance(self.known)
            self.campaign.run(jobs or os.cpu_count() or 1)
        self._ask_others(jobs or os.cpu_count() or 1)

    def _prove(self) -> list[Result]:
        from kvspec.cli.prove_command import ProofRun

        proofs = ProofRun(list(self.campaign.ids), ("z3",))
        proofs.prove()
        return proofs.results

    def _ask_others(self, jobs: int) -> None:
        """What the proofs have left alive is looked for in runs, and by a judge who follows it."""
        from kvspec.proofs.mutation.campaign import is_invariant

        alive = [f for f in self.unexplained() if not is_invariant(f.id)]
        if not alive:
            return
        from kvspec.cli.exploring import asked_otherwise
        from kvspec.proofs.processes import spread

        with progress("runs and judges", len(alive)) as bar, closing(spread(asked_otherwise, alive, jobs)) as results:
            for number, found in results:
                bar.advance(1, found.id)
                if found != alive[number]:
                    self.campaign.fates[found.id] = found
                    self._note([found])

    # -- what came out -------------------------------------------------------------------------------------------

    @property
    def fates(self) -> list[Fate]:
        return [f for name in self.campaign.ids for f in self.campaign.of(name)]

    def survivors(self) -> list[Fate]:
        """Alive now, and killed when the manifest was written."""
        dead = {f.id for record in self.before.values() for f in record.mutants if f.verdict == "killed"}
        return [f for f in self.fates if f.verdict == "alive" and f.id in dead]

    def otherwise(self) -> list[str]:
        """Judged on the same text, and not as it is written down in the manifest (but for `survivors`)."""
        from kvspec.proofs.mutation.campaign import makes_sense

        recorded = {f.id: f for record in self.before.values() for f in record.mutants if makes_sense(f)}
        pairs = [(recorded[f.id], f) for f in self.fates if f.id in recorded]
        return [
            f"{now.id}: {now.verdict}, written down as {was.verdict}"
            for was, now in pairs
            if was.key == now.key and was.verdict != now.verdict and now.verdict != "alive"
        ]

    def unexplained(self) -> list[Fate]:
        return [f for f in self.fates if f.verdict == "alive" and f.id not in self.reasons]

    def exit(self, complete: bool) -> Exit:
        if self.red:
            return Exit.UNKNOWN
        if self.survivors() or self.otherwise():
            return Exit.VIOLATED
        return Exit.HOLDS if complete and not self.unexplained() else Exit.UNKNOWN

    def show(self, complete: bool, each: bool) -> None:
        from kvspec.proofs.mutation.campaign import by_verdict

        out = console()
        if self.red:
            out.print("no mutant was judged: the text itself is not proved, so what is red says nothing of a mistake")
            out.print(self.red, style="bold red", markup=False)
            return
        for f in self.fates:
            if each or f.verdict == "alive":
                out.print(told(f, self.reasons), style=None if f.verdict != "alive" else "yellow", markup=False)
        counts = {
            name: (len(ids), *by_verdict(self.campaign.of(name)).values()) for name, ids in self.campaign.ids.items()
        }
        show_counts(out, {**counts, "all": (self.campaign.total, *by_verdict(self.fates).values())})
        out.print(self._summary(complete), style="bold")
        for f in self.survivors():
            out.print(f"survives, and was killed before: {f.id}", style="bold red", markup=False)
        for line in self.otherwise():
            out.print(f"judged otherwise: {line}", style="bold red", markup=False)

    def _summary(self, complete: bool) -> str:
        open_, alive = len(self.unexplained()), sum(f.verdict == "alive" for f in self.fates)
        head = "" if complete else f"interrupted after {len(self.fates)} of {self.campaign.total}: "
        said = f"{counted(len(self.fates), 'mutant')}, {alive} alive"
        said += f" ({alive - open_} for a reason that is written down)" if alive else ""
        return f"{head}{said}; {self.known} known from before; {time.perf_counter() - self.began:.0f} s"

    def as_json(self) -> dict[str, object]:
        import msgspec

        fates: list[object] = [msgspec.to_builtins(f) for f in self.fates]
        return {"chapters": list(self.campaign.ids), "reasons": dict(self.reasons), "mutants": fates}


TITLES = ("generated", "proof", "exploration", "test", "equivalent", "alive")


def show_counts(out: Console, rows: Mapping[str, Sequence[int]]) -> None:
    """A table of numbers under `TITLES`, the last row of which sums up; sentences where it would be too wide."""
    from rich.table import Table

    last = list(rows)[-1]
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    table.add_column("")
    for title in TITLES:
        table.add_column(title, justify="right")
    for name, counts in rows.items():
        table.add_row(name, *map(str, counts), style="bold" if name == last else None)
    if out.measure(table, options=out.options.update(max_width=1000)).maximum <= out.width:
        out.print(table)
        return
    for name, counts in rows.items():
        said = ", ".join(f"{n} {title}" for n, title in zip(counts, TITLES, strict=True))
        out.print(f"{name}: {said}", style="bold" if name == last else None, soft_wrap=False)


def told(f: Fate, reasons: Mapping[str, str]) -> str:
    """One mutant in one line."""
    why = f" {f.killer}" if f.killer else ""
    note = reasons.get(f.id, f.note) if f.verdict == "alive" else f.note
    by = f" by {f.by}:" if f.by else ""
    return f"{f.verdict}{by}{why}  {f.id}" + (f"  ({note})" if note else "")
