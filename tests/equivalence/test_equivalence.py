"""The same requests say the same, whatever is cached, trimmed, evicted, given up and taken again on the way."""

from __future__ import annotations

from math import inf

import msgspec
import pytest
import torch
from equivalence.plain import plain_logits
from equivalence.streams import Stream, model_with, request_of, streams, tokens_of
from equivalence.twins import TWICE, config, stream
from hypothesis import given, settings

from kvspec.impl.worker.compare import TOLERANCE, differences
from kvspec.impl.worker.engine import Engine, NoProgressError, Run
from kvspec.impl.worker.model import HybridModel, ModelConfig
from kvspec.impl.worker.reference import reference_logits
from kvspec.impl.worker.reference import tokens_of as all_tokens
from kvspec.impl.worker.stream import Counts, Disturbance, EngineConfig, Request
from kvspec.model.conformance import PoolConfig

EXAMPLES = 6 * settings.default.max_examples  # type: ignore[union-attr]


class Watched(Engine):
    """Whoever is refused has what it had: no blocks, and the rank that it had."""

    def _admit(self, run: Run) -> bool:
        rank = run.sequence.dp_rank_
        admitted = super()._admit(run)
        assert admitted or (run.sequence.dp_rank_, run.sequence.single_block_, run.sequence.room) == (rank, None, 0)
        return admitted


def check(stream: Stream) -> Counts:
    """Run a stream; its outputs are those of the reference, and at the end nothing is left; what happened."""
    engine = Watched(stream.model, stream.config)
    outcome = engine.run(stream.requests, stream.disturbances)
    apart = differences(outcome.logits, reference_logits(stream.model, stream.requests))
    assert max(apart) < TOLERANCE, (apart, outcome.counts)
    assert [tuple(tokens) for tokens in outcome.outputs] == [request.outputs for request in stream.requests]
    assert outcome.counts.misuse == 0
    check_drained(engine)
    return outcome.counts


def check_drained(engine: Engine) -> None:
    """Once the caches are dropped every id of every rank is free."""
    manager = engine.manager_
    manager.reset()
    slots = [cache.slots_ for cache in manager.linear_state_prefix_caches_]
    for ids in (*manager.block_managers_, *manager.single_block_managers_, *slots):
        assert ids.num_free_blocks == ids.num_total_blocks - 1
        assert ids.num_used_blocks == 0


def test_every_stream_says_what_its_requests_say_alone() -> None:
    seen: dict[str, int] = dict.fromkeys(Counts.__struct_fields__, 0)

    @settings(max_examples=EXAMPLES)
    @given(streams())
    def run(stream: Stream) -> None:
        counts = check(stream)
        for name in seen:
            seen[name] += getattr(counts, name)

    run()
    # The streams are about something: each of these happened, again and again.
    wanted = {"misuse": 0, "failed_copies": 10, "rejected_tokens": 10, "restores": 50, "preemptions": 50}
    assert {name: count for name, count in seen.items() if count < wanted.get(name, 200)} == {}


@pytest.mark.parametrize("trim", ["contiguous", "deepest"])
@pytest.mark.parametrize("cached", [False, True], ids=["cache off", "cache on"])
def test_caching_saves_work_and_changes_no_output(cached: bool, trim: str) -> None:
    counts = check(stream(TWICE, config(chunk=16, trim=trim, enable_prefix_cache=cached)))
    assert counts.hit_tokens == (16 if cached else 0)
    assert counts.restores == (1 if cached else 0)
    assert counts.computed_tokens == sum(request.num_computed for request in TWICE) - counts.hit_tokens


def test_without_checkpoints_no_state_is_saved_and_no_prefix_reused() -> None:
    engine_config = EngineConfig(pool=config().pool, chunk=8, checkpoints=False)
    counts = check(stream(TWICE, engine_config))
    assert (counts.saves, counts.restores, counts.hit_tokens) == (0, 0, 0)
    assert counts.trimmed_blocks > 0


def test_the_reference_is_the_plain_model() -> None:
    requests = [request_of(tokens_of(length, length), 4, 1, 0) for length in (3, 40, 700)]
    model = model_with(("linear", "attention"))
    for request, logits in zip(requests, reference_logits(model, requests), strict=True):
        plain = torch.from_numpy(plain_logits(model, all_tokens(request)))[len(request.prompt) - 1 :]
        assert differences([logits], [plain])[0] < TOLERANCE


def test_tokens_that_are_not_given_are_the_most_expected_ones() -> None:
    free = [Request(prompt=request.prompt, num_outputs=6, arrival=request.arrival) for request in TWICE]
    model = model_with(("linear", "attention"))
    outcome = Engine(model, config()).run(free)
    assert [logits.argmax(-1).tolist() for logits in outcome.logits] == outcome.outputs
    given = [
        Request(prompt=request.prompt, num_outputs=6, outputs=tuple(outputs))
        for request, outputs in zip(free, outcome.outputs, strict=True)
    ]
    assert max(differences(outcome.logits, reference_logits(model, given))) < TOLERANCE


def test_a_value_that_is_no_number_is_infinitely_far() -> None:
    good = torch.zeros(2, 3)
    bad = good.clone()
    bad[1, 2] = torch.nan
    assert differences([good, bad], [good, good]) == [0, inf]
    assert differences([good], [good + 0.5]) == [0.5]
    with pytest.raises(ValueError, match="same requests"):
        differences([good], [good[:1]])


# -- what makes no sense -----------------------------------------------------------------------------------------------


def test_a_request_larger_than_the_pool_is_refused_at_once() -> None:
    engine = Engine(model_with(("linear", "attention")), config(num_blocks=6))
    with pytest.raises(ValueError, match="request 1: 6 blocks, expected at most 5"):
        engine.run([request_of((1,) * length, 2, 1, 0) for length in (3, 20)])


def test_what_is_refused_though_nothing_runs_is_said() -> None:
    engine = Engine(model_with(("linear", "attention")), config())
    held = engine.manager_.block_managers_[0].allocate(38)
    with pytest.raises(NoProgressError, match="request 0 is refused though nothing runs"):
        engine.run(TWICE)
    assert held


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": (), "num_outputs": 1},
        {"prompt": (1,), "num_outputs": 0},
        {"prompt": (1,), "num_outputs": 2, "outputs": (1,)},
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Request(**fields)  # type: ignore[arg-type]


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="chunk: 0"):
        EngineConfig(pool=config().pool, chunk=0)
    with pytest.raises(ValueError, match="no single blocks"):
        EngineConfig(pool=PoolConfig(num_blocks=4, block_size=2))


# -- on a GPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("trim", ["contiguous", "deepest"])
def test_a_gpu_says_what_the_plain_model_says(trim: str) -> None:
    requests = [request_of(request.prompt + tokens_of(30, n), 8, n, n) for n, request in enumerate(3 * TWICE)]
    small = config(num_blocks=30, num_state_slots=8, num_ranks=2, trim=trim, sanitizer=True)
    for chunk in (3, 16):
        engine_config = msgspec.structs.replace(small, chunk=chunk)
        engine = Engine(HybridModel(ModelConfig(layers=("linear", "attention")), "cuda"), engine_config)
        outcome = engine.run(requests, [Disturbance(step, "preempt", 0) for step in range(3, 12, 4)])
        plain = [
            torch.from_numpy(plain_logits(engine.model_, all_tokens(request)))[len(request.prompt) - 1 :]
            for request in requests
        ]
        assert max(differences(outcome.logits, plain)) < TOLERANCE
        assert outcome.counts.restores > 0
        assert outcome.counts.misuse == 0
