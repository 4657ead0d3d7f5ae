"""One call of a target and its outcome: a result, a refusal, an error, or a violation."""

from __future__ import annotations

import contextlib
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from kvspec.model.acceptor.threads import InThreads
from kvspec.model.compiled import InvariantError, StepError
from kvspec.model.conformance import (
    CacheEvent,
    Capability,
    MisuseError,
    NoReturnError,
    PoolConfig,
    RemoteError,
    Target,
    TargetError,
    told,
)
from kvspec.model.executable import Part, Tables
from kvspec.model.promises import Family, Violation
from kvspec.spec import CHAPTERS

P = TypeVar("P", bound=Tables)


class View(Protocol):
    """What can be seen of one rank, and asked of it alone."""

    def free_ids(self) -> set[int]: ...
    def free_count(self) -> int: ...
    def used_count(self) -> int: ...
    def ref_count(self, block_id: int) -> int: ...
    def cached(self) -> Mapping[bytes, int]: ...
    def drain_events(self) -> Sequence[CacheEvent]: ...
    def evict(self, num_blocks: int) -> int: ...
    def hold(self, block_id: int) -> int: ...


class Look(NamedTuple):
    """A method that shows something of one rank or group.

    Attributes:
        name: of the method.
        needs: what the target has to have.
        given: what it takes before the rank or group.
    """

    name: str
    needs: Capability
    given: tuple[object, ...] = ()


