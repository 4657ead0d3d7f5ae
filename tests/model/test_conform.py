"""Runs of conform: what is found, what is reported as not observed, and that nothing else changes the outcome."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from kvspec.model.conform import ConformOptions, ConformReport, conform
from kvspec.model.conformance import (
    METHODS_OF,
    Capability,
    Context,
    Form,
    PoolConfig,
    Tags,
    Target,
    TargetError,
    checked_target,
    missing_parts,
)
from kvspec.model.forms import FORMS, OF_FORMS
from kvspec.model.generator import Kind
from kvspec.model.promises import Family
from kvspec.model.reference import ModelPoolTarget, ModelTarget, ModelTieredTarget, model_target
from kvspec.model.reference.manager import OF_MANAGERS
from kvspec.model.reporting.evidence import EVIDENCE
from kvspec.model.scenario import ScenarioResult, format_scenario, parse_scenario, run_scenario

SMALL = PoolConfig(num_blocks=4, block_size=2)
A_POOL = PoolConfig(num_blocks=4, block_size=2, num_single_blocks=2)


class Leaks(ModelTarget):
    """Preemption keeps a holder of the first block."""

    def preempt(self, seq: str) -> None:
        if self._request(seq) and self._pool.size(seq) > 1:
            self.hold(self._pool.block(seq, 0))
        super().preempt(seq)


class Forgets(ModelTarget):
    """Copies are empty."""

    def _copy(self, seq: str, index: int) -> None:
        super()._copy(seq, index)
        self._cells[self._pool.block(seq, index)] = 0


class Crashes(ModelTarget):
    """The third fork fails."""

    forks = 0

    def fork(self, parent: str, child: str) -> None:
        super().fork(parent, child)
        self.forks += 1
        if self.forks == 3:
            raise ZeroDivisionError("nothing left")


class Mumbles(ModelTarget):
    """What it shows cannot be looked at."""

    def used_count(self) -> int:
        raise KeyError("used")


class Late(ModelTarget):
    """Contents are lost after many steps."""

    steps = 0

    def write(self, batch: list[tuple[str, Tags]]) -> None:  # type: ignore[override]
        self.steps += 1
        super().write([(seq, tags * 0) for seq, tags in batch] if self.steps > 100 else batch)


class Stumbles(ModelTarget):
    """Fails in a function of its own."""

    def cache(self, seq: str) -> None:
        if self._request(seq).computed:
            self._stumble()

    def _stumble(self) -> None:
        raise ZeroDivisionError("here")


class Overwrites(ModelTarget):
    """Shows the block of another in the place of the last that it takes."""

    def allocate(self, seq: str, num_tokens: int) -> bool:
        granted = super().allocate(seq, num_tokens)
        others = [s for s in self._pool.requests if s != seq and self._pool.size(s)]
        if granted and num_tokens and others:
            self._stolen[seq] = self._pool.block(others[0], 0)
        return granted

    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        self._stolen: dict[str, int] = {}

    def block_table(self, seq: str) -> list[int]:
        table = list(super().block_table(seq))
        return [*table[:-1], self._stolen[seq]] if seq in self._stolen and table else table


class Flaky(ModelTarget):
    """Shows its counters only in pools with an even number of blocks."""

    def __init__(self, config: PoolConfig) -> None:
        hidden = {Capability.USED_COUNT} if config.num_blocks % 2 else set()
        super().__init__(config, capabilities=OF_MANAGERS - hidden)


class Moody(ModelTarget):
    """Fails once in the life of the class."""

    failed = False

    def write(self, batch: list[tuple[str, Tags]]) -> None:  # type: ignore[override]
        super().write(batch)
        if not Moody.failed and any(len(tags) for _, tags in batch):
            Moody.failed = True
            self._cells[:] = np.int64(-1)


def verdicts(report: ConformReport) -> dict[str, str]:
    return {f.family: f.verdict for f in report.families}


def test_the_model_holds_and_every_family_was_judged() -> None:
    report = conform(ModelTarget, ConformOptions(operations=4000))
    assert report.violation is None and not report.interrupted
    assert set(verdicts(report).values()) == {"holds"}
    assert set(EVIDENCE) == set(Family)
    assert set(verdicts(report)) == {f.value for f in Family if Form.MANAGERS in OF_FORMS.get(f, {Form.MANAGERS})}
    assert 4000 <= report.operations < 4100
    assert report.counts["operations"] == report.operations
    assert report.episodes == report.counts["drains"]


def test_the_same_seed_gives_the_same_report() -> None:
    def run(seed: int) -> dict[str, int]:
        return conform(ModelTarget, ConformOptions(operations=1500, seed=seed)).counts

    assert run(3) == run(3) != run(4)


@pytest.mark.parametrize("seed", range(3))
def test_the_forms_of_a_target_take_turns_and_every_family_they_could_break_is_told(seed: int) -> None:
    made: list[Form] = []

    def make(config: PoolConfig) -> Target:
        made.append(config.form)
        return model_target(config)

    report = conform(make, ConformOptions(operations=1500, seed=seed))
    driven = made[len(FORMS) :]
    assert driven == [form for form, _ in zip(itertools.cycle(FORMS), driven, strict=False)]
    assert {*driven} == {*Form} and verdicts(report).keys() == {f.value for f in Family}


@pytest.mark.parametrize("operations", [1, 60])
def test_a_family_that_nothing_driven_could_break_is_not_observed(operations: int) -> None:
    """Whatever happens in the form that has the first turn."""
    report = conform(model_target, ConformOptions(operations=operations))
    others = {family.value for family, forms in OF_FORMS.items() if Form.POOLS not in forms}
    assert report.episodes == 1 and others == {"window", "tiers", "pages"}
    assert {verdicts(report)[family] for family in others} == {"not observed"}
    assert (operations == 1) or report.counts["taken"]


@pytest.mark.parametrize(
    ("target", "rules", "lines"),
    [
        (Leaks, {"partition/free_ids", "holders/ref_count"}, 7),
        (Forgets, {"content/content"}, 9),
        (Crashes, {"misuse/crash"}, 4),
        (Mumbles, {"misuse/crash"}, 1),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_fault_is_found_named_and_shrunk(target: type[ModelTarget], rules: set[str], lines: int, seed: int) -> None:
    found = conform(target, ConformOptions(operations=5000, seed=seed)).violation
    assert found is not None
    assert f"{found.family}/{found.rule}" in rules
    assert found.shrunk and found.reproduced
    assert len(found.operations) == found.number == len(found.errors) <= lines
    assert found.before and found.after


def test_a_crash_says_where() -> None:
    found = conform(Stumbles, ConformOptions(operations=3000)).violation
    assert found is not None and found.rule == "crash"
    line = Path(__file__).read_text(encoding="utf-8").splitlines().index('        raise ZeroDivisionError("here")') + 1
    assert found.what.endswith(f"test_conform.py:{line})"), found.what


def test_a_forbidden_event_names_the_block_and_its_holders() -> None:
    found = conform(Overwrites, ConformOptions(operations=3000)).violation
    assert found is not None and (found.family, found.rule) == ("no_reuse_while_used", "take")
    assert re.search(r"; block \d+ is held by [ab]\[0\]; see kvspec explain sequences\.take$", found.what), found.what


def test_a_refusal_of_nothing_is_put_in_words() -> None:
    class Refuses(ModelTarget):
        def allocate(self, seq: str, num_tokens: int) -> bool:
            return super().allocate(seq, num_tokens) and num_tokens > 0

    found = conform(Refuses, ConformOptions(operations=3000)).violation
    assert found is not None and found.rule == "refused_for_cause"
    assert found.what == "room for 0 tokens was refused although a has it already, in blocks of its own"


def test_capabilities_must_not_depend_on_the_pool() -> None:
    with pytest.raises(TargetError, match=r"has other capabilities in pool \d+ than in those before: used_count"):
        conform(Flaky, ConformOptions(operations=3000))


def test_pools_can_be_without_prefix_cache() -> None:
    made: list[PoolConfig] = []

    def make(config: PoolConfig) -> ModelTarget:
        made.append(config)
        return ModelTarget(config)

    report = conform(make, ConformOptions(operations=1500, prefix_cache=False))
    assert report.violation is None and not any(config.enable_prefix_cache for config in made)
    assert verdicts(report)["map_truth"] == "not observed"


def test_a_fault_that_comes_late_is_found_in_a_long_episode() -> None:
    report = conform(Late, ConformOptions(operations=40_000, shrink_seconds=0.1))
    assert report.violation is not None and report.violation.family == "content"
    assert report.violation.found_at > 300 and report.longest_episode > 300


def test_pools_are_mostly_small_and_some_are_larger() -> None:
    report = conform(ModelTarget, ConformOptions(operations=20_000))
    assert report.most_blocks > 30 and report.longest_block > 12 and report.longest_episode > 600


def test_the_violated_family_says_so_and_the_others_what_they_saw() -> None:
    report = conform(Forgets, ConformOptions(operations=5000))
    assert verdicts(report)["content"] == "violated"
    assert verdicts(report)["holders"] == "holds"
    assert "other content" in next(f.reason for f in report.families if f.verdict == "violated")


def test_a_failure_that_does_not_come_back_is_reported_as_it_was() -> None:
    Moody.failed = False
    report = conform(Moody, ConformOptions(operations=3000))
    assert report.violation is not None
    assert not report.violation.reproduced and not report.violation.shrunk
    assert len(report.violation.operations) == report.violation.found_at


def test_what_a_target_lacks_is_not_observed() -> None:
    capabilities = OF_MANAGERS - {Capability.CONTENTS, Capability.FORK, Capability.HOLD}
    report = conform(lambda c: ModelTarget(c, capabilities=capabilities), ConformOptions(operations=3000))
    reasons = {f.family: f.reason for f in report.families if f.verdict == "not observed"}
    assert reasons == {
        "content": "the target lacks contents",
        "exclusive_writer": "the target lacks fork and hold",
    }


def test_what_did_not_happen_is_not_observed() -> None:
    report = conform(ModelTarget, ConformOptions(operations=1))
    reasons = {f.reason for f in report.families if f.verdict == "not observed"}
    assert {"no hits", "no copies or block writes"} <= reasons


@pytest.mark.parametrize(("blocks", "size"), [(2, 1), (3, None), (None, 5), (40, 16)])
def test_the_pool_can_be_fixed(blocks: int | None, size: int | None) -> None:
    made: list[PoolConfig] = []

    def make(config: PoolConfig) -> ModelTarget:
        made.append(config)
        return ModelTarget(config)

    options = ConformOptions(operations=600, num_blocks=blocks, block_size=size, sanitizer=True)
    assert conform(make, options).violation is None
    assert all(config.sanitizer for config in made)
    assert blocks is None or {c.num_blocks for c in made} == {blocks}
    assert size is None or {c.block_size for c in made} == {size}


def test_time_ends_a_run() -> None:
    report = conform(ModelTarget, ConformOptions(operations=None, seconds=0.2, kind=Kind.WILD))
    assert report.operations and report.violation is None


def test_an_interruption_ends_a_run_with_what_there_is() -> None:
    def stop(operations: int, note: str) -> None:
        raise KeyboardInterrupt

    report = conform(ModelTarget, ConformOptions(operations=4000), on_progress=stop)
    assert report.interrupted and report.episodes == 1 and report.operations > 0
    assert verdicts(report)["partition"] == "holds"


def test_comparing_now_and_then_still_finds_the_fault_at_its_place() -> None:
    found = conform(Leaks, ConformOptions(operations=5000, every=7)).violation
    assert found is not None and found.operation.startswith("preempt") and len(found.operations) <= 7


@pytest.mark.parametrize(
    "fields", [{"operations": 0}, {"operations": None}, {"seconds": 0.0}, {"seconds": -1.0}, {"seconds": float("nan")}]
)
def test_a_run_needs_an_end(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"operations|seconds"):
        ConformOptions(**fields)  # type: ignore[arg-type]


def test_a_report_is_json() -> None:
    report = conform(Leaks, ConformOptions(operations=3000))
    again = msgspec.json.decode(msgspec.json.encode(report), type=ConformReport)
    assert again == report


# -- what is no target ------------------------------------------------------------------------------------------------


class Half:
    """Has only the first operations."""

    capabilities = frozenset({Capability.FREE_COUNT})
    hit_limit = "all"

    def start(self, seq: str, tokens: list[int], context: Context) -> None: ...


def test_missing_methods_are_listed_without_those_that_no_capability_asks_for() -> None:
    missing = missing_parts(Half())
    assert "allocate()" in missing and "free_count()" in missing
    assert "start()" not in missing and "free_ids()" not in missing and "hold()" not in missing
    assert missing_parts(object())[:2] == ["capabilities", "hit_limit"]


@pytest.mark.parametrize("capability", METHODS_OF)
def test_a_capability_without_its_methods_is_refused(capability: Capability) -> None:
    nothing = dict.fromkeys(METHODS_OF[capability])  # a name alone is no method
    both = frozenset(c for c, methods in METHODS_OF.items() if {*methods} & nothing.keys())
    made = type("Claims", (ModelTieredTarget,), nothing)(FORMS[Form.TIERS].smallest, capabilities=both)
    assert missing_parts(made) == [f"{name}()" for name in sorted(METHODS_OF[capability])]
    with pytest.raises(TargetError, match=f"lacks {min(METHODS_OF[capability])}"):
        checked_target(lambda _: made, A_POOL)
    made.capabilities = frozenset()
    assert not missing_parts(made)


def test_a_method_that_two_capabilities_ask_for_is_needed_with_both() -> None:
    made = type("Claims", (ModelTieredTarget,), {"drain_host_events": None})(FORMS[Form.TIERS].smallest)
    assert missing_parts(made) == ["drain_host_events()"]
    for one in (Capability.HOST, Capability.EVENTS):
        made.capabilities = frozenset({one})
        assert not missing_parts(made)


class Bare:
    """A target with the methods that its capabilities ask for, and no others."""

    def __init__(self, target: ModelTarget | ModelPoolTarget) -> None:
        excused = (methods for c, methods in METHODS_OF.items() if c not in target.capabilities)
        self._target, self._excused = target, {name for methods in excused for name in methods}

    def __getattr__(self, name: str) -> Any:
        if name in self._excused:
            raise AttributeError(name)
        return getattr(self._target, name)


@pytest.mark.parametrize("kind", Kind)
def test_a_method_that_a_target_need_not_have_is_not_asked_for(kind: Kind) -> None:
    manager, pool = frozenset({Capability.EVENTS}), frozenset({Capability.EVENTS, Capability.POOL})
    options = ConformOptions(operations=1500, kind=kind)
    managers = conform(lambda config: Bare(ModelTarget(config, capabilities=manager)), options)
    assert managers.violation is None, managers.violation
    in_pools = msgspec.structs.replace(options, form=Form.POOLS)
    pools = conform(lambda config: Bare(ModelPoolTarget(config, capabilities=pool)), in_pools)
    assert pools.violation is None, pools.violation


@pytest.mark.parametrize("form", [Form.COMPOSITES, Form.TIERS, Form.PAGES])
def test_a_variant_is_not_asked_for_a_method_that_it_need_not_have(form: Form) -> None:
    least = frozenset({Capability.FREE_IDS, FORMS[form].need, *([Capability.POOL] if form is Form.TIERS else [])})

    def make(config: PoolConfig) -> Any:
        target: Any = model_target(config)
        target.capabilities = least
        return Bare(target)

    report = conform(make, ConformOptions(operations=1500, kind=Kind.WILD, form=form))
    assert report.violation is None, report.violation


CALLED = [form for form in Form if form is not Form.ENGINES]
"""Forms whose operations are calls of the target; an engine makes them itself."""

OPTIONAL = [
    (Form.MANAGERS, "fork a b", Capability.FORK),
    *((form, "truncate a 1", Capability.TRUNCATE) for form in CALLED),
    *((form, "hold a 0 as h", Capability.HOLD) for form in (Form.MANAGERS, Form.POOLS, Form.PAGES)),
    (Form.TIERS, "sleep", Capability.SLEEP),
    (Form.TIERS, "wake", Capability.SLEEP),
    (Form.TIERS, "begin_prefetch p 0..3", Capability.PREFETCH),
    (Form.TIERS, "plan_prefetch p 1", Capability.PREFETCH),
    (Form.TIERS, "finish_prefetch p 0", Capability.PREFETCH),
]


def run_bare(form: Form, lines: str, hidden: Capability) -> ScenarioResult:
    """Lines of a scenario on a target without a capability and its methods."""
    config = FORMS[form].smallest

    def make(config: PoolConfig) -> Any:
        target: Any = model_target(config)
        target.capabilities -= {hidden}
        return Bare(target)

    return run_scenario(parse_scenario(format_scenario((), config) + lines), make)


@pytest.mark.parametrize(("form", "line", "capability"), OPTIONAL)
def test_a_scenario_that_needs_more_than_a_target_has_does_not_blame_it(
    form: Form, line: str, capability: Capability
) -> None:
    with pytest.raises(TargetError, match=f"lacks the capability {capability}, which the scenario needs"):
        run_bare(form, f"start a 0 1\nallocate a 2\n{line}\n", capability)


@pytest.mark.parametrize("form", CALLED)
def test_a_handle_that_nobody_has_is_an_error_also_without_holders(form: Form) -> None:
    assert run_bare(form, "release h\nexpect error\n", Capability.HOLD).passed


class Odd(ModelTarget):
    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        self.hit_limit = "some"  # type: ignore[assignment]


class Wide(ModelTarget):
    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        self.capabilities = frozenset({"telepathy"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda c: 1 / 0, "cannot be made with 4 blocks of 2: ZeroDivisionError"),
        (lambda c: Half(), "lacks abort"),
        (lambda c: None, "lacks capabilities"),
        (Odd, "hit_limit 'some'"),
        (Wide, "unknown capabilities: telepathy"),
    ],
)
def test_what_cannot_be_driven_is_refused(make: object, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        checked_target(make, SMALL)  # type: ignore[arg-type]
