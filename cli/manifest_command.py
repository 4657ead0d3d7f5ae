"""``kvspec manifest``: what every verdict stands on, written down in the repository."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvspec.cli.errors import fail_input
from kvspec.cli.mutate_command import NOTEBOOK, MutationRun, manifest_input, spec_chapters
from kvspec.cli.options import ForceOption, JsonOption
from kvspec.cli.output import Exit, JsonFile, console, counted, on_interrupt, progress, worst
from kvspec.cli.prove_command import CHAPTERS_HELP, ProofRun

if TYPE_CHECKING:
    from kvspec.proofs.manifest.build import Evidence
    from kvspec.proofs.manifest.compare import Finding
    from kvspec.proofs.manifest.record import Bound, Record
    from kvspec.proofs.mutation.kill import Fate

SHOWN = 40
"""How many changes of one chapter are shown; the rest is counted."""


def manifest(
    chapter: Annotated[str, typer.Option("--chapter", metavar="NAME,...", help=CHAPTERS_HELP)] = "",
    update: Annotated[bool, typer.Option("--update", help="Write what has changed.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes; 0 means one for each processor.")] = 0,
    notebook: Annotated[Path, typer.Option(metavar="FILE", help="Where fates are kept as they get known.")] = NOTEBOOK,
    json: JsonOption = None,
    force: ForceOption = False,
) -> Exit:
    """Prove, mutate, explore, and compare with what is written down."""
    from kvspec.proofs.manifest.record import FOLDER

    json_file = JsonFile(json, force=force)
    if update and not os.access(FOLDER, os.W_OK):
        fail_input("the installed manifest is not writable", where="--update", expected="a checkout of kvspec")
    with manifest_input():
        run = ManifestRun(spec_chapters(chapter), notebook, jobs or os.cpu_count() or 1)

    def interrupted() -> None:
        console().print("interrupted; nothing was written", style="yellow")
        json_file.write("manifest", {"chapters": run.chapters}, exit=Exit.UNKNOWN, complete=False)

    with on_interrupt(interrupted):
        run.gather()
    run.show(update)
    if update:
        run.write()
    json_file.write("manifest", run.as_json(), exit=run.exit(update))
    return run.exit(update)


def _bound(work: tuple[str, str, list[str]]) -> Bound | None:
    """What is found of one invariant, in a process of its own."""
    from kvspec.cli.exploring import explored_if_inside
    from kvspec.proofs.manifest.bounds import bound

    return bound(*work, explored_if_inside)


class ManifestRun:
    """What was seen of some chapters, and the manifest that it makes."""

    def __init__(self, chapters: Sequence[str], notebook: Path, jobs: int) -> None:
        from kvspec.proofs.manifest.record import load_record

        self.began = time.perf_counter()
        self.chapters, self.jobs = list(chapters), jobs
        self.proofs = ProofRun(self.chapters, ("z3", "cvc5"), jobs=jobs)
        self.mutation = MutationRun(chapters, notebook)
        self.before = {name: load_record(name) for name in self.chapters}
        self.records: dict[str, Record] = {}

    def gather(self) -> None:
        from kvspec.proofs.manifest.build import build

        self.proofs.prove()
        self.mutation.run(self.jobs, self.proofs.results)
        if self.mutation.red:
            return
        with progress("explorations", len(self.chapters)) as bar:
            for name in self.chapters:
                self.records[name] = build(name, self._evidence(name))
                bar.advance(1, name)

    def _evidence(self, name: str) -> Evidence:
        from kvspec.cli.exploring import explore_scopes
        from kvspec.proofs.manifest.build import Evidence
        from kvspec.proofs.manifest.scopes import SCOPES

        fates = self.mutation.campaign.of(name)
        outcomes = explore_scopes(name, [SCOPES], lambda outcome: None)
        results = [r for r in self.proofs.results if r.chapter == name]
        return Evidence(results, fates, outcomes, self._bounds(name, fates))

    def _bounds(self, name: str, fates: Sequence[Fate]) -> dict[str, Bound]:
        from kvspec.proofs.manifest.bounds import mistakes
        from kvspec.proofs.processes import spread
        from kvspec.spec import load

        work = [(name, i.name, mistakes(i.name, fates)) for i in load(name).invariants]
        with closing(spread(_bound, work, self.jobs)) as results:
            found = dict(results)
        return {work[n][1]: bound for n, bound in sorted(found.items()) if bound is not None}

    # -- what came out -------------------------------------------------------------------------------------------

    def changes(self, name: str) -> list[str]:
        from kvspec.proofs.manifest.compare import changes

        if name not in self.records:
            return []
        return list(changes(self.before[name], self.records[name]))

    def findings(self) -> list[Finding]:
        from kvspec.proofs.manifest.compare import accepted, of_itself, of_reasons

        reasons = accepted()
        found = [f for record in self.records.values() for f in of_itself(record, reasons)]
        return found + list(of_reasons(list(self.records.values()), reasons))

    def exit(self, updated: bool) -> Exit:
        """A manifest that is written is as good as what it says; one that is not must fit."""
        fits = updated or not any(map(self.changes, self.chapters))
        seen = [self.proofs.exit(True), self.mutation.exit(True)]
        return worst([*seen, Exit.HOLDS if fits and not self.findings() else Exit.UNKNOWN])

    def show(self, update: bool) -> None:
        out = console()
        if self.mutation.red:
            out.print("nothing is written down: not everything is proved", style="bold")
            self.proofs.show_open(out)
            return
        count = 0
        for name in self.chapters:
            lines = self.changes(name)
            count += len(lines)
            for line in lines[:SHOWN]:
                out.print(line, markup=False, highlight=False)
            if len(lines) > SHOWN:
                out.print(f"  and {len(lines) - SHOWN} more in {name}")
        findings = self.findings()
        for finding in findings:
            out.print(str(finding), style="yellow", markup=False)
        self.proofs.show_open(out)
        end = "" if not count else " (written)" if update else " (kvspec manifest --update writes them)"
        told = f"{counted(count, 'change')}{end}, {counted(len(findings), 'finding')}"
        out.print(f"manifest: {told}; {time.perf_counter() - self.began:.0f} s", style="bold")

    def write(self) -> None:
        from kvspec.proofs.manifest.record import path_of, text_of, write_record

        for name, record in self.records.items():
            if not path_of(name).is_file() or path_of(name).read_text(encoding="utf-8") != text_of(record):
                write_record(record)

    def as_json(self) -> dict[str, object]:
        return {
            "chapters": self.chapters,
            "changes": {name: self.changes(name) for name in self.chapters},
            "findings": [{"kind": f.kind, "chapter": f.chapter, "what": f.what} for f in self.findings()],
        }
