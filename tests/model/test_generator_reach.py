"""What the generator reaches in pools: every call in every state of a request, with held blocks, behind refusals."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import NamedTuple

import kvspec.model.operations as ops
from kvspec.model.acceptor import PoolAcceptor
from kvspec.model.conformance import MisuseError, PoolConfig
from kvspec.model.executable import RankedPool
from kvspec.model.generator import Generator, Kind, RandomSource, ranked_config
from kvspec.model.operations import AnyOperation
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelPoolTarget

EPISODES, LENGTH = 200, 110
POOLS = Pools(watch=False)


class Met(NamedTuple):
    """A call, the state of its request, whether somebody outside holds a block of that, and what became of the call."""

    call: str
    state: str
    held: bool
    outcome: str


def state(pool: RankedPool, seq: str) -> str:
    """What a request has, and what it waits for."""
    if seq not in pool.requests:
        return "unknown"
    if not pool.is_in(seq):
        return "new" if pool.rank(seq) is None else "out"
    if pool.waits(seq):
        return "restoring" if pool.is_restoring(seq) else "waiting"
    if pool.is_saving(seq):
        return "saving"
    return "running" if pool.size(seq) else "emptied"


def concerned(pool: RankedPool, operation: AnyOperation) -> list[tuple[str, str]]:
    """The call, in words, and the requests that it is about; all of them for those about the whole pool."""
    call = str(operation.__struct_config__.tag)
    match operation:
        case ops.Write():
            return [(call if count else "write nothing", seq) for seq, count in operation.batch]
        case ops.Reset() | ops.Evict():
            return [(call, seq) for seq in pool.requests]
        case ops.Truncate() if operation.seq in pool.requests:
            computed = pool.requests[operation.seq].computed
            return [("reject computed" if operation.num_tokens < computed else "reject known", operation.seq)]
        case ops.Start() | ops.Fork() | ops.Release() | ops.Close():
            return []
    return [(call, operation.seq)]


class Life:
    """One pool and what is asked of it."""

    def __init__(self, seed: int, config: PoolConfig, kind: Kind) -> None:
        self.pool = POOLS.take(config)
        self.judge = PoolAcceptor(ModelPoolTarget(config), config, every=0, pool=self.pool)
        self.generator = Generator(RandomSource(f"{seed}/life"), config, self.pool, self.judge.capabilities, kind)
        self.met: Counter[Met] = Counter()
        self.refused: int | None = None

    def run(self, length: int) -> None:
        """So many operations."""
        for _ in range(length):
            self._step(self.generator.next())

    def _step(self, operation: AnyOperation) -> None:
        about = [(call, state(self.pool, seq), self._held(seq)) for call, seq in concerned(self.pool, operation)]
        if isinstance(operation, ops.Evict) and self.refused not in (None, operation.rank):
            about.append(("evict elsewhere", "refused", False))
        outcome = self._outcome(operation)
        self.met.update(Met(*found, outcome) for found in set(about))
        seq = getattr(operation, "seq", "")
        self.refused = self.pool.rank(seq) if outcome == "refused" and seq in self.pool.requests else None

    def _outcome(self, operation: AnyOperation) -> str:
        result = None
        try:
            result = self.judge.do(operation)
        except MisuseError:
            return "error"
        finally:
            self.generator.saw(result)
        return "refused" if result is False else "done"

    def _held(self, seq: str) -> bool:
        if seq not in self.pool.requests:
            return False
        holders = self.pool.part(seq).holders
        found = (h for block in self.pool.table(seq) for h in holders[block])
        return any(h[0] not in ("seq_at", "cache_of") for h in found)


@cache
def met(kind: Kind = Kind.MIXED, episodes: int = EPISODES) -> Counter[Met]:
    """What is met in pools of all kinds, and how often."""
    found: Counter[Met] = Counter()
    for seed in range(episodes):
        config = ranked_config(RandomSource(f"{seed}/config"), linear=True)
        life = Life(seed, config, kind)
        life.run(LENGTH)
        found += life.met
        if not config.has_linear_state:
            found[Met("copy", "running", True, "done")] += life.judge.counts["copies"]
        POOLS.give(life.pool)
    return found


def times(call: str, state: str, outcome: str, *, held: bool = False) -> int:
    """How often a call of one of these kinds was met in a state, with `held` only where a block was held outside."""
    return sum(
        number
        for found, number in met().items()
        if found.call in call.split("/") and found.state == state and found.outcome == outcome and found.held >= held
    )


COPYING = ("waiting", "restoring", "saving")
IN = ("running", *COPYING)
EVERYWHERE = ("new", "out", "emptied", *IN)
GOES_ON = ("append", "allocate", "cache", "preempt", "abort", "deallocate", "reject known")

LEGAL = [
    *((call, state) for call in (*GOES_ON, "evict", "reset") for state in EVERYWHERE),
    *((call, state) for call in ("hold", "reject computed") for state in IN),
    ("allocate_shared", "new"), ("allocate_shared", "out"), ("allocate_shared", "emptied"),
    ("write", "running"), ("save", "running"), ("save_start", "running"), ("save_finish", "saving"),
    ("restore", "waiting"), ("restore_start", "waiting"), ("restore_finish", "restoring"),
]  # fmt: skip
WRONG = [
    *(("write", state) for state in EVERYWHERE),
    *(("save/save_start", state) for state in ("new", "out", *COPYING)),
    *(("save_finish", state) for state in ("new", "out", "running", "waiting", "restoring")),
    *(("restore/restore_start", state) for state in ("new", "out", "running", "saving", "restoring")),
    *(("restore_finish", state) for state in ("new", "running", "waiting", "saving")),
    ("allocate_shared", "running"), ("hold", "new"), ("hold", "running"),
]  # fmt: skip
REFUSED = [("allocate", state) for state in EVERYWHERE] + [("save", "running"), ("save_start", "running")]
HELD = [(call, state) for call in (*GOES_ON, "reject computed", "evict") for state in IN]


def rare(pairs: list[tuple[str, str]], outcome: str, least: int, *, held: bool = False) -> list[tuple[str, str]]:
    """Pairs of a call and a state that are met less often."""
    return [pair for pair in pairs if times(*pair, outcome, held=held) < least]


def test_every_legal_call_is_made_in_every_state_of_a_request() -> None:
    assert rare(LEGAL, "done", 3) == []


def test_every_call_that_a_state_forbids_is_made() -> None:
    assert rare(WRONG, "error", 1) == []


def test_what_can_be_refused_is_refused() -> None:
    assert rare(REFUSED, "refused", 3) == []


def test_every_state_is_met_with_a_block_that_somebody_outside_holds() -> None:
    assert rare(HELD, "done", 1, held=True) == []


def test_steps_are_asked_for_while_a_copy_runs() -> None:
    for state, least in (("waiting", 8), ("restoring", 5), ("saving", 20)):
        assert times("write", state, "error") >= least


def test_held_blocks_are_copied_where_rejected_tokens_are_computed_anew() -> None:
    assert times("copy", "running", "done") >= 20


def test_another_rank_evicts_behind_a_refusal() -> None:
    assert times("evict elsewhere", "refused", "done") >= 5


def test_valid_operations_make_no_call_that_a_copy_forbids() -> None:
    assert not [found for found in met(Kind.VALID, 40) if found.state in COPYING and found.outcome == "error"]
