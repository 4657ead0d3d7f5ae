"""``python -m kvspec.impl.adapters.vllm_events OUT``: records the KV events of a run of vLLM's manager.

The file has the messages that vLLM's publisher would send, frame by frame (`kvspec.model.eventlog.FrameLog`), so that
``kvspec trace`` can read it. ``--final FILE`` also gets the keys that the manager has at the end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import msgspec
from vllm.distributed.kv_events import MEDIUM_GPU, EventPublisher, KVEventBatch

from kvspec.impl.adapters.vllm import Engine
from kvspec.model.conformance import Context, EngineConfig, PoolConfig
from kvspec.model.eventlog import FrameLog


class Recorder(EventPublisher):  # type: ignore[misc]  # packages of peers have no types here
    """Writes what `ZmqEventPublisher` sends: topic, number, and the batch in msgpack."""

    def __init__(self, log: FrameLog, topic: str = "") -> None:
        super().__init__()
        self._log, self._topic = log, topic.encode()
        self._numbers = iter(range(2**63))

    def publish(self, events: KVEventBatch) -> None:
        events.data_parallel_rank = self._data_parallel_rank
        self._log.write(self._topic, next(self._numbers).to_bytes(8, "big"), msgspec.msgpack.encode(events))

    def shutdown(self) -> None:
        self._log.close()


def record(out: str, config: PoolConfig, requests: int, seed: int) -> list[dict[str, Any]]:
    """Run requests that share prompts, and now and then a reset; the keys at the end.

    Args:
        out: the file.
        config: with an engine.
        requests: how many.
        seed: of what they are.
    """
    engine = Engine(config)
    engine.scheduler.kv_event_publisher = Recorder(FrameLog(out))
    source, longest = Random(seed), engine.layout().longest_request
    for number, (prompt, output) in enumerate(_requests(source, requests, longest)):
        engine.submit(f"r{number}", prompt, output, Context(salt=source.choice((None, None, "salt"))), 0)
        for _ in range(source.randrange(4)):
            engine.step()
        if source.random() < 0.05:
            _finish(engine)
            engine.reset()
    _finish(engine)
    if left := engine.manager.take_events():  # the next step would publish them
        engine.scheduler.kv_event_publisher.publish(KVEventBatch(ts=0.0, events=left))
    keys = engine.manager.keys()
    engine.close()
    return [{"hash": key, "copies": n, "group": g, "medium": MEDIUM_GPU} for (key, g), n in keys.items()]


def _requests(source: Random, count: int, longest: int) -> Iterator[tuple[list[int], list[int]]]:
    """Prompts that begin alike; each token has one of three values."""
    stem = [source.randrange(3) for _ in range(longest)]
    for _ in range(count):
        kept, total = source.randrange(longest), source.randint(2, longest)
        tokens = [*stem[:kept], *(source.randrange(3) for _ in range(longest))][:total]
        cut = source.randint(1, total - 1)
        yield tokens[:cut], tokens[cut:]


def _finish(engine: Engine) -> None:
    """Run until nothing is left."""
    while engine.scheduler.has_requests():
        engine.step()


def main(given: Mapping[str, Any]) -> None:
    """Record one run."""
    how = EngineConfig(variant=given["variant"], max_batch_tokens=16, chunked=True, overlapped=given["overlapped"])
    config = PoolConfig(num_blocks=given["blocks"], block_size=given["block_size"], engine=how)
    keys = record(given["out"], config, given["requests"], given["seed"])
    if given["final"] is not None:
        with open(given["final"], "w", encoding="utf-8") as file:
            json.dump(keys, file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m kvspec.impl.adapters.vllm_events", allow_abbrev=False)
    parser.add_argument("out", help="the recording; what is there is continued")
    parser.add_argument("--final", help="gets the keys at the end")
    parser.add_argument("--variant", default="full", choices=Engine.abilities.variants)
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--block-size", type=int, default=2)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overlapped", action="store_true")
    main(vars(parser.parse_args()))
