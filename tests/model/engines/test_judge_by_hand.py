"""What engines may do, record by record: forks, states in a store of their own, blocks that are not judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kvspec.model.acceptor import judge_of
from kvspec.model.conformance import Capability, Context, EngineConfig, PoolConfig
from kvspec.model.engines.judge import EngineAcceptor
from kvspec.model.engines.protocol import (
    Abilities,
    AnyRecord,
    Call,
    Copy,
    Ended,
    Forward,
    Group,
    Known,
    Layout,
    Move,
    Pin,
    Run,
    Shown,
    Store,
)
from kvspec.model.promises import Violation

ATTENTION = Layout((Store(tuple(range(1, 9)), "unheld"),), (Group(0, "attention", 2),), 2, 8)
SLOTS = Layout(
    (Store(tuple(range(1, 9)), "unheld"), Store((1, 2, 3), "unkeyed")),
    (Group(0, "attention", 2), Group(1, "state", 2, aligned=False)),
    2,
    8,
)
OPAQUE = Layout((Store((1, 2, 3), "unheld"),), (Group(0, "opaque", 2, reuse=False),), 2, 6)
CONFIG = PoolConfig(num_blocks=9, block_size=2, engine=EngineConfig(variant="by hand"))


class Scripted:
    """An engine that sends what it is told to."""

    capabilities = frozenset({Capability.ENGINE})
    hit_limit = "all"
    abilities = Abilities(("by hand",))

    def __init__(self, layout: Layout, steps: Sequence[Sequence[AnyRecord]]) -> None:
        self.made, self.steps = layout, [list(step) for step in steps]

    def layout(self) -> Layout:
        return self.made

    def submit(self, seq: str, tokens: object, output: object, context: Context, priority: int) -> list[AnyRecord]:
        return []

    def step(self) -> list[AnyRecord]:
        return self.steps.pop(0)

    abort = evict = reset = close = submit


def judged(layout: Layout, *steps: Sequence[AnyRecord], **prompts: Sequence[int]) -> EngineAcceptor:
    """The judge behind these steps of requests with these prompts, each of which generates 7, 7, 7.

    Raises:
        Violation: one of them is not allowed.
    """
    target: Any = Scripted(layout, steps)
    judge = judge_of(target, CONFIG)
    assert isinstance(judge, EngineAcceptor)
    for seq, prompt in prompts.items():
        judge.submit(seq, prompt, (7, 7, 7))
    for _ in steps:
        judge.step()
    return judge


def broken(layout: Layout, *steps: Sequence[AnyRecord], **prompts: Sequence[int]) -> str:
    """The rule that the steps break."""
    with pytest.raises(Violation) as raised:
        judged(layout, *steps, **prompts)
    return f"{raised.value.family}/{raised.value.rule}"


def room(seq: str, *tables: list[int | None], **others: Any) -> Call:
    """A request gets blocks."""
    fields = {name: others.pop(name) for name in tuple(others) if name in Shown.__struct_fields__}
    return Call("room", Shown({seq: [*tables]}, **fields), seq, **others)


def computes(seq: str, start: int, stop: int, *moves: Move) -> Forward:
    return Forward([Run(seq, start, stop, [*moves])])


# -- forks -------------------------------------------------------------------------------------------------------------

PARENT = [room("a", [1, 2]), computes("a", 0, 3), Known("a", 4)]


def test_a_child_shares_its_parents_blocks_and_goes_on_in_a_copy() -> None:
    fork = room("b", [1, 3], parent="a", hit=3, pins=[Pin("b", 0, 2)])
    copied = [fork, Copy(0, 2, 3), Call("copied", Shown(pins=[])), Known("b", 4), computes("b", 3, 4)]
    judge = judged(ATTENTION, PARENT, copied, [computes("a", 3, 4)], a=(1, 2, 3), b=(1, 2, 3))
    assert judge.counts["shares"] == 1 and judge.counts["copies"] == 1
    assert judge.pool.request("b").computed == 4


def test_a_child_shares_a_block_that_is_begun_as_long_as_both_write_the_same() -> None:
    fork = [room("b", [1, 2], parent="a", hit=3), Known("b", 4), computes("b", 3, 4)]
    judged(ATTENTION, PARENT, fork, [computes("a", 3, 4)], a=(1, 2, 3), b=(1, 2, 3))


def test_who_goes_on_in_a_shared_block_writes_over_nothing() -> None:
    """The next prompt token of b is another one than what a generates."""
    fork = [room("b", [1, 2], parent="a", hit=3), computes("a", 3, 4), computes("b", 3, 4)]
    assert broken(ATTENTION, PARENT, fork, a=(1, 2, 3), b=(1, 2, 3, 4)) == "exclusive_writer/write"


@pytest.mark.parametrize(
    ("fork", "b", "rule"),
    [
        (room("b", [1, 2], parent="a", hit=4), (1, 2, 3, 7), "map_truth/hit_unpublished"),  # not computed
        (room("b", [1, 2], parent="a", hit=3), (1, 2, 4), "map_truth/hit_unpublished"),  # another prompt
        (room("b", [1, 2], parent="a", hit=-1), (1, 2, 3), "map_truth/hit_unpublished"),
        (room("b", [2, 1], parent="a", hit=3), (1, 2, 3), "map_truth/hit_content"),  # other places
        (room("b", [1, 2], hit=3), (1, 2, 3), "map_truth/hit_content"),  # no fork, and nothing has a key
        (room("b", [1, 2], hit=None), (1, 2, 3), "no_reuse_while_used/take"),
        (room("b", [4, 2], parent="a", hit=3), (1, 2, 3), "map_truth/hit_content"),  # in place of what is shared
    ],
)  # fmt: skip
def test_a_fork_that_is_none(fork: Call, b: tuple[int, ...], rule: str) -> None:
    assert broken(ATTENTION, PARENT, [fork, computes("b", 3, 4)], a=(1, 2, 3), b=b) == rule


def test_a_copy_that_was_not_made_is_missed() -> None:
    fork = [room("b", [1, 3], parent="a", hit=3), Known("b", 4), computes("b", 3, 4)]
    assert broken(ATTENTION, PARENT, fork, a=(1, 2, 3), b=(1, 2, 3)) == "content/content"


# -- states in slots of their own --------------------------------------------------------------------------------------

FIRST = [room("a", [1], [1]), computes("a", 0, 2, Move(1, None, 1)), Known("a", 3)]
SAVED = room("a", [1, 2], [2], keys=[{1: "k"}, {1: "s"}])
"""The state behind two tokens is published, and another slot becomes the live one."""


def test_a_state_is_replaced_in_its_slot() -> None:
    goes_on = [room("a", [1, 2], [1]), computes("a", 2, 3, Move(1, 1, 1))]
    judge = judged(SLOTS, FIRST, goes_on, a=(1, 2))
    assert judge.counts["states"] == 2


def test_a_state_that_is_published_is_copied_before_it_is_replaced() -> None:
    goes_on = computes("a", 2, 3, Move(1, 2, 2))
    judge = judged(SLOTS, FIRST, [SAVED, Copy(1, 1, 2), goes_on], a=(1, 2))
    assert judge.counts["copies"] == 1 and len(judge.pool.memories[1].keys) == 1
    assert broken(SLOTS, FIRST, [SAVED, goes_on], a=(1, 2)) == "state_position/source"
    in_place = [room("a", [1, 2], [1], keys=[{1: "k"}, {1: "s"}]), computes("a", 2, 3, Move(1, 1, 1))]
    assert broken(SLOTS, FIRST, in_place, a=(1, 2)) == "exclusive_writer/write"


def test_a_slot_in_which_nobody_has_put_a_state_has_none() -> None:
    """What its last holder has left is not the state of no tokens."""
    left = [room("a", [1], [1]), computes("a", 0, 2, Move(1, 1, 1))]
    assert broken(SLOTS, left, a=(1, 2)) == "state_position/source"


HIT = [
    room("b", [1, 3], [3], hit=2, pins=[Pin("b", 1, 1)]),
    Copy(1, 1, 3),
    Call("copied", Shown(pins=[])),
    computes("b", 2, 3, Move(1, 3, 3)),
]
"""Behind two tokens that were hit the state is copied to the live slot."""


def test_a_state_that_was_hit_is_copied_to_the_live_slot() -> None:
    saved = [SAVED, Copy(1, 1, 2), computes("a", 2, 3, Move(1, 2, 2))]
    judge = judged(SLOTS, FIRST, saved, HIT, a=(1, 2), b=(1, 2, 5))
    assert judge.counts["hits"] == 1 and judge.counts["states"] == 3
    assert broken(SLOTS, FIRST, saved, [HIT[0], *HIT[2:]], a=(1, 2), b=(1, 2, 5)) == "state_position/source"
    assert broken(SLOTS, FIRST, saved, HIT, a=(1, 2), b=(1, 3, 5)) == "map_truth/hit_content"
    without = [room("a", [1, 2], [1], keys=[{1: "k"}, {}]), computes("a", 2, 3, Move(1, 1, 1))]
    assert broken(SLOTS, FIRST, without, HIT, a=(1, 2), b=(1, 2, 5)) == "map_truth/hit_unpublished"


def test_stores_have_ids_of_their_own() -> None:
    """Block 1 and slot 1 are two things; slot 8 is none."""
    far = [room("a", [1], [8]), computes("a", 0, 2, Move(1, None, 8))]
    assert broken(SLOTS, far, a=(1, 2)) == "reserved/padding_handed_out"
    across = [SAVED, Copy(0, 1, 2), computes("a", 2, 3, Move(1, 2, 2))]
    assert broken(SLOTS, FIRST, across, a=(1, 2)) == "state_position/source"


# -- blocks that are not judged ----------------------------------------------------------------------------------------


def test_of_opaque_blocks_only_holders_are_judged() -> None:
    swaps = [room("a", [2]), computes("a", 2, 3)]
    judged(OPAQUE, [room("a", [1]), computes("a", 0, 2), Known("a", 3)], swaps, a=(1, 2))
    both = [room("a", [1]), room("b", [1])]
    assert broken(OPAQUE, both, a=(1, 2), b=(3, 4)) == "no_reuse_while_used/take"
    assert broken(OPAQUE, [room("a", [1]), Ended("a")], a=(1, 2)) == "progress/ended_early"
