"""``kvspec check``: the main job: proofs of any size, and the managers of kvspec judged by the same text."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvspec.cli.mutate_command import manifest_input
from kvspec.cli.options import ForceOption, JsonOption, JunitOption
from kvspec.cli.output import (
    Case,
    Exit,
    JsonFile,
    JunitFile,
    all_different,
    console,
    counted,
    exit_for,
    on_interrupt,
    progress,
    worst,
)
from kvspec.cli.prove_command import BRIEF_HELP, ProofRun

if TYPE_CHECKING:
    from kvspec.model.conformance import PoolConfig
    from kvspec.model.exploring.outcome import Outcome
    from kvspec.model.workload import Request

REQUESTS = 200
OPERATIONS = 3000
TARGETS = ("torch", "model")
BUILT_IN_BLOCKS = 2500
TRACE_BLOCKS = 20_000
HOST_REQUESTS = 60
"""Of the built-in workload, for the replay with a host tier: each step is judged by two chapters."""
SHOWN = 6
"""How many findings of one chapter's manifest are printed; a result file has all."""


def check(
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replay the first requests of this trace, too.", show_default=False),
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help=BRIEF_HELP)] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Two solvers, larger scopes, all mutants again.")] = False,
    json: JsonOption = None,
    junit: JunitOption = None,
    force: ForceOption = False,
) -> Exit:
    """Prove and explore the spec, and judge the managers of kvspec."""
    json_file, junit_file = JsonFile(json, force=force), JunitFile(junit, force=force)
    all_different(json_file, junit_file)
    with manifest_input():
        job = _Job(trace, brief, deep)

    def finish(complete: bool) -> None:
        code = job.exit(complete)
        job.summary(complete)
        json_file.write("check", {"parts": job.parts, "proofs": job.proofs.as_json()}, exit=code, complete=complete)
        junit_file.write([*job.proofs.cases(), *job.cases])

    with on_interrupt(lambda: finish(False)):
        job.run()
    finish(True)
    return job.exit(True)


_WHOLE = {"mutants": "mutants", "manifest": "manifests", "explore": "explorations (exhaustive in small scopes)"}
"""Parts that are told as one, with what they are called then."""
_WORDS = {Exit.HOLDS: "hold", Exit.VIOLATED: "violated", Exit.UNKNOWN: "unknown"}


