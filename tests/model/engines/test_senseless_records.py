"""Whatever an engine sends ends in a verdict on it, or in one line that says why it cannot be driven."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Form, PoolConfig, TargetError
from kvspec.model.engines.protocol import (
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
    Preempted,
    Run,
    Shown,
    Store,
)
from kvspec.model.engines.reference import ModelEngineTarget
from kvspec.model.pools import Pools
from kvspec.model.promises import Family, rules_of
from kvspec.model.scenario import parse_scenario, run_scenario

POOLS = Pools()
BEGIN = 'pool 14 block 2 engine "full+state" batch 8\nsubmit a 0..4 then 7 7 7\nsubmit b 0..4 then 8 8 8\n'


class Sends(ModelEngineTarget):
    """What the second step sends is changed."""

    change: Callable[[list[Any]], Any]

    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        self.steps = 0

    def step(self) -> list[AnyRecord]:
        self.steps += 1
        records = super().step()
        return type(self).change(records) if self.steps == 2 else records


def violated(change: Callable[[list[Any]], Any]) -> tuple[str, str]:
    """What an engine breaks whose second step sends something else."""
    twin = type("Changed", (Sends,), {"change": staticmethod(change)})
    result = run_scenario(parse_scenario(f"{BEGIN}step 2\n"), twin, POOLS)
    assert result.verdict == "violated", result.last
    return f"{result.family}/{result.rule}", result.what


def with_call(**fields: Any) -> Callable[[list[Any]], list[Any]]:
    """The first call of the step has other fields."""

    def change(records: list[Any]) -> list[Any]:
        at = next(i for i, record in enumerate(records) if isinstance(record, Call))
        shown = {name: fields[name] for name in fields if name in Shown.__struct_fields__}
        call = msgspec.structs.replace(records[at], shown=msgspec.structs.replace(records[at].shown, **shown))
        others = {name: value for name, value in fields.items() if name not in shown}
        return [*records[:at], msgspec.structs.replace(call, **others), *records[at + 1 :]]

    return change


def with_run(**fields: Any) -> Callable[[list[Any]], list[Any]]:
    """The first run of the forward pass has other fields."""

    def changed(record: Any) -> Any:
        if not isinstance(record, Forward):
            return record
        return Forward([msgspec.structs.replace(record.batch[0], **fields), *record.batch[1:]])

    return lambda records: [changed(record) for record in records]


def and_then(*more: Any) -> Callable[[list[Any]], list[Any]]:
    """The step sends more."""
    return lambda records: [*records, *more]


SENSELESS: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    # -- no records
    "nothing": (lambda records: None, "misuse/crash"),
    "a number": (lambda records: 7, "misuse/crash"),
    "words": (lambda records: "done", "misuse/records"),
    "none among them": (and_then(None), "misuse/records"),
    "a dict": (and_then({"is": "call"}), "misuse/records"),
    # -- tables
    "too few tables": (with_call(tables={"a": [[1, 2]]}), "misuse/records"),
    "too many tables": (with_call(tables={"a": [[1], [2], [3]]}), "misuse/records"),
    "a table of nobody": (with_call(tables={"z": [[1], [2]]}), "holders/gave_back"),
    "a block that there is not": (with_call(tables={"a": [[1, 99], [2]]}, keys=[{}]), "reserved/padding_handed_out"),
    "a negative block": (with_call(tables={"a": [[1, -1], [2]]}, keys=[{}]), "reserved/padding_handed_out"),
    "a block by name": (with_call(tables={"a": [["one"], [2]]}, keys=[{}]), "reserved/padding_handed_out"),
    "a list for a block": (with_call(tables={"a": [[[1]], [2]]}), "misuse/crash"),
    "a number for a table": (with_call(tables={"a": [1, 2]}), "misuse/crash"),
    "one block twice": (with_call(tables={"a": [[13, 13], [12]]}, keys=[{}]), "no_reuse_while_used/take"),
    "tables that shrink": (with_call(tables={"a": [[], []]}, keys=[{}]), "holders/ref_count"),
    # -- keys
    "keys of too many stores": (with_call(keys=[{}, {}]), "misuse/records"),
    "no keys though it has some": (with_call(keys=[]), "misuse/records"),
    "a key of a free block": (with_call(keys=[{13: "key"}]), "publish_after_write/stored_by_owner"),
    "a key of a block that there is not": (with_call(keys=[{99: "key"}]), "publish_after_write/stored_by_owner"),
    # -- counts
    "reference counts of too many stores": (with_call(refs=[{}, {}]), "misuse/records"),
    "no reference counts": (with_call(refs=None), "misuse/records"),
    "a negative reference count": (with_call(refs=[{1: -1}]), "holders/ref_count"),
    "a reference count that is none": (with_call(refs=[{1: "two"}]), "misuse/crash"),
    "no free count": (with_call(free=[]), "misuse/records"),
    "a free count too many": (with_call(free=[1, 1]), "misuse/records"),
    "a free count that is none": (with_call(free=[None]), "partition/free_count"),
    # -- pins
    "a pin in a store that there is not": (with_call(pins=[Pin("p", 1, 1)]), "misuse/records"),
    "a pin in store -1": (with_call(pins=[Pin("p", -1, 1)]), "misuse/records"),
    "a pin of a free block": (with_call(pins=[Pin("p", 0, 13)]), "holders/hold"),
    "a pin of a block that there is not": (with_call(pins=[Pin("p", 0, 99)]), "holders/hold"),
    # -- other fields of calls
    "a hit of nobody": (with_call(seq="z", hit=2), "holders/gave_back"),
    "a negative hit": (with_call(seq="a", hit=-2), "map_truth/hit_length"),
    "a hit of half a token": (with_call(seq="a", hit=0.5), "map_truth/hit_length"),
    "a refusal of nobody": (with_call(seq=None, refused=True, room=3), "misuse/records"),
    "spare blocks of too many stores": (with_call(refused=True, spare=(1, 1)), "misuse/records"),
    "a child of nobody": (with_call(tables={"a": [[13], [12]]}, keys=[{}], parent="z"), "holders/gave_back"),
    # -- the device
    "a copy in a store that there is not": (and_then(Copy(1, 1, 2)), "misuse/records"),
    "a copy in store -1": (and_then(Copy(-1, 1, 2)), "misuse/records"),
    "a copy of a free block": (and_then(Copy(0, 13, 1)), "exclusive_writer/copy"),
    "a copy to a free block": (and_then(Copy(0, 1, 13)), "exclusive_writer/copy"),
    "a copy of a block to itself": (and_then(Copy(0, 1, 1)), "exclusive_writer/copy"),
    "a run of nobody": (with_run(seq="z"), "holders/gave_back"),
    "a run of no tokens": (with_run(stop=2), "units/computed_in_turn"),
    "a run backwards": (with_run(stop=1), "units/computed_in_turn"),
    "a run from before": (with_run(start=1), "units/computed_in_turn"),
    "a run of tokens that nobody knows": (with_run(stop=6), "units/computed_in_turn"),
    "a run of more tokens than there are": (with_run(stop=60), "units/computed_in_turn"),
    "two runs of one request": (lambda records: [
        Forward([*r.batch, r.batch[0]]) if isinstance(r, Forward) else r for r in records
    ], "misuse/records"),
    "moves that are tuples": (with_run(moves=[(1, None, 1)]), "misuse/records"),
    "a run without moves": (with_run(moves=[]), "misuse/records"),
    "a move in a group of attention": (with_run(moves=[Move(0, 1, 1)]), "misuse/records"),
    "a move twice": (with_run(moves=[Move(1, 1, 1), Move(1, 1, 1)]), "misuse/records"),
    "a move in group -1": (with_run(moves=[Move(-1, 1, 1)]), "misuse/records"),
    "a state from a slot that there is not": (with_run(moves=[Move(1, 99, 1)]), "state_position/source"),
    "a state to a slot that it has not": (with_run(moves=[Move(1, 2, 99)]), "units/room"),
    "the same run twice": (lambda records: [*records, *(r for r in records if isinstance(r, Forward))],
                           "units/computed_in_turn"),
    # -- the host
    "tokens of nobody": (and_then(Known("z", 1)), "holders/gave_back"),
    "fewer tokens than before": (and_then(Known("a", 4)), "misuse/records"),
    "tokens that were not computed": (and_then(Known("a", 8)), "misuse/records"),
    "more tokens than there are": (and_then(Known("a", 80)), "misuse/records"),
    "nobody is preempted": (and_then(Preempted("z")), "holders/gave_back"),
    "somebody is preempted who has blocks": (and_then(Preempted("a")), "holders/gave_back"),
    "nobody is over": (and_then(Ended("z")), "holders/gave_back"),
    "somebody is over who has blocks": (and_then(Ended("a")), "progress/ended_early"),
}  # fmt: skip
"""By what is wrong: how what the second step sends is changed, and what it breaks."""


@pytest.mark.parametrize("what", SENSELESS)
def test_senseless_records_are_the_engines_fault(what: str) -> None:
    change, rule = SENSELESS[what]
    found, words = violated(change)
    assert found == rule, words
    assert "\n" not in words


def test_a_step_of_no_run_is_no_work() -> None:
    class Idles(ModelEngineTarget):
        def step(self) -> list[AnyRecord]:
            return [Forward([])]

    result = run_scenario(parse_scenario(f"{BEGIN}step 5\n"), Idles, POOLS)
    assert (result.family, result.rule) == ("progress", "goes_on")


def test_what_a_call_names_can_be_anything_and_is_shown() -> None:
    """What cannot be written as JSON is shown as Python shows it."""
    found, _ = violated(and_then(Known("a", complex(1, 2))))  # type: ignore[arg-type]
    assert found == "misuse/crash"


# -- whatever is sent --------------------------------------------------------------------------------------------------

ODD = [None, -1, 0, 1, 2, 3, 99, 2**70, 0.5, True, "", "r1", "z", b"x", [], [None], [[1]], {}, {1: "k"}, {"a": [[1]]}]


def altered(record: Any, source: random.Random) -> Any:
    """A record, or a part of it, with something else in one place."""
    if isinstance(record, msgspec.Struct) and record.__struct_fields__:
        field = source.choice(record.__struct_fields__)
        return msgspec.structs.replace(record, **{field: altered(getattr(record, field), source)})
    if isinstance(record, list | tuple) and record and source.random() < 0.8:
        at = source.randrange(len(record))
        return type(record)([*record[:at], *altered_in(record[at], source), *record[at + 1 :]])
    if isinstance(record, dict) and record and source.random() < 0.8:
        key = source.choice(list(record))
        others = {k: v for k, v in record.items() if k != key}
        return others | {source.choice([key, 99, "z"]): altered(record[key], source)}
    return source.choice(ODD)


def altered_in(item: Any, source: random.Random) -> Iterator[Any]:
    """What stands in the place of an item of a list: nothing, another, or two."""
    yield from source.choice([[], [item, item], [altered(item, source)], [altered(item, source)]])


class Babbles(ModelEngineTarget):
    """Sometimes anything is sent."""

    seed = 0

    def __init__(self, config: PoolConfig) -> None:
        super().__init__(config)
        self.source = random.Random(self.seed)

    def step(self) -> list[AnyRecord]:
        records = super().step()
        return altered(records, self.source) if records and self.source.random() < 0.2 else records


@pytest.mark.parametrize("part", range(4))
def test_whatever_is_sent_ends_in_a_verdict(part: int) -> None:
    found = set()
    for seed in range(part, 240, 4):
        twin = type("Babbles", (Babbles,), {"seed": seed})
        options = ConformOptions(seed=seed, operations=60, form=Form.ENGINES, shrink_seconds=0.001)
        violation = conform(twin, options, pools=POOLS).violation
        if violation is not None:
            assert violation.rule in rules_of(Family(violation.family)) or violation.family == "invariant"
            assert violation.before or not violation.reproduced
            found.add(violation.rule)
    assert len(found) >= 6


# -- how it is set up --------------------------------------------------------------------------------------------------

STORE, GROUP = Store((1, 2, 3), "unheld"), Group(0, "attention", 2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: None, "has layout None, expected a Layout"),
        (lambda: 1 // 0, "cannot say how it is set up: ZeroDivisionError"),
        (lambda: Layout((), (GROUP,), 2, 4), "stores: none"),
        (lambda: Layout((STORE,), (), 2, 4), "groups: none"),
        (lambda: Layout((STORE,), (Group(1, "attention", 2),), 2, 4), "groups: store 1"),
        (lambda: Layout((STORE,), (Group(-1, "attention", 2),), 2, 4), "groups: store -1"),
        (lambda: Layout((STORE,), (GROUP,), 0, 4), "hit_stride: 0"),
        (lambda: Store((1, 1), "unheld"), "ids: 1 twice"),
        (lambda: Group(0, "attention", 0), "block_size: 0"),
        (lambda: Group(0, "attention", 2, window=0), "window: 0"),
    ],
)
def test_a_layout_that_makes_no_sense_is_said_in_a_line(make: Callable[[], Any], says: str) -> None:
    twin = type("Odd", (ModelEngineTarget,), {"layout": lambda self: make()})
    with pytest.raises(TargetError, match=says) as raised:
        conform(twin, ConformOptions(operations=50, form=Form.ENGINES))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("abilities", [None, "full", ("full",)])
def test_an_engine_says_what_it_can_be_made_as(abilities: object) -> None:
    twin = type("Odd", (ModelEngineTarget,), {"abilities": abilities})
    with pytest.raises(TargetError, match="abilities"):
        conform(twin, ConformOptions(operations=50, form=Form.ENGINES))


def test_runs_are_made_of_what_the_protocol_has() -> None:
    """So that no kind of record is forgotten above."""
    assert set(AnyRecord.__args__) == {Call, Copy, Forward, Known, Preempted, Ended}
    assert Run.__struct_fields__ == ("seq", "start", "stop", "moves")
