"""``kvspec prove``: every obligation of the specification, for pools of any size."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from kvspec.cli import prove_report as report
from kvspec.cli.errors import fail_input
from kvspec.cli.options import ForceOption, JsonOption, JunitOption
from kvspec.cli.output import (
    Case,
    Exit,
    JsonFile,
    JunitFile,
    all_different,
    console,
    exit_for,
    on_interrupt,
    progress,
)
from kvspec.model.plain import one_line
from kvspec.model.reporting.saving import save_text

if TYPE_CHECKING:
    from rich.console import Console

    from kvspec.proofs.verdicts import Result

COUNTEREXAMPLES = Path("counterexamples")
CHAPTERS_HELP = "Only these chapters, separated by commas."
BRIEF_HELP = "A line instead of a matrix for each chapter in which everything is proved."
ONLY_HELP = "Only cells named EVENT/INVARIANT (or a whole id; * stands for anything). May be given several times."
SOLVER_HELP = "Who has to prove each cell: z3, cvc5, or both."


def prove(
    chapter: Annotated[str, typer.Option("--chapter", metavar="NAME,...", help=CHAPTERS_HELP)] = "",
    only: Annotated[list[str] | None, typer.Option("--only", metavar="EVENT/INVARIANT", help=ONLY_HELP)] = None,
    solver: Annotated[str, typer.Option("--solver", metavar="NAME,...", help=SOLVER_HELP)] = "z3",
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; 0 means as many as are of use.")] = 0,
    save: Annotated[Path, typer.Option(metavar="DIR", help="Where counterexamples go.")] = COUNTEREXAMPLES,
    brief: Annotated[bool, typer.Option("--brief", help=BRIEF_HELP)] = False,
    json: JsonOption = None,
    junit: JunitOption = None,
    force: ForceOption = False,
) -> Exit:
    """Prove every obligation of the spec, for pools of any size."""
    json_file, junit_file = JsonFile(json, force=force), JunitFile(junit, force=force)
    all_different(json_file, junit_file)
    chapters, solvers = _chapters(chapter), _solvers(solver)
    if save.exists() and not save.is_dir():
        fail_input(f"'{save}' is a file", where="--save", expected="a folder")
    run = ProofRun(chapters, solvers, only or [], jobs, save)

    def finish(complete: bool = False) -> None:
        run.show(complete, brief=brief)
        json_file.write("prove", run.as_json(), exit=run.exit(complete), complete=complete)
        junit_file.write(run.cases())

    with on_interrupt(finish):
        run.prove()
    finish(complete=True)
    return run.exit(complete=True)


def _chapters(text: str) -> list[str]:
    from kvspec.proofs.campaign import chapters

    known = chapters()
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())) or list(known)
    for name in names:
        if name not in known:
            fail_input(f"unknown chapter '{name}'", where="--chapter", expected=f"one of {', '.join(known)}")
    return names


def _solvers(text: str) -> tuple[str, ...]:
    from kvspec.proofs.prove import SOLVERS

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in SOLVERS:
            fail_input(f"unknown solver '{name}'", where="--solver", expected=" or ".join(SOLVERS))
    return names or fail_input("no solver", where="--solver", expected=" or ".join(SOLVERS))


def _no_such_cell(pattern: str, chapters: Sequence[str]) -> NoReturn:
    from kvspec.proofs.campaign import units

    ids = sorted(id for unit in units(chapters) for id in unit.ids)
    close = get_close_matches(pattern, dict.fromkeys([*(id.partition(".")[2] or id for id in ids), *ids]), cutoff=0.7)
    what = f"no obligation is called '{pattern}'"
    fail_input(what + (f" (perhaps {' or '.join(close)})" if close else ""), where="--only", expected="EVENT/INVARIANT")


MUCH = 500
"""So many questions for solvers are worth the start of more processes."""


class ProofRun:
    """The work, and what has come out of it so far."""

    def __init__(
        self,
        chapters: list[str],
        solvers: tuple[str, ...],
        only: Sequence[str] = (),
        jobs: int = 0,
        save: Path = COUNTEREXAMPLES,
    ) -> None:
        from kvspec.proofs.campaign import units

        self.save = save
        self.chapters, self.solvers = chapters, solvers
        self.began = time.perf_counter()
        for pattern in only:
            if not units(chapters, [pattern]):
                _no_such_cell(pattern, chapters)
        self.units = units(chapters, only)
        much = len(solvers) * sum(len(unit.ids) for unit in self.units) > MUCH
        self.jobs = jobs or (min(os.cpu_count() or 1, 4) if much else 1)
        self.only = bool(only)
        self.done: dict[int, list[Result]] = {}

    def prove(self) -> None:
        from kvspec.proofs.campaign import prove_units
        from kvspec.proofs.prove import Options

        options = Options(solvers=self.solvers)
        total = sum(len(unit.ids) for unit in self.units)
        with progress("proving", total) as bar:
            for number, results in prove_units(self.units, options, self.jobs):
                self.done[number] = results
                bar.advance(len(results), results[0].chapter)

    @property
    def results(self) -> list[Result]:
        return [result for number in sorted(self.done) for result in self.done[number]]

    def exit(self, complete: bool) -> Exit:
        verdicts = [r.verdict.value for r in self.results]
        return exit_for(verdicts if complete else [*verdicts, "interrupted"])

    def show(self, complete: bool, *, brief: bool = False) -> None:
        from kvspec.proofs.campaign import sentence

        out = console()
        saved = self._saved()
        for name in self.chapters:
            mine = [r for r in self.results if r.chapter == name]
            if self.only:
                for r in mine:
                    out.print(report.line(r), style=report.style(r))
                report.show_failures(out, mine, saved)
            elif mine:
                report.show_chapter(out, name, sentence(name), mine, saved, brief=brief)
        if not complete:
            out.print("interrupted; what follows is what was done until then", style="yellow")
        out.print(report.summary(self.results, time.perf_counter() - self.began, self.solvers), style="bold")
        self.show_open(out)

    def show_open(self, out: Console) -> None:
        """The last line: which cells are not proved; nothing if all are."""
        if named := report.not_proved(self.results):
            out.print(named, style="bold red")

    def _saved(self) -> dict[str, str]:
        """How to run each counterexample, by the id of what it refutes; a verdict does not depend on the files."""
        found = {}
        for r in self.results:
            if r.counterexample is not None and r.counterexample.scenario:
                try:
                    path = save_text(self.save, r.id.replace("->", "."), ".kv", r.counterexample.scenario)
                    found[r.id] = f"kvspec run {path}"
                except OSError as error:
                    found[r.id] = f"could not be written as a scenario: {one_line(str(error))}"
        return found

    def as_json(self) -> dict[str, object]:
        return {
            "chapters": self.chapters,
            "solvers": list(self.solvers),
            "seconds": round(time.perf_counter() - self.began, 3),
            "obligations": [report.as_json(r) for r in self.results],
        }

    def cases(self) -> list[Case]:
        return [Case(r.chapter, r.id, r.seconds, r.verdict.value, report.message(r)) for r in self.results]
