"""A request trace made small enough for a model on a CPU: lengths divided, what is shared and how dense it is kept."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvspec.impl.worker.stream import Request
from kvspec.model.workload import GRANULE, Tokens, output_tokens, prompt_tokens
from kvspec.model.workload import Request as TraceRequest

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(33)


def scaled(requests: Iterable[TraceRequest], divide: int, step_ms: int, vocabulary: int) -> list[Request]:
    """The requests of a trace with all lengths divided, rounded up, for an engine.

    A hash id stands for ``512 / divide`` tokens; requests that share ids share these tokens. A step of the engine is
    ``step_ms * divide`` milliseconds of the trace: a request has so many times fewer tokens to decode, and as many
    others run beside it as in the trace. Tokens are folded into the vocabulary. The outputs are given, so that the
    logits of two runs can be compared.

    Args:
        requests: of the trace, in order of arrival.
        divide: a divisor of 512.
        step_ms: milliseconds of one step, before lengths are divided; at least 1.
        vocabulary: of the model.
    """
    return [_scaled(number, request, divide, step_ms, vocabulary) for number, request in enumerate(requests)]


def _scaled(number: int, request: TraceRequest, divide: int, step_ms: int, vocabulary: int) -> Request:
    places = np.arange(request.input_length)
    prompt = prompt_tokens(request)[places % GRANULE < GRANULE // divide][: -(-request.input_length // divide)]
    num_outputs = max(-(-request.output_length // divide), 1)
    return Request(
        prompt=_folded(prompt, vocabulary),
        num_outputs=num_outputs,
        outputs=_folded(output_tokens(number, num_outputs), vocabulary),
        arrival=-(-request.timestamp // (step_ms * divide)),
    )


def _folded(tokens: Tokens, vocabulary: int) -> tuple[int, ...]:
    """Token ids of a small vocabulary that look as if drawn at random, the same for the same token."""
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * _FACTOR
    mixed ^= mixed >> _SHIFT
    mixed *= _FACTOR
    return tuple(((mixed >> _SHIFT) % np.uint64(vocabulary)).tolist())