class _Job:
    """The parts of the main job, and what has come out of them so far."""

    def __init__(self, trace: Path | None, brief: bool = False, deep: bool = False) -> None:
        from kvspec.cli.replay_command import read_workload
        from kvspec.proofs.campaign import chapters
        from kvspec.proofs.manifest.check import read_all

        read_all()  # what cannot be read is said before minutes of work
        self.began = time.perf_counter()
        self.out = console()
        self.brief, self.deep = brief, deep
        self.proofs = ProofRun(list(chapters()), ("z3", "cvc5") if deep else ("z3",))
        self.outcomes: dict[str, list[Outcome]] = {}
        self.parts: list[dict[str, object]] = []
        self.cases: list[Case] = []
        self._exits: list[Exit] = []
        self._workloads = list(_workloads(read_workload, trace))

    def run(self) -> None:
        self.proofs.prove()
        self.proofs.show(True, brief=self.brief)
        self._exits.append(self.proofs.exit(True))
        self._explore()
        self._manifest()
        if self.deep:
            self._mutate()
        for target in TARGETS:
            self._conform(target)
        for name, config, requests in self._workloads:
            self._replay(name, config, requests)

    def _explore(self) -> None:
        """Every chapter in its scopes: no statement broken, and everything met that has to be met."""
        from kvspec.cli.exploring import explore_scopes, told
        from kvspec.proofs.manifest.scopes import DEEP, SCOPES

        tables = [SCOPES, DEEP] if self.deep else [SCOPES]
        self.out.print("\nexplore every chapter in small scopes", style="bold")
        with progress("scopes", sum(len(texts) for table in tables for texts in table.values())) as bar:
            for name in SCOPES:
                self.outcomes[name] = explore_scopes(name, tables, lambda o: bar.advance(1, o.scope))
        for name, outcomes in self.outcomes.items():
            verdict, line, missing = told(name, outcomes)
            self.out.print(line, markup=False, style=None if verdict == "holds" else "red")
            scopes: list[dict[str, object]] = [
                {"scope": o.scope, "distinct": o.distinct, "generated": o.generated, "depth": o.depth} for o in outcomes
            ]
            self._add("explore", name, exit_for([verdict]), {"verdict": verdict, "scopes": scopes, "missing": missing})
            self.cases.append(Case("kvspec explore", name, 0.0, verdict, "" if verdict == "holds" else line))

    def _manifest(self) -> None:
        """What is written down of every chapter fits the text, and what has run."""
        from kvspec.proofs.manifest.check import Seen, findings

        seen = {
            name: Seen([r for r in self.proofs.results if r.chapter == name], self.outcomes.get(name, []))
            for name in self.proofs.chapters
        }
        found = findings(seen)
        self.out.print("\nmanifest: what every verdict stands on", style="bold")
        for name in dict.fromkeys(f.chapter for f in found):
            mine = [f for f in found if f.chapter == name]
            for finding in mine[:SHOWN]:
                self.out.print(f"  {finding}", style="red", markup=False)
            if len(mine) > SHOWN:
                self.out.print(f"  and {len(mine) - SHOWN} more in {name}", style="red")
        if not found:
            self.out.print("  it fits the text and what has run")
        body: list[object] = [{"kind": f.kind, "chapter": f.chapter, "what": f.what} for f in found]
        verdict = "holds" if not found else "violated" if any(f.kind == "changed" for f in found) else "unknown"
        self._add("manifest", "of the spec", exit_for([verdict]), {"verdict": verdict, "findings": body})
        self.cases.append(Case("kvspec manifest", "spec", 0.0, verdict, "; ".join(map(str, found))))

    def _mutate(self) -> None:
        from kvspec.cli.mutate_command import NOTEBOOK, MutationRun
        from kvspec.spec import CHAPTERS

        run = MutationRun(list(CHAPTERS), NOTEBOOK, again=True)
        run.run(os.cpu_count() or 1)
        self.out.print("\nmutants of every chapter", style="bold")
        run.show(True, each=False)
        verdict = {Exit.HOLDS: "holds", Exit.VIOLATED: "violated"}.get(run.exit(True), "unknown")
        self._add("mutants", "of the spec", run.exit(True), run.as_json())
        open_ = [f.id for f in (*run.survivors(), *run.unexplained())]
        message = run.red or "; ".join([*open_, *run.otherwise()])
        self.cases.append(Case("kvspec mutate", "spec", 0.0, verdict, message))

    def _conform(self, target: str) -> None:
        from kvspec.cli.conform_command import conform_cases, print_conform
        from kvspec.cli.targets import load_target
        from kvspec.model.conform import ConformOptions, conform

        self.out.print(f"\nconform {target}", style="bold")
        with progress(f"conform {target}", OPERATIONS) as bar:
            report = conform(load_target(target), ConformOptions(operations=OPERATIONS), on_progress=bar.advance)
        print_conform(self.out, target, report)
        code = exit_for(report.verdicts)
        families = {f.family: f.verdict for f in report.families}
        self._add("conform", target, code, {"operations": report.operations, "families": families})
        self.cases += conform_cases(target, report)
        if report.interrupted:
            raise KeyboardInterrupt

    def _replay(self, name: str, config: PoolConfig, requests: Sequence[Request]) -> None:
        from kvspec.cli.replay_command import describe, verdict_of
        from kvspec.cli.targets import load_target
        from kvspec.model.judged import JudgedReplay

        self.out.print(f"\nreplay {name} on torch", style="bold")
        with progress(f"replay {name}") as bar:
            run = JudgedReplay(load_target("torch"), config, requests, on_step=lambda _: bar.advance())
            report = run.run()
        verdict = verdict_of(run, report)
        describe(run, report, requests, verdict)
        self._add("replay", name, exit_for([verdict]), {"verdict": verdict, "statistics": report.statistics})
        seconds, message = report.statistics.wall_seconds, str(run.violation or "")
        self.cases.append(Case("kvspec replay", name, seconds, verdict, message))
        if report.statistics.interrupted:
            raise KeyboardInterrupt

    def _add(self, part: str, name: str, code: Exit, body: dict[str, object]) -> None:
        self._exits.append(code)
        self.parts.append({"part": part, "name": name, "exit": int(code), **body})

    def exit(self, complete: bool) -> Exit:
        """Violated before unknown before holds; an interrupted job is never green."""
        return worst([*self._exits, *([] if complete else [Exit.UNKNOWN])])

    def summary(self, complete: bool) -> None:
        proved = sum(r.verdict.value == "proved" for r in self.proofs.results)
        parts = [f"{proved} of {counted(len(self.proofs.results), 'obligation')} proved (proofs unbounded)"]
        for part in self.parts:
            word = {0: "holds", 1: "violated"}.get(int(str(part["exit"])), "unknown")
            if str(part["part"]) in ("conform", "replay"):
                parts.append(f"{part['part']} {part['name']} {word} (sampled)")
        for kind, what in _WHOLE.items():
            exits = [Exit(int(str(part["exit"]))) for part in self.parts if part["part"] == kind]
            if exits:
                parts.insert(1, f"{what} {_WORDS[worst(exits)]}")
        head = "check" if complete else "check (interrupted)"
        self.out.print(f"\n{head}: {'; '.join(parts)}; {time.perf_counter() - self.began:.0f} s", style="bold")
        self.proofs.show_open(self.out)


def _workloads(
    read: Callable[[str, int, int], Sequence[Request]], trace: Path | None
) -> Iterator[tuple[str, PoolConfig, Sequence[Request]]]:
    """What is replayed, each with its pool."""
    from kvspec.model.conformance import PoolConfig

    built_in = read("builtin", REQUESTS, 0)
    yield "builtin", PoolConfig(num_blocks=BUILT_IN_BLOCKS, block_size=16), built_in
    tiers = PoolConfig(num_blocks=300, block_size=16, num_single_blocks=HOST_REQUESTS + 1, num_host_blocks=600)
    yield "builtin with a host tier", tiers, built_in[:HOST_REQUESTS]
    if trace is not None:
        yield str(trace), PoolConfig(num_blocks=TRACE_BLOCKS, block_size=16), read(str(trace), REQUESTS, 0)
