"""The figures of docs/worker.md, measured: ``PYTHONPATH=tests python -m equivalence.figures [streams]``."""

from __future__ import annotations

import sys

import msgspec
from equivalence.streams import Stream, streams
from equivalence.twins import Twin, twins
from hypothesis import HealthCheck, Phase, given, seed, settings

from kvspec.impl.worker.compare import TOLERANCE, differences
from kvspec.impl.worker.engine import Engine
from kvspec.impl.worker.reference import reference_logits
from kvspec.impl.worker.threads import one_thread


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


def row(twin: Twin) -> str:
    """A mistake in the table of the page: by how many tolerances it misses, and whether poison shows it."""
    said = (twin.engine.__doc__ or "").split("\n")[0]
    nan = "NaN" if apart(twin.engine, poisoned(twin.stream)) == float("inf") else "the same"
    return f"| {twin.mistake} | {said} | {apart(twin.engine, twin.stream) / TOLERANCE:,.0f} | {nan} |"


def largest(count: int) -> list[float]:
    """Differences of correct runs over so many streams, largest first."""
    found: list[float] = []

    @seed(0)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(streams())
    def run(stream: Stream) -> None:
        found.append(apart(Engine, stream))

    run()
    return sorted(found, reverse=True)


def main() -> None:
    """Print the table, and what correct runs differ by."""
    print("\n".join(map(row, twins())))
    found = largest(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
    places = [0, len(found) // 1000, len(found) // 100, len(found) // 2]
    shown = ", ".join(f"{found[place]:.1e}" for place in places)
    print(f"{len(found)} streams: largest difference, and that of one in 1000, 100, 2: {shown}")


if __name__ == "__main__":
    with one_thread():
        main()
