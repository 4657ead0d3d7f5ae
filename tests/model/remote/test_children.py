"""Whatever a child process does, the client says what it was, waits no longer than it should, and ends the child."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from planted_children import all_ended, pids, planted

from kvspec.model.conformance import (
    Context,
    MisuseError,
    NoReturnError,
    PoolConfig,
    RemoteError,
    TargetError,
    UnusableError,
    checked_target,
)
from kvspec.model.remote import process
from kvspec.model.remote.client import RemoteTargets

CONFIG = PoolConfig(num_blocks=4, block_size=2)
SHORT = 0.3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a child works; at the end none may be left. Children have little time to end by themselves."""
    monkeypatch.setattr(process, "_GRACE", 0.3)
    yield tmp_path
    assert pids(tmp_path) and all_ended(tmp_path)


def targets(folder: Path, plant: str = "pass", **options: Any) -> RemoteTargets:
    return RemoteTargets(planted(folder, plant), **options)


def test_a_good_child_is_asked_and_ends_with_its_input(folder: Path) -> None:
    with targets(folder) as made:
        assert made.introduction.name == "planted" and made.introduction.version == "2.5"
        assert made.about == {"name": "planted", "version": "2.5", "engine": "none"}
        target: Any = checked_target(made, CONFIG)
        assert target.capabilities == {"free_count", "free_ids", "events", "contents"} and target.hit_limit == "all"
        assert target.about == made.about and not hasattr(target, "minimum") and not hasattr(target, "hold")
        assert target.block_table("a") == [1] and target.free_ids() == {1, 2} and target.allocate("a", 3) is True
        assert target.start("a", [1], Context(salt="x")) is None and target.write([("a", [5])]) is None
    assert made.last_words == [] and len(pids(folder)) == 1
    called = (folder / "calls").read_text().splitlines()
    assert called[0].startswith("hello 1 ") and called[-1] == "write [['a', [5]]]"
    assert called[-2].startswith("start a [1] {'adapter': None, ")


def test_one_process_makes_many_targets_and_only_the_last_one_can_be_asked(folder: Path) -> None:
    with targets(folder) as made:
        first: Any = made(CONFIG)
        second: Any = made(CONFIG)
        assert second.free_count() == 3
        with pytest.raises(RemoteError, match="another target has been made since"):
            first.free_count()
    assert len(pids(folder)) == 1


def test_what_a_target_wants_to_have_seen_comes_with_it(folder: Path) -> None:
    plant = 'if method == "make": RESULTS["make"]["minimum"] = {"hits": 3}'
    with targets(folder, plant) as made:
        target: Any = made(CONFIG)
        assert target.minimum == {"hits": 3}


# -- errors that are answers ------------------------------------------------------------------------------------------

ERROR = """
if method == "allocate":
    say(json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": %s}) + "\\n")
    continue
"""


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ('{"code": -32000, "message": "a is unknown"}', MisuseError, "^a is unknown$"),
        ('{"code": -32001, "message": "lost"}', RemoteError, "^lost$"),
        ('{"code": -32001, "message": "a", "data": {"type": "KeyError", "where": "m.cpp:7", "traceback": "in f"}}',
         RemoteError, r"^KeyError: a \(m.cpp:7\)$"),
        ('{"code": -32601, "message": "no such method"}', UnusableError,
         "^answers allocate with error -32601: no such method$"),
        ('{"code": -32602, "message": "no `seq`"}', UnusableError, "error -32602: no `seq`"),
    ],
)  # fmt: skip
def test_an_error_is_what_its_code_says(folder: Path, error: str, kind: type[Exception], words: str) -> None:
    with targets(folder, ERROR % error) as made:
        target: Any = made(CONFIG)
        with pytest.raises(kind, match=words) as caught:
            target.allocate("a", 1)
        assert type(caught.value) is kind


def test_an_error_leaves_the_process_and_a_failure_leaves_its_traceback(folder: Path) -> None:
    error = '{"code": -32001, "message": "a", "data": {"type": "KeyError", "traceback": "line 1\\nline 2"}}'
    with targets(folder, ERROR % error) as made:
        target: Any = made(CONFIG)
        for _ in range(2):
            with pytest.raises(RemoteError):
                target.allocate("a", 1)
        assert target.free_count() == 3 and made.last_words == ["line 1", "line 2"]
    assert len(pids(folder)) == 1


