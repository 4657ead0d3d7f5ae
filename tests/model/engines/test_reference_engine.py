"""The reference engine holds in every variant and way, does the same again, and can be asked by a scenario."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from kvspec.cli.main import run
from kvspec.model import operations as ops
from kvspec.model.acceptor import judge_of
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Capability, Context, EngineConfig, Form, MisuseError, PoolConfig
from kvspec.model.engines.generator import EngineGenerator, engine_config
from kvspec.model.engines.protocol import WAYS, AnyRecord, Layout
from kvspec.model.engines.reference import ModelEngineTarget
from kvspec.model.generator import RandomSource
from kvspec.model.operations import AnyOperation
from kvspec.model.pools import Pools
from kvspec.model.scenario import ScenarioError, format_scenario, parse_scenario, run_scenario

POOLS = Pools()
VARIANTS = ModelEngineTarget.abilities.variants
USUAL = PoolConfig(num_blocks=8, block_size=2, engine=EngineConfig(variant="full"))


def driven(seed: str, length: int = 60) -> tuple[PoolConfig, list[AnyOperation]]:
    """An engine, and what it was asked."""
    source = RandomSource(seed)
    config = engine_config(source, ModelEngineTarget.abilities)
    engine = msgspec.structs.replace(config.engine, variant=source.choice(VARIANTS))
    config = msgspec.structs.replace(config, engine=engine)
    judge = judge_of(ModelEngineTarget(config), config)
    generator = EngineGenerator(source, config, judge.pool, judge.capabilities)
    done = []
    for operation in chain((generator.next() for _ in range(length)), generator.ending(), generator.closing()):
        done.append(operation)
        judge.do(operation)
    return config, done


# -- it holds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_the_reference_holds_in_every_variant(seed: int) -> None:
    report = conform(ModelEngineTarget, ConformOptions(seed=seed, operations=5000, form=Form.ENGINES), pools=POOLS)
    assert report.violation is None
    assert tuple(report.variants) == VARIANTS and min(report.variants.values()) > 100
    assert sum(report.variants.values()) == report.operations
    for what in ("hits", "evictions", "preemptions", "refusals", "copies", "slides", "states"):
        assert report.counts[what] > 5, what
    assert {family.verdict for family in report.families} == {"holds"}


@pytest.mark.parametrize("ways", [{}, {"priority": True}, {"chunked": True}, {"priority": True, "chunked": True}])
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_holds_in_every_way(variant: str, ways: dict[str, bool]) -> None:
    engine = EngineConfig(variant=variant, max_batch_tokens=8, max_running=3, **ways)
    config = PoolConfig(num_blocks=10, block_size=2, engine=engine)
    for seed in range(3):
        judge = judge_of(ModelEngineTarget(config, seed=seed), config, pool=POOLS.take(config))
        generator = EngineGenerator(RandomSource(f"{variant} {seed}"), config, judge.pool, judge.capabilities)
        for operation in chain((generator.next() for _ in range(60)), generator.ending()):
            judge.do(operation)
        judge.sweep()
        judge.drained()
        POOLS.give(judge.pool)


def test_a_run_does_the_same_again() -> None:
    options = ConformOptions(seed=5, operations=800, form=Form.ENGINES)
    one, other = (conform(ModelEngineTarget, options) for _ in range(2))
    assert one.counts == other.counts and one.variants == other.variants and one.families == other.families


def test_a_target_sends_the_same_again() -> None:
    def sent(config: PoolConfig, operations: list[AnyOperation]) -> list[AnyRecord]:
        found: list[AnyRecord] = []

        class Noted(ModelEngineTarget):
            def step(self) -> list[AnyRecord]:
                records = super().step()
                found.extend(records)
                return records

        judge = judge_of(Noted(config), config)
        for operation in operations:
            judge.do(operation)
        return found

    for seed in range(12):
        config, operations = driven(f"again {seed}")
        assert sent(config, operations) == sent(config, operations) != []


def test_what_is_not_asked_for_is_not_judged() -> None:
    """A request that is too long for the memory may wait for ever, and others with it."""
    text = "pool 4 block 2 engine full\nsubmit a 0..9 then 1\nstep 50\n"
    assert run_scenario(parse_scenario(text), ModelEngineTarget, POOLS).passed


# -- calls that make no sense ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        ops.Submit("a", (1,), (1,)),  # was there
        ops.Submit("b", (), (1,)),
        ops.Submit("b", (1,), ()),
        ops.Abort("b"),
        ops.Abort("a"),  # is over
        ops.Evict(-1),
    ],
)
def test_senseless_calls_are_errors(operation: AnyOperation) -> None:
    judge = judge_of(ModelEngineTarget(USUAL), USUAL)
    for first in (ops.Submit("a", (1, 2), (3,)), ops.Step(3)):
        judge.do(first)
    with pytest.raises(MisuseError):
        judge.do(operation)


@pytest.mark.parametrize("call", [ops.Submit("a", (1,), (1,)), ops.Step(), ops.Evict(1), ops.Reset(), ops.Close()])
def test_everything_is_an_error_behind_the_end(call: AnyOperation) -> None:
    judge = judge_of(ModelEngineTarget(USUAL), USUAL)
    judge.do(ops.Close())
    with pytest.raises(MisuseError):
        judge.do(call)


def test_a_reset_says_whether_it_was_done() -> None:
    text = "pool 8 block 2 engine full\nsubmit a 1 2 then 3 3\nstep\nreset\nexpect refused\n"
    result = run_scenario(parse_scenario(f"{text}step 3\nreset\nexpect granted\nexpect keys 0\n"), ModelEngineTarget)
    assert result.passed, result.last


def test_what_a_reset_drops_is_not_evicted() -> None:
    judge = judge_of(ModelEngineTarget(USUAL), USUAL)
    for operation in (ops.Submit("a", (1, 2, 3, 4), (5,)), ops.Step(3), ops.Evict(1)):
        judge.do(operation)
    assert judge.counts["published"] == 2 and judge.counts["evictions"] == 1
    judge.do(ops.Reset())
    assert judge.counts["evictions"] == 1


def test_who_lacks_the_capability_is_no_engine() -> None:
    twin = type("Twin", (ModelEngineTarget,), {"capabilities": frozenset({Capability.FREE_COUNT})})
    with pytest.raises(Exception, match="lacks"):
        conform(twin, ConformOptions(operations=10, form=Form.ENGINES))


# -- as scenarios ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_what_was_asked_can_be_written_read_and_asked_again(seed: int) -> None:
    config, operations = driven(f"written {seed}")
    scenario = parse_scenario(format_scenario(operations, config))
    assert scenario.config == config and [line.item for line in scenario.lines] == operations
    result = run_scenario(scenario, ModelEngineTarget, POOLS)
    assert result.passed, result.last


def test_all_that_a_request_and_an_engine_can_have_is_written() -> None:
    sizes, ways = {"max_batch_tokens": 7, "max_running": 2, "window": 3}, dict.fromkeys(WAYS, True)
    engine = EngineConfig(variant="full+sliding", **sizes, **ways)
    config = PoolConfig(num_blocks=9, block_size=3, engine=engine)
    context = Context(adapter="x", adapter_version=2, salt="s", images=("i", "j"))
    asked = [ops.Submit("two words", (1, 2, 3), (4,), context, 2), ops.Step(), ops.Step(12), ops.Abort("two words")]
    text = format_scenario(asked, config)
    assert 'engine "full+sliding" batch 7 running 2 window 3 priority chunked overlapped' in text
    assert 'submit "two words" 1..3 then 4 adapter=x version=2 salt=s images=i,j priority=2' in text
    scenario = parse_scenario(text)
    assert scenario.config == config and [line.item for line in scenario.lines] == asked


def test_the_command_runs_scenarios_of_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.kv", tmp_path / "bad.kv"
    good.write_text("pool 8 block 2 engine full\nsubmit a 0..2 then 7\nstep 2\nexpect free 7\nexpect drained\n")
    bad.write_text("pool 8 block 2 engine full\nsubmit a 0..2 then 7\nstep 2\nexpect free 6\n")
    assert run(["run", str(good), "--target", "model"]) == 0
    assert run(["run", str(bad), "--target", "model"]) == 1
    assert "found 7" in capsys.readouterr().out
    assert run(["run", str(good)]) == 2  # torch has no engine around its manager
    good.write_text("pool 8 block 2 engine mamba\nstep\n")
    capsys.readouterr()
    assert run(["run", str(good), "--target", "model"]) == 2
    assert "variant: 'mamba', expected one of full, sliding" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pool 8 block 2\nsubmit a 1 then 2\n", "an engine, with 'engine NAME' in the line of the pool"),
        ("pool 8 block 2\nstep\n", "an engine, with 'engine NAME' in the line of the pool"),
        ("pool 8 block 2 engine full\nstart a 1\n", "submit, step, abort, evict, reset or close"),
        ("pool 8 block 2 engine full\nwrite a 1\n", "submit, step, abort, evict, reset or close"),
        ("pool 8 block 2 engine full\nevict 1 rank 1\n", "a pool, with 'single N' in its line"),
        ("pool 8 block 2 engine full\nexpect free 7 rank 1\n", "a pool, with 'single N' in its line"),
        ("pool 8 block 2 engine full\nexpect released a 1\n", "a composite"),
        ("pool 8 block 2 engine full\nexpect singles 1\n", "a pool, with 'single N' in its line"),
        ("pool 8 block 2 batch 4\n", "'batch' without an engine, expected 'engine NAME' before it"),
        ("pool 8 block 2 chunked\n", "'chunked' without an engine, expected 'engine NAME' before it"),
        ("pool 8 block 2 engine full batch 0\n", "'batch' is 0, expected at least 1"),
        ("pool 8 block 2 engine full running 0\n", "'running' is 0, expected at least 1"),
        ("pool 8 block 2 engine full window 0\n", "'window' is 0, expected at least 1"),
        ("pool 8 block 2 engine full batch -1\n", "-1, expected 0 or more"),
        ("pool 8 block 2 engine full batch 4 batch 5\n", "'batch' twice"),
        ("pool 8 block 2 engine full engine full\n", "'engine' twice"),
        ("pool 8 block 2 engine\n", "the line ends"),
        ("pool 8 block 2 engine 3\n", "found '3'"),
        ("pool 8 block 2 single 3 engine full\n", "'engine'"),
        ("pool 8 block 2 no-cache group 4 block 2 engine full\n", "'engine'"),
        ("pool 8 block 2 engine full\nstep 0\n", "0 steps, expected at least 1"),
        ("pool 8 block 2 engine full\nstep -2\n", "-2 steps, expected at least 1"),
        ("pool 8 block 2 engine full\nstep a\n", "found 'a'"),
        ("pool 8 block 2 engine full\nsubmit a 1 2\n", "the line ends, expected"),
        ("pool 8 block 2 engine full\nsubmit a 1 then 2 priority=1 priority=2\n", "'priority=' twice"),
        ("pool 8 block 2 engine full\nsubmit a 1 then 2 salt=x salt=y\n", "'salt=' twice"),
        ("pool 8 block 2 engine full\nstart a 1 priority=1\n", "found 'priority='"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(text: str, says: str) -> None:
    with pytest.raises(ScenarioError, match=r"^scenario:\d+:\d+: ") as raised:
        parse_scenario(text)
    assert says in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("count", [0, -1])
def test_there_is_no_step_of_nothing(count: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        ops.Step(count)


@pytest.mark.parametrize("check", ["hit z 1", "computed z 1", "blocks z 1", "blocks a 1 group 3", "references a 9 1"])
def test_a_check_of_what_there_is_not_fails(check: str) -> None:
    text = f"pool 8 block 2 engine full\nsubmit a 0..2 then 7 7\nstep\nexpect {check}\n"
    result = run_scenario(parse_scenario(text), ModelEngineTarget, POOLS)
    assert result.verdict == "failed"


# -- what can be fixed -------------------------------------------------------------------------------------------------


def test_one_variant_is_driven_alone() -> None:
    seen = []

    class Noted(ModelEngineTarget):
        def layout(self) -> Layout:
            seen.append(self.engine)
            return super().layout()

    asked = {"variant": "sliding", "max_batch_tokens": 8, "max_running": 2, "window": 3}
    report = conform(Noted, ConformOptions(operations=800, form=Form.ENGINES, **asked))  # type: ignore[arg-type]
    assert tuple(report.variants) == ("sliding",)
    found = {(e.variant, e.max_batch_tokens, e.max_running, e.window) for e in seen}
    assert found == {("sliding", 8, 2, 3)} and len(seen) > 1


def test_a_variant_that_there_is_not_is_said() -> None:
    with pytest.raises(Exception, match="no variant 'mamba', expected one of full, sliding"):
        conform(ModelEngineTarget, ConformOptions(variant="mamba"))
    for name in ("max_batch_tokens", "max_running", "window"):
        with pytest.raises(ValueError, match=f"{name}: 0, expected at least 1"):
            ConformOptions(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="variant: full, expected none where only pools are driven"):
        ConformOptions(form=Form.POOLS, variant="full")


def test_the_report_says_how_much_each_variant_was_driven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "report.json"
    command = ["conform", "model", "--form", "engines", "--operations", "1500", "--json", str(saved)]
    assert run(command) == 0
    report = json.loads(saved.read_bytes())["report"]
    assert tuple(report["variants"]) == VARIANTS and sum(report["variants"].values()) == report["operations"]
    told = ", ".join(f"{name} {count:,}" for name, count in report["variants"].items())
    assert f"  operations of each variant: {told}\n" in capsys.readouterr().out
    assert run(["conform", "model", "--form", "managers", "--operations", "300"]) == 0
    assert "of each variant" not in capsys.readouterr().out
