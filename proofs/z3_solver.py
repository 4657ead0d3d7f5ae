"""Z3 on the problems of a group: instances by matching first, which decides quickly; models as a last resort.

Work is limited by Z3's own count of steps with fixed seeds, never by time, so verdicts do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterable

import z3

from kvspec.proofs.translate import Translator
from kvspec.spec.language.terms import Term

QUICK, LONG = 3_000_000, 1_000_000


def checked(solver: z3.Solver) -> bool | None:
    """True for satisfiable, False for unsatisfiable, None where Z3 does not know.

    Raises:
        KeyboardInterrupt: Z3 catches Ctrl-C itself and only reports it.
    """
    answer = solver.check()
    if answer == z3.unknown:
        if "interrupted" in solver.reason_unknown():
            raise KeyboardInterrupt
        return None
    return bool(answer == z3.sat)


class Z3Session:
    """One solver for all problems of a group."""

    name = "z3"

    def __init__(self, base: Iterable[Term]) -> None:
        self._translator = Translator()
        self._base = [self._translator.expression(t) for t in base]
        self._solver = self._new(QUICK, matching_only=True)
        self._counted = 0
        self.steps = 0
        """How many of Z3's steps the last question took."""

    def _new(self, limit: int, matching_only: bool) -> z3.Solver:
        solver = z3.Solver(ctx=self._translator.context)
        solver.set(rlimit=limit, random_seed=0, ctrl_c=False)  # or Z3 may swallow an interruption
        if matching_only:
            solver.set(auto_config=False, mbqi=False)
        solver.add(*self._base)
        return solver

    def refutes(self, refutation: Iterable[Term]) -> bool:
        """Whether the base and these cannot hold together, by matching alone."""
        self._solver.push()
        try:
            self._solver.add(*map(self._translator.expression, refutation))
            answer = checked(self._solver)
            counted = self._solver.statistics().get_key_value("rlimit count")
            self.steps, self._counted = counted - self._counted, counted
            return answer is False
        finally:
            self._solver.pop()

    def refutes_with_effort(self, refutation: Iterable[Term]) -> bool:
        """The same with models searched for and a higher limit."""
        for matching_only, limit in ((True, QUICK), (False, LONG)):
            solver = self._new(limit, matching_only)
            solver.add(*map(self._translator.expression, refutation))
            if checked(solver) is False:
                return True
        return False