def test_a_form_that_cannot_be_made_is_refused_by_an_answer(folder: Path) -> None:
    plant = ERROR.replace("allocate", "make") % '{"code": -32001, "message": "no pools here"}'
    with targets(folder, plant) as made, pytest.raises(TargetError) as caught:
        checked_target(made, CONFIG)
    assert str(caught.value) == "cannot be made with 4 blocks of 2: no pools here"
    assert not isinstance(caught.value, UnusableError)


# -- what ends a process, and what ends a run -------------------------------------------------------------------------

DIES = [
    ("sys.exit(3)", "its process has ended with exit code 3"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", "its process was ended by SIGSEGV"),
    ('say(\'{"jsonrpc":\'); os._exit(0)', "exit code 0, in the middle of the line '{\"jsonrpc\":'"),
    ("os.close(1); time.sleep(60)", "its process has closed its standard output"),
    ("subprocess.Popen(['sleep', '60']); os._exit(7)", "its process has ended with exit code 7"),
    ("print('assertion failed: refs > 0', file=sys.stderr); os.abort()",
     "SIGABRT; the last line on its standard error: assertion failed: refs > 0"),
    ("os.write(2, b'x' * 200_000); sys.exit(1)", "its process has ended with exit code 1; the last line"),
]  # fmt: skip


@pytest.mark.parametrize(("plant", "words"), DIES, ids=lambda part: part[:30])
def test_a_child_that_dies_in_a_call_is_told_and_started_again(folder: Path, plant: str, words: str) -> None:
    with targets(folder, f"if method == 'allocate': {plant}") as made:
        target: Any = made(CONFIG)
        with pytest.raises(RemoteError) as caught:
            target.allocate("a", 1)
        assert str(caught.value).startswith("allocate was not answered, as ") and words in str(caught.value)
        with pytest.raises(RemoteError, match="its process has ended"):
            target.free_count()
        again: Any = made(CONFIG)
        assert again.free_count() == 3
    assert len(pids(folder)) == 2


def test_a_call_that_does_not_return_is_ended(folder: Path) -> None:
    with targets(folder, "if method == 'allocate': say('{'); time.sleep(60)", call_seconds=SHORT) as made:
        target: Any = made(CONFIG)
        with pytest.raises(NoReturnError, match=r"^allocate has not returned: no answer came within 0.3 s, in the mid"):
            target.allocate("a", 1)
        made.call_seconds = 60
        again: Any = made(CONFIG)
        assert again.free_count() == 3


def test_a_call_has_less_time_where_one_is_patient_no_longer(folder: Path) -> None:
    plant = "if method == 'allocate' and params['num_tokens'] == 2: time.sleep(60)"
    with targets(folder, plant, call_seconds=50) as made:
        target: Any = made(CONFIG)
        assert target.allocate("a", 1) is True
        target.patience = 0.05
        with pytest.raises(NoReturnError, match=r"no answer came within (0|[0-4]\.)"):
            target.allocate("a", 2)


def test_answers_that_trickle_in_are_no_answers(folder: Path) -> None:
    plant = """
    while method == 'allocate':
        say('x')
        print('still here', file=sys.stderr, flush=True)
        time.sleep(0.01)
    """
    with targets(folder, plant, call_seconds=SHORT) as made:
        target: Any = made(CONFIG)
        with pytest.raises(NoReturnError, match=r"no answer came within 0\.3 s, in the middle of the line 'xxx"):
            target.allocate("a", 1)


def test_the_call_that_is_not_answered_is_named_among_those_asked_ahead(folder: Path) -> None:
    plant = "if method == 'free_ids' and os.path.exists('fatal'): os._exit(4)"
    with targets(folder, plant) as made:
        target: Any = made(CONFIG)
        for _ in range(2):
            target.allocate("a", 1)
            assert target.free_count() == 3 and target.free_ids() == {1, 2}
        (folder / "fatal").touch()
        with pytest.raises(RemoteError, match="free_ids was not answered, as its process has ended with exit code 4"):
            target.allocate("a", 1)


NO_ANSWERS = [
    ("say('hello world\\n')", "what is no answer (JSON is malformed: invalid character (byte 0)): 'hello world'"),
    ("say('7\\n')", "is no answer (Expected `object`, got `int`): '7'"),
    ("say('\\n')", "is no answer"),
    ("os.write(1, b'\\xff\\xfe\\n')", "is no answer"),
    ("say('{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":true}\\n')", "has answered no request instead of the one with id "),
    ("say('{\"jsonrpc\":\"1.0\",\"id\":3,\"result\":true}\\n')", "Invalid enum value '1.0' - at `$.jsonrpc`"),
    ("say('{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"bad JSON\"}}\\n')",
     "has answered no request: bad JSON instead"),
    ("say(json.dumps({'jsonrpc': '2.0', 'id': request['id']}) + '\\n')", "both a result and an error, or neither"),
    ("answer('yes')", "has answered allocate with Expected `bool`, got `str`: "),
    ("answer(None)", "has answered allocate with Expected `bool`, got `null`: "),
    ("say('x' * 3000)", "bytes without the end of a line"),
]  # fmt: skip


@pytest.mark.parametrize(("plant", "words"), NO_ANSWERS, ids=lambda part: part[:40])
def test_what_is_no_answer_ends_the_run(folder: Path, plant: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LONGEST_LINE", 2000)
    with targets(folder, f"if method == 'allocate': {plant}; continue") as made:
        target: Any = made(CONFIG)
        expected = RemoteError if "bytes without" in words else UnusableError
        with pytest.raises(expected) as caught:
            target.allocate("a", 1)
        assert words in str(caught.value)
        assert expected is RemoteError or "expected an answer (docs/protocol.md)" in str(caught.value)


@pytest.mark.parametrize(
    ("method", "result", "words"),
    [
        ("read", "[2**63]", "has answered read with .*too large"),
        ("read", "[-2**64]", "has answered read with "),
        ("free_count", "'1e400'", "has answered free_count with "),
        ("free_ids", "'[' * 1500 + ']' * 1500", "is no answer"),
    ],
)
def test_results_that_no_such_method_has_end_the_run(folder: Path, method: str, result: str, words: str) -> None:
    """Numbers that are too large, and lists that are nested too deeply, are no fault of the manager's."""
    text = result if result.startswith("'") else f"str({result})"
    line = f"""'{{"jsonrpc":"2.0","id":%d,"result":%s}}\\n' % (request["id"], {text})"""
    with targets(folder, f"if method == {method!r}: say({line}); continue") as made:
        target: Any = made(CONFIG)
        arguments = {"read": ("a", 0, 1), "block_table": ("a",)}.get(method, ())
        with pytest.raises(UnusableError, match=words):
            getattr(target, method)(*arguments)


def test_what_is_printed_among_answers_is_shown(folder: Path) -> None:
    """Whether before an answer, or behind it, where it is seen with the next one."""
    for plant in ("say('allocating\\n')", "answer(True); say('allocating\\n'); continue"):
        with targets(folder, f"if method == 'allocate': {plant}") as made:
            target: Any = made(CONFIG)
            with pytest.raises(UnusableError, match=r"to its standard output what is no answer .*: 'allocating'"):
                _ = target.allocate("a", 1) and target.free_count()


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        ("sys.exit(1)", "did not say hello: its process has ended with exit code 1"),
        ("print('no such model', file=sys.stderr); sys.exit(1)", "exit code 1; on its standard error: no such model"),
        ("time.sleep(60)", "did not say hello: no answer came within 0.3 s"),
        ("say('loading...\\n')", "is no answer (JSON is malformed: invalid character (byte 0)): 'loading...'"),
        ("RESULTS['hello']['protocol'] = 2", "speaks version 2 of the protocol, expected 1"),
        ("RESULTS['hello'] = {}", "has answered hello with Object missing required field `protocol`"),
        (
            "RESULTS['hello']['name'] = ' '",
            "a name that is not one line of 1 to 200 characters",
        ),
        ("RESULTS['hello']['name'] = 'a\\nb'", "has answered hello with a name that is not one line of"),
        ("RESULTS['hello']['name'] = 'a\\x1b[2J'", "has answered hello with a name that is not one line of"),
        ("RESULTS['hello']['name'] = 'a' * 201", "has answered hello with a name that is not one line of"),
        (ERROR.replace("allocate", "hello") % '{"code": -32601, "message": ""}', "answers hello with error -32601"),
    ],
)
def test_who_does_not_say_hello_cannot_be_driven(folder: Path, plant: str, words: str) -> None:
    seconds = {"start_seconds": SHORT, "call_seconds": SHORT} if "sleep" in plant else {}
    with targets(folder, plant, **seconds) as made, pytest.raises(UnusableError) as caught:
        _ = made.introduction
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        ("os._exit(9)", r"did not make a target with PoolConfig\(num_blocks=4, .*: its process .* exit code 9"),
        ("time.sleep(60)", "did not make a target with .*: no answer came within 0.3 s"),
        ("answer(['fork']); continue", "has answered make with Expected `object`, got `array`"),
        ("RESULTS['make'] = {'hit_limit': 'all'}", "has answered make with no `capabilities`"),
        ("RESULTS['make']['capabilities'] = ['magic']", "has answered make with Invalid enum value 'magic'"),
        ("RESULTS['make']['hit_limit'] = 'none'", "has answered make with Invalid enum value 'none'"),
    ],
)
def test_who_does_not_answer_make_cannot_be_driven(folder: Path, plant: str, words: str) -> None:
    with targets(folder, f"if method == 'make': {plant}") as made:
        assert made.introduction.name == "planted"
        made._start_seconds = SHORT if "sleep" in plant else 60
        with pytest.raises(UnusableError, match=words):
            checked_target(made, CONFIG)


