"""Runs a scenario of operations: every call is judged by the acceptor, every check looks at what the target shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from kvspec.model import operations as ops
from kvspec.model.acceptor import (
    CompositeAcceptor,
    EngineAcceptor,
    PagedAcceptor,
    PoolAcceptor,
    TieredAcceptor,
    judge_of,
)
from kvspec.model.acceptor.judging import View
from kvspec.model.conformance import (
    Capability,
    MakeTarget,
    MisuseError,
    PagedTarget,
    PoolConfig,
    Target,
    TargetError,
    UnusableError,
    checked_target,
)
from kvspec.model.engines.checks import block_at, measured
from kvspec.model.executable import Part
from kvspec.model.pools import Pools
from kvspec.model.promises import Violation
from kvspec.model.scenario import language as la
from kvspec.model.scenario.show import model_state, target_state
from kvspec.model.scenario.write import format_item

if TYPE_CHECKING:
    from kvspec.model.tracing.record import Recorder

Verdict = Literal["passed", "failed", "violated", "not observed"]


class LineResult(msgspec.Struct):
    """What became of one line.

    Attributes:
        number: the line in the file.
        text: the line as the language writes it.
        verdict: ``passed``; ``failed`` (something else was expected); ``violated`` (the spec does not allow it);
            ``not observed`` (the target cannot show it, and it holds in the model).
        outcome: what happened, in a few words.
        before, after: the state around a line that did not pass.
    """

    number: int
    text: str
    verdict: Verdict
    outcome: str = ""
    before: list[str] = msgspec.field(default_factory=list)
    after: list[str] = msgspec.field(default_factory=list)


class ScenarioResult(msgspec.Struct):
    """What became of a scenario.

    Attributes:
        name: of the scenario.
        verdict: the worst of its lines.
        lines: those that were run; a line that fails is the last one.
        skipped: how many were not run.
        family, rule, what: of the first step that no correct manager could have taken, expected or not: what it breaks,
            and what was wrong.
    """

    name: str
    verdict: Verdict
    lines: list[LineResult]
    skipped: int = 0
    family: str | None = None
    rule: str | None = None
    what: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    @property
    def last(self) -> LineResult:
        """The line at which the run ended."""
        return self.lines[-1]


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of all lines together."""
    order: tuple[Verdict, ...] = ("violated", "failed", "not observed", "passed")
    return next((v for v in order if v in verdicts), "passed")


class Seen(NamedTuple):
    """Answer to a check: the value, and whether the target itself showed it."""

    holds: bool
    shown: str
    observed: bool = True


Count = Callable[[View, Part], int]
"""What is counted on a rank: from what the target shows, or from the model."""


