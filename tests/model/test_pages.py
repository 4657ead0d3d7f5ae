"""Managers with pages: what the judge lets pass and what not, and what can be had."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import msgspec
import pytest

from kvspec.model import operations as ops
from kvspec.model.acceptor import PagedAcceptor, judge_of
from kvspec.model.conform import ConformOptions, ConformReport, conform
from kvspec.model.conformance import Capability, Context, Form, MisuseError, PoolConfig, TargetError
from kvspec.model.executable import PagedPool
from kvspec.model.forms import with_fixed
from kvspec.model.generator import RandomSource
from kvspec.model.generator_paged import paged_config
from kvspec.model.pools import Pools
from kvspec.model.promises import Violation
from kvspec.model.reference import ModelPagedTarget
from kvspec.model.reference.paged import OF_PAGES
from kvspec.model.scenario import parse_scenario, run_scenario

POOLS = Pools()
ACROSS = PoolConfig(num_blocks=6, block_size=3, num_pages=3, page_size=4)
"""Blocks 1 and 2 lie across a border, block 3 does not."""


# -- what is let pass --------------------------------------------------------------------------------------------------


def test_the_model_holds_and_every_family_was_judged() -> None:
    report = conform(ModelPagedTarget, ConformOptions(operations=6000, form=Form.PAGES), pools=POOLS)
    assert report.violation is None
    assert {f.verdict for f in report.families} == {"holds"}
    assert {"pages", "progress"} <= {f.family for f in report.families}
    assert report.counts["mapped"] > 50 and report.counts["reclaimed"] > 50 and report.counts["fail_mappings"] > 50


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "shown", [OF_PAGES, {Capability.CONTENTS, Capability.FORK, Capability.HOLD}, {Capability.CACHED_KEYS}, set()]
)
def test_any_choice_is_let_pass_whatever_is_shown(seed: int, shown: set[Capability]) -> None:
    capabilities = frozenset(shown | {Capability.PAGES})
    options = ConformOptions(operations=1500, seed=seed, form=Form.PAGES)
    report = conform(lambda c: ModelPagedTarget(c, seed=seed, capabilities=capabilities), options, pools=POOLS)
    assert report.violation is None


class Eager(ModelPagedTarget):
    """Maps ahead of need, and unmaps whatever is idle, in any call."""

    def append(self, seq: str, tokens: list[int]) -> None:  # type: ignore[override]
        super().append(seq, tokens)
        pool = self._pool
        self._map({*pool.mapped, *sorted(set(range(pool.num_pages)) - pool.mapped)[: len(pool.frames)]})

    def abort(self, seq: str) -> None:
        super().abort(seq)
        self._reclaim(self._pool.idle_pages, 2)


def test_pages_may_come_and_go_in_any_call() -> None:
    report = conform(Eager, ConformOptions(operations=3000, form=Form.PAGES), pools=POOLS)
    assert report.violation is None and report.counts["mapped"] > 100


# -- what is not -------------------------------------------------------------------------------------------------------


class Elsewhere(ModelPagedTarget):
    def mapped_pages(self) -> set[int]:
        return {*super().mapped_pages(), 1000}


class Boasts(ModelPagedTarget):
    """Says that all pages are mapped where there are too few physical ones."""

    def mapped_pages(self) -> set[int]:
        every = set(range(self._pool.num_pages))
        return every if len(super().mapped_pages()) == self.config.num_pages else super().mapped_pages()


class Busy(ModelPagedTarget):
    """Reclaims although the call is an error."""

    def evict(self, num_blocks: int) -> int:
        if num_blocks < 0:
            self._reclaim(self._pool.idle_pages, 1)
        return super().evict(num_blocks)


class Miscounts(ModelPagedTarget):
    def reclaim(self, num_pages: int) -> int:
        return super().reclaim(num_pages) + (num_pages > 0)


class Lazy(ModelPagedTarget):
    def reclaim(self, num_pages: int) -> int:
        return super().reclaim(min(num_pages, 0))


class Timid(ModelPagedTarget):
    """Refuses as soon as a page would have to be mapped."""

    def _make_room(self, seq: str, need: int) -> bool:
        return need <= len(self._pool.ready) + self._pool.reclaimable and super()._make_room(seq, need)


class Resigned(ModelPagedTarget):
    """After one mapping has failed no other page is tried, then or later."""

    def _map(self, wanted: set[int]) -> set[int]:
        self.failed = super()._map(wanted) or getattr(self, "failed", set())
        return set(range(self._pool.num_pages)) if self.failed else set()


class Deaf(ModelPagedTarget):
    """A mapping that fails is taken for one that did not: what is written there is lost."""

    def write(self, batch):  # type: ignore[no-untyped-def]
        super().write(batch)
        for page in self.half:
            begin = page * self.config.page_size
            self._cells.reshape(-1)[begin : begin + self.config.page_size] = -1

    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        self.half: set[int] = set()

    def _map(self, wanted: set[int]) -> set[int]:
        for page in sorted(wanted - self._pool.mapped):
            if self._failing and self._failing.popleft():
                self.half.add(page)
        self._failing.clear()
        return super()._map(wanted)


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        (Elsewhere, "pages/mapped_pages"),
        (Boasts, "pages/map_region"),
        (Busy, "atomic_failure/error_changes_nothing"),
        (Miscounts, "pages/reclaimed_count"),
        (Lazy, "pages/reclaim_enough"),
        (Timid, "progress/refused_for_cause"),
        (Resigned, "progress/refused_for_cause"),
        (Deaf, "content/content"),
    ],
)
def test_a_fault_is_found_named_and_shrunk(target: type[ModelPagedTarget], rule: str) -> None:
    found = conform(target, ConformOptions(operations=20_000, form=Form.PAGES), pools=POOLS).violation
    assert found is not None
    assert f"{found.family}/{found.rule}" == rule, found.what
    assert found.shrunk and found.reproduced and len(found.operations) <= 8, found.operations


def test_what_is_left_of_failing_mappings_reads_back() -> None:
    report = conform(Resigned, ConformOptions(operations=8000, form=Form.PAGES), pools=POOLS)
    assert report.violation is not None
    failing = [o.failing for o in report.violation.operations if isinstance(o, ops.FailMappings)]
    assert failing and all(type(fails) is bool for some in failing for fails in some)
    assert msgspec.json.decode(msgspec.json.encode(report), type=ConformReport) == report


def test_a_target_that_does_not_show_its_pages_is_not_judged() -> None:
    target = ModelPagedTarget(ACROSS, capabilities=OF_PAGES - {Capability.PAGES})
    with pytest.raises(TargetError, match="lacks the capability pages"):
        judge_of(target, ACROSS)


def refused(target: type[ModelPagedTarget], failing: tuple[bool, ...], calls: int) -> None:
    """A sequence asks so often for all blocks of a pool while mappings fail."""
    judge = PagedAcceptor(target(ACROSS), ACROSS)
    judge.start("a", [0] * 9, Context())
    judge.fail_mappings(failing)
    for _ in range(calls):
        assert not judge.allocate("a", 9)


def test_a_failed_mapping_excuses_one_refusal() -> None:
    refused(Timid, (True,), 1)
    with pytest.raises(Violation, match="3 blocks were refused although 3 free ones can be had"):
        refused(Timid, (True,), 2)
    with pytest.raises(Violation, match="3 blocks were refused"):
        refused(Timid, (), 1)


# -- what can be had ---------------------------------------------------------------------------------------------------


def most_by_trying(pool: PagedPool) -> int:
    """The largest set of free blocks whose pages, with those in use, are not more than there are physical ones."""
    used = pool.pages_of(b for b in range(pool.config.num_blocks) if b not in pool.free)
    free = sorted(pool.free)
    fits: Callable[[tuple[int, ...]], bool] = lambda some: (  # noqa: E731
        len(used | pool.pages_of(some)) <= pool.config.num_pages
    )
    return max(n for n in range(len(free) + 1) if any(map(fits, combinations(free, n))))


@pytest.mark.parametrize("seed", range(40))
def test_what_can_be_had_is_the_most_that_fits(seed: int) -> None:
    source = RandomSource(seed)
    config = paged_config(source)
    while config.num_blocks > 10:
        config = paged_config(source)
    pool = PagedPool(config)
    pool.start("a", [0], Context())
    for _ in range(source.integer(0, 3)):
        fitting = [b for b in sorted(pool.free) if len(pool.pages_of([b]) - pool.mapped) <= len(pool.frames)]
        if fitting:
            block = source.choice(fitting)
            for page in pool.pages_of([block]) - pool.mapped:
                pool.map(page)
            pool.take("a", block)
    found = pool.can_be_had()
    assert set(found) <= pool.free and len(set(found)) == len(found) == most_by_trying(pool)


def test_the_padding_block_must_fit() -> None:
    with pytest.raises(ValueError, match="num_pages: 1 pages of 2 tokens, expected room for the padding block, of 3"):
        PoolConfig(num_blocks=4, block_size=3, num_pages=1, page_size=2)


@pytest.mark.parametrize(
    ("fixed", "sizes"),
    [
        ({"block_size": 9}, (9, 3, 4)),
        ({"block_size": 13}, (13, 4, 4)),
        ({"block_size": 13, "num_pages": 1}, (13, 1, 13)),
        ({"num_pages": 1, "page_size": 2}, (2, 1, 2)),
    ],
)
def test_what_is_not_fixed_gives_way(fixed: dict[str, int], sizes: tuple[int, int, int]) -> None:
    config = with_fixed(ACROSS, fixed)
    assert (config.block_size, config.num_pages, config.page_size) == sizes


# -- scenarios ---------------------------------------------------------------------------------------------------------

IN_WORDS = """
pool 6 block 3 pages 3 page 4
start a 0..5
allocate a 6
expect granted
expect mapped 3
reclaim 5
expect mapped 3
abort a
reclaim 1
expect mapped 2
reclaim 5
expect mapped 1
expect free 5
reclaim -1
expect error
"""


def test_a_scenario_can_ask_for_pages() -> None:
    result = run_scenario(parse_scenario(IN_WORDS), ModelPagedTarget)
    assert result.passed, result.last
    failing = run_scenario(parse_scenario(IN_WORDS.replace("mapped 2", "mapped 3")), ModelPagedTarget)
    assert failing.verdict == "failed" and failing.last.outcome == "found 2"
    assert {"mapped pages 0 1", "free physical pages: 1"} <= {*failing.last.before}
    assert {"mapped pages 0 1", "free physical pages: 1 (known)"} <= {*failing.last.after}


def test_a_closed_manager_answers_nothing() -> None:
    judge = PagedAcceptor(ModelPagedTarget(ACROSS), ACROSS)
    judge.close()
    for call in (lambda: judge.reclaim(1), lambda: judge.fail_mappings((True,))):
        with pytest.raises(MisuseError, match="closed"):
            call()
