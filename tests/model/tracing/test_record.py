"""What happens in pools, recorded as a log: a trace of it finds what the judge has found."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from event_walks import header
from faulty import paged_twins, pool_twins, twins

from kvspec.cli.main import run
from kvspec.model.conform import ConformOptions, conform
from kvspec.model.conformance import Context, Form, MakeTarget
from kvspec.model.pools import Pools
from kvspec.model.reference import model_target
from kvspec.model.scenario import parse_scenario, read_scenario, run_scenario
from kvspec.model.tracing.header import arguments
from kvspec.model.tracing.log import Row
from kvspec.model.tracing.record import CHAPTERS, NotLoggedError, Recorder
from kvspec.model.tracing.trace import TraceReport, trace_events
from kvspec.model.tracing.values import told
from kvspec.model.world import NOTHING, Chains

CORPUS = Path(__file__).parents[2] / "corpus"
POOLS = Pools()
TOKENS = b"".join(token.to_bytes(8, "little") for token in (7, 8))
SCENARIO = """pool 6 block 4
start a 0..5
allocate a 6
write a 6
start b 0..5
deallocate a
allocate_shared b
allocate b 6
write b 2
deallocate b
"""


def traced(folder: Path, text: str) -> TraceReport:
    path = folder / "log.jsonl"
    path.write_text(text)
    return trace_events([path])


def recorded(record: Callable[[Recorder], Any]) -> tuple[Recorder, str]:
    file = io.StringIO()
    recorder = Recorder(file)
    record(recorder)
    return recorder, file.getvalue()


@pytest.mark.parametrize("form", CHAPTERS)
def test_what_a_good_manager_does_holds_in_a_trace(form: Form, tmp_path: Path) -> None:
    options = ConformOptions(operations=1200, form=form)
    recorder, text = recorded(lambda r: conform(model_target, options, pools=POOLS, recorder=r))
    report = traced(tmp_path, text)
    assert report.finding is None, report.finding
    assert (report.chapter, report.events, report.believed) == (CHAPTERS[form], recorder.events, 0)
    assert not recorder.violated and recorder.events > 400
    heads = [line for line in map(json.loads, text.splitlines()) if "kvspec" in line]
    assert len({head["num_blocks"] for head in heads}) > 1 and all(head["complete"] for head in heads)
    names = Counter(line["event"] for line in map(json.loads, text.splitlines()) if "event" in line)
    assert names["mount"] and names["publish"] and names["write"]


@pytest.mark.parametrize("form", CHAPTERS)
def test_a_recorded_log_may_be_read_from_its_middle(form: Form, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"num_blocks": 5, "block_size": 2, "form": form, "operations": 60}
    _, text = recorded(lambda r: conform(model_target, ConformOptions(**sizes), pools=POOLS, recorder=r))
    head, *lines = text.splitlines()
    run_of_it = lines[: next((n for n, line in enumerate(lines) if "kvspec" in line), len(lines))]
    late = json.dumps({**json.loads(head), "complete": False})
    report = traced(tmp_path, "\n".join([late, *run_of_it[7:], ""]))
    assert report.finding is None and report.started == "unknown" and report.events > 20


def field(folder: str, build: Callable[[str], MakeTarget], *names: str) -> list[Any]:
    return [pytest.param(CORPUS / folder / f"{name}.kv", build, id=name) for name in names]


@pytest.mark.parametrize(
    ("path", "build"),
    [
        *field("field", twins.build, "B26", "B27", "B29", "B30", "B34", "B36"),
        *field("pools", pool_twins.build, "B07", "B08", "B26"),
        *field("pages", paged_twins.build, "B34"),
    ],
)
def test_a_forbidden_step_is_found_at_the_line_that_is_it(
    path: Path, build: Callable[[str], MakeTarget], tmp_path: Path
) -> None:
    found = []
    recorder, text = recorded(lambda r: found.append(run_scenario(read_scenario(path), build(path.stem), POOLS, r)))
    assert recorder.violated and recorder.shows_violation
    report = traced(tmp_path, text)
    finding = report.finding
    assert finding is not None and finding.line == len(text.splitlines())
    step = json.loads(text.splitlines()[-1])
    if "event" in step:
        assert finding.rule == f"{report.chapter}.{step['event']}/require" and found[0].rule == step["event"]
    else:
        assert finding.rule == f"{report.chapter}/snapshot" and "free" in found[0].what


@pytest.mark.parametrize("name", ["B24", "B33", "B41", "B61", "B67"])
def test_what_is_no_line_of_a_log_is_said_to_be_none(name: str, tmp_path: Path) -> None:
    scenario = read_scenario(CORPUS / "field" / f"{name}.kv")
    recorder, text = recorded(lambda r: run_scenario(scenario, twins.build(name), POOLS, r))
    assert recorder.violated and not recorder.shows_violation
    assert traced(tmp_path, text).finding is None


def test_a_model_that_was_recorded_is_as_it_was(tmp_path: Path) -> None:
    scenario = parse_scenario(SCENARIO)
    pools = Pools()
    recorder, text = recorded(lambda r: run_scenario(scenario, model_target, pools, r))
    run_scenario(scenario, model_target, pools)
    again, same = recorded(lambda r: run_scenario(scenario, model_target, pools, r))
    assert (recorder.events, text) == (again.events, same)


@pytest.mark.parametrize(("name", "rule"), [("B29", "sequences.evict/require"), ("B36", "sequences/snapshot")])
def test_a_violation_by_random_operations_is_the_last_line(name: str, rule: str, tmp_path: Path) -> None:
    found = set()
    for seed in range(8):
        options = ConformOptions(operations=20_000, seed=seed, shrink_seconds=0.1)
        recorder, text = recorded(
            lambda r, options=options: conform(twins.build(name), options, pools=POOLS, recorder=r)
        )
        finding = traced(tmp_path, text).finding
        assert recorder.violated and recorder.shows_violation == (finding is not None)
        if finding is not None:
            assert finding.line == len(text.splitlines())
            found.add(finding.rule)
        if rule in found:
            return
    pytest.fail(f"found: {found}")


@pytest.mark.parametrize("form", [form for form in Form if form not in CHAPTERS])
def test_other_forms_cannot_be_logged(form: Form) -> None:
    with pytest.raises(NotLoggedError, match=f"a log of {form}"):
        conform(_any_form, ConformOptions(operations=50, form=form), pools=POOLS, recorder=Recorder(io.StringIO()))


def _any_form(config: Any) -> Any:
    if config.form is Form.ENGINES:
        from kvspec.model.engines.reference import ModelEngineTarget

        return ModelEngineTarget(config)
    return model_target(config)


def test_forms_with_other_events_are_not_in_one_log() -> None:
    with pytest.raises(NotLoggedError, match="managers"):
        conform(model_target, ConformOptions(operations=50), pools=POOLS, recorder=Recorder(io.StringIO()))


@pytest.mark.parametrize(
    "context",
    [Context(), Context(salt=""), Context(adapter=""), Context(adapter="a", adapter_version=1), Context(images=("",))],
    ids=str,
)
def test_a_chain_reads_back_as_it_was_written(context: Context) -> None:
    chain = Chains(2).intern(NOTHING, context, TOKENS)
    head = header("prefix_cache")
    sort = head.chapter.event("evict").parameters[0].sort
    written = msgspec.json.decode(msgspec.json.encode({"event": "evict", "key": told(chain, sort)}))
    (read,) = arguments(Row("log", 2, written), head.words, head.chapter)
    (plain,) = arguments(Row("log", 2, {"event": "evict", "key": [7, 8]}), head.words, head.chapter)
    assert read.context == context and read.tokens == TOKENS
    assert (read is plain) == (context == Context())


# -- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(Path(__file__).parents[3])
    path = tmp_path / "good.kv"
    path.write_text(SCENARIO)
    return path


def test_a_scenario_is_logged_by_both_commands(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "run.jsonl", tmp_path / "conform.jsonl"
    assert run(["run", str(scenario), "--target", "model", "--log", str(first)]) == 0
    assert f"log: {first}, 12 events" in capsys.readouterr().out
    assert run(["conform", "model", "--replay", str(scenario), "--log", str(second)]) == 0
    assert first.read_text() == second.read_text()
    assert run(["trace", str(first)]) == 0
    assert run(["run", str(scenario), str(scenario), "--target", "model", "--log", str(first)]) == 0  # it is kvspec's
    assert run(["trace", str(first)]) == 0
    assert "24 behind 2 headers" in capsys.readouterr().out


def test_random_operations_are_logged(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    words = ["conform", "model", "--form", "managers", "--operations", "200", "--log", str(log)]
    assert run(words) == 0
    assert run(["trace", str(log)]) == 0
    faulty = ["run", "tests/corpus/field/B26.kv", "--target", "tests.faulty.twins:B26", "--log", str(log)]
    assert run(faulty) == 1
    assert "; it shows what was violated" in capsys.readouterr().out
    assert run(["trace", str(log), "--save", str(tmp_path / "saved")]) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["conform", "torch", "--form", "composites"], "--log: a log of composites, expected one of managers, "),
        (["conform", "model"], "by --form"),
        (["run", "tests/corpus/composites/B02.kv"], "--log: a log of composites, expected one of managers, "),
        (["run", "tests/corpus/field/B26.kv", "tests/corpus/pools/B26.kv"], "--log: a log of managers and pools"),
        (["run", "{events}"], "which runs on the spec, expected a scenario of operations"),
        (["conform", "model", "--replay", "{events}"], "this scenario runs on the spec"),
        (["run", "{scenario}", "--json", "{log}"], "is the file of --json, too"),
    ],
)
def test_what_cannot_be_logged_is_told_in_one_line(
    words: list[str], says: str, scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "events.kv"
    events.write_text("pool 3 block 1\nchapter blocks\nevent take 1 a\n")
    log = tmp_path / "log.jsonl"
    assert run([w.format(events=events, scenario=scenario, log=log) for w in (*words, "--log", "{log}")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and not log.exists()


def test_a_log_of_somebody_else_is_not_replaced(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "mine.jsonl"
    log.write_text(mine := '{"kvspec":"events","version":1,"chapter":"sequences","num_blocks":6,"block_size":4}\n')
    words = ["run", str(scenario), "--target", "model", "--log", str(log)]
    assert run(words) == 2 and log.read_text() == mine
    assert "was not made by kvspec" in capsys.readouterr().err
    assert run([*words, "--force"]) == 0 and log.read_text() != mine


def test_a_log_that_cannot_be_written_is_not_told_of(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*words: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    log = tmp_path / "log.jsonl"
    assert run(["run", str(scenario), "--target", "model", "--log", str(log)]) == 2
    told, errors = capsys.readouterr()
    assert "holds" in told and "log:" not in told and "--log: '" in errors
    assert not log.exists() and {path.name for path in tmp_path.iterdir()} == {scenario.name}


def test_an_interrupted_log_is_whole(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    calls = [0]
    write = Recorder._write

    def interrupted(self: Recorder, *words: Any) -> None:
        calls[0] += 1
        if calls[0] == 40:
            raise KeyboardInterrupt
        write(self, *words)

    monkeypatch.setattr(Recorder, "_write", interrupted)
    run(["conform", "model", "--form", "managers", "--operations", "500", "--log", str(log)])
    text = log.read_text()
    assert text.endswith("\n") and sum("event" in json.loads(line) for line in text.splitlines()) == 39
    assert trace_events([log]).finding is None


# -- runs of other sizes in one log -----------------------------------------------------------------------------------

HEAD = {"kvspec": "events", "version": 1, "chapter": "blocks", "complete": True}
TAKE = {"event": "take", "holder": "a", "block": 3}


def lines(*said: dict[str, Any]) -> str:
    return "".join(json.dumps(line) + "\n" for line in said)


def test_a_new_run_may_have_other_sizes(tmp_path: Path) -> None:
    small, large = HEAD | {"num_blocks": 4}, HEAD | {"num_blocks": 8}
    far = {**TAKE, "block": 7}
    assert traced(tmp_path, lines(small, TAKE, large, TAKE, far, small, TAKE)).finding is None
    for wrong in (lines(large, far, small, far), lines(small, TAKE, large, far, small, TAKE, far)):
        found = traced(tmp_path, wrong).finding
        assert found is not None and found.rule == "blocks/numbers" and found.line == wrong.count("\n")
    twice = traced(tmp_path, lines(small, TAKE, large, far, far)).finding
    assert twice is not None and twice.rule == "blocks.take/require" and twice.line == 5