class OperationRun:
    """One run of a scenario of operations."""

    def __init__(
        self, scenario: la.Scenario, make_target: MakeTarget, pools: Pools, recorder: Recorder | None = None
    ) -> None:
        self.scenario, self._pools, self._recorder = scenario, pools, recorder
        target = _made(make_target, scenario.config)
        self.acceptor = judge_of(target, scenario.config, pool=pools.take(scenario.config))
        self.results: list[LineResult] = []
        self.outcome = ""
        self.value: Any = None
        self.hits: dict[str, int] = {}
        self.violation: Violation | None = None

    def run(self) -> ScenarioResult:
        """Run line after line, up to the first that does not pass."""
        if self._recorder is not None:
            self._recorder.begin(self.acceptor)
        try:
            return self._lines()
        finally:
            if self._recorder is not None:
                self._recorder.end()
            self.acceptor.leave()
            self._pools.give(self.acceptor.pool)

    def _lines(self) -> ScenarioResult:
        for at, line in enumerate(self.scenario.lines):
            result = self._line(at, line)
            self.results.append(result)
            if result.verdict not in ("passed", "not observed"):
                break
        verdicts = [r.verdict for r in self.results]
        found = self.violation
        return ScenarioResult(
            self.scenario.name,
            worst(verdicts),
            self.results,
            len(self.scenario.lines) - len(self.results),
            None if found is None else found.family.value,
            None if found is None else found.rule,
            "" if found is None else found.what,
        )

    def _line(self, at: int, line: la.Line) -> LineResult:
        before = model_state(self.acceptor)
        verdict, outcome = self._item(at, line.item)
        result = LineResult(line.number, format_item(line.item), verdict, outcome)
        if verdict in ("failed", "violated"):
            result.before, result.after = before, target_state(self.acceptor)
        return result

    def _item(self, at: int, item: la.Item) -> tuple[Verdict, str]:
        if isinstance(item, ops.Operation):
            return self._judged(at, lambda: self._operation(item))
        if isinstance(item, la.Drained):
            return self._judged(at, self._drain)
        if isinstance(item, la.Violated):
            return self._expected_violation(item)
        assert isinstance(item, la.Check)
        seen = self._check(item)
        if not seen.holds:
            return "failed", f"found {seen.shown}"
        return ("passed", seen.shown) if seen.observed else ("not observed", f"{seen.shown} in the model")

    # -- operations --------------------------------------------------------------------------------------------------

    def _judged(self, at: int, call: Callable[[], str]) -> tuple[Verdict, str]:
        """Make a call; an error or a violation passes only where the next lines expect it. Behind the last call
        everything is looked at."""
        following = [line.item for line in self.scenario.lines[at + 1 :]]
        is_last = not any(isinstance(item, ops.Operation | la.Drained) for item in following)
        error = None
        try:
            try:
                self.outcome = call()
            except MisuseError as raised:
                self.outcome, error = "error", raised
            if is_last:
                self.acceptor.sweep()
        except Violation as violation:
            self.violation = violation
            if self._recorder is not None:
                self._recorder.found(violation, self.acceptor)
            if not violation.swept:  # or the call was answered before
                self.outcome = "violation"
            expected = _expected(la.Violated, following)
            return "passed" if expected else "violated", f"{violation.family}/{violation.rule}: {violation.what}"
        if error is not None:
            return ("passed" if _expected(la.Error, following) else "failed"), f"error: {error}"
        return "passed", "" if self.outcome == "done" else self.outcome

    def _operation(self, operation: ops.Operation) -> str:
        self.value = value = self.acceptor.do(operation)
        match operation:
            case ops.AllocateShared():
                self.hits[operation.seq] = value
                return f"hit {value}"
            case ops.Evict() if value is not None:
                return f"evicted {value}"
            case ops.Reclaim():
                return f"unmapped {value}"
            case ops.Allocate() | ops.Reset():
                return "granted" if value else "refused"
            case ops.Save() | ops.SaveStart():
                return "saved" if value else "refused"
        return "done"

    def _drain(self) -> str:
        self.acceptor.drain()
        return "drained"

    def _expected_violation(self, check: la.Violated) -> tuple[Verdict, str]:
        found = self.violation
        if found is None:
            return "failed", "nothing was violated"
        if found.family.value != check.family or check.rule not in (None, found.rule):
            return "failed", f"found {found.family}/{found.rule}: {found.what}"
        return "passed", f"{found.family}/{found.rule}"

    # -- checks ------------------------------------------------------------------------------------------------------

    def _check(self, check: la.Check) -> Seen:
        match check:
            case la.Granted():
                done = self.outcome not in ("refused", "error", "violation")
                return Seen(done, "granted" if done else self.outcome)
            case la.Refused() | la.Error():
                wanted = "refused" if isinstance(check, la.Refused) else "error"
                return Seen(self.outcome == wanted, self.outcome)
            case la.Saved():
                return Seen(self.outcome == "saved", self.outcome)
            case la.OnRank() | la.Waiting() | la.State() | la.Loading():
                return self._resource(check)
            case la.Hit() if not isinstance(self.acceptor, EngineAcceptor):
                hit = self.hits.get(check.seq)
                return Seen(hit == check.num_tokens, "no allocate_shared" if hit is None else f"{hit}")
            case la.Evicted():
                return Seen(self.outcome == f"evicted {check.num_blocks}", self.outcome)
            case la.Shared() | la.Apart():
                return self._compare(check)
        return self._number(check)

    def _number(self, check: la.Check) -> Seen:
        """A check of a number that the target may or may not show."""
        try:
            wanted, found, observed = self._measure(check)
        except (KeyError, IndexError, MisuseError) as error:
            return Seen(False, f"nothing to look at ({_first_line(error)})")
        return Seen(found == wanted, f"{found}", observed)

    def _measure(self, check: la.Check) -> tuple[int, int, bool]:
        acceptor = self.acceptor
        if isinstance(acceptor, EngineAcceptor):
            return *measured(acceptor, check), True
        match check:
            case la.Free():
                if acceptor.sees(Capability.FREE_IDS):
                    return check.num_blocks, self._total(_part_of(check), lambda view, _: len(view.free_ids())), True
                seen = acceptor.sees(Capability.FREE_COUNT)
                count: Count = lambda view, part: view.free_count() if seen else len(part.free)  # noqa: E731
                return check.num_blocks, self._total(_part_of(check), count), seen
            case la.Used():
                seen = acceptor.sees(Capability.USED_COUNT)
                count = lambda view, part: view.used_count() if seen else part.used  # noqa: E731
                return check.num_blocks, self._total(_part_of(check), count), seen
            case la.Keys():
                seen = acceptor.sees(Capability.CACHED_KEYS)
                count = lambda view, part: len(view.cached() if seen else part.cached)  # noqa: E731
                return check.num_keys, self._total(check.rank, count), seen
            case la.References():
                rank, block = self._block(check.seq, check.index, check.group or 0)
                seen = acceptor.sees(Capability.REF_COUNTS)
                known = len(acceptor.part(rank).holders.get(block, ()))
                return check.num_holders, acceptor.views[rank].ref_count(block) if seen else known, seen
            case la.Blocks():
                return check.num_blocks, len(self._table(check.seq, check.group or 0)), True
            case la.Released():
                return check.num_blocks, self._released(check.seq, check.group or 0), True
            case la.Computed():
                return check.num_tokens, acceptor.target.num_computed(self._known(check.seq)), True
            case la.Singles():
                return check.num_singles, self._units(check.rank, "free_single_blocks"), True
            case la.Slots():
                return check.num_slots, self._units(check.rank, "free_state_slots"), True
            case la.Checkpoints():
                return check.num_checkpoints, self._units(check.rank, "checkpoints"), True
            case la.Mapped():
                return check.num_pages, len(self._paged().mapped_pages()), True
            case la.HostFree():
                return check.num_blocks, self._units(check.rank, "host_free_ids"), True
            case la.HostKeys():
                return check.num_keys, self._units(check.rank, "host_cached"), True
            case la.Transfers():
                return check.num_transfers, self._units(check.rank, "transfers"), True
        raise AssertionError(f"no meaning for {check!r}")

    def _ranks(self, rank: int | None) -> Sequence[int]:
        """The rank that is asked about, or all."""
        known = len(self.acceptor.views)
        if rank is not None and rank >= known:
            raise MisuseError(f"there is no {'group' if self.acceptor.config.manager_types else 'rank'} {rank}")
        return range(known) if rank is None else [rank]

    def _total(self, rank: int | None, count: Count) -> int:
        acceptor = self.acceptor
        return sum(count(acceptor.views[r], acceptor.part(r)) for r in self._ranks(rank))

    def _units(self, rank: int | None, what: str) -> int:
        """How many of something there are: single blocks, host blocks, copies."""
        if not isinstance(self.acceptor, PoolAcceptor):
            raise MisuseError("it is one manager, not a pool")
        return sum(len(getattr(self.acceptor.target, what)(r)) for r in self._ranks(rank))

    def _paged(self) -> PagedTarget:
        """The target, which has pages."""
        if not isinstance(self.acceptor, PagedAcceptor):
            raise MisuseError("it has no pages that are mapped on demand")
        return self.acceptor.target

    def _resource(self, check: la.OnRank | la.Waiting | la.State | la.Loading) -> Seen:
        """A check of what a sequence has in a pool."""
        acceptor = self.acceptor
        if not isinstance(acceptor, PoolAcceptor):
            return Seen(False, "it is one manager, not a pool")
        if check.seq not in acceptor.pool.requests:
            return Seen(False, f"{check.seq} is unknown")
        match check:
            case la.OnRank():
                rank = acceptor.target.rank(check.seq)
                return Seen(rank == check.number, "none" if rank is None else f"{rank}")
            case la.Waiting():
                waits = acceptor.pool.waits(check.seq)
                return Seen(waits, "it waits" if waits else "it does not wait")
            case la.Loading():
                loads = isinstance(acceptor, TieredAcceptor) and acceptor.pool.is_loading(check.seq)
                return Seen(loads, "it is loading" if loads else "it is not loading")
            case la.State():
                return _state(acceptor, check)

    def _compare(self, check: la.Shared | la.Apart) -> Seen:
        try:
            (rank, block), (other_rank, other) = (self._block(seq, check.index) for seq in (check.seq, check.other))
        except (KeyError, IndexError, MisuseError) as error:
            return Seen(False, _first_line(error))
        same = (rank, block) == (other_rank, other)
        shown = f"both have block {block}" if same else f"blocks {block} and {other}"
        if rank != other_rank:
            shown = f"block {block} of rank {rank} and block {other} of rank {other_rank}"
        return Seen(same == isinstance(check, la.Shared), shown)

    def _block(self, seq: str, index: int, group: int = 0) -> tuple[int, int]:
        """The block at a place of a table, behind its rank or group: each has blocks of the same numbers."""
        if isinstance(self.acceptor, EngineAcceptor):
            return group, block_at(self.acceptor, seq, index, group)
        table, first = self._table(seq, group), self._released(seq, group)
        if index not in range(first, first + len(table)):
            raise MisuseError(f"{seq} has no block {index}")
        return self.acceptor.rank_of(seq) or group, int(table[index - first])

    def _table(self, seq: str, group: int = 0) -> Sequence[int]:
        acceptor = self.acceptor
        if isinstance(acceptor, CompositeAcceptor):
            return acceptor.target.block_table(self._known(seq), group)
        return acceptor.target.block_table(self._known(seq))

    def _released(self, seq: str, group: int) -> int:
        """Leading places of a table that have no block any more; only composites have them."""
        acceptor = self.acceptor
        return acceptor.target.released(self._known(seq), group) if isinstance(acceptor, CompositeAcceptor) else 0

    def _known(self, seq: str) -> str:
        if seq not in self.acceptor.pool.requests:
            raise MisuseError(f"{seq} is unknown")
        return seq


