"""Writes down what happens in pools that are judged: a log that ``kvspec trace`` reads.

The model explains what a manager does by events of a chapter, one after the other; these are the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import IO, Any, Final

import msgspec

from kvspec.model.acceptor import AnyAcceptor, EngineAcceptor, PoolAcceptor
from kvspec.model.compiled import Compiled, InvariantError, StepError
from kvspec.model.conformance import Capability, Form, PoolConfig, TargetError
from kvspec.model.eventlog import EventLog
from kvspec.model.promises import Violation
from kvspec.model.tracing.header import POOL
from kvspec.model.tracing.values import told
from kvspec.spec.language.terms import Term

CHAPTERS: Final = {
    Form.MANAGERS: "sequences",
    Form.PAGES: "sequences",
    Form.POOLS: "pool",
    Form.TIERS: "pool",
}
"""Forms of which a log can be written, and whose events it has.

Of pages and of the host tier it says nothing: these are other chapters. A composite begins with groups of several
sizes, and an engine has keys for each group of layers; no header can say either.
"""
_OF_WHAT_IS_FREE: Final = ("free_ids", "padding_free")
"""Rules that are broken by what a manager has as free."""
NOTE: Final = "recorded by kvspec"
"""What the headers of such a log have as their note."""


class NotLoggedError(TargetError):
    """Of what is driven no log can be written."""


class Recorder:
    """The log of one pool after the other; each begins with a header.

    Args:
        file: where to write.

    Attributes:
        events: how many were written.
        violated: a pool has done what no correct manager does.
        shows_violation: the log has a line that says so, the last one of that pool.
    """

    def __init__(self, file: IO[str]) -> None:
        self.events = 0
        self.violated = self.shows_violation = False
        self._file = file
        self._log: EventLog | None = None
        self._machine: Compiled | None = None
        self._plain: dict[str, Callable[..., None]] = {}

    def begin(self, judge: AnyAcceptor) -> None:
        """From now on the events of a pool, which is in its first state, are written."""
        config, machine = judge.config, judge.pool.machine  # type: ignore[union-attr]
        chapter = chapter_of(config.form)
        self._log = EventLog(self._file, chapter=chapter, complete=True, flush=None, note=NOTE, **_sizes(config))
        self._machine, self._plain = machine, dict(machine.events)
        for name, fire in self._plain.items():
            machine.events[name] = self._recorded(name, fire)

    def found(self, violation: Violation, judge: AnyAcceptor) -> None:
        """The pool has done what no correct manager does.

        If that is an event, it is written; if other things are free for the manager than for the model, a snapshot is.
        """
        self.violated = True
        if self._machine is None or self._log is None:
            return
        cause = violation
        while isinstance(cause.__cause__, Violation):
            cause = cause.__cause__
        step, chapter = cause.__cause__, self._machine.chapter
        if isinstance(step, (StepError, InvariantError)):
            name = step.event.name
            if name in chapter.event_names and chapter.event(name) is step.event:
                self._write(name, step.arguments)
                self.shows_violation = True
        elif cause.rule in _OF_WHAT_IS_FREE and judge.sees(Capability.FREE_IDS) and (shown := _other_free(judge)):
            self._log.snapshot(shown)
            self.shows_violation = True

    def end(self) -> None:
        """No more is written of the pool, whose events are as they were."""
        if self._machine is not None:
            self._machine.events.update(self._plain)
        self._log = self._machine = None

    def _recorded(self, name: str, fire: Callable[..., None]) -> Callable[..., None]:
        def recorded(*values: Any) -> None:
            fire(*values)
            self._write(name, values)

        return recorded

    def _write(self, name: str, values: tuple[Any, ...]) -> None:
        assert self._log is not None and self._machine is not None
        parameters: tuple[Term, ...] = self._machine.chapter.event(name).parameters
        self._log.event(name, **{p.data[0]: told(v, p.sort) for p, v in zip(parameters, values, strict=True)})
        self.events += 1


def chapter_of(*forms: Form) -> str:
    """Whose events a log of pools of these forms has.

    Raises:
        NotLoggedError: there is no such chapter, or more than one.
    """
    found = {CHAPTERS.get(form) for form in forms}
    chapter = found.pop() if len(found) == 1 else None
    if chapter is None:
        raise NotLoggedError(f"a log of {' and '.join(forms)}")
    return chapter


def _sizes(config: PoolConfig) -> dict[str, Any]:
    """What the header says of the pool: all that is not as usual."""
    usual = {f.name: f.default for f in msgspec.structs.fields(PoolConfig)}
    return {name: value for name in POOL if (value := getattr(config, name)) != usual[name]}


def _other_free(judge: AnyAcceptor) -> dict[str, Any]:
    """What is free for the manager, where it is not what is free: of blocks, single blocks and state slots, by the
    variables of the chapter."""
    assert not isinstance(judge, EngineAcceptor)
    if not isinstance(judge, PoolAcceptor):
        (view,) = judge.views
        shown = set(view.free_ids())
        return {} if shown == judge.part(0).free else {"blocks.free": shown}
    pool, target, ranks = judge.pool, judge.target, range(judge.config.num_ranks)
    both: dict[str, list[tuple[Set[int], Set[int]]]] = {
        "blocks.free": [(target.free_ids(r), judge.part(r).free) for r in ranks],
        "single.ids.free": [(target.free_single_blocks(r), pool.free_singles(r)) for r in ranks],
    }
    if judge.config.has_linear_state:
        both["slots.ids.free"] = [(target.free_state_slots(r), pool.free_slots(r)) for r in ranks]
    return {
        name: {rank: set(shown) for rank, (shown, _) in enumerate(sets)}
        for name, sets in both.items()
        if any(shown != known for shown, known in sets)
    }
