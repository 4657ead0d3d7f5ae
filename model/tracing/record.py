"""Writes down what a model does while it explains a manager: a log that ``kvspec trace`` reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvspec.model.compiled import Compiled
from kvspec.model.eventlog import EventLog
from kvspec.model.tracing.values import told
from kvspec.spec.language.terms import Term


def record(machine: Compiled, log: EventLog) -> None:
    """From now on every event of the machine that is possible goes into the log."""
    for name, fire in list(machine.events.items()):
        machine.events[name] = _recorded(name, fire, machine.chapter.event(name).parameters, log)


def _recorded(name: str, fire: Callable[..., None], parameters: tuple[Term, ...], log: EventLog) -> Callable[..., None]:
    def recorded(*values: Any) -> None:
        fire(*values)
        log.event(name, **{p.data[0]: told(v, p.sort) for p, v in zip(parameters, values, strict=True)})

    return recorded
