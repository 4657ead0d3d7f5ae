"""Each mistake that reaches what the model reads moves its outputs a hundred times farther than rounding does."""

from __future__ import annotations

from math import inf

import msgspec
import pytest
from equivalence.streams import Stream
from equivalence.twins import Twin, twins

from kvspec.impl.worker.compare import TOLERANCE, differences
from kvspec.impl.worker.engine import Engine
from kvspec.impl.worker.reference import reference_logits

TWINS = twins()


def apart(engine: type[Engine], stream: Stream) -> float:
    """How far the outputs of an engine are from those of the reference."""
    outcome = engine(stream.model, stream.config).run(stream.requests, stream.disturbances)
    return max(differences(outcome.logits, reference_logits(stream.model, stream.requests)))


def poisoned(stream: Stream) -> Stream:
    """The same stream in a pool that fills with NaN what is freed."""
    pool = msgspec.structs.replace(stream.config.pool, sanitizer=True)
    return Stream(
        stream.layers, stream.requests, msgspec.structs.replace(stream.config, pool=pool), stream.disturbances
    )


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.engine.__name__)
def test_a_mistake_moves_the_outputs_a_hundred_times_the_tolerance(twin: Twin) -> None:
    assert apart(Engine, twin.stream) < TOLERANCE
    assert apart(Engine, poisoned(twin.stream)) < TOLERANCE
    assert 100 * TOLERANCE < apart(twin.engine, twin.stream) < inf
    assert apart(twin.engine, poisoned(twin.stream)) > 100 * TOLERANCE
