"""Where one call breaks several rules, the one that says most of the cause is told, and in words that say it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec
import pytest

from kvspec.model.conformance import Capability, Form, PoolConfig
from kvspec.model.forms import FORMS
from kvspec.model.pools import Pools
from kvspec.model.reference import ModelTarget, model_target
from kvspec.model.scenario import ScenarioResult, format_scenario, parse_scenario, run_scenario

LIES: dict[str, tuple[Capability, str, Callable[[Any], Any]]] = {
    "partition/free_ids": (Capability.FREE_IDS, "free_ids", lambda ids: ids | {1}),
    "holders/ref_count": (Capability.REF_COUNTS, "ref_count", lambda count: count + 1),
    "map_truth/cached_keys": (Capability.CACHED_KEYS, "cached", lambda keys: {**keys, b"no such key": 1}),
    "partition/free_count": (Capability.FREE_COUNT, "free_count", lambda count: count + 1),
    "usage/used_count": (Capability.USED_COUNT, "used_count", lambda count: count + 1),
}
"""What shows that each rule is broken, in the order in which they are told: what names blocks, and then counters."""
POOLS = Pools()
FORMS_THAT_SHOW = [form for form in Form if form is not Form.ENGINES]


def liar(told: tuple[str, ...]) -> Callable[[PoolConfig], Any]:
    """The model, which shows something wrong of each of these rules once a sequence has a block."""

    def make(config: PoolConfig) -> Any:
        target: Any = model_target(config)
        for capability, name, lie in (LIES[rule] for rule in told):
            assert capability in target.capabilities or config.form is Form.COMPOSITES
            setattr(target, name, wrong(target, getattr(target, name), lie))
        return target

    return make


def wrong(target: Any, usual: Callable[..., Any], lie: Callable[[Any], Any]) -> Callable[..., Any]:
    def show(*arguments: Any) -> Any:
        shown = usual(*arguments)
        return lie(shown) if target._pool.requests and target._pool.size(*first(target)) else shown

    return show


def first(target: Any) -> tuple[Any, ...]:
    """Whose table is asked for its size: that of the only sequence, in the first group where there are groups."""
    return next(iter(target._pool.requests)), *([0] if target.config.manager_types else [])


def shown_by(form: Form) -> list[str]:
    """The rules that a target of the form can be seen to break."""
    capabilities = model_target(FORMS[form].smallest).capabilities
    return [rule for rule, (capability, _, _) in LIES.items() if capability in capabilities]


@pytest.mark.parametrize("form", FORMS_THAT_SHOW)
def test_what_names_blocks_is_told_before_counters(form: Form) -> None:
    rules = shown_by(form)
    assert len(rules) >= 4
    text = format_scenario((), FORMS[form].smallest) + "start a 0 1\nallocate a 2\n"
    for told in [(rule,) for rule in rules] + list(combinations(rules, 2)):
        found = run_scenario(parse_scenario(text), liar(told), POOLS)
        assert f"{found.family}/{found.rule}" == told[0], (told, found.what)


# -- without a prefix cache -------------------------------------------------------------------------------------------


class Plain(ModelTarget):
    """A manager without a prefix cache, which shows no keys."""

    def __init__(self, config: PoolConfig) -> None:
        super().__init__(msgspec.structs.replace(config, enable_prefix_cache=False))
        self.capabilities -= {Capability.EVENTS, Capability.CACHED_KEYS, Capability.FREE_IDS, Capability.FREE_COUNT,
                              Capability.REF_COUNTS}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "line"), [("hit_longest", "allocate_shared b"), ("write", "truncate a 3\nappend a 9\nwrite a 1")]
)
def test_who_has_no_prefix_cache_is_told_how_to_say_so(rule: str, line: str) -> None:
    text = PUBLISHED.replace("allocate b 4", line)
    found = run(Plain, text)
    assert found.rule == rule and "has it no prefix cache, it is driven with --no-cache" in found.what
    assert run(Plain, text.replace("block 2", "block 2 no-cache")).passed


# -- allocate that hits ----------------------------------------------------------------------------------------------


class Mounts(ModelTarget):
    """Its allocate begins with what the cache has."""

    def allocate(self, seq: str, num_tokens: int) -> bool:
        if num_tokens and not self._pool.size(seq):
            super().allocate_shared(seq)
        return super().allocate(seq, num_tokens)


class Steals(ModelTarget):
    """Its allocate hands out the last block of another sequence, if there is one."""

    def block_table(self, seq: str) -> list[int]:
        table = list(super().block_table(seq))
        others = [s for s in self._pool.requests if s != seq and self._pool.size(s)]
        return [self._pool.block(others[0], 0), *table[1:]] if table and others and seq > others[0] else table


PUBLISHED = """
pool 6 block 2
start a 1..4
allocate a 4
write a 4
cache a
start b 1..4
allocate b 4
"""


def run(target: Any, text: str = PUBLISHED) -> ScenarioResult:
    return run_scenario(parse_scenario(text), target)


def test_an_allocate_that_hits_is_told_so() -> None:
    found = run(Mounts)
    assert (found.family, found.rule) == ("no_reuse_while_used", "take")
    assert (
        "block 1 is held by a[0], the cache of [1 2]; the cache has it for the tokens of b[0], and only" in found.what
    )


@pytest.mark.parametrize(
    "text", [PUBLISHED.replace("start b 1..4", "start b 5..8"), PUBLISHED.replace("cache a\n", "")]
)
def test_an_allocate_that_hands_out_a_block_in_use_is_not_taken_for_one(text: str) -> None:
    found = run(Steals, text)
    assert (found.family, found.rule) == ("no_reuse_while_used", "take")
    assert "block 1 is held by a[0]" in found.what and "allocate_shared" not in found.what
