"""Runs of engines are made small: steps are joined, requests say less, and engines become as they usually are."""

from __future__ import annotations

import pytest

from kvspec.model import operations as ops
from kvspec.model.conformance import Context, EngineConfig, PoolConfig
from kvspec.model.shrink import Case, Fails, Shrinker

ODD = EngineConfig(variant="full+sliding", max_batch_tokens=7, max_running=2, window=9, priority=True, chunked=True)
ASKED = (
    ops.Submit("x", (3, 4, 5, 6), (7, 8), Context(adapter="l", images=("i",)), 2),
    ops.Step(2),
    ops.Step(),
    ops.Submit("y", (3, 4), (9,)),
    ops.Evict(3),
    ops.Step(4),
    ops.Abort("x"),
    ops.Step(),
    ops.Reset(),
)


def shrunk(fails: Fails, operations: tuple[ops.AnyOperation, ...] = ASKED, blocks: int = 9) -> Case:
    """The smallest case that fails so."""
    shrinker = Shrinker(Case(PoolConfig(num_blocks=blocks, block_size=3, engine=ODD), operations), fails, 30)
    shrinker.run()
    assert shrinker.complete and fails(shrinker.best)
    return shrinker.best


def steps(case: Case) -> int:
    return sum(line.count for line in case.operations if isinstance(line, ops.Step))


@pytest.mark.parametrize("needed", [1, 2, 5, 8])
def test_steps_are_joined_and_become_fewer(needed: int) -> None:
    assert shrunk(lambda case: steps(case) >= needed).operations == (ops.Step(needed),)


def test_steps_with_something_between_them_stay_apart() -> None:
    def fails(case: Case) -> bool:
        kinds = [type(line) for line in case.operations]
        return kinds[-3:] == [ops.Step, ops.Evict, ops.Step]

    assert shrunk(fails, ASKED[:6]).operations == (ops.Step(), ops.Evict(0), ops.Step())


def test_many_lines_become_few() -> None:
    many = tuple(line for n in range(40) for line in (ops.Submit(f"r{n}", (n,), (1,)), ops.Step(), ops.Step(2)))
    assert shrunk(lambda case: steps(case) >= 7, many).operations == (ops.Step(7),)


def test_an_engine_becomes_as_it_usually_is() -> None:
    engine = shrunk(lambda case: True).config.engine
    assert engine == EngineConfig(variant="full")


@pytest.mark.parametrize(("field", "value"), [("max_running", 2), ("max_batch_tokens", 5), ("window", 1)])
def test_what_is_needed_of_an_engine_stays(field: str, value: int) -> None:
    def fails(case: Case) -> bool:
        engine = case.config.engine
        return engine is not None and getattr(engine, field) <= value and "sliding" in engine.variant

    engine = shrunk(fails).config.engine
    assert engine is not None and engine.variant == "sliding" and 1 <= getattr(engine, field) <= value
    usual = EngineConfig(variant="sliding")
    others = {name for name in engine.__struct_fields__ if getattr(engine, name) != getattr(usual, name)}
    assert others == {field}


def test_requests_say_less_but_always_something() -> None:
    found = shrunk(lambda case: any(isinstance(line, ops.Submit) for line in case.operations))
    assert found.operations == (ops.Submit("a", (0,), (0,)),)


def test_tokens_become_smaller_wherever_they_stand() -> None:
    """A request that begins like another one goes on doing so, also where the other has generated it."""

    def fails(case: Case) -> bool:
        requests = [line for line in case.operations if isinstance(line, ops.Submit)]
        return len(requests) == 2 and requests[1].tokens[:3] == requests[0].tokens + requests[0].output

    asked = (ops.Submit("x", (5, 6), (9,)), ops.Step(3), ops.Submit("y", (5, 6, 9), (4,)))
    one, other = shrunk(fails, asked).operations
    assert isinstance(one, ops.Submit) and isinstance(other, ops.Submit)
    assert {*one.tokens, *one.output, *other.tokens} == {0}


def test_a_run_of_an_engine_stays_one() -> None:
    """No line is tried that no engine can be asked."""
    tried: set[type] = set()

    def fails(case: Case) -> bool:
        tried.update(type(line) for line in case.operations)
        return case.operations[-1:] == (ops.Abort("x"),)

    shrunk(fails, ASKED[:7])
    assert tried <= {ops.Submit, ops.Step, ops.Abort, ops.Evict, ops.Reset, ops.Close}