class Judging(ABC, Generic[P]):
    """A target together with its judge.

    Args:
        target: an instance of the target.
        config: the pool that it was made with.
        pool: the model, in its first state.
        every: compare all observations after every n-th operation (0: only when `sweep` is called).
        views: what is seen of each rank.

    Attributes:
        counts: how often what happened.
        number: of the operation, from 1.
        closed: the target has been closed.
    """

    chapter: str
    """The chapter whose events explain what the target does."""
    step_families: Mapping[str, Family]
    """What a target breaks if one of these events is not allowed."""

    def __init__(self, target: Target, config: PoolConfig, pool: P, every: int, views: Sequence[View]) -> None:
        self.target, self.config, self.every = target, config, every
        self.capabilities = target.capabilities
        self.hit_limit = target.hit_limit
        self.pool: P = pool
        self.views = views
        self._by_rank: Sequence[Part] = pool.parts()
        self.counts: Counter[str] = Counter()
        self.number = 0
        self.closed = False
        self._compared = 0

    def sees(self, capability: Capability) -> bool:
        """The target shows this, or takes it."""
        return capability in self.capabilities

    def needs(self, capability: Capability) -> None:
        """A call of what a target need not have.

        Raises:
            TargetError: it does not have it.
        """
        if not self.sees(capability):
            raise TargetError(f"lacks the capability {capability}, which the scenario needs")

    def leave(self) -> None:
        """Nothing more is asked of the target: threads that have called it end."""
        if isinstance(self.target, InThreads):
            self.target.leave()

    @abstractmethod
    def compare(self) -> None:
        """Compare everything that the target shows with the model."""

    @abstractmethod
    def _drain(self) -> list[CacheEvent]:
        """What the target reports since the last call."""

    @abstractmethod
    def _infer(self) -> None:
        """Find out which keys a target without events has dropped."""

    @abstractmethod
    def _all_explained(self) -> None:
        """The call is explained, or it cannot be."""

    def rank_of(self, seq: str) -> int:
        """The rank of the sequence; 0 without ranks, and while it has none."""
        return 0

    def part(self, rank: int) -> Part:
        """A rank, as the model knows it."""
        return self._by_rank[rank]

    def _judge(
        self,
        verb: str,
        arguments: tuple[object, ...],
        call: Callable[[], Any],
        explain: Callable[[Any], None],
        misuse: str | None,
        either: bool = False,
    ) -> Any:
        """Make the call, explain its outcome by events, compare observations.

        With ``misuse`` the call must be an error, with ``either`` it may be one.
        """
        self.number += 1
        self.counts[verb] += 1
        try:
            if self.closed:
                misuse = "the target is closed"
            result, error = self._call(call, misuse)
            if error is None and misuse is not None:
                what = f"{misuse}; the target accepted the call and said {result!r}"
                raise Violation(Family.MISUSE, "error_expected", what)
            if error is not None and misuse is None and not either:
                what = f"a legal call was answered with: {error}"
                raise Violation(Family.MISUSE, "legal_call_refused", what) from error
            self._explained(explain, result, error)
        except Violation as violation:
            violation.number, violation.operation = self.number, " ".join(map(str, (verb, *arguments)))
            raise
        if error is not None:
            raise error
        return result

    def _call(self, call: Callable[[], Any], misuse: str | None) -> tuple[Any, MisuseError | None]:
        """What the target answers: a result, or an error."""
        try:
            return call(), None
        except MisuseError as error:
            return None, error
        except NoReturnError as error:
            raise Violation(Family.MISUSE, "no_return", str(error)) from error
        except TargetError:
            raise
        except Exception as error:
            what = f"the target failed{':' if isinstance(error, RemoteError) else ' with'} {_failure(error)}"
            raise Violation(Family.MISUSE, "crash", f"{misuse}; {what}" if misuse else what) from error

    def _nothing_there(self, looks: Iterable[Look], kind: str, number: int) -> None:
        """There is no rank or group of that number, and to look at it is an error."""
        for look in looks:
            if not self.sees(look.needs):
                continue
            arguments = (*look.given, number)
            call = partial(getattr(self.target, look.name), *arguments)
            found, error = self._call(call, f"there is no {kind} {number}")
            if error is None:
                called = f"{look.name}({', '.join(map(str, arguments))})"
                what = f"{called} is of a {kind} that there is not; the target said {found!r}"
                raise Violation(Family.MISUSE, "error_expected", what)

    def _explained(self, explain: Callable[[Any], None], result: Any, error: MisuseError | None) -> None:
        """The answer as events, and all observations compared."""
        if error is not None:
            self.counts["errors"] += 1
            self._shown(lambda: self._unchanged("error_changes_nothing"))
            return
        self._shown(lambda: self._by_events(explain, result))
        if self.every and self.number % self.every == 0 and self._compared != self.number and not self.closed:
            self._shown(self.compare)

    def _by_events(self, explain: Callable[[Any], None], result: Any) -> None:
        try:
            explain(result)
        finally:
            self._all_explained()  # where an eviction was not possible, nothing behind it is the first fault
        self._behind()

    def _behind(self) -> None:
        """What else the call has left, once it is explained."""

    def _shown(self, look: Callable[[], None]) -> None:
        """Look at what the target shows; whatever fails then, it has shown."""
        try:
            look()
        except StepError as step:
            raise self._forbidden(step) from step
        except InvariantError as broken:
            raise Violation(Family.INVARIANT, broken.broken.statement.name, str(broken)) from broken
        except (Violation, TargetError):
            raise
        except NoReturnError as stuck:
            raise Violation(Family.MISUSE, "no_return", str(stuck)) from stuck
        except Exception as failure:
            what = f"what the target answers or shows is of no use: {_failure(failure)}"
            raise Violation(Family.MISUSE, "crash", what) from failure

    def _unchanged(self, rule: str) -> None:
        """After an error or a refusal the target shows what it showed before."""
        if self.closed:
            return
        found = self._drain()
        if found:
            what = f"block {found[0].block_id} was {found[0].kind} by a call that did nothing"
            raise Violation(Family.ATOMIC_FAILURE, rule, what)
        self._infer()
        if not self.every:
            return
        try:
            self.compare()
        except Violation as violation:
            if self.every > 1:
                raise
            raise Violation(Family.ATOMIC_FAILURE, rule, f"the call did nothing, but {violation.what}") from violation
        self._compared = self.number

    def _forbidden(self, error: StepError) -> Violation:
        family = self.step_families.get(error.event.name, Family.INVARIANT)
        arguments = " ".join(map(str, error.arguments))
        shown = "".join(f"; {words}" for words in self._step_words(error))
        where = f"the spec forbids it here ({error.requirement.where})"
        chapter = self._chapter_of(error.event.name)
        more = f"; see kvspec explain {chapter}.{error.event.name}" if chapter in CHAPTERS else ""
        return Violation(family, error.event.name, f"{error.event.name} {arguments}: {where}{shown}{more}")

    def _chapter_of(self, event: str) -> str:
        """The chapter that an event is of."""
        return self.chapter

    @abstractmethod
    def _step_words(self, error: StepError) -> Sequence[str]:
        """What can be said of the things that an event is about."""

    def holders(self, block: int, rank: int = 0) -> str:
        """Who holds a block, in words."""
        if block == 0:
            return "the padding block"
        found = self.part(rank).holders.get(block)
        if not found:
            return "free"
        return "held by " + ", ".join(sorted(f"{h[1]}[{h[2]}]" if h[0] == "seq_at" else _other(h) for h in found))

    def _unknown(self, seq: str) -> str | None:
        return None if seq in self.pool.requests else f"{seq} is unknown"


def _failure(error: Exception) -> str:
    """An exception in words: what, and where."""
    return told(error) + ("" if isinstance(error, RemoteError) else _last_frame(error))


def _last_frame(error: Exception) -> str:
    """Where an exception was raised: the file from the current folder on, and the line."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if Path(f.filename).parent != Path(__file__).parent]
    if not inside:
        return ""
    path = Path(inside[-1].filename)
    with contextlib.suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return f" ({path}:{inside[-1].lineno})"


def _other(holder: tuple[Any, ...]) -> str:
    return f"the cache of {holder[1]}" if holder[0] == "cache_of" else f"the outside holder {holder[1]}"
