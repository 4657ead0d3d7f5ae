"""Runs a case again, on a new target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kvspec.model.acceptor import AnyAcceptor, judge_of
from kvspec.model.conformance import Bounded, MakeTarget, MisuseError, TargetError, UnusableError, checked_target
from kvspec.model.operations import AnyOperation
from kvspec.model.pools import Pools
from kvspec.model.promises import Violation
from kvspec.model.reporting.known import KnownFindings
from kvspec.model.scenario.show import model_state, target_state
from kvspec.model.shrink import Case

SHORT_PATIENCE: Final = 0.2
"""Seconds for a call while a run is made smaller; what is left is run again with more."""


class Replayed(NamedTuple):
    """What became of a case that was run again."""

    violation: Violation | None
    errors: tuple[bool, ...]


class Replayer:
    """Runs cases on new targets."""

    def __init__(self, make_target: MakeTarget, pools: Pools | None = None) -> None:
        self.make_target = make_target
        self.pools = pools or Pools()
        self._bounded = False

    def run(
        self, case: Case, describe: bool = False, sweep: bool = True, patience: float | None = None
    ) -> Replayed:
        """Run the case; with `describe` a violation of its last operation gets the states before and after, with
        `sweep` everything is looked at behind it. A call has `patience` seconds to return (see `judge_of`)."""
        target = checked_target(self.make_target, case.config)
        self._bounded = isinstance(target, Bounded)
        judge = judge_of(target, case.config, pool=self.pools.take(case.config), patience=patience)
        try:
            return self._judged(judge, case, describe, sweep)
        finally:
            judge.leave()
            self.pools.give(judge.pool)

    def _judged(self, judge: AnyAcceptor, case: Case, describe: bool, sweep: bool) -> Replayed:
        errors: list[bool] = []
        before: list[str] = []
        for number, operation in enumerate(case.operations, 1):
            if describe and number == len(case.operations):
                before = model_state(judge)
            try:
                errors.append(_is_error(judge, operation))
                if sweep and number == len(case.operations):
                    judge.sweep()
            except Violation as violation:
                violation.before, violation.after = before, target_state(judge) if describe else []
                return Replayed(violation, (*errors, False)[:number])
        return Replayed(None, tuple(errors))

    def fails_like(self, violation: Violation, known: KnownFindings | None = None) -> Callable[[Case], bool]:
        """Whether a case breaks the same rule with its last operation, and in no way that is known."""

        def fails(case: Case) -> bool:
            if violation.rule == "no_return" and case.config.num_threads == 1 and not self._bounded:
                return False  # nobody looks whether a call returns that is made from here
            try:
                found = self.run(case, sweep=violation.swept, patience=SHORT_PATIENCE).violation
            except UnusableError:
                raise
            except TargetError:
                return False  # it may not be made as small as that
            if found is None or (known is not None and known.fitting(found)):
                return False
            return shows(case, found, violation)

        return fails


def _is_error(judge: AnyAcceptor, operation: AnyOperation) -> bool:
    try:
        judge.do(operation)
    except MisuseError:
        return True
    return False


def shows(case: Case, found: Violation, wanted: Violation) -> bool:
    """Whether what was found breaks the same rule by the last operation."""
    return (found.family, found.rule, found.number) == (wanted.family, wanted.rule, len(case.operations))