@pytest.mark.parametrize("argv", [["/nothing/here"], ["."], ["a\0b"]])
def test_what_cannot_be_started_is_told(argv: list[str]) -> None:
    with RemoteTargets(argv) as made, pytest.raises(UnusableError, match=r"^cannot be started: "):
        made(CONFIG)


# -- no deadlock ------------------------------------------------------------------------------------------------------


def test_a_flood_on_standard_error_holds_nobody_up(folder: Path) -> None:
    plant = "os.write(2, b'note\\n' * 100_000)"
    with targets(folder, plant) as made:
        target: Any = made(CONFIG)
        for number in range(5):
            assert target.allocate("a", number) is True
        assert made._child is not None and len(made._child.tail) <= 16384 / len("note\n") + 1


def test_what_is_larger_than_a_pipe_goes_both_ways(folder: Path) -> None:
    """Many requests that are answered at length while they are still written."""
    plant = "if method == 'block_table': answer(list(range(20_000))); continue"
    names = [f"{n}" * 40 for n in range(400)]
    with targets(folder, plant) as made:
        target: Any = made(CONFIG)
        for _ in range(2):
            target.allocate("a", 1)
            assert all(target.block_table(name)[-1] == 19_999 for name in names[:40])
        target.start("a", list(range(200_000)), Context())
        assert target.block_table("a")[-1] == 19_999


