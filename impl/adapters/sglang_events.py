"""``python -m kvspec.impl.adapters.sglang_events OUT``: records the KV events of a run of one of SGLang's caches.

The file has the messages that SGLang's publisher would send (`ZmqEventPublisher`), frame by frame
(`kvspec.model.eventlog.FrameLog`), so that ``kvspec trace`` can read it. ``--final FILE`` gets the keys at the
end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from kvspec.impl.adapters.environment import TARGETS, module
from kvspec.impl.adapters.sglang_engine import SglangEngine
from kvspec.impl.adapters.sglang_package import KVEventBatch
from kvspec.model.conformance import Context, EngineConfig, PoolConfig
from kvspec.model.eventlog import FrameLog


class Recorder:
    """Writes what a publisher sends: topic, number, and the batch in msgpack."""

    def __init__(self, engine: SglangEngine, log: FrameLog) -> None:
        self._engine, self._log, self._numbers = engine, log, count()

    def publish(self) -> None:
        """A step is over (`SchedulerKvEventsPublisher.publish_kv_events`)."""
        events = self._engine.published.taken
        if events:
            number = next(self._numbers)
            batch = KVEventBatch(ts=float(number), events=list(events), attn_dp_rank=0)
            self._log.write(b"", number.to_bytes(8, "big"), msgspec.msgpack.encode(batch))
            events.clear()


def record(out: str, target: str, config: PoolConfig, requests: int, seed: int) -> dict[int, int]:
    """Run requests that share prompts, and now and then a reset; the keys at the end, and how often they are there.

    Args:
        out: the file.
        target: one of SGLang's.
        config: with an engine.
        requests: how many.
        seed: of what they are.
    """
    engine: SglangEngine = import_module(module(target)).make(config)
    source, longest = Random(seed), engine.layout().longest_request
    with FrameLog(out) as log:
        recorder = Recorder(engine, log)
        for number, (prompt, output) in enumerate(_requests(source, requests, longest)):
            engine.submit(f"r{number}", prompt, output, Context(salt=source.choice((None, None, "salt"))), 0)
            for _ in range(source.randrange(4)):
                engine.step()
                recorder.publish()
            if source.random() < 0.05:
                _finish(engine, recorder)
                engine.reset()
        _finish(engine, recorder)
        recorder.publish()
    return engine.published.keys()


def _requests(source: Random, number: int, longest: int) -> Iterator[tuple[list[int], list[int]]]:
    """Prompts that begin alike; each token has one of three values."""
    stem = [source.randrange(3) for _ in range(longest)]
    for _ in range(number):
        kept, total = source.randrange(longest), source.randint(2, longest)
        tokens = [*stem[:kept], *(source.randrange(3) for _ in range(longest))][:total]
        cut = source.randint(1, total - 1)
        yield tokens[:cut], tokens[cut:]


def _finish(engine: SglangEngine, recorder: Recorder) -> None:
    """Run until nothing is left."""
    while not engine.is_idle:
        engine.step()
        recorder.publish()


def main(given: Mapping[str, Any]) -> None:
    """Record one run."""
    how = EngineConfig(variant=given["variant"], max_batch_tokens=16, chunked=True)
    config = PoolConfig(num_blocks=given["blocks"], block_size=given["block_size"], engine=how)
    keys = record(given["out"], given["target"], config, given["requests"], given["seed"])
    if given["final"] is not None:
        Path(given["final"]).write_text(json.dumps(keys), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m kvspec.impl.adapters.sglang_events", allow_abbrev=False)
    parser.add_argument("out", help="the recording; what is there is continued")
    parser.add_argument("--final", help="gets the keys at the end")
    parser.add_argument("--target", default="sglang", choices=[name for name in TARGETS if name.startswith("sglang")])
    parser.add_argument("--variant", default="")
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--block-size", type=int, default=2)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    main(vars(parser.parse_args()))