def _made(make_target: MakeTarget, config: PoolConfig) -> Target:
    """A target for the scenario.

    Raises:
        TargetError: it is of another form than the scenario, or no target.
    """
    try:
        return checked_target(make_target, config)
    except UnusableError:
        raise
    except TargetError as error:
        raise TargetError(f"{error}; the scenario is for {config.form.words}") from error


def _part_of(check: la.Free | la.Used) -> int | None:
    """The rank or group that is asked about; None for all."""
    return check.rank if check.group is None else check.group


def _state(acceptor: PoolAcceptor, check: la.State) -> Seen:
    """Whether the live slot holds the state behind so many tokens; a waiting sequence has none to be read."""
    pool, seq = acceptor.pool, check.seq
    if pool.slot(seq) is None or pool.waits(seq):
        return Seen(False, f"{seq} {'waits' if pool.waits(seq) else 'has no live slot'}")
    if check.num_tokens > len(pool.requests[seq].tokens):
        return Seen(False, f"{seq} has {len(pool.requests[seq].tokens)} tokens")
    seen = acceptor.sees(Capability.STATES)
    found = acceptor.target.state(seq) if seen else acceptor.state_behind(seq, pool.requests[seq].computed)
    holds = found == acceptor.state_behind(seq, check.num_tokens)
    return Seen(holds, "it is" if holds else f"{pool.requests[seq].computed} tokens are computed", seen)


def _expected(kind: type[la.Check], following: Sequence[la.Item]) -> bool:
    """Whether one of the checks of this call is of that kind."""
    for item in following:
        if isinstance(item, kind):
            return True
        if isinstance(item, la.Drained) or not isinstance(item, la.Check):  # another call
            break
    return False


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