def test_a_child_that_closes_its_input_is_told(folder: Path) -> None:
    plant = "if method == 'make': answer(RESULTS['make']); os.close(0); open('deaf', 'w'); time.sleep(60)"
    with targets(folder, plant, call_seconds=20) as made:
        target: Any = made(CONFIG)
        while not (folder / "deaf").exists():
            time.sleep(0.01)
        with pytest.raises(RemoteError, match="allocate was not answered, as its process has closed its"):
            target.allocate("a", 1)


def test_a_child_that_reads_no_more_is_not_waited_for_by_a_large_request(folder: Path) -> None:
    plant = "if method == 'make': answer(RESULTS['make']); time.sleep(60)"
    with targets(folder, plant, call_seconds=SHORT) as made:
        target: Any = made(CONFIG)
        with pytest.raises(NoReturnError, match="start has not returned"):
            target.start("a", list(range(200_000)), Context())


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plant",
    [
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif method == 'allocate': answer(True); time.sleep(60)",
        "if method == 'allocate': answer(True); time.sleep(60)",
        "if method == 'allocate': answer(True); os.write(2, b'x' * 1_000_000); os.write(1, b'x' * 1_000_000)",
        "if method == 'allocate':\n    child = subprocess.Popen(['sleep', '60'])\n"
        "    print(child.pid, file=open('pids', 'a'))",
    ],
    ids=["ignores what is asked", "does not look", "talks on", "has a child"],
)
def test_a_child_ends_whatever_it_does(folder: Path, plant: str) -> None:
    with targets(folder, plant) as made:
        target: Any = made(CONFIG)
        target.allocate("a", 1)
    assert all_ended(folder)
    made.close()


