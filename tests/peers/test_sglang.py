"""SGLang's caches under SGLang's scheduling keep their promises, and no fault that is planted in them stays unseen."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from peers.cheap import process, scripts, shows
from peers.planted import MOST_LINES, faults_of, find, module_of

from kvspec.impl.adapters import environment
from kvspec.model import forms
from kvspec.model.conform import ConformOptions, ConformReport, conform
from kvspec.model.conformance import Context, EngineConfig, Form, PoolConfig
from kvspec.model.engines.generator import engine_config
from kvspec.model.engines.protocol import Abilities, Ended, Preempted
from kvspec.model.eventlog import FRAMES_MAGIC, FrameLog
from kvspec.model.generator import Source
from kvspec.model.remote.client import RemoteTargets
from kvspec.model.tracing.stream import StreamReport, judge_stream, read_final

pytestmark = pytest.mark.peer("sglang")

VARIANTS = {
    "sglang": ("token", "paged"),
    "sglang-unified": ("full", "full+sliding", "full+mamba"),
    "sglang-unified-rust": ("full", "full+sliding", "full+mamba"),
}
WAYS = ((), ("priority",), ("chunked",), ("priority", "chunked"))
CASES = [(target, variant) for target, variants in VARIANTS.items() for variant in variants]
FAULTS = [(target, fault) for target in VARIANTS for fault in faults_of(target)]


@pytest.fixture(scope="module")
def targets() -> Iterator[dict[str, RemoteTargets]]:
    """One process of each target, for all tests of it as it is."""
    with process("sglang") as first, process("sglang-unified") as second, process("sglang-unified-rust") as third:
        yield dict(zip(VARIANTS, (first, second, third), strict=True))


def always(ways: tuple[str, ...]) -> Callable[..., PoolConfig]:
    """Stands for `engine_config`: engines that schedule in one way."""

    def drawn(source: Source, abilities: Abilities) -> PoolConfig:
        config = engine_config(source, abilities)
        assert config.engine is not None
        chosen = {way: way in ways for way in abilities.ways}
        return msgspec.structs.replace(config, engine=msgspec.structs.replace(config.engine, **chosen))

    return drawn


def run(targets: RemoteTargets, target: str, operations: int, variant: str) -> ConformReport:
    options = ConformOptions(operations=operations, variant=variant, form=Form.ENGINES)
    return conform(targets, options, name=target)


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: "+".join(ways) or "plain")
@pytest.mark.parametrize(("target", "variant"), CASES)
def test_each_variant_conforms_in_each_way(
    targets: dict[str, RemoteTargets],
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    variant: str,
    ways: tuple[str, ...],
) -> None:
    monkeypatch.setattr(forms, "engine_config", always(ways))
    report = run(targets[target], target, 2000, variant)
    assert report.violation is None, str(report.violation)
    wanted = {"full+sliding": ("slides",), "full+mamba": ("states", "copies")}.get(variant, ())
    seen = {what: report.counts.get(what, 0) for what in ("hits", "evictions", "refusals", "drains", *wanted)}
    assert min(seen.values()) > 0, seen


def in_turn(targets: RemoteTargets, target: str) -> ConformReport:
    report = conform(targets, ConformOptions(operations=5000, form=Form.ENGINES), name=target)
    assert report.violation is None, str(report.violation)
    return report


@pytest.mark.parametrize("target", VARIANTS)
def test_all_variants_in_turn_show_what_has_to_be_seen(targets: dict[str, RemoteTargets], target: str) -> None:
    report = in_turn(targets[target], target)
    assert report.minimum and not report.unmet, report.unmet
    assert set(report.variants) == set(VARIANTS[target]) and min(report.variants.values()) > 0


def test_a_tree_that_keeps_nothing_breaks_no_promise_and_was_not_tried(targets: dict[str, RemoteTargets]) -> None:
    with process("sglang", "--patch", f"{module_of('sglang')}:_nothing_kept") as made:
        report = in_turn(made, "sglang")
    assert {wanted.counter for wanted in report.unmet} == {"hits", "evictions"}


@pytest.mark.parametrize("target", VARIANTS)
def test_a_request_gives_way_when_decoding_runs_out_of_room(targets: dict[str, RemoteTargets], target: str) -> None:
    config = PoolConfig(num_blocks=16, block_size=1, engine=EngineConfig(variant=VARIANTS[target][0]))
    engine: Any = targets[target](config)
    for seq in (1, 2):
        engine.submit(f"r{seq}", [seq], [seq] * 8, Context(), 0)
    records = [record for _ in range(40) for record in engine.step()]
    assert [record.seq for record in records if isinstance(record, Preempted)]
    assert {record.seq for record in records if isinstance(record, Ended)} == {"r1", "r2"}


@pytest.mark.parametrize(("target", "fault"), FAULTS)
def test_a_planted_fault_is_found(targets: dict[str, RemoteTargets], target: str, fault: str) -> None:
    assert find(target, fault, targets[target]).lines <= MOST_LINES


@pytest.mark.parametrize(("target", "variant"), [("sglang", "token"), ("sglang-unified", "full+mamba")])
def test_a_reset_in_use_and_a_match_that_is_not_undone_are_noticed(target: str, variant: str) -> None:
    with process(target, "--misuse") as made:
        found = run(made, target, 20_000, variant).violation
    assert found is not None
    assert f"{found.family}/{found.rule}" == "partition/free_count"


@pytest.mark.parametrize("script", scripts("sglang"), ids=lambda path: path.stem)
def test_a_finding_is_shown_by_its_script(script: Path) -> None:
    shows(script, "sglang")


# -- events -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[*VARIANTS])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The events of one run; beside it, the keys at the end."""
    out = tmp_path_factory.mktemp("events") / "events.frames"
    argv = environment.command("sglang")
    argv = [*argv[: argv.index("-m")], "-m", "kvspec.impl.adapters.sglang_events", str(out), "--target", request.param]
    done = subprocess.run(
        [*argv, "--final", str(out.with_suffix(".json"))],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out


def messages(path: Path) -> list[list[bytes]]:
    """The frames of each message."""
    data, found = path.read_bytes().removeprefix(FRAMES_MAGIC), []
    while data:
        (count,), data = struct.unpack(">I", data[:4]), data[4:]
        frames = []
        for _ in range(count):
            (size,) = struct.unpack(">I", data[:4])
            frames.append(data[4 : 4 + size])
            data = data[4 + size :]
        found.append(frames)
    return found


def events_of(message: list[bytes]) -> list[Any]:
    events: list[Any] = msgspec.msgpack.decode(message[2])[1]
    return events


def traced(messages: list[list[bytes]], out: Path) -> StreamReport:
    with FrameLog(out) as log:
        for frames in messages:
            log.write(*frames)
    return judge_stream([out], "sglang", from_start=True)


def test_recorded_events_give_the_keys_of_the_tree(recording: Path) -> None:
    final = read_final(recording.with_suffix(".json"))
    report = judge_stream([recording], "sglang", from_start=True, final=final)
    assert not report.findings, report.findings
    assert final
    assert min(report.stored, report.removed, report.cleared) > 0


@pytest.mark.parametrize("how", ["dropped", "twice", "early"])
def test_a_message_that_is_lost_comes_twice_or_early_is_found_there(recording: Path, tmp_path: Path, how: str) -> None:
    whole = messages(recording)
    at = len(whole) // 2
    changed = {
        "dropped": [*whole[:at], *whole[at + 1 :]],
        "twice": [*whole[: at + 1], *whole[at:]],
        "early": [*whole[:at], whole[at + 1], whole[at], *whole[at + 2 :]],
    }[how]
    first = traced(changed, tmp_path / "changed.frames").findings[0]
    before = sum(len(events_of(message)) for message in whole[: at + (how == "twice")])
    assert (first.rule, first.event) == ("sequence_back" if how == "twice" else "sequence_gap", before + 1)


@pytest.mark.parametrize("how", ["dropped", "twice"])
def test_a_removal_that_is_left_out_or_told_twice_is_found(recording: Path, tmp_path: Path, how: str) -> None:
    def altered(message: list[bytes]) -> list[bytes]:
        batch = msgspec.msgpack.decode(message[2])
        removals = [event for event in batch[1] if event["type"] == "BlockRemoved"]
        batch[1] = [e for e in batch[1] if e not in removals] if how == "dropped" else [*batch[1], *removals]
        return [*message[:2], msgspec.msgpack.encode(batch)]

    report = traced([altered(message) for message in messages(recording)], tmp_path / "changed.frames")
    assert report.findings[0].rule == ("stored_once" if how == "dropped" else "removed_was_stored")
