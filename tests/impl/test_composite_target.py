"""`TorchCompositeTarget`: what the groups hold, what drafts are, and what the sanitizers see."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import numpy as np
import pytest

from kvspec.impl.composite_target import TorchCompositeTarget
from kvspec.impl.errors import ContentError, InvalidRangeError
from kvspec.impl.target import TorchTarget
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Context, Form, ManagerType, MisuseError, PoolConfig, Tags

CONFIG = PoolConfig(
    num_blocks=2, block_size=1, enable_prefix_cache=False, manager_types=(ManagerType(6, 2, 3), ManagerType(9, 3))
)


def tags(first: int, count: int) -> Tags:
    return np.arange(first, first + count, dtype=np.int64)


def written(count: int, *, sanitizer: bool = False, **options: Any) -> TorchCompositeTarget:
    """A target with a sequence that has computed so many of 12 tokens."""
    target = TorchCompositeTarget(msgspec.structs.replace(CONFIG, sanitizer=sanitizer), **options)
    target.start("a", range(12), Context())
    assert target.allocate("a", count)
    target.write([("a", tags(100, count))])
    return target


def free(target: TorchCompositeTarget) -> list[set[int]]:
    return [target.free_ids(group) for group in range(2)]


def test_every_group_holds_what_was_computed() -> None:
    target = written(7, layers=2, heads=2, head_dim=3)
    assert [len(target.block_table("a", group)) for group in range(2)] == [4, 3]
    for group in range(2):
        assert target.read("a", 0, 7, group).tolist() == tags(100, 7).tolist()
        assert target.read("a", 3, 6, group).tolist() == tags(103, 3).tolist()
        assert target.read("a", 5, 5, group).tolist() == []


def test_drafts_slide_nothing_out_and_accepted_tokens_do() -> None:
    target = written(7)
    assert target.allocate("a", 8)
    assert target.released("a") == 0
    target.accept("a", 7)
    assert target.allocate("a", 8)
    assert [target.released("a", group) for group in range(2)] == [2, 0]
    assert [len(target.block_table("a", group)) for group in range(2)] == [2, 3]
    assert target.read("a", 4, 7).tolist() == tags(104, 3).tolist()
    with pytest.raises(MisuseError, match="4 to 7"):
        target.read("a", 3, 7)
    assert target.read("a", 3, 7, 1).tolist() == tags(103, 4).tolist()


def test_rejected_drafts_go_and_what_is_accepted_stays() -> None:
    target = written(8)
    target.accept("a", 5)
    with pytest.raises(MisuseError, match="at least the 5 accepted"):
        target.truncate("a", 4)
    target.truncate("a", 5)
    assert target.num_computed("a") == 5
    assert [len(target.block_table("a", group)) for group in range(2)] == [3, 2]
    target.append("a", [9, 9])
    assert target.allocate("a", 7)
    target.write([("a", tags(200, 2))])
    assert target.read("a", 0, 7, 1).tolist() == [*range(100, 105), 200, 201]


def test_who_gives_way_has_accepted_nothing() -> None:
    target = written(8)
    target.accept("a", 8)
    target.preempt("a")
    assert [len(ids) for ids in free(target)] == [5, 8]
    target.truncate("a", 0)
    with pytest.raises(MisuseError):
        target.accept("a", 1)


def test_a_refusal_leaves_everything_but_what_slid() -> None:
    target = written(8)
    target.accept("a", 4)
    target.append("a", range(20))
    before = free(target)
    assert not target.allocate("a", 32)
    assert target.released("a") == 1
    assert [after - old for after, old in zip(free(target), before, strict=True)] == [{1}, set()]
    assert target.used_count() == 3 and target.free_count() == 2
    assert target.ref_count(1) == 0 and target.ref_count(1, 1) == 1


def test_a_step_is_done_in_all_groups_or_in_none() -> None:
    target = written(4)
    target.start("b", range(4), Context())
    with pytest.raises(MisuseError):
        target.write([("a", tags(0, 1)), ("b", tags(0, 1))])
    assert target.num_computed("a") == 4
    assert target.allocate("b", 4) and target.allocate("a", 5)
    target.write([("a", tags(104, 1)), ("b", tags(300, 4))])
    for group in range(2):
        assert target.read("a", 0, 5, group).tolist() == tags(100, 5).tolist()
        assert target.read("b", 0, 4, group).tolist() == tags(300, 4).tolist()


@pytest.mark.parametrize("name", ["free_ids", "free_count", "used_count"])
@pytest.mark.parametrize("group", [-1, 2])
def test_a_group_that_there_is_not_is_an_error(name: str, group: int) -> None:
    target = written(2)
    with pytest.raises(MisuseError, match=f"group {group}; expected 0 to 1"):
        getattr(target, name)(group)
    for look in (target.released, target.block_table, lambda *a: target.read("a", 0, 1, group)):
        with pytest.raises(MisuseError, match="group"):
            look("a", group)


@pytest.mark.parametrize("config", [PoolConfig(num_blocks=4, block_size=2), CONFIG], ids=["manager", "composite"])
def test_a_config_of_another_form_is_refused(config: PoolConfig) -> None:
    kind = TorchTarget if config is CONFIG else TorchCompositeTarget
    with pytest.raises(InvalidRangeError, match="expected one of a"):
        kind(config)


def test_what_was_given_back_is_poisoned_in_its_group() -> None:
    target = written(7, sanitizer=True)
    target.accept("a", 7)
    assert target.allocate("a", 8)
    target.read("a", 6, 7)
    with pytest.raises(ContentError, match="poisoned"):
        target.buffers_[0].read_tags(array("q", [1]), 0, 2)
    parts = target.manager_.sub_managers_
    assert all(part.sanitizer_ is not None and part.sanitizer_.is_clean for part in parts)


def test_a_write_to_the_padding_of_a_group_is_reported_there() -> None:
    target = written(7, sanitizer=True)
    target.buffers_[1].storage_[:, :, 0] = 3.0
    target.read("a", 0, 1)
    reports = [part.sanitizer_.padding_writes for part in target.manager_.sub_managers_ if part.sanitizer_ is not None]
    assert reports == [0, 1]


def test_the_end_gives_back_everything() -> None:
    target = written(7, sanitizer=True)
    target.start("b", range(4), Context())
    assert target.allocate("b", 2)
    target.deallocate("a")
    target.abort("b")
    assert [len(ids) for ids in free(target)] == [5, 8]
    target.close()
    for call in (target.reset, lambda: target.released("a"), lambda: target.evict(0), target.close):
        with pytest.raises(MisuseError, match="closed"):
            call()


@pytest.mark.parametrize("sanitizer", [False, True])
def test_random_operations_find_nothing(sanitizer: bool) -> None:
    options = ConformOptions(seed=5, operations=4000, form=Form.COMPOSITES, sanitizer=sanitizer)
    report = conform(TorchCompositeTarget, options)
    assert report.violation is None, report.violation
    assert min(report.counts[name] for name in ("slides", "refusals", "truncations", "reads", "errors")) > 50