def test_who_is_interrupted_in_a_call_starts_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer that was not waited for is not taken for another one."""
    with targets(folder) as made:
        target: Any = made(CONFIG)
        taken = process.Child._taken

        def interrupted(child: process.Child, most: int) -> list[bytes]:
            raise KeyboardInterrupt

        monkeypatch.setattr(process.Child, "_taken", interrupted)
        with pytest.raises(KeyboardInterrupt):
            target.allocate("a", 1)
        monkeypatch.setattr(process.Child, "_taken", taken)
        again: Any = made(CONFIG)
        assert again.free_count() == 3
    assert len(pids(folder)) == 2


def test_no_zombie_and_no_open_pipe_is_left(folder: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with targets(folder, "if method == 'allocate': os._exit(0)") as made:
            target: Any = made(CONFIG)
            with pytest.raises(RemoteError):
                target.allocate("a", 1)
            made(CONFIG)
    assert set(os.listdir("/proc/self/fd")) <= before
    with pytest.raises(ChildProcessError):
        os.waitpid(pids(folder)[-1], os.WNOHANG)


# -- looks ------------------------------------------------------------------------------------------------------------


def test_what_is_looked_at_twice_is_asked_for_once_and_again_after_an_operation(folder: Path) -> None:
    with targets(folder) as made:
        target: Any = made(CONFIG)
        for _ in range(3):
            target.allocate("a", 1)
            for _ in range(2):
                assert target.free_count() == 3 and target.block_table("b") == [1]
    called = (folder / "calls").read_text().splitlines()[2:]
    assert called == ["allocate a 1", "free_count", "block_table b"] * 3


def test_events_are_drained_as_often_as_they_are_asked_for(folder: Path) -> None:
    with targets(folder) as made:
        target: Any = made(CONFIG)
        for _ in range(2):
            target.allocate("a", 1)
            assert target.drain_events() == [] and target.drain_events() == [] and target.free_count() == 3
    called = (folder / "calls").read_text().splitlines()[2:]
    assert sorted(called) == ["allocate a 1"] * 2 + ["drain_events"] * 4 + ["free_count"] * 2


def test_events_that_were_asked_for_and_not_needed_are_not_lost(folder: Path) -> None:
    plant = """
    if method == 'drain_events':
        count = globals().get('count', 0) + 1
        answer([{'kind': 'stored', 'key': f'{count:02x}', 'block_id': count}])
        continue
    """
    with targets(folder, plant) as made:
        target: Any = made(CONFIG)
        found = []
        for wanted in (True, True, False, True, False, False, True):
            target.allocate("a", 1)
            found += target.drain_events() if wanted else []
    assert [event.block_id for event in found] == [1, 2, 3, 4, 5, 6]


def asked(folder: Path, *operations: str) -> list[str]:
    """What the last of some operations brings along, where a judge looks at the sequences that there are."""
    with targets(folder) as made:
        target: Any = made(CONFIG)
        there: list[str] = []
        for operation in operations:
            name, *seqs = operation.split()
            before = len((folder / "calls").read_text().splitlines())
            getattr(target, name)(*seqs, *([[1], Context()] if name == "start" else [1] if name == "allocate" else []))
            along = (folder / "calls").read_text().splitlines()[before + 1 :]
            there = [s for s in there if name not in ("abort", "close") or s not in seqs] + seqs * (name == "start")
            for seq in there if name != "close" else []:
                assert target.free_count() == 3 and target.block_table(seq) == [1] and len(target.read(seq, 0, 1)) >= 0
    return along


PRELUDE = ["start a", "start b", "allocate a", "abort b", "start b", "allocate b"]


def test_nothing_is_asked_ahead_of_what_may_be_gone(folder: Path) -> None:
    """Nor of a range that may be too long; but of what an operation is known to leave, and of everything else."""
    others = ["free_count", "block_table b", "read b 0 1"]
    assert asked(folder, *PRELUDE, "allocate a") == [others[0], "block_table a", *others[1:]]


def test_what_an_operation_ends_is_not_looked_at(folder: Path) -> None:
    assert asked(folder, *PRELUDE, "abort a") == ["free_count", "block_table b", "read b 0 1"]


def test_nothing_comes_along_with_what_is_not_known(folder: Path) -> None:
    assert asked(folder, *PRELUDE, "preempt a") == []


def test_nothing_comes_along_with_the_end(folder: Path) -> None:
    assert asked(folder, *PRELUDE, "close") == []
