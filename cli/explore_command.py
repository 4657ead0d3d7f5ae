"""``kvspec explore``: all states of a chapter in a small scope, or random walks where they are too many."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer

from kvspec.cli.errors import fail_input
from kvspec.cli.options import ForceOption, JsonOption
from kvspec.cli.output import Exit, JsonFile, console, counted, exit_for, on_interrupt, progress
from kvspec.model.exploring.coverage import goals
from kvspec.model.exploring.instances import TooManyInstances
from kvspec.model.exploring.outcome import Outcome, States, Step, Violation, shown
from kvspec.model.exploring.scopes import DEFAULTS, WORDS, Scope, ScopeError
from kvspec.model.exploring.size import TooLarge
from kvspec.spec import CHAPTERS, load

if TYPE_CHECKING:
    from kvspec.model.batched import Walks
    from kvspec.spec.language.chapter import Chapter

MAX_STATES: Final = 20_000_000
STEPS: Final = 200
MOST_WALKS: Final = 100_000
MOST_STEPS: Final = 1_000_000
MOST_TOGETHER: Final = 500_000_000
"""Steps of all walks together: what each of them chose is remembered, two bytes a step, to show a run."""
MOST_SEED: Final = 2**63 - 1
_SCOPE_HELP: Final = (
    f"How much there is of what, such as blocks=4,seqs=2,len=2; the words are {', '.join(WORDS)}, and what is not "
    "said has the chapter's default. Not everything happens in every scope: what never did is named, with the scopes "
    "of the manifest, in which all of it does."
)
_STATES_HELP: Final = "Which states count as one; a violation is found in each, after as many steps."
_WHAT: Final[Mapping[States, str]] = {
    States.FULL: "full states",
    States.LIVE: "states, unread cells cleared",
    States.RENAMED: "classes of states, unread cells cleared and blocks renamed",
    States.CANONICAL: "classes of states, unread cells cleared, what can be exchanged exchanged",
}


def explore(
    chapter: Annotated[str, typer.Option(metavar="NAME", help="The chapter.")],
    scope: Annotated[str, typer.Option(metavar="WORD=N,...", help=_SCOPE_HELP, show_default=False)] = "",
    states: Annotated[States, typer.Option(help=_STATES_HELP)] = States.CANONICAL,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to compute.")] = "cpu",
    walks: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_WALKS, metavar="N", help="So many random walks instead.", show_default=False),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=MOST_STEPS, help="Steps of each walk.")] = STEPS,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="The same seed gives the same walks.")] = 0,
    max_states: Annotated[int, typer.Option(min=1, help="Give up beyond so many states.")] = MAX_STATES,
    json: JsonOption = None,
    force: ForceOption = False,
) -> Exit:
    """Go through all states of a chapter in a small scope."""
    file = JsonFile(json, force=force)
    if walks is not None and walks * steps > MOST_TOGETHER:
        most = f"at most {MOST_TOGETHER:,} of all walks together"
        fail_input(f"{walks * steps:,} steps", where="--walks", expected=most)
    if chapter not in CHAPTERS:
        fail_input(f"unknown chapter '{chapter}'", where="--chapter", expected=f"one of {', '.join(DEFAULTS)}")
    try:
        parsed = Scope.parse(scope, chapter)
    except ScopeError as error:
        fail_input(error.what, where=error.where, expected=error.expected)
    _check_device(device)
    work = _Work(load(chapter), parsed, device, file)
    return work.explore(states, max_states) if walks is None else work.walk(walks, steps, seed)


def _check_device(device: str) -> None:
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            fail_input("there is no CUDA device", where="--device", expected="cpu")


class Coverage(NamedTuple):
    """What was met of what has to be met, and what was not."""

    events: int
    goals: int
    missing: list[str]


def coverage(chapter: Chapter, fired: Mapping[str, int], reached: Mapping[str, int]) -> Coverage:
    """Events that changed something, and goals (witnesses, premises) that were met."""
    names = [g.name for g in goals(chapter)]
    missing = [f"event {name}" for name in chapter.event_names if name not in fired]
    for goal in goals(chapter):
        if goal.name not in reached:
            missing.append(f"witness {goal.name}" if goal.kind == "witness" else f"the premise of {goal.name}")
    return Coverage(sum(n in fired for n in chapter.event_names), sum(n in reached for n in names), missing)


class _Work:
    """One call of the command."""

    def __init__(self, chapter: Chapter, scope: Scope, device: str, file: JsonFile) -> None:
        self.chapter, self.scope, self.device, self.file, self.out = chapter, scope, device, file, console()
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def explore(self, states: States, max_states: int) -> Exit:
        from kvspec.model.batched import Explorer, OutOfRange

        self._begin()
        told = _Told()
        with on_interrupt(lambda: self._interrupted(told)), progress("states") as bar:

            def tell(distinct: int, generated: int, depth: int) -> None:
                rate = generated / max(self.seconds, 0.001)
                bar.advance(distinct - told.distinct, f"depth {depth}, {rate:,.0f} generated/s")
                told.distinct, told.generated, told.depth = distinct, generated, depth

            try:
                found = Explorer(
                    self.chapter, self.scope.structure, states=states, device=self.device, given=self.scope.given,
                    scope=self.scope.text, max_states=max_states, progress=tell,
                ).explore()  # fmt: skip
            except (TooManyInstances, TooLarge, OutOfRange) as error:
                fail_input(str(error), where="--scope", expected="a smaller scope")
        met = coverage(self.chapter, found.fired, found.reached)
        code = exit_for(_verdicts(found.violation, found.complete, met))
        self._print_explored(found, met)
        body = {"chapter": self.scope.chapter, "device": self.device, "missing": met.missing, **outcome_json(found)}
        self.file.write("explore", {**body, "seconds": round(self.seconds, 3)}, exit=code)
        return code

    def walk(self, walks: int, steps: int, seed: int) -> Exit:
        from kvspec.model.batched import OutOfRange, walk

        self._begin()
        with on_interrupt(lambda: self._interrupted(None)):
            try:
                structure, given = self.scope.structure, self.scope.given
                found = walk(self.chapter, structure, walks, steps, seed, device=self.device, given=given)
            except (TooManyInstances, TooLarge, OutOfRange) as error:
                fail_input(str(error), where="--scope", expected="a smaller scope")
        met = coverage(self.chapter, found.fired, found.reached)
        code = exit_for(_verdicts(found.violation, True, met))
        self._print_walked(found, met, seed)
        body = {
            "chapter": self.scope.chapter, "device": self.device, "missing": met.missing, "scope": self.scope.text,
            "walks": found.walkers, "steps": found.steps, "seed": seed, "taken": found.taken,
            "violation": violation_json(found.violation), "fired": found.fired, "reached": found.reached,
            "seconds": round(self.seconds, 3),
        }  # fmt: skip
        self.file.write("explore", body, exit=code)
        return code

    # -- the terminal --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """What is explored; the clock runs from here on, after torch has been loaded."""
        self.started = time.monotonic()
        self.out.print(f"{self.scope.chapter}: {self.chapter.sentence}")
        self.out.print(f"scope        {self.scope.text}")

    def _print_explored(self, found: Outcome, met: Coverage) -> None:
        out, rate = self.out, found.generated / max(self.seconds, 0.001)
        out.print(f"states       {found.distinct:,} {_WHAT[found.states]}")
        out.print(f"steps        {found.generated:,} ({rate:,.0f}/s), {found.depth} to the last new state")
        for title, names in (
            ("cleared", found.cleared), ("kept whole", found.kept), ("exchanged", found.renamed),
            ("left alone", found.unchanged),
        ):  # fmt: skip
            if names:
                out.print(f"{title:<13}{', '.join(names)}")
        self._print_met(met)
        if found.violation is not None:
            self._print_violation(found.violation, "a shortest run")
        elif not found.complete:
            out.print(f"unknown: stopped after {found.distinct:,} states, {_seconds(self.seconds)}; raise --max-states")
        else:
            self._print_scopes(met)
            numbers = f"{found.distinct:,} states, {found.generated:,} steps, {_seconds(self.seconds)}"
            out.print(f"{_verdict(met)}, exhaustively in this scope: {numbers}")
            if found.covers is not None:
                out.print(f"covers {found.covers}")

    def _print_walked(self, found: Walks, met: Coverage, seed: int) -> None:
        self.out.print(f"walks        {found.walkers:,} of {counted(found.steps, 'step')}, seed {seed}")
        self.out.print(f"steps        {found.taken:,} ({found.taken / max(self.seconds, 0.001):,.0f}/s)")
        self._print_met(met)
        if found.violation is not None:
            self._print_violation(found.violation, "a run in which no step can be left out")
        else:
            self._print_scopes(met)
            numbers = f"{found.walkers:,} walks, {_seconds(self.seconds)}"
            self.out.print(f"{_verdict(met)} (sampled: {numbers})")

    def _print_met(self, met: Coverage) -> None:
        events, wanted = len(self.chapter.event_names), len(goals(self.chapter))
        self.out.print(f"met          {met.events} of {events} events change something, {met.goals} of {wanted} goals")
        for name in met.missing:
            self.out.print(f"  never      {name}")

    def _print_scopes(self, met: Coverage) -> None:
        """Where what was never met can be met."""
        from kvspec.proofs.manifest.scopes import SCOPES

        name = self.scope.chapter
        if met.missing and name in SCOPES:
            scopes = "; ".join(scope or DEFAULTS[name] for scope in SCOPES[name])
            self.out.print("everything is met in the scopes of the manifest together, with --scope")
            self.out.print(f"  {scopes}")

    def _print_violation(self, violation: Violation, what: str) -> None:
        self.out.print()
        self.out.print(f"VIOLATED {violation.kind} {violation.name}: {violation.sentence}")
        self.out.print(f"  {what}:" if violation.run else "  at the start")
        for number, step in enumerate(violation.run, start=1):
            self.out.print(f"  {number:>4}  {self._step(step)}")
        self.out.print()
        steps = counted(len(violation.run), "step")
        self.out.print(f"violated: {violation.name}, after {steps}, {_seconds(self.seconds)}")

    def _step(self, step: Step) -> str:
        names = [p.data[0] for p in self.chapter.event(step.event).parameters]
        return " ".join((step.event, *(f"{n}={shown(a)}" for n, a in zip(names, step.args, strict=True))))

    def _interrupted(self, told: _Told | None) -> None:
        far = "" if told is None else f" after {told.distinct:,} states, {told.generated:,} steps, depth {told.depth}"
        self.out.print(f"interrupted{far}: nothing is said of the rest")
        body: dict[str, Any] = {"chapter": self.scope.chapter, "scope": self.scope.text, "device": self.device}
        self.file.write("explore", body, exit=Exit.UNKNOWN, complete=False)


class _Told:
    """How far an exploration has got."""

    distinct = generated = depth = 0


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s"


def _verdict(met: Coverage) -> str:
    return f"vacuous: {len(met.missing)} never met; the rest holds" if met.missing else "holds"


def _verdicts(violation: Violation | None, complete: bool, met: Coverage) -> Iterator[str]:
    yield "holds" if violation is None else "violated"
    if not complete:
        yield "unknown"
    if met.missing:
        yield "vacuous"


# -- results -----------------------------------------------------------------------------------------------------------


def outcome_json(found: Outcome) -> dict[str, Any]:
    """An outcome as what JSON can hold; arguments of steps as texts."""
    return {
        "scope": found.scope,
        "states": found.states.value,
        "distinct": found.distinct,
        "generated": found.generated,
        "depth": found.depth,
        "levels": found.levels,
        "exhaustive": found.complete,
        "violation": violation_json(found.violation),
        "fired": found.fired,
        "reached": found.reached,
        "cleared": found.cleared,
        "kept": found.kept,
        "renamed": found.renamed,
        "unchanged": found.unchanged,
        "covers": found.covers,
    }


def violation_json(violation: Violation | None) -> dict[str, Any] | None:
    """A violation as what JSON can hold."""
    if violation is None:
        return None
    run = [{"event": s.event, "args": [shown(a) for a in s.args]} for s in violation.run]
    return {"kind": violation.kind, "name": violation.name, "sentence": violation.sentence, "run": run}
