"""Breadth first through all states, whole levels at a time.

Answers what `kvspec.model.exploring.plain` answers, with the same words. What is found wrong in a batch is looked at
again in the concrete reading, which says what it is; a difference between the two is an error of kvspec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from kvspec.model.batched.bits import rows_of
from kvspec.model.batched.blame import Blame, ReadingsDisagree
from kvspec.model.batched.clearing import Clearing
from kvspec.model.batched.expansion import Expansion, Steps
from kvspec.model.batched.forms import Forms
from kvspec.model.batched.seen import Hash, Seen, mixed
from kvspec.model.batched.storage import Storage
from kvspec.model.batched.threads import one_thread
from kvspec.model.batched.transitions import Compiler, bad_state
from kvspec.model.batched.watch import Watch
from kvspec.model.concrete import Structure, evaluate
from kvspec.model.exploring.cells import Packed
from kvspec.model.exploring.coverage import START
from kvspec.model.exploring.cutoff import covers
from kvspec.model.exploring.instances import Instance, start_state
from kvspec.model.exploring.outcome import Outcome, States, Step, Violation
from kvspec.model.exploring.plain import Progress, Wrong, retraced
from kvspec.model.exploring.quotient import Quotient
from kvspec.model.exploring.size import check_exchanges, check_formulas
from kvspec.spec.language.chapter import Chapter
from kvspec.spec.language.terms import Path

BATCH: Final = 1 << 17
"""States that are expanded at once; their planes stay in the caches of one core."""
STEPS: Final = 1 << 20
"""Steps that are taken at once, about; what they take in memory is a few times their rows."""
WIDER: Final = 16
"""So many times as much at once on another device than the CPU, where each operation costs more to start."""
MEMORY: Final = 4 << 30
LARGEST: Final = 1 << 30
"""More states than that are never asked for: they are numbered with 32 bits."""


class Explorer:
    """Explores a chapter in a structure.

    Args:
        chapter: the chapter; its events may have been replaced.
        structure: the scope.
        states: which states count as one.
        device: where to compute, as torch names it.
        given: start values of variables that no init sets.
        scope: the scope in words, for the outcome.
        max_states: more distinct states than that end the exploration, after the batch in which they are found.
        memory: bytes on the device for each table of states; a larger one goes to host memory, or to a temporary file.
        batch: states that are expanded at once; chosen for the device where nothing is said.
        progress: told of distinct states, generated states and depth, after each batch.
        hash_of: another hash function for the look-up of states.
    """

    def __init__(
        self,
        chapter: Chapter,
        structure: Structure,
        *,
        states: States = States.FULL,
        device: str = "cpu",
        given: Mapping[Path, Any] | None = None,
        scope: str = "",
        max_states: int = 100_000_000,
        memory: int = MEMORY,
        batch: int | None = None,
        progress: Progress | None = None,
        hash_of: Hash = mixed,
    ) -> None:
        self.chapter, self.structure, self.states = chapter, structure, states
        self.device, self.scope, self.progress = torch.device(device), scope, progress
        self.max_states, self.memory, self.hash_of = min(max_states, LARGEST), memory, hash_of
        wider = 1 if self.device.type == "cpu" else WIDER
        self.batch, self.steps = batch or BATCH * wider, STEPS * wider
        self.start = start_state(chapter, structure, given)

    def explore(self) -> Outcome:
        """Go through all states that can be reached; a violation ends that.

        Raises:
            TooManyInstances: some event can be tried in too many ways.
            TooLarge: there is too much to make ready.
            OutOfRange: a state has a value that no cell can hold.
        """
        kept: frozenset[Path] = frozenset()
        check_formulas(self.chapter, self.structure)
        with one_thread():
            while True:
                search = _Search(self, Quotient(self.chapter, self.structure, self.states, kept))
                try:
                    search.run()
                except _CameToLife as alive:
                    kept |= alive.paths
                else:
                    return search.outcome(kept)


class _CameToLife(Exception):
    """Cells of these variables can be read after a step, could not be before it, and were not written by it."""

    def __init__(self, paths: frozenset[Path]) -> None:
        self.paths = paths
        super().__init__(", ".join(".".join(p) for p in paths))


@dataclass(frozen=True)
class _Found:
    """Something wrong with a state of this number or, with an event, with a step of it from there."""

    number: int
    wrong: Wrong
    event: str | None


class _Search:
    """One exploration under one quotient."""

    def __init__(self, explorer: Explorer, quotient: Quotient) -> None:
        self.explorer, self.quotient = explorer, quotient
        check_exchanges(quotient)
        chapter, structure, device = explorer.chapter, explorer.structure, explorer.device
        self.device = device
        cleared = explorer.states is not States.FULL
        compiler = Compiler(chapter, structure, explorer.start, blank=cleared, whole=quotient.forms is not None)
        compiled = compiler.compile()
        self.layout = compiled.layout
        bad = bad_state(chapter, compiled.reading)
        self.expansion = Expansion(compiled, [bad, compiled.forbidden], device)
        self.clearing = None if quotient.alive is None else Clearing(self.expansion, quotient.alive)
        self.watch = Watch(chapter, self.expansion, structure, explorer.start)
        self.start_theorems = compiler.theorems[START]
        self.forms = None if quotient.forms is None else Forms(self.expansion, quotient)
        self.seen = Seen(Storage(self.layout.words, device, explorer.memory), device, explorer.hash_of)
        self.parents = Storage(1, device, explorer.memory)
        self.levels: list[int] = []
        self.generated = 0
        self.complete = False
        self.found: _Found | None = None

    # -- level by level ------------------------------------------------------------------------------------------

    def run(self) -> None:
        first = self.quotient.representative(self.quotient.cells.pack(self.explorer.start))
        self.seen.add(self.layout.rows([first]).to(self.device))
        self.parents.append(torch.full((1, 1), -1, dtype=torch.int64, device=self.device))
        if not all(evaluate(t.term, self.explorer.structure, self.explorer.start) for t in self.start_theorems):
            self.found = _Found(0, self.blame.start(self.explorer.start), None)
        start, end = 0, 1
        while start < end and self.found is None:
            self.levels.append(end - start)
            while start < end:
                until = min(end, start + self._batch(start))
                ended = self._expand(start, until)
                self._tell()
                if ended or len(self.seen) > self.explorer.max_states:
                    return
                start = until
            end = len(self.seen)
        self.complete = self.found is None

    def _batch(self, expanded: int) -> int:
        """How many states to expand next: no more than have so many steps together, if they are like those before."""
        each = self.generated / expanded if expanded else len(self.expansion.transitions)
        return max(1, min(self.explorer.batch, int(self.explorer.steps / max(each, 1))))

    def _tell(self) -> None:
        if self.explorer.progress is not None:
            self.explorer.progress(len(self.seen), self.generated, len(self.levels) - 1)

    def _expand(self, start: int, end: int) -> bool:
        """Look at the states of these numbers, and at all steps from them; true if a state is wrong.

        A step that goes wrong is noted, and the rest of the level still looked at: a state of it would be earlier.
        """
        rows = self.seen.rows.slice(start, end)
        planes = self.expansion.load(rows)
        (bad, forbidden), enabled = self.expansion.survey(planes, len(rows))
        if bad.any():
            number = start + int(rows_of(bad)[0])
            self.found = _Found(number, self.blame.state(self._row(number)), None)
            return True
        if self.found is not None:
            return False
        self.watch.states(planes, len(self.levels) - 1)
        if forbidden.any():
            number = start + int(rows_of(forbidden)[0])
            broken, instance = self.blame.call(self._row(number))
            self.found = _Found(number, broken, instance.event.name)
            return False
        steps, wrong = self.expansion.steps(rows, enabled)
        if wrong.any():
            row = int(rows_of(wrong)[0])
            number, instance = start + int(steps.source[row]), self._instance(steps.at(row).number)
            self.found = _Found(number, self.blame.step(self._row(number), instance), instance.event.name)
            return False
        self.generated += sum(c.count for c in steps.columns)
        if steps.columns:
            self._enter(start, steps)
        return False

    def _enter(self, start: int, steps: Steps) -> None:
        """Add the states after the steps that are new."""
        if self.clearing is None:
            self.watch.steps(steps, len(self.levels) - 1)
        else:
            self._clear(self.clearing, start, steps)
        if self.forms is not None:
            self.forms.apply(steps.after)
        new = self.seen.add(steps.rows())
        parents = (start + steps.source.index_select(0, new)) * len(self.expansion.transitions)
        self.parents.append((parents + steps.numbers(new)).unsqueeze(1))

    def _clear(self, clearing: Clearing, start: int, steps: Steps) -> None:
        """Clear what nothing can read after the steps; what they changed is noted as far as it can be read before."""
        before, after = clearing.live(steps.before), clearing.live(steps.after)
        revived = clearing.revived(steps, before, after)
        if revived.any():
            self._revive(start, steps, int(rows_of(revived)[0]))
        read = lambda planes, c: clearing.clear(planes, before[:, c.start : c.end])  # noqa: E731
        self.watch.steps(steps, len(self.levels) - 1, read)
        clearing.clear(steps.after, after)

    # -- what is found -------------------------------------------------------------------------------------------

    @cached_property
    def blame(self) -> Blame:
        return Blame(self.explorer.chapter, self.explorer.structure, self.layout)

    def _instance(self, transition: int) -> Instance:
        return self.expansion.transitions[transition].instance

    def _row(self, number: int) -> Tensor:
        return self.seen.rows.slice(number, number + 1)[0]

    def _packed(self, number: int) -> Packed:
        (packed,) = self.layout.packed(self._row(number).unsqueeze(0))
        return packed

    def _revive(self, start: int, steps: Steps, row: int) -> NoReturn:
        """Variables of which a cell came to life, found again in the concrete reading, count as read as a whole."""
        alive, cells = self.quotient.alive, self.quotient.cells
        assert alive is not None
        taken = self.blame.taken(self._row(start + int(steps.source[row])), self._instance(steps.at(row).number))
        new = alive.live(cells.pack(taken.after)) - alive.live(cells.pack(taken.before))
        new -= alive.written(taken.event, taken.instance.args, taken.before)
        if not new:
            raise ReadingsDisagree(f"nothing came to life by {taken.event.name}")
        raise _CameToLife(frozenset(cells.cells[n].path for n in new))

    def _chain(self, number: int) -> list[tuple[str, int]]:
        """The events on the way to a state, each with the number of the state after it."""
        chain = []
        while (parent := int(self.parents.slice(number, number + 1))) >= 0:
            before, transition = divmod(parent, len(self.expansion.transitions))
            chain.append((self._instance(transition).event.name, number))
            number = before
        return chain[::-1]

    def _run(self, found: _Found) -> tuple[Step, ...]:
        """The way to what was found as a run of the chapter itself, whatever states stand for it here."""
        chain = [(event, self._packed(number)) for event, number in self._chain(found.number)]
        taken = retraced(self.quotient, self.blame.stepper, self.explorer.start, chain)
        state = taken[-1].after if taken else self.explorer.start
        run = [Step(t.event.name, t.instance.args) for t in taken]
        if found.event is not None:
            run.append(self.blame.last(state, found.wrong, found.event))
        return tuple(run)

    def outcome(self, kept: frozenset[Path]) -> Outcome:
        violation = None
        if self.found is not None:
            wrong = self.found.wrong
            violation = Violation(wrong.kind, wrong.name, wrong.sentence, self._run(self.found))
        quotient = self.quotient
        packed = self.layout.packed(self.seen.rows.slice(0, len(self.seen)))
        return Outcome(
            scope=self.explorer.scope,
            states=quotient.states,
            distinct=len(self.seen),
            generated=self.generated,
            depth=max(len(self.levels) - 1, 0),
            levels=tuple(self.levels),
            complete=self.complete,
            violation=violation,
            fired=self.watch.fired,
            reached=self.watch.reached,
            cleared=quotient.cleared,
            kept=tuple(sorted(".".join(p) for p in kept)),
            renamed=quotient.renamed,
            unchanged=quotient.unchanged,
            covers=covers(self.explorer.chapter, quotient, packed) if self.complete and quotient.forms else None,
        )
